//! The bytes of a simulated file: sparse pages, shared until they are written.
//!
//! Invariant: a page that is absent is all zero, and bytes beyond the last page are zero. So two
//! contents that read alike hash alike, also if they own different pages. Cloning costs one
//! reference count per page that is there; writing copies the pages that it touches and no others.
//! That makes a crash image cost what it changes.

use super::random::mix;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

/// Bytes of a page.
pub(crate) const PAGE: usize = 4096;
/// Bytes of a word: what a store changes atomically.
pub(crate) const WORD: usize = 8;
/// Bytes of a sector: what a file write changes atomically.
pub(crate) const SECTOR: usize = 512;
/// Words of a sector.
pub(crate) const SECTOR_WORDS: u64 = (SECTOR / WORD) as u64;

/// One page that is not known to be all zero.
#[repr(C, align(64))]
pub(crate) struct ContentPage {
    bytes: [u8; PAGE],
    /// Hash of `bytes`, or 0 when it is not known.
    hash: AtomicU64,
}

impl Clone for ContentPage {
    fn clone(&self) -> Self {
        Self { bytes: self.bytes, hash: AtomicU64::new(0) }
    }
}

static ZERO_PAGE: ContentPage = ContentPage { bytes: [0; PAGE], hash: AtomicU64::new(0) };

impl ContentPage {
    /// Hash of the bytes, never 0 unless all of them are.
    fn hash(&self) -> u64 {
        let known = self.hash.load(Ordering::Relaxed);
        if known != 0 {
            return known;
        }
        if self.bytes == ZERO_PAGE.bytes {
            return 0;
        }
        let hash = xxhash_rust::xxh3::xxh3_64(&self.bytes) | 1;
        self.hash.store(hash, Ordering::Relaxed);
        hash
    }
}

/// What a file holds, without its length.
#[derive(Clone, Default)]
pub(crate) struct Content {
    pages: Vec<Option<Arc<ContentPage>>>,
}

impl Content {
    /// Number of page slots; pages from here on are zero.
    pub(crate) fn page_slots(&self) -> usize {
        self.pages.len()
    }

    /// The page with this number, if it is not known to be zero.
    pub(crate) fn page(&self, index: usize) -> Option<&[u8; PAGE]> {
        self.pages.get(index)?.as_ref().map(|page| &page.bytes)
    }

    /// The page with this number.
    pub(crate) fn page_or_zero(&self, index: usize) -> &[u8; PAGE] {
        self.page(index).unwrap_or(&ZERO_PAGE.bytes)
    }

    /// The page with this number, to be changed.
    pub(crate) fn page_mut(&mut self, index: usize) -> &mut [u8; PAGE] {
        if self.pages.len() <= index {
            self.pages.resize(index + 1, None);
        }
        let page =
            Arc::make_mut(self.pages[index].get_or_insert_with(|| Arc::new(ZERO_PAGE.clone())));
        *page.hash.get_mut() = 0;
        &mut page.bytes
    }

    /// Copies bytes from `offset` on.
    pub(crate) fn read(&self, offset: u64, buffer: &mut [u8]) {
        for (page, at, part) in pieces(offset, buffer.len()) {
            buffer[part.clone()].copy_from_slice(&self.page_or_zero(page)[at..at + part.len()]);
        }
    }

    /// Replaces bytes from `offset` on.
    pub(crate) fn write(&mut self, offset: u64, bytes: &[u8]) {
        for (page, at, part) in pieces(offset, bytes.len()) {
            let source = &bytes[part];
            if self.page_or_zero(page)[at..at + source.len()] != *source {
                self.page_mut(page)[at..at + source.len()].copy_from_slice(source);
            }
        }
    }

    /// Whether these bytes stand at `offset`.
    pub(crate) fn holds(&self, offset: u64, bytes: &[u8]) -> bool {
        pieces(offset, bytes.len())
            .all(|(page, at, part)| self.page_or_zero(page)[at..at + part.len()] == bytes[part])
    }

    /// Whether all bytes from `start` to `end` are zero.
    pub(crate) fn is_zero(&self, start: u64, end: u64) -> bool {
        pieces(start, (end - start) as usize).all(|(page, at, part)| {
            self.page(page)
                .is_none_or(|bytes| bytes[at..at + part.len()] == ZERO_PAGE.bytes[..part.len()])
        })
    }

    /// Makes all bytes from `start` to `end` zero.
    pub(crate) fn fill_zero(&mut self, start: u64, end: u64) {
        for (page, at, part) in pieces(start, (end - start) as usize) {
            if self
                .page(page)
                .is_some_and(|bytes| bytes[at..at + part.len()].iter().any(|&b| b != 0))
            {
                self.page_mut(page)[at..at + part.len()].fill(0);
            }
        }
    }

    /// The word with this number.
    pub(crate) fn word(&self, word: u64) -> u64 {
        let mut bytes = [0; WORD];
        self.read(word * WORD as u64, &mut bytes);
        u64::from_le_bytes(bytes)
    }

    /// Replaces the word with this number.
    pub(crate) fn set_word(&mut self, word: u64, value: u64) {
        self.write(word * WORD as u64, &value.to_le_bytes());
    }

    /// The sector with this number.
    pub(crate) fn sector(&self, sector: u64) -> [u8; SECTOR] {
        let mut bytes = [0; SECTOR];
        self.read(sector * SECTOR as u64, &mut bytes);
        bytes
    }

    /// Inverts one bit.
    pub(crate) fn flip(&mut self, offset: u64, bit: u8) {
        let mut byte = [0];
        self.read(offset, &mut byte);
        self.write(offset, &[byte[0] ^ (1 << (bit & 7))]);
    }

    /// Whether any byte from `offset` on is not zero.
    pub(crate) fn reaches(&self, offset: u64) -> bool {
        let (first, at) = ((offset as usize) / PAGE, (offset as usize) % PAGE);
        let tail = self.page(first).is_some_and(|page| page[at..] != ZERO_PAGE.bytes[at..]);
        tail || self.pages.iter().skip(first + 1).flatten().any(|page| page.hash() != 0)
    }

    /// Makes every byte from `offset` on zero.
    pub(crate) fn cut(&mut self, offset: u64) {
        let (first, at) = ((offset as usize) / PAGE, (offset as usize) % PAGE);
        self.pages.truncate(offset.div_ceil(PAGE as u64) as usize);
        if at != 0 && self.page(first).is_some_and(|page| page[at..] != ZERO_PAGE.bytes[at..]) {
            self.page_mut(first)[at..].fill(0);
        }
    }

    /// Hash of all bytes; contents that read alike have the same.
    pub(crate) fn hash(&self) -> u64 {
        let pages = self.pages.iter().enumerate();
        pages.fold(0, |sum, (index, page)| match page.as_ref().map_or(0, |page| page.hash()) {
            0 => sum,
            hash => sum.wrapping_add(mix(hash ^ mix(index as u64 + 1))),
        })
    }
}

/// Cuts a range into pieces that lie in one page each: page number, offset in the page, range of
/// the buffer.
fn pieces(offset: u64, len: usize) -> impl Iterator<Item = (usize, usize, std::ops::Range<usize>)> {
    let mut done = 0;
    std::iter::from_fn(move || {
        (done < len).then(|| {
            let position = offset as usize + done;
            let (page, at) = (position / PAGE, position % PAGE);
            let part = done..len.min(done + PAGE - at);
            done = part.end;
            (page, at, part)
        })
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn contents_that_read_alike_hash_alike() {
        let mut a = Content::default();
        let mut b = Content::default();
        a.write(4090, b"twelve bytes");
        assert_ne!(a.hash(), b.hash());
        b.page_mut(7)[3] = 1;
        b.page_mut(7)[3] = 0;
        b.write(4090, b"twelve bytes");
        assert_eq!(a.hash(), b.hash());
        let mut back = [0; 12];
        a.read(4090, &mut back);
        assert_eq!(&back, b"twelve bytes");
        b.cut(4096);
        assert!(a.reaches(4096) && !b.reaches(4096) && b.reaches(4090));
    }

    #[test]
    fn a_clone_does_not_see_later_writes() {
        let mut a = Content::default();
        a.set_word(3, 42);
        let old = a.clone();
        a.set_word(3, 43);
        assert_eq!((old.word(3), a.word(3)), (42, 43));
        assert_eq!(a.sector(0)[24], 43);
    }
}
