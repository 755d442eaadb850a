//! The same scripts over pools with a logged heap: their metadata say in some puddles what lies in
//! the others, and a crash may have broken off a change of them before they move.

use super::world::*;
use super::{CLONES, HEAP, MEETINGS, MOVES, caught, holds, meeting};
use cenote::HeapKind;
use cenote_crashtest::stay_on_one_processor;
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
    logged(|| holds("logged clones", &CLONES, Durability::Power, 9));
}

#[test]
fn moves_of_logged_heaps_at_level_power() {
    logged(|| holds("logged moves", &MOVES, Durability::Power, 15));
}

#[test]
fn clones_of_logged_heaps_at_level_process() {
    logged(|| holds("logged clones", &CLONES, Durability::Process, 7));
}

#[test]
fn windows_of_logged_heaps_that_are_taken() {
    for level in [Durability::Power, Durability::Process] {
        logged(|| meeting(|| holds("logged windows", &MEETINGS, level, 15)));
    }
}

#[test]
fn blocks_of_a_run_that_are_left_out() {
    let steps =
        [Write("direct"), Push("direct", 2), Release, DualMapping("direct", "copy"), Read("copy")];
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
