//! Keeps the two files of a puddle in shadowed mode, and fills the shadow from the primary after a
//! loss of power.
//!
//! `puddles/<uuid>` is the *shadow*: mapped shared, so that a crash of processes loses nothing of
//! it. `primary/<uuid>` is the *primary*: never mapped for writing, changed only by psyncs
//! ([`crate::psync`], with the argument). Invariant: a primary and the journal hold exactly the
//! last psync. After a loss of power a shadow may hold any bytes.
//!
//! # Going back to the last psync
//!
//! States: (1) power failed while pools in shadowed mode were leased for writing: their shadows are
//! void. (2) Committed records of the journal are written to the primaries, the primaries synced,
//! and the journal's header says so: its own commit. (3) Shadows are overwritten with what their
//! primaries hold, page by page where they differ, without a sync. (4) The catalog's batch of the
//! recovery ends the leases of the dead; what their logs say about these pools is void too and
//! never looked at. (5) The superblock says "open" under this boot.
//!
//! A crash before (5) finds another boot id in the superblock and starts again at (1), and so does
//! a loss of power after (4), because this session holds the leases then. A crash of processes
//! after (5) finds shadows that are whole in the page cache.
//!
//! Where that cannot be done, because the journal or a primary is damaged, the pool is recorded as
//! not covered, with the damage named: it is refused, and every open tries again, so that a file
//! can be brought back.
//!
//! A read-only open maps the primary itself, privately, with the journal's records laid over it.

use crate::differing::compare;
use crate::gate::Gate;
use crate::kernel::catalog::journals::{JournalOf, readable};
use crate::kernel::interface::error::StoreError;
use crate::kernel::puddles::locked::locked;
use crate::kernel::puddles::puddle::{
    DATA_AT, PRIMARY_DIR, Puddle, file_name, pool_named, primary_name, text,
};
use crate::kernel::puddles::verify::about_file;
use crate::kernel::store::extensions::Extension;
use crate::kernel::store::{Control, Inner};
use crate::pending_rewrite::Needs;
use crate::primaries::{JOURNAL, check_run, note_root, of_shadowed_pool};
use cenote_journal::{Journal, JournalScan, Roots, Settings, scan};
use cenote_layout::catalog::PuddleRecord;
use cenote_layout::id::{PoolId, Uuid};
use cenote_layout::superblock::JournalMark;
use cenote_log::CrashKind;
use cenote_medium::planted::{Bug, planted};
use cenote_medium::{FileHandle, MapMode, MediumError, MediumKind};
use cenote_protect::dirty_bitmap::DirtyBitmap;
use core::ops::Range;
use core::ptr::NonNull;
use core::sync::atomic::{AtomicBool, Ordering};
use std::collections::btree_map::Entry;
use std::collections::{BTreeMap, BTreeSet};
use std::sync::{Arc, Mutex, OnceLock};
use std::thread::JoinHandle;

/// Most bytes of half the journal.
const HALF_LEN_MAX: u64 = 64 << 30;

/// The state of shadowed mode in an open store; none, as long as it has no pool in that mode.
#[derive(Debug, Default)]
pub(crate) struct Shadows {
    journal: OnceLock<Arc<Journal>>,
    thread: Mutex<Option<JoinHandle<()>>>,
    pools: Mutex<BTreeMap<PoolId, Arc<Shadow>>>,
}

/// A pool in shadowed mode that this session may write.
#[derive(Debug)]
pub(crate) struct Shadow {
    pub(crate) gate: Gate,
    /// The pool, as explanations of faults name it.
    name: String,
    parts: Mutex<Vec<Arc<PuddlePart>>>,
}

/// A puddle of it.
#[derive(Debug)]
pub(crate) struct PuddlePart {
    /// Lives until the store is dropped.
    puddle: NonNull<Puddle>,
    /// Its notes may lack pages that differ: those of a session that ended without a psync. All
    /// pages have to be compared once.
    pub(crate) unknown: AtomicBool,
    shadow: OnceLock<FileHandle>,
    primary: OnceLock<Arc<FileHandle>>,
}

// SAFETY: the pointer is to a `Puddle`, which is `Sync` and lives until the store is dropped; no
// thread uses a `PuddlePart` after that.
unsafe impl Send for PuddlePart {}
// SAFETY: as above.
unsafe impl Sync for PuddlePart {}

impl PuddlePart {
    /// Pages that were stored into since the last psync.
    pub(crate) fn noted(&self) -> u64 {
        match self.puddle().view() {
            Some(view) => view.written(),
            None => self.puddle().notes().map_or(0, DirtyBitmap::count),
        }
    }

    /// They are to be psynced again.
    pub(crate) fn note(&self, pages: Range<u64>) {
        match self.puddle().view() {
            Some(view) => view.note(pages),
            None => self.puddle().notes().into_iter().for_each(|notes| notes.note(pages.clone())),
        }
    }

    /// Where pages begin in the primary.
    pub(crate) fn data_at(&self) -> u64 {
        self.puddle().view().map_or(0, |_| DATA_AT)
    }

    pub(crate) fn puddle(&self) -> &Puddle {
        // SAFETY: puddles live until the store is dropped.
        unsafe { self.puddle.as_ref() }
    }

    pub(crate) fn shadow(&self, inner: &Inner) -> Result<&FileHandle, MediumError> {
        if let Some(known) = self.shadow.get() {
            return Ok(known);
        }
        let opened = FileHandle::open(&inner.medium, text(&file_name(self.puddle().uuid())))?;
        Ok(self.shadow.get_or_init(|| opened))
    }

    pub(crate) fn primary(&self, inner: &Inner) -> Result<&Arc<FileHandle>, MediumError> {
        if let Some(known) = self.primary.get() {
            return Ok(known);
        }
        let name = match self.puddle().view() {
            Some(_) => file_name(self.puddle().uuid()),
            None => primary_name(self.puddle().uuid()),
        };
        let opened = FileHandle::open(&inner.medium, text(&name))?;
        if self.puddle().view().is_none() && !inner.is_client() {
            inner.mark_primary(self.puddle().uuid(), &opened)?;
        }
        Ok(self.primary.get_or_init(|| Arc::new(opened)))
    }
}

impl Shadow {
    pub(crate) fn parts(&self) -> Vec<Arc<PuddlePart>> {
        locked(&self.parts).clone()
    }

    /// Adds a puddle, before a program can store into it.
    pub(crate) fn add(&self, puddle: NonNull<Puddle>, unknown: bool) {
        let part = PuddlePart {
            puddle,
            unknown: AtomicBool::new(unknown && !planted(Bug::PsyncTrustsLostNotes)),
            shadow: OnceLock::new(),
            primary: OnceLock::new(),
        };
        // Made now: the fault handler only reads it.
        part.puddle().track(&self.name);
        let mut parts = locked(&self.parts);
        if parts.iter().all(|known| known.puddle != puddle) {
            parts.push(Arc::new(part));
        }
    }
}

impl Extension for Shadows {
    fn stop(&self, forked: bool) {
        Shadows::stop(self, forked);
    }
}

impl Shadows {
    /// The journal, if this session has needed it.
    pub(crate) fn journal(&self) -> Option<&Arc<Journal>> {
        self.journal.get()
    }

    /// Ends the background thread.
    pub(crate) fn stop(&self, forked: bool) {
        let thread = locked(&self.thread).take();
        if forked {
            // The thread is the parent's.
            core::mem::forget(thread);
            return;
        }
        if let Some(journal) = self.journal.get() {
            journal.stop();
        }
        if let Some(thread) = thread {
            let _ = thread.join();
        }
    }
}

impl Inner {
    pub(crate) fn shadows(&self) -> &Shadows {
        self.parts.get()
    }

    /// What this session has of a pool in shadowed mode that it may write. Under the control lock.
    pub(crate) fn shadow_of(
        &self,
        control: &mut Control,
        pool: PoolId,
    ) -> Result<Arc<Shadow>, StoreError> {
        if !self.is_client() {
            self.pool_journal(control)?;
        }
        if let Some(known) = locked(&self.shadows().pools).get(&pool) {
            return Ok(Arc::clone(known));
        }
        // What the dead left in a shadow and did not psync is in no note.
        let protected = control.catalog.state.is_protected(pool);
        // Nor are psyncs whose journal was given up.
        let lost = control.catalog.state.torn.contains(&pool);
        let dirty = control.dirty.get(&pool) == Some(&CrashKind::Process);
        let unknown = (dirty || lost) && !protected;
        let shadow = Arc::new(Shadow {
            gate: Gate::default(),
            name: pool_named(&control.catalog.state, pool),
            parts: Mutex::default(),
        });
        let mut needs = Needs::default();
        for record in control.catalog.state.puddles_of(pool) {
            if let Some(pending) =
                control.catalog.state.pending.get(&record.uuid).copied().filter(|_| !protected)
            {
                // If something is wrong with it, the open of the pool says so.
                let _ = self.mark_pending(control, &record, pending, &mut needs)?;
            }
            shadow.add(self.own(control, record, MapMode::ReadOnly), unknown);
        }
        locked(&self.shadows().pools).insert(pool, Arc::clone(&shadow));
        Ok(shadow)
    }

    /// The same, if there is one.
    pub(crate) fn known_shadow(&self, pool: PoolId) -> Option<Arc<Shadow>> {
        locked(&self.shadows().pools).get(&pool).map(Arc::clone)
    }

    /// The puddles of a pool are not what they were: the next opener makes its parts anew.
    pub(crate) fn forget_parts(&self, pool: PoolId) {
        locked(&self.shadows().pools).remove(&pool);
    }

    /// A pool is removed.
    pub(crate) fn forget_shadow(
        &self,
        control: &mut Control,
        pool: PoolId,
        puddles: &[PuddleRecord],
    ) -> Result<(), StoreError> {
        self.forget_kept(control, &puddles.iter().map(|record| record.uuid).collect())?;
        locked(&self.shadows().pools).remove(&pool);
        for record in puddles {
            if let Some(journal) = self.shadows().journal() {
                // If that fails the store is poisoned, and the next open finds no such puddle.
                let _ = journal.settle(record.uuid);
                journal.forget(record.uuid);
            }
            // Left over files are orphans; the next writable open removes them.
            let _ = self.medium.remove(text(&primary_name(record.uuid)));
        }
        // Pools that are protected have no primaries apart.
        if !self.medium.exists(PRIMARY_DIR)? {
            return Ok(());
        }
        self.medium.sync_dir(PRIMARY_DIR).map_err(|error| self.failed(error))
    }

    /// The journal of a store that is open for writing, under the control lock: made, or read and
    /// brought into the primaries, by the first caller.
    pub(crate) fn pool_journal(&self, control: &mut Control) -> Result<&Arc<Journal>, StoreError> {
        if let Some(journal) = self.shadows().journal.get() {
            return Ok(journal);
        }
        let journal = self.open_pool_journal(control)?;
        let journal = self.shadows().journal.get_or_init(|| Arc::new(journal));
        if journal.wants_thread() {
            let trimmed = Arc::clone(journal);
            let named = std::thread::Builder::new().name("cenote-trim".into());
            // Without the thread, psyncs apply and trim by themselves.
            *locked(&self.shadows().thread) =
                named.spawn(move || trimmed.work_in_background()).ok();
        }
        Ok(journal)
    }

    /// States: [`crate::kernel::catalog::journals`].
    fn open_pool_journal(&self, control: &mut Control) -> Result<Journal, StoreError> {
        const OF: JournalOf = JournalOf::Pools;
        let settings = Settings {
            half_len_max: HALF_LEN_MAX,
            // Memory has nothing to be flushed to.
            syncs: self.info.kind != MediumKind::Tmpfs,
            // What the simulation does depends on the calls alone.
            background: self.info.kind != MediumKind::Simulated,
        };
        let journal = match self.use_pool_journal(control, settings) {
            Err(StoreError::JournalDamaged { .. } | StoreError::JournalRolledBack { .. })
                if self.gives_up() =>
            {
                self.give_up_journal(control, settings)?
            }
            journal => journal?,
        };
        self.name_journal(control, OF, journal.mark())?;
        Ok(journal)
    }

    /// Reads the journal that is there and brings it into the primaries, or makes the first one.
    fn use_pool_journal(
        &self,
        control: &mut Control,
        settings: Settings,
    ) -> Result<Journal, StoreError> {
        const OF: JournalOf = JournalOf::Pools;
        if self.medium.exists(JOURNAL)? {
            let file = Arc::new(readable(FileHandle::open(&self.medium, JOURNAL))?);
            let scan = match readable(scan(&file, self.uuid, true))? {
                Ok(cenote_journal::JournalScan { damage: Some(detail), .. }) | Err(detail) => {
                    return Err(StoreError::JournalDamaged { file: JOURNAL, detail });
                }
                Ok(scan) => scan,
            };
            self.check_journal(control, OF, &scan.found())?;
            let brought_back = self.bring_back(control)?;
            let roots = self.complete(control, (&file, &scan), &brought_back)?;
            self.journal_opens(control, OF);
            if planted(Bug::JournalNamedEarly) {
                let mark = scan.found().mark;
                self.name_journal(control, OF, JournalMark { epoch: mark.epoch + 1, ..mark })?;
            }
            Ok(Journal::resume(self.home(control), file, (&scan, roots), settings)?)
        } else if control
            .catalog
            .state
            .pools
            .keys()
            .any(|pool| control.catalog.state.is_shadowed(*pool))
        {
            Err(StoreError::JournalDamaged { file: JOURNAL, detail: "the file is missing".into() })
        } else {
            let epoch = control.superblock.journals[OF as usize].epoch + 1;
            self.journal_opens(control, OF);
            let made = (epoch, Roots::default());
            Ok(Journal::create(self.home(control), self.options.journal_half_len, made, settings)?)
        }
    }

    /// Writes committed records to the primaries, and syncs those. The roots of what is protected,
    /// as they are now. What is said of a primary that cannot be written is kept ([`crate::kept`]).
    fn complete(
        &self,
        control: &mut Control,
        (file, scan): (&FileHandle, &JournalScan),
        brought_back: &BTreeSet<Uuid>,
    ) -> Result<Roots, StoreError> {
        let state = &control.catalog.state;
        self.check_list(state, scan)?;
        // `None`: it cannot be written.
        let mut primaries: BTreeMap<Uuid, Option<FileHandle>> = BTreeMap::new();
        for record in &scan.records {
            let data = record.read_data(file)?;
            record.for_each_run(&data, |id, offset, bytes| -> Result<(), StoreError> {
                let Some(puddle) = of_shadowed_pool(state, id) else { return Ok(()) };
                let at_rest = state.at_rest(puddle.pool);
                let offset = check_run(record.header.seq, puddle, at_rest, offset, bytes.len())?;
                let primary = match primaries.entry(id) {
                    Entry::Occupied(known) => known.into_mut(),
                    Entry::Vacant(new) => new.insert(self.open_primary(state, puddle)?.ok()),
                };
                if let Some(Err(error)) =
                    primary.as_ref().map(|file| file.write_in_pieces(offset, bytes))
                {
                    about_file(error)?;
                    *primary = None;
                }
                Ok(())
            })?;
        }
        let lost = primaries.iter().filter(|(_, file)| file.is_none()).map(|(id, _)| *id);
        let lost: BTreeSet<Uuid> = lost.collect();
        if !lost.is_empty() {
            self.keep(control, (file, scan), &lost)?;
        }
        for primary in primaries.values().flatten() {
            primary.sync().map_err(|error| self.failed(error))?;
        }
        let state = &control.catalog.state;
        let mut roots = match &scan.roots {
            Some(roots) => roots.clone(),
            None => self.roots_now(state)?,
        };
        roots.retain(|id| of_shadowed_pool(state, id).is_some());
        for id in brought_back {
            let primary = FileHandle::open(&self.medium, text(&file_name(*id)))?;
            note_root(state, &mut roots, *id, &primary)?;
        }
        for (id, primary) in primaries.iter().filter(|_| !planted(Bug::RootsNotRecovered)) {
            if let Some(primary) = primary {
                note_root(state, &mut roots, *id, primary)?;
            }
        }
        Ok(roots)
    }
}

/// Notes all pages of a part that may differ. Finds those that an earlier session left by
/// comparison, during which writers go on.
pub(crate) fn note_unknown(inner: &Inner, part: &PuddlePart) -> Result<(), MediumError> {
    let puddle = part.puddle();
    if puddle.view().is_some() {
        return Ok(());
    }
    // No thread has stored into one that is pending.
    if !part.unknown.load(Ordering::Acquire) || puddle.is_pending() {
        return Ok(());
    }
    if inner.is_client() {
        // Granted for this: the descriptors are not kept.
        let open = |name: &[u8; 40]| FileHandle::open(&inner.medium, text(name));
        let (shadow, primary) =
            (open(&file_name(puddle.uuid()))?, open(&primary_name(puddle.uuid()))?);
        note_differences(puddle, &shadow, &primary)?;
    } else {
        note_differences(puddle, part.shadow(inner)?, part.primary(inner)?)?;
    }
    part.unknown.store(false, Ordering::Release);
    Ok(())
}

fn note_differences(
    puddle: &Puddle,
    shadow: &FileHandle,
    primary: &FileHandle,
) -> Result<(), MediumError> {
    compare(shadow, primary, puddle.size(), |page, _| {
        puddle.notes().into_iter().for_each(|notes| notes.note(page..page + 1));
        Ok(())
    })
}
