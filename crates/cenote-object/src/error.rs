//! Errors of objects, with the error number of the paper where it names one.

use crate::dirty::Mechanism;
use cenote_atrest::{AtRestError, PageFault};
use cenote_journal::{JournalError, Stopped};
use cenote_medium::MediumError;
use cenote_store::StoreError;

const ENOENT: i32 = 2;
const EIO: i32 = 5;
const EAGAIN: i32 = 11;
const ENOMEM: i32 = 12;
const EACCES: i32 = 13;
const EEXIST: i32 = 17;
const EINVAL: i32 = 22;
const EFBIG: i32 = 27;
const ENOSPC: i32 = 28;
const EROFS: i32 = 30;
const EOPNOTSUPP: i32 = 95;

/// Why an operation on an object failed. Unless it says otherwise it has not happened, and the
/// object is as it was.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum ObjectError {
    /// The store: a bad or taken name, no such object, no space in the window, read-only, poisoned.
    #[error(transparent)]
    Store(#[from] StoreError),
    /// The medium: a full disk, an I/O error.
    #[error(transparent)]
    Medium(#[from] MediumError),
    /// A process has it attached in a way that excludes this attachment.
    #[error(
        "object \"{name}\" is attached for {what} by process {pid}: wait until it is detached, \
         then try again"
    )]
    Busy {
        /// The object.
        name: String,
        /// `reading` or `writing`.
        what: &'static str,
        /// The process that holds it.
        pid: u32,
    },
    /// The object's permission bits do not allow it.
    #[error(
        "object \"{name}\" may not be attached for {what} by user {uid}: its mode is {mode:o}, its \
         owner {owner}; let the owner change the mode"
    )]
    Denied {
        /// The object.
        name: String,
        /// `reading` or `writing`.
        what: &'static str,
        /// The user who asked.
        uid: u32,
        /// The object's permission bits.
        mode: u32,
        /// The object's owner.
        owner: u32,
    },
    /// The attachment is for reading.
    #[error(
        "object \"{name}\" is attached for reading: attach it with Permission::ReadWrite to \
         change it"
    )]
    ReadOnly {
        /// The object.
        name: String,
    },
    /// The key or the protection: no key, a wrong one, one that is not needed, a header that was
    /// changed.
    #[error("object \"{name}\": {source}")]
    AtRest {
        /// The object.
        name: String,
        /// What is wrong.
        source: Box<AtRestError>,
    },
    /// A key was given, and the object is not protected: it may have been replaced.
    #[error(
        "a key was given for object \"{name}\", which is not protected at rest: it may have been \
         replaced; use no key if that is meant"
    )]
    NotProtected {
        /// The object.
        name: String,
    },
    /// A page fails its check. Other pages are not concerned.
    #[error(
        "page {page} of object \"{name}\" is damaged: {fault}; read the others (`cenote object \
         export --skip-damaged`), restore a snapshot of the object (`cenote restore`), or restore \
         the whole store from one copy"
    )]
    PageDamaged {
        /// The object.
        name: String,
        /// The page.
        page: u64,
        /// What is wrong.
        fault: Box<PageFault>,
    },
    /// An object of a copy of an open store that has no hash tree, which would show whether it is
    /// whole.
    #[error(
        "object \"{name}\" is of a copy of a store that was open, and its files do not show \
         whether it is whole; open the store with PowerLossPolicy::AsIs to use it all the same"
    )]
    NotCovered {
        /// The object.
        name: String,
    },
    /// A protected object of a copy of an open store that was not verified since.
    #[error(
        "object \"{name}\" is of a copy of a store that was open, and was not verified yet: attach \
         it once, under its key"
    )]
    Unverified {
        /// The object.
        name: String,
    },
    /// A range that the object does not have.
    #[error("object \"{name}\" has {len} bytes: choose a range in it, not {wanted} at {offset}")]
    Range {
        /// The object.
        name: String,
        /// Its bytes.
        len: u64,
        /// First byte that was asked for.
        offset: u64,
        /// Bytes that were asked for.
        wanted: u64,
    },
    /// The memory of a protected object.
    #[error("no memory for object \"{name}\": {source}; free some, or raise the limit (ulimit -v)")]
    Memory {
        /// The object.
        name: String,
        /// What the system said.
        source: std::io::Error,
    },
    /// The mechanism that was asked for does not work here.
    #[error(
        "written pages of object \"{name}\" cannot be found by {mechanism}: {reason}; choose \
         another mechanism, or none"
    )]
    Mechanism {
        /// The object.
        name: String,
        /// The mechanism.
        mechanism: Mechanism,
        /// Why not.
        reason: String,
    },
    /// Which pages were written could not be found out. The shadow keeps its stores.
    #[error("written pages of object \"{name}\" were not found: {source}; psync again")]
    Scan {
        /// The object.
        name: String,
        /// What the system said.
        source: std::io::Error,
    },
    /// One psync is larger than the journal may become.
    #[error(
        "a psync of {needed} bytes is larger than half the journal may be ({limit} bytes): psync \
         more often, or raise half_len_max"
    )]
    PsyncTooLarge {
        /// Bytes of its record.
        needed: u64,
        /// Most bytes of a record.
        limit: u64,
    },
    /// Objects of two stores, or one object twice, in one psync.
    #[error("one psync takes different objects of one store: name each only once")]
    NotTogether,
    /// Records of the journal are lost.
    #[error(
        "the journal of objects, journal, is damaged: {detail}; restore the whole store from one \
         copy, or accept files of objects that may hold parts of a psync \
         (ObjectsOptions::accept_damaged_journal)"
    )]
    JournalDamaged {
        /// What is wrong, and with which records.
        detail: String,
    },
    /// A committed record cannot be applied because the primary is damaged or missing.
    #[error(
        "a committed psync of object \"{name}\" cannot be completed: {detail}; restore the whole \
         store from one copy, or remove the object (`cenote object rm`)"
    )]
    PrimaryDamaged {
        /// The object.
        name: String,
        /// What is wrong.
        detail: String,
    },
    /// The psync is committed, and the primary could not be written. The store is poisoned; the
    /// next open completes the psync.
    #[error(
        "the psync is committed, but the primary of object \"{name}\" was not written: {source}; \
         close the store and open it again"
    )]
    NotCopied {
        /// The object.
        name: String,
        /// Why.
        source: Box<MediumError>,
    },
    /// A snapshot is not whole, or none.
    #[error("{file} was not restored: {detail}; nothing has changed: use another snapshot")]
    Snapshot {
        /// The snapshot's file.
        file: String,
        /// What is wrong with it.
        detail: String,
    },
    /// The object that a snapshot is of is still there.
    #[error(
        "{file} was not restored: its object is protected and keeps its identity, which object \
         \"{name}\" has: remove that first, or restore into another store"
    )]
    StillThere {
        /// The snapshot's file.
        file: String,
        /// The object that has the identity.
        name: String,
    },
    /// A snapshot's file.
    #[error("cannot {what} snapshot {file}: {source}")]
    File {
        /// `make` or `read`.
        what: &'static str,
        /// The file.
        file: String,
        /// What the system said.
        source: std::io::Error,
    },
    /// [`crate::Objects::abandon`] was called: what was psynced may come into the objects' files at
    /// any moment, so no program may look at them.
    #[error(
        "the objects of this store were abandoned, as if this process had died: close the store \
         and open it again"
    )]
    Abandoned,
    /// The options make no sense.
    #[error("invalid options for objects: {0}")]
    Options(&'static str),
}

// An error is moved through every `?` on the way of what succeeds.
const _: () = assert!(size_of::<ObjectError>() < 128);

impl ObjectError {
    /// The number that the paper's system calls would set `errno` to.
    #[must_use]
    pub fn errno(&self) -> i32 {
        match self {
            Self::Busy { .. } => EAGAIN,
            Self::Denied { .. } | Self::ReadOnly { .. } => EACCES,
            Self::AtRest { source, .. } => of_protection(source),
            Self::NotProtected { .. } => EACCES,
            Self::Mechanism { .. } => EOPNOTSUPP,
            Self::NotTogether | Self::Options(_) | Self::Range { .. } => EINVAL,
            Self::Snapshot { .. } => EINVAL,
            Self::StillThere { .. } => EEXIST,
            Self::File { source, .. } => source.raw_os_error().unwrap_or(EIO),
            Self::Memory { source, .. } => source.raw_os_error().unwrap_or(ENOMEM),
            Self::PsyncTooLarge { .. } => EFBIG,
            Self::Scan { source, .. } => source.raw_os_error().unwrap_or(EIO),
            Self::JournalDamaged { .. }
            | Self::PrimaryDamaged { .. }
            | Self::PageDamaged { .. }
            | Self::Unverified { .. }
            | Self::NotCovered { .. }
            | Self::Abandoned => EIO,
            Self::Medium(error) => of_medium(error),
            Self::NotCopied { source, .. } => of_medium(source),
            Self::Store(error) => match error {
                StoreError::WindowFull { .. } => ENOSPC,
                StoreError::ObjectUnknown { .. } => ENOENT,
                StoreError::ObjectExists { .. } => EEXIST,
                StoreError::ObjectName { .. } | StoreError::ObjectLen { .. } => EINVAL,
                StoreError::ReadOnly { .. } => EROFS,
                StoreError::Medium(error) => of_medium(error),
                _ => EIO,
            },
        }
    }
}

impl From<JournalError> for ObjectError {
    fn from(error: JournalError) -> Self {
        match error {
            JournalError::Medium(error) => error.into(),
            JournalError::TooLarge { needed, limit } => Self::PsyncTooLarge { needed, limit },
            JournalError::Stopped(Stopped::Forked) => StoreError::Forked.into(),
            JournalError::Stopped(Stopped::Poisoned(reason)) => {
                StoreError::Poisoned { reason }.into()
            }
            other => StoreError::Poisoned { reason: other.to_string() }.into(),
        }
    }
}

fn of_protection(error: &AtRestError) -> i32 {
    match error {
        AtRestError::NoKey { .. }
        | AtRestError::KeyNotUsed { .. }
        | AtRestError::WrongKey { .. }
        | AtRestError::WrongKeyKind { .. } => EACCES,
        AtRestError::NothingToRekey { .. } | AtRestError::TooLarge { .. } | AtRestError::Key(_) => {
            EINVAL
        }
        AtRestError::System { source, .. } => source.raw_os_error().unwrap_or(EIO),
        _ => EIO,
    }
}

fn of_medium(error: &MediumError) -> i32 {
    if error.is_no_space() {
        return ENOSPC;
    }
    if matches!(error, MediumError::Mappings { .. }) {
        return ENOMEM;
    }
    error.io_error().and_then(std::io::Error::raw_os_error).unwrap_or(if error.is_not_found() {
        ENOENT
    } else {
        EIO
    })
}
