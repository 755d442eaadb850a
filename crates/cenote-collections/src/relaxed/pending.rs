//! Entries that wait until they are in memory: the circular buffer of NVMalloc, section 6.
//!
//! Invariant: steps stand in the order in which their groups were opened, and a step is done when
//! its group **and all before it** have drained, because a line counts for the first group alone.

use super::leaf::LeafAt;
use super::{PlainKey, PlainValue};
use cenote_groups::{UpdateGroup, UpdateGroups};
use cenote_medium::planted::{Bug, GroupBug, planted};
use std::collections::VecDeque;

/// What follows when a group has drained.
enum PendingStep<K, V> {
    /// The entry becomes valid, by this tag.
    Validate { leaf: LeafAt<K, V>, slot: usize, tag: u64 },
    /// Nothing: tags and marks wait for nothing but what comes later.
    Stored,
}

/// Steps that wait.
pub(super) struct PendingSteps<K, V> {
    steps: VecDeque<(UpdateGroup, PendingStep<K, V>)>,
}

// SAFETY: leaves are addresses here; the methods ask for a hold on the pool.
unsafe impl<K, V> Send for PendingSteps<K, V> {}

impl<K: PlainKey, V: PlainValue> PendingSteps<K, V> {
    pub(super) fn new() -> Self {
        Self { steps: VecDeque::new() }
    }

    /// An entry was written whole, in this group.
    pub(super) fn written(
        &mut self,
        group: UpdateGroup,
        leaf: LeafAt<K, V>,
        (slot, tag): (usize, u64),
    ) {
        self.steps.push_back((group, PendingStep::Validate { leaf, slot, tag }));
    }

    /// Other words were stored in this group.
    pub(super) fn stored(&mut self, group: UpdateGroup) {
        self.steps.push_back((group, PendingStep::Stored));
    }

    /// Makes the entries valid whose groups have drained. The tags go into one group together.
    ///
    /// # Safety
    /// The caller holds the pool, and the leaves of all steps are alive.
    pub(super) unsafe fn advance(&mut self, groups: &UpdateGroups) {
        let mut tags: Option<UpdateGroup> = None;
        let mut at = 0;
        while let Some((group, _)) = self.steps.get(at) {
            if groups.scheck(group) > 0 {
                if planted(Bug::Group(GroupBug::OrderIgnored)) {
                    at += 1;
                    continue;
                }
                break;
            }
            let Some((_, PendingStep::Validate { leaf, slot, tag })) = self.steps.remove(at) else {
                continue;
            };
            let tags = tags.get_or_insert_with(|| groups.sgroup());
            // SAFETY: a word of a live leaf. It was mapped when the pool was opened, which the map
            // keeps open until the group has drained.
            unsafe { tags.store(leaf.tag(slot).as_ptr(), tag) };
        }
        if let Some(tags) = tags {
            self.stored(tags);
        }
    }

    /// Forgets the entries of a leaf that is gone.
    pub(super) fn forget(&mut self, gone: LeafAt<K, V>) {
        if planted(Bug::Group(GroupBug::FreedLeafTagged)) {
            return;
        }
        let is_of = |step: &PendingStep<K, V>| match step {
            PendingStep::Validate { leaf, .. } => leaf.ptr() == gone.ptr(),
            PendingStep::Stored => false,
        };
        self.steps.retain(|(_, step)| !is_of(step));
    }
}
