//! An attached object: its memory, and `psync`, which makes what was stored there durable. The states of a psync are on the crate's
//! front page; this module goes through them.

use crate::at_rest::{self, View, not_copied};
use crate::connected;
use crate::dirty::{Mechanism, Tracker, normalise};
use crate::error::ObjectError;
use crate::header::{self, Found, Writer};
use crate::mapping::{is_protected, map_for_reading, map_view, view_for_reading};
use crate::options::Permission;
use crate::shared::Shared;
use crate::snapshot::{self, Blocks, Snapshot};
use cenote_atrest::{Anchor, Change, Keyring, Mode};
use cenote_journal::{Changes, Draft, Journal, Pages, Target, Ticket};
use cenote_layout::PAGE_SIZE;
use cenote_layout::id::Uuid;
use cenote_layout::object::ObjectState;
use cenote_medium::planted::{Bug, planted};
use cenote_medium::{FileHandle, MapMode, MediumError, MediumKind};
use cenote_sealed::Verified;
use cenote_store::{ObjectInfo, StoreError};
use core::fmt;
use std::path::Path;
use std::sync::Arc;

/// An object that is accessible at its address, until this is detached or dropped.
///
/// **What was stored and not psynced is gone then**, as it is after a crash: dropping does not psync.
pub struct Attached {
    shared: Arc<Shared>,
    info: ObjectInfo,
    permission: Permission,
    found: Found,
    primary: Arc<FileHandle>,
    /// Of a writer of an object without protection. Dropped before the shadow is unmapped.
    tracker: Option<Tracker>,
    /// Of an object with protection: its memory. All readers share one. Dropped before the addresses are unmapped.
    view: Option<Arc<View>>,
    /// Pages that may differ from the primary.
    pending: Vec<Pages>,
    /// Those of them that did, when they were compared.
    changed: Vec<Pages>,
    mapped: bool,
}

/// What one psync did.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Psync {
    /// Its number in the store's journal; 0 if nothing had changed.
    pub seq: u64,
    /// Pages in which something had changed. Among many pages that changed as a whole, one that did not may be counted.
    pub pages: u64,
    /// Bytes of lines that were journalled.
    pub data_bytes: u64,
    /// Bytes that the record took in the journal.
    pub journal_bytes: u64,
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
        // A daemon knows this process, and not who in it has what: it would give a reader what a writer here has.
        shared.refuse_written(&info)?;
        let asked = shared.store.keeper().map(|keeper| shared.ask_for(keeper, &info, false)).transpose()?;
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
        // Of a further reader, nobody maps it.
        shared.store.dismiss(&info.file());
        let (primary, found, view) = match (attached, shared.store.keeper()) {
            (Err(error), Some(keeper)) if !shared.is_used(info.id()) => {
                let _ = shared.give_up(keeper, &info);
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
        let asked = shared.store.keeper().map(|keeper| shared.ask_for(keeper, &info, true)).transpose();
        let attached = asked.and_then(|asked| {
            let attached = match protected {
                true => Self::view_for_writing(shared, info, key, mechanism, asked),
                false => Self::map_for_writing(shared, info, mechanism, asked),
            };
            attached.inspect_err(|_| {
                if let Some(keeper) = shared.store.keeper() {
                    let _ = shared.give_up(keeper, &known);
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
        asked: Option<Found>,
    ) -> Result<Self, ObjectError> {
        let (primary, found) = Self::look(shared, &info, asked)?;
        shared.set_found(info.id(), found);
        if let Some(mechanism @ (Mechanism::WriteProtect | Mechanism::PrivateCopy)) = mechanism {
            let reason = "pages of a protected object are decrypted by a handler of faults, which finds written ones too";
            return Err(ObjectError::Mechanism { name: info.record.name, mechanism, reason: reason.into() });
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
        asked: Option<Found>,
    ) -> Result<(Arc<FileHandle>, Found), ObjectError> {
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
        asked: Option<Found>,
    ) -> Result<Self, ObjectError> {
        let (primary, found) = Self::look(shared, &info, asked)?;
        shared.set_found(info.id(), found);
        // SAFETY: the object's own range; a writer is alone with it, so nothing is mapped there.
        unsafe { shared.store.medium().map(&info.file(), info.addr, info.size, MapMode::PrivateCopy) }?;
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
        let (base, len) = (self.info.data_addr() as usize, self.span() as usize);
        let simulated = self.shared.kind == MediumKind::Simulated;
        let wanted = mechanism.or(simulated.then_some(Mechanism::Compare));
        let tracker = match wanted {
            // Its shadows are no mappings of files.
            Some(mechanism @ Mechanism::PrivateCopy) if simulated => {
                return Err(self.refused(mechanism, "the medium is simulated".into()));
            }
            // SAFETY: the shadow is this object's private mapping, and stays until the tracker is dropped.
            Some(mechanism) => unsafe { Tracker::new(mechanism, base, len) }
                .map_err(|reason| self.refused(mechanism, reason))?,
            // SAFETY: as above.
            None => unsafe { Tracker::best(base, len) },
        };
        let tracker = self.tracker.insert(tracker);
        if let Some(journal) = self.shared.journal_if_any().filter(|journal| journal.wants_thread()) {
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

    pub(crate) fn pending(&mut self) -> &mut Vec<Pages> {
        &mut self.pending
    }

    pub(crate) fn tracker(&self) -> Option<&Tracker> {
        self.tracker.as_ref()
    }

    /// Of an object with protection: what sealing its pending pages takes.
    pub(crate) fn protected(&self) -> Option<(&ObjectInfo, &View, &FileHandle, &[Pages])> {
        self.view.as_deref().map(|view| (&self.info, view, &*self.primary, &*self.pending))
    }

    /// What was pending is committed, and where that matters in the files.
    pub(crate) fn committed(
        writers: &mut [&mut Self],
        sealed: &mut [Option<Change>],
    ) -> Result<(), ObjectError> {
        if let Some(first) = writers.first() {
            let shared = Arc::clone(&first.shared);
            commit_sealed(&shared, writers, sealed)?;
        }
        clean(writers);
        Ok(())
    }

    /// Bytes of the data, up to the end of its last page.
    fn span(&self) -> u64 {
        self.info.record.span()
    }

    fn pointer(&self) -> *mut u8 {
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
    pub fn found(&self) -> Found {
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

    /// Verifies and decrypts the pages of `len` bytes from `offset` on, so that loads from them neither fault nor fail, and the kernel can read
    /// them (`write` of a page that was not touched yet fails with `EFAULT`). Nothing to do for an object without protection.
    ///
    /// # Errors
    /// [`ObjectError::PageDamaged`] with the first page that fails its check; those before it are there. A range that the object does
    /// not have. The medium.
    pub fn load(&self, offset: u64, len: u64) -> Result<(), ObjectError> {
        let pages = self.pages_of(offset, len)?;
        match &self.view {
            Some(view) => view.load(pages).map_err(|error| at_rest::sealed(self.name(), error)),
            None => Ok(()),
        }
    }

    /// What to remember elsewhere, so that putting back the whole store from earlier is noticed;
    /// `None` of an object that is not protected. Not secret.
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

    /// Copies bytes from `offset` on: what a load gives, with an error where a load would be a bus error.
    ///
    /// # Errors
    /// As [`Attached::load`]; `bytes` is what it was then.
    pub fn read_at(&self, offset: u64, bytes: &mut [u8]) -> Result<(), ObjectError> {
        self.load(offset, bytes.len() as u64)?;
        match &self.view {
            Some(view) => view.copy_out(offset, bytes),
            None => bytes.copy_from_slice(&self.as_slice()[offset as usize..][..bytes.len()]),
        }
        Ok(())
    }

    /// Checks every page against the hash tree, as the last psync left it, and gives no contents out. `progress` is told pages done and pages
    /// altogether; if it says `false`, that is all. In modes without a tree, and without protection, nothing can be said: nothing is
    /// covered.
    pub fn verify(&self, progress: &mut dyn FnMut(u64, u64) -> bool) -> Verified {
        self.view.as_ref().map(|view| at_rest::verify(view, progress)).unwrap_or_default()
    }

    /// The address of its data: a multiple of 4096, the same in every process and session while the object exists.
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

    /// The first byte. Readable for [`Attached::len`] bytes while `self` lives, and writable if it is attached for writing. Whoever
    /// stores through it keeps the promise of the crate's front page: not during a psync of this object, nor while a slice of
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
        // SAFETY: mapped while `self` lives; private, or of a file that nobody writes: the store's lock keeps other processes out,
        // the table of attachments other writers of this one.
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

    /// Makes everything that was stored since the last psync durable, all of it or nothing (PMO-3). On return it survives loss of
    /// power; on tmpfs, the end of the process. Of a reader it is ignored, as in the paper.
    ///
    /// # Errors
    /// `ENOSPC`, `EIO` while it is journalled: the object is as it was after the last psync, the shadow keeps its stores, and the next
    /// psync has them all. A failed sync, or a primary that cannot be written: the store is poisoned, and the next open decides.
    pub fn psync(&mut self) -> Result<Psync, ObjectError> {
        run(&mut [self])
    }

    /// Writes a snapshot of the object as its last psync left it into a new file; see [`crate::Objects::snapshot`].
    ///
    /// # Errors
    /// As [`crate::Objects::snapshot`].
    pub fn snapshot(&self, path: &Path, blocks: Blocks) -> Result<Snapshot, ObjectError> {
        self.shared.store.check_usable()?;
        self.shared.refuse_connected("an object that is attached is copied into a snapshot")?;
        // `psync` takes `&mut self`, and nobody else writes an object that is attached here.
        if let Some(journal) = self.shared.journal_if_any() {
            journal.settle(self.info.id()).map_err(|error| not_copied(self.name(), error))?;
        }
        snapshot::take(&self.shared, &self.info, path, blocks)
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
        // SAFETY: the object's own range. A writer is alone with it and gives it back once; of readers the last one does; references borrow from them.
        unsafe { self.shared.store.medium().unmap(self.info.addr, self.info.size) }
    }

    fn give_back(&mut self) -> Result<(), ObjectError> {
        if !core::mem::take(&mut self.mapped) {
            return Ok(());
        }
        let store = &self.shared.store;
        if store.is_forked() {
            // Neither mapping nor registration went over to this process, and files are the parent's.
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
            return match store.keeper() {
                Some(keeper) if !self.shared.is_used(id) => self.shared.give_up(keeper, &self.info),
                _ => Ok(()),
            };
        }
        self.tracker = None;
        // If this fails the addresses stay taken, and so does the object.
        self.unmap()?;
        // Who attaches it next reads its file.
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
        let given_up = match store.keeper() {
            Some(keeper) if !self.shared.is_silent() => self.shared.give_up(keeper, &self.info),
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

/// Psyncs several objects of one store together: after a crash all of them are as they were after this psync, or none is.
///
/// # Errors
/// As [`Attached::psync`]; objects of different stores.
pub fn psync_all(objects: &mut [&mut Attached]) -> Result<Psync, ObjectError> {
    if planted(Bug::PsyncNotTogether) {
        let mut last = Psync::default();
        for object in objects.iter_mut() {
            last = object.psync()?;
        }
        return Ok(last);
    }
    run(objects)
}

/// The states of the crate's front page, one after the other.
fn run(objects: &mut [&mut Attached]) -> Result<Psync, ObjectError> {
    let Some(first) = objects.first() else { return Ok(Psync::default()) };
    let shared = Arc::clone(&first.shared);
    if objects.iter().any(|object| !Arc::ptr_eq(&object.shared, &shared)) {
        return Err(ObjectError::NotTogether);
    }
    let mut writers: Vec<&mut Attached> = objects
        .iter_mut()
        .map(|object| &mut **object)
        .filter(|object| object.permission == Permission::ReadWrite)
        .collect();
    if writers.is_empty() {
        return Ok(Psync::default());
    }
    shared.store.check_usable()?;
    if let Some(keeper) = shared.store.keeper() {
        return connected::psync(keeper, &mut writers);
    }
    let journal = shared.journal()?;
    let mut changes = journal.changes();
    let committed = commit(&shared, journal, &mut writers, &mut changes);
    let (done, ticket) = match committed {
        Ok((done, Some(ticket))) => (done, ticket),
        other => {
            journal.recycle(changes);
            return other.map(|(done, _)| done);
        }
    };
    // State C: what is left to do needs nobody to wait.
    let target = |object: &&mut Attached| Target {
        id: object.info.id(),
        file: Arc::clone(&object.primary),
        data_offset: object.info.data_offset(),
        rooted: at_rest::rooted(&object.info),
    };
    let targets = writers.iter().map(target).collect();
    let names = |error| not_copied(writers.first().map_or("", |object| object.name()), error);
    journal.apply_later(ticket, changes, targets).map_err(names)?;
    for object in &mut writers {
        // Copies are given back for what the file holds.
        if object.tracker.as_ref().is_some_and(Tracker::reads_primary) {
            journal.settle(object.info.id()).map_err(|error| not_copied(object.name(), error))?;
        }
    }
    clean(&mut writers);
    writers.iter().for_each(|object| shared.set_state(object.info.id(), ObjectState::Write));
    Ok(done)
}

/// Up to the commit. No ticket: nothing had changed.
fn commit(
    shared: &Shared,
    journal: &Journal,
    writers: &mut [&mut Attached],
    changes: &mut Changes,
) -> Result<(Psync, Option<Ticket>), ObjectError> {
    // State W: what was stored is found and copied, and sealed where there is protection.
    let mut sealed: Vec<Option<Change>> = Vec::new();
    for (number, object) in (0..).zip(writers.iter_mut()) {
        let object = &mut **object;
        let collected = object.collect();
        normalise(&mut object.pending);
        collected?;
        let info = &object.info;
        let primary = journal.primary(info.id(), &object.primary, info.data_offset());
        if let Some(view) = &object.view {
            sealed.push(at_rest::seal(info, view, number, &object.pending, &primary, changes)?);
            continue;
        }
        sealed.push(None);
        // SAFETY: the shadow is mapped for writing, and `&mut` keeps others from using it.
        unsafe { changes.add(number, object.pointer(), &object.pending, &primary) }?;
    }
    if changes.runs.is_empty() {
        clean(writers);
        return Ok((Psync::default(), None));
    }
    // Only who closes pages later asks which have changed.
    for (number, object) in (0..).zip(writers.iter_mut()).filter(|(_, object)| object.tracker.is_some()) {
        object.changed = changes.pages_of(number);
    }
    let ids: Vec<Uuid> = writers.iter().map(|object| object.info.id()).collect();
    let all = |state| ids.iter().for_each(|id| shared.set_state(*id, state));
    let Some(draft) = Draft::new(&ids, changes) else {
        let limit = shared.options.half_len_max;
        return Err(ObjectError::PsyncTooLarge { needed: changes.data.len() as u64, limit });
    };

    all(ObjectState::Psync);
    let ticket = journal.append(&draft).inspect_err(|_| {
        all(ObjectState::Write);
        if planted(Bug::PsyncForgetsPages) {
            writers.iter_mut().for_each(|object| object.pending.clear());
        }
    })?;
    let done = Psync {
        seq: ticket.seq,
        pages: changes.pages,
        data_bytes: changes.data.len() as u64,
        journal_bytes: draft.total_len(),
    };
    if planted(Bug::PsyncAppliedEarly) {
        for (run, data) in changes.iter() {
            let object = &writers[run.object as usize];
            object.primary.write_at(object.info.data_offset() + run.offset(), data)?;
        }
    }
    journal.make_durable(&ticket)?;

    all(ObjectState::Copy);
    // Before the primary is written: from now on the new nodes count, and those that change are not read from it.
    commit_sealed(shared, writers, &mut sealed)?;
    Ok((done, Some(ticket)))
}

/// From now on pages are checked against what was committed.
fn commit_sealed(
    shared: &Shared,
    writers: &[&mut Attached],
    sealed: &mut [Option<Change>],
) -> Result<(), ObjectError> {
    for (object, change) in writers.iter().zip(sealed) {
        let (Some(view), Some(change)) = (&object.view, change.take()) else { continue };
        if let Err(error) = view.protection().commit(change) {
            // `&mut` lets one psync run at a time, and nobody else changes an object that is attached for writing.
            let name = object.name();
            shared.store.poison(&format!("the protection of object \"{name}\" went out of step: {error}"));
            return Err(at_rest::at_rest(name, error));
        }
    }
    Ok(())
}

/// Shadows hold what was committed, and nothing else.
fn clean(writers: &mut [&mut Attached]) {
    for object in writers.iter_mut() {
        let object = &mut **object;
        if let Some(tracker) = &mut object.tracker {
            let changed = core::mem::take(&mut object.changed);
            // SAFETY: every pending page is committed, and in the primary where that matters; `&mut` excludes references. What cannot be given back is compared
            // again by the next psync.
            let _ = unsafe { tracker.clean(&object.pending, changed) };
        }
        if let Some(view) = &object.view {
            at_rest::settle(view);
        }
        object.pending.clear();
    }
}
