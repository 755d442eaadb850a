//! Slabs (PUD-12): blocks of the buddy system that are split into up to 64 slots of one size, for
//! values of one type.
//!
//! Invariant: which slots are used the record alone says. No byte of that lies in the slab.
//!
//! A *step* allocates or frees one slot: it changes one bit of `used`, and the check. A heap makes
//! it in place, without a log. What a crash can leave of the two words, and what a reader sees:
//!
//! | `used` | check | the record |
//! | --- | --- | --- |
//! | old | old | that of before |
//! | new | new | that of afterwards |
//! | new | old | that of before: one bit of `used` makes the check fit |
//! | old | new | that of afterwards, likewise |

use super::{BlockRecord, BlockState, CELL_SIZE, CLASS_MAX, CLASS_MIN, Cell, RawCell, plain_of};
use crate::checksum::seed;
use crate::id::TypeId;
use core::mem::offset_of;
use zerocopy::{FromBytes, Immutable, IntoBytes, KnownLayout};

/// Bytes that slots can have.
pub const SLAB_SIZES: [u32; 7] = [16, 32, 48, 64, 96, 128, 192];
/// Most slots of a slab: bits of a word.
const SLOTS_MAX: u32 = 64;

/// Class of the slabs with slots of so many bytes: at least 42 slots, and little waste.
#[inline]
#[must_use]
pub const fn slab_class(size: u32) -> u8 {
    let whole = (size * SLOTS_MAX).next_power_of_two().ilog2() as u8;
    if size.is_power_of_two() { whole } else { whole - 1 }
}

/// Slots of a slab with slots of so many bytes, one of [`SLAB_SIZES`]: no division.
const fn slots_of_size(size: u32) -> u32 {
    if size.is_power_of_two() { SLOTS_MAX } else { SLOTS_MAX * 2 / 3 }
}

const _: () = {
    let mut i = 0;
    while i < SLAB_SIZES.len() {
        let size = SLAB_SIZES[i];
        assert!(slots_of_size(size) == (1 << slab_class(size)) / size);
        i += 1;
    }
};

/// The record of a slab, in the slot of the table where the record of its block would be.
#[derive(Clone, Copy, Debug, PartialEq, Eq, FromBytes, IntoBytes, Immutable, KnownLayout)]
#[repr(C)]
pub struct SlabRecord {
    /// As in a [`BlockRecord`].
    pub place: u64,
    /// Type of what all slots hold.
    pub type_id: TypeId,
    /// A bit for each slot: 1 is allocated.
    pub used: u64,
    /// Bytes of a slot.
    pub size: u32,
    /// See [`Cell`].
    pub check: u32,
}

const _: () = assert!(size_of::<SlabRecord>() as u64 == CELL_SIZE);
const _: () = assert!(offset_of!(SlabRecord, type_id) == 8);
const _: () = assert!(offset_of!(SlabRecord, used) == 16);
const _: () = assert!(offset_of!(SlabRecord, size) == 24);
const _: () = assert!(offset_of!(SlabRecord, check) == 28);

impl SlabRecord {
    /// The record of a slab without used slots.
    #[inline]
    #[must_use]
    pub const fn new(unit: u64, size: u32, type_id: TypeId) -> Self {
        let block = BlockRecord::new(unit, slab_class(size), BlockState::Slab, type_id);
        Self { place: block.place, type_id, used: 0, size, check: 0 }
    }

    /// What it is as a block.
    #[inline]
    #[must_use]
    pub const fn as_block(&self) -> BlockRecord {
        let (next, prev, reserved, check) = (0, 0, 0, 0);
        BlockRecord { place: self.place, type_id: self.type_id, next, prev, reserved, check }
    }

    /// Slots.
    #[inline]
    #[must_use]
    pub const fn slots(&self) -> u32 {
        slots_of_size(self.size)
    }

    /// The bits of all slots.
    #[inline]
    #[must_use]
    pub const fn all(&self) -> u64 {
        u64::MAX >> (SLOTS_MAX - self.slots())
    }

    /// Whether a slot is allocated.
    #[inline]
    #[must_use]
    pub const fn is_used(&self, index: u32) -> bool {
        index < SLOTS_MAX && self.used >> index & 1 == 1
    }

    /// Whether all are.
    #[inline]
    #[must_use]
    pub const fn is_full(&self) -> bool {
        self.used == self.all()
    }

    /// The next slot that is free, from `cursor` on and then from the first on; 64 if none is.
    #[inline]
    #[must_use]
    pub const fn next_free(&self, cursor: u32) -> u32 {
        let free = self.all() & !self.used;
        let behind = if cursor < SLOTS_MAX { free >> cursor << cursor } else { 0 };
        if behind != 0 { behind.trailing_zeros() } else { free.trailing_zeros() }
    }

    /// Whether a change of a cell is a step of a slab. None is one whose old cell is torn: that
    /// differs in one bit from what it reads as, so in none or two from what a step makes of it.
    #[inline]
    #[must_use]
    pub fn is_step(old: RawCell, new: RawCell) -> bool {
        let fixed = |raw: RawCell| (raw[0], raw[1], raw[SIZE_WORD] as u32);
        let used = old[Self::USED_WORD] ^ new[Self::USED_WORD];
        fixed(old) == fixed(new) && is_slab(old) && used.is_power_of_two()
    }

    /// The record of a cell whose check is known to fit.
    #[inline]
    #[must_use]
    pub const fn of_whole(raw: RawCell) -> Self {
        zerocopy::transmute!(raw)
    }

    /// The word of the used slots in a cell.
    pub const USED_WORD: usize = offset_of!(SlabRecord, used) / 8;

    /// The record of a cell whose check fits.
    #[inline]
    fn fitting(raw: RawCell, number: u64) -> Option<Self> {
        let plain = plain_of(Self::SEED, raw, number)?;
        Self::read_from_bytes(plain.as_bytes()).ok().filter(Self::is_possible)
    }

    /// The record of a cell of which a crash left one word of a step. Two bits fit the same check
    /// in one of 2^26 such cells: that counts as damage.
    #[cold]
    fn of_torn_step(raw: RawCell, number: u64) -> Option<Self> {
        let with = |bit: u32| {
            let mut other = raw;
            other[Self::USED_WORD] ^= 1 << bit;
            Self::fitting(other, number)
        };
        let mut fits = (0..SLOTS_MAX).filter_map(with);
        fits.next().filter(|_| fits.next().is_none())
    }
}

/// The word of a cell with the size of slots, and the check above it.
const SIZE_WORD: usize = offset_of!(SlabRecord, size) / 8;

/// Whether a cell says that it is the record of a slab.
#[inline]
const fn is_slab(raw: RawCell) -> bool {
    (raw[0] >> 56) as u8 == BlockState::Slab as u8
}

impl Cell for SlabRecord {
    const SEED: u64 = seed::SLAB_RECORD;

    #[inline]
    fn from_raw(raw: RawCell, number: u64) -> Option<Self> {
        Self::fitting(raw, number)
            .or_else(|| is_slab(raw).then(|| Self::of_torn_step(raw, number)).flatten())
    }

    #[inline]
    fn is_possible(&self) -> bool {
        let block = self.as_block();
        block.is_slab()
            && SLAB_SIZES.contains(&self.size)
            && block.class() == slab_class(self.size)
            && (CLASS_MIN..=CLASS_MAX).contains(&block.class())
            && block.unit().is_multiple_of(block.units())
            && self.used & !self.all() == 0
    }
}
