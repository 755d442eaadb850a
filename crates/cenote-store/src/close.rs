//! Closing a store, and letting go of one.
//!
//! States of a close: (1) pools in shadowed mode are psynced, then the puddles of all leased pools
//! synced; (2) a batch ends the leases and removes the client; (3) the journals that this session
//! has opened are trimmed ([`crate::journals`]); (4) the superblock says "clean", that the catalog
//! has this batch, and which headers those journals have: **its sync commits**; (5) its other copy
//! says the same. A crash before (4) leaves a store that is recovered, with nothing to do. A
//! journal that this session has not opened is as it was before it, recovered or not.

use crate::error::StoreError;
use crate::store::Inner;
use cenote_layout::superblock::STATE_CLEAN;
use cenote_sealed::View;
use cenote_sys::fork_guard;
use core::sync::atomic::Ordering;
use std::sync::PoisonError;

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
        if let Some(connection) = &self.connection {
            let logs = self.control().logs.in_use();
            if logs > 0 {
                return Err(StoreError::LogsInUse { logs });
            }
            self.persistence.fence();
            // A goodbye says that what was stored is psynced; without one the next to have the
            // pools looks for what is not.
            crate::psync::psync_leased(self, &mut self.control())?;
            return connection.keeper.goodbye();
        }
        let mut guard = self.control();
        let control = &mut *guard;
        let logs = control.logs.in_use();
        if logs > 0 {
            return Err(StoreError::LogsInUse { logs });
        }
        if !control.hosted.is_empty() {
            // They live on; the next daemon takes them over.
            return Err(StoreError::Hosting { guests: control.hosted.len() as u64 });
        }
        self.persistence.fence();
        // Whoever opens the store next goes on from here, and may lose power before its first
        // psync.
        crate::psync::psync_leased(self, control)?;
        let (seals, era) = self.seal(control)?;
        let ahead = self.name_ahead(control);
        self.check_poisoned()?;
        let (mut records, surplus) = self.closing_records(control);
        records.extend(ahead);
        records.extend(seals);
        self.commit(control, &records)?;
        for record in surplus {
            let file = crate::puddle::file_name(record.uuid);
            let _ = self.medium.remove(core::str::from_utf8(&file).unwrap_or_default());
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
}

impl Drop for Inner {
    fn drop(&mut self) {
        // In a forked child nothing is ours: not the mappings, which are not there, nor the lock.
        let forked = !fork_guard::is_current(self.token);
        if !forked && let Err(error) = self.write_close() {
            // Nobody is left to tell; the next open recovers.
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
            // Logs without a file are memory that is not there, and where something of the child's
            // may be.
            core::mem::forget(core::mem::take(&mut control.logs));
        }
        control.registration = None; // waits for resolvers that are running
        self.frontier.stop(forked);
        self.shadows.stop(forked);
        let all = || control.puddles.values().chain(&control.graveyard);
        if !forked {
            // SAFETY: they are freed below.
            all().filter_map(|puddle| unsafe { puddle.as_ref() }.view()).for_each(View::stop);
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
        control.lock = None; // last: whoever gets it finds everything given back
    }
}
