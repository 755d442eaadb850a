//! What the checks of safe code cost: [`Reader::get`], which finds out that a pointer leads to a
//! live value of its type, against following the address as it is.
//!
//! The list and the tree of Figure 1, typed, in one pool. Unit: nanoseconds a node.
//!
//! | row | an operation is a node of |
//! | --- | --- |
//! | `list_traverse` | following the links from the root and adding up the values |
//! | `tree_traverse` | visiting every node depth first, recursively, and adding up the values |
//!
//! Systems: `cenote (safe)` calls [`View::get`](Reader::get) for every pointer; `cenote` calls
//! [`Ptr::as_ref`].

use crate::case::{Case, Failure, NO_LEVEL, Sample, Stopwatch};
use crate::figures::figure::{Body, Figure};
use crate::figures::figure1::{list_len, tree_height};
use crate::place::{BenchPlace, Settings};
use cenote::{Durability, Persist, Ptr, Reader, Tx, View, field};
use std::hint::black_box;
use std::rc::Rc;

/// The figure.
pub const FIGURE: Figure = Figure {
    name: "checked",
    title: "Checked pointers against unchecked ones",
    body: Body::Cases(cases),
};

#[derive(Persist)]
#[persist(name = "cenote-bench::Node")]
#[repr(C)]
struct Node {
    value: u64,
    next: Option<Ptr<Node>>,
}

#[derive(Persist)]
#[persist(name = "cenote-bench::Leaf")]
#[repr(C)]
struct Leaf {
    value: u64,
    left: Option<Ptr<Leaf>>,
    right: Option<Ptr<Leaf>>,
}

/// Nodes that one transaction makes.
const CHUNK: u64 = 1024;

fn build_list(place: &BenchPlace, len: u64) -> cenote::Result<Ptr<Node>> {
    let mut last: Option<Ptr<Node>> = None;
    let mut first = None;
    for begin in (0..len).step_by(CHUNK as usize) {
        last = place.pool.write(|tx| -> cenote::Result<_> {
            let mut last = last;
            for value in begin..(begin + CHUNK).min(len) {
                let node = tx.alloc(Node { value, next: None })?;
                match last {
                    Some(last) => tx.set(last, field!(Node, next), Some(node))?,
                    None => {
                        tx.set_root_at(0, Some(node))?;
                        first = Some(node);
                    }
                }
                last = Some(node);
            }
            Ok(last)
        })?;
    }
    first.ok_or(cenote::Error::Pools)
}

fn build_tree(tx: &mut Tx<'_>, height: u32) -> cenote::Result<Ptr<Leaf>> {
    let node = tx.alloc(Leaf { value: u64::from(height), left: None, right: None })?;
    if height > 1 {
        let left = build_tree(tx, height - 1)?;
        let right = build_tree(tx, height - 1)?;
        let leaf = tx.get_mut(node)?;
        (leaf.left, leaf.right) = (Some(left), Some(right));
    }
    Ok(node)
}

#[inline(never)]
fn sum_list_checked(view: &View<'_>, first: Option<Ptr<Node>>) -> cenote::Result<u64> {
    let (mut sum, mut at) = (0u64, first);
    while let Some(node) = at {
        let node = view.get(node)?;
        sum = sum.wrapping_add(node.value);
        at = node.next;
    }
    Ok(sum)
}

#[inline(never)]
fn sum_tree_checked(view: &View<'_>, at: Option<Ptr<Leaf>>) -> cenote::Result<u64> {
    let Some(at) = at else { return Ok(0) };
    let leaf = view.get(at)?;
    let left = sum_tree_checked(view, leaf.left)?;
    Ok(leaf.value.wrapping_add(left).wrapping_add(sum_tree_checked(view, leaf.right)?))
}

/// # Safety
/// The pool is open and no thread changes it; the pointer is null or leads to a live node.
#[inline(never)]
unsafe fn sum_list(first: Option<Ptr<Node>>) -> u64 {
    let (mut sum, mut at) = (0u64, first);
    while let Some(node) = at {
        // SAFETY: as promised.
        let node = unsafe { node.as_ref() };
        sum = sum.wrapping_add(node.value);
        at = node.next;
    }
    sum
}

/// # Safety
/// As [`sum_list`].
#[inline(never)]
unsafe fn sum_tree(at: Option<Ptr<Leaf>>) -> u64 {
    let Some(at) = at else { return 0 };
    // SAFETY: as promised.
    unsafe {
        let leaf = at.as_ref();
        let left = sum_tree(leaf.left);
        leaf.value.wrapping_add(left).wrapping_add(sum_tree(leaf.right))
    }
}

fn cases(settings: &Settings) -> Result<Vec<Case>, Failure> {
    let place = Rc::new(BenchPlace::open(settings, Durability::Process)?);
    let len = list_len(settings);
    let height = tree_height(settings);
    let list = build_list(&place, len)?;
    let tree = place.pool.write(|tx| -> cenote::Result<_> {
        let tree = build_tree(tx, height)?;
        tx.set_root_at(1, Some(tree))?;
        Ok(tree)
    })?;
    let nodes = (1u64 << height) - 1;
    type Sum = Box<dyn FnMut(&BenchPlace) -> cenote::Result<u64>>;
    let case = |row, system, mut sum: Sum, nodes: u64| {
        let place = place.clone();
        Case::new(row, system, NO_LEVEL, move |count| walk(count, nodes, || sum(&place)))
    };
    Ok(vec![
        case(
            "list_traverse",
            "cenote (safe)",
            Box::new(move |place| sum_list_checked(&place.pool.read()?, black_box(Some(list)))),
            len,
        ),
        case(
            "list_traverse",
            "cenote",
            // SAFETY: the place is open, and only this thread uses it.
            Box::new(move |_| Ok(unsafe { sum_list(black_box(Some(list))) })),
            len,
        ),
        case(
            "tree_traverse",
            "cenote (safe)",
            Box::new(move |place| sum_tree_checked(&place.pool.read()?, black_box(Some(tree)))),
            nodes,
        ),
        case(
            "tree_traverse",
            "cenote",
            // SAFETY: as above.
            Box::new(move |_| Ok(unsafe { sum_tree(black_box(Some(tree))) })),
            nodes,
        ),
    ])
}

fn walk(
    count: u64,
    nodes: u64,
    mut sum: impl FnMut() -> cenote::Result<u64>,
) -> Result<Sample, Failure> {
    let mut watch = Stopwatch::new();
    let rounds = count.div_ceil(nodes);
    watch.time(rounds * nodes, || {
        (0..rounds).try_for_each(|_| {
            sum().map(|sum| {
                black_box(sum);
            })
        })
    })?;
    Ok(watch.sample())
}
