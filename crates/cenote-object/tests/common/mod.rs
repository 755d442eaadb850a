//! A store with objects on the simulated medium, histories of psyncs on it, and the oracle: what
//! may be there after a crash.

#![allow(dead_code, reason = "not every test uses all of it")]

use cenote_medium::planted::{Bug, plant};
use cenote_medium::sim::{CrashKind, Image, Limits, SimMedium, SimOptions};
use cenote_medium::{Durability, Medium, OwnedMedium};
use cenote_object::{
    Attached, Host, Keyring, MasterKey, Mode, ObjectOptions, Objects, ObjectsOptions, Permission,
    Store, Trim, psync_all,
};
use cenote_store::{FormatOptions, OpenOptions};
use std::cell::Cell;
use std::sync::{Arc, OnceLock};

/// The objects of every history: name and bytes.
pub(crate) const OBJECTS: [(&str, u64); 3] = [("a", 3 * 4096), ("b", 100), ("still", 4096)];

/// Contents of all objects.
pub(crate) type State = Vec<Vec<u8>>;

/// Options of the simulation: small halves, so that the journal is soon reused; everything in the
/// calling thread.
pub(crate) fn options(half_len: u64) -> ObjectsOptions {
    ObjectsOptions { half_len, trim: Trim::Inline, ..ObjectsOptions::default() }
}

thread_local! {
    /// How the objects of this thread's histories are protected.
    static MODE: Cell<Mode> = const { Cell::new(Mode::None) };
}

/// From now on the objects of this thread's histories are protected so.
pub(crate) fn protect(mode: Mode) {
    MODE.set(mode);
}

/// The key of all protected objects.
pub(crate) fn the_key() -> &'static Keyring {
    static KEY: OnceLock<Keyring> = OnceLock::new();
    KEY.get_or_init(|| key_of(1))
}

/// A key that no other number has.
pub(crate) fn key_of(number: u8) -> Keyring {
    let mut bytes: [u8; 32] =
        core::array::from_fn(|i| (i as u8).wrapping_mul(7).wrapping_add(number));
    Keyring::new(MasterKey::from_bytes(&mut bytes).expect("a key"))
}

/// What the objects of this thread's histories are attached with.
pub(crate) fn key() -> Option<&'static Keyring> {
    MODE.get().has_key().then(the_key)
}

/// A medium whose files a test may change.
pub(crate) fn own<'a>(
    medium: &'a (dyn Medium + 'static),
) -> OwnedMedium<&'a (dyn Medium + 'static)> {
    // SAFETY: these files are not mapped while a test changes them, or through a private copy.
    unsafe { OwnedMedium::new(medium) }
}

/// A free window for this thread's simulations.
pub(crate) fn window_base() -> u64 {
    use std::sync::atomic::{AtomicU64, Ordering::Relaxed};
    static NEXT: AtomicU64 = AtomicU64::new(0);
    thread_local! { static MINE: u64 = 0x5000_0000_0000 + (NEXT.fetch_add(1, Relaxed) << 32) }
    MINE.with(|base| *base)
}

/// A formatted store with [`OBJECTS`], closed.
pub(crate) fn base_image(half_len: u64) -> Image {
    let sim = SimMedium::new(SimOptions::new(Durability::Process));
    let medium: Arc<dyn Medium> = sim.clone();
    let format = FormatOptions {
        window_base: Some(window_base()),
        window_len: 64 << 20,
        ..Default::default()
    };
    cenote_store::format(medium, &format).expect("format");
    let (store, objects) = open(&sim, half_len).expect("open");
    for (name, len) in OBJECTS {
        let options = ObjectOptions { at_rest: MODE.get(), permissions: 0o600 };
        objects.pcreate_with(name, len, key(), &options).expect("create");
    }
    drop(objects);
    store.close().expect("close");
    sim.image_now(CrashKind::Process)
}

pub(crate) fn open(sim: &Arc<SimMedium>, half_len: u64) -> Result<(Store, Objects), String> {
    let medium: Arc<dyn Medium> = sim.clone();
    let (store, _) =
        Store::open(medium, OpenOptions::default()).map_err(|e| format!("open: {e}"))?;
    match Objects::open(&store, &options(half_len)) {
        Ok(objects) => Ok((store, objects)),
        Err(error) => {
            store.abandon();
            Err(format!("open objects: {error}"))
        }
    }
}

/// The store underneath.
pub(crate) fn raw(store: &Store) -> &cenote_store::Store {
    // SAFETY: a test opens no heap, removes nothing that is attached, and its clients attach what
    // this process does not.
    unsafe { store.as_raw() }
}

/// The same objects, for clients.
pub(crate) fn host(objects: &Objects) -> Host {
    // SAFETY: as in `raw`.
    unsafe { Host::of(objects.clone()) }
}

/// One step of a history.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Step {
    /// Stores `len` bytes of `value` at `at` of object number `object`.
    Write(usize, usize, usize, u8),
    /// Psyncs one object.
    Psync(usize),
    /// Psyncs all objects together.
    PsyncAll,
    /// Detaches and closes everything, and opens it again.
    Reopen,
    /// The process dies, and another one goes on.
    Die,
}

/// An open store with its objects attached.
pub(crate) struct World {
    pub(crate) sim: Arc<SimMedium>,
    pub(crate) attached: Vec<Attached>,
    pub(crate) objects: Objects,
    pub(crate) store: Store,
}

impl World {
    pub(crate) fn open(sim: &Arc<SimMedium>, half_len: u64) -> Result<Self, String> {
        let (store, objects) = open(sim, half_len)?;
        let attach = |(name, _): (&str, u64)| {
            objects
                .attach(name, Permission::ReadWrite, key())
                .map_err(|e| format!("attach {name}: {e}"))
        };
        let attached = OBJECTS.into_iter().map(attach).collect::<Result<_, _>>()?;
        Ok(Self { sim: sim.clone(), attached, objects, store })
    }

    pub(crate) fn die(self) {
        self.objects.abandon();
        self.store.clone().abandon();
    }

    pub(crate) fn close(self) -> Result<(), String> {
        for object in self.attached {
            object.detach().map_err(|e| format!("detach: {e}"))?;
        }
        drop(self.objects);
        self.store.close().map_err(|e| format!("close: {e}"))
    }
}

/// The contents of all objects, attached for reading.
pub(crate) fn contents(objects: &Objects) -> Result<State, String> {
    let read = |(name, _): (&str, u64)| {
        let attached = objects
            .attach(name, Permission::Read, key())
            .map_err(|e| format!("attach {name}: {e}"))?;
        bytes_of(&attached)
    };
    OBJECTS.into_iter().map(read).collect()
}

/// What an object holds: an error where a load would be a bus error.
pub(crate) fn bytes_of(object: &Attached) -> Result<Vec<u8>, String> {
    let mut bytes = vec![0; object.len() as usize];
    object.read_at(0, &mut bytes).map_err(|e| format!("read: {e}"))?;
    Ok(bytes)
}

/// Runs a history on a medium. Returns the states after each psync, the first being that before
/// any.
pub(crate) fn history(
    sim: &Arc<SimMedium>,
    steps: &[Step],
    half_len: u64,
) -> Result<Vec<State>, String> {
    let mut world = World::open(sim, half_len)?;
    let mut shadow: State = OBJECTS.iter().map(|(_, len)| vec![0; *len as usize]).collect();
    let mut states = vec![shadow.clone()];
    sim.note(0);
    for step in steps {
        let psynced = match *step {
            Step::Write(object, at, len, value) => {
                shadow[object][at..at + len].fill(value);
                world.attached[object].as_mut_slice().expect("writable")[at..at + len].fill(value);
                None
            }
            Step::Psync(object) => Some((Some(object), world.attached[object].psync())),
            Step::PsyncAll => {
                let mut all: Vec<&mut Attached> = world.attached.iter_mut().collect();
                Some((None, psync_all(&mut all)))
            }
            Step::Reopen | Step::Die => {
                if matches!(step, Step::Die) {
                    world.die();
                } else {
                    world.close()?;
                }
                world = World::open(sim, half_len)?;
                shadow = states.last().expect("the first").clone();
                let is = world.attached.iter().map(bytes_of).collect::<Result<State, _>>()?;
                if is != shadow {
                    return Err(format!(
                        "after {step:?} the objects are not as the last psync left them"
                    ));
                }
                None
            }
        };
        if let Some((object, result)) = psynced {
            result.map_err(|error| format!("{step:?}: {error}"))?;
            let mut state = states.last().expect("the first").clone();
            match object {
                Some(object) => state[object] = shadow[object].clone(),
                None => state = shadow.clone(),
            }
            states.push(state);
            sim.note(states.len() as u64 - 1);
        }
    }
    world.die();
    Ok(states)
}

/// How far to look.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Reach {
    pub(crate) limits: Limits,
    /// Recovery is crashed too for each so many-th image; 0: never.
    pub(crate) recovery_every: u64,
    /// Read-only opens are compared for each so many-th image; 0: never.
    pub(crate) read_only_every: u64,
}

impl Default for Reach {
    fn default() -> Self {
        let limits = Limits { exhaustive_units: 12, samples: 200, ..Limits::default() };
        Self { limits, recovery_every: 41, read_only_every: 13 }
    }
}

/// What was looked at.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Tally {
    pub(crate) images: u64,
    pub(crate) recovery_images: u64,
    pub(crate) read_only: u64,
    pub(crate) units_max: u64,
}

/// Whether what is there is the state of the last acknowledged psync, or of the one in flight.
fn allowed(state: &State, states: &[State], acknowledged: usize) -> Result<(), String> {
    let last = (acknowledged + 1).min(states.len() - 1);
    if states[acknowledged..=last].contains(state) {
        return Ok(());
    }
    let older = states.iter().position(|known| known == state);
    Err(match older {
        Some(number) => format!("state {number} is there, {acknowledged} was acknowledged"),
        None => format!("no state of any psync is there, {acknowledged} was acknowledged"),
    })
}

/// Recovers an image and looks at it.
fn verify(image: &Image, states: &[State], half_len: u64) -> Result<(), String> {
    let sim = SimMedium::from_image_unrecorded(image);
    let (store, objects) = open(&sim, half_len)?;
    let state = contents(&objects);
    objects.abandon();
    store.abandon();
    allowed(&state?, states, image.note() as usize)
}

/// The same without writing a byte; then recovers it, which must show the same.
fn verify_read_only(image: &Image, states: &[State], half_len: u64) -> Result<(), String> {
    let seen = {
        let sim = SimMedium::from_image_unrecorded(image);
        let before = sim.image_now(CrashKind::Process).hash();
        let medium: Arc<dyn Medium> = sim.clone();
        let (store, _) = Store::open(medium, OpenOptions::read_only())
            .map_err(|e| format!("open to read: {e}"))?;
        let objects =
            Objects::open(&store, &options(half_len)).map_err(|e| format!("to read: {e}"))?;
        let seen = contents(&objects)?;
        drop(objects);
        drop(store);
        if sim.image_now(CrashKind::Process).hash() != before {
            return Err("a read-only open changed a file".into());
        }
        seen
    };
    allowed(&seen, states, image.note() as usize)?;
    let sim = SimMedium::from_image_unrecorded(image);
    let (store, objects) = open(&sim, half_len)?;
    let state = contents(&objects);
    objects.abandon();
    store.abandon();
    if state? != seen {
        Err("a read-only open sees another state than recovery".into())
    } else {
        Ok(())
    }
}

/// Where a bug is planted.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum When {
    Running,
    Recovering,
}

/// Runs a history and looks at every crash of it. The first violation is returned.
pub(crate) fn explore(
    steps: &[Step],
    half_len: u64,
    reach: Reach,
    bug: Bug,
    when: When,
) -> (Tally, Option<String>) {
    let base = base_image(half_len);
    let sim = SimMedium::from_image(&base);
    let mut tally = Tally::default();
    if when != When::Recovering {
        plant(bug);
    }
    let states = history(&sim, steps, half_len);
    plant(Bug::None);
    let states = match states {
        Ok(states) => states,
        Err(violation) => return (tally, Some(violation)),
    };
    let mut violation = None;
    if when != When::Running {
        plant(bug);
    }
    let visited = sim.explore(.., reach.limits, |crash, image| {
        if violation.is_some() {
            return;
        }
        // Not for losses of power before the store was open for the first time after the image.
        tally.images += 1;
        let at = || {
            format!(
                "crash after event {} ({:?}), note {}",
                crash.event(),
                image.kind(),
                image.note()
            )
        };
        let mut found = verify(&image, &states, half_len);
        if found.is_ok() && reach.read_only_every > 0 && tally.images % reach.read_only_every == 0 {
            tally.read_only += 1;
            found = verify_read_only(&image, &states, half_len);
        }
        if found.is_ok() && reach.recovery_every > 0 && tally.images % reach.recovery_every == 0 {
            found = crash_recovery(&image, &states, half_len, reach.limits, &mut tally);
        }
        violation = found.err().map(|what| format!("{}: {what}", at()));
    });
    plant(Bug::None);
    tally.units_max = visited.units_max;
    (tally, violation)
}

/// Crashes of the recovery of an image.
fn crash_recovery(
    image: &Image,
    states: &[State],
    half_len: u64,
    limits: Limits,
    tally: &mut Tally,
) -> Result<(), String> {
    let again = SimMedium::from_image(image);
    again.note(image.note());
    let (store, objects) = open(&again, half_len)?;
    objects.abandon();
    store.abandon();
    drop(objects);
    let mut result = Ok(());
    let limits = Limits { exhaustive_units: 6, samples: 16, ..limits };
    again.explore(.., limits, |crash, inner| {
        if result.is_err() {
            return;
        }
        tally.recovery_images += 1;
        // The note of the history before holds as well.
        let mut known = verify_noted(&inner, states, half_len, image.note() as usize);
        if let Err(what) = &mut known {
            *what =
                format!("in recovery, after event {} ({:?}): {what}", crash.event(), inner.kind());
        }
        result = known;
    });
    result
}

fn verify_noted(
    image: &Image,
    states: &[State],
    half_len: u64,
    acknowledged: usize,
) -> Result<(), String> {
    let sim = SimMedium::from_image_unrecorded(image);
    let (store, objects) = open(&sim, half_len)?;
    let state = contents(&objects);
    objects.abandon();
    store.abandon();
    allowed(&state?, states, acknowledged)
}

/// A psync whose journal cannot be written, and the next one, which must have its pages too.
pub(crate) fn failed_psync_then_again(bug: Bug) -> Result<(), String> {
    use cenote_medium::Operation;
    use cenote_medium::sim::{Fault, FaultEffect, FaultPoint};
    let sim = SimMedium::from_image_unrecorded(&base_image(8192));
    let medium: Arc<dyn Medium> = sim.clone();
    let (store, _) = Store::open(medium, OpenOptions::default()).map_err(|e| e.to_string())?;
    // A mechanism that tells of each store once.
    let options =
        ObjectsOptions { mechanism: Some(cenote_object::Mechanism::Mprotect), ..options(8192) };
    let objects = Objects::open(&store, &options).map_err(|e| e.to_string())?;
    let mut a = objects.attach("a", Permission::ReadWrite, None).map_err(|e| e.to_string())?;
    a.as_mut_slice().expect("writable")[5000] = 1;
    plant(bug);
    let fault = FaultPoint::Operation(Operation::Write);
    sim.inject(Fault::once(fault, 0, FaultEffect::Io).on("journal"));
    let failed = a.psync();
    plant(Bug::None);
    assert!(failed.is_err() && sim.fault_hits() == 1, "{failed:?}");
    a.as_mut_slice().expect("writable")[9000] = 2;
    let done = a.psync().map_err(|e| e.to_string())?;
    drop(a);
    let a = objects.attach("a", Permission::Read, None).map_err(|e| e.to_string())?;
    match (a.as_slice()[5000], a.as_slice()[9000]) {
        (1, 2) => Ok(()),
        found => Err(format!("{found:?} is there after {done:?}")),
    }
}

/// A whole record that was never acknowledged, behind one that is torn; then a session that writes
/// a record of the same length over the torn one. What the first session left must not come back.
pub(crate) fn stale_record(bug: Bug) -> Result<(), String> {
    use cenote_layout::object::{CommitRecord, JOURNAL_HALVES_OFFSET, RecordHeader};
    use zerocopy::{FromBytes, IntoBytes};
    let base = base_image(65536);
    // Two records as a session writes them.
    let mut second = vec![0; 4096];
    {
        let sim = SimMedium::from_image_unrecorded(&base);
        history(
            &sim,
            &[Step::Write(0, 0, 8, 1), Step::Psync(0), Step::Write(1, 0, 8, 9), Step::Psync(1)],
            65536,
        )?;
        sim.read_at("journal", JOURNAL_HALVES_OFFSET + 4096, &mut second)
            .map_err(|e| e.to_string())?;
    }
    // The second as it is when the first is not durable yet: a sync was to cover both.
    let (mut header, tables) =
        RecordHeader::read_from_prefix(&second).map_err(|e| e.to_string())?;
    header.durable = 0;
    let mut head = header.as_bytes().to_vec();
    let head_len = RecordHeader::head_len(header.objects, header.runs) as usize;
    head.extend_from_slice(&tables[..head_len - head.len()]);
    header.checksum = RecordHeader::checksum_of(&mut head);
    second[..size_of::<RecordHeader>()].copy_from_slice(header.as_bytes());
    second[4096 - 32..].copy_from_slice(CommitRecord::new(header.seq, header.checksum).as_bytes());

    plant(bug);
    let sim = SimMedium::from_image_unrecorded(&base);
    World::open(&sim, 65536)?.die();
    own(&*sim)
        .write_at("journal", JOURNAL_HALVES_OFFSET + 4096, &second)
        .map_err(|e| e.to_string())?;
    let mut world = World::open(&sim, 65536)?;
    world.attached[2].as_mut_slice().expect("writable")[0] = 5;
    let done = world.attached[2].psync().map_err(|e| e.to_string())?;
    assert_eq!((done.seq, done.journal_bytes), (1, 4096));
    world.die();
    let world = World::open(&sim, 65536)?;
    plant(Bug::None);
    let (b, still) = (world.attached[1].as_slice()[0], world.attached[2].as_slice()[0]);
    world.die();
    match (b, still) {
        (0, 5) => Ok(()),
        found => Err(format!("{found:?} is there, and (0, 5) was psynced")),
    }
}
