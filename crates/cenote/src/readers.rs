//! Threads of this process that read a pool which processes share, and whether there is one.

use core::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Condvar, Mutex, MutexGuard, PoisonError, TryLockError};
use std::time::{Duration, Instant};

/// How often a thread that does not wait for ever tries.
const TRY_EVERY: Duration = Duration::from_millis(1);

/// Whether this process has opened a shared pool.
static SHARES: AtomicBool = AtomicBool::new(false);

/// This process opens a shared pool.
pub(crate) fn shares() {
    SHARES.store(true, Ordering::Relaxed);
}

/// Whether this process has opened one.
pub(crate) fn is_sharing() -> bool {
    SHARES.load(Ordering::Relaxed)
}

/// Threads of this process that read a pool.
#[derive(Debug, Default)]
pub(crate) struct Readers {
    pub(crate) count: Mutex<usize>,
    /// Notified when the count becomes 0.
    pub(crate) none: Condvar,
}

impl Readers {
    /// How many there are, which does not change as long as this is held.
    pub(crate) fn locked(&self) -> MutexGuard<'_, usize> {
        self.count.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// The same; `None`: the first reader still waits at the moment `until`.
    pub(crate) fn locked_until(&self, until: Option<Instant>) -> Option<MutexGuard<'_, usize>> {
        let Some(until) = until else { return Some(self.locked()) };
        loop {
            match self.count.try_lock() {
                Ok(count) => return Some(count),
                Err(TryLockError::Poisoned(count)) => return Some(count.into_inner()),
                Err(TryLockError::WouldBlock) if Instant::now() >= until => return None,
                Err(TryLockError::WouldBlock) => std::thread::sleep(TRY_EVERY),
            }
        }
    }
}
