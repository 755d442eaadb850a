//! Makes and opens sub-heaps (POS-1; sections 5.1 and 5.8).
//!
//! **Making** stores everything but the header, flushes and fences; then **the header commits**. A
//! region whose header does not fit its checksum is none, and can be made again.
//!
//! **Opening** undoes the change that a crash broke off ([`super::undo`]), then ends the
//! transactions that it broke off ([`super::micro`]). It reads the undo log, the entries of parts
//! and levels, and the lanes, no matter how many blocks there are, and traces nothing. A crash
//! while it does so leaves the same work, or less.

use super::buddy::cover;
use super::cells::{Metadata, Words};
use super::change::Change;
use super::data::{DataParts, Region};
use super::error::{AllocRefused, Damage, Fault, SubHeapError};
use super::plan::Levels;
use super::rooms::{NumberMap, NumberSet, Slabs};
use super::state::{Lane, SubHeap, SubHeapState};
use super::undo::Undo;
use super::used_tickets::Tickets;
use crate::backing::{Backing, Extent};
use cenote_layout::PAGE_SIZE;
use cenote_layout::header;
use cenote_layout::logged::{
    BlockRecord, CLASS_MAX, CLASS_MIN, Cell, DATA_LEN_MIN, LANES_OFFSET, LEVELS_MAX, LISTS_OFFSET,
    LaneState, LaneWord, LevelEntry, ListHead, PartEntry, PartKind, SubHeapGeometry, SubHeapHeader,
    UNDO_HALF_SIZE, UNDO_HEADER_SIZE, UNDO_OFFSET, UNIT_SIZE,
};
use std::sync::Mutex;
use zerocopy::IntoBytes;

/// Where the first parts of a sub-heap lie.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct SubHeapPlace {
    /// Its data.
    pub data: Region,
    /// Its metadata: at least as many bytes as [`SubHeapGeometry`] asks for.
    pub metadata: Region,
}

/// What a crash had left when a sub-heap was opened.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Recovered {
    /// Whether a change was broken off, and undone.
    pub undone: bool,
    /// Blocks that transactions had allocated or were freeing, and that are free now.
    pub freed: u64,
}

fn check(what: &'static str, region: &Region, needed: u64) -> Result<(), SubHeapError> {
    match region.is_possible() && region.len >= needed {
        true => Ok(()),
        false => {
            let (addr, len) = (region.addr(), region.len);
            Err(SubHeapError::Region { region: what, addr, len, needed })
        }
    }
}

impl<G: Backing> SubHeap<G> {
    /// Makes a sub-heap in two regions that nothing uses, and opens it. Its table can have levels
    /// for all blocks of the data.
    ///
    /// # Safety
    /// Both regions are mapped for writing as long as the sub-heap lives, in the memory and the
    /// puddles of `backing` that they name, and do not overlap; the metadata region reads as zeros.
    /// Nothing but the sub-heap uses the metadata, and of the data others use the blocks that it
    /// gave them.
    ///
    /// # Errors
    /// The regions do not fit, or the medium reports an error.
    pub unsafe fn format(
        backing: G,
        place: &SubHeapPlace,
        number: u32,
        lanes: u32,
    ) -> Result<Self, SubHeapError> {
        let shape = SubHeapError::Shape { data_len: place.data.len, lanes };
        let levels = SubHeapGeometry::levels_for(place.data.len);
        let geometry = SubHeapGeometry::new(lanes, 0, levels).ok_or(shape)?;
        // SAFETY: the caller's promise is the same.
        unsafe { Self::make(backing, place, number, geometry) }
    }

    /// [`SubHeap::format`] with a geometry.
    ///
    /// # Safety
    /// As there.
    pub(crate) unsafe fn make(
        backing: G,
        place: &SubHeapPlace,
        number: u32,
        geometry: SubHeapGeometry,
    ) -> Result<Self, SubHeapError> {
        check("data", &place.data, DATA_LEN_MIN)?;
        // SAFETY: the caller's promise about the regions is the one that `new` asks for.
        let heap = unsafe { Self::new(backing, &place.metadata, geometry) }?;
        let unit = DataParts::default().next_unit(&place.data);
        heap.store_first(&place.data, unit)?;
        {
            let mut state = heap.lock();
            state.levels = Levels(1);
            state.lanes = (0..geometry.lanes).map(|_| Lane::new(0)).collect();
            let data = place.data;
            let extent = Extent { index: data.puddle, addr: data.base, size: data.from + data.len };
            heap.read_parts(&mut state, &[extent])?;
            for record in cover(unit, unit + place.data.len / UNIT_SIZE) {
                heap.add_free(&mut state, record)?;
            }
        }
        let header = SubHeapHeader::new(number, &geometry);
        let writer = heap.meta.writer(&heap.backing);
        writer.store_all(0, &words_of(header.as_bytes()));
        writer.flush(0, PAGE_SIZE);
        writer.fence();
        drop(writer);
        Ok(heap)
    }

    /// Stores what a sub-heap without blocks has, but for the header.
    fn store_first(&self, data: &Region, unit: u64) -> Result<(), SubHeapError> {
        let geometry = self.meta.geometry;
        let writer = self.meta.writer(&self.backing);
        for half in 0..2 {
            let at = UNDO_OFFSET + half * UNDO_HALF_SIZE;
            writer.store_all(at, &[0; (UNDO_HEADER_SIZE / 8) as usize]);
            writer.flush(at, UNDO_HEADER_SIZE);
        }
        for class in CLASS_MIN..=CLASS_MAX {
            let cell = ListHead::cell(class);
            writer.store_cell(cell, ListHead::default().to_raw(cell));
        }
        for level in 0..LEVELS_MAX {
            let state = if level == 0 { LevelEntry::PRESENT } else { LevelEntry::ABSENT };
            let cell = LevelEntry::cell(level);
            let entry = LevelEntry { state, ..LevelEntry::default() };
            writer.store_cell(cell, entry.to_raw(cell));
        }
        let part = PartEntry::new(PartKind::Data, unit, data.puddle, data.from, data.len);
        let part = part.ok_or(SubHeapError::Shape { data_len: data.len, lanes: geometry.lanes })?;
        writer.store_cell(PartEntry::cell(0), part.to_raw(PartEntry::cell(0)));
        writer.flush(LISTS_OFFSET, LANES_OFFSET - LISTS_OFFSET);
        for lane in 0..geometry.lanes {
            self.set_lane(lane, LaneWord { sequence: 0, state: LaneState::Running });
        }
        Ok((1..geometry.levels).try_for_each(|level| self.punch(level))?)
    }

    /// Opens the sub-heap of which `metadata` are the first part: undoes what a crash broke off.
    /// Its other parts lie in puddles of the backing.
    ///
    /// # Safety
    /// As for [`SubHeap::format`], but for what the metadata read as: it holds for all parts that
    /// the metadata name.
    ///
    /// # Errors
    /// There is no sub-heap, its metadata are damaged, or the backing is read-only.
    pub unsafe fn open(backing: G, metadata: &Region) -> Result<(Self, Recovered), SubHeapError> {
        let extents = backing.extents();
        // SAFETY: the caller's promise is the same.
        let (heap, undone) = unsafe { Self::attach(backing, metadata, &extents, None) }?;
        let freed = heap.recover_lanes(&mut |_| None)? + heap.recover_tickets()?;
        Ok((heap, Recovered { undone, freed }))
    }

    /// [`SubHeap::open`] without the end of transactions. Says whether a change was undone. Refuses
    /// a sub-heap with another number.
    ///
    /// # Safety
    /// As there.
    pub(crate) unsafe fn attach(
        backing: G,
        metadata: &Region,
        extents: &[Extent],
        number: Option<u32>,
    ) -> Result<(Self, bool), SubHeapError> {
        let least = SubHeapGeometry::new(1, 0, 1);
        let least = least.ok_or(SubHeapError::Shape { data_len: 0, lanes: 1 })?;
        check("metadata", metadata, least.metadata_len)?;
        // SAFETY: the region has more bytes than a header, which has been checked, and the caller
        // promises that they are mapped.
        let page = unsafe { Words::new(metadata.addr(), PAGE_SIZE) };
        let bytes = page.map(|page| page.bytes()).unwrap_or_default();
        let header: SubHeapHeader = header::read(&bytes, true)?;
        let shape = SubHeapError::Shape { data_len: 0, lanes: header.lanes };
        let geometry = header.geometry().ok_or(shape)?;
        if number.is_some_and(|number| number != header.number) {
            let what = "the header of a sub-heap has another number than its word";
            return Err(Damage { offset: 0, what }.into());
        }
        // SAFETY: the caller's promise about the regions is the one that `new` asks for.
        let heap = unsafe { Self::new(backing, metadata, geometry) }?;
        let writer = heap.meta.writer(&heap.backing);
        // Its process may have died before it was durable.
        writer.flush(0, PAGE_SIZE);
        writer.fence();
        heap.learn_levels(extents);
        if !heap.backing.is_writable() && Undo::is_unfinished(&heap.meta) {
            return Err(SubHeapError::ReadOnly);
        }
        let (undo, undone) = Undo::recover(&heap.meta, &writer)?;
        drop(writer);
        {
            let mut state = heap.lock();
            state.undo = undo;
            heap.read_parts(&mut state, extents)?;
            let levels = Levels::read(&heap.meta, &state.change).map_err(Fault::damage)?;
            state.levels = levels;
        }
        Ok((heap, undone))
    }

    /// # Safety
    /// As for [`SubHeap::open`].
    unsafe fn new(
        backing: G,
        metadata: &Region,
        geometry: SubHeapGeometry,
    ) -> Result<Self, SubHeapError> {
        check("metadata", metadata, geometry.metadata_len)?;
        // SAFETY: the region has as many bytes as the geometry asks for, which has been checked;
        // the caller promises the rest.
        let meta = unsafe { Metadata::new(metadata.addr(), geometry) };
        let (addr, needed) = (metadata.addr(), geometry.metadata_len);
        let region = SubHeapError::Region { region: "metadata", addr, len: metadata.len, needed };
        let state = SubHeapState {
            undo: Undo::default(),
            change: Change::default(),
            levels: Levels::default(),
            data: DataParts::default(),
            parts: 0,
            barren: u8::MAX,
            lanes: Vec::new(),
            slabs: Slabs::default(),
            tickets: Tickets::default(),
            hidden: NumberSet::default(),
            pending: NumberMap::default(),
            probes: 0,
        };
        Ok(Self { backing, meta: meta.ok_or(region)?, state: Mutex::new(state) })
    }

    /// Adds a free block that has no record yet.
    fn add_free(&self, state: &mut SubHeapState, record: BlockRecord) -> Result<(), SubHeapError> {
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

/// A page as words.
pub(crate) fn words_of(page: &[u8]) -> Vec<u64> {
    let word = |bytes: &[u8]| u64::from_le_bytes(bytes.try_into().unwrap_or_default());
    page.chunks_exact(8).map(word).collect()
}
