//! Ralloc's Figure 6: time of recovery against reachable blocks of 64 bytes, of a Treiber stack and
//! of a Natarajan-Mittal tree.
//!
//! Both are built by one thread, as the lock-free originals leave memory when no thread is in the
//! middle of anything: the stack is one chain, last pushed first; the tree is an external search
//! tree with random keys, a leaf and an inner node for each, whose edges carry two bits (one in 64
//! is flagged, as a deletion that was interrupted leaves it). The pool is that of a store at level
//! `power`, and recovery is what its next opener does after a loss of power: every block that the
//! root leads to is found by the type's pointer map, marks and free space are computed anew.
//! Nothing of the application takes part.
//!
//! Unit: milliseconds. Rows, with the number of blocks as an ending: `treiber`, `natarajan_mittal`.
//! System `cenote`: recovery, by one thread and by as many as are asked for; system `traversal`:
//! the same blocks visited by a plain loop in the same run, which is what recovery has to be
//! compared with on any machine.

use crate::case::Failure;
use crate::figures::figure::{Body, Figure, Rows};
use crate::filter::Filter;
use crate::place::Settings;
use crate::random::Random;
use crate::runner::Row;
use crate::traced::Traced;
use cenote::{Durability, TypeId};
use cenote_heap::{Heap as _, Trace as _, TraceOptions};
use cenote_layout::pointer::PointerKind;
use cenote_layout::types::{PointerField, RECORD_VERSION, TypeRecord};
use std::collections::HashMap;
use std::hint::black_box;
use std::io::Write;
use std::num::NonZero;
use std::ptr::with_exposed_provenance_mut;
use std::sync::Arc;
use std::time::Instant;

/// The figure.
pub const FIGURE: Figure =
    Figure { name: "ralloc-figure6", title: "recovery by tracing", body: Body::Report(report) };

/// Bytes of a block.
const BLOCK: u64 = 64;
/// The bits of a pointer that say something else.
const TAG: u64 = 3;

/// Where a node's key is, in words; its pointers are before it.
const KEY: u64 = 2;

type Types = HashMap<TypeId, Arc<TypeRecord>>;

/// A structure: its name, the number of pointers in a node, and how it is built of new blocks.
struct Shape {
    name: &'static str,
    type_id: TypeId,
    pointers: u64,
    tag_mask: u64,
    build: fn(u64, &mut Blocks<'_>) -> Result<u64, Failure>,
}

const SHAPES: [Shape; 2] = [
    Shape { name: "treiber", type_id: TypeId(0x7e1), pointers: 1, tag_mask: 0, build: stack },
    Shape {
        name: "natarajan_mittal",
        type_id: TypeId(0x2a3),
        pointers: 2,
        tag_mask: TAG,
        build: tree,
    },
];

impl Shape {
    fn types(&self) -> Types {
        let pointers = PointerField {
            offset: 0,
            stride: 8,
            count: self.pointers,
            kind: PointerKind::NATIVE,
            tag_mask: self.tag_mask,
            target: self.type_id,
            conditions: Vec::new(),
        };
        let record = TypeRecord {
            version: RECORD_VERSION,
            id: self.type_id,
            name: format!("cenote-bench::{}", self.name),
            size: BLOCK,
            align: 8,
            repeats: false,
            fields: Vec::new(),
            variants: Vec::new(),
            pointers: vec![pointers],
        };
        HashMap::from([(self.type_id, Arc::new(record))])
    }
}

/// New blocks of a heap.
struct Blocks<'a> {
    traced: &'a Traced,
    type_id: TypeId,
    taken: u64,
}

impl Blocks<'_> {
    /// A node with a key and two links.
    fn take(&mut self, key: u64, links: [u64; 2]) -> Result<u64, Failure> {
        let block =
            self.traced.heap.alloc(BLOCK, 16, self.type_id)?.addr.as_ptr().expose_provenance()
                as u64;
        (KEY + 1..BLOCK / 8).for_each(|word| set(block, word, 0));
        set(block, 0, links[0]);
        set(block, 1, links[1]);
        set(block, KEY, key);
        self.taken += 1;
        Ok(block)
    }
}

fn word(node: u64, index: u64) -> *mut u64 {
    with_exposed_provenance_mut::<u64>((node + 8 * index) as usize)
}

fn set(node: u64, index: u64, value: u64) {
    // SAFETY: a word of a block that this figure allocated; one thread writes, and none reads
    // meanwhile.
    unsafe { word(node, index).write(value) }
}

fn get(node: u64, index: u64) -> u64 {
    // SAFETY: as in `set`.
    unsafe { word(node, index).read() }
}

/// Pushes `count` nodes.
fn stack(count: u64, blocks: &mut Blocks<'_>) -> Result<u64, Failure> {
    (0..count).try_fold(0, |head, key| blocks.take(key, [head, 0]))
}

/// Inserts random keys until there are `count` nodes, or one less.
fn tree(count: u64, blocks: &mut Blocks<'_>) -> Result<u64, Failure> {
    let mut random = Random::new(count);
    let mut key = || (random.below(1 << 31) as u64) << 31 | random.below(1 << 31) as u64;
    let mut root = blocks.take(key(), [0, 0])?;
    while blocks.taken + 2 <= count {
        let new = key();
        // The edge that leads to a leaf.
        let (mut above, mut side, mut leaf) = (0, 0, root);
        while get(leaf, 0) != 0 {
            (above, side) = (leaf, u64::from(new >= get(leaf, KEY)));
            leaf = get(above, side) & !TAG;
        }
        let (old, added) = (get(leaf, KEY), blocks.take(new, [0, 0])?);
        let links = if new < old { [added, leaf] } else { [leaf, added] };
        let inner = blocks.take(new.max(old), links)?;
        match above {
            0 => root = inner,
            _ => set(above, side, inner | u64::from(new % 64 == 0)),
        }
    }
    Ok(root)
}

/// Visits what a root leads to as a program would: how many nodes, and the sum of their keys.
fn traverse(root: u64, pointers: u64) -> (u64, u64) {
    let (mut count, mut sum, mut waiting, mut at) = (0, 0u64, Vec::new(), root);
    loop {
        while at != 0 {
            count += 1;
            sum = sum.wrapping_add(get(at, KEY));
            if pointers > 1 {
                let other = get(at, 1) & !TAG;
                if other != 0 {
                    waiting.push(other);
                }
            }
            at = get(at, 0) & !TAG;
        }
        match waiting.pop() {
            Some(next) => at = next,
            None => return (count, sum),
        }
    }
}

fn counts(settings: &Settings) -> Vec<u64> {
    match (settings.objects, settings.quick) {
        (Some(objects), _) => vec![objects],
        (None, true) => vec![10_000],
        (None, false) => vec![100_000, 1_000_000, 10_000_000],
    }
}

fn report(settings: &Settings, filter: &Filter, runs: usize, out: &mut dyn Write) -> Rows {
    let mut rows = Vec::new();
    for shape in &SHAPES {
        for count in counts(settings) {
            let row = format!("{}_{count}", shape.name);
            if filter.admits(&row, "cenote", crate::case::POWER) {
                rows.extend(one(shape, count, settings, runs, out)?);
            }
        }
    }
    Ok(rows)
}

fn one(shape: &Shape, count: u64, settings: &Settings, runs: usize, out: &mut dyn Write) -> Rows {
    let traced = Traced::open(settings, Durability::Power)?;
    let mut blocks = Blocks { traced: &traced, type_id: shape.type_id, taken: 0 };
    let root = (shape.build)(count, &mut blocks)?;
    let taken = blocks.taken;
    traced.heap.set_root(0, root, shape.type_id)?;
    let types = shape.types();
    let threads = settings.threads();
    let mut times: Vec<Vec<f64>> = vec![Vec::new(); threads.len() + 1];
    for _ in 0..runs {
        let began = Instant::now();
        let (visited, sum) = black_box(traverse(root, shape.pointers));
        times[0].push(began.elapsed().as_secs_f64() * 1e3);
        if visited != taken || sum == 0 {
            return Err(format!("{} of {taken} nodes are reached", visited).into());
        }
        for (times, &threads) in times[1..].iter_mut().zip(&threads) {
            let mut options = TraceOptions::default();
            options.workers = NonZero::new(threads as usize);
            let report = traced.heap.recover_with(&types, &[], options)?;
            if (report.trace.blocks, report.trace.faults, report.freed_blocks) != (taken, 0, 0) {
                return Err(format!("recovery of {taken} blocks finds {report:?}").into());
            }
            times.push(report.took.as_secs_f64() * 1e3);
        }
    }
    let name = format!("{}_{count}", shape.name);
    let row = |system, threads, values: Vec<f64>| {
        Row::of_values(FIGURE.name, name.clone(), (system, traced.level, threads), "ms", values)
    };
    let mut rows = vec![row("traversal", 1, times.remove(0))];
    rows.extend(threads.iter().zip(times).map(|(&threads, times)| row("cenote", threads, times)));
    let told: Vec<String> = rows
        .iter()
        .map(|row| format!("{} {} {:.2} ms", row.system, row.threads, row.median))
        .collect();
    writeln!(out, "  {name}: {}", told.join(", "))?;
    Ok(rows)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn both_structures_are_built_whole_and_recovered_whole() {
        for shape in &SHAPES {
            let settings = Settings { threads: vec![1, 2], ..Settings::default() };
            let rows = one(shape, 2001, &settings, 1, &mut std::io::sink()).expect("recovered");
            let systems: Vec<_> = rows.iter().map(|row| (row.system, row.threads)).collect();
            assert_eq!(systems, [("traversal", 1), ("cenote", 1), ("cenote", 2)]);
        }
    }

    #[test]
    fn the_tree_is_a_search_tree() {
        let traced = Traced::open(&Settings::default(), Durability::Process).expect("a store");
        let mut blocks = Blocks { traced: &traced, type_id: SHAPES[1].type_id, taken: 0 };
        let root = tree(1001, &mut blocks).expect("built");
        let (mut keys, mut path, mut at) = (Vec::new(), Vec::new(), root);
        loop {
            while get(at, 0) != 0 {
                path.push(at);
                at = get(at, 0) & !TAG;
            }
            keys.push(get(at, KEY));
            match path.pop() {
                Some(inner) => at = get(inner, 1) & !TAG,
                None => break,
            }
        }
        assert_eq!((keys.len(), blocks.taken), (501, 1001));
        assert!(keys.is_sorted());
    }
}
