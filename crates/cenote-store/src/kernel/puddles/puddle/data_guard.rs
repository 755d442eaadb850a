//! Has the data of a puddle write-protected, while the heap of its pool is open for writing.
//!
//! The handler of [`ProtectedData`] is asked before the store's, because its range is the narrower
//! one. What it has not resolved comes here, and is one of two: a stray write, or a store of a
//! writer into a page that psync tracking has not noted yet.

use super::Puddle;
use cenote_protect::{DeferredService, ProtectedData};
use cenote_sys::fault;
use core::sync::atomic::{AtomicBool, Ordering};
use std::io;
use std::sync::{Arc, Mutex, PoisonError};

/// The protection of a puddle's data.
#[derive(Debug, Default)]
pub(super) struct DataGuard {
    /// Read by the fault handler.
    is_on: AtomicBool,
    data: Mutex<Option<ProtectedData>>,
}

impl Puddle {
    /// Protects `len` bytes at `addr`, whole pages of the puddle: from now on only announced stores
    /// get there (`cenote_protect::AttendedStores`). Until [`Puddle::unguard_data`]. Nothing if it
    /// is so already. `pool` is named in reports.
    ///
    /// # Errors
    /// What the kernel says; nothing is protected then.
    ///
    /// # Safety
    /// The puddle is mapped for writing, and stays so until then. All code that stores into the
    /// range announces it. The service lives as long.
    pub unsafe fn guard_data(
        &self,
        service: &Arc<DeferredService>,
        addr: u64,
        len: u64,
        pool: &str,
    ) -> io::Result<()> {
        let guard = &self.owners.data;
        let mut data = guard.data.lock().unwrap_or_else(PoisonError::into_inner);
        if data.is_some() {
            return Ok(());
        }
        let (from, what) = (addr as usize, format!("pool `{pool}`"));
        debug_assert!(self.range().start <= from && from + len as usize <= self.range().end);
        // SAFETY: the caller's promise. A fault that is not resolved there comes to the puddle's
        // own handler, which resolves no store that is refused.
        let made = unsafe { ProtectedData::new(service, from..from + len as usize, &what) }?;
        *data = Some(made);
        guard.is_on.store(true, Ordering::SeqCst);
        Ok(())
    }

    /// Ends [`Puddle::guard_data`]: all pages are writable again.
    pub fn unguard_data(&self) {
        let guard = &self.owners.data;
        let data = guard.data.lock().unwrap_or_else(PoisonError::into_inner).take();
        drop(data);
        guard.is_on.store(false, Ordering::SeqCst);
    }

    /// Whether a fault in the puddle, which is mapped, is of a store that no handler may let
    /// through. Async-signal-safe.
    pub(super) fn is_refused_store(&self, address: usize) -> bool {
        // Loads of data that are mapped do not fault, but where a page cannot be had.
        if !self.owners.data.is_on.load(Ordering::SeqCst) || fault::is_bus_error() {
            return false;
        }
        match self.owners.tracked.get() {
            // Others than tracking deny it: a stray write is not noted.
            Some(tracked) => tracked.is_denied_by_others(address),
            None => true,
        }
    }
}
