//! The socket, and what all connections share.
//!
//! Starting: (1) the store is opened, under its lock, which keeps a second daemon out; guests of an earlier daemon that live are taken over; (2) the store's files are closed to
//! others; (3) what is at the socket's path, if it is a socket that nobody answers at, is removed; (4) the socket is bound. Nobody connects before that.

use crate::connection;
use crate::sessions::Sessions;
use cenote_layout::catalog::GuestRecord;
use cenote_medium::{Medium, MediumOptions, RealMedium};
use cenote_object::Objects;
use cenote_proto::{Channel, Listener};
use cenote_store::{FormatError, FormatOptions, OpenError, OpenOptions, OpenReport, Store, StoreError};
use rustix::event::{PollFd, PollFlags};
use std::collections::HashMap;
use std::fs::Permissions;
use std::io;
use std::os::fd::{AsFd, BorrowedFd};
use std::os::unix::fs::{FileTypeExt, PermissionsExt};
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, OnceLock, PoisonError};
use std::time::Duration;

/// Stack of a connection's thread, in bytes: reserved, and used as far as it is needed.
const STACK_BYTES: usize = 256 << 10;

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
    /// How long a client may take to say hello, and to take an answer.
    pub patience: Duration,
}

impl Default for Limits {
    fn default() -> Self {
        Self {
            connections: 1024,
            connections_per_user: 256,
            puddles: 1 << 20,
            bytes: u64::MAX,
            patience: Duration::from_secs(10),
        }
    }
}

/// How a daemon is started.
#[derive(Clone, Debug)]
pub struct Config {
    /// The store's directory; formatted first if it is missing or empty.
    pub store: PathBuf,
    /// Where clients connect.
    pub socket: PathBuf,
    /// What they may have.
    pub limits: Limits,
    /// How the store is opened.
    pub options: OpenOptions,
}

impl Config {
    /// The default for a store and a socket.
    #[must_use]
    pub fn new(store: impl Into<PathBuf>, socket: impl Into<PathBuf>) -> Self {
        let options = OpenOptions { hosting: true, ..OpenOptions::default() };
        Self { store: store.into(), socket: socket.into(), limits: Limits::default(), options }
    }
}

/// What all threads share.
#[derive(Debug)]
pub(crate) struct Shared {
    pub(crate) store: Store,
    pub(crate) sessions: Sessions,
    pub(crate) limits: Limits,
    pub(crate) messages: AtomicU64,
    /// Connections by user.
    connections: Mutex<HashMap<u32, usize>>,
    /// The store's objects, from the first request about one on; and who opens them.
    pub(crate) objects: OnceLock<Objects>,
    pub(crate) opening: Mutex<()>,
}

/// A daemon that listens.
#[derive(Debug)]
pub struct Server {
    shared: Arc<Shared>,
    listener: Listener,
    socket: PathBuf,
    report: OpenReport,
}

/// A connection that counts, until it is dropped.
pub(crate) struct Counted {
    shared: Arc<Shared>,
    uid: u32,
}

impl Drop for Counted {
    fn drop(&mut self) {
        let mut connections = self.shared.connections();
        if let Some(count) = connections.get_mut(&self.uid) {
            *count -= 1;
            if *count == 0 {
                connections.remove(&self.uid);
            }
        }
    }
}

impl Shared {
    fn connections(&self) -> MutexGuard<'_, HashMap<u32, usize>> {
        self.connections.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Counts a connection of a user; `None`: there are too many.
    pub(crate) fn count(self: &Arc<Self>, uid: u32) -> Option<Counted> {
        let mut connections = self.connections();
        let all: usize = connections.values().sum();
        let his = connections.get(&uid).copied().unwrap_or(0);
        if all >= self.limits.connections || (uid != 0 && his >= self.limits.connections_per_user) {
            return None;
        }
        connections.insert(uid, his + 1);
        Some(Counted { shared: Arc::clone(self), uid })
    }
}

impl Server {
    /// Opens the store and listens.
    ///
    /// # Errors
    /// [`StartError`]. The store is as it was, or recovered.
    pub fn start(config: &Config) -> Result<Self, StartError> {
        let medium = MediumOptions { create: true, ..MediumOptions::default() };
        let medium: Arc<dyn Medium> = Arc::new(RealMedium::open(&config.store, &medium)?);
        if !medium.exists("superblock")? {
            cenote_store::format(Arc::clone(&medium), &FormatOptions::default())?;
        }
        let options = OpenOptions { hosting: true, ..config.options.clone() };
        let (store, report) = Store::open(medium, options)?;
        close_to_others(&config.store)?;
        let guests: Vec<GuestRecord> = store.guests();
        let failed = |advice| {
            let path = config.socket.clone();
            move |source| StartError::Path { path, advice, source }
        };
        let sessions = Sessions::new().map_err(failed("the system has no epoll for the daemon"))?;
        make_room(&config.socket)?;
        let listener = Listener::bind(&config.socket).map_err(failed(
            "choose a path in a directory that this user may write, of less than 108 bytes",
        ))?;
        // Whoever may reach the directory may connect; what they may have is decided pool by pool.
        std::fs::set_permissions(&config.socket, Permissions::from_mode(0o666))
            .map_err(failed("check the directory that it lies in"))?;
        let shared = Arc::new(Shared {
            store,
            sessions,
            limits: config.limits,
            messages: AtomicU64::new(0),
            connections: Mutex::default(),
            objects: OnceLock::new(),
            opening: Mutex::default(),
        });
        for guest in guests {
            shared.sessions.adopt(&guest);
        }
        let undertaker = Arc::clone(&shared);
        std::thread::Builder::new()
            .name("cenoted-ends".into())
            .spawn(move || crate::sessions::undertake(&undertaker))
            .map_err(failed("the system lets this user have no more threads"))?;
        Ok(Self { shared, listener, socket: config.socket.clone(), report })
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
    /// Waiting for connections fails.
    pub fn run(self, stop: BorrowedFd<'_>) -> io::Result<()> {
        loop {
            let mut fds = [
                PollFd::from_borrowed_fd(self.listener.as_fd(), PollFlags::IN),
                PollFd::from_borrowed_fd(stop, PollFlags::IN),
            ];
            match rustix::event::poll(&mut fds, None) {
                Ok(_) => {}
                Err(rustix::io::Errno::INTR) => continue,
                Err(errno) => return Err(errno.into()),
            }
            if !fds[1].revents().is_empty() {
                break;
            }
            match self.listener.accept() {
                Ok(channel) => self.serve(channel),
                Err(error) => {
                    // Out of descriptors, say: those who are there go on, and one of them may leave.
                    eprintln!("cenoted: a connection was not accepted: {error}");
                    std::thread::sleep(Duration::from_millis(10));
                }
            }
        }
        let _ = std::fs::remove_file(&self.socket);
        self.shared.sessions.stop();
        if let Some(objects) = self.shared.objects.get() {
            // Whoever opens the store next has nothing to recover. Should it fail, that recovers.
            let _ = objects.checkpoint();
        }
        match self.shared.store.end_hosting() {
            Ok(()) | Err(StoreError::Hosting { .. }) => {}
            Err(error) => eprintln!(
                "cenoted: the store was not closed, and is recovered when it is opened next: {error}"
            ),
        }
        Ok(())
    }

    fn serve(&self, channel: Channel) {
        let shared = Arc::clone(&self.shared);
        let thread = std::thread::Builder::new().name("cenoted-client".into()).stack_size(STACK_BYTES);
        if let Err(error) = thread.spawn(move || connection::serve(&shared, &channel)) {
            eprintln!("cenoted: a client cannot be served: {error}");
        }
    }
}

/// Removes a socket that a dead daemon left. The store's lock was taken before: no daemon of this store listens there.
fn make_room(socket: &Path) -> Result<(), StartError> {
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
    if Channel::connect(socket).is_ok() {
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
