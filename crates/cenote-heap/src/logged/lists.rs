//! Buddy lists (POS-5; sections 5.2 and 5.5): free blocks of one class, oldest first.
//!
//! A freed block goes to the tail and an allocation takes the head, so no place is given out again
//! while its list has an older one. Links name slots, plus 1; 0 ends a list.

use super::error::Fault;
use super::plan::{ChangePlan, FoundRecord};
use cenote_layout::logged::{BlockRecord, CLASS_MAX, ListHead};
use cenote_medium::planted::{Bug, planted};

const HEAD: &str = "a list head does not fit its check, or its list";
const LINK: &str = "a list of free blocks leads to what is no free block of its class";

impl ChangePlan<'_> {
    /// The list of a class.
    pub(crate) fn list(&self, class: u8) -> Result<ListHead, Fault> {
        self.change.read(self.meta, ListHead::cell(class), HEAD)
    }

    fn set_list(&mut self, class: u8, list: &ListHead) -> Result<(), Fault> {
        self.change.write(self.meta, ListHead::cell(class), list)
    }

    /// The smallest class from `class` on that has a free block.
    pub(crate) fn class_with_blocks(&self, class: u8) -> Result<Option<u8>, Fault> {
        for class in class..=CLASS_MAX {
            if self.list(class)?.head != 0 {
                return Ok(Some(class));
            }
        }
        Ok(None)
    }

    /// The record that a link of a class's list leads to.
    pub(crate) fn linked(&self, link: u32, class: u8) -> Result<FoundRecord, Fault> {
        let bad = Fault::cell(ListHead::cell(class), LINK);
        let slot = link.checked_sub(1).ok_or(bad)?;
        let record: BlockRecord = self.record_in(slot)?;
        match record.is_free() && record.class() == class {
            true => Ok(FoundRecord { slot, record }),
            false => Err(Fault::cell(self.meta.geometry.slot_cell(slot), LINK)),
        }
    }

    /// The oldest free block of a class; its list is not empty.
    pub(crate) fn oldest(&self, class: u8) -> Result<FoundRecord, Fault> {
        self.linked(self.list(class)?.head, class)
    }

    /// Plans that a free block, which is in no list, is the newest of its class.
    pub(crate) fn append(&mut self, mut found: FoundRecord) -> Result<(), Fault> {
        let class = found.record.class();
        let mut list = self.list(class)?;
        if planted(Bug::FreedToHead) && list.head != 0 {
            return self.prepend(found, list);
        }
        if list.tail != 0 {
            let mut last = self.linked(list.tail, class)?;
            last.record.next = found.slot + 1;
            self.set_record(&last)?;
        } else {
            list.head = found.slot + 1;
        }
        (found.record.prev, found.record.next) = (list.tail, 0);
        self.set_record(&found)?;
        list.tail = found.slot + 1;
        list.blocks += 1;
        self.set_list(class, &list)
    }

    /// What [`Bug::FreedToHead`] does instead.
    fn prepend(&mut self, mut found: FoundRecord, mut list: ListHead) -> Result<(), Fault> {
        let class = found.record.class();
        let mut first = self.linked(list.head, class)?;
        first.record.prev = found.slot + 1;
        self.set_record(&first)?;
        (found.record.prev, found.record.next) = (0, list.head);
        self.set_record(&found)?;
        list.head = found.slot + 1;
        list.blocks += 1;
        self.set_list(class, &list)
    }

    /// Plans that a free block is in no list; its record stays as it was, for the caller to plan.
    pub(crate) fn unlink(&mut self, found: &FoundRecord) -> Result<(), Fault> {
        let BlockRecord { next, prev, .. } = found.record;
        let class = found.record.class();
        let mut list = self.list(class)?;
        match prev {
            0 => list.head = next,
            _ => {
                let mut before = self.linked(prev, class)?;
                before.record.next = next;
                self.set_record(&before)?;
            }
        }
        match next {
            0 => list.tail = prev,
            _ => {
                let mut after = self.linked(next, class)?;
                after.record.prev = prev;
                self.set_record(&after)?;
            }
        }
        list.blocks = list.blocks.checked_sub(1).ok_or(Fault::cell(ListHead::cell(class), HEAD))?;
        self.set_list(class, &list)
    }
}
