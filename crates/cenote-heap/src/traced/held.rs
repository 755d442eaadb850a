//! Heaps that the calling thread holds while it traces: their growth is locked, all their puddles
//! are attached, and code of the program's runs (filters, reports of progress), which may ask the
//! heap something. Code that would lock growth to attach a puddle asks [`is_held`] first, and has
//! nothing to do then.
//!
//! Threads that help to trace have what the thread has that waits for them ([`Lent`]).

use cenote_medium::planted::{Bug, planted};
use core::cell::Cell;
use core::marker::PhantomData;
use core::ptr::null;
use std::sync::Mutex;

/// A heap that is held, by the address of its lock; and those that were before.
struct Frame {
    growth: *const (),
    outer: *const Frame,
}

thread_local! {
    static INNERMOST: Cell<*const Frame> = const { Cell::new(null()) };
    static HELPS: Cell<bool> = const { Cell::new(false) };
}

fn key<T>(growth: &Mutex<T>) -> *const () {
    core::ptr::from_ref(growth).cast()
}

/// The calling thread holds a heap as long as this lives.
pub(crate) struct HeldHeap<'g> {
    /// Made by `Box::into_raw`.
    frame: *mut Frame,
    _growth: PhantomData<&'g ()>,
}

impl<'g> HeldHeap<'g> {
    /// The caller has locked `growth`, with all puddles attached.
    pub(crate) fn new<T>(growth: &'g Mutex<T>) -> Self {
        let frame = Frame { growth: key(growth), outer: INNERMOST.get() };
        let frame = Box::into_raw(Box::new(frame));
        INNERMOST.set(frame);
        Self { frame, _growth: PhantomData }
    }
}

impl Drop for HeldHeap<'_> {
    fn drop(&mut self) {
        // SAFETY: made by `new`, and no thread sees it after this.
        let frame = unsafe { Box::from_raw(self.frame) };
        INNERMOST.set(frame.outer);
    }
}

/// Whether the calling thread holds the heap of this lock, or helps one that does.
pub(crate) fn is_held<T>(growth: &Mutex<T>) -> bool {
    if planted(Bug::HeldNotSeen) {
        return false;
    }
    let mut at = INNERMOST.get();
    // SAFETY: frames are taken out before they go, by the thread that put them there; helpers see
    // those of a thread that waits for them.
    while let Some(frame) = unsafe { at.as_ref() } {
        if frame.growth == key(growth) {
            return true;
        }
        at = frame.outer;
    }
    false
}

/// Whether the calling thread helps another one to trace, which waits for it. It must not wait for
/// anything that the other one may hold.
#[must_use]
pub fn is_helper() -> bool {
    HELPS.get()
}

/// What the calling thread holds, for threads that end before it goes on.
#[derive(Clone, Copy)]
pub(crate) struct Lent(*const Frame);

// SAFETY: frames are read alone, and stay as long as helpers run.
unsafe impl Send for Lent {}

impl Lent {
    pub(crate) fn now() -> Self {
        Self(INNERMOST.get())
    }

    /// The calling thread helps from now on.
    ///
    /// # Safety
    /// It ends before the thread that lent this gives up what it holds.
    pub(crate) unsafe fn help(self) {
        INNERMOST.set(self.0);
        HELPS.set(true);
    }
}
