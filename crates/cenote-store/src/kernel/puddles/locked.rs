//! Takes a lock that guards single steps.

use std::sync::{Mutex, MutexGuard, PoisonError};

pub(crate) fn locked<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    // What they guard is changed by single steps.
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}
