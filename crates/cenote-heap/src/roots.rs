//! The 1,024 numbered roots of a pool (RAL-6): 16 bytes each in the root puddle.
//!
//! A root is two words, type and address. Outside a transaction the address decides: it is cleared, then the type is written, then the address, each step
//! durable before the next. At every moment the root is the old one, none, or the new one.

use crate::error::RootError;
use crate::ground::Ground;
use crate::superblock::PuddleHeap;
use crate::traced::TracedHeap;
use cenote_layout::heap::RootEntry;
use cenote_layout::id::TypeId;
use core::ptr::NonNull;
use core::sync::atomic::{AtomicU64, Ordering};

impl<G: Ground> TracedHeap<G> {
    /// The root puddle. It is attached by `open`.
    pub(crate) fn root_puddle(&self) -> Option<&PuddleHeap> {
        self.puddles.get(0)
    }

    pub(crate) fn slot_of_root(&self, index: u16) -> Result<NonNull<RootEntry>, RootError> {
        self.root_puddle().and_then(|puddle| puddle.root(index)).ok_or(RootError::Index { index })
    }

    pub(crate) fn read_root(&self, index: u16) -> Result<RootEntry, RootError> {
        self.slot_of_root(index).map(load)
    }

    pub(crate) fn write_root(&self, index: u16, addr: u64, type_id: TypeId) -> Result<(), RootError> {
        if !self.writable {
            return Err(RootError::ReadOnly);
        }
        let words = self.root_words(index)?;
        for (word, value) in [(0, 0), (1, type_id.0), (0, addr)] {
            words[word].store(value, Ordering::Release);
            // SAFETY: the word lies in the root puddle's mapping.
            unsafe { self.ground.flush(words[word].as_ptr().cast(), 8) };
            self.ground.fence();
        }
        Ok(())
    }

    fn root_words(&self, index: u16) -> Result<&[AtomicU64; 2], RootError> {
        let slot = self.slot_of_root(index)?;
        // SAFETY: the slot lies in the root puddle's mapping, which lives as long as the ground; it is aligned to 16, has 16 bytes, and is
        // accessed atomically here.
        Ok(unsafe { slot.cast::<[AtomicU64; 2]>().as_ref() })
    }
}

/// What a root's slot holds; the slot is one that `PuddleHeap::root` gave.
pub(crate) fn load(slot: NonNull<RootEntry>) -> RootEntry {
    // SAFETY: as in `root_words`.
    let words = unsafe { slot.cast::<[AtomicU64; 2]>().as_ref() };
    let addr = words[0].load(Ordering::Acquire);
    RootEntry { addr, type_id: TypeId(words[1].load(Ordering::Relaxed)) }
}
