//! Errors of second windows.

use cenote_layout::error_kind::ErrorKind;
use cenote_store::PrivateWindowError;
use core::fmt;
use std::io;
use std::time::Duration;

/// A snapshot that keeps old pages, as errors name it.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct SnapshotHolder {
    /// Name of the thread that took it, or its number if it has no name.
    pub thread: String,
    /// How long it has lived.
    pub age: Duration,
    /// Bytes of old pages that are kept for it, and for others that see the same commit.
    pub bytes: u64,
}

impl fmt::Display for SnapshotHolder {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { thread, age, bytes } = self;
        write!(f, "the one that thread {thread} took {age:.1?} ago keeps {bytes} bytes")
    }
}

/// Why there is no snapshot, or why a transaction cannot store while there is one.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum SnapshotError {
    /// Pools of this kind have no snapshots.
    #[error("pool `{pool}` can have no snapshot: {why}; {instead}")]
    Refused {
        /// The pool.
        pool: String,
        /// Why not.
        why: &'static str,
        /// What to do instead.
        instead: &'static str,
    },
    /// As many commits of the pool are seen by snapshots as can be.
    #[error(
        "snapshots of pool `{pool}` see {windows} different commits, and no more can be seen: of \
         the oldest, {oldest}; drop one"
    )]
    TooMany {
        /// The pool.
        pool: String,
        /// Commits that are seen.
        windows: usize,
        /// The oldest snapshot.
        oldest: SnapshotHolder,
    },
    /// Old pages would take more memory than they may.
    #[error(
        "snapshots of pool `{pool}` may keep {limit} bytes of old pages, and keep {bytes}: of the \
         oldest, {oldest}; drop it, or raise the limit (`Pool::limit_snapshots`)"
    )]
    Full {
        /// The pool.
        pool: String,
        /// How many bytes they may keep.
        limit: u64,
        /// How many they keep.
        bytes: u64,
        /// The oldest snapshot.
        oldest: SnapshotHolder,
    },
    /// An old page could not be copied.
    #[error(
        "an old page of pool `{pool}` at {addr:#x} could not be copied for its snapshots \
         ({source}): of the oldest, {oldest}; drop it"
    )]
    Copy {
        /// The pool.
        pool: String,
        /// Address of the page.
        addr: u64,
        /// What the kernel said.
        source: io::Error,
        /// The oldest snapshot.
        oldest: SnapshotHolder,
    },
    /// What was asked for would take away what snapshots look at.
    #[error("snapshots of pool `{pool}` live: {why}; {instead}")]
    InUse {
        /// The pool.
        pool: String,
        /// What cannot be.
        why: &'static str,
        /// What to do first.
        instead: &'static str,
    },
    /// The pool's files cannot be mapped a second time.
    #[error("pool `{pool}` can have no snapshot now: {source}")]
    Map {
        /// The pool.
        pool: String,
        /// Why not.
        source: Box<PrivateWindowError>,
    },
}

impl SnapshotError {
    /// What a program can do about it.
    #[must_use]
    pub fn kind(&self) -> ErrorKind {
        match self {
            Self::Refused { .. } => ErrorKind::Unsupported,
            Self::TooMany { .. } | Self::InUse { .. } => ErrorKind::Busy,
            Self::Full { .. } | Self::Copy { .. } => ErrorKind::Full,
            Self::Map { source, .. } => match &**source {
                PrivateWindowError::Refused { .. } => ErrorKind::Unsupported,
                PrivateWindowError::Store(source) => source.kind(),
                _ => ErrorKind::Io,
            },
        }
    }
}
