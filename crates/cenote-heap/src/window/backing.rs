//! A window as the backing of a heap that is opened in it.
//!
//! A logged heap is opened in the window as the next opener would open the pool after a crash of
//! this moment: what it ends and stores on the way stays in private pages. It gives out no block.

use crate::backing::{Backing, Extent};
use crate::error::BackingError;
use cenote_layout::puddle::Role;
use cenote_store::{PoolHandle, PoolWindow};
use core::sync::atomic::AtomicPtr;

/// The puddles of a pool, at the distance of a window.
#[derive(Debug)]
pub(super) struct WindowBacking {
    puddles: Vec<WindowPuddle>,
    puddle_size: u64,
    name: String,
}

#[derive(Debug)]
struct WindowPuddle {
    extent: Extent,
    is_for_metadata: bool,
    slot: AtomicPtr<()>,
}

impl WindowBacking {
    pub(super) fn new(pool: &PoolHandle, window: &PoolWindow) -> Self {
        let puddles = window.puddles().iter().map(|(of, index)| WindowPuddle {
            extent: Extent {
                index: *index,
                addr: of.start.wrapping_add(window.distance()),
                size: of.end - of.start,
            },
            is_for_metadata: pool
                .store()
                .puddle_of(of.start)
                .is_some_and(|puddle| puddle.role() == Role::Metadata),
            slot: AtomicPtr::new(core::ptr::null_mut()),
        });
        let mut puddles: Vec<WindowPuddle> = puddles.collect();
        puddles.sort_by_key(|puddle| puddle.extent.index);
        let name = pool.name().to_string();
        Self { puddles, puddle_size: pool.record().puddle_size, name }
    }
}

// SAFETY: the window has the puddles mapped, for private stores, as long as it lives, and it ends
// its heap before; nothing but that heap stores there. Slots are found for every address in them.
unsafe impl Backing for WindowBacking {
    fn extents(&self) -> Vec<Extent> {
        self.puddles.iter().map(|puddle| puddle.extent).collect()
    }

    fn map(&self, _: &Extent) -> Result<(), BackingError> {
        Ok(())
    }

    fn take(&self, requested: u64) -> Result<Extent, BackingError> {
        Err(BackingError::Limit { requested, bytes: 0, size_max: 0 })
    }

    fn is_for_metadata(&self, extent: &Extent) -> Option<bool> {
        let is_it = |puddle: &&WindowPuddle| puddle.extent.index == extent.index;
        self.puddles.iter().find(is_it).map(|puddle| puddle.is_for_metadata)
    }

    fn slot(&self, addr: u64) -> Option<&AtomicPtr<()>> {
        let holds =
            |puddle: &&WindowPuddle| addr.wrapping_sub(puddle.extent.addr) < puddle.extent.size;
        self.puddles.iter().find(holds).map(|puddle| &puddle.slot)
    }

    fn is_foreign(&self, _: u64) -> bool {
        false
    }

    fn is_writable(&self) -> bool {
        true
    }

    fn name(&self) -> String {
        self.name.clone()
    }

    fn can_close_off(&self) -> bool {
        false
    }

    fn puddle_size(&self) -> u64 {
        self.puddle_size
    }

    fn size_max(&self) -> u64 {
        0
    }

    fn releases(&self) -> bool {
        false
    }

    fn is_power(&self) -> bool {
        false
    }

    unsafe fn flush(&self, _: *const u8, _: usize) {}

    fn fence(&self) {}
}
