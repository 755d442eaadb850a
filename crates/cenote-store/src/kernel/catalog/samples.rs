//! Records for tests.

use cenote_layout::catalog::{HeapKind, ObjectRecord, PoolMode, PoolRecord, PuddleRecord, Record};
use cenote_layout::id::{PoolId, Uuid};
use cenote_layout::puddle::Role;

pub(super) fn pool(id: u64, name: &str) -> Record {
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

pub(super) fn puddle(uuid: u8, pool: u64, addr: u64, size: u64) -> Record {
    Record::Puddle(PuddleRecord {
        uuid: Uuid([uuid; 16]),
        pool: PoolId(pool),
        role: Role::Heap,
        index: 0,
        addr,
        size,
    })
}

pub(super) fn object(puddle: u8, name: &str) -> Record {
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
