//! The memory that a replay may touch.

use super::replaying::Replaying;
use cenote_layout::id::Uuid;
use cenote_layout::puddle::{Role, header_space};
use cenote_log::{Body, Refusal, ReplayTarget};
use cenote_medium::Persistence;
use cenote_medium::planted::{Bug, planted};

/// What `cenote_log` may touch on behalf of the client in hand.
pub(super) struct ClientTarget<'s, 'a>(pub(super) &'s mut Replaying<'a>);

impl ReplayTarget for ClientTarget<'_, '_> {
    fn writable(&mut self, owner: Uuid, addr: u64, len: u64) -> Result<*mut u8, Refusal> {
        let replaying = &mut *self.0;
        let record = replaying.record_at(addr).ok_or(Refusal::Outside)?;
        let addr = replaying.now_at(addr);
        let body = record.addr + header_space(record.size);
        let end = addr.checked_add(len).ok_or(Refusal::Outside)?;
        if addr < body
            || end > record.addr + record.size
            || !matches!(record.role, Role::Heap | Role::Metadata | Role::Object)
        {
            return Err(Refusal::Outside);
        }
        let leased = owner == replaying.client && replaying.pools.contains(&record.pool);
        if !leased && !planted(Bug::LeaseIgnored) {
            return Err(Refusal::NotLeased(record.pool));
        }
        // What is leased was mapped by `prepare`, so neither of these fails.
        let problem = replaying.problem(&record).unwrap_or_else(|error| Some(error.to_string()));
        if let Some(problem) = problem {
            return Err(Refusal::Unusable(problem));
        }
        replaying.map(&record).map_err(|error| Refusal::Unusable(error.to_string()))?;
        // The puddle may be mapped at a distance from what the catalog says.
        Ok(addr.wrapping_add(replaying.inner.window.distance()) as *mut u8)
    }

    fn segment(&mut self, owner: Uuid, puddle_addr: u64) -> Option<Body> {
        self.0.segment_body(owner, puddle_addr)
    }

    fn persistence(&self) -> Persistence {
        self.0.inner.persistence
    }

    fn is_lost(&self) -> bool {
        self.0.lost().is_some()
    }
}
