//! Log spaces: the directory of one client's logs (Puddles paper, Figure 5).
//!
//! The body of a log space puddle is a header line pair and an array of entries, one for each log
//! puddle (segment) that the client uses, in the order in which they are added. An entry is written
//! before the log that it names is used, and durable before the next one is written; `state` is its
//! last word to be written.
//!
//! A crash leaves of an entry: nothing, some of its words without the state, all but the state, or
//! all. **Once all but the state are there the entry names its segment**, because the checksum
//! covers the state that it is to have. The state tells damage from a write that was cut short: if
//! it is there, everything else was durable before. So a state that is lost, by a crash or by a
//! flipped bit, hides no log: see [`LogSpaceEntry::read`].

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
            return Err(HeaderError::Reserved { what: Self::NAME });
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

/// What an entry says.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Listing {
    /// Nothing: it was never used, or never completed, and no segment was used by it.
    Free,
    /// This segment; the state is the one that it was to have.
    Names(LogSpaceEntry),
    /// That it cannot be believed: some log is not known by it any more.
    Damaged,
}

/// Names no log, unless the checksum says otherwise.
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

    /// What the entry says. `more`: whether an entry behind it is not all zeros, so that this one
    /// was completed.
    #[must_use]
    pub fn read(&self, more: bool) -> Listing {
        if self.is_valid() {
            return Listing::Names(*self);
        }
        if self.state == ENTRY_FREE {
            let with = |state| Some(Self { state, ..*self }).filter(Self::is_valid);
            if let Some(entry) = with(ENTRY_HEAD).or_else(|| with(ENTRY_CONTINUATION)) {
                return Listing::Names(entry);
            }
            if !more {
                return Listing::Free;
            }
        }
        Listing::Damaged
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

#[cfg(test)]
mod tests {
    use super::*;
    use zerocopy::FromBytes;

    #[test]
    fn a_flipped_bit_or_a_lost_word_hides_no_segment() {
        for state in [ENTRY_HEAD, ENTRY_CONTINUATION] {
            let entry = LogSpaceEntry::new(state, Uuid([7; 16]), 0x3000_0000_0000, 0x1234, 3);
            assert_eq!(entry.read(false), Listing::Names(entry));
            assert_eq!(
                LogSpaceEntry { state: ENTRY_FREE, ..entry }.read(false),
                Listing::Names(entry)
            );
            for bit in 0..512 {
                let mut bytes = [0; 64];
                bytes.copy_from_slice(entry.as_bytes());
                bytes[bit / 8] ^= 1 << (bit % 8);
                let read = LogSpaceEntry::read_from_bytes(&bytes[..]).unwrap().read(false);
                let hidden = matches!(read, Listing::Free);
                assert!(
                    !hidden && (read == Listing::Names(entry) || read == Listing::Damaged),
                    "{bit}: {read:?}"
                );
            }
        }
    }

    #[test]
    fn what_is_cut_short_is_free_at_the_end_and_damage_before_it() {
        let whole = LogSpaceEntry::new(ENTRY_HEAD, Uuid([7; 16]), 0x3000_0000_0000, 0x1234, 0);
        for torn in [
            LogSpaceEntry { state: 0, addr: 0, ..whole },
            LogSpaceEntry { state: 0, checksum: 0, ..whole },
        ] {
            assert_eq!((torn.read(false), torn.read(true)), (Listing::Free, Listing::Damaged));
        }
        let zeros = LogSpaceEntry::read_from_bytes(&[0; 64][..]).unwrap();
        assert_eq!((zeros.read(false), zeros.read(true)), (Listing::Free, Listing::Damaged));
        assert_eq!(whole.read(true), Listing::Names(whole));
    }
}
