//! The map of relaxed durability on real files: against the map of std, beside readers, killed,
//! and what an operation costs. Its crashes are in `cenote-crashtest/tests/relaxed`.

mod attacked;
mod killed;
mod refusals;
mod threads;

use crate::common::{assert_sound, directory, pool, power_pool, random};
use cenote::{Pool, Result};
use cenote_collections::RelaxedDurabilityMap;
use cenote_collections::relaxed::OpenRelaxedMap;
use cenote_groups::{CacheModel, GroupOptions, Leaving, Replacement};
use cenote_medium::counters;
use cenote_medium::planted::{Bug, GroupBug, plant};
use std::collections::BTreeMap;

type Value = [u64; 4];
type Map = RelaxedDurabilityMap<u64, Value>;
type Open = OpenRelaxedMap<u64, Value>;

/// A map that root 0 leads to.
fn make(pool: &Pool) -> Map {
    pool.write(|tx| -> Result<Map> {
        let map = Map::new(tx)?;
        let root = tx.alloc(map)?;
        tx.set_root(root)?;
        Ok(map)
    })
    .expect("a map")
}

fn found(pool: &Pool) -> Map {
    let view = pool.read().expect("a view");
    let root = cenote::Reader::root::<Map>(&view).expect("its type").expect("a root");
    *cenote::Reader::get(&view, root).expect("alive")
}

fn all(open: &Open, pool: &Pool) -> BTreeMap<u64, Value> {
    let view = pool.read().expect("a view");
    let entries: Vec<(u64, Value)> =
        open.iter(&view).expect("entries").map(|(key, value)| (*key, *value)).collect();
    assert!(entries.is_sorted_by(|a, b| a.0 < b.0), "sorted, and one of each");
    view.finish().expect("read");
    entries.into_iter().collect()
}

/// Lines leave one by one, and nothing happens beside the test.
fn modelled() -> GroupOptions {
    let model = CacheModel { sets: 16, ways: 4, replacement: Replacement::LeastRecent };
    GroupOptions { counters: 64, leaving: Leaving::Modelled(model) }
}

/// Random operations, on the map and on that of std.
fn mixed(pool: &Pool, options: GroupOptions, (seed, steps): (u64, u64)) {
    let map = make(pool);
    let mut open = map.open_with(pool, options).expect("open");
    let mut model = BTreeMap::new();
    let mut seed = seed;
    for step in 0..steps {
        let (what, key) = (random(&mut seed), random(&mut seed) % 400);
        let value = [step, key, !step, !key];
        match what % 20 {
            0..10 => assert_eq!(open.insert(&key, &value).unwrap(), model.insert(key, value)),
            // Behind all others.
            10 | 11 => {
                let key = model.last_key_value().map_or(0, |(key, _)| key + 1);
                assert_eq!(open.insert(&key, &value).unwrap(), model.insert(key, value));
            }
            12..16 => assert_eq!(open.remove(&key).unwrap(), model.remove(&key)),
            16 => open.flush().unwrap(),
            17 => {
                let view = pool.read().unwrap();
                let end = key + random(&mut seed) % 90;
                let range: Vec<_> = open.range(&view, key..=end).unwrap().collect();
                assert!(range.iter().copied().eq(model.range(key..=end)), "{key}..={end}");
            }
            _ => {
                let view = pool.read().unwrap();
                assert_eq!(open.get(&view, &key).unwrap(), model.get(&key));
            }
        }
        if step % 701 == 700 {
            // All of it is found by the tags alone.
            drop(open);
            open = map.open_with(pool, options).expect("open");
            assert_eq!(all(&open, pool), model);
        }
    }
    assert_eq!(all(&open, pool), model);
    assert_eq!(open.count(&pool.read().unwrap()).unwrap(), model.len());
    drop(open);
    assert_sound(pool);
    found(pool).open(pool).expect("open").destroy().expect("destroyed");
    pool.write(|tx| tx.take_root(0)).expect("no root");
}

trait TakeRoot {
    fn take_root(&mut self, index: u16) -> Result<()>;
}

impl TakeRoot for cenote::Tx<'_> {
    fn take_root(&mut self, index: u16) -> Result<()> {
        let root = cenote::Reader::root_at::<Map>(self, index)?.expect("a root");
        self.set_root_at::<Map>(index, None)?;
        self.free(root)
    }
}

#[test]
fn random_operations_have_the_results_of_std() {
    let dir = directory();
    let pool = pool(dir.path());
    mixed(&pool, GroupOptions::default(), (1, 6_000));
    assert_sound(&pool);
}

#[test]
fn random_operations_at_power_have_the_results_of_std_however_lines_leave() {
    for (seed, options) in [
        (2, modelled()),
        (3, GroupOptions::default()),
        (4, GroupOptions { counters: 0, ..modelled() }),
        (5, GroupOptions { counters: 3, ..modelled() }),
    ] {
        let dir = directory();
        let pool = power_pool(dir.path());
        mixed(&pool, options, (seed, 3_000));
        assert_sound(&pool);
    }
}

/// Entries that wait when their leaf is split.
#[test]
fn a_split_that_forgets_what_waits_is_caught() {
    let kept = || {
        let dir = directory();
        let pool = power_pool(dir.path());
        let model = CacheModel { sets: 1024, ways: 8, replacement: Replacement::First };
        let options = GroupOptions { counters: 512, leaving: Leaving::Modelled(model) };
        let open = make(&pool).open_with(&pool, options).expect("open");
        (0..33).rev().for_each(|key| {
            open.insert(&key, &[key; 4]).unwrap();
        });
        all(&open, &pool).len()
    };
    assert_eq!(kept(), 33);
    plant(Bug::Group(GroupBug::SplitForgetsPending));
    let forgotten = kept();
    plant(Bug::None);
    assert!(forgotten < 33);
}

/// The memory of a leaf that is gone is not stored to.
#[test]
fn a_freed_leaf_stays_as_it_is() {
    let stays = || {
        let dir = directory();
        let pool = power_pool(dir.path());
        let model = CacheModel { sets: 1024, ways: 8, replacement: Replacement::First };
        let options = GroupOptions { counters: 512, leaving: Leaving::Modelled(model) };
        let open = make(&pool).open_with(&pool, options).expect("open");
        (1..33).rev().for_each(|key| {
            open.insert(&key, &[key; 4]).unwrap();
        });
        let leaves = || {
            let mut leaves = Vec::new();
            pool.heap()
                .walk(&mut |block| {
                    if block.size >= 1024 {
                        leaves.push(block.addr);
                    }
                })
                .expect("walked");
            leaves
        };
        let before = leaves();
        let heads = || {
            let head = |leaf: &u64| {
                let mut bytes = vec![0; 320];
                pool.read_at(*leaf, &mut bytes).expect("read");
                (*leaf, bytes)
            };
            before.iter().map(head).collect::<BTreeMap<u64, Vec<u8>>>()
        };
        let at_first = heads();
        open.insert(&0, &[0; 4]).unwrap();
        let after = leaves();
        let gone: Vec<u64> = before.iter().copied().filter(|leaf| !after.contains(leaf)).collect();
        assert_eq!(gone.len(), 1, "a leaf is replaced by two");
        open.flush().unwrap();
        open.insert(&100, &[0; 4]).unwrap();
        open.flush().unwrap();
        heads()[&gone[0]] == at_first[&gone[0]]
    };
    assert!(stays());
    plant(Bug::Group(GroupBug::FreedLeafTagged));
    let stayed = stays();
    plant(Bug::None);
    assert!(!stayed);
}

/// Golden counts. An entry is written to two lines (40 bytes) or one, its tag to another, and
/// `state`, `marks` and the prints are in none.
#[test]
fn an_insert_flushes_and_fences_nothing_and_a_flush_writes_each_line_once() {
    let dir = directory();
    let pool = power_pool(dir.path());
    let model = CacheModel { sets: 1024, ways: 8, replacement: Replacement::First };
    let options = GroupOptions { counters: 512, leaving: Leaving::Modelled(model) };
    let open = make(&pool).open_with(&pool, options).expect("open");
    open.insert(&0, &[0; 4]).unwrap();
    open.flush().unwrap();
    let spent = |work: &dyn Fn()| {
        let before = counters::snapshot();
        work();
        let spent = counters::snapshot() - before;
        (spent.flushes, spent.fences, spent.streamed_bytes)
    };
    assert_eq!(
        spent(&|| {
            open.insert(&1, &[1; 4]).unwrap();
        }),
        (0, 0, 0)
    );
    assert_eq!(
        spent(&|| {
            open.insert(&0, &[2; 4]).unwrap();
        }),
        (0, 0, 0),
        "an update"
    );
    assert_eq!(
        spent(&|| {
            open.remove(&1).unwrap();
        }),
        (0, 0, 0)
    );
    assert_eq!(
        spent(&|| {
            open.get(&pool.read().unwrap(), &0).unwrap();
        }),
        (0, 0, 0)
    );
    // Slots 1 and 2 lie in bytes 40 to 120 behind a line's start, the marks in a third line; their
    // tags in one.
    assert_eq!(spent(&|| open.flush().unwrap()), (4, 2, 0));
    assert_eq!(spent(&|| open.flush().unwrap()), (0, 0, 0), "nothing is left");
    // Without a counter: the entry's lines and a fence; its tag and a fence with the next
    // operation.
    drop(open);
    let none = GroupOptions { counters: 0, ..options };
    let open = found(&pool).open_with(&pool, none).expect("open");
    open.insert(&5, &[1; 4]).unwrap();
    open.flush().unwrap();
    assert_eq!(
        spent(&|| {
            open.insert(&6, &[1; 4]).unwrap();
        }),
        (2, 1, 0)
    );
    assert_eq!(spent(&|| open.flush().unwrap()), (1, 1, 0));
}

#[test]
fn at_process_no_operation_flushes_or_fences() {
    let dir = directory();
    let pool = pool(dir.path());
    let map = make(&pool);
    let before = counters::snapshot();
    let open = map.open(&pool).expect("open");
    (0..200).for_each(|key| {
        open.insert(&(key * 7919 % 200), &[key; 4]).unwrap();
    });
    (0..50).for_each(|key| {
        open.remove(&key).unwrap();
    });
    open.flush().unwrap();
    assert_eq!(all(&open, &pool).len(), 150);
    let spent = counters::snapshot() - before;
    assert_eq!((spent.flushes, spent.fences), (0, 0));
}
