//! Opening stores: to look, or to change.

use crate::cli::{ChangedStore, StoreDir};
use crate::copies::opened;
use crate::failure::Failure;
use crate::keys;
use crate::progress;
use crate::units::plural;
use cenote::{
    Access, ConnectOptions, CopyPolicy, DamagePolicy, JournalPolicy, MediumOptions, OpenOptions,
    OpenReport, PowerLossPolicy, RealMedium, RecoveryOptions, RecoveryProgress, Store,
};
use cenote_log::CrashKind;
use serde_json::{Value, json};
use std::os::unix::fs::FileTypeExt;
use std::sync::Arc;

/// What a daemon's socket can be given to.
pub(crate) const THROUGH_A_DAEMON: &str = "ls, create, rm POOL, chmod, chown, logs, clone, \
                                           copy, randomize, export, import, snapshot, backup and \
                                           top take it";

fn is_socket(store: &StoreDir) -> bool {
    std::fs::metadata(&store.dir).is_ok_and(|found| found.file_type().is_socket())
}

/// Refuses a socket where a directory is needed.
pub(crate) fn refuse_socket(store: &StoreDir) -> Result<(), Failure> {
    match is_socket(store) {
        true => Err(Failure::Usage(format!(
            "{} is the socket of a daemon ({THROUGH_A_DAEMON}), and this command reads the store's \
             files: stop the daemon, and give the store's directory",
            store.dir.display()
        ))),
        false => Ok(()),
    }
}

/// The store of a daemon, if its socket is in the place of the directory; what a command may do
/// there is the daemon's to say.
pub(crate) fn asked(store: &StoreDir) -> Result<Option<Store>, Failure> {
    if !is_socket(store) {
        return Ok(None);
    }
    if store.accept_copy {
        return Err(of_directories(store, "--accept-copy"));
    }
    if store.key.is_given() {
        // It keeps no protected pools, and to copy a protected object takes no key.
        return Err(of_directories(store, "a key"));
    }
    let options = match store.wait.is_zero() {
        true => ConnectOptions::default(),
        false => ConnectOptions::default().with_silence(store.wait),
    };
    Ok(Some(Store::connect_with(&store.dir, &options)?))
}

/// An option that says nothing to a daemon.
fn of_directories(store: &StoreDir, option: &str) -> Failure {
    let socket = store.dir.display();
    Failure::Usage(format!(
        "{socket} is the socket of a daemon: {option} is for a store's directory"
    ))
}

/// A daemon's store, or one that is opened to look at it.
pub(crate) fn asked_or_look(store: &StoreDir) -> Result<Store, Failure> {
    asked(store)?.map_or_else(|| to_look(store), Ok)
}

/// A daemon's store that is to be changed.
pub(crate) fn asked_to_change(store: &ChangedStore) -> Result<Option<Store>, Failure> {
    let asked = asked(store)?;
    match asked.is_some() && store.give_up_journal {
        true => Err(of_directories(store, "--give-up-journal")),
        false => Ok(asked),
    }
}

/// A daemon's store, or one that is opened to change it.
pub(crate) fn asked_or_change(store: &ChangedStore) -> Result<Store, Failure> {
    asked_to_change(store)?.map_or_else(|| to_change(store), Ok)
}

/// Opens a store to look at it, also a damaged one. Nothing is written: recovery goes into private
/// memory.
pub(crate) fn to_look(store: &StoreDir) -> Result<Store, Failure> {
    refuse_socket(store)?;
    let options = OpenOptions {
        access: Access::ReadOnly,
        lock_timeout: store.wait,
        damage: DamagePolicy::ReadOnly,
        power_loss: PowerLossPolicy::ReadOnly,
        copy: copies(store),
        key: keys::given(&store.key)?.map(Arc::new),
        // A key on the command line is for what has one; the others are named as what they are.
        accept_unprotected: true,
        ..OpenOptions::default()
    };
    Ok(opened(Store::open_with(&store.dir, &options)?))
}

/// Opens a store to change it; recovers it first.
pub(crate) fn to_change(store: &ChangedStore) -> Result<Store, Failure> {
    let options = changing(store, copies(store))?;
    Ok(with_progress(Store::open_with(&store.dir, &options)?))
}

/// The same of a copy of a store that was not closed, whether or not that was accepted before.
pub(crate) fn to_adopt(store: &ChangedStore) -> Result<Store, Failure> {
    let options = changing(store, CopyPolicy::CheckAndOpen)?;
    Ok(with_progress(Store::open_with(&store.dir, &options)?))
}

/// The same of a copy whose files are of one moment, as the operator says: what its logs say of
/// what was in use is done.
pub(crate) fn to_adopt_as_it_is(store: &ChangedStore) -> Result<Store, Failure> {
    as_it_is(store, changing(store, CopyPolicy::CheckAndOpen)?)
}

/// Opens a store to declare a pool of it whole. If a loss of power may have torn that pool, what
/// its logs say is done first. Of other pools nothing is decided.
pub(crate) fn to_declare(store: &ChangedStore, pool: &str) -> Result<Store, Failure> {
    let options = changing(store, copies(store))?;
    as_it_is(store, OpenOptions { as_is_pools: vec![pool.into()], ..options })
}

/// Opens a store as it is; the commands that do so read no value.
fn as_it_is(store: &StoreDir, options: OpenOptions) -> Result<Store, Failure> {
    let options = OpenOptions { power_loss: PowerLossPolicy::AsIs, ..options };
    let medium = RealMedium::open(&store.dir, &MediumOptions::default())?;
    // SAFETY: a command has no type of a pool's values and reads none.
    let opened = unsafe { Store::open_torn(Arc::new(medium), &options) }?;
    Ok(with_progress(opened))
}

/// How a store is opened that is changed. It keeps no spare puddles: a user who removes a pool by a
/// command expects its space back.
fn changing(store: &ChangedStore, copy: CopyPolicy) -> Result<OpenOptions, Failure> {
    refuse_socket(store)?;
    Ok(OpenOptions {
        lock_timeout: store.wait,
        spare_bytes_max: 0,
        copy,
        journal: if store.give_up_journal { JournalPolicy::GiveUp } else { JournalPolicy::Refuse },
        key: keys::given(&store.key)?.map(Arc::new),
        accept_unprotected: true,
        ..OpenOptions::default()
    })
}

/// Tells how far tracing is: pools that were in use when power failed are traced when the first is
/// opened.
fn with_progress(store: Store) -> Store {
    let store = opened(store);
    if store.pools_due().is_empty() {
        return store;
    }
    let bar = progress::bar(0, "recovering", false);
    let tell = move |at: &RecoveryProgress<'_>| {
        bar.set_message(format!("{}: {} reached", at.pool, plural(at.blocks, "block")));
    };
    store.set_recovery(RecoveryOptions {
        progress: Some(Arc::new(tell)),
        ..RecoveryOptions::default()
    });
    store
}

fn copies(store: &StoreDir) -> CopyPolicy {
    if store.accept_copy { CopyPolicy::CheckAndOpen } else { CopyPolicy::Refuse }
}

/// How the last writer ended, in words.
pub(crate) fn state(report: &OpenReport) -> &'static str {
    if report.copied {
        return "a copy of a store that was not closed";
    }
    match (report.clean, report.crash) {
        (true, _) | (false, None) => "closed properly",
        (false, Some(CrashKind::Process)) => {
            "its last process ended without closing it; the next writer recovers it"
        }
        (false, Some(CrashKind::Power)) => {
            "the machine stopped while it was open; the next writer recovers it"
        }
    }
}

/// Name of a crash in JSON.
pub(crate) fn crash_name(report: &OpenReport) -> Value {
    match report.crash {
        None => Value::Null,
        Some(CrashKind::Process) => json!("process"),
        Some(CrashKind::Power) => json!("power"),
    }
}
