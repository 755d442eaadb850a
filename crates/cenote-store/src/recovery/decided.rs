//! The decisions of recovery: the records of the batch that commits it, and what follows from them.

use super::covered::{covered, taken_as_is};
use super::dead::Dead;
use super::replaying::Replaying;
use super::verdict::Verdict;
use crate::kernel::catalog::CatalogState;
use crate::kernel::interface::report::{Damage, OpenReport};
use crate::kernel::store::{Control, Inner};
use cenote_layout::catalog::{LeaseRecord, Record};
use cenote_layout::id::{PoolId, Uuid};
use cenote_log::CrashKind;
use cenote_medium::MediumError;
use cenote_medium::planted::{Bug, planted};
use std::collections::BTreeSet;

/// Pools in shadowed mode after a loss of power.
pub(super) struct Restored {
    /// Those that went back to their last psync: what logs say about them is void.
    pub(super) void: BTreeSet<PoolId>,
    /// Of those, the ones that are not whole.
    lost: BTreeSet<PoolId>,
}

impl Restored {
    /// Brings the pools back from their primaries and the journal.
    pub(super) fn by_journal(
        inner: &Inner,
        control: &mut Control,
        crash: Option<CrashKind>,
        report: &mut OpenReport,
    ) -> Result<Self, MediumError> {
        let void = crate::restored::void(&control.catalog.state, crash);
        let mut lost = crate::restored::restore(inner, control, &void, report)?;
        if report.copied {
            // Primaries and journal are of different moments, too. What is sealed shows that
            // itself.
            let state = &control.catalog.state;
            lost.extend(void.iter().filter(|pool| !state.is_protected(**pool)));
        }
        Ok(Self { void, lost })
    }
}

/// The decisions so far.
pub(super) struct Decided<'a> {
    restored: &'a Restored,
    /// Of the batch that commits the recovery.
    pub(super) records: Vec<Record>,
    /// Pools that a loss of power may have torn.
    pub(super) not_covered: BTreeSet<PoolId>,
    /// Of those, the ones that the caller takes as they are.
    as_is: BTreeSet<PoolId>,
    /// Pools whose leases this session takes over.
    pub(super) inherited: BTreeSet<PoolId>,
    /// Clients that go from the catalog.
    pub(super) retired: BTreeSet<Uuid>,
    /// Whether clients are among them.
    pub(super) clients_gone: bool,
}

/// The pools that a dead client could write.
struct Leased {
    client: Uuid,
    /// Those that went back to their last psync.
    void: BTreeSet<PoolId>,
    pools: BTreeSet<PoolId>,
    /// Whether a loss of power may have torn one of `pools`.
    torn: bool,
}

impl<'a> Decided<'a> {
    pub(super) fn new(restored: &'a Restored, state: &CatalogState) -> Self {
        Self {
            restored,
            records: Vec::new(),
            not_covered: state.not_covered.clone(),
            as_is: BTreeSet::new(),
            inherited: BTreeSet::new(),
            retired: BTreeSet::new(),
            clients_gone: false,
        }
    }

    /// Finds the pools that a loss of power may have torn, and those that the caller takes as they
    /// are.
    pub(super) fn say_what_is_not_covered(
        &mut self,
        inner: &Inner,
        control: &Control,
        dead: &Dead,
        crash: Option<CrashKind>,
        report: &mut OpenReport,
    ) {
        let state = &control.catalog.state;
        if crash == Some(CrashKind::Power) && (report.copied || !covered(inner, control)) {
            for pool in dead.clients.iter().flat_map(|client| state.writable_pools(*client)) {
                if !self.restored.void.contains(&pool) {
                    self.not_covered(pool);
                }
            }
        }
        if inner.stamps.is_new_copy() {
            // Sessions may have begun to write them since the catalog was copied.
            for pool in inner.unproven(state) {
                self.not_covered(pool);
            }
        }
        for pool in &self.restored.void {
            if self.restored.lost.contains(pool) {
                self.not_covered(*pool);
            } else if self.not_covered.remove(pool) {
                self.records.push(Record::PoolCovered(*pool));
                // Its shadow is made anew, in the page cache so far, and no client has a lease on
                // it.
                self.inherited.extend(Some(*pool).filter(|_| !planted(Bug::RestoredNotLeased)));
            }
        }
        report.not_covered = self
            .not_covered
            .iter()
            .map(|id| (*id, state.pools.get(id).map_or_else(String::new, |pool| pool.name.clone())))
            .collect();
        self.as_is = taken_as_is(inner, state, dead, &self.restored.void, &self.not_covered);
    }

    fn not_covered(&mut self, pool: PoolId) {
        if self.not_covered.insert(pool) {
            self.records.push(Record::PoolNotCovered(pool));
        }
    }

    /// Replays the logs of one client, and decides what becomes of it and of its leases.
    pub(super) fn client(
        &mut self,
        replaying: &mut Replaying<'_>,
        client: Uuid,
        crash: Option<CrashKind>,
        report: &mut OpenReport,
    ) -> Result<(), MediumError> {
        let leased = self.leased(client, &replaying.control.catalog.state);
        self.records.extend(replaying.control.catalog.state.process_ended(client));
        for pool in &leased.void {
            note_dirty(replaying.control, *pool, CrashKind::Power);
        }
        self.inherited.extend(leased.void.difference(&self.restored.lost));
        if leased.torn && !leased.pools.iter().any(|pool| self.as_is.contains(pool)) {
            self.leave_for_later(&leased);
            return Ok(());
        }
        let kind = leased.read_as(&replaying.control.catalog.state, crash);
        for pool in &leased.pools {
            note_dirty(replaying.control, *pool, kind);
        }
        // After a loss of power nothing that its logs say counts.
        let silent = kind == CrashKind::Power && leased.pools.is_empty() && !leased.void.is_empty();
        let verdict = if silent && !planted(Bug::VoidLogReplayed) {
            Verdict::Done
        } else {
            replaying.client(client, kind, report)?
        };
        if kind == CrashKind::Power && !planted(Bug::TraceDueForgotten) {
            // The heap gives back blocks that are allocated and that no root leads to.
            self.records.extend(leased.pools.iter().copied().map(Record::TraceDue));
        }
        let stays = self.pools_that_wait(verdict, &leased);
        let unusable = replaying.unusable(&leased.pools)?;
        self.end_leases(leased, stays, &unusable, &replaying.control.catalog.state);
        Ok(())
    }

    fn leased(&self, client: Uuid, state: &CatalogState) -> Leased {
        let (void, pools): (BTreeSet<PoolId>, BTreeSet<PoolId>) = state
            .writable_pools(client)
            .into_iter()
            .partition(|pool| self.restored.void.contains(pool));
        let torn = pools.iter().any(|pool| self.not_covered.contains(pool));
        Leased { client, void, pools, torn }
    }

    /// A client whose pools may be torn stays; it keeps its leases on pools that are not void.
    fn leave_for_later(&mut self, leased: &Leased) {
        if !leased.void.is_empty() {
            self.records.push(Record::LeasesEnded(leased.client));
            self.records.extend(leased.pools.iter().map(|pool| lease(leased.client, *pool)));
        }
    }

    /// The pools with which a client stays, if it does. A caller that accepts torn pools as they
    /// are gets them without the logs that do not fit them. And a log that concerns no pool any
    /// more is of no use.
    fn pools_that_wait(&mut self, verdict: Verdict, leased: &Leased) -> Option<BTreeSet<PoolId>> {
        match verdict {
            Verdict::Stays(concerned) if !leased.torn && !leased.pools.is_empty() => {
                Some(concerned)
            }
            Verdict::Stays(_) => {
                self.records.extend(leased.pools.iter().copied().map(Record::PoolTorn));
                None
            }
            Verdict::Done => None,
        }
    }

    /// Ends a client's leases, except those on pools that wait and on pools with damaged files; and
    /// the client, if nothing waits.
    fn end_leases(
        &mut self,
        leased: Leased,
        stays: Option<BTreeSet<PoolId>>,
        unusable: &BTreeSet<PoolId>,
        state: &CatalogState,
    ) {
        let client = leased.client;
        self.records.push(Record::LeasesEnded(client));
        if stays.is_none() {
            let is_hosted = state.hosted_clients.contains_key(&client);
            if is_hosted || state.clients.contains_key(&client) {
                self.records.push(Record::ClientRemoved(client));
            }
            self.retired.insert(client);
            self.clients_gone |= is_hosted;
        }
        let kept = |pool: &PoolId| {
            unusable.contains(pool)
                || stays.as_ref().is_some_and(|concerned| concerned.contains(pool))
        };
        let (keep, free): (BTreeSet<PoolId>, BTreeSet<PoolId>) =
            leased.pools.into_iter().partition(kept);
        self.records.extend(keep.into_iter().map(|pool| lease(client, pool)));
        self.inherited.extend(free);
    }

    /// Pools that the caller takes as they are count as covered, and as torn: the caller of this
    /// session answers for them, and not the next one. Nothing else is said about them.
    pub(super) fn take_as_is(&mut self, report: &mut OpenReport) {
        self.records.extend(self.as_is.iter().map(|pool| Record::PoolCovered(*pool)));
        if !planted(Bug::TornForgotten) {
            self.records.extend(self.as_is.iter().map(|pool| Record::PoolTorn(*pool)));
        }
        report.damage.retain(|d| {
            !matches!(d, Damage::Log { pools, .. } | Damage::LogSpace { pools, .. }
                if pools.iter().any(|p| self.as_is.contains(p)))
        });
    }

    /// Brings what a reader must know into the catalog in memory; a read-only open appends nothing.
    pub(super) fn show_readers(self, control: &mut Control) {
        for record in self.records {
            match &record {
                Record::PoolNotCovered(_) | Record::TraceDue(_) => {
                    control.catalog.state.apply(&record)
                }
                Record::PoolCovered(pool) if self.restored.void.contains(pool) => {
                    control.catalog.state.apply(&record)
                }
                _ => {}
            }
        }
    }
}

impl Leased {
    /// After which kind of crash the client's logs are read. What waits since a loss of power is
    /// read as that.
    fn read_as(&self, state: &CatalogState, crash: Option<CrashKind>) -> CrashKind {
        let waits = |pool: &PoolId| state.trace_due.contains(pool);
        match self.torn || self.pools.iter().any(waits) {
            true => CrashKind::Power,
            false => crash.unwrap_or(CrashKind::Process),
        }
    }
}

/// Notes that a pool was in use when its writer ended; a loss of power says more than a dead
/// process.
pub(super) fn note_dirty(control: &mut Control, pool: PoolId, kind: CrashKind) {
    let noted = control.dirty.entry(pool).or_insert(kind);
    if kind == CrashKind::Power {
        *noted = kind;
    }
}

/// A lease for writing.
pub(super) fn lease(client: Uuid, pool: PoolId) -> Record {
    Record::Lease(LeaseRecord { client, pool, writable: true })
}
