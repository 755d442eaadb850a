//! The state of a sub-heap in one process: its regions, and what changes under its lock (section
//! 5.7).

use super::cells::Metadata;
use super::change::Change;
use super::data::DataParts;
use super::error::Fault;
use super::micro_entry::MicroHolder;
use super::plan::{ChangePlan, Levels};
use super::rooms::{NumberMap, NumberSet, Slabs};
use super::undo::Undo;
use super::used_tickets::Tickets;
use crate::backing::Backing;
use cenote_layout::logged::{LaneLink, MicroKind};
use std::sync::{Mutex, MutexGuard, PoisonError};

/// Blocks of a pool, with metadata, a lock and logs of its own (POS-1). All
/// calls may come from any thread.
#[derive(Debug)]
pub struct SubHeap<G> {
    pub(crate) backing: G,
    pub(crate) meta: Metadata,
    pub(crate) state: Mutex<SubHeapState>,
}

/// One entry of a running transaction: a block, and what is to become of it.
pub(crate) type LaneEntry = (u64, MicroKind);

/// A lane of the micro log in use.
#[derive(Debug)]
pub(crate) struct Lane {
    /// Number of the transaction that runs or runs next.
    pub(crate) sequence: u64,
    /// Whether one runs.
    pub(crate) open: bool,
    /// What its entries say.
    pub(crate) entries: Vec<LaneEntry>,
    /// Which lane of another sub-heap decides for this one's transaction.
    pub(crate) link: Option<LaneLink>,
}

impl Lane {
    /// A lane in which no transaction runs.
    pub(crate) const fn new(sequence: u64) -> Self {
        Self { sequence, open: false, entries: Vec::new(), link: None }
    }
}

/// What the lock of a sub-heap is for.
#[derive(Debug)]
pub(crate) struct SubHeapState {
    pub(crate) undo: Undo,
    /// A change in the making; empty between operations.
    pub(crate) change: Change,
    pub(crate) levels: Levels,
    /// Where blocks lie.
    pub(crate) data: DataParts,
    /// Entries of parts in use.
    pub(crate) parts: u32,
    /// From this class on, merging free blocks made none, and no block was freed since.
    pub(crate) barren: u8,
    pub(crate) lanes: Vec<Lane>,
    /// Slabs that are known.
    pub(crate) slabs: Slabs,
    /// Tickets that were used.
    pub(crate) tickets: Tickets,
    /// Of a pool that is open for reading: grains of blocks that the next writer will free.
    pub(crate) hidden: NumberSet<u64>,
    /// Blocks that running transactions allocated or want freed, by grain, and where that is noted.
    pub(crate) pending: NumberMap<u64, MicroHolder>,
    /// Slots of the table that were looked at.
    pub(crate) probes: u64,
}

impl SubHeapState {
    /// Whether a transaction has the block at a grain, or the next writer frees it.
    #[inline]
    pub(crate) fn is_spoken_for(&self, grain: u64) -> bool {
        self.pending.contains_key(&grain) || self.hidden.contains(&grain)
    }

    /// A plan of a change that is empty so far.
    pub(crate) fn plan<'a>(&'a mut self, meta: &'a Metadata) -> ChangePlan<'a> {
        self.change.clear();
        let Self { change, levels, data, slabs, probes, .. } = self;
        ChangePlan { meta, change, levels: *levels, data, slabs, probes }
    }
}

impl<G: Backing> SubHeap<G> {
    pub(crate) fn lock(&self) -> MutexGuard<'_, SubHeapState> {
        // A change is stored after it is planned, and storing cannot panic: a panic left nothing
        // half done.
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Makes the change that was planned.
    ///
    /// # Errors
    /// A page of the metadata was lost, or the store acknowledges nothing for another reason: the
    /// change is not made, or counts as broken off.
    pub(crate) fn commit(&self, state: &mut SubHeapState) -> Result<(), Fault> {
        let made = state.undo.commit(&self.meta.writer(&self.backing), &state.change);
        state.change.clear();
        made.map_err(Fault::Damaged)
    }

    /// Plans a change and makes it; nothing is stored if the plan fails.
    pub(crate) fn change<T>(
        &self,
        state: &mut SubHeapState,
        plan: impl FnOnce(&mut ChangePlan<'_>) -> Result<T, Fault>,
    ) -> Result<T, Fault> {
        let planned = plan(&mut state.plan(&self.meta))?;
        self.commit(state)?;
        Ok(planned)
    }
}
