//! Begins second windows of a pool for snapshots: [`WINDOWS_MAX`] of a pool live at a time.

use crate::error::{Error, Result};
use crate::open_pool::PoolInner;
use cenote_heap::window::{SnapshotError, Window};
use std::sync::{Arc, Weak};

/// Commits of one pool that snapshots see at a time.
pub(crate) const WINDOWS_MAX: usize = 4;

impl PoolInner {
    /// The window of this moment, for a snapshot. The caller keeps writers out.
    pub(crate) fn window_now(&self) -> Result<Arc<Window>> {
        let mut all = self.windows.locked();
        all.retain(|window| window.strong_count() != 0);
        let live: Vec<Arc<Window>> = all.iter().filter_map(Weak::upgrade).collect();
        if let Some(window) = live.iter().find(|window| !window.is_stale()) {
            return Ok(Arc::clone(window));
        }
        if let Some(first) = live.first()
            && live.len() >= WINDOWS_MAX
        {
            let (pool, windows) = (self.handle.name().to_string(), live.len());
            let error = SnapshotError::TooMany { pool, windows, oldest: first.oldest() };
            return Err(error.into());
        }
        // SAFETY: the caller keeps writers out; the heap is this pool's.
        let window = unsafe { Window::begin(&self.handle, &self.heap, &self.windows.limit) }?;
        let window = Arc::new(window);
        all.push(Arc::downgrade(&window));
        Ok(window)
    }

    /// Refuses what takes blocks or pages away that a snapshot looks at.
    pub(crate) fn refuse_snapshots(&self, why: &'static str) -> Result<()> {
        if !self.windows.is_any() {
            return Ok(());
        }
        let (pool, instead) = (self.handle.name().to_string(), "drop the snapshots");
        Err(Error::Snapshot(SnapshotError::InUse { pool, why, instead }))
    }
}
