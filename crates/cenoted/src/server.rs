//! The socket, and what all connections share.
//!
//! Starting: (1) the store is opened, under its lock, which keeps a second daemon out; guests of an earlier daemon that live are taken over; (2) the store's files are closed to
//! others; (3) what is at the socket's path, if it is a socket that nobody answers at, is removed; (4) the socket is bound. Nobody connects before that. A socket that the service manager has passed
//! is there already: who has connected to it waits, and is served after (2).
//!
//! Ending: told to; or because the store is poisoned (a sync has failed, so that nothing more can be promised), which is an error: the service manager, or whoever starts it, has the next one recover from what is on
//! the medium, and clients go on there.

use crate::connection::{self, Buffers, TurnedAway};
use crate::exporter::{Exporter, MetricsAt};
use crate::images::Images;
use crate::imports::Careful;
use crate::log::{Quiet, say};
use crate::metrics::{LimitHit, Metrics};
use crate::per_user::{Counted, Full, PerUser};
use crate::quotas::Quotas;
use crate::sessions::Sessions;
use cenote_layout::catalog::GuestRecord;
use cenote_medium::{Medium, MediumOptions, RealMedium};
use cenote_object::Objects;
use cenote_proto::{Channel, Listener};
use cenote_relocate::PointerRewriter;
use cenote_store::relocate::{Backend, RelocationOptions, Rewriter};
use cenote_store::{FormatError, FormatOptions, OpenError, OpenOptions, OpenReport, Store, StoreError};
use cenote_sys::peer;
use rustix::event::{EventfdFlags, PollFd, PollFlags, Timespec};
use std::fs::Permissions;
use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::os::unix::fs::{FileTypeExt, PermissionsExt};
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, OnceLock};
use std::time::{Duration, Instant};

/// Stack of a connection's thread, in bytes: reserved, and used as far as it is needed.
pub(crate) const STACK_BYTES: usize = 256 << 10;

/// Why a daemon does not start.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum StartError {
    /// The store.
    #[error(transparent)]
    Open(#[from] OpenError),
    /// The store that was to be made.
    #[error(transparent)]
    Format(#[from] FormatError),
    /// The store's directory.
    #[error(transparent)]
    Medium(#[from] cenote_medium::MediumError),
    /// A daemon listens at the socket's path already.
    #[error("{} is another daemon's socket: stop that, or choose another path", path.display())]
    SocketTaken {
        /// The path.
        path: PathBuf,
    },
    /// The service manager has passed what is of no use here.
    #[error(
        "the service manager passed a descriptor of which {source}; check the socket unit: it wants ListenSequentialPacket and one address"
    )]
    Passed {
        /// What is wrong with it.
        source: io::Error,
    },
    /// A client of an earlier daemon may live, and its end could not be noticed.
    #[error(
        "process {pid}, a client of the last daemon, cannot be watched: {source}; nothing of it was touched: let this user have more descriptors, or allow pidfd_open"
    )]
    Client {
        /// The process.
        pid: u32,
        /// What the system said.
        source: io::Error,
    },
    /// There is neither a path nor a socket.
    #[error("nobody could connect: give a path with --socket, or have the service manager pass a socket")]
    NoSocket,
    /// Something else is wrong with a path.
    #[error("{}: {source}; {advice}", path.display())]
    Path {
        /// The path.
        path: PathBuf,
        /// What to do.
        advice: &'static str,
        /// What the system said.
        source: io::Error,
    },
}

/// What one daemon, or one client, may have at most.
#[derive(Clone, Copy, Debug)]
pub struct Limits {
    /// Connections in all.
    pub connections: usize,
    /// Connections of one user. The superuser has no such limit.
    pub connections_per_user: usize,
    /// Puddles that one session may make: for pools, and for logs.
    pub puddles: u64,
    /// Bytes of those.
    pub bytes: u64,
    /// Puddles that one user has, whatever sessions made them. The superuser has no such limit.
    pub user_puddles: u64,
    /// Bytes of those.
    pub user_bytes: u64,
    /// Types that sessions of one user register while the daemon runs.
    pub user_types: u64,
    /// Bytes of their descriptions.
    pub user_type_bytes: u64,
    /// How long a client may take to say hello, and to take an answer.
    pub patience: Duration,
    /// How long clients may take to stand between two transactions, for a backup.
    pub standstill: Duration,
}

impl Default for Limits {
    fn default() -> Self {
        Self {
            connections: 1024,
            connections_per_user: 256,
            puddles: 1 << 20,
            bytes: u64::MAX,
            user_puddles: u64::MAX,
            user_bytes: u64::MAX,
            user_types: 1 << 16,
            user_type_bytes: 64 << 20,
            patience: Duration::from_secs(10),
            standstill: Duration::from_secs(2),
        }
    }
}

/// How a daemon is started.
#[derive(Clone, Debug)]
pub struct Config {
    /// The store's directory; formatted first if it is missing or empty.
    pub store: PathBuf,
    /// Where clients connect; empty: at a socket that was passed.
    pub socket: PathBuf,
    /// What they may have.
    pub limits: Limits,
    /// Where metrics are shown.
    pub metrics: Option<MetricsAt>,
    /// How the store is opened.
    pub options: OpenOptions,
}

impl Config {
    /// The default for a store and a socket.
    #[must_use]
    pub fn new(store: impl Into<PathBuf>, socket: impl Into<PathBuf>) -> Self {
        let options = OpenOptions { hosting: true, ..OpenOptions::default() };
        Self { store: store.into(), socket: socket.into(), limits: Limits::default(), metrics: None, options }
    }
}

/// What all threads share.
#[derive(Debug)]
pub(crate) struct Shared {
    pub(crate) store: Store,
    pub(crate) sessions: Sessions,
    pub(crate) limits: Limits,
    pub(crate) messages: AtomicU64,
    pub(crate) metrics: Metrics,
    pub(crate) quiet: Quiet,
    pub(crate) began: Instant,
    /// Connections by user.
    connections: PerUser,
    /// What users have registered and make, against their limits.
    pub(crate) quotas: Quotas,
    pub(crate) buffers: Buffers,
    /// Why the daemon cannot go on, and what wakes its main thread to hear it.
    given_up: OnceLock<String>,
    gives_up: OwnedFd,
    /// The store's objects, from the first request about one on; and who opens them.
    pub(crate) objects: OnceLock<Objects>,
    pub(crate) opening: Mutex<()>,
    /// Imports that are under way.
    pub(crate) imports: PerUser,
    /// Held while a backup is made: its number.
    pub(crate) backups: Mutex<u32>,
}

/// A daemon that listens.
#[derive(Debug)]
pub struct Server {
    shared: Arc<Shared>,
    listener: Listener,
    /// What is removed at the end; a socket that was passed is its giver's.
    socket: Option<PathBuf>,
    exporter: Option<Exporter>,
    report: OpenReport,
}

impl Shared {
    /// Counts a connection of a user; `None`: there are too many.
    pub(crate) fn count(&self, uid: u32) -> Option<Counted> {
        let Limits { connections, connections_per_user, .. } = self.limits;
        match self.connections.add(uid, connections, connections_per_user) {
            Ok(counted) => Some(counted),
            Err(Full { all, his, of_all }) => {
                self.metrics.limit(if of_all { LimitHit::Connections } else { LimitHit::ConnectionsOfUser });
                say!(
                    self,
                    Refusals,
                    WARN,
                    uid,
                    "a connection is refused: {all} are there, {his} of this user"
                );
                None
            }
        }
    }

    /// The daemon cannot go on, and ends as soon as its main thread hears of it.
    pub(crate) fn give_up(&self, why: &str) {
        if self.given_up.set(why.to_owned()).is_ok() {
            tracing::error!("the daemon ends, because nothing more can be promised: {why}");
        }
        let _ = rustix::io::write(&self.gives_up, &1_u64.to_ne_bytes());
    }

    /// Whether requests can be answered: waits for the store's lock. Ends the daemon if the store is poisoned.
    pub(crate) fn look(&self) {
        let _ = self.store.guests();
        if let Err(why) = self.store.check_usable() {
            self.give_up(&why.to_string());
        }
    }
}

impl Server {
    /// Opens the store and listens: at the socket that was passed, or at the configured path.
    ///
    /// # Errors
    /// [`StartError`]. The store is as it was, or recovered.
    pub fn start(config: &Config, passed: Option<OwnedFd>) -> Result<Self, StartError> {
        let passed =
            passed.map(Listener::adopt).transpose().map_err(|source| StartError::Passed { source })?;
        if passed.is_none() && config.socket.as_os_str().is_empty() {
            return Err(StartError::NoSocket);
        }
        let medium = MediumOptions { create: true, ..MediumOptions::default() };
        let medium: Arc<dyn Medium> = Arc::new(RealMedium::open(&config.store, &medium)?);
        if !medium.exists("superblock")? {
            cenote_store::format(Arc::clone(&medium), &FormatOptions::default())?;
        }
        // Whose pointers are to be made right is found by pointer maps, which the store has: no application's code.
        let rewriter: Option<Arc<dyn Rewriter>> = Some(Arc::new(Careful(PointerRewriter)));
        let relocation = RelocationOptions { rewriter, backend: Backend::Eager };
        let options = OpenOptions { hosting: true, relocation, ..config.options.clone() };
        let (store, report) = Store::open(medium, options)?;
        close_to_others(&config.store)?;
        let guests: Vec<GuestRecord> = store.guests();
        let failed = |advice| {
            let path = config.socket.clone();
            move |source| StartError::Path { path, advice, source }
        };
        let images = Images::open(&config.store).map_err(|source| StartError::Path {
            path: config.store.join("clients"),
            advice: "the daemon's user must own the store",
            source,
        })?;
        let sessions = Sessions::new(images).map_err(failed("the system has no epoll for the daemon"))?;
        let gives_up = rustix::event::eventfd(0, EventfdFlags::CLOEXEC | EventfdFlags::NONBLOCK)
            .map_err(|errno| failed("the system has no event for the daemon")(errno.into()))?;
        let (listener, socket) = match passed {
            Some(listener) => (listener, None),
            None => {
                make_room(&config.socket, |path| Channel::connect(path).is_ok())?;
                let listener = Listener::bind(&config.socket).map_err(failed(
                    "choose a path in a directory that this user may write, of less than 108 bytes",
                ))?;
                // Whoever may reach the directory may connect; what they may have is decided pool by pool.
                std::fs::set_permissions(&config.socket, Permissions::from_mode(0o666))
                    .map_err(failed("check the directory that it lies in"))?;
                (listener, Some(config.socket.clone()))
            }
        };
        let shared = Arc::new(Shared {
            store,
            sessions,
            limits: config.limits,
            messages: AtomicU64::new(0),
            metrics: Metrics::default(),
            quiet: Quiet::default(),
            began: Instant::now(),
            connections: PerUser::default(),
            quotas: Quotas::default(),
            buffers: Buffers::default(),
            given_up: OnceLock::new(),
            gives_up,
            objects: OnceLock::new(),
            opening: Mutex::default(),
            imports: PerUser::default(),
            backups: Mutex::default(),
        });
        for guest in guests {
            let unwatched = |source| StartError::Client { pid: guest.pid, source };
            shared.sessions.adopt(&guest).map_err(unwatched)?;
        }
        let undertaker = Arc::clone(&shared);
        std::thread::Builder::new()
            .name("cenoted-ends".into())
            .spawn(move || crate::sessions::undertake(&undertaker))
            .map_err(failed("the system lets this user have no more threads"))?;
        let exporter = config.metrics.as_ref().map(|at| Exporter::start(&shared, at)).transpose()?;
        Ok(Self { shared, listener, socket, exporter, report })
    }

    /// Where clients connect, if that has a path.
    #[must_use]
    pub fn path(&self) -> Option<PathBuf> {
        self.socket.clone().or_else(|| self.listener.path())
    }

    /// One line about what the daemon is doing; whoever can say it has had the store's lock.
    #[must_use]
    pub fn status(&self) -> String {
        self.pulse().status()
    }

    /// What tells, from another thread, whether the daemon can answer.
    #[must_use]
    pub fn pulse(&self) -> Pulse {
        Pulse(Arc::clone(&self.shared))
    }

    /// What opening the store found and did.
    #[must_use]
    pub fn report(&self) -> &OpenReport {
        &self.report
    }

    /// Messages answered so far, of all clients.
    #[must_use]
    pub fn messages(&self) -> u64 {
        self.shared.messages.load(Ordering::Relaxed)
    }

    /// Serves clients until `stop` is readable, or closed at its other end. Then no further one is let in; the store is closed if nobody is there, and otherwise left for the next
    /// daemon, which takes the clients over.
    ///
    /// # Errors
    /// Waiting for connections fails; or the store is poisoned, and the next daemon has to recover it.
    pub fn run(mut self, stop: BorrowedFd<'_>) -> io::Result<()> {
        let mut turned_away = TurnedAway::default();
        loop {
            let ours = [self.listener.as_fd(), stop, self.shared.gives_up.as_fd()];
            let mut fds: Vec<PollFd<'_>> = ours
                .into_iter()
                .chain(turned_away.sockets())
                .map(|fd| PollFd::from_borrowed_fd(fd, PollFlags::IN))
                .collect();
            let patience = turned_away
                .patience()
                .map(|left| Timespec { tv_sec: left.as_secs() as i64, tv_nsec: left.subsec_nanos().into() });
            match rustix::event::poll(&mut fds, patience.as_ref()) {
                Ok(_) => {}
                Err(rustix::io::Errno::INTR) => continue,
                Err(errno) => return Err(errno.into()),
            }
            let [connects, stops, gives_up] = [0, 1, 2].map(|at: usize| !fds[at].revents().is_empty());
            if stops || gives_up {
                break;
            }
            turned_away.answer(&self.shared);
            if !connects {
                continue;
            }
            match self.listener.accept() {
                Ok(channel) => self.serve(channel, &mut turned_away),
                Err(error) => {
                    // Out of descriptors, say: those who are there go on, and one of them may leave.
                    say!(self.shared, Failures, ERROR, "a connection was not accepted: {error}");
                    std::thread::sleep(Duration::from_millis(10));
                }
            }
        }
        if let Some(socket) = &self.socket {
            let _ = std::fs::remove_file(socket);
        }
        drop(self.exporter.take());
        self.shared.sessions.stop();
        if let Some(objects) = self.shared.objects.get() {
            // Whoever opens the store next has nothing to recover. Should it fail, that recovers.
            let _ = objects.checkpoint();
        }
        if let Some(why) = self.shared.given_up.get() {
            return Err(io::Error::other(why.clone()));
        }
        match self.shared.store.end_hosting() {
            Ok(()) => tracing::info!("the store is closed"),
            Err(StoreError::Hosting { .. }) => {
                tracing::info!("clients are there, and are left to the next daemon");
            }
            Err(error) => {
                tracing::error!("the store was not closed, and is recovered when it is opened next: {error}");
            }
        }
        Ok(())
    }

    /// Has a thread serve a connection, if it counts. Who is one too many takes no thread.
    fn serve(&self, channel: Channel, turned_away: &mut TurnedAway) {
        // Gone already, or of another machine's namespace: whom nobody can wait for is not let in.
        let Ok(peer) = peer::of(channel.as_fd()) else { return };
        let Some(counted) = self.shared.count(peer.uid) else { return turned_away.add(channel) };
        let shared = Arc::clone(&self.shared);
        let thread = std::thread::Builder::new().name("cenoted-client".into()).stack_size(STACK_BYTES);
        if let Err(error) = thread.spawn(move || connection::serve(&shared, channel, peer, counted)) {
            say!(self.shared, Failures, ERROR, "a client cannot be served: {error}");
        }
    }
}

/// Whether a daemon can answer, for a thread of its own.
#[derive(Clone, Debug)]
pub struct Pulse(Arc<Shared>);

impl Pulse {
    /// One line about what the daemon is doing. Takes the store's lock, as every request does: it comes back only if requests can be answered.
    #[must_use]
    pub fn status(&self) -> String {
        let shared = &self.0;
        shared.look();
        let failing = shared.sessions.failing();
        let failing =
            if failing == 0 { String::new() } else { format!(", {failing} ends to be tried again") };
        let (sessions, pools) = (shared.sessions.len(), shared.store.info().pools);
        format!(
            "serving {sessions} clients of {pools} pools, {} recovered{failing}",
            shared.metrics.recoveries.get()
        )
    }
}

/// Removes a socket that a dead daemon left. The store's lock was taken before: no daemon of this store listens there.
pub(crate) fn make_room(socket: &Path, answers: impl Fn(&Path) -> bool) -> Result<(), StartError> {
    let Ok(found) = std::fs::symlink_metadata(socket) else { return Ok(()) };
    let path = || socket.to_path_buf();
    if !found.file_type().is_socket() {
        let source = io::ErrorKind::AlreadyExists.into();
        return Err(StartError::Path {
            path: path(),
            advice: "it is no socket: choose another path",
            source,
        });
    }
    if answers(socket) {
        return Err(StartError::SocketTaken { path: path() });
    }
    std::fs::remove_file(socket).map_err(|source| StartError::Path {
        path: path(),
        advice: "a dead daemon's socket cannot be removed",
        source,
    })
}

/// Takes the rights of others from the store's directory and files. The directory's would do against opening by path; but a descriptor that was handed out for
/// reading could be opened again for writing through `/proc/self/fd` by whom the file's own mode lets.
fn close_to_others(dir: &Path) -> Result<(), StartError> {
    let failed = |path: &Path| {
        let path = path.to_path_buf();
        move |source| StartError::Path { path, advice: "the daemon's user must own the store", source }
    };
    for entry in std::fs::read_dir(dir).map_err(failed(dir))? {
        let path = entry.map_err(failed(dir))?.path();
        let found = std::fs::symlink_metadata(&path).map_err(failed(&path))?;
        if found.is_dir() {
            close_to_others(&path)?;
        } else if found.is_file() && found.permissions().mode() & 0o177 != 0 {
            std::fs::set_permissions(&path, Permissions::from_mode(0o600)).map_err(failed(&path))?;
        }
    }
    std::fs::set_permissions(dir, Permissions::from_mode(0o700)).map_err(failed(dir))
}
