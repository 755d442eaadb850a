//! Limits of one session and of one user.
//!
//! | limit | counts | holds |
//! | --- | --- | --- |
//! | of a session | what it has made, also what is gone since | until the session ends |
//! | of a user | the catalog: the user's pools and objects, the logs of its programs | always |
//! | of a user, types | types that the user's programs registered | while the daemon runs |
//!
//! A session's limits stop a program that runs wild. A user's limits hold over sessions and
//! daemons, and removing something gives it back. A pool counts for its owner, also if another
//! user's program lets it grow.
//!
//! **A thread that may come to a user's limit makes one thing at a time**: it has the turn from its
//! look at the catalog to the batch that changes the catalog. A copy or an import takes long, and
//! gives the turn back meanwhile. It is *promised* the space that it will take: the promise counts
//! for its user until the pools are there, or the copy fails.
//!
//! Types are for good, and the catalog does not name the user that registered them. The limit
//! bounds what one user's programs can add to the daemon's memory, and how many names of types they
//! can take before an operator reads the log's lines about it and restarts the daemon.

use std::collections::HashMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

/// What is counted for users.
#[derive(Debug, Default)]
pub(crate) struct Quotas {
    /// What is promised to users: puddles and bytes. Locked by a thread that makes something for a
    /// user that has a limit.
    turn: Arc<Mutex<Promised>>,
    /// Types and bytes of their descriptions, by user. No more users than have registered one.
    types: Mutex<HashMap<u32, (u64, u64)>>,
}

/// Puddles and their bytes, by user.
pub(crate) type Promised = HashMap<u32, (u64, u64)>;

/// What a user will have; dropped, it has it, or nothing will come of it.
#[derive(Debug)]
pub(crate) struct Promise {
    promised: Arc<Mutex<Promised>>,
    uid: u32,
    puddles: u64,
    bytes: u64,
}

impl Drop for Promise {
    fn drop(&mut self) {
        let mut promised = self.promised.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some((puddles, bytes)) = promised.get_mut(&self.uid) {
            (*puddles, *bytes) = (*puddles - self.puddles, *bytes - self.bytes);
            if (*puddles, *bytes) == (0, 0) {
                promised.remove(&self.uid);
            }
        }
    }
}

impl Quotas {
    /// Takes the turn: the caller alone makes something for a user that has a limit.
    pub(crate) fn turn(&self) -> MutexGuard<'_, Promised> {
        self.turn.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Promises puddles to a user, in the caller's turn.
    pub(crate) fn promise(
        &self,
        mut turn: MutexGuard<'_, Promised>,
        uid: u32,
        (puddles, bytes): (u64, u64),
    ) -> Promise {
        let promised = turn.entry(uid).or_default();
        (promised.0, promised.1) = (promised.0 + puddles, promised.1 + bytes);
        Promise { promised: Arc::clone(&self.turn), uid, puddles, bytes }
    }

    /// Types that users have registered, and bytes of their descriptions.
    pub(crate) fn types(&self) -> MutexGuard<'_, HashMap<u32, (u64, u64)>> {
        self.types.lock().unwrap_or_else(PoisonError::into_inner)
    }
}
