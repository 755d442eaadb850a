//! `psync`: makes the stores into attached objects durable. The crate's front page has its states.

use crate::at_rest::{self, not_copied};
use crate::attached::Attached;
use crate::connected::of_daemon;
use crate::dirty::{Tracker, normalise};
use crate::error::ObjectError;
use crate::options::Permission;
use crate::shared::{Shared, rooted};
use cenote_atrest::Change;
use cenote_journal::{Changes, Draft, Journal, Primary, Target, Ticket, Transfer};
use cenote_layout::id::Uuid;
use cenote_layout::object::ObjectState;
use cenote_medium::planted::{Bug, planted};
use cenote_store::DaemonApi;
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
    if let Some(keeper) = shared.keeper() {
        return through_daemon(keeper, &mut writers);
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
    // State C: the rest needs no caller to wait.
    let target = |object: &&mut Attached| Target {
        id: object.info.id(),
        file: Arc::clone(&object.primary),
        data_offset: object.info.data_offset(),
        rooted: rooted(&object.info),
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
    // Only the protector asks later which pages have changed.
    for (number, object) in
        (0..).zip(writers.iter_mut()).filter(|(_, object)| object.tracker.is_some())
    {
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
    // Before the primary is written: from now on the new nodes count, and those that change are not
    // read from it.
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
            // `&mut` lets one psync run at a time, and no other thread changes an object that is
            // attached for writing.
            let name = object.name();
            shared
                .store
                .poison(&format!("the protection of object \"{name}\" went out of step: {error}"));
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
            // SAFETY: every pending page is committed, and in the primary where that matters;
            // `&mut` excludes references. What cannot be given back is compared again by the next
            // psync.
            let _ = unsafe { tracker.clean(&object.pending, changed) };
        }
        if let Some(view) = &object.view {
            at_rest::settle(view);
        }
        object.pending.clear();
    }
}

/// A psync through the daemon: state W is here, P and C are there. Until it has answered, the pages
/// stay pending.
fn through_daemon(
    keeper: &dyn DaemonApi,
    writers: &mut [&mut Attached],
) -> Result<Psync, ObjectError> {
    let failed = |name: &str, source| ObjectError::Scan { name: name.into(), source };
    let mut sealed = Vec::new();
    let mut lines = Changes::default();
    let (mut ranges, mut settled) = (0, false);
    for (number, object) in (0..).zip(writers.iter_mut()) {
        let object = &mut **object;
        object.collect()?;
        normalise(object.pending());
        let Some((info, view, primary, pending)) = object.protected() else {
            ranges += object.pending().len();
            settled |= object.tracker().is_some_and(Tracker::reads_primary);
            sealed.push(None);
            continue;
        };
        let primary = Primary::settled(info.id(), primary, info.data_offset());
        sealed.push(at_rest::seal(info, view, number, pending, &primary, &mut lines)?);
        settled = true;
    }
    let name = writers.first().map_or(String::new(), |object| object.name().into());
    let mut transfer =
        Transfer::new(ranges + lines.runs.len()).map_err(|source| failed(&name, source))?;
    for (number, object) in (0..).zip(writers.iter_mut()) {
        if object.protected().is_none() {
            let (shadow, pages) = (object.addr() as usize, object.pending());
            transfer.add_pages(number, shadow, pages).map_err(|source| failed(&name, source))?;
        }
    }
    transfer.add_changes(&lines).map_err(|source| failed(&name, source))?;
    let mut done = Psync::default();
    if !transfer.is_empty() {
        let (file, runs) = transfer.finish().map_err(|source| failed(&name, source))?;
        let ids: Vec<Uuid> = writers.iter().map(|object| object.info().id()).collect();
        let answer = keeper.psync_objects(&ids, runs, settled, &file).map_err(of_daemon)?;
        done = Psync {
            seq: answer.seq,
            // Of sealed pages the daemon sees lines, and which of them are pages is known here.
            pages: if answer.seq == 0 { 0 } else { answer.pages + lines.pages },
            data_bytes: answer.data_bytes,
            journal_bytes: answer.journal_bytes,
        };
    }
    if let Some(first) = writers.first() {
        let shared = Arc::clone(&first.shared);
        commit_sealed(&shared, writers, &mut sealed)?;
    }
    clean(writers);
    Ok(done)
}
