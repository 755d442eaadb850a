//! A map of relaxed durability on the simulated medium, its history, and what an opener finds.
//!
//! **Oracle.** Each step has a number, which is in its value. After a crash each key has the state
//! of one of its steps, as a whole: not one before the last flush, none that has not begun. The
//! later of two moments never has an earlier state of a key.

use cenote::{Error, FormatOptions, Pool, PoolOptions, Reader, Result, Store};
use cenote_collections::RelaxedDurabilityMap;
use cenote_collections::relaxed::OpenRelaxedMap;
use cenote_crashtest::rig::{WINDOW_LEN, open_options, pool_options, window_base};
use cenote_groups::{CacheModel, GroupOptions, Leaving};
use cenote_medium::sim::{CrashKind, Image, SimMedium, SimOptions};
use cenote_medium::{Durability, Medium};
use std::collections::BTreeMap;
use std::sync::Arc;

/// A map whose values have so many words. With one a leaf is so small that its log is lazy.
type Map<const N: usize> = RelaxedDurabilityMap<u64, [u64; N]>;

/// What a step does.
#[derive(Clone, Copy, Debug)]
pub(super) enum Do {
    Insert(u64),
    Remove(u64),
    Flush,
}

/// What is there: the word of each key, of which all words of its value are.
pub(super) type Found = BTreeMap<u64, u64>;

/// A map that is open.
pub(super) struct Opened<const N: usize> {
    pub(super) map: OpenRelaxedMap<u64, [u64; N]>,
    pub(super) pool: Pool,
    store: Store,
}

/// Lines leave this cache.
pub(super) fn leaving(counters: u32, model: CacheModel) -> GroupOptions {
    GroupOptions { counters, leaving: Leaving::Modelled(model) }
}

/// The word of a step.
pub(super) fn word_of(step: usize) -> u64 {
    step as u64 + 1
}

/// A store that was closed, with a map that has these keys; their steps are before all others.
pub(super) fn base<const N: usize>(
    worker: usize,
    keys: impl Iterator<Item = u64>,
) -> Result<Image> {
    let sim = SimMedium::new(SimOptions::new(Durability::Power));
    let medium: Arc<dyn Medium> = sim.clone();
    let window_base = Some(window_base(9000 + worker));
    let format = FormatOptions { window_base, window_len: WINDOW_LEN, uuid: None };
    cenote_store::format(medium.clone(), &format)?;
    let store = Store::open_on(medium, &open_options())?;
    let options = PoolOptions { puddle_size: 3 << 16, ..pool_options(2) };
    let pool = store.create_pool("p", &options)?;
    let map = pool.write(|tx| -> Result<Map<N>> {
        let map = Map::<N>::new(tx)?;
        let root = tx.alloc(map)?;
        tx.set_root(root)?;
        Ok(map)
    })?;
    let open = map.open(&pool)?;
    for key in keys {
        open.insert(&key, &[u64::MAX; N])?;
    }
    drop((open, pool, store));
    Ok(sim.image_now(CrashKind::Process))
}

impl<const N: usize> Opened<N> {
    pub(super) fn new(sim: &Arc<SimMedium>, options: GroupOptions) -> Result<Self> {
        let store = Store::open_on(sim.clone(), &open_options())?;
        let pool = store.pool("p")?;
        let map = {
            let view = pool.read()?;
            *view.get(view.root::<Map<N>>()?.expect("a root"))?
        };
        // What the store does to open is not looked at here; what the map does is.
        sim.forget_trace();
        Ok(Self { map: map.open_with(&pool, options)?, pool, store })
    }

    pub(super) fn all(&self) -> Result<Found> {
        let view = self.pool.read()?;
        let mut all = Found::new();
        for (key, value) in self.map.iter(&view)? {
            let by_key = self.map.get(&view, key)?;
            let is_whole = value.iter().all(|word| *word == value[0]);
            if by_key != Some(value) || !is_whole || all.insert(*key, value[0]).is_some() {
                return Err(Error::Aborted(format!("key {key}: {value:x?}, but {by_key:x?}")));
            }
        }
        Ok(all)
    }

    pub(super) fn step(&self, number: usize, step: Do) -> Result<()> {
        match step {
            Do::Insert(key) => self.map.insert(&key, &[word_of(number); N]).map(drop),
            Do::Remove(key) => self.map.remove(&key).map(drop),
            Do::Flush => self.map.flush(),
        }
    }

    /// Ends as a process that dies: what its destructors do is in no history that is looked at.
    pub(super) fn end(self, sim: &SimMedium) {
        sim.stop_looking();
        let Self { map, pool, store } = self;
        drop((map, pool));
        drop(store);
    }
}

/// What the next opener finds.
pub(super) fn found_in<const N: usize>(image: &Image) -> core::result::Result<Found, String> {
    found_with::<N>(image, 0)
}

/// The same where some entries are damaged.
pub(super) fn found_with<const N: usize>(
    image: &Image,
    broken_max: usize,
) -> core::result::Result<Found, String> {
    let sim = SimMedium::from_image_unrecorded(image);
    let cache = CacheModel { sets: 1, ways: 1, replacement: cenote_groups::Replacement::First };
    let opened = Opened::<N>::new(&sim, leaving(4, cache)).map_err(|error| error.to_string())?;
    let all = opened.all().map_err(|error| error.to_string());
    let broken = opened.pool.read().and_then(|view| opened.map.broken(&view));
    let broken = broken.map_err(|error| error.to_string())?;
    // Closing is not looked at.
    opened.end(&sim);
    match broken > broken_max {
        true => Err(format!("{broken} entries have tags and are not whole")),
        false => all,
    }
}

/// States that keys had.
pub(super) struct History<'s> {
    /// Of before the first step.
    pub(super) at_first: Found,
    pub(super) steps: &'s [Do],
}

/// How far each key is at least: the number of a step, or -1.
pub(super) type Least = BTreeMap<u64, i64>;

impl History<'_> {
    fn keys(&self) -> impl Iterator<Item = u64> {
        let of_step = |step: &Do| match step {
            Do::Insert(key) | Do::Remove(key) => Some(*key),
            Do::Flush => None,
        };
        self.steps.iter().filter_map(of_step)
    }

    /// Numbers of the steps that leave a key as it was found, of the first `begun` ones.
    fn states(&self, key: u64, found: Option<u64>, begun: usize) -> Vec<i64> {
        let mut states = Vec::new();
        if self.at_first.get(&key).copied() == found {
            states.push(-1);
        }
        for (number, step) in self.steps.iter().take(begun).enumerate() {
            let state = match step {
                Do::Insert(of) if *of == key => Some(word_of(number)),
                Do::Remove(of) if *of == key => None,
                _ => continue,
            };
            if state == found {
                states.push(number as i64);
            }
        }
        states
    }

    /// The last step of a key among the first `flushed`.
    fn last(&self, key: u64, flushed: usize) -> i64 {
        let is_of = |step: &Do| matches!(step, Do::Insert(of) | Do::Remove(of) if *of == key);
        self.steps[..flushed].iter().rposition(is_of).map_or(-1, |last| last as i64)
    }

    /// Compares what was found with what may be, and returns how far each key is at least.
    pub(super) fn check(
        &self,
        found: &Found,
        (flushed, done): (usize, usize),
        least: &Least,
    ) -> core::result::Result<Least, String> {
        let mut reached = Least::new();
        let all: std::collections::BTreeSet<u64> =
            self.keys().chain(found.keys().copied()).chain(self.at_first.keys().copied()).collect();
        for key in all {
            let state = found.get(&key).copied();
            // The step that has begun may be there.
            let states = self.states(key, state, (done + 1).min(self.steps.len()));
            let (Some(first), Some(last)) = (states.first(), states.last()) else {
                return Err(format!("key {key} is {state:x?}, which it never was"));
            };
            let wanted = self.last(key, flushed).max(least.get(&key).copied().unwrap_or(-1));
            if *last < wanted {
                return Err(format!("key {key} is as step {last} left it, {wanted} was there"));
            }
            reached.insert(key, *first);
        }
        Ok(reached)
    }
}
