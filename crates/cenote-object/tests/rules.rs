//! The paper's rules: who may attach what (Figure 3), its errors, what a drop means, addresses and
//! pointers; and bad input.

use crate::common::{Step, World, base_image, contents, history, open, options, raw, window_base};
use cenote_medium::sim::{
    CrashKind, Fault, FaultEffect, FaultPoint, Limits, SimMedium, SimOptions,
};
use cenote_medium::{Durability, Medium, Operation};
use cenote_object::{
    FoundState, ObjectError, ObjectState, Objects, Permission, Psync, Store, Trim, psync_all,
};
use cenote_store::{FormatOptions, OpenError, OpenOptions, StoreError};
use std::sync::Arc;

const EAGAIN: i32 = 11;
const EACCES: i32 = 13;
const EEXIST: i32 = 17;
const EINVAL: i32 = 22;
const ENOENT: i32 = 2;
const ENOSPC: i32 = 28;

fn fresh() -> (Arc<SimMedium>, Store, Objects) {
    let sim = SimMedium::from_image_unrecorded(&base_image(8192));
    let (store, objects) = open(&sim, 8192).expect("open");
    (sim, store, objects)
}

#[track_caller]
fn errno<T: std::fmt::Debug>(result: Result<T, ObjectError>) -> i32 {
    let error = result.expect_err("must be refused");
    assert!(error.to_string().len() > 20, "a message that says nothing: {error}");
    error.errno()
}

#[test]
fn one_writer_or_many_readers() {
    let (_sim, _store, objects) = fresh();
    objects.pcreate("A", 4096, None, 0o400).expect("create");
    objects.pcreate("B", 4096, None, 0o600).expect("create");
    objects.pcreate("C", 4096, None, 0o600).expect("create");
    // The table of the paper's Figure 3.
    assert_eq!(errno(objects.attach("A", Permission::ReadWrite, None)), EACCES);
    let b1 = objects.attach("B", Permission::Read, None).expect("valid");
    let b2 = objects.attach("B", Permission::Read, None).expect("valid");
    let c = objects.attach("C", Permission::ReadWrite, None).expect("valid");
    assert_eq!(errno(objects.attach("C", Permission::ReadWrite, None)), EAGAIN);
    match objects.attach("C", Permission::Read, None) {
        Err(ObjectError::Busy { name, what, pid }) => {
            assert_eq!((name.as_str(), what, pid), ("C", "writing", std::process::id()));
        }
        other => panic!("{other:?}"),
    }
    // Readers keep writers out until the last of them has gone.
    assert_eq!(errno(objects.attach("B", Permission::ReadWrite, None)), EAGAIN);
    b1.detach().expect("detach");
    assert_eq!(errno(objects.attach("B", Permission::ReadWrite, None)), EAGAIN);
    drop(b2);
    let b = objects.attach("B", Permission::ReadWrite, None).expect("no reader is left");
    // What is attached is not destroyed.
    assert_eq!(errno(objects.pdestroy("C", None)), EAGAIN);
    drop((b, c));
    objects.pdestroy("C", None).expect("destroy");
    assert_eq!(errno(objects.attach("C", Permission::Read, None)), ENOENT);
    assert_eq!(errno(objects.pdestroy("C", None)), ENOENT);
    assert_eq!(errno(objects.pdestroy("A", None)), EACCES);
    objects.set_mode("A", 0o600).expect("the owner may");
    objects.attach("A", Permission::ReadWrite, None).expect("its mode allows it now");
    objects.pdestroy("A", None).expect("destroy");
}

#[test]
fn another_process_is_kept_out_by_the_stores_lock_which_names_the_holder() {
    let (sim, _store, _objects) = fresh();
    let medium: Arc<dyn Medium> = sim;
    match Store::open(medium, OpenOptions::default()) {
        Err(OpenError::Locked { pid, .. }) => assert_eq!(pid, Some(std::process::id())),
        other => panic!("{other:?}"),
    }
}

#[test]
fn what_no_object_can_be_is_refused_and_changes_nothing() {
    let (sim, store, objects) = fresh();
    let before = objects.list().expect("list").len();
    let free = store.info().window_free;
    let create = |name: &str, size| errno(objects.pcreate(name, size, None, 0o600));
    assert_eq!(create("a", 4096), EEXIST);
    assert_eq!(create("zero", 0), EINVAL);
    assert_eq!(create("huge", u64::MAX), EINVAL);
    assert_eq!(create("terabyte", 1 << 40), ENOSPC, "more than the window has");
    for name in ["", " a", "a\n", &"x".repeat(300)] {
        assert_eq!(create(name, 4096), EINVAL, "{name:?}");
    }
    // A key for an object that has none: it may have been replaced.
    let key = crate::common::the_key();
    assert!(matches!(
        objects.attach("a", Permission::Read, Some(key)),
        Err(ObjectError::NotProtected { .. })
    ));
    assert!(matches!(objects.pdestroy("a", Some(key)), Err(ObjectError::NotProtected { .. })));
    // The disk.
    sim.inject(
        Fault::once(FaultPoint::Operation(Operation::Create), 0, FaultEffect::NoSpace)
            .on("puddles"),
    );
    assert_eq!(create("disk", 4096), ENOSPC);
    assert_eq!((objects.list().expect("list").len(), store.info().window_free), (before, free));
    assert_eq!(raw(&store).medium().list("puddles").expect("list").len(), before);
    objects.pcreate("disk", 4096, None, 0o600).expect("there is space again");
}

#[test]
fn what_was_not_psynced_is_gone_after_detach_and_after_drop() {
    let (_sim, _store, objects) = fresh();
    for round in 1..4u8 {
        let mut a = objects.attach("a", Permission::ReadWrite, None).expect("attach");
        assert_eq!(a.as_slice()[0], round - 1);
        a.as_mut_slice().expect("writable")[0] = round;
        a.psync().expect("psync");
        a.as_mut_slice().expect("writable")[0] = 99;
        if round == 1 { a.detach().expect("detach") } else { drop(a) }
    }
}

#[test]
fn readers_cannot_store_and_their_psync_is_ignored() {
    let (_sim, _store, objects) = fresh();
    let mut a = objects.attach("a", Permission::Read, None).expect("attach");
    assert!(a.as_mut_slice().is_err());
    assert_eq!(a.psync().expect("ignored"), Psync::default());
    assert_eq!(psync_all(&mut [&mut a]).expect("ignored"), Psync::default());
    assert_eq!(psync_all(&mut []).expect("nothing to do"), Psync::default());
    assert_eq!(a.mechanism(), None);
}

#[test]
fn states_are_seen_as_the_paper_names_them() {
    let (sim, store, objects) = fresh();
    let state = |objects: &Objects| objects.info("a").expect("info").state;
    assert_eq!(state(&objects), ObjectState::Detached);
    let reader = objects.attach("a", Permission::Read, None).expect("attach");
    assert_eq!(state(&objects), ObjectState::Read);
    drop(reader);
    let mut a = objects.attach("a", Permission::ReadWrite, None).expect("attach");
    assert_eq!((state(&objects), a.found()), (ObjectState::Write, FoundState::Detached));
    a.as_mut_slice().expect("writable")[0] = 1;
    a.psync().expect("psync");
    // Committed. The primary is not written before a call needs it.
    assert_eq!(state(&objects), ObjectState::Copy);
    objects.checkpoint().expect("checkpoint");
    assert_eq!(state(&objects), ObjectState::Write);
    // A psync whose record is written, and whose sync fails: P, for ever.
    a.as_mut_slice().expect("writable")[0] = 2;
    sim.inject(
        Fault::once(FaultPoint::Operation(Operation::Sync), 0, FaultEffect::Io).on("journal"),
    );
    assert!(a.psync().is_err());
    assert_eq!(state(&objects), ObjectState::Psync);
    assert_eq!(raw(&store).medium().describe().path, "(simulated)");
}

/// The state that an open to look gives for an object whose psync was interrupted, at each moment:
/// W (D, if the header that says so is lost), P or C, and never more than is on the medium.
#[test]
fn an_interrupted_psync_is_seen_as_w_p_or_c_by_who_may_not_recover() {
    let sim = SimMedium::from_image(&base_image(16384));
    let mut world = World::open(&sim, 16384).expect("open");
    sim.note(1);
    world.attached[0].as_mut_slice().expect("writable")[..9000].fill(1);
    world.attached[0].psync().expect("psync");
    world.die();
    let mut seen = std::collections::BTreeMap::new();
    let limits = Limits { exhaustive_units: 6, samples: 60, ..Limits::default() };
    sim.explore(.., limits, |_, image| {
        if image.note() == 0 {
            return;
        }
        let medium: Arc<dyn Medium> = SimMedium::from_image_unrecorded(&image);
        let (store, _) = Store::open(medium, OpenOptions::read_only()).expect("open to read");
        let objects = Objects::open(&store, &options(16384)).expect("objects");
        let state = objects.info("a").expect("info").state;
        let a = objects.attach("a", Permission::Read, None).expect("attach");
        let new = a.as_slice()[8999] == 1;
        assert_eq!(new, state == ObjectState::Copy, "{state}");
        *seen.entry(state.letters()).or_insert(0) += 1;
    });
    println!("{seen:?}");
    assert_eq!(
        seen.keys().copied().collect::<Vec<_>>(),
        ["C", "D", "P", "W"],
        "D: a header that was not synced"
    );
}

#[test]
fn the_next_writer_is_told_how_the_last_one_ended() {
    for (kind, died) in [(CrashKind::Process, true), (CrashKind::Power, false)] {
        let image = {
            let sim = SimMedium::from_image(&base_image(8192));
            let mut world = World::open(&sim, 8192).expect("open");
            world.attached[0].as_mut_slice().expect("writable")[0] = 1;
            world.attached[0].psync().expect("psync");
            world.die();
            // Everything that was written arrived.
            let state = sim.state_now();
            if died { state.image_process() } else { state.image_latest() }
        };
        assert_eq!(image.kind(), kind);
        let sim = SimMedium::from_image_unrecorded(&image);
        // Looked at first, without changing anything.
        {
            let medium: Arc<dyn Medium> = sim.clone();
            let (store, _) = Store::open(medium, OpenOptions::read_only()).expect("open");
            let objects = Objects::open(&store, &options(8192)).expect("objects");
            assert_eq!(
                objects.info("a").expect("info").state,
                ObjectState::Copy,
                "committed, not trimmed"
            );
            assert_eq!(objects.info("b").expect("info").state, ObjectState::Write);
            let refused = objects.attach("a", Permission::ReadWrite, None);
            assert!(
                matches!(refused, Err(ObjectError::Store(StoreError::ReadOnly { .. }))),
                "{refused:?}"
            );
            assert!(objects.pcreate("x", 4096, None, 0o600).is_err());
            assert_eq!(
                objects.attach("a", Permission::Read, None).expect("attach").as_slice()[0],
                1
            );
        }
        let (_store, objects) = open(&sim, 8192).expect("open");
        let recovery = objects.recovery();
        assert_eq!(
            (recovery.records, &recovery.objects[..]),
            (1, &[("a".into(), ObjectState::Copy)][..])
        );
        let pid = std::process::id();
        let expected =
            if died { FoundState::ProcessDied { pid } } else { FoundState::PowerLost { pid } };
        let a = objects.attach("a", Permission::ReadWrite, None).expect("attach");
        assert_eq!(a.found(), expected);
        assert!(a.found().to_string().contains(&pid.to_string()));
        a.detach().expect("detach");
        let a = objects.attach("a", Permission::ReadWrite, None).expect("attach");
        assert_eq!(a.found(), FoundState::Detached);
    }
}

#[test]
fn addresses_are_unique_and_stay_so_pointers_within_and_across_objects_hold() {
    let image = base_image(8192);
    let sim = SimMedium::from_image_unrecorded(&image);
    let (first, second);
    {
        let mut world = World::open(&sim, 8192).expect("open");
        let ranges: Vec<_> = world.attached.iter().map(|o| o.addr()..o.addr() + o.len()).collect();
        for (i, one) in ranges.iter().enumerate() {
            assert!(one.start % 4096 == 0);
            assert!(
                ranges[i + 1..]
                    .iter()
                    .all(|other| one.end <= other.start || other.end <= one.start)
            );
        }
        // a[0] points to b[16], b[16] back to a[8].
        (first, second) = (world.attached[0].addr(), world.attached[1].addr() + 16);
        world.attached[0].as_mut_slice().expect("writable")[..8]
            .copy_from_slice(&second.to_le_bytes());
        world.attached[1].as_mut_slice().expect("writable")[16..24]
            .copy_from_slice(&(first + 8).to_le_bytes());
        world.attached[0].as_mut_slice().expect("writable")[8..16]
            .copy_from_slice(&42u64.to_le_bytes());
        let mut all: Vec<_> = world.attached.iter_mut().collect();
        psync_all(&mut all).expect("psync");
        world.close().expect("close");
    }
    let (_store, objects) = open(&sim, 8192).expect("open");
    let a = objects.attach("a", Permission::Read, None).expect("attach");
    let b = objects.attach("b", Permission::ReadWrite, None).expect("attach");
    assert_eq!((a.addr(), b.addr() + 16), (first, second));
    let follow = |at: u64| {
        let at = core::ptr::with_exposed_provenance::<u64>(at as usize);
        // SAFETY: both objects are attached, and the address was that of a word in one of them.
        unsafe { at.read_unaligned() }
    };
    assert_eq!(follow(follow(follow(a.addr()))), 42);
}

#[test]
fn a_journal_is_one_for_all_handles_of_a_store() {
    let (_sim, store, objects) = fresh();
    let again = Objects::open(&store, &options(65536)).expect("the same");
    let _writer = objects.attach("a", Permission::ReadWrite, None).expect("attach");
    assert_eq!(errno(again.attach("a", Permission::Read, None)), EAGAIN);
    assert_eq!(objects.journal_figures(), again.journal_figures());
}

#[test]
fn objects_of_two_stores_are_not_psynced_together() {
    let (_sim, _store, objects) = fresh();
    let mut a = objects.attach("a", Permission::ReadWrite, None).expect("attach");
    a.as_mut_slice().expect("writable")[0] = 1;
    let other =
        SimMedium::new(SimOptions { record: false, ..SimOptions::new(Durability::Process) });
    let format = FormatOptions {
        window_base: Some(window_base() + (1 << 30)),
        window_len: 64 << 20,
        ..Default::default()
    };
    cenote_store::format(other.clone(), &format).expect("format");
    let (_other_store, other_objects) = open(&other, 8192).expect("open");
    other_objects.pcreate("z", 4096, None, 0o600).expect("create");
    let mut z = other_objects.attach("z", Permission::ReadWrite, None).expect("attach");
    z.as_mut_slice().expect("writable")[0] = 1;
    assert!(matches!(psync_all(&mut [&mut a, &mut z]), Err(ObjectError::NotTogether)));
    assert!(
        a.psync().expect("psync").seq > 0 && z.psync().expect("psync").seq > 0,
        "neither had been psynced"
    );
}

#[test]
fn a_failed_sync_of_the_journal_poisons_and_no_later_psync_is_acknowledged() {
    let image = base_image(8192);
    let sim = SimMedium::from_image(&image);
    let mut world = World::open(&sim, 8192).expect("open");
    world.attached[0].as_mut_slice().expect("writable")[0] = 1;
    sim.inject(
        Fault::once(FaultPoint::Operation(Operation::Sync), 0, FaultEffect::Io).on("journal"),
    );
    assert!(world.attached[0].psync().is_err());
    let primary = world.objects.info("a").expect("info");
    let mut byte = [9];
    sim.read_at(&primary.object.file(), primary.object.data_offset(), &mut byte).expect("read");
    assert_eq!(byte, [0], "the primary was changed although nothing is committed");
    for _ in 0..3 {
        let refused = world.attached[0].psync();
        assert!(
            matches!(refused, Err(ObjectError::Store(StoreError::Poisoned { .. }))),
            "{refused:?}"
        );
        world.attached[1].as_mut_slice().expect("writable")[0] = 1;
        assert!(world.attached[1].psync().is_err());
    }
    assert!(world.objects.pcreate("x", 4096, None, 0o600).is_err());
    world.die();
    let sim = SimMedium::from_image_unrecorded(&sim.image_now(CrashKind::Process));
    let (_store, objects) = open(&sim, 8192).expect("open");
    let state = contents(&objects).expect("contents");
    assert!(state[0][0] <= 1 && state[1][0] == 0);
}

#[test]
fn a_primary_that_cannot_be_written_is_completed_by_the_next_open() {
    let sim = SimMedium::from_image_unrecorded(&base_image(8192));
    let mut world = World::open(&sim, 8192).expect("open");
    world.attached[0].as_mut_slice().expect("writable")[..9000].fill(3);
    sim.inject(
        Fault::once(FaultPoint::Operation(Operation::Write), 0, FaultEffect::Io).on("puddles"),
    );
    assert!(world.attached[0].psync().expect("committed").seq > 0);
    assert_eq!(
        world.objects.info("a").expect("info").state,
        ObjectState::Copy,
        "nothing needs the file yet"
    );
    let failed = world.attached.remove(0).detach();
    assert!(matches!(failed, Err(ObjectError::NotCopied { .. })), "{failed:?}");
    assert!(world.attached[0].psync().is_err(), "the store is poisoned");
    world.die();
    let (_store, objects) = open(&sim, 8192).expect("open");
    assert!(contents(&objects).expect("contents")[0][..9000].iter().all(|b| *b == 3));
}

#[test]
fn a_full_disk_in_the_middle_of_a_psync_leaves_object_and_shadow() {
    let sim = SimMedium::from_image_unrecorded(&base_image(4096));
    let mut world = World::open(&sim, 4096).expect("open");
    world.attached[0].as_mut_slice().expect("writable").fill(8);
    // It needs a larger journal, for which there is no space.
    sim.inject(
        Fault::once(FaultPoint::Operation(Operation::Create), 0, FaultEffect::NoSpace)
            .on("journal"),
    );
    assert_eq!(errno(world.attached[0].psync()), ENOSPC);
    assert!(!sim.exists("journal.new").expect("exists"));
    // And there is no space for the record itself.
    sim.inject(
        Fault::once(FaultPoint::Operation(Operation::Write), 0, FaultEffect::NoSpace).on("journal"),
    );
    world.attached[1].as_mut_slice().expect("writable")[0] = 1;
    assert_eq!(errno(world.attached[1].psync()), ENOSPC);
    let info = world.objects.info("a").expect("info");
    assert_eq!(info.state, ObjectState::Write);
    let mut byte = [9];
    sim.read_at(&info.object.file(), info.object.data_offset(), &mut byte).expect("read");
    assert_eq!(byte, [0], "the object is as it was");
    // The shadow was kept, and there is space again.
    assert_eq!(world.attached[0].psync().expect("psync").pages, 3);
    assert_eq!(world.attached[1].psync().expect("psync").pages, 1);
    world.die();
    let (_store, objects) = open(&sim, 4096).expect("open");
    let state = contents(&objects).expect("contents");
    assert!(state[0].iter().all(|b| *b == 8) && state[1][0] == 1);
}

#[test]
fn a_psync_beyond_the_limit_of_the_journal_is_refused_and_the_shadow_stays() {
    let sim = SimMedium::from_image_unrecorded(&base_image(8192));
    let medium: Arc<dyn Medium> = sim;
    let (store, _) = Store::open(medium, OpenOptions::default()).expect("open");
    let objects = Objects::open(
        &store,
        &cenote_object::ObjectsOptions { half_len_max: 8192, ..options(8192) },
    )
    .expect("objects");
    let mut a = objects.attach("a", Permission::ReadWrite, None).expect("attach");
    a.as_mut_slice().expect("writable").fill(1);
    match a.psync() {
        Err(ObjectError::PsyncTooLarge { needed, limit }) => {
            assert_eq!((needed, limit), (16384, 8192))
        }
        other => panic!("{other:?}"),
    }
    a.as_mut_slice().expect("writable")[4096..].fill(0);
    assert_eq!(a.psync().expect("a smaller one").pages, 1);
}

/// Every call of a history fails once, with each kind of error: the psync fails or not, and what is
/// there afterwards is the state before or after it; if the store is not poisoned the next psync
/// works.
#[test]
fn every_file_operation_of_a_psync_may_fail() {
    let steps =
        [Step::Write(0, 0, 5000, 1), Step::Psync(0), Step::Write(1, 3, 8, 1), Step::Psync(1)];
    let base = base_image(4096);
    let states =
        history(&SimMedium::from_image_unrecorded(&base), &steps, 4096).expect("without faults");
    for effect in [FaultEffect::Io, FaultEffect::NoSpace] {
        let mut failed = 0;
        for skip in 0.. {
            let sim = SimMedium::from_image_unrecorded(&base);
            let mut world = World::open(&sim, 4096).expect("open");
            sim.inject(Fault::once(FaultPoint::AnyOperation, skip, effect));
            world.attached[0].as_mut_slice().expect("writable")[..5000].fill(1);
            world.attached[1].as_mut_slice().expect("writable")[3..11].fill(1);
            let first = world.attached[0].psync();
            let second = world.attached[1].psync();
            let hit = sim.fault_hits() > 0;
            sim.clear_faults();
            let usable = world.store.check_usable().is_ok();
            let acknowledged = (first.is_ok(), second.is_ok());
            failed += u64::from(!acknowledged.0 || !acknowledged.1);
            if usable {
                assert!(world.attached[0].psync().is_ok(), "call {skip}, {effect:?}: {first:?}");
                assert!(world.attached[1].psync().is_ok(), "call {skip}, {effect:?}: {second:?}");
            }
            world.die();
            let (_store, objects) = open(&sim, 4096).expect("open");
            let now = contents(&objects).expect("contents");
            let must = (acknowledged.0 || usable, acknowledged.1 || usable);
            assert!(
                now[0] == states[2][0] || (!must.0 && now[0] == states[0][0]),
                "call {skip}, {effect:?}"
            );
            assert!(
                now[1] == states[2][1] || (!must.1 && now[1] == states[0][1]),
                "call {skip}, {effect:?}"
            );
            if !hit {
                assert!(skip > 10, "hardly any call was failed");
                break;
            }
        }
        assert!(failed > 5, "hardly any failure was noticed");
    }
}

#[test]
fn a_store_that_was_opened_with_a_key_gives_no_object_without_one() {
    let sim = SimMedium::from_image_unrecorded(&base_image(8192));
    let key = Arc::new(crate::common::key_of(7));
    let open = |accept_unprotected| {
        let medium: Arc<dyn Medium> = sim.clone();
        let asking = OpenOptions {
            key: Some(Arc::clone(&key)),
            accept_unprotected,
            ..OpenOptions::default()
        };
        let store = Store::open(medium, asking).unwrap().0;
        let objects = Objects::open(&store, &crate::common::options(8192)).unwrap();
        (store, objects)
    };
    let (store, objects) = open(false);
    for permission in [Permission::Read, Permission::ReadWrite] {
        let got = objects.attach("a", permission, None);
        assert!(matches!(got, Err(ObjectError::NotProtected { .. })), "{got:?}");
    }
    let made = objects.pcreate("new", 100, None, 0o600);
    assert!(matches!(made, Err(ObjectError::NotProtected { .. })), "{made:?}");
    objects.pcreate("c", 100, Some(&key), 0o600).unwrap();
    objects.attach("c", Permission::ReadWrite, Some(&key)).unwrap();
    drop(objects);
    store.close().unwrap();
    let (_store, objects) = open(true);
    objects.attach("a", Permission::ReadWrite, None).unwrap();
    objects.pcreate("new", 100, None, 0o600).unwrap();
}

/// What a psync commits comes into the object's file later, and after `abandon` no detach waits for
/// that: bytes under a `&[u8]` of the next reader would change.
#[test]
fn what_is_abandoned_is_not_attached_again() {
    let dir = tempfile::tempdir().expect("a directory");
    let (store, objects) = on_disk(dir.path(), Trim::Background);
    objects.pcreate("a", 1 << 20, None, 0o600).expect("create");
    let mut writer = objects.attach("a", Permission::ReadWrite, None).expect("attach");
    objects.abandon();
    writer.as_mut_slice().expect("writable").fill(7);
    writer.psync().expect("a psync");
    assert_eq!(writer.as_slice()[0], 7, "what is attached stays");
    drop(writer);
    for permission in [Permission::Read, Permission::ReadWrite] {
        let again = objects.attach("a", permission, None);
        assert!(matches!(again, Err(ObjectError::Abandoned)), "{permission:?}: {again:?}");
    }
    let copy = objects.snapshot("a", &dir.path().join("copy"), cenote_object::Blocks::Copied);
    assert!(matches!(copy, Err(ObjectError::Abandoned)), "{copy:?}");
    assert!(objects.pdestroy("a", None).is_ok(), "without a reference to it");
    drop(objects);
    store.abandon();
    let (_store, objects) = on_disk(dir.path(), Trim::Background);
    objects.attach("still", Permission::Read, None).expect("the next session attaches");
}

/// A store in a directory, and its objects.
pub(crate) fn on_disk(dir: &std::path::Path, trim: Trim) -> (Store, Objects) {
    let medium = cenote_medium::RealMedium::open(dir, &cenote_medium::MediumOptions::default());
    let medium: Arc<dyn Medium> = Arc::new(medium.expect("a medium"));
    let fresh = !medium.exists("superblock").expect("looked");
    if fresh {
        let window_base = Some(crate::common::window_base());
        let format = FormatOptions { window_base, window_len: 64 << 20, ..Default::default() };
        cenote_store::format(Arc::clone(&medium), &format).expect("format");
    }
    let store = Store::open(medium, OpenOptions::default()).expect("open").0;
    let options = cenote_object::ObjectsOptions { half_len: 4 << 20, trim, ..Default::default() };
    let objects = Objects::open(&store, &options).expect("objects");
    if fresh {
        objects.pcreate("still", 4096, None, 0o600).expect("create");
    }
    (store, objects)
}

#[test]
fn permission_bits_of_an_object_are_those_of_a_file() {
    let (store, objects) =
        open(&SimMedium::from_image_unrecorded(&base_image(8192)), 8192).expect("open");
    let free = store.info().window_free;
    for bits in [0o1000, 0o4755, u32::MAX] {
        let made = objects.pcreate("new", 4096, None, bits);
        assert!(made.is_err(), "{bits:#o}: {made:?}");
        let changed = objects.set_mode("a", bits);
        assert!(changed.is_err(), "{bits:#o}: {changed:?}");
    }
    assert_eq!(store.info().window_free, free, "nothing has changed");
    objects.pcreate("new", 4096, None, 0o777).expect("all bits of a file");
    assert_eq!(objects.info("a").expect("info").object.record.permissions, 0o600);
}
