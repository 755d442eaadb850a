//! What heaps of some kinds can do and others cannot. Each capability is a trait. A caller asks a
//! pool's heap for it by its type, and gets the heap or a typed refusal:
//!
//! ```ignore
//! let report = heap.capability::<dyn Trim>()?.trim()?;
//! ```
//!
//! | capability | traced | logged | wear |
//! | --- | --- | --- | --- |
//! | [`Trace`]: computes from the roots what is allocated | yes | logs say it | headers say it |
//! | [`Reclaim`]: frees leaks while programs change the pool | yes | no | no |
//! | [`Trim`]: gives free space back to the file system | yes | no | no |
//! | [`Shared`]: several processes write the pool | yes | no | no |
//!
//! Every kind has [`Heap`](crate::Heap) and [`Inspect`].
//!
//! A new capability: a trait here, a row of `capabilities!` in `pool_heap.rs` that names the kinds,
//! and an `impl` beside the heap.

use crate::block::BlockInfo;
use crate::error::{OpenError, ReclaimError, RecoverError};
use crate::exclusion::Exclusion;
use crate::heap::Inspect;
use crate::report::{Marked, RecoveryReport, TrimProgress, TrimReport};
use crate::trace::{TraceOptions, Types};
use core::ops::ControlFlow;
use core::time::Duration;
use std::sync::Arc;

/// Recovers by tracing (Ralloc, RAL-1).
pub trait Trace: Inspect {
    /// Computes all marks again, believing none: allocated is exactly what can be reached from the
    /// pool's roots and from the addresses `roots`. Needed after a loss of power, before anything
    /// else, where marks were not flushed; where transactions alone allocate and free,
    /// [`TraceOptions::believe_marks`] leaves free what is reached and not marked. Harmless at any
    /// time when no thread changes data. Can be interrupted anywhere and repeated.
    ///
    /// # Errors
    /// A puddle cannot be mapped, or the pool is read-only. Damage is no error: the report names
    /// it.
    fn recover(&self, types: &dyn Types, roots: &[u64]) -> Result<RecoveryReport, RecoverError> {
        self.recover_with(types, roots, TraceOptions::default())
    }

    /// [`Trace::recover`], by as many threads as `options` allow, with progress reported.
    ///
    /// # Errors
    /// As [`Trace::recover`]; [`RecoverError::Cancelled`]. The heap is as before then.
    fn recover_with(
        &self,
        types: &dyn Types,
        roots: &[u64],
        options: TraceOptions<'_>,
    ) -> Result<RecoveryReport, RecoverError>;
}

/// Frees leaks while programs change the pool. The calls come in this order:
/// [`Reclaim::begin_reclaim`], [`Reclaim::prepare_reclaim`] until it has no more to do,
/// [`Reclaim::mark_slice`] until nothing is pending, [`Reclaim::condemn`],
/// [`Reclaim::give_back_slice`], [`Reclaim::end_reclaim`]. See
/// [`reclaim`](crate::traced::reclaim) for what the caller sees to.
pub trait Reclaim: Inspect {
    /// Begins: from now on changes are recorded, until [`Reclaim::end_reclaim`]. Takes no longer
    /// than adopting the puddles that are adopted already; of a heap just opened that is the first
    /// one. Nothing if a reclaim is under way.
    fn begin_reclaim(&self, types: Arc<dyn Types + Send + Sync>);

    /// Whether a reclaim is under way.
    fn is_reclaiming(&self) -> bool;

    /// Ends a reclaim, done or not. Nothing if there is none.
    fn end_reclaim(&self);

    /// Looks at the next puddle that was not looked at yet; the last call reads all descriptors.
    /// `true`: there is more to do. Needs no lock of the caller's.
    ///
    /// # Errors
    /// [`ReclaimError`]: the reclaim cannot be done, and is to be ended.
    fn prepare_reclaim(&self) -> Result<bool, ReclaimError>;

    /// Traces for `at_most` that long, or a little longer: to the end of 16 blocks, or one
    /// superblock of a large one, or one call of a filter. `more`: addresses that other pools lead
    /// to.
    ///
    /// # Errors
    /// [`ReclaimError`]: the reclaim cannot be done, and is to be ended; nothing was given back.
    fn mark_slice(&self, more: &[u64], at_most: Duration) -> Result<Marked, ReclaimError>;

    /// [`Marked::changes`] now.
    ///
    /// # Errors
    /// [`ReclaimError::NotUnderWay`].
    fn changes(&self) -> Result<u64, ReclaimError>;

    /// Condemns all leaks: from here on none of them is live to any process, and a crash leaves all
    /// of them or none. `false`: something is pending, so mark on. To be called when nothing is
    /// pending in any heap that may lead here. Takes some nanoseconds for each leak and each 64
    /// blocks of the snapshot.
    ///
    /// # Errors
    /// [`ReclaimError`]: nothing was condemned.
    fn condemn(&self) -> Result<bool, ReclaimError>;

    /// Gives up to `limit` condemned leaks back (and 63 more at most), in order of addresses, and
    /// calls `visit` for each; with `dry_run`, leaks that are not condemned, and only that. `true`:
    /// there may be more.
    ///
    /// # Errors
    /// [`ReclaimError`]: nothing was given back in this call.
    fn give_back_slice(
        &self,
        limit: usize,
        dry_run: bool,
        visit: &mut dyn FnMut(BlockInfo),
    ) -> Result<bool, ReclaimError>;
}

/// Gives free space back to the file system.
pub trait Trim: Inspect {
    /// Gives the space of all free superblocks back. Blocks and addresses stay; an allocation that
    /// needs the space again takes it, or fails with [`crate::AllocError::Full`]. Free blocks in
    /// superblocks with allocated ones, and the puddles' own metadata, keep their space.
    ///
    /// Other threads may allocate and free meanwhile. Free blocks in this thread's cache are given
    /// back before.
    ///
    /// # Errors
    /// The pool is read-only, a puddle cannot be mapped, or the file system reports an error.
    fn trim(&self) -> Result<TrimReport, RecoverError> {
        self.trim_with(&mut |_| ControlFlow::Continue(()))
    }

    /// [`Trim::trim`] that tells how far it has come after each mebibyte, and ends early if it is
    /// told to.
    ///
    /// # Errors
    /// As [`Trim::trim`].
    fn trim_with(
        &self,
        progress: &mut dyn FnMut(&TrimProgress) -> ControlFlow<()>,
    ) -> Result<TrimReport, RecoverError>;
}

/// Serves several processes that write the pool.
pub trait Shared: Inspect {
    /// The locks between the processes that have the pool; `None` if there is one process.
    fn exclusion(&self) -> Option<Exclusion<'_>>;

    /// Attaches the puddles that other processes have taken since, so that every address which they
    /// could store anywhere is mapped here. One load if there are none.
    ///
    /// # Errors
    /// They cannot be mapped, or not be learned of.
    fn catch_up(&self) -> Result<(), OpenError>;
}
