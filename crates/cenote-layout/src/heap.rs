//! Metadata of the traced heap (RAL-3, POS-2): beside the blocks, never between them.
//!
//! The body of a heap puddle, after the header space:
//!
//! ```text
//! | descriptors, 64 B each | bitmaps, 512 B each | roots (root puddle only), 16 KiB | pad to 64 KiB | superblocks of 64 KiB ... |
//! ```
//!
//! Superblock `i` is the 64 KiB at `puddle + i * 64 KiB`; descriptor `i` and bitmap `i` are about it. The superblocks that hold
//! the metadata themselves are marked [`SuperblockState::Metadata`]. Bit `k` of a bitmap says whether block `k` of the superblock is allocated; it changes with
//! every allocation and is never flushed: after a loss of power tracing computes it again. A descriptor changes when its
//! superblock is taken or given back, and is flushed then.

use crate::checksum::{checksum, seed};
use crate::id::TypeId;
use crate::puddle::header_space;
use crate::round_up;
use zerocopy::{FromBytes, Immutable, IntoBytes, KnownLayout};

/// Bytes of a superblock.
pub const SUPERBLOCK_SIZE: u64 = 64 << 10;
/// Least bytes of a block; one bit of a bitmap.
pub const BLOCK_SIZE_MIN: u64 = 16;
/// Bytes of one superblock's bitmap.
pub const BITMAP_SIZE: u64 = SUPERBLOCK_SIZE / BLOCK_SIZE_MIN / 8;
/// Numbered roots of a pool (RAL-6).
pub const ROOT_COUNT: u64 = 1024;
/// Least bytes of a heap puddle: metadata and one superblock.
pub const HEAP_PUDDLE_SIZE_MIN: u64 = 2 * SUPERBLOCK_SIZE;
/// Most bytes of a block that shares its superblock with others; larger ones take whole superblocks.
pub const SMALL_SIZE_MAX: u64 = 14 << 10;

/// What a superblock is used for.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[repr(u32)]
pub enum SuperblockState {
    /// Nothing; may be taken.
    Free = 0,
    /// Blocks of one size and one type.
    Small = 1,
    /// First superblock of a large block.
    LargeHead = 2,
    /// Further superblock of a large block.
    LargeTail = 3,
    /// Holds the puddle's own metadata.
    Metadata = 4,
}

impl SuperblockState {
    /// The state with this number.
    #[must_use]
    pub const fn from_u32(value: u32) -> Option<Self> {
        match value {
            0 => Some(Self::Free),
            1 => Some(Self::Small),
            2 => Some(Self::LargeHead),
            3 => Some(Self::LargeTail),
            4 => Some(Self::Metadata),
            _ => None,
        }
    }
}

/// Describes one superblock; one cache line.
#[derive(Clone, Copy, Debug, PartialEq, Eq, FromBytes, IntoBytes, Immutable, KnownLayout)]
#[repr(C, align(8))]
pub struct Descriptor {
    /// XXH3-64 of the fields up to `span`.
    pub checksum: u64,
    /// [`SuperblockState`].
    pub state: u32,
    /// Size class, or 0 for large blocks.
    pub class: u32,
    /// Bytes of a block; of a large one, all its superblocks.
    pub block_size: u64,
    /// Type of the blocks.
    pub type_id: TypeId,
    /// Superblocks of a large block (in its head); distance to the head (in a tail); else 0.
    pub span: u64,
    /// Zero: room for the anchor of lock-free lists.
    pub reserved: [u64; 3],
}

const _: () = assert!(size_of::<Descriptor>() == 64);

impl Descriptor {
    /// The descriptor of a superblock that nobody uses: all zero, as a new file is.
    pub const FREE: Self = Self {
        checksum: 0,
        state: 0,
        class: 0,
        block_size: 0,
        type_id: TypeId(0),
        span: 0,
        reserved: [0; 3],
    };

    /// A descriptor with its checksum.
    #[must_use]
    pub fn new(state: SuperblockState, class: u32, block_size: u64, type_id: TypeId, span: u64) -> Self {
        let mut descriptor =
            Self { checksum: 0, state: state as u32, class, block_size, type_id, span, reserved: [0; 3] };
        descriptor.checksum = descriptor.compute();
        descriptor
    }

    /// Whether this is [`Descriptor::FREE`], or checksum and fields fit together.
    #[must_use]
    pub fn is_valid(&self) -> bool {
        if self.state == SuperblockState::Free as u32 {
            return self.checksum == 0 && self.class == 0 && self.block_size == 0 && self.span == 0;
        }
        SuperblockState::from_u32(self.state).is_some() && self.checksum == self.compute()
    }

    fn compute(&self) -> u64 {
        checksum(seed::DESCRIPTOR, &self.as_bytes()[8..40])
    }
}

/// One numbered root of a pool.
#[derive(Clone, Copy, Debug, PartialEq, Eq, FromBytes, IntoBytes, Immutable, KnownLayout)]
#[repr(C)]
pub struct RootEntry {
    /// Address of the root object, or 0.
    pub addr: u64,
    /// Its type.
    pub type_id: TypeId,
}

const _: () = assert!(size_of::<RootEntry>() == 16);

/// Where what lies in a heap puddle. Offsets count from the puddle's start, in bytes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct HeapGeometry {
    /// Superblocks in the puddle, those with metadata included. A last part of less than 64 KiB is not used.
    pub superblocks: u64,
    /// Where the descriptors begin.
    pub descriptors: u64,
    /// Where the bitmaps begin.
    pub bitmaps: u64,
    /// Where the roots begin (meaningful in the root puddle).
    pub roots: u64,
    /// Number of the first superblock for blocks.
    pub first_usable: u64,
}

impl HeapGeometry {
    /// The geometry of a heap puddle of `size` bytes; `None` if that is too small. `root` says whether it is a pool's root
    /// puddle.
    #[must_use]
    pub const fn new(size: u64, root: bool) -> Option<Self> {
        let superblocks = size / SUPERBLOCK_SIZE;
        let descriptors = header_space(size);
        let bitmaps = descriptors + superblocks * size_of::<Descriptor>() as u64;
        let roots = bitmaps + superblocks * BITMAP_SIZE;
        let end = if root { roots + ROOT_COUNT * size_of::<RootEntry>() as u64 } else { roots };
        let first_usable = match round_up(end, SUPERBLOCK_SIZE) {
            Some(rounded) => rounded / SUPERBLOCK_SIZE,
            None => return None,
        };
        if first_usable >= superblocks {
            return None;
        }
        Some(Self { superblocks, descriptors, bitmaps, roots, first_usable })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn geometry_keeps_parts_apart_and_aligned() {
        for pages in 1..2048u64 {
            let size = pages * 4096;
            for root in [false, true] {
                let Some(g) = HeapGeometry::new(size, root) else {
                    assert!(size < 3 * SUPERBLOCK_SIZE);
                    continue;
                };
                assert_eq!(g.descriptors % 64, 0);
                assert_eq!(g.bitmaps % 64, 0);
                assert!(g.first_usable * SUPERBLOCK_SIZE >= g.roots);
                assert!(g.superblocks * SUPERBLOCK_SIZE <= size);
            }
        }
        let g = HeapGeometry::new(2 << 20, true).unwrap();
        assert_eq!((g.superblocks, g.first_usable), (32, 1));
    }
}
