//! What a tour says at its end.

use super::compare::Comparison;
use super::recovery::Recoveries;
use crate::failure::{Failure, Verdict};
use crate::output::Out;
use crate::units::{bytes, count, plural, time};
use serde_json::{Value, json};
use std::time::Duration;

/// What happened in a tour.
#[derive(Debug, Default)]
pub(crate) struct TourTally {
    /// Of the text.
    pub(super) words: u64,
    /// By this tour: fewer if it went on with an earlier one.
    pub(super) indexed: u64,
    pub(super) batch: u32,
    pub(super) seed: u64,
    pub(super) kills: u32,
    /// Kills before the builder had said anything.
    pub(super) kills_at_start: u32,
    pub(super) transactions: u64,
    pub(super) recoveries: Recoveries,
    /// Time between the first and the last word of each builder, added up.
    pub(super) building: Duration,
    pub(super) wall: Duration,
    pub(super) store: String,
    pub(super) kept: bool,
}

/// Least, middle and greatest of some times.
fn spread(times: &[Duration]) -> (Duration, Duration, Duration) {
    let mut sorted = times.to_vec();
    sorted.sort();
    let at = |i: usize| sorted.get(i).copied().unwrap_or_default();
    (at(0), at(sorted.len() / 2), at(sorted.len().saturating_sub(1)))
}

fn micros(value: Duration) -> u64 {
    u64::try_from(value.as_micros()).unwrap_or(u64::MAX)
}

pub(crate) fn print(
    tally: &TourTally,
    compared: &Comparison,
    out: &mut Out,
) -> Result<Verdict, Failure> {
    let seen = &tally.recoveries;
    let same = compared.difference_count == 0;
    let building = tally.building.as_secs_f64();
    let rate = if building > 0.0 { tally.indexed as f64 / building } else { 0.0 };

    out.field(
        "building",
        format_args!(
            "{} of up to {} words, killed {} with SIGKILL",
            plural(tally.transactions, "transaction"),
            tally.batch,
            plural(u64::from(tally.kills), "time")
        ),
    )?;
    recoveries(seen, out)?;
    if tally.indexed > 0 {
        let rate = count(rate as u64);
        out.field(
            "speed",
            format_args!("{rate} words a second while building; {} in all", time(tally.wall)),
        )?;
    }
    out.field(
        "size",
        format_args!(
            "{} of blocks, in a pool of {}",
            bytes(compared.block_bytes),
            bytes(compared.pool_bytes)
        ),
    )?;
    out.field(
        "compared",
        format_args!(
            "{} words at {} positions, with an index of the standard library's collections",
            count(compared.entries),
            count(compared.positions)
        ),
    )?;
    differences(compared, out)?;
    let ending = if same {
        "identical".to_owned()
    } else {
        format!("{} differences", compared.difference_count)
    };
    out.line(format_args!("tour: {} words, {} kills, {ending}", tally.words, tally.kills))?;
    out.object(&as_json(tally, compared, rate))?;
    Ok(Verdict::found(!same))
}

/// How often the store was recovered, what that did, and how long it took.
fn recoveries(seen: &Recoveries, out: &mut Out) -> Result<(), Failure> {
    if seen.times.is_empty() {
        return Ok(());
    }
    let (least, middle, greatest) = spread(&seen.times);
    let (_, process, _) = spread(&seen.process_times);
    let again = match seen.killed {
        0 => String::new(),
        n => format!("; {} it was killed too, and run again", plural(n, "time")),
    };
    out.field(
        "recovery",
        format_args!(
            "{} by cenote-recover, which has none of the index's code{again}",
            plural(seen.times.len() as u64, "time")
        ),
    )?;
    let completed = match seen.rolled_forward {
        0 => String::new(),
        n => format!(
            ", {} completed ({})",
            plural(n, "transaction"),
            plural(seen.rolled_forward_entries, "entry")
        ),
    };
    out.field(
        "",
        format_args!(
            "{} rolled back ({}){completed}",
            plural(seen.rolled_back, "transaction"),
            plural(seen.rolled_back_entries, "log entry"),
        ),
    )?;
    out.field(
        "",
        format_args!(
            "{} (median; {} to {}), the whole process {}",
            time(middle),
            time(least),
            time(greatest),
            time(process)
        ),
    )?;
    Ok(())
}

/// Where the index is not the one that was to be built.
fn differences(compared: &Comparison, out: &mut Out) -> Result<(), Failure> {
    for text in &compared.differences {
        out.line(format_args!("{} {text}", out.bad("different:")))?;
    }
    let untold = compared.difference_count - compared.differences.len() as u64;
    if untold > 0 {
        out.line(format_args!("{} and {untold} more", out.bad("different:")))?;
    }
    Ok(())
}

fn as_json(tally: &TourTally, compared: &Comparison, words_per_second: f64) -> Value {
    let seen = &tally.recoveries;
    let (least, middle, greatest) = spread(&seen.times);
    let (_, process, _) = spread(&seen.process_times);
    json!({
        "words": tally.words, "words_indexed": tally.indexed, "entries": compared.entries,
        "kills": tally.kills,
        "kills_at_start": tally.kills_at_start, "seed": tally.seed, "batch": tally.batch,
        "transactions": tally.transactions, "recoveries": seen.times.len(),
        "recoveries_killed": seen.killed,
        "rolled_back": seen.rolled_back, "rolled_back_entries": seen.rolled_back_entries,
        "rolled_forward": seen.rolled_forward,
        "rolled_forward_entries": seen.rolled_forward_entries,
        "logs_idle": seen.idle, "recovery_us_min": micros(least),
        "recovery_us_median": micros(middle),
        "recovery_us_max": micros(greatest), "recovery_process_us_median": micros(process),
        "words_per_second": words_per_second as u64, "building_us": micros(tally.building),
        "wall_us": micros(tally.wall),
        "block_bytes": compared.block_bytes, "pool_bytes": compared.pool_bytes,
        "store_bytes": compared.store_bytes, "store": tally.store, "kept": tally.kept,
        "identical": compared.difference_count == 0,
        "differences": compared.differences, "difference_count": compared.difference_count,
    })
}
