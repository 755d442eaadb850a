//! Where the second mapping of a tracked range lies. A psync asks before it protects pages.

use cenote_medium::planted::{Bug, GuardBug, planted};
use cenote_sys::memory::{self, Access};
use core::ops::Range;
use std::io;
use std::sync::{Mutex, MutexGuard, PoisonError};

/// Where a second mapping lies whose stores are noted by its faults.
#[derive(Clone, Debug)]
pub(crate) struct TwinRange {
    /// In the first mapping.
    pub(crate) first: Range<usize>,
    pub(crate) distance: usize,
}

impl TwinRange {
    /// Its first address.
    pub(crate) fn place(&self) -> usize {
        self.first.start.wrapping_add(self.distance)
    }
}

/// The second mapping of a tracked range, if there is one now.
#[derive(Debug, Default)]
pub(crate) struct TwinPlace(Mutex<Option<TwinRange>>);

impl TwinPlace {
    /// The second mapping stays as long as this is held.
    pub(crate) fn lock(&self) -> MutexGuard<'_, Option<TwinRange>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Protects what lies in the second mapping of a range of addresses of the first one.
    ///
    /// # Errors
    /// What the kernel says; some pages may be writable still.
    pub(crate) fn protect(&self, range: &Range<usize>) -> io::Result<()> {
        let twin = self.lock();
        let Some(twin) = twin.as_ref().filter(|_| !planted(Bug::Guard(GuardBug::TwinNotProtected)))
        else {
            return Ok(());
        };
        let (from, to) = (range.start.max(twin.first.start), range.end.min(twin.first.end));
        if from >= to {
            return Ok(());
        }
        // SAFETY: a second mapping that is there as long as the lock is held; its faults give
        // writing back.
        unsafe {
            memory::protect(from.wrapping_add(twin.distance), to - from, Some(Access::ReadOnly))
        }
    }
}
