//! One entry of the micro log, planned as a part of the change that it is about.

use super::error::Fault;
use super::plan::Plan;
use cenote_layout::logged::{
    CELL_SIZE, LANE_HEADER_SIZE, LANE_SIZE, LANES_OFFSET, LaneLink, MicroEntry, MicroKind,
};
use core::mem::size_of;

/// Where a lane begins.
pub(crate) const fn lane_at(lane: u32) -> u64 {
    LANES_OFFSET + lane as u64 * LANE_SIZE
}

/// Where an entry of a lane lies.
pub(crate) const fn entry_at(lane: u32, index: usize) -> u64 {
    lane_at(lane) + LANE_HEADER_SIZE + index as u64 * size_of::<MicroEntry>() as u64
}

/// An entry that a plan adds to a lane.
#[derive(Clone, Copy, Debug)]
pub(crate) struct NewEntry {
    pub(crate) lane: u32,
    pub(crate) index: usize,
    pub(crate) sequence: u64,
    pub(crate) kind: MicroKind,
    /// Who decides, if that is another lane: the first entry of a transaction says so.
    pub(crate) link: Option<LaneLink>,
}

impl NewEntry {
    /// Plans the entry, about the block at `grain`.
    pub(crate) fn plan(self, plan: &mut Plan<'_>, grain: u64) -> Result<(), Fault> {
        let at = entry_at(self.lane, self.index);
        let (cell, word) = (at / CELL_SIZE, (at % CELL_SIZE / 8) as usize);
        let entry = MicroEntry::new(self.lane, self.index, self.sequence, grain, self.kind);
        let mut raw = plan.change.get(plan.meta, cell);
        (raw[word], raw[word + 1]) = (entry.place, entry.tail);
        plan.change.put(plan.meta, cell, raw)?;
        match self.link.filter(|_| self.index == 0) {
            Some(link) => plan.change.write(plan.meta, LaneLink::cell(self.lane), &link),
            None => Ok(()),
        }
    }
}
