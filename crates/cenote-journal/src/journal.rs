//! Keeps the journal of an open store: appends records of psyncs and makes them durable.
//!
//! The front page of `cenote-object` has the states and the argument. This module adds threads:
//!
//! * *Appending* is under the lock: the records in the file are a prefix of those that callers
//!   have.
//! * *Group commit.* A caller that needs a record durable and finds no sync running becomes the
//!   leader. It notes how far records are written and syncs without the lock; then all records up
//!   to there are durable. Other callers wait, and look again.
//! * *Applying* is queued: [`crate::apply`].
//! * *A half is reused* when (a) the other is full, (b) all records are durable, (c) those of the
//!   half are applied, (d) the primaries that they changed are synced, and (e) the header says that
//!   these records are trimmed: **its sync commits the trim**. Without (e), a torn first record
//!   would leave a gap before those of the other half. The background thread does (d) and (e) as
//!   soon as a half is full; a psync that needs the space earlier does them itself.
//! * *The store's other journal* learns what is durable, and names it ([`crate::ties`]).
//!
//! No thread waits for one that waits for it: a psync that has appended ends without needing space.

mod trim;

use crate::apply_queue::Queued;
use crate::file::{mark, new_header, replace, write_header};
use crate::record::{Draft, Read, RecordPlace, read};
use crate::room::Room;
use crate::roots::{Root, Roots};
use crate::scan::JournalScan;
use crate::{Changes, Guard, JournalError, Stopped, Tie};
use cenote_layout::PAGE_SIZE;
use cenote_layout::id::Uuid;
use cenote_layout::object::JournalHeader;
use cenote_layout::superblock::JournalMark;
use cenote_medium::planted::{Bug, planted};
use cenote_medium::{FileHandle, MediumError, OwnedMedium};
use std::collections::{BTreeMap, VecDeque};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};

/// A record that was appended, until it is applied.
#[derive(Debug)]
#[must_use = "the half that it lies in is reused only after `Journal::apply_later`"]
pub struct Ticket {
    /// Its number.
    pub seq: u64,
    half: usize,
    /// Where it lies in the file.
    at: u64,
}

impl Ticket {
    /// The half that its record lies in.
    pub(crate) fn half(&self) -> usize {
        self.half
    }
}

/// How an open journal works.
#[derive(Clone, Copy, Debug)]
pub struct Settings {
    /// Most bytes of each half.
    pub half_len_max: u64,
    /// Whether syncs do anything on this medium.
    pub syncs: bool,
    /// Whether a thread applies and trims.
    pub background: bool,
}

/// Where a journal lies, and whose it is.
#[derive(Clone, Debug)]
pub struct Home {
    /// The store's directory.
    pub medium: OwnedMedium,
    /// The store.
    pub store: Uuid,
    /// The journal's file.
    pub name: &'static str,
    /// Says whether the session may still acknowledge.
    pub guard: Arc<dyn Guard>,
    /// Generation of the superblock's copy that will name the session.
    pub session: u64,
    /// The ties between this journal, the store's other one and the catalog.
    pub tie: Tie,
}

impl Home {
    /// Turns a medium's error into the journal's; a failed sync poisons.
    fn failed(&self, error: MediumError) -> JournalError {
        if error.is_failed_sync() {
            self.guard.poison(&error.to_string());
        }
        error.into()
    }
}

/// The journal of a store that is open for writing.
#[derive(Debug)]
pub struct Journal {
    home: Home,
    settings: Settings,
    state: Mutex<JournalState>,
    changed: Condvar,
    /// For what other processes send.
    pub(crate) transfers: Room,
}

#[derive(Debug)]
pub(crate) struct JournalState {
    file: Arc<FileHandle>,
    header: JournalHeader,
    /// Roots of protected primaries, as what is applied left them.
    pub(crate) roots: Roots,
    /// The half that is appended to, and where.
    active: usize,
    tail: u64,
    pub(crate) halves: [Half; 2],
    /// Committed records that are not applied, in order; and whether a thread applies the first.
    pub(crate) queue: VecDeque<Arc<Queued>>,
    pub(crate) applying: bool,
    /// Memory of earlier psyncs.
    pub(crate) spare: Vec<Changes>,
    /// Last record written, its checksum, and the last one that is durable.
    written: u64,
    chain: u64,
    durable: u64,
    /// A thread syncs the journal.
    syncing: bool,
    /// The background thread shall end.
    stop: bool,
    /// How many keep it quiet ([`crate::Quiet`]): nothing is appended.
    pub(crate) quiet: u32,
    syncs: u64,
}

#[derive(Debug, Default)]
pub(crate) struct Half {
    /// Records that are not applied yet.
    pub(crate) unapplied: u64,
    /// Primaries that its records changed and that were not synced since.
    pub(crate) touched: BTreeMap<Uuid, Arc<FileHandle>>,
    /// Some of them are being synced.
    pub(crate) trimming: bool,
    /// Its last record, and that one's checksum.
    last: u64,
    chain: u64,
}

impl Half {
    fn is_free(&self) -> bool {
        self.unapplied == 0 && self.touched.is_empty() && !self.trimming
    }
}

impl JournalState {
    /// The half to be trimmed first, if one has to be.
    fn oldest_unsynced(&self) -> Option<usize> {
        [1 - self.active, self.active].into_iter().find(|number| !self.halves[*number].is_free())
    }

    /// Whether nothing of a half has to be recovered, and the header says so.
    fn is_reusable(&self, half: usize) -> bool {
        self.halves[half].is_free() && self.halves[half].last <= self.header.trimmed
    }
}

pub(crate) type Locked<'a> = MutexGuard<'a, JournalState>;

impl Journal {
    /// Makes the journal of a store that has none, with this epoch, which no journal of the store
    /// had before, and protected primaries as they are.
    ///
    /// # Errors
    /// The medium; there is none then, or a whole one.
    pub fn create(
        home: Home,
        half_len: u64,
        (epoch, roots): (u64, Roots),
        settings: Settings,
    ) -> Result<Self, JournalError> {
        let header = new_header((home.store, home.session), half_len, epoch);
        let (trimmed, [other, catalog]) = (home.tie.floor(), home.tie.to_name());
        let mut header = JournalHeader { trimmed, other, catalog, ..header };
        home.guard.check_owner()?;
        let file = replace(&home.medium, home.name, &mut header, &roots);
        let file = file.map_err(|error| home.failed(error))?;
        Ok(Self::start(home, Arc::new(file), (header, roots), settings))
    }

    /// Goes on with a journal that [`crate::scan`] has read, after its records are in the
    /// primaries, whose roots are now `roots`: a new epoch begins. **The sync of the header
    /// commits.**
    ///
    /// # Errors
    /// The medium.
    pub fn resume(
        home: Home,
        file: Arc<FileHandle>,
        (scan, roots): (&JournalScan, Roots),
        settings: Settings,
    ) -> Result<Self, JournalError> {
        let (trimmed, chain) = scan.last;
        let epoch = scan.epoch + u64::from(!planted(Bug::JournalEpochIgnored));
        let (generation, session) = (scan.header.generation + 1, home.session);
        let [other, catalog] =
            if planted(Bug::TieNotInHeader) { [0; 2] } else { home.tie.to_name() };
        let begun = generation;
        let header = JournalHeader { generation, epoch, trimmed, chain, ..scan.header };
        let mut header = JournalHeader { session, begun, other, catalog, ..header };
        home.guard.check_owner()?;
        write_header(&file, &mut header, &roots).map_err(|error| home.failed(error))?;
        Ok(Self::start(home, file, (header, roots), settings))
    }

    fn start(
        home: Home,
        file: Arc<FileHandle>,
        (header, roots): (JournalHeader, Roots),
        settings: Settings,
    ) -> Self {
        let (written, chain) = (header.trimmed, header.chain);
        home.tie.reached(written);
        Self {
            home,
            settings,
            state: Mutex::new(JournalState {
                file,
                header,
                roots,
                active: 0,
                tail: 0,
                halves: Default::default(),
                queue: VecDeque::new(),
                applying: false,
                spare: Vec::new(),
                written,
                chain,
                durable: written,
                syncing: false,
                stop: false,
                quiet: 0,
                syncs: 0,
            }),
            changed: Condvar::new(),
            transfers: Room::default(),
        }
    }

    /// Its header, as a superblock names it.
    #[must_use]
    pub fn mark(&self) -> JournalMark {
        mark(&self.lock().header)
    }

    pub(crate) fn lock(&self) -> Locked<'_> {
        // A thread that panicked under the lock left counters that are at most too cautious.
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    pub(crate) fn wait<'a>(&self, state: Locked<'a>) -> Locked<'a> {
        self.changed.wait(state).unwrap_or_else(PoisonError::into_inner)
    }

    /// Fails if nothing may be acknowledged any more.
    pub(crate) fn usable(&self) -> Result<(), JournalError> {
        Ok(self.home.guard.check()?)
    }

    /// Before a header is written.
    fn check_owner(&self) -> Result<(), JournalError> {
        self.home.guard.check_owner().map_err(|error| self.failed(error))
    }

    fn failed(&self, error: MediumError) -> JournalError {
        self.changed.notify_all();
        self.home.failed(error)
    }

    /// A primary cannot be written.
    pub(crate) fn not_copied(&self, name: String, source: Box<MediumError>) -> JournalError {
        self.home.guard.poison(&format!("{name} cannot be written: {source}"));
        self.changed.notify_all();
        JournalError::NotCopied { name, source }
    }

    #[cfg(test)]
    pub(crate) fn durable_seq(&self) -> u64 {
        self.lock().durable
    }

    pub(crate) fn notify(&self) {
        self.changed.notify_all();
    }

    /// Bytes of the file, records so far, and syncs of the journal so far.
    #[must_use]
    pub fn figures(&self) -> (u64, u64, u64) {
        let state = self.lock();
        (state.header.half(1).1, state.written, state.syncs)
    }

    /// Appends a record; it is not durable yet. If this fails there is no such record, now or after
    /// a crash.
    ///
    /// # Errors
    /// The medium: a full disk, or a failed sync, which poisons; a record that is too large.
    pub fn append(&self, draft: &Draft<'_>) -> Result<Ticket, JournalError> {
        let mut state = self.make_room(draft.total_len())?;
        let place = RecordPlace {
            seq: state.written + 1,
            epoch: state.header.epoch,
            chain: state.chain,
            durable: state.durable,
            trimmed: state.header.trimmed,
            names: self.home.tie.to_name(),
            store: self.home.store,
        };
        let at = state.header.half(state.active).0 + state.tail;
        let sum = match draft.write(&state.file, at, &place) {
            Ok(sum) => sum,
            Err(error) => {
                // All of it may have arrived. Without its head it is no record.
                let taken_back = state
                    .file
                    .write_at(at, &[0; PAGE_SIZE as usize])
                    .and_then(|()| state.file.sync());
                if let Err(worse) = taken_back {
                    self.home
                        .guard
                        .poison(&format!("a failed psync could not be taken back: {worse}"));
                }
                return Err(self.failed(error));
            }
        };
        state.tail += draft.total_len();
        (state.written, state.chain) = (place.seq, sum);
        if planted(Bug::TieEarly) {
            self.home.tie.reached(place.seq);
        }
        let active = state.active;
        state.halves[active].unapplied += 1;
        (state.halves[active].last, state.halves[active].chain) = (place.seq, sum);
        Ok(Ticket { seq: place.seq, half: active, at })
    }

    /// The state, with room for `len` bytes in the active half.
    fn make_room(&self, len: u64) -> Result<Locked<'_>, JournalError> {
        let mut state = self.lock();
        loop {
            self.usable()?;
            if state.quiet > 0 {
                state = self.wait(state);
                continue;
            }
            if state.tail + len <= state.header.half_len {
                return Ok(state);
            }
            if state.durable < state.written {
                state = self.sync_or_wait(state)?;
                continue;
            }
            let grows = len > state.header.half_len;
            let other = 1 - state.active;
            if state.halves[other].unapplied > 0
                || (grows && state.halves[state.active].unapplied > 0)
            {
                state = self.apply_or_wait(state)?;
            } else if !planted(Bug::JournalReusedEarly) && !state.is_reusable(other) {
                state = self.trim_or_wait(state, other)?;
            } else if grows {
                let active = state.active;
                if !state.is_reusable(active) {
                    state = self.trim_or_wait(state, active)?;
                } else {
                    self.grow(&mut state, len)?;
                }
            } else {
                state.active = other;
                state.tail = 0;
                // The half that is full now can be trimmed.
                self.changed.notify_all();
            }
        }
    }

    /// Replaces the file by a larger one. No primary needs anything that is in it.
    fn grow(&self, state: &mut JournalState, len: u64) -> Result<(), JournalError> {
        let limit = self.settings.half_len_max;
        if len > limit {
            return Err(JournalError::TooLarge { needed: len, limit });
        }
        let half_len =
            len.max(state.header.half_len.saturating_mul(2)).next_multiple_of(PAGE_SIZE).min(limit);
        self.check_owner()?;
        let [other, catalog] = self.home.tie.to_name();
        let mut header = JournalHeader {
            generation: state.header.generation + 1,
            half_len,
            trimmed: state.written,
            chain: state.chain,
            other,
            catalog,
            ..state.header
        };
        let file = replace(&self.home.medium, self.home.name, &mut header, &state.roots);
        let file = file.map_err(|error| self.failed(error))?;
        state.file = Arc::new(file);
        state.header = header;
        (state.active, state.tail) = (0, 0);
        Ok(())
    }

    /// Waits until a record is durable: **this commits**.
    ///
    /// # Errors
    /// A failed sync; the journal has stopped.
    pub fn make_durable(&self, ticket: &Ticket) -> Result<(), JournalError> {
        if planted(Bug::PsyncNotSynced) || planted(Bug::PsyncCommitBeforeData) {
            return Ok(());
        }
        let mut state = self.lock();
        while state.durable < ticket.seq {
            self.usable()?;
            state = self.sync_or_wait(state)?;
        }
        Ok(())
    }

    /// As [`Journal::make_durable`], for a caller that must know which it is: a record that cannot
    /// be made durable is taken back, by zeros over its head. `Ok(Some)`: not even that could be
    /// done, and the record is whole where the next opener reads it, so it counts. `Err`: it does
    /// not count.
    ///
    /// # Errors
    /// As [`Journal::make_durable`]. The store is poisoned, and the record is none.
    pub fn decide(&self, ticket: &Ticket) -> Result<Option<JournalError>, JournalError> {
        let Err(error) = self.make_durable(ticket) else { return Ok(None) };
        if matches!(error, JournalError::Stopped(Stopped::Forked)) {
            return Err(error); // the journal is the parent's
        }
        let state = self.lock();
        // Records behind it go with it: none of them was acknowledged.
        let zeros = state.file.write_at(ticket.at, &[0; PAGE_SIZE as usize]);
        let taken_back = zeros.is_ok() && state.file.sync().is_ok();
        let (_, end) = state.header.half(ticket.half);
        let counts = !taken_back
            && match read(&state.file, ticket.at, end) {
                Ok(found) => matches!(found, Read::Committed(_)),
                // The record was written, and zeros were not: the next opener finds the record.
                Err(_) => zeros.is_err(),
            };
        if counts { Ok(Some(error)) } else { Err(error) }
    }

    /// Syncs the journal, or waits for the thread that does.
    fn sync_or_wait<'a>(&'a self, mut state: Locked<'a>) -> Result<Locked<'a>, JournalError> {
        if state.syncing {
            return Ok(self.wait(state));
        }
        state.syncing = true;
        let (upto, file) = (state.written, Arc::clone(&state.file));
        drop(state);
        let synced = if self.settings.syncs { file.sync() } else { Ok(()) };
        let mut state = self.lock();
        state.syncing = false;
        state.syncs += 1;
        if let Err(error) = synced {
            return Err(self.failed(error));
        }
        state.durable = state.durable.max(upto);
        self.home.tie.reached(state.durable);
        self.changed.notify_all();
        Ok(state)
    }

    /// The root that a protected primary has to have. What is committed of it is in its file.
    ///
    /// # Errors
    /// As [`Journal::settle`].
    pub fn root_of(&self, id: Uuid) -> Result<Option<Root>, JournalError> {
        self.settle(id)?;
        Ok(self.lock().roots.get(id))
    }

    /// Notes the root of a primary that is about to be there, durably. **The sync of the header
    /// commits.**
    ///
    /// # Errors
    /// The medium.
    pub fn expect_root(&self, id: Uuid, root: Option<Root>) -> Result<(), JournalError> {
        let mut state = self.lock();
        let before = state.roots.get(id);
        if !state.roots.set(id, root) {
            return Ok(());
        }
        let (trimmed, chain) = (state.header.trimmed, state.header.chain);
        let written = self.trim(&mut state, trimmed, chain);
        if written.is_err() {
            state.roots.set(id, before);
        }
        written
    }

    /// A primary is gone, and was settled before: nothing of it needs to be synced.
    pub fn forget(&self, object: Uuid) {
        let mut state = self.lock();
        state.roots.set(object, None);
        state.halves.iter_mut().for_each(|half| drop(half.touched.remove(&object)));
    }
}
