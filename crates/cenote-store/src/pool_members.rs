//! A pool that other processes write too, because a daemon granted it to them.

use crate::connection::note_doubts;
use crate::kernel::interface::error::StoreError;
use crate::kernel::interface::report::concerns;
use crate::kernel::pools::pool::PoolHandle;
use cenote_medium::planted::{Bug, planted};
use std::sync::PoisonError;

impl PoolHandle {
    /// Whether an image of a process of that name ([`cenote_sys::process::name_of`]) that has or
    /// had the pool has ended, and its logs are replayed. "Yes" is certain, and for ever. The
    /// daemon knows. It is asked at once about a process that `/proc` does not show: that one may
    /// be of another namespace, or have logs that wait. About one that lives it is asked now and
    /// then: the process may have called `exec`.
    ///
    /// # Errors
    /// [`StoreError::PoolLogDamaged`]: it has ended, and left a log that is set aside; the daemon
    /// cannot be asked.
    pub fn has_ended(&self, who: u64) -> Result<bool, StoreError> {
        let alive = cenote_sys::process::is_named_alive(who);
        let (Some(sharing), Some(connection)) = (self.sharing(), self.store().inner().connection())
        else {
            return Ok(cenote_sys::process::is_named_earlier(who) || !alive);
        };
        let ended = || sharing.ended.lock().unwrap_or_else(PoisonError::into_inner);
        if who == sharing.me {
            return Ok(false);
        }
        if ended().contains(&who) || (!alive && planted(Bug::DeadNotRecovered)) {
            return Ok(true);
        }
        if alive && (planted(Bug::ImageTakenForProcess) || !sharing.is_due(who)) {
            return Ok(false);
        }
        let members = match connection.daemon.members(self.id(), !alive) {
            Ok(members) => members,
            // Transactions go on without the daemon, where no member has ended.
            Err(_) if alive => return Ok(false),
            Err(error) => return Err(error),
        };
        sharing.believe(&members.living);
        if members.living.contains(&who) {
            return Ok(false);
        }
        if !members.doubts.is_empty() {
            let mut control = self.store().inner().control();
            note_doubts(&mut control, self.id(), members.doubts);
            let damage = concerns(&control.damage, self.id());
            return Err(StoreError::PoolLogDamaged { name: self.name().into(), damage });
        }
        ended().insert(who);
        Ok(true)
    }

    /// Makes the puddles findable that other processes have taken since, mapped. Nothing to do
    /// where there are no others.
    ///
    /// # Errors
    /// The daemon cannot be asked, or they cannot be mapped.
    pub fn learn_puddles(&self) -> Result<(), StoreError> {
        match self.store().inner().connection() {
            Some(connection) if self.sharing().is_some() => {
                self.store().learn_puddles_of(connection, self.core())
            }
            _ => Ok(()),
        }
    }
}
