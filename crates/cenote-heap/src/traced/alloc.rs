//! The fast path: allocation and free through a thread's cache.
//!
//! Allocation: this thread's cache (one thread-local comparison), size to class (one table), type
//! and class to bin (another), pop a block, store its mark. Free: compare what this thread
//! remembers of the superblock with its descriptor, find the block's number (one multiplication),
//! read its mark, store it, push the block. These are plain loads and stores without a locked
//! instruction: only a block's owner writes its mark (`marks`).
//!
//! Invariant: nothing on these paths is flushed or fenced, at any durability level. Marks survive a
//! crash of processes because they are in the mapping. After a loss of power, a transaction's log
//! (crate `cenote-tx`) and tracing decide (RAL-1, RAL-3).
//!
//! States of a block: *free* (in a cache, TAKEN, or held by a transaction after a free) and
//! *allocated*. **The store of its mark commits** each change. After a crash, blocks in caches and
//! TAKEN blocks are free.
use super::bin::{Bin, BinEntry};
use super::cache::{self, Cache, Lease};
use super::record::is_recording;
use super::resolve::{change, holds_block, is_out_of_use, mark_of, pointer_to};
use super::state::TracedHeap;
use crate::backing::Backing;
use crate::block::{Block, Cancelled, Taking};
use crate::class::{class_of, class_size};
use crate::error::{AllocError, FreeError};
use cenote_layout::SLOT_SIZE;
use cenote_layout::heap::{SUPERBLOCK_SIZE, mark};
use cenote_layout::id::TypeId;
use cenote_medium::planted::{Bug, GuardBug, planted};
use core::ptr::NonNull;
use core::sync::atomic::{AtomicU8, Ordering};

/// Most bytes of alignment.
pub const ALIGN_MAX: u64 = SLOT_SIZE;

/// Gives a block that was chosen back to its bin unless it is forgotten: when the caller's code
/// panics.
struct Chosen<'a, G: Backing> {
    heap: &'a TracedHeap<G>,
    entry: BinEntry,
    type_id: TypeId,
    class: u32,
}

impl<G: Backing> Drop for Chosen<'_, G> {
    #[cold]
    fn drop(&mut self) {
        (self.heap.slow.put_in_cache)(self.heap, self.entry, self.type_id, self.class);
    }
}

impl<G: Backing> TracedHeap<G> {
    /// [`crate::Heap::alloc_with`], for callers that know the heap's type: everything is inlined
    /// but the slow path.
    ///
    /// # Errors
    /// As [`crate::Heap::alloc_with`].
    #[inline]
    pub fn alloc_inline<F>(
        &self,
        size: u64,
        align: u64,
        type_id: TypeId,
        mut before: F,
    ) -> Result<Block, AllocError>
    where
        F: FnMut(&Block) -> Result<Taking, Cancelled>,
    {
        // Every class is aligned to 16. Caches are there only for heaps that may be written.
        if align.is_power_of_two()
            && align <= 16
            && let Some(cache) = cache::current(self.number.load(Ordering::Relaxed))
            && let Some(class) = class_of(size, 16)
        {
            // SAFETY: this thread's cache of this heap, which is alive; its bins live as long, and
            // no other thread uses them. The class is from the table.
            let (entry, block_size) = unsafe {
                let bin = cache.as_ref().guess(type_id, class);
                ((*bin).pop(type_id), (*bin).block_size)
            };
            if let Some(entry) = entry {
                return self.commit(entry, u32::from(class), block_size, type_id, before);
            }
        }
        (self.slow.alloc)(self, (size, align), type_id, &mut before)
    }

    /// Allocates a block that was taken out of a bin.
    #[inline]
    fn commit<F>(
        &self,
        entry: BinEntry,
        class: u32,
        block_size: u32,
        type_id: TypeId,
        mut before: F,
    ) -> Result<Block, AllocError>
    where
        F: FnMut(&Block) -> Result<Taking, Cancelled>,
    {
        // SAFETY: the mark of a block of this heap, in the mapping.
        let mark = unsafe { &*entry.mark };
        let (addr, size) = (pointer_to(entry.addr), u64::from(block_size));
        let block = Block { addr, size, mark: mark_of(mark), type_id, has_ticket: false };
        debug_assert_eq!(mark.load(Ordering::Relaxed), self.cached);
        let chosen = Chosen { heap: self, entry, type_id, class };
        let Ok(taking) = before(&block) else { return Err(AllocError::Cancelled) };
        core::mem::forget(chosen);
        if planted(Bug::Guard(GuardBug::MarkStoredOpenly)) {
            mark.store(taking as u8, Ordering::Release);
        }
        self.at_store(mark).store(taking as u8, Ordering::Release);
        Ok(block)
    }

    #[cold]
    #[inline(never)]
    pub(super) fn alloc_slow(
        &self,
        (size, align): (u64, u64),
        type_id: TypeId,
        before: &mut dyn FnMut(&Block) -> Result<Taking, Cancelled>,
    ) -> Result<Block, AllocError> {
        if !self.writable {
            return Err(AllocError::ReadOnly);
        }
        if !align.is_power_of_two() || align > ALIGN_MAX {
            return Err(AllocError::Align { align });
        }
        let Some(class) = class_of(size, align) else {
            return self.alloc_large(size, align, type_id, before);
        };
        let class = u32::from(class);
        let (entry, block_size) = {
            let lease = self.lease();
            // SAFETY: the lease's cache is this thread's, and so are its bins; no reference into it
            // is held across the refill.
            unsafe {
                let bin = self.own_bin(lease.cache, type_id, class);
                loop {
                    if let Some(entry) = (*bin).pop(type_id) {
                        break (entry, (*bin).block_size);
                    }
                    self.refill(lease.cache, bin)
                        .map_err(|e| e.for_block(size, type_id, self.backing.size_max()))?;
                }
            }
        };
        self.commit(entry, class, block_size, type_id, before)
    }

    /// This thread's cache.
    pub(crate) fn lease(&self) -> Lease {
        cache::lease(self.number.load(Ordering::Relaxed), &self.shared)
    }

    /// The bin of a cache for a type and class, made if it is not there.
    ///
    /// # Safety
    /// The cache is this thread's.
    unsafe fn own_bin(&self, cache: *mut Cache, type_id: TypeId, class: u32) -> *mut Bin {
        // SAFETY: the caller's; `list_of` does not reach caches.
        unsafe { (*cache).bin(type_id, class, || self.list_of(type_id, class)) }
    }

    /// Puts a CACHED block into this thread's cache.
    #[cold]
    #[inline(never)]
    pub(super) fn put_in_cache(&self, entry: BinEntry, type_id: TypeId, class: u32) {
        let lease = self.lease();
        // SAFETY: the cache is this thread's; no reference into it is held across the spill.
        unsafe {
            let bin = self.own_bin(lease.cache, type_id, class);
            if (*bin).is_full() {
                self.spill(bin);
            }
            (*bin).push_if(entry, || true);
        }
    }

    /// Whether an allocated block of `type_id` begins at `addr`. The store's own lookup and
    /// [`crate::PuddleHeap::is_live`] are the faster way.
    #[inline]
    pub fn is_live(&self, addr: u64, type_id: TypeId) -> bool {
        if let Some(cache) = cache::current(self.number.load(Ordering::Relaxed)) {
            // SAFETY: this thread's cache of this heap, which is alive, as its puddles are.
            unsafe {
                let place = cache.as_ref().place_of(addr);
                if place.line_at(addr).is_some() {
                    return place.live(addr, type_id).is_some();
                }
            }
        }
        self.puddle_at(addr).is_ok_and(|puddle| puddle.is_live(addr, type_id))
    }

    /// Frees the block that begins at `addr`; 0 is nothing.
    ///
    /// # Errors
    /// As [`crate::Heap::free`].
    #[inline]
    pub fn free_inline(&self, addr: u64) -> Result<(), FreeError> {
        if self.free_fast(addr, mark::ALLOCATED) {
            return Ok(());
        }
        (self.slow.free)(self, addr, mark::ALLOCATED)
    }

    /// Makes the small block at `addr` CACHED, if its mark is `from`. False: it was not done.
    #[inline(always)]
    fn free_fast(&self, addr: u64, from: u8) -> bool {
        let Some((mark, bin)) = self.hot(addr) else { return false };
        // SAFETY: a bin of this thread's cache, which lives as long; no other thread uses it.
        unsafe {
            (*bin)
                .push_if(BinEntry { addr, mark }, || change(self.at_store(mark), from, self.cached))
        }
    }

    /// The mark of the small block that begins at `addr`, and this thread's bin for it: if it has
    /// freed blocks of the same superblock before, and no changes are recorded.
    #[inline(always)]
    pub(super) fn hot(&self, addr: u64) -> Option<(&AtomicU8, *mut Bin)> {
        let cache = cache::current(self.free_number.load(Ordering::Relaxed))?;
        // SAFETY: this thread's cache of this heap, which is alive, as its puddles are.
        unsafe { cache.as_ref().hot(addr) }
    }

    /// A free in a superblock that this thread has not freed in lately, or into a full bin; or of
    /// what cannot be freed.
    #[cold]
    #[inline(never)]
    pub(super) fn free_slow(&self, addr: u64, from: u8) -> Result<(), FreeError> {
        if addr == 0 {
            return Ok(());
        }
        if !self.writable {
            return Err(FreeError::ReadOnly);
        }
        if from == mark::ALLOCATED && is_recording() {
            self.puddle_at(addr)?;
            self.record_freed(addr);
        }
        let lease = self.lease();
        // SAFETY: the lease's cache is this thread's, and no other reference into it is held; its
        // places are those of this heap's puddles.
        let known = unsafe {
            let place = (*lease.cache).place_of(addr);
            place.line_at(addr).map(|(line, offset)| (*place, line, offset))
        };
        let (place, line, offset) = match known {
            Some(known) => known,
            None => {
                let puddle = self.puddle_at(addr)?;
                // SAFETY: as above; the puddle is of this heap and lives as long.
                unsafe {
                    (*lease.cache).remember(addr, puddle);
                    let Some((line, offset)) = puddle.place().line_at(addr) else {
                        return Err(FreeError::NotInHeap { addr });
                    };
                    (puddle.place(), line, offset)
                }
            }
        };
        let geometry = line.geometry();
        if !geometry.is_small() {
            return self.free_large(self.puddle_at(addr)?, addr, from);
        }
        let (type_id, class) = (line.type_id(), line.class());
        let within = offset % SUPERBLOCK_SIZE;
        // SAFETY: the place of a puddle of this heap, which contains the offset; that of a
        // superblock's first block too.
        let marks =
            unsafe { (place.mark(geometry, offset), place.mark(geometry, offset - within)) };
        let (Some(mark), Some(first)) = marks else {
            return Err(self.explain(self.puddle_at(addr)?, addr));
        };
        if !holds_block(geometry, within) || class_size(class) != geometry.size() {
            return Err(self.explain(self.puddle_at(addr)?, addr));
        }
        if is_out_of_use(line) {
            return Err(FreeError::Damaged { addr });
        }
        if !change(self.at_store(mark), from, self.cached) {
            return Err(FreeError::NotAllocated { addr });
        }
        // SAFETY: the cache is this thread's; no reference into it is held across the spill.
        unsafe {
            let bin = self.own_bin(lease.cache, type_id, class);
            if (*bin).is_full() {
                self.spill(bin);
            }
            (*bin).push_if(BinEntry { addr, mark }, || true);
            // From here on the block keeps its superblock from changing hands; was all of it read
            // in one life?
            if (line.geometry(), line.type_id()) == (geometry, type_id) {
                (*lease.cache).warm(addr - within, line, geometry, NonNull::from(first), bin);
            }
        }
        Ok(())
    }

    /// Clears the mark of the allocated block at `addr`, and keeps its place from being given out.
    #[inline]
    pub(super) fn hold(&self, addr: u64) -> Result<(), FreeError> {
        match self.hot(addr) {
            Some((mark, _)) if change(self.at_store(mark), mark::ALLOCATED, self.held) => Ok(()),
            _ => (self.slow.hold)(self, addr),
        }
    }

    #[cold]
    #[inline(never)]
    pub(super) fn hold_slow(&self, addr: u64) -> Result<(), FreeError> {
        if !self.writable {
            return Err(FreeError::ReadOnly);
        }
        let puddle = self.puddle_at(addr)?;
        if is_recording() {
            self.record_freed(addr);
        }
        let Some((line, _, _)) = puddle.line_at(addr) else {
            return Err(FreeError::NotInHeap { addr });
        };
        match puddle.mark(line.geometry(), addr).map(|mark| self.at_store(mark)) {
            Some(_) if is_out_of_use(line) => Err(FreeError::Damaged { addr }),
            Some(mark)
                if change(mark, mark::ALLOCATED, self.held)
                    || change(mark, mark::TAKEN, self.held) =>
            {
                Ok(())
            }
            _ => Err(self.explain(puddle, addr)),
        }
    }

    /// Lets the place of a block that this thread holds be given out again.
    #[inline]
    pub(crate) fn release_held(&self, addr: u64) -> bool {
        self.free_fast(addr, self.held) || (self.slow.free)(self, addr, self.held).is_ok()
    }
}
