//! Takes leases, which say which pools this session may write, and syncs what they cover.
//!
//! Invariant: the catalog has a writable lease before the pool is mapped for writing, because
//! replay applies nothing to a pool that the log's owner had no lease on (PUD-3). The lease ends
//! when the session closes and every puddle of the pool is synced: so a lease also says "may hold
//! what is not on the medium", and the catalog names the pools that were leased when power failed
//! at a level that does not cover them. A session that recovers after a crash of processes inherits
//! the leases of the sessions that ended, for the same reason.

use crate::kernel::interface::error::StoreError;
use crate::kernel::puddles::verify::{of_file, verify_file};
use crate::kernel::store::{Control, Inner};
use cenote_layout::catalog::{LeaseRecord, PuddleRecord, Record};
use cenote_layout::id::PoolId;
use cenote_layout::puddle::Role;
use cenote_medium::MediumError;

impl Inner {
    /// Makes sure that this session holds a writable lease on `pool`. The catalog's batch commits
    /// it; nothing is mapped before.
    pub(crate) fn lease_writable(
        &self,
        control: &mut Control,
        pool: PoolId,
    ) -> Result<(), StoreError> {
        let client = control.client;
        if control.catalog.state.leases.get(&(client, pool)) == Some(&true) {
            return Ok(());
        }
        let mut records = vec![Record::Lease(LeaseRecord { client, pool, writable: true })];
        if !control.catalog.state.used.contains(&pool) {
            records.push(Record::PoolUsed(pool));
        }
        self.commit(control, &records)
    }

    /// Syncs every puddle of the pools that this session may have written. Part of closing.
    pub(crate) fn sync_leased(&self, control: &Control) -> Result<(), StoreError> {
        for pool in control.catalog.state.writable_pools(control.client) {
            self.sync_puddles(&control.catalog.state.puddles_of(pool))
                .map_err(|error| self.failed(error))?;
        }
        Ok(())
    }

    /// Syncs what earlier sessions may have stored at level `process` and not synced: the pools
    /// that any session has leased, and all logs. After this a superblock may say `power`. Part of
    /// opening, after recovery.
    pub(crate) fn sync_inherited(&self, control: &Control) -> Result<(), MediumError> {
        let state = &control.catalog.state;
        let leased =
            |pool| state.leases.iter().any(|((_, leased), writable)| *leased == pool && *writable);
        self.sync_puddles(state.puddles.values().filter(|puddle| match puddle.role {
            Role::Log | Role::LogSpace => true,
            Role::Heap | Role::Metadata | Role::Object | Role::Spare => leased(puddle.pool),
        }))
    }

    fn sync_puddles<'a>(
        &self,
        puddles: impl IntoIterator<Item = &'a PuddleRecord>,
    ) -> Result<(), MediumError> {
        for record in puddles {
            let name = crate::kernel::puddles::puddle::file_name(record.uuid);
            match self.medium.sync(crate::kernel::puddles::puddle::text(&name)) {
                // A puddle that is damaged is reported where it is missed. Its pool's lease stays
                // with the session that stored into it.
                Err(error)
                    if of_file(verify_file(&self.medium, record, self.uuid, true))?.is_none() =>
                {
                    return Err(error);
                }
                _ => {}
            }
        }
        Ok(())
    }
}
