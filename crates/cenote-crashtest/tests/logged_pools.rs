//! Histories of transactions on pools with the logged heap, crashed at every moment, and crashes of
//! their recoveries: the same histories and the same oracle as for the traced heap. Every word that
//! is undecided counts.
//!
//! At level `power` a change visits a quarter of the histories, which follows from the commit.
//! `scripts/histories.sh` visits all.

use cenote::HeapKind;
use cenote_crashtest::explore::{ExplorePlan, ExploreTally, ExploreWhen, Recoveries, run};
use cenote_crashtest::history::{History, Op};
use cenote_crashtest::rig::Strategy;
use cenote_crashtest::tier::number_of_change;
use cenote_crashtest::units::{Grain, Reach};
use cenote_medium::Durability;
use cenote_medium::planted::{Bug, LoggedBug};

fn plan(level: Durability, strategy: Strategy, histories: Vec<History>) -> ExplorePlan {
    ExplorePlan {
        heap: HeapKind::Logged,
        level,
        strategy,
        histories,
        reach: vec![(usize::MAX, Reach { grain: Grain::Words, exhaustive: 8, samples: 12 })],
        recoveries: Recoveries::Shapes,
        merged_every: 50,
        thorough_every: 64,
        again_every: 2000,
        bug: (Bug::None, ExploreWhen::Both),
        fault: None,
        all_operations: false,
        threads: 1,
    }
}

#[track_caller]
fn visit(plan: &ExplorePlan) -> ExploreTally {
    let (tally, violation) = run(plan);
    println!("{} level, {}: {tally}", plan.level, plan.strategy.name);
    if let Some(violation) = violation {
        panic!("{violation}");
    }
    assert!(tally.histories == plan.histories.len() as u64 && tally.images > 0);
    tally
}

fn parsed(histories: &[&str]) -> Vec<History> {
    histories.iter().map(|text| History::parse(text)).collect()
}

/// The quarter that this change visits, `also` quarters further; all if `CENOTE_CRASH_DEPTH` is
/// set.
/// `CENOTE_CRASH_PART` repeats the run of another change.
fn quarter(histories: Vec<History>, also: usize) -> Vec<History> {
    if std::env::var_os("CENOTE_CRASH_DEPTH").is_some() {
        return histories;
    }
    let part = number_of_change("CENOTE_CRASH_PART") as usize;
    println!("CENOTE_CRASH_PART={part} repeats this run");
    histories.into_iter().skip((part + also) % 4).step_by(4).collect()
}

#[test]
fn a_process_may_die_anywhere() {
    for strategy in Strategy::ALL {
        let depth = if strategy == Strategy::LAZY { 3 } else { 2 };
        visit(&plan(Durability::Process, strategy, History::all(&Op::ALL, depth)));
    }
}

#[test]
fn power_may_fail_anywhere() {
    let mut histories = History::all(&Op::ALL, 2);
    let longer = ["aCa", "aCfC", "afC", "aXa", "gCa", "aaC", "faC", "aCf", "fCa", "fXa"];
    histories.extend(parsed(&longer));
    visit(&plan(Durability::Power, Strategy::LAZY, quarter(histories, 0)));
}

#[test]
fn power_may_fail_anywhere_whatever_way_a_transaction_commits() {
    for (number, strategy) in Strategy::ALL[1..].iter().enumerate() {
        let histories = quarter(parsed(&["aC", "fC", "aX", "aCfC"]), number);
        visit(&plan(Durability::Power, *strategy, histories));
    }
}

/// With the bug some history fails, and without it none.
#[track_caller]
fn caught(bug: LoggedBug, when: ExploreWhen, level: Durability, histories: &[&str]) {
    let with = |bug: Bug| ExplorePlan {
        bug: (bug, when),
        all_operations: true,
        ..plan(level, Strategy::LAZY, parsed(histories))
    };
    let (tally, violation) = run(&with(Bug::Logged(bug)));
    let Some(violation) = violation else { panic!("{bug:?} was not found: {tally}") };
    println!("{bug:?}: {violation}");
    visit(&with(Bug::None));
}

#[test]
fn a_ticket_that_is_not_flushed() {
    caught(
        LoggedBug::TicketNotFlushed,
        ExploreWhen::Running,
        Durability::Power,
        &["aCfC", "faC", "aCa"],
    );
}

#[test]
fn a_ticket_that_says_allocated_before_the_commit() {
    caught(LoggedBug::TicketMarkedEarly, ExploreWhen::Running, Durability::Power, &["a", "aa"]);
}

#[test]
fn an_entry_that_stays_when_its_block_is_free() {
    caught(
        LoggedBug::TicketKeepsEntry,
        ExploreWhen::Running,
        Durability::Process,
        &["fCa", "fCaC"],
    );
}

#[test]
fn an_opener_that_frees_nothing() {
    caught(
        LoggedBug::TicketNotRecovered,
        ExploreWhen::Recovering,
        Durability::Process,
        &["a", "aa"],
    );
}

#[test]
fn a_ticket_that_is_used_again_before_its_log_is_durably_finished() {
    caught(LoggedBug::LazyTicket, ExploreWhen::Running, Durability::Power, &["aCa"]);
}
