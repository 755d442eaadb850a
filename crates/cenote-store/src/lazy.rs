//! Maps puddles on first touch (PUD-10; Puddles paper, 4.4).
//!
//! A pool's puddles are in the slot table as soon as the pool is open, and are mapped at the first
//! touch. The touch faults, because the window is reserved without access; the resolver looks the
//! address up and maps the puddle. It runs in a signal handler: it reads the slot table, maps (on a
//! stack of `cenote_sys::alt_stack`, since that of a handler is too small), and allocates nothing.
//!
//! In a pool in shadowed mode the first store into a page faults too: the page is noted, and may be
//! written from then on ([`crate::psync`]).
//!
//! One whose pointers are still to be rewritten is handed to a thread first
//! ([`crate::pending_rewrite::lazy_rewrite`]).
//!
//! A page of metadata that is lost has memory put in its place ([`crate::kernel::puddles::lost`]),
//! and so has one of a log, or of what recovery has mapped ([`crate::kernel::store::watch`]).
//!
//! A puddle that is mapped already was mapped by another thread while this one faulted: the access
//! is tried again. A stray write to a read-only puddle looks the same; `cenote_sys::fault` tries
//! that a bounded number of times, and then it goes to the next handler.

use crate::kernel::puddles::lost::Replaceable;
use crate::kernel::puddles::puddle::Puddle;
use crate::kernel::store::Inner;
use cenote_sys::{alt_stack, fault};
use std::sync::Arc;

/// Has faults in the store's window come here, until the registration is dropped. It belongs into
/// [`crate::kernel::store::Control`] at once: a store that is dropped takes it out before it gives
/// memory back.
pub(crate) fn register(inner: &Arc<Inner>) -> Result<fault::Registration, fault::RegisterError> {
    let (base, len) = (inner.window.base() as usize, inner.window.len() as usize);
    // SAFETY: `resolve` keeps the rules of resolvers (it reads the slot table and maps); the
    // context is this `Inner`, shared, which drops the registration before it is freed.
    unsafe { fault::register(base, len, resolve, Arc::as_ptr(inner).cast()) }
}

/// Resolver for [`cenote_sys::fault::register`].
///
/// # Safety
/// `context` is the `Inner` of an open store.
pub(crate) unsafe fn resolve(context: *const (), address: usize) -> bool {
    // SAFETY: registered with the store's `Inner`, which unregisters before it is freed.
    let inner = unsafe { &*context.cast::<Inner>() };
    let is_bus_error = fault::is_bus_error();
    if is_bus_error && let Some(stands_in) = inner.stand_in(address) {
        return stands_in;
    }
    let Some(puddle) = inner.window.find(address as u64) else { return false };
    if puddle.is_pending() {
        return inner.frontier().ask(puddle);
    }
    if is_bus_error && replace(inner, puddle, address) {
        return true;
    }
    puddle.resolve(&inner.medium, address)
}

/// Puts memory in the place of a page of metadata that is lost. Whether the access can succeed now.
/// Not for a load that may fail, which answers for itself, and not in a daemon.
fn replace(inner: &Inner, puddle: &Puddle, address: usize) -> bool {
    if fault::is_peek() || inner.options.hosting.is_some() {
        return false;
    }
    let Some(page) = Replaceable::of(puddle.record(), puddle.metadata_pages(), address) else {
        return false;
    };
    // SAFETY: in the puddle's own mapping, which `while_mapped` keeps others from changing, and of
    // sealed pages `while_broken`.
    let put = || unsafe { page.replace(&inner.poisoned) };
    let replace = || match puddle.view() {
        Some(view) => view.while_broken(address, put),
        None => puddle.while_mapped(put),
    };
    // Maps, and may wait for another handler: more than a handler's own stack is for.
    alt_stack::run(replace).unwrap_or_else(replace)
}
