//! The log of each thread, made at its first transaction on a store and used for all later ones (Puddles paper, 4.1: "every
//! thread caches the log puddle").
//!
//! Invariant: a [`ThreadLog`] belongs to its store's list and is used by one thread, the one whose thread-local entry names it. The entry is found by the
//! store's number, which is never given twice, so an entry of a closed store is never followed. A thread that ends
//! gives its logs back; a store that is closed drops them all.

use crate::error::Result;
use crate::store::Inner;
use cenote_log::{Body, LogWriter, SegmentSource};
use cenote_store::LogLease;
use cenote_tx::TxContext;
use core::cell::{Cell, RefCell};
use std::ptr::NonNull;
use std::sync::{Mutex, PoisonError, Weak};

/// One thread's log on one store.
pub(crate) struct ThreadLog {
    /// Dropped before the lease goes back.
    pub(crate) context: Option<TxContext>,
    pub(crate) lease: Option<LogLease>,
    /// Whether a transaction of this log is in progress.
    pub(crate) active: Cell<bool>,
}

/// A pointer that the store's list owns.
#[derive(Clone, Copy)]
pub(crate) struct Owned(pub(crate) NonNull<ThreadLog>);
// SAFETY: the list only stores and frees it; it is used by the thread that it was made for.
unsafe impl Send for Owned {}

thread_local! {
    /// The store used last, and its log: no destructor, so that reading it is one load.
    static LAST: Cell<(u64, *mut ThreadLog)> = const { Cell::new((0, core::ptr::null_mut())) };
    /// Views that this thread holds, over all pools.
    pub(crate) static VIEWS: Cell<u32> = const { Cell::new(0) };
    static ALL: RefCell<Logs> = const { RefCell::new(Logs(Vec::new())) };
}

/// All logs of a thread; gives them back when the thread ends.
struct Logs(Vec<(u64, Owned)>);

/// Stores that are open, by number: how an ending thread finds out whether a store is still there.
static OPEN: Mutex<Vec<(u64, Weak<Inner>)>> = Mutex::new(Vec::new());

pub(crate) fn opened(number: u64, inner: Weak<Inner>) {
    OPEN.lock().unwrap_or_else(PoisonError::into_inner).push((number, inner));
}

pub(crate) fn closed(number: u64) {
    OPEN.lock().unwrap_or_else(PoisonError::into_inner).retain(|(n, _)| *n != number);
}

impl Drop for Logs {
    fn drop(&mut self) {
        LAST.with(|last| last.set((0, core::ptr::null_mut())));
        for (number, owned) in self.0.drain(..) {
            let store = {
                let open = OPEN.lock().unwrap_or_else(PoisonError::into_inner);
                open.iter().find(|(n, _)| *n == number).and_then(|(_, weak)| weak.upgrade())
            };
            if let Some(store) = store {
                store.release_thread_log(owned);
            }
        }
    }
}

/// This thread's log on a store.
#[inline]
pub(crate) fn thread_log(store: &Inner) -> Result<NonNull<ThreadLog>> {
    let (number, log) = LAST.with(Cell::get);
    if number == store.number {
        if let Some(log) = NonNull::new(log) {
            return Ok(log);
        }
    }
    find_or_make(store)
}

#[cold]
fn find_or_make(store: &Inner) -> Result<NonNull<ThreadLog>> {
    let found = ALL
        .try_with(|all| all.borrow().0.iter().find(|(n, _)| *n == store.number).map(|(_, owned)| owned.0))
        .ok()
        .flatten();
    let log = match found {
        Some(log) => log,
        None => {
            let log = store.make_thread_log()?;
            // In a thread that is ending already the store keeps the log until it is closed.
            let _ = ALL.try_with(|all| {
                let mut all = all.borrow_mut();
                // Entries of stores that are closed are of no use to anybody.
                let open = OPEN.lock().unwrap_or_else(PoisonError::into_inner);
                all.0.retain(|(n, _)| open.iter().any(|(number, _)| number == n));
                drop(open);
                all.0.push((store.number, log));
            });
            log.0
        }
    };
    LAST.with(|last| last.set((store.number, log.as_ptr())));
    Ok(log)
}

/// Gets a log's further segments from the store.
pub(crate) struct Segments {
    pub(crate) store: cenote_store::Store,
    pub(crate) log_id: u64,
}

impl SegmentSource for Segments {
    fn segment(&mut self, number: u32) -> Result<(u64, Body), Box<dyn std::error::Error + Send + Sync>> {
        Ok(self.store.grow_log(self.log_id, number)?)
    }
}

/// Binds a leased log to a context.
pub(crate) fn bind(store: &Inner, lease: &LogLease) -> Result<TxContext> {
    let source = Box::new(Segments { store: store.store.clone(), log_id: lease.log_id });
    // SAFETY: the store keeps log puddles mapped until it is closed, which `Inner` does after it has dropped all contexts; a leased log
    // has no other user.
    let writer = unsafe { LogWriter::attach(lease.body, store.store.persistence(), source) }
        .map_err(cenote_tx::TxError::from)?;
    // SAFETY: as above; the group is the store's, and the store is locked against other processes.
    Ok(unsafe { TxContext::new(writer, store.group.clone()) })
}
