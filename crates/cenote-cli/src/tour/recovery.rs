//! Recovery by another program: finds `cenote-recover`, runs it, sometimes kills it too, and reads
//! what it says.

use super::plan::KillPlan;
use crate::failure::Failure;
use serde_json::Value;
use signal_hook::consts::SIGINT;
use std::ffi::OsString;
use std::os::unix::process::ExitStatusExt as _;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

const NAME: &str = "cenote-recover";

/// The program.
#[derive(Debug)]
pub(crate) struct Recoverer {
    program: PathBuf,
}

/// What all recoveries did.
#[derive(Debug, Default)]
pub(crate) struct Recoveries {
    /// Times that stores were open, as measured by the program: from the lock to the handle.
    pub(crate) times: Vec<Duration>,
    /// Times of the whole process.
    pub(crate) process_times: Vec<Duration>,
    /// Recoveries that were killed before they were done.
    pub(crate) killed: u64,
    pub(crate) rolled_back: u64,
    pub(crate) rolled_back_entries: u64,
    pub(crate) rolled_forward: u64,
    pub(crate) rolled_forward_entries: u64,
    pub(crate) idle: u64,
}

impl Recoverer {
    /// Next to this program; when cargo runs this, it is built first, because `cargo run` builds
    /// one program only.
    pub(crate) fn find() -> Result<Self, Failure> {
        let own = std::env::current_exe().map_err(|e| {
            Failure::Failed(format!("cannot find this program's own file: {e}: is /proc mounted?"))
        })?;
        let own_dir = own.parent().unwrap_or(Path::new("."));
        // Of tests: target/debug/deps.
        let dir =
            if own_dir.ends_with("deps") { own_dir.parent().unwrap_or(own_dir) } else { own_dir };
        let program = dir.join(NAME);
        let built = match cargo(dir) {
            Some(command) => build(command, !program.exists()),
            None => Ok(()),
        };
        if program.exists() {
            return Ok(Self { program });
        }
        Err(Failure::Failed(match built {
            Err(reason) => {
                format!("{NAME} cannot be built: {reason}: build it with `cargo build -p {NAME}`")
            }
            Ok(()) => format!(
                "{NAME} is missing: it belongs beside this program, in {}: install it, or build it \
                 with `cargo build -p {NAME}`",
                dir.display()
            ),
        }))
    }

    fn command(&self, store: &Path) -> Command {
        let mut command = Command::new(&self.program);
        command.arg("--json").arg("--").arg(store).stdin(Stdio::null());
        command
    }

    /// Recovers the store. Now and then the recovery is killed and begun again.
    pub(crate) fn recover(
        &self,
        store: &Path,
        plan: &mut KillPlan,
        seen: &mut Recoveries,
    ) -> Result<(), Failure> {
        if plan.one_in(4) {
            let usual = seen.process_times.last().copied().unwrap_or(Duration::from_millis(2));
            let delay = plan.time(usual);
            let mut child = self
                .command(store)
                .stdout(Stdio::null())
                .stderr(Stdio::null())
                .spawn()
                .map_err(|e| self.cannot_run(&e))?;
            std::thread::sleep(delay);
            let _ = child.kill();
            let status = child.wait().map_err(|e| self.cannot_run(&e))?;
            seen.killed += u64::from(status.code().is_none());
        }
        let begun = Instant::now();
        let output = self.command(store).output().map_err(|e| self.cannot_run(&e))?;
        let took = begun.elapsed();
        if output.status.signal() == Some(SIGINT) {
            // Ctrl-C goes to all processes of the tour, and this one may hear of it first.
            return Err(Failure::Interrupted(String::new()));
        }
        if output.status.code() != Some(0) {
            let said = [output.stderr, output.stdout].concat();
            return Err(Failure::Failed(format!(
                "recovery of {} failed: {} ({})",
                store.display(),
                String::from_utf8_lossy(&said).trim(),
                output.status
            )));
        }
        let report: Value = serde_json::from_slice(&output.stdout).map_err(|e| {
            Failure::Failed(format!("{} printed no valid report: {e}", self.program.display()))
        })?;
        seen.process_times.push(took);
        seen.add(&report);
        Ok(())
    }

    fn cannot_run(&self, error: &std::io::Error) -> Failure {
        Failure::Failed(format!("cannot run {}: {error}: check that file", self.program.display()))
    }
}

impl Recoveries {
    fn add(&mut self, report: &Value) {
        self.times.push(Duration::from_micros(report["recovery_us"].as_u64().unwrap_or(0)));
        for log in report["logs"].as_array().into_iter().flatten() {
            let entries = log["entries"].as_u64().unwrap_or(0);
            match log["outcome"].as_str() {
                Some("rolled-back") => {
                    self.rolled_back += 1;
                    self.rolled_back_entries += entries;
                }
                Some("rolled-forward") => {
                    self.rolled_forward += 1;
                    self.rolled_forward_entries += entries;
                }
                _ => self.idle += 1,
            }
        }
    }
}

/// The command that builds the program into `dir`, if cargo runs this program from the project's
/// own tree.
fn cargo(dir: &Path) -> Option<Command> {
    let cargo: OsString = std::env::var_os("CARGO")?;
    let own = PathBuf::from(std::env::var_os("CARGO_MANIFEST_DIR")?);
    let manifest = own.parent()?.join(NAME).join("Cargo.toml");
    if !manifest.is_file() {
        return None;
    }
    let profile = match dir.file_name()?.to_str()? {
        "debug" => "dev",
        other => other,
    };
    let mut command = Command::new(cargo);
    // With the features that this program was built with, so that most is built already.
    command.args(["build", "--quiet", "--package", "cenote-cli", "--package", NAME, "--bin", NAME]);
    command.args(["--profile", profile]);
    command.arg("--manifest-path").arg(manifest).arg("--target-dir").arg(dir.parent()?);
    // Not this package's: cargo sets its own for what it builds.
    for (name, _) in std::env::vars_os() {
        if name
            .to_str()
            .is_some_and(|name| name.starts_with("CARGO_PKG_") || name.starts_with("CARGO_BIN_"))
        {
            command.env_remove(name);
        }
    }
    command.stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::piped());
    Some(command)
}

fn build(mut command: Command, missing: bool) -> Result<(), String> {
    if missing {
        eprint_line("building cenote-recover, the program that recovers the store ...");
    }
    let output = command.output().map_err(|e| e.to_string())?;
    if output.status.success() {
        return Ok(());
    }
    let said = String::from_utf8_lossy(&output.stderr);
    Err(said.lines().find(|line| line.starts_with("error")).unwrap_or("cargo failed").to_owned())
}

/// Writes a line to standard error. A failure to write is no error.
pub(crate) fn eprint_line(line: &str) {
    use std::io::Write as _;
    let _ = writeln!(std::io::stderr(), "{line}");
}
