//! Notes stores through a second mapping by the faults of that mapping.
//!
//! The other way is that code notes its stores itself ([`crate::StoreNotes`]). That costs a locked
//! instruction for each page of an operation, which is more than a store of a heap's fast path. So
//! where a range has such code, its second mapping is tracked as the first one would be: a page of
//! it is read-only until it is noted.
//!
//! # The argument
//!
//! *Invariant*: a page that is writable, in either mapping, is noted, from before it becomes
//! writable until the notes are taken. The psync then protects the pages in both mappings
//! ([`crate::Tracked::protect`]) and copies them. So the copy has a store, or the store faults and
//! its note stays for the next psync. The fault notes the page before it opens it and again after,
//! because a psync in between clears the first note. A psync between the opening and the second
//! note takes the page, too ([`DirtyBitmap::while_opening`]).
//!
//! The end of the second mapping and protecting it exclude each other ([`TwinPlace`]). Its pages
//! may be noted as they are then; the first mapping tracks them as before.
//!
//! A page that is lost is replaced in both mappings, and writable in the second one
//! ([`cenote_sys::second_mapping`]). It is noted first: the next psync finds out.

use crate::dirty_bitmap::{DirtyBitmap, PAGE};
use crate::explain::tell_once;
use crate::pieces::pieces;
use crate::store_notes::StoreNotes;
use crate::twin_place::{TwinPlace, TwinRange};
use cenote_sys::fault::{self, Registration};
use cenote_sys::fork_guard;
use cenote_sys::mappings::{self, Fineness};
use cenote_sys::memory::{self, Access};
use core::ops::Range;
use std::io;
use std::sync::Arc;

const READ: Option<Access> = Some(Access::ReadOnly);
const WRITE: Option<Access> = Some(Access::ReadWrite);

/// What the resolver of a second mapping's faults is registered with.
#[derive(Debug)]
struct TwinFaults {
    range: TwinRange,
    notes: Arc<DirtyBitmap>,
    /// The page of the notes with which the range begins.
    page: usize,
}

/// A second mapping whose faults note stores, until this is dropped.
#[derive(Debug)]
pub(crate) struct Twin {
    place: Arc<TwinPlace>,
    token: u64,
    /// Dropped before what it was registered with.
    registration: Option<Registration>,
    _faults: Box<TwinFaults>,
}

impl Twin {
    /// Of the range `first`, which is mapped a second time at that distance.
    ///
    /// # Errors
    /// The notes are of memory that is not tracked by faults, or what the kernel says. Nothing has
    /// changed.
    ///
    /// # Safety
    /// The second mapping stays there until this is dropped; it is the caller's, whole pages, and
    /// no thread uses it yet. The range is part of what the notes are of, which has no other twin.
    pub(crate) unsafe fn new(
        first: Range<usize>,
        distance: usize,
        notes: &StoreNotes,
    ) -> io::Result<Self> {
        let unsupported = || io::Error::from(io::ErrorKind::Unsupported);
        let place = notes.twin.clone().ok_or_else(unsupported)?;
        let page = first.start.wrapping_sub(notes.base) / PAGE;
        let range = TwinRange { first, distance };
        let (at, len) = (range.place(), range.first.len());
        let faults =
            Box::new(TwinFaults { range: range.clone(), notes: Arc::clone(&notes.notes), page });
        // SAFETY: the resolver keeps the rules: atomics, `mprotect`, and the count of mappings.
        // What it is registered with lives longer than the registration.
        let registered = unsafe { fault::register(at, len, resolve, (&raw const *faults).cast()) };
        let registration = Some(registered.map_err(io::Error::other)?);
        let token = fork_guard::token();
        let twin = Self { place, token, registration, _faults: faults };
        // SAFETY: the caller's, which nothing uses yet; faults give writing back.
        unsafe { memory::protect(at, len, READ) }?;
        *twin.place.lock() = Some(range);
        Ok(twin)
    }
}

impl Drop for Twin {
    fn drop(&mut self) {
        // In a child, another thread may have had the lock.
        if fork_guard::is_current(self.token) {
            *self.place.lock() = None;
        }
        // Waits for handlers that are in the resolver.
        drop(self.registration.take());
    }
}

/// What a store into a read-only page of a second mapping leads to.
///
/// # Safety
/// `faults` are [`TwinFaults`] whose second mapping is there.
unsafe fn resolve(faults: *const (), address: usize) -> bool {
    // SAFETY: by contract.
    let faults = unsafe { &*faults.cast::<TwinFaults>() };
    faults.allow(address, mappings::fineness())
}

impl TwinFaults {
    /// Notes the page and makes it writable, as finely as this or coarser.
    fn allow(&self, address: usize, fineness: Fineness) -> bool {
        let (len, place) = (self.range.first.len(), self.range.place());
        let offset = address.wrapping_sub(place);
        if offset >= len {
            return false;
        }
        if fault::is_bus_error() {
            self.notes.note_one((self.page + offset / PAGE) as u64);
            return false;
        }
        for pages in pieces(offset, len, fineness).into_iter().flatten() {
            let (from, to) = (pages.start as usize * PAGE, pages.end as usize * PAGE);
            let noted = self.page as u64 + pages.start..self.page as u64 + pages.end;
            let open = || {
                // SAFETY: part of the second mapping, which the registration outlives; writing is
                // given, not taken.
                unsafe { memory::protect(place + from, to - from, WRITE) }
            };
            if self.notes.while_opening(noted, open).is_ok() {
                return true;
            }
        }
        tell_once();
        false
    }
}

#[cfg(all(test, not(miri)))]
mod tests {
    use super::*;
    use crate::tracked::Tracked;
    use cenote_sys::dual_mapping::nameless_file;
    use cenote_sys::memory::{OwnedRegion, whole_file};
    use cenote_sys::second_mapping::SecondMapping;
    use core::ptr;
    use std::os::fd::AsFd;

    const PAGES: usize = 6;

    fn shared() -> OwnedRegion {
        let file = nameless_file("twin").expect("a file");
        file.set_len((PAGES * PAGE) as u64).expect("its length");
        // SAFETY: nothing else has the file.
        unsafe { whole_file(file.as_fd(), PAGES * PAGE) }.expect("mapped")
    }

    fn store(at: usize, value: u64) {
        // SAFETY: a word of the tests' mappings.
        unsafe { ptr::with_exposed_provenance_mut::<u64>(at).write_volatile(value) }
    }

    fn taken(tracked: &Tracked) -> Vec<Range<u64>> {
        let mut pages = Vec::new();
        tracked.notes().take(&mut pages);
        // SAFETY: the test's own; nothing is stored at the first mapping.
        pages.iter().for_each(|of| unsafe { tracked.protect(of.clone()) }.expect("protected"));
        pages
    }

    #[test]
    fn each_first_store_into_a_second_mapping_since_the_notes_were_taken_is_noted() {
        let region = shared();
        let first = region.as_ptr().expose_provenance();
        let tracked = Tracked::new(first..first + PAGES * PAGE, "a test");
        let part = first + PAGE..first + 5 * PAGE;
        // SAFETY: a shared mapping of one file.
        let second = unsafe { SecondMapping::new(part.start, part.len()) }.expect("mapped twice");
        let notes = tracked.store_notes();
        // SAFETY: the test's second mapping, which is dropped after the twin.
        let twin = unsafe { Twin::new(part, second.distance(), &notes) }.expect("tracked");
        for round in 1..4 {
            assert_eq!(taken(&tracked), [0u64..0; 0]);
            for page in [2, 4, 2] {
                store((first + page * PAGE + 8).wrapping_add(second.distance()), round);
            }
            assert_eq!(taken(&tracked), [2..3, 4..5]);
        }
        store((first + PAGE).wrapping_add(second.distance()), 1);
        drop(twin);
        drop(second);
        assert_eq!(
            taken(&tracked),
            std::iter::once(1..2).collect::<Vec<_>>(),
            "and nothing is protected that is not there"
        );
        let none = StoreNotes::new(first, Arc::new(DirtyBitmap::new(PAGE)));
        // SAFETY: refused before anything is used.
        assert!(unsafe { Twin::new(first..first + PAGE, 0, &none) }.is_err());
    }
}
