//! The header of a puddle (PUD-11): 4 KiB for every 2 MiB, at the start of its file and of its
//! mapping.
//!
//! ```text
//! 0        4088    4096                  header_space                          size
//! | header | stamp | zero (reserved) ... | body: heap, log, log space, object, zeros of a spare |
//! ```
//!
//! # The stamp
//!
//! A word of its own, which no checksum of the header covers: one store or one write changes it,
//! and no crash tears it. Of heap puddles of unprotected pools, of their primaries, and of objects
//! without protection, it tells files of different moments apart. It says one of:
//!
//! * 0: no session has written the file.
//! * An *era*, which is even: a session that began in this era may write it, or was writing it. The
//!   superblock names the era from the first open after a close to the next close
//!   ([`crate::superblock::Superblock::era`]).
//! * A *seal*, the era plus one: nothing was written since a session of that era closed the store.
//!   The catalog names it ([`crate::catalog::Record::Sealed`]).
//!
//! Elsewhere it is zero.

use crate::header::{Header, HeaderError, HeaderPrefix};
use crate::id::{PoolId, Uuid};
use crate::{PAGE_SIZE, SLOT_SIZE, round_up};
use zerocopy::{FromBytes, Immutable, IntoBytes, KnownLayout};

/// What a puddle is for.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, serde::Serialize, serde::Deserialize)]
#[repr(u32)]
pub enum Role {
    /// Blocks of a pool, see [`crate::heap`].
    Heap = 1,
    /// One segment of a log, see [`crate::log`].
    Log = 2,
    /// The directory of one client's logs, see [`crate::log_space`].
    LogSpace = 3,
    /// Raw memory of one persistent memory object, without a heap.
    Object = 4,
    /// Of no pool; kept for the next pool that wants a puddle of its size. Behind this header the
    /// whole file is zeros.
    Spare = 5,
    /// Metadata of a pool's heap and nothing else, see [`crate::logged`].
    Metadata = 6,
}

impl Role {
    /// The role with this number.
    #[must_use]
    pub const fn from_u32(value: u32) -> Option<Self> {
        match value {
            1 => Some(Self::Heap),
            2 => Some(Self::Log),
            3 => Some(Self::LogSpace),
            4 => Some(Self::Object),
            5 => Some(Self::Spare),
            6 => Some(Self::Metadata),
            _ => None,
        }
    }

    /// Whether it is a puddle of a pool: of its blocks, or of metadata.
    #[must_use]
    pub const fn is_of_pool(self) -> bool {
        matches!(self, Self::Heap | Self::Metadata)
    }
}

impl core::fmt::Display for Role {
    fn fmt(&self, f: &mut core::fmt::Formatter<'_>) -> core::fmt::Result {
        f.write_str(match self {
            Self::Heap => "heap",
            Self::Log => "log",
            Self::LogSpace => "log space",
            Self::Object => "object",
            Self::Spare => "spare",
            Self::Metadata => "metadata",
        })
    }
}

/// A puddle's first page.
#[derive(Clone, Copy, Debug, PartialEq, Eq, FromBytes, IntoBytes, Immutable, KnownLayout)]
#[repr(C)]
pub struct PuddleHeader {
    /// Magic `CENPUDDL`, version, features, checksum.
    pub prefix: HeaderPrefix,
    /// The puddle's identity.
    pub uuid: Uuid,
    /// The store that it belongs to.
    pub store: Uuid,
    /// The address for which the contents are right: the assigned one, a multiple of [`SLOT_SIZE`]
    /// in the store's window, or the one before it while the catalog says that the puddle is still
    /// to be rewritten ([`crate::catalog::PendingRewriteRecord`]). The contents of an object are
    /// right at any address: its header says the first one that it had.
    pub addr: u64,
    /// Bytes of the puddle, header included: a multiple of [`PAGE_SIZE`].
    pub size: u64,
    /// The pool that it belongs to.
    pub pool: PoolId,
    /// [`Role`].
    pub role: u32,
    /// Number of the puddle in its pool: 0 is the root puddle.
    pub index: u32,
    /// One higher with every relocation.
    pub generation: u64,
    /// Zero.
    pub reserved: [u8; 3968],
}

/// Where the stamp lies in a puddle's file: behind the header, in the same sector as its end.
pub const STAMP_AT: u64 = size_of::<PuddleHeader>() as u64;

/// The superblock's era where it is not known which one it was: every stamp is accepted.
pub const ERA_ANY: u64 = u64::MAX - 1;

/// Bits of a stamp that say which close of the era sealed the file.
const SEAL_BITS: u64 = 0xff;

/// Most sessions of one era that end without a close.
pub const UNCLOSED_MAX: u64 = SEAL_BITS / 2;

/// The era that a random number makes: its lowest byte is 0, and it is neither 0 nor that of
/// [`ERA_ANY`].
#[must_use]
pub const fn era_of(random: u64) -> u64 {
    match random & !SEAL_BITS {
        0 => SEAL_BITS + 1,
        era if era == ERA_ANY & !SEAL_BITS => SEAL_BITS + 1,
        era => era,
    }
}

/// The seal of a close in this era, after so many sessions that did not close the store: a file of
/// a close that was begun and not finished has another one.
#[must_use]
pub const fn seal_of(era: u64, unclosed: u64) -> u64 {
    era | 1 | (unclosed << 1 & SEAL_BITS)
}

/// Whether a stamp is this era, or one of its seals.
#[must_use]
pub const fn is_stamp_of(era: u64, stamp: u64) -> bool {
    stamp & !SEAL_BITS == era
}

/// Whether a superblock may name this era.
#[must_use]
pub const fn is_named_era(era: u64) -> bool {
    era == ERA_ANY || era & SEAL_BITS == 0
}

/// Whether a stamp is an era, and no seal.
#[must_use]
pub const fn is_era(stamp: u64) -> bool {
    stamp & 1 == 0
}

/// `compat` bit of a puddle that is still to be rewritten: its file may share blocks with another,
/// so that a store into it may need space. A file that is rewritten has its own, and has not the
/// bit.
pub const COMPAT_SHARES_BLOCKS: u64 = 1;

/// Incompatible feature of heap puddles, which all of them have: marks lie apart from all blocks,
/// roots have checks ([`crate::heap`]). One without it was made by an earlier release, and its
/// marks are elsewhere.
pub const INCOMPAT_MARKS_APART: u64 = 1;

const _: () = assert!(STAMP_AT + 8 == PAGE_SIZE);
const _: () = assert!(core::mem::offset_of!(PuddleHeader, addr) == 80);
const _: () = assert!(core::mem::offset_of!(PuddleHeader, role) == 104);
const _: () = assert!(core::mem::offset_of!(PuddleHeader, reserved) == 120);

/// Bytes of header space of a puddle of `size` bytes: a page for every 2 MiB or part of it.
#[must_use]
pub const fn header_space(size: u64) -> u64 {
    match round_up(size, SLOT_SIZE) {
        Some(rounded) => rounded / SLOT_SIZE * PAGE_SIZE,
        None => u64::MAX,
    }
}

impl Header for PuddleHeader {
    const NAME: &'static str = "puddle header";
    const MAGIC: [u8; 8] = *b"CENPUDDL";
    const SEED: u64 = crate::checksum::seed::PUDDLE;
    const KNOWN_INCOMPAT: u64 = INCOMPAT_MARKS_APART;

    fn check_fields(&self) -> Result<(), HeaderError> {
        let bad = |field, value| Err(HeaderError::Field { what: Self::NAME, field, value });
        if self.uuid.is_nil() {
            return bad("uuid", 0);
        }
        if self.addr == 0 || !self.addr.is_multiple_of(SLOT_SIZE) {
            return bad("addr", self.addr);
        }
        if self.size == 0
            || !self.size.is_multiple_of(PAGE_SIZE)
            || self.addr.checked_add(self.size).is_none()
        {
            return bad("size", self.size);
        }
        if Role::from_u32(self.role).is_none() {
            return bad("role", u64::from(self.role));
        }
        let role = Role::from_u32(self.role);
        if role.is_some_and(Role::is_of_pool) && self.prefix.incompat & INCOMPAT_MARKS_APART == 0 {
            return bad(
                "feature mask (a heap of an earlier release, whose marks lie elsewhere)",
                self.prefix.incompat,
            );
        }
        if self.reserved.iter().any(|&b| b != 0) {
            return Err(HeaderError::Reserved { what: Self::NAME });
        }
        Ok(())
    }
}
