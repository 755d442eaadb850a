//! Large blocks: each has superblocks of its own, one after the other. A block is rounded up to an
//! eighth of a power of two; the rest of its last superblock is given back to the file system where
//! that is cheap ([`super::trim`]).
//!
//! Allocation: a run is taken (no other thread can have it), descriptors are written, one flush,
//! one fence; then the caller's `before`; then tails, head and geometry are made known, and the
//! mark is set: **the mark commits**. A crash before leaves superblocks that nothing points into.
//! Free: the thread that swaps the mark owns the run; the geometry is withdrawn, the mark cleared,
//! and the superblocks are free one by one.
//!
//! **Idle runs.** A run of up to [`IDLE_SPAN_MAX`] superblocks stays together when its block is
//! freed: anchors, geometry and descriptors say what they said, the mark is FREE, and the head is
//! in the list of its type and size, or in the hands of the thread that popped it. The next block
//! of that type and size takes it from there, and writes nothing but the mark: no descriptor, no
//! flush, no fence. The states, and what a crash makes of them:
//!
//! 1. the block is allocated: as above;
//! 2. its mark is not ALLOCATED, **which this one store decides**: the descriptors of a large block
//!    without a mark describe free space, whether the run is in a list, in a thread's hands, or
//!    given out again and not yet marked. Adoption makes it free superblocks, tracing does too:
//!    lists are not believed by either;
//! 3. it is marked again, as a block of the same type and size: the descriptors that say so are
//!    durable since the fence before its first block was given out, and no thread has written to
//!    them, because only the taker of a free run writes descriptors and this run was never free.
//!
//! Idle runs are no free space, so they must not make a pool grow, nor keep neighbours from a
//! longer run. So the thread that takes free superblocks makes all idle runs free
//! ([`TracedHeap::release_idle`]): first, if more than one superblock in 64 is in such runs; else
//! if it finds no free ones. So a pool takes hardly more space for them, and never grows for their
//! sake.

use super::anchor;
use super::members::Inside;
use super::puddles::Shortage;
use super::puddles::{Growth, TakenSuperblocks, Tries};
use super::resolve::{mark_of, pointer_to};
use super::runs;
use super::state::{IDLE_WORDS, TracedHeap};
use super::superblock::PuddleHeap;
use crate::backing::Backing;
use crate::block::{Block, Cancelled, Taking};
use crate::error::{AllocError, FreeError};
use cenote_layout::heap::{Descriptor, SUPERBLOCK_SIZE, SuperblockState, large_size, mark};
use cenote_layout::id::TypeId;
use cenote_medium::planted::{Bug, Step, planted, reach};
use core::sync::atomic::Ordering;

/// Most superblocks of a run that stays together when its block is freed.
pub(crate) const IDLE_SPAN_MAX: u32 = 16;

/// What lists call large blocks of so many bytes, of those that stay together.
pub(crate) const fn large_kind(bytes: u64) -> u32 {
    1 << 31 | (bytes / 4096) as u32
}

/// A run that this thread has, and no thread uses yet. A drop makes it what it was.
struct LargeRun<'a, G: Backing> {
    heap: &'a TracedHeap<G>,
    puddle: &'a PuddleHeap,
    number: u32,
    span: u32,
    /// Out of free superblocks; else it was idle.
    made: bool,
}

impl<G: Backing> Drop for LargeRun<'_, G> {
    fn drop(&mut self) {
        if self.made {
            self.heap.put_run(self.puddle, self.number, self.span);
        } else {
            self.heap.push_idle(self.puddle, self.number);
        }
    }
}

impl<G: Backing> TracedHeap<G> {
    /// Allocates whole superblocks.
    #[cold]
    #[inline(never)]
    pub(crate) fn alloc_large(
        &self,
        size: u64,
        align: u64,
        type_id: TypeId,
        before: &mut dyn FnMut(&Block) -> Result<Taking, Cancelled>,
    ) -> Result<Block, AllocError> {
        let size_max = self.backing.size_max();
        if size > size_max {
            return Err(AllocError::Size { size, size_max });
        }
        let too_large = AllocError::Size { size, size_max };
        let Some(bytes) = large_size(size) else { return Err(too_large) };
        let Ok(span) = u32::try_from(bytes.div_ceil(SUPERBLOCK_SIZE)) else {
            return Err(too_large);
        };
        let entered = self.enter().map_err(Shortage::Backing);
        let mut inside = entered.map_err(|e| e.for_block(size, type_id, size_max))?;
        let idle = if align <= SUPERBLOCK_SIZE { self.pop_idle(bytes, type_id) } else { None };
        // If this ends before the mark is set, also by a panic of `before`, the run is given back.
        let run = match idle {
            Some(run) => run,
            None => {
                let align = align.div_ceil(SUPERBLOCK_SIZE) as u32;
                let made = self.make_run(&mut inside, bytes, align, type_id);
                made.map_err(|e| e.for_block(size, type_id, size_max))?
            }
        };
        let LargeRun { puddle, number, made, .. } = run;
        let mark = &puddle.class_marks(number, 0)[0];
        let addr = puddle.address(number);
        let at = pointer_to(addr);
        let logged = mark_of(puddle.read_at(mark));
        let block = Block { addr: at, size: bytes, mark: logged, type_id, has_ticket: false };
        let Ok(taking) = before(&block) else { return Err(AllocError::Cancelled) };
        core::mem::forget(run);
        if made {
            for k in (1..span).rev() {
                let tail = anchor::with(anchor::LARGE_TAIL, u64::from(k));
                puddle.line(number + k).anchor.store(tail, Ordering::Release);
            }
            reach(Step::LargeTails);
            let head = puddle.line(number);
            head.anchor.store(anchor::with(anchor::LARGE_HEAD, u64::from(span)), Ordering::Release);
            reach(Step::LargeHead);
            head.publish(SUPERBLOCK_SIZE);
        }
        reach(Step::LargeKnown);
        mark.store(taking as u8, Ordering::Release);
        Ok(block)
    }

    /// Takes free superblocks and makes them a large block, whose descriptors are durable and which
    /// is known to no other thread. The caller is inside the gate, and is so afterwards.
    fn make_run<'a>(
        &'a self,
        inside: &mut Inside<'a>,
        bytes: u64,
        align: u32,
        type_id: TypeId,
    ) -> Result<LargeRun<'a, G>, Shortage> {
        let span = bytes.div_ceil(SUPERBLOCK_SIZE) as u32;
        let (puddle, number) = {
            let lease = self.lease();
            let mut tries = Tries::default();
            self.take_in_orphans();
            loop {
                match self.take_run(lease.cache, span, align, tries)? {
                    TakenSuperblocks::Run(puddle, number) => break (puddle, number),
                    TakenSuperblocks::Retry => {}
                    TakenSuperblocks::Outside(errand) => {
                        drop(core::mem::replace(inside, Inside::ALONE));
                        self.step_out(errand, &mut tries).map_err(Shortage::Puddle)?;
                        *inside = self.enter().map_err(Shortage::Backing)?;
                    }
                }
            }
        };
        let run = LargeRun { heap: self, puddle, number, span, made: true };
        let cut = bytes < u64::from(span) * SUPERBLOCK_SIZE && self.cuts();
        if cut && planted(Bug::CutBeforeDescriptor) {
            self.cut(puddle, number, span, bytes);
        }
        let mark = &puddle.class_marks(number, 0)[0];
        if planted(Bug::MarkedBeforeDescribed) {
            mark.store(mark::ALLOCATED, Ordering::Release);
        }
        for k in 0..span {
            if k != 0 {
                if planted(Bug::TailsNotDescribed) {
                    break;
                }
                puddle.clear_outer_marks(number + k);
            } else if !planted(Bug::MarkedBeforeDescribed) {
                puddle.clear_outer_marks(number);
            }
            let (state, field) = match (k, cut) {
                (0, false) => (SuperblockState::LargeHead, span),
                (0, true) => (SuperblockState::LargeHeadCut, span),
                (_, false) => (SuperblockState::LargeTail, k),
                (_, true) => (SuperblockState::LargeTailCut, k),
            };
            puddle.write_descriptor(
                number + k,
                &Descriptor::new(state, 0, bytes, type_id, u64::from(field)),
            );
        }
        self.persist_descriptors(puddle, number, span);
        reach(Step::LargeDescribed);
        if cut {
            self.cut(puddle, number, span, bytes);
        }
        Ok(run)
    }

    /// Takes an idle run.
    fn pop_idle(&self, bytes: u64, type_id: TypeId) -> Option<LargeRun<'_, G>> {
        let span = bytes.div_ceil(SUPERBLOCK_SIZE) as u32;
        if span > IDLE_SPAN_MAX {
            return None;
        }
        let class = large_kind(bytes);
        let (puddle, number) = self.pop(self.list_of(type_id, class), (type_id, class))?;
        self.puddles.idle.fetch_sub(span.into(), Ordering::Relaxed);
        Some(LargeRun { heap: self, puddle, number, span, made: false })
    }

    /// Makes a run idle: this thread has it, and its mark is FREE.
    fn push_idle(&self, puddle: &PuddleHeap, number: u32) {
        let line = puddle.line(number);
        let list = self.list_of(line.type_id(), large_kind(line.block_size()));
        self.push_to(list, puddle, number);
        let span = line.block_size().div_ceil(SUPERBLOCK_SIZE) as i64;
        self.puddles.idle.fetch_add(span, Ordering::Relaxed);
        // After the push: a bit that is missing hides the run from threads that need space until
        // the next scavenging only, one that is set too much costs a look.
        let (word, bit) = (&self.idle[list as usize / 64 % IDLE_WORDS], 1 << (list % 64));
        if word.load(Ordering::Relaxed) & bit == 0 {
            word.fetch_or(bit, Ordering::Release);
        }
    }

    /// Makes all idle runs free superblocks. Growth is locked by the caller, so that the thread
    /// that finds no space waits until it is done.
    pub(crate) fn release_idle(&self, growth: &mut Growth) {
        self.puddles.idle.store(0, Ordering::Relaxed);
        for (word, bits) in self.idle.iter().enumerate() {
            let mut bits =
                if bits.load(Ordering::Relaxed) == 0 { 0 } else { bits.swap(0, Ordering::Acquire) };
            while bits != 0 {
                let list = word * 64 + bits.trailing_zeros() as usize;
                bits &= bits - 1;
                self.take_apart(growth, list, |puddle, number| self.retire_large(puddle, number));
            }
        }
    }

    /// Whether there may be idle runs.
    pub(crate) fn has_idle(&self) -> bool {
        self.idle.iter().any(|bits| bits.load(Ordering::Relaxed) != 0)
    }

    /// Makes an idle run that is in our hands free superblocks; false if it is something else.
    pub(crate) fn retire_large(&self, puddle: &PuddleHeap, number: u32) -> bool {
        let line = puddle.line(number);
        let head = line.anchor.load(Ordering::Acquire);
        if anchor::state(head) != anchor::LARGE_HEAD {
            return false;
        }
        line.hide();
        self.put_run(puddle, number, anchor::value(head) as u32);
        true
    }

    /// Frees the large block at `addr` whose mark is `from`; or says why there is none.
    #[cold]
    pub(crate) fn free_large(
        &self,
        puddle: &PuddleHeap,
        addr: u64,
        from: u8,
    ) -> Result<(), FreeError> {
        let Some((line, number, within)) = puddle.line_at(addr) else {
            return Err(FreeError::NotInHeap { addr });
        };
        let head = line.anchor.load(Ordering::Acquire);
        if anchor::state(head) != anchor::LARGE_HEAD || within != 0 {
            return Err(self.explain(puddle, addr));
        }
        let mark = &puddle.class_marks(number, 0)[0];
        // Else it stays this member's until a sweep: it does nothing more that counts.
        let Ok(_inside) = self.enter() else { return Ok(()) };
        // The thread that changes the mark owns the run.
        if mark.compare_exchange(from, self.cached, Ordering::AcqRel, Ordering::Relaxed).is_err() {
            return Err(FreeError::NotAllocated { addr });
        }
        reach(Step::LargeFreed);
        let span = anchor::value(head) as u32;
        if span <= IDLE_SPAN_MAX {
            mark.store(mark::FREE, Ordering::Release);
            reach(Step::LargeIdle);
            self.push_idle(puddle, number);
        } else {
            line.hide();
            mark.store(mark::FREE, Ordering::Relaxed);
            reach(Step::LargeUnmarked);
            self.put_run(puddle, number, span);
        }
        Ok(())
    }

    /// Gives superblocks back that this thread owns.
    pub(crate) fn put_run(&self, puddle: &PuddleHeap, number: u32, span: u32) {
        runs::put(puddle, number, span);
        self.puddles.has_free(puddle.ordinal);
    }
}
