//! Looks an object up by its name while other threads remove and restore objects.
//!
//! A look has two steps: the catalog says where the object is, and its file is read there. Between
//! them another thread may remove the object, and restore it. So:
//!
//! * an error counts only if no object was removed meanwhile ([`Shared::look`]);
//! * what follows a look compares the place again with the table of uses locked
//!   ([`Shared::refuse_moved`]), because removals lock that table.

use crate::error::ObjectError;
use crate::shared::{Shared, locked};
use cenote_medium::planted::{Bug, Step, planted, reach};
use cenote_store::{ObjectInfo, StoreError};
use core::sync::atomic::Ordering;

impl Shared {
    /// What `look` finds of an object that it looks up by its name. An error counts only if no
    /// object was removed meanwhile: the object may have been away and be there again, with the
    /// same identity at the same address, and then its file shows no damage.
    pub(crate) fn look<T>(
        &self,
        mut look: impl FnMut() -> Result<T, ObjectError>,
    ) -> Result<T, ObjectError> {
        loop {
            let before = self.removals.load(Ordering::Acquire);
            let done = look();
            if done.is_ok() {
                return done;
            }
            reach(Step::ObjectLookFailed);
            // A removal that has begun ends first.
            let uses = locked(&self.uses);
            let after = self.removals.load(Ordering::Acquire);
            drop(uses);
            if before == after || planted(Bug::ObjectNotLookedUpAgain) {
                return done;
            }
        }
    }

    /// Refuses an object that is not where it was when it was looked up: another may have its
    /// addresses. Called with `uses` locked, which keeps it where it is: a removal takes that
    /// lock, and finds the entry that the caller makes. A daemon compares by itself.
    pub(crate) fn refuse_moved(&self, info: &ObjectInfo) -> Result<(), ObjectError> {
        if self.store.is_connected() || planted(Bug::ObjectNotLookedUpAgain) {
            return Ok(());
        }
        let name = &info.record.name;
        match self.store.object(name)?.is_same_place(info) {
            true => Ok(()),
            false => Err(StoreError::ObjectUnknown { name: name.clone() }.into()),
        }
    }
}
