//! The steps of a commit; the comments name the states. The crate's documentation says why the
//! order is right.

use crate::context::{HeapBlock, TxContext, TxError};
use crate::marks::{clear_marks, mark_byte, release, settle};
use cenote_layout::heap::mark;
use cenote_layout::log::{ContentHash, PIECE_LEN, Seal, entry_size};
use cenote_log::LogError;
use cenote_medium::planted::{Bug, LoggedBug, Step, planted, reach};
use cenote_sys::bytes;
use core::sync::atomic::Ordering;

/// Most bytes that a lazy seal covers. Hashing them is hidden behind their flushes; but recovery
/// hashes sealed bytes again, and much more than this saves nothing that counts.
const SEAL_BYTES_MAX: u64 = 8192;

/// Most bytes of fresh allocations among them: a block that was not written yet is in no cache, and
/// reading it costs more than the fence that a seal saves.
const SEAL_FRESH_BYTES_MAX: u64 = 1024;

/// Commits a transaction whose log has entries.
pub(crate) fn commit_logged(context: &mut TxContext) -> Result<(), TxError> {
    reach(Step::CommitBegun);
    let power = context.persistence.is_power();
    let done = if power { commit_power(context) } else { commit_process(context) };
    if done.is_ok() || context.writer.entries() == 0 {
        context.clear();
    }
    done.map_err(TxError::Log)
}

/// States after a crash of processes: before `mark_committed` (or, without redo-class entries,
/// `finish`): rolled back. Between the two: rolled forward. After `finish`: done. Each is one
/// 8-byte store. If that store went nowhere, nothing that relies on it happens.
fn commit_process(context: &mut TxContext) -> Result<(), LogError> {
    if !context.redo.is_empty() || !context.freed.is_empty() {
        context.writer.mark_committed();
        reach(Step::CommitStored);
        refuse_lost(context)?;
        apply_redo(context);
        clear_marks(&context.freed);
        if marks_are_lost(context) {
            // The log says "committed" for good: the next opener clears the marks. The caller asks
            // whether the store acknowledges it.
            return Ok(());
        }
    }
    reach(Step::CommitEnds);
    context.writer.finish();
    refuse_lost(context)?;
    if context.tickets {
        settle(&context.allocated);
    }
    release(&context.freed);
    Ok(())
}

/// Fails if a page of a log was lost: what relies on the log must not happen.
#[inline(always)]
pub(crate) fn refuse_lost(context: &TxContext) -> Result<(), LogError> {
    if context.writer.is_lost() { Err(LogError::Lost) } else { Ok(()) }
}

/// Whether a mark on which an opener relies may have gone nowhere. An opener believes the mark of a
/// ticket; a heap that is traced finds what is allocated.
pub(crate) fn marks_are_lost(context: &TxContext) -> bool {
    let planted = planted(Bug::Logged(LoggedBug::LostMarkBelieved));
    context.tickets && context.writer.is_halted() && !planted
}

fn commit_power(context: &mut TxContext) -> Result<(), LogError> {
    // A transaction may be finished lazily if nothing that its seal covers can change before this
    // log's next fence; a covered block that is given back could. (A further segment is written
    // only after a jump, whose fence makes the range durable.) Without need for redo and without
    // leave to be lazy a seal is of no use.
    let freed_is_covered = freed_is_covered(context) && !planted(Bug::LazyDespiteFreed);
    // A ticket serves another block as soon as this has ended, and replay would store its mark.
    let keeps = freed_is_covered || context.tickets && !planted(Bug::Logged(LoggedBug::LazyTicket));
    let lazy = !keeps && context.group.lazy_allowed();
    let seal = !context.redo.is_empty()
        || (lazy
            && context.ranges.bytes() <= SEAL_BYTES_MAX
            && context.ranges.fresh_bytes() <= SEAL_FRESH_BYTES_MAX);
    if seal {
        // Nothing may fail once marks are changed.
        context.writer.reserve(entry_size(size_of::<Seal>() as u64))?;
    }
    change_marks(context)?;
    if planted(Bug::RangeMovedEarly) {
        context.writer.finish();
        context.writer.fence();
    }
    if seal {
        let contents = flush_contents::<true>(context);
        context.writer.append_seal(contents.0)?;
    } else {
        flush_contents::<false>(context);
    }
    // State 1, before this fence completes: rolled back, unless seal and contents happen to be
    // whole, which is the commit. Marks may be in either state: both directions write them.
    if !planted(Bug::DataNotFenced) {
        context.writer.fence();
        context.range_pending = false;
    }
    refuse_lost(context)?;
    // State 2, sealed: committed. Marked: contents and marks durable, still rolled back until the
    // range moves.
    if !context.redo.is_empty() {
        redo_durably(context)?;
    }
    reach(Step::CommitEnds);
    // State 3: everything is in place and durable; the range says so.
    context.writer.finish();
    // Asked again, now that the range is stored: a log that has joined since the first time may
    // have flushed this log's range word before that. One that joins from here on flushes what
    // was stored (see `LogGroup`).
    let lazy = seal && lazy && context.group.lazy_allowed();
    if lazy || planted(Bug::FinishNotFenced) {
        context.range_pending = true;
    } else {
        context.writer.fence();
    }
    refuse_lost(context)?;
    if context.tickets {
        settle(&context.allocated);
    }
    release(&context.freed);
    Ok(())
}

/// State 2, sealed, with deferred writes: makes them, durably.
fn redo_durably(context: &mut TxContext) -> Result<(), LogError> {
    // From here a crash of processes rolls forward. A loss of power is decided by the seal, so
    // this store needs no fence.
    context.writer.mark_committed();
    reach(Step::CommitStored);
    refuse_lost(context)?;
    apply_redo(context);
    if !planted(Bug::RedoNotFenced) {
        // Of the data alone: whether the range on media says "committed" or still "running" is
        // all the same to recovery, which finds the whole seal. So its line is not
        // flushed here, but once, by the fence that makes the finishing store durable.
        context.persistence.fence();
    }
    Ok(())
}

/// Gives every block that the transaction took or frees the mark that commit makes durable, and
/// flushes it. Not before the entries that take it back are durable: a line may reach memory at any
/// time after it was changed. For blocks that it took *and* frees there is nothing to do: they are
/// free on the medium all the time.
///
/// # Errors
/// A page of a log is lost: nothing has changed. Or one with marks is: the transaction ends in its
/// log.
fn change_marks(context: &mut TxContext) -> Result<(), LogError> {
    if context.allocated.is_empty() && context.freed.is_empty() {
        return Ok(());
    }
    let is_own = |held: &&HeapBlock| mark_byte(held).load(Ordering::Relaxed) == mark::TAKEN;
    let both = context.freed.iter().filter(is_own).count();
    let changes = context.allocated.len() > both || context.freed.len() > both;
    if changes && context.writer.has_unfenced() && !planted(Bug::MarkBeforeEntry) {
        context.writer.fence();
        context.range_pending = false;
    }
    refuse_lost(context)?;
    // Frees first: what the transaction took and frees is not TAKEN any more then.
    clear_marks(&context.freed);
    for held in &context.allocated {
        // SAFETY: the heap outlives the transaction (contract of `alloc`), and gave it the block.
        unsafe { held.heap.as_ref().set_mark(&held.block) };
    }
    if marks_are_lost(context) {
        // Nothing is sealed: rolled back here, and by the next opener.
        return Err(LogError::Lost);
    }
    if !changes || planted(Bug::MarkNotFlushed) {
        return Ok(());
    }
    const LINE: usize = cenote_layout::LINE_SIZE as usize;
    // Neighbours in memory have neighbouring marks.
    let mut last = 0;
    for held in context.freed.iter().chain(&context.allocated) {
        let byte = held.block.mark.byte().as_ptr();
        let line = byte.addr() / LINE;
        if line != last {
            last = line;
            // SAFETY: a mark of the heap's, mapped until the transaction ends.
            unsafe { context.persistence.flush(byte, 1) };
        }
    }
    Ok(())
}

/// Flushes every line that holds a byte of what was logged or allocated; a line that small ranges
/// share, once. With `HASH` also hashes the contents, piece by piece, while the flushes of the
/// piece before are on their way.
fn flush_contents<const HASH: bool>(context: &TxContext) -> ContentHash {
    const LINE: u64 = cenote_layout::LINE_SIZE;
    /// Lines that are remembered: structures are small and neighbours.
    const RECENT: usize = 4;
    let mut hash = ContentHash::EMPTY;
    let mut recent = [u64::MAX; RECENT];
    let mut next = 0;
    for range in context.ranges.list() {
        // SAFETY: logged ranges are mapped and writable until the transaction ends, and this thread
        // alone uses them (contracts of `add` and `alloc`: their callers isolate). Values have been
        // stored there with their padding, which is settled.
        let contents =
            unsafe { bytes::settled(range.start as *mut u8, (range.end - range.start) as usize) };
        let skip = if range.old.is_null() {
            planted(Bug::FreshNotFlushed)
        } else {
            planted(Bug::DataNotFlushed)
        };
        let (first, last) = (range.start / LINE, (range.end - 1) / LINE);
        let flushed = skip || (first == last && recent.contains(&first));
        if !flushed {
            recent[next % RECENT] = last;
            next += 1;
        }
        if HASH {
            for piece in contents.chunks(PIECE_LEN) {
                hash = hash.with_piece(piece);
                if !flushed {
                    // SAFETY: mapped, as above.
                    unsafe { context.persistence.flush(piece.as_ptr(), piece.len()) };
                }
            }
        } else if !flushed {
            // SAFETY: mapped, as above.
            unsafe { context.persistence.flush(contents.as_ptr(), contents.len()) };
        }
    }
    hash
}

/// Whether a block that is about to be given back holds bytes that a seal covers.
fn freed_is_covered(context: &mut TxContext) -> bool {
    context.freed.iter().any(|f| {
        let start = f.block.addr.as_ptr() as u64;
        context.ranges.overlaps(start, start + f.block.size)
    })
}

fn apply_redo(context: &TxContext) {
    for redo in &context.redo {
        let source = &context.buffer[redo.at..redo.at + redo.len];
        // SAFETY: the range was promised to be writable until the transaction ends (contract of
        // `set`).
        unsafe {
            core::ptr::copy_nonoverlapping(source.as_ptr(), redo.addr as *mut u8, redo.len);
            context.persistence.flush(redo.addr as *const u8, redo.len);
        }
    }
}
