//! One recovery at work: what it has mapped, and whose logs it has in hand.

use super::problem::Problem;
use super::verdict::Verdict;
use crate::kernel::interface::report::OpenReport;
use crate::kernel::puddles::notice::Watcher;
use crate::kernel::puddles::puddle::{Puddle, pool_named};
use crate::kernel::store::{Control, Inner};
use cenote_layout::catalog::PuddleRecord;
use cenote_layout::id::{PoolId, Uuid};
use cenote_log::{Body, CrashKind};
use cenote_medium::{MapMode, MediumError};
use core::ptr::NonNull;
use std::collections::{BTreeMap, BTreeSet};

/// One recovery: the files that it has verified and mapped, and the client in hand.
pub(super) struct Replaying<'a> {
    pub(super) inner: &'a Inner,
    pub(super) control: &'a mut Control,
    /// The catalog's puddles by their addresses.
    pub(super) by_addr: BTreeMap<u64, PuddleRecord>,
    /// What is wrong with a file, for logs that have moved so far.
    pub(super) verified: BTreeMap<(Uuid, Option<u64>), Option<String>>,
    /// Mapped by recovery.
    pub(super) mapped: BTreeSet<Uuid>,
    /// Pools that went back to their last psync.
    pub(super) void: &'a BTreeSet<PoolId>,
    /// Of the client in hand.
    pub(super) client: Uuid,
    /// Pools that it had writable leases on.
    pub(super) pools: BTreeSet<PoolId>,
    /// How far its logs have moved since they were written.
    pub(super) moved: Option<u64>,
    /// Segments of its logs, by the addresses that its log space says.
    pub(super) segments: BTreeMap<u64, PuddleRecord>,
    /// All puddles that its log space lists, and the catalog knows.
    pub(super) listed: Vec<PuddleRecord>,
}

impl<'a> Replaying<'a> {
    pub(super) fn new(
        inner: &'a Inner,
        control: &'a mut Control,
        void: &'a BTreeSet<PoolId>,
    ) -> Self {
        let by_addr = control.catalog.state.puddles.values().map(|p| (p.addr, *p)).collect();
        Self {
            inner,
            control,
            by_addr,
            verified: BTreeMap::new(),
            mapped: BTreeSet::new(),
            void,
            client: Uuid::NIL,
            pools: BTreeSet::new(),
            moved: None,
            segments: BTreeMap::new(),
            listed: Vec::new(),
        }
    }

    /// Replays the logs of one client and ends the recovery; the log puddles that are its own
    /// beyond doubt, if all are empty now.
    pub(super) fn client_and_its_logs(
        mut self,
        client: Uuid,
        report: &mut OpenReport,
    ) -> Result<Option<Vec<PuddleRecord>>, MediumError> {
        let verdict = self.client(client, CrashKind::Process, report);
        let own = self.own_logs(client);
        // Also after a failure.
        self.finish()?;
        Ok((verdict? == Verdict::Done).then_some(own?))
    }

    pub(super) fn map(&mut self, record: &PuddleRecord) -> Result<NonNull<Puddle>, MediumError> {
        let mode = if self.inner.writable { MapMode::ReadWrite } else { MapMode::PrivateCopy };
        let puddle = self.inner.own(self.control, *record, mode);
        // SAFETY: puddles live until the store is dropped. Recovery alone uses it, until `finish`,
        // and asks `lost`.
        unsafe {
            if self.mapped.insert(record.uuid) {
                self.inner.watch(puddle.as_ref(), Watcher::Recovery);
            }
            puddle.as_ref().map(&self.inner.medium)?;
        }
        Ok(puddle)
    }

    /// A puddle of which a page was lost since it was mapped, and the page: then what was read of
    /// it may be other bytes, and what was stored there is not in the file.
    pub(super) fn lost(&self) -> Option<(Uuid, u64)> {
        self.mapped.iter().find_map(|uuid| {
            // SAFETY: puddles live until the store is dropped.
            let puddle = unsafe { self.control.puddles.get(uuid)?.as_ref() };
            Some((*uuid, puddle.notice.lost()?))
        })
    }

    /// The body of a log puddle of this store, if it is sound.
    pub(super) fn log_body(&mut self, record: &PuddleRecord) -> Result<Body, Problem> {
        if let Some(problem) = self.problem(record)? {
            return Err(problem.into());
        }
        let puddle = self.map(record)?;
        // SAFETY: puddles live until the store is dropped.
        let body = crate::kernel::logs::body_of(unsafe { puddle.as_ref() });
        if body.len < Body::LEN_MIN { Err("it is too small for a log".into()) } else { Ok(body) }
    }

    /// Takes recovery's mappings away; a read-only open keeps the private pages it has replayed
    /// into, protected.
    pub(super) fn finish(mut self) -> Result<(), MediumError> {
        for uuid in core::mem::take(&mut self.mapped) {
            let Some(puddle) = self.control.puddles.get(&uuid) else { continue };
            // SAFETY: puddles live until the store is dropped.
            let puddle = unsafe { puddle.as_ref() };
            self.inner.unwatch(puddle);
            if self.inner.writable || puddle.pool().0 == 0 || self.hold_moved(puddle)? {
                puddle.unmap(&self.inner.medium)?;
                continue;
            }
            if puddle.notice.lost().is_some() {
                // What took the page's place is shown to no reader.
                puddle.refuse(&self.inner.medium)?;
                continue;
            }
            let pool = pool_named(&self.control.catalog.state, puddle.pool());
            // SAFETY: the puddle's own range, mapped by this store; nothing writes to it any more.
            unsafe { puddle.close_for_stores(&pool) }?;
        }
        Ok(())
    }
}
