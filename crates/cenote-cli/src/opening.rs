//! Opening stores: to look, or to change.

use crate::cli::StoreDir;
use crate::commands::keys;
use crate::failure::Failure;
use crate::progress;
use crate::units::plural;
use cenote::{
    Access, CopyPolicy, DamagePolicy, OpenOptions, OpenReport, PowerLossPolicy, RecoveryOptions,
    RecoveryProgress, Store,
};
use cenote_log::CrashKind;
use serde_json::{Value, json};
use std::os::unix::fs::FileTypeExt;
use std::sync::Arc;

/// The store of a daemon, if its socket is in the place of the directory; what a command may do there is the daemon's to say.
pub(crate) fn asked(store: &StoreDir) -> Result<Option<Store>, Failure> {
    if !std::fs::metadata(&store.dir).is_ok_and(|found| found.file_type().is_socket()) {
        return Ok(None);
    }
    let of_directories = |option: &str| {
        let socket = store.dir.display();
        Err(Failure::Usage(format!(
            "{socket} is the socket of a daemon: {option} is for a store's directory"
        )))
    };
    if !store.wait.is_zero() {
        return of_directories("--wait");
    }
    if store.accept_copy {
        return of_directories("--accept-copy");
    }
    if store.key.is_given() {
        // It keeps no protected pools, and to copy a protected object takes no key.
        return of_directories("a key");
    }
    Ok(Some(Store::connect(&store.dir)?))
}

/// A daemon's store, or one that is opened to look at it.
pub(crate) fn asked_or_look(store: &StoreDir) -> Result<Store, Failure> {
    asked(store)?.map_or_else(|| to_look(store), Ok)
}

/// A daemon's store, or one that is opened to change it.
pub(crate) fn asked_or_change(store: &StoreDir) -> Result<Store, Failure> {
    asked(store)?.map_or_else(|| to_change(store), Ok)
}

/// Opens a store to look at it, whatever is damaged. Nothing is written: recovery goes into private memory.
pub(crate) fn to_look(store: &StoreDir) -> Result<Store, Failure> {
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
    Ok(Store::open_with(&store.dir, &options)?)
}

/// Opens a store to change it; recovers it first. Keeps no spare puddles: who removes a pool by a command wants its space back.
pub(crate) fn to_change(store: &StoreDir) -> Result<Store, Failure> {
    let key = keys::given(&store.key)?.map(Arc::new);
    let options = OpenOptions {
        lock_timeout: store.wait,
        spare_bytes_max: 0,
        copy: copies(store),
        key,
        accept_unprotected: true,
        ..OpenOptions::default()
    };
    let opened = Store::open_with(&store.dir, &options)?;
    // Pools that were in use when power failed are traced when the first is opened.
    if opened.pools_due().is_empty() {
        return Ok(opened);
    }
    let bar = progress::bar(0, "recovering", false);
    let tell = move |at: &RecoveryProgress<'_>| {
        bar.set_message(format!("{}: {} reached", at.pool, plural(at.blocks, "block")));
    };
    opened.set_recovery(RecoveryOptions { progress: Some(Arc::new(tell)), ..RecoveryOptions::default() });
    Ok(opened)
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
            "its last process ended without closing it; the next to write recovers it"
        }
        (false, Some(CrashKind::Power)) => {
            "the machine went down while it was open; the next to write recovers it"
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
