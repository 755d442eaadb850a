//! Lists of superblocks: a stack whose head is one word.
//!
//! The low half of a head is the *reference* of the first superblock (its address divided by 64
//! KiB; 0: the list is empty). The high half is a counter that every change raises: so a head that
//! has come back to the same superblock is not taken for unchanged (ABA). Links lie in descriptors,
//! which are never unmapped: a popper may read the link of a superblock that another has just
//! popped, and then its swap fails. Invariant: a superblock that is pushed is in no list, and its
//! link is its pusher's until the push is done.

use crate::sync::{AtomicU64, Ordering};

const LOW: u64 = 0xffff_ffff;

const fn changed(head: u64, first: u32) -> u64 {
    (head & !LOW).wrapping_add(LOW + 1) | first as u64
}

/// Pushes a chain from superblock `first` to link `last`; for one superblock both are its own.
pub(crate) fn push(head: &AtomicU64, first: u32, last: &AtomicU64) {
    let mut seen = head.load(Ordering::Relaxed);
    loop {
        last.store(seen & LOW, Ordering::Relaxed);
        match head.compare_exchange(
            seen,
            changed(seen, first),
            Ordering::Release,
            Ordering::Relaxed,
        ) {
            Ok(_) => return,
            Err(now) => seen = now,
        }
    }
}

/// Pops the first superblock. `link` finds the link of a reference; if it does not know one,
/// a stray write wrote over the list, and the list is dropped.
pub(crate) fn pop<'a>(
    head: &AtomicU64,
    link: impl Fn(u32) -> Option<&'a AtomicU64>,
) -> Option<u32> {
    let mut seen = head.load(Ordering::Acquire);
    loop {
        let first = (seen & LOW) as u32;
        if first == 0 {
            return None;
        }
        let known = link(first);
        let next = known.map_or(0, |link| link.load(Ordering::Relaxed));
        match head.compare_exchange(
            seen,
            changed(seen, next as u32),
            Ordering::AcqRel,
            Ordering::Acquire,
        ) {
            Ok(_) => return known.map(|_| first),
            Err(now) => seen = now,
        }
    }
}

/// Takes the whole chain: its first superblock, or 0.
pub(crate) fn take_all(head: &AtomicU64) -> u32 {
    let mut seen = head.load(Ordering::Acquire);
    loop {
        if seen & LOW == 0 {
            return 0;
        }
        match head.compare_exchange(seen, changed(seen, 0), Ordering::AcqRel, Ordering::Acquire) {
            Ok(_) => return (seen & LOW) as u32,
            Err(now) => seen = now,
        }
    }
}
