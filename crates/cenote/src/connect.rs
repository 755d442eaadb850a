//! A store that a daemon keeps: `Store::connect` (PUD-1).
//!
//! One socket, one request at a time ([`DaemonLine`]). Transactions send no request. A client sends
//! one when it opens or creates a pool, when a pool grows, when a thread needs its first log or a
//! log overflows, and when a type is new.
//!
//! **The daemon may end and another follow.** The kernel then closes the socket. The next request
//! connects again, resumes the session (the daemon knows the process by its number and start), and
//! is sent once more. To send a request twice is to make it once: a puddle is asked for by its
//! number, a pool is created with a token, and the end of the session removes a log puddle too
//! many. Transactions go on meanwhile: mappings and leases stay.

use crate::answers::{error_of, listed, one_only, unexpected};
use crate::error::Result;
use crate::line::{DaemonLine, is_lost};
use crate::session::Store;
use crate::silence::{ConnectOptions, silent};
use cenote_layout::error_kind::ErrorKind;
use cenote_layout::id::{PoolId, Uuid};
use cenote_layout::types::TypeRecord;
use cenote_medium::{MediumError, Operation};
use cenote_proto::{ImportPoolSpec, ImportSpec, Refusal, Reply, Request};
use cenote_store::relocate::{ImportManifest, ImportPool};
use cenote_store::{
    DaemonApi, Granted, ListedObject, OpenError, OpenReport, Psync, StoreError, TypeMismatch,
};
use cenote_sys::description_lock::NotForked;
use std::fs::File;
use std::io;
use std::os::fd::OwnedFd;
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Mutex, PoisonError};
use std::time::{Duration, Instant};

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
        Self::connect_with(socket, &ConnectOptions::default())
    }

    /// [`Store::connect`], with a limit of the program's on a daemon's silence: one that is
    /// stopped, say. It holds for connecting, and for all requests of this store.
    ///
    /// # Errors
    /// As of [`Store::connect`].
    pub fn connect_with(socket: impl AsRef<Path>, options: &ConnectOptions) -> Result<Self> {
        let path = socket.as_ref();
        let failed = |error: io::Error| {
            let path = path.display().to_string();
            match silent(&error) {
                Some(silent) => {
                    let (waited, why) = (silent.waited, silent.why.clone());
                    OpenError::DaemonSilent { path, waited, why }
                }
                None => OpenError::Daemon {
                    path,
                    kind: of_connection(&error),
                    detail: error.to_string(),
                },
            }
        };
        let (line, home, image) = DaemonLine::open(path, None, *options).map_err(failed)?;
        let client = Client {
            path: path.to_path_buf(),
            options: *options,
            was_silent: AtomicBool::new(false),
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
}

/// Asks the daemon, for a store of this process.
#[derive(Debug)]
pub(crate) struct Client {
    pub(crate) path: PathBuf,
    pub(crate) options: ConnectOptions,
    /// The last request ended so.
    was_silent: AtomicBool,
    client: Uuid,
    pub(crate) store: Uuid,
    /// `None`: the daemon has ended, and was not found again yet.
    line: Mutex<Option<DaemonLine>>,
    /// While it is open the daemon, and the next one, know that this program has what it was
    /// granted. It closes on `exec`.
    image: Mutex<Option<NotForked>>,
    /// Of the process that connected.
    token: u64,
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
        let refused = |error: io::Error| {
            silent_at(&self.path, &error).unwrap_or_else(|| StoreError::Refused {
                kind: of_connection(&error),
                detail: format!("the daemon at {} cannot be asked: {error}", self.path.display()),
            })
        };
        let mut guard = self.line.lock().unwrap_or_else(PoisonError::into_inner);
        let began = Instant::now();
        let mut again = false;
        loop {
            let error = match &mut *guard {
                Some(line) => match line.ask(request) {
                    Ok((reply, descriptors)) => {
                        self.was_silent.store(false, Ordering::Relaxed);
                        return Ok((reply, descriptors, again));
                    }
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
                            return Err(StoreError::NoClient { client: self.client });
                        }
                        error
                    }
                    Err(error) => error,
                },
            };
            if silent(&error).is_some() {
                // What may come on this connection is no answer to the next request.
                *guard = None;
                self.was_silent.store(true, Ordering::Relaxed);
            }
            let gone = is_lost(&error) || error.kind() == io::ErrorKind::NotFound;
            if !gone || began.elapsed() > RECONNECT_WITHIN {
                return Err(refused(error));
            }
            again |= guard.take().is_some();
            std::thread::sleep(Duration::from_millis(5));
        }
    }

    /// Connects again, to the daemon that is there now, and goes on with the session.
    fn resume(&self) -> io::Result<DaemonLine> {
        let options = match self.was_silent.load(Ordering::Relaxed) {
            true => self.options.again(),
            false => self.options,
        };
        let (line, home, image) = DaemonLine::open(&self.path, Some(self.client), options)?;
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
        let refused = |kind, detail: &str| StoreError::Refused { kind, detail: detail.into() };
        let Ok(mut guard) = self.line.try_lock() else {
            return Err(refused(ErrorKind::Busy, "another thread asks"));
        };
        if guard.is_none() {
            *guard = Some(
                self.resume()
                    .map_err(|error| refused(of_connection(&error), &error.to_string()))?,
            );
        }
        match guard.as_mut().map(|line| line.ask(request)) {
            Some(Ok(answer)) => Ok(answer),
            Some(Err(error)) => {
                if is_lost(&error) || silent(&error).is_some() {
                    *guard = None;
                }
                Err(refused(of_connection(&error), &error.to_string()))
            }
            None => Err(refused(ErrorKind::NotFound, "the daemon has ended")),
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
                        kind: ErrorKind::Misuse,
                        detail: "the store has a type of this name with another layout".into(),
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
            // The loop ends with any answer of the daemon.
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

    /// Asks with what `write` writes into a transfer of the daemon's making. If the daemon dies
    /// meanwhile its successor has no such transfer, and is asked with another.
    pub(crate) fn with_transfer(
        &self,
        write: impl Fn(&File) -> io::Result<()>,
        request: impl Fn(u64) -> Request,
    ) -> core::result::Result<Reply, StoreError> {
        let failed = |error| {
            StoreError::Medium(MediumError::from_io(
                Operation::Write,
                "the daemon's transfer",
                error,
            ))
        };
        loop {
            let (number, file) = match self.answer(&Request::Transfer, "")? {
                (Reply::Transfer { number }, mut descriptors) => {
                    (number, descriptors.pop().map(File::from).ok_or_else(one_only)?)
                }
                (other, _) => return Err(unexpected(&other)),
            };
            write(&file).map_err(failed)?;
            match self.ask(&request(number))?.0 {
                // Reconnecting ends after a time, and with it this.
                Reply::Refused(Refusal::NoTransfer) => {}
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
        let reply = self.with_transfer(write, |transfer| Request::BeginImport {
            transfer,
            len,
            check_only,
        })?;
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

    /// Psyncs what is in `transfer`, in one of the daemon's making. If the daemon dies meanwhile
    /// its successor has no such transfer, and gets another with the same contents: what was
    /// psynced already is no difference then.
    pub(crate) fn psync(
        &self,
        request: impl Fn(u64) -> Request,
        transfer: &File,
    ) -> core::result::Result<Psync, StoreError> {
        match self.with_transfer(|file| copy(transfer, file), request)? {
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
                kind: ErrorKind::Io,
                detail: "the daemon did not answer with one puddle".into(),
            }),
        }
    }
}

/// The kind of a connection that fails: without a daemon behind it there is no store.
pub(crate) fn of_connection(error: &io::Error) -> ErrorKind {
    match error.kind() {
        io::ErrorKind::ConnectionRefused => ErrorKind::NotFound,
        _ => ErrorKind::of_system(error),
    }
}

/// The error of a daemon at `path` that gave no sign of life, if this is that.
pub(crate) fn silent_at(path: &Path, error: &io::Error) -> Option<StoreError> {
    let silent = silent(error)?;
    let (socket, waited) = (path.display().to_string(), silent.waited);
    Some(StoreError::DaemonSilent { socket, waited, why: silent.why.clone() })
}

/// A number that no other request has.
pub(crate) fn new_token() -> core::result::Result<Uuid, StoreError> {
    let token = cenote_sys::process::random_bytes16().map(Uuid::from_random_bytes);
    token.map_err(|error| StoreError::Refused {
        kind: ErrorKind::of_system(&error),
        detail: error.to_string(),
    })
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
