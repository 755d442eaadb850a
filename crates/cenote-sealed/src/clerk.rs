//! The thread that fills pages of a view where the thread that faults cannot (`view.rs`).
//!
//! Invariant: a clerk is there for one view at a time, and one that is idle has none: it keeps no memory and no key. A child of a fork has none of its parent's.

use crate::view::Inner;
use cenote_sys::desk::Desk;
use cenote_sys::fork_guard;
use cenote_sys::process_lock::ProcessLock;
use std::io;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::thread::JoinHandle;

/// A thread that fills pages, for one view at a time. One that has nothing to do is kept for the next view: to make a thread and to wait for its end takes longer than all else that attaching a small
/// object takes.
pub(crate) struct Clerk {
    pub(crate) desk: Desk,
    /// The view that it is there for.
    serving: Mutex<Option<Arc<Inner>>>,
    /// The process that has the thread.
    token: u64,
    thread: Mutex<Option<JoinHandle<()>>>,
}

/// Clerks without a view.
static IDLE: ProcessLock<Vec<Arc<Clerk>>> = ProcessLock::new(Vec::new());
/// How many are kept.
const IDLE_MAX: usize = 8;

impl Clerk {
    /// One that has nothing to do, or a new one.
    pub(crate) fn find() -> io::Result<Arc<Self>> {
        let token = fork_guard::token();
        let mut idle = idle();
        // A child has the parent's list, and none of its threads.
        idle.retain(|clerk| clerk.token == token && !clerk.desk.is_closed());
        if let Some(clerk) = idle.pop() {
            return Ok(clerk);
        }
        drop(idle);
        let (desk, thread) = (Desk::default(), Mutex::default());
        let clerk = Arc::new(Self { desk, serving: Mutex::default(), token, thread });
        let this = Arc::clone(&clerk);
        let thread = std::thread::Builder::new().name("cenote-pages".into());
        let thread = thread.spawn(move || this.desk.serve(|question| this.answer(question)))?;
        *clerk.thread.lock().unwrap_or_else(PoisonError::into_inner) = Some(thread);
        Ok(clerk)
    }

    pub(crate) fn serve(&self, inner: Option<&Arc<Inner>>) {
        *self.serving.lock().unwrap_or_else(PoisonError::into_inner) = inner.cloned();
    }

    fn answer(&self, question: u64) -> bool {
        let inner = self.serving.lock().unwrap_or_else(PoisonError::into_inner).clone();
        inner.is_some_and(|inner| inner.answer(question))
    }

    /// Takes one back whose view is gone, and whom nobody asks any more.
    pub(crate) fn leave(clerk: Arc<Self>) {
        clerk.serve(None);
        let mut idle = idle();
        match idle.len() < IDLE_MAX {
            true => idle.push(clerk),
            // Nobody waits for the thread, which has no view.
            false => clerk.desk.close(),
        }
    }

    /// Sends it home; what it is doing for its view is done on return. Whoever asks is told no.
    pub(crate) fn end(&self) {
        self.desk.close();
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

fn idle() -> MutexGuard<'static, Vec<Arc<Clerk>>> {
    IDLE.lock()
}
