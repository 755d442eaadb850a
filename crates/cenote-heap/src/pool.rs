//! A store's pool as the ground of a heap.

use crate::error::GroundError;
use crate::ground::{Ground, Plot};
use cenote_layout::pointer::RegionAddress;
use cenote_layout::puddle::Role;
use cenote_store::PoolHandle;
use core::sync::atomic::AtomicPtr;

// SAFETY: puddles stay in the store's window, at their address, as long as the store is open, which a handle keeps it; only the heap uses a heap
// puddle's body, and it hangs its data on `heap_slot`. A puddle that is refused is not among the plots.
unsafe impl Ground for PoolHandle {
    fn plots(&self) -> Vec<Plot> {
        self.puddles()
            .into_iter()
            .filter(|puddle| puddle.role() == Role::Heap && !puddle.is_refused())
            .map(|puddle| Plot { index: puddle.index(), addr: puddle.addr(), size: puddle.size() })
            .collect()
    }

    fn map(&self, plot: &Plot) -> Result<(), GroundError> {
        let failed = |source| GroundError::Store { doing: "mapping a puddle", source };
        match self.store().puddle_of(plot.addr) {
            Some(puddle) => self.store().ensure_mapped(puddle).map_err(|error| failed(Box::new(error))),
            None => Err(failed("the store has no such puddle any more".into())),
        }
    }

    fn take(&self, size: u64) -> Result<Plot, GroundError> {
        let puddle = self
            .take_puddle(size)
            .map_err(|error| GroundError::Store { doing: "taking a puddle", source: Box::new(error) })?;
        Ok(Plot { index: puddle.index(), addr: puddle.addr(), size: puddle.size() })
    }

    fn expect(&self, size: u64) {
        self.expect_puddle(size);
    }

    unsafe fn release(&self, addr: u64, len: u64) -> Result<bool, GroundError> {
        // SAFETY: the caller's.
        let released = unsafe { self.release_space(addr, len) };
        released.map_err(|error| GroundError::Store { doing: "giving back space", source: Box::new(error) })
    }

    fn ensure(&self, addr: u64, len: u64) -> Result<(), GroundError> {
        self.ensure_space(addr, len).map_err(|error| GroundError::Store {
            doing: "taking space for a part of a puddle that has none",
            source: Box::new(error),
        })
    }

    #[inline]
    fn slot(&self, addr: u64) -> Option<&AtomicPtr<()>> {
        let puddle = self.store().puddle_of(addr)?;
        // Log puddles belong to no pool.
        // SAFETY: this is the pool's heap; should there be two, the second finds the slot of the root puddle taken and is not opened.
        (puddle.pool() == self.id()).then(|| unsafe { puddle.heap_slot() })
    }

    fn is_foreign(&self, addr: u64) -> bool {
        self.store().puddle_of(addr).is_some_and(|puddle| puddle.pool() != self.id())
    }

    fn region(&self, region: &RegionAddress) -> Option<u64> {
        self.store().region_address(region)
    }

    fn is_writable(&self) -> bool {
        Self::is_writable(self)
    }

    fn puddle_size(&self) -> u64 {
        self.record().puddle_size
    }

    fn size_max(&self) -> u64 {
        self.record().size_max
    }

    fn is_power(&self) -> bool {
        self.store().persistence().is_power()
    }

    unsafe fn flush(&self, start: *const u8, len: usize) {
        // SAFETY: the caller's.
        unsafe { self.store().persistence().flush(start, len) }
    }

    fn fence(&self) {
        self.store().persistence().fence();
    }
}
