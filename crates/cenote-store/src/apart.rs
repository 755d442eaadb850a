//! The state that the recovery of one client works on while the store goes on: a [`Control`] of its
//! own.

use crate::kernel::catalog::Catalog;
use crate::kernel::puddles::window::Space;
use crate::kernel::store::{Control, Inner};
use crate::parts;
use cenote_layout::catalog::{ClientRecord, LeaseRecord, PuddleRecord, Record};
use cenote_layout::id::Uuid;
use cenote_layout::puddle::Role;

impl Control {
    /// The facts that replaying a client's logs needs: its log space, the pools that it could
    /// write, their puddles, and all logs, of which it lists its own. It had no right to any other
    /// pool.
    pub(crate) fn apart(&self, inner: &Inner, client: Uuid) -> Self {
        let state = &self.catalog.state;
        let mut catalog = Catalog::mirror(inner.medium.clone());
        let pools = state.writable_pools(client);
        let mut records: Vec<Record> = Vec::new();
        for pool in &pools {
            records.extend(state.pools.get(pool).cloned().map(Record::Pool));
            records.push(Record::Lease(LeaseRecord { client, pool: *pool, writable: true }));
        }
        let log_space = state.clients.get(&client);
        records.extend(
            log_space.map(|space| Record::Client(ClientRecord { client, log_space: *space })),
        );
        let logs = |puddle: &&PuddleRecord| matches!(puddle.role, Role::Log | Role::LogSpace);
        let wanted =
            state.puddles.values().filter(|puddle| logs(puddle) || pools.contains(&puddle.pool));
        records.extend(wanted.copied().map(Record::Puddle));
        records.iter().for_each(|record| catalog.state.apply(record));
        let pending =
            state.pending.iter().filter(|(puddle, _)| catalog.state.puddles.contains_key(puddle));
        catalog.state.pending = pending.map(|(puddle, pending)| (*puddle, *pending)).collect();
        let seals = state.seals.iter();
        let seals = seals.filter(|(puddle, _)| catalog.state.puddles.contains_key(puddle));
        catalog.state.seals = seals.map(|(puddle, seal)| (*puddle, *seal)).collect();
        let left = state.left.iter();
        let left = left.filter(|(puddle, _)| catalog.state.puddles.contains_key(puddle));
        catalog.state.left = left.map(|(puddle, era)| (*puddle, *era)).collect();
        let space = Space::new(inner.window.base(), inner.window.len());
        Self::new(self.superblock, catalog, space, self.client, parts::under_lock())
    }

    /// Takes over the puddles of such a one: frees them if nothing of them is mapped any more.
    pub(crate) fn bury(&mut self, apart: Self, unmapped: bool) {
        for puddle in apart.puddles.into_values() {
            if unmapped {
                // SAFETY: made by `Box::leak` for that one, which no other thread has seen, and in
                // no slot of the window.
                drop(unsafe { Box::from_raw(puddle.as_ptr()) });
            } else {
                self.graveyard.push(puddle);
            }
        }
    }
}
