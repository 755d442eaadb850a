//! Records of the catalog.

use cenote_layout::catalog::{
    AtRest, ClientRecord, DataProtection, HeapKind, HostedClientRecord, LeaseRecord, MoveRecord,
    ObjectRecord, PendingRewriteRecord, PoolMode, PoolRecord, PuddleRecord, Record,
    RelocationRecord,
};
use cenote_layout::id::{PoolId, TypeId, Uuid};
use cenote_layout::puddle::Role;

fn a_pool(pool: PoolId) -> Record {
    Record::Pool(PoolRecord {
        id: pool,
        name: "p".into(),
        mode: PoolMode::Direct,
        heap: HeapKind::Traced,
        puddle_size: 1,
        size_max: 1,
        uid: 0,
        gid: 0,
        permissions: 0,
        created_at_s: 0,
    })
}

fn an_object(uuid: Uuid) -> Record {
    Record::Object(ObjectRecord {
        puddle: uuid,
        name: "o".into(),
        data_len: 1,
        at_rest: AtRest::None,
        uid: 0,
        gid: 0,
        permissions: 0,
        created_at_s: 0,
    })
}

/// A record of each kind, but for `Type`.
pub(super) fn one_of_each() -> Vec<Record> {
    let (uuid, pool) = (Uuid([1; 16]), PoolId(1));
    vec![
        a_pool(pool),
        Record::PoolRemoved(pool),
        Record::Puddle(PuddleRecord {
            uuid,
            pool,
            role: Role::LogSpace,
            index: 0,
            addr: 0,
            size: 0,
        }),
        Record::PuddleRemoved(uuid),
        Record::Client(ClientRecord { client: uuid, log_space: uuid }),
        Record::ClientRemoved(uuid),
        Record::Lease(LeaseRecord { client: uuid, pool, writable: true }),
        Record::LeasesEnded(uuid),
        Record::NextPool(pool),
        Record::TypeRemoved(TypeId(1)),
        Record::PoolNotCovered(pool),
        Record::PoolCovered(pool),
        Record::PoolTorn(pool),
        Record::PoolWhole(pool),
        Record::TraceDue(pool),
        Record::Traced(pool),
        Record::PoolUsed(pool),
        an_object(uuid),
        Record::ObjectRemoved(uuid),
        Record::HostedClient(HostedClientRecord {
            client: uuid,
            pid: 1,
            start_ticks: 1,
            uid: 0,
            gid: 0,
        }),
        Record::Relocation(RelocationRecord {
            id: uuid,
            moves: vec![MoveRecord { from: 1 << 21, to: 1 << 22, size: 4096 }],
            pools: vec![(pool, pool)],
        }),
        Record::PendingRewrite(PendingRewriteRecord {
            puddle: uuid,
            relocation: uuid,
            from: 1 << 21,
            generation: 2,
        }),
        Record::Relocated(uuid),
        Record::PoolMade { client: uuid, token: uuid, pool },
        Record::PoolAtRest(PoolId(3), AtRest::Authenticated),
        Record::PoolProtected(PoolId(3), DataProtection::Deferred { wait_ms: 40 }),
        Record::SealedAs { puddle: uuid, identity: uuid },
        Record::Window { base: 1 << 40, len: 1 << 36 },
        Record::Kept { puddle: uuid, sum: 7 },
        Record::KeptEnded(uuid),
        Record::Sealed { seal: 3, puddles: vec![uuid] },
    ]
}
