//! Writes the catalog anew, in as few records as there are.

use super::CatalogState;
use cenote_layout::catalog::{ClientRecord, LeaseRecord, Record};
use cenote_layout::id::PoolId;

impl CatalogState {
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
        out.extend(self.hosted_clients.values().copied().map(Record::HostedClient));
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
        out.extend(self.pending.values().copied().map(Record::PendingRewrite));
        out.extend(self.at_rest.iter().map(|(id, at_rest)| Record::PoolAtRest(*id, *at_rest)));
        out.extend(self.protected.iter().map(|(id, how)| Record::PoolProtected(*id, *how)));
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
}

#[cfg(test)]
mod tests {
    use super::super::samples::{object, pool, puddle};
    use super::*;
    use cenote_layout::catalog::{
        AtRest, DataProtection, HostedClientRecord, MoveRecord, PendingRewriteRecord,
        RelocationRecord,
    };
    use cenote_layout::id::Uuid;

    fn hosted_client(client: u8) -> Record {
        let client = Uuid([client; 16]);
        Record::HostedClient(HostedClientRecord { client, pid: 4, start_ticks: 5, uid: 6, gid: 7 })
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

    fn pending(puddle: u8, relocation: u8) -> Record {
        let (puddle, relocation) = (Uuid([puddle; 16]), Uuid([relocation; 16]));
        Record::PendingRewrite(PendingRewriteRecord {
            puddle,
            relocation,
            from: 1 << 41,
            generation: 2,
        })
    }

    /// What a store's catalog went through: pools, leases and objects first, then moves.
    fn history() -> Vec<Record> {
        [of_pools_and_clients(), of_moves()].concat()
    }

    fn of_pools_and_clients() -> Vec<Record> {
        vec![
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
            hosted_client(9),
            hosted_client(8),
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
        ]
    }

    fn of_moves() -> Vec<Record> {
        vec![
            relocation(1),
            pending(1, 1),
            pending(2, 1),
            Record::Relocated(Uuid([2; 16])),
            Record::PoolMade { client: Uuid([3; 16]), token: Uuid([1; 16]), pool: PoolId(1) },
            Record::PoolMade { client: Uuid([3; 16]), token: Uuid([2; 16]), pool: PoolId(2) },
            relocation(2),
            pending(3, 2),
            Record::PuddleRemoved(Uuid([3; 16])),
            Record::PoolAtRest(PoolId(1), AtRest::Authenticated),
            Record::PoolProtected(PoolId(2), DataProtection::Synchronous),
            Record::PoolProtected(PoolId(2), DataProtection::None),
            Record::PoolProtected(PoolId(1), DataProtection::Deferred { wait_ms: 7 }),
            Record::SealedAs { puddle: Uuid([1; 16]), identity: Uuid([4; 16]) },
            Record::SealedAs { puddle: Uuid([5; 16]), identity: Uuid([6; 16]) },
            Record::Relocated(Uuid([5; 16])),
            relocation(3),
            pending(6, 3),
            relocation(4),
            pending(6, 1),
            Record::Window { base: 1 << 42, len: 1 << 30 },
            Record::Kept { puddle: Uuid([1; 16]), sum: 5 },
            Record::Kept { puddle: Uuid([2; 16]), sum: 6 },
            Record::KeptEnded(Uuid([2; 16])),
            Record::Kept { puddle: Uuid([4; 16]), sum: 8 },
            Record::PuddleRemoved(Uuid([4; 16])),
            pending(6, 4),
        ]
    }

    #[test]
    fn a_snapshot_says_the_same_as_the_history() {
        let mut state = CatalogState::default();
        for record in history() {
            state.apply(&record);
        }
        let mut again = CatalogState::default();
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
            again.relocations.keys().eq(&[Uuid([1; 16]), Uuid([4; 16])])
                && again.pending.len() == 2,
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
}
