//! Refuses calls of a thread that checks or opens a pool, or collects, if they would wait for the
//! end of that.
//!
//! All of these hold the list of open pools, or the heap, and call code of the program's: reports
//! of progress, and filters. Filters also run on threads that help to trace, and the first thread
//! waits for them.

use crate::error::{Error, Result};
use crate::session::Inner;
use crate::unwaiting::must_not_wait;
use cenote_sys::process_lock::ProcessLock;
use core::cell::RefCell;
use core::sync::atomic::{AtomicUsize, Ordering};

thread_local! {
    /// The stores that this thread checks, opens or collects a pool of.
    static CHECKED: RefCell<Vec<*const Inner>> = const { RefCell::new(Vec::new()) };
}

/// A check, an opening or a collection by this thread, as long as it lives.
pub(crate) struct Checking(());

impl Checking {
    /// `name`: the pool that it concerns.
    ///
    /// # Errors
    /// This thread is in one of the store.
    pub(crate) fn begin(store: &Inner, name: &str) -> Result<Self> {
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
        drop_left();
    }
}

/// Handles of pools that code within a check, an opening or a collection has dropped.
static LEFT: ProcessLock<Vec<Box<dyn Send>>> = ProcessLock::new(Vec::new());

/// How many there may be.
static LEFT_COUNT: AtomicUsize = AtomicUsize::new(0);

/// Keeps a handle until the calling thread, or the one that it helps, is within nothing any more.
#[cold]
pub(crate) fn drop_later(handle: Box<dyn Send>) {
    LEFT.lock().push(handle);
    LEFT_COUNT.fetch_add(1, Ordering::SeqCst);
}

/// Drops what was left, unless the calling thread is within a check still.
pub(crate) fn drop_left() {
    let within = CHECKED.try_with(|checked| !checked.borrow().is_empty()).unwrap_or(false);
    if !within && !must_not_wait() && LEFT_COUNT.swap(0, Ordering::SeqCst) > 0 {
        // Dropped with the lock free.
        let left = core::mem::take(&mut *LEFT.lock());
        drop(left);
    }
}

/// Whether this thread must not wait for the end of a check, an opening or a collection.
pub(crate) fn is_within(store: &Inner) -> bool {
    let checks = |checked: &RefCell<Vec<*const Inner>>| {
        checked.borrow().iter().any(|checked| core::ptr::eq(*checked, store))
    };
    must_not_wait() || CHECKED.try_with(checks).unwrap_or(false)
}

/// Refuses what would wait for the end of a check, an opening or a collection by this thread.
/// `name`: the pool that it concerns.
pub(crate) fn refuse_within(store: &Inner, name: &str) -> Result<()> {
    match is_within(store) {
        true => Err(Error::WouldDeadlock { pool: name.into(), by: "a check" }),
        false => Ok(()),
    }
}
