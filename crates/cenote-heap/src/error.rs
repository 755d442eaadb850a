//! Errors, one type per family of operations. Each message says what, where, and what to do.

pub use crate::backing::BackingError;
use crate::logged_error::{AllocRefused, Damage, LogFull, LoggedError};
use crate::wear_error::WearError;
use cenote_layout::id::TypeId;
use cenote_layout::pointer::RegionAddress;

/// Why a heap cannot be opened.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum OpenError {
    /// The pool has no puddle: it was never completely created.
    #[error("the pool has no root puddle")]
    NoPuddle,
    /// A puddle is too small to hold a heap's metadata and one superblock.
    #[error(
        "heap puddle {index} at {addr:#x} has {size} bytes, too few for a heap (128 KiB at least)"
    )]
    TooSmall {
        /// Its number in the pool.
        index: u32,
        /// Its address.
        addr: u64,
        /// Its size in bytes.
        size: u64,
    },
    /// As many processes have the pool open for writing as can.
    #[error(
        "{most} processes have this pool open for writing, the upper limit: close it in one of them"
    )]
    Members {
        /// How many can.
        most: u32,
    },
    /// The lock between the processes that have the pool open cannot be had.
    #[error("the lock between the processes that have this pool open cannot be taken: {source}")]
    Lock {
        /// Why.
        source: BackingError,
    },
    /// Other processes have let the pool grow, and this one cannot learn how.
    #[error(
        "the pool has {puddles} puddles and this process has {known}: the daemon has the others \
         and cannot be asked; try again when it runs"
    )]
    Behind {
        /// Puddles that this process has found.
        known: u64,
        /// Puddles that there are.
        puddles: u64,
    },
    /// Another `TracedHeap` of this process has the pool.
    #[error("the heap of this pool is open in this process already: share that one")]
    AlreadyOpen,
    /// A puddle cannot be used.
    #[error("heap puddle {index} at {addr:#x} cannot be used: {source}")]
    Backing {
        /// Its number in the pool.
        index: u32,
        /// Its address.
        addr: u64,
        /// Why.
        source: BackingError,
    },
    /// A logged heap cannot be opened.
    #[error(transparent)]
    Logged(#[from] LoggedError),
    /// A wear heap cannot be opened.
    #[error(transparent)]
    Wear(#[from] WearError),
}

/// Why there is no block.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum AllocError {
    /// Alignment is no power of two, or above 2 MiB.
    #[error("alignment {align} is not a power of two up to 2 MiB")]
    Align {
        /// What was asked for.
        align: u64,
    },
    /// More than the pool can ever hold.
    #[error("a block of {size} bytes is larger than the pool may ever be ({size_max} bytes)")]
    Size {
        /// What was asked for.
        size: u64,
        /// Most bytes of the pool.
        size_max: u64,
    },
    /// The pool is full and may not, or cannot, grow.
    #[error("no block of {size} bytes: {source}")]
    Full {
        /// What was asked for.
        size: u64,
        /// For which type.
        type_id: TypeId,
        /// Why the pool does not grow.
        source: BackingError,
    },
    /// Blocks that were freed wait in a wear heap, and there is no other room.
    #[error(
        "no block of {size} bytes now: {waiting} bytes of freed blocks wait for {wait_ms} ms \
         ({source}): try again then"
    )]
    Waits {
        /// What was asked for.
        size: u64,
        /// For which type.
        type_id: TypeId,
        /// Bytes that wait.
        waiting: u64,
        /// Milliseconds that a block waits.
        wait_ms: u32,
        /// Why the pool does not grow.
        source: BackingError,
    },
    /// A puddle of the pool cannot be used.
    #[error(transparent)]
    Puddle(#[from] OpenError),
    /// The pool is open for reading only.
    #[error("the pool is open read-only: nothing can be allocated")]
    ReadOnly,
    /// The caller's `before` said no.
    #[error("the allocation was cancelled by its transaction")]
    Cancelled,
    /// A sub-heap of a logged heap says why.
    #[error(transparent)]
    Logged(#[from] AllocRefused),
}

/// Why an address is no allocated block. Nothing has changed.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum FreeError {
    /// In no puddle of this pool, but in one of another pool.
    #[error("address {addr:#x} belongs to another pool: free it there")]
    OtherPool {
        /// The address.
        addr: u64,
    },
    /// In no puddle at all.
    #[error("address {addr:#x} is not in this heap")]
    NotInHeap {
        /// The address.
        addr: u64,
    },
    /// In the heap, where no block is: metadata, free space, the unused end of a superblock.
    #[error("address {addr:#x} is in this heap, but no block is there")]
    NotABlock {
        /// The address.
        addr: u64,
    },
    /// Not the start of its block.
    #[error("address {addr:#x} lies inside the block at {block:#x}: use that address")]
    InsideBlock {
        /// The address.
        addr: u64,
        /// Where the block begins.
        block: u64,
    },
    /// A block begins there, and it is free: freed twice, or never allocated.
    #[error("the block at {addr:#x} is not allocated (was it freed twice?)")]
    NotAllocated {
        /// The address.
        addr: u64,
    },
    /// In a superblock whose descriptor or marks are damaged.
    #[error(
        "address {addr:#x} is in a superblock whose descriptor or marks are damaged: run `cenote \
         check`"
    )]
    Damaged {
        /// The address.
        addr: u64,
    },
    /// The header of the block, in a wear heap, is damaged.
    #[error(
        "the header of the block at {addr:#x} is damaged: its lines are out of use; what is in \
         them can be read (`cenote check` lists them)"
    )]
    DamagedHeader {
        /// The address.
        addr: u64,
    },
    /// The pool is open for reading only.
    #[error("the pool is open read-only: nothing can be freed")]
    ReadOnly,
    /// A transaction allocated the block, or frees it when it commits.
    #[error("the block at {addr:#x} belongs to a transaction that runs: free it there")]
    InTransaction {
        /// The address.
        addr: u64,
    },
    /// No log of the block's sub-heap has room for the free.
    #[error(transparent)]
    LogFull(#[from] LogFull),
    /// Metadata of a logged heap are damaged.
    #[error(transparent)]
    Metadata(#[from] Damage),
}

/// Why an address has no place, or a place no address.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum PlaceError {
    /// No puddle of the store is there, or it ends before.
    #[error(
        "pool {}, puddle {}, offset {:#x} is no place in this store",
        .0.pool, .0.puddle, .0.offset
    )]
    Nowhere(RegionAddress),
    /// No allocated block of this heap begins there.
    #[error(transparent)]
    NoBlock(#[from] FreeError),
}

/// Why there is no such root.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum RootError {
    /// The number is too high.
    #[error("root {index} does not exist: a pool has roots 0 to 1023")]
    Index {
        /// What was asked for.
        index: u16,
    },
    /// Bits of the root have flipped: what it led to is not known.
    #[error(
        "root {index} (at {addr:#x}) is damaged: its check does not fit; set it again, \
         or restore the whole store from one copy"
    )]
    Damaged {
        /// Its number.
        index: u16,
        /// Address of its slot.
        addr: u64,
    },
    /// No object is there.
    #[error("root {index} cannot lead to {addr:#x}: addresses have 48 bits")]
    Address {
        /// Its number.
        index: u16,
        /// What was to be its address.
        addr: u64,
    },
    /// The pool is open for reading only.
    #[error("the pool is open read-only: no root can be set")]
    ReadOnly,
}

/// Why leaks were not looked for to the end, or not given back. Nothing is lost: what was given
/// back before was proven to be a leak.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum ReclaimError {
    /// A puddle cannot be used.
    #[error(transparent)]
    Puddle(#[from] OpenError),
    /// What the damaged part held may have led anywhere.
    #[error(
        "the superblock at {addr:#x} is damaged ({reason}), and its blocks may have pointed to any \
         block: run `cenote check`"
    )]
    Damaged {
        /// Its address.
        addr: u64,
        /// What is wrong with it.
        reason: &'static str,
    },
    /// A page of the pool cannot be had, and what it held may have led to any block.
    #[error("{0}")]
    Unreadable(#[from] BackingError),
    /// What a damaged root led to is not known.
    #[error("root {index} is damaged, and may have pointed to any block: run `cenote check`")]
    Root {
        /// Its number.
        index: u16,
    },
    /// More was changed than could be looked at meanwhile.
    #[error(
        "programs changed the pool faster than tracing could follow: try again when they change \
         less"
    )]
    Overrun,
    /// It was not begun, or something ended it: a recovery of the heap, a filter that panicked.
    #[error("no reclaim runs on this heap, or it was cancelled: begin a new one")]
    NotUnderWay,
    /// Other processes may use the heap, and this one does not see what they change.
    #[error(
        "the heap is one that several processes can use, and this process does not see changes of \
         the others: recover it when no other process uses it"
    )]
    Shared,
    /// The pool is open for reading only.
    #[error("the pool is open read-only: leaks can be listed, but not freed")]
    ReadOnly,
    /// The heap is of a kind that cannot do that.
    #[error(transparent)]
    Kind(#[from] WrongKind),
}

/// What was asked of a heap that is of another kind.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("pool \"{pool}\" has a {heap} heap, which cannot {what}: {instead}")]
pub struct WrongKind {
    /// The pool's name.
    pub pool: String,
    /// What kind of heap the pool has.
    pub heap: &'static str,
    /// What it cannot do.
    pub what: &'static str,
    /// What to do instead.
    pub instead: &'static str,
}

/// Why the heap cannot be looked at or recovered as a whole.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum RecoverError {
    /// A puddle cannot be used.
    #[error(transparent)]
    Puddle(#[from] OpenError),
    /// The pool is open for reading only.
    #[error("the pool is open read-only: it cannot be recovered, but `check` works")]
    ReadOnly,
    /// Others have the pool open for writing: marks cannot be computed anew under them.
    #[error("{others} other processes have the pool open: close it there first")]
    Shared {
        /// How many.
        others: u32,
    },
    /// A living member of the pool stayed in a slow path for too long: it is stopped, perhaps.
    /// Nothing is lost.
    #[error("member {member} of the pool is busy or stopped: try again")]
    NotQuiet {
        /// Its number.
        member: u32,
    },
    /// A page of the pool cannot be had: a file is cut short, its disk fails, or a sealed page
    /// fails its check. Nothing has changed.
    #[error("{0}")]
    Unreadable(#[from] BackingError),
    /// Which blocks are allocated cannot be told.
    #[error(
        "the root puddle at {addr:#x} does not say how far the last sweep of this heap has come, \
         so the heap cannot tell which blocks are allocated: it is damaged, or a later version \
         wrote it; import the pool from an archive (`cenote import`), or restore the whole store \
         from one copy"
    )]
    Sweep {
        /// Address of the root puddle.
        addr: u64,
    },
    /// The heap is of a kind that cannot do that.
    #[error(transparent)]
    Kind(#[from] WrongKind),
    /// Metadata of a logged heap are damaged.
    #[error(transparent)]
    Metadata(#[from] Damage),
    /// The progress callback broke off tracing. Nothing has changed.
    #[error("tracing was cancelled; the heap is as it was before")]
    Cancelled,
    /// Space could not be given back.
    #[error("free space of heap puddle {index} at {addr:#x} cannot be given back: {source}")]
    Trim {
        /// Its number in the pool.
        index: u32,
        /// Its address.
        addr: u64,
        /// Why.
        source: BackingError,
    },
}
