//! The states of a view's pages, and what each allows ([`cenote_protect`]).

use cenote_protect::dirty_bitmap::DirtyBitmap;
use cenote_protect::{Right, Rights};
use core::sync::atomic::{AtomicBool, Ordering};
use std::sync::Arc;

/// Notes of pages. A page is loaded after it was opened, and written before.
pub(super) struct PageStates {
    pub(super) loaded: DirtyBitmap,
    pub(super) broken: DirtyBitmap,
    pub(super) written: Arc<DirtyBitmap>,
    pub(super) writable: AtomicBool,
    /// All pages are there from the beginning, and writable if any is.
    pub(super) is_whole: bool,
}

// SAFETY: a few loads.
unsafe impl Rights for PageStates {
    fn allows(&self, page: u64) -> Right {
        let open = self.is_whole && self.writable.load(Ordering::Acquire);
        if self.broken.has(page) {
            Right::Nothing
        } else if open || self.written.has(page) {
            Right::Write
        } else if self.is_whole || self.loaded.has(page) {
            Right::Read
        } else {
            Right::Nothing
        }
    }
}
