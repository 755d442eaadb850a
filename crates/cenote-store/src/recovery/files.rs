//! Finds the files that recovery can use, and where what a log names is now.
//!
//! A log says addresses of the window in which it was written. If that window has moved since, and
//! the log with it, because it waited ([`crate::relocate::window`], "What waits"), its puddles are
//! pending: their headers say the addresses of before. So do the puddles that it may be about,
//! because no session has rewritten them. So an entry means the puddle that lies as far from where
//! the entry says as the log lies from where it was written. It counts only if that puddle is
//! pending, and what it holds is right for the address that the entry means.

use super::replaying::Replaying;
use crate::kernel::puddles::puddle::{Puddle, file_name, text};
use crate::kernel::puddles::verify::of_file;
use crate::pending_rewrite::FoundRewrite;
use cenote_layout::catalog::{PendingRewriteRecord, PuddleRecord};
use cenote_layout::id::{PoolId, Uuid};
use cenote_layout::log_space::LogSpaceEntry;
use cenote_layout::puddle::Role;
use cenote_medium::MediumError;
use cenote_medium::planted::{Bug, planted};
use std::collections::BTreeSet;

impl Replaying<'_> {
    /// This client is the one in hand.
    pub(super) fn begin(&mut self, client: Uuid) {
        let state = &self.control.catalog.state;
        self.client = client;
        self.pools = state.writable_pools(client);
        self.moved = state.moved_since(client);
    }

    /// Where what the client in hand says of an address is now, by the catalog.
    pub(super) fn now_at(&self, addr: u64) -> u64 {
        let by = self.moved.filter(|_| !planted(Bug::MovedLogAtHome));
        addr.wrapping_add(by.unwrap_or(0))
    }

    /// The puddle that holds what the client in hand says of an address.
    pub(super) fn record_at(&self, addr: u64) -> Option<PuddleRecord> {
        let addr = self.now_at(addr);
        let (_, record) = self.by_addr.range(..=addr).next_back()?;
        (addr - record.addr < record.size).then_some(*record)
    }

    /// The log puddle that an entry of the client's log space names.
    pub(super) fn listed_puddle(&self, entry: &LogSpaceEntry) -> Option<PuddleRecord> {
        let known = self.control.catalog.state.puddles.get(&entry.puddle).copied();
        known.filter(|known| known.role == Role::Log && known.addr == self.now_at(entry.addr))
    }

    /// What is wrong with the file of a puddle, if something is.
    pub(super) fn problem(&mut self, record: &PuddleRecord) -> Result<Option<String>, MediumError> {
        let inner = self.inner;
        let state = &self.control.catalog.state;
        if state.is_protected(record.pool) {
            let why = "its pool is protected at rest, and has its logs in memory: this log cannot \
                       belong to it";
            return Ok(Some(why.into()));
        }
        let key = (record.uuid, self.moved);
        if let Some(known) = self.verified.get(&key) {
            return Ok(known.clone());
        }
        let found = match state.pending.get(&record.uuid) {
            None if self.moved.is_some() && record.role.is_of_pool() => {
                Ok(Some("it was rewritten since the log was written".into()))
            }
            None => inner.check_file(state, record),
            Some(pending) => self.problem_of_pending(record, pending),
        };
        let found = of_file(found)?;
        self.verified.insert(key, found.clone());
        Ok(found)
    }

    fn problem_of_pending(
        &self,
        record: &PuddleRecord,
        pending: &PendingRewriteRecord,
    ) -> Result<Option<String>, MediumError> {
        let state = &self.control.catalog.state;
        match self.inner.look_at(file_name(record.uuid), record, pending)? {
            FoundRewrite::Damaged(problem) => Ok(Some(problem)),
            FoundRewrite::Old if !record.role.is_of_pool() => Ok(None),
            FoundRewrite::Old
                if self.moved.is_some_and(|by| record.addr.wrapping_sub(by) == pending.from) =>
            {
                self.inner.check_stamp(state, record, text(&file_name(record.uuid)))
            }
            FoundRewrite::New if self.moved.is_none() => Ok(None),
            FoundRewrite::New => Ok(Some("it was rewritten since the log was written".into())),
            FoundRewrite::Old => Ok(Some(
                "it has moved and was not touched since, so no log can have entries for it".into(),
            )),
        }
    }

    /// Pools of which a file is damaged. Those that went back to their last psync, or have no
    /// shadow to lose, are not among them; nor do puddles count that took no store since they
    /// moved.
    pub(super) fn unusable(
        &mut self,
        pools: &BTreeSet<PoolId>,
    ) -> Result<BTreeSet<PoolId>, MediumError> {
        let mut unusable = BTreeSet::new();
        if !self.inner.writable || planted(Bug::DamagedInherited) {
            return Ok(unusable);
        }
        for pool in pools {
            for record in self.control.catalog.state.puddles_of(*pool) {
                if self.is_damaged(&record)? {
                    unusable.insert(*pool);
                    break;
                }
            }
        }
        Ok(unusable)
    }

    fn is_damaged(&mut self, record: &PuddleRecord) -> Result<bool, MediumError> {
        let state = &self.control.catalog.state;
        if state.is_protected(record.pool) {
            return Ok(false);
        }
        let inner = self.inner;
        if let Some(pending) = state.pending.get(&record.uuid) {
            // One that has moved in a lease that goes on may have taken stores before.
            let counts = pending.is_unknown() || !state.is_shadowed(record.pool);
            let found = || {
                of_file(
                    inner
                        .look_at(file_name(record.uuid), record, pending)
                        .map(FoundRewrite::damage),
                )
            };
            return Ok(counts && found()?.is_some());
        }
        let shadowed = state.is_shadowed(record.pool);
        let damaged = self.problem(record)?.is_some();
        let primary = || of_file(inner.check_primary(&self.control.catalog.state, record));
        Ok(damaged || (shadowed && primary()?.is_some()))
    }

    /// Keeps what replay has made of a puddle that has moved, in a store that is open for reading:
    /// its image is rewritten from that. Whether it is still to be rewritten.
    pub(super) fn hold_moved(&self, puddle: &Puddle) -> Result<bool, MediumError> {
        let state = &self.control.catalog.state;
        let known = state.puddles.get(&puddle.uuid()).zip(state.pending.get(&puddle.uuid()));
        let Some((record, pending)) = known else { return Ok(false) };
        let moved = self.inner.look_at(file_name(record.uuid), record, pending)?
            == FoundRewrite::Old
            || planted(Bug::RewrittenHeldAsOld);
        if moved && puddle.is_mapped() {
            // SAFETY: recovery's own mapping, into which replay has stored and nothing else does.
            unsafe { self.inner.frontier().hold_mapped(puddle) }?;
        }
        Ok(moved)
    }
}
