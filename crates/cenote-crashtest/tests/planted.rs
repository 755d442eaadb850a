//! Every planted bug is found: by the enumeration that is named after what it breaks, and not
//! without the bug. Two that no transaction can show are found by logs written by hand, two of the
//! store's in `store_updates.rs`, and those about leaks and about what a superblock held before in
//! `dangling.rs`.

use cenote::{Access, HeapKind, Reader, Store};
use cenote_crashtest::data::{Other, Root};
use cenote_crashtest::explore::{ExplorePlan, ExploreWhen, Recoveries, run};
use cenote_crashtest::history::History;
use cenote_crashtest::rig::{POOLS, Strategy, base_image, open_options, window_base};
use cenote_crashtest::units::{Grain, Reach};
use cenote_layout::log::EntryKind;
use cenote_log::{Body, LogWriter, SegmentSource};
use cenote_medium::Durability;
use cenote_medium::planted::{Bug, plant};
use cenote_medium::sim::{CrashKind, SimMedium};

/// Looks at every crash point of a few histories, with the bug and without.
#[track_caller]
fn caught(bug: Bug, when: ExploreWhen, level: Durability, strategy: Strategy, histories: &[&str]) {
    // Torn entries are seen by words only, and so is what replay does to marks that it finds in
    // either state; recoveries are crashed where only that shows the bug.
    let by_words =
        matches!(bug, Bug::ChecksumIgnored | Bug::RollBackKeepsFree | Bug::ReplayMarkNotFlushed);
    let grain = if by_words { Grain::Words } else { Grain::Classes };
    let recovery = matches!(bug, Bug::ReplayNotFenced | Bug::ReplayMarkNotFlushed);
    let reach = Reach { grain, exhaustive: 12, samples: 32 };
    let plan = |bug: Bug| ExplorePlan {
        heap: HeapKind::Traced,
        level,
        strategy,
        histories: histories.iter().map(|text| History::parse(text)).collect(),
        reach: vec![(usize::MAX, reach)],
        recoveries: if recovery { Recoveries::All } else { Recoveries::None },
        merged_every: 0,
        thorough_every: 0,
        again_every: 0,
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
use ExploreWhen::{Both, Recovering, Running};

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

// The pointers of the histories' data that dangle show a value where none is, or a mark that is
// missing hides one that is committed.

#[test]
fn a_block_that_is_marked_as_allocated_as_soon_as_it_is_taken() {
    caught(Bug::MarkedWhenTaken, Running, Power, Strategy::LAZY, &["a"]);
}

#[test]
fn marks_that_change_before_the_entries_that_take_them_back_are_durable() {
    caught(Bug::MarkBeforeEntry, Running, Power, Strategy::REDO, &["aC"]);
    caught(Bug::MarkBeforeEntry, Running, Power, Strategy::LAZY, &["fC"]);
}

#[test]
fn a_commit_that_does_not_flush_marks() {
    caught(Bug::MarkNotFlushed, Running, Power, Strategy::LAZY, &["aC"]);
    caught(Bug::MarkNotFlushed, Running, Power, Strategy::MARKED, &["fCs"]);
}

#[test]
fn a_free_that_is_rolled_back_without_its_mark() {
    caught(Bug::RollBackKeepsFree, Recovering, Power, Strategy::LAZY, &["fC"]);
}

#[test]
fn a_replay_that_does_not_flush_marks() {
    caught(Bug::ReplayMarkNotFlushed, Recovering, Power, Strategy::LAZY, &["fC"]);
}

#[test]
fn tracing_that_takes_whatever_is_reached_for_allocated() {
    caught(Bug::TraceBelievesReach, Recovering, Power, Strategy::LAZY, &["fC"]);
}

/// A log that was written by hand: `entries` are addresses with the contents that undo puts back.
/// What the next open finds, with the bug planted in it: the words of both roots, or why not.
fn recovered(
    bug: Bug,
    place: usize,
    entries: impl Fn(u64, u64) -> Vec<(u64, u64)>,
) -> Result<(u64, u64), String> {
    let text = |e: &dyn std::fmt::Display| e.to_string();
    let base = base_image(Process, window_base(7300 + place), HeapKind::Traced)?;
    let roots = |store: &Store| -> cenote::Result<[u64; 2]> {
        let (a, b) = (
            store.pool_with(POOLS[0], Access::ReadOnly)?,
            store.pool_with(POOLS[1], Access::ReadOnly)?,
        );
        let root = a.read()?.root::<Root>()?.map_or(0, |root| root.addr());
        let other = b.read()?.root::<Other>()?.map_or(0, |other| other.addr());
        Ok([root + std::mem::offset_of!(Root, words) as u64, other])
    };
    let sim = SimMedium::from_image(&base);
    let store = Store::open_on(sim.clone(), &open_options()).map_err(|e| text(&e))?;
    let [word, other] = roots(&store).map_err(|e| text(&e))?;
    {
        // Only the first pool is held for writing.
        let pool = store.pool(POOLS[0]).map_err(|e| text(&e))?;
        // SAFETY: a log is taken, and the test is about the bytes that are written into it; only
        // words are read as values afterwards.
        let raw = unsafe { store.as_raw() };
        let lease = raw.acquire_log().map_err(|e| text(&e))?;
        // SAFETY: the log is mapped until the store is dropped, and no other code uses it; the
        // contents are readable.
        unsafe {
            let mut writer = LogWriter::attach(lease.body(), raw.persistence(), Box::new(NoMore))
                .map_err(|e| text(&e))?;
            for (addr, contents) in entries(word, other) {
                writer
                    .append(EntryKind::Undo, addr, 8, (&raw const contents).cast())
                    .map_err(|e| text(&e))?;
            }
        }
        drop(pool);
    }
    store.abandon();
    let sim = SimMedium::from_image(&sim.image_now(CrashKind::Process));
    plant(bug);
    let opened = Store::open_on(sim, &open_options());
    plant(Bug::None);
    let store = opened.map_err(|e| text(&e))?;
    if let Some(damage) = store.report().damage.first() {
        return Err(damage.to_string());
    }
    let [word, other] = roots(&store).map_err(|e| text(&e))?;
    // SAFETY: words of live root objects, in pools that were just opened and stay mapped as long as
    // the store.
    let found = unsafe {
        [word, other].map(|addr| *std::ptr::with_exposed_provenance::<u64>(addr as usize))
    };
    store.abandon();
    Ok((found[0], found[1]))
}

struct NoMore;

impl SegmentSource for NoMore {
    fn segment(&mut self, _: u32) -> Result<(u64, Body), Box<dyn std::error::Error + Send + Sync>> {
        Err("one segment is enough".into())
    }
}

#[test]
fn a_log_that_writes_where_its_owner_had_no_lease() {
    let forged = |_, other| vec![(other, 0xbad)];
    let refused = recovered(Bug::None, 0, forged).expect_err("the log is set aside");
    assert!(refused.contains("had no right to write"), "{refused}");
    assert_eq!(
        recovered(Bug::LeaseIgnored, 1, forged),
        Ok((0, 0xbad)),
        "the bug writes to the foreign pool"
    );
}

#[test]
fn undo_entries_that_are_applied_first_to_last() {
    // The transactions of this project log every byte once, so order could not matter; other
    // writers of the format need not.
    let twice = |word, _| vec![(word, 7), (word, 8)];
    assert_eq!(recovered(Bug::None, 2, twice), Ok((7, 0)), "the oldest contents");
    assert_eq!(
        recovered(Bug::UndoAppliedForward, 3, twice),
        Ok((8, 0)),
        "the bug leaves the middle ones"
    );
}
