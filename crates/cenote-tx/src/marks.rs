//! Marks of blocks that a transaction takes and frees.

use crate::context::HeapBlock;
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
