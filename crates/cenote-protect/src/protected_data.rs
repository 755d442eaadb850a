//! Protected data of pools: ranges that transactions find by address, and what they hold open.
//!
//! A [`ProtectedData`] is a [`DeferredRange`] with the handler of its faults. It is *listed*: code
//! that is about to store somewhere, and knows an address and nothing else, finds it
//! ([`AttendedStores::begin`]).
//!
//! # The argument
//!
//! *No range is missed.* A range is listed before a program can get a block in it: the heap does so
//! before it names the puddle. The number of the list changes with it, under the list's lock. A
//! transaction compares that number at each range that it is told of, and reads the list anew if it
//! has changed. The address came to it from the thread that got the block, so it sees that number.
//!
//! *No range is used that has ended.* It ends when its pool's heap does, which outlives the
//! transactions of the pool. What else keeps the range in memory changes no right: it is out of its
//! service, and its owner has retired.

use crate::attention::Attention;
use crate::deferred::{DeferredRange, DeferredService};
use cenote_medium::planted::{Bug, GuardBug, planted};
use cenote_sys::fault::{self, RegisterError, Registration};
use cenote_sys::process_lock::ProcessLock;
use core::fmt;
use core::ops::Range;
use core::sync::atomic::{AtomicU64, Ordering};
use std::io;
use std::sync::Arc;

/// Ranges by address, and how often they have changed.
static LISTED: ProcessLock<Vec<Arc<DeferredRange>>> = ProcessLock::new(Vec::new());
static CHANGES: AtomicU64 = AtomicU64::new(0);

/// A range of a pool's data that only announced stores get into, until it is dropped. Then its
/// pages are writable again.
pub struct ProtectedData {
    range: Arc<DeferredRange>,
    /// Taken out after the range has opened its pages.
    _registration: Registration,
    _attention: Attention,
}

impl fmt::Debug for ProtectedData {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.range.fmt(f)
    }
}

/// # Safety
/// `context` is a [`DeferredRange`].
unsafe fn resolve(context: *const (), address: usize) -> bool {
    // SAFETY: by contract.
    let range = unsafe { &*context.cast::<DeferredRange>() };
    // Loads do not fault here, but for pages that cannot be had.
    if fault::is_bus_error() {
        return false;
    }
    if range.allow(address) {
        return true;
    }
    if !fault::is_peek() && !range.is_expected(address) {
        range.service().report(address);
    }
    false
}

impl ProtectedData {
    /// Protects whole pages of 4096 bytes; `what` as in [`crate::Owner::new`].
    ///
    /// # Errors
    /// As [`DeferredRange::new`]; the handler of faults cannot be installed. Nothing is protected
    /// then.
    ///
    /// # Safety
    /// As [`DeferredRange::new`]: from now on code stores there only between
    /// [`AttendedStores::begin`] and [`AttendedStores::end`]. No other handler opens a page for a
    /// store that this one has refused.
    pub unsafe fn new(
        service: &Arc<DeferredService>,
        range: Range<usize>,
        what: &str,
    ) -> io::Result<Self> {
        let (base, len) = (range.start, range.len());
        let failed = |error: RegisterError| io::Error::other(error.to_string());
        // SAFETY: handed on to the caller; the handler comes before the first store.
        let range = Arc::new(unsafe { DeferredRange::new(service, range, what) }?);
        let context = Arc::as_ptr(&range).cast();
        // SAFETY: `resolve` keeps the rules of resolvers, by what `DeferredRange::allow` says; the
        // range outlives the registration.
        let registration = unsafe { fault::register(base, len, resolve, context) };
        let registration = registration.map_err(failed).inspect_err(|_| range.end())?;
        let attention = Attention::begin();
        list(|listed| {
            let at = listed.partition_point(|other| other.range().start < base);
            listed.insert(at, Arc::clone(&range));
        });
        Ok(Self { range, _registration: registration, _attention: attention })
    }

    /// The range, for tests and statistics.
    #[must_use]
    pub fn range(&self) -> &DeferredRange {
        &self.range
    }
}

impl Drop for ProtectedData {
    fn drop(&mut self) {
        list(|listed| listed.retain(|other| !Arc::ptr_eq(other, &self.range)));
        self.range.end();
    }
}

fn list(change: impl FnOnce(&mut Vec<Arc<DeferredRange>>)) {
    let mut listed = LISTED.lock();
    change(&mut listed);
    CHANGES.fetch_add(1, Ordering::SeqCst);
}

/// What one thread of stores holds open: a transaction, or a guard of the raw interface.
#[derive(Debug, Default)]
pub struct AttendedStores {
    /// Ranges by address, as the list was at this number.
    known: Vec<Arc<DeferredRange>>,
    changes: u64,
    held: Vec<HeldPages>,
}

/// Pages of a range that have this writer.
#[derive(Debug)]
struct HeldPages {
    range: Arc<DeferredRange>,
    pages: Range<u64>,
}

impl Drop for HeldPages {
    #[inline]
    fn drop(&mut self) {
        self.range.leave(&self.pages);
    }
}

impl AttendedStores {
    /// The caller is about to store into these bytes. They may lie in protected data or not.
    pub fn begin(&mut self, start: usize, len: usize) {
        let changes = CHANGES.load(Ordering::Acquire);
        if changes != self.changes {
            self.learn();
        }
        let end = start.saturating_add(len);
        let first = self.known.partition_point(|range| range.range().end <= start);
        for range in &self.known[first..] {
            if range.range().start >= end {
                break;
            }
            let pages = range.pages_of(start..end);
            let is_held = |held: &HeldPages| {
                held.pages.start <= pages.start
                    && pages.end <= held.pages.end
                    && Arc::ptr_eq(&held.range, range)
            };
            // Neighbours are told of one after the other.
            if self.held.iter().rev().take(4).any(is_held) {
                continue;
            }
            range.enter(&pages);
            self.held.push(HeldPages { range: Arc::clone(range), pages });
        }
    }

    #[cold]
    fn learn(&mut self) {
        let listed = LISTED.lock();
        self.changes = CHANGES.load(Ordering::SeqCst);
        self.known.clone_from(&listed);
    }

    /// Whether nothing is held open.
    #[inline(always)]
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.held.is_empty()
    }

    /// The caller has made its stores.
    pub fn end(&mut self) {
        if planted(Bug::Guard(GuardBug::CommitKeepsOpen)) {
            self.held.drain(..).for_each(core::mem::forget);
        }
        self.held.clear();
    }
}
