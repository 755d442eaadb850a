//! The lock of rights: one thread at a time changes pages that several owners have.
//!
//! Invariant: a thread that has it takes no signal, and touches no memory of a range. So a fault
//! handler may wait for it.

use cenote_sys::fork_guard;
use cenote_sys::signals::Blocked;
use core::sync::atomic::{AtomicU64, Ordering};

/// The token of the process whose thread has the lock: a forked child is not stopped by a thread
/// that it does not have.
static HELD: AtomicU64 = AtomicU64::new(0);

/// The lock, until it is dropped. Async-signal-safe.
pub(crate) struct RightsLock {
    /// Ends after the lock does.
    _quiet: Blocked,
}

impl RightsLock {
    pub(crate) fn take() -> Self {
        let quiet = Blocked::new();
        let token = fork_guard::token();
        loop {
            let held = HELD.load(Ordering::Relaxed);
            if held != token
                && HELD.compare_exchange(held, token, Ordering::Acquire, Ordering::Relaxed).is_ok()
            {
                return Self { _quiet: quiet };
            }
            std::thread::yield_now();
        }
    }
}

impl Drop for RightsLock {
    fn drop(&mut self) {
        HELD.store(0, Ordering::Release);
    }
}
