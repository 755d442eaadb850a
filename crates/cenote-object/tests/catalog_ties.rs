//! Mixtures of files of one session that changed its catalog and crashed: catalog, journals,
//! superblock and the files of things are each of one moment or another. What is served is a state
//! that the store had, with names, lengths and modes; or nothing is.
//!
//! Each step of the session is one psync, or one change of the catalog. A *moment* is the medium
//! after a step. The steps follow each other, so the states of the store are those of the moments.

use crate::common::{bytes_of, key, options, protect, raw};
use crate::mixtures::{CHECKED, fill, made_with};
use cenote_medium::planted::{Bug, plant};
use cenote_medium::sim::{CrashKind, Image, Limits, SimMedium};
use cenote_object::{
    Attached, Blocks, Info, Keyring, Mode, ObjectOptions, Objects, Permission, Rekeyed, Store,
};
use cenote_store::{
    Access, AtRest, Credentials, OpenOptions, PermissionChange, PoolHandle, PoolInfo, PoolMode,
    PoolOptions, StoreError,
};
use cenote_testkit::environment;
use std::collections::BTreeMap;
use std::sync::{Arc, OnceLock};

const HALF: u64 = 1 << 16;
const PUDDLE: u64 = PoolOptions::PUDDLE_SIZE_MIN;

/// What a step does.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Step {
    /// Psyncs object "a", or the one that a step made.
    Object(&'static str),
    Pool(&'static str),
    /// An object of a page is made.
    Make(&'static str),
    Remove(&'static str),
    /// The permissions of an object, or of a pool, become others.
    Chmod(&'static str),
    ChmodPool(&'static str),
    MakePool(&'static str),
    RemovePool(&'static str),
    /// The second pool is a copy of the first.
    Clone(&'static str, &'static str),
    /// The pool has one puddle more.
    Grow(&'static str),
    /// An object, or a pool, changes between two keys.
    Rekey(&'static str),
    RekeyPool(&'static str),
    /// An object is destroyed, and comes back from a snapshot.
    Back(&'static str),
    /// The process dies, and the next one opens the store.
    Die,
    /// The store is closed, and opened again.
    Close,
}

use Step::*;

fn open(sim: &Arc<SimMedium>, access: Access) -> Result<(Store, Objects), String> {
    let opening = OpenOptions { access, spare_bytes_max: 0, ..OpenOptions::default() };
    let (store, _) = Store::open(sim.clone(), opening).map_err(|error| error.to_string())?;
    match Objects::open(&store, &options(HALF)) {
        Ok(objects) => Ok((store, objects)),
        Err(error) => {
            store.abandon();
            Err(error.to_string())
        }
    }
}

/// The two keys; of a mode without one, none.
fn keys() -> impl Iterator<Item = (usize, Option<&'static Keyring>)> {
    static OTHER: OnceLock<Keyring> = OnceLock::new();
    let other = key().map(|_| OTHER.get_or_init(|| crate::common::key_of(2)));
    [key(), other].into_iter().enumerate().take(1 + usize::from(key().is_some()))
}

/// What opens under one of the keys, and under which; or why it does not under the last.
fn by_key<T>(
    open: impl Fn(Option<&'static Keyring>) -> Result<T, String>,
) -> Result<(usize, T), String> {
    let mut refused = String::new();
    for (number, key) in keys() {
        match open(key) {
            Ok(opened) => return Ok((number, opened)),
            Err(error) => refused = error,
        }
    }
    Err(refused)
}

fn attached(
    objects: &Objects,
    name: &str,
    permission: Permission,
) -> Result<(usize, Attached), String> {
    by_key(|key| objects.attach(name, permission, key).map_err(|error| error.to_string()))
}

fn opened(store: &Store, name: &str, access: Access) -> Result<(usize, PoolHandle), String> {
    by_key(|key| raw(store).open_pool_with(name, access, key).map_err(|error| error.to_string()))
}

/// From one key to the other.
fn from_to(number: usize) -> (&'static Keyring, &'static Keyring) {
    let all: Vec<_> = keys().filter_map(|(_, key)| key).collect();
    (all[number], all[1 - number])
}

fn chmod_pool(store: &Store, name: &str, permissions: u32) -> Result<(), StoreError> {
    let change = PermissionChange { permissions: Some(permissions), ..PermissionChange::default() };
    let credentials = Credentials { uid: cenote_sys::process::uid(), gid: 0, groups: Vec::new() };
    raw(store).set_permissions(&credentials, name, change)
}

fn make_pool(store: &Store, name: &str, mode: Mode, permissions: u32) -> Result<(), StoreError> {
    let key = mode.has_key().then(|| Arc::new(crate::common::key_of(1)));
    let asked = PoolOptions {
        mode: PoolMode::Shadowed,
        puddle_size: PUDDLE,
        at_rest: AtRest::of(mode),
        key,
        permissions,
        ..PoolOptions::default()
    };
    raw(store).create_pool(name, &asked).map(drop)
}

fn step(
    (store, objects): (&Store, &Objects),
    mode: Mode,
    step: Step,
    value: u8,
) -> Result<(), String> {
    let text = |error: &dyn core::fmt::Display| format!("{step:?}: {error}");
    let permissions = 0o600 | u32::from(value % 8);
    match step {
        Object(name) => {
            let (_, mut object) = attached(objects, name, Permission::ReadWrite)?;
            object.as_mut_slice().map_err(|error| text(&error))?.fill(value);
            object.psync().map(drop).map_err(|error| text(&error))
        }
        Pool(name) => {
            fill(&opened(store, name, Access::ReadWrite)?.1, value);
            Ok(())
        }
        Make(name) => {
            let options = ObjectOptions { at_rest: mode, permissions };
            objects
                .pcreate_with(name, 4096, key(), &options)
                .map(drop)
                .map_err(|error| text(&error))
        }
        Remove(name) => objects.pdestroy(name, None).map_err(|error| text(&error)),
        Chmod(name) => objects.set_mode(name, permissions).map_err(|error| text(&error)),
        ChmodPool(name) => chmod_pool(store, name, permissions).map_err(|error| text(&error)),
        MakePool(name) => make_pool(store, name, mode, permissions).map_err(|error| text(&error)),
        RemovePool(name) => raw(store).remove_pool(name).map_err(|error| text(&error)),
        Clone(name, copy) => {
            raw(store).clone_pool(name, copy).map(drop).map_err(|error| text(&error))
        }
        Grow(name) => {
            let (_, pool) = opened(store, name, Access::ReadWrite)?;
            pool.take_puddle(PUDDLE).map(drop).map_err(|error| text(&error))
        }
        Rekey(name) => {
            let (old, new) = from_to(attached(objects, name, Permission::Read)?.0);
            let done = objects.rekey(name, old, new).map_err(|error| text(&error))?;
            assert!(matches!(done, Rekeyed::Done));
            Ok(())
        }
        RekeyPool(name) => {
            let (old, new) = from_to(opened(store, name, Access::ReadOnly)?.0);
            let done = raw(store).rekey_pool(name, old, new).map_err(|error| text(&error))?;
            assert!(matches!(done, Rekeyed::Done));
            Ok(())
        }
        Back(name) => {
            let dir = tempfile::tempdir().map_err(|error| text(&error))?;
            let path = dir.path().join("snapshot");
            objects.snapshot(name, &path, Blocks::Copied).map_err(|error| text(&error))?;
            objects.pdestroy(name, None).map_err(|error| text(&error))?;
            objects.restore(&path, None).map(drop).map_err(|error| text(&error))
        }
        Die | Close => Ok(()),
    }
}

/// Runs the steps; each writes a value of its own. Calls `moment` before the first and after each.
pub(crate) fn run(sim: &Arc<SimMedium>, mode: Mode, steps: &[Step], mut moment: impl FnMut()) {
    let mut value = 0;
    for steps in steps.split_inclusive(|step| [Die, Close].contains(step)) {
        let (store, objects) = open(sim, Access::ReadWrite).expect("open");
        moment();
        for one in steps.iter().filter(|step| ![Die, Close].contains(step)) {
            value += 1;
            step((&store, &objects), mode, *one, value).unwrap_or_else(|error| panic!("{error}"));
            moment();
        }
        if steps.ends_with(&[Close]) {
            drop(objects);
            store.close().expect("close");
            moment();
        } else {
            objects.abandon();
            store.abandon();
        }
    }
}

/// A byte that all of them are.
fn one_of(bytes: &[u8]) -> u8 {
    assert!(bytes.iter().all(|byte| *byte == bytes[0]), "half of each state is served");
    bytes[0]
}

fn seen_object(objects: &Objects, info: &Info) -> Result<String, String> {
    let (record, len) = (&info.object.record, info.object.body_len());
    let (key, object) = attached(objects, &record.name, Permission::Read)?;
    Ok(format!("{len} {:o}, key {key}: {}", record.permissions, one_of(&bytes_of(&object)?)))
}

fn seen_pool(store: &Store, info: &PoolInfo) -> Result<String, String> {
    let permissions = info.record.permissions;
    if info.pending > 0 {
        // Nothing here rewrites copies.
        return Ok(format!("{permissions:o}: {} of {} are due", info.pending, info.puddles));
    }
    let (key, pool) = opened(store, &info.record.name, Access::ReadOnly)?;
    let mut values = Vec::new();
    for puddle in pool.puddles() {
        let mut bytes = vec![0; 4096];
        // SAFETY: the pool is open for reading, and no thread writes it.
        unsafe { pool.read_at(puddle.body_addr(), &mut bytes) }
            .map_err(|error| error.to_string())?;
        values.push(one_of(&bytes));
    }
    Ok(format!("{permissions:o}, key {key}: {values:?}"))
}

/// What is served of each thing, or why it is not.
pub(crate) type Things = BTreeMap<String, Result<String, String>>;

fn seen_all(image: &Image, access: Access) -> Result<Things, String> {
    let sim = SimMedium::from_image_unrecorded(image);
    let (store, objects) = open(&sim, access)?;
    let infos = objects.list().map_err(|error| error.to_string());
    let all = infos.map(|infos| {
        let object = |info: &Info| {
            (format!("object {}", info.object.record.name), seen_object(&objects, info))
        };
        let pool =
            |info: &PoolInfo| (format!("pool {}", info.record.name), seen_pool(&store, info));
        infos.iter().map(object).chain(raw(&store).pools().iter().map(pool)).collect()
    });
    objects.abandon();
    store.abandon();
    all
}

/// What a reader is served of each thing.
pub(crate) fn seen_each(image: &Image) -> Result<Things, String> {
    seen_all(image, Access::ReadOnly)
}

/// What a store serves: names, lengths, modes, contents of all things. Or why it serves not all.
pub(crate) fn seen(image: &Image, access: Access) -> Result<Vec<String>, String> {
    let line = |(name, what): (String, Result<String, String>)| match what {
        Ok(what) => Ok(format!("{name} {what}")),
        Err(why) => Err(format!("{name}: {why}")),
    };
    seen_all(image, access)?.into_iter().map(line).collect()
}

/// A session whose moments are kept.
pub(crate) struct Session {
    mode: Mode,
    pub(crate) moments: Vec<Image>,
    /// What the store serves at each moment.
    pub(crate) states: Vec<Vec<String>>,
}

impl Session {
    pub(crate) fn run(mode: Mode, steps: &[Step]) -> Self {
        let base = made_with(mode, HALF);
        let sim = SimMedium::from_image_unrecorded(&base);
        let mut moments = Vec::new();
        run(&sim, mode, steps, || moments.push(sim.image_now(CrashKind::Process)));
        let whole = |image: &Image| seen(image, Access::ReadOnly).expect("a moment of the store");
        let states = moments.iter().map(whole).collect();
        Self { mode, moments, states }
    }

    /// Files in which two moments differ, in groups: both files of the catalog go together, because
    /// the newer one counts.
    pub(crate) fn differing(&self, one: usize, other: usize) -> Vec<Vec<String>> {
        let (one, other) = (&self.moments[one], &self.moments[other]);
        let mut names = one.names();
        names.extend(other.names());
        names.sort_unstable();
        names.dedup();
        names.retain(|name| one.file(name) != other.file(name));
        let (catalog, rest) =
            names.into_iter().partition(|name: &String| name.starts_with("catalog."));
        let rest: Vec<String> = rest;
        std::iter::once(catalog).chain(rest.into_iter().map(|name| vec![name])).collect()
    }

    pub(crate) fn mixed<'a>(
        &self,
        newer: usize,
        older: usize,
        back: impl Iterator<Item = &'a String>,
    ) -> Image {
        let mut image = self.moments[newer].clone();
        for name in back {
            match self.moments[older].file(name) {
                Some(bytes) => image.set_file(name, &bytes),
                None => drop(image.remove(name)),
            }
        }
        image
    }

    /// Opens the image. Whether it was refused, or why it is no state that the store had.
    pub(crate) fn judge(&self, image: &Image, access: Access) -> Result<bool, String> {
        match seen(image, access) {
            Err(_) => Ok(true),
            Ok(all) if self.states.contains(&all) => Ok(false),
            Ok(all) => Err(format!("{all:#?} is served")),
        }
    }

    /// Mixtures in which each file is of one of three moments, of which two follow each other; of
    /// every fourth, one copy of the superblock is damaged. How many were refused.
    fn random_mixtures(&self, seed: u64, count: u64) -> Result<u64, String> {
        let mut state = seed;
        let mut next = |of: usize| {
            state ^= state << 13;
            state ^= state >> 7;
            state ^= state << 17;
            (state % of as u64) as usize
        };
        let mut names: Vec<String> = self.moments.iter().flat_map(Image::names).collect();
        names.sort_unstable();
        names.dedup();
        let mut refused = 0;
        for number in 0..count {
            let first = next(self.moments.len() - 1);
            let few = [first, first + 1, next(self.moments.len())];
            let mut image = self.moments[first].clone();
            let mut taken = Vec::new();
            for name in &names {
                let of = few[next(12).saturating_sub(9)];
                taken.push((name, of));
                match self.moments[of].file(name) {
                    Some(bytes) => image.set_file(name, &bytes),
                    None => drop(image.remove(name)),
                }
            }
            if number % 4 == 3 {
                assert!(image.flip_bit("superblock", next(2) as u64 * 4096 + 200, 0));
            }
            let access = if number % 2 == 0 { Access::ReadOnly } else { Access::ReadWrite };
            let judged = self.judge(&image, access);
            refused += u64::from(
                judged.map_err(|what| format!("{}, {access:?}, {taken:?}: {what}", self.mode))?,
            );
        }
        Ok(refused)
    }

    /// Every mixture of two moments whose numbers differ by at most `apart`. How many were refused,
    /// and of how many.
    fn every_mixture(&self, apart: usize) -> Result<[u64; 2], String> {
        let mut counts = [0; 2];
        for newer in 0..self.moments.len() {
            for older in newer.saturating_sub(apart)..newer {
                let groups = self.differing(older, newer);
                assert!(groups.len() <= 10, "{groups:?}");
                for mask in 1..(1u32 << groups.len()) - 1 {
                    let back: Vec<&String> = (0..)
                        .zip(&groups)
                        .filter(|(i, _)| mask >> i & 1 == 1)
                        .flat_map(|(_, group)| group)
                        .collect();
                    let access = if mask % 2 == 0 { Access::ReadOnly } else { Access::ReadWrite };
                    let image = self.mixed(newer, older, back.iter().copied());
                    let refused = self.judge(&image, access).map_err(|what| {
                        format!("{}, {access:?}, of {older} in {newer} {back:?}: {what}", self.mode)
                    })?;
                    counts[0] += u64::from(refused);
                    counts[1] += 1;
                }
            }
        }
        Ok(counts)
    }
}

/// What changes between psyncs: modes, objects that come and go, and the size of a pool.
const THINGS: [Step; 13] = [
    Object("a"),
    Chmod("a"),
    Pool("q"),
    Make("n"),
    Object("n"),
    Grow("q"),
    Pool("q"),
    ChmodPool("q"),
    Object("a"),
    Remove("n"),
    Pool("q"),
    Die,
    Chmod("still"),
];

/// Pools that come and go, and copies of pools. An object takes the name of one that is gone.
const POOLS: [Step; 13] = [
    Pool("q"),
    Clone("q", "c"),
    Object("a"),
    MakePool("r"),
    Pool("r"),
    RemovePool("r"),
    Object("a"),
    Close,
    Remove("b"),
    Make("b"),
    Object("b"),
    Pool("q"),
    ChmodPool("c"),
];

/// Keys that change, and an object that is restored from a snapshot.
const KEYS: [Step; 9] = [
    Object("a"),
    Rekey("a"),
    Pool("q"),
    RekeyPool("q"),
    Object("a"),
    Back("a"),
    Chmod("still"),
    Object("a"),
    RekeyPool("q"),
];

#[test]
fn every_mixture_of_moments_with_new_keys_and_restored_objects_is_refused_or_a_state_of_the_store()
{
    let session = Session::run(Mode::EncryptionIntegrity, &KEYS);
    let [refused, of] = session.every_mixture(2).unwrap_or_else(|error| panic!("{error}"));
    println!("{refused} of {of} mixtures are refused");
    assert!(refused > of / 4 && of > 120, "{refused} of {of}");
    let refused =
        session.random_mixtures(5, random_count()).unwrap_or_else(|error| panic!("{error}"));
    println!("{refused} of {} mixtures of three moments are refused", random_count());
    protect(Mode::None);
}

#[test]
fn every_mixture_of_moments_with_changes_of_the_catalog_is_refused_or_a_state_of_the_store() {
    for (mode, steps) in CHECKED.into_iter().zip([THINGS, POOLS, THINGS]) {
        let session = Session::run(mode, &steps);
        let [refused, of] = session.every_mixture(2).unwrap_or_else(|error| panic!("{error}"));
        println!("{mode}: {refused} of {of} mixtures are refused");
        assert!(refused > of / 4 && of > 200, "{mode}: {refused} of {of}");
    }
    protect(Mode::None);
}

/// How many mixtures of three moments are tried: `CENOTE_MIXTURES`.
fn random_count() -> u64 {
    environment::number("CENOTE_MIXTURES", environment::rounds(400))
}

#[test]
fn mixtures_of_three_moments_with_changes_of_the_catalog_are_refused_or_states_of_the_store() {
    for (mode, steps) in CHECKED.into_iter().zip([POOLS, THINGS, POOLS]) {
        let session = Session::run(mode, &steps);
        let count = random_count();
        let refused = session.random_mixtures(11, count).unwrap_or_else(|error| panic!("{error}"));
        println!("{mode}: {refused} of {count} mixtures of three moments are refused");
        // 28 to 32 of 100 in 2,000: of 400 that is 112 and more, 9 around it.
        assert!((count / 5..count * 99 / 100).contains(&refused), "{mode}: {refused}");
    }
    protect(Mode::None);
}

fn caught(bug: Bug) {
    plant(bug);
    let found = Session::run(Mode::Authenticated, &THINGS).every_mixture(2);
    plant(Bug::None);
    protect(Mode::None);
    println!("{}", found.expect_err("the bug was not found"));
}

#[test]
fn a_catalog_that_names_no_records_is_found() {
    caught(Bug::BatchNamesNothing);
}

#[test]
fn a_catalog_that_is_not_compared_with_the_journals_is_found() {
    caught(Bug::CatalogTieIgnored);
}

/// What recovery makes of an image: the last state that was acknowledged, or the next.
fn recovered(image: &Image, states: &[Vec<String>], access: Access) -> Result<(), String> {
    let acknowledged = image.note() as usize;
    let found = seen(image, access).map_err(|error| format!("note {acknowledged}: {error}"))?;
    let next = (acknowledged + 1).min(states.len() - 1);
    match states[acknowledged..=next].contains(&found) {
        true => Ok(()),
        false => Err(format!("note {acknowledged}: {found:#?} is served")),
    }
}

/// Every crash of a session that changes its catalog between psyncs, and of its recovery.
fn crashes(mode: Mode, steps: &[Step]) -> Result<[u64; 2], String> {
    let states = Session::run(mode, steps).states;
    let sim = SimMedium::from_image(&made_with(mode, HALF));
    let mut notes = 0;
    run(&sim, mode, steps, || {
        sim.note(notes);
        notes += 1;
    });
    let limits = Limits { exhaustive_units: 3, samples: 4, ..Limits::default() };
    let (mut counts, mut violation) = ([0; 2], Ok(()));
    sim.explore(.., limits, |crash, image| {
        if violation.is_err() {
            return;
        }
        counts[0] += 1;
        let access = if counts[0] % 5 == 0 { Access::ReadOnly } else { Access::ReadWrite };
        let mut found = recovered(&image, &states, access);
        if found.is_ok() && counts[0] % 60 == 0 {
            let again = SimMedium::from_image(&image);
            again.note(image.note());
            if let Ok((store, objects)) = open(&again, Access::ReadWrite) {
                objects.abandon();
                store.abandon();
            }
            again.explore(.., limits, |_, inner| {
                counts[1] += 1;
                if found.is_ok() && inner.note() == image.note() {
                    found = recovered(&inner, &states, Access::ReadWrite);
                }
            });
        }
        violation = found.map_err(|what| format!("{mode}, event {}: {what}", crash.event()));
    });
    protect(Mode::None);
    violation.map(|()| counts)
}

#[test]
fn no_crash_between_a_batch_and_the_next_record_is_taken_for_a_mixture() {
    let steps =
        [Object("a"), Chmod("a"), Make("n"), Object("n"), Pool("q"), Remove("n"), Pool("q")];
    let [images, recovering] = crashes(Mode::Integrity, &steps).unwrap_or_else(|e| panic!("{e}"));
    println!("{images} images, {recovering} of recovery");
    assert!(images > 80 && recovering > 50, "{images} {recovering}");
}
