//! Deferred protection of data (NVM-4; NVMalloc paper, section 4): pages are read-only but where a
//! writer has said that it is about to store, and rights change in batches.
//!
//! A *writer* calls [`DeferredRange::begin`] before it stores into pages, and drops what it got
//! after the last store. Neither makes a system call. Requests go into bounded queues; a service
//! ([`DeferredService`]) takes them in batches, some milliseconds later, sorts them, joins
//! neighbours, and changes rights range by range. A pair that has cancelled itself changes nothing.
//!
//! # States of a page
//!
//! | writers | open | the page is | a store |
//! | --- | --- | --- | --- |
//! | 0 | no | read-only | is a stray write: [`DeferredRange::allow`] says no |
//! | some | no | read-only | faults, the page opens, the store goes on |
//! | some | yes | writable | goes through |
//! | 0 | yes | writable, until the next batch | goes through: what protection defers |
//!
//! One word for each page holds the number of writers and two bits: *open*, and *queued*, which
//! says that a request to close it is in the queue, or that the queue was full and the next batch
//! looks at all pages.
//!
//! # The argument
//!
//! *No store of a writer is lost or ends the process.* The word counts the writer before its first
//! store. With any rights, the store goes through or faults. The fault finds the writer and opens
//! the page, however often it was closed meanwhile. No right decides, only the count does.
//!
//! *A page that has no writer closes.* The writer that leaves last sees the page open, or no store
//! has opened it. It sets *queued*, and the thread that sets the bit makes a request. A batch takes
//! the bit first. If it finds a writer, it leaves the page: that writer sets the bit again. Else
//! one exchange clears the whole word, and the page is made read-only after that. A writer that
//! comes in between faults, which opens the page.
//!
//! *Two owners.* This is one owner of the page ([`crate::Owner`]): psync tracking beside it denies
//! stores until it has noted them, and neither opens what the other one denies. A resolver that
//! serves both asks this one first: a stray write is not noted.
//!
//! # Opening at once
//!
//! A fault that a handler resolves takes several times as long as a system call. So a service may
//! have the first writer of a page open it ([`DeferredOptions::opens_at_once`]), as pools do. A
//! batch that closes the page in the same moment makes it fault, as above.
//!
//! # Synchronous protection
//!
//! [`DeferredTiming::Synchronous`] changes rights at once, with the first writer of a page and with
//! the last one. It is there for comparison.

mod pages;
mod requests;
mod service;
#[cfg(test)]
mod tests;

pub use service::{DeferredOptions, DeferredService, DeferredStats, DeferredTiming, Describe};

use crate::dirty_bitmap::PAGE;
use crate::explain::{tell_of_faults, tell_once};
use crate::owner::Owner;
use crate::pieces::pieces;
use crate::right::Right;
use crate::table::RangeKind;
use cenote_medium::planted::{Bug, GuardBug, planted};
use cenote_sys::mappings::{self, Fineness};
use core::fmt;
use core::ops::Range;
use core::sync::atomic::{AtomicBool, Ordering};
use pages::PageWords;
use std::io;
use std::sync::Arc;

/// A range whose pages are protected but where a writer is.
pub struct DeferredRange {
    shared: Arc<SharedRange>,
    service: Arc<DeferredService>,
}

/// What a range and its service share.
#[derive(Debug)]
pub(crate) struct SharedRange {
    owner: Owner<PageWords>,
    /// Its number in the service.
    number: u16,
    /// The next batch looks at all of its pages that are queued.
    look_at_all: AtomicBool,
}

/// A writer of pages, which may be stored into until this is dropped.
#[must_use = "the pages may be stored into only while it lives"]
pub struct PageWriter<'r> {
    range: &'r DeferredRange,
    pages: Range<u64>,
}

impl fmt::Debug for DeferredRange {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("DeferredRange").field(&self.shared.owner).finish()
    }
}

impl fmt::Debug for PageWriter<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("PageWriter").field(&self.pages).finish()
    }
}

impl DeferredRange {
    /// Protects `range`, whole pages of 4096 bytes; `what` as in [`Owner::new`].
    ///
    /// # Errors
    /// What the kernel says: some pages may be protected then. [`io::ErrorKind::StorageFull`] if
    /// the service has 65,536 ranges.
    ///
    /// # Safety
    /// The range is mapped, readable and writable, and the caller's, until this is dropped and
    /// after. Faults of stores there lead to [`DeferredRange::allow`]. From now on code stores into
    /// a page only as long as it has a [`PageWriter`] of it.
    pub unsafe fn new(
        service: &Arc<DeferredService>,
        range: Range<usize>,
        what: &str,
    ) -> io::Result<Self> {
        tell_of_faults()?;
        let pages = (range.len() / PAGE) as u64;
        let owner = Owner::new(range, RangeKind::Data, what, PageWords::new(pages));
        let shared = service.add(owner)?;
        // From here on an error takes the range out of the service again.
        let made = Self { shared, service: Arc::clone(service) };
        // SAFETY: the caller's pages, and its resolver gives writing back.
        unsafe { made.shared.owner.set(0..pages, Right::Read) }?;
        Ok(made)
    }

    /// The addresses.
    #[must_use]
    pub fn range(&self) -> &Range<usize> {
        self.shared.owner.range()
    }

    /// Says that the caller is about to store into these bytes, which lie in the range. What lies
    /// outside is left out.
    #[inline]
    pub fn begin(&self, bytes: Range<usize>) -> PageWriter<'_> {
        let pages = self.pages_of(bytes);
        self.enter(&pages);
        PageWriter { range: self, pages }
    }

    /// The pages that hold these bytes, as far as they lie in the range.
    #[inline]
    pub(crate) fn pages_of(&self, bytes: Range<usize>) -> Range<u64> {
        let own = self.range();
        let (from, to) = (bytes.start.max(own.start), bytes.end.min(own.end));
        if from >= to {
            return 0..0;
        }
        let page = |address: usize| ((address - own.start) / PAGE) as u64;
        page(from)..page(to - 1) + 1
    }

    /// A writer of pages comes.
    #[inline]
    pub(crate) fn enter(&self, pages: &Range<u64>) {
        let mut closed = 0..0;
        for page in pages.clone() {
            if !self.words().enter(page) {
                continue;
            }
            if closed.end != page {
                self.ask_to_open(closed);
                closed = page..page;
            }
            closed.end = page + 1;
        }
        self.ask_to_open(closed);
    }

    #[inline]
    fn ask_to_open(&self, pages: Range<u64>) {
        if !pages.is_empty() {
            self.service.asked_to_open(&self.shared, pages);
        }
    }

    /// It goes.
    #[inline]
    pub(crate) fn leave(&self, pages: &Range<u64>) {
        for page in pages.clone() {
            if self.words().leave(page) {
                self.service.asked_to_close(&self.shared, page);
            }
        }
    }

    fn words(&self) -> &PageWords {
        self.shared.owner.rights()
    }

    /// Whether a writer of the page at `address` has said that it stores there. Async-signal-safe.
    #[must_use]
    pub fn is_expected(&self, address: usize) -> bool {
        let offset = address.wrapping_sub(self.range().start);
        offset < self.range().len() && self.words().has_writer((offset / PAGE) as u64)
    }

    /// Resolves a fault of a store to `address`: opens the page if it has a writer. Whether the
    /// page is writable now: not if another owner denies it. `false` of a page without a writer: a
    /// stray write. Async-signal-safe.
    #[must_use]
    pub fn allow(&self, address: usize) -> bool {
        self.allow_by(address, mappings::fineness())
    }

    /// [`DeferredRange::allow`], as finely as this or coarser: neighbours of the page open too, and
    /// close with the next batch.
    #[must_use]
    pub fn allow_by(&self, address: usize, fineness: Fineness) -> bool {
        let stray = !self.is_expected(address);
        if stray && !planted(Bug::Guard(GuardBug::StrayOpened)) {
            return false;
        }
        let (len, offset) = (self.range().len(), address.wrapping_sub(self.range().start));
        let page = (offset / PAGE) as u64;
        for pages in pieces(offset, len, fineness).into_iter().flatten() {
            self.open(page, &pages);
            // SAFETY: the caller's pages by the promise of `new`; writing is given, not taken.
            if let Ok(all) = unsafe { self.shared.owner.set(pages, Right::Write) } {
                self.service.count_fault();
                return all || !self.shared.owner.is_denied(page);
            }
        }
        tell_once();
        false
    }

    /// Says in the words that these pages are open: one that has a writer, and its neighbours,
    /// which are to be closed.
    fn open(&self, page: u64, pages: &Range<u64>) {
        self.words().open(page);
        let neighbours = pages.clone().filter(|other| *other != page);
        if neighbours.filter(|other| self.words().open_queued(*other)).count() != 0 {
            self.shared.look_at_all.store(true, Ordering::SeqCst);
        }
    }

    /// The service, which other ranges may have too.
    #[must_use]
    pub fn service(&self) -> &Arc<DeferredService> {
        &self.service
    }

    /// All pages are writable from now on, and no call changes a right.
    pub(crate) fn end(&self) {
        // Waits for a batch: after this no right of the range changes.
        self.service.remove(&self.shared);
        let pages = 0..self.words().len();
        pages.clone().for_each(|page| self.words().open(page));
        // SAFETY: the caller's pages by the promise of `new`; writing is given, not taken. Where
        // the kernel refuses it, a store faults.
        let _ = unsafe { self.shared.owner.set(pages, Right::Write) };
        self.shared.owner.retire();
    }

    /// Whether the words say that a page is open.
    #[must_use]
    pub fn is_open(&self, page: u64) -> bool {
        self.words().is_open(page)
    }
}

impl Drop for DeferredRange {
    fn drop(&mut self) {
        // Waits for a batch: after this no right of the range changes.
        self.service.remove(&self.shared);
    }
}

impl Drop for PageWriter<'_> {
    #[inline]
    fn drop(&mut self) {
        self.range.leave(&self.pages);
    }
}
