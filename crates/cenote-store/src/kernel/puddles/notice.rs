//! Notes of a puddle whose pages may be lost under the library ([`crate::kernel::store::watch`]).

use core::sync::atomic::{AtomicBool, AtomicU64, Ordering};

/// The code that has mapped a puddle.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(crate) enum Watcher {
    /// This session, for a log or a log space of its own.
    Session,
    /// Recovery.
    Recovery,
}

/// What is noted of a puddle that is watched.
#[derive(Debug, Default)]
pub(crate) struct Notice {
    /// The number of a page that was lost, and 1.
    pub(crate) lost: AtomicU64,
    /// It is a log of this session.
    pub(crate) poisons: AtomicBool,
}

impl Notice {
    /// The first page that was found lost, from the start of the puddle's file.
    pub(crate) fn lost(&self) -> Option<u64> {
        self.lost.load(Ordering::Acquire).checked_sub(1)
    }
}
