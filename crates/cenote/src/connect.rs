//! A store that a daemon keeps: `Store::connect` (PUD-1).
//!
//! One socket, one request at a time. Nothing of a transaction comes by here: a client asks when it
//! opens or creates a pool, when a pool grows, when a thread needs its first log or a log
//! overflows, and when a type is new.
//!
//! **The daemon may end and another follow.** The kernel then closes the socket. The next request
//! connects again, goes on with the session (the daemon knows the process, so there is nothing to
//! show), and is sent once more. Each request is such that to do it twice is to do it once: a
//! puddle is asked for by its number, a pool is created with a token, a log puddle too many is
//! removed when the session ends. Meanwhile transactions go on: mappings and leases stay.

use crate::error::Result;
use crate::open_pools::pools_of;
use crate::session::Store;
use cenote_layout::id::{PoolId, Uuid};
use cenote_layout::types::TypeRecord;
use cenote_medium::{Durability, MediumError, MediumInfo, MediumKind, Operation};
use cenote_proto::{
    Channel, ImportPoolSpec, ImportSpec, MESSAGE_LEN_MAX, ObjectItem, Refusal, Reply, Request,
    decode, encode,
};
use cenote_store::relocate::{ImportManifest, ImportPool};
use cenote_store::{
    Granted, Home, Keeper, Listed, ListedObject, LogDecision, ObjectInfo, OpenError, OpenReport,
    PermissionChange, Psync, SetAside, StoreError, TypeMismatch,
};
use cenote_sys::description_lock::NotForked;
use std::fs::File;
use std::io;
use std::os::fd::OwnedFd;
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};
use std::sync::{Mutex, PoisonError};
use std::time::{Duration, Instant};

/// How often a caller is asked whether it still wants an answer that takes long.
const LOOK_EVERY: Duration = Duration::from_millis(50);
/// How long a daemon that has ended is waited for.
const RECONNECT_WITHIN: Duration = Duration::from_secs(30);

impl Store {
    /// Connects to the daemon that keeps a store (`cenoted`). The result is used as an embedded
    /// store is; [`Store::open`] and this are all that differs. The last handle that is dropped
    /// closes the store, and the session with it.
    ///
    /// One process writes a pool ([`Access::ReadWrite`], the default), or any number of processes
    /// read it, or any number share it ([`Access::Shared`]). Another process gets
    /// [`StoreError::PoolBusy`]. One process writes a pool in shadowed mode. Objects are attached
    /// by `cenote_object`, on [`Store::handle`].
    ///
    /// # Errors
    /// [`Error::Open`](crate::Error::Open): no daemon listens there, it does not let this process
    /// in, or the addresses of the window are taken.
    ///
    /// [`Access::ReadWrite`]: crate::Access::ReadWrite
    /// [`Access::Shared`]: crate::Access::Shared
    pub fn connect(socket: impl AsRef<Path>) -> Result<Self> {
        let path = socket.as_ref();
        let failed =
            |detail: String| OpenError::Daemon { path: path.display().to_string(), detail };
        let (line, home, image) =
            Line::open(path, None).map_err(|error| failed(error.to_string()))?;
        let client = Client {
            path: path.to_path_buf(),
            client: home.client,
            store: home.store,
            line: Mutex::new(Some(line)),
            image: Mutex::new(image.map(NotForked::new)),
            token: cenote_sys::fork_guard::token(),
        };
        // SAFETY: the client passes on what the daemon answers on its socket, and makes up nothing.
        let store = unsafe { cenote_store::Store::connect(&home, Box::new(client)) }?;
        Ok(Self::over(store, OpenReport { clean: true, ..OpenReport::default() }))
    }

    /// Whether a daemon keeps the store.
    #[must_use]
    pub fn is_connected(&self) -> bool {
        self.inner.store.is_connected()
    }

    /// Changes a pool's owner, group or mode: who may open it through a daemon. Those who have it
    /// open keep it.
    ///
    /// # Errors
    /// [`Error::Store`](crate::Error::Store): there is no such pool, or this user may not.
    pub fn set_permissions(&self, pool: &str, change: PermissionChange) -> Result<()> {
        // In a store of this process it is the files' owner who decides, and this process has
        // opened them.
        let credentials = cenote_store::Credentials { uid: 0, gid: 0, groups: Vec::new() };
        Ok(self.inner.store.set_permissions(&credentials, pool, change)?)
    }

    /// Clients whose logs are set aside, because they failed their checks: their pools are for
    /// looking at only, until somebody decides. Through a daemon, those whose pools are all the
    /// caller's.
    ///
    /// # Errors
    /// [`Error::Store`](crate::Error::Store): the daemon cannot be reached.
    pub fn set_aside(&self) -> Result<Vec<SetAside>> {
        Ok(self.inner.store.set_aside()?)
    }

    /// Replays the logs of such a client, if they pass their checks now, because what was damaged
    /// has been brought back. Durable on return. The pools are traced when the first pool is opened
    /// next.
    ///
    /// # Errors
    /// [`Error::Store`](crate::Error::Store): no log of it is set aside, a pool of it is open or
    /// another user's, or the logs fail their checks still.
    pub fn apply_logs(&self, client: Uuid) -> Result<()> {
        self.decide_logs(client, LogDecision::Apply)
    }

    /// Forgets the logs of such a client. Its pools hold what the transactions had done when the
    /// client ended, half of one perhaps, and the store remembers that: in every session they are
    /// refused ([`StoreError::PoolTorn`]), or shown as blocks alone under another
    /// [`DamagePolicy`](cenote_store::DamagePolicy) than `Refuse`. Durable on return.
    ///
    /// What goes on from there: restore the pools, remove them, open the store by
    /// [`Store::open_torn`] and repair them, and then call [`Store::declare_whole`].
    ///
    /// # Errors
    /// As [`Store::apply_logs`].
    pub fn discard_logs(&self, client: Uuid) -> Result<()> {
        self.decide_logs(client, LogDecision::Discard)
    }

    /// Says that a pool whose logs were discarded is whole: its values are shown again, in this
    /// session and in later ones. Durable on return. Nothing happens if the pool is not torn.
    ///
    /// # Errors
    /// [`Error::Store`](crate::Error::Store): there is no such pool, it is open, or the user may
    /// not.
    ///
    /// # Safety
    /// The pool holds what whole transactions left: bytes of each block are a value of its type,
    /// and collections are what they say of themselves. [`crate::Pool::check`] does not tell: a
    /// vector that is half truncated has valid values. The caller has repaired the pool, or knows
    /// that no transaction was running.
    pub unsafe fn declare_whole(&self, pool: &str) -> Result<()> {
        self.inner.refuse_forked()?;
        // As for permissions.
        let credentials = cenote_store::Credentials { uid: 0, gid: 0, groups: Vec::new() };
        // A handle that is being dropped counts as open below.
        let declare = || {
            // SAFETY: the caller's promise.
            unsafe { self.inner.store.declare_whole(&credentials, pool) }
        };
        Ok(pools_of(&self.inner).while_closed(|name| name == pool, declare)?)
    }

    /// Names of pools that may be torn, because logs were discarded. Through a daemon: none, which
    /// says so when one is opened.
    #[must_use]
    pub fn torn_pools(&self) -> Vec<String> {
        self.inner.store.torn_pools()
    }

    fn decide_logs(&self, client: Uuid, decision: LogDecision) -> Result<()> {
        self.inner.refuse_forked()?;
        // As for permissions.
        let credentials = cenote_store::Credentials { uid: 0, gid: 0, groups: Vec::new() };
        Ok(self.inner.store.decide_logs(&credentials, client, decision)?)
    }
}

/// All pools, page by page.
pub(crate) fn pages_of_pools<E>(
    mut ask: impl FnMut(&Request) -> core::result::Result<Reply, E>,
    wrong: impl Fn(Reply) -> E,
) -> core::result::Result<Vec<Listed>, E> {
    let (mut listed, mut after): (Vec<Listed>, Option<PoolId>) = (Vec::new(), None);
    loop {
        match ask(&Request::Pools { after })? {
            Reply::Pools { items, more } => {
                let last = items.last().map(|item| item.record.id);
                listed.extend(items.into_iter().map(|item| Listed {
                    record: item.record,
                    bytes: item.bytes,
                    puddles: item.puddles,
                }));
                if !more || last <= after {
                    return Ok(listed);
                }
                after = last;
            }
            other => return Err(wrong(other)),
        }
    }
}

/// A connection, and the number of the last request.
#[derive(Debug)]
pub(crate) struct Line {
    channel: Channel,
    number: u32,
    buffer: Vec<u8>,
}

pub(crate) fn nonsense(reply: &Reply) -> io::Error {
    match reply {
        Reply::Refused(refusal) => io::Error::other(words(refusal)),
        _ => io::Error::other("the daemon's answer is to another question"),
    }
}

impl Line {
    /// Connects, and says hello. With what the daemon knows this program by.
    pub(crate) fn open(
        path: &Path,
        resume: Option<Uuid>,
    ) -> io::Result<(Self, Home, Option<OwnedFd>)> {
        let channel = Channel::connect(path)?;
        let mut line = Self { channel, number: 0, buffer: vec![0; MESSAGE_LEN_MAX] };
        let (reply, mut descriptors) = line.ask(&Request::Hello { resume })?;
        match reply {
            Reply::Welcome { client, store, window_base, window_len, medium, power } => {
                let level = |power| if power { Durability::Power } else { Durability::Process };
                let kind = match &*medium.kind {
                    "dax" => MediumKind::Dax,
                    "tmpfs" => MediumKind::Tmpfs,
                    "network" => MediumKind::Network,
                    "overlay" => MediumKind::Overlay,
                    _ => MediumKind::Ordinary,
                };
                let (path, fs, note) = (medium.path, medium.fs, medium.note);
                let medium = MediumInfo { path, kind, fs, durability: level(medium.power), note };
                let durability = level(power);
                let home = Home { client, store, window_base, window_len, medium, durability };
                Ok((line, home, descriptors.pop()))
            }
            Reply::Refused(Refusal::NoSession) => {
                Err(io::Error::new(io::ErrorKind::NotFound, "the session has ended"))
            }
            other => Err(nonsense(&other)),
        }
    }

    /// Sends a request and waits for its reply.
    pub(crate) fn ask(&mut self, request: &Request) -> io::Result<(Reply, Vec<OwnedFd>)> {
        Ok(self.ask_while(request, None)?.unwrap_or((Reply::Done, Vec::new())))
    }

    /// The same for an answer that takes long. `None`: there was no more patience; the connection
    /// is of no use then.
    pub(crate) fn ask_while(
        &mut self,
        request: &Request,
        more: Option<&mut dyn FnMut() -> bool>,
    ) -> io::Result<Option<(Reply, Vec<OwnedFd>)>> {
        self.number = self.number.wrapping_add(1);
        let invalid =
            |error: cenote_proto::DecodeError| io::Error::new(io::ErrorKind::InvalidData, error);
        let packet = encode(self.number, request).map_err(invalid)?;
        self.channel.send(&packet, &[])?;
        if let Some(more) = more {
            while !self.channel.readable_within(LOOK_EVERY)? {
                if !more() {
                    return Ok(None);
                }
            }
        }
        let received = self.channel.receive(&mut self.buffer)?;
        if received.len == 0 {
            return Err(io::ErrorKind::ConnectionReset.into());
        }
        let (number, reply) = decode(&self.buffer[..received.len]).map_err(invalid)?;
        if received.cut || number != self.number {
            return Err(io::Error::new(
                io::ErrorKind::InvalidData,
                "the daemon's answer is to another question",
            ));
        }
        Ok(Some((reply, received.descriptors)))
    }
}

/// Asks the daemon, for a store of this process.
#[derive(Debug)]
pub(crate) struct Client {
    pub(crate) path: PathBuf,
    client: Uuid,
    pub(crate) store: Uuid,
    /// `None`: the daemon has ended, and was not found again yet.
    line: Mutex<Option<Line>>,
    /// While it is open the daemon, and the next one, know that this program has what it was
    /// granted. It closes on `exec`.
    image: Mutex<Option<NotForked>>,
    /// Of the process that connected.
    token: u64,
}

/// Whether the daemon may be gone and come back.
pub(crate) fn is_lost(error: &io::Error) -> bool {
    use io::ErrorKind::{
        BrokenPipe, ConnectionAborted, ConnectionRefused, ConnectionReset, NotConnected,
    };
    matches!(
        error.kind(),
        BrokenPipe | ConnectionAborted | ConnectionRefused | ConnectionReset | NotConnected
    )
}

impl Client {
    /// Asks, as often as it takes; the answer, and whether it was asked more than once.
    fn ask(
        &self,
        request: &Request,
    ) -> core::result::Result<(Reply, Vec<OwnedFd>, bool), StoreError> {
        if !cenote_sys::fork_guard::is_current(self.token) {
            return Err(StoreError::Forked);
        }
        let refused = |error: io::Error| StoreError::Refused {
            detail: format!("the daemon at {} cannot be asked: {error}", self.path.display()),
        };
        let mut guard = self.line.lock().unwrap_or_else(PoisonError::into_inner);
        let began = Instant::now();
        let mut again = false;
        loop {
            let error = match &mut *guard {
                Some(line) => match line.ask(request) {
                    Ok((reply, descriptors)) => return Ok((reply, descriptors, again)),
                    Err(error) => error,
                },
                None => match self.resume() {
                    Ok(line) => {
                        *guard = Some(line);
                        continue;
                    }
                    // Its socket goes with the daemon, when that was told to end.
                    Err(error) if is_lost(&error) || error.kind() == io::ErrorKind::NotFound => {
                        if error.to_string() == "the session has ended" {
                            return Err(StoreError::NoGuest { client: self.client });
                        }
                        error
                    }
                    Err(error) => return Err(refused(error)),
                },
            };
            let gone = is_lost(&error) || error.kind() == io::ErrorKind::NotFound;
            if !gone || began.elapsed() > RECONNECT_WITHIN {
                return Err(refused(error));
            }
            again |= guard.take().is_some();
            std::thread::sleep(Duration::from_millis(5));
        }
    }

    /// Connects again, to the daemon that is there now, and goes on with the session.
    fn resume(&self) -> io::Result<Line> {
        let (line, home, image) = Line::open(&self.path, Some(self.client))?;
        if (home.client, home.store) != (self.client, self.store) {
            return Err(io::Error::other("it keeps another store now"));
        }
        // The one before is closed when the next is there: at no moment there is none.
        let mut held = self.image.lock().unwrap_or_else(PoisonError::into_inner);
        let before = held.take();
        *held = image.map(NotForked::new).or(before);
        Ok(line)
    }

    /// Asks once, if a daemon is there and no other thread asks it.
    pub(crate) fn ask_now(
        &self,
        request: &Request,
    ) -> core::result::Result<(Reply, Vec<OwnedFd>), StoreError> {
        if !cenote_sys::fork_guard::is_current(self.token) {
            return Err(StoreError::Forked);
        }
        let refused = |detail: &str| StoreError::Refused { detail: detail.into() };
        let Ok(mut guard) = self.line.try_lock() else {
            return Err(refused("another thread asks"));
        };
        if guard.is_none() {
            *guard = Some(self.resume().map_err(|error| refused(&error.to_string()))?);
        }
        match guard.as_mut().map(|line| line.ask(request)) {
            Some(Ok(answer)) => Ok(answer),
            Some(Err(error)) => {
                if is_lost(&error) {
                    *guard = None;
                }
                Err(refused(&error.to_string()))
            }
            None => Err(refused("the daemon has ended")),
        }
    }

    /// The answer to a request about something of that name.
    pub(crate) fn answer(
        &self,
        request: &Request,
        name: &str,
    ) -> core::result::Result<(Reply, Vec<OwnedFd>), StoreError> {
        let (reply, descriptors, again) = self.ask(request)?;
        match reply {
            Reply::Refused(refusal) => match (&refusal, request) {
                // What was done already, before the answer was lost.
                (Refusal::PoolUnknown, Request::RemovePool { .. })
                | (Refusal::ObjectUnknown, Request::DestroyObject { .. })
                    if again =>
                {
                    Ok((Reply::Done, Vec::new()))
                }
                (Refusal::NoSession, Request::Goodbye) => Ok((Reply::Done, Vec::new())),
                _ => Err(error_of(refusal, name)),
            },
            reply => Ok((reply, descriptors)),
        }
    }

    pub(crate) fn done(
        &self,
        request: &Request,
        name: &str,
    ) -> core::result::Result<(), StoreError> {
        match self.answer(request, name)?.0 {
            Reply::Done => Ok(()),
            other => Err(unexpected(&other)),
        }
    }

    /// Types that fit into one message.
    pub(crate) fn register_piece(
        &self,
        records: Vec<TypeRecord>,
    ) -> core::result::Result<(), StoreError> {
        match self.ask(&Request::RegisterTypes { records: records.clone() })?.0 {
            Reply::Done => Ok(()),
            Reply::Refused(Refusal::TypeMismatch { known }) => {
                let offered = records.into_iter().find(|record| record.id == known.id);
                match offered {
                    Some(offered) => Err(Box::new(TypeMismatch { known: *known, offered }).into()),
                    None => Err(StoreError::Refused {
                        detail: "the store knows a type with another layout".into(),
                    }),
                }
            }
            Reply::Refused(refusal) => Err(error_of(refusal, "")),
            other => Err(unexpected(&other)),
        }
    }

    /// One page of puddles with their descriptors.
    pub(crate) fn puddles(
        &self,
        request: &Request,
        name: &str,
    ) -> core::result::Result<(Vec<Granted>, bool), StoreError> {
        match self.answer(request, name)? {
            (Reply::Puddles { records, more }, descriptors)
                if records.len() == descriptors.len() =>
            {
                let granted = records.into_iter().zip(descriptors);
                Ok((
                    granted
                        .map(|(record, file)| Granted { record, file: File::from(file) })
                        .collect(),
                    more,
                ))
            }
            (other, _) => Err(unexpected(&other)),
        }
    }

    /// Puddles with their descriptors, all pages of them.
    pub(crate) fn all_puddles(
        &self,
        pool: PoolId,
        first: u32,
        request: impl Fn(u32) -> Request,
    ) -> core::result::Result<Vec<Granted>, StoreError> {
        let mut puddles: Vec<Granted> = Vec::new();
        loop {
            let next = puddles.last().map_or(first, |last| last.record.index + 1);
            let (page, more) = self.puddles(&request(next), &pool.to_string())?;
            // Whatever it sends, this ends.
            let goes_on = page.iter().any(|granted| granted.record.index >= next);
            puddles.extend(page);
            if !more || !goes_on {
                return Ok(puddles);
            }
        }
    }

    /// The one object that an answer is about, and its descriptor.
    pub(crate) fn one_object(
        &self,
        request: &Request,
        name: &str,
    ) -> core::result::Result<(ListedObject, Option<File>), StoreError> {
        match self.answer(request, name)? {
            (Reply::Objects { mut items, .. }, mut descriptors) if items.len() == 1 => {
                let file = descriptors.pop().map(File::from);
                items.pop().map(|item| (listed(item), file)).ok_or_else(one_only)
            }
            (other, _) => Err(unexpected(&other)),
        }
    }

    /// Asks with what `write` writes into a parcel of the daemon's making. If the daemon dies
    /// meanwhile its successor has no such parcel, and is asked with another.
    pub(crate) fn with_parcel(
        &self,
        write: impl Fn(&File) -> io::Result<()>,
        request: impl Fn(u64) -> Request,
    ) -> core::result::Result<Reply, StoreError> {
        let failed = |error| {
            StoreError::Medium(MediumError::from_io(Operation::Write, "the daemon's parcel", error))
        };
        loop {
            let (number, file) = match self.answer(&Request::Parcel, "")? {
                (Reply::Parcel { number }, mut descriptors) => {
                    (number, descriptors.pop().map(File::from).ok_or_else(one_only)?)
                }
                (other, _) => return Err(unexpected(&other)),
            };
            write(&file).map_err(failed)?;
            match self.ask(&request(number))?.0 {
                // Reconnecting ends after a time, and with it this.
                Reply::Refused(Refusal::NoParcel) => {}
                reply => return Ok(reply),
            }
        }
    }

    /// Asks for an import, or whether it could be.
    pub(crate) fn ask_import(
        &self,
        manifest: &ImportManifest,
        check_only: bool,
    ) -> core::result::Result<Reply, StoreError> {
        let import =
            |error: cenote_proto::DecodeError| StoreError::Import { detail: error.to_string() };
        let list = spec_of(manifest).encode().map_err(import)?;
        let len = list.len() as u32;
        let write = |file: &File| file.write_all_at(&list, 0);
        let reply =
            self.with_parcel(write, |parcel| Request::BeginImport { parcel, len, check_only })?;
        let Reply::Refused(refusal) = reply else { return Ok(reply) };
        let offered = match &refusal {
            Refusal::TypeMismatch { known } => {
                manifest.types.iter().find(|record| record.id == known.id)
            }
            _ => None,
        };
        // Of the pools' names, the one that the store would have said first.
        let name = manifest.pools.first().map_or("", |pool| &pool.name);
        Err(match (refusal, offered) {
            (Refusal::TypeMismatch { known }, Some(offered)) => {
                Box::new(TypeMismatch { known: *known, offered: offered.clone() }).into()
            }
            (Refusal::PoolExists, _) => {
                let known = self.pools().unwrap_or_default();
                let taken = manifest
                    .pools
                    .iter()
                    .find(|pool| known.iter().any(|k| k.record.name == pool.name));
                StoreError::PoolExists { name: taken.map_or(name, |pool| &pool.name).into() }
            }
            (refusal, _) => error_of(refusal, name),
        })
    }

    /// Psyncs what is in `parcel`, in one of the daemon's making. If the daemon dies meanwhile its
    /// successor has no such parcel, and gets another with the same contents: what was psynced
    /// already is no difference then.
    pub(crate) fn psync(
        &self,
        request: impl Fn(u64) -> Request,
        parcel: &File,
    ) -> core::result::Result<Psync, StoreError> {
        match self.with_parcel(|file| copy(parcel, file), request)? {
            Reply::Psynced { seq, pages, data_bytes, journal_bytes } => {
                Ok(Psync { seq, pages, data_bytes, journal_bytes, ..Psync::default() })
            }
            Reply::Refused(refusal) => Err(error_of(refusal, "")),
            other => Err(unexpected(&other)),
        }
    }

    pub(crate) fn puddle(
        &self,
        request: &Request,
        name: &str,
    ) -> core::result::Result<Granted, StoreError> {
        let (mut granted, _) = self.puddles(request, name)?;
        match (granted.pop(), granted.is_empty()) {
            (Some(one), true) => Ok(one),
            _ => Err(StoreError::Refused {
                detail: "the daemon did not answer with one puddle".into(),
            }),
        }
    }
}

/// A number that no other request has.
pub(crate) fn new_token() -> core::result::Result<Uuid, StoreError> {
    let token = cenote_sys::process::random_bytes16().map(Uuid::from_random_bytes);
    token.map_err(|error| StoreError::Refused { detail: error.to_string() })
}

fn spec_of(manifest: &ImportManifest) -> ImportSpec {
    let pool = |pool: &ImportPool| ImportPoolSpec {
        name: pool.name.clone(),
        old_id: pool.old_id,
        mode: pool.mode,
        heap: pool.heap,
        puddle_size: pool.puddle_size,
        size_max: pool.size_max,
        permissions: pool.permissions,
        torn: pool.torn,
        puddles: pool.puddles.iter().map(|puddle| (puddle.old_addr, puddle.size)).collect(),
    };
    ImportSpec { pools: manifest.pools.iter().map(pool).collect(), types: manifest.types.clone() }
}

pub(crate) fn one_only() -> StoreError {
    StoreError::Refused { detail: "the daemon did not answer with one object, or file".into() }
}

/// Copies all of a file to the start of another.
pub(crate) fn copy(from: &File, to: &File) -> io::Result<()> {
    let mut buffer = vec![0; 256 << 10];
    let mut at = 0;
    loop {
        match from.read_at(&mut buffer, at)? {
            0 => return Ok(()),
            len => {
                to.write_all_at(&buffer[..len], at)?;
                at += len as u64;
            }
        }
    }
}

pub(crate) fn listed(item: ObjectItem) -> ListedObject {
    let ObjectItem { record, addr, size, state, found, unchecked } = item;
    ListedObject { object: ObjectInfo { record, addr, size }, state, found, unchecked }
}

pub(crate) fn unexpected(reply: &Reply) -> StoreError {
    StoreError::Refused { detail: nonsense(reply).to_string() }
}

/// A refusal in words, for where there is no pool to name.
fn words(refusal: &Refusal) -> String {
    match refusal {
        Refusal::Limit { detail } | Refusal::Malformed { detail } | Refusal::Other { detail } => {
            detail.clone()
        }
        Refusal::NoSession => "the session has ended".into(),
        Refusal::Attached => "this process is connected under that session already".into(),
        other => format!("the daemon refuses: {other:?}"),
    }
}

/// A refusal as the error that an embedded store would give.
pub(crate) fn error_of(refusal: Refusal, name: &str) -> StoreError {
    let name = name.to_owned();
    match refusal {
        Refusal::PoolUnknown => StoreError::PoolUnknown { name },
        Refusal::PoolExists => StoreError::PoolExists { name },
        Refusal::PoolInUse => StoreError::PoolInUse { name },
        Refusal::PoolTorn => StoreError::PoolTorn { name },
        Refusal::PoolBusy { by } => StoreError::PoolBusy { name, by },
        Refusal::Permission { what } => {
            let known = [
                "read",
                "written",
                "removed",
                "given other permissions",
                "decided about",
                "declared whole",
            ];
            let what = known.into_iter().find(|known| *known == what).unwrap_or("used");
            StoreError::Permission { name, what }
        }
        Refusal::PoolFull { wanted, used, size_max } => {
            StoreError::PoolFull { name, wanted, used, size_max }
        }
        Refusal::ObjectUnknown => StoreError::ObjectUnknown { name },
        Refusal::ObjectExists => StoreError::ObjectExists { name },
        Refusal::ObjectBusy { writing, pid } => StoreError::ObjectBusy { name, writing, pid },
        Refusal::ObjectDenied { what, uid, mode, owner } => {
            let known = [
                "attached for reading",
                "attached for writing",
                "removed",
                "given other permissions",
            ];
            let what = known.into_iter().find(|known| *known == what).unwrap_or("used");
            StoreError::ObjectDenied { name, what, uid, mode, owner }
        }
        Refusal::NoSpace => {
            let full = io::Error::from(io::ErrorKind::StorageFull);
            let file = if name.is_empty() { "a file of the daemon's store" } else { &name };
            MediumError::from_io(Operation::Create, file, full).into()
        }
        Refusal::PsyncTooLarge { limit } => StoreError::PsyncTooLarge { needed: limit + 1, limit },
        Refusal::Import { detail } => StoreError::Import { detail },
        Refusal::Backup { detail } => StoreError::Backup { detail },
        Refusal::NotStill { pids, waited_ms } => {
            StoreError::NotStill { pids, waited: Duration::from_millis(waited_ms.into()) }
        }
        Refusal::NoImport => StoreError::Import {
            detail:
                "the daemon does not know of it any more: it has ended meanwhile, say; import again"
                    .into(),
        },
        other => StoreError::Refused { detail: words(&other) },
    }
}
