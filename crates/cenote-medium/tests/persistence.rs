//! What flush, fence and stream execute at each durability level, counted exactly.

use std::sync::{Arc, Mutex};

use cenote_medium::counters::{self, Counts};
use cenote_medium::{Durability, Persistence, SIM_SLOTS, SimHook, SimSlot};

#[repr(align(4096))]
struct Page([u8; 4096]);

fn counted(work: impl FnOnce()) -> Counts {
    let before = counters::snapshot();
    work();
    counters::snapshot() - before
}

/// Everything a `Persistence` can do, on `page`: flushes of 1, 2 and 3 lines, none, streams of 8
/// and 64 and 4096 B.
fn everything(persistence: Persistence, page: &mut Page) {
    let source: Vec<u8> = (0..4097u32).map(|i| (i % 251) as u8).collect();
    let at = page.0.as_mut_ptr();
    // SAFETY: every range lies in the page or in the source.
    unsafe {
        persistence.flush(at, 1);
        persistence.flush(at.add(63), 2);
        persistence.flush(at.add(64), 129);
        persistence.flush(at.add(7), 0);
        persistence.fence();
        persistence.stream(at, source.as_ptr(), 8);
        persistence.stream(at.add(8), source.as_ptr(), 64);
        persistence.fence();
        // The source need not be aligned.
        persistence.stream(at, source.as_ptr().add(1), 4096);
        persistence.persist(at, 4096);
    }
    assert_eq!(page.0[..], source[1..]);
}

#[test]
fn the_hot_value_is_two_bytes() {
    assert_eq!(size_of::<Persistence>(), 2);
}

#[test]
fn process_durability_executes_no_flush_and_no_fence() {
    let mut page = Page([0; 4096]);
    let counts = counted(|| everything(Persistence::PROCESS, &mut page));
    assert_eq!(counts, Counts::default());
    assert_eq!(Persistence::PROCESS.durability(), Durability::Process);

    // Nor does it touch the range: any flush instruction would fault here.
    let base = cenote_sys::memory::reserve_anywhere(4096, 4096).expect("address space");
    // SAFETY: at `process` the range is not accessed, which is what is being proved; then it is
    // released, unused.
    unsafe {
        Persistence::PROCESS.flush(std::ptr::without_provenance(base), 4096);
        cenote_sys::memory::release(base, 4096).expect("release");
    }
}

#[test]
fn power_durability_is_counted_exactly() {
    let mut page = Page([0; 4096]);
    let counts = counted(|| everything(Persistence::power(), &mut page));
    let expected = if cfg!(target_arch = "x86_64") {
        Counts { flushes: 1 + 2 + 3 + 64, flush_calls: 4, fences: 3, streamed_bytes: 8 + 64 + 4096 }
    } else {
        Counts { flushes: 0, flush_calls: 0, fences: 3, streamed_bytes: 8 + 64 + 4096 }
    };
    assert_eq!(counts, expected);
    assert!(Persistence::power().is_power());
}

#[test]
fn with_caches_that_survive_only_fences_are_executed() {
    let mut page = Page([0; 4096]);
    let counts = counted(|| everything(Persistence::fence_only(), &mut page));
    assert_eq!(
        counts,
        Counts { flushes: 0, flush_calls: 0, fences: 3, streamed_bytes: 8 + 64 + 4096 }
    );
    assert_eq!(Persistence::fence_only().durability(), Durability::Power);
}

#[test]
fn counts_belong_to_the_thread_that_executed() {
    let mut page = Page([0; 4096]);
    let mine = counted(|| {
        std::thread::scope(|scope| {
            scope.spawn(|| everything(Persistence::power(), &mut page));
        });
    });
    assert_eq!(mine, Counts::default());
}

/// Notes what it is told.
#[derive(Default)]
struct Recorder(Mutex<Vec<(&'static str, usize)>>);

impl Recorder {
    fn note(&self, what: &'static str, len: usize) {
        self.0.lock().expect("not poisoned").push((what, len));
    }
}

impl SimHook for Recorder {
    fn flush(&self, _ptr: *const u8, len: usize) {
        self.note("flush", len);
    }

    fn fence(&self) {
        self.note("fence", 0);
    }

    unsafe fn stream(&self, dst: *mut u8, src: *const u8, len: usize) {
        self.note("stream", len);
        // SAFETY: the caller's promise.
        unsafe { std::ptr::copy_nonoverlapping(src, dst, len) }
    }
}

// One test, because it fills the table of this process.
#[test]
fn a_simulation_is_told_everything_at_both_levels_until_it_is_dropped() {
    let told = [
        ("flush", 1),
        ("flush", 2),
        ("flush", 129),
        ("fence", 0),
        ("stream", 8),
        ("stream", 64),
        ("fence", 0),
        ("stream", 4096),
        ("flush", 4096),
        ("fence", 0),
    ];
    let mut page = Page([0; 4096]);
    for (level, expected) in [
        (Durability::Process, Counts::default()),
        (
            Durability::Power,
            Counts { flushes: 70, flush_calls: 4, fences: 3, streamed_bytes: 4168 },
        ),
    ] {
        let recorder = Arc::new(Recorder::default());
        let slot = SimSlot::take(recorder.clone()).expect("a free slot");
        let persistence = Persistence::simulated(&slot, level);
        assert_eq!(persistence.durability(), level);
        assert_eq!(counted(|| everything(persistence, &mut page)), expected);
        assert_eq!(*recorder.0.lock().expect("not poisoned"), told);
        drop(slot);
        // A stale value copies and reports nothing.
        everything(persistence, &mut page);
        assert_eq!(recorder.0.lock().expect("not poisoned").len(), told.len());
    }

    let mut slots: Vec<SimSlot> = Vec::new();
    while let Some(slot) = SimSlot::take(Arc::new(Recorder::default())) {
        slots.push(slot);
    }
    assert_eq!(slots.len(), SIM_SLOTS);
    slots.truncate(1);
    assert!(SimSlot::take(Arc::new(Recorder::default())).is_some(), "dropped slots are free again");
}

#[test]
fn durability_levels_are_named_and_parsed() {
    for level in [Durability::Process, Durability::Power] {
        assert_eq!(level.to_string().parse(), Ok(level));
    }
    let error = "battery".parse::<Durability>().expect_err("no such level");
    assert_eq!(
        error.to_string(),
        "\"battery\" is not a durability level: use `process` or `power`"
    );
}
