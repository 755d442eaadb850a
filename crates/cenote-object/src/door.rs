//! Excludes attaching and detaching from each other, in a client of a daemon.

use std::sync::{Mutex, MutexGuard, PoisonError};

/// Excludes attaching and detaching from each other, in a client.
#[derive(Debug, Default)]
pub(crate) struct Door(Mutex<()>);

impl Door {
    pub(crate) fn enter(&self) -> MutexGuard<'_, ()> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}
