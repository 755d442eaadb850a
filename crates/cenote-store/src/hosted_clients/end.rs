//! Ends guests ([`super`], "The end of a guest").

use crate::kernel::interface::error::StoreError;
use crate::kernel::interface::report::{Damage, LogReport, OpenReport};
use crate::kernel::puddles::puddle::{file_name, text};
use crate::kernel::store::{Control, Inner, Store};
use crate::recovery::recover_guest;
use cenote_layout::catalog::{LeaseRecord, PuddleRecord, Record};
use cenote_layout::id::{PoolId, Uuid};
use cenote_log::{CrashKind, Outcome};
use cenote_medium::planted::{Bug, planted};
use std::collections::BTreeSet;
use std::sync::PoisonError;

/// What the end of a guest was.
#[derive(Clone, Debug)]
pub struct GuestEnd {
    /// Its logs, and what became of them.
    pub logs: Vec<LogReport>,
    /// Logs that were set aside.
    pub damage: Vec<Damage>,
}

impl Store {
    /// Ends a guest whose process has ended (`well`: after a goodbye, and it will not touch its
    /// mappings again): replays its logs, and ends its leases.
    ///
    /// # Errors
    /// No such guest; an error of the medium, after which the guest is there still and this can be
    /// repeated.
    pub fn guest_end(&self, client: Uuid, well: bool) -> Result<GuestEnd, StoreError> {
        let inner = self.inner();
        let Some(mut apart) = inner.begin_end(client)? else {
            return Ok(GuestEnd { logs: Vec::new(), damage: Vec::new() });
        };
        let mut report = OpenReport::default();
        // Other guests go on, however large its logs are: none is granted what this guest has, so
        // nothing that is recorded about it changes meanwhile.
        let recovered = {
            let _replaying = inner.replaying.lock().unwrap_or_else(PoisonError::into_inner);
            recover_guest(inner, &mut apart, client, &mut report)
        };
        let mut guard = inner.begin_write("end a client")?;
        let control = &mut *guard;
        // Nothing of it is used any more.
        control.bury(apart, recovered.is_ok());
        let Some(hosted) = control.hosted_mut().get_mut(&client) else {
            return Err(StoreError::NoGuest { client });
        };
        hosted.ending = false;
        let listed = recovered.map_err(|error| inner.failed(error))?;
        let pools = control.catalog.state.writable_pools(client);
        let done = listed.is_some();
        let idle = done && report.logs.iter().all(|log| log.outcome == Outcome::Idle);
        if let Some(listed) = listed {
            let logs = control.logs_of(client, listed);
            inner.end_recovered(control, client, &pools, &logs)?;
        } else {
            let records = control.catalog.state.process_ended(client);
            inner.commit(control, &records)?;
        }
        for pool in pools {
            if well && idle {
                control.dirty.remove(&pool);
            } else {
                control.dirty.insert(pool, CrashKind::Process);
                // No note of this process has what it stored: the next psync compares all pages.
                inner.forget_parts(pool);
            }
        }
        control.damage.extend(report.damage.iter().cloned());
        control.hosted_mut().remove(&client);
        Ok(GuestEnd { logs: report.logs, damage: report.damage })
    }
}

impl Inner {
    /// The guest is ending: what its recovery works on. `None` if it was given nothing: it is gone.
    fn begin_end(&self, client: Uuid) -> Result<Option<Control>, StoreError> {
        let mut control = self.begin_write("end a client")?;
        let hosted = control.hosted_mut().get_mut(&client).filter(|hosted| !hosted.ending);
        let Some(hosted) = hosted else {
            return Err(StoreError::NoGuest { client });
        };
        if !hosted.recorded {
            control.hosted_mut().remove(&client);
            return Ok(None);
        }
        hosted.ending = true;
        Ok(Some(control.apart(self, client)))
    }

    /// Ends a guest whose logs are empty now, by one batch, and removes their files.
    fn end_recovered(
        &self,
        control: &mut Control,
        client: Uuid,
        pools: &BTreeSet<PoolId>,
        logs: &[PuddleRecord],
    ) -> Result<(), StoreError> {
        let mut records = vec![Record::LeasesEnded(client), Record::ClientRemoved(client)];
        let us = control.client;
        let keep =
            |pool: &PoolId| Record::Lease(LeaseRecord { client: us, pool: *pool, writable: true });
        if !planted(Bug::GuestLeaseNotInherited) {
            records.extend(pools.iter().map(keep));
        }
        records.extend(logs.iter().map(|puddle| Record::PuddleRemoved(puddle.uuid)));
        if planted(Bug::GuestLogsRemovedEarly) {
            logs.iter().for_each(|puddle| drop(self.medium.remove(text(&file_name(puddle.uuid)))));
        }
        self.commit(control, &records)?;
        for puddle in logs {
            self.forget(control, puddle);
            let _ = self.medium.remove(text(&file_name(puddle.uuid)));
        }
        Ok(())
    }
}

impl Control {
    /// The log puddles of a guest: those that it was given, and those of `listed`, its log space.
    /// Of a guest that an earlier daemon admitted, its log space is all that is known otherwise.
    fn logs_of(&self, client: Uuid, listed: Vec<PuddleRecord>) -> Vec<PuddleRecord> {
        let given = self.hosted().get(&client).into_iter().flat_map(|hosted| &hosted.logs);
        let known = given.filter_map(|uuid| self.catalog.state.puddles.get(uuid));
        let mut logs: Vec<PuddleRecord> = known.copied().collect();
        for puddle in listed {
            if logs.iter().all(|known| known.uuid != puddle.uuid) {
                logs.push(puddle);
            }
        }
        logs
    }
}
