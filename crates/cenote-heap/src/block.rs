//! Blocks, and their allocation marks.
//!
//! A block is *allocated* while its [`Mark`] is set: one byte in memory that survives a crash of
//! processes. A transaction logs the mark before it sets it, so that abort and crash recovery clear
//! the mark again.
//!
//! At level `power` a transaction sets a mark in two steps ([`Taking`]): after a loss of power, a
//! mark reads ALLOCATED only if the allocation was committed, or a durable log entry names it. The
//! argument is in crate `cenote-tx`.

use cenote_layout::id::TypeId;
use core::ptr::NonNull;
use core::sync::atomic::AtomicU64;

/// The allocation mark of one block: the bits `mask` (exactly one byte) of `word`. Zero means free;
/// all ones, allocated (see [`cenote_layout::heap::mark`] for what is between).
///
/// Other blocks have their marks in the same word, and other threads store to their bytes at any
/// time: in a running process only the heap changes a mark ([`crate::Heap::clear_mark`]). Crash
/// recovery, which is alone, clears it by a plain store to the word.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Mark {
    /// The word; an `AtomicU64` in the pool's mapping.
    pub word: NonNull<AtomicU64>,
    /// The byte.
    pub mask: u64,
}

impl Mark {
    /// The byte, where it lies.
    #[inline]
    #[must_use]
    pub fn byte(&self) -> NonNull<u8> {
        // A byte of the word: at most 7 behind its start.
        let offset = (self.mask.trailing_zeros() / 8 % 8) as usize;
        self.word.cast::<u8>().map_addr(|addr| addr | offset)
    }
}

// SAFETY: a mark is an address and a mask; using the address takes its own `unsafe`.
unsafe impl Send for Mark {}

// SAFETY: as above.
unsafe impl Sync for Mark {}

/// An allocated block, or one about to be.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Block {
    /// Where it begins.
    pub addr: NonNull<u8>,
    /// Usable bytes, at least what was asked for.
    pub size: u64,
    /// Its mark.
    pub mark: Mark,
    /// Type of the value(s) in it.
    pub type_id: TypeId,
    /// Whether its mark is its own only until its transaction has told the heap that it is over
    /// ([`crate::Heap::settle`]), which it does when its log is durably finished.
    pub has_ticket: bool,
}

// SAFETY: a block is an address with its facts; using the memory takes its own `unsafe`.
unsafe impl Send for Block {}

// SAFETY: as above.
unsafe impl Sync for Block {}

/// The facts about an allocated block, from [`crate::Inspect::walk`] and [`crate::Heap::owner`].
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct BlockInfo {
    /// Where it begins.
    pub addr: u64,
    /// Usable bytes.
    pub size: u64,
    /// Type of the value(s) in it.
    pub type_id: TypeId,
}

/// What the mark of a block says that is given out: the value of the byte.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u8)]
pub enum Taking {
    /// "Allocated", for every opener to come.
    Allocated = cenote_layout::heap::mark::ALLOCATED,
    /// "Taken": allocated for the processes that have the pool open, free for the process that
    /// opens it after them. [`crate::Heap::set_mark`] makes it allocated.
    Taken = cenote_layout::heap::mark::TAKEN,
}

/// "Do not allocate after all": what `before` of [`crate::Heap::alloc_with`] returns when, say, a
/// log is full. The caller keeps its own reason.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Cancelled;
