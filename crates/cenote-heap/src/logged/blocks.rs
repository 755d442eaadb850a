//! The logged heap as a pool's allocator ([`Heap`]): blocks with marks for the logs of
//! transactions, and roots.
//!
//! A block has a mark while a ticket is about it ([`super::tickets`]), and no longer. One that was
//! found, or allocated without a transaction, has a mark that decides nothing.

use super::error::AllocRefused;
use super::members::{LoggedHeap, SubHeapMember};
use super::tickets::{CLEARED, TO_CLEAR, TO_SET};
use crate::backing::Backing;
use crate::block::{Block, BlockInfo, Cancelled, Mark, Taking};
use crate::error::{AllocError, FreeError, PlaceError, RootError};
use crate::heap::{Heap, address_on, place_on};
use crate::roots::{self, RootWay};
use cenote_layout::heap::{RootEntry, RootSlot};
use cenote_layout::id::TypeId;
use cenote_layout::mark::ALLOCATED;
use cenote_layout::pointer::RegionAddress;
use cenote_protect::Protection;
use core::ptr::{NonNull, with_exposed_provenance_mut};
use core::sync::atomic::AtomicU64;

/// The mark of blocks that no ticket is about.
static NO_MARK: AtomicU64 = AtomicU64::new(u64::MAX);

fn no_mark() -> Mark {
    Mark { word: NonNull::from(&NO_MARK), mask: 0xff }
}

fn block_of(info: &BlockInfo, mark: Mark) -> Block {
    let addr = NonNull::new(with_exposed_provenance_mut(info.addr as usize));
    // No block begins at address 0: puddles do not.
    let addr = addr.unwrap_or(NonNull::dangling());
    let has_ticket = mark.word != NonNull::from(&NO_MARK);
    Block { addr, size: info.size, mark, type_id: info.type_id, has_ticket }
}

fn address(block: &Block) -> u64 {
    block.addr.as_ptr().expose_provenance() as u64
}

impl<G: Backing> LoggedHeap<G> {
    /// The sub-heap of a block, and the ticket about it; `None`: no ticket is.
    fn ticket_of(&self, block: &Block) -> Option<(&SubHeapMember<G>, u32)> {
        if !block.has_ticket {
            return None;
        }
        let (_, member) = self.owner_of(address(block)).ok()?;
        Some((member, member.heap.ticket_of(&block.mark)?))
    }

    fn refused(&self, refused: AllocRefused, size: u64, type_id: TypeId) -> AllocError {
        let size_max = self.backing.size_max();
        match refused {
            AllocRefused::Align { align } => AllocError::Align { align },
            AllocRefused::Full { .. } if size > size_max => AllocError::Size { size, size_max },
            AllocRefused::Backing(source) => AllocError::Full { size, type_id, source },
            AllocRefused::ReadOnly => AllocError::ReadOnly,
            other => AllocError::Logged(other),
        }
    }

    /// Whether a block of a type is allocated and begins at `addr`.
    #[must_use]
    pub fn is_live(&self, addr: u64, type_id: TypeId) -> bool {
        LoggedHeap::find(self, addr).is_ok_and(|block| block.type_id == type_id)
    }
}

impl<G: Backing> Heap for LoggedHeap<G> {
    fn alloc_with(
        &self,
        size: u64,
        align: u64,
        type_id: TypeId,
        before: &mut dyn FnMut(&Block) -> Result<Taking, Cancelled>,
    ) -> Result<Block, AllocError> {
        if !self.backing.is_writable() {
            return Err(AllocError::ReadOnly);
        }
        let mut taken = None;
        let info = self
            .with_room(size.max(align), &mut |_, member| {
                let (block, ticket) = member.heap.alloc_with_ticket(size, align, type_id)?;
                taken = Some((member.heap.ticket_mark(ticket), ticket));
                Ok(block)
            })
            .map_err(|refused| self.refused(refused, size, type_id))?;
        let mark = taken.and_then(|(mark, _)| mark).unwrap_or(no_mark());
        let block = block_of(&info, mark);
        match before(&block) {
            Ok(Taking::Taken) => {}
            Ok(Taking::Allocated) => {
                if let Some((member, ticket)) = self.ticket_of(&block) {
                    member.heap.change_ticket(ticket, TO_SET, ALLOCATED);
                }
            }
            Err(Cancelled) => {
                self.clear_mark(&block);
                self.release(&block);
                return Err(AllocError::Cancelled);
            }
        }
        Ok(block)
    }

    fn alloc(&self, size: u64, align: u64, type_id: TypeId) -> Result<Block, AllocError> {
        if !self.backing.is_writable() {
            return Err(AllocError::ReadOnly);
        }
        let info = LoggedHeap::alloc(self, size, align, type_id)
            .map_err(|refused| self.refused(refused, size, type_id))?;
        Ok(block_of(&info, no_mark()))
    }

    fn find(&self, addr: u64) -> Result<Block, FreeError> {
        Ok(block_of(&LoggedHeap::find(self, addr)?, no_mark()))
    }

    fn find_to_free(&self, addr: u64) -> Result<Block, FreeError> {
        if !self.backing.is_writable() {
            return Err(FreeError::ReadOnly);
        }
        let (_, member) = self.owner_of(addr)?;
        let (info, ticket) = member.heap.ticket_to_free(addr)?;
        Ok(block_of(&info, member.heap.ticket_mark(ticket).unwrap_or(no_mark())))
    }

    fn free(&self, addr: u64) -> Result<(), FreeError> {
        if !self.backing.is_writable() {
            return Err(FreeError::ReadOnly);
        }
        Ok(LoggedHeap::free(self, addr)?)
    }

    unsafe fn set_mark(&self, block: &Block) {
        if let Some((member, ticket)) = self.ticket_of(block) {
            member.heap.change_ticket(ticket, TO_SET, ALLOCATED);
        }
    }

    fn clear_mark(&self, block: &Block) {
        if let Some((member, ticket)) = self.ticket_of(block) {
            member.heap.change_ticket(ticket, TO_CLEAR, CLEARED);
        }
    }

    fn release(&self, block: &Block) {
        if let Some((member, ticket)) = self.ticket_of(block) {
            // Where metadata are damaged the ticket stays: the next opener refuses the heap.
            let _ = member.heap.release_ticket(ticket, address(block));
        }
    }

    fn settle(&self, block: &Block) {
        if let Some((member, ticket)) = self.ticket_of(block) {
            member.heap.settle_ticket(ticket, address(block));
        }
    }

    fn owner(&self, addr: u64) -> Option<BlockInfo> {
        LoggedHeap::owner(self, addr).ok().flatten()
    }

    fn place(&self, addr: u64) -> Result<RegionAddress, PlaceError> {
        place_on(self, &self.backing, addr)
    }

    fn address(&self, place: &RegionAddress) -> Result<u64, PlaceError> {
        address_on(self, &self.backing, place)
    }

    fn root_slot(&self, index: u16) -> Result<NonNull<RootSlot>, RootError> {
        self.root.slot(index).ok_or(RootError::Index { index })
    }

    fn root_way(&self) -> RootWay {
        self.root.way()
    }

    fn is_guarded(&self) -> bool {
        self.protection() != Protection::None
    }

    fn set_root(&self, index: u16, addr: u64, type_id: TypeId) -> Result<(), RootError> {
        if !self.backing.is_writable() {
            return Err(RootError::ReadOnly);
        }
        let entry = RootEntry { addr, type_id };
        let slot = (self.root_slot(index)?, &self.root.way());
        roots::write(index, slot, entry, &*self.backing)
    }
}
