//! Shares one traversal among several workers: the work, waiting, and the end.
//!
//! A *share* of the work is the work of a busy worker, or a gift that no thread has taken yet.
//! `shares` counts them, under the lock: a worker that gives makes one more, one that takes a gift
//! makes it its own, one that has nothing left ends one. Two things follow.
//!
//! * No share is left: all is done. No worker can make a new one.
//! * A busy worker that sees one share sees its own. Until it gives some of it away itself, no
//!   thread else traces: it may note blocks with plain stores. It sees what the others have noted,
//!   because they ended their shares after that (release), and it has read the count since
//!   (acquire).
//!
//! The caller's thread is the first worker, and stays alone until it has seen enough blocks. Busy
//! workers look after every [`BATCH`] blocks whether a thread waits. A worker that panics (a filter
//! did) stops the others, and the panic goes on in the caller.

use super::super::held::Lent;
use super::table::PuddleTable;
use super::worker::{Gift, Worker};
use super::{TraceRoot, Traced, Tracer};
use crate::backing::Backing;
use crate::error::RecoverError;
use crate::report::LISTED_MAX;
use crate::trace::{TraceOptions, TraceProgress};
use core::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering};
use core::time::Duration;
use std::sync::{Condvar, Mutex, MutexGuard, PoisonError};
use std::thread::{Builder, ScopedJoinHandle};
use std::time::Instant;

/// Blocks between two looks at the others.
const BATCH: u64 = 128;
/// Batches between two gifts of little: each wakes a thread.
const FEW_EVERY: u64 = 64;
/// Least time that a worker waits before it looks at the clock.
const TICK: Duration = Duration::from_millis(1);

/// What workers share.
#[derive(Debug)]
struct SharedTrace {
    gifts: Mutex<Vec<Gift>>,
    wake: Condvar,
    /// Changed under the lock.
    shares: AtomicUsize,
    /// Workers that wait. Changed under the lock.
    hungry: AtomicUsize,
    stop: AtomicBool,
    /// Blocks reached, for progress.
    blocks: AtomicU64,
}

/// Why a worker does not wait any longer.
enum Waited {
    Gift(Gift),
    /// It waited as long as it was told to.
    Tick,
    Done,
}

impl SharedTrace {
    fn new() -> Self {
        Self {
            gifts: Mutex::new(Vec::new()),
            wake: Condvar::new(),
            shares: AtomicUsize::new(1),
            hungry: AtomicUsize::new(0),
            stop: AtomicBool::new(false),
            blocks: AtomicU64::new(0),
        }
    }

    fn lock(&self) -> MutexGuard<'_, Vec<Gift>> {
        self.gifts.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Whether the calling worker, a busy one, is the only one that traces.
    fn is_alone(&self) -> bool {
        self.shares.load(Ordering::Acquire) == 1
    }

    fn is_stopped(&self) -> bool {
        self.stop.load(Ordering::Relaxed)
    }

    fn stop(&self) {
        let _guard = self.lock();
        self.stop.store(true, Ordering::Relaxed);
        self.wake.notify_all();
    }

    fn give(&self, gift: Gift) {
        let mut gifts = self.lock();
        self.shares.fetch_add(1, Ordering::Relaxed);
        gifts.push(gift);
        self.wake.notify_one();
    }

    /// Whether a worker waits for which there is no gift yet.
    fn a_worker_waits(&self) -> bool {
        self.hungry.load(Ordering::Relaxed) > 0 && {
            let gifts = self.lock();
            self.hungry.load(Ordering::Relaxed) > gifts.len()
        }
    }

    /// Ends the caller's share, if it has one, and waits for another.
    fn wait(&self, had_share: bool, at_most: Option<Duration>) -> Waited {
        let mut gifts = self.lock();
        if had_share {
            self.shares.fetch_sub(1, Ordering::Release);
        }
        self.hungry.fetch_add(1, Ordering::Relaxed);
        let waited = loop {
            if self.is_stopped() {
                break Waited::Done;
            }
            if let Some(gift) = gifts.pop() {
                break Waited::Gift(gift);
            }
            if self.shares.load(Ordering::Acquire) == 0 {
                self.wake.notify_all();
                break Waited::Done;
            }
            gifts = match at_most {
                None => self.wake.wait(gifts).unwrap_or_else(PoisonError::into_inner),
                Some(time) => {
                    let (guard, result) =
                        self.wake.wait_timeout(gifts, time).unwrap_or_else(PoisonError::into_inner);
                    gifts = guard;
                    if result.timed_out() && gifts.is_empty() {
                        break Waited::Tick;
                    }
                    gifts
                }
            };
        };
        self.hungry.fetch_sub(1, Ordering::Relaxed);
        waited
    }
}

/// Stops the others if its thread panics.
struct StopOnPanic<'s>(&'s SharedTrace);

impl Drop for StopOnPanic<'_> {
    fn drop(&mut self) {
        if std::thread::panicking() {
            self.0.stop();
        }
    }
}

/// A worker, and how it works with others.
struct TeamMember<'s, 't, 'g, G: Backing> {
    worker: Worker<'t, 'g, G>,
    shared: &'s SharedTrace,
    /// Blocks that were reported to `shared`.
    reported: u64,
    batches: u64,
    /// Whether it has a share.
    busy: bool,
}

/// What became of a step.
enum TeamStep {
    Going,
    Done,
}

impl<G: Backing> TeamMember<'_, '_, '_, G> {
    /// Traces a batch of blocks, or waits until there is something to trace, `at_most` so long.
    fn step(&mut self, at_most: Option<Duration>) -> TeamStep {
        if self.shared.is_stopped() {
            return TeamStep::Done;
        }
        if self.busy {
            let more = if self.shared.is_alone() {
                self.worker.run::<true>(BATCH)
            } else {
                self.worker.run::<false>(BATCH)
            };
            self.report();
            if more {
                self.batches += 1;
                if self.shared.a_worker_waits()
                    && let Some(gift) = self.worker.give(self.batches.is_multiple_of(FEW_EVERY))
                {
                    self.shared.give(gift);
                }
                return TeamStep::Going;
            }
        }
        match self.shared.wait(core::mem::replace(&mut self.busy, false), at_most) {
            Waited::Gift(gift) => {
                self.worker.receive(gift);
                self.busy = true;
                TeamStep::Going
            }
            Waited::Tick => TeamStep::Going,
            Waited::Done => TeamStep::Done,
        }
    }

    fn report(&mut self) {
        let blocks = self.worker.counts.blocks;
        self.shared.blocks.fetch_add(blocks - self.reported, Ordering::Relaxed);
        self.reported = blocks;
    }
}

impl<G: Backing> Tracer<'_, G> {
    /// Traces from `roots`: every block that can be reached is noted. Nothing else changes. With
    /// `foreign`, notes the pointers into other pools.
    ///
    /// # Errors
    /// The progress callback broke off; a page of a block cannot be had.
    pub(crate) fn run(
        &self,
        roots: &[TraceRoot],
        foreign: bool,
        mut options: TraceOptions<'_>,
    ) -> Result<Traced, RecoverError> {
        let (shared, lent, workers) = (&SharedTrace::new(), Lent::now(), options.workers());
        let member = |busy| TeamMember {
            worker: Worker::new(self, foreign),
            shared,
            reported: 0,
            batches: 0,
            busy,
        };
        let mut first = member(true);
        roots.iter().for_each(|root| first.worker.root(root));
        let done = std::thread::scope(|scope| {
            let _guard = StopOnPanic(shared);
            let mut helpers: Vec<ScopedJoinHandle<'_, Worker<'_, '_, G>>> = Vec::new();
            let (mut started, mut last) = (false, Instant::now());
            let superblocks = self.tables.iter().map(PuddleTable::in_use).sum();
            let waits = options.progress.is_some().then_some(options.interval.max(TICK));
            loop {
                if !started && first.worker.counts.blocks >= options.alone_blocks {
                    started = true;
                    for _ in 1..workers {
                        let help = move || {
                            let _guard = StopOnPanic(shared);
                            // SAFETY: this thread waits for its helpers, in the scope.
                            unsafe { lent.help() };
                            let mut helper = member(false);
                            while let TeamStep::Going = helper.step(None) {}
                            helper.worker
                        };
                        // Where the system gives no thread, fewer do the work.
                        helpers.extend(
                            Builder::new().name("cenote-trace".into()).spawn_scoped(scope, help),
                        );
                    }
                }
                if let TeamStep::Done = first.step(waits) {
                    break;
                }
                if let Some(progress) = &mut options.progress
                    && last.elapsed() >= options.interval
                {
                    let blocks = shared.blocks.load(Ordering::Relaxed);
                    if progress(&TraceProgress { blocks, superblocks }).is_break() {
                        shared.stop();
                    }
                    last = Instant::now();
                }
            }
            let mut workers = vec![first.worker];
            for helper in helpers {
                match helper.join() {
                    Ok(worker) => workers.push(worker),
                    Err(panic) => std::panic::resume_unwind(panic),
                }
            }
            workers
        });
        if shared.is_stopped() {
            return Err(RecoverError::Cancelled);
        }
        if let Some(addr) = done.iter().find_map(|worker| worker.lost) {
            return Err(self.backing.unreadable(addr).into());
        }
        Ok(self.sum(done))
    }

    /// Puts together what workers found.
    fn sum(&self, done: Vec<Worker<'_, '_, G>>) -> Traced {
        let mut traced = Traced::default();
        for mut worker in done {
            traced.foreign.append(&mut worker.foreign.take().unwrap_or_default());
            let (sum, part) = (&mut traced.counts, &mut worker.counts);
            sum.roots += part.roots;
            sum.blocks += part.blocks;
            sum.conservative_blocks += part.conservative_blocks;
            sum.foreign_pointers += part.foreign_pointers;
            sum.faults += part.faults;
            sum.findings.append(&mut part.findings);
        }
        traced.counts.findings.sort_by_key(|finding| (finding.at, finding.to));
        traced.counts.findings.truncate(LISTED_MAX);
        traced.counts.bytes = self.tables.iter().map(PuddleTable::reached_bytes).sum();
        traced.counts.unknown_types = self.unknown_types();
        traced
    }
}
