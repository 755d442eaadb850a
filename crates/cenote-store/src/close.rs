//! Closes a store, and gives back what an open store holds.
//!
//! Invariant: the superblock says "clean" only if no log holds anything and every puddle file is
//! synced.
//!
//! States of a close:
//!
//! 1. Pools in shadowed mode are psynced, then the puddles of all leased pools synced.
//! 2. A batch ends the leases and removes the client, **which commits the end of the leases**.
//! 3. The journals that this session has opened are trimmed ([`crate::kernel::catalog::journals`]).
//! 4. The superblock says "clean", that the catalog has this batch, and which headers those
//!    journals have: **its sync commits**.
//! 5. Its other copy says the same.
//!
//! A crash before 4 leaves a store that is recovered, with nothing to do. A journal that this
//! session has not opened is as it was before it, recovered or not.
//!
//! *The journal of pools cannot be used.* Then this session has written no pool in shadowed mode,
//! and has only those that it inherited from a session that was killed. They wait: nothing is
//! psynced at 1, their shadows are synced and sealed with the others, and the batch of 2 keeps the
//! leases on them. So each later open finds them as this one did, until the journal is back, or is
//! given up ([`crate::given_up`]): then the first psync compares all pages.

use crate::kernel::interface::error::StoreError;
use crate::kernel::store::{Control, Inner, Store};
use crate::psync::psync_leased;
use cenote_layout::catalog::{LeaseRecord, Record};
use cenote_layout::id::PoolId;
use cenote_layout::superblock::STATE_CLEAN;
use cenote_medium::planted::{Bug, planted};
use cenote_sys::fork_guard;
use core::sync::atomic::Ordering;
use std::collections::BTreeSet;
use std::sync::{Arc, PoisonError};

impl Inner {
    /// Writes what a close writes, then lets go.
    pub(crate) fn shut_down(&self) -> Result<(), StoreError> {
        let written = self.write_close();
        self.silent.store(true, Ordering::Release);
        written
    }

    fn write_close(&self) -> Result<(), StoreError> {
        self.check_usable()?;
        if self.silent.load(Ordering::Acquire) || !self.writable {
            return Ok(());
        }
        self.check_poisoned()?;
        if let Some(connection) = self.connection() {
            let logs = self.control().logs.in_use();
            if logs > 0 {
                return Err(StoreError::LogsInUse { logs });
            }
            self.persistence.fence();
            // A goodbye says that what was stored is psynced; without one the next to have the
            // pools looks for what is not.
            psync_leased(self, &mut self.control())?;
            return connection.daemon.goodbye();
        }
        let mut guard = self.control();
        let control = &mut *guard;
        let logs = control.logs.in_use();
        if logs > 0 {
            return Err(StoreError::LogsInUse { logs });
        }
        if !control.hosted().is_empty() {
            // They live on; the next daemon takes them over.
            return Err(StoreError::Hosting { clients: control.hosted().len() as u64 });
        }
        self.persistence.fence();
        // The next opener goes on from here, and may lose power before its first psync.
        let waiting = self.psync_to_close(control)?;
        let (seals, era) = self.seal(control)?;
        let ahead = self.name_ahead(control);
        self.check_poisoned()?;
        let (mut records, surplus) = self.closing_records(control);
        let client = control.client;
        let waits =
            |pool: &PoolId| Record::Lease(LeaseRecord { client, pool: *pool, writable: true });
        records.extend(waiting.iter().map(waits));
        records.extend(ahead);
        records.extend(seals);
        self.commit(control, &records)?;
        for record in surplus {
            let file = crate::kernel::puddles::puddle::file_name(record.uuid);
            let _ = self.medium.remove(core::str::from_utf8(&file).unwrap_or_default());
        }
        if let Some(journal) = self.shadows().journal() {
            journal.checkpoint()?;
            self.shadows().stop(false);
        }
        self.name_closed_journals(control)?;
        control.superblock.state = STATE_CLEAN;
        (control.superblock.era, control.superblock.unclosed) = (era, 0);
        control.superblock.catalog_batch = control.catalog.batch();
        self.store_superblock(&mut control.superblock)?;
        // The store is closed. The other copy says it too, so that the loss of one costs nothing;
        // an error costs that.
        let _ = self.store_superblock(&mut control.superblock);
        Ok(())
    }

    /// Psyncs the pools in shadowed mode that this session holds. Those that have to wait, because
    /// the journal cannot be used.
    fn psync_to_close(&self, control: &mut Control) -> Result<BTreeSet<PoolId>, StoreError> {
        let state = &control.catalog.state;
        let mut held: BTreeSet<PoolId> = state.writable_pools(control.client).into_iter().collect();
        held.retain(|pool| state.is_shadowed(*pool) && !state.is_protected(*pool));
        if !held.is_empty() && self.shadows().journal().is_none() {
            match self.pool_journal(control) {
                Err(StoreError::JournalDamaged { .. } | StoreError::JournalRolledBack { .. }) => {
                    return Ok(if planted(Bug::LeaseEndedUnpsynced) {
                        BTreeSet::new()
                    } else {
                        held
                    });
                }
                opened => opened.map(drop)?,
            }
        }
        psync_leased(self, control)?;
        Ok(BTreeSet::new())
    }
}

impl Drop for Inner {
    fn drop(&mut self) {
        // In a forked child nothing is ours: not the mappings, which are not there, nor the lock.
        let forked = !fork_guard::is_current(self.token);
        if !forked && let Err(error) = self.write_close() {
            // A drop has no caller to tell; the next open recovers.
            self.poison(&error.to_string());
        }
        let control = self.control.get_mut().unwrap_or_else(PoisonError::into_inner);
        // A thread that makes a puddle ahead uses the directory under the lock; in a forked child
        // it is not there.
        match core::mem::take(&mut control.ahead) {
            ahead if !forked => ahead.stop(),
            ahead => core::mem::forget(ahead),
        }
        if forked {
            core::mem::forget(control.registration.take());
            core::mem::forget(control.lock.take());
            let primaries = self.primaries.get_mut().unwrap_or_else(PoisonError::into_inner);
            core::mem::forget(primaries.take());
            // Logs without a file are memory that is not there, and where something of the child's
            // may be.
            core::mem::forget(core::mem::take(&mut control.logs));
        }
        control.registration = None; // waits for resolvers that are running
        self.parts.stop(forked);
        // Before their mappings.
        control.logs.guards = None;
        let all = || control.puddles.values().chain(&control.graveyard);
        if !forked {
            // Before their addresses can be another store's.
            // SAFETY: they are freed below.
            all().for_each(|puddle| unsafe { puddle.as_ref() }.give_up_range());
            // SAFETY: no handle of the store is left, and references borrow from handles.
            let _ = unsafe { self.medium.release_window(self.window.base(), self.window.len()) };
        }
        control.pools.clear();
        for puddle in core::mem::take(&mut control.puddles)
            .into_values()
            .chain(core::mem::take(&mut control.graveyard))
        {
            // SAFETY: made by `Box::leak`, once in exactly one of the two collections, and no
            // handle is left.
            let puddle = unsafe { Box::from_raw(puddle.as_ptr()) };
            match forked && puddle.view().is_some() {
                // Its thread is the parent's.
                true => core::mem::forget(puddle),
                false => drop(puddle),
            }
        }
        // Last: the process that gets the lock finds everything given back.
        control.lock = None;
        drop(self.primaries.get_mut().unwrap_or_else(PoisonError::into_inner).take());
    }
}

impl Store {
    /// Closes the store: what was written is on the medium, and the next open finds nothing to
    /// recover.
    ///
    /// # Errors
    /// Other handles are alive (the store is then closed with the last of them); logs are in use; a
    /// sync failed. The store is then recovered when it is opened next.
    pub fn close(self) -> Result<(), StoreError> {
        let handles = Arc::strong_count(self.arc()) - 1;
        match Arc::try_unwrap(self.into_arc()) {
            Ok(inner) => inner.shut_down(),
            Err(_) => Err(StoreError::InUse { handles }),
        }
    }
}
