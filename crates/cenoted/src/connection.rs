//! One connection, from hello to its end.
//!
//! The thread waits for a message or for the end of the process. The socket alone is not enough: a
//! child of a dead process may have inherited it, and then it stays open.

use crate::answers::refused_as;
use crate::ends;
use crate::images::Sign;
use crate::log::say;
use crate::metrics::LimitHit;
use crate::per_user::Counted;
use crate::requests;
use crate::session::Session;
use crate::sessions::NotResumed;
use crate::shared::Shared;
use cenote_layout::catalog::HostedClientRecord;
use cenote_layout::error_kind::ErrorKind;
use cenote_layout::id::Uuid;
use cenote_proto::{Channel, Received, Refusal, Reply, Request, decode, encode, peek};
use cenote_store::Credentials;
use cenote_sys::peer::Peer;
use rustix::event::{PollFd, PollFlags, Timespec};
use std::collections::VecDeque;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::{Duration, Instant};

/// How long a process that reconnects is waited for to be known as disconnected.
const REATTACH_TRIES: u32 = 200;
/// How long one that is turned away has for its hello.
const TURNED_AWAY: Duration = Duration::from_millis(200);
/// How many of those there are at once.
const TURNED_AWAY_MAX: usize = 64;

/// Connections that are turned away and have sent nothing yet, on the thread that accepts them.
///
/// The daemon reads a hello before it closes a socket: closing with a hello unread would discard
/// the answer. There are few, each for a short time. When the list is full, a new connection takes
/// the place of the one that has waited longest, which is closed without an answer.
#[derive(Debug, Default)]
pub(crate) struct TurnedAway(VecDeque<(Channel, Instant, Why)>);

/// Why a connection is turned away.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Why {
    /// There are too many.
    Many,
    /// Its process cannot be seen from here, so the daemon would not know when it ends.
    Unseen,
}

impl Why {
    fn refusal(self) -> Refusal {
        match self {
            Self::Many => Refusal::Limit {
                detail: "this daemon has reached its limit of connections (--clients): try again \
                         later"
                    .into(),
            },
            Self::Unseen => Refusal::Other {
                kind: ErrorKind::Unsupported.code().into(),
                detail: "the daemon does not see this process, because it runs in another process \
                         namespace (a container): it could not tell when the process ends; run the \
                         daemon where it sees its clients (in their namespace or outside of it, \
                         `--pid=host`)"
                    .into(),
            },
        }
    }
}

impl TurnedAway {
    /// One more.
    pub(crate) fn add(&mut self, channel: Channel, why: Why) {
        if self.0.len() >= TURNED_AWAY_MAX {
            self.0.pop_front();
        }
        self.0.push_back((channel, Instant::now() + TURNED_AWAY, why));
    }

    /// Their sockets, to be waited for.
    pub(crate) fn sockets(&self) -> impl Iterator<Item = BorrowedFd<'_>> {
        self.0.iter().map(|(channel, ..)| channel.as_fd())
    }

    /// How long the first of them has left.
    pub(crate) fn patience(&self) -> Option<Duration> {
        self.0.front().map(|(_, until, _)| until.saturating_duration_since(Instant::now()))
    }

    /// Answers those that have said something, or never will. None of this waits.
    pub(crate) fn answer(&mut self, shared: &Shared) {
        let now = Instant::now();
        self.0.retain(|(channel, until, why)| {
            let heard = readable_within(channel, Duration::ZERO);
            if !heard && now < *until {
                return true;
            }
            let mut buffer = [0; 64];
            let received = if heard { channel.receive_bytes(&mut buffer).ok() } else { None };
            let number =
                received.map_or(0, |received| peek(buffer.get(..received.len).unwrap_or_default()));
            refuse(shared, channel, number, why.refusal());
            false
        });
    }
}

/// Serves one client, that counts, until its connection ends.
pub(crate) fn serve(shared: &Arc<Shared>, line: Channel, peer: Peer, counted: Counted) {
    let line = Arc::new(line);
    let channel = &*line;
    if channel.set_send_timeout(shared.limits.patience).is_err() {
        return;
    }
    // Gone already: the daemon lets no client in whose end it cannot wait for.
    let Some(start_ticks) = cenote_sys::process::start_ticks(peer.pid) else { return };
    let credentials = Credentials { uid: peer.uid, gid: peer.gid, groups: peer.groups.clone() };
    let mut buffer = vec![0; 4096];
    if !readable_within(channel, shared.limits.patience) {
        return;
    }
    let Ok(received) = channel.receive_bytes(&mut buffer) else { return };
    // Whether the daemon lives, by a client that waits for another answer: no session, and nothing
    // of the store.
    if let Some(number) = ping(&received, &buffer) {
        answer(channel, number, &Reply::Done, &[]);
        return;
    }
    let (number, resume) = match hello(&received, &buffer) {
        Ok(hello) => hello,
        Err((number, refusal)) => return refuse(shared, channel, number, refusal),
    };
    shared.messages.fetch_add(1, Ordering::Relaxed);
    shared.metrics.request(&Request::Hello { resume });
    shared.metrics.connections.add(1);
    let (session, image) = match attach(shared, peer, start_ticks, &credentials, resume) {
        Ok(attached) => attached,
        Err(refusal) => return refuse(shared, channel, number, refusal),
    };
    say!(
        shared, Connections, DEBUG, pid = session.pid, uid = session.uid, client = %session.client,
        program = cenote_sys::process::program(session.pid), "connected"
    );
    drop(buffer);
    session.messages.fetch_add(1, Ordering::Relaxed);
    let welcome = requests::welcome(shared, session.client);
    let end = match answer(channel, number, &welcome, image.as_slice()) {
        true => {
            // The client's copy is to be the only one.
            drop(image);
            session.serve_by(Some(Arc::clone(&line)));
            converse(shared, channel, &session, &credentials)
        }
        false => ConnectionEnd::CutOff,
    };
    session.end_imports();
    if end == ConnectionEnd::CutOff {
        // A client that was given nothing leaves nothing: connecting and going away costs the
        // daemon nothing for good.
        if shared.store.client_has_anything(session.client) {
            until_its_program_is_gone(shared, channel, &session);
            shared.sessions.detach(session.client);
        } else if shared.sessions.claim(session.client) {
            let _ = ends::end(shared, &session, true);
        }
    }
    session.serve_by(None);
    drop(counted);
}

/// Of a client that has hung up, the kernel is about to close the other descriptor too, if it
/// closes all of them. Waits for that, and not for long.
fn until_its_program_is_gone(shared: &Shared, channel: &Channel, session: &Session) {
    for _ in 0..20 {
        if !cenote_sys::peer::has_hung_up(channel.as_fd())
            || session.is_over(shared.sessions.images())
        {
            return;
        }
        std::thread::sleep(Duration::from_micros(50));
    }
}

/// How a conversation ended.
#[derive(Clone, Copy, PartialEq, Eq)]
enum ConnectionEnd {
    Goodbye,
    /// By the client, which has hung up, by the daemon, or with the process.
    CutOff,
}

fn readable_within(channel: &Channel, patience: Duration) -> bool {
    let mut fds = [PollFd::from_borrowed_fd(channel.as_fd(), PollFlags::IN)];
    let timeout =
        Timespec { tv_sec: patience.as_secs() as i64, tv_nsec: patience.subsec_nanos().into() };
    matches!(rustix::event::poll(&mut fds, Some(&timeout)), Ok(1))
}

/// The number of a first message that only asks whether the daemon is there.
fn ping(received: &Received, buffer: &[u8]) -> Option<u32> {
    match decode(buffer.get(..received.len)?) {
        Ok((number, Request::Ping)) if !received.cut => Some(number),
        _ => None,
    }
}

/// The first message: its number, and the session to go on with.
fn hello(received: &Received, buffer: &[u8]) -> Result<(u32, Option<Uuid>), (u32, Refusal)> {
    let packet = buffer.get(..received.len).unwrap_or_default();
    let malformed = |detail: String| (peek(packet), Refusal::Malformed { detail });
    check(received).map_err(malformed)?;
    match decode::<Request>(packet).map_err(|error| malformed(error.to_string()))? {
        (number, Request::Hello { resume }) => Ok((number, resume)),
        _ => Err(malformed("the first message is a hello".into())),
    }
}

/// Why a packet is not looked at.
fn check(received: &Received) -> Result<(), String> {
    if received.cut {
        return Err(
            "the message is too long, or has descriptors, which no message of a client has".into(),
        );
    }
    Ok(())
}

fn attach(
    shared: &Arc<Shared>,
    peer: Peer,
    start_ticks: u64,
    credentials: &Credentials,
    resume: Option<Uuid>,
) -> Result<(Arc<Session>, Option<OwnedFd>), Refusal> {
    if let Some(client) = resume {
        for _ in 0..REATTACH_TRIES {
            match shared.sessions.resume(client, peer.pid, start_ticks) {
                Ok(session) => return Ok((session, give_image(shared, client)?)),
                // One that was given nothing was forgotten with the daemon that it had: it begins
                // again under its name.
                Err(NotResumed::Unknown) => {
                    return begin(shared, client, peer, start_ticks, credentials);
                }
                Err(NotResumed::Other) => return Err(Refusal::NoSession),
                // Its other connection was closed, perhaps, and that is not known yet.
                Err(NotResumed::Attached) => std::thread::sleep(Duration::from_millis(5)),
            }
        }
        return Err(Refusal::Attached);
    }
    match cenote_sys::process::random_bytes16() {
        Ok(bytes) => begin(shared, Uuid::from_random_bytes(bytes), peer, start_ticks, credentials),
        Err(error) => Err(refused_as(ErrorKind::of_system(&error), error)),
    }
}

/// A new session.
fn begin(
    shared: &Arc<Shared>,
    client: Uuid,
    peer: Peer,
    start_ticks: u64,
    credentials: &Credentials,
) -> Result<(Arc<Session>, Option<OwnedFd>), Refusal> {
    // Those of processes that live and are not connected count as well.
    let (all, his) = shared.sessions.count(peer.uid);
    let limits = &shared.limits;
    if all >= limits.connections || (peer.uid != 0 && his >= limits.connections_per_user) {
        shared.metrics.limit(LimitHit::Sessions);
        let detail =
            "this daemon has reached its limit of sessions (--clients): try again later".into();
        return Err(Refusal::Limit { detail });
    }
    let hosted_client = HostedClientRecord {
        client,
        pid: peer.pid,
        start_ticks,
        uid: credentials.uid,
        gid: credentials.gid,
    };
    let image = give_image(shared, client)?;
    let sign = if image.is_some() { Sign::Byte } else { Sign::None };
    shared.store.admit(hosted_client).map_err(|_| Refusal::NoSession)?;
    Ok((shared.sessions.begin(client, peer, start_ticks, sign), image))
}

/// What the client's program is known by.
fn give_image(shared: &Shared, client: Uuid) -> Result<Option<OwnedFd>, Refusal> {
    let given = shared.sessions.images().give(client);
    given.map_err(|error| {
        refused_as(ErrorKind::of_system(&error), format!("a client cannot be watched: {error}"))
    })
}

/// The next message, which is there: its number and the request, or what is wrong with it. `None`:
/// the connection has ended.
fn receive(shared: &Shared, channel: &Channel) -> Option<Result<(u32, Request), (u32, String)>> {
    shared.buffers.with(|buffer| {
        let received = channel.receive_bytes(buffer).ok().filter(|received| received.len > 0)?;
        let packet = buffer.get(..received.len).unwrap_or_default();
        let checked = check(&received)
            .and_then(|()| decode::<Request>(packet).map_err(|error| error.to_string()));
        Some(checked.map_err(|detail| (peek(packet), detail)))
    })
}

/// Answers messages, until the session, the connection or the process has ended.
fn converse(
    shared: &Shared,
    channel: &Channel,
    session: &Session,
    credentials: &Credentials,
) -> ConnectionEnd {
    // A client has one request on its way. Later bytes from a socket whose process has ended are
    // those of another process, which has inherited it.
    let mut last = false;
    loop {
        if last || !wait(channel, session) {
            return ConnectionEnd::CutOff;
        }
        last = session.has_ended();
        let Some(received) = receive(shared, channel) else { return ConnectionEnd::CutOff };
        shared.messages.fetch_add(1, Ordering::Relaxed);
        session.messages.fetch_add(1, Ordering::Relaxed);
        let (number, request) = match received {
            Ok(request) => request,
            Err((number, detail)) => {
                // A peer that does not speak the protocol is not listened to any further.
                refuse(shared, channel, number, Refusal::Malformed { detail });
                return ConnectionEnd::CutOff;
            }
        };
        if request == Request::Goodbye {
            shared.metrics.request(&request);
            let ended =
                shared.sessions.claim(session.client) && ends::end(shared, session, true).is_ok();
            let refused =
                Reply::Refused(refused_as(ErrorKind::Io, "the logs could not be looked at"));
            answer(channel, number, if ended { &Reply::Done } else { &refused }, &[]);
            return ConnectionEnd::Goodbye;
        }
        let grown = match &request {
            Request::TakePuddle { pool, size, .. } => Some((*pool, *size)),
            _ => None,
        };
        let (reply, descriptors) = requests::answer(shared, session, credentials, request);
        let sent = answer(channel, number, &reply, &descriptors);
        if !sent {
            return ConnectionEnd::CutOff;
        }
        // The next one is made while the client is at work with this one.
        if let (Some((pool, size)), Reply::Puddles { .. }) = (grown, &reply) {
            shared.store.client_expect(session.client, pool, size);
        }
    }
}

/// Waits for a message; false: the process has ended, and everything that it sent was read.
fn wait(channel: &Channel, session: &Session) -> bool {
    loop {
        let Some(process) = session.process() else { return false };
        let socket = PollFd::from_borrowed_fd(channel.as_fd(), PollFlags::IN);
        let mut fds = [socket, PollFd::new(process, PollFlags::IN)];
        match rustix::event::poll(&mut fds, None) {
            Ok(_) if !fds[0].revents().is_empty() => return true,
            Ok(_) => return false,
            Err(rustix::io::Errno::INTR) => {}
            Err(_) => return false,
        }
    }
}

fn refuse(shared: &Shared, channel: &Channel, number: u32, refusal: Refusal) {
    shared.metrics.refusal(&refusal);
    say!(shared, Malformed, DEBUG, "a connection is refused: {refusal:?}");
    answer(channel, number, &Reply::Refused(refusal), &[]);
}

/// Whether the answer was sent.
fn answer(channel: &Channel, number: u32, reply: &Reply, descriptors: &[OwnedFd]) -> bool {
    let borrowed: Vec<_> = descriptors.iter().map(AsFd::as_fd).collect();
    match encode(number, reply) {
        Ok(packet) => channel.send(&packet, &borrowed).is_ok(),
        Err(error) => {
            let refusal = Reply::Refused(refused_as(ErrorKind::Misuse, error));
            encode(number, &refusal).is_ok_and(|packet| channel.send(&packet, &[]).is_ok())
        }
    }
}
