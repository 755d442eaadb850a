//! Measures the Puddles paper's daemon primitives, beside what a UNIX socket takes for the same on
//! this machine in the same run.
//!
//! The daemon is a process of its own (its code, started by this program), and so is the one that
//! answers at the bare socket: it receives a packet and sends one back, of the lengths of the
//! no-op's, and does nothing else. Systems take turns, 200 requests at a time.
//!
//! The rows, each of system `cenote` and, beside it, what a socket takes:
//!
//! * `noop`, in us: a request that does nothing. Beside it: `socket`: a packet there and one back.
//! * `exist_puddle`, in us: the puddle of a pool that the client has, with its descriptor. Beside
//!   it: `socket+fd`: the same packets with a descriptor, which is closed.
//! * `new_puddle`, in us: one more puddle of 2 MiB for a pool, from the spare ones; 20 ms pass
//!   before each, in which the daemon makes the next one. Beside it: as above, 20 ms before each
//!   too, because a thread that has slept finds caches cold.
//! * `reg_log_space`, in us: a new session's log space. Beside it: as above.
//! * `replay_N`, in ms: from a client's SIGKILL, inside a transaction with N entries, to the daemon
//!   saying that it is recovered.
//! * `memory_1000`, in KiB: resident memory of the daemon, with 1,000 sessions that have a log
//!   space each.

use crate::case::{Failure, PROCESS};
use crate::figures::figure::{Body, Figure, Rows};
use crate::filter::Filter;
use crate::place::{Settings, medium};
use crate::runner::Row;
use cenote::{DaemonWatcher, Durability, FormatOptions, Persist, PoolOptions, Ptr, Store};
use cenote_proto::{Channel, Listener, MESSAGE_LEN_MAX, Reply, Request, decode, encode};
use std::collections::BTreeMap;
use std::fs::File;
use std::io::{BufRead, BufReader, Read, Write};
use std::os::fd::{AsFd, OwnedFd};
use std::os::unix::net::UnixStream;
use std::path::Path;
use std::process::{Child, Command, ExitCode, Stdio};
use std::time::{Duration, Instant};

/// The figure.
pub const FIGURE: Figure = Figure {
    name: "daemon",
    title: "daemon primitives (us), replay (ms), memory",
    body: Body::Report(report),
};

/// First argument of the processes that this one starts; the second is a role.
pub const CHILD: &str = "--of-the-daemons-figure";

/// Requests of one turn.
const TURN: u32 = 200;
/// Bytes of a puddle that is asked for.
const PUDDLE: u64 = 2 << 20;

#[derive(Persist)]
#[persist(name = "cenote-bench::DaemonWord")]
#[repr(C)]
struct Word {
    value: u64,
}

/// A process that ends with this one.
struct Helper(Child);

impl Drop for Helper {
    fn drop(&mut self) {
        // Gone already, perhaps; then there is nothing to kill.
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

impl Helper {
    fn start(arguments: &[&str]) -> Result<Self, Failure> {
        let child = Command::new(std::env::current_exe()?)
            .arg(CHILD)
            .args(arguments)
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .spawn()?;
        let mut helper = Self(child);
        let mut line = String::new();
        if let Some(output) = helper.0.stdout.take() {
            BufReader::new(output).read_line(&mut line)?;
        }
        if line.trim_end() != "ready" {
            return Err("a helper ended before it was ready; its message is above".into());
        }
        Ok(helper)
    }
}

/// A client that speaks the protocol by hand, as `Store::connect` does.
struct Raw {
    channel: Channel,
    buffer: Vec<u8>,
}

impl Raw {
    fn connect(socket: &Path) -> Result<Self, Failure> {
        let mut raw = Self { channel: Channel::connect(socket)?, buffer: vec![0; MESSAGE_LEN_MAX] };
        match raw.ask(&Request::Hello { resume: None })?.0 {
            Reply::Welcome { .. } => Ok(raw),
            other => Err(format!("the daemon says {other:?} to a hello").into()),
        }
    }

    fn ask(&mut self, request: &Request) -> Result<(Reply, Vec<OwnedFd>), Failure> {
        self.channel.send(&encode(1, request)?, &[])?;
        let received = self.channel.receive(&mut self.buffer)?;
        let (_, reply) = decode(&self.buffer[..received.len])?;
        match reply {
            Reply::Refused(why) => Err(format!("{request:?} is refused: {why:?}").into()),
            reply => Ok((reply, received.descriptors)),
        }
    }

    /// One puddle with its descriptor.
    fn puddle(&mut self, request: &Request) -> Result<(), Failure> {
        match self.ask(request)? {
            (Reply::Puddles { .. }, descriptors) if descriptors.len() == 1 => Ok(()),
            (other, descriptors) => {
                Err(format!("{other:?} with {} descriptors", descriptors.len()).into())
            }
        }
    }
}

/// Microseconds, by row and system.
#[derive(Default)]
struct Times(BTreeMap<(String, &'static str), Vec<f64>>);

impl Times {
    fn note(&mut self, row: &str, system: &'static str, value: f64) {
        self.0.entry((row.into(), system)).or_default().push(value);
    }

    /// Times each of so many calls alone, and notes the median: one that was disturbed does not
    /// count.
    fn turn(
        &mut self,
        (row, system): (&str, &'static str),
        times: u32,
        mut operation: impl FnMut() -> Result<Duration, Failure>,
    ) -> Result<(), Failure> {
        let mut us = Vec::new();
        for _ in 0..times {
            us.push(operation()?.as_secs_f64() * 1e6);
        }
        us.sort_by(f64::total_cmp);
        self.note(row, system, us[us.len() / 2]);
        Ok(())
    }
}

/// How long something takes.
fn timed(operation: impl FnOnce() -> Result<(), Failure>) -> Result<Duration, Failure> {
    let begin = Instant::now();
    operation()?;
    Ok(begin.elapsed())
}

/// A packet there and one back, of the lengths that a no-op has.
fn bare(
    channel: &Channel,
    buffer: &mut [u8],
    packet: &[u8],
    descriptors: usize,
) -> Result<(), Failure> {
    channel.send(packet, &[])?;
    let received = channel.receive(buffer)?;
    match (received.len, received.descriptors.len()) {
        (17, got) if got == descriptors => Ok(()),
        other => Err(format!("the bare socket answers {other:?}").into()),
    }
}

fn report(settings: &Settings, filter: &Filter, runs: usize, out: &mut dyn Write) -> Rows {
    let directory = settings.temporary()?;
    let (store, socket) = (directory.path().join("store"), directory.path().join("socket"));
    let bare_socket = directory.path().join("bare");
    cenote_store::format(medium(&store, Durability::Process)?, &FormatOptions::default())?;
    let text = |path: &Path| path.to_str().map(str::to_owned).ok_or("a path that is no text");
    let daemon = Helper::start(&["serve", &text(&store)?, &text(&socket)?])?;
    let _echo = Helper::start(&["echo", &text(&bare_socket)?])?;
    let mut times = Times::default();
    let runs = if settings.quick { 2 } else { runs };
    let turn = if settings.quick { 20 } else { TURN };
    for run in 0..runs {
        primitives(&mut times, &socket, &bare_socket, turn)?;
        writeln!(out, "  primitives, run {} of {runs}", run + 1)?;
    }
    let sizes: &[u64] = if settings.quick { &[1, 100] } else { &[1, 100, 10_000] };
    for _ in 0..runs {
        for entries in sizes {
            let ms = replay(&socket, *entries)?;
            times.note(&format!("replay_{entries}"), "cenote", ms);
        }
    }
    let sessions = if settings.quick { 50 } else { 1000 };
    let kib = memory(&daemon, &socket, sessions)?;
    times.note(&format!("memory_{sessions}"), "cenote", kib);
    let mut rows = Vec::new();
    for ((row, system), values) in times.0 {
        if filter.admits(&row, system, PROCESS) {
            let unit = match row.split('_').next() {
                Some("replay") => "ms",
                Some("memory") => "KiB",
                _ => "us",
            };
            rows.push(Row::of_values(FIGURE.name, row, (system, PROCESS, 1), unit, values));
        }
    }
    Ok(rows)
}

fn primitives(
    times: &mut Times,
    socket: &Path,
    bare_socket: &Path,
    turn: u32,
) -> Result<(), Failure> {
    let (plain, with_fd) =
        (encode(1, &Request::Ping)?, [encode(1, &Request::Ping)?, vec![1]].concat());
    let echo = Channel::connect(bare_socket)?;
    let mut buffer = vec![0; MESSAGE_LEN_MAX];
    let mut raw = Raw::connect(socket)?;
    let spec = cenote_proto::PoolSpec {
        mode: cenote::PoolMode::Direct,
        heap: cenote::HeapKind::Traced,
        puddle_size: PUDDLE,
        size_max: u64::MAX,
        permissions: 0o600,
    };
    let token = cenote::Uuid([0x77; 16]);
    let made = raw.ask(&Request::CreatePool { name: "primitives".into(), spec, token })?.0;
    let Reply::Created(pool) = made else { return Err(format!("{made:?} to a new pool").into()) };
    raw.ask(&Request::OpenPool { name: "primitives".into(), writable: true })?;
    times.turn(("noop", "socket"), turn, || timed(|| bare(&echo, &mut buffer, &plain, 0)))?;
    times.turn(("noop", "cenote"), turn, || timed(|| raw.ask(&Request::Ping).map(drop)))?;
    // Until the daemon has made the next puddle ready; and the same for the peer beside it.
    let pause = || std::thread::sleep(Duration::from_millis(20));
    times.turn(("new_puddle", "socket+fd"), turn / 10, || {
        pause();
        timed(|| bare(&echo, &mut buffer, &with_fd, 1))
    })?;
    for row in ["exist_puddle", "reg_log_space"] {
        times.turn((row, "socket+fd"), turn, || timed(|| bare(&echo, &mut buffer, &with_fd, 1)))?;
    }
    let there = Request::Puddles { pool, first: 0 };
    times.turn(("exist_puddle", "cenote"), turn, || timed(|| raw.puddle(&there)))?;
    let mut index = 0;
    times.turn(("new_puddle", "cenote"), turn / 10, || {
        index += 1;
        pause();
        timed(|| raw.puddle(&Request::TakePuddle { pool, index, size: PUDDLE, metadata: false }))
    })?;
    times.turn(("reg_log_space", "cenote"), turn / 4, || {
        let mut fresh = Raw::connect(socket)?;
        let took = timed(|| fresh.puddle(&Request::LogSpace))?;
        fresh.ask(&Request::Goodbye)?;
        Ok(took)
    })?;
    raw.ask(&Request::Goodbye)?;
    let mut raw = Raw::connect(socket)?;
    raw.ask(&Request::RemovePool { name: "primitives".into() })?;
    Ok(())
}

/// Milliseconds from the SIGKILL of a client to the daemon's word that it is recovered.
fn replay(socket: &Path, entries: u64) -> Result<f64, Failure> {
    let path = socket.to_str().ok_or("a path that is no text")?;
    let mut client = Helper::start(&["hold", path, &entries.to_string()])?;
    let mut watcher = DaemonWatcher::connect(socket)?;
    let before = watcher.stat()?;
    let begin = Instant::now();
    client.0.kill()?;
    let stat = loop {
        let stat = watcher.stat()?;
        if stat.recoveries > before.recoveries {
            break stat;
        }
        if begin.elapsed() > Duration::from_secs(60) {
            return Err("a client that was killed is not recovered within a minute".into());
        }
        std::thread::sleep(Duration::from_micros(20));
    };
    let ms = begin.elapsed().as_secs_f64() * 1e3;
    let replayed = stat.entries_replayed - before.entries_replayed;
    if replayed != entries {
        return Err(format!("{replayed} entries were replayed, and {entries} were logged").into());
    }
    Ok(ms)
}

/// KiB of the daemon with so many sessions.
fn memory(daemon: &Helper, socket: &Path, sessions: usize) -> Result<f64, Failure> {
    let limit = rustix::process::getrlimit(rustix::process::Resource::Nofile);
    let all = rustix::process::Rlimit { current: limit.maximum, maximum: limit.maximum };
    rustix::process::setrlimit(rustix::process::Resource::Nofile, all)?;
    let mut clients = Vec::with_capacity(sessions);
    for _ in 0..sessions {
        let mut raw = Raw::connect(socket)?;
        raw.puddle(&Request::LogSpace)?;
        raw.buffer = Vec::new();
        clients.push(raw);
    }
    let mut status = String::new();
    File::open(format!("/proc/{}/status", daemon.0.id()))?.read_to_string(&mut status)?;
    let resident = status.lines().find_map(|line| line.strip_prefix("VmRSS:"));
    Ok(resident
        .and_then(|kib| kib.trim().trim_end_matches(" kB").parse().ok())
        .ok_or("no VmRSS")?)
}

/// What the processes do that this one starts: arguments are [`CHILD`], a role, and what that
/// wants.
pub fn child(arguments: &[String]) -> ExitCode {
    let words: Vec<&str> = arguments.iter().map(String::as_str).collect();
    let done = match words[..] {
        [_, "serve", store, socket] => serve(store, socket),
        [_, "echo", socket] => echo(Path::new(socket)),
        [_, "hold", socket, entries] => hold(Path::new(socket), entries),
        _ => Err(format!("{CHILD} is only for this program itself").into()),
    };
    match done {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("{error}");
            ExitCode::FAILURE
        }
    }
}

/// The daemon, until it is killed or its standard input is closed.
fn serve(store: &str, socket: &str) -> Result<(), Failure> {
    cenoted::prepare_process();
    let mut config = cenoted::Config::new(store, socket);
    config.limits.connections = 2000;
    config.limits.connections_per_user = 2000;
    let all = rustix::process::getrlimit(rustix::process::Resource::Nofile).maximum;
    rustix::process::setrlimit(
        rustix::process::Resource::Nofile,
        rustix::process::Rlimit { current: all, maximum: all },
    )?;
    let server = cenoted::Server::start(&config, None)?;
    println!("ready");
    let (stop, ended) = UnixStream::pair()?;
    std::thread::spawn(move || {
        let _ = std::io::stdin().read(&mut [0]);
        drop(ended);
    });
    Ok(server.run(stop.as_fd())?)
}

/// Answers packets with packets of the length of a no-op's answer, and with a descriptor if the
/// packet is a byte longer than a no-op. One connection at a time, by a blocking receive.
fn echo(socket: &Path) -> Result<(), Failure> {
    let listener = Listener::bind(socket)?;
    let file = File::open("/dev/null")?;
    println!("ready");
    loop {
        let channel = listener.accept()?;
        let mut buffer = [0; 4096];
        loop {
            let received = channel.receive(&mut buffer)?;
            match received.len {
                0 => break,
                17 => channel.send(&[0; 17], &[])?,
                _ => channel.send(&[0; 17], &[file.as_fd()])?,
            }
        }
    }
}

/// A client that stays inside a transaction with so many undo entries until it is killed.
fn hold(socket: &Path, entries: &str) -> Result<(), Failure> {
    let entries: u64 = entries.parse()?;
    let store = Store::connect(socket)?;
    let name = format!("held {entries}");
    if store.pools().iter().all(|pool| pool.record.name != name) {
        store.create_pool(&name, &PoolOptions::default())?;
    }
    let pool = store.pool(&name)?;
    let mut words: Vec<Ptr<Word>> = Vec::new();
    while (words.len() as u64) < entries {
        let some = (entries - words.len() as u64).min(1000);
        words.extend(pool.write(|tx| -> cenote::Result<Vec<Ptr<Word>>> {
            (0..some).map(|value| tx.alloc(Word { value })).collect()
        })?);
    }
    pool.write(|tx| -> cenote::Result<()> {
        for word in &words {
            tx.get_mut(*word)?.value += 1;
        }
        println!("ready");
        let _ = std::io::stdin().read(&mut [0]);
        Ok(())
    })?;
    Ok(())
}
