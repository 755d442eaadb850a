//! Histories of transactions on pools with the wear heap, crashed at every moment, and crashes of
//! their recoveries: the same histories and the same oracle as for the traced heap. Every word that
//! is undecided counts.
//!
//! A change visits a part of the histories, which follows from the commit. `scripts/histories.sh`
//! visits all.

use crate::pool_histories::{caught, parsed, part, plan, visit};
use cenote::HeapKind;
use cenote_crashtest::explore::ExploreWhen;
use cenote_crashtest::history::{History, Op};
use cenote_crashtest::rig::Strategy;
use cenote_medium::Durability;
use cenote_medium::planted::{Bug, WearBug};

const KIND: HeapKind = HeapKind::Wear { wait_ms: 0 };

#[test]
fn a_process_may_die_anywhere() {
    for (number, strategy) in Strategy::ALL.into_iter().enumerate() {
        let histories = part(History::all(&Op::ALL, 2), number, 4);
        visit(&plan(KIND, Durability::Process, strategy, histories));
    }
}

#[test]
fn power_may_fail_anywhere() {
    let mut histories = History::all(&Op::ALL, 2);
    let longer = ["aCa", "aCfC", "afC", "aXa", "gCa", "aaC", "faC", "aCf", "fCa", "fXa"];
    histories.extend(parsed(&longer));
    visit(&plan(KIND, Durability::Power, Strategy::LAZY, part(histories, 0, 12)));
}

#[test]
fn power_may_fail_anywhere_whatever_way_a_transaction_commits() {
    for (number, strategy) in Strategy::ALL[1..].iter().enumerate() {
        let histories = part(parsed(&["aC", "fC", "aX", "aCfC"]), number, 4);
        visit(&plan(KIND, Durability::Power, *strategy, histories));
    }
}

#[track_caller]
fn finds(bug: WearBug, level: Durability, histories: &[&str]) {
    caught((KIND, Bug::Wear(bug)), ExploreWhen::Running, level, histories);
}

#[test]
fn a_header_that_is_stored_before_its_entry_is_durable() {
    finds(WearBug::EntryNotFenced, Durability::Power, &["a", "aC"]);
}

#[test]
fn a_block_that_is_given_back_and_not_flushed() {
    finds(WearBug::ReturnNotFlushed, Durability::Power, &["fC", "aX"]);
}
