//! Threads that do one thing together, timed from the moment when all are ready until the last is
//! done.
//!
//! Each thread prepares what it needs, and warms up, before it calls [`Member::timed`], which waits
//! for the others; what it does afterwards (giving back what is left) does not count. The clock
//! runs from the first thread that starts to the last that finishes. Flushes and fences of all of
//! them are added up.

use crate::allocator::Fault;
use crate::case::{Failure, Sample};
use cenote_medium::counters::{self, Counts};
use std::cell::Cell;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Barrier, Mutex, PoisonError};
use std::time::{Duration, Instant};

#[derive(Debug)]
struct Gate {
    barrier: Barrier,
    base: Instant,
    begin_ns: AtomicU64,
    end_ns: AtomicU64,
    counts: Mutex<Counts>,
}

impl Gate {
    fn now_ns(&self) -> u64 {
        self.base.elapsed().as_nanos() as u64
    }
}

/// One thread of a team.
#[derive(Debug)]
pub struct Member<'g> {
    /// Its number, from 0.
    pub index: u32,
    gate: &'g Gate,
    passed: Cell<bool>,
}

impl Member<'_> {
    /// Waits until all threads are here, then does the part that counts. Once.
    pub fn timed<R>(&self, part: impl FnOnce() -> R) -> R {
        self.pass();
        let counts = counters::snapshot();
        self.gate.begin_ns.fetch_min(self.gate.now_ns(), Ordering::Relaxed);
        let result = part();
        self.gate.end_ns.fetch_max(self.gate.now_ns(), Ordering::Relaxed);
        self.count(counters::snapshot() - counts);
        result
    }

    /// Adds what threads that this one started flushed and fenced.
    pub fn count(&self, done: Counts) {
        let mut counts = self.gate.counts.lock().unwrap_or_else(PoisonError::into_inner);
        counts.flushes += done.flushes;
        counts.flush_calls += done.flush_calls;
        counts.fences += done.fences;
        counts.streamed_bytes += done.streamed_bytes;
    }

    fn pass(&self) {
        if !self.passed.replace(true) {
            self.gate.barrier.wait();
        }
    }
}

impl Drop for Member<'_> {
    /// A thread that fails while it prepares keeps no other thread waiting.
    fn drop(&mut self) {
        self.pass();
    }
}

/// Runs `part` in `threads` threads; each returns the number of operations that it did.
///
/// # Errors
/// The first fault of a thread.
pub fn team(
    threads: u32,
    part: impl Fn(&Member<'_>) -> Result<u64, Fault> + Sync,
) -> Result<Sample, Failure> {
    let gate = Gate {
        barrier: Barrier::new(threads as usize),
        base: Instant::now(),
        begin_ns: AtomicU64::new(u64::MAX),
        end_ns: AtomicU64::new(0),
        counts: Mutex::default(),
    };
    let results: Vec<Result<u64, Fault>> = std::thread::scope(|scope| {
        let running: Vec<_> = (0..threads)
            .map(|index| {
                let (gate, part) = (&gate, &part);
                scope.spawn(move || part(&Member { index, gate, passed: Cell::new(false) }))
            })
            .collect();
        running
            .into_iter()
            .map(|thread| thread.join().unwrap_or_else(|panic| std::panic::resume_unwind(panic)))
            .collect()
    });
    let mut operations = 0;
    for result in results {
        operations += result?;
    }
    let (begin, end) = (gate.begin_ns.load(Ordering::Relaxed), gate.end_ns.load(Ordering::Relaxed));
    let counts = *gate.counts.lock().unwrap_or_else(PoisonError::into_inner);
    Ok(Sample {
        operations,
        elapsed: Duration::from_nanos(end.saturating_sub(begin).max(1)),
        counts,
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::sync::atomic::AtomicU32;

    #[test]
    fn only_the_timed_parts_count_and_they_run_together() {
        let inside = AtomicU32::new(0);
        let sample = team(3, |member| {
            std::thread::sleep(Duration::from_millis(200 * u64::from(member.index)));
            member.timed(|| {
                inside.fetch_add(1, Ordering::SeqCst);
                while inside.load(Ordering::SeqCst) < 3 {
                    std::thread::yield_now();
                }
            });
            std::thread::sleep(Duration::from_millis(400));
            Ok(7)
        });
        let sample = sample.expect("no thread fails");
        assert_eq!(sample.operations, 21);
        assert!(sample.elapsed < Duration::from_millis(300), "{sample:?}");
    }

    #[test]
    fn a_thread_that_fails_early_keeps_no_other_waiting() {
        let failed = team(2, |member| {
            if member.index == 1 {
                return Err(Fault::OutOfMemory(64));
            }
            member.timed(|| Ok(1))
        });
        assert!(failed.expect_err("one thread fails").to_string().contains("64 bytes"));
    }
}
