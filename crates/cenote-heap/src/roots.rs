//! The 1,024 numbered roots of a pool (RAL-6), of every kind of heap: 16 bytes each in the root
//! puddle.
//!
//! A root is two words, the address with a check over both, and the type ([`cenote_layout::root`]).
//! Outside a transaction the first word decides: it is cleared, then the type is written, then the
//! address with its check, each step durable before the next. At every moment the root is the old
//! one, none, or the new one.
//!
//! A root whose check does not fit is damaged: reading it is an error, and what it led to is not
//! known.

use crate::backing::Backing;
use crate::error::RootError;
use crate::stored::stored;
use cenote_layout::heap::{RootEntry, RootSlot};
use cenote_layout::id::TypeId;
use cenote_medium::planted::{Bug, planted};
use core::ptr::NonNull;
use core::sync::atomic::{AtomicU64, Ordering};

/// The words of a root's slot, which is one that a heap's root puddle has.
fn words<'h>(slot: NonNull<RootSlot>) -> &'h [AtomicU64; 2] {
    // SAFETY: the slot lies in the root puddle's mapping, which lives as long as the heap, whose
    // calls alone come here; it is aligned to 16, has 16 bytes, and is accessed atomically.
    unsafe { slot.cast::<[AtomicU64; 2]>().as_ref() }
}

/// What a root's slot holds; `None`: it is damaged.
pub(crate) fn load(slot: NonNull<RootSlot>) -> Option<RootEntry> {
    let words = words(slot);
    let word = words[0].load(Ordering::Acquire);
    let slot = RootSlot { word, type_id: TypeId(words[1].load(Ordering::Relaxed)) };
    if planted(Bug::RootCheckSkipped) {
        return Some(RootEntry { addr: word & 0xffff_ffff_ffff, type_id: slot.type_id });
    }
    slot.read()
}

/// What root `index` holds, whose slot that is.
pub(crate) fn read(index: u16, slot: NonNull<RootSlot>) -> Result<RootEntry, RootError> {
    load(slot).ok_or(RootError::Damaged { index, addr: slot.as_ptr().addr() as u64 })
}

/// [`write_at`], where slots are stored at their own addresses.
pub(crate) fn write<G: Backing>(
    index: u16,
    slot: NonNull<RootSlot>,
    entry: RootEntry,
    backing: &G,
) -> Result<(), RootError> {
    write_at(index, (slot, 0), entry, backing)
}

/// Sets root `index`, whose slot that is, and is stored at that distance. Durable on return.
pub(crate) fn write_at<G: Backing>(
    index: u16,
    (slot, distance): (NonNull<RootSlot>, usize),
    entry: RootEntry,
    backing: &G,
) -> Result<(), RootError> {
    let words = words(slot);
    let made = RootSlot::new(entry).ok_or(RootError::Address { index, addr: entry.addr })?;
    for (word, value) in [(0, 0), (1, entry.type_id.0), (0, made.word)] {
        let to = stored(words[word].as_ptr().cast_const(), distance).cast_mut();
        // SAFETY: the word where the heap has it stored.
        unsafe { AtomicU64::from_ptr(to) }.store(value, Ordering::Release);
        // SAFETY: the word lies in the root puddle's mapping.
        unsafe { backing.flush(words[word].as_ptr().cast(), 8) };
        backing.fence();
    }
    Ok(())
}
