//! Steps of slabs: one slot is allocated or freed in place, by one fence and no undo record.
//!
//! A step changes two words of one cell, in one line: the slots that are used, and the check
//! ([`SlabRecord`]). What a crash leaves, at both levels:
//!
//! 1. The word of the last step names the cell, and the last change. It is not flushed. *Nothing
//!    has changed.*
//! 2. The word of the slots is stored. *The check does not fit, but fits with one bit changed: a
//!    reader sees the record of before.*
//! 3. **The check is stored: it commits the step.** Flush, **fence**. *At `power` one of the two
//!    words may be lost: a reader sees the record of before, if the check is lost, and that of
//!    afterwards, if the slots are.*
//!
//! So the cell is its own undo record. Invariants:
//!
//! * **No torn step is followed by a step.** Two bits could differ then. The next change of that
//!   cell is no step ([`SlabRecord::is_step`]), and goes through the undo log.
//! * **The seal of the last change does not cover the cell.** A seal that is a hash over it would
//!   fit no more, and recovery would take that change back. So the first step after a change
//!   *closes* the log: the seal becomes the one that says "made" for any contents of the cells. It
//!   is durable before the step, if the change has the cell, and else with it.
//! * **An opener relies on durable steps alone.** Its process may have died between a store and its
//!   flush. All steps but the last are durable, and the word of the last step is in the caches with
//!   it: the opener flushes that cell. After a loss of power the word may name an older cell: there
//!   is nothing to flush then.

use super::cells::{Metadata, Writer};
use crate::backing::Backing;
use cenote_layout::logged::{LAST_STEP_OFFSET, LastStep, RawCell, SlabRecord};
use cenote_medium::planted::{Bug, LoggedBug, Step, planted, reach};

/// Where the word of the used slots lies in a cell; the one with the check is the last.
const USED: usize = SlabRecord::USED_WORD;
const _: () = assert!(USED == size_of::<RawCell>() / 8 - 2);

/// The word of the last step.
pub(crate) fn last(meta: &Metadata) -> LastStep {
    LastStep::from_word(meta.word(LAST_STEP_OFFSET))
}

/// Names the cell of the step that follows, and the last change, which is made.
pub(crate) fn announce<G: Backing>(writer: &Writer<'_, G>, step: LastStep) {
    writer.store(LAST_STEP_OFFSET, step.to_word());
}

/// Names no change any more, durably.
#[cold]
pub(crate) fn forget_change<G: Backing>(meta: &Metadata, writer: &Writer<'_, G>) {
    announce(writer, LastStep { change: 0, ..last(meta) });
    writer.flush(LAST_STEP_OFFSET, size_of::<u64>() as u64);
    writer.fence();
}

/// Makes a change of one cell in place, durable at the medium's level. The change is a step, no
/// seal covers the cell, and the word of the last step names it.
#[inline]
pub(crate) fn make<G: Backing>(writer: &Writer<'_, G>, cell: u64, new: RawCell) {
    writer.store_tail(cell, [new[USED], new[USED + 1]], || reach(Step::SlotStored));
    reach(Step::StepStored);
    let is_left = planted(Bug::Logged(LoggedBug::StepNotFlushed))
        || planted(Bug::Logged(LoggedBug::FarStepNotFlushed)) && writer.is_far(cell);
    if !is_left {
        writer.flush_cell(cell);
    }
    writer.fence();
}

/// Begins to write the last step back: the next fence makes it durable.
pub(crate) fn flush_last<G: Backing>(meta: &Metadata, writer: &Writer<'_, G>) {
    let cell = last(meta).cell.into();
    if meta.geometry.is_changeable(cell) && !planted(Bug::Logged(LoggedBug::StepNotSettled)) {
        writer.flush_cell(cell);
    }
}
