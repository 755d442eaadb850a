//! Leases: which pools this session may write.
//!
//! A writable lease is recorded in the catalog before the pool is mapped for writing, because replay applies nothing to
//! a pool that the log's owner had no lease on (PUD-3). It ends when the session closes and every puddle of the pool is
//! synced: so a lease also says "may hold what is not on the medium", and a pool that is leased when power fails at a
//! level that does not cover it is known by name. A session that recovers after a crash of processes inherits the
//! leases of the dead, for the same reason.

use crate::error::StoreError;
use crate::store::{Control, Inner};
use cenote_layout::catalog::{LeaseRecord, Record};
use cenote_layout::id::PoolId;

impl Inner {
    /// Makes sure that this session holds a writable lease on `pool`. The catalog's batch commits it; nothing is mapped
    /// before.
    pub(crate) fn lease_writable(&self, control: &mut Control, pool: PoolId) -> Result<(), StoreError> {
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
            for record in control.catalog.state.puddles_of(pool) {
                let name = crate::puddle::file_name(record.uuid);
                match self.medium.sync(core::str::from_utf8(&name).unwrap_or_default()) {
                    // A missing puddle was reported when the pool was opened; there is nothing to sync.
                    Err(error) if !error.is_not_found() => return Err(self.failed(error)),
                    _ => {}
                }
            }
        }
        Ok(())
    }
}
