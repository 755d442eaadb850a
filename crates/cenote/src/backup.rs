//! Copies of a store that is in use: [`Store::backup`]. `cenote_store` (`backup/mod.rs`) has the
//! copy and its steps. This module keeps transactions from running while files are brought to one
//! moment.
//!
//! Of a store that a daemon keeps, the daemon makes the copy ([`ask_for`]): its clients stand still
//! while it does ([`crate::attend`]).
//!
//! *Order of waiting,* as in a check of all pools:
//!
//! 1. for views of the pools that are open, without holding one while waiting for another; views
//!    keep writers out and let readers go on;
//! 2. for the list of open pools, so that no further pool is opened. While it is held, the backup
//!    waits for nothing.

use crate::answers::{error_of, unexpected};
use crate::check;
use crate::checking::refuse_within;
use crate::connect::{of_connection, silent_at};
use crate::error::{Error, Result};
use crate::frames::is_any_here;
use crate::line::{DaemonLine, is_lost};
use crate::open_pool::PoolInner;
use crate::open_pools::pools_of;
use crate::session::Store;
use crate::silence::ConnectOptions;
use cenote_layout::error_kind::ErrorKind;
use cenote_layout::id::Uuid;
use cenote_medium::planted::{Bug, planted};
use cenote_proto::{Reply, Request};
use cenote_store::{BackedUp, BackupReport, StoreError};
use std::io;
use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

impl Store {
    /// Copies the store into `target`, a directory that is missing or empty. The copy is a closed
    /// store with the same identity. Transactions go on during the copy. They pause for a moment at
    /// its end, while changes since the beginning are copied.
    ///
    /// The copy has all pools in direct mode as they were at that moment, between transactions, and
    /// pools in shadowed mode and objects as their last psync left them. It appears under its name
    /// when it is complete, and never earlier. It survives a loss of power if the answer is
    /// [`BackedUp::Durable`].
    ///
    /// The store of a daemon is copied by the daemon, into a directory that the daemon may write.
    /// Only the superuser and the daemon's user may ask for that. Transactions of all clients pause
    /// for the same moment.
    ///
    /// # Errors
    /// [`StoreError::Backup`]: the target is not empty, or cannot be made; the disk is full;
    /// [`StoreError::NotStill`]: a client of the daemon is in a transaction for too long, or
    /// stopped; [`Error::WouldDeadlock`] in a transaction of this thread. There is no copy then.
    pub fn backup(&self, target: impl AsRef<Path>) -> Result<BackedUp> {
        self.backup_with(target, &mut |_, _| true)
    }

    /// The same, told how far it has come: bytes done and bytes altogether. `false` stops it.
    ///
    /// # Errors
    /// As [`Store::backup`].
    pub fn backup_with(
        &self,
        target: impl AsRef<Path>,
        progress: &mut dyn FnMut(u64, u64) -> bool,
    ) -> Result<BackedUp> {
        self.inner.refuse_forked()?;
        refuse_within(&self.inner, "that is backed up")?;
        // SAFETY: it is asked for a backup, which changes nothing in the store.
        if let Some(daemon) = unsafe { self.inner.store.daemon() } {
            // The daemon would wait for a transaction of this thread.
            if is_any_here() {
                return Err(Error::WouldDeadlock { pool: String::new(), by: "a transaction" });
            }
            return Ok(daemon.backup(target.as_ref(), &mut || progress(0, 1))?);
        }
        let mut backup = self.inner.store.begin_backup(target.as_ref())?;
        backup.copy_ahead(progress)?;
        loop {
            let open: Vec<Arc<PoolInner>> = pools_of(&self.inner)
                .locked()
                .iter()
                .filter_map(|(_, pool)| pool.upgrade())
                .collect();
            let views = match planted(Bug::BackupNotHeld) {
                true => Vec::new(),
                false => check::views_of(&open)?,
            };
            let list = pools_of(&self.inner).locked();
            let known = |there: &Arc<PoolInner>| open.iter().any(|other| Arc::ptr_eq(other, there));
            let now: Vec<Arc<PoolInner>> =
                list.iter().filter_map(|(_, there)| there.upgrade()).collect();
            if now.iter().all(known) {
                backup.copy_held()?;
                drop((list, views));
                break;
            }
            // Dropped after the lock: if one of these is the last handle, dropping it takes the
            // lock.
            drop(list);
        }
        Ok(backup.finish()?)
    }
}

/// Has the daemon at a socket copy the store into `target`, by a session of its own, so that other
/// threads can ask it meanwhile.
///
/// **The daemon's end, or its answer, is the end of it.** If it ends before it has answered, the
/// copy is there or not: the target was not there before, and only a copy that is complete gets
/// that name.
pub(crate) fn ask_for(
    (socket, options): (&Path, ConnectOptions),
    store: Uuid,
    target: &Path,
    more: &mut dyn FnMut() -> bool,
) -> core::result::Result<BackedUp, StoreError> {
    let failed = |kind, detail: String| StoreError::Backup { kind, detail };
    let asked = |error: io::Error| {
        silent_at(socket, &error).unwrap_or_else(|| {
            failed(of_connection(&error), format!("the daemon cannot be asked: {error}"))
        })
    };
    let target = std::path::absolute(target)
        .map_err(|error| failed(ErrorKind::of_system(&error), error.to_string()))?;
    if std::fs::read_dir(&target).is_ok_and(|mut entries| entries.next().is_some()) {
        return Err(failed(
            ErrorKind::Exists,
            format!("{} is not empty: name a new directory", target.display()),
        ));
    }
    let text = target
        .to_str()
        .ok_or_else(|| failed(ErrorKind::Misuse, "the target's name is no text".into()))?;
    let (mut line, home, _image) = DaemonLine::open(socket, None, options).map_err(asked)?;
    if home.store != store {
        return Err(failed(ErrorKind::NotFound, "the daemon keeps another store now".into()));
    }
    let request = Request::Backup { target: text.into(), within_ms: 0 };
    let reply = match line.ask_while(&request, Some(more)) {
        Ok(Some((reply, _))) => reply,
        Ok(None) => return Err(failed(ErrorKind::Aborted, "it was stopped".into())),
        Err(error) if is_lost(&error) => {
            let detail = format!("the daemon has ended before it answered: {error}");
            return match target.join("superblock").exists() {
                true => {
                    let why = StoreError::BackupUnsynced { detail };
                    Ok(BackedUp::Unsynced(BackupReport::default(), why))
                }
                false => Err(failed(ErrorKind::NotFound, detail)),
            };
        }
        Err(error) => return Err(asked(error)),
    };
    match reply {
        Reply::BackedUp { pools, objects, bytes, again_bytes, held_us, unsynced } => {
            let held = Duration::from_micros(held_us);
            let report =
                BackupReport { pools, objects, bytes, again_bytes, held, damage: Vec::new() };
            Ok(match unsynced {
                None => BackedUp::Durable(report),
                Some(detail) => BackedUp::Unsynced(report, StoreError::BackupUnsynced { detail }),
            })
        }
        Reply::Refused(refusal) => Err(error_of(refusal, "")),
        other => Err(unexpected(&other)),
    }
}
