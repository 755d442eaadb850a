//! `cenoted --store DIR --socket PATH`: keeps a store for the programs of a machine.
//!
//! It ends at SIGTERM or SIGINT, and may be killed at any time: clients go on with their mappings, and with their sessions once it runs again.

use cenoted::{Config, Server};
use std::os::fd::AsFd;
use std::process::ExitCode;

const USAGE: &str = "\
usage: cenoted --store DIR --socket PATH [options]

Keeps the store in DIR, which it makes if it is missing or empty, and serves programs that connect to PATH.
The store's files are closed to other users; who may read or write a pool, its owner, group and mode say.

  --clients N            most connections (1024)
  --clients-per-user N   most connections of one user other than root (256)
  --client-puddles N     most puddles that one client may make (1048576)
  --client-bytes N       most bytes of those (no limit)
  --spare-bytes N        most bytes of puddles that are kept ready (33554432)
  --help                 this text
  --version              the version";

fn arguments() -> Result<Option<Config>, String> {
    let mut args = std::env::args_os().skip(1);
    let (mut store, mut socket) = (None, None);
    let mut config = Config::new("", "");
    while let Some(arg) = args.next() {
        let name = arg.to_string_lossy().into_owned();
        let mut value = || args.next().ok_or(format!("{name} wants a value"));
        let number = |value: std::ffi::OsString| {
            value.to_str().and_then(|text| text.parse::<u64>().ok()).ok_or(format!("{name} wants a number"))
        };
        match name.as_str() {
            "--store" => store = Some(value()?),
            "--socket" => socket = Some(value()?),
            "--clients" => config.limits.connections = number(value()?)? as usize,
            "--clients-per-user" => config.limits.connections_per_user = number(value()?)? as usize,
            "--client-puddles" => config.limits.puddles = number(value()?)?,
            "--client-bytes" => config.limits.bytes = number(value()?)?,
            "--spare-bytes" => config.options.spare_bytes_max = number(value()?)?,
            "--help" => {
                println!("{USAGE}");
                return Ok(None);
            }
            "--version" => {
                println!("cenoted {}", env!("CARGO_PKG_VERSION"));
                return Ok(None);
            }
            other => return Err(format!("{other} is no option")),
        }
    }
    config.store = store.ok_or("--store is missing")?.into();
    config.socket = socket.ok_or("--socket is missing")?.into();
    Ok(Some(config))
}

fn main() -> ExitCode {
    let config = match arguments() {
        Ok(Some(config)) => config,
        Ok(None) => return ExitCode::SUCCESS,
        Err(problem) => {
            eprintln!("cenoted: {problem}\n{USAGE}");
            return ExitCode::from(2);
        }
    };
    // Files that it makes are nobody else's to read.
    rustix::process::umask(rustix::fs::Mode::from_raw_mode(0o077));
    match run(&config) {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("cenoted: {error}");
            ExitCode::FAILURE
        }
    }
}

fn run(config: &Config) -> Result<(), Box<dyn std::error::Error>> {
    let (stop, signal) = std::os::unix::net::UnixStream::pair()?;
    for number in [signal_hook::consts::SIGTERM, signal_hook::consts::SIGINT] {
        signal_hook::low_level::pipe::register(number, signal.try_clone()?)?;
    }
    let server = Server::start(config)?;
    let report = server.report();
    for damage in &report.damage {
        eprintln!("cenoted: {damage}");
    }
    println!("cenoted: serving {} at {}", config.store.display(), config.socket.display());
    server.run(stop.as_fd())?;
    Ok(())
}
