//! Nanoseconds an operation, one transaction each, allocation included:
//! `cargo bench -p cenote-collections --bench operations [-- N]`.
//!
//! At `process` as the directory gives it (on /dev/shm where there is one), and at `power` with
//! flushes and fences as on persistent memory. Beside each the same work on std's collections,
//! which lose everything when the process ends.

use cenote::{MediumOptions, Pool, RealMedium, Result, Store};
use cenote_collections::{BTreeMap, ForwardList, HashMap, List, Vec};
use cenote_store::{FormatOptions, OpenOptions};
use std::collections::{BTreeMap as StdBTreeMap, HashMap as StdHashMap, LinkedList};
use std::hint::black_box;
use std::path::Path;
use std::sync::Arc;
use std::time::Instant;

/// The median of five runs of `n` operations, in nanoseconds an operation.
fn measure(n: u64, mut run: impl FnMut() -> Result<()>) -> Result<f64> {
    let mut times = [0.0; 5];
    for time in &mut times {
        let start = Instant::now();
        run()?;
        *time = start.elapsed().as_nanos() as f64 / n as f64;
    }
    times.sort_by(f64::total_cmp);
    Ok(times[2])
}

fn keys(n: u64, seed: u64) -> std::vec::Vec<u64> {
    let mut state = seed;
    (0..n)
        .map(|_| {
            state = state.wrapping_add(0x9e37_79b9_7f4a_7c15);
            let x = (state ^ (state >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
            x ^ (x >> 27)
        })
        .collect()
}

fn lists(level: &str, pool: &Pool, n: u64) -> Result<()> {
    let say = |what: &str, ns: f64| println!("{level:<8} {what:<44} {ns:>8.1} ns");
    let (list, forward, vec) = pool
        .write(|tx| -> Result<_> { Ok((List::new(tx)?, ForwardList::new(tx)?, Vec::new(tx)?)) })?;
    say(
        "empty transaction",
        measure(n, || (0..n).try_for_each(|_| pool.write(|_| -> Result<()> { Ok(()) })))?,
    );
    say(
        "list: insert at tail",
        measure(n, || (0..n).try_for_each(|i| pool.write(|tx| list.push_back(tx, i))))?,
    );
    let view = pool.read()?;
    say("list: sum, a node", measure(5 * n, || used(list.iter(&view)?.sum::<u64>()))?);
    drop(view);
    say(
        "list: delete at front",
        measure(n, || (0..n).try_for_each(|_| pool.write(|tx| list.pop_front(tx).map(drop))))?,
    );
    say("list: insert at tail, 100 a transaction", {
        let batch = |from: u64| pool.write(|tx| list.extend(tx, from..from + 100));
        measure(n, || (0..n / 100).try_for_each(batch))?
    });
    say("forward list: insert at tail", {
        measure(n, || (0..n).try_for_each(|i| pool.write(|tx| forward.push_back(tx, i))))?
    });
    say("vector: push", measure(n, || (0..n).try_for_each(|i| pool.write(|tx| vec.push(tx, i))))?);
    Ok(())
}

fn trees(level: &str, pool: &Pool, n: u64) -> Result<()> {
    let say = |what: &str, ns: f64| println!("{level:<8} {what:<44} {ns:>8.1} ns");
    let keys = keys(n, 1);
    let tree = pool.write(BTreeMap::<u64, u64>::new)?;
    let insert = |tree: BTreeMap<u64, u64>| {
        keys.iter().try_for_each(|&k| pool.write(|tx| tree.insert(tx, k, k).map(drop)))
    };
    say("B+-tree: insert, random keys", {
        measure(n, || {
            pool.write(|tx| tree.clear(tx))?;
            insert(tree)
        })?
    });
    let view = pool.read()?;
    say("B+-tree: get, random keys", {
        measure(n, || keys.iter().try_for_each(|k| used(tree.get(&view, k)?)))?
    });
    say("B+-tree: iterate, an entry", measure(n, || used(tree.values(&view)?.sum::<u64>()))?);
    drop(view);
    say("B+-tree: remove, random keys (one run)", {
        let start = Instant::now();
        keys.iter().try_for_each(|k| pool.write(|tx| tree.remove(tx, k).map(drop)))?;
        start.elapsed().as_nanos() as f64 / n as f64
    });
    say("B+-tree: insert, rising keys", {
        measure(n, || {
            pool.write(|tx| tree.clear(tx))?;
            (0..n).try_for_each(|k| pool.write(|tx| tree.insert(tx, k, k).map(drop)))
        })?
    });
    Ok(())
}

fn maps(level: &str, pool: &Pool, n: u64) -> Result<()> {
    let say = |what: &str, ns: f64| println!("{level:<8} {what:<44} {ns:>8.1} ns");
    let keys = keys(n, 1);
    let map = pool.write(HashMap::<u64, u64>::new)?;
    say("hash map: insert, growing", {
        measure(n, || {
            pool.write(|tx| map.clear(tx))?;
            keys.iter().try_for_each(|&k| pool.write(|tx| map.insert(tx, k, k).map(drop)))
        })?
    });
    // The longest of all is mostly a moment at which the system ran another program, or the pool
    // took a puddle.
    let mut times = std::vec::Vec::with_capacity(keys.len());
    pool.write(|tx| map.clear(tx))?;
    for &k in &keys {
        let start = Instant::now();
        pool.write(|tx| map.insert(tx, k, k).map(drop))?;
        times.push(start.elapsed().as_nanos() as f64);
    }
    times.sort_by(f64::total_cmp);
    for (what, behind) in [("999 of 1,000", 1000), ("9,999 of 10,000", 10_000), ("all", usize::MAX)]
    {
        if let Some(&time) = times.get(times.len() - 1 - times.len() / behind) {
            say(&format!("hash map: insert, {what} are faster than"), time);
        }
    }
    let view = pool.read()?;
    say("hash map: get", measure(n, || keys.iter().try_for_each(|k| used(map.get(&view, k)?)))?);
    say("hash map: iterate, an entry", measure(n, || used(map.values(&view)?.sum::<u64>()))?);
    drop(view);
    say("hash map: update", {
        let update = |k: &u64| pool.write(|tx| map.insert(tx, *k, 1).map(drop));
        measure(n, || keys.iter().try_for_each(update))?
    });
    say("hash map: remove (one run)", {
        let start = Instant::now();
        keys.iter().try_for_each(|k| pool.write(|tx| map.remove(tx, k).map(drop)))?;
        start.elapsed().as_nanos() as f64 / n as f64
    });
    Ok(())
}

fn run(level: &str, pool: &Pool, n: u64) -> Result<()> {
    lists(level, pool, n)?;
    trees(level, pool, n)?;
    maps(level, pool, n)
}

/// The same on std's collections.
fn volatile(n: u64) -> Result<()> {
    let say = |what: &str, ns: f64| println!("{:<8} {what:<44} {ns:>8.1} ns", "volatile");
    let keys = keys(n, 1);
    let mut list = LinkedList::new();
    say(
        "list: insert at tail",
        measure(n, || {
            (0..n).try_for_each(|i| {
                list.push_back(i);
                used(&list)
            })
        })?,
    );
    say("list: sum, a node", measure(5 * n, || used(list.iter().sum::<u64>()))?);
    let mut tree = StdBTreeMap::new();
    say("B-tree: insert, random keys", {
        measure(n, || {
            tree.clear();
            keys.iter().try_for_each(|&k| used(tree.insert(k, k)))
        })?
    });
    say(
        "B-tree: get, random keys",
        measure(n, || keys.iter().try_for_each(|k| used(tree.get(k))))?,
    );
    let mut map = StdHashMap::new();
    say("hash map: insert, growing", {
        measure(n, || {
            map = StdHashMap::new();
            keys.iter().try_for_each(|&k| used(map.insert(k, k)))
        })?
    });
    say("hash map: get", measure(n, || keys.iter().try_for_each(|k| used(map.get(k))))?);
    Ok(())
}

fn main() -> Result<()> {
    let n = std::env::args().nth(1).and_then(|n| n.parse().ok()).unwrap_or(100_000);
    let memory = Path::new("/dev/shm");
    let directory =
        || if memory.is_dir() { tempfile::tempdir_in(memory) } else { tempfile::tempdir() };
    println!("{n} elements, medians of five runs");
    volatile(n)?;
    let place = directory().expect("a directory");
    run("process", &Store::open(place.path())?.pool("operations")?, n)?;
    drop(place);
    let place = directory().expect("a directory");
    let options = MediumOptions { create: true, force_power: true, ..MediumOptions::default() };
    let medium: Arc<RealMedium> = Arc::new(RealMedium::open(place.path(), &options)?);
    cenote_store::format(medium.clone(), &FormatOptions::default())?;
    run("power", &Store::open_on(medium, &OpenOptions::default())?.pool("operations")?, n)
}

/// Keeps the optimiser from leaving a computation out.
fn used<T>(value: T) -> Result<()> {
    black_box(&value);
    Ok(())
}
