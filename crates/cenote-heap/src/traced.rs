//! The traced heap (Ralloc): the fast path of allocation and free, and everything that asks about one address.
//!
//! Allocation: this thread's cache (one thread-local comparison), size to class (one table), type and class to bin (another), pop a block, store
//! its mark. Free: address to what this thread remembers of the superblock, compared with its descriptor; to the block's number (one multiplication), look at its mark, store it, push the block. Plain loads and stores, no
//! locked instruction; the mark is one byte, and it is the block's owner who writes it (`marks`). Nothing on these paths is flushed or fenced, at any durability level:
//! marks survive a crash of processes because they are in the mapping; what a loss of power leaves of them is the business of whoever takes a block in a transaction (crate `cenote-tx`), and tracing
//! computes the rest again (RAL-1, RAL-3).
//!
//! A block is allocated from the store of its mark on, and free from the next one on: **these stores commit**. What a crash finds in caches is free, and so is what is only TAKEN.

use crate::anchor;
use crate::cache::{self, Bin, Cache, Entry, Lease, Shared};
use crate::class::{class_of, class_size};
use crate::error::{AllocError, FreeError, GroundError, OpenError, RecoverError, RootError};
use crate::geometry::Geometry;
use crate::ground::Ground;
use crate::grow::{Growth, Puddles};
use crate::heap::{Block, BlockInfo, Cancelled, Heap, Mark, Taking};
use crate::large::IDLE_WORDS;
use crate::members::{Inside, Locked, Members};
use crate::reclaim::is_recording;
use crate::report::{HeapReport, HeapStats, RecoveryReport};
use crate::superblock::{Line, PuddleHeap};
use crate::trace::{TraceOptions, Types};
use cenote_layout::SLOT_SIZE;
use cenote_layout::heap::{RootEntry, RootSlot, SUPERBLOCK_SIZE, mark};
use cenote_layout::id::TypeId;
use cenote_medium::planted::{Bug, planted};
use cenote_store::PoolHandle;
use core::ptr::{NonNull, null_mut, with_exposed_provenance_mut};
use core::sync::atomic::{AtomicU8, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

/// Most bytes of alignment.
pub const ALIGN_MAX: u64 = SLOT_SIZE;

/// Numbers heaps, and the caches of one after the other: so that a puddle knows whose it is, and a thread which caches are dead.
static NEXT_NUMBER: AtomicU64 = AtomicU64::new(1);

pub(crate) fn next_number() -> u64 {
    NEXT_NUMBER.fetch_add(1, Ordering::Relaxed)
}

/// The traced heap of one pool. Share it by reference or `Arc`; there is one per pool and process. Several processes have one each on the same pool, if the ground says that they
/// may (`Ground::sharing`).
#[derive(Debug)]
pub struct TracedHeap<G: Ground = PoolHandle> {
    pub(crate) ground: G,
    /// Under this number threads find their caches. Recovery takes another one: then all caches are dead.
    pub(crate) number: AtomicU64,
    /// The same, by which frees find them; a number that no cache has while changes are recorded, see [`crate::reclaim`].
    pub(crate) free_number: AtomicU64,
    pub(crate) id: u64,
    /// What a mark says of a block that a cache of this process has, or one of its transactions holds.
    pub(crate) cached: u8,
    pub(crate) held: u8,
    pub(crate) writable: bool,
    pub(crate) members: Option<Members>,
    /// Puddles that this process knows, where others may take some.
    pub(crate) known: AtomicU64,
    pub(crate) shared: Arc<Shared>,
    pub(crate) puddles: Puddles,
    /// Lists in which idle runs of large blocks may be.
    pub(crate) idle: [AtomicU64; IDLE_WORDS],
    /// Locked while a puddle is attached or taken, and by recovery and check.
    pub(crate) growth: Mutex<Growth>,
    /// Held by whoever trims, a step at a time, and by recovery, which takes a superblock that is being trimmed for free. Before `growth`.
    pub(crate) trimming: Mutex<()>,
    pub(crate) reclaim: crate::reclaim::Slot,
}

pub(crate) fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    // What a panicking thread left is whole: no code under these locks can stop half-way but by a failed assertion of this crate.
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Gives a block that was chosen back to its bin unless it is forgotten: when the caller's code panics.
struct Chosen<'a, G: Ground> {
    heap: &'a TracedHeap<G>,
    entry: Entry,
    type_id: TypeId,
    class: u32,
}

impl<G: Ground> Drop for Chosen<'_, G> {
    #[cold]
    fn drop(&mut self) {
        self.heap.put_in_cache(self.entry, self.type_id, self.class);
    }
}

impl<G: Ground> TracedHeap<G> {
    /// Opens the heap of a pool. Only the root puddle is looked at; others follow when they are needed. Where processes share the pool, this one becomes a member.
    ///
    /// After a loss of power, [`Heap::recover`] must be called before anything else.
    ///
    /// # Errors
    /// The pool has no usable root puddle, its heap is open already, or in as many processes as can be.
    pub fn open(ground: G) -> Result<Self, OpenError> {
        let plots = ground.plots();
        if plots.first().is_none_or(|plot| plot.index != 0) {
            return Err(OpenError::NoPuddle);
        }
        let number = next_number();
        let root = plots[0];
        let mut heap = Self {
            cached: mark::CACHED,
            held: mark::HELD,
            writable: ground.is_writable(),
            members: None,
            known: AtomicU64::new(plots.len() as u64),
            number: AtomicU64::new(number),
            free_number: AtomicU64::new(number),
            reclaim: crate::reclaim::Slot::default(),
            id: number,
            shared: Arc::new(Shared::new(number)),
            puddles: Puddles::new(),
            idle: [const { AtomicU64::new(0) }; IDLE_WORDS],
            growth: Mutex::new(Growth::new(plots)),
            trimming: Mutex::new(()),
            ground,
        };
        let Some(sharing) = heap.ground.sharing().filter(|_| heap.writable) else {
            heap.attach_next()?;
            return Ok(heap);
        };
        let locked = Locked::new(sharing)?;
        let unmapped = |source| OpenError::Ground { index: root.index, addr: root.addr, source };
        heap.ground.map(&root).map_err(unmapped)?;
        // SAFETY: just mapped; it stays so as long as the ground lives, which the heap owns.
        if let Some(members) = unsafe { Members::join(sharing, root.addr, root.size) }? {
            (heap.cached, heap.held) = (mark::cached(members.number), mark::held(members.number));
            if members.puddles() == 0 {
                members.set_puddles(heap.known.load(Ordering::Relaxed));
            }
            heap.members = Some(members);
        }
        // What fails from here on leaves the pool as any member does.
        let attached = heap.attach_locked(&mut lock(&heap.growth), true);
        drop(locked);
        attached?;
        // Seats of dead members are not to run out. If it cannot be done now, it is done later.
        let _ = heap.sweep_dead();
        Ok(heap)
    }

    /// Goes inside the gate, if there is one: to where superblocks change hands.
    #[inline]
    pub(crate) fn enter(&self) -> Inside<'_> {
        match (&self.members, self.ground.sharing()) {
            (Some(members), Some(sharing)) => members.enter(sharing),
            _ => Inside::ALONE,
        }
    }

    /// What the heap stands on.
    pub fn ground(&self) -> &G {
        &self.ground
    }

    /// [`Heap::alloc_with`], for callers that know the heap's type: everything is inlined but the slow path.
    ///
    /// # Errors
    /// As [`Heap::alloc_with`].
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
            // SAFETY: this thread's cache of this heap, which is alive; its bins live as long, and nobody else uses them. The class is from the table.
            let (entry, block_size) = unsafe {
                let bin = cache.as_ref().guess(type_id, class);
                ((*bin).pop(type_id), (*bin).block_size)
            };
            if let Some(entry) = entry {
                return self.commit(entry, u32::from(class), block_size, type_id, before);
            }
        }
        self.alloc_slow(size, align, type_id, &mut before)
    }

    /// Allocates a block that was taken out of a bin.
    #[inline]
    fn commit<F>(
        &self,
        entry: Entry,
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
        let block = Block { addr, size, mark: mark_of(mark), type_id };
        debug_assert_eq!(mark.load(Ordering::Relaxed), self.cached);
        let chosen = Chosen { heap: self, entry, type_id, class };
        let Ok(taking) = before(&block) else { return Err(AllocError::Cancelled) };
        core::mem::forget(chosen);
        mark.store(taking as u8, Ordering::Release);
        Ok(block)
    }

    #[cold]
    #[inline(never)]
    fn alloc_slow(
        &self,
        size: u64,
        align: u64,
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
            // SAFETY: the lease's cache is this thread's, and so are its bins; no reference into it is held across the refill.
            unsafe {
                let bin = self.own_bin(lease.cache, type_id, class);
                loop {
                    if let Some(entry) = (*bin).pop(type_id) {
                        break (entry, (*bin).block_size);
                    }
                    self.refill(lease.cache, bin)
                        .map_err(|e| e.for_block(size, type_id, self.ground.size_max()))?;
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
    fn put_in_cache(&self, entry: Entry, type_id: TypeId, class: u32) {
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

    /// The puddle that `addr` is in.
    #[inline]
    pub(crate) fn puddle_at(&self, addr: u64) -> Result<&PuddleHeap, FreeError> {
        match self.known_puddle(addr) {
            Some(puddle) => Ok(puddle),
            None => self.puddle_at_first_touch(addr),
        }
    }

    /// The puddle that `addr` is in, if the heap has looked at it.
    #[inline]
    pub(crate) fn known_puddle(&self, addr: u64) -> Option<&PuddleHeap> {
        let slot = self.ground.slot(addr)?;
        // SAFETY: a slot of this pool; what hangs there is this heap's and lives as long as `self`, or another heap's of the same pool,
        // which `attach` excludes.
        let puddle = unsafe { PuddleHeap::from_slot(slot.load(Ordering::Acquire)) }?;
        debug_assert_eq!(puddle.heap, self.id);
        Some(puddle)
    }

    #[cold]
    fn puddle_at_first_touch(&self, addr: u64) -> Result<&PuddleHeap, FreeError> {
        if self.ground.slot(addr).is_none() && self.members.is_some() && !self.ground.is_foreign(addr) {
            // Another process may have taken a puddle there.
            self.refresh(&mut lock(&self.growth));
        }
        if self.ground.slot(addr).is_none() {
            return Err(match self.ground.is_foreign(addr) {
                true => FreeError::OtherPool { addr },
                false => FreeError::NotInHeap { addr },
            });
        }
        // One that cannot be attached holds no block that anybody can name. Another thread may have attached it a moment ago.
        let _ = self.attach_of(addr);
        self.known_puddle(addr).ok_or(FreeError::NotInHeap { addr })
    }

    /// Makes the heap look at the puddle that contains `addr`, so that its slot is filled.
    ///
    /// # Errors
    /// The address is in no puddle of this pool.
    pub fn touch(&self, addr: u64) -> Result<&PuddleHeap, FreeError> {
        self.puddle_at(addr)
    }

    /// Whether an allocated block of `type_id` begins at `addr`. The store's own lookup and [`PuddleHeap::is_live`] are the faster way.
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
    /// As [`Heap::free`].
    #[inline]
    pub fn free_inline(&self, addr: u64) -> Result<(), FreeError> {
        if self.free_fast(addr, mark::ALLOCATED) {
            return Ok(());
        }
        self.free_slow(addr, mark::ALLOCATED)
    }

    /// Makes the small block at `addr` CACHED, if its mark is `from`. False: it was not done.
    #[inline(always)]
    fn free_fast(&self, addr: u64, from: u8) -> bool {
        let Some((mark, bin)) = self.hot(addr) else { return false };
        // SAFETY: a bin of this thread's cache, which lives as long; nobody else uses it.
        unsafe { (*bin).push_if(Entry { addr, mark }, || change(mark, from, self.cached)) }
    }

    /// The mark of the small block that begins at `addr`, and this thread's bin for it: if it has freed blocks of the same superblock before, and no changes are recorded.
    #[inline(always)]
    fn hot(&self, addr: u64) -> Option<(&AtomicU8, *mut Bin)> {
        let cache = cache::current(self.free_number.load(Ordering::Relaxed))?;
        // SAFETY: this thread's cache of this heap, which is alive, as its puddles are.
        unsafe { cache.as_ref().hot(addr) }
    }

    /// A free in a superblock that this thread has not freed in lately, or into a full bin; or of what cannot be freed.
    #[cold]
    #[inline(never)]
    fn free_slow(&self, addr: u64, from: u8) -> Result<(), FreeError> {
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
        // SAFETY: the lease's cache is this thread's, and no other reference into it is held; its places are those of this heap's puddles.
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
        // SAFETY: the place of a puddle of this heap, which contains the offset; that of a superblock's first block too.
        let marks = unsafe { (place.mark(geometry, offset), place.mark(geometry, offset - within)) };
        let (Some(mark), Some(first)) = marks else { return Err(self.explain(self.puddle_at(addr)?, addr)) };
        if !holds_block(geometry, within) || class_size(class) != geometry.size() {
            return Err(self.explain(self.puddle_at(addr)?, addr));
        }
        if is_out_of_use(line) {
            return Err(FreeError::Damaged { addr });
        }
        if !change(mark, from, self.cached) {
            return Err(FreeError::NotAllocated { addr });
        }
        // SAFETY: the cache is this thread's; no reference into it is held across the spill.
        unsafe {
            let bin = self.own_bin(lease.cache, type_id, class);
            if (*bin).is_full() {
                self.spill(bin);
            }
            (*bin).push_if(Entry { addr, mark }, || true);
            // From here on the block keeps its superblock from changing hands; was all of it read in one life?
            if (line.geometry(), line.type_id()) == (geometry, type_id) {
                (*lease.cache).warm(addr - within, line, geometry, NonNull::from(first), bin);
            }
        }
        Ok(())
    }

    /// Clears the mark of the allocated block at `addr`, and keeps its place from being given out.
    #[inline]
    fn hold(&self, addr: u64) -> Result<(), FreeError> {
        match self.hot(addr) {
            Some((mark, _)) if change(mark, mark::ALLOCATED, self.held) => Ok(()),
            _ => self.hold_slow(addr),
        }
    }

    #[cold]
    #[inline(never)]
    fn hold_slow(&self, addr: u64) -> Result<(), FreeError> {
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
        match puddle.mark(line.geometry(), addr) {
            Some(_) if is_out_of_use(line) => Err(FreeError::Damaged { addr }),
            Some(mark)
                if change(mark, mark::ALLOCATED, self.held) || change(mark, mark::TAKEN, self.held) =>
            {
                Ok(())
            }
            _ => Err(self.explain(puddle, addr)),
        }
    }

    /// Lets the place of a block that this thread holds be given out again.
    #[inline]
    pub(crate) fn release_held(&self, addr: u64) -> bool {
        self.free_fast(addr, self.held) || self.free_slow(addr, self.held).is_ok()
    }

    /// Why no allocated block begins at `addr`, which is in `puddle`.
    #[cold]
    pub(crate) fn explain(&self, puddle: &PuddleHeap, addr: u64) -> FreeError {
        if puddle.line_at(addr).is_some_and(|(line, ..)| is_out_of_use(line)) {
            return FreeError::Damaged { addr };
        }
        match self.resolve(puddle, addr) {
            Resolved::Block { block, .. } if block != addr => FreeError::InsideBlock { addr, block },
            Resolved::Block { allocated: false, .. } => FreeError::NotAllocated { addr },
            Resolved::Damaged => FreeError::Damaged { addr },
            Resolved::Outside => FreeError::NotInHeap { addr },
            _ => FreeError::NotABlock { addr },
        }
    }

    /// The block that contains `addr`, allocated or not.
    pub(crate) fn resolve(&self, puddle: &PuddleHeap, addr: u64) -> Resolved {
        let Some((line, mut number, within)) = puddle.line_at(addr) else { return Resolved::Outside };
        let mut anchor = line.anchor.load(Ordering::Acquire);
        if anchor::state(anchor) == anchor::LARGE_TAIL {
            let distance = anchor::value(anchor);
            if distance == 0 || distance > u64::from(number) {
                return Resolved::Nothing;
            }
            number -= distance as u32;
            anchor = puddle.line(number).anchor.load(Ordering::Acquire);
            if anchor::state(anchor) != anchor::LARGE_HEAD || anchor::value(anchor) <= distance {
                return Resolved::Nothing;
            }
        }
        let line = puddle.line(number);
        let geometry = line.geometry();
        let (block, size) = match anchor::state(anchor) {
            anchor::DAMAGED if geometry.size() == 0 => return Resolved::Damaged,
            anchor::LARGE_HEAD if geometry.size() != 0 => (puddle.address(number), line.block_size()),
            _ if geometry.is_small() => {
                let (_, start) = geometry.split(within);
                if !holds_block(geometry, start) {
                    return Resolved::Nothing;
                }
                (puddle.address(number) + start, geometry.size())
            }
            _ => return Resolved::Nothing,
        };
        let Some(mark) = puddle.mark(geometry, block) else { return Resolved::Nothing };
        Resolved::Block {
            block,
            size,
            type_id: line.type_id(),
            allocated: mark::is_live(mark.load(Ordering::Acquire)),
            mark: mark_of(mark),
        }
    }
}

/// Whether no block of a superblock may be handed out or freed: its descriptor or its marks are
/// damaged.
#[inline]
fn is_out_of_use(line: &Line) -> bool {
    anchor::state(line.anchor.load(Ordering::Acquire)) == anchor::DAMAGED
}

/// Whether a block begins at `start`, a multiple of the block size.
fn holds_block(geometry: Geometry, start: u64) -> bool {
    let size = geometry.size();
    size != 0 && start / size < cenote_layout::heap::blocks_of(size)
}

/// Stores a mark if it is what the caller says. The block is the caller's, so nobody else changes the mark meanwhile; of two that both say so one is
/// wrong, and in debug builds always noticed.
#[inline(always)]
pub(crate) fn change(mark: &AtomicU8, from: u8, to: u8) -> bool {
    if cfg!(debug_assertions) {
        return mark.compare_exchange(from, to, Ordering::AcqRel, Ordering::Relaxed).is_ok();
    }
    if mark.load(Ordering::Relaxed) != from {
        return false;
    }
    mark.store(to, Ordering::Relaxed);
    true
}

/// A mark as transactions log it: the aligned word that holds it, and its byte of that.
#[inline]
pub(crate) fn mark_of(mark: &AtomicU8) -> Mark {
    let pointer = mark.as_ptr();
    let word = pointer.map_addr(|addr| addr & !7).cast::<AtomicU64>();
    Mark { word: NonNull::new(word).unwrap_or(NonNull::dangling()), mask: 0xff << (pointer.addr() % 8 * 8) }
}

fn address(block: &Block) -> u64 {
    block.addr.as_ptr().expose_provenance() as u64
}

/// What [`TracedHeap::resolve`] finds.
pub(crate) enum Resolved {
    Block { block: u64, size: u64, type_id: TypeId, allocated: bool, mark: Mark },
    Nothing,
    Damaged,
    Outside,
}

/// A pointer to a block; blocks are never at address 0.
#[inline]
pub(crate) fn pointer_to(addr: u64) -> NonNull<u8> {
    debug_assert_ne!(addr, 0);
    // SAFETY: no puddle lies at address 0, and `addr` is of a block in one.
    unsafe { NonNull::new_unchecked(with_exposed_provenance_mut(addr as usize)) }
}

/// Why the slow path found no superblock, before it is known for what.
#[derive(Debug)]
pub(crate) enum Shortage {
    Ground(GroundError),
    Puddle(OpenError),
    TooLarge,
}

impl Shortage {
    #[cold]
    pub(crate) fn for_block(self, size: u64, type_id: TypeId, size_max: u64) -> AllocError {
        match self {
            Self::Ground(source) => AllocError::Full { size, type_id, source },
            Self::Puddle(error) => AllocError::Puddle(error),
            Self::TooLarge => AllocError::Size { size, size_max },
        }
    }
}

impl<G: Ground> Drop for TracedHeap<G> {
    fn drop(&mut self) {
        self.end_reclaim();
        self.shared.renew(0);
        self.leave();
        for puddle in self.puddles.all() {
            if let Some(slot) = self.ground.slot(puddle.base) {
                // Not if it is another heap's: this one failed to open then.
                let own = Arc::as_ptr(&puddle).cast_mut().cast::<()>();
                let _ = slot.compare_exchange(own, null_mut(), Ordering::AcqRel, Ordering::Relaxed);
            }
        }
    }
}

impl<G: Ground> Heap for TracedHeap<G> {
    fn alloc_with(
        &self,
        size: u64,
        align: u64,
        type_id: TypeId,
        before: &mut dyn FnMut(&Block) -> Result<Taking, Cancelled>,
    ) -> Result<Block, AllocError> {
        self.alloc_inline(size, align, type_id, before)
    }

    fn alloc(&self, size: u64, align: u64, type_id: TypeId) -> Result<Block, AllocError> {
        self.alloc_inline(size, align, type_id, |_| Ok(Taking::Allocated))
    }

    fn find(&self, addr: u64) -> Result<Block, FreeError> {
        if let Some((mark, bin)) = self.hot(addr)
            && mark.load(Ordering::Acquire) == mark::ALLOCATED
        {
            // SAFETY: a bin of this thread's cache, for blocks of this superblock's type and class.
            let (type_id, size) = unsafe { ((*bin).type_id, u64::from((*bin).block_size)) };
            return Ok(Block { addr: pointer_to(addr), size, mark: mark_of(mark), type_id });
        }
        let puddle = self.puddle_at(addr)?;
        match self.resolve(puddle, addr) {
            Resolved::Block { block, size, type_id, allocated: true, mark }
                if block == addr && !puddle.line_at(addr).is_some_and(|(line, ..)| is_out_of_use(line)) =>
            {
                Ok(Block { addr: pointer_to(addr), size, mark, type_id })
            }
            _ => Err(self.explain(puddle, addr)),
        }
    }

    fn free(&self, addr: u64) -> Result<(), FreeError> {
        self.free_inline(addr)
    }

    fn set_mark(&self, block: &Block) {
        // SAFETY: the mark of a block of this heap, in the mapping; all accesses to marks in a running process are atomic bytes, or words of them.
        let mark = unsafe { AtomicU8::from_ptr(block.mark.byte().as_ptr()) };
        // One that its transaction has freed again is HELD, and stays so.
        change(mark, mark::TAKEN, mark::ALLOCATED);
    }

    fn clear_mark(&self, block: &Block) {
        // Refusals are the cases that are to be left alone.
        let _ = match planted(Bug::FreedEarly) {
            true => self.free_inline(address(block)),
            false => self.hold(address(block)),
        };
    }

    fn release(&self, block: &Block) {
        self.release_held(address(block));
    }

    fn owner(&self, addr: u64) -> Option<BlockInfo> {
        match self.resolve(self.puddle_at(addr).ok()?, addr) {
            Resolved::Block { block, size, type_id, allocated: true, .. } => {
                Some(BlockInfo { addr: block, size, type_id })
            }
            _ => None,
        }
    }

    fn walk(&self, visit: &mut dyn FnMut(BlockInfo)) -> Result<(), RecoverError> {
        self.walk_blocks(visit)
    }

    fn check(&self, types: Option<&dyn Types>) -> Result<HeapReport, RecoverError> {
        self.check_heap(types, &[], TraceOptions::default())
    }

    fn stats(&self) -> Result<HeapStats, RecoverError> {
        self.count()
    }

    fn recover(&self, types: &dyn Types, roots: &[u64]) -> Result<RecoveryReport, RecoverError> {
        self.recover_heap(types, roots, TraceOptions::default())
    }

    fn root(&self, index: u16) -> Result<RootEntry, RootError> {
        self.read_root(index)
    }

    fn root_slot(&self, index: u16) -> Result<NonNull<RootSlot>, RootError> {
        self.slot_of_root(index)
    }

    fn set_root(&self, index: u16, addr: u64, type_id: TypeId) -> Result<(), RootError> {
        self.write_root(index, addr, type_id)
    }
}
