//! Looks at all metadata of a sub-heap and changes nothing.
//!
//! Invariants that it checks: blocks cover all data, one behind the other in each part; each has
//! one record, in one of the slots where it may lie, in a level that is present; each free block is
//! in the list of its class, once, and no other block is in a list; list heads and level entries
//! count what is there.

use super::data::DataPart;
use super::error::{Damage, Fault};
use super::plan::ChangePlan;
use super::slab::GRAIN;
use super::state::{SubHeap, SubHeapState};
use crate::backing::Backing;
use crate::block::BlockInfo;
use cenote_layout::logged::{
    BlockRecord, CELL_SIZE, CLASS_MAX, CLASS_MIN, Cell, EMPTY, LEVEL_SLOTS, LEVELS_MAX, LevelEntry,
    ListHead, UNIT_SIZE, slots_of,
};

/// What [`SubHeap::check`] found.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct SubHeapReport {
    /// All allocated blocks, in order of addresses.
    pub blocks: Vec<BlockInfo>,
    /// Free blocks.
    pub free_blocks: u64,
    /// What is wrong.
    pub damage: Vec<Damage>,
}

impl<G: Backing> SubHeap<G> {
    /// Looks at everything. Changes wait meanwhile.
    #[must_use]
    pub fn check(&self) -> SubHeapReport {
        let mut state = self.lock();
        let probes = state.probes;
        let mut report = SubHeapReport::default();
        let mut plan = state.plan(&self.meta);
        let parts: Vec<DataPart> = plan.data.iter().copied().collect();
        let records =
            parts.iter().map(|part| check_blocks(&mut plan, part, &mut report)).sum::<u64>();
        check_lists(&plan, &mut report);
        check_levels(&plan, records, &mut report);
        state.probes = probes;
        let SubHeapState { data, hidden, .. } = &*state;
        report.blocks.retain(|block| {
            let grain = data.offset_of(block.addr).map(|offset| offset / GRAIN);
            !grain.is_some_and(|grain| hidden.contains(&grain))
        });
        report
    }
}

impl SubHeapReport {
    fn found(&mut self, fault: Fault) {
        self.damage.push(fault.damage());
    }

    fn wrong(&mut self, cell: u64, what: &'static str) {
        self.damage.push(Damage { offset: cell * CELL_SIZE, what });
    }
}

/// Goes through the blocks of a part as they lie. Says how many have a record.
fn check_blocks(plan: &mut ChangePlan<'_>, part: &DataPart, report: &mut SubHeapReport) -> u64 {
    let (mut unit, mut records) = (part.unit, 0);
    let end = part.unit + part.units;
    while unit < end {
        match plan.find(unit) {
            Ok(Some(found)) => {
                records += 1;
                let record = found.record;
                if unit + record.units() > end {
                    let cell = plan.meta.geometry.slot_cell(found.slot);
                    report.wrong(cell, "a block reaches beyond its part of the data");
                }
                match record.is_free() {
                    true => report.free_blocks += 1,
                    false if record.is_slab() => {
                        if let Err(fault) = check_slab(plan, part, found.slot, report) {
                            report.found(fault);
                        }
                    }
                    false => report.blocks.push(BlockInfo {
                        addr: part.addr + (unit - part.unit) * UNIT_SIZE,
                        size: record.size(),
                        type_id: record.type_id,
                    }),
                }
                unit += record.units();
            }
            Ok(None) => {
                let cell = plan.meta.geometry.slot_cell(0);
                report.wrong(cell, "a part of the data has no record");
                return records;
            }
            Err(fault) => {
                report.found(fault);
                return records;
            }
        }
    }
    records
}

/// The used slots of a slab.
fn check_slab(
    plan: &ChangePlan<'_>,
    part: &DataPart,
    slot: u32,
    report: &mut SubHeapReport,
) -> Result<(), Fault> {
    let slab = plan.slab_in(slot)?;
    let start = part.addr + (slab.as_block().unit() - part.unit) * UNIT_SIZE;
    for index in (0..slab.slots()).filter(|&index| slab.is_used(index)) {
        let size = u64::from(slab.size);
        let addr = start + u64::from(index) * size;
        report.blocks.push(BlockInfo { addr, size, type_id: slab.type_id });
    }
    Ok(())
}

/// Follows all lists.
fn check_lists(plan: &ChangePlan<'_>, report: &mut SubHeapReport) {
    let mut listed = 0;
    for class in CLASS_MIN..=CLASS_MAX {
        let list = match plan.list(class) {
            Ok(list) => list,
            Err(fault) => {
                report.found(fault);
                continue;
            }
        };
        let (mut link, mut before, mut count) = (list.head, 0, 0);
        while link != 0 && count < list.blocks {
            match plan.linked(link, class) {
                Ok(found) if found.record.prev == before => {
                    (before, link) = (link, found.record.next);
                    count += 1;
                }
                Ok(found) => {
                    let cell = plan.meta.geometry.slot_cell(found.slot);
                    report.wrong(cell, "a free block does not lead back");
                    break;
                }
                Err(fault) => {
                    report.found(fault);
                    break;
                }
            }
        }
        listed += count;
        if (link, before, count) != (0, list.tail, list.blocks) {
            report.wrong(ListHead::cell(class), "a list is not as its head says");
        }
    }
    if listed != report.free_blocks {
        report.wrong(ListHead::cell(CLASS_MIN), "lists do not have all free blocks");
    }
}

/// Looks at all slots of levels that are present.
fn check_levels(plan: &ChangePlan<'_>, records: u64, report: &mut SubHeapReport) {
    let mut all = 0;
    for level in 0..LEVELS_MAX {
        let cell = LevelEntry::cell(level);
        let what = "a level entry does not fit its check";
        let entry: LevelEntry = match plan.change.read(plan.meta, cell, what) {
            Ok(entry) => entry,
            Err(fault) => {
                report.found(fault);
                continue;
            }
        };
        let is_present = entry.state == LevelEntry::PRESENT;
        if is_present != (plan.levels.0 >> level & 1 == 1) {
            report.wrong(cell, "a level came or went without this process");
        }
        if !is_present {
            continue;
        }
        let mut used = 0;
        for slot in (slots_of(level)..).take((LEVEL_SLOTS << level) as usize) {
            let cell = plan.meta.geometry.slot_cell(slot as u32);
            let raw = plan.meta.cell(cell);
            used += u64::from(raw != EMPTY);
            if raw != EMPTY && BlockRecord::from_raw(raw, cell).is_none() {
                report.wrong(cell, "a block record does not fit its check");
            }
        }
        if used != entry.used {
            report.wrong(cell, "a level has another number of records than its entry says");
        }
        all += used;
    }
    if all != records {
        report.wrong(plan.meta.geometry.slot_cell(0), "the table has records of no block");
    }
}
