//! `Objects`: snapshots of objects, and objects from snapshots. `snapshot.rs` writes and reads
//! them.

use crate::copied;
use crate::error::ObjectError;
use crate::objects::{Objects, may};
use crate::options::Permission;
use crate::restored;
use crate::snapshot::{self, Blocks, Restored, Snapshot};
use cenote_atrest::Keyring;
use cenote_layout::object::ObjectState;
use cenote_medium::Medium;
use cenote_medium::planted::{Step, reach};
use cenote_store::{ObjectInfo, StoreError};
use std::path::Path;

impl Objects {
    /// Writes a snapshot of an object that is not attached into a new file: the object as its last
    /// psync left it, protected as it is, so no key is needed. Of one that is attached:
    /// [`crate::Attached::snapshot`]. The file, which only its owner can read, is durable on
    /// return. Through a daemon it is made by this process, from a descriptor for reading, and
    /// copied.
    ///
    /// # Errors
    /// `EAGAIN`: it is attached. `EACCES`: its mode does not let this user read.
    /// `EEXIST`: the file is there. `ENOENT`. A damaged object; a full disk. There is no file
    /// then.
    pub fn snapshot(
        &self,
        name: &str,
        path: &Path,
        blocks: Blocks,
    ) -> Result<Snapshot, ObjectError> {
        self.snapshot_while(name, path, blocks, &|| true)
    }

    /// The same as long as `goes_on` says so: it is asked before each piece of the file.
    ///
    /// # Errors
    /// As [`Objects::snapshot`]; [`ObjectError::File`]: it said no, and there is no file.
    pub fn snapshot_while(
        &self,
        name: &str,
        path: &Path,
        blocks: Blocks,
        goes_on: &dyn Fn() -> bool,
    ) -> Result<Snapshot, ObjectError> {
        // A daemon's client must not cost the object space that it has taken: another client may
        // psync it next.
        let blocks = if self.0.store.is_connected() { Blocks::Copied } else { blocks };
        self.snapshot_by(name, |info| snapshot::take(&self.0, info, path, blocks, goes_on))
    }

    /// The same into a new file of a medium, in its directory itself: copied.
    ///
    /// # Errors
    /// As [`Objects::snapshot`].
    pub fn snapshot_on(
        &self,
        name: &str,
        medium: &dyn Medium,
        file: &str,
    ) -> Result<Snapshot, ObjectError> {
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
        let info = shared.look(|| {
            let info = shared.store.object(name)?;
            may(&info, Permission::Read)?;
            reach(Step::ObjectLookedUp);
            shared.store.verify_object(&info)?;
            Ok(info)
        })?;
        // Without its key a sealed object cannot be looked at.
        copied::refuse_unshown(shared, &info)?;
        if !shared.store.is_connected() {
            copied::refuse_unverified(shared, &info)?;
        }
        shared.enter_writer(&info)?;
        shared.set_state(info.id(), ObjectState::Read);
        // As a reader, so that no process psyncs meanwhile. The daemon hands the file out with all
        // that is committed.
        let daemon = shared.daemon();
        let asked = daemon.map(|daemon| shared.ask_for(daemon, &info, false)).transpose();
        // Other objects may be attached while this one is copied.
        drop(inside);
        let (leased, done) = match asked {
            Ok(found) => (
                found.is_some(),
                copied::refuse_unverified(shared, &info).and_then(|()| take(&info)),
            ),
            Err(refused) => (false, Err(refused)),
        };
        let _inside = shared.store.is_connected().then(|| shared.door.enter());
        if let Some(daemon) = daemon.filter(|_| leased) {
            // A copy is made and durable: a lease that cannot be given back ends with the
            // connection.
            let _ = shared.give_up(daemon, &info);
        }
        shared.leave_writer(info.id());
        done
    }

    /// Makes an object again from a snapshot, under its name or another, owned by this user, at its
    /// old address if that is free here. One that is protected stays so, under the key of then,
    /// and keeps its identity, to which its pages are sealed; one that is not gets a new one.
    /// Its protection is bound to its name and store: under another name, or of another store,
    /// it takes [`Objects::restore_as`], if it has a key. Durable on return.
    ///
    /// Without a key nothing can be proved of a protected snapshot here: [`Restored::of`] says what
    /// it says of itself, and an attachment of the object finds a name, length or store that it
    /// does not have. A snapshot is of any age: an older one of the object is a snapshot as any
    /// other ([`crate::Attached::check_anchor`] tells).
    ///
    /// # Errors
    /// The file cannot be read, is no snapshot, cut short or damaged; it is protected, of another
    /// store, and no name is given; an object of this name, or a protected one of this identity, is
    /// there; the window or the disk is full. Nothing has changed then.
    pub fn restore(&self, path: &Path, name: Option<&str>) -> Result<Restored, ObjectError> {
        self.restore_by(path, name, None)
    }

    /// The same of a protected object under another name than it had, or of another store, with its
    /// key. The key covers [`Restored::of`]: the caller compares it with the object that it meant
    /// to restore.
    ///
    /// # Errors
    /// As [`Objects::restore`]; `EACCES`: the key is wrong, or of no use.
    pub fn restore_as(
        &self,
        path: &Path,
        name: &str,
        key: &Keyring,
    ) -> Result<Restored, ObjectError> {
        self.restore_by(path, Some(name), Some(key))
    }

    fn restore_by(
        &self,
        path: &Path,
        name: Option<&str>,
        key: Option<&Keyring>,
    ) -> Result<Restored, ObjectError> {
        self.0.store.check_usable()?;
        self.0.refuse_connected("objects are restored")?;
        if !self.0.store.is_writable() {
            return Err(StoreError::ReadOnly { what: "restore an object" }.into());
        }
        restored::restore(&self.0, path, (name, key))
    }
}
