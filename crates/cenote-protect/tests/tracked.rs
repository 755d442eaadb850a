//! A range whose stores are noted.

use crate::mapped::{PAGE, Pages};
use cenote_protect::{Owner, RangeKind, Right, Tracked, Whole};
use cenote_sys::mappings::Fineness;
use cenote_sys::memory;
use core::sync::atomic::{AtomicBool, AtomicU64, Ordering};

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

/// Every order of a store that is noted after it, and of a psync that takes notes and then copies:
/// the copy has the store, or a note stays.
#[test]
fn a_store_that_is_noted_after_it_is_in_this_psync_or_tells_the_next_one() {
    for order in ["SNTC", "STNC", "STCN", "TSNC", "TSCN", "TCSN"] {
        let notes = Tracked::new(0x5000..0x9000, "x");
        let (mut page, mut copy, mut taken) = (0, None, Vec::new());
        for step in order.chars() {
            match step {
                'S' => page = 7,
                'N' => notes.store_notes().note_stored(0x6ff8),
                'T' => notes.notes().take(&mut taken),
                _ => copy = taken.contains(&(1..2)).then_some(page),
            }
        }
        assert!(copy == Some(7) || notes.notes().has(1), "{order}");
    }
}

#[test]
fn threads_that_note_and_one_that_takes_lose_no_store() {
    const PAGES: usize = 700;
    let tracked = Tracked::new(0..PAGES * PAGE, "x");
    let stored: Vec<AtomicU64> = (0..PAGES).map(|_| AtomicU64::new(0)).collect();
    let mut copied = vec![0; PAGES];
    let is_over = AtomicBool::new(false);
    let psync = |copied: &mut Vec<u64>| {
        let mut taken = Vec::new();
        tracked.notes().take(&mut taken);
        for page in taken.into_iter().flatten() {
            copied[page as usize] = stored[page as usize].load(Ordering::Relaxed);
        }
    };
    std::thread::scope(|scope| {
        for thread in 0..3 {
            let (tracked, stored, is_over) = (&tracked, &stored, &is_over);
            scope.spawn(move || {
                let notes = tracked.store_notes();
                for round in 0..40_000 {
                    let page = (round * 17 + thread * 5) % PAGES;
                    stored[page].fetch_add(1, Ordering::Relaxed);
                    notes.note_stored(page * PAGE + 8);
                }
                is_over.store(true, Ordering::Release);
            });
        }
        while !is_over.load(Ordering::Acquire) {
            psync(&mut copied);
        }
    });
    psync(&mut copied);
    let all: Vec<u64> = stored.iter().map(|word| word.load(Ordering::Relaxed)).collect();
    assert_eq!((copied, tracked.notes().count()), (all, 0));
}

#[test]
fn what_another_owner_closes_cannot_be_read_and_the_rest_can() {
    let pages = Pages::new(8);
    let tracked = Tracked::new(pages.range(), "x");
    assert_eq!(tracked.readable(&[0..3, 5..8]), [0..3, 5..8], "it is alone");
    let close = |page: usize| {
        let range = pages.address(page)..pages.address(page + 1);
        let owner = Owner::new(range, RangeKind::Guard, "x", Whole::new(Right::Nothing));
        // SAFETY: our own page, which nothing uses.
        unsafe { owner.set(0..1, Right::Nothing) }.expect("closed");
        owner
    };
    let owners = [close(1), close(6)];
    assert_eq!(tracked.readable(&[0..3, 5..7]), [0..1, 2..3, 5..6]);
    // SAFETY: our own pages; as coarse as it goes.
    unsafe {
        assert!(tracked.allow_by(pages.address(0), Fineness::Whole));
        assert!(!tracked.allow_by(pages.address(6), Fineness::Whole), "its owner denies it");
    }
    assert_eq!((pages.right(0), pages.right(1)), (Right::Write, Right::Nothing));
    assert_eq!(tracked.notes().count(), 8);
    drop(owners);
}
