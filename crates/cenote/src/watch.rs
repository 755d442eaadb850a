//! Asking a daemon what it is doing: its clients, its pools, what it counts (PUD-1).
//!
//! A watcher is a session of its own, which is given nothing: the daemon forgets it with its
//! connection. It asks one request at a time.

use crate::answers::nonsense;
use crate::line::{DaemonLine, pages_of_pools};
use crate::silence::ConnectOptions;
use cenote_layout::id::Uuid;
use cenote_proto::{ClientItem, Reply, Request, Stat};
use cenote_store::PoolListing;
use std::io;
use std::path::Path;

/// A session that asks a daemon for its figures.
#[derive(Debug)]
pub struct Watcher {
    line: DaemonLine,
    client: Uuid,
}

impl Watcher {
    /// Connects to the daemon at a socket. The daemon counts this session among its clients, and
    /// its requests among the messages.
    ///
    /// # Errors
    /// No daemon listens there, or the daemon does not let this process in.
    pub fn connect(socket: impl AsRef<Path>) -> io::Result<Self> {
        let (line, home, _) = DaemonLine::open(socket.as_ref(), None, ConnectOptions::default())?;
        Ok(Self { line, client: home.client })
    }

    /// This session, as the daemon lists it.
    #[must_use]
    pub fn client(&self) -> Uuid {
        self.client
    }

    /// What the daemon is doing.
    ///
    /// # Errors
    /// It has ended, or its answer is none.
    pub fn stat(&mut self) -> io::Result<Stat> {
        match self.line.ask(&Request::Stat)?.0 {
            Reply::Stat(stat) => Ok(stat),
            other => Err(nonsense(&other)),
        }
    }

    /// The daemon's sessions, by identity.
    ///
    /// # Errors
    /// As for [`Watcher::stat`].
    pub fn clients(&mut self) -> io::Result<Vec<ClientItem>> {
        let mut clients: Vec<ClientItem> = Vec::new();
        loop {
            let after = clients.last().map(|last| last.client);
            match self.line.ask(&Request::Clients { after })?.0 {
                Reply::Clients { items, more } => {
                    // The loop ends with any answer of the daemon.
                    let goes_on = items.last().map(|last| last.client) > after;
                    clients.extend(items);
                    if !more || !goes_on {
                        return Ok(clients);
                    }
                }
                other => return Err(nonsense(&other)),
            }
        }
    }

    /// The pools of the store: name, bytes and puddles.
    ///
    /// # Errors
    /// As for [`Watcher::stat`].
    pub fn pools(&mut self) -> io::Result<Vec<PoolListing>> {
        pages_of_pools(|request| Ok(self.line.ask(request)?.0), |other| nonsense(&other))
    }

    /// What it counts, in Prometheus' text format.
    ///
    /// # Errors
    /// As for [`Watcher::stat`].
    pub fn metrics(&mut self) -> io::Result<String> {
        match self.line.ask(&Request::Metrics)?.0 {
            Reply::Metrics { text } => Ok(text),
            other => Err(nonsense(&other)),
        }
    }
}

impl Drop for Watcher {
    fn drop(&mut self) {
        // Of a session that was given nothing, the end of its connection is as good.
        let _ = self.line.ask(&Request::Goodbye);
    }
}

/// The figures of the daemon at a socket. Opens a session for that, and ends it.
///
/// # Errors
/// No daemon listens there, or the answer is none.
pub fn daemon_stat(socket: impl AsRef<Path>) -> io::Result<Stat> {
    Watcher::connect(socket)?.stat()
}
