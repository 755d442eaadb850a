//! Metadata of the traced heap (RAL-3, POS-2): in pages of its own, before all blocks.
//!
//! The body of a heap puddle, after the header space:
//!
//! ```text
//! | descriptors, | pad to | tiny marks,  | marks,       | hints,     | roots, 16 KiB, |
//! | 64 B each    | a page | 4,096 B each | 1,024 B each | 1 bit each | lists, 6 KiB,  |
//! |              |        |              |              |            | members, sweep |
//!
//! | pad | superblocks ... |
//! ```
//!
//! Roots, lists, members and sweep are in the root puddle only.
//!
//! Superblock `i` is the 64 KiB at `puddle + i * 64 KiB`; descriptor `i` and marks `i` are about
//! it. The superblocks that hold the metadata themselves have the state
//! [`SuperblockState::Metadata`]. Byte `k` of the marks says whether block `k` is allocated
//! ([`mark`]); it changes with every allocation, and only commits flush it (crate `cenote-tx`). A
//! superblock of blocks of less than 64 bytes has more than 1,024 blocks: it uses its page of the
//! tiny marks. The file may have no space for the tiny marks: descriptor 0 says so
//! ([`Descriptor::may_lack_tiny`]), and the heap takes space for a page before it uses the page.
//! The checksummed part of a descriptor changes when its superblock is taken, and is flushed then.
//!
//! Hints, lists, members and the words of a descriptor behind `span` mean something only to the
//! processes that have the pool open now. The first opener writes them again and believes nothing
//! of what stands there.

pub use crate::root::{RootEntry, RootSlot};

use crate::checksum::{checksum, seed};
use crate::id::TypeId;
use crate::puddle::header_space;
use crate::round_up;
use zerocopy::{FromBytes, Immutable, IntoBytes, KnownLayout};

/// Bytes of a superblock.
pub const SUPERBLOCK_SIZE: u64 = 64 << 10;
/// Least bytes of a block.
pub const BLOCK_SIZE_MIN: u64 = 16;
/// Bytes of one superblock's marks, if its blocks have 64 bytes or more.
pub const MARKS_SIZE: u64 = 1024;
/// Bytes of one superblock's tiny marks: one for each block of [`BLOCK_SIZE_MIN`] bytes, and a page
/// of its own.
pub const TINY_MARKS_SIZE: u64 = SUPERBLOCK_SIZE / BLOCK_SIZE_MIN;
/// Heads of lists in a pool's root puddle, 16 bytes each.
pub const LIST_COUNT: u64 = 384;
/// Bytes of the table of members in a pool's root puddle: a line about all of them, and 32 bytes
/// for each.
pub const MEMBERS_SIZE: u64 = 64 + 32 * MEMBER_COUNT;
/// Bytes of the sweep line in a pool's root puddle: the word of [`SweepState`], the rest reserved.
pub const SWEEP_SIZE: u64 = 64;
/// Numbered roots of a pool (RAL-6).
pub const ROOT_COUNT: u64 = 1024;
/// Least bytes of a heap puddle: metadata and one superblock.
pub const HEAP_PUDDLE_SIZE_MIN: u64 = 2 * SUPERBLOCK_SIZE;
/// Most bytes of a block that shares its superblock with others; larger ones take whole
/// superblocks.
pub const SMALL_SIZE_MAX: u64 = 32 << 10;

pub use crate::mark::{self, MEMBER_COUNT};

/// The meaning of [`mark::CONDEMNED`] for an opener: the word at [`HeapGeometry::sweep`].
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[repr(u64)]
pub enum SweepState {
    /// No mark says "condemned".
    Closed = 0,
    /// Blocks are being condemned: those that are count as allocated.
    Open = u64::from_le_bytes(*b"condemn."),
    /// All of them are condemned: they are free.
    Committed = u64::from_le_bytes(*b"sweeping"),
}

impl SweepState {
    /// The state with this number.
    #[must_use]
    pub const fn from_u64(value: u64) -> Option<Self> {
        const OPEN: u64 = SweepState::Open as u64;
        const COMMITTED: u64 = SweepState::Committed as u64;
        match value {
            0 => Some(Self::Closed),
            OPEN => Some(Self::Open),
            COMMITTED => Some(Self::Committed),
            _ => None,
        }
    }
}

/// Unit in which the file has space or not.
const SPACE_UNIT: u64 = 4096;

/// Usable bytes of the large block that serves a request of `size` bytes: whole superblocks, if
/// less than an eighth of them is waste; else the size rounded up to an eighth of the power of two
/// below it (at least 4 KiB, at most a superblock), so that less than an eighth is waste. The bytes
/// behind the block in its last superblock stay unused. `None`: no block can be that large.
#[must_use]
pub const fn large_size(size: u64) -> Option<u64> {
    if size > i64::MAX as u64 - SUPERBLOCK_SIZE {
        return None;
    }
    let below = match size {
        0 | 1 => 1,
        size => 1 << (size - 1).ilog2(),
    };
    let mut step = below / 8;
    if step < SPACE_UNIT {
        step = SPACE_UNIT;
    } else if step > SUPERBLOCK_SIZE {
        step = SUPERBLOCK_SIZE;
    }
    let rounded = if size == 0 { step } else { size.next_multiple_of(step) };
    // By the rounded size alone, so that a block asked for by its size is of that size.
    let whole = rounded.next_multiple_of(SUPERBLOCK_SIZE);
    Some(if whole - rounded + step <= whole / 8 { whole } else { rounded })
}

/// From which byte on a superblock of blocks of `size` bytes is given back to the file system while
/// it is in use, if it is: where an eighth or more is behind the last block.
#[must_use]
pub const fn small_end(size: u64) -> Option<u64> {
    let end = (blocks_of(size) * size).next_multiple_of(SPACE_UNIT);
    if SUPERBLOCK_SIZE - end >= SUPERBLOCK_SIZE / 8 { Some(end) } else { None }
}

/// Blocks of `size` bytes in one superblock.
#[must_use]
pub const fn blocks_of(size: u64) -> u64 {
    SUPERBLOCK_SIZE / size
}

/// Whether blocks of `size` bytes have their marks among the tiny marks.
#[must_use]
pub const fn is_tiny(size: u64) -> bool {
    size * MARKS_SIZE < SUPERBLOCK_SIZE
}

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
    /// Nothing; may be taken, after space was taken for it: the file may have a hole there.
    Hole = 5,
    /// As [`SuperblockState::Small`]; the file may have no space behind its blocks.
    SmallCut = 6,
    /// As [`SuperblockState::LargeHead`]; the file may have no space behind the block.
    LargeHeadCut = 7,
    /// As [`SuperblockState::LargeTail`]; the file may have no space behind the block.
    LargeTailCut = 8,
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
            5 => Some(Self::Hole),
            6 => Some(Self::SmallCut),
            7 => Some(Self::LargeHeadCut),
            8 => Some(Self::LargeTailCut),
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
    /// Bytes of a block. Each descriptor of a large block says all of its bytes.
    pub block_size: u64,
    /// Type of the blocks.
    pub type_id: TypeId,
    /// Superblocks of a large block (in its head); distance to the head (in a tail); else 0.
    pub span: u64,
    /// Volatile: use in this session, and a counter.
    pub anchor: u64,
    /// Volatile: the next superblock of the list that this one is in.
    pub next: u64,
    /// Volatile: where blocks and marks lie; zero if there are none.
    pub geometry: u64,
}

const _: () = assert!(size_of::<Descriptor>() == 64);

/// The byte that fills a page of metadata (without descriptors) that is lost while the puddle is in
/// use. As a mark it is illegal and of no live block. As a root it is damaged; as a link it leads
/// to no address that a process has.
pub const LOST_BYTE: u8 = 0xe0;
const LOST_WORD: u64 = u64::from_ne_bytes([LOST_BYTE; 8]);

const _: () = {
    assert!(RootSlot { word: LOST_WORD, type_id: TypeId(LOST_WORD) }.read().is_none());
    assert!(SweepState::from_u64(LOST_WORD).is_none() && !mark::is_live(LOST_BYTE));
    // Every legal mark has an even number of bits set.
    assert!(LOST_BYTE.count_ones() % 2 == 1);
    assert!(SuperblockState::from_u32(LOST_WORD as u32).is_none());
    // A link is an address divided by `SUPERBLOCK_SIZE`, in 32 bits.
    assert!((LOST_WORD & 0xffff_ffff) * SUPERBLOCK_SIZE >= 1 << 47);
};

impl Descriptor {
    /// The descriptor of a superblock that is not in use: all zero, as a new file is.
    pub const FREE: Self = Self {
        checksum: 0,
        state: 0,
        class: 0,
        block_size: 0,
        type_id: TypeId(0),
        span: 0,
        anchor: 0,
        next: 0,
        geometry: 0,
    };

    /// Replaces in memory a descriptor whose page is lost while the puddle is in use: no state has
    /// its number, no block begins in its superblock, its anchor says "damaged", and its link is
    /// the address of nothing. It is never in a file.
    pub const LOST: Self = Self {
        checksum: LOST_WORD,
        state: LOST_WORD as u32,
        type_id: TypeId(LOST_WORD),
        anchor: 7,
        next: LOST_WORD,
        ..Self::FREE
    };

    /// The descriptor of a superblock of metadata. `holes`: the file may have no space for tiny
    /// marks (descriptor 0 says so for the whole puddle).
    #[must_use]
    pub fn metadata(holes: bool) -> Self {
        Self::new(SuperblockState::Metadata, 0, 0, TypeId::UNTYPED, holes as u64)
    }

    /// Of descriptor 0: whether space must be taken before a page of tiny marks is used. Only a
    /// whole descriptor says no.
    #[must_use]
    pub fn may_lack_tiny(&self) -> bool {
        self.state != SuperblockState::Metadata as u32 || self.span != 0 || !self.is_valid()
    }

    /// The descriptor of a free superblock whose space the file may not have.
    #[must_use]
    pub fn hole() -> Self {
        Self::new(SuperblockState::Hole, 0, 0, TypeId::UNTYPED, 0)
    }

    /// Whether space must be taken before anything is stored into the superblock: it is a hole, or
    /// the descriptor does not say.
    #[must_use]
    pub fn may_be_hole(&self) -> bool {
        self.state == SuperblockState::Hole as u32 || !self.is_valid()
    }

    /// Whether space must be taken before the whole superblock can be used for something else:
    /// that, or the file may have no space behind its blocks.
    #[must_use]
    pub fn may_lack_space(&self) -> bool {
        let cut = match SuperblockState::from_u32(self.state) {
            Some(SuperblockState::SmallCut) => true,
            Some(SuperblockState::LargeHeadCut) => self.block_size < SUPERBLOCK_SIZE,
            Some(SuperblockState::LargeTailCut) => {
                self.span.checked_add(1).and_then(|number| number.checked_mul(SUPERBLOCK_SIZE))
                    > Some(self.block_size)
            }
            _ => false,
        };
        cut || self.may_be_hole()
    }

    /// A descriptor with its checksum.
    #[must_use]
    pub fn new(
        state: SuperblockState,
        class: u32,
        block_size: u64,
        type_id: TypeId,
        span: u64,
    ) -> Self {
        let mut descriptor =
            Self { state: state as u32, class, block_size, type_id, span, ..Self::FREE };
        descriptor.checksum = descriptor.compute();
        descriptor
    }

    /// Whether this is [`Descriptor::FREE`], or checksum and fields fit together.
    #[must_use]
    pub fn is_valid(&self) -> bool {
        if self.state == SuperblockState::Free as u32 {
            return Self { anchor: 0, next: 0, geometry: 0, ..*self } == Self::FREE;
        }
        SuperblockState::from_u32(self.state).is_some() && self.checksum == self.compute()
    }

    fn compute(&self) -> u64 {
        checksum(seed::DESCRIPTOR, &self.as_bytes()[8..40])
    }
}

/// Where what lies in a heap puddle. Offsets count from the puddle's start, in bytes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct HeapGeometry {
    /// Superblocks in the puddle, those with metadata included. A last part of less than 64 KiB is
    /// not used.
    pub superblocks: u64,
    /// Where the descriptors begin.
    pub descriptors: u64,
    /// Where the tiny marks begin, a multiple of a page. They end where the marks begin.
    pub tiny: u64,
    /// Where the marks begin.
    pub marks: u64,
    /// Where the hints begin: words of one bit a superblock, set while it may be free.
    pub hints: u64,
    /// Where the roots begin (meaningful in the root puddle).
    pub roots: u64,
    /// Where the lists begin (meaningful in the root puddle).
    pub lists: u64,
    /// Where the table of members begins (meaningful in the root puddle).
    pub members: u64,
    /// Where the sweep line begins (meaningful in the root puddle).
    pub sweep: u64,
    /// Number of the first superblock for blocks.
    pub first_usable: u64,
}

impl HeapGeometry {
    /// The geometry of a heap puddle of `size` bytes; `None` if that is too small. `root` says
    /// whether it is a pool's root puddle.
    #[must_use]
    pub const fn new(size: u64, root: bool) -> Option<Self> {
        let superblocks = size / SUPERBLOCK_SIZE;
        let descriptors = header_space(size);
        let Some(tiny) =
            round_up(descriptors + superblocks * size_of::<Descriptor>() as u64, SPACE_UNIT)
        else {
            return None;
        };
        let marks = tiny + superblocks * TINY_MARKS_SIZE;
        let hints = marks + superblocks * MARKS_SIZE;
        let roots = hints + superblocks.div_ceil(512) * 64;
        let lists = roots + ROOT_COUNT * size_of::<RootSlot>() as u64;
        let members = lists + LIST_COUNT * 16;
        let sweep = members + MEMBERS_SIZE;
        let end = if root { sweep + SWEEP_SIZE } else { roots };
        let first_usable = match round_up(end, SUPERBLOCK_SIZE) {
            Some(rounded) => rounded / SUPERBLOCK_SIZE,
            None => return None,
        };
        if first_usable >= superblocks {
            return None;
        }
        Some(Self {
            superblocks,
            descriptors,
            tiny,
            marks,
            hints,
            roots,
            lists,
            members,
            sweep,
            first_usable,
        })
    }

    /// Where the marks of a superblock with blocks of `block_size` bytes begin.
    #[must_use]
    pub const fn marks_at(&self, superblock: u64, block_size: u64) -> u64 {
        match is_tiny(block_size) {
            true => self.tiny + superblock * TINY_MARKS_SIZE,
            false => self.marks + superblock * MARKS_SIZE,
        }
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
                for offset in
                    [g.descriptors, g.tiny, g.marks, g.hints, g.roots, g.lists, g.members, g.sweep]
                {
                    assert_eq!(offset % 64, 0);
                }
                assert!((g.roots - g.hints) * 8 >= g.superblocks);
                assert!(
                    g.first_usable * SUPERBLOCK_SIZE
                        >= if root { g.sweep + SWEEP_SIZE } else { g.roots }
                );
                assert!(g.superblocks * SUPERBLOCK_SIZE <= size);
            }
        }
        let g = HeapGeometry::new(2 << 20, true).unwrap();
        assert_eq!((g.superblocks, g.first_usable), (32, 3));
        assert_eq!((g.descriptors, g.tiny, g.marks, g.hints), (4096, 8192, 139_264, 172_032));
        assert_eq!((g.roots, g.lists, g.members, g.sweep), (172_096, 188_480, 194_624, 196_480));
    }

    #[test]
    fn a_sweep_state_is_what_its_word_says() {
        for state in [SweepState::Closed, SweepState::Open, SweepState::Committed] {
            assert_eq!(SweepState::from_u64(state as u64), Some(state));
        }
        assert_eq!(SweepState::from_u64(1), None);
    }

    #[test]
    fn marks_have_room_and_lie_in_the_metadata() {
        let g = HeapGeometry::new(2 << 20, false).unwrap();
        let page = |offset: u64| offset % SPACE_UNIT;
        assert_eq!((page(g.tiny), page(g.marks)), (0, 0));
        for size in (16..=SMALL_SIZE_MAX).step_by(16) {
            let (first, last) = (g.marks_at(0, size), g.marks_at(g.superblocks - 1, size));
            let room = if is_tiny(size) { TINY_MARKS_SIZE } else { MARKS_SIZE };
            assert!(blocks_of(size) <= room);
            assert_eq!(last - first, (g.superblocks - 1) * room);
            assert_eq!(
                (first, last + room),
                if is_tiny(size) { (g.tiny, g.marks) } else { (g.marks, g.hints) }
            );
        }
        assert_eq!([16, 32, 48, 64].map(blocks_of), [4096, 2048, 1365, 1024]);
    }

    #[test]
    fn a_free_descriptor_is_all_zero_but_for_volatile_words() {
        for at in 0..40 {
            let mut bytes = [0; 64];
            bytes[at] = 1;
            assert!(!Descriptor::read_from_bytes(&bytes[..]).unwrap().is_valid(), "byte {at}");
        }
        assert!(Descriptor { anchor: 1, next: 2, geometry: 3, ..Descriptor::FREE }.is_valid());
        assert!(!Descriptor::metadata(false).may_lack_tiny());
        assert!(Descriptor::metadata(true).may_lack_tiny() && Descriptor::FREE.may_lack_tiny());
    }
}
