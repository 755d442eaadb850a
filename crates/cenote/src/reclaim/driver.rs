//! The thread of a run: it marks in all pools until nothing is left, condemns the leaks of its own
//! pools, and gives them back.

use super::run::{Ending, Hold, ReclaimRun, Slice, Totals};
use super::{OnReclaimProgress, Outcome, ReclaimProgress, ReclaimReport, ReclaimedType};
use crate::error::ReclaimRefused;
use crate::open_pool::PoolInner;
use cenote_heap::report::LISTED_MAX;
use cenote_heap::{Marked, Reclaim, ReclaimError};
use cenote_layout::id::{PoolId, TypeId};
use core::time::Duration;
use std::collections::{BTreeMap, BTreeSet};
use std::time::Instant;

/// How long a run in the background waits until all pools of its store are open.
const PATIENCE: Duration = Duration::from_secs(10);
/// How often it looks.
pub(super) const LOOK: Duration = Duration::from_millis(5);
/// Leaks that are given back under one hold of a pool's lock.
const GIVE_BACK: usize = 128;

/// One run on the thread that does it.
pub(super) struct Driver<'r, 'p> {
    run: &'r ReclaimRun,
    hold: Duration,
    progress: Option<&'r mut OnReclaimProgress<'p>>,
    totals: Totals,
    so_far: ReclaimProgress,
    /// Pools of the run, once it is sealed.
    ids: Vec<PoolId>,
    /// Addresses in other pools that were passed on.
    known: BTreeSet<u64>,
}

impl<'r, 'p> Driver<'r, 'p> {
    pub(super) fn new(
        run: &'r ReclaimRun,
        hold: Duration,
        progress: Option<&'r mut OnReclaimProgress<'p>>,
    ) -> Self {
        let so_far = ReclaimProgress::default();
        let (ids, known) = (Vec::new(), BTreeSet::new());
        Self { run, hold, progress, totals: Totals::default(), so_far, ids, known }
    }

    fn between(&mut self) -> core::result::Result<(), ReclaimRefused> {
        self.so_far.reached_blocks = self.totals.reached.values().sum();
        if let Some(progress) = &mut self.progress
            && progress(&self.so_far).is_break()
        {
            return Err(ReclaimRefused::Cancelled);
        }
        std::thread::yield_now();
        Ok(())
    }

    /// Runs to the end; the outcomes are the run's then.
    pub(super) fn drive(mut self) {
        let began = Instant::now();
        let mut ending = Ending { run: self.run, outcomes: BTreeMap::new() };
        let marked = self.mark(began);
        let targets: Vec<PoolId> = {
            let members = self.run.members.lock();
            members.list.iter().filter(|member| member.target).map(|member| member.id).collect()
        };
        self.so_far.marked = true;
        for id in targets {
            let outcome = match &marked {
                Ok(()) => self.give_back(id),
                Err(refused) => Err(refused.clone()),
            };
            let outcome = outcome.map(|report| ReclaimReport {
                reached_blocks: self.totals.reached.values().sum(),
                slices: self.totals.slices,
                longest_hold: self.totals.longest_hold,
                took: began.elapsed(),
                ..report
            });
            ending.outcomes.insert(id, outcome);
        }
    }

    fn mark(&mut self, began: Instant) -> core::result::Result<(), ReclaimRefused> {
        let ids = loop {
            match self.run.seal()? {
                Some(ids) => break ids,
                None if began.elapsed() < PATIENCE => std::thread::sleep(LOOK),
                None => {
                    let other = self.run.members.lock().missing().unwrap_or_default();
                    let why = "it was not opened in time: open it too".into();
                    return Err(ReclaimRefused::OtherPool { other, why });
                }
            }
        };
        for &id in &ids {
            while let Slice::Done(true) | Slice::Busy =
                self.run.slice(id, Hold::No, &mut self.totals, |pool| {
                    reclaimable(pool)?.prepare_reclaim()
                })?
            {
                self.between()?;
            }
        }
        self.ids = ids;
        self.mark_on()
    }

    /// Marks until there was a moment at which nothing was pending in any pool.
    fn mark_on(&mut self) -> core::result::Result<(), ReclaimRefused> {
        let ids = self.ids.clone();
        // Addresses that pools lead to in others, and those of them that were not passed on yet.
        let mut known = core::mem::take(&mut self.known);
        let mut more: BTreeMap<PoolId, Vec<u64>> = BTreeMap::new();
        loop {
            let mut changes = Vec::new();
            for &id in &ids {
                changes.push((id, self.mark_one(id, &mut known, &mut more)?));
            }
            if !more.is_empty() {
                continue;
            }
            let mut unchanged = true;
            for (id, before) in changes {
                let now = self
                    .run
                    .slice(id, Hold::No, &mut self.totals, |pool| reclaimable(pool)?.changes())?;
                unchanged &= matches!(now, Slice::Done(now) if now == before);
            }
            // Then all were found with nothing pending, and were so when the last one was: that is
            // the moment.
            if unchanged {
                self.known = known;
                return Ok(());
            }
        }
    }

    /// Marks in one pool until nothing is pending there; its count of changes then.
    fn mark_one(
        &mut self,
        id: PoolId,
        known: &mut BTreeSet<u64>,
        more: &mut BTreeMap<PoolId, Vec<u64>>,
    ) -> core::result::Result<u64, ReclaimRefused> {
        loop {
            let addrs = more.remove(&id).unwrap_or_default();
            let hold = self.hold;
            let slice = self.run.slice(id, Hold::Shared, &mut self.totals, |pool| {
                let marked = reclaimable(pool)?.mark_slice(&addrs, hold)?;
                let owner =
                    |addr: &u64| pool.store.store.puddle_of(*addr).map(cenote_store::Puddle::pool);
                let owned = |addr: u64| Some((owner(&addr)?, addr));
                let foreign: Vec<(PoolId, u64)> =
                    marked.foreign.iter().filter_map(|&a| owned(a)).collect();
                Ok((marked, foreign))
            })?;
            let Slice::Done((Marked { pending, changes, blocks, .. }, foreign)) = slice else {
                if !addrs.is_empty() {
                    more.insert(id, addrs);
                }
                self.between()?;
                continue;
            };
            self.totals.reached.insert(id, blocks);
            for (owner, addr) in foreign {
                if known.insert(addr) {
                    more.entry(owner).or_default().push(addr);
                }
            }
            self.between()?;
            if !pending {
                return Ok(changes);
            }
        }
    }

    /// Condemns the leaks of a pool: all of them, in one slice, so that no program sees a part.
    fn condemn(&mut self, id: PoolId) -> core::result::Result<(), ReclaimRefused> {
        loop {
            match self
                .run
                .slice(id, Hold::Exclusive, &mut self.totals, |pool| reclaimable(pool)?.condemn())?
            {
                Slice::Done(true) => return Ok(()),
                // A transaction has changed something since.
                Slice::Done(false) => self.mark_on()?,
                Slice::Busy => self.between()?,
            }
        }
    }

    fn give_back(&mut self, id: PoolId) -> Outcome {
        let dry_run = self.run.dry_run;
        if !dry_run {
            self.condemn(id)?;
        }
        let hold = if dry_run { Hold::Shared } else { Hold::Exclusive };
        let mut report = ReclaimReport { dry_run, ..ReclaimReport::default() };
        let mut types: BTreeMap<TypeId, ReclaimedType> = BTreeMap::new();
        loop {
            let slice = self.run.slice(id, hold, &mut self.totals, |pool| {
                reclaimable(pool)?.give_back_slice(GIVE_BACK, dry_run, &mut |block| {
                    report.blocks += 1;
                    report.bytes += block.size;
                    if report.listed.len() < LISTED_MAX {
                        report.listed.push(block);
                    }
                    let new = ReclaimedType { type_id: block.type_id, blocks: 0, bytes: 0 };
                    let of_type = types.entry(block.type_id).or_insert(new);
                    of_type.blocks += 1;
                    of_type.bytes += block.size;
                })
            })?;
            self.so_far.blocks = report.blocks;
            self.between()?;
            if let Slice::Done(false) = slice {
                report.types = types.into_values().collect();
                return Ok(report);
            }
        }
    }
}

/// The heap of a pool, whose leaks can be told from its values while both change.
fn reclaimable(pool: &PoolInner) -> core::result::Result<&dyn Reclaim, ReclaimError> {
    Ok(pool.heap.capability::<dyn Reclaim>()?)
}
