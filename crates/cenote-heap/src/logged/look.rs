//! Answers tools about a logged heap ([`Inspect`]): all blocks, counts, a check. Nothing changes.

use super::error::Damage;
use super::members::LoggedHeap;
use super::state::SubHeap;
use crate::backing::Backing;
use crate::block::BlockInfo;
use crate::error::{FreeError, RecoverError};
use crate::heap::Inspect;
use crate::reach::{Followed, Holder, check_reached, count_blocks, reach};
use crate::report::{HeapReport, HeapStats, MetadataDamage};
use crate::trace::{TraceOptions, Types};
use std::collections::BTreeSet;
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
}

impl<G: Backing> Followed for LoggedHeap<G> {
    type Backing = G;

    fn backing(&self) -> &G {
        &self.backing
    }

    fn holder(&self, addr: u64) -> Result<Holder, FreeError> {
        let (_, member) = self.owner_of(addr)?;
        Ok(match member.heap.owner(addr) {
            Ok(Some(block)) => Holder::Block(block),
            Ok(None) => Holder::Nothing,
            Err(_) => Holder::Lost,
        })
    }
}

impl<G: Backing> Inspect for LoggedHeap<G> {
    fn walk(&self, visit: &mut dyn FnMut(BlockInfo)) -> Result<(), RecoverError> {
        self.look().0.into_iter().for_each(visit);
        Ok(())
    }

    fn check_from(
        &self,
        types: Option<&dyn Types>,
        roots: &[u64],
        options: TraceOptions<'_>,
    ) -> Result<HeapReport, RecoverError> {
        let (blocks, metadata) = self.look();
        let stats = count_blocks(&*self.backing, &blocks);
        let report = HeapReport { stats, metadata, ..HeapReport::default() };
        let Some(types) = types else { return Ok(report) };
        check_reached(self, (&blocks, report), types, roots, options)
    }

    fn foreign_pointers(
        &self,
        types: &dyn Types,
        roots: &[u64],
    ) -> Result<BTreeSet<u64>, RecoverError> {
        Ok(reach(self, types, roots, TraceOptions::default())?.foreign)
    }

    fn stats(&self) -> Result<HeapStats, RecoverError> {
        Ok(count_blocks(&*self.backing, &self.look().0))
    }
}
