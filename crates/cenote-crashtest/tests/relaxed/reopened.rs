//! Programs that go on with what a crash left, and crash again.

use super::rig::{History, Least, Opened, base, found_in, found_with, leaving};
use super::{APPENDS, CACHES, Do, OPEN, Run, depth, next, of_note, recorded, recorded_on, visit};
use Do::{Flush, Insert, Remove};
use cenote_crashtest::tier::number_of_change;
use cenote_medium::Medium;
use cenote_medium::planted::{Bug, GroupBug, plant};
use cenote_medium::sim::{CrashKind, SimMedium};

/// Slots that a crash left without a tag are used again, and those with marks.
const AGAIN: &[Do] =
    &[Insert(20), Insert(12), Flush, Insert(21), Remove(12), Insert(13), Flush, Insert(12)];

/// Crashes a run, and then a second one on some images that it left.
fn twice(worker: usize, rounds: u32, samples: u32) -> Result<u64, String> {
    let mut seed = number_of_change("CENOTE_CRASH_PART") | 1;
    let mut images = 0;
    for round in 0..rounds {
        let cache = CACHES[round as usize % CACHES.len()];
        let image = base::<2>(worker, 1..=3).map_err(|error| error.to_string())?;
        let run = Run { worker, keys: 3, steps: APPENDS, cache, counters: 64 };
        let first = recorded::<2>(&image, &run)?;
        let state = &first.states[next(&mut seed) as usize % first.states.len()];
        let often = next(&mut seed) % 4;
        let image = state.image(&mut |unit, _| {
            if next(&mut seed) % 4 <= often { state.latest(unit) } else { 0 }
        });
        let found = found_in::<2>(&image)?;
        first.history.check(&found, of_note(state.note()), &Least::new())?;
        let second = recorded::<2>(&image, &Run { steps: AGAIN, ..run })?;
        if second.history.at_first != found {
            return Err("two openers find two things".into());
        }
        images += visit::<2>(&second, samples)?;
    }
    Ok(images)
}

#[test]
fn what_a_crash_left_is_gone_on_with_and_crashed_again() {
    let images = twice(20, depth(8, 400), depth(5, 40));
    println!("{} images", images.unwrap_or_else(|wrong| panic!("{wrong}")));
}

/// A program is killed, with lines in the cache. The next one opens the map and shows what it
/// finds; then power fails.
fn shown_and_lost(worker: usize, cut: usize) -> Result<(), String> {
    let text = |error: cenote::Error| error.to_string();
    let image = base::<2>(worker, 1..=3).map_err(text)?;
    let sim = SimMedium::from_image(&image);
    let opened = Opened::<2>::new(&sim, leaving(64, CACHES[1])).map_err(text)?;
    for (number, step) in APPENDS.iter().enumerate().take(cut) {
        opened.step(number, *step).map_err(text)?;
    }
    let (snapshot, left) = (sim.snapshot(), sim.image_now(CrashKind::Process));
    opened.end(&sim);
    let next = SimMedium::from_image_paused(&left);
    assert!(next.resume(Some(&snapshot)), "goes on from there");
    let none = Run { worker, keys: 3, steps: &[], cache: CACHES[3], counters: 64 };
    let second = recorded_on::<2>(&next, &none)?;
    let shown = second.history.at_first.clone();
    let history = History { at_first: shown.clone(), steps: &[] };
    for state in second.states.iter().filter(|state| state.label() == Some(OPEN)) {
        let found = found_in::<2>(&state.image_oldest())?;
        history.check(&found, (0, 0), &Least::new())?;
    }
    Ok(())
}

#[test]
fn what_an_opener_shows_after_a_kill_is_there_when_power_fails_later() {
    (1..=APPENDS.len()).for_each(|cut| shown_and_lost(21, cut).unwrap());
    plant(Bug::Group(GroupBug::FoundNotKept));
    let found = (1..=APPENDS.len()).map(|cut| shown_and_lost(21, cut)).find(Result::is_err);
    plant(Bug::None);
    assert!(found.is_some(), "not found");
}

/// A valid entry whose bytes are other ones: a copy of files that were written meanwhile has such,
/// and damage.
#[test]
fn an_entry_that_is_not_what_its_tag_was_made_of_is_not_shown() {
    let shown = || {
        let image = base::<2>(22, 1..=3).unwrap();
        let sim = SimMedium::from_image_unrecorded(&image);
        let file = sim.list("puddles").unwrap().into_iter().find_map(|name| {
            let name = format!("puddles/{name}");
            let bytes = sim.read(&name).ok()?;
            // The value of key 2.
            let entry = [2u64.to_le_bytes(), u64::MAX.to_le_bytes()].concat();
            let at = bytes.windows(16).position(|window| window == entry)?;
            Some((name, at as u64 + 8))
        });
        let (name, at) = file.expect("an entry");
        // SAFETY: nothing has mapped the file.
        assert!(unsafe { sim.flip_bit(&name, at, 3) });
        found_with::<2>(&sim.image_now(CrashKind::Process), 1)
    };
    assert_eq!(shown().unwrap().into_keys().collect::<Vec<u64>>(), [1, 3]);
    plant(Bug::Group(GroupBug::TagUnchecked));
    let found = shown();
    plant(Bug::None);
    assert!(found.is_err(), "{found:?}");
}
