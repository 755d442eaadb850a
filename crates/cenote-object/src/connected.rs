//! Objects of a store that a daemon keeps, on the client's side: the same interface, with the daemon in the place of journal, headers and files ([`crate`], `hosted.rs`).
//!
//! Invariant: this process has a lease on an object as long as its table of attachments has it; [`Door`] is held whenever the two change. So many readers of one process are one reader to the daemon.
//!
//! The daemon brings what is psynced into the file before it answers if this process reads it from there: of protected objects, whose pages are verified by what the file holds, and of shadows that give their
//! copies back.

use crate::at_rest;
use crate::attached::{Attached, Psync};
use crate::dirty::{Tracker, normalise};
use crate::error::ObjectError;
use crate::header::Found;
use crate::shared::{Info, Shared};
use cenote_journal::{Changes, Parcel, Primary};
use cenote_layout::id::Uuid;
use cenote_layout::object::ObjectState;
use cenote_store::{Keeper, ListedObject, ObjectInfo, StoreError};
use std::sync::{Mutex, MutexGuard, PoisonError};

/// Excludes attaching and detaching from each other, in a client.
#[derive(Debug, Default)]
pub(crate) struct Door(Mutex<()>);

impl Door {
    pub(crate) fn enter(&self) -> MutexGuard<'_, ()> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Shared {
    /// Has the daemon attach an object for this process; its file can be opened and mapped once. How its last writer left it.
    pub(crate) fn ask_for(
        &self,
        keeper: &dyn Keeper,
        info: &ObjectInfo,
        writable: bool,
    ) -> Result<Found, ObjectError> {
        let (listed, file) = keeper.attach_object(&info.record.name, writable).map_err(of_daemon)?;
        if !listed.object.is_same_place(info) {
            let _ = keeper.detach_object(listed.object.id());
            let detail =
                format!("object \"{}\" has become another one meanwhile: attach it again", info.record.name);
            return Err(StoreError::Refused { detail }.into());
        }
        self.store.admit_file(&info.file(), file)?;
        if listed.unchecked {
            self.note_unchecked(info.id());
        }
        Ok(Found::from_code(listed.found))
    }

    /// Gives it back.
    pub(crate) fn give_up(&self, keeper: &dyn Keeper, info: &ObjectInfo) -> Result<(), ObjectError> {
        self.store.dismiss(&info.file());
        keeper.detach_object(info.id()).map_err(of_daemon)
    }
}

/// What the daemon says about an object.
pub(crate) fn info_of(listed: ListedObject) -> Info {
    let state = ObjectState::from_u32(listed.state).unwrap_or(ObjectState::Detached);
    Info { object: listed.object, state, found: Found::from_code(listed.found) }
}

/// A daemon's refusal as the error that an embedded store would give.
pub(crate) fn of_daemon(error: StoreError) -> ObjectError {
    match error {
        StoreError::ObjectBusy { name, writing, pid } => {
            ObjectError::Busy { name, what: if writing { "writing" } else { "reading" }, pid }
        }
        StoreError::ObjectDenied { name, what, uid, mode, owner } => {
            let what = what.strip_prefix("attached for ").unwrap_or(what);
            ObjectError::Denied { name, what, uid, mode, owner }
        }
        StoreError::PsyncTooLarge { needed, limit } => ObjectError::PsyncTooLarge { needed, limit },
        other => other.into(),
    }
}

/// A psync through the daemon: state W is here, P and C are there. Until it has answered, the pages stay pending.
pub(crate) fn psync(keeper: &dyn Keeper, writers: &mut [&mut Attached]) -> Result<Psync, ObjectError> {
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
    let mut parcel = Parcel::new(ranges + lines.runs.len()).map_err(|source| failed(&name, source))?;
    for (number, object) in (0..).zip(writers.iter_mut()) {
        if object.protected().is_none() {
            let (shadow, pages) = (object.addr() as usize, object.pending());
            parcel.add_pages(number, shadow, pages).map_err(|source| failed(&name, source))?;
        }
    }
    parcel.add_changes(&lines).map_err(|source| failed(&name, source))?;
    let mut done = Psync::default();
    if !parcel.is_empty() {
        let (file, runs) = parcel.finish().map_err(|source| failed(&name, source))?;
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
    Attached::committed(writers, &mut sealed)?;
    Ok(done)
}

/// Psyncs lines of one object that were worked out already.
pub(crate) fn psync_lines(
    keeper: &dyn Keeper,
    info: &ObjectInfo,
    changes: &Changes,
) -> Result<(), ObjectError> {
    let failed = |source| ObjectError::Scan { name: info.record.name.clone(), source };
    let mut parcel = Parcel::new(changes.runs.len()).map_err(failed)?;
    parcel.add_changes(changes).map_err(failed)?;
    let (file, runs) = parcel.finish().map_err(failed)?;
    keeper.psync_objects(&[info.id()], runs, true, &file).map(drop).map_err(of_daemon)
}
