//! Parts of an open store that stand above it: typed slots, filled when the store is opened.
//!
//! Invariant: the set is complete before the first handle of the store exists, and never changes.
//! So a module finds its own part by its type, and the store below names none of them.

use core::any::Any;
use std::sync::Arc;

/// A part of an open store.
pub(crate) trait Extension: Any + Send + Sync {
    /// The calling thread is going to run transactions on the store, or to use a heap by itself.
    fn used(&self) {}

    /// The last handle of the store is gone; its logs are dropped next.
    fn closing(&self) {}
}

/// All parts of one store.
pub(crate) struct Extensions(Vec<Arc<dyn Extension>>);

impl Extensions {
    pub(crate) fn new(all: Vec<Arc<dyn Extension>>) -> Self {
        Self(all)
    }

    /// The part of this type.
    ///
    /// # Panics
    /// The store was opened without one, which no caller of [`Extensions::new`] does.
    pub(crate) fn get<T: Extension>(&self) -> &T {
        let found = self.0.iter().find_map(|part| (&**part as &dyn Any).downcast_ref());
        found.unwrap_or_else(|| unreachable!("a store has all of its parts"))
    }

    /// See [`Extension::used`].
    pub(crate) fn used(&self) {
        self.0.iter().for_each(|part| part.used());
    }

    /// See [`Extension::closing`].
    pub(crate) fn closing(&self) {
        self.0.iter().for_each(|part| part.closing());
    }
}
