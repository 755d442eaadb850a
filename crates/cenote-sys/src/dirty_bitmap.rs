//! Notes which pages a program stores into. Pages are protected against stores; the fault of the
//! first store notes its page and makes it writable. This needs no privilege, and works for every
//! kind of mapping.
//!
//! *Invariant*: a writable page is noted, from before it becomes writable until
//! [`DirtyBitmap::take`], whose caller protects the pages that it took.
//!
//! | noted | page | then |
//! | --- | --- | --- |
//! | no | protected | the next store faults, and [`DirtyBitmap::allow`] notes the page |
//! | yes | protected | the next store faults once more; nothing is lost |
//! | yes | writable | stores go through until the next `take` |
//! | no | writable | excluded by the invariant |
//!
//! [`DirtyBitmap::allow`] notes a page *before* it makes it writable, and again *after*. The second
//! note is for a `take` in between, which clears the first one and protects the page: the
//! permission that comes after it would leave a writable page without a note.
//!
//! Protection changes page by page, and each change may split a mapping of the kernel's. When the
//! process has many mappings ([`crate::mappings`]), or the kernel refuses one more, 2 MiB at once
//! become writable and all their pages are noted; when that is too much, the whole range.
//!
//! The kernel cannot write a protected page either: a `read` from a file into it fails with
//! `EFAULT`. Read into a buffer and copy.

use crate::fault;
use crate::mappings::{self, Fineness};
use crate::memory::{self, Access};
use core::ops::Range;
use core::sync::atomic::{AtomicBool, AtomicU64, Ordering};

/// Bytes of a page.
const PAGE: usize = 4096;
/// Pages per word of [`DirtyBitmap::pages`], and words per bit of [`DirtyBitmap::chunks`]: a chunk
/// is 512 pages.
const WORD_PAGES: usize = 64;
const CHUNK_WORDS: usize = 8;
const CHUNK: usize = WORD_PAGES * CHUNK_WORDS * PAGE;

/// The pages of one range of addresses that were noted. Shared between threads, and with a fault
/// handler.
#[derive(Debug)]
pub struct DirtyBitmap {
    base: usize,
    len: usize,
    /// A bit for each page that may be written.
    pages: Box<[AtomicU64]>,
    /// A bit for each chunk with a noted page.
    chunks: Box<[AtomicU64]>,
    /// Pages that are noted.
    count: AtomicU64,
}

fn zeroed(words: usize) -> Box<[AtomicU64]> {
    // Zeroed by the kernel, page by page, on first use.
    let words = vec![0u64; words].into_boxed_slice();
    // SAFETY: `AtomicU64` has the size and alignment of `u64`, and any value is valid; the box is
    // ours.
    unsafe { Box::from_raw(Box::into_raw(words) as *mut [AtomicU64]) }
}

/// Adds the pages of a word's bits to `pages`, joined with a neighbour that is there, but not with
/// ranges before number `from`. Returns how many pages they are.
fn add_bits(index: usize, mut bits: u64, pages: &mut Vec<Range<u64>>, from: usize) -> u64 {
    let count = u64::from(bits.count_ones());
    while bits != 0 {
        let page = (index * WORD_PAGES) as u64 + u64::from(bits.trailing_zeros());
        bits &= bits - 1;
        match pages.get_mut(from..).and_then(<[_]>::last_mut) {
            Some(last) if last.end == page => last.end = page + 1,
            _ => pages.push(page..page + 1),
        }
    }
    count
}

impl DirtyBitmap {
    /// For `[base, base + len)`, whole pages of 4096 bytes. Nothing is noted yet.
    #[must_use]
    pub fn new(base: usize, len: usize) -> Self {
        let chunks = len.div_ceil(CHUNK);
        Self {
            base,
            len,
            pages: zeroed(chunks * CHUNK_WORDS),
            chunks: zeroed(chunks.div_ceil(64)),
            count: AtomicU64::new(0),
        }
    }

    /// Whether no page is noted.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.chunks.iter().all(|word| word.load(Ordering::Acquire) == 0)
    }

    /// Pages that are noted; while others note, about.
    #[must_use]
    pub fn count(&self) -> u64 {
        self.count.load(Ordering::Relaxed)
    }

    /// Notes pages by number. Async-signal-safe.
    pub fn note(&self, pages: Range<u64>) {
        for page in pages.start as usize..(pages.end as usize).min(self.len / PAGE) {
            if let Some(word) = self.pages.get(page / WORD_PAGES) {
                let bit = 1 << (page % WORD_PAGES);
                if word.fetch_or(bit, Ordering::AcqRel) & bit == 0 {
                    self.count.fetch_add(1, Ordering::Relaxed);
                }
            }
            // After the page: a `take` that gets the chunk's bit finds the page, or the bit is
            // there for the next `take`.
            let chunk = page / (WORD_PAGES * CHUNK_WORDS);
            if let Some(word) = self.chunks.get(chunk / 64) {
                word.fetch_or(1 << (chunk % 64), Ordering::AcqRel);
            }
        }
    }

    /// Whether a page is noted. Async-signal-safe.
    #[must_use]
    pub fn has(&self, page: u64) -> bool {
        let word = self.pages.get(page as usize / WORD_PAGES);
        word.is_some_and(|word| {
            word.load(Ordering::Acquire) & (1 << (page as usize % WORD_PAGES)) != 0
        })
    }

    /// Takes what is noted: adds ranges of page numbers to `pages`, in order, joined where they
    /// touch each other, and never with what was there. The caller protects them then, before
    /// it looks at what they hold.
    pub fn take(&self, pages: &mut Vec<Range<u64>>) {
        let (mut taken, before) = (0, pages.len());
        for (at, chunks) in self.chunks.iter().enumerate() {
            let mut chunks = chunks.swap(0, Ordering::AcqRel);
            while chunks != 0 {
                let chunk = at * 64 + chunks.trailing_zeros() as usize;
                chunks &= chunks - 1;
                for index in chunk * CHUNK_WORDS..(chunk + 1) * CHUNK_WORDS {
                    let Some(word) = self.pages.get(index) else { break };
                    taken += add_bits(index, word.swap(0, Ordering::AcqRel), pages, before);
                }
            }
        }
        self.count.fetch_sub(taken, Ordering::Relaxed);
    }

    /// Adds what is noted to `pages`, as [`DirtyBitmap::take`] does, and leaves it noted: these
    /// pages may be written, and go on being.
    pub fn look(&self, pages: &mut Vec<Range<u64>>) {
        for (at, word) in self.chunks.iter().enumerate() {
            let mut chunks = word.load(Ordering::Acquire);
            while chunks != 0 {
                let bit = chunks & chunks.wrapping_neg();
                let chunk = at * 64 + chunks.trailing_zeros() as usize;
                chunks &= chunks - 1;
                // Before the pages are looked at: a thread that notes one of them from now on sets
                // the chunk's bit again.
                word.fetch_and(!bit, Ordering::AcqRel);
                let before = pages.len();
                for index in chunk * CHUNK_WORDS..(chunk + 1) * CHUNK_WORDS {
                    let Some(word) = self.pages.get(index) else { break };
                    add_bits(index, word.load(Ordering::Acquire), pages, before);
                }
                if pages.len() > before {
                    word.fetch_or(bit, Ordering::AcqRel);
                }
            }
        }
    }

    /// The pages of the chunks that a range touches.
    #[must_use]
    pub fn chunks_of(&self, range: &Range<u64>) -> Range<u64> {
        const PAGES: u64 = (CHUNK / PAGE) as u64;
        let end = range.end.next_multiple_of(PAGES).min((self.len / PAGE) as u64);
        range.start / PAGES * PAGES..end
    }

    /// Takes the notes of some pages. The caller protects these pages then, before it looks at what
    /// they hold.
    pub fn take_some(&self, range: Range<u64>) {
        for page in range.start as usize..(range.end as usize).min(self.len / PAGE) {
            let bit = 1 << (page % WORD_PAGES);
            let Some(word) = self.pages.get(page / WORD_PAGES) else { break };
            if word.fetch_and(!bit, Ordering::AcqRel) & bit != 0 {
                self.count.fetch_sub(1, Ordering::Relaxed);
            }
        }
    }

    /// What a fault handler does about a store to `address`: notes the page and makes it writable.
    /// Returns whether it is writable now. Async-signal-safe.
    ///
    /// # Safety
    /// The range is a mapping of the caller's, and no other part of the process relies on the pages
    /// being protected.
    pub unsafe fn allow(&self, address: usize) -> bool {
        // SAFETY: handed on to the caller.
        unsafe { self.allow_by(address, mappings::fineness()) }
    }

    /// [`DirtyBitmap::allow`], as finely as this or coarser.
    ///
    /// # Safety
    /// As [`DirtyBitmap::allow`].
    pub unsafe fn allow_by(&self, address: usize, fineness: Fineness) -> bool {
        let offset = address.wrapping_sub(self.base);
        if offset >= self.len {
            return false;
        }
        let page = offset / PAGE * PAGE;
        let chunk = offset / CHUNK * CHUNK;
        let all = [(page, page + PAGE), (chunk, (chunk + CHUNK).min(self.len)), (0, self.len)];
        let coarse = match fineness {
            Fineness::Page => &all[..],
            Fineness::Chunk => &all[1..],
            Fineness::Whole => &all[2..],
        };
        for &(from, to) in coarse {
            let pages = (from / PAGE) as u64..(to / PAGE) as u64;
            self.note(pages.clone());
            // SAFETY: part of the mapping, by the caller's promise; writing is given, not taken.
            if unsafe { memory::protect(self.base + from, to - from, Some(Access::ReadWrite)) }
                .is_ok()
            {
                self.note(pages);
                return true;
            }
        }
        tell_once();
        false
    }
}

/// Says once why the process ends: its store cannot go through. Async-signal-safe.
fn tell_once() {
    static TOLD: AtomicBool = AtomicBool::new(false);
    if !TOLD.swap(true, Ordering::Relaxed) {
        fault::tell(
            "cenote: the kernel refuses to make a page writable (mprotect: no memory, or too many \
             mappings): this process ends; the next open finds what was committed; give the \
             process more memory, or raise vm.max_map_count\n",
        );
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn notes_come_back_in_order_and_once() {
        let notes = DirtyBitmap::new(0, 3 * CHUNK + 6 * PAGE);
        for page in [1540u64, 0, 63, 64, 511, 512, 0, 1540, 4000] {
            notes.note(page..page + 1);
        }
        assert_eq!(notes.count(), 6, "each page once, and none behind the end");
        assert!(notes.has(63) && notes.has(1540) && !notes.has(1) && !notes.has(4000));
        let mut pages = Vec::new();
        notes.take(&mut pages);
        assert_eq!(pages, [0..1, 63..65, 511..513, 1540..1541]);
        assert!(notes.is_empty());
        assert_eq!(notes.count(), 0);
        notes.take(&mut pages);
        assert_eq!(pages.len(), 4);
        // The caller has protected the earlier ranges: new ones follow them and join none.
        notes.note(1541..1542);
        notes.take(&mut pages);
        assert_eq!((pages.len(), pages.last()), (5, Some(&(1541..1542))));
    }

    #[test]
    fn what_cannot_be_told_page_by_page_is_told_as_a_whole() {
        // Addresses that are not mapped: every attempt to let them be written is refused.
        let base = memory::find_free(2 * CHUNK, CHUNK).expect("address space");
        let notes = DirtyBitmap::new(base, 2 * CHUNK);
        // SAFETY: nothing is mapped there, so that nothing changes.
        assert!(!unsafe { notes.allow(base + 5 * PAGE) });
        let mut pages = Vec::new();
        notes.take(&mut pages);
        assert_eq!(pages, std::slice::from_ref(&(0..1024)));
    }

    #[test]
    fn what_is_looked_at_stays_noted_until_it_is_taken() {
        let notes = DirtyBitmap::new(0, 3 * CHUNK);
        [3, 4, 511, 512, 1200].into_iter().for_each(|page| notes.note(page..page + 1));
        let looked = |notes: &DirtyBitmap| {
            let mut pages = Vec::new();
            notes.look(&mut pages);
            pages.into_iter().flatten().collect::<Vec<_>>()
        };
        assert_eq!(looked(&notes), [3, 4, 511, 512, 1200]);
        notes.take_some(4..512);
        notes.take_some(1200..1201);
        assert_eq!((looked(&notes), notes.count()), (vec![3, 512], 2));
        notes.take_some(0..1536);
        assert_eq!(looked(&notes), [0u64; 0]);
        assert!(notes.is_empty(), "a chunk without a page is forgotten");
        notes.note(1200..1201);
        assert_eq!((looked(&notes), notes.count()), (vec![1200], 1));
    }

    /// A store between `take` and what its caller does is in this answer or in the next.
    #[test]
    fn a_page_that_may_be_written_is_noted() {
        let base = memory::reserve_anywhere(CHUNK, PAGE).expect("address space");
        // SAFETY: our own reservation.
        unsafe { memory::map_anonymous(base, CHUNK) }.expect("map");
        let notes = DirtyBitmap::new(base, CHUNK);
        let protect = |pages: &Range<u64>| {
            let (at, len) =
                (pages.start as usize * PAGE, (pages.end - pages.start) as usize * PAGE);
            // SAFETY: our own mapping, into which no reference leads.
            unsafe { memory::protect(base + at, len, Some(Access::ReadOnly)) }.expect("protect");
        };
        protect(&(0..512));
        // SAFETY: our own mapping.
        assert!(unsafe { notes.allow(base + 7 * PAGE + 5) });
        // SAFETY: inside the mapping, and allowed just now.
        unsafe { core::ptr::with_exposed_provenance_mut::<u8>(base + 7 * PAGE).write_volatile(1) };
        let mut pages = Vec::new();
        notes.take(&mut pages);
        assert_eq!(pages, std::slice::from_ref(&(7..8)));
        pages.iter().for_each(protect);
        // SAFETY: our own mapping.
        assert!(unsafe { notes.allow(base + 7 * PAGE) });
        assert_eq!(notes.count(), 1);
        // SAFETY: our own reservation.
        unsafe { memory::release(base, CHUNK) }.expect("release");
    }
}
