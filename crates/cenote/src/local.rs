//! The log of each thread, made at its first transaction on a store and used for all later ones (Puddles paper, 4.1: "every
//! thread caches the log puddle").
//!
//! Invariant: a [`ThreadLog`] belongs to its store's list and is used by one thread, the one whose thread-local entry names it. The entry is found by the
//! store's number, which is never given twice, so an entry of a closed store is never followed. A thread that ends
//! gives its logs back; a store that is closed drops them all. Whichever comes first takes the log out of the list; an ending thread does so under the lock of
//! [`OPEN`], from which a store takes itself before anything of it goes away. (It holds no handle of the store meanwhile, which would make
//! a close at that moment fail.)

use crate::error::Result;
use crate::store::Inner;
use cenote_log::{Body, LogWriter, SegmentSource};
use cenote_store::LogLease;
use cenote_sys::fork_guard;
use cenote_sys::process_lock::ProcessLock;
use cenote_tx::TxContext;
use core::cell::{Cell, RefCell};
use std::ptr::NonNull;
use std::sync::MutexGuard;

/// One thread's log on one store.
pub(crate) struct ThreadLog {
    /// Dropped before the lease goes back.
    pub(crate) context: Option<TxContext>,
    pub(crate) lease: Option<LogLease>,
    /// Whether a transaction of this log is in progress.
    pub(crate) active: Cell<bool>,
}

/// A pointer that the store's list owns, and the token of the process that made it.
#[derive(Clone, Copy)]
pub(crate) struct Owned(pub(crate) NonNull<ThreadLog>, pub(crate) u64);
// SAFETY: the list only stores and frees it; it is used by the thread that it was made for.
unsafe impl Send for Owned {}

thread_local! {
    /// The store used last, and its log: no destructor, so that reading it is one load.
    static LAST: Cell<(u64, *mut ThreadLog)> = const { Cell::new((0, core::ptr::null_mut())) };
    /// Views that this thread holds, over all pools.
    pub(crate) static VIEWS: Cell<u32> = const { Cell::new(0) };
    static ALL: RefCell<Logs> = const { RefCell::new(Logs(Vec::new())) };
    /// The same for transactions in destructors of thread-locals that run after that of `ALL`.
    static LATE: RefCell<Logs> = const { RefCell::new(Logs(Vec::new())) };
}

/// All logs of a thread; gives them back when the thread ends.
struct Logs(Vec<(u64, Owned)>);

/// A store that is open. Good as long as it is listed and the list is locked.
struct OpenStore(NonNull<Inner>);
// SAFETY: an address; `Inner` is `Sync`.
unsafe impl Send for OpenStore {}

/// Stores that are open: how an ending thread finds out whether a store is still there.
static OPEN: ProcessLock<Vec<OpenStore>> = ProcessLock::new(Vec::new());

fn open_stores() -> MutexGuard<'static, Vec<OpenStore>> {
    OPEN.lock()
}

impl OpenStore {
    /// # Safety
    /// The list is locked during `'a`, and this is in it.
    unsafe fn get<'a>(&self) -> &'a Inner {
        // SAFETY: `closed` takes an `Inner` out of the list before it is dropped, and waits for the lock.
        unsafe { self.0.as_ref() }
    }
}

/// Lists a store, which stays where it is.
pub(crate) fn opened(inner: &Inner) {
    open_stores().push(OpenStore(NonNull::from(inner)));
}

/// Takes a store out, before it goes away.
pub(crate) fn closed(inner: &Inner) {
    open_stores().retain(|open| open.0 != NonNull::from(inner));
}

/// Calls `visit` for every store that this process has open; those of a parent, of which a forked
/// child has the list, are none of them. It must not open or close one.
pub(crate) fn for_each_open(visit: &mut dyn FnMut(&Inner)) {
    let open = open_stores();
    for store in open.iter() {
        // SAFETY: the list is locked.
        let store = unsafe { store.get() };
        if store.refuse_forked().is_ok() {
            visit(store);
        }
    }
}

impl Drop for Logs {
    fn drop(&mut self) {
        LAST.with(|last| last.set((0, core::ptr::null_mut())));
        for (number, owned) in self.0.drain(..) {
            // In a forked child the store is its parent's, and a thread that is not there may have
            // its locks.
            if !fork_guard::is_current(owned.1) {
                continue;
            }
            let open = open_stores();
            // SAFETY: the list stays locked while the store is used.
            let store =
                open.iter().map(|store| unsafe { store.get() }).find(|store| store.number == number >> 1);
            if let Some(store) = store {
                store.release_thread_log(owned);
            }
        }
    }
}

/// What a thread's logs on one store are known by. Those of protected pools, which are memory, are others than those of the rest.
#[inline]
fn number_of(store: &Inner, hidden: bool) -> u64 {
    store.number << 1 | u64::from(hidden)
}

/// Whether this thread has a log on a store, which it used last: then [`crate::reclaim::Reclaims::note_used`] was called on this thread, for the log is made after
/// that. False says nothing.
#[inline]
pub(crate) fn has_log(store: &Inner) -> bool {
    LAST.with(Cell::get).0 >> 1 == store.number
}

/// This thread's log on a store, for protected pools or for others.
#[inline]
pub(crate) fn thread_log(store: &Inner, hidden: bool) -> Result<NonNull<ThreadLog>> {
    let (number, log) = LAST.with(Cell::get);
    if number == number_of(store, hidden)
        && let Some(log) = NonNull::new(log)
    {
        return Ok(log);
    }
    find_or_make(store, hidden)
}

#[cold]
fn find_or_make(store: &Inner, hidden: bool) -> Result<NonNull<ThreadLog>> {
    let number = number_of(store, hidden);
    let find =
        |logs: &RefCell<Logs>| logs.borrow().0.iter().find(|(n, _)| *n == number).map(|(_, owned)| owned.0);
    let found = ALL.try_with(find).or_else(|_| LATE.try_with(find)).ok().flatten();
    let log = match found {
        Some(log) => log,
        None => {
            let log = store.make_thread_log(hidden)?;
            let keep = |logs: &RefCell<Logs>| {
                let mut logs = logs.borrow_mut();
                // Entries of stores that are closed are of no use to anybody.
                let open = open_stores();
                // SAFETY: the list is locked.
                logs.0.retain(|(n, _)| open.iter().any(|store| unsafe { store.get() }.number == *n >> 1));
                drop(open);
                logs.0.push((number, log));
            };
            // Where a third destructor begins a transaction, after both, the store keeps the log until it is closed.
            let _ = ALL.try_with(keep).or_else(|_| LATE.try_with(keep));
            log.0
        }
    };
    LAST.with(|last| last.set((number, log.as_ptr())));
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
    let source = Box::new(Segments { store: store.store.clone(), log_id: lease.log_id() });
    // SAFETY: the store keeps log puddles mapped until it is closed, which `Inner` does after it has dropped all contexts; a leased log
    // has no other user.
    let writer = unsafe { LogWriter::attach(lease.body(), store.store.persistence(), source) }
        .map_err(cenote_tx::TxError::from)?;
    // SAFETY: as above; the group is the store's, and the store is locked against other processes.
    Ok(unsafe { TxContext::new(writer, store.group.clone()) })
}
