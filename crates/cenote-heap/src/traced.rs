//! The traced heap (Ralloc): the fast path of allocation and free, and everything that asks about one address.
//!
//! Allocation: size to class (one table), type and class to bin (a small direct-mapped cache), lock the bin (one locked instruction), lowest clear bit
//! of one word of the bitmap, set it, unlock. Free: address to puddle (the store's table), to superblock (shift), to block (multiply), lock its bin, clear the bit.
//! Nothing on these paths is flushed or fenced, at any durability level: marks survive a crash of processes because they are in the
//! mapping, and tracing computes them again after a loss of power (RAL-1, RAL-3).

use crate::bin::{Bin, Freed};
use crate::class::class_of;
use crate::error::{AllocError, FreeError, GroundError, OpenError, RecoverError, RootError};
use crate::ground::Ground;
use crate::heap::{Block, BlockInfo, Cancelled, Heap, Mark};
use crate::large::Space;
use crate::report::{HeapReport, HeapStats, RecoveryReport};
use crate::superblock::{Entry, PuddleHeap, Use, split};
use crate::trace::Types;
use cenote_layout::SLOT_SIZE;
use cenote_layout::heap::{RootEntry, SUPERBLOCK_SIZE};
use cenote_layout::id::TypeId;
use cenote_medium::planted::{Bug, planted};
use cenote_store::PoolHandle;
use core::ptr::{NonNull, null_mut, with_exposed_provenance_mut};
use core::sync::atomic::{AtomicPtr, AtomicU64, Ordering};
use std::collections::HashMap;
use std::sync::{Mutex, MutexGuard, PoisonError, RwLock, RwLockReadGuard};

/// Most bytes of alignment.
pub const ALIGN_MAX: u64 = SLOT_SIZE;

const CACHE: usize = 256;

/// Numbers heaps, so that a puddle knows whose it is.
static NEXT_HEAP: AtomicU64 = AtomicU64::new(1);

/// The traced heap of one pool. Share it by reference or `Arc`; there is one per pool and process.
#[derive(Debug)]
pub struct TracedHeap<G: Ground = PoolHandle> {
    pub(crate) ground: G,
    /// Bins by a hash of type and class: a direct-mapped cache of `bins`.
    cache: Box<[AtomicPtr<Bin>; CACHE]>,
    pub(crate) number: u64,
    pub(crate) writable: bool,
    /// Bins are boxed and stay until the heap is dropped.
    pub(crate) bins: Mutex<HashMap<(TypeId, u8), Box<Bin>>>,
    pub(crate) space: Mutex<Space>,
    /// Held while a puddle is attached or taken, and by recovery.
    pub(crate) growth: Mutex<()>,
    /// Read-locked while superblocks are on their way between free space and bins outside a bin's lock; recovery and check lock it for writing.
    pub(crate) transit: RwLock<()>,
}

pub(crate) fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    // What a panicking thread left is whole: no code under these locks can stop half-way but by a failed assertion of this crate.
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

impl<G: Ground> TracedHeap<G> {
    pub(crate) fn in_transit(&self) -> RwLockReadGuard<'_, ()> {
        self.transit.read().unwrap_or_else(PoisonError::into_inner)
    }

    /// Opens the heap of a pool. Only the root puddle is looked at; others follow when they are needed.
    ///
    /// After a loss of power, [`Heap::recover`] must be called before anything else.
    ///
    /// # Errors
    /// The pool has no usable root puddle, or its heap is open already.
    pub fn open(ground: G) -> Result<Self, OpenError> {
        let plots = ground.plots();
        if plots.first().is_none_or(|plot| plot.index != 0) {
            return Err(OpenError::NoPuddle);
        }
        let writable = ground.is_writable();
        let heap = Self {
            cache: Box::new([const { AtomicPtr::new(null_mut()) }; CACHE]),
            number: NEXT_HEAP.fetch_add(1, Ordering::Relaxed),
            writable,
            bins: Mutex::new(HashMap::new()),
            space: Mutex::new(Space {
                bytes: plots.iter().map(|p| p.size).sum(),
                largest: plots.iter().map(|p| p.size).max().unwrap_or(0),
                pending: plots.into(),
                ..Space::default()
            }),
            growth: Mutex::new(()),
            transit: RwLock::new(()),
            ground,
        };
        heap.attach_next()?;
        Ok(heap)
    }

    /// What the heap stands on.
    pub fn ground(&self) -> &G {
        &self.ground
    }

    /// The bin for a type and class, made if it is not there.
    #[inline]
    pub(crate) fn bin(&self, type_id: TypeId, class: u8) -> &Bin {
        let hash = (type_id.0 ^ u64::from(class)).wrapping_mul(0x9e37_79b9_7f4a_7c15) >> 56;
        let cached = &self.cache[hash as usize % CACHE];
        // SAFETY: the cache holds null and pointers to bins of `bins`, which are boxed and stay until the heap is dropped.
        if let Some(bin) = unsafe { cached.load(Ordering::Acquire).as_ref() }
            && bin.type_id == type_id
            && bin.class == class
        {
            return bin;
        }
        self.find_bin(type_id, class, cached)
    }

    #[cold]
    fn find_bin(&self, type_id: TypeId, class: u8, cached: &AtomicPtr<Bin>) -> &Bin {
        let mut bins = lock(&self.bins);
        let bin = bins.entry((type_id, class)).or_insert_with(|| Box::new(Bin::new(type_id, class)));
        let pointer = core::ptr::from_ref::<Bin>(bin).cast_mut();
        cached.store(pointer, Ordering::Release);
        // SAFETY: boxed, never removed while the heap lives, only ever shared: the reference is good as long as `self`.
        unsafe { &*pointer }
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
        F: FnMut(&Block) -> Result<(), Cancelled>,
    {
        if !self.writable {
            return Err(AllocError::ReadOnly);
        }
        if !align.is_power_of_two() || align > ALIGN_MAX {
            return Err(AllocError::Align { align });
        }
        let Some(class) = class_of(size, align) else {
            return self.alloc_large(size, align, type_id, &mut before);
        };
        let bin = self.bin(type_id, class);
        loop {
            {
                let mut state = bin.lock();
                if let Some(chosen) = state.choose(bin) {
                    let block = Block {
                        addr: pointer_to(chosen.addr),
                        size: u64::from(bin.block_size),
                        mark: Mark { word: chosen.word, mask: chosen.mask },
                        type_id,
                    };
                    if before(&block).is_err() {
                        return Err(AllocError::Cancelled);
                    }
                    state.commit(&chosen);
                    return Ok(block);
                }
            }
            self.refill(bin).map_err(|e| e.for_block(size, type_id, self.ground.size_max()))?;
        }
    }

    /// The puddle that `addr` is in.
    #[inline]
    pub(crate) fn puddle_at(&self, addr: u64) -> Result<&PuddleHeap, FreeError> {
        if let Some(slot) = self.ground.slot(addr) {
            // SAFETY: a slot of this pool; what hangs there is this heap's and lives as long as `self`, or another heap's of the same pool,
            // which `attach` excludes.
            if let Some(puddle) = unsafe { PuddleHeap::from_slot(slot.load(Ordering::Acquire)) } {
                debug_assert_eq!(puddle.heap, self.number);
                return Ok(puddle);
            }
        }
        self.puddle_at_first_touch(addr)
    }

    #[cold]
    fn puddle_at_first_touch(&self, addr: u64) -> Result<&PuddleHeap, FreeError> {
        let Some(slot) = self.ground.slot(addr) else {
            return Err(match self.ground.is_foreign(addr) {
                true => FreeError::OtherPool { addr },
                false => FreeError::NotInHeap { addr },
            });
        };
        // Attach puddles in order until it is this one's turn. One that cannot be attached holds no block that anybody can name.
        loop {
            // SAFETY: as in `puddle_at`.
            if let Some(puddle) = unsafe { PuddleHeap::from_slot(slot.load(Ordering::Acquire)) } {
                return Ok(puddle);
            }
            if !matches!(self.attach_next(), Ok(true)) {
                // SAFETY: as in `puddle_at`. Another thread may have attached it a moment ago.
                return unsafe { PuddleHeap::from_slot(slot.load(Ordering::Acquire)) }
                    .ok_or(FreeError::NotInHeap { addr });
            }
        }
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
        self.puddle_at(addr).is_ok_and(|puddle| puddle.is_live(addr, type_id))
    }

    /// Frees the block that begins at `addr`; 0 is nothing.
    ///
    /// # Errors
    /// As [`Heap::free`].
    #[inline]
    pub fn free_inline(&self, addr: u64) -> Result<(), FreeError> {
        self.step(addr, Step::Free)
    }

    /// Frees, holds or releases the block at `addr`.
    #[inline]
    fn step(&self, addr: u64, step: Step) -> Result<(), FreeError> {
        if addr == 0 {
            return Ok(());
        }
        if !self.writable {
            return Err(FreeError::ReadOnly);
        }
        let puddle = self.puddle_at(addr)?;
        let Some((entry, within)) = puddle.entry_at(addr) else { return Err(FreeError::NotInHeap { addr }) };
        loop {
            let pointer = entry.bin();
            // SAFETY: bins live as long as the heap.
            let Some(bin) = (unsafe { pointer.as_ref() }) else { return self.step_large(puddle, addr, step) };
            let mut state = bin.lock();
            if entry.bin() != pointer {
                continue; // The superblock changed hands while we waited: somebody else freed its last block.
            }
            let (index, start) = split(entry.geometry(), within);
            if start != within || index >= bin.blocks as usize {
                drop(state);
                return Err(self.explain(puddle, addr));
            }
            let freed = match step {
                Step::Free => state.free(entry, index),
                Step::Hold => state.hold(entry, index),
                Step::Release => state.release(entry, index),
            };
            return match freed {
                Freed::Kept => Ok(()),
                Freed::Empty => {
                    self.retire(puddle, entry);
                    Ok(())
                }
                Freed::NotAllocated => Err(FreeError::NotAllocated { addr }),
            };
        }
    }

    /// Gives an empty small superblock back. Its descriptor stays as it is: without marks it says "free". The bin is locked, or the superblock out of it.
    pub(crate) fn retire(&self, puddle: &PuddleHeap, entry: &Entry) {
        entry.hide(Use::Free, 0);
        lock(&self.space).put(puddle.ordinal, puddle.number_of(entry), 1);
    }

    /// As `step`, for a large block; or says why `addr` is none.
    #[cold]
    fn step_large(&self, puddle: &PuddleHeap, addr: u64, step: Step) -> Result<(), FreeError> {
        let Some((entry, within)) = puddle.entry_at(addr) else { return Err(FreeError::NotInHeap { addr }) };
        let _transit = self.in_transit();
        if !matches!(entry.use_(), Use::LargeHead | Use::LargeHeld) || within != 0 {
            return Err(self.explain(puddle, addr));
        }
        let number = puddle.number_of(entry);
        // Whoever clears the mark, or ends the hold, owns the run.
        let owned = match step {
            Step::Release => entry.change_use(Use::LargeHeld, Use::Free),
            _ => puddle.bitmap_word(number, 0).fetch_and(!1, Ordering::AcqRel) & 1 != 0,
        };
        if !owned {
            return Err(FreeError::NotAllocated { addr });
        }
        if step == Step::Hold {
            entry.change_use(Use::LargeHead, Use::LargeHeld);
            return Ok(());
        }
        let span = entry.span.load(Ordering::Relaxed);
        for part in &puddle.entries[number as usize..(number + span) as usize] {
            part.hide(Use::Free, 0);
        }
        lock(&self.space).put(puddle.ordinal, number, span);
        Ok(())
    }

    /// Why no allocated block begins at `addr`, which is in `puddle`.
    #[cold]
    fn explain(&self, puddle: &PuddleHeap, addr: u64) -> FreeError {
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
        let Some((mut entry, within)) = puddle.entry_at(addr) else { return Resolved::Outside };
        if entry.use_() == Use::LargeTail {
            let distance = u64::from(entry.span.load(Ordering::Relaxed)) * SUPERBLOCK_SIZE;
            match puddle.entry_at(entry.base.wrapping_sub(distance)) {
                Some((head, _)) => entry = head,
                None => return Resolved::Nothing,
            }
        }
        let (index, block, size) = match entry.use_() {
            Use::Small => {
                let geometry = entry.geometry();
                let (index, start) = split(geometry, within);
                if start + (geometry >> 32) > SUPERBLOCK_SIZE {
                    return Resolved::Nothing;
                }
                (index, entry.base + start, geometry >> 32)
            }
            Use::LargeHead | Use::LargeHeld => {
                (0, entry.base, u64::from(entry.span.load(Ordering::Relaxed)) * SUPERBLOCK_SIZE)
            }
            Use::Damaged => return Resolved::Damaged,
            _ => return Resolved::Nothing,
        };
        let (word, mask) = (entry.word(index / 64), 1u64 << (index % 64));
        Resolved::Block {
            block,
            size,
            type_id: entry.type_id(),
            allocated: word.load(Ordering::Relaxed) & mask != 0,
            mark: Mark { word: NonNull::from(word), mask },
        }
    }
}

/// What is done with an allocated block: both halves of a free, or one.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Step {
    Free,
    /// Clear the mark, keep the place.
    Hold,
    /// Give the place of a held block out again.
    Release,
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
    NonNull::new(with_exposed_provenance_mut(addr as usize)).unwrap_or(NonNull::dangling())
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
        for attached in &lock(&self.space).puddles {
            if let Some(slot) = self.ground.slot(attached.puddle.base) {
                // Not if it is another heap's: this one failed to open then.
                let own = std::sync::Arc::as_ptr(&attached.puddle).cast_mut().cast::<()>();
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
        before: &mut dyn FnMut(&Block) -> Result<(), Cancelled>,
    ) -> Result<Block, AllocError> {
        self.alloc_inline(size, align, type_id, before)
    }

    fn alloc(&self, size: u64, align: u64, type_id: TypeId) -> Result<Block, AllocError> {
        self.alloc_inline(size, align, type_id, |_| Ok(()))
    }

    fn find(&self, addr: u64) -> Result<Block, FreeError> {
        let puddle = self.puddle_at(addr)?;
        match self.resolve(puddle, addr) {
            Resolved::Block { block, size, type_id, allocated: true, mark } if block == addr => {
                Ok(Block { addr: pointer_to(addr), size, mark, type_id })
            }
            _ => Err(self.explain(puddle, addr)),
        }
    }

    fn free(&self, addr: u64) -> Result<(), FreeError> {
        self.free_inline(addr)
    }

    fn clear_mark(&self, block: &Block) {
        // Refusals are the cases that are to be left alone.
        let step = if planted(Bug::FreedEarly) { Step::Free } else { Step::Hold };
        let _ = self.step(address(block), step);
    }

    fn release(&self, block: &Block) {
        let _ = self.step(address(block), Step::Release);
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
        self.check_heap(types)
    }

    fn stats(&self) -> Result<HeapStats, RecoverError> {
        self.count()
    }

    fn recover(&self, types: &dyn Types, roots: &[u64]) -> Result<RecoveryReport, RecoverError> {
        self.recover_heap(types, roots)
    }

    fn root(&self, index: u16) -> Result<RootEntry, RootError> {
        self.read_root(index)
    }

    fn root_slot(&self, index: u16) -> Result<NonNull<RootEntry>, RootError> {
        self.slot_of_root(index)
    }

    fn set_root(&self, index: u16, addr: u64, type_id: TypeId) -> Result<(), RootError> {
        self.write_root(index, addr, type_id)
    }
}
