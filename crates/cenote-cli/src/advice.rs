//! What a user of commands reads where the library reports an error.
//!
//! Errors of the library are typed, and their texts advise programs: they name options of
//! `Store::open_with`, policies and handles. Here, and nowhere else, such an error gets the text of
//! a command. An error whose text suits programs and users keeps it. A test compares this file with
//! the library: each text there that names its interface has its variant here.

use crate::at_rest_modes::name_of;
use crate::failure::{Failure, STORE, word};
use cenote::{ArchivingError, CopyRefused, Error, HeapKind, ReclaimRefused};
use cenote_atrest::view::SealedError;
use cenote_layout::wear::WAIT_MS_MAX;
use cenote_medium::MediumError;
use cenote_object::ObjectError;
use cenote_store::{AtRestError, Damage, FormatError, OpenError, StoreError};
use core::time::Duration;
use std::path::{Path, PathBuf};

const RESTORE_ALL: &str = "restore the whole store from one copy (`cenote backup` makes one)";

/// The first few of a list.
fn listed(damage: &[Damage]) -> String {
    let mut text = damage.iter().take(3).map(damage_text).collect::<Vec<_>>().join("; ");
    if damage.len() > 3 {
        text += &format!("; and {} more", damage.len() - 3);
    }
    text
}

/// A piece of damage beside the name of its pool.
pub(crate) fn damage_text(damage: &Damage) -> String {
    match damage {
        Damage::Puddle { uuid, pool, index, detail } if pool.0 != 0 => {
            format!("puddle {index} ({uuid}): {detail}")
        }
        damage => damage.to_string(),
    }
}

/// What is wrong with the key or the protection of what was named before.
pub(crate) fn at_rest(error: &AtRestError) -> String {
    match error {
        AtRestError::NoKey { mode, .. } => {
            let mode = name_of(*mode);
            format!("it is protected ({mode}): give its key with --key-file or --passphrase-file")
        }
        AtRestError::WrongKey { .. } => {
            "the given key is not its key: give the right one with --key-file or --passphrase-file"
                .into()
        }
        AtRestError::WrongKeyKind { passphrase: true, .. } => {
            "it is protected by a passphrase, and a key was given: use --passphrase-file".into()
        }
        AtRestError::WrongKeyKind { passphrase: false, .. } => {
            "it is protected by a key, and a passphrase was given: use --key-file".into()
        }
        AtRestError::KeyNotUsed { mode, .. } => format!(
            "a key was given, and its protection ({}) has none: leave out --key-file and \
             --passphrase-file",
            name_of(*mode)
        ),
        AtRestError::NothingToRekey { mode, .. } => {
            format!("its protection ({}) has no key, so there is no key to change", name_of(*mode))
        }
        AtRestError::Header { source, .. } => {
            format!("its protection header cannot be used: {source}; {RESTORE_ALL}")
        }
        error => error.to_string(),
    }
}

fn sealed(error: &SealedError) -> String {
    match error {
        SealedError::AtRest { what, source } => format!("{what}: {}", at_rest(source)),
        error => error.to_string(),
    }
}

/// Where the daemon with this number has its socket, if its command line says so.
fn socket_of(pid: u32) -> Option<PathBuf> {
    let line = std::fs::read(format!("/proc/{pid}/cmdline")).ok()?;
    let socket = socket_in(&line)?;
    // As the daemon sees it.
    let at = std::fs::read_link(format!("/proc/{pid}/cwd")).ok()?;
    Some(at.join(socket))
}

/// The socket in a daemon's command line; `None` for one of another program.
fn socket_in(line: &[u8]) -> Option<PathBuf> {
    let words: Vec<&str> = line.split(|byte| *byte == 0).flat_map(core::str::from_utf8).collect();
    let program = Path::new(words.first()?).file_name()?;
    if program != "cenoted" {
        return None;
    }
    let mut rest = words.iter().skip(1);
    while let Some(word) = rest.next() {
        if let Some(path) = word.strip_prefix("--socket=") {
            return Some(path.into());
        }
        if *word == "--socket" {
            return rest.next().map(PathBuf::from);
        }
    }
    None
}

/// A store that another process has open.
fn locked(path: &str, pid: Option<u32>, holder: &str, waited: Duration) -> String {
    if let Some(socket) = pid.and_then(socket_of) {
        return format!(
            "{path} is in use by a daemon, {holder}: give its socket, {}, instead of the directory \
             ({}), or stop the daemon",
            socket.display(),
            crate::opening::THROUGH_A_DAEMON
        );
    }
    match waited.as_millis() {
        0..100 => {
            format!("{path} is in use by {holder}: end that process, or wait with --wait SECONDS")
        }
        _ => format!(
            "{path} is still in use by {holder} after {:.1} s: end that process, or wait longer",
            waited.as_secs_f64()
        ),
    }
}

fn copy_of_open(path: &str, holder: &str) -> String {
    format!(
        "{path} is a copy of a store that {holder} has open, made file by file while programs \
         could write the store: it may hold values that never existed; make another copy with \
         `cenote backup`, or close the store and copy it again"
    )
}

/// A store whose daemon has ended before its clients.
fn hosted_clients(path: &str, pids: &[u32], seen: bool) -> String {
    let pids: Vec<String> = pids.iter().map(u32::to_string).collect();
    let where_from = match seen {
        true => "",
        false => " (numbers of another container or an earlier boot)",
    };
    format!(
        "{path} is in use by clients of a daemon that has ended: processes {}{where_from}; start \
         cenoted again where it ran, or end them",
        pids.join(", ")
    )
}

impl From<OpenError> for Failure {
    fn from(error: OpenError) -> Self {
        match error {
            OpenError::Locked { path, pid, holder, waited } => {
                Self::InUse(locked(&path, pid, &holder, waited))
            }
            OpenError::NotAStore { path } => {
                // A directory with other files takes no store.
                let is_empty = std::fs::read_dir(&path).is_ok_and(|mut all| all.next().is_none());
                let place = if is_empty { path.as_str() } else { "NEW-DIRECTORY" };
                Self::Failed(format!(
                    "{path} is not a store: it has no file \"superblock\": check the path, or make \
                     a store with `cenote format {place}`"
                ))
            }
            OpenError::ReadOnlyMedium { path } => Self::Failed(format!(
                "{path} cannot be written: it is mounted read-only, or this user may not write to \
                 it: make it writable, or use a command that only reads (ls, info, check, dump, \
                 stats)"
            )),
            OpenError::Catalog { path, damage } => Self::Failed(format!(
                "{path}: the catalog is damaged in both files: {}: look with `cenote check \
                 {path}`; restore the whole store from one copy (`cenote backup` makes one), or \
                 copy its pools out with `cenote export`",
                listed(&damage)
            )),
            OpenError::CatalogRolledBack { path, found, at_least } => Self::Failed(format!(
                "{path}: both files of the catalog were rolled back: they end with batch {found}, \
                 and there was a batch {at_least}: look with `cenote check {path}`, and restore \
                 the whole store from one copy"
            )),
            OpenError::SuperblockRolledBack { path, named, found } => Self::Failed(format!(
                "{path}: the superblock was rolled back: it was closed with batch {named} of the \
                 catalog, which has batch {found}: look with `cenote check {path}`, and restore \
                 the whole store from one copy"
            )),
            OpenError::WindowTaken { path, base, by, .. } => Self::Failed(format!(
                "{path}: the store's addresses, from {base:#x} on, are taken in this process by \
                 {by}: run the command again"
            )),
            OpenError::Clients { path, pids, seen } => {
                Self::InUse(hosted_clients(&path, &pids, seen))
            }
            OpenError::CopyOfOpen { path, holder, .. } => Self::InUse(copy_of_open(&path, &holder)),
            OpenError::Copied { path } => Self::Failed(format!(
                "{path} is a copy of a store that was not closed, or was put back from one: its \
                 files may be of different moments: {}; or only look at it, with --accept-copy",
                crate::copies::ways_out(&path)
            )),
            OpenError::DaemonSilent { .. } => {
                Self::Failed(format!("{error} (--wait SECONDS sets the limit)"))
            }
            OpenError::Daemon { path, detail, .. } => Self::Failed(format!(
                "{path}: {detail}: is cenoted running? `cenoted --store DIR --socket {path}` \
                 starts it"
            )),
            OpenError::Medium { path, source } => {
                Self::from(*source).in_store(Some(Path::new(&path)))
            }
            error => Self::failed(error),
        }
    }
}

impl From<FormatError> for Failure {
    fn from(error: FormatError) -> Self {
        match error {
            FormatError::Locked { .. } => Self::InUse(error.to_string()),
            FormatError::NoWindow { len } => Self::Failed(format!(
                "the address space has no {} free for the window: choose a smaller --window-size, \
                 or raise the limit (ulimit -v)",
                crate::units::bytes(len)
            )),
            FormatError::Medium { path, source } => {
                Self::from(*source).in_store(Some(Path::new(&path)))
            }
            error => Self::failed(error),
        }
    }
}

impl From<StoreError> for Failure {
    fn from(error: StoreError) -> Self {
        match error {
            StoreError::Medium(error) => error.into(),
            StoreError::PoolBusy { .. }
            | StoreError::PoolHeld { .. }
            | StoreError::ObjectBusy { .. } => Self::InUse(error.to_string()),
            StoreError::PoolInUse { name } => Self::InUse(format!(
                "pool \"{name}\" is in use by a program: end that program first (`cenote top \
                 SOCKET` lists a daemon's clients, and their pools)"
            )),
            error => Self::Failed(of_store(error)),
        }
    }
}

/// Damage that a checksum or a length shows has its advice with it. What this user may not read is
/// no reason to restore or remove anything.
fn pool_damaged(name: &str, damage: &str) -> String {
    if damage.contains("permission denied") {
        return format!("pool \"{name}\" cannot be read: {damage}");
    }
    let restore = match damage.contains("restore the whole store") {
        true => String::new(),
        false => format!("{RESTORE_ALL}, "),
    };
    let pool = word(name);
    format!(
        "pool \"{name}\" is damaged: {damage}; {restore}or remove the pool with `cenote rm {STORE} \
         {pool}`"
    )
}

/// A journal of psyncs that cannot be used. Commands that can give up that of objects say so.
fn journal(file: &str, detail: &str) -> String {
    let (of, other) = match file {
        "journal" => ("objects", "copy the pools out with `cenote export`"),
        _ => ("pools", "give up the journal and the psyncs in it with --give-up-journal"),
    };
    format!("the journal of {of}, {file}, cannot be used: {detail}; {RESTORE_ALL}, or {other}")
}

/// What to do about a pool that may be torn.
pub(crate) fn answer_for(pool: &str) -> String {
    let pool = word(pool);
    format!(
        "restore it from a backup or an archive, remove it with `cenote rm {STORE} {pool}`, or \
         declare it whole with `cenote logs declare-whole {STORE} {pool}`"
    )
}

/// What is wrong with a pool, or with the rest of the store.
fn of_store(error: StoreError) -> String {
    match error {
        StoreError::PoolDamaged { name, damage } => pool_damaged(&name, &listed(&damage)),
        StoreError::PoolLogDamaged { name, damage } => format!(
            "pool \"{name}\" may hold half a transaction, because a log is set aside: {}: `cenote \
             logs list {STORE}` names the log, and `cenote logs apply` and `cenote logs discard` \
             decide about it",
            listed(&damage)
        ),
        StoreError::PoolNotCovered { name } if crate::copies::is_open() => format!(
            "pool \"{name}\" was open for writing when the store was copied, and may be torn: {}",
            crate::copies::ways_out(&STORE.to_string())
        ),
        StoreError::PoolNotCovered { name } => format!(
            "pool \"{name}\" was open for writing when power failed or the store was copied, and \
             may be torn: {}",
            answer_for(&name)
        ),
        StoreError::PoolTorn { name } => format!(
            "pool \"{name}\" may hold half a transaction, because logs were discarded, or half a \
             psync, because a journal was given up: {}",
            answer_for(&name)
        ),
        StoreError::PoolExists { name } => format!(
            "there is a pool \"{name}\" already: choose another name (an import takes --as), or \
             remove that one with `cenote rm {STORE} {}`",
            word(&name)
        ),
        StoreError::PoolUnknown { name } => {
            format!(
                "there is no pool \"{name}\" in this store: `cenote ls {STORE}` lists those that \
                 there are"
            )
        }
        StoreError::PuddleSize { size, reason } => {
            format!("a pool cannot begin with {size} bytes: {reason}: choose another --size")
        }
        StoreError::WearWait { name, wait_ms } => format!(
            "freed blocks of pool \"{name}\" cannot wait for {wait_ms} ms: choose a --wear-wait of \
             up to {WAIT_MS_MAX}"
        ),
        StoreError::PoolFull { name, wanted, used: 0, size_max } => format!(
            "pool \"{name}\" cannot begin with {wanted} bytes and have {size_max} at most: choose \
             a larger --size-max"
        ),
        StoreError::NotShadowed { name } => format!(
            "pool \"{name}\" is in direct mode, which has no psync: make one with `cenote create \
             --mode shadowed`"
        ),
        StoreError::NotProtected { name } => format!(
            "a key was given, and pool \"{name}\" is not protected: leave out --key-file and \
             --passphrase-file, if it is the pool that you mean"
        ),
        StoreError::Protected { name, what } => {
            format!("pool \"{name}\" is protected at rest, and does not allow this: {what}")
        }
        StoreError::WriteProtected { name, what, instead } => {
            format!("pool \"{name}\" cannot have write-protected data and this: {what}; {instead}")
        }
        StoreError::AtRest { name, source } => format!("pool \"{name}\": {}", at_rest(&source)),
        StoreError::Sealed { source, .. } => sealed(&source),
        error => of_others(error),
    }
}

/// What is wrong with an object, a journal, or the store as a whole.
fn of_others(error: StoreError) -> String {
    match error {
        StoreError::ReadOnly { what } | StoreError::PoolReadOnly { what, .. } => {
            format!("the store is open read-only, and this would change it: {what}")
        }
        StoreError::ObjectExists { name } => format!(
            "there is an object \"{name}\" already: choose another name, or remove that one with \
             `cenote object rm {STORE} {}`",
            word(&name)
        ),
        StoreError::ObjectUnknown { name } => format!(
            "there is no object \"{name}\" in this store: `cenote object ls {STORE}` lists those \
             that there are"
        ),
        StoreError::ObjectLen { len } => {
            format!("an object cannot have {len} bytes: choose a --size from 1 to 64T")
        }
        StoreError::JournalDamaged { file, detail }
        | StoreError::JournalRolledBack { file, detail } => journal(file, &detail),
        StoreError::NotHosted { what } => {
            format!("{what}: stop the daemon, and give the store's directory instead of the socket")
        }
        StoreError::InUse { .. } | StoreError::LogsInUse { .. } => {
            "the store is still used in this process: please report it".into()
        }
        error => error.to_string(),
    }
}

impl From<ObjectError> for Failure {
    fn from(error: ObjectError) -> Self {
        match error {
            ObjectError::Store(error) => error.into(),
            ObjectError::Medium(error) => error.into(),
            ObjectError::Busy { .. } => Self::InUse(error.to_string()),
            ObjectError::ReadOnly { name } => {
                Self::Failed(format!("object \"{name}\" can only be read by this user"))
            }
            ObjectError::AtRest { name, source } => {
                Self::Failed(format!("object \"{name}\": {}", at_rest(&source)))
            }
            ObjectError::NotProtected { name } => Self::Failed(format!(
                "a key was given, and object \"{name}\" is not protected: leave out --key-file and \
                 --passphrase-file, if it is the object that you mean"
            )),
            ObjectError::NotCovered { name } => Self::Failed(format!(
                "object \"{name}\" is of a copy of a store that was not closed, and nothing shows \
                 whether it is whole: {}",
                crate::copies::ways_out(&STORE.to_string())
            )),
            ObjectError::Unverified { name } => Self::Failed(format!(
                "object \"{name}\" is of a copy of a store that was not closed, and was not \
                 verified yet: `cenote verify {STORE} {} --accept-copy` does that, under its key",
                word(&name)
            )),
            ObjectError::PsyncTooLarge { needed, limit } => Self::Failed(format!(
                "a psync of {needed} bytes is larger than half the journal may be ({limit} bytes): \
                 choose a smaller --every"
            )),
            ObjectError::JournalDamaged { detail } => {
                Self::Failed(format!("the journal of objects is damaged: {detail}; {RESTORE_ALL}"))
            }
            ObjectError::File { what, file, source } => Self::Failed(match source.kind() {
                std::io::ErrorKind::AlreadyExists => {
                    format!(
                        "cannot {what} snapshot {file}: it exists already: remove it first, or \
                         choose another name"
                    )
                }
                std::io::ErrorKind::NotFound if what == "make" => {
                    format!(
                        "cannot make snapshot {file}: there is no such directory: make it first"
                    )
                }
                _ => format!("cannot {what} snapshot {file}: {source}"),
            }),
            error => Self::failed(error),
        }
    }
}

impl From<MediumError> for Failure {
    fn from(error: MediumError) -> Self {
        match error {
            MediumError::Open { path, source, .. } => {
                let missing = std::fs::symlink_metadata(&path)
                    .is_err_and(|error| error.kind() == std::io::ErrorKind::NotFound);
                let (path, why) = (path.display(), source.kind());
                Self::Failed(match why {
                    std::io::ErrorKind::NotADirectory => {
                        format!("{path} is no directory: name the directory of a store")
                    }
                    std::io::ErrorKind::NotFound => format!(
                        "there is no directory {path}: check the path, or make a store with \
                         `cenote format {path}`"
                    ),
                    std::io::ErrorKind::PermissionDenied if missing => format!(
                        "{path} cannot be made ({source}): choose a directory in which this user \
                         may make files"
                    ),
                    std::io::ErrorKind::PermissionDenied => format!(
                        "{path} cannot be opened ({source}): use a directory that this user may \
                         open, or let its owner run the command"
                    ),
                    std::io::ErrorKind::ReadOnlyFilesystem => format!(
                        "{path} cannot be made: the file system is mounted read-only: choose \
                         another place"
                    ),
                    _ => format!("cannot open the directory {path}: {source}"),
                })
            }
            MediumError::Exists { op, name } => {
                Self::Medium(format!("cannot {op} {name}: it exists already: remove it first"))
            }
            MediumError::ReadOnly { op, name } => Self::Medium(format!(
                "cannot {op} {name}: the file system is mounted read-only: choose another place, \
                 or make it writable"
            )),
            error => Self::Medium(error.to_string()),
        }
    }
}

/// Why a pool was not copied, or is not to be opened yet.
fn copy(error: CopyRefused) -> String {
    let heap = |kind: HeapKind| match kind {
        HeapKind::Wear { wait_ms } => format!("wear heap that waits for {wait_ms} ms"),
        _ => format!("{} heap", kind.name()),
    };
    match error {
        CopyRefused::Unfinished { pool, from } => {
            let (to, source) = (word(&pool), word(&from));
            format!(
                "pool \"{pool}\" is an unfinished copy of pool \"{from}\": `cenote copy {STORE} \
                 {source} {to}` goes on, and `cenote rm {STORE} {to}` removes it"
            )
        }
        CopyRefused::Kind { pool, found, asked } => format!(
            "pool \"{pool}\" has a {}, and a {} was asked for: leave out --heap, or choose another \
             name",
            heap(found),
            heap(asked)
        ),
        CopyRefused::Changed { pool, what, at, from } => format!(
            "pool \"{from}\" has changed since its copy \"{pool}\" was begun ({what} at {at:#x}): \
             remove the copy with `cenote rm {STORE} {}`, and copy again",
            word(&pool)
        ),
        error => error.to_string(),
    }
}

impl From<ArchivingError> for Failure {
    fn from(error: ArchivingError) -> Self {
        match error {
            ArchivingError::Store(error) => error.into(),
            ArchivingError::Medium(error) => error.into(),
            ArchivingError::Stopped => Self::Interrupted("stopped; nothing was kept".into()),
            ArchivingError::NoKey { pool } => Self::Failed(format!(
                "pool \"{pool}\" is protected at rest, and its pointers cannot be read without its \
                 key: give the key with --key-file or --passphrase-file, or name all pools to \
                 export"
            )),
            ArchivingError::NotRecovered { pool } | ArchivingError::TraceDue { pool } => {
                Self::Failed(format!(
                    "pool \"{pool}\" needs recovery by tracing: run `cenote reclaim {STORE}`, then \
                     run the command again"
                ))
            }
            error => Self::failed(error),
        }
    }
}

impl From<Error> for Failure {
    fn from(error: Error) -> Self {
        match error {
            Error::Medium(error) => error.into(),
            Error::Open(error) => error.into(),
            Error::Format(error) => error.into(),
            Error::Store(error) => error.into(),
            Error::Archive(error) => error.into(),
            Error::Copy(error) => Self::Failed(copy(error)),
            Error::NotWhole { pool, why } => Self::Failed(format!(
                "pool \"{pool}\" is not whole, so programs cannot read its values: {}; look at it \
                 with `cenote check {STORE} --pool {}`, or {RESTORE_ALL}",
                listed(&why),
                word(&pool)
            )),
            Error::InvalidValues { pool, count, first } => Self::Failed(format!(
                "pool \"{pool}\" has {count} values that are invalid for their types: {}; look at \
                 it with `cenote check {STORE} --pool {}`, import it from an archive under another \
                 name (`cenote import {STORE} FILE --as NAME`), or {RESTORE_ALL}",
                first.iter().take(3).map(ToString::to_string).collect::<Vec<_>>().join("; "),
                word(&pool)
            )),
            Error::TraceDue { pool } => Self::Failed(format!(
                "pool \"{pool}\" needs recovery by tracing: run `cenote reclaim {STORE}`"
            )),
            Error::Reclaim(ReclaimRefused::Late) => Self::Failed(
                "leaks cannot be told from values in use: run the command again".into(),
            ),
            error => Self::failed(error),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_daemon_is_known_by_its_command_line() {
        let socket = |line: &str| socket_in(line.replace(' ', "\0").as_bytes());
        let at = Some(PathBuf::from("/run/c.sock"));
        assert_eq!(socket("/usr/bin/cenoted --store s --socket /run/c.sock --clients 3"), at);
        assert_eq!(socket("cenoted --socket=/run/c.sock --store s"), at);
        for other in ["cenote --socket /run/c.sock", "cenoted --store s", "cenoted --socket", ""] {
            assert_eq!(socket(other), None, "{other}");
        }
    }
}
