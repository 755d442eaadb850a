//! Programs that are run to their end, within a limit of time.
//!
//! Nothing here panics: the caller decides what is a failure.

use std::fs::File;
use std::io;
use std::os::unix::process::ExitStatusExt as _;
use std::path::Path;
use std::process::{Child, Command, ExitStatus, Stdio};
use std::time::{Duration, Instant};

/// How a program ended, and what it wrote.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Ended {
    /// Its exit status; `None` if a signal ended it.
    pub code: Option<i32>,
    /// The signal that ended it.
    pub signal: Option<i32>,
    /// Its standard output.
    pub out: String,
    /// Its standard error.
    pub err: String,
}

/// Runs a program to its end. Its output goes through files in `dir`, so no full pipe can stop it.
/// `None`: it ran longer than `limit`, and was killed.
///
/// # Errors
/// The program cannot be started or waited for, or its output cannot be read.
pub fn run_within(command: &mut Command, dir: &Path, limit: Duration) -> io::Result<Option<Ended>> {
    let (out, err) = (dir.join("run.out"), dir.join("run.err"));
    command.stdin(Stdio::null()).stdout(File::create(&out)?).stderr(File::create(&err)?);
    let Some(status) = wait_within(&mut command.spawn()?, limit)? else { return Ok(None) };
    let text = |path| std::fs::read(path).map(|bytes| String::from_utf8_lossy(&bytes).into_owned());
    let (code, signal) = (status.code(), status.signal());
    Ok(Some(Ended { code, signal, out: text(&out)?, err: text(&err)? }))
}

/// Waits for the end of a child. `None`: it ran longer than `limit`, and was killed.
///
/// # Errors
/// The child cannot be waited for.
pub fn wait_within(child: &mut Child, limit: Duration) -> io::Result<Option<ExitStatus>> {
    let start = Instant::now();
    let mut nap = Duration::from_micros(500);
    loop {
        if let Some(status) = child.try_wait()? {
            return Ok(Some(status));
        }
        if start.elapsed() > limit {
            let _ = child.kill();
            let _ = child.wait();
            return Ok(None);
        }
        std::thread::sleep(nap);
        nap = (nap * 2).min(Duration::from_millis(20));
    }
}
