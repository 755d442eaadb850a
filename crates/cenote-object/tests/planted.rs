//! Every planted bug of psync is found by the enumeration of crashes, and nothing is found without
//! it.

use crate::common::Step::{Psync, PsyncAll, Write};
use crate::common::When::{Recovering, Running};
use crate::common::{Reach, Step, When, explore, protect};
use crate::common::{World, base_image};
use cenote_medium::planted::{Bug, plant};
use cenote_medium::sim::SimMedium;
use cenote_object::{Mode, Permission, Trim};

#[track_caller]
fn caught(bug: Bug, when: When, steps: &[Step], half_len: u64) {
    let recovery_every = if bug == Bug::JournalReplayNotSynced { 1 } else { 0 };
    let reach = Reach { recovery_every, read_only_every: 0, ..Reach::default() };
    let (tally, violation) = explore(steps, half_len, reach, bug, when);
    let Some(violation) = violation else { panic!("{bug:?} was not found: {tally:?}") };
    println!("{bug:?}: found after {} images: {violation}", tally.images + tally.recovery_images);
    let (tally, violation) = explore(steps, half_len, reach, Bug::None, when);
    assert!(violation.is_none(), "without {bug:?}: {}", violation.unwrap_or_default());
    println!("without it: {tally:?}");
}

/// Two psyncs of one object, of scattered lines.
const TWO: [Step; 5] =
    [Write(0, 0, 8, 1), Psync(0), Write(0, 0, 8, 2), Write(0, 8000, 8, 2), Psync(0)];

/// Many, so that halves are reused.
const MANY: [Step; 14] = [
    Write(0, 0, 8, 1),
    Psync(0),
    Write(0, 4096, 8, 2),
    Psync(0),
    Write(0, 8192, 8, 3),
    Psync(0),
    Write(1, 0, 8, 4),
    Psync(1),
    Write(1, 64, 8, 5),
    Psync(1),
    Write(0, 128, 8, 6),
    Psync(0),
    Write(1, 0, 8, 7),
    Psync(1),
];

#[test]
fn a_commit_record_that_is_synced_before_its_data() {
    // Data that no sector of the head shares.
    caught(
        Bug::PsyncCommitBeforeData,
        Running,
        &[Write(0, 0, 4096, 1), Psync(0), Write(1, 0, 8, 1), Psync(1)],
        16384,
    );
}

#[test]
fn a_psync_that_does_not_sync_the_journal() {
    caught(Bug::PsyncNotSynced, Running, &TWO, 8192);
}

#[test]
fn a_primary_that_is_changed_before_the_record_is_durable() {
    caught(Bug::PsyncAppliedEarly, Running, &TWO, 8192);
}

#[test]
fn a_half_that_is_reused_before_its_records_are_in_the_primaries() {
    caught(Bug::JournalReusedEarly, Running, &MANY, 8192);
}

#[test]
fn data_that_is_believed_without_its_checksum() {
    caught(Bug::JournalSumIgnored, Recovering, &[Write(0, 0, 4096, 1), Psync(0)], 16384);
}

#[test]
fn a_recovery_that_trims_before_the_primaries_are_durable() {
    caught(Bug::JournalReplayNotSynced, Recovering, &TWO, 8192);
}

#[test]
fn objects_psynced_together_with_a_record_for_each() {
    let steps = [Write(0, 0, 8, 1), Write(1, 0, 8, 1), PsyncAll];
    caught(Bug::PsyncNotTogether, Running, &steps, 8192);
}

/// Dropped records of one session behind the records of the next: written by hand, because a single
/// thread leaves none.
#[test]
fn records_of_an_earlier_session_that_pass_for_later_ones() {
    crate::common::stale_record(Bug::None).expect("without the bug nothing comes back");
    let came_back =
        crate::common::stale_record(Bug::JournalEpochIgnored).expect_err("the bug was not found");
    println!("found: {came_back}");
}

#[test]
fn a_failed_psync_that_forgets_dirty_pages() {
    crate::common::failed_psync_then_again(Bug::None)
        .expect("without the bug all pages come along");
    let lost = crate::common::failed_psync_then_again(Bug::PsyncForgetsPages)
        .expect_err("the bug was not found");
    println!("found: {lost}");
}

/// The second psync makes a line what the primary's file still holds.
#[test]
fn a_comparison_with_a_primary_that_lacks_what_is_committed() {
    let steps = [Write(0, 0, 8, 1), Psync(0), Write(0, 0, 8, 0), Psync(0)];
    caught(Bug::LaterNotLaidOver, Running, &steps, 8192);
}

#[test]
fn an_object_that_is_detached_before_its_primary_is_written() {
    let seen_by_the_next_reader = |bug: Bug| {
        let mut world =
            World::open(&SimMedium::from_image_unrecorded(&base_image(8192)), 8192).expect("open");
        let mut a = world.attached.remove(0);
        a.as_mut_slice().expect("writable")[9] = 7;
        a.psync().expect("psync");
        plant(bug);
        a.detach().expect("detach");
        plant(Bug::None);
        let seen = world.objects.attach("a", Permission::Read, None).expect("attach").as_slice()[9];
        world.die();
        seen
    };
    assert_eq!(seen_by_the_next_reader(Bug::None), 7);
    assert_eq!(seen_by_the_next_reader(Bug::DetachNotSettled), 0, "the bug was not found");
}

/// Bytes under a reader's `&[u8]` before and after a psync comes into the file; none: it is
/// refused.
#[test]
fn an_object_that_is_attached_although_it_was_abandoned() {
    let seen_by_a_reader = |bug: Bug| {
        let dir = tempfile::tempdir().expect("a directory");
        let (store, objects) = crate::rules::on_disk(dir.path(), Trim::Inline);
        let mut writer = objects.attach("still", Permission::ReadWrite, None).expect("attach");
        writer.as_mut_slice().expect("writable")[9] = 7;
        writer.psync().expect("psync");
        objects.abandon();
        drop(writer);
        plant(bug);
        let reader = objects.attach("still", Permission::Read, None);
        plant(Bug::None);
        let seen = reader.as_ref().ok().map(|reader| {
            let before = core::hint::black_box(reader.as_slice())[9];
            objects.checkpoint().expect("brought into the file");
            (before, core::hint::black_box(reader.as_slice())[9])
        });
        drop((reader, objects));
        store.abandon();
        seen
    };
    assert_eq!(seen_by_a_reader(Bug::None), None);
    assert_eq!(seen_by_a_reader(Bug::AbandonedAttaches), Some((0, 7)), "the bug was not found");
}

/// As [`caught`], with objects that are protected.
#[track_caller]
fn caught_protected(bug: Bug, when: When, steps: &[Step]) {
    protect(Mode::Integrity);
    caught(bug, when, steps, 8192);
    protect(Mode::None);
}

#[test]
fn a_list_of_protected_objects_that_is_written_over_the_one_before() {
    // So many trims that both headers have lists.
    let steps: Vec<Step> = (1..12).flat_map(|value| [Write(0, 0, 8, value), Psync(0)]).collect();
    caught_protected(Bug::RootsInPlace, Running, &steps);
}

#[test]
fn a_recovery_that_goes_on_with_the_list_of_before_its_records() {
    caught_protected(Bug::RootsNotRecovered, Recovering, &TWO);
}
