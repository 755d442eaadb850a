//! Pages of a view that fail their check: they are given up, and a caller may replace them.
//!
//! Invariant: a broken page is not loaded, and stays so until the view ends.

use super::{PAGE_LEN, ViewInner};
use crate::view::error::SealedError;
use cenote_sys::{dual_mapping, fault};

impl ViewInner {
    /// See [`View::while_broken`].
    pub(super) fn while_broken(&self, address: usize, f: impl FnOnce() -> bool) -> bool {
        let page = (address.wrapping_sub(self.base) / PAGE_LEN) as u64;
        let _filling = self.lock();
        page < self.pages && self.states().broken.has(page) && !self.is_stopped() && f()
    }

    /// Gives up a page: an access to it is a bus error from now on.
    pub(super) fn break_page(&self, page: u64, error: &SealedError) {
        let _filling = self.lock();
        if self.states().loaded.has(page) {
            // Another thread has loaded it meanwhile, and may have stored into it.
            return;
        }
        self.states().broken.note(page..page + 1);
        fault::tell(&format!(
            "cenote: {error}; a program's access to it is a bus error; other pages can be read \
             (`read_at`)\n"
        ));
        // SAFETY: the page is closed, and of this view's own range. If it cannot be mapped, the
        // access is a segmentation fault.
        let _ = unsafe { dual_mapping::map_bus_error(self.base + page as usize * PAGE_LEN) };
    }
}
