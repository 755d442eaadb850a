//! The messages, and their bytes.

use crate::clients::ClientItem;
use cenote_layout::catalog::{AtRest, HeapKind, ObjectRecord, PoolMode, PoolRecord, PuddleRecord};
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

/// An object in a list.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct ObjectItem {
    /// What the catalog says.
    pub record: ObjectRecord,
    /// First address of its puddle.
    pub addr: u64,
    /// Bytes of its puddle.
    pub size: u64,
    /// Its state, by number.
    pub state: u32,
    /// How its last writer left it, and that process.
    pub found: (u8, u32),
    /// It is of a copy of an open store, and was not verified since: a client does that, under its
    /// key.
    pub unchecked: bool,
}

/// A client whose logs are set aside.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct SetAsideItem {
    /// The client.
    pub client: Uuid,
    /// The pools that it could write, by number and name.
    pub pools: Vec<(PoolId, String)>,
    /// What is wrong with its logs.
    pub why: Vec<String>,
}

/// What a store lies on, in words and numbers that a client can use.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct MediumText {
    /// The directory.
    pub path: String,
    /// The kind of storage: `dax`, `tmpfs`, `ordinary`, `network`, `overlay`.
    pub kind: String,
    /// The file system.
    pub fs: String,
    /// Whether a commit into a direct mapping survives a loss of power.
    pub power: bool,
    /// Why.
    pub note: String,
}

/// Where a puddle lies.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Place {
    /// Its pool.
    pub pool: PoolId,
    /// Its number there.
    pub index: u32,
    /// First address.
    pub addr: u64,
    /// Bytes.
    pub size: u64,
}

/// A pool in a list.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct PoolItem {
    /// What the catalog says.
    pub record: PoolRecord,
    /// Bytes of its puddles.
    pub bytes: u64,
    /// Number of its puddles.
    pub puddles: u64,
}

/// What the daemon is doing.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Stat {
    /// Sessions, those of processes that are not connected now among them.
    pub sessions: u64,
    /// Messages answered since the daemon started, this one included.
    pub messages: u64,
    /// Of those, messages of this session.
    pub messages_here: u64,
    /// Sessions that ended without a goodbye, and whose logs were replayed.
    pub recoveries: u64,
    /// Logs in which an unfinished transaction was undone or completed.
    pub logs_replayed: u64,
    /// Logs that were set aside.
    pub logs_set_aside: u64,
    /// Entries of logs that were applied.
    pub entries_replayed: u64,
    /// Psyncs that the daemon has made.
    pub psyncs: u64,
    /// Requests that were refused.
    pub refused: u64,
    /// Ends of sessions that failed, and are tried again.
    pub ends_failed: u64,
    /// Bytes of puddles that are ready for pools to take.
    pub spare_bytes: u64,
    /// Seconds since the daemon began to listen.
    pub uptime_s: u64,
}

/// Why something is not done.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum Refusal {
    /// There is no such pool.
    PoolUnknown,
    /// There is one already.
    PoolExists,
    /// A client has it open.
    PoolInUse,
    /// Another client has it, and one of the two writes.
    PoolBusy {
        /// Who.
        by: String,
    },
    /// Its permissions do not allow it.
    Permission {
        /// What.
        what: String,
    },
    /// The pool may take no more.
    PoolFull {
        /// Bytes that were wanted.
        wanted: u64,
        /// Bytes that it has.
        used: u64,
        /// Most bytes.
        size_max: u64,
    },
    /// A type is known with another layout.
    TypeMismatch {
        /// What the store knows.
        known: Box<TypeRecord>,
    },
    /// The session has ended, or never was.
    NoSession,
    /// This process has the session in another connection still.
    Attached,
    /// A limit of the daemon's.
    Limit {
        /// Which.
        detail: String,
    },
    /// The message makes no sense here.
    Malformed {
        /// Why.
        detail: String,
    },
    /// Anything else.
    Other {
        /// What it is, and what to do.
        detail: String,
    },
    /// There is no such object.
    ObjectUnknown,
    /// There is one already.
    ObjectExists,
    /// Another process has the object attached.
    ObjectBusy {
        /// Whether for writing.
        writing: bool,
        /// The process.
        pid: u32,
    },
    /// The object's permission bits do not allow it.
    ObjectDenied {
        /// What.
        what: String,
        /// Who asked.
        uid: u32,
        /// The bits.
        mode: u32,
        /// The owner.
        owner: u32,
    },
    /// The disk or the window is full.
    NoSpace,
    /// A psync is larger than one may be.
    PsyncTooLarge {
        /// Most bytes.
        limit: u64,
    },
    /// There is no such parcel: the daemon is another one than it was of, say.
    NoParcel,
    /// There is no such import: the daemon is another one than it was begun with, say, or it has
    /// failed. Nothing of it is left.
    NoImport,
    /// What is to be imported cannot be.
    Import {
        /// Why, and what to do.
        detail: String,
    },
    /// No backup was made, and there is no copy.
    Backup {
        /// Why.
        detail: String,
    },
    /// No backup was made: these clients did not stand still in time.
    NotStill {
        /// Their processes.
        pids: Vec<u32>,
        /// How long they had, in milliseconds.
        waited_ms: u32,
    },
    /// The pool may hold half a transaction, because logs were discarded.
    PoolTorn,
}

/// What the daemon answers. The order of variants is part of the protocol: add at the end only.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum Reply {
    /// To [`Request::Hello`].
    Welcome {
        /// The session.
        client: Uuid,
        /// The store.
        store: Uuid,
        /// First address of its window.
        window_base: u64,
        /// Bytes of its window.
        window_len: u64,
        /// What it lies on.
        medium: MediumText,
        /// Whether commits reach level `power`.
        power: bool,
    },
    /// It is done.
    Done,
    /// To [`Request::Stat`].
    Stat(Stat),
    /// To [`Request::Pools`].
    Pools {
        /// The page.
        items: Vec<PoolItem>,
        /// Whether there are more.
        more: bool,
    },
    /// To [`Request::CreatePool`].
    Created(PoolId),
    /// To [`Request::OpenPool`].
    Pool {
        /// What the catalog says.
        record: PoolRecord,
        /// 0 fresh, 1 clean, 2 in use when its last writer's process ended, 3 when power failed.
        start: u8,
        /// Whether its heap must be traced first.
        trace_due: bool,
        /// Why its values may not be what its transactions made them.
        doubts: Vec<String>,
        /// How many types the store knows.
        types: u64,
    },
    /// To [`Request::Puddles`], with a descriptor for each; and to requests for one.
    Puddles {
        /// The page.
        records: Vec<PuddleRecord>,
        /// Whether there are more.
        more: bool,
    },
    /// To [`Request::Types`].
    Types {
        /// The page.
        records: Vec<TypeRecord>,
        /// Whether there are more.
        more: bool,
    },
    /// It is not done, and nothing has changed.
    Refused(Refusal),
    /// To [`Request::SharePool`].
    Shared {
        /// As in [`Reply::Pool`].
        record: PoolRecord,
        /// As in [`Reply::Pool`].
        start: u8,
        /// As in [`Reply::Pool`].
        trace_due: bool,
        /// As in [`Reply::Pool`].
        doubts: Vec<String>,
        /// As in [`Reply::Pool`].
        types: u64,
        /// What this process is called in locks that others see.
        member: u64,
    },
    /// To [`Request::Members`].
    Members {
        /// Names of the processes that have the pool, and live or are not recovered yet.
        living: Vec<u64>,
        /// Why its values may not be what its transactions made them.
        doubts: Vec<String>,
    },
    /// To [`Request::SetAside`].
    SetAside {
        /// As many as fit into a message: when they are decided about, the others follow.
        items: Vec<SetAsideItem>,
    },
    /// To [`Request::Clients`].
    Clients {
        /// The page.
        items: Vec<ClientItem>,
        /// Whether there are more.
        more: bool,
    },
    /// To [`Request::Metrics`].
    Metrics {
        /// The text.
        text: String,
    },
    /// To [`Request::Objects`], and to requests about one; to [`Request::AttachObject`] with a
    /// descriptor for reading.
    Objects {
        /// The page.
        items: Vec<ObjectItem>,
        /// Whether there are more.
        more: bool,
    },
    /// To [`Request::PsyncPools`] and [`Request::PsyncObjects`].
    Psynced {
        /// Its number in the journal; 0 if nothing had changed.
        seq: u64,
        /// Pages in which something had changed.
        pages: u64,
        /// Bytes of lines that were journalled.
        data_bytes: u64,
        /// Bytes that the record took.
        journal_bytes: u64,
    },
    /// To [`Request::Parcel`], with its descriptor.
    Parcel {
        /// Its number in this session.
        number: u64,
    },
    /// To [`Request::Places`].
    Places {
        /// The page.
        items: Vec<Place>,
        /// Whether there are more.
        more: bool,
    },
    /// To [`Request::BeginImport`].
    Import {
        /// Its number in this session.
        number: u64,
    },
    /// To [`Request::CommitImport`] and [`Request::ClonePool`]: the pools in the order of the
    /// request.
    Imported {
        /// Their numbers, whether they have other addresses now, and how many puddles are to be
        /// rewritten.
        pools: Vec<(PoolId, bool, u64)>,
    },
    /// To [`Request::Attend`], with its descriptor.
    Ear,
    /// To [`Request::Backup`]: there is a copy.
    BackedUp {
        /// Pools in it.
        pools: u64,
        /// Objects in it.
        objects: u64,
        /// Bytes of its files.
        bytes: u64,
        /// Bytes that were copied again while clients stood still.
        again_bytes: u64,
        /// How long they did, in microseconds.
        held_us: u64,
        /// Why its name may not survive a loss of power.
        unsynced: Option<String>,
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
mod tests {
    use super::*;

    fn sample() -> Request {
        let spec = PoolSpec {
            mode: PoolMode::Direct,
            heap: HeapKind::Traced,
            puddle_size: 2 << 20,
            size_max: u64::MAX,
            permissions: 0o640,
        };
        Request::CreatePool { name: "a pool".into(), spec, token: Uuid([3; 16]) }
    }

    #[test]
    fn messages_come_back_as_they_were_sent() {
        let psync = Request::PsyncObjects {
            parcel: 9,
            objects: vec![Uuid([3; 16])],
            runs: 7,
            settled: true,
        };
        let attach = Request::AttachObject { name: "an object".into(), writable: true };
        for (number, message) in
            [sample(), Request::Ping, Request::Hello { resume: Some(Uuid([7; 16])) }, psync, attach]
                .into_iter()
                .enumerate()
        {
            let packet = encode(number as u32, &message).expect("encode");
            assert_eq!(decode::<Request>(&packet), Ok((number as u32, message)));
            assert_eq!(peek(&packet), number as u32);
        }
    }

    #[test]
    fn whatever_is_cut_off_or_added_is_refused() {
        let packet = encode(9, &sample()).expect("encode");
        for len in 0..packet.len() {
            assert!(decode::<Request>(&packet[..len]).is_err(), "{len} bytes");
        }
        let mut long = packet.clone();
        long.push(0);
        assert_eq!(
            decode::<Request>(&long),
            Err(DecodeError::Length { found: long.len(), said: packet.len() as u64 })
        );
        // The length says so too, and the body has a byte that nothing reads.
        long[12] += 1;
        assert_eq!(decode::<Request>(&long), Err(DecodeError::Body));
    }

    #[test]
    fn other_versions_and_other_programs_are_named() {
        let mut packet = encode(9, &Request::Ping).expect("encode");
        packet[4] = 1;
        assert_eq!(decode::<Request>(&packet), Err(DecodeError::Version { found: 1 }));
        packet[0] = b'X';
        assert_eq!(decode::<Request>(&packet), Err(DecodeError::Magic));
    }

    #[test]
    fn a_length_that_no_packet_has_takes_no_memory() {
        // A list of types that says it has 2^60 elements.
        let mut packet =
            encode(1, &Request::RegisterTypes { records: Vec::new() }).expect("encode");
        packet.pop();
        packet.extend_from_slice(&[0x80, 0x80, 0x80, 0x80, 0x80, 0x80, 0x80, 0x80, 0x10]);
        let len = (packet.len() - HEADER_LEN) as u32;
        packet[12..16].copy_from_slice(&len.to_le_bytes());
        assert_eq!(decode::<Request>(&packet), Err(DecodeError::Body));
    }

    #[test]
    fn what_is_too_long_is_not_sent() {
        let name = "x".repeat(MESSAGE_LEN_MAX);
        let refused = encode(1, &Request::RemovePool { name });
        assert!(matches!(refused, Err(DecodeError::TooLong { .. })), "{refused:?}");
    }
}
