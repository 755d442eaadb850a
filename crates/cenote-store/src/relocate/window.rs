//! Moves a store whose window is taken in this process into another one: its puddles move there, by
//! the machinery of pools that move.
//!
//! # States of an open for writing at a distance
//!
//! All that the medium says is about the *home* window: catalog, logs, pointers. Nothing can be
//! mapped there. A free window of this process is reserved instead, and every puddle is mapped at
//! one *distance* from its address ([`crate::kernel::puddles::window::StoreWindow::distance`]).
//!
//! 1. *Recovered.* Recovery is that of any open. A log entry says an address at home; replay looks
//!    that up in the catalog, as always, and stores at the distance. What it restores are bytes
//!    that lead home, into puddles that lead home. No program has a handle yet, so no pointer is
//!    followed.
//! 2. *Settled.* The superblock says "open". Pools in shadowed mode are psynced, leased pools
//!    synced, the journal trimmed: nothing is left anywhere that speaks of old contents at a place
//!    in a file. A puddle of an earlier move whose file a crash left between two states is brought
//!    to one of them.
//! 3. *Moved.* One batch says the window, the new address of every puddle, that each puddle of a
//!    pool is pending, and that logs and spare puddles are gone (the logs are empty): **the
//!    catalog's batch commits**. No file of a pool was touched.
//! 4. The files of logs and spare puddles are removed. What a crash leaves of them are orphans.
//!
//! A crash before 3 leaves a store at home, recovered or to be recovered, for its next opener;
//! after 3 a store in its new window, in which every puddle is pending. Each is rewritten when it
//! is first touched ([`crate::relocate`]).
//!
//! # A puddle that is pending already
//!
//! Its pointers are those of before an earlier relocation. It becomes pending of *both*: the
//! earlier moves, each led on by the distance, and the distance for all else that leads into the
//! home window ([`and_window`], which has the argument for puddles that were being rewritten in
//! their files). So a window may move again and again before a puddle is touched.
//!
//! # A puddle that is damaged
//!
//! The file of a puddle may be gone or damaged. The puddle moves as the others do, by its record
//! alone; what its header says need not be known ([`crate::relocate`]). Its pool is refused then,
//! as at home, and opens when the file is back as it was before the move. A protected pool stays
//! sealed as before until then: its root puddle is sealed anew when all are there. The lists of
//! puddles and of roots show whether that file is an older one, as at home: the new root names the
//! one that it replaces.
//!
//! # What waits
//!
//! *A puddle that is pending holds what it held at home, and its header says where that was.* So
//! all records of addresses at home stay true of it, as long as it is not rewritten:
//!
//! * *Logs that are set aside, or wait* for a damaged file or a decision. They keep their client
//!   record, their leases and their files. In the batch each becomes pending, too: its
//!   `PendingRewrite` says where it was when it was written, after any number of moves, and is
//!   never carried out. From that, recovery knows how far it has moved, and replays it where its
//!   puddles are now (`recovery/files.rs`). No puddle of a pool that such a client has a lease on
//!   is rewritten by a writer: the pool is refused ([`crate::relocate`], `waits`). When the last
//!   log is applied or discarded, the batch that ends the client ends that, and the pool is pending
//!   as any.
//! * *Psyncs that are kept* for a damaged primary ([`crate::kept`]) are written into it when it is
//!   back, at their offsets, before it is rewritten.
//! * *A pool to be traced, or that a loss of power may have torn*, keeps that mark. Which of its
//!   blocks are allocated is not known before it is traced, so pointers are rewritten in all of
//!   them, marked or not ([`crate::kernel::interface::rewriter::RewriteJob::all_blocks`]).
//!
//! States of a log that waits: (1) at home; (2) moved, from the batch of step 3 on, once or often;
//! (3) ended, with its client, by the batch of recovery or of a decision; (4) its puddles are
//! removed by the next recovery, because their headers are of another address. A crash leaves one
//! of them.
//!
//! # Objects
//!
//! What an object holds is right at any address. It moves with its record, and its file stays as it
//! is: so does the stamp that the catalog names for it.
//!
//! # What keeps a store at home
//!
//! * lost records of the catalog;
//! * a journal of pools that is refused;
//! * clients of a daemon that live;
//! * a pool in shadowed mode on which a session that ended still has a lease. Its shadow has more
//!   than its primary: a psync could make half a transaction durable, and rewriting would make one
//!   puddle's primary newer than another's;
//! * a protected pool that is partly pending (its root puddle has room for the key of one earlier
//!   state), or pending with a file that was damaged since, which may have been sealed anew.
//!
//! The open fails and says which ([`OpenError::WindowStays`]).
//!
//! # An open for reading
//!
//! The same records are applied in memory, and no file is written. Private pages into which
//! recovery has replayed a log, or laid a journal, are kept as images from which the puddle is
//! rewritten when it is touched. What keeps a writer at home does not keep a reader: it follows no
//! log.
//!
//! # What is not promised
//!
//! Pointers from other stores into this one, addresses in objects, and words that only a program
//! knows to be pointers lead where they led. A program that has such words opens with
//! [`WindowPolicy::Fixed`].

use super::what_keeps::{name_of, what_keeps};
use crate::kernel::catalog::CatalogState;
use crate::kernel::interface::error::{OpenError, StoreError};
use crate::kernel::interface::options::{OpenOptions, WindowPolicy};
use crate::kernel::interface::report::OpenReport;
use crate::kernel::puddles::place;
use crate::kernel::puddles::puddle::{DIR, Puddle, file_name, primary_name, text};
use crate::kernel::puddles::verify::verify_all;
use crate::kernel::puddles::window::{Space, who_is_at};
use crate::kernel::store::{Control, Inner};
use crate::pending_rewrite::replace::{NewFile, copy};
use crate::pending_rewrite::{FoundRewrite, look_at_len};
use crate::sealed_files::file_len;
use cenote_layout::SLOT_SIZE;
use cenote_layout::catalog::{
    AtRest, PendingRewriteRecord, PuddleRecord, RELOCATION_MOVES_MAX, Record, RelocationRecord,
};
use cenote_layout::id::{PoolId, Uuid};
use cenote_layout::moves::and_window;
use cenote_layout::puddle::Role;
use cenote_layout::superblock::{INCOMPAT_WAITING_MOVED, INCOMPAT_WINDOW_MOVED, Superblock};
use cenote_medium::planted::{Bug, planted};
use cenote_medium::{FileHandle, Medium, MediumError};
use std::collections::BTreeMap;

/// How often a free window is looked for, if another thread takes it each time.
const ATTEMPTS: u32 = 16;

/// Where a store is opened.
#[derive(Clone, Copy, Debug)]
pub(crate) struct WindowPlace {
    pub(crate) base: u64,
    pub(crate) len: u64,
    /// What is to be added to an address of the catalog.
    pub(crate) distance: u64,
}

/// Base and bytes of the window that the medium says.
pub(crate) fn home(state: &CatalogState, block: &Superblock) -> (u64, u64) {
    state.window.unwrap_or((block.window_base, block.window_len))
}

/// Reserves a window for a store: its own, or another one if that is taken and the store may move.
/// `stays`: why it may not.
pub(crate) fn reserve(
    medium: &dyn Medium,
    uuid: Uuid,
    (base, len): (u64, u64),
    (options, writable): (&OpenOptions, bool),
    stays: Option<&str>,
) -> Result<WindowPlace, OpenError> {
    let path = || medium.describe().path;
    let failed = |source| OpenError::Medium { path: path(), source: Box::new(source) };
    let longer = options.window_len_min.checked_next_multiple_of(SLOT_SIZE).unwrap_or(u64::MAX);
    let wanted = if writable && stays.is_none() { len.max(longer) } else { len };
    match medium.reserve_window(base, wanted) {
        Ok(()) => return Ok(WindowPlace { base, len: wanted, distance: 0 }),
        Err(MediumError::WindowTaken { .. }) => {}
        Err(error) => return Err(failed(error)),
    }
    let by = || who_is_at(base, wanted);
    if options.window == WindowPolicy::Fixed || options.relocation.rewriter.is_none() {
        return Err(OpenError::WindowTaken { path: path(), base, len: wanted, by: by() });
    }
    let stay = |why: &str| OpenError::WindowStays {
        path: path(),
        base,
        len: wanted,
        by: by(),
        why: why.into(),
    };
    if let Some(why) = stays {
        return Err(stay(why));
    }
    for _ in 0..ATTEMPTS {
        // Clear of its home, so that an address tells whether it is old.
        let Some(other) = place::choose(medium, uuid, wanted, &[(base, len.max(wanted))]) else {
            break;
        };
        match medium.reserve_window(other, wanted) {
            Ok(()) => {
                return Ok(WindowPlace {
                    base: other,
                    len: wanted,
                    distance: other.wrapping_sub(base),
                });
            }
            Err(MediumError::WindowTaken { .. }) => {}
            Err(error) => return Err(failed(error)),
        }
    }
    Err(stay("no other window is free in this process"))
}

/// Why a window did not move.
enum Failed {
    Stays(String),
    Store(StoreError),
}

impl From<StoreError> for Failed {
    fn from(error: StoreError) -> Self {
        Self::Store(error)
    }
}

impl From<MediumError> for Failed {
    fn from(error: MediumError) -> Self {
        Self::Store(error.into())
    }
}

/// The records that a move of the window makes, and the puddles that it does without.
struct WindowPlan {
    records: Vec<Record>,
    gone: Vec<PuddleRecord>,
}

impl Inner {
    /// Steps 2 to 4, if this session has the store in another window than the medium says, or in a
    /// longer one.
    pub(crate) fn move_home(&self, report: &mut OpenReport) -> Result<(), OpenError> {
        let mut guard = self.control();
        let control = &mut *guard;
        let (base, len) = home(&control.catalog.state, &control.superblock);
        let here = (self.window.base(), self.window.len());
        if (base, len) == here {
            return self.keep_kept(control).map_err(|error| OpenError::Medium {
                path: self.info.path.clone(),
                source: Box::new(error),
            });
        }
        let moved = match (self.window.distance(), self.writable) {
            (0, _) => self.lengthen(control),
            (_, true) => self.move_written(control, (base, len)),
            (_, false) => self.move_in_memory(control, (base, len)),
        };
        match moved {
            Ok(()) => {
                report.window_moved_from = (base != here.0).then_some(base);
                place::note(&*self.medium, here.0, here.1);
                Ok(())
            }
            Err(Failed::Store(StoreError::Medium(error))) => {
                Err(OpenError::Medium { path: self.info.path.clone(), source: Box::new(error) })
            }
            Err(failed) => {
                let (path, by) = (self.info.path.clone(), who_is_at(base, len));
                let why = match failed {
                    Failed::Stays(why) => why,
                    Failed::Store(error) => error.to_string(),
                };
                Err(OpenError::WindowStays { path, base, len, by, why })
            }
        }
    }

    /// The window is as long as this session has it: **the catalog's batch commits**. No puddle
    /// moves.
    fn lengthen(&self, control: &mut Control) -> Result<(), Failed> {
        self.announce(control, INCOMPAT_WINDOW_MOVED)?;
        let (base, len) = (self.window.base(), self.window.len());
        Ok(self.commit(control, &[Record::Window { base, len }])?)
    }

    /// Steps 2 to 4.
    fn move_written(&self, control: &mut Control, home: (u64, u64)) -> Result<(), Failed> {
        if let Some(why) = what_keeps(control) {
            return Err(Failed::Stays(why));
        }
        self.record_done(control)?;
        crate::psync::psync_leased(self, control)?;
        self.sync_leased(control)?;
        let state = &control.catalog.state;
        if state.pools.keys().any(|pool| state.is_shadowed(*pool)) && !planted(Bug::MovedNotTrimmed)
        {
            self.pool_journal(control)?.trim_all().map_err(StoreError::from)?;
        }
        let plan = self.plan_move(control, home)?;
        self.commit_move(control, plan)
    }

    fn commit_move(&self, control: &mut Control, plan: WindowPlan) -> Result<(), Failed> {
        let waits = match waits_at_home(&control.catalog.state, &plan.records) {
            true => INCOMPAT_WAITING_MOVED,
            false => 0,
        };
        self.announce(control, INCOMPAT_WINDOW_MOVED | waits)?;
        self.commit(control, &plan.records)?;
        self.arrive(control, |_| true);
        control.logs.spare.clear();
        for record in &plan.gone {
            // What is left are orphans, which the next writable open removes.
            let _ = self.medium.remove(text(&file_name(record.uuid)));
        }
        if !plan.gone.is_empty() {
            self.medium.sync_dir(DIR)?;
        }
        Ok(())
    }

    /// A planted fault: the window moves, and logs go, before anything is recovered.
    pub(crate) fn move_before_recovery(&self, control: &mut Control) {
        let home = home(&control.catalog.state, &control.superblock);
        if let Ok(plan) = self.plan_move(control, home) {
            let _ = self.commit_move(control, plan);
        }
    }

    /// The same in memory, for a store that may only be looked at.
    fn move_in_memory(&self, control: &mut Control, home: (u64, u64)) -> Result<(), Failed> {
        let state = &control.catalog.state;
        if state.at_rest.keys().next().is_some() {
            self.frontier().keep_patches(self.patches_if_any(control)?);
        }
        let plan = self.plan_move(control, home)?;
        if planted(Bug::MovedByReader) {
            self.commit(control, &plan.records)?;
        } else {
            plan.records.iter().for_each(|record| control.catalog.state.apply(record));
        }
        // SAFETY: puddles live until the store is dropped.
        for puddle in control.puddles.values().map(|puddle| unsafe { puddle.as_ref() }) {
            if puddle.is_mapped() && puddle.role().is_of_pool() {
                // SAFETY: mapped, readable, and no thread stores into it: recovery has closed it.
                unsafe { self.frontier().hold_mapped(puddle) }?;
            }
        }
        // One that is not mapped stays: it knows which file it shows.
        self.arrive(control, Puddle::is_mapped);
        Ok(())
    }

    /// A reader lays kept psyncs over protected puddles that are pending.
    fn keep_kept(&self, control: &Control) -> Result<(), MediumError> {
        if self.writable || control.catalog.state.kept.is_empty() {
            return Ok(());
        }
        match self.patches_if_any(control) {
            Ok(patches) => self.frontier().keep_patches(patches),
            Err(StoreError::Medium(error)) => return Err(error),
            // An open of a protected pool says so.
            Err(_) => {}
        }
        Ok(())
    }

    /// The catalog says where everything is now.
    fn arrive(&self, control: &mut Control, goes: impl Fn(&Puddle) -> bool) {
        // SAFETY: puddles live until the store is dropped.
        let known = control.puddles.values().map(|puddle| unsafe { puddle.as_ref() });
        let known: Vec<PuddleRecord> = known.filter(|p| goes(p)).map(|p| *p.record()).collect();
        for record in known {
            self.let_go(control, &record);
        }
        let pools: Vec<PoolId> = control.catalog.state.pools.keys().copied().collect();
        pools.into_iter().for_each(|pool| self.forget_parts(pool));
        self.window.arrived();
        control.space = Space::new(self.window.base(), self.window.len());
        for puddle in control.catalog.state.puddles.values() {
            control.space.occupy(puddle.addr, puddle.size);
        }
    }

    /// What the batch says.
    fn plan_move(&self, control: &Control, home: (u64, u64)) -> Result<WindowPlan, Failed> {
        let state = &control.catalog.state;
        let distance = self.window.distance();
        let mut composed = Composed { home, distance, known: BTreeMap::new() };
        // Pools that are protected, and whether they are still as an earlier relocation found them.
        let mut sealed: BTreeMap<PoolId, bool> = BTreeMap::new();
        let (mut done, mut records, mut dues, mut gone) =
            (Vec::new(), Vec::new(), Vec::new(), Vec::new());
        for puddle in state.puddles.values() {
            let is_log = matches!(puddle.role, Role::Log | Role::LogSpace);
            if puddle.role == Role::Spare || (is_log && !is_waiting(control, puddle)) {
                gone.push(*puddle);
                continue;
            }
            let addr = puddle.addr.wrapping_add(distance);
            records.push(Record::Puddle(PuddleRecord { addr, ..*puddle }));
            if is_log {
                dues.push(composed.of_log(self, state, puddle)?);
            }
            if !puddle.role.is_of_pool() {
                continue;
            }
            let protected = state.is_protected(puddle.pool);
            let (from, generation, relocation) = match state.pending.get(&puddle.uuid) {
                None => (puddle.addr, self.generation_to_be(puddle)?, None),
                Some(pending) => match self.settle_due(control, puddle, pending)? {
                    FoundRewrite::New => {
                        done.push(Record::Relocated(puddle.uuid));
                        (puddle.addr, pending.generation + 1, None)
                    }
                    // Its root puddle may have been sealed anew, so that others need its key.
                    FoundRewrite::Damaged(detail)
                        if self.writable && protected && !pending.is_unknown() =>
                    {
                        return Err(Failed::Stays(detail));
                    }
                    _ => (pending.from, pending.generation, Some(pending.relocation)),
                },
            };
            if protected
                && *sealed.entry(puddle.pool).or_insert(relocation.is_some())
                    != relocation.is_some()
            {
                return Err(Failed::Stays(format!(
                    "pool {} is protected at rest and has moved in part: finish that first",
                    name_of(state, puddle.pool)
                )));
            }
            let relocation = composed.of(self, state, relocation)?;
            dues.push(PendingRewriteRecord { puddle: puddle.uuid, relocation, from, generation });
        }
        let relocations = composed.known.into_values().map(Record::Relocation);
        let mut all: Vec<Record> = done.into_iter().chain(relocations).chain(records).collect();
        let forgotten = |_: &PendingRewriteRecord| !planted(Bug::MovedNotPending);
        all.extend(dues.into_iter().filter(forgotten).map(Record::PendingRewrite));
        all.extend(gone.iter().map(|puddle| Record::PuddleRemoved(puddle.uuid)));
        if !planted(Bug::MovedObjectUnsealed) {
            all.extend(state.stamps_of_objects());
        }
        all.push(Record::Window { base: self.window.base(), len: self.window.len() });
        Ok(WindowPlan { records: all, gone })
    }

    /// The generation of a puddle that moves now; 0 where its header cannot be read, or is
    /// another's. Its pool is refused when it is opened, until the file is back.
    fn generation_to_be(&self, puddle: &PuddleRecord) -> Result<u64, Failed> {
        match self.generation_of(puddle) {
            Ok(generation) => Ok(generation + 1),
            Err(StoreError::Medium(error)) if error.is_passing() => Err(error.into()),
            Err(StoreError::PuddleDamaged(_) | StoreError::Medium(_)) => {
                Ok(if planted(Bug::GenerationGuessed) { 2 } else { 0 })
            }
            Err(error) => Err(error.into()),
        }
    }

    /// What the file of a puddle is that an earlier relocation left pending. A writer brings what
    /// is between two states to one, and makes a state that the next batch relies on durable.
    fn settle_due(
        &self,
        control: &Control,
        puddle: &PuddleRecord,
        pending: &PendingRewriteRecord,
    ) -> Result<FoundRewrite, Failed> {
        let state = &control.catalog.state;
        let at_rest = state.at_rest(puddle.pool);
        let own = file_name(puddle.uuid);
        let store = (self.uuid, self.writable);
        // SAFETY: puddles live until the store is dropped.
        let known = control.puddles.get(&puddle.uuid).map(|known| unsafe { known.as_ref() });
        if known.is_some_and(Puddle::shows_primary) {
            return Ok(self.look_at(primary_name(puddle.uuid), puddle, pending)?);
        }
        let Some(len) = file_len(puddle, at_rest) else {
            return Ok(FoundRewrite::Damaged(
                "the catalog gives it a size that no puddle has".into(),
            ));
        };
        let mut found = look_at_len(&self.medium, text(&own), store, (puddle, len), pending)?;
        // One whose generation is not known is as it was.
        if !self.writable || pending.is_unknown() {
            return Ok(found);
        }
        let direct = !state.is_shadowed(puddle.pool);
        if found == FoundRewrite::Old && direct {
            let old = PuddleRecord { addr: pending.from, ..*puddle };
            let before = Some(pending.generation.saturating_sub(1));
            let begun =
                verify_all(&self.medium, text(&own), (&old, len), self.uuid, true, (before, None))?;
            // All words were durable before the first one of the header.
            found = if begun.is_some() { FoundRewrite::New } else { FoundRewrite::Old };
        } else if found == FoundRewrite::Old
            && at_rest == AtRest::None
            && self.look_at(primary_name(puddle.uuid), puddle, pending)? == FoundRewrite::New
        {
            self.shadow_from_primary(puddle)?;
            found = FoundRewrite::New;
        }
        if found == FoundRewrite::New {
            let header = (direct && self.options.hosting.is_none()).then_some(pending.generation);
            self.keep_new(puddle, header)?;
        }
        Ok(found)
    }

    /// The primary is rewritten and the shadow is not: it becomes what the primary is, by its name.
    fn shadow_from_primary(&self, puddle: &PuddleRecord) -> Result<(), MediumError> {
        let (own, primary) = (file_name(puddle.uuid), primary_name(puddle.uuid));
        let primary = FileHandle::open(&self.medium, text(&primary))?;
        let new = NewFile::create(&self.medium, (DIR, text(&own)), puddle.size)?;
        copy(&primary, &new.open()?, 0, puddle.size)?;
        new.take_name(&[])
    }
}

/// Whether a log, or a log space, may be one of a client that stays.
fn is_waiting(control: &Control, puddle: &PuddleRecord) -> bool {
    let mut clients = control.catalog.state.clients.keys();
    clients.any(|client| *client != control.client)
        && !planted(Bug::MovedBeforeRecovery)
        && control.logs.spare.iter().all(|spare| spare.uuid != puddle.uuid)
}

/// Whether programs that know nothing of what waits would misread a store that these records move.
fn waits_at_home(state: &CatalogState, records: &[Record]) -> bool {
    let misread = |pending: &PendingRewriteRecord| {
        let of = state.puddles.get(&pending.puddle);
        of.is_some_and(|of| {
            !of.role.is_of_pool() || pending.is_unknown() && state.is_protected(of.pool)
        })
    };
    !state.kept.is_empty()
        || records
            .iter()
            .any(|record| matches!(record, Record::PendingRewrite(pending) if misread(pending)))
}

/// What earlier relocations and the move of the window come to.
struct Composed {
    home: (u64, u64),
    distance: u64,
    /// By the earlier one; `None`: the move of the window alone.
    known: BTreeMap<Option<Uuid>, RelocationRecord>,
}

impl Composed {
    /// A log keeps what its header says, however often it moves, and is never rewritten.
    fn of_log(
        &mut self,
        inner: &Inner,
        state: &CatalogState,
        log: &PuddleRecord,
    ) -> Result<PendingRewriteRecord, Failed> {
        let from = state.pending.get(&log.uuid).map_or(log.addr, |pending| pending.from);
        let relocation = self.of(inner, state, None)?;
        Ok(PendingRewriteRecord { puddle: log.uuid, relocation, from, generation: 0 })
    }

    fn of(
        &mut self,
        inner: &Inner,
        state: &CatalogState,
        before: Option<Uuid>,
    ) -> Result<Uuid, Failed> {
        if let Some(known) = self.known.get(&before) {
            return Ok(known.id);
        }
        let earlier = match before {
            None => None,
            Some(id) => {
                let lost = || Failed::Stays("the catalog has lost where a puddle came from".into());
                Some(state.relocations.get(&id).ok_or_else(lost)?)
            }
        };
        let (moves, pools) =
            earlier.map_or((&[][..], Vec::new()), |known| (&known.moves, known.pools.clone()));
        let moves = and_window(moves, self.home, self.distance);
        if moves.len() > RELOCATION_MOVES_MAX {
            return Err(Failed::Stays(format!(
                "it has moved in more than {RELOCATION_MOVES_MAX} pieces since a puddle was touched"
            )));
        }
        let id = inner.random_uuid()?;
        self.known.insert(before, RelocationRecord { id, moves, pools });
        Ok(id)
    }
}
