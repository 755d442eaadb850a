//! `cenote tour`: builds an index of words that survives being killed again and again.
//!
//! ```text
//! tour ---- starts, reads acknowledgements, kills ----> builder (builder.rs, index.rs)
//!   |                                                      | stores straight into the pool,
//!   |                                                      v with the collections
//!   +------ starts after each kill --> cenote-recover --> store
//!   +------ compares at the end (compare.rs)
//! ```
//!
//! The tour checks that
//!
//! * a builder that begins finds at least what the one before it has acknowledged;
//! * no recovery reports damage;
//! * at the end the index is the same as one that was never disturbed.

pub(crate) mod builder;
mod compare;
mod index;
mod place;
mod plan;
mod recovery;
mod report;
mod text;
mod watch;

use crate::cli::Tour;
use crate::failure::{Failure, Verdict};
use crate::output::Out;
use crate::progress;
use crate::units::{count, plural};
use place::TourPlace;
use plan::{Kill, KillPlan};
use recovery::{Recoverer, Recoveries, eprint_line};
use report::TourTally;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Instant;
use text::Text;
use watch::{Ending, Watch};

pub(crate) fn run(arguments: &Tour, out: &mut Out) -> Result<Verdict, Failure> {
    let begun = Instant::now();
    let text = Text::load(&arguments.files)?;
    let recoverer = Recoverer::find()?;
    let stop = stop_signals()?;
    let seed = match arguments.seed {
        Some(seed) => seed,
        None => random_seed()?,
    };
    let words = text.words();
    let place = TourPlace::take(
        arguments.store.as_deref(),
        arguments.keep,
        text::fingerprint(&text.normal),
    )?;

    let mut different: Vec<&str> = words.clone();
    different.sort_unstable();
    different.dedup();
    out.field("text", &text.source)?;
    out.field(
        "",
        format_args!(
            "{} words, {} different",
            count(words.len() as u64),
            count(different.len() as u64)
        ),
    )?;
    out.field("store", place.describe()?)?;
    out.field("seed", seed)?;
    out.finish()?;

    let mut tally = TourTally {
        words: words.len() as u64,
        batch: arguments.batch,
        seed,
        store: place.store().display().to_string(),
        kept: place.is_kept(),
        ..TourTally::default()
    };
    let plan = KillPlan::new(seed, tally.words, arguments.kills);
    let site = Site { text: &text, place: &place, recoverer: &recoverer, stop: &stop };
    let built = site.build(plan, &mut tally, out.is_json());
    if let Err(Failure::Interrupted(_)) = built {
        return Err(interrupted(&place, &recoverer, &tally, &arguments.files));
    }
    built.map_err(|failure| place.keep_for(failure))?;
    let compared =
        compare::compare(place.store(), &words).map_err(|failure| place.keep_for(failure))?;
    tally.wall = begun.elapsed();
    let same = compared.difference_count == 0;
    if !same {
        place.keep();
    }
    if place.is_kept() {
        // Before the report: its last line is the result.
        let store = place.store().display();
        out.field("look at it", format_args!("`cenote check {store}`, `cenote dump {store}`"))?;
    }
    tally.kept = place.is_kept();
    report::print(&tally, &compared, out)
}

/// What builders build from, where, and what comes after them.
struct Site<'a> {
    text: &'a Text,
    place: &'a TourPlace,
    recoverer: &'a Recoverer,
    stop: &'a Arc<AtomicBool>,
}

impl Site<'_> {
    /// Starts builders, kills them, has the store recovered, until one comes to the end.
    fn build(&self, mut plan: KillPlan, tally: &mut TourTally, json: bool) -> Result<(), Failure> {
        let store = self.place.store();
        let bar = progress::bar(tally.words, "indexing", json);
        let mut watch = Watch::new(&self.text.normal, store, tally.batch, Arc::clone(self.stop))?;
        let mut acknowledged = self.place.indexed();
        let planned = plan.left();
        loop {
            bar.set_message(format!("words, {} of {planned} kills", tally.kills));
            let kill = plan.next(acknowledged);
            let planned = kill.map(|kill| (kill, plan.hold(kill, acknowledged)));
            let seen = watch.run(planned, &mut |words| bar.set_position(words))?;
            if let Some(first) = seen.first {
                if first < acknowledged {
                    return Err(Failure::Failed(format!(
                        "a commit was lost: {acknowledged} words were acknowledged, and {first} \
                         are there after recovery (seed {})",
                        tally.seed
                    )));
                }
                let last = seen.last.unwrap_or(first).max(first);
                // What was committed and not acknowledged counts too.
                tally.indexed += last - acknowledged;
                tally.transactions += seen.acknowledgements;
                tally.building += seen.building;
                plan.started_after(seen.starting);
                if let (Some(Kill::AfterWord(planned, _)), Ending::Killed) = (kill, seen.ending) {
                    plan.came_to(planned, last);
                }
                acknowledged = last;
            }
            match seen.ending {
                Ending::Done => break,
                Ending::Killed => {
                    plan.done();
                    tally.kills += 1;
                    tally.kills_at_start += u32::from(seen.first.is_none());
                    recover(self.recoverer, store, &mut plan, tally)?;
                }
                Ending::Interrupted => return Err(Failure::Interrupted(String::new())),
            }
            if self.stop.load(Ordering::Relaxed) {
                return Err(Failure::Interrupted(String::new()));
            }
        }
        bar.finish_and_clear();
        Ok(())
    }
}

fn recover(
    recoverer: &Recoverer,
    store: &Path,
    plan: &mut KillPlan,
    tally: &mut TourTally,
) -> Result<(), Failure> {
    // A builder that was killed before it had formatted anything left nothing to recover.
    if !store.join("superblock").exists() {
        return Ok(());
    }
    recoverer.recover(store, plan, &mut tally.recoveries)
}

/// Leaves a usable store, or none.
fn interrupted(
    place: &TourPlace,
    recoverer: &Recoverer,
    tally: &TourTally,
    files: &[PathBuf],
) -> Failure {
    let mut seen = Recoveries::default();
    let mut plan = KillPlan::new(0, 0, 0);
    // The terminal sends Ctrl-C to all processes of the tour: a recovery may have been stopped by
    // it.
    let usable = !place.store().join("superblock").exists()
        || recoverer.recover(place.store(), &mut plan, &mut seen).is_ok();
    let done = format!(
        "stopped after {} and {}",
        plural(tally.indexed, "word"),
        plural(u64::from(tally.kills), "kill")
    );
    Failure::Interrupted(if !place.is_kept() {
        format!("{done}; the temporary store is removed (--keep keeps it)")
    } else if usable {
        let files: String = files.iter().map(|file| format!(" {}", file.display())).collect();
        format!(
            "{done}; the store {0} is whole: `cenote tour --store {0}{files}` goes on",
            place.store().display()
        )
    } else {
        format!("{done}; the store {} is recovered when it is opened next", place.store().display())
    })
}

/// A flag that Ctrl-C and its like raise.
fn stop_signals() -> Result<Arc<AtomicBool>, Failure> {
    use signal_hook::consts::{SIGHUP, SIGINT, SIGTERM};
    let stop = Arc::new(AtomicBool::new(false));
    for signal in [SIGINT, SIGTERM, SIGHUP] {
        if let Err(error) = signal_hook::flag::register(signal, Arc::clone(&stop)) {
            eprint_line(&format!("cenote: signal {signal} cannot be handled: {error}"));
        }
    }
    Ok(stop)
}

fn random_seed() -> Result<u64, Failure> {
    let bytes = cenote_sys::process::random_bytes16().map_err(|e| {
        Failure::Failed(format!("the system gives no random numbers: {e}: give a --seed"))
    })?;
    // Short enough to be typed again.
    Ok(u64::from(u32::from_le_bytes([bytes[0], bytes[1], bytes[2], bytes[3]])))
}
