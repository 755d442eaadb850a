//! What a caller may say about a traversal, and hears of it.

use crate::error::RecoverError;
use crate::ground::Ground;
use crate::report::{HeapReport, RecoveryReport};
use crate::trace::{Root, Traced, Tracer, Types};
use crate::traced::TracedHeap;
use cenote_layout::id::TypeId;
use core::fmt;
use core::num::NonZero;
use core::ops::ControlFlow;
use core::time::Duration;
use std::sync::OnceLock;

/// How far a traversal has come.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct Progress {
    /// Blocks reached so far. How many there will be is not known before.
    pub blocks: u64,
    /// Superblocks of the heap that hold blocks; 64 KiB each.
    pub superblocks: u64,
}

/// Hears how far a traversal has come, and may break it off.
pub type OnProgress<'a> = dyn FnMut(&Progress) -> ControlFlow<()> + 'a;

/// How a heap is traced: by [`TracedHeap::recover_with`] and [`TracedHeap::check_with`].
#[non_exhaustive]
pub struct TraceOptions<'a> {
    /// Most threads that trace, the caller's included; `None`: as many as cores that this process may use.
    pub workers: Option<NonZero<usize>>,
    /// Blocks that the caller's thread traces alone before it starts others: starting a thread takes as long as tracing a thousand blocks. 100,000 by
    /// default.
    pub alone_blocks: u64,
    /// Called on the caller's thread while blocks are traced, with [`TraceOptions::interval`] between calls; so not at all if a heap is traced in less. If it breaks, the
    /// traversal ends with [`RecoverError::Cancelled`], and nothing has changed. It must not call the heap.
    pub progress: Option<&'a mut OnProgress<'a>>,
    /// Least time between two calls of `progress`; 50 ms by default.
    pub interval: Duration,
    /// For recovery: a block that is reached and whose mark does not say "allocated" stays free; what leads there dangles. Right where every mark is durable
    /// as soon as its transaction is, which transactions at level `power` see to. By default off: marks are not looked at, and all that is reached is allocated.
    pub believe_marks: bool,
}

impl Default for TraceOptions<'_> {
    fn default() -> Self {
        Self {
            workers: None,
            alone_blocks: 100_000,
            progress: None,
            interval: Duration::from_millis(50),
            believe_marks: false,
        }
    }
}

impl fmt::Debug for TraceOptions<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("TraceOptions")
            .field("workers", &self.workers)
            .field("alone_blocks", &self.alone_blocks)
            .field("interval", &self.interval)
            .field("believe_marks", &self.believe_marks)
            .finish_non_exhaustive()
    }
}

impl TraceOptions<'_> {
    /// The same options for one traversal of several.
    pub fn again(&mut self) -> TraceOptions<'_> {
        let progress = self.progress.as_mut().map(|progress| &mut **progress as &mut OnProgress<'_>);
        TraceOptions {
            workers: self.workers,
            alone_blocks: self.alone_blocks,
            progress,
            interval: self.interval,
            believe_marks: self.believe_marks,
        }
    }

    pub(super) fn workers(&self) -> usize {
        self.workers.unwrap_or_else(cores).get()
    }
}

/// Cores that this process might use when it first asked: the system reads files to say so, which takes longer than tracing a small heap.
fn cores() -> NonZero<usize> {
    static CORES: OnceLock<NonZero<usize>> = OnceLock::new();
    *CORES.get_or_init(|| std::thread::available_parallelism().unwrap_or(NonZero::<usize>::MIN))
}

impl<G: Ground> TracedHeap<G> {
    /// Traces from the numbered roots and from `roots`.
    pub(crate) fn trace(
        &self,
        tracer: &Tracer<'_, G>,
        roots: &[u64],
        foreign: bool,
        options: TraceOptions<'_>,
    ) -> Result<Traced, RecoverError> {
        let (mut all, damaged) = crate::roots::all(self.root_puddle());
        all.extend(roots.iter().map(|&to| Root { at: 0, to, target: TypeId::UNTYPED }));
        let mut traced = tracer.run(&all, foreign, options)?;
        traced.damaged_roots = damaged;
        Ok(traced)
    }

    /// [`crate::Heap::recover`], by as many threads as `options` allow, with progress reported.
    ///
    /// # Errors
    /// As [`crate::Heap::recover`]; [`RecoverError::Cancelled`]. The heap is as before then.
    pub fn recover_with(
        &self,
        types: &dyn Types,
        roots: &[u64],
        options: TraceOptions<'_>,
    ) -> Result<RecoveryReport, RecoverError> {
        self.recover_heap(types, roots, options)
    }

    /// [`crate::Heap::check`] with types, by as many threads as `options` allow, with progress reported.
    ///
    /// # Errors
    /// As [`crate::Heap::check`]; [`RecoverError::Cancelled`].
    pub fn check_with(
        &self,
        types: &dyn Types,
        options: TraceOptions<'_>,
    ) -> Result<HeapReport, RecoverError> {
        self.check_heap(Some(types), &[], options)
    }

    /// [`TracedHeap::check_with`], with further roots, as [`crate::Heap::recover`] has: addresses that something outside of the pool leads to. What only they lead to
    /// is no leak.
    ///
    /// # Errors
    /// As [`TracedHeap::check_with`].
    pub fn check_from(
        &self,
        types: &dyn Types,
        roots: &[u64],
        options: TraceOptions<'_>,
    ) -> Result<HeapReport, RecoverError> {
        self.check_heap(Some(types), roots, options)
    }
}
