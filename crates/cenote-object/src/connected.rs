//! Objects of a store that a daemon keeps, on the client's side: the same interface, with the
//! daemon in the place of journal, headers and files ([`crate`], `hosted.rs`).
//!
//! Invariant: this process has a lease on an object as long as its table of attachments has it. The
//! caller holds [`crate::door::Door`] while the two change. So all readers of one process are one
//! reader to the daemon.
//!
//! The daemon brings a psync into the file before it answers if this process reads it from there:
//! of protected objects, whose pages are verified against the file, and of shadows that give their
//! copies back.

use crate::error::ObjectError;
use crate::header::FoundState;
use crate::shared::{Info, Shared};
use cenote_journal::{Changes, Transfer};
use cenote_layout::error_kind::ErrorKind;
use cenote_layout::object::ObjectState;
use cenote_store::{DaemonApi, ListedObject, ObjectInfo, StoreError};

impl Shared {
    /// Has the daemon attach an object for this process; its file can be opened and mapped once.
    /// How its last writer left it.
    pub(crate) fn ask_for(
        &self,
        daemon: &dyn DaemonApi,
        info: &ObjectInfo,
        writable: bool,
    ) -> Result<FoundState, ObjectError> {
        let (listed, file) =
            daemon.attach_object(&info.record.name, writable).map_err(of_daemon)?;
        if !listed.object.is_same_place(info) {
            let _ = daemon.detach_object(listed.object.id());
            let detail =
                format!("object \"{}\" was replaced meanwhile: attach it again", info.record.name);
            return Err(StoreError::Refused { kind: ErrorKind::Busy, detail }.into());
        }
        // SAFETY: the daemon's answer to this object's name, and its identity is the one asked for.
        unsafe { self.store.admit_file(&info.file(), file) }?;
        if listed.unchecked {
            self.note_unchecked(info.id());
        }
        Ok(FoundState::from_code(listed.found))
    }

    /// Gives it back.
    pub(crate) fn give_up(
        &self,
        daemon: &dyn DaemonApi,
        info: &ObjectInfo,
    ) -> Result<(), ObjectError> {
        // SAFETY: an object is given up under the door's lock, as it is asked for and mapped.
        unsafe { self.store.dismiss(&info.file()) };
        daemon.detach_object(info.id()).map_err(of_daemon)
    }
}

/// What the daemon says about an object.
pub(crate) fn info_of(listed: ListedObject) -> Info {
    let state = ObjectState::from_u32(listed.state).unwrap_or(ObjectState::Detached);
    Info { object: listed.object, state, found: FoundState::from_code(listed.found) }
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

/// Psyncs lines of one object that were worked out already.
pub(crate) fn psync_lines(
    daemon: &dyn DaemonApi,
    info: &ObjectInfo,
    changes: &Changes,
) -> Result<(), ObjectError> {
    let failed = |source| ObjectError::Scan { name: info.record.name.clone(), source };
    let mut transfer = Transfer::new(changes.runs.len()).map_err(failed)?;
    transfer.add_changes(changes).map_err(failed)?;
    let (file, runs) = transfer.finish().map_err(failed)?;
    daemon.psync_objects(&[info.id()], runs, true, &file).map(drop).map_err(of_daemon)
}
