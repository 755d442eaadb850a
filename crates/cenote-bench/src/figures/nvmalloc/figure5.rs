//! NVMalloc, Figure 5: writes by line of 64 bytes in the nodes of an ordered map.
//!
//! Numbers in random order are inserted with a value of 8 bytes each: 50,000, or `--objects N` (the
//! paper: 10^6). All stores into the memory of the map's nodes are counted ([`crate::stores`]), by
//! line; stores that follow each other in one line count once. Each system is a process of its own.
//! Rows: `total` (writes), `lines`, and of the lines that were written `mean`, `p99`, `p99.9` and
//! `max` writes; `of_original`: `total` as a part of that of `original`.
//!
//! | system | what it is |
//! | --- | --- |
//! | `original` | the standard library's `BTreeMap`, sorted nodes, on the C library's malloc |
//! | `sorted` | `BTreeMap` of `cenote-collections`, a transaction an insertion; traced heap |
//! | `modified` | `RelaxedDurabilityMap`, with update groups at `power`; wear heap |
//!
//! Of the last two the pool's puddle counts, with the heap's own metadata; logs, which lie in other
//! puddles, do not.

use super::writes::{self, LineWrites, TABLE_LINES, counted, heap_of_glibc, run_child};
use crate::case::{Failure, NO_LEVEL, POWER};
use crate::figures::figure::{Body, Figure, Rows};
use crate::filter::Filter;
use crate::place::{Settings, medium};
use crate::runner::Row;
use crate::stores::LineCounts;
use cenote::{Durability, FormatOptions, OpenOptions, Pool, PoolOptions, Store};
use cenote_collections::{BTreeMap, RelaxedDurabilityMap};
use cenote_groups::GroupOptions;
use cenote_layout::catalog::HeapKind;
use std::collections::BTreeMap as StandardMap;
use std::io::Write;
use std::mem::ManuallyDrop;
use std::ops::Range;
use std::path::Path;
use std::process::ExitCode;

/// The figure.
pub const FIGURE: Figure = Figure {
    name: "nvmalloc-figure5",
    title: "NVMalloc, Figure 5: writes by line of 64 bytes in the nodes of an ordered map",
    body: Body::Report(report),
};

/// First argument of a child.
pub const CHILD: &str = "--count-writes-of-map";

/// Names of the systems, and their levels.
const SYSTEMS: [(&str, &str); 3] = [("original", NO_LEVEL), ("sorted", POWER), ("modified", POWER)];

/// Keys, if nothing else is asked for.
const KEYS: u64 = 50_000;

/// Bytes of a pool's puddle: all nodes lie there, and no other puddle is as large.
const PUDDLE: u64 = 256 << 20;

/// Key number `i`: all are different, and they are in no order.
fn key(i: u64) -> u64 {
    let mixed = i.wrapping_mul(0x9E37_79B9_7F4A_7C15);
    (mixed ^ (mixed >> 32)).wrapping_mul(0xD6E8_FEB8_6659_FD93)
}

/// Where the puddle of a pool is mapped.
fn puddle(directory: &Path) -> Result<Range<usize>, Failure> {
    let maps = std::fs::read_to_string("/proc/self/maps")?;
    let place = directory.to_string_lossy();
    let ranges = maps.lines().filter(|line| line.contains(&*place)).filter_map(|line| {
        let (start, end) = line.split(' ').next()?.split_once('-')?;
        let [start, end] = [start, end].map(|addr| usize::from_str_radix(addr, 16).ok());
        Some(start?..end?)
    });
    let found = ranges.max_by_key(Range::len).filter(|range| range.len() as u64 >= PUDDLE / 2);
    found.ok_or_else(|| "the pool's puddle is not mapped".into())
}

/// A store at `power` in a directory, with a pool whose first puddle is large.
fn open(directory: &Path, heap: HeapKind) -> Result<(Store, Pool), Failure> {
    let medium = medium(directory, Durability::Power)?;
    cenote_store::format(medium.clone(), &FormatOptions::default())?;
    let options = OpenOptions {
        durability: Some(Durability::Power),
        spare_bytes_max: 0,
        ..OpenOptions::default()
    };
    let store = Store::open_on(medium, &options)?;
    let options = PoolOptions { heap, puddle_size: PUDDLE, ..PoolOptions::default() };
    let pool = store.create_pool("map", &options)?;
    Ok((store, pool))
}

/// Counts the stores of `work` into a pool's puddle.
fn counted_in(
    directory: &Path,
    work: impl FnOnce() -> Result<(), Failure>,
) -> Result<LineWrites, Failure> {
    let range = puddle(directory)?;
    let counts = LineCounts::of(range.len());
    // SAFETY: the puddle stays mapped: its store is leaked. No system call writes into it: bytes of
    // transactions are stored.
    unsafe { counted((range, 0), counts, work) }
}

fn count(system: &str, keys: u64, directory: &Path) -> Result<LineWrites, Failure> {
    match system {
        "original" => {
            let (range, counts) = heap_of_glibc()?;
            // SAFETY: the C library's heap, which stays; no system call writes into it meanwhile.
            unsafe {
                counted((range, TABLE_LINES), counts, || {
                    let mut map = ManuallyDrop::new(StandardMap::new());
                    (0..keys).for_each(|i| {
                        map.insert(key(i), i);
                    });
                    Ok(())
                })
            }
        }
        "sorted" => {
            let (store, pool) = open(directory, HeapKind::Traced)?;
            let map = pool.write(BTreeMap::<u64, u64>::new)?;
            let counted = counted_in(directory, || {
                let insert = |i| pool.write(|tx| map.insert(tx, key(i), i).map(drop));
                Ok((0..keys).try_for_each(insert)?)
            });
            std::mem::forget((pool, store));
            counted
        }
        _ => {
            let (store, pool) = open(directory, HeapKind::WEAR)?;
            let map = pool.write(RelaxedDurabilityMap::<u64, u64>::new)?;
            let map = map.open_with(&pool, GroupOptions::default())?;
            let counted = counted_in(directory, || {
                (0..keys).try_for_each(|i| map.insert(&key(i), &i).map(drop))?;
                Ok(map.flush()?)
            });
            std::mem::forget((map, pool, store));
            counted
        }
    }
}

/// What a child does: arguments are [`CHILD`], the system, keys, a directory.
pub fn child(arguments: &[String]) -> ExitCode {
    writes::child(|| {
        let [_, system, keys, directory] = arguments else {
            return Err(format!("{CHILD} is only for this program itself").into());
        };
        count(system, keys.parse()?, Path::new(directory))
    })
}

fn report(settings: &Settings, filter: &Filter, _: usize, out: &mut dyn Write) -> Rows {
    let keys = settings.objects.unwrap_or(if settings.quick { 300 } else { KEYS });
    let mut rows = Vec::new();
    if !cfg!(all(target_arch = "x86_64", target_os = "linux")) {
        writeln!(out, "  skipped: stores are counted on x86-64 alone")?;
        return Ok(rows);
    }
    let mut original = None;
    for (system, level) in SYSTEMS {
        let directory = settings.temporary()?;
        let place = directory.path().to_string_lossy();
        let counted = run_child(&[CHILD, system, &keys.to_string(), &*place], &[])?;
        writeln!(out, "  {system}: {} writes for {keys} keys", counted.total())?;
        let total = counted.total() as f64;
        let of = total / *original.get_or_insert(total);
        let mut all = counted.rows(FIGURE.name, "insert", (system, level));
        let row = "of_original insert".into();
        all.push(Row::of_values(FIGURE.name, row, (system, level, 1), "parts", vec![of]));
        rows.extend(all.into_iter().filter(|row| filter.admits(&row.row, system, level)));
    }
    Ok(rows)
}
