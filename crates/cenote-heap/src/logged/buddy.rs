//! Blocks of the buddy system (POS-5): allocation with splits, free, and the merge of two buddies.
//!
//! A block of class `c` has 2^`c` bytes and lies at a multiple of that. Its right neighbour begins
//! where it ends. Its *buddy* is the neighbour with which it makes a block of the next class: its
//! offset differs in bit `c`. Both are computed, not stored: a stored neighbour is one more record
//! to log in each split and merge.

use super::error::Fault;
use super::plan::{ChangePlan, FoundRecord};
use cenote_layout::id::TypeId;
use cenote_layout::logged::{BlockRecord, BlockState, CLASS_MAX, CLASS_MIN, units_of};
use cenote_medium::planted::{Bug, LoggedBug, planted};

/// The class of the smallest blocks of at least `size` bytes; `None`: there is none.
pub(crate) fn class_for(size: u64) -> Option<u8> {
    let class = size.max(1).checked_next_power_of_two()?.ilog2() as u8;
    (class <= CLASS_MAX).then(|| class.max(CLASS_MIN))
}

/// The free blocks that make up the units from `from` to `end` when no block is allocated there:
/// each the largest that lies at a multiple of its size.
pub(crate) fn cover(from: u64, end: u64) -> impl Iterator<Item = BlockRecord> {
    let mut unit = from;
    core::iter::from_fn(move || {
        let left = end.checked_sub(unit)?.checked_ilog2()?;
        let aligned = unit.trailing_zeros().min(u32::from(CLASS_MAX - CLASS_MIN));
        let class = CLASS_MIN + left.min(aligned) as u8;
        let record = BlockRecord::new(unit, class, BlockState::Free, TypeId::UNTYPED);
        unit += record.units();
        Some(record)
    })
}

impl ChangePlan<'_> {
    /// Plans an allocated block of a class, and the free blocks that are left of the one that it is
    /// split from.
    pub(crate) fn allocate_record(
        &mut self,
        class: u8,
        type_id: TypeId,
    ) -> Result<FoundRecord, Fault> {
        let from = self.class_with_blocks(class)?.ok_or(Fault::NoBlock)?;
        let mut found = self.oldest(from)?;
        self.unlink(&found)?;
        let unit = found.record.unit();
        found.record = BlockRecord::new(unit, class, BlockState::Allocated, type_id);
        self.set_record(&found)?;
        for part in (class..from).rev() {
            let rest = unit + units_of(part);
            let record = BlockRecord::new(rest, part, BlockState::Free, TypeId::UNTYPED);
            if planted(Bug::SplitForgetsRest) && part == class {
                break;
            }
            let found = self.insert(record)?;
            self.append(found)?;
        }
        Ok(found)
    }

    /// Plans that an allocated block is free.
    pub(crate) fn release(&mut self, found: FoundRecord) -> Result<(), Fault> {
        let (unit, class) = (found.record.unit(), found.record.class());
        let record = BlockRecord::new(unit, class, BlockState::Free, TypeId::UNTYPED);
        self.append(FoundRecord { record, ..found })
    }

    /// The free buddy of a free block, if its buddy is one free block, of the same part.
    pub(crate) fn free_buddy(&mut self, found: &FoundRecord) -> Result<Option<FoundRecord>, Fault> {
        let record = &found.record;
        let unit = record.unit() ^ record.units();
        let range = self.data.range_of(record.unit());
        let is_inside = range.start <= unit && unit + record.units() <= range.end;
        if record.class() == CLASS_MAX
            || !is_inside && !planted(Bug::Logged(LoggedBug::BuddyOfOtherPart))
        {
            return Ok(None);
        }
        Ok(self.find(unit)?.filter(|buddy| {
            buddy.record.class() == record.class()
                && (buddy.record.is_free() || planted(Bug::BuddyNotLookedAt))
        }))
    }

    /// Plans that two free buddies are one block of the next class: the record of the left one.
    pub(crate) fn merge(&mut self, one: FoundRecord, other: FoundRecord) -> Result<(), Fault> {
        let (left, right) =
            if one.record.unit() < other.record.unit() { (one, other) } else { (other, one) };
        self.unlink(&left)?;
        // Unlinking the left one may have changed links of the right one.
        let right = FoundRecord { record: self.record_in(right.slot)?, ..right };
        self.unlink(&right)?;
        self.erase(right.slot)?;
        let (unit, class) = (left.record.unit(), left.record.class() + 1);
        let record = BlockRecord::new(unit, class, BlockState::Free, TypeId::UNTYPED);
        self.append(FoundRecord { record, ..left })
    }

    /// The block that `unit` lies in. Looks at one place for each class.
    pub(crate) fn containing(&mut self, unit: u64) -> Result<Option<FoundRecord>, Fault> {
        let mut tried = None;
        for class in CLASS_MIN..=CLASS_MAX {
            let first = unit & !(units_of(class) - 1);
            if tried == Some(first) {
                continue;
            }
            tried = Some(first);
            if let Some(found) = self.find(first)? {
                let covers = first + found.record.units() > unit;
                return Ok(covers.then_some(found));
            }
        }
        Ok(None)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_class_is_the_smallest_that_is_large_enough() {
        for (size, class) in [(0, 6), (1, 6), (64, 6), (65, 7), (4096, 12), (1 << 47, 47)] {
            assert_eq!(class_for(size), Some(class), "{size}");
        }
        assert_eq!((class_for((1 << 47) + 1), class_for(u64::MAX)), (None, None));
    }

    #[test]
    fn blocks_of_a_part_cover_it_at_multiples_of_their_sizes() {
        for (from, end) in [(0, 64), (0, 65), (64, 32 << 10), (0x9100, 0x1234_5640), (5, 6)] {
            let mut unit = from;
            for record in cover(from, end) {
                assert_eq!(record.unit(), unit);
                assert!(unit.is_multiple_of(record.units()));
                unit += record.units();
            }
            assert_eq!(unit, end);
        }
    }
}
