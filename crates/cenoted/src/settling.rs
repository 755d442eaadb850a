//! Waits until a pool or an object can be had: until its dead holders are recovered, say.

use std::time::{Duration, Instant};

use cenote_layout::id::{PoolId, Uuid};
use cenote_proto::Refusal;
use cenote_store::{BY_DAEMON, Credentials, StoreError};

use crate::answers::refusal;
use crate::shared::Shared;

/// How long a grant waits for the recovery of clients that had the pool.
const ENDING: Duration = Duration::from_secs(10);
/// How long it sleeps before it looks again.
const PAUSE: Duration = Duration::from_micros(500);

/// Returns what is wanted of a pool, as soon as it can be had. It waits while the logs of a dead
/// holder are replayed, and while the daemon copies the pool or rewrites its pointers for another
/// client. The pointers of a pool that has moved are rewritten here, for a client that may read it.
pub(crate) fn granted<R>(
    shared: &Shared,
    (client, credentials): (Uuid, &Credentials),
    name: &str,
    want: impl Fn() -> Result<R, StoreError>,
) -> Result<R, Refusal> {
    let began = Instant::now();
    if let Ok(pool) = shared.store.pool_id(name) {
        settle(shared, client, pool);
    }
    loop {
        let error = match want() {
            Ok(got) => return Ok(got),
            Err(error) => error,
        };
        let over = began.elapsed() > ENDING;
        match error {
            error if !over && is_worth_waiting(&error, |name| is_free_soon(shared, name)) => {
                std::thread::sleep(PAUSE);
            }
            StoreError::RelocationPending { .. } if !over => {
                match shared.store.client_finish(credentials, name) {
                    Ok(rewritten) => shared.metrics.rewritten(&rewritten),
                    Err(StoreError::PoolBusy { .. }) => std::thread::sleep(PAUSE),
                    Err(error) => return Err(refusal(error)),
                }
            }
            error => return Err(refusal(error)),
        }
    }
}

/// Whether the same question can have another answer soon. A pool that the daemon itself has is
/// free in a moment; of other holders `is_free_soon` tells.
fn is_worth_waiting(refused: &StoreError, is_free_soon: impl FnOnce(&str) -> bool) -> bool {
    match refused {
        StoreError::PoolBusy { by, .. } if by == BY_DAEMON => true,
        StoreError::PoolHeld { by, .. } if by == BY_DAEMON => true,
        StoreError::PoolBusy { name, .. }
        | StoreError::PoolHeld { name, .. }
        | StoreError::PoolInUse { name } => is_free_soon(name),
        _ => false,
    }
}

/// Whether no holder keeps the pool: one is about to lose it, the daemon copies or rewrites it, or
/// that was so when the caller asked and is over.
fn is_free_soon(shared: &Shared, name: &str) -> bool {
    let Ok(pool) = shared.store.pool_id(name) else { return false };
    let holders = shared.store.client_holders(pool);
    holders.is_empty() || shared.sessions.any_ended_of(&holders) || shared.store.is_held(name)
}

/// Waits until dead holders of the pool are recovered. If that fails, the caller finds them in the
/// pool still.
pub(crate) fn settle(shared: &Shared, client: Uuid, pool: PoolId) {
    settle_those(shared, || {
        let mut holders = shared.store.client_holders(pool);
        // The caller has not ended.
        holders.retain(|holder| *holder != client);
        holders
    });
}

/// Waits until dead clients among `holders` are recovered, and not longer than [`ENDING`].
pub(crate) fn settle_those(shared: &Shared, holders: impl Fn() -> Vec<Uuid>) {
    let began = Instant::now();
    while shared.sessions.any_ended_of(&holders()) && began.elapsed() < ENDING {
        std::thread::sleep(PAUSE);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The reason of the refusal may be over when the daemon looks: then the caller must ask again.
    #[test]
    fn a_pool_that_the_daemon_had_is_asked_for_again_though_it_is_free_by_now() {
        let busy = |by: &str| StoreError::PoolBusy { name: "p".into(), by: by.into() };
        assert!(is_worth_waiting(&busy(BY_DAEMON), |_| false));
        assert!(!is_worth_waiting(&busy("process 7"), |_| false));
        assert!(is_worth_waiting(&busy("process 7"), |name| name == "p"));
        let in_use = StoreError::PoolInUse { name: "p".into() };
        assert!(is_worth_waiting(&in_use, |name| name == "p"));
        assert!(!is_worth_waiting(&StoreError::PoolUnknown { name: "p".into() }, |_| true));
    }
}
