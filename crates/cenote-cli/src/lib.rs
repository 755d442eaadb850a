//! The `cenote` command, as a library. The program `cenote` calls [`main`], and so do programs that
//! are this command under another name.
//!
//! Invariants:
//!
//! * Commands that only look (`ls`, `info`, `check`, `dump`, `show`, `stats`, `doctor`) open
//!   read-only and change no byte of any file.
//! * The answer goes to standard output, all else to standard error. With `--json`, standard output
//!   holds nothing but JSON.
//! * An error is one line, `cenote: what: why: what to do`, with an exit status of [`failure`].
//!   Nothing panics on what a user, a medium or the system does. A reader that closes the pipe ends
//!   the command without a message.

mod advice;
mod at_rest_modes;
mod cli;
mod commands;
mod copies;
mod failure;
mod keys;
mod opening;
mod output;
mod progress;
mod screen;
mod stop;
mod table;
mod tour;
mod units;

use clap::{CommandFactory as _, Parser as _};
use cli::{Cli, Command, TourBuild};
use failure::{Failure, Verdict};
use output::Out;
use std::ffi::OsString;
use std::io::Write as _;
use std::process::ExitCode;

/// The command: arguments are those of this process, and the answer is how it is to end.
#[must_use]
pub fn main() -> ExitCode {
    std::panic::set_hook(Box::new(|info| {
        // A bug of ours. One line, no backtrace; the store is recovered by its next opener.
        let place = info.location().map(ToString::to_string).unwrap_or_default();
        let what = info.payload_as_str().unwrap_or("panic").replace('\n', "; ");
        let _ = writeln!(
            std::io::stderr(),
            "cenote: internal error at {place}: {what}: please report it"
        );
    }));
    let mut arguments = std::env::args_os().skip(1);
    if arguments.next().is_some_and(|first| first == cli::TOUR_BUILD) {
        let parsed = TourBuild::try_parse_from(std::env::args_os().skip(1));
        return match parsed {
            Ok(arguments) => ended(tour::builder::run(&arguments)),
            Err(error) => refused(&error),
        };
    }
    let cli = match Cli::try_parse_from(without_help_of_help(std::env::args_os())) {
        Ok(cli) => cli,
        Err(error) => return refused(&error),
    };
    let mut out = Out::new(cli.json);
    let result = run(&cli, &mut out).map_err(|failure| failure.in_store(cli.command.store()));
    let result = result.and_then(|verdict| out.finish().map(|()| verdict));
    tell_adopted(&cli.command);
    if result.is_err() {
        // What was said before the failure comes first.
        let _ = out.finish();
    }
    ended(result)
}

/// Says of a command that was not asked to make a copy a store of its own that it has done so.
fn tell_adopted(command: &Command) {
    let asked = matches!(command, Command::Adopt(_));
    if let (false, Some(dir)) = (asked, command.store())
        && copies::became_own(dir)
    {
        let _ = writeln!(
            std::io::stderr(),
            "cenote: {} is adopted now: this command opened all of it, and found it whole",
            dir.display()
        );
    }
}

/// Says why, if a command has failed.
fn ended(result: Result<Verdict, Failure>) -> ExitCode {
    match result {
        Ok(Verdict::Clean) => ExitCode::SUCCESS,
        Ok(Verdict::Found) => ExitCode::from(failure::FOUND),
        Err(failure) => {
            if let Some(message) = failure.message() {
                let _ = writeln!(std::io::stderr(), "cenote: {message}");
            }
            ExitCode::from(failure.status())
        }
    }
}

fn run(cli: &Cli, out: &mut Out) -> Result<Verdict, Failure> {
    match &cli.command {
        Command::Format(arguments) => commands::format::run(arguments, out),
        Command::Create(arguments) => commands::create::run(arguments, out),
        Command::Chmod(arguments) => commands::permissions::chmod(arguments, out),
        Command::Chown(arguments) => commands::permissions::chown(arguments, out),
        Command::Logs(arguments) => commands::undecided_logs::run(arguments, out),
        Command::Ls(arguments) => commands::ls::run(arguments, out),
        Command::Info(arguments) => commands::info::run(arguments, out),
        Command::Check(arguments) => commands::check::run(arguments, out),
        Command::Dump(arguments) => commands::dump::run(arguments, out),
        Command::Show(arguments) => commands::show::run(arguments, out),
        Command::Reclaim(arguments) => commands::reclaim::run(arguments, out),
        Command::Rm(arguments) => commands::rm::run(arguments, out),
        Command::Stats(arguments) => commands::stats::run(arguments, out),
        Command::Top(arguments) => commands::top::run(arguments, out),
        Command::FinishFrees(arguments) => commands::finish_frees::run(arguments, out),
        Command::Trim(arguments) => commands::trim::run(arguments, out),
        Command::Clone(arguments) => commands::relocate::clone(arguments, out),
        Command::Copy(arguments) => commands::copy::run(arguments, out),
        Command::Randomize(arguments) => commands::relocate::randomize(arguments, out),
        Command::Relocate(arguments) => commands::relocate::run(arguments, out),
        Command::Object(arguments) => commands::object::run(arguments, out),
        Command::Verify(arguments) => commands::verify::run(arguments, out),
        Command::Rekey(arguments) => commands::verify::rekey(arguments, out),
        Command::Snapshot(arguments) => commands::snapshot::run(arguments, out),
        Command::Restore(arguments) => commands::snapshot::restore(arguments, out),
        Command::Adopt(arguments) => commands::adopt::run(arguments, out),
        Command::Backup(arguments) => commands::backup::run(arguments, out),
        Command::Export(arguments) => commands::archiving::export(arguments, out),
        Command::Import(arguments) => commands::archiving::import(arguments, out),
        Command::Doctor(arguments) => commands::doctor::run(arguments, out),
        Command::Tour(arguments) => tour::run(arguments, out),
        Command::Completions(arguments) => commands::manual::completions(arguments, out),
        Command::Man(arguments) => commands::manual::pages(arguments, out),
    }
}

/// The command line; `help --help` is `help`.
fn without_help_of_help(words: impl Iterator<Item = OsString>) -> Vec<OsString> {
    let mut words: Vec<OsString> = words.collect();
    if words.get(1).is_some_and(|word| word == "help") {
        words.retain(|word| word != "--help" && word != "-h");
    }
    words
}

/// Help and version, which are no errors; or one line that says what is wrong with the command
/// line.
fn refused(error: &clap::Error) -> ExitCode {
    use clap::error::ErrorKind;
    let missing = error.kind() == ErrorKind::DisplayHelpOnMissingArgumentOrSubcommand;
    if missing || !error.use_stderr() {
        let printed = error.print().and_then(|()| std::io::stdout().flush());
        return match printed.map_err(Failure::from) {
            // A closed pipe is no error.
            Ok(()) | Err(Failure::Pipe) if missing => ExitCode::from(failure::USAGE),
            printed => ended(printed.map(|()| Verdict::Clean)),
        };
    }
    let text = error.to_string();
    let mut said = String::new();
    for line in text.lines().map(str::trim).filter(|line| !line.is_empty()) {
        if line.starts_with("Usage:") || line.starts_with("For more information") {
            break;
        }
        // A value that begins with a hyphen is no argument of any command.
        if line.starts_with("tip: to pass ") {
            continue;
        }
        let tip = line.strip_prefix("tip: ").map(best_first);
        let (separator, line) = tip.as_deref().map_or((" ", line), |tip| ("; ", tip));
        said.push_str(if said.is_empty() { "" } else { separator });
        said.push_str(line);
    }
    let said = said.trim_start_matches("error: ");
    let named = named_in(std::env::args_os().skip(1));
    let _ = writeln!(std::io::stderr(), "cenote: {said}: see `{named} --help`");
    ExitCode::from(failure::USAGE)
}

/// A tip of the parser, which names the most similar word last, with that word first.
fn best_first(tip: &str) -> String {
    let Some((what, words)) = tip.split_once(" exist: ") else { return tip.to_owned() };
    let words: Vec<&str> = words.split(", ").collect();
    format!("{what} exist: {}", words.into_iter().rev().collect::<Vec<_>>().join(", "))
}

/// The command that a command line names, as `cenote object create`; arguments may be any bytes.
fn named_in(arguments: impl Iterator<Item = OsString>) -> String {
    let (mut named, mut at) = ("cenote".to_owned(), Cli::command());
    for word in arguments {
        if let Some(sub) = at.find_subcommand(&word).cloned() {
            named = format!("{named} {}", sub.get_name());
            at = sub;
        }
    }
    named
}

#[cfg(test)]
mod tests {
    use super::{named_in, without_help_of_help};

    #[test]
    fn help_is_that_of_the_command_that_was_meant() {
        let named = |line: &str| named_in(line.split(' ').map(Into::into));
        assert_eq!(named("--json ls store --wat"), "cenote ls");
        assert_eq!(named("object create s x"), "cenote object create");
        assert_eq!(named("logs declare-whole ls"), "cenote logs declare-whole");
        assert_eq!(named("create s ls"), "cenote create");
        assert_eq!(named("chekc"), "cenote");
    }

    #[test]
    fn help_of_help_is_help() {
        let words = |line: &str| line.split(' ').map(Into::into).collect::<Vec<_>>();
        let cleared = |line: &str| without_help_of_help(words(line).into_iter());
        assert_eq!(cleared("cenote help --help"), words("cenote help"));
        assert_eq!(cleared("cenote help object -h"), words("cenote help object"));
        assert_eq!(cleared("cenote ls --help"), words("cenote ls --help"));
    }
}
