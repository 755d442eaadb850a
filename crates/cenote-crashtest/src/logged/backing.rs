//! Files of a simulated medium as the backing of a logged heap: puddles of fixed sizes, in slots of
//! a window. How many of them are taken a word of a file of its own says, and a second one which of
//! them are for metadata, as a store's catalog does.

use super::text;
use cenote_heap::{Backing, BackingError, Extent};
use cenote_medium::sim::SimMedium;
use cenote_medium::{MapMode, Medium, OwnedMedium, Persistence};
use core::ptr::{null_mut, with_exposed_provenance};
use core::sync::atomic::{AtomicPtr, AtomicU64, Ordering};
use std::sync::Arc;

const SLOT: u64 = 2 << 20;
const CATALOG: &str = "catalog";
const CATALOG_LEN: u64 = 4096;

/// Bytes of the window of so many puddles and the catalog.
pub(super) const fn window_len(puddles: u64) -> u64 {
    (puddles + 1) * SLOT
}

pub(super) struct SimBacking {
    medium: OwnedMedium,
    persistence: Persistence,
    base: u64,
    sizes: &'static [u64],
    slots: Vec<AtomicPtr<()>>,
}

fn name(index: u64) -> String {
    format!("puddles/{index}")
}

fn failed(doing: &'static str) -> impl Fn(cenote_medium::MediumError) -> BackingError {
    move |error| BackingError::Store { doing, source: Box::new(error) }
}

impl SimBacking {
    /// Maps the files; makes them if they are not there, with the first `taken` puddles taken.
    pub(super) fn new(
        sim: &Arc<SimMedium>,
        base: u64,
        sizes: &'static [u64],
        taken: u64,
    ) -> Result<Self, String> {
        let medium: Arc<dyn Medium> = Arc::<SimMedium>::clone(sim);
        // SAFETY: this rig owns the files of its simulation; it changes a file only through its
        // mapping, and by giving back space that the heap does not use.
        let medium = unsafe { OwnedMedium::new(medium) };
        let is_new = !medium.exists(CATALOG).map_err(text)?;
        if is_new {
            medium.make_dir("puddles").map_err(text)?;
            medium.create(CATALOG, CATALOG_LEN).map_err(text)?;
            for (index, &size) in (0..).zip(sizes) {
                medium.create(&name(index), size).map_err(text)?;
            }
        }
        medium.reserve_window(base, window_len(sizes.len() as u64)).map_err(text)?;
        let catalog = base + sizes.len() as u64 * SLOT;
        // SAFETY: the window was reserved by the line above, and nothing is mapped there.
        unsafe {
            for (index, &size) in (0..).zip(sizes) {
                let at = base + index * SLOT;
                medium.map(&name(index), at, size, MapMode::ReadWrite).map_err(text)?;
            }
            medium.map(CATALOG, catalog, CATALOG_LEN, MapMode::ReadWrite).map_err(text)?;
        }
        let persistence = medium.persistence(sim.options().durability);
        let slots = sizes.iter().map(|_| AtomicPtr::new(null_mut())).collect();
        let backing = Self { medium, persistence, base, sizes, slots };
        if is_new {
            backing.word().store(taken, Ordering::Relaxed);
        }
        Ok(backing)
    }

    /// Number of puddles that are taken.
    fn word(&self) -> &AtomicU64 {
        let at = self.base + self.sizes.len() as u64 * SLOT;
        // SAFETY: the first word of the catalog, which is mapped as long as this lives and accessed
        // here alone.
        unsafe { &*with_exposed_provenance::<AtomicU64>(at as usize) }
    }

    /// Bit for each puddle that is for metadata alone.
    fn roles(&self) -> &AtomicU64 {
        let at = self.base + self.sizes.len() as u64 * SLOT + 8;
        // SAFETY: as `word`, of the second word.
        unsafe { &*with_exposed_provenance::<AtomicU64>(at as usize) }
    }

    /// Durable before the number of puddles is.
    fn set_role(&self, index: u64, metadata: bool) {
        let before = self.roles().load(Ordering::Relaxed);
        let after = before & !(1 << index) | u64::from(metadata) << index;
        if after != before {
            self.roles().store(after, Ordering::Release);
            // SAFETY: a word of the mapped catalog.
            unsafe { self.flush(core::ptr::from_ref(self.roles()).cast(), 8) };
            self.fence();
        }
    }

    fn take_for(&self, size: u64, metadata: bool) -> Result<Extent, BackingError> {
        let taken = self.word().load(Ordering::Relaxed);
        let bytes = self.sizes.iter().take(taken as usize).sum();
        let limit = BackingError::Limit { requested: size, bytes, size_max: self.size_max() };
        let next = self.sizes.get(taken as usize).copied();
        let next = next.filter(|&next| next >= size).ok_or(limit)?;
        self.set_role(taken, metadata);
        self.word().store(taken + 1, Ordering::Release);
        let at = core::ptr::from_ref(self.word()).cast();
        // SAFETY: a word of the mapped catalog.
        unsafe { self.flush(at, 8) };
        self.fence();
        Ok(Extent { index: taken as u32, addr: self.base + taken * SLOT, size: next })
    }

    pub(super) fn sync(&self) -> Result<(), String> {
        let puddles = (0..self.sizes.len() as u64).map(name);
        for file in puddles.chain([CATALOG.to_owned()]) {
            self.medium.sync(&file).map_err(text)?;
        }
        self.medium.sync_dir("puddles").map_err(text)?;
        self.medium.sync_dir("").map_err(text)
    }

    fn file(&self, addr: u64) -> (String, u64) {
        let offset = addr - self.base;
        (name(offset / SLOT), offset % SLOT)
    }
}

// SAFETY: all files are mapped as long as the simulation lives, of which this has a reference; a
// puddle is one heap's.
unsafe impl Backing for SimBacking {
    fn extents(&self) -> Vec<Extent> {
        let taken = self.word().load(Ordering::Relaxed) as usize;
        (0u32..)
            .zip(self.sizes)
            .take(taken)
            .map(|(index, &size)| {
                let addr = self.base + u64::from(index) * SLOT;
                Extent { index, addr, size }
            })
            .collect()
    }

    fn map(&self, _: &Extent) -> Result<(), BackingError> {
        Ok(())
    }

    fn take(&self, size: u64) -> Result<Extent, BackingError> {
        self.take_for(size, false)
    }

    fn take_for_metadata(&self, size: u64) -> Result<Extent, BackingError> {
        self.take_for(size, true)
    }

    fn is_for_metadata(&self, extent: &Extent) -> Option<bool> {
        Some(self.roles().load(Ordering::Relaxed) & 1 << extent.index != 0)
    }

    fn slot(&self, addr: u64) -> Option<&AtomicPtr<()>> {
        let index = addr.checked_sub(self.base)? / SLOT;
        self.slots.get(usize::try_from(index).ok()?)
    }

    fn is_foreign(&self, _: u64) -> bool {
        false
    }

    fn is_writable(&self) -> bool {
        true
    }

    fn puddle_size(&self) -> u64 {
        self.sizes.last().copied().unwrap_or_default()
    }

    fn size_max(&self) -> u64 {
        self.sizes.iter().sum()
    }

    unsafe fn release(&self, addr: u64, len: u64) -> Result<bool, BackingError> {
        let (file, offset) = self.file(addr);
        // SAFETY: the caller's promise that nothing uses the range.
        unsafe { self.medium.release(&file, offset, len) }.map_err(failed("giving back space"))
    }

    fn ensure(&self, addr: u64, len: u64) -> Result<(), BackingError> {
        let (file, offset) = self.file(addr);
        self.medium.ensure(&file, offset, len).map_err(failed("taking space"))?;
        self.medium.sync(&file).map_err(failed("taking space"))
    }

    fn is_power(&self) -> bool {
        self.persistence.is_power()
    }

    unsafe fn flush(&self, start: *const u8, len: usize) {
        // SAFETY: the caller's promise that the range is mapped.
        unsafe { self.persistence.flush(start, len) }
    }

    fn fence(&self) {
        self.persistence.fence();
    }
}
