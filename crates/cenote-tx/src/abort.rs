//! Rolling back in this process, and what becomes of blocks when a transaction ends.
//!
//! A page of the log may be lost before it is read here, or while it is
//! ([`LogWriter::is_lost`](cenote_log::LogWriter::is_lost)). What has taken its place must not get
//! into the data: a part of a range is copied beside it first, and then it is asked. From there on
//! the transaction *stays in its log*: nothing is put back, no mark changes, no block is given
//! back, and the range does not move on. The next opener decides by what the file has.

use crate::context::{HeapBlock, TxContext};
use cenote_medium::planted::{Bug, Step, planted, reach};
use core::mem::MaybeUninit;

/// Bytes that are put back at a time.
const PART_LEN: usize = 1024;

/// Clears the marks of blocks, which recovery may do again, or undo, until the range has moved on;
/// the heap does not give them out yet.
pub(crate) fn clear_marks(blocks: &[HeapBlock]) {
    for held in blocks {
        // SAFETY: the heap outlives the transaction (contract of `alloc` and `free`).
        unsafe { held.heap.as_ref() }.clear_mark(&held.block);
    }
}

/// Lets the heap give blocks out again: only now that no log entry says "clear its mark" may it be
/// set for another transaction.
pub(crate) fn release(blocks: &[HeapBlock]) {
    for held in blocks {
        // SAFETY: the heap outlives the transaction (contract of `alloc` and `free`).
        unsafe { held.heap.as_ref() }.release(&held.block);
    }
}

/// Rolls back in this process. Until the range moves on recovery would do the same again; only then
/// are blocks given out again.
#[cold]
pub(crate) fn abort(context: &mut TxContext) {
    reach(Step::AbortBegun);
    put_back(context);
    for volatile in context.volatile.iter().rev() {
        let source = &context.buffer[volatile.at..volatile.at + volatile.len];
        // SAFETY: promised to be writable until the transaction ends (contract of `add_volatile`).
        unsafe { core::ptr::copy(source.as_ptr(), volatile.addr as *mut u8, volatile.len) };
    }
    context.writer.fence();
    // What was put back may have gone nowhere. The log has it; no transaction uses that again.
    if context.writer.is_lost() || context.writer.is_halted() && !planted(Bug::AbortForgotten) {
        return context.clear();
    }
    // At `power` no mark of the medium changes: what the transaction took was never more than
    // TAKEN, and what it was to free is allocated still.
    if !planted(Bug::AbortKeepsAllocation) {
        clear_marks(&context.allocated);
    }
    context.writer.finish();
    context.writer.fence();
    context.range_pending = false;
    if !context.writer.is_lost() {
        release(&context.allocated);
    }
    context.clear();
}

/// Copies old contents from the log to where they were, the last first, as long as the log is
/// there.
fn put_back(context: &TxContext) {
    let mut part = [const { MaybeUninit::<u8>::uninit() }; PART_LEN];
    for range in context.ranges.list().iter().rev().filter(|range| !range.old.is_null()) {
        let len = (range.end - range.start) as usize;
        for at in (0..len).step_by(PART_LEN) {
            let count = PART_LEN.min(len - at);
            // SAFETY: the log holds `len` bytes at `old`, or other memory is in their place, and
            // `part` has room.
            unsafe { part.as_mut_ptr().copy_from_nonoverlapping(range.old.add(at).cast(), count) };
            if context.writer.is_lost() && !planted(Bug::LostLogRestored) {
                return;
            }
            let to = (range.start as usize + at) as *mut MaybeUninit<u8>;
            // SAFETY: the range is writable until the transaction ends.
            unsafe { to.copy_from_nonoverlapping(part.as_ptr(), count) };
        }
        // SAFETY: as above.
        unsafe { context.persistence.flush(range.start as *const u8, len) };
    }
}
