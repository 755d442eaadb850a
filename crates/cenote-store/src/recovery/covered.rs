//! Finds the pools that a loss of power may have torn, and those of them that the caller takes as
//! they are.

use super::dead::Dead;
use crate::kernel::catalog::CatalogState;
use crate::kernel::interface::options::PowerLossPolicy;
use crate::kernel::store::{Control, Inner};
use cenote_layout::id::PoolId;
use cenote_layout::superblock::DURABILITY_POWER;
use cenote_medium::Durability;
use std::collections::BTreeSet;

/// Whether the last session's acknowledgements cover a loss of power.
pub(super) fn covered(inner: &Inner, control: &Control) -> bool {
    control.superblock.durability == DURABILITY_POWER && inner.info.durability == Durability::Power
}

/// Pools that a loss of power may have torn and the caller takes as they are: those that the
/// options name, and those that logs bind to them. A log is replayed for all of its pools or none.
pub(super) fn taken_as_is(
    inner: &Inner,
    state: &CatalogState,
    dead: &Dead,
    void: &BTreeSet<PoolId>,
    not_covered: &BTreeSet<PoolId>,
) -> BTreeSet<PoolId> {
    let named = |id: &&PoolId| {
        let pool = state.pools.get(id);
        pool.is_some_and(|pool| inner.options.power_loss_of(&pool.name) == PowerLossPolicy::AsIs)
    };
    let mut taken: BTreeSet<PoolId> = not_covered.iter().filter(named).copied().collect();
    loop {
        let before = taken.len();
        for client in &dead.clients {
            let written: Vec<PoolId> = state
                .writable_pools(*client)
                .into_iter()
                .filter(|pool| not_covered.contains(pool) && !void.contains(pool))
                .collect();
            if written.iter().any(|pool| taken.contains(pool)) {
                taken.extend(written);
            }
        }
        if taken.len() == before {
            return taken;
        }
    }
}
