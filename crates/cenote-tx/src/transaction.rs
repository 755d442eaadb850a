//! The steps of a transaction. The crate's documentation says why the order is right; the comments
//! here name the states.

use crate::abort::abort;
use crate::context::{HeapBlock, Redo, TxContext, TxError, Volatile};
use crate::marks::{clear_marks, mark_byte, release};
use crate::ranges::Range;
use cenote_heap::reclaim::{before_change, is_recording};
use cenote_heap::{Block, Cancelled, Heap, Taking};
use cenote_layout::heap::mark;
use cenote_layout::id::TypeId;
use cenote_layout::log::{
    AllocationMark, ContentHash, ENTRY_HEADER_SIZE, Kind, PIECE_LEN, Seal, entry_size,
};
use cenote_log::LogError;
use cenote_medium::planted::{Bug, Step, is_refused, planted, reach};
use cenote_sys::bytes::{self, settle};
use core::sync::atomic::Ordering;
use std::ptr::NonNull;

/// Most bytes that a lazy seal covers. Hashing them is hidden behind their flushes; but what is
/// sealed is hashed again if recovery finds it, and much more than this saves nothing that counts.
const SEAL_BYTES_MAX: u64 = 8192;

/// Most bytes of fresh allocations among them: a block that was not written yet is in no cache, and
/// reading it costs more than the fence that a seal saves.
const SEAL_FRESH_BYTES_MAX: u64 = 1024;

/// Tells a reclaim that is under way of a range that is about to be changed, before that is logged.
///
/// # Safety
/// The range is readable, and nobody else writes to it.
#[cold]
unsafe fn record(ptr: *const u8, len: usize) {
    if !planted(Bug::ReclaimMissesAdd) {
        // SAFETY: passed on.
        unsafe { before_change(ptr as u64, len as u64) };
    }
}

/// Appends a copy of `len` bytes at `src` to `buffer`, settled; where it is.
///
/// # Safety
/// The bytes are readable.
unsafe fn keep_copy(buffer: &mut Vec<u8>, src: *const u8, len: usize) -> *const u8 {
    buffer.reserve(len);
    let room = buffer.spare_capacity_mut().as_mut_ptr().cast::<u8>();
    // SAFETY: the room was reserved, and is this vector's. What the copy took along of padding is
    // settled before it counts.
    unsafe {
        room.copy_from_nonoverlapping(src, len);
        settle(room, len);
        buffer.set_len(buffer.len() + len);
    }
    room
}

/// A transaction in progress. Dropped without [`Transaction::commit`], as by an early return or a
/// panic, it aborts.
#[derive(Debug)]
pub struct Transaction<'c> {
    pub(crate) context: &'c mut TxContext,
}

impl TxContext {
    /// Begins a transaction: writes nothing.
    ///
    /// # Safety
    /// The transaction is committed, aborted or dropped, not forgotten: it holds the heaps that it
    /// was given by address.
    #[inline]
    pub unsafe fn begin(&mut self) -> Transaction<'_> {
        Transaction::new(self)
    }
}

impl<'c> Transaction<'c> {
    #[inline]
    pub(crate) fn new(context: &'c mut TxContext) -> Self {
        debug_assert_eq!(context.writer.entries(), 0);
        Self { context }
    }

    /// Logs what stands in a range, so that it may be changed in place (the paper's `TX_ADD`).
    /// Parts that this transaction has logged or allocated already cost nothing. At `power` one
    /// fence, if anything was logged.
    ///
    /// # Errors
    /// [`TxError::Log`] if the log is full; [`TxError::PendingRedo`] if a deferred write overlaps.
    ///
    /// # Safety
    /// `len` bytes from `ptr` are readable and lie in puddles of the store that this process holds
    /// for writing. No other thread uses them until the transaction ends, but for atomic loads of
    /// aligned words that the caller stores atomically; abort does so too.
    #[inline]
    pub unsafe fn add(&mut self, ptr: *const u8, len: usize) -> Result<(), TxError> {
        // The most frequent length has code of its own.
        // SAFETY: passed on.
        if unsafe { if len == 8 { self.add_word(ptr)? } else { self.add_unfenced(ptr, len)? } }
            && !planted(Bug::UndoNotFenced)
        {
            self.fence()?;
        }
        Ok(())
    }

    /// As [`Transaction::add`] for several ranges, with one fence for all.
    ///
    /// # Errors
    /// As [`Transaction::add`]; ranges before the one that failed are logged.
    ///
    /// # Safety
    /// As [`Transaction::add`], for each range.
    #[inline]
    pub unsafe fn add_all(&mut self, ranges: &[(*const u8, usize)]) -> Result<(), TxError> {
        // SAFETY: passed on.
        let (logged, result) = unsafe { self.add_all_unfenced(ranges) };
        if logged && !planted(Bug::UndoNotFenced) {
            self.fence()?;
        }
        result
    }

    /// [`Transaction::add_all`] and [`Transaction::free`], with one fence for both: for a structure
    /// that takes a node out and frees it. Freed after the ranges were logged, the node
    /// would cost commit a fence more.
    ///
    /// # Errors
    /// As both; nothing is freed then.
    ///
    /// # Safety
    /// As both.
    #[inline]
    pub unsafe fn add_all_and_free(
        &mut self,
        ranges: &[(*const u8, usize)],
        heap: &dyn Heap,
        addr: u64,
    ) -> Result<(), TxError> {
        // SAFETY: passed on.
        let (logged, mut result) = unsafe { self.add_all_unfenced(ranges) };
        if result.is_ok() {
            // SAFETY: passed on.
            result = unsafe { self.free(heap, addr) };
        }
        if logged && !planted(Bug::UndoNotFenced) {
            self.fence()?;
        }
        result
    }

    /// Logs ranges, up to the first that fails; whether anything was logged.
    #[inline(always)]
    unsafe fn add_all_unfenced(
        &mut self,
        ranges: &[(*const u8, usize)],
    ) -> (bool, Result<(), TxError>) {
        let mut logged = false;
        for &(ptr, len) in ranges {
            // SAFETY: passed on.
            match unsafe { if len == 8 { self.add_word(ptr) } else { self.add_unfenced(ptr, len) } }
            {
                Ok(new) => logged |= new,
                Err(error) => return (logged, Err(error)),
            }
        }
        (logged, Ok(()))
    }

    #[inline]
    fn fence(&mut self) -> Result<(), LogError> {
        self.context.writer.fence();
        self.context.range_pending = false;
        refuse_lost(self.context)
    }

    #[inline(never)]
    unsafe fn add_word(&mut self, ptr: *const u8) -> Result<bool, TxError> {
        // SAFETY: passed on.
        unsafe { self.add_inline(ptr, 8) }
    }

    #[inline(never)]
    unsafe fn add_unfenced(&mut self, ptr: *const u8, len: usize) -> Result<bool, TxError> {
        // SAFETY: passed on.
        unsafe { self.add_inline(ptr, len) }
    }

    /// Logs what is not logged yet; whether there was any.
    #[inline(always)]
    unsafe fn add_inline(&mut self, ptr: *const u8, len: usize) -> Result<bool, TxError> {
        let start = ptr as u64;
        if is_recording() {
            // SAFETY: passed on; nobody else writes to what this transaction is about to change.
            unsafe { record(ptr, len) };
        }
        // SAFETY: writable, and used by this thread alone until the transaction ends (contract of
        // `add`).
        unsafe { settle(ptr.cast_mut(), len) };
        let context = &mut *self.context;
        if let Some(end) = start.checked_add(len as u64)
            && len != 0
            && u32::try_from(len).is_ok()
            && context.redo.is_empty()
            && !context.ranges.overlaps(start, end)
        {
            let writer = &mut context.writer;
            // SAFETY: the caller promises a readable range; it was settled.
            if let Some(old) = unsafe { writer.append_line(Kind::Undo, start, len as u32, ptr) } {
                context.ranges.push(Range { start, end, old });
                return Ok(true);
            }
        }
        // SAFETY: passed on.
        unsafe { self.add_rest(ptr, len) }
    }

    /// Any range: long ones, ones that overlap others, in a log that is full.
    #[inline(never)]
    unsafe fn add_rest(&mut self, ptr: *const u8, len: usize) -> Result<bool, TxError> {
        let start = ptr as u64;
        let Some(end) = start.checked_add(len as u64) else {
            return Err(TxError::Range { addr: start, len: len as u64 });
        };
        if len == 0 || self.context.ranges.covers(start, end) {
            return Ok(false);
        }
        self.refuse_pending_redo(start, end)?;
        let mut logged = false;
        while let Some((a, b)) = self.context.ranges.gap(start, end) {
            // SAFETY: a part of the range.
            unsafe { self.log_undo(a, b)? };
            logged = true;
        }
        Ok(logged)
    }

    /// Appends undo entries for a range that none covers. Entry first, then the range is believed
    /// to be logged.
    unsafe fn log_undo(&mut self, start: u64, end: u64) -> Result<(), TxError> {
        let context = &mut *self.context;
        let ranges = &mut context.ranges;
        // SAFETY: the caller promises a readable range; `add_inline` has settled it.
        unsafe {
            context.writer.append_range(
                Kind::Undo,
                start,
                (end - start) as usize,
                start as *const u8,
                &mut |addr, len, old| {
                    ranges.push(Range { start: addr, end: addr + len as u64, old })
                },
            )?;
        }
        Ok(())
    }

    fn refuse_pending_redo(&self, start: u64, end: u64) -> Result<(), TxError> {
        if self.context.pending.overlaps(start, end) {
            return Err(TxError::PendingRedo { addr: start, len: end - start });
        }
        Ok(())
    }

    /// Writes at commit (the paper's `TX_REDO_SET`): until then, memory keeps the old contents, for
    /// this transaction's reads too. A range that is already logged or fresh is written at once
    /// instead. No fence before commit, however many writes.
    ///
    /// # Errors
    /// [`TxError::Log`]; [`TxError::PendingRedo`] if the range is logged or fresh only in part.
    ///
    /// # Safety
    /// `len` bytes from `dst` are writable and lie in puddles of the store that this process holds
    /// for writing; `len` bytes from `src` are readable.
    pub unsafe fn set(&mut self, dst: *mut u8, src: *const u8, len: usize) -> Result<(), TxError> {
        let start = dst as u64;
        let Some(end) = start.checked_add(len as u64) else {
            return Err(TxError::Range { addr: start, len: len as u64 });
        };
        if len == 0 {
            return Ok(());
        }
        if is_recording() {
            // SAFETY: what is writable is readable; nobody else writes to what this transaction is
            // about to change.
            unsafe { record(dst, len) };
        }
        let context = &mut *self.context;
        if context.ranges.overlaps(start, end) {
            if context.ranges.gap(start, end).is_some() {
                return Err(TxError::PendingRedo { addr: start, len: len as u64 });
            }
            // SAFETY: both ranges are the caller's promise; logged, so abort and recovery undo it.
            unsafe { core::ptr::copy(src, dst, len) };
            return Ok(());
        }
        let at = context.buffer.len();
        // SAFETY: `src` is readable by contract; the copy is settled.
        unsafe {
            let copy = keep_copy(&mut context.buffer, src, len);
            context.writer.append_range(Kind::Redo, start, len, copy, &mut |_, _, _| {})?;
        }
        context.redo.push(Redo { addr: start, len, at });
        // A range that is written twice is in `redo` twice, and in `pending` once.
        while let Some((start, end)) = context.pending.gap(start, end) {
            context.pending.push(Range { start, end, old: core::ptr::null() });
        }
        if planted(Bug::RedoAppliedEarly) {
            // SAFETY: as above.
            unsafe { core::ptr::copy(src, dst, len) };
        }
        Ok(())
    }

    /// Keeps what stands in a range of process memory; abort puts it back, commit and recovery do
    /// not touch it.
    ///
    /// # Errors
    /// [`TxError::Log`].
    ///
    /// # Safety
    /// `len` bytes from `ptr` are readable now, and writable until the transaction ends; they are
    /// no memory of a store.
    pub unsafe fn add_volatile(&mut self, ptr: *mut u8, len: usize) -> Result<(), TxError> {
        let context = &mut *self.context;
        let at = context.buffer.len();
        // SAFETY: readable by contract; the copy is settled.
        unsafe {
            let copy = keep_copy(&mut context.buffer, ptr, len);
            context.writer.append_range(
                Kind::Volatile,
                ptr as u64,
                len,
                copy,
                &mut |_, _, _| {},
            )?;
        }
        context.volatile.push(Volatile { addr: ptr as usize, len, at });
        Ok(())
    }

    /// Takes a block from `heap`; abort and crash give it back. Its contents need no logging. At
    /// `power` no fence here: what is written to the block is made durable by commit, and so is
    /// its mark; commit takes a fence more if nothing was fenced since (see the crate's
    /// documentation).
    ///
    /// # Errors
    /// [`TxError::ZeroSize`], [`TxError::Alloc`], [`TxError::Log`]. No entry of the log speaks of a
    /// block then.
    ///
    /// # Safety
    /// The heap outlives the transaction, is of the same store, and its pool is held for writing.
    #[inline]
    pub unsafe fn alloc(
        &mut self,
        heap: &dyn Heap,
        size: u64,
        align: u64,
        type_id: TypeId,
    ) -> Result<NonNull<u8>, TxError> {
        if size == 0 {
            return Err(TxError::ZeroSize { type_id });
        }
        if is_refused() {
            return Err(TxError::full(size, type_id));
        }
        let context = &mut *self.context;
        let writer = &mut context.writer;
        let ranges = &mut context.ranges;
        let is_power = context.persistence.is_power();
        let mut log_error = None;
        let block = heap.alloc_with(size, align, type_id, &mut |block: &Block| {
            // The undo entry stands before the mark is set, so that no crash of processes leaks the
            // block. All entries are there or none: one that says "clear this mark"
            // about a block that was not given out would clear the mark of whoever gets it next,
            // and one that says "fresh" would put that block's contents under the seal.
            // SAFETY: block and mark are the heap's.
            let logged = unsafe {
                if is_power {
                    let early = planted(Bug::MarkedWhenTaken);
                    let taking = if early { Taking::Allocated } else { Taking::Taken };
                    log_allocation(writer, ranges, block, size).map(|()| taking)
                } else {
                    let mask = (&raw const block.mark.mask).cast();
                    let word = block.mark.word.as_ptr() as u64;
                    writer.append(Kind::ClearBitsOnAbort, word, 8, mask).map(|_| Taking::Allocated)
                }
            };
            match logged {
                Ok(taking) => Ok(taking),
                Err(error) => {
                    log_error = Some(error);
                    Err(Cancelled)
                }
            }
        });
        let block = match (block, log_error) {
            (_, Some(error)) => return Err(TxError::Log(error)),
            (Err(error), None) => return Err(TxError::Alloc(error)),
            (Ok(block), None) => block,
        };
        let addr = block.addr;
        if !is_power {
            // No content is hashed or flushed at `process`; the range only says "needs no logging".
            let start = addr.as_ptr() as u64;
            ranges.push(Range { start, end: start + size, old: core::ptr::null() });
        }
        // SAFETY: the heap outlives the transaction (contract); the pointer is used only until it
        // ends.
        let heap = unsafe {
            core::mem::transmute::<NonNull<dyn Heap + '_>, NonNull<dyn Heap>>(NonNull::from(heap))
        };
        context.allocated.push(HeapBlock { heap, block });
        Ok(addr)
    }

    /// Gives a block back when the transaction commits. Until then it stays allocated and readable.
    /// At `power` commit takes a fence more if nothing was fenced since.
    ///
    /// # Errors
    /// [`TxError::Free`] if `addr` is not the start of an allocated block of `heap`;
    /// [`TxError::AlreadyFreed`]; [`TxError::Log`].
    ///
    /// # Safety
    /// As [`Transaction::alloc`]; nothing uses the block after commit.
    pub unsafe fn free(&mut self, heap: &dyn Heap, addr: u64) -> Result<(), TxError> {
        if addr == 0 {
            return Ok(());
        }
        let block = heap.find(addr)?;
        let context = &mut *self.context;
        if context.freed_at.covers(addr, addr + 1) {
            return Err(TxError::AlreadyFreed { addr });
        }
        // SAFETY: the mask is readable.
        unsafe {
            let mask = (&raw const block.mark.mask).cast();
            context.writer.append(
                Kind::ClearBitsOnCommit,
                block.mark.word.as_ptr() as u64,
                8,
                mask,
            )?;
        }
        if planted(Bug::FreedEarly) {
            heap.clear_mark(&block);
            heap.release(&block);
        }
        // SAFETY: as in `alloc`.
        let heap = unsafe {
            core::mem::transmute::<NonNull<dyn Heap + '_>, NonNull<dyn Heap>>(NonNull::from(heap))
        };
        context.freed.push(HeapBlock { heap, block });
        context.freed_at.push(Range { start: addr, end: addr + 1, old: core::ptr::null() });
        Ok(())
    }

    /// Whether all of a range is logged or freshly allocated by this transaction.
    #[must_use]
    pub fn is_covered(&self, addr: u64, len: u64) -> bool {
        self.context.ranges.gap(addr, addr.saturating_add(len)).is_none()
    }

    /// Commits: on return all changes are durable at the level of the medium.
    ///
    /// # Errors
    /// [`TxError::Log`] if the log has no room for the seal; then the transaction is aborted. With
    /// [`LogError::Lost`] the next opener decides whether it was committed.
    #[inline]
    pub fn commit(mut self) -> Result<(), TxError> {
        if self.context.writer.entries() != 0 {
            // An error drops `self`, which aborts.
            self.commit_logged()?;
        }
        core::mem::forget(self);
        Ok(())
    }

    fn commit_logged(&mut self) -> Result<(), TxError> {
        let context = &mut *self.context;
        reach(Step::CommitBegun);
        let power = context.persistence.is_power();
        let done = if power { commit_power(context) } else { commit_process(context) };
        if done.is_ok() || context.writer.entries() == 0 {
            context.clear();
        }
        done.map_err(TxError::Log)
    }

    /// Undoes everything, in reverse; gives allocations back; process memory logged with
    /// [`Transaction::add_volatile`] is put back too.
    pub fn abort(self) {
        drop(self);
    }
}

impl Drop for Transaction<'_> {
    fn drop(&mut self) {
        if self.context.writer.entries() != 0 {
            abort(self.context);
        }
    }
}

/// Most bytes that one fresh entry speaks of.
const FRESH_PART_MAX: u64 = 1 << 30;

/// Logs that a block is taken and what of it the seal covers: one entry, and more for what is
/// longer than one can speak of.
///
/// # Safety
/// The block is the heap's, and `size` at most its size.
#[inline]
unsafe fn log_allocation(
    writer: &mut cenote_log::LogWriter,
    ranges: &mut crate::ranges::RangeSet,
    block: &Block,
    size: u64,
) -> Result<(), LogError> {
    if size > FRESH_PART_MAX {
        writer.reserve(size.div_ceil(FRESH_PART_MAX) * entry_size(0))?;
    }
    let mark = AllocationMark { word: block.mark.word.as_ptr() as u64, mask: block.mark.mask };
    let (mut start, end) = (block.addr.as_ptr() as u64, block.addr.as_ptr() as u64 + size);
    let (mut kind, mut data) = (Kind::Allocation, (&raw const mark).cast());
    while start < end {
        let part = (end - start).min(FRESH_PART_MAX);
        // SAFETY: the mark is readable; fresh entries have no data.
        unsafe { writer.append(kind, start, part as u32, data)? };
        ranges.push(Range { start, end: start + part, old: core::ptr::null() });
        start += part;
        (kind, data) = (Kind::Fresh, core::ptr::null());
    }
    Ok(())
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
    }
    reach(Step::CommitEnds);
    context.writer.finish();
    refuse_lost(context)?;
    release(&context.freed);
    Ok(())
}

/// Fails if a page of a log was lost: what relies on the log must not happen.
#[inline(always)]
fn refuse_lost(context: &TxContext) -> Result<(), LogError> {
    if context.writer.is_lost() { Err(LogError::Lost) } else { Ok(()) }
}

fn commit_power(context: &mut TxContext) -> Result<(), LogError> {
    // A transaction may be finished lazily if nothing that its seal covers can change before this
    // log's next fence; a covered block that is given back could. (A further segment is written
    // only after a jump, whose fence makes the range durable.) Without need for redo and without
    // leave to be lazy a seal is of no use.
    let freed_is_covered = freed_is_covered(context) && !planted(Bug::LazyDespiteFreed);
    let lazy = !freed_is_covered && context.group.lazy_allowed();
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
    release(&context.freed);
    Ok(())
}

/// Gives every block that the transaction took or frees the mark that commit makes durable, and
/// flushes it. Not before the entries that take it back are durable: a line may reach memory at any
/// time after it was changed. For blocks that it took *and* frees there is nothing to do: they are
/// free on the medium all the time.
///
/// # Errors
/// A page of a log is lost: nothing has changed.
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
fn freed_is_covered(context: &TxContext) -> bool {
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

const _: () = assert!(ENTRY_HEADER_SIZE == 32);
