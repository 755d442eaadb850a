//! Two owners of a page cannot undo each other: every order of their steps, and threads.

use crate::mapped::Pages;
use cenote_medium::planted::{Bug, plant};
use cenote_protect::dirty_bitmap::DirtyBitmap;
use cenote_protect::{Owner, RangeKind, Right, Rights, Tracked, Whole};
use core::sync::atomic::{AtomicBool, Ordering};

const COUNT: u64 = 4;
/// The page that both owners change.
const PAGE: u64 = 2;

/// Notes of stores, as a psync has them, and a reader or a heap that denies.
struct Both {
    notes: Owner<DirtyBitmap>,
    other: Owner<Whole>,
    /// Dropped last: another test may get their addresses.
    pages: Pages,
}

impl Both {
    fn new() -> Self {
        let pages = Pages::new(COUNT as usize);
        let notes = DirtyBitmap::new(pages.range().len());
        let notes = Owner::new(pages.range(), RangeKind::Tracked, "pool \"x\"", notes);
        set(&notes, 0..COUNT, Right::Read);
        let whole = Whole::new(Right::Write);
        let other = Owner::new(pages.range(), RangeKind::Metadata, "pool \"x\"", whole);
        Self { pages, notes, other }
    }

    fn take(&self) {
        self.notes.rights().take(&mut Vec::new());
    }

    /// Whether the kernel gives each page the least of what the owners allow.
    fn is_right(&self) -> bool {
        (0..COUNT).all(|page| {
            let least = self.notes.rights().allows(page).min(self.other.rights().allows(page));
            self.pages.right(page as usize) == least && self.notes.right_of(page) == least
        })
    }
}

fn set<R: Rights>(owner: &Owner<R>, pages: core::ops::Range<u64>, right: Right) -> bool {
    // SAFETY: our own pages, into which no reference leads.
    unsafe { owner.set(pages, right) }.expect("changed")
}

fn give<R: Rights>(owner: &Owner<R>, pages: core::ops::Range<u64>, right: Right) {
    let _ = set(owner, pages, right);
}

type Step = fn(&Both);

/// A fault, a psync, and a fault: each changes its state first, and then the right.
const OF_NOTES: [Step; 6] = [
    |both| both.notes.rights().note(PAGE..PAGE + 1),
    |both| give(&both.notes, PAGE..PAGE + 1, Right::Write),
    Both::take,
    |both| give(&both.notes, PAGE..PAGE + 1, Right::Read),
    |both| both.notes.rights().note(PAGE..PAGE + 1),
    |both| give(&both.notes, PAGE..PAGE + 1, Right::Write),
];
const OF_OTHER: [Step; 6] = [
    |both| both.other.rights().change(Right::Nothing),
    |both| give(&both.other, 0..COUNT, Right::Nothing),
    |both| both.other.rights().change(Right::Read),
    |both| give(&both.other, 0..COUNT, Right::Read),
    |both| both.other.rights().change(Right::Write),
    |both| give(&both.other, 0..COUNT, Right::Write),
];

/// All orders of the steps of two owners, of which a bit says whose step comes; the order in which
/// a page had another right than the least, when no owner was between its two steps.
fn first_wrong_order() -> Option<u32> {
    let all = OF_NOTES.len() + OF_OTHER.len();
    for order in 0..1u32 << all {
        if order.count_ones() as usize != OF_NOTES.len() {
            continue;
        }
        let both = Both::new();
        let (mut notes, mut other) = (OF_NOTES.iter(), OF_OTHER.iter());
        for at in 0..all {
            let step = if order >> at & 1 == 1 { notes.next() } else { other.next() };
            step.expect("as many as bits")(&both);
            let settled = notes.len() % 2 == 0 && other.len() % 2 == 0;
            if settled && !both.is_right() {
                return Some(order);
            }
        }
    }
    None
}

#[test]
fn no_owner_gives_what_the_other_one_denies_in_any_order() {
    assert_eq!(first_wrong_order(), None);
}

#[test]
fn an_owner_that_undoes_the_other_one_is_found() {
    plant(Bug::OwnerUndone);
    let found = first_wrong_order();
    plant(Bug::None);
    assert!(found.is_some(), "the bug was not found");
}

#[test]
fn a_fault_does_not_open_a_page_that_another_owner_denies() {
    let pages = Pages::new(COUNT as usize);
    let tracked = Tracked::new(pages.range(), "pool \"x\"");
    // SAFETY: our own pages.
    unsafe { tracked.protect(0..COUNT) }.expect("protected");
    let inner = pages.address(1)..pages.address(3);
    let heap = Owner::new(inner, RangeKind::Metadata, "pool \"x\"", Whole::new(Right::Read));
    assert!(set(&heap, 0..2, Right::Read));
    // SAFETY: our own pages.
    let allow = |page| unsafe { tracked.allow(pages.address(page)) };
    assert_eq!((0..4).map(allow).collect::<Vec<_>>(), [true, false, false, true]);
    assert_eq!(pages.rights(), [Right::Write, Right::Read, Right::Read, Right::Write]);
    // What it noted counts from the moment on that the other owner allows it.
    heap.rights().change(Right::Write);
    assert!(set(&heap, 0..2, Right::Write));
    assert_eq!(pages.rights(), [Right::Write; 4]);
    heap.rights().change(Right::Nothing);
    assert!(set(&heap, 0..2, Right::Nothing));
    assert_eq!(pages.right(1), Right::Nothing);
    // Its end opens nothing by itself; the next fault does.
    heap.retire();
    assert!(!set(&heap, 0..1, Right::Write));
    drop(heap);
    assert_eq!(pages.right(2), Right::Nothing);
    assert!(allow(2));
    assert_eq!(pages.rights()[2], Right::Write);
}

#[test]
fn many_owners_of_a_page_are_all_asked() {
    let pages = Pages::new(2);
    let owners: Vec<Owner<Whole>> = (0..12)
        .map(|_| Owner::new(pages.range(), RangeKind::ReadOnly, "x", Whole::new(Right::Write)))
        .collect();
    for denying in &owners {
        denying.rights().change(Right::Read);
        set(&owners[0], 0..2, owners[0].rights().allows(0));
        assert_eq!(pages.rights(), [Right::Read; 2]);
        denying.rights().change(Right::Write);
        assert!(set(denying, 0..2, Right::Write));
        assert_eq!(pages.rights(), [Right::Write; 2]);
    }
}

#[test]
fn two_threads_leave_the_least_of_what_their_owners_allow() {
    for round in 0..40u64 {
        let both = Both::new();
        std::thread::scope(|scope| {
            scope.spawn(|| {
                for step in 0..200 {
                    let page = (step + round) % COUNT;
                    both.notes.rights().note(page..page + 1);
                    set(&both.notes, page..page + 1, Right::Write);
                    if step % 3 == round % 3 {
                        both.take();
                        set(&both.notes, 0..COUNT, Right::Read);
                    }
                }
            });
            for step in 0..200 {
                let right =
                    [Right::Read, Right::Write, Right::Nothing][(step + round as usize) % 3];
                both.other.rights().change(right);
                set(&both.other, 0..COUNT, right);
            }
        });
        assert!(both.is_right(), "round {round}");
    }
}

#[test]
fn an_owner_that_comes_while_another_one_works_is_not_undone() {
    let pages = Pages::new(1);
    let notes = DirtyBitmap::new(pages.range().len());
    let notes = Owner::new(pages.range(), RangeKind::Tracked, "x", notes);
    let (stop, pause) = (AtomicBool::new(false), std::sync::Barrier::new(2));
    std::thread::scope(|scope| {
        scope.spawn(|| {
            while !stop.load(Ordering::SeqCst) {
                for _ in 0..20 {
                    notes.rights().note(0..1);
                    set(&notes, 0..1, Right::Write);
                }
                pause.wait();
                pause.wait();
            }
        });
        for round in 0..300 {
            let whole = Whole::new(Right::Read);
            let other = Owner::new(pages.range(), RangeKind::ReadOnly, "x", whole);
            set(&other, 0..1, Right::Read);
            pause.wait();
            stop.store(round == 299, Ordering::SeqCst);
            assert_eq!(pages.right(0), Right::Read, "round {round}");
            drop(other);
            pause.wait();
        }
    });
}
