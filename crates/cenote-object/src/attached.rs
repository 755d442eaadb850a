//! An attached object: its memory, and `psync`, which makes stores there durable. The crate's front
//! page has the states of a psync; this module goes through them.

use crate::at_rest::{self, View, not_copied};
use crate::dirty::{Mechanism, Tracker};
use crate::error::ObjectError;
use crate::header::{self, FoundState, Writer};
use crate::mapping::{is_protected, map_for_reading, map_view, view_for_reading};
use crate::options::Permission;
use crate::shared::Shared;
use crate::snapshot::{self, Blocks, Snapshot};
use cenote_atrest::view::Verified;
use cenote_atrest::{Anchor, Keyring, Mode};
use cenote_journal::Pages;
use cenote_layout::PAGE_SIZE;
use cenote_medium::planted::{Bug, planted};
use cenote_medium::{FileHandle, MapMode, MediumError, MediumKind};
use cenote_store::{ObjectInfo, StoreError};
use core::fmt;
use std::path::Path;
use std::sync::Arc;

/// An object that is accessible at its address, until this is detached or dropped.
///
/// **What was stored and not psynced is gone then**, as it is after a crash: dropping does not
/// psync.
pub struct Attached {
    pub(crate) shared: Arc<Shared>,
    pub(crate) info: ObjectInfo,
    pub(crate) permission: Permission,
    pub(crate) found: FoundState,
    pub(crate) primary: Arc<FileHandle>,
    /// Of a writer of an object without protection. Dropped before the shadow is unmapped.
    pub(crate) tracker: Option<Tracker>,
    /// Of an object with protection: its memory. All readers share one. Dropped before the
    /// addresses are unmapped.
    pub(crate) view: Option<Arc<View>>,
    /// Pages that may differ from the primary.
    pub(crate) pending: Vec<Pages>,
    /// Those of them that did, when they were compared.
    pub(crate) changed: Vec<Pages>,
    pub(crate) mapped: bool,
}

impl fmt::Debug for Attached {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let name = &self.info.record.name;
        write!(f, "Attached({name:?} at {:#x}, {:?})", self.info.data_addr(), self.permission)
    }
}

impl Attached {
    /// Attaches an object for reading.
    pub(crate) fn reader(
        shared: &Arc<Shared>,
        info: ObjectInfo,
        key: Option<&Keyring>,
    ) -> Result<Self, ObjectError> {
        shared.store.verify_object(&info)?;
        MediumError::room_to_map(&info.file())?;
        let _inside = shared.door.enter();
        let protected = is_protected(shared, &info, key)?;
        // A daemon tells processes apart, not handles of one process: it would give a reader an
        // object that a writer here has.
        shared.refuse_written(&info)?;
        let asked =
            shared.daemon().map(|daemon| shared.ask_for(daemon, &info, false)).transpose()?;
        let attached = Self::look(shared, &info, asked).and_then(|(primary, found)| {
            let view = match protected {
                true => Some(view_for_reading(shared, &info, &primary, key)?),
                false => {
                    shared.enter_reader(&info, || map_for_reading(shared, &info))?;
                    None
                }
            };
            Ok((primary, found, view))
        });
        // A further reader does not map it again.
        // SAFETY: `ask_for` admitted it, under the door's lock, which is held: no other thread of
        // this process is about to map it.
        unsafe { shared.store.dismiss(&info.file()) };
        let (primary, found, view) = match (attached, shared.daemon()) {
            (Err(error), Some(daemon)) if !shared.is_used(info.id()) => {
                let _ = shared.give_up(daemon, &info);
                return Err(error);
            }
            (attached, _) => attached?,
        };
        Ok(Self {
            shared: Arc::clone(shared),
            info,
            permission: Permission::Read,
            found,
            primary,
            tracker: None,
            view,
            pending: Vec::new(),
            changed: Vec::new(),
            mapped: true,
        })
    }

    /// Attaches an object for writing.
    pub(crate) fn writer(
        shared: &Arc<Shared>,
        info: ObjectInfo,
        key: Option<&Keyring>,
        mechanism: Option<Mechanism>,
    ) -> Result<Self, ObjectError> {
        shared.store.verify_object(&info)?;
        MediumError::room_to_map(&info.file())?;
        let protected = is_protected(shared, &info, key)?;
        let _inside = shared.door.enter();
        shared.enter_writer(&info)?;
        let known = info.clone();
        let asked = shared.daemon().map(|daemon| shared.ask_for(daemon, &info, true)).transpose();
        let attached = asked.and_then(|asked| {
            let attached = match protected {
                true => Self::view_for_writing(shared, info, key, mechanism, asked),
                false => Self::map_for_writing(shared, info, mechanism, asked),
            };
            attached.inspect_err(|_| {
                if let Some(daemon) = shared.daemon() {
                    let _ = shared.give_up(daemon, &known);
                }
            })
        });
        attached.inspect_err(|_| shared.leave_writer(known.id()))
    }

    fn view_for_writing(
        shared: &Arc<Shared>,
        info: ObjectInfo,
        key: Option<&Keyring>,
        mechanism: Option<Mechanism>,
        asked: Option<FoundState>,
    ) -> Result<Self, ObjectError> {
        let (primary, found) = Self::look(shared, &info, asked)?;
        shared.set_found(info.id(), found);
        if let Some(mechanism @ (Mechanism::WriteProtect | Mechanism::PrivateCopy)) = mechanism {
            let reason = "pages of a protected object are decrypted by a handler of faults, which \
                          finds written ones too";
            return Err(ObjectError::Mechanism {
                name: info.record.name,
                mechanism,
                reason: reason.into(),
            });
        }
        shared.need_journal()?;
        let view = Arc::new(map_view(shared, &info, &primary, key, Some(mechanism))?);
        let mut attached = Self {
            shared: Arc::clone(shared),
            info,
            permission: Permission::ReadWrite,
            found,
            primary,
            tracker: None,
            view: Some(view),
            pending: Vec::new(),
            changed: Vec::new(),
            mapped: true,
        };
        if let Err(error) = attached.write_header(true) {
            // It never was attached: the caller takes the note of it back.
            attached.view = None;
            attached.mapped = false;
            let _ = attached.unmap();
            return Err(error.into());
        }
        Ok(attached)
    }

    /// Its file, and how it was left: as a daemon said, if one was asked.
    fn look(
        shared: &Shared,
        info: &ObjectInfo,
        asked: Option<FoundState>,
    ) -> Result<(Arc<FileHandle>, FoundState), ObjectError> {
        let medium = shared.store.medium();
        let primary = Arc::new(FileHandle::open(shared.files(), &info.file())?);
        let found = match asked {
            Some(found) => found,
            None => header::found(&primary, info.header_offset(), info.id(), &**medium, None)?,
        };
        Ok((primary, found))
    }

    fn map_for_writing(
        shared: &Arc<Shared>,
        info: ObjectInfo,
        mechanism: Option<Mechanism>,
        asked: Option<FoundState>,
    ) -> Result<Self, ObjectError> {
        let (primary, found) = Self::look(shared, &info, asked)?;
        shared.set_found(info.id(), found);
        // SAFETY: the object's own range; a writer is alone with it, so nothing is mapped there.
        unsafe {
            shared.store.medium().map(&info.file(), info.addr, info.size, MapMode::PrivateCopy)
        }?;
        let mut attached = Self {
            shared: Arc::clone(shared),
            info,
            permission: Permission::ReadWrite,
            found,
            primary,
            tracker: None,
            view: None,
            pending: Vec::new(),
            changed: Vec::new(),
            mapped: true,
        };
        if let Err(error) = attached.begin_writing(mechanism) {
            // It never was attached: the caller takes the note of it back.
            attached.tracker = None;
            attached.mapped = false;
            let _ = attached.unmap();
            return Err(error);
        }
        Ok(attached)
    }

    fn begin_writing(&mut self, mechanism: Option<Mechanism>) -> Result<(), ObjectError> {
        self.shared.need_journal()?;
        let range = (self.info.data_addr() as usize, self.span() as usize);
        let what = at_rest::named(self.name());
        let simulated = self.shared.kind == MediumKind::Simulated;
        let wanted = mechanism.or(simulated.then_some(Mechanism::Compare));
        let tracker = match wanted {
            // Its shadows are no mappings of files.
            Some(mechanism @ Mechanism::PrivateCopy) if simulated => {
                return Err(self.refused(mechanism, "the medium is simulated".into()));
            }
            // SAFETY: the shadow is this object's private mapping, and stays until the tracker is
            // dropped.
            Some(mechanism) => unsafe { Tracker::new(mechanism, range, &what) }
                .map_err(|reason| self.refused(mechanism, reason))?,
            // SAFETY: as above.
            None => unsafe { Tracker::best(range, &what) },
        };
        let tracker = self.tracker.insert(tracker);
        if let Some(journal) = self.shared.journal_if_any().filter(|journal| journal.wants_thread())
        {
            let (journal, file) = (Arc::clone(journal), Arc::clone(&self.primary));
            let (id, data_offset) = (self.info.id(), self.info.data_offset());
            tracker.close_later(Box::new(move |offset, bytes| {
                journal.primary(id, &file, data_offset).read(offset, bytes).is_ok()
            }));
        }
        self.write_header(true)?;
        Ok(())
    }

    fn refused(&self, mechanism: Mechanism, reason: String) -> ObjectError {
        ObjectError::Mechanism { name: self.name().into(), mechanism, reason }
    }

    fn scan_failed(&self, source: std::io::Error) -> ObjectError {
        ObjectError::Scan { name: self.name().into(), source }
    }

    fn write_header(&self, writing: bool) -> Result<(), MediumError> {
        if self.shared.store.is_connected() {
            return Ok(()); // the daemon's
        }
        if writing {
            self.shared.store.mark_object(&self.info, &self.primary)?;
        }
        let (medium, writer) = (self.shared.store.medium(), writing.then(Writer::this));
        header::write(&self.primary, self.info.header_offset(), self.info.id(), writer, &**medium)
    }

    /// Its pages that were stored into are pending from now on.
    pub(crate) fn collect(&mut self) -> Result<(), ObjectError> {
        let collected = match (&self.view, &mut self.tracker) {
            (Some(view), _) => view.collect(&mut self.pending),
            (None, Some(tracker)) => tracker.collect(&mut self.pending),
            (None, None) => Ok(()),
        };
        collected.map_err(|source| self.scan_failed(source))
    }

    /// Bytes of the data, up to the end of its last page.
    fn span(&self) -> u64 {
        self.info.record.span()
    }

    pub(crate) fn pointer(&self) -> *mut u8 {
        core::ptr::with_exposed_provenance_mut(self.info.data_addr() as usize)
    }

    /// Its name.
    #[must_use]
    pub fn name(&self) -> &str {
        &self.info.record.name
    }

    /// What the catalog says about it.
    #[must_use]
    pub fn info(&self) -> &ObjectInfo {
        &self.info
    }

    pub(crate) fn shared(&self) -> &Arc<Shared> {
        &self.shared
    }

    /// How its last writer had left it.
    #[must_use]
    pub fn found(&self) -> FoundState {
        self.found
    }

    /// What it is attached for.
    #[must_use]
    pub fn permission(&self) -> Permission {
        self.permission
    }

    /// How written pages are found; `None` of a reader.
    #[must_use]
    pub fn mechanism(&self) -> Option<Mechanism> {
        let of_view = |view: &Arc<View>| match view.compares() {
            true => Mechanism::Compare,
            false => Mechanism::Mprotect,
        };
        let view = self.view.as_ref().filter(|_| self.permission == Permission::ReadWrite);
        self.tracker.as_ref().map(Tracker::mechanism).or(view.map(of_view))
    }

    /// What protects it at rest.
    #[must_use]
    pub fn protection(&self) -> Mode {
        self.info.record.at_rest.mode()
    }

    fn pages_of(&self, offset: u64, wanted: u64) -> Result<Pages, ObjectError> {
        if offset.checked_add(wanted).is_none_or(|end| end > self.len()) {
            let (name, len) = (self.name().into(), self.len());
            return Err(ObjectError::Range { name, len, offset, wanted });
        }
        if self.shared.store.is_forked() {
            return Err(StoreError::Forked.into());
        }
        Ok(offset / PAGE_SIZE..(offset + wanted).div_ceil(PAGE_SIZE))
    }

    /// Verifies and decrypts the pages of `len` bytes from `offset` on, so that loads from them
    /// neither fault nor fail, and the kernel can read them (`write` of a page that was not
    /// touched yet fails with `EFAULT`). Nothing to do for an object without protection.
    ///
    /// # Errors
    /// [`ObjectError::PageDamaged`] with the first page that fails its check; those before it are
    /// there. A range that the object does not have. The medium.
    pub fn load(&self, offset: u64, len: u64) -> Result<(), ObjectError> {
        let pages = self.pages_of(offset, len)?;
        match &self.view {
            Some(view) => view.load(pages).map_err(|error| at_rest::sealed(self.name(), error)),
            None => Ok(()),
        }
    }

    /// The record to keep elsewhere, to notice a whole store that was put back; `None` of an object
    /// that is not protected. Not secret.
    #[must_use]
    pub fn anchor(&self) -> Option<Anchor> {
        self.view.as_ref().map(|view| view.protection().anchor())
    }

    /// Compares the object with what [`Attached::anchor`] said earlier.
    ///
    /// # Errors
    /// [`ObjectError::AtRest`]: it is older than it was, or of another history;
    /// [`ObjectError::NotProtected`].
    pub fn check_anchor(&self, anchor: &Anchor) -> Result<(), ObjectError> {
        let Some(view) = &self.view else {
            return Err(ObjectError::NotProtected { name: self.name().into() });
        };
        view.protection().check_anchor(anchor).map_err(|error| at_rest::at_rest(self.name(), error))
    }

    /// Copies bytes from `offset` on: what a load gives, with an error where a load would be a bus
    /// error.
    ///
    /// # Errors
    /// As [`Attached::load`]; `bytes` is its length then.
    pub fn read_at(&self, offset: u64, bytes: &mut [u8]) -> Result<(), ObjectError> {
        self.load(offset, bytes.len() as u64)?;
        match &self.view {
            // SAFETY: `load` has checked the range, and loaded it; a writer stores by `&mut self`.
            Some(view) => unsafe { view.copy_out(offset, bytes) },
            None => bytes.copy_from_slice(&self.as_slice()[offset as usize..][..bytes.len()]),
        }
        Ok(())
    }

    /// Checks every page against the hash tree, as the last psync left it, and gives no contents
    /// out. `progress` is told pages done and pages altogether; if it says `false`, that is
    /// all. In modes without a tree, and without protection, nothing can be said: nothing is
    /// covered.
    pub fn verify(&self, progress: &mut dyn FnMut(u64, u64) -> bool) -> Verified {
        self.view.as_ref().map(|view| at_rest::verify(view, progress)).unwrap_or_default()
    }

    /// The address of its data: a multiple of 4096, the same in every process and session while the
    /// object exists.
    #[must_use]
    pub fn addr(&self) -> u64 {
        self.info.data_addr()
    }

    /// Bytes of its data.
    #[must_use]
    #[allow(clippy::len_without_is_empty)] // never empty
    pub fn len(&self) -> u64 {
        self.info.record.data_len
    }

    /// The first byte. Readable for [`Attached::len`] bytes while `self` lives, and writable if it
    /// is attached for writing. Code that stores through it keeps the promise of the
    /// crate's front page: no store during a psync of this object, nor while a slice of
    /// [`Attached::as_slice`] is in use.
    #[must_use]
    pub fn as_ptr(&self) -> *mut u8 {
        self.pointer()
    }

    /// Its data. In a forked child, which has no access: nothing.
    #[must_use]
    pub fn as_slice(&self) -> &[u8] {
        if self.shared.store.is_forked() {
            return &[];
        }
        // SAFETY: mapped while `self` lives; private, or of a file without a writer: the store's
        // lock keeps other processes out, the table of attachments other writers of this
        // one.
        unsafe { core::slice::from_raw_parts(self.pointer(), self.len() as usize) }
    }

    /// Its data, to be changed.
    ///
    /// # Errors
    /// It is attached for reading; this process is a fork.
    pub fn as_mut_slice(&mut self) -> Result<&mut [u8], ObjectError> {
        if self.permission == Permission::Read {
            return Err(ObjectError::ReadOnly { name: self.name().into() });
        }
        if self.shared.store.is_forked() {
            return Err(StoreError::Forked.into());
        }
        // SAFETY: as in `as_slice`, and writable; `&mut self` excludes other references.
        Ok(unsafe { core::slice::from_raw_parts_mut(self.pointer(), self.len() as usize) })
    }

    /// Writes a snapshot of the object as its last psync left it into a new file; see
    /// [`crate::Objects::snapshot`].
    ///
    /// # Errors
    /// As [`crate::Objects::snapshot`].
    pub fn snapshot(&self, path: &Path, blocks: Blocks) -> Result<Snapshot, ObjectError> {
        self.shared.store.check_usable()?;
        self.shared.refuse_connected("an object that is attached is copied into a snapshot")?;
        // `psync` takes `&mut self`, and an object that is attached here has no other writer.
        if let Some(journal) = self.shared.journal_if_any() {
            journal.settle(self.info.id()).map_err(|error| not_copied(self.name(), error))?;
        }
        snapshot::take(&self.shared, &self.info, path, blocks, &|| true)
    }

    /// Gives the object back. What was not psynced is gone. References into it have ended then:
    ///
    /// ```compile_fail,E0505
    /// fn late(object: cenote_object::Attached) -> u8 {
    ///     let first = &object.as_slice()[0];
    ///     object.detach().expect("detached");
    ///     *first
    /// }
    /// ```
    ///
    /// # Errors
    /// The medium: the object is detached all the same, except that its header may not say so.
    pub fn detach(mut self) -> Result<(), ObjectError> {
        self.give_back()
    }

    fn unmap(&self) -> Result<(), MediumError> {
        // SAFETY: the object's own range. A writer is alone with it and gives it back once; of
        // readers the last one does; references borrow from them.
        unsafe { self.shared.store.medium().unmap(self.info.addr, self.info.size) }
    }

    fn give_back(&mut self) -> Result<(), ObjectError> {
        if !core::mem::take(&mut self.mapped) {
            return Ok(());
        }
        let store = &self.shared.store;
        if store.is_forked() {
            // Neither mapping nor registration went over to this process, and files are the
            // parent's.
            core::mem::forget((self.tracker.take(), self.view.take()));
            return Ok(());
        }
        self.view = None;
        let _inside = self.shared.door.enter();
        if self.permission == Permission::Read {
            let id = self.info.id();
            self.shared.leave_reader(id, || {
                self.shared.forget_view(id);
                self.unmap()
            })?;
            return match self.shared.daemon() {
                Some(daemon) if !self.shared.is_used(id) => self.shared.give_up(daemon, &self.info),
                _ => Ok(()),
            };
        }
        self.tracker = None;
        // If this fails the addresses stay taken, and so does the object.
        self.unmap()?;
        // The next attach reads its file.
        let settled = match self.shared.journal_if_any() {
            Some(journal) if !self.shared.is_silent() && !planted(Bug::DetachNotSettled) => {
                journal.settle(self.info.id())
            }
            _ => Ok(()),
        };
        let written = if !self.shared.is_silent() && store.check_usable().is_ok() {
            self.write_header(false)
        } else {
            Ok(())
        };
        let given_up = match self.shared.daemon() {
            Some(daemon) if !self.shared.is_silent() => self.shared.give_up(daemon, &self.info),
            _ => Ok(()),
        };
        self.shared.leave_writer(self.info.id());
        given_up?;
        settled.map_err(|error| not_copied(self.name(), error))?;
        Ok(written?)
    }
}

impl Drop for Attached {
    fn drop(&mut self) {
        let _ = self.give_back();
    }
}
