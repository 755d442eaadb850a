//! Makes entries of [`Damage`] for superblocks of the traced heap.

use super::superblock::PuddleHeap;
use super::survey::Survey;
use crate::class::class_size;
use crate::report::{Damage, Quarantine};

/// Why a superblock is quarantined.
pub(crate) const ILLEGAL: &str = "marks have values that no program writes";

impl Damage {
    /// The superblock's descriptor cannot be believed.
    pub(crate) fn lost(
        puddle: &PuddleHeap,
        number: u32,
        reason: &'static str,
        pointers: u64,
    ) -> Self {
        let (puddle, addr) = (puddle.index, puddle.address(number));
        Self { puddle, superblock: number, addr, reason, pointers, lost: true, quarantine: None }
    }

    /// The descriptor is damaged or was being written, and what it was about is known.
    pub(crate) fn harmless(
        puddle: &PuddleHeap,
        number: u32,
        reason: &'static str,
        pointers: u64,
    ) -> Self {
        Self { lost: false, ..Self::lost(puddle, number, reason, pointers) }
    }

    /// The superblock's marks cannot be believed.
    pub(crate) fn quarantined(
        puddle: &PuddleHeap,
        number: u32,
        class: u32,
        survey: Survey,
    ) -> Self {
        let (block, found) = survey.first;
        let quarantine = Quarantine {
            type_id: puddle.line(number).type_id(),
            block_size: class_size(class),
            blocks: survey.used,
            marks: survey.illegal,
            first: puddle.address(number) + u64::from(block) * class_size(class),
            found,
        };
        Self { quarantine: Some(quarantine), ..Self::harmless(puddle, number, ILLEGAL, 0) }
    }
}
