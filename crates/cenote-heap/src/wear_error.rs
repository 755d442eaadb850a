//! What can be wrong with a wear heap.

use crate::backing::BackingError;
use cenote_layout::header::HeaderError;
use core::fmt;

/// Why a wear heap cannot be made or opened.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum WearError {
    /// There is no root puddle.
    #[error("the pool has no root puddle: no heap can be there")]
    NoPuddle,
    /// A puddle has no room for the metadata and one chunk.
    #[error("puddle {puddle} has {size} bytes, too few for a wear heap")]
    Size {
        /// Its number.
        puddle: u32,
        /// Its bytes.
        size: u64,
    },
    /// No heap can be made so.
    #[error(
        "{what} of a wear heap cannot be {value}: blocks wait for up to 2^30 ms, and chunks have \
         2^10 to 2^24 bytes"
    )]
    Options {
        /// Which option.
        what: &'static str,
        /// What it says.
        value: u32,
    },
    /// A heap is there.
    #[error("the pool has a wear heap: open it")]
    Exists,
    /// The heap is open in this process.
    #[error("the heap of this pool is open already: use the one that is open")]
    Open,
    /// The pool is open for reading only.
    #[error("the pool is open read-only: no wear heap can be made there")]
    ReadOnly,
    /// Several processes write the pool.
    #[error(
        "a wear heap does not allow several processes to write its pool, because its lists are in \
         the memory of one process: open the pool in one process"
    )]
    Shared,
    /// The header does not fit.
    #[error(transparent)]
    Header(#[from] HeaderError),
    /// The medium reports an error.
    #[error(transparent)]
    Backing(#[from] BackingError),
}

impl WearError {
    /// Whether the pool has no heap that can be read, now and later; else something passes, or
    /// another way to open it works.
    #[must_use]
    pub const fn is_damage(&self) -> bool {
        match self {
            Self::NoPuddle | Self::Size { .. } | Self::Header(_) => true,
            Self::Options { .. }
            | Self::Exists
            | Self::Open
            | Self::ReadOnly
            | Self::Shared
            | Self::Backing(_) => false,
        }
    }
}

/// Lines whose header was damaged: they are out of use, and what was in them stays there.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct WearDamage {
    /// Number of the puddle in its pool.
    pub puddle: u32,
    /// Address of the damaged header.
    pub addr: u64,
    /// Bytes that are out of use, the header among them; 0: it was mended.
    pub bytes: u64,
    /// What is wrong.
    pub what: &'static str,
}

impl fmt::Display for WearDamage {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { puddle, addr, bytes, what } = self;
        write!(f, "puddle {puddle}, header at {addr:#x}: {what}; {bytes} bytes are out of use")
    }
}
