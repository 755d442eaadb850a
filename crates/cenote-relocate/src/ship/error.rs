//! Why pools are not shipped. Nothing has changed then.

use cenote_archive::ArchiveError;
use cenote_medium::MediumError;
use cenote_store::StoreError;
use std::io;

/// See the module.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum ShipError {
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
    /// A session that wrote the pool ended without closing the store, and this one cannot recover it.
    #[error(
        "pool \"{pool}\" was left by a program that did not close the store: open the store for writing once, which recovers it, then export"
    )]
    NotRecovered {
        /// Its name.
        pool: String,
    },
    /// Which blocks are allocated is not known after a loss of power.
    #[error(
        "pool \"{pool}\" must be traced, after a loss of power or a decision about logs: open it for writing once, then export it"
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
    /// The archive is already there.
    #[error("{file} is there already: remove it first, or choose another name")]
    Exists {
        /// Its path.
        file: String,
    },
    /// The names for the pools of an archive are not as many as the pools.
    #[error("the archive holds {pools} pools ({names}), and {given} names are given: give one for each")]
    Names {
        /// Pools in it.
        pools: usize,
        /// Their names.
        names: String,
        /// Names that were given.
        given: usize,
    },
    /// The disk has no room for the pools.
    #[error("the archive's pools take {wanted} bytes, and the store's disk has {free} left: make room first")]
    NoSpace {
        /// Bytes of its puddles.
        wanted: u64,
        /// Bytes that are free.
        free: u64,
    },
    /// Whoever watched said so.
    #[error("stopped; nothing was kept")]
    Stopped,
}
