//! Runs of free superblocks. Neighbours coalesce by themselves: a run is free superblocks that can
//! be taken one after the other, however it came about.
//!
//! Anchors are the truth: a superblock belongs to the thread that swapped its anchor from FREE to
//! TAKEN. A bitmap of *hints* finds candidates fast. The rule of hints: the bit of a FREE
//! superblock is set, or the thread that made it FREE is about to set it. So a set bit may be
//! stale, which costs a failed swap, and a clear bit never hides free space for good. It holds
//! because only owners write: the thread that takes a superblock clears its bit before it does
//! anything else with it, the thread that gives one back sets its bit after the anchor, and one
//! that finds a stale bit leaves it alone.

use super::anchor;
use crate::sync::{AtomicU64, Ordering};
use cenote_medium::planted::{Step, reach};

/// What [`take`] says.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum TakenRun {
    /// The run that begins here is the caller's.
    At(u32),
    /// There is none.
    None,
    /// There would be one, but others were taking or giving back parts of it: look again.
    Disturbed,
}

/// The anchors and hints of one puddle.
pub(crate) trait RunWords {
    /// Anchor of superblock `number`.
    fn anchor(&self, number: u32) -> &AtomicU64;
    /// Word `word` of the hints.
    fn hints(&self, word: u32) -> &AtomicU64;
    /// Superblocks.
    fn len(&self) -> u32;
}

/// Takes the first run of `count` free superblocks that begins at a multiple of `align`.
pub(crate) fn take(backing: &impl RunWords, count: u32, align: u32) -> TakenRun {
    let mut from = 0;
    let mut disturbed = false;
    while let Some(start) = next(backing, from, true) {
        let end = next(backing, start, false).unwrap_or(backing.len());
        let aligned = start.next_multiple_of(align);
        if aligned >= end || end - aligned < count {
            from = end;
            continue;
        }
        match claim(backing, aligned, count) {
            Ok(()) => return TakenRun::At(aligned),
            Err(refused) => {
                disturbed = true;
                from = refused + 1;
            }
        }
    }
    if disturbed { TakenRun::Disturbed } else { TakenRun::None }
}

/// Takes exactly this run, or nothing: which superblock could not be had.
pub(crate) fn claim(backing: &impl RunWords, start: u32, count: u32) -> Result<(), u32> {
    for number in start..start + count {
        if !anchor::take(backing.anchor(number)) {
            // Their hints are still set.
            (start..number).for_each(|taken| anchor::leave(backing.anchor(taken), anchor::FREE));
            return Err(number);
        }
    }
    for number in start..start + count {
        backing.hints(number / 64).fetch_and(!(1 << (number % 64)), Ordering::Relaxed);
    }
    Ok(())
}

/// Gives back superblocks that the caller owns.
pub(crate) fn put(backing: &impl RunWords, start: u32, count: u32) {
    for number in start..start + count {
        anchor::leave(backing.anchor(number), anchor::FREE);
        reach(Step::Unhinted);
        backing.hints(number / 64).fetch_or(1 << (number % 64), Ordering::Release);
        reach(Step::PutOne);
    }
}

/// First superblock from `from` on whose hint is set, or is not.
fn next(backing: &impl RunWords, from: u32, set: bool) -> Option<u32> {
    let mut at = from;
    while at < backing.len() {
        let word = backing.hints(at / 64).load(Ordering::Acquire);
        let word = (if set { word } else { !word }) >> (at % 64);
        if word != 0 {
            let found = at + word.trailing_zeros();
            return (found < backing.len()).then_some(found);
        }
        at = (at / 64 + 1) * 64;
    }
    None
}
