//! Says where a sub-heap's blocks lie: parts of its data, by address and by number of unit.

use crate::backing::Extent;
use cenote_layout::logged::{PartEntry, UNIT_SIZE};
use cenote_layout::puddle::header_space;
use cenote_layout::{PAGE_SIZE, SLOT_SIZE};
use core::ops::Range;

/// A range of a puddle.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Region {
    /// Number of the puddle in its pool.
    pub puddle: u32,
    /// Its address, a multiple of 2 MiB.
    pub base: u64,
    /// From there to the range: whole pages.
    pub from: u64,
    /// Bytes of the range.
    pub len: u64,
}

impl Region {
    /// Address of its first byte.
    #[must_use]
    pub const fn addr(&self) -> u64 {
        self.base + self.from
    }

    pub(crate) const fn is_possible(&self) -> bool {
        self.base != 0
            && self.base.is_multiple_of(PAGE_SIZE)
            && self.from.is_multiple_of(PAGE_SIZE)
            && self.len.is_multiple_of(UNIT_SIZE)
    }

    /// All of a puddle behind its header.
    pub(crate) const fn body(extent: &Extent) -> Self {
        let from = header_space(extent.size);
        Self { puddle: extent.index, base: extent.addr, from, len: extent.size - from }
    }

    /// A range for metadata in a puddle that has nothing else, behind so many guard pages.
    pub(crate) const fn for_metadata(extent: &Extent, len: u64, guards: u32) -> Self {
        let from = header_space(extent.size) + guards as u64 * PAGE_SIZE;
        Self { puddle: extent.index, base: extent.addr, from, len }
    }

    /// Bytes of a puddle that has room for metadata of `len` bytes, with their guard pages.
    pub(crate) const fn puddle_len(len: u64, guards: u32) -> u64 {
        header_space(len + SLOT_SIZE) + len + 2 * guards as u64 * PAGE_SIZE
    }

    /// The page before the range.
    pub(crate) const fn page_before(&self) -> Range<usize> {
        let end = self.addr() as usize;
        end - PAGE_SIZE as usize..end
    }

    /// The page behind the range.
    pub(crate) const fn page_behind(&self) -> Range<usize> {
        let start = (self.addr() + self.len.next_multiple_of(PAGE_SIZE)) as usize;
        start..start + PAGE_SIZE as usize
    }

    /// Whether it lies in its puddle as [`Region::for_metadata`] has it, with a page behind it.
    pub(crate) const fn is_between_guards(&self, extent: &Extent) -> bool {
        let end = self.from + self.len.next_multiple_of(PAGE_SIZE) + PAGE_SIZE;
        self.from == header_space(extent.size) + PAGE_SIZE && end <= extent.size
    }

    /// The range that an entry names.
    pub(crate) fn of(part: &PartEntry, extents: &[Extent]) -> Option<Self> {
        let extent = extents.iter().find(|extent| extent.index == part.puddle)?;
        let is_inside = part.from() + part.len() <= extent.size;
        let (puddle, base) = (extent.index, extent.addr);
        is_inside.then_some(Self { puddle, base, from: part.from(), len: part.len() })
    }
}

/// One part of the data.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct DataPart {
    /// Address of its first byte.
    pub(crate) addr: u64,
    /// Number of its first unit.
    pub(crate) unit: u64,
    /// Its units.
    pub(crate) units: u64,
}

/// All data of a sub-heap, in order of units.
#[derive(Clone, Debug, Default)]
pub(crate) struct DataParts(Vec<DataPart>);

impl DataParts {
    pub(crate) fn iter(&self) -> impl Iterator<Item = &DataPart> {
        self.0.iter()
    }

    pub(crate) fn add(&mut self, part: DataPart) {
        self.0.push(part);
        self.0.sort_unstable_by_key(|part| part.unit);
    }

    /// The offset of an address that lies in the data.
    #[inline]
    pub(crate) fn offset_of(&self, addr: u64) -> Option<u64> {
        // There are few: each is larger than a fifth of all before it, but at a limit.
        self.0.iter().find_map(|part| {
            let inside = addr.wrapping_sub(part.addr);
            (inside < part.units * UNIT_SIZE).then(|| part.unit * UNIT_SIZE + inside)
        })
    }

    fn part_of(&self, unit: u64) -> Option<&DataPart> {
        let behind = self.0.partition_point(|part| part.unit <= unit);
        self.0.get(behind.checked_sub(1)?).filter(|part| unit < part.unit + part.units)
    }

    /// The address of a unit; 0 if it is in no part.
    pub(crate) fn addr_of(&self, unit: u64) -> u64 {
        self.part_of(unit).map_or(0, |part| part.addr + (unit - part.unit) * UNIT_SIZE)
    }

    /// The units of the part that a unit lies in.
    pub(crate) fn range_of(&self, unit: u64) -> Range<u64> {
        self.part_of(unit).map_or(0..0, |part| part.unit..part.unit + part.units)
    }

    /// Bytes of all parts.
    pub(crate) fn bytes(&self) -> u64 {
        self.0.iter().map(|part| part.units * UNIT_SIZE).sum()
    }

    /// Number of the first unit of the next part. Its blocks have the alignment of their addresses,
    /// up to 2 MiB, and the largest block behind those that are smaller lies at a multiple of its
    /// size.
    pub(crate) fn next_unit(&self, region: &Region) -> u64 {
        let end = self.0.last().map_or(0, |part| (part.unit + part.units) * UNIT_SIZE);
        let before = region.from.next_multiple_of(SLOT_SIZE);
        let largest = region.len.next_power_of_two().max(SLOT_SIZE);
        let aligned = (end + before).next_multiple_of(largest);
        (aligned - before + region.from) / UNIT_SIZE
    }
}
