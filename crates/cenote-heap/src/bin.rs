//! A bin: all superblocks with blocks of one class for one type.
//!
//! Blocks come from the *current* superblock until it is full; then the next one of the list of superblocks with free blocks becomes
//! current. A full superblock is in no list; its first free puts it back. The cursor is the word of the current superblock's bitmap that is looked at first; it
//! follows the last free, so that memory that was just used is used again. A superblock that becomes empty is given back at once, unless it is the
//! current one: that one waits until space is short.
//!
//! A block can be *held*: its mark is cleared, and it is not given out before it is released. A transaction frees that way, so that its log, while
//! it still says "clear this mark", never means the next owner's. Held blocks are rare and short-lived; they have a bitmap of their own in memory.

use crate::class::{blocks_per_superblock, class_size};
use crate::lock::{Guard, SpinLock};
use crate::superblock::{Entry, PLACE_CURRENT, PLACE_LISTED, PLACE_NONE};
use cenote_layout::id::TypeId;
use core::ptr::{NonNull, null_mut};
use core::sync::atomic::{AtomicU64, Ordering};

#[derive(Debug)]
pub(crate) struct Bin {
    pub(crate) type_id: TypeId,
    pub(crate) class: u8,
    /// Bytes of a block.
    pub(crate) block_size: u32,
    /// Blocks of a superblock.
    pub(crate) blocks: u32,
    state: SpinLock<State>,
}

/// What the bin's lock covers, with `used`, `place` and the links of its entries.
#[derive(Debug)]
pub(crate) struct State {
    /// Blocks are taken from here; `None` before the first and when all are full.
    current: Option<NonNull<Entry>>,
    /// Word of the current bitmap to look at first.
    cursor: usize,
    /// First of the list of superblocks with free blocks, the current one not among them.
    partial: *mut Entry,
}

// SAFETY: entries live as long as the heap, and so does the bin; what the pointers lead to is atomic, and changed under the lock.
unsafe impl Send for State {}

/// A free block, chosen but not marked. The bin stays locked.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Chosen {
    pub(crate) addr: u64,
    pub(crate) word: NonNull<AtomicU64>,
    pub(crate) mask: u64,
    entry: NonNull<Entry>,
}

/// What became of a superblock by a free.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Freed {
    /// It still has blocks, or is the current one.
    Kept,
    /// It is empty and out of the bin: the caller gives it back.
    Empty,
    /// The block was not allocated, or not held; nothing has changed.
    NotAllocated,
}

impl Bin {
    pub(crate) fn new(type_id: TypeId, class: u8) -> Self {
        Self {
            type_id,
            class,
            block_size: class_size(u32::from(class)) as u32,
            blocks: blocks_per_superblock(u32::from(class)),
            state: SpinLock::new(State { current: None, cursor: 0, partial: null_mut() }),
        }
    }

    #[inline]
    pub(crate) fn lock(&self) -> Guard<'_, State> {
        self.state.lock()
    }
}

impl State {
    /// Chooses a free block; `None` if no superblock of the bin has one.
    #[inline]
    pub(crate) fn choose(&mut self, bin: &Bin) -> Option<Chosen> {
        if let Some(current) = self.current {
            // SAFETY: entries live as long as the heap (see `State`).
            let entry = unsafe { current.as_ref() };
            let word = entry.word(self.cursor);
            // Bits after the last block are the highest ones and never set: the lowest clear bit is a block, or there is none.
            let mut taken = word.load(Ordering::Relaxed);
            if entry.held.load(Ordering::Relaxed) != 0 {
                taken |= entry.held_word(self.cursor).load(Ordering::Relaxed);
            }
            let bit = taken.trailing_ones();
            let index = self.cursor as u32 * 64 + bit;
            if bit < 64 && index < bin.blocks {
                return Some(Chosen {
                    addr: entry.base + u64::from(index) * u64::from(bin.block_size),
                    word: NonNull::from(word),
                    mask: 1 << bit,
                    entry: current,
                });
            }
        }
        self.choose_elsewhere(bin)
    }

    #[inline(never)]
    fn choose_elsewhere(&mut self, bin: &Bin) -> Option<Chosen> {
        loop {
            let Some(current) = self.current else {
                let first = NonNull::new(self.partial)?;
                self.unlink(first);
                // SAFETY: entries live as long as the heap.
                unsafe { first.as_ref() }.place.store(PLACE_CURRENT, Ordering::Relaxed);
                self.current = Some(first);
                self.cursor = 0;
                continue;
            };
            // SAFETY: as above.
            let entry = unsafe { current.as_ref() };
            if u32::from(entry.used.load(Ordering::Relaxed)) < bin.blocks {
                let words = bin.blocks.div_ceil(64) as usize;
                for step in 0..words {
                    let at = (self.cursor + step) % words;
                    let word = entry.word(at);
                    let taken = word.load(Ordering::Relaxed) | entry.held_word(at).load(Ordering::Relaxed);
                    let bit = taken.trailing_ones();
                    let index = at as u32 * 64 + bit;
                    if bit < 64 && index < bin.blocks {
                        self.cursor = at;
                        return Some(Chosen {
                            addr: entry.base + u64::from(index) * u64::from(bin.block_size),
                            word: NonNull::from(word),
                            mask: 1 << bit,
                            entry: current,
                        });
                    }
                }
                // The count and the bitmap disagree (somebody wrote over the bitmap): leave the superblock alone.
                debug_assert!(false, "bitmap of superblock {:#x} does not fit its count", entry.base);
            }
            entry.place.store(PLACE_NONE, Ordering::Relaxed);
            self.current = None;
        }
    }

    /// Marks a chosen block as allocated.
    #[inline]
    pub(crate) fn commit(&mut self, chosen: &Chosen) {
        // SAFETY: the word lies in the mapping and the entry lives as long as the heap. The lock is held, so plain load and store
        // lose no other change of the word: all changes are under this lock.
        let (word, entry) = unsafe { (chosen.word.as_ref(), chosen.entry.as_ref()) };
        word.store(word.load(Ordering::Relaxed) | chosen.mask, Ordering::Release);
        entry.used.store(entry.used.load(Ordering::Relaxed) + 1, Ordering::Relaxed);
    }

    /// Clears the mark of block `index` of `entry`, a superblock of this bin, and makes its place available.
    #[inline]
    pub(crate) fn free(&mut self, entry: &Entry, index: usize) -> Freed {
        let word = entry.word(index / 64);
        let (old, mask) = (word.load(Ordering::Relaxed), 1u64 << (index % 64));
        if old & mask == 0 {
            return Freed::NotAllocated;
        }
        word.store(old & !mask, Ordering::Release);
        self.one_less(entry, index)
    }

    /// Clears the mark of block `index`, and keeps its place from being given out.
    pub(crate) fn hold(&mut self, entry: &Entry, index: usize) -> Freed {
        let word = entry.word(index / 64);
        let (old, mask) = (word.load(Ordering::Relaxed), 1u64 << (index % 64));
        if old & mask == 0 {
            return Freed::NotAllocated;
        }
        let held = entry.held_word(index / 64);
        held.store(held.load(Ordering::Relaxed) | mask, Ordering::Relaxed);
        entry.held.store(entry.held.load(Ordering::Relaxed) + 1, Ordering::Relaxed);
        word.store(old & !mask, Ordering::Release);
        Freed::Kept
    }

    /// Makes the place of a held block available.
    pub(crate) fn release(&mut self, entry: &Entry, index: usize) -> Freed {
        let held = entry.held_word(index / 64);
        let (old, mask) = (held.load(Ordering::Relaxed), 1u64 << (index % 64));
        if old & mask == 0 {
            return Freed::NotAllocated;
        }
        held.store(old & !mask, Ordering::Relaxed);
        entry.held.store(entry.held.load(Ordering::Relaxed).saturating_sub(1), Ordering::Relaxed);
        self.one_less(entry, index)
    }

    #[inline]
    fn one_less(&mut self, entry: &Entry, index: usize) -> Freed {
        let used = entry.used.load(Ordering::Relaxed).saturating_sub(1);
        entry.used.store(used, Ordering::Relaxed);
        match entry.place.load(Ordering::Relaxed) {
            PLACE_CURRENT => {
                self.cursor = index / 64;
                Freed::Kept
            }
            PLACE_LISTED if used > 0 => Freed::Kept,
            place => self.last_or_first(entry, place, used),
        }
    }

    /// A listed superblock became empty, or a full one has a free block again.
    #[inline(never)]
    fn last_or_first(&mut self, entry: &Entry, place: u8, used: u16) -> Freed {
        if used == 0 {
            if place == PLACE_LISTED {
                self.unlink(NonNull::from(entry));
            }
            return Freed::Empty;
        }
        self.push(entry);
        Freed::Kept
    }

    /// Puts a superblock with free blocks, in no list, into the list.
    pub(crate) fn push(&mut self, entry: &Entry) {
        let this = core::ptr::from_ref(entry).cast_mut();
        entry.place.store(PLACE_LISTED, Ordering::Relaxed);
        entry.prev.store(null_mut(), Ordering::Relaxed);
        entry.next.store(self.partial, Ordering::Relaxed);
        // SAFETY: entries live as long as the heap.
        if let Some(first) = unsafe { self.partial.as_ref() } {
            first.prev.store(this, Ordering::Relaxed);
        }
        self.partial = this;
    }

    fn unlink(&mut self, entry: NonNull<Entry>) {
        // SAFETY: entries live as long as the heap.
        let entry = unsafe { entry.as_ref() };
        let (prev, next) = (entry.prev.load(Ordering::Relaxed), entry.next.load(Ordering::Relaxed));
        // SAFETY: as above; neighbours are entries or null.
        unsafe {
            match prev.as_ref() {
                Some(prev) => prev.next.store(next, Ordering::Relaxed),
                None => self.partial = next,
            }
            if let Some(next) = next.as_ref() {
                next.prev.store(prev, Ordering::Relaxed);
            }
        }
        entry.next.store(null_mut(), Ordering::Relaxed);
        entry.prev.store(null_mut(), Ordering::Relaxed);
        entry.place.store(PLACE_NONE, Ordering::Relaxed);
    }

    /// Takes the current superblock out of the bin if it is empty, for others to use.
    pub(crate) fn give_up_empty(&mut self) -> Option<NonNull<Entry>> {
        let current = self.current?;
        // SAFETY: entries live as long as the heap.
        let entry = unsafe { current.as_ref() };
        if entry.used.load(Ordering::Relaxed) != 0 {
            return None;
        }
        entry.place.store(PLACE_NONE, Ordering::Relaxed);
        self.current = None;
        Some(current)
    }

    /// Forgets all superblocks: recovery builds the bin again.
    pub(crate) fn reset(&mut self) {
        *self = Self { current: None, cursor: 0, partial: null_mut() };
    }
}
