//! `cenote-recover DIR [--json]`: recovers a store, and ends.
//!
//! Opening a store for writing recovers it; this program does nothing else. No crate that it is
//! linked with knows heaps, transactions or applications: logs hold all that replay needs (PUD-2).
//! The program that built the data need not run, nor be installed.
//!
//! A kill at any instruction is safe: the next recovery begins where the data stand.

use cenote_layout::id::Uuid;
use cenote_log::{CrashKind, Outcome};
use cenote_medium::{Medium, MediumOptions, RealMedium};
use cenote_store::{OpenError, OpenOptions, OpenReport, Store};
use std::fmt::Write as _;
use std::io::Write as _;
use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::sync::Arc;

cenote_medium::ships!();

const HELP: &str = "\
Recovers a Cenote store after a crash: rolls back or completes unfinished transactions.

Usage: cenote-recover DIR [--json]

Arguments:
  DIR         The store's directory

Options:
      --json     Print one JSON object
  -h, --help     Print this help
  -V, --version  Print the version

Exit status:
  0  the store is whole, recovered or without need for recovery
  1  programs can open the store, but parts of it are damaged or set aside: see the list
  2  the arguments are wrong
  3  the store cannot be opened or closed; its data is as before
  4  another process uses the store
";

const FOUND: u8 = 1;
const USAGE: u8 = 2;
const FAILED: u8 = 3;
const IN_USE: u8 = 4;

/// What the arguments ask for.
enum Request {
    Recover { directory: PathBuf, json: bool },
    Say(String),
}

/// A message for a person, and the exit status.
struct Failure(u8, String);

fn main() -> ExitCode {
    let result = parse(std::env::args_os().skip(1)).and_then(|request| match request {
        Request::Say(text) => Ok((0, text)),
        Request::Recover { directory, json } => recover(&directory, json),
    });
    match result {
        Ok((status, text)) => {
            // A reader that closed the pipe wants no more text.
            let _ = std::io::stdout().write_all(text.as_bytes());
            ExitCode::from(status)
        }
        Err(Failure(status, message)) => {
            let _ = writeln!(std::io::stderr(), "cenote-recover: {}", message.replace('\n', "; "));
            ExitCode::from(status)
        }
    }
}

fn parse(arguments: impl Iterator<Item = std::ffi::OsString>) -> Result<Request, Failure> {
    let usage = "usage: cenote-recover DIR [--json]; see `cenote-recover --help`";
    let wrong = |what: String| Failure(USAGE, format!("{what}; {usage}"));
    let (mut directory, mut json, mut options) = (None, false, true);
    for argument in arguments {
        match argument.to_str() {
            Some("-h" | "--help") if options => return Ok(Request::Say(HELP.into())),
            Some("-V" | "--version") if options => {
                return Ok(Request::Say(format!("cenote-recover {}\n", env!("CARGO_PKG_VERSION"))));
            }
            Some("--json") if options => json = true,
            Some("--") if options => options = false,
            Some(other) if options && other.len() > 1 && other.starts_with('-') => {
                return Err(wrong(format!("unknown option {other:?}")));
            }
            _ if directory.is_some() => {
                return Err(wrong("more than one directory was given".into()));
            }
            _ => directory = Some(PathBuf::from(argument)),
        }
    }
    match directory {
        Some(directory) => Ok(Request::Recover { directory, json }),
        None => Err(wrong("no directory was given".into())),
    }
}

/// Opens and closes the store; says what was found.
fn recover(directory: &Path, json: bool) -> Result<(u8, String), Failure> {
    let medium = RealMedium::open(directory, &MediumOptions::default())
        .map_err(|error| Failure(FAILED, error.to_string()))?;
    let medium: Arc<dyn Medium> = Arc::new(medium);
    let (store, report) =
        Store::open(medium, OpenOptions::default()).map_err(|error| match error {
            OpenError::Locked { path, holder, .. } => Failure(
                IN_USE,
                format!("{path} is in use by {holder}: a store in use needs no recovery"),
            ),
            error => Failure(FAILED, error.to_string()),
        })?;
    let uuid = store.uuid();
    store.close().map_err(|error| {
        Failure(FAILED, format!("{}: recovered, but not closed: {error}", directory.display()))
    })?;
    let status = if report.damage.is_empty() && report.not_covered.is_empty() { 0 } else { FOUND };
    let text = if json { as_json(directory, uuid, &report) } else { as_text(directory, &report) };
    Ok((status, text))
}

fn crash(report: &OpenReport) -> Option<&'static str> {
    match report.crash {
        None => None,
        Some(CrashKind::Process) => Some("process"),
        Some(CrashKind::Power) => Some("power"),
    }
}

/// Name and number of entries of an outcome.
fn outcome(outcome: &Outcome) -> (&'static str, u64) {
    match outcome {
        Outcome::Idle => ("idle", 0),
        Outcome::RolledBack { entries } => ("rolled-back", *entries),
        Outcome::RolledForward { entries } => ("rolled-forward", *entries),
        Outcome::Quarantined(_) => ("set-aside", 0),
        Outcome::AlreadyQuarantined => ("set-aside-before", 0),
    }
}

fn as_text(directory: &Path, report: &OpenReport) -> String {
    let mut out = String::new();
    let path = directory.display();
    // Writing to a string does not fail.
    let _ = match crash(report) {
        None => writeln!(out, "{path}: was closed properly, there was nothing to recover"),
        Some("power") => {
            writeln!(out, "{path}: recovered after a loss of power, in {:.3?}", report.recovery)
        }
        Some(_) => {
            writeln!(
                out,
                "{path}: recovered after a crash of its process, in {:.3?}",
                report.recovery
            )
        }
    };
    for log in &report.logs {
        let _ =
            writeln!(out, "  log {:016x} of client {}: {}", log.log_id, log.client, log.outcome);
    }
    for (id, name) in &report.not_covered {
        let _ = writeln!(
            out,
            "  pool \"{name}\" (number {id}) was open for writing when power failed, and its \
             durability level does not cover that"
        );
    }
    if report.orphans_removed > 0 {
        let _ = writeln!(
            out,
            "  {} files of interrupted creations or removals were deleted",
            report.orphans_removed
        );
    }
    if report.catalog_files_repaired > 0 {
        let _ =
            writeln!(out, "  {} catalog files were written anew", report.catalog_files_repaired);
    }
    for damage in &report.damage {
        let _ = writeln!(out, "  damaged: {damage}");
    }
    out
}

fn as_json(directory: &Path, store: Uuid, report: &OpenReport) -> String {
    let logs = report.logs.iter().map(|log| {
        let (name, entries) = outcome(&log.outcome);
        let pools: Vec<String> = log.pools.iter().map(ToString::to_string).collect();
        format!(
            "{{\"client\":\"{}\",\"log\":\"{:016x}\",\"outcome\":\"{name}\",\
             \"entries\":{entries},\"pools\":[{}],\"detail\":{}}}",
            log.client,
            log.log_id,
            pools.join(","),
            quoted(&log.outcome.to_string())
        )
    });
    let damage = report.damage.iter().map(|damage| quoted(&damage.to_string()));
    let not_covered = report.not_covered.iter().map(|(_, name)| quoted(name));
    format!(
        "{{\"path\":{},\"store\":\"{store}\",\"clean\":{},\"crash\":{},\"recovery_us\":{},\
         \"logs\":[{}],\"not_covered\":[{}],\"orphans_removed\":{},\
         \"catalog_files_repaired\":{},\"damage\":[{}]}}\n",
        quoted(&directory.to_string_lossy()),
        report.clean,
        crash(report).map_or_else(|| "null".into(), quoted),
        report.recovery.as_micros(),
        logs.collect::<Vec<_>>().join(","),
        not_covered.collect::<Vec<_>>().join(","),
        report.orphans_removed,
        report.catalog_files_repaired,
        damage.collect::<Vec<_>>().join(","),
    )
}

/// A JSON string.
fn quoted(text: &str) -> String {
    let mut out = String::with_capacity(text.len() + 2);
    out.push('"');
    for c in text.chars() {
        match c {
            '"' => out.push_str("\\\""),
            '\\' => out.push_str("\\\\"),
            c if c.is_control() => {
                // Control characters all lie below U+10000.
                let _ = write!(out, "\\u{:04x}", u32::from(c));
            }
            c => out.push(c),
        }
    }
    out.push('"');
    out
}
