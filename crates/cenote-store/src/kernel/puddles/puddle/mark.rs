//! The stamp that a puddle's files get before they are written
//! ([`crate::kernel::puddles::stamps`]).

use super::{MARKED, Puddle};
use cenote_layout::puddle::STAMP_AT;
use cenote_medium::planted::{Bug, planted};
use cenote_medium::{FileWord, MapMode, MediumError, OwnedMedium};
use core::sync::atomic::Ordering;

impl Puddle {
    /// Its file gets this stamp before the first store into it. Said before it is mapped.
    pub(crate) fn set_mark(&self, stamp: u64) {
        self.mark.store(stamp, Ordering::Release);
    }

    /// Maps its file, where nothing is mapped. Its stamp is written before, once, by a call, which
    /// can fail. A store into the mapping could not: where the page is lost, or the disk full, it
    /// is a `SIGBUS` of this thread, which has the turn to map. Allocates nothing.
    ///
    /// # Safety
    /// This thread has the turn (MAPPING).
    pub(super) unsafe fn map_stamped(
        &self,
        medium: &OwnedMedium,
        mode: MapMode,
    ) -> Result<(), MediumError> {
        let stamp = self.mark.load(Ordering::Acquire);
        let is_pending =
            stamp != 0 && mode.is_shared_writable() && !self.is_stamped.load(Ordering::Acquire);
        let word = is_pending.then_some(FileWord { offset: STAMP_AT, value: stamp & !MARKED });
        if is_pending {
            self.mark.store(stamp | MARKED, Ordering::Release);
        }
        // SAFETY: the puddle's own range, where nothing is mapped, by contract. The word lies in
        // the header space, behind the header: nothing refers to it.
        unsafe { medium.map_written(self.file_name(), self.addr(), self.size(), mode, word) }?;
        self.is_stamped.fetch_or(is_pending, Ordering::Release);
        Ok(())
    }

    /// The stamp that its files get where they are rewritten before they are mapped; 0: they keep
    /// theirs. From now on a close knows that they may have it.
    pub(crate) fn claim_mark(&self) -> u64 {
        let stamp = self.mark.load(Ordering::Acquire);
        if stamp == 0 || planted(Bug::RewrittenUnmarked) {
            return 0;
        }
        self.mark.store(stamp | MARKED, Ordering::Release);
        stamp & !MARKED
    }

    /// Its files have been rewritten, and have the stamp that was claimed.
    pub(crate) fn set_rewritten(&self, claimed: u64) {
        self.is_stamped.fetch_or(claimed != 0, Ordering::Release);
    }

    /// Whether it is known that its file has the stamp.
    pub(crate) fn has_stamp(&self) -> bool {
        self.is_stamped.load(Ordering::Acquire)
    }

    /// Whether its file may have got the stamp for a mapping, or by a rewriting.
    pub(crate) fn is_marked(&self) -> bool {
        self.mark.load(Ordering::Acquire) & MARKED != 0 && !planted(Bug::MarkForgotten)
    }
}
