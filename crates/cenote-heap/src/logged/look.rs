//! Answers tools about a logged heap ([`Trace`]): all blocks, counts, a check. Nothing changes.

use super::error::Damage;
use super::members::LoggedHeap;
use super::state::SubHeap;
use crate::backing::Backing;
use crate::block::BlockInfo;
use crate::error::{FreeError, RecoverError, WrongKind};
use crate::heap::Trace;
use crate::reach::{Followed, Holder, check_reached, count_blocks};
use crate::report::{HeapReport, HeapStats, MetadataDamage, RecoveryReport};
use crate::trace::{TraceOptions, Types};
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
        let stats = count_blocks(&*self.backing, &blocks);
        let report = HeapReport { stats, metadata, ..HeapReport::default() };
        let Some(types) = types else { return Ok(report) };
        check_reached(self, (&blocks, report), types, roots, options)
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

impl<G: Backing> Trace for LoggedHeap<G> {
    fn walk(&self, visit: &mut dyn FnMut(BlockInfo)) -> Result<(), RecoverError> {
        self.look().0.into_iter().for_each(visit);
        Ok(())
    }

    fn check(&self, types: Option<&dyn Types>) -> Result<HeapReport, RecoverError> {
        self.check_from(types, &[], TraceOptions::default())
    }

    fn stats(&self) -> Result<HeapStats, RecoverError> {
        Ok(count_blocks(&*self.backing, &self.look().0))
    }

    fn recover(&self, _: &dyn Types, _: &[u64]) -> Result<RecoveryReport, RecoverError> {
        Err(WrongKind {
            pool: self.backing.name(),
            heap: "logged",
            what: "be recovered by tracing",
            instead: "its logs say what is allocated, and opening it has applied them",
        }
        .into())
    }
}
