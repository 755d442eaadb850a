//! Slots of slabs without a plan: the short way of [`SubHeap::alloc`] and [`SubHeap::free`].
//!
//! A request takes it if the slab that served the last one of its kind has room, and a free, if the
//! slab around the address is known and stays. Then one cell changes by a step ([`super::step`]).
//! In any other case nothing has changed, and the caller goes the long way, which also says why an
//! address is refused.

use super::slab::Located;
use super::state::{SubHeap, SubHeapState};
use super::sub_heap::info;
use crate::backing::Backing;
use crate::block::BlockInfo;
use cenote_layout::id::TypeId;
use cenote_layout::logged::{Cell, SlabRecord, UNIT_SIZE};
use cenote_medium::planted::{Bug, LoggedBug, planted};

impl<G: Backing> SubHeap<G> {
    /// Allocates a slot of `size` bytes for a value of `type_id`; `None`: nothing has changed.
    #[inline]
    pub(crate) fn alloc_quick(
        &self,
        state: &mut SubHeapState,
        size: u32,
        type_id: TypeId,
    ) -> Option<BlockInfo> {
        let (slot, cursor) = state.slabs.front((type_id.0, size))?;
        let (cell, mut slab) = self.whole_slab(state, slot)?;
        let is_kind = (slab.type_id, slab.size) == (type_id, size);
        if !is_kind || slab.is_full() || planted(Bug::Logged(LoggedBug::SlabOfAnyType)) {
            return None;
        }
        let index = slab.next_free(cursor);
        slab.used |= 1 << index;
        self.step(state, slot, (cell, &slab));
        let located = Located::slot_of(slot, slab, index);
        self.slot_taken(state, &located);
        Some(info(&state.data, &located))
    }

    /// The slab in a slot of the table, and its cell, if its check fits as it lies: then one bit
    /// more or less is a step.
    #[inline]
    fn whole_slab(&self, state: &mut SubHeapState, slot: u32) -> Option<(u64, SlabRecord)> {
        let cell = self.meta.geometry.slot_cell(slot);
        let raw = self.meta.cell(cell);
        if !state.slabs.is_whole(slot, &raw) {
            let slab = SlabRecord::from_raw(raw, cell)?;
            if slab.to_raw(cell) != raw {
                return None;
            }
            state.slabs.note_whole(slot, raw);
        }
        Some((cell, SlabRecord::of_whole(raw)))
    }

    /// Changes the record of a slab by a step.
    #[inline]
    fn step(&self, state: &mut SubHeapState, slot: u32, (cell, new): (u64, &SlabRecord)) {
        let raw = new.to_raw(cell);
        state.undo.step(&self.meta.writer(&self.backing), cell, raw);
        state.slabs.note_whole(slot, raw);
    }

    /// Frees the slot that begins at `addr`. Says whether it did; if not, nothing has changed.
    #[inline]
    pub(crate) fn free_quick(&self, state: &mut SubHeapState, addr: u64) -> bool {
        self.try_free_quick(state, addr).is_some()
    }

    fn try_free_quick(&self, state: &mut SubHeapState, addr: u64) -> Option<()> {
        let offset = state.data.offset_of(addr)?;
        let unit = offset / UNIT_SIZE;
        let slot = state.slabs.near(unit)?;
        let (cell, mut slab) = self.whole_slab(state, slot)?;
        let block = slab.as_block();
        let inside =
            offset.checked_sub(block.unit() * UNIT_SIZE).filter(|at| *at < block.size())?;
        let index = inside as u32 / slab.size;
        let located = Located::slot_of(slot, slab, index);
        let begins = index * slab.size == inside as u32;
        slab.used ^= 1 << (index % u64::BITS);
        let stays = slab.used != 0 && !planted(Bug::Logged(LoggedBug::SlabReleasedEarly));
        if !begins || !located.is_allocated() || !stays || state.is_spoken_for(located.grain()) {
            return None;
        }
        state.probes += 1;
        self.step(state, slot, (cell, &slab));
        state.slabs.slot_freed(&Located::slot_of(slot, slab, index), true);
        state.barren = u8::MAX;
        Some(())
    }
}
