//! Adds parts to a sub-heap (POS-1): data, when no free block is large enough, and levels of the
//! table, when no slot is left for a record.
//!
//! *Data*: **the change that stores the entry of the part commits**. It has the records of the free
//! blocks too, so there is no moment at which a part has space that no record names. Room for the
//! records is made before, by changes of their own.
//!
//! *Levels*: **the change that stores the entry commits**. The levels in it stay absent until they
//! are needed.
//!
//! A crash before leaves a puddle that no entry names. The heap finds it and uses it for the next
//! part ([`super::grow`]).
//!
//! Blocks are numbered through all data of a sub-heap. A part has numbers of its own, with a gap
//! before it, and a block and its buddy lie in one part.

use super::buddy::cover;
use super::cells::{GuardPages, Metadata, guards_of};
use super::data::{DataPart, Region};
use super::error::{AllocRefused, Damage, Fault, SubHeapError};
use super::state::{SubHeap, SubHeapState};
use crate::backing::{Backing, Extent};
use cenote_layout::logged::{
    CELL_SIZE, Cell, EMPTY, LEVELS_MAX, PARTS_MAX, PartEntry, PartKind, RawCell, UNIT_SIZE,
};
use cenote_medium::planted::{Bug, LoggedBug, planted};
use cenote_protect::Protection;

/// What the entry of a part is stored as; 0 if there is none.
fn entry_in(meta: &Metadata, index: u32) -> RawCell {
    meta.cell(PartEntry::cell(index))
}

impl<G: Backing> SubHeap<G> {
    /// The parts behind the first of the metadata: their puddles, and whether blocks lie in them.
    pub(crate) fn puddles(&self) -> Vec<(u32, bool)> {
        let count = self.lock().parts;
        let entry = |index| {
            let cell = PartEntry::cell(index);
            PartEntry::from_raw(self.meta.cell(cell), cell)
        };
        (0..count).filter_map(entry).map(|part| (part.puddle, part.is_data())).collect()
    }

    /// Says where levels lie, as far as entries can be read: one that is being stored cannot, and
    /// no change has a cell in its levels.
    pub(crate) fn learn_levels(&self, extents: &[Extent]) {
        for index in 0..PARTS_MAX {
            let raw = entry_in(&self.meta, index);
            if let Some(part) = PartEntry::from_raw(raw, PartEntry::cell(index)) {
                self.place_levels(&part, extents);
            }
        }
    }

    /// Guards all metadata from now on, where that can be had. No thread uses the sub-heap yet.
    ///
    /// # Safety
    /// As [`cenote_protect::Guards::add`], of all parts of the metadata; nothing uses guard pages.
    pub(crate) unsafe fn guard(&self, protection: Protection, what: &str, beside: GuardPages) {
        let guards = guards_of(&self.backing, protection, what);
        // SAFETY: the caller's promise.
        if unsafe { self.meta.guard(&self.backing, guards, beside) }.is_ok() {
            self.learn_levels(&self.backing.extents());
        }
    }

    fn place_levels(&self, part: &PartEntry, extents: &[Extent]) {
        let Some(region) = Region::of(part, extents).filter(|_| !part.is_data()) else { return };
        let (first, count) = part.levels();
        let mut at = region.addr();
        let extent = extents.iter().find(|extent| extent.index == region.puddle);
        let has_pages = extent.is_some_and(|extent| region.is_between_guards(extent));
        // SAFETY: a part of the sub-heap, in one puddle that has nothing else; all stores are those
        // of writers.
        let guarded =
            unsafe { self.meta.guard_far(&self.backing, first..first + count, &region, has_pages) };
        if guarded.is_err() {
            self.meta.note_gap();
        }
        for level in first..first + count {
            let (_, len) = self.meta.geometry.level_range(level);
            if at + len > region.addr() + region.len {
                break;
            }
            // SAFETY: a part of the sub-heap, which is the sub-heap's alone, in a puddle that is
            // mapped as long as the backing lives (contract of `SubHeap::open`).
            unsafe { self.meta.set_far(level, at) };
            at += len;
        }
    }

    /// Reads all entries of parts.
    pub(crate) fn read_parts(
        &self,
        state: &mut SubHeapState,
        extents: &[Extent],
    ) -> Result<(), SubHeapError> {
        for index in 0..PARTS_MAX {
            let cell = PartEntry::cell(index);
            let damage = |what| Damage { offset: cell * CELL_SIZE, what };
            let raw = entry_in(&self.meta, index);
            if raw == EMPTY {
                continue;
            }
            let part = PartEntry::from_raw(raw, cell)
                .ok_or(damage("the entry of a part does not fit its check"))?;
            let region = Region::of(&part, extents)
                .ok_or(damage("a part lies in a puddle that the pool does not have"))?;
            if index != state.parts {
                return Err(damage("entries of parts have a gap").into());
            }
            state.parts = index + 1;
            if part.is_data() {
                let (addr, unit) = (region.addr(), part.first);
                state.data.add(DataPart { addr, unit, units: part.len() / UNIT_SIZE });
            }
        }
        match state.data.iter().next() {
            Some(_) => Ok(()),
            None => {
                let offset = PartEntry::cell(0) * CELL_SIZE;
                Err(Damage { offset, what: "a sub-heap has no data" }.into())
            }
        }
    }

    /// Adds data.
    ///
    /// # Safety
    /// As for the data of [`SubHeap::format`], in a puddle in which no other part of a sub-heap
    /// lies.
    ///
    /// # Errors
    /// There is no room for one more part, or for the records of its free blocks; nothing has
    /// changed that counts.
    pub unsafe fn add_data(&self, region: &Region) -> Result<(), AllocRefused> {
        let mut state = self.lock();
        let first = state.data.next_unit(region);
        let end = first + region.len / UNIT_SIZE;
        let part = self.next_part(&state, PartKind::Data, first, region)?;
        let index = state.parts;
        if planted(Bug::Logged(LoggedBug::PartEntryApart)) {
            self.change(&mut state, |plan| {
                plan.change.write(plan.meta, PartEntry::cell(index), &part)
            })
            .map_err(Fault::damage)?;
        }
        loop {
            let planned = self.change(&mut state, |plan| {
                plan.change.write(plan.meta, PartEntry::cell(index), &part)?;
                cover(first, end).try_for_each(|record| {
                    let found = plan.insert(record)?;
                    plan.append(found)
                })
            });
            match planned {
                Ok(()) => break,
                Err(Fault::NoSlot(unit)) => self.make_room(&mut state, unit)?,
                Err(fault) => return Err(fault.damage().into()),
            }
        }
        let units = region.len / UNIT_SIZE;
        state.data.add(DataPart { addr: region.addr(), unit: first, units });
        state.parts += 1;
        state.barren = u8::MAX;
        Ok(())
    }

    /// The levels that the table needs next: the first, how many, and their bytes. `None`: there
    /// can be no more.
    pub(crate) fn next_levels(&self) -> Option<(u32, u32, u64)> {
        let first = (0..LEVELS_MAX).find(|&level| self.meta.level_addr(level).is_none())?;
        let (mut count, mut len) = (0, 0);
        while len < LEVELS_PART_LEN && first + count < LEVELS_MAX {
            len += self.meta.geometry.level_range(first + count).1;
            count += 1;
        }
        Some((first, count, len))
    }

    /// Adds levels to those that the table can have, as [`SubHeap::next_levels`] said.
    ///
    /// # Safety
    /// As for the metadata of [`SubHeap::format`], in a puddle in which no other part lies.
    ///
    /// # Errors
    /// There is no room for one more part, or the levels are not the next ones.
    pub(crate) unsafe fn add_levels(
        &self,
        region: &Region,
        extent: &Extent,
        (first, count): (u32, u32),
    ) -> Result<(), AllocRefused> {
        let mut state = self.lock();
        if self.next_levels().is_none_or(|(next, ..)| next != first) {
            return Err(AllocRefused::TableFull);
        }
        let levels = u64::from(first) | u64::from(count) << 32;
        let part = self.next_part(&state, PartKind::Levels, levels, region)?;
        let index = state.parts;
        self.change(&mut state, |plan| plan.change.write(plan.meta, PartEntry::cell(index), &part))
            .map_err(Fault::damage)?;
        state.parts += 1;
        self.place_levels(&part, core::slice::from_ref(extent));
        Ok(())
    }

    fn next_part(
        &self,
        state: &SubHeapState,
        kind: PartKind,
        first: u64,
        region: &Region,
    ) -> Result<PartEntry, AllocRefused> {
        PartEntry::new(kind, first, region.puddle, region.from, region.len)
            .filter(|_| state.parts < PARTS_MAX)
            .ok_or(AllocRefused::Parts { parts: PARTS_MAX })
    }
}

/// Levels are added until a part of them has so many bytes.
const LEVELS_PART_LEN: u64 = 24 << 10;
