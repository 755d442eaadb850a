//! A range whose stores are noted.

use crate::mapped::{PAGE, Pages};
use cenote_protect::{Right, Tracked};
use cenote_sys::memory;

const CHUNK: usize = 2 << 20;

#[test]
fn what_cannot_be_told_page_by_page_is_told_as_a_whole() {
    // Addresses that are not mapped: every attempt to let them be written is refused.
    let base = memory::find_free(2 * CHUNK, CHUNK).expect("address space");
    let tracked = Tracked::new(base..base + 2 * CHUNK, "x");
    // SAFETY: nothing is mapped there, so that nothing changes.
    assert!(!unsafe { tracked.allow(base + 5 * PAGE) });
    let mut pages = Vec::new();
    tracked.notes().take(&mut pages);
    assert_eq!(pages, std::slice::from_ref(&(0..1024)));
}

/// A store between `take` and what its caller does is in this answer or in the next.
#[test]
fn a_page_that_may_be_written_is_noted() {
    let pages = Pages::new(512);
    let tracked = Tracked::new(pages.range(), "x");
    // SAFETY: our own mapping, into which no reference leads.
    let protect = |range| unsafe { tracked.protect(range) }.expect("protected");
    protect(0..512);
    // SAFETY: our own mapping.
    assert!(unsafe { tracked.allow(pages.address(7) + 5) });
    pages.store(7);
    let mut taken = Vec::new();
    tracked.notes().take(&mut taken);
    assert_eq!(taken, std::slice::from_ref(&(7..8)));
    taken.into_iter().for_each(protect);
    assert_eq!(pages.right(7), Right::Read);
    // SAFETY: our own mapping.
    assert!(unsafe { tracked.allow(pages.address(7)) });
    assert_eq!((tracked.notes().count(), pages.right(7)), (1, Right::Write));
}
