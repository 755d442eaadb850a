//! Leaked collections die as a whole, by each way of giving back: a handle that a program kept
//! finds its collection whole, or an error, and never a node that is free.
//!
//! Handles are kept in variables over close and reopen, and in a second store. The collections they
//! name are given back by reclaim (to its end, broken off, in the background) and by collect
//! (killed at each of its steps, and at random moments).

#[path = "leaked/generated.rs"]
mod generated;
#[path = "leaked/kept.rs"]
mod kept;

use cenote::{Reader, ReclaimOptions};
use cenote_medium::planted::{Step, watch};
use cenote_testkit::child::again;
use kept::{Kept, alone, directory, leak, open, reuse, survey};
use std::ops::ControlFlow;
use std::path::Path;

const SEED: u64 = 5;

#[test]
fn a_kept_handle_never_finds_a_collection_of_which_a_part_is_given_back() {
    let _alone = alone();
    let dir = directory();
    let kept = leak(&open(dir.path()).1, SEED, true);
    let (_store, pool) = open(dir.path());
    assert_eq!(survey(&pool, &kept, SEED), Ok(6), "the program's handles are as good as ever");
    let mut seen = Vec::new();
    let mut progress = |_: &cenote::ReclaimProgress| {
        seen.push(survey(&pool, &kept, SEED));
        ControlFlow::Continue(())
    };
    let mut options = ReclaimOptions::default();
    options.progress = Some(&mut progress);
    pool.reclaim_with(options).unwrap();
    let torn: Vec<_> = seen.iter().filter(|seen| !matches!(seen, Ok(0 | 6))).collect();
    assert!(torn.is_empty(), "{} of {} callbacks: {:?}", torn.len(), seen.len(), torn[0]);
    assert!(seen.len() > 20 && seen.first() == Some(&Ok(6)) && seen.last() == Some(&Ok(0)));
    reuse(&pool);
    assert_eq!(survey(&pool, &kept, SEED), Ok(0));
}

#[test]
fn a_run_that_is_broken_off_leaves_a_collection_whole_or_gone() {
    let _alone = alone();
    let (mut whole, mut gone) = (0, 0);
    for stop in [0, 1, 3, 20, 40, 60, 80, 100] {
        let (first, second) = (directory(), directory());
        {
            let kept = leak(&open(first.path()).1, SEED, true);
            let (_, keeper) = open(second.path());
            keeper.write(|tx| tx.alloc(kept).and_then(|kept| tx.set_root(kept))).unwrap();
        }
        {
            let (_store, pool) = open(first.path());
            let mut slices = 0;
            let mut progress = |_: &cenote::ReclaimProgress| {
                slices += 1;
                if slices > stop { ControlFlow::Break(()) } else { ControlFlow::Continue(()) }
            };
            let mut options = ReclaimOptions::default();
            options.progress = Some(&mut progress);
            pool.reclaim_with(options).unwrap_err();
        }
        let ((_a, pool), (_b, keeper)) = (open(first.path()), open(second.path()));
        let view = keeper.read().unwrap();
        let kept = *view.get(view.root::<Kept>().unwrap().unwrap()).unwrap();
        let check = pool.check().unwrap();
        assert_eq!((check.unallocated_blocks, check.miscounted.len()), (0, 0));
        let before = survey(&pool, &kept, SEED);
        assert!(matches!(before, Ok(0 | 6)), "after {stop} slices: {before:?}");
        reuse(&pool);
        assert_eq!(survey(&pool, &kept, SEED), before, "after {stop} slices, and reuse");
        *if before == Ok(0) { &mut gone } else { &mut whole } += 1;
    }
    assert!(whole > 0 && gone > 0, "{whole} whole, {gone} gone");
}

const CHILD: &str = "CENOTE_LEAKED_CHILD";

/// Not a test of its own: collects, and dies at the step whose number it is given.
#[test]
fn child_that_dies_in_collect() {
    let Ok(task) = std::env::var(CHILD) else { return };
    let (dir, last) = task.rsplit_once(':').expect("a directory and a number");
    let mut left: u64 = last.parse().expect("a number");
    let (_store, pool) = open(Path::new(dir));
    watch(Some(Box::new(move |step| {
        if counts(step) {
            left -= 1;
            if left == 0 {
                std::process::abort();
            }
        }
    })));
    pool.collect().expect("collected");
}

/// Steps of a collection that change marks, or their meaning.
fn counts(step: Step) -> bool {
    matches!(
        step,
        Step::SweepOpened
            | Step::BlocksCondemned
            | Step::SweepCommitted
            | Step::SweepClosedAgain
            | Step::MarksRecovered
            | Step::AllRecovered
    )
}

#[test]
fn a_process_that_dies_in_collect_leaves_a_collection_whole_or_gone() {
    let _alone = alone();
    let (mut whole, mut gone) = (0, 0);
    for last in (1..).map(|k: u64| k * k) {
        let dir = directory();
        let kept = leak(&open(dir.path()).1, SEED, true);
        let mut child = again("child_that_dies_in_collect");
        let ended = child.env(CHILD, format!("{}:{last}", dir.path().display())).output().unwrap();
        let (_store, pool) = open(dir.path());
        let found = survey(&pool, &kept, SEED);
        assert!(matches!(found, Ok(0 | 6)), "at step {last}: {found:?}");
        reuse(&pool);
        assert_eq!(survey(&pool, &kept, SEED), found, "at step {last}, after reuse");
        if ended.status.success() {
            assert_eq!(found, Ok(0));
            break;
        }
        *if found == Ok(0) { &mut gone } else { &mut whole } += 1;
    }
    assert!(whole > 0 && gone > 0, "{whole} whole, {gone} gone");
}
