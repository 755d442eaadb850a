//! Operations of a sub-heap: allocate, free, find, count (POS-1, POS-8; sections 5.2, 5.5).
//!
//! **Refusals.** An address that is no allocated block is told as such before a change is planned:
//! one lookup, or one for each class if it lies inside a block.

use super::buddy::class_for;
use super::data::DataParts;
use super::error::{AllocRefused, Damage, Fault, FreeRefused, LogFull};
use super::levels::RemoveFailed;
use super::micro_entry::{MicroHolder, NewEntry};
use super::slab::{GRAIN, Located, slot_size};
use super::state::{SubHeap, SubHeapState};
use crate::backing::Backing;
use crate::block::BlockInfo;
use crate::error::FreeError;
use cenote_layout::SLOT_SIZE;
use cenote_layout::id::TypeId;
use cenote_layout::logged::{
    CLASS_MAX, CLASS_MIN, LANE_ENTRIES, LEVELS_MAX, LevelEntry, MicroKind, UNIT_SIZE, slab_class,
};
use cenote_medium::planted::{Bug, Step, planted, reach};
use cenote_sys::numa;

/// Counts of a sub-heap.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct SubHeapStats {
    /// Allocated blocks of the buddy system; a slab counts as one, used slots or not.
    pub blocks: u64,
    /// Free blocks.
    pub free_blocks: u64,
    /// Bytes of the free blocks.
    pub free_bytes: u64,
    /// Bytes of the data.
    pub data_bytes: u64,
    /// Parts of data, and of metadata behind the first.
    pub parts: u32,
    /// Levels of the table that are present.
    pub levels: u32,
    /// Slots of the table that were looked at since the sub-heap was opened.
    pub probes: u64,
}

/// A block that is asked for.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Request {
    pub(crate) size: u64,
    pub(crate) align: u64,
    pub(crate) type_id: TypeId,
    /// Where the transaction that allocates notes that.
    pub(crate) holder: Option<MicroHolder>,
    /// Whether it is to be a block of the buddy system, however small.
    pub(crate) apart: bool,
}

/// Bytes of the block or the slot that serves a request where there is room for both; `None`: no
/// block can be that large.
#[must_use]
pub fn block_size(size: u64, align: u64) -> Option<u64> {
    let slot = slot_size(size, align).map(u64::from);
    slot.or_else(|| class_for(size.max(align)).map(|class| 1 << class))
}

/// The answer to a request: a slot of this many bytes in a slab of the class, or a block of the
/// class.
struct Wanted {
    slot: Option<u32>,
    class: u8,
    size: u64,
    type_id: TypeId,
}

impl<G: Backing> SubHeap<G> {
    /// Bytes of the data.
    pub(crate) fn data_bytes(&self) -> u64 {
        self.lock().data.bytes()
    }

    /// Asks for memory of a node of the machine, for all that is there now. A hint: where it cannot
    /// be had, nothing changes.
    pub(crate) fn prefer_node(&self, node: u32) {
        for part in self.lock().data.iter() {
            // SAFETY: mapped memory of the sub-heap, which stays mapped.
            let _ = unsafe { numa::prefer(part.addr, part.units * UNIT_SIZE, node) };
        }
        for level in 0..LEVELS_MAX {
            let Some(addr) = self.meta.level_addr(level) else { continue };
            let (_, len) = self.meta.geometry.level_range(level);
            // SAFETY: as above.
            let _ = unsafe { numa::prefer(addr, len, node) };
        }
    }

    /// Allocates at least `size` bytes (0 counts as 1) at a multiple of `align`, for values of
    /// `type_id`. Durable on return. The block holds the bytes that were there before.
    ///
    /// # Errors
    /// Why there is no block; nothing is allocated.
    pub fn alloc(&self, size: u64, align: u64, type_id: TypeId) -> Result<BlockInfo, AllocRefused> {
        let request = Request { size, align, type_id, holder: None, apart: false };
        self.alloc_locked(&mut self.lock(), &request)
    }

    /// [`SubHeap::alloc`] of a block that no slab has, however small it is.
    ///
    /// # Errors
    /// As there.
    pub fn alloc_apart(
        &self,
        size: u64,
        align: u64,
        type_id: TypeId,
    ) -> Result<BlockInfo, AllocRefused> {
        let request = Request { size, align, type_id, holder: None, apart: true };
        self.alloc_locked(&mut self.lock(), &request)
    }

    /// [`SubHeap::alloc`]; in the transaction of a lane, if there is one.
    pub(crate) fn alloc_locked(
        &self,
        state: &mut SubHeapState,
        request: &Request,
    ) -> Result<BlockInfo, AllocRefused> {
        let Request { size, align, type_id, holder, apart } = *request;
        if !align.is_power_of_two() || align > SLOT_SIZE {
            return Err(AllocRefused::Align { align });
        }
        let entry = match holder {
            Some(MicroHolder::Lane(lane)) => Some(
                state
                    .next_entry(lane, MicroKind::Alloc)
                    .ok_or(LogFull::Lane { entries: LANE_ENTRIES })?,
            ),
            Some(MicroHolder::Ticket(ticket)) => Some(state.ticket_entry(ticket, MicroKind::Alloc)),
            None => None,
        };
        let slot = if apart { None } else { slot_size(size, align) };
        if let (Some(slot), None) = (slot, holder)
            && let Some(block) = self.alloc_quick(state, slot, type_id)
        {
            return Ok(block);
        }
        let own = class_for(size.max(align)).ok_or(AllocRefused::Full { size })?;
        let wanted = Wanted { slot, class: slot.map_or(own, slab_class), size, type_id };
        match self.alloc_wanted(state, &wanted, entry) {
            // There may be room for the block and none for a slab.
            Err(AllocRefused::Full { .. }) if slot.is_some() => {
                let wanted = Wanted { slot: None, class: own, size, type_id };
                self.alloc_wanted(state, &wanted, entry)
            }
            done => done,
        }
    }

    fn alloc_wanted(
        &self,
        state: &mut SubHeapState,
        wanted: &Wanted,
        entry: Option<NewEntry>,
    ) -> Result<BlockInfo, AllocRefused> {
        let &Wanted { slot, class, size, type_id } = wanted;
        loop {
            let planned = self.change(state, |plan| {
                let located = match slot {
                    Some(slot) => plan.take_slot(slot, type_id)?,
                    None => Located::Block(plan.allocate_record(class, type_id)?),
                };
                if let Some(entry) = entry.filter(|_| !planted(Bug::MicroEntryApart)) {
                    entry.plan(plan, located.grain())?;
                }
                Ok(located)
            });
            match planned {
                Ok(located) => {
                    if let Some(entry) = entry {
                        if planted(Bug::MicroEntryApart) {
                            reach(Step::MicroEntryLate);
                            self.change(state, |plan| entry.plan(plan, located.grain()))
                                .map_err(Fault::damage)?;
                        }
                        state.note_for(entry.holder, located.grain(), MicroKind::Alloc);
                    }
                    self.slot_taken(state, &located);
                    return Ok(info(&state.data, &located));
                }
                // Each turn merges blocks or adds a level, of which there are only so many.
                Err(Fault::NoSlot(unit)) => self.make_room(state, unit)?,
                Err(Fault::NoBlock) if slot.is_some() && self.gather_slabs(state) => {}
                Err(Fault::NoBlock) => {
                    if class >= state.barren || !self.merge_for(state, class)? {
                        state.barren = state.barren.min(class);
                        return Err(AllocRefused::Full { size });
                    }
                }
                Err(Fault::Damaged(damage)) => return Err(damage.into()),
            }
        }
    }

    /// Frees the block that begins at `addr`; 0 is nothing. Durable on return. The place goes to
    /// the end of its list.
    ///
    /// # Errors
    /// Why the address cannot be freed; nothing has changed.
    pub fn free(&self, addr: u64) -> Result<(), FreeRefused> {
        if addr == 0 {
            return Ok(());
        }
        let mut state = self.lock();
        if self.free_quick(&mut state, addr) {
            return Ok(());
        }
        let located = self.allocated(&mut state, addr)?;
        if state.pending.contains_key(&located.grain()) {
            return Err(FreeRefused::InTransaction { addr });
        }
        self.free_located(&mut state, &located, false)?;
        state.barren = u8::MAX;
        Ok(())
    }

    /// The allocated block that begins at `addr`.
    ///
    /// # Errors
    /// What `addr` is instead.
    pub fn find(&self, addr: u64) -> Result<BlockInfo, FreeRefused> {
        let mut state = self.lock();
        let located = self.allocated(&mut state, addr)?;
        Ok(info(&state.data, &located))
    }

    /// The allocated block that contains `addr`, if one does.
    ///
    /// # Errors
    /// The metadata are damaged where that would stand.
    pub fn owner(&self, addr: u64) -> Result<Option<BlockInfo>, Damage> {
        let mut state = self.lock();
        let Some(offset) = state.data.offset_of(addr) else { return Ok(None) };
        let located = state.plan(&self.meta).locate(offset, true).map_err(Fault::damage)?;
        let hidden = |located: &Located| state.hidden.contains(&located.grain());
        let located = located.filter(Located::is_allocated).filter(|located| !hidden(located));
        Ok(located.map(|located| info(&state.data, &located)))
    }

    /// The allocated block that begins at `addr`, or what `addr` is instead.
    pub(crate) fn allocated(
        &self,
        state: &mut SubHeapState,
        addr: u64,
    ) -> Result<Located, FreeRefused> {
        let Some(offset) = state.data.offset_of(addr) else {
            return Err(match self.backing.is_foreign(addr) {
                _ if self.meta.contains(addr) => FreeError::NotABlock { addr },
                true => FreeError::OtherPool { addr },
                false => FreeError::NotInHeap { addr },
            }
            .into());
        };
        let found = state.plan(&self.meta).locate(offset, false).map_err(Fault::damage)?;
        match found {
            Some(located) if state.hidden.contains(&located.grain()) => {
                Err(FreeError::NotAllocated { addr }.into())
            }
            Some(located) if located.is_allocated() || planted(Bug::DoubleFreeAccepted) => {
                Ok(located)
            }
            Some(_) => Err(FreeError::NotAllocated { addr }.into()),
            None => {
                let around = state.plan(&self.meta).locate(offset, true);
                Err(match around.map_err(Fault::damage)?.filter(Located::is_allocated) {
                    Some(located) => {
                        let block = info(&state.data, &located).addr;
                        FreeError::InsideBlock { addr, block }
                    }
                    None => FreeError::NotABlock { addr },
                }
                .into())
            }
        }
    }

    /// Gives slabs back that are empty, merges all free blocks that can be, and gives the space of
    /// empty levels back. Says how many levels.
    ///
    /// # Errors
    /// The metadata are damaged, or the medium reports an error.
    pub fn compact(&self) -> Result<u32, RemoveFailed> {
        let mut state = self.lock();
        self.release_empty_slabs(&mut state)?;
        self.merge_all(&mut state).map_err(|fault| RemoveFailed::Damaged(fault.damage()))?;
        self.remove_empty_levels(&mut state)
    }

    /// Counts.
    ///
    /// # Errors
    /// The metadata are damaged.
    pub fn stats(&self) -> Result<SubHeapStats, Damage> {
        let mut state = self.lock();
        let levels = state.levels;
        let (probes, parts) = (state.probes, state.parts);
        let plan = state.plan(&self.meta);
        let mut stats =
            SubHeapStats { levels: levels.0.count_ones(), probes, parts, ..Default::default() };
        stats.data_bytes = plan.data.bytes();
        for class in CLASS_MIN..=CLASS_MAX {
            let list = plan.list(class).map_err(Fault::damage)?;
            stats.free_blocks += list.blocks;
            stats.free_bytes += list.blocks << class;
        }
        let mut records = 0;
        for level in levels.iter() {
            let what = "a level entry does not fit its check";
            let entry: LevelEntry = plan
                .change
                .read(&self.meta, LevelEntry::cell(level), what)
                .map_err(Fault::damage)?;
            records += entry.used;
        }
        stats.blocks = records.saturating_sub(stats.free_blocks);
        Ok(stats)
    }
}

/// What was located, as a block.
pub(crate) fn info(data: &DataParts, located: &Located) -> BlockInfo {
    let at = located.grain() * GRAIN;
    let addr = data.addr_of(at / UNIT_SIZE) + at % UNIT_SIZE;
    BlockInfo { addr, size: located.size(), type_id: located.type_id() }
}
