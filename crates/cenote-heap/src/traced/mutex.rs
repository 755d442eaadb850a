//! Locks of one process, which a panic does not poison.

use std::sync::{Mutex, MutexGuard, PoisonError};

pub(crate) fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    // A panicking thread leaves whole data: only a failed assertion of this crate can stop code
    // under these locks half-way.
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}
