//! A thread's log on a store: its lease, its context, and whether a transaction uses it.
//!
//! Invariant: a [`ThreadLog`] belongs to its store's list, and one thread uses it.

use crate::error::Result;
use cenote_log::{Body, LogWriter, SegmentSource};
use cenote_store::{LogLease, Store};
use cenote_tx::{LogGroup, TxContext};
use core::cell::Cell;
use std::ptr::NonNull;
use std::sync::Arc;
use std::sync::atomic::AtomicBool;

/// One thread's log on one store.
pub(crate) struct ThreadLog {
    /// Dropped before the lease goes back.
    pub(crate) context: Option<TxContext>,
    pub(crate) lease: Option<LogLease>,
    /// The parts that a transaction borrows beside the context, which it borrows exclusively.
    pub(crate) usage: Usage,
}

/// Whether a transaction uses a log, and the log's store.
pub(crate) struct Usage {
    active: Cell<bool>,
    store: Store,
}

impl Usage {
    pub(crate) fn new(store: Store) -> Self {
        Self { active: Cell::new(false), store }
    }

    /// Whether a transaction of the log is in progress.
    pub(crate) fn is_active(&self) -> bool {
        self.active.get()
    }
}

/// A pointer that the store's list owns, and the token of the process that made it.
#[derive(Clone, Copy)]
pub(crate) struct Owned(pub(crate) NonNull<ThreadLog>, pub(crate) u64);

// SAFETY: the list only stores and frees it; it is used by the thread that it was made for.
unsafe impl Send for Owned {}

/// Gets a log's further segments from the store.
struct Segments {
    store: Store,
    log_id: u64,
}

impl SegmentSource for Segments {
    fn segment(
        &mut self,
        number: u32,
    ) -> Result<(u64, Body), Box<dyn std::error::Error + Send + Sync>> {
        Ok(self.store.grow_log(self.log_id, number)?)
    }

    fn is_halted(&self) -> bool {
        self.store.check_usable().is_err()
    }

    fn lost(&self) -> Arc<AtomicBool> {
        // SAFETY: for a writer of a log, which reads it.
        unsafe { self.store.log_is_lost() }
    }
}

/// Binds a leased log to a context.
///
/// # Safety
/// No other context uses the log, and the context is dropped before the store is closed. The store
/// is locked against other processes.
pub(crate) unsafe fn bind(
    store: &Store,
    group: &Arc<LogGroup>,
    lease: &LogLease,
) -> Result<TxContext> {
    let source = Box::new(Segments { store: store.clone(), log_id: lease.log_id() });
    // SAFETY: the store keeps log puddles mapped until it is closed, and by contract the context is
    // dropped before; no other user has the log.
    let writer = unsafe { LogWriter::attach(lease.body(), store.persistence(), source) }
        .map_err(cenote_tx::TxError::from)?;
    // SAFETY: the group is the store's; the store is locked against other processes.
    Ok(unsafe { TxContext::new(writer, Arc::clone(group)) })
}

/// Marks a thread's log as in use.
pub(crate) struct Active<'a>(&'a Usage);

impl<'a> Active<'a> {
    /// # Safety
    /// The log is this thread's and lives during `'a`.
    #[inline]
    pub(crate) unsafe fn new(log: NonNull<ThreadLog>) -> Option<Self> {
        // SAFETY: the caller's.
        let usage = unsafe { &(*log.as_ptr()).usage };
        if usage.active.replace(true) { None } else { Some(Self(usage)) }
    }

    /// The log's store.
    #[inline]
    pub(crate) fn store(&self) -> &'a Store {
        &self.0.store
    }
}

impl core::fmt::Debug for Active<'_> {
    fn fmt(&self, f: &mut core::fmt::Formatter<'_>) -> core::fmt::Result {
        f.write_str("Active")
    }
}

impl Drop for Active<'_> {
    #[inline]
    fn drop(&mut self) {
        self.0.active.set(false);
    }
}
