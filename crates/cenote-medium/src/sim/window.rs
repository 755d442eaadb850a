//! Address space of simulations: one window, one simulation.
//!
//! A store's window is at one address in every process, so two simulations of the same store cannot
//! have it reserved at once. Invariant: the windows in the registry do not overlap, and each is
//! reserved from the kernel exactly while it is in the registry. A thread that wants a window that
//! another thread's simulation has waits for it, so that tests may run side by side; a window that
//! the *same* thread has is refused at once, because waiting would be for ever.
//!
//! Mapping and unmapping is most of the cost of looking at an image. So simulations without a
//! history leave their window *idle* in the registry, memory and all; the next simulation that
//! reserves the same window finds its mappings there and only has to correct what differs. The
//! price: a stray access to a puddle that is mapped no more does not fault there. Simulations with
//! a history leave no memory behind and clear what they find.

use crate::MediumError;
use cenote_sys::memory::{self, Access};
use std::io;
use std::sync::{Condvar, Mutex, PoisonError};
use std::thread::ThreadId;
use std::time::{Duration, Instant};

/// A window in the registry.
struct WindowEntry {
    base: u64,
    len: u64,
    /// Whose simulation has it; `None`: it is idle.
    owner: Option<ThreadId>,
    /// Memory that was left in it. Its contents are anything, and its pages may be read-only.
    idle: Vec<MappedRange>,
}

/// Memory that was mapped in a window.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct MappedRange {
    pub(crate) addr: u64,
    pub(crate) len: u64,
    /// Whether it can be mapped a second time. Shared memory serves every mode.
    pub(crate) is_shared: bool,
}

impl MappedRange {
    fn give_back(&self) {
        // SAFETY: the range was left behind in a window and is in no use.
        let _ = unsafe { memory::unmap_to_reserved(self.addr as usize, self.len as usize) };
    }
}

impl WindowEntry {
    fn overlaps(&self, base: u64, len: u64) -> bool {
        self.base < base.saturating_add(len) && base < self.base.saturating_add(self.len)
    }

    fn release(&self) {
        // SAFETY: the registry reserved the range and no other code could map into it; a pointer
        // that still leads there breaks the contract of the medium.
        let _ = unsafe { memory::release(self.base as usize, self.len as usize) };
    }
}

static REGISTRY: Mutex<Vec<WindowEntry>> = Mutex::new(Vec::new());
static GIVEN_BACK: Condvar = Condvar::new();

/// How long to wait for the simulation of another thread.
const PATIENCE: Duration = Duration::from_secs(60);
/// Idle windows that are kept.
const IDLE_MAX: usize = 4;

/// A reserved window; given back when dropped, with everything that is mapped in it.
#[derive(Debug)]
pub(crate) struct SimWindow {
    base: u64,
    len: u64,
    idle: Vec<MappedRange>,
    keep: bool,
}

impl SimWindow {
    pub(crate) fn reserve(base: u64, len: u64) -> Result<Self, MediumError> {
        let refused = |source| MediumError::WindowTaken { base, len, source };
        let me = std::thread::current().id();
        let start = Instant::now();
        let mut registry = REGISTRY.lock().unwrap_or_else(PoisonError::into_inner);
        while let Some(at) = registry.iter().position(|entry| entry.overlaps(base, len)) {
            let entry = &mut registry[at];
            match entry.owner {
                None if (entry.base, entry.len) == (base, len) => {
                    entry.owner = Some(me);
                    let idle = std::mem::take(&mut entry.idle);
                    return Ok(Self { base, len, idle, keep: false });
                }
                None => registry.remove(at).release(),
                Some(owner) => {
                    let patience = PATIENCE.saturating_sub(start.elapsed());
                    if owner == me || patience.is_zero() {
                        let text = "another simulated medium has it; abandon or drop the store on \
                            that one first";
                        return Err(refused(io::Error::other(text)));
                    }
                    registry = GIVEN_BACK
                        .wait_timeout(registry, patience)
                        .unwrap_or_else(PoisonError::into_inner)
                        .0;
                }
            }
        }
        let (at, bytes) = (usize::try_from(base), usize::try_from(len));
        let (Ok(at), Ok(bytes)) = (at, bytes) else {
            return Err(refused(io::Error::from(io::ErrorKind::InvalidInput)));
        };
        memory::reserve(at, bytes).map_err(|error| refused(io::Error::other(error)))?;
        registry.push(WindowEntry { base, len, owner: Some(me), idle: Vec::new() });
        Ok(Self { base, len, idle: Vec::new(), keep: false })
    }

    /// Whether this is the window that was reserved so.
    pub(crate) fn is(&self, base: u64, len: u64) -> bool {
        (self.base, self.len) == (base, len)
    }

    /// Whether the range lies inside.
    pub(crate) fn holds(&self, addr: u64, len: u64) -> bool {
        addr >= self.base && addr.checked_add(len).is_some_and(|end| end <= self.base + self.len)
    }

    /// Takes memory that an earlier simulation left at exactly this range, if it is shared or need
    /// not be, and makes it writable; its contents are anything. All else that was left there is
    /// gone afterwards.
    pub(crate) fn take_idle(
        &mut self,
        addr: u64,
        len: u64,
        needs_shared: bool,
    ) -> Option<MappedRange> {
        let mut found = None;
        self.idle.retain(|&range| {
            let overlaps = range.addr < addr.saturating_add(len) && addr < range.addr + range.len;
            let fits = (range.addr, range.len) == (addr, len) && (range.is_shared || !needs_shared);
            // SAFETY: the range was left behind in this window and is in no use.
            let writable = || unsafe {
                memory::protect(addr as usize, len as usize, Some(Access::ReadWrite)).is_ok()
            };
            if fits && writable() {
                found = Some(range);
            } else if overlaps {
                range.give_back();
            }
            !overlaps
        });
        found
    }

    /// Takes away all that an earlier simulation left, so that touching it faults.
    pub(crate) fn clear_idle(&mut self) {
        self.idle.drain(..).for_each(|range| range.give_back());
    }

    /// Leaves memory for later simulations, in this window or, with [`SimWindow::keep`], after it.
    pub(crate) fn leave_idle(&mut self, range: MappedRange) {
        self.idle.push(range);
    }

    /// Leaves the window idle when it is dropped.
    pub(crate) fn keep(&mut self) {
        self.keep = true;
    }
}

impl Drop for SimWindow {
    fn drop(&mut self) {
        let mut registry = REGISTRY.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(at) = registry.iter().position(|entry| entry.base == self.base) {
            let mut entry = registry.remove(at);
            if self.keep {
                entry.owner = None;
                entry.idle = std::mem::take(&mut self.idle);
                registry.push(entry);
            } else {
                entry.release();
            }
        }
        release_idle(&mut registry, IDLE_MAX);
        drop(registry);
        GIVEN_BACK.notify_all();
    }
}

/// Gives the oldest idle windows back until there are no more than `kept`.
fn release_idle(registry: &mut Vec<WindowEntry>, kept: usize) {
    let mut surplus =
        registry.iter().filter(|entry| entry.owner.is_none()).count().saturating_sub(kept);
    registry.retain(|entry| {
        let goes = surplus > 0 && entry.owner.is_none();
        if goes {
            surplus -= 1;
            entry.release();
        }
        !goes
    });
}

/// Gives back the address space that simulations without a history left reserved, for instance
/// before a real medium with the same window is opened in this process.
pub fn release_idle_windows() {
    release_idle(&mut REGISTRY.lock().unwrap_or_else(PoisonError::into_inner), 0);
}
