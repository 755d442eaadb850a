//! Rollback in the process that ran the transaction.

use crate::context::TxContext;
use crate::marks::{clear_marks, release};
use crate::ranges::Range;
use cenote_medium::planted::{Bug, planted};
use core::sync::atomic::{AtomicU64, Ordering};

/// Rolls back in this process. Until the range moves on recovery would do the same again; only then
/// are blocks given out again.
#[cold]
pub(crate) fn abort(context: &mut TxContext) {
    for range in context.ranges.list().iter().rev() {
        if !range.old.is_null() {
            // SAFETY: a logged range, which is writable until the transaction ends.
            unsafe {
                put_back(range);
                let len = (range.end - range.start) as usize;
                context.persistence.flush(range.start as *const u8, len);
            }
        }
    }
    for volatile in context.volatile.iter().rev() {
        let source = &context.buffer[volatile.at..volatile.at + volatile.len];
        // SAFETY: promised to be writable until the transaction ends (contract of `add_volatile`).
        unsafe { core::ptr::copy(source.as_ptr(), volatile.addr as *mut u8, volatile.len) };
    }
    context.writer.fence();
    // What was put back may have gone nowhere. The log has it; no transaction uses that again.
    if context.writer.is_halted() && !planted(Bug::AbortForgotten) {
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
    release(&context.allocated);
    context.clear();
}

/// Stores what the log holds of a range: whole words one by one, because another thread may load
/// them meanwhile, as it loads a root.
///
/// # Safety
/// The log holds the range's bytes at `old`, and the range is writable.
unsafe fn put_back(range: &Range) {
    const WORD: usize = size_of::<u64>();
    let len = (range.end - range.start) as usize;
    let to = range.start as *mut u8;
    if !range.start.is_multiple_of(WORD as u64) || !len.is_multiple_of(WORD) {
        // SAFETY: by contract; the log lies elsewhere.
        return unsafe { core::ptr::copy_nonoverlapping(range.old, to, len) };
    }
    for at in (0..len).step_by(WORD) {
        // SAFETY: by contract; an aligned word of the range.
        unsafe {
            let old = range.old.add(at).cast::<u64>().read_unaligned();
            AtomicU64::from_ptr(to.add(at).cast()).store(old, Ordering::Release);
        }
    }
}
