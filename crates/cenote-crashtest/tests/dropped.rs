//! Every flush, fence and stream of representative transactions is there for a reason: leave any one out, and a crash is found after which something
//! does not hold. What can be left out without harm *in these histories* is listed with the reason why it is executed all the same; one more, or one
//! less, fails the test.

use FaultPoint::{Fence, Flush, Stream};
use cenote_crashtest::explore::{Plan, When, run};
use cenote_crashtest::history::History;
use cenote_crashtest::rig::Strategy;
use cenote_crashtest::units::{Grain, Reach};
use cenote_medium::Durability;
use cenote_medium::planted::Bug;
use cenote_medium::sim::{Fault, FaultEffect, FaultPoint};

/// Numbers of the calls of one kind that can be dropped without a violation, and how many calls there are.
fn harmless(strategy: Strategy, history: &str, point: FaultPoint) -> (Vec<u64>, u64) {
    let plan = |fault| Plan {
        level: Durability::Power,
        strategy,
        histories: vec![History::parse(history)],
        reach: vec![(usize::MAX, Reach { grain: Grain::Grouped, exhaustive: 8, samples: 8 })],
        recovery_depth: 0,
        recovery_every: 0,
        thorough_every: 0,
        bug: (Bug::None, When::Both),
        fault,
        all_operations: true,
        threads: 1,
    };
    let (_, violation) = run(&plan(None));
    assert!(
        violation.is_none(),
        "without a fault: {}",
        violation.map_or_else(String::new, |v| v.to_string())
    );
    let mut out = Vec::new();
    for skip in 0.. {
        let (tally, violation) = run(&plan(Some(Fault::once(point, skip, FaultEffect::Drop))));
        match violation {
            Some(violation) => {
                let text = violation.to_string();
                println!("{history}, {}: {point:?} {skip}: {:.160}", strategy.name, text.replace('\n', " "));
            }
            None if tally.fault_hits == 0 => return (out, skip),
            None => out.push(skip),
        }
    }
    unreachable!("the loop ends when no call is left")
}

/// `expected`: the calls that are harmless, by kind.
#[track_caller]
fn each_is_needed(strategy: Strategy, history: &str, expected: [&[u64]; 3]) {
    let mut found = Vec::new();
    for (point, expected) in [Fence, Flush, Stream].into_iter().zip(expected) {
        let (harmless, calls) = harmless(strategy, history, point);
        println!("{history}, {}: of {calls} calls of {point:?} harmless: {harmless:?}", strategy.name);
        found.push((point, harmless, expected));
    }
    for (point, harmless, expected) in found {
        assert_eq!(harmless, expected, "{history}, {}, {point:?}", strategy.name);
    }
}

#[test]
fn sealed_and_lazily_finished() {
    each_is_needed(Strategy::LAZY, "asCsCfCp", [&[], &[], &[]]);
}

#[test]
fn marked_with_two_logs() {
    each_is_needed(Strategy::MARKED, "sCsCaCsCp", [&[], &[], &[]]);
}

#[test]
fn deferred() {
    each_is_needed(Strategy::REDO, "sCsCp", [&[], &[], &[]]);
}

#[test]
fn deferred_and_in_place() {
    each_is_needed(Strategy::HYBRID, "sCsCp", [&[], &[], &[]]);
}

#[test]
fn aborted() {
    each_is_needed(Strategy::LAZY, "asXpC", [&[], &[], &[]]);
}

#[test]
fn aborted_with_two_logs() {
    each_is_needed(Strategy::MARKED, "pCsXsC", [&[], &[], &[]]);
}

#[test]
fn spanning() {
    each_is_needed(Strategy::SPANNING, "sCsCp", [&[], &[], &[]]);
}

#[test]
fn growing() {
    each_is_needed(Strategy::LAZY, "gCp", [&[], &[], &[]]);
}
