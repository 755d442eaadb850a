//! Rollback in the process that ran the transaction.
//!
//! A page of the log may be lost before it is read here, or while it is
//! ([`LogWriter::is_lost`](cenote_log::LogWriter::is_lost)). The memory in its place must not get
//! into the data: a part of a range is copied beside it first, and then the flag is asked. From
//! there on the transaction *stays in its log*: nothing is put back, no mark changes, no block is
//! given back, and the range does not move on. The next opener decides by what the file has.

use crate::commit::marks_are_lost;
use crate::context::{StoredAt, TxContext};
use crate::marks::{clear_marks, release, settle};
use cenote_medium::planted::{Bug, GuardBug, Step, planted, reach};
use cenote_sys::bytes::load_word;
use core::mem::MaybeUninit;
use core::sync::atomic::{AtomicU64, Ordering};

const WORD: usize = size_of::<u64>();

/// Words that are put back at a time.
const PART_WORDS: usize = 128;

/// A part of a range, as the log has it.
type Part = [MaybeUninit<u64>; PART_WORDS];

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
    if marks_are_lost(context) {
        return context.clear();
    }
    context.writer.finish();
    context.writer.fence();
    context.range_pending = false;
    if !context.writer.is_lost() {
        if context.tickets {
            settle(&context.freed);
        }
        release(&context.allocated);
    }
    context.clear();
}

/// Copies old contents from the log to where they were, the last first, as long as the log is
/// there.
fn put_back(context: &TxContext) {
    let mut part: Part = [const { MaybeUninit::uninit() }; PART_WORDS];
    for range in context.ranges.list().iter().rev().filter(|range| !range.old.is_null()) {
        let len = (range.end - range.start) as usize;
        for at in (0..len).step_by(size_of::<Part>()) {
            let count = size_of::<Part>().min(len - at);
            // SAFETY: the log holds `len` bytes at `old`, or other memory is in their place, and
            // `part` has room.
            unsafe {
                let to = part.as_mut_ptr().cast::<u8>();
                to.copy_from_nonoverlapping(range.old.add(at), count);
            }
            if context.writer.is_lost() && !planted(Bug::LostLogRestored) {
                return;
            }
            let to = context.stored(range.start).wrapping_add(at);
            // SAFETY: the range is writable there until the transaction ends, and `part` holds its
            // bytes.
            unsafe { store(&part, to as *mut u8, count) };
        }
        // SAFETY: as above.
        unsafe { context.persistence.flush(range.start as *const u8, len) };
        if let Some(of) = context.stored_at(range.start) {
            of.way.note_stored(range.start as usize, len);
        }
    }
}

impl TxContext {
    /// How the byte at `addr`, of a logged range, is stored, if that is elsewhere.
    fn stored_at(&self, addr: u64) -> Option<&StoredAt> {
        self.stored_at.iter().find(|of| (of.start..of.end).contains(&addr))
    }

    /// Where the byte at `addr`, of a logged range, is stored.
    fn stored(&self, addr: u64) -> usize {
        let found =
            self.stored_at(addr).filter(|_| !planted(Bug::Guard(GuardBug::RootRestoredOpenly)));
        (addr as usize).wrapping_add(found.map_or(0, |of| of.way.distance))
    }
}

/// Stores the first bytes of a part: whole words one by one, because another thread may load them
/// meanwhile, as it loads a root.
///
/// # Safety
/// The part has `len` bytes, and so many at `to` are writable.
unsafe fn store(part: &Part, to: *mut u8, len: usize) {
    if !to.addr().is_multiple_of(WORD) || !len.is_multiple_of(WORD) {
        // SAFETY: by contract.
        return unsafe { to.copy_from_nonoverlapping(part.as_ptr().cast(), len) };
    }
    for (at, word) in part[..len / WORD].iter().enumerate() {
        // SAFETY: by contract; aligned words.
        unsafe {
            let old = load_word(word.as_ptr().cast());
            AtomicU64::from_ptr(to.add(at * WORD).cast()).store(old, Ordering::Release);
        }
    }
}
