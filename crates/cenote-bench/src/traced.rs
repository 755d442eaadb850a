//! Cenote's traced heap as an allocator to measure: the pool of a store on real files, through the
//! calls that transactions use, without transactions.

use crate::allocator::{Allocator, refused};
use crate::case::{Failure, POWER, PROCESS};
use crate::place::{self, Settings};
use cenote::{Durability, PoolOptions, TypeId};
use cenote_heap::{Taking, TracedHeap};
use std::path::Path;
use std::sync::Arc;

/// The heap of a pool in a temporary store.
#[derive(Debug)]
pub struct Traced {
    /// The heap; closed before the store, which its handle of the pool keeps open.
    pub heap: TracedHeap,
    /// `process` or `power`.
    pub level: &'static str,
    directory: tempfile::TempDir,
}

impl Traced {
    /// Makes a store at this level, with one pool, and opens its heap.
    ///
    /// # Errors
    /// What keeps it from being opened.
    pub fn open(settings: &Settings, durability: Durability) -> Result<Arc<Self>, Failure> {
        Self::open_with(settings, durability, &PoolOptions::default())
    }

    /// The same, with a pool that is made so.
    ///
    /// # Errors
    /// As [`Traced::open`].
    pub fn open_with(
        settings: &Settings,
        durability: Durability,
        pool: &PoolOptions,
    ) -> Result<Arc<Self>, Failure> {
        let directory = settings.temporary()?;
        let backing = place::new_backing(directory.path(), durability, pool, place::window_len())?;
        let heap = TracedHeap::open(backing)?;
        let level = match durability {
            Durability::Process => PROCESS,
            Durability::Power => POWER,
        };
        Ok(Arc::new(Self { heap, level, directory }))
    }

    /// Where the store is.
    #[must_use]
    pub fn path(&self) -> &Path {
        self.directory.path()
    }
}

// SAFETY: a block of the heap is at least `size` bytes of the pool's mapping, at a multiple of 16,
// which stays as long as the heap.
unsafe impl Allocator for Traced {
    #[inline(always)]
    fn alloc(&self, size: usize) -> *mut u8 {
        match self.heap.alloc_inline(size as u64, 16, TypeId::UNTYPED, |_| Ok(Taking::Allocated)) {
            Ok(block) => block.addr.as_ptr(),
            Err(error) => refused(error),
        }
    }

    #[inline(always)]
    unsafe fn free(&self, block: *mut u8) -> bool {
        self.heap.free_inline(block.expose_provenance() as u64).is_ok()
    }
}
