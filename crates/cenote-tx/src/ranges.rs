//! The ranges that a transaction has logged: each byte once.
//!
//! Invariant: ranges are disjoint, and `list` has them in the order of their log entries, which is the order in which a seal hashes
//! them. Few ranges are searched from the last one back; from [`INDEX_FROM`] on an ordered index is kept.

use std::collections::BTreeMap;

/// From how many ranges on the index is kept.
const INDEX_FROM: usize = 12;

/// One logged range.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Range {
    /// First byte.
    pub start: u64,
    /// One past the last byte.
    pub end: u64,
    /// What stood there, in the log; null if the range is a fresh allocation.
    pub old: *const u8,
}

/// See the module.
#[derive(Debug, Default)]
pub struct RangeSet {
    list: Vec<Range>,
    /// start -> end, of all of `list`, once that is long.
    index: BTreeMap<u64, u64>,
    bytes: u64,
}

impl RangeSet {
    /// Whether nothing is logged.
    #[inline]
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.list.is_empty()
    }

    /// The ranges in log order.
    #[must_use]
    pub fn list(&self) -> &[Range] {
        &self.list
    }

    /// Bytes in all ranges.
    #[must_use]
    pub fn bytes(&self) -> u64 {
        self.bytes
    }

    /// Adds a range that overlaps none.
    #[inline]
    pub fn push(&mut self, range: Range) {
        debug_assert!(range.start < range.end);
        debug_assert!(!self.overlaps(range.start, range.end));
        self.bytes += range.end - range.start;
        self.list.push(range);
        if self.list.len() >= INDEX_FROM {
            self.push_indexed(range);
        }
    }

    #[cold]
    fn push_indexed(&mut self, range: Range) {
        if self.index.is_empty() {
            self.index.extend(self.list.iter().map(|r| (r.start, r.end)));
        } else {
            self.index.insert(range.start, range.end);
        }
    }

    /// Whether one range holds all of `start..end`. (Two that touch may hold it together; [`RangeSet::gap`] sees that.)
    #[inline]
    #[must_use]
    pub fn covers(&self, start: u64, end: u64) -> bool {
        if self.index.is_empty() {
            return self.list.iter().rev().any(|r| r.start <= start && end <= r.end);
        }
        self.index.range(..=start).next_back().is_some_and(|(_, &covered)| end <= covered)
    }

    /// Whether any range has a byte of `start..end`.
    #[must_use]
    pub fn overlaps(&self, start: u64, end: u64) -> bool {
        if self.index.is_empty() {
            return self.list.iter().any(|r| r.start < end && start < r.end);
        }
        self.index.range(..end).next_back().is_some_and(|(_, &covered)| start < covered)
    }

    /// The first part of `start..end` that no range holds, as long as it goes.
    #[must_use]
    pub fn gap(&self, start: u64, end: u64) -> Option<(u64, u64)> {
        let mut from = start;
        loop {
            if from >= end {
                return None;
            }
            // The range that holds `from`, if one does.
            let holding = if self.index.is_empty() {
                self.list.iter().find(|r| r.start <= from && from < r.end).map(|r| r.end)
            } else {
                self.index.range(..=from).next_back().map(|(_, &covered)| covered).filter(|&covered| from < covered)
            };
            match holding {
                Some(covered) => from = covered,
                None => break,
            }
        }
        let next = if self.index.is_empty() {
            self.list.iter().map(|r| r.start).filter(|&s| s > from).min()
        } else {
            self.index.range(from + 1..).next().map(|(&s, _)| s)
        };
        Some((from, next.map_or(end, |s| s.min(end))))
    }

    /// Forgets all ranges; keeps the memory.
    #[inline]
    pub fn clear(&mut self) {
        self.list.clear();
        self.bytes = 0;
        if !self.index.is_empty() {
            self.index.clear();
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn range(start: u64, end: u64) -> Range {
        Range { start, end, old: core::ptr::null() }
    }

    /// Against a set of bytes, for few ranges and for many (with index).
    #[test]
    fn gaps_are_exactly_what_is_not_covered() {
        let mut seed = 7u64;
        let mut random = |n: u64| {
            seed = seed.wrapping_mul(6364136223846793005).wrapping_add(1442695040888963407);
            (seed >> 33) % n
        };
        for round in 0..300 {
            let mut set = RangeSet::default();
            let mut model = [false; 256];
            for _ in 0..1 + round % 60 {
                let start = random(250);
                let end = (start + 1 + random(12)).min(256);
                let all = (start..end).all(|b| model[b as usize]);
                let any = (start..end).any(|b| model[b as usize]);
                assert_eq!(set.overlaps(start, end), any);
                if set.covers(start, end) {
                    assert!(all);
                }
                assert_eq!(set.gap(start, end).is_none(), all);
                while let Some((a, b)) = set.gap(start, end) {
                    assert!(start <= a && a < b && b <= end);
                    assert!((a..b).all(|byte| !model[byte as usize]));
                    (a..b).for_each(|byte| model[byte as usize] = true);
                    set.push(range(a, b));
                }
                assert_eq!(set.bytes(), model.iter().filter(|&&b| b).count() as u64);
            }
        }
    }
}
