//! Faults of groups and of the map, each found by the comparisons of this folder.

use super::{APPENDS, CACHES, Run, SPLITS, crash};
use cenote_medium::planted::{Bug, GroupBug, plant};

/// The run that finds a fault, with these counters: over one of the caches.
fn find<const N: usize>(bug: GroupBug, worker: usize, (keys, cache, counters): (u64, usize, u32)) {
    let steps = if keys > 20 { SPLITS } else { APPENDS };
    let run = Run { worker: 40 + worker, keys, steps, cache: CACHES[cache], counters };
    plant(Bug::Group(bug));
    let found = crash::<N>(&run, 24, 200);
    plant(Bug::None);
    match found {
        Ok(images) => panic!("{bug:?} was not found in {images} images"),
        Err(wrong) => println!("{bug:?}: {wrong}"),
    }
}

#[test]
fn lines_that_count_before_the_fence_are_found() {
    find::<2>(GroupBug::DrainNotFenced, 0, (3, 3, 64));
}

#[test]
fn stores_without_a_counter_that_stay_in_the_cache_are_found() {
    find::<2>(GroupBug::ExhaustedNotWritten, 1, (3, 3, 0));
}

#[test]
fn entries_that_are_valid_before_their_group_has_drained_are_found() {
    find::<2>(GroupBug::TagBeforeDrained, 2, (3, 3, 64));
}

#[test]
fn entries_that_are_valid_before_groups_of_before_have_drained_are_found() {
    find::<2>(GroupBug::OrderIgnored, 3, (3, 1, 64));
}

#[test]
fn marks_that_are_in_no_group_are_found() {
    find::<2>(GroupBug::MarkNotCounted, 4, (3, 3, 64));
}

#[test]
fn appending_before_the_log_has_let_go_of_a_split_is_found() {
    find::<1>(GroupBug::SplitNotQuiesced, 5, (0, 0, 64));
}

#[test]
fn an_opener_that_keeps_the_epoch_is_found() {
    find::<2>(GroupBug::EpochKept, 6, (3, 3, 64));
}

#[test]
fn an_opener_that_believes_the_oldest_entry_of_a_key_is_found() {
    find::<2>(GroupBug::OldestBelieved, 7, (3, 3, 64));
}
