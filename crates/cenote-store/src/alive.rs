//! Finds the clients of an earlier daemon that run still.
//!
//! A client goes on with its mappings when its daemon has ended. An opener must not replay the logs
//! of a client that runs, nor map its pools. Two signs say that it runs:
//!
//! 1. *Its byte.* Each client has a descriptor that holds one byte of the file `clients`
//!    ([`cenote_sys::held_byte`]). The kernel says so in every container, namespace and boot
//!    identity: it is the same kernel that has the mappings.
//! 2. *Its process*: number and start time, of this boot. They mean something in one process and
//!    time namespace only. A file system without such locks leaves this sign alone, as does a file
//!    `clients` that was removed.
//!
//! One sign is enough. What openers make of it:
//!
//! | client | opener | daemon |
//! | --- | --- | --- |
//! | its process is seen, this boot | refused | takes it over |
//! | its byte is held, its process is not seen, or another boot | refused | refused |
//! | neither | recovers its logs | recovers its logs |
//!
//! A daemon does not take over what it cannot see: it would not learn of the client's end.

use crate::kernel::catalog::CatalogState;
use crate::kernel::interface::error::OpenError;
use cenote_layout::catalog::HostedClientRecord;
use cenote_layout::id::Uuid;
use cenote_medium::planted::{Bug, planted};
use cenote_medium::{Medium, MediumError};

/// The file of a store whose bytes its clients hold.
pub const CLIENTS: &str = "clients";

/// The byte of [`CLIENTS`] that shows that this client's program runs.
#[must_use]
pub fn byte_of(client: Uuid) -> u64 {
    let id = u128::from_le_bytes(client.0);
    (id as u64 ^ (id >> 64) as u64) >> 2
}

/// Clients of the catalog whose processes are seen here.
pub(crate) fn seen(state: &CatalogState) -> impl Iterator<Item = &HostedClientRecord> {
    state.hosted_clients.values().filter(|hosted_client| {
        cenote_sys::process::is_alive(hosted_client.pid, hosted_client.start_ticks)
    })
}

/// Processes of the clients that keep this opener out, and whether it sees all of them; none: it
/// may open. See the module's table.
pub(crate) fn keep_out(
    medium: &dyn Medium,
    state: &CatalogState,
    (hosting, same_boot): (bool, bool),
) -> Result<(Vec<u32>, bool), MediumError> {
    let (mut pids, mut all_seen) = (Vec::new(), true);
    for hosted_client in state.hosted_clients.values() {
        let seen = same_boot
            && cenote_sys::process::is_alive(hosted_client.pid, hosted_client.start_ticks);
        let held = !planted(Bug::ClientsSeenAlone)
            && medium.is_byte_held(CLIENTS, byte_of(hosted_client.client))?;
        let keeps_out = if hosting { held && !seen } else { held || seen };
        if keeps_out {
            pids.push(hosted_client.pid);
            all_seen &= seen;
        }
    }
    Ok((pids, all_seen))
}

/// Refuses an opener that [`keep_out`] keeps out.
pub(crate) fn refuse(
    (medium, path): (&dyn Medium, &str),
    state: &CatalogState,
    opener: (bool, bool),
) -> Result<(), OpenError> {
    let path = path.to_owned();
    match keep_out(medium, state, opener) {
        Ok((pids, _)) if pids.is_empty() => Ok(()),
        Ok((pids, seen)) => Err(OpenError::Clients { path, pids, seen }),
        Err(source) => Err(OpenError::Medium { path, source: Box::new(source) }),
    }
}
