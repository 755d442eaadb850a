//! Whether anything in this process has to hear of a store into data before it is made.
//!
//! A transaction asks once for each range that it is about to change, by one relaxed load. Nothing
//! attends as long as no pool's data are protected and no reclaim is under way.

use core::sync::atomic::{AtomicUsize, Ordering};

static ATTENDING: AtomicUsize = AtomicUsize::new(0);

/// Something attends, until this is dropped.
#[derive(Debug)]
#[must_use = "nothing attends any more when it is dropped"]
pub struct Attention(());

impl Attention {
    /// From now on. A store that happens after this was called, in the order of the program or by
    /// what threads hand to each other, is told of.
    pub fn begin() -> Self {
        ATTENDING.fetch_add(1, Ordering::SeqCst);
        Self(())
    }
}

impl Drop for Attention {
    fn drop(&mut self) {
        ATTENDING.fetch_sub(1, Ordering::SeqCst);
    }
}

/// Whether a store into data is to be told of. One relaxed load.
#[inline(always)]
#[must_use]
pub fn is_attended() -> bool {
    ATTENDING.load(Ordering::Relaxed) != 0
}
