//! Copies of a store that is in use: [`Store::backup`]. What the copy is, and its steps, are in
//! `cenote_store` (`backup/mod.rs`); here transactions are kept from running while files are
//! brought to one moment.
//!
//! *Order of waiting,* as of a check of all pools: first for views of the pools that are open, none
//! of them held while another is waited for; then for the list of open pools, so that no further
//! one is opened; and for nothing while that is held. Views keep writers out and let readers go on.

use crate::check;
use crate::error::Result;
use crate::pool::PoolInner;
use crate::store::Store;
use cenote_medium::planted::{Bug, planted};
use cenote_store::BackedUp;
use std::path::Path;
use std::sync::Arc;

impl Store {
    /// Makes a copy of the store in `target`, a directory that is not there, or is empty: a closed
    /// store of the same identity, which any opener opens. Transactions go on but for a moment at
    /// the end, when what has changed since it was copied is copied again.
    ///
    /// Pools in direct mode are in the copy as they were at that moment, between transactions, all
    /// of them at the same; pools in shadowed mode and objects as their last psync left them. The
    /// copy is complete under its name, or not there, whatever crashes when. It survives loss of
    /// power if the answer is [`BackedUp::Durable`].
    ///
    /// # Errors
    /// [`StoreError::Backup`](cenote_store::StoreError::Backup): the target is not empty, or cannot
    /// be made; the disk is full; [`Error::WouldDeadlock`](crate::Error::WouldDeadlock) in a
    /// transaction of this thread. There is no copy then.
    pub fn backup(&self, target: impl AsRef<Path>) -> Result<BackedUp> {
        self.backup_with(target, &mut |_, _| true)
    }

    /// The same, told how far it has come: bytes done and bytes altogether. `false` stops it.
    ///
    /// # Errors
    /// As [`Store::backup`].
    pub fn backup_with(
        &self,
        target: impl AsRef<Path>,
        progress: &mut dyn FnMut(u64, u64) -> bool,
    ) -> Result<BackedUp> {
        self.inner.refuse_forked()?;
        let mut backup = self.inner.store.begin_backup(target.as_ref())?;
        backup.copy_ahead(progress)?;
        loop {
            let open: Vec<Arc<PoolInner>> =
                self.inner.pools.locked().iter().filter_map(|(_, pool)| pool.upgrade()).collect();
            let views = match planted(Bug::BackupNotHeld) {
                true => Vec::new(),
                false => check::views_of(&open)?,
            };
            let list = self.inner.pools.locked();
            let known = |there: &Arc<PoolInner>| open.iter().any(|other| Arc::ptr_eq(other, there));
            let now: Vec<Arc<PoolInner>> = list.iter().filter_map(|(_, there)| there.upgrade()).collect();
            if now.iter().all(known) {
                backup.copy_held()?;
                drop((list, views));
                break;
            }
            // Dropped after the lock: if one of these is the last handle, dropping it takes the
            // lock.
            drop(list);
        }
        Ok(backup.finish()?)
    }
}
