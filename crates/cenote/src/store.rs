//! Operations of a program on a store: it opens it, asks about it, opens its pools, closes it.

use crate::attend::{Attending, attending};
use crate::checking::refuse_within;
use crate::error::{Error, Result};
use crate::extensions::Extensions;
use crate::frames::Covered;
use crate::open_pool::{Pool, PoolInner};
use crate::open_pools::{Authority, OpenPools, pools_of};
use crate::psync::after_commit;
use crate::reclaim::Reclaims;
use crate::recovery::RecoveryOptions;
use crate::running::run;
use crate::session::{Inner, Policy, Store};
use crate::tx::Tx;
use cenote_layout::catalog::{AtRest, ClientRecord, LeaseRecord, PoolMode, PuddleRecord};
use cenote_layout::id::{PoolId, TypeId, Uuid};
use cenote_layout::types::TypeRecord;
use cenote_medium::{Durability, Medium, MediumOptions, RealMedium};
use cenote_store::{
    Access, FormatOptions, Keyring, OpenOptions, OpenReport, PoolInfo, PoolOptions,
    PowerLossPolicy, Rekeyed, StoreError, StoreInfo, VerifiedPuddle,
};
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::Ordering;

impl Store {
    /// Opens the store in a directory; formats the directory first if it is missing or empty.
    ///
    /// Recovery comes first: it rolls back or completes all transactions that a crash left
    /// unfinished. Only then this function returns.
    ///
    /// # Errors
    /// [`Error::Medium`], [`Error::Format`], [`Error::Open`].
    pub fn open(path: impl AsRef<Path>) -> Result<Self> {
        Self::open_at(path.as_ref())
    }

    // One function for all kinds of paths, as are those below: programs compile none.
    fn open_at(path: &Path) -> Result<Self> {
        let medium: Arc<dyn Medium> = Arc::new(RealMedium::open(
            path,
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
        Self::format_at(path.as_ref(), options)
    }

    fn format_at(path: &Path, options: &FormatOptions) -> Result<Uuid> {
        // Before a directory is made that would be of no use.
        cenote_store::check_options(options)?;
        let medium =
            RealMedium::open(path, &MediumOptions { create: true, ..MediumOptions::default() })?;
        Ok(cenote_store::format(Arc::new(medium), options)?)
    }

    /// Opens the store in a directory.
    ///
    /// # Errors
    /// [`Error::Medium`], [`Error::Open`]; [`Error::AsIs`] for a policy that takes
    /// [`Store::open_torn`].
    pub fn open_with(path: impl AsRef<Path>, options: &OpenOptions) -> Result<Self> {
        Self::open_at_with(path.as_ref(), options)
    }

    fn open_at_with(path: &Path, options: &OpenOptions) -> Result<Self> {
        let read_only = options.access == Access::ReadOnly;
        let medium =
            RealMedium::open(path, &MediumOptions { read_only, ..MediumOptions::default() })?;
        Self::open_on(Arc::new(medium), options)
    }

    /// Opens the store on a medium, real or simulated.
    ///
    /// Some pools may hold values that no transaction made. Programs can look at them as blocks
    /// ([`Pool::heap`], [`Pool::check`], [`Pool::named_roots`]), but not as values; [`Pool::read`]
    /// and [`Pool::write`] return an error that says why. These are:
    ///
    /// * a pool that a loss of power may have torn, opened by [`PowerLossPolicy::ReadOnly`];
    /// * a pool that has lost a puddle, or that a log names which is set aside;
    /// * every pool of a store whose catalog has lost records.
    ///
    /// # Errors
    /// As [`Store::open_with`].
    pub fn open_on(medium: Arc<dyn Medium>, options: &OpenOptions) -> Result<Self> {
        if options.power_loss == PowerLossPolicy::AsIs {
            return Err(Error::AsIs);
        }
        Self::open_any(medium, options, false)
    }

    /// Opens the store on a medium with any [`PowerLossPolicy`], and shows values of pools that are
    /// not whole, as far as the policies open them.
    ///
    /// # Errors
    /// As [`Store::open_with`].
    ///
    /// # Safety
    /// A pool that was in use, at level `process`, when power failed may hold torn values: bytes
    /// that are no value of their type. So may one that a log names which is set aside. In one
    /// that has lost a puddle, links of collections may lead to nothing; if the catalog has lost
    /// records, the same holds for all pools, and what the store says of types may be wrong.
    /// The caller answers for what is read from such pools.
    pub unsafe fn open_torn(medium: Arc<dyn Medium>, options: &OpenOptions) -> Result<Self> {
        Self::open_any(medium, options, true)
    }

    /// Says how pools are traced from now on that were in use when power failed: the first pool
    /// that is opened waits for that.
    pub fn set_recovery(&self, options: RecoveryOptions) {
        self.inner.set_recovery(options);
    }

    fn open_any(
        medium: Arc<dyn Medium>,
        options: &OpenOptions,
        torn_allowed: bool,
    ) -> Result<Self> {
        let mut options = options.clone();
        // Pools that have moved are rewritten by what knows heaps; when, the caller says.
        options
            .relocation
            .rewriter
            .get_or_insert_with(|| Arc::new(cenote_relocate::PointerRewriter));
        let policy = Policy {
            torn_allowed,
            damage: options.damage,
            verify_values: options.verify_values,
            key: options.key.clone(),
        };
        let (store, report) = cenote_store::Store::open(medium, options)?;
        Ok(Self::over_with(store, report, policy))
    }

    /// The facade of a store that a daemon keeps.
    pub(crate) fn over(store: cenote_store::Store, report: OpenReport) -> Self {
        Self::over_with(store, report, Policy::default())
    }

    fn over_with(store: cenote_store::Store, report: OpenReport, policy: Policy) -> Self {
        let (reclaims, attending) = (Arc::<Reclaims>::default(), Arc::<Attending>::default());
        let pools = OpenPools::new(vec![reclaims.clone(), attending.clone()]);
        let parts = Extensions::new(vec![Arc::new(pools), reclaims, attending]);
        let inner = Inner::new(store, report, policy, parts);
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
    /// All that safe code believes of the store stays true, also of objects
    /// ([`cenote_store::Handle::as_raw`]). No caller opens a heap on its pools that allocates,
    /// frees or sets roots: a block of a type that a root or pointer leads to is taken for a value
    /// of that type. No type is registered that is not as its record says, no mapping of its window
    /// is changed through its medium, and [`cenote_store::PoolHandle::trace_done`] is called only
    /// after tracing.
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

    /// The lines of files that were written back: [`Medium::line_writes`] of the store's medium.
    /// `None`: it does not count them. A real medium does not.
    #[must_use]
    pub fn line_writes(&self) -> Option<Vec<(String, u64, u64)>> {
        self.inner.store.medium().line_writes()
    }

    /// Sessions with a log space: this one, and those that are not recovered or whose logs are set
    /// aside.
    #[must_use]
    pub fn client_records(&self) -> Vec<ClientRecord> {
        self.inner.store.client_records()
    }

    /// The distance to add to an address in the logs of a session that waited while the window
    /// moved.
    #[must_use]
    pub fn log_distance(&self, client: Uuid) -> u64 {
        self.inner.store.log_distance(client)
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

    /// Opens a pool for writing; creates it first if the store has none of this name. If the store
    /// was opened with a key ([`OpenOptions::key`]), a new pool is protected under that key, in
    /// authenticated mode.
    ///
    /// # Errors
    /// [`Error::Store`], [`Error::HeapOpen`], [`Error::HeapRecover`].
    pub fn pool(&self, name: &str) -> Result<Pool> {
        match self.pool_with(name, Access::ReadWrite) {
            Err(Error::Store(StoreError::PoolUnknown { .. })) => {
                match self.inner.store.create_pool(name, &self.usual_pool()) {
                    // Another thread may have been faster.
                    Ok(_) | Err(StoreError::PoolExists { .. }) => {
                        self.pool_with(name, Access::ReadWrite)
                    }
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
        refuse_within(&self.inner, name)?;
        self.inner.store.create_pool(name, options)?;
        self.open_pool(name, Access::ReadWrite, options.key.as_deref())
    }

    /// Opens a pool that is there. Opening one that is open in this process already gives another
    /// handle of the same.
    ///
    /// # Errors
    /// [`Error::Store`], [`Error::HeapOpen`], [`Error::HeapRecover`].
    pub fn pool_with(&self, name: &str, access: Access) -> Result<Pool> {
        self.open_pool(name, access, None)
    }

    /// The same for a pool that is protected at rest under this key. Without one it is
    /// [`OpenOptions::key`], where there is that.
    ///
    /// Such a pool's memory is this process's alone, and every crash takes it back to its last
    /// [`Pool::psync`]. A load of a page that fails its check is `SIGBUS`, after a message;
    /// [`Pool::verify`] finds such pages before, and [`Pool::read_at`] reads around them.
    ///
    /// # Errors
    /// As [`Store::pool_with`]; [`StoreError::AtRest`] for a key that is missing or wrong,
    /// [`StoreError::NotProtected`] for one that is of no use.
    pub fn pool_with_key(&self, name: &str, access: Access, key: &Keyring) -> Result<Pool> {
        self.open_pool(name, access, Some(key))
    }

    /// Checks every page of a pool, as [`Pool::verify`], without opening its heap. So it also
    /// checks a pool whose heap is so damaged that opening it would end the program. The key of a
    /// protected pool is that of [`OpenOptions::key`].
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
        pools_of(&self.inner)
            .find_or_open(&self.inner, name, access, Authority::Key(key))
            .map(|inner| Pool { inner })
    }

    /// Puts a pool that is protected at rest, and not open, under another key, in constant time: an
    /// error says that the old key is the pool's, the answer that the new one is. A holder of the
    /// old key *and* of an older copy of the files can still read that copy.
    ///
    /// # Errors
    /// [`Error::Store`]: the old key is wrong, the pool has none, it is open; as of
    /// [`Pool::psync`].
    pub fn rekey_pool(
        &self,
        name: &str,
        old: &Keyring,
        new: &Keyring,
    ) -> Result<Rekeyed<StoreError>> {
        self.inner.refuse_forked()?;
        refuse_within(&self.inner, name)?;
        let concerns = |other: &str| other == name;
        Ok(pools_of(&self.inner)
            .while_closed(concerns, || self.inner.store.rekey_pool(name, old, new))?)
    }

    /// Creates a pool and does not open it: its first opener finds it
    /// [fresh](cenote_store::PoolStart::Fresh).
    ///
    /// # Errors
    /// As [`Store::create_pool`].
    pub fn add_pool(&self, name: &str, options: &PoolOptions) -> Result<PoolId> {
        Ok(self.inner.store.create_pool(name, options)?)
    }

    /// Fails as [`Store::create_pool`] would, as far as that can be told without making anything;
    /// for dry runs.
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

    /// Runs a transaction over several pools of this store: all of its changes happen, or none,
    /// also across a crash. Otherwise as [`Pool::write`].
    ///
    /// Pools in shadowed mode go back to their last psync after a loss of power: to find such a
    /// transaction in all of them or in none, psync them together ([`Store::psync`]).
    ///
    /// # Errors
    /// [`Error::Pools`] if there is no pool, or one of another store; [`Error::Modes`] for pools of
    /// both modes; else as [`Pool::write`].
    pub fn write<R, E: From<Error>>(
        &self,
        pools: &[&Pool],
        body: impl FnOnce(&mut Tx<'_>) -> Result<R, E>,
    ) -> Result<R, E> {
        let pools = self.in_order(pools)?;
        let result = run(Covered::Many(&pools), body);
        if pools.iter().any(|pool| pool.psync_on_commit.load(Ordering::Relaxed) > 0)
            && result.is_ok()
        {
            after_commit(&pools)?;
        }
        result
    }

    /// The pools of a transaction.
    fn in_order<'p>(&self, pools: &[&'p Pool]) -> Result<Vec<&'p PoolInner>> {
        let mut pools: Vec<&PoolInner> = pools.iter().map(|pool| &*pool.inner).collect();
        if pools.is_empty() || pools.iter().any(|pool| !Arc::ptr_eq(&pool.store, &self.inner)) {
            return Err(Error::Pools);
        }
        // One order for all threads, so that two transactions never wait for each other.
        pools.sort_by_key(|pool| pool.handle.id());
        pools.dedup_by_key(|pool| pool.handle.id());
        let mode = |pool: &PoolInner| (pool.handle.record().mode, pool.hidden);
        if let Some(other) = pools.iter().find(|pool| mode(pool) != mode(pools[0])) {
            let name = |pool: &PoolInner| pool.handle.name().to_string();
            return Err(Error::Modes { first: name(pools[0]), other: name(other) });
        }
        Ok(pools)
    }

    /// Closes the store, and returns an error if that fails. Drop all handles of pools first.
    ///
    /// # Errors
    /// [`Error::Store`]: in use, or an error of the medium; then the next open recovers, and no
    /// commit is lost.
    pub fn close(self) -> Result<()> {
        self.inner.refuse_forked()?;
        let attending = attending(&self.inner).clone();
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

    /// Lets go of the store as a crash of this process would: nothing more is written, also not by
    /// other handles. For crash tests.
    pub fn abandon(self) {
        self.inner.store.clone().abandon();
    }

    /// How a pool is made of which the program says a name alone: under the store's key, if it asks
    /// for protection.
    fn usual_pool(&self) -> PoolOptions {
        match self.inner.policy.key.clone().filter(|_| self.inner.store.asks_for_protection()) {
            None => PoolOptions::default(),
            key => PoolOptions {
                mode: PoolMode::Shadowed,
                at_rest: AtRest::Authenticated,
                key,
                ..PoolOptions::default()
            },
        }
    }
}
