//! The command line, which `cenote-bench` and `cenote-bench-peers` share.

use crate::case::{Case, Failure};
use crate::figures::{self, FIGURES, Figure};
use crate::place::Settings;
use crate::report;
use crate::runner::{self, Plan};
use std::fs::File;
use std::io::{BufWriter, Write};
use std::path::PathBuf;
use std::process::ExitCode;

/// What was asked for.
#[derive(Clone, Debug)]
pub struct Command {
    figures: Vec<&'static Figure>,
    json: Option<PathBuf>,
    settings: Settings,
    plan: Plan,
    row: Option<String>,
    system: Option<String>,
    level: Option<String>,
    list: bool,
    help: bool,
}

const OPTIONS: &str = "\
Options:
      --all        every figure
      --list       names of the figures
      --quick      short runs and small sizes, to see that everything runs
      --row NAME   only rows whose name begins so
      --system S   only systems whose name begins so
      --level L    only this level
      --json FILE  one JSON object a line
      --dir DIR    where temporary stores are made [default: /dev/shm if there]
      --runs N     runs of each case [default: 9, at least 5]
      --run-ms N   least milliseconds of a run [default: 60]; many short runs on a machine that has other work to do
  -h, --help       this text
";

/// Other systems' cases of a figure; empty if they have none.
pub type Peers = fn(&Figure, &Settings) -> Result<Vec<Case>, Failure>;

impl Command {
    /// Reads the arguments after the program's name.
    ///
    /// # Errors
    /// What is wrong with them.
    pub fn parse(arguments: impl IntoIterator<Item = String>) -> Result<Self, String> {
        let mut command = Self {
            figures: Vec::new(),
            json: None,
            settings: Settings::default(),
            plan: Plan::FULL,
            row: None,
            system: None,
            level: None,
            list: false,
            help: false,
        };
        let (mut runs, mut run_ms) = (None, None);
        let mut arguments = arguments.into_iter();
        while let Some(argument) = arguments.next() {
            let mut value = || arguments.next().ok_or(format!("{argument} needs a value"));
            match argument.as_str() {
                "--all" => command.figures = FIGURES.iter().collect(),
                "--list" => command.list = true,
                "--quick" => {
                    command.plan = Plan::QUICK;
                    command.settings.quick = true;
                }
                "--row" => command.row = Some(value()?),
                "--system" => command.system = Some(value()?),
                "--level" => command.level = Some(value()?),
                "--json" => command.json = Some(value()?.into()),
                "--dir" => command.settings.directory = value()?.into(),
                "--runs" => {
                    let text = value()?;
                    let n = text.parse().map_err(|_| format!("--runs {text}: not a number"))?;
                    if !(5..=1000).contains(&n) {
                        return Err(format!("--runs {n}: between 5 and 1000"));
                    }
                    runs = Some(n);
                }
                "--run-ms" => {
                    let text = value()?;
                    let n = text.parse().map_err(|_| format!("--run-ms {text}: not a number"))?;
                    if !(1..=10_000).contains(&n) {
                        return Err(format!("--run-ms {n}: between 1 and 10000"));
                    }
                    run_ms = Some(n);
                }
                "-h" | "--help" => command.help = true,
                name if name.starts_with('-') => return Err(format!("there is no option {name}")),
                name => {
                    let figure = figures::find(name);
                    command
                        .figures
                        .push(figure.ok_or(format!("there is no figure {name:?}: --list shows them"))?);
                }
            }
        }
        if let Some(runs) = runs {
            command.plan.runs = runs;
        }
        if let Some(run_ms) = run_ms {
            command.plan.run_ms = run_ms;
        }
        if command.figures.is_empty() && !command.list && !command.help {
            return Err("which figure? --list shows them, --all takes all".into());
        }
        Ok(command)
    }

    /// Does what was asked for. `program` is the name for messages; `peers` adds cases of other systems, and `reference` is the one that ratios are
    /// to.
    ///
    /// # Errors
    /// A case that fails, or a file that cannot be written.
    pub fn run(&self, program: &str, peers: Option<(Peers, &str)>) -> Result<(), Failure> {
        if self.help {
            print!("Usage: {program} [OPTIONS] FIGURE...\n\n{OPTIONS}");
            return Ok(());
        }
        if self.list {
            for figure in &FIGURES {
                println!("{:<16} {}", figure.name, figure.title);
            }
            return Ok(());
        }
        let mut json = match &self.json {
            Some(path) => {
                let file = File::create(path).map_err(|error| format!("{}: {error}", path.display()))?;
                Some(BufWriter::new(file))
            }
            None => None,
        };
        for figure in &self.figures {
            self.measure(figure, peers, json.as_mut())?;
        }
        if let Some(mut json) = json {
            json.flush()?;
        }
        Ok(())
    }

    fn measure(
        &self,
        figure: &Figure,
        peers: Option<(Peers, &str)>,
        json: Option<&mut BufWriter<File>>,
    ) -> Result<(), Failure> {
        let mut cases = (figure.cases)(&self.settings)?;
        let mut reference = None;
        if let Some((peers, name)) = peers {
            let others = peers(figure, &self.settings)?;
            if others.is_empty() {
                println!("{}: {name} has no cases of its own", figure.name);
            } else {
                reference = Some(name);
            }
            cases.extend(others);
        }
        cases.retain(|case| {
            let begins = |name: &str, wanted: &Option<String>| {
                wanted.as_ref().is_none_or(|wanted| name.starts_with(wanted.as_str()))
            };
            begins(case.row, &self.row)
                && begins(case.system, &self.system)
                && begins(case.level, &self.level)
        });
        let out = &mut std::io::stdout();
        writeln!(out, "{} ({}); {} runs, {}", figure.name, figure.title, self.plan.runs, machine())?;
        report::header(out, reference)?;
        let mut failed = Ok(());
        let rows = runner::measure(figure.name, cases, self.plan, |rows| {
            if failed.is_ok() {
                failed = report::table(out, rows, reference);
            }
        })?;
        failed?;
        writeln!(out)?;
        if let Some(json) = json {
            for row in &rows {
                writeln!(json, "{}", report::json(row))?;
            }
        }
        Ok(())
    }
}

/// The processor, and how lines are flushed on it.
fn machine() -> String {
    #[cfg(target_arch = "x86_64")]
    let model = cenote_sys::cpu::model_name();
    #[cfg(not(target_arch = "x86_64"))]
    let model = std::env::consts::ARCH;
    format!("{model}, flush by {}", cenote_sys::cpu::flush_instruction())
}

/// `main` of both programs: 0 if all went well, 1 if something failed, 2 if the arguments are wrong.
pub fn main(program: &str, peers: Option<(Peers, &str)>) -> ExitCode {
    let command = match Command::parse(std::env::args().skip(1)) {
        Ok(command) => command,
        Err(error) => {
            eprintln!("{program}: {error}\n\nUsage: {program} [OPTIONS] FIGURE...\n\n{OPTIONS}");
            return ExitCode::from(2);
        }
    };
    match command.run(program, peers) {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("{program}: {error}");
            ExitCode::FAILURE
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn parse(text: &str) -> Result<Command, String> {
        Command::parse(text.split_whitespace().map(String::from))
    }

    #[test]
    fn arguments_that_mean_nothing_are_refused() {
        for text in ["", "--nothing", "no-figure", "--json", "--runs 3 figure1", "--runs x figure1"] {
            assert!(parse(text).is_err(), "{text}");
        }
    }

    #[test]
    fn figures_are_found_by_name_and_all_at_once() {
        let command = parse("puddles-table3 --json rows --runs 7").expect("a good command line");
        assert_eq!((command.figures.len(), command.plan.runs), (1, 7));
        assert_eq!(parse("--all --quick").expect("a good command line").figures.len(), FIGURES.len());
    }
}
