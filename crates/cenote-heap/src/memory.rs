//! A backing of plain memory: for tests of code that uses a heap, and for measurements without
//! files.
//!
//! One contiguous window of zeroed memory, puddles in 2 MiB slots of it, a table from slot to
//! puddle: the lookups cost what a store's cost.

use crate::backing::{Backing, Extent};
use crate::error::BackingError;
use cenote_layout::id::PoolId;
use cenote_layout::pointer::RegionAddress;
use cenote_layout::{PAGE_SIZE, SLOT_SIZE};
use core::ptr::{null_mut, with_exposed_provenance_mut};
use core::sync::atomic::{AtomicBool, AtomicPtr, AtomicU64, Ordering};
use std::alloc::{Layout, alloc_zeroed, dealloc, handle_alloc_error};
use std::collections::BTreeSet;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

/// What a [`MemoryBacking`] is like.
#[derive(Clone, Copy, Debug)]
pub struct MemoryOptions {
    /// Bytes of the first puddle.
    pub puddle_size: u64,
    /// Most bytes of all puddles.
    pub size_max: u64,
    /// Whether stores may be made.
    pub writable: bool,
}

impl Default for MemoryOptions {
    fn default() -> Self {
        Self { puddle_size: 2 << 20, size_max: 256 << 20, writable: true }
    }
}

/// The number of the pool.
const POOL: PoolId = PoolId(1);

/// How often durability was asked for.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct DurabilityCounts {
    /// Lines flushed.
    pub flushed_lines: u64,
    /// Calls of flush.
    pub flushes: u64,
    /// Fences.
    pub fences: u64,
    /// Puddles taken.
    pub puddles: u64,
}

#[derive(Debug)]
struct MemoryWindow {
    raw: *mut u8,
    layout: Layout,
    base: u64,
    slots: Box<[WindowSlot]>,
    extents: Mutex<Vec<Extent>>,
    options: MemoryOptions,
    /// Numbers of those that are for metadata alone.
    metadata: Mutex<BTreeSet<u32>>,
    refuse: AtomicBool,
    /// Pages that were given back.
    holes: Mutex<BTreeSet<u64>>,
    counts: [AtomicU64; 4],
}

#[derive(Debug)]
struct WindowSlot {
    /// Start of the puddle that covers this slot, or 0.
    puddle: AtomicU64,
    /// Whether that puddle is another pool's.
    foreign: AtomicBool,
    heap: AtomicPtr<()>,
}

// SAFETY: the raw memory is owned; it is freed when the last clone goes, and used through
// `Backing`'s contract otherwise.
unsafe impl Send for MemoryWindow {}
// SAFETY: everything else in it is atomic or behind a lock.
unsafe impl Sync for MemoryWindow {}

impl Drop for MemoryWindow {
    fn drop(&mut self) {
        // SAFETY: allocated with this layout by `new`.
        unsafe { dealloc(self.raw, self.layout) }
    }
}

/// Plain memory as the backing of a heap. A clone is the same memory. A heap that is opened on a
/// clone, after the first heap was dropped, sees the state that the next process sees after a crash
/// of the first.
#[derive(Clone, Debug)]
pub struct MemoryBacking {
    window: Arc<MemoryWindow>,
    writable: bool,
    power: bool,
}

impl MemoryBacking {
    /// An empty pool with its first puddle. Memory is taken from the system as it is touched.
    #[must_use]
    pub fn new(options: MemoryOptions) -> Self {
        // Room for gaps: every puddle begins at a slot, and one slot is kept for a foreign puddle.
        let len = 2 * options.size_max.next_multiple_of(SLOT_SIZE) + 64 * SLOT_SIZE;
        let Ok(layout) = Layout::from_size_align((len + SLOT_SIZE) as usize, 16) else {
            panic!("a window of {len} bytes is too large to test with")
        };
        // SAFETY: the layout is not empty.
        let raw = unsafe { alloc_zeroed(layout) };
        if raw.is_null() {
            handle_alloc_error(layout);
        }
        let base = (raw.expose_provenance() as u64).next_multiple_of(SLOT_SIZE);
        let slot = |_| WindowSlot {
            puddle: AtomicU64::new(0),
            foreign: AtomicBool::new(false),
            heap: AtomicPtr::new(null_mut()),
        };
        let window = MemoryWindow {
            raw,
            layout,
            base,
            slots: (0..len / SLOT_SIZE).map(slot).collect(),
            extents: Mutex::new(Vec::new()),
            options,
            metadata: Mutex::default(),
            refuse: AtomicBool::new(false),
            holes: Mutex::default(),
            counts: [const { AtomicU64::new(0) }; 4],
        };
        let backing = Self { window: Arc::new(window), writable: options.writable, power: true };
        // A first puddle beyond the limit is a backing without puddles: the heap says so at open.
        let _ = backing.take(options.puddle_size);
        backing
    }

    /// What was asked for so far.
    #[must_use]
    pub fn counts(&self) -> DurabilityCounts {
        let count = |i: usize| self.window.counts[i].load(Ordering::Relaxed);
        DurabilityCounts {
            flushed_lines: count(0),
            flushes: count(1),
            fences: count(2),
            puddles: count(3),
        }
    }

    /// The same memory, as a pool that is open for reading only.
    #[must_use]
    pub fn read_only(&self) -> Self {
        Self { window: Arc::clone(&self.window), writable: false, power: self.power }
    }

    /// The same memory, as a pool at level `process`: its flushes and fences are counted all the
    /// same.
    #[must_use]
    pub fn at_process(&self) -> Self {
        Self { window: Arc::clone(&self.window), writable: self.writable, power: false }
    }

    /// Bytes that were given back and not taken again.
    #[must_use]
    pub fn hole_bytes(&self) -> u64 {
        self.holes().len() as u64 * PAGE_SIZE
    }

    /// Whether a part of a range was given back and not taken again.
    #[must_use]
    pub fn is_hole(&self, addr: u64, len: u64) -> bool {
        let first = addr / PAGE_SIZE * PAGE_SIZE;
        self.holes().range(first..addr + len).next().is_some()
    }

    fn holes(&self) -> MutexGuard<'_, BTreeSet<u64>> {
        self.window.holes.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn metadata(&self) -> MutexGuard<'_, BTreeSet<u32>> {
        self.window.metadata.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// From now on, `take` and `ensure` fail as on a full disk, or do not.
    pub fn refuse_growth(&self, refuse: bool) {
        self.window.refuse.store(refuse, Ordering::Relaxed);
    }

    /// Address of a 2 MiB puddle of another pool.
    #[must_use]
    pub fn foreign_puddle(&self) -> u64 {
        let last = self.window.slots.len() - 1;
        let addr = self.window.base + last as u64 * SLOT_SIZE;
        self.window.slots[last].puddle.store(addr, Ordering::Relaxed);
        self.window.slots[last].foreign.store(true, Ordering::Relaxed);
        addr
    }

    #[inline]
    fn lookup(&self, addr: u64) -> Option<&WindowSlot> {
        let slot =
            self.window.slots.get((addr.wrapping_sub(self.window.base) / SLOT_SIZE) as usize)?;
        let puddle = slot.puddle.load(Ordering::Acquire);
        if puddle == 0 {
            return None;
        }
        // The puddle's own data hang on its first slot, as they hang on one `Puddle` in a store.
        self.window.slots.get(((puddle - self.window.base) / SLOT_SIZE) as usize)
    }
}

// SAFETY: the window is one allocation that lives as long as any clone; puddles are disjoint parts
// of it; `slot` answers from the table.
unsafe impl Backing for MemoryBacking {
    fn extents(&self) -> Vec<Extent> {
        self.window.extents.lock().unwrap_or_else(PoisonError::into_inner).clone()
    }

    fn map(&self, _extent: &Extent) -> Result<(), BackingError> {
        Ok(())
    }

    fn take(&self, size: u64) -> Result<Extent, BackingError> {
        let mut extents = self.window.extents.lock().unwrap_or_else(PoisonError::into_inner);
        let bytes: u64 = extents.iter().map(|p| p.size).sum();
        let size_max = self.window.options.size_max;
        if bytes.checked_add(size).is_none_or(|sum| sum > size_max) {
            return Err(BackingError::Limit { requested: size, bytes, size_max });
        }
        if self.window.refuse.load(Ordering::Relaxed) {
            return Err(BackingError::Store {
                doing: "growing the pool",
                source: "no space left on device".into(),
            });
        }
        let addr = extents
            .last()
            .map_or(self.window.base, |p| (p.addr + p.size).next_multiple_of(SLOT_SIZE));
        let first = (addr - self.window.base) / SLOT_SIZE;
        let last = first + size.div_ceil(SLOT_SIZE);
        let Some(slots) = self.window.slots.get(first as usize..last as usize) else {
            return Err(BackingError::Limit { requested: size, bytes, size_max });
        };
        let extent = Extent { index: extents.len() as u32, addr, size };
        extents.push(extent);
        for slot in slots {
            slot.puddle.store(addr, Ordering::Release);
        }
        self.window.counts[3].fetch_add(1, Ordering::Relaxed);
        Ok(extent)
    }

    fn take_for_metadata(&self, size: u64) -> Result<Extent, BackingError> {
        let extent = self.take(size)?;
        self.metadata().insert(extent.index);
        Ok(extent)
    }

    fn is_for_metadata(&self, extent: &Extent) -> Option<bool> {
        Some(self.metadata().contains(&extent.index))
    }

    unsafe fn release(&self, addr: u64, len: u64) -> Result<bool, BackingError> {
        let start = with_exposed_provenance_mut::<u8>(addr as usize);
        // SAFETY: a part of the window that no thread uses, by the caller's promise.
        unsafe { start.write_bytes(0, len as usize) };
        self.holes().extend((addr..addr + len).step_by(PAGE_SIZE as usize));
        Ok(true)
    }

    fn ensure(&self, addr: u64, len: u64) -> Result<(), BackingError> {
        let mut holes = self.holes();
        let missing: Vec<u64> = holes.range(addr..addr + len).copied().collect();
        if !missing.is_empty() && self.window.refuse.load(Ordering::Relaxed) {
            return Err(BackingError::Store {
                doing: "taking space",
                source: "no space left on device".into(),
            });
        }
        missing.iter().for_each(|page| {
            holes.remove(page);
        });
        Ok(())
    }

    #[inline]
    fn slot(&self, addr: u64) -> Option<&AtomicPtr<()>> {
        let slot = self.lookup(addr)?;
        (!slot.foreign.load(Ordering::Relaxed)).then_some(&slot.heap)
    }

    fn is_foreign(&self, addr: u64) -> bool {
        self.lookup(addr).is_some_and(|slot| slot.foreign.load(Ordering::Relaxed))
    }

    fn region(&self, region: &RegionAddress) -> Option<u64> {
        let extent = *self.extents().get(region.puddle as usize)?;
        (region.pool == POOL && region.offset < extent.size).then(|| extent.addr + region.offset)
    }

    fn place(&self, addr: u64) -> Option<RegionAddress> {
        let holds = |extent: &Extent| addr.wrapping_sub(extent.addr) < extent.size;
        let Extent { index: puddle, addr: start, .. } = self.extents().into_iter().find(holds)?;
        Some(RegionAddress { pool: POOL, puddle, offset: addr - start })
    }

    fn is_writable(&self) -> bool {
        self.writable
    }

    fn puddle_size(&self) -> u64 {
        self.window.options.puddle_size
    }

    fn size_max(&self) -> u64 {
        self.window.options.size_max
    }

    fn is_power(&self) -> bool {
        self.power
    }

    unsafe fn flush(&self, start: *const u8, len: usize) {
        let first = start.addr() / 64;
        let lines = (start.addr() + len).div_ceil(64) - first;
        self.window.counts[0].fetch_add(lines as u64, Ordering::Relaxed);
        self.window.counts[1].fetch_add(1, Ordering::Relaxed);
    }

    fn fence(&self) {
        self.window.counts[2].fetch_add(1, Ordering::Relaxed);
    }
}
