//! The catalog's records, for tools that show them.

use crate::kernel::store::Store;
use cenote_layout::catalog::{ClientRecord, LeaseRecord, PuddleRecord};
use cenote_layout::id::Uuid;

impl Store {
    /// All puddles, those of logs included, by address.
    #[must_use]
    pub fn puddle_records(&self) -> Vec<PuddleRecord> {
        let control = self.inner().control();
        let mut records: Vec<PuddleRecord> =
            control.catalog.state.puddles.values().copied().collect();
        records.sort_by_key(|record| record.addr);
        records
    }

    /// Clients with a log space: this session once it has run a transaction, sessions that did not
    /// end well and (in a read-only open) are not recovered on media, and those whose logs are
    /// set aside.
    #[must_use]
    pub fn client_records(&self) -> Vec<ClientRecord> {
        let control = self.inner().control();
        let clients = control.catalog.state.clients.iter();
        clients
            .map(|(client, log_space)| ClientRecord { client: *client, log_space: *log_space })
            .collect()
    }

    /// The distance to add to an address in the logs of a client that waited while the window
    /// moved.
    #[must_use]
    pub fn log_distance(&self, client: Uuid) -> u64 {
        self.inner().control().catalog.state.moved_since(client).unwrap_or(0)
    }

    /// Leases, by client and pool.
    #[must_use]
    pub fn lease_records(&self) -> Vec<LeaseRecord> {
        let control = self.inner().control();
        let leases = control.catalog.state.leases.iter();
        leases
            .map(|((client, pool), writable)| LeaseRecord {
                client: *client,
                pool: *pool,
                writable: *writable,
            })
            .collect()
    }
}
