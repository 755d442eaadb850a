//! The thread that fills pages of a view where the faulting thread cannot (`view.rs`).
//!
//! Invariant: a worker serves one view at a time. An idle one has none: it keeps no memory and no
//! key. A child of a fork has none of its parent's workers.

use cenote_sys::fault_queue::FaultQueue;
use cenote_sys::fork_guard;
use cenote_sys::process_lock::{ProcessGuard, ProcessLock};
use std::io;
use std::sync::{Arc, Mutex, PoisonError};
use std::thread::JoinHandle;

/// A view whose pages a worker fills.
pub(crate) trait Filled: Send + Sync {
    /// Resolves a fault. Returns whether the access can be tried again.
    fn answer(&self, question: u64) -> bool;
}

/// A thread that fills pages, for one view at a time. An idle one is kept for the next view: making
/// a thread and waiting for its end takes longer than all other work of attaching a small object.
pub(crate) struct FaultWorker {
    pub(crate) queue: FaultQueue,
    /// The view that it serves.
    serving: Mutex<Option<Arc<dyn Filled>>>,
    /// The process that has the thread.
    token: u64,
    thread: Mutex<Option<JoinHandle<()>>>,
}

/// Workers without a view.
static IDLE: ProcessLock<Vec<Arc<FaultWorker>>> = ProcessLock::new(Vec::new());
/// How many idle ones are kept.
const IDLE_MAX: usize = 8;

impl FaultWorker {
    /// An idle one, or a new one.
    pub(crate) fn find() -> io::Result<Arc<Self>> {
        let token = fork_guard::token();
        let mut idle = idle();
        // A child has the parent's list, and none of its threads.
        idle.retain(|worker| worker.token == token && !worker.queue.is_closed());
        if let Some(worker) = idle.pop() {
            return Ok(worker);
        }
        drop(idle);
        let (queue, thread) = (FaultQueue::default(), Mutex::default());
        let worker = Arc::new(Self { queue, serving: Mutex::default(), token, thread });
        let this = Arc::clone(&worker);
        let thread = std::thread::Builder::new().name("cenote-pages".into());
        let thread = thread.spawn(move || this.queue.serve(|question| this.answer(question)))?;
        *worker.thread.lock().unwrap_or_else(PoisonError::into_inner) = Some(thread);
        Ok(worker)
    }

    pub(crate) fn serve(&self, view: Option<Arc<dyn Filled>>) {
        *self.serving.lock().unwrap_or_else(PoisonError::into_inner) = view;
    }

    fn answer(&self, question: u64) -> bool {
        let inner = self.serving.lock().unwrap_or_else(PoisonError::into_inner).clone();
        inner.is_some_and(|inner| inner.answer(question))
    }

    /// Takes back one whose view is gone. No thread asks it any more.
    pub(crate) fn leave(worker: Arc<Self>) {
        worker.serve(None);
        let mut idle = idle();
        match idle.len() < IDLE_MAX {
            true => idle.push(worker),
            // No caller waits for the thread, which has no view.
            false => worker.queue.close(),
        }
    }

    /// Ends it. On return its work for the view is done. Later questions are answered no.
    pub(crate) fn end(&self) {
        self.queue.close();
        let thread = self.thread.lock().unwrap_or_else(PoisonError::into_inner).take();
        if !fork_guard::is_current(self.token) {
            // The thread is the parent's.
            return core::mem::forget(thread);
        }
        if let Some(thread) = thread {
            let _ = thread.join();
        }
        self.serve(None);
    }
}

fn idle() -> ProcessGuard<Vec<Arc<FaultWorker>>> {
    IDLE.lock()
}
