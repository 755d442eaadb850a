//! The 1,024 numbered roots of a pool (RAL-6): 16 bytes each in the root puddle.
//!
//! A root is two words, the address with a check over both, and the type ([`cenote_layout::root`]).
//! Outside a transaction the first word decides: it is cleared, then the type is written, then the
//! address with its check, each step durable before the next. At every moment the root is the old
//! one, none, or the new one.
//!
//! A root whose check does not fit is damaged: reading it is an error, and what it led to is not
//! known.

use super::state::TracedHeap;
use super::superblock::PuddleHeap;
use super::trace::Root;
use crate::backing::Backing;
use crate::error::RootError;
use cenote_layout::heap::{ROOT_COUNT, RootEntry, RootSlot};
use cenote_layout::id::TypeId;
use cenote_medium::planted::{Bug, planted};
use core::ptr::NonNull;
use core::sync::atomic::{AtomicU64, Ordering};

impl<G: Backing> TracedHeap<G> {
    /// The root puddle. It is attached by `open`.
    pub(crate) fn root_puddle(&self) -> Option<&PuddleHeap> {
        self.puddles.get(0)
    }

    pub(crate) fn slot_of_root(&self, index: u16) -> Result<NonNull<RootSlot>, RootError> {
        self.root_puddle().and_then(|puddle| puddle.root(index)).ok_or(RootError::Index { index })
    }

    pub(crate) fn read_root(&self, index: u16) -> Result<RootEntry, RootError> {
        let slot = self.slot_of_root(index)?;
        load(slot).ok_or(RootError::Damaged { index, addr: slot.as_ptr().addr() as u64 })
    }

    pub(crate) fn write_root(
        &self,
        index: u16,
        addr: u64,
        type_id: TypeId,
    ) -> Result<(), RootError> {
        if !self.writable {
            return Err(RootError::ReadOnly);
        }
        let words = self.root_words(index)?;
        let slot =
            RootSlot::new(RootEntry { addr, type_id }).ok_or(RootError::Address { index, addr })?;
        for (word, value) in [(0, 0), (1, type_id.0), (0, slot.word)] {
            words[word].store(value, Ordering::Release);
            // SAFETY: the word lies in the root puddle's mapping.
            unsafe { self.backing.flush(words[word].as_ptr().cast(), 8) };
            self.backing.fence();
        }
        Ok(())
    }

    fn root_words(&self, index: u16) -> Result<&[AtomicU64; 2], RootError> {
        let slot = self.slot_of_root(index)?;
        // SAFETY: the slot lies in the root puddle's mapping, which lives as long as the backing;
        // it is aligned to 16, has 16 bytes, and is accessed atomically here.
        Ok(unsafe { slot.cast::<[AtomicU64; 2]>().as_ref() })
    }
}

/// The numbered roots that lead somewhere, and the numbers of those that are damaged.
pub(crate) fn all(puddle: Option<&PuddleHeap>) -> (Vec<Root>, Vec<u16>) {
    let (mut roots, mut damaged) = (Vec::new(), Vec::new());
    let Some(puddle) = puddle else { return (roots, damaged) };
    for index in 0..ROOT_COUNT as u16 {
        let Some(slot) = puddle.root(index) else { continue };
        match load(slot) {
            Some(RootEntry { addr: 0, .. }) => {}
            Some(RootEntry { addr, type_id }) => {
                roots.push(Root {
                    at: slot.as_ptr().expose_provenance() as u64,
                    to: addr,
                    target: type_id,
                });
            }
            None => damaged.push(index),
        }
    }
    (roots, damaged)
}

/// What a root's slot holds; `None`: it is damaged. The slot is one that `PuddleHeap::root` gave.
fn load(slot: NonNull<RootSlot>) -> Option<RootEntry> {
    // SAFETY: a slot of the root puddle, in its mapping, aligned to 16, accessed atomically here.
    let words = unsafe { slot.cast::<[AtomicU64; 2]>().as_ref() };
    let word = words[0].load(Ordering::Acquire);
    let slot = RootSlot { word, type_id: TypeId(words[1].load(Ordering::Relaxed)) };
    if planted(Bug::RootCheckSkipped) {
        return Some(RootEntry { addr: word & 0xffff_ffff_ffff, type_id: slot.type_id });
    }
    slot.read()
}
