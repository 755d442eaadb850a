//! Keeps a journal quiet: all of it is in primaries, and nothing is appended.
//!
//! | state | appends | primaries |
//! | --- | --- | --- |
//! | *open* | go on | may lack what the journal has |
//! | *closing* | wait | get what was appended before, which is made durable, applied and trimmed |
//! | *quiet* | wait | are as the last psync of each left them; the header asks for no recovery |
//!
//! The journal stays quiet as long as a [`Quiet`] lives: a psync waits before its record is
//! appended, and holds no writer meanwhile.

use crate::JournalError;
use crate::journal::Journal;
use std::sync::Arc;

/// Keeps a journal quiet until it is dropped.
#[derive(Debug)]
#[must_use = "the journal is quiet only as long as this lives"]
pub struct Quiet(Arc<Journal>);

impl Drop for Quiet {
    fn drop(&mut self) {
        self.0.lock().quiet -= 1;
        self.0.notify();
    }
}

impl Journal {
    /// Waits until all psyncs that have begun are in their primaries, durably, and keeps further
    /// ones out.
    ///
    /// # Errors
    /// The medium; the journal has stopped. It is not quiet then.
    pub fn quiet(self: &Arc<Self>) -> Result<Quiet, JournalError> {
        self.lock().quiet += 1;
        let quiet = Quiet(Arc::clone(self));
        // After it, so that an error lets go of the state first.
        let mut state = self.lock();
        while state.halves.iter().any(|half| half.unapplied > 0) {
            self.usable()?;
            // Those that wait in the queue are applied here; of others their psync puts them there.
            state = self.apply_or_wait(state)?;
        }
        drop(state);
        self.checkpoint()?;
        Ok(quiet)
    }
}
