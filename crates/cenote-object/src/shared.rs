//! The state that all handles of one store's objects share: the journal, the table of attachments,
//! and the findings of recovery.
//!
//! Invariant: an attached object has an entry in [`Shared::uses`] until its memory is given back; a
//! writer is alone there. The journal is made when the first object is, and recovery goes through
//! it before there is a handle.

use crate::door::Door;
use crate::error::ObjectError;
use crate::header::{self, FoundState};
use crate::options::{ObjectsOptions, Trim};
use cenote_atrest::view::View;
use cenote_journal::{Guard, Home, Journal, Root, Rooted, Roots, Settings, Stopped};
use cenote_layout::id::Uuid;
use cenote_layout::object::ObjectState;
use cenote_medium::planted::{Bug, planted};
use cenote_medium::{FileHandle, MediumError, MediumKind, OwnedMedium};
use cenote_protect::{Owner, Whole};
use cenote_store::{DaemonApi, ObjectInfo, Store, StoreError};
use cenote_sys::process;
use cenote_sys::process_lock::ProcessLock;
use core::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::collections::{BTreeMap, BTreeSet};
use std::path::Path;
use std::sync::{Arc, Condvar, Mutex, MutexGuard, OnceLock, PoisonError, Weak};
use std::thread::JoinHandle;

/// What recovery did when the objects were opened.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Recovery {
    /// Committed records that were written to the primaries again (or, in a read-only store, laid
    /// over them).
    pub records: u64,
    /// Objects that were not in state D, R or W when their session ended: name, and `Psync` or
    /// `Copy`.
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
    pub found: FoundState,
}

/// The attachments of one object in this process.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Use {
    pub(crate) readers: u32,
    pub(crate) state: ObjectState,
    pub(crate) found: FoundState,
}

/// Bytes laid over a primary in a read-only store, each with its offset in the data.
pub(crate) use cenote_atrest::view::Patches;

/// What all handles share.
pub(crate) struct Shared {
    pub(crate) store: Store,
    pub(crate) options: ObjectsOptions,
    pub(crate) kind: MediumKind,
    pub(crate) journal: OnceLock<Arc<Journal>>,
    pub(crate) creating: Mutex<()>,
    pub(crate) thread: Mutex<Option<JoinHandle<()>>>,
    pub(crate) uses: Mutex<BTreeMap<Uuid, Use>>,
    /// Objects that this session removed. Changed while `uses` is locked.
    pub(crate) removals: AtomicU64,
    pub(crate) overlay: BTreeMap<Uuid, Patches>,
    /// In a read-only store: the roots of protected objects that nothing is laid over.
    pub(crate) roots: Option<Roots>,
    /// What readers of protected objects share.
    pub(crate) views: Mutex<BTreeMap<Uuid, Arc<View>>>,
    /// Objects that are mapped for reading with records laid over them.
    closed: Mutex<BTreeMap<Uuid, Owner<Whole>>>,
    pub(crate) recovery: Recovery,
    /// Nothing is written any more: the store is abandoned.
    pub(crate) silent: AtomicBool,
    /// It is in [`REGISTRY`].
    pub(crate) registered: AtomicBool,
    /// Of a daemon's client.
    pub(crate) door: Door,
    /// Of a daemon: identities of objects that are gone, of which the journal may hold records.
    pub(crate) removed: Mutex<BTreeSet<Uuid>>,
    /// Of a daemon's client.
    pub(crate) of_copy: FromDaemon,
}

/// The file of the objects' journal.
pub(crate) const JOURNAL: &str = "journal";

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

    fn check_owner(&self) -> Result<(), MediumError> {
        self.0.check_owner()
    }
}

/// The objects of a store that is open.
pub(crate) struct Registered {
    /// [`Store::instance`].
    pub(crate) instance: usize,
    /// Of the process that opened them: those of the parent are nothing to a forked child, whose
    /// stores may lie where the parent's lay.
    pub(crate) token: u64,
    pub(crate) shared: Weak<Shared>,
}

/// All of them; those whose last handle is being dropped, too.
pub(crate) static REGISTRY: ProcessLock<Vec<Registered>> = ProcessLock::new(Vec::new());
/// Some have gone from there.
pub(crate) static GONE: Condvar = Condvar::new();

pub(crate) fn locked<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

pub(crate) fn busy(name: &str, used: &Use) -> ObjectError {
    let what = if used.readers > 0 { "reading" } else { "writing" };
    ObjectError::Busy { name: name.into(), what, pid: process::pid() }
}

/// The files of a store's objects: primaries and the journal.
pub(crate) fn files(store: &Store) -> &OwnedMedium {
    // SAFETY: this crate alone writes them, and shows what is mapped of them to one writer or to
    // readers (`Use`).
    unsafe { store.files() }
}

/// What the journal lists of an object.
pub(crate) fn rooted(info: &ObjectInfo) -> Option<Rooted> {
    cenote_atrest::view::rooted(info.record.at_rest.mode(), info.record.span())
}

/// Objects of a daemon's copy, by whether this process has verified them.
pub(crate) type FromDaemon = Mutex<BTreeMap<Uuid, bool>>;

impl Shared {
    /// As [`files`].
    pub(crate) fn files(&self) -> &OwnedMedium {
        files(&self.store)
    }

    /// The daemon that keeps the store, if one does.
    pub(crate) fn daemon(&self) -> Option<&dyn DaemonApi> {
        // SAFETY: this crate asks it about objects alone, and gives up or removes one only after
        // the table of attachments says that no reference of this process leads into it.
        unsafe { self.store.daemon() }
    }

    /// What a store has before recovery.
    pub(crate) fn new(store: &Store, options: &ObjectsOptions) -> Self {
        let kind = store.medium().describe().kind;
        Self {
            store: store.clone(),
            options: options.clone(),
            kind,
            journal: OnceLock::new(),
            creating: Mutex::default(),
            thread: Mutex::default(),
            uses: Mutex::default(),
            removals: AtomicU64::new(0),
            overlay: BTreeMap::new(),
            roots: None,
            views: Mutex::default(),
            closed: Mutex::default(),
            recovery: Recovery::default(),
            silent: AtomicBool::new(false),
            registered: AtomicBool::new(false),
            door: Door::default(),
            removed: Mutex::default(),
            of_copy: FromDaemon::default(),
        }
    }

    /// The root that the journal lists of an object; `None`: it cannot say.
    pub(crate) fn listed(&self, object: Uuid) -> Result<Option<Option<Root>>, ObjectError> {
        if let Some(journal) = self.journal_if_any() {
            return Ok(Some(journal.root_of(object)?));
        }
        // What is laid over an object has the header of the last record.
        let roots = self.roots.as_ref().filter(|_| !self.overlay.contains_key(&object));
        Ok(roots.map(|roots| roots.get(object)))
    }

    pub(crate) fn refuse_connected(&self, what: &str) -> Result<(), ObjectError> {
        match self.store.is_connected() {
            true => Err(StoreError::NotHosted { what: what.into() }.into()),
            false => Ok(()),
        }
    }

    pub(crate) fn settings(&self) -> Settings {
        Settings {
            half_len_max: self.options.half_len_max,
            // Memory has nothing to be flushed to.
            syncs: self.kind != MediumKind::Tmpfs,
            background: self.options.trim == Trim::Background,
        }
    }

    pub(crate) fn home(&self) -> Home {
        Home {
            medium: self.files().clone(),
            store: self.store.uuid(),
            name: JOURNAL,
            guard: Arc::new(StoreGuard(self.store.clone())),
            session: self.store.next_session(),
            tie: self.store.objects_tie(),
        }
    }

    pub(crate) fn adopt(&self, journal: Journal) -> &Arc<Journal> {
        let journal = self.journal.get_or_init(|| Arc::new(journal));
        self.store.note_journal(journal);
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
    pub(crate) fn journal_or_new(&self) -> Result<&Arc<Journal>, ObjectError> {
        let _creating = locked(&self.creating);
        if let Some(journal) = self.journal.get() {
            return Ok(journal);
        }
        // Objects that are there were told of by a journal that the caller has given up.
        let roots = self.roots_now()?;
        let made = (self.store.next_objects_epoch()?, roots);
        self.store.objects_journal_opens();
        let journal = Journal::create(self.home(), self.options.half_len, made, self.settings())?;
        self.store.name_objects_journal(journal.mark())?;
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

    /// Refuses to attach objects of a session that was abandoned: a detach does not wait until the
    /// journal is in the object's file, so the file may change under the next reader's references.
    fn refuse_abandoned(&self) -> Result<(), ObjectError> {
        match self.is_silent() && !planted(Bug::AbandonedAttaches) {
            true => Err(ObjectError::Abandoned),
            false => Ok(()),
        }
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

    /// Keeps what denies stores into an object, until its view is forgotten.
    pub(crate) fn keep_closed(&self, object: Uuid, owner: Owner<Whole>) {
        locked(&self.closed).insert(object, owner);
    }

    pub(crate) fn forget_view(&self, object: Uuid) {
        drop(locked(&self.views).remove(&object));
        drop(locked(&self.closed).remove(&object));
    }

    /// Refuses an object that one user of this process has alone: a writer, or a copy.
    pub(crate) fn refuse_written(&self, info: &ObjectInfo) -> Result<(), ObjectError> {
        match locked(&self.uses).get(&info.id()) {
            Some(used) if used.readers == 0 => Err(busy(&info.record.name, used)),
            _ => Ok(()),
        }
    }

    /// Notes a reader, unless there is a writer. All readers share one mapping, which the first of
    /// them makes by `map`.
    pub(crate) fn enter_reader(
        &self,
        info: &ObjectInfo,
        map: impl FnOnce() -> Result<(), ObjectError>,
    ) -> Result<(), ObjectError> {
        let mut uses = locked(&self.uses);
        self.refuse_abandoned()?;
        self.refuse_moved(info)?;
        match uses.get_mut(&info.id()) {
            Some(used) if used.readers > 0 => used.readers += 1,
            Some(used) => return Err(busy(&info.record.name, used)),
            None => {
                map()?;
                let used =
                    Use { readers: 1, state: ObjectState::Read, found: FoundState::Detached };
                uses.insert(info.id(), used);
            }
        }
        Ok(())
    }

    /// Takes a reader back; the last one unmaps. If that fails the object stays taken, as its
    /// addresses do.
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

    /// Refuses a snapshot whose object is there.
    pub(crate) fn refuse_there(&self, id: Uuid, snapshot: &Path) -> Result<(), ObjectError> {
        match self.store.objects().into_iter().find(|object| object.id() == id) {
            Some(object) => {
                let file = snapshot.display().to_string();
                Err(ObjectError::StillThere { file, name: object.record.name })
            }
            None => Ok(()),
        }
    }

    /// Notes a writer, unless the object is in use.
    pub(crate) fn enter_writer(&self, info: &ObjectInfo) -> Result<(), ObjectError> {
        self.enter_alone(info, || self.refuse_moved(info))
    }

    /// The same if `check`, called with `uses` locked, allows it.
    pub(crate) fn enter_alone(
        &self,
        info: &ObjectInfo,
        check: impl FnOnce() -> Result<(), ObjectError>,
    ) -> Result<(), ObjectError> {
        let mut uses = locked(&self.uses);
        self.refuse_abandoned()?;
        if let Some(used) = uses.get(&info.id()) {
            return Err(busy(&info.record.name, used));
        }
        check()?;
        let used = Use { readers: 0, state: ObjectState::Write, found: FoundState::Detached };
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

    pub(crate) fn set_found(&self, object: Uuid, found: FoundState) {
        if let Some(used) = locked(&self.uses).get_mut(&object) {
            used.found = found;
        }
    }

    pub(crate) fn info(&self, object: ObjectInfo) -> Result<Info, ObjectError> {
        let used = locked(&self.uses).get(&object.id()).copied();
        if let Some(Use { state, found, .. }) = used.filter(|used| used.state != ObjectState::Read)
        {
            let behind = self.journal.get().is_some_and(|journal| journal.is_behind(object.id()));
            let state =
                if state == ObjectState::Write && behind { ObjectState::Copy } else { state };
            return Ok(Info { object, state, found });
        }
        let file = FileHandle::open(self.files(), &object.file())?;
        let found = header::found(
            &file,
            object.header_offset(),
            object.id(),
            &**self.store.medium(),
            None,
        )?;
        // In a read-only store nothing was changed by recovery: what it found still holds.
        let recovered = self.recovery.objects.iter().find(|(name, _)| *name == object.record.name);
        let state = match (used, found, recovered) {
            (Some(used), _, _) => used.state,
            (None, _, Some((_, state))) if !self.store.is_writable() => *state,
            (None, FoundState::Detached, _) => ObjectState::Detached,
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
            // No caller is left to tell; the next open recovers.
            let _ = journal.checkpoint();
        }
    }
}

impl Drop for Shared {
    fn drop(&mut self) {
        if self.store.is_forked() {
            // The thread is the parent's; another one of its threads may have had the lock.
            let thread = self.thread.get_mut().unwrap_or_else(PoisonError::into_inner);
            core::mem::forget(thread.take());
            return;
        }
        self.finish();
        // One that failed to recover never was there, and the call that tried has the lock.
        if *self.registered.get_mut() {
            let this: *const Self = self;
            REGISTRY.lock().retain(|known| !core::ptr::eq(known.shared.as_ptr(), this));
            GONE.notify_all();
        }
    }
}
