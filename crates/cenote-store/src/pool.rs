//! Pools: named collections of puddles (PUD-10; Puddles paper, 3.1 and 4.4).
//!
//! # Updates in several steps
//!
//! **Create a pool.** (1) the root puddle's file is made and synced: an orphan, or a spare puddle is prepared
//! ([`crate::spare`]); (2) one batch names pool and puddle: **the catalog's batch commits**; (3) nothing else. In shadowed mode the primary's file is
//! made after the puddle's, with the same contents: an orphan until (2).
//!
//! **Take a puddle.** The same with an existing pool; after the batch it becomes findable and is mapped.
//!
//! **Remove a pool.** (1) one batch takes pool and puddles out, some of which become spare: **the catalog's batch commits**;
//! (2) the files of those are made zeros, the others are removed, the directory synced. What a crash leaves of the files is orphans, and goes at the next writable open.

use crate::error::{StoreError, concerns};
use crate::guests::Credentials;
use crate::options::{Access, DamagePolicy, PoolOptions, PowerLossPolicy};
use crate::puddle::{
    DIR, Kind, Puddle, create_file, create_primary, file_name, primary_name, text, verify_file,
    verify_primary,
};
use crate::relocate::Needs;
use crate::report::{Damage, PoolStart};
use crate::sealed::Sealed;
use crate::store::{Control, Inner, Store};
use cenote_atrest::Keyring;
use cenote_layout::PAGE_SIZE;
use cenote_layout::catalog::{AtRest, POOL_NAME_LEN_MAX, PoolMode, PoolRecord, PuddleRecord, Record};
use cenote_layout::heap::HeapGeometry;
use cenote_layout::id::{PoolId, Uuid};
use cenote_layout::puddle::Role;
use cenote_medium::planted::{Bug, planted};
use cenote_medium::{Durability, FileName, MapMode, MediumError, Operation};
use core::ops::ControlFlow;
use core::ptr::NonNull;
use std::collections::BTreeSet;
use std::sync::{Arc, Mutex, OnceLock, PoisonError, RwLock};

/// A pool as the store's list has it.
#[derive(Clone, Debug)]
pub struct PoolInfo {
    /// What the catalog says.
    pub record: PoolRecord,
    /// How it is protected at rest.
    pub at_rest: AtRest,
    /// Bytes of its puddles.
    pub bytes: u64,
    /// Number of its puddles.
    pub puddles: u64,
    /// Whether this process has it open.
    pub opened: bool,
    /// How this session found it.
    pub start: PoolStart,
    /// Puddles that moved with the pool and are still to be rewritten, as far as the catalog knows.
    pub due: u64,
}

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
    /// Names of processes that have ended, and whose logs are replayed: for ever.
    ended: Mutex<BTreeSet<u64>>,
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
    pub(crate) fn granted(record: PoolRecord, puddles: Vec<NonNull<Puddle>>, start: PoolStart) -> Self {
        let (damage, sharing) = (Vec::new(), OnceLock::new());
        Self { record, puddles: RwLock::new(puddles), damage, start, sealed: None, sharing }
    }

    /// From now on others write the pool too; `me` is this process.
    pub(crate) fn share(&self, me: u64) {
        let _ = self.sharing.set(Sharing { me, ended: Mutex::default() });
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

    /// What a daemon calls this process, if it has granted the pool to other processes for writing too, or may: then what is read and written is shared with them, and
    /// [`PoolHandle::has_ended`] knows who they are.
    #[must_use]
    pub fn member(&self) -> Option<u64> {
        self.core.sharing.get().filter(|_| self.shared).map(|sharing| sharing.me)
    }

    /// Whether a process of that name ([`cenote_sys::process::name_of`]) that has or had the pool has ended, and its logs are replayed. "Yes" is certain, and for ever. A living process is found in `/proc`, without asking the
    /// daemon; one that is not there may be of another namespace, or have logs that wait.
    ///
    /// # Errors
    /// [`StoreError::PoolLogDamaged`]: it has ended, and left a log that is set aside; the daemon cannot be asked.
    pub fn has_ended(&self, who: u64) -> Result<bool, StoreError> {
        let alive = cenote_sys::process::is_named_alive(who);
        let (Some(sharing), Some(connection)) =
            (self.core.sharing.get().filter(|_| self.shared), &self.store.inner().connection)
        else {
            return Ok(!alive);
        };
        let ended = || sharing.ended.lock().unwrap_or_else(PoisonError::into_inner);
        if alive || who == sharing.me {
            return Ok(false);
        }
        if ended().contains(&who) || planted(Bug::DeadNotRecovered) {
            return Ok(true);
        }
        let members = connection.keeper.members(self.id())?;
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

    /// Makes the puddles findable that other processes have taken since, mapped. Nothing to do where there are no others.
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

    /// Why the pool's values may not be what its transactions made them, all of it: puddles that cannot be used, logs that name the pool and are set
    /// aside, and records of the catalog that are lost, which may have been about this pool. Bytes and blocks can be looked at all the same.
    /// (Pools that a loss of power may have torn are in [`crate::OpenReport::not_covered`].)
    #[must_use]
    pub fn doubts(&self) -> Vec<Damage> {
        let control = self.store.inner().control();
        let elsewhere = control.damage.iter().filter(|damage| match damage {
            Damage::Log { pools, .. } | Damage::LogSpace { pools, .. } => pools.contains(&self.id()),
            Damage::Catalog { .. } => damage.is_lost(),
            _ => false,
        });
        self.core.damage.iter().chain(elsewhere).cloned().collect()
    }

    /// Whether the heap must compute again which blocks are allocated, because power failed while the pool was held writable. Stays so, over any number
    /// of opens, until [`PoolHandle::trace_done`].
    #[must_use]
    pub fn trace_due(&self) -> bool {
        self.store.inner().control().catalog.state.trace_due.contains(&self.id())
    }

    /// Records that the heap has done so; its marks are on the medium or will be lost together with this session, whose loss of power makes tracing due again. One catalog batch, if tracing was due.
    ///
    /// # Errors
    /// A read-only handle; an error of the medium: then tracing stays due.
    pub fn trace_done(&self) -> Result<(), StoreError> {
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
    /// A size that no puddle can have, a full pool, window or disk, a read-only handle. The pool is as before.
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
            None => inner.add_heap_puddle(&mut control, (self.id(), index, size), shadowed, &[])?,
        };
        let mode = if shadowed { MapMode::Tracked } else { MapMode::ReadWrite };
        let puddle = inner.own(&mut control, record, mode);
        if shadowed {
            // Before it can be stored into, so that no psync goes without it.
            inner.shadow_of(&mut control, self.id())?.add(puddle, false);
        }
        // SAFETY: it lives until the store is dropped, and its range was checked to lie in the window.
        let puddle = unsafe { self.find_from_now_on(puddle) };
        puddle.map(&*inner.medium).map_err(|error| inner.failed(error))?;
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

    /// Gives the space of `len` bytes at `addr`, whole pages in the body of one of the pool's puddles, back to the file system. They read as zeros then,
    /// and [`PoolHandle::ensure_space`] comes before the next store into them. `false`: the file system cannot do that, and nothing has changed.
    ///
    /// # Safety
    /// What is in the range belongs to the caller, and nobody needs it any more.
    ///
    /// # Errors
    /// The pool is read-only, the store poisoned, the range is not the pool's, or the medium reports an error.
    pub unsafe fn release_space(&self, addr: u64, len: u64) -> Result<bool, StoreError> {
        let (inner, puddle) = (self.store.inner(), self.body_of(addr, len, "give back its space")?);
        if puddle.view().is_some() {
            // A hole would be a sealed page that was never written, and the tree says that it was.
            return Ok(false);
        }
        // SAFETY: the caller's.
        let released = unsafe { inner.medium.release(puddle.file_name(), addr - puddle.addr(), len) };
        released.map_err(|error| inner.failed(error))
    }

    /// Takes space again for what [`PoolHandle::release_space`] gave back of a range; without a change to its bytes. On return the space is there for good: at
    /// durability level `power` also after a loss of power, at the price of one sync of the file.
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
                && within.and_then(|at| at.checked_add(len)).is_some_and(|end| end <= puddle.body_len())
        };
        self.store.puddle_of(addr).filter(holds).ok_or_else(|| {
            let reason = "the range is not in the body of a puddle of this pool";
            let name = FileName::new(self.name());
            MediumError::BadRange { op: Operation::Examine, name, addr, len, reason }.into()
        })
    }
}

/// Refuses sizes that no heap puddle can have.
pub(crate) fn check_size(size: u64, root: bool) -> Result<(), StoreError> {
    let bad = |reason| Err(StoreError::PuddleSize { size, reason });
    if size == 0 || !size.is_multiple_of(PAGE_SIZE) {
        return bad("take a multiple of 4096, at least 131072 (128 KiB)");
    }
    if size > 1 << 46 {
        return bad("that is more than any window has");
    }
    if HeapGeometry::new(size, root).is_none() {
        return bad("there is no room for a heap: take at least 128 KiB, for large puddles more");
    }
    Ok(())
}

/// Refuses names that would be trouble in messages and on command lines.
fn check_name(name: &str) -> Result<(), StoreError> {
    why_no_name(name).map_err(|reason| StoreError::PoolName { name: name.chars().take(80).collect(), reason })
}

/// What keeps a text from being the name of a pool or an object.
pub(crate) fn why_no_name(name: &str) -> Result<(), &'static str> {
    let bad = Err;
    if name.is_empty() {
        return bad("it is empty");
    }
    if name.len() > POOL_NAME_LEN_MAX {
        return bad("it has more than 255 bytes");
    }
    if name.chars().any(char::is_control) {
        return bad("it has control characters");
    }
    if name.trim() != name {
        return bad("it begins or ends with a space");
    }
    Ok(())
}

/// Refuses pools that can be in no store.
fn check_new_pool(name: &str, options: &PoolOptions) -> Result<(), StoreError> {
    check_name(name)?;
    check_size(options.puddle_size, true)?;
    if options.key.is_some() && !options.at_rest.mode().has_key() {
        return Err(StoreError::NotProtected { name: name.into() });
    }
    if options.at_rest != AtRest::None && options.mode != PoolMode::Shadowed {
        return Err(StoreError::Protected { name: name.into(), what: "a pool in direct mode" });
    }
    if options.size_max < options.puddle_size {
        return Err(StoreError::PoolFull {
            name: name.into(),
            wanted: options.puddle_size,
            used: 0,
            size_max: options.size_max,
        });
    }
    Ok(())
}

impl Store {
    /// All pools, by number.
    #[must_use]
    pub fn pools(&self) -> Vec<PoolInfo> {
        let mut sums: std::collections::BTreeMap<PoolId, (u64, u64)> = Default::default();
        if let Some(connection) = &self.inner().connection {
            // Where the daemon does not answer, what it said last.
            let _ = self.learn_pools();
            sums = connection.listed.lock().unwrap_or_else(PoisonError::into_inner).clone();
        }
        let control = self.inner().control();
        let state = &control.catalog.state;
        for puddle in state.puddles.values().filter(|_| !self.is_connected()) {
            let sum = sums.entry(puddle.pool).or_default();
            *sum = (sum.0 + puddle.size, sum.1 + 1);
        }
        let mut due: std::collections::BTreeMap<PoolId, u64> = Default::default();
        for puddle in state.due.keys().filter_map(|uuid| state.puddles.get(uuid)) {
            *due.entry(puddle.pool).or_default() += 1;
        }
        let info = |record: &PoolRecord| {
            let (bytes, puddles) = sums.get(&record.id).copied().unwrap_or_default();
            let opened = control.pools.get(&record.id).is_some_and(|core| Arc::strong_count(core) > 1);
            let start = control
                .pools
                .get(&record.id)
                .map_or_else(|| start_of(&control, record.id), |core| core.start);
            let due = due.get(&record.id).copied().unwrap_or_default();
            let at_rest = state.at_rest(record.id);
            PoolInfo { at_rest, record: record.clone(), bytes, puddles, opened, start, due }
        };
        state.pools.values().map(info).collect()
    }

    /// The pools whose heaps must compute again which blocks are allocated; see [`PoolHandle::trace_due`].
    #[must_use]
    pub fn pools_due(&self) -> Vec<PoolId> {
        self.inner().control().catalog.state.trace_due.iter().copied().collect()
    }

    /// Creates a pool with its root puddle. It is durable on return; open it with [`Store::open_pool`].
    ///
    /// # Errors
    /// A bad or taken name, a size that no puddle can have or that does not fit, a full disk. Nothing has changed then.
    pub fn create_pool(&self, name: &str, options: &PoolOptions) -> Result<PoolId, StoreError> {
        check_new_pool(name, options)?;
        let inner = self.inner();
        if let Some(connection) = &inner.connection {
            inner.check_usable()?;
            if options.at_rest != AtRest::None {
                return Err(StoreError::Protected { name: name.into(), what: "a pool that a daemon keeps" });
            }
            let id = connection.keeper.create_pool(name, options)?;
            self.learn_pools()?;
            return Ok(id);
        }
        self.create_pool_for(name, options, (cenote_sys::process::uid(), cenote_sys::process::gid()), None)
    }

    /// The same for the user and the group that the pool is to belong to; `by`: at the request of a guest, with a token of its choice. Who asks again with the token of its last request that made a pool
    /// gets that one. **The batch that makes the pool says so too, and commits both.**
    pub(crate) fn create_pool_for(
        &self,
        name: &str,
        options: &PoolOptions,
        (uid, gid): (u32, u32),
        by: Option<(Uuid, Uuid)>,
    ) -> Result<PoolId, StoreError> {
        check_new_pool(name, options)?;
        let inner = self.inner();
        let mut control = inner.begin_write("create a pool")?;
        let mut records = match by {
            Some((client, _)) => control.introduce(client)?,
            None => Vec::new(),
        };
        if let Some((client, token)) = by
            && let Some((known, pool)) = control.catalog.state.made.get(&client)
            && *known == token
        {
            return Ok(*pool);
        }
        if control.catalog.state.names.contains_key(name) {
            return Err(StoreError::PoolExists { name: name.into() });
        }
        let id = PoolId(control.catalog.state.next_pool);
        let pool = PoolRecord {
            id,
            name: name.into(),
            mode: options.mode,
            heap: options.heap,
            puddle_size: options.puddle_size,
            size_max: options.size_max,
            uid,
            gid,
            permissions: options.permissions,
            created_at_s: inner.medium.now_s(),
        };
        let shadowed = options.mode == PoolMode::Shadowed;
        let place = (id, 0, options.puddle_size);
        if options.at_rest != AtRest::None {
            inner.pool_journal(&control.catalog.state)?;
            inner.announce_at_rest(&mut control)?;
            let with = [Record::Pool(pool), Record::PoolAtRest(id, options.at_rest)];
            let protection = (name, options.at_rest.mode(), options.key.as_deref());
            inner.add_sealed_puddle(&mut control, place, protection, &with)?;
            return Ok(id);
        }
        if shadowed {
            // Before the pool, so that there is none without a journal.
            inner.pool_journal(&control.catalog.state)?;
        }
        records.push(Record::Pool(pool));
        let made = by.map(|(client, token)| Record::PoolMade { client, token, pool: id });
        if !planted(Bug::PoolMadeApart) {
            records.extend(made.clone());
        }
        inner.add_heap_puddle(&mut control, place, shadowed, &records)?;
        if planted(Bug::PoolMadeApart) {
            inner.commit(&mut control, made.as_slice())?;
        }
        if let Some((client, _)) = by {
            control.introduced(client);
        }
        Ok(id)
    }

    /// Fails as [`Store::create_pool`] would, as far as that can be told without making anything; for dry runs.
    ///
    /// # Errors
    /// A bad or taken name, a size that no puddle can have, no room in the window.
    pub fn refuse_new_pool(&self, name: &str, options: &PoolOptions) -> Result<(), StoreError> {
        check_new_pool(name, options)?;
        let control = self.inner().control();
        if control.catalog.state.names.contains_key(name) {
            return Err(StoreError::PoolExists { name: name.into() });
        }
        let mut space = control.space.clone();
        for spare in control.catalog.state.puddles.values().filter(|p| p.role == Role::Spare) {
            space.give_back(spare.addr, spare.size);
        }
        if !space.has_room(options.puddle_size) {
            return Err(StoreError::WindowFull {
                wanted: options.puddle_size,
                window_len: self.inner().window.len(),
                free: control.space.free_bytes(),
            });
        }
        Ok(())
    }

    /// Removes a pool and everything in it, durably. Pointers into it from other pools dangle.
    ///
    /// # Errors
    /// The name is not known, or the pool is open.
    pub fn remove_pool(&self, name: &str) -> Result<(), StoreError> {
        self.remove_pool_of(name, None)
    }

    /// The same, though this guest has it.
    pub(crate) fn remove_pool_of(
        &self,
        name: &str,
        guest: Option<(Uuid, &Credentials)>,
    ) -> Result<(), StoreError> {
        let inner = self.inner();
        let mut control = inner.begin_write("remove a pool")?;
        let id = find(&control, name)?;
        if control.pools.get(&id).is_some_and(|core| Arc::strong_count(core) > 1) {
            return Err(StoreError::PoolInUse { name: name.into() });
        }
        inner.settle_logs(&control);
        if let Some(connection) = &inner.connection {
            connection.keeper.remove_pool(name)?;
        }
        if let Some((client, credentials)) = guest {
            if !control.hosted.contains_key(&client) {
                return Err(StoreError::NoGuest { client });
            }
            if control.catalog.state.pools.get(&id).is_some_and(|pool| !credentials.own(pool)) {
                return Err(StoreError::Permission { name: name.into(), what: "removed" });
            }
        }
        let mut holders = control.catalog.state.leases.keys().filter(|(_, pool)| *pool == id);
        let us = guest.map(|(client, _)| client);
        if holders.any(|(holder, _)| Some(*holder) != us && control.hosted.contains_key(holder)) {
            return Err(StoreError::PoolInUse { name: name.into() });
        }
        let puddles = control.catalog.state.puddles_of(id);
        let shadowed = control.catalog.state.is_shadowed(id);
        // The journal of psyncs may speak of puddles in shadowed mode: their identities are not used again.
        let kept = if shadowed { BTreeSet::new() } else { inner.kept_as_spare(&control, &puddles) };
        let gone = |p: &PuddleRecord| match kept.contains(&p.uuid) {
            true => Inner::spare_record(p),
            false => Record::PuddleRemoved(p.uuid),
        };
        let mut records: Vec<Record> = puddles.iter().map(gone).collect();
        records.push(Record::PoolRemoved(id));
        inner.commit(&mut control, &records)?;
        control.pools.remove(&id);
        control.damage.retain(|damage| !matches!(damage, Damage::Puddle { pool, .. } if *pool == id));
        for record in &puddles {
            if kept.contains(&record.uuid) {
                if inner.let_go(&mut control, record) {
                    inner.clean_spare(record);
                }
                continue;
            }
            inner.forget(&mut control, record);
            if inner.connection.is_some() {
                continue;
            }
            let file = file_name(record.uuid);
            // Left over files are orphans; the next writable open removes them.
            let _ = inner.medium.remove(core::str::from_utf8(&file).unwrap_or_default());
        }
        if inner.connection.is_some() {
            return Ok(());
        }
        if shadowed {
            // (Of a protected pool there are no primaries beside the files.)
            inner.forget_shadow(id, &puddles).map_err(|error| inner.failed(error))?;
        }
        inner.medium.sync_dir(DIR).map_err(|error| inner.failed(error))
    }

    /// Opens a pool. For writing, a lease is recorded before anything is mapped. Only the root puddle is mapped; the
    /// others follow when they are touched. Of a pool that has moved, a puddle's pointers are rewritten before it is mapped ([`crate::relocate`]).
    ///
    /// The handle may be read-only although writing was asked for, if a policy says so: see [`PoolHandle::is_writable`].
    ///
    /// # Errors
    /// The name is not known; the store is open read-only; the pool is damaged, or not covered, and the policy is to
    /// refuse; a log that concerns it is set aside and writing is wanted; it has moved, and cannot be rewritten.
    pub fn open_pool(&self, name: &str, access: Access) -> Result<PoolHandle, StoreError> {
        self.open_pool_with(name, access, None)
    }

    /// The same for a pool that is protected at rest under this key; without one it is that of the store's options.
    ///
    /// # Errors
    /// As [`Store::open_pool`]. [`StoreError::AtRest`]: there is no key, or not the right one, or the root puddle's file is not the pool's; [`StoreError::NotProtected`]: a key was given,
    /// and the pool is not protected.
    pub fn open_pool_with(
        &self,
        name: &str,
        access: Access,
        key: Option<&Keyring>,
    ) -> Result<PoolHandle, StoreError> {
        let handle = self.open_as_it_is(name, access, key)?;
        if self.inner().frontier.is_eager() && handle.due() > 0 {
            handle.finish_relocation(&mut |_| ControlFlow::Continue(()))?;
        }
        Ok(handle)
    }

    fn open_as_it_is(
        &self,
        name: &str,
        access: Access,
        key: Option<&Keyring>,
    ) -> Result<PoolHandle, StoreError> {
        let inner = self.inner();
        inner.check_usable()?;
        if access.writes() && !inner.writable {
            return Err(StoreError::ReadOnly { what: "open a pool for writing" });
        }
        if let Some(connection) = &inner.connection {
            // A daemon grants no pools that are protected: who has a key for this one would believe that it is.
            return match key {
                Some(_) => Err(StoreError::NotProtected { name: name.into() }),
                None => self.open_granted(connection, name, access),
            };
        }
        let mut control = inner.control();
        let id = find(&control, name)?;
        let mut writable = access.writes();
        let shadowed = control.catalog.state.is_shadowed(id);
        if shadowed && control.catalog.state.not_covered.contains(&id) {
            // Its last psync is there and cannot be brought back now: say why.
            let damage = concerns(&control.damage, id);
            if inner.options.power_loss == PowerLossPolicy::Refuse && !damage.is_empty() {
                return Err(StoreError::PoolDamaged { name: name.into(), damage });
            }
        }
        if control.catalog.state.not_covered.contains(&id) {
            match inner.options.power_loss {
                PowerLossPolicy::Refuse => return Err(StoreError::PoolNotCovered { name: name.into() }),
                PowerLossPolicy::ReadOnly => writable = false,
                // Recovery has taken the pool out of the set if it could write; else it is read-only anyway.
                PowerLossPolicy::AsIs => {}
            }
        }
        let mode = control.catalog.state.at_rest(id).mode();
        if key.is_some() && !mode.has_key() {
            return Err(StoreError::NotProtected { name: name.into() });
        }
        let key = key.or(inner.options.key.as_deref()).filter(|_| mode.has_key());
        let core = match control.pools.get(&id) {
            Some(core) => {
                let core = Arc::clone(core);
                inner.check_key(&mut control, &core, key)?;
                core
            }
            None => self.make_core(&mut control, id, key)?,
        };
        if !core.damage.is_empty() {
            if inner.options.damage == DamagePolicy::Refuse {
                return Err(StoreError::PoolDamaged { name: name.into(), damage: core.damage.clone() });
            }
            writable = false;
        }
        if writable {
            let damage: Vec<Damage> = concerns(&control.damage, id)
                .into_iter()
                .filter(|d| matches!(d, Damage::Log { .. } | Damage::LogSpace { .. }))
                .collect();
            if !damage.is_empty() {
                return Err(StoreError::PoolLogDamaged { name: name.into(), damage });
            }
            inner.check_poisoned()?;
            if shadowed {
                inner.shadow_of(&mut control, id)?;
            }
            inner.lease_writable(&mut control, id)?;
        }
        let handle = PoolHandle::new(core, self.clone(), writable);
        for puddle in handle.puddles() {
            if writable {
                puddle.set_mode(&*inner.medium, puddle.writable_mode()).map_err(|e| inner.failed(e))?;
            }
            if puddle.index() == 0 || inner.eager {
                inner.make_accessible(puddle)?;
            }
        }
        control.pools.insert(id, Arc::clone(&handle.core));
        Ok(handle)
    }

    /// Looks at every puddle of a pool and makes the sound ones findable, read-only for now.
    fn make_core(
        &self,
        control: &mut Control,
        id: PoolId,
        key: Option<&Keyring>,
    ) -> Result<Arc<PoolCore>, StoreError> {
        let inner = self.inner();
        let Some(record) = control.catalog.state.pools.get(&id).cloned() else {
            return Err(StoreError::PoolUnknown { name: id.to_string() });
        };
        let records = control.catalog.state.puddles_of(id);
        let mut damage: Vec<Damage> = control
            .damage
            .iter()
            .filter(|d| {
                matches!(d, Damage::Puddle { uuid, pool, .. }
                if *pool == id && !control.catalog.state.puddles.contains_key(uuid))
            })
            .cloned()
            .collect();
        let due = records.iter().filter(|p| control.catalog.state.due.contains_key(&p.uuid)).count() as u64;
        if due > 0 && inner.options.relocation.rewriter.is_none() {
            return Err(StoreError::RelocationDue { name: record.name, puddles: due });
        }
        let protection = control.catalog.state.at_rest(id);
        let mut needs = Needs::default();
        let mut sound = Vec::new();
        let mut expected = 0;
        for puddle in records {
            while expected < puddle.index {
                damage.push(lost_record(id, expected));
                expected += 1;
            }
            expected = puddle.index + 1;
            // SAFETY: puddles live until the store is dropped.
            let known = control.puddles.get(&puddle.uuid).map(|known| unsafe { known.as_ref() });
            let by_primary = known.is_some_and(Puddle::shows_primary);
            let mut problem = None;
            let due = control.catalog.state.due.get(&puddle.uuid).copied();
            if let Some(due) = due {
                problem = inner.mark_due(control, &puddle, due, &mut needs)?;
            } else if protection != AtRest::None {
                problem = inner.verify_sealed(&puddle, protection)?;
            } else if !by_primary {
                problem = verify_file(&*inner.medium, &puddle, inner.uuid, inner.writable)?;
            }
            if due.is_none()
                && problem.is_none()
                && record.mode == PoolMode::Shadowed
                && protection == AtRest::None
                && (by_primary || inner.writable)
            {
                problem = verify_primary(&*inner.medium, &puddle, inner.uuid, inner.writable)?;
            }
            match problem {
                None => sound.push(puddle),
                Some(detail) => {
                    damage.push(Damage::Puddle { uuid: puddle.uuid, pool: id, index: puddle.index, detail });
                }
            }
        }
        if expected == 0 {
            damage.push(lost_record(id, 0));
        }
        let mut sealed = None;
        if protection != AtRest::None {
            let (of_pool, opened) = inner.unseal(control, &record.name, (&sound, protection.mode()), key)?;
            sealed = Some(of_pool);
            sound.clear();
            for opened in opened {
                match opened {
                    Ok(opened) => {
                        sound.push(opened.record);
                        let puddle = inner.own(control, opened.record, MapMode::ReadOnly);
                        // SAFETY: puddles live until the store is dropped.
                        inner.show_sealed(&record.name, unsafe { puddle.as_ref() }, opened, false)?;
                    }
                    Err((lost, detail)) => {
                        damage.push(Damage::Puddle { uuid: lost.uuid, pool: id, index: lost.index, detail });
                    }
                }
            }
        }
        let mut puddles = Vec::with_capacity(sound.len());
        for record in sound {
            let puddle = inner.own(control, record, MapMode::ReadOnly);
            // SAFETY: it lives until the store is dropped; `State::check` saw to its range.
            unsafe {
                if inner.writable {
                    // Recovery had it writable. (In a read-only open its private pages hold what was replayed.)
                    puddle
                        .as_ref()
                        .set_mode(&*inner.medium, MapMode::ReadOnly)
                        .map_err(|e| inner.failed(e))?;
                }
                inner.window.insert(puddle.as_ref());
            }
            puddles.push(puddle);
        }
        let (puddles, start) = (RwLock::new(puddles), start_of(control, id));
        Ok(Arc::new(PoolCore { record, puddles, damage, start, sealed, sharing: OnceLock::new() }))
    }
}

/// How this session found a pool that it has not opened yet.
pub(crate) fn start_of(control: &Control, id: PoolId) -> PoolStart {
    match control.dirty.get(&id) {
        Some(kind) => PoolStart::Dirty(*kind),
        None if control.catalog.state.used.contains(&id) => PoolStart::Clean,
        None => PoolStart::Fresh,
    }
}

fn lost_record(pool: PoolId, index: u32) -> Damage {
    let detail = "the catalog has no record of it".into();
    Damage::Puddle { uuid: cenote_layout::id::Uuid::NIL, pool, index, detail }
}

pub(crate) fn find(control: &Control, name: &str) -> Result<PoolId, StoreError> {
    control
        .catalog
        .state
        .names
        .get(name)
        .copied()
        .ok_or_else(|| StoreError::PoolUnknown { name: name.into() })
}

impl Inner {
    /// Creates the file of a new puddle; nobody knows it yet. Spare puddles make room for it, if need be.
    pub(crate) fn new_puddle(
        &self,
        control: &mut Control,
        pool: PoolId,
        role: Role,
        index: u32,
        size: u64,
    ) -> Result<PuddleRecord, StoreError> {
        self.new_puddle_as(control, None, PuddleRecord { uuid: Uuid::NIL, pool, role, index, addr: 0, size })
    }

    /// The same for a puddle that was somewhere before: at `wanted.addr` if that is free, and of the identity `id` if that is given.
    pub(crate) fn new_puddle_as(
        &self,
        control: &mut Control,
        id: Option<Uuid>,
        wanted: PuddleRecord,
    ) -> Result<PuddleRecord, StoreError> {
        self.new_puddle_by(control, id, wanted, &|record| {
            create_file(&*self.medium, record, self.uuid).map_err(|error| self.failed(error))
        })
    }

    /// The same, with a file that `make` makes, which is gone if that fails.
    pub(crate) fn new_puddle_by(
        &self,
        control: &mut Control,
        id: Option<Uuid>,
        wanted: PuddleRecord,
        make: &dyn Fn(&PuddleRecord) -> Result<(), StoreError>,
    ) -> Result<PuddleRecord, StoreError> {
        match self.try_new_puddle(control, id, wanted, make) {
            Err(StoreError::WindowFull { .. } | StoreError::Medium(MediumError::NoSpace { .. }))
                if self.give_up_spares(control) =>
            {
                self.try_new_puddle(control, id, wanted, make)
            }
            other => other,
        }
    }

    fn try_new_puddle(
        &self,
        control: &mut Control,
        id: Option<Uuid>,
        wanted: PuddleRecord,
        make: &dyn Fn(&PuddleRecord) -> Result<(), StoreError>,
    ) -> Result<PuddleRecord, StoreError> {
        let size = wanted.size;
        let addr = match control.space.take_at(wanted.addr, size) {
            true => Some(wanted.addr),
            false => control.space.take(size),
        };
        let Some(addr) = addr else {
            return Err(StoreError::WindowFull {
                wanted: size,
                window_len: self.window.len(),
                free: control.space.free_bytes(),
            });
        };
        let made = id.map_or_else(|| self.random_uuid(), Ok).and_then(|uuid| {
            let record = PuddleRecord { uuid, addr, ..wanted };
            make(&record)?;
            Ok(record)
        });
        if made.is_err() {
            control.space.give_back(addr, size);
        }
        made
    }

    /// Creates the primary of a new puddle. On failure the puddle is gone again.
    pub(crate) fn new_primary(&self, control: &mut Control, record: &PuddleRecord) -> Result<(), StoreError> {
        create_primary(&*self.medium, record, self.uuid).map_err(|error| {
            let error = self.failed(error);
            let _ = self.medium.remove(text(&file_name(record.uuid)));
            control.space.give_back(record.addr, record.size);
            error
        })
    }

    /// Names a new puddle, and whatever belongs to it, in one batch. On failure the file is removed again.
    pub(crate) fn commit_new_puddle(
        &self,
        control: &mut Control,
        record: &PuddleRecord,
        with: &[Record],
    ) -> Result<(), StoreError> {
        let mut records = vec![Record::Puddle(*record)];
        records.splice(0..0, with.iter().cloned());
        self.commit(control, &records).inspect_err(|_| {
            // Where the batch may have been made after all the store is poisoned, and the file has to stay.
            if self.check_poisoned().is_ok() {
                let _ = self.medium.remove(text(&file_name(record.uuid)));
                let _ = self.medium.remove(text(&primary_name(record.uuid)));
                control.space.give_back(record.addr, record.size);
            }
        })
    }

    /// The [`Puddle`] of a record, made if need be; it lives until the store is dropped.
    pub(crate) fn own(&self, control: &mut Control, record: PuddleRecord, mode: MapMode) -> NonNull<Puddle> {
        let state = &control.catalog.state;
        let kind = match (state.is_protected(record.pool), state.is_shadowed(record.pool)) {
            (true, _) => Kind::Sealed,
            (false, true) => Kind::Shadow,
            (false, false) => Kind::Direct,
        };
        *control
            .puddles
            .entry(record.uuid)
            .or_insert_with(|| NonNull::from(Box::leak(Box::new(Puddle::new(record, mode, kind)))))
    }

    /// Takes a removed puddle out of the window. Its memory stays until the store is dropped.
    pub(crate) fn forget(&self, control: &mut Control, record: &PuddleRecord) {
        if self.let_go(control, record) {
            control.space.give_back(record.addr, record.size);
        }
    }

    /// The same, and keeps its addresses; whether nothing is mapped there now.
    pub(crate) fn let_go(&self, control: &mut Control, record: &PuddleRecord) -> bool {
        let mut unmapped = true;
        if let Some(puddle) = control.puddles.remove(&record.uuid) {
            // SAFETY: owned by `control` until the store is dropped.
            let puddle_ref = unsafe { puddle.as_ref() };
            self.window.remove(puddle_ref);
            unmapped = puddle_ref.refuse(&*self.medium).is_ok();
            self.frontier.let_go(puddle_ref);
            control.graveyard.push(puddle);
        }
        unmapped
    }
}
