//! Which blocks lie in puddles that are pending, of a pool whose heap describes them elsewhere
//! or needs others for it: of a logged heap, metadata in some puddles say what lies in the others;
//! of a wear heap, headers beside the blocks are under checks whose key is in the root puddle.
//!
//! *When it is asked:* when a pool is looked at, before its heap is opened, by the thread that
//! does so; a fault reads no other puddle. The answer is kept with what is to be done to each
//! puddle.
//!
//! *Why it stays true of them:* no instruction stores into a puddle that is pending, and the answer
//! is of the moment from which on it was not stored into, or later. Meanwhile the heap changes
//! metadata only of blocks that it gives out or takes back. A program stores into a block that was
//! given out, and for that the puddle is rewritten first. So a puddle that is rewritten late has
//! the old values of some blocks that are free, which nothing reads.
//!
//! *Metadata that are pending themselves* are read as they are: addresses are in no byte of them.
//! Rewriting their puddle changes its header, and in the root puddle roots. So any order is right,
//! and a crash does no harm: each puddle is old or new, and the next opener of the pool asks again.
//! States of a puddle, and the store that commits, are those of the module above.
//!
//! *What is unfinished.* Logs of transactions have ended before a puddle is pending, or its pool
//! waits for them. A change of the heap that a crash broke off, and the tickets of its
//! transactions, stay as they are in the puddles, wherever these go: the answer is that of the next
//! opener of the heap.
//!
//! *Damage.* If one cell of a logged heap is damaged, or the header of a wear heap, the answer is
//! that, with the place of the cell. Nothing is copied or moved then, and a pool that has moved is
//! refused as one with damaged puddles is. A damaged header of one block in a wear heap costs that
//! block, as everywhere: what is in it is copied as it is, and nothing in it is rewritten.

use super::Needs;
use crate::kernel::interface::error::StoreError;
use crate::kernel::interface::pool_blocks::{PoolBlocks, ReadPuddle};
use crate::kernel::puddles::locked::locked;
use crate::kernel::puddles::puddle::{Puddle, file_name, primary_name, text};
use crate::kernel::store::{Control, Inner};
use cenote_layout::catalog::{HeapKind, PuddleRecord};
use cenote_layout::id::PoolId;
use cenote_medium::FileHandle;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;

impl Inner {
    /// The kind of a pool's heap.
    pub(super) fn heap_of(control: &Control, pool: PoolId) -> HeapKind {
        control.catalog.state.pools.get(&pool).map_or(HeapKind::Traced, |pool| pool.heap)
    }

    /// Whether the blocks of a pool are described elsewhere than in their puddles.
    pub(crate) fn is_described_apart(control: &Control, pool: PoolId) -> bool {
        Self::heap_of(control, pool) != HeapKind::Traced
    }

    /// Learns which blocks a pool has whose puddles are pending, if those do not say it themselves.
    /// `Err` in the answer: why that is not known.
    pub(crate) fn learn_blocks(
        &self,
        control: &Control,
        pool: PoolId,
        needs: &mut Needs,
        read: ReadPuddle<'_>,
    ) -> Result<Result<(), String>, StoreError> {
        if needs.blocks.is_some() || !Self::is_described_apart(control, pool) {
            return Ok(Ok(()));
        }
        Ok(self.blocks_of(control, pool, read)?.map(|blocks| {
            needs.blocks = Some(Arc::new(blocks));
        }))
    }

    fn blocks_of(
        &self,
        control: &Control,
        pool: PoolId,
        read: ReadPuddle<'_>,
    ) -> Result<Result<PoolBlocks, String>, StoreError> {
        let Some(rewriter) = &self.frontier().options.rewriter else {
            return Ok(Err("this program cannot rewrite pointers".into()));
        };
        let state = &control.catalog.state;
        let heap = Self::heap_of(control, pool);
        let puddles = state.puddles_of(pool);
        // Only private memory was changed.
        catch_unwind(AssertUnwindSafe(|| rewriter.blocks(heap, &puddles, read)))
            .unwrap_or_else(|_| Ok(Err("looking at the metadata of its heap panicked".into())))
    }

    /// Reads what a puddle holds whose file is not sealed.
    pub(super) fn read_puddle(
        &self,
        control: &Control,
        puddle: &PuddleRecord,
        offset: u64,
        bytes: &mut [u8],
    ) -> Result<(), StoreError> {
        if let Some(held) = locked(&self.frontier().held).get_mut(&puddle.uuid) {
            let held = held.bytes().get(offset as usize..).unwrap_or_default();
            bytes.iter_mut().zip(held).for_each(|(byte, held)| *byte = *held);
            return Ok(());
        }
        // SAFETY: puddles live until the store is dropped.
        let known = control.puddles.get(&puddle.uuid).map(|known| unsafe { known.as_ref() });
        let name = match known.is_some_and(Puddle::shows_primary) {
            true => primary_name(puddle.uuid),
            false => file_name(puddle.uuid),
        };
        Ok(FileHandle::open(&self.medium, text(&name))?.read_exact_at(offset, bytes)?)
    }

    /// Refuses a copy or a move of a pool with a damaged heap.
    pub(crate) fn refuse_damaged_heap(
        &self,
        control: &Control,
        pool: PoolId,
    ) -> Result<(), StoreError> {
        let apart = Self::is_described_apart(control, pool);
        // Sealed files cannot be read without their key: the opener of the copy finds the damage.
        if !apart || self.frontier().options.rewriter.is_none() {
            return Ok(());
        }
        let read: ReadPuddle<'_> =
            &mut |puddle, offset, bytes| self.read_puddle(control, puddle, offset, bytes);
        self.blocks_of(control, pool, read)?.map(drop).map_err(|detail| {
            let state = &control.catalog.state;
            let name = state.pools.get(&pool).map_or_else(String::new, |pool| pool.name.clone());
            StoreError::HeapDamaged { name, detail }
        })
    }
}
