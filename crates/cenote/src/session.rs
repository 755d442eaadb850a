//! A store that this process has open: the handle [`Store`], and what all its handles share.
//!
//! [`Inner`] knows no pools and nothing that works on them: those are its extensions. It has the
//! logs of threads, and compares the program's types with the store's.

use crate::error::{Error, Result};
use crate::extensions::Extensions;
use crate::known::layouts_contradict;
use crate::recovery::RecoveryOptions;
use crate::thread_log::{Owned, ThreadLog, Usage, bind};
use crate::wait_limit::{WaitUntil, wait_limit};
use cenote_heap::{RecoveryReport, TraceOptions};
use cenote_layout::id::PoolId;
use cenote_medium::planted::{Bug, planted};
use cenote_store::{DamagePolicy, Keyring, OpenReport, StoreError};
use cenote_sys::process_lock::{ProcessGuard, ProcessLock};
use cenote_tx::LogGroup;
use std::collections::BTreeMap;
use std::ptr::NonNull;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, PoisonError};

/// A store that is open in this process: exclusively, if for writing.
///
/// Handles are cheap to clone and may be used from any thread. When the last handle of the store
/// and of its pools is dropped, the store is closed; [`Store::close`] does it now and tells of
/// errors. A process that dies without closing loses nothing that was committed at its durability
/// level.
#[derive(Clone, Debug)]
pub struct Store {
    pub(crate) inner: Arc<Inner>,
}

impl Drop for Store {
    /// In a forked child nothing of the store is dropped, as of [`Pool`](crate::Pool).
    fn drop(&mut self) {
        if self.inner.refuse_forked().is_err() {
            core::mem::forget(Arc::clone(&self.inner));
        }
    }
}

/// What the caller wants of an open store.
#[derive(Clone, Default)]
pub(crate) struct Policy {
    /// Opened by [`Store::open_torn`]: the caller answers for values that a loss of power or
    /// damage may have torn.
    pub(crate) torn_allowed: bool,
    pub(crate) damage: DamagePolicy,
    /// [`OpenOptions::verify_values`](crate::OpenOptions::verify_values).
    pub(crate) verify_values: bool,
    /// [`OpenOptions::key`](crate::OpenOptions::key).
    pub(crate) key: Option<Arc<Keyring>>,
}

pub(crate) struct Inner {
    /// No two stores of a process have the same.
    pub(crate) number: u64,
    /// How pools are traced.
    recovery: Mutex<RecoveryOptions>,
    pub(crate) store: cenote_store::Store,
    pub(crate) group: Arc<LogGroup>,
    pub(crate) report: OpenReport,
    pub(crate) policy: Policy,
    /// What tracing found in pools, in this session.
    traced: Mutex<BTreeMap<PoolId, RecoveryReport>>,
    /// Types that came into the registry, or into this program, and were not compared: not zero
    /// where [`Inner::types_agree`] must be asked.
    pub(crate) unsettled: Arc<AtomicU64>,
    /// A type has one layout in this store and another in this program, in which another store
    /// agrees: pointers from there must not be followed here. Never false again, and `unsettled`
    /// is not zero then.
    contradicts: Mutex<bool>,
    /// Pools that are open, runs of reclaiming, the thread that stands still for the daemon.
    pub(crate) extensions: Extensions,
    logs: Mutex<Vec<Owned>>,
    /// Of the process that opened the store.
    fork_token: u64,
}

impl core::fmt::Debug for Inner {
    fn fmt(&self, f: &mut core::fmt::Formatter<'_>) -> core::fmt::Result {
        f.debug_struct("Store").field("uuid", &self.store.uuid()).finish_non_exhaustive()
    }
}

static NEXT_NUMBER: AtomicU64 = AtomicU64::new(1);

/// A store that is open. Good as long as it is listed and the list is locked.
struct OpenStore(NonNull<Inner>);

// SAFETY: an address; `Inner` is `Sync`.
unsafe impl Send for OpenStore {}

/// Stores that are open: how an ending thread finds out whether a store is still there.
static OPEN: ProcessLock<Vec<OpenStore>> = ProcessLock::new(Vec::new());

fn open_stores() -> ProcessGuard<Vec<OpenStore>> {
    OPEN.lock()
}

impl OpenStore {
    /// # Safety
    /// The list is locked during `'a`, and this is in it.
    unsafe fn get<'a>(&self) -> &'a Inner {
        // SAFETY: `closed` takes an `Inner` out of the list before it is dropped, and waits for the
        // lock.
        unsafe { self.0.as_ref() }
    }
}

/// Lists a store, which stays where it is.
fn opened(inner: &Inner) {
    open_stores().push(OpenStore(NonNull::from(inner)));
}

/// Takes a store out, before it goes away.
fn closed(inner: &Inner) {
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

/// Does something with an open store of this number, if it is open, which stays open meanwhile.
pub(crate) fn with_open(number: u64, work: impl FnOnce(&Inner)) {
    let open = open_stores();
    // SAFETY: the list stays locked while the store is used.
    let found = open.iter().map(|store| unsafe { store.get() }).find(|s| s.number == number);
    if let Some(store) = found {
        work(store);
    }
}

/// Numbers of the stores that are open.
pub(crate) fn open_numbers() -> Vec<u64> {
    let open = open_stores();
    // SAFETY: the list is locked.
    open.iter().map(|store| unsafe { store.get() }.number).collect()
}

/// Refuses forks of the store's opener, and all once the store acknowledges nothing more: one
/// comparison.
#[inline]
pub(crate) fn refuse_unusable(store: &cenote_store::Store) -> Result<()> {
    store.check_usable().map_err(refused)
}

/// Out of line: an error is large, and its making would keep begin and commit from being inlined.
#[cold]
#[inline(never)]
fn refused(error: StoreError) -> Error {
    error.into()
}

impl Inner {
    /// A store that was just opened, listed among those of this process.
    pub(crate) fn new(
        store: cenote_store::Store,
        report: OpenReport,
        policy: Policy,
        extensions: Extensions,
    ) -> Arc<Self> {
        let inner = Arc::new(Self {
            number: NEXT_NUMBER.fetch_add(1, Ordering::Relaxed),
            recovery: Mutex::default(),
            // SAFETY: `types_agree` alone sets it to zero, after it has compared all types.
            unsettled: unsafe { store.unsettled_types() },
            contradicts: Mutex::default(),
            store,
            group: LogGroup::new(),
            report,
            policy,
            traced: Mutex::default(),
            extensions,
            logs: Mutex::new(Vec::new()),
            fork_token: cenote_sys::fork_guard::token(),
        });
        // Listed first: a type that is learned from now on looks at this store itself.
        opened(&inner);
        inner.types_agree();
        inner
    }

    /// Says how pools are traced from now on.
    pub(crate) fn set_recovery(&self, options: RecoveryOptions) {
        *self.recovery.lock().unwrap_or_else(PoisonError::into_inner) = options;
    }

    /// Traces the pool of this name with this store's options.
    pub(crate) fn recovery_of<R>(
        &self,
        pool: &str,
        trace: impl FnOnce(TraceOptions<'_>) -> R,
    ) -> R {
        let options = self.recovery.lock().unwrap_or_else(PoisonError::into_inner).clone();
        options.trace(pool, trace)
    }

    /// The calling thread is going to run transactions, or to use a heap by itself: once a thread,
    /// not once a transaction.
    #[cold]
    pub(crate) fn note_used(&self) {
        self.extensions.used();
    }

    /// Refuses to go on in a process that was forked from the one that opened the store.
    #[inline]
    pub(crate) fn refuse_forked(&self) -> Result<()> {
        if !cenote_sys::fork_guard::is_current(self.fork_token) {
            return Err(StoreError::Forked.into());
        }
        Ok(())
    }

    /// Whether this program has every type that the store knows as the store has it. Compares only
    /// after a type was learnt.
    ///
    /// A type that is learnt meanwhile stays counted: it was counted after `learnt` was read, and
    /// the count of zero is not stored then. Only the holder of the lock lowers the count.
    #[cold]
    pub(crate) fn types_agree(&self) -> bool {
        let mut contradicts = self.contradicts.lock().unwrap_or_else(PoisonError::into_inner);
        let learnt = self.unsettled.load(Ordering::SeqCst);
        if *contradicts || learnt == 0 {
            return !*contradicts;
        }
        *contradicts = layouts_contradict(&self.store);
        if !*contradicts {
            let _ = self.unsettled.compare_exchange(learnt, 0, Ordering::SeqCst, Ordering::SeqCst);
        }
        !*contradicts
    }

    /// A type of this program is not as the store has it.
    pub(crate) fn types_differ(&self) {
        let mut contradicts = self.contradicts.lock().unwrap_or_else(PoisonError::into_inner);
        *contradicts = true;
        self.unsettled.fetch_add(1, Ordering::SeqCst);
    }

    pub(crate) fn note_traced(&self, pool: PoolId, report: RecoveryReport) {
        self.traced.lock().unwrap_or_else(PoisonError::into_inner).insert(pool, report);
    }

    pub(crate) fn traced(&self, pool: PoolId) -> Option<RecoveryReport> {
        self.traced.lock().unwrap_or_else(PoisonError::into_inner).get(&pool).cloned()
    }

    /// A context for the calling thread, kept in the list.
    pub(crate) fn make_thread_log(&self, hidden: bool) -> Result<Owned> {
        self.note_used();
        let lease = match wait_limit() {
            Some(WaitUntil { until, timeout }) => {
                let lease = self.store.acquire_log_until(hidden, until)?;
                lease.ok_or(Error::StoreBusy { timeout })?
            }
            None if hidden => self.store.acquire_hidden_log()?,
            None => self.store.acquire_log()?,
        };
        // If that fails, some transaction in it never ended: the log is not given out again, and
        // keeps the store from counting as closed.
        //  SAFETY: the lease is this context's alone; `Inner` drops all contexts before the store.
        let context = unsafe { bind(&self.store, &self.group, &lease) }?;
        let usage = Usage::new(self.store.clone());
        let log = Box::new(ThreadLog { context: Some(context), lease: Some(lease), usage });
        let owned = Owned(NonNull::from(Box::leak(log)), self.fork_token);
        self.logs.lock().unwrap_or_else(PoisonError::into_inner).push(owned);
        Ok(owned)
    }

    /// Takes a log back from a thread that ends.
    pub(crate) fn release_thread_log(&self, owned: Owned) {
        let mut logs = self.logs.lock().unwrap_or_else(PoisonError::into_inner);
        let Some(at) = logs.iter().position(|log| log.0 == owned.0) else { return };
        // SAFETY: in the list, so not freed. A thread that ends within a transaction
        // (`process::exit` in its closure) never goes on with it: the log stays as it is, for the
        // next opener to roll back.
        if unsafe { (*owned.0.as_ptr()).usage.is_active() } {
            return;
        }
        logs.swap_remove(at);
        drop(logs);
        self.free_log(owned);
    }

    fn free_log(&self, owned: Owned) {
        // SAFETY: made by `Box::leak` in `make_thread_log`, out of the list now, and its thread has
        // ended or the store is closing with no handle left, so no code uses it.
        let mut log = unsafe { Box::from_raw(owned.0.as_ptr()) };
        match log.context.take() {
            // In a forked child the mapping that a context writes to is not there.
            Some(context) if self.refuse_forked().is_err() => core::mem::forget(context),
            context => drop(context),
        }
        if let Some(lease) = log.lease.take() {
            self.store.release_log(lease);
        }
    }

    fn drop_logs(&self) {
        // Waits for threads that are giving their logs back; later ones do not find the store.
        closed(self);
        let logs = core::mem::take(&mut *self.logs.lock().unwrap_or_else(PoisonError::into_inner));
        for log in logs {
            // SAFETY: in the list until now, so not freed. The thread that wrote it last has let go
            // of the store since. If it left a transaction the log stays, and with it the lease,
            // which keeps the store from counting as closed: the next opener rolls back.
            let left = unsafe { (*log.0.as_ptr()).usage.is_active() };
            if !left || planted(Bug::LeftTransactionClosed) {
                self.free_log(log);
            }
        }
    }
}

impl Drop for Inner {
    fn drop(&mut self) {
        self.extensions.closing();
        // Contexts first: they write to mappings that the store is about to take away.
        self.drop_logs();
    }
}
