//! Every step of a logged heap of sub-heaps is crashed at every moment, at both levels, and so is
//! its recovery; and each protocol step that is left out is found.

use Do::{Across, Alloc, Cpu, Free};
use cenote_crashtest::logged::{
    Do, LoggedWhen, Script, Subject, TransactionEnd, WholeHeap, die_and_lose_power, run,
};
use cenote_crashtest::rig::window_base;
use cenote_medium::Durability::{self, Power, Process};
use cenote_medium::planted::{Bug, LoggedBug};

/// Places in the address space that no other file of these tests has.
fn place(number: usize) -> u64 {
    const { assert!(WholeHeap::WINDOW_LEN <= 32 << 20) };
    window_base(7300) + number as u64 * (32 << 20)
}

/// Three sub-heaps are made, the third with a puddle of metadata; a block is freed by another CPU.
const MADE: Script =
    Script { before: &[], crashed: &[Alloc(64), Cpu(1), Alloc(1000), Free(0), Cpu(2), Alloc(64)] };
/// A sub-heap is full and gets more data.
const MORE_DATA: Script = Script {
    before: &[Alloc(32 << 10), Alloc(16 << 10)],
    crashed: &[Alloc(32 << 10), Free(0), Alloc(100)],
};
/// The table of a sub-heap is full and gets a puddle of levels.
const MORE_LEVELS: Script =
    Script { before: &[Do::NearGrowth], crashed: &[Alloc(256), Alloc(256), Free(0)] };
/// Records of some slabs lie in a level of that puddle: steps, and changes between. Which ones do
/// depends on a hash; the planted bug shows that some do.
const FAR_STEPS: Script = Script {
    before: &[
        Do::NearGrowth,
        Alloc(256),
        Alloc(256),
        Do::Small(16),
        Do::Small(32),
        Do::Small(48),
        Do::Small(64),
        Do::Small(96),
        Do::Small(128),
        Do::Small(192),
    ],
    crashed: &[
        Do::Small(16),
        Do::Small(32),
        Do::Small(48),
        Do::Small(64),
        Do::FreeSmall,
        Do::Small(96),
        Do::Small(128),
        Do::Small(192),
        Alloc(256),
        Do::Small(16),
    ],
};
/// Transactions with lanes in several sub-heaps.
const ACROSS: Script = Script {
    before: &[Alloc(64), Alloc(128), Cpu(1), Alloc(64), Alloc(256)],
    crashed: &[
        Across(&[(0, 64), (1, 300)], &[0, 2], TransactionEnd::Commit),
        Across(&[(1, 64), (0, 64)], &[1], TransactionEnd::Abort),
        Across(&[(1, 64), (0, 64)], &[], TransactionEnd::WithLast),
        Across(&[], &[0, 3], TransactionEnd::Commit),
        Alloc(64),
    ],
};

#[track_caller]
fn visit(what: &str, script: &Script, number: usize, every: u64) {
    // At level `process` a moment has one image.
    for (level, every) in [(Power, every), (Process, every / 8)] {
        match run::<WholeHeap>(
            script,
            level,
            place(number),
            (Bug::None, LoggedWhen::Running),
            every,
        ) {
            Ok(tally) => {
                println!("{level} level, {what}: {tally:?}");
                assert!(tally.points > 4 && tally.images > 10 && tally.recoveries > 0);
            }
            Err(what) => panic!("{level} level: {what}"),
        }
    }
}

#[test]
fn sub_heaps_are_made() {
    visit("sub-heaps", &MADE, 0, 16);
}

#[test]
fn data_grow_by_a_puddle() {
    visit("data", &MORE_DATA, 1, 16);
}

#[test]
fn tables_grow_by_a_puddle() {
    visit("levels", &MORE_LEVELS, 2, 16);
}

#[test]
fn slots_are_allocated_and_freed_in_a_level_of_a_later_puddle() {
    visit("far steps", &FAR_STEPS, 17, 8);
    let died = die_and_lose_power::<WholeHeap>(&FAR_STEPS, place(18), Bug::None);
    assert!(died.as_ref().is_ok_and(|&steps| steps > 15), "{died:?}");
}

#[test]
fn a_step_in_a_later_puddle_that_is_not_flushed_is_found() {
    let bug = Bug::Logged(LoggedBug::FarStepNotFlushed);
    caught(bug, LoggedWhen::Running, &FAR_STEPS, Power, 19);
}

#[test]
fn transactions_over_sub_heaps_commit_and_abort() {
    visit("transactions", &ACROSS, 3, 64);
}

#[test]
fn what_the_next_process_saw_of_a_heap_survives_a_loss_of_power() {
    for (number, script) in [(4, &MADE), (5, &MORE_DATA), (6, &ACROSS)] {
        match die_and_lose_power::<WholeHeap>(script, place(number), Bug::None) {
            Ok(steps) => assert!(steps > 20, "{steps} steps"),
            Err(what) => panic!("{what}"),
        }
    }
}

#[track_caller]
fn caught(bug: Bug, when: LoggedWhen, script: &Script, level: Durability, number: usize) {
    let every = if when == LoggedWhen::Recovering { 4 } else { 0 };
    match run::<WholeHeap>(script, level, place(number), (bug, when), every) {
        Err(what) => println!("{bug:?}: found: {}", what.chars().take(300).collect::<String>()),
        Ok(tally) => panic!("{bug:?} was not found: {tally:?}"),
    }
}

#[test]
fn a_sub_heap_that_is_named_before_it_is_made_is_found() {
    caught(Bug::Logged(LoggedBug::SubHeapNamedEarly), LoggedWhen::Running, &MADE, Process, 10);
}

#[test]
fn metadata_of_a_broken_off_sub_heap_that_count_as_new_are_found() {
    caught(Bug::Logged(LoggedBug::SpareBelievedZero), LoggedWhen::Recovering, &MADE, Process, 11);
}

#[test]
fn puddles_that_a_crash_left_and_that_are_forgotten_are_found() {
    caught(
        Bug::Logged(LoggedBug::SparesForgotten),
        LoggedWhen::Recovering,
        &MORE_DATA,
        Process,
        12,
    );
}

#[test]
fn lanes_that_decide_for_themselves_are_found() {
    caught(Bug::Logged(LoggedBug::LinkIgnored), LoggedWhen::Recovering, &ACROSS, Process, 13);
}

#[test]
fn a_deciding_lane_that_ends_first_is_found() {
    caught(
        Bug::Logged(LoggedBug::DecidingLaneEndedFirst),
        LoggedWhen::Running,
        &ACROSS,
        Process,
        14,
    );
}

#[test]
fn a_deciding_lane_that_is_not_flushed_is_found() {
    caught(Bug::LaneNotFlushed, LoggedWhen::Running, &ACROSS, Power, 15);
}

#[test]
fn a_part_whose_blocks_have_records_later_is_found() {
    caught(Bug::Logged(LoggedBug::PartEntryApart), LoggedWhen::Running, &MORE_DATA, Process, 16);
}
