//! Operations of a sub-heap: allocate, free, find, count (POS-1, POS-8; sections 5.2, 5.5).
//!
//! **Refusals.** An address that is no allocated block is told as such before a change is planned:
//! one lookup, or one for each class if it lies inside a block.

use super::buddy::class_for;
use super::data::DataParts;
use super::error::{AllocRefused, Damage, Fault, FreeRefused};
use super::levels::RemoveFailed;
use super::plan::Found;
use super::state::{State, SubHeap};
use crate::backing::Backing;
use crate::block::BlockInfo;
use crate::error::FreeError;
use cenote_layout::SLOT_SIZE;
use cenote_layout::id::TypeId;
use cenote_layout::logged::{
    BlockRecord, CLASS_MAX, CLASS_MIN, LANE_ENTRIES, LevelEntry, MicroKind, UNIT_SIZE,
};
use cenote_medium::planted::{Bug, Step, planted, reach};
use cenote_sys::numa;

/// Counts of a sub-heap.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct SubHeapStats {
    /// Allocated blocks.
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
    /// The lane whose transaction allocates.
    pub(crate) lane: Option<u32>,
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
        if let Some(addr) = self.meta.level_addr(0) {
            let len = self.meta.geometry.metadata_len - self.meta.geometry.table;
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
        self.alloc_locked(&mut self.lock(), &Request { size, align, type_id, lane: None })
    }

    /// [`SubHeap::alloc`]; in the transaction of a lane, if there is one.
    pub(crate) fn alloc_locked(
        &self,
        state: &mut State,
        request: &Request,
    ) -> Result<BlockInfo, AllocRefused> {
        let Request { size, align, type_id, lane } = *request;
        if !align.is_power_of_two() || align > SLOT_SIZE {
            return Err(AllocRefused::Align { align });
        }
        let class = class_for(size.max(align)).ok_or(AllocRefused::Full { size })?;
        let entry = match lane {
            Some(lane) => Some(
                state
                    .next_entry(lane, MicroKind::Alloc)
                    .ok_or(AllocRefused::LaneFull { entries: LANE_ENTRIES })?,
            ),
            None => None,
        };
        loop {
            let planned = self.change(state, |plan| {
                let record = plan.allocate(class, type_id)?;
                if let Some(entry) = entry.filter(|_| !planted(Bug::MicroEntryApart)) {
                    entry.plan(plan, record.unit())?;
                }
                Ok(record)
            });
            match planned {
                Ok(record) => {
                    if let Some(entry) = entry {
                        if planted(Bug::MicroEntryApart) {
                            reach(Step::MicroEntryLate);
                            self.change(state, |plan| entry.plan(plan, record.unit()))
                                .map_err(Fault::damage)?;
                        }
                        state.note(entry.lane, record.unit(), MicroKind::Alloc);
                    }
                    return Ok(info(&state.data, &record));
                }
                // Each turn merges blocks or adds a level, of which there are only so many.
                Err(Fault::NoSlot(unit)) => self.make_room(state, unit)?,
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
        let found = self.allocated(&mut state, addr)?;
        if state.pending.contains_key(&found.record.unit()) {
            return Err(FreeRefused::InTransaction { addr });
        }
        self.change(&mut state, |plan| plan.release(found)).map_err(Fault::damage)?;
        state.barren = u8::MAX;
        Ok(())
    }

    /// The allocated block that begins at `addr`.
    ///
    /// # Errors
    /// What `addr` is instead.
    pub fn find(&self, addr: u64) -> Result<BlockInfo, FreeRefused> {
        let mut state = self.lock();
        let found = self.allocated(&mut state, addr)?;
        Ok(info(&state.data, &found.record))
    }

    /// The allocated block that contains `addr`, if one does.
    ///
    /// # Errors
    /// The metadata are damaged where that would stand.
    pub fn owner(&self, addr: u64) -> Result<Option<BlockInfo>, Damage> {
        let mut state = self.lock();
        let Some(offset) = state.data.offset_of(addr) else { return Ok(None) };
        let mut plan = state.plan(&self.meta);
        let found = plan.containing(offset / UNIT_SIZE).map_err(Fault::damage)?;
        let found = found.filter(|found| !found.record.is_free());
        Ok(found.map(|found| info(&state.data, &found.record)))
    }

    /// The record of the allocated block that begins at `addr`, or what `addr` is instead.
    pub(crate) fn allocated(&self, state: &mut State, addr: u64) -> Result<Found, FreeRefused> {
        let Some(offset) = state.data.offset_of(addr) else {
            return Err(match self.backing.is_foreign(addr) {
                _ if self.meta.contains(addr) => FreeError::NotABlock { addr },
                true => FreeError::OtherPool { addr },
                false => FreeError::NotInHeap { addr },
            }
            .into());
        };
        let unit = offset / UNIT_SIZE;
        let mut plan = state.plan(&self.meta);
        let found = match offset.is_multiple_of(UNIT_SIZE) {
            true => plan.find(unit).map_err(Fault::damage)?,
            false => None,
        };
        match found {
            Some(found) if !found.record.is_free() || planted(Bug::DoubleFreeAccepted) => Ok(found),
            Some(_) => Err(FreeError::NotAllocated { addr }.into()),
            None => {
                let around = plan.containing(unit).map_err(Fault::damage)?;
                Err(match around {
                    Some(found) if !found.record.is_free() => {
                        let block = info(plan.data, &found.record).addr;
                        FreeError::InsideBlock { addr, block }
                    }
                    _ => FreeError::NotABlock { addr },
                }
                .into())
            }
        }
    }

    /// Merges all free blocks that can be, and gives the space of empty levels back. Says how many
    /// levels.
    ///
    /// # Errors
    /// The metadata are damaged, or the medium reports an error.
    pub fn compact(&self) -> Result<u32, RemoveFailed> {
        let mut state = self.lock();
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

/// What a record says, as a block.
pub(crate) fn info(data: &DataParts, record: &BlockRecord) -> BlockInfo {
    let (addr, size) = (data.addr_of(record.unit()), record.size());
    BlockInfo { addr, size, type_id: record.type_id }
}
