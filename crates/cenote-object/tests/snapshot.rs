//! Snapshots hold what the last psync left and come back as that, protected as they were; what is
//! no whole snapshot is refused and leaves nothing; every crash of a restore leaves the whole
//! object or none.

use crate::common::Step::{Psync, Write};
use crate::common::{self, World, base_image, bytes_of, history, protect};
use cenote_layout::at_rest::Mode;
use cenote_layout::header::seal;
use cenote_layout::id::Uuid;
use cenote_layout::snapshot::SnapshotTrailer;
use cenote_medium::planted::{Bug, plant};
use cenote_medium::sim::{
    CrashKind, Fault, FaultEffect, FaultPoint, Image, Limits, SimMedium, SimOptions,
};
use cenote_medium::{Durability, Medium, Operation};
use cenote_object::{Blocks, ObjectError, Objects, Permission, Restored, Store};
use cenote_store::OpenOptions;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use zerocopy::{FromBytes, IntoBytes};

const HALF: u64 = 1 << 16;

fn opened(image: &Image) -> (Arc<SimMedium>, Store, Objects) {
    let sim = SimMedium::from_image_unrecorded(image);
    let (store, objects) = common::open(&sim, HALF).expect("open");
    (sim, store, objects)
}

/// An image in which `a` is full of `value`, and a snapshot of it in a directory that goes with the
/// guard.
fn with_snapshot(value: u8) -> (Image, tempfile::TempDir, PathBuf) {
    let sim = SimMedium::from_image_unrecorded(&base_image(HALF));
    history(&sim, &[Write(0, 0, 12288, value), Psync(0)], HALF).expect("a history");
    let (store, objects) = common::open(&sim, HALF).expect("open");
    let dir = tempfile::tempdir().expect("a directory");
    let path = dir.path().join("a.snap");
    objects.snapshot("a", &path, Blocks::Copied).expect("a snapshot");
    drop(objects);
    store.close().expect("close");
    (sim.image_now(CrashKind::Process), dir, path)
}

fn value_of(objects: &Objects, name: &str) -> Result<u8, String> {
    let object =
        objects.attach(name, Permission::Read, common::key()).map_err(|e| e.to_string())?;
    let bytes = bytes_of(&object)?;
    match bytes.iter().all(|byte| *byte == bytes[0]) {
        true => Ok(bytes[0]),
        false => Err("a mixture".into()),
    }
}

fn restored(objects: &Objects, path: &Path, name: Option<&str>) -> Restored {
    objects.restore(path, name).expect("restored")
}

/// A snapshot is restored beside the object that it is of: as another one, or not at all if it is
/// protected.
fn beside_itself(objects: &Objects, snapshot: &Path, mode: Mode, (id, addr): (Uuid, u64)) {
    let beside = objects.restore(snapshot, Some("b2"));
    if mode == Mode::None {
        let beside = beside.expect("another identity");
        assert_ne!(beside.object.id(), id);
        assert_eq!(beside.moved_from, Some(addr));
        assert_eq!((value_of(objects, "b2"), value_of(objects, "a")), (Ok(1), Ok(2)));
        objects.pdestroy("b2", None).expect("destroyed");
    } else {
        assert!(matches!(beside, Err(ObjectError::StillThere { .. })), "{beside:?}");
    }
}

/// A snapshot is restored in another store.
fn in_another_store(snapshot: &Path, mode: Mode) {
    let image = base_image(HALF);
    let (_other, store, objects) = opened(&image);
    // Simulated stores draw the same identities.
    objects.pdestroy("a", None).expect("destroyed");
    let c = match common::key() {
        // Its protection is bound to its name: it takes the key to give it another.
        Some(key) => {
            let refused = objects.restore(snapshot, Some("c")).expect_err("without its key");
            assert!(refused.errno() == 13, "{refused}");
            objects.restore_as(snapshot, "c", key).expect("restored")
        }
        None => restored(&objects, snapshot, Some("c")),
    };
    assert_eq!(c.object.record.name, "c");
    assert_eq!(value_of(&objects, "c"), Ok(2), "{mode}");
    objects.abandon();
    store.abandon();
}

#[test]
fn a_snapshot_is_what_the_last_psync_left_and_comes_back() {
    let modes = [
        Mode::None,
        Mode::Integrity,
        Mode::Encryption,
        Mode::EncryptionIntegrity,
        Mode::Authenticated,
    ];
    for mode in modes {
        protect(mode);
        let dir = tempfile::tempdir().expect("a directory");
        let path = |name: &str| dir.path().join(name);
        let sim = SimMedium::from_image_unrecorded(&base_image(HALF));
        let mut world = World::open(&sim, HALF).expect("open");
        let fill = |world: &mut World, value: u8| {
            world.attached[0].as_mut_slice().expect("writable").fill(value);
        };
        fill(&mut world, 1);
        world.attached[0].psync().expect("psync");
        fill(&mut world, 2);
        let made = world.attached[0].snapshot(&path("one"), Blocks::default()).expect("a snapshot");
        assert!(!made.shared, "a simulated file has no blocks to share");
        assert_eq!(std::fs::metadata(path("one")).expect("a file").len(), made.bytes);
        let busy =
            world.objects.snapshot("a", &path("two"), Blocks::default()).expect_err("attached");
        assert!(busy.errno() == 11 && !path("two").exists(), "{busy}");
        world.attached[0].psync().expect("psync");
        let old = world.attached.remove(0);
        let (id, addr) = (old.info().id(), old.addr());
        old.detach().expect("detach");
        let objects = &world.objects;
        objects.snapshot("a", &path("two"), Blocks::Copied).expect("a snapshot");
        let taken =
            objects.snapshot("a", &path("two"), Blocks::Copied).expect_err("the file is there");
        assert!(taken.errno() == 17 && path("two").exists(), "{taken}");

        beside_itself(objects, &path("one"), mode, (id, addr));
        // In its place.
        objects.pdestroy("a", None).expect("destroyed");
        let again = restored(objects, &path("one"), None);
        assert_eq!(
            (again.object.id() == id, again.moved_from),
            (mode != Mode::None, None),
            "{mode}"
        );
        assert_eq!(again.object.record.at_rest.mode(), mode);
        assert_eq!(value_of(objects, "a"), Ok(1), "{mode}");
        let twice = objects.restore(&path("two"), None).expect_err("the name is taken");
        assert_eq!(twice.errno(), 17, "{twice}");
        let a = objects.attach("a", Permission::Read, common::key()).expect("attach");
        assert!(a.verify(&mut |_, _| true).damaged.is_empty());
        drop(a);
        world.die();
        // A crash of the process after it, and another store.
        let (store, objects) = common::open(&sim, HALF).expect("open");
        assert_eq!(value_of(&objects, "a"), Ok(1), "{mode}");
        objects.abandon();
        store.abandon();
        drop(objects);
        in_another_store(&path("two"), mode);
    }
    protect(Mode::None);
}

#[test]
fn what_is_no_whole_snapshot_is_refused_and_leaves_nothing() {
    protect(Mode::Authenticated);
    let (image, dir, path) = with_snapshot(7);
    let (sim, store, objects) = opened(&image);
    objects.pdestroy("a", None).expect("destroyed");
    let files = sim.list("puddles").expect("a directory");
    let whole = std::fs::read(&path).expect("read");
    let bad = dir.path().join("bad");
    let refused = |bytes: &[u8], what: &str| {
        std::fs::write(&bad, bytes).expect("written");
        let error = objects.restore(&bad, None).expect_err(what);
        assert!(matches!(error, ObjectError::Snapshot { .. }), "{what}: {error}");
        assert!(
            store.object("a").is_err() && sim.list("puddles").expect("a directory") == files,
            "{what}"
        );
        error.to_string()
    };
    for len in [0, 1, 511, 512, 4096, whole.len() - 512, whole.len() - 1] {
        let said = refused(&whole[..len], "cut short");
        assert!(said.contains("cut short"), "{said}");
    }
    let longer = [&whole[..], &whole[whole.len() - 512..]].concat();
    assert!(refused(&longer, "longer").contains("bytes instead of"));
    for at in [
        0,
        4096,
        8192,
        20000,
        whole.len() - 600,
        whole.len() - 512,
        whole.len() - 300,
        whole.len() - 1,
    ] {
        let mut bytes = whole.clone();
        bytes[at] ^= 4;
        refused(&bytes, "one bit");
    }
    // An attacker gave it another identity, and summed it up again.
    let mut bytes = whole.clone();
    let at = whole.len() - 512;
    let mut trailer = SnapshotTrailer::read_from_bytes(&bytes[at..]).expect("a trailer");
    trailer.object = Uuid([9; 16]);
    seal(&mut trailer);
    bytes[at..].copy_from_slice(trailer.as_bytes());
    assert!(refused(&bytes, "another identity").contains("protection of another object"));
    assert_eq!(objects.restore(dir.path(), None).expect_err("a directory").errno(), 22);
    assert_eq!(objects.restore(&dir.path().join("none"), None).expect_err("missing").errno(), 2);
    assert_eq!(restored(&objects, &path, None).moved_from, None);
    assert_eq!(value_of(&objects, "a"), Ok(7));
    objects.abandon();
    store.abandon();
    protect(Mode::None);
}

/// Every call of a restore fails once, and so does every write for want of space; so does every
/// read of a snapshot that is made.
#[test]
fn a_call_that_fails_leaves_no_object_and_no_snapshot() {
    let (image, dir, path) = with_snapshot(7);
    for (point, effect) in [
        (FaultPoint::AnyOperation, FaultEffect::Io),
        (FaultPoint::Operation(Operation::Write), FaultEffect::NoSpace),
        (FaultPoint::Operation(Operation::Create), FaultEffect::NoSpace),
    ] {
        let mut failed = 0;
        for skip in 0.. {
            let (sim, store, objects) = opened(&image);
            let before = sim.list("puddles").expect("a directory");
            sim.inject(Fault::once(point, skip, effect));
            let done = objects.restore(&path, Some("z"));
            let hit = sim.fault_hits();
            sim.clear_faults();
            if done.is_err() {
                failed += 1;
                assert!(hit == 1 && objects.info("z").is_err(), "{point:?} {skip}: {done:?}");
                if store.check_usable().is_ok() && objects.pcreate("probe", 1, None, 0o600).is_ok()
                {
                    objects.pdestroy("probe", None).expect("destroyed");
                    assert_eq!(
                        sim.list("puddles").expect("a directory"),
                        before,
                        "{point:?} {skip}"
                    );
                    restored(&objects, &path, Some("z"));
                }
            }
            objects.abandon();
            store.abandon();
            if hit == 0 {
                break;
            }
        }
        assert!(failed > 0, "{point:?}");
    }
    let (sim, store, objects) = opened(&image);
    let id = store.object("a").expect("there").file();
    let new = dir.path().join("new");
    for skip in 0..2 {
        sim.inject(
            Fault::once(FaultPoint::Operation(Operation::Read), skip, FaultEffect::Io).on(&id),
        );
        objects.snapshot("a", &new, Blocks::default()).expect_err("it cannot be read");
        sim.clear_faults();
        assert!(!new.exists(), "{skip}");
    }
    objects.snapshot("a", &new, Blocks::default()).expect("it can");
    objects.abandon();
    store.abandon();
}

const LIMITS: Limits =
    Limits { exhaustive_units: 5, samples: 12, seed: 1, process: true, power: true };

/// `a` is psynced, a snapshot of it made, psynced again, destroyed, restored, and psynced once
/// more. Crashes from the restore on.
fn restore_crashes(mode: Mode, bug: Bug) -> Result<u64, String> {
    protect(mode);
    let dir = tempfile::tempdir().expect("a directory");
    let path = dir.path().join("a.snap");
    let sim = SimMedium::from_image(&base_image(HALF));
    {
        let (store, objects) = common::open(&sim, HALF)?;
        let psync = |value: u8| {
            let mut a = objects.attach("a", Permission::ReadWrite, common::key()).expect("attach");
            a.as_mut_slice().expect("writable").fill(value);
            a.psync().expect("psync");
        };
        psync(1);
        objects.snapshot("a", &path, Blocks::Copied).expect("a snapshot");
        psync(2);
        objects.pdestroy("a", None).expect("destroyed");
        sim.note(1);
        plant(bug);
        let made = objects.restore(&path, None);
        plant(Bug::None);
        made.expect("restored");
        sim.note(2);
        psync(3);
        sim.note(3);
        objects.abandon();
        store.abandon();
    }
    let (mut images, mut violation) = (0, None);
    sim.explore(.., LIMITS, |crash, image| {
        if violation.is_some() || image.note() == 0 {
            return;
        }
        images += 1;
        let look = || -> Result<(), String> {
            let (_sim, store, objects) = {
                let sim = SimMedium::from_image_unrecorded(&image);
                let (store, objects) = common::open(&sim, HALF)?;
                (sim, store, objects)
            };
            let seen = store.object("a").ok().map(|_| value_of(&objects, "a")).transpose();
            objects.abandon();
            store.abandon();
            let seen = seen?;
            let allowed: &[Option<u8>] = match image.note() {
                1 => &[None, Some(1)],
                2 => &[Some(1), Some(3)],
                _ => &[Some(3)],
            };
            if allowed.contains(&seen) {
                Ok(())
            } else {
                Err(format!("note {}: {seen:?}", image.note()))
            }
        };
        violation = look().err().map(|what| format!("crash after event {}: {what}", crash.event()));
    });
    protect(Mode::None);
    violation.map_or(Ok(images), Err)
}

#[test]
fn a_crash_of_restore_leaves_the_whole_object_or_none() {
    for mode in [Mode::None, Mode::Authenticated] {
        let images = restore_crashes(mode, Bug::None).expect("whole or none");
        println!("restore, {mode}: {images} images");
        assert!(images > 20, "{mode}: hardly anything was looked at: {images}");
    }
}

#[test]
fn a_restored_object_that_is_named_before_it_is_durable_is_found() {
    restore_crashes(Mode::None, Bug::RestoreNotSynced).expect_err("the bug was not found");
}

#[test]
fn records_of_an_object_that_had_the_identity_before_are_found() {
    restore_crashes(Mode::Authenticated, Bug::RestoreNotTrimmed)
        .expect_err("the bug was not found");
}

/// Committed records that a read-only open may not write to the primary are in its snapshots all
/// the same.
#[test]
fn a_snapshot_of_a_store_that_may_not_be_recovered_holds_its_last_psync() {
    let dir = tempfile::tempdir().expect("a directory");
    let path = dir.path().join("a.snap");
    let sim = SimMedium::from_image(&base_image(HALF));
    history(&sim, &[Write(0, 0, 12288, 1), Psync(0), Write(0, 0, 12288, 2), Psync(0)], HALF)
        .expect("a history");
    let (mut images, mut laid_over) = (0, 0);
    sim.explore(.., LIMITS, |_, image| {
        images += 1;
        if images % 7 != 0 {
            return;
        }
        let reader = SimMedium::from_image_unrecorded(&image);
        let medium: Arc<dyn Medium> = reader;
        let (store, _) = Store::open(medium, OpenOptions::read_only()).expect("open to read");
        let objects = Objects::open(&store, &common::options(HALF)).expect("objects");
        let seen = value_of(&objects, "a").expect("no mixture");
        laid_over += u64::from(objects.recovery().records > 0);
        objects.snapshot("a", &path, Blocks::default()).expect("a snapshot");
        drop(objects);
        drop(store);
        let (_sim, store, objects) = opened(&image);
        restored(&objects, &path, Some("copy"));
        assert_eq!(value_of(&objects, "copy"), Ok(seen));
        objects.abandon();
        store.abandon();
        std::fs::remove_file(&path).expect("removed");
    });
    assert!(laid_over > 3, "{laid_over} of {images}");
}

/// A snapshot of `a`, full of ones, is made on a medium of its own. Every crash of that leaves no
/// file, one that is refused, or the whole snapshot; once it is acknowledged, the whole snapshot.
fn snapshot_crashes(mode: Mode, bug: Bug, restoring: Bug) -> Result<u64, String> {
    protect(mode);
    let store_image = {
        let sim = SimMedium::from_image_unrecorded(&base_image(HALF));
        history(&sim, &[Write(0, 0, 12288, 1), Psync(0)], HALF)?;
        let (store, objects) = common::open(&sim, HALF)?;
        drop(objects);
        store.close().map_err(|error| error.to_string())?;
        sim.image_now(CrashKind::Process)
    };
    let outside = SimMedium::new(SimOptions::new(Durability::Process));
    {
        let (_sim, store, objects) = opened(&store_image);
        plant(bug);
        let made = objects.snapshot_on("a", &*outside, "a.snap");
        plant(Bug::None);
        objects.abandon();
        store.abandon();
        made.map_err(|error| error.to_string())?;
        outside.note(1);
    }
    let dir = tempfile::tempdir().expect("a directory");
    let path = dir.path().join("a.snap");
    let (mut images, mut refused, mut violation) = (0, 0, None);
    outside.explore(.., Limits { samples: 24, ..LIMITS }, |crash, image| {
        if violation.is_some() {
            return;
        }
        images += 1;
        let mut look = || -> Result<(), String> {
            let acknowledged = image.note() == 1;
            let Some(bytes) = image.file("a.snap") else {
                return if acknowledged { Err("it is not there".into()) } else { Ok(()) };
            };
            std::fs::write(&path, bytes).expect("written");
            let (_sim, store, objects) = opened(&store_image);
            objects.pdestroy("a", None).expect("destroyed");
            plant(restoring);
            let made = objects.restore(&path, None);
            plant(Bug::None);
            let seen = made.map(|_| value_of(&objects, "a"));
            objects.abandon();
            store.abandon();
            match seen {
                Ok(Ok(1)) => Ok(()),
                Ok(other) => Err(format!("restored as {other:?}")),
                Err(error) if acknowledged => Err(format!("acknowledged, and {error}")),
                Err(ObjectError::Snapshot { .. }) => {
                    refused += 1;
                    Ok(())
                }
                Err(other) => Err(format!("refused for a wrong reason: {other}")),
            }
        };
        violation = look().err().map(|what| format!("crash after event {}: {what}", crash.event()));
    });
    protect(Mode::None);
    println!("snapshot, {mode}: {images} images, {refused} refused");
    match violation {
        Some(what) => Err(what),
        None if refused < 10 => Err(format!("hardly anything was refused: {refused} of {images}")),
        None => Ok(images),
    }
}

#[test]
fn a_crash_of_taking_a_snapshot_leaves_a_whole_one_or_one_that_is_refused() {
    for mode in [Mode::None, Mode::Authenticated] {
        let images = snapshot_crashes(mode, Bug::None, Bug::None).expect("whole or refused");
        assert!(images > 20, "{mode}: hardly anything was looked at: {images}");
    }
}

#[test]
fn a_snapshot_that_is_acknowledged_before_it_is_durable_is_found() {
    for bug in [Bug::SnapshotNotSynced, Bug::SnapshotNameNotSynced] {
        let found =
            snapshot_crashes(Mode::None, bug, Bug::None).expect_err("the bug was not found");
        assert!(found.contains("acknowledged") || found.contains("not there"), "{bug:?}: {found}");
    }
}

#[test]
fn a_restore_that_believes_what_does_not_sum_up_is_found() {
    let found = snapshot_crashes(Mode::None, Bug::None, Bug::SnapshotSumIgnored)
        .expect_err("the bug was not found");
    assert!(found.contains("restored as"), "{found}");
}
