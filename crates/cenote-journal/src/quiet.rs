//! A journal that holds still: nothing of it is left to be brought into primaries, and nothing is
//! appended.
//!
//! States: *open*, as usual; *closing*, where appends wait, and what was appended before is made
//! durable, applied and trimmed; *quiet*, where primaries are exactly what the last psync of each
//! left, and the header says that nothing has to be recovered. As long as a [`Quiet`] lives the
//! journal stays so: a psync waits before its record is appended, and holds no writer meanwhile.

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
