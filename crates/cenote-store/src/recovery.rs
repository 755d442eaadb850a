//! Recovers a store at open (PUD-2, PUD-3; Puddles paper, 4.1): without knowledge of applications,
//! and before any mapping is handed out.
//!
//! The catalog names every session that did not end well. Recovery finds the logs of each through
//! its log space, and replays them by `cenote_log::replay`. Invariant: a log writes only to pools
//! that its owner had writable leases on; a log with any other entry is refused and set aside.
//!
//! # States, and what commits
//!
//! 1. Nothing has happened: the catalog names the dead clients, the superblock their boot.
//! 2. Some logs are replayed. Replay is idempotent. A further crash starts again at 1, with the old
//!    boot id still in the superblock: a loss of power stays one until the end.
//! 3. One batch ends the dead clients' leases, removes them, and gives this session the leases that
//!    it inherits: **the catalog's batch commits the recovery**.
//! 4. The superblock says "open" under this boot and this client. (If the store was closed, this
//!    comes before 1: then recovery is only about logs that were set aside.)
//!
//! A read-only open stops after 2, and replays into private pages.
//!
//! # Pools in shadowed mode
//!
//! After a crash of processes they recover as any other. After a loss of power they go back to
//! their last psync first ([`crate::shadow`]), and log entries about them are *void*:
//!
//! | a log is about | then it is |
//! | --- | --- |
//! | such pools only | not replayed |
//! | others too | refused and set aside: the transaction cannot be whole any more |
//!
//! The leases of the dead on these pools end in any case.
//!
//! # What stays
//!
//! * A client with a log that failed its checks, or a log space that cannot be read: it keeps
//!   client record, leases and logs. Its pools are reported and open read-only, at this open and
//!   later ones, until they are removed.
//! * A client with a log that needs a puddle which is damaged or cannot be read now: the log is not
//!   touched, and is replayed when the puddle is back. The pools that the log is about wait with
//!   it. The client's leases on its other pools end, and this session inherits those.
//! * A lease of the dead on a pool whose files are damaged: what was stored may not be on the
//!   medium, and the pages that a psync has to compare are unknown. Recovery looks at it again at
//!   each open, until the files are whole.
//! * A log puddle or a spare one whose file is missing, and in which no log in use lies: it is
//!   reported at this open, and the batch of 3 removes its record.
//! * A client that wrote to pools which a loss of power may have torn, unless the caller takes them
//!   as they are: a record says so, and the logs wait for a later decision.
//! * A pool that the caller takes as it is ([`PowerLossPolicy::AsIs`]), or whose logs go because of
//!   that: the batch of 3 makes it torn for later sessions ([`crate::undecided_logs`]).
//!
//! # Errors of the medium
//!
//! Two kinds, told apart by [`MediumError::is_passing`]:
//!
//! * *Of this process, now*: no descriptors, no memory, no mappings, an interrupted call. It says
//!   nothing of any file. Recovery fails, and with it the open or the end of the client. The state
//!   is 2, so the next attempt finishes.
//! * *Of one file*: it cannot be read, or may not be written, or is missing. It counts as damage of
//!   that file for this session. Nothing durable says so: only replay marks a log "set aside", for
//!   its contents, after all that it needs was mapped. The next open looks again.
//!
//! # A transaction over a damaged pool and healthy ones
//!
//! It is decided for all its pools at once, or for none. *Rolling the healthy ones back* would be
//! final for them: the same entries, applied again when the damaged pool is back, would undo later
//! transactions. *Committing* cannot be decided, because the seal's hash covers the damaged pool's
//! bytes too. So nothing of the log is applied, no pool of it shows values
//! ([`crate::PoolHandle::doubts`]) or is written, and the log stays as it is. It ends by repair, or
//! by an operator who discards it ([`crate::LogDecision`]) or removes the damaged pool.
//!
//! *A loss of power stays one.* The next open finds another boot id in the superblock. `TraceDue`
//! on a pool that waits says that its logs are to be read as after a loss of power.

mod client_logs;
mod covered;
mod dead;
mod decided;
mod files;
mod log_space;
mod problem;
mod replaying;
mod target;
mod verdict;
mod without_file;

use crate::kernel::catalog::AppendError;
use crate::kernel::interface::error::StoreError;
use crate::kernel::interface::report::OpenReport;
use crate::kernel::store::{Control, Inner};
use cenote_layout::catalog::{PuddleRecord, Record};
use cenote_layout::id::Uuid;
use cenote_log::CrashKind;
use cenote_medium::{MediumError, Operation};
use std::collections::BTreeSet;

use dead::Dead;
use decided::{Decided, Restored, lease, note_dirty};
use replaying::Replaying;
use without_file::{drop_spare_logs, forget_missing, spare_logs, unused_and_missing};

/// Recovers what earlier sessions left. `control` and `report` get what was found; `missing` are
/// puddles without a file.
pub(crate) fn recover(
    inner: &Inner,
    control: &mut Control,
    crash: Option<CrashKind>,
    missing: &BTreeSet<Uuid>,
    report: &mut OpenReport,
) -> Result<(), MediumError> {
    let restored = Restored::by_journal(inner, control, crash, report)?;
    let dead = Dead::named_by(&control.catalog.state, inner, crash);
    let mut decided = Decided::new(&restored, &control.catalog.state);
    decided.say_what_is_not_covered(inner, control, &dead, crash, report);

    let mut replaying = Replaying::new(inner, control, &restored.void);
    for client in &dead.clients {
        decided.client(&mut replaying, *client, crash, report)?;
    }
    let used = replaying.used_by_others(&decided.retired)?;
    replaying.finish()?;

    let trace_due = control.catalog.state.trace_due.clone();
    for pool in decided.not_covered.iter().copied().chain(trace_due) {
        note_dirty(control, pool, CrashKind::Power);
    }
    decided.take_as_is(report);
    if !inner.writable {
        decided.show_readers(control);
        return Ok(());
    }
    let gone = unused_and_missing(control, used.as_ref(), missing);
    let clients_gone = decided.clients_gone;
    commit(inner, control, decided, &gone)?;
    if dead.living_clients > 0 {
        control.adopt_clients();
    }
    forget_missing(control, gone, report);
    control.logs.spare = match used {
        // A client may have been given one that it has not listed yet.
        Some(_) if dead.living_clients > 0 => Vec::new(),
        Some(used) => spare_logs(&control.catalog.state, &used),
        // Which logs belong to a log space that cannot be read is not known: none is touched.
        None => Vec::new(),
    };
    if inner.options.hosting.is_some() || clients_gone {
        drop_spare_logs(inner, control)?;
    }
    Ok(())
}

/// Commits the recovery by one batch, which also removes the records of `gone` and gives this
/// session the leases that it inherits.
fn commit(
    inner: &Inner,
    control: &mut Control,
    decided: Decided<'_>,
    gone: &[PuddleRecord],
) -> Result<(), MediumError> {
    let (mut records, mut inherited) = (decided.records, decided.inherited);
    records.extend(gone.iter().map(|puddle| Record::PuddleRemoved(puddle.uuid)));
    // Stores of dead sessions in the page cache are not on the medium yet: their leases go on as
    // ours until a sync.
    inherited.retain(|pool| !control.catalog.state.is_protected(*pool));
    let client = control.client;
    records.extend(inherited.into_iter().map(|pool| lease(client, pool)));
    inner.say_features(control, &records).map_err(of_superblock)?;
    if records.is_empty() {
        return Ok(());
    }
    control.catalog.append(&records).map_err(AppendError::into_cause)
}

/// Why the superblock could not be written.
fn of_superblock(error: StoreError) -> MediumError {
    match error {
        StoreError::Medium(error) => error,
        other => MediumError::from_io(
            Operation::Write,
            "superblock",
            std::io::Error::other(other.to_string()),
        ),
    }
}

/// Recovers one client whose process has ended, in a store that is open (see
/// [`crate::hosting`]). Returns, if its logs are empty now, those that it lists and whose
/// headers are its own: no other process could have written them. If not, the client stays in the
/// catalog. Nothing is recorded here. No other code of this process maps what this function maps
/// meanwhile.
pub(crate) fn recover_client(
    inner: &Inner,
    control: &mut Control,
    client: Uuid,
    report: &mut OpenReport,
) -> Result<Option<Vec<PuddleRecord>>, MediumError> {
    let void = BTreeSet::new();
    let replaying = Replaying::new(inner, control, &void);
    replaying.client_and_its_logs(client, report)
}

/// Replays the logs of a client that were set aside, if they pass their checks now: each loses its
/// mark, by one store, and gets it again if it fails. As [`recover_client`].
pub(crate) fn retry(
    inner: &Inner,
    control: &mut Control,
    client: Uuid,
    report: &mut OpenReport,
) -> Result<Option<Vec<PuddleRecord>>, MediumError> {
    let void = BTreeSet::new();
    let mut replaying = Replaying::new(inner, control, &void);
    replaying.begin(client);
    if let Err(error) = replaying.unmark(client) {
        replaying.finish()?;
        return Err(error);
    }
    replaying.client_and_its_logs(client, report)
}
