//! Plans a change: reads metadata as they will be once it is made, and adds cells to it.

use super::cells::Metadata;
use super::change::Change;
use super::data::DataParts;
use super::error::Fault;
use super::rooms::Slabs;
use cenote_layout::logged::{BlockRecord, LEVELS_MAX, LevelEntry};

/// Levels of the table that are present, a bit each. Level 0 always is.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Levels(pub(crate) u32);

impl Levels {
    /// The levels that entries say are present.
    pub(crate) fn read(meta: &Metadata, change: &Change) -> Result<Self, Fault> {
        (0..LEVELS_MAX).try_fold(Self(0), |levels, level| {
            let cell = LevelEntry::cell(level);
            let entry: LevelEntry =
                change.read(meta, cell, "a level entry does not fit its check")?;
            Ok(Self(levels.0 | u32::from(entry.state == LevelEntry::PRESENT) << level))
        })
    }

    /// Their numbers, the largest level first: it has most of the records.
    pub(crate) fn iter(self) -> impl Iterator<Item = u32> {
        let mut left = self.0;
        core::iter::from_fn(move || {
            let level = left.checked_ilog2()?;
            left &= !(1 << level);
            Some(level)
        })
    }
}

/// A record and the slot that it lies in.
#[derive(Clone, Copy, Debug)]
pub(crate) struct FoundRecord {
    pub(crate) slot: u32,
    pub(crate) record: BlockRecord,
}

/// A change in the making.
#[derive(Debug)]
pub(crate) struct ChangePlan<'a> {
    pub(crate) meta: &'a Metadata,
    pub(crate) change: &'a mut Change,
    pub(crate) levels: Levels,
    /// Where blocks may lie.
    pub(crate) data: &'a DataParts,
    /// Slabs that are known.
    pub(crate) slabs: &'a mut Slabs,
    /// Slots that were looked at.
    pub(crate) probes: &'a mut u64,
}

impl ChangePlan<'_> {
    /// The record in a slot that a list leads to.
    pub(crate) fn record_in(&self, slot: u32) -> Result<BlockRecord, Fault> {
        let cell = self.meta.geometry.slot_cell(slot);
        self.change.read(self.meta, cell, "a block record does not fit its check")
    }

    /// Plans what a slot is to hold.
    pub(crate) fn set_record(&mut self, found: &FoundRecord) -> Result<(), Fault> {
        let cell = self.meta.geometry.slot_cell(found.slot);
        self.change.write(self.meta, cell, &found.record)
    }
}
