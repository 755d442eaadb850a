//! [`Background`]: a thread that does one job to a pool in intervals, for [`crate::AutoPsync`] and
//! [`crate::AutoTrim`].
//!
//! *Invariant*: the thread ends before its [`Background`] does. The exceptions are a check, and a
//! forked child, which has no such thread and would wait for ever ([`Background::leave`]). The
//! thread publishes its figures between two turns, so that a caller that asks for them never waits
//! for a device.

use crate::checking::refuse_within;
use crate::error::{Error, Result};
use crate::open_pool::Pool;
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::thread::JoinHandle;
use std::time::Duration;

/// What the thread does.
pub(crate) trait Job: Send + 'static {
    /// What it counts.
    type Figures: Copy + core::fmt::Debug + Send + 'static;

    /// How long the thread rests before the next turn.
    fn rest(&self) -> Duration;

    /// One turn. Returns whether there was something to do. A long turn asks `ends` at times
    /// whether it should stop.
    fn turn(
        &mut self,
        pool: &Pool,
        figures: &mut Self::Figures,
        ends: &dyn Fn() -> bool,
    ) -> Result<bool>;
}

/// A thread, or none, and what it has done. It keeps the pool open.
#[derive(Debug)]
pub(crate) struct Background<F> {
    pub(crate) pool: Pool,
    shared: Arc<SharedBackground<F>>,
    thread: Option<JoinHandle<()>>,
}

#[derive(Debug)]
struct SharedBackground<F> {
    state: Mutex<BackgroundState<F>>,
    stopped: Condvar,
}

#[derive(Debug)]
struct BackgroundState<F> {
    stop: bool,
    figures: F,
    /// Of the newest turn that had something to do.
    failure: Option<Error>,
}

impl<F> SharedBackground<F> {
    fn lock(&self) -> MutexGuard<'_, BackgroundState<F>> {
        // Changed by assignments that cannot panic.
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl<F: Copy + core::fmt::Debug + Send + 'static> Background<F> {
    /// With these figures to begin with, and a thread of that name if there is a job for it.
    pub(crate) fn start<J>(pool: &Pool, name: &str, figures: F, job: Option<J>) -> Result<Self>
    where
        J: Job<Figures = F>,
    {
        let state = Mutex::new(BackgroundState { stop: false, figures, failure: None });
        let shared = Arc::new(SharedBackground { state, stopped: Condvar::new() });
        let mut thread = None;
        if let Some(job) = job {
            let (pool, shared) = (pool.clone(), Arc::clone(&shared));
            let spawned = std::thread::Builder::new()
                .name(name.into())
                .spawn(move || work(&pool, job, &shared));
            thread = Some(spawned.map_err(|_| Error::Policy("the system gives no thread for it"))?);
        }
        Ok(Self { pool: pool.clone(), shared, thread })
    }

    pub(crate) fn figures(&self) -> F {
        self.shared.lock().figures
    }

    /// What failed last, if the newest turn failed; once.
    pub(crate) fn failure(&self) -> Result<()> {
        self.shared.lock().failure.take().map_or(Ok(()), Err)
    }
}

impl<F> Background<F> {
    /// Tells the thread to end, and does not wait for it. Whether there was one.
    pub(crate) fn leave(&mut self) -> bool {
        self.tell();
        self.thread.take().is_some()
    }

    fn tell(&self) {
        self.shared.lock().stop = true;
        self.shared.stopped.notify_all();
    }

    /// Waits until the thread has ended; nothing more happens after it. Not where the thread may be
    /// waiting for the end of a check of this one: then it ends soon after that.
    ///
    /// # Errors
    /// [`Error::WouldDeadlock`]: it was not waited for.
    pub(crate) fn end(&mut self) -> Result<()> {
        if self.pool.inner.refuse_forked().is_err() {
            // The thread is the parent's.
            core::mem::forget(self.thread.take());
            return Ok(());
        }
        if let Err(refused) = refuse_within(&self.pool.inner.store, self.pool.name()) {
            return if self.leave() { Err(refused) } else { Ok(()) };
        }
        self.tell();
        if let Some(thread) = self.thread.take() {
            let _ = thread.join();
        }
        Ok(())
    }
}

impl<F> Drop for Background<F> {
    fn drop(&mut self) {
        let _ = self.end();
    }
}

fn work<J: Job>(pool: &Pool, mut job: J, shared: &SharedBackground<J::Figures>) {
    let mut state = shared.lock();
    loop {
        let wait = shared.stopped.wait_timeout_while(state, job.rest(), |state| !state.stop);
        state = wait.unwrap_or_else(PoisonError::into_inner).0;
        if state.stop {
            return;
        }
        let mut figures = state.figures;
        drop(state);
        let done = job.turn(pool, &mut figures, &|| shared.lock().stop);
        state = shared.lock();
        state.figures = figures;
        match done {
            Ok(false) => {}
            Ok(true) => state.failure = None,
            Err(error) => state.failure = Some(error),
        }
    }
}
