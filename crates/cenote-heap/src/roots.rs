//! The 1,024 numbered roots of a pool (RAL-6), of every kind of heap: 16 bytes each in the root
//! puddle.
//!
//! A root is two words, the address with a check over both, and the type ([`cenote_layout::root`]).
//! Outside a transaction the first word decides: it is cleared, then the type is written, then the
//! address with its check, each step durable before the next. At every moment the root is the old
//! one, none, or the new one.
//!
//! **Guarded roots** are read-only at their own addresses, and stored through a second mapping
//! ([`RootWay`]). Where a pool's stores are noted for psyncs, each page with roots is noted after
//! the last store of an operation there, as [`StoreNotes`] asks for.
//!
//! A root whose check does not fit is damaged: reading it is an error, and what it led to is not
//! known.

use crate::backing::Backing;
use crate::error::RootError;
use crate::stored::stored;
use cenote_layout::PAGE_SIZE;
use cenote_layout::heap::{RootEntry, RootSlot};
use cenote_layout::id::TypeId;
use cenote_medium::planted::{Bug, LoggedBug, planted};
use cenote_protect::StoreNotes;
use core::ptr::NonNull;
use core::sync::atomic::{AtomicU64, Ordering};

/// How the roots of a heap are stored, which are read at their own addresses.
#[derive(Clone, Debug, Default)]
pub struct RootWay {
    /// What is to be added to an address there, wrapping around, for a store. If it is not 0, the
    /// roots are read-only at their own addresses.
    pub distance: usize,
    /// What is told of stores at that distance, for psyncs.
    pub notes: Option<StoreNotes>,
}

impl RootWay {
    /// Bytes of roots were stored at the distance: notes their pages. To be called after the last
    /// store there, and before the operation or the transaction ends.
    #[inline]
    pub fn note_stored(&self, addr: usize, len: usize) {
        let Some(notes) = &self.notes else { return };
        if len != 0 && !planted(Bug::Logged(LoggedBug::RootNotNoted)) {
            let page = |addr: usize| addr / PAGE_SIZE as usize;
            let pages = page(addr)..=page(addr + len - 1);
            pages.for_each(|page| notes.note_stored(page * PAGE_SIZE as usize));
        }
    }
}

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

/// Sets root `index`, whose slot that is, and is stored that way. Durable on return.
pub(crate) fn write<G: Backing>(
    index: u16,
    (slot, way): (NonNull<RootSlot>, &RootWay),
    entry: RootEntry,
    backing: &G,
) -> Result<(), RootError> {
    let words = words(slot);
    if way.notes.is_some() {
        // A page of sealed memory is filled when it is touched where it is mapped.
        core::hint::black_box(words[0].load(Ordering::Relaxed));
    }
    let made = RootSlot::new(entry).ok_or(RootError::Address { index, addr: entry.addr })?;
    for (word, value) in [(0, 0), (1, entry.type_id.0), (0, made.word)] {
        let to = stored(words[word].as_ptr().cast_const(), way.distance).cast_mut();
        // SAFETY: the word where the heap has it stored.
        unsafe { AtomicU64::from_ptr(to) }.store(value, Ordering::Release);
        // SAFETY: the word lies in the root puddle's mapping.
        unsafe { backing.flush(words[word].as_ptr().cast(), 8) };
        backing.fence();
    }
    way.note_stored(slot.as_ptr().addr(), size_of::<RootSlot>());
    Ok(())
}
