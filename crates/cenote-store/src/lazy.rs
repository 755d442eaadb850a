//! Mapping on first touch (PUD-10; Puddles paper, 4.4).
//!
//! A pool's puddles are found in the slot table as soon as the pool is open, but mapped only when somebody touches
//! them. The touch faults, because the window is reserved without access; the resolver looks the address up and maps
//! the puddle. It runs in a signal handler: it reads the slot table, maps (on a stack of
//! `cenote_sys::aside`, since that of a handler is too small), and allocates nothing.
//!
//! In a pool in shadowed mode the first store into a page faults too: the page is noted, and may be written from then on ([`crate::psync`]).
//!
//! One whose pointers are still to be rewritten is handed to a thread first ([`crate::relocate::frontier`]).
//!
//! A puddle that is mapped already was mapped by another thread while this one faulted: the access is tried again. A
//! stray write to a read-only puddle looks the same; `cenote_sys::fault` tries that a bounded number of times, and then
//! it goes to the next handler.

use crate::store::Inner;

/// Resolver for [`cenote_sys::fault::register`].
///
/// # Safety
/// `context` is the `Inner` of an open store.
pub(crate) unsafe fn resolve(context: *const (), address: usize) -> bool {
    // SAFETY: registered with the store's `Inner`, which unregisters before it is freed.
    let inner = unsafe { &*context.cast::<Inner>() };
    let Some(puddle) = inner.window.find(address as u64) else {
        return inner.guarding(address) && inner.stand_in(address);
    };
    if puddle.is_due() {
        return inner.frontier.ask(puddle);
    }
    puddle.resolve(&inner.medium, address)
}
