//! The objects of a store: creating, finding, attaching and removing them, and copies of them.
//!
//! Invariant: in a process, one [`Shared`] answers for all objects of an open store. So there is
//! one journal and one table of attachments, however often [`Objects::open`] is called. A call that
//! opens the objects of one store never holds a handle of another, not even for a moment: closing
//! that other store would find it in use. A call that opens them while the last handle goes waits
//! until that has finished its writes.

use crate::at_rest;
use crate::attached::Attached;
use crate::connected;
use crate::copied;
use crate::dirty::Mechanism;
use crate::error::ObjectError;
use crate::options::{ObjectOptions, ObjectsOptions, Permission};
use crate::shared::{GONE, Info, REGISTRY, Recovery, Registered, Shared, busy, locked};
use cenote_atrest::tree::Digest;
use cenote_atrest::{Keyring, Mode, Protection, binding};
use cenote_layout::PAGE_SIZE;
use cenote_layout::catalog::AtRest;
use cenote_layout::id::Uuid;
use cenote_medium::FileHandle;
use cenote_medium::planted::{Step, reach};
use cenote_store::{
    Credentials, DaemonApi, Handle, NewObject, ObjectInfo, PermissionChange, Rekeyed, StoreError,
};
use cenote_sys::{fork_guard, process};
use core::fmt;
use core::sync::atomic::Ordering;
use std::sync::Arc;

/// The objects of an open store. Cloning is cheap. The store stays open while one of these or an
/// [`Attached`] lives.
#[derive(Clone)]
pub struct Objects(pub(crate) Arc<Shared>);

impl fmt::Debug for Objects {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Objects of {:?}", self.0.store)
    }
}

impl Objects {
    /// The objects of a store. The first call recovers them: see the crate's front page. Later
    /// calls return the same, and their options do not count.
    ///
    /// # Errors
    /// The journal is damaged, or a committed psync cannot be completed: nothing was changed, or
    /// recovery was interrupted, which the next call repeats. The medium.
    pub fn open(store: &Handle, options: &ObjectsOptions) -> Result<Self, ObjectError> {
        // SAFETY: this crate changes objects' files and their mappings, and each only while its
        // table of attachments says that it has no other user; it hands the store to no caller.
        let store = unsafe { store.as_raw() };
        options.check().map_err(ObjectError::Options)?;
        store.check_usable()?;
        let (instance, token) = (store.instance(), fork_guard::token());
        let mut registry = REGISTRY.lock();
        registry.retain(|known| known.token == token);
        while let Some(known) = registry.iter().find(|known| known.instance == instance) {
            if let Some(shared) = known.shared.upgrade() {
                return Ok(Self(shared));
            }
            registry = registry.wait(&GONE);
        }
        let shared = Arc::new(Shared::recover(store, options)?);
        shared.registered.store(true, Ordering::Release);
        registry.push(Registered { instance, token, shared: Arc::downgrade(&shared) });
        Ok(Self(shared))
    }

    /// The store.
    #[must_use]
    pub fn store(&self) -> Handle {
        // SAFETY: as in `open`; the handle gives the store only to a caller that promises the same.
        unsafe { Handle::of(&self.0.store) }
    }

    /// What recovery found and did.
    #[must_use]
    pub fn recovery(&self) -> &Recovery {
        &self.0.recovery
    }

    /// Creates an object of `size` bytes of zeros at an address of its own (PMO-6), with permission
    /// bits `mode` as of a file (`0o600`: the owner reads and writes). The bits bind the
    /// superuser too. With a key it is protected at rest in authenticated mode, without
    /// one it is not protected; [`Objects::pcreate_with`] has the other modes. Durable on return.
    ///
    /// # Errors
    /// `ENOSPC`: the window or the disk is full. `EEXIST`: the name is taken. `EINVAL`: a name or
    /// size that no object can have. Nothing has changed then.
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
        let asked = key.is_some() || (mode == Mode::None && self.0.store.asks_for_protection());
        if asked && !mode.has_key() {
            return Err(ObjectError::NotProtected { name: name.into() });
        }
        if !self.0.store.is_writable() {
            return Err(StoreError::ReadOnly { what: "create an object" }.into());
        }
        if let Some(daemon) = self.0.daemon() {
            let store = self.0.store.uuid();
            return Self::create_through(daemon, store, (name, size), key, options);
        }
        if self.0.store.object(name).is_ok() {
            return Err(StoreError::ObjectExists { name: name.into() }.into());
        }
        // Before the object, so that an object is never without a journal.
        self.0.journal_or_new()?;
        let binding = binding::of_object(self.0.store.uuid(), name, size);
        let header = |id, pages| protection_header((name, binding), id, pages, mode, key);
        self.0.store.create_object_at_rest(
            name,
            size,
            options.permissions,
            AtRest::of(mode),
            header,
        )
    }

    /// The same by a daemon. The object's data key is made here, and wrapped: the daemon gets the
    /// header.
    fn create_through(
        daemon: &dyn DaemonApi,
        store: Uuid,
        (name, size): (&str, u64),
        key: Option<&Keyring>,
        options: &ObjectOptions,
    ) -> Result<ObjectInfo, ObjectError> {
        let failed = |source| ObjectError::Memory { name: name.into(), source };
        let id = Uuid::from_random_bytes(process::random_bytes16().map_err(failed)?);
        let (pages, binding) = (size.div_ceil(PAGE_SIZE), binding::of_object(store, name, size));
        if size == 0 || size > 1 << 46 {
            return Err(StoreError::ObjectLen { len: size }.into());
        }
        let new = NewObject {
            id,
            name: name.into(),
            data_len: size,
            permissions: options.permissions,
            at_rest: AtRest::of(options.at_rest),
            header: protection_header((name, binding), id, pages, options.at_rest, key)?,
        };
        daemon.create_object(&new).map_err(connected::of_daemon)
    }

    /// Puts an object that is not attached under another key, in constant time: an error says that
    /// the old key is the object's, the answer that the new one is, durably if it is
    /// [`Rekeyed::Done`]. Its data is not written again. A user who had the old key *and* a copy of
    /// what lay on the medium then can still read that copy, and derive the key of the data: to end
    /// that, make a new object. The journal keeps the header of before until its space is used
    /// again.
    ///
    /// # Errors
    /// `EACCES`: the old key is wrong, or the object's mode does not let this user write. `EINVAL`:
    /// it has no key. `EAGAIN`: it is attached. `ENOENT`. As of a psync. The old key is the
    /// object's then, also if the store is poisoned.
    pub fn rekey(
        &self,
        name: &str,
        old: &Keyring,
        new: &Keyring,
    ) -> Result<Rekeyed<ObjectError>, ObjectError> {
        let shared = &self.0;
        shared.store.check_usable()?;
        if !shared.store.is_writable() {
            return Err(StoreError::ReadOnly { what: "change the key of an object" }.into());
        }
        let info = shared.look(|| {
            let info = shared.store.object(name)?;
            may(&info, Permission::ReadWrite)?;
            if info.record.at_rest == AtRest::None {
                return Err(ObjectError::NotProtected { name: name.into() });
            }
            reach(Step::ObjectLookedUp);
            shared.store.verify_object(&info)?;
            Ok(info)
        })?;
        let Some(daemon) = shared.daemon() else {
            shared.enter_writer(&info)?;
            let done = at_rest::rekey(shared, &info, old, new);
            shared.leave_writer(info.id());
            return done;
        };
        let _inside = shared.door.enter();
        shared.enter_writer(&info)?;
        let asked = shared.ask_for(daemon, &info, true);
        let done = asked.and_then(|_| {
            let done = at_rest::rekey(shared, &info, old, new);
            match (done, shared.give_up(daemon, &info)) {
                (Ok(Rekeyed::Done), given_up) => Ok(Rekeyed::of(given_up)),
                (done, _) => done,
            }
        });
        shared.leave_writer(info.id());
        done
    }

    /// Removes an object and its data, durably. Pointers into it dangle; its address may be given
    /// to another. A key is checked if one is given; to destroy an object needs none.
    ///
    /// # Errors
    /// `EAGAIN`: it is attached. `EACCES`: its mode does not let this user write; the key
    /// is wrong. `ENOENT`.
    pub fn pdestroy(&self, name: &str, key: Option<&Keyring>) -> Result<(), ObjectError> {
        let shared = &*self.0;
        if let Some(daemon) = shared.daemon() {
            return self.destroy_through(daemon, name, key);
        }
        shared.look(|| self.destroy(name, key))
    }

    fn destroy(&self, name: &str, key: Option<&Keyring>) -> Result<(), ObjectError> {
        let shared = &self.0;
        let info = shared.store.object(name)?;
        may(&info, Permission::ReadWrite)?;
        if key.is_some() {
            let file = Arc::new(FileHandle::open(shared.files(), &info.file())?);
            let source = at_rest::source_of(shared, &info, file)
                .filter(|_| info.record.at_rest != AtRest::None);
            let source = source.ok_or_else(|| ObjectError::NotProtected { name: name.into() })?;
            at_rest::open(shared, &info, &source, key)?;
        }
        reach(Step::ObjectLookedUp);
        // Held throughout, so that no thread attaches it meanwhile.
        let uses = locked(&shared.uses);
        // Another object of this name may have come, and may be attached.
        shared.refuse_moved(&info)?;
        if let Some(used) = uses.get(&info.id()) {
            return Err(busy(name, used));
        }
        // SAFETY: this store is open for writing in this process alone, and here no handle has the
        // object attached, or can attach it while the table is locked.
        unsafe { shared.store.remove_object(name) }?;
        shared.removals.fetch_add(1, Ordering::Release);
        if let Some(journal) = shared.journal.get() {
            journal.forget(info.id());
        }
        Ok(())
    }

    /// The same by a daemon, which cannot check the key: this process does, as a reader of the
    /// object.
    fn destroy_through(
        &self,
        daemon: &dyn DaemonApi,
        name: &str,
        key: Option<&Keyring>,
    ) -> Result<(), ObjectError> {
        if key.is_some() {
            self.attach(name, Permission::Read, key)?.detach()?;
        }
        daemon.destroy_object(name).map_err(connected::of_daemon)
    }

    /// Makes an object accessible at its address, until the guard is detached or dropped.
    ///
    /// # Errors
    /// `EAGAIN` with the holder's process: for writing, it is attached; for reading, it
    /// has a writer. `EACCES`: its mode does not allow it; a protected object needs its key,
    /// and another one must not be given any. `ENOENT`. A damaged or missing file. A mechanism
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
        shared.look(|| {
            shared.store.check_usable()?;
            let info = shared.store.object(name)?;
            if permission == Permission::ReadWrite && !shared.store.is_writable() {
                return Err(StoreError::ReadOnly { what: "attach an object for writing" }.into());
            }
            if !shared.store.is_connected() {
                may(&info, permission)?; // a daemon asks that itself
            }
            reach(Step::ObjectLookedUp);
            copied::check(shared, &info, key)?;
            copied::check_attached(match permission {
                Permission::Read => Attached::reader(shared, info, key)?,
                Permission::ReadWrite => Attached::writer(shared, info, key, mechanism)?,
            })
        })
    }

    /// Changes an object's permission bits, durably.
    ///
    /// # Errors
    /// `EACCES`: only the owner and the superuser may. `ENOENT`. The medium.
    pub fn set_mode(&self, name: &str, mode: u32) -> Result<(), ObjectError> {
        if self.0.store.is_connected() {
            let change =
                PermissionChange { permissions: Some(mode), ..PermissionChange::default() };
            return self.set_owner(name, change);
        }
        let info = self.0.store.object(name)?;
        let uid = process::uid();
        if uid != info.record.uid && uid != 0 {
            return Err(denied(&info, "a change of its mode"));
        }
        Ok(self.0.store.set_object_permissions(name, mode)?)
    }

    /// Changes an object's owner, group or mode, durably: who may attach it. Sessions that have it
    /// attached keep it.
    ///
    /// # Errors
    /// `EACCES`: only the owner and the superuser may, and only the latter gives it to another
    /// user. `ENOENT`. The medium.
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
        if let Some(daemon) = self.0.daemon() {
            let listed = daemon.objects(None).map_err(connected::of_daemon)?;
            return Ok(listed.into_iter().map(connected::info_of).collect());
        }
        let objects = self.0.store.objects().into_iter();
        objects.filter_map(|object| self.info_if_there(&object.record.name).transpose()).collect()
    }

    /// What is known about an object; `None` if there is none of this name.
    fn info_if_there(&self, name: &str) -> Result<Option<Info>, ObjectError> {
        let shared = &self.0;
        shared.look(|| match shared.store.object(name) {
            Err(StoreError::ObjectUnknown { .. }) => Ok(None),
            Err(error) => Err(error.into()),
            Ok(object) => {
                reach(Step::ObjectLookedUp);
                shared.info(object).map(Some)
            }
        })
    }

    /// What is known about one object.
    ///
    /// # Errors
    /// `ENOENT`; its header cannot be read.
    pub fn info(&self, name: &str) -> Result<Info, ObjectError> {
        if let Some(daemon) = self.0.daemon() {
            let mut listed = daemon.objects(Some(name)).map_err(connected::of_daemon)?;
            let unknown = || StoreError::ObjectUnknown { name: name.into() };
            return Ok(connected::info_of(listed.pop().ok_or_else(unknown)?));
        }
        let unknown = || StoreError::ObjectUnknown { name: name.into() };
        Ok(self.info_if_there(name)?.ok_or_else(unknown)?)
    }

    /// What is known about an object that was found.
    pub(crate) fn info_of(&self, object: ObjectInfo) -> Result<Info, ObjectError> {
        self.0.info(object)
    }

    pub(crate) fn shared(&self) -> &Shared {
        &self.0
    }

    /// Brings everything that was psynced to the primaries and makes them durable, so that the next
    /// open has nothing to recover. Dropping the last handle does this too.
    ///
    /// # Errors
    /// The medium; nothing is lost by that.
    pub fn checkpoint(&self) -> Result<(), ObjectError> {
        match self.0.journal.get() {
            Some(journal) if self.0.store.is_writable() => Ok(journal.checkpoint()?),
            _ => Ok(()),
        }
    }

    /// Bytes of the journal, psyncs since the store was formatted or its journal was lost, and
    /// syncs of the journal in this session.
    #[must_use]
    pub fn journal_figures(&self) -> Option<(u64, u64, u64)> {
        self.0.journal.get().map(|journal| journal.figures())
    }

    /// Lets go as a crash of this process would: from now on no object is attached, and a detach
    /// writes nothing. For crash tests, together with [`Handle::abandon`].
    pub fn abandon(&self) {
        self.0.silent.store(true, Ordering::Release);
    }
}

/// The header of a new object's protection; nothing, without one.
fn protection_header(
    (name, binding): (&str, Digest),
    id: Uuid,
    pages: u64,
    mode: Mode,
    key: Option<&Keyring>,
) -> Result<Vec<u8>, ObjectError> {
    if mode == Mode::None {
        return Ok(Vec::new());
    }
    let made =
        Protection::create(id, pages, mode, key).map_err(|error| at_rest::at_rest(name, error))?;
    made.bind(binding);
    Ok(made.header().to_vec())
}

fn verb(permission: Permission) -> &'static str {
    match permission {
        Permission::Read => "reading",
        Permission::ReadWrite => "writing",
    }
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
pub(crate) fn may(info: &ObjectInfo, permission: Permission) -> Result<(), ObjectError> {
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
