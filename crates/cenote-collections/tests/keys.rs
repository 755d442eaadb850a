//! Attacks on the inside of hash maps through safe code: keys that collide, all of them or in part;
//! keys that lie, panic and change their mind in the middle of growth; values that are made by
//! closures which change or destroy the map that is being changed; iterators that are left half
//! way.
//!
//! What holds after each step: the map counts what it iterates over; blocks are exactly those that
//! maps lead to; and with keys that tell the truth the map is what the model is.
//!
//! `CENOTE_KEYS_ROUNDS` sets the rounds of each test, `CENOTE_KEYS_COLLIDING` how many keys
//! collide.

use crate::common::{assert_sound, directory, pool, random};
use cenote::{Error, Persist, Pool, Ptr, Reader, Result, Tx};
use cenote_collections::{HashMap, List};
use cenote_medium::planted::{Bug, plant};
use cenote_testkit::environment::number;
use std::cell::Cell;
use std::collections::BTreeMap;
use std::hash::{Hash, Hasher};
use std::panic::{AssertUnwindSafe, catch_unwind};

thread_local! {
    /// What keys do: see [`Manner`].
    static MANNER: Cell<Manner> = const { Cell::new(Manner::Honest) };
    /// Calls of `Hash` and `Eq` until one panics.
    static FUSE: Cell<u64> = const { Cell::new(u64::MAX) };
    static SEED: Cell<u64> = const { Cell::new(1) };
}

#[derive(Clone, Copy, Debug, PartialEq)]
enum Manner {
    Honest,
    /// All have one hash.
    OneHash,
    /// All have one of these many.
    Few(u64),
    /// Any hash, another each time, and equal to what they are not.
    Lying,
    /// The hash is one thing before each power of two of calls and another thing behind it.
    Turning,
    /// Equal to nothing, themselves included.
    Never,
    /// Equal to everything.
    Always,
}

fn burn() -> u64 {
    let left = FUSE.get().checked_sub(1).unwrap_or(u64::MAX);
    FUSE.set(left);
    assert!(left != 0, "on purpose");
    let mut seed = SEED.get();
    let drawn = random(&mut seed);
    SEED.set(seed);
    drawn
}

#[derive(Persist, Clone, Copy, Debug)]
struct Key(u64);

impl PartialEq for Key {
    fn eq(&self, other: &Self) -> bool {
        let drawn = burn();
        match MANNER.get() {
            Manner::Lying => drawn.is_multiple_of(3),
            Manner::Never => false,
            Manner::Always => true,
            _ => self.0 == other.0,
        }
    }
}

impl Eq for Key {}

impl Hash for Key {
    fn hash<H: Hasher>(&self, state: &mut H) {
        let drawn = burn();
        let fed = match MANNER.get() {
            Manner::OneHash => 0,
            Manner::Few(few) => self.0 % few,
            Manner::Lying => drawn,
            Manner::Turning => self.0 ^ u64::from(drawn.leading_zeros()),
            _ => self.0,
        };
        fed.hash(state);
    }
}

type Map = HashMap<Key, u64>;

/// A map at the pool's root.
fn rooted(pool: &Pool, hash_key: Option<[u64; 2]>) -> Map {
    pool.write(|tx| -> Result<_> {
        let map = match hash_key {
            Some(key) => Map::with_hash_key(tx, key)?,
            None => Map::new(tx)?,
        };
        let root = tx.alloc(map)?;
        tx.set_root(root)?;
        Ok(map)
    })
    .expect("a map")
}

fn counts(map: Map, reader: &impl Reader) -> Result<()> {
    assert_eq!(map.iter(reader)?.count(), map.len(reader)?, "{:?}", MANNER.get());
    Ok(())
}

fn is(map: Map, reader: &impl Reader, model: &BTreeMap<u64, u64>) -> Result<()> {
    let found: BTreeMap<u64, u64> = map.iter(reader)?.map(|(key, value)| (key.0, *value)).collect();
    assert!(&found == model, "{:?}", MANNER.get());
    counts(map, reader)
}

/// One change by honest keys, in the map and in the model.
fn change(map: Map, tx: &mut Tx<'_>, model: &mut BTreeMap<u64, u64>, seed: &mut u64) -> Result<()> {
    let (key, value) = (random(seed) % 400, random(seed));
    match random(seed) % 8 {
        0..=2 => assert_eq!(map.insert(tx, Key(key), value)?, model.insert(key, value)),
        3 => assert_eq!(map.remove(tx, &Key(key))?, model.remove(&key)),
        4 => {
            let there = model.entry(key).or_insert(value);
            assert_eq!(map.entry(tx, Key(key))?.or_insert(value)?, there);
        }
        5 => {
            if let Some(found) = map.get_mut(tx, &Key(key))? {
                *found = value;
            }
            model.entry(key).and_modify(|found| *found = value);
        }
        6 => {
            // Left half way, and an entry that nothing is done with.
            let mut values = map.iter_mut(tx)?;
            for (key, found) in values.by_ref().take(5) {
                *found += 1;
                *model.get_mut(&key.0).expect("of the model") += 1;
            }
            map.entry(tx, Key(key))?;
        }
        _ => {
            let by = 2 + random(seed) % 7;
            map.retain(tx, |key, value| !(key.0 ^ *value).is_multiple_of(by))?;
            model.retain(|key, value| !(key ^ *value).is_multiple_of(by));
        }
    }
    Ok(())
}

/// Keys that collide in every degree: honest, and so as in a model.
#[test]
fn maps_of_colliding_keys_are_as_their_model() {
    let rounds = number("CENOTE_KEYS_ROUNDS", 3);
    for (number, manner) in (0..).zip([
        Manner::Honest,
        Manner::OneHash,
        Manner::Few(2),
        Manner::Few(9),
        Manner::Few(130),
    ]) {
        for round in 0..rounds {
            let hash_key = [None, Some([0, 0]), Some([u64::MAX; 2])][round as usize % 3];
            let directory = directory();
            let pool = pool(directory.path());
            MANNER.set(manner);
            let map = rooted(&pool, hash_key);
            let (mut model, mut seed) = (BTreeMap::new(), round * 100 + number);
            for turn in 0..12 {
                let before = model.clone();
                let gives_up = turn % 4 == 3;
                let done = pool.write(|tx| -> Result<()> {
                    (0..60).try_for_each(|_| change(map, tx, &mut model, &mut seed))?;
                    is(map, tx, &model)?;
                    if gives_up { Err(Error::Aborted("on purpose".into())) } else { Ok(()) }
                });
                assert_eq!(done.is_err(), gives_up, "{done:?}");
                if gives_up {
                    model = before;
                }
                is(map, &pool.read().expect("a view"), &model).expect("a map");
                assert_sound(&pool);
            }
            MANNER.set(Manner::Honest);
        }
    }
}

/// Thousands of keys of one hash: one bucket holds them all, and is split again and again.
#[test]
fn thousands_of_keys_of_one_hash_are_a_slow_map_and_no_broken_one() {
    let keys = number("CENOTE_KEYS_COLLIDING", 2500);
    let directory = directory();
    let pool = pool(directory.path());
    MANNER.set(Manner::OneHash);
    let map = rooted(&pool, None);
    for from in (0..keys).step_by(500) {
        pool.write(|tx| -> Result<()> {
            for key in from..keys.min(from + 500) {
                assert_eq!(map.insert(tx, Key(key), !key)?, None);
            }
            counts(map, tx)
        })
        .expect("inserted");
        assert_sound(&pool);
    }
    pool.write(|tx| -> Result<()> {
        for key in (0..keys).step_by(97) {
            assert_eq!(map.get(tx, &Key(key))?, Some(&!key));
            assert_eq!(map.remove(tx, &Key(key))?, Some(!key));
        }
        counts(map, tx)?;
        map.clear(tx)
    })
    .expect("removed");
    MANNER.set(Manner::Honest);
    assert_sound(&pool);
    assert_eq!(pool.stats().expect("figures").blocks, 2, "the root and the header");
}

/// Keys that lie, change their mind and panic anywhere, in transactions that go on, or give up.
#[test]
fn keys_of_bad_faith_lose_entries_and_no_memory() {
    bad_faith();
}

#[test]
fn a_heap_that_keeps_what_keys_of_bad_faith_gave_up_is_found() {
    plant(Bug::AbortKeepsAllocation);
    let found = catch_unwind(bad_faith).is_err();
    plant(Bug::None);
    assert!(found, "blocks that nothing leads to were not found");
}

fn bad_faith() {
    let manners = [Manner::Lying, Manner::Turning, Manner::Never, Manner::Always, Manner::OneHash];
    for seed in 1..=number("CENOTE_KEYS_ROUNDS", 3) * 2 {
        let directory = directory();
        let pool = pool(directory.path());
        let map = rooted(&pool, None);
        SEED.set(seed);
        let mut seed = seed;
        for turn in 0..14 {
            MANNER.set(manners[random(&mut seed) as usize % manners.len()]);
            let gives_up = turn % 5 == 4;
            let _ = pool.write(|tx| -> Result<()> {
                for _ in 0..80 {
                    let key = Key(random(&mut seed) % 300);
                    let act = random(&mut seed) % 8;
                    FUSE.set(random(&mut seed) % 60);
                    // A panic is caught where it happens, and the transaction goes on.
                    let _ = catch_unwind(AssertUnwindSafe(|| -> Result<()> {
                        match act {
                            0..=3 => drop(map.insert(tx, key, turn)?),
                            4 => drop(map.remove(tx, &key)?),
                            5 => *map.entry(tx, key)?.or_insert(turn)? += 1,
                            6 => drop(map.get(tx, &key)?),
                            _ => drop(map.entry(tx, key)?.or_try_insert_with(|tx| {
                                map.insert(tx, key, 1)?;
                                Ok(2)
                            })?),
                        }
                        Ok(())
                    }));
                    FUSE.set(u64::MAX);
                }
                counts(map, tx)?;
                if gives_up { Err(Error::Aborted("on purpose".into())) } else { Ok(()) }
            });
            counts(map, &pool.read().expect("a view")).expect("a map");
            assert_sound(&pool);
        }
        MANNER.set(Manner::Honest);
        pool.write(|tx| map.clear(tx)).expect("cleared");
        assert_eq!(pool.stats().expect("figures").blocks, 2, "the root and the header");
    }
}

type Make = fn(&mut Tx<'_>, Map, Key) -> Result<u64>;

/// What a closure that makes a value does to the map that waits for it, and whether there is a map
/// behind it.
const MAKES: [(&str, Make, bool); 8] = [
    ("inserts the same key", |tx, map, key| map.insert(tx, key, 7).map(|_| 8), true),
    ("removes it", |tx, map, key| map.remove(tx, &key).map(|_| 8), true),
    ("clears", |tx, map, _| map.clear(tx).map(|()| 8), true),
    ("destroys", |tx, map, _| map.destroy(tx).map(|()| 8), false),
    (
        "destroys, and makes others in its place",
        |tx, map, _| {
            map.destroy(tx)?;
            for _ in 0..20 {
                let other = HashMap::<u64, [u64; 2]>::new(tx)?;
                other.insert(tx, 1, [u64::MAX; 2])?;
                tx.alloc([u64::MAX; 6])?;
            }
            Ok(8)
        },
        false,
    ),
    (
        "makes it grow",
        |tx, map, _| {
            (5000..6000).try_for_each(|key| map.insert(tx, Key(key), key).map(drop)).map(|()| 8)
        },
        true,
    ),
    (
        "takes all and puts them back",
        |tx, map, _| {
            let all: Vec<(Key, u64)> = map.iter(tx)?.map(|(key, value)| (*key, *value)).collect();
            map.clear(tx)?;
            all.into_iter()
                .rev()
                .try_for_each(|(key, value)| map.insert(tx, key, value).map(drop))?;
            Ok(8)
        },
        true,
    ),
    ("fails", |_, _, _| Err(Error::Aborted("on purpose".into())), true),
];

#[test]
fn closures_that_change_the_map_they_make_a_value_for_find_it_as_it_is_then() {
    for (what, make, there) in MAKES {
        for (key, len) in [(0, 3), (3, 3), (1000, 300), (299, 300)] {
            let directory = directory();
            let pool = pool(directory.path());
            let map = rooted(&pool, None);
            pool.write(|tx| (0..len).try_for_each(|key| map.insert(tx, Key(key), key).map(drop)))
                .expect("filled");
            let made = pool.write(|tx| -> Result<Option<u64>> {
                let made =
                    map.entry(tx, Key(key))?.or_try_insert_with(|tx| make(tx, map, Key(key)));
                let made = made.map(|value| *value);
                match (&made, there) {
                    (Ok(value), true) => assert_eq!(map.get(tx, &Key(key))?, Some(value), "{what}"),
                    // There was a value, and nothing was called.
                    (Ok(_), false) => assert!(key < len, "{what}"),
                    (Err(error), there) => {
                        let fits = if there { "on purpose" } else { "not" };
                        assert!(error.to_string().contains(fits), "{what}: {error}");
                    }
                }
                if let Ok(count) = map.len(tx) {
                    assert_eq!(map.iter(tx)?.count(), count, "{what}");
                } else {
                    let other: Option<Ptr<u64>> = None;
                    tx.set_root_at::<u64>(0, other)?;
                }
                Ok(made.ok())
            });
            assert!(made.is_ok(), "{what}: {made:?}");
            pool.collect().expect("collected");
            assert_sound(&pool);
        }
    }
}

#[derive(Persist, Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[repr(C, align(64))]
struct Wide([u64; 8]);

/// Keys without bytes, and keys that are larger than what a page of the map was made for.
#[test]
fn keys_of_any_size_and_alignment_are_found() {
    let directory = directory();
    let pool = pool(directory.path());
    pool.write(|tx| -> Result<()> {
        let (units, wide) = (HashMap::<(), ()>::new(tx)?, HashMap::<Wide, Wide>::new(tx)?);
        let (large, lists) =
            (HashMap::<[u64; 512], u8>::new(tx)?, HashMap::<u8, List<u64>>::new(tx)?);
        for n in 0..150u64 {
            assert_eq!(units.insert(tx, (), ())?.is_some(), n > 0);
            assert_eq!(wide.insert(tx, Wide([n; 8]), Wide([!n; 8]))?, None);
            let mut key = [0; 512];
            key[n as usize] = n;
            large.insert(tx, key, n as u8)?;
            let list = List::new(tx)?;
            list.push_back(tx, n)?;
            lists.insert(tx, n as u8, list)?;
        }
        assert_eq!((units.len(tx)?, units.iter(tx)?.count()), (1, 1));
        for n in 0..150u64 {
            let found = wide.get(tx, &Wide([n; 8]))?.expect("inserted");
            assert_eq!((found.0[7], std::ptr::from_ref(found).addr() % 64), (!n, 0));
            assert_eq!(lists.get(tx, &(n as u8))?.expect("inserted").front(tx)?, Some(&n));
        }
        units.destroy(tx)?;
        wide.destroy(tx)?;
        // One key of zeros for two numbers.
        assert_eq!(large.len(tx)?, 150);
        large.destroy(tx)
    })
    .expect("done");
    pool.collect().expect("collected");
    assert_sound(&pool);
}
