//! How often this process took access to memory away on purpose.
//!
//! The fault handler compares the count, so that a further fault at an address is no sign of a
//! resolver that does not work.

use core::sync::atomic::{AtomicU64, Ordering};

static REVOCATIONS: AtomicU64 = AtomicU64::new(0);

/// Counts that access to some address was taken away. A signal handler may call it.
#[inline]
pub fn note_revocation() {
    REVOCATIONS.fetch_add(1, Ordering::Relaxed);
}

/// The count.
#[inline]
pub(crate) fn count() -> u64 {
    REVOCATIONS.load(Ordering::Relaxed)
}
