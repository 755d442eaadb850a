//! Pages that fault handlers make writable just now.
//!
//! A handler notes a page, opens it, and notes it again. A psync between the last two steps would
//! miss a store. So handlers list the pages that they open, from before the first note until after
//! the last one, and a psync notes these first.

use core::ops::Range;
use core::sync::atomic::{AtomicU64, Ordering};

/// Handlers of one range that can open pages at a time; further ones wait for one of them.
const HANDLERS: usize = 16;

/// Bits of a word for the number of pages; the others are for the first page.
const COUNT_BITS: u32 = 28;
/// This many and more, which are 1 TiB: all pages from the first one on.
const MANY: u64 = (1 << COUNT_BITS) - 1;

/// In each word the first page and how many they are, or 0.
#[derive(Debug, Default)]
pub(crate) struct OpeningPages([AtomicU64; HANDLERS]);

/// A handler is at pages, until this is dropped.
#[must_use = "nothing is said any more at once"]
pub(crate) struct Opening<'a>(&'a AtomicU64);

impl OpeningPages {
    /// Says that this thread is at these pages. Async-signal-safe: who is waited for takes the lock
    /// of rights at most.
    pub(crate) fn enter(&self, pages: &Range<u64>) -> Opening<'_> {
        let word = pages.start << COUNT_BITS | (pages.end - pages.start).clamp(1, MANY);
        loop {
            let free = |slot: &&AtomicU64| {
                slot.compare_exchange(0, word, Ordering::SeqCst, Ordering::Relaxed).is_ok()
            };
            if let Some(slot) = self.0.iter().find(free) {
                return Opening(slot);
            }
            std::thread::yield_now();
        }
    }

    /// What handlers are at now.
    pub(crate) fn now(&self) -> impl Iterator<Item = Range<u64>> {
        let words = self.0.iter().map(|slot| slot.load(Ordering::SeqCst));
        words.filter(|word| *word != 0).map(|word| {
            let (first, count) = (word >> COUNT_BITS, word & MANY);
            first..if count == MANY { u64::MAX } else { first + count }
        })
    }
}

impl Drop for Opening<'_> {
    fn drop(&mut self) {
        self.0.store(0, Ordering::SeqCst);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_handlers_are_at_is_said_until_they_leave() {
        let opening = OpeningPages::default();
        let now = || opening.now().collect::<Vec<_>>();
        let first = opening.enter(&(7..8));
        let second = opening.enter(&(0..512));
        assert_eq!(now(), [7..8, 0..512]);
        drop(first);
        let third = opening.enter(&(512..515));
        assert_eq!(now(), [512..515, 0..512]);
        drop((second, third));
        let whole = opening.enter(&(0..1 << 35));
        assert_eq!(now().first(), Some(&(0..u64::MAX)), "as far as there are any");
        drop(whole);
        assert_eq!(now(), [0u64..0; 0]);
    }

    #[test]
    fn who_finds_no_place_waits_for_one() {
        let opening = OpeningPages::default();
        let enter = |page| opening.enter(&(page..page + 1));
        let mut all: Vec<_> = (0..HANDLERS as u64).map(enter).collect();
        std::thread::scope(|scope| {
            let late = scope.spawn(|| drop(opening.enter(&(100..101))));
            std::thread::sleep(core::time::Duration::from_millis(20));
            assert!(!late.is_finished());
            all.pop();
        });
        assert_eq!(opening.now().count(), HANDLERS - 1);
    }
}
