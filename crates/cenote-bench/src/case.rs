//! What is measured: one system, at one level, doing the operation of one row.

use cenote_medium::counters::{self, Counts};
use std::time::{Duration, Instant};

/// Why a case could not be set up or measured.
pub type Failure = Box<dyn std::error::Error>;

/// The level of systems that make nothing durable, and of rows that change nothing.
pub const NO_LEVEL: &str = "none";

/// Durable against crashes of processes only.
pub const PROCESS: &str = "process";

/// Durable against loss of power: flushes and fences are executed.
pub const POWER: &str = "power";

/// What one run did and how long the timed parts took.
#[derive(Clone, Copy, Debug, Default)]
pub struct Sample {
    /// Operations of the row; at least as many as were asked for.
    pub operations: u64,
    /// Time of the timed parts together.
    pub elapsed: Duration,
    /// Flushes, fences and streamed bytes in the timed parts, as far as `cenote-medium` executed
    /// them.
    pub counts: Counts,
}

impl Sample {
    /// Nanoseconds an operation.
    #[must_use]
    pub fn ns(&self) -> f64 {
        self.elapsed.as_nanos() as f64 / self.operations.max(1) as f64
    }
}

/// What the figure of a case says.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Unit {
    /// Nanoseconds an operation: less is better.
    Nanoseconds,
    /// Million operations a second, of all threads together, under the name of what an operation
    /// is: more is better.
    Millions(&'static str),
}

impl Unit {
    /// Its name in rows.
    #[must_use]
    pub fn name(self) -> &'static str {
        match self {
            Self::Nanoseconds => "ns",
            Self::Millions(name) => name,
        }
    }

    /// Whether a greater number is the better one.
    #[must_use]
    pub fn more_is_better(self) -> bool {
        matches!(self, Self::Millions(_))
    }

    /// The figure of one run.
    #[must_use]
    pub fn of(self, sample: &Sample) -> f64 {
        match self {
            Self::Nanoseconds => sample.ns(),
            Self::Millions(_) => 1e3 / sample.ns().max(1e-3),
        }
    }
}

/// How long a run of a case is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Length {
    /// As long as the plan says.
    Planned,
    /// This many milliseconds at least.
    Milliseconds(u64),
    /// This many operations at least.
    Operations(u64),
}

/// Times parts of a run; what happens in between (freeing what was allocated, say) does not count.
#[derive(Clone, Copy, Debug, Default)]
pub struct Stopwatch {
    sample: Sample,
}

impl Stopwatch {
    /// A stopwatch that shows zero.
    #[must_use]
    pub fn new() -> Self {
        Self::default()
    }

    /// Runs `part`, which does `operations` operations, and adds its time.
    #[inline]
    pub fn time<R>(&mut self, operations: u64, part: impl FnOnce() -> R) -> R {
        let counts = counters::snapshot();
        let begin = Instant::now();
        let result = part();
        self.sample.elapsed += begin.elapsed();
        let done = counters::snapshot() - counts;
        self.sample.operations += operations;
        self.sample.counts.flushes += done.flushes;
        self.sample.counts.flush_calls += done.flush_calls;
        self.sample.counts.fences += done.fences;
        self.sample.counts.streamed_bytes += done.streamed_bytes;
        result
    }

    /// Operations timed so far.
    #[must_use]
    pub fn operations(&self) -> u64 {
        self.sample.operations
    }

    /// What it shows.
    #[must_use]
    pub fn sample(&self) -> Sample {
        self.sample
    }
}

/// Times `count` operations, each a call of `operation` with its number.
///
/// # Errors
/// The first of `operation`.
#[inline]
pub fn time_each(
    count: u64,
    mut operation: impl FnMut(u64) -> Result<(), Failure>,
) -> Result<Sample, Failure> {
    let mut watch = Stopwatch::new();
    watch.time(count, || (0..count).try_for_each(&mut operation))?;
    Ok(watch.sample())
}

/// Does at least the number of operations that it is given, and says how long they took.
pub type Work = Box<dyn FnMut(u64) -> Result<Sample, Failure>>;

/// One line of a figure before it is measured.
pub struct Case {
    /// Name of the row: which operation.
    pub row: &'static str,
    /// Which system does it.
    pub system: &'static str,
    /// Durability level of the system in this case.
    pub level: &'static str,
    /// Threads that do it.
    pub threads: u32,
    /// Whether the system counts its flushes and fences with `cenote-medium`.
    pub counted: bool,
    /// What its figure says.
    pub unit: Unit,
    /// How long a run is.
    pub length: Length,
    /// Whether each run warms itself up before it looks at the clock.
    pub warms_itself: bool,
    /// The operation.
    pub work: Work,
}

impl Case {
    /// A case of one thread whose flushes and fences are counted.
    pub fn new(
        row: &'static str,
        system: &'static str,
        level: &'static str,
        work: impl FnMut(u64) -> Result<Sample, Failure> + 'static,
    ) -> Self {
        Self {
            row,
            system,
            level,
            threads: 1,
            counted: true,
            unit: Unit::Nanoseconds,
            length: Length::Planned,
            warms_itself: false,
            work: Box::new(work),
        }
    }

    /// The same, of a system whose flushes and fences are not counted.
    #[must_use]
    pub fn uncounted(mut self) -> Self {
        self.counted = false;
        self
    }
}

impl core::fmt::Debug for Case {
    fn fmt(&self, f: &mut core::fmt::Formatter<'_>) -> core::fmt::Result {
        write!(f, "Case({} {} {} x{})", self.row, self.system, self.level, self.threads)
    }
}
