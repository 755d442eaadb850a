//! Why pools are not exported or imported. Nothing has changed then.

use cenote_archive::ArchiveError;
use cenote_layout::error_kind::ErrorKind;
use cenote_layout::values::InvalidValue;
use cenote_medium::MediumError;
use cenote_store::{Layouts, StoreError, TypeMismatch};
use std::io;

/// Why pools are not exported or imported. Nothing has changed then.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum ArchivingError {
    /// The archive: it cannot be written, or cannot be believed.
    #[error(transparent)]
    Archive(#[from] ArchiveError),
    /// The store.
    #[error(transparent)]
    Store(#[from] StoreError),
    /// A file of the store.
    #[error(transparent)]
    Medium(#[from] MediumError),
    /// No pool was named.
    #[error("no pool was named: name at least one")]
    NoPool,
    /// A session that wrote the pool ended without closing the store, and this one cannot recover
    /// it.
    #[error(
        "pool \"{pool}\" was left by a program that did not close the store: open the store for \
         writing once, which recovers it, then export"
    )]
    NotRecovered {
        /// Its name.
        pool: String,
    },
    /// Which blocks are allocated is not known after a loss of power.
    #[error(
        "pool \"{pool}\" needs recovery by tracing, after a loss of power or a decision about \
         logs: open it for writing once, then export it"
    )]
    TraceDue {
        /// Its name.
        pool: String,
    },
    /// Its bytes cannot be believed.
    #[error("pool \"{pool}\" is damaged: {detail}: look with `cenote check`")]
    Damaged {
        /// Its name.
        pool: String,
        /// What is wrong.
        detail: String,
    },
    /// Which pools are its pointers' targets is not known.
    #[error(
        "pool \"{pool}\" is protected at rest, and without its key its pointers cannot be read: \
         open the store with the key, or name all pools to export"
    )]
    NoKey {
        /// Its name.
        pool: String,
    },
    /// The file of the archive.
    #[error("cannot {what} {file}: {source}")]
    File {
        /// What was tried.
        what: &'static str,
        /// Its path.
        file: String,
        /// Why not.
        source: io::Error,
    },
    /// The archive's place is not there.
    #[error(
        "cannot make {file}: there is no directory {directory}: make it first, or choose another \
         place"
    )]
    NoDirectory {
        /// The path that was to be made.
        file: String,
        /// Where it was to be.
        directory: String,
    },
    /// The archive is already there.
    #[error("{file} is there already: remove it first, or choose another name")]
    Exists {
        /// Its path.
        file: String,
    },
    /// The names for the pools of an archive are not as many as the pools.
    #[error("the archive holds {} ({names}), and {} given: give one name for each pool",
        counted(*.pools, "pool", "pools"), counted(*.given, "name is", "names are"))]
    Names {
        /// Pools in it.
        pools: usize,
        /// Their names.
        names: String,
        /// Names that were given.
        given: usize,
    },
    /// The disk has no room for the pools.
    #[error(
        "the archive's pools take {wanted} bytes, and the store's disk has {free} left: make room \
         first"
    )]
    NoSpace {
        /// Bytes of its puddles.
        wanted: u64,
        /// Bytes that are free.
        free: u64,
    },
    /// A type of the archive has another layout in this program, and the store has not decided yet
    /// which of the two it takes.
    #[error(
        "type {} of the archive has another layout than in this program: import it by a program \
         that has the archive's layout, or by the command, or give one of the two types another \
         name\n{}", .0.offered.id, Layouts(&.0.known, &.0.offered)
    )]
    ProgramType(Box<TypeMismatch>),
    /// Bytes in a pool are no values of their types, or its structures' links lead astray.
    #[error(
        "pool \"{pool}\" of the archive has {} values that are invalid for their types: {}; \
         nothing was imported: repair or leave out the pool where it came from (`cenote check`), \
         or import an older archive",
        .count, listed(first)
    )]
    Values {
        /// The first such pool.
        pool: String,
        /// How many there are, in all pools.
        count: u64,
        /// The first of them, with addresses as in the archive.
        first: Vec<InvalidValue>,
    },
    /// The caller that watched the progress stopped it.
    #[error("stopped; nothing was kept")]
    Stopped,
}

impl ArchivingError {
    /// What a program can do about it.
    #[must_use]
    pub fn kind(&self) -> ErrorKind {
        match self {
            Self::Archive(error) => error.kind(),
            Self::Store(error) => error.kind(),
            Self::Medium(error) => error.kind(),
            Self::NoPool | Self::Names { .. } => ErrorKind::Misuse,
            Self::NotRecovered { .. } | Self::TraceDue { .. } => ErrorKind::Unfinished,
            Self::Damaged { .. } | Self::Values { .. } => ErrorKind::Damaged,
            Self::NoKey { .. } => ErrorKind::Denied,
            Self::File { source, .. } => ErrorKind::of_system(source),
            Self::NoDirectory { .. } => ErrorKind::NotFound,
            Self::Exists { .. } => ErrorKind::Exists,
            Self::NoSpace { .. } => ErrorKind::Full,
            Self::ProgramType(_) => ErrorKind::Misuse,
            Self::Stopped => ErrorKind::Aborted,
        }
    }
}

/// The first few, for a message.
fn listed(values: &[InvalidValue]) -> String {
    let first: Vec<String> = values.iter().take(3).map(ToString::to_string).collect();
    first.join("; ")
}

/// A number with its word.
fn counted(count: usize, one: &str, many: &str) -> String {
    format!("{count} {}", if count == 1 { one } else { many })
}
