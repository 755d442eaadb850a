//! The daemon as a service of a service manager: sockets that it passes, and what it is told
//! (systemd's protocol, `sd_listen_fds` and `sd_notify`).
//!
//! Messages are lines `NAME=value` in a datagram to the socket that `NOTIFY_SOCKET` names. Nothing
//! waits for them: a manager that does not listen is no reason for a daemon not to serve.
//!
//! **A heartbeat says that requests can be answered**, not only that a thread runs: before each one
//! the store's lock is taken, which every request needs, and given back. A daemon that is stuck in
//! there sends none, and is killed and started again; its clients go on with their sessions then.

use rustix::net::{AddressFamily, SendFlags, SocketAddrUnix, SocketFlags, SocketType};
use std::io;
use std::os::fd::OwnedFd;
use std::os::unix::ffi::OsStrExt;
use std::time::Duration;

/// Longest status line, in bytes.
const STATUS_LEN_MAX: usize = 512;

/// The manager that started this process, if one did.
#[derive(Debug, Default)]
pub struct Manager {
    socket: Option<(OwnedFd, SocketAddrUnix)>,
    watchdog: Option<Duration>,
}

impl Manager {
    /// As the environment says: `NOTIFY_SOCKET`, `WATCHDOG_USEC` and `WATCHDOG_PID`.
    ///
    /// # Errors
    /// A variable that makes no sense; no socket can be had.
    pub fn from_environment() -> io::Result<Self> {
        let Some(name) = std::env::var_os("NOTIFY_SOCKET").filter(|name| !name.is_empty()) else {
            return Ok(Self::default());
        };
        let invalid = |what: &str| io::Error::new(io::ErrorKind::InvalidInput, what.to_owned());
        let address = match name.as_bytes() {
            [b'@', name @ ..] => SocketAddrUnix::new_abstract_name(name)?,
            [b'/', ..] => SocketAddrUnix::new(&*name)?,
            _ => return Err(invalid("NOTIFY_SOCKET is neither a path nor an abstract name")),
        };
        let socket = rustix::net::socket_with(
            AddressFamily::UNIX,
            SocketType::DGRAM,
            SocketFlags::CLOEXEC,
            None,
        )?;
        let number = |name: &str| std::env::var(name).ok().map(|value| value.parse::<u64>());
        let watchdog = match (number("WATCHDOG_USEC"), number("WATCHDOG_PID")) {
            (None, _) => None,
            (Some(Ok(0)) | Some(Err(_)), _) => return Err(invalid("WATCHDOG_USEC is no time")),
            (_, Some(Err(_))) => return Err(invalid("WATCHDOG_PID is no process")),
            // For another process.
            (_, Some(Ok(pid))) if pid != u64::from(cenote_sys::process::pid()) => None,
            (Some(Ok(us)), _) => Some(Duration::from_micros(us)),
        };
        Ok(Self { socket: Some((socket, address)), watchdog })
    }

    /// Whether a manager expects messages from this process.
    #[must_use]
    pub fn is_there(&self) -> bool {
        self.socket.is_some()
    }

    /// How often it expects a heartbeat: half the time after which it takes the daemon for dead.
    #[must_use]
    pub fn heartbeat(&self) -> Option<Duration> {
        self.watchdog.map(|watchdog| watchdog / 2)
    }

    /// The daemon listens, and the store is recovered.
    pub fn ready(&self, status: &str) {
        self.tell("READY=1", Some(status));
    }

    /// What the daemon is doing, for people.
    pub fn status(&self, status: &str) {
        self.tell("", Some(status));
    }

    /// It can answer requests; and what it is doing.
    pub fn beat(&self, status: &str) {
        self.tell("WATCHDOG=1", Some(status));
    }

    /// It ends, because it was told to, or because it cannot go on.
    pub fn stopping(&self, status: &str) {
        self.tell("STOPPING=1", Some(status));
    }

    fn tell(&self, state: &str, status: Option<&str>) {
        let Some((socket, address)) = &self.socket else { return };
        let mut message = state.to_owned();
        if let Some(status) = status {
            // A line is all that it may be.
            let line: String =
                status.chars().map(|c| if c.is_control() { ' ' } else { c }).collect();
            let end =
                (0..=STATUS_LEN_MAX.min(line.len())).rev().find(|end| line.is_char_boundary(*end));
            message = format!("{message}\nSTATUS={}", &line[..end.unwrap_or(0)]);
        }
        let flags = SendFlags::NOSIGNAL | SendFlags::DONTWAIT;
        if let Err(error) =
            rustix::net::sendto(socket, message.trim_start().as_bytes(), flags, address)
        {
            tracing::debug!("the service manager cannot be told {state:?}: {error}");
        }
    }
}
