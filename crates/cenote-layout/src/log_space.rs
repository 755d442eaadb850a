//! Log spaces: the directory of one client's logs (Puddles paper, Figure 5).
//!
//! The body of a log space puddle is a header line pair and an array of entries, one for each log puddle (segment) that the client
//! uses. An entry is written before the log that it names is used; `state` is its last word to be written.

use crate::header::{Header, HeaderError, HeaderPrefix};
use crate::id::Uuid;
use zerocopy::{FromBytes, Immutable, IntoBytes, KnownLayout};

/// First 128 bytes of a log space's body.
#[derive(Clone, Copy, Debug, PartialEq, Eq, FromBytes, IntoBytes, Immutable, KnownLayout)]
#[repr(C)]
pub struct LogSpaceHeader {
    /// Magic `CENLGSPC`, version, features, checksum.
    pub prefix: HeaderPrefix,
    /// The client that the logs belong to.
    pub client: Uuid,
    /// Number of entries that the array has room for.
    pub capacity: u64,
    /// Zero.
    pub reserved: [u8; 56],
}

const _: () = assert!(size_of::<LogSpaceHeader>() == 128);

/// Offset of the entry array in a log space's body.
pub const LOG_SPACE_ENTRIES_OFFSET: u64 = 128;

impl Header for LogSpaceHeader {
    const NAME: &'static str = "log space header";
    const MAGIC: [u8; 8] = *b"CENLGSPC";
    const SEED: u64 = crate::checksum::seed::LOG_SPACE;

    fn check_fields(&self) -> Result<(), HeaderError> {
        if self.reserved.iter().any(|&b| b != 0) {
            return Err(HeaderError::Field { what: Self::NAME, field: "reserved bytes", value: 1 });
        }
        Ok(())
    }
}

/// One log segment in the directory.
#[derive(Clone, Copy, Debug, PartialEq, Eq, FromBytes, IntoBytes, Immutable, KnownLayout)]
#[repr(C)]
pub struct LogSpaceEntry {
    /// XXH3-64 of the other fields; an entry that fails is reported, never followed.
    pub checksum: u64,
    /// [`ENTRY_FREE`], [`ENTRY_HEAD`] or [`ENTRY_CONTINUATION`].
    pub state: u64,
    /// The log puddle.
    pub puddle: Uuid,
    /// Its address.
    pub addr: u64,
    /// The log that the segment belongs to.
    pub log_id: u64,
    /// Number of the segment in the log.
    pub segment: u64,
    /// Zero.
    pub reserved: u64,
}

const _: () = assert!(size_of::<LogSpaceEntry>() == 64);

/// Names no log.
pub const ENTRY_FREE: u64 = 0;
/// Names the head segment of a log.
pub const ENTRY_HEAD: u64 = 1;
/// Names a further segment.
pub const ENTRY_CONTINUATION: u64 = 2;

impl LogSpaceEntry {
    /// An entry that names a segment, with its checksum.
    #[must_use]
    pub fn new(state: u64, puddle: Uuid, addr: u64, log_id: u64, segment: u64) -> Self {
        let mut entry = Self { checksum: 0, state, puddle, addr, log_id, segment, reserved: 0 };
        entry.checksum = entry.compute();
        entry
    }

    /// Whether the entry is all zero: never used.
    #[must_use]
    pub fn is_free(&self) -> bool {
        self.as_bytes().iter().all(|&b| b == 0)
    }

    /// Whether the checksum fits and the fields make sense.
    #[must_use]
    pub fn is_valid(&self) -> bool {
        self.checksum == self.compute()
            && matches!(self.state, ENTRY_HEAD | ENTRY_CONTINUATION)
            && self.reserved == 0
    }

    fn compute(&self) -> u64 {
        crate::checksum::checksum(crate::checksum::seed::LOG_SPACE, &self.as_bytes()[8..])
    }
}
