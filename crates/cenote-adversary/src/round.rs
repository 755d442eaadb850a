//! Rounds, their counts, and what ends a run.

use cenote_fuzz::Random;
use std::collections::BTreeMap;
use std::fmt::{self, Write as _};
use std::path::Path;
use std::process::ExitCode;
use std::time::{Duration, Instant};

/// Why a round did not come to its end.
#[derive(Debug)]
pub(crate) enum Trouble {
    /// It cannot run on this machine.
    Skipped(String),
    /// Something that must hold does not.
    Found(String),
}

impl Trouble {
    /// Says where it was found.
    pub(crate) fn at(self, place: impl fmt::Display) -> Self {
        match self {
            Self::Found(what) => Self::Found(format!("{place}: {what}")),
            skipped => skipped,
        }
    }
}

/// Any error where none may be.
impl<E: std::error::Error> From<E> for Trouble {
    fn from(error: E) -> Self {
        Self::Found(error.to_string())
    }
}

/// What a harness and its parts return.
pub(crate) type Outcome<T = ()> = Result<T, Trouble>;

/// A finding.
pub(crate) fn found<T>(what: impl fmt::Display) -> Outcome<T> {
    Err(Trouble::Found(what.to_string()))
}

/// A finding unless `holds`.
pub(crate) fn require(holds: bool, what: impl FnOnce() -> String) -> Outcome {
    if holds { Ok(()) } else { Err(Trouble::Found(what())) }
}

/// One round: its seed, its own directory, and the counts of the run.
#[derive(Debug)]
pub(crate) struct Round<'a> {
    pub(crate) random: Random,
    pub(crate) seed: u64,
    pub(crate) dir: &'a Path,
    pub(crate) counts: &'a mut Counts,
    /// Try all that can be tried, where a round otherwise tries some of it.
    pub(crate) thorough: bool,
}

impl Round<'_> {
    /// A number below `n`.
    pub(crate) fn below(&mut self, n: u64) -> u64 {
        self.random.next_word() % n.max(1)
    }

    /// A time below so many microseconds.
    pub(crate) fn moment(&mut self, below_us: u64) -> Duration {
        Duration::from_micros(self.below(below_us))
    }
}

/// What a harness does with one seed.
pub(crate) type Harness = fn(&mut Round<'_>) -> Outcome;

/// What was done, by name.
#[derive(Debug, Default)]
pub(crate) struct Counts(BTreeMap<&'static str, u64>);

impl Counts {
    pub(crate) fn add(&mut self, what: &'static str, count: u64) {
        *self.0.entry(what).or_default() += count;
    }
}

impl fmt::Display for Counts {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.iter().try_for_each(|(what, count)| write!(f, ", {count} {what}"))
    }
}

/// How long a run goes on: for so many rounds, or so many seconds.
#[derive(Debug)]
pub(crate) struct RoundPlan {
    seed: u64,
    rounds: Option<u64>,
    seconds: Option<u64>,
    thorough: bool,
}

impl RoundPlan {
    /// From the arguments. Without a seed, another one every time; without a limit, one round.
    pub(crate) fn parse(args: &[String]) -> Result<Self, String> {
        let now =
            std::time::SystemTime::now().duration_since(std::time::UNIX_EPOCH).unwrap_or_default();
        let seed = Random(now.as_nanos() as u64).next_word() >> 32;
        let mut plan = Self { seed, rounds: None, seconds: None, thorough: false };
        let thorough = |arg: &&String| *arg == "--thorough";
        plan.thorough = args.iter().any(|arg| thorough(&arg));
        let args: Vec<&String> = args.iter().filter(|arg| !thorough(arg)).collect();
        for pair in args.chunks(2) {
            let number = pair.get(1).and_then(|value| value.parse::<u64>().ok());
            let number = number.ok_or_else(|| format!("{} wants a number", pair[0]))?;
            match pair[0].as_str() {
                "--seed" => plan.seed = number,
                "--rounds" => plan.rounds = Some(number),
                "--seconds" => plan.seconds = Some(number),
                other => return Err(format!("{other:?} is no option")),
            }
        }
        Ok(plan)
    }

    fn is_over(&self, rounds: u64, elapsed: Duration) -> bool {
        match (self.rounds, self.seconds) {
            (None, None) => rounds >= 1,
            (limit, seconds) => {
                limit.is_some_and(|limit| rounds >= limit)
                    || seconds.is_some_and(|seconds| elapsed.as_secs() >= seconds)
            }
        }
    }
}

/// Runs rounds as planned. Says how it went in one line, or two if something was found.
pub(crate) fn run(name: &str, harness: Harness, plan: &RoundPlan) -> ExitCode {
    let start = Instant::now();
    let mut counts = Counts::default();
    let mut rounds = 0;
    while !plan.is_over(rounds, start.elapsed()) {
        let seed = plan.seed.wrapping_add(rounds);
        let dir = match directory() {
            Ok(dir) => dir,
            Err(error) => {
                eprintln!("{name}: no directory for the round: {error}");
                return ExitCode::from(2);
            }
        };
        let mut round = Round {
            random: Random(seed),
            seed,
            dir: dir.path(),
            counts: &mut counts,
            thorough: plan.thorough,
        };
        match harness(&mut round) {
            Ok(()) => rounds += 1,
            Err(Trouble::Skipped(why)) => {
                println!("skipped: {name}: {why}");
                return ExitCode::SUCCESS;
            }
            Err(Trouble::Found(what)) => {
                let mut line = format!("{name}: FOUND in seed {seed}: {what}\n");
                let _ = write!(line, "files are kept in {}; repeat with: ", dir.keep().display());
                let thorough = if plan.thorough { " --thorough" } else { "" };
                println!("{line}cenote-adversary {name} --seed {seed} --rounds 1{thorough}");
                return ExitCode::FAILURE;
            }
        }
    }
    let seconds = start.elapsed().as_secs_f64();
    println!("{name}: {rounds} rounds from seed {}{counts}, {seconds:.1} s", plan.seed);
    ExitCode::SUCCESS
}

/// In memory where that is possible: a round has many syncs, and what it is about does not depend
/// on a disk.
fn directory() -> std::io::Result<tempfile::TempDir> {
    let builder = tempfile::Builder::new().prefix("cenote-adversary-").to_owned();
    let memory = Path::new("/dev/shm");
    if memory.is_dir() { builder.tempdir_in(memory) } else { builder.tempdir() }
}
