//! Things that wait at the addresses that a store had before its window moved: logs, and the pools
//! that they are about ([`crate::relocate::window`], "What waits").

use super::CatalogState;
use cenote_layout::id::{PoolId, Uuid};
use cenote_medium::planted::{Bug, planted};

impl CatalogState {
    /// How far the logs of a client have moved since they were written: what they say is lower by
    /// so much. `None`: they have not moved.
    pub(crate) fn moved_since(&self, client: Uuid) -> Option<u64> {
        let space = self.clients.get(&client)?;
        let (now, pending) = (self.puddles.get(space)?, self.pending.get(space)?);
        Some(now.addr.wrapping_sub(pending.from))
    }

    /// A client with logs that have moved, and that may be about a pool.
    pub(crate) fn waits_for(&self, pool: PoolId) -> Option<Uuid> {
        let mut written =
            self.leases.iter().filter(|((_, leased), writes)| **writes && *leased == pool);
        let found = written.find(|((client, _), _)| self.moved_since(*client).is_some());
        let found = found.map(|((client, _), _)| *client);
        found.filter(|_| !planted(Bug::WaitingRewritten))
    }

    /// Whether nothing is known of a pool's blocks but what its descriptors say: which of them are
    /// allocated is still to be found, or marks may not have come to the medium.
    pub(crate) fn marks_are_open(&self, pool: PoolId) -> bool {
        let open = [&self.trace_due, &self.not_covered, &self.torn];
        open.iter().any(|set| set.contains(&pool)) && !planted(Bug::MarksBelievedEarly)
    }
}
