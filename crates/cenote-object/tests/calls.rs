//! Every file operation of every path of objects goes wrong once, in every way that a system call
//! can: it fails with `EIO` or `ENOSPC`, a write arrives in part and then fails, or arrives in two
//! parts. Then the path fails or succeeds, and nothing in between: what it was to change is as it
//! was, the store works on and the path succeeds when it is taken again; or a sync has failed, and
//! the store is poisoned. After every crash from there, what was acknowledged is there, and else
//! what was before or all of it.

use crate::common::{self, base_image, bytes_of, key_of, protect, the_key, window_base};
use cenote_layout::at_rest::Mode;
use cenote_medium::planted::{Bug, plant};
use cenote_medium::sim::{
    CrashKind, Fault, FaultEffect, FaultPoint, Image, Rest, SimMedium, SimOptions,
};
use cenote_medium::{Durability, Medium, Operation};
use cenote_object::{
    Attached, Blocks, ObjectError, ObjectOptions, Objects, Permission, Rekeyed, Store,
};
use std::path::PathBuf;
use std::sync::Arc;

fn short(eighths: u8, then: Rest) -> FaultEffect {
    FaultEffect::Short { eighths, then }
}

/// A write that arrives in two parts: no caller may notice.
const TWO_PARTS: FaultEffect = FaultEffect::Short { eighths: 4, then: Rest::Written };

/// Where a path is taken.
struct Scene {
    sim: Arc<SimMedium>,
    /// Where snapshots are written.
    outside: Arc<SimMedium>,
    store: Store,
    objects: Objects,
    attached: Option<Attached>,
    /// A snapshot of `a` full of ones, in the file system.
    snapshot: PathBuf,
    mode: Mode,
}

/// What is to be seen of a path: not yet taken, or taken.
type Seen = Result<bool, String>;

/// One path.
#[derive(Clone, Copy)]
struct Path {
    name: &'static str,
    half_len: u64,
    /// What comes before, without faults.
    prepare: fn(&mut Scene) -> Result<(), ObjectError>,
    take: fn(&mut Scene) -> Result<(), ObjectError>,
    /// Whether it has been taken, as a program sees it that has just opened the store.
    seen: fn(&Scene) -> Seen,
}

const NAME: &str = "new.snap";

fn text(error: impl std::fmt::Display) -> String {
    error.to_string()
}

fn attach(scene: &Scene, name: &str) -> Result<Attached, ObjectError> {
    scene.objects.attach(name, Permission::ReadWrite, common::key())
}

/// Whether `name` is full of ones, or of zeros.
fn ones(scene: &Scene, name: &str, key: Option<&cenote_object::Keyring>) -> Seen {
    let object = scene.objects.attach(name, Permission::Read, key).map_err(text)?;
    let bytes = bytes_of(&object)?;
    match bytes[0] {
        first if bytes[..9000].iter().any(|byte| *byte != first) => {
            Err(format!("{name} is a mixture"))
        }
        first => Ok(first == 1),
    }
}

fn write_ones(scene: &mut Scene) -> Result<(), ObjectError> {
    let mut a = attach(scene, "a")?;
    a.as_mut_slice()?.fill(1);
    scene.attached = Some(a);
    Ok(())
}

fn psync(scene: &mut Scene) -> Result<(), ObjectError> {
    let a = scene.attached.as_mut().expect("attached");
    let done = a.psync().map(drop);
    let mut shadow = [0; 12288];
    a.read_at(0, &mut shadow)?;
    assert!(shadow.iter().all(|byte| *byte == 1), "the shadow lost what was stored");
    done
}

fn no_preparation(_: &mut Scene) -> Result<(), ObjectError> {
    Ok(())
}

const PCREATE: Path = Path {
    name: "pcreate",
    half_len: 8192,
    prepare: no_preparation,
    take: |scene| {
        let options = ObjectOptions { at_rest: scene.mode, permissions: 0o600 };
        scene.objects.pcreate_with("new", 12288, common::key(), &options).map(drop)
    },
    seen: |scene| match scene.store.object("new") {
        Ok(_) => ones(scene, "new", common::key()).map(|ones| !ones),
        Err(_) => Ok(false),
    },
};

/// The journal has to grow for it if its halves are small.
const PSYNC: Path = Path {
    name: "psync",
    half_len: 4096,
    prepare: write_ones,
    take: psync,
    seen: |scene| ones(scene, "a", common::key()),
};

/// Several psyncs before, which are applied and trimmed because the journal is full.
const PSYNC_THAT_TRIMS: Path = Path {
    name: "psync that trims",
    half_len: 1 << 14,
    prepare: |scene| {
        let mut b = attach(scene, "b")?;
        for value in 1..=8 {
            b.as_mut_slice()?.fill(value);
            b.psync()?;
        }
        drop(b);
        write_ones(scene)
    },
    ..PSYNC
};

/// It brings what was psynced to the object's file.
const DETACH: Path = Path {
    name: "detach",
    half_len: 1 << 16,
    prepare: |scene| {
        write_ones(scene)?;
        psync(scene)
    },
    take: |scene| match scene.attached.take() {
        Some(a) => a.detach(),
        None => attach(scene, "a")?.detach(),
    },
    seen: |scene| ones(scene, "a", common::key()),
};

const SNAPSHOT: Path = Path {
    name: "snapshot",
    half_len: 1 << 16,
    prepare: |scene| {
        write_ones(scene)?;
        psync(scene)?;
        (DETACH.take)(scene)
    },
    take: |scene| {
        let taken = scene.objects.snapshot_on("a", &*scene.outside, NAME).map(drop);
        assert!(
            taken.is_ok() || !scene.outside.exists(NAME).expect("a look"),
            "{taken:?} leaves a file"
        );
        taken
    },
    seen: |scene| ones(scene, "a", common::key()),
};

const RESTORE: Path = Path {
    name: "restore",
    half_len: 1 << 16,
    prepare: |scene| {
        write_ones(scene)?;
        psync(scene)?;
        (DETACH.take)(scene)?;
        scene.objects.snapshot("a", &scene.snapshot, Blocks::Copied)?;
        scene.objects.pdestroy("a", None)
    },
    take: |scene| match common::key() {
        // Its protection is bound to its name.
        Some(key) => scene.objects.restore_as(&scene.snapshot, "z", key).map(drop),
        None => scene.objects.restore(&scene.snapshot, Some("z")).map(drop),
    },
    seen: |scene| match scene.store.object("z") {
        Ok(_) => ones(scene, "z", common::key())
            .and_then(|ones| if ones { Ok(true) } else { Err("it is there and empty".into()) }),
        Err(_) => Ok(false),
    },
};

const REKEY: Path = Path {
    name: "rekey",
    half_len: 8192,
    prepare: no_preparation,
    take: |scene| match scene.objects.rekey("a", the_key(), &key_of(2))? {
        Rekeyed::Done => Ok(()),
        Rekeyed::Unfinished(error) => Err(error),
    },
    seen: |scene| {
        let (old, new) =
            (ones(scene, "a", Some(the_key())).is_ok(), ones(scene, "a", Some(&key_of(2))).is_ok());
        if old == new {
            Err(format!("the old key opens it: {old}, the new one: {new}"))
        } else {
            Ok(new)
        }
    },
};

/// The store that a path starts from: with objects and a journal, or with neither.
fn base(path: &Path, bare: bool) -> Image {
    if !bare {
        return base_image(path.half_len);
    }
    let sim = SimMedium::new(SimOptions::new(Durability::Process));
    let medium: Arc<dyn Medium> = sim.clone();
    let format = cenote_store::FormatOptions {
        window_base: Some(window_base()),
        window_len: 64 << 20,
        ..Default::default()
    };
    cenote_store::format(medium, &format).expect("format");
    sim.image_now(CrashKind::Process)
}

fn scene(image: &Image, path: &Path, mode: Mode, snapshot: PathBuf) -> Scene {
    let sim = SimMedium::from_image(image);
    let outside = SimMedium::new(SimOptions::new(Durability::Process));
    let (store, objects) = common::open(&sim, path.half_len).expect("open");
    Scene { sim, outside, store, objects, attached: None, snapshot, mode }
}

impl Scene {
    fn leave(self) {
        self.objects.abandon();
        drop(self.attached);
        self.store.abandon();
    }
}

/// What was tried.
#[derive(Clone, Copy, Debug, Default)]
struct Tally {
    calls: u64,
    failed: u64,
    poisoned: u64,
}

/// One call of a path goes wrong. `None`: it has no such call.
fn one_call(
    base: &Image,
    path: &Path,
    mode: Mode,
    fault: Fault,
    outside: bool,
    tally: &mut Tally,
) -> Option<()> {
    let dir = tempfile::tempdir().expect("a directory");
    let mut scene = scene(base, path, mode, dir.path().join("a.snap"));
    (path.prepare)(&mut scene).expect("prepared");
    let (syncs, two_parts) =
        (fault.point == FaultPoint::Operation(Operation::Sync), fault.effect == TWO_PARTS);
    let at = format!("{}, {mode}, {:?} {} {:?}", path.name, fault.point, fault.skip, fault.effect);
    let sim = if outside { Arc::clone(&scene.outside) } else { Arc::clone(&scene.sim) };
    sim.inject(fault);
    let done = (path.take)(&mut scene);
    let hit = sim.fault_hits() > 0;
    sim.clear_faults();
    assert!(done.is_ok() || (hit && !two_parts), "{at}: {done:?}");
    let usable = scene.store.check_usable().is_ok();
    assert!(usable || !outside, "{at}: what is outside the store poisons it: {done:?}");
    if hit && syncs && !outside {
        assert!(done.is_err() && !usable, "{at}: a failed sync, and the store goes on: {done:?}");
        assert!(
            scene.objects.pcreate("x", 4096, None, 0o600).is_err(),
            "{at}: a poisoned store acknowledges"
        );
    }
    let mut acknowledged = done.is_ok();
    if done.is_err() && usable {
        let again = (path.take)(&mut scene);
        assert!(again.is_ok(), "{at}: {done:?}, and when it is done again: {again:?}");
        acknowledged = true;
    }
    tally.calls += u64::from(hit);
    tally.failed += u64::from(done.is_err());
    tally.poisoned += u64::from(!usable);
    let crashed = scene.sim.state_now();
    scene.leave();
    for image in [crashed.image_process(), crashed.image_oldest(), crashed.image_latest()] {
        let after = self::scene(&image, path, mode, dir.path().join("none"));
        let seen = (path.seen)(&after);
        let fits = seen.as_ref().is_ok_and(|taken| *taken || !acknowledged);
        assert!(
            fits,
            "{at}: {done:?}, acknowledged {acknowledged}, after a crash {:?}: {seen:?}",
            image.kind()
        );
        after.leave();
    }
    hit.then_some(())
}

#[track_caller]
fn every_call(path: &Path, mode: Mode, bare: bool) {
    protect(mode);
    let base = base(path, bare);
    let mut tally = Tally::default();
    let any = FaultPoint::AnyOperation;
    let write = FaultPoint::Operation(Operation::Write);
    let sync = FaultPoint::Operation(Operation::Sync);
    let mut ways =
        vec![(any, FaultEffect::Io), (any, FaultEffect::NoSpace), (sync, FaultEffect::Io)];
    ways.extend(
        [short(0, Rest::NoSpace), short(1, Rest::NoSpace), short(4, Rest::Io)].map(|e| (write, e)),
    );
    ways.extend([short(7, Rest::NoSpace), short(8, Rest::Io), TWO_PARTS].map(|e| (write, e)));
    for outside in [false, true] {
        if outside && path.name != SNAPSHOT.name {
            continue;
        }
        for (point, effect) in &ways {
            let mut calls = 0;
            while one_call(
                &base,
                path,
                mode,
                Fault::once(*point, calls, *effect),
                outside,
                &mut tally,
            )
            .is_some()
            {
                calls += 1;
                assert!(calls < 400, "it has no end");
            }
            // Nothing of the store is written for a snapshot, and a detach syncs nothing.
            let none = (path.name == SNAPSHOT.name && !outside)
                || (path.name == DETACH.name && *point == sync);
            assert!(
                calls > 0 || none,
                "{}, {mode}: nothing was hit by {point:?} {effect:?}",
                path.name
            );
        }
    }
    println!("{}, {mode}: {tally:?}", path.name);
    assert!(tally.failed > 10, "{}, {mode}: hardly any call failed: {tally:?}", path.name);
    protect(Mode::None);
}

#[test]
fn every_call_of_pcreate_may_fail() {
    every_call(&PCREATE, Mode::None, true);
    every_call(&PCREATE, Mode::Authenticated, false);
}

#[test]
fn every_call_of_psync_may_fail() {
    for mode in [Mode::None, Mode::Encryption, Mode::Authenticated] {
        every_call(&PSYNC, mode, false);
    }
    every_call(&PSYNC_THAT_TRIMS, Mode::None, false);
}

#[test]
fn every_call_of_detach_may_fail() {
    for mode in [Mode::None, Mode::EncryptionIntegrity] {
        every_call(&DETACH, mode, false);
    }
}

#[test]
fn every_call_of_snapshot_may_fail() {
    for mode in [Mode::None, Mode::Authenticated] {
        every_call(&SNAPSHOT, mode, false);
    }
}

#[test]
fn every_call_of_restore_may_fail() {
    for mode in [Mode::None, Mode::Authenticated] {
        every_call(&RESTORE, mode, false);
    }
}

#[test]
fn every_call_of_rekey_may_fail() {
    every_call(&REKEY, Mode::Encryption, false);
    every_call(&REKEY, Mode::Authenticated, false);
}

/// Changes a key while one call fails, or all from that one on: what was said, against which key
/// opens the object then, after every way to stop there. How many calls there were.
fn rekeys(mode: Mode, repeats: bool) -> Result<u64, String> {
    protect(mode);
    let base = base(&REKEY, false);
    let any = FaultPoint::AnyOperation;
    let write = FaultPoint::Operation(Operation::Write);
    let sync = FaultPoint::Operation(Operation::Sync);
    let ways = [
        (any, FaultEffect::Io),
        (any, FaultEffect::NoSpace),
        (sync, FaultEffect::Io),
        (write, short(4, Rest::Io)),
        (write, short(8, Rest::Io)),
    ];
    let (mut calls, mut said_new) = (0, 0);
    for (point, effect) in ways {
        let mut skip = 0;
        loop {
            let scene = scene(&base, &REKEY, mode, PathBuf::new());
            scene.sim.inject(Fault { repeats, ..Fault::once(point, skip, effect) });
            let said = scene.objects.rekey("a", the_key(), &key_of(2));
            let hit = scene.sim.fault_hits() > 0;
            scene.sim.clear_faults();
            let crashed = scene.sim.state_now();
            scene.leave();
            let mut images = vec![crashed.image_process()];
            // If the device takes nothing any more, what it will have is not known.
            if !repeats {
                images.extend([crashed.image_oldest(), crashed.image_latest()]);
            }
            for image in images {
                let after = self::scene(&image, &REKEY, mode, PathBuf::new());
                let new = (REKEY.seen)(&after);
                after.leave();
                if new != Ok(said.is_ok()) {
                    let at = format!("{mode}, {point:?} {skip} {effect:?}, {:?}", image.kind());
                    return Err(format!("{at}: {said:?}, and the new key opens it: {new:?}"));
                }
            }
            said_new += u64::from(hit && said.is_ok());
            calls += u64::from(hit);
            skip += 1;
            if !hit {
                break;
            }
        }
    }
    protect(Mode::None);
    assert!(said_new > 0, "{mode}: no fault came after the commit");
    Ok(calls)
}

#[test]
fn a_change_of_a_key_says_which_key_it_is_when_a_call_fails() {
    for mode in [Mode::Encryption, Mode::Authenticated] {
        for repeats in [false, true] {
            let calls =
                rekeys(mode, repeats).unwrap_or_else(|error| panic!("repeats {repeats}: {error}"));
            assert!(calls > 10, "{calls}");
        }
    }
}

#[test]
fn a_change_of_a_key_that_reports_every_error_alike_is_found() {
    plant(Bug::RekeyUndecided);
    let found = rekeys(Mode::Authenticated, false);
    plant(Bug::None);
    println!("{}", found.expect_err("the bug was not found"));
    protect(Mode::None);
}
