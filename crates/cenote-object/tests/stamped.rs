//! Stamps of objects without protection: in a store that was closed, an object's file of another
//! moment is refused. Of a protected object its protection says that.

use crate::common::{host, raw, window_base};
use cenote_journal::Transfer;
use cenote_layout::catalog::HostedClientRecord;
use cenote_layout::id::Uuid;
use cenote_medium::planted::{Bug, plant};
use cenote_medium::sim::{CrashKind, Image, Limits, SimMedium, SimOptions};
use cenote_medium::{Durability, Medium, MediumOptions, RealMedium};
use cenote_object::{
    Blocks, HostedClient, ObjectError, Objects, ObjectsOptions, Permission, Store, Trim,
};
use cenote_store::relocate::{RelocationOptions, RewriteJob, Rewriter, Rewritten};
use cenote_store::{
    Access, AtRest, BackedUp, Credentials, Damage, FormatOptions, NewObject, OpenOptions,
    StoreError,
};
use cenote_testkit::directories::directory;
use std::collections::BTreeSet;
use std::fs;
use std::path::{Path, PathBuf};
use std::sync::Arc;

const LEN: u64 = 64 << 10;
/// The bugs that bring back what was before there were stamps.
const BUGS: [Bug; 4] =
    [Bug::ObjectsUnstamped, Bug::ObjectNotMarked, Bug::NotMarked, Bug::StampNotCompared];

fn medium_of(dir: &Path) -> Arc<RealMedium> {
    Arc::new(RealMedium::open(dir, &MediumOptions::default()).expect("medium"))
}

/// Stores of these tests have no pools.
#[derive(Debug)]
struct NoPools;

// SAFETY: it makes nothing of an image.
unsafe impl Rewriter for NoPools {
    fn rewrite(&self, _: &mut [u8], _: &RewriteJob) -> Result<Rewritten, String> {
        Err("there is no pool".into())
    }
}

/// Opens where another window is free, too.
fn movable(access: Access) -> OpenOptions {
    let rewriter: Option<Arc<dyn Rewriter>> = Some(Arc::new(NoPools));
    let relocation = RelocationOptions { rewriter, ..RelocationOptions::default() };
    OpenOptions { access, relocation, ..OpenOptions::default() }
}

fn opened_on(medium: Arc<dyn Medium>, hosting: bool) -> (Store, Objects) {
    // SAFETY: no object that a client has is attached in this process.
    let hosting = hosting.then(|| unsafe { cenote_store::Hosting::new() });
    let options = OpenOptions { hosting, spare_bytes_max: 0, ..movable(Access::ReadWrite) };
    let (store, _) = Store::open(medium, options).expect("opened");
    let options =
        ObjectsOptions { half_len: 1 << 17, trim: Trim::Inline, ..ObjectsOptions::default() };
    let objects = Objects::open(&store, &options).expect("objects");
    (store, objects)
}

fn opened(dir: &Path) -> (Store, Objects) {
    opened_on(medium_of(dir), false)
}

fn closed((store, objects): (Store, Objects)) {
    drop(objects);
    store.close().expect("closed");
}

/// Fills an object with a value, and psyncs it.
fn fill(objects: &Objects, name: &str, value: u8) {
    let mut object = objects.attach(name, Permission::ReadWrite, None).expect("attached");
    object.as_mut_slice().expect("writable").fill(value);
    object.psync().expect("psynced");
    object.detach().expect("detached");
}

/// What all bytes of an object are.
fn shown(objects: &Objects, name: &str) -> Result<BTreeSet<u8>, ObjectError> {
    let object = objects.attach(name, Permission::Read, None)?;
    Ok(object.as_slice().iter().copied().collect())
}

fn refused<T>(result: &Result<T, ObjectError>) -> bool {
    matches!(result, Err(ObjectError::Store(StoreError::ObjectDamaged { detail, .. }))
        if detail.contains("of another moment") && detail.contains("restore the whole store"))
}

/// A closed store with two objects at 1, and the file of the first.
fn made(keep: &Path) -> (PathBuf, PathBuf) {
    let dir = keep.join("store");
    fs::create_dir(&dir).expect("made");
    let format =
        FormatOptions { window_base: Some(window_base()), window_len: 64 << 20, uuid: None };
    cenote_store::format(medium_of(&dir), &format).expect("formatted");
    let session = opened(&dir);
    for name in ["written", "idle"] {
        session.1.pcreate(name, LEN, None, 0o600).expect("created");
        fill(&session.1, name, 1);
    }
    let file = dir.join(session.1.info("written").expect("known").object.file());
    closed(session);
    (dir, file)
}

/// An object's file of the close before is put back.
fn put_back(bug: Bug) -> Result<BTreeSet<u8>, ObjectError> {
    let keep = directory();
    let (dir, file) = made(keep.path());
    let older = fs::read(&file).expect("read");
    plant(bug);
    let session = opened(&dir);
    fill(&session.1, "written", 2);
    closed(session);
    fs::write(&file, &older).expect("put back");
    let session = opened(&dir);
    let found = shown(&session.1, "written");
    closed(session);
    plant(Bug::None);
    found
}

#[test]
fn an_older_file_of_an_object_that_is_put_back_in_a_closed_store_is_refused() {
    let found = put_back(Bug::None);
    assert!(refused(&found), "{found:?}");
    for bug in BUGS {
        let found = put_back(bug);
        assert_eq!(found.expect("it was served"), BTreeSet::from([1]), "{bug:?}");
    }
}

#[test]
fn every_use_of_such_a_file_is_refused_and_nothing_else() {
    let keep = directory();
    let (dir, file) = made(keep.path());
    let older = fs::read(&file).expect("read");
    let session = opened(&dir);
    fill(&session.1, "written", 2);
    closed(session);
    let newer = fs::read(&file).expect("read");
    fs::write(&file, &older).expect("put back");
    for _ in 0..2 {
        let (store, objects) = opened(&dir);
        for permission in [Permission::Read, Permission::ReadWrite] {
            let found = objects.attach("written", permission, None);
            assert!(refused(&found), "{permission:?}: {found:?}");
        }
        let copied = objects.snapshot("written", &keep.path().join("snapshot"), Blocks::Copied);
        assert!(refused(&copied), "{copied:?}");
        let damage = raw(&store).damaged_files().expect("looked at");
        let told = |damage: &Damage| {
            matches!(damage, Damage::Object { name, detail }
                if name == "written" && detail.contains("of another moment"))
        };
        assert!(damage.len() == 1 && told(&damage[0]), "{damage:?}");
        assert_eq!(shown(&objects, "idle").expect("whole"), BTreeSet::from([1]));
        // The close does not seal it.
        closed((store, objects));
    }
    fs::write(&file, &newer).expect("put back");
    let session = opened(&dir);
    assert_eq!(shown(&session.1, "written").expect("whole"), BTreeSet::from([2]));
    fill(&session.1, "written", 3);
    closed(session);
    let session = opened(&dir);
    assert_eq!(shown(&session.1, "written").expect("whole"), BTreeSet::from([3]));
    closed(session);
}

#[test]
fn a_backup_tells_such_a_file_and_its_copy_refuses_it() {
    let keep = directory();
    let (dir, file) = made(keep.path());
    let older = fs::read(&file).expect("read");
    let session = opened(&dir);
    fill(&session.1, "written", 2);
    closed(session);
    let copied = |name: &str| {
        let (store, objects) = opened(&dir);
        let to = keep.path().join(name);
        let mut backup = raw(&store).begin_backup(&to).expect("begun");
        backup.copy_ahead(&mut |_, _| true).expect("copied");
        backup.copy_held().expect("held");
        let report = backup.finish().and_then(BackedUp::durable).expect("finished");
        closed((store, objects));
        (to, report.damage)
    };
    let (whole, damage) = copied("whole");
    assert!(damage.is_empty(), "{damage:?}");
    fs::write(&file, &older).expect("put back");
    let (torn, damage) = copied("torn");
    assert!(damage.len() == 1 && damage[0].to_string().contains("of another moment"), "{damage:?}");
    let session = opened(&whole);
    assert_eq!(shown(&session.1, "written").expect("whole"), BTreeSet::from([2]));
    closed(session);
    let session = opened(&torn);
    let found = shown(&session.1, "written");
    assert!(refused(&found), "{found:?}");
    assert_eq!(shown(&session.1, "idle").expect("whole"), BTreeSet::from([1]));
    closed(session);
    // A file of the original is none of the copy.
    let session = opened(&whole);
    let name = session.1.info("written").expect("known").object.file();
    closed(session);
    fs::write(whole.join(name), &older).expect("put there");
    let session = opened(&whole);
    let found = shown(&session.1, "written");
    assert!(refused(&found), "{found:?}");
    closed(session);
}

/// Address space that something else of this process has.
struct Taken(u64);

impl Taken {
    fn new(base: u64) -> Self {
        cenote_sys::memory::reserve(base as usize, 1 << 21).expect("free");
        Self(base)
    }
}

impl Drop for Taken {
    fn drop(&mut self) {
        // SAFETY: reserved by `new`; nothing was mapped there.
        unsafe { cenote_sys::memory::release(self.0 as usize, 1 << 21) }.expect("reserved");
    }
}

/// The window is taken again and again. A session without objects moves the store, a reader looks
/// before that, and others write one of the objects.
fn after_moves(bug: Bug) -> Result<(), ObjectError> {
    let keep = directory();
    let (dir, file) = made(keep.path());
    let (mut home, mut taken) = (window_base(), Vec::new());
    for value in 2..5 {
        taken.push(Taken::new(home));
        plant(bug);
        let (store, _) = Store::open(medium_of(&dir), movable(Access::ReadOnly)).expect("opened");
        let objects = Objects::open(&store, &ObjectsOptions::default()).expect("objects");
        let idle = shown(&objects, "idle");
        drop(objects);
        store.close().expect("closed");
        assert_eq!(idle?, BTreeSet::from([1]));
        let (store, _) = Store::open(medium_of(&dir), movable(Access::ReadWrite)).expect("opened");
        assert_ne!(raw(&store).window().0, home);
        home = raw(&store).window().0;
        store.close().expect("closed");
        let older = fs::read(&file).expect("read");
        let session = opened(&dir);
        let idle = shown(&session.1, "idle");
        plant(Bug::None);
        if let Ok(idle) = &idle {
            assert_eq!(*idle, BTreeSet::from([1]));
            assert_eq!(shown(&session.1, "written")?, BTreeSet::from([value - 1]));
            fill(&session.1, "written", value);
        }
        closed(session);
        idle?;
        // What was put back is refused all the same.
        let newer = fs::read(&file).expect("read");
        fs::write(&file, &older).expect("put back");
        let session = opened(&dir);
        let found = shown(&session.1, "written");
        assert!(refused(&found), "{found:?}");
        closed(session);
        fs::write(&file, &newer).expect("put back");
    }
    Ok(())
}

#[test]
fn objects_are_served_after_the_window_of_their_store_has_moved() {
    after_moves(Bug::None).expect("whole");
    let found = after_moves(Bug::MovedObjectUnsealed);
    plant(Bug::None);
    assert!(refused(&found), "{found:?}");
}

/// The first half of an object's file is copied before a psync of an open session, the other after
/// it, and the rest of the store when that has closed.
fn hot_copy(bug: Bug) -> Result<BTreeSet<u8>, ObjectError> {
    let keep = directory();
    let (dir, file) = made(keep.path());
    plant(bug);
    let (store, objects) = opened(&dir);
    fill(&objects, "written", 2);
    objects.checkpoint().expect("in the file");
    let mut halves = fs::read(&file).expect("read");
    fill(&objects, "written", 3);
    objects.checkpoint().expect("in the file");
    let half = halves.len() / 2;
    halves.splice(half.., fs::read(&file).expect("read").split_off(half));
    closed((store, objects));
    fs::write(&file, &halves).expect("copied");
    let session = opened(&dir);
    let found = shown(&session.1, "written");
    closed(session);
    plant(Bug::None);
    found
}

#[test]
fn a_file_that_is_copied_while_a_session_writes_it_is_refused_after_the_close() {
    let found = hot_copy(Bug::None);
    assert!(refused(&found), "{found:?}");
    for bug in BUGS {
        let found = hot_copy(bug);
        assert_eq!(found.expect("it was served"), BTreeSet::from([2, 3]), "{bug:?}");
    }
}

/// Recovery replays a psync into a file that a close without objects has sealed; the file of
/// before is put back.
fn replayed(bug: Bug) -> Result<BTreeSet<u8>, ObjectError> {
    let keep = directory();
    let (dir, file) = made(keep.path());
    let (store, objects) = opened(&dir);
    fill(&objects, "written", 2);
    let object = objects.attach("written", Permission::ReadWrite, None).expect("attached");
    objects.abandon();
    store.clone().abandon();
    drop((object, objects, store));
    let (store, _) = Store::open(medium_of(&dir), OpenOptions::default()).expect("opened");
    store.close().expect("closed");
    let older = fs::read(&file).expect("read");
    plant(bug);
    let (store, objects) = opened(&dir);
    assert!(objects.recovery().records > 0);
    assert_eq!(shown(&objects, "written").expect("whole"), BTreeSet::from([2]));
    closed((store, objects));
    fs::write(&file, &older).expect("put back");
    let session = opened(&dir);
    let found = shown(&session.1, "written");
    closed(session);
    plant(Bug::None);
    found
}

#[test]
fn a_file_of_before_a_replay_is_refused() {
    let found = replayed(Bug::None);
    assert!(refused(&found), "{found:?}");
    for bug in BUGS {
        assert!(replayed(bug).is_ok(), "{bug:?}");
    }
}

/// A session is killed with an object attached; others that do not use it close the store. The
/// object's header says "attached for writing" then, and it is whole.
#[test]
fn an_object_that_a_killed_session_had_is_served_after_any_close() {
    let keep = directory();
    let (dir, _) = made(keep.path());
    for value in 2..5 {
        let (store, objects) = opened(&dir);
        fill(&objects, "written", value);
        let object = objects.attach("written", Permission::ReadWrite, None).expect("attached");
        objects.abandon();
        store.clone().abandon();
        drop((object, objects, store));
        for _ in 0..2 {
            let (store, _) = Store::open(medium_of(&dir), OpenOptions::default()).expect("opened");
            store.close().expect("closed");
        }
        let session = opened(&dir);
        assert_eq!(shown(&session.1, "written").expect("whole"), BTreeSet::from([value]));
        closed(session);
    }
}

const CLIENT: Uuid = Uuid([5; 16]);

/// A client attaches, psyncs and detaches an object, and ends.
fn by_client(sim: &Arc<SimMedium>, value: u8) {
    let (store, objects) = opened_on(sim.clone(), true);
    let hosted = host(&objects);
    let credentials = Credentials { uid: 7, gid: 7, groups: Vec::new() };
    let (client, pid, start_ticks) = (CLIENT, 0x7fff_ffff, 3);
    raw(&store)
        .admit(HostedClientRecord { client, pid, start_ticks, uid: 7, gid: 7 })
        .expect("admitted");
    let hosted_client = HostedClient { client, pid, start_ticks, credentials: &credentials };
    let new = NewObject {
        id: Uuid([0x60; 16]),
        name: "client's".into(),
        data_len: 4096,
        permissions: 0o666,
        at_rest: AtRest::None,
        header: Vec::new(),
    };
    let id = hosted.create_for(&hosted_client, &new).expect("created").id();
    raw(&store).client_attach_object(client, &credentials, "client's", true).expect("attached");
    let granted = hosted.attach_for(&hosted_client, "client's", Permission::ReadWrite);
    // A simulated file has no descriptor.
    assert!(granted.is_err());
    let shadow = vec![value; 4096];
    let mut transfer = Transfer::new(8).expect("transfer");
    let pages = core::slice::from_ref(&(0..1));
    transfer.add_pages(0, shadow.as_ptr().addr(), pages).expect("pages");
    let (file, runs) = transfer.finish().expect("finished");
    hosted.psync_for(&hosted_client, &[id], (&file, runs), true).expect("psynced");
    hosted.detach_for(&hosted_client, id).expect("detached");
    raw(&store).client_end(client, false).expect("ended");
    drop(hosted);
    closed((store, objects));
}

/// A daemon's store: what its client psynced is sealed, and the file of before is refused.
fn hosted(bug: Bug) -> Result<BTreeSet<u8>, ObjectError> {
    let sim = SimMedium::new(SimOptions::new(Durability::Process));
    let format =
        FormatOptions { window_base: Some(window_base()), window_len: 64 << 20, uuid: None };
    cenote_store::format(sim.clone(), &format).expect("formatted");
    by_client(&sim, 1);
    let before = sim.image_now(CrashKind::Process);
    plant(bug);
    by_client(&sim, 2);
    let mut image = sim.image_now(CrashKind::Process);
    let name: Vec<u8> = Uuid([0x60; 16]).to_hex().to_vec();
    image.roll_back(&format!("puddles/{}", String::from_utf8(name).expect("hex")), &before);
    let session = opened_on(SimMedium::from_image_unrecorded(&image), true);
    let found = session.1.snapshot_on(
        "client's",
        &*SimMedium::new(SimOptions::new(Durability::Process)),
        "copy",
    );
    closed(session);
    plant(Bug::None);
    found.map(|_| BTreeSet::new())
}

#[test]
fn a_file_that_a_daemons_client_has_written_since_is_refused() {
    let found = hosted(Bug::None);
    assert!(refused(&found), "{found:?}");
    assert!(hosted(Bug::ObjectNotMarked).is_ok());
}

/// A loss of power at any moment of an attach, a psync and a close, with any part of what was not
/// synced: the object is there at the next open, and at the one after that.
fn with_losses(bug: Bug) -> Vec<String> {
    let image: Image = crate::common::base_image(8192);
    let sim = SimMedium::from_image(&image);
    let session = opened_on(sim.clone(), false);
    let begun = sim.trace_len();
    fill(&session.1, "a", 7);
    plant(bug);
    closed(session);
    plant(Bug::None);
    let limits = Limits { exhaustive_units: 4, samples: 4, ..Limits::default() };
    let mut wrong = Vec::new();
    sim.explore(begun.., limits, |state, image| {
        let sim = SimMedium::from_image_unrecorded(&image);
        for open in ["first", "second"] {
            let session = opened_on(sim.clone(), false);
            match shown(&session.1, "a") {
                Ok(values) if values.len() == 1 => {}
                other => wrong.push(format!("event {}, {open} open: {other:?}", state.event())),
            }
            closed(session);
        }
    });
    wrong
}

#[test]
fn a_loss_of_power_in_a_session_condemns_no_object() {
    let wrong = with_losses(Bug::None);
    assert!(wrong.is_empty(), "{}:\n{}", wrong.len(), wrong.join("\n"));
    assert!(!with_losses(Bug::SealNotSynced).is_empty());
}
