//! What the pools of a store lead to in each other.

use cenote_heap::{Inspect as _, PoolHeap, RecoverError, Types};
use cenote_layout::id::PoolId;
use cenote_store::{Puddle, Store};
use std::collections::{BTreeMap, BTreeSet};

pub(crate) type Heaps<'h> = BTreeMap<PoolId, &'h PoolHeap>;

/// What is led to from other pools, by pool.
pub(crate) type Reached = BTreeMap<PoolId, BTreeSet<u64>>;

/// For each pool the addresses in it that something in the other pools leads to which can be
/// reached from any pool's roots. All pools of the store are open, and no thread changes data.
///
/// # Errors
/// The pool that cannot be read, and why.
pub(crate) fn reached_from_elsewhere(
    store: &Store,
    types: &dyn Types,
    heaps: &Heaps<'_>,
) -> core::result::Result<Reached, (PoolId, RecoverError)> {
    let mut reached: Reached = heaps.keys().map(|id| (*id, BTreeSet::new())).collect();
    // Until nothing new is reached: what leads out of a pool may begin at what leads into it.
    let mut waiting: BTreeSet<PoolId> =
        if heaps.len() > 1 { heaps.keys().copied().collect() } else { BTreeSet::new() };
    while let Some(id) = waiting.pop_first() {
        let roots: Vec<u64> = reached[&id].iter().copied().collect();
        let foreign = heaps[&id].foreign_pointers(types, &roots);
        for addr in foreign.map_err(|error| (id, error))? {
            if let Some(owner) = store.puddle_of(addr).map(Puddle::pool)
                && let Some(known) = reached.get_mut(&owner)
                && known.insert(addr)
            {
                waiting.insert(owner);
            }
        }
    }
    Ok(reached)
}
