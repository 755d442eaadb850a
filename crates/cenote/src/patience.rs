//! How long a thread that has pools waits for another one, where other processes share pools.
//!
//! The list of threads that wait ([`crate::waits`]) is of this process alone. A circle over several
//! processes is in no list: process 1 has pool A and wants B, process 2 has B and wants A. It ends
//! by time.
//!
//! *Each circle ends.* A thread that has no pool when it begins to wait holds nothing that others
//! wait for, but for locks of this process, which are taken all or none
//! ([`crate::process_lock::turns`]). So not all threads of a circle are such ones, and one that
//! has a pool waits for [`PATIENCE`] at most. *The others wait as long as it takes*, and so do all
//! threads of a process that has opened no shared pool: no other process waits for them.
//!
//! What ends so need not be a circle: a transaction may take longer than that. The error says both.

use crate::error::{Error, Result};
use crate::frames::had_in_transactions;
use crate::open_pool::PoolInner;
use crate::readers::is_sharing;
use crate::viewed::had_in_views;
use crate::wait_limit::wait_limit;
use cenote_medium::planted::{Bug, planted};
use std::time::{Duration, Instant};

/// How long a thread that has pools waits for what another process may keep.
const PATIENCE: Duration = Duration::from_secs(10);

/// Until when the calling thread waits; `None`: as long as it takes. `begins`: for its innermost
/// transaction, which has nothing yet.
pub(crate) fn patience(begins: bool) -> Option<Instant> {
    let limit = wait_limit().map(|limit| limit.until);
    if !is_sharing() || planted(Bug::PatienceWithoutEnd) {
        return limit;
    }
    let has = !had_in_views().is_empty() || !had_in_transactions(begins).is_empty();
    let patience = has.then(|| Instant::now() + PATIENCE);
    [limit, patience].into_iter().flatten().min()
}

/// Whether a thread waited for something, and has it not.
pub(crate) fn is_late<T>(taken: &Result<T>) -> bool {
    matches!(taken, Err(Error::WaitedLong { .. }))
}

impl PoolInner {
    /// What was waited for came in time.
    pub(crate) fn in_time<T>(&self, taken: Option<T>) -> Result<T> {
        taken.ok_or_else(|| {
            let pool = self.handle.name().to_string();
            match wait_limit().filter(|limit| limit.until <= Instant::now()) {
                Some(limit) => Error::NotFree { pool, timeout: limit.timeout },
                None => Error::WaitedLong { pool, after: PATIENCE.as_secs() },
            }
        })
    }
}
