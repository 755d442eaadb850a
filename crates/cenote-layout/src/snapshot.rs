//! A snapshot of an object: one file that holds the object as its last psync left it, and what is
//! needed to make it again.
//!
//! ```text
//! 0                                                       size            size + 512
//! | the object's puddle file, as it is, psyncs laid over  | SnapshotTrailer |
//! ```
//!
//! The puddle's file comes first and at offset 0, so that a file system that can share blocks makes
//! it without copying. The trailer comes last, so that a file that was cut short has none. Of the
//! puddle's file only what lies behind [`object_data_offset`] is used again: its headers belong to
//! the store that it was in.

use crate::at_rest::{Mode, Regions};
use crate::checksum::{checksum, seed};
use crate::header::{Header, HeaderError, HeaderPrefix};
use crate::id::Uuid;
use crate::object::{OBJECT_LEN_MAX, object_data_offset, object_puddle_size};
use crate::{PAGE_SIZE, SLOT_SIZE};
use zerocopy::{FromBytes, Immutable, IntoBytes, KnownLayout};

/// Bytes that are hashed at once.
pub const SNAPSHOT_PIECE_LEN: usize = 1 << 20;

/// Last bytes of a snapshot.
#[derive(Clone, Copy, Debug, PartialEq, Eq, FromBytes, IntoBytes, Immutable, KnownLayout)]
#[repr(C)]
pub struct SnapshotTrailer {
    /// Magic `CENOSNAP`, version, features, checksum.
    pub prefix: HeaderPrefix,
    /// The object's puddle.
    pub object: Uuid,
    /// The store that it was in.
    pub store: Uuid,
    /// Address of its puddle there.
    pub addr: u64,
    /// Bytes of its puddle, and of all that comes before this.
    pub size: u64,
    /// Bytes of its data.
    pub data_len: u64,
    /// When the snapshot was made, in seconds since 1970.
    pub taken_at_s: u64,
    /// [`SnapshotSum`] of all that comes before this.
    pub sum: u64,
    /// [`Mode`].
    pub at_rest: u32,
    /// Permission bits, as of a file.
    pub permissions: u32,
    /// Bytes of its name.
    pub name_len: u32,
    /// Zero.
    pub reserved0: u32,
    /// Its name, UTF-8, then zeros.
    pub name: [u8; 256],
    /// Zero.
    pub reserved: [u8; 120],
}

const _: () = assert!(size_of::<SnapshotTrailer>() == 512);

impl SnapshotTrailer {
    /// The object's name.
    #[must_use]
    pub fn name(&self) -> Option<&str> {
        core::str::from_utf8(self.name.get(..self.name_len as usize)?).ok()
    }

    /// What protects the object's pages; `None` if it is nothing that exists, never after
    /// [`crate::header::read`].
    #[must_use]
    pub const fn mode(&self) -> Option<Mode> {
        Mode::from_u32(self.at_rest)
    }
}

impl Header for SnapshotTrailer {
    const NAME: &'static str = "snapshot's trailer";
    const MAGIC: [u8; 8] = *b"CENOSNAP";
    const SEED: u64 = seed::SNAPSHOT;

    fn check_fields(&self) -> Result<(), HeaderError> {
        let bad = |field, value| Err(HeaderError::Field { what: Self::NAME, field, value });
        if self.object.is_nil() {
            return bad("object", 0);
        }
        if self.addr == 0 || !self.addr.is_multiple_of(SLOT_SIZE) {
            return bad("addr", self.addr);
        }
        let Some(mode) = self.mode() else { return bad("at_rest", u64::from(self.at_rest)) };
        if self.data_len == 0 || self.data_len > OBJECT_LEN_MAX {
            return bad("data_len", self.data_len);
        }
        let span = self.data_len.next_multiple_of(PAGE_SIZE);
        let regions = Regions::new(mode, span / PAGE_SIZE).map(|regions| regions.len);
        if regions.and_then(|regions| object_puddle_size(span + regions)) != Some(self.size)
            || object_data_offset(self.size) >= self.size
        {
            return bad("size", self.size);
        }
        if self.permissions > 0o777 {
            return bad("permissions", u64::from(self.permissions));
        }
        if self.name_len == 0 || self.name_len > 255 || self.name().is_none() {
            return bad("name_len", u64::from(self.name_len));
        }
        let rest = self.name.get(self.name_len as usize..).unwrap_or_default();
        if rest.iter().any(|&byte| byte != 0) {
            return bad("byte behind its name", 1);
        }
        if self.reserved0 != 0 || self.reserved.iter().any(|&byte| byte != 0) {
            return Err(HeaderError::Reserved { what: Self::NAME });
        }
        Ok(())
    }
}

/// The checksum of a snapshot's contents, piece by piece: each of [`SNAPSHOT_PIECE_LEN`] bytes and
/// a shorter last one, seeded by the sum so far.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct SnapshotSum(u64);

impl Default for SnapshotSum {
    fn default() -> Self {
        Self(seed::SNAPSHOT)
    }
}

impl SnapshotSum {
    /// Adds the next piece.
    pub fn add(&mut self, piece: &[u8]) {
        self.0 = checksum(self.0, piece);
    }

    /// The sum of all pieces.
    #[must_use]
    pub const fn value(self) -> u64 {
        self.0
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::header::{read, seal};

    #[test]
    fn a_trailer_whose_fields_do_not_fit_together_is_refused() {
        let mut good = SnapshotTrailer {
            prefix: HeaderPrefix::new(*b"CENOSNAP", 512),
            object: Uuid([1; 16]),
            store: Uuid([2; 16]),
            addr: SLOT_SIZE,
            size: object_puddle_size(8192).unwrap(),
            data_len: 5000,
            taken_at_s: 0,
            sum: 0,
            at_rest: Mode::None as u32,
            permissions: 0o600,
            name_len: 1,
            reserved0: 0,
            name: [0; 256],
            reserved: [0; 120],
        };
        good.name[0] = b'a';
        let refused = |change: fn(&mut SnapshotTrailer)| {
            let mut trailer = good;
            change(&mut trailer);
            seal(&mut trailer);
            read::<SnapshotTrailer>(trailer.as_bytes(), false).err()
        };
        assert_eq!(refused(|_| {}), None);
        for change in [
            (|t| t.object = Uuid::NIL) as fn(&mut SnapshotTrailer),
            |t| t.addr += 4096,
            |t| t.size += 4096,
            |t| t.data_len = 0,
            |t| t.data_len = u64::MAX,
            |t| t.data_len += 4096,
            |t| t.at_rest = 1,
            |t| t.at_rest = 5,
            |t| t.permissions = 0o1000,
            |t| t.name_len = 0,
            |t| t.name_len = 300,
            |t| t.name[0] = 0xff,
            |t| t.name[9] = 1,
        ] {
            assert!(
                matches!(refused(change), Some(HeaderError::Field { .. })),
                "{:?}",
                refused(change)
            );
        }
        for change in [
            |t: &mut SnapshotTrailer| t.reserved0 = 1,
            |t: &mut SnapshotTrailer| t.reserved[119] = 1,
        ] {
            assert!(
                matches!(refused(change), Some(HeaderError::Reserved { .. })),
                "{:?}",
                refused(change)
            );
        }
    }

    #[test]
    fn pieces_that_change_places_have_another_sum() {
        let sum = |pieces: [&[u8]; 2]| {
            let mut sum = SnapshotSum::default();
            pieces.iter().for_each(|piece| sum.add(piece));
            sum.value()
        };
        assert_ne!(sum([b"a", b"b"]), sum([b"b", b"a"]));
        assert_ne!(sum([b"a", b""]), SnapshotSum::default().value());
    }
}
