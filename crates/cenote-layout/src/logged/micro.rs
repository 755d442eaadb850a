//! The micro log of a sub-heap: the lanes in which transactions note what they allocate and free.
//!
//! Invariant: an entry of a lane counts only if it has the number of the transaction that the
//! lane's word ([`LaneWord`]) names, and so do all entries before it.

use super::{CELL_SIZE, Cell, LANE_SIZE, LANES_OFFSET, UNIT_BITS};
use crate::checksum::{checksum, seed};
use core::mem::offset_of;
use zerocopy::{FromBytes, Immutable, IntoBytes, KnownLayout};

/// What a transaction did with a block.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u64)]
pub enum MicroKind {
    /// Allocated it: an abort frees it.
    Alloc = 1,
    /// Wants it freed: a commit frees it.
    Free = 2,
}

/// One entry of the micro log: a block that a transaction allocated, or frees when it commits.
#[derive(Clone, Copy, Debug, PartialEq, Eq, FromBytes, IntoBytes, Immutable, KnownLayout)]
#[repr(C)]
pub struct MicroEntry {
    /// Bits 0 to 47: offset of the block in grains of 16 bytes; above: [`MicroKind`].
    pub place: u64,
    /// Bits 0 to 39: number of the transaction; above: check.
    pub tail: u64,
}

const _: () = assert!(size_of::<MicroEntry>() == 16);

/// Bits of the number of a transaction.
pub const MICRO_SEQUENCE_BITS: u32 = 40;

impl MicroEntry {
    /// The entry at `index` of `lane` that transaction `sequence` of the lane makes.
    #[must_use]
    pub fn new(lane: u32, index: usize, sequence: u64, unit: u64, kind: MicroKind) -> Self {
        let place = unit | (kind as u64) << UNIT_BITS;
        let number = sequence & ((1 << MICRO_SEQUENCE_BITS) - 1);
        Self { place, tail: number | micro_check(lane, index as u64, place, number) }
    }

    /// Number of the transaction, block and kind; `None`: the entry is damaged.
    #[must_use]
    pub fn read(&self, lane: u32, index: usize) -> Option<(u64, u64, MicroKind)> {
        let number = self.tail & ((1 << MICRO_SEQUENCE_BITS) - 1);
        let kind = match self.place >> UNIT_BITS {
            1 => MicroKind::Alloc,
            2 => MicroKind::Free,
            _ => return None,
        };
        let unit = self.place & ((1 << UNIT_BITS) - 1);
        (*self == Self::new(lane, index, number, unit, kind)).then_some((number, unit, kind))
    }
}

fn micro_check(lane: u32, index: u64, place: u64, number: u64) -> u64 {
    let sum = checksum(seed::MICRO, [u64::from(lane), index, place, number].as_bytes());
    sum & !((1 << MICRO_SEQUENCE_BITS) - 1)
}

/// Says that a lane's transaction is a part of one in another sub-heap, whose lane decides. The
/// second cell of the lane. It counts if `own` is the number in the lane's word.
#[derive(
    Clone, Copy, Debug, Default, PartialEq, Eq, FromBytes, IntoBytes, Immutable, KnownLayout,
)]
#[repr(C)]
pub struct LaneLink {
    /// Number of the lane's transaction.
    pub own: u64,
    /// Number of the other lane's transaction.
    pub sequence: u64,
    /// The other sub-heap.
    pub sub_heap: u32,
    /// Its lane.
    pub lane: u32,
    /// Zero.
    pub reserved: u32,
    /// See [`Cell`].
    pub check: u32,
}

const _: () = assert!(size_of::<LaneLink>() as u64 == CELL_SIZE);
const _: () = assert!(offset_of!(LaneLink, sequence) == 8);
const _: () = assert!(offset_of!(LaneLink, sub_heap) == 16);
const _: () = assert!(offset_of!(LaneLink, check) == 28);

impl LaneLink {
    /// Number of the cell of a lane's link.
    #[must_use]
    pub const fn cell(lane: u32) -> u64 {
        (LANES_OFFSET + lane as u64 * LANE_SIZE) / CELL_SIZE + 1
    }
}

impl Cell for LaneLink {
    const SEED: u64 = seed::LANE_LINK;

    fn is_possible(&self) -> bool {
        self.reserved == 0
    }
}

/// How far a lane's transaction is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum LaneState {
    /// It runs, or there is none: recovery frees what it allocated.
    Running,
    /// It is committed: recovery frees what it wanted freed.
    Committed,
}

/// The word that decides what a lane's entries mean: those with its number count.
///
/// Bits 0 to 39: number of the transaction; 40: committed; 41 to 63: check.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct LaneWord {
    /// Number of the transaction that runs, or that runs next.
    pub sequence: u64,
    /// How far it is.
    pub state: LaneState,
}

impl LaneWord {
    const STATE_BIT: u32 = MICRO_SEQUENCE_BITS;

    /// The word as it lies at the start of `lane`.
    #[must_use]
    pub fn encode(self, lane: u32) -> u64 {
        let state = u64::from(self.state == LaneState::Committed) << Self::STATE_BIT;
        let plain = self.sequence & ((1 << MICRO_SEQUENCE_BITS) - 1) | state;
        let sum = checksum(seed::LANE, [u64::from(lane), plain].as_bytes());
        plain | sum & !((1 << (Self::STATE_BIT + 1)) - 1)
    }

    /// What the word says; `None`: it is damaged.
    #[must_use]
    pub fn decode(bits: u64, lane: u32) -> Option<Self> {
        let state = match bits >> Self::STATE_BIT & 1 {
            0 => LaneState::Running,
            _ => LaneState::Committed,
        };
        let read = Self { sequence: bits & ((1 << MICRO_SEQUENCE_BITS) - 1), state };
        (read.encode(lane) == bits).then_some(read)
    }

    /// The word with which the next transaction of the lane begins: no entry counts.
    #[must_use]
    pub const fn next(self) -> Self {
        let sequence = (self.sequence + 1) & ((1 << MICRO_SEQUENCE_BITS) - 1);
        Self { sequence, state: LaneState::Running }
    }
}
