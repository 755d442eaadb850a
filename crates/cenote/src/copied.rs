//! Pools of a copy of an open store ([`CopyPolicy::CheckAndOpen`](cenote_store::CopyPolicy)): each
//! is checked before it is handed out.
//!
//! States of such a store: *unchecked*, as its superblock says, from its first open on; *checked*,
//! when a session that may write has looked at every pool and found nothing, and no pool is left
//! that the copy may have torn. **The next copy of the superblock commits that.** A crash before
//! leaves it unchecked.
//!
//! A check finds: pages of protected pools that are not as they were sealed, damaged descriptors
//! and marks of heaps, pointers that are not as their types say, blocks that are reached and not
//! allocated. Values of unprotected pools have no checksum: a pool counts as torn by a loss of
//! power, and is not shown, unless stamps of all its files say that none was written since a close.

use crate::error::Result;
use crate::registry::StoreTypes;
use crate::session::Inner;
use cenote_heap::{Inspect as _, PoolHeap, TraceOptions};
use cenote_layout::id::Uuid;
use cenote_store::{Access, AtRest, Damage, Keyring, PoolHandle, StoreError};

/// Looks at every page of a protected pool, before its heap does, which would end the program.
/// Nothing of another pool.
pub(crate) fn verify_pages(store: &Inner, name: &str, key: Option<&Keyring>) -> Result<()> {
    let handle = store.store.open_pool_with(name, Access::ReadOnly, key)?;
    if handle.at_rest() == AtRest::None {
        return Ok(());
    }
    let mut damage = Vec::new();
    for puddle in handle.verify(&mut |_, _| true) {
        let detail = match puddle.found.damaged.first() {
            Some((page, what)) => format!("page {page}: {what}"),
            None if !puddle.found.covered => {
                "its protection does not tell a page that is damaged".into()
            }
            None => continue,
        };
        damage.push(Damage::Puddle {
            uuid: puddle.uuid,
            pool: handle.id(),
            index: puddle.index,
            detail,
        });
    }
    if damage.is_empty() {
        return Ok(());
    }
    Err(StoreError::PoolDamaged { name: name.to_owned(), damage }.into())
}

/// Looks at the heap of a pool; what is wrong with it. If nothing is, the pool counts as checked.
pub(crate) fn check(store: &Inner, handle: &PoolHandle, heap: &PoolHeap) -> Result<Vec<Damage>> {
    let report = heap.check_from(Some(&StoreTypes(&store.store)), &[], TraceOptions::default())?;
    let mut found: Vec<(u64, String)> =
        report.damage.iter().map(|damage| (damage.addr, damage.to_string())).collect();
    found.extend(report.headers.iter().map(|damage| (damage.addr, damage.to_string())));
    found.extend(report.metadata.iter().map(|damage| (0, damage.to_string())));
    let reached =
        |addr: u64| (addr, format!("the block at {addr:#x} is reached, and not allocated"));
    found.extend(report.unallocated.iter().map(|block| reached(block.addr)));
    let faults = report.trace.iter().flat_map(|trace| &trace.findings);
    found.extend(faults.map(|fault| (fault.at, fault.to_string())));
    let in_puddle = |(addr, detail): (u64, String)| {
        let puddle = store.store.puddle_of(addr);
        let (uuid, index) = puddle.map_or((Uuid::NIL, 0), |puddle| (puddle.uuid(), puddle.index()));
        Damage::Puddle { uuid, pool: handle.id(), index, detail }
    };
    let damage: Vec<Damage> = found.into_iter().map(in_puddle).collect();
    if damage.is_empty() {
        store.store.pool_is_checked(handle.id())?;
    }
    Ok(damage)
}
