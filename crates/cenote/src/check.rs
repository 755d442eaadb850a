//! Checks a pool whose values other pools lead to, by looking at all pools of the store together.
//!
//! Nothing is changed. A pool that is not open is read through a handle that no list has, while
//! the list of open pools is held, so that no thread opens it meanwhile. *Order of waiting:*
//!
//! 1. for views of the pools that are open, without holding one while waiting for another (as
//!    transactions over several pools do);
//! 2. for the list. While it is held, the check waits for nothing.
//!
//! *The caller's code runs meanwhile*: it is told of progress. Its calls that would wait for the
//! list, or for the heap, are refused ([`crate::checking`]).

use crate::error::{Error, Result};
use crate::frames::covers_here;
use crate::open_pool::{Pool, PoolInner};
use crate::open_pools::pools_of;
use crate::reached::{Heaps, reached_from_elsewhere};
use crate::registry::StoreTypes;
use crate::view::View;
use cenote_heap::{HeapReport, Inspect as _, PoolBacking, PoolHeap, TraceOptions};
use cenote_store::Access;
use std::sync::Arc;

/// Checks `pool`, with what other pools lead to as roots.
pub(crate) fn with_other_pools(pool: &Pool, mut options: TraceOptions<'_>) -> Result<HeapReport> {
    loop {
        if let Some(report) = attempt(pool, options.again())? {
            return Ok(report);
        }
    }
}

/// `None` if a pool was opened between looking at the list and holding it.
fn attempt(pool: &Pool, mut options: TraceOptions<'_>) -> Result<Option<HeapReport>> {
    let store = &pool.inner.store;
    let mut open: Vec<Arc<PoolInner>> =
        pools_of(store).locked().iter().filter_map(|(_, pool)| pool.upgrade()).collect();
    open.retain(|other| !Arc::ptr_eq(other, &pool.inner));
    // This one first: an error if this thread is in a transaction on it.
    let (_own, _views) = views(pool, &open)?;
    let list = pools_of(store).locked();
    let known = |there: &PoolInner| {
        core::ptr::eq(there, &*pool.inner)
            || open.iter().any(|other| core::ptr::eq(&**other, there))
    };
    let opened: Vec<Arc<PoolInner>> =
        list.iter().filter_map(|(_, there)| there.upgrade()).collect();
    if opened.iter().any(|there| !known(there)) {
        // Dropped after the lock: if one of these is the last handle, dropping it takes the lock.
        drop(list);
        return Ok(None);
    }
    let mut closed = Vec::new();
    for info in store.store.pools() {
        // One whose last handle is being dropped still has a heap; it is listed, and left out.
        if list.iter().any(|(name, _)| *name == info.record.name) {
            continue;
        }
        if let Ok(handle) = store.store.open_pool(&info.record.name, Access::ReadOnly)
            // SAFETY: for reading: a heap of a pool that is not writable changes nothing.
            && let Ok(heap) = PoolHeap::open(unsafe { PoolBacking::of(handle) })
        {
            closed.push((info.record.id, heap));
        }
    }
    let mut heaps: Heaps<'_> = closed.iter().map(|(id, heap)| (*id, heap)).collect();
    let looked_at = open.iter().filter(|other| !covers_here(other));
    heaps.extend(looked_at.map(|other| (other.handle.id(), &other.heap)));
    heaps.insert(pool.inner.handle.id(), &pool.inner.heap);
    let types = StoreTypes(&store.store);
    let reached =
        reached_from_elsewhere(&store.store, &types, &heaps).map_err(|(_, error)| error)?;
    let roots = reached.get(&pool.inner.handle.id()).cloned().unwrap_or_default();
    let roots: Vec<u64> = roots.into_iter().collect();
    let mut report = pool.inner.heap.check_from(Some(&types), &roots, options.again())?;
    report.values = Some(pool.inner.check_values(options)?);
    drop(heaps);
    drop(closed);
    drop(list);
    drop(opened);
    Ok(Some(report))
}

/// Views of all these pools, but for those that this thread has a transaction on: what it has
/// borrowed there for writing is not to be looked at.
fn views<'p>(pool: &'p Pool, others: &'p [Arc<PoolInner>]) -> Result<(View<'p>, Vec<View<'p>>)> {
    let others: Vec<&PoolInner> = others.iter().map(|other| &**other).collect();
    loop {
        let own = pool.view()?;
        match try_views(others.iter().copied().filter(|other| !covers_here(other)), Vec::new())? {
            Ok(all) => return Ok((own, all)),
            Err(other) => {
                drop(own);
                drop(awaited(other)?);
            }
        }
    }
}

/// Views of all these pools, none of them held while another is waited for.
pub(crate) fn views_of(pools: &[Arc<PoolInner>]) -> Result<Vec<View<'_>>> {
    if let Some(pool) = pools.iter().find(|pool| covers_here(pool)) {
        let pool = pool.handle.name().to_string();
        return Err(Error::WouldDeadlock { pool, by: "a transaction" });
    }
    let mut first: Option<(&PoolInner, View<'_>)> = None;
    loop {
        let (known, all) =
            first.take().map_or((None, Vec::new()), |(pool, view)| (Some(pool), vec![view]));
        let is_known = |pool: &&PoolInner| known.is_some_and(|known| core::ptr::eq(known, *pool));
        let pools = pools.iter().map(|pool| &**pool).filter(|pool| !is_known(pool));
        match try_views(pools, all)? {
            Ok(all) => return Ok(all),
            Err(other) => first = Some((other, awaited(other)?)),
        }
    }
}

/// Adds views of pools, without waiting; or says which one has to be waited for, and has none.
fn try_views<'p>(
    pools: impl Iterator<Item = &'p PoolInner>,
    mut all: Vec<View<'p>>,
) -> Result<core::result::Result<Vec<View<'p>>, &'p PoolInner>> {
    for other in pools {
        let Some(guard) = other.lock.try_read_recursive() else { return Ok(Err(other)) };
        match other.try_read_turn() {
            Ok(turn) => all.push(View::new(other, guard, turn)),
            Err(None) => return Ok(Err(other)),
            Err(Some(error)) => return Err(error),
        }
    }
    Ok(Ok(all))
}

/// A view that is waited for, while no other is held.
fn awaited(other: &PoolInner) -> Result<View<'_>> {
    let guard = other.lock_to_read()?;
    let turn = other.read_turn()?;
    Ok(View::new(other, guard, turn))
}
