//! Measures cases fairly.
//!
//! The cases of one row are measured together: each is warmed up while the number of operations that takes long enough is found; then, round by round,
//! every case of the row has one run, in turns, another case first each round. Before each run an eighth of it is done without counting, so that
//! nobody pays for what the case before left in the caches. The figure of a case is the median of its runs; least and greatest show how far
//! to trust it. Nothing is pinned to a processor.

use crate::case::{Case, Failure, Sample};
use cenote_medium::counters::Counts;

/// How long and how often.
#[derive(Clone, Copy, Debug)]
pub struct Plan {
    /// Runs of each case that count.
    pub runs: usize,
    /// Least length of a run, in milliseconds.
    pub run_ms: u64,
}

impl Plan {
    /// For numbers worth keeping.
    pub const FULL: Self = Self { runs: 9, run_ms: 60 };
    /// To see that everything runs.
    pub const QUICK: Self = Self { runs: 5, run_ms: 3 };
}

/// A line of a figure, measured. Times are nanoseconds an operation.
#[derive(Clone, Debug)]
pub struct Row {
    /// The figure.
    pub figure: &'static str,
    /// The operation.
    pub row: &'static str,
    /// The system.
    pub system: &'static str,
    /// Its durability level.
    pub level: &'static str,
    /// Threads.
    pub threads: u32,
    /// The unit of the times: `ns`.
    pub unit: &'static str,
    /// Median of the runs.
    pub median: f64,
    /// The fastest.
    pub min: f64,
    /// The slowest.
    pub max: f64,
    /// How many runs.
    pub runs: usize,
    /// Flushes, fences and streamed bytes an operation, if they were counted.
    pub counts: Option<PerOperation>,
}

/// Costs of durability that do not depend on the machine.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct PerOperation {
    /// Cache lines flushed.
    pub flushes: f64,
    /// Fences.
    pub fences: f64,
    /// Bytes written past the caches.
    pub streamed_bytes: f64,
}

impl PerOperation {
    fn of(counts: Counts, operations: u64) -> Self {
        let per = |count: u64| count as f64 / operations.max(1) as f64;
        Self {
            flushes: per(counts.flushes),
            fences: per(counts.fences),
            streamed_bytes: per(counts.streamed_bytes),
        }
    }
}

/// Measures all cases of a figure; `done` is told each row as it is ready.
///
/// # Errors
/// The first that a case reports, with its name.
pub fn measure(
    figure: &'static str,
    mut cases: Vec<Case>,
    plan: Plan,
    mut done: impl FnMut(&[Row]),
) -> Result<Vec<Row>, Failure> {
    let mut names: Vec<&'static str> = Vec::new();
    for case in &cases {
        if !names.contains(&case.row) {
            names.push(case.row);
        }
    }
    let mut all = Vec::new();
    for name in names {
        let mut group: Vec<&mut Case> = cases.iter_mut().filter(|case| case.row == name).collect();
        let rows = measure_row(figure, &mut group, plan)?;
        done(&rows);
        all.extend(rows);
    }
    Ok(all)
}

fn measure_row(figure: &'static str, group: &mut [&mut Case], plan: Plan) -> Result<Vec<Row>, Failure> {
    let mut counts = Vec::with_capacity(group.len());
    for case in group.iter_mut() {
        counts.push(calibrate(case, plan)?);
    }
    let mut samples: Vec<Vec<Sample>> = group.iter().map(|_| Vec::with_capacity(plan.runs)).collect();
    for round in 0..plan.runs {
        for turn in 0..group.len() {
            let i = (round + turn) % group.len();
            run(group[i], (counts[i] / 8).max(1))?;
            samples[i].push(run(group[i], counts[i])?);
        }
    }
    Ok(group.iter().zip(samples).map(|(case, samples)| summary(figure, case, &samples)).collect())
}

fn run(case: &mut Case, operations: u64) -> Result<Sample, Failure> {
    (case.work)(operations).map_err(|error| format!("{case:?}: {error}").into())
}

/// Warms up, and finds how many operations take as long as a run must.
fn calibrate(case: &mut Case, plan: Plan) -> Result<u64, Failure> {
    let target = plan.run_ms as f64 * 1e6;
    let mut operations = 16u64;
    loop {
        let sample = run(case, operations)?;
        let elapsed = sample.elapsed.as_nanos() as f64;
        if elapsed >= target / 2.0 {
            return Ok(((target / sample.ns().max(0.01)).ceil() as u64).max(1));
        }
        operations = sample.operations.max(operations) * 2;
    }
}

fn summary(figure: &'static str, case: &Case, samples: &[Sample]) -> Row {
    let mut times: Vec<f64> = samples.iter().map(Sample::ns).collect();
    times.sort_by(f64::total_cmp);
    let last = samples.last().copied().unwrap_or_default();
    Row {
        figure,
        row: case.row,
        system: case.system,
        level: case.level,
        threads: case.threads,
        unit: "ns",
        median: median(&times),
        min: times.first().copied().unwrap_or(0.0),
        max: times.last().copied().unwrap_or(0.0),
        runs: times.len(),
        counts: case.counted.then(|| PerOperation::of(last.counts, last.operations)),
    }
}

/// The median of sorted numbers; 0 of none.
fn median(sorted: &[f64]) -> f64 {
    match sorted.len() {
        0 => 0.0,
        n if n % 2 == 1 => sorted[n / 2],
        n => (sorted[n / 2 - 1] + sorted[n / 2]) / 2.0,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::cell::RefCell;
    use std::rc::Rc;
    use std::time::Duration;

    fn sample(operations: u64, ns: u64) -> Sample {
        Sample { operations, elapsed: Duration::from_nanos(ns), counts: Counts::default() }
    }

    #[test]
    fn the_median_is_the_one_in_the_middle() {
        assert_eq!(median(&[]), 0.0);
        assert_eq!(median(&[3.0]), 3.0);
        assert_eq!(median(&[1.0, 2.0, 9.0]), 2.0);
        assert_eq!(median(&[1.0, 2.0, 4.0, 9.0]), 3.0);
    }

    #[test]
    fn cases_of_a_row_take_turns() {
        let order = Rc::new(RefCell::new(Vec::new()));
        let case = |system: &'static str| {
            let order = order.clone();
            Case::new("row", system, "none", move |operations| {
                order.borrow_mut().push(system);
                Ok(sample(operations, operations * 1_000_000))
            })
        };
        let plan = Plan { runs: 5, run_ms: 20 };
        let rows = measure("figure", vec![case("a"), case("b")], plan, |_| {}).expect("both cases work");
        let order = order.borrow();
        // Each run comes after a short one of its own.
        let rounds = &order[order.len() - 20..];
        assert!(
            rounds
                .chunks(8)
                .all(|two| two.iter().eq(["a", "a", "b", "b", "b", "b", "a", "a"].iter().take(two.len()))),
            "{rounds:?}"
        );
        assert_eq!((rows[0].runs, rows[0].median), (5, 1e6));
    }

    #[test]
    fn a_run_is_as_long_as_the_plan_says() {
        let mut longest = 0;
        let mut case = Case::new("row", "a", "none", |operations| Ok(sample(operations, operations * 100)));
        let operations = calibrate(&mut case, Plan { runs: 5, run_ms: 50 }).expect("it works");
        longest = operations.max(longest);
        assert_eq!(longest, 500_000);
    }

    #[test]
    fn a_failure_names_its_case() {
        let case = Case::new("row", "a", "power", |_| Err("disk full".into()));
        let error = measure("figure", vec![case], Plan::QUICK, |_| {}).expect_err("the case fails");
        let text = error.to_string();
        assert!(text.contains("row") && text.contains("power") && text.contains("disk full"), "{text}");
    }
}
