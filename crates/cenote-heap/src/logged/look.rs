//! Answers tools about a logged heap ([`Trace`]): all blocks, counts, a check. Nothing changes.

use super::error::Damage;
use super::members::LoggedHeap;
use super::state::SubHeap;
use crate::backing::Backing;
use crate::block::BlockInfo;
use crate::error::{RecoverError, WrongKind};
use crate::heap::Trace;
use crate::report::{BinStats, HeapReport, HeapStats, LISTED_MAX, MetadataDamage, RecoveryReport};
use crate::trace::{TraceOptions, Types};
use cenote_layout::id::TypeId;
use std::collections::BTreeMap;
use std::sync::Arc;

impl<G: Backing> LoggedHeap<G> {
    /// All allocated blocks, by address in each sub-heap, and what is damaged.
    fn look(&self) -> (Vec<BlockInfo>, Vec<MetadataDamage>) {
        let (mut blocks, mut damage) = (Vec::new(), Vec::new());
        for (sub_heap, heap) in self.sub_heaps() {
            let report = heap.check();
            blocks.extend(report.blocks);
            let tickets = SubHeap::<Arc<G>>::check_tickets(&heap.meta);
            let of = |Damage { offset, what }| MetadataDamage { sub_heap, offset, what };
            damage.extend(report.damage.into_iter().chain(tickets).map(of));
        }
        (blocks, damage)
    }

    /// Counts of `blocks`, which are all that are allocated.
    fn count(&self, blocks: &[BlockInfo]) -> HeapStats {
        let extents = self.backing.extents();
        let mut stats = HeapStats {
            puddles: extents.len() as u64,
            bytes: extents.iter().map(|extent| extent.size).sum(),
            ..HeapStats::default()
        };
        let mut bins: BTreeMap<(TypeId, u64), u64> = BTreeMap::new();
        for block in blocks {
            stats.blocks += 1;
            stats.block_bytes += block.size;
            *bins.entry((block.type_id, block.size)).or_default() += 1;
        }
        let bin = |((type_id, block_size), blocks)| BinStats {
            type_id,
            class: block_size_class(block_size),
            block_size,
            superblocks: 0,
            blocks,
            capacity: blocks,
        };
        stats.bins = bins.into_iter().map(bin).collect();
        stats
    }

    /// [`Trace::check`] with types and further roots: addresses that something outside of the pool
    /// leads to.
    ///
    /// # Errors
    /// As [`Trace::check`]; [`RecoverError::Cancelled`].
    pub fn check_from(
        &self,
        types: Option<&dyn Types>,
        roots: &[u64],
        options: TraceOptions<'_>,
    ) -> Result<HeapReport, RecoverError> {
        let (blocks, metadata) = self.look();
        let mut report =
            HeapReport { stats: self.count(&blocks), metadata, ..HeapReport::default() };
        let Some(types) = types else { return Ok(report) };
        let mut options = options;
        let reached = self.reach(types, roots, options.again())?;
        report.damaged_roots.clone_from(&reached.damaged_roots);
        let mut leaks = Vec::new();
        for block in blocks.iter().filter(|block| !reached.blocks.contains(&block.addr)) {
            report.leaked_blocks += 1;
            report.leaked_bytes += block.size;
            leaks.push(block.addr);
            if report.leaks.len() < LISTED_MAX {
                report.leaks.push(*block);
            }
        }
        if !leaks.is_empty() {
            let further = self.reach_further(types, &reached, &leaks, options)?;
            report.leak_trace = Some(further.counts);
        }
        report.trace = Some(reached.counts);
        Ok(report)
    }
}

/// The power of two that a block's size is, or is below.
const fn block_size_class(size: u64) -> u32 {
    size.next_power_of_two().trailing_zeros()
}

impl<G: Backing> Trace for LoggedHeap<G> {
    fn walk(&self, visit: &mut dyn FnMut(BlockInfo)) -> Result<(), RecoverError> {
        self.look().0.into_iter().for_each(visit);
        Ok(())
    }

    fn check(&self, types: Option<&dyn Types>) -> Result<HeapReport, RecoverError> {
        self.check_from(types, &[], TraceOptions::default())
    }

    fn stats(&self) -> Result<HeapStats, RecoverError> {
        Ok(self.count(&self.look().0))
    }

    fn recover(&self, _: &dyn Types, _: &[u64]) -> Result<RecoveryReport, RecoverError> {
        Err(WrongKind {
            what: "be recovered by tracing",
            instead: "its logs say what is allocated, and opening it has applied them",
        }
        .into())
    }
}
