//! Transactions on a wear heap, by the logs of a store, crashed at every moment at both levels; and
//! how often their lines are written.

use Do::{Alloc, Free, Pass, Transaction};
use TransactionEnd::{Abort, Commit, WithLast};
use cenote_crashtest::logged::{Do, LoggedWhen, Script, TransactionEnd, WAIT_MS};
use cenote_crashtest::rig::window_base;
use cenote_crashtest::tier::number_of_change;
use cenote_crashtest::wear_transactions::{lines_in_pool, run_in_pool};
use cenote_medium::Durability::{self, Power, Process};
use cenote_medium::planted::{Bug, WearBug};

/// Places in the address space that no other file of these tests has.
fn place(number: usize) -> u64 {
    window_base(8500 + number)
}

/// Allocations and frees, committed and aborted, at the open end.
const NEW: Script = Script {
    before: &[Alloc(64), Alloc(200)],
    crashed: &[
        Transaction(&[100], &[], Commit),
        Transaction(&[], &[0], Commit),
        Transaction(&[64, 300], &[0], Abort),
        Transaction(&[64], &[0], Commit),
    ],
};
/// The same in free blocks, from their start and inside; a block that its own transaction frees.
const REUSED: Script = Script {
    before: &[Alloc(1000), Alloc(900), Alloc(64), Free(0), Free(0), Pass(200)],
    crashed: &[
        Transaction(&[100, 512], &[], Commit),
        Transaction(&[64], &[], Abort),
        Transaction(&[64], &[0], WithLast),
        Transaction(&[], &[0, 1], Commit),
    ],
};

fn visit(script: &Script, level: Durability, number: usize) {
    let none = (Bug::None, LoggedWhen::Running);
    let tally = run_in_pool(script, level, place(number), none, 24);
    println!("{level:?}: {:?}", tally.unwrap_or_else(|what| panic!("{level:?}: {what}")));
}

#[test]
fn transactions_are_whole_after_the_death_of_a_process() {
    visit(&NEW, Process, 0);
    visit(&REUSED, Process, 1);
}

#[test]
fn transactions_are_whole_after_a_loss_of_power() {
    visit(&NEW, Power, 2);
    visit(&REUSED, Power, 3);
}

#[test]
fn no_line_is_written_more_than_twice_by_transactions_while_a_block_waits() {
    for (number, level) in [(4, Process), (5, Power)] {
        let seed = number_of_change("CENOTE_CRASH_PART") + number as u64;
        let times = lines_in_pool(level, place(number), seed, 600);
        let times = times.unwrap_or_else(|what| panic!("{what}"));
        let writes: usize = times.iter().map(Vec::len).sum();
        println!("{level:?}: {writes} writes of {} lines", times.len());
        assert!(writes > 400, "the medium counts");
        let close = |of: &[u64]| of[2] - of[0] <= u64::from(WAIT_MS);
        let often = times.iter().find(|times| times.windows(3).any(close));
        assert_eq!(often, None, "seed {seed}");
    }
}

#[track_caller]
fn caught(bug: WearBug, script: &Script, level: Durability, number: usize) {
    let with = |bug| run_in_pool(script, level, place(number), (bug, LoggedWhen::Running), 0);
    with(Bug::None).expect("without the bug nothing is found");
    match with(Bug::Wear(bug)) {
        Err(what) => println!("{bug:?}: found: {}", what.chars().take(300).collect::<String>()),
        Ok(tally) => panic!("{bug:?} was not found: {tally:?}"),
    }
}

#[test]
fn headers_before_their_entries_are_found() {
    caught(WearBug::EntryNotFenced, &NEW, Power, 6);
}

#[test]
fn blocks_that_are_given_back_in_memory_alone_are_found() {
    caught(WearBug::ReturnNotFlushed, &NEW, Power, 7);
}
