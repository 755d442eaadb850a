//! What a daemon is started with, and why it does not start.

use std::io;
use std::net::SocketAddr;
use std::path::PathBuf;
use std::time::Duration;

use cenote_store::{FormatError, OpenError, OpenOptions};

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
        "the service manager passed a descriptor that cannot be used: {source}; check the socket \
         unit: it wants ListenSequentialPacket and one address"
    )]
    Passed {
        /// What is wrong with it.
        source: io::Error,
    },
    /// A client of an earlier daemon may live, and its end could not be noticed.
    #[error(
        "process {pid}, a client of the last daemon, cannot be watched: {source}; nothing of it \
         was touched: let this user have more descriptors, or allow pidfd_open"
    )]
    Client {
        /// The process.
        pid: u32,
        /// What the system said.
        source: io::Error,
    },
    /// There is neither a path nor a socket.
    #[error(
        "no client could connect: give a path with --socket, or have the service manager pass a \
         socket"
    )]
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
    /// Puddles of one user, of all its sessions together. The superuser has no such limit.
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
        Self {
            store: store.into(),
            socket: socket.into(),
            limits: Limits::default(),
            metrics: None,
            options: OpenOptions::default(),
        }
    }
}

/// Where metrics are shown.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum MetricsAt {
    /// A UNIX socket.
    Path(PathBuf),
    /// A loopback address.
    Address(SocketAddr),
}

impl MetricsAt {
    /// A path if there is a `/` in it, an address of this machine otherwise.
    ///
    /// # Errors
    /// Why it is neither.
    pub fn parse(text: &str) -> Result<Self, String> {
        if text.contains('/') {
            return Ok(Self::Path(text.into()));
        }
        match text.parse::<SocketAddr>() {
            Ok(address) if address.ip().is_loopback() => Ok(Self::Address(address)),
            Ok(address) => Err(format!(
                "{address} can be reached from other machines: use a loopback address, and a \
                 proxy in front of it that knows who may read"
            )),
            Err(_) => {
                Err("use a path with a / in it, or a loopback address with a port: 127.0.0.1:9464"
                    .into())
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn metrics_are_shown_to_this_machine_only() {
        assert_eq!(MetricsAt::parse("/run/m"), Ok(MetricsAt::Path("/run/m".into())));
        assert_eq!(MetricsAt::parse("./m"), Ok(MetricsAt::Path("./m".into())));
        for good in ["127.0.0.1:9464", "[::1]:0", "127.1.2.3:1"] {
            assert!(matches!(MetricsAt::parse(good), Ok(MetricsAt::Address(_))), "{good}");
        }
        for bad in ["0.0.0.0:9464", "192.168.1.1:80", "[::]:1", "9464", "localhost:1", "", "m"] {
            assert!(MetricsAt::parse(bad).is_err(), "{bad}");
        }
    }
}
