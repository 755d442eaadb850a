//! A change: what some cells hold now, and what they are to hold. It is planned in memory, and
//! nothing is stored before it is complete ([`super::undo`] makes it).
//!
//! So a refusal needs no undoing, and changes of all kinds have the same persistent steps.

use super::cells::Metadata;
use super::error::Fault;
use cenote_layout::logged::{Cell, RawCell, UNDO_CELLS_MAX};

/// One cell of a change.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Planned {
    /// Number of the cell.
    pub(crate) cell: u64,
    /// What it holds.
    pub(crate) old: RawCell,
    /// What it is to hold.
    pub(crate) new: RawCell,
}

/// Cells that change together. A cell is in it once.
#[derive(Debug, Default)]
pub(crate) struct Change {
    cells: Vec<Planned>,
}

impl Change {
    /// All cells, in the order in which they were first planned.
    pub(crate) fn cells(&self) -> &[Planned] {
        &self.cells
    }

    /// Plans nothing any more.
    pub(crate) fn clear(&mut self) {
        self.cells.clear();
    }

    /// What a cell holds once the change is made.
    #[inline]
    pub(crate) fn get(&self, meta: &Metadata, cell: u64) -> RawCell {
        match self.cells.iter().find(|planned| planned.cell == cell) {
            Some(planned) => planned.new,
            None => meta.cell(cell),
        }
    }

    /// Plans that a cell is to hold this.
    #[inline]
    pub(crate) fn put(&mut self, meta: &Metadata, cell: u64, new: RawCell) -> Result<(), Fault> {
        if let Some(planned) = self.cells.iter_mut().find(|planned| planned.cell == cell) {
            planned.new = new;
            return Ok(());
        }
        if self.cells.len() == UNDO_CELLS_MAX
            || !meta.geometry.is_changeable(cell)
            || !meta.has(cell)
        {
            return Err(Fault::cell(cell, "a change would reach a cell that it cannot have"));
        }
        self.cells.push(Planned { cell, old: meta.cell(cell), new });
        Ok(())
    }

    /// [`Change::get`] of a structure; `what` is wrong if it is none.
    #[inline]
    pub(crate) fn read<C: Cell>(
        &self,
        meta: &Metadata,
        cell: u64,
        what: &'static str,
    ) -> Result<C, Fault> {
        C::from_raw(self.get(meta, cell), cell).ok_or(Fault::cell(cell, what))
    }

    /// [`Change::put`] of a structure.
    #[inline]
    pub(crate) fn write<C: Cell>(
        &mut self,
        meta: &Metadata,
        cell: u64,
        content: &C,
    ) -> Result<(), Fault> {
        self.put(meta, cell, content.to_raw(cell))
    }
}
