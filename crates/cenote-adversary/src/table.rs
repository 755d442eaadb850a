//! What harnesses keep in two pools: a hash table of byte strings of 10 B to 200 KB, and beside it,
//! in the second pool, a skip list with the key and the sum of each string. Step `n` of a seed
//! changes both in one transaction, always in the same way, so that the model of any step can be
//! made again.

use crate::round::{Outcome, found, require};
use cenote::{Error, Persist, Pool, Ptr, Reader, Result, Store, Tx, field};
use cenote_collections as persistent;
use cenote_fuzz::Random;
use std::collections::BTreeMap;

const BUCKETS: usize = 32;
const LEVELS: usize = 6;
/// So few that keys are hit again and again.
const KEYS: u64 = 60;

#[derive(Persist)]
#[persist(name = "adversary::Table")]
struct Table {
    step: u64,
    buckets: [Option<Ptr<TableEntry>>; BUCKETS],
}

#[derive(Persist)]
#[persist(name = "adversary::Entry")]
struct TableEntry {
    key: u64,
    next: Option<Ptr<TableEntry>>,
    value: persistent::Vec<u8>,
}

#[derive(Persist)]
#[persist(name = "adversary::Index")]
struct Index {
    step: u64,
    first: Ptr<Node>,
}

/// The first node of all has no key; its neighbours are the first of each level.
#[derive(Persist)]
#[persist(name = "adversary::Node")]
struct Node {
    key: u64,
    sum: u64,
    next: [Option<Ptr<Node>>; LEVELS],
}

/// What a step does.
enum Change {
    Remove {
        key: u64,
    },
    /// Puts a value there; of an entry that is there the array is used again, if so.
    Put {
        key: u64,
        len: usize,
        in_place: bool,
    },
}

fn random_of(seed: u64, step: u64) -> Random {
    Random(Random(seed).next_word() ^ step.wrapping_mul(0x9e37_79b9))
}

fn change(seed: u64, step: u64) -> Change {
    let mut random = random_of(seed, step);
    let (key, what) = (random.next_word() % KEYS, random.next_word());
    match what % 4 {
        0 => Change::Remove { key },
        way => {
            // 10 B to 200 KB; small ones are as frequent as large ones.
            let len = (10u64 << (random.next_word() % 15)) * 5 / 4;
            let len = len - random.next_word() % (len / 2);
            Change::Put { key, len: len.clamp(10, 200_000) as usize, in_place: way == 1 }
        }
    }
}

/// The bytes that step `step` puts there.
fn value(seed: u64, step: u64, len: usize) -> Vec<u8> {
    let mut random = random_of(!seed, step);
    let mut out = Vec::with_capacity(len + 8);
    while out.len() < len {
        out.extend_from_slice(&random.next_word().to_le_bytes());
    }
    out.truncate(len);
    out
}

fn sum(bytes: &[u8]) -> u64 {
    cenote_layout::checksum::checksum(0, bytes)
}

/// Key to the step that put the value, and its length.
#[derive(Clone, Debug, Default)]
pub(crate) struct TableModel {
    pub(crate) step: u64,
    values: BTreeMap<u64, (u64, usize)>,
}

impl TableModel {
    /// Goes on to a step.
    pub(crate) fn advance(&mut self, seed: u64, to: u64) {
        while self.step < to {
            match change(seed, self.step) {
                Change::Remove { key } => drop(self.values.remove(&key)),
                Change::Put { key, len, .. } => drop(self.values.insert(key, (self.step, len))),
            }
            self.step += 1;
        }
    }
}

/// Makes both structures, empty.
pub(crate) fn prepare(store: &Store, pools: [&Pool; 2]) -> Result<()> {
    store.write(&pools, |tx| -> Result<()> {
        let table = tx.alloc_in(pools[0], Table { step: 0, buckets: [None; BUCKETS] })?;
        tx.set_root_in(pools[0], 0, Some(table))?;
        let first = tx.alloc_in(pools[1], Node { key: 0, sum: 0, next: [None; LEVELS] })?;
        let index = tx.alloc_in(pools[1], Index { step: 0, first })?;
        tx.set_root_in(pools[1], 0, Some(index))
    })
}

/// The step that is there.
pub(crate) fn step_of(pool: &Pool) -> Outcome<u64> {
    let view = pool.read()?;
    match view.root::<Table>()? {
        Some(table) => Ok(view.get(table)?.step),
        None => found("the table has no root"),
    }
}

/// Step `step`, in one transaction. Some are tried before, and aborted or panicked out of.
pub(crate) fn apply(store: &Store, pools: [&Pool; 2], seed: u64, step: u64) -> Outcome {
    match random_of(seed ^ 1, step).next_word() % 12 {
        0 => {
            let aborted: Result<()> = store.write(&pools, |tx| {
                body(tx, pools, seed, step)?;
                Err(Error::Aborted("on purpose".into()))
            });
            require(matches!(aborted, Err(Error::Aborted(_))), || {
                format!("no abort: {aborted:?}")
            })?;
        }
        1 => {
            let panics = || -> Result<()> {
                store.write(&pools, |tx| {
                    body(tx, pools, seed, step)?;
                    std::panic::panic_any("on purpose")
                })
            };
            let ended = std::panic::catch_unwind(std::panic::AssertUnwindSafe(panics));
            require(ended.is_err(), || format!("no panic: {ended:?}"))?;
        }
        _ => {}
    }
    Ok(store.write(&pools, |tx| body(tx, pools, seed, step))?)
}

fn body(tx: &mut Tx<'_>, pools: [&Pool; 2], seed: u64, step: u64) -> Result<()> {
    let no_root = || Error::Aborted("a structure has no root".into());
    let table = tx.root_in::<Table>(pools[0], 0)?.ok_or_else(no_root)?;
    let index = tx.root_in::<Index>(pools[1], 0)?.ok_or_else(no_root)?;
    let first = tx.get(index)?.first;
    match change(seed, step) {
        Change::Remove { key } => {
            remove(tx, table, key)?;
            unlink(tx, first, key)?;
        }
        Change::Put { key, len, in_place } => {
            let bytes = value(seed, step, len);
            put(tx, table, key, &bytes, in_place)?;
            unlink(tx, first, key)?;
            let height = 1 + random_of(seed, step).next_word().trailing_zeros() as usize % LEVELS;
            link(tx, pools[1], first, key, sum(&bytes), height)?;
        }
    }
    tx.set(table, field!(Table, step), step + 1)?;
    tx.set(index, field!(Index, step), step + 1)
}

type Link = Option<Ptr<TableEntry>>;

/// The entry before that of a key, and the key's own.
fn find(tx: &Tx<'_>, table: Ptr<Table>, key: u64) -> Result<(Link, Link)> {
    let (mut before, mut at) = (None, tx.get(table)?.buckets[key as usize % BUCKETS]);
    while let Some(entry) = at {
        let found = tx.get(entry)?;
        if found.key == key {
            break;
        }
        (before, at) = (at, found.next);
    }
    Ok((before, at))
}

fn remove(tx: &mut Tx<'_>, table: Ptr<Table>, key: u64) -> Result<()> {
    let (before, Some(entry)) = find(tx, table, key)? else { return Ok(()) };
    let (next, value) = (tx.get(entry)?.next, tx.get(entry)?.value);
    match before {
        Some(before) => tx.set(before, field!(TableEntry, next), next)?,
        None => tx.get_mut(table)?.buckets[key as usize % BUCKETS] = next,
    }
    value.destroy(tx)?;
    tx.free(entry)
}

fn put(tx: &mut Tx<'_>, table: Ptr<Table>, key: u64, bytes: &[u8], in_place: bool) -> Result<()> {
    if let (_, Some(entry)) = find(tx, table, key)?
        && in_place
    {
        let value = tx.get(entry)?.value;
        let kept = value.len(tx)?.min(bytes.len());
        value.truncate(tx, kept)?;
        value.as_mut_slice(tx)?.copy_from_slice(&bytes[..kept]);
        return value.extend_from_slice(tx, &bytes[kept..]);
    }
    remove(tx, table, key)?;
    let value = persistent::Vec::new_beside(tx, table)?;
    value.extend_from_slice(tx, bytes)?;
    let next = tx.get(table)?.buckets[key as usize % BUCKETS];
    let entry = tx.alloc_beside(table, TableEntry { key, next, value })?;
    tx.get_mut(table)?.buckets[key as usize % BUCKETS] = Some(entry);
    Ok(())
}

/// On each level the last node before a key.
fn before(tx: &Tx<'_>, first: Ptr<Node>, key: u64) -> Result<[Ptr<Node>; LEVELS]> {
    let mut out = [first; LEVELS];
    let mut at = first;
    for level in (0..LEVELS).rev() {
        while let Some(next) = tx.get(at)?.next[level]
            && tx.get(next)?.key < key
        {
            at = next;
        }
        out[level] = at;
    }
    Ok(out)
}

fn unlink(tx: &mut Tx<'_>, first: Ptr<Node>, key: u64) -> Result<()> {
    let before = before(tx, first, key)?;
    let Some(node) = tx.get(before[0])?.next[0] else { return Ok(()) };
    if tx.get(node)?.key != key {
        return Ok(());
    }
    let next = tx.get(node)?.next;
    for level in 0..LEVELS {
        if tx.get(before[level])?.next[level] == Some(node) {
            tx.get_mut(before[level])?.next[level] = next[level];
        }
    }
    tx.free(node)
}

fn link(
    tx: &mut Tx<'_>,
    pool: &Pool,
    first: Ptr<Node>,
    key: u64,
    sum: u64,
    height: usize,
) -> Result<()> {
    let before = before(tx, first, key)?;
    let mut next = [None; LEVELS];
    for level in 0..height {
        next[level] = tx.get(before[level])?.next[level];
    }
    let node = tx.alloc_in(pool, Node { key, sum, next })?;
    for (level, before) in before.iter().enumerate().take(height) {
        tx.get_mut(*before)?.next[level] = Some(node);
    }
    Ok(())
}

/// Compares both structures, byte by byte, with a model of the same step.
pub(crate) fn compare(pools: [&Pool; 2], seed: u64, model: &TableModel) -> Outcome {
    let (table_view, index_view) = (pools[0].read()?, pools[1].read()?);
    let (table, index) = (table_view.root::<Table>()?, index_view.root::<Index>()?);
    let (Some(table), Some(index)) = (table, index) else { return found("a root is missing") };
    let (table, index) = (table_view.get(table)?, index_view.get(index)?);
    require(table.step == model.step && index.step == model.step, || {
        format!(
            "step {} of the table, {} of the list, {} of the model",
            table.step, index.step, model.step
        )
    })?;
    let mut entries = 0;
    for (bucket, first) in table.buckets.iter().enumerate() {
        let mut at = *first;
        while let Some(entry) = at {
            let entry = table_view.get(entry)?;
            let Some(&(step, len)) = model.values.get(&entry.key) else {
                return found(format!("key {} is there, step {}", entry.key, model.step));
            };
            let (is, must) = (entry.value.as_slice(&table_view)?, value(seed, step, len));
            require(entry.key as usize % BUCKETS == bucket && is == must, || {
                format!(
                    "key {}, put by step {step}, is not as it was put, {} of {len} bytes",
                    entry.key,
                    is.len()
                )
            })?;
            (entries, at) = (entries + 1, entry.next);
        }
    }
    require(entries == model.values.len(), || {
        format!("{entries} entries, and {} must be there, step {}", model.values.len(), model.step)
    })?;
    let mut at = index_view.get(index.first)?.next[0];
    for (key, (step, len)) in &model.values {
        let Some(node) = at else { return found(format!("the list ends before key {key}")) };
        let node = index_view.get(node)?;
        require(node.key == *key && node.sum == sum(&value(seed, *step, *len)), || {
            format!("key {} is in the list where {key} of step {step} must be", node.key)
        })?;
        at = node.next[0];
    }
    require(at.is_none(), || "the list goes on behind its last key".into())
}
