//! The service that changes rights in batches ([`super`]).
//!
//! Its thread sleeps until there is a request, then waits for the time that requests are deferred,
//! and takes all that came. A batch runs under a lock: [`DeferredService::settle`] runs one in the
//! calling thread, and a range ends between two batches.

use super::SharedRange;
use super::pages::{PageVerdict, PageWords};
use super::requests::{PageRequest, RequestQueues, drained};
use crate::owner::Owner;
use crate::right::Right;
use cenote_medium::planted::{Bug, GuardBug, planted};
use cenote_sys::fork_guard;
use cenote_sys::mappings::{self, Fineness};
use core::ops::Range;
use core::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use core::time::Duration;
use std::io;
use std::sync::{Arc, Mutex, MutexGuard, OnceLock, PoisonError};
use std::thread::{self, JoinHandle, Thread};

/// When rights change.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum DeferredTiming {
    /// In batches, so long after the first request of a batch; zero: as soon as the thread runs.
    Deferred(Duration),
    /// With the first and the last writer of a page, by a system call each. There are no batches.
    Synchronous,
}

/// How a service works.
#[derive(Clone, Copy, Debug)]
pub struct DeferredOptions {
    /// When rights change.
    pub timing: DeferredTiming,
    /// Requests of a kind that wait at most. If more come, the next batch looks at all pages.
    pub queue_len: usize,
}

impl Default for DeferredOptions {
    fn default() -> Self {
        Self { timing: DeferredTiming::Deferred(Duration::from_millis(40)), queue_len: 1 << 14 }
    }
}

/// What a service has done so far.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct DeferredStats {
    /// Requests that were taken from the queues, each page once in a batch.
    pub requests: u64,
    /// Of those, requests that changed nothing: a writer came or went meanwhile.
    pub cancelled: u64,
    /// Batches with a request.
    pub batches: u64,
    /// System calls that closed pages.
    pub close_calls: u64,
    /// Pages that they closed.
    pub closed_pages: u64,
    /// System calls that opened pages before a store.
    pub open_calls: u64,
    /// Faults of writers, each of which opened a page.
    pub faults_served: u64,
    /// Requests that found their queue full.
    pub overflows: u64,
}

#[derive(Debug, Default)]
struct Counters {
    requests: AtomicU64,
    cancelled: AtomicU64,
    batches: AtomicU64,
    close_calls: AtomicU64,
    closed_pages: AtomicU64,
    open_calls: AtomicU64,
    faults_served: AtomicU64,
    overflows: AtomicU64,
}

fn add(counter: &AtomicU64, count: usize) {
    counter.fetch_add(count as u64, Ordering::Relaxed);
}

/// Changes the rights of all ranges that were added to it, until it is dropped.
#[derive(Debug)]
pub struct DeferredService {
    inner: Arc<ServiceInner>,
    thread: Option<JoinHandle<()>>,
    token: u64,
}

#[derive(Debug)]
struct ServiceInner {
    timing: DeferredTiming,
    queues: RequestQueues,
    /// By number; held by a batch.
    ranges: Mutex<Vec<Option<Arc<SharedRange>>>>,
    counters: Counters,
    is_idle: AtomicBool,
    ends: AtomicBool,
    thread: OnceLock<Thread>,
}

impl DeferredService {
    /// Starts it.
    ///
    /// # Errors
    /// The system refuses a thread.
    pub fn start(options: &DeferredOptions) -> io::Result<Arc<Self>> {
        let inner = Arc::new(ServiceInner {
            timing: options.timing,
            queues: RequestQueues::new(options.queue_len),
            ranges: Mutex::default(),
            counters: Counters::default(),
            is_idle: AtomicBool::new(false),
            ends: AtomicBool::new(false),
            thread: OnceLock::new(),
        });
        let thread = match options.timing {
            DeferredTiming::Synchronous => None,
            DeferredTiming::Deferred(wait) => {
                let inner = Arc::clone(&inner);
                let run = move || inner.serve(wait);
                Some(thread::Builder::new().name("cenote-protect".to_owned()).spawn(run)?)
            }
        };
        Ok(Arc::new(Self { inner, thread, token: fork_guard::token() }))
    }

    /// Takes all requests that there are now, as a batch does, and returns when rights have
    /// changed.
    pub fn settle(&self) {
        self.inner.batch();
    }

    /// What was done so far.
    #[must_use]
    pub fn stats(&self) -> DeferredStats {
        let counters = &self.inner.counters;
        let of = |counter: &AtomicU64| counter.load(Ordering::Relaxed);
        DeferredStats {
            requests: of(&counters.requests),
            cancelled: of(&counters.cancelled),
            batches: of(&counters.batches),
            close_calls: of(&counters.close_calls),
            closed_pages: of(&counters.closed_pages),
            open_calls: of(&counters.open_calls),
            faults_served: of(&counters.faults_served),
            overflows: of(&counters.overflows),
        }
    }

    pub(super) fn count_fault(&self) {
        add(&self.inner.counters.faults_served, 1);
    }

    /// Adds a range, with a number that no other one has.
    pub(super) fn add(&self, owner: Owner<PageWords>) -> io::Result<Arc<SharedRange>> {
        let mut ranges = self.inner.ranges();
        let free = ranges.iter().position(Option::is_none).unwrap_or(ranges.len());
        let number = u16::try_from(free).map_err(|_| io::ErrorKind::StorageFull)?;
        let look_at_all = AtomicBool::new(false);
        let shared = Arc::new(SharedRange { owner, number, look_at_all });
        if free == ranges.len() {
            ranges.push(None);
        }
        ranges[free] = Some(Arc::clone(&shared));
        Ok(shared)
    }

    pub(super) fn remove(&self, number: u16) {
        // In a child, another thread may have had the lock.
        if fork_guard::is_current(self.token) {
            self.inner.ranges()[usize::from(number)] = None;
        }
    }

    /// A writer is about to store into a page that is closed.
    #[cold]
    pub(super) fn asked_to_open(&self, shared: &SharedRange, page: u64) {
        if self.inner.timing == DeferredTiming::Synchronous {
            self.inner.open(shared, page..page + 1);
            return;
        }
        // If the queue is full, the store's fault opens the page.
        if self.inner.queues.open.push(PageRequest::new(shared.number, page)).is_err() {
            add(&self.inner.counters.overflows, 1);
        }
        self.inner.wake();
    }

    /// The last writer of an open page has gone.
    #[cold]
    pub(super) fn asked_to_close(&self, shared: &SharedRange, page: u64) {
        if self.inner.timing == DeferredTiming::Synchronous {
            self.inner.close(shared, &[page]);
            return;
        }
        if self.inner.queues.close.push(PageRequest::new(shared.number, page)).is_err() {
            add(&self.inner.counters.overflows, 1);
            if !planted(Bug::Guard(GuardBug::OverflowForgotten)) {
                shared.look_at_all.store(true, Ordering::SeqCst);
            }
        }
        self.inner.wake();
    }
}

impl Drop for DeferredService {
    fn drop(&mut self) {
        let Some(thread) = self.thread.take() else { return };
        // A child has no such thread.
        if !fork_guard::is_current(self.token) {
            core::mem::forget(thread);
            return;
        }
        self.inner.ends.store(true, Ordering::SeqCst);
        thread.thread().unpark();
        // It has no locks of others, and ends after its batch.
        let _ = thread.join();
    }
}

impl ServiceInner {
    fn ranges(&self) -> MutexGuard<'_, Vec<Option<Arc<SharedRange>>>> {
        self.ranges.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// What its thread does.
    fn serve(&self, wait: Duration) {
        let _ = self.thread.set(thread::current());
        while !self.ends.load(Ordering::SeqCst) {
            self.is_idle.store(true, Ordering::SeqCst);
            if self.queues.is_empty() {
                thread::park();
                continue;
            }
            self.is_idle.store(false, Ordering::SeqCst);
            if !wait.is_zero() {
                thread::park_timeout(wait);
            }
            self.batch();
        }
    }

    /// A request is in a queue.
    fn wake(&self) {
        if self.is_idle.load(Ordering::SeqCst)
            && self.is_idle.swap(false, Ordering::SeqCst)
            && let Some(thread) = self.thread.get()
        {
            thread.unpark();
        }
    }

    fn batch(&self) {
        let ranges = self.ranges();
        let (open, close) = (drained(&self.queues.open), drained(&self.queues.close));
        let count = open.len() + close.len();
        add(&self.counters.requests, count);
        add(&self.counters.batches, usize::from(count != 0));
        let of = |number: u16| ranges.get(usize::from(number)).and_then(Option::as_ref);
        // Closed first: what is opened is looked at by the next batch.
        for requests in close.chunk_by(|a, b| a.number() == b.number()) {
            let pages: Vec<u64> = requests.iter().map(|request| request.page()).collect();
            if let Some(shared) = of(requests[0].number()) {
                self.close(shared, &pages);
            }
        }
        for shared in ranges.iter().flatten() {
            if shared.look_at_all.swap(false, Ordering::SeqCst) {
                let pages: Vec<u64> = (0..shared.owner.rights().len()).collect();
                self.close(shared, &pages);
            }
        }
        for requests in open.chunk_by(|a, b| a.number() == b.number()) {
            let Some(shared) = of(requests[0].number()) else { continue };
            for run in runs(requests.iter().map(|request| request.page())) {
                self.open(shared, run);
            }
        }
    }

    /// Closes those of these pages, in order, that have no writer.
    fn close(&self, shared: &SharedRange, pages: &[u64]) {
        let words = shared.owner.rights();
        let to_close = |page: &u64| words.judge_close(*page) == PageVerdict::Close;
        let closed: Vec<u64> = pages.iter().copied().filter(to_close).collect();
        add(&self.counters.cancelled, pages.len() - closed.len());
        for run in runs(closed.into_iter()) {
            add(&self.counters.close_calls, 1);
            // SAFETY: the range is mapped as long as it is in the list, which is locked, or as
            // long as its writer lives, which calls; faults give writing back to writers.
            match unsafe { shared.owner.set(run.clone(), Right::Read) } {
                Ok(_) => add(&self.counters.closed_pages, (run.end - run.start) as usize),
                // Writable as before, and tried again.
                Err(_) => {
                    run.for_each(|page| words.reopen(page));
                    shared.look_at_all.store(true, Ordering::SeqCst);
                }
            }
        }
    }

    /// Opens these pages, where their writers are still there, and has them closed later.
    fn open(&self, shared: &SharedRange, pages: Range<u64>) {
        if mappings::fineness() != Fineness::Page {
            return;
        }
        let words = shared.owner.rights();
        let is_sync = self.timing == DeferredTiming::Synchronous;
        let to_open = |page: &u64| match is_sync {
            true => {
                words.open(*page);
                true
            }
            false => words.judge_open(*page) == PageVerdict::Open,
        };
        let (count, opened): (_, Vec<u64>) =
            (pages.end - pages.start, pages.filter(to_open).collect());
        add(&self.counters.cancelled, count as usize - opened.len());
        for run in runs(opened.into_iter()) {
            add(&self.counters.open_calls, 1);
            // SAFETY: as above; writing is given. If it is refused, the store faults.
            let _ = unsafe { shared.owner.set(run.clone(), Right::Write) };
            if is_sync {
                continue;
            }
            for page in run {
                if self.queues.close.push(PageRequest::new(shared.number, page)).is_err() {
                    shared.look_at_all.store(true, Ordering::SeqCst);
                }
            }
        }
    }
}

/// Neighbours together, of pages in order.
fn runs(pages: impl Iterator<Item = u64>) -> Vec<Range<u64>> {
    let mut runs: Vec<Range<u64>> = Vec::new();
    for page in pages {
        match runs.last_mut() {
            Some(last) if last.end == page => last.end = page + 1,
            _ => runs.push(page..page + 1),
        }
    }
    runs
}
