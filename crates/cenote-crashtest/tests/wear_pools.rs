//! Histories of transactions on pools with the wear heap, crashed at every moment, and crashes of
//! their recoveries: the same histories and the same oracle as for the traced heap. Every word that
//! is undecided counts.
//!
//! A change visits a part of the histories, which follows from the commit. `scripts/histories.sh`
//! visits all.

use cenote::HeapKind;
use cenote_crashtest::explore::{ExplorePlan, ExploreTally, ExploreWhen, Recoveries, run};
use cenote_crashtest::history::{History, Op};
use cenote_crashtest::rig::Strategy;
use cenote_crashtest::tier::number_of_change;
use cenote_crashtest::units::{Grain, Reach};
use cenote_medium::Durability;
use cenote_medium::planted::{Bug, WearBug};

fn plan(level: Durability, strategy: Strategy, histories: Vec<History>) -> ExplorePlan {
    ExplorePlan {
        heap: HeapKind::Wear { wait_ms: 0 },
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

/// One of so many parts, which this change visits, `also` parts further; all if
/// `CENOTE_CRASH_DEPTH` is set. `CENOTE_CRASH_PART` repeats the run of another change.
fn part(histories: Vec<History>, also: usize, parts: usize) -> Vec<History> {
    if std::env::var_os("CENOTE_CRASH_DEPTH").is_some() {
        return histories;
    }
    let part = number_of_change("CENOTE_CRASH_PART") as usize;
    println!("CENOTE_CRASH_PART={part} repeats this run");
    histories.into_iter().skip((part + also) % parts).step_by(parts).collect()
}

#[test]
fn a_process_may_die_anywhere() {
    for (number, strategy) in Strategy::ALL.into_iter().enumerate() {
        let histories = part(History::all(&Op::ALL, 2), number, 4);
        visit(&plan(Durability::Process, strategy, histories));
    }
}

#[test]
fn power_may_fail_anywhere() {
    let mut histories = History::all(&Op::ALL, 2);
    let longer = ["aCa", "aCfC", "afC", "aXa", "gCa", "aaC", "faC", "aCf", "fCa", "fXa"];
    histories.extend(parsed(&longer));
    visit(&plan(Durability::Power, Strategy::LAZY, part(histories, 0, 12)));
}

#[test]
fn power_may_fail_anywhere_whatever_way_a_transaction_commits() {
    for (number, strategy) in Strategy::ALL[1..].iter().enumerate() {
        let histories = part(parsed(&["aC", "fC", "aX", "aCfC"]), number, 4);
        visit(&plan(Durability::Power, *strategy, histories));
    }
}

/// With the bug some history fails, and without it none.
#[track_caller]
fn caught(bug: WearBug, level: Durability, histories: &[&str]) {
    let with = |bug: Bug| ExplorePlan {
        bug: (bug, ExploreWhen::Running),
        all_operations: true,
        ..plan(level, Strategy::LAZY, parsed(histories))
    };
    let (tally, violation) = run(&with(Bug::Wear(bug)));
    let Some(violation) = violation else { panic!("{bug:?} was not found: {tally}") };
    println!("{bug:?}: {violation}");
    visit(&with(Bug::None));
}

#[test]
fn a_header_that_is_stored_before_its_entry_is_durable() {
    caught(WearBug::EntryNotFenced, Durability::Power, &["a", "aC"]);
}

#[test]
fn a_block_that_is_given_back_and_not_flushed() {
    caught(WearBug::ReturnNotFlushed, Durability::Power, &["fC", "aX"]);
}
