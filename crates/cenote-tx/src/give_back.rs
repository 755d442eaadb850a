//! Gives back the blocks that an operation of several steps has allocated, if it fails: nothing
//! leads to them yet.

use crate::context::TxError;
use crate::transaction::Transaction;
use cenote_layout::LINE_SIZE;

impl Transaction<'_> {
    /// How many blocks the transaction has allocated so far: a mark for
    /// [`Transaction::free_since`].
    #[inline]
    #[must_use]
    pub fn allocated(&self) -> usize {
        self.context.allocated.len()
    }

    /// How many blocks the transaction frees when it commits.
    #[inline]
    #[must_use]
    pub fn freed(&self) -> usize {
        self.context.freed.len()
    }

    /// Whether it frees the block that begins at an address.
    #[must_use]
    pub fn has_freed(&mut self, addr: u64) -> bool {
        self.context.freed_at.covers(addr, addr.saturating_add(1))
    }

    /// How many words of 8 bytes it can log, or blocks it can free, before its log needs a further
    /// segment.
    #[must_use]
    pub fn log_room(&self) -> u64 {
        self.context.writer.head_room_bytes() / LINE_SIZE
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
