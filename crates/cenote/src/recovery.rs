//! Traces pools that were in use when power failed, and reports progress.

use cenote_heap::{TraceOptions, TraceProgress};
use core::num::NonZero;
use core::ops::ControlFlow;
use core::time::Duration;
use std::sync::Arc;

/// How far the recovery of a pool has come.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct RecoveryProgress<'a> {
    /// The pool that is traced.
    pub pool: &'a str,
    /// Blocks reached so far. How many there will be is not known before.
    pub blocks: u64,
    /// Superblocks of its heap that hold blocks; 64 KiB each.
    pub superblocks: u64,
}

/// How pools are traced that were in use when power failed; see
/// [`Store::set_recovery`](crate::Store::set_recovery).
#[derive(Clone)]
pub struct RecoveryOptions {
    /// Most threads that trace; `None`: as many as cores that this process may use.
    pub threads: Option<NonZero<usize>>,
    /// Gets the progress of tracing, on the thread that opens the pool. A call to the store that
    /// would wait for that pool returns [`Error::WouldDeadlock`](crate::Error::WouldDeadlock).
    pub progress: Option<OnRecovery>,
    /// Least time between two reports; 50 ms by default. A pool that is traced in less reports
    /// nothing.
    pub interval: Duration,
}

impl Default for RecoveryOptions {
    fn default() -> Self {
        Self { threads: None, progress: None, interval: TraceOptions::default().interval }
    }
}

/// Hears how far the recovery of a pool has come.
pub type OnRecovery = Arc<dyn Fn(&RecoveryProgress<'_>) + Send + Sync>;

impl core::fmt::Debug for RecoveryOptions {
    fn fmt(&self, f: &mut core::fmt::Formatter<'_>) -> core::fmt::Result {
        f.debug_struct("RecoveryOptions").field("threads", &self.threads).finish_non_exhaustive()
    }
}

impl RecoveryOptions {
    /// Traces the pool of this name with these options.
    pub(crate) fn trace<R>(&self, pool: &str, trace: impl FnOnce(TraceOptions<'_>) -> R) -> R {
        let mut tell = |at: &TraceProgress| {
            if let Some(progress) = &self.progress {
                let (blocks, superblocks) = (at.blocks, at.superblocks);
                progress(&RecoveryProgress { pool, blocks, superblocks });
            }
            ControlFlow::Continue(())
        };
        let mut options = TraceOptions::default();
        options.workers = self.threads;
        options.interval = self.interval;
        options.progress = Some(&mut tell);
        trace(options)
    }
}
