//! Slabs (PUD-12): blocks of less than 256 bytes are slots of slabs, each of one size and type.
//!
//! An allocation and a free change one cell, the slab's record: a bit of it. So a block that is
//! freed is given out again as the same type, as long as its slab lives. A slab is made by the
//! change that allocates its first slot, and is a free block again when its last slot is freed,
//! unless it is the only one of its kind with room.
//!
//! Only memory knows which slabs have room ([`Slabs`]). After an open the heap learns it where
//! slots are freed, and of all slabs before free blocks are merged: an open traces nothing.

use super::error::{Damage, Fault};
use super::plan::{ChangePlan, FoundRecord};
use super::rooms::{Kind, Slabs, kind_of};
use super::state::{SubHeap, SubHeapState};
use crate::backing::Backing;
use cenote_layout::id::TypeId;
use cenote_layout::logged::{
    Cell, LEVEL_SLOTS, SLAB_SIZES, SlabRecord, UNIT_SIZE, slab_class, slots_of,
};
use cenote_medium::planted::{Bug, LoggedBug, planted};
use core::mem::replace;
use std::collections::VecDeque;

/// Bytes of a grain, in which offsets of blocks count in the micro log: those of the smallest slot.
pub(crate) const GRAIN: u64 = 16;
/// Grains of a unit.
const GRAINS: u64 = UNIT_SIZE / GRAIN;

/// Bytes of the slots that serve a request; `None`: it takes a block of its own.
pub(crate) fn slot_size(size: u64, align: u64) -> Option<u32> {
    let fits = |slot: &u32| u64::from(*slot) >= size && u64::from(*slot).is_multiple_of(align);
    SLAB_SIZES.into_iter().find(fits)
}

/// A block that was found by its address.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Located {
    /// A block of the buddy system, allocated or free.
    Block(FoundRecord),
    /// A slot of a slab, used or not.
    Slot(FoundRecord, SlabRecord, u32),
}

impl Located {
    /// A slot of the slab in a slot of the table.
    #[inline]
    pub(crate) const fn slot_of(slot: u32, slab: SlabRecord, index: u32) -> Self {
        Self::Slot(FoundRecord { slot, record: slab.as_block() }, slab, index)
    }

    /// Whether it is allocated.
    pub(crate) const fn is_allocated(&self) -> bool {
        match self {
            Self::Block(found) => !found.record.is_free(),
            Self::Slot(_, slab, index) => slab.is_used(*index),
        }
    }

    /// Grain of its first byte.
    pub(crate) const fn grain(&self) -> u64 {
        match self {
            Self::Block(found) => found.record.unit() * GRAINS,
            Self::Slot(found, slab, index) => {
                found.record.unit() * GRAINS + *index as u64 * slab.size as u64 / GRAIN
            }
        }
    }

    /// Its bytes.
    pub(crate) const fn size(&self) -> u64 {
        match self {
            Self::Block(found) => found.record.size(),
            Self::Slot(_, slab, _) => slab.size as u64,
        }
    }

    /// Type of what it holds.
    pub(crate) const fn type_id(&self) -> TypeId {
        match self {
            Self::Block(found) => found.record.type_id,
            Self::Slot(_, slab, _) => slab.type_id,
        }
    }
}

impl ChangePlan<'_> {
    /// The slab in a slot of the table.
    pub(crate) fn slab_in(&self, slot: u32) -> Result<SlabRecord, Fault> {
        let cell = self.meta.geometry.slot_cell(slot);
        self.change.read(self.meta, cell, "the record of a slab does not fit its check")
    }

    fn set_slab(&mut self, slot: u32, slab: &SlabRecord) -> Result<(), Fault> {
        let cell = self.meta.geometry.slot_cell(slot);
        self.change.write(self.meta, cell, slab)
    }

    /// Finds the slab around an offset in the data, or the block that begins there. With `around`
    /// the block may also contain the offset.
    pub(crate) fn locate(&mut self, offset: u64, around: bool) -> Result<Option<Located>, Fault> {
        let unit = offset / UNIT_SIZE;
        let (found, slab) = match self.near_slab(unit) {
            Some(near) => near,
            None => {
                let found = match self.find(unit)? {
                    Some(found) => {
                        let begins = offset.is_multiple_of(UNIT_SIZE);
                        Some(found).filter(|found| around || begins || found.record.is_slab())
                    }
                    None => self.containing(unit)?.filter(|found| around || found.record.is_slab()),
                };
                let Some(found) = found else { return Ok(None) };
                if !found.record.is_slab() {
                    return Ok(Some(Located::Block(found)));
                }
                let slab = self.slab_in(found.slot)?;
                self.slabs.note_near(unit, found.slot);
                (found, slab)
            }
        };
        let inside = offset - found.record.unit() * UNIT_SIZE;
        let index = (inside / u64::from(slab.size)) as u32;
        let is_one = index < slab.slots() && (around || inside.is_multiple_of(slab.size.into()));
        Ok(is_one.then_some(Located::Slot(found, slab, index)))
    }

    /// The slab around a unit, where it was the last time.
    #[inline]
    fn near_slab(&mut self, unit: u64) -> Option<(FoundRecord, SlabRecord)> {
        let slot = self.slabs.near(unit)?;
        *self.probes += 1;
        let cell = self.meta.geometry.slot_cell(slot);
        let slab = SlabRecord::from_raw(self.change.get(self.meta, cell), cell)?;
        let record = slab.as_block();
        let units = record.unit()..record.unit() + record.units();
        units.contains(&unit).then_some((FoundRecord { slot, record }, slab))
    }

    /// Plans that a slot is allocated: of a slab that has room, or of a new one.
    pub(crate) fn take_slot(&mut self, size: u32, type_id: TypeId) -> Result<Located, Fault> {
        let (slot, mut slab, cursor) = match self.slab_with_room(size, type_id)? {
            Some(known) => known,
            None => {
                let found = self.allocate_record(slab_class(size), type_id)?;
                (found.slot, SlabRecord::new(found.record.unit(), size, type_id), 0)
            }
        };
        let index = slab.next_free(cursor);
        slab.used |= 1 << index;
        self.set_slab(slot, &slab)?;
        Ok(Located::Slot(FoundRecord { slot, record: slab.as_block() }, slab, index))
    }

    /// The oldest slab that is known to have room.
    fn slab_with_room(
        &mut self,
        size: u32,
        type_id: TypeId,
    ) -> Result<Option<(u32, SlabRecord, u32)>, Fault> {
        let mut kind = (type_id.0, size);
        if planted(Bug::Logged(LoggedBug::SlabOfAnyType)) {
            kind = self.slabs.room.keys().copied().find(|(_, of)| *of == size).unwrap_or(kind);
        }
        if let Some((slot, cursor)) = self.slabs.front(kind)
            && let Some(slab) = self.slab_of_kind(slot, kind).filter(|slab| !slab.is_full())
        {
            return Ok(Some((slot, slab, cursor)));
        }
        loop {
            let room = self.slabs.room.get(&kind);
            let Some(&(slot, cursor)) = room.and_then(|room| room.front()) else { return Ok(None) };
            if self.slabs.known.contains(&slot) {
                match self.slab_of_kind(slot, kind) {
                    Some(slab) if !slab.is_full() => return Ok(Some((slot, slab, cursor))),
                    Some(slab) => self.slabs.forget(slot, &slab),
                    // Another slab has the slot of the table since: it is known as that.
                    None => {}
                }
            }
            self.slabs.room.get_mut(&kind).and_then(VecDeque::pop_front);
        }
    }

    /// The slab in a slot of the table, if it is one of a kind.
    #[inline]
    fn slab_of_kind(&self, slot: u32, kind: Kind) -> Option<SlabRecord> {
        let cell = self.meta.geometry.slot_cell(slot);
        let slab = SlabRecord::from_raw(self.change.get(self.meta, cell), cell)?;
        (kind_of(&slab) == kind).then_some(slab)
    }

    /// Plans that a located block is free; of a slab's last slot, the slab too. Says whether the
    /// slab stays.
    pub(crate) fn put_back(&mut self, located: &Located, keep_slab: bool) -> Result<bool, Fault> {
        match *located {
            Located::Block(found) => self.release(found).map(|()| false),
            Located::Slot(found, mut slab, index) => {
                slab.used &= !(1 << index);
                let early = planted(Bug::Logged(LoggedBug::SlabReleasedEarly));
                let is_last = slab.used == 0 || early && slab.used.is_power_of_two();
                if is_last && !keep_slab && (self.slabs.has_others(&slab) || early) {
                    self.slabs.forget(found.slot, &slab);
                    return self.release(found).map(|()| false);
                }
                self.set_slab(found.slot, &slab).map(|()| true)
            }
        }
    }
}

impl Slabs {
    /// Notes that a slot was freed: its slab, if that stays, has room.
    #[inline]
    pub(crate) fn slot_freed(&mut self, located: &Located, stays: bool) {
        if let (true, Located::Slot(found, slab, index)) = (stays, located) {
            self.add(found.slot, slab, index + 1);
        }
    }
}

impl<G: Backing> SubHeap<G> {
    /// Notes that a slot was allocated: where to look next, and whether its slab is full.
    pub(crate) fn slot_taken(&self, state: &mut SubHeapState, located: &Located) {
        let Located::Slot(found, slab, index) = located else { return };
        state.slabs.note_near(located.grain() / GRAINS, found.slot);
        state.slabs.slot_taken(found.slot, slab, *index);
    }

    /// Frees a located block.
    pub(crate) fn free_located(
        &self,
        state: &mut SubHeapState,
        located: &Located,
        keep_slab: bool,
    ) -> Result<(), Damage> {
        let stays = self.change(state, |plan| plan.put_back(located, keep_slab));
        state.slabs.slot_freed(located, stays.map_err(Fault::damage)?);
        Ok(())
    }

    /// Looks at all slabs, once after the sub-heap was opened. Says whether that was now.
    pub(crate) fn gather_slabs(&self, state: &mut SubHeapState) -> bool {
        if replace(&mut state.slabs.gathered, true) {
            return false;
        }
        for level in state.levels.iter() {
            for slot in (slots_of(level) as u32..).take((LEVEL_SLOTS << level) as usize) {
                let cell = self.meta.geometry.slot_cell(slot);
                let slab = SlabRecord::from_raw(self.meta.cell(cell), cell);
                if let Some(slab) = slab.filter(|slab| !slab.is_full()) {
                    state.slabs.add(slot, &slab, 0);
                }
            }
        }
        true
    }

    /// Gives all slabs back that have no used slot.
    pub(crate) fn release_empty_slabs(&self, state: &mut SubHeapState) -> Result<(), Damage> {
        self.gather_slabs(state);
        let known: Vec<u32> = state.slabs.known.iter().copied().collect();
        for slot in known {
            let cell = self.meta.geometry.slot_cell(slot);
            let slab = SlabRecord::from_raw(self.meta.cell(cell), cell);
            if let Some(slab) = slab.filter(|slab| slab.used == 0) {
                let found = FoundRecord { slot, record: slab.as_block() };
                self.change(state, |plan| plan.release(found)).map_err(Fault::damage)?;
                state.slabs.forget(slot, &slab);
            }
        }
        Ok(())
    }
}
