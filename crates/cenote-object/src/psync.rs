//! `psync`: makes the stores into attached objects durable. The crate's front page has its states.

use crate::at_rest::{self, not_copied};
use crate::attached::Attached;
use crate::connected::of_daemon;
use crate::dirty::{Tracker, normalise};
use crate::error::ObjectError;
use crate::options::Permission;
use crate::shared::{Shared, rooted};
use cenote_atrest::Change;
use cenote_atrest::view::{SealedError, View};
use cenote_journal::{ApplyTarget, Changes, Delivered, Journal, JournalError, Pages, Primary};
use cenote_layout::id::Uuid;
use cenote_layout::object::ObjectState;
use cenote_medium::planted::{Bug, planted};
use cenote_shadow::{PsyncState, ShadowPart};
use std::io;
use std::sync::Arc;

/// What one psync did.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Psync {
    /// Its number in the store's journal; 0 if nothing had changed.
    pub seq: u64,
    /// Pages in which something had changed. Among many pages that changed as a whole, one that
    /// did not may be counted.
    pub pages: u64,
    /// Bytes of lines that were journalled.
    pub data_bytes: u64,
    /// Bytes that the record took in the journal.
    pub journal_bytes: u64,
}

impl Attached {
    /// Makes everything that was stored since the last psync durable, all of it or nothing (PMO-3).
    /// On return it survives loss of power; on tmpfs, the end of the process. Of a reader it is
    /// ignored, as in the paper.
    ///
    /// # Errors
    /// `ENOSPC`, `EIO` while it is journalled: the object is as it was after the last psync, the
    /// shadow keeps its stores, and the next psync has them all. A failed sync, or a primary that
    /// cannot be written: the store is poisoned, and the next open decides.
    pub fn psync(&mut self) -> Result<Psync, ObjectError> {
        run(&mut [self])
    }
}

/// Psyncs several objects of one store together: after a crash all of them are as they were after
/// this psync, or none is.
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

impl From<Delivered> for Psync {
    fn from(done: Delivered) -> Self {
        let Delivered { seq, pages, data_bytes, journal_bytes } = done;
        Self { seq, pages, data_bytes, journal_bytes }
    }
}

/// The states of the crate's front page, one after the other, by `cenote-shadow`.
fn run(objects: &mut [&mut Attached]) -> Result<Psync, ObjectError> {
    let Some(first) = objects.first() else { return Ok(Psync::default()) };
    let shared = Arc::clone(&first.shared);
    let shared = &*shared;
    if objects.iter().any(|object| !core::ptr::eq(&*object.shared, shared)) {
        return Err(ObjectError::NotTogether);
    }
    let writers = objects.iter_mut().map(|object| &mut **object);
    let writers: Vec<_> =
        writers.filter(|object| object.permission == Permission::ReadWrite).map(Writer).collect();
    if writers.is_empty() {
        return Ok(Psync::default());
    }
    shared.store.check_usable()?;
    let mut psync = cenote_shadow::Psync::default();
    let Some(daemon) = shared.daemon() else {
        let journal = shared.journal()?;
        psync.hold(shared, writers)?;
        return Ok(psync.commit(shared, journal, |_| Ok(()))?.into());
    };
    // The daemon brings the pages to the file, and the next psync compares with them.
    let settled = writers.iter().any(|writer| writer.0.view.is_some() || writer.reads_primary());
    psync.hold(shared, writers)?;
    let packed = psync.pack(shared)?;
    let done = psync.send(shared, packed, |ids, runs, file| {
        let done = daemon.psync_objects(ids, runs, settled, file).map_err(of_daemon)?;
        let cenote_store::Psync { seq, pages, data_bytes, journal_bytes, .. } = done;
        Ok(Delivered { seq, pages, data_bytes, journal_bytes })
    })?;
    Ok(done.into())
}

/// An object that is attached for writing. What is noted of it stays so until it is committed: its
/// pending pages.
struct Writer<'a>(&'a mut Attached);

impl Writer<'_> {
    /// Whether its shadow shows its file where it was not stored into.
    fn reads_primary(&self) -> bool {
        self.0.tracker.as_ref().is_some_and(Tracker::reads_primary)
    }
}

impl ShadowPart for Writer<'_> {
    type Host = Shared;
    type Error = ObjectError;

    const NAMES_ALL: bool = true;

    /// State W: what was stored is found.
    fn hold(&mut self, _: &Shared) -> Result<(), ObjectError> {
        let collected = self.0.collect();
        normalise(&mut self.0.pending);
        collected
    }

    fn id(&self) -> Uuid {
        self.0.info.id()
    }

    fn pages(&self) -> &[Pages] {
        &self.0.pending
    }

    fn view(&self) -> Option<&View> {
        self.0.view.as_deref()
    }

    fn target(&self, _: &Shared) -> Result<ApplyTarget, ObjectError> {
        let info = &self.0.info;
        Ok(ApplyTarget {
            id: info.id(),
            file: Arc::clone(&self.0.primary),
            data_offset: info.data_offset(),
            rooted: rooted(info),
        })
    }

    fn draft(
        &mut self,
        number: u32,
        primary: &Primary<'_>,
        changes: &mut Changes,
    ) -> Result<Option<Change>, ObjectError> {
        let Attached { view, pending, .. } = &*self.0;
        let Some(view) = view else {
            // SAFETY: the shadow is mapped for writing, and `&mut` keeps others from using it.
            unsafe { changes.add(number, self.0.pointer(), pending, primary) }?;
            return Ok(None);
        };
        // SAFETY: pages of the view that were stored into, so they are loaded; a psync has the
        // writer's `&mut`.
        let mut copy_out = |offset, bytes: &mut [u8]| unsafe { view.copy_out(offset, bytes) };
        cenote_atrest::view::seal(view, number, pending, &mut copy_out, primary, changes)
            .map_err(|error| self.sealed(error))
    }

    fn address(&self) -> usize {
        self.0.addr() as usize
    }

    /// They are pending still.
    fn note_again(&mut self) {}

    fn forget(&mut self) {
        self.0.pending.clear();
    }

    /// Only the protector asks later which pages have changed.
    fn drafted(&mut self, number: u32, changes: &Changes) {
        if self.0.tracker.is_some() {
            self.0.changed = changes.pages_of(number);
        }
    }

    fn tell(&self, shared: &Shared, state: PsyncState) {
        let state = match state {
            PsyncState::Held => ObjectState::Write,
            PsyncState::Drafted => ObjectState::Psync,
            PsyncState::Durable => ObjectState::Copy,
        };
        shared.set_state(self.id(), state);
    }

    /// The shadow holds what was committed, and nothing else.
    fn finish(&mut self, shared: &Shared, journal: Option<&Journal>) -> Result<(), ObjectError> {
        // Copies are given back for what the file holds.
        if let Some(journal) = journal.filter(|_| self.reads_primary()) {
            journal.settle(self.id()).map_err(|error| self.not_copied(error))?;
        }
        let object = &mut *self.0;
        if let Some(tracker) = &mut object.tracker {
            let changed = core::mem::take(&mut object.changed);
            // SAFETY: every pending page is committed, and in the primary where that matters;
            // `&mut` excludes references. What cannot be given back is compared again by the next
            // psync.
            let _ = unsafe { tracker.clean(&object.pending, changed) };
        }
        object.pending.clear();
        if journal.is_some() {
            self.tell(shared, PsyncState::Held);
        }
        Ok(())
    }

    fn poison(shared: &Shared, reason: &str) {
        shared.store.poison(reason);
    }

    fn too_large(shared: &Shared, needed: u64) -> ObjectError {
        ObjectError::PsyncTooLarge { needed, limit: shared.options.half_len_max }
    }

    fn sealed(&self, error: SealedError) -> ObjectError {
        at_rest::sealed(self.0.name(), error)
    }

    fn not_copied(&self, error: JournalError) -> ObjectError {
        not_copied(self.0.name(), error)
    }

    fn unpacked(&self, source: io::Error) -> ObjectError {
        ObjectError::Scan { name: self.0.name().into(), source }
    }
}
