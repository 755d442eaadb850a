//! Gives back the blocks that an operation of several steps has allocated, if it fails: nothing
//! leads to them yet.

use crate::context::TxError;
use crate::transaction::Transaction;

impl Transaction<'_> {
    /// How many blocks the transaction has allocated so far: a mark for
    /// [`Transaction::free_since`].
    #[inline]
    #[must_use]
    pub fn allocated(&self) -> usize {
        self.context.allocated.len()
    }

    /// Gives the blocks back that were allocated since, and not freed, when the transaction
    /// commits.
    ///
    /// # Errors
    /// As [`Transaction::free`]; blocks before the one that failed are freed.
    ///
    /// # Safety
    /// Nothing uses them after commit.
    #[cold]
    pub unsafe fn free_since(&mut self, mark: usize) -> Result<(), TxError> {
        for at in mark..self.allocated() {
            let held = &self.context.allocated[at];
            let (heap, addr) = (held.heap, held.block.addr.as_ptr() as u64);
            if !self.context.freed_at.covers(addr, addr + 1) {
                // SAFETY: the heap outlives the transaction (contract of `alloc`); the rest is the
                // caller's.
                unsafe { self.free(heap.as_ref(), addr)? };
            }
        }
        Ok(())
    }
}
