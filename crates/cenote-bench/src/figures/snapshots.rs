//! What snapshots cost readers and writers: [`Pool::snapshot`](cenote::Pool::snapshot) beside
//! [`Pool::read`](cenote::Pool::read).
//!
//! Values of 64 bytes in an order by chance, and a [`BTreeMap`]. Unit: nanoseconds an operation.
//!
//! | row | an operation is |
//! | --- | --- |
//! | `get` | following a pointer to one of the values |
//! | `iterate` | the next entry of the map |
//! | `begin` | taking and dropping |
//! | `write` | a transaction that changes 8 bytes of one value, whose page is kept already |
//!
//! Systems: `view`; `snapshot (fresh)`, of a pool that did not change since; `snapshot (kept)`, all
//! of whose pages were changed since; and of `write`: `no snapshot`, `one snapshot`.

use crate::case::{Case, Failure, NO_LEVEL, PROCESS, Sample, Stopwatch};
use crate::figures::figure::{Body, Figure};
use crate::figures::figure1::list_len;
use crate::place::{BenchPlace, Settings};
use cenote::{Durability, Persist, Pool, Ptr, Reader, Snapshot};
use cenote_collections::BTreeMap;
use std::cell::OnceCell;
use std::hint::black_box;
use std::rc::Rc;

/// The figure.
pub const FIGURE: Figure =
    Figure { name: "snapshots", title: "Snapshots beside views", body: Body::Cases(cases) };

#[derive(Persist)]
#[persist(name = "cenote-bench::SnapshotValue")]
struct Value {
    words: [u64; 8],
}

/// Values that one transaction makes or changes.
const CHUNK: usize = 1024;

/// A pool with its values.
struct World {
    place: BenchPlace,
    /// In an order by chance.
    values: Vec<Ptr<Value>>,
    tree: BTreeMap<u64, u64>,
    /// Taken before all pages were changed.
    kept: OnceCell<Snapshot>,
}

impl World {
    fn make(settings: &Settings) -> Result<Self, Failure> {
        let place = BenchPlace::open(settings, Durability::Process)?;
        let len = list_len(settings);
        let tree = place.pool.write(BTreeMap::new)?;
        let mut values = Vec::new();
        let numbers: Vec<u64> = (0..len).collect();
        for part in numbers.chunks(CHUNK) {
            place.pool.write(|tx| -> cenote::Result<()> {
                for &number in part {
                    values.push(tx.alloc(Value { words: [number; 8] })?);
                    tree.insert(tx, number, number)?;
                }
                Ok(())
            })?;
        }
        let mut random = 0x9e37_79b9_7f4a_7c15_u64;
        for at in (1..values.len()).rev() {
            random = random.wrapping_mul(6364136223846793005).wrapping_add(1442695040888963407);
            values.swap(at, (random >> 33) as usize % (at + 1));
        }
        Ok(Self { place, values, tree, kept: OnceCell::new() })
    }

    fn pool(&self) -> &Pool {
        &self.place.pool
    }

    /// The snapshot all of whose pages were changed.
    fn kept(&self) -> cenote::Result<&Snapshot> {
        if let Some(kept) = self.kept.get() {
            return Ok(kept);
        }
        let snapshot = self.pool().snapshot()?;
        for part in self.values.chunks(CHUNK) {
            self.pool().write(|tx| -> cenote::Result<()> {
                part.iter().try_for_each(|value| tx.get_mut(*value).map(|of| of.words[0] += 1))
            })?;
        }
        let numbers: Vec<u64> = (0..self.values.len() as u64).collect();
        for part in numbers.chunks(CHUNK) {
            self.pool().write(|tx| -> cenote::Result<()> {
                for number in part {
                    if let Some(value) = self.tree.get_mut(tx, number)? {
                        *value += 1;
                    }
                }
                Ok(())
            })?;
        }
        Ok(self.kept.get_or_init(|| snapshot))
    }
}

#[inline(never)]
fn get<R: Reader>(world: &World, reader: &R) -> cenote::Result<u64> {
    let mut sum = 0_u64;
    for value in &world.values {
        sum = sum.wrapping_add(reader.get(*value)?.words[1]);
    }
    Ok(sum)
}

#[inline(never)]
fn iterate<R: Reader>(world: &World, reader: &R) -> cenote::Result<u64> {
    let entries = world.tree.iter(reader)?;
    Ok(entries.fold(0, |sum: u64, (key, value)| sum.wrapping_add(key ^ value)))
}

/// Reads all, again and again.
fn reads(
    world: &World,
    count: u64,
    mut read: impl FnMut() -> cenote::Result<u64>,
) -> Result<Sample, Failure> {
    let mut watch = Stopwatch::new();
    let (len, _) = (world.values.len() as u64, black_box(read()?));
    let rounds = count.div_ceil(len);
    watch.time(rounds * len, || {
        (0..rounds).try_for_each(|_| {
            read().map(|sum| {
                black_box(sum);
            })
        })
    })?;
    Ok(watch.sample())
}

fn writes(world: &World, count: u64) -> Result<Sample, Failure> {
    let mut watch = Stopwatch::new();
    let value = world.values[0];
    let write = || world.pool().write(|tx| tx.get_mut(value).map(|value| value.words[0] += 1));
    write()?;
    watch.time(count, || (0..count).try_for_each(|_| write()))?;
    Ok(watch.sample())
}

fn begins(count: u64, mut begin: impl FnMut() -> cenote::Result<()>) -> Result<Sample, Failure> {
    let mut watch = Stopwatch::new();
    watch.time(count, || (0..count).try_for_each(|_| begin()))?;
    Ok(watch.sample())
}

fn cases(settings: &Settings) -> Result<Vec<Case>, Failure> {
    let world = Rc::new(World::make(settings)?);
    // Pages are kept in a world of its own, so that the others stay as they are.
    let kept = Rc::new(World::make(settings)?);
    let case =
        |row, system, level, of: &Rc<World>, body: fn(&World, u64) -> Result<Sample, Failure>| {
            let world = of.clone();
            Case::new(row, system, level, move |count| body(&world, count))
        };
    Ok(vec![
        case("get", "view", NO_LEVEL, &world, |world, count| {
            let view = world.pool().read()?;
            reads(world, count, || get(world, &view))
        }),
        case("get", "snapshot (fresh)", NO_LEVEL, &world, |world, count| {
            let snapshot = world.pool().snapshot()?;
            reads(world, count, || get(world, &snapshot))
        }),
        case("get", "snapshot (kept)", NO_LEVEL, &kept, |world, count| {
            let snapshot = world.kept()?;
            reads(world, count, || get(world, snapshot))
        }),
        case("iterate", "view", NO_LEVEL, &world, |world, count| {
            let view = world.pool().read()?;
            reads(world, count, || iterate(world, &view))
        }),
        case("iterate", "snapshot (fresh)", NO_LEVEL, &world, |world, count| {
            let snapshot = world.pool().snapshot()?;
            reads(world, count, || iterate(world, &snapshot))
        }),
        case("iterate", "snapshot (kept)", NO_LEVEL, &kept, |world, count| {
            let snapshot = world.kept()?;
            reads(world, count, || iterate(world, snapshot))
        }),
        case("begin", "view", NO_LEVEL, &world, |world, count| {
            begins(count, || world.pool().read().map(drop))
        }),
        case("begin", "snapshot (fresh)", NO_LEVEL, &world, |world, count| {
            begins(count, || world.pool().snapshot().map(drop))
        }),
        case("write", "no snapshot", PROCESS, &world, writes),
        case("write", "one snapshot", PROCESS, &world, |world, count| {
            let _snapshot = world.pool().snapshot()?;
            writes(world, count)
        }),
    ])
}
