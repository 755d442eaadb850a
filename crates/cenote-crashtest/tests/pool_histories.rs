//! What the tests of histories of transactions share, on pools whose heaps are not traced. Every
//! word that is undecided counts.

use cenote::HeapKind;
use cenote_crashtest::explore::{ExplorePlan, ExploreTally, ExploreWhen, Recoveries, run};
use cenote_crashtest::history::History;
use cenote_crashtest::rig::Strategy;
use cenote_crashtest::tier::number_of_change;
use cenote_crashtest::units::{Grain, Reach};
use cenote_medium::Durability;
use cenote_medium::planted::Bug;

pub(crate) fn plan(
    heap: HeapKind,
    level: Durability,
    strategy: Strategy,
    histories: Vec<History>,
) -> ExplorePlan {
    ExplorePlan {
        heap,
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
pub(crate) fn visit(plan: &ExplorePlan) -> ExploreTally {
    let (tally, violation) = run(plan);
    println!("{} level, {}: {tally}", plan.level, plan.strategy.name);
    if let Some(violation) = violation {
        panic!("{violation}");
    }
    assert!(tally.histories == plan.histories.len() as u64 && tally.images > 0);
    tally
}

pub(crate) fn parsed(histories: &[&str]) -> Vec<History> {
    histories.iter().map(|text| History::parse(text)).collect()
}

/// One of so many parts, which this change visits, `also` parts further; all if
/// `CENOTE_CRASH_DEPTH` is set. `CENOTE_CRASH_PART` repeats the run of another change.
pub(crate) fn part(histories: Vec<History>, also: usize, parts: usize) -> Vec<History> {
    if std::env::var_os("CENOTE_CRASH_DEPTH").is_some() {
        return histories;
    }
    let part = number_of_change("CENOTE_CRASH_PART") as usize;
    println!("CENOTE_CRASH_PART={part} repeats this run");
    histories.into_iter().skip((part + also) % parts).step_by(parts).collect()
}

/// With the bug some history fails, and without it none.
#[track_caller]
pub(crate) fn caught(
    (heap, bug): (HeapKind, Bug),
    when: ExploreWhen,
    level: Durability,
    histories: &[&str],
) {
    let with = |bug: Bug| ExplorePlan {
        bug: (bug, when),
        all_operations: true,
        ..plan(heap, level, Strategy::LAZY, parsed(histories))
    };
    let (tally, violation) = run(&with(bug));
    let Some(violation) = violation else { panic!("{bug:?} was not found: {tally}") };
    println!("{bug:?}: {violation}");
    visit(&with(Bug::None));
}
