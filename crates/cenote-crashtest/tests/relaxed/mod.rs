//! The map of relaxed durability, crashed at every moment, over modelled caches of several shapes.
//!
//! Three comparisons, all through the map's own code:
//!
//! * each image of each moment, as far as there are few, with what was flushed;
//! * each image with what was certainly in memory at every earlier moment;
//! * images of two moments of one life, the later of which has no word in an older state
//!   ([`pairs`]): what was recoverable stays so.

mod planted;
mod reopened;
mod rig;

use cenote_crashtest::tier::number_of_change;
use cenote_groups::{CacheModel, Replacement};
use cenote_medium::sim::{CrashPlace, CrashState, Explorer, Image, Limits, SimMedium};
use rig::{Do, History, Least, Opened, base, found_in, leaving};
use std::collections::HashMap;
use std::sync::Arc;

use Do::{Flush, Insert, Remove};

const CACHES: [CacheModel; 4] = [
    CacheModel { sets: 1, ways: 1, replacement: Replacement::First },
    CacheModel { sets: 1, ways: 2, replacement: Replacement::LeastRecent },
    CacheModel { sets: 2, ways: 1, replacement: Replacement::Random(5) },
    CacheModel { sets: 64, ways: 8, replacement: Replacement::First },
];

/// Appends, updates, and deletions in one leaf.
const APPENDS: &[Do] = &[
    Insert(10),
    Insert(11),
    Insert(10),
    Remove(11),
    Insert(11),
    Remove(2),
    Flush,
    Insert(12),
    Remove(10),
    Insert(3),
    Remove(12),
    Insert(10),
];
/// The same around a split: entries wait when it comes, and more are appended right behind it.
const SPLITS: &[Do] = &[
    Insert(100),
    Insert(5),
    Remove(7),
    Insert(41),
    Insert(6),
    Insert(43),
    Flush,
    Remove(43),
    Insert(7),
];

/// A leaf of its own for an entry behind all others.
const BEHIND: &[Do] = &[Insert(50), Insert(51), Insert(52), Remove(51), Flush, Insert(53)];

/// What a run is about.
struct Run<'s> {
    worker: usize,
    keys: u64,
    steps: &'s [Do],
    cache: CacheModel,
    counters: u32,
}

/// The label of moments at which the map is open.
const OPEN: &str = "open";

/// A history, and all its moments, from the map's opening on.
struct Recorded<'s> {
    history: History<'s>,
    states: Vec<CrashState>,
}

fn note_of(flushed: usize, done: usize) -> u64 {
    (flushed as u64) << 32 | done as u64
}

fn of_note(note: u64) -> (usize, usize) {
    ((note >> 32) as usize, (note & 0xffff_ffff) as usize)
}

fn recorded<'s, const N: usize>(image: &Image, run: &Run<'s>) -> Result<Recorded<'s>, String> {
    let sim = SimMedium::from_image(image);
    recorded_on::<N>(&sim, run)
}

fn recorded_on<'s, const N: usize>(
    sim: &Arc<SimMedium>,
    run: &Run<'s>,
) -> Result<Recorded<'s>, String> {
    let text = |error: cenote::Error| error.to_string();
    let opened = Opened::<N>::new(sim, leaving(run.counters, run.cache)).map_err(text)?;
    let at_first = opened.all().map_err(text)?;
    sim.crash_point(OPEN);
    let mut flushed = 0;
    sim.note(note_of(0, 0));
    for (number, step) in run.steps.iter().enumerate() {
        opened.step(number, *step).map_err(text)?;
        if matches!(step, Flush) {
            flushed = number + 1;
        }
        sim.note(note_of(flushed, number + 1));
    }
    let states = sim.walk().collect();
    opened.end(sim);
    Ok(Recorded { history: History { at_first, steps: run.steps }, states })
}

/// Visits images of all moments; how many, and how far keys were in the end at least.
fn visit<const N: usize>(recorded: &Recorded<'_>, samples: u32) -> Result<u64, String> {
    let mut least = Least::new();
    let seed = number_of_change("CENOTE_CRASH_PART");
    let limits = Limits { exhaustive_units: 4, samples, seed, process: true, power: true };
    let mut explorer = Explorer::new(limits);
    let mut wrong = None;
    for (number, state) in recorded.states.iter().enumerate() {
        let noted = of_note(state.note());
        let found = found_in::<N>(&state.image_oldest())?;
        least = recorded.history.check(&found, noted, &least)?;
        // What a store alone adds is in the next moment too.
        let next = recorded.states.get(number + 1);
        if next.is_some_and(|next| next.note() == state.note() && next.units() > state.units()) {
            continue;
        }
        explorer.visit(state, &mut |image| {
            if wrong.is_none() {
                let found = found_in::<N>(&image);
                let checked = found.and_then(|it| recorded.history.check(&it, noted, &least));
                wrong = checked.err();
            }
        });
        if let Some(wrong) = wrong.take() {
            return Err(format!("after event {}, {noted:?}: {wrong}", state.event()));
        }
    }
    Ok(explorer.visited().images)
}

/// A word by file and offset.
type WordPlace = (String, u64);

/// Numbers from a seed.
fn next(seed: &mut u64) -> u64 {
    *seed ^= *seed << 13;
    *seed ^= *seed >> 7;
    *seed ^= *seed << 17;
    *seed
}

fn place_of(state: &CrashState, unit: usize) -> Option<WordPlace> {
    match state.place(unit) {
        Some(CrashPlace::Word { file, offset }) => Some((file.to_owned(), offset)),
        _ => None,
    }
}

/// Images of two moments of one life: words go forward only.
fn pairs<const N: usize>(recorded: &Recorded<'_>, count: u64, seed: u64) -> Result<(), String> {
    let mut seed = seed | 1;
    let states = &recorded.states;
    for _ in 0..count {
        let first = next(&mut seed) as usize % states.len();
        let second = first + next(&mut seed) as usize % (states.len() - first).min(24);
        let (early, late) = (&states[first], &states[second]);
        let mut had: HashMap<WordPlace, u64> = HashMap::new();
        let often = next(&mut seed) % 4;
        let image = early.image(&mut |unit, alternatives| {
            let pick = match next(&mut seed) % 4 <= often {
                true => next(&mut seed) as usize % alternatives,
                false => 0,
            };
            if let (Some(place), Some(value)) = (place_of(early, unit), early.words(unit).get(pick))
            {
                had.insert(place, *value);
            }
            pick
        });
        let found = found_in::<N>(&image)?;
        let least = recorded.history.check(&found, of_note(early.note()), &Least::new())?;
        let rarely = next(&mut seed) % 4;
        let image = late.image(&mut |unit, alternatives| {
            let before = place_of(late, unit).and_then(|place| had.get(&place));
            let values = late.words(unit);
            let from = before.and_then(|value| values.iter().rposition(|now| now == value));
            let from = from.unwrap_or(0);
            match next(&mut seed) % 4 <= rarely {
                true => from,
                false => from + next(&mut seed) as usize % (alternatives - from),
            }
        });
        let found = found_in::<N>(&image)?;
        let checked = recorded.history.check(&found, of_note(late.note()), &least);
        checked
            .map_err(|wrong| format!("events {} and {}: {wrong}", early.event(), late.event()))?;
    }
    Ok(())
}

fn crash<const N: usize>(run: &Run<'_>, samples: u32, count: u64) -> Result<u64, String> {
    let image = base::<N>(run.worker, 1..=run.keys).map_err(|error| error.to_string())?;
    let recorded = recorded::<N>(&image, run)?;
    let images = visit::<N>(&recorded, samples)?;
    pairs::<N>(&recorded, count, number_of_change("CENOTE_CRASH_PART"))?;
    Ok(images)
}

fn is_deep() -> bool {
    std::env::var_os("CENOTE_CRASH_DEPTH").is_some()
}

fn depth(shallow: u32, deep: u32) -> u32 {
    if is_deep() { deep } else { shallow }
}

fn crash_all<const N: usize>(worker: usize, keys: u64, steps: &[Do], counters: u32) {
    for (number, cache) in CACHES.into_iter().enumerate() {
        let run = Run { worker: worker + number, keys, steps, cache, counters };
        let (samples, count) = (depth(6, 400), u64::from(depth(60, 20_000)));
        let images = crash::<N>(&run, samples, count);
        let images = images.unwrap_or_else(|wrong| panic!("{cache:?}, {counters}: {wrong}"));
        println!("{cache:?}, {counters} counters: {images} images, {count} pairs");
    }
}

#[test]
fn a_crash_leaves_each_entry_whole_and_what_was_flushed() {
    // The first leaf is made, too, and one behind all others.
    crash_all::<1>(32, 0, APPENDS, 64);
    crash_all::<1>(36, 31, BEHIND, 64);
    crash_all::<2>(0, 3, APPENDS, 64);
}

#[test]
fn a_crash_around_a_split_leaves_each_entry_whole_and_what_was_flushed() {
    crash_all::<3>(16, 29, SPLITS, 64);
    crash_all::<1>(4, 29, SPLITS, 64);
}

#[test]
fn a_crash_leaves_each_entry_whole_where_counters_run_out() {
    crash_all::<2>(8, 3, APPENDS, 2);
    crash_all::<2>(12, 29, SPLITS, 0);
}
