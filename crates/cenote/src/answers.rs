//! Turns the daemon's answers into errors and types of the store.

use cenote_layout::error_kind::ErrorKind;
use cenote_medium::{MediumError, Operation};
use cenote_proto::{ObjectItem, Refusal, Reply};
use cenote_store::{ListedObject, ObjectInfo, StoreError};
use std::io;
use std::time::Duration;

/// The error of an answer that does not fit its request.
pub(crate) fn nonsense(reply: &Reply) -> io::Error {
    match reply {
        Reply::Refused(refusal) => io::Error::other(words(refusal)),
        _ => io::Error::other("the daemon's answer is to another request"),
    }
}

pub(crate) fn one_only() -> StoreError {
    StoreError::Refused {
        kind: ErrorKind::Io,
        detail: "the daemon did not answer with one object, or file".into(),
    }
}

pub(crate) fn listed(item: ObjectItem) -> ListedObject {
    let ObjectItem { record, addr, size, state, found, unchecked } = item;
    ListedObject { object: ObjectInfo { record, addr, size }, state, found, unchecked }
}

pub(crate) fn unexpected(reply: &Reply) -> StoreError {
    let kind = match reply {
        Reply::Refused(refusal) => kind_of(refusal),
        _ => ErrorKind::Io,
    };
    StoreError::Refused { kind, detail: nonsense(reply).to_string() }
}

/// What a program can do about a refusal that has no error of its own.
fn kind_of(refusal: &Refusal) -> ErrorKind {
    match refusal {
        Refusal::Limit { .. } => ErrorKind::Full,
        Refusal::Malformed { .. } => ErrorKind::Misuse,
        Refusal::NoSession => ErrorKind::Ended,
        Refusal::Attached => ErrorKind::Busy,
        Refusal::Other { kind, .. } => ErrorKind::of_code(kind).unwrap_or(ErrorKind::Io),
        _ => ErrorKind::Denied,
    }
}

/// A refusal in words, for where there is no pool to name.
fn words(refusal: &Refusal) -> String {
    match refusal {
        Refusal::Limit { detail }
        | Refusal::Malformed { detail }
        | Refusal::Other { detail, .. } => detail.clone(),
        Refusal::NoSession => "the session has ended".into(),
        Refusal::Attached => "this process is connected under that session already".into(),
        other => format!("the daemon refuses: {other:?}"),
    }
}

/// A refusal as the error that an embedded store would give.
pub(crate) fn error_of(refusal: Refusal, name: &str) -> StoreError {
    let name = name.to_owned();
    match refusal {
        Refusal::PoolUnknown => StoreError::PoolUnknown { name },
        Refusal::PoolExists => StoreError::PoolExists { name },
        Refusal::PoolInUse => StoreError::PoolInUse { name },
        Refusal::PoolTorn => StoreError::PoolTorn { name },
        Refusal::PoolBusy { by } => StoreError::PoolBusy { name, by },
        Refusal::Permission { what } => {
            let known = [
                "read",
                "written",
                "removed",
                "given other permissions",
                "decided about",
                "declared whole",
            ];
            let what = known.into_iter().find(|known| *known == what).unwrap_or("used");
            StoreError::Permission { name, what }
        }
        Refusal::PoolFull { wanted, used, size_max } => {
            StoreError::PoolFull { name, wanted, used, size_max }
        }
        Refusal::ObjectUnknown => StoreError::ObjectUnknown { name },
        Refusal::ObjectExists => StoreError::ObjectExists { name },
        Refusal::ObjectBusy { writing, pid } => StoreError::ObjectBusy { name, writing, pid },
        Refusal::ObjectDenied { what, uid, mode, owner } => {
            let known = [
                "attached for reading",
                "attached for writing",
                "removed",
                "given other permissions",
            ];
            let what = known.into_iter().find(|known| *known == what).unwrap_or("used");
            StoreError::ObjectDenied { name, what, uid, mode, owner }
        }
        Refusal::PoolHeld { name, by } => StoreError::PoolHeld { name, by },
        Refusal::WindowFull { wanted, window_len, free } => {
            StoreError::WindowFull { wanted, window_len, free }
        }
        Refusal::NoSpace => {
            let full = io::Error::from(io::ErrorKind::StorageFull);
            MediumError::from_io(Operation::Write, "a file of the daemon's store", full).into()
        }
        Refusal::PsyncTooLarge { limit } => StoreError::PsyncTooLarge { needed: limit + 1, limit },
        Refusal::Import { detail } => StoreError::Import { detail },
        Refusal::Backup { kind, detail } => {
            let kind = ErrorKind::of_code(&kind).unwrap_or(ErrorKind::Io);
            StoreError::Backup { kind, detail }
        }
        Refusal::NotStill { pids, waited_ms } => {
            StoreError::NotStill { pids, waited: Duration::from_millis(waited_ms.into()) }
        }
        Refusal::NoImport => StoreError::Import {
            detail: "the daemon no longer has this import, perhaps because it was restarted: \
                     import again"
                .into(),
        },
        other => StoreError::Refused { kind: kind_of(&other), detail: words(&other) },
    }
}
