//! [`AutoTrim`]: a thread that gives free space of a pool back to the file system now and then ([`Pool::trim`]).
//!
//! A heap keeps the superblocks that became free: whoever needs one finds it with its space. A pool whose peak is over, or whose large blocks come and go in many sizes, is then larger in the file system than
//! what lives in it. A trim in intervals bounds that by what one interval frees, at the price of taking space again for what is used again: one system call for each run of superblocks, and at level
//! `power` a sync of the file. So it is asked for, never done unasked.

use crate::error::{Error, Result};
use crate::pool::Pool;
use core::ops::ControlFlow;
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::thread::JoinHandle;
use std::time::Duration;

impl Pool {
    /// Gives free space back to the file system from now on, once in each interval of `every`, until the answer is dropped. Transactions go on meanwhile, and none waits.
    ///
    /// # Errors
    /// As [`Pool::trim`], which is done once at the start; [`Error::Policy`] for an interval of less than a millisecond, or if the system gives no thread.
    pub fn trim_by(&self, every: Duration) -> Result<AutoTrim> {
        AutoTrim::start(self, every)
    }
}

/// What an [`AutoTrim`] has done, its first trim included.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct TrimFigures {
    /// Trims.
    pub trims: u64,
    /// Bytes that they gave back; a superblock that was used in between counts each time.
    pub released_bytes: u64,
    /// Trims that failed. The next one tries again.
    pub failures: u64,
}

/// Trims a pool by itself until it is dropped. It keeps the pool open.
#[derive(Debug)]
#[must_use = "the pool is trimmed by itself only while this lives"]
pub struct AutoTrim {
    pool: Pool,
    shared: Arc<Shared>,
    thread: Option<JoinHandle<()>>,
}

#[derive(Debug, Default)]
struct Shared {
    state: Mutex<State>,
    stopped: Condvar,
}

#[derive(Debug, Default)]
struct State {
    stop: bool,
    figures: TrimFigures,
    failure: Option<Error>,
}

impl Shared {
    fn lock(&self) -> MutexGuard<'_, State> {
        // Counters, changed one by one.
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl AutoTrim {
    fn start(pool: &Pool, every: Duration) -> Result<Self> {
        if every < Duration::from_millis(1) {
            return Err(Error::Policy("the interval is less than a millisecond"));
        }
        // Says at once what would fail each time.
        let first = pool.trim()?;
        let shared = Arc::new(Shared::default());
        shared.lock().figures =
            TrimFigures { trims: 1, released_bytes: first.released_bytes, ..TrimFigures::default() };
        let (of_thread, its_pool) = (Arc::clone(&shared), pool.clone());
        let named = std::thread::Builder::new().name("cenote-trim".into());
        let thread = named.spawn(move || work(&its_pool, every, &of_thread));
        let thread = Some(thread.map_err(|_| Error::Policy("the system gives no thread"))?);
        Ok(Self { pool: pool.clone(), shared, thread })
    }

    /// What it has done so far.
    #[must_use]
    pub fn figures(&self) -> TrimFigures {
        self.shared.lock().figures
    }

    /// Ends it, and says what failed last, if the newest trim of its thread failed.
    ///
    /// # Errors
    /// That failure.
    pub fn stop(mut self) -> Result<()> {
        self.end();
        self.shared.lock().failure.take().map_or(Ok(()), Err)
    }

    fn end(&mut self) {
        if self.pool.inner.refuse_forked().is_err() {
            // The thread is the parent's.
            core::mem::forget(self.thread.take());
            return;
        }
        self.shared.lock().stop = true;
        self.shared.stopped.notify_all();
        if let Some(thread) = self.thread.take() {
            let _ = thread.join();
        }
    }
}

impl Drop for AutoTrim {
    fn drop(&mut self) {
        self.end();
    }
}

/// What the thread does.
fn work(pool: &Pool, every: Duration, shared: &Shared) {
    let mut state = shared.lock();
    loop {
        let wait = shared.stopped.wait_timeout_while(state, every, |state| !state.stop);
        state = wait.unwrap_or_else(PoisonError::into_inner).0;
        if state.stop {
            return;
        }
        drop(state);
        // A trim of a large pool ends early when it is told to end.
        let trimmed = pool.trim_with(&mut |_| match shared.lock().stop {
            true => ControlFlow::Break(()),
            false => ControlFlow::Continue(()),
        });
        state = shared.lock();
        match trimmed {
            Ok(report) => {
                state.figures.trims += 1;
                state.figures.released_bytes += report.released_bytes;
                state.failure = None;
            }
            Err(error) => {
                state.figures.failures += 1;
                state.failure = Some(error);
            }
        }
    }
}
