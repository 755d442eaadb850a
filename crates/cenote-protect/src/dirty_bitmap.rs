//! Notes which pages a program stores into. Pages are protected against stores; the fault of the
//! first store notes its page and makes it writable ([`crate::Tracked`]). This needs no privilege,
//! and works for every kind of mapping.
//!
//! *Invariant*: a writable page is noted, from before it becomes writable until
//! [`DirtyBitmap::take`], whose caller protects the pages that it took. A page that a fault handler
//! is at counts as noted ([`DirtyBitmap::while_opening`]).
//!
//! | noted | page | then |
//! | --- | --- | --- |
//! | no | protected | the next store faults, and [`Tracked::allow`] notes the page |
//! | yes | protected | the next store faults once more; nothing is lost |
//! | yes | writable | stores go through until the next `take` |
//! | no | writable | excluded by the invariant |
//!
//! [`Tracked::allow`] notes a page *before* it makes it writable, and again *after*. The second
//! note is for a `take` in between, which clears the first one and protects the page: the
//! permission that comes after it would leave a writable page without a note. Until the second note
//! is there, another thread may store into the page without a fault, and call `take`. So each
//! `take` first notes what handlers are at. One that is at it later than that look opens the page
//! later, too, and the next `take` finds the handler or its second note.
//!
//! [`Tracked::allow`]: crate::Tracked::allow

use crate::opening::OpeningPages;
use crate::owner::Rights;
use crate::right::Right;
use cenote_medium::planted::{Bug, GuardBug, planted};
use core::ops::Range;
use core::sync::atomic::{AtomicU64, Ordering};
use std::io;
use std::sync::Arc;

/// Bytes of a page.
pub(crate) const PAGE: usize = 4096;
/// Pages per word of [`DirtyBitmap::pages`], and words per bit of [`DirtyBitmap::chunks`]: a chunk
/// is 512 pages.
const WORD_PAGES: usize = 64;
const CHUNK_WORDS: usize = 8;
pub(crate) const CHUNK: usize = WORD_PAGES * CHUNK_WORDS * PAGE;

/// The pages of one range of addresses that were noted. Shared between threads, and with a fault
/// handler.
#[derive(Debug)]
pub struct DirtyBitmap {
    len: usize,
    /// A bit for each page that may be written.
    pages: Box<[AtomicU64]>,
    /// A bit for each chunk with a noted page.
    chunks: Box<[AtomicU64]>,
    /// Pages that are noted.
    count: AtomicU64,
    /// What fault handlers are at.
    opening: OpeningPages,
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
    /// For `len` bytes, whole pages of 4096 bytes. Nothing is noted yet.
    #[must_use]
    pub fn new(len: usize) -> Self {
        let chunks = len.div_ceil(CHUNK);
        Self {
            len,
            pages: zeroed(chunks * CHUNK_WORDS),
            chunks: zeroed(chunks.div_ceil(64)),
            count: AtomicU64::new(0),
            opening: OpeningPages::default(),
        }
    }

    /// Whether no page is noted, nor is a fault handler at one.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        let is_opening = self.opening.now().next().is_some();
        !is_opening && self.chunks.iter().all(|word| word.load(Ordering::Acquire) == 0)
    }

    /// Pages that are noted; while others note, about.
    #[must_use]
    pub fn count(&self) -> u64 {
        self.count.load(Ordering::Relaxed)
    }

    /// Notes pages by number. Async-signal-safe.
    pub fn note(&self, pages: Range<u64>) {
        for page in pages.start as usize..(pages.end as usize).min(self.len / PAGE) {
            self.note_one(page as u64);
        }
    }

    /// Notes pages, makes them writable by `open`, and notes them again if it could. Meanwhile all
    /// psyncs that take notes, or look at them, get these pages. Async-signal-safe, if `open` is.
    ///
    /// # Errors
    /// That of `open`.
    pub fn while_opening<T>(
        &self,
        pages: Range<u64>,
        open: impl FnOnce() -> io::Result<T>,
    ) -> io::Result<T> {
        let skipped = planted(Bug::Guard(GuardBug::OpeningNotSaid));
        let _opening = (!skipped).then(|| self.opening.enter(&pages));
        self.note(pages.clone());
        let opened = open()?;
        self.note(pages);
        Ok(opened)
    }

    /// Notes what fault handlers are at.
    fn note_opening(&self) {
        self.opening.now().for_each(|pages| self.note(pages));
    }

    /// Notes a page by number; nothing, behind the end. Async-signal-safe.
    #[inline]
    pub(crate) fn note_one(&self, page: u64) {
        let page = page as usize;
        let Some(word) = self.pages.get(page / WORD_PAGES).filter(|_| page < self.len / PAGE)
        else {
            return;
        };
        let bit = 1 << (page % WORD_PAGES);
        if word.fetch_or(bit, Ordering::SeqCst) & bit == 0 {
            self.count.fetch_add(1, Ordering::Relaxed);
        }
        // After the page: a `take` that gets the chunk's bit finds the page, or the bit is there
        // for the next `take`. One that is there already is not set again: the `take` that gets it
        // comes after this look, and so after the page.
        let chunk = page / (WORD_PAGES * CHUNK_WORDS);
        if let Some(word) = self.chunks.get(chunk / 64) {
            let bit = 1 << (chunk % 64);
            if word.load(Ordering::SeqCst) & bit == 0 {
                word.fetch_or(bit, Ordering::SeqCst);
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
        self.note_opening();
        let (mut taken, before) = (0, pages.len());
        for (at, chunks) in self.chunks.iter().enumerate() {
            let mut chunks = chunks.swap(0, Ordering::SeqCst);
            while chunks != 0 {
                let chunk = at * 64 + chunks.trailing_zeros() as usize;
                chunks &= chunks - 1;
                for index in chunk * CHUNK_WORDS..(chunk + 1) * CHUNK_WORDS {
                    let Some(word) = self.pages.get(index) else { break };
                    taken += add_bits(index, word.swap(0, Ordering::SeqCst), pages, before);
                }
            }
        }
        self.count.fetch_sub(taken, Ordering::Relaxed);
    }

    /// Adds what is noted to `pages`, as [`DirtyBitmap::take`] does, and leaves it noted: these
    /// pages may be written, and go on being.
    pub fn look(&self, pages: &mut Vec<Range<u64>>) {
        self.note_opening();
        for (at, word) in self.chunks.iter().enumerate() {
            let mut chunks = word.load(Ordering::Acquire);
            while chunks != 0 {
                let bit = chunks & chunks.wrapping_neg();
                let chunk = at * 64 + chunks.trailing_zeros() as usize;
                chunks &= chunks - 1;
                // Before the pages are looked at: a thread that notes one of them from now on sets
                // the chunk's bit again.
                word.fetch_and(!bit, Ordering::SeqCst);
                let before = pages.len();
                for index in chunk * CHUNK_WORDS..(chunk + 1) * CHUNK_WORDS {
                    let Some(word) = self.pages.get(index) else { break };
                    add_bits(index, word.load(Ordering::SeqCst), pages, before);
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
}

// SAFETY: one load.
unsafe impl Rights for DirtyBitmap {
    fn allows(&self, page: u64) -> Right {
        if self.has(page) { Right::Write } else { Right::Read }
    }
}

// SAFETY: one load.
unsafe impl Rights for Arc<DirtyBitmap> {
    fn allows(&self, page: u64) -> Right {
        (**self).allows(page)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use cenote_medium::planted::plant;

    #[test]
    fn notes_come_back_in_order_and_once() {
        let notes = DirtyBitmap::new(3 * CHUNK + 6 * PAGE);
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

    /// Whether a store is in the notes of the psync that its thread calls, if the fault of another
    /// thread opened the page, and a psync before had the first note of that.
    fn has_a_store_beside_a_fault() -> bool {
        let notes = DirtyBitmap::new(CHUNK);
        let taken = |notes: &DirtyBitmap| {
            let mut pages = Vec::new();
            notes.take(&mut pages);
            pages.iter().any(|pages| pages.contains(&9))
        };
        let beside = || {
            assert!(taken(&notes), "the first note");
            // The page is protected, and opened. A thread stores, and takes notes.
            let mut looked = Vec::new();
            let is_empty = notes.is_empty();
            notes.look(&mut looked);
            let has = taken(&notes);
            assert_eq!((looked.first() == Some(&(9..10)), !is_empty), (has, has));
            Ok(has)
        };
        let has = notes.while_opening(9..10, beside).expect("opened");
        assert!(taken(&notes), "the second note");
        assert!(notes.is_empty() && !taken(&notes));
        has
    }

    #[test]
    fn a_page_that_a_fault_handler_opens_is_in_the_notes_of_all_who_take_them() {
        assert!(has_a_store_beside_a_fault());
        plant(Bug::Guard(GuardBug::OpeningNotSaid));
        let has = has_a_store_beside_a_fault();
        plant(Bug::None);
        assert!(!has, "{:?} was not found", GuardBug::OpeningNotSaid);
    }

    #[test]
    fn what_is_looked_at_stays_noted_until_it_is_taken() {
        let notes = DirtyBitmap::new(3 * CHUNK);
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
}
