//! Guards of a traced heap's metadata and roots (POS-3): a stray write finds them read-only.
//!
//! When a puddle is attached, its metadata are mapped a second time at a random address, and become
//! read-only at the pool's ([`cenote_protect::HiddenWindow`]). All puddles of the heap have one
//! distance: fast paths know a mark, and not its puddle. Only the distance is in memory. Each
//! process that has the pool has its own.
//!
//! | bytes of a puddle | guarded |
//! | --- | --- |
//! | header | no: a checksum covers it |
//! | descriptors, tiny marks, marks, hints | yes |
//! | roots, lists, state of the sweep (root puddle) | yes |
//! | members and locks between processes (root puddle) | where no processes share the pool; else \
//! not, nor what shares their pages: the end of the lists, and the state of the sweep |
//! | blocks, with the links of free ones | no: data |
//!
//! No layout changes: metadata begin at a page, and end before the first superblock for blocks.
//!
//! Guarded are pools that are open for writing, in a process and in a daemon's client. Of a pool in
//! shadowed mode the second mapping is tracked in the place of the first one: its first store into
//! a page since a psync faults, and is noted. So operations have no more instructions there than in
//! direct mode. A pool that is protected at rest is not guarded: its pages are filled where they
//! are mapped. Where the program needs its mappings, or has no addresses for a second window,
//! [`TracedHeap::is_guarded`] says so.

use super::state::TracedHeap;
use super::superblock::PuddleHeap;
use crate::backing::Backing;
use crate::error::{BackingError, OpenError};
use crate::stored::stored;
use cenote_layout::PAGE_SIZE;
use cenote_layout::heap::SUPERBLOCK_SIZE;
use cenote_protect::HiddenWindow;

/// Where the puddles of a backing can be mapped a second time, of which there are so many now.
pub(super) fn window<G: Backing>(backing: &G, puddles: u64) -> Option<HiddenWindow> {
    let window = backing.guarded_window().filter(|_| backing.is_writable())?;
    HiddenWindow::new(window, puddles, &format!("pool `{}`", backing.name())).ok()
}

impl<G: Backing> TracedHeap<G> {
    /// Whether metadata and roots are guarded against stray writes.
    #[must_use]
    pub fn is_guarded(&self) -> bool {
        let puddles = self.puddles.all();
        let closed = |puddle: &PuddleHeap| puddle.guarded.as_ref().is_some_and(|of| of.is_closed());
        !puddles.is_empty() && puddles.iter().all(|puddle| closed(puddle))
    }

    /// Where that is stored which is read at `at`, in metadata.
    #[inline(always)]
    pub(super) fn at_store<'a, T>(&'a self, at: &'a T) -> &'a T {
        // SAFETY: metadata of this heap, which are mapped a second time at this distance as long as
        // it lives; all accesses to them are atomic.
        unsafe { &*stored(at, self.distance) }
    }

    /// Guards the metadata of a puddle that was just mapped and that no thread knows, if this heap
    /// has guards.
    ///
    /// # Errors
    /// They cannot be mapped a second time: this process has no room for mappings.
    pub(super) fn guard(&self, puddle: &mut PuddleHeap) -> Result<(), OpenError> {
        let Some(hidden) = &self.hidden else { return Ok(()) };
        let (base, layout) = (puddle.base, &puddle.layout);
        let end = layout.first_usable * SUPERBLOCK_SIZE;
        let shares = puddle.index == 0 && self.backing.sharing().is_some();
        let closed = if shares { layout.members / PAGE_SIZE * PAGE_SIZE } else { end };
        let range = |end: u64| (base + layout.descriptors) as usize..(base + end) as usize;
        let failed = |error| BackingError::Store {
            doing: "mapping metadata a second time",
            source: Box::new(error),
        };
        let (index, addr) = (puddle.index, base);
        let refused = |source| OpenError::Backing { index, addr, source };
        let notes = self.backing.store_notes(base).map_err(failed).map_err(refused)?;
        // SAFETY: metadata of a puddle, which is one file that is mapped there as long as the
        // backing, which ends after puddles. All code of the heap stores where it is told, and what
        // processes share by other ways is not closed.
        let guarded = unsafe { hidden.guard(range(end), range(closed), notes.as_ref()) };
        puddle.guarded = Some(guarded.map_err(failed).map_err(refused)?);
        puddle.distance = self.distance;
        Ok(())
    }
}
