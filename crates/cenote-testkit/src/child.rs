//! This test program again, as a child that runs one test alone.
//!
//! A test that is "not a test of its own" finds something for it in the environment, or returns. It
//! is run
//!
//! * with a task, to its end ([`run_task`], [`task`]): no signal may end it;
//! * until it is killed ([`Acknowledging`]): it says a word after each step that it has done;
//! * beside its parent ([`Talking`]): it says lines, and waits to be told to go on.

use crate::words::Words;
use std::io::{BufRead, BufReader, Write};
use std::os::unix::process::ExitStatusExt;
use std::path::{Path, PathBuf};
use std::process::{Child, ChildStderr, ChildStdin, ChildStdout, Command, ExitStatus, Stdio};
use std::time::Duration;

const TASK: &str = "CENOTE_TEST_TASK";
const DIRECTORY: &str = "CENOTE_TEST_DIRECTORY";

/// Bytes at the end of a child's output that a failure shows.
const SHOWN_BYTES: usize = 3000;

/// This program again, to run the test `test` and no other.
#[must_use]
pub fn again(test: &str) -> Command {
    let mut command = Command::new(std::env::current_exe().expect("this program"));
    command.args(["--exact", test, "--nocapture"]);
    command
}

/// The same with a task for the test, which works on a directory. The test runs on the program's
/// first thread.
#[must_use]
pub fn with_task(test: &str, task: &str, directory: &Path) -> Command {
    let mut command = again(test);
    command.arg("--test-threads=1").env(TASK, task).env(DIRECTORY, directory);
    command.stdin(Stdio::null());
    command
}

/// Runs a test with a task in a child, which may end in any way; what became of it, and all that it
/// said, standard output first.
#[must_use]
pub fn ended(command: &mut Command) -> (ExitStatus, String) {
    let output = command.output().expect("it runs");
    // The harness begins a line that a test which dies does not end.
    let said = [output.stdout, output.stderr].join(&b'\n');
    (output.status, String::from_utf8_lossy(&said).into_owned())
}

/// In a child of [`with_task`]: its task and its directory.
#[must_use]
pub fn task() -> Option<(String, PathBuf)> {
    Some((std::env::var(TASK).ok()?, std::env::var_os(DIRECTORY)?.into()))
}

/// Runs a test with a task in a child. Its directory is `store` below `outer`; it does not exist
/// yet. Returns whether the test passed, and the end of what the child said.
///
/// # Panics
/// A signal has ended the child.
#[must_use]
pub fn run_task(test: &str, task: &str, outer: &Path) -> (bool, String) {
    let mut command = with_task(test, task, &outer.join("store"));
    let (status, said) = ended(command.env("XDG_STATE_HOME", outer));
    let start = said.len().saturating_sub(SHOWN_BYTES);
    let end = said.get(start..).unwrap_or(&said).to_string();
    assert_eq!(status.signal(), None, "{end}");
    (status.success(), end)
}

/// In a child: says a word on standard error. Returns whether the parent can still hear it.
#[must_use]
pub fn acknowledge(word: u64) -> bool {
    // One write of 8 bytes to a pipe is never torn.
    std::io::stderr().write_all(&word.to_le_bytes()).is_ok()
}

/// A child that says words by [`acknowledge`] until it is killed.
#[derive(Debug)]
pub struct Acknowledging(Words<ChildStderr>);

impl Acknowledging {
    /// Starts it.
    #[must_use]
    pub fn start(command: &mut Command) -> Self {
        let piped = command.stdout(Stdio::null()).stderr(Stdio::piped());
        let mut child = piped.spawn().expect("a child");
        let pipe = child.stderr.take().expect("a pipe");
        Self(Words::of(child, pipe))
    }

    /// Kills it by `SIGKILL` and returns all words that it has said. With `at_work`, `after` counts
    /// from its first word, else from now.
    ///
    /// # Panics
    /// The child ended by itself before its first word, or said something that `is_word` refuses: a
    /// panic's message, say.
    #[must_use]
    pub fn kill(
        mut self,
        at_work: bool,
        after: Duration,
        is_word: impl Fn(u64) -> bool,
    ) -> Vec<u64> {
        if at_work {
            let _ = self.0.hear().expect("a word");
        }
        std::thread::sleep(after);
        let killed = self.0.kill().expect("killed");
        let whole = killed.bytes.len().is_multiple_of(size_of::<u64>());
        let fits = whole && killed.words.iter().all(|word| is_word(*word));
        assert!(fits, "the child said: {}", String::from_utf8_lossy(&killed.bytes));
        killed.words
    }
}

/// In a child of [`Talking`]: says a line, past what the test harness captures.
pub fn say(line: impl core::fmt::Display) {
    let mut out = std::io::stdout().lock();
    writeln!(out, "\n@{line}").expect("heard");
    out.flush().expect("heard");
}

/// In a child of [`Talking`]: waits to be told to go on.
pub fn wait_to_go_on() {
    let _ = std::io::stdin().lock().read_line(&mut String::new()).expect("a pipe");
}

/// A child that says lines by [`say`]. It is killed when this is dropped.
#[derive(Debug)]
pub struct Talking {
    child: Child,
    input: Option<ChildStdin>,
    output: BufReader<ChildStdout>,
}

impl Talking {
    /// Starts it.
    #[must_use]
    pub fn start(command: &mut Command) -> Self {
        let piped = command.stdin(Stdio::piped()).stdout(Stdio::piped());
        let mut child = piped.spawn().expect("a child");
        let (input, output) = (child.stdin.take(), child.stdout.take().expect("a pipe"));
        Self { child, input, output: BufReader::new(output) }
    }

    /// The next line that it says; `None` if it ends.
    pub fn hear(&mut self) -> Option<String> {
        loop {
            let mut line = String::new();
            if self.output.read_line(&mut line).expect("text") == 0 {
                return None;
            }
            // The child's test harness says lines, too.
            if let Some(said) = line.strip_prefix('@') {
                return Some(said.trim_end().to_owned());
            }
        }
    }

    /// Ends its [`wait_to_go_on`].
    pub fn go_on(&mut self) {
        drop(self.input.take());
    }

    /// Kills it by `SIGKILL`, and waits for its end.
    pub fn kill(&mut self) {
        self.child.kill().expect("killed");
        self.child.wait().expect("ended");
    }

    /// Its process number.
    #[must_use]
    pub fn pid(&self) -> u32 {
        self.child.id()
    }
}

impl Drop for Talking {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}
