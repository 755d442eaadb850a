//! Errors of formatting a store.

use super::RESTORE_ALL;
use cenote_medium::MediumError;

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
    /// Files of a store, and no superblock. As [`crate::OpenError::SuperblockMissing`].
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
    #[error("invalid options for formatting the store: {0}")]
    Options(String),
    /// Another process is formatting or using it.
    #[error("{path} is in use by {holder}: wait until it is done")]
    Locked {
        /// The directory.
        path: String,
        /// The holder of the lock, in words.
        holder: String,
    },
    /// No place for the window.
    #[error(
        "the address space has no {len} free bytes for the window: choose a smaller window_len"
    )]
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
