//! All sessions, their states, and their ends.
//!
//! | state | meaning | next |
//! | --- | --- | --- |
//! | attached | a connection serves it | detached: the connection closes without a goodbye |
//! | | | ending: a goodbye, or the end of the process |
//! | detached | it has no connection | attached: the same process sends `Hello{resume}` |
//! | | | ending: the process has ended |
//! | ending | the store ends it and replays its logs | gone: the store is done |
//! | | | failed: the store could not do it |
//! | failed | it waits for another try | ending: the time has come |
//!
//! One thread, the undertaker, waits for the processes of detached sessions to end: their pidfds
//! become readable. Then it ends their sessions in the store.
//!
//! `exec` ends a session like the end of its process, because the program that began the session is
//! gone ([`crate::images`]). The undertaker looks for that when a client hangs up, when another
//! client wants what the session has, and now and then.
//!
//! **One thread at a time ends a session**: the one that claims it. The entry stays, as *ending*,
//! until the store is done. So a pool that the ended process could write is in use until then, and
//! clients that ask for it wait.
//!
//! **The undertaker tries a failed end again**: soon, then later and later, but at least every
//! [`RETRY_MAX`]. The disk may be full, or the daemon short of descriptors. Until the end succeeds,
//! the dead client's pools and locks stay its own. If a sync has failed, the store is of no use any
//! more and a retry is pointless: the daemon ends with an error, and the next daemon recovers from
//! the medium.

use crate::images::{Images, Sign};
use crate::session::Session;
use cenote_layout::catalog::{HostedClientRecord, LeaseRecord};
use cenote_layout::id::Uuid;
use cenote_proto::ClientState;
use cenote_store::Store;
use cenote_sys::peer::{self, Peer};
use rustix::event::{EventfdFlags, Timespec, epoll};
use std::collections::HashMap;
use std::io;
use std::os::fd::OwnedFd;
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

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum SessionState {
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

impl SessionState {
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
struct SessionEntry {
    session: Arc<Session>,
    state: SessionState,
    token: u64,
    /// How often its end has failed.
    tries: u32,
}

impl SessionEntry {
    /// Whether its end is not done with, and about to be: one that has failed several times is not
    /// waited for.
    fn is_ending(&self, images: &Images) -> bool {
        match self.state {
            SessionState::Ending => self.tries < 3,
            SessionState::Failed { tries, .. } => tries < 3,
            SessionState::Attached => self.session.has_ended() || self.session.has_hung_up(),
            SessionState::Detached => self.session.is_over(images),
        }
    }
}

/// All sessions.
#[derive(Debug)]
pub(crate) struct Sessions {
    table: Mutex<HashMap<Uuid, SessionEntry>>,
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

    fn table(&self) -> MutexGuard<'_, HashMap<Uuid, SessionEntry>> {
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
    pub(crate) fn begin(
        &self,
        client: Uuid,
        peer: Peer,
        start_ticks: u64,
        sign: Sign,
    ) -> Arc<Session> {
        let who =
            HostedClientRecord { client, pid: peer.pid, start_ticks, uid: peer.uid, gid: peer.gid };
        self.insert(&who, Some(peer.process), sign)
    }

    /// A session that an earlier daemon had, detached.
    ///
    /// # Errors
    /// What the system says: its process may live, and cannot be held.
    pub(crate) fn adopt(&self, hosted_client: &HostedClientRecord) -> io::Result<()> {
        let process = peer::process(hosted_client.pid, hosted_client.start_ticks)?;
        self.insert(hosted_client, process, self.images.of_earlier());
        self.detach(hosted_client.client);
        Ok(())
    }

    fn insert(
        &self,
        who: &HostedClientRecord,
        process: Option<OwnedFd>,
        sign: Sign,
    ) -> Arc<Session> {
        let session = Arc::new(Session::new(who, process, sign));
        let token = self.tokens.fetch_add(1, Ordering::Relaxed);
        let entry = SessionEntry {
            session: Arc::clone(&session),
            state: SessionState::Attached,
            token,
            tries: 0,
        };
        self.table().insert(who.client, entry);
        session
    }

    /// The connection of a session was closed.
    pub(crate) fn detach(&self, client: Uuid) {
        let mut table = self.table();
        let Some(entry) = table.get_mut(&client) else { return };
        entry.state = SessionState::Detached;
        entry.session.serve_by(None);
        let data = epoll::EventData::new_u64(entry.token);
        // A process that could not be held is gone: an event for it comes from the counter below.
        if let Some(process) = entry.session.process() {
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
            SessionState::Attached => Err(NotResumed::Attached),
            SessionState::Ending | SessionState::Failed { .. } => Err(NotResumed::Other),
            SessionState::Detached => {
                if let Some(process) = entry.session.process() {
                    let _ = epoll::delete(&self.waiting, process);
                }
                entry.state = SessionState::Attached;
                Ok(Arc::clone(&entry.session))
            }
        }
    }

    /// Gives the end of the session to the caller. False: another thread has it, or it is gone.
    pub(crate) fn claim(&self, client: Uuid) -> bool {
        match self.table().get_mut(&client) {
            Some(entry)
                if matches!(entry.state, SessionState::Attached | SessionState::Detached) =>
            {
                entry.state = SessionState::Ending;
                true
            }
            _ => false,
        }
    }

    /// The session has ended: removes its entry.
    pub(crate) fn forget(&self, client: Uuid) {
        self.table().remove(&client);
    }

    /// Whether the process of one of these sessions has ended, or said goodbye, and its end is not
    /// done with.
    pub(crate) fn any_ended_of(&self, clients: &[Uuid]) -> bool {
        let table = self.table();
        let mut ending = clients
            .iter()
            .filter_map(|client| table.get(client))
            .filter(|entry| entry.is_ending(&self.images));
        let Some(first) = ending.next() else { return false };
        if first.state == SessionState::Detached {
            self.wake_undertaker();
        }
        true
    }

    /// The detached session of this token, claimed, if its process has ended.
    pub(crate) fn claim_dead(&self, token: u64) -> Option<Arc<Session>> {
        let mut table = self.table();
        let entry = table
            .values_mut()
            .find(|entry| entry.token == token && entry.state == SessionState::Detached)?;
        if !entry.session.has_ended() {
            return None;
        }
        Some(self.bury(entry))
    }

    /// A detached session whose program is gone, claimed.
    pub(crate) fn claim_gone(&self) -> Option<Arc<Session>> {
        let mut table = self.table();
        let gone = |entry: &&mut SessionEntry| {
            entry.state == SessionState::Detached && entry.session.is_over(&self.images)
        };
        table.values_mut().find(gone).map(|entry| self.bury(entry))
    }

    fn bury(&self, entry: &mut SessionEntry) -> Arc<Session> {
        entry.state = SessionState::Ending;
        if let Some(process) = entry.session.process() {
            let _ = epoll::delete(&self.waiting, process);
        }
        Arc::clone(&entry.session)
    }

    /// The end of a session has failed: when it is tried again.
    pub(crate) fn fail(&self, client: Uuid, well: bool) -> Duration {
        let mut table = self.table();
        let Some(entry) = table.get_mut(&client) else { return Duration::ZERO };
        entry.tries = entry.tries.saturating_add(1);
        let pause = pause(entry.tries);
        entry.state = SessionState::Failed { tries: entry.tries, at: Instant::now() + pause, well };
        drop(table);
        self.wake_undertaker();
        pause
    }

    /// Sessions whose end is to be tried again now, claimed; and whether their clients have said
    /// goodbye.
    pub(crate) fn claim_failed(&self, now: Instant) -> Vec<(Arc<Session>, bool)> {
        let mut due = Vec::new();
        for entry in self.table().values_mut() {
            if let SessionState::Failed { at, well, .. } = entry.state
                && at <= now
            {
                entry.state = SessionState::Ending;
                due.push((Arc::clone(&entry.session), well));
            }
        }
        due
    }

    /// How long until an end is to be tried again, or a program may be gone.
    fn next_look(&self, now: Instant) -> Option<Duration> {
        let table = self.table();
        let at = |entry: &SessionEntry| match entry.state {
            SessionState::Failed { at, .. } => Some(at.saturating_duration_since(now)),
            SessionState::Detached => Some(LOOK_EVERY),
            _ => None,
        };
        table.values().filter_map(at).min()
    }

    /// Waits until sessions may have ended, and adds their tokens to `found`. Adds none if
    /// it is time to look at all: a session was detached, or an end failed.
    ///
    /// # Errors
    /// What the system says.
    pub(crate) fn wait(&self, found: &mut Vec<u64>) -> io::Result<()> {
        let next = self.next_look(Instant::now()).map(|next| Timespec {
            tv_sec: next.as_secs() as i64,
            tv_nsec: next.subsec_nanos().into(),
        });
        let mut events = Vec::with_capacity(64);
        let room = rustix::buffer::spare_capacity(&mut events);
        match epoll::wait(&self.waiting, room, next.as_ref()) {
            Ok(_) | Err(rustix::io::Errno::INTR) => {}
            Err(errno) => return Err(errno.into()),
        }
        for event in events {
            let token = event.data.u64();
            if token == WAKE {
                let _ = rustix::io::read(&self.wake, &mut [0; 8]);
            } else {
                found.push(token);
            }
        }
        Ok(())
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
    pub(crate) fn page(
        &self,
        after: Option<Uuid>,
        most: usize,
    ) -> Vec<(Arc<Session>, ClientState)> {
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
    pub(crate) fn tokens_of_the_lost(&self) -> Vec<u64> {
        let table = self.table();
        let lost = table.values().filter(|entry| {
            entry.state == SessionState::Detached && entry.session.process().is_none()
        });
        lost.map(|entry| entry.token).collect()
    }
}
