//! The slow paths behind the inlined fast ones, as addresses of functions.
//!
//! Programs inline the fast path of allocation and free into their own code. A direct call of a
//! generic slow path there would have each program compile the heap once more: refilling, growing,
//! attaching, sweeping. The table is filled where a heap is opened, so the slow paths are compiled
//! with the caller of [`TracedHeap::open`](super::TracedHeap::open), and programs only call them.

use super::bin::BinEntry;
use super::superblock::PuddleHeap;
use crate::block::{Block, Cancelled, Taking};
use crate::error::{AllocError, FreeError};
use cenote_layout::id::TypeId;

/// Called by the heap with a chosen block, before the block is given out: the transaction's part.
type Before<'b> = &'b mut dyn FnMut(&Block) -> Result<Taking, Cancelled>;

/// Allocates so many bytes at such an alignment.
type Alloc<H> = fn(&H, (u64, u64), TypeId, Before<'_>) -> Result<Block, AllocError>;

/// The slow paths of a heap of type `H`.
pub(crate) struct Slow<H> {
    pub(super) alloc: Alloc<H>,
    pub(super) free: fn(&H, u64, u8) -> Result<(), FreeError>,
    pub(super) hold: fn(&H, u64) -> Result<(), FreeError>,
    pub(super) put_in_cache: fn(&H, BinEntry, TypeId, u32),
    pub(super) puddle_at: fn(&H, u64) -> Result<&PuddleHeap, FreeError>,
    pub(super) close: fn(&H),
}

impl<H> core::fmt::Debug for Slow<H> {
    fn fmt(&self, f: &mut core::fmt::Formatter<'_>) -> core::fmt::Result {
        f.debug_struct("Slow").finish_non_exhaustive()
    }
}
