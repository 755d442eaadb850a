//! Histories of transactions on pools with the logged heap, crashed at every moment, and crashes of
//! their recoveries: the same histories and the same oracle as for the traced heap. Every word that
//! is undecided counts.
//!
//! At level `power` a change visits a quarter of the histories, which follows from the commit.
//! `scripts/histories.sh` visits all.

use crate::pool_histories::{caught, parsed, part, plan, visit};
use cenote::HeapKind;
use cenote_crashtest::explore::ExploreWhen;
use cenote_crashtest::history::{History, Op};
use cenote_crashtest::rig::Strategy;
use cenote_medium::Durability;
use cenote_medium::planted::{Bug, LoggedBug};

const KIND: HeapKind = HeapKind::Logged;

#[test]
fn a_process_may_die_anywhere() {
    for strategy in Strategy::ALL {
        let depth = if strategy == Strategy::LAZY { 3 } else { 2 };
        visit(&plan(KIND, Durability::Process, strategy, History::all(&Op::ALL, depth)));
    }
}

#[test]
fn power_may_fail_anywhere() {
    let mut histories = History::all(&Op::ALL, 2);
    let longer = ["aCa", "aCfC", "afC", "aXa", "gCa", "aaC", "faC", "aCf", "fCa", "fXa"];
    histories.extend(parsed(&longer));
    visit(&plan(KIND, Durability::Power, Strategy::LAZY, part(histories, 0, 4)));
}

#[test]
fn power_may_fail_anywhere_whatever_way_a_transaction_commits() {
    for (number, strategy) in Strategy::ALL[1..].iter().enumerate() {
        let histories = part(parsed(&["aC", "fC", "aX", "aCfC"]), number, 4);
        visit(&plan(KIND, Durability::Power, *strategy, histories));
    }
}

#[track_caller]
fn finds(bug: LoggedBug, when: ExploreWhen, level: Durability, histories: &[&str]) {
    caught((KIND, Bug::Logged(bug)), when, level, histories);
}

#[test]
fn a_ticket_that_is_not_flushed() {
    finds(
        LoggedBug::TicketNotFlushed,
        ExploreWhen::Running,
        Durability::Power,
        &["aCfC", "faC", "aCa"],
    );
}

#[test]
fn a_ticket_that_says_allocated_before_the_commit() {
    finds(LoggedBug::TicketMarkedEarly, ExploreWhen::Running, Durability::Power, &["a", "aa"]);
}

#[test]
fn an_entry_that_stays_when_its_block_is_free() {
    finds(LoggedBug::TicketKeepsEntry, ExploreWhen::Running, Durability::Process, &["fCa", "fCaC"]);
}

#[test]
fn an_opener_that_frees_nothing() {
    finds(
        LoggedBug::TicketNotRecovered,
        ExploreWhen::Recovering,
        Durability::Process,
        &["a", "aa"],
    );
}

#[test]
fn a_ticket_that_is_used_again_before_its_log_is_durably_finished() {
    finds(LoggedBug::LazyTicket, ExploreWhen::Running, Durability::Power, &["aCa"]);
}
