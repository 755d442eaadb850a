//! Guards of ranges of one window whose code adds one number to all their addresses: the heap's
//! fast paths, which know a mark and not its puddle.
//!
//! [`Guards`](crate::Guards) have a distance for each range. Here all second mappings lie at one
//! distance, in a reservation as long as the window ([`SecondWindow`]). A range can be guarded as
//! long as the process has room for mappings; there is no way back to distance 0, so a range that
//! cannot be mapped twice cannot be used.

use crate::explain::tell_of_faults;
use crate::owner::{Owner, Whole};
use crate::right::Right;
use crate::store_notes::StoreNotes;
use crate::table::RangeKind;
use crate::twin::Twin;
use cenote_medium::planted::{Bug, GuardBug, planted};
use cenote_sys::fork_guard;
use cenote_sys::mappings;
use cenote_sys::second_mapping::{SecondMapping, SecondWindow};
use core::ops::Range;
use std::io;
use std::sync::Arc;

const PAGE: usize = 4096;
/// Mappings that a file and a guarded range in it add.
const MAPPINGS: u64 = 8;

/// Where ranges of a window are mapped a second time.
#[derive(Debug)]
pub struct HiddenWindow {
    window: Arc<SecondWindow>,
    /// What explanations name: `pool "x"`.
    what: String,
}

/// A range of metadata that is mapped a second time, until this is dropped.
#[derive(Debug)]
pub struct HiddenRange {
    /// Before the second mapping ends.
    owner: Option<Owner<Whole>>,
    /// Notes stores, where that is asked for; before the second mapping ends, too.
    twin: Option<Twin>,
    token: u64,
    _second: SecondMapping,
}

impl HiddenWindow {
    /// For a window, in which so many `ranges` are to be guarded at first. `what` as in
    /// [`Owner::new`].
    ///
    /// # Errors
    /// The address space has no room, or the process none for the mappings; what the kernel says.
    pub fn new(window: Range<usize>, ranges: u64, what: &str) -> io::Result<Self> {
        tell_of_faults()?;
        Ok(Self { window: SecondWindow::new(window, ranges)?, what: what.to_owned() })
    }

    /// Whether one more file can be mapped, and a range in it guarded.
    ///
    /// # Errors
    /// The program needs the mappings that are left.
    pub fn has_room(&self) -> io::Result<()> {
        Ok(mappings::room(MAPPINGS)?)
    }

    /// What is to be added to an address in a range, wrapping around, for a store.
    #[must_use]
    pub fn distance(&self) -> usize {
        self.window.distance()
    }

    /// Maps `all` a second time, and makes `closed`, a part of it, read-only at its own address.
    /// Whole pages. Where stores are noted, faults of the second mapping note those there.
    ///
    /// # Errors
    /// What the kernel says. Nothing has changed.
    ///
    /// # Safety
    /// `all` lies in the window, is mapped and writable until the result is dropped, one file from
    /// its first byte to its last, shared, and has no second mapping here. From now on all stores
    /// into `closed` are made at the distance.
    pub unsafe fn guard(
        &self,
        all: Range<usize>,
        closed: Range<usize>,
        notes: Option<&StoreNotes>,
    ) -> io::Result<HiddenRange> {
        debug_assert!(all.start <= closed.start && closed.end <= all.end);
        // SAFETY: the caller's promise.
        let second = unsafe { self.window.map(all.start, all.len()) }?;
        let token = fork_guard::token();
        let mut guarded = HiddenRange { owner: None, twin: None, token, _second: second };
        if let Some(notes) = notes {
            // SAFETY: the second mapping is the value's, and ends after the twin.
            guarded.twin = Some(unsafe { Twin::new(all, self.distance(), notes) }?);
        }
        if closed.is_empty() || planted(Bug::Guard(GuardBug::TracedOpen)) {
            return Ok(guarded);
        }
        let owner = Owner::new(closed, RangeKind::Metadata, &self.what, Whole::new(Right::Write));
        guarded.owner = Some(owner);
        // Refused, the range stays writable, and stores at the distance reach it all the same.
        if guarded.give(Right::Read).is_err() {
            let _ = guarded.give(Right::Write);
            guarded.owner = None;
        }
        Ok(guarded)
    }
}

impl HiddenRange {
    /// Whether the part that was to be read-only is.
    #[must_use]
    pub const fn is_closed(&self) -> bool {
        self.owner.is_some()
    }

    fn give(&self, right: Right) -> io::Result<()> {
        let Some(owner) = &self.owner else { return Ok(()) };
        owner.rights().change(right);
        let pages = (owner.range().len() / PAGE) as u64;
        // SAFETY: the range is the value's (contract of `HiddenWindow::guard`), and all stores
        // there go elsewhere.
        unsafe { owner.set(0..pages, right) }.map(drop)
    }
}

impl Drop for HiddenRange {
    fn drop(&mut self) {
        // A child does not have the range.
        if fork_guard::is_current(self.token) {
            // Where that is refused, what comes after finds read-only pages, and says so.
            let _ = self.give(Right::Write);
        }
        self.twin.take();
    }
}
