//! NVMalloc, Figure 7: insertion into an ordered map, and reading, by how entries become durable.
//!
//! Keys are numbers in random order, values have 256 bytes or 4 KiB. Unit: nanoseconds an
//! operation. The rows:
//!
//! * `insert 256`, `insert 4096`: into a map that grows to 2^15 (2^12) entries; then it is
//!   destroyed, outside the timed parts;
//! * `read 256`, `read 4096`: of a random key of a map of that many entries, under one view.
//!
//! Systems: `none`, `flush` and `groups` are one map, [`RelaxedDurabilityMap`]: without any flush
//! (at `process`); with lines of each entry flushed and fenced, and then its tag; with update
//! groups, whose flush at the end of each map is timed too. `sorted` is `BTreeMap` of
//! `cenote-collections`, whose nodes are sorted, with a transaction an insertion, at `process` (the
//! paper's tree without guarantees, for reads) and at `power`.
//!
//! The paper's write-combining memory needs a kernel's page attributes, and is not here.

use crate::case::{Case, Failure, Sample, Stopwatch};
use crate::figures::figure::{Body, Figure};
use crate::place::{BenchPlace, Settings};
use cenote::Durability;
use cenote_collections::relaxed::OpenRelaxedMap;
use cenote_collections::{BTreeMap, RelaxedDurabilityMap};
use cenote_groups::GroupOptions;
use std::hint::black_box;
use std::rc::Rc;

/// The figure.
pub const FIGURE: Figure = Figure {
    name: "nvmalloc-figure7",
    title: "NVMalloc, Figure 7: insertion and reading, by how entries become durable",
    body: Body::Cases(cases),
};

type Value<const N: usize> = [u64; N];

/// The number of an operation as a key; each number has another one.
fn key_of(number: u64) -> u64 {
    let mixed = number.wrapping_mul(0x9E37_79B9_7F4A_7C15);
    (mixed ^ (mixed >> 32)).wrapping_mul(0xD6E8_FEB8_6659_FD93)
}

fn cases(settings: &Settings) -> Result<Vec<Case>, Failure> {
    let mut cases = Vec::new();
    let (small, large) = if settings.quick { (1 << 10, 1 << 8) } else { (1 << 15, 1 << 12) };
    of_size::<32>(settings, small, &mut cases)?;
    of_size::<512>(settings, large, &mut cases)?;
    Ok(cases)
}

fn of_size<const N: usize>(
    settings: &Settings,
    len_max: u64,
    cases: &mut Vec<Case>,
) -> Result<(), Failure> {
    let (insert, read) = match N * 8 {
        256 => ("insert 256", "read 256"),
        _ => ("insert 4096", "read 4096"),
    };
    let through = GroupOptions { counters: 0, ..GroupOptions::default() };
    for (system, level, options) in [
        ("none", Durability::Process, GroupOptions::default()),
        ("flush", Durability::Power, through),
        ("groups", Durability::Power, GroupOptions::default()),
    ] {
        let place = Rc::new(BenchPlace::open(settings, level)?);
        let used = Rc::clone(&place);
        cases.push(Case::new(insert, system, place.level, move |count| {
            grow::<N>(&used, options, count, len_max)
        }));
        let map = filled::<N>(&place, options, len_max)?;
        cases.push(Case::new(read, system, place.level, move |count| {
            let view = place.pool.read()?;
            timed(count, |number| {
                let value = map.get(&view, &key_of(number % len_max))?;
                black_box(value.map(|value| value[N - 1]));
                Ok(())
            })
        }));
    }
    for level in [Durability::Process, Durability::Power] {
        let place = Rc::new(BenchPlace::open(settings, level)?);
        let used = Rc::clone(&place);
        cases.push(Case::new(insert, "sorted", place.level, move |count| {
            grow_sorted::<N>(&used, count, len_max)
        }));
        let map = place.pool.write(BTreeMap::<u64, Value<N>>::new)?;
        for number in 0..len_max {
            place.pool.write(|tx| map.insert(tx, key_of(number), [number; N]).map(drop))?;
        }
        cases.push(Case::new(read, "sorted", place.level, move |count| {
            let view = place.pool.read()?;
            timed(count, |number| {
                let value = map.get(&view, &key_of(number % len_max))?;
                black_box(value.map(|value| value[N - 1]));
                Ok(())
            })
        }));
    }
    Ok(())
}

/// Reads keys in an order of which the processor knows nothing.
fn timed(count: u64, mut read: impl FnMut(u64) -> cenote::Result<()>) -> Result<Sample, Failure> {
    let mut watch = Stopwatch::new();
    let mut state = 1u64;
    watch.time(count, || {
        (0..count).try_for_each(|_| {
            state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1);
            read(state >> 33)
        })
    })?;
    Ok(watch.sample())
}

fn new_map<const N: usize>(
    place: &BenchPlace,
    options: GroupOptions,
) -> cenote::Result<OpenRelaxedMap<u64, Value<N>>> {
    place.pool.write(RelaxedDurabilityMap::new)?.open_with(&place.pool, options)
}

fn filled<const N: usize>(
    place: &BenchPlace,
    options: GroupOptions,
    len: u64,
) -> cenote::Result<OpenRelaxedMap<u64, Value<N>>> {
    let map = new_map(place, options)?;
    for number in 0..len {
        map.insert(&key_of(number), &[number; N])?;
    }
    map.flush()?;
    Ok(map)
}

fn grow<const N: usize>(
    place: &BenchPlace,
    options: GroupOptions,
    count: u64,
    len_max: u64,
) -> Result<Sample, Failure> {
    let mut watch = Stopwatch::new();
    while watch.operations() < count {
        let batch = (count - watch.operations()).min(len_max);
        let map = new_map::<N>(place, options)?;
        watch.time(batch, || {
            (0..batch).try_for_each(|number| {
                map.insert(&key_of(number), black_box(&[number; N])).map(drop)
            })?;
            map.flush()
        })?;
        map.destroy()?;
    }
    Ok(watch.sample())
}

/// Inserts into maps in random order, with a transaction each, and destroys them.
pub(super) fn grow_sorted<const N: usize>(
    place: &BenchPlace,
    count: u64,
    len_max: u64,
) -> Result<Sample, Failure> {
    let mut watch = Stopwatch::new();
    while watch.operations() < count {
        let batch = (count - watch.operations()).min(len_max);
        let map = place.pool.write(BTreeMap::<u64, Value<N>>::new)?;
        watch.time(batch, || {
            (0..batch).try_for_each(|number| {
                let value = black_box([number; N]);
                place.pool.write(|tx| map.insert(tx, key_of(number), value).map(drop))
            })
        })?;
        place.pool.write(|tx| map.destroy(tx))?;
    }
    Ok(watch.sample())
}
