//! Measures cases fairly.
//!
//! The cases of one row and number of threads are measured together: each is warmed up while the
//! number of operations that takes long enough is found; then, round by round, every case of the
//! row has one run, in turns, another case first each round. Before each run an eighth of it is
//! done without counting (unless the case warms itself up), so that no case pays for what the case
//! before left in the caches. The figure of a case is the median of its runs; least and greatest
//! show how far to trust it. Nothing is pinned to a processor.

use crate::case::{Case, Failure, Length, Sample};
use cenote_medium::counters::Counts;

/// How long and how often.
#[derive(Clone, Copy, Debug)]
pub struct RunPlan {
    /// Runs of each case that count.
    pub runs: usize,
    /// Least length of a run, in milliseconds.
    pub run_ms: u64,
}

impl RunPlan {
    /// For numbers worth keeping.
    pub const FULL: Self = Self { runs: 9, run_ms: 60 };
    /// To see that everything runs.
    pub const QUICK: Self = Self { runs: 5, run_ms: 3 };
}

/// A line of a figure, measured.
#[derive(Clone, Debug)]
pub struct Row {
    /// The figure.
    pub figure: &'static str,
    /// The operation.
    pub row: String,
    /// The system.
    pub system: &'static str,
    /// Its durability level.
    pub level: &'static str,
    /// Threads.
    pub threads: u32,
    /// The unit of the numbers: `ns` an operation, or what the figure says.
    pub unit: &'static str,
    /// Median of the runs.
    pub median: f64,
    /// The least.
    pub min: f64,
    /// The greatest.
    pub max: f64,
    /// How many runs.
    pub runs: usize,
    /// Whether the best run is the one with the greatest number, and not the least.
    pub more_is_better: bool,
    /// Flushes, fences and streamed bytes an operation, if they were counted.
    pub counts: Option<PerOperation>,
}

impl Row {
    /// A row of numbers that were found in another way than by [`measure`].
    #[must_use]
    pub fn of_values(
        figure: &'static str,
        row: String,
        (system, level, threads): (&'static str, &'static str, u32),
        unit: &'static str,
        mut values: Vec<f64>,
    ) -> Self {
        values.sort_by(f64::total_cmp);
        Self {
            figure,
            row,
            system,
            level,
            threads,
            unit,
            median: median(&values),
            min: values.first().copied().unwrap_or(0.0),
            max: values.last().copied().unwrap_or(0.0),
            runs: values.len(),
            more_is_better: false,
            counts: None,
        }
    }

    /// The best run: what the machine can do when it is not disturbed.
    #[must_use]
    pub fn best(&self) -> f64 {
        if self.more_is_better { self.max } else { self.min }
    }
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
    plan: RunPlan,
    mut done: impl FnMut(&[Row]),
) -> Result<Vec<Row>, Failure> {
    let mut names: Vec<(&'static str, u32)> = Vec::new();
    for case in &cases {
        if !names.contains(&(case.row, case.threads)) {
            names.push((case.row, case.threads));
        }
    }
    let mut all = Vec::new();
    for (name, threads) in names {
        let mut group: Vec<&mut Case> =
            cases.iter_mut().filter(|case| case.row == name && case.threads == threads).collect();
        let rows = measure_row(figure, &mut group, plan)?;
        done(&rows);
        all.extend(rows);
    }
    Ok(all)
}

fn measure_row(
    figure: &'static str,
    group: &mut [&mut Case],
    plan: RunPlan,
) -> Result<Vec<Row>, Failure> {
    let mut counts = Vec::with_capacity(group.len());
    for case in group.iter_mut() {
        counts.push(calibrate(case, plan)?);
    }
    let mut samples: Vec<Vec<Sample>> =
        group.iter().map(|_| Vec::with_capacity(plan.runs)).collect();
    for round in 0..plan.runs {
        for turn in 0..group.len() {
            let i = (round + turn) % group.len();
            if !group[i].warms_itself {
                run(group[i], (counts[i] / 8).max(1))?;
            }
            samples[i].push(run(group[i], counts[i])?);
        }
    }
    Ok(group.iter().zip(samples).map(|(case, samples)| summary(figure, case, &samples)).collect())
}

fn run(case: &mut Case, operations: u64) -> Result<Sample, Failure> {
    (case.work)(operations).map_err(|error| format!("{case:?}: {error}").into())
}

/// Warms up, and finds how many operations take as long as a run must. That a number is large
/// enough is believed when it was three times, so that a thread that was kept waiting once does not
/// make all runs short.
fn calibrate(case: &mut Case, plan: RunPlan) -> Result<u64, Failure> {
    let target = match case.length {
        Length::Planned => plan.run_ms as f64 * 1e6,
        Length::Milliseconds(ms) => ms as f64 * 1e6,
        Length::Operations(operations) => return Ok(operations.max(1)),
    };
    let long_enough = |sample: &Sample| sample.elapsed.as_nanos() as f64 >= target / 2.0;
    let mut operations = 16u64;
    loop {
        let mut fastest = run(case, operations)?;
        for _ in 0..2 {
            if long_enough(&fastest) {
                let again = run(case, operations)?;
                fastest = if again.elapsed < fastest.elapsed { again } else { fastest };
            }
        }
        if long_enough(&fastest) {
            return Ok(((target / fastest.ns().max(0.01)).ceil() as u64).max(1));
        }
        operations = fastest.operations.max(operations) * 2;
    }
}

fn summary(figure: &'static str, case: &Case, samples: &[Sample]) -> Row {
    let values = samples.iter().map(|sample| case.unit.of(sample)).collect();
    let last = samples.last().copied().unwrap_or_default();
    Row {
        more_is_better: case.unit.more_is_better(),
        counts: case.counted.then(|| PerOperation::of(last.counts, last.operations)),
        ..Row::of_values(
            figure,
            case.row.into(),
            (case.system, case.level, case.threads),
            case.unit.name(),
            values,
        )
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
    use crate::case::Unit;
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
        let plan = RunPlan { runs: 5, run_ms: 20 };
        let rows =
            measure("figure", vec![case("a"), case("b")], plan, |_| {}).expect("both cases work");
        let order = order.borrow();
        // Each run comes after a short one of its own.
        let rounds = &order[order.len() - 20..];
        assert!(
            rounds.chunks(8).all(|two| two
                .iter()
                .eq(["a", "a", "b", "b", "b", "b", "a", "a"].iter().take(two.len()))),
            "{rounds:?}"
        );
        assert_eq!((rows[0].runs, rows[0].median), (5, 1e6));
    }

    #[test]
    fn a_run_is_as_long_as_the_plan_says() {
        let mut longest = 0;
        let mut case =
            Case::new("row", "a", "none", |operations| Ok(sample(operations, operations * 100)));
        let operations = calibrate(&mut case, RunPlan { runs: 5, run_ms: 50 }).expect("it works");
        longest = operations.max(longest);
        assert_eq!(longest, 500_000);
    }

    #[test]
    fn a_hiccup_does_not_make_runs_short() {
        let mut calls = 0;
        let mut case = Case::new("row", "a", "none", move |operations| {
            calls += 1;
            // Now and then another process has the processor for a second.
            let waited = if calls % 3 == 1 { 1_000_000_000 } else { 0 };
            Ok(sample(operations, operations * 100 + waited))
        });
        let operations = calibrate(&mut case, RunPlan { runs: 5, run_ms: 50 }).expect("it works");
        assert_eq!(operations, 500_000);
    }

    #[test]
    fn cases_of_another_number_of_threads_are_another_group() {
        let groups = RefCell::new(Vec::new());
        let case = |threads| {
            let mut case = Case::new("row", "a", "none", |_| Ok(sample(2_000_000, 1_000_000)));
            case.threads = threads;
            case.unit = Unit::Millions("Mops/s");
            case.length = Length::Operations(1);
            case
        };
        let rows = measure("figure", vec![case(1), case(2), case(1)], RunPlan::QUICK, |rows| {
            groups.borrow_mut().push(rows.len());
        });
        assert_eq!(*groups.borrow(), [2, 1]);
        let rows = rows.expect("all cases work");
        assert!(
            rows.iter()
                .all(|row| row.median == 2000.0 && row.unit == "Mops/s" && row.best() == row.max),
            "{rows:?}"
        );
    }

    #[test]
    fn runs_are_warmed_unless_they_warm_themselves() {
        let seen = Rc::new(RefCell::new(Vec::new()));
        for warms_itself in [false, true] {
            let counted = seen.clone();
            let mut case = Case::new("row", "a", "none", move |operations| {
                counted.borrow_mut().push(operations);
                Ok(sample(operations, 1))
            });
            (case.warms_itself, case.length) = (warms_itself, Length::Operations(80));
            measure("figure", vec![case], RunPlan::QUICK, |_| {}).expect("it works");
            let eighths = seen.borrow().iter().filter(|&&n| n == 10).count();
            assert_eq!(eighths, if warms_itself { 0 } else { 5 });
            seen.borrow_mut().clear();
        }
    }

    #[test]
    fn a_failure_names_its_case() {
        let case = Case::new("row", "a", "power", |_| Err("disk full".into()));
        let error =
            measure("figure", vec![case], RunPlan::QUICK, |_| {}).expect_err("the case fails");
        let text = error.to_string();
        assert!(
            text.contains("row") && text.contains("power") && text.contains("disk full"),
            "{text}"
        );
    }
}
