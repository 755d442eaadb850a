//! Large blocks: whole superblocks, one after the other.
//!
//! Allocation: a run is taken (nobody else can have it), descriptors are written, one flush, one fence; then the caller's `before`; then tails, head and geometry are
//! made known, and the mark is set: **the mark commits**. A crash before leaves superblocks that nothing points into. Free: whoever swaps the mark owns the run; the geometry is
//! withdrawn, the mark cleared, and the superblocks are free one by one.

use crate::anchor;
use crate::error::{AllocError, FreeError};
use crate::ground::Ground;
use crate::grow::Taken;
use crate::heap::{Block, Cancelled};
use crate::runs;
use crate::superblock::PuddleHeap;
use crate::traced::{TracedHeap, mark_of, pointer_to};
use cenote_layout::heap::{Descriptor, SUPERBLOCK_SIZE, SuperblockState, mark};
use cenote_layout::id::TypeId;
use core::sync::atomic::Ordering;

/// Superblocks that were taken and are used by nobody yet; dropped, they are free again.
struct Run<'a, G: Ground> {
    heap: &'a TracedHeap<G>,
    puddle: &'a PuddleHeap,
    number: u32,
    span: u32,
}

impl<G: Ground> Drop for Run<'_, G> {
    fn drop(&mut self) {
        self.heap.put_run(self.puddle, self.number, self.span);
    }
}

impl<G: Ground> TracedHeap<G> {
    /// Allocates whole superblocks.
    #[cold]
    #[inline(never)]
    pub(crate) fn alloc_large(
        &self,
        size: u64,
        align: u64,
        type_id: TypeId,
        before: &mut dyn FnMut(&Block) -> Result<(), Cancelled>,
    ) -> Result<Block, AllocError> {
        let size_max = self.ground.size_max();
        if size > size_max {
            return Err(AllocError::Size { size, size_max });
        }
        let Ok(span) = u32::try_from(size.div_ceil(SUPERBLOCK_SIZE).max(1)) else {
            return Err(AllocError::Size { size, size_max });
        };
        let align = align.div_ceil(SUPERBLOCK_SIZE) as u32;
        let (puddle, number) = {
            let lease = self.lease();
            self.take_in_orphans();
            loop {
                let taken = self.take_run(lease.cache, span, align);
                match taken.map_err(|e| e.for_block(size, type_id, size_max))? {
                    Taken::Run(puddle, number) => break (puddle, number),
                    Taken::Retry => {}
                }
            }
        };
        // Whatever happens before the mark is set, a panic of `before` included, gives the run back.
        let run = Run { heap: self, puddle, number, span };
        let bytes = u64::from(span) * SUPERBLOCK_SIZE;
        for k in 0..span {
            puddle.clear_outer_marks(number + k);
            let (state, field) = match k {
                0 => (SuperblockState::LargeHead, span),
                _ => (SuperblockState::LargeTail, k),
            };
            puddle.write_descriptor(number + k, &Descriptor::new(state, 0, bytes, type_id, u64::from(field)));
        }
        self.persist_descriptors(puddle, number, span);
        let mark = &puddle.class_marks(number, 0)[0];
        let addr = puddle.address(number);
        let block = Block { addr: pointer_to(addr), size: bytes, mark: mark_of(mark), type_id };
        if before(&block).is_err() {
            return Err(AllocError::Cancelled);
        }
        core::mem::forget(run);
        for k in (1..span).rev() {
            let tail = anchor::with(anchor::LARGE_TAIL, u64::from(k));
            puddle.line(number + k).anchor.store(tail, Ordering::Release);
        }
        let head = puddle.line(number);
        head.anchor.store(anchor::with(anchor::LARGE_HEAD, u64::from(span)), Ordering::Release);
        head.publish(SUPERBLOCK_SIZE);
        mark.store(mark::ALLOCATED, Ordering::Release);
        Ok(block)
    }

    /// Frees the large block at `addr` whose mark is `from`; or says why there is none.
    #[cold]
    pub(crate) fn free_large(&self, puddle: &PuddleHeap, addr: u64, from: u8) -> Result<(), FreeError> {
        let Some((line, number, within)) = puddle.line_at(addr) else {
            return Err(FreeError::NotInHeap { addr });
        };
        let head = line.anchor.load(Ordering::Acquire);
        if anchor::state(head) != anchor::LARGE_HEAD || within != 0 {
            return Err(self.explain(puddle, addr));
        }
        let mark = &puddle.class_marks(number, 0)[0];
        // Whoever changes the mark owns the run.
        if mark.compare_exchange(from, mark::CACHED, Ordering::AcqRel, Ordering::Relaxed).is_err() {
            return Err(FreeError::NotAllocated { addr });
        }
        line.hide();
        mark.store(mark::FREE, Ordering::Relaxed);
        self.put_run(puddle, number, anchor::value(head) as u32);
        Ok(())
    }

    /// Gives superblocks back that this thread owns.
    pub(crate) fn put_run(&self, puddle: &PuddleHeap, number: u32, span: u32) {
        runs::put(puddle, number, span);
        self.puddles.has_free(puddle.ordinal);
    }
}
