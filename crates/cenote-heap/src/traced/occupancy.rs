//! Occupancy: shows people what each superblock of a heap is used for.
//!
//! Reads descriptors and marks and nothing else, so it works on pools that are open for reading
//! only, and says of damaged superblocks that they are.

use super::adopt::{Holds, contents};
use super::anchor;
use super::marks;
use super::state::TracedHeap;
use super::superblock::PuddleHeap;
use crate::backing::Backing;
use crate::class::{blocks_per_superblock, class_size};
use crate::error::RecoverError;
use cenote_layout::heap::SUPERBLOCK_SIZE;
use cenote_layout::id::TypeId;
use core::sync::atomic::Ordering;

/// What a superblock is used for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum Use {
    /// The puddle's own metadata.
    Metadata,
    /// Nothing.
    Free,
    /// Nothing, and its space was given back to the file system (or may have been).
    Hole,
    /// Blocks of one size and type.
    Small {
        /// Their type.
        type_id: TypeId,
        /// Bytes of each.
        block_size: u64,
        /// Allocated ones.
        blocks: u64,
        /// Free ones that caches of threads have ready.
        cached: u64,
        /// How many there is room for.
        capacity: u64,
    },
    /// The beginning of a large block.
    LargeHead {
        /// Its type.
        type_id: TypeId,
        /// Superblocks of it, this one included.
        span: u64,
    },
    /// The rest of a large block.
    LargeTail,
    /// Not used: the descriptor or a mark is damaged.
    Damaged,
}

/// One superblock of a heap.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct SuperblockInfo {
    /// Number of the heap puddle in its pool.
    pub puddle: u32,
    /// Number of the superblock in the puddle.
    pub number: u32,
    /// Where it begins. It has 64 KiB.
    pub addr: u64,
    /// What it is used for.
    pub used: Use,
}

impl<G: Backing> TracedHeap<G> {
    /// Calls `visit` for every superblock, in order of addresses within a puddle. Exact if no
    /// thread allocates or frees meanwhile.
    ///
    /// # Errors
    /// A puddle cannot be mapped.
    pub fn superblocks(&self, visit: &mut dyn FnMut(&SuperblockInfo)) -> Result<(), RecoverError> {
        self.attach_all()?;
        for puddle in self.puddles.all() {
            for (number, holds) in contents(&puddle).into_iter().enumerate() {
                let number = number as u32;
                let (index, addr) = (puddle.index, puddle.address(number));
                let used = used(&puddle, number, holds);
                visit(&SuperblockInfo { puddle: index, number, addr, used });
            }
        }
        Ok(())
    }
}

fn used(puddle: &PuddleHeap, number: u32, holds: Holds) -> Use {
    match holds {
        Holds::Metadata => Use::Metadata,
        Holds::Free => match cached(puddle, number) {
            0 if puddle.may_be_hole(number) => Use::Hole,
            0 => Use::Free,
            // No block is allocated, but some thread has its blocks ready.
            cached => {
                let line = puddle.line(number);
                small(line.type_id(), line.class(), 0, cached)
            }
        },
        Holds::Small { class, type_id, used } => {
            small(type_id, class, u64::from(used), cached(puddle, number))
        }
        Holds::Large { span, type_id, .. } => Use::LargeHead { type_id, span: u64::from(span) },
        Holds::Tail => Use::LargeTail,
        Holds::Quarantined { .. } | Holds::Damaged(_) => Use::Damaged,
    }
}

fn small(type_id: TypeId, class: u32, blocks: u64, cached: u64) -> Use {
    let capacity = u64::from(blocks_per_superblock(class));
    Use::Small { type_id, block_size: class_size(class), blocks, cached, capacity }
}

/// Marks of the blocks in caches: of this session only, those of former ones are free.
pub(crate) fn cached(puddle: &PuddleHeap, number: u32) -> u64 {
    let line = puddle.line(number);
    let in_use =
        matches!(anchor::state(line.anchor.load(Ordering::Acquire)), anchor::FULL | anchor::LISTED);
    if !puddle.writable || !in_use {
        return 0;
    }
    u64::from(marks::count_cached(puddle.class_marks(number, line.class())))
}

/// Bytes of a superblock in which no block of this size lies: the end that is too short for one,
/// and marks that lie inside.
#[must_use]
pub fn unused_end(block_size: u64, capacity: u64) -> u64 {
    SUPERBLOCK_SIZE.saturating_sub(block_size * capacity)
}
