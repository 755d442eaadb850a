//! Defines the messages, and their bytes.

mod reply;

pub use reply::{MediumText, ObjectItem, Place, PoolItem, Refusal, Reply, SetAsideItem, Stat};

use cenote_layout::catalog::{AtRest, HeapKind, PoolMode};
use cenote_layout::id::{PoolId, TypeId, Uuid};
use cenote_layout::types::TypeRecord;
use serde::de::DeserializeOwned;
use serde::{Deserialize, Serialize};

/// The version that this release speaks, and the only one that it understands.
pub const VERSION: u16 = 5;
/// Most bytes of one message, its header included.
pub const MESSAGE_LEN_MAX: usize = 64 << 10;
/// `CNTE`, little endian.
const MAGIC: u32 = u32::from_le_bytes(*b"CNTE");
const HEADER_LEN: usize = 16;

/// Why a packet is no message.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum DecodeError {
    /// It is shorter than a header, or says another length than it has.
    #[error("the message has {found} bytes and says {said}")]
    Length {
        /// Bytes that were received.
        found: usize,
        /// Bytes that it says.
        said: u64,
    },
    /// It does not begin as a message does.
    #[error("it is no message of Cenote")]
    Magic,
    /// Another version.
    #[error(
        "the message is of protocol version {found}, and this release speaks {VERSION}: \
         use releases that go together"
    )]
    Version {
        /// Its version.
        found: u16,
    },
    /// The body is none of this version.
    #[error("the message's body cannot be read")]
    Body,
    /// It is too long to be sent.
    #[error("the message would have {len} bytes, and {MESSAGE_LEN_MAX} is the most")]
    TooLong {
        /// Bytes that it would have.
        len: usize,
    },
    /// An import is too large to be asked of a daemon.
    #[error(
        "the import has {pools} pools and a list of {len} bytes, and a daemon takes {} and {}: \
         import fewer pools at once",
        crate::spec::IMPORT_POOLS_MAX,
        crate::spec::IMPORT_LEN_MAX
    )]
    SpecTooLong {
        /// Bytes of its list.
        len: usize,
        /// Pools.
        pools: usize,
    },
}

/// How a pool is to be made.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct PoolSpec {
    /// Its mode.
    pub mode: PoolMode,
    /// Its heap.
    pub heap: HeapKind,
    /// Bytes of its first puddle.
    pub puddle_size: u64,
    /// Most bytes that it may take.
    pub size_max: u64,
    /// Permission bits.
    pub permissions: u32,
}

/// What a client asks. The order of variants is part of the protocol: add at the end only.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum Request {
    /// The first message: a new session, or one that this process had with an earlier daemon.
    Hello {
        /// The session to go on with.
        resume: Option<Uuid>,
    },
    /// Nothing: the paper's no-op.
    Ping,
    /// What the daemon is doing.
    Stat,
    /// Pools by number, those after `after`.
    Pools {
        /// The last one of the page before.
        after: Option<PoolId>,
    },
    /// Creates a pool. Asked again with the same token, because the answer was lost, it gives the
    /// pool that was made.
    CreatePool {
        /// Its name.
        name: String,
        /// How.
        spec: PoolSpec,
        /// A number of the client's choice, another one for each pool that it creates.
        token: Uuid,
    },
    /// Removes a pool.
    RemovePool {
        /// Its name.
        name: String,
    },
    /// Grants a pool; its puddles are asked for afterwards.
    OpenPool {
        /// Its name.
        name: String,
        /// Whether for writing.
        writable: bool,
    },
    /// Puddles of a granted pool in index order, with their descriptors: `GetExistPuddle`.
    Puddles {
        /// The pool.
        pool: PoolId,
        /// The first one of the page.
        first: u32,
    },
    /// One more puddle for a pool: `GetNewPuddle`. Asked again, because the answer was lost, it
    /// gives the same.
    TakePuddle {
        /// The pool.
        pool: PoolId,
        /// Its number in the pool: the next one.
        index: u32,
        /// Its bytes.
        size: u64,
    },
    /// The session's log space: `RegLogSpace`.
    LogSpace,
    /// A puddle for a log.
    LogPuddle {
        /// Its bytes.
        size: u64,
    },
    /// Types by id, those after `after`.
    Types {
        /// The last one of the page before.
        after: Option<TypeId>,
    },
    /// Registers types.
    RegisterTypes {
        /// Their records.
        records: Vec<TypeRecord>,
    },
    /// A pool has been traced.
    TraceDone {
        /// Which.
        pool: PoolId,
    },
    /// Takes space for a part of a puddle.
    EnsureSpace {
        /// The pool.
        pool: PoolId,
        /// First address.
        addr: u64,
        /// Bytes.
        len: u64,
    },
    /// Changes a pool's owner, group or mode.
    SetPermissions {
        /// Its name.
        name: String,
        /// The new owner.
        uid: Option<u32>,
        /// The new group.
        gid: Option<u32>,
        /// The new permission bits.
        permissions: Option<u32>,
    },
    /// The session ends: its mappings are not touched any more.
    Goodbye,
    /// Grants a pool for writing, beside others that share it.
    SharePool {
        /// Its name.
        name: String,
    },
    /// Who shares a pool.
    Members {
        /// The pool.
        pool: PoolId,
    },
    /// Clients whose logs are set aside.
    SetAside,
    /// Decides about the logs of one.
    DecideLogs {
        /// Which client.
        client: Uuid,
        /// Whether they are applied, if they pass their checks; else they are discarded.
        apply: bool,
    },
    /// Sessions by identity, those after `after`.
    Clients {
        /// The last one of the page before.
        after: Option<Uuid>,
    },
    /// What the daemon counts, in Prometheus' text format.
    Metrics,
    /// The primaries of a granted pool in shadowed mode, with descriptors for reading.
    Primaries {
        /// The pool.
        pool: PoolId,
        /// The first one of the page.
        first: u32,
    },
    /// Psyncs puddles of pools in shadowed mode.
    PsyncPools {
        /// The parcel, which has a list of lines, and their contents. It is used up.
        parcel: u64,
        /// The puddles, by which the list counts.
        puddles: Vec<Uuid>,
        /// Entries that the list has room for.
        runs: u32,
    },
    /// Objects by name, those after `after`.
    Objects {
        /// The last one of the page before.
        after: Option<String>,
    },
    /// One object.
    Object {
        /// Its name.
        name: String,
    },
    /// Creates an object.
    CreateObject {
        /// Its identity, chosen by the caller.
        id: Uuid,
        /// Its name.
        name: String,
        /// Its bytes.
        data_len: u64,
        /// Permission bits.
        permissions: u32,
        /// What protects it at rest.
        at_rest: AtRest,
        /// The header of that, with the wrapped key.
        header: Vec<u8>,
    },
    /// Removes an object.
    DestroyObject {
        /// Its name.
        name: String,
    },
    /// Attaches an object.
    AttachObject {
        /// Its name.
        name: String,
        /// Whether for writing.
        writable: bool,
    },
    /// Gives an object back.
    DetachObject {
        /// Which.
        object: Uuid,
    },
    /// Psyncs objects that are attached for writing; as [`Request::PsyncPools`].
    PsyncObjects {
        /// The parcel.
        parcel: u64,
        /// The objects, by which the list counts.
        objects: Vec<Uuid>,
        /// Entries that the list has room for.
        runs: u32,
        /// Whether the answer waits until their files hold it.
        settled: bool,
    },
    /// Changes an object's owner, group or mode.
    SetObjectOwner {
        /// Its name.
        name: String,
        /// The new owner.
        uid: Option<u32>,
        /// The new group.
        gid: Option<u32>,
        /// The new permission bits.
        permissions: Option<u32>,
    },
    /// A file in memory for the next psync, of the daemon's making: no descriptor of a client's
    /// ever reaches the daemon.
    Parcel,
    /// Where the puddles of all pools lie, those behind `after` by pool and number: for telling to
    /// which pool a pointer leads.
    Places {
        /// The last one of the page before.
        after: Option<(PoolId, u32)>,
    },
    /// Copies a pool. Asked again with the same token, because the answer was lost, it says what
    /// the copy is.
    ClonePool {
        /// The pool.
        name: String,
        /// What the copy is to be called.
        copy: String,
        /// As in [`Request::CreatePool`].
        token: Uuid,
    },
    /// Gives a pool addresses that are chosen afresh.
    RandomizePool {
        /// Its name.
        name: String,
    },
    /// Begins an import: what it is to be is an [`ImportSpec`](crate::ImportSpec) in a parcel,
    /// which is used up.
    BeginImport {
        /// The parcel.
        parcel: u64,
        /// Bytes of it.
        len: u32,
        /// It is only checked, and nothing is begun.
        check_only: bool,
    },
    /// Writes stretches of one puddle of an import, whose bytes are one after the other in a
    /// parcel, which is used up.
    FillImport {
        /// The import.
        import: u64,
        /// Which of its puddles, by place in the spec.
        slot: u32,
        /// The parcel.
        parcel: u64,
        /// Offset in the puddle, and bytes, of each stretch.
        pieces: Vec<(u64, u32)>,
    },
    /// Makes the pools of an import pools of the store. Asked again with the same token, because
    /// the answer was lost, it says what they are.
    CommitImport {
        /// The import.
        import: u64,
        /// As in [`Request::CreatePool`].
        token: Uuid,
        /// How many pools it has.
        pools: u32,
    },
    /// Ends an import that comes to nothing.
    AbandonImport {
        /// The import.
        import: u64,
    },
    /// The client's ear ([`Call`](crate::Call)): the other end of a socket that the daemon keeps.
    Attend,
    /// Copies the store, for its keeper or the superuser. Not asked again if the answer is lost.
    Backup {
        /// The directory that is to be the copy, from the root.
        target: String,
        /// How long clients may take to stand still, in milliseconds; 0: as the daemon has it.
        within_ms: u32,
    },
    /// Says that a pool that may be torn is whole.
    DeclareWhole {
        /// Its name.
        name: String,
    },
}

/// The packet of a message.
///
/// # Errors
/// [`DecodeError::TooLong`].
pub fn encode<T: Serialize>(number: u32, message: &T) -> Result<Vec<u8>, DecodeError> {
    let body = postcard::to_allocvec(message).map_err(|_| DecodeError::Body)?;
    let len = HEADER_LEN + body.len();
    if len > MESSAGE_LEN_MAX {
        return Err(DecodeError::TooLong { len });
    }
    let mut packet = Vec::with_capacity(len);
    packet.extend_from_slice(&MAGIC.to_le_bytes());
    packet.extend_from_slice(&VERSION.to_le_bytes());
    packet.extend_from_slice(&[0; 2]);
    packet.extend_from_slice(&number.to_le_bytes());
    packet.extend_from_slice(&(body.len() as u32).to_le_bytes());
    packet.extend_from_slice(&body);
    Ok(packet)
}

/// The message of a packet, and its number.
///
/// # Errors
/// Why it is none.
pub fn decode<T: DeserializeOwned>(packet: &[u8]) -> Result<(u32, T), DecodeError> {
    let (number, body) = split(packet)?;
    let (message, rest) = postcard::take_from_bytes(body).map_err(|_| DecodeError::Body)?;
    if rest.is_empty() { Ok((number, message)) } else { Err(DecodeError::Body) }
}

/// The number of a packet whose body cannot be read, for the answer that says so; 0 if it has none.
#[must_use]
pub fn peek(packet: &[u8]) -> u32 {
    field(packet, 8).map_or(0, u32::from_le_bytes)
}

fn field<const N: usize>(packet: &[u8], at: usize) -> Option<[u8; N]> {
    packet.get(at..at + N)?.try_into().ok()
}

fn split(packet: &[u8]) -> Result<(u32, &[u8]), DecodeError> {
    let short = || DecodeError::Length { found: packet.len(), said: HEADER_LEN as u64 };
    if field(packet, 0).map(u32::from_le_bytes).ok_or_else(short)? != MAGIC {
        return Err(DecodeError::Magic);
    }
    let version = field(packet, 4).map(u16::from_le_bytes).ok_or_else(short)?;
    if version != VERSION {
        return Err(DecodeError::Version { found: version });
    }
    let zero: [u8; 2] = field(packet, 6).ok_or_else(short)?;
    let len = field(packet, 12).map(u32::from_le_bytes).ok_or_else(short)?;
    let body = packet.get(HEADER_LEN..).unwrap_or_default();
    if body.len() as u64 != u64::from(len) || packet.len() > MESSAGE_LEN_MAX {
        return Err(DecodeError::Length {
            found: packet.len(),
            said: HEADER_LEN as u64 + u64::from(len),
        });
    }
    if zero != [0; 2] {
        return Err(DecodeError::Body);
    }
    Ok((peek(packet), body))
}

#[cfg(test)]
mod tests;
