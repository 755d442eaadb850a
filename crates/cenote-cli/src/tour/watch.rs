//! One builder at a time: starts it, follows its acknowledgements, kills it when it is time.

use super::plan::Kill;
use crate::failure::Failure;
use std::fs::File;
use std::io::{Read as _, Seek as _, Write as _};
use std::path::{Path, PathBuf};
use std::process::{Child, ChildStdout, Command, Stdio};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc::{self, Receiver, RecvTimeoutError};
use std::time::{Duration, Instant};

/// How a builder ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Ending {
    /// It came to the end of the text.
    Done,
    /// It was killed, as planned.
    Killed,
    /// The tour is to stop; the builder was killed too.
    Interrupted,
}

/// What was seen of a builder.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Seen {
    pub(crate) ending: Ending,
    /// Words that were indexed when it began.
    pub(crate) first: Option<u64>,
    /// Words that it has acknowledged at last.
    pub(crate) last: Option<u64>,
    /// Commits that it has acknowledged.
    pub(crate) acknowledgements: u64,
    /// From its start to its first word.
    pub(crate) starting: Duration,
    /// From its first word to its last.
    pub(crate) building: Duration,
}

/// Starts builders.
#[derive(Debug)]
pub(crate) struct Watch {
    program: PathBuf,
    store: PathBuf,
    batch: u32,
    /// The text, in memory that has no name: builders read it as standard input.
    text: File,
    stop: Arc<AtomicBool>,
}

/// How often the stop flag is looked at.
const LOOK: Duration = Duration::from_millis(50);

impl Watch {
    pub(crate) fn new(
        normal: &str,
        store: &Path,
        batch: u32,
        stop: Arc<AtomicBool>,
    ) -> Result<Self, Failure> {
        let failed = |e: std::io::Error| Failure::Failed(format!("no memory for the text: {e}"));
        let text = rustix::fs::memfd_create(c"cenote-tour-text", rustix::fs::MemfdFlags::CLOEXEC);
        let mut text = File::from(text.map_err(|e| failed(e.into()))?);
        text.write_all(normal.as_bytes()).map_err(failed)?;
        // What this process is, even if its file has been replaced meanwhile.
        let program = std::env::current_exe().map_err(Failure::failed)?;
        Ok(Self { program, store: store.to_owned(), batch, text, stop })
    }

    /// Starts a builder, which reads the text from its beginning.
    fn start(&mut self, hold: Option<u64>) -> Result<Child, Failure> {
        let cannot = |e: std::io::Error| Failure::Failed(format!("cannot run the builder: {e}"));
        self.text.rewind().map_err(cannot)?;
        Command::new(&self.program)
            .arg(crate::cli::TOUR_BUILD)
            .arg("--store")
            .arg(&self.store)
            .args(["--batch", &self.batch.to_string()])
            .args(["--parent", &cenote_sys::process::pid().to_string()])
            .args(hold.map(|words| format!("--hold={words}")))
            .stdin(self.text.try_clone().map_err(cannot)?)
            .stdout(Stdio::piped())
            .stderr(Stdio::piped())
            .spawn()
            .map_err(cannot)
    }

    /// Runs one builder to its end, planned or not. One that is to be killed waits for that once it
    /// has indexed so many words.
    pub(crate) fn run(
        &mut self,
        planned: Option<(Kill, u64)>,
        follow: &mut dyn FnMut(u64),
    ) -> Result<Seen, Failure> {
        let started = Instant::now();
        let kill = planned.map(|(kill, _)| kill);
        let mut child = self.start(planned.map(|(_, hold)| hold))?;
        let pipe = child
            .stdout
            .take()
            .ok_or_else(|| Failure::Failed("the builder has no output".into()))?;
        let said = acknowledgements(pipe);
        let mut seen = Seen {
            ending: Ending::Done,
            first: None,
            last: None,
            acknowledgements: 0,
            starting: Duration::ZERO,
            building: Duration::ZERO,
        };
        // When to kill, once that is known.
        let mut deadline = match kill {
            Some(Kill::AfterStart(delay)) => Some(started + delay),
            _ => None,
        };
        let mut killed = None;
        loop {
            let now = Instant::now();
            if killed.is_none() {
                if self.stop.load(Ordering::Relaxed) {
                    killed = Some(Ending::Interrupted);
                } else if deadline.is_some_and(|deadline| deadline <= now) {
                    killed = Some(Ending::Killed);
                }
                if killed.is_some() {
                    let _ = child.kill();
                }
            }
            let wait = match (killed, deadline) {
                (None, Some(deadline)) => (deadline - now).min(LOOK),
                _ => LOOK,
            };
            match said.recv_timeout(wait) {
                Ok((words, at)) => {
                    if seen.first.is_none() {
                        seen.first = Some(words);
                        seen.starting = at - started;
                    } else {
                        seen.acknowledgements += 1;
                    }
                    seen.last = Some(words);
                    seen.building = (at - started).saturating_sub(seen.starting);
                    follow(words);
                    if let (None, Some(Kill::AfterWord(word, delay))) = (deadline, kill)
                        && words >= word
                    {
                        deadline = Some(at + delay);
                    }
                }
                Err(RecvTimeoutError::Timeout) => {}
                Err(RecvTimeoutError::Disconnected) => break,
            }
        }
        self.end(child, killed, seen)
    }

    /// The builder has closed its pipe: it has ended, or is about to.
    fn end(
        &self,
        mut child: Child,
        killed: Option<Ending>,
        mut seen: Seen,
    ) -> Result<Seen, Failure> {
        let mut words = String::new();
        if let Some(mut pipe) = child.stderr.take() {
            let _ = pipe.read_to_string(&mut words);
        }
        let status = child
            .wait()
            .map_err(|e| Failure::Failed(format!("cannot wait for the builder: {e}")))?;
        seen.ending = match (status.code(), killed) {
            (Some(0), Some(Ending::Interrupted)) => Ending::Interrupted,
            (Some(0), _) => Ending::Done,
            (None, Some(ending)) => ending,
            // Ctrl-C reaches all processes of a terminal, perhaps this one last.
            (None, None) if self.stop_comes_soon() => Ending::Interrupted,
            _ => {
                let words = words.trim().trim_start_matches("cenote: ");
                return Err(Failure::Failed(match words {
                    "" => format!("the builder ended with {status}, without a message"),
                    words => format!("the builder failed: {words}"),
                }));
            }
        };
        Ok(seen)
    }

    fn stop_comes_soon(&self) -> bool {
        for _ in 0..20 {
            if self.stop.load(Ordering::Relaxed) {
                return true;
            }
            std::thread::sleep(Duration::from_millis(5));
        }
        false
    }
}

/// What a builder says, with the time. The sender goes when the pipe is closed.
fn acknowledgements(mut pipe: ChildStdout) -> Receiver<(u64, Instant)> {
    let (sender, receiver) = mpsc::channel();
    std::thread::spawn(move || {
        let mut word = [0; 8];
        while pipe.read_exact(&mut word).is_ok() {
            if sender.send((u64::from_le_bytes(word), Instant::now())).is_err() {
                break;
            }
        }
    });
    receiver
}
