//! The log of each thread, made at its first transaction on a store and used for all later ones
//! (Puddles paper, 4.1: "every thread caches the log puddle").
//!
//! Invariant: a [`ThreadLog`] belongs to its store's list and is used by one thread, the one whose
//! thread-local entry names it. The entry is found by the store's number, which is never given
//! twice, so an entry of a closed store is never followed. A thread that ends gives its logs back;
//! a store that is closed drops them all. An ending thread and a closing store may both want the
//! log; the first to take it from the list owns it. An ending thread takes it under the lock of the
//! list of open stores, and a store leaves that list before anything of it goes away. (It holds no
//! handle of the store meanwhile, which would make a close at that moment fail.)

use crate::error::Result;
use crate::session::{Inner, open_numbers, with_open};
use crate::thread_log::{Owned, ThreadLog};
use cenote_sys::fork_guard;
use core::cell::{Cell, RefCell};
use std::ptr::NonNull;

thread_local! {
    /// The number of the store that this thread noted last that it uses.
    static NOTED: Cell<u64> = const { Cell::new(0) };
    /// The store used last, and its log: no destructor, so that reading it is one load.
    static LAST: Cell<(u64, *mut ThreadLog)> = const { Cell::new((0, core::ptr::null_mut())) };
    static ALL: RefCell<Logs> = const { RefCell::new(Logs(Vec::new())) };
    /// The same for transactions in destructors of thread-locals that run after that of `ALL`.
    static LATE: RefCell<Logs> = const { RefCell::new(Logs(Vec::new())) };
}

/// All logs of a thread; gives them back when the thread ends.
struct Logs(Vec<(u64, Owned)>);

impl Drop for Logs {
    fn drop(&mut self) {
        LAST.with(|last| last.set((0, core::ptr::null_mut())));
        for (number, owned) in self.0.drain(..) {
            // In a forked child the store is its parent's, and a thread that is not there may have
            // its locks.
            if !fork_guard::is_current(owned.1) {
                continue;
            }
            with_open(number >> 1, |store| store.release_thread_log(owned));
        }
    }
}

/// What a thread's logs on one store are known by. Those of protected pools, which are memory, are
/// others than those of the rest.
#[inline]
fn number_of(store: &Inner, hidden: bool) -> u64 {
    store.number << 1 | u64::from(hidden)
}

/// Calls [`Inner::note_used`] unless this thread has, which its log on the store shows too: that is
/// made after the call.
#[inline]
pub(crate) fn note_used(store: &Inner) {
    if LAST.with(Cell::get).0 >> 1 != store.number && NOTED.with(Cell::get) != store.number {
        store.note_used();
        NOTED.with(|noted| noted.set(store.number));
    }
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
    let find = |logs: &RefCell<Logs>| {
        logs.borrow().0.iter().find(|(n, _)| *n == number).map(|(_, owned)| owned.0)
    };
    let found = ALL.try_with(find).or_else(|_| LATE.try_with(find)).ok().flatten();
    let log = match found {
        Some(log) => log,
        None => {
            let log = store.make_thread_log(hidden)?;
            let keep = |logs: &RefCell<Logs>| {
                let mut logs = logs.borrow_mut();
                // Entries of stores that are closed are of no use any more.
                let open = open_numbers();
                logs.0.retain(|(n, _)| open.contains(&(n >> 1)));
                logs.0.push((number, log));
            };
            // Where a third destructor begins a transaction, after both, the store keeps the log
            // until it is closed.
            let _ = ALL.try_with(keep).or_else(|_| LATE.try_with(keep));
            log.0
        }
    };
    LAST.with(|last| last.set((number, log.as_ptr())));
    Ok(log)
}
