//! The same scripts over pools with a logged heap: their metadata say in some puddles what lies in
//! the others, and a crash may have broken off a change of them before they move.

use super::world::*;
use super::{CLONES, HEAP, MEETINGS, MOVES, SEALED, caught, holds, meeting, protected};
use cenote::{AtRest, HeapKind};
use cenote_crashtest::rig::stay_on_one_processor;
use cenote_crashtest::tier::number_of_change;
use cenote_medium::Durability;
use cenote_medium::planted::{Bug, LoggedBug};

fn logged(test: impl FnOnce()) {
    // Another processor is another sub-heap.
    stay_on_one_processor().expect("allowed");
    HEAP.set(HeapKind::Logged);
    test();
    HEAP.set(HeapKind::Traced);
}

#[test]
fn clones_of_logged_heaps_at_level_power() {
    logged(|| holds("logged clones", &CLONES, Durability::Power, 7));
}

#[test]
fn moves_of_logged_heaps_at_level_power() {
    logged(|| holds("logged moves", &MOVES, Durability::Power, 5));
}

#[test]
fn clones_of_logged_heaps_at_level_process() {
    logged(|| holds("logged clones", &CLONES, Durability::Process, 7));
}

#[test]
fn windows_of_logged_heaps_that_are_taken() {
    for level in [Durability::Power, Durability::Process] {
        logged(|| meeting(|| holds("logged windows", &MEETINGS, level, 9)));
    }
}

/// A change visits clones or moves, which follows from the commit.
#[test]
fn clones_and_moves_of_wear_heaps() {
    HEAP.set(HeapKind::Wear { wait_ms: 0 });
    let all = std::env::var_os("CENOTE_CRASH_DEPTH").is_some();
    let part = number_of_change("CENOTE_CRASH_PART") as usize % 2;
    println!("CENOTE_CRASH_PART={part} repeats this run");
    if all || part == 0 {
        holds("wear clones", &CLONES, Durability::Power, 3);
    }
    if all || part == 1 {
        holds("wear moves", &MOVES, Durability::Power, 3);
    }
    HEAP.set(HeapKind::Traced);
}

#[test]
fn blocks_of_a_run_that_are_left_out() {
    let steps = [
        Write("direct"),
        Push("direct", 2),
        // The slots of one slab.
        Push("direct", 3),
        Push("direct", 4),
        Release,
        DualMapping("direct", "copy"),
        Read("copy"),
    ];
    let bug = Bug::Logged(LoggedBug::FirstOfRunRewritten);
    logged(|| caught(bug, &steps, Durability::Power));
}

#[test]
fn logged_puddles_that_are_mapped_as_they_are() {
    logged(|| caught(Bug::PendingPuddleMapped, &CLONES[..2], Durability::Power));
}

#[test]
fn roots_of_a_logged_heap_that_are_looked_for_elsewhere() {
    let bug = Bug::Logged(LoggedBug::RootsOfTracedHeap);
    logged(|| caught(bug, &CLONES[..2], Durability::Power));
}

#[test]
fn logged_puddles_that_are_not_synced_before_they_are_renamed() {
    let steps = [DualMapping("direct", "copy"), Read("copy"), Release];
    logged(|| caught(Bug::RewrittenNotSynced, &steps, Durability::Process));
}

#[test]
fn copies_of_protected_pools_with_logged_heaps() {
    logged(|| {
        protected(AtRest::Authenticated, || {
            holds("logged and sealed", &SEALED, Durability::Power, 7);
        });
    });
}

#[test]
fn windows_of_protected_pools_with_logged_heaps_that_are_taken() {
    let steps = [
        Write("shadowed"),
        Push("shadowed", 3),
        Psync("shadowed"),
        CloseAndMeet,
        Write("shadowed"),
        Push("shadowed", 5),
        Psync("shadowed"),
    ];
    logged(|| {
        protected(AtRest::Encryption, || {
            meeting(|| holds("logged and sealed windows", &steps, Durability::Process, 1));
        });
    });
}

/// Nothing brings a pool to its next opener's state before it moves: the list of its blocks does.
#[test]
fn a_list_of_blocks_that_is_refused_where_a_change_was_broken_off() {
    let steps = [Write("direct"), Push("direct", 2), Push("direct", 3)];
    let bug = Bug::Logged(LoggedBug::BrokenOffRefused);
    logged(|| meeting(|| caught(bug, &steps, Durability::Power)));
}
