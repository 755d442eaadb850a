//! Memory of an image: zeros, or a file that is mapped where no thread of the program looks.
//!
//! A page of such a file may be lost after it was had: the kernel drops it and cannot read it
//! again, or another program cuts the file short. The fault handler notes that and puts memory in
//! the page's place that goes to no file. The user of the image asks for the note
//! ([`ImageMemory::intact`]) before anything relies on bytes that were read or stored there. The
//! memory is filled with a byte that is no mark, no description and no pointer, so that a rewriter
//! finds nothing there to follow.

use cenote_layout::heap::LOST_BYTE;
use cenote_medium::planted::{Bug, planted};
use cenote_medium::{MediumError, Operation};
use cenote_sys::memory::{self, OwnedRegion};
use cenote_sys::{alt_stack, fault};
use core::sync::atomic::{AtomicBool, Ordering};

/// Memory of an image.
#[derive(Debug)]
pub(crate) struct ImageMemory {
    /// Ends before what it answers for.
    watch: Option<Watch>,
    region: OwnedRegion,
}

/// Answers for pages of a file that are lost.
#[derive(Debug)]
struct Watch {
    /// Ends before the note.
    _registration: fault::Registration,
    is_lost: Box<AtomicBool>,
}

impl ImageMemory {
    /// Memory that is no file's.
    pub(crate) const fn of_memory(region: OwnedRegion) -> Self {
        Self { watch: None, region }
    }

    /// A file that is mapped. `None`: its faults cannot be answered.
    pub(crate) fn of_file(region: OwnedRegion) -> Option<Self> {
        let is_lost = Box::new(AtomicBool::new(false));
        let (base, note) = (region.as_ptr().expose_provenance(), &raw const *is_lost);
        // SAFETY: `resolve` keeps the rules. The note lives until the registration has ended, by
        // the order of the fields, and is atomic.
        let registration = unsafe { fault::register(base, region.len(), resolve, note.cast()) };
        let watch = Watch { _registration: registration.ok()?, is_lost };
        Some(Self { watch: Some(watch), region })
    }

    pub(crate) const fn memory(&self) -> &OwnedRegion {
        &self.region
    }

    /// Fails if a page was lost: what was read may be other bytes, and what was stored is not in
    /// the file.
    pub(crate) fn intact(&self, name: &str) -> Result<(), MediumError> {
        let is_lost = |watch: &Watch| watch.is_lost.load(Ordering::Acquire);
        if !self.watch.as_ref().is_some_and(is_lost) || planted(Bug::LostImageBelieved) {
            return Ok(());
        }
        let lost = std::io::Error::other(
            "a page was lost while it was in use: the file was cut short, or its disk fails",
        );
        Err(MediumError::from_io(Operation::Read, name, lost))
    }
}

/// Called by the fault handler.
///
/// # Safety
/// Only as a resolver, with the note of a region that is registered.
unsafe fn resolve(note: *const (), address: usize) -> bool {
    if !fault::is_bus_error() || fault::is_peek() {
        return false;
    }
    // SAFETY: registered with it.
    let is_lost = unsafe { &*note.cast::<AtomicBool>() };
    // Before the memory is there.
    is_lost.store(true, Ordering::Release);
    let len = memory::page_bytes();
    // SAFETY: `to` is `len` bytes of new memory.
    let fill = |to: *mut u8| unsafe { to.write_bytes(LOST_BYTE, len) };
    let page = address & !(len - 1);
    // SAFETY: a page of the region, which is the image's alone; nothing relies on what was there
    // (the module's page).
    let replace = || unsafe { memory::replace(page, len, fill) }.is_ok();
    alt_stack::run(replace).unwrap_or_else(replace)
}
