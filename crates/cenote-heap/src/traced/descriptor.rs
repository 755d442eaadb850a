//! What one descriptor says by itself, before its neighbours and marks are asked: for openers, and
//! for images that no heap uses.

use crate::class::{blocks_per_superblock, class_size};
use cenote_layout::heap::{Descriptor, SUPERBLOCK_SIZE, SuperblockState};
use cenote_layout::id::TypeId;
use cenote_layout::mark::{Meaning, meaning};
use core::ops::Range;

/// What a descriptor says.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum SaidUse {
    Free,
    /// Free, and the file may have no space for it.
    Hole,
    Small {
        class: u32,
        type_id: TypeId,
    },
    /// First of `span` superblocks of a large block, all of which lie in the puddle.
    Head {
        span: u64,
        bytes: u64,
        type_id: TypeId,
    },
    /// So many superblocks behind the head of a large block, which would lie in the puddle.
    Tail {
        distance: u64,
    },
    Invalid(&'static str),
}

impl SaidUse {
    /// What `d` says of superblock `number`, which is one of the `usable` ones of its puddle.
    pub(crate) fn of(d: &Descriptor, number: u64, usable: &Range<u64>) -> Self {
        if !d.is_valid() {
            return Self::Invalid("checksum does not fit");
        }
        let (span, type_id) = (d.span, d.type_id);
        match SuperblockState::from_u32(d.state) {
            Some(SuperblockState::Free) => Self::Free,
            Some(SuperblockState::Hole) => Self::Hole,
            Some(SuperblockState::Small | SuperblockState::SmallCut) => {
                if blocks_per_superblock(d.class) == 0 || class_size(d.class) != d.block_size {
                    return Self::Invalid("size class and block size do not fit");
                }
                Self::Small { class: d.class, type_id }
            }
            Some(SuperblockState::LargeHead | SuperblockState::LargeHeadCut)
                if span >= 1
                    && span <= usable.end - number
                    && d.block_size.div_ceil(SUPERBLOCK_SIZE) == span =>
            {
                Self::Head { span, bytes: d.block_size, type_id }
            }
            Some(SuperblockState::LargeTail | SuperblockState::LargeTailCut)
                if span >= 1 && span <= number - usable.start =>
            {
                Self::Tail { distance: span }
            }
            _ => Self::Invalid("state or span cannot be"),
        }
    }
}

/// Whether a mark that is not among tiny marks says that something is in its superblock, whatever
/// the descriptor says, or is illegal.
#[inline]
pub(crate) fn says_used(mark: u8) -> bool {
    match meaning(mark) {
        Some(Meaning::Allocated | Meaning::Condemned | Meaning::Tiny) | None => true,
        Some(_) => false,
    }
}
