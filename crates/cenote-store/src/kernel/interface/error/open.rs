//! Errors of opening a store.

use super::RESTORE_ALL;
use super::text::{ListedDamage, advice, joined};
use crate::kernel::interface::report::Damage;
use cenote_layout::error_kind::ErrorKind;
use cenote_layout::header::HeaderError;
use cenote_medium::{Durability, MediumError};
use std::time::Duration;

/// How long was waited, if the caller allowed any time for that.
fn after(waited: Duration) -> String {
    match waited.as_millis() {
        0 => String::new(),
        ms => format!(" after {ms} ms"),
    }
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
    #[error("{path} is in use by {holder}{}: close it there, or open with a longer lock_timeout",
            after(*waited))]
    Locked {
        /// The directory.
        path: String,
        /// The process that holds it, where the system tells.
        pid: Option<u32>,
        /// The holder, in words.
        holder: String,
        /// How long was waited.
        waited: Duration,
    },
    /// Files that were copied while a session had the store open, and that session goes on.
    #[error(
        "{path} is a copy of a store that {holder} has open: it was made file by file while \
         programs wrote the store, and may hold values that never existed; copy a store with \
         `cenote backup`, or close it first"
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
        "{path} is a copy of a store that was not closed, or was put back from one: its files are \
         of different moments; use a copy that `cenote backup` made, or open it with \
         CopyPolicy::CheckAndOpen (--accept-copy; `cenote adopt` checks it)"
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
        if *seen { "" } else { " (numbers of another container or an earlier boot)" })]
    Clients {
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
        /// What a program can do about it.
        kind: ErrorKind,
        /// What it said, or what became of the connection.
        detail: String,
    },
    /// The daemon that keeps the store gave no sign of life: it is stopped, say.
    #[error("{path}: the daemon gave no sign of life for {:.1} s: {why}", waited.as_secs_f64())]
    DaemonSilent {
        /// Its socket.
        path: String,
        /// How long.
        waited: Duration,
        /// What is seen of it, and what to do.
        why: String,
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
        ListedDamage(damage)
    )]
    Catalog {
        /// The directory.
        path: String,
        /// What is damaged.
        damage: Vec<Damage>,
    },
    /// Both files of the catalog are whole, and each was replaced by an older copy.
    #[error(
        "{path}: both files of the catalog were rolled back: they end with batch {found}, and the \
         superblock has seen batch {at_least}; restore the whole store from one copy, or open with \
         DamagePolicy::ReadOnly to look at what is left"
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
        ListedDamage(damage),
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
    #[error("invalid options for opening the store: {0}")]
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
