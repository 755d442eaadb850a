//! Where the numbered roots of a traced heap lie ([`crate::roots`]).

use super::state::TracedHeap;
use super::superblock::PuddleHeap;
use super::trace::TraceRoot;
use crate::backing::Backing;
use crate::error::RootError;
use crate::roots::{self, RootWay};
use cenote_layout::heap::{ROOT_COUNT, RootEntry, RootSlot};
use cenote_layout::id::TypeId;
use core::ptr::NonNull;

impl<G: Backing> TracedHeap<G> {
    /// The root puddle. It is attached by `open`.
    pub(crate) fn root_puddle(&self) -> Option<&PuddleHeap> {
        self.puddles.get(0)
    }

    pub(crate) fn slot_of_root(&self, index: u16) -> Result<NonNull<RootSlot>, RootError> {
        self.root_puddle().and_then(|puddle| puddle.root(index)).ok_or(RootError::Index { index })
    }

    pub(crate) fn read_root(&self, index: u16) -> Result<RootEntry, RootError> {
        roots::read(index, self.slot_of_root(index)?)
    }

    pub(crate) fn write_root(
        &self,
        index: u16,
        addr: u64,
        type_id: TypeId,
    ) -> Result<(), RootError> {
        if !self.writable {
            return Err(RootError::ReadOnly);
        }
        let way = RootWay { distance: self.distance, notes: None };
        let slot = (self.slot_of_root(index)?, &way);
        roots::write(index, slot, RootEntry { addr, type_id }, &self.backing)
    }
}

/// The numbered roots that lead somewhere, and the numbers of those that are damaged.
pub(crate) fn all(puddle: Option<&PuddleHeap>) -> (Vec<TraceRoot>, Vec<u16>) {
    let (mut roots, mut damaged) = (Vec::new(), Vec::new());
    let Some(puddle) = puddle else { return (roots, damaged) };
    for index in 0..ROOT_COUNT as u16 {
        let Some(slot) = puddle.root(index) else { continue };
        match crate::roots::load(slot) {
            Some(RootEntry { addr: 0, .. }) => {}
            Some(RootEntry { addr, type_id }) => {
                roots.push(TraceRoot {
                    at: slot.as_ptr().expose_provenance() as u64,
                    to: addr,
                    target: type_id,
                });
            }
            None => damaged.push(index),
        }
    }
    (roots, damaged)
}
