//! The verdict about a client whose logs were replayed.

use cenote_layout::id::PoolId;
use std::collections::BTreeSet;

/// What recovery decides about one client.
#[derive(Clone, PartialEq, Eq)]
pub(super) enum Verdict {
    /// Its logs are empty now: it can go.
    Done,
    /// It stays in the catalog, with its leases on these pools, which its logs are about.
    Stays(BTreeSet<PoolId>),
}
