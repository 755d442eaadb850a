//! The answers of a daemon: replies, the items that they list, and the reasons of refusals.

use crate::clients::ClientItem;
use cenote_layout::catalog::{ObjectRecord, PoolRecord, PuddleRecord};
use cenote_layout::id::{PoolId, Uuid};
use cenote_layout::types::TypeRecord;
use serde::{Deserialize, Serialize};

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
pub struct UndecidedLogsItem {
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
pub struct PuddlePlace {
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
        /// The user of the pool, in words.
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
        /// The code of its kind: what a program can do about it.
        kind: String,
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
        /// The user that asked.
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
    /// There is no such transfer: the daemon is another one than it was of, say.
    NoTransfer,
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
        /// The code of its kind.
        kind: String,
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
    /// Another client, or the daemon itself, has a pool: the one that was named, or one beside it
    /// that has to be free, too.
    PoolHeld {
        /// The pool.
        name: String,
        /// The user of the pool, in words.
        by: String,
    },
    /// The window has no room.
    WindowFull {
        /// Bytes that were wanted.
        wanted: u64,
        /// Bytes of the window.
        window_len: u64,
        /// Bytes that are free.
        free: u64,
    },
}

/// What the daemon answers. The order of variants is part of the protocol: add at the end only.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum Reply {
    /// To `Request::Hello`.
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
    /// To `Request::Stat`.
    Stat(Stat),
    /// To `Request::Pools`.
    Pools {
        /// The page.
        items: Vec<PoolItem>,
        /// Whether there are more.
        more: bool,
    },
    /// To `Request::CreatePool`.
    Created(PoolId),
    /// To `Request::OpenPool`.
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
    /// To `Request::Puddles`, with a descriptor for each; and to requests for one.
    Puddles {
        /// The page.
        records: Vec<PuddleRecord>,
        /// Whether there are more.
        more: bool,
    },
    /// To `Request::Types`.
    Types {
        /// The page.
        records: Vec<TypeRecord>,
        /// Whether there are more.
        more: bool,
    },
    /// It is not done, and nothing has changed.
    Refused(Refusal),
    /// To `Request::SharePool`.
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
    /// To `Request::Members`.
    Members {
        /// Names of the processes that have the pool, and live or are not recovered yet.
        living: Vec<u64>,
        /// Why its values may not be what its transactions made them.
        doubts: Vec<String>,
    },
    /// To `Request::UndecidedLogs`.
    UndecidedLogs {
        /// As many as fit into a message: when they are decided about, the others follow.
        items: Vec<UndecidedLogsItem>,
    },
    /// To `Request::Clients`.
    Clients {
        /// The page.
        items: Vec<ClientItem>,
        /// Whether there are more.
        more: bool,
    },
    /// To `Request::Metrics`.
    Metrics {
        /// The text.
        text: String,
    },
    /// To `Request::Objects`, and to requests about one; to `Request::AttachObject` with a
    /// descriptor for reading.
    Objects {
        /// The page.
        items: Vec<ObjectItem>,
        /// Whether there are more.
        more: bool,
    },
    /// To `Request::PsyncPools` and `Request::PsyncObjects`.
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
    /// To `Request::Transfer`, with its descriptor.
    Transfer {
        /// Its number in this session.
        number: u64,
    },
    /// To `Request::Places`.
    Places {
        /// The page.
        items: Vec<PuddlePlace>,
        /// Whether there are more.
        more: bool,
    },
    /// To `Request::BeginImport`.
    Import {
        /// Its number in this session.
        number: u64,
    },
    /// To `Request::CommitImport` and `Request::ClonePool`: the pools in the order of the
    /// request.
    Imported {
        /// Their numbers, whether they have other addresses now, and how many puddles are to be
        /// rewritten.
        pools: Vec<(PoolId, bool, u64)>,
    },
    /// To `Request::Attend`, with its descriptor.
    Ear,
    /// To `Request::Backup`: there is a copy.
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
