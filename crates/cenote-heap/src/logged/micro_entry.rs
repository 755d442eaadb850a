//! Plans one entry of the micro log, as a part of the change that it is about.

use super::error::Fault;
use super::plan::ChangePlan;
use cenote_layout::logged::{
    CELL_SIZE, LANE_HEADER_SIZE, LANE_SIZE, LANES_MAX, LANES_OFFSET, LaneLink, MicroEntry,
    MicroKind, SubHeapGeometry,
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

/// Where the entry of a ticket lies.
pub(crate) const fn ticket_entry_at(geometry: &SubHeapGeometry, ticket: u32) -> u64 {
    geometry.ticket_at(ticket) + CELL_SIZE
}

/// Where a transaction notes what it does with a block.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum MicroHolder {
    /// A lane of the micro log, for all its blocks.
    Lane(u32),
    /// A ticket, for one block.
    Ticket(u32),
}

impl MicroHolder {
    /// What checks of entries know it by.
    pub(crate) const fn number(self) -> u32 {
        match self {
            Self::Lane(lane) => lane,
            Self::Ticket(ticket) => LANES_MAX + ticket,
        }
    }
}

/// An entry that a plan adds.
#[derive(Clone, Copy, Debug)]
pub(crate) struct NewEntry {
    pub(crate) holder: MicroHolder,
    pub(crate) index: usize,
    pub(crate) sequence: u64,
    pub(crate) kind: MicroKind,
    /// The lane that decides, if it is another one: the first entry of a transaction names it.
    pub(crate) link: Option<LaneLink>,
}

impl NewEntry {
    /// Plans the entry, about the block at `grain`.
    pub(crate) fn plan(self, plan: &mut ChangePlan<'_>, grain: u64) -> Result<(), Fault> {
        let at = match self.holder {
            MicroHolder::Lane(lane) => entry_at(lane, self.index),
            MicroHolder::Ticket(ticket) => ticket_entry_at(&plan.meta.geometry, ticket),
        };
        let (cell, word) = (at / CELL_SIZE, (at % CELL_SIZE / 8) as usize);
        let number = self.holder.number();
        let entry = MicroEntry::new(number, self.index, self.sequence, grain, self.kind);
        let mut raw = plan.change.get(plan.meta, cell);
        (raw[word], raw[word + 1]) = (entry.place, entry.tail);
        plan.change.put(plan.meta, cell, raw)?;
        match (self.holder, self.link.filter(|_| self.index == 0)) {
            (MicroHolder::Lane(lane), Some(link)) => {
                plan.change.write(plan.meta, LaneLink::cell(lane), &link)
            }
            _ => Ok(()),
        }
    }
}
