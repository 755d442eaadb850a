//! An open store: format, open, close, and what every operation checks first.
//!
//! # Updates in several steps
//!
//! **Format.** (1) `puddles/`, `catalog.0`, `catalog.1`, `superblock.new` are made and synced; there is no `superblock`, so
//! this is not a store, and the next format starts again; (2) `superblock.new` is renamed to `superblock`: **the rename
//! commits**, made durable by the directory's sync.
//!
//! **Open for writing.** (1) the lock is taken; (2) catalog files that are torn or damaged in one copy are written anew;
//! (3) recovery, with states of its own ([`crate::recovery`]); (4) files without a record are removed; (5) the
//! superblock says "open", with boot id, process and client: **this sync commits**. Only then is a handle given out.
//! A crash before leaves what the next open finds as it was before, or recovered.
//!
//! **Close.** (1) puddles of leased pools are synced; (2) a batch ends the leases and removes the client; (3) the superblock
//! says "clean": **this sync commits**. A crash before leaves a store that is recovered, with nothing to do.

use crate::catalog::{self, Catalog};
use crate::error::{FormatError, OpenError, StoreError, TypeMismatch};
use crate::options::{Access, DamagePolicy, FormatOptions, OpenOptions};
use crate::pool::PoolCore;
use crate::puddle::{DIR, Puddle};
use crate::report::{Damage, DamageEffect, OpenReport, StoreInfo};
use crate::superblock::{self, FILE, NEW_FILE};
use crate::window::{Space, Window, who_is_at};
use cenote_layout::catalog::Record;
use cenote_layout::header::{FORMAT_VERSION, Header, HeaderPrefix, read};
use cenote_layout::id::{PoolId, TypeId, Uuid};
use cenote_layout::puddle::{PuddleHeader, Role};
use cenote_layout::superblock::{
    DURABILITY_POWER, DURABILITY_PROCESS, DURABILITY_UNSAID, STATE_CLEAN, STATE_OPEN, Superblock,
};
use cenote_layout::types::TypeRecord;
use cenote_layout::{PAGE_SIZE, SLOT_SIZE};
use cenote_log::CrashKind;
use cenote_medium::{
    Durability, LockGuard, LockKind, Medium, MediumError, MediumInfo, MediumKind, Operation, Persistence,
};
use cenote_sys::{fault, fork_guard};
use core::ptr::NonNull;
use core::sync::atomic::{AtomicBool, Ordering};
use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, MutexGuard, OnceLock, PoisonError};
use std::time::{Duration, Instant};

use crate::logs::Logs;

/// The lock file.
const LOCK: &str = "lock";
/// Where windows are chosen: clear of the loader, of libraries, and of the sanitizers' shadow memory.
const WINDOWS: (u64, u64) = (0x2000_0000_0000, 0x5000_0000_0000);
/// How often a lock is tried while waiting for it.
const LOCK_RETRY: Duration = Duration::from_millis(5);

/// An open store. Cloning is cheap; the store is closed when the last handle of it or of its pools is dropped, or by
/// [`Store::close`].
#[derive(Clone, Debug)]
pub struct Store(Arc<Inner>);

/// What all handles share.
#[derive(Debug)]
pub(crate) struct Inner {
    pub(crate) window: Window,
    pub(crate) persistence: Persistence,
    pub(crate) medium: Arc<dyn Medium>,
    pub(crate) info: MediumInfo,
    pub(crate) uuid: Uuid,
    pub(crate) writable: bool,
    pub(crate) options: OpenOptions,
    /// Puddles are mapped when their pool is opened: the simulated medium compares memory at every event.
    pub(crate) eager: bool,
    durability: Durability,
    token: u64,
    poisoned: OnceLock<String>,
    /// Nothing is written on drop: the store is not open yet, or abandoned, or closed already.
    silent: AtomicBool,
    control: Mutex<Control>,
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
    pub(crate) logs: Logs,
    /// This session.
    pub(crate) client: Uuid,
    registration: Option<fault::Registration>,
    lock: Option<LockGuard>,
}

// SAFETY: the pointers are to `Puddle`s, which are `Sync`, owned by this value, and freed only with it.
unsafe impl Send for Control {}

/// Makes a store in an empty directory, or in one with an unfinished format. It is durable on return.
///
/// # Errors
/// The directory is not empty or holds a store; the options make no sense; the medium. An unfinished format may be left,
/// which is no store, and which the next format starts again.
pub fn format(medium: Arc<dyn Medium>, options: &FormatOptions) -> Result<Uuid, FormatError> {
    let path = medium.describe().path;
    let failed = |source| FormatError::Medium { path: path.clone(), source: Box::new(source) };
    check_window(options)?;
    for name in medium.list("").map_err(failed)? {
        if name == FILE {
            return Err(FormatError::Exists { path });
        }
        let ours = [LOCK, NEW_FILE, DIR].contains(&&*name)
            || catalog::FILES.contains(&&*name)
            || catalog::NEW_FILES.contains(&&*name);
        if !ours {
            return Err(FormatError::NotEmpty { path, found: name });
        }
    }
    if medium.exists(DIR).map_err(failed)?
        && let Some(found) = medium.list(DIR).map_err(failed)?.into_iter().next()
    {
        return Err(FormatError::NotEmpty { path, found: format!("{DIR}/{found}") });
    }
    let _lock = match medium.lock(LOCK, LockKind::Exclusive).map_err(failed)? {
        Ok(guard) => guard,
        Err(holder) => return Err(FormatError::Locked { path, holder: holder.text }),
    };
    if medium.exists(FILE).map_err(failed)? {
        return Err(FormatError::Exists { path }); // by somebody who had the lock before
    }
    let uuid = match options.uuid {
        Some(uuid) => uuid,
        None => medium.random_uuid().map_err(failed)?,
    };
    let window_base = match options.window_base {
        Some(base) => base,
        None => choose_window(&*medium, uuid, options.window_len)?,
    };
    for name in catalog::NEW_FILES.iter().chain(&catalog::FILES).chain(&[NEW_FILE]) {
        catalog::remove_if_there(&*medium, name).map_err(failed)?;
    }
    let block = Superblock {
        prefix: HeaderPrefix::new(Superblock::MAGIC, size_of::<Superblock>() as u32),
        store: uuid,
        window_base,
        window_len: options.window_len,
        generation: 0,
        state: STATE_CLEAN,
        durability: DURABILITY_UNSAID,
        boot_id: Uuid::NIL,
        opener_pid: 0,
        opener_start_ticks: 0,
        formatted_at_s: medium.now_s(),
        client: Uuid::NIL,
        reserved1: [0; 3944],
    };
    let write = |name: &str, contents: &[u8]| -> Result<(), MediumError> {
        medium.create(name, contents.len() as u64)?;
        medium.write_at(name, 0, contents)?;
        medium.sync(name)
    };
    let all = || -> Result<(), MediumError> {
        if !medium.exists(DIR)? {
            medium.make_dir(DIR)?;
        }
        for name in catalog::FILES {
            write(name, &catalog::initial())?;
        }
        write(NEW_FILE, &superblock::initial(block))?;
        medium.sync_dir("")?;
        medium.rename(NEW_FILE, FILE)?;
        medium.sync_dir("")
    };
    all().map_err(failed)?;
    Ok(uuid)
}

fn check_window(options: &FormatOptions) -> Result<(), FormatError> {
    let bad = |text: &str| Err(FormatError::Options(text.into()));
    if options.window_len == 0 || !options.window_len.is_multiple_of(SLOT_SIZE) {
        return bad("window_len is not a multiple of 2 MiB");
    }
    if options.window_len > 1 << 46 {
        return bad("window_len is more than 64 TiB");
    }
    if let Some(base) = options.window_base
        && (base == 0
            || !base.is_multiple_of(SLOT_SIZE)
            || base.checked_add(options.window_len).is_none_or(|end| end > 1 << 47))
    {
        return bad("window_base is not a multiple of 2 MiB below 2^47");
    }
    if options.uuid.is_some_and(|uuid| uuid.is_nil()) {
        return bad("the uuid is nil");
    }
    Ok(())
}

/// A window that depends on the UUID and is free in this process.
fn choose_window(medium: &dyn Medium, uuid: Uuid, len: u64) -> Result<u64, FormatError> {
    let stride = len.next_power_of_two().max(1 << 30);
    let places = (WINDOWS.1 - WINDOWS.0) / stride;
    let hash = cenote_layout::checksum::checksum(0, &uuid.0);
    for attempt in 0..places.min(64) {
        let base = WINDOWS.0 + hash.wrapping_add(attempt) % places * stride;
        if medium.reserve_window(base, len).is_ok() {
            let _ = medium.release_window(base, len);
            return Ok(base);
        }
    }
    Err(FormatError::NoWindow { len })
}

impl Store {
    /// Opens a store: recovers it first, if its last writer did not close it.
    ///
    /// # Errors
    /// See [`OpenError`]. Nothing was changed, except that recovery may have been done in part, which the next open
    /// completes.
    pub fn open(medium: Arc<dyn Medium>, options: OpenOptions) -> Result<(Self, OpenReport), OpenError> {
        let info = medium.describe();
        let path = info.path.clone();
        let failed = |source| OpenError::Medium { path: path.clone(), source: Box::new(source) };
        check_options(&options, &info)?;
        let wants_write = options.access == Access::ReadWrite;
        if wants_write && medium.read_only() {
            return Err(OpenError::ReadOnlyMedium { path });
        }
        if !medium.exists(FILE).map_err(failed)? {
            let begun = medium.exists(NEW_FILE).map_err(failed)?
                || catalog::FILES.iter().any(|name| medium.exists(name).unwrap_or(false));
            return Err(if begun { OpenError::FormatInterrupted { path } } else { OpenError::NotAStore { path } });
        }
        // Before the lock, which may make a file: what is not a store stays as it is.
        superblock::load(&*medium, wants_write)?;
        let lock = take_lock(&*medium, wants_write, options.lock_timeout)?;

        let started = Instant::now();
        let found = superblock::load(&*medium, wants_write)?;
        let (merged, bytes) = catalog::load(&*medium).map_err(failed)?;
        let mut report = OpenReport { clean: found.clean, damage: found.damage, ..OpenReport::default() };
        report.damage.extend(merged.damage.iter().cloned());
        if let (true, Some(file)) = (found.clean, merged.torn) {
            report.damage.push(Damage::Catalog {
                file: catalog::FILES[file],
                offset: 0,
                len: 0,
                detail: "it ends in half a batch although the store was closed".into(),
                effect: DamageEffect::ReadFromOther,
            });
        }
        if !merged.usable {
            return Err(OpenError::CatalogLost { path, damage: merged.damage });
        }
        if merged.canonical.is_none() {
            match options.damage {
                DamagePolicy::Refuse => return Err(OpenError::Catalog { path, damage: merged.damage }),
                DamagePolicy::ReadOnly => report.demoted = wants_write,
                DamagePolicy::SkipDamaged => {}
            }
        }
        let writable = wants_write && !report.demoted;
        let block = found.newest;
        let (base, len) = (block.window_base, block.window_len);
        medium.reserve_window(base, len).map_err(|error| match error {
            MediumError::WindowTaken { .. } => {
                OpenError::WindowTaken { path: path.clone(), base, len, by: who_is_at(base, len) }
            }
            error => failed(error),
        })?;

        // From here on `Inner` owns the window and the lock, and gives both back whatever happens.
        let catalog = Catalog::new(Arc::clone(&medium), &merged, &bytes);
        let durability = options.durability.unwrap_or(info.durability);
        let store = Self(Arc::new(Inner {
            window: Window::new(base, len),
            persistence: medium.persistence(durability),
            medium,
            uuid: block.store,
            writable,
            eager: info.kind == MediumKind::Simulated,
            info,
            options,
            durability,
            token: fork_guard::token(),
            poisoned: OnceLock::new(),
            silent: AtomicBool::new(true),
            control: Mutex::new(Control {
                superblock: block,
                catalog,
                space: Space::new(base, len),
                puddles: BTreeMap::new(),
                graveyard: Vec::new(),
                pools: BTreeMap::new(),
                damage: Vec::new(),
                logs: Logs::default(),
                client: Uuid::NIL,
                registration: None,
                lock: Some(lock),
            }),
        }));
        store.0.bring_up(found.clean, &merged, &bytes, &mut report).map_err(failed)?;
        report.recovery = started.elapsed();
        Ok((store, report))
    }

    /// Closes the store: what was written is on the medium, and the next open finds nothing to recover.
    ///
    /// # Errors
    /// Other handles are alive (the store is then closed with the last of them); logs are in use; a sync failed. The
    /// store is then recovered when it is opened next.
    pub fn close(self) -> Result<(), StoreError> {
        let handles = Arc::strong_count(&self.0) - 1;
        match Arc::try_unwrap(self.0) {
            Ok(inner) => inner.shut_down(),
            Err(_) => Err(StoreError::InUse { handles }),
        }
    }

    /// Lets go of the store as a crash of this process would: mappings and locks are given back, nothing is written. For
    /// crash tests. Other handles keep the mappings until they are dropped.
    pub fn abandon(self) {
        self.0.silent.store(true, Ordering::Release);
    }

    /// Stops acknowledging anything: every further operation that writes fails. For layers above that find out
    /// that what is on the medium is no longer known.
    pub fn poison(&self, reason: &str) {
        self.0.poison(reason);
    }

    /// Fails if nothing may be acknowledged: the store is poisoned, or this process is a fork of its opener.
    ///
    /// # Errors
    /// [`StoreError::Forked`], [`StoreError::Poisoned`].
    #[inline]
    pub fn check_usable(&self) -> Result<(), StoreError> {
        self.0.check_usable()?;
        self.0.check_poisoned()
    }

    /// Whether this process is a fork of the one that opened the store: then it has no access.
    #[inline]
    #[must_use]
    pub fn is_forked(&self) -> bool {
        !fork_guard::is_current(self.0.token)
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

    /// Maps a puddle that nobody has touched yet.
    ///
    /// # Errors
    /// Its file cannot be mapped, or it is damaged.
    pub fn ensure_mapped(&self, puddle: &Puddle) -> Result<(), StoreError> {
        self.0.check_usable()?;
        if puddle.map(&*self.0.medium)? {
            return Ok(());
        }
        Err(StoreError::PuddleDamaged(Damage::Puddle {
            uuid: puddle.uuid(),
            pool: puddle.pool(),
            index: puddle.index(),
            detail: "it is damaged or removed".into(),
        }))
    }

    /// Registers a type and its pointer map (PUD-7). Registering what is known already does nothing.
    ///
    /// # Errors
    /// The record makes no sense; the id is known with another layout; the store is read-only, and does not know the type.
    pub fn register_type(&self, record: &TypeRecord) -> Result<(), StoreError> {
        record.check()?;
        self.0.check_usable()?;
        if let Some(known) = self.type_record(record.id) {
            if *known == *record {
                return Ok(());
            }
            return Err(Box::new(TypeMismatch { known: (*known).clone(), offered: record.clone() }).into());
        }
        let mut control = self.0.begin_write("register a type")?;
        if control.catalog.state.types.contains_key(&record.id) {
            drop(control);
            return self.register_type(record); // another thread was faster
        }
        self.0.commit(&mut control, &[Record::Type(record.clone())])
    }

    /// A registered type.
    #[must_use]
    pub fn type_record(&self, id: TypeId) -> Option<Arc<TypeRecord>> {
        self.0.control().catalog.state.types.get(&id).cloned()
    }

    /// All registered types, by id.
    #[must_use]
    pub fn types(&self) -> Vec<Arc<TypeRecord>> {
        self.0.control().catalog.state.types.values().cloned().collect()
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
            poisoned: self.0.poisoned.get().cloned(),
        }
    }

    pub(crate) fn inner(&self) -> &Inner {
        &self.0
    }
}

fn check_options(options: &OpenOptions, info: &MediumInfo) -> Result<(), OpenError> {
    let size = options.log_puddle_size;
    if size < 2 * PAGE_SIZE || !size.is_multiple_of(PAGE_SIZE) || size > 1 << 30 {
        return Err(OpenError::Options("log_puddle_size is not a multiple of 4 KiB from 8 KiB to 1 GiB".into()));
    }
    if let Some(wanted) = options.durability
        && wanted > info.durability
    {
        return Err(OpenError::Durability {
            path: info.path.clone(),
            wanted,
            given: info.durability,
            note: info.note.clone(),
        });
    }
    Ok(())
}

fn take_lock(medium: &dyn Medium, exclusive: bool, timeout: Duration) -> Result<LockGuard, OpenError> {
    let kind = if exclusive { LockKind::Exclusive } else { LockKind::Shared };
    let path = || medium.describe().path;
    let started = Instant::now();
    loop {
        match medium.lock(LOCK, kind) {
            Ok(Ok(guard)) => return Ok(guard),
            Ok(Err(holder)) => {
                let waited = started.elapsed();
                if waited >= timeout {
                    return Err(OpenError::Locked { path: path(), pid: holder.pid, holder: holder.text, waited });
                }
                std::thread::sleep(LOCK_RETRY.min(timeout - waited));
            }
            Err(source) => return Err(OpenError::Medium { path: path(), source: Box::new(source) }),
        }
    }
}

impl Inner {
    pub(crate) fn control(&self) -> MutexGuard<'_, Control> {
        // A thread that panicked under the lock was between two whole changes, or inside one that the catalog
        // undoes or the poisoning stops: the state is usable.
        self.control.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// The lock, for an operation that writes.
    pub(crate) fn begin_write(&self, what: &'static str) -> Result<MutexGuard<'_, Control>, StoreError> {
        self.check_usable()?;
        if !self.writable {
            return Err(StoreError::ReadOnly { what });
        }
        let control = self.control();
        self.check_poisoned()?;
        Ok(control)
    }

    #[inline]
    pub(crate) fn check_usable(&self) -> Result<(), StoreError> {
        if fork_guard::is_current(self.token) { Ok(()) } else { Err(StoreError::Forked) }
    }

    #[inline]
    pub(crate) fn check_poisoned(&self) -> Result<(), StoreError> {
        match self.poisoned.get() {
            None => Ok(()),
            Some(reason) => Err(StoreError::Poisoned { reason: reason.clone() }),
        }
    }

    pub(crate) fn poison(&self, reason: &str) {
        let _ = self.poisoned.set(reason.to_owned());
    }

    /// Turns a medium's error into the store's; a failed sync poisons.
    pub(crate) fn failed(&self, error: MediumError) -> StoreError {
        if is_sync(&error) {
            self.poison(&error.to_string());
        }
        error.into()
    }

    /// Makes one change of the catalog.
    pub(crate) fn commit(&self, control: &mut Control, records: &[Record]) -> Result<(), StoreError> {
        let split = |error: catalog::AppendError| {
            let (error, unknown) = error.split();
            if unknown {
                self.poison(&error.to_string());
            }
            error
        };
        control.catalog.append(records).map_err(split)?;
        // The change is made, whatever becomes of this.
        if let Err(error) = control.catalog.compact_if_it_pays() {
            let _ = split(error);
        }
        Ok(())
    }

    pub(crate) fn random_uuid(&self) -> Result<Uuid, StoreError> {
        self.medium.random_uuid().map_err(StoreError::from)
    }

    pub(crate) fn random_u64(&self) -> Result<u64, StoreError> {
        let mut bytes = [0; 8];
        bytes.copy_from_slice(&self.random_uuid()?.0[8..]);
        Ok(u64::from_le_bytes(bytes))
    }

    /// Everything between lock and handle, in the order of the module's documentation.
    fn bring_up(
        self: &Arc<Self>,
        clean: bool,
        merged: &catalog::Merged,
        bytes: &catalog::Contents,
        report: &mut OpenReport,
    ) -> Result<(), MediumError> {
        let mut guard = self.control();
        let control = &mut *guard;
        let boot = self.medium.boot_id();
        let crash = match (clean, control.superblock.boot_id == boot) {
            (true, _) => None,
            (false, true) => Some(CrashKind::Process),
            // Never opened for writing: nothing can be lost.
            (false, false) if control.superblock.boot_id.is_nil() => Some(CrashKind::Process),
            (false, false) => Some(CrashKind::Power),
        };
        report.crash = crash;
        control.client = self.medium.random_uuid()?;
        let impossible = control.catalog.state.check(self.window.base(), self.window.len());
        if !impossible.is_empty() {
            // A snapshot would leave out what was taken out, and then its files would pass for orphans.
            control.catalog.freeze();
        }
        report.damage.extend(impossible);
        for puddle in merged.records.iter().filter_map(|r| match r {
            Record::Puddle(p) => Some(p),
            _ => None,
        }) {
            // Also what `check` has taken out: nothing new is put on top of it.
            if control.catalog.state.puddles.contains_key(&puddle.uuid) || control.catalog.is_damaged() {
                control.space.occupy(puddle.addr, puddle.size);
            }
        }
        for damage in &report.damage {
            if let Damage::Puddle { uuid, .. } = damage
                && let Some(Record::Puddle(p)) =
                    merged.records.iter().rev().find(|r| matches!(r, Record::Puddle(p) if p.uuid == *uuid))
            {
                control.space.occupy(p.addr, p.size);
            }
        }
        if self.writable {
            report.catalog_files_repaired = control.catalog.repair(merged, bytes)?;
        }
        let orphans = self.compare_files(control, merged, report)?;
        crate::recovery::recover(self, control, crash, report)?;
        if self.writable {
            for name in &orphans {
                self.medium.remove(&format!("{DIR}/{name}"))?;
                report.orphans_removed += 1;
            }
            if !orphans.is_empty() {
                self.medium.sync_dir(DIR)?;
            }
            control.superblock.state = STATE_OPEN;
            control.superblock.boot_id = boot;
            control.superblock.durability = match self.durability {
                Durability::Process => DURABILITY_PROCESS,
                Durability::Power => DURABILITY_POWER,
            };
            control.superblock.client = control.client;
            let pid = cenote_sys::process::pid();
            control.superblock.opener_pid = u64::from(pid);
            control.superblock.opener_start_ticks = cenote_sys::process::start_ticks(pid).unwrap_or(0);
            superblock::store_next(&*self.medium, &mut control.superblock)?;
            self.silent.store(false, Ordering::Release);
        }
        control.damage = report.damage.clone();
        let (base, len) = (self.window.base() as usize, self.window.len() as usize);
        // SAFETY: `resolve` keeps the rules of resolvers (it reads the slot table and maps); the context is this
        // `Inner`, shared, and unregistered in `release` before it is freed.
        let registered = unsafe { fault::register(base, len, crate::lazy::resolve, Arc::as_ptr(self).cast()) };
        let registration = registered.map_err(|error| {
            self.silent.store(true, Ordering::Release);
            MediumError::from_io(Operation::Map, "the window", std::io::Error::other(error))
        })?;
        control.registration = Some(registration);
        Ok(())
    }

    /// Compares the puddle files with the catalog. Missing files are damage; the names of files without a record are
    /// returned, to be removed, unless records were lost: then such a file may hold a pool, and is kept.
    fn compare_files(
        &self,
        control: &mut Control,
        merged: &catalog::Merged,
        report: &mut OpenReport,
    ) -> Result<Vec<String>, MediumError> {
        let files = match self.medium.list(DIR) {
            Err(error) if error.is_not_found() => Vec::new(),
            files => files?,
        };
        let ids: BTreeMap<Uuid, &String> =
            files.iter().filter(|f| f.len() == 32).filter_map(|f| Some((Uuid::parse(f)?, f))).collect();
        for record in control.catalog.state.puddles.values() {
            if !ids.contains_key(&record.uuid) {
                report.damage.push(Damage::Puddle {
                    uuid: record.uuid,
                    pool: record.pool,
                    index: record.index,
                    detail: format!("its file {DIR}/{} is missing; restore it from a copy of the store", hex(record.uuid)),
                });
            }
        }
        let refused: Vec<Uuid> = report
            .damage
            .iter()
            .filter_map(|d| match d {
                Damage::Puddle { uuid, .. } => Some(*uuid),
                _ => None,
            })
            .collect();
        let mut orphans = Vec::new();
        for (uuid, name) in ids {
            if control.catalog.state.puddles.contains_key(&uuid) || refused.contains(&uuid) {
                continue;
            }
            if merged.canonical.is_some() {
                orphans.push(name.clone());
                continue;
            }
            let mut page = [0; PAGE_SIZE as usize];
            let len = self.medium.read_at(&format!("{DIR}/{name}"), 0, &mut page)?;
            let detail = match read::<PuddleHeader>(&page[..len], false) {
                Ok(header) if header.store == self.uuid => {
                    control.space.occupy(header.addr, header.size);
                    control.catalog.state.next_pool = control.catalog.state.next_pool.max(header.pool.0.saturating_add(1));
                    format!("puddle {} of pool {}, {} bytes at {:#x}", header.index, header.pool, header.size, header.addr)
                }
                Ok(header) => format!("a puddle of store {}", header.store),
                Err(error) => error.to_string(),
            };
            report.damage.push(Damage::Orphan { name: format!("{DIR}/{name}"), detail });
        }
        Ok(orphans)
    }

    /// Writes what a close writes, then lets go.
    fn shut_down(&self) -> Result<(), StoreError> {
        let written = self.write_close();
        self.silent.store(true, Ordering::Release);
        written
    }

    fn write_close(&self) -> Result<(), StoreError> {
        self.check_usable()?;
        if self.silent.load(Ordering::Acquire) || !self.writable {
            return Ok(());
        }
        self.check_poisoned()?;
        let mut guard = self.control();
        let control = &mut *guard;
        let logs = control.logs.in_use();
        if logs > 0 {
            return Err(StoreError::LogsInUse { logs });
        }
        self.persistence.fence();
        self.sync_leased(control)?;
        let (records, surplus) = self.closing_records(control);
        self.commit(control, &records)?;
        for record in surplus {
            let file = crate::puddle::file_name(record.uuid);
            let _ = self.medium.remove(core::str::from_utf8(&file).unwrap_or_default());
        }
        control.superblock.state = STATE_CLEAN;
        superblock::store_next(&*self.medium, &mut control.superblock).map_err(|error| self.failed(error))
    }
}

impl Drop for Inner {
    fn drop(&mut self) {
        // In a forked child nothing is ours: not the mappings, which are not there, nor the lock.
        let forked = !fork_guard::is_current(self.token);
        if !forked && let Err(error) = self.write_close() {
            // Nobody is left to tell; the next open recovers.
            self.poison(&error.to_string());
        }
        let control = self.control.get_mut().unwrap_or_else(PoisonError::into_inner);
        if forked {
            core::mem::forget(control.registration.take());
            core::mem::forget(control.lock.take());
        }
        control.registration = None; // waits for resolvers that are running
        if !forked {
            let _ = self.medium.release_window(self.window.base(), self.window.len());
        }
        control.pools.clear();
        for puddle in core::mem::take(&mut control.puddles).into_values().chain(core::mem::take(&mut control.graveyard)) {
            // SAFETY: made by `Box::leak`, once in exactly one of the two collections, and no handle is left.
            drop(unsafe { Box::from_raw(puddle.as_ptr()) });
        }
        control.lock = None; // last: whoever gets it finds everything given back
    }
}

fn hex(uuid: Uuid) -> String {
    uuid.to_hex().iter().map(|b| char::from(*b)).collect()
}

/// Whether an error is a failed sync: then what is on the medium is not known.
fn is_sync(error: &MediumError) -> bool {
    match error {
        MediumError::Io { op, .. } | MediumError::NoSpace { op, .. } | MediumError::Denied { op, .. } => {
            matches!(op, Operation::Sync | Operation::SyncDirectory)
        }
        _ => false,
    }
}
