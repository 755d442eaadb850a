//! Trim: free superblocks become holes of the file, and holes become superblocks again.
//!
//! The thread that trims takes free superblocks by their anchors, as an allocation does, a few at a
//! time, and gives them back as holes; so no thread waits for it, and it waits for none. Marks and
//! descriptors lie in the puddle's metadata and are never punched; marks that lie inside a
//! superblock (TINY) belong to blocks that it does not have. No thread needs the contents of a free
//! superblock.
//!
//! ## The states of a superblock
//!
//! 1. *Free*: a valid descriptor of a former use without a mark that says "allocated", or an all
//!    zero one. The file has its space.
//! 2. *Declared*: the descriptor says "hole", flushed and fenced. **The descriptor's checksum
//!    decides**: the last of its words that reaches memory makes it valid; a torn one is invalid
//!    without marks, which is free, and counts as a hole too. The file still has the space. A crash
//!    here costs nothing but that: no thread looks at the superblock again before it is taken.
//! 3. *Hole*: `Backing::release` has punched it, all of it or, if a crash came in between, a part.
//!    It reads as zeros.
//! 4. *Backed*: the thread that took it from 2 or 3 has called `Backing::ensure`, for good at the
//!    durability level. The descriptor still says "hole"; a crash leaves state 3 as far as any
//!    opener can tell, and the next taker calls it again.
//! 5. *In use*: the descriptor of the new use is flushed and fenced ([`super::refill`],
//!    [`super::large`]), and not before 4.
//!
//! So at any moment, after any crash: **a superblock that the file has no space for has a
//! descriptor that says "hole" or is invalid**, because 2 is durable before 3 begins, and 4 before
//! 5 begins. No thread stores into such a superblock; therefore a full disk is an error of an
//! allocation and never `SIGBUS` from a store. If there is no space, the superblock goes back as it
//! is, and one that has space is looked for.
//!
//! ## What is behind the blocks
//!
//! A large block of 72 KiB takes two superblocks, and three blocks of 18 KiB one; the rest belongs
//! to no thread. It is given back at once where taking it again is cheap, so at level `process`
//! ([`TracedHeap::cut`]). The descriptors of such a use say "cut" before the space is given back,
//! and still say so when the superblocks are free. So the rule is the same for a part of a
//! superblock: **a descriptor says which space the file may not have**, and the thread that takes
//! the superblock next takes all of its space before another descriptor is written.
//!
//! A descriptor that says "hole" also ends what it said before: after a loss of power no word that
//! happens to look like a pointer into the former blocks brings them back.

use super::mutex::lock;
use super::runs;
use super::state::TracedHeap;
use super::superblock::PuddleHeap;
use crate::backing::Backing;
use crate::capability::Trim;
use crate::error::{BackingError, RecoverError};
use crate::report::{TrimProgress, TrimReport};
use cenote_layout::heap::{Descriptor, SUPERBLOCK_SIZE};
use cenote_medium::planted::{Bug, Step, planted, reach};
use core::ops::ControlFlow;

/// Superblocks that are taken, and punched, at a time: 1 MiB. More would be fewer calls of the
/// system, and more that an allocation does not find meanwhile.
const RUN_MAX: u32 = 16;

impl<G: Backing> Trim for TracedHeap<G> {
    fn trim_with(
        &self,
        progress: &mut dyn FnMut(&TrimProgress) -> ControlFlow<()>,
    ) -> Result<TrimReport, RecoverError> {
        if !self.writable {
            return Err(RecoverError::ReadOnly);
        }
        self.attach_all()?;
        {
            let _trimming = lock(&self.trimming);
            let lease = self.lease();
            let _inside = self.enter()?;
            self.take_in_orphans();
            // SAFETY: the lease's cache is this thread's, and no reference into it is held.
            unsafe { self.empty(lease.cache) };
            // Scavenging makes lists shorter for a moment: a thread that finds none takes a puddle.
            self.scavenge(&mut lock(&self.growth));
        }
        let puddles = self.puddles.all();
        let mut report = TrimReport::default();
        let mut at = TrimProgress {
            looked_at_bytes: 0,
            bytes: puddles.iter().map(|puddle| puddle.size).sum(),
            released_bytes: 0,
        };
        for puddle in &puddles {
            let mut number = puddle.first_usable();
            while number < puddle.superblocks() && !report.unsupported {
                let next = self.trim_from(puddle, number, &mut report)?;
                at.looked_at_bytes += u64::from(next - number) * SUPERBLOCK_SIZE;
                at.released_bytes = report.released_bytes;
                number = next;
                if progress(&at).is_break() {
                    return Ok(report);
                }
            }
            at.looked_at_bytes += u64::from(puddle.first_usable()) * SUPERBLOCK_SIZE;
        }
        Ok(report)
    }
}

impl<G: Backing> TracedHeap<G> {
    /// Makes the first free superblocks from `from` on holes, up to [`RUN_MAX`] in a row. Returns
    /// where to go on.
    fn trim_from(
        &self,
        puddle: &PuddleHeap,
        from: u32,
        report: &mut TrimReport,
    ) -> Result<u32, RecoverError> {
        let _trimming = lock(&self.trimming);
        // A superblock is held inside the gate only, so that no sweep of another process takes it
        // for a dead member's.
        let _inside = self.enter()?;
        let end = puddle.superblocks().min(from + RUN_MAX);
        let mut start = from;
        while start < end && !self.take_for_trim(puddle, start, report) {
            start += 1;
        }
        let mut past = (start + 1).min(end);
        while past < end && self.take_for_trim(puddle, past, report) {
            past += 1;
        }
        if start < end {
            reach(Step::TrimTaken);
            let released = self.punch(puddle, start, past - start);
            reach(Step::TrimPunched);
            self.put_run(puddle, start, past - start);
            let (index, addr) = (puddle.index, puddle.address(start));
            match released.map_err(|source| RecoverError::Trim { index, addr, source })? {
                true => report.released_bytes += u64::from(past - start) * SUPERBLOCK_SIZE,
                false => report.unsupported = true,
            }
        }
        Ok(past)
    }

    /// Takes a superblock that is free and no hole yet.
    fn take_for_trim(&self, puddle: &PuddleHeap, number: u32, report: &mut TrimReport) -> bool {
        if !puddle.is_free(number) {
            return false;
        }
        if puddle.descriptor(number) == Descriptor::hole() {
            report.hole_bytes += SUPERBLOCK_SIZE;
            return false;
        }
        runs::claim(puddle, number, 1).is_ok()
    }

    /// States 1 to 3, for superblocks that the caller owns.
    fn punch(&self, puddle: &PuddleHeap, number: u32, count: u32) -> Result<bool, BackingError> {
        let bytes = u64::from(count) * SUPERBLOCK_SIZE;
        let early = planted(Bug::HoleBeforeDescriptor);
        if early {
            // SAFETY: as below.
            unsafe { self.backing.release(puddle.address(number), bytes)? };
        }
        for number in number..number + count {
            puddle.clear_outer_marks(number);
            puddle.write_descriptor(number, &Descriptor::hole());
        }
        self.persist_descriptors(puddle, number, count);
        reach(Step::HoleDeclared);
        if early {
            return Ok(true);
        }
        // SAFETY: superblocks that this thread has taken, and so without an allocated block.
        unsafe { self.backing.release(puddle.address(number), bytes) }
    }

    /// Whether what is behind blocks is given back: not at `power`, where taking space again costs
    /// a sync of the file, and not where the backing cannot give anything back: a descriptor that
    /// says "cut" would cost the thread that takes the superblock next a request for space that was
    /// there all along.
    pub(crate) fn cuts(&self) -> bool {
        !self.backing.is_power() && self.backing.releases()
    }

    /// Gives what is behind the blocks of a run back to the file system: `end` bytes of it are in
    /// use. The caller owns it, and its descriptors say "cut", durably.
    pub(crate) fn cut(&self, puddle: &PuddleHeap, number: u32, span: u32, end: u64) {
        let whole = u64::from(span) * SUPERBLOCK_SIZE;
        if end < whole {
            // SAFETY: the run is the caller's, and no thread stores behind `end` while it is what
            // its descriptors say.
            let released =
                unsafe { self.backing.release(puddle.address(number) + end, whole - end) };
            // Space that stays is no fault: the descriptors say that it may be missing.
            let _ = released;
            reach(Step::EndCut);
        }
    }

    /// State 4: takes space for those superblocks of a run that are holes. The caller owns it, and
    /// has stored nothing into it.
    pub(crate) fn fill_holes(
        &self,
        puddle: &PuddleHeap,
        number: u32,
        count: u32,
    ) -> Result<(), BackingError> {
        if planted(Bug::HoleNotEnsured) {
            return Ok(());
        }
        let end = number + count;
        let mut from = number;
        while let Some(first) = (from..end).find(|&i| puddle.may_lack_space(i)) {
            let past = (first..end).find(|&i| !puddle.may_lack_space(i)).unwrap_or(end);
            self.backing
                .ensure(puddle.address(first), u64::from(past - first) * SUPERBLOCK_SIZE)?;
            reach(Step::HoleFilled);
            from = past;
        }
        Ok(())
    }
}
