//! Options of a traversal: which types there are ([`Types`], [`Filter`]), and how it runs
//! ([`TraceOptions`]).

use cenote_layout::id::TypeId;
use cenote_layout::types::TypeRecord;
use cenote_sys::cpu_number;
use core::fmt;
use core::num::NonZero;
use core::ops::ControlFlow;
use core::time::Duration;
use std::collections::HashMap;
use std::sync::Arc;

/// How far a traversal has come.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct TraceProgress {
    /// Blocks reached so far. How many there will be is not known before.
    pub blocks: u64,
    /// Superblocks of the heap that hold blocks; 64 KiB each.
    pub superblocks: u64,
}

/// Hears how far a traversal has come, and may break it off.
pub type OnProgress<'a> = dyn FnMut(&TraceProgress) -> ControlFlow<()> + 'a;

/// How a heap is traced: by [`crate::Trace::recover_with`] and
/// [`crate::Inspect::check_from`].
#[non_exhaustive]
pub struct TraceOptions<'a> {
    /// Most threads that trace, the caller's included; `None`: as many as cores that this process
    /// may use.
    pub workers: Option<NonZero<usize>>,
    /// Blocks that the caller's thread traces alone before it starts others: starting a thread
    /// takes as long as tracing a thousand blocks. 100,000 by default.
    pub alone_blocks: u64,
    /// Called on the caller's thread while blocks are traced, with [`TraceOptions::interval`]
    /// between calls; so not at all if a heap is traced in less. If it breaks, the traversal ends
    /// with [`crate::RecoverError::Cancelled`], and nothing has changed. It may ask the heap
    /// something, and change nothing.
    pub progress: Option<&'a mut OnProgress<'a>>,
    /// Least time between two calls of `progress`; 50 ms by default.
    pub interval: Duration,
    /// For recovery: a block that is reached and whose mark does not say "allocated" stays free;
    /// what leads there dangles. Right where every mark is durable as soon as its transaction is,
    /// which transactions at level `power` see to. By default off: marks are not looked at, and
    /// all that is reached is allocated.
    pub believe_marks: bool,
    /// For recovery: something that may lead into this heap cannot be looked at. No block that is
    /// allocated is made free, reached or not. For heaps whose marks are durable with their
    /// transactions, as for [`TraceOptions::believe_marks`].
    pub keep_unreached: bool,
}

impl Default for TraceOptions<'_> {
    fn default() -> Self {
        Self {
            workers: None,
            alone_blocks: 100_000,
            progress: None,
            interval: Duration::from_millis(50),
            believe_marks: false,
            keep_unreached: false,
        }
    }
}

impl fmt::Debug for TraceOptions<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("TraceOptions")
            .field("workers", &self.workers)
            .field("alone_blocks", &self.alone_blocks)
            .field("interval", &self.interval)
            .field("believe_marks", &self.believe_marks)
            .field("keep_unreached", &self.keep_unreached)
            .finish_non_exhaustive()
    }
}

impl TraceOptions<'_> {
    /// The same options for one traversal of several.
    pub fn again(&mut self) -> TraceOptions<'_> {
        let progress =
            self.progress.as_mut().map(|progress| &mut **progress as &mut OnProgress<'_>);
        TraceOptions {
            workers: self.workers,
            alone_blocks: self.alone_blocks,
            progress,
            interval: self.interval,
            believe_marks: self.believe_marks,
            keep_unreached: self.keep_unreached,
        }
    }

    pub(crate) fn workers(&self) -> usize {
        self.workers.unwrap_or_else(cpu_number::available).get()
    }
}

/// A source of types: the store, or a map in tests.
pub trait Types: Sync {
    /// The record of a type, if it is registered.
    fn record(&self, id: TypeId) -> Option<Arc<TypeRecord>>;

    /// The function that finds the pointers in blocks of a type, if this process has one. It is
    /// used in place of the record's pointer map.
    fn filter(&self, id: TypeId) -> Option<Filter> {
        let _ = id;
        None
    }
}

impl Types for HashMap<TypeId, Arc<TypeRecord>> {
    fn record(&self, id: TypeId) -> Option<Arc<TypeRecord>> {
        self.get(&id).cloned()
    }
}

/// A block, as a [`Filter`] sees it.
#[derive(Clone, Copy, Debug)]
#[non_exhaustive]
pub struct Scanned<'a> {
    /// Its address.
    pub addr: u64,
    /// Its type.
    pub type_id: TypeId,
    /// Its bytes, as many as are usable: those that the size class adds are there too, and a block
    /// that was reached by mistake (by a number that looks like a pointer) may hold anything.
    pub bytes: &'a [u8],
}

impl Scanned<'_> {
    /// The 64-bit word at a byte offset; `None` if it is not in the block.
    #[must_use]
    pub fn word(&self, offset: usize) -> Option<u64> {
        let bytes = self.bytes.get(offset..)?.first_chunk()?;
        Some(u64::from_le_bytes(*bytes))
    }
}

/// Takes the pointers that a [`Filter`] finds.
pub struct Visitor<'a> {
    follow: &'a mut dyn FnMut(u64, TypeId),
}

impl<'a> Visitor<'a> {
    pub(crate) fn new(follow: &'a mut dyn FnMut(u64, TypeId)) -> Self {
        Self { follow }
    }

    /// There is a pointer to the address `to`, to a block of any type or inside one. 0 is nothing;
    /// an address that leads to no block is counted as a fault and breaks nothing.
    pub fn pointer(&mut self, to: u64) {
        self.pointer_to(to, TypeId::UNTYPED);
    }

    /// As [`Visitor::pointer`], to the start of a block of type `target`.
    pub fn pointer_to(&mut self, to: u64, target: TypeId) {
        if to != 0 {
            (self.follow)(to, target);
        }
    }
}

impl core::fmt::Debug for Visitor<'_> {
    fn fmt(&self, f: &mut core::fmt::Formatter<'_>) -> core::fmt::Result {
        f.write_str("Visitor")
    }
}

/// Ralloc's filter function: names every pointer in a block of one type, for types that a pointer
/// map cannot describe (links packed into fewer bits, two addresses in one word). Called from any
/// thread; it may ask the heap something, and change nothing. What it does not name, and nothing
/// else leads to, is lost.
pub type Filter = fn(&Scanned<'_>, &mut Visitor<'_>);
