//! Adds levels to the table, and removes them (POS-4; section 5.6).
//!
//! *Adding* level `i`: take space for its pages (they read as zeros: every slot is empty); then
//! **the change of its entry to "present" commits**. A crash before leaves space for a level that
//! is absent, which means nothing.
//!
//! *Removing* it, when no record lies in it: **the change of its entry to "absent" commits**; then
//! its pages are given back, and the addresses stay mapped. A crash between leaves space. The
//! slots were emptied by changes, so pages that were not given back are zeros too.

use super::error::{AllocRefused, Fault};
use super::state::{SubHeap, SubHeapState};
use crate::backing::Backing;
use crate::error::BackingError;
use cenote_layout::logged::LevelEntry;
use cenote_medium::planted::{Bug, Step, planted, reach};

impl<G: Backing> SubHeap<G> {
    /// Adds the smallest level that is absent.
    pub(crate) fn add_level(&self, state: &mut SubHeapState) -> Result<(), AllocRefused> {
        let level = state.levels.0.trailing_ones();
        let addr = self.meta.level_addr(level).ok_or(AllocRefused::TableFull)?;
        let (_, len) = self.meta.geometry.level_range(level);
        if !planted(Bug::LevelNotEnsured) {
            self.backing.ensure(addr, len)?;
        }
        reach(Step::LevelEnsured);
        self.set_level(state, level, LevelEntry::PRESENT).map_err(Fault::damage)?;
        Ok(())
    }

    /// Removes all levels but the first in which no record lies, and gives their space back. Says
    /// how many.
    pub(crate) fn remove_empty_levels(
        &self,
        state: &mut SubHeapState,
    ) -> Result<u32, RemoveFailed> {
        let mut removed = 0;
        for level in state.levels.iter().filter(|&level| level != 0) {
            let entry: LevelEntry = state
                .plan(&self.meta)
                .change
                .read(&self.meta, LevelEntry::cell(level), "a level entry does not fit its check")
                .map_err(|fault| RemoveFailed::Damaged(fault.damage()))?;
            if entry.used != 0 {
                continue;
            }
            if planted(Bug::LevelPunchedEarly) {
                self.punch(level)?;
            }
            reach(Step::LevelEmpty);
            self.set_level(state, level, LevelEntry::ABSENT)
                .map_err(|fault| RemoveFailed::Damaged(fault.damage()))?;
            reach(Step::LevelAbsent);
            self.punch(level)?;
            removed += 1;
        }
        Ok(removed)
    }

    fn set_level(&self, state: &mut SubHeapState, level: u32, to: u32) -> Result<(), Fault> {
        self.change(state, |plan| {
            let entry = LevelEntry { state: to, ..LevelEntry::default() };
            plan.change.write(plan.meta, LevelEntry::cell(level), &entry)
        })?;
        state.levels.0 &= !(1 << level);
        state.levels.0 |= u32::from(to == LevelEntry::PRESENT) << level;
        Ok(())
    }

    /// Gives the pages of an absent level back.
    pub(crate) fn punch(&self, level: u32) -> Result<(), BackingError> {
        if !self.backing.releases() {
            return Ok(());
        }
        let Some(addr) = self.meta.level_addr(level) else { return Ok(()) };
        let (_, len) = self.meta.geometry.level_range(level);
        let _inside = self.meta.enter();
        // SAFETY: the metadata are the sub-heap's alone, and no record lies in the level: its slots
        // are not read or written before the level is added again.
        unsafe { self.backing.release(addr, len) }.map(drop)
    }
}

/// Why empty levels were not removed, or kept their space.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum RemoveFailed {
    /// The metadata are damaged.
    #[error(transparent)]
    Damaged(#[from] super::error::Damage),
    /// The medium reports an error; the space stays taken.
    #[error(transparent)]
    Backing(#[from] BackingError),
}
