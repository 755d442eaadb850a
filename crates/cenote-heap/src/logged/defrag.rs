//! Merges free blocks (POS-5; section 5.4), on the paper's two triggers: no list has a block that
//! is large enough ([`SubHeap::merge_for`]), or a record finds no slot ([`SubHeap::make_room`]).
//!
//! Merges are made a batch at a time, each batch one change. After each the sub-heap is whole, and
//! the same blocks are allocated.

use super::error::{AllocRefused, Fault};
use super::plan::{ChangePlan, FoundRecord};
use super::state::{SubHeap, SubHeapState};
use super::table::window;
use crate::backing::Backing;
use cenote_layout::logged::{BlockRecord, CLASS_MAX, CLASS_MIN, Cell};

/// A batch is made when it has so many cells. One merge has at most 11: two records, four
/// neighbours in their list, two list heads, the newest of the next class, two level entries.
const BATCH_CELLS: usize = 48;

impl<G: Backing> SubHeap<G> {
    /// Merges free blocks of smaller classes until there is a free block of `class`. Says whether
    /// there is. Levels that lost all records are removed.
    pub(crate) fn merge_for(
        &self,
        state: &mut SubHeapState,
        class: u8,
    ) -> Result<bool, AllocRefused> {
        self.release_empty_slabs(state)?;
        let mut is_there =
            state.plan(&self.meta).class_with_blocks(class).map_err(Fault::damage)?.is_some();
        for smaller in CLASS_MIN..class {
            if is_there {
                break;
            }
            self.merge_class(state, smaller).map_err(Fault::damage)?;
            let plan = state.plan(&self.meta);
            is_there = plan.class_with_blocks(class).map_err(Fault::damage)?.is_some();
        }
        // Space that cannot be given back stays taken; nothing else depends on it.
        let _ = self.remove_empty_levels(state);
        Ok(is_there)
    }

    /// Merges all free blocks that can be.
    pub(crate) fn merge_all(&self, state: &mut SubHeapState) -> Result<(), Fault> {
        (CLASS_MIN..CLASS_MAX).try_for_each(|class| self.merge_class(state, class))
    }

    /// Merges all free buddies of one class.
    fn merge_class(&self, state: &mut SubHeapState, class: u8) -> Result<(), Fault> {
        let mut plan = state.plan(&self.meta);
        let list = plan.list(class)?;
        let (mut units, mut link) = (Vec::new(), list.head);
        while link != 0 {
            let found = plan.linked(link, class)?;
            if units.len() as u64 == list.blocks {
                let cell = plan.meta.geometry.slot_cell(found.slot);
                return Err(Fault::cell(cell, "a list of free blocks has more than its head says"));
            }
            units.push(found.record.unit());
            link = found.record.next;
        }
        for unit in units {
            merge_at(&mut plan, unit, class)?;
            if plan.change.cells().len() >= BATCH_CELLS {
                self.commit(state)?;
                plan = state.plan(&self.meta);
            }
        }
        self.commit(state)
    }

    /// Makes room for the record of the block at `unit`: merges what frees a slot where the record
    /// may lie, or adds a level.
    pub(crate) fn make_room(
        &self,
        state: &mut SubHeapState,
        unit: u64,
    ) -> Result<(), AllocRefused> {
        let before = state.levels;
        for slot in before.iter().flat_map(|level| window(unit, level)) {
            let merged = self
                .change(state, |plan| {
                    let cell = plan.meta.geometry.slot_cell(slot);
                    let raw = plan.change.get(plan.meta, cell);
                    let Some(record) = BlockRecord::from_raw(raw, cell) else { return Ok(false) };
                    // The record of the right one of two buddies goes.
                    match record.is_free() && record.unit() & record.units() != 0 {
                        true => merge_pair(plan, FoundRecord { slot, record }),
                        false => Ok(false),
                    }
                })
                .map_err(Fault::damage)?;
            if merged {
                return Ok(());
            }
        }
        self.add_level(state)
    }
}

/// Plans the merge of the free block of `class` at `unit`, if it is still one, and its buddy is
/// free.
fn merge_at(plan: &mut ChangePlan<'_>, unit: u64, class: u8) -> Result<bool, Fault> {
    match plan.find(unit)? {
        Some(found) if found.record.is_free() && found.record.class() == class => {
            merge_pair(plan, found)
        }
        _ => Ok(false),
    }
}

fn merge_pair(plan: &mut ChangePlan<'_>, found: FoundRecord) -> Result<bool, Fault> {
    let Some(buddy) = plan.free_buddy(&found)? else { return Ok(false) };
    plan.merge(found, buddy)?;
    Ok(true)
}
