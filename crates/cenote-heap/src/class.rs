//! Size classes: which block size serves a request.
//!
//! Invariants, which tests check for every size:
//!
//! * A class is a multiple of 16 bytes.
//! * The smallest class that holds a request serves it. Above 16 bytes of alignment its size is a
//!   multiple of the alignment, so every block of it is aligned: superblocks begin at multiples of
//!   64 KiB.
//! * Less than 12.5 % of a block is waste, or less than 16 bytes, of large blocks too
//!   ([`large_size`]).
//! * The space behind the last block of a superblock is less than an eighth of it, or is given back
//!   to the file system where that is cheap ([`small_end`]).
//!
//! Class numbers are stored in descriptors: they are part of the format. Never change the table; a
//! new one needs a feature bit. Number 0 stands for large blocks. Numbers rise with sizes up to 16
//! KiB; above, they are in the order in which classes were added.

pub use cenote_layout::heap::{large_size, small_end};

use cenote_layout::heap::{SMALL_SIZE_MAX, blocks_of};

/// Bytes of a block, by class number. Most sizes divide a superblock almost exactly.
pub const CLASS_SIZES: [u32; 59] = [
    0, // large
    16, 32, 48, 64, 80, 96, 112, 128, //
    144, 160, 176, 192, 208, 224, 256, //
    288, 320, 352, 400, 448, 512, //
    576, 656, 736, 832, 944, 1024, //
    1168, 1328, 1488, 1680, 1920, 2048, //
    2336, 2608, 2976, 3264, 3632, 4096, //
    4672, 5328, 5952, 6544, 7280, 8192, //
    9360, 10688, 12208, 13104, 14336, 16384, //
    21840, 32768, //
    18432, 20480, 24576, 26624, 28672,
];

/// Number of classes, class 0 (large) included.
pub const CLASS_COUNT: usize = CLASS_SIZES.len();

const GRANULES: usize = (SMALL_SIZE_MAX / 16) as usize + 1;

/// Class by size in granules of 16 bytes.
static BY_GRANULE: [u8; GRANULES] = by_granule();

/// Classes by alignment: `ALIGNED[a][c]` is the smallest class from `c` on whose size is a multiple
/// of `32 << a`, or 0.
static ALIGNED: [[u8; CLASS_COUNT]; ALIGNMENTS] = aligned();
const ALIGNMENTS: usize = 11;

/// Blocks in a superblock, by class.
static BLOCKS: [u32; CLASS_COUNT] = {
    let mut table = [0; CLASS_COUNT];
    let mut class = 1;
    while class < CLASS_COUNT {
        table[class] = blocks_of(CLASS_SIZES[class] as u64) as u32;
        class += 1;
    }
    table
};

/// Classes by size, class 0 first.
const BY_SIZE: [u8; CLASS_COUNT] = {
    let mut table = [0u8; CLASS_COUNT];
    let mut class = 1;
    while class < CLASS_COUNT {
        let mut at = class;
        while CLASS_SIZES[table[at - 1] as usize] > CLASS_SIZES[class] {
            table[at] = table[at - 1];
            at -= 1;
        }
        table[at] = class as u8;
        class += 1;
    }
    table
};

const fn by_granule() -> [u8; GRANULES] {
    let mut table = [0u8; GRANULES];
    let mut place = 1;
    let mut granule = 0;
    while granule < GRANULES {
        while (CLASS_SIZES[BY_SIZE[place] as usize] as usize) < granule * 16 {
            place += 1;
        }
        table[granule] = BY_SIZE[place];
        granule += 1;
    }
    table
}

const fn aligned() -> [[u8; CLASS_COUNT]; ALIGNMENTS] {
    let mut table = [[0u8; CLASS_COUNT]; ALIGNMENTS];
    let mut a = 0;
    while a < ALIGNMENTS {
        let mut next = 0;
        let mut place = CLASS_COUNT - 1;
        while place > 0 {
            let class = BY_SIZE[place];
            if CLASS_SIZES[class as usize].is_multiple_of(32 << a) {
                next = class;
            }
            table[a][class as usize] = next;
            place -= 1;
        }
        a += 1;
    }
    table
}

/// The class for a block of `size` bytes (0 counts as 1) at a multiple of `align`, a power of two;
/// `None` if that takes a large block.
#[inline]
#[must_use]
pub fn class_of(size: u64, align: u64) -> Option<u8> {
    if size > SMALL_SIZE_MAX {
        return None;
    }
    let class = BY_GRANULE[((size + 15) >> 4) as usize];
    if align <= 16 {
        return Some(class);
    }
    aligned_class(class, align)
}

fn aligned_class(class: u8, align: u64) -> Option<u8> {
    let row = ALIGNED.get((align.trailing_zeros() as usize).checked_sub(5)?)?;
    match row[usize::from(class)] {
        0 => None,
        class => Some(class),
    }
}

/// Bytes of a block of a class; 0 for class 0 and numbers that are none.
#[inline]
#[must_use]
pub fn class_size(class: u32) -> u64 {
    CLASS_SIZES.get(class as usize).map_or(0, |&size| u64::from(size))
}

/// Bytes of the block that a request of `size` bytes at a multiple of `align` gets; `None` if no
/// block can be that large.
#[inline]
#[must_use]
pub fn block_size(size: u64, align: u64) -> Option<u64> {
    match class_of(size, align) {
        Some(class) => Some(class_size(u32::from(class))),
        None => large_size(size),
    }
}

/// Blocks of a class in one superblock.
#[inline]
#[must_use]
pub fn blocks_per_superblock(class: u32) -> u32 {
    BLOCKS.get(class as usize).copied().unwrap_or(0)
}

#[cfg(test)]
mod tests {
    use super::*;
    use cenote_layout::heap::SUPERBLOCK_SIZE;

    #[test]
    fn classes_rise_in_granules_and_fit_a_superblock() {
        assert_eq!((class_size(1), class_size(53)), (16, SMALL_SIZE_MAX));
        assert_eq!(class_size(CLASS_COUNT as u32), 0);
        for pair in BY_SIZE.windows(2) {
            assert!(class_size(u32::from(pair[0])) < class_size(u32::from(pair[1])));
        }
        for class in 1..CLASS_COUNT as u32 {
            assert_eq!(class_size(class) % 16, 0);
            let used = u64::from(blocks_per_superblock(class)) * class_size(class);
            let end = small_end(class_size(class)).unwrap_or(SUPERBLOCK_SIZE);
            assert!(used <= end && end - used < SUPERBLOCK_SIZE / 8, "{}", class_size(class));
        }
    }

    #[test]
    fn every_size_gets_the_smallest_class_and_wastes_less_than_an_eighth() {
        let mut before = 0;
        for size in 0..=SMALL_SIZE_MAX {
            let class = class_of(size, 1).unwrap();
            let block = class_size(u32::from(class));
            assert!(block >= size.max(1));
            // No smaller class holds it.
            let smaller =
                (1..CLASS_COUNT as u32).map(class_size).filter(|&other| other < block).max();
            assert!(before == block || smaller.is_none_or(|smaller| smaller < size), "size {size}");
            before = block;
            let waste = block - size.max(1);
            assert!(waste < 16 || waste * 8 < block, "size {size} in {block} wastes {waste}");
        }
        assert_eq!(class_of(SMALL_SIZE_MAX + 1, 1), None);
        assert_eq!(class_of(u64::MAX, 1), None);
    }

    #[test]
    fn large_blocks_waste_less_than_an_eighth() {
        let mut size = SMALL_SIZE_MAX + 1;
        while size < 1 << 32 {
            for size in [
                size,
                size + 1,
                size / 65_536 * 65_536 + 1,
                size.next_power_of_two() - 1,
                size.next_power_of_two(),
            ] {
                let size = size.max(SMALL_SIZE_MAX + 1);
                let block = block_size(size, 16).unwrap();
                assert!(block >= size && (block - size) * 8 < block, "size {size} in {block}");
                assert!(block.is_multiple_of(4096) && large_size(block) == Some(block));
            }
            size += size / 61 + 1;
        }
        assert_eq!(block_size(u64::MAX, 1), None);
        assert_eq!(block_size(i64::MAX as u64, 1), None);
        assert_eq!([0, 1, 4097].map(large_size), [Some(4096), Some(4096), Some(8192)]);
    }

    #[test]
    fn aligned_requests_get_aligned_classes_or_large_blocks() {
        for shift in 0..=21 {
            let align = 1u64 << shift;
            for size in (0..=SMALL_SIZE_MAX).step_by(7) {
                let serves = |class: u32| {
                    let block = class_size(class);
                    block >= size.max(1) && (align <= 16 || block.is_multiple_of(align))
                };
                let expected = BY_SIZE[1..].iter().copied().find(|&class| serves(u32::from(class)));
                assert_eq!(class_of(size, align), expected, "size {size} align {align}");
            }
        }
    }
}
