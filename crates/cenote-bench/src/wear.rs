//! Cenote's wear heap as an allocator to measure: over the pool of a store on real files, each call
//! an operation of its own, durable on return.

use crate::allocator::{Allocator, refused};
use crate::case::Failure;
use crate::place::{self, Settings};
use cenote::{Durability, PoolOptions, TypeId};
use cenote_heap::wear::{WearClock, WearHeap, WearOptions};
use cenote_heap::{Backing as _, Extent, PoolBacking};
use cenote_layout::catalog::HeapKind;
use std::ptr::with_exposed_provenance_mut;
use std::sync::Arc;
use tempfile::TempDir;

/// The wear heap of a pool in a temporary store.
#[derive(Debug)]
pub struct Wear {
    /// The heap; closed before the store, which its handle of the pool keeps open.
    pub heap: WearHeap<PoolBacking>,
    /// The puddle that the pool began with.
    pub first: Extent,
    _directory: TempDir,
}

impl Wear {
    /// Makes a store at this level, with one pool, and a heap in it whose freed blocks wait for so
    /// many milliseconds.
    ///
    /// # Errors
    /// What keeps it from being opened.
    pub fn open(
        settings: &Settings,
        durability: Durability,
        wait_ms: u32,
    ) -> Result<Arc<Self>, Failure> {
        let options = (wait_ms, PoolOptions::default().puddle_size);
        Self::open_by(settings, durability, options, WearClock::default())
    }

    /// The same, whose pool begins with a puddle of so many bytes, with a clock.
    ///
    /// # Errors
    /// As [`Wear::open`].
    pub fn open_by(
        settings: &Settings,
        durability: Durability,
        (wait_ms, puddle_size): (u32, u64),
        clock: WearClock,
    ) -> Result<Arc<Self>, Failure> {
        let directory = settings.temporary()?;
        let heap = HeapKind::Wear { wait_ms };
        let pool = PoolOptions { heap, puddle_size, ..PoolOptions::default() };
        let backing = place::new_backing(directory.path(), durability, &pool, place::window_len())?;
        let first = *backing.extents().first().ok_or("a pool without a puddle")?;
        let options = WearOptions { wait_ms, clock, ..WearOptions::default() };
        let heap = WearHeap::create(backing, &options)?;
        Ok(Arc::new(Self { heap, first, _directory: directory }))
    }
}

// SAFETY: a block of the heap is at least `size` bytes of the pool's mapping, at a multiple of 64,
// which stays as long as the heap.
unsafe impl Allocator for Wear {
    #[inline(always)]
    fn alloc(&self, size: usize) -> *mut u8 {
        match self.heap.alloc(size as u64, 16, TypeId::UNTYPED) {
            Ok(block) => with_exposed_provenance_mut(block.addr as usize),
            Err(error) => refused(error),
        }
    }

    #[inline(always)]
    unsafe fn free(&self, block: *mut u8) -> bool {
        self.heap.free(block.expose_provenance() as u64).is_ok()
    }
}
