//! The clients that a store serves, in memory ([`crate::hosting`]).

use crate::kernel::interface::error::{BY_DAEMON, StoreError};
use crate::kernel::store::Control;
use crate::kernel::store::extensions::Extension;
use cenote_layout::catalog::{HostedClientRecord, Record};
use cenote_layout::error_kind::ErrorKind;
use cenote_layout::id::{PoolId, Uuid};
use cenote_medium::planted::{Bug, planted};
use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

/// The clients that are there.
pub(crate) type HostedClients = BTreeMap<Uuid, HostedSession>;

impl Extension for HostedClients {}

/// A client, in memory.
#[derive(Debug)]
pub(crate) struct HostedSession {
    pub(crate) hosted_client: HostedClientRecord,
    /// Whether the catalog has its record.
    pub(crate) recorded: bool,
    /// Log puddles that it was given, the log space among them.
    pub(crate) logs: BTreeSet<Uuid>,
    /// Its logs are being replayed.
    pub(crate) ending: bool,
}

impl HostedSession {
    pub(crate) fn pid(&self) -> u32 {
        self.hosted_client.pid
    }

    pub(crate) fn is_ending(&self) -> bool {
        self.ending
    }
}

impl Control {
    pub(crate) fn hosted(&self) -> &HostedClients {
        self.parts.get()
    }

    /// The user of a pool beside one client, in words: another client, or this process, which
    /// copies or moves the pool for a client.
    pub(crate) fn holder_of(&self, pool: PoolId, but: Option<Uuid>) -> Option<String> {
        let holders = self.catalog.state.leases.keys().filter(|(_, leased)| *leased == pool);
        let mut others = holders.filter(|(holder, _)| Some(*holder) != but);
        let other = others.find_map(|(holder, _)| self.hosted().get(holder));
        let other = other.map(|client| format!("process {}", client.pid()));
        other.or_else(|| self.held().any(pool).then(|| BY_DAEMON.to_owned()))
    }

    /// Refuses a pool that a handle of this process has, or a client, or a copy for one.
    pub(crate) fn refuse_held(&self, pool: PoolId, name: &str) -> Result<(), StoreError> {
        let name = name.to_owned();
        if self.pools.get(&pool).is_some_and(|core| Arc::strong_count(core) > 1) {
            return Err(StoreError::PoolInUse { name });
        }
        match self.holder_of(pool, None) {
            Some(by) => Err(StoreError::PoolHeld { name, by }),
            None => Ok(()),
        }
    }

    pub(crate) fn hosted_mut(&mut self) -> &mut HostedClients {
        self.parts.get_mut()
    }

    /// Records that come before the first that name a client.
    pub(crate) fn introduce(&self, client: Uuid) -> Result<Vec<Record>, StoreError> {
        let hosted = self.hosted().get(&client).ok_or(StoreError::NoClient { client })?;
        let known = hosted.recorded || planted(Bug::ClientNotIntroduced);
        Ok(if known { Vec::new() } else { vec![Record::HostedClient(hosted.hosted_client)] })
    }

    /// They have been committed.
    pub(crate) fn introduced(&mut self, client: Uuid) {
        if let Some(hosted) = self.hosted_mut().get_mut(&client) {
            hosted.recorded = true;
        }
    }

    /// A client's name in locks: another one for each session, and so for each image of a process.
    pub(crate) fn name_of(&self, client: Uuid) -> Result<u64, StoreError> {
        let hosted_client =
            self.hosted().get(&client).ok_or(StoreError::NoClient { client })?.hosted_client;
        let image = u128::from_le_bytes(client.0);
        cenote_sys::process::name_of(
            hosted_client.pid,
            hosted_client.start_ticks,
            image as u64 ^ (image >> 64) as u64,
        )
        .map_err(|error| StoreError::Refused {
            kind: ErrorKind::of_system(&error),
            detail: error.to_string(),
        })
    }

    /// Whether a client's lease on a pool is for writing.
    pub(crate) fn lease_of(&self, client: Uuid, pool: PoolId) -> Result<bool, StoreError> {
        if !self.hosted().contains_key(&client) {
            return Err(StoreError::NoClient { client });
        }
        let lease = self.catalog.state.leases.get(&(client, pool)).copied();
        lease.ok_or_else(|| StoreError::Refused {
            kind: ErrorKind::Misuse,
            detail: format!("pool {pool} was not granted: open it first"),
        })
    }

    /// Takes over the clients of an earlier daemon that live.
    pub(crate) fn adopt_clients(&mut self) {
        let adopted = |hosted_client: &HostedClientRecord| {
            let logs = self
                .catalog
                .state
                .clients
                .get(&hosted_client.client)
                .copied()
                .into_iter()
                .collect();
            (
                hosted_client.client,
                HostedSession {
                    hosted_client: *hosted_client,
                    recorded: true,
                    logs,
                    ending: false,
                },
            )
        };
        let found: Vec<(Uuid, HostedSession)> =
            crate::alive::seen(&self.catalog.state).map(adopted).collect();
        self.hosted_mut().extend(found);
    }
}
