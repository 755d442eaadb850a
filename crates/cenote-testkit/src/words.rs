//! Words of 8 bytes that a child writes into a pipe until it is killed.
//!
//! The child writes each word by one system call: such a write to a pipe is never torn. Nothing
//! here panics: the caller decides what is a failure.

use std::io::{self, Read};
use std::process::{Child, ExitStatus};

/// A child that writes words. It is killed when this is dropped.
#[derive(Debug)]
pub struct Words<P> {
    child: Child,
    pipe: P,
    heard: Vec<u8>,
}

/// What a killed child wrote, and how it ended.
#[derive(Debug)]
pub struct Killed {
    /// `SIGKILL`, unless it had ended by itself.
    pub status: ExitStatus,
    /// All words that it wrote.
    pub words: Vec<u64>,
    /// All bytes that it wrote. More than those of the words, if it wrote something else.
    pub bytes: Vec<u8>,
}

impl<P: Read> Words<P> {
    /// A child whose words come out of `pipe`.
    pub const fn of(child: Child, pipe: P) -> Self {
        Self { child, pipe, heard: Vec::new() }
    }

    /// Waits for the next word.
    ///
    /// # Errors
    /// The child has ended: the error says how.
    pub fn hear(&mut self) -> io::Result<u64> {
        let mut bytes = [0; size_of::<u64>()];
        if self.pipe.read_exact(&mut bytes).is_err() {
            let status = self.child.wait()?;
            return Err(io::Error::other(format!("a child ended by itself, {status}")));
        }
        self.heard.extend_from_slice(&bytes);
        Ok(u64::from_le_bytes(bytes))
    }

    /// Kills it by `SIGKILL`, and reads what is left in the pipe.
    ///
    /// # Errors
    /// It cannot be killed or waited for, or the pipe cannot be read.
    pub fn kill(mut self) -> io::Result<Killed> {
        self.child.kill()?;
        self.pipe.read_to_end(&mut self.heard)?;
        let status = self.child.wait()?;
        let bytes = core::mem::take(&mut self.heard);
        let words = bytes.as_chunks().0.iter().copied().map(u64::from_le_bytes).collect();
        Ok(Killed { status, words, bytes })
    }
}

impl<P> Drop for Words<P> {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}
