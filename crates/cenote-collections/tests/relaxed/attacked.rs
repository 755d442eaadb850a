//! Attacks through safe code: keys whose order lies or that change the map they are compared for,
//! maps that end in transactions, and lines of a modelled cache on real memory.

use super::{Map, Open, all, found, make};
use crate::common::{assert_sound, directory, pool, power_pool};
use cenote::{Persist, Pool, Reader, Result};
use cenote_collections::RelaxedDurabilityMap;
use cenote_collections::relaxed::OpenRelaxedMap;
use cenote_groups::{CacheModel, GroupOptions, Leaving, Replacement};
use cenote_medium::counters;
use std::cell::{Cell, RefCell};
use std::cmp::Ordering;
use zerocopy::{FromBytes, Immutable, IntoBytes};

thread_local! {
    /// Whether no key equals itself.
    static LIES: Cell<bool> = const { Cell::new(false) };
    /// A map that a comparison changes.
    static CHANGED: RefCell<Option<OpenRelaxedMap<LyingKey, u64>>> = const { RefCell::new(None) };
    static REFUSED: Cell<u64> = const { Cell::new(0) };
}

#[derive(Persist, FromBytes, IntoBytes, Immutable, Clone, Copy, Debug)]
#[repr(C)]
struct LyingKey(u64);

impl PartialEq for LyingKey {
    fn eq(&self, other: &Self) -> bool {
        CHANGED.with_borrow(|open| {
            if let Some(open) = open {
                let result = open.insert(&Self(1000), &1);
                REFUSED.set(REFUSED.get() + u64::from(result.is_err()));
            }
        });
        self.0 == other.0
    }
}

impl Eq for LyingKey {}

impl PartialOrd for LyingKey {
    fn partial_cmp(&self, other: &Self) -> Option<Ordering> {
        Some(self.cmp(other))
    }
}

impl Ord for LyingKey {
    fn cmp(&self, other: &Self) -> Ordering {
        match self.0.cmp(&other.0) {
            Ordering::Equal if LIES.get() => Ordering::Greater,
            order => order,
        }
    }
}

/// As large as a leaf of the map.
#[derive(Persist)]
struct AsLeaf {
    words: [u64; 104],
}

fn lying(pool: &Pool) -> OpenRelaxedMap<LyingKey, u64> {
    let map = pool
        .write(|tx| -> Result<_> {
            let map = RelaxedDurabilityMap::<LyingKey, u64>::new(tx)?;
            let root = tx.alloc(map)?;
            tx.set_root(root)?;
            Ok(map)
        })
        .unwrap();
    map.open(pool).unwrap()
}

/// A leaf was freed while the index still led to it: what came to lie there was written to, beside
/// a reference of safe code.
#[test]
fn keys_that_equal_nothing_free_no_leaf_that_the_index_leads_to() {
    let dir = directory();
    let pool = pool(dir.path());
    let open = lying(&pool);
    // Two full leaves; the index has the second one.
    (0..64).for_each(|key| {
        open.insert(&LyingKey(key), &key).unwrap();
    });
    LIES.set(true);
    let split = open.insert(&LyingKey(33), &0);
    LIES.set(false);
    let others: Vec<_> =
        (0..64).map(|_| pool.write(|tx| tx.alloc(AsLeaf { words: [0; 104] })).unwrap()).collect();
    let _ = open.insert(&LyingKey(33), &34);
    {
        let view = pool.read().unwrap();
        for other in &others {
            assert_eq!(view.get(*other).unwrap().words, [0; 104]);
        }
    }
    assert!(split.unwrap_err().to_string().contains("order"));
    (0..64).for_each(|key| {
        open.insert(&LyingKey(key), &(key + 1)).unwrap();
    });
    let view = pool.read().unwrap();
    let entries: Vec<_> = open.iter(&view).unwrap().map(|(key, value)| (key.0, *value)).collect();
    assert!(entries.into_iter().eq((0..64).map(|key| (key, key + 1))));
    drop(view);
    others.into_iter().for_each(|other| pool.write(|tx| tx.free(other)).unwrap());
    drop(open);
    assert_sound(&pool);
}

#[test]
fn a_comparison_that_changes_the_map_is_refused() {
    let dir = directory();
    let pool = pool(dir.path());
    let open = lying(&pool);
    open.insert(&LyingKey(7), &7).unwrap();
    CHANGED.set(Some(open.clone()));
    assert_eq!(open.insert(&LyingKey(7), &8).unwrap(), Some(7));
    assert_eq!(open.remove(&LyingKey(7)).unwrap(), Some(8));
    CHANGED.set(None);
    assert!(REFUSED.get() > 0);
    assert_eq!(open.count(&pool.read().unwrap()).unwrap(), 0);
    open.insert(&LyingKey(9), &9).unwrap();
}

/// Nothing leaves a cache as large as this by itself.
fn large() -> GroupOptions {
    let model = CacheModel { sets: 1024, ways: 8, replacement: Replacement::First };
    GroupOptions { counters: 512, leaving: Leaving::Modelled(model) }
}

fn filled(pool: &Pool, options: GroupOptions) -> Open {
    let open = make(pool).open_with(pool, options).unwrap();
    (0..20).for_each(|key| {
        open.insert(&key, &[key; 4]).unwrap();
    });
    open
}

/// The entries that waited were lost, without a crash.
#[test]
fn a_map_that_ends_in_a_transaction_keeps_what_it_has_taken() {
    for commits in [true, false] {
        let dir = directory();
        let pool = power_pool(dir.path());
        let open = filled(&pool, large());
        let done = pool.write(|tx| -> Result<()> {
            tx.alloc(7_u64).map(drop)?;
            drop(open);
            if commits { Ok(()) } else { Err(cenote::Error::Aborted("on purpose".into())) }
        });
        assert_eq!(done.is_ok(), commits);
        let open = found(&pool).open(&pool).unwrap();
        assert_eq!(all(&open, &pool).len(), 20, "commits: {commits}");
    }
    // A map that was destroyed by a call that fails.
    let dir = directory();
    let pool = power_pool(dir.path());
    let open = filled(&pool, large());
    pool.write(|_| -> Result<()> {
        assert!(open.destroy().is_err());
        Ok(())
    })
    .unwrap();
    assert_eq!(all(&found(&pool).open(&pool).unwrap(), &pool).len(), 20);
}

/// A model evicts nothing on real memory: what left it was counted as durable, and was not flushed.
#[test]
fn what_leaves_a_modelled_cache_on_real_memory_is_flushed() {
    let dir = directory();
    let pool = power_pool(dir.path());
    let model = CacheModel { sets: 1, ways: 1, replacement: Replacement::First };
    let options = GroupOptions { counters: 64, leaving: Leaving::Modelled(model) };
    let open = filled(&pool, options);
    open.flush().unwrap();
    let before = counters::snapshot();
    (20..30).for_each(|key| {
        open.insert(&key, &[key; 4]).unwrap();
    });
    open.flush().unwrap();
    // Ten slots of 40 bytes and their tags: nine lines at least.
    assert!((counters::snapshot() - before).flushes >= 9);
}

#[test]
fn a_map_that_was_dropped_is_opened_again_with_its_handle() {
    let dir = directory();
    let pool = pool(dir.path());
    let map: Map = make(&pool);
    for key in 0..3 {
        map.open(&pool).unwrap().insert(&key, &[key; 4]).unwrap();
    }
    assert_eq!(all(&map.open(&pool).unwrap(), &pool).len(), 3);
}
