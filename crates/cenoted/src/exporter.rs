//! Metrics for a collector: HTTP/1.1 at a UNIX socket or a loopback address, `GET /metrics` and
//! nothing else.
//!
//! Off unless it is asked for. One thread serves one connection at a time and gives each
//! [`PATIENCE`] in all. A collector that is slow or silent keeps other collectors waiting that
//! long, and no client. The thread reads no more than a few lines and keeps nothing. It shows what
//! `Request::Metrics` shows to every client, so a collector learns no more than a client does.

use crate::config::{MetricsAt, StartError};
use crate::metrics_page;
use crate::paths::make_room;
use crate::shared::{STACK_BYTES, Shared};
use rustix::event::{PollFd, PollFlags, Timespec};
use std::io::{self, Read, Write};
use std::net::{TcpListener, TcpStream};
use std::os::fd::{AsFd, BorrowedFd};
use std::os::unix::fs::PermissionsExt;
use std::os::unix::net::{UnixListener, UnixStream};
use std::path::PathBuf;
use std::sync::Arc;
use std::time::{Duration, Instant};

/// Longest request.
const REQUEST_LEN_MAX: usize = 8 << 10;
/// What a connection gets in all.
const PATIENCE: Duration = Duration::from_secs(2);
/// How long it may take to hear that the answer is all there is.
const LINGER: Duration = Duration::from_millis(200);

#[derive(Debug)]
enum Door {
    Unix(UnixListener, PathBuf),
    Tcp(TcpListener),
}

/// Shows metrics until it is dropped.
#[derive(Debug)]
pub(crate) struct Exporter {
    door: Arc<Door>,
    /// Closed when the thread is to end.
    stop: Option<UnixStream>,
    thread: Option<std::thread::JoinHandle<()>>,
}

impl Exporter {
    pub(crate) fn start(shared: &Arc<Shared>, at: &MetricsAt) -> Result<Self, StartError> {
        let failed =
            |path: PathBuf, advice| move |source| StartError::Path { path, advice, source };
        let door = match at {
            MetricsAt::Path(path) => {
                make_room(path, |path| UnixStream::connect(path).is_ok())?;
                let bound = UnixListener::bind(path).map_err(failed(
                    path.clone(),
                    "choose a path in a directory that this user may write",
                ))?;
                // As the socket of the store: they show no more than that does.
                std::fs::set_permissions(path, std::fs::Permissions::from_mode(0o666))
                    .map_err(failed(path.clone(), "check the directory that it lies in"))?;
                Door::Unix(bound, path.clone())
            }
            MetricsAt::Address(address) => {
                let taken =
                    failed(address.to_string().into(), "choose another port for the metrics");
                Door::Tcp(TcpListener::bind(address).map_err(taken)?)
            }
        };
        let place = match &door {
            Door::Unix(_, path) => path.display().to_string(),
            Door::Tcp(listener) => listener
                .local_addr()
                .map_or_else(|e| e.to_string(), |at| format!("http://{at}/metrics")),
        };
        tracing::info!("serving metrics at {place}");
        let door = Arc::new(door);
        let no_thread = failed(place.into(), "raise this user's limit of threads or descriptors");
        let (stop, stopped) = UnixStream::pair().map_err(no_thread.clone())?;
        let (theirs, shared) = (Arc::clone(&door), Arc::clone(shared));
        let thread = std::thread::Builder::new()
            .name("cenoted-metrics".into())
            .stack_size(STACK_BYTES)
            .spawn(move || serve(&shared, &theirs, stopped.as_fd()))
            .map_err(no_thread)?;
        Ok(Self { door, stop: Some(stop), thread: Some(thread) })
    }
}

impl Drop for Exporter {
    fn drop(&mut self) {
        drop(self.stop.take());
        if let Some(thread) = self.thread.take() {
            let _ = thread.join();
        }
        if let Door::Unix(_, path) = &*self.door {
            let _ = std::fs::remove_file(path);
        }
    }
}

fn serve(shared: &Shared, door: &Door, stopped: BorrowedFd<'_>) {
    let listener = match door {
        Door::Unix(listener, _) => listener.as_fd(),
        Door::Tcp(listener) => listener.as_fd(),
    };
    loop {
        let mut fds = [
            PollFd::from_borrowed_fd(listener, PollFlags::IN),
            PollFd::from_borrowed_fd(stopped, PollFlags::IN),
        ];
        match rustix::event::poll(&mut fds, None) {
            Ok(_) | Err(rustix::io::Errno::INTR) => {}
            Err(errno) => return tracing::error!("metrics are no longer served: {errno}"),
        }
        if !fds[1].revents().is_empty() {
            return;
        }
        if fds[0].revents().is_empty() {
            continue;
        }
        // A collector that goes away is its own affair.
        let accepted = match door {
            Door::Unix(listener, _) => {
                listener.accept().map(|(stream, _)| drop(unix(shared, stream)))
            }
            Door::Tcp(listener) => listener.accept().map(|(stream, _)| drop(tcp(shared, stream))),
        };
        if accepted.is_err() {
            // Out of descriptors, say: it is asked again, and not without end.
            std::thread::sleep(std::time::Duration::from_millis(10));
        }
    }
}

fn unix(shared: &Shared, stream: UnixStream) -> io::Result<()> {
    stream.set_nonblocking(true)?;
    talk(shared, &stream, &stream, stream.as_fd())
}

fn tcp(shared: &Shared, stream: TcpStream) -> io::Result<()> {
    stream.set_nonblocking(true)?;
    talk(shared, &stream, &stream, stream.as_fd())
}

/// Waits for the stream, as long as is left.
fn ready(stream: BorrowedFd<'_>, flags: PollFlags, end: Instant) -> io::Result<()> {
    let left = end.saturating_duration_since(Instant::now());
    let timeout = Timespec { tv_sec: left.as_secs() as i64, tv_nsec: left.subsec_nanos().into() };
    match rustix::event::poll(&mut [PollFd::from_borrowed_fd(stream, flags)], Some(&timeout)) {
        Ok(0) => Err(io::ErrorKind::TimedOut.into()),
        Ok(_) | Err(rustix::io::Errno::INTR) => Ok(()),
        Err(errno) => Err(errno.into()),
    }
}

/// One request and its answer.
fn talk(
    shared: &Shared,
    mut from: impl Read,
    mut to: impl Write,
    fd: BorrowedFd<'_>,
) -> io::Result<()> {
    let end = Instant::now() + PATIENCE;
    let mut request = Vec::new();
    while !request.windows(4).any(|end| end == b"\r\n\r\n") && request.len() < REQUEST_LEN_MAX {
        ready(fd, PollFlags::IN, end)?;
        let mut some = [0; 1024];
        match from.read(&mut some) {
            Ok(0) => break,
            Ok(len) => request.extend_from_slice(some.get(..len).unwrap_or_default()),
            Err(error) if error.kind() == io::ErrorKind::WouldBlock => {}
            Err(error) => return Err(error),
        }
    }
    let answer = answer(shared, &request);
    let mut left = answer.as_bytes();
    while !left.is_empty() {
        ready(fd, PollFlags::OUT, end)?;
        match to.write(left) {
            Ok(0) => break,
            Ok(len) => left = left.get(len..).unwrap_or_default(),
            Err(error) if error.kind() == io::ErrorKind::WouldBlock => {}
            Err(error) => return Err(error),
        }
    }
    // Closing the connection with a request unread would discard the answer.
    rustix::net::shutdown(fd, rustix::net::Shutdown::Write)?;
    let end = end.min(Instant::now() + LINGER);
    let mut rest = [0; 4096];
    for _ in 0..16 {
        ready(fd, PollFlags::IN, end)?;
        match from.read(&mut rest) {
            Ok(0) => break,
            Err(error) if error.kind() != io::ErrorKind::WouldBlock => break,
            _ => {}
        }
    }
    Ok(())
}

fn answer(shared: &Shared, request: &[u8]) -> String {
    let line = request.split(|byte| *byte == b'\r').next().unwrap_or_default();
    let mut words = line.split(|byte| *byte == b' ');
    let (status, body) = match (words.next(), words.next(), words.next()) {
        (Some(b"GET"), Some(b"/metrics"), Some(version)) if version.starts_with(b"HTTP/1.") => {
            ("200 OK", metrics_page::page(shared))
        }
        (Some(b"GET"), Some(_), Some(version)) if version.starts_with(b"HTTP/1.") => {
            ("404 Not Found", "metrics are at /metrics\n".into())
        }
        _ => ("400 Bad Request", "this address answers only GET /metrics HTTP/1.1\n".into()),
    };
    format!(
        "HTTP/1.1 {status}\r\nContent-Type: text/plain; version=0.0.4; \
         charset=utf-8\r\nContent-Length: {}\r\nConnection: close\r\n\r\n{body}",
        body.len()
    )
}
