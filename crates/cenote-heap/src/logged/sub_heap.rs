//! A sub-heap: made, opened, allocated from and freed into (POS-1, POS-8; sections 5.1, 5.2, 5.5).
//!
//! **Making** stores everything but the header, flushes and fences; then **the header commits**. A
//! region whose header does not fit its checksum is none, and can be made again.
//!
//! **Opening** undoes the change that a crash broke off ([`super::undo`]), then ends the
//! transactions that it broke off ([`super::micro`]). It reads the undo log, the level entries and
//! the lanes, no matter how many blocks there are, and traces nothing. A crash while it does so
//! leaves the same work, or less.
//!
//! **Refusals.** An address that is no allocated block is told as such before a change is planned:
//! one lookup, or one for each class if it lies inside a block.

use super::buddy::{class_for, cover};
use super::cells::Metadata;
use super::change::Change;
use super::error::{AllocRefused, Damage, Fault, FreeRefused, SubHeapError};
use super::levels::RemoveFailed;
use super::plan::{Found, Levels};
use super::state::{Lane, State, SubHeap};
use super::undo::Undo;
use crate::backing::Backing;
use crate::block::BlockInfo;
use crate::error::FreeError;
use cenote_layout::PAGE_SIZE;
use cenote_layout::header;
use cenote_layout::id::TypeId;
use cenote_layout::logged::{CLASS_MAX, CLASS_MIN};
use cenote_layout::logged::{
    Cell, LANE_ENTRIES, LANES_OFFSET, LISTS_OFFSET, LaneState, LaneWord, LevelEntry, ListHead,
    MicroKind, SubHeapGeometry, SubHeapHeader, UNDO_HALF_SIZE, UNDO_HEADER_SIZE, UNDO_OFFSET,
    UNIT_SIZE,
};
use cenote_medium::planted::{Bug, Step, planted, reach};
use std::collections::HashMap;
use std::sync::Mutex;
use zerocopy::IntoBytes;

/// Where the regions of a sub-heap lie.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Place {
    /// Address of the data region, a multiple of a page.
    pub data: u64,
    /// Its bytes.
    pub data_len: u64,
    /// Address of the metadata region, a multiple of a page.
    pub metadata: u64,
    /// Its bytes: at least what [`SubHeapGeometry`] asks for.
    pub metadata_len: u64,
}

impl Place {
    fn check(&self, geometry: &SubHeapGeometry) -> Result<(), SubHeapError> {
        for (region, addr, len, needed) in [
            ("data", self.data, self.data_len, geometry.data_len),
            ("metadata", self.metadata, self.metadata_len, geometry.metadata_len),
        ] {
            if addr == 0 || !addr.is_multiple_of(PAGE_SIZE) || len < needed {
                return Err(SubHeapError::Region { region, addr, len, needed });
            }
        }
        Ok(())
    }
}

/// What a crash had left when a sub-heap was opened.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Recovered {
    /// Whether a change was broken off, and undone.
    pub undone: bool,
    /// Blocks that transactions had allocated or were freeing, and that are free now.
    pub freed: u64,
}

/// Counts of a sub-heap.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct SubHeapStats {
    /// Allocated blocks.
    pub blocks: u64,
    /// Free blocks.
    pub free_blocks: u64,
    /// Bytes of the free blocks.
    pub free_bytes: u64,
    /// Levels of the table that are present.
    pub levels: u32,
    /// Slots of the table that were looked at since the sub-heap was opened.
    pub probes: u64,
}

impl<G: Backing> SubHeap<G> {
    /// Makes a sub-heap in two regions that nothing uses, and opens it.
    ///
    /// # Safety
    /// Both regions are mapped for writing as long as the sub-heap lives, in memory of `backing`,
    /// and do not overlap; the metadata region reads as zeros. Nothing but the sub-heap uses the
    /// metadata region, and of the data region others use the blocks that it gave them.
    ///
    /// # Errors
    /// The regions do not fit, or the medium reports an error.
    pub unsafe fn format(
        backing: G,
        place: &Place,
        number: u32,
        lanes: u32,
    ) -> Result<Self, SubHeapError> {
        let shape = SubHeapError::Shape { data_len: place.data_len, lanes };
        let geometry = SubHeapGeometry::new(place.data_len, lanes).ok_or(shape)?;
        // SAFETY: the caller's promise about the regions is the one that `new` asks for.
        let heap = unsafe { Self::new(backing, place, geometry) }?;
        let writer = heap.meta.writer(&heap.backing);
        for half in 0..2 {
            let at = UNDO_OFFSET + half * UNDO_HALF_SIZE;
            writer.store_all(at, &[0; (UNDO_HEADER_SIZE / 8) as usize]);
            writer.flush(at, UNDO_HEADER_SIZE);
        }
        for class in CLASS_MIN..=CLASS_MAX {
            let cell = ListHead::cell(class);
            writer.store_cell(cell, ListHead::default().to_raw(cell));
        }
        for level in 0..geometry.levels {
            let state = if level == 0 { LevelEntry::PRESENT } else { LevelEntry::ABSENT };
            let cell = LevelEntry::cell(level);
            let entry = LevelEntry { state, ..LevelEntry::default() };
            writer.store_cell(cell, entry.to_raw(cell));
        }
        writer.flush(LISTS_OFFSET, LANES_OFFSET - LISTS_OFFSET);
        for lane in 0..lanes {
            heap.set_lane(lane, LaneWord { sequence: 0, state: LaneState::Running });
        }
        (1..geometry.levels).try_for_each(|level| heap.punch(level))?;
        {
            let mut state = heap.lock();
            state.levels = Levels(1);
            state.lanes = (0..lanes).map(|_| Lane::new(0)).collect();
            for record in cover(geometry.data_len) {
                heap.add_free(&mut state, record)?;
            }
        }
        let header = SubHeapHeader::new(number, &geometry);
        // The header is a page of words.
        let words: Vec<u64> = header
            .as_bytes()
            .chunks_exact(8)
            .map(|word| u64::from_le_bytes(word.try_into().unwrap_or_default()))
            .collect();
        writer.store_all(0, &words);
        writer.flush(0, PAGE_SIZE);
        writer.fence();
        Ok(heap)
    }

    /// Opens a sub-heap: undoes what a crash broke off.
    ///
    /// # Safety
    /// As for [`SubHeap::format`], but for what the metadata region reads as.
    ///
    /// # Errors
    /// There is no sub-heap, its metadata are damaged, or the backing is read-only.
    pub unsafe fn open(backing: G, place: &Place) -> Result<(Self, Recovered), SubHeapError> {
        if !backing.is_writable() {
            return Err(SubHeapError::ReadOnly);
        }
        let shape = SubHeapError::Shape { data_len: place.data_len, lanes: 1 };
        let least = SubHeapGeometry::new(place.data_len, 1).ok_or(shape)?;
        place.check(&least)?;
        // SAFETY: the metadata region has at least the bytes of a sub-heap of one lane, which has
        // been checked, and the caller promises that they are mapped.
        let meta = unsafe { Metadata::new(place.metadata, least) }.ok_or(SubHeapError::Region {
            region: "metadata",
            addr: place.metadata,
            len: place.metadata_len,
            needed: least.metadata_len,
        })?;
        let bytes: Vec<u8> =
            (0..PAGE_SIZE / 8).flat_map(|i| meta.word(i * 8).to_le_bytes()).collect();
        let header: SubHeapHeader = header::read(&bytes, true)?;
        let shape = SubHeapError::Shape { data_len: header.data_len, lanes: header.lanes };
        let geometry = header
            .geometry()
            .filter(|geometry| geometry.data_len == place.data_len)
            .ok_or(shape)?;
        // SAFETY: the caller's promise about the regions is the one that `new` asks for.
        let heap = unsafe { Self::new(backing, place, geometry) }?;
        let writer = heap.meta.writer(&heap.backing);
        // Its process may have died before it was durable.
        writer.flush(0, PAGE_SIZE);
        writer.fence();
        let (undo, undone) = Undo::recover(&heap.meta, &writer)?;
        let mut recovered = Recovered { undone, freed: 0 };
        {
            let mut state = heap.lock();
            state.undo = undo;
            let levels = Levels::read(&heap.meta, &state.change).map_err(Fault::damage)?;
            state.levels = levels;
            for lane in 0..geometry.lanes {
                let (sequence, freed) = heap.recover_lane(&mut state, lane)?;
                recovered.freed += freed;
                state.lanes.push(Lane::new(sequence));
            }
        }
        Ok((heap, recovered))
    }

    /// # Safety
    /// As for [`SubHeap::open`].
    unsafe fn new(
        backing: G,
        place: &Place,
        geometry: SubHeapGeometry,
    ) -> Result<Self, SubHeapError> {
        place.check(&geometry)?;
        // SAFETY: the region has as many bytes as the geometry asks for, which has been checked;
        // the caller promises the rest.
        let meta = unsafe { Metadata::new(place.metadata, geometry) };
        let region = SubHeapError::Region {
            region: "metadata",
            addr: place.metadata,
            len: place.metadata_len,
            needed: geometry.metadata_len,
        };
        let state = State {
            undo: Undo::default(),
            change: Change::default(),
            levels: Levels::default(),
            lanes: Vec::new(),
            pending: HashMap::new(),
            probes: 0,
        };
        Ok(Self {
            backing,
            meta: meta.ok_or(region)?,
            data: place.data,
            meta_addr: place.metadata,
            state: Mutex::new(state),
        })
    }

    /// Allocates at least `size` bytes (0 counts as 1) at a multiple of `align`, for values of
    /// `type_id`. Durable on return. The block holds the bytes that were there before.
    ///
    /// # Errors
    /// Why there is no block; nothing is allocated.
    pub fn alloc(&self, size: u64, align: u64, type_id: TypeId) -> Result<BlockInfo, AllocRefused> {
        self.alloc_locked(&mut self.lock(), size, align, type_id, None)
    }

    /// [`SubHeap::alloc`]; in the transaction of `lane`, if there is one.
    pub(crate) fn alloc_locked(
        &self,
        state: &mut State,
        size: u64,
        align: u64,
        type_id: TypeId,
        lane: Option<u32>,
    ) -> Result<BlockInfo, AllocRefused> {
        if !align.is_power_of_two() || align > 1 << self.data.trailing_zeros().min(21) {
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
                    return Ok(self.info(&Found { slot: 0, record }));
                }
                // Each turn merges blocks or adds a level, of which there are only so many.
                Err(Fault::NoSlot(unit)) => self.make_room(state, unit)?,
                Err(Fault::NoBlock) => {
                    if !self.merge_for(state, class)? {
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
        Ok(())
    }

    /// The allocated block that begins at `addr`.
    ///
    /// # Errors
    /// What `addr` is instead.
    pub fn find(&self, addr: u64) -> Result<BlockInfo, FreeRefused> {
        self.allocated(&mut self.lock(), addr).map(|found| self.info(&found))
    }

    /// The allocated block that contains `addr`, if one does.
    ///
    /// # Errors
    /// The metadata are damaged where that would stand.
    pub fn owner(&self, addr: u64) -> Result<Option<BlockInfo>, Damage> {
        let Some(offset) = self.offset(addr) else { return Ok(None) };
        let mut state = self.lock();
        let mut plan = state.plan(&self.meta);
        let found = plan.containing(offset / UNIT_SIZE).map_err(Fault::damage)?;
        Ok(found.filter(|found| !found.record.is_free()).map(|found| self.info(&found)))
    }

    /// The offset in the data region of an address that lies there.
    fn offset(&self, addr: u64) -> Option<u64> {
        let offset = addr.checked_sub(self.data)?;
        (offset < self.meta.geometry.data_len).then_some(offset)
    }

    fn info(&self, found: &Found) -> BlockInfo {
        let record = &found.record;
        BlockInfo {
            addr: self.data + record.unit() * UNIT_SIZE,
            size: record.size(),
            type_id: record.type_id,
        }
    }

    /// The record of the allocated block that begins at `addr`, or what `addr` is instead.
    pub(crate) fn allocated(&self, state: &mut State, addr: u64) -> Result<Found, FreeRefused> {
        let Some(offset) = self.offset(addr) else {
            let in_metadata =
                (self.meta_addr..self.meta_addr + self.meta.geometry.metadata_len).contains(&addr);
            return Err(match in_metadata {
                true => FreeError::NotABlock { addr },
                false if self.backing.is_foreign(addr) => FreeError::OtherPool { addr },
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
                        FreeError::InsideBlock { addr, block: self.info(&found).addr }
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
        let probes = state.probes;
        let plan = state.plan(&self.meta);
        let mut stats =
            SubHeapStats { levels: levels.0.count_ones(), probes, ..SubHeapStats::default() };
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

    /// Adds a free block that has no record yet.
    fn add_free(
        &self,
        state: &mut State,
        record: cenote_layout::logged::BlockRecord,
    ) -> Result<(), SubHeapError> {
        loop {
            let planned = self.change(state, |plan| {
                let found = plan.insert(record)?;
                plan.append(found)
            });
            match planned {
                Ok(()) => return Ok(()),
                Err(Fault::NoSlot(_)) => self.add_level(state).map_err(|refused| {
                    let offset = self.meta.geometry.table;
                    let damage = Damage { offset, what: "a new table has no room" };
                    match refused {
                        AllocRefused::Backing(error) => SubHeapError::Backing(error),
                        _ => SubHeapError::Damaged(damage),
                    }
                })?,
                Err(fault) => return Err(fault.damage().into()),
            }
        }
    }
}
