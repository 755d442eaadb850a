//! Pools whose data are write-protected ([`DataProtection`]; NVM-4).
//!
//! Who stores into data of such a pool, and how its pages are open for that:
//!
//! | what stores | how it is announced |
//! | --- | --- |
//! | a transaction: `get_mut`, `set`, `alloc`, collections, names | `cenote_tx` announces each \
//! range that it logs, writes later or allocates, until commit or abort has made its last store |
//! | an abort, a commit's deferred writes | the same ranges |
//! | a program with its own addresses, by a raw transaction | the same |
//! | a program without a transaction | [`Stores`](crate::announced::Stores) |
//! | replay, relocation, import, repair | before the heap is open: the data are not protected yet |
//! | a collection of relaxed durability, a lock that lies in the pool | refused |
//!
//! The logged heap itself stores nothing into its data: its metadata lie elsewhere, and a block is
//! cleared by who asked for it.

use crate::error::Result;
use cenote_heap::PoolBacking;
use cenote_layout::error_kind::ErrorKind;
use cenote_protect::{DeferredOptions, DeferredService, DeferredTiming};
use cenote_store::{DataProtection, StoreError};
use core::time::Duration;
use std::sync::Arc;

/// What a pool has for the protection of its data, if they are protected.
#[derive(Debug)]
pub(crate) struct ProtectedPool {
    how: DataProtection,
    service: Option<Arc<DeferredService>>,
}

impl ProtectedPool {
    /// As the catalog says, and the backing of a heap whose data are protected so.
    ///
    /// # Errors
    /// [`StoreError::WriteProtected`]; the system refuses a thread.
    pub(crate) fn begin(backing: PoolBacking) -> Result<(Self, PoolBacking)> {
        let how = backing.data_protection()?;
        let timing = match how {
            DataProtection::None => return Ok((Self { how, service: None }, backing)),
            DataProtection::Synchronous => DeferredTiming::Synchronous,
            DataProtection::Deferred { wait_ms } => {
                DeferredTiming::Deferred(Duration::from_millis(wait_ms.into()))
            }
        };
        let options = DeferredOptions { timing, opens_at_once: true, ..DeferredOptions::default() };
        let failed = |error: std::io::Error| StoreError::Refused {
            kind: ErrorKind::of_system(&error),
            detail: format!("write-protecting the data of pool `{}`: {error}", backing.name()),
        };
        let service = DeferredService::start(&options).map_err(failed)?;
        let backing = backing.protecting(Arc::clone(&service));
        Ok((Self { how, service: Some(service) }, backing))
    }

    /// How data are protected.
    pub(crate) const fn how(&self) -> DataProtection {
        self.how
    }

    /// What changes rights of pages.
    pub(crate) const fn service(&self) -> Option<&Arc<DeferredService>> {
        self.service.as_ref()
    }

    /// Refuses locks that lie in the pool.
    pub(crate) fn refuse_locks(&self, pool: &str) -> Result<()> {
        if !self.how.is_on() {
            return Ok(());
        }
        let what = "locks in it, which are stored to without a transaction";
        let instead = "keep the locks in a pool without protection";
        Err(StoreError::WriteProtected { name: pool.into(), what, instead }.into())
    }
}

impl Drop for ProtectedPool {
    fn drop(&mut self) {
        // Threads that have used the pool may still know its ranges.
        self.service.iter().for_each(|service| service.end());
    }
}
