//! Errors of the store: what went wrong, and what to do then. Invariant: an operation that is
//! refused changes nothing. Damage and misuse are different errors.

use crate::kernel::error_text::{Listed, advice, joined, of_processes, plural_pages};
use crate::kernel::mismatch::TypeMismatch;
use crate::kernel::report::Damage;
use cenote_atrest::AtRestError;
use cenote_journal::{JournalError, Stopped};
use cenote_layout::header::HeaderError;
use cenote_layout::id::Uuid;
use cenote_layout::types::TypeError;
use cenote_medium::{Durability, MediumError};
use cenote_sealed::SealedError;
use std::time::Duration;

/// What to do where no pool can be had. One file of a copy beside the others would mix moments.
const RESTORE_ALL: &str = "restore the whole store from one copy (`cenote backup` makes one)";
const GIVE_UP: &str = "give the journal up, and what it has of psyncs (of pools \
    JournalPolicy::GiveUp, --give-up-journal; of objects accept_damaged_journal)";

/// The holder that an error names while the daemon copies, moves or rewrites a pool: for a moment.
pub const BY_DAEMON: &str = "the daemon itself";

/// Why a directory is not formatted. It is as it was before.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum FormatError {
    /// There is a store already.
    #[error("{path} holds a store already: remove it first, or choose another directory")]
    Exists {
        /// The directory.
        path: String,
    },
    /// Files of a store, and no superblock. As [`OpenError::SuperblockMissing`].
    #[error("{path} holds files of a store ({found}), but no file \"superblock\": {}", RESTORE_ALL)]
    SuperblockMissing {
        /// The directory.
        path: String,
        /// One of those files.
        found: String,
    },
    /// There are files that belong to no store.
    #[error("{path} is not empty ({found}): choose an empty directory")]
    NotEmpty {
        /// The directory.
        path: String,
        /// One of the names that are there.
        found: String,
    },
    /// The options make no sense.
    #[error("the store cannot be formatted so: {0}")]
    Options(String),
    /// Another process is formatting or using it.
    #[error("{path} is in use by {holder}: wait until it is done")]
    Locked {
        /// The directory.
        path: String,
        /// Who.
        holder: String,
    },
    /// No place for the window.
    #[error("no {len} bytes of address space are free for the window: choose a smaller window_len")]
    NoWindow {
        /// Bytes that were wanted.
        len: u64,
    },
    /// The medium.
    #[error("{path}: {source}")]
    Medium {
        /// The directory.
        path: String,
        /// What it said.
        source: Box<MediumError>,
    },
}

/// Why a store is not opened. The medium is unchanged, or has a part of a recovery to be repeated.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum OpenError {
    /// No superblock.
    #[error(
        "{path} is not a store: it has no file \"superblock\"; check the path, or format it first"
    )]
    NotAStore {
        /// The directory.
        path: String,
    },
    /// Files of a store but no superblock.
    #[error("{path} is not a store yet: its format was interrupted; format it again")]
    FormatInterrupted {
        /// The directory.
        path: String,
    },
    /// Puddles of a store but no superblock: it was removed, or not copied.
    #[error("{path} holds files of a store ({found}), but no file \"superblock\": {}", RESTORE_ALL)]
    SuperblockMissing {
        /// The directory.
        path: String,
        /// One of those files.
        found: String,
    },
    /// No copy of the superblock can be used: another program's, a newer version, a new feature.
    #[error("{path}: {source}{}", advice(source))]
    Superblock {
        /// The directory.
        path: String,
        /// Why.
        source: HeaderError,
    },
    /// Both copies of the superblock are damaged.
    #[error(
        "{path}: both copies of the superblock are damaged ({first}; {second}): {}",
        RESTORE_ALL
    )]
    SuperblockLost {
        /// The directory.
        path: String,
        /// What is wrong with copy 0.
        first: HeaderError,
        /// What is wrong with copy 1.
        second: HeaderError,
    },
    /// Another process has the store open.
    #[error("{path} is in use by {holder}; waited {} ms: close it there, or open with a longer \
            lock_timeout", waited.as_millis())]
    Locked {
        /// The directory.
        path: String,
        /// The process that holds it, where the system tells.
        pid: Option<u32>,
        /// Who, in words.
        holder: String,
        /// How long was waited.
        waited: Duration,
    },
    /// Files that were copied while a session had the store open, and that session goes on.
    #[error(
        "{path} is a copy of a store that {holder} has open: it was made file by file while the store was written, and may hold what never was; copy a store with `cenote backup`, or close it first"
    )]
    CopyOfOpen {
        /// The directory.
        path: String,
        /// The process that has the original open.
        pid: u32,
        /// That process, in words.
        holder: String,
    },
    /// Files that were copied while a session had the store open.
    #[error(
        "{path} is a copy of a store that was not closed, or was put back from one: its files are of different moments; use a copy that `cenote backup` made, or open it with CopyPolicy::CheckAndOpen (--accept-copy; `cenote adopt` makes it a store of its own)"
    )]
    Copied {
        /// The directory.
        path: String,
    },
    /// A read-only open makes no lock file, and without one nothing keeps a writer out.
    #[error(
        "{path} has no file \"lock\": open the store for writing once, or make an empty file of \
         that name"
    )]
    LockMissing {
        /// The directory.
        path: String,
    },
    /// To be written, but nothing there can be.
    #[error("{path} cannot be written: the medium is read-only; open the store read-only")]
    ReadOnlyMedium {
        /// The directory.
        path: String,
    },
    /// Clients of a daemon that has ended go on with their mappings.
    #[error("{path} is in use by clients of a daemon that has ended: processes {}{}; start cenoted \
            again where it ran, or end them",
        joined(pids),
        if *seen { "" } else { " by the numbers of the container or the boot that they run in" })]
    Guests {
        /// The directory.
        path: String,
        /// Their process numbers, in the namespace of the daemon that let them in.
        pids: Vec<u32>,
        /// This process sees all of them, under these numbers.
        seen: bool,
    },
    /// The daemon that keeps the store did not let this process in.
    #[error("{path}: {detail}")]
    Daemon {
        /// The directory, or the socket where that is all that is known.
        path: String,
        /// What it said, or what became of the connection.
        detail: String,
    },
    /// The window's addresses are taken.
    #[error("{path}: the window {base:#x}..{:#x} is taken in this process by {by}: close what uses \
         it, or open this store with WindowPolicy::Move and a rewriter", base.saturating_add(*len))]
    WindowTaken {
        /// The directory.
        path: String,
        /// First address.
        base: u64,
        /// Bytes.
        len: u64,
        /// What lies there.
        by: String,
    },
    /// The window's addresses are taken, and the store cannot open in another window now.
    #[error("{path}: the window {base:#x}..{:#x} is taken in this process by {by}, and the store \
            cannot move, because {why}; open it once in a process in which the window is \
            free", base.saturating_add(*len))]
    WindowStays {
        /// The directory.
        path: String,
        /// First address.
        base: u64,
        /// Bytes.
        len: u64,
        /// What lies there.
        by: String,
        /// What keeps the store where it is.
        why: String,
    },
    /// This process uses the window of a daemon's store, which does not move for one client.
    #[error("{path}: the daemon's store has the window {base:#x}..{:#x}, which is taken in this \
         process by {by}: connect before that is opened; a store that is opened afterwards moves \
         by itself", base.saturating_add(*len))]
    WindowOfDaemon {
        /// The directory.
        path: String,
        /// First address.
        base: u64,
        /// Bytes.
        len: u64,
        /// What lies there.
        by: String,
    },
    /// Records of the catalog are lost in both files.
    #[error(
        "{path}: the catalog is damaged in both files: {}; open with DamagePolicy::ReadOnly or \
         SkipDamaged to use what is left",
        Listed(damage)
    )]
    Catalog {
        /// The directory.
        path: String,
        /// What is damaged.
        damage: Vec<Damage>,
    },
    /// Both files of the catalog are whole, and each was replaced by an older copy.
    #[error(
        "{path}: both files of the catalog were rolled back: they end with batch {found}, and the superblock has seen batch {at_least}; restore the whole store from one copy, or open with DamagePolicy::ReadOnly to look at what is left"
    )]
    CatalogRolledBack {
        /// The directory.
        path: String,
        /// The last batch that is there.
        found: u64,
        /// A batch that was there.
        at_least: u64,
    },
    /// The superblock was put back: the store that it calls closed has gone on since.
    #[error(
        "{path}: the superblock was rolled back: it was closed with batch {named} of the catalog, \
         which has batch {found}; restore the whole store from one copy, or open with \
         DamagePolicy::ReadOnly to look at what is left"
    )]
    SuperblockRolledBack {
        /// The directory.
        path: String,
        /// The batch that the superblock names.
        named: u64,
        /// The last batch that is there.
        found: u64,
    },
    /// Nothing of the catalog is left.
    #[error(
        "{path}: neither file of the catalog has a whole record: {}; {}",
        Listed(damage),
        RESTORE_ALL
    )]
    CatalogLost {
        /// The directory.
        path: String,
        /// What is damaged.
        damage: Vec<Damage>,
    },
    /// More durability than there is.
    #[error("{path}: durability level {wanted} is not reached here, only {given}: {note}")]
    Durability {
        /// The directory.
        path: String,
        /// What was asked for.
        wanted: Durability,
        /// What the medium gives.
        given: Durability,
        /// Why.
        note: String,
    },
    /// The options make no sense.
    #[error("the store cannot be opened so: {0}")]
    Options(String),
    /// The medium: a full disk, no permission, an I/O error.
    #[error("{path}: {source}")]
    Medium {
        /// The directory.
        path: String,
        /// What it said.
        source: Box<MediumError>,
    },
}

/// Why an operation on an open store failed. It has not happened.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum StoreError {
    /// The medium: a full disk, no permission, an I/O error.
    #[error(transparent)]
    Medium(MediumError),
    /// The store is not this session's any more. Nothing was written, and nothing will be.
    #[error(
        "{file} of this store was replaced or rewritten while it was open ({detail}), so nothing more is written: close the store, find the program that did that, and open it again"
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
        /// What it said, and what to do.
        detail: String,
    },
    /// A pool's permissions do not allow it.
    #[error(
        "pool \"{name}\" may not be {what} by this user: its owner can change that (cenote chmod, \
         cenote chown)"
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
        /// Who: [`BY_DAEMON`](crate::BY_DAEMON), or a process.
        by: String,
    },
    /// A pool has moved, and this program does not find pointers.
    #[error(
        "pool \"{name}\" was imported or moved, and {puddles} of its puddles are still to be rewritten: open it with a program that rewrites pointers, or finish it (cenote relocate)"
    )]
    RelocationDue {
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
        /// Why.
        detail: String,
    },
    /// A copy of the store was made, and it is not known whether it survives a loss of power.
    #[error("the copy may be gone after a loss of power: {detail}")]
    BackupUnsynced {
        /// Why.
        detail: String,
    },
    /// No copy was made: clients of the daemon did not stand between two transactions in time.
    #[error("no backup was made: {} {}; see what they do (a long transaction, a stopped process), \
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
    NoGuest {
        /// Its identity.
        client: Uuid,
    },
    /// A daemon closes a store while clients are there.
    #[error(
        "{guests} clients are there: the store is taken over by the next daemon, or recovered when \
         they have ended"
    )]
    Hosting {
        /// How many.
        guests: u64,
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
    /// A name that no object can have.
    #[error("{name:?} cannot name an object: {reason}")]
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
        /// Who asked.
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
        Listed(damage)
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
        Listed(damage)
    )]
    PoolLogDamaged {
        /// The name.
        name: String,
        /// What is damaged.
        damage: Vec<Damage>,
    },
    /// Power failed while the pool was written at a level that does not cover it.
    #[error(
        "pool \"{name}\" was open for writing when power failed, at durability level process, which does not cover that: it may be torn; open the store with PowerLossPolicy::ReadOnly or AsIs to use it all the same"
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
    /// A psync of a pool that has no primary.
    #[error(
        "pool \"{name}\" is in direct mode: its transactions are as durable as they can be there without psync; create a pool with PoolMode::Shadowed to psync it"
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
        "pool \"{name}\" is protected at rest: {what} cannot be; copy its values into a pool without protection, if they may lie there, or use it in shadowed mode in a store of this process"
    )]
    Protected {
        /// The pool.
        name: String,
        /// What was asked for.
        what: &'static str,
    },
    /// The pool is older than an anchor that a program kept of it.
    #[error("pool \"{name}\" was put back to an earlier state: {detail}; find out by whom")]
    PoolRolledBack {
        /// The pool.
        name: String,
        /// What is missing.
        detail: String,
    },
    /// Pools of several stores in one psync.
    #[error("pools are psynced together only if they are of one store")]
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
    #[error("pool \"{name}\" cannot take {wanted} bytes: it has {used} of at most {size_max}")]
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
        "{wanted} bytes do not fit into the window of {window_len} bytes, of which {free} are free: remove pools, or use a store with a larger window"
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
    #[error("a puddle cannot have {size} bytes: {reason}")]
    PuddleSize {
        /// The size.
        size: u64,
        /// Why not.
        reason: &'static str,
    },
    /// A puddle that is damaged cannot be mapped.
    #[error("{0}")]
    PuddleDamaged(Damage),
    /// A type is known with another layout.
    #[error(transparent)]
    TypeMismatch(#[from] Box<TypeMismatch>),
    /// A type whose description is too long for a message to the daemon that keeps the store.
    #[error(
        "type {name} takes {len} bytes to describe, and a message to the daemon has {most} at most: split the type into several, or use an embedded store"
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
    MetadataLost(crate::kernel::lost_page::LostPage),
    /// A page of a log was lost while the store was open.
    #[error("{0}")]
    LogLost(crate::kernel::lost_page::LostLog),
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
