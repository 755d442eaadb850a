//! A store that another process keeps (PUD-1): the client's side.
//!
//! The daemon has the catalog, the files and the lock. What a client has is a [`Keeper`], who asks
//! the daemon; the descriptors that it was handed, as the files of a [`GrantedMedium`]; and a
//! *mirror*: a catalog in memory that says of the store what the client was told. So everything
//! above reads one and the same [`crate::Store`], and only operations that change the catalog come
//! by here.
//!
//! **A change of the mirror follows the daemon's answer**: what the daemon has not granted is in no
//! mirror, and what it has granted stands in its catalog, durably, before the client hears of it.
//! So replay never needs the mirror, which dies with the client.
//!
//! Puddles are mapped when they are granted, not when they are touched, because their descriptors
//! are closed then. The client writes to no file by name, takes no lock, and neither
//! opens nor closes the store: closing is a goodbye, after which the daemon asserts for itself that
//! the client's logs hold nothing.

use crate::backup::BackedUp;
use crate::catalog::Catalog;
use crate::error::{OpenError, StoreError};
use crate::guest_objects::{ListedObject, NewObject};
use crate::journals::Journals;
use crate::logs::Logs;
use crate::object::ObjectInfo;
use crate::options::{Access, OpenOptions, PoolOptions};
use crate::pool::{PoolCore, PoolHandle};
use crate::psync::Psync;
use crate::puddle::{Puddle, file_name, primary_name};
use crate::relocate::ImportManifest;
use crate::relocate::frontier::Frontier;
use crate::relocate::hosted::Holds;
use crate::report::{Damage, PoolStart};
use crate::rewriter::{Backend, RelocationOptions};
use crate::set_aside::{LogDecision, SetAside};
use crate::shadow::Shadows;
use crate::spare::Ahead;
use crate::store::{Control, Inner, Store};
use crate::window::{Space, Window, who_is_at};
use cenote_layout::catalog::{
    ClientRecord, LeaseRecord, PoolMode, PoolRecord, PuddleRecord, Record,
};
use cenote_layout::id::{PoolId, Uuid};
use cenote_layout::puddle::Role;
use cenote_layout::superblock::Superblock;
use cenote_layout::types::TypeRecord;
use cenote_log::CrashKind;
use cenote_medium::{Durability, GrantedMedium, MapMode, MediumError, MediumInfo, OwnedMedium};
use cenote_sys::fork_guard;
use core::ptr::NonNull;
use core::sync::atomic::AtomicBool;
use std::collections::{BTreeMap, BTreeSet};
use std::fs::File;
use std::os::fd::OwnedFd;
use std::path::Path;
use std::sync::{Arc, Mutex, PoisonError};
use zerocopy::FromZeros;

/// A puddle that a client was given: its record, and its file, opened for what the client may do.
#[derive(Debug)]
pub struct Granted {
    /// What the catalog says.
    pub record: PuddleRecord,
    /// The file.
    pub file: File,
}

/// A pool that a client was given.
#[derive(Debug)]
pub struct Grant {
    /// What the catalog says.
    pub record: PoolRecord,
    /// All its puddles, in index order.
    pub puddles: Vec<Granted>,
    /// How the client finds it.
    pub start: PoolStart,
    /// Whether its heap must be traced first.
    pub trace_due: bool,
    /// Why its values may not be what its transactions made them; see [`PoolHandle::doubts`].
    pub doubts: Vec<String>,
    /// What the daemon calls this process, if the pool is granted to others for writing too.
    pub member: Option<u64>,
    /// How many types the store knows: a client that knows fewer asks for them.
    pub types: u64,
}

/// Who has a shared pool.
#[derive(Clone, Debug, Default)]
pub struct MemberList {
    /// Names of the images ([`cenote_sys::process::name_of`]) that have it, and live or have logs
    /// that are not replayed yet.
    pub living: Vec<u64>,
    /// Why its values may not be what its transactions made them.
    pub doubts: Vec<String>,
}

/// A pool as the daemon lists it.
#[derive(Clone, Debug)]
pub struct Listed {
    /// What the catalog says.
    pub record: PoolRecord,
    /// Bytes of its puddles.
    pub bytes: u64,
    /// Number of its puddles.
    pub puddles: u64,
}

/// What a client learns when it is admitted.
#[derive(Clone, Debug)]
pub struct Home {
    /// Its identity.
    pub client: Uuid,
    /// The store's.
    pub store: Uuid,
    /// First address of the window.
    pub window_base: u64,
    /// Bytes of the window.
    pub window_len: u64,
    /// What the store lies on.
    pub medium: MediumInfo,
    /// Durability level of commits.
    pub durability: Durability,
}

/// What a change of a pool's owner, group and mode says; `None` leaves as it is.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct PermissionChange {
    /// The user that owns it.
    pub uid: Option<u32>,
    /// Its group.
    pub gid: Option<u32>,
    /// Permission bits, as of a file; at most 0o777.
    pub permissions: Option<u32>,
}

/// Who asks the daemon. Every method waits for the answer; what it returns is durable as the same
/// operation of an embedded store is.
pub trait Keeper: Send + Sync + core::fmt::Debug {
    /// Creates a pool, under the caller's ids.
    ///
    /// # Errors
    /// As [`Store::create_pool`]; the daemon cannot be reached.
    fn create_pool(&self, name: &str, options: &PoolOptions) -> Result<PoolId, StoreError>;
    /// Removes a pool.
    ///
    /// # Errors
    /// As [`Store::remove_pool`]; the caller is not its owner.
    fn remove_pool(&self, name: &str) -> Result<(), StoreError>;
    /// All pools.
    ///
    /// # Errors
    /// The daemon cannot be reached.
    fn pools(&self) -> Result<Vec<Listed>, StoreError>;
    /// Grants a pool with all its puddles.
    ///
    /// # Errors
    /// As [`Store::open_pool`]; its permissions do not allow it; another process has it, and one of
    /// the two writes.
    fn open_pool(&self, name: &str, access: Access) -> Result<Grant, StoreError>;
    /// Grants a pool that the caller writes one more puddle, its number `index`.
    ///
    /// # Errors
    /// As [`PoolHandle::take_puddle`].
    fn take_puddle(&self, pool: PoolId, index: u32, size: u64) -> Result<Granted, StoreError>;
    /// Grants the puddles of a pool that the caller has, from number `first` on.
    ///
    /// # Errors
    /// The caller does not have it; the daemon cannot be reached.
    fn puddles_from(&self, pool: PoolId, first: u32) -> Result<Vec<Granted>, StoreError>;
    /// Who has a pool that the caller shares. Those that have ended are recovered before the
    /// answer. `patient`: a daemon that has ended is waited for.
    ///
    /// # Errors
    /// The caller does not have it; the daemon cannot be reached.
    fn members(&self, pool: PoolId, patient: bool) -> Result<MemberList, StoreError>;
    /// Grants the caller's log space (made the first time, with its header) or a further puddle for
    /// a log.
    ///
    /// # Errors
    /// As [`Store::acquire_log`].
    fn log_puddle(&self, role: Role, size: u64) -> Result<Granted, StoreError>;
    /// Registers types.
    ///
    /// # Errors
    /// As [`Store::register_types`].
    fn register_types(&self, records: &[&TypeRecord]) -> Result<(), StoreError>;
    /// All types.
    ///
    /// # Errors
    /// The daemon cannot be reached.
    fn types(&self) -> Result<Vec<TypeRecord>, StoreError>;
    /// Says that a pool has been traced.
    ///
    /// # Errors
    /// As [`PoolHandle::trace_done`].
    fn trace_done(&self, pool: PoolId) -> Result<(), StoreError>;
    /// Takes space for a part of a puddle of a pool that the caller writes.
    ///
    /// # Errors
    /// As [`PoolHandle::ensure_space`].
    fn ensure_space(&self, pool: PoolId, addr: u64, len: u64) -> Result<(), StoreError>;
    /// Changes a pool's owner, group or mode.
    ///
    /// # Errors
    /// As [`Store::set_permissions`].
    fn set_permissions(&self, name: &str, change: PermissionChange) -> Result<(), StoreError>;
    /// Clients whose logs are set aside, and about which the caller may decide.
    ///
    /// # Errors
    /// The daemon cannot be reached.
    fn set_aside(&self) -> Result<Vec<SetAside>, StoreError>;
    /// Decides about the logs of one of them.
    ///
    /// # Errors
    /// As [`Store::decide_logs`].
    fn decide_logs(&self, client: Uuid, decision: LogDecision) -> Result<(), StoreError>;
    /// Says that a torn pool is whole.
    ///
    /// # Errors
    /// As [`Store::declare_whole`].
    fn declare_whole(&self, name: &str) -> Result<(), StoreError>;
    /// The primaries of a granted pool in shadowed mode, to be read, from number `first` on: what
    /// its last psync left, all of it in the files.
    ///
    /// # Errors
    /// The caller does not write it; the daemon cannot be reached.
    fn primaries_from(&self, pool: PoolId, first: u32) -> Result<Vec<Granted>, StoreError>;
    /// Psyncs puddles of pools in shadowed mode that the caller writes: lines of `runs` primaries
    /// by their place in `puddles`, in `parcel` ([`cenote_journal::Parcel`]).
    ///
    /// # Errors
    /// As [`crate::Psyncing::commit`].
    fn psync_pools(&self, puddles: &[Uuid], runs: u32, parcel: &File) -> Result<Psync, StoreError>;
    /// All objects, or the one of this name.
    ///
    /// # Errors
    /// [`StoreError::ObjectUnknown`]; the daemon cannot be reached.
    fn objects(&self, name: Option<&str>) -> Result<Vec<ListedObject>, StoreError>;
    /// Creates an object, under the caller's ids.
    ///
    /// # Errors
    /// As [`Store::create_object`].
    fn create_object(&self, new: &NewObject) -> Result<ObjectInfo, StoreError>;
    /// Removes an object.
    ///
    /// # Errors
    /// [`StoreError::ObjectUnknown`], [`StoreError::ObjectBusy`], [`StoreError::ObjectDenied`].
    fn destroy_object(&self, name: &str) -> Result<(), StoreError>;
    /// Attaches an object: its file, to be read whatever it is attached for.
    ///
    /// # Errors
    /// [`StoreError::ObjectUnknown`], [`StoreError::ObjectBusy`], [`StoreError::ObjectDenied`]; a
    /// damaged file.
    fn attach_object(&self, name: &str, writable: bool)
    -> Result<(ListedObject, File), StoreError>;
    /// Gives an object back.
    ///
    /// # Errors
    /// The daemon cannot be reached; what was psynced could not be brought to the object's file.
    fn detach_object(&self, object: Uuid) -> Result<(), StoreError>;
    /// Psyncs objects that the caller has attached for writing; as [`Keeper::psync_pools`].
    /// `settled`: on return their files hold it.
    ///
    /// # Errors
    /// As of a psync of an embedded store.
    fn psync_objects(
        &self,
        objects: &[Uuid],
        runs: u32,
        settled: bool,
        parcel: &File,
    ) -> Result<Psync, StoreError>;
    /// Changes an object's owner, group or mode.
    ///
    /// # Errors
    /// As [`Store::set_object_owner`].
    fn set_object_owner(&self, name: &str, change: PermissionChange) -> Result<(), StoreError>;
    /// Grants a pool for reading, without its puddles; see [`Keeper::page_of_puddles`].
    ///
    /// # Errors
    /// As [`Keeper::open_pool`].
    fn grant_to_read(&self, name: &str) -> Result<PoolRecord, StoreError>;
    /// Some puddles of a pool that the caller has, from number `first` on, and whether there are
    /// more.
    ///
    /// # Errors
    /// The caller does not have it; the daemon cannot be reached.
    fn page_of_puddles(&self, pool: PoolId, first: u32)
    -> Result<(Vec<Granted>, bool), StoreError>;
    /// Where the puddles of all pools lie; identities are left out.
    ///
    /// # Errors
    /// The daemon cannot be reached.
    fn places(&self) -> Result<Vec<PuddleRecord>, StoreError>;
    /// Copies a pool: the copy's number, whether it moved, and puddles that are to be rewritten.
    ///
    /// # Errors
    /// As [`Store::clone_pool`]; its permissions do not allow to read it; somebody writes it.
    fn clone_pool(&self, name: &str, copy_name: &str) -> Result<(PoolId, bool, u64), StoreError>;
    /// Gives a pool new addresses.
    ///
    /// # Errors
    /// As [`Store::randomize_pool`]; its permissions do not allow to write it; somebody has a pool
    /// of the store.
    fn randomize_pool(&self, name: &str) -> Result<(), StoreError>;
    /// Checks what can be checked of an import, and changes nothing.
    ///
    /// # Errors
    /// As [`Store::check_import`]; limits of the session.
    fn check_import(&self, manifest: &ImportManifest) -> Result<(), StoreError>;
    /// Begins an import, and gives its number.
    ///
    /// # Errors
    /// As [`Store::begin_import`]; limits of the session.
    fn begin_import(&self, manifest: &ImportManifest) -> Result<u64, StoreError>;
    /// Writes into a puddle of an import: stretches by offset and length, and their bytes one after
    /// the other.
    ///
    /// # Errors
    /// There is no such import, as after the end of the daemon that knew it; a stretch outside the
    /// puddle's body; the disk is full.
    fn fill_import(
        &self,
        import: u64,
        slot: u32,
        pieces: &[(u64, u32)],
        bytes: &[u8],
    ) -> Result<(), StoreError>;
    /// Makes the pools of an import pools of the store: their numbers, whether they moved, and
    /// puddles that are to be rewritten.
    ///
    /// # Errors
    /// As [`crate::relocate::Import::commit`]; there is no such import.
    fn commit_import(
        &self,
        import: u64,
        pools: u32,
    ) -> Result<Vec<(PoolId, bool, u64)>, StoreError>;
    /// Ends an import that comes to nothing.
    ///
    /// # Errors
    /// The daemon cannot be reached.
    fn abandon_import(&self, import: u64) -> Result<(), StoreError>;
    /// A socket over which the daemon says that the caller's transactions are to stand still.
    /// `patient`: a daemon that has ended is waited for.
    ///
    /// # Errors
    /// The daemon cannot be reached.
    fn attend(&self, patient: bool) -> Result<OwnedFd, StoreError>;
    /// Has the daemon copy the store. `more` is asked now and then, and may end it.
    ///
    /// # Errors
    /// [`StoreError::Backup`], [`StoreError::NotStill`]: there is no copy.
    fn backup(&self, target: &Path, more: &mut dyn FnMut() -> bool)
    -> Result<BackedUp, StoreError>;
    /// Ends the session.
    ///
    /// # Errors
    /// The daemon cannot be reached; it then takes the end of this process for the goodbye.
    fn goodbye(&self) -> Result<(), StoreError>;
}

/// What a connected store has beside an embedded one.
#[derive(Debug)]
pub(crate) struct Connection {
    pub(crate) keeper: Box<dyn Keeper>,
    files: Arc<GrantedMedium>,
    /// Bytes and puddles of pools, as the daemon listed them.
    pub(crate) listed: Mutex<BTreeMap<PoolId, (u64, u64)>>,
    /// Puddles of a pool that came with the one that was asked for, to be read next. Whoever opens
    /// such a file holds this: its name is admitted by one at a time.
    pub(crate) ahead: Mutex<Vec<Granted>>,
}

impl Store {
    /// The daemon that keeps the store, if one does.
    ///
    /// # Safety
    /// The caller sends no request that takes away what this process uses: a pool or an object that
    /// is open here is not removed, detached or moved, a pool is said to be traced only when it was
    /// ([`crate::PoolHandle::trace_done`]), registered types are as their records say, and
    /// [`Keeper::goodbye`] is the last request of a store that nothing uses.
    #[must_use]
    pub unsafe fn keeper(&self) -> Option<&dyn Keeper> {
        self.own_keeper()
    }

    /// [`Store::keeper`], for this crate, which keeps its contract at each use.
    pub(crate) fn own_keeper(&self) -> Option<&dyn Keeper> {
        self.inner().connection.as_ref().map(|connection| &*connection.keeper)
    }

    /// Takes a file that the daemon handed over, under its name in the store, until it is mapped or
    /// [`Store::dismiss`]ed.
    ///
    /// # Errors
    /// A name that no file has.
    ///
    /// # Safety
    /// It is the file of that name in the daemon's store. What is mapped of it next is believed.
    pub unsafe fn admit_file(&self, name: &str, file: File) -> Result<(), StoreError> {
        match &self.inner().connection {
            Some(connection) => Ok(connection.files.admit(name, file)?),
            None => Ok(()),
        }
    }

    /// Forgets such a file.
    ///
    /// # Safety
    /// The caller admitted it, and nothing is about to map it. Another thread may have admitted a
    /// file of the same name; only one of them maps it.
    pub unsafe fn dismiss(&self, name: &str) {
        if let Some(connection) = &self.inner().connection {
            connection.files.dismiss(name);
        }
    }
}

impl Connection {
    /// Has both files of each puddle of a pool in shadowed mode, to be read, until they are
    /// dismissed by these names.
    pub(crate) fn admit_files_of(&self, pool: PoolId) -> Result<Vec<String>, StoreError> {
        let mut names = Vec::new();
        let shadows = self
            .keeper
            .puddles_from(pool, 0)?
            .into_iter()
            .map(|one| (file_name(one.record.uuid), one));
        let primaries = self.keeper.primaries_from(pool, 0)?.into_iter();
        for (name, granted) in
            shadows.chain(primaries.map(|one| (primary_name(one.record.uuid), one)))
        {
            self.files.admit(crate::puddle::text(&name), granted.file)?;
            names.push(crate::puddle::text(&name).to_owned());
        }
        Ok(names)
    }

    pub(crate) fn dismiss(&self, name: &str) {
        self.files.dismiss(name);
    }

    /// Makes a granted file the one that its puddle maps next.
    fn admit(&self, granted: Granted) -> Result<PuddleRecord, StoreError> {
        let name = file_name(granted.record.uuid);
        self.files.admit(crate::puddle::text(&name), granted.file)?;
        Ok(granted.record)
    }
}

impl Store {
    /// A store that a daemon keeps, as one of its clients. No file is opened, nothing is recovered:
    /// the daemon has done that.
    ///
    /// # Errors
    /// The window's addresses are taken in this process ([`OpenError::WindowOfDaemon`]); the daemon
    /// cannot be reached, or says what cannot be.
    ///
    /// # Safety
    /// The keeper passes on what the daemon of this store grants, and nothing else: its files are
    /// mapped into the window, and what is in them is believed.
    pub unsafe fn connect(home: &Home, keeper: Box<dyn Keeper>) -> Result<Self, OpenError> {
        let path = home.medium.path.clone();
        let failed = |source| OpenError::Medium { path: path.clone(), source: Box::new(source) };
        let refused =
            |error: StoreError| OpenError::Daemon { path: path.clone(), detail: error.to_string() };
        let (base, len) = (home.window_base, home.window_len);
        let files = Arc::new(GrantedMedium::new(home.medium.clone()));
        // SAFETY: the files are the daemon's, which changes them; this medium refuses to.
        let medium = unsafe { OwnedMedium::new(Arc::clone(&files) as _) };
        medium.reserve_window(base, len).map_err(|error| match error {
            MediumError::WindowTaken { .. } => OpenError::WindowOfDaemon {
                path: path.clone(),
                base,
                len,
                by: who_is_at(base, len),
            },
            error => failed(error),
        })?;
        crate::known::note(base, len);
        let mut superblock = Superblock::new_zeroed();
        (superblock.store, superblock.window_base, superblock.window_len) = (home.store, base, len);
        let poisoned = Arc::default();
        let (files_of, of) = (medium.clone(), home.store);
        // What has moved was rewritten by the daemon, all of it, before it is granted.
        let relocation = RelocationOptions { rewriter: None, backend: Backend::Eager };
        let frontier =
            Frontier::new(files_of, of, (false, false), relocation, Arc::clone(&poisoned));
        let store = Self::new(Arc::new(Inner {
            window: Window::of_store(base, len, 0, &home.medium.path),
            persistence: medium.persistence(home.durability),
            info: home.medium.clone(),
            uuid: home.store,
            writable: true,
            eager: true,
            options: OpenOptions { spare_bytes_max: 0, ..OpenOptions::default() },
            durability: home.durability,
            token: fork_guard::token(),
            poisoned,
            stamps: crate::stamps::Stamps::default(),
            shadows: Shadows::default(),
            frontier,
            replaying: Mutex::default(),
            silent: AtomicBool::new(false),
            connection: Some(Connection {
                keeper,
                files,
                listed: Mutex::default(),
                ahead: Mutex::default(),
            }),
            fence: None,
            journals: Mutex::default(),
            files_moving: Mutex::default(),
            control: Mutex::new(Control {
                superblock,
                catalog: Catalog::mirror(medium.clone()),
                space: Space::new(base, len),
                puddles: BTreeMap::new(),
                graveyard: Vec::new(),
                pools: BTreeMap::new(),
                damage: Vec::new(),
                dirty: BTreeMap::new(),
                logs: Logs::default(),
                ahead: Ahead::default(),
                hosted: BTreeMap::new(),
                held: Holds::default(),
                journals: Journals::default(),
                kept: crate::kept::Kept::default(),
                checked_pools: BTreeSet::new(),
                unchecked_objects: BTreeSet::new(),
                client: home.client,
                registration: None,
                lock: None,
            }),
            medium,
        }));
        store.learn_types().map_err(refused)?;
        store.learn_pools().map_err(refused)?;
        let inner = store.arc();
        let registration = crate::lazy::register(inner)
            .map_err(|error| refused(StoreError::Refused { detail: error.to_string() }))?;
        inner.control().registration = Some(registration);
        Ok(store)
    }

    /// Whether a daemon keeps the store, and this process is a client.
    #[must_use]
    pub fn is_connected(&self) -> bool {
        self.inner().connection.is_some()
    }

    /// Takes over what types the daemon knows: other clients register some. Nothing to do in an
    /// embedded store.
    ///
    /// # Errors
    /// The daemon cannot be asked.
    pub fn learn_types(&self) -> Result<(), StoreError> {
        let Some(connection) = &self.inner().connection else { return Ok(()) };
        let types = connection.keeper.types()?;
        let mut control = self.inner().control();
        for record in types {
            record.check()?;
            control.catalog.state.apply(&Record::Type(record));
        }
        Ok(())
    }

    /// Takes over what pools there are. Those that this process has open stay as they are.
    pub(crate) fn learn_pools(&self) -> Result<(), StoreError> {
        let Some(connection) = &self.inner().connection else { return Ok(()) };
        let listed = connection.keeper.pools()?;
        let mut control = self.inner().control();
        let open: Vec<PoolId> = control.pools.keys().copied().collect();
        let gone: Vec<PoolId> = control.catalog.state.pools.keys().copied().collect();
        for pool in gone
            .into_iter()
            .filter(|pool| !open.contains(pool) && listed.iter().all(|l| l.record.id != *pool))
        {
            control.catalog.state.apply(&Record::PoolRemoved(pool));
        }
        let mut sums = connection.listed.lock().unwrap_or_else(PoisonError::into_inner);
        sums.clear();
        for pool in listed {
            sums.insert(pool.record.id, (pool.bytes, pool.puddles));
            control.catalog.state.apply(&Record::Pool(pool.record));
        }
        Ok(())
    }

    /// [`Store::open_pool`] of a client: asks for a grant, maps what was granted, and makes it
    /// findable.
    pub(crate) fn open_granted(
        &self,
        connection: &Connection,
        name: &str,
        access: Access,
    ) -> Result<PoolHandle, StoreError> {
        let inner = self.inner();
        let mut control = inner.control();
        inner.check_poisoned()?;
        let (mut writable, share) = (access.writes(), access == Access::Shared);
        let known = control
            .catalog
            .state
            .names
            .get(name)
            .and_then(|id| control.pools.get(id))
            .map(Arc::clone);
        if let Some(core) = known {
            let id = core.record().id;
            let held = control.catalog.state.leases.get(&(control.client, id)).copied();
            // The list has the other one: nobody uses it here, and it becomes shared.
            let becomes = share && !core.is_shared() && Arc::strong_count(&core) <= 2;
            if (held == Some(true) && !becomes) || !writable {
                // What others write can be looked at only as one of them.
                let writable = writable || core.is_shared();
                return Ok(PoolHandle::new(core, self.clone(), writable));
            }
            if becomes {
                // Whatever comes of it, the daemon is asked from now on what this client has.
                let client = control.client;
                control.catalog.state.leases.remove(&(client, id));
            }
        }
        let grant = connection.keeper.open_pool(name, access)?;
        let id = grant.record.id;
        if control.catalog.state.types.len() as u64 != grant.types {
            for record in connection.keeper.types()? {
                record.check()?;
                control.catalog.state.apply(&Record::Type(record));
            }
        }
        let client = control.client;
        let state = &mut control.catalog.state;
        state.apply(&Record::Pool(grant.record.clone()));
        writable |= grant.member.is_some();
        state.apply(&Record::Lease(LeaseRecord { client, pool: id, writable }));
        state.apply(&Record::PoolUsed(id));
        if grant.trace_due {
            state.apply(&Record::TraceDue(id));
        }
        note_doubts(&mut control, id, grant.doubts);
        let shadowed = grant.record.mode == PoolMode::Shadowed;
        let mode = match (writable, shadowed) {
            (false, _) => MapMode::ReadOnly,
            (true, false) => MapMode::ReadWrite,
            (true, true) => MapMode::Tracked,
        };
        let mut records = Vec::with_capacity(grant.puddles.len());
        for granted in grant.puddles {
            records.push(inner.admit_granted(connection, &mut control, granted)?);
        }
        if writable && shadowed {
            // Before anything can be stored into: pages are noted from the first on, and those that
            // the dead have left are looked for.
            if grant.start == PoolStart::Dirty(CrashKind::Process) {
                control.dirty.insert(id, CrashKind::Process);
            }
            inner.shadow_of(&mut control, id)?;
        }
        let mut puddles = Vec::with_capacity(records.len());
        for record in records {
            puddles.push(inner.map_admitted(connection, &mut control, record, mode)?);
        }
        let core = match control.pools.get(&id) {
            Some(core) => {
                core.set_puddles(puddles);
                Arc::clone(core)
            }
            None => Arc::new(PoolCore::granted(grant.record, puddles, grant.start)),
        };
        if let Some(me) = grant.member {
            core.share(me);
        }
        control.pools.insert(id, Arc::clone(&core));
        Ok(PoolHandle::new(core, self.clone(), writable))
    }

    /// [`PoolHandle::learn_puddles`] of a client.
    pub(crate) fn learn_puddles_of(
        &self,
        connection: &Connection,
        core: &PoolCore,
    ) -> Result<(), StoreError> {
        let (inner, id) = (self.inner(), core.record().id);
        let mut control = inner.control();
        inner.check_usable()?;
        let first = control.catalog.state.puddles_of(id).last().map_or(0, |last| last.index + 1);
        for granted in connection.keeper.puddles_from(id, first)? {
            let puddle =
                inner.map_granted(connection, &mut control, granted, MapMode::ReadWrite)?;
            core.add_puddle(puddle);
        }
        Ok(())
    }

    /// [`PoolHandle::take_puddle`] of a client: what the daemon granted, mapped.
    pub(crate) fn take_granted(
        &self,
        connection: &Connection,
        control: &mut Control,
        (pool, index, size): (PoolId, u32, u64),
    ) -> Result<PuddleRecord, StoreError> {
        let granted = connection.keeper.take_puddle(pool, index, size)?;
        self.inner().admit_granted(connection, control, granted)
    }
}

/// Notes why a pool's values may not be what its transactions made them.
pub(crate) fn note_doubts(control: &mut Control, pool: PoolId, doubts: Vec<String>) {
    control
        .damage
        .retain(|damage| !matches!(damage, Damage::Log { pools, .. } if pools.contains(&pool)));
    control.damage.extend(doubts.into_iter().map(|detail| Damage::Log {
        client: Uuid::NIL,
        log_id: 0,
        puddle: Uuid::NIL,
        detail,
        pools: vec![pool],
    }));
}

impl Inner {
    /// Maps a puddle of a pool that was granted, and makes it findable.
    fn map_granted(
        &self,
        connection: &Connection,
        control: &mut Control,
        granted: Granted,
        mode: MapMode,
    ) -> Result<NonNull<Puddle>, StoreError> {
        let record = self.admit_granted(connection, control, granted)?;
        self.map_admitted(connection, control, record, mode)
    }

    /// Takes a puddle over that was granted, and has its file.
    fn admit_granted(
        &self,
        connection: &Connection,
        control: &mut Control,
        granted: Granted,
    ) -> Result<PuddleRecord, StoreError> {
        let record = connection.admit(granted)?;
        check_granted(control, &record, (self.window.base(), self.window.len()))?;
        control.space.occupy(record.addr, record.size);
        control.catalog.state.apply(&Record::Puddle(record));
        Ok(record)
    }

    /// Maps it, and makes it findable.
    fn map_admitted(
        &self,
        connection: &Connection,
        control: &mut Control,
        record: PuddleRecord,
        mode: MapMode,
    ) -> Result<NonNull<Puddle>, StoreError> {
        let puddle = self.own(control, record, mode);
        // SAFETY: puddles live until the store is dropped; the range was checked to lie in the
        // window, beside all others.
        unsafe {
            puddle.as_ref().set_mode(&self.medium, mode)?;
            puddle.as_ref().map(&self.medium)?;
            self.window.insert(puddle.as_ref());
        }
        connection.files.dismiss(crate::puddle::text(&file_name(record.uuid)));
        Ok(puddle)
    }

    /// A puddle for logs, from the daemon. The log space comes with its header.
    pub(crate) fn granted_log(
        &self,
        connection: &Connection,
        control: &mut Control,
        role: Role,
        size: u64,
    ) -> Result<PuddleRecord, StoreError> {
        let granted = connection.keeper.log_puddle(role, size)?;
        let record = self.admit_granted(connection, control, granted)?;
        if role == Role::LogSpace {
            let client = control.client;
            control
                .catalog
                .state
                .apply(&Record::Client(ClientRecord { client, log_space: record.uuid }));
        }
        Ok(record)
    }
}

/// Refuses a record that no daemon in its senses sends: outside the window, or over another puddle.
fn check_granted(
    control: &Control,
    record: &PuddleRecord,
    (base, len): (u64, u64),
) -> Result<(), StoreError> {
    let end = record.addr.checked_add(record.size);
    let inside = record.addr >= base && end.is_some_and(|end| end <= base + len);
    let aligned = record.addr.is_multiple_of(cenote_layout::SLOT_SIZE)
        && record.size.is_multiple_of(cenote_layout::PAGE_SIZE)
        && record.size != 0;
    let other = control.catalog.state.puddles.values().find(|other| {
        other.uuid != record.uuid
            && record.addr
                < other.addr.saturating_add(other.size.next_multiple_of(cenote_layout::SLOT_SIZE))
            && other.addr < end.unwrap_or(u64::MAX)
    });
    // Where a removed puddle was, another may come; one that is mapped here stays.
    let mapped = other.is_some_and(|other| control.puddles.contains_key(&other.uuid));
    if inside && aligned && !mapped {
        return Ok(());
    }
    let detail = format!(
        "it granted a puddle of {} bytes at {:#x}, which cannot be",
        record.size, record.addr
    );
    Err(StoreError::Refused { detail })
}
