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
use cenote_object::{Mode, ObjectOptions, Objects, Permission, Store};
use cenote_store::{Access, AtRest, Credentials, OpenOptions, PermissionChange, PoolMode, PoolOptions};
use std::sync::Arc;

const HALF: u64 = 1 << 16;
const PUDDLE: u64 = PoolOptions::PUDDLE_SIZE_MIN;

/// What a step does.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Step {
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

fn step((store, objects): (&Store, &Objects), mode: Mode, step: Step, value: u8) -> Result<(), String> {
    let text = |error: &dyn core::fmt::Display| format!("{step:?}: {error}");
    let permissions = 0o600 | u32::from(value % 8);
    match step {
        Object(name) => {
            let object = objects.attach(name, Permission::ReadWrite, key());
            let mut object = object.map_err(|error| text(&error))?;
            object.as_mut_slice().map_err(|error| text(&error))?.fill(value);
            object.psync().map(drop).map_err(|error| text(&error))
        }
        Pool(name) => {
            let pool = raw(store).open_pool_with(name, Access::ReadWrite, key());
            fill(&pool.map_err(|error| text(&error))?, value);
            Ok(())
        }
        Make(name) => {
            let options = ObjectOptions { at_rest: mode, permissions };
            objects.pcreate_with(name, 4096, key(), &options).map(drop).map_err(|error| text(&error))
        }
        Remove(name) => objects.pdestroy(name, key()).map_err(|error| text(&error)),
        Chmod(name) => objects.set_mode(name, permissions).map_err(|error| text(&error)),
        ChmodPool(name) => {
            let change = PermissionChange { permissions: Some(permissions), ..PermissionChange::default() };
            let credentials =
                Credentials { uid: cenote_sys::process::uid(), gid: 0, groups: Vec::new() };
            raw(store).set_permissions(&credentials, name, change).map_err(|error| text(&error))
        }
        MakePool(name) => {
            let key = mode.has_key().then(|| Arc::new(crate::common::key_of(1)));
            let asked = PoolOptions {
                mode: PoolMode::Shadowed,
                puddle_size: PUDDLE,
                at_rest: AtRest::of(mode),
                key,
                permissions,
                ..PoolOptions::default()
            };
            raw(store).create_pool(name, &asked).map(drop).map_err(|error| text(&error))
        }
        RemovePool(name) => raw(store).remove_pool(name).map_err(|error| text(&error)),
        Clone(name, copy) => raw(store).clone_pool(name, copy).map(drop).map_err(|error| text(&error)),
        Grow(name) => {
            let pool = raw(store).open_pool_with(name, Access::ReadWrite, key());
            let pool = pool.map_err(|error| text(&error))?;
            pool.take_puddle(PUDDLE).map(drop).map_err(|error| text(&error))
        }
        Die | Close => Ok(()),
    }
}

/// Runs the steps; each writes a value of its own. Calls `moment` before the first and after each.
fn run(sim: &Arc<SimMedium>, mode: Mode, steps: &[Step], mut moment: impl FnMut()) {
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

/// What a store serves: names, lengths, modes, contents of all things. Or why it serves not all.
fn seen(image: &Image, access: Access) -> Result<Vec<String>, String> {
    let sim = SimMedium::from_image_unrecorded(image);
    let (store, objects) = open(&sim, access)?;
    let read = || -> Result<Vec<String>, String> {
        let mut all = Vec::new();
        let one_of = |bytes: &[u8]| {
            assert!(bytes.iter().all(|byte| *byte == bytes[0]), "half of each state is served");
            bytes[0]
        };
        for info in objects.list().map_err(|error| error.to_string())? {
            let record = &info.object.record;
            let object = objects.attach(&record.name, Permission::Read, key());
            let object = object.map_err(|error| format!("{}: {error}", record.name))?;
            let value = one_of(&bytes_of(&object)?);
            let (name, permissions) = (&record.name, record.permissions);
            all.push(format!("object {name} {} {permissions:o}: {value}", info.object.body_len()));
        }
        for info in raw(&store).pools() {
            if info.due > 0 {
                // Nothing here rewrites copies.
                let (name, permissions, due) = (&info.record.name, info.record.permissions, info.due);
                all.push(format!("pool {name} {permissions:o}: {due} of {} are due", info.puddles));
                continue;
            }
            let pool = raw(&store).open_pool_with(&info.record.name, Access::ReadOnly, key());
            let pool = pool.map_err(|error| format!("{}: {error}", info.record.name))?;
            let mut values = Vec::new();
            for puddle in pool.puddles() {
                let mut bytes = vec![0; 4096];
                pool.read_at(puddle.body_addr(), &mut bytes).map_err(|error| error.to_string())?;
                values.push(one_of(&bytes));
            }
            all.push(format!("pool {} {:o}: {values:?}", info.record.name, info.record.permissions));
        }
        Ok(all)
    };
    let all = read();
    objects.abandon();
    store.abandon();
    all
}

/// A session whose moments are kept.
struct Session {
    mode: Mode,
    moments: Vec<Image>,
    /// What the store serves at each moment.
    states: Vec<Vec<String>>,
}

impl Session {
    fn run(mode: Mode, steps: &[Step]) -> Self {
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
    fn differing(&self, one: usize, other: usize) -> Vec<Vec<String>> {
        let (one, other) = (&self.moments[one], &self.moments[other]);
        let mut names = one.names();
        names.extend(other.names());
        names.sort_unstable();
        names.dedup();
        names.retain(|name| one.file(name) != other.file(name));
        let (catalog, rest) = names.into_iter().partition(|name: &String| name.starts_with("catalog."));
        let rest: Vec<String> = rest;
        std::iter::once(catalog).chain(rest.into_iter().map(|name| vec![name])).collect()
    }

    fn mixed<'a>(&self, newer: usize, older: usize, back: impl Iterator<Item = &'a String>) -> Image {
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
    fn judge(&self, image: &Image, access: Access) -> Result<bool, String> {
        match seen(image, access) {
            Err(_) => Ok(true),
            Ok(all) if self.states.contains(&all) => Ok(false),
            Ok(all) => Err(format!("{all:#?} is served")),
        }
    }

    /// Mixtures in which each file is of one of three moments, of which two follow each other. How
    /// many were refused.
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
            let access = if number % 2 == 0 { Access::ReadOnly } else { Access::ReadWrite };
            let judged = self.judge(&image, access);
            refused +=
                u64::from(judged.map_err(|what| format!("{}, {access:?}, {taken:?}: {what}", self.mode))?);
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
    std::env::var("CENOTE_MIXTURES").ok().and_then(|count| count.parse().ok()).unwrap_or(400)
}

#[test]
fn mixtures_of_three_moments_with_changes_of_the_catalog_are_refused_or_states_of_the_store() {
    for (mode, steps) in CHECKED.into_iter().zip([POOLS, THINGS, POOLS]) {
        let session = Session::run(mode, &steps);
        let count = random_count();
        let refused = session.random_mixtures(11, count).unwrap_or_else(|error| panic!("{error}"));
        println!("{mode}: {refused} of {count} mixtures of three moments are refused");
        assert!((count / 4..count * 99 / 100).contains(&refused), "{mode}: {refused}");
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
    let steps = [Object("a"), Chmod("a"), Make("n"), Object("n"), Pool("q"), Remove("n"), Pool("q")];
    let [images, recovering] = crashes(Mode::Integrity, &steps).unwrap_or_else(|e| panic!("{e}"));
    println!("{images} images, {recovering} of recovery");
    assert!(images > 80 && recovering > 50, "{images} {recovering}");
}
