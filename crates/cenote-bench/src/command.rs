//! The command line of `cenote-bench`.

use crate::case::{Case, Failure};
use crate::figures::nvmalloc::{figure4, figure5, table2};
use crate::figures::{
    self, Body, FIGURES, Figure, daemon, logged_open, open_after_kill, poseidon3, sensors,
};
use crate::filter::Filter;
use crate::peers;
use crate::place::Settings;
use crate::report;
use crate::runner::{self, Row, RunPlan};
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
    plan: RunPlan,
    filter: Filter,
    list: bool,
    help: bool,
}

const OPTIONS: &str = "\
Options:
      --all        Run every figure
      --list       Print the names of the figures
      --quick      Use short runs and small sizes, to see that everything runs
      --row NAME   Run only rows whose name begins with NAME
      --system S   Run only systems whose name begins with S
      --level L    Run only this durability level: process or power
      --json FILE  Write one JSON object for each row to FILE, one a line
      --dir DIR    Make temporary stores in DIR [default: /dev/shm if it exists]
      --runs N     Run each case N times [default: 9, at least 5]
      --run-ms N   Let a run last at least N milliseconds [default: 60]; prefer many
                   short runs if the machine has other work to do
      --threads L  allocators, steady: numbers of threads, such as 1,2,4
                   [default: 1,2 and as many as there are processors; poseidon6 to
                   poseidon9: 1,2,4,8,16]
      --scale X    allocators, poseidon6 to poseidon9: runs of X times the paper's length,
                   0 < X <= 1, instead of --run-ms; nvmalloc-table2 [default: 0.2]
      --seconds N  steady: how long it runs [default: 20]
      --live-mib N steady: MiB of live blocks [default: 256]; poseidon8: MiB of a block of
                   ackermann [default: 16; the paper: 1024]
      --objects N  open-after-kill, logged-open: objects in the pool; poseidon9: keys
                   [default: 1000000]; nvmalloc-figure5: keys [default: 50000]
  -h, --help       Print this help
";

const USAGE: &str = "Usage: cenote-bench [OPTIONS] FIGURE...";

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
            plan: RunPlan::FULL,
            filter: Filter::default(),
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
                    command.plan = RunPlan::QUICK;
                    command.settings.quick = true;
                }
                "--row" => command.filter.row = Some(value()?),
                "--system" => command.filter.system = Some(value()?),
                "--level" => command.filter.level = Some(value()?),
                "--json" => command.json = Some(value()?.into()),
                "--dir" => command.settings.directory = value()?.into(),
                "--runs" => runs = Some(number(&argument, &value()?, 5, 1000)? as usize),
                "--run-ms" => run_ms = Some(number(&argument, &value()?, 1, 10_000)?),
                "--threads" => {
                    let text = value()?;
                    let threads = text.split(',').map(|n| Ok(number(&argument, n, 1, 128)? as u32));
                    command.settings.threads = threads.collect::<Result<_, String>>()?;
                }
                "--scale" => {
                    command.settings.scale = Some(scale(&value()?)?);
                }
                "--seconds" => {
                    command.settings.seconds = Some(number(&argument, &value()?, 1, 1800)?)
                }
                "--live-mib" => {
                    command.settings.live_mib = Some(number(&argument, &value()?, 4, 1 << 20)?)
                }
                "--objects" => {
                    command.settings.objects = Some(number(&argument, &value()?, 1, 100_000_000)?);
                }
                "-h" | "--help" => command.help = true,
                name if name.starts_with('-') => return Err(format!("there is no option {name}")),
                name => {
                    let figure = figures::find(name);
                    command.figures.push(
                        figure.ok_or(format!("there is no figure {name:?}: --list shows them"))?,
                    );
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

    /// Does what was asked for.
    ///
    /// # Errors
    /// A case that fails, or a file that cannot be written.
    pub fn run(&self) -> Result<(), Failure> {
        if self.help {
            print!("{USAGE}\n\n{OPTIONS}");
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
                let file =
                    File::create(path).map_err(|error| format!("{}: {error}", path.display()))?;
                Some(BufWriter::new(file))
            }
            None => None,
        };
        for figure in &self.figures {
            self.measure(figure, json.as_mut())?;
        }
        if let Some(mut json) = json {
            json.flush()?;
        }
        Ok(())
    }

    fn measure(&self, figure: &Figure, json: Option<&mut BufWriter<File>>) -> Result<(), Failure> {
        let out = &mut std::io::stdout();
        writeln!(
            out,
            "{} ({}); {} runs, {}",
            figure.name,
            figure.title,
            self.plan.runs,
            machine()
        )?;
        let rows = match figure.body {
            Body::Cases(cases) => self.measure_cases(figure, cases(&self.settings)?, out)?,
            Body::Report(report) => {
                let rows = report(&self.settings, &self.filter, self.plan.runs, out)?;
                report::header(out, None)?;
                report::table(out, &rows, None)?;
                rows
            }
        };
        writeln!(out)?;
        if let Some(json) = json {
            for row in &rows {
                writeln!(json, "{}", report::json(row))?;
            }
        }
        Ok(())
    }

    fn measure_cases(
        &self,
        figure: &Figure,
        mut cases: Vec<Case>,
        out: &mut impl Write,
    ) -> Result<Vec<Row>, Failure> {
        let others = peers::cases(figure, &self.settings)?;
        let reference = (!others.is_empty()).then(|| peers::reference(figure));
        cases.extend(others);
        cases.retain(|case| self.filter.admits(case.row, case.system, case.level));
        report::header(out, reference)?;
        let mut failed = Ok(());
        let rows = runner::measure(figure.name, cases, self.plan, |rows| {
            if failed.is_ok() {
                failed = report::table(out, rows, reference);
            }
        })?;
        failed?;
        Ok(rows)
    }
}

/// The argument of `--scale`.
fn scale(text: &str) -> Result<f64, String> {
    let scale: f64 = text.parse().map_err(|_| format!("--scale {text}: not a number"))?;
    if scale > 0.0 && scale <= 1.0 {
        Ok(scale)
    } else {
        Err(format!("--scale {text}: above 0 and at most 1"))
    }
}

/// The value of an option that is a number.
fn number(option: &str, text: &str, least: u64, most: u64) -> Result<u64, String> {
    let n = text.parse().map_err(|_| format!("{option} {text}: not a number"))?;
    if (least..=most).contains(&n) {
        Ok(n)
    } else {
        Err(format!("{option} {n}: between {least} and {most}"))
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

/// What a figure runs in a process of its own, by the first argument.
type ChildProcess = fn(&[String]) -> ExitCode;

const CHILDREN: [(&str, ChildProcess); 8] = [
    (figure4::CHILD, figure4::child),
    (figure5::CHILD, figure5::child),
    (table2::CHILD, table2::child),
    (open_after_kill::CHILD, open_after_kill::child),
    (sensors::CHILD, sensors::child),
    (poseidon3::CHILD, poseidon3::child),
    (logged_open::CHILD, logged_open::child),
    (daemon::CHILD, daemon::child),
];

/// What `main` does: 0 if all went well, 1 if something failed, 2 if the arguments are
/// wrong.
pub fn main() -> ExitCode {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    table2::join_by(peers::volatile::FRAGMENTING);
    figure4::join_by(|workload, held| workload.run(&peers::volatile::Glibc, held));
    let child = |(name, _): &&(&str, ChildProcess)| arguments.first().is_some_and(|a| a == name);
    if let Some((_, run)) = CHILDREN.iter().find(child) {
        return run(&arguments);
    }
    let command = match Command::parse(arguments) {
        Ok(command) => command,
        Err(error) => {
            eprintln!("cenote-bench: {error}\n\n{USAGE}\n\n{OPTIONS}");
            return ExitCode::from(2);
        }
    };
    match command.run() {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("cenote-bench: {error}");
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
        for text in [
            "",
            "--nothing",
            "no-figure",
            "--json",
            "--runs 3 figure1",
            "--runs x figure1",
            "--threads 1,x allocators",
            "--threads 0 allocators",
            "--scale 0 allocators",
            "--scale NaN allocators",
            "--scale 2 allocators",
            "--seconds 1801 steady",
        ] {
            assert!(parse(text).is_err(), "{text}");
        }
    }

    #[test]
    fn sizes_and_threads_are_set_and_rows_chosen_by_their_beginning() {
        let line = "allocators --threads 1,3 --scale 0.01 --objects 7 --seconds 5 --live-mib 8 \
                    --row poseidon6_64 --level process";
        let Command { settings, filter, .. } = parse(line).expect("a good command line");
        assert_eq!((settings.threads(), settings.scale), (vec![1, 3], Some(0.01)));
        assert_eq!(
            (settings.objects, settings.seconds, settings.live_mib),
            (Some(7), Some(5), Some(8))
        );
        assert!(filter.admits("poseidon6_64K", "cenote", "process"));
        assert!(!filter.admits("poseidon6_256", "cenote", "process"));
        assert!(!filter.admits("poseidon6_64", "cenote", "power"));
    }

    #[test]
    fn figures_are_found_by_name_and_all_at_once() {
        let command = parse("puddles-table3 --json rows --runs 7").expect("a good command line");
        assert_eq!((command.figures.len(), command.plan.runs), (1, 7));
        assert_eq!(
            parse("--all --quick").expect("a good command line").figures.len(),
            FIGURES.len()
        );
    }
}
