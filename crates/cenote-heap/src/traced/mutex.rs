//! Locks of one process, which a panic does not poison.

use std::sync::{Mutex, MutexGuard, PoisonError};

pub(crate) fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    // What a panicking thread left is whole: no code under these locks can stop half-way but by a
    // failed assertion of this crate.
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}
