//! Rules for pools: their names, the sizes of their puddles, and which pool a name is.

use crate::kernel::interface::error::StoreError;
use crate::kernel::interface::report::{Damage, PoolStart};
use crate::kernel::store::Control;
use cenote_layout::PAGE_SIZE;
use cenote_layout::catalog::{HeapKind, POOL_NAME_LEN_MAX};
use cenote_layout::id::PoolId;
use cenote_layout::outline;

/// Refuses sizes that no heap puddle can have.
pub(crate) fn check_size(size: u64, root: bool) -> Result<(), StoreError> {
    let bad = |reason| Err(StoreError::PuddleSize { size, reason });
    if size == 0 || !size.is_multiple_of(PAGE_SIZE) {
        return bad("take a multiple of 4096, at least 131072 (128 KiB)");
    }
    if size > 1 << 46 {
        return bad("that is more than any window has");
    }
    if !outline::has_room(size, root) {
        return bad("there is no room for a heap: take at least 128 KiB, for large puddles more");
    }
    Ok(())
}

/// Refuses a heap that cannot be made in a root puddle of `size` bytes.
pub(crate) fn check_heap(name: &str, heap: HeapKind, size: u64) -> Result<(), StoreError> {
    match heap {
        HeapKind::Wear { wait_ms } if !heap.is_valid() => {
            Err(StoreError::WearWait { name: name.into(), wait_ms })
        }
        HeapKind::Wear { .. } if !heap.can_use(size) => {
            let reason = "a wear heap counts the lines of a puddle with 32 bits: take less than \
                          256 GiB, to which the pool adds as it grows";
            Err(StoreError::PuddleSize { size, reason })
        }
        _ => Ok(()),
    }
}

/// What keeps a text from being the name of a pool or an object.
pub(crate) fn why_no_name(name: &str) -> Result<(), &'static str> {
    let bad = Err;
    if name.is_empty() {
        return bad("it is empty");
    }
    if name.len() > POOL_NAME_LEN_MAX {
        return bad("it has more than 255 bytes");
    }
    if name.chars().any(char::is_control) {
        return bad("it has control characters");
    }
    if name.trim() != name {
        return bad("it begins or ends with a space");
    }
    Ok(())
}

/// How this session found a pool that it has not opened yet.
pub(crate) fn start_of(control: &Control, id: PoolId) -> PoolStart {
    match control.dirty.get(&id) {
        Some(kind) => PoolStart::Dirty(*kind),
        None if control.catalog.state.used.contains(&id) => PoolStart::Clean,
        None => PoolStart::Fresh,
    }
}

pub(crate) fn lost_record(pool: PoolId, index: u32) -> Damage {
    let detail = "the catalog has no record of it".into();
    Damage::Puddle { uuid: cenote_layout::id::Uuid::NIL, pool, index, detail }
}

pub(crate) fn find(control: &Control, name: &str) -> Result<PoolId, StoreError> {
    control
        .catalog
        .state
        .names
        .get(name)
        .copied()
        .ok_or_else(|| StoreError::PoolUnknown { name: name.into() })
}
