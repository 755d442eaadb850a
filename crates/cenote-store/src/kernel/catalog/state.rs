//! What the catalog says, in memory: the sum of its records.

use crate::kernel::report::Damage;
use cenote_layout::catalog::{
    AtRest, ClientRecord, DueRecord, GuestRecord, LeaseRecord, ObjectRecord, PoolMode, PoolRecord,
    PuddleRecord, Record, RelocationRecord,
};
use cenote_layout::id::{PoolId, TypeId, Uuid};
use cenote_layout::puddle::Role;
use cenote_layout::types::TypeRecord;
use cenote_layout::{PAGE_SIZE, SLOT_SIZE};
use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

/// The catalog's contents. Every change goes through [`State::apply`], at open and later alike.
#[derive(Clone, Debug, Default)]
pub(crate) struct State {
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
    /// Pools that a session has opened for writing.
    pub(crate) used: BTreeSet<PoolId>,
    /// Clients that are other processes.
    pub(crate) guests: BTreeMap<Uuid, GuestRecord>,
    /// Client to the token of its last request that made a pool, and the pool.
    pub(crate) made: BTreeMap<Uuid, (Uuid, PoolId)>,
    /// (client, object) to whether it is attached for writing.
    pub(crate) object_leases: BTreeMap<(Uuid, Uuid), bool>,
    /// Relocations that some puddle still needs.
    pub(crate) relocations: BTreeMap<Uuid, Arc<RelocationRecord>>,
    /// Puddles that are still to be rewritten.
    pub(crate) due: BTreeMap<Uuid, DueRecord>,
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

impl State {
    /// Adds one record.
    pub(crate) fn apply(&mut self, record: &Record) {
        match record {
            Record::Pool(pool) => {
                if let Some(old) = self.pools.insert(pool.id, pool.clone()) {
                    self.names.remove(&old.name);
                }
                self.names.insert(pool.name.clone(), pool.id);
                self.next_pool = self.next_pool.max(pool.id.0.saturating_add(1));
            }
            Record::PoolRemoved(id) => self.pool_removed(id),
            Record::Puddle(puddle) => {
                self.puddles.insert(puddle.uuid, *puddle);
                if puddle.role != Role::Heap {
                    // It became spare.
                    self.relocated(&puddle.uuid);
                    self.unsealed(&puddle.uuid);
                }
            }
            Record::PuddleRemoved(uuid) => {
                self.puddles.remove(uuid);
                self.kept.remove(uuid);
                self.relocated(uuid);
                self.unsealed(uuid);
            }
            Record::Type(record) => {
                // Before it can be found.
                if self.types.get(&record.id).is_none_or(|known| **known != *record) {
                    self.unsettled.fetch_add(1, Ordering::SeqCst);
                }
                self.types.insert(record.id, Arc::new(record.clone()));
            }
            Record::TypeRemoved(id) => {
                self.types.remove(id);
            }
            Record::Client(client) => {
                self.clients.insert(client.client, client.log_space);
            }
            Record::ClientRemoved(client) => {
                self.clients.remove(client);
                self.guests.remove(client);
                self.made.remove(client);
            }
            Record::Lease(lease) => {
                self.leases.insert((lease.client, lease.pool), lease.writable);
                self.shared.remove(&(lease.client, lease.pool));
            }
            Record::LeaseShared { client, pool } => {
                self.leases.insert((*client, *pool), true);
                self.shared.insert((*client, *pool));
            }
            Record::LeasesEnded(client) => {
                self.leases.retain(|(holder, _), _| holder != client);
                self.shared.retain(|(holder, _)| holder != client);
                self.object_leases.retain(|(holder, _), _| holder != client);
            }
            // A snapshot begins: it repeats all that is true, and what was said before no longer
            // counts.
            Record::NextPool(next) => {
                let unsettled = Arc::clone(&self.unsettled);
                *self = Self { next_pool: next.0.max(1), unsettled, ..Self::default() };
            }
            Record::PoolNotCovered(id) => {
                self.not_covered.insert(*id);
            }
            Record::PoolCovered(id) => {
                self.not_covered.remove(id);
            }
            Record::PoolTorn(id) => {
                self.torn.insert(*id);
            }
            Record::PoolWhole(id) => {
                self.torn.remove(id);
            }
            Record::TraceDue(id) => {
                self.trace_due.insert(*id);
            }
            Record::Traced(id) => {
                self.trace_due.remove(id);
            }
            Record::PoolUsed(id) => {
                self.used.insert(*id);
            }
            Record::Object(object) => {
                if let Some(old) = self.objects.insert(object.puddle, object.clone()) {
                    self.object_names.remove(&old.name);
                }
                self.object_names.insert(object.name.clone(), object.puddle);
            }
            Record::Guest(guest) => {
                self.guests.insert(guest.client, *guest);
            }
            Record::Relocation(relocation) => {
                self.relocations.insert(relocation.id, Arc::new(relocation.clone()));
            }
            Record::Due(due) => {
                if let Some(before) = self.due.insert(due.puddle, *due)
                    && before.relocation != due.relocation
                {
                    self.forget_unused(&before.relocation);
                }
            }
            Record::Window { base, len } => self.window = Some((*base, *len)),
            Record::Kept { puddle, sum } => {
                self.kept.insert(*puddle, *sum);
            }
            Record::KeptEnded(puddle) => {
                self.kept.remove(puddle);
            }
            Record::Relocated(puddle) => self.relocated(puddle),
            Record::PoolMade { client, token, pool } => {
                self.made.insert(*client, (*token, *pool));
            }
            Record::ObjectLease { client, object, writable } => {
                self.object_leases.insert((*client, *object), *writable);
            }
            Record::ObjectLeaseEnded { client, object } => {
                self.object_leases.remove(&(*client, *object));
            }
            Record::PoolAtRest(id, at_rest) => {
                self.at_rest.insert(*id, *at_rest);
            }
            Record::SealedAs { puddle, identity } => {
                self.sealed_as.insert(*puddle, *identity);
            }
            Record::Sealed { seal, puddles } => self.stamped(*seal, puddles),
            Record::ObjectRemoved(puddle) => {
                self.object_leases.retain(|(_, object), _| object != puddle);
                if let Some(old) = self.objects.remove(puddle) {
                    self.object_names.remove(&old.name);
                }
            }
        }
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
        self.leases.retain(|(_, pool), _| pool != id);
        self.shared.retain(|(_, pool)| pool != id);
    }

    /// A puddle is not due any more; a relocation that no other needs is forgotten.
    fn relocated(&mut self, puddle: &Uuid) {
        self.sealed_as.remove(puddle);
        if let Some(due) = self.due.remove(puddle) {
            self.forget_unused(&due.relocation);
        }
    }

    /// A relocation that no puddle needs is forgotten.
    fn forget_unused(&mut self, relocation: &Uuid) {
        if self.due.values().all(|other| other.relocation != *relocation) {
            self.relocations.remove(relocation);
        }
    }

    /// The records that say all this from nothing: [`Record::NextPool`] first.
    pub(crate) fn snapshot(&self) -> Vec<Record> {
        let mut out = vec![Record::NextPool(PoolId(self.next_pool))];
        out.extend(self.window.map(|(base, len)| Record::Window { base, len }));
        out.extend(self.pools.values().cloned().map(Record::Pool));
        out.extend(self.puddles.values().copied().map(Record::Puddle));
        out.extend(self.types.values().map(|t| Record::Type((**t).clone())));
        out.extend(self.clients.iter().map(|(client, log_space)| {
            Record::Client(ClientRecord { client: *client, log_space: *log_space })
        }));
        out.extend(self.leases.iter().map(|((client, pool), writable)| {
            Record::Lease(LeaseRecord { client: *client, pool: *pool, writable: *writable })
        }));
        let shared = self.shared.iter();
        out.extend(
            shared.map(|(client, pool)| Record::LeaseShared { client: *client, pool: *pool }),
        );
        out.extend(self.not_covered.iter().copied().map(Record::PoolNotCovered));
        out.extend(self.torn.iter().copied().map(Record::PoolTorn));
        out.extend(self.trace_due.iter().copied().map(Record::TraceDue));
        out.extend(self.objects.values().cloned().map(Record::Object));
        out.extend(self.used.iter().copied().map(Record::PoolUsed));
        out.extend(self.guests.values().copied().map(Record::Guest));
        let made = self.made.iter();
        out.extend(made.map(|(client, (token, pool))| Record::PoolMade {
            client: *client,
            token: *token,
            pool: *pool,
        }));
        out.extend(self.object_leases.iter().map(|((client, object), writable)| {
            Record::ObjectLease { client: *client, object: *object, writable: *writable }
        }));
        out.extend(
            self.relocations.values().map(|relocation| Record::Relocation((**relocation).clone())),
        );
        out.extend(self.due.values().copied().map(Record::Due));
        out.extend(self.at_rest.iter().map(|(id, at_rest)| Record::PoolAtRest(*id, *at_rest)));
        let sealed_as = self.sealed_as.iter();
        out.extend(
            sealed_as.map(|(puddle, identity)| Record::SealedAs {
                puddle: *puddle,
                identity: *identity,
            }),
        );
        out.extend(
            self.kept.iter().map(|(puddle, sum)| Record::Kept { puddle: *puddle, sum: *sum }),
        );
        out.extend(self.sealed());
        out
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
        if self.guests.contains_key(&client) {
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

    /// Takes out puddle records that cannot be (outside the window, misaligned, one on top of the
    /// other) and names them: a record that passes can be mapped at its address.
    pub(crate) fn check(&mut self, window_base: u64, window_len: u64) -> Vec<Damage> {
        let mut damage = Vec::new();
        let mut by_addr: Vec<PuddleRecord> = self.puddles.values().copied().collect();
        by_addr.sort_by_key(|p| (p.addr, p.uuid));
        let window_end = window_base.saturating_add(window_len);
        let mut free_from = window_base;
        for puddle in by_addr {
            let end = puddle.addr.checked_add(puddle.size);
            let problem = if !puddle.addr.is_multiple_of(SLOT_SIZE)
                || puddle.size == 0
                || !puddle.size.is_multiple_of(PAGE_SIZE)
            {
                Some("its address or size is not aligned")
            } else if end.is_none_or(|end| end > window_end) || puddle.addr < window_base {
                Some("it lies outside the window")
            } else if puddle.addr < free_from {
                Some("it lies on top of another puddle")
            } else if puddle.pool.0 != 0 && !self.pools.contains_key(&puddle.pool) {
                Some("its pool is not known")
            } else if puddle.role == Role::Object && !self.objects.contains_key(&puddle.uuid) {
                Some("its object is not known")
            } else if (puddle.pool.0 == 0) == (puddle.role == Role::Heap) {
                Some("its role and its pool do not fit")
            } else {
                None
            };
            if let Some(problem) = problem {
                damage.push(Damage::Puddle {
                    uuid: puddle.uuid,
                    pool: puddle.pool,
                    index: puddle.index,
                    detail: format!(
                        "catalog record at {:#x}, {} bytes: {problem}",
                        puddle.addr, puddle.size
                    ),
                });
                self.puddles.remove(&puddle.uuid);
            } else {
                free_from = end.unwrap_or(free_from).next_multiple_of(SLOT_SIZE);
            }
        }
        damage
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use cenote_layout::catalog::{HeapKind, MoveRecord};

    fn pool(id: u64, name: &str) -> Record {
        Record::Pool(PoolRecord {
            id: PoolId(id),
            name: name.into(),
            mode: PoolMode::Direct,
            heap: HeapKind::Traced,
            puddle_size: 1 << 21,
            size_max: 1 << 30,
            uid: 0,
            gid: 0,
            permissions: 0o600,
            created_at_s: 0,
        })
    }

    fn puddle(uuid: u8, pool: u64, addr: u64, size: u64) -> Record {
        Record::Puddle(PuddleRecord {
            uuid: Uuid([uuid; 16]),
            pool: PoolId(pool),
            role: Role::Heap,
            index: 0,
            addr,
            size,
        })
    }

    fn object(puddle: u8, name: &str) -> Record {
        Record::Object(ObjectRecord {
            puddle: Uuid([puddle; 16]),
            name: name.into(),
            data_len: 100,
            at_rest: cenote_layout::catalog::AtRest::None,
            uid: 0,
            gid: 0,
            permissions: 0o600,
            created_at_s: 0,
        })
    }

    fn guest(client: u8) -> Record {
        let client = Uuid([client; 16]);
        Record::Guest(GuestRecord { client, pid: 4, start_ticks: 5, uid: 6, gid: 7 })
    }

    fn object_lease(client: u8, object: u8) -> Record {
        Record::ObjectLease {
            client: Uuid([client; 16]),
            object: Uuid([object; 16]),
            writable: true,
        }
    }

    fn relocation(id: u8) -> Record {
        let moves = vec![MoveRecord { from: 1 << 41, to: 1 << 40, size: 4096 }];
        Record::Relocation(RelocationRecord {
            id: Uuid([id; 16]),
            moves,
            pools: vec![(PoolId(1), PoolId(9))],
        })
    }

    fn due(puddle: u8, relocation: u8) -> Record {
        let (puddle, relocation) = (Uuid([puddle; 16]), Uuid([relocation; 16]));
        Record::Due(DueRecord { puddle, relocation, from: 1 << 41, generation: 2 })
    }

    #[test]
    fn an_objects_puddle_without_its_object_is_damage() {
        let base = 1 << 40;
        let mut state = State::default();
        for (number, addr) in [(1, base), (2, base + (4 << 20))] {
            state.apply(&Record::Puddle(PuddleRecord {
                uuid: Uuid([number; 16]),
                pool: PoolId(0),
                role: Role::Object,
                index: 0,
                addr,
                size: 8192,
            }));
        }
        state.apply(&object(1, "a"));
        let damage = state.check(base, 64 << 20);
        assert!(
            matches!(&damage[..], [Damage::Puddle { uuid, .. }] if *uuid == Uuid([2; 16])),
            "{damage:?}"
        );
        assert!(state.puddles.contains_key(&Uuid([1; 16])));
    }

    #[test]
    fn a_snapshot_says_the_same_as_the_history() {
        let mut state = State::default();
        for record in [
            Record::NextPool(PoolId(1)),
            pool(1, "a"),
            pool(2, "b"),
            puddle(1, 1, 1 << 40, 4096),
            Record::Lease(LeaseRecord { client: Uuid([9; 16]), pool: PoolId(1), writable: true }),
            Record::LeaseShared { client: Uuid([7; 16]), pool: PoolId(1) },
            Record::LeaseShared { client: Uuid([6; 16]), pool: PoolId(1) },
            Record::LeaseShared { client: Uuid([5; 16]), pool: PoolId(1) },
            Record::LeasesEnded(Uuid([6; 16])),
            Record::Lease(LeaseRecord { client: Uuid([5; 16]), pool: PoolId(1), writable: true }),
            Record::PoolNotCovered(PoolId(1)),
            Record::PoolTorn(PoolId(1)),
            Record::PoolTorn(PoolId(2)),
            Record::PoolUsed(PoolId(1)),
            Record::PoolUsed(PoolId(2)),
            Record::PoolRemoved(PoolId(2)),
            guest(9),
            guest(8),
            Record::ClientRemoved(Uuid([8; 16])),
            object(3, "matrix"),
            object(4, "gone"),
            object_lease(9, 3),
            object_lease(9, 4),
            object_lease(7, 3),
            object_lease(6, 3),
            Record::ObjectRemoved(Uuid([4; 16])),
            Record::ObjectLeaseEnded { client: Uuid([7; 16]), object: Uuid([3; 16]) },
            Record::LeasesEnded(Uuid([6; 16])),
            relocation(1),
            due(1, 1),
            due(2, 1),
            Record::Relocated(Uuid([2; 16])),
            Record::PoolMade { client: Uuid([3; 16]), token: Uuid([1; 16]), pool: PoolId(1) },
            Record::PoolMade { client: Uuid([3; 16]), token: Uuid([2; 16]), pool: PoolId(2) },
            relocation(2),
            due(3, 2),
            Record::PuddleRemoved(Uuid([3; 16])),
            Record::PoolAtRest(PoolId(1), AtRest::Authenticated),
            Record::SealedAs { puddle: Uuid([1; 16]), identity: Uuid([4; 16]) },
            Record::SealedAs { puddle: Uuid([5; 16]), identity: Uuid([6; 16]) },
            Record::Relocated(Uuid([5; 16])),
            relocation(3),
            due(6, 3),
            relocation(4),
            due(6, 1),
            Record::Window { base: 1 << 42, len: 1 << 30 },
            Record::Kept { puddle: Uuid([1; 16]), sum: 5 },
            Record::Kept { puddle: Uuid([2; 16]), sum: 6 },
            Record::KeptEnded(Uuid([2; 16])),
            Record::Kept { puddle: Uuid([4; 16]), sum: 8 },
            Record::PuddleRemoved(Uuid([4; 16])),
            due(6, 4),
        ] {
            state.apply(&record);
        }
        let mut again = State::default();
        again.apply(&pool(7, "left over from before"));
        for record in state.snapshot() {
            again.apply(&record);
        }
        assert_eq!(format!("{state:?}"), format!("{again:?}"));
        let shared = [(Uuid([7; 16]), PoolId(1))];
        assert!(state.shared.iter().eq(&shared) && state.leases.len() == 3, "{state:?}");
        assert!(state.object_leases.keys().eq(&[(Uuid([9; 16]), Uuid([3; 16]))]), "{state:?}");
        assert_eq!(again.next_pool, 3, "the number of a removed pool is not given again");
        assert!(
            again.relocations.keys().eq(&[Uuid([1; 16]), Uuid([4; 16])]) && again.due.len() == 2,
            "the second and the third relocation are over: {again:?}"
        );
        assert_eq!(again.window, Some((1 << 42, 1 << 30)));
        assert!(
            again.kept.iter().eq([(&Uuid([1; 16]), &5)]),
            "what is kept has not ended: {again:?}"
        );
        assert!(
            again.sealed_as.keys().eq(&[Uuid([1; 16])]),
            "what is rewritten is sealed as itself"
        );
    }

    #[test]
    fn impossible_puddles_are_named_and_left_out() {
        let base = 1 << 40;
        let mut state = State::default();
        for record in [
            Record::NextPool(PoolId(1)),
            pool(1, "a"),
            puddle(1, 1, base, 3 << 20),
            puddle(2, 1, base + (2 << 20), 4096),
            puddle(3, 1, base + 4096, 4096),
            puddle(4, 9, base + (8 << 20), 4096),
            puddle(5, 1, base + (64 << 20), 4096),
            puddle(6, 1, base + (4 << 20), 4096),
        ] {
            state.apply(&record);
        }
        let damage = state.check(base, 64 << 20);
        assert_eq!(damage.len(), 4, "{damage:?}");
        assert_eq!(state.puddles.len(), 2);
    }
}
