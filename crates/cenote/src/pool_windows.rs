//! The second windows of a pool that is open: which snapshots look through which.
//!
//! Snapshots between the same two transactions share a window. A window is *stale* from the moment
//! at which a writer has the pool's lock: later snapshots begin another one. A few live at a
//! time ([`crate::windows`]).

use cenote_heap::window::{SnapshotLimit, Window, gate};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, Weak};

/// See the module.
#[derive(Debug, Default)]
pub(crate) struct PoolWindows {
    all: Mutex<Vec<Weak<Window>>>,
    pub(crate) limit: Arc<SnapshotLimit>,
}

impl PoolWindows {
    pub(crate) fn locked(&self) -> MutexGuard<'_, Vec<Weak<Window>>> {
        self.all.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Whether a snapshot of the pool lives.
    pub(crate) fn is_any(&self) -> bool {
        gate::is_live() && self.locked().iter().any(|window| window.strong_count() != 0)
    }

    /// A writer has the pool's lock. One relaxed load where no snapshot lives.
    #[inline(always)]
    pub(crate) fn note_writer(&self) {
        if gate::is_live() {
            self.stale();
        }
    }

    #[cold]
    #[inline(never)]
    fn stale(&self) {
        let live: Vec<_> = self.locked().iter().filter_map(Weak::upgrade).collect();
        live.iter().for_each(|window| window.set_stale());
    }
}
