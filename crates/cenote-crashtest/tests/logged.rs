//! Every step of a sub-heap of the logged heap is crashed at every moment, at both levels, and so
//! is its recovery; and each protocol step that is left out is found.

use Do::{Alloc, Compact, Fill, Free, FreeAll, Small, Transaction};
use cenote_crashtest::logged::{
    Do, LoggedWhen, OneSubHeap, Script, TransactionEnd, die_and_lose_power, run,
};
use cenote_crashtest::rig::window_base;
use cenote_medium::Durability::{self, Power, Process};
use cenote_medium::counters;
use cenote_medium::planted::{Bug, LoggedBug};

/// Places in the address space that no other file of these tests has.
fn place(number: usize) -> u64 {
    window_base(7200 + number)
}

/// Exact allocations, splits of all classes, frees into empty and other lists.
const SINGLES: Script = Script {
    before: &[],
    crashed: &[Alloc(64), Alloc(64), Alloc(1000), Free(1), Free(0), Alloc(64)],
};
/// Free buddies are merged for a request that no block is large enough for.
const MERGED: Script =
    Script { before: &[Fill, FreeAll, Alloc(64), Alloc(64), Free(1)], crashed: &[Alloc(512)] };
/// A record finds no slot: the table grows.
const GROWS: Script = Script { before: &[Do::NearGrowth], crashed: &[Alloc(64), Alloc(64)] };
/// Levels lose all records, and go.
const SHRINKS: Script = Script { before: &[Fill, FreeAll], crashed: &[Compact, Alloc(64)] };
/// Transactions: committed, aborted, ended by their last allocation.
const TRANSACTIONS: Script = Script {
    before: &[Alloc(64), Alloc(128), Alloc(64)],
    crashed: &[
        Transaction(&[64, 300], &[1], TransactionEnd::Commit),
        Transaction(&[64], &[0], TransactionEnd::Abort),
        Transaction(&[64, 64], &[], TransactionEnd::WithLast),
        Transaction(&[], &[0, 1], TransactionEnd::Commit),
        Alloc(64),
    ],
};

/// A slab is made, filled, emptied and given back; transactions have slots of slabs.
const SLABS: Script = Script {
    before: &[Small(16), Small(32)],
    crashed: &[
        Small(32),
        Small(16),
        Free(1),
        Transaction(&[32, 16], &[0], TransactionEnd::Commit),
        Transaction(&[48], &[1], TransactionEnd::Abort),
        Free(0),
        Free(0),
        Free(0),
        Free(0),
        Do::Compact,
        Small(16),
    ],
};
/// A second slab of a kind loses its last slot, and is a free block.
const SLAB_GOES: Script =
    Script { before: &[Do::Many(43, 192)], crashed: &[Free(42), Small(192), Free(0), Small(192)] };

#[track_caller]
fn visit(what: &str, script: &Script, number: usize, every: u64) {
    // At level `process` a moment has one image.
    for (level, every) in [(Power, every), (Process, (every / 8).max(1))] {
        match run::<OneSubHeap>(
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
fn blocks_are_allocated_split_and_freed() {
    visit("singles", &SINGLES, 0, 16);
}

#[test]
fn free_blocks_are_merged() {
    visit("merges", &MERGED, 1, 64);
}

#[test]
fn the_table_grows() {
    visit("growth", &GROWS, 2, 2);
}

#[test]
fn the_table_shrinks() {
    visit("removal", &SHRINKS, 3, 64);
}

#[test]
fn transactions_commit_and_abort() {
    visit("transactions", &TRANSACTIONS, 4, 32);
}

#[test]
fn slabs_are_made_filled_and_given_back() {
    visit("slabs", &SLABS, 8, 32);
    visit("slab goes", &SLAB_GOES, 9, 2);
}

#[test]
fn what_the_next_process_saw_survives_a_loss_of_power() {
    for (number, script) in [(5, &SINGLES), (6, &TRANSACTIONS), (27, &SLABS)] {
        match die_and_lose_power::<OneSubHeap>(script, place(number), Bug::None) {
            Ok(steps) => assert!(steps > 20, "{steps} steps"),
            Err(what) => panic!("{what}"),
        }
    }
}

#[test]
fn a_change_that_recovery_does_not_make_durable_is_found() {
    let found = die_and_lose_power::<OneSubHeap>(&TRANSACTIONS, place(7), Bug::SealNotSettled);
    println!("{:?}: found: {}", Bug::SealNotSettled, found.expect_err("the bug"));
}

/// Slots are allocated and freed in place, one after the other; slabs and transactions between.
const STEPS: Script = Script {
    before: &[Small(16), Small(32)],
    crashed: &[
        Small(32),
        Small(32),
        Free(1),
        Free(1),
        Small(16),
        Transaction(&[16], &[0, 1], TransactionEnd::Commit),
        Small(32),
    ],
};

#[test]
fn slots_are_allocated_and_freed_in_place() {
    visit("steps", &STEPS, 28, 4);
    let died = die_and_lose_power::<OneSubHeap>(&STEPS, place(29), Bug::None);
    assert!(died.as_ref().is_ok_and(|&steps| steps > 20), "{died:?}");
}

#[test]
fn a_step_that_is_not_flushed_is_found() {
    caught(Bug::Logged(LoggedBug::StepNotFlushed), LoggedWhen::Running, &STEPS, Power, 30);
}

#[test]
fn a_step_over_the_seal_of_the_last_change_is_found() {
    caught(Bug::Logged(LoggedBug::StepOverSeal), LoggedWhen::Running, &STEPS, Power, 31);
}

#[test]
fn a_step_before_the_log_is_durably_closed_is_found() {
    caught(Bug::Logged(LoggedBug::ClosingNotFenced), LoggedWhen::Running, &STEPS, Power, 32);
}

#[test]
fn a_change_that_is_told_before_it_is_durable_is_found() {
    caught(Bug::Logged(LoggedBug::ChangeToldEarly), LoggedWhen::Running, &SINGLES, Power, 34);
}

#[test]
fn a_step_that_recovery_does_not_make_durable_is_found() {
    let bug = Bug::Logged(LoggedBug::StepNotSettled);
    let found = die_and_lose_power::<OneSubHeap>(&STEPS, place(33), bug);
    println!("{bug:?}: found: {}", found.expect_err("the bug"));
}

#[test]
fn no_flush_and_no_fence_is_executed_at_level_process() {
    let before = counters::snapshot();
    visit_once(&TRANSACTIONS, Process, 8);
    assert_eq!(counters::snapshot() - before, counters::Counts::default());
    visit_once(&TRANSACTIONS, Power, 8);
    assert!(counters::snapshot() - before != counters::Counts::default());
}

fn visit_once(script: &Script, level: Durability, number: usize) {
    if let Err(what) =
        run::<OneSubHeap>(script, level, place(number), (Bug::None, LoggedWhen::Running), 0)
    {
        panic!("{what}");
    }
}

#[track_caller]
fn caught(bug: Bug, when: LoggedWhen, script: &Script, level: Durability, number: usize) {
    let every = if when == LoggedWhen::Recovering { 4 } else { 0 };
    match run::<OneSubHeap>(script, level, place(number), (bug, when), every) {
        Err(what) => println!("{bug:?}: found: {}", what.chars().take(300).collect::<String>()),
        Ok(tally) => panic!("{bug:?} was not found: {tally:?}"),
    }
}

#[test]
fn cells_that_change_before_their_record_is_durable_are_found() {
    caught(Bug::UndoRecordNotFenced, LoggedWhen::Running, &SINGLES, Power, 10);
}

#[test]
fn cells_that_are_not_flushed_are_found() {
    caught(Bug::CellsNotFlushed, LoggedWhen::Running, &SINGLES, Power, 11);
}

#[test]
fn a_seal_before_the_cells_is_found() {
    caught(Bug::SealedEarly, LoggedWhen::Running, &SINGLES, Process, 12);
}

#[test]
fn records_in_one_half_are_found() {
    caught(Bug::UndoHalvesNotSwapped, LoggedWhen::Running, &SINGLES, Power, 13);
}

#[test]
fn a_seal_that_is_believed_is_found() {
    caught(Bug::ChangeSealBelieved, LoggedWhen::Recovering, &SINGLES, Power, 14);
}

#[test]
fn a_change_that_is_not_undone_is_found() {
    caught(Bug::ChangeNotUndone, LoggedWhen::Recovering, &SINGLES, Process, 15);
}

#[test]
fn an_undo_that_is_not_fenced_is_found() {
    caught(Bug::UndoneNotFenced, LoggedWhen::Recovering, &SINGLES, Power, 16);
}

#[test]
fn a_record_that_is_believed_without_its_checksum_is_found() {
    caught(Bug::UndoCheckIgnored, LoggedWhen::Recovering, &SINGLES, Power, 17);
}

#[test]
fn a_level_without_space_is_found() {
    caught(Bug::LevelNotEnsured, LoggedWhen::Running, &GROWS, Process, 18);
}

#[test]
fn a_level_that_is_given_back_early_is_found() {
    caught(Bug::LevelPunchedEarly, LoggedWhen::Running, &SHRINKS, Process, 19);
}

#[test]
fn a_split_that_forgets_a_part_is_found() {
    caught(Bug::SplitForgetsRest, LoggedWhen::Running, &SINGLES, Process, 20);
}

#[test]
fn a_merge_with_an_allocated_buddy_is_found() {
    caught(Bug::BuddyNotLookedAt, LoggedWhen::Running, &MERGED, Process, 21);
}

#[test]
fn an_entry_that_is_made_after_its_block_is_found() {
    caught(Bug::MicroEntryApart, LoggedWhen::Running, &TRANSACTIONS, Process, 22);
}

#[test]
fn a_lane_that_is_not_flushed_is_found() {
    caught(Bug::LaneNotFlushed, LoggedWhen::Running, &TRANSACTIONS, Power, 23);
}

#[test]
fn a_lane_that_ends_before_its_blocks_are_freed_is_found() {
    caught(Bug::LaneEndedEarly, LoggedWhen::Running, &TRANSACTIONS, Process, 24);
}

#[test]
fn frees_before_their_commit_are_found() {
    caught(Bug::FreedBeforeCommit, LoggedWhen::Running, &TRANSACTIONS, Process, 25);
}

#[test]
fn a_lane_that_is_not_recovered_is_found() {
    caught(Bug::LaneNotRecovered, LoggedWhen::Recovering, &TRANSACTIONS, Process, 26);
}
