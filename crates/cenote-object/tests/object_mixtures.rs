//! Mixtures of files of a store with objects of every protection, over opens, psyncs, closes and
//! kills: in a store that counts as closed each object shows its contents of one moment, the same
//! for all, or is found, by an attach and by a look that has no key. In one that was not closed the
//! same holds of objects in modes that claim integrity. Encryption alone claims none.
//!
//! A *moment* is the medium after a psync, an open, a close, or a kill. A mixture has each file as
//! it was at one of two moments. Between two closes the generator takes every mixture, between
//! other moments each file alone and all but it, and seeded subsets besides. `ROUNDS` in the
//! environment asks for more of these.

use crate::common::{bytes_of, options, raw, the_key, window_base};
use cenote_layout::superblock::{STATE_CLEAN, Superblock};
use cenote_medium::planted::{Bug, plant};
use cenote_medium::sim::{CrashKind, Image, SimMedium, SimOptions};
use cenote_medium::{Durability, Medium};
use cenote_object::{Mode, ObjectOptions, Objects, Permission, Store};
use cenote_store::{Access, Damage, FormatOptions, OpenOptions};
use cenote_testkit::random::mix;
use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use zerocopy::FromBytes as _;

const HALF: u64 = 1 << 16;
const LEN: u64 = 2 * 4096;
/// Objects that are always there, and their modes; their names say them.
const OBJECTS: [(&str, Mode); 5] = [
    ("none", Mode::None),
    ("integrity", Mode::Integrity),
    ("encryption", Mode::Encryption),
    ("both", Mode::EncryptionIntegrity),
    ("authenticated", Mode::Authenticated),
];
/// Objects that come, or go, in a session.
const BORN: (&str, Mode) = ("born", Mode::Integrity);
const GONE: (&str, Mode) = ("gone", Mode::None);
/// After so many mixtures that pass the generator ends.
const FOUND_MAX: usize = 8;

/// The byte that each object is full of; objects that are not there have none.
type State = BTreeMap<String, u8>;

fn mode_of(name: &str) -> Mode {
    let mut all = OBJECTS.into_iter().chain([BORN, GONE]);
    all.find(|(other, _)| *other == name).map_or(Mode::None, |(_, mode)| mode)
}

fn claims(name: &str, clean: bool) -> bool {
    match mode_of(name) {
        Mode::None => clean,
        Mode::Encryption => false,
        _ => true,
    }
}

fn opened(sim: &Arc<SimMedium>, access: Access) -> Result<(Store, Objects), String> {
    let medium: Arc<dyn Medium> = sim.clone();
    let opening = OpenOptions { access, spare_bytes_max: 0, ..OpenOptions::default() };
    let (store, _) = Store::open(medium, opening).map_err(|error| error.to_string())?;
    match Objects::open(&store, &options(HALF)) {
        Ok(objects) => Ok((store, objects)),
        Err(error) => {
            store.abandon();
            Err(error.to_string())
        }
    }
}

/// What a mixture shows.
struct Seen {
    clean: bool,
    /// What an attach shows, or why it shows nothing.
    shown: BTreeMap<String, Result<u8, String>>,
    /// Objects that a look without keys names.
    named: BTreeSet<String>,
}

/// The error: nothing of the store is shown.
fn seen(image: &Image, access: Access) -> Result<Seen, String> {
    let sim = SimMedium::from_image_unrecorded(image);
    let (store, objects) = opened(&sim, access)?;
    let look = raw(&store).damaged_files().expect("looked at");
    let named = look.into_iter().filter_map(|damage| match damage {
        Damage::Object { name, .. } => Some(name),
        _ => None,
    });
    let named = named.collect();
    let one = |name: &str| -> Result<u8, String> {
        let key = mode_of(name).has_key().then(the_key);
        let object = objects.attach(name, Permission::Read, key).map_err(|e| e.to_string())?;
        let verified = object.verify(&mut |_, _| true);
        if let Some((page, fault)) = verified.damaged.first() {
            return Err(format!("page {page}: {fault}"));
        }
        let bytes = bytes_of(&object)?;
        let same = bytes.iter().all(|byte| *byte == bytes[0]);
        Ok(if same { bytes[0] } else { u8::MAX })
    };
    let names = store.objects().into_iter().map(|object| object.record.name);
    let shown = names.map(|name| (name.clone(), one(&name))).collect();
    objects.abandon();
    store.abandon();
    Ok(Seen { clean: is_clean(image), shown, named })
}

fn is_clean(image: &Image) -> bool {
    let bytes = image.file("superblock").expect("it is there");
    let copies = bytes.chunks_exact(4096).filter_map(|copy| Superblock::read_from_bytes(copy).ok());
    copies.max_by_key(|block| block.generation).is_some_and(|block| block.state == STATE_CLEAN)
}

/// A moment: the medium, and what was psynced.
struct Moment {
    image: Image,
    state: State,
    closed: bool,
}

/// The moments of a store's life.
struct Life {
    sim: Arc<SimMedium>,
    state: State,
    moments: Vec<Moment>,
}

impl Life {
    fn lived() -> Self {
        let sim = SimMedium::new(SimOptions::new(Durability::Process));
        let base = Some(window_base());
        let format =
            FormatOptions { window_base: base, window_len: 64 << 20, ..Default::default() };
        cenote_store::format(sim.clone(), &format).expect("formatted");
        let mut life = Self { sim, state: State::new(), moments: Vec::new() };
        let (store, objects) = life.opened();
        OBJECTS.into_iter().chain([GONE]).for_each(|object| life.create(&objects, object));
        life.close((store, objects));
        for session in 1..=4 {
            let (store, objects) = life.opened();
            life.is_now(false);
            if session == 3 {
                life.create(&objects, BORN);
                life.is_now(false);
            }
            if session == 4 {
                objects.pdestroy(GONE.0, None).expect("removed");
                life.state.remove(GONE.0);
                life.is_now(false);
            }
            let names: Vec<String> = life.state.keys().cloned().collect();
            for (number, name) in names.iter().enumerate() {
                // Not all of them in each session.
                if (number + session) % 4 != 0 {
                    life.fill(&objects, name, session as u8);
                }
            }
            objects.checkpoint().expect("in the files");
            life.is_now(false);
            match session {
                2 => {
                    objects.abandon();
                    store.clone().abandon();
                    drop((objects, store));
                    life.is_now(false);
                }
                _ => life.close((store, objects)),
            }
        }
        life
    }

    fn opened(&self) -> (Store, Objects) {
        opened(&self.sim, Access::ReadWrite).expect("opened")
    }

    fn close(&mut self, (store, objects): (Store, Objects)) {
        drop(objects);
        store.close().expect("closed");
        self.is_now(true);
    }

    fn create(&mut self, objects: &Objects, (name, at_rest): (&str, Mode)) {
        let options = ObjectOptions { at_rest, permissions: 0o600 };
        let key = at_rest.has_key().then(the_key);
        objects.pcreate_with(name, LEN, key, &options).expect("created");
        self.state.insert(name.into(), 0);
    }

    fn fill(&mut self, objects: &Objects, name: &str, value: u8) {
        let key = mode_of(name).has_key().then(the_key);
        let mut object = objects.attach(name, Permission::ReadWrite, key).expect("attached");
        object.as_mut_slice().expect("writable").fill(value);
        object.psync().expect("psynced");
        object.detach().expect("detached");
        self.state.insert(name.into(), value);
        self.is_now(false);
    }

    fn is_now(&mut self, closed: bool) {
        let image = self.sim.image_now(CrashKind::Process);
        self.moments.push(Moment { image, state: self.state.clone(), closed });
    }

    fn differing(&self, one: usize, other: usize) -> Vec<String> {
        let (one, other) = (&self.moments[one].image, &self.moments[other].image);
        let names: BTreeSet<String> = one.names().into_iter().chain(other.names()).collect();
        names.into_iter().filter(|name| one.file(name) != other.file(name)).collect()
    }

    /// Moment `one` with some files as `other` has them.
    fn mixed(&self, one: usize, other: usize, taken: &[&String]) -> Image {
        let mut image = self.moments[one].image.clone();
        let from = &self.moments[other].image;
        for name in taken {
            match from.file(name) {
                Some(bytes) => image.set_file(name, &bytes),
                None => drop(image.remove(name)),
            }
        }
        image
    }

    /// What is wrong with a mixture.
    fn wrong(&self, mixture: &Image, access: Access) -> Option<String> {
        let Seen { clean, shown, named } = seen(mixture, access).ok()?;
        let says = |name: &String, value: u8| {
            let of_moment = |moment: &&Moment| moment.state.get(name) == Some(&value);
            self.moments.iter().any(|moment| of_moment(&moment))
        };
        let passed: Vec<(&String, u8)> = shown
            .iter()
            .filter(|(name, _)| claims(name, clean) && !named.contains(*name))
            .filter_map(|(name, shown)| Some((name, *shown.as_ref().ok()?)))
            .collect();
        if let Some((name, value)) = passed.iter().find(|(name, value)| !says(name, *value)) {
            return Some(format!("{name} shows {value}, which it never was"));
        }
        let fits = |moment: &Moment| {
            passed.iter().all(|(name, value)| moment.state.get(*name) == Some(value))
        };
        if !self.moments.iter().any(fits) {
            return Some(format!("objects of different moments pass: {passed:?}"));
        }
        // What only a page's check finds takes the key.
        let unnamed = shown.iter().find_map(|(name, shown)| {
            let why = shown.as_ref().err().filter(|why| !why.starts_with("page "))?;
            (!named.contains(name)).then(|| format!("{name} is refused: {why}"))
        });
        unnamed
            .map(|refused| format!("a look without keys does not name what is refused: {refused}"))
    }

    /// Every mixture of two moments, by these subsets of the files that differ.
    fn judge(
        &self,
        (one, other): (usize, usize),
        subsets: impl Iterator<Item = u64>,
        found: &mut Vec<String>,
    ) -> u64 {
        let names = self.differing(one, other);
        let mut tried = 0;
        for subset in subsets.map(|subset| subset & ((1 << names.len()) - 1)) {
            let taken = names.iter().enumerate().filter(|(bit, _)| subset >> bit & 1 == 1);
            let taken: Vec<&String> = taken.map(|(_, name)| name).collect();
            let mixture = self.mixed(one, other, &taken);
            let access = if tried % 2 == 0 { Access::ReadOnly } else { Access::ReadWrite };
            tried += 1;
            if let Some(wrong) = self.wrong(&mixture, access) {
                found.push(format!("{one} with {taken:?} of {other}, {access:?}: {wrong}"));
            }
            if found.len() >= FOUND_MAX {
                break;
            }
        }
        tried
    }

    fn closes(&self) -> Vec<usize> {
        let numbers = 0..self.moments.len();
        numbers.filter(|number| self.moments[*number].closed).collect()
    }
}

fn rounds() -> u64 {
    std::env::var("ROUNDS").ok().and_then(|rounds| rounds.parse().ok()).unwrap_or(2)
}

#[test]
fn every_moment_is_shown_as_it_was() {
    let life = Life::lived();
    for (number, moment) in life.moments.iter().enumerate() {
        for access in [Access::ReadOnly, Access::ReadWrite] {
            let seen = seen(&moment.image, access).expect("a moment");
            assert!(seen.named.is_empty(), "moment {number}: {:?}", seen.named);
            let shown: State = seen
                .shown
                .into_iter()
                .map(|(name, shown)| {
                    (name.clone(), shown.unwrap_or_else(|e| panic!("{number}, {name}: {e}")))
                })
                .collect();
            assert_eq!(shown, moment.state, "moment {number}, {access:?}");
        }
    }
}

#[test]
fn every_mixture_of_two_closes_is_found_or_shows_one_moment() {
    let life = Life::lived();
    let closes = life.closes();
    let (mut found, mut tried) = (Vec::new(), 0);
    for pair in closes.windows(2) {
        let all = 0..1 << life.differing(pair[0], pair[1]).len();
        tried += life.judge((pair[1], pair[0]), all, &mut found);
    }
    println!("{tried} mixtures");
    assert!(found.is_empty(), "{} of {tried}:\n{}", found.len(), found.join("\n"));
    assert!(tried > 1000, "{tried}");
}

#[test]
fn mixtures_of_any_two_moments_are_found_or_show_one_moment() {
    let life = Life::lived();
    let (found, tried) = any_two(&life, rounds());
    println!("{tried} mixtures");
    assert!(found.is_empty(), "{} of {tried}:\n{}", found.len(), found.join("\n"));
}

/// Each file alone, all but it, and `rounds` subsets of each two moments.
fn any_two(life: &Life, rounds: u64) -> (Vec<String>, u64) {
    let (mut seed, mut tried, mut found) = (0x9E37_79B9_7F4A_7C15_u64, 0, Vec::new());
    let mut random = || {
        seed = mix(seed);
        seed
    };
    for one in 0..life.moments.len() {
        for other in (0..life.moments.len()).filter(|other| *other != one) {
            let alone = (0..life.differing(one, other).len()).map(|bit| 1 << bit);
            let mut subsets: Vec<u64> = alone.collect();
            subsets.extend((0..rounds).map(|_| random()));
            tried += life.judge((one, other), subsets.into_iter(), &mut found);
            if found.len() >= FOUND_MAX {
                return (found, tried);
            }
        }
    }
    (found, tried)
}

#[test]
fn planted_bugs_of_stamps_and_lists_are_found() {
    let bugs = [
        Bug::ObjectsUnstamped,
        Bug::ObjectNotMarked,
        Bug::StampNotCompared,
        Bug::RootsIgnored,
        Bug::ListNotLookedAt,
    ];
    for bug in bugs {
        plant(bug);
        let (found, tried) = any_two(&Life::lived(), 0);
        plant(Bug::None);
        println!("{bug:?}: {} of {tried}: {:?}", found.len(), found.first());
        assert!(!found.is_empty(), "{bug:?}");
    }
}
