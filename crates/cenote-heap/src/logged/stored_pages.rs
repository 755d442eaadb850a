//! The pages that one operation stores into, which are noted when it ends.

use core::cell::Cell;

/// Pages that are kept. An operation that stores into more notes on the way.
const PAGES: usize = 8;
/// A page and its part are one word: the part has these bits.
const PART_BITS: u32 = 8;

/// Pages by number, each with the number of its part of the metadata.
#[derive(Debug, Default)]
pub(crate) struct StoredPages {
    count: Cell<usize>,
    pages: [Cell<usize>; PAGES],
}

impl StoredPages {
    /// Adds a page that is stored into next, and says whether it is new. `full`: there is no place
    /// left, and it takes all.
    #[inline]
    pub(crate) fn add(&self, page: usize, part: usize, full: impl FnOnce(&Self)) -> bool {
        let page = page << PART_BITS | part;
        if self.pages[..self.count.get()].iter().any(|known| known.get() == page) {
            return false;
        }
        if self.count.get() == PAGES {
            full(self);
        }
        let count = self.count.get().min(PAGES - 1);
        self.pages[count].set(page);
        self.count.set(count + 1);
        true
    }

    /// Takes all pages, with their parts.
    #[inline]
    pub(crate) fn take(&self) -> impl Iterator<Item = (usize, usize)> {
        let pages = self.pages[..self.count.replace(0)].iter();
        pages.map(|page| (page.get() >> PART_BITS, page.get() & ((1 << PART_BITS) - 1)))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_page_is_taken_once_after_it_was_added_last() {
        let pages = StoredPages::default();
        let taken = Cell::new(Vec::new());
        let full = |pages: &StoredPages| {
            let mut all = taken.take();
            all.extend(pages.take());
            taken.set(all);
        };
        for page in (0..20).chain(0..20) {
            pages.add(page, page % 24, full);
            assert!(!pages.add(page, page % 24, full), "it is there");
        }
        full(&pages);
        let all = taken.take();
        assert_eq!(all.len(), 40, "each again after it was taken");
        assert!(all.iter().all(|(page, part)| *part == page % 24));
        assert!((0..20).all(|page| all.iter().filter(|(known, _)| *known == page).count() == 2));
    }
}
