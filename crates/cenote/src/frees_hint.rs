//! What is known of a pool's list of blocks that wait to be freed ([`frees`](crate::frees)).

use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};

/// What is known of a pool's list without a look at it.
pub(crate) struct FreesHint {
    /// Perhaps blocks wait.
    pub(crate) due: AtomicBool,
    /// Where the list was, or 0.
    pub(crate) at: AtomicU64,
}

impl Default for FreesHint {
    fn default() -> Self {
        Self { due: AtomicBool::new(true), at: AtomicU64::new(0) }
    }
}

impl FreesHint {
    /// Whether blocks may wait to be freed.
    #[inline(always)]
    pub(crate) fn is_due(&self) -> bool {
        self.due.load(Ordering::Relaxed)
    }
}
