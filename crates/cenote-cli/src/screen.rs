//! A terminal that shows one picture after another, and is afterwards as it was before.
//!
//! Pictures go to the terminal's other screen, without a cursor, and keys come one by one.
//! **The command puts the terminal back** at its end, at an error, at Ctrl-C and other signals that
//! ask a program to end (it reads them from a pipe, like keys), at a panic, and while it is
//! suspended (Ctrl-Z). After SIGKILL it cannot; `reset` helps then.

use crate::failure::Failure;
use rustix::event::{PollFd, PollFlags, Timespec};
use rustix::termios::{LocalModes, OptionalActions, SpecialCodeIndex, Termios};
use std::io::{self, IsTerminal as _, Read as _, Write as _};
use std::os::fd::AsFd;
use std::os::unix::net::UnixStream;
use std::time::Instant;

const ENTER: &str = "\x1b[?1049h\x1b[?25l";
const LEAVE: &str = "\x1b[?25h\x1b[?1049l";

/// Why a wait is over.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Woken {
    /// It is time.
    Time,
    /// The user, or the system, asks it to end.
    End,
    /// The window has another size, or another picture is wanted now.
    Redraw,
}

/// The terminal, while it is ours.
pub(crate) struct Screen {
    before: Option<Termios>,
    ends: UnixStream,
    resized: UnixStream,
    suspends: UnixStream,
}

fn cannot(error: impl std::fmt::Display) -> Failure {
    Failure::Failed(format!("cannot use the terminal: {error}: try --once"))
}

impl Screen {
    /// Whether standard output is a terminal.
    pub(crate) fn is_there() -> bool {
        io::stdout().is_terminal() && std::env::var_os("TERM").is_none_or(|term| term != "dumb")
    }

    pub(crate) fn enter() -> Result<Self, Failure> {
        use signal_hook::consts::{SIGHUP, SIGINT, SIGQUIT, SIGTERM, SIGTSTP, SIGWINCH};
        let pipe = |signals: &[i32]| -> io::Result<UnixStream> {
            let (ours, theirs) = UnixStream::pair()?;
            ours.set_nonblocking(true)?;
            for signal in signals {
                signal_hook::low_level::pipe::register(*signal, theirs.try_clone()?)?;
            }
            Ok(ours)
        };
        let mut screen = Self {
            before: None,
            ends: pipe(&[SIGINT, SIGTERM, SIGHUP, SIGQUIT]).map_err(cannot)?,
            resized: pipe(&[SIGWINCH]).map_err(cannot)?,
            suspends: pipe(&[SIGTSTP]).map_err(cannot)?,
        };
        screen.take()?;
        Ok(screen)
    }

    /// Columns and lines.
    pub(crate) fn size() -> (usize, usize) {
        match rustix::termios::tcgetwinsize(io::stdout()) {
            Ok(size) if size.ws_col > 0 && size.ws_row > 0 => {
                (size.ws_col.into(), size.ws_row.into())
            }
            _ => (80, 24),
        }
    }

    fn take(&mut self) -> Result<(), Failure> {
        let input = io::stdin();
        if input.is_terminal()
            && let Ok(before) = rustix::termios::tcgetattr(&input)
        {
            let mut keys = before.clone();
            // Keys come at once and are not shown; Ctrl-C and Ctrl-Z stay signals.
            keys.local_modes.remove(LocalModes::ICANON | LocalModes::ECHO);
            keys.special_codes[SpecialCodeIndex::VMIN] = 1;
            keys.special_codes[SpecialCodeIndex::VTIME] = 0;
            rustix::termios::tcsetattr(&input, OptionalActions::Now, &keys).map_err(cannot)?;
            self.before = Some(before);
        }
        let mut out = io::stdout();
        out.write_all(ENTER.as_bytes()).and_then(|()| out.flush()).map_err(cannot)
    }

    fn give_back(&mut self) {
        let mut out = io::stdout();
        let _ = out.write_all(LEAVE.as_bytes()).and_then(|()| out.flush());
        if let Some(before) = self.before.take() {
            let _ = rustix::termios::tcsetattr(io::stdin(), OptionalActions::Now, &before);
        }
    }

    /// Shows these lines, which are not longer than the screen is wide, in one write.
    pub(crate) fn draw(&self, lines: &[String]) -> Result<(), Failure> {
        let mut picture = String::from("\x1b[H");
        for (number, line) in lines.iter().enumerate() {
            if number > 0 {
                picture.push_str("\r\n");
            }
            picture.push_str(line);
            picture.push_str("\x1b[K");
        }
        picture.push_str("\x1b[J");
        let mut out = io::stdout();
        out.write_all(picture.as_bytes()).and_then(|()| out.flush()).map_err(cannot)
    }

    /// Waits for a key, a signal, or that the time is over.
    pub(crate) fn wait(&mut self, until: Instant) -> Result<Woken, Failure> {
        let mut keys = self.before.is_some();
        loop {
            let left = until.saturating_duration_since(Instant::now());
            let timeout =
                Timespec { tv_sec: left.as_secs() as i64, tv_nsec: left.subsec_nanos().into() };
            let input = io::stdin();
            let mut fds = vec![
                PollFd::from_borrowed_fd(self.ends.as_fd(), PollFlags::IN),
                PollFd::from_borrowed_fd(self.resized.as_fd(), PollFlags::IN),
                PollFd::from_borrowed_fd(self.suspends.as_fd(), PollFlags::IN),
            ];
            if keys {
                fds.push(PollFd::from_borrowed_fd(input.as_fd(), PollFlags::IN));
            }
            match rustix::event::poll(&mut fds, Some(&timeout)) {
                Ok(0) => return Ok(Woken::Time),
                Ok(_) => {}
                Err(rustix::io::Errno::INTR) => continue,
                Err(errno) => return Err(cannot(errno)),
            }
            let ready: Vec<bool> = fds.iter().map(|fd| !fd.revents().is_empty()).collect();
            drop(fds);
            if ready[0] {
                return Ok(Woken::End);
            }
            if ready[2] {
                drain(&self.suspends);
                self.give_back();
                // Nothing can be done about a system that does not suspend.
                let _ = rustix::process::kill_process(
                    rustix::process::getpid(),
                    rustix::process::Signal::STOP,
                );
                self.take()?;
                return Ok(Woken::Redraw);
            }
            if ready[1] {
                drain(&self.resized);
                return Ok(Woken::Redraw);
            }
            if ready.get(3) == Some(&true) {
                let mut key = [0; 16];
                match rustix::io::read(&input, &mut key) {
                    // The terminal has gone away from under it, or the user does not type.
                    Ok(0) => keys = false,
                    Ok(len) if key[..len].iter().any(|key| matches!(key, b'q' | b'Q' | 3)) => {
                        return Ok(Woken::End);
                    }
                    Ok(_) => return Ok(Woken::Redraw),
                    Err(rustix::io::Errno::INTR | rustix::io::Errno::AGAIN) => {}
                    Err(_) => keys = false,
                }
            }
        }
    }
}

fn drain(mut pipe: &UnixStream) {
    let mut buffer = [0; 64];
    while pipe.read(&mut buffer).is_ok_and(|len| len > 0) {}
}

impl Drop for Screen {
    fn drop(&mut self) {
        self.give_back();
    }
}
