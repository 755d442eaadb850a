//! Steps of a transaction that collections use beside its public ones: several steps as one
//! ([`half_done`](crate::half_done)), and arrays.

use crate::error::{Error, Result};
use crate::open_pool::{PoolInner, TypeOf};
use crate::persist::{ArrayOf, Persist};
use crate::ptr::Ptr;
use crate::tx::Tx;
use cenote_heap::Heap;
use cenote_layout::id::TypeId;
use cenote_medium::planted::{Bug, CopyBug, planted};
use cenote_tx::TxError;
use core::ptr::NonNull;

impl<'p> Tx<'p> {
    /// Runs steps that leave data half changed until the last one. If a step fails or panics, the
    /// transaction can only abort.
    ///
    /// # Errors
    /// Those of the steps.
    #[doc(hidden)]
    #[inline]
    pub fn all_or_abort<R>(&mut self, steps: impl FnOnce(&mut Self) -> Result<R>) -> Result<R> {
        self.half_done_mut().begin();
        match steps(self) {
            Ok(done) => {
                self.half_done_mut().end();
                Ok(done)
            }
            Err(error) => Err(self.failed_half_way(error)),
        }
    }

    /// Runs steps that allocate, log and write fresh blocks, and change no other data. If a step
    /// fails, the blocks are freed. If that fails too, or a step panics, or one has put a value
    /// into an owner or named it, the transaction can only abort.
    ///
    /// # Errors
    /// Those of the steps.
    #[doc(hidden)]
    #[inline]
    pub fn attempt<R>(&mut self, steps: impl FnOnce(&mut Self) -> Result<R>) -> Result<R> {
        let mark = self.raw_mut().allocated();
        self.half_done_mut().begin();
        match steps(self) {
            Ok(done) => {
                self.half_done_mut().end();
                Ok(done)
            }
            Err(error) => Err(self.failed_at_first(error, mark)),
        }
    }

    // Functions of their own that take the error: what may drop one is compiled into the program,
    // for every kind of error there is.

    #[cold]
    #[inline(never)]
    fn failed_half_way(&mut self, error: Error) -> Error {
        self.half_done_mut().failed(&error);
        error
    }

    #[cold]
    #[inline(never)]
    fn failed_at_first(&mut self, error: Error, mark: usize) -> Error {
        if self.half_done_mut().linked > mark {
            // An owner or a name would lead to a block that is freed.
            return self.failed_half_way(error);
        }
        self.half_done_mut().end();
        self.give_back_since(mark);
        error
    }

    /// An owner or a name leads to a block, perhaps to one that the transaction has allocated.
    pub(crate) fn note_linked(&mut self) {
        let allocated = self.allocated();
        self.half_done_mut().linked = allocated;
    }

    /// How many blocks the transaction has allocated so far.
    #[doc(hidden)]
    #[inline]
    pub fn allocated(&mut self) -> usize {
        self.raw_mut().allocated()
    }

    #[cold]
    fn give_back_since(&mut self, mark: usize) {
        if planted(Bug::FailedKeepsBlocks) {
            return;
        }
        // SAFETY: blocks that the steps have allocated, which nothing leads to. Pointers that a
        // caller keeps dangle, as after `Tx::free`.
        let freed = |tx: &mut Self| unsafe { tx.raw_mut().free_since(mark) };
        // The caller is told why the steps failed.
        let _ = self.all_or_abort(|tx| freed(tx).map_err(Error::from));
    }

    /// Frees a block that nothing leads to, of an operation that has failed. If that fails too, the
    /// transaction can only abort. Returns why the operation failed.
    #[doc(hidden)]
    #[cold]
    pub fn give_back<T: Persist>(&mut self, fresh: Ptr<T>, why: Error) -> Error {
        const { assert!(!T::IS_OWNED, "its owner frees it: use `Tx::free_owned`") };
        self.give_back_at(fresh.addr(), TypeOf::of::<T>(), why)
    }

    /// As [`Tx::give_back`], of a block that no edge owns yet.
    #[cold]
    pub(crate) fn give_back_owned<T: Persist>(&mut self, fresh: Ptr<T>, why: Error) -> Error {
        self.give_back_at(fresh.addr(), TypeOf::of::<T>(), why)
    }

    #[cold]
    #[inline(never)]
    fn give_back_at(&mut self, fresh: u64, of: &TypeOf, why: Error) -> Error {
        if !planted(Bug::FailedKeepsBlocks) {
            let _ = self.all_or_abort(|tx| tx.free_of(fresh, of));
        }
        why
    }

    /// A block for at least `len` values, zeroed, in the pool of `neighbour`. Its capacity is
    /// returned with it: as many values as fit.
    ///
    /// # Errors
    /// As [`Tx::alloc_beside`].
    ///
    /// # Safety
    /// Values of the array are read only after they were written, and those not in use are zero.
    #[doc(hidden)]
    pub unsafe fn alloc_array<N: Persist, T: Persist>(
        &mut self,
        neighbour: Ptr<N>,
        len: usize,
    ) -> Result<(Ptr<ArrayOf<T>>, usize)> {
        let pool = self
            .owner_of::<N>(neighbour.addr())
            .ok_or_else(|| self.dangling::<N>(neighbour.addr()))?;
        pool.know::<ArrayOf<T>>()?;
        let element = (size_of::<T>().max(1), align_of::<T>().max(8) as u64);
        let (place, room) = self.alloc_zeroed(pool, element, len, ArrayOf::<T>::TYPE_ID)?;
        // SAFETY: the address of a block of this type.
        Ok((unsafe { Ptr::from_non_null(place.cast()) }, room))
    }

    /// A block for at least `len` values, zeroed, and for how many there is room.
    #[inline(never)]
    pub(crate) fn alloc_zeroed(
        &mut self,
        pool: &'p PoolInner,
        (size, align): (usize, u64),
        len: usize,
        type_id: TypeId,
    ) -> Result<(NonNull<u8>, usize)> {
        let bytes = (size as u64).checked_mul(len.max(1) as u64);
        let (place, whole) = bytes
            .map(|bytes| self.alloc_whole(pool, (bytes, align), 0, type_id))
            .unwrap_or_else(|| Err(too_many(size, len)))?;
        Ok((place, whole as usize / size))
    }

    /// A block of `size` bytes at least, and how many it has: those from `kept` on are zero.
    ///
    /// The whole block, also what the heap adds, is asked for and cleared: the pointer map of an
    /// array goes over all of it.
    pub(crate) fn alloc_whole(
        &mut self,
        pool: &'p PoolInner,
        (size, align): (u64, u64),
        kept: u64,
        type_id: TypeId,
    ) -> Result<(NonNull<u8>, u64)> {
        let Some(asked) = pool.heap.block_size(size, align) else {
            return Err(too_many(1, usize::try_from(size).unwrap_or(usize::MAX)));
        };
        let place = self.alloc_block(pool, (asked, align), type_id)?;
        let mut clear = asked;
        if planted(Bug::Copy(CopyBug::EndNotCleared)) {
            clear = cenote_heap::class::block_size(size, align).unwrap_or(asked).min(asked);
        }
        // SAFETY: a fresh block of so many bytes, of this transaction alone, which can be written.
        unsafe { place.add(kept as usize).write_bytes(0, (clear - kept) as usize) };
        let mut whole = asked;
        if pool.heap.may_give_more() {
            // Where there is no room for a slab, the heap gives a block of its own.
            let addr = place.as_ptr().addr() as u64;
            whole = pool.heap.usable_size(addr).map_err(TxError::from)?;
            let end = (whole - asked) as usize;
            if end > 0 {
                // SAFETY: the rest of the same block. It was not asked for, so it is logged.
                unsafe {
                    let rest = place.as_ptr().add(asked as usize);
                    self.raw_mut().add(rest, end)?;
                    rest.write_bytes(0, end);
                }
            }
        }
        Ok((place, whole))
    }
}

/// So many values have no block.
#[cold]
fn too_many(size: usize, len: usize) -> Error {
    Error::OutOfBounds { index: len as u64, len: isize::MAX as u64 / size as u64 }
}
