//! After any crash of any short history, the store opens and holds what was acknowledged: all of a
//! transaction or nothing of it.
//!
//! Each test prints what it visits, in two tiers (a table of them is in CONTRIBUTING.md):
//!
//! * Each change: every history up to a depth, a part of those that are one longer, and a sample of
//!   those of up to 6. At level `process` the depth is 4 with one log, which commits sealed and
//!   lazily, and 3 in the other strategies, with half of those of 4. At `power` it is 3 with one
//!   log, with a quarter of those of 4, and 2 in the others, with a twelfth of those of 3. With one
//!   log also all that extend one in 16 of the longest, at `power` one in 64. Word by word, with
//!   one log all of 1 and a quarter of those of 2; in every second other strategy all of 1.
//! * `scripts/histories.sh` (`just histories`): depth 6 with one log at both levels and in all
//!   strategies at level `process`; 4 in the other strategies at `power`.
//!
//! Which parts follows from the commit: changes after each other visit different ones. A test says
//! which, and `CENOTE_CRASH_SIXTEENTH` repeats it. `CENOTE_CRASH_DEPTH` sets the depth
//! of every test here but the one that goes word by word.

use cenote::HeapKind;
use cenote_crashtest::explore::{ExplorePlan, ExploreTally, ExploreWhen, Recoveries, run};
use cenote_crashtest::history::{History, Op};
use cenote_crashtest::rig::Strategy;
use cenote_crashtest::tier::number_of_change;
use cenote_crashtest::units::{Grain, Reach};
use cenote_medium::Durability;
use cenote_medium::planted::Bug;
use std::collections::HashSet;
use std::io::Write as _;

/// Every subset of up to 12 words.
const WORDS: Reach = Reach { grain: Grain::Words, exhaustive: 12, samples: 64 };
/// Every combination of up to 12 units; of more units, 4,096 at most; samples by words.
const CLASSES: Reach = Reach { grain: Grain::Classes, exhaustive: 12, samples: 2 };

fn plan(level: Durability, strategy: Strategy, histories: Vec<History>) -> ExplorePlan {
    ExplorePlan {
        heap: HeapKind::Traced,
        level,
        strategy,
        histories,
        reach: vec![(usize::MAX, CLASSES)],
        recoveries: Recoveries::Shapes,
        merged_every: 100,
        thorough_every: 256,
        again_every: 6000,
        bug: (Bug::None, ExploreWhen::Both),
        fault: None,
        all_operations: false,
        threads: 1,
    }
}

/// Whether the run goes to the full depth.
fn is_deep() -> bool {
    std::env::var_os("CENOTE_CRASH_DEPTH").is_some()
}

fn depth(or: usize) -> usize {
    std::env::var("CENOTE_CRASH_DEPTH").ok().and_then(|text| text.parse().ok()).unwrap_or(or)
}

/// Which sixteenth of the longer histories is visited.
fn sixteenth() -> usize {
    number_of_change("CENOTE_CRASH_SIXTEENTH") as usize % 16
}

/// All histories of the full alphabet up to `exhaustive` operations, and of those up to 6, one in
/// `every`.
fn histories(exhaustive: usize, every: usize, seed: usize) -> (Vec<History>, String) {
    let exhaustive = depth(exhaustive);
    let mut out = History::all(&Op::ALL, exhaustive);
    let mut text = format!(
        "all {} histories of up to {exhaustive} operations of the full alphabet",
        out.len()
    );
    if exhaustive < 6 && every > 0 {
        let longer = History::all(&Op::ALL, 6).into_iter().filter(|h| h.0.len() > exhaustive);
        let sample: Vec<_> = longer.skip(seed % every).step_by(every).collect();
        text += &format!(", {} sampled of up to 6", sample.len());
        out.extend(sample);
    }
    (out, text)
}

/// Of histories with `len` operations one in `parts`, which the commit chooses; all if
/// `CENOTE_CRASH_DEPTH` is set.
fn retain_part(histories: &mut Vec<History>, len: usize, (parts, part): (usize, usize)) -> String {
    if is_deep() || parts == 1 {
        return String::new();
    }
    let mut number = 0;
    histories.retain(|history| {
        number += usize::from(history.0.len() == len);
        history.0.len() != len || number % parts == part % parts
    });
    format!(", of those with {len} one in {parts}")
}

/// The same with one log: of the longest ones one in `parts`; and beside the sample, all that
/// extend one in `16 * parts` of them.
fn histories_of_one_log(every: usize, parts: usize) -> (Vec<History>, String) {
    let (mut out, mut text) = histories(4, every, 7);
    let exhaustive = depth(4);
    if exhaustive < 6 {
        let sixteenth = sixteenth();
        text += &retain_part(&mut out, exhaustive, (parts, sixteenth));
        let longest = out.iter().filter(|h| h.0.len() == exhaustive);
        let extended: HashSet<_> = longest.skip(sixteenth).step_by(16).cloned().collect();
        let extends = |h: &History| extended.contains(&History(h.0[..exhaustive].to_vec()));
        let mut longer = History::all(&Op::ALL, exhaustive + 1);
        longer.retain(|h| h.0.len() > exhaustive && extends(h));
        text += &format!(", {} one longer (CENOTE_CRASH_SIXTEENTH={sixteenth})", longer.len());
        out.extend(longer);
    }
    (out, text)
}

/// Prints a line also where the output of tests that pass is not shown.
fn tell(text: &str) {
    let _ = writeln!(std::io::stdout(), "{text}");
}

fn visit(what: &str, plan: &ExplorePlan) -> ExploreTally {
    let (tally, violation) = run(plan);
    tell(&format!("{} level, {}: {what}: {tally}", plan.level, plan.strategy.name));
    if let Some(violation) = violation {
        panic!("{violation}");
    }
    assert!(tally.histories == plan.histories.len() as u64 && tally.images > 0);
    tally
}

/// Histories that begin with one of these operations, at every crash point, with every subset of
/// what was undecided.
fn power_may_fail_in_any_history_that_begins_with(first: &[Op]) {
    let (mut histories, text) = histories_of_one_log(100, 4);
    histories.retain(|history| first.contains(&history.0[0]));
    let text = format!("{text}: the {} of them that begin with one of {first:?}", histories.len());
    let tally = visit(&text, &plan(Durability::Power, Strategy::LAZY, histories));
    assert_eq!(tally.small_sampled, 0, "every subset of up to 12 units");
}

#[test]
fn power_may_fail_anywhere_in_histories_that_begin_with_an_allocation() {
    power_may_fail_in_any_history_that_begins_with(&[Op::Alloc, Op::Grow]);
}

/// The other half, for another thread.
#[test]
fn power_may_fail_anywhere_in_histories_that_begin_with_a_change() {
    power_may_fail_in_any_history_that_begins_with(&[
        Op::Free,
        Op::Set,
        Op::Other,
        Op::Commit,
        Op::Abort,
    ]);
}

#[test]
fn a_process_may_die_anywhere() {
    for (number, strategy) in Strategy::ALL.into_iter().enumerate() {
        let (histories, text) = if strategy == Strategy::LAZY {
            histories_of_one_log(20, 1)
        } else {
            let (mut histories, mut text) = histories(4, 100, 7);
            text += &retain_part(&mut histories, 4, (2, sixteenth() + number));
            (histories, text)
        };
        visit(&text, &plan(Durability::Process, strategy, histories));
    }
}

/// Short histories word by word: nothing about logs, marks or checksums is taken for granted, and
/// every recovery is crashed.
#[test]
fn power_may_fail_anywhere_with_any_words_lost() {
    let mut sum = ExploreTally::default();
    for (number, strategy) in Strategy::ALL.into_iter().enumerate() {
        let of_change = strategy == Strategy::LAZY || (number + sixteenth()).is_multiple_of(2);
        if !(of_change || is_deep()) {
            continue;
        }
        let depth = if strategy == Strategy::LAZY { 2 } else { 1 };
        let mut histories = History::all(&Op::ALL, depth);
        let part = match depth {
            1 => String::new(),
            _ => retain_part(&mut histories, depth, (4, sixteenth())),
        };
        let text = format!("up to {depth} operations{part}, by words");
        let reach = vec![(usize::MAX, WORDS)];
        let plan = plan(Durability::Power, strategy, histories);
        sum.add(&visit(
            &text,
            &ExplorePlan { reach, recoveries: Recoveries::All, merged_every: 16, ..plan },
        ));
    }
    tell(&format!("power level, by words: {sum}"));
}

/// These strategies, all of which are other than [`Strategy::LAZY`].
fn power_may_fail_in_strategies(strategies: &[Strategy]) {
    let mut sum = ExploreTally::default();
    for &strategy in strategies {
        let number = Strategy::ALL.iter().position(|other| *other == strategy).unwrap_or(0);
        let every = if is_deep() { 1000 } else { 2000 };
        let (mut histories, mut text) = histories(3, every, (number - 1) * 31);
        text += &retain_part(&mut histories, 3, (12, sixteenth() + number));
        text += &format!(": {} in all", histories.len());
        sum.add(&visit(&text, &plan(Durability::Power, strategy, histories)));
    }
    tell(&format!("power level, {} other strategies: {sum}", strategies.len()));
}

#[test]
fn power_may_fail_anywhere_whatever_way_a_transaction_commits() {
    power_may_fail_in_strategies(&Strategy::ALL[1..5]);
}

/// The other half, for another thread.
#[test]
fn power_may_fail_anywhere_whatever_a_log_spans() {
    power_may_fail_in_strategies(&Strategy::ALL[5..]);
}
