//! The interface of every heap.

use crate::backing::Backing;
use crate::block::{Block, BlockInfo, Cancelled, Taking};
use crate::error::{AllocError, FreeError, PlaceError, RecoverError, RootError};
use crate::report::{HeapReport, HeapStats};
use crate::roots::{self, RootWay};
use crate::trace::{TraceOptions, Types};
use cenote_layout::heap::{RootEntry, RootSlot};
use cenote_layout::id::TypeId;
use cenote_layout::pointer::RegionAddress;
use core::ptr::NonNull;
use std::collections::BTreeSet;

/// A pool's allocator.
///
/// All calls may come from any thread. A bad argument gets an error and changes nothing; no call
/// panics on bytes of a medium. A fresh block holds the bytes that were there before.
pub trait Heap: Send + Sync {
    /// Allocates at least `size` bytes (0 counts as 1) at a multiple of `align`, a power of two up
    /// to 2 MiB, for values of `type_id`.
    ///
    /// `before` is called once, after the block is chosen and before its mark is set: a transaction
    /// writes its undo entry there. It says what the mark is to be, and must not call the heap. If
    /// it fails, nothing is allocated.
    ///
    /// Durability: the mark survives a crash of the process and is not flushed. A caller that wants
    /// "allocated" believed after a loss of power flushes the mark; transactions do, at commit.
    /// Without that, [`Trace::recover`](crate::Trace::recover) decides by what is reached.
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

    /// [`Heap::find`] for a transaction that is to free the block: its mark is one that the
    /// transaction may log. Ends with [`Heap::release`] or [`Heap::settle`].
    ///
    /// # Errors
    /// As [`Heap::find`]; the pool is read-only, or transactions have as many blocks as they can.
    fn find_to_free(&self, addr: u64) -> Result<Block, FreeError> {
        self.find(addr)
    }

    /// Frees the block that begins at `addr`; 0 is nothing. The same effect as [`Heap::find`],
    /// [`Heap::clear_mark`] and [`Heap::release`].
    ///
    /// # Errors
    /// Why `addr` cannot be freed; nothing has changed then. That a block is freed twice is noticed
    /// as long as its place was not given out again.
    fn free(&self, addr: u64) -> Result<(), FreeError>;

    /// Makes a block that was [`Taking::Taken`] allocated for every opener; not flushed. Any other
    /// block is left alone.
    ///
    /// # Safety
    /// This heap gave the block out. Its mark is stored to where the block says that it is.
    unsafe fn set_mark(&self, block: &Block);

    /// First half of a free that was decided before (a commit's free, an abort's allocation):
    /// clears the mark and does *not* give the place out yet. A transaction clears marks while its
    /// log still says "clear this mark"; if the place were given out before the log is finished,
    /// recovery of that log would clear the mark of its next owner. A mark that is clear already,
    /// or a block of another heap, is left alone.
    fn clear_mark(&self, block: &Block);

    /// Second half: makes the place of a block whose mark was cleared available again. Nothing for
    /// any other block, and nothing the second time. After a crash between the halves the next
    /// opener finds the mark clear and the place available.
    fn release(&self, block: &Block);

    /// Usable bytes of the allocated block that begins at `addr`.
    ///
    /// # Errors
    /// What `addr` is instead.
    fn usable_size(&self, addr: u64) -> Result<u64, FreeError> {
        self.find(addr).map(|block| block.size)
    }

    /// The transaction of a block has ended, and the block stays allocated: it was allocated and
    /// is committed, or its free was aborted. Before [`Heap::release`] of blocks of the same
    /// transaction.
    fn settle(&self, block: &Block) {
        let _ = block;
    }

    /// The allocated block that contains `addr`, if one does.
    fn owner(&self, addr: u64) -> Option<BlockInfo>;

    /// The place of the allocated block that begins at `addr`: it stays the same when the pool
    /// moves to other addresses. Poseidon's `get_nvmptr` (POS-9).
    ///
    /// # Errors
    /// What `addr` is instead.
    fn place(&self, addr: u64) -> Result<RegionAddress, PlaceError>;

    /// The address of the allocated block that begins at a place. Poseidon's `get_rawptr`.
    ///
    /// # Errors
    /// What is there instead; [`FreeError::OtherPool`]: it is a place of another pool.
    fn address(&self, place: &RegionAddress) -> Result<u64, PlaceError>;

    /// Numbered root `index` of 1,024 (RAL-6).
    ///
    /// # Errors
    /// There is no such root.
    fn root(&self, index: u16) -> Result<RootEntry, RootError> {
        roots::read(index, self.root_slot(index)?)
    }

    /// Where root `index` lies, for a transaction to log and write.
    ///
    /// # Errors
    /// There is no such root.
    fn root_slot(&self, index: u16) -> Result<NonNull<RootSlot>, RootError>;

    /// How such a slot is stored. What passes calls on to a heap passes this one on too.
    fn root_way(&self) -> RootWay {
        RootWay::default()
    }

    /// Whether a store of the program finds all of its metadata and roots read-only, as far as this
    /// process has looked at them.
    fn is_guarded(&self) -> bool {
        false
    }

    /// Sets root `index` outside a transaction: durable on return. The address is written last and
    /// decides.
    ///
    /// # Errors
    /// There is no such root, or the pool is read-only.
    fn set_root(&self, index: u16, addr: u64, type_id: TypeId) -> Result<(), RootError>;
}

/// Answers about all blocks of a heap: walking, checking, counting. Apart from [`Heap`], because
/// transactions need none of it, and what a transaction names is compiled into each program.
pub trait Inspect: Heap {
    /// Calls `visit` for every allocated block, in order of addresses within a puddle. Blocks that
    /// are allocated or freed meanwhile may be seen or not.
    ///
    /// # Errors
    /// A puddle cannot be mapped.
    fn walk(&self, visit: &mut dyn FnMut(BlockInfo)) -> Result<(), RecoverError>;

    /// Looks at everything and changes nothing. With `types`, traces from the roots too, and names
    /// what is allocated but not reachable, and what is reachable but not allocated. The answer is
    /// exact if no thread allocates, frees or changes data meanwhile.
    ///
    /// # Errors
    /// A puddle cannot be mapped.
    fn check(&self, types: Option<&dyn Types>) -> Result<HeapReport, RecoverError> {
        self.check_from(types, &[], TraceOptions::default())
    }

    /// [`Inspect::check`] with further roots, addresses that something outside of the pool leads
    /// to: what only they lead to is no leak. By as many threads as `options` allow, with progress
    /// reported.
    ///
    /// # Errors
    /// As [`Inspect::check`]; [`RecoverError::Cancelled`].
    fn check_from(
        &self,
        types: Option<&dyn Types>,
        roots: &[u64],
        options: TraceOptions<'_>,
    ) -> Result<HeapReport, RecoverError>;

    /// The addresses in other pools that something leads to which can be reached from this pool's
    /// roots and from `roots`. Changes nothing, and believes no mark. The other pools must be open,
    /// or their addresses are not known to be theirs.
    ///
    /// # Errors
    /// A puddle cannot be mapped.
    fn foreign_pointers(
        &self,
        types: &dyn Types,
        roots: &[u64],
    ) -> Result<BTreeSet<u64>, RecoverError>;

    /// Counts.
    ///
    /// # Errors
    /// A puddle cannot be mapped.
    fn stats(&self) -> Result<HeapStats, RecoverError>;
}

/// [`Heap::place`] for a heap on a backing.
pub(crate) fn place_on<G: Backing>(
    heap: &impl Heap,
    backing: &G,
    addr: u64,
) -> Result<RegionAddress, PlaceError> {
    heap.find(addr)?;
    backing.place(addr).ok_or(PlaceError::NoBlock(FreeError::NotInHeap { addr }))
}

/// [`Heap::address`] for a heap on a backing.
pub(crate) fn address_on<G: Backing>(
    heap: &impl Heap,
    backing: &G,
    place: &RegionAddress,
) -> Result<u64, PlaceError> {
    let addr = backing.region(place).ok_or(PlaceError::Nowhere(*place))?;
    heap.find(addr)?;
    Ok(addr)
}
