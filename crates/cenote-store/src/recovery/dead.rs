//! The dead clients that recovery is about.

use crate::kernel::catalog::CatalogState;
use crate::kernel::store::Inner;
use cenote_layout::id::Uuid;
use cenote_log::CrashKind;
use std::collections::BTreeSet;

/// The sessions that the catalog names and that have ended.
pub(super) struct Dead {
    pub(super) clients: BTreeSet<Uuid>,
    /// Number of clients of an earlier daemon that live and go on: what they do is not over. (After
    /// a loss of power none does.)
    pub(super) living_clients: usize,
}

impl Dead {
    pub(super) fn named_by(state: &CatalogState, inner: &Inner, crash: Option<CrashKind>) -> Self {
        let mut clients: BTreeSet<Uuid> = state.clients.keys().copied().collect();
        clients.extend(state.leases.keys().map(|(client, _)| *client));
        clients.extend(state.hosted_clients.keys().copied());
        clients.extend(state.object_leases.keys().map(|(client, _)| *client));
        let mut living_clients = 0;
        if inner.options.hosting.is_some() && crash != Some(CrashKind::Power) {
            for hosted_client in crate::alive::seen(state) {
                clients.remove(&hosted_client.client);
                living_clients += 1;
            }
        }
        Self { clients, living_clients }
    }
}
