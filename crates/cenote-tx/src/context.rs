//! One thread's log and what a transaction in progress keeps in process memory; made once, used for
//! every transaction of the thread.

use crate::group::LogGroup;
use crate::ranges::RangeSet;
use cenote_heap::reclaim::{before_change, is_recording};
use cenote_heap::{AllocError, BackingError, Block, FreeError, Heap, RootWay};
use cenote_layout::error_kind::ErrorKind;
use cenote_layout::id::TypeId;
use cenote_log::{LogError, LogWriter};
use cenote_medium::Persistence;
use cenote_medium::planted::{Bug, planted};
use cenote_protect::AttendedStores;
use std::ptr::NonNull;
use std::sync::Arc;

/// Why a step of a transaction failed. The transaction is as it was before the step: it may go on,
/// or be aborted.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum TxError {
    /// The log could not take the entry.
    #[error(transparent)]
    Log(#[from] LogError),
    /// The heap has no block.
    #[error(transparent)]
    Alloc(#[from] AllocError),
    /// An allocation of 0 bytes: it would have no byte of its own, and would share its address with
    /// another block.
    #[error(
        "cannot allocate 0 bytes for type {type_id}: ask for at least 1 byte; a value \
         without bytes needs no block"
    )]
    ZeroSize {
        /// For which type.
        type_id: TypeId,
    },
    /// The address is none that can be freed.
    #[error(transparent)]
    Free(#[from] FreeError),
    /// The block is already freed in this transaction.
    #[error("the block at {addr:#x} is already freed in this transaction")]
    AlreadyFreed {
        /// Its address.
        addr: u64,
    },
    /// A range has a pending redo write, which would overwrite at commit what is written in place.
    #[error(
        "{len} bytes at {addr:#x} overlap a deferred write of this transaction: use one way of \
         writing per range"
    )]
    PendingRedo {
        /// Start of the range.
        addr: u64,
        /// Bytes.
        len: u64,
    },
    /// The range ends beyond the address space.
    #[error("{len} bytes at {addr:#x} end beyond the address space")]
    Range {
        /// Start of the range.
        addr: u64,
        /// Bytes.
        len: u64,
    },
}

impl TxError {
    /// What a program can do about it.
    #[must_use]
    pub fn kind(&self) -> ErrorKind {
        match self {
            Self::Log(error) => error.kind(),
            Self::Alloc(error) => error.kind(),
            Self::Free(error) => error.kind(),
            Self::ZeroSize { .. }
            | Self::AlreadyFreed { .. }
            | Self::PendingRedo { .. }
            | Self::Range { .. } => ErrorKind::Misuse,
        }
    }

    /// What a pool says that is full.
    #[cold]
    pub(crate) fn full(size: u64, type_id: TypeId) -> Self {
        let source = BackingError::Limit { requested: size, bytes: 0, size_max: 0 };
        Self::Alloc(AllocError::Full { size, type_id, source })
    }
}

/// A deferred write: `len` bytes at `at` of the buffer go to `addr` at commit.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Redo {
    pub(crate) addr: u64,
    pub(crate) len: usize,
    pub(crate) at: usize,
}

/// A range of roots that are stored elsewhere than they are read: by
/// [`crate::Transaction::add_roots`].
#[derive(Clone, Debug)]
pub(crate) struct StoredAt {
    pub(crate) start: u64,
    pub(crate) end: u64,
    pub(crate) way: RootWay,
}

/// Old contents of process memory, put back by abort.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Volatile {
    pub(crate) addr: usize,
    pub(crate) len: usize,
    pub(crate) at: usize,
}

/// A block of a heap that lives at least as long as the transaction.
pub(crate) struct HeapBlock {
    pub(crate) heap: NonNull<dyn Heap>,
    pub(crate) block: Block,
}

/// A thread's log and buffers. See the crate's documentation.
pub struct TxContext {
    pub(crate) writer: LogWriter,
    pub(crate) persistence: Persistence,
    pub(crate) group: Arc<LogGroup>,
    pub(crate) ranges: RangeSet,
    pub(crate) redo: Vec<Redo>,
    /// Of logged ranges those that are stored elsewhere.
    pub(crate) stored_at: Vec<StoredAt>,
    /// The bytes that `redo` is going to write.
    pub(crate) pending: RangeSet,
    pub(crate) volatile: Vec<Volatile>,
    pub(crate) buffer: Vec<u8>,
    pub(crate) allocated: Vec<HeapBlock>,
    pub(crate) freed: Vec<HeapBlock>,
    /// First bytes of `freed`, to find one among many.
    pub(crate) freed_at: RangeSet,
    /// Whether a block among them has a ticket.
    pub(crate) tickets: bool,
    /// What it holds open of protected data, from when it is told of a range to its end.
    pub(crate) stores: AttendedStores,
    /// Whether the range that finished the last transaction may not be durable yet.
    pub(crate) range_pending: bool,
}

// SAFETY: the heap pointers are only there during a transaction, which borrows the context and the
// heaps; between transactions the vectors are empty. The rest is `Send`.
unsafe impl Send for TxContext {}

impl TxContext {
    /// Binds a log.
    ///
    /// # Safety
    /// The writer's head segment stays mapped until the context is dropped. `group` has all logs of
    /// the store that are in use in this process, and no other process changes data of the
    /// store while the context exists, unless [`LogGroup::never_lazy`] was called before it can.
    #[must_use]
    pub unsafe fn new(writer: LogWriter, group: Arc<LogGroup>) -> Self {
        let persistence = writer.persistence();
        group.join(writer.range_word() as usize, persistence);
        Self {
            writer,
            persistence,
            group,
            ranges: RangeSet::default(),
            redo: Vec::new(),
            stored_at: Vec::new(),
            pending: RangeSet::default(),
            volatile: Vec::new(),
            buffer: Vec::new(),
            allocated: Vec::new(),
            freed: Vec::new(),
            freed_at: RangeSet::default(),
            tickets: false,
            stores: AttendedStores::default(),
            range_pending: false,
        }
    }

    /// Makes the last transaction's finishing store durable too, so that data which it changed may
    /// be changed by other means than a transaction (a plain store with its own flush). Costs a
    /// fence at `power` if one is due.
    pub fn quiesce(&mut self) {
        if self.range_pending {
            self.writer.fence();
            self.range_pending = false;
        }
    }

    /// Log entries of the transaction in progress.
    #[must_use]
    pub fn entries(&self) -> u32 {
        self.writer.entries()
    }

    /// The log writer, for tests of the log itself.
    #[doc(hidden)]
    pub fn writer_mut(&mut self) -> &mut LogWriter {
        &mut self.writer
    }
}

impl TxContext {
    /// Tells what attends of a range that is about to be changed, before that is logged: a reclaim
    /// that is under way, and the protection of data.
    ///
    /// # Safety
    /// The range is readable, and no other thread writes to it.
    #[cold]
    #[inline(never)]
    pub(crate) unsafe fn tell(&mut self, ptr: *const u8, len: usize) {
        if is_recording() && !planted(Bug::ReclaimMissesAdd) {
            // SAFETY: passed on.
            unsafe { before_change(ptr as u64, len as u64) };
        }
        // What is logged or fresh was told of before.
        let start = ptr.addr() as u64;
        if !self.ranges.covers(start, start.saturating_add(len as u64)) {
            self.stores.begin(ptr.addr(), len);
        }
    }

    #[inline]
    pub(crate) fn clear(&mut self) {
        self.ranges.clear();
        if !self.redo.is_empty() {
            self.redo.clear();
            self.pending.clear();
        }
        if !self.freed.is_empty() {
            self.freed.clear();
            self.freed_at.clear();
        }
        self.stored_at.clear();
        self.volatile.clear();
        self.buffer.clear();
        self.allocated.clear();
        self.tickets = false;
        // The last store has been made: of a commit, a rollback, or a log that is given up.
        if !self.stores.is_empty() {
            self.stores.end();
        }
    }
}

impl Drop for TxContext {
    fn drop(&mut self) {
        self.quiesce();
        self.group.leave(self.writer.range_word() as usize);
    }
}

impl core::fmt::Debug for TxContext {
    fn fmt(&self, f: &mut core::fmt::Formatter<'_>) -> core::fmt::Result {
        f.debug_struct("TxContext")
            .field("log_id", &self.writer.log_id())
            .field("entries", &self.entries())
            .finish()
    }
}
