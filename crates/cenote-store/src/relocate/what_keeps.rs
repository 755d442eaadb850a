//! Says what keeps a store in its window: a move would lose or break it.

use crate::kernel::catalog::CatalogState;
use crate::kernel::interface::report::Damage;
use crate::kernel::store::Control;
use cenote_layout::id::{PoolId, Uuid};

/// Why a writer must not move the store now, and what is to be done where its window is free.
pub(super) fn what_keeps(control: &Control) -> Option<String> {
    let state = &control.catalog.state;
    let keeps = |damage: &&Damage| damage.is_lost() && !goes_along(state, damage);
    if let Some(damage) = control.damage.iter().find(keeps) {
        return Some(format!("something of it is damaged: {damage}"));
    }
    if let Some(client) = state.hosted_clients.keys().find(|client| **client != control.client) {
        return Some(format!("session {client} is not over: its process lives"));
    }
    let mut written = state.leases.iter().filter(|(_, writes)| **writes).map(|(lease, _)| lease);
    let waits =
        |(client, pool): &&(Uuid, PoolId)| *client != control.client && state.is_shadowed(*pool);
    let (client, pool) = written.find(waits)?;
    let name = name_of(state, *pool);
    Some(match state.clients.contains_key(client) {
        true => format!(
            "pool {name} is in shadowed mode, and a log of client {client} that may be about it \
             is set aside or waits for a damaged file: bring the file back, or decide about the \
             log (`cenote logs`)"
        ),
        false => format!(
            "pool {name} is in shadowed mode, a file of it is damaged, and what its last session \
             stored is not psynced: bring the file back, or remove the pool"
        ),
    })
}

/// Whether what is damaged moves with the rest: files of puddles, logs and objects are as they are.
fn goes_along(state: &CatalogState, damage: &Damage) -> bool {
    match damage {
        Damage::Puddle { uuid, .. } => state.puddles.contains_key(uuid),
        Damage::Object { .. } | Damage::Log { .. } | Damage::LogSpace { .. } => true,
        _ => false,
    }
}

pub(super) fn name_of(state: &CatalogState, pool: PoolId) -> String {
    state.pools.get(&pool).map_or_else(|| pool.to_string(), |known| format!("\"{}\"", known.name))
}
