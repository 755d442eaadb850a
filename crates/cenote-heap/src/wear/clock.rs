//! The clock that says how long a freed block has waited.

use core::fmt;
use std::sync::Arc;
use std::time::{Instant, SystemTime, UNIX_EPOCH};

/// Milliseconds since 1970. Within a process it does not go back.
#[derive(Clone)]
pub struct WearClock(Arc<dyn Fn() -> u64 + Send + Sync>);

impl WearClock {
    /// A clock that tests set.
    pub fn new(now_ms: impl Fn() -> u64 + Send + Sync + 'static) -> Self {
        Self(Arc::new(now_ms))
    }

    /// What it says, in milliseconds.
    #[must_use]
    pub fn now_ms(&self) -> u64 {
        (self.0)()
    }
}

impl Default for WearClock {
    /// The time of the system when it is made, and from there on a clock that is not set.
    fn default() -> Self {
        let since = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
        let (start, began) = (since.as_millis() as u64, Instant::now());
        Self::new(move || start + began.elapsed().as_millis() as u64)
    }
}

impl fmt::Debug for WearClock {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "WearClock({} ms)", self.now_ms())
    }
}

/// Whether a block that was freed at `freed_ms` (modulo 2^32) has waited for longer than `wait_ms`.
/// A time that is to come is one of another clock: the block waits from now on, by the caller.
pub(crate) const fn has_waited(now_ms: u64, freed_ms: u32, wait_ms: u32) -> bool {
    // Of both times the fraction of a millisecond is missing.
    wait_ms == 0 || (now_ms as u32).wrapping_sub(freed_ms) > wait_ms
}

/// Whether a time lies in the future, as far as 32 bits can tell.
pub(crate) const fn is_to_come(now_ms: u64, time_ms: u32) -> bool {
    (now_ms as u32).wrapping_sub(time_ms) > u32::MAX / 2
}
