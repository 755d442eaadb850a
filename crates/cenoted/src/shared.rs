//! What all threads of the daemon share.

use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::sync::atomic::AtomicU64;
use std::sync::{Mutex, OnceLock};
use std::time::Instant;

use cenote_object::Host;
use cenote_store::Store;
use rustix::event::EventfdFlags;

use crate::buffers::Buffers;
use crate::config::Limits;
use crate::log::{Quiet, say};
use crate::metrics::{LimitHit, Metrics};
use crate::per_user::{Counted, Full, PerUser};
use crate::quotas::Quotas;
use crate::sessions::Sessions;
use crate::turns::Turns;

/// Stack of a connection's thread, in bytes: reserved, and used as far as it is needed.
pub(crate) const STACK_BYTES: usize = 256 << 10;

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
    /// Why the daemon cannot go on.
    given_up: OnceLock<String>,
    /// Readable once the daemon cannot go on: it wakes the main thread.
    gives_up: OwnedFd,
    /// The store's objects, from the first request about one on.
    pub(crate) objects: OnceLock<Host>,
    /// Held by the thread that opens the objects.
    pub(crate) opening: Mutex<()>,
    /// Imports that are under way.
    pub(crate) imports: PerUser,
    pub(crate) backups: Turns,
}

impl Shared {
    /// What the threads of a new daemon share.
    ///
    /// # Errors
    /// The system has no more event descriptors.
    pub(crate) fn new(store: Store, sessions: Sessions, limits: Limits) -> io::Result<Self> {
        let gives_up = rustix::event::eventfd(0, EventfdFlags::CLOEXEC | EventfdFlags::NONBLOCK)?;
        Ok(Self {
            store,
            sessions,
            limits,
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
            backups: Turns::default(),
        })
    }

    /// Counts a connection of a user; `None`: there are too many.
    pub(crate) fn count(&self, uid: u32) -> Option<Counted> {
        let Limits { connections, connections_per_user, .. } = self.limits;
        match self.connections.add(uid, connections, connections_per_user) {
            Ok(counted) => Some(counted),
            Err(Full { all, his, of_all }) => {
                self.metrics.limit(if of_all {
                    LimitHit::Connections
                } else {
                    LimitHit::ConnectionsOfUser
                });
                say!(
                    self,
                    Refusals,
                    WARN,
                    uid,
                    "a connection is refused: there are {all}, {his} of this user"
                );
                None
            }
        }
    }

    /// Why the daemon cannot go on, if it cannot.
    pub(crate) fn given_up(&self) -> Option<&str> {
        self.given_up.get().map(String::as_str)
    }

    /// Becomes readable when the daemon cannot go on.
    pub(crate) fn gives_up(&self) -> BorrowedFd<'_> {
        self.gives_up.as_fd()
    }

    /// Ends the daemon, as soon as its main thread is woken.
    pub(crate) fn give_up(&self, why: &str) {
        if self.given_up.set(why.to_owned()).is_ok() {
            tracing::error!("the daemon ends, because the store may no longer be durable: {why}");
        }
        let _ = rustix::io::write(&self.gives_up, &1_u64.to_ne_bytes());
    }

    /// Waits for the store's lock, which each request takes. Ends the daemon if the store is
    /// poisoned.
    pub(crate) fn look(&self) {
        let _ = self.store.hosted_clients();
        if let Err(why) = self.store.check_usable() {
            self.give_up(&why.to_string());
        }
    }
}
