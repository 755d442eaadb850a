//! An open pool: what its handles share, and how it grows (PUD-10; Puddles paper, 3.1 and 4.4).
//!
//! A pool's puddles are in index order, and none is taken away while a handle lives: an address of
//! a puddle stays good as long as the handle that gave it.
//!
//! **Take a puddle** (an update in several steps). (1) its file is made and synced: an orphan, or a
//! spare puddle is prepared ([`crate::spare`]); (2) one batch names it: **the catalog's batch
//! commits**; after it the puddle becomes findable and is mapped.

use crate::due_job::Sealed;
use crate::error::StoreError;
use crate::pool_rules::check_size;
use crate::puddle::Puddle;
use crate::report::{Damage, PoolStart, concerns};
use crate::store::Store;
use cenote_layout::catalog::{PoolMode, PoolRecord, Record};
use cenote_layout::id::PoolId;
use cenote_medium::planted::{Bug, planted};
use cenote_medium::{Durability, FileName, MapMode, MediumError, Operation};
use core::ptr::NonNull;
use std::collections::{BTreeMap, BTreeSet};
use std::sync::{Arc, Mutex, MutexGuard, OnceLock, PoisonError, RwLock};
use std::time::{Duration, Instant};

/// What the handles of one pool share.
#[derive(Debug)]
pub(crate) struct PoolCore {
    record: PoolRecord,
    /// In index order. They live until the store is dropped, and every handle holds the store.
    puddles: RwLock<Vec<NonNull<Puddle>>>,
    damage: Vec<Damage>,
    start: PoolStart,
    /// If it is protected at rest.
    sealed: Option<Sealed>,
    /// Once a daemon has granted the pool to this process beside others.
    sharing: OnceLock<Sharing>,
}

/// A pool that other processes write too.
#[derive(Debug)]
struct Sharing {
    /// What the daemon calls this process.
    me: u64,
    /// Names of images that have ended, and whose logs are replayed: for ever.
    ended: Mutex<BTreeSet<u64>>,
    /// Until when images whose processes live are believed to live, without asking the daemon.
    believed: Mutex<BTreeMap<u64, Instant>>,
}

/// How often the daemon is asked at most about images whose processes live.
const ASK_EVERY: Duration = Duration::from_millis(250);

impl Sharing {
    fn believed(&self) -> MutexGuard<'_, BTreeMap<u64, Instant>> {
        self.believed.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Whether it is time to ask about an image whose process lives.
    fn is_due(&self, who: u64) -> bool {
        let now = Instant::now();
        let mut believed = self.believed();
        let until = believed.entry(who).or_insert(now + ASK_EVERY);
        let due = now >= *until;
        if due {
            *until = now + ASK_EVERY;
        }
        due
    }

    /// The daemon says that these live.
    fn believe(&self, living: &[u64]) {
        let until = Instant::now() + ASK_EVERY;
        *self.believed() = living.iter().map(|who| (*who, until)).collect();
    }
}

// SAFETY: the pointers are to `Puddle`s, which are `Sync` and outlive every handle.
unsafe impl Send for PoolCore {}
// SAFETY: as above.
unsafe impl Sync for PoolCore {}

/// An open pool. Cloning is cheap; while a handle lives, the store is open.
#[derive(Clone, Debug)]
pub struct PoolHandle {
    core: Arc<PoolCore>,
    store: Store,
    writable: bool,
    /// Whether the pool was shared when the handle was made.
    shared: bool,
}

impl PoolCore {
    /// What a daemon granted of a pool.
    pub(crate) fn granted(
        record: PoolRecord,
        puddles: Vec<NonNull<Puddle>>,
        start: PoolStart,
    ) -> Self {
        Self::opened(record, puddles, start, Vec::new(), None)
    }

    /// What this process opened itself.
    pub(crate) fn opened(
        record: PoolRecord,
        puddles: Vec<NonNull<Puddle>>,
        start: PoolStart,
        damage: Vec<Damage>,
        sealed: Option<Sealed>,
    ) -> Self {
        Self {
            record,
            puddles: RwLock::new(puddles),
            damage,
            start,
            sealed,
            sharing: OnceLock::new(),
        }
    }

    /// From now on others write the pool too; `me` is this process.
    pub(crate) fn share(&self, me: u64) {
        let _ =
            self.sharing.set(Sharing { me, ended: Mutex::default(), believed: Mutex::default() });
    }

    pub(crate) fn is_shared(&self) -> bool {
        self.sharing.get().is_some()
    }

    pub(crate) fn add_puddle(&self, puddle: NonNull<Puddle>) {
        self.puddles.write().unwrap_or_else(PoisonError::into_inner).push(puddle);
    }

    pub(crate) fn record(&self) -> &PoolRecord {
        &self.record
    }

    pub(crate) fn damage(&self) -> &[Damage] {
        &self.damage
    }

    pub(crate) fn start(&self) -> PoolStart {
        self.start
    }

    pub(crate) fn sealed(&self) -> Option<&Sealed> {
        self.sealed.as_ref()
    }

    /// The pool has been granted once more.
    pub(crate) fn set_puddles(&self, puddles: Vec<NonNull<Puddle>>) {
        *self.puddles.write().unwrap_or_else(PoisonError::into_inner) = puddles;
    }
}

impl PoolHandle {
    pub(crate) fn new(core: Arc<PoolCore>, store: Store, writable: bool) -> Self {
        let shared = core.is_shared();
        Self { core, store, writable, shared }
    }

    pub(crate) fn core(&self) -> &PoolCore {
        &self.core
    }

    /// For the list of what is open.
    pub(crate) fn share_core(&self) -> Arc<PoolCore> {
        Arc::clone(&self.core)
    }

    /// Its number.
    #[must_use]
    pub fn id(&self) -> PoolId {
        self.core.record.id
    }

    /// Its name.
    #[must_use]
    pub fn name(&self) -> &str {
        &self.core.record.name
    }

    /// The store that it belongs to.
    #[must_use]
    pub fn store(&self) -> &Store {
        &self.store
    }

    /// What the catalog says about it.
    #[must_use]
    pub fn record(&self) -> &PoolRecord {
        &self.core.record
    }

    /// What a daemon calls this process, if it has granted the pool to other processes for writing
    /// too, or may: then what is read and written is shared with them, and
    /// [`PoolHandle::has_ended`] knows who they are.
    #[must_use]
    pub fn member(&self) -> Option<u64> {
        self.core.sharing.get().filter(|_| self.shared).map(|sharing| sharing.me)
    }

    /// Whether an image of a process of that name ([`cenote_sys::process::name_of`]) that has or
    /// had the pool has ended, and its logs are replayed. "Yes" is certain, and for ever. The
    /// daemon knows. It is asked at once about a process that `/proc` does not show: that one may
    /// be of another namespace, or have logs that wait. About one that lives it is asked now and
    /// then: the process may have called `exec`.
    ///
    /// # Errors
    /// [`StoreError::PoolLogDamaged`]: it has ended, and left a log that is set aside; the daemon cannot be asked.
    pub fn has_ended(&self, who: u64) -> Result<bool, StoreError> {
        let alive = cenote_sys::process::is_named_alive(who);
        let (Some(sharing), Some(connection)) =
            (self.core.sharing.get().filter(|_| self.shared), &self.store.inner().connection)
        else {
            return Ok(cenote_sys::process::is_named_earlier(who) || !alive);
        };
        let ended = || sharing.ended.lock().unwrap_or_else(PoisonError::into_inner);
        if who == sharing.me {
            return Ok(false);
        }
        if ended().contains(&who) || (!alive && planted(Bug::DeadNotRecovered)) {
            return Ok(true);
        }
        if alive && (planted(Bug::ImageTakenForProcess) || !sharing.is_due(who)) {
            return Ok(false);
        }
        let members = match connection.keeper.members(self.id(), !alive) {
            Ok(members) => members,
            // Transactions go on without the daemon, where no member has ended.
            Err(_) if alive => return Ok(false),
            Err(error) => return Err(error),
        };
        sharing.believe(&members.living);
        if members.living.contains(&who) {
            return Ok(false);
        }
        if !members.doubts.is_empty() {
            let mut control = self.store.inner().control();
            crate::connection::note_doubts(&mut control, self.id(), members.doubts);
            let damage = concerns(&control.damage, self.id());
            return Err(StoreError::PoolLogDamaged { name: self.name().into(), damage });
        }
        ended().insert(who);
        Ok(true)
    }

    /// Makes the puddles findable that other processes have taken since, mapped. Nothing to do
    /// where there are no others.
    ///
    /// # Errors
    /// The daemon cannot be asked, or they cannot be mapped.
    pub fn learn_puddles(&self) -> Result<(), StoreError> {
        match &self.store.inner().connection {
            Some(connection) if self.shared => self.store.learn_puddles_of(connection, &self.core),
            _ => Ok(()),
        }
    }

    /// Whether this handle may write. False too where a policy opened the pool read-only.
    #[must_use]
    pub fn is_writable(&self) -> bool {
        self.writable
    }

    /// What is damaged in it: those puddles cannot be touched.
    #[must_use]
    pub fn damage(&self) -> &[Damage] {
        &self.core.damage
    }

    /// How this session found it; the same for as long as the session lasts.
    #[must_use]
    pub fn start(&self) -> PoolStart {
        self.core.start
    }

    /// Why the pool's values may not be what its transactions made them, all of it: puddles that
    /// cannot be used, logs that name the pool and are set aside, and records of the catalog
    /// that are lost, which may have been about this pool. Bytes and blocks can be looked at all
    /// the same. (Pools that a loss of power may have torn are in
    /// [`crate::OpenReport::not_covered`].)
    #[must_use]
    pub fn doubts(&self) -> Vec<Damage> {
        let control = self.store.inner().control();
        let elsewhere = control.damage.iter().filter(|damage| match damage {
            Damage::Log { pools, .. } | Damage::LogSpace { pools, .. } => {
                pools.contains(&self.id())
            }
            Damage::Catalog { .. } => damage.is_lost(),
            _ => false,
        });
        self.core.damage.iter().chain(elsewhere).cloned().collect()
    }

    /// Whether the pool may hold half a transaction, because logs about it were discarded
    /// ([`Store::decide_logs`]). Stays so, over any number of opens, until
    /// [`Store::declare_whole`].
    #[must_use]
    pub fn is_torn(&self) -> bool {
        self.store.inner().control().catalog.state.torn.contains(&self.id())
    }

    /// Whether the heap must compute again which blocks are allocated, because power failed while
    /// the pool was held writable. Stays so, over any number of opens, until
    /// [`PoolHandle::trace_done`].
    #[must_use]
    pub fn trace_due(&self) -> bool {
        self.store.inner().control().catalog.state.trace_due.contains(&self.id())
    }

    /// Records that the heap has done so; its marks are on the medium or will be lost together with
    /// this session, whose loss of power makes tracing due again. One catalog batch, if tracing was
    /// due.
    ///
    /// # Errors
    /// A read-only handle; an error of the medium: then tracing stays due.
    ///
    /// # Safety
    /// The pool's heap has been traced in this session. Otherwise blocks that a crash has left half
    /// written count as values.
    pub unsafe fn trace_done(&self) -> Result<(), StoreError> {
        if !self.trace_due() {
            return Ok(());
        }
        if !self.writable {
            return Err(StoreError::PoolReadOnly { name: self.name().into(), what: "recover it" });
        }
        let inner = self.store.inner();
        if let Some(connection) = &inner.connection {
            connection.keeper.trace_done(self.id())?;
        }
        let mut control = inner.begin_write("recover a pool")?;
        inner.commit(&mut control, &[Record::Traced(self.id())])
    }

    /// Its puddles as they are now, in index order. Others may take more.
    #[must_use]
    pub fn puddles(&self) -> Vec<&Puddle> {
        let puddles = self.core.puddles.read().unwrap_or_else(PoisonError::into_inner);
        // SAFETY: puddles live until the store is dropped, which this handle keeps open.
        puddles.iter().map(|p| unsafe { p.as_ref() }).collect()
    }

    /// The root puddle, unless it is damaged.
    #[must_use]
    pub fn root_puddle(&self) -> Option<&Puddle> {
        let puddles = self.core.puddles.read().unwrap_or_else(PoisonError::into_inner);
        // SAFETY: as in `puddles`.
        puddles.first().map(|p| unsafe { p.as_ref() }).filter(|p| p.index() == 0)
    }

    /// Grows the pool by a puddle of `size` bytes, zero but for its header, mapped for writing.
    ///
    /// # Errors
    /// A size that no puddle can have, a full pool, window or disk, a read-only handle. The pool is
    /// as before.
    pub fn take_puddle(&self, size: u64) -> Result<&Puddle, StoreError> {
        if !self.writable {
            return Err(StoreError::PoolReadOnly { name: self.name().into(), what: "let it grow" });
        }
        let inner = self.store.inner();
        // Others may have taken some: the next number is theirs else.
        self.learn_puddles()?;
        let mut control = inner.begin_write("let a pool grow")?;
        let state = &control.catalog.state;
        let existing = state.puddles_of(self.id());
        let used: u64 = existing.iter().map(|p| p.size).sum();
        let index = existing.last().map_or(0, |p| p.index + 1);
        check_size(size, index == 0)?;
        if used.checked_add(size).is_none_or(|total| total > self.core.record.size_max) {
            return Err(StoreError::PoolFull {
                name: self.name().into(),
                wanted: size,
                used,
                size_max: self.core.record.size_max,
            });
        }
        if let Some(sealed) = &self.core.sealed {
            let pool = (self.id(), self.name());
            let puddle = inner.take_sealed(&mut control, pool, (index, size), sealed)?;
            if !planted(Bug::GrownNotPsynced) {
                inner.shadow_of(&mut control, self.id())?.add(puddle, false);
            }
            // SAFETY: as below.
            return Ok(unsafe { self.find_from_now_on(puddle) });
        }
        let shadowed = self.core.record.mode == PoolMode::Shadowed;
        let record = match &inner.connection {
            Some(connection) => {
                self.store.take_granted(connection, &mut control, (self.id(), index, size))?
            }
            None => inner.add_heap_puddle(&mut control, (self.id(), index, size), shadowed, &[])?.0,
        };
        let mode = if shadowed { MapMode::Tracked } else { MapMode::ReadWrite };
        let puddle = inner.own(&mut control, record, mode);
        if shadowed {
            // Before it can be stored into, so that no psync goes without it.
            inner.shadow_of(&mut control, self.id())?.add(puddle, false);
        }
        // SAFETY: it lives until the store is dropped, and its range was checked to lie in the
        // window.
        let puddle = unsafe { self.find_from_now_on(puddle) };
        puddle.map(&inner.medium).map_err(|error| inner.failed(error))?;
        Ok(puddle)
    }

    /// # Safety
    /// The puddle lives until the store is dropped, and lies in the window.
    unsafe fn find_from_now_on(&self, puddle: NonNull<Puddle>) -> &Puddle {
        // SAFETY: the caller's.
        unsafe {
            self.store.inner().window.insert(puddle.as_ref());
            self.core.add_puddle(puddle);
            puddle.as_ref()
        }
    }

    /// Gives the space of `len` bytes at `addr`, whole pages in the body of one of the pool's
    /// puddles, back to the file system. They read as zeros then,
    /// and [`PoolHandle::ensure_space`] comes before the next store into them. `false`: the file
    /// system cannot do that, and nothing has changed.
    ///
    /// # Safety
    /// What is in the range belongs to the caller, and nobody needs it any more.
    ///
    /// # Errors
    /// The pool is read-only, the store poisoned, the range is not the pool's, or the medium
    /// reports an error.
    pub unsafe fn release_space(&self, addr: u64, len: u64) -> Result<bool, StoreError> {
        let (inner, puddle) = (self.store.inner(), self.body_of(addr, len, "give back its space")?);
        if puddle.view().is_some() {
            // A hole would be a sealed page that was never written, and the tree says that it was.
            return Ok(false);
        }
        // SAFETY: the caller's.
        let released =
            unsafe { inner.medium.release(puddle.file_name(), addr - puddle.addr(), len) };
        released.map_err(|error| inner.failed(error))
    }

    /// Takes space again for what [`PoolHandle::release_space`] gave back of a range; without a
    /// change to its bytes. On return the space is there for good: at durability level `power`
    /// also after a loss of power, at the price of one sync of the file.
    ///
    /// # Errors
    /// As for [`PoolHandle::release_space`]; there is no space left.
    pub fn ensure_space(&self, addr: u64, len: u64) -> Result<(), StoreError> {
        let (inner, puddle) = (self.store.inner(), self.body_of(addr, len, "take space for it")?);
        if puddle.view().is_some() {
            return Ok(());
        }
        if let Some(connection) = &inner.connection {
            return connection.keeper.ensure_space(self.id(), addr, len);
        }
        let ensured = inner.medium.ensure(puddle.file_name(), addr - puddle.addr(), len);
        ensured.map_err(|error| inner.failed(error))?;
        if self.store.durability() == Durability::Power {
            inner.medium.sync(puddle.file_name()).map_err(|error| inner.failed(error))?;
        }
        Ok(())
    }

    /// The puddle of the pool in whose body the range lies.
    fn body_of(&self, addr: u64, len: u64, what: &'static str) -> Result<&Puddle, StoreError> {
        if !self.writable {
            return Err(StoreError::PoolReadOnly { name: self.name().into(), what });
        }
        self.store.check_usable()?;
        self.holder_of(addr, len)
    }

    /// The same for a handle that may be read-only.
    pub(crate) fn holder_of(&self, addr: u64, len: u64) -> Result<&Puddle, StoreError> {
        let holds = |puddle: &&Puddle| {
            let within = addr.checked_sub(puddle.body_addr());
            puddle.pool() == self.id()
                && within
                    .and_then(|at| at.checked_add(len))
                    .is_some_and(|end| end <= puddle.body_len())
        };
        self.store.puddle_of(addr).filter(holds).ok_or_else(|| {
            let reason = "the range is not in the body of a puddle of this pool";
            let name = FileName::new(self.name());
            MediumError::BadRange { op: Operation::Examine, name, addr, len, reason }.into()
        })
    }
}
