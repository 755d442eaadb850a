//! Marks of blocks that a transaction takes and frees.

use crate::context::{HeapBlock, TxError, keep};
use cenote_heap::Block;
use cenote_medium::planted::{Bug, WindowBug, planted};
use cenote_protect::is_attended;
use core::sync::atomic::AtomicU8;

#[inline]
pub(crate) fn mark_byte(held: &HeapBlock) -> &AtomicU8 {
    // SAFETY: a mark of the heap's, mapped until the transaction ends; in a running process all
    // accesses to marks are atomic.
    unsafe { AtomicU8::from_ptr(held.block.mark.byte().as_ptr()) }
}

/// Clears the marks of blocks, which recovery may do again, or undo, until the range has moved on;
/// the heap does not give them out yet.
pub(crate) fn clear_marks(blocks: &[HeapBlock]) {
    for held in blocks {
        // SAFETY: the heap outlives the transaction (contract of `alloc` and `free`).
        unsafe { held.heap.as_ref() }.clear_mark(&held.block);
    }
}

/// Tells the heap that blocks stay allocated, now that their transaction is over. Those whose marks
/// were cleared are left to [`release`], which comes after this.
pub(crate) fn settle(blocks: &[HeapBlock]) {
    for held in blocks {
        // SAFETY: the heap outlives the transaction (contract of `alloc` and `free`).
        unsafe { held.heap.as_ref() }.settle(&held.block);
    }
}

/// Lets the heap give blocks out again: only now that no log entry says "clear its mark" may it be
/// set for another block.
pub(crate) fn release(blocks: &[HeapBlock]) {
    for held in blocks {
        // SAFETY: the heap outlives the transaction (contract of `alloc` and `free`).
        unsafe { held.heap.as_ref() }.release(&held.block);
    }
}

/// The mark of a block is about to be changed.
#[inline]
pub(crate) fn keep_mark(block: &Block, bug: WindowBug) -> Result<(), TxError> {
    if !is_attended() || planted(Bug::Window(bug)) {
        return Ok(());
    }
    keep(block.mark.word.as_ptr().addr() as u64, 8)
}

/// A block is about to be freed: whatever comes into its place, a snapshot may look at it.
#[cold]
pub(crate) fn keep_freed(block: &Block) -> Result<(), TxError> {
    keep_mark(block, WindowBug::FreedMarkNotKept)?;
    if planted(Bug::Window(WindowBug::FreedBlockNotKept)) {
        return Ok(());
    }
    keep(block.addr.as_ptr().addr() as u64, block.size)
}
