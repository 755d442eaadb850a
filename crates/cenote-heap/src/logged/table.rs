//! The multi-level hash table of block records (POS-4; sections 4.4 and 5.2).
//!
//! In each level a record has a home slot, and lies in one of the [`PROBE_WINDOW`] slots from there
//! on. It never moves while it lives, so lists name slots. Bounds:
//!
//! * finding a record that is there looks at the levels from the largest to the one that has it.
//!   Each level is as large as all before it, and records go into the largest that has room, so the
//!   mean over all records does not grow with the number of levels. One of the oldest records may
//!   lie in the smallest level: `levels * PROBE_WINDOW` slots;
//! * finding that there is none, and finding room, look at `levels * PROBE_WINDOW` slots at most,
//!   however full the heap is: that is a wrong free, or one more block.

use super::error::Fault;
use super::plan::{ChangePlan, FoundRecord};
use cenote_layout::logged::{
    BlockRecord, Cell, EMPTY, LEVEL_SLOTS, LevelEntry, PROBE_WINDOW, RawCell, home_of, level_of,
    slots_of,
};

/// The slots of a level in which the record of a unit may lie.
pub(crate) fn window(unit: u64, level: u32) -> impl Iterator<Item = u32> {
    let (first, mask) = (slots_of(level), (LEVEL_SLOTS << level) - 1);
    let home = home_of(unit, level);
    // Slots have 32 bits: `LEVELS_MAX` sees to that.
    (0..PROBE_WINDOW).map(move |i| (first + ((home + i) & mask)) as u32)
}

impl ChangePlan<'_> {
    fn slot(&self, slot: u32) -> (u64, RawCell) {
        let cell = self.meta.geometry.slot_cell(slot);
        (cell, self.change.get(self.meta, cell))
    }

    /// The record of the block that begins at `unit`.
    pub(crate) fn find(&mut self, unit: u64) -> Result<Option<FoundRecord>, Fault> {
        let damaged = |cell| Fault::cell(cell, "a block record does not fit its check");
        for level in self.levels.iter() {
            for slot in window(unit, level) {
                *self.probes += 1;
                let (cell, raw) = self.slot(slot);
                if BlockRecord::is_about(raw, unit) {
                    let record = BlockRecord::from_raw(raw, cell).ok_or(damaged(cell))?;
                    return Ok(Some(FoundRecord { slot, record }));
                }
            }
        }
        // There is none, unless it is one that cannot be read.
        for slot in self.levels.iter().flat_map(|level| window(unit, level)) {
            let (cell, raw) = self.slot(slot);
            if raw != EMPTY && BlockRecord::from_raw(raw, cell).is_none() {
                return Err(damaged(cell));
            }
        }
        Ok(None)
    }

    /// Plans a record for a block that has none; says where.
    pub(crate) fn insert(&mut self, record: BlockRecord) -> Result<FoundRecord, Fault> {
        let unit = record.unit();
        for level in self.levels.iter() {
            for slot in window(unit, level) {
                *self.probes += 1;
                if self.slot(slot).1 == EMPTY {
                    let found = FoundRecord { slot, record };
                    self.set_record(&found)?;
                    self.count(slot, |used| used.checked_add(1))?;
                    return Ok(found);
                }
            }
        }
        Err(Fault::NoSlot(unit))
    }

    /// Plans that a slot is empty.
    pub(crate) fn erase(&mut self, slot: u32) -> Result<(), Fault> {
        self.change.put(self.meta, self.meta.geometry.slot_cell(slot), EMPTY)?;
        self.count(slot, |used| used.checked_sub(1))
    }

    /// Plans another number of records in the level of a slot.
    fn count(&mut self, slot: u32, next: impl Fn(u64) -> Option<u64>) -> Result<(), Fault> {
        let cell = LevelEntry::cell(level_of(slot));
        let what = "a level entry does not fit its check, or what lies in the level";
        let entry: LevelEntry = self.change.read(self.meta, cell, what)?;
        let used = next(entry.used).ok_or(Fault::cell(cell, what))?;
        self.change.write(self.meta, cell, &LevelEntry { used, ..entry })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_window_lies_in_its_level() {
        for level in 0..24 {
            let slots: Vec<u32> = (0..200).flat_map(|unit| window(unit * 77, level)).collect();
            assert!(slots.iter().all(|&slot| level_of(slot) == level));
        }
    }
}
