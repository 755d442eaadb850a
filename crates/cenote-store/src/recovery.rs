//! Recovers a store at open: without knowledge of applications, and before any mapping is handed
//! out (PUD-2, PUD-3; Puddles paper, 4.1).
//!
//! The catalog still names every session that did not end well. For each, recovery finds its logs
//! through its log space and replays them by `cenote_log::replay`. Invariant: a log writes only to
//! pools that its owner had writable leases on; a log with anything else is refused and set aside.
//!
//! # States, and what commits
//!
//! 1. Nothing has happened: the catalog names the dead clients, the superblock the boot under which
//!    they lived.
//! 2. Some logs are replayed. Replay is idempotent, and a further crash starts again at 1, with the
//!    old boot id still in the superblock: what was a loss of power stays one until the end.
//! 3. One batch ends the dead clients' leases, removes them, and gives this session the leases that
//!    it inherits: **the catalog's batch commits the recovery**.
//! 4. The superblock says "open" under this boot and this client. (Before 1 if the store was
//!    closed: then recovery is only about logs that were set aside.)
//!
//! A read-only open stops after 2, and does that in private pages.
//!
//! # Pools in shadowed mode
//!
//! After a crash of processes as any other. After a loss of power they go back to their last psync
//! ([`crate::shadow`]), before anything else, and what logs say about them is *void*: a log whose
//! entries are all about such pools is not replayed. A log that is about others too is, and its
//! entries about void pools are refused, so that it is set aside: transactions over pools of both
//! modes cannot be whole after that. The leases of the dead on these pools end in any case.
//!
//! # What stays
//!
//! * A client with a log that failed its checks, or a log space that cannot be read: it keeps
//!   client record, leases and logs. Its pools are reported and open read-only, at this open and
//!   later ones, until they are removed.
//! * A client with a log that needs a puddle which is damaged or cannot be read now: the log is not
//!   touched, so that it can be replayed when the puddle has been brought back. The pools that the
//!   log is about wait with it. The client's other pools do not: its leases on them end, and this
//!   session inherits them.
//! * A lease of the dead on a pool whose files are damaged: what was stored may not be on the
//!   medium, and which pages a psync has to compare is not known. Recovery looks at it again at
//!   each open, until the files are whole.
//! * A log puddle that no log in use lies in, or a spare one, whose file is missing: reported at
//!   this open, its record removed with the batch of 3.
//! * A client that wrote to pools which a loss of power may have torn, unless the caller takes them
//!   as they are: a record says so, and the logs wait for a later decision.
//! * A pool that the caller takes as it is ([`PowerLossPolicy::AsIs`]), or whose logs go because of
//!   that: it is torn for later sessions ([`crate::set_aside`]), by the batch of 3.
//!
//! # Errors of the medium
//!
//! Two kinds, told apart by [`MediumError::is_passing`]:
//!
//! * *Of this process, now*: no descriptors, no memory, no mappings, an interrupted call. It says
//!   nothing of any file. Recovery fails with it, and the open too, or the end of the guest. What
//!   was replayed until then is state 2, so the next attempt finishes as if nothing had been.
//! * *Of one file*: it cannot be read, or may not be written, or is not there. It counts as damage
//!   of that file for this session. Nothing durable says so: a log is marked "set aside" by replay
//!   alone, for what is in it, after all that it needs was mapped. The next open looks again.
//!
//! # A transaction over a damaged pool and healthy ones
//!
//! It is decided for all its pools at once, or for none. *Rolling the healthy ones back* would be
//! final for them: they would be changed then, and the same entries, applied again when the damaged
//! pool is back, would undo later transactions. *Committing* cannot be decided: the seal's hash is
//! over the damaged pool's bytes, too. So nothing of the log is applied, no pool of it shows values
//! ([`crate::PoolHandle::doubts`]) or is written, and the log stays as it is. It ends by repair, or
//! by an operator who discards it ([`crate::LogDecision`]) or removes the damaged pool.
//!
//! *A loss of power stays one.* The next open finds another boot id in the superblock. `TraceDue`
//! on a pool that waits says that its logs are to be read as after a loss of power.

mod files;
mod problem;
mod target;

use crate::kernel::catalog::{AppendError, State};
use crate::kernel::error::StoreError;
use crate::kernel::notice::Watcher;
use crate::kernel::options::PowerLossPolicy;
use crate::kernel::puddle::{Puddle, pool_named};
use crate::kernel::report::{Damage, LogReport, OpenReport};
use crate::kernel::store::{Control, Inner};
use crate::kernel::verify::about_file;
use cenote_layout::catalog::{LeaseRecord, PuddleRecord, Record};
use cenote_layout::header::read;
use cenote_layout::id::{PoolId, Uuid};
use cenote_layout::log::{LOG_QUARANTINED, LogHeader};
use cenote_layout::log_space::{
    ENTRY_HEAD, LOG_SPACE_ENTRIES_OFFSET, Listing, LogSpaceEntry, LogSpaceHeader,
};
use cenote_layout::puddle::Role;
use cenote_layout::superblock::DURABILITY_POWER;
use cenote_log::{Body, CrashKind, Outcome, inspect, replay};
use cenote_medium::planted::{Bug, planted};
use cenote_medium::{Durability, MapMode, MediumError, Operation};
use core::ptr::NonNull;
use core::sync::atomic::Ordering as AtomicOrdering;
use std::collections::{BTreeMap, BTreeSet};
use zerocopy::FromBytes;

use problem::{Problem, sorted};
use target::Target;

/// What recovery decides about one client.
#[derive(Clone, PartialEq, Eq)]
enum Verdict {
    /// Its logs are empty now: it can go.
    Done,
    /// It stays in the catalog, with its leases on these pools, which its logs are about.
    Stays(BTreeSet<PoolId>),
}

/// Recovers what earlier sessions left. `control` and `report` get what was found; `missing` are
/// puddles without a file.
pub(crate) fn recover(
    inner: &Inner,
    control: &mut Control,
    crash: Option<CrashKind>,
    missing: &BTreeSet<Uuid>,
    report: &mut OpenReport,
) -> Result<(), MediumError> {
    let void = crate::restored::void(&control.catalog.state, crash);
    let mut lost = crate::restored::restore(inner, control, &void, report)?;
    if report.copied {
        // Primaries and journal are of different moments, too. What is sealed shows that itself.
        lost.extend(void.iter().filter(|pool| !control.catalog.state.is_protected(**pool)));
    }
    let state = &control.catalog.state;
    let mut clients: BTreeSet<Uuid> = state.clients.keys().copied().collect();
    clients.extend(state.leases.keys().map(|(client, _)| *client));
    clients.extend(state.guests.keys().copied());
    clients.extend(state.object_leases.keys().map(|(client, _)| *client));
    // Guests of an earlier daemon that live go on: what they do is not over. (After a loss of power
    // none does.)
    let mut guests = 0;
    if inner.options.hosting.is_some() && crash != Some(CrashKind::Power) {
        for guest in crate::alive::seen(state) {
            clients.remove(&guest.client);
            guests += 1;
        }
    }

    let mut records = Vec::new();
    let mut not_covered = state.not_covered.clone();
    if crash == Some(CrashKind::Power) && (report.copied || !covered(inner, control)) {
        for pool in clients.iter().flat_map(|client| state.writable_pools(*client)) {
            if !void.contains(&pool) && not_covered.insert(pool) {
                records.push(Record::PoolNotCovered(pool));
            }
        }
    }
    if inner.stamps.is_new_copy() {
        // Sessions may have begun to write them since the catalog was copied.
        let unproven = inner.unproven(state).into_iter().filter(|pool| not_covered.insert(*pool));
        records.extend(unproven.map(Record::PoolNotCovered));
    }
    let (mut inherited, mut retired) = (BTreeSet::new(), BTreeSet::new());
    for pool in &void {
        if lost.contains(pool) {
            if not_covered.insert(*pool) {
                records.push(Record::PoolNotCovered(*pool));
            }
        } else if not_covered.remove(pool) {
            records.push(Record::PoolCovered(*pool));
            // Its shadow is made anew, in the page cache so far, and no client has a lease on it.
            inherited.extend(Some(*pool).filter(|_| !planted(Bug::RestoredNotLeased)));
        }
    }
    report.not_covered = not_covered
        .iter()
        .map(|id| (*id, state.pools.get(id).map_or_else(String::new, |pool| pool.name.clone())))
        .collect();

    let as_is = taken_as_is(inner, state, (&clients, &void), &not_covered);
    let mut guests_gone = false;
    let mut session = Session::new(inner, control, &void);
    for client in clients {
        let (gone, pools): (BTreeSet<PoolId>, BTreeSet<PoolId>) = session
            .control
            .catalog
            .state
            .writable_pools(client)
            .into_iter()
            .partition(|pool| void.contains(pool));
        records.extend(session.control.catalog.state.process_ended(client));
        let torn = pools.iter().any(|pool| not_covered.contains(pool));
        for pool in &gone {
            note_dirty(session.control, *pool, CrashKind::Power);
        }
        inherited.extend(gone.difference(&lost));
        // A client that stays keeps its leases on pools that are not void.
        let end_void = |records: &mut Vec<Record>| {
            if !gone.is_empty() {
                records.push(Record::LeasesEnded(client));
                let keep = |pool: &PoolId| {
                    Record::Lease(LeaseRecord { client, pool: *pool, writable: true })
                };
                records.extend(pools.iter().map(keep));
            }
        };
        if torn && !pools.iter().any(|pool| as_is.contains(pool)) {
            end_void(&mut records);
            continue;
        }
        // What waits since a loss of power is read as that.
        let waits = |pool: &PoolId| session.control.catalog.state.trace_due.contains(pool);
        let kind = match torn || pools.iter().any(waits) {
            true => CrashKind::Power,
            false => crash.unwrap_or(CrashKind::Process),
        };
        for pool in &pools {
            note_dirty(session.control, *pool, kind);
        }
        // After a loss of power nothing that its logs say counts.
        let silent = kind == CrashKind::Power && pools.is_empty() && !gone.is_empty();
        let verdict = if silent && !planted(Bug::VoidLogReplayed) {
            Verdict::Done
        } else {
            session.client(client, kind, report)?
        };
        if kind == CrashKind::Power && !planted(Bug::TraceDueForgotten) {
            // The heap gives back blocks that are allocated and that no root leads to.
            records.extend(pools.iter().copied().map(Record::TraceDue));
        }
        // A caller that accepts torn pools as they are gets them without the logs that do not fit
        // them. And a log that concerns no pool any more is of no use.
        let stays = match verdict {
            Verdict::Stays(concerned) if !torn && !pools.is_empty() => Some(concerned),
            Verdict::Stays(_) => {
                records.extend(pools.iter().copied().map(Record::PoolTorn));
                None
            }
            Verdict::Done => None,
        };
        records.push(Record::LeasesEnded(client));
        let unusable = session.unusable(&pools)?;
        if stays.is_none() {
            let state = &session.control.catalog.state;
            if state.clients.contains_key(&client) || state.guests.contains_key(&client) {
                records.push(Record::ClientRemoved(client));
            }
            retired.insert(client);
            guests_gone |= session.control.catalog.state.guests.contains_key(&client);
        }
        let kept = |pool: &PoolId| {
            unusable.contains(pool)
                || stays.as_ref().is_some_and(|concerned| concerned.contains(pool))
        };
        let (keep, free): (BTreeSet<PoolId>, BTreeSet<PoolId>) = pools.into_iter().partition(kept);
        records.extend(
            keep.into_iter()
                .map(|pool| Record::Lease(LeaseRecord { client, pool, writable: true })),
        );
        inherited.extend(free);
    }
    let used = session.used_by_others(&retired)?;
    session.finish()?;
    for pool in not_covered.iter().copied().chain(control.catalog.state.trace_due.clone()) {
        note_dirty(control, pool, CrashKind::Power);
    }
    records.extend(as_is.iter().map(|pool| Record::PoolCovered(*pool)));
    // The caller of this session answers for them, and not the next one.
    if !planted(Bug::TornForgotten) {
        records.extend(as_is.iter().map(|pool| Record::PoolTorn(*pool)));
    }
    report.damage.retain(|d| {
        !matches!(d, Damage::Log { pools, .. } | Damage::LogSpace { pools, .. }
            if pools.iter().any(|p| as_is.contains(p)))
    });
    if !inner.writable {
        for record in records {
            match &record {
                Record::PoolNotCovered(_) | Record::TraceDue(_) => {
                    control.catalog.state.apply(&record)
                }
                Record::PoolCovered(pool) if void.contains(pool) => {
                    control.catalog.state.apply(&record)
                }
                _ => {}
            }
        }
        return Ok(());
    }
    let gone = unused_and_missing(control, used.as_ref(), missing);
    records.extend(gone.iter().map(|puddle| Record::PuddleRemoved(puddle.uuid)));
    // What the dead left in the page cache is not on the medium yet: their leases go on as ours
    // until it is synced.
    let client = control.client;
    inherited.retain(|pool| !control.catalog.state.is_protected(*pool));
    records.extend(
        inherited
            .into_iter()
            .map(|pool| Record::Lease(LeaseRecord { client, pool, writable: true })),
    );
    inner.say_features(control, &records).map_err(of_superblock)?;
    if !records.is_empty() {
        control.catalog.append(&records).map_err(|error| match error {
            AppendError::Undone(e) | AppendError::Unknown(e) => e,
        })?;
    }
    if guests > 0 {
        control.adopt_guests();
    }
    forget_missing(control, gone, report);
    control.logs.spare = match used {
        // A guest may have been given one that it has not listed yet.
        Some(_) if guests > 0 => Vec::new(),
        Some(used) => files::spare_logs(&control.catalog.state, &used),
        // Which logs belong to a log space that cannot be read is not known: none is touched.
        None => Vec::new(),
    };
    if inner.options.hosting.is_some() || guests_gone {
        drop_spare_logs(inner, control)?;
    }
    Ok(())
}

/// Pools that a loss of power may have torn and the caller takes as they are: those that the
/// options name, and those that logs bind to them. A log is replayed for all of its pools or none.
fn taken_as_is(
    inner: &Inner,
    state: &State,
    (clients, void): (&BTreeSet<Uuid>, &BTreeSet<PoolId>),
    not_covered: &BTreeSet<PoolId>,
) -> BTreeSet<PoolId> {
    let named = |id: &&PoolId| {
        let pool = state.pools.get(id);
        pool.is_some_and(|pool| inner.options.power_loss_of(&pool.name) == PowerLossPolicy::AsIs)
    };
    let mut taken: BTreeSet<PoolId> = not_covered.iter().filter(named).copied().collect();
    loop {
        let before = taken.len();
        for client in clients {
            let written: Vec<PoolId> = state
                .writable_pools(*client)
                .into_iter()
                .filter(|pool| not_covered.contains(pool) && !void.contains(pool))
                .collect();
            if written.iter().any(|pool| taken.contains(pool)) {
                taken.extend(written);
            }
        }
        if taken.len() == before {
            return taken;
        }
    }
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

/// Recovers one guest whose process has ended, in a store that is open (see [`crate::guests`]).
/// Returns, if its logs are empty now, those that it lists and whose headers are its own: no other
/// process could have written them. If not, the guest stays in the catalog. Nothing is recorded
/// here. No other code of this process maps what this function maps meanwhile.
pub(crate) fn recover_guest(
    inner: &Inner,
    control: &mut Control,
    client: Uuid,
    report: &mut OpenReport,
) -> Result<Option<Vec<PuddleRecord>>, MediumError> {
    let void = BTreeSet::new();
    let session = Session::new(inner, control, &void);
    session.client_and_its_logs(client, report)
}

/// Replays the logs of a client that were set aside, if they pass their checks now: each loses its
/// mark, by one store, and gets it again if it fails. As [`recover_guest`].
pub(crate) fn retry(
    inner: &Inner,
    control: &mut Control,
    client: Uuid,
    report: &mut OpenReport,
) -> Result<Option<Vec<PuddleRecord>>, MediumError> {
    let void = BTreeSet::new();
    let mut session = Session::new(inner, control, &void);
    session.begin(client);
    if let Err(error) = session.unmark(client) {
        session.finish()?;
        return Err(error);
    }
    session.client_and_its_logs(client, report)
}

/// Removes log puddles that are in no use. The guests that wrote them may have them mapped still,
/// so no other guest gets them.
fn drop_spare_logs(inner: &Inner, control: &mut Control) -> Result<(), MediumError> {
    let spare = core::mem::take(&mut control.logs.spare);
    let records: Vec<Record> =
        spare.iter().map(|puddle| Record::PuddleRemoved(puddle.uuid)).collect();
    if control.catalog.is_damaged() || records.is_empty() {
        return Ok(());
    }
    control.catalog.append(&records).map_err(|error| match error {
        AppendError::Undone(e) | AppendError::Unknown(e) => e,
    })?;
    for puddle in &spare {
        let file = crate::kernel::puddle::file_name(puddle.uuid);
        let _ = inner.medium.remove(crate::kernel::puddle::text(&file));
        control.space.give_back(puddle.addr, puddle.size);
    }
    Ok(())
}

/// Notes that a pool was in use when its writer ended; a loss of power says more than a dead
/// process.
fn note_dirty(control: &mut Control, pool: PoolId, kind: CrashKind) {
    let noted = control.dirty.entry(pool).or_insert(kind);
    if kind == CrashKind::Power {
        *noted = kind;
    }
}

/// Spare puddles, and log puddles that no client uses, whose files are gone, or that have moved:
/// nothing was in them, so they are reported once and forgotten. No log where it is not known which
/// are used; none at all where records were lost.
fn unused_and_missing(
    control: &Control,
    used: Option<&BTreeSet<Uuid>>,
    missing: &BTreeSet<Uuid>,
) -> Vec<PuddleRecord> {
    if control.catalog.is_damaged() {
        return Vec::new();
    }
    let unused = |puddle: &&PuddleRecord| match puddle.role {
        Role::Log | Role::LogSpace => used.is_some_and(|used| !used.contains(&puddle.uuid)),
        Role::Spare => true,
        Role::Heap | Role::Object => false,
    };
    // One that has moved says the addresses of before, and is no log for another client.
    let state = &control.catalog.state;
    let gone = |puddle: &&PuddleRecord| {
        missing.contains(&puddle.uuid)
            || (puddle.role != Role::Spare && state.due.contains_key(&puddle.uuid))
    };
    state.puddles.values().filter(gone).filter(unused).copied().collect()
}

/// Puddles that were named as missing are in the catalog no more: their places are free, and the
/// report says so.
fn forget_missing(control: &mut Control, gone: Vec<PuddleRecord>, report: &mut OpenReport) {
    for puddle in gone {
        control.space.give_back(puddle.addr, puddle.size);
        for damage in &mut report.damage {
            if let Damage::Puddle { uuid, detail, .. } = damage
                && *uuid == puddle.uuid
            {
                let what =
                    if puddle.role == Role::Spare { "nothing" } else { "no log that is in use" };
                *detail =
                    format!("its file is missing; {what} was in it, and its record was removed");
            }
        }
    }
}

/// Whether the last session's acknowledgements cover a loss of power.
fn covered(inner: &Inner, control: &Control) -> bool {
    control.superblock.durability == DURABILITY_POWER && inner.info.durability == Durability::Power
}

/// One recovery.
struct Session<'a> {
    inner: &'a Inner,
    control: &'a mut Control,
    by_addr: BTreeMap<u64, PuddleRecord>,
    verified: BTreeMap<(Uuid, Option<u64>), Option<String>>,
    /// Mapped by recovery.
    mapped: BTreeSet<Uuid>,
    /// Pools that went back to their last psync.
    void: &'a BTreeSet<PoolId>,
    /// Of the client in hand.
    client: Uuid,
    pools: BTreeSet<PoolId>,
    /// How far its logs have moved since they were written.
    moved: Option<u64>,
    segments: BTreeMap<u64, PuddleRecord>,
    /// All puddles that its log space lists, and the catalog knows.
    listed: Vec<PuddleRecord>,
}

impl<'a> Session<'a> {
    fn new(inner: &'a Inner, control: &'a mut Control, void: &'a BTreeSet<PoolId>) -> Self {
        let by_addr = control.catalog.state.puddles.values().map(|p| (p.addr, *p)).collect();
        Self {
            inner,
            control,
            by_addr,
            verified: BTreeMap::new(),
            mapped: BTreeSet::new(),
            void,
            client: Uuid::NIL,
            pools: BTreeSet::new(),
            moved: None,
            segments: BTreeMap::new(),
            listed: Vec::new(),
        }
    }

    /// Replays the logs of one client and ends the recovery; the log puddles that are its own
    /// beyond doubt, if all are empty now.
    fn client_and_its_logs(
        mut self,
        client: Uuid,
        report: &mut OpenReport,
    ) -> Result<Option<Vec<PuddleRecord>>, MediumError> {
        let verdict = self.client(client, CrashKind::Process, report);
        let own = self.own_logs(client);
        // Whatever became of it.
        self.finish()?;
        Ok((verdict? == Verdict::Done).then_some(own?))
    }

    /// Of what the log space lists, the log puddles whose headers are this client's.
    fn own_logs(&mut self, client: Uuid) -> Result<Vec<PuddleRecord>, MediumError> {
        let mut own = Vec::new();
        for record in core::mem::take(&mut self.listed) {
            let Ok(body) = sorted(self.log_body(&record))? else { continue };
            // SAFETY: mapped just now; what a process that is not ended writes there meanwhile is
            // checked as what it wrote before.
            let header = read::<LogHeader>(unsafe { body.bytes() }, false);
            if header.is_ok_and(|header| header.owner == client) {
                own.push(record);
            }
        }
        Ok(own)
    }

    /// Takes the marks "set aside" from a client's logs.
    fn unmark(&mut self, client: Uuid) -> Result<(), MediumError> {
        let Some(space) = self.control.catalog.state.clients.get(&client).copied() else {
            return Ok(());
        };
        let Ok(listed) = sorted(self.read_space(client, space))? else { return Ok(()) };
        for entry in listed.entries.iter().filter(|entry| entry.state == ENTRY_HEAD) {
            let known = self.listed_puddle(entry);
            let Ok(body) = sorted(self.head(entry, known))? else { continue };
            // SAFETY: mapped for writing, and recovery alone uses it.
            let state = unsafe { body.state() };
            if state.load(AtomicOrdering::Acquire) == LOG_QUARANTINED {
                state.store(0, AtomicOrdering::Release);
                // SAFETY: the word lies in the log's body, which is mapped.
                unsafe { self.inner.persistence.flush(core::ptr::from_ref(state).cast(), 8) };
                self.inner.persistence.fence();
            }
        }
        Ok(())
    }

    fn map(&mut self, record: &PuddleRecord) -> Result<NonNull<Puddle>, MediumError> {
        let mode = if self.inner.writable { MapMode::ReadWrite } else { MapMode::PrivateCopy };
        let puddle = self.inner.own(self.control, *record, mode);
        // SAFETY: puddles live until the store is dropped. Recovery alone uses it, until `finish`,
        // and asks `lost`.
        unsafe {
            if self.mapped.insert(record.uuid) {
                self.inner.watch(puddle.as_ref(), Watcher::Recovery);
            }
            puddle.as_ref().map(&self.inner.medium)?;
        }
        Ok(puddle)
    }

    /// A puddle of which a page was lost since it was mapped, and the page: then what was read of
    /// it may be other bytes, and what was stored there is not in the file.
    fn lost(&self) -> Option<(Uuid, u64)> {
        self.mapped.iter().find_map(|uuid| {
            // SAFETY: puddles live until the store is dropped.
            let puddle = unsafe { self.control.puddles.get(uuid)?.as_ref() };
            Some((*uuid, puddle.notice.lost()?))
        })
    }

    /// The body of a log puddle of this store, if it is sound.
    fn log_body(&mut self, record: &PuddleRecord) -> Result<Body, Problem> {
        if let Some(problem) = self.problem(record)? {
            return Err(problem.into());
        }
        let puddle = self.map(record)?;
        // SAFETY: puddles live until the store is dropped.
        let body = crate::kernel::logs::body_of(unsafe { puddle.as_ref() });
        if body.len < Body::LEN_MIN { Err("it is too small for a log".into()) } else { Ok(body) }
    }

    /// Replays the logs of one client.
    fn client(
        &mut self,
        client: Uuid,
        crash: CrashKind,
        report: &mut OpenReport,
    ) -> Result<Verdict, MediumError> {
        self.begin(client);
        if !planted(Bug::VoidLogReplayed) {
            self.pools.retain(|pool| !self.void.contains(pool));
        }
        self.segments.clear();
        self.listed.clear();
        let pools: Vec<PoolId> = self.pools.iter().copied().collect();
        let Some(space) = self.control.catalog.state.clients.get(&client).copied() else {
            return Ok(Verdict::Done); // leases only: it never ran a transaction
        };
        let listed = match sorted(self.read_space(client, space))? {
            Ok(listed) => listed,
            Err(detail) => {
                report.damage.push(Damage::LogSpace { client, puddle: space, detail, pools });
                return Ok(Verdict::Stays(self.pools.clone()));
            }
        };
        let mut concerned: Option<BTreeSet<PoolId>> = None;
        if let Some(index) = listed.damaged {
            // The other logs are replayed all the same.
            let detail = format!("entry {index} is damaged: the log that it named is not known");
            report.damage.push(Damage::LogSpace {
                client,
                puddle: space,
                detail,
                pools: pools.clone(),
            });
            concerned = Some(self.pools.clone());
        }
        let mut heads = Vec::new();
        for entry in listed.entries {
            let known = self.listed_puddle(&entry);
            self.listed.extend(known);
            if entry.state == ENTRY_HEAD {
                heads.push((entry, known));
            } else if let Some(known) = known {
                self.segments.insert(entry.addr, known);
            }
        }
        for (entry, record) in heads {
            let mut damaged = |detail, about: BTreeSet<PoolId>| {
                report.damage.push(Damage::Log {
                    client,
                    log_id: entry.log_id,
                    puddle: entry.puddle,
                    detail,
                    pools: about.iter().copied().collect(),
                });
                concerned.get_or_insert_default().extend(about);
            };
            let body = match sorted(self.head(&entry, record))? {
                Ok(body) => body,
                Err(detail) => {
                    damaged(detail, self.pools.clone());
                    continue;
                }
            };
            if self.is_void(body, crash)? {
                continue;
            }
            if let Some((detail, about)) = self.prepare(body, crash)? {
                damaged(detail, about);
                continue;
            }
            // SAFETY: the head is mapped for writing (privately in a read-only open) and the store
            // is locked, so that no other thread or process uses it; `Target` gives out only such
            // mappings.
            let outcome = unsafe { replay(body, crash, &mut Target(self)) };
            match &outcome {
                Outcome::Quarantined(why) => damaged(why.to_string(), self.pools.clone()),
                Outcome::AlreadyQuarantined => {
                    damaged("set aside by an earlier recovery".into(), self.pools.clone());
                }
                _ => {}
            }
            report.logs.push(LogReport {
                client,
                log_id: entry.log_id,
                puddle: entry.puddle,
                outcome,
                pools: pools.clone(),
            });
        }
        Ok(concerned.map_or(Verdict::Done, Verdict::Stays))
    }

    /// What a client's log space lists. `Err`: why nothing of it can be believed.
    fn read_space(&mut self, client: Uuid, space: Uuid) -> Result<Listed, Problem> {
        let record = self.control.catalog.state.puddles.get(&space).copied();
        let record =
            record.filter(|p| p.role == Role::LogSpace).ok_or("the catalog has no record of it")?;
        if let Some(problem) = self.problem(&record)? {
            return Err(problem.into());
        }
        let puddle = self.map(&record)?;
        // SAFETY: puddles live until the store is dropped; this one is mapped, and no thread writes
        // to it meanwhile.
        let (puddle, bytes) = unsafe {
            let puddle = puddle.as_ref();
            (
                puddle,
                core::slice::from_raw_parts(
                    puddle.body_addr() as *const u8,
                    puddle.body_len() as usize,
                ),
            )
        };
        let header = read::<LogSpaceHeader>(bytes, false)
            .map_err(|error| Problem::File(error.to_string()))?;
        if header.client != client {
            return Err(format!("it is the log space of client {}", header.client).into());
        }
        if header.capacity != crate::kernel::logs::capacity(puddle) {
            return Err(format!("it says it has room for {} entries", header.capacity).into());
        }
        let mut listed = Listed { entries: Vec::new(), damaged: None };
        let entries = bytes.get(LOG_SPACE_ENTRIES_OFFSET as usize..).unwrap_or_default();
        // From the last one back, because an entry is believed to be unfinished only if it is the
        // last.
        let mut more = false;
        for (index, bytes) in entries.chunks_exact(size_of::<LogSpaceEntry>()).enumerate().rev() {
            let Ok(entry) = LogSpaceEntry::read_from_bytes(bytes) else { continue };
            match entry.read(more) {
                Listing::Free => {}
                Listing::Names(entry) => listed.entries.push(entry),
                Listing::Damaged => listed.damaged = Some(index),
            }
            more |= !entry.is_free();
        }
        listed.entries.reverse();
        match puddle.notice.lost() {
            Some(page) => Err(lost_page(puddle.uuid(), page).into()),
            None => Ok(listed),
        }
    }

    /// The head body of a log, if its puddle is sound and its header says that it is this client's.
    fn head(
        &mut self,
        entry: &LogSpaceEntry,
        record: Option<PuddleRecord>,
    ) -> Result<Body, Problem> {
        let record = record.ok_or("the catalog has no record of its puddle")?;
        let body = self.log_body(&record)?;
        // SAFETY: mapped just now, and no thread writes to it meanwhile.
        let header = read::<LogHeader>(unsafe { body.bytes() }, false)
            .map_err(|error| Problem::File(error.to_string()))?;
        if header.owner != self.client || header.log_id != entry.log_id || header.segment != 0 {
            let (log, owner) = (header.log_id, header.owner);
            return Err(format!("its puddle holds log {log:016x} of client {owner}").into());
        }
        Ok(body)
    }

    /// Whether all that a log says is about pools that went back to their last psync: now, or when
    /// an earlier recovery ended the client's leases on them and could not read this log.
    fn is_void(&mut self, head: Body, crash: CrashKind) -> Result<bool, MediumError> {
        if crash != CrashKind::Power || planted(Bug::VoidLogReplayed) {
            return Ok(false);
        }
        self.map_segments()?;
        // SAFETY: mapped, and no thread writes to it meanwhile; so are the segments.
        let Ok(summary) =
            (unsafe { inspect(head, crash, &mut |owner, addr| self.segment_body(owner, addr)) })
        else {
            return Ok(false);
        };
        let of_heaps = summary.entries.iter().filter_map(|entry| self.record_at(entry.addr));
        let mut pools = of_heaps
            .filter(|record| record.role == Role::Heap)
            .map(|record| record.pool)
            .peekable();
        let state = &self.control.catalog.state;
        let void = |pool: PoolId| {
            self.void.contains(&pool) || (state.is_shadowed(pool) && !self.pools.contains(&pool))
        };
        Ok(pools.peek().is_some() && pools.all(void))
    }

    /// Maps all segments that the client's log space lists; why one of them cannot be used.
    fn map_segments(&mut self) -> Result<Option<String>, MediumError> {
        let mut unusable = None;
        for record in self.segments.values().copied().collect::<Vec<_>>() {
            if let Err(why) = sorted(self.log_body(&record))? {
                let segment = record.uuid;
                unusable.get_or_insert_with(|| {
                    format!("not replayed, because segment {segment} cannot be used: {why}")
                });
            }
        }
        Ok(unusable)
    }

    /// Verifies and maps all that a replay of this log will touch. If some of it cannot be used:
    /// why, and the pools that the log is about. The log is then not replayed and not touched,
    /// because replay would set it aside for good, and the puddle may come back.
    fn prepare(
        &mut self,
        head: Body,
        crash: CrashKind,
    ) -> Result<Option<(String, BTreeSet<PoolId>)>, MediumError> {
        let unusable = self.map_segments()?;
        // SAFETY: mapped, and no thread writes to it meanwhile; so are the segments.
        let summary = match unsafe {
            inspect(head, crash, &mut |owner, addr| self.segment_body(owner, addr))
        } {
            Ok(summary) => summary,
            // Damaged for want of a segment, perhaps; without one that is missing it is for replay
            // to say. It may be about any pool.
            Err(_) => return Ok(unusable.map(|why| (why, self.pools.clone()))),
        };
        let about = || {
            let records = summary.entries.iter().filter_map(|entry| self.record_at(entry.addr));
            records.map(|record| record.pool).filter(|pool| self.pools.contains(pool)).collect()
        };
        let about: BTreeSet<PoolId> =
            if planted(Bug::WaitingLogIgnored) { BTreeSet::new() } else { about() };
        for entry in &summary.entries {
            let Some(record) = self.record_at(entry.addr) else { continue };
            if !self.pools.contains(&record.pool) {
                continue; // refused by replay, whatever its state
            }
            let why = match self.problem(&record)? {
                Some(problem) => problem,
                None => match self.map(&record) {
                    Ok(_) => continue,
                    Err(error) => about_file(error)?,
                },
            };
            let state = &self.control.catalog.state;
            let name = state.pools.get(&record.pool).map_or("", |pool| &pool.name);
            let why = format!(
                "not replayed, because puddle {} of pool \"{name}\" ({}) cannot be used: {why}",
                record.index, record.uuid
            );
            return Ok(Some((why, about)));
        }
        Ok(None)
    }

    fn segment_body(&mut self, owner: Uuid, addr: u64) -> Option<Body> {
        if owner != self.client {
            return None;
        }
        let record = self.segments.get(&addr).copied()?;
        self.log_body(&record).ok()
    }

    /// Log puddles and log spaces of the clients that stay; `None` if one of them cannot be read,
    /// so that any log puddle may be theirs.
    fn used_by_others(
        &mut self,
        retired: &BTreeSet<Uuid>,
    ) -> Result<Option<BTreeSet<Uuid>>, MediumError> {
        let stay: Vec<(Uuid, Uuid)> = self
            .control
            .catalog
            .state
            .clients
            .iter()
            .filter(|(client, _)| !retired.contains(client))
            .map(|(client, space)| (*client, *space))
            .collect();
        let mut used = BTreeSet::new();
        for (client, space) in stay {
            let Ok(listed) = sorted(self.read_space(client, space))? else { return Ok(None) };
            if listed.damaged.is_some() {
                return Ok(None);
            }
            used.insert(space);
            used.extend(listed.entries.iter().map(|entry| entry.puddle));
        }
        Ok(Some(used))
    }

    /// Takes recovery's mappings away; a read-only open keeps the private pages it has replayed
    /// into, protected.
    fn finish(mut self) -> Result<(), MediumError> {
        for uuid in core::mem::take(&mut self.mapped) {
            let Some(puddle) = self.control.puddles.get(&uuid) else { continue };
            // SAFETY: puddles live until the store is dropped.
            let puddle = unsafe { puddle.as_ref() };
            self.inner.unwatch(puddle);
            if self.inner.writable || puddle.pool().0 == 0 || self.hold_moved(puddle)? {
                puddle.unmap(&self.inner.medium)?;
                continue;
            }
            if puddle.notice.lost().is_some() {
                // What took the page's place is shown to no reader.
                puddle.refuse(&self.inner.medium)?;
                continue;
            }
            let pool = pool_named(&self.control.catalog.state, puddle.pool());
            // SAFETY: the puddle's own range, mapped by this store; nothing writes to it any more.
            unsafe { puddle.close_for_stores(&pool) }?;
        }
        Ok(())
    }
}

/// Why what was read is not believed, and what was written is not relied on.
fn lost_page(puddle: Uuid, page: u64) -> String {
    format!(
        "page {page} of puddle {puddle} was lost while it was read: its file was cut short, or its \
         disk fails"
    )
}

/// What a log space lists.
struct Listed {
    /// Sound entries.
    entries: Vec<LogSpaceEntry>,
    /// Number of a damaged entry, if there is one.
    damaged: Option<usize>,
}
