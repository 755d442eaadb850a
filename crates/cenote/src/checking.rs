//! What a thread must not do while it checks or opens a pool, or collects: wait for the end of
//! that.
//!
//! All of these hold the list of open pools, or the heap, and call code of the program's: reports
//! of progress, and filters. Filters run on threads that help to trace, too, for which the other
//! waits.

use crate::error::{Error, Result};
use crate::open_pool::PoolInner;
use crate::session::Inner;
use core::cell::RefCell;

thread_local! {
    /// The stores that this thread checks, opens or collects a pool of.
    static CHECKED: RefCell<Vec<*const Inner>> = const { RefCell::new(Vec::new()) };
}

/// A check, an opening or a collection by this thread, as long as it lives.
pub(crate) struct Checking(());

impl Checking {
    /// # Errors
    /// This thread is in one of the store.
    pub(crate) fn begin(pool: &PoolInner) -> Result<Self> {
        Self::of(&pool.store, pool.handle.name())
    }

    /// The same of a store. `name`: the pool that it concerns.
    ///
    /// # Errors
    /// As [`Checking::begin`].
    pub(crate) fn of(store: &Inner, name: &str) -> Result<Self> {
        refuse_within(store, name)?;
        // Where the thread's variables are gone no code of the program's asks any more, but in
        // destructors: those wait.
        let _ = CHECKED.try_with(|checked| checked.borrow_mut().push(store));
        Ok(Self(()))
    }
}

impl Drop for Checking {
    fn drop(&mut self) {
        let _ = CHECKED.try_with(|checked| checked.borrow_mut().pop());
    }
}

/// Whether this thread must not wait for the end of a check, an opening or a collection.
pub(crate) fn is_within(store: &Inner) -> bool {
    let checks = |checked: &RefCell<Vec<*const Inner>>| {
        checked.borrow().iter().any(|checked| core::ptr::eq(*checked, store))
    };
    cenote_heap::is_helper() || CHECKED.try_with(checks).unwrap_or(false)
}

/// Refuses what would wait for the end of a check, an opening or a collection by this thread.
/// `name`: the pool that it concerns.
pub(crate) fn refuse_within(store: &Inner, name: &str) -> Result<()> {
    match is_within(store) {
        true => Err(Error::WouldDeadlock { pool: name.into(), by: "a check" }),
        false => Ok(()),
    }
}
