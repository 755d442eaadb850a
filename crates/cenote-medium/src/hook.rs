//! Finds the simulated medium that a [`Persistence`](crate::Persistence) belongs to.
//!
//! `Persistence` is a two-byte value, so it cannot hold a pointer: it holds the number of a slot in
//! the table below. Only simulated media are in the table; a real medium never looks here. Slots
//! are given back when the [`SimSlot`] is dropped; a stale `Persistence` then finds the slot empty
//! and does nothing, or reaches the next simulation in that slot, which has to ignore ranges
//! outside its mappings.

use std::fmt;
use std::sync::{Arc, PoisonError, RwLock};

/// Reports to a simulated medium by the [`Persistence`](crate::Persistence) values that it gave
/// out.
///
/// The calls come at both durability levels: at `process` a fence is still the point up to which
/// stores are ordered.
pub trait SimHook: Send + Sync {
    /// All lines of the range `ptr..ptr + len` are being flushed. `len` is not zero. The range may
    /// lie outside every mapping of this simulation (a stale value): it must not be read then.
    fn flush(&self, ptr: *const u8, len: usize);

    /// A store fence.
    fn fence(&self);

    /// The line that `ptr` lies in left a cache by itself: it is in memory, and no thread has
    /// executed anything. `ptr` may lie outside every mapping of this simulation.
    fn write_back(&self, ptr: *const u8) {
        let _ = ptr;
    }

    /// A streaming copy: the hook does the copy and records it. `dst` is a multiple of 8, as is
    /// `len`.
    ///
    /// # Safety
    ///
    /// `src` is readable and `dst` writable for `len` bytes, and they do not overlap.
    unsafe fn stream(&self, dst: *mut u8, src: *const u8, len: usize);
}

/// Simulated media that can be open at once in a process.
pub const SIM_SLOTS: usize = 64;

static SLOTS: [RwLock<Option<Arc<dyn SimHook>>>; SIM_SLOTS] =
    [const { RwLock::new(None) }; SIM_SLOTS];

/// One simulation's place in the table; given back on drop.
pub struct SimSlot(u8);

impl SimSlot {
    /// Takes a free slot for `hook`. `None` if all [`SIM_SLOTS`] are taken: drop simulations that
    /// are done with.
    #[must_use]
    pub fn take(hook: Arc<dyn SimHook>) -> Option<Self> {
        for (number, slot) in SLOTS.iter().enumerate() {
            let mut slot = slot.write().unwrap_or_else(PoisonError::into_inner);
            if slot.is_none() {
                *slot = Some(hook);
                // SIM_SLOTS fits in a byte.
                return Some(Self(number as u8));
            }
        }
        None
    }

    pub(crate) fn number(&self) -> u8 {
        self.0
    }
}

impl fmt::Debug for SimSlot {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "SimSlot({})", self.0)
    }
}

impl Drop for SimSlot {
    fn drop(&mut self) {
        let taken =
            SLOTS[usize::from(self.0)].write().unwrap_or_else(PoisonError::into_inner).take();
        // The lock is released before the simulation's own destructors run.
        drop(taken);
    }
}

/// The simulation in a slot, if there is one. A clone, so that no lock is held while the simulation
/// works.
pub(crate) fn hook(number: u8) -> Option<Arc<dyn SimHook>> {
    SLOTS.get(usize::from(number))?.read().unwrap_or_else(PoisonError::into_inner).clone()
}
