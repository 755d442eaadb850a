//! What every heap offers, whatever is behind it.
//!
//! A block is *allocated* while its [`Mark`] is set: one byte in memory that survives a crash of processes. A transaction
//! logs the mark before it is set, so that abort and crash recovery clear it again; that is why the calls below show it.
//!
//! At level `power` a transaction sets a mark in two steps ([`Taking`]): what a loss of power leaves of a mark says "allocated" only for blocks
//! whose allocation was committed, or is named by a log entry that is durable. The argument is in crate `cenote-tx`.

use crate::error::{AllocError, FreeError, RecoverError, RootError};
use crate::report::{HeapReport, HeapStats, RecoveryReport};
use crate::trace::Types;
use cenote_layout::heap::{RootEntry, RootSlot};
use cenote_layout::id::TypeId;
use core::ptr::NonNull;
use core::sync::atomic::AtomicU64;

/// The allocation mark of one block: the bits `mask` (exactly one byte) of `word`. Zero means free; all ones, allocated
/// (see [`cenote_layout::heap::mark`] for what is between).
///
/// Other blocks have their marks in the same word, and other threads store to their bytes at any time: in a running process only the heap changes a
/// mark ([`Heap::clear_mark`]). Crash recovery, which is alone, clears it by a plain store to the word.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Mark {
    /// The word; an `AtomicU64` in the pool's mapping.
    pub word: NonNull<AtomicU64>,
    /// The byte.
    pub mask: u64,
}

impl Mark {
    /// The byte, where it lies.
    #[inline]
    #[must_use]
    pub fn byte(&self) -> NonNull<u8> {
        // A byte of the word: at most 7 behind its start.
        let offset = (self.mask.trailing_zeros() / 8 % 8) as usize;
        self.word.cast::<u8>().map_addr(|addr| addr | offset)
    }
}

// SAFETY: a mark is an address and a mask; using the address takes its own `unsafe`.
unsafe impl Send for Mark {}
// SAFETY: as above.
unsafe impl Sync for Mark {}

/// An allocated block, or one about to be.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Block {
    /// Where it begins.
    pub addr: NonNull<u8>,
    /// Usable bytes, at least what was asked for.
    pub size: u64,
    /// Its mark.
    pub mark: Mark,
    /// Type of the value(s) in it.
    pub type_id: TypeId,
}

// SAFETY: a block is an address with its facts; using the memory takes its own `unsafe`.
unsafe impl Send for Block {}
// SAFETY: as above.
unsafe impl Sync for Block {}

/// What [`Heap::walk`] and [`Heap::owner`] tell of an allocated block.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct BlockInfo {
    /// Where it begins.
    pub addr: u64,
    /// Usable bytes.
    pub size: u64,
    /// Type of the value(s) in it.
    pub type_id: TypeId,
}

/// What the mark of a block says that is given out: the value of the byte.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u8)]
pub enum Taking {
    /// "Allocated", for every opener to come.
    Allocated = cenote_layout::heap::mark::ALLOCATED,
    /// "Taken": allocated for the processes that have the pool open, free for whoever opens it after them. [`Heap::set_mark`] makes it allocated.
    Taken = cenote_layout::heap::mark::TAKEN,
}

/// "Do not allocate after all": what `before` of [`Heap::alloc_with`] returns when, say, a log is full. The caller keeps its own reason.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Cancelled;

/// A pool's allocator.
///
/// All calls may come from any thread. Bad arguments are answered with an error and change nothing; no call panics on what media hold.
/// Contents of a fresh block are whatever was there.
pub trait Heap: Send + Sync {
    /// Allocates at least `size` bytes (0 counts as 1) at a multiple of `align`, a power of two up to 2 MiB, for values of `type_id`.
    ///
    /// `before` is called once, after the block is chosen and before its mark is set: a transaction writes its undo entry there. It says what the mark is to be, and must not
    /// call the heap. If it fails, nothing is allocated.
    ///
    /// Durability: the mark survives a crash of the process and is not flushed. Whoever wants "allocated" believed after a loss of power flushes the mark; transactions do, at
    /// commit. Without that, [`Heap::recover`] decides by what is reached.
    ///
    /// # Errors
    /// Why there is no block; [`AllocError::Cancelled`] if `before` failed.
    fn alloc_with(
        &self,
        size: u64,
        align: u64,
        type_id: TypeId,
        before: &mut dyn FnMut(&Block) -> Result<Taking, Cancelled>,
    ) -> Result<Block, AllocError>;

    /// [`Heap::alloc_with`] without a `before`: the block is [`Taking::Allocated`].
    ///
    /// # Errors
    /// Why there is no block.
    fn alloc(&self, size: u64, align: u64, type_id: TypeId) -> Result<Block, AllocError> {
        self.alloc_with(size, align, type_id, &mut |_| Ok(Taking::Allocated))
    }

    /// The allocated block that begins at `addr`.
    ///
    /// # Errors
    /// What `addr` is instead.
    fn find(&self, addr: u64) -> Result<Block, FreeError>;

    /// Frees the block that begins at `addr`; 0 is nothing. The same effect as [`Heap::find`], [`Heap::clear_mark`] and [`Heap::release`].
    ///
    /// # Errors
    /// Why `addr` cannot be freed; nothing has changed then. That a block is freed twice is noticed as long as its place was not given out again.
    fn free(&self, addr: u64) -> Result<(), FreeError>;

    /// Makes a block that was [`Taking::Taken`] allocated for every opener; not flushed. Any other block is left alone.
    fn set_mark(&self, block: &Block);

    /// First half of a free that was decided before (a commit's free, an abort's allocation): clears the mark and does *not* give the place
    /// out yet. A transaction clears marks while its log still says "clear this mark"; if the place were given out before the log is
    /// finished, recovery of that log would clear the mark of its next owner. A mark that is clear already, or a block of another heap, is left alone.
    fn clear_mark(&self, block: &Block);

    /// Second half: makes the place of a block whose mark was cleared available again. Nothing for any other block, and nothing the second time.
    /// After a crash between the halves the next opener finds the mark clear and the place available.
    fn release(&self, block: &Block);

    /// Usable bytes of the allocated block that begins at `addr`.
    ///
    /// # Errors
    /// What `addr` is instead.
    fn usable_size(&self, addr: u64) -> Result<u64, FreeError> {
        self.find(addr).map(|block| block.size)
    }

    /// The allocated block that contains `addr`, if one does.
    fn owner(&self, addr: u64) -> Option<BlockInfo>;

    /// Calls `visit` for every allocated block, in order of addresses within a puddle. Blocks that are allocated or freed meanwhile may be seen or not.
    ///
    /// # Errors
    /// A puddle cannot be mapped.
    fn walk(&self, visit: &mut dyn FnMut(BlockInfo)) -> Result<(), RecoverError>;

    /// Looks at everything and changes nothing. With `types`, traces from the roots too, and names what is allocated but not reachable, and what
    /// is reachable but not allocated. The answer is exact if nobody allocates, frees or changes data meanwhile.
    ///
    /// # Errors
    /// A puddle cannot be mapped.
    fn check(&self, types: Option<&dyn Types>) -> Result<HeapReport, RecoverError>;

    /// Counts.
    ///
    /// # Errors
    /// A puddle cannot be mapped.
    fn stats(&self) -> Result<HeapStats, RecoverError>;

    /// Computes all marks again, believing none: allocated is exactly what can be reached from the pool's roots and from the addresses `roots` (RAL-1). Needed after a loss of
    /// power, before anything else, where marks were not flushed; where transactions alone allocate and free, [`TraceOptions::believe_marks`](crate::TraceOptions) leaves free what is
    /// reached and not marked. Harmless at any time when nobody changes data. Can be interrupted anywhere and repeated.
    ///
    /// # Errors
    /// A puddle cannot be mapped, or the pool is read-only. Damage is no error: the report names it.
    fn recover(&self, types: &dyn Types, roots: &[u64]) -> Result<RecoveryReport, RecoverError>;

    /// Numbered root `index` of 1,024 (RAL-6).
    ///
    /// # Errors
    /// There is no such root.
    fn root(&self, index: u16) -> Result<RootEntry, RootError>;

    /// Where root `index` lies, for a transaction to log and write.
    ///
    /// # Errors
    /// There is no such root.
    fn root_slot(&self, index: u16) -> Result<NonNull<RootSlot>, RootError>;

    /// Sets root `index` outside a transaction: durable on return. The address is written last and decides.
    ///
    /// # Errors
    /// There is no such root, or the pool is read-only.
    fn set_root(&self, index: u16, addr: u64, type_id: TypeId) -> Result<(), RootError>;
}
