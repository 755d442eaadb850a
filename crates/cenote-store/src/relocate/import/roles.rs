//! Which puddles of an import hold metadata of a heap, and nothing else.
//!
//! Of a pool that is not sealed, its own metadata say so: they name puddles for what they hold.
//! Where a puddle is named for both, by a hostile archive, its role is that of blocks, and the
//! opener of the heap finds the overlap. Of a sealed pool the manifest says it, if a pool of this
//! store is copied; a sealed archive cannot, and all its puddles have the role of blocks: an opener
//! accepts metadata there.

use super::Import;
use crate::kernel::interface::error::StoreError;
use crate::kernel::interface::pool_blocks::ReadPuddle;
use cenote_layout::catalog::{AtRest, HeapKind, PuddleRecord};
use cenote_layout::puddle::Role;
use cenote_medium::FileHandle;
use cenote_medium::planted::{Bug, LoggedBug, planted};
use std::panic::{AssertUnwindSafe, catch_unwind};

impl Import {
    /// The roles of the puddles of all slots, whose files are made.
    pub(super) fn roles(&self) -> Result<Vec<Role>, StoreError> {
        let of_slot = |slot: &crate::manifest::ImportSlot| {
            let puddle = &self.manifest.pools[slot.pool].puddles[slot.puddle];
            if puddle.role == Role::Metadata { Role::Metadata } else { Role::Heap }
        };
        let mut roles: Vec<Role> = self.slots.iter().map(of_slot).collect();
        if planted(Bug::Logged(LoggedBug::ImportedRolesForgotten)) {
            roles.fill(Role::Heap);
            return Ok(roles);
        }
        let mut first = 0;
        for (number, pool) in self.manifest.pools.iter().enumerate() {
            if pool.heap == HeapKind::Logged && pool.at_rest == AtRest::None {
                for index in self.metadata_puddles(number, first)? {
                    if let Some(role) = roles.get_mut(first + index as usize) {
                        *role = Role::Metadata;
                    }
                }
            }
            first += pool.puddles.len();
        }
        Ok(roles)
    }

    /// The numbers of the puddles with metadata of a pool whose slots begin with `first`.
    fn metadata_puddles(&self, number: usize, first: usize) -> Result<Vec<u32>, StoreError> {
        let inner = self.store.inner();
        let Some(rewriter) = &inner.frontier().options.rewriter else { return Ok(Vec::new()) };
        let pool = &self.manifest.pools[number];
        let record = |(index, puddle): (u32, &crate::manifest::ImportPuddle)| PuddleRecord {
            uuid: puddle.identity,
            pool: pool.old_id,
            role: Role::Heap,
            index,
            addr: puddle.old_addr,
            size: puddle.size,
        };
        let puddles: Vec<PuddleRecord> = (0..).zip(&pool.puddles).map(record).collect();
        let read: ReadPuddle<'_> = &mut |puddle, offset, bytes| {
            let slot = &self.slots[first + puddle.index as usize];
            Ok(FileHandle::open(&inner.medium, &slot.file)?.read_exact_at(offset, bytes)?)
        };
        // Only private memory was changed.
        catch_unwind(AssertUnwindSafe(|| rewriter.metadata_puddles(pool.heap, &puddles, read)))
            .unwrap_or_else(|_| Ok(Vec::new()))
    }
}
