//! Logs (PUD-4; Puddles paper, 4.1 and Figures 6 and 7).
//!
//! A log puddle's body is one *segment*: a header of four cache lines and an entry area. The first
//! segment of a log is its *head*; when it is full the log goes on in further segments.
//!
//! ```text
//! body + 0     LogHeader: magic, version, features, checksum, owner, identity, capacity;
//!              written once
//! body + 128   LogControl: epoch; changes every 2^30 transactions
//! body + 192   LogRange: the sequence range, one 8-byte word; tail; last entry;
//!              changes with every transaction
//! body + 256   entry area, `capacity` bytes; in the head it is two halves, used in turn
//! ```
//!
//! # Sequence numbers
//!
//! Every entry carries a sequence number, the log carries a range (lo, hi) in one 8-byte word, and
//! an entry counts only if lo < seq < hi. Transaction number `g` of a log has `base = 4 g`; its
//! undo-class entries carry `base + 1`, its redo-class entries `base + 3`. So the range says which
//! stage a crash interrupted:
//!
//! | range | meaning |
//! | --- | --- |
//! | (base, base + 2) | running, or not begun: undo-class entries count, roll back unless sealed |
//! | (base + 2, base + 4) | committed: redo-class entries count, roll forward |
//! | (base + 4, base + 6) | finished; at the same time the next transaction's "running" |
//!
//! One 8-byte store moves the log from one row to the next; nothing is written when a transaction
//! begins. hi is always lo + 2 and lo is even, so that a damaged range is recognised. Before the
//! 32-bit numbers run out, the *epoch* goes up and they start again at 0; the epoch is mixed into
//! every entry's checksum, so that no old entry comes to life. The epoch's word carries its own
//! complement ([`epoch_to_word`]): a damaged epoch would make every entry look like none.
//!
//! Recovery goes on two transactions further, to `running(base + 8)`: the range on media may be one
//! transaction behind (the store that finishes one may be unfenced), and entries of `base + 4` may
//! then stand in the other half.
//!
//! # Halves
//!
//! A log's transaction `g` writes its first entry at the start of half `g & 1` of the head's entry
//! area. So the entries of a transaction that has just finished stay whole until the *next but one*
//! begins, and the store that finishes a transaction needs no fence of its own: see `cenote-tx`.

use crate::header::{Header, HeaderError, HeaderPrefix};
use crate::id::Uuid;
use zerocopy::{FromBytes, Immutable, IntoBytes, KnownLayout};

/// First line of a segment's body: written when the segment is made, then never again.
#[derive(Clone, Copy, Debug, PartialEq, Eq, FromBytes, IntoBytes, Immutable, KnownLayout)]
#[repr(C)]
pub struct LogHeader {
    /// Magic `CENOTLOG`, version, features, checksum.
    pub prefix: HeaderPrefix,
    /// The client (session) that writes this log.
    pub owner: Uuid,
    /// The log's identity, the same in all its segments: mixed into entry checksums.
    pub log_id: u64,
    /// Bytes of the entry area.
    pub capacity: u64,
    /// Number of this segment in its log; 0 is the head.
    pub segment: u32,
    /// Zero.
    pub reserved: [u8; 44],
}

const _: () = assert!(size_of::<LogHeader>() == 128);
const _: () = assert!(core::mem::offset_of!(LogHeader, log_id) == 64);

impl Header for LogHeader {
    const NAME: &'static str = "log header";
    const MAGIC: [u8; 8] = *b"CENOTLOG";
    const SEED: u64 = crate::checksum::seed::LOG;

    fn check_fields(&self) -> Result<(), HeaderError> {
        let bad = |field, value| Err(HeaderError::Field { what: Self::NAME, field, value });
        if self.capacity < 2 * MIN_HALF || !self.capacity.is_multiple_of(128) {
            return bad("capacity", self.capacity);
        }
        if self.reserved.iter().any(|&b| b != 0) {
            return Err(HeaderError::Reserved { what: Self::NAME });
        }
        Ok(())
    }
}

/// Offset of [`LogControl`] in a segment's body.
pub const CONTROL_OFFSET: u64 = 128;
/// Offset of [`LogRange`] in a segment's body.
pub const RANGE_OFFSET: u64 = 192;
/// Offset of the entry area in a segment's body.
pub const ENTRIES_OFFSET: u64 = 256;
/// Least bytes of one half of the entry area.
pub const MIN_HALF: u64 = 1024;

/// The line that changes when sequence numbers wrap, and when a log is set aside. Every word has
/// one value at a time that is right, so that a damaged one is recognised.
#[derive(Clone, Copy, Debug, PartialEq, Eq, FromBytes, IntoBytes, Immutable, KnownLayout)]
#[repr(C)]
pub struct LogControl {
    /// How often the sequence numbers have started again, see [`epoch_to_word`].
    pub epoch: u64,
    /// 0, or [`LOG_QUARANTINED`]: recovery found the log damaged and keeps it unapplied (PUD-3).
    pub state: u64,
    /// Zero.
    pub reserved: [u64; 6],
}

const _: () = assert!(size_of::<LogControl>() == 64);

/// An epoch as the word on media: the number in the lower half, its complement in the upper.
#[inline]
#[must_use]
pub const fn epoch_to_word(epoch: u32) -> u64 {
    epoch as u64 | ((!epoch as u64) << 32)
}

/// The epoch that the word on media says; `None` if it is none that is ever written.
#[inline]
#[must_use]
pub const fn epoch_from_word(word: u64) -> Option<u32> {
    let epoch = word as u32;
    if epoch_to_word(epoch) == word { Some(epoch) } else { None }
}

/// Value of [`LogControl::state`] of a log that failed its checks.
pub const LOG_QUARANTINED: u64 = 0x4445_4741_4d41_4451;

/// The line that changes with every transaction.
#[derive(Clone, Copy, Debug, PartialEq, Eq, FromBytes, IntoBytes, Immutable, KnownLayout)]
#[repr(C)]
pub struct LogRange {
    /// The sequence range, see [`SequenceRange`]: the word whose store commits.
    pub range: u64,
    /// Where the next entry goes ("next log pointer"), see [`TailWord`]. Exact after a crash of
    /// processes; after a loss of power a hint that may be old, because it is never flushed.
    pub tail: u64,
    /// Address of the last entry ("last log entry pointer"); as exact as `tail`.
    pub last: u64,
    /// In a log that has gone on in further segments: for which transaction, and in how many
    /// ([`TailWord`] with the number of the segment as its count). Stored and flushed when the
    /// jump to that segment is durable, so that a jump which is missing although this word
    /// names it, or anything missing before it, is damage and no torn end.
    pub overflow: u64,
    /// Zero.
    pub reserved: [u64; 4],
}

const _: () = assert!(size_of::<LogRange>() == 64);

/// The 8-byte sequence range of a log.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct SequenceRange {
    /// Entries count only above this.
    pub lo: u32,
    /// Entries count only below this.
    pub hi: u32,
}

/// What a range says about the transaction that was running.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Stage {
    /// Undo-class entries count.
    Running,
    /// Redo-class entries count.
    Committed,
}

impl SequenceRange {
    /// The range of a transaction that is running, or will.
    #[must_use]
    pub const fn running(base: u32) -> Self {
        Self { lo: base, hi: base + 2 }
    }

    /// The range of a transaction that is committed but not finished.
    #[must_use]
    pub const fn committed(base: u32) -> Self {
        Self { lo: base + 2, hi: base + 4 }
    }

    /// As the word on media: lo in the lower half.
    #[must_use]
    pub const fn to_word(self) -> u64 {
        self.lo as u64 | ((self.hi as u64) << 32)
    }

    /// From the word on media; `None` if it is none that is ever written.
    #[must_use]
    pub const fn from_word(word: u64) -> Option<Self> {
        let (lo, hi) = (word as u32, (word >> 32) as u32);
        match lo.checked_add(2) {
            Some(expected) if expected == hi && lo % 2 == 0 && lo <= END_BASE => {
                Some(Self { lo, hi })
            }
            _ => None,
        }
    }

    /// The transaction's base, a multiple of 4.
    #[must_use]
    pub const fn base(self) -> u32 {
        self.lo & !3
    }

    /// Which stage the range means.
    #[must_use]
    pub const fn stage(self) -> Stage {
        if self.lo & 2 == 0 { Stage::Running } else { Stage::Committed }
    }

    /// Whether an entry with this sequence number counts.
    #[must_use]
    pub const fn contains(self, seq: u32) -> bool {
        self.lo < seq && seq < self.hi
    }
}

/// No transaction has a base from here on: the epoch goes up before. Leaves room so that `base + 6`
/// never overflows.
pub const LAST_BASE: u32 = u32::MAX - 15;

/// While the epoch goes up the range is `running(END_BASE)`: no entry of any epoch has this base.
pub const END_BASE: u32 = LAST_BASE + 4;

/// [`LogRange::tail`]: which transaction it is about, and how far that one's entries reach.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct TailWord {
    /// Base of the transaction.
    pub base: u32,
    /// Number of entries that it has written.
    pub entries: u32,
}

impl TailWord {
    /// As the word on media.
    #[must_use]
    pub const fn to_word(self) -> u64 {
        self.base as u64 | ((self.entries as u64) << 32)
    }

    /// From the word on media.
    #[must_use]
    pub const fn from_word(word: u64) -> Self {
        Self { base: word as u32, entries: (word >> 32) as u32 }
    }
}

/// What an entry is. The class decides the sequence number: undo-class `base + 1`, redo-class
/// `base + 3`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[repr(u8)]
pub enum EntryKind {
    /// Undo: `data` is the old contents of `addr`; copied back on roll-back.
    Undo = 1,
    /// Redo: `data` is the new contents of `addr`; copied there on roll-forward.
    Redo = 2,
    /// Undo of process memory, applied on abort only; recovery skips it, because that memory is
    /// gone.
    Volatile = 3,
    /// A fresh allocation, undo-class: the range `addr, size` has no old contents worth keeping,
    /// but is made durable by commit and covered by the seal. No data.
    Fresh = 4,
    /// Undo-class: on roll-back, clear the bits `mask` (8 bytes of data) of the word at `addr`:
    /// gives back an allocation.
    ClearBitsOnAbort = 5,
    /// Redo-class: on roll-forward, clear the bits `mask` (8 bytes of data) of the word at `addr`:
    /// frees at commit. On roll-back set them: at `power` the mark of a block is cleared before
    /// the commit is decided.
    ClearBitsOnCommit = 6,
    /// Undo-class, last: data is a [`Seal`]. A valid one that fits the contents of memory says
    /// "committed".
    Seal = 7,
    /// Undo-class: the transaction goes on at the start of the segment whose puddle's address is
    /// `addr`. No data.
    Jump = 8,
    /// [`EntryKind::Fresh`] and [`EntryKind::ClearBitsOnAbort`] in one line: the block `addr,
    /// size`, and an [`AllocationMark`] as data. On roll-forward its bits are set.
    Allocation = 9,
}

impl EntryKind {
    /// The kind with this number.
    #[must_use]
    pub const fn from_u8(value: u8) -> Option<Self> {
        match value {
            1 => Some(Self::Undo),
            2 => Some(Self::Redo),
            3 => Some(Self::Volatile),
            4 => Some(Self::Fresh),
            5 => Some(Self::ClearBitsOnAbort),
            6 => Some(Self::ClearBitsOnCommit),
            7 => Some(Self::Seal),
            8 => Some(Self::Jump),
            9 => Some(Self::Allocation),
            _ => None,
        }
    }

    /// What is added to a transaction's base to get this kind's sequence number.
    #[must_use]
    pub const fn class(self) -> u32 {
        match self {
            Self::Redo | Self::ClearBitsOnCommit => 3,
            _ => 1,
        }
    }

    /// In which order recovery applies entries of this kind (the paper's "order" field).
    #[must_use]
    pub const fn order(self) -> Order {
        match self {
            Self::Redo | Self::ClearBitsOnCommit => Order::Forward,
            _ => Order::Backward,
        }
    }

    /// Bytes of data that follow the header of an entry with this `size`, which is the length of a
    /// range elsewhere for some kinds.
    #[inline]
    #[must_use]
    pub const fn data_len(self, size: u32) -> u32 {
        match self {
            Self::Fresh | Self::Jump => 0,
            Self::Allocation => size_of::<AllocationMark>() as u32,
            _ => size,
        }
    }

    /// Whether the seal of an entry's transaction covers what stands in its range `addr, size`.
    #[must_use]
    pub const fn is_sealed(self) -> bool {
        matches!(self, Self::Undo | Self::Fresh | Self::Allocation)
    }
}

/// Recovery order of an entry.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[repr(u8)]
pub enum Order {
    /// In the order of writing: redo.
    Forward = 0,
    /// Last first: undo.
    Backward = 1,
}

/// The header of one entry; `data` follows where the kind has data. Every entry begins a cache line
/// ([`entry_size`]); what is left of its last line means nothing and is not covered by the
/// checksum.
#[derive(Clone, Copy, Debug, PartialEq, Eq, FromBytes, IntoBytes, Immutable, KnownLayout)]
#[repr(C)]
pub struct EntryHeader {
    /// XXH3-64, seeded by [`entry_seed`], of the rest of this header and, where it fits into the
    /// entry's first line, the data (unpadded) behind it. Longer data is hashed by itself:
    /// XXH3-64 of the data, seeded by that of the rest of this header.
    pub checksum: u64,
    /// Address of the range.
    pub addr: u64,
    /// Bytes of the range; also of the data, where there is data. Longer ranges take several
    /// entries.
    pub size: u32,
    /// Number of this entry in its transaction, from 0: an entry in the wrong place does not
    /// count.
    pub index: u32,
    /// Sequence number.
    pub seq: u32,
    /// [`EntryKind`].
    pub kind: u8,
    /// [`Order`].
    pub order: u8,
    /// How many entries just before this one no fence had made durable when this one was written
    /// (65535: at least as many). An entry further back that is missing while this
    /// one is whole was not torn by the crash: the log is damaged.
    pub unfenced: u16,
}

const _: () = assert!(size_of::<EntryHeader>() == ENTRY_HEADER_SIZE as usize);

/// Bytes of an [`EntryHeader`].
pub const ENTRY_HEADER_SIZE: u64 = 32;

/// Data up to this many bytes lies in the same cache line as its entry's header, and has one
/// checksum with it.
pub const ENTRY_INLINE_DATA_MAX: u64 = crate::LINE_SIZE - ENTRY_HEADER_SIZE;

/// Contents under a seal are hashed in pieces of this many bytes, so that a writer can flush one
/// while it hashes the next.
pub const PIECE_LEN: usize = 1024;

/// Bytes that an entry with `data_len` bytes of data takes: whole cache lines, so that no line
/// holds parts of two entries. An entry of one line reaches memory as one whole line, and a line
/// that was written back once is not written again by the next entry.
#[inline]
#[must_use]
pub const fn entry_size(data_len: u64) -> u64 {
    (ENTRY_HEADER_SIZE + data_len + (crate::LINE_SIZE - 1)) & !(crate::LINE_SIZE - 1)
}

const _: () = assert!(entry_size(0) == 64 && entry_size(32) == 64 && entry_size(33) == 128);
const _: () = assert!(entry_size(size_of::<Seal>() as u64) == crate::LINE_SIZE);

/// Seed of the entry checksums of a log in an epoch: an entry of another log, or of another epoch,
/// does not count.
#[must_use]
pub const fn entry_seed(log_id: u64, epoch: u32) -> u64 {
    log_id ^ (epoch as u64).rotate_left(32) ^ crate::checksum::seed::LOG
}

/// Data of an [`EntryKind::Allocation`] entry: what makes the block free again on roll-back, and
/// allocated on roll-forward.
#[derive(Clone, Copy, Debug, PartialEq, Eq, FromBytes, IntoBytes, Immutable, KnownLayout)]
#[repr(C)]
pub struct AllocationMark {
    /// Address of the word that the block's mark is in, a multiple of 8.
    pub word: u64,
    /// The bits of it that are cleared, or set.
    pub mask: u64,
}

const _: () = assert!(entry_size(size_of::<AllocationMark>() as u64) == crate::LINE_SIZE);

/// Data of an [`EntryKind::Seal`] entry. `addr` of the entry is 0.
#[derive(Clone, Copy, Debug, PartialEq, Eq, FromBytes, IntoBytes, Immutable, KnownLayout)]
#[repr(C)]
pub struct Seal {
    /// Number of entries before the seal, jumps included.
    pub entries: u64,
    /// XOR of their checksums.
    pub entries_checksum: u64,
    /// [`ContentHash`] over the contents, at commit, of the ranges of all undo and fresh entries
    /// in order.
    pub contents: u64,
}

const _: () = assert!(size_of::<Seal>() == 24);

/// Running hash of the contents that a seal covers: each range in pieces of [`PIECE_LEN`] bytes and
/// a shorter last one, each piece hashed with XXH3-64, seeded by the hash so far.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ContentHash(pub u64);

impl ContentHash {
    /// The hash of no range.
    pub const EMPTY: Self = Self(crate::checksum::seed::SEAL);

    /// Adds the contents of one range.
    #[inline]
    #[must_use]
    pub fn with(self, contents: &[u8]) -> Self {
        contents.chunks(PIECE_LEN).fold(self, Self::with_piece)
    }

    /// Adds one piece of a range.
    #[inline]
    #[must_use]
    pub fn with_piece(self, piece: &[u8]) -> Self {
        debug_assert!(!piece.is_empty() && piece.len() <= PIECE_LEN);
        Self(crate::checksum::checksum(self.0, piece))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ranges_name_stages() {
        let running = SequenceRange::running(8);
        assert_eq!((running.stage(), running.base()), (Stage::Running, 8));
        assert!(running.contains(9) && !running.contains(11) && !running.contains(8));
        let committed = SequenceRange::committed(8);
        assert_eq!((committed.stage(), committed.base()), (Stage::Committed, 8));
        assert!(committed.contains(11) && !committed.contains(9));
        assert_eq!(SequenceRange::from_word(committed.to_word()), Some(committed));
    }

    #[test]
    fn every_single_bit_flip_of_an_epoch_is_noticed() {
        for epoch in [0, 1, 2, 0x8000_0001, u32::MAX] {
            let word = epoch_to_word(epoch);
            assert_eq!(epoch_from_word(word), Some(epoch));
            assert!((0..64).all(|bit| epoch_from_word(word ^ (1 << bit)).is_none()));
        }
        assert_eq!(epoch_from_word(0), None);
    }

    #[test]
    fn every_single_bit_flip_of_a_range_is_noticed() {
        for base in [0u32, 4, 1 << 20, LAST_BASE - 4] {
            for range in [SequenceRange::running(base), SequenceRange::committed(base)] {
                for bit in 0..64 {
                    assert_eq!(SequenceRange::from_word(range.to_word() ^ (1 << bit)), None);
                }
            }
        }
    }
}
