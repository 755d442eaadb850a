//! Cenote's logged heap as an allocator to measure: over the pool of a store on real files, each
//! call an operation of its own, durable on return.

use crate::allocator::{Allocator, refused};
use crate::case::Failure;
use crate::place::{self, Settings};
use cenote::{Durability, PoolOptions, TypeId};
use cenote_heap::PoolBacking;
use cenote_heap::logged::{LoggedHeap, LoggedOptions};
use cenote_layout::catalog::HeapKind;
use std::ptr::with_exposed_provenance_mut;
use std::sync::Arc;
use tempfile::TempDir;

/// The logged heap of a pool in a temporary store.
#[derive(Debug)]
pub struct Logged {
    /// The heap; closed before the store, which its handle of the pool keeps open.
    pub heap: LoggedHeap<PoolBacking>,
    _directory: TempDir,
}

impl Logged {
    /// Makes a store at this level, with one pool, and a heap in it.
    ///
    /// # Errors
    /// What keeps it from being opened.
    pub fn open(
        settings: &Settings,
        durability: Durability,
        options: &LoggedOptions,
    ) -> Result<Arc<Self>, Failure> {
        Self::open_with(settings, durability, (options, PoolOptions::default().size_max))
    }

    /// The same, with a pool of so many bytes at most.
    ///
    /// # Errors
    /// As [`Logged::open`].
    pub fn open_with(
        settings: &Settings,
        durability: Durability,
        (options, size_max): (&LoggedOptions, u64),
    ) -> Result<Arc<Self>, Failure> {
        let directory = settings.temporary()?;
        let pool = PoolOptions { heap: HeapKind::Logged, size_max, ..PoolOptions::default() };
        let backing = place::new_backing(directory.path(), durability, &pool, place::window_len())?;
        let heap = LoggedHeap::create(backing, options)?;
        Ok(Arc::new(Self { heap, _directory: directory }))
    }
}

// SAFETY: a block of the heap is at least `size` bytes of the pool's mapping, at a multiple of 16,
// which stays as long as the heap.
unsafe impl Allocator for Logged {
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
