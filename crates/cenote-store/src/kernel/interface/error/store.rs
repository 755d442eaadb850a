//! Errors of operations of an open store.

use super::RESTORE_ALL;
use super::text::{ListedDamage, of_processes, plural_pages};
use crate::kernel::interface::mismatch::TypeMismatch;
use crate::kernel::interface::report::Damage;
use cenote_atrest::AtRestError;
use cenote_atrest::view::SealedError;
use cenote_journal::{JournalError, Stopped};
use cenote_layout::error_kind::ErrorKind;
use cenote_layout::id::Uuid;
use cenote_layout::types::TypeError;
use cenote_medium::MediumError;
use std::time::Duration;

const GIVE_UP: &str = "give up the journal and the psyncs in it (of pools: JournalPolicy::GiveUp \
                       or --give-up-journal; of objects: accept_damaged_journal)";

/// The holder that an error names while the daemon copies, moves or rewrites a pool: for a moment.
pub const BY_DAEMON: &str = "the daemon itself";

/// Why an operation on an open store failed. It has not happened.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum StoreError {
    /// The medium: a full disk, no permission, an I/O error.
    #[error(transparent)]
    Medium(MediumError),
    /// The store is not this session's any more. Nothing was written, and nothing will be.
    #[error(
        "{file} of this store was replaced or rewritten while it was open ({detail}), so the store \
         writes nothing more: close it, find the program that changed the file, and open the store \
         again"
    )]
    Fenced {
        /// The file.
        file: String,
        /// What is there instead.
        detail: &'static str,
    },
    /// The daemon that keeps the store refused, or cannot be reached.
    #[error("{detail}")]
    Refused {
        /// What a program can do about it.
        kind: ErrorKind,
        /// What it said, and what to do.
        detail: String,
    },
    /// The daemon that keeps the store gave no sign of life: it is stopped, say. The daemon may
    /// still carry out the request when it goes on; then it does so before the next request of this
    /// client.
    #[error(
        "{socket}: the daemon gave no sign of life for {:.1} s: {why}; the daemon may still carry \
         out the request",
        waited.as_secs_f64()
    )]
    DaemonSilent {
        /// Its socket.
        socket: String,
        /// How long.
        waited: Duration,
        /// What is seen of it, and what to do.
        why: String,
    },
    /// A pool's permissions do not allow it.
    #[error(
        "pool \"{name}\" may not be {what} by this user: ask its owner to change that (`cenote \
         chmod`, `cenote chown`)"
    )]
    Permission {
        /// The pool.
        name: String,
        /// What was wanted.
        what: &'static str,
    },
    /// Another process has a pool, and one of the two writes.
    #[error(
        "pool \"{name}\" is in use by {by}: one process may write a pool, or many read it; wait \
         until it has closed the store"
    )]
    PoolBusy {
        /// The pool.
        name: String,
        /// Its user: [`BY_DAEMON`](crate::BY_DAEMON), or a process.
        by: String,
    },
    /// A pool has moved, and this program does not find pointers.
    #[error(
        "pool \"{name}\" was imported or moved, and {puddles} of its puddles are still to be \
         rewritten: open it with a program that rewrites pointers, or finish it (cenote relocate)"
    )]
    RelocationPending {
        /// The pool.
        name: String,
        /// How many.
        puddles: u64,
    },
    /// A puddle that has moved could not be rewritten. It is as it was.
    #[error("puddle {puddle} has moved and was not rewritten: {detail}")]
    NotRewritten {
        /// The puddle.
        puddle: Uuid,
        /// Why.
        detail: String,
    },
    /// What is to be imported cannot be.
    #[error("nothing was imported: {detail}")]
    Import {
        /// Why, and what to do.
        detail: String,
    },
    /// What a daemon does not do for its clients.
    #[error("{what}: stop the daemon and open the store in this process")]
    NotHosted {
        /// What that is.
        what: String,
    },
    /// A copy of the store could not be made. There is none.
    #[error("no backup was made: {detail}")]
    Backup {
        /// What a program can do about it.
        kind: ErrorKind,
        /// Why.
        detail: String,
    },
    /// A copy of the store was made, and it is not known whether it survives a loss of power.
    #[error("the copy may be lost after a loss of power: {detail}")]
    BackupUnsynced {
        /// Why.
        detail: String,
    },
    /// No copy was made: clients of the daemon did not stand between two transactions in time.
    #[error("no backup was made: {} {}; end the long transaction or continue the stopped process, \
             and try again",
        if pids.len() == 1 { "this process" } else { "these processes" },
        of_processes(pids, *waited))]
    NotStill {
        /// Their processes.
        pids: Vec<u32>,
        /// How long they had.
        waited: core::time::Duration,
    },
    /// A daemon's client asked under a session that has ended.
    #[error("there is no session {client}: it has ended; connect again")]
    NoClient {
        /// Its identity.
        client: Uuid,
    },
    /// A daemon closes a store while clients are there.
    #[error(
        "{clients} clients are connected: the next daemon takes the store over, or recovery runs \
         when the clients have ended"
    )]
    Hosting {
        /// How many.
        clients: u64,
    },
    /// The store was opened read-only.
    #[error("the store is open read-only: open it with Access::ReadWrite to {what}")]
    ReadOnly {
        /// What was wanted.
        what: &'static str,
    },
    /// The pool handle is read-only.
    #[error("pool \"{name}\" is open read-only: open it with Access::ReadWrite to {what}")]
    PoolReadOnly {
        /// The pool.
        name: String,
        /// What was wanted.
        what: &'static str,
    },
    /// A name that no pool can have.
    #[error("{name:?} cannot name a pool: {reason}; choose another name")]
    PoolName {
        /// The name.
        name: String,
        /// Why not.
        reason: &'static str,
    },
    /// The name is taken.
    #[error(
        "there is a pool \"{name}\" already: open it, or choose another name (`--as` of an import)"
    )]
    PoolExists {
        /// The name.
        name: String,
    },
    /// The name is not known.
    #[error("there is no pool \"{name}\" in this store: create it first, or check the name")]
    PoolUnknown {
        /// The name.
        name: String,
    },
    /// The pool is open.
    #[error("pool \"{name}\" is in use: drop its handles first")]
    PoolInUse {
        /// The name.
        name: String,
    },
    /// Another client of the daemon, or the daemon itself, has a pool that has to be free: the one
    /// that was named, or one beside it that may point into it.
    #[error("pool \"{name}\" is in use by {by}: wait until it has closed the pool, or end it")]
    PoolHeld {
        /// The pool.
        name: String,
        /// Its user: [`BY_DAEMON`](crate::BY_DAEMON), or a process.
        by: String,
    },
    /// A name that no object can have.
    #[error("{name:?} cannot name an object: {reason}; choose another name")]
    ObjectName {
        /// The name.
        name: String,
        /// Why not.
        reason: &'static str,
    },
    /// The name of the object is taken.
    #[error("there is an object \"{name}\" already: attach it, or choose another name")]
    ObjectExists {
        /// The name.
        name: String,
    },
    /// Another process has the object attached, as the daemon knows.
    #[error("object \"{name}\" is attached for {} by process {pid}: wait until it is detached, \
            then try again", if *writing { "writing" } else { "reading" })]
    ObjectBusy {
        /// The object.
        name: String,
        /// Whether for writing.
        writing: bool,
        /// The process.
        pid: u32,
    },
    /// An object's permission bits do not allow it to a daemon's client.
    #[error(
        "object \"{name}\" may not be {what} by user {uid}: its mode is {mode:o}, its owner \
         {owner}; let the owner change the mode"
    )]
    ObjectDenied {
        /// The object.
        name: String,
        /// What may not be done with it.
        what: &'static str,
        /// The user that asked.
        uid: u32,
        /// Its permission bits.
        mode: u32,
        /// Its owner.
        owner: u32,
    },
    /// The name of the object is not known.
    #[error("there is no object \"{name}\" in this store: create it first, or check the name")]
    ObjectUnknown {
        /// The name.
        name: String,
    },
    /// A length that no object can have.
    #[error("an object cannot have {len} bytes: take 1 byte to 64 TiB")]
    ObjectLen {
        /// The length.
        len: u64,
    },
    /// The file of an object is missing, or not its own.
    #[error("object \"{name}\" is damaged: {detail}")]
    ObjectDamaged {
        /// The name.
        name: String,
        /// What is wrong.
        detail: String,
    },
    /// Parts of the pool are damaged and the policy is to refuse.
    #[error(
        "pool \"{name}\" is damaged: {}; open the store with DamagePolicy::ReadOnly to read what \
         is left",
        ListedDamage(damage)
    )]
    PoolDamaged {
        /// The name.
        name: String,
        /// What is damaged.
        damage: Vec<Damage>,
    },
    /// A log that may concern the pool could not be applied.
    #[error(
        "pool \"{name}\" may hold half a transaction, because a log is set aside: {}; open it \
         read-only",
        ListedDamage(damage)
    )]
    PoolLogDamaged {
        /// The name.
        name: String,
        /// What is damaged.
        damage: Vec<Damage>,
    },
    /// Power failed while the pool was written at a level that does not cover it.
    #[error(
        "pool \"{name}\" was open for writing when power failed, and may be torn: durability level \
         process does not cover a loss of power; to use the pool nevertheless, open the store with \
         PowerLossPolicy::ReadOnly or AsIs"
    )]
    PoolNotCovered {
        /// The name.
        name: String,
    },
    /// Logs of the pool's last transactions were discarded, or its journal of psyncs given up.
    #[error(
        "pool \"{name}\" may hold half a transaction, because logs were discarded, or half a \
         psync, because a journal was given up: restore it from a backup or an archive, remove it, \
         open it with the unsafe Store::open_torn, or declare it whole (the unsafe \
         Store::declare_whole, `cenote logs declare-whole`)"
    )]
    PoolTorn {
        /// The name.
        name: String,
    },
    /// A copy or a move of a pool whose heap lists its blocks, and is damaged.
    #[error(
        "the heap of pool \"{name}\" is damaged, and the pool is not copied or moved: {detail}"
    )]
    HeapDamaged {
        /// The name.
        name: String,
        /// What is damaged, and where.
        detail: String,
    },
    /// A psync of a pool that has no primary.
    #[error(
        "pool \"{name}\" is in direct mode, which has no psync: its commits are durable without \
         one, up to the store's level; to use psync, create a pool with PoolMode::Shadowed"
    )]
    NotShadowed {
        /// The name.
        name: String,
    },
    /// The key or the protection of a pool: no key, a wrong one, a header that was changed.
    #[error("pool \"{name}\": {source}")]
    AtRest {
        /// The pool.
        name: String,
        /// What is wrong.
        source: Box<AtRestError>,
    },
    /// Sealed pages of a pool cannot be had: one is damaged, or there is no memory for them.
    #[error("{source}")]
    Sealed {
        /// The pool.
        name: String,
        /// What is wrong.
        source: Box<SealedError>,
    },
    /// Pages of a pool's file cannot be had: it was cut short, or its disk fails.
    #[error("pool \"{pool}\": page {page} of puddle {puddle} (number {index}) cannot be read, {} \
            in all: its file was cut short, or its disk fails; export the other pools (`cenote \
            export`), or restore the whole store from one copy", plural_pages(*.count))]
    Unreadable {
        /// The pool.
        pool: String,
        /// The puddle.
        puddle: Uuid,
        /// Its number in the pool.
        index: u32,
        /// The first page, of 4096 bytes from the start of the puddle's file.
        page: u64,
        /// Pages that were asked for and cannot be had.
        count: u64,
    },
    /// A key was given, for pool or store, and the pool has none: it may have been replaced.
    #[error(
        "a key was given, and pool \"{name}\" has none: it may have been replaced; use no key, or \
         accept_unprotected, if that is meant"
    )]
    NotProtected {
        /// The pool.
        name: String,
    },
    /// What cannot be done with a pool that is protected at rest.
    #[error(
        "pool \"{name}\" is protected at rest, and does not allow this: {what}; use the pool in \
         shadowed mode in a store of this process, or copy its values into a pool without \
         protection"
    )]
    Protected {
        /// The pool.
        name: String,
        /// What was asked for.
        what: &'static str,
    },
    /// What cannot be done with a pool whose data are write-protected, or are to be.
    #[error("pool \"{name}\" cannot have write-protected data and this: {what}; {instead}")]
    WriteProtected {
        /// The pool.
        name: String,
        /// What was asked for.
        what: &'static str,
        /// What to do.
        instead: &'static str,
    },
    /// The pool is older than an anchor that a program kept of it.
    #[error(
        "pool \"{name}\" was replaced by an earlier state: {detail}; find out which program or \
             user did that"
    )]
    PoolRolledBack {
        /// The pool.
        name: String,
        /// What is missing.
        detail: String,
    },
    /// Pools of several stores in one psync.
    #[error("one psync takes pools of one store only: psync the pools of each store separately")]
    NotTogether,
    /// One psync is larger than the journal may become.
    #[error(
        "a psync of {needed} bytes is larger than half the journal may be ({limit} bytes): psync \
         more often"
    )]
    PsyncTooLarge {
        /// Bytes of its record.
        needed: u64,
        /// Most bytes of a record.
        limit: u64,
    },
    /// A committed psync failed to write a primary. The store is poisoned; an open completes it.
    #[error(
        "the psync is committed, but {name} was not written: {source}; close the store and open it \
         again"
    )]
    NotCopied {
        /// The primary.
        name: String,
        /// Why.
        source: Box<MediumError>,
    },
    /// Records of psyncs are lost, or a primary that they change.
    #[error(
        "the journal of psyncs, {file}, cannot be used: {detail}; {}, or {}",
        RESTORE_ALL,
        GIVE_UP
    )]
    JournalDamaged {
        /// The journal's file.
        file: &'static str,
        /// What is wrong.
        detail: String,
    },
    /// A journal of psyncs is not the one that the superblock names. Nothing of it was replayed.
    #[error(
        "{file} cannot be used: {detail}; restore the whole store from one copy, or {}",
        GIVE_UP
    )]
    JournalRolledBack {
        /// The journal's file.
        file: &'static str,
        /// What is wrong.
        detail: String,
    },
    /// The pool would grow beyond its limit.
    #[error(
        "pool \"{name}\" cannot take {wanted} bytes: it has {used} of at most {size_max}; remove \
         values, or copy them into a pool with a higher limit"
    )]
    PoolFull {
        /// The name.
        name: String,
        /// Bytes wanted.
        wanted: u64,
        /// Bytes that it has.
        used: u64,
        /// Most bytes that it may have.
        size_max: u64,
    },
    /// No room in the window.
    #[error(
        "{wanted} bytes do not fit into the window of {window_len} bytes, of which {free} are \
         free: remove pools, or use a store with a larger window"
    )]
    WindowFull {
        /// Bytes wanted.
        wanted: u64,
        /// Bytes of the window.
        window_len: u64,
        /// Bytes that are free, perhaps not in one piece.
        free: u64,
    },
    /// A size that no puddle can have.
    #[error("a puddle cannot have {size} bytes: {reason}; choose another size")]
    PuddleSize {
        /// The size.
        size: u64,
        /// Why not.
        reason: &'static str,
    },
    /// Freed blocks of a wear heap cannot wait for so long.
    #[error(
        "pool \"{name}\" cannot have a wear heap whose freed blocks wait for {wait_ms} ms: choose \
         up to 2^30 ms (12 days)"
    )]
    WearWait {
        /// Its name.
        name: String,
        /// What was asked for.
        wait_ms: u32,
    },
    /// A puddle that is damaged cannot be mapped.
    #[error("{0}")]
    PuddleDamaged(Damage),
    /// A type is known with another layout.
    #[error(transparent)]
    TypeMismatch(#[from] Box<TypeMismatch>),
    /// A type whose description is too long for a message to the daemon that keeps the store.
    #[error(
        "type {name} takes {len} bytes to describe, and a message to the daemon has {most} at \
         most: split the type into several, or use an embedded store"
    )]
    TypeTooLong {
        /// Its name; the first 200 characters.
        name: String,
        /// Bytes of a message with it.
        len: usize,
        /// Most bytes of a message.
        most: usize,
    },
    /// A type that makes no sense.
    #[error(transparent)]
    Type(#[from] TypeError),
    /// The log space has no room for a further log.
    #[error(
        "this session has {logs} log segments, as many as its log space has room for: end some \
         transactions first"
    )]
    TooManyLogs {
        /// How many.
        logs: u64,
    },
    /// Logs are in use.
    #[error("{logs} logs are in use: end their transactions before closing the store")]
    LogsInUse {
        /// How many.
        logs: u64,
    },
    /// Other handles of the store are alive.
    #[error("the store has {handles} other handles: it is closed when the last of them is dropped")]
    InUse {
        /// How many.
        handles: usize,
    },
    /// A sync failed before: what is on the medium is not known.
    #[error(
        "the store is poisoned and acknowledges nothing more: {reason}; close it, check the \
         medium, open it again"
    )]
    Poisoned {
        /// What failed.
        reason: String,
    },
    /// A page of the metadata of a pool's heap was lost while the store was open.
    #[error("{0}")]
    MetadataLost(crate::kernel::interface::lost_page::LostPage),
    /// A page of a log was lost while the store was open.
    #[error("{0}")]
    LogLost(crate::kernel::interface::lost_page::LostLog),
    /// This process is a fork of the one that opened the store.
    #[error(
        "this process was forked from the one that opened the store, and has no access to it: open \
         the store again in this process"
    )]
    Forked,
}

impl StoreError {
    /// Whether space on the medium was lacking.
    #[must_use]
    pub fn is_no_space(&self) -> bool {
        matches!(self, Self::Medium(error) if error.is_no_space())
    }
}

impl From<MediumError> for StoreError {
    fn from(error: MediumError) -> Self {
        match error {
            MediumError::Replaced { name, detail } => {
                Self::Fenced { file: name.to_string(), detail }
            }
            error => Self::Medium(error),
        }
    }
}

impl From<JournalError> for StoreError {
    fn from(error: JournalError) -> Self {
        match error {
            JournalError::Medium(error) => error.into(),
            JournalError::TooLarge { needed, limit } => Self::PsyncTooLarge { needed, limit },
            JournalError::Stopped(Stopped::Forked) => Self::Forked,
            JournalError::Stopped(Stopped::Poisoned(reason)) => Self::Poisoned { reason },
            other => Self::Poisoned { reason: other.to_string() },
        }
    }
}
