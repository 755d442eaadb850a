//! How a session can have ended, and what can be wrong with its logs.

use core::fmt;

/// What ended the session that wrote a log.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum CrashKind {
    /// Processes died, the machine ran on: all their stores are there.
    Process,
    /// The machine lost power or crashed (the boot id is another): stores that were not flushed and
    /// fenced may be missing.
    Power,
}

impl fmt::Display for CrashKind {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Process => "crash of processes",
            Self::Power => "loss of power",
        })
    }
}

/// Why a range is not written.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum Refusal {
    /// The range does not lie in one puddle of the store.
    #[error("no puddle holds it")]
    Outside,
    /// The log's owner had no writable lease on the puddle's pool.
    #[error("the log's owner had no right to write to pool {0}")]
    NotLeased(cenote_layout::id::PoolId),
    /// The puddle cannot be mapped.
    #[error("its puddle cannot be used: {0}")]
    Unusable(String),
}

/// What is wrong with a log that is not applied.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum LogDamage {
    /// The header.
    #[error("log header: {0}")]
    Header(String),
    /// The log is of a newer release, or has features that this one does not know. It is not
    /// marked.
    #[error("log header: {0}")]
    Unsupported(String),
    /// A word of the control or range line is none that is ever written.
    #[error("log control: no release writes {field} {value:#018x}")]
    Control {
        /// Which word.
        field: &'static str,
        /// What stands there.
        value: u64,
    },
    /// A page of the log, or of what it writes, was lost while it was replayed: the file was cut
    /// short, or its device fails. The log is not marked, and is replayed again.
    #[error(
        "a page was lost while the log was replayed: its file was cut short, or its disk fails"
    )]
    PageLost,
    /// The sequence range is none that is ever written.
    #[error("no release writes sequence range {0:#018x}")]
    Range(u64),
    /// The sequence range is older than an entry: a write to the log was lost.
    #[error("sequence range {0:#018x} is older than an entry that follows it")]
    Stale(u64),
    /// An entry that must be there is not whole.
    #[error("entry {index} is damaged or missing: {why}")]
    Entry {
        /// Its number.
        index: u32,
        /// How that is known.
        why: &'static str,
    },
    /// The seal is whole but does not fit the entries before it.
    #[error("the seal covers {entries} entries, {found} were found before it, or others")]
    Seal {
        /// Entries that the seal covers.
        entries: u64,
        /// Entries that are there.
        found: u64,
    },
    /// A further segment is not there.
    #[error("segment {number} at {addr:#x}: {why}")]
    Segment {
        /// Its number.
        number: u32,
        /// Address of its puddle.
        addr: u64,
        /// What is wrong.
        why: String,
    },
    /// The log is committed but its entries cannot be counted.
    #[error("the transaction is committed, but how many entries it has is not known")]
    Uncounted,
    /// An entry names a range that its owner could not write.
    #[error("entry {index} writes {size} bytes at {addr:#x}: {refusal}")]
    ForeignRange {
        /// Its number.
        index: u32,
        /// Start of the range.
        addr: u64,
        /// Bytes.
        size: u32,
        /// Why not.
        refusal: Refusal,
    },
}
