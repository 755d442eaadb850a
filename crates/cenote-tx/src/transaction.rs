//! The steps of a transaction before its commit ([`crate::commit`]). The crate's documentation says
//! why the order is right.
//!
//! | step | logs | memory before commit |
//! | --- | --- | --- |
//! | [`Transaction::add`] | the old contents of a range | the caller changes it in place |
//! | [`Transaction::set`] | the new contents of a range | unchanged |
//! | [`Transaction::add_volatile`] | the old contents of process memory | the caller changes it |
//! | [`Transaction::alloc`] | the block's mark, and its part under the seal | the mark is `TAKEN` |
//! | [`Transaction::free`] | the block's mark | unchanged |

use crate::abort::abort;
use crate::commit::{commit_logged, refuse_lost};
use crate::context::{HeapBlock, Redo, StoredAt, TxContext, TxError, Volatile};
use crate::ranges::Range;
use cenote_heap::{Block, Cancelled, Heap, RootWay, Taking};
use cenote_layout::id::TypeId;
use cenote_layout::log::{AllocationMark, ENTRY_HEADER_SIZE, EntryKind, entry_size};
use cenote_log::LogError;
use cenote_medium::planted::{Bug, LoggedBug, is_refused, planted};
use cenote_protect::is_attended;
use cenote_sys::bytes::settle;
use std::ptr::NonNull;

/// Appends a copy of `len` bytes at `src` to `buffer`, settled. Returns the copy's address.
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
        debug_assert!(context.stores.is_empty());
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

    /// As [`Transaction::add`] of roots, which are read at `ptr` and stored as the heap says
    /// ([`Heap::root_way`]). The caller notes its stores ([`RootWay::note_stored`]); an abort notes
    /// its own.
    ///
    /// # Errors
    /// As [`Transaction::add`].
    ///
    /// # Safety
    /// As [`Transaction::add`]; `len` bytes at the way's distance are the same memory, and stay so
    /// until the transaction ends. Where it is not 0, stores go there alone.
    pub unsafe fn add_roots(
        &mut self,
        ptr: *const u8,
        len: usize,
        way: &RootWay,
    ) -> Result<(), TxError> {
        if way.distance != 0 {
            let start = ptr as u64;
            let end = start.saturating_add(len as u64);
            self.context.stored_at.push(StoredAt { start, end, way: way.clone() });
        }
        // SAFETY: passed on.
        unsafe { self.add(ptr, len) }
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
        match result {
            Ok(()) if logged && !planted(Bug::UndoNotFenced) => Ok(self.fence()?),
            Ok(()) => Ok(()),
            Err(error) => Err(self.failed(error, logged)),
        }
    }

    /// Of ranges that were not all logged: fences those that were. It takes the error, because code
    /// that may drop one is long, and programs compile what is inlined.
    #[cold]
    #[inline(never)]
    fn failed(&mut self, error: TxError, logged: bool) -> TxError {
        if logged
            && !planted(Bug::UndoNotFenced)
            && let Err(lost) = self.fence()
        {
            return lost.into();
        }
        error
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

    /// Logs ranges, up to the first that fails. Returns whether anything was logged.
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

    /// Logs what is not logged yet. Returns whether anything was logged.
    #[inline(always)]
    unsafe fn add_inline(&mut self, ptr: *const u8, len: usize) -> Result<bool, TxError> {
        let start = ptr as u64;
        if is_attended() {
            // SAFETY: passed on; no other thread writes to the range until the transaction ends.
            unsafe { self.context.tell(ptr, len) };
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
            let old = unsafe { writer.append_line(EntryKind::Undo, start, len as u32, ptr) };
            if let Some(old) = old {
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
        let mut from = start;
        while let Some((a, b)) = self.context.ranges.gap(from, end) {
            // SAFETY: a part of the range.
            unsafe { self.log_undo(a, b)? };
            from = b;
        }
        Ok(from != start)
    }

    /// Appends undo entries for a range that none covers. Entry first, then the range is believed
    /// to be logged.
    unsafe fn log_undo(&mut self, start: u64, end: u64) -> Result<(), TxError> {
        let context = &mut *self.context;
        let ranges = &mut context.ranges;
        // SAFETY: the caller promises a readable range; `add_inline` has settled it.
        unsafe {
            context.writer.append_range(
                EntryKind::Undo,
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

    fn refuse_pending_redo(&mut self, start: u64, end: u64) -> Result<(), TxError> {
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
        if is_attended() {
            // SAFETY: a writable range is readable; no other thread writes to it until the
            // transaction ends.
            unsafe { self.context.tell(dst, len) };
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
            context.writer.append_range(EntryKind::Redo, start, len, copy, &mut |_, _, _| {})?;
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
                EntryKind::Volatile,
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
            // block. All entries are there or none: if the block was not given out, an entry that
            // says "clear this mark" would clear the mark of its next owner, and one that says
            // "fresh" would put the next owner's contents under the seal.
            // SAFETY: block and mark are the heap's.
            let logged = unsafe {
                if is_power {
                    let early = planted(Bug::MarkedWhenTaken);
                    let taking = if early { Taking::Allocated } else { Taking::Taken };
                    log_allocation(writer, ranges, block, size).map(|()| taking)
                } else {
                    let mask = (&raw const block.mark.mask).cast();
                    let word = block.mark.word.as_ptr() as u64;
                    writer
                        .append(EntryKind::ClearBitsOnAbort, word, 8, mask)
                        .map(|_| Taking::Allocated)
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
        if is_attended() {
            context.stores.begin(addr.as_ptr().addr(), size as usize);
        }
        context.tickets |= block.has_ticket;
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
        // SAFETY: passed on.
        unsafe { self.free_inline(heap, addr) }
    }

    /// [`Transaction::free`], for callers that know the heap's type and are compiled once.
    ///
    /// # Errors
    /// As [`Transaction::free`].
    ///
    /// # Safety
    /// As [`Transaction::free`].
    #[inline(always)]
    pub unsafe fn free_inline(&mut self, heap: &dyn Heap, addr: u64) -> Result<(), TxError> {
        if addr == 0 {
            return Ok(());
        }
        let context = &mut *self.context;
        if context.freed_at.covers(addr, addr.saturating_add(1)) {
            return Err(TxError::AlreadyFreed { addr });
        }
        let block = heap.find_to_free(addr)?;
        // SAFETY: the mask is readable.
        let logged = unsafe {
            let mask = (&raw const block.mark.mask).cast();
            let word = block.mark.word.as_ptr() as u64;
            context.writer.append(EntryKind::ClearBitsOnCommit, word, 8, mask)
        };
        if let Err(error) = logged {
            self.free_refused(heap, &block);
            return Err(error.into());
        }
        context.tickets |= block.has_ticket;
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

    /// A block stays allocated after all. One that this transaction allocated is still its own.
    #[cold]
    #[inline(never)]
    fn free_refused(&self, heap: &dyn Heap, block: &Block) {
        let is_own = self.context.allocated.iter().any(|own| own.block.addr == block.addr);
        if !is_own || planted(Bug::Logged(LoggedBug::OwnTicketSettled)) {
            heap.settle(block);
        }
    }

    /// Whether all of a range is logged or freshly allocated by this transaction.
    #[must_use]
    pub fn is_covered(&mut self, addr: u64, len: u64) -> bool {
        self.context.ranges.gap(addr, addr.saturating_add(len)).is_none()
    }

    /// Commits: on return all changes are durable at the level of the medium.
    ///
    /// # Errors
    /// [`TxError::Log`] if the log has no room for the seal; then the transaction is aborted. With
    /// [`LogError::Lost`] the next opener decides whether it was committed.
    #[inline]
    pub fn commit(self) -> Result<(), TxError> {
        if self.context.writer.entries() != 0 {
            // An error drops `self`, which aborts.
            commit_logged(self.context)?;
        } else if !self.context.stores.is_empty() {
            self.context.stores.end();
        }
        core::mem::forget(self);
        Ok(())
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
        } else if !self.context.stores.is_empty() {
            // What it was told of was not logged: the log was full.
            self.context.stores.end();
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
    let (mut kind, mut data) = (EntryKind::Allocation, (&raw const mark).cast());
    while start < end {
        let part = (end - start).min(FRESH_PART_MAX);
        // SAFETY: the mark is readable; fresh entries have no data.
        unsafe { writer.append(kind, start, part as u32, data)? };
        ranges.push(Range { start, end: start + part, old: core::ptr::null() });
        start += part;
        (kind, data) = (EntryKind::Fresh, core::ptr::null());
    }
    Ok(())
}

const _: () = assert!(ENTRY_HEADER_SIZE == 32);
