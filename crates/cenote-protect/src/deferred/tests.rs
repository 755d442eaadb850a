//! What the service does with ranges that go, and with requests that find no room.

use super::service::{DeferredOptions, DeferredService, DeferredTiming};
use super::{DeferredRange, PAGE};
use cenote_sys::memory;
use core::time::Duration;
use std::sync::Arc;

const PAGES: usize = 4;

fn service(timing: DeferredTiming) -> Arc<DeferredService> {
    let options = DeferredOptions { timing, opens_at_once: true, ..DeferredOptions::default() };
    DeferredService::start(&options).expect("a thread")
}

/// Pages that stay mapped to the end of the process, and their range.
fn range(service: &Arc<DeferredService>) -> (usize, DeferredRange) {
    let base = memory::reserve_anywhere(PAGES * PAGE, PAGE).expect("address space");
    // SAFETY: our own reservation.
    unsafe { memory::map_anonymous(base, PAGES * PAGE) }.expect("mapped");
    // SAFETY: nothing stores into these pages.
    let range = unsafe { DeferredRange::new(service, base..base + PAGES * PAGE, "a test") };
    (base, range.expect("protected"))
}

fn open_pages(range: &DeferredRange) -> usize {
    (0..PAGES as u64).filter(|page| range.is_open(*page)).count()
}

#[test]
fn a_range_that_goes_twice_leaves_the_next_one_of_its_number() {
    let service = service(DeferredTiming::Deferred(Duration::from_secs(3600)));
    let (_, first) = range(&service);
    first.end();
    let (base, second) = range(&service);
    assert_eq!(first.shared.number, second.shared.number);
    drop(first);
    drop(second.begin(base..base + PAGE));
    assert_eq!(open_pages(&second), 1);
    service.settle();
    assert_eq!(open_pages(&second), 0, "the service has forgotten the second range");
}

/// A writer finds the queue full, and the batch that empties it runs before the range says so.
#[test]
fn a_request_that_found_no_room_is_served_though_the_queues_are_empty() {
    let service = service(DeferredTiming::Deferred(Duration::ZERO));
    let (_, range) = range(&service);
    // The thread sleeps.
    std::thread::sleep(Duration::from_millis(50));
    range.words().open_queued(0);
    service.look_at_all(&range.shared);
    for _ in 0..2000 {
        if open_pages(&range) == 0 {
            return;
        }
        std::thread::sleep(Duration::from_millis(1));
    }
    panic!("the page stays open");
}
