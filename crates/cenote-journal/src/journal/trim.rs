//! Trims the journal, so that its halves are used again: by the background thread, by a psync that
//! needs the space, and at a checkpoint.
//!
//! Invariant: the header says that records are trimmed only after the primaries that they changed
//! are synced; **its sync commits the trim**.

use super::{Journal, JournalState, Locked};
use crate::JournalError;
use crate::file::write_header;
use cenote_layout::object::JournalHeader;

impl Journal {
    /// Syncs the primaries that a half's records changed, or waits for the thread that does. If all
    /// of these are applied, and nothing of an earlier record is left, the header says so.
    pub(crate) fn trim_or_wait<'a>(
        &'a self,
        mut state: Locked<'a>,
        number: usize,
    ) -> Result<Locked<'a>, JournalError> {
        if state.halves[number].trimming {
            return Ok(self.wait(state));
        }
        // What is applied while they are synced is noted anew.
        let touched = core::mem::take(&mut state.halves[number].touched);
        state.halves[number].trimming = true;
        drop(state);
        let synced = if self.settings.syncs {
            touched.values().try_for_each(|file| file.sync())
        } else {
            Ok(())
        };
        let mut state = self.lock();
        state.halves[number].trimming = false;
        if let Err(error) = synced {
            return Err(self.failed(error));
        }
        let (this, other) = (&state.halves[number], &state.halves[1 - number]);
        let nothing_earlier = other.is_free() || other.last > this.last;
        if this.is_free() && nothing_earlier && state.header.trimmed < this.last {
            let (trimmed, chain) = (this.last, this.chain);
            self.trim(&mut state, trimmed, chain)?;
        }
        self.changed.notify_all();
        Ok(state)
    }

    /// Notes that nothing up to record `trimmed` has to be recovered: **the sync of the header
    /// commits**.
    pub(super) fn trim(
        &self,
        state: &mut JournalState,
        trimmed: u64,
        chain: u64,
    ) -> Result<(), JournalError> {
        let (generation, [other, catalog]) = (state.header.generation + 1, self.home.tie.to_name());
        let mut header =
            JournalHeader { generation, trimmed, chain, other, catalog, ..state.header };
        self.check_owner()?;
        write_header(&state.file, &mut header, &state.roots).map_err(|error| self.failed(error))?;
        state.header = header;
        Ok(())
    }

    /// The background thread: applies committed records, and trims the half that is full, until it
    /// is told to stop.
    pub fn work_in_background(&self) {
        let mut state = self.lock();
        // A header that could not be written is tried again when something has happened.
        let mut failed = false;
        while !state.stop {
            let full = 1 - state.active;
            let half = &state.halves[full];
            let due = !failed && half.unapplied == 0 && !half.trimming && !state.is_reusable(full);
            let behind = !state.queue.is_empty() && !state.applying;
            if (due || behind) && self.usable().is_ok() {
                let done =
                    if behind { self.apply_or_wait(state) } else { self.trim_or_wait(state, full) };
                // If the store is poisoned, the next psync reports it.
                failed = done.is_err();
                state = done.unwrap_or_else(|_| self.lock());
            } else {
                state = self.wait(state);
                failed = false;
            }
        }
    }

    /// Tells the background thread to end.
    pub fn stop(&self) {
        self.lock().stop = true;
        self.changed.notify_all();
    }

    /// Brings everything that is committed to the primaries, syncs them and notes in the header
    /// that nothing has to be recovered: **the sync of the header commits**. Does nothing while
    /// a psync runs.
    ///
    /// # Errors
    /// The medium; nothing is lost by that.
    pub fn checkpoint(&self) -> Result<(), JournalError> {
        let mut state = self.lock();
        loop {
            self.usable()?;
            if state.durable < state.written {
                state = self.sync_or_wait(state)?;
            } else if !state.queue.is_empty() {
                state = self.apply_or_wait(state)?;
            } else if state.halves.iter().any(|half| half.unapplied > 0) {
                return Ok(()); // a psync runs: nothing is lost
            } else if let Some(number) = state.oldest_unsynced() {
                state = self.trim_or_wait(state, number)?;
            } else {
                break;
            }
        }
        let (trimmed, chain) = (state.written, state.chain);
        if state.header.trimmed < trimmed { self.trim(&mut state, trimmed, chain) } else { Ok(()) }
    }

    /// Makes sure that no recovery applies a record that was written before this call: they are
    /// durable in their primaries, or those are gone. Waits for psyncs that are under way.
    ///
    /// # Errors
    /// The medium; the store is poisoned.
    pub fn trim_all(&self) -> Result<(), JournalError> {
        let wanted = self.lock().written;
        loop {
            self.checkpoint()?;
            if self.lock().header.trimmed >= wanted {
                return Ok(());
            }
            // A psync runs. Later records than `wanted` do not matter, and a full half is trimmed
            // even if psyncs never pause.
            std::thread::sleep(core::time::Duration::from_millis(1));
        }
    }

    /// Whether a thread of its own shall call [`Journal::work_in_background`].
    #[must_use]
    pub fn wants_thread(&self) -> bool {
        self.settings.background
    }
}
