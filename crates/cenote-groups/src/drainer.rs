//! The thread that writes lines back.
//!
//! Invariant: it holds no memory but the table, and flushes only what a group's store promised to
//! stay mapped.

use crate::shared::{DirtyLines, SharedGroups};
use core::time::Duration;
use std::sync::{Arc, PoisonError};
use std::thread::JoinHandle;

/// The thread, which ends when this is dropped.
pub(crate) struct Drainer {
    shared: Arc<SharedGroups>,
    thread: Option<JoinHandle<()>>,
    /// Of the process that started it: a forked child has no such thread.
    pid: u32,
}

impl Drainer {
    /// Starts it; `None`: the system gives no thread, and lines leave at
    /// [`UpdateGroups::drain`](crate::UpdateGroups::drain), or when the table is full.
    pub(crate) fn start(shared: &Arc<SharedGroups>, after: Duration) -> Option<Self> {
        let its = Arc::clone(shared);
        let run = move || drain_until_stopped(&its, after);
        let thread = std::thread::Builder::new().name("cenote-drain".into()).spawn(run).ok()?;
        Some(Self { shared: Arc::clone(shared), thread: Some(thread), pid: std::process::id() })
    }
}

impl Drop for Drainer {
    fn drop(&mut self) {
        let Some(thread) = self.thread.take() else { return };
        if self.pid != std::process::id() {
            core::mem::forget(thread);
            return;
        }
        self.shared.dirty().stopped = true;
        self.shared.wake.notify_one();
        // It does not panic, and if it did there would be nothing to do about it.
        let _ = thread.join();
    }
}

fn drain_until_stopped(shared: &SharedGroups, after: Duration) {
    loop {
        let mut dirty = shared.dirty();
        while dirty.is_empty() && !dirty.stopped {
            dirty.asleep = true;
            dirty = shared.wake.wait(dirty).unwrap_or_else(PoisonError::into_inner);
        }
        let waits = |dirty: &mut DirtyLines| !dirty.stopped && !dirty.is_pressing();
        let waited = shared.wake.wait_timeout_while(dirty, after, waits);
        let stopped = waited.unwrap_or_else(PoisonError::into_inner).0.stopped;
        if stopped {
            return;
        }
        shared.write_back();
    }
}
