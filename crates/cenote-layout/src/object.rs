//! Objects (PMO) and the journal that makes `psync` atomic. Argument and states: front page of
//! `cenote-object`.
//!
//! ```text
//! object puddle:  | header space | ObjectHeader, rest of its page zero | data | regions |
//! file journal:   | JournalHeader | JournalHeader | half 0 | half 1 |
//!                 0               4096            8192     8192 + half_len
//! record:         | RecordHeader | Uuid * objects | Run * runs | data | zeros | CommitRecord |
//! ```
//!
//! The regions are those of [`crate::at_rest`], where the object is protected. The lines of a
//! record's runs are counted from the start of the data, and go on into the regions, so that sealed
//! pages and what belongs to them change by one record. A record's length is a multiple of 4096.
//!
//! A record begins at a multiple of 4096, so that writing one never rewrites a block that holds
//! another.

use crate::checksum::{checksum, seed};
use crate::header::{Header, HeaderError, HeaderPrefix};
use crate::id::Uuid;
use crate::{LINE_SIZE, PAGE_SIZE, puddle::header_space};
use zerocopy::{FromBytes, Immutable, IntoBytes, KnownLayout};

/// State of an object (paper, Figure 5).
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
#[repr(u32)]
pub enum ObjectState {
    /// D: no process has it. The primary is the truth.
    Detached = 1,
    /// R: attached for reading. The primary is the truth.
    Read = 2,
    /// W: attached for writing. The primary is the truth; what is in the shadow is gone after a
    /// crash.
    Write = 3,
    /// P: a psync writes its record into the journal. As W.
    Psync = 4,
    /// C: the record is committed; the primary may hold any part of it. The journal is the truth.
    Copy = 5,
    /// DP: the primary is being decrypted into the shadow.
    DecryptPrimary = 6,
    /// ES: the shadow is being encrypted into the primary.
    EncryptShadow = 7,
    /// EP: the primary is being encrypted into the shadow.
    EncryptPrimary = 8,
    /// CE: the encrypted shadow is being copied to the primary.
    CopyEncrypted = 9,
}

impl ObjectState {
    /// The state with this number.
    #[must_use]
    pub const fn from_u32(value: u32) -> Option<Self> {
        Some(match value {
            1 => Self::Detached,
            2 => Self::Read,
            3 => Self::Write,
            4 => Self::Psync,
            5 => Self::Copy,
            6 => Self::DecryptPrimary,
            7 => Self::EncryptShadow,
            8 => Self::EncryptPrimary,
            9 => Self::CopyEncrypted,
            _ => return None,
        })
    }

    /// The paper's letters.
    #[must_use]
    pub const fn letters(self) -> &'static str {
        match self {
            Self::Detached => "D",
            Self::Read => "R",
            Self::Write => "W",
            Self::Psync => "P",
            Self::Copy => "C",
            Self::DecryptPrimary => "DP",
            Self::EncryptShadow => "ES",
            Self::EncryptPrimary => "EP",
            Self::CopyEncrypted => "CE",
        }
    }
}

impl core::fmt::Display for ObjectState {
    fn fmt(&self, f: &mut core::fmt::Formatter<'_>) -> core::fmt::Result {
        f.write_str(self.letters())
    }
}

/// First sector of an object's body: the process that has it attached for writing. A hint for
/// messages: the journal decides which data is true.
#[derive(Clone, Copy, Debug, PartialEq, Eq, FromBytes, IntoBytes, Immutable, KnownLayout)]
#[repr(C)]
pub struct ObjectHeader {
    /// Magic `CENOBJCT`, version, features, checksum.
    pub prefix: HeaderPrefix,
    /// The object's puddle.
    pub object: Uuid,
    /// [`ObjectState`]: `Detached` or `Write`. The others are in the journal, or in no file.
    pub state: u32,
    /// Zero.
    pub reserved0: u32,
    /// Boot of the machine under which it was attached; nil if it is detached.
    pub boot_id: Uuid,
    /// Process that attached it.
    pub pid: u64,
    /// When that process started, in clock ticks since boot.
    pub start_ticks: u64,
    /// When it was attached, in seconds since 1970.
    pub attached_at_s: u64,
    /// Zero.
    pub reserved: [u8; 400],
}

const _: () = assert!(size_of::<ObjectHeader>() == 512);
const _: () = assert!(core::mem::offset_of!(ObjectHeader, state) == 64);
const _: () = assert!(core::mem::offset_of!(ObjectHeader, reserved) == 112);

impl ObjectHeader {
    /// The header of an object that no process has attached; to be sealed.
    #[must_use]
    pub const fn detached(object: Uuid) -> Self {
        Self {
            prefix: HeaderPrefix::new(*b"CENOBJCT", size_of::<Self>() as u32),
            object,
            state: ObjectState::Detached as u32,
            reserved0: 0,
            boot_id: Uuid::NIL,
            pid: 0,
            start_ticks: 0,
            attached_at_s: 0,
            reserved: [0; 400],
        }
    }
}

impl Header for ObjectHeader {
    const NAME: &'static str = "object header";
    const MAGIC: [u8; 8] = *b"CENOBJCT";
    const SEED: u64 = seed::OBJECT;

    fn check_fields(&self) -> Result<(), HeaderError> {
        let bad = |field, value| Err(HeaderError::Field { what: Self::NAME, field, value });
        if ObjectState::from_u32(self.state).is_none() {
            return bad("state", u64::from(self.state));
        }
        if self.reserved0 != 0 || self.reserved.iter().any(|&b| b != 0) {
            return Err(HeaderError::Reserved { what: Self::NAME });
        }
        Ok(())
    }
}

/// Most bytes of an object's data: more than any window has.
pub const OBJECT_LEN_MAX: u64 = 1 << 46;

/// Where an object's data begins in its puddle of `size` bytes.
#[must_use]
pub const fn object_data_offset(size: u64) -> u64 {
    header_space(size) + PAGE_SIZE
}

/// Bytes of the puddle of an object with `data_len` bytes of data, or `None` for a length that no
/// object can have.
#[must_use]
pub const fn object_puddle_size(data_len: u64) -> Option<u64> {
    if data_len == 0 || data_len > OBJECT_LEN_MAX {
        return None;
    }
    let body = data_len.div_ceil(PAGE_SIZE) * PAGE_SIZE + PAGE_SIZE;
    // One page of headers for each 2 MiB, of which the headers are a part: grows until it fits.
    let mut size = body;
    loop {
        let next = body + header_space(size);
        if next == size {
            return Some(size);
        }
        size = next;
    }
}

/// Start of the journal, twice: the whole copy with the higher generation counts.
#[derive(Clone, Copy, Debug, PartialEq, Eq, FromBytes, IntoBytes, Immutable, KnownLayout)]
#[repr(C)]
pub struct JournalHeader {
    /// Magic `CENJOURN`, version, features, checksum.
    pub prefix: HeaderPrefix,
    /// The store that it belongs to.
    pub store: Uuid,
    /// One higher each time that a header is written.
    pub generation: u64,
    /// One higher each time that the journal is opened for writing: no record of an earlier
    /// session follows one of a later session.
    pub epoch: u64,
    /// Bytes of each half, a multiple of 4096.
    pub half_len: u64,
    /// What records up to this number changed is durable in the primaries.
    pub trimmed: u64,
    /// Checksum of that record: what the next one follows.
    pub chain: u64,
    /// Where the list of protected primaries begins, behind the halves. Zero: it is empty.
    pub roots_at: u64,
    /// Its bytes: a number of [`RootEntry`].
    pub roots_len: u64,
    /// Their XXH3-64. A header whose list has another one is not whole.
    pub roots_sum: u64,
    /// Generation of the superblock's copy that names this epoch: an older superblock was put
    /// back.
    pub session: u64,
    /// Generation of the header with which this epoch began. As long as it is the newest one, and
    /// there is no record of the epoch, the superblock may not name the epoch yet.
    pub begun: u64,
    /// The other journal of the store had durable records up to this number when this header was
    /// written: with fewer it was put back.
    pub other: u64,
    /// The catalog durably had this batch then: one that ends earlier was put back.
    pub catalog: u64,
    /// Zero.
    pub reserved: [u8; 352],
}

/// Earlier builds: records name the other journal's alone, and are shorter.
const INCOMPAT_TIED_EARLIER: u64 = 1 << 0;
/// In every journal's header: records name the other journal's ([`RecordHeader::other`]), and the
/// catalog's batch ([`RecordHeader::catalog`]).
pub const INCOMPAT_TIED: u64 = 1 << 1;

const _: () = assert!(size_of::<JournalHeader>() == 512);
const _: () = assert!(core::mem::offset_of!(JournalHeader, roots_at) == 104);
const _: () = assert!(core::mem::offset_of!(JournalHeader, session) == 128);
const _: () = assert!(core::mem::offset_of!(JournalHeader, other) == 144);
const _: () = assert!(core::mem::offset_of!(JournalHeader, reserved) == 160);

/// A protected primary in a journal's list: the one root of all that is protected in a store.
#[derive(Clone, Copy, Debug, PartialEq, Eq, FromBytes, IntoBytes, Immutable, KnownLayout)]
#[repr(C)]
pub struct RootEntry {
    /// The primary: an object, or the root puddle of a pool.
    pub id: Uuid,
    /// A digest of its protection's header, as the last psync left that.
    pub root: [u8; 32],
}

const _: () = assert!(size_of::<RootEntry>() == 48);

/// Most entries of a list.
pub const ROOTS_MAX: u64 = 1 << 24;

/// Offset of the first half in the journal; the headers are at 0 and [`PAGE_SIZE`].
pub const JOURNAL_HALVES_OFFSET: u64 = 2 * PAGE_SIZE;

impl JournalHeader {
    /// Offsets in bytes where half 0 or 1 begins and ends.
    #[must_use]
    pub fn half(&self, number: usize) -> (u64, u64) {
        let start =
            JOURNAL_HALVES_OFFSET.saturating_add(self.half_len.saturating_mul(number as u64));
        (start, start.saturating_add(self.half_len))
    }
}

impl Header for JournalHeader {
    const NAME: &'static str = "journal header";
    const MAGIC: [u8; 8] = *b"CENJOURN";
    const SEED: u64 = seed::JOURNAL_HEADER;
    const KNOWN_INCOMPAT: u64 = INCOMPAT_TIED | INCOMPAT_TIED_EARLIER;

    fn check_fields(&self) -> Result<(), HeaderError> {
        let bad = |field, value| Err(HeaderError::Field { what: Self::NAME, field, value });
        if self.prefix.incompat != INCOMPAT_TIED {
            // Its records would be taken for none.
            return bad("set of features, of an earlier build", self.prefix.incompat);
        }
        if self.half_len == 0
            || !self.half_len.is_multiple_of(PAGE_SIZE)
            || self.half_len > OBJECT_LEN_MAX
        {
            return bad("half_len", self.half_len);
        }
        let highest =
            self.trimmed.max(self.generation).max(self.epoch).max(self.other).max(self.catalog);
        if highest >= 1 << 62 {
            return bad("counter", highest);
        }
        let end = JOURNAL_HALVES_OFFSET + 2 * self.half_len;
        let is_list = self.roots_at >= end
            && self.roots_at <= 4 * OBJECT_LEN_MAX
            && self.roots_len.is_multiple_of(size_of::<RootEntry>() as u64)
            && (1..=ROOTS_MAX).contains(&(self.roots_len / size_of::<RootEntry>() as u64));
        if !is_list && (self.roots_at, self.roots_len, self.roots_sum) != (0, 0, 0) {
            return bad("list of roots", self.roots_at);
        }
        if self.reserved.iter().any(|&b| b != 0) {
            return Err(HeaderError::Reserved { what: Self::NAME });
        }
        Ok(())
    }
}

/// Start of one psync's record.
#[derive(Clone, Copy, Debug, PartialEq, Eq, FromBytes, IntoBytes, Immutable, KnownLayout)]
#[repr(C)]
pub struct RecordHeader {
    /// [`PSYNC_MAGIC`].
    pub magic: [u8; 8],
    /// One higher with each record.
    pub seq: u64,
    /// [`JournalHeader::epoch`] of its session.
    pub epoch: u64,
    /// [`RecordHeader::checksum`] of the record before.
    pub chain: u64,
    /// Records up to this number were durable when this one was written: one of them that is not
    /// whole is damaged.
    pub durable: u64,
    /// When this one was written, changes of records up to this number were durable in the
    /// primaries.
    pub trimmed: u64,
    /// Records of the other journal up to this number were durable when this one was written: with
    /// fewer it was put back.
    pub other: u64,
    /// The catalog durably had this batch then: one that ends earlier was put back.
    pub catalog: u64,
    /// The store.
    pub store: Uuid,
    /// Objects that it changes, all of them or none.
    pub objects: u32,
    /// Runs of lines that it changes.
    pub runs: u32,
    /// Bytes of data: all runs' together.
    pub data_len: u64,
    /// Bytes of the whole record.
    pub total_len: u64,
    /// XXH3-64 of the data.
    pub data_sum: u64,
    /// XXH3-64 of this header, with this field zero, and the tables that follow.
    pub checksum: u64,
}

const _: () = assert!(size_of::<RecordHeader>() == 120);
const _: () = assert!(core::mem::offset_of!(RecordHeader, other) == 48);

/// Start of every record.
pub const PSYNC_MAGIC: [u8; 8] = *b"CENPSYNC";

/// Most objects of one record.
pub const RECORD_OBJECTS_MAX: u32 = 1 << 16;

/// Lines of one object that a psync changes.
#[derive(Clone, Copy, Debug, PartialEq, Eq, FromBytes, IntoBytes, Immutable, KnownLayout)]
#[repr(C)]
pub struct LineRun {
    /// Which of the record's objects.
    pub object: u32,
    /// Number of lines of 64 bytes, not zero.
    pub lines: u32,
    /// The first, counted from the start of the object's data.
    pub first_line: u64,
}

const _: () = assert!(size_of::<LineRun>() == 16);

impl LineRun {
    /// First byte in the object's data; saturates.
    #[must_use]
    pub const fn offset(&self) -> u64 {
        self.first_line.saturating_mul(LINE_SIZE)
    }

    /// Bytes.
    #[must_use]
    pub const fn len_bytes(&self) -> u64 {
        self.lines as u64 * LINE_SIZE
    }
}

/// Last bytes of a record, written last.
#[derive(Clone, Copy, Debug, PartialEq, Eq, FromBytes, IntoBytes, Immutable, KnownLayout)]
#[repr(C)]
pub struct CommitRecord {
    /// [`COMMIT_MAGIC`].
    pub magic: [u8; 8],
    /// As in the record's header.
    pub seq: u64,
    /// [`RecordHeader::checksum`].
    pub checksum: u64,
    /// Zero.
    pub reserved: u64,
}

const _: () = assert!(size_of::<CommitRecord>() == 32);

/// Start of every commit record.
pub const COMMIT_MAGIC: [u8; 8] = *b"CENCOMIT";

impl RecordHeader {
    /// Bytes of the header and the tables behind it.
    #[must_use]
    pub const fn head_len(objects: u32, runs: u32) -> u64 {
        size_of::<Self>() as u64 + objects as u64 * 16 + runs as u64 * size_of::<LineRun>() as u64
    }

    /// Bytes of a record with this much in it, or `None` if that is more than any journal holds.
    #[must_use]
    pub fn total_len(objects: u32, runs: u32, data_len: u64) -> Option<u64> {
        let bytes = Self::head_len(objects, runs)
            .checked_add(data_len)?
            .checked_add(size_of::<CommitRecord>() as u64)?;
        bytes.checked_next_multiple_of(PAGE_SIZE).filter(|len| *len <= OBJECT_LEN_MAX)
    }

    /// The checksum of `head`: a header, whose own checksum does not count, and its tables.
    #[must_use]
    pub fn checksum_of(head: &mut [u8]) -> u64 {
        const AT: usize = core::mem::offset_of!(RecordHeader, checksum);
        let Some(field) = head.get_mut(AT..AT + 8) else { return 0 };
        let mut kept = [0; 8];
        kept.copy_from_slice(field);
        field.fill(0);
        let sum = checksum(seed::PSYNC, head);
        if let Some(field) = head.get_mut(AT..AT + 8) {
            field.copy_from_slice(&kept);
        }
        sum
    }

    /// Whether magic and counts make sense: nothing else is believed, and nothing is allocated,
    /// before they do.
    #[must_use]
    pub fn is_plausible(&self) -> bool {
        self.magic == PSYNC_MAGIC
            && self.seq != 0
            && self.seq < 1 << 62
            // The next session's is one more, and has to fit the journal's header.
            && self.epoch < 1 << 61
            && self.durable < self.seq
            && self.trimmed < self.seq
            && self.other < 1 << 62
            && self.catalog < 1 << 62
            && (1..=RECORD_OBJECTS_MAX).contains(&self.objects)
            && self.data_len.is_multiple_of(LINE_SIZE)
            && u64::from(self.runs) <= self.data_len / LINE_SIZE
            && Self::total_len(self.objects, self.runs, self.data_len) == Some(self.total_len)
    }
}

impl CommitRecord {
    /// The commit record of a record.
    #[must_use]
    pub const fn new(seq: u64, checksum: u64) -> Self {
        Self { magic: COMMIT_MAGIC, seq, checksum, reserved: 0 }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn puddle_sizes_hold_headers_and_data_and_not_a_page_more() {
        for len in [
            1,
            64,
            4096,
            4097,
            2 << 20,
            (2 << 20) - 8192,
            (2 << 20) - 8191,
            1 << 30,
            1 << 40,
            OBJECT_LEN_MAX,
        ] {
            let size = object_puddle_size(len).unwrap();
            let pages = len.div_ceil(PAGE_SIZE) * PAGE_SIZE;
            assert_eq!(object_data_offset(size) + pages, size, "{len}");
        }
        assert_eq!(object_puddle_size(0), None);
        assert_eq!(object_puddle_size(OBJECT_LEN_MAX + 1), None);
    }

    #[test]
    fn states_have_the_papers_letters_and_survive_their_number() {
        let letters = ["D", "R", "W", "P", "C", "DP", "ES", "EP", "CE"];
        for (number, letters) in (1..).zip(letters) {
            let state = ObjectState::from_u32(number).unwrap();
            assert_eq!((state as u32, state.letters()), (number, letters));
        }
        assert!(ObjectState::from_u32(0).is_none() && ObjectState::from_u32(10).is_none());
    }

    #[test]
    fn implausible_record_headers_are_refused_before_anything_is_allocated() {
        let good = RecordHeader {
            magic: PSYNC_MAGIC,
            seq: 1,
            epoch: 1,
            chain: 0,
            durable: 0,
            trimmed: 0,
            other: 9,
            catalog: 9,
            store: Uuid([1; 16]),
            objects: 1,
            runs: 1,
            data_len: 64,
            total_len: 4096,
            data_sum: 0,
            checksum: 0,
        };
        assert!(good.is_plausible());
        for bad in [
            RecordHeader { magic: *b"CENPSYNX", ..good },
            RecordHeader { seq: 0, ..good },
            RecordHeader { epoch: 1 << 61, ..good },
            RecordHeader { durable: 1, ..good },
            RecordHeader { trimmed: 1, ..good },
            RecordHeader { other: 1 << 62, ..good },
            RecordHeader { catalog: 1 << 62, ..good },
            RecordHeader { seq: u64::MAX, ..good },
            RecordHeader { objects: 0, ..good },
            RecordHeader { objects: u32::MAX, ..good },
            RecordHeader { runs: 2, ..good },
            RecordHeader { data_len: 65, ..good },
            RecordHeader { data_len: u64::MAX - 63, ..good },
            RecordHeader { total_len: 8192, ..good },
            RecordHeader { total_len: 0, ..good },
        ] {
            assert!(!bad.is_plausible(), "{bad:?}");
        }
    }
}
