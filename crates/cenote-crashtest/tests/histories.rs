//! After any crash of any short history, the store opens and holds what was acknowledged: all of a transaction or nothing of it.
//!
//! What is visited is printed. `CENOTE_CRASH_DEPTH=6` visits every history of up to 6 operations of the full alphabet in every strategy (hours);
//! without it, histories of the full alphabet are exhaustive to the depth that is printed, and those beyond are sampled by seed.

use cenote_crashtest::explore::{Plan, Tally, When, run};
use cenote_crashtest::history::{History, Op};
use cenote_crashtest::rig::Strategy;
use cenote_crashtest::units::{Grain, Reach};
use cenote_medium::Durability;
use cenote_medium::planted::Bug;

/// Every subset of up to 12 words.
const WORDS: Reach = Reach { grain: Grain::Words, exhaustive: 12, samples: 64 };
/// Every combination of up to 12 groups, 4,096 at most; samples by words.
const GROUPS: Reach = Reach { grain: Grain::Grouped, exhaustive: 12, samples: 8 };
/// Every combination of few groups; of more, each choice of each group with all others lost and with all others surviving.
const SPARSE: Reach = Reach { grain: Grain::Grouped, exhaustive: 5, samples: 4 };

fn plan(level: Durability, strategy: Strategy, histories: Vec<History>) -> Plan {
    Plan {
        level,
        strategy,
        histories,
        reach: vec![(usize::MAX, SPARSE)],
        recovery_depth: 0,
        recovery_every: 400,
        thorough_every: 64,
        again_every: 1500,
        bug: (Bug::None, When::Both),
        fault: None,
        all_operations: false,
        threads: std::thread::available_parallelism().map_or(2, usize::from).min(4),
    }
}

fn depth_asked_for() -> Option<usize> {
    std::env::var("CENOTE_CRASH_DEPTH").ok()?.parse().ok()
}

/// All histories of the full alphabet up to `exhaustive` operations, of the core alphabet up to `core`, and of those of the full alphabet
/// up to 6, one in `every`.
fn histories(exhaustive: usize, core: usize, every: usize, seed: usize) -> (Vec<History>, String) {
    let exhaustive = depth_asked_for().unwrap_or(exhaustive);
    let mut out = History::all(&Op::ALL, exhaustive);
    let mut text =
        format!("all {} histories of up to {exhaustive} operations of the full alphabet", out.len());
    if core > exhaustive {
        let more: Vec<_> =
            History::all(&Op::CORE, core).into_iter().filter(|h| h.0.len() > exhaustive).collect();
        text +=
            &format!(", all {} of {} to {core} of one pool that does not grow", more.len(), exhaustive + 1);
        out.extend(more);
    }
    if exhaustive < 6 && every > 0 {
        let longer = History::all(&Op::ALL, 6).into_iter().filter(|h| h.0.len() > exhaustive);
        let sample: Vec<_> = longer.skip(seed % every).step_by(every).collect();
        text += &format!(", {} sampled of up to 6", sample.len());
        out.extend(sample);
    }
    (out, text)
}

fn visit(what: &str, plan: &Plan) -> Tally {
    let (tally, violation) = run(plan);
    println!("{} level, {}: {what}: {tally}", plan.level, plan.strategy.name);
    if let Some(violation) = violation {
        panic!("{violation}");
    }
    assert!(tally.histories == plan.histories.len() as u64 && tally.images > 0);
    tally
}

/// Every history of up to 6 operations with one log; up to 5 in the other strategies.
#[test]
fn a_process_may_die_anywhere() {
    for strategy in Strategy::ALL {
        let (exhaustive, every) = if strategy == Strategy::LAZY { (6, 0) } else { (4, 20) };
        let (histories, text) = histories(exhaustive, 5, every, 7);
        visit(
            &text,
            &Plan { recovery_depth: 3, recovery_every: 50, ..plan(Durability::Process, strategy, histories) },
        );
    }
}

/// Short histories word by word: nothing about logs, marks or checksums is taken for granted, and every recovery is crashed.
#[test]
fn power_may_fail_anywhere_with_any_words_lost() {
    let mut sum = Tally::default();
    for strategy in Strategy::ALL {
        let depth = if strategy == Strategy::LAZY { 2 } else { 1 };
        let (histories, text) = histories(depth, 0, 0, 0);
        let reach = vec![(usize::MAX, WORDS)];
        let plan = plan(Durability::Power, strategy, histories);
        sum.add(&visit(&text, &Plan { reach, recovery_every: 40, ..plan }));
    }
    println!("power level, by words: {sum}");
}

/// Longer histories, with one log and undo: the commit that is sealed and finished lazily.
#[test]
fn power_may_fail_anywhere_in_lazily_finished_transactions() {
    let (histories, text) = histories(3, 6, 400, 1);
    let reach = vec![(3, GROUPS), (usize::MAX, SPARSE)];
    visit(&text, &Plan { reach, ..plan(Durability::Power, Strategy::LAZY, histories) });
}

/// Longer histories in the other strategies.
#[test]
fn power_may_fail_anywhere_whatever_way_a_transaction_commits() {
    let mut sum = Tally::default();
    for (number, strategy) in Strategy::ALL.into_iter().skip(1).enumerate() {
        let (histories, text) = histories(2, 4, 1000, number * 31);
        let reach = vec![(2, GROUPS), (usize::MAX, SPARSE)];
        sum.add(&visit(&text, &Plan { reach, ..plan(Durability::Power, strategy, histories) }));
    }
    println!("power level, other strategies: {sum}");
}
