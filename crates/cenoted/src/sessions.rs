//! Who is there, and what happens when they are not any more.
//!
//! A session is *attached* while a connection serves it, and *detached* when its connection was closed without a goodbye. One thread, the undertaker, waits for the
//! processes of detached sessions to end (their pidfds become readable) and ends their sessions in the store, which replays their logs.
//!
//! ```text
//! attached --connection closed--> detached --process ended--> (logs replayed) --> gone
//!     |  ^----same process, Hello{resume}----|
//!     '------goodbye: (logs looked at)-----------------------------------------> gone
//! ```
//!
//! **Each session is ended once**: whoever takes it out of the table ends it. The entry stays, as *ending*, until the store is done: so a pool that the dead could write is in use until then, and
//! whoever asks for it waits.

use crate::server::Shared;
use cenote_layout::catalog::GuestRecord;
use cenote_layout::id::Uuid;
use cenote_log::Outcome;
use cenote_sys::peer::{self, Peer};
use rustix::event::epoll;
use std::collections::HashMap;
use std::io;
use std::os::fd::{AsFd, OwnedFd};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

/// A session's process and counters.
#[derive(Debug)]
pub(crate) struct Session {
    pub(crate) client: Uuid,
    pub(crate) pid: u32,
    uid: u32,
    pub(crate) start_ticks: u64,
    /// The process; `None` if it was gone before it could be held.
    process: Option<OwnedFd>,
    pub(crate) messages: AtomicU64,
    pub(crate) puddles: AtomicU64,
    pub(crate) bytes: AtomicU64,
}

impl Session {
    fn has_ended(&self) -> bool {
        self.process.as_ref().is_none_or(|process| peer::has_ended(process.as_fd()))
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
}

#[derive(Debug)]
struct Entry {
    session: Arc<Session>,
    state: State,
    token: u64,
}

/// All sessions.
#[derive(Debug)]
pub(crate) struct Sessions {
    table: Mutex<HashMap<Uuid, Entry>>,
    tokens: AtomicU64,
    waiting: OwnedFd,
    stopping: AtomicBool,
    pub(crate) recoveries: AtomicU64,
    pub(crate) replayed: AtomicU64,
    pub(crate) set_aside: AtomicU64,
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
    pub(crate) fn new() -> io::Result<Self> {
        Ok(Self {
            table: Mutex::default(),
            tokens: AtomicU64::new(1),
            waiting: epoll::create(epoll::CreateFlags::CLOEXEC)?,
            stopping: AtomicBool::new(false),
            recoveries: AtomicU64::new(0),
            replayed: AtomicU64::new(0),
            set_aside: AtomicU64::new(0),
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

    /// A new session, attached. The process is the peer's, and is held from here on.
    pub(crate) fn begin(&self, client: Uuid, peer: Peer, start_ticks: u64) -> Arc<Session> {
        let session = Arc::new(Session {
            client,
            pid: peer.pid,
            uid: peer.uid,
            start_ticks,
            process: Some(peer.process),
            messages: AtomicU64::new(0),
            puddles: AtomicU64::new(0),
            bytes: AtomicU64::new(0),
        });
        let token = self.tokens.fetch_add(1, Ordering::Relaxed);
        let entry = Entry { session: Arc::clone(&session), state: State::Attached, token };
        self.table().insert(client, entry);
        session
    }

    /// A session that an earlier daemon had, detached.
    pub(crate) fn adopt(&self, guest: &GuestRecord) {
        let process = peer::process(guest.pid, guest.start_ticks).unwrap_or(None);
        let session = Arc::new(Session {
            client: guest.client,
            pid: guest.pid,
            uid: guest.uid,
            start_ticks: guest.start_ticks,
            process,
            messages: AtomicU64::new(0),
            puddles: AtomicU64::new(0),
            bytes: AtomicU64::new(0),
        });
        let token = self.tokens.fetch_add(1, Ordering::Relaxed);
        self.table().insert(guest.client, Entry { session, state: State::Attached, token });
        self.detach(guest.client);
    }

    /// The connection of a session was closed.
    pub(crate) fn detach(&self, client: Uuid) {
        let mut table = self.table();
        let Some(entry) = table.get_mut(&client) else { return };
        entry.state = State::Detached;
        let data = epoll::EventData::new_u64(entry.token);
        // A process that could not be held is gone: an event for it comes from the counter below.
        if let Some(process) = &entry.session.process {
            let _ = epoll::add(&self.waiting, process, data, epoll::EventFlags::IN);
        }
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
            State::Ending => Err(NotResumed::Other),
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
            Some(entry) if entry.state != State::Ending => {
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

    /// Whether any session's process has ended, or said goodbye, and its end is not done with.
    pub(crate) fn any_ending(&self) -> bool {
        self.table().values().any(|entry| entry.state == State::Ending || entry.session.has_ended())
    }

    /// The same of some sessions.
    pub(crate) fn any_ended_of(&self, clients: &[Uuid]) -> bool {
        let table = self.table();
        let ended = |entry: &Entry| entry.state == State::Ending || entry.session.has_ended();
        clients.iter().filter_map(|client| table.get(client)).any(ended)
    }

    /// The detached session of this token, claimed, if its process has ended.
    fn claim_dead(&self, token: u64) -> Option<Arc<Session>> {
        let mut table = self.table();
        let entry =
            table.values_mut().find(|entry| entry.token == token && entry.state == State::Detached)?;
        if !entry.session.has_ended() {
            return None;
        }
        entry.state = State::Ending;
        if let Some(process) = &entry.session.process {
            let _ = epoll::delete(&self.waiting, process);
        }
        Some(Arc::clone(&entry.session))
    }

    /// Detached sessions whose processes could not be held.
    fn tokens_of_the_lost(&self) -> Vec<u64> {
        let table = self.table();
        let lost =
            table.values().filter(|entry| entry.state == State::Detached && entry.session.process.is_none());
        lost.map(|entry| entry.token).collect()
    }
}

/// Ends a session that was claimed, and says what was found.
pub(crate) fn end(shared: &Shared, session: &Session, well: bool) -> Result<(), cenote_store::StoreError> {
    let ended = shared.store.guest_end(session.client, well);
    let sessions = &shared.sessions;
    match &ended {
        Ok(end) => {
            let worked = |log: &&cenote_store::LogReport| {
                matches!(log.outcome, Outcome::RolledBack { .. } | Outcome::RolledForward { .. })
            };
            let replayed = end.logs.iter().filter(worked).count() as u64;
            sessions.replayed.fetch_add(replayed, Ordering::Relaxed);
            sessions.set_aside.fetch_add(end.damage.len() as u64, Ordering::Relaxed);
            if !well {
                sessions.recoveries.fetch_add(1, Ordering::Relaxed);
                eprintln!(
                    "cenoted: process {} has ended; {replayed} of its {} logs were replayed",
                    session.pid,
                    end.logs.len()
                );
            }
            for damage in &end.damage {
                eprintln!("cenoted: {damage}");
            }
        }
        Err(error) => {
            eprintln!(
                "cenoted: the logs of process {} were not replayed: {error}; the next start of the daemon does that",
                session.pid
            );
        }
    }
    sessions.forget(session.client);
    ended.map(|_| ())
}

/// Waits for the processes of detached sessions, and ends their sessions.
pub(crate) fn undertake(shared: &Shared) {
    let sessions = &shared.sessions;
    let mut events = Vec::with_capacity(64);
    let mut found = sessions.tokens_of_the_lost();
    loop {
        for token in found.drain(..) {
            if sessions.stopping.load(Ordering::SeqCst) {
                return;
            }
            if let Some(session) = sessions.claim_dead(token) {
                let _ = end(shared, &session, false);
            }
        }
        events.clear();
        match epoll::wait(&sessions.waiting, rustix::buffer::spare_capacity(&mut events), None) {
            Ok(_) | Err(rustix::io::Errno::INTR) => {}
            Err(errno) => {
                eprintln!("cenoted: waiting for processes fails: {errno}");
                return;
            }
        }
        found.extend(events.iter().map(|event| event.data.u64()));
    }
}
