//! The service that changes rights in batches ([`super`]).
//!
//! Its thread sleeps until there is a request, then waits for the time that requests are deferred,
//! and takes all that came. A batch runs under a lock: [`DeferredService::settle`] runs one in the
//! calling thread, and a range ends between two batches.
//!
//! The thread also says what a stray write would have changed ([`DeferredService::describe_by`]).
//! Heap and catalog know that behind locks, which a fault handler may not take. The handler waits
//! for the thread, a second at most: the thread of the store may itself have such a lock.

use super::SharedRange;
use super::pages::{PageVerdict, PageWords};
use super::requests::{PageRequest, RequestQueues, drained};
use crate::owner::Owner;
use crate::right::Right;
use cenote_medium::planted::{Bug, GuardBug, planted};
use cenote_sys::mappings::{self, Fineness};
use cenote_sys::{fault, fork_guard};
use core::fmt;
use core::ops::Range;
use core::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering};
use core::time::Duration;
use std::io;
use std::panic::{AssertUnwindSafe, catch_unwind};
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
    /// The first writer of a page that is closed opens it by a system call, and closing alone is
    /// deferred. Otherwise its store faults, or a batch was faster: that is for writers who say
    /// long before what they store into.
    pub opens_at_once: bool,
}

impl Default for DeferredOptions {
    fn default() -> Self {
        let timing = DeferredTiming::Deferred(Duration::from_millis(40));
        Self { timing, queue_len: 1 << 14, opens_at_once: false }
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

/// Says what lies at an address, in one line without its end.
pub type Describe = dyn Fn(usize) -> Option<String> + Send + Sync;

/// How long a handler waits for the thread, in steps of [`STEP`].
const STEPS: u32 = 20_000;
const STEP: Duration = Duration::from_micros(50);

/// Changes the rights of all ranges that were added to it, until it ends or is dropped.
pub struct DeferredService {
    inner: Arc<ServiceInner>,
    thread: Mutex<Option<JoinHandle<()>>>,
    token: u64,
}

impl fmt::Debug for DeferredService {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("DeferredService")
            .field("timing", &self.inner.timing)
            .finish_non_exhaustive()
    }
}

struct ServiceInner {
    timing: DeferredTiming,
    /// Pages are opened by their first writer.
    opens_at_once: bool,
    queues: RequestQueues,
    /// By number; held by a batch.
    ranges: Mutex<Vec<Option<Arc<SharedRange>>>>,
    counters: Counters,
    is_idle: AtomicBool,
    /// A queue was full: a batch is due even if the queues are empty by now. Set after the range
    /// says so.
    overflowed: AtomicBool,
    ends: AtomicBool,
    thread: OnceLock<Thread>,
    describe: OnceLock<Box<Describe>>,
    /// Where a stray write was to go that is to be described; 0: nowhere.
    stray: AtomicUsize,
}

impl DeferredService {
    /// Starts it.
    ///
    /// # Errors
    /// The system refuses a thread.
    pub fn start(options: &DeferredOptions) -> io::Result<Arc<Self>> {
        let inner = Arc::new(ServiceInner {
            timing: options.timing,
            opens_at_once: options.opens_at_once || options.timing == DeferredTiming::Synchronous,
            queues: RequestQueues::new(options.queue_len),
            ranges: Mutex::default(),
            counters: Counters::default(),
            is_idle: AtomicBool::new(false),
            overflowed: AtomicBool::new(false),
            ends: AtomicBool::new(false),
            thread: OnceLock::new(),
            describe: OnceLock::new(),
            stray: AtomicUsize::new(0),
        });
        let wait = match options.timing {
            DeferredTiming::Synchronous => Duration::ZERO,
            DeferredTiming::Deferred(wait) => wait,
        };
        let run = {
            let inner = Arc::clone(&inner);
            move || inner.serve(wait)
        };
        let thread = thread::Builder::new().name("cenote-protect".to_owned()).spawn(run)?;
        let _ = inner.thread.set(thread.thread().clone());
        let thread = Mutex::new(Some(thread));
        Ok(Arc::new(Self { inner, thread, token: fork_guard::token() }))
    }

    /// From now on a stray write is described so, on standard error. The first call counts.
    pub fn describe_by(&self, describe: Box<Describe>) {
        let _ = self.inner.describe.set(describe);
    }

    /// Has a stray write described. Async-signal-safe, and waits for another thread.
    pub(crate) fn report(&self, address: usize) {
        let inner = &*self.inner;
        let ours = fork_guard::is_current(self.token) && inner.describe.get().is_some();
        let Some(thread) = inner.thread.get().filter(|_| ours) else { return };
        if inner.stray.compare_exchange(0, address, Ordering::SeqCst, Ordering::SeqCst).is_err() {
            return;
        }
        thread.unpark();
        for _ in 0..STEPS {
            if inner.stray.load(Ordering::SeqCst) != address {
                return;
            }
            thread::sleep(STEP);
        }
    }

    /// Ends the thread, after its batch. What is asked for from now on is done by
    /// [`DeferredService::settle`] alone.
    pub fn end(&self) {
        let mut thread = self.thread.lock().unwrap_or_else(PoisonError::into_inner);
        let Some(thread) = thread.take() else { return };
        // A child has no such thread.
        if !fork_guard::is_current(self.token) {
            core::mem::forget(thread);
            return;
        }
        self.inner.ends.store(true, Ordering::SeqCst);
        thread.thread().unpark();
        // It has no locks of others, and ends after its batch. What describes stray writes may have
        // had the last handle of something that ends this.
        if thread.thread().id() != thread::current().id() {
            let _ = thread.join();
        }
    }

    /// Takes all requests that there are now, as a batch does, and returns when rights have
    /// changed.
    ///
    /// In a child that was forked nothing: a thread of its parent may have had a lock then.
    pub fn settle(&self) {
        if fork_guard::is_current(self.token) {
            self.inner.batch();
        }
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

    /// Removes a range. Once it is removed, another one may have its number: that one stays.
    pub(super) fn remove(&self, shared: &Arc<SharedRange>) {
        // In a child, another thread may have had the lock.
        if fork_guard::is_current(self.token) {
            let place = &mut self.inner.ranges()[usize::from(shared.number)];
            place.take_if(|there| Arc::ptr_eq(there, shared));
        }
    }

    /// A writer is about to store into pages that are closed.
    #[cold]
    pub(super) fn asked_to_open(&self, shared: &SharedRange, pages: Range<u64>) {
        if self.inner.opens_at_once {
            self.inner.open(shared, pages);
            return;
        }
        for page in pages {
            // If the queue is full, the store's fault opens the page.
            if self.inner.queues.open.push(PageRequest::new(shared.number, page)).is_err() {
                add(&self.inner.counters.overflows, 1);
            }
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
                return self.look_at_all(shared);
            }
        }
        self.inner.wake();
    }

    /// Has the next batch look at all pages of a range, whose request found no room. The queue may
    /// be empty again by now.
    pub(super) fn look_at_all(&self, shared: &SharedRange) {
        shared.look_at_all.store(true, Ordering::SeqCst);
        self.inner.overflowed.store(true, Ordering::SeqCst);
        self.inner.wake();
    }
}

impl Drop for DeferredService {
    fn drop(&mut self) {
        self.end();
    }
}

impl ServiceInner {
    fn ranges(&self) -> MutexGuard<'_, Vec<Option<Arc<SharedRange>>>> {
        self.ranges.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// What its thread does.
    fn serve(&self, wait: Duration) {
        while !self.ends.load(Ordering::SeqCst) {
            self.describe_stray();
            self.is_idle.store(true, Ordering::SeqCst);
            if self.queues.is_empty() && !self.overflowed.load(Ordering::SeqCst) {
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

    /// Describes the stray write that a handler waits for, if there is one.
    fn describe_stray(&self) {
        let address = self.stray.load(Ordering::SeqCst);
        if address == 0 {
            return;
        }
        let describe = || self.describe.get().and_then(|describe| describe(address));
        if let Ok(Some(line)) = catch_unwind(AssertUnwindSafe(describe)) {
            // Not by the lock of standard error, which the thread that waits may have.
            fault::tell(&format!("cenote: {line}\n"));
        }
        self.stray.store(0, Ordering::SeqCst);
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
        self.overflowed.store(false, Ordering::SeqCst);
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
        // Its writer has come, and has it closed when it goes.
        let at_once = self.opens_at_once;
        let to_open = |page: &u64| match at_once {
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
            if at_once {
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
