//! Entries and iterators over values that may be changed: what they log, what they refuse, and that
//! keys which lie or panic break nothing.

use crate::common::{assert_sound, directory, pool, power_pool, random};
use cenote::{Error, Persist, Reader, Store};
use cenote_collections::{BTreeMap, ForwardList, HashMap, List, String, Vec, btree, hash};
use cenote_medium::counters;
use std::cell::Cell;
use std::cmp::Ordering;
use std::panic::{AssertUnwindSafe, catch_unwind};

fn is_dangling<T>(result: cenote::Result<T>) -> bool {
    matches!(result, Err(Error::Dangling { .. }))
}

/// Fences and streamed bytes of one transaction.
fn cost(
    pool: &cenote::Pool,
    body: impl FnOnce(&mut cenote::Tx<'_>) -> cenote::Result<()>,
) -> (u64, u64) {
    let before = counters::snapshot();
    pool.write(body).expect("a commit");
    let spent = counters::snapshot() - before;
    (spent.fences, spent.streamed_bytes)
}

#[test]
fn changing_all_values_takes_two_fences_and_whole_nodes() {
    const SEAL: u64 = 64;
    let directory = directory();
    let pool = power_pool(directory.path());
    let (tree, map, list) = pool
        .write(|tx| -> cenote::Result<_> {
            let tree = BTreeMap::<u64, u64>::from_iter(tx, (0..10).map(|k| (k, 0)))?;
            let map = HashMap::<u64, u64>::with_hash_key(tx, [1, 2])?;
            map.extend(tx, (0..3).map(|k| (k, 0)))?;
            Ok((tree, map, List::<u64>::from_iter(tx, 0..5)?))
        })
        .unwrap();
    // Ten values of one leaf: its entries and their permutation, 248 bytes, in one entry of 5
    // lines.
    let all = cost(&pool, |tx| tree.values_mut(tx).map(|values| values.for_each(|v| *v += 1)));
    assert_eq!(all, (2, 320 + SEAL));
    // Two of them: two entries.
    let two = cost(&pool, |tx| {
        tree.range_mut(tx, 3..5).map(|entries| entries.for_each(|(_, v)| *v += 1))
    });
    assert_eq!(two, (2, 2 * 64 + SEAL));
    // Three values of a page of 128 bytes: one entry of 3 lines would be no less.
    let page = cost(&pool, |tx| map.values_mut(tx).map(|values| values.for_each(|v| *v += 1)));
    assert_eq!(page, (2, 3 * 64 + SEAL));
    let nodes = cost(&pool, |tx| list.iter_mut(tx).map(|values| values.for_each(|v| *v += 1)));
    assert_eq!(nodes, (2, 5 * 64 + SEAL));
    // An entry costs nothing until it is changed, and then what is changed.
    assert_eq!(cost(&pool, |tx| tree.entry(tx, 3).map(drop)), (0, 0));
    assert_eq!(cost(&pool, |tx| map.entry(tx, 77).map(drop)), (0, 0));
    let changed = cost(&pool, |tx| {
        *tree.entry(tx, 3)?.or_insert(0)? += 1;
        Ok(())
    });
    assert_eq!(changed, (2, 64 + SEAL));
    assert_eq!(cost(&pool, |tx| map.entry(tx, 2)?.or_insert(0).map(drop)), (2, 64 + SEAL));
}

#[test]
fn stale_handles_give_no_entries_and_no_iterators() {
    let directory = directory();
    let pool = pool(directory.path());
    let (tree, map, list, forward, vec) = pool
        .write(|tx| -> cenote::Result<_> {
            let all = (
                BTreeMap::<u64, u64>::from_iter(tx, [(1, 1)])?,
                HashMap::<u64, u64>::from_iter(tx, [(1, 1)])?,
                List::<u64>::from_iter(tx, [1])?,
                ForwardList::<u64>::from_iter(tx, [1])?,
                Vec::<u64>::from_iter(tx, [1])?,
            );
            all.0.destroy(tx)?;
            all.1.destroy(tx)?;
            all.2.destroy(tx)?;
            all.3.destroy(tx)?;
            all.4.destroy(tx)?;
            Ok(all)
        })
        .unwrap();
    pool.write(|tx| -> cenote::Result<()> {
        assert!(is_dangling(tree.entry(tx, 1)) && is_dangling(tree.first_entry(tx)));
        assert!(is_dangling(tree.iter_mut(tx)) && is_dangling(tree.range_mut(tx, 0..9)));
        assert!(is_dangling(map.entry(tx, 1)) && is_dangling(map.iter_mut(tx)));
        assert!(is_dangling(list.iter_mut(tx)) && is_dangling(forward.iter_mut(tx)));
        assert!(is_dangling(vec.iter_mut(tx)) && is_dangling(vec.last_mut(tx)));
        Ok(())
    })
    .unwrap();
    assert_eq!(pool.stats().unwrap().blocks, 0);
}

thread_local! {
    /// Whether keys give random answers.
    static LIES: Cell<u64> = const { Cell::new(0) };
}

#[derive(Persist, Clone, Copy, Debug, PartialEq, Eq)]
struct Liar(u64);

impl PartialOrd for Liar {
    fn partial_cmp(&self, other: &Self) -> Option<Ordering> {
        Some(self.cmp(other))
    }
}

impl Ord for Liar {
    fn cmp(&self, other: &Self) -> Ordering {
        let mut seed = LIES.get();
        if seed == 0 {
            return self.0.cmp(&other.0);
        }
        let lie = random(&mut seed);
        LIES.set(seed);
        (lie % 7).cmp(&3)
    }
}

/// Two references to one value would be undefined behaviour, also where a wrong `Ord` decides where
/// a range begins and ends.
#[test]
fn lying_keys_never_yield_a_value_twice() {
    let directory = directory();
    let pool = pool(directory.path());
    let tree = pool
        .write(|tx| BTreeMap::<Liar, u64>::from_iter(tx, (0..400).map(|k| (Liar(k), k))))
        .unwrap();
    for seed in 1..200 {
        LIES.set(seed);
        pool.write(|tx| -> cenote::Result<()> {
            let (a, b) = (Liar(seed * 7 % 400), Liar(seed * 31 % 400));
            let mut all: std::vec::Vec<&mut u64> =
                tree.range_mut(tx, a..b)?.map(|(_, value)| value).collect();
            let count = all.len();
            all.sort_unstable_by_key(|value| std::ptr::from_ref::<u64>(value).addr());
            all.dedup_by_key(|value| std::ptr::from_ref::<u64>(value).addr());
            assert_eq!(all.len(), count);
            // Entries work on the place that was found; a second comparison might find another.
            match tree.entry(tx, a)? {
                btree::Entry::Occupied(entry) => drop(entry.remove_entry()?),
                btree::Entry::Vacant(entry) => drop(entry.insert(1)?),
            }
            assert_eq!(tree.iter(tx)?.count(), tree.len(tx)?);
            Ok(())
        })
        .unwrap();
    }
    LIES.set(0);
    pool.write(|tx| {
        let root = tx.alloc(tree)?;
        tx.set_root(root)
    })
    .unwrap();
    assert_sound(&pool);
}

#[test]
fn a_value_that_cannot_be_made_leaves_no_entry() {
    let directory = directory();
    let pool = pool(directory.path());
    pool.write(|tx| -> cenote::Result<()> {
        let (tree, map) = (BTreeMap::<u64, u64>::new(tx)?, HashMap::<u64, u64>::new(tx)?);
        for round in 0..40 {
            let refused = |_: &mut cenote::Tx<'_>| Err(Error::Aborted("no value".into()));
            assert!(tree.entry(tx, round)?.or_try_insert_with(refused).is_err());
            assert!(map.entry(tx, round)?.or_try_insert_with(refused).is_err());
            let panicked = catch_unwind(AssertUnwindSafe(|| {
                tree.entry(tx, round)?
                    .or_insert_with(|| std::panic::resume_unwind(Box::new("asked for")))?;
                Ok::<_, Error>(())
            }));
            assert!(panicked.is_err());
            let panicked = catch_unwind(AssertUnwindSafe(|| {
                map.entry(tx, round)?
                    .or_insert_with(|| std::panic::resume_unwind(Box::new("asked for")))?;
                Ok::<_, Error>(())
            }));
            assert!(panicked.is_err());
            assert_eq!((tree.len(tx)?, map.len(tx)?), (round as usize, round as usize));
            *tree.entry(tx, round)?.or_default()? = round;
            *map.entry(tx, round)?.or_default()? = round;
        }
        assert!(tree.iter(tx)?.map(|(k, v)| (*k, *v)).eq((0..40).map(|k| (k, k))));
        Ok(())
    })
    .unwrap();
}

#[derive(Persist)]
struct Drawer {
    words: Option<List<u64>>,
    title: Option<String>,
    index: Option<BTreeMap<u64, Option<Vec<u8>>>>,
}

/// A collection that may be missing takes 8 bytes, is found by tracing, and is there again when the
/// store is opened again.
#[test]
fn an_option_of_a_collection_is_a_field_like_any_other() {
    let directory = directory();
    let store = Store::open(directory.path()).unwrap();
    let pool = store.pool("test").unwrap();
    assert_eq!(size_of::<Drawer>(), 24);
    pool.write(|tx| -> cenote::Result<()> {
        let index = BTreeMap::new(tx)?;
        let bytes = Vec::from_iter(tx, [1, 2, 3])?;
        index.insert(tx, 1, Some(bytes))?;
        index.insert(tx, 2, None)?;
        let words = List::from_iter(tx, 0..10)?;
        let drawer = tx.alloc(Drawer { words: Some(words), title: None, index: Some(index) })?;
        tx.set_root(drawer)
    })
    .unwrap();
    // What no pointer map leads to is given back: all of this stays.
    let before = pool.stats().unwrap().blocks;
    pool.collect().unwrap();
    assert_eq!(pool.stats().unwrap().blocks, before);
    assert_sound(&pool);
    drop((pool, store));
    let pool = crate::common::pool(directory.path());
    let view = pool.read().unwrap();
    let drawer = view.get(view.root::<Drawer>().unwrap().unwrap()).unwrap();
    assert!(
        drawer.words.unwrap().iter(&view).unwrap().copied().eq(0..10) && drawer.title.is_none()
    );
    let index = drawer.index.unwrap();
    assert_eq!(index.get(&view, &1).unwrap().unwrap().unwrap().as_slice(&view).unwrap(), [1, 2, 3]);
    assert_eq!(index.get(&view, &2).unwrap(), Some(&None));
}

#[test]
fn entries_say_what_they_are() {
    let directory = directory();
    let pool = pool(directory.path());
    pool.write(|tx| -> cenote::Result<()> {
        let (tree, map) = (BTreeMap::<u64, u64>::new(tx)?, HashMap::<u64, u64>::new(tx)?);
        assert_eq!(format!("{:?}", tree.entry(tx, 5)?), "VacantEntry(5)");
        assert_eq!(format!("{:?}", map.entry(tx, 5)?), "VacantEntry(5)");
        assert!(tree.first_entry(tx)?.is_none() && tree.last_entry(tx)?.is_none());
        tree.insert(tx, 5, 6)?;
        map.insert(tx, 5, 6)?;
        assert_eq!(format!("{:?}", tree.entry(tx, 5)?), "OccupiedEntry { key: 5, value: 6 }");
        assert_eq!(format!("{:?}", map.entry(tx, 5)?), "OccupiedEntry { key: 5, value: 6 }");
        assert!(matches!(map.entry(tx, 5)?, hash::Entry::Occupied(_)));
        assert_eq!(*map.entry(tx, 5)?.key(), 5);
        Ok(())
    })
    .unwrap();
}
