//! The metadata region: [`Metadata`] reads it, and [`Writer`] alone writes it.
//!
//! Invariants:
//!
//! * All stores into metadata are in this file. A writer has an address of its own, so that it may
//!   write through another mapping than the one that is read, and is made for one operation, so
//!   that rights can be given at its making and taken at its end.
//! * A cell that is not in the region reads as [`EMPTY`], which no structure is, and a store to one
//!   is dropped: numbers of cells come from media.

use crate::backing::Backing;
use cenote_layout::LINE_SIZE;
use cenote_layout::logged::{CELL_SIZE, EMPTY, RawCell, SubHeapGeometry};
use core::ptr::{NonNull, with_exposed_provenance_mut};
use core::sync::atomic::{AtomicU64, Ordering};

/// Bytes of a word.
const WORD: u64 = 8;

/// Words of a mapped region.
#[derive(Clone, Copy, Debug)]
struct Words {
    base: NonNull<AtomicU64>,
    count: u64,
}

// SAFETY: all accesses are atomic, and the region stays mapped as long as the sub-heap lives
// (contract of `Metadata::new`).
unsafe impl Send for Words {}
// SAFETY: accesses through a shared reference are atomic loads and stores of words.
unsafe impl Sync for Words {}

impl Words {
    /// The word at an offset in bytes.
    #[inline]
    fn at(&self, offset: u64) -> Option<&AtomicU64> {
        let index = offset / WORD;
        // SAFETY: the index is below the count, so the word lies in the region, which is mapped and
        // accessed by atomics alone (contract of `Metadata::new`).
        (index < self.count).then(|| unsafe { self.base.add(index as usize).as_ref() })
    }
}

/// The metadata of one sub-heap, for reading.
#[derive(Debug)]
pub(crate) struct Metadata {
    words: Words,
    pub(crate) geometry: SubHeapGeometry,
}

impl Metadata {
    /// The metadata at `addr`; `None` if that is no address.
    ///
    /// # Safety
    /// The `geometry.metadata_len` bytes at `addr` are mapped for writing as long as this lives,
    /// and nothing but this and its writers uses them.
    pub(crate) unsafe fn new(addr: u64, geometry: SubHeapGeometry) -> Option<Self> {
        let base = NonNull::new(with_exposed_provenance_mut::<AtomicU64>(addr as usize))?;
        Some(Self { words: Words { base, count: geometry.metadata_len / WORD }, geometry })
    }

    /// A writer of these metadata, for one operation.
    pub(crate) fn writer<'a, G: Backing>(&self, backing: &'a G) -> Writer<'a, G> {
        Writer { words: self.words, backing }
    }

    /// The word at an offset in bytes; 0 outside the region.
    #[inline]
    pub(crate) fn word(&self, offset: u64) -> u64 {
        self.words.at(offset).map_or(0, |word| word.load(Ordering::Relaxed))
    }

    /// The cell with a number.
    #[inline]
    pub(crate) fn cell(&self, cell: u64) -> RawCell {
        let Some(at) = cell.checked_mul(CELL_SIZE) else { return EMPTY };
        [0, 1, 2, 3].map(|i| self.word(at + i * WORD))
    }
}

/// Writes metadata of one sub-heap.
#[derive(Debug)]
pub(crate) struct Writer<'a, G> {
    words: Words,
    backing: &'a G,
}

impl<G: Backing> Writer<'_, G> {
    /// Whether a loss of power counts at this level.
    #[inline]
    pub(crate) fn is_power(&self) -> bool {
        self.backing.is_power()
    }

    /// Stores a word after everything that was stored before.
    #[inline]
    pub(crate) fn store(&self, offset: u64, value: u64) {
        if let Some(word) = self.words.at(offset) {
            word.store(value, Ordering::Release);
        }
    }

    /// Stores words one after the other.
    #[inline]
    pub(crate) fn store_all(&self, offset: u64, values: &[u64]) {
        for (i, &value) in (0u64..).zip(values) {
            self.store(offset + i * WORD, value);
        }
    }

    /// Stores a cell.
    #[inline]
    pub(crate) fn store_cell(&self, cell: u64, raw: RawCell) {
        if let Some(offset) = cell.checked_mul(CELL_SIZE) {
            self.store_all(offset, &raw);
        }
    }

    /// Begins to write the lines of a range back, if the level asks for that.
    #[inline]
    pub(crate) fn flush(&self, offset: u64, len: u64) {
        if len != 0 && offset.checked_add(len).is_some_and(|end| end <= self.words.count * WORD) {
            let start = self.words.base.as_ptr().cast::<u8>().wrapping_add(offset as usize);
            // SAFETY: the range lies in the region, which is mapped.
            unsafe { self.backing.flush(start, len as usize) }
        }
    }

    /// Flushes the line of a cell.
    #[inline]
    pub(crate) fn flush_cell(&self, cell: u64) {
        let line = cell * CELL_SIZE / LINE_SIZE * LINE_SIZE;
        self.flush(line, LINE_SIZE);
    }

    /// What was flushed is durable before what is stored later, if the level asks for that.
    #[inline]
    pub(crate) fn fence(&self) {
        self.backing.fence();
    }
}
