//! Mixtures of files of an unprotected store over opens, stores, psyncs and closes: in a store that
//! counts as closed each pool shows one of its states, or is refused.
//!
//! A *moment* is the medium after a step. A mixture has each file as it was at one of two moments.
//! The generator takes every file alone and all but it, and seeded subsets besides. `ROUNDS` in the
//! environment asks for more of these.

use crate::common::window_base;
use cenote_medium::planted::{Bug, plant};
use cenote_medium::sim::{CrashKind, Image, Limits, SimMedium, SimOptions};
use cenote_medium::{Durability, Medium};
use cenote_store::{
    Access, Begun, FormatOptions, OpenOptions, PoolHandle, PoolMode, PoolOptions, PowerLossPolicy,
    Store,
};
use cenote_testkit::random::mix;
use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

const PUDDLE: u64 = PoolOptions::PUDDLE_SIZE_MIN;
/// Names and modes; each has two puddles.
const POOLS: [(&str, PoolMode); 2] = [("d", PoolMode::Direct), ("s", PoolMode::Shadowed)];

/// After so many mixtures that show what never was, the generator ends.
const FOUND_MAX: usize = 8;

/// What a pool shows: a word of each puddle.
type Words = Vec<u64>;

fn opened(sim: &Arc<SimMedium>, access: Access) -> Result<Store, String> {
    let medium: Arc<dyn Medium> = sim.clone();
    let options = OpenOptions { access, spare_bytes_max: 0, ..OpenOptions::default() };
    Ok(Store::open(medium, options).map_err(|error| error.to_string())?.0)
}

/// The error: the pool that is refused, and why.
fn pools(store: &Store) -> Result<Vec<PoolHandle>, String> {
    let open = |(name, _)| {
        store.open_pool(name, Access::ReadWrite).map_err(|error| format!("{name}: {error}"))
    };
    POOLS.into_iter().map(open).collect()
}

/// Stores a value into every puddle; psyncs, where that is to be.
fn fill(pool: &PoolHandle, value: u64, psyncs: bool) {
    for puddle in pool.puddles() {
        pool.store().ensure_mapped(puddle).expect("mapped");
        let at = core::ptr::with_exposed_provenance_mut::<u64>(puddle.body_addr() as usize + 65536);
        // SAFETY: the body of a puddle that this test alone has, mapped and writable.
        unsafe { at.write(value) };
    }
    if !psyncs {
        return;
    }
    if let Begun::Mine(mut psync) = pool.store().begin_psync(&[pool], &|_| None).expect("begun") {
        // SAFETY: this thread alone has the pool.
        unsafe { psync.copy() }.expect("copied");
        psync.commit().expect("committed");
    }
}

/// The moments of a store's life, and its states.
struct Life {
    moments: Vec<Image>,
    states: BTreeMap<&'static str, BTreeSet<Words>>,
}

impl Life {
    /// The error: which moment of a store that nothing happened to is refused, and why.
    fn lived() -> Result<Self, String> {
        let sim = SimMedium::new(SimOptions::new(Durability::Process));
        let base = Some(window_base());
        let format =
            FormatOptions { window_base: base, window_len: 64 << 20, ..Default::default() };
        cenote_store::format(sim.clone(), &format).expect("formatted");
        let mut life = Self { moments: Vec::new(), states: BTreeMap::new() };
        let store = opened(&sim, Access::ReadWrite).expect("opened");
        for (name, mode) in POOLS {
            let options = PoolOptions { mode, puddle_size: PUDDLE, ..PoolOptions::default() };
            store.create_pool(name, &options).expect("created");
            let pool = store.open_pool(name, Access::ReadWrite).expect("opened");
            pool.take_puddle(PUDDLE).expect("taken");
        }
        store.close().expect("closed");
        life.is_now(&sim);
        let mut value = 0;
        for session in 0..3 {
            let store = opened(&sim, Access::ReadWrite).expect("opened");
            life.is_now(&sim);
            let closed = life.moments.len() - 2;
            let open = pools(&store).map_err(|error| format!("moment {closed}, {error}"))?;
            for psyncs in [false, true, false] {
                value += 1;
                open.iter().for_each(|pool| fill(pool, value, psyncs && pool.name() == "s"));
                life.is_now(&sim);
            }
            drop(open);
            match session {
                // The second is killed.
                1 => store.abandon(),
                _ => store.close().expect("closed"),
            }
            life.is_now(&sim);
        }
        for (number, image) in life.moments.iter().enumerate() {
            for (name, words) in seen(image, Access::ReadOnly).expect("a moment").0 {
                let words = words.map_err(|error| format!("moment {number}, {name}: {error}"))?;
                life.states.entry(name).or_default().insert(words);
            }
        }
        Ok(life)
    }

    fn is_now(&mut self, sim: &Arc<SimMedium>) {
        self.moments.push(sim.image_now(CrashKind::Process));
    }

    fn differing(&self, one: usize, other: usize) -> Vec<String> {
        let (one, other) = (&self.moments[one], &self.moments[other]);
        let names: BTreeSet<String> = one.names().into_iter().chain(other.names()).collect();
        names.into_iter().filter(|name| one.file(name) != other.file(name)).collect()
    }

    /// Pools that show no state, of a mixture that passes for closed.
    fn wrong(&self, mixture: &Image) -> Option<String> {
        let mut wrong = None;
        for access in [Access::ReadOnly, Access::ReadWrite] {
            let Ok((shown, clean)) = seen(mixture, access) else { continue };
            for (name, words) in shown.into_iter().filter(|_| clean) {
                let Ok(words) = words else { continue };
                if !self.states[name].contains(&words) {
                    wrong = Some(format!("{access:?}: pool {name} shows {words:?}"));
                }
            }
        }
        wrong
    }
}

/// What the pools of an image show, or why not; and whether it counts as closed. Shadows of one
/// that is opened for writing are not all: what a psync would compare with has to be of that state,
/// too.
#[expect(clippy::type_complexity, reason = "used here alone")]
fn seen(
    image: &Image,
    access: Access,
) -> Result<(BTreeMap<&'static str, Result<Words, String>>, bool), String> {
    let sim = SimMedium::from_image_unrecorded(image);
    let store = opened(&sim, access)?;
    let clean = image_is_clean(image);
    let words = |name: &str| -> Result<Words, String> {
        let pool = store.open_pool(name, access).map_err(|error| error.to_string())?;
        let mut words = Words::new();
        for puddle in pool.puddles() {
            let mut bytes = [0; 8];
            let at = puddle.body_addr() + 65536;
            // SAFETY: this thread alone has the store.
            unsafe { pool.read_at(at, &mut bytes) }.map_err(|error| error.to_string())?;
            words.push(u64::from_le_bytes(bytes));
            let primary = image.file(&format!("primary/{}", hex(puddle.uuid())));
            if let (true, Some(primary)) = (clean && access.writes(), primary) {
                let at = (puddle.body_addr() - puddle.addr()) as usize + 65536;
                words.push(u64::from_le_bytes(primary[at..at + 8].try_into().expect("a word")));
            }
        }
        // A shadowed pool that was closed is its primaries.
        let half = words.chunks_exact(2).map(|pair| (pair[0], pair[1]));
        if words.len() == 4 && half.clone().all(|(shadow, primary)| shadow == primary) {
            return Ok(half.map(|(shadow, _)| shadow).collect());
        }
        Ok(words)
    };
    let shown = POOLS.into_iter().map(|(name, _)| (name, words(name))).collect();
    store.abandon();
    Ok((shown, clean))
}

fn hex(uuid: cenote_layout::id::Uuid) -> String {
    uuid.to_hex().iter().map(|byte| char::from(*byte)).collect()
}

fn image_is_clean(image: &Image) -> bool {
    use cenote_layout::superblock::{STATE_CLEAN, Superblock};
    use zerocopy::FromBytes;
    let bytes = image.file("superblock").expect("it is there");
    let copies = bytes.chunks_exact(4096).filter_map(|copy| Superblock::read_from_bytes(copy).ok());
    copies.max_by_key(|block| block.generation).is_some_and(|block| block.state == STATE_CLEAN)
}

/// Mixtures that show what never was.
fn torn(life: &Life, rounds: u64) -> (u64, Vec<String>) {
    let (mut seed, mut tried, mut found) = (0x9E37_79B9_7F4A_7C15_u64, 0, Vec::new());
    let mut random = || {
        seed = mix(seed);
        seed
    };
    for one in 0..life.moments.len() {
        for other in (0..life.moments.len()).filter(|other| *other != one) {
            let names = life.differing(one, other);
            let mut subsets: Vec<u64> = (0..names.len()).map(|bit| 1 << bit).collect();
            subsets.extend((0..rounds).map(|_| random() % (1 << names.len())));
            for subset in subsets {
                let mut mixture = life.moments[one].clone();
                let taken: Vec<&String> = names
                    .iter()
                    .enumerate()
                    .filter(|(bit, _)| subset >> bit & 1 == 1)
                    .map(|(_, n)| n)
                    .collect();
                for name in &taken {
                    mixture.roll_back(name, &life.moments[other]);
                }
                if !image_is_clean(&mixture) {
                    continue;
                }
                tried += 1;
                if let Some(wrong) = life.wrong(&mixture) {
                    found.push(format!("{one} with {taken:?} of {other}: {wrong}"));
                    if found.len() == FOUND_MAX {
                        return (tried, found);
                    }
                }
            }
        }
    }
    (tried, found)
}

fn rounds() -> u64 {
    std::env::var("ROUNDS").ok().and_then(|rounds| rounds.parse().ok()).unwrap_or(3)
}

#[test]
fn a_closed_store_of_files_of_two_moments_shows_a_state_or_refuses_the_pool() {
    let life = Life::lived().expect("every moment shows its pools");
    let (tried, found) = torn(&life, rounds());
    assert!(tried > 300, "{tried}");
    assert!(found.is_empty(), "{} of {tried}:\n{}", found.len(), found.join("\n"));
}

#[test]
fn planted_a_stamp_that_is_not_written_or_compared_shows_mixtures() {
    for bug in [Bug::NotMarked, Bug::StampNotCompared] {
        plant(bug);
        let life = Life::lived().expect("every moment shows its pools");
        let (_, found) = torn(&life, 0);
        plant(Bug::None);
        assert!(!found.is_empty(), "{bug:?}");
    }
}

#[test]
fn planted_a_seal_that_is_not_named_costs_a_whole_pool() {
    plant(Bug::SealNotNamed);
    let lived = Life::lived().map(drop);
    plant(Bug::None);
    let refused = lived.expect_err("the store as its first close left it");
    assert!(refused.starts_with("moment 0, d: "), "{refused}");
    assert!(refused.contains("of another moment than the catalog"), "{refused}");
}

/// Opens a store and all its pools, and closes it.
fn whole(sim: &Arc<SimMedium>) -> Result<(), String> {
    let (power_loss, spare_bytes_max) = (PowerLossPolicy::AsIs, 0);
    let options = OpenOptions { power_loss, spare_bytes_max, ..OpenOptions::default() };
    let (store, _) = Store::open(sim.clone(), options).map_err(|error| error.to_string())?;
    let open = |(name, _)| store.open_pool(name, Access::ReadWrite);
    let all: Result<Vec<PoolHandle>, _> = POOLS.into_iter().map(open).collect();
    let all = all.map(drop).map_err(|error| error.to_string());
    store.close().map_err(|error| error.to_string())?;
    all
}

/// A loss of power at any moment of a close, with any part of what was not synced: the pools are
/// there at the next open, and at the one after that.
fn close_with_losses(bug: Bug) -> Vec<String> {
    let life = Life::lived().expect("every moment shows its pools");
    let before = &life.moments[4];
    let sim = SimMedium::from_image(before);
    let store = opened(&sim, Access::ReadWrite).expect("opened");
    let open = pools(&store).expect("opened");
    open.iter().for_each(|pool| fill(pool, 77, false));
    drop(open);
    plant(bug);
    let begun = sim.trace_len();
    store.close().expect("closed");
    plant(Bug::None);
    let limits = Limits { exhaustive_units: 4, samples: 4, ..Limits::default() };
    let mut wrong = Vec::new();
    sim.explore(begun.., limits, |state, image| {
        let sim = SimMedium::from_image_unrecorded(&image);
        for open in ["first", "second"] {
            if let Err(error) = whole(&sim) {
                wrong.push(format!("event {}, {open} open: {error}", state.event()));
            }
        }
    });
    wrong
}

#[test]
fn a_loss_of_power_in_a_close_condemns_no_pool() {
    let wrong = close_with_losses(Bug::None);
    assert!(wrong.is_empty(), "{}:\n{}", wrong.len(), wrong.join("\n"));
    assert!(!close_with_losses(Bug::SealNotSynced).is_empty());
}
