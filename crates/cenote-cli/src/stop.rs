//! Ctrl-C, for work that takes long: a flag that it looks at between steps, and streams that look
//! at it while the other end lets them wait.
//!
//! The first signal asks; the second ends the program at once. Nothing that a command does between
//! two steps is worse off then than after a kill, which every store survives.

use crate::failure::Failure;
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use std::io::{Error, Read, Result, Write};
use std::ops::ControlFlow;
use std::os::fd::AsFd;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

/// Most bytes that are written at once to what may let the writer wait: a pipe that has room at all
/// has room for these.
const PIPE_STEP: usize = 4096;

/// Whether the user has asked to stop.
#[derive(Clone, Debug, Default)]
pub(crate) struct Stop {
    /// A signal has come.
    asked: Arc<AtomicBool>,
    /// The next signal ends the program.
    last: Arc<AtomicBool>,
}

impl Stop {
    /// From now on SIGINT, SIGTERM and SIGHUP ask, and the second one ends the program.
    ///
    /// The first action of a signal asks, so that a signal which comes while this is under way is
    /// heard. The other two run in their order: the first signal finds `last` unset, and sets it.
    pub(crate) fn install() -> Self {
        use signal_hook::consts::{SIGHUP, SIGINT, SIGTERM};
        use signal_hook::flag::{register, register_conditional_shutdown};
        let stop = Self::default();
        let status = i32::from(crate::failure::INTERRUPTED);
        for signal in [SIGINT, SIGTERM, SIGHUP] {
            // Where a signal cannot be handled it ends the program at once, as the second one does.
            if register(signal, Arc::clone(&stop.asked)).is_ok()
                && register_conditional_shutdown(signal, status, Arc::clone(&stop.last)).is_ok()
            {
                let _ = register(signal, Arc::clone(&stop.last));
            }
        }
        stop
    }

    pub(crate) fn is_set(&self) -> bool {
        self.asked.load(Ordering::Relaxed)
    }

    /// What a step is told.
    pub(crate) fn flow(&self) -> ControlFlow<()> {
        if self.is_set() { ControlFlow::Break(()) } else { ControlFlow::Continue(()) }
    }

    /// What a command that only looks ends with, once the user has asked to stop.
    pub(crate) fn check(&self) -> std::result::Result<(), Failure> {
        match self.is_set() {
            true => Err(Failure::Interrupted("stopped; nothing was changed".into())),
            false => Ok(()),
        }
    }

    /// Waits until a stream can go on. An error if the user asks to stop: what went through so far
    /// is nothing whole, and the caller says why.
    fn wait(&self, stream: &impl AsFd, wanted: PollFlags) -> Result<()> {
        loop {
            if self.is_set() {
                return Err(Error::other("stopped"));
            }
            let mut waits = [PollFd::new(stream, wanted)];
            let a_moment = Timespec { tv_sec: 0, tv_nsec: 100_000_000 };
            match poll(&mut waits, Some(&a_moment)) {
                Ok(0) | Err(rustix::io::Errno::INTR) => {}
                _ => return Ok(()),
            }
        }
    }
}

/// A stream that ends when the user asks to stop, also while nothing comes or the other end takes
/// nothing. It goes past the buffers of the standard library, which `poll` knows nothing of.
#[derive(Debug)]
pub(crate) struct Awaited<S> {
    pub(crate) stream: S,
    pub(crate) stop: Stop,
}

impl<S: AsFd> Read for Awaited<S> {
    fn read(&mut self, buffer: &mut [u8]) -> Result<usize> {
        self.stop.wait(&self.stream, PollFlags::IN)?;
        Ok(rustix::io::read(&self.stream, &mut *buffer)?)
    }
}

impl<S: AsFd> Write for Awaited<S> {
    fn write(&mut self, bytes: &[u8]) -> Result<usize> {
        self.stop.wait(&self.stream, PollFlags::OUT)?;
        Ok(rustix::io::write(&self.stream, &bytes[..bytes.len().min(PIPE_STEP)])?)
    }

    fn flush(&mut self) -> Result<()> {
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::time::{Duration, Instant};

    #[test]
    fn a_pipe_without_a_reader_or_writer_does_not_outlast_the_flag() {
        let stop = Stop::default();
        let (from, to) = std::io::pipe().expect("a pipe");
        let (mut from, mut to) = (
            Awaited { stream: from, stop: stop.clone() },
            Awaited { stream: to, stop: stop.clone() },
        );
        to.write_all(b"what fits").expect("there is room");
        let mut read = [0; 9];
        from.read_exact(&mut read).expect("it is there");
        assert_eq!(&read, b"what fits");
        let begun = Instant::now();
        let (asked, raised) = (stop.clone(), Duration::from_millis(50));
        std::thread::scope(|scope| {
            scope.spawn(move || {
                std::thread::sleep(raised);
                asked.asked.store(true, Ordering::Relaxed);
            });
            scope.spawn(|| to.write_all(&vec![7; 4 << 20]).expect_err("no reader"));
        });
        assert!(begun.elapsed() >= raised && begun.elapsed() < Duration::from_secs(30));
        assert!(from.read(&mut read).is_err(), "also where something is there");
    }
}
