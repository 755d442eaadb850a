//! The wear heap as a pool's allocator ([`Heap`]): marks for the logs of transactions, and roots.
//!
//! The mark of a block is the commit bits of its header ([`cenote_layout::wear`]): all ones while
//! it is allocated, all zeros when it is given back. So a log, which sets or clears bits of one
//! word and knows no heaps, takes an allocation or a free back, or makes it so.
//!
//! *Allocation.* `before` writes the entry that clears the mark. A fence makes it durable, then the
//! header is stored, with its mark, and made durable: for a block that says "allocated" on media,
//! either its transaction was committed, or a durable entry clears the mark. A log that clears it
//! where the header is not there changes a slot of an earlier version, which says nothing.
//!
//! *Free.* The entry clears the mark at commit; an abort leaves it. Between the two,
//! [`Heap::clear_mark`] stores it, durably, before the log is finished. So one line is written once
//! by an allocation and once by a free or an abort, with a transaction or without.
//!
//! *End.* A log that is not durably finished stores marks again. So blocks have tickets: their
//! transaction is never finished lazily. A block that was given back waits from then on; since when
//! is not on media, so it waits anew after an open.

use super::free::block_at;
use super::heap::start_of;
use super::lists::FreeRange;
use super::state::{WaitingBlock, WearHeap, WearState};
use crate::backing::Backing;
use crate::block::{Block, BlockInfo, Cancelled, Mark, Taking};
use crate::error::{AllocError, FreeError, PlaceError, RootError};
use crate::heap::{Heap, address_on, place_on};
use crate::roots::{self, RootWay};
use cenote_layout::heap::{ROOT_COUNT, RootEntry, RootSlot};
use cenote_layout::id::TypeId;
use cenote_layout::pointer::RegionAddress;
use cenote_layout::wear::{COMMIT_BITS, WEAR_LINE, WearHeader, WearRecord};
use core::ptr::{NonNull, with_exposed_provenance_mut};
use core::sync::atomic::AtomicU64;

/// A block of the heap with its mark; `None`: it has no header that is right.
fn block_of(info: &BlockInfo, word: Option<NonNull<AtomicU64>>, has_ticket: bool) -> Option<Block> {
    let addr = NonNull::new(with_exposed_provenance_mut(info.addr as usize))?;
    let mark = Mark { word: word?, mask: COMMIT_BITS };
    Some(Block { addr, size: info.size, mark, type_id: info.type_id, has_ticket })
}

impl<G: Backing> WearHeap<G> {
    /// Calls `act` with the puddle and the first line of an allocated block.
    fn with_block<T>(
        &self,
        block: &Block,
        act: impl FnOnce(&mut WearState, (usize, u32)) -> Option<T>,
    ) -> Option<T> {
        let addr = block.addr.as_ptr().expose_provenance() as u64;
        let (mut state, place) = self.scanned_at(addr);
        let done = place.ok().and_then(|(puddle, line)| {
            let start = state.puddles.get(puddle)?.start_of(line)?;
            let begins = start + 1 == line && addr.is_multiple_of(WEAR_LINE);
            begins.then(|| act(&mut state, (puddle, start)))?
        });
        self.end(state);
        done
    }

    fn find_with(&self, addr: u64, has_ticket: bool) -> Result<Block, FreeError> {
        let (mut state, place) = self.scanned_at(addr);
        let found = place.and_then(|(puddle, line)| {
            let start = block_at(&state, (puddle, line), addr)?;
            let info = self.info(&mut state, puddle, start);
            let word = state.puddles.get(puddle).and_then(|at| at.lines.commit_word(start, false));
            let block = info.and_then(|info| block_of(&info, word, has_ticket));
            let block = block.ok_or(FreeError::DamagedHeader { addr })?;
            if has_ticket {
                state.in_transaction.insert((puddle, start));
            }
            Ok(block)
        });
        self.end(state);
        found
    }
}

impl<G: Backing> Heap for WearHeap<G> {
    fn alloc_with(
        &self,
        size: u64,
        align: u64,
        type_id: TypeId,
        before: &mut dyn FnMut(&Block) -> Result<Taking, Cancelled>,
    ) -> Result<Block, AllocError> {
        let (info, word) = self.alloc_asking(size, align, type_id, &mut Some(before))?;
        block_of(&info, word, true).ok_or(AllocError::Cancelled)
    }

    fn alloc(&self, size: u64, align: u64, type_id: TypeId) -> Result<Block, AllocError> {
        let info = WearHeap::alloc(self, size, align, type_id)?;
        self.find_with(info.addr, false).map_err(|_| AllocError::Cancelled)
    }

    fn find(&self, addr: u64) -> Result<Block, FreeError> {
        self.find_with(addr, false)
    }

    fn find_to_free(&self, addr: u64) -> Result<Block, FreeError> {
        match self.backing.is_writable() {
            true => self.find_with(addr, true),
            false => Err(FreeError::ReadOnly),
        }
    }

    fn free(&self, addr: u64) -> Result<(), FreeError> {
        WearHeap::free(self, addr)
    }

    /// Nothing is left to do: the header says so since the block was allocated.
    unsafe fn set_mark(&self, _: &Block) {}

    fn clear_mark(&self, block: &Block) {
        self.with_block(block, |state, (puddle, line)| {
            let at = state.puddles.get_mut(puddle)?;
            let is_this = at.lines.commit_word(line, false) == Some(block.mark.word);
            if !at.live.get(line) || !is_this {
                return None;
            }
            at.lines.give_back(line, &*self.backing);
            at.live.put(line, false);
            state.held.insert((puddle, line));
            Some(())
        });
    }

    fn release(&self, block: &Block) {
        self.with_block(block, |state, place| {
            state.in_transaction.remove(&place);
            if !state.held.remove(&place) {
                return None;
            }
            let (puddle, line) = place;
            if !self.is_header_right(state, puddle, line, WearRecord::is_free) {
                return None;
            }
            let now_ms = self.clock.now_ms();
            let lines = state.puddles.get(puddle)?.end_of(line) - line;
            let range = FreeRange { puddle, line, lines };
            let time_ms = now_ms as u32;
            self.wait_or_free(state, WaitingBlock { range, time_ms }, now_ms);
            Some(())
        });
    }

    fn settle(&self, block: &Block) {
        self.with_block(block, |state, place| state.in_transaction.remove(&place).then_some(()));
    }

    fn owner(&self, addr: u64) -> Option<BlockInfo> {
        WearHeap::owner(self, addr)
    }

    fn place(&self, addr: u64) -> Result<RegionAddress, PlaceError> {
        place_on(self, &self.backing, addr)
    }

    fn address(&self, place: &RegionAddress) -> Result<u64, PlaceError> {
        address_on(self, &self.backing, place)
    }

    fn root_slot(&self, index: u16) -> Result<NonNull<RootSlot>, RootError> {
        let at = u64::from(index) * size_of::<RootSlot>() as u64;
        let addr = start_of(&self.root) + WearHeader::ROOTS + at;
        let slot = NonNull::new(with_exposed_provenance_mut(addr as usize));
        slot.filter(|_| u64::from(index) < ROOT_COUNT).ok_or(RootError::Index { index })
    }

    fn set_root(&self, index: u16, addr: u64, type_id: TypeId) -> Result<(), RootError> {
        if !self.backing.is_writable() {
            return Err(RootError::ReadOnly);
        }
        let slot = (self.root_slot(index)?, &RootWay::default());
        roots::write(index, slot, RootEntry { addr, type_id }, &*self.backing)
    }
}
