//! Journals of psyncs: lines of several files (*primaries*) that change together, or not at all, by
//! one sync.
//!
//! ```text
//! which lines differ from the primary       diff.rs
//! one psync as bytes                        record.rs
//! append, group commit, halves, growth      journal.rs, file.rs
//! what is committed and not yet applied     later.rs
//! what a journal holds after a crash        scan.rs
//! what another process has to be psynced    transfer.rs
//! which state protected primaries are in    roots.rs
//! journals and catalog name each other      ties.rs
//! ```
//!
//! A store has a journal for its raw objects and one for its pools in shadowed mode, each in a file
//! of its own. This crate knows neither: to it a primary is an id and a file. The front page of
//! `cenote-object` has the states of a psync, and says why one sync of the journal commits it; the
//! argument for pools is in `cenote_store`'s module `psync`.
//!
//! Invariant: a record counts only if it is whole and in the order of the records' numbers, and
//! only until all its contents are durable in the primaries.

mod apply;
mod apply_queue;
mod changes;
mod diff;
mod file;
mod journal;
mod quiet;
mod record;
mod room;
mod roots;
mod scan;
#[cfg(test)]
mod tests;
#[cfg(test)]
mod tie_tests;
mod ties;
mod transfer;

pub use apply_queue::{ApplyTarget, Primary};
pub use changes::{Changes, Pages};
pub use file::{FoundJournal, look};
pub use journal::{Home, Journal, Settings, Ticket};
pub use quiet::Quiet;
pub use record::{Draft, Record};
pub use roots::{ROOT_HEADER_LEN, Root, Rooted, Roots};
pub use scan::{JournalScan, ROOTS_LOST, scan};
pub use ties::{TIED, Tie};
pub use transfer::{Delivered, Limits, Receiver, Transfer, TransferError, distinct};

use cenote_medium::MediumError;
use core::fmt;

/// Why nothing may be acknowledged any more.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum Stopped {
    /// This process is a fork of the one that opened the store.
    #[error(
        "this process was forked from the one that opened the store, and has no access to it: open \
         the store again in this process"
    )]
    Forked,
    /// What is on the medium is not known any more.
    #[error("the store is poisoned: {0}")]
    Poisoned(String),
}

/// What a journal asks of its owner, and reports to it.
pub trait Guard: Send + Sync + fmt::Debug {
    /// Fails if nothing may be acknowledged any more.
    ///
    /// # Errors
    /// Why not.
    fn check(&self) -> Result<(), Stopped>;

    /// From now on nothing may be acknowledged.
    fn poison(&self, reason: &str);

    /// Asked before a header is written: fails, and poisons, if the store is another session's now.
    ///
    /// # Errors
    /// What was found in the place of the store's files.
    fn check_owner(&self) -> core::result::Result<(), MediumError> {
        Ok(())
    }
}

/// Why an operation on a journal failed.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum JournalError {
    /// A full disk, an I/O error. Of a failed sync the guard was told.
    #[error(transparent)]
    Medium(#[from] MediumError),
    /// One record is larger than the journal may become.
    #[error("a record of {needed} bytes is larger than half the journal may be ({limit} bytes)")]
    TooLarge {
        /// Bytes of the record.
        needed: u64,
        /// Most bytes of a record.
        limit: u64,
    },
    /// A psync is committed, and a primary that it changed cannot be written. The guard was told.
    #[error("{name} was not written: {source}")]
    NotCopied {
        /// The primary's file.
        name: String,
        /// Why.
        source: Box<MediumError>,
    },
    /// The guard said so.
    #[error(transparent)]
    Stopped(#[from] Stopped),
}
