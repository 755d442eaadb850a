//! `cenoted --store DIR --socket PATH`: keeps a store for the programs of a machine.
//!
//! It ends at SIGTERM or SIGINT, and may be killed at any time: clients go on with their mappings,
//! and with their sessions once a daemon runs again.

mod arguments;

use arguments::Arguments;
use cenote_store::OpenError;
use cenoted::service::Manager;
use cenoted::{Config, Server, StartError};
use clap::Parser;
use rustix::process::{Resource, Rlimit};
use std::io::Write;
use std::os::fd::{AsFd, OwnedFd};
use std::process::ExitCode;
use std::sync::Arc;
use std::sync::atomic::AtomicBool;
use std::sync::mpsc::{self, RecvTimeoutError};
use std::time::Duration;

cenote_medium::ships!();

/// How often a service manager that expects no heartbeat is told what the daemon is doing.
const STATUS_EVERY: Duration = Duration::from_secs(10);

fn main() -> ExitCode {
    // SAFETY: nothing has been opened in this process yet.
    let passed = unsafe { cenote_sys::socket_activation::take() };
    cenoted::prepare_process();
    let arguments = match Arguments::try_parse() {
        Ok(arguments) => arguments,
        Err(error) => {
            let _ = error.print();
            return ExitCode::from(if error.use_stderr() { 2 } else { 0 });
        }
    };
    match arguments.log() {
        Ok(level) => cenoted::log::begin(level),
        Err(problem) => {
            let _ = writeln!(std::io::stderr(), "cenoted: {problem}");
            return ExitCode::from(2);
        }
    }
    // No other user may read the files that it makes.
    rustix::process::umask(rustix::fs::Mode::from_raw_mode(0o077));
    let done = passed.map_err(Into::into).and_then(|passed| run(&arguments.config(), passed));
    match done {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            let _ = writeln!(std::io::stderr(), "cenoted: {error}");
            // What is missing on the command line is no failure of the daemon.
            match error.downcast_ref() {
                Some(StartError::NoSocket) => ExitCode::from(2),
                _ => ExitCode::FAILURE,
            }
        }
    }
}

fn run(config: &Config, mut passed: Vec<OwnedFd>) -> Result<(), Box<dyn std::error::Error>> {
    let manager = Manager::from_environment()?;
    let (stop, signal) = std::os::unix::net::UnixStream::pair()?;
    for number in [signal_hook::consts::SIGTERM, signal_hook::consts::SIGINT] {
        signal_hook::low_level::pipe::register(number, signal.try_clone()?)?;
    }
    // A file that would become longer than this process may make it, the one that standard error
    // goes to for instance, is an error of that write, and not the end of the daemon.
    signal_hook::flag::register(signal_hook::consts::SIGXFSZ, Arc::new(AtomicBool::new(false)))?;
    allow_descriptors(config);
    if passed.len() > 1 {
        return Err(format!(
            "the service manager passed {} sockets, but the daemon takes one: check the socket \
             unit",
            passed.len()
        )
        .into());
    }
    let server = Server::start(config, passed.pop()).map_err(said)?;
    for damage in &server.report().damage {
        tracing::warn!("{damage}");
    }
    let at = server
        .path()
        .map_or_else(|| "a socket that was passed".into(), |path| path.display().to_string());
    // For a user who started it by hand, or a program that waits for this line.
    let _ = writeln!(std::io::stdout(), "cenoted: serving {} at {at}", config.store.display());
    manager.ready(&server.status());
    let served = attended(&manager, server, stop.as_fd());
    manager.stopping(if served.is_ok() { "told to end" } else { "cannot go on" });
    Ok(served?)
}

/// Why it did not start, for an operator: options of the library are none of a daemon's.
fn said(error: StartError) -> Box<dyn std::error::Error> {
    match error {
        StartError::Open(OpenError::Locked { path, holder, .. }) => {
            format!("{path} is in use by {holder}: end that process first, or keep another store")
                .into()
        }
        error => error.into(),
    }
}

/// Serves clients; a thread beside tells the service manager how that goes.
fn attended(
    manager: &Manager,
    server: Server,
    stop: std::os::fd::BorrowedFd<'_>,
) -> std::io::Result<()> {
    let pulse = server.pulse();
    let (ended, until) = mpsc::channel::<()>();
    std::thread::scope(|scope| {
        if manager.is_there() {
            let every = manager.heartbeat().unwrap_or(STATUS_EVERY).min(STATUS_EVERY);
            let attend = move || {
                while until.recv_timeout(every) == Err(RecvTimeoutError::Timeout) {
                    let status = pulse.status();
                    if manager.heartbeat().is_some() {
                        manager.beat(&status)
                    } else {
                        manager.status(&status)
                    }
                }
            };
            std::thread::Builder::new()
                .name("cenoted-service".into())
                .spawn_scoped(scope, attend)?;
        }
        let served = server.run(stop);
        drop(ended);
        served
    })
}

/// Takes as many descriptors as the system lets this process have: each connection needs two, its
/// socket and its process.
fn allow_descriptors(config: &Config) {
    let limit = rustix::process::getrlimit(Resource::Nofile);
    let wanted = 2 * config.limits.connections as u64 + 64;
    let _ = rustix::process::setrlimit(
        Resource::Nofile,
        Rlimit { current: limit.maximum, maximum: limit.maximum },
    );
    if limit.maximum.is_some_and(|most| most < wanted) {
        tracing::warn!(
            "this process may have {} descriptors, but {} connections may need {wanted}: raise \
             LimitNOFILE (ulimit -n), or lower --clients",
            limit.maximum.unwrap_or(0),
            config.limits.connections
        );
    }
}
