//! Deferred protection: writers, requests, batches, stray writes.

use crate::mapped::{PAGE, Pages};

use cenote_medium::planted::{Bug, GuardBug, plant};
use cenote_protect::{
    DeferredOptions, DeferredRange, DeferredService, DeferredStats, DeferredTiming, RangeKind,
    Right, Tracked, explain,
};
use cenote_sys::dual_mapping::nameless_file;
use cenote_sys::fault::{self, Registration};
use cenote_sys::mappings::{self, Fineness};
use cenote_sys::memory::{self, Access, Sharing};
use cenote_testkit::child::{ended, task, with_task};
use cenote_testkit::strays::{Strays, stray_store};
use core::ops::Range;
use core::time::Duration;
use std::os::fd::AsFd;
use std::os::unix::process::ExitStatusExt;
use std::path::Path;
use std::process::ExitStatus;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};

const HOUR: DeferredTiming = DeferredTiming::Deferred(Duration::from_secs(3600));

/// A protected range, and what its faults lead to.
struct Protected {
    /// Dropped first: no fault comes here any more.
    _registration: Registration,
    faults: Box<Faults>,
    pages: Pages,
}

/// Two owners, as a pool in shadowed mode has them.
struct Faults {
    deferred: DeferredRange,
    tracked: Option<Tracked>,
}

/// As the resolver of a store does it.
///
/// # Safety
/// `faults` are [`Faults`].
unsafe fn resolve(faults: *const (), address: usize) -> bool {
    // SAFETY: by contract.
    let faults = unsafe { &*faults.cast::<Faults>() };
    if !fault::is_store() {
        return false;
    }
    match &faults.tracked {
        None => faults.deferred.allow(address),
        Some(_) if !faults.deferred.is_expected(address) => false,
        Some(tracked) => {
            // The one that is asked last may find that the other one denies nothing any more.
            let _ = faults.deferred.allow(address);
            // SAFETY: the test's own pages.
            unsafe { tracked.allow(address) }
        }
    }
}

impl Protected {
    fn new(pages: Pages, options: &DeferredOptions, tracked: bool) -> Self {
        let service = DeferredService::start(options).expect("a thread");
        let tracked = tracked.then(|| Tracked::new(pages.range(), "pool `x`"));
        // SAFETY: our own pages, and the resolver below.
        let deferred = unsafe { DeferredRange::new(&service, pages.range(), "pool `x`") };
        let faults = Box::new(Faults { deferred: deferred.expect("protected"), tracked });
        let (range, context) = (pages.range(), (&raw const *faults).cast());
        // SAFETY: atomics and `mprotect`; the faults live as long as the registration.
        let registered = unsafe { fault::register(range.start, range.len(), resolve, context) };
        Self { _registration: registered.expect("registered"), faults, pages }
    }

    fn of(count: usize, timing: DeferredTiming) -> Self {
        Self::new(
            Pages::new(count),
            &DeferredOptions { timing, ..DeferredOptions::default() },
            false,
        )
    }

    fn range(&self) -> &DeferredRange {
        &self.faults.deferred
    }

    fn bytes(&self, pages: Range<usize>) -> Range<usize> {
        self.pages.address(pages.start)..self.pages.address(pages.end)
    }

    /// One store into each of these pages, by a writer of all.
    fn write(&self, pages: Range<usize>) {
        let _writing = self.range().begin(self.bytes(pages.clone()));
        pages.for_each(|page| self.pages.store(page));
    }

    fn settle(&self) {
        self.range().service().settle();
    }

    fn stats(&self) -> DeferredStats {
        self.range().service().stats()
    }
}

#[test]
fn a_page_opens_for_its_writer_and_closes_with_the_next_batch() {
    let all = Protected::of(4, HOUR);
    assert_eq!(all.pages.rights(), [Right::Read; 4]);
    let writing = all.range().begin(all.bytes(1..2));
    assert_eq!(all.pages.right(1), Right::Read, "nothing has changed yet");
    all.pages.store(1);
    assert_eq!(all.pages.rights(), [Right::Read, Right::Write, Right::Read, Right::Read]);
    all.settle();
    assert_eq!(all.pages.right(1), Right::Write, "its writer is there");
    all.pages.store(1);
    drop(writing);
    assert_eq!(all.pages.right(1), Right::Write, "deferred");
    all.settle();
    assert_eq!(all.pages.rights(), [Right::Read; 4]);
    let told = explain(all.pages.address(2)).map(|found| (found.kind, found.what().to_owned()));
    assert_eq!(told, Some((RangeKind::Data, "pool `x`".to_owned())));
}

#[test]
fn requests_are_sorted_joined_and_cancelled() {
    let all = Protected::of(300, HOUR);
    // Neighbours, from the last to the first.
    for page in (0..100).rev() {
        all.write(page..page + 1);
    }
    all.write(200..201);
    all.settle();
    let first = all.stats();
    assert_eq!((first.close_calls, first.closed_pages, first.faults_served), (2, 101, 101));
    // 101 requests to open, which their faults were faster than.
    assert_eq!((first.requests, first.cancelled, first.open_calls), (202, 101, 0));
    // A writer that is back when the batch comes.
    all.write(7..8);
    let writing = all.range().begin(all.bytes(7..8));
    all.settle();
    let second = all.stats();
    assert_eq!((second.close_calls, second.closed_pages), (2, 101));
    assert_eq!(all.pages.right(7), Right::Write);
    drop(writing);
    all.settle();
    assert_eq!(all.pages.rights(), [Right::Read; 300]);
    // And one that never stored asks for nothing but its opening.
    drop(all.range().begin(all.bytes(0..50)));
    all.settle();
    let third = all.stats();
    assert_eq!((third.close_calls, third.open_calls), (3, 0));
}

#[test]
fn a_batch_that_comes_before_the_store_opens_pages_by_ranges() {
    let all = Protected::of(64, HOUR);
    let writing = all.range().begin(all.bytes(3..40));
    all.settle();
    assert_eq!((all.stats().open_calls, all.stats().faults_served), (1, 0));
    (3..40).for_each(|page| all.pages.store(page));
    assert_eq!(all.stats().faults_served, 0, "all were open");
    drop(writing);
    all.settle();
    assert_eq!(all.pages.rights(), [Right::Read; 64]);
    assert_eq!(all.stats().close_calls, 1);
}

#[test]
fn a_full_queue_loses_no_request() {
    for bug in [Bug::None, Bug::Guard(GuardBug::OverflowForgotten)] {
        let options = DeferredOptions { timing: HOUR, queue_len: 8, ..DeferredOptions::default() };
        let all = Protected::new(Pages::new(200), &options, false);
        plant(bug);
        (0..200).step_by(2).for_each(|page| all.write(page..page + 1));
        plant(Bug::None);
        assert!(all.stats().overflows > 100);
        all.settle();
        let closed = all.pages.rights() == [Right::Read; 200];
        assert_eq!(closed, bug == Bug::None, "{bug:?}");
    }
}

#[test]
fn a_writer_that_leaves_without_a_request_is_found() {
    let all = Protected::of(4, HOUR);
    plant(Bug::Guard(GuardBug::LeaveNotQueued));
    all.write(0..4);
    plant(Bug::None);
    all.settle();
    assert_eq!(all.pages.rights(), [Right::Write; 4], "this is what the other tests would find");
}

#[test]
fn synchronous_protection_changes_rights_with_each_writer() {
    let all = Protected::of(8, DeferredTiming::Synchronous);
    let (first, second) = (all.range().begin(all.bytes(2..3)), all.range().begin(all.bytes(2..4)));
    assert_eq!(all.pages.right(2), Right::Write);
    drop(first);
    assert_eq!((all.pages.right(2), all.pages.right(3)), (Right::Write, Right::Write));
    drop(second);
    assert_eq!(all.pages.rights(), [Right::Read; 8]);
    let stats = all.stats();
    assert_eq!((stats.open_calls, stats.close_calls, stats.faults_served), (2, 2, 0));
}

#[test]
fn a_service_that_opens_at_once_spares_the_faults_and_closes_later() {
    let options =
        DeferredOptions { timing: HOUR, opens_at_once: true, ..DeferredOptions::default() };
    let all = Protected::new(Pages::new(8), &options, false);
    for round in 1..=3 {
        all.write(2..5);
        let open = [2, 3, 4].map(|page| all.pages.right(page));
        assert_eq!(open, [Right::Write; 3], "until the next batch");
        all.write(2..5);
        all.settle();
        assert_eq!(all.pages.rights(), [Right::Read; 8]);
        let stats = all.stats();
        let calls = (stats.open_calls, stats.close_calls, stats.faults_served);
        assert_eq!(calls, (round, round, 0), "one for neighbours");
    }
}

#[test]
fn bytes_outside_are_left_out_and_parts_of_pages_are_whole_pages() {
    let all = Protected::of(4, HOUR);
    let at = all.pages.address(1);
    drop(all.range().begin(0..all.pages.base));
    drop(all.range().begin(all.pages.range().end..usize::MAX));
    drop(all.range().begin(at..at));
    let _writing = all.range().begin(at + 4090..at + 4100);
    let expected: Vec<bool> =
        (0..4).map(|page| all.range().is_expected(all.pages.address(page) + 9)).collect();
    assert_eq!(expected, [false, true, true, false]);
    assert!(!all.range().is_expected(all.pages.range().end));
    assert!(!all.range().allow(all.pages.address(0)), "no writer");
}

/// In a child: its handler comes before that of the library.
fn many_strays() {
    let strays = Strays::catch();
    let all = Protected::of(512, HOUR);
    // Some pages have a writer, who does not make others writable.
    let _writing = all.range().begin(all.bytes(100..110));
    let mut seed = 7u64;
    for round in 1..=100_000u64 {
        seed = seed.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        let page = (seed >> 33) as usize % 502;
        let page = if page < 100 { page } else { page + 10 };
        let address = all.pages.address(page) + (seed >> 20) as usize % 512 * 8;
        stray_store(address, u64::MAX);
        assert_eq!(strays.last(), (round, address));
        assert_eq!(explain(address).expect("known").kind, RangeKind::Data);
    }
    (100..110).for_each(|page| all.pages.store(page));
    let landed = (0..512 * PAGE / 8).filter(|word| {
        let at = core::ptr::with_exposed_provenance::<u64>(all.pages.base + word * 8);
        // SAFETY: a word of our own pages, which are readable.
        unsafe { at.read_volatile() == u64::MAX }
    });
    assert_eq!(landed.count(), 0);
    // The oracle of this test sees one that lands.
    plant(Bug::Guard(GuardBug::StrayOpened));
    stray_store(all.pages.address(3), 5);
    plant(Bug::None);
    assert_eq!(strays.last().0, 100_000, "it was let through");
}

#[test]
fn writers_on_several_threads_lose_no_store_and_leave_all_pages_closed() {
    const PAGES: usize = 64;
    let waits = [DeferredTiming::Deferred(Duration::ZERO), DeferredTiming::Synchronous];
    for timing in waits.into_iter().chain([DeferredTiming::Deferred(Duration::from_millis(1))]) {
        let all = Protected::of(PAGES, timing);
        let counts: Vec<AtomicU64> = (0..PAGES).map(|_| AtomicU64::new(0)).collect();
        std::thread::scope(|scope| {
            for thread in 0..4u64 {
                let (all, counts) = (&all, &counts);
                scope.spawn(move || {
                    let mut seed = thread + 1;
                    for _ in 0..4000 {
                        seed = seed.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1);
                        let (page, len) =
                            ((seed >> 33) as usize % PAGES, (seed >> 53) as usize % 3);
                        let pages = page..(page + 1 + len).min(PAGES);
                        let _writing = all.range().begin(all.bytes(pages.clone()));
                        for page in pages {
                            let at = all.pages.address(page) + thread as usize * 8;
                            let at = core::ptr::with_exposed_provenance_mut::<u64>(at);
                            // SAFETY: a word of our own pages, of this thread alone.
                            unsafe { at.write_volatile(at.read_volatile() + 1) };
                            counts[page].fetch_add(1, Ordering::Relaxed);
                        }
                    }
                });
            }
        });
        all.settle();
        all.settle();
        assert_eq!(all.pages.rights(), [Right::Read; PAGES], "{timing:?}");
        for (page, count) in counts.iter().enumerate() {
            let words = (0..4).map(|thread| all.pages.address(page) + thread * 8);
            // SAFETY: words of our own pages.
            let of = |at| unsafe { core::ptr::with_exposed_provenance::<u64>(at).read_volatile() };
            assert_eq!(words.map(of).sum::<u64>(), count.load(Ordering::Relaxed), "{timing:?}");
        }
    }
}

/// In a child, as above.
fn strays_beside_tracking() {
    let strays = Strays::catch();
    let options = DeferredOptions { timing: HOUR, ..DeferredOptions::default() };
    let all = Protected::new(Pages::new(32), &options, true);
    let tracked = all.faults.tracked.as_ref().expect("tracked");
    let psync = || {
        let mut taken = Vec::new();
        tracked.notes().take(&mut taken);
        // SAFETY: our own pages.
        taken
            .iter()
            .for_each(|pages| unsafe { tracked.protect(pages.clone()) }.expect("protected"));
        taken
    };
    all.write(3..6);
    stray_store(all.pages.address(9), 1);
    assert_eq!(psync(), std::slice::from_ref(&(3..6)));
    // A psync closed them; the writers of the next round fault for it, open as they are.
    all.write(4..5);
    assert_eq!(psync(), std::slice::from_ref(&(4..5)));
    all.settle();
    assert_eq!(all.pages.rights(), [Right::Read; 32]);
    // And a batch closed them, where tracking has noted them already.
    all.write(5..6);
    all.settle();
    all.write(5..6);
    assert_eq!(psync(), std::slice::from_ref(&(5..6)));
    assert_eq!(strays.last().0, 1);
    stray_store(all.pages.address(5), 1);
    assert_eq!((strays.last().0, psync().len()), (2, 0), "open for tracking, and for no writer");
}

/// Neighbours that open with a page close with the next batch.
#[test]
fn what_opens_by_larger_pieces_closes_again() {
    let all = Protected::of(600, HOUR);
    {
        let _writing = all.range().begin(all.bytes(5..6));
        assert!(all.range().allow_by(all.pages.address(5), Fineness::Whole));
        assert_eq!(all.pages.rights(), [Right::Write; 600]);
        all.settle();
        let open = all.pages.rights().iter().filter(|right| **right == Right::Write).count();
        assert_eq!(open, 1);
    }
    all.settle();
    assert_eq!(all.pages.rights(), [Right::Read; 600]);
}

#[test]
fn a_range_may_end_while_batches_run() {
    let service = DeferredService::start(&DeferredOptions {
        timing: DeferredTiming::Deferred(Duration::ZERO),
        ..DeferredOptions::default()
    });
    let service = service.expect("a thread");
    let over = AtomicBool::new(false);
    std::thread::scope(|scope| {
        scope.spawn(|| {
            while !over.load(Ordering::Relaxed) {
                service.settle();
            }
        });
        for _ in 0..300 {
            let pages = Pages::new(16);
            // SAFETY: our own pages; nothing stores there.
            let range = unsafe { DeferredRange::new(&service, pages.range(), "x") }.expect("new");
            drop(range.begin(pages.range()));
            drop(range);
        }
        over.store(true, Ordering::Relaxed);
    });
    // And the service ends with its last range.
    assert_eq!(Arc::strong_count(&service), 1);
}

/// Two ranges with one number would have their requests mixed up, and pages left open.
#[test]
fn ranges_that_are_made_at_once_have_numbers_of_their_own() {
    let options = DeferredOptions { timing: HOUR, ..DeferredOptions::default() };
    let service = DeferredService::start(&options).expect("a thread");
    for _ in 0..50 {
        let pages: Vec<Pages> = (0..4).map(|_| Pages::new(2)).collect();
        // SAFETY: our own pages; nothing stores there.
        let make = |at: &Pages| unsafe { DeferredRange::new(&service, at.range(), "x") };
        let ranges: Vec<DeferredRange> = std::thread::scope(|scope| {
            let made: Vec<_> = pages.iter().map(|at| scope.spawn(move || make(at))).collect();
            made.into_iter().map(|made| made.join().expect("ends").expect("made")).collect()
        });
        for (range, at) in ranges.iter().zip(&pages) {
            let _writer = range.begin(at.range());
            assert!(range.allow(at.address(0)) && range.allow(at.address(1)));
        }
        service.settle();
        for at in &pages {
            assert_eq!(at.rights(), [Right::Read; 2]);
        }
    }
}

/// In a child, whose mappings are its own: every second page of 8 GiB, which is one small file
/// again and again.
fn scattered() {
    const PIECE: usize = 64 << 20;
    const PIECES: usize = 128;
    let base = memory::reserve_anywhere(PIECES * PIECE, PIECE).expect("address space");
    let file = nameless_file("scattered").expect("a file");
    file.set_len(PIECE as u64).expect("its length");
    for at in (0..PIECES).map(|piece| base + piece * PIECE) {
        let shared = (Access::ReadWrite, Sharing::Shared);
        // SAFETY: our own reservation, which nothing uses yet.
        unsafe { memory::map_file_at(file.as_fd(), 0, at, PIECE, shared.0, shared.1) }
            .expect("mapped");
    }
    let pages = Pages { base, count: PIECES * PIECE / PAGE };
    // No batch comes in time: nothing but the bound keeps mappings few.
    let options =
        DeferredOptions { timing: HOUR, queue_len: 1 << 12, ..DeferredOptions::default() };
    let all = Protected::new(pages, &options, false);
    let (mut most, limit) = (0, mappings::limit());
    for page in (0..all.pages.count).step_by(2) {
        all.write(page..page + 1);
        if page % (1 << 15) == 0 {
            // `None`: a fault handler counts just now.
            most = most.max(mappings::count().unwrap_or_default());
        }
    }
    all.settle();
    all.settle();
    let left = std::iter::from_fn(|| Some(mappings::count())).flatten().next().expect("counted");
    println!("{most} of {limit} mappings, {left} in the end; {:?}", all.stats());
    assert!(most > 1000 && most < limit * 7 / 8, "{most} of {limit}");
    assert!(left < 2 * PIECES as u64 + 200, "{left}: all pages are closed");
    assert!((0..all.pages.count as u64).all(|page| !all.range().is_open(page)));
}

/// Not a test of its own: what a child does.
#[test]
fn child() {
    match task().map(|(what, _)| what).as_deref() {
        None => {}
        Some("many") => many_strays(),
        Some("scattered") => scattered(),
        Some("tracked") => strays_beside_tracking(),
        Some("ignored") => {
            let all = Protected::of(4, HOUR);
            all.write(1..2);
            // It is back before the batch.
            let _writing = all.range().begin(all.bytes(1..2));
            plant(Bug::Guard(GuardBug::WriterIgnored));
            all.settle();
            all.pages.store(1);
        }
        Some(_) => Protected::of(4, HOUR).pages.store(1),
    }
}

fn run(what: &str) -> (ExitStatus, String) {
    ended(&mut with_task("deferred::child", what, Path::new("/")))
}

#[test]
fn a_hundred_thousand_stray_stores_are_told_of_and_none_lands() {
    let mut command = with_task("deferred::child", "many", Path::new("/"));
    let output = command.output().expect("it runs");
    let said = String::from_utf8_lossy(&output.stderr);
    let told = said.lines().filter(|line| line.contains("stray write at 0x"));
    assert_eq!(told.filter(|line| line.contains("data of pool `x`")).count(), 100_000);
    assert!(output.status.success());
}

#[test]
fn a_million_scattered_pages_take_a_bounded_number_of_mappings() {
    let (status, said) = run("scattered");
    assert!(status.success(), "{said}");
}

#[test]
fn tracking_beside_it_sees_what_writers_stored_and_no_stray_store() {
    let (status, said) = run("tracked");
    assert!(status.success(), "{said}");
}

#[test]
fn a_stray_store_ends_the_process_with_a_word() {
    let (status, said) = run("stray");
    assert_eq!(status.signal(), Some(libc::SIGSEGV), "{said}");
    assert!(said.contains("stray write at 0x") && said.contains("data of pool `x`"), "{said}");
}

#[test]
fn a_batch_that_forgets_a_writer_is_found() {
    let (status, said) = run("ignored");
    assert_eq!(status.signal(), Some(libc::SIGSEGV), "{said}");
}
