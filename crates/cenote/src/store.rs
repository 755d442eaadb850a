//! [`Store`]: a directory of pools, opened in this process.

use crate::attend::Attending;
use crate::error::{Error, Result};
use crate::known::layouts_contradict;
use crate::local::{self, Owned, ThreadLog};
use crate::pool::{By, OpenPools, Pool, PoolInner};
use crate::tx::{Covered, Tx};
use cenote_heap::{Progress, RecoveryReport, TraceOptions};
use cenote_layout::catalog::{AtRest, ClientRecord, LeaseRecord, PoolMode, PuddleRecord};
use cenote_layout::id::{PoolId, TypeId, Uuid};
use cenote_layout::types::TypeRecord;
use cenote_medium::planted::{Bug, planted};
use cenote_medium::{Durability, Medium, MediumOptions, RealMedium};
use cenote_store::{
    Access, DamagePolicy, FormatOptions, Keyring, OpenOptions, OpenReport, PoolInfo, PoolOptions,
    PowerLossPolicy, Rekeyed, StoreError, StoreInfo, VerifiedPuddle,
};
use cenote_tx::LogGroup;
use core::num::NonZero;
use core::ops::ControlFlow;
use core::time::Duration;
use std::collections::BTreeMap;
use std::path::Path;
use std::ptr::NonNull;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, PoisonError};

/// A store that is open in this process: exclusively, if for writing.
///
/// Handles are cheap to clone and may be used from any thread. When the last handle of the store and of its pools is dropped, the
/// store is closed; [`Store::close`] does it now and tells of errors. A process that dies without closing loses nothing that was
/// committed at its durability level.
#[derive(Clone, Debug)]
pub struct Store {
    pub(crate) inner: Arc<Inner>,
}

impl Drop for Store {
    /// In a forked child nothing of the store is dropped, as of [`Pool`].
    fn drop(&mut self) {
        if self.inner.refuse_forked().is_err() {
            core::mem::forget(Arc::clone(&self.inner));
        }
    }
}

pub(crate) struct Inner {
    /// Never given twice in a process.
    pub(crate) number: u64,
    /// How pools are traced.
    recovery: Mutex<RecoveryOptions>,
    pub(crate) store: cenote_store::Store,
    pub(crate) group: Arc<LogGroup>,
    pub(crate) report: OpenReport,
    /// Opened by [`Store::open_torn`]: the caller answers for values that a loss of power or damage may have torn.
    pub(crate) torn_allowed: bool,
    pub(crate) damage_policy: DamagePolicy,
    /// [`OpenOptions::verify_values`].
    pub(crate) verify_values: bool,
    /// [`OpenOptions::key`].
    key: Option<Arc<Keyring>>,
    /// What tracing found in pools, in this session.
    traced: Mutex<BTreeMap<PoolId, RecoveryReport>>,
    /// Types that came into the registry, or into this program, and were not compared: not zero
    /// where [`Inner::types_agree`] must be asked.
    pub(crate) unsettled: Arc<AtomicU64>,
    /// A type has one layout in this store and another in this program, in which another store
    /// agrees: pointers from there must not be followed here. Never false again, and `unsettled` is
    /// not zero then.
    contradicts: Mutex<bool>,
    pub(crate) pools: OpenPools,
    pub(crate) reclaims: crate::reclaim::Reclaims,
    pub(crate) attending: Arc<Attending>,
    logs: Mutex<Vec<Owned>>,
    /// Of the process that opened the store.
    fork_token: u64,
}

impl core::fmt::Debug for Inner {
    fn fmt(&self, f: &mut core::fmt::Formatter<'_>) -> core::fmt::Result {
        f.debug_struct("Store").field("uuid", &self.store.uuid()).finish_non_exhaustive()
    }
}

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

/// How pools are traced that were in use when power failed; see [`Store::set_recovery`].
#[derive(Clone)]
pub struct RecoveryOptions {
    /// Most threads that trace; `None`: as many as cores that this process may use.
    pub threads: Option<NonZero<usize>>,
    /// Told how far tracing has come, on the thread that opens the pool. It must not call the store.
    pub progress: Option<OnRecovery>,
    /// Least time between two reports; 50 ms by default. A pool that is traced in less reports nothing.
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

impl Inner {
    /// Traces the pool of this name with this store's options.
    pub(crate) fn recovery_of<R>(&self, pool: &str, trace: impl FnOnce(TraceOptions<'_>) -> R) -> R {
        let RecoveryOptions { threads, progress, interval } =
            self.recovery.lock().unwrap_or_else(PoisonError::into_inner).clone();
        let mut tell = |at: &Progress| {
            if let Some(progress) = &progress {
                progress(&RecoveryProgress { pool, blocks: at.blocks, superblocks: at.superblocks });
            }
            ControlFlow::Continue(())
        };
        let mut options = TraceOptions::default();
        options.workers = threads;
        options.interval = interval;
        options.progress = Some(&mut tell);
        trace(options)
    }
}

static NEXT_NUMBER: AtomicU64 = AtomicU64::new(1);

impl Store {
    /// Opens the store in a directory; formats it first if it is missing or empty.
    ///
    /// Recovery comes first: what a crash left unfinished is rolled back or completed before anything is handed out.
    ///
    /// # Errors
    /// [`Error::Medium`], [`Error::Format`], [`Error::Open`].
    pub fn open(path: impl AsRef<Path>) -> Result<Self> {
        let medium: Arc<dyn Medium> = Arc::new(RealMedium::open(
            path.as_ref(),
            &MediumOptions { create: true, ..MediumOptions::default() },
        )?);
        if !medium.exists("superblock")? {
            cenote_store::format(medium.clone(), &FormatOptions::default())?;
        }
        Self::open_on(medium, &OpenOptions::default())
    }

    /// Makes a store in a directory that is missing or empty; see [`FormatOptions`].
    ///
    /// # Errors
    /// [`Error::Medium`], [`Error::Format`].
    pub fn format(path: impl AsRef<Path>, options: &FormatOptions) -> Result<Uuid> {
        // Before a directory is made that would be of no use.
        cenote_store::check_options(options)?;
        let medium =
            RealMedium::open(path.as_ref(), &MediumOptions { create: true, ..MediumOptions::default() })?;
        Ok(cenote_store::format(Arc::new(medium), options)?)
    }

    /// Opens the store in a directory.
    ///
    /// # Errors
    /// [`Error::Medium`], [`Error::Open`]; [`Error::AsIs`] for a policy that takes [`Store::open_torn`].
    pub fn open_with(path: impl AsRef<Path>, options: &OpenOptions) -> Result<Self> {
        let read_only = options.access == Access::ReadOnly;
        let medium =
            RealMedium::open(path.as_ref(), &MediumOptions { read_only, ..MediumOptions::default() })?;
        Self::open_on(Arc::new(medium), options)
    }

    /// Opens the store on a medium, real or simulated.
    ///
    /// A pool whose values may not be what transactions made them can be looked at as blocks ([`Pool::heap`], [`Pool::check`], [`Pool::named_roots`]) but not as values:
    /// one that a loss of power may have torn and [`PowerLossPolicy::ReadOnly`] opens; one that has lost a puddle, or that a log names which is set aside;
    /// every pool of a store whose catalog has lost records. [`Pool::read`] and [`Pool::write`] of such a pool say why.
    ///
    /// # Errors
    /// As [`Store::open_with`].
    pub fn open_on(medium: Arc<dyn Medium>, options: &OpenOptions) -> Result<Self> {
        if options.power_loss == PowerLossPolicy::AsIs {
            return Err(Error::AsIs);
        }
        Self::open_any(medium, options, false)
    }

    /// Opens the store on a medium with any [`PowerLossPolicy`], and shows values of pools that are not whole, as far as the policies open them.
    ///
    /// # Errors
    /// As [`Store::open_with`].
    ///
    /// # Safety
    /// A pool that was in use, at level `process`, when power failed may hold torn values: bytes that are no value of their type. So may one that a log names which
    /// is set aside. In one that has lost a puddle, links of collections may lead to nothing; if the catalog has lost records, the same holds for all pools, and what
    /// the store says of types may be wrong. The caller answers for what is read from such pools.
    pub unsafe fn open_torn(medium: Arc<dyn Medium>, options: &OpenOptions) -> Result<Self> {
        Self::open_any(medium, options, true)
    }

    /// Says how pools are traced from now on that were in use when power failed: the first pool that is opened waits for that.
    pub fn set_recovery(&self, options: RecoveryOptions) {
        *self.inner.recovery.lock().unwrap_or_else(PoisonError::into_inner) = options;
    }

    fn open_any(medium: Arc<dyn Medium>, options: &OpenOptions, torn_allowed: bool) -> Result<Self> {
        let mut options = options.clone();
        // Pools that have moved are rewritten by what knows heaps; when, the caller says.
        options.relocation.rewriter.get_or_insert_with(|| Arc::new(cenote_relocate::PointerRewriter));
        let kept = (options.damage, options.verify_values, options.key.clone());
        let (store, report) = cenote_store::Store::open(medium, options)?;
        Ok(Self::over_with(store, report, torn_allowed, kept))
    }

    /// The facade of a store that a daemon keeps.
    pub(crate) fn over(store: cenote_store::Store, report: OpenReport) -> Self {
        Self::over_with(store, report, false, (DamagePolicy::default(), false, None))
    }

    fn over_with(
        store: cenote_store::Store,
        report: OpenReport,
        torn_allowed: bool,
        (damage_policy, verify_values, key): (DamagePolicy, bool, Option<Arc<Keyring>>),
    ) -> Self {
        let inner = Arc::new(Inner {
            number: NEXT_NUMBER.fetch_add(1, Ordering::Relaxed),
            recovery: Mutex::default(),
            unsettled: store.unsettled_types(),
            contradicts: Mutex::default(),
            store,
            group: LogGroup::new(),
            report,
            torn_allowed,
            damage_policy,
            verify_values,
            key,
            traced: Mutex::default(),
            pools: OpenPools::default(),
            reclaims: crate::reclaim::Reclaims::default(),
            attending: Arc::default(),
            logs: Mutex::new(Vec::new()),
            fork_token: cenote_sys::fork_guard::token(),
        });
        // Listed first: a type that is learned from now on looks at this store itself.
        local::opened(&inner);
        inner.types_agree();
        Self { inner }
    }

    /// What opening found and did: a crash, logs rolled back or forward, damage.
    #[must_use]
    pub fn report(&self) -> &OpenReport {
        &self.inner.report
    }

    /// What a commit survives here.
    #[must_use]
    pub fn durability(&self) -> Durability {
        self.inner.store.durability()
    }

    /// The store's identity.
    #[must_use]
    pub fn uuid(&self) -> Uuid {
        self.inner.store.uuid()
    }

    /// A handle of the store for the layer of objects (`cenote_object::Objects::open`).
    #[must_use]
    pub fn handle(&self) -> cenote_store::Handle {
        // SAFETY: this crate keeps the contract: it has no objects, and changes pools by its own
        // heaps; `as_raw` asks the same of its callers.
        unsafe { cenote_store::Handle::of(&self.inner.store) }
    }

    /// The store underneath. What tools ask of it is also here, as safe functions.
    ///
    /// # Safety
    /// What safe code believes of the store stays true, also of objects
    /// ([`cenote_store::Handle::as_raw`]). No caller opens a heap on its pools that allocates,
    /// frees or sets roots: a block of a type that a root or pointer leads to is taken for a value
    /// of that type. No type is registered that is not as its record says, no mapping of its window
    /// is changed through its medium, and [`cenote_store::PoolHandle::trace_done`] is called only
    /// by who has traced.
    #[must_use]
    pub unsafe fn as_raw(&self) -> &cenote_store::Store {
        &self.inner.store
    }

    /// What the store is: sizes, counts, where it lies.
    #[must_use]
    pub fn info(&self) -> StoreInfo {
        self.inner.store.info()
    }

    /// First address and bytes of the window: where all values lie.
    #[must_use]
    pub fn window(&self) -> (u64, u64) {
        self.inner.store.window()
    }

    /// All registered types, by id.
    #[must_use]
    pub fn types(&self) -> Vec<Arc<TypeRecord>> {
        self.inner.store.types()
    }

    /// A registered type.
    #[must_use]
    pub fn type_record(&self, id: TypeId) -> Option<Arc<TypeRecord>> {
        self.inner.store.type_record(id)
    }

    /// All puddles, those of logs included, by address.
    #[must_use]
    pub fn puddle_records(&self) -> Vec<PuddleRecord> {
        self.inner.store.puddle_records()
    }

    /// Sessions with a log space: this one, and those that are not recovered or whose logs are set aside.
    #[must_use]
    pub fn client_records(&self) -> Vec<ClientRecord> {
        self.inner.store.client_records()
    }

    /// Which sessions may write to which pools.
    #[must_use]
    pub fn lease_records(&self) -> Vec<LeaseRecord> {
        self.inner.store.lease_records()
    }

    /// Pools that must be traced after a loss of power, before they can be used.
    #[must_use]
    pub fn pools_due(&self) -> Vec<PoolId> {
        self.inner.store.pools_due()
    }

    /// A file of the store (`superblock`, `puddles/...`), as it is on the medium.
    ///
    /// # Errors
    /// [`Error::Medium`].
    pub fn read_file(&self, name: &str) -> Result<Vec<u8>> {
        Ok(self.inner.store.medium().read(name)?)
    }

    /// Files that make a program's open of a pool or an attach of an object fail, or that no psync
    /// can be written into. Changes nothing. Damage that opening the store found is in
    /// [`Store::report`], damage that takes a pool's key in [`Pool::damage`].
    ///
    /// # Errors
    /// [`Error::Store`] if the medium reports an error other than damage.
    pub fn damaged_files(&self) -> Result<Vec<cenote_store::Damage>> {
        Ok(self.inner.store.damaged_files()?)
    }

    /// The pools of the store.
    #[must_use]
    pub fn pools(&self) -> Vec<PoolInfo> {
        self.inner.store.pools()
    }

    /// Opens a pool for writing; creates it first if there is none of this name. In a store that
    /// was opened with a key ([`OpenOptions::key`]) it is created under that key, in authenticated
    /// mode.
    ///
    /// # Errors
    /// [`Error::Store`], [`Error::HeapOpen`], [`Error::HeapRecover`].
    pub fn pool(&self, name: &str) -> Result<Pool> {
        match self.pool_with(name, Access::ReadWrite) {
            Err(Error::Store(StoreError::PoolUnknown { .. })) => {
                match self.inner.store.create_pool(name, &self.inner.usual_pool()) {
                    // Another thread may have been faster.
                    Ok(_) | Err(StoreError::PoolExists { .. }) => self.pool_with(name, Access::ReadWrite),
                    Err(error) => Err(error.into()),
                }
            }
            other => other,
        }
    }

    /// Creates a pool and opens it for writing.
    ///
    /// # Errors
    /// [`Error::Store`] if the name is taken or impossible, or there is no space.
    pub fn create_pool(&self, name: &str, options: &PoolOptions) -> Result<Pool> {
        self.inner.refuse_forked()?;
        crate::check::refuse_within(&self.inner, name)?;
        self.inner.store.create_pool(name, options)?;
        self.open_pool(name, Access::ReadWrite, options.key.as_deref())
    }

    /// Opens a pool that is there. Opening one that is open in this process already gives another handle of the same.
    ///
    /// # Errors
    /// [`Error::Store`], [`Error::HeapOpen`], [`Error::HeapRecover`].
    pub fn pool_with(&self, name: &str, access: Access) -> Result<Pool> {
        self.open_pool(name, access, None)
    }

    /// The same for a pool that is protected at rest under this key. Without one it is [`OpenOptions::key`], where there is that.
    ///
    /// Such a pool's memory is this process's alone, and every crash takes it back to its last [`Pool::psync`]. A load of a page that fails its check is `SIGBUS`, after a message;
    /// [`Pool::verify`] finds such pages before, and [`Pool::read_at`] reads around them.
    ///
    /// # Errors
    /// As [`Store::pool_with`]; [`StoreError::AtRest`] for a key that is missing or wrong, [`StoreError::NotProtected`] for one that is of no use.
    pub fn pool_with_key(&self, name: &str, access: Access, key: &Keyring) -> Result<Pool> {
        self.open_pool(name, access, Some(key))
    }

    /// Checks every page of a pool, as [`Pool::verify`], without opening its heap: also of one in which that is damaged, so that opening it would end the program. The key of a protected pool is that of
    /// [`OpenOptions::key`].
    ///
    /// # Errors
    /// [`Error::Store`], as of [`Store::pool_with`] for reading.
    pub fn verify_pool(
        &self,
        name: &str,
        progress: &mut dyn FnMut(u64, u64) -> bool,
    ) -> Result<Vec<VerifiedPuddle>> {
        self.inner.refuse_forked()?;
        Ok(self.inner.store.open_pool(name, Access::ReadOnly)?.verify(progress))
    }

    fn open_pool(&self, name: &str, access: Access, key: Option<&Keyring>) -> Result<Pool> {
        self.inner.pools.find_or_open(&self.inner, name, access, By::Key(key)).map(|inner| Pool { inner })
    }

    /// Puts a pool that is protected at rest, and not open, under another key, in constant time: an
    /// error says that the old key is the pool's, the answer that the new one is. Who had the old
    /// key *and* a copy of what lay on the medium then can still read that copy.
    ///
    /// # Errors
    /// [`Error::Store`]: the old key is wrong, the pool has none, it is open; as of [`Pool::psync`].
    pub fn rekey_pool(&self, name: &str, old: &Keyring, new: &Keyring) -> Result<Rekeyed<StoreError>> {
        self.inner.refuse_forked()?;
        crate::check::refuse_within(&self.inner, name)?;
        let concerns = |other: &str| other == name;
        Ok(self.inner.pools.while_closed(concerns, || self.inner.store.rekey_pool(name, old, new))?)
    }

    /// Creates a pool and does not open it: the first who opens it finds it [fresh](cenote_store::PoolStart::Fresh).
    ///
    /// # Errors
    /// As [`Store::create_pool`].
    pub fn add_pool(&self, name: &str, options: &PoolOptions) -> Result<PoolId> {
        Ok(self.inner.store.create_pool(name, options)?)
    }

    /// Fails as [`Store::create_pool`] would, as far as that can be told without making anything; for dry runs.
    ///
    /// # Errors
    /// A bad or taken name, a size that no puddle can have, no room in the window.
    pub fn refuse_new_pool(&self, name: &str, options: &PoolOptions) -> Result<()> {
        Ok(self.inner.store.refuse_new_pool(name, options)?)
    }

    /// Removes a pool and all that is in it, for good.
    ///
    /// # Errors
    /// [`Error::Store`] if there is none of this name or it is in use.
    pub fn remove_pool(&self, name: &str) -> Result<()> {
        Ok(self.inner.store.remove_pool(name)?)
    }

    /// Runs a transaction over several pools of this store: all of its changes happen, or none, also across a crash. Otherwise as [`Pool::write`].
    ///
    /// Pools in shadowed mode go back to their last psync after a loss of power: to find such a transaction in all of them or in none, psync them together
    /// ([`Store::psync`]).
    ///
    /// # Errors
    /// [`Error::Pools`] if there is no pool, or one of another store; [`Error::Modes`] for pools of both modes; else as [`Pool::write`].
    pub fn write<R, E: From<Error>>(
        &self,
        pools: &[&Pool],
        body: impl FnOnce(&mut Tx<'_>) -> Result<R, E>,
    ) -> Result<R, E> {
        let mut pools: Vec<&PoolInner> = pools.iter().map(|pool| &*pool.inner).collect();
        if pools.is_empty() || pools.iter().any(|pool| !Arc::ptr_eq(&pool.store, &self.inner)) {
            return Err(Error::Pools.into());
        }
        // One order for everybody, so that two transactions never wait for each other.
        pools.sort_by_key(|pool| pool.handle.id());
        pools.dedup_by_key(|pool| pool.handle.id());
        let mode = |pool: &PoolInner| (pool.handle.record().mode, pool.hidden);
        if let Some(other) = pools.iter().find(|pool| mode(pool) != mode(pools[0])) {
            let name = |pool: &PoolInner| pool.handle.name().to_string();
            return Err(Error::Modes { first: name(pools[0]), other: name(other) }.into());
        }
        let result = Tx::run(Covered::Many(&pools), body);
        if pools.iter().any(|pool| pool.psync_on_commit.load(Ordering::Relaxed) > 0) && result.is_ok() {
            crate::psync::after_commit(&pools)?;
        }
        result
    }

    /// Closes the store and says whether that worked. Every pool handle must be gone.
    ///
    /// # Errors
    /// [`Error::Store`]: in use, or an error of the medium; then the next open recovers, and nothing committed is lost.
    pub fn close(self) -> Result<()> {
        self.inner.refuse_forked()?;
        let attending = Arc::clone(&self.inner.attending);
        let _paused = attending.pause();
        let handles = Arc::strong_count(&self.inner) - 1;
        if handles > 0 {
            return Err(StoreError::InUse { handles }.into());
        }
        let store = self.inner.store.clone();
        // Contexts and their handles go first.
        drop(self);
        Ok(store.close()?)
    }

    /// Lets go of the store as a crash of this process would: nothing more is written, also not by other handles. For crash tests.
    pub fn abandon(self) {
        self.inner.store.clone().abandon();
    }
}

impl Inner {
    /// Refuses to go on in a process that was forked from the one that opened the store.
    #[inline]
    pub(crate) fn refuse_forked(&self) -> Result<()> {
        if !cenote_sys::fork_guard::is_current(self.fork_token) {
            return Err(StoreError::Forked.into());
        }
        Ok(())
    }

    /// How a pool is made of which the program says a name alone: under the store's key, if it asks
    /// for protection.
    fn usual_pool(&self) -> PoolOptions {
        match self.key.clone().filter(|_| self.store.asks_for_protection()) {
            None => PoolOptions::default(),
            key => PoolOptions {
                mode: PoolMode::Shadowed,
                at_rest: AtRest::Authenticated,
                key,
                ..PoolOptions::default()
            },
        }
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
        self.reclaims.note_used();
        let lease = if hidden { self.store.acquire_hidden_log() } else { self.store.acquire_log() }?;
        // If that fails some transaction in it was never ended: it is not given out again, and keeps the store from counting as closed.
        let context = local::bind(self, &lease)?;
        let log = Box::new(ThreadLog {
            context: Some(context),
            lease: Some(lease),
            active: core::cell::Cell::new(false),
        });
        let owned = Owned(NonNull::from(Box::leak(log)), self.fork_token);
        self.logs.lock().unwrap_or_else(PoisonError::into_inner).push(owned);
        Ok(owned)
    }

    /// Takes a log back from a thread that ends.
    pub(crate) fn release_thread_log(&self, owned: Owned) {
        let mut logs = self.logs.lock().unwrap_or_else(PoisonError::into_inner);
        let Some(at) = logs.iter().position(|log| log.0 == owned.0) else { return };
        // SAFETY: in the list, so not freed. A thread that ends within a transaction (`process::exit` in its closure) never goes on
        // with it: the log stays as it is, for the next opener to roll back.
        if unsafe { (*owned.0.as_ptr()).active.get() } {
            return;
        }
        logs.swap_remove(at);
        drop(logs);
        self.free_log(owned);
    }

    fn free_log(&self, owned: Owned) {
        // SAFETY: made by `Box::leak` in `make_thread_log`, out of the list now, and its thread has ended or the store is closing with no
        // handle left, so nobody uses it.
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
        local::closed(self);
        let logs = core::mem::take(&mut *self.logs.lock().unwrap_or_else(PoisonError::into_inner));
        for log in logs {
            // SAFETY: in the list until now, so not freed. The thread that wrote it last has let go
            // of the store since. If it left a transaction the log stays, and with it the lease,
            // which keeps the store from counting as closed: the next opener rolls back.
            let left = unsafe { (*log.0.as_ptr()).active.get() };
            if !left || planted(Bug::LeftTransactionClosed) {
                self.free_log(log);
            }
        }
    }
}

impl Drop for Inner {
    fn drop(&mut self) {
        self.reclaims.cancel();
        // Contexts first: they write to mappings that the store is about to take away.
        self.drop_logs();
    }
}
