//! Threads of this process that read a pool which processes share.

use std::sync::{Condvar, Mutex, MutexGuard, PoisonError};

/// Threads of this process that read a pool.
#[derive(Debug, Default)]
pub(crate) struct Readers {
    pub(crate) count: Mutex<usize>,
    /// Notified when the count becomes 0.
    pub(crate) none: Condvar,
}

impl Readers {
    /// How many there are, which does not change as long as this is held.
    pub(crate) fn locked(&self) -> MutexGuard<'_, usize> {
        self.count.lock().unwrap_or_else(PoisonError::into_inner)
    }
}
