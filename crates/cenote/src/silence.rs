//! A daemon that does not answer: stopped by a signal, frozen, or hung.
//!
//! Requests may take long: an import, a backup, a recovery before a grant. So no request has a
//! limit. What has one is *silence*. After half of the limit without an answer, another connection
//! asks whether the daemon is there: a `Ping` as its first message. A thread of its own answers it,
//! without the store's lock and without the other threads. Any answer, also a refusal and the end
//! of that connection, is a sign of life: then the first connection waits on, and asks again after
//! as long. Without one in the second half, the request ends with [`Silent`].
//!
//! The daemon may still do what was asked, when it goes on. It reads what is left in the closed
//! connection before it lets the client's next connection have the session, so requests stay in
//! their order, and each is made once.

use cenote_proto::{Channel, Request, encode};
use std::io;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

/// How often a caller is asked whether it still wants an answer that takes long.
pub(crate) const LOOK_EVERY: Duration = Duration::from_millis(50);
/// The limit of a client whose daemon was silent before.
const AGAIN: Duration = Duration::from_secs(1);

/// How a program connects to a daemon: [`Store::connect_with`](crate::Store::connect_with).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct ConnectOptions {
    /// If the daemon gives no sign of life for so long, a request that waits for it returns an
    /// error (`OpenError::DaemonSilent`, `StoreError::DaemonSilent`). A daemon that works on a long
    /// request gives signs of life. Default: 30 seconds; at least 20 milliseconds.
    pub silence: Duration,
}

impl Default for ConnectOptions {
    fn default() -> Self {
        Self { silence: Duration::from_secs(30) }
    }
}

impl ConnectOptions {
    /// The default with another limit.
    #[must_use]
    pub fn with_silence(self, silence: Duration) -> Self {
        Self { silence }
    }

    pub(crate) fn limit(self) -> Duration {
        self.silence.max(Duration::from_millis(20))
    }

    /// For a daemon that was silent just now: other threads wait for their turn.
    pub(crate) fn again(self) -> Self {
        Self { silence: self.silence.min(AGAIN) }
    }
}

/// The daemon gave no sign of life. It is in an [`io::Error`] of kind `TimedOut`.
#[derive(Debug)]
pub(crate) struct Silent {
    pub(crate) waited: Duration,
    pub(crate) why: String,
}

impl core::fmt::Display for Silent {
    fn fmt(&self, f: &mut core::fmt::Formatter<'_>) -> core::fmt::Result {
        write!(
            f,
            "the daemon gave no sign of life for {:.1} s: {}",
            self.waited.as_secs_f64(),
            self.why
        )
    }
}

impl core::error::Error for Silent {}

/// Whether this is the reason.
pub(crate) fn silent(error: &io::Error) -> Option<&Silent> {
    error.get_ref()?.downcast_ref()
}

/// Waits for signs of life of the daemon at a path.
#[derive(Debug)]
pub(crate) struct Patience {
    path: PathBuf,
    limit: Duration,
}

impl Patience {
    pub(crate) fn new(path: &Path, options: ConnectOptions) -> Self {
        Self { path: path.to_path_buf(), limit: options.limit() }
    }

    /// How long silence lasts before it is asked about.
    pub(crate) fn half(&self) -> Duration {
        self.limit / 2
    }

    /// Connects; what waits longer than half of the limit is an error of kind `WouldBlock`.
    pub(crate) fn connect(&self) -> io::Result<Channel> {
        match Channel::connect_within(&self.path, self.half()) {
            Err(error) if error.kind() == io::ErrorKind::WouldBlock => Err(self.over(None)),
            connected => connected,
        }
    }

    /// After half of the limit without a word on `channel`: whether the daemon is there. `None`:
    /// `more` said no.
    ///
    /// # Errors
    /// It is silent.
    pub(crate) fn ask_for_life(
        &self,
        channel: &Channel,
        mut more: Option<&mut dyn FnMut() -> bool>,
    ) -> io::Result<Option<()>> {
        let until = Instant::now() + self.half();
        let ping = Channel::connect_within(&self.path, self.half()).and_then(|other| {
            let packet = encode(1, &Request::Ping).map_err(io::Error::other)?;
            other.send(&packet, &[])?;
            Ok(other)
        });
        loop {
            let left = until.saturating_duration_since(Instant::now()).min(LOOK_EVERY);
            let heard = match &ping {
                Ok(other) => other.readable_within(left)?,
                Err(_) => false,
            };
            if heard || channel.readable_within(if ping.is_ok() { Duration::ZERO } else { left })? {
                return Ok(Some(()));
            }
            if more.as_mut().is_some_and(|more| !more()) {
                return Ok(None);
            }
            if left.is_zero() {
                return Err(self.over(Some(channel)));
            }
        }
    }

    /// The error of a silence that has lasted too long.
    pub(crate) fn over(&self, channel: Option<&Channel>) -> io::Error {
        let pid = channel.and_then(Channel::peer_pid);
        let why = why(pid);
        io::Error::new(io::ErrorKind::TimedOut, Silent { waited: self.limit, why })
    }
}

/// What is seen of the process that listens, and what to do.
fn why(pid: Option<u32>) -> String {
    const RESTART: &str = "restart it (its clients go on with the next one), or wait longer";
    let Some((pid, state)) = pid.and_then(|pid| Some((pid, state_of(pid)?))) else {
        return format!("let it go on if it was stopped (kill -CONT), {RESTART}");
    };
    match state {
        'T' | 't' => format!("process {pid} is stopped: let it go on with `kill -CONT {pid}`"),
        _ => format!("process {pid} runs and does not answer: {RESTART}"),
    }
}

/// The state of a daemon's process; `None` for one of another program: a service manager's socket
/// is its own.
fn state_of(pid: u32) -> Option<char> {
    let stat = std::fs::read_to_string(format!("/proc/{pid}/stat")).ok()?;
    let (name, rest) = stat.rsplit_once(')')?;
    name.contains("(cenoted").then(|| rest.trim_start().chars().next())?
}
