//! The undo log of a sub-heap: what the cells of a change held before it.
//!
//! Invariant: a change is made when the seal of its record fits; before that, recovery puts back
//! what the entries hold.

use super::{RawCell, UNDO_ENTRY_SIZE, UNDO_HEADER_SIZE};
use crate::checksum::{checksum, seed};
use core::mem::offset_of;
use zerocopy::{FromBytes, Immutable, IntoBytes, KnownLayout};

/// What comes before the entries of an undo record: one line.
#[derive(Clone, Copy, Debug, PartialEq, Eq, FromBytes, IntoBytes, Immutable, KnownLayout)]
#[repr(C)]
pub struct UndoHeader {
    /// Checksum over the rest of the header, with `seal` as zero, and the entries.
    pub check: u64,
    /// Number of the change: odd ones lie in the second half.
    pub sequence: u64,
    /// Entries.
    pub count: u64,
    /// Says that the change is made: [`seal_in_order`] or [`seal_of_contents`]; 0 before that.
    pub seal: u64,
    /// Zero.
    pub reserved: [u64; 4],
}

const _: () = assert!(size_of::<UndoHeader>() as u64 == UNDO_HEADER_SIZE);
const _: () = assert!(offset_of!(UndoHeader, sequence) == 8);
const _: () = assert!(offset_of!(UndoHeader, count) == 16);
const _: () = assert!(offset_of!(UndoHeader, seal) == 24);

/// One undo entry.
#[derive(Clone, Copy, Debug, PartialEq, Eq, FromBytes, IntoBytes, Immutable, KnownLayout)]
#[repr(C)]
pub struct UndoEntry {
    /// Number of the cell.
    pub cell: u64,
    /// What it held before the change.
    pub old: RawCell,
}

const _: () = assert!(size_of::<UndoEntry>() as u64 == UNDO_ENTRY_SIZE);
const _: () = assert!(offset_of!(UndoEntry, old) == 8);

/// The last word of the first half, which no record reaches: what a process knew to be made when
/// it stored the word. It is never flushed, so after a loss of power it may be an older one.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct LastStep {
    /// Number of the slab record that changed last by a step; 0 is not known.
    pub cell: u32,
    /// Low bits of the number of the last change, which was made and durable before; 0 is not
    /// known, as in a word of an earlier build.
    pub change: u32,
}

impl LastStep {
    /// After change `sequence`, and a step of `cell`, a slot of a table.
    #[inline]
    #[must_use]
    pub const fn after(cell: u64, sequence: u64) -> Self {
        Self { cell: cell as u32, change: sequence as u32 }
    }

    /// What a word says.
    #[inline]
    #[must_use]
    pub const fn from_word(word: u64) -> Self {
        Self { cell: word as u32, change: (word >> u32::BITS) as u32 }
    }

    /// The word that says this.
    #[inline]
    #[must_use]
    pub const fn to_word(self) -> u64 {
        self.cell as u64 | (self.change as u64) << u32::BITS
    }

    /// Whether it says that change `sequence` was made. Of 2^32 changes one has that number too:
    /// it counts if no step and no change has told of a later one since.
    #[must_use]
    pub const fn says_made(self, sequence: u64) -> bool {
        self.change != 0 && self.change == sequence as u32
    }

    /// Whether it tells of a change behind `sequence`.
    #[must_use]
    pub const fn is_later_than(self, sequence: u64) -> bool {
        self.change != 0 && (self.change.wrapping_sub(sequence as u32) as i32) > 0
    }
}

/// The check of an undo record, of which `bytes` is all but the check itself, with `seal` as zero.
#[inline]
#[must_use]
pub fn undo_check(bytes: &[u8]) -> u64 {
    checksum(seed::UNDO, bytes)
}

/// The seal of a change whose cells were stored, or undone, before the seal: at level `process`
/// because stores are executed in order; in recovery because a fence is between.
#[inline]
#[must_use]
pub const fn seal_in_order(sequence: u64) -> u64 {
    // Never 0, because there are not so many changes; and no flipped bit makes another's.
    super::mixed(sequence ^ seed::UNDO)
}

/// Bits of a seal of contents that are a hash of the contents; above them is a check of these bits.
const SEAL_HASH_BITS: u32 = 40;

/// The seal of a change at level `power`: it fits only if every cell holds its new contents.
#[must_use]
pub fn seal_of_contents(sequence: u64, contents: &[RawCell]) -> u64 {
    let seed = seed::UNDO_SEAL ^ sequence.rotate_left(32);
    checked_seal(sequence, checksum(seed, contents.as_bytes()))
}

/// Whether a word is a seal of change `sequence` for any contents of its cells. Damage of a seal is
/// found so; it does not pass for a change that was broken off.
#[must_use]
pub fn is_seal(sequence: u64, word: u64) -> bool {
    word == seal_in_order(sequence) || word == checked_seal(sequence, word)
}

/// The low bits of a hash, with their check above them.
fn checked_seal(sequence: u64, hash: u64) -> u64 {
    let low = hash & ((1 << SEAL_HASH_BITS) - 1);
    low | checksum(seed::UNDO_SEAL, [sequence, low].as_bytes()) << SEAL_HASH_BITS
}
