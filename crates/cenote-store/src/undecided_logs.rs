//! Lists the logs that recovery has set aside, and carries out what an operator decides about them
//! (PUD-3).
//!
//! A client with a log that failed its checks stays in the catalog with its leases and logs, and
//! the pools that it could write can be opened for reading only. The operator has two decisions:
//!
//! * *Apply*: the logs are read once more. An operator decides so after bringing back the damaged
//!   file (of a log, of a puddle). A log that fails again stays set aside.
//! * *Discard*: what its transactions had begun stays as it is, half done perhaps. The catalog
//!   records that (see below).
//!
//! # States, and what commits
//!
//! **Apply.** (1) each log that is marked "set aside" loses the mark, by one store: from here on a
//! recovery replays it, or marks it again; (2) the logs are replayed, which is idempotent; (3) as
//! for *discard*.
//!
//! **Discard.** One batch ends the client's leases and removes it, says that its pools in direct
//! mode are to be traced (what the transactions took and did not attach is given back), and gives
//! this session the leases on what the client could write, whose bytes may be in the page cache
//! only, and that its pools may be torn: **it commits**. The logs' puddles have no owner from here
//! on; the next open for writing uses them as spare ones. Those that were replayed, and are the
//! client's beyond doubt, are removed in the same batch, and their files after it: orphans.
//!
//! None of the pools is open meanwhile, not for reading either.
//!
//! # Pools that may be torn
//!
//! States of a pool: *whole*; *torn*, from the batch that removes the last log which could have
//! made it whole ([`Record::PoolTorn`]). So there is no moment at which neither the log is there
//! nor the record. A torn pool is whole again with [`Record::PoolWhole`], which
//! [`Store::declare_whole`] writes and nothing else: **that batch commits**. Recovery keeps the
//! record, and so do clones, archives, imports and backups. A check of values does not end the
//! state: a vector that is half truncated has valid values.
//!
//! A session that takes pools as they are ([`crate::PowerLossPolicy::AsIs`]) answers for them, and
//! leaves them torn for the next one.
//!
//! This crate hands out a handle of a torn pool, which shows bytes and blocks. The layer of values
//! asks [`crate::PoolHandle::is_torn`]. A daemon grants no torn pool.

use crate::credentials::Credentials;
use crate::kernel::interface::error::{BY_DAEMON, StoreError};
use crate::kernel::interface::report::{Damage, OpenReport};
use crate::kernel::pools::pool_rules::find;
use crate::kernel::puddles::puddle::{file_name, text};
use crate::kernel::store::{Control, Inner, Store};
use crate::log_decision::{LogDecision, UndecidedLogs};
use crate::recovery::retry;
use cenote_layout::catalog::{LeaseRecord, PuddleRecord, Record};
use cenote_layout::error_kind::ErrorKind;
use cenote_layout::id::{PoolId, Uuid};
use cenote_layout::puddle::Role;
use cenote_log::CrashKind;
use cenote_medium::MapMode;
use cenote_medium::planted::{Bug, planted};
use std::collections::BTreeSet;
use std::sync::{Arc, PoisonError};

impl Store {
    /// Clients whose logs are set aside; through a daemon, those whose pools are all the caller's.
    ///
    /// # Errors
    /// The daemon cannot be reached.
    pub fn undecided_logs(&self) -> Result<Vec<UndecidedLogs>, StoreError> {
        match self.inner().connection() {
            Some(connection) => connection.daemon.undecided_logs(),
            None => Ok(list(&self.inner().control())),
        }
    }

    /// The same, but only the logs that a user with these credentials may decide about.
    #[must_use]
    pub fn undecided_logs_for(&self, credentials: &Credentials) -> Vec<UndecidedLogs> {
        let control = self.inner().control();
        let own = |id: &PoolId| {
            control.catalog.state.pools.get(id).is_some_and(|pool| credentials.own(pool))
        };
        let mut found = list(&control);
        found.retain(|one| {
            credentials.uid == 0
                || (!one.pools.is_empty() && one.pools.iter().all(|(id, _)| own(id)))
        });
        found
    }

    /// Decides about the logs of one client that are set aside. Afterwards its pools can be opened
    /// for writing. After [`LogDecision::Discard`] they hold what its transactions had done when it
    /// ended, and are torn ([`crate::PoolHandle::is_torn`]) until [`Store::declare_whole`].
    ///
    /// # Errors
    /// No log of this client is set aside; a pool is not the caller's, or open; the logs fail their
    /// checks still (nothing but their marks has changed then); an error of the medium.
    pub fn decide_logs(
        &self,
        credentials: &Credentials,
        client: Uuid,
        decision: LogDecision,
    ) -> Result<(), StoreError> {
        let inner = self.inner();
        if let Some(connection) = inner.connection() {
            inner.check_usable()?;
            return connection.daemon.decide_logs(client, decision);
        }
        // A client's end may be replaying logs of a pool that this one could write too.
        let _replaying = inner.replaying.lock().unwrap_or_else(PoisonError::into_inner);
        let mut guard = inner.begin_write("decide about a log")?;
        let control = &mut *guard;
        let Some(found) = list(control).into_iter().find(|found| found.client == client) else {
            return Err(StoreError::Refused {
                kind: ErrorKind::NotFound,
                detail: format!(
                    "no log of client {client} is set aside: `cenote logs list` shows the clients \
                     that have one"
                ),
            });
        };
        control.refuse_decision(credentials, &found)?;
        let leased = control.catalog.state.writable_pools(client);
        let concerned = |id: &PoolId| found.pools.iter().any(|(known, _)| known == id);
        let pools: Vec<PoolId> = leased.iter().copied().filter(concerned).collect();
        for id in &pools {
            control.pools.remove(id);
        }
        let logs = match decision {
            LogDecision::Apply if !planted(Bug::ApplyNotReplayed) => {
                inner.apply_logs(control, client, &pools)?
            }
            LogDecision::Apply | LogDecision::Discard => Vec::new(),
        };
        let decided = Decided { found: &found, decision, leased: &leased, pools: &pools };
        let mut records = decided.records(control);
        records.extend(logs.iter().map(|puddle| Record::PuddleRemoved(puddle.uuid)));
        inner.commit(control, &records)?;
        for puddle in &logs {
            inner.forget(control, puddle);
            let _ = inner.medium.remove(text(&file_name(puddle.uuid)));
        }
        forget(control, client);
        for pool in pools {
            control.dirty.entry(pool).or_insert(CrashKind::Process);
        }
        Ok(())
    }
}

impl Control {
    /// Refuses a decision about pools that are not the caller's, or open.
    fn refuse_decision(
        &self,
        credentials: &Credentials,
        found: &UndecidedLogs,
    ) -> Result<(), StoreError> {
        if found.pools.is_empty() && credentials.uid != 0 {
            return Err(StoreError::Permission {
                name: format!("of client {}", found.client),
                what: "decided about",
            });
        }
        for (id, name) in &found.pools {
            let pool = self.catalog.state.pools.get(id);
            if pool.is_some_and(|pool| !credentials.own(pool)) {
                return Err(StoreError::Permission { name: name.clone(), what: "decided about" });
            }
            self.refuse_held(*id, name)?;
        }
        Ok(())
    }
}

impl Inner {
    /// Replays a client's logs. Those that are its own beyond doubt, and empty now, with its log
    /// space.
    fn apply_logs(
        &self,
        control: &mut Control,
        client: Uuid,
        pools: &[PoolId],
    ) -> Result<Vec<PuddleRecord>, StoreError> {
        // Looked at before, they are mapped for that.
        for record in pools.iter().flat_map(|id| control.catalog.state.puddles_of(*id)) {
            if let Some(puddle) = control.puddles.get(&record.uuid) {
                // SAFETY: puddles live until the store is dropped; the pool is not open.
                unsafe { puddle.as_ref() }
                    .set_mode(&self.medium, MapMode::ReadWrite)
                    .map_err(|error| self.failed(error))?;
            }
        }
        let mut report = OpenReport::default();
        let retried = retry(self, control, client, &mut report);
        let Some(mut logs) = retried.map_err(|error| self.failed(error))? else {
            let why: Vec<String> = report.damage.iter().map(ToString::to_string).collect();
            forget(control, client);
            control.damage.extend(report.damage);
            let detail =
                format!("the logs of client {client} fail their checks still: {}", why.join("; "));
            return Err(StoreError::Refused { kind: ErrorKind::Damaged, detail });
        };
        let state = &control.catalog.state;
        let space = state.clients.get(&client).and_then(|space| state.puddles.get(space));
        logs.extend(space.filter(|puddle| puddle.role == Role::LogSpace));
        Ok(logs)
    }
}

/// A decision that is carried out.
struct Decided<'a> {
    found: &'a UndecidedLogs,
    decision: LogDecision,
    /// Pools that the client could write.
    leased: &'a BTreeSet<PoolId>,
    /// Of those, the ones that its logs may be about.
    pools: &'a [PoolId],
}

impl Decided<'_> {
    /// What the batch says that ends the client.
    fn records(&self, control: &Control) -> Vec<Record> {
        let (client, us, state) = (self.found.client, control.client, &control.catalog.state);
        let mut records = vec![Record::LeasesEnded(client)];
        if state.clients.contains_key(&client) {
            records.push(Record::ClientRemoved(client));
        }
        let direct = self.pools.iter().filter(|id| !state.is_shadowed(**id));
        if !planted(Bug::DiscardNotTraced) {
            records.extend(direct.map(|id| Record::TraceDue(*id)));
        }
        if self.decision == LogDecision::Discard && !planted(Bug::TornForgotten) {
            records.extend(self.found.pools.iter().map(|(id, _)| Record::PoolTorn(*id)));
        }
        let keep =
            |pool: &PoolId| Record::Lease(LeaseRecord { client: us, pool: *pool, writable: true });
        records.extend(self.leased.iter().map(keep));
        records
    }
}

impl Store {
    /// Says that a torn pool is whole: values of it are shown again. Durable on return. Nothing
    /// happens where the pool is not torn.
    ///
    /// # Errors
    /// There is no such pool; it is not the caller's, or open; an error of the medium.
    /// [`StoreError::PoolNotCovered`]: what its logs say was not decided yet, which takes a session
    /// that opens it with [`crate::PowerLossPolicy::AsIs`].
    ///
    /// # Safety
    /// The pool is as whole transactions left it: each block holds a value of its type, and
    /// collections are as their headers say. Safe code in all later sessions relies on it.
    pub unsafe fn declare_whole(
        &self,
        credentials: &Credentials,
        name: &str,
    ) -> Result<(), StoreError> {
        let inner = self.inner();
        if let Some(connection) = inner.connection() {
            inner.check_usable()?;
            return connection.daemon.declare_whole(name);
        }
        let mut guard = inner.begin_write("declare a pool whole")?;
        let control = &mut *guard;
        let id = find(control, name)?;
        let state = &control.catalog.state;
        if state.pools.get(&id).is_some_and(|pool| !credentials.own(pool)) {
            return Err(StoreError::Permission { name: name.into(), what: "declared whole" });
        }
        if control.pools.get(&id).is_some_and(|core| Arc::strong_count(core) > 1) {
            return Err(StoreError::PoolInUse { name: name.into() });
        }
        if control.held().any(id) {
            return Err(StoreError::PoolHeld { name: name.into(), by: BY_DAEMON.into() });
        }
        if state.not_covered.contains(&id) {
            return Err(StoreError::PoolNotCovered { name: name.into() });
        }
        if state.torn.contains(&id) {
            inner.commit(control, &[Record::PoolWhole(id)])?;
        }
        Ok(())
    }

    /// Pools that may be torn, by name.
    #[must_use]
    pub fn torn_pools(&self) -> Vec<String> {
        let control = self.inner().control();
        let state = &control.catalog.state;
        state.torn.iter().filter_map(|id| Some(state.pools.get(id)?.name.clone())).collect()
    }
}

/// Takes back what was said about a client's logs.
fn forget(control: &mut Control, client: Uuid) {
    control.damage.retain(|damage| client_of(damage) != Some(client));
}

fn client_of(damage: &Damage) -> Option<Uuid> {
    match damage {
        Damage::Log { client, .. } | Damage::LogSpace { client, .. } => Some(*client),
        _ => None,
    }
}

fn list(control: &Control) -> Vec<UndecidedLogs> {
    let mut found: Vec<UndecidedLogs> = Vec::new();
    for damage in &control.damage {
        let Some(client) = client_of(damage) else { continue };
        let why = damage.to_string();
        let state = &control.catalog.state;
        let name = |id: PoolId| Some((id, state.pools.get(&id)?.name.clone()));
        let pools: Vec<(PoolId, String)> = damage.pools().into_iter().filter_map(name).collect();
        match found.iter_mut().find(|found| found.client == client) {
            Some(found) => {
                found.why.push(why);
                found.pools.extend(pools);
                found.pools.sort_unstable();
                found.pools.dedup();
            }
            None => found.push(UndecidedLogs { client, pools, why: vec![why] }),
        }
    }
    found
}
