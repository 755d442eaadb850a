//! Every step of the wear heap is crashed at every moment, at both levels, and so is its scan; no
//! line is written more than twice in the time that a freed block waits; and each step of the
//! protocol that is left out is found.

use Do::{Aligned, Alloc, Fill, Free, FreeAll, Many, Pass};
use cenote_crashtest::logged::{
    Do, LineCounts, LoggedWhen, Script, WholeWear, die_and_lose_power, run,
};
use cenote_crashtest::rig::window_base;
use cenote_crashtest::tier::number_of_change;
use cenote_medium::Durability::{self, Power, Process};
use cenote_medium::planted::{Bug, WearBug, plant};
use cenote_medium::sim::{SimMedium, SimOptions};

/// Places in the address space that no other file of these tests has.
fn place(number: usize) -> u64 {
    window_base(8400 + number)
}

/// The first blocks of a segment and of the next one, its end closed; frees.
const FIRST: Script = Script {
    before: &[],
    crashed: &[Alloc(64), Alloc(1000), Alloc(900), Free(1), Free(0), Alloc(64), Free(0)],
};
/// Blocks that leave something over, from the start of a free block, and merged free blocks.
const SPLIT: Script = Script {
    before: &[Many(6, 200), Free(1), Free(1), Free(1), Pass(200)],
    crashed: &[Alloc(100), Free(0), Alloc(300), Pass(200), Alloc(500), Alloc(64)],
};
/// A block at a multiple of its size: in a free block, and at the open end.
const ALIGNED: Script = Script {
    before: &[Many(4, 400), Free(1), Free(1), Pass(200)],
    crashed: &[Aligned(64, 256), Free(1), Aligned(100, 512), Free(0)],
};
/// A pool that is full, and grows before.
const GROWN: Script = Script {
    before: &[Many(3, 1900), Many(4, 1900)],
    crashed: &[Alloc(1900), Alloc(3000), Alloc(1000), Free(0), Pass(200), Alloc(64)],
};
/// All blocks are free, in whatever order they were, and one takes many of them.
const REUSED: Script = Script {
    before: &[Fill, FreeAll, Pass(200)],
    crashed: &[Alloc(1000), Free(0), Alloc(1500), Alloc(64)],
};

const SCRIPTS: [(&str, Script); 5] = [
    ("first", FIRST),
    ("split", SPLIT),
    ("aligned", ALIGNED),
    ("grown", GROWN),
    ("reused", REUSED),
];

fn visit(name: &str, script: &Script, level: Durability, number: usize) {
    let none = (Bug::None, LoggedWhen::Running);
    match run::<WholeWear>(script, level, place(number), none, 16) {
        Ok(tally) => println!("{name} at {level:?}: {tally:?}"),
        Err(what) => panic!("{name} at {level:?}: {what}"),
    }
}

#[test]
fn every_step_is_crashed_at_level_process() {
    for (number, (name, script)) in SCRIPTS.iter().enumerate() {
        visit(name, script, Process, number);
    }
}

#[test]
fn every_step_is_crashed_at_level_power() {
    for (number, (name, script)) in SCRIPTS.iter().enumerate() {
        visit(name, script, Power, 10 + number);
    }
}

#[test]
fn what_a_process_saw_is_there_after_a_loss_of_power() {
    for (number, (name, script)) in SCRIPTS.iter().enumerate() {
        let died = die_and_lose_power::<WholeWear>(script, place(20 + number), Bug::None);
        println!("{name}: {} deaths", died.unwrap_or_else(|what| panic!("{name}: {what}")));
    }
}

fn counted(level: Durability, number: usize, seed: u64, steps: u32) -> Result<LineCounts, String> {
    let sim = SimMedium::new(SimOptions::new(level));
    LineCounts::of(&sim, place(number), seed, steps)
}

#[test]
fn no_line_is_written_more_than_twice_while_a_block_waits() {
    let steps = if std::env::var_os("CENOTE_CRASH_DEPTH").is_some() { 40_000 } else { 2000 };
    for (number, level) in [(30, Process), (31, Power)] {
        let seed = number_of_change("CENOTE_CRASH_PART") + number as u64;
        let counts = counted(level, number, seed, steps).unwrap_or_else(|what| panic!("{what}"));
        let (lines, writes) = counts.totals();
        println!("{level:?}: {writes} writes of {lines} lines in {steps} steps");
        assert!(writes > steps as usize / 4, "the medium counts");
        assert_eq!(counts.too_often(), [], "seed {seed}");
    }
}

#[test]
fn blocks_that_do_not_wait_are_found() {
    plant(Bug::Wear(WearBug::WaitIgnored));
    let counts = counted(Power, 32, 5, 500);
    plant(Bug::None);
    assert_ne!(counts.expect("a run").too_often(), [], "{:?}", WearBug::WaitIgnored);
}

#[track_caller]
fn caught(bug: WearBug, when: LoggedWhen, script: &Script, level: Durability, number: usize) {
    let every = if when == LoggedWhen::Recovering { 1 } else { 0 };
    match run::<WholeWear>(script, level, place(number), (Bug::Wear(bug), when), every) {
        Err(what) => println!("{bug:?}: found: {}", what.chars().take(300).collect::<String>()),
        Ok(tally) => panic!("{bug:?} was not found: {tally:?}"),
    }
}

#[test]
fn headers_that_are_not_flushed_are_found() {
    caught(WearBug::HeaderNotFlushed, LoggedWhen::Running, &FIRST, Power, 40);
}

#[test]
fn headers_that_change_in_place_are_found() {
    caught(WearBug::HeaderInPlace, LoggedWhen::Running, &FIRST, Process, 41);
}

#[test]
fn what_is_left_over_and_late_is_found() {
    caught(WearBug::RestAfterBlock, LoggedWhen::Running, &SPLIT, Process, 42);
}

#[test]
fn what_is_left_over_and_not_durable_is_found() {
    caught(WearBug::RestNotFenced, LoggedWhen::Running, &SPLIT, Power, 43);
}

#[test]
fn segments_that_are_not_durable_are_found() {
    caught(WearBug::SegmentNotFenced, LoggedWhen::Running, &FIRST, Power, 44);
}

#[test]
fn frees_that_are_not_durable_are_found() {
    caught(WearBug::FreeNotFenced, LoggedWhen::Running, &FIRST, Power, 45);
}
