//! An open store: what all its handles share, and what every operation checks first.

pub(crate) mod commit;
pub(crate) mod extensions;
pub(crate) mod journal_names;
pub(crate) mod listing;
pub(crate) mod log_list;
pub(crate) mod pool_core;
pub(crate) mod region;
pub(crate) mod sealing;
pub(crate) mod types;
pub(crate) mod watch;

use crate::kernel::catalog::Catalog;
use crate::kernel::catalog::journals::Journals;
use crate::kernel::interface::error::StoreError;
use crate::kernel::interface::options::{OpenOptions, PowerLossPolicy};
use crate::kernel::interface::report::{Damage, StoreInfo};
use crate::kernel::puddles::prepared::PreparedPuddle;
use crate::kernel::puddles::puddle::Puddle;
use crate::kernel::puddles::stamps::Stamps;
use crate::kernel::puddles::window::{Space, StoreWindow};
use crate::kernel::store::extensions::Extensions;
use crate::kernel::store::log_list::Logs;
use crate::kernel::store::pool_core::PoolCore;
use crate::kernel::superblock::fence::Fence;
use cenote_journal::Journal;
use cenote_layout::catalog::PuddleRecord;
use cenote_layout::header::FORMAT_VERSION;
use cenote_layout::id::{PoolId, Uuid};
use cenote_layout::puddle::Role;
use cenote_layout::superblock::{ORIGIN_COPY, ORIGIN_OWN, Superblock};
use cenote_layout::types::TypeRecord;
use cenote_log::CrashKind;
use cenote_medium::planted::{Bug, planted};
use cenote_medium::{
    Durability, LockGuard, Medium, MediumError, MediumInfo, OwnedMedium, Persistence,
};
use cenote_sys::{fault, fork_guard};
use core::any::Any;
use core::fmt;
use core::ptr::NonNull;
use core::sync::atomic::{AtomicBool, Ordering};
use std::collections::{BTreeMap, BTreeSet};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, TryLockError, Weak};
use std::time::{Duration, Instant};

/// The lock file.
pub(crate) const LOCK: &str = "lock";

/// An open store. Cloning is cheap; the store is closed when the last handle of it or of its pools
/// is dropped, or by [`Store::close`].
#[derive(Clone)]
pub struct Store(Arc<Inner>);

impl fmt::Debug for Store {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Store({} at {})", self.0.uuid, self.0.info.path)
    }
}

/// What all handles share.
#[derive(Debug)]
pub(crate) struct Inner {
    pub(crate) window: StoreWindow,
    pub(crate) persistence: Persistence,
    pub(crate) medium: OwnedMedium,
    pub(crate) info: MediumInfo,
    pub(crate) uuid: Uuid,
    pub(crate) writable: bool,
    pub(crate) options: OpenOptions,
    /// Puddles are mapped when their pool is opened: the simulated medium compares memory at every
    /// event.
    pub(crate) eager: bool,
    pub(crate) durability: Durability,
    pub(crate) token: u64,
    pub(crate) poisoned: Arc<crate::kernel::superblock::poison::Poisoned>,
    pub(crate) stamps: Stamps,
    /// Nothing is written on drop: the store is not open yet, or abandoned, or closed already.
    pub(crate) silent: AtomicBool,
    /// Held during the replay of a client's logs: one client at a time, as clients may share a
    /// pool. Taken before the control lock, which is not held meanwhile.
    pub(crate) replaying: Mutex<()>,
    /// The process that keeps the store, if it is another one.
    pub(crate) remote: Option<Box<dyn Remote>>,
    /// What stands above the kernel.
    pub(crate) parts: Extensions,
    /// Keeps this session from writing into a store that is not its own any more. `None`: it writes
    /// no control data.
    pub(crate) fence: Option<Arc<Fence>>,
    /// Journals beside that of pools: of objects.
    pub(crate) journals: Mutex<Vec<Weak<Journal>>>,
    /// Held while such a journal is brought into files, and while a backup copies these.
    pub(crate) files_moving: Mutex<()>,
    /// The lock on the directory of primaries, from the moment on when there is one.
    pub(crate) primaries: Mutex<Option<LockGuard>>,
    pub(crate) control: Mutex<Control>,
}

/// The process that keeps the store, as the kernel of a client sees it: it has the catalog and the
/// files. What a client changes, it asks for first.
pub(crate) trait Remote: Any + Send + Sync + fmt::Debug {
    /// Registers types.
    ///
    /// # Errors
    /// It cannot be reached, or refuses. Nothing has changed here.
    fn register_types(&self, types: &[&TypeRecord]) -> Result<(), StoreError>;

    /// Notes that a pool's heap was traced.
    ///
    /// # Errors
    /// As [`Remote::register_types`].
    fn trace_done(&self, pool: PoolId) -> Result<(), StoreError>;

    /// Takes space in the file of a puddle.
    ///
    /// # Errors
    /// As [`Remote::register_types`]; there is no space.
    fn ensure_space(&self, pool: PoolId, addr: u64, len: u64) -> Result<(), StoreError>;

    /// Gets a puddle for logs. A log space comes with its header.
    ///
    /// # Errors
    /// As [`Remote::ensure_space`].
    fn log_puddle(
        &self,
        inner: &Inner,
        control: &mut Control,
        role: Role,
        size: u64,
    ) -> Result<PuddleRecord, StoreError>;
}

/// What changes, under one lock.
#[derive(Debug)]
pub(crate) struct Control {
    pub(crate) superblock: Superblock,
    pub(crate) catalog: Catalog,
    pub(crate) space: Space,
    /// Made by `Box::leak`, freed when the store is dropped.
    pub(crate) puddles: BTreeMap<Uuid, NonNull<Puddle>>,
    /// Puddles that are removed; references to them may still be there.
    pub(crate) graveyard: Vec<NonNull<Puddle>>,
    pub(crate) pools: BTreeMap<PoolId, Arc<PoolCore>>,
    /// Found at open.
    pub(crate) damage: Vec<Damage>,
    /// Pools that were in use when their last writer ended without closing the store, and how that
    /// ended.
    pub(crate) dirty: BTreeMap<PoolId, CrashKind>,
    pub(crate) logs: Logs,
    /// A spare puddle that no record names yet.
    pub(crate) ahead: PreparedPuddle,
    pub(crate) journals: Journals,
    /// What stands above the kernel, and changes under the lock.
    pub(crate) parts: Extensions,
    /// Of a copy of an open store: pools that were found whole since it was opened.
    pub(crate) checked_pools: BTreeSet<PoolId>,
    /// Of a copy of an open store: objects that were there at open and were not found whole since.
    pub(crate) unchecked_objects: BTreeSet<Uuid>,
    /// This session.
    pub(crate) client: Uuid,
    pub(crate) registration: Option<fault::Registration>,
    pub(crate) lock: Option<[LockGuard; 4]>,
}

impl Control {
    /// Of a session that has done nothing yet.
    pub(crate) fn new(
        superblock: Superblock,
        catalog: Catalog,
        space: Space,
        client: Uuid,
        parts: Extensions,
    ) -> Self {
        Self {
            superblock,
            catalog,
            space,
            puddles: BTreeMap::new(),
            graveyard: Vec::new(),
            pools: BTreeMap::new(),
            damage: Vec::new(),
            dirty: BTreeMap::new(),
            logs: Logs::default(),
            ahead: PreparedPuddle::default(),
            journals: Journals::default(),
            parts,
            checked_pools: BTreeSet::new(),
            unchecked_objects: BTreeSet::new(),
            client,
            registration: None,
            lock: None,
        }
    }
}

// SAFETY: the pointers are to `Puddle`s, which are `Sync`, owned by this value, and freed only with
// it.
unsafe impl Send for Control {}

impl Store {
    /// Lets go of the store as a crash of this process would: mappings and locks are given back,
    /// nothing is written. For crash tests. Other handles keep the mappings until they are
    /// dropped.
    pub fn abandon(self) {
        self.0.silent.store(true, Ordering::Release);
    }

    /// Stops acknowledging anything: every further operation that writes fails. For layers above
    /// that find out that what is on the medium is no longer known.
    pub fn poison(&self, reason: &str) {
        self.0.poison(reason);
    }

    /// Fails if nothing may be acknowledged: the store is poisoned, or this process is a fork of
    /// its opener.
    ///
    /// # Errors
    /// [`StoreError::Forked`], [`StoreError::Poisoned`], [`StoreError::MetadataLost`],
    /// [`StoreError::LogLost`].
    #[inline]
    pub fn check_usable(&self) -> Result<(), StoreError> {
        self.0.poisoned.check_usable()
    }

    /// Whether both are handles of the same open store.
    #[must_use]
    pub fn is_same(&self, other: &Self) -> bool {
        Arc::ptr_eq(&self.0, &other.0)
    }

    /// A number that no other store has that is open in this process.
    #[must_use]
    pub fn instance(&self) -> usize {
        Arc::as_ptr(&self.0).addr()
    }

    /// Whether this process is a fork of the one that opened the store: then it has no access.
    #[inline]
    #[must_use]
    pub fn is_forked(&self) -> bool {
        !fork_guard::is_current(self.0.token)
    }

    /// A number of the store and of this boot of the machine, never 0: what processes share in
    /// memory under another one means nothing any more.
    #[must_use]
    pub fn epoch(&self) -> u64 {
        let boot = u128::from_le_bytes(self.0.medium.boot_id().0);
        let both = boot ^ u128::from_le_bytes(self.0.uuid.0).rotate_left(5);
        (both as u64 ^ (both >> 64) as u64) | 1
    }

    /// The store's identity.
    #[must_use]
    pub fn uuid(&self) -> Uuid {
        self.0.uuid
    }

    /// This session's identity: what its logs and leases are under.
    #[must_use]
    pub fn client(&self) -> Uuid {
        self.0.control().client
    }

    /// First address and bytes of the window.
    #[must_use]
    pub fn window(&self) -> (u64, u64) {
        (self.0.window.base(), self.0.window.len())
    }

    /// The durability level of this session's commits.
    #[must_use]
    pub fn durability(&self) -> Durability {
        self.0.durability
    }

    /// How stores are made durable.
    #[inline]
    #[must_use]
    pub fn persistence(&self) -> Persistence {
        self.0.persistence
    }

    /// The medium that the store lies on.
    #[must_use]
    pub fn medium(&self) -> &Arc<dyn Medium> {
        self.0.medium.medium()
    }

    /// The same, to change files of: for the layer of objects.
    ///
    /// # Safety
    /// The caller changes files that are its own: primaries of objects, snapshots, the journal of
    /// objects.
    #[must_use]
    pub unsafe fn files(&self) -> &OwnedMedium {
        &self.0.medium
    }

    /// Whether this session may write.
    #[must_use]
    pub fn is_writable(&self) -> bool {
        self.0.writable
    }

    /// The puddle of an open pool that holds the byte at `addr`. Constant time, no lock.
    #[inline]
    #[must_use]
    pub fn puddle_of(&self, addr: u64) -> Option<&Puddle> {
        self.0.window.find(addr)
    }

    /// Whether the byte at `addr` is in a puddle of another pool than `pool`, open or not. Of a
    /// pool that is not open the catalog says so, under a lock.
    #[must_use]
    pub fn is_of_another(&self, pool: PoolId, addr: u64) -> bool {
        if let Some(puddle) = self.puddle_of(addr) {
            return puddle.pool() != pool;
        }
        let control = self.inner().control();
        let mut puddles = control.catalog.state.puddles.values();
        puddles.any(|puddle| {
            ![pool, PoolId(0)].contains(&puddle.pool)
                && addr.wrapping_sub(puddle.addr) < puddle.size
        })
    }

    /// Maps a puddle that no thread has touched yet. If it is pending, its pointers are rewritten
    /// before.
    ///
    /// # Errors
    /// Its file cannot be mapped or rewritten, or it is damaged.
    pub fn ensure_mapped(&self, puddle: &Puddle) -> Result<(), StoreError> {
        self.0.check_usable()?;
        if self.0.make_accessible(puddle)? {
            return Ok(());
        }
        Err(StoreError::PuddleDamaged(Damage::Puddle {
            uuid: puddle.uuid(),
            pool: puddle.pool(),
            index: puddle.index(),
            detail: "it is damaged, or its pool was removed".into(),
        }))
    }

    /// Whether this is a copy of an open store, whose pools have not all been found whole since.
    #[must_use]
    pub fn is_unchecked_copy(&self) -> bool {
        !self.0.is_client() && self.0.control().superblock.origin == ORIGIN_COPY
    }

    /// Whether this is an object of a copy of an open store that has not been found whole since.
    #[must_use]
    pub fn is_unchecked_object(&self, object: Uuid) -> bool {
        self.is_unchecked_copy() && self.0.control().unchecked_objects.contains(&object)
    }

    /// A pool of a copy of an open store was found whole. With the last pool or object it becomes a
    /// store as any other: **the superblock's sync commits that.**
    ///
    /// # Errors
    /// The superblock cannot be written.
    pub fn pool_is_checked(&self, pool: PoolId) -> Result<(), StoreError> {
        self.note_checked(|control| {
            control.checked_pools.insert(pool);
        })
    }

    /// The same of an object.
    ///
    /// # Errors
    /// As [`Store::pool_is_checked`].
    pub fn object_is_checked(&self, object: Uuid) -> Result<(), StoreError> {
        self.note_checked(|control| {
            control.unchecked_objects.remove(&object);
        })
    }

    fn note_checked(&self, note: impl FnOnce(&mut Control)) -> Result<(), StoreError> {
        let mut control = self.0.control();
        note(&mut control);
        let (state, checked) = (&control.catalog.state, &control.checked_pools);
        let waits = state.objects.keys().any(|object| control.unchecked_objects.contains(object))
            || !state.not_covered.is_empty()
            || !state.pools.keys().all(|pool| checked.contains(pool));
        if waits || !self.0.writable || control.superblock.origin != ORIGIN_COPY {
            return Ok(());
        }
        self.0.check_poisoned()?;
        let mut block = control.superblock;
        block.origin = ORIGIN_OWN;
        self.0.store_superblock(&mut block)?;
        control.superblock = block;
        Ok(())
    }

    /// Fails, and poisons the store, unless its superblock is as this session left it: for writers
    /// of control data of their own.
    ///
    /// # Errors
    /// What was found there; the medium.
    pub fn check_owner(&self) -> Result<(), MediumError> {
        self.0.fence.as_ref().map_or(Ok(()), |fence| fence.check())
    }

    /// What the store was opened with.
    #[must_use]
    pub fn power_loss_policy(&self) -> PowerLossPolicy {
        self.0.options.power_loss
    }

    /// What was found damaged at open.
    #[must_use]
    pub fn damage(&self) -> Vec<Damage> {
        self.0.control().damage.clone()
    }

    /// What the store is.
    #[must_use]
    pub fn info(&self) -> StoreInfo {
        let control = self.0.control();
        let state = &control.catalog.state;
        let spare = || state.puddles.values().filter(|p| p.role == Role::Spare);
        StoreInfo {
            uuid: self.0.uuid,
            medium: self.0.info.clone(),
            format_version: FORMAT_VERSION,
            window_base: self.0.window.base(),
            window_len: self.0.window.len(),
            window_free: control.space.free_bytes(),
            durability: self.0.durability,
            writable: self.0.writable,
            formatted_at_s: control.superblock.formatted_at_s,
            generation: control.superblock.generation,
            catalog_batch: control.catalog.batch(),
            catalog_bytes: control.catalog.bytes(),
            pools: state.pools.len() as u64,
            puddles: state.puddles.len() as u64,
            puddle_bytes: state.puddles.values().map(|p| p.size).sum(),
            types: state.types.len() as u64,
            clients: state.clients.len() as u64,
            log_puddles: state.puddles.values().filter(|p| p.role == Role::Log).count() as u64,
            spare_puddles: spare().count() as u64,
            spare_bytes: spare().map(|p| p.size).sum(),
            poisoned: self.0.poisoned.get().map(ToString::to_string),
        }
    }

    pub(crate) fn new(inner: Arc<Inner>) -> Self {
        Self(inner)
    }

    pub(crate) fn into_arc(self) -> Arc<Inner> {
        self.0
    }

    pub(crate) fn arc(&self) -> &Arc<Inner> {
        &self.0
    }

    #[inline]
    pub(crate) fn inner(&self) -> &Inner {
        &self.0
    }
}

/// How often a forked child looks whether a thread of its own gives the lock back.
const FORKED_TRIES: u32 = 500;

impl Inner {
    pub(crate) fn primaries(&self) -> MutexGuard<'_, Option<LockGuard>> {
        self.primaries.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Whether another process keeps the store.
    pub(crate) fn is_client(&self) -> bool {
        self.remote.is_some()
    }

    /// Maps a puddle. Extensions make it ready before, if it is pending. `Ok(false)`: it is
    /// refused. Not for the fault handler.
    pub(crate) fn make_accessible(&self, puddle: &Puddle) -> Result<bool, StoreError> {
        if puddle.is_pending() && !planted(Bug::PendingPuddleMapped) {
            self.parts.make_ready(puddle)?;
        }
        if !puddle.is_mapped() {
            MediumError::room_to_map(puddle.file_name())?;
        }
        Ok(puddle.map(&self.medium)?)
    }

    pub(crate) fn control(&self) -> MutexGuard<'_, Control> {
        // A thread that panicked under the lock was between two whole changes, or inside one that
        // the catalog undoes or the poisoning stops: the state is usable.
        match self.control.try_lock() {
            Ok(control) => control,
            Err(TryLockError::Poisoned(control)) => control.into_inner(),
            Err(TryLockError::WouldBlock) => self.control_of_another(),
        }
    }

    /// The lock, when another thread has it. In a forked child that may be a thread of the parent,
    /// which never gives it back: operations are refused before they come here, and what cannot
    /// fail panics.
    #[cold]
    fn control_of_another(&self) -> MutexGuard<'_, Control> {
        if fork_guard::is_current(self.token) {
            return self.control.lock().unwrap_or_else(PoisonError::into_inner);
        }
        for _ in 0..FORKED_TRIES {
            match self.control.try_lock() {
                Ok(control) => return control,
                Err(TryLockError::Poisoned(control)) => return control.into_inner(),
                Err(TryLockError::WouldBlock) => std::thread::sleep(Duration::from_millis(1)),
            }
        }
        panic!("{}", StoreError::Forked);
    }

    /// The lock, for an operation that writes.
    pub(crate) fn begin_write(
        &self,
        what: &'static str,
    ) -> Result<MutexGuard<'_, Control>, StoreError> {
        self.check_writable(what)?;
        let control = self.control();
        self.check_poisoned()?;
        Ok(control)
    }

    /// [`Inner::begin_write`], if other threads give the lock back before `until`.
    pub(crate) fn begin_write_until(
        &self,
        what: &'static str,
        until: Instant,
    ) -> Result<Option<MutexGuard<'_, Control>>, StoreError> {
        self.check_writable(what)?;
        let control = loop {
            match self.control.try_lock() {
                Ok(control) => break control,
                Err(TryLockError::Poisoned(control)) => break control.into_inner(),
                Err(TryLockError::WouldBlock) if Instant::now() >= until => return Ok(None),
                Err(TryLockError::WouldBlock) => std::thread::sleep(Duration::from_micros(200)),
            }
        };
        self.check_poisoned()?;
        Ok(Some(control))
    }

    fn check_writable(&self, what: &'static str) -> Result<(), StoreError> {
        self.check_usable()?;
        if self.writable { Ok(()) } else { Err(StoreError::ReadOnly { what }) }
    }

    #[inline]
    pub(crate) fn check_usable(&self) -> Result<(), StoreError> {
        if fork_guard::is_current(self.token) { Ok(()) } else { Err(StoreError::Forked) }
    }

    #[inline]
    pub(crate) fn check_poisoned(&self) -> Result<(), StoreError> {
        match self.poisoned.get() {
            None => Ok(()),
            Some(poison) => Err(poison.error()),
        }
    }

    pub(crate) fn poison(&self, reason: &str) {
        self.poisoned.set(reason.to_owned().into());
    }

    /// Turns a medium's error into the store's; a failed sync poisons.
    pub(crate) fn failed(&self, error: MediumError) -> StoreError {
        if error.is_failed_sync() {
            self.poison(&error.to_string());
        }
        error.into()
    }

    /// Writes the next copy of the superblock, if it still names this session.
    pub(crate) fn store_superblock(&self, block: &mut Superblock) -> Result<(), StoreError> {
        match &self.fence {
            Some(fence) => fence.store_next(block).map_err(|error| self.failed(error)),
            None => Err(StoreError::ReadOnly { what: "write its superblock" }),
        }
    }

    pub(crate) fn random_uuid(&self) -> Result<Uuid, StoreError> {
        self.medium.random_uuid().map_err(StoreError::from)
    }

    pub(crate) fn random_u64(&self) -> Result<u64, StoreError> {
        let mut bytes = [0; 8];
        bytes.copy_from_slice(&self.random_uuid()?.0[8..]);
        Ok(u64::from_le_bytes(bytes))
    }
}
