//! The volatile word of a descriptor that says where blocks and marks of a superblock lie. The fast
//! path needs no more, and reads it by one load.
//!
//! ```text
//! bits  0 to 28   the reciprocal: 2^32 divided by the block size, rounded up
//! bits 29 to 45   block size; 65,536 for a large block; 0: no blocks are here
//! bits 46 to 62   generation: another one each time that the superblock is taken
//! bit  63         the marks are tiny marks
//! ```
//!
//! For offsets below 64 KiB, the upper half of `offset * reciprocal` is the block's index, exactly.
//! Its lower half is less than the reciprocal if and only if a block begins at the offset.
//!
//! A superblock without blocks has the lower 46 bits and the last zero: no block begins at any
//! offset, so every question is answered by no. One word says it all, so a reader that races with a
//! superblock changing hands still computes an address in the marks of the puddle, which are
//! mapped.

use cenote_layout::heap::{SUPERBLOCK_SIZE, is_tiny};

const SIZE_SHIFT: u32 = 29;
const GENERATION_SHIFT: u32 = 46;
const TINY: u64 = 1 << 63;

/// A loaded geometry word.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Geometry(pub(crate) u64);

impl Geometry {
    /// For blocks of `size` bytes (at least 16), of the generation after `before`.
    pub(crate) const fn new(size: u64, before: Self) -> Self {
        Self(
            (1u64 << 32).div_ceil(size)
                | size << SIZE_SHIFT
                | if is_tiny(size) { TINY } else { 0 }
                | before.next_generation(),
        )
    }

    /// No blocks, of the generation after `before`.
    pub(crate) const fn none(before: Self) -> Self {
        Self(before.next_generation())
    }

    /// Whether only the generation tells this word from another.
    pub(crate) const fn is_next_of(self, other: Self) -> bool {
        const REST: u64 = TINY | ((1 << GENERATION_SHIFT) - 1);
        self.0 & REST == other.0 & REST
    }

    const fn next_generation(self) -> u64 {
        (((self.0 >> GENERATION_SHIFT) + 1) << GENERATION_SHIFT) & !TINY
    }

    /// Bytes of a block; 0 if there are none.
    #[inline]
    pub(crate) const fn size(self) -> u64 {
        self.0 >> SIZE_SHIFT & 0x1_ffff
    }

    /// Whether small blocks are here.
    #[inline]
    pub(crate) const fn is_small(self) -> bool {
        let size = self.size();
        size != 0 && size != SUPERBLOCK_SIZE
    }

    /// What [`divide`] multiplies with.
    #[inline]
    pub(crate) const fn reciprocal(self) -> u32 {
        (self.0 & 0x1fff_ffff) as u32
    }

    /// Index of the block that an offset falls into, and offset of that block.
    #[inline]
    pub(crate) const fn split(self, within: u64) -> (u64, u64) {
        let index = (within * self.reciprocal() as u64) >> 32;
        (index, index * self.size())
    }

    /// Whether the marks are tiny marks.
    #[inline]
    pub(crate) const fn is_tiny(self) -> bool {
        self.0 & TINY != 0
    }
}

/// Index of the block that begins at this offset in its superblock, if one does, by one
/// multiplication with the block size's [`Geometry::reciprocal`].
#[inline(always)]
pub(crate) const fn divide(within: u64, reciprocal: u32) -> Option<u64> {
    let product = within * reciprocal as u64;
    if (product as u32) < reciprocal { Some(product >> 32) } else { None }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::class::{CLASS_COUNT, class_size};
    use cenote_layout::heap::{MARKS_SIZE, TINY_MARKS_SIZE};

    #[test]
    fn reciprocals_divide_exactly() {
        for size in (1..CLASS_COUNT as u32).map(class_size).chain([SUPERBLOCK_SIZE]) {
            let g = Geometry::new(size, Geometry(0));
            assert_eq!(g.size(), size);
            for within in 0..SUPERBLOCK_SIZE {
                let (index, start) = g.split(within);
                assert_eq!((index, start), (within / size, within / size * size));
                let exactly = within.is_multiple_of(size).then_some(index);
                assert_eq!(divide(within, g.reciprocal()), exactly, "{within} in blocks of {size}");
                assert!(index < if g.is_tiny() { TINY_MARKS_SIZE } else { MARKS_SIZE });
            }
        }
    }

    #[test]
    fn no_block_begins_anywhere_without_a_geometry() {
        assert!(
            (0..SUPERBLOCK_SIZE).all(|within| divide(within, Geometry(0).reciprocal()).is_none())
        );
    }

    #[test]
    fn a_superblock_without_blocks_has_none_and_generations_differ() {
        let first = Geometry::new(64, Geometry(0));
        let none = Geometry::none(first);
        assert_eq!((none.size(), none.is_tiny()), (0, false));
        assert_ne!(Geometry::new(64, none), first);
        let tiny = Geometry::new(16, none);
        assert_eq!(
            (tiny.size(), tiny.is_tiny(), Geometry::none(tiny).is_tiny()),
            (16, true, false)
        );
    }
}
