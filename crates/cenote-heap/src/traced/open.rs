//! Opens and closes a traced heap, and offers it as a [`Heap`].
//!
//! Opening looks at the root puddle only; later operations attach the others. Where processes share
//! the pool, the opener becomes a member under the pool's lock: [`super::members`] has the states
//! and the store that commits.

use super::cache::HeapCaches;
use super::guarding;
use super::members::{Locked, Members};
use super::mutex::lock;
use super::puddles::{Growth, Puddles};
use super::record::ReclaimSlot;
use super::resolve::{Resolved, change, is_out_of_use, mark_of, pointer_to};
use super::slow::Slow;
use super::state::{IDLE_WORDS, TracedHeap, next_number};
use crate::backing::Backing;
use crate::block::{Block, BlockInfo, Cancelled, Taking};
use crate::capability::Reclaim as _;
use crate::error::{AllocError, FreeError, OpenError, PlaceError, RootError};
use crate::heap::{Heap, address_on, place_on};
use crate::roots::RootWay;
use cenote_layout::heap::{RootEntry, RootSlot, mark};
use cenote_layout::id::TypeId;
use cenote_layout::pointer::RegionAddress;
use cenote_medium::planted::{Bug, planted};
use cenote_protect::HiddenWindow;
use core::ptr::{NonNull, null_mut};
use core::sync::atomic::{AtomicU8, AtomicU64, Ordering};
use std::sync::{Arc, Mutex};

impl<G: Backing> TracedHeap<G> {
    /// Opens the heap of a pool. Only the root puddle is looked at; others follow when they are
    /// needed. Where processes share the pool, this one becomes a member.
    ///
    /// After a loss of power, [`crate::Trace::recover`] must be called before anything else.
    ///
    /// # Errors
    /// The pool has no usable root puddle, its heap is open already, or in as many processes as can
    /// be.
    pub fn open(backing: G) -> Result<Self, OpenError> {
        let extents = backing.extents();
        if extents.first().is_none_or(|extent| extent.index != 0) {
            return Err(OpenError::NoPuddle);
        }
        let number = next_number();
        let root = extents[0];
        let hidden = guarding::window(&backing, extents.len() as u64);
        let mut heap = Self {
            cached: mark::CACHED,
            held: mark::HELD,
            writable: backing.is_writable(),
            members: None,
            known: AtomicU64::new(extents.len() as u64),
            number: AtomicU64::new(number),
            free_number: AtomicU64::new(number),
            reclaim: ReclaimSlot::default(),
            id: number,
            shared: Arc::new(HeapCaches::new(number)),
            puddles: Puddles::new(),
            idle: [const { AtomicU64::new(0) }; IDLE_WORDS],
            growth: Mutex::new(Growth::new(extents)),
            damage: Mutex::default(),
            trimming: Mutex::new(()),
            distance: hidden.as_ref().map_or(0, HiddenWindow::distance),
            hidden,
            slow: Slow {
                alloc: Self::alloc_slow,
                free: Self::free_slow,
                hold: Self::hold_slow,
                put_in_cache: Self::put_in_cache,
                puddle_at: Self::puddle_at_first_touch,
                close: Self::close,
            },
            backing,
        };
        let Some(sharing) = heap.backing.sharing().filter(|_| heap.writable) else {
            heap.attach_next()?;
            return Ok(heap);
        };
        let locked = Locked::new(sharing)?;
        let unmapped = |source| OpenError::Backing { index: root.index, addr: root.addr, source };
        heap.backing.map(&root).map_err(unmapped)?;
        // SAFETY: just mapped; it stays so as long as the backing lives, which the heap owns.
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
}

impl<G: Backing> TracedHeap<G> {
    /// What a heap does when it is dropped.
    fn close(&self) {
        self.end_reclaim();
        self.shared.renew(0);
        self.leave();
        for puddle in self.puddles.all() {
            if let Some(slot) = self.backing.slot(puddle.base) {
                // Not if it is another heap's: this one failed to open then.
                let own = Arc::as_ptr(&puddle).cast_mut().cast::<()>();
                let _ = slot.compare_exchange(own, null_mut(), Ordering::AcqRel, Ordering::Relaxed);
            }
        }
    }
}

impl<G: Backing> Drop for TracedHeap<G> {
    fn drop(&mut self) {
        (self.slow.close)(self);
    }
}

impl<G: Backing> Heap for TracedHeap<G> {
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
        // Where it is stored: a processor hands a store on to a load of the same address at once.
        if let Some((mark, bin)) = self.hot(addr)
            && self.at_store(mark).load(Ordering::Acquire) == mark::ALLOCATED
        {
            // SAFETY: a bin of this thread's cache, for blocks of this superblock's type and class.
            let (type_id, size) = unsafe { ((*bin).type_id, u64::from((*bin).block_size)) };
            let (addr, mark) = (pointer_to(addr), mark_of(mark));
            return Ok(Block { addr, size, mark, type_id, has_ticket: false });
        }
        let puddle = self.puddle_at(addr)?;
        match self.resolve(puddle, addr) {
            Resolved::Block { block, size, type_id, allocated: true, mark }
                if block == addr
                    && !puddle.line_at(addr).is_some_and(|(line, ..)| is_out_of_use(line)) =>
            {
                Ok(Block { addr: pointer_to(addr), size, mark, type_id, has_ticket: false })
            }
            _ => Err(self.explain(puddle, addr)),
        }
    }

    fn free(&self, addr: u64) -> Result<(), FreeError> {
        self.free_inline(addr)
    }

    unsafe fn set_mark(&self, block: &Block) {
        // SAFETY: the mark of a block of this heap (the caller's promise), in the mapping; all
        // accesses to marks in a running process are atomic bytes, or words of them.
        let mark = unsafe { AtomicU8::from_ptr(block.mark.byte().as_ptr()) };
        // One that its transaction has freed again is HELD, and stays so.
        change(self.at_store(mark), mark::TAKEN, mark::ALLOCATED);
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

    fn place(&self, addr: u64) -> Result<RegionAddress, PlaceError> {
        place_on(self, &self.backing, addr)
    }

    fn address(&self, place: &RegionAddress) -> Result<u64, PlaceError> {
        address_on(self, &self.backing, place)
    }

    fn root(&self, index: u16) -> Result<RootEntry, RootError> {
        self.read_root(index)
    }

    fn root_slot(&self, index: u16) -> Result<NonNull<RootSlot>, RootError> {
        self.slot_of_root(index)
    }

    fn root_way(&self) -> RootWay {
        RootWay { distance: self.distance, notes: None }
    }

    fn is_guarded(&self) -> bool {
        Self::is_guarded(self)
    }

    fn set_root(&self, index: u16, addr: u64, type_id: TypeId) -> Result<(), RootError> {
        self.write_root(index, addr, type_id)
    }
}

fn address(block: &Block) -> u64 {
    block.addr.as_ptr().expose_provenance() as u64
}
