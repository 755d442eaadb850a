//! Who is there, and what happens when they are not any more.
//!
//! A session is *attached* while a connection serves it, and *detached* when its connection was closed without a goodbye. One thread, the undertaker, waits for the
//! processes of detached sessions to end (their pidfds become readable) and ends their sessions in the store, which replays their logs.
//!
//! ```text
//! attached --connection closed--> detached --process ended--> ending (logs replayed) --> gone
//!     |  ^----same process, Hello{resume}----|                 |   ^
//!     '------goodbye-------------------------------------------|   |
//!                                     the store could not do it|   |it is time to try again
//!                                                              '-> failed
//! ```
//!
//! A process has ended too, as far as its session goes, when the program that began the session is
//! gone: by `exec` ([`crate::images`]). The undertaker asks for that when a client hangs up, when
//! another client wants what the session has, and now and then.
//!
//! **Each session is ended by one at a time**: whoever claims it. The entry stays, as *ending*, until the store is done: so a pool that the dead could write is in use until then, and
//! whoever asks for it waits.
//!
//! **An end that fails is tried again**, by the undertaker: soon, then later and later, but at least every [`RETRY_MAX`]. The disk may be full, or the daemon short of descriptors; until it is done the
//! dead client's pools and locks stay its own. Only where the store itself is of no use any more, because a sync has failed, there is nothing to be tried: the daemon ends with an error, and the next one
//! recovers from what is on the medium.

use crate::images::{Images, Sign};
use crate::imports::Imports;
use crate::log::say;
use crate::parcels::Parcels;
use crate::server::Shared;
use cenote_layout::catalog::{GuestRecord, LeaseRecord};
use cenote_layout::id::Uuid;
use cenote_log::Outcome;
use cenote_proto::{Channel, ClientState};
use cenote_store::{GuestEnd, LogReport, Store, StoreError};
use cenote_sys::peer::{self, Peer};
use rustix::event::{EventfdFlags, Timespec, epoll};
use std::collections::HashMap;
use std::io;
use std::os::fd::{AsFd, OwnedFd};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

/// How soon an end that failed is tried again; four times that the next time.
const RETRY_FIRST: Duration = Duration::from_millis(10);
/// How late at most.
const RETRY_MAX: Duration = Duration::from_secs(20);
/// How often programs of detached sessions are looked for.
const LOOK_EVERY: Duration = Duration::from_millis(250);
/// The token of the descriptor that wakes the undertaker; sessions have others.
const WAKE: u64 = 0;

/// A session's process and counters.
#[derive(Debug)]
pub(crate) struct Session {
    pub(crate) client: Uuid,
    pub(crate) pid: u32,
    pub(crate) uid: u32,
    pub(crate) start_ticks: u64,
    /// Since when this daemon knows it.
    pub(crate) known: Instant,
    /// The process; `None` if it was gone before it could be held.
    process: Option<OwnedFd>,
    /// What tells whether its program is gone.
    sign: Sign,
    /// The connection that serves it.
    line: Mutex<Option<Arc<Channel>>>,
    /// What it can be called by; see `cenote_proto::Call`.
    ear: Mutex<Option<Arc<Channel>>>,
    pub(crate) messages: AtomicU64,
    pub(crate) puddles: AtomicU64,
    pub(crate) bytes: AtomicU64,
    pub(crate) parcels: Parcels,
    pub(crate) imports: Imports,
}

impl Session {
    pub(crate) fn has_ended(&self) -> bool {
        self.process.as_ref().is_none_or(|process| peer::has_ended(process.as_fd()))
    }

    /// Whether the client has hung up: what that means is about to be found out.
    fn has_hung_up(&self) -> bool {
        let line = self.line.lock().unwrap_or_else(PoisonError::into_inner);
        line.as_ref().is_some_and(|line| peer::has_hung_up(line.as_fd()))
    }

    /// Whether its program is gone, or its process has ended: nothing of it stores into a mapping
    /// any more.
    pub(crate) fn is_over(&self, images: &Images) -> bool {
        self.has_ended() || images.is_gone(self.client, self.sign)
    }

    /// Which connection serves it from now on, if any.
    pub(crate) fn serve_by(&self, line: Option<Arc<Channel>>) {
        *self.line.lock().unwrap_or_else(PoisonError::into_inner) = line;
    }

    /// What the client is called by from now on.
    pub(crate) fn hear_by(&self, ear: Channel) {
        *self.ear.lock().unwrap_or_else(PoisonError::into_inner) = Some(Arc::new(ear));
    }

    pub(crate) fn ear(&self) -> Option<Arc<Channel>> {
        self.ear.lock().unwrap_or_else(PoisonError::into_inner).clone()
    }

    /// Whether the client waits for no answer any more.
    pub(crate) fn is_leaving(&self) -> bool {
        self.has_ended() || self.has_hung_up()
    }

    pub(crate) fn process(&self) -> Option<&OwnedFd> {
        self.process.as_ref()
    }
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum State {
    Attached,
    Detached,
    Ending,
    /// Its end failed this many times and is tried again then. `well`: the client has said goodbye.
    Failed {
        tries: u32,
        at: Instant,
        well: bool,
    },
}

impl State {
    fn shown(self) -> ClientState {
        match self {
            Self::Attached => ClientState::Attached,
            Self::Detached => ClientState::Detached,
            Self::Ending => ClientState::Ending,
            Self::Failed { .. } => ClientState::Failed,
        }
    }
}

/// How long after this many failures the next try is.
fn pause(tries: u32) -> Duration {
    RETRY_FIRST.saturating_mul(4_u32.saturating_pow(tries.saturating_sub(1))).min(RETRY_MAX)
}

#[derive(Debug)]
struct Entry {
    session: Arc<Session>,
    state: State,
    token: u64,
    /// How often its end has failed.
    tries: u32,
}

impl Entry {
    /// Whether its end is not done with, and about to be: one that has failed several times is not waited for.
    fn is_ending(&self, images: &Images) -> bool {
        match self.state {
            State::Ending => self.tries < 3,
            State::Failed { tries, .. } => tries < 3,
            State::Attached => self.session.has_ended() || self.session.has_hung_up(),
            State::Detached => self.session.is_over(images),
        }
    }
}

/// All sessions.
#[derive(Debug)]
pub(crate) struct Sessions {
    table: Mutex<HashMap<Uuid, Entry>>,
    tokens: AtomicU64,
    waiting: OwnedFd,
    /// Has the undertaker look at ends that failed.
    wake: OwnedFd,
    stopping: AtomicBool,
    images: Images,
}

/// Why a session is not gone on with.
#[derive(Debug, PartialEq, Eq)]
pub(crate) enum NotResumed {
    /// There is none.
    Unknown,
    /// It is another process's, or at its end.
    Other,
    /// Another connection serves it.
    Attached,
}

impl Sessions {
    pub(crate) fn new(images: Images) -> io::Result<Self> {
        let waiting = epoll::create(epoll::CreateFlags::CLOEXEC)?;
        let wake = rustix::event::eventfd(0, EventfdFlags::CLOEXEC | EventfdFlags::NONBLOCK)?;
        epoll::add(&waiting, &wake, epoll::EventData::new_u64(WAKE), epoll::EventFlags::IN)?;
        Ok(Self {
            table: Mutex::default(),
            tokens: AtomicU64::new(WAKE + 1),
            waiting,
            wake,
            stopping: AtomicBool::new(false),
            images,
        })
    }

    fn table(&self) -> MutexGuard<'_, HashMap<Uuid, Entry>> {
        self.table.lock().unwrap_or_else(PoisonError::into_inner)
    }

    pub(crate) fn len(&self) -> u64 {
        self.table().len() as u64
    }

    /// Sessions in all, and those of one user; of processes that are not connected, too.
    pub(crate) fn count(&self, uid: u32) -> (usize, usize) {
        let table = self.table();
        (table.len(), table.values().filter(|entry| entry.session.uid == uid).count())
    }

    /// From now on nothing is recovered: the daemon is about to end.
    pub(crate) fn stop(&self) {
        self.stopping.store(true, Ordering::SeqCst);
    }

    pub(crate) fn is_stopping(&self) -> bool {
        self.stopping.load(Ordering::SeqCst)
    }

    pub(crate) fn get(&self, client: Uuid) -> Option<Arc<Session>> {
        self.table().get(&client).map(|entry| Arc::clone(&entry.session))
    }

    pub(crate) fn images(&self) -> &Images {
        &self.images
    }

    /// A new session, attached. The process is the peer's, and is held from here on.
    pub(crate) fn begin(&self, client: Uuid, peer: Peer, start_ticks: u64, sign: Sign) -> Arc<Session> {
        let who = GuestRecord { client, pid: peer.pid, start_ticks, uid: peer.uid, gid: peer.gid };
        self.insert(&who, Some(peer.process), sign)
    }

    /// A session that an earlier daemon had, detached.
    ///
    /// # Errors
    /// What the system says: its process may live, and cannot be held.
    pub(crate) fn adopt(&self, guest: &GuestRecord) -> io::Result<()> {
        let process = peer::process(guest.pid, guest.start_ticks)?;
        self.insert(guest, process, self.images.of_earlier());
        self.detach(guest.client);
        Ok(())
    }

    fn insert(&self, who: &GuestRecord, process: Option<OwnedFd>, sign: Sign) -> Arc<Session> {
        let session = Arc::new(Session {
            client: who.client,
            pid: who.pid,
            uid: who.uid,
            start_ticks: who.start_ticks,
            known: Instant::now(),
            process,
            sign,
            line: Mutex::default(),
            ear: Mutex::default(),
            messages: AtomicU64::new(0),
            puddles: AtomicU64::new(0),
            bytes: AtomicU64::new(0),
            parcels: Parcels::default(),
            imports: Imports::default(),
        });
        let token = self.tokens.fetch_add(1, Ordering::Relaxed);
        let entry = Entry { session: Arc::clone(&session), state: State::Attached, token, tries: 0 };
        self.table().insert(who.client, entry);
        session
    }

    /// The connection of a session was closed.
    pub(crate) fn detach(&self, client: Uuid) {
        let mut table = self.table();
        let Some(entry) = table.get_mut(&client) else { return };
        entry.state = State::Detached;
        entry.session.serve_by(None);
        let data = epoll::EventData::new_u64(entry.token);
        // A process that could not be held is gone: an event for it comes from the counter below.
        if let Some(process) = &entry.session.process {
            let _ = epoll::add(&self.waiting, process, data, epoll::EventFlags::IN);
        }
        drop(table);
        self.wake_undertaker();
    }

    /// Has the undertaker look at what it waits for.
    fn wake_undertaker(&self) {
        // The counter of the descriptor is full only if the undertaker is woken already.
        let _ = rustix::io::write(&self.wake, &1_u64.to_ne_bytes());
    }

    /// Goes on with a session for the process that had it.
    pub(crate) fn resume(
        &self,
        client: Uuid,
        pid: u32,
        start_ticks: u64,
    ) -> Result<Arc<Session>, NotResumed> {
        let mut table = self.table();
        let entry = table.get_mut(&client).ok_or(NotResumed::Unknown)?;
        if (entry.session.pid, entry.session.start_ticks) != (pid, start_ticks) {
            return Err(NotResumed::Other);
        }
        match entry.state {
            State::Attached => Err(NotResumed::Attached),
            State::Ending | State::Failed { .. } => Err(NotResumed::Other),
            State::Detached => {
                if let Some(process) = &entry.session.process {
                    let _ = epoll::delete(&self.waiting, process);
                }
                entry.state = State::Attached;
                Ok(Arc::clone(&entry.session))
            }
        }
    }

    /// The session is about to be ended, by the caller. False: by somebody else.
    pub(crate) fn claim(&self, client: Uuid) -> bool {
        match self.table().get_mut(&client) {
            Some(entry) if matches!(entry.state, State::Attached | State::Detached) => {
                entry.state = State::Ending;
                true
            }
            _ => false,
        }
    }

    /// It has been.
    pub(crate) fn forget(&self, client: Uuid) {
        self.table().remove(&client);
    }

    /// Whether the process of one of these sessions has ended, or said goodbye, and its end is not done with.
    pub(crate) fn any_ended_of(&self, clients: &[Uuid]) -> bool {
        let table = self.table();
        let mut ending = clients
            .iter()
            .filter_map(|client| table.get(client))
            .filter(|entry| entry.is_ending(&self.images));
        let Some(first) = ending.next() else { return false };
        if first.state == State::Detached {
            self.wake_undertaker();
        }
        true
    }

    /// The detached session of this token, claimed, if its process has ended.
    fn claim_dead(&self, token: u64) -> Option<Arc<Session>> {
        let mut table = self.table();
        let entry =
            table.values_mut().find(|entry| entry.token == token && entry.state == State::Detached)?;
        if !entry.session.has_ended() {
            return None;
        }
        Some(self.bury(entry))
    }

    /// A detached session whose program is gone, claimed.
    fn claim_gone(&self) -> Option<Arc<Session>> {
        let mut table = self.table();
        let gone = |entry: &&mut Entry| entry.state == State::Detached && entry.session.is_over(&self.images);
        table.values_mut().find(gone).map(|entry| self.bury(entry))
    }

    fn bury(&self, entry: &mut Entry) -> Arc<Session> {
        entry.state = State::Ending;
        if let Some(process) = &entry.session.process {
            let _ = epoll::delete(&self.waiting, process);
        }
        Arc::clone(&entry.session)
    }

    /// The end of a session has failed: when it is tried again.
    fn fail(&self, client: Uuid, well: bool) -> Duration {
        let mut table = self.table();
        let Some(entry) = table.get_mut(&client) else { return Duration::ZERO };
        entry.tries = entry.tries.saturating_add(1);
        let pause = pause(entry.tries);
        entry.state = State::Failed { tries: entry.tries, at: Instant::now() + pause, well };
        drop(table);
        self.wake_undertaker();
        pause
    }

    /// Sessions whose end is to be tried again now, claimed; and whether their clients have said goodbye.
    fn claim_failed(&self, now: Instant) -> Vec<(Arc<Session>, bool)> {
        let mut due = Vec::new();
        for entry in self.table().values_mut() {
            if let State::Failed { at, well, .. } = entry.state
                && at <= now
            {
                entry.state = State::Ending;
                due.push((Arc::clone(&entry.session), well));
            }
        }
        due
    }

    /// How long until an end is to be tried again, or a program may be gone.
    fn next_look(&self, now: Instant) -> Option<Duration> {
        let table = self.table();
        let at = |entry: &Entry| match entry.state {
            State::Failed { at, .. } => Some(at.saturating_duration_since(now)),
            State::Detached => Some(LOOK_EVERY),
            _ => None,
        };
        table.values().filter_map(at).min()
    }

    /// Sessions whose end has failed and is to be tried again.
    pub(crate) fn failing(&self) -> usize {
        self.table().values().filter(|entry| entry.tries > 0).count()
    }

    /// How many sessions are doing what.
    pub(crate) fn states(&self) -> [(&'static str, u64); 4] {
        let mut states = ClientState::ALL.map(|state| (state.name(), 0));
        for entry in self.table().values() {
            states[entry.state.shown() as usize].1 += 1;
        }
        states
    }

    /// Some sessions by identity, those after `after`, and what they are doing.
    pub(crate) fn page(&self, after: Option<Uuid>, most: usize) -> Vec<(Arc<Session>, ClientState)> {
        let table = self.table();
        let mut page: Vec<_> = table
            .values()
            .filter(|entry| after.is_none_or(|after| entry.session.client > after))
            .map(|entry| (Arc::clone(&entry.session), entry.state.shown()))
            .collect();
        page.sort_unstable_by_key(|(session, _)| session.client);
        page.truncate(most);
        page
    }

    /// Leases of sessions; the store has others too, of those whose logs are set aside.
    pub(crate) fn leases_of_clients(&self, store: &Store) -> Vec<LeaseRecord> {
        let mut leases = store.lease_records();
        let table = self.table();
        leases.retain(|lease| table.contains_key(&lease.client));
        leases
    }

    /// Detached sessions whose processes could not be held.
    fn tokens_of_the_lost(&self) -> Vec<u64> {
        let table = self.table();
        let lost =
            table.values().filter(|entry| entry.state == State::Detached && entry.session.process.is_none());
        lost.map(|entry| entry.token).collect()
    }
}

/// Ends a session that was claimed, and says what was found. If that fails it is tried again later.
pub(crate) fn end(shared: &Shared, session: &Session, well: bool) -> Result<(), StoreError> {
    let began = Instant::now();
    let sessions = &shared.sessions;
    match shared.store.guest_end(session.client, well) {
        Ok(end) => {
            note(shared, session, well, &end, began.elapsed());
            sessions.forget(session.client);
            Ok(())
        }
        // It has been.
        Err(StoreError::NoGuest { .. }) => {
            sessions.forget(session.client);
            Ok(())
        }
        Err(error) => {
            shared.metrics.ends_failed.add(1);
            let again = sessions.fail(session.client, well);
            say!(
                shared, Ends, ERROR, pid = session.pid, client = %session.client,
                "the logs of a client that has ended are not replayed, and its pools stay its own: {error}; tried again in {again:?}"
            );
            if matches!(error, StoreError::Poisoned { .. }) {
                shared.give_up(&error.to_string());
            }
            Err(error)
        }
    }
}

/// Counts and says how a session has ended.
fn note(shared: &Shared, session: &Session, well: bool, end: &GuestEnd, took: Duration) {
    let metrics = &shared.metrics;
    let applied = |log: &LogReport| match log.outcome {
        Outcome::RolledBack { entries } | Outcome::RolledForward { entries } => Some(entries),
        _ => None,
    };
    let replayed: Vec<u64> = end.logs.iter().filter_map(applied).collect();
    let (logs, entries) = (replayed.len() as u64, replayed.iter().sum::<u64>());
    metrics.logs_replayed.add(logs);
    metrics.entries_replayed.add(entries);
    metrics.logs_set_aside.add(end.damage.len() as u64);
    if well {
        say!(shared, Ends, DEBUG, pid = session.pid, uid = session.uid, "a client has said goodbye");
    } else {
        metrics.replay.note(took);
        metrics.recoveries.add(1);
        say!(
            shared,
            Ends,
            INFO,
            pid = session.pid,
            uid = session.uid,
            "a client has ended without a goodbye: {logs} of its {} logs were replayed, {entries} entries, in {took:?}",
            end.logs.len()
        );
    }
    for damage in &end.damage {
        say!(shared, SetAside, WARN, pid = session.pid, client = %session.client, "set aside: {damage}");
    }
}

/// Waits for the processes of detached sessions, and ends their sessions; and ends once more what could not be ended.
pub(crate) fn undertake(shared: &Shared) {
    /// Without this thread no client that dies is recovered: its end is the daemon's.
    struct Needed<'s>(&'s Shared);
    impl Drop for Needed<'_> {
        fn drop(&mut self) {
            if !self.0.sessions.stopping.load(Ordering::SeqCst) {
                self.0.give_up("the thread that recovers clients has ended");
            }
        }
    }
    let _needed = Needed(shared);
    let sessions = &shared.sessions;
    let mut events = Vec::with_capacity(64);
    let mut found = sessions.tokens_of_the_lost();
    loop {
        for token in found.drain(..) {
            if sessions.stopping.load(Ordering::SeqCst) {
                return;
            }
            if token == WAKE {
                let _ = rustix::io::read(&sessions.wake, &mut [0; 8]);
            } else if let Some(session) = sessions.claim_dead(token) {
                let _ = end(shared, &session, false);
            }
        }
        while let Some(session) = sessions.claim_gone() {
            if sessions.stopping.load(Ordering::SeqCst) {
                return;
            }
            let _ = end(shared, &session, false);
        }
        for (session, well) in sessions.claim_failed(Instant::now()) {
            if sessions.stopping.load(Ordering::SeqCst) {
                return;
            }
            let _ = end(shared, &session, well);
        }
        let next = sessions
            .next_look(Instant::now())
            .map(|next| Timespec { tv_sec: next.as_secs() as i64, tv_nsec: next.subsec_nanos().into() });
        events.clear();
        match epoll::wait(&sessions.waiting, rustix::buffer::spare_capacity(&mut events), next.as_ref()) {
            Ok(_) | Err(rustix::io::Errno::INTR) => {}
            Err(errno) => {
                tracing::error!("waiting for processes fails: {errno}");
                return;
            }
        }
        found.extend(events.iter().map(|event| event.data.u64()));
    }
}
