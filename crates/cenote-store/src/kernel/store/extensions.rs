//! Parts of an open store that stand above the kernel: typed slots, filled when it is opened.
//!
//! The kernel (superblock, catalog, window, puddles, pools, leases, logs) names none of them. It
//! tells all of them what happens ([`Extension`]). A module finds its own part by its type.
//!
//! Invariant: the set is complete before the first handle of the store exists, and never changes.

use crate::kernel::interface::error::StoreError;
use crate::kernel::puddles::puddle::Puddle;
use cenote_layout::catalog::Record;
use core::any::Any;
use core::fmt::Debug;

/// A part of an open store, and what the kernel tells it.
pub(crate) trait Extension: Any + Send + Sync + Debug {
    /// A puddle that is pending is about to be mapped. It is not pending any more on return.
    ///
    /// # Errors
    /// It cannot be made ready. It stays as it is, and is not mapped.
    fn make_ready(&self, _puddle: &Puddle) -> Result<(), StoreError> {
        Ok(())
    }

    /// A puddle is given up. Its mapping is gone.
    fn let_go(&self, _puddle: &Puddle) {}

    /// A batch of the catalog is about to be made: adds records that belong into it.
    fn add_records(&self, _records: &mut Vec<Record>) {}

    /// The batch with these added records was not made.
    fn batch_failed(&self, _added: &[Record]) {}

    /// The last handle is gone: ends threads. In a forked child (`forked`) they are the parent's.
    fn stop(&self, _forked: bool) {}
}

/// All parts of one store, or all that are under its control lock.
#[derive(Debug, Default)]
pub(crate) struct Extensions(Vec<Box<dyn Extension>>);

impl Extensions {
    pub(crate) fn new(all: Vec<Box<dyn Extension>>) -> Self {
        Self(all)
    }

    /// The part of this type. Takes a comparison for each part, and no lock.
    ///
    /// # Panics
    /// The store was opened without one, which no caller of [`Extensions::new`] does.
    pub(crate) fn get<T: Extension>(&self) -> &T {
        let found = self.0.iter().find_map(|part| (&**part as &dyn Any).downcast_ref());
        found.unwrap_or_else(|| unreachable!("a store has all of its parts"))
    }

    /// The same, to change it.
    pub(crate) fn get_mut<T: Extension>(&mut self) -> &mut T {
        let found = self.0.iter_mut().find_map(|part| (&mut **part as &mut dyn Any).downcast_mut());
        found.unwrap_or_else(|| unreachable!("a store has all of its parts"))
    }

    /// See [`Extension::make_ready`].
    pub(crate) fn make_ready(&self, puddle: &Puddle) -> Result<(), StoreError> {
        self.0.iter().try_for_each(|part| part.make_ready(puddle))
    }

    /// See [`Extension::let_go`].
    pub(crate) fn let_go(&self, puddle: &Puddle) {
        self.0.iter().for_each(|part| part.let_go(puddle));
    }

    /// See [`Extension::add_records`].
    pub(crate) fn add_records(&self, records: &mut Vec<Record>) {
        self.0.iter().for_each(|part| part.add_records(records));
    }

    /// See [`Extension::batch_failed`].
    pub(crate) fn batch_failed(&self, added: &[Record]) {
        self.0.iter().for_each(|part| part.batch_failed(added));
    }

    /// See [`Extension::stop`].
    pub(crate) fn stop(&self, forked: bool) {
        self.0.iter().for_each(|part| part.stop(forked));
    }
}
