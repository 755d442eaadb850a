//! The thread that writes lines back, and threads that share groups.

use cenote_groups::{GroupOptions, Leaving, UpdateGroup, UpdateGroups};
use cenote_medium::planted::{Bug, GroupBug, plant};
use cenote_medium::{Durability, Persistence, SimHook, SimSlot, counters};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, OnceLock};
use std::time::{Duration, Instant};

const LINES: usize = 256;

#[repr(align(64))]
struct LineOfWords([u64; 8]);

/// Memory that is never given back.
fn memory() -> &'static mut [LineOfWords] {
    Box::leak((0..LINES).map(|_| LineOfWords([0; 8])).collect::<Vec<_>>().into_boxed_slice())
}

fn waits_for(done: impl Fn() -> bool) {
    let start = Instant::now();
    while !done() {
        assert!(start.elapsed() < Duration::from_secs(20), "the thread writes nothing back");
        std::thread::sleep(Duration::from_millis(1));
    }
}

#[test]
fn a_group_drains_in_the_background_while_its_thread_flushes_nothing() {
    let groups = UpdateGroups::new(Persistence::power(), GroupOptions::default());
    let memory = memory();
    let before = counters::snapshot();
    let all: Vec<UpdateGroup> = memory
        .chunks_mut(4)
        .map(|lines| {
            let group = groups.sgroup();
            for line in lines {
                // SAFETY: memory that stays, and that this test alone uses.
                unsafe { group.write(line.0.as_mut_ptr().cast(), &[7; 64]) };
            }
            group
        })
        .collect();
    waits_for(|| all.iter().all(|group| groups.scheck(group) == 0));
    assert_eq!(counters::snapshot() - before, counters::Counts::default());
    let used = all.len();
    let free = groups.free_counters();
    drop(all);
    assert_eq!(groups.free_counters(), free + used);
}

/// A group is opened by one thread, stored into by another, and asked by a third, as a thread does
/// that the system moves to another core.
#[test]
fn groups_belong_to_no_thread() {
    let groups = UpdateGroups::new(Persistence::power(), GroupOptions::default());
    let group = Arc::new(groups.sgroup());
    let parts: Vec<&'static mut [LineOfWords]> = memory().chunks_mut(LINES / 4).collect();
    std::thread::scope(|scope| {
        for part in parts {
            let group = Arc::clone(&group);
            scope.spawn(move || {
                for line in part {
                    // SAFETY: memory that stays, and that this thread alone uses.
                    unsafe { group.store(&raw mut line.0[3], 1) };
                }
            });
        }
    });
    let asks = std::thread::spawn(move || {
        waits_for(|| group.left() == 0);
        Arc::into_inner(group).is_some()
    });
    assert!(asks.join().unwrap());
    waits_for(|| groups.free_counters() == 8192);
}

/// What a simulation is told: stores to a line while it is flushed.
struct StoresMeanwhile {
    /// The line, its group, and how often it was flushed.
    target: OnceLock<(usize, Mutex<Option<UpdateGroup>>)>,
    flushes: AtomicU64,
}

impl SimHook for StoresMeanwhile {
    fn flush(&self, _: *const u8, _: usize) {
        self.flushes.fetch_add(1, Ordering::Relaxed);
        let Some((addr, group)) = self.target.get() else { return };
        if let Some(group) = group.lock().unwrap().take() {
            // The write-back is under way: it does not cover this store.
            // SAFETY: memory that stays, and that this test alone uses.
            unsafe { group.store(core::ptr::with_exposed_provenance_mut(*addr), 2) };
        }
    }

    fn fence(&self) {}

    unsafe fn stream(&self, _: *mut u8, _: *const u8, _: usize) {}
}

#[test]
fn a_store_into_a_line_that_is_being_written_back_is_counted_again() {
    let flushes = || {
        let target = OnceLock::new();
        let hook = Arc::new(StoresMeanwhile { target, flushes: AtomicU64::new(0) });
        let slot = SimSlot::take(Arc::<StoresMeanwhile>::clone(&hook)).expect("a slot");
        let persistence = Persistence::simulated(&slot, Durability::Power);
        let leaving = Leaving::Drained { after: Duration::from_secs(3600) };
        let groups = UpdateGroups::new(persistence, GroupOptions { counters: 8, leaving });
        let place = &raw mut memory()[0].0[0];
        let (first, second) = (groups.sgroup(), groups.sgroup());
        hook.target.set((place.expose_provenance(), Mutex::new(Some(second)))).ok().unwrap();
        // SAFETY: memory that stays, and that this test alone uses.
        unsafe { first.store(place, 1) };
        groups.drain();
        hook.flushes.load(Ordering::Relaxed)
    };
    assert_eq!(flushes(), 2);
    plant(Bug::Group(GroupBug::LineKeptWhileWritten));
    assert_eq!(flushes(), 1);
    plant(Bug::None);
}
