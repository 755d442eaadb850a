//! Decisions of an operator about a store: permissions of pools, logs that are set aside, and pools
//! that may be torn.

use crate::error::Result;
use crate::open_pools::pools_of;
use crate::session::Store;
use cenote_layout::id::Uuid;
use cenote_store::{LogDecision, PermissionChange, UndecidedLogs};

impl Store {
    /// Changes a pool's owner, group or mode, which decide which users may open it through a
    /// daemon. Clients that have it open keep it.
    ///
    /// # Errors
    /// [`Error::Store`](crate::Error::Store): there is no such pool, or this user may not.
    pub fn set_permissions(&self, pool: &str, change: PermissionChange) -> Result<()> {
        // In a store of this process, permissions of files decide, and this process has opened
        // them.
        let credentials = cenote_store::Credentials { uid: 0, gid: 0, groups: Vec::new() };
        Ok(self.inner.store.set_permissions(&credentials, pool, change)?)
    }

    /// Clients whose logs are set aside, because they failed their checks: their pools can only be
    /// opened to look, until an operator decides. Through a daemon, those whose pools are all the
    /// caller's.
    ///
    /// # Errors
    /// [`Error::Store`](crate::Error::Store): the daemon cannot be reached.
    pub fn undecided_logs(&self) -> Result<Vec<UndecidedLogs>> {
        Ok(self.inner.store.undecided_logs()?)
    }

    /// Replays the logs of such a client, if they pass their checks now: restore the damaged files
    /// first. Durable on return. The next opener of a pool traces the pools.
    ///
    /// # Errors
    /// [`Error::Store`](crate::Error::Store): no log of it is set aside, a pool of it is open or
    /// another user's, or the logs fail their checks still.
    pub fn apply_logs(&self, client: Uuid) -> Result<()> {
        self.decide_logs(client, LogDecision::Apply)
    }

    /// Deletes the logs of such a client. Its pools stay as they were when the client ended, so
    /// they may hold half a transaction. The store records that: every session refuses these pools
    /// ([`StoreError::PoolTorn`](cenote_store::StoreError::PoolTorn)). Under another
    /// [`DamagePolicy`](cenote_store::DamagePolicy) than `Refuse` it shows them as blocks. Durable
    /// on return.
    ///
    /// Afterwards restore the pools, or remove them, or repair them in a store that is opened by
    /// [`Store::open_torn`] and then call [`Store::declare_whole`].
    ///
    /// # Errors
    /// As [`Store::apply_logs`].
    pub fn discard_logs(&self, client: Uuid) -> Result<()> {
        self.decide_logs(client, LogDecision::Discard)
    }

    /// Declares a pool whole whose logs were discarded. This session and later ones can then read
    /// its values again. Durable on return. Nothing happens if the pool is not torn.
    ///
    /// # Errors
    /// [`Error::Store`](crate::Error::Store): there is no such pool, it is open, or the user may
    /// not.
    ///
    /// # Safety
    /// The pool is as whole transactions left it: bytes of each block are a value of its type, and
    /// collections are as their headers say. [`crate::Pool::check`] does not tell: a vector that is
    /// half truncated has valid values. The caller has repaired the pool, or knows that no
    /// transaction was running.
    pub unsafe fn declare_whole(&self, pool: &str) -> Result<()> {
        self.inner.refuse_forked()?;
        // As for permissions.
        let credentials = cenote_store::Credentials { uid: 0, gid: 0, groups: Vec::new() };
        // A handle that is being dropped counts as open below.
        let declare = || {
            // SAFETY: the caller's promise.
            unsafe { self.inner.store.declare_whole(&credentials, pool) }
        };
        Ok(pools_of(&self.inner).while_closed(|name| name == pool, declare)?)
    }

    /// Names of pools that may be torn, because logs were discarded. Through a daemon: none, which
    /// says so when one is opened.
    #[must_use]
    pub fn torn_pools(&self) -> Vec<String> {
        self.inner.store.torn_pools()
    }

    fn decide_logs(&self, client: Uuid, decision: LogDecision) -> Result<()> {
        self.inner.refuse_forked()?;
        // As for permissions.
        let credentials = cenote_store::Credentials { uid: 0, gid: 0, groups: Vec::new() };
        Ok(self.inner.store.decide_logs(&credentials, client, decision)?)
    }
}
