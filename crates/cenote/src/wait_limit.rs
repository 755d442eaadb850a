//! How long a call waits for a pool, if its caller says.
//!
//! The limit is the thread's while the call waits for locks. It ends before the caller's own code
//! runs: what that waits for has its own limits.

use core::cell::Cell;
use core::marker::PhantomData;
use std::time::{Duration, Instant};

thread_local! {
    static LIMIT: Cell<Option<WaitUntil>> = const { Cell::new(None) };
}

/// A limit.
#[derive(Clone, Copy)]
pub(crate) struct WaitUntil {
    pub(crate) until: Instant,
    pub(crate) timeout: Duration,
}

/// The limit of the call that this thread is in; `None`: it waits as long as it takes.
pub(crate) fn wait_limit() -> Option<WaitUntil> {
    LIMIT.get()
}

/// Sets the thread's limit as long as it lives.
pub(crate) struct Limited(PhantomData<*const ()>);

impl Limited {
    pub(crate) fn new(timeout: Duration) -> Self {
        // One that ends behind the clock's end is none.
        let until = Instant::now().checked_add(timeout);
        LIMIT.set(until.map(|until| WaitUntil { until, timeout }));
        Self(PhantomData)
    }
}

impl Drop for Limited {
    fn drop(&mut self) {
        LIMIT.set(None);
    }
}
