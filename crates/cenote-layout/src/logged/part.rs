//! Parts of a sub-heap: ranges of puddles in which its data and its metadata lie.
//!
//! Invariant: parts of one heap do not overlap. Puddles are named by number, so that a part stays
//! what it is when a pool moves.

use super::{CELL_SIZE, CLASS_MAX, Cell, LEVELS_MAX, PARTS_OFFSET, UNIT_SIZE};
use crate::PAGE_SIZE;
use crate::checksum::seed;
use core::mem::offset_of;
use zerocopy::{FromBytes, Immutable, IntoBytes, KnownLayout};

/// What lies in a part.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u32)]
pub enum PartKind {
    /// Blocks.
    Data = 0x4441_5441,
    /// Levels of the table.
    Levels = 0x4c45_5645,
}

/// One part of a sub-heap.
#[derive(Clone, Copy, Debug, PartialEq, Eq, FromBytes, IntoBytes, Immutable, KnownLayout)]
#[repr(C)]
pub struct PartEntry {
    /// Data: offset of its first byte, in units. Levels: number of the first (bits 0 to 31), and
    /// how many.
    pub first: u64,
    /// A [`PartKind`].
    pub kind: u32,
    /// Number of its puddle in the pool.
    pub puddle: u32,
    /// Pages from the start of the puddle to the part.
    pub from: u32,
    /// Its pages.
    pub pages: u32,
    /// Bytes of the last page that do not belong to it.
    pub unused: u32,
    /// See [`Cell`].
    pub check: u32,
}

const _: () = assert!(size_of::<PartEntry>() as u64 == CELL_SIZE);
const _: () = assert!(offset_of!(PartEntry, kind) == 8);
const _: () = assert!(offset_of!(PartEntry, from) == 16);
const _: () = assert!(offset_of!(PartEntry, check) == 28);

impl PartEntry {
    /// A part of `len` bytes, `from` bytes behind the start of a puddle; `None`: there can be none.
    #[must_use]
    pub fn new(kind: PartKind, first: u64, puddle: u32, from: u64, len: u64) -> Option<Self> {
        let pages = u32::try_from(len.div_ceil(PAGE_SIZE)).ok()?;
        let page = u32::try_from(from / PAGE_SIZE).ok()?;
        let unused = (u64::from(pages) * PAGE_SIZE - len) as u32;
        let part = Self { first, kind: kind as u32, puddle, from: page, pages, unused, check: 0 };
        (from.is_multiple_of(PAGE_SIZE) && part.is_possible()).then_some(part)
    }

    /// Number of the cell of part `index`.
    #[must_use]
    pub const fn cell(index: u32) -> u64 {
        PARTS_OFFSET / CELL_SIZE + index as u64
    }

    /// Whether blocks lie in it.
    #[must_use]
    pub const fn is_data(&self) -> bool {
        self.kind == PartKind::Data as u32
    }

    /// Bytes from the start of the puddle.
    #[must_use]
    pub const fn from(&self) -> u64 {
        self.from as u64 * PAGE_SIZE
    }

    /// Its bytes.
    #[must_use]
    pub const fn len(&self) -> u64 {
        self.pages as u64 * PAGE_SIZE - self.unused as u64
    }

    /// Whether it has no bytes, which no part of a medium has.
    #[must_use]
    pub const fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// The levels that lie in it: the first, and how many.
    #[must_use]
    pub const fn levels(&self) -> (u32, u32) {
        (self.first as u32, (self.first >> 32) as u32)
    }
}

impl Cell for PartEntry {
    const SEED: u64 = seed::PART;

    fn is_possible(&self) -> bool {
        let has_bytes = self.pages != 0
            && u64::from(self.unused) < PAGE_SIZE
            && u64::from(self.unused).is_multiple_of(UNIT_SIZE);
        if !has_bytes {
            return false;
        }
        let (level, count) = self.levels();
        if self.is_data() {
            let end = self.first.saturating_add(self.len() / UNIT_SIZE);
            end <= 1 << (CLASS_MAX as u32 + 1)
        } else {
            self.kind == PartKind::Levels as u32
                && count != 0
                && level.saturating_add(count) <= LEVELS_MAX
        }
    }
}
