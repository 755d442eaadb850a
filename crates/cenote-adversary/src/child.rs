//! Children: this program again, in a role or as the command `cenote`. They end with this process,
//! and talk through a pipe.

use crate::round::{Outcome, Trouble, found, require};
use cenote_testkit::ended::run_within;
use cenote_testkit::words::{Killed, Words};
use rustix::process::Signal;
use std::fs::File;
use std::io::Write;
use std::os::fd::AsFd as _;
use std::os::unix::process::{CommandExt as _, ExitStatusExt as _};
use std::path::{Path, PathBuf};
use std::process::{ChildStdout, Command, ExitCode, Stdio};
use std::time::Duration;

pub(crate) use cenote_testkit::ended::Ended;

/// First argument of a child that plays a role.
pub(crate) const ROLE: &str = "__role";
/// Name under which this program is the command.
pub(crate) const COMMAND: &str = "cenote";

/// What a child does with its arguments.
pub(crate) type Role = fn(&[String]) -> Outcome;

/// In a child: plays the role that the arguments name.
pub(crate) fn play(args: &[String], roles: &[(&str, Role)]) -> ExitCode {
    let _ = rustix::process::set_parent_process_death_signal(Some(Signal::KILL));
    let Some((name, args)) = args.split_first() else { return ExitCode::from(2) };
    let Some((_, role)) = roles.iter().find(|(known, _)| known == name) else {
        return ExitCode::from(2);
    };
    match role(args) {
        Ok(()) => ExitCode::SUCCESS,
        Err(Trouble::Found(what) | Trouble::Skipped(what)) => {
            let _ = writeln!(std::io::stderr(), "{name}: {what}");
            ExitCode::FAILURE
        }
    }
}

/// In a child: says a number. Writes of 8 bytes to a pipe are never torn.
pub(crate) fn say(number: u64) -> Outcome {
    // Not through a buffer, which a kill would take along.
    let said = rustix::io::write(std::io::stdout().as_fd(), &number.to_le_bytes())?;
    require(said == 8, || format!("{said} bytes of a number were written"))
}

/// In a child: argument `at` as a number.
pub(crate) fn number(args: &[String], at: usize) -> Outcome<u64> {
    let number = args.get(at).and_then(|text| text.parse().ok());
    number.ok_or_else(|| Trouble::Found(format!("argument {at} of {args:?} is no number")))
}

/// This program as the command `cenote`.
pub(crate) fn cenote() -> Command {
    let mut command = Command::new("/proc/self/exe");
    command.arg0(COMMAND);
    command
}

/// Makes a store. By the command, in whose list of known windows the store stays out of the user's.
pub(crate) fn format(store: &Path) -> Outcome {
    let state = store.parent().unwrap_or(store);
    let ran = cenote().arg("format").arg(store).env("XDG_STATE_HOME", state).output()?;
    require(ran.status.success(), || format!("format: {}", String::from_utf8_lossy(&ran.stderr)))
}

/// The same with a line of words, in which `{d}` is a directory and `{s}` the store in it.
pub(crate) fn cenote_line(line: &str, dir: &Path) -> Command {
    let mut command = cenote();
    command.args(words(line, dir));
    command
}

/// The words of such a line.
pub(crate) fn words(line: &str, dir: &Path) -> Vec<String> {
    let (dir, store) = (dir.display().to_string(), dir.join("store").display().to_string());
    line.split(' ').map(|word| word.replace("{d}", &dir).replace("{s}", &store)).collect()
}

/// This program in a role.
pub(crate) fn role(role: &str, args: &[&dyn AsRef<std::ffi::OsStr>]) -> Outcome<Command> {
    let mut command = Command::new(std::env::current_exe()?);
    command.arg(ROLE).arg(role);
    args.iter().for_each(|arg| _ = command.arg(arg));
    Ok(command)
}

/// How long a program that is run to its end may take. Much more than any takes on a machine that
/// is busy.
pub(crate) const LIMIT: Duration = Duration::from_secs(60);

/// A child in a role, which says numbers.
#[derive(Debug)]
pub(crate) struct Child {
    words: Words<ChildStdout>,
    /// What it says on standard error.
    log: PathBuf,
}

impl Child {
    /// Starts one; `dir` is for its standard error.
    pub(crate) fn start(
        dir: &Path,
        name: &str,
        args: &[&dyn AsRef<std::ffi::OsStr>],
    ) -> Outcome<Self> {
        let log = dir.join(format!("{name}.log"));
        let mut command = role(name, args)?;
        command
            .stdin(Stdio::null())
            .stdout(Stdio::piped())
            .stderr(File::options().append(true).create(true).open(&log)?);
        let mut process = command.spawn()?;
        let pipe = process.stdout.take().expect("standard output is a pipe");
        Ok(Self { words: Words::of(process, pipe), log })
    }

    /// Waits for the next number.
    pub(crate) fn hear(&mut self) -> Outcome<u64> {
        self.words.hear().or_else(|error| found(format!("{error}: {}", said(&self.log))))
    }

    /// Kills it. All numbers that it has said; a finding if it had ended by itself.
    pub(crate) fn kill(self) -> Outcome<Vec<u64>> {
        let Killed { status, words, bytes } = self.words.kill()?;
        require(status.signal() == Some(9), || {
            format!("a child ended by itself, {status}: {}", said(&self.log))
        })?;
        require(bytes.len().is_multiple_of(8), || format!("half a number, {} bytes", bytes.len()))?;
        Ok(words)
    }
}

/// The last lines of a child's standard error.
fn said(log: &Path) -> String {
    let text = std::fs::read(log).unwrap_or_default();
    let text = String::from_utf8_lossy(&text);
    let lines: Vec<&str> = text.lines().collect();
    lines[lines.len().saturating_sub(6)..].join("; ")
}

/// Runs a program to its end; a finding if that takes longer than `limit`. `dir` is for what it
/// says.
pub(crate) fn run(command: &mut Command, dir: &Path, limit: Duration) -> Outcome<Ended> {
    let ended = run_within(command, dir, limit)?;
    ended
        .map_or_else(|| found(format!("{command:?} has not ended after {} s", limit.as_secs())), Ok)
}
