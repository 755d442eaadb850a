//! Registers what a puddle's addresses are for ([`cenote_protect`]).
//!
//! Invariant: a puddle that can never be mapped again owns no range, one that is rewritten is not
//! pending there, and a store gives its window back after its puddles have given up their ranges.
//! So no other puddle at their addresses is denied anything.

use super::data_guard::DataGuard;
use super::{MappingKind as Shows, Puddle};
use crate::kernel::catalog::CatalogState;
use crate::kernel::puddles::own_memory::OwnMemory;
use cenote_layout::PAGE_SIZE;
use cenote_layout::id::PoolId;
use cenote_medium::{MediumError, Operation};
use cenote_protect::dirty_bitmap::DirtyBitmap;
use cenote_protect::{Owner, RangeKind, Right, StoreNotes, Tracked, Whole};
use core::ops::Range;
use std::sync::OnceLock;

/// The owners of its range.
#[derive(Debug, Default)]
pub(super) struct Owners {
    /// Of one in shadowed mode that is open for writing: pages that may differ from the primary.
    pub(super) tracked: OnceLock<Tracked>,
    read_only: OnceLock<Owner<Whole>>,
    pending: OnceLock<Owner<Whole>>,
    /// Of a pool whose data are write-protected, while its heap is open.
    pub(super) data: DataGuard,
}

impl Owners {
    /// The range is another's from now on.
    pub(super) fn retire(&self) {
        self.tracked.get().iter().for_each(|tracked| tracked.retire());
        [&self.read_only, &self.pending]
            .into_iter()
            .flat_map(OnceLock::get)
            .for_each(Owner::retire);
    }

    /// It is rewritten, or its memory is about to be made.
    pub(super) fn end_pending(&self) {
        self.pending.get().into_iter().for_each(Owner::retire);
    }
}

/// A pool as explanations of faults name it.
pub(crate) fn pool_named(state: &CatalogState, pool: PoolId) -> String {
    match state.pools.get(&pool) {
        Some(known) => format!("pool \"{}\"", known.name),
        None => format!("pool {}", pool.0),
    }
}

impl Puddle {
    pub(super) fn range(&self) -> Range<usize> {
        self.addr() as usize..(self.addr() + self.size()) as usize
    }

    /// Its range is not its own any more: the store is about to give it back.
    pub(crate) fn give_up_range(&self) {
        self.memory().into_iter().for_each(OwnMemory::stop);
        self.owners.retire();
    }

    /// Pages that are stored into are noted, for psyncs of its pool. Said before it is mapped for
    /// writing. Memory that shows no file has notes of its own, and may come later.
    pub(crate) fn track(&self, pool: &str) {
        if self.kind != Shows::Sealed {
            self.owners.tracked.get_or_init(|| Tracked::new(self.range(), pool));
        }
    }

    /// The notes of pages that were stored into, if it is tracked.
    pub(crate) fn notes(&self) -> Option<&DirtyBitmap> {
        self.owners.tracked.get().map(Tracked::notes)
    }

    /// The notes, for code that stores into the puddle through another mapping. `None`: nothing is
    /// noted, or not by faults.
    #[must_use]
    pub fn store_notes(&self) -> Option<StoreNotes> {
        match self.memory() {
            Some(memory) => memory.store_notes(),
            None => self.owners.tracked.get().map(Tracked::store_notes),
        }
    }

    /// Of these pages, those that can be read where it is mapped.
    pub(crate) fn readable(&self, pages: Vec<Range<u64>>) -> Vec<Range<u64>> {
        match self.owners.tracked.get() {
            Some(tracked) => tracked.readable(&pages),
            None => pages,
        }
    }

    /// From here on a store into these pages, whose notes were taken, faults.
    pub(crate) fn protect(&self, pages: Range<u64>) -> Result<(), MediumError> {
        let Some(tracked) = self.owners.tracked.get() else { return Ok(()) };
        // SAFETY: the puddle's own mapping; the fault handler gives writing back.
        unsafe { tracked.protect(pages) }
            .map_err(|error| MediumError::from_io(Operation::Map, self.file_name(), error))
    }

    /// Lets no store into what is mapped, which shows more than its file.
    ///
    /// # Safety
    /// It is mapped by this store, and no thread writes to it any more.
    pub(crate) unsafe fn close_for_stores(&self, pool: &str) -> Result<(), MediumError> {
        let owner = self.owners.read_only.get_or_init(|| {
            Owner::new(self.range(), RangeKind::ReadOnly, pool, Whole::new(Right::Read))
        });
        // SAFETY: handed on to the caller.
        unsafe { owner.set(0..self.size() / PAGE_SIZE, Right::Read) }
            .map(drop)
            .map_err(|error| MediumError::from_io(Operation::Map, self.file_name(), error))
    }

    /// Nothing is mapped before it is rewritten.
    pub(super) fn wait_for_rewriting(&self, pool: &str) {
        let owner =
            || Owner::new(self.range(), RangeKind::Pending, pool, Whole::new(Right::Nothing));
        self.owners.pending.get_or_init(owner);
    }
}
