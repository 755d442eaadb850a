//! Traces all pools of a store together after a loss of power, because a value may be reached from
//! another pool only.
//!
//! *Invariant*: in each pool that was in use, a block is allocated if it is marked *and* something
//! leads to it. So a block that a transaction had taken and never attached is given back.
//!
//! # A pool that cannot be looked at
//!
//! The pool's file is damaged, a page of it cannot be read, its last session is not covered, or its
//! journal is refused. Such a pool may lead to any value of the other pools. So in the other pools
//! *no marked block is given back* ([`cenote_heap::TraceOptions::keep_unreached`]), and they are
//! traced: marks are durable with their transactions, so a marked block is a value or was never
//! attached, and a pointer to it finds its value unchanged. A block that was never attached stays
//! allocated until [`crate::Pool::collect`]. The pool itself stays due, and its opening returns a
//! typed error; when its file is back, it is traced like any pool, beside the others.
//!
//! With [`DamagePolicy::SkipDamaged`] the other pools are traced as if the rest of the damaged pool
//! were all of it: a block that only the lost part led to is given back.

use crate::error::{Error, Result};
use crate::open_pool::{Doubt, OpenList, doubt_of};
use crate::reached::{Heaps, Reached, reached_from_elsewhere};
use crate::registry::StoreTypes;
use crate::session::Inner;
use cenote_heap::{BackingError, OpenError, PoolBacking, PoolHeap, RecoverError, Trace};
use cenote_layout::catalog::HeapKind;
use cenote_layout::id::PoolId;
use cenote_medium::planted::{Bug, planted};
use cenote_store::{Access, DamagePolicy, PoolHandle, PoolInfo, StoreError};
use std::collections::BTreeMap;

/// Whether an error says that what a pool holds cannot be known, and not that this process lacks
/// something or that the pool is in use.
fn is_of_contents(error: &Error) -> bool {
    match error {
        Error::NotWhole { .. } => true,
        Error::Store(error) => matches!(
            error,
            StoreError::PoolDamaged { .. }
                | StoreError::PoolLogDamaged { .. }
                | StoreError::PoolNotCovered { .. }
                | StoreError::PuddleDamaged(_)
                | StoreError::Sealed { .. }
                | StoreError::Unreadable { .. }
                | StoreError::JournalDamaged { .. }
                | StoreError::JournalRolledBack { .. }
                | StoreError::PoolRolledBack { .. }
        ),
        Error::HeapOpen(error) => is_of_heap(error),
        Error::HeapRecover(error) => match error {
            RecoverError::Unreadable(source) => !passes(source),
            RecoverError::Sweep { .. } => true,
            RecoverError::Puddle(error) => is_of_heap(error),
            _ => false,
        },
        _ => false,
    }
}

fn is_of_heap(error: &OpenError) -> bool {
    match error {
        OpenError::NoPuddle | OpenError::TooSmall { .. } => true,
        OpenError::Logged(error) => error.is_damage(),
        OpenError::Wear(error) => error.is_damage(),
        OpenError::Backing { source, .. } => !passes(source),
        _ => false,
    }
}

/// Whether the process lacks something, and has it perhaps the next time.
fn passes(error: &BackingError) -> bool {
    let BackingError::Store { source, .. } = error else { return true };
    matches!(source.downcast_ref(), Some(StoreError::Medium(error)) if error.is_passing())
}

/// Pools that cannot be looked at, and why.
type Lost = BTreeMap<PoolId, Error>;

/// `None`: the pool cannot be looked at, which is noted.
fn or_lost<T>(lost: &mut Lost, pool: PoolId, found: Result<T>) -> Result<Option<T>> {
    match found {
        Ok(found) => Ok(Some(found)),
        Err(error) if is_of_contents(&error) => {
            lost.insert(pool, error);
            Ok(None)
        }
        Err(error) => Err(error),
    }
}

/// A pool and its heap, to be traced or looked at; `None`: it has no puddle.
fn opened(store: &Inner, info: &PoolInfo, due: bool) -> Result<Option<(PoolHandle, PoolHeap)>> {
    // A writer takes back the change of a logged heap that a crash broke off; a reader cannot.
    let writes = due || info.record.heap == HeapKind::Logged;
    let access = if writes { Access::ReadWrite } else { Access::ReadOnly };
    let handle = store.store.open_pool(&info.record.name, access)?;
    // What is lost of it may lead to values of pools that are traced.
    if let Some(Doubt::Damage(why)) = doubt_of(store, &handle)
        && store.policy.damage != DamagePolicy::SkipDamaged
    {
        return Err(Error::NotWhole { pool: info.record.name.clone(), why });
    }
    if handle.root_puddle().is_none() {
        return Ok(None);
    }
    // SAFETY: no other heap of the pool is open, or this one is refused; tracing frees what no root
    // and no other pool leads to.
    let backing = unsafe { PoolBacking::of(handle.clone()) };
    let heap = PoolHeap::open(backing)?;
    Ok(Some((handle, heap)))
}

/// After a loss of power: computes which blocks are allocated in all pools that were in use,
/// but for those that cannot be looked at.
///
/// # Errors
/// Why the first of these cannot; the others have been traced all the same.
pub(crate) fn trace_due_pools(store: &Inner, open: &OpenList) -> Result<()> {
    let due = store.store.pools_due();
    if due.is_empty() || !store.store.is_writable() {
        return Ok(());
    }
    let (mut heaps, mut lost) = (Vec::new(), Lost::new());
    let all_lost = |lost: &Lost| due.iter().all(|id| lost.contains_key(id));
    let mut pools = store.store.pools();
    pools.sort_by_key(|info| !due.contains(&info.record.id));
    for info in pools {
        if all_lost(&lost) {
            break;
        }
        // One that is in use already is so because it was not due, and this failed when it was
        // opened.
        if open.iter().any(|(name, pool)| *name == info.record.name && pool.strong_count() > 0) {
            return Err(Error::WouldDeadlock {
                pool: info.record.name,
                by: "a pool that is open: close it, so that all can be traced",
            });
        }
        let id = info.record.id;
        heaps.extend(or_lost(&mut lost, id, opened(store, &info, due.contains(&id)))?.flatten());
    }
    let reached = loop {
        if all_lost(&lost) {
            break Reached::new();
        }
        let whole = heaps.iter().filter(|(handle, _)| !lost.contains_key(&handle.id()));
        let by_id: Heaps<'_> = whole.map(|(handle, heap)| (handle.id(), heap)).collect();
        match reached_from_elsewhere(&store.store, &StoreTypes(&store.store), &by_id) {
            Ok(reached) => break reached,
            Err((id, error)) => drop(or_lost(&mut lost, id, Err::<(), Error>(error.into()))?),
        }
    };
    // One that may be torn has no log left that could come back to it.
    let traceable =
        |handle: &PoolHandle| matches!(doubt_of(store, handle), None | Some(Doubt::Torn));
    let traced = |handle: &PoolHandle| {
        due.contains(&handle.id()) && handle.is_writable() && traceable(handle)
    };
    for (handle, heap) in heaps.iter().filter(|(handle, _)| traced(handle)) {
        let id = handle.id();
        let Some(heap) = heap.can::<dyn Trace>() else {
            // Its logs say which blocks are allocated, and its opening has applied them. SAFETY:
            // nothing is traced in a pool of this kind.
            unsafe { handle.trace_done() }?;
            continue;
        };
        let Some(roots) = reached.get(&id) else { continue };
        let roots: Vec<u64> = roots.iter().copied().collect();
        let report = store.recovery_of(handle.name(), |mut options| {
            // A store whose values may be torn anyway may also have marks that no session
            // flushed.
            options.believe_marks = !store.policy.torn_allowed;
            options.keep_unreached = !lost.is_empty() && !planted(Bug::TracedWithoutLost);
            heap.recover_with(&StoreTypes(&store.store), &roots, options)
        });
        // Where it cannot be read after all, the others have its roots: it has changed nothing.
        let Some(report) = or_lost(&mut lost, id, report.map_err(Error::from))? else {
            continue;
        };
        store.note_traced(id, report);
        // A crash before this traces again; one before the next pool's traces that one, with
        // this one's roots as they are. SAFETY: traced just now, with all roots and what other
        // pools reach.
        unsafe { handle.trace_done() }?;
    }
    lost.into_values().next().map_or(Ok(()), Err)
}
