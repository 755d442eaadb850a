//! `kill -9`: a child changes a map and acknowledges each step, and each flush; this process kills
//! it and compares.
//!
//! At `process` each step that was acknowledged is there. At `power`, where instructions are as on
//! persistent memory, each step before the last flush is, and those behind it are there or not,
//! each as a whole; what one opener has found the next one finds.
//!
//! `CENOTE_RELAXED_KILLS` sets the number of kills (6 a level).

use super::{Value, all, found, make};
use crate::common::{directory, pool};
use cenote::{MediumOptions, Pool, RealMedium, Store};
use cenote_store::{FormatOptions, OpenOptions};
use cenote_testkit::child::{Acknowledging, acknowledge, again};
use cenote_testkit::environment::number;
use cenote_testkit::random::mix;
use std::collections::BTreeMap;
use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

const DIR: &str = "CENOTE_RELAXED_DIR";
const FIRST: &str = "CENOTE_RELAXED_FIRST";
const POWER: &str = "CENOTE_RELAXED_POWER";
/// A word that says: all steps below this number are flushed.
const FLUSHED: u64 = 1 << 32;

/// The pool, at `power` as if it lay on persistent memory.
fn open_pool(path: &Path, power: bool) -> Pool {
    if !power {
        return pool(path);
    }
    let options = MediumOptions { create: true, force_power: true, ..MediumOptions::default() };
    let medium: Arc<RealMedium> = Arc::new(RealMedium::open(path, &options).expect("a medium"));
    if !path.join("superblock").exists() {
        cenote_store::format(medium.clone(), &FormatOptions::default()).expect("a format");
    }
    let store = Store::open_on(medium, &OpenOptions::default()).expect("a store");
    store.pool("test").expect("a pool")
}

/// Key of a step, and its value; `None` removes it.
fn step_of(step: u64) -> (u64, Option<Value>) {
    let random = mix(step);
    let key = (random >> 16) % 500;
    (key, (!random.is_multiple_of(4)).then_some([step, key, !step, !key]))
}

/// Not a test by itself: changes the map until it is killed.
#[test]
fn child() {
    let Some(dir) = std::env::var_os(DIR) else { return };
    let pool = open_pool(Path::new(&dir), number(POWER, 0) == 1);
    let open = found(&pool).open(&pool).expect("open");
    for step in number(FIRST, 0).. {
        match step_of(step) {
            (key, Some(value)) => {
                open.insert(&key, &value).expect("inserted");
            }
            (key, None) => {
                open.remove(&key).expect("removed");
            }
        }
        assert!(acknowledge(step), "heard");
        if step % 50 == 49 {
            open.flush().expect("flushed");
            assert!(acknowledge(FLUSHED + step + 1), "heard");
        }
    }
}

/// Steps of each key, in order.
fn history(until: u64) -> BTreeMap<u64, Vec<(u64, Option<Value>)>> {
    let mut history: BTreeMap<u64, Vec<(u64, Option<Value>)>> = BTreeMap::new();
    for step in 0..until {
        let (key, value) = step_of(step);
        history.entry(key).or_default().push((step, value));
    }
    history
}

/// What is there is one of the states that each key had from `flushed` on.
fn assert_between(there: &BTreeMap<u64, Value>, flushed: u64, until: u64) {
    for (key, steps) in history(until) {
        let behind = steps.partition_point(|(step, _)| *step < flushed);
        let at_flush = behind.checked_sub(1).and_then(|last| steps[last].1);
        let mut allowed = steps[behind..].iter().map(|(_, value)| *value).chain([at_flush]);
        let found = there.get(&key).copied();
        assert!(allowed.any(|state| state == found), "key {key}: {found:?}, {steps:?}");
    }
    assert!(there.keys().all(|key| *key < 500));
}

fn kills(power: bool) {
    let dir = directory();
    {
        let pool = open_pool(dir.path(), power);
        make(&pool);
    }
    let mut next = 0;
    for round in 0..number("CENOTE_RELAXED_KILLS", 6) {
        let after = Duration::from_micros(mix(round) % 20_000);
        let child = Acknowledging::start(
            again("relaxed::killed::child")
                .env(DIR, dir.path())
                .env(FIRST, next.to_string())
                .env(POWER, u64::from(power).to_string()),
        );
        let words = child.kill(true, after, |word| word < FLUSHED << 1);
        let last = words.iter().filter(|word| **word < FLUSHED).max().map_or(next, |last| last + 1);
        let flushed = words.iter().filter(|word| **word > FLUSHED).max();
        // What was there when the child began, it has made durable.
        let flushed = flushed.map_or(next, |word| word - FLUSHED);
        let pool = open_pool(dir.path(), power);
        let open = found(&pool).open(&pool).expect("open");
        let there = all(&open, &pool);
        assert_between(&there, if power { flushed.min(last) } else { last }, last + 1);
        // Steps go on from a known state.
        for step in flushed.min(last)..=last {
            match step_of(step) {
                (key, Some(value)) => {
                    open.insert(&key, &value).expect("inserted");
                }
                (key, None) => {
                    open.remove(&key).expect("removed");
                }
            }
        }
        next = last + 1;
        open.flush().expect("flushed");
        drop(open);
        crate::common::assert_sound(&pool);
        println!("killed after {after:?}: {} words, {} entries", words.len(), there.len());
    }
    assert!(next > 6, "children have changed something");
}

#[test]
fn kill_9_at_process_loses_no_entry_that_was_acknowledged() {
    kills(false);
}

#[test]
fn kill_9_at_power_loses_no_entry_that_was_flushed_and_tears_none() {
    kills(true);
}
