//! Appending to a list: the workload of the Puddles paper's Figures 4 and 9.
//!
//! A singly linked list with a record of its first and last node and its length, values of 8 bytes.
//! Unit: nanoseconds an insertion. Allocation is part of it, and every insertion is a transaction
//! of its own, durable at the level on return.
//!
//! The rows, each with its operation:
//!
//! * `insert`: a transaction: allocate a node, store value and an empty link in it, add and change
//!   the list's record and the last node's link, commit.
//!
//! The list grows to 2^14 nodes; then it is emptied, outside the timed parts. Systems: `cenote` is
//! written by hand on the raw interface: one call adds both places, because their addresses are
//! known before the first is changed; `cenote (safe)` does the same by [`cenote::Pool::write`];
//! `cenote (collections)` is [`ForwardList`] of `cenote-collections`.

use crate::case::{Case, Failure, Sample, Stopwatch};
use crate::figures::figure::{Body, Figure};
use crate::place::{BenchPlace, Settings};
use cenote::{Persist, Ptr, Reader, TypeId, field, raw};
use cenote_collections::ForwardList;
use std::hint::black_box;

/// The figure.
pub const FIGURE: Figure = Figure {
    name: "list-tail",
    title: "Puddles, Figures 4 and 9: insertion at a list's tail",
    body: Body::Cases(cases),
};

/// Nodes of the list when it is emptied.
pub const LEN_MAX: u64 = 1 << 14;

#[derive(Persist, Clone, Copy)]
#[persist(name = "cenote-bench::TailNode")]
#[repr(C)]
struct Node {
    value: u64,
    next: Option<Ptr<Node>>,
}

#[derive(Persist, Clone, Copy)]
#[persist(name = "cenote-bench::TailList")]
#[repr(C)]
struct List {
    first: Option<Ptr<Node>>,
    last: Option<Ptr<Node>>,
    len: u64,
}

const EMPTY: List = List { first: None, last: None, len: 0 };

fn cases(settings: &Settings) -> Result<Vec<Case>, Failure> {
    let mut cases = Vec::new();
    for place in BenchPlace::both(settings)? {
        for (system, insert) in [
            ("cenote", insert_raw as fn(&BenchPlace, Ptr<List>, u64) -> cenote::Result<()>),
            ("cenote (safe)", insert_safe),
        ] {
            let list = place.pool.write(|tx| tx.alloc(EMPTY))?;
            let place = place.clone();
            cases.push(Case::new("insert", system, place.level, move |count| {
                grow(count, |value| insert(black_box(&place), list, value), || empty(&place, list))
            }));
        }
        let list = place.pool.write(ForwardList::<u64>::new)?;
        cases.push(Case::new("insert", "cenote (collections)", place.level, move |count| {
            grow(
                count,
                |value| black_box(&place).pool.write(|tx| list.push_back(tx, value)),
                || empty_collection(&place, list),
            )
        }));
    }
    Ok(cases)
}

/// Times insertions; empties the list when it is long, outside the timed parts.
pub(crate) fn grow<E: Into<Failure>>(
    count: u64,
    mut insert: impl FnMut(u64) -> Result<(), E>,
    mut empty: impl FnMut() -> Result<(), E>,
) -> Result<Sample, Failure> {
    let mut watch = Stopwatch::new();
    while watch.operations() < count {
        let batch = (count - watch.operations()).min(LEN_MAX);
        watch.time(batch, || (0..batch).try_for_each(&mut insert)).map_err(Into::into)?;
        empty().map_err(Into::into)?;
    }
    Ok(watch.sample())
}

#[inline(never)]
fn insert_raw(place: &BenchPlace, list: Ptr<List>, value: u64) -> cenote::Result<()> {
    // SAFETY: the list and its nodes are live and used by this thread alone; the transaction is
    // ended here; everything that is changed was added or is fresh.
    unsafe {
        let mut tx = raw::begin(&place.store)?;
        let node =
            tx.alloc(place.pool.raw_heap(), size_of::<Node>() as u64, 8, NODE)?.cast::<Node>();
        node.write(Node { value, next: None });
        let node = Ptr::from_non_null(node);
        let record = list.as_ptr();
        match (*record).last {
            Some(last) => {
                let link = last.field(field!(Node, next));
                tx.add_all(&[
                    (record.cast_const().cast(), size_of::<List>()),
                    (link.cast_const().cast(), 8),
                ])?;
                link.write(Some(node));
            }
            None => {
                tx.add(record.cast_const().cast(), size_of::<List>())?;
                (*record).first = Some(node);
            }
        }
        (*record).last = Some(node);
        (*record).len += 1;
        tx.commit()
    }
}

const NODE: TypeId = <Node as Persist>::TYPE_ID;

#[inline(never)]
fn insert_safe(place: &BenchPlace, list: Ptr<List>, value: u64) -> cenote::Result<()> {
    place.pool.write(|tx| {
        let node = tx.alloc(Node { value, next: None })?;
        let List { first, last, len } = *tx.get(list)?;
        if let Some(last) = last {
            tx.set(last, field!(Node, next), Some(node))?;
        }
        *tx.get_mut(list)? = List { first: first.or(Some(node)), last: Some(node), len: len + 1 };
        Ok(())
    })
}

fn empty_collection(place: &BenchPlace, list: ForwardList<u64>) -> cenote::Result<()> {
    while !place.pool.write(|tx| -> cenote::Result<bool> {
        for _ in 0..256 {
            if list.pop_front(tx)?.is_none() {
                return Ok(true);
            }
        }
        Ok(false)
    })? {}
    Ok(())
}

/// Frees all nodes, many in a transaction.
fn empty(place: &BenchPlace, list: Ptr<List>) -> cenote::Result<()> {
    loop {
        let done = place.pool.write(|tx| -> cenote::Result<bool> {
            let mut record = *tx.get(list)?;
            for _ in 0..256 {
                let Some(node) = record.first else { break };
                record.first = tx.get(node)?.next;
                record.len -= 1;
                tx.free(node)?;
            }
            if record.first.is_none() {
                record.last = None;
            }
            *tx.get_mut(list)? = record;
            Ok(record.first.is_none())
        })?;
        if done {
            return Ok(());
        }
    }
}
