//! The socket, and the daemon's beginning and end.
//!
//! Starting:
//!
//! 1. The store is opened, under its lock, which keeps a second daemon out. Living clients of an
//!    earlier daemon are taken over.
//! 2. The store's files are closed to others.
//! 3. A socket at the path that no daemon answers at is removed.
//! 4. The socket is bound. No client connects before that. A socket that the service manager passed
//!    exists already: its clients wait, and are served after 2.
//!
//! Ending: on request; or because the store is poisoned (a sync has failed, so nothing more can be
//! promised). The latter is an error: the service manager starts the next daemon, which recovers
//! from the medium, and clients go on there.

use crate::careful::Careful;
use crate::config::{Config, StartError};
use crate::connection::{self, TurnedAway, Why};
use crate::ends;
use crate::exporter::Exporter;
use crate::images::Images;
use crate::log::say;
use crate::paths::{close_to_others, make_room};
use crate::sessions::Sessions;
use crate::shared::{STACK_BYTES, Shared};
use cenote_layout::catalog::HostedClientRecord;
use cenote_medium::{Medium, MediumOptions, RealMedium};
use cenote_proto::{Channel, Listener};
use cenote_relocate::PointerRewriter;
use cenote_store::relocate::{Backend, RelocationOptions, Rewriter};
use cenote_store::{FormatOptions, Hosting, OpenOptions, OpenReport, Store, StoreError};
use cenote_sys::peer;
use rustix::event::{PollFd, PollFlags, Timespec};
use std::fs::Permissions;
use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::os::unix::fs::PermissionsExt;
use std::path::PathBuf;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;

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

impl Server {
    /// Opens the store and listens: at the socket that was passed, or at the configured path.
    ///
    /// # Errors
    /// [`StartError`]. The store is as it was, or recovered.
    pub fn start(config: &Config, passed: Option<OwnedFd>) -> Result<Self, StartError> {
        let passed = passed
            .map(Listener::adopt)
            .transpose()
            .map_err(|source| StartError::Passed { source })?;
        if passed.is_none() && config.socket.as_os_str().is_empty() {
            return Err(StartError::NoSocket);
        }
        let medium = MediumOptions { create: true, ..MediumOptions::default() };
        let medium: Arc<dyn Medium> = Arc::new(RealMedium::open(&config.store, &medium)?);
        if !medium.exists("superblock")? {
            cenote_store::format(Arc::clone(&medium), &FormatOptions::default())?;
        }
        // Whose pointers are to be made right is found by pointer maps, which the store has: no
        // application's code.
        let rewriter: Option<Arc<dyn Rewriter>> = Some(Arc::new(Careful(PointerRewriter)));
        let relocation = RelocationOptions { rewriter, backend: Backend::Eager };
        // SAFETY: the daemon opens no pool and attaches no object; clients come from `admit`, with
        // the process that the socket names, and their ends from the process being gone.
        let hosting = Some(unsafe { Hosting::new() });
        let options = OpenOptions { hosting, relocation, ..config.options.clone() };
        let (store, report) = Store::open(medium, options)?;
        close_to_others(&config.store)?;
        let hosted_clients: Vec<HostedClientRecord> = store.hosted_clients();
        let failed = |advice| {
            let path = config.socket.clone();
            move |source| StartError::Path { path, advice, source }
        };
        let images = Images::open(&config.store).map_err(|source| StartError::Path {
            path: config.store.join("clients"),
            advice: "the daemon's user must own the store",
            source,
        })?;
        let sessions = Sessions::new(images).map_err(failed(
            "the system refused an epoll descriptor to the \
                                                  daemon",
        ))?;
        let (listener, socket) = match passed {
            Some(listener) => (listener, None),
            None => {
                make_room(&config.socket, |path| Channel::connect(path).is_ok())?;
                let listener = Listener::bind(&config.socket).map_err(failed(
                    "choose a path in a directory that this user may write, of less than 108 bytes",
                ))?;
                // Every user who may reach the directory may connect; each pool's permissions
                // decide about that pool.
                std::fs::set_permissions(&config.socket, Permissions::from_mode(0o666))
                    .map_err(failed("check the directory that it lies in"))?;
                (listener, Some(config.socket.clone()))
            }
        };
        let shared = Shared::new(store, sessions, config.limits)
            .map_err(failed("the system refused an event descriptor to the daemon"))?;
        let shared = Arc::new(shared);
        for hosted_client in hosted_clients {
            let unwatched = |source| StartError::Client { pid: hosted_client.pid, source };
            shared.sessions.adopt(&hosted_client).map_err(unwatched)?;
        }
        let undertaker = Arc::clone(&shared);
        std::thread::Builder::new()
            .name("cenoted-ends".into())
            .spawn(move || ends::undertake(&undertaker))
            .map_err(failed("raise this user's limit of threads"))?;
        let exporter =
            config.metrics.as_ref().map(|at| Exporter::start(&shared, at)).transpose()?;
        Ok(Self { shared, listener, socket, exporter, report })
    }

    /// Where clients connect, if that has a path.
    #[must_use]
    pub fn path(&self) -> Option<PathBuf> {
        self.socket.clone().or_else(|| self.listener.path())
    }

    /// One line about what the daemon is doing. It takes the store's lock for that, so an answer
    /// shows that the lock can be had.
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

    /// Serves clients until `stop` is readable, or closed at its other end. Then no further one is
    /// let in; the store is closed if no client is connected, and otherwise left for the next
    /// daemon, which takes the clients over.
    ///
    /// # Errors
    /// Waiting for connections fails; or the store is poisoned, and the next daemon has to recover
    /// it.
    pub fn run(mut self, stop: BorrowedFd<'_>) -> io::Result<()> {
        let mut turned_away = TurnedAway::default();
        loop {
            let ours = [self.listener.as_fd(), stop, self.shared.gives_up()];
            let mut fds: Vec<PollFd<'_>> = ours
                .into_iter()
                .chain(turned_away.sockets())
                .map(|fd| PollFd::from_borrowed_fd(fd, PollFlags::IN))
                .collect();
            let patience = turned_away.patience().map(|left| Timespec {
                tv_sec: left.as_secs() as i64,
                tv_nsec: left.subsec_nanos().into(),
            });
            match rustix::event::poll(&mut fds, patience.as_ref()) {
                Ok(_) => {}
                Err(rustix::io::Errno::INTR) => continue,
                Err(errno) => return Err(errno.into()),
            }
            let [connects, stops, gives_up] =
                [0, 1, 2].map(|at: usize| !fds[at].revents().is_empty());
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
                    // Out of descriptors, say: the clients go on, and one of them may
                    // leave.
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
            // Then the next open has nothing to recover. Should this fail, the next open recovers.
            let _ = objects.checkpoint();
        }
        if let Some(why) = self.shared.given_up() {
            return Err(io::Error::other(why));
        }
        match self.shared.store.end_hosting() {
            Ok(()) => tracing::info!("the store is closed"),
            Err(StoreError::Hosting { .. }) => {
                tracing::info!("clients are still connected: the next daemon serves them");
            }
            Err(error) => {
                tracing::error!(
                    "the store was not closed: {error}; the next process that opens it recovers it"
                );
            }
        }
        Ok(())
    }

    /// Has a thread serve a connection, if it counts. One that is too many takes no thread.
    fn serve(&self, channel: Channel, turned_away: &mut TurnedAway) {
        let peer = match peer::of(channel.as_fd()) {
            Ok(peer) => peer,
            // A process that the daemon cannot wait for is not let in. One that is gone hears
            // nothing.
            Err(error) if peer::is_unseen(&error) => return turned_away.add(channel, Why::Unseen),
            Err(_) => return,
        };
        let Some(counted) = self.shared.count(peer.uid) else {
            return turned_away.add(channel, Why::Many);
        };
        let shared = Arc::clone(&self.shared);
        let thread =
            std::thread::Builder::new().name("cenoted-client".into()).stack_size(STACK_BYTES);
        if let Err(error) = thread.spawn(move || connection::serve(&shared, channel, peer, counted))
        {
            say!(self.shared, Failures, ERROR, "a client cannot be served: {error}");
        }
    }
}

/// Whether a daemon can answer, for a thread of its own.
#[derive(Clone, Debug)]
pub struct Pulse(Arc<Shared>);

impl Pulse {
    /// One line about what the daemon is doing. Takes the store's lock, as every request does: it
    /// comes back only if requests can be answered.
    #[must_use]
    pub fn status(&self) -> String {
        let shared = &self.0;
        shared.look();
        let failing = shared.sessions.failing();
        let failing = if failing == 0 {
            String::new()
        } else {
            format!(", {failing} ends to be tried again")
        };
        let (sessions, pools) = (shared.sessions.len(), shared.store.info().pools);
        format!(
            "serving {sessions} clients of {pools} pools, {} recovered{failing}",
            shared.metrics.recoveries.get()
        )
    }
}
