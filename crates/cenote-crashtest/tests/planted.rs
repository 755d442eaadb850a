//! Every planted bug is found: by the enumeration that is named after what it breaks, and not without the bug.

use cenote_crashtest::explore::{Plan, When, run};
use cenote_crashtest::history::History;
use cenote_crashtest::rig::Strategy;
use cenote_crashtest::units::{Grain, Reach};
use cenote_medium::Durability;
use cenote_medium::planted::Bug;

/// Looks at every crash point of a few histories, with the bug and without.
#[track_caller]
fn caught(bug: Bug, when: When, level: Durability, strategy: Strategy, histories: &[&str]) {
    // Torn entries are seen by words only; recoveries are crashed where only that shows the bug.
    let grain = if bug == Bug::ChecksumIgnored { Grain::Words } else { Grain::Grouped };
    let recovery = bug == Bug::ReplayNotFenced;
    let reach = Reach { grain, exhaustive: 12, samples: 32 };
    let plan = |bug: Bug| Plan {
        level,
        strategy,
        histories: histories.iter().map(|text| History::parse(text)).collect(),
        reach: vec![(usize::MAX, reach)],
        recovery_depth: if recovery { 9 } else { 0 },
        recovery_every: 0,
        thorough_every: 0,
        bug: (bug, when),
        fault: None,
        all_operations: true,
        threads: 1,
    };
    let (tally, violation) = run(&plan(bug));
    let Some(violation) = violation else { panic!("{bug:?} was not found: {tally}") };
    println!("{bug:?}: found after {} images: {violation}", tally.images + tally.recovery_images);
    let (tally, violation) = run(&plan(Bug::None));
    assert!(
        violation.is_none(),
        "without {bug:?}: {}",
        violation.map_or_else(String::new, |v| v.to_string())
    );
    println!("without it: {tally}");
}

use Durability::{Power, Process};
use When::{Both, Recovering, Running};

#[test]
fn data_changed_before_its_undo_entry_is_durable() {
    caught(Bug::UndoNotFenced, Running, Power, Strategy::LAZY, &["s"]);
}

#[test]
fn a_commit_that_flushes_no_data() {
    caught(Bug::DataNotFlushed, Running, Power, Strategy::LAZY, &["sC"]);
}

#[test]
fn a_commit_that_flushes_no_fresh_blocks() {
    caught(Bug::FreshNotFlushed, Running, Power, Strategy::LAZY, &["aC"]);
}

#[test]
fn a_commit_that_does_not_fence_data() {
    caught(Bug::DataNotFenced, Running, Power, Strategy::MARKED, &["sCsC"]);
}

#[test]
fn a_range_that_moves_on_before_the_data() {
    caught(Bug::RangeMovedEarly, Running, Power, Strategy::LAZY, &["sC"]);
}

#[test]
fn a_finish_that_is_not_fenced_with_two_logs() {
    caught(Bug::FinishNotFenced, Running, Power, Strategy::MARKED, &["sCsC"]);
}

#[test]
fn deferred_writes_that_are_made_before_the_seal() {
    caught(Bug::RedoAppliedEarly, Running, Power, Strategy::REDO, &["s"]);
}

#[test]
fn deferred_writes_that_are_not_durable_when_the_range_moves_on() {
    caught(Bug::RedoNotFenced, Running, Power, Strategy::REDO_TWO_LOGS, &["sCsC"]);
}

#[test]
fn a_transaction_that_overwrites_the_log_of_a_lazily_finished_one() {
    caught(Bug::HalvesNotSwapped, Both, Power, Strategy::LAZY, &["sCs", "aCs", "fCs"]);
}

#[test]
fn a_lazy_finish_although_a_covered_block_is_given_out_again() {
    caught(Bug::LazyDespiteFreed, Running, Power, Strategy::LAZY, &["asfCa"]);
}

#[test]
fn a_log_that_joins_while_another_range_is_pending() {
    caught(Bug::JoinNotFlushed, Running, Power, Strategy::MARKED, &["sCs", "sCsC"]);
}

#[test]
fn an_overflow_word_before_its_jump() {
    caught(Bug::OverflowEarly, Running, Power, Strategy::SPANNING, &["s"]);
}

#[test]
fn a_seal_that_is_believed_without_its_contents() {
    caught(Bug::SealContentsIgnored, Recovering, Power, Strategy::LAZY, &["sC"]);
}

#[test]
fn a_replay_that_moves_the_range_before_its_writes_are_durable() {
    caught(Bug::ReplayNotFenced, Recovering, Power, Strategy::LAZY, &["s"]);
}

#[test]
fn entries_that_are_believed_without_their_checksum() {
    caught(Bug::ChecksumIgnored, Recovering, Power, Strategy::LAZY, &["s"]);
}

#[test]
fn a_descriptor_that_is_not_flushed() {
    caught(Bug::DescriptorNotFlushed, Running, Power, Strategy::LAZY, &["gC"]);
}

#[test]
fn a_block_that_is_given_out_before_its_free_is_committed() {
    caught(Bug::FreedEarly, Running, Process, Strategy::LAZY, &["f", "fX"]);
}

#[test]
fn an_aborted_allocation_that_keeps_its_mark() {
    caught(Bug::AbortKeepsAllocation, Running, Process, Strategy::LAZY, &["aX"]);
}

#[test]
fn a_puddle_that_is_used_before_its_record_is_durable() {
    caught(Bug::CatalogNotSynced, Running, Power, Strategy::LAZY, &["gC"]);
}

#[test]
fn marks_that_are_not_computed_again_after_a_loss_of_power() {
    caught(Bug::TraceDueForgotten, Recovering, Power, Strategy::LAZY, &["aC"]);
}
