//! Primaries of pools in shadowed mode, looked at: files that a psync writes into.
//!
//! A session after a crash of processes goes on from the shadow, and needs the primary only when a
//! psync or recovery writes to it. So nothing else of a store that is open for reading looks there.

use crate::error::StoreError;
use crate::puddle::verify_primary;
use crate::report::Damage;
use crate::store::Store;
use cenote_layout::catalog::AtRest;

impl Store {
    /// Primaries that no psync can be written into: missing, of another length, or with a header
    /// that is not theirs. A writable open that has to bring a psync there is refused. Changes
    /// nothing. Those that have moved and are not rewritten are left out, and a daemon's client
    /// sees none.
    ///
    /// # Errors
    /// The medium reports an error other than damage.
    pub fn damaged_primaries(&self) -> Result<Vec<Damage>, StoreError> {
        let inner = self.inner();
        if inner.connection.is_some() {
            return Ok(Vec::new());
        }
        let control = inner.control();
        let state = &control.catalog.state;
        let mut damage = Vec::new();
        let shadowed = state
            .pools
            .keys()
            .filter(|pool| state.is_shadowed(**pool) && state.at_rest(**pool) == AtRest::None);
        for record in shadowed.flat_map(|pool| state.puddles_of(*pool)) {
            if state.due.contains_key(&record.uuid) {
                continue;
            }
            if let Some(detail) = verify_primary(&inner.medium, &record, inner.uuid, false)? {
                let (uuid, pool, index) = (record.uuid, record.pool, record.index);
                let detail = format!("its primary, which psyncs are written into: {detail}");
                damage.push(Damage::Puddle { uuid, pool, index, detail });
            }
        }
        Ok(damage)
    }
}
