//! Anchors: one word for each superblock, which decides which thread may use it. All changes of
//! hands go through these functions.
//!
//! | state | who has the superblock |
//! | --- | --- |
//! | FREE | no thread |
//! | TAKEN | one thread, to set it up or to give it back |
//! | FULL | all threads that have blocks of it; it is in no list |
//! | LISTED | exactly one list, or the thread that popped it |
//!
//! | from | to | step |
//! | --- | --- | --- |
//! | FREE | TAKEN | take |
//! | TAKEN | FREE | put |
//! | TAKEN | FULL | set up |
//! | FULL | LISTED | `announce`, by any thread that frees a block |
//! | LISTED | FULL | `settle` |
//! | LISTED | TAKEN | `retire` |
//!
//! The low byte is the state; the rest is a tag that every step changes, or the span of a large
//! block's head, or the distance of its tails.
//!
//! **Invariant.** *If a mark of a small superblock is FREE, the superblock is LISTED, or the thread
//! that wrote FREE has not called `announce` yet.* Proof. FREE is written only by a spiller, which
//! calls `announce` after it, and by no other thread once the superblock is in use. FULL is entered
//! in two ways. (1) Set up: all marks were made CACHED before. (2) `settle` by the thread in whose
//! hands the superblock is: it loaded the anchor, made all marks CACHED that it saw FREE (only the
//! holder turns FREE into CACHED), and swaps that very anchor value for FULL. An `announce` that
//! came before the load is seen by the load (acquire), and so is the FREE before it; one between
//! load and swap has changed the tag, so the swap fails and the superblock goes back to its list;
//! one after the swap finds FULL, makes it LISTED and pushes it. So the thread that wrote a FREE
//! that the holder has not seen comes after the swap.
//!
//! **Late announcements.** A spiller may have written the last FREE of a superblock that is
//! retired, and used for other things, before it calls `announce`. Then it finds a state other than
//! FULL and LISTED, and does nothing; or it finds these two in a later life, and the superblock is
//! listed although it has no FREE mark, perhaps in the list of its former type. Both are harmless:
//! a popper that finds no FREE settles it again, and one that finds another type pushes it to the
//! right list. It is never in two lists, because only the step FULL to LISTED entitles to a push.

use crate::sync::{AtomicU64, Ordering};

/// No thread uses it; the thread that swaps it for `TAKEN` has it.
pub(crate) const FREE: u64 = 0;
/// One thread has it: to set it up, or to give it back.
pub(crate) const TAKEN: u64 = 1;
/// Small blocks, none of them FREE.
pub(crate) const FULL: u64 = 2;
/// Small blocks, perhaps some of them FREE.
pub(crate) const LISTED: u64 = 3;
/// First superblock of a large block; the value is the number of superblocks.
pub(crate) const LARGE_HEAD: u64 = 4;
/// Further superblock of a large block; the value is the distance to the head.
pub(crate) const LARGE_TAIL: u64 = 5;
/// The puddle's own metadata.
pub(crate) const METADATA: u64 = 6;
/// Not used: its descriptor cannot be believed.
pub(crate) const DAMAGED: u64 = 7;

const _: () = assert!(cenote_layout::heap::Descriptor::LOST.anchor == DAMAGED);

const STATE: u64 = 0xff;

/// The state of an anchor.
#[inline]
pub(crate) const fn state(anchor: u64) -> u64 {
    anchor & STATE
}

/// The value of an anchor: span, distance or tag.
#[inline]
pub(crate) const fn value(anchor: u64) -> u64 {
    anchor >> 8
}

/// The anchor with this state and value.
pub(crate) const fn with(state: u64, value: u64) -> u64 {
    value << 8 | state
}

/// The anchor after the next step, into `state`.
const fn step(anchor: u64, state: u64) -> u64 {
    (anchor & !STATE).wrapping_add(STATE + 1) | state
}

/// FREE to TAKEN: whether the superblock is the caller's now.
pub(crate) fn take(anchor: &AtomicU64) -> bool {
    let mut seen = anchor.load(Ordering::Relaxed);
    while state(seen) == FREE {
        match anchor.compare_exchange(seen, step(seen, TAKEN), Ordering::Acquire, Ordering::Relaxed)
        {
            Ok(_) => return true,
            Err(now) => seen = now,
        }
    }
    false
}

/// Ends the caller's ownership. What it leaves in the superblock is seen by the thread that gets it
/// next. `announce` writes to no anchor of an owned superblock, so a plain store loses nothing.
pub(crate) fn leave(anchor: &AtomicU64, state: u64) {
    let seen = anchor.load(Ordering::Relaxed);
    anchor.store(step(seen, state), Ordering::Release);
}

/// After marks of the superblock were made FREE. True: it has become LISTED by this, and the caller
/// must push it.
#[must_use]
pub(crate) fn announce(anchor: &AtomicU64) -> bool {
    let mut seen = anchor.load(Ordering::Relaxed);
    loop {
        if state(seen) != FULL && state(seen) != LISTED {
            return false;
        }
        match anchor.compare_exchange(seen, step(seen, LISTED), Ordering::AcqRel, Ordering::Relaxed)
        {
            Ok(_) => return state(seen) == FULL,
            Err(now) => seen = now,
        }
    }
}

/// By the holder of a LISTED superblock that has claimed all FREE marks since it loaded `seen`:
/// FULL, unless a thread has announced more. False: it is LISTED and still in the caller's hands.
#[must_use]
pub(crate) fn settle(anchor: &AtomicU64, seen: u64) -> bool {
    if cenote_medium::planted::planted(cenote_medium::planted::Bug::RefillUnchecked) {
        anchor.store(step(seen, FULL), Ordering::Release);
        return true;
    }
    anchor.compare_exchange(seen, step(seen, FULL), Ordering::AcqRel, Ordering::Relaxed).is_ok()
}

/// By the holder of a LISTED superblock all of whose marks are FREE: TAKEN. No thread has a block
/// of it, so only late announcements can interfere.
pub(crate) fn retire(anchor: &AtomicU64) {
    let mut seen = anchor.load(Ordering::Relaxed);
    while let Err(now) =
        anchor.compare_exchange(seen, step(seen, TAKEN), Ordering::AcqRel, Ordering::Relaxed)
    {
        seen = now;
    }
}
