//! The objects of a store: creating, finding and removing them, who has them attached, and recovery.
//!
//! Invariant: in a process, one [`Shared`] answers for all objects of an open store, so that there is one journal and one table of
//! attachments, however often [`Objects::open`] is called. A handle of one store is never held by whoever opens the objects of another, not even for a
//! moment: closing a store would find it in use. And who opens them while the last handle goes waits until that has written what it has to write.

use crate::at_rest::{self, View};
use crate::attached::Attached;
use crate::connected::{self, Door};
use crate::dirty::Mechanism;
use crate::error::ObjectError;
use crate::header::{self, Found};
use crate::options::{ObjectOptions, ObjectsOptions, Permission, Trim};
use crate::snapshot::{self, Blocks, Restored, Snapshot};
use cenote_atrest::{Keyring, Mode, Protection};
use cenote_journal::{Guard, Home, Journal, Scan, Settings, Stopped, is_failed_sync, scan};
use cenote_layout::PAGE_SIZE;
use cenote_layout::catalog::AtRest;
use cenote_layout::id::Uuid;
use cenote_layout::object::ObjectState;
use cenote_medium::planted::{Bug, planted};
use cenote_medium::{FileHandle, Medium, MediumError, MediumKind};
use cenote_store::{Credentials, Keeper, NewObject, ObjectInfo, PermissionChange, Store, StoreError};
use cenote_sys::process;
use core::fmt;
use core::sync::atomic::{AtomicBool, Ordering};
use std::collections::btree_map::Entry;
use std::collections::{BTreeMap, BTreeSet};
use std::path::Path;
use std::sync::{Arc, Condvar, Mutex, MutexGuard, OnceLock, PoisonError, Weak};
use std::thread::JoinHandle;

/// The objects of an open store. Cloning is cheap. The store stays open while one of these or an [`Attached`] lives.
#[derive(Clone)]
pub struct Objects(Arc<Shared>);

impl fmt::Debug for Objects {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Objects of {:?}", self.0.store)
    }
}

/// What recovery did when the objects were opened.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Recovery {
    /// Committed records that were written to the primaries again (or, in a read-only store, laid over them).
    pub records: u64,
    /// Objects that were not in state D, R or W when their session ended: name, and `Psync` or `Copy`.
    pub objects: Vec<(String, ObjectState)>,
}

/// What is known about one object.
#[derive(Clone, Debug)]
pub struct Info {
    /// Name, length, address, permissions.
    pub object: ObjectInfo,
    /// Its state: of this session if it is attached here, else as the last session left it.
    pub state: ObjectState,
    /// How its last writer left it; of an object that is attached here, how it was found.
    pub found: Found,
}

/// Who has one object attached in this process.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Use {
    readers: u32,
    state: ObjectState,
    found: Found,
}

/// What is laid over a primary in a read-only store: offset in the data, and bytes.
pub(crate) use cenote_sealed::Patches;

/// What all handles share.
pub(crate) struct Shared {
    pub(crate) store: Store,
    pub(crate) options: ObjectsOptions,
    pub(crate) kind: MediumKind,
    journal: OnceLock<Arc<Journal>>,
    creating: Mutex<()>,
    thread: Mutex<Option<JoinHandle<()>>>,
    uses: Mutex<BTreeMap<Uuid, Use>>,
    overlay: BTreeMap<Uuid, Patches>,
    /// What readers of protected objects share.
    views: Mutex<BTreeMap<Uuid, Arc<View>>>,
    recovery: Recovery,
    /// Nothing is written any more: the store is abandoned.
    silent: AtomicBool,
    /// It is in [`REGISTRY`].
    registered: AtomicBool,
    /// Of a daemon's client.
    pub(crate) door: Door,
    /// Of a daemon: identities of objects that are gone, of which the journal may hold records.
    pub(crate) removed: Mutex<BTreeSet<Uuid>>,
}

/// The file of the objects' journal.
const JOURNAL: &str = "journal";

/// Tells the journal what becomes of the store, and the store what becomes of the journal.
#[derive(Debug)]
struct StoreGuard(Store);

impl Guard for StoreGuard {
    fn check(&self) -> Result<(), Stopped> {
        self.0.check_usable().map_err(|error| match error {
            StoreError::Forked => Stopped::Forked,
            StoreError::Poisoned { reason } => Stopped::Poisoned(reason),
            other => Stopped::Poisoned(other.to_string()),
        })
    }

    fn poison(&self, reason: &str) {
        self.0.poison(reason);
    }
}

/// The objects of open stores, by [`Store::instance`]; those whose last handle is being dropped, too.
static REGISTRY: Mutex<Vec<(usize, Weak<Shared>)>> = Mutex::new(Vec::new());
/// Some have gone from there.
static GONE: Condvar = Condvar::new();

fn locked<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

impl Objects {
    /// The objects of a store. The first call recovers them: see the crate's front page. Later calls return the same, and their
    /// options do not count.
    ///
    /// # Errors
    /// The journal is damaged, or a committed psync cannot be completed: nothing was changed, or recovery was interrupted, which the
    /// next call repeats. The medium.
    pub fn open(store: &Store, options: &ObjectsOptions) -> Result<Self, ObjectError> {
        options.check().map_err(ObjectError::Options)?;
        store.check_usable()?;
        let mut registry = locked(&REGISTRY);
        while let Some((_, known)) = registry.iter().find(|(instance, _)| *instance == store.instance()) {
            if let Some(shared) = known.upgrade() {
                return Ok(Self(shared));
            }
            registry = GONE.wait(registry).unwrap_or_else(PoisonError::into_inner);
        }
        let shared = Arc::new(Shared::recover(store, options)?);
        shared.registered.store(true, Ordering::Release);
        registry.push((store.instance(), Arc::downgrade(&shared)));
        Ok(Self(shared))
    }

    /// The store.
    #[must_use]
    pub fn store(&self) -> &Store {
        &self.0.store
    }

    /// What recovery found and did.
    #[must_use]
    pub fn recovery(&self) -> &Recovery {
        &self.0.recovery
    }

    /// Creates an object of `size` bytes of zeros at an address of its own (PMO-6), with permission bits `mode` as of a file
    /// (`0o600`: the owner reads and writes). The bits bind the superuser too. With a key it is protected at rest in authenticated mode, without
    /// one it is not protected; [`Objects::pcreate_with`] has the other modes. Durable on return.
    ///
    /// # Errors
    /// `ENOSPC`: the window or the disk is full. `EEXIST`: the name is taken. `EINVAL`: a name or size that no object can have. Nothing
    /// has changed then.
    pub fn pcreate(
        &self,
        name: &str,
        size: u64,
        key: Option<&Keyring>,
        mode: u32,
    ) -> Result<ObjectInfo, ObjectError> {
        let at_rest = key.map_or(Mode::None, |_| Mode::Authenticated);
        self.pcreate_with(name, size, key, &ObjectOptions { at_rest, permissions: mode })
    }

    /// The same, with a mode of protection at rest.
    ///
    /// # Errors
    /// As [`Objects::pcreate`]; `EACCES`: the mode needs a key, or has none and one was given.
    pub fn pcreate_with(
        &self,
        name: &str,
        size: u64,
        key: Option<&Keyring>,
        options: &ObjectOptions,
    ) -> Result<ObjectInfo, ObjectError> {
        let mode = options.at_rest;
        if key.is_some() && !mode.has_key() {
            return Err(ObjectError::NotProtected { name: name.into() });
        }
        if !self.0.store.is_writable() {
            return Err(StoreError::ReadOnly { what: "create an object" }.into());
        }
        if let Some(keeper) = self.0.store.keeper() {
            return Self::create_through(keeper, (name, size), key, options);
        }
        if self.0.store.object(name).is_ok() {
            return Err(StoreError::ObjectExists { name: name.into() }.into());
        }
        // Before the object, so that an object is never without a journal.
        self.0.journal_or_new()?;
        let header = |id, pages| protection_header(name, id, pages, mode, key);
        self.0.store.create_object_at_rest(name, size, options.permissions, AtRest::of(mode), header)
    }

    /// The same by a daemon. The object's data key is made here, and wrapped: the daemon gets the header.
    fn create_through(
        keeper: &dyn Keeper,
        (name, size): (&str, u64),
        key: Option<&Keyring>,
        options: &ObjectOptions,
    ) -> Result<ObjectInfo, ObjectError> {
        let failed = |source| ObjectError::Memory { name: name.into(), source };
        let id = Uuid::from_random_bytes(process::random_bytes16().map_err(failed)?);
        let pages = size.div_ceil(PAGE_SIZE);
        if size == 0 || size > 1 << 46 {
            return Err(StoreError::ObjectLen { len: size }.into());
        }
        let new = NewObject {
            id,
            name: name.into(),
            data_len: size,
            permissions: options.permissions,
            at_rest: AtRest::of(options.at_rest),
            header: protection_header(name, id, pages, options.at_rest, key)?,
        };
        keeper.create_object(&new).map_err(connected::of_daemon)
    }

    /// Puts an object that nobody has attached under another key, durably, in constant time: its data is not written again. Who had the old key
    /// *and* a copy of what lay on the medium then can still read that copy, and derive the key of the data: to end that, make a new
    /// object. The journal keeps the header of before until its space is used again.
    ///
    /// # Errors
    /// `EACCES`: the old key is wrong, or the object's mode does not let this user write. `EINVAL`: it has no key. `EAGAIN`: somebody has it
    /// attached. `ENOENT`. As of a psync: nothing has changed, or the store is poisoned.
    pub fn rekey(&self, name: &str, old: &Keyring, new: &Keyring) -> Result<(), ObjectError> {
        let shared = &self.0;
        shared.store.check_usable()?;
        if !shared.store.is_writable() {
            return Err(StoreError::ReadOnly { what: "change the key of an object" }.into());
        }
        let info = shared.store.object(name)?;
        may(&info, Permission::ReadWrite)?;
        if info.record.at_rest == AtRest::None {
            return Err(ObjectError::NotProtected { name: name.into() });
        }
        shared.store.verify_object(&info)?;
        let Some(keeper) = shared.store.keeper() else {
            shared.enter_writer(&info)?;
            let done = at_rest::rekey(shared, &info, old, new);
            shared.leave_writer(info.id());
            return done;
        };
        let _inside = shared.door.enter();
        shared.enter_writer(&info)?;
        let asked = shared.ask_for(keeper, &info, true);
        let done = asked.and_then(|_| {
            let done = at_rest::rekey(shared, &info, old, new);
            done.and(shared.give_up(keeper, &info))
        });
        shared.leave_writer(info.id());
        done
    }

    /// Writes a snapshot of an object that nobody has attached into a new file: the object as its last psync left it, protected as it is, so
    /// no key is needed. Of one that is attached: [`Attached::snapshot`]. The file, which only its owner can read, is durable on return. Through a daemon it is made by this process, from a descriptor for
    /// reading, and copied.
    ///
    /// # Errors
    /// `EAGAIN`: somebody has it attached. `EACCES`: its mode does not let this user read. `EEXIST`: the file is there. `ENOENT`. A damaged
    /// object; a full disk. There is no file then.
    pub fn snapshot(&self, name: &str, path: &Path, blocks: Blocks) -> Result<Snapshot, ObjectError> {
        // A daemon's client must not cost the object space that it has taken: whoever psyncs it next may be another.
        let blocks = if self.0.store.is_connected() { Blocks::Copied } else { blocks };
        self.snapshot_by(name, |info| snapshot::take(&self.0, info, path, blocks))
    }

    /// The same into a new file of a medium, in its directory itself: copied.
    ///
    /// # Errors
    /// As [`Objects::snapshot`].
    pub fn snapshot_on(&self, name: &str, medium: &dyn Medium, file: &str) -> Result<Snapshot, ObjectError> {
        self.snapshot_by(name, |info| snapshot::take_on(&self.0, info, medium, file))
    }

    fn snapshot_by(
        &self,
        name: &str,
        take: impl FnOnce(&ObjectInfo) -> Result<Snapshot, ObjectError>,
    ) -> Result<Snapshot, ObjectError> {
        let shared = &self.0;
        shared.store.check_usable()?;
        let inside = shared.store.is_connected().then(|| shared.door.enter());
        let info = shared.store.object(name)?;
        may(&info, Permission::Read)?;
        shared.store.verify_object(&info)?;
        shared.enter_writer(&info)?;
        shared.set_state(info.id(), ObjectState::Read);
        // As one who reads, so that nobody psyncs meanwhile; what is committed is in the file that the daemon hands out.
        let keeper = shared.store.keeper();
        let asked = keeper.map(|keeper| shared.ask_for(keeper, &info, false)).transpose();
        // Other objects may be attached while this one is copied.
        drop(inside);
        let (leased, done) = match asked {
            Ok(found) => (found.is_some(), take(&info)),
            Err(refused) => (false, Err(refused)),
        };
        let _inside = shared.store.is_connected().then(|| shared.door.enter());
        if let Some(keeper) = keeper.filter(|_| leased) {
            // A copy is made and durable: a lease that cannot be given back ends with the connection.
            let _ = shared.give_up(keeper, &info);
        }
        shared.leave_writer(info.id());
        done
    }

    /// Makes an object again from a snapshot, under its name or another, owned by this user, at its old address if that is free here. One that is
    /// protected stays so, under the key of then, and keeps its identity, to which its pages are sealed; one that is not
    /// gets a new one. Durable on return.
    ///
    /// # Errors
    /// The file cannot be read, is no snapshot, cut short or damaged; an object of this name, or a protected one of this identity, is there; the window or the disk is full.
    /// Nothing has changed then.
    pub fn restore(&self, path: &Path, name: Option<&str>) -> Result<Restored, ObjectError> {
        self.0.store.check_usable()?;
        self.0.refuse_connected("objects are restored")?;
        if !self.0.store.is_writable() {
            return Err(StoreError::ReadOnly { what: "restore an object" }.into());
        }
        snapshot::restore(&self.0, path, name)
    }

    /// Removes an object and its data, durably. Pointers into it dangle; its address may be given to another. A key is checked if one is
    /// given; nobody needs one to destroy.
    ///
    /// # Errors
    /// `EAGAIN`: somebody has it attached. `EACCES`: its mode does not let this user write; the key is wrong. `ENOENT`.
    pub fn pdestroy(&self, name: &str, key: Option<&Keyring>) -> Result<(), ObjectError> {
        let shared = &*self.0;
        if let Some(keeper) = shared.store.keeper() {
            return self.destroy_through(keeper, name, key);
        }
        let info = shared.store.object(name)?;
        may(&info, Permission::ReadWrite)?;
        if key.is_some() {
            let file = Arc::new(FileHandle::open(shared.store.medium(), &info.file())?);
            let source =
                at_rest::source_of(shared, &info, file).filter(|_| info.record.at_rest != AtRest::None);
            let source = source.ok_or_else(|| ObjectError::NotProtected { name: name.into() })?;
            at_rest::open(&info, &source, key)?;
        }
        // Held throughout, so that nobody attaches it meanwhile.
        let uses = locked(&shared.uses);
        if let Some(used) = uses.get(&info.id()) {
            return Err(busy(name, used));
        }
        shared.store.remove_object(name)?;
        if let Some(journal) = shared.journal.get() {
            journal.forget(info.id());
        }
        Ok(())
    }

    /// The same by a daemon, which cannot check the key: this process does, as whoever reads the object.
    fn destroy_through(
        &self,
        keeper: &dyn Keeper,
        name: &str,
        key: Option<&Keyring>,
    ) -> Result<(), ObjectError> {
        if key.is_some() {
            self.attach(name, Permission::Read, key)?.detach()?;
        }
        keeper.destroy_object(name).map_err(connected::of_daemon)
    }

    /// Makes an object accessible at its address, until the guard is detached or dropped.
    ///
    /// # Errors
    /// `EAGAIN` with the holder's process: for writing, somebody has it attached; for reading, somebody writes. `EACCES`: its mode
    /// does not allow it; a protected object needs its key, and another one must not be given any. `ENOENT`. A damaged or missing file. A mechanism
    /// that was asked for and does not work.
    pub fn attach(
        &self,
        name: &str,
        permission: Permission,
        key: Option<&Keyring>,
    ) -> Result<Attached, ObjectError> {
        self.attach_with(name, permission, key, self.0.options.mechanism)
    }

    /// The same with another mechanism than the options say; `None`: the best that works here.
    ///
    /// # Errors
    /// As [`Objects::attach`].
    pub fn attach_with(
        &self,
        name: &str,
        permission: Permission,
        key: Option<&Keyring>,
        mechanism: Option<Mechanism>,
    ) -> Result<Attached, ObjectError> {
        let shared = &self.0;
        shared.store.check_usable()?;
        let info = shared.store.object(name)?;
        if permission == Permission::ReadWrite && !shared.store.is_writable() {
            return Err(StoreError::ReadOnly { what: "attach an object for writing" }.into());
        }
        if !shared.store.is_connected() {
            may(&info, permission)?; // a daemon asks that itself
        }
        match permission {
            Permission::Read => Attached::reader(shared, info, key),
            Permission::ReadWrite => Attached::writer(shared, info, key, mechanism),
        }
    }

    /// Changes an object's permission bits, durably.
    ///
    /// # Errors
    /// `EACCES`: only the owner and the superuser may. `ENOENT`. The medium.
    pub fn set_mode(&self, name: &str, mode: u32) -> Result<(), ObjectError> {
        if self.0.store.is_connected() {
            let change = PermissionChange { permissions: Some(mode), ..PermissionChange::default() };
            return self.set_owner(name, change);
        }
        let info = self.0.store.object(name)?;
        let uid = process::uid();
        if uid != info.record.uid && uid != 0 {
            return Err(denied(&info, "a change of its mode"));
        }
        Ok(self.0.store.set_object_permissions(name, mode)?)
    }

    /// Changes an object's owner, group or mode, durably: who may attach it. Those who have it attached keep it.
    ///
    /// # Errors
    /// `EACCES`: only the owner and the superuser may, and only the latter gives it to another user. `ENOENT`. The medium.
    pub fn set_owner(&self, name: &str, change: PermissionChange) -> Result<(), ObjectError> {
        let (uid, gid) = (process::uid(), process::gid());
        let credentials = Credentials { uid, gid, groups: Vec::new() };
        self.0.store.set_object_owner(&credentials, name, change).map_err(connected::of_daemon)
    }

    /// All objects, by name.
    ///
    /// # Errors
    /// A header cannot be read; the daemon cannot be asked.
    pub fn list(&self) -> Result<Vec<Info>, ObjectError> {
        if let Some(keeper) = self.0.store.keeper() {
            let listed = keeper.objects(None).map_err(connected::of_daemon)?;
            return Ok(listed.into_iter().map(connected::info_of).collect());
        }
        self.0.store.objects().into_iter().map(|object| self.0.info(object)).collect()
    }

    /// What is known about one object.
    ///
    /// # Errors
    /// `ENOENT`; its header cannot be read.
    pub fn info(&self, name: &str) -> Result<Info, ObjectError> {
        if let Some(keeper) = self.0.store.keeper() {
            let mut listed = keeper.objects(Some(name)).map_err(connected::of_daemon)?;
            let unknown = || StoreError::ObjectUnknown { name: name.into() };
            return Ok(connected::info_of(listed.pop().ok_or_else(unknown)?));
        }
        self.0.info(self.0.store.object(name)?)
    }

    /// What is known about an object that was found.
    pub(crate) fn info_of(&self, object: ObjectInfo) -> Result<Info, ObjectError> {
        self.0.info(object)
    }

    pub(crate) fn shared(&self) -> &Shared {
        &self.0
    }

    /// Brings everything that was psynced to the primaries and makes them durable, so that the next open has nothing to recover. Dropping the last handle does this too.
    ///
    /// # Errors
    /// The medium; nothing is lost by that.
    pub fn checkpoint(&self) -> Result<(), ObjectError> {
        match self.0.journal.get() {
            Some(journal) if self.0.store.is_writable() => Ok(journal.checkpoint()?),
            _ => Ok(()),
        }
    }

    /// Bytes of the journal, psyncs since the store was formatted or its journal was lost, and syncs of the journal in this session.
    #[must_use]
    pub fn journal_figures(&self) -> Option<(u64, u64, u64)> {
        self.0.journal.get().map(|journal| journal.figures())
    }

    /// Lets go as a crash of this process would: from now on nothing is written. For crash tests, together with
    /// [`Store::abandon`].
    pub fn abandon(&self) {
        self.0.silent.store(true, Ordering::Release);
    }
}

/// The header of a new object's protection; nothing, without one.
fn protection_header(
    name: &str,
    id: Uuid,
    pages: u64,
    mode: Mode,
    key: Option<&Keyring>,
) -> Result<Vec<u8>, ObjectError> {
    if mode == Mode::None {
        return Ok(Vec::new());
    }
    let made = Protection::create(id, pages, mode, key);
    made.map(|protection| protection.header().to_vec()).map_err(|error| at_rest::at_rest(name, error))
}

fn verb(permission: Permission) -> &'static str {
    match permission {
        Permission::Read => "reading",
        Permission::ReadWrite => "writing",
    }
}

fn busy(name: &str, used: &Use) -> ObjectError {
    let what = if used.readers > 0 { "reading" } else { "writing" };
    ObjectError::Busy { name: name.into(), what, pid: process::pid() }
}

fn denied(info: &ObjectInfo, what: &'static str) -> ObjectError {
    ObjectError::Denied {
        name: info.record.name.clone(),
        what,
        uid: process::uid(),
        mode: info.record.permissions,
        owner: info.record.uid,
    }
}

/// Whether the permission bits allow it.
fn may(info: &ObjectInfo, permission: Permission) -> Result<(), ObjectError> {
    let record = &info.record;
    let shift = if process::uid() == record.uid {
        6
    } else if process::gid() == record.gid {
        3
    } else {
        0
    };
    let wanted = match permission {
        Permission::Read => 0o4,
        Permission::ReadWrite => 0o6,
    };
    if record.permissions >> shift & wanted == wanted {
        return Ok(());
    }
    Err(denied(info, verb(permission)))
}

impl Shared {
    /// Reads the journal, and brings the primaries up to it.
    fn recover(store: &Store, options: &ObjectsOptions) -> Result<Self, ObjectError> {
        let kind = store.medium().describe().kind;
        let mut shared = Self {
            store: store.clone(),
            options: options.clone(),
            kind,
            journal: OnceLock::new(),
            creating: Mutex::default(),
            thread: Mutex::default(),
            uses: Mutex::default(),
            overlay: BTreeMap::new(),
            views: Mutex::default(),
            recovery: Recovery::default(),
            silent: AtomicBool::new(false),
            registered: AtomicBool::new(false),
            door: Door::default(),
            removed: Mutex::default(),
        };
        if store.is_connected() {
            return Ok(shared); // the daemon has the journal
        }
        let found = if store.medium().exists(JOURNAL)? {
            let file = FileHandle::open(store.medium(), JOURNAL)?;
            match scan(&file, store.uuid(), store.is_writable())? {
                Ok(Scan { damage: Some(detail), .. }) | Err(detail) => Err(detail),
                Ok(scan) => Ok(Some((file, scan))),
            }
        } else if store.objects().is_empty() {
            Ok(None)
        } else {
            Err("the file \"journal\" is missing".into())
        };
        match found {
            Ok(None) => {}
            Ok(Some((file, scan))) => shared.replay(Arc::new(file), &scan)?,
            Err(detail) if !options.accept_damaged_journal => {
                return Err(ObjectError::JournalDamaged { detail });
            }
            Err(_) if store.is_writable() => {
                shared.journal_or_new()?;
            }
            Err(_) => {}
        }
        Ok(shared)
    }

    /// Completes every committed psync. The last step is [`Journal::resume`], which commits.
    fn replay(&mut self, file: Arc<FileHandle>, scan: &Scan) -> Result<(), ObjectError> {
        let objects: BTreeMap<Uuid, ObjectInfo> =
            self.store.objects().into_iter().map(|info| (info.id(), info)).collect();
        let name_of = |id: &Uuid| objects.get(id).map(|info| info.record.name.clone());
        let mut primaries: BTreeMap<Uuid, FileHandle> = BTreeMap::new();
        let mut states: BTreeMap<String, ObjectState> = BTreeMap::new();
        for record in &scan.records {
            let data = record.read_data(&file)?;
            record.for_each_run(&data, |id, offset, bytes| -> Result<(), ObjectError> {
                // An object that was removed since.
                let Some(info) = objects.get(&id) else { return Ok(()) };
                if offset.checked_add(bytes.len() as u64).is_none_or(|last| last > info.body_len()) {
                    let (seq, name) = (record.header.seq, &info.record.name);
                    let detail = format!("record {seq} writes beyond the end of object \"{name}\"");
                    return Err(ObjectError::JournalDamaged { detail });
                }
                if !self.store.is_writable() {
                    self.overlay.entry(id).or_default().push((offset, bytes.to_vec()));
                    return Ok(());
                }
                let primary = match primaries.entry(id) {
                    Entry::Occupied(known) => known.into_mut(),
                    Entry::Vacant(new) => {
                        self.store.verify_object(info).map_err(|error| match error {
                            StoreError::ObjectDamaged { name, detail } => {
                                ObjectError::PrimaryDamaged { name, detail }
                            }
                            error => error.into(),
                        })?;
                        new.insert(FileHandle::open(self.store.medium(), &info.file())?)
                    }
                };
                primary.write_in_pieces(info.data_offset() + offset, bytes)?;
                Ok(())
            })?;
            states.extend(record.objects.iter().filter_map(name_of).map(|name| (name, ObjectState::Copy)));
        }
        for name in scan.torn.iter().filter_map(name_of) {
            states.entry(name).or_insert(ObjectState::Psync);
        }
        self.recovery =
            Recovery { records: scan.records.len() as u64, objects: states.into_iter().collect() };
        if !self.store.is_writable() {
            return Ok(());
        }
        if !planted(Bug::JournalReplayNotSynced) {
            for primary in primaries.values() {
                primary.sync().inspect_err(|error| {
                    if is_failed_sync(error) {
                        self.store.poison(&error.to_string());
                    }
                })?;
            }
        }
        let journal = Journal::resume(self.home(), file, scan, self.settings())?;
        self.adopt(journal);
        Ok(())
    }

    pub(crate) fn refuse_connected(&self, what: &str) -> Result<(), ObjectError> {
        match self.store.is_connected() {
            true => Err(StoreError::NotHosted { what: what.into() }.into()),
            false => Ok(()),
        }
    }

    fn settings(&self) -> Settings {
        Settings {
            half_len_max: self.options.half_len_max,
            // Memory has nothing to be flushed to.
            syncs: self.kind != MediumKind::Tmpfs,
            background: self.options.trim == Trim::Background,
        }
    }

    fn home(&self) -> Home {
        Home {
            medium: Arc::clone(self.store.medium()),
            store: self.store.uuid(),
            name: JOURNAL,
            guard: Arc::new(StoreGuard(self.store.clone())),
        }
    }

    fn adopt(&self, journal: Journal) -> &Arc<Journal> {
        let journal = self.journal.get_or_init(|| Arc::new(journal));
        let mut thread = locked(&self.thread);
        if journal.wants_thread() && thread.is_none() {
            let trimmed = Arc::clone(journal);
            let named = std::thread::Builder::new().name("cenote-trim".into());
            // Without the thread, psyncs apply and trim by themselves.
            *thread = named.spawn(move || trimmed.work_in_background()).ok();
        }
        journal
    }

    /// The journal, which is made if there is none.
    fn journal_or_new(&self) -> Result<&Arc<Journal>, ObjectError> {
        let _creating = locked(&self.creating);
        if let Some(journal) = self.journal.get() {
            return Ok(journal);
        }
        let journal = Journal::create(self.home(), self.options.half_len, self.settings())?;
        Ok(self.adopt(journal))
    }

    /// The journal of a store with objects that is open for writing.
    pub(crate) fn journal(&self) -> Result<&Arc<Journal>, ObjectError> {
        match self.journal.get() {
            Some(journal) => Ok(journal),
            None => self.journal_or_new(),
        }
    }

    /// That there is a journal for what is psynced: here, or a daemon's.
    pub(crate) fn need_journal(&self) -> Result<(), ObjectError> {
        if self.store.is_connected() { Ok(()) } else { self.journal().map(drop) }
    }

    /// Whether this process has an object attached.
    pub(crate) fn is_used(&self, object: Uuid) -> bool {
        locked(&self.uses).contains_key(&object)
    }

    /// The journal, if this session has one.
    pub(crate) fn journal_if_any(&self) -> Option<&Arc<Journal>> {
        self.journal.get()
    }

    pub(crate) fn is_silent(&self) -> bool {
        self.silent.load(Ordering::Acquire)
    }

    /// What is to be laid over the primary of an object.
    pub(crate) fn patches(&self, object: Uuid) -> Option<&Patches> {
        self.overlay.get(&object)
    }

    /// Keeps the view that the first reader made for those that follow.
    pub(crate) fn keep_view(&self, object: Uuid, view: &Arc<View>) {
        locked(&self.views).insert(object, Arc::clone(view));
    }

    pub(crate) fn view(&self, object: Uuid) -> Option<Arc<View>> {
        locked(&self.views).get(&object).cloned()
    }

    pub(crate) fn forget_view(&self, object: Uuid) {
        drop(locked(&self.views).remove(&object));
    }

    /// Notes a reader, unless there is a writer. All readers share one mapping, which the first of them makes by `map`.
    pub(crate) fn enter_reader(
        &self,
        info: &ObjectInfo,
        map: impl FnOnce() -> Result<(), ObjectError>,
    ) -> Result<(), ObjectError> {
        let mut uses = locked(&self.uses);
        match uses.get_mut(&info.id()) {
            Some(used) if used.readers > 0 => used.readers += 1,
            Some(used) => return Err(busy(&info.record.name, used)),
            None => {
                map()?;
                let used = Use { readers: 1, state: ObjectState::Read, found: Found::Detached };
                uses.insert(info.id(), used);
            }
        }
        Ok(())
    }

    /// Takes a reader back; the last one unmaps. If that fails the object stays taken, as its addresses do.
    pub(crate) fn leave_reader(
        &self,
        object: Uuid,
        unmap: impl FnOnce() -> Result<(), MediumError>,
    ) -> Result<(), MediumError> {
        let mut uses = locked(&self.uses);
        let Some(used) = uses.get_mut(&object) else { return Ok(()) };
        if used.readers > 1 {
            used.readers -= 1;
            return Ok(());
        }
        unmap()?;
        uses.remove(&object);
        Ok(())
    }

    /// Notes a writer, unless there is anybody.
    pub(crate) fn enter_writer(&self, info: &ObjectInfo) -> Result<(), ObjectError> {
        let mut uses = locked(&self.uses);
        if let Some(used) = uses.get(&info.id()) {
            return Err(busy(&info.record.name, used));
        }
        let used = Use { readers: 0, state: ObjectState::Write, found: Found::Detached };
        uses.insert(info.id(), used);
        Ok(())
    }

    /// Takes the writer back.
    pub(crate) fn leave_writer(&self, object: Uuid) {
        locked(&self.uses).remove(&object);
    }

    /// Notes the state of an object that is attached for writing.
    pub(crate) fn set_state(&self, object: Uuid, state: ObjectState) {
        if let Some(used) = locked(&self.uses).get_mut(&object) {
            used.state = state;
        }
    }

    pub(crate) fn set_found(&self, object: Uuid, found: Found) {
        if let Some(used) = locked(&self.uses).get_mut(&object) {
            used.found = found;
        }
    }

    fn info(&self, object: ObjectInfo) -> Result<Info, ObjectError> {
        let used = locked(&self.uses).get(&object.id()).copied();
        if let Some(Use { state, found, .. }) = used.filter(|used| used.state != ObjectState::Read) {
            let behind = self.journal.get().is_some_and(|journal| journal.is_behind(object.id()));
            let state = if state == ObjectState::Write && behind { ObjectState::Copy } else { state };
            return Ok(Info { object, state, found });
        }
        let file = FileHandle::open(self.store.medium(), &object.file())?;
        let found = header::found(&file, object.header_offset(), object.id(), &**self.store.medium())?;
        // In a read-only store nothing was changed by recovery: what it found still holds.
        let recovered = self.recovery.objects.iter().find(|(name, _)| *name == object.record.name);
        let state = match (used, found, recovered) {
            (Some(used), _, _) => used.state,
            (None, _, Some((_, state))) if !self.store.is_writable() => *state,
            (None, Found::Detached, _) => ObjectState::Detached,
            (None, _, _) => ObjectState::Write,
        };
        Ok(Info { object, state, found })
    }
}

impl Shared {
    /// Ends the thread, and makes primaries durable.
    fn finish(&mut self) {
        let thread = locked(&self.thread).take();
        let Some(journal) = self.journal.get() else { return };
        journal.stop();
        if let Some(thread) = thread {
            let _ = thread.join();
        }
        if !self.is_silent() {
            // Nobody is left to tell; the next open recovers.
            let _ = journal.checkpoint();
        }
    }
}

impl Drop for Shared {
    fn drop(&mut self) {
        if self.store.is_forked() {
            // The thread is the parent's.
            core::mem::forget(locked(&self.thread).take());
            return;
        }
        self.finish();
        // One that failed to recover never was there, and whoever tried has the lock.
        if *self.registered.get_mut() {
            let this: *const Self = self;
            locked(&REGISTRY).retain(|(_, known)| !core::ptr::eq(known.as_ptr(), this));
            GONE.notify_all();
        }
    }
}
