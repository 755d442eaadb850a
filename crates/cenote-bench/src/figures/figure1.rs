//! Figure 1 of the Puddles paper: native pointers against fat ones.
//!
//! A singly linked list of 2^16 nodes and a complete binary tree of height 16 (2^16 - 1 nodes), a
//! value of 8 bytes in each node. Unit: nanoseconds a node.
//!
//! The rows; an operation is a node of:
//!
//! * `list_create`: allocating every node (from the heap, without a transaction) and storing value
//!   and link, in order.
//! * `list_traverse`: following the links from the first node and adding up the values.
//! * `tree_create`: the same as `list_create` for the tree, depth first, parents before children.
//! * `tree_traverse`: visiting every node depth first, recursively, and adding up the values.
//!
//! Nothing is logged or made durable: only pointers are compared. Freeing is outside the timed
//! parts. Systems: `cenote` has 8-byte [`Ptr`]s; `plain` has Rust's raw pointers, and its
//! traversals follow them over *the same nodes* as those of `cenote`; `fat` has 16-byte pointers
//! ([`crate::figures::fat`]), so its nodes are larger, which is part of what they cost.

use crate::case::{Case, Failure, NO_LEVEL, Sample, Stopwatch};
use crate::figures::fat::{self, Fat};
use crate::figures::figure::{Body, Figure};
use crate::place::{BenchPlace, Settings};
use cenote::{Durability, Ptr, TypeId};
use std::hint::black_box;
use std::ptr::NonNull;
use std::rc::Rc;

/// The figure.
pub const FIGURE: Figure = Figure {
    name: "figure1",
    title: "Puddles, Figure 1: native pointers and fat pointers",
    body: Body::Cases(cases),
};

/// Height of the tree; the list has 2 to this power nodes.
pub const HEIGHT: u32 = 16;

/// A kind of pointer that a structure can be built of.
pub(crate) trait Link: 'static {
    /// The pointer, null included.
    type To<T>: Copy;
    const SYSTEM: &'static str;
    fn null<T>() -> Self::To<T>;
    fn new<T>(pool: &FatPool, to: NonNull<T>) -> Self::To<T>;
    /// Null, or what it leads to.
    fn follow<T>(to: Self::To<T>) -> *const T;
}

/// What fat pointers of one place look like.
#[derive(Clone, Copy)]
pub(crate) struct FatPool {
    id: u64,
    base: u64,
}

pub(crate) struct Native;
pub(crate) struct Plain;
pub(crate) struct FatLink;

impl Link for Native {
    type To<T> = Option<Ptr<T>>;
    const SYSTEM: &'static str = "cenote";
    fn null<T>() -> Option<Ptr<T>> {
        None
    }
    #[inline(always)]
    fn new<T>(_pool: &FatPool, to: NonNull<T>) -> Option<Ptr<T>> {
        // SAFETY: a block of the pool that a `T` is written to before the pointer is followed.
        Some(unsafe { Ptr::from_non_null(to) })
    }
    #[inline(always)]
    fn follow<T>(to: Option<Ptr<T>>) -> *const T {
        to.map_or(core::ptr::null(), |to| to.as_ptr())
    }
}

impl Link for Plain {
    type To<T> = *const T;
    const SYSTEM: &'static str = "plain";
    fn null<T>() -> *const T {
        core::ptr::null()
    }
    #[inline(always)]
    fn new<T>(_pool: &FatPool, to: NonNull<T>) -> *const T {
        to.as_ptr()
    }
    #[inline(always)]
    fn follow<T>(to: *const T) -> *const T {
        to
    }
}

impl Link for FatLink {
    type To<T> = Fat<T>;
    const SYSTEM: &'static str = "fat";
    fn null<T>() -> Fat<T> {
        Fat::NULL
    }
    #[inline(always)]
    fn new<T>(pool: &FatPool, to: NonNull<T>) -> Fat<T> {
        Fat::new(pool.id, pool.base, to.as_ptr().addr() as u64)
    }
    #[inline(always)]
    fn follow<T>(to: Fat<T>) -> *const T {
        to.direct()
    }
}

#[repr(C)]
pub(crate) struct Node<L: Link> {
    value: u64,
    next: L::To<Node<L>>,
}

#[repr(C)]
pub(crate) struct Leaf<L: Link> {
    value: u64,
    left: L::To<Leaf<L>>,
    right: L::To<Leaf<L>>,
}

/// Allocates nodes in a place and remembers them.
struct Builder<'a> {
    place: &'a BenchPlace,
    fat: FatPool,
    blocks: Vec<u64>,
}

impl Builder<'_> {
    #[inline(always)]
    fn put<T>(&mut self, value: T) -> cenote::Result<NonNull<T>> {
        // SAFETY: blocks without a type, which no root and no pointer leads to.
        let heap = unsafe { self.place.pool.raw_heap() };
        let block = heap
            .alloc(size_of::<T>() as u64, align_of::<T>() as u64, TypeId::UNTYPED)
            .map_err(cenote::raw::TxError::from)?;
        let node = block.addr.cast::<T>();
        // SAFETY: a fresh block that is large enough and aligned for a `T`.
        unsafe { node.write(value) };
        self.blocks.push(block.addr.as_ptr() as u64);
        Ok(node)
    }

    fn free(self) -> Result<(), Failure> {
        for &block in self.blocks.iter().rev() {
            // SAFETY: blocks of `put`, which are in no use any more.
            unsafe { self.place.pool.raw_heap() }.free(block)?;
        }
        Ok(())
    }
}

/// A list of `len` nodes; the first is returned.
#[inline(never)]
fn build_list<L: Link>(builder: &mut Builder<'_>, len: u64) -> cenote::Result<NonNull<Node<L>>> {
    let first = builder.put(Node::<L> { value: 0, next: L::null() })?;
    let mut last = first;
    for value in 1..len {
        let node = builder.put(Node::<L> { value, next: L::null() })?;
        // SAFETY: a node that was written before, which no other code uses.
        unsafe { (*last.as_ptr()).next = L::new(&builder.fat, node) };
        last = node;
    }
    Ok(first)
}

/// A complete tree of `height` levels.
fn build_tree<L: Link>(builder: &mut Builder<'_>, height: u32) -> cenote::Result<NonNull<Leaf<L>>> {
    let node =
        builder.put(Leaf::<L> { value: u64::from(height), left: L::null(), right: L::null() })?;
    if height > 1 {
        let fat = builder.fat;
        let left = L::new(&fat, build_tree::<L>(builder, height - 1)?);
        let right = L::new(&fat, build_tree::<L>(builder, height - 1)?);
        // SAFETY: written above, which no other code uses.
        unsafe {
            (*node.as_ptr()).left = left;
            (*node.as_ptr()).right = right;
        }
    }
    Ok(node)
}

/// Adds up the values of a list.
///
/// # Safety
/// All nodes are there, and no thread changes them.
#[inline(never)]
unsafe fn sum_list<L: Link>(first: *const Node<L>) -> u64 {
    let (mut sum, mut at) = (0u64, first);
    // SAFETY: null or a node, as promised.
    while let Some(node) = unsafe { at.as_ref() } {
        sum = sum.wrapping_add(node.value);
        at = L::follow(node.next);
    }
    sum
}

/// Adds up the values of a tree.
///
/// # Safety
/// As [`sum_list`].
#[inline(never)]
unsafe fn sum_tree<L: Link>(at: *const Leaf<L>) -> u64 {
    // SAFETY: null or a node, as promised.
    match unsafe { at.as_ref() } {
        None => 0,
        // SAFETY: as promised.
        Some(node) => unsafe {
            let left = sum_tree::<L>(L::follow(node.left));
            node.value.wrapping_add(left).wrapping_add(sum_tree::<L>(L::follow(node.right)))
        },
    }
}

/// Nodes of the list.
#[must_use]
pub fn list_len(settings: &Settings) -> u64 {
    if settings.quick { 1 << 10 } else { 1 << HEIGHT }
}

/// Levels of the tree.
#[must_use]
pub fn tree_height(settings: &Settings) -> u32 {
    if settings.quick { 10 } else { HEIGHT }
}

fn cases(settings: &Settings) -> Result<Vec<Case>, Failure> {
    let place = Rc::new(BenchPlace::open(settings, Durability::Process)?);
    let base = place.store.window().0;
    let fat = FatPool { id: 0x5eed_f00d, base };
    fat::open(fat.id, base);
    let mut cases = Vec::new();
    creates::<Native>(&mut cases, &place, fat, settings);
    creates::<Plain>(&mut cases, &place, fat, settings);
    creates::<FatLink>(&mut cases, &place, fat, settings);

    // One list and one tree of native pointers, which `plain` walks too: a `Ptr` is an address.
    let mut builder = Builder { place: &place, fat, blocks: Vec::new() };
    let list = build_list::<Native>(&mut builder, list_len(settings))?;
    let tree = build_tree::<Native>(&mut builder, tree_height(settings))?;
    traverses::<Native>(&mut cases, &place, list, tree, settings);
    traverses::<Plain>(&mut cases, &place, list.cast(), tree.cast(), settings);
    let list = build_list::<FatLink>(&mut builder, list_len(settings))?;
    let tree = build_tree::<FatLink>(&mut builder, tree_height(settings))?;
    traverses::<FatLink>(&mut cases, &place, list, tree, settings);
    Ok(cases)
}

fn creates<L: Link>(
    cases: &mut Vec<Case>,
    place: &Rc<BenchPlace>,
    fat: FatPool,
    settings: &Settings,
) {
    let len = list_len(settings);
    let here = place.clone();
    cases.push(Case::new("list_create", L::SYSTEM, NO_LEVEL, move |count| {
        build(&here, fat, count, len, |builder| {
            build_list::<L>(builder, len).map(|node| node.as_ptr().addr())
        })
    }));
    let height = tree_height(settings);
    let here = place.clone();
    cases.push(Case::new("tree_create", L::SYSTEM, NO_LEVEL, move |count| {
        let nodes = (1 << height) - 1;
        build(&here, fat, count, nodes, |builder| {
            build_tree::<L>(builder, height).map(|node| node.as_ptr().addr())
        })
    }));
}

fn build(
    place: &BenchPlace,
    fat: FatPool,
    count: u64,
    nodes: u64,
    mut make: impl FnMut(&mut Builder<'_>) -> cenote::Result<usize>,
) -> Result<Sample, Failure> {
    let mut watch = Stopwatch::new();
    while watch.operations() < count {
        let mut builder = Builder { place, fat, blocks: Vec::with_capacity(nodes as usize) };
        black_box(watch.time(nodes, || make(&mut builder))?);
        builder.free()?;
    }
    Ok(watch.sample())
}

fn traverses<L: Link>(
    cases: &mut Vec<Case>,
    place: &Rc<BenchPlace>,
    list: NonNull<Node<L>>,
    tree: NonNull<Leaf<L>>,
    settings: &Settings,
) {
    let len = list_len(settings);
    let here = place.clone();
    cases.push(Case::new("list_traverse", L::SYSTEM, NO_LEVEL, move |count| {
        let _open = &here;
        // SAFETY: the nodes stay as they are as long as the place is open, which the closure sees
        // to.
        walk(count, len, || unsafe { sum_list::<L>(black_box(list.as_ptr())) })
    }));
    let nodes = (1u64 << tree_height(settings)) - 1;
    let here = place.clone();
    cases.push(Case::new("tree_traverse", L::SYSTEM, NO_LEVEL, move |count| {
        let _open = &here;
        // SAFETY: as above.
        walk(count, nodes, || unsafe { sum_tree::<L>(black_box(tree.as_ptr())) })
    }));
}

fn walk(count: u64, nodes: u64, mut sum: impl FnMut() -> u64) -> Result<Sample, Failure> {
    let mut watch = Stopwatch::new();
    let rounds = count.div_ceil(nodes);
    watch.time(rounds * nodes, || {
        (0..rounds).for_each(|_| {
            black_box(sum());
        })
    });
    Ok(watch.sample())
}
