//! Errors of a logged heap that the errors of every heap have among them. After any of them nothing
//! has changed.

use crate::backing::BackingError;
use cenote_layout::header::HeaderError;

/// A part of the metadata that is not what was written there.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error(
    "the metadata of this sub-heap are damaged at offset {offset:#x}: {what}; import the pool from \
     an archive (`cenote import`), or restore the whole store from one copy"
)]
pub struct Damage {
    /// Offset in the metadata region, in bytes.
    pub offset: u64,
    /// What is wrong there.
    pub what: &'static str,
}

/// Why a sub-heap cannot be made or opened.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum SubHeapError {
    /// There is no sub-heap, or a newer release made it, or its header is damaged.
    #[error(transparent)]
    Header(#[from] HeaderError),
    /// No sub-heap can be laid out so.
    #[error(
        "no sub-heap has {data_len} bytes of data and {lanes} lanes: data are a multiple of 64 \
         bytes, 4 KiB to 256 TiB, and lanes 1 to 256"
    )]
    Shape {
        /// Bytes of the data region.
        data_len: u64,
        /// Lanes of the micro log.
        lanes: u32,
    },
    /// A region is not where a sub-heap needs it, or not as large.
    #[error(
        "the {region} region of a sub-heap cannot be {len} bytes at {addr:#x}: it needs \
         {needed} bytes in whole pages"
    )]
    Region {
        /// Which region.
        region: &'static str,
        /// Its address.
        addr: u64,
        /// Its length in bytes.
        len: u64,
        /// Bytes that are needed.
        needed: u64,
    },
    /// The pool is open for reading only.
    #[error(
        "a crash interrupted a change of the heap, and the pool is open read-only: open it once \
         for writing, which undoes the change"
    )]
    ReadOnly,
    /// The metadata are damaged.
    #[error(transparent)]
    Damaged(#[from] Damage),
    /// The medium reports an error.
    #[error(transparent)]
    Backing(#[from] BackingError),
}

/// Why a logged heap cannot be made or opened.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum LoggedError {
    /// There is no root puddle.
    #[error("the pool has no root puddle: no heap can be there")]
    NoPuddle,
    /// The root puddle cannot have the metadata of a heap.
    #[error("a root puddle of {size} bytes is too small for a logged heap, or not laid out as one")]
    RootSize {
        /// Its size.
        size: u64,
    },
    /// A heap is there.
    #[error("the pool has a logged heap: open it")]
    Exists,
    /// The heap is open in this process.
    #[error("the heap of this pool is open already: use the one that is open")]
    Open,
    /// The pool is open for reading only.
    #[error("the pool is open read-only: a logged heap is made and recovered for writing")]
    ReadOnly,
    /// Several processes write the pool.
    #[error(
        "a logged heap does not allow several processes to write its pool, because its locks are \
         those of one process: open the pool in one process"
    )]
    Shared,
    /// The header does not fit.
    #[error(transparent)]
    Header(#[from] HeaderError),
    /// A sub-heap cannot be opened.
    #[error("sub-heap {number}: {source}")]
    SubHeap {
        /// Its number.
        number: u32,
        /// Why.
        source: SubHeapError,
    },
    /// Two sub-heaps name the same puddle.
    #[error(
        "sub-heap {number} names puddle {puddle}, which is not its own: the metadata are damaged"
    )]
    Puddle {
        /// The sub-heap.
        number: u32,
        /// The puddle.
        puddle: u32,
    },
    /// The metadata are damaged.
    #[error(transparent)]
    Damaged(#[from] Damage),
    /// The medium reports an error.
    #[error(transparent)]
    Backing(#[from] BackingError),
}

impl LoggedError {
    /// Whether the pool has no heap that can be read, now and later; else something passes, or
    /// another way to open it works.
    #[must_use]
    pub const fn is_damage(&self) -> bool {
        match self {
            Self::NoPuddle
            | Self::RootSize { .. }
            | Self::Header(_)
            | Self::Puddle { .. }
            | Self::Damaged(_) => true,
            Self::SubHeap { source, .. } => {
                !matches!(source, SubHeapError::ReadOnly | SubHeapError::Backing(_))
            }
            Self::Exists | Self::Open | Self::ReadOnly | Self::Shared | Self::Backing(_) => false,
        }
    }
}

/// Why no log of a sub-heap has room for one more block of a transaction.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum LogFull {
    /// A transaction has as many entries as its lane of the micro log can have.
    #[error(
        "a transaction allocates and frees at most {entries} blocks of one sub-heap: commit it, \
         and begin another"
    )]
    Lane {
        /// Entries of a lane.
        entries: usize,
    },
    /// Every lane of the micro log has a transaction.
    #[error("{lanes} transactions use this sub-heap, the upper limit: end one of them")]
    Lanes {
        /// Lanes of the micro log.
        lanes: u32,
    },
    /// Transactions of the pool have all tickets.
    #[error(
        "transactions allocate and free at most {tickets} blocks of one sub-heap before they end: \
         commit, and begin another"
    )]
    Tickets {
        /// Tickets of the sub-heap.
        tickets: u32,
    },
}

/// Why there is no block.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum AllocRefused {
    /// Alignment is no power of two, or above 2 MiB.
    #[error("alignment {align} is not a power of two up to 2 MiB")]
    Align {
        /// What was asked for.
        align: u64,
    },
    /// No free block is large enough, and merging free blocks makes none.
    #[error("this sub-heap has no {size} free bytes in one piece: free blocks, or use another")]
    Full {
        /// What was asked for.
        size: u64,
    },
    /// No slot is left for the record of one more block.
    #[error("the table of this sub-heap has no slot for one more block: free blocks")]
    TableFull,
    /// A sub-heap has as many parts as it can have.
    #[error("a sub-heap has at most {parts} parts of data and levels: free blocks")]
    Parts {
        /// Most parts.
        parts: u32,
    },
    /// No log of the sub-heap has room for the block.
    #[error(transparent)]
    LogFull(#[from] LogFull),
    /// The pool is open for reading only.
    #[error("the pool is open read-only: nothing can be allocated")]
    ReadOnly,
    /// The file cannot have space for one more level of the table.
    #[error(transparent)]
    Backing(#[from] BackingError),
    /// The metadata are damaged.
    #[error(transparent)]
    Damaged(#[from] Damage),
}

impl AllocRefused {
    /// Whether another sub-heap, or a larger one, may have a block.
    pub(crate) const fn is_full(&self) -> bool {
        matches!(
            self,
            Self::Full { .. }
                | Self::TableFull
                | Self::Parts { .. }
                | Self::LogFull(_)
                | Self::Backing(_)
        )
    }
}
