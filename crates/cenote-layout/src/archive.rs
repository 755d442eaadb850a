//! An archive: pools in one stream of bytes, as they lie in memory, to be taken into another store
//! (PUD-9; Puddles paper, 4.2).
//!
//! ```text
//! ArchiveHeader | section 0 | section 1 | ... | section n: End
//! section:  SectionHeader (64 bytes) | payload
//! ```
//!
//! An archive is written and read from front to back, so that it goes through a pipe. First comes
//! the *manifest*, an [`ArchiveEntry`] in each section: pools, then puddles, types, and what was
//! left behind. Then come *chunks*: whole pages of the puddles' bodies, by puddle and by offset;
//! what no chunk covers is zero. The last section says how much there was. Each section has its
//! number, and the checksum of the one before, so that none can be lost, repeated or exchanged.
//!
//! There is no name of a file in an archive, and no header of a puddle: an import makes both.

use crate::catalog::{AtRest, HeapKind, PoolMode};
use crate::checksum::{checksum, seed};
use crate::header::{Header, HeaderError, HeaderPrefix};
use crate::id::{PoolId, TypeId, Uuid};
use crate::types::TypeRecord;
use crate::{PAGE_SIZE, SLOT_SIZE};
use serde::{Deserialize, Serialize};
use zerocopy::{FromBytes, Immutable, IntoBytes, KnownLayout};

extern crate alloc;
use alloc::string::String;

/// Most bytes of a chunk, as it lies in a puddle; and of the payload of any section.
pub const CHUNK_LEN_MAX: u32 = 1 << 20;
/// Most bytes of all entries of a manifest, encoded.
pub const MANIFEST_LEN_MAX: u64 = 64 << 20;
/// Start of every section.
pub const SECTION_MAGIC: [u8; 8] = *b"CENASECT";
/// Incompatible feature of [`ArchiveHeader`]: pools are protected at rest, and their puddles are
/// sealed.
pub const INCOMPAT_SEALED: u64 = 1 << 0;
/// Incompatible feature of [`ArchiveHeader`]: some pools may be torn ([`ArchiveEntry::TornPool`]).
pub const INCOMPAT_TORN: u64 = 1 << 1;
/// A reader that does not know the kind of this section skips it.
pub const FLAG_SKIP: u32 = 1;

/// First bytes of an archive.
#[derive(Clone, Copy, Debug, PartialEq, Eq, FromBytes, IntoBytes, Immutable, KnownLayout)]
#[repr(C)]
pub struct ArchiveHeader {
    /// Magic `CENARCHV`, version, features, checksum.
    pub prefix: HeaderPrefix,
    /// The archive's identity, new with each export.
    pub archive: Uuid,
    /// The store that it was made from.
    pub store: Uuid,
    /// First address of that store's window.
    pub window_base: u64,
    /// Bytes of that store's window.
    pub window_len: u64,
    /// When it was made, in seconds since 1970.
    pub made_at_s: u64,
    /// [`Codec`] of its chunks.
    pub codec: u32,
    /// Entries of pools.
    pub pools: u32,
    /// Entries of puddles.
    pub puddles: u32,
    /// Entries of types.
    pub types: u32,
    /// Entries of what was left behind.
    pub left: u32,
    /// Zero.
    pub reserved0: u32,
    /// Zero.
    pub reserved: [u8; 128],
}

const _: () = assert!(size_of::<ArchiveHeader>() == 256);

impl Header for ArchiveHeader {
    const NAME: &'static str = "archive";
    const MAGIC: [u8; 8] = *b"CENARCHV";
    const SEED: u64 = seed::ARCHIVE;
    const KNOWN_INCOMPAT: u64 = INCOMPAT_SEALED | INCOMPAT_TORN;

    fn check_fields(&self) -> Result<(), HeaderError> {
        let bad = |field, value| Err(HeaderError::Field { what: Self::NAME, field, value });
        if self.archive.is_nil() {
            return bad("archive", 0);
        }
        if self.store.is_nil() {
            return bad("store", 0);
        }
        let window_end = self.window_base.checked_add(self.window_len);
        if self.window_base == 0 || !self.window_base.is_multiple_of(SLOT_SIZE) {
            return bad("window_base", self.window_base);
        }
        if self.window_len == 0
            || !self.window_len.is_multiple_of(SLOT_SIZE)
            || window_end.is_none_or(|end| end > 1 << 47)
        {
            return bad("window_len", self.window_len);
        }
        if Codec::from_u32(self.codec).is_none() {
            return bad("codec", u64::from(self.codec));
        }
        if self.pools == 0 {
            return bad("pools", 0);
        }
        if self.puddles < self.pools {
            return bad("puddles", u64::from(self.puddles));
        }
        if self.reserved0 != 0 || self.reserved.iter().any(|&byte| byte != 0) {
            return Err(HeaderError::Reserved { what: Self::NAME });
        }
        Ok(())
    }
}

/// How the payload of a chunk is packed.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Default)]
#[repr(u32)]
pub enum Codec {
    /// As it lies in the puddle.
    #[default]
    None = 0,
    /// One frame of Zstandard (RFC 8878).
    Zstd = 1,
}

impl Codec {
    /// The codec with this number.
    #[must_use]
    pub const fn from_u32(value: u32) -> Option<Self> {
        match value {
            0 => Some(Self::None),
            1 => Some(Self::Zstd),
            _ => None,
        }
    }
}

/// What a section holds.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[repr(u32)]
pub enum SectionKind {
    /// An [`ArchiveEntry`] of the manifest.
    Entry = 1,
    /// Pages of a puddle.
    Chunk = 2,
    /// The end: [`Totals`].
    End = 3,
}

impl SectionKind {
    /// The kind with this number.
    #[must_use]
    pub const fn from_u32(value: u32) -> Option<Self> {
        match value {
            1 => Some(Self::Entry),
            2 => Some(Self::Chunk),
            3 => Some(Self::End),
            _ => None,
        }
    }
}

/// Start of a section.
#[derive(Clone, Copy, Debug, PartialEq, Eq, FromBytes, IntoBytes, Immutable, KnownLayout)]
#[repr(C)]
pub struct SectionHeader {
    /// [`SECTION_MAGIC`].
    pub magic: [u8; 8],
    /// Number of the section, from 0.
    pub number: u64,
    /// [`SectionKind`].
    pub kind: u32,
    /// [`FLAG_SKIP`] or 0.
    pub flags: u32,
    /// Of a chunk: number of its puddle's entry among those of puddles, from 0. Else 0.
    pub puddle: u32,
    /// [`Codec`] of the payload.
    pub codec: u32,
    /// Of a chunk: where it lies in the puddle. Else 0.
    pub offset: u64,
    /// Bytes of the payload, unpacked.
    pub len: u32,
    /// Bytes of the payload, as they follow.
    pub stored_len: u32,
    /// Checksum of the section before; of section 0 that of the archive's header.
    pub chain: u64,
    /// [`section_sum`] of this header and the payload.
    pub checksum: u64,
}

const _: () = assert!(size_of::<SectionHeader>() == 64);
const _: () = assert!(core::mem::offset_of!(SectionHeader, chain) == 48);

/// Checksum of a section: of its header, the field of the checksum as zero, and with that as seed
/// of the payload as it is stored.
#[must_use]
pub fn section_sum(header: &SectionHeader, payload: &[u8]) -> u64 {
    checksum(checksum(seed::ARCHIVE, SectionHeader { checksum: 0, ..*header }.as_bytes()), payload)
}

/// One entry of a manifest, in the encoding of postcard. The order of variants is part of the
/// format: add at the end only, with an incompatible feature.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum ArchiveEntry {
    /// A pool.
    Pool(PoolEntry),
    /// A puddle of one of the pools.
    Puddle(PuddleEntry),
    /// A type that blocks of the pools have, or that one of those leads to.
    Type(TypeRecord),
    /// Pointers lead to a pool that is not in the archive.
    Left(LeftEntry),
    /// A pool that may hold half a transaction, because its logs were discarded; in the place of
    /// [`ArchiveEntry::Pool`]. Only with [`INCOMPAT_TORN`].
    TornPool(PoolEntry),
}

/// A pool in an archive.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct PoolEntry {
    /// Its number in the store that it was in: what region pointers to it say.
    pub id: PoolId,
    /// Its name there.
    pub name: String,
    /// Its mode.
    pub mode: PoolMode,
    /// Its heap.
    pub heap: HeapKind,
    /// How it is protected at rest. Anything but `None` only with [`INCOMPAT_SEALED`]: then chunks
    /// hold its puddles as they are sealed, and what lies behind ([`AtRest::stored_len`]).
    pub at_rest: AtRest,
    /// Bytes of its first puddle.
    pub puddle_size: u64,
    /// It never takes more bytes than this.
    pub size_max: u64,
    /// Permission bits, as of a file.
    pub permissions: u32,
    /// When it was created, in seconds since 1970.
    pub created_at_s: u64,
}

/// A puddle in an archive.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct PuddleEntry {
    /// Its identity in the store that it was in.
    pub uuid: Uuid,
    /// The number of its pool there.
    pub pool: PoolId,
    /// Its number in its pool, from 0; none is missing.
    pub index: u32,
    /// Its address there: what the pointers to it say.
    pub addr: u64,
    /// Its size in bytes, headers included.
    pub size: u64,
}

impl PuddleEntry {
    /// The first address behind it.
    #[must_use]
    pub const fn end(&self) -> u64 {
        self.addr.saturating_add(self.size)
    }
}

/// A pool that pointers lead to and that is not in the archive.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct LeftEntry {
    /// Its number in the store that it was in.
    pub id: PoolId,
    /// Its name there.
    pub name: String,
    /// How many pointers lead there.
    pub pointers: u64,
    /// The type of one of the blocks that hold them.
    pub from_type: TypeId,
}

/// What an archive's last section says.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Default, Serialize, Deserialize)]
pub struct Totals {
    /// Sections before this one.
    pub sections: u64,
    /// Chunks.
    pub chunks: u64,
    /// Bytes of chunks, unpacked.
    pub bytes: u64,
    /// Bytes of chunks, as they are stored.
    pub stored_bytes: u64,
}

/// Whether a chunk can lie there: whole pages, not more than one may have.
#[must_use]
pub const fn is_chunk(offset: u64, len: u64) -> bool {
    len != 0
        && len <= CHUNK_LEN_MAX as u64
        && len.is_multiple_of(PAGE_SIZE)
        && offset.is_multiple_of(PAGE_SIZE)
}
