//! The catalog: pools, puddles, types, clients and leases of a store.
//!
//! Two files, `catalog.0` and `catalog.1`, hold the same sequence of *batches* of records. A change
//! appends one batch to each, one file after the other, each synced; it is made once the first is
//! synced. So only the end of a file can be torn, and what is damaged in one file is read from the
//! other.
//!
//! A batch is one or more frames with the same `batch` number; the last has [`FLAG_LAST`]. Frames
//! of a batch count only together. Batch numbers rise by one.
//!
//! ```text
//! frame:  RecordHeader (56 bytes) | payload: postcard encoding of Record | zeroes to 8 bytes
//! ```

mod frame;

use crate::PAGE_SIZE;
use crate::at_rest::{Mode, Regions};
use crate::id::{PoolId, TypeId, Uuid};
use crate::object::object_puddle_size;
use crate::puddle::Role;
use crate::types::{TYPE_RECORD_LEN_MAX, TypeRecord};
use serde::{Deserialize, Serialize};
use zerocopy::{FromBytes, Immutable, IntoBytes, KnownLayout};

extern crate alloc;
use alloc::string::String;
use alloc::vec::Vec;

pub use frame::{Frame, RecordError, decode_frame, encode_frame};

/// Start of every frame.
pub const RECORD_MAGIC: [u8; 8] = *b"CENRECRD";
/// Set on the last frame of a batch.
pub const FLAG_LAST: u32 = 1;
/// Most bytes of a payload.
pub const PAYLOAD_LEN_MAX: u32 = 1 << 20;
const _: () = assert!(TYPE_RECORD_LEN_MAX + 64 <= PAYLOAD_LEN_MAX as usize);
/// Highest number of a batch: far beyond what is ever reached, so that the next one can always be
/// counted.
pub const BATCH_NUMBER_MAX: u64 = 1 << 62;
/// Most bytes of a pool's name.
pub const POOL_NAME_LEN_MAX: usize = 255;

/// Start of a frame.
#[derive(Clone, Copy, Debug, PartialEq, Eq, FromBytes, IntoBytes, Immutable, KnownLayout)]
#[repr(C)]
pub struct RecordHeader {
    /// [`RECORD_MAGIC`].
    pub magic: [u8; 8],
    /// Number of the batch, from 1.
    pub batch: u64,
    /// Number of the frame in its batch, from 0.
    pub index: u32,
    /// [`FLAG_LAST`] or 0.
    pub flags: u32,
    /// Bytes of the payload.
    pub payload_len: u32,
    /// Zero.
    pub reserved0: u32,
    /// Journals of psyncs, of objects and of pools, had durable records up to these numbers when
    /// the batch was written: one with fewer was put back.
    pub journals: [u64; 2],
    /// XXH3-64 of this header (with this field zero) and the payload.
    pub checksum: u64,
}

/// Bytes of a frame's header.
pub const FRAME_HEADER_LEN: usize = size_of::<RecordHeader>();

const _: () = assert!(FRAME_HEADER_LEN == 56);
const _: () = assert!(core::mem::offset_of!(RecordHeader, journals) == 32);

/// How a pool keeps its data.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub enum PoolMode {
    /// Stores go straight into the puddle files.
    Direct,
    /// Stores go into the puddle files, which are the *shadow*; each has a *primary* beside it,
    /// which only a psync changes, of all puddles of the pool together. After a loss of power
    /// the primaries are the truth.
    Shadowed,
}

/// Which allocator a pool has.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub enum HeapKind {
    /// Ralloc's: recoverable by tracing.
    Traced,
    /// Poseidon's: recoverable by its logs, which cover all metadata.
    Logged,
    /// NVMalloc's: spares its own locations, and survives damage of its headers.
    Wear {
        /// Milliseconds that a freed block waits before it is given out again, up to
        /// [`WAIT_MS_MAX`](crate::wear::WAIT_MS_MAX). The heap has them from when it is made.
        wait_ms: u32,
    },
}

impl HeapKind {
    /// The wear heap whose freed blocks wait for 100 ms.
    pub const WEAR: Self = Self::Wear { wait_ms: 100 };

    /// Its name for people.
    #[must_use]
    pub const fn name(self) -> &'static str {
        match self {
            Self::Traced => "traced",
            Self::Logged => "logged",
            Self::Wear { .. } => "wear",
        }
    }

    /// Whether a heap can be made so.
    #[must_use]
    pub const fn is_valid(self) -> bool {
        match self {
            Self::Traced | Self::Logged => true,
            Self::Wear { wait_ms } => wait_ms <= crate::wear::WAIT_MS_MAX,
        }
    }

    /// Whether a heap can use a puddle of `size` bytes, however large: a wear heap counts lines
    /// with 32 bits.
    #[must_use]
    pub const fn can_use(self, size: u64) -> bool {
        match self {
            Self::Traced | Self::Logged => true,
            Self::Wear { .. } => size / crate::wear::WEAR_LINE <= u32::MAX as u64,
        }
    }
}

/// Longest wait of [`DataProtection::Deferred`]: a minute.
pub const PROTECTION_WAIT_MS_MAX: u32 = 60_000;

/// How the data of a pool are protected against stores that no transaction has announced, while a
/// program has the pool open for writing.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub enum DataProtection {
    /// Not at all.
    #[default]
    None,
    /// Pages are read-only but where a transaction stores. They become so again in batches.
    Deferred {
        /// Milliseconds from the first request of a batch to the batch, up to
        /// [`PROTECTION_WAIT_MS_MAX`].
        wait_ms: u32,
    },
    /// The same, with a system call for the first and the last store into a page of each
    /// transaction. For comparison.
    Synchronous,
}

impl DataProtection {
    /// Batches come after 40 ms.
    pub const DEFERRED: Self = Self::Deferred { wait_ms: 40 };

    /// Whether a pool can have it.
    #[must_use]
    pub const fn is_valid(self) -> bool {
        match self {
            Self::None | Self::Synchronous => true,
            Self::Deferred { wait_ms } => wait_ms <= PROTECTION_WAIT_MS_MAX,
        }
    }

    /// Whether there is any.
    #[must_use]
    pub const fn is_on(self) -> bool {
        !matches!(self, Self::None)
    }
}

impl core::fmt::Display for DataProtection {
    fn fmt(&self, f: &mut core::fmt::Formatter<'_>) -> core::fmt::Result {
        match self {
            Self::None => f.write_str("none"),
            Self::Deferred { wait_ms } => write!(f, "deferred by {wait_ms} ms"),
            Self::Synchronous => f.write_str("synchronous"),
        }
    }
}

/// A pool.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct PoolRecord {
    /// Its number.
    pub id: PoolId,
    /// Its name, unique in the store.
    pub name: String,
    /// Its mode.
    pub mode: PoolMode,
    /// Its heap.
    pub heap: HeapKind,
    /// Bytes of the first puddle; later ones grow from there.
    pub puddle_size: u64,
    /// The pool never takes more bytes than this.
    pub size_max: u64,
    /// User id of the creator.
    pub uid: u32,
    /// Group id of the creator.
    pub gid: u32,
    /// Permission bits, as of a file.
    pub permissions: u32,
    /// When it was created, in seconds since 1970.
    pub created_at_s: u64,
}

/// A puddle.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct PuddleRecord {
    /// Its identity, and the name of its file.
    pub uuid: Uuid,
    /// Its pool, or `PoolId(0)`.
    pub pool: PoolId,
    /// What it is for.
    pub role: Role,
    /// Its number in its pool.
    pub index: u32,
    /// Its address.
    pub addr: u64,
    /// Its size in bytes.
    pub size: u64,
}

/// How an object is protected while no process has it attached, or a pool while none has it open.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub enum AtRest {
    /// Not at all: the primary holds the data as it is.
    None,
    /// [`Mode::Integrity`].
    Integrity,
    /// [`Mode::Encryption`].
    Encryption,
    /// [`Mode::EncryptionIntegrity`].
    EncryptionIntegrity,
    /// [`Mode::Authenticated`].
    Authenticated,
}

impl AtRest {
    /// The mode of the protection's header.
    #[must_use]
    pub const fn mode(self) -> Mode {
        match self {
            Self::None => Mode::None,
            Self::Integrity => Mode::Integrity,
            Self::Encryption => Mode::Encryption,
            Self::EncryptionIntegrity => Mode::EncryptionIntegrity,
            Self::Authenticated => Mode::Authenticated,
        }
    }

    /// Bytes of the file of a puddle of `size` bytes in a pool that is protected so: behind the
    /// header page and the sealed pages lie the regions of the protection. `None` for more than any
    /// puddle has.
    #[must_use]
    pub const fn stored_len(self, size: u64) -> Option<u64> {
        if matches!(self, Self::None) {
            return Some(size);
        }
        match Regions::new(self.mode(), size.saturating_sub(PAGE_SIZE) / PAGE_SIZE) {
            Some(regions) => size.checked_add(regions.len),
            None => None,
        }
    }

    /// What the catalog says of an object that is protected so.
    #[must_use]
    pub const fn of(mode: Mode) -> Self {
        match mode {
            Mode::None => Self::None,
            Mode::Integrity => Self::Integrity,
            Mode::Encryption => Self::Encryption,
            Mode::EncryptionIntegrity => Self::EncryptionIntegrity,
            Mode::Authenticated => Self::Authenticated,
        }
    }
}

/// A persistent memory object: a puddle of role `Object` that belongs to no pool.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct ObjectRecord {
    /// Its puddle.
    pub puddle: Uuid,
    /// Its name, unique among the store's objects.
    pub name: String,
    /// Bytes of its data, as they were asked for.
    pub data_len: u64,
    /// How it is protected at rest.
    pub at_rest: AtRest,
    /// User id of the creator.
    pub uid: u32,
    /// Group id of the creator.
    pub gid: u32,
    /// Permission bits, as of a file.
    pub permissions: u32,
    /// When it was created, in seconds since 1970.
    pub created_at_s: u64,
}

impl ObjectRecord {
    /// Bytes of whole pages of its data. Behind them in its file lie the regions of its protection,
    /// if it has one.
    #[must_use]
    pub const fn span(&self) -> u64 {
        self.data_len.next_multiple_of(PAGE_SIZE)
    }

    /// Bytes of its puddle: data, and what protects it. `None` for a length that no object can
    /// have.
    #[must_use]
    pub const fn puddle_size(&self) -> Option<u64> {
        // Before anything is rounded up.
        if object_puddle_size(self.data_len).is_none() {
            return None;
        }
        match Regions::new(self.at_rest.mode(), self.span() / PAGE_SIZE) {
            Some(regions) => object_puddle_size(self.span() + regions.len),
            None => None,
        }
    }
}

/// A client (session) and its log space.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct ClientRecord {
    /// The client's identity.
    pub client: Uuid,
    /// Its log space's puddle.
    pub log_space: Uuid,
}

/// The process that a client of a daemon is. The daemon may end and another follow while it lives
/// on, with its mappings.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct HostedClientRecord {
    /// The client's identity.
    pub client: Uuid,
    /// Its process number, as the daemon saw it.
    pub pid: u32,
    /// When that process started, in clock ticks since boot: number and start name one process of
    /// one boot.
    pub start_ticks: u64,
    /// The user that it acts for.
    pub uid: u32,
    /// The group that it acts for.
    pub gid: u32,
}

/// "This client may write to this pool": written before the mapping is handed out; replay applies
/// nothing else (PUD-3).
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct LeaseRecord {
    /// The client that has the lease.
    pub client: Uuid,
    /// What.
    pub pool: PoolId,
    /// Whether for writing.
    pub writable: bool,
}

/// Most ranges of one [`RelocationRecord`], and most pools: such a record always fits into one
/// frame.
pub const RELOCATION_MOVES_MAX: usize = 16_384;

/// Most puddles of one [`Record::Sealed`]: such a record always fits into one frame.
pub const SEALED_MAX: usize = 16_384;

/// Where puddles have gone that were imported, cloned or moved together: what native pointers into
/// them are to become.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct RelocationRecord {
    /// Its number, by which [`PendingRewriteRecord`]s name it.
    pub id: Uuid,
    /// Ranges of addresses that have another address now, by rising old address, none on top of
    /// another.
    pub moves: Vec<MoveRecord>,
    /// Pools that have another number now, old and new: what region pointers are to become.
    pub pools: Vec<(PoolId, PoolId)>,
}

/// A range of addresses that moved.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct MoveRecord {
    /// Its old first address.
    pub from: u64,
    /// Its new one.
    pub to: u64,
    /// Its bytes.
    pub size: u64,
}

/// A puddle whose pointers are still what they were before a relocation. No program has mapped it
/// since.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct PendingRewriteRecord {
    /// The puddle.
    pub puddle: Uuid,
    /// Which relocation.
    pub relocation: Uuid,
    /// The address for which its contents are right. The header of its file says the same until it
    /// is rewritten.
    pub from: u64,
    /// The generation that the header says once it is rewritten; one less until then. 0: its file
    /// was damaged when it moved, so that is not known; it is said before the puddle is rewritten.
    pub generation: u64,
}

impl PendingRewriteRecord {
    /// Whether the generation is not known.
    #[must_use]
    pub fn is_unknown(&self) -> bool {
        self.generation == 0
    }
}

/// One change of the catalog. The order of variants is part of the format: add at the end only.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum Record {
    /// A pool is there, or has changed.
    Pool(PoolRecord),
    /// A pool is gone; its puddles are removed in the same batch.
    PoolRemoved(PoolId),
    /// A puddle is there, or has changed.
    Puddle(PuddleRecord),
    /// A puddle is gone.
    PuddleRemoved(Uuid),
    /// A type is registered.
    Type(TypeRecord),
    /// A client has a log space.
    Client(ClientRecord),
    /// A client's logs are empty and its log space is gone.
    ClientRemoved(Uuid),
    /// A lease is given.
    Lease(LeaseRecord),
    /// All leases of a client have ended.
    LeasesEnded(Uuid),
    /// First record of a compacted catalog: the next pool number, so that none is given twice.
    NextPool(PoolId),
    /// A type is removed (none of its blocks is left).
    TypeRemoved(TypeId),
    /// Power failed while the pool was held writable at a durability level that does not cover
    /// that; its values may be torn. Stays until a program opens it as it is, by policy.
    PoolNotCovered(PoolId),
    /// An operator has decided to take the pool as it is.
    PoolCovered(PoolId),
    /// Power failed while the pool was held writable: which of its blocks are allocated must be
    /// computed again, by tracing, before it is used.
    TraceDue(PoolId),
    /// That has been done.
    Traced(PoolId),
    /// A program has opened the pool for writing: it is not as it was created any more.
    PoolUsed(PoolId),
    /// An object is created, or its permissions change. Its puddle's record comes in the same
    /// batch, or before.
    Object(ObjectRecord),
    /// The object with this puddle is gone; the puddle's own record is removed in the same batch.
    ObjectRemoved(Uuid),
    /// A client is another process, which a daemon serves; in the batch of its first lease or of
    /// its log space. It ends with [`Record::ClientRemoved`].
    HostedClient(HostedClientRecord),
    /// A lease for writing is given that other clients may have too, or one that a client has
    /// becomes such a one.
    LeaseShared {
        /// The client that has the lease.
        client: Uuid,
        /// What.
        pool: PoolId,
    },
    /// Puddles have moved. It is forgotten with the last [`Record::PendingRewrite`] naming it.
    Relocation(RelocationRecord),
    /// A puddle is to be rewritten before it is mapped. Its relocation's record comes before.
    PendingRewrite(PendingRewriteRecord),
    /// That has been done, or the puddle is gone.
    Relocated(Uuid),
    /// A client's request has made a pool, in the batch of the pool: the client that asks again,
    /// because the answer was lost, gets this one. A client has one such record, of its last
    /// request; it ends with [`Record::ClientRemoved`].
    PoolMade {
        /// The client that asked.
        client: Uuid,
        /// By which request: a number of the client's choice.
        token: Uuid,
        /// What was made.
        pool: PoolId,
    },
    /// A client of a daemon has an object attached. It ends with [`Record::ObjectLeaseEnded`], or
    /// with all leases of the client.
    ObjectLease {
        /// The client.
        client: Uuid,
        /// The object's puddle.
        object: Uuid,
        /// Whether for writing.
        writable: bool,
    },
    /// A client has detached an object.
    ObjectLeaseEnded {
        /// The client.
        client: Uuid,
        /// The object's puddle.
        object: Uuid,
    },
    /// The pool is protected at rest, from its creation on: in the batch of its [`Record::Pool`].
    /// Only in stores whose superblock has [`crate::superblock::INCOMPAT_POOLS_AT_REST`].
    PoolAtRest(PoolId, AtRest),
    /// The puddle of a protected pool is pending, and its file is still sealed under the identity
    /// that it is a copy of. It ends with the puddle's [`Record::PendingRewrite`], of the same
    /// batch.
    /// Only in stores whose superblock has [`crate::superblock::INCOMPAT_SEALED_AS`].
    SealedAs {
        /// The puddle.
        puddle: Uuid,
        /// Whose contents it has.
        identity: Uuid,
    },
    /// The window, where it is another one than the superblock says: it moved, or became longer.
    /// Puddles that it took along have their records in the same batch, before it. Only in stores
    /// whose superblock has [`crate::superblock::INCOMPAT_WINDOW_MOVED`].
    Window {
        /// First address.
        base: u64,
        /// Bytes.
        len: u64,
    },
    /// The pool may hold half of a transaction, because the logs that would undo it were discarded.
    /// The record is in the batch that removes them. A copy of the pool has it too. It ends with
    /// [`Record::PoolWhole`], or with the pool. Only in stores whose superblock has
    /// [`crate::superblock::INCOMPAT_TORN`].
    PoolTorn(PoolId),
    /// A caller answers for the pool's values: it is whole.
    PoolWhole(PoolId),
    /// Committed psyncs of a puddle's primary are in its file of kept psyncs ([`crate::kept`]), and
    /// nowhere else. Only in stores whose superblock has [`crate::superblock::INCOMPAT_KEPT`].
    Kept {
        /// The puddle.
        puddle: Uuid,
        /// [`crate::kept::KeptHeader::sum`] of that file.
        sum: u64,
    },
    /// It is in the primary. Also with the puddle's end.
    KeptEnded(Uuid),
    /// A seal: the files of these puddles, and their primaries, have this stamp
    /// ([`crate::puddle`]) since a session closed the store. Or an era: a close found these puddles
    /// damaged, and left them as they were. When they are whole again, they have the seal of
    /// before, this era, or its seal. At most [`SEALED_MAX`]. It ends with a later seal, and with
    /// the puddle.
    Sealed {
        /// The seal, or the era ([`crate::puddle::is_era`]).
        seal: u64,
        /// The puddles.
        puddles: Vec<Uuid>,
    },
    /// The pool's data are protected in this way from now on; a pool without such a record has
    /// [`DataProtection::None`]. Only in stores whose superblock has
    /// [`crate::superblock::INCOMPAT_PROTECTED_DATA`].
    PoolProtected(PoolId, DataProtection),
}

impl Record {
    /// The records that name this seal for these puddles.
    #[must_use]
    pub fn sealed(seal: u64, puddles: &[Uuid]) -> Vec<Self> {
        let record = |puddles: &[Uuid]| Self::Sealed { seal, puddles: puddles.to_vec() };
        puddles.chunks(SEALED_MAX).map(record).collect()
    }

    /// Whether it is about a daemon's clients: such records come into a catalog only after the
    /// superblock names [`crate::superblock::INCOMPAT_HOSTED`].
    #[must_use]
    pub const fn is_hosted(&self) -> bool {
        matches!(
            self,
            Self::HostedClient(_)
                | Self::LeaseShared { .. }
                | Self::PoolMade { .. }
                | Self::ObjectLease { .. }
                | Self::ObjectLeaseEnded { .. }
        )
    }
}
