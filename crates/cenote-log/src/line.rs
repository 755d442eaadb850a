//! A line of an entry, and where the fields of an entry's header lie in its words.

use cenote_layout::LINE_SIZE;
use cenote_layout::log::{ENTRY_HEADER_SIZE, EntryHeader, EntryKind};
use core::mem::offset_of;

/// Bytes of a line.
pub(crate) const LINE_LEN: usize = LINE_SIZE as usize;

pub(crate) const LINE_WORDS: usize = LINE_LEN / 8;
pub(crate) const HEADER_WORDS: usize = ENTRY_HEADER_SIZE as usize / 8;

/// A line of an entry.
#[repr(C, align(64))]
pub(crate) struct EntryLine {
    pub(crate) words: [u64; LINE_WORDS],
}

/// The last word of an entry header: sequence number, kind, order, unfenced.
#[inline(always)]
pub(crate) const fn word(seq: u32, kind: EntryKind, unfenced: u32) -> u64 {
    seq as u64 | ((kind as u64) << 32) | ((kind.order() as u64) << 40) | ((unfenced as u64) << 48)
}

// Where the fields of an entry header lie in its words.
const _: () = assert!(cfg!(target_endian = "little"));
const _: () = assert!(offset_of!(EntryHeader, checksum) == 0 && offset_of!(EntryHeader, addr) == 8);
const _: () = assert!(offset_of!(EntryHeader, size) == 16 && offset_of!(EntryHeader, index) == 20);
const _: () = assert!(offset_of!(EntryHeader, seq) == 24 && offset_of!(EntryHeader, kind) == 28);
const _: () =
    assert!(offset_of!(EntryHeader, order) == 29 && offset_of!(EntryHeader, unfenced) == 30);
