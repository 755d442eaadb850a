//! Ends clients ([`super`], "The end of a client").

use crate::kernel::interface::error::StoreError;
use crate::kernel::interface::report::{Damage, LogReport, OpenReport};
use crate::kernel::puddles::puddle::{file_name, text};
use crate::kernel::store::{Control, Inner, Store};
use crate::recovery::recover_client;
use cenote_layout::catalog::{LeaseRecord, PuddleRecord, Record};
use cenote_layout::id::{PoolId, Uuid};
use cenote_log::{CrashKind, Outcome};
use cenote_medium::planted::{Bug, planted};
use std::collections::BTreeSet;
use std::sync::PoisonError;

/// What the end of a client was.
#[derive(Clone, Debug)]
pub struct ClientEnd {
    /// Its logs, and what became of them.
    pub logs: Vec<LogReport>,
    /// Logs that were set aside.
    pub damage: Vec<Damage>,
}

impl Store {
    /// Ends a client whose process has ended (`well`: after a goodbye, and it will not touch its
    /// mappings again): replays its logs, and ends its leases.
    ///
    /// # Errors
    /// No such client; an error of the medium, after which the client is there still and this can
    /// be repeated.
    pub fn client_end(&self, client: Uuid, well: bool) -> Result<ClientEnd, StoreError> {
        let inner = self.inner();
        let Some(mut apart) = inner.begin_end(client)? else {
            return Ok(ClientEnd { logs: Vec::new(), damage: Vec::new() });
        };
        let mut report = OpenReport::default();
        // Other clients go on, however large its logs are: none is granted what this client has, so
        // nothing that is recorded about it changes meanwhile.
        let recovered = {
            let _replaying = inner.replaying.lock().unwrap_or_else(PoisonError::into_inner);
            recover_client(inner, &mut apart, client, &mut report)
        };
        let mut guard = inner.begin_write("end a client")?;
        let control = &mut *guard;
        // Nothing of it is used any more.
        control.bury(apart, recovered.is_ok());
        let Some(hosted) = control.hosted_mut().get_mut(&client) else {
            return Err(StoreError::NoClient { client });
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
        Ok(ClientEnd { logs: report.logs, damage: report.damage })
    }
}

impl Inner {
    /// The client is ending: what its recovery works on. `None` if it was given nothing: it is
    /// gone.
    fn begin_end(&self, client: Uuid) -> Result<Option<Control>, StoreError> {
        let mut control = self.begin_write("end a client")?;
        let hosted = control.hosted_mut().get_mut(&client).filter(|hosted| !hosted.ending);
        let Some(hosted) = hosted else {
            return Err(StoreError::NoClient { client });
        };
        if !hosted.recorded {
            control.hosted_mut().remove(&client);
            return Ok(None);
        }
        hosted.ending = true;
        Ok(Some(control.apart(self, client)))
    }

    /// Ends a client whose logs are empty now, by one batch, and removes their files.
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
        if !planted(Bug::ClientLeaseNotInherited) {
            records.extend(pools.iter().map(keep));
        }
        records.extend(logs.iter().map(|puddle| Record::PuddleRemoved(puddle.uuid)));
        if planted(Bug::ClientLogsRemovedEarly) {
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
    /// The log puddles of a client: those that it was given, and those of `listed`, its log space.
    /// Of a client that an earlier daemon admitted, its log space is all that is known otherwise.
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
