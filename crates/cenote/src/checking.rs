//! What a thread must not do while it checks a pool: wait for the end of that check.
//!
//! A check holds the list of open pools and calls the caller's code, told of progress.

use crate::error::{Error, Result};
use crate::open_pool::PoolInner;
use crate::session::Inner;
use core::cell::Cell;
use std::sync::Arc;

thread_local! {
    /// The store that this thread checks a pool of.
    static CHECKED: Cell<*const Inner> = const { Cell::new(core::ptr::null()) };
}

/// A check by this thread, as long as it lives.
pub(crate) struct Checking(());

impl Checking {
    /// # Errors
    /// This thread is in a check.
    pub(crate) fn begin(pool: &PoolInner) -> Result<Self> {
        if !CHECKED.with(Cell::get).is_null() {
            return Err(waits_for_check(pool.handle.name()));
        }
        CHECKED.with(|checked| checked.set(Arc::as_ptr(&pool.store)));
        Ok(Self(()))
    }
}

impl Drop for Checking {
    fn drop(&mut self) {
        CHECKED.with(|checked| checked.set(core::ptr::null()));
    }
}

fn waits_for_check(name: &str) -> Error {
    Error::WouldDeadlock { pool: name.into(), by: "a check" }
}

/// Refuses what would wait for the end of a check by this thread. `name`: the pool that it
/// concerns.
pub(crate) fn refuse_within(store: &Inner, name: &str) -> Result<()> {
    match core::ptr::eq(CHECKED.with(Cell::get), store) {
        true => Err(waits_for_check(name)),
        false => Ok(()),
    }
}
