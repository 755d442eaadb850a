//! Every flush, fence and stream of representative transactions is there for a reason: leave any
//! one out, and a crash is found after which something does not hold. What can be left out without
//! harm *in these histories* is listed with the reason why it is executed all the same; one more,
//! or one less, fails the test.
//!
//! A change drops every third call; which ones follows from the commit.
//! `scripts/histories.sh` drops each.

use FaultPoint::{Fence, Flush, Stream};
use cenote::HeapKind;
use cenote_crashtest::explore::{ExplorePlan, ExploreWhen, Recoveries, run};
use cenote_crashtest::history::History;
use cenote_crashtest::rig::Strategy;
use cenote_crashtest::tier::number_of_change;
use cenote_crashtest::units::{Grain, Reach};
use cenote_medium::Durability;
use cenote_medium::planted::Bug;
use cenote_medium::sim::{Fault, FaultEffect, FaultPoint};
use std::sync::OnceLock;

/// Whether this change drops the call with a number; each if `CENOTE_CRASH_DEPTH` is set.
/// `CENOTE_CRASH_PART` repeats the run of another change.
fn is_dropped(call: u64) -> bool {
    static CHANGE: OnceLock<u64> = OnceLock::new();
    let change = CHANGE.get_or_init(|| number_of_change("CENOTE_CRASH_PART"));
    std::env::var_os("CENOTE_CRASH_DEPTH").is_some() || (call + change).is_multiple_of(3)
}

/// Numbers of the calls of one kind that can be dropped without a violation, and about how many
/// calls there are.
fn harmless(strategy: Strategy, history: &str, point: FaultPoint) -> (Vec<u64>, u64) {
    let plan = |fault| ExplorePlan {
        heap: HeapKind::Traced,
        level: Durability::Power,
        strategy,
        histories: vec![History::parse(history)],
        reach: vec![(usize::MAX, Reach { grain: Grain::Classes, exhaustive: 8, samples: 8 })],
        recoveries: Recoveries::None,
        merged_every: 0,
        thorough_every: 0,
        again_every: 0,
        bug: (Bug::None, ExploreWhen::Both),
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
    for skip in (0..).filter(|skip| is_dropped(*skip)) {
        let (tally, violation) = run(&plan(Some(Fault::once(point, skip, FaultEffect::Drop))));
        match violation {
            Some(violation) => {
                let text = violation.to_string();
                println!(
                    "{history}, {}: {point:?} {skip}: {:.160}",
                    strategy.name,
                    text.replace('\n', " ")
                );
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
        println!(
            "{history}, {}: of about {calls} calls of {point:?} harmless: {harmless:?}",
            strategy.name
        );
        found.push((point, harmless, expected));
    }
    for (point, harmless, expected) in found {
        let expected: Vec<u64> =
            expected.iter().copied().filter(|call| is_dropped(*call)).collect();
        assert_eq!(harmless, expected, "{history}, {}, {point:?}", strategy.name);
    }
}

#[test]
fn sealed_and_lazily_finished() {
    each_is_needed(Strategy::LAZY, "asCsCfCp", [&[], &[], &[]]);
}

#[test]
fn deferred() {
    each_is_needed(Strategy::REDO, "sCsCp", [&[], &[], &[]]);
}

#[test]
fn deferred_and_in_place() {
    each_is_needed(Strategy::HYBRID, "sCsCp", [&[], &[], &[]]);
}

/// Fence 5: the second log joins the group; the fence of the next step is in the same thread and
/// comes before anything rests on this one. It makes what is durable on return depend on nothing
/// but the call, and is executed once a thread. Flush 4: the state of the second log's entry in the
/// log space, which its checksum makes up for: it shows damage of the medium. Flush 9: the range
/// word of the first log, which the joining one has flushed already; its own log cannot know.
#[test]
fn marked_with_two_logs() {
    each_is_needed(Strategy::MARKED, "sCsCaCsCp", [&[5], &[4, 9], &[]]);
}

/// Fence 4: the range that ends the abort. With one log it could be left to the next transaction,
/// as after a commit; aborts are too rare for that to be worth its argument. With two logs it is
/// needed: see below. Flush 1: two of the ranges that are put back lie on one line.
#[test]
fn aborted() {
    each_is_needed(Strategy::LAZY, "asXpC", [&[4], &[1], &[]]);
}

/// Fence 4 as 5 above, flush 3 as 4. Flush 4: the first log's range, which joining flushes; its
/// transaction has changed nothing that is changed again. Flush 8: the same range again, by its own
/// log.
#[test]
fn aborted_with_two_logs() {
    each_is_needed(Strategy::MARKED, "pCsXsC", [&[4], &[3, 4, 8], &[]]);
}

/// Fence 2: the formatting of a further segment; the fence of its entry in the log space is in the
/// same thread, and nothing looks at the segment before the log leads to it. Flush 2: the state of
/// that entry, as above. Flushes 3 and 10: the overflow word, which no crash makes necessary: it
/// shows damage of the medium. Stream 16: in the second transaction, old contents that stand in the
/// further segment already, from the first.
#[test]
fn spanning() {
    each_is_needed(Strategy::SPANNING, "sCsCp", [&[2], &[2, 3, 10], &[16]]);
}

/// Fence 0: the new block's descriptor; the fence of the commit is in the same thread. It is needed
/// where another thread takes a block of the same superblock and commits first. Flush 0:
/// descriptors of the new puddle's own metadata, which say nothing that its size does not.
#[test]
fn growing() {
    each_is_needed(Strategy::LAZY, "gCp", [&[0], &[0], &[]]);
}
