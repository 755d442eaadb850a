//! The catalog in memory: the sum of its records.

use cenote_layout::catalog::{
    AtRest, ClientRecord, DataProtection, HostedClientRecord, ObjectRecord, PendingRewriteRecord,
    PoolMode, PoolRecord, PuddleRecord, Record, RelocationRecord,
};
use cenote_layout::id::{PoolId, TypeId, Uuid};
use cenote_layout::types::TypeRecord;
use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

/// The catalog's contents. Every change goes through [`CatalogState::apply`], at open and later
/// alike.
#[derive(Clone, Debug, Default)]
pub(crate) struct CatalogState {
    /// The number that the next pool gets.
    pub(crate) next_pool: u64,
    pub(crate) pools: BTreeMap<PoolId, PoolRecord>,
    pub(crate) names: BTreeMap<String, PoolId>,
    pub(crate) puddles: BTreeMap<Uuid, PuddleRecord>,
    pub(crate) types: BTreeMap<TypeId, Arc<TypeRecord>>,
    /// See [`crate::Store::unsettled_types`]. The records that a snapshot repeats are counted
    /// again, which costs a comparison.
    pub(crate) unsettled: Arc<AtomicU64>,
    /// Client to its log space.
    pub(crate) clients: BTreeMap<Uuid, Uuid>,
    /// (client, pool) to whether for writing.
    pub(crate) leases: BTreeMap<(Uuid, PoolId), bool>,
    /// Of those for writing, the ones that other clients may have too.
    pub(crate) shared: BTreeSet<(Uuid, PoolId)>,
    /// Pools whose contents a loss of power may have torn.
    pub(crate) not_covered: BTreeSet<PoolId>,
    /// Pools whose logs were discarded, and that no caller has declared whole since.
    pub(crate) torn: BTreeSet<PoolId>,
    /// Pools whose heap must be traced before it is used.
    pub(crate) trace_due: BTreeSet<PoolId>,
    /// Objects by their puddles.
    pub(crate) objects: BTreeMap<Uuid, ObjectRecord>,
    pub(crate) object_names: BTreeMap<String, Uuid>,
    /// Pools that are protected at rest.
    pub(crate) at_rest: BTreeMap<PoolId, AtRest>,
    /// Pools whose data are write-protected, and how.
    pub(crate) protected: BTreeMap<PoolId, DataProtection>,
    /// Pools that a session has opened for writing.
    pub(crate) used: BTreeSet<PoolId>,
    /// Clients that are other processes.
    pub(crate) hosted_clients: BTreeMap<Uuid, HostedClientRecord>,
    /// Client to the token of its last request that made a pool, and the pool.
    pub(crate) made: BTreeMap<Uuid, (Uuid, PoolId)>,
    /// (client, object) to whether it is attached for writing.
    pub(crate) object_leases: BTreeMap<(Uuid, Uuid), bool>,
    /// Relocations that some puddle still needs.
    pub(crate) relocations: BTreeMap<Uuid, Arc<RelocationRecord>>,
    /// Puddles that are still to be rewritten.
    pub(crate) pending: BTreeMap<Uuid, PendingRewriteRecord>,
    /// Of those, the ones that are sealed under another's identity, and that.
    pub(crate) sealed_as: BTreeMap<Uuid, Uuid>,
    /// Puddles of which psyncs are kept, and the checksum of each file.
    pub(crate) kept: BTreeMap<Uuid, u64>,
    /// Puddles to their stamps since the last close, where those are not 0.
    pub(crate) seals: BTreeMap<Uuid, u64>,
    /// Puddles to the era in which a close left them, because they were damaged.
    pub(crate) left: BTreeMap<Uuid, u64>,
    /// Base and bytes of the window, where it is not the superblock's.
    pub(crate) window: Option<(u64, u64)>,
}

impl CatalogState {
    /// Adds one record.
    pub(crate) fn apply(&mut self, record: &Record) {
        match record {
            Record::NextPool(next) => self.begin_snapshot(*next),
            Record::Window { base, len } => self.window = Some((*base, *len)),
            Record::Pool(pool) => self.pool(pool),
            Record::PoolRemoved(id) => self.pool_removed(id),
            Record::PoolNotCovered(id) => add(&mut self.not_covered, *id),
            Record::PoolCovered(id) => take(&mut self.not_covered, id),
            Record::PoolTorn(id) => add(&mut self.torn, *id),
            Record::PoolWhole(id) => take(&mut self.torn, id),
            Record::TraceDue(id) => add(&mut self.trace_due, *id),
            Record::Traced(id) => take(&mut self.trace_due, id),
            Record::PoolUsed(id) => add(&mut self.used, *id),
            Record::PoolAtRest(id, at_rest) => put(&mut self.at_rest, *id, *at_rest),
            Record::PoolProtected(id, how) => self.pool_protected(*id, *how),
            Record::PoolMade { client, token, pool } => {
                put(&mut self.made, *client, (*token, *pool));
            }
            Record::Puddle(puddle) => self.puddle(puddle),
            Record::PuddleRemoved(uuid) => self.puddle_removed(uuid),
            Record::Kept { puddle, sum } => put(&mut self.kept, *puddle, *sum),
            Record::KeptEnded(puddle) => drop(self.kept.remove(puddle)),
            Record::Relocation(relocation) => {
                put(&mut self.relocations, relocation.id, Arc::new(relocation.clone()));
            }
            Record::PendingRewrite(pending) => self.pending(pending),
            Record::Relocated(puddle) => self.relocated(puddle),
            Record::SealedAs { puddle, identity } => put(&mut self.sealed_as, *puddle, *identity),
            Record::Sealed { seal, puddles } => self.stamped(*seal, puddles),
            Record::Type(record) => self.type_known(record),
            Record::TypeRemoved(id) => drop(self.types.remove(id)),
            Record::Client(client) => put(&mut self.clients, client.client, client.log_space),
            Record::ClientRemoved(client) => self.client_removed(client),
            Record::HostedClient(hosted_client) => {
                put(&mut self.hosted_clients, hosted_client.client, *hosted_client)
            }
            Record::Lease(lease) => {
                put(&mut self.leases, (lease.client, lease.pool), lease.writable);
                take(&mut self.shared, &(lease.client, lease.pool));
            }
            Record::LeaseShared { client, pool } => {
                put(&mut self.leases, (*client, *pool), true);
                add(&mut self.shared, (*client, *pool));
            }
            Record::LeasesEnded(client) => self.leases_ended(client),
            Record::Object(object) => self.object(object),
            Record::ObjectRemoved(puddle) => self.object_removed(puddle),
            Record::ObjectLease { client, object, writable } => {
                put(&mut self.object_leases, (*client, *object), *writable);
            }
            Record::ObjectLeaseEnded { client, object } => {
                let _ = self.object_leases.remove(&(*client, *object));
            }
        }
    }

    /// A snapshot begins: it repeats all that is true, and what was said before no longer counts.
    fn begin_snapshot(&mut self, next: PoolId) {
        let unsettled = Arc::clone(&self.unsettled);
        *self = Self { next_pool: next.0.max(1), unsettled, ..Self::default() };
    }

    fn pool(&mut self, pool: &PoolRecord) {
        if let Some(old) = self.pools.insert(pool.id, pool.clone()) {
            self.names.remove(&old.name);
        }
        self.names.insert(pool.name.clone(), pool.id);
        self.next_pool = self.next_pool.max(pool.id.0.saturating_add(1));
    }

    /// A pool is gone, and all that is said of it.
    fn pool_removed(&mut self, id: &PoolId) {
        if let Some(old) = self.pools.remove(id) {
            self.names.remove(&old.name);
        }
        self.not_covered.remove(id);
        self.torn.remove(id);
        self.trace_due.remove(id);
        self.used.remove(id);
        self.at_rest.remove(id);
        self.protected.remove(id);
        self.leases.retain(|(_, pool), _| pool != id);
        self.shared.retain(|(_, pool)| pool != id);
    }

    fn pool_protected(&mut self, id: PoolId, how: DataProtection) {
        match how {
            DataProtection::None => drop(self.protected.remove(&id)),
            how => put(&mut self.protected, id, how),
        }
    }

    fn puddle(&mut self, puddle: &PuddleRecord) {
        self.puddles.insert(puddle.uuid, *puddle);
        if !puddle.role.is_of_pool() {
            // It became spare.
            self.relocated(&puddle.uuid);
            self.unsealed(&puddle.uuid);
        }
    }

    fn puddle_removed(&mut self, uuid: &Uuid) {
        self.puddles.remove(uuid);
        self.kept.remove(uuid);
        self.relocated(uuid);
        self.unsealed(uuid);
    }

    fn type_known(&mut self, record: &TypeRecord) {
        // Before it can be found.
        if self.types.get(&record.id).is_none_or(|known| **known != *record) {
            self.unsettled.fetch_add(1, Ordering::SeqCst);
        }
        self.types.insert(record.id, Arc::new(record.clone()));
    }

    fn client_removed(&mut self, client: &Uuid) {
        self.clients.remove(client);
        self.hosted_clients.remove(client);
        self.made.remove(client);
    }

    fn leases_ended(&mut self, client: &Uuid) {
        self.leases.retain(|(holder, _), _| holder != client);
        self.shared.retain(|(holder, _)| holder != client);
        self.object_leases.retain(|(holder, _), _| holder != client);
    }

    fn object(&mut self, object: &ObjectRecord) {
        if let Some(old) = self.objects.insert(object.puddle, object.clone()) {
            self.object_names.remove(&old.name);
        }
        self.object_names.insert(object.name.clone(), object.puddle);
    }

    fn object_removed(&mut self, puddle: &Uuid) {
        self.object_leases.retain(|(_, object), _| object != puddle);
        if let Some(old) = self.objects.remove(puddle) {
            self.object_names.remove(&old.name);
        }
    }

    fn pending(&mut self, pending: &PendingRewriteRecord) {
        if let Some(before) = self.pending.insert(pending.puddle, *pending)
            && before.relocation != pending.relocation
        {
            self.forget_unused(&before.relocation);
        }
    }

    /// A puddle is not pending any more; a relocation that no other needs is forgotten.
    fn relocated(&mut self, puddle: &Uuid) {
        self.sealed_as.remove(puddle);
        if let Some(pending) = self.pending.remove(puddle) {
            self.forget_unused(&pending.relocation);
        }
    }

    /// A relocation that no puddle needs is forgotten.
    fn forget_unused(&mut self, relocation: &Uuid) {
        if self.pending.values().all(|other| other.relocation != *relocation) {
            self.relocations.remove(relocation);
        }
    }

    /// Records for a client that stays only because of its logs: its process has ended. The system
    /// may give the process number to another process.
    pub(crate) fn process_ended(&self, client: Uuid) -> Vec<Record> {
        let held = self.object_leases.keys().filter(|(holder, _)| *holder == client);
        let ended = |(client, object): &(Uuid, Uuid)| Record::ObjectLeaseEnded {
            client: *client,
            object: *object,
        };
        let mut records: Vec<Record> = held.map(ended).collect();
        if self.hosted_clients.contains_key(&client) {
            records.push(Record::ClientRemoved(client));
            let log_space = self.clients.get(&client);
            records.extend(
                log_space.map(|space| Record::Client(ClientRecord { client, log_space: *space })),
            );
        }
        records
    }

    /// How a pool is protected at rest.
    pub(crate) fn at_rest(&self, pool: PoolId) -> AtRest {
        self.at_rest.get(&pool).copied().unwrap_or(AtRest::None)
    }

    /// How a pool's data are write-protected.
    pub(crate) fn data_protection(&self, pool: PoolId) -> DataProtection {
        self.protected.get(&pool).copied().unwrap_or_default()
    }

    /// Whether a pool is protected at rest. Then it is in shadowed mode, and its shadows are
    /// memory.
    pub(crate) fn is_protected(&self, pool: PoolId) -> bool {
        self.at_rest(pool) != AtRest::None
    }

    /// Whether a pool is in shadowed mode.
    pub(crate) fn is_shadowed(&self, pool: PoolId) -> bool {
        self.pools.get(&pool).is_some_and(|record| record.mode == PoolMode::Shadowed)
    }

    /// Puddles of a pool in index order.
    pub(crate) fn puddles_of(&self, pool: PoolId) -> Vec<PuddleRecord> {
        let mut out: Vec<_> = self.puddles.values().filter(|p| p.pool == pool).copied().collect();
        out.sort_by_key(|p| p.index);
        out
    }

    /// Pools that `client` may write.
    pub(crate) fn writable_pools(&self, client: Uuid) -> BTreeSet<PoolId> {
        self.leases
            .iter()
            .filter(|((holder, _), writable)| *holder == client && **writable)
            .map(|((_, pool), _)| *pool)
            .collect()
    }
}

fn add<T: Ord>(set: &mut BTreeSet<T>, value: T) {
    set.insert(value);
}

fn take<T: Ord>(set: &mut BTreeSet<T>, value: &T) {
    set.remove(value);
}

fn put<K: Ord, V>(map: &mut BTreeMap<K, V>, key: K, value: V) {
    map.insert(key, value);
}
