//! A range whose stores are noted.
//!
//! Rights change page by page, and each change may split a mapping of the kernel's. When the
//! process has many mappings ([`mappings`]), or the kernel refuses one more, 2 MiB at once become
//! writable and all their pages are noted; when that is too much, the whole range.
//!
//! The kernel cannot write a protected page either: a `read` from a file into it fails with
//! `EFAULT`. Read into a buffer and copy.

use crate::dirty_bitmap::{DirtyBitmap, PAGE};
use crate::explain::tell_once;
use crate::owner::Owner;
use crate::pieces::pieces;
use crate::right::Right;
use crate::store_notes::StoreNotes;
use crate::table::RangeKind;
use crate::twin_place::TwinPlace;
use cenote_sys::mappings::{self, Fineness};
use core::ops::Range;
use std::io;
use std::sync::Arc;

/// The owner of a range whose pages are noted when they are stored into: a page allows stores as
/// long as it is noted.
#[derive(Debug)]
pub struct Tracked {
    owner: Owner<Arc<DirtyBitmap>>,
    twin: Arc<TwinPlace>,
}

impl Tracked {
    /// Of `range`, whole pages of 4096 bytes; `what` as in [`Owner::new`]. Nothing is noted, and no
    /// right has changed yet.
    #[must_use]
    pub fn new(range: Range<usize>, what: &str) -> Self {
        let notes = Arc::new(DirtyBitmap::new(range.len()));
        let owner = Owner::new(range, RangeKind::Tracked, what, notes);
        Self { owner, twin: Arc::default() }
    }

    /// The notes.
    #[must_use]
    pub fn notes(&self) -> &DirtyBitmap {
        self.owner.rights()
    }

    /// The notes, for code that stores through another mapping of the range.
    #[must_use]
    pub fn store_notes(&self) -> StoreNotes {
        let notes = StoreNotes::new(self.owner.range().start, Arc::clone(self.owner.rights()));
        StoreNotes { twin: Some(Arc::clone(&self.twin)), ..notes }
    }

    /// Of these pages, those that can be read: another owner may have taken all access away. What
    /// nothing can touch holds what it held.
    #[must_use]
    pub fn readable(&self, pages: &[Range<u64>]) -> Vec<Range<u64>> {
        self.owner.with_right(Right::Read, pages)
    }

    /// See [`Owner::retire`].
    pub fn retire(&self) {
        self.owner.retire();
    }

    /// Protects pages whose notes were taken: from now on a store into them faults, also through a
    /// second mapping whose faults note stores.
    ///
    /// # Errors
    /// What the kernel says; some pages may be writable still.
    ///
    /// # Safety
    /// The pages are mapped, and the caller's, and the resolver of their faults calls
    /// [`Tracked::allow`].
    pub unsafe fn protect(&self, pages: Range<u64>) -> io::Result<()> {
        // SAFETY: handed on to the caller; the resolver gives back what is taken.
        unsafe { self.owner.set(pages.clone(), Right::Read) }?;
        let at = |page: u64| self.owner.range().start + page as usize * PAGE;
        self.twin.protect(&(at(pages.start)..at(pages.end)))
    }

    /// Whether another owner denies stores into the page of `address`, noted or not.
    /// Async-signal-safe.
    #[must_use]
    pub fn is_denied_by_others(&self, address: usize) -> bool {
        let offset = address.wrapping_sub(self.owner.range().start);
        offset < self.owner.range().len() && self.owner.others_deny((offset / PAGE) as u64)
    }

    /// Resolves a fault of a store to `address`: notes the page and makes it writable. Returns
    /// whether it is writable now: not if another owner denies it. Async-signal-safe.
    ///
    /// # Safety
    /// The range is a mapping of the caller's, and no other part of the process relies on the pages
    /// being protected, but by an [`Owner`].
    pub unsafe fn allow(&self, address: usize) -> bool {
        // SAFETY: handed on to the caller.
        unsafe { self.allow_by(address, mappings::fineness()) }
    }

    /// [`Tracked::allow`], as finely as this or coarser.
    ///
    /// # Safety
    /// As [`Tracked::allow`].
    pub unsafe fn allow_by(&self, address: usize, fineness: Fineness) -> bool {
        let (len, offset) =
            (self.owner.range().len(), address.wrapping_sub(self.owner.range().start));
        if offset >= len {
            return false;
        }
        for pages in pieces(offset, len, fineness).into_iter().flatten() {
            let open = || {
                // SAFETY: part of the mapping, by the caller's promise; writing is given, not
                // taken.
                unsafe { self.owner.set(pages.clone(), Right::Write) }
            };
            if let Ok(all) = self.notes().while_opening(pages.clone(), open) {
                // Not by the right that it has now: a psync may have taken the note meanwhile.
                return all || !self.owner.is_denied((offset / PAGE) as u64);
            }
        }
        tell_once();
        false
    }
}
