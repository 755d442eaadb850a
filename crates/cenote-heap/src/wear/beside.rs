//! Scans the heap of a pool by threads of its own, while programs use it already.

use super::state::WearHeap;
use crate::backing::Backing;
use cenote_sys::{fork_guard, signals};
use core::ops::{ControlFlow, Deref};
use core::sync::atomic::{AtomicBool, Ordering};
use std::sync::Arc;
use std::thread::JoinHandle;

/// From so many bytes of segments on threads scan: starting them takes as long as scanning less.
const BYTES_MIN: u64 = 16 << 20;
/// Most threads.
const THREADS: usize = 2;

/// A wear heap, and the threads that scan it. They have ended when this is dropped.
#[derive(Debug)]
pub struct ScannedHeap<G: Backing> {
    heap: Arc<WearHeap<G>>,
    threads: Vec<JoinHandle<()>>,
    stop: Arc<AtomicBool>,
    /// The process that started them.
    process: u64,
}

impl<G: Backing> ScannedHeap<G> {
    /// Begins to scan a heap, if it is a large one. Where the system gives no thread, what is asked
    /// for is scanned when it is.
    #[must_use]
    pub fn new(heap: WearHeap<G>) -> Self {
        Self::with(heap, BYTES_MIN)
    }

    /// The same from another number of bytes of segments on.
    #[must_use]
    pub fn with(heap: WearHeap<G>, bytes_min: u64) -> Self {
        let (heap, stop) = (Arc::new(heap), Arc::new(AtomicBool::new(false)));
        let mut threads = Vec::new();
        if heap.bytes_to_scan() >= bytes_min {
            for _ in 0..THREADS {
                let (heap, stop) = (Arc::clone(&heap), Arc::clone(&stop));
                let scan = move || {
                    let _quiet = signals::Blocked::new();
                    heap.scan(1, &mut |_| match stop.load(Ordering::Relaxed) {
                        true => ControlFlow::Break(()),
                        false => ControlFlow::Continue(()),
                    });
                };
                let named = std::thread::Builder::new().name("cenote-scan".into());
                threads.extend(named.spawn(scan));
            }
        }
        Self { heap, threads, stop, process: fork_guard::token() }
    }
}

impl<G: Backing> Deref for ScannedHeap<G> {
    type Target = WearHeap<G>;

    fn deref(&self) -> &WearHeap<G> {
        &self.heap
    }
}

impl<G: Backing> Drop for ScannedHeap<G> {
    fn drop(&mut self) {
        self.stop.store(true, Ordering::Relaxed);
        for thread in self.threads.drain(..) {
            match fork_guard::token() == self.process {
                true => drop(thread.join()),
                // A child that was forked: the threads are its parent's.
                false => core::mem::forget(thread),
            }
        }
    }
}
