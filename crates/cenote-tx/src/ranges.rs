//! The ranges that a transaction has logged: each byte once.
//!
//! *Invariants*: ranges are disjoint, and `list` has them in the order of their log entries, which
//! is the order in which a seal hashes them.
//!
//! | ranges | how they are searched |
//! | --- | --- |
//! | up to a dozen | one by one |
//! | more, from `ascending_from` on | by halving: they lie in the order of their addresses |
//! | more, before `ascending_from` | in `index` |
//!
//! So a transaction that logs in the order of addresses, such as a walk over an array, pays for no
//! index.

use std::collections::BTreeMap;

/// From how many ranges on they are not searched one by one.
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
#[derive(Debug)]
pub struct RangeSet {
    list: Vec<Range>,
    ascending_from: usize,
    /// start -> end, of `list[..ascending_from]`, once the list is long.
    index: BTreeMap<u64, u64>,
    bytes: u64,
    fresh_bytes: u64,
    /// No range has a byte outside these.
    lowest: u64,
    highest: u64,
}

impl Default for RangeSet {
    fn default() -> Self {
        Self {
            list: Vec::new(),
            ascending_from: 0,
            index: BTreeMap::new(),
            bytes: 0,
            fresh_bytes: 0,
            lowest: u64::MAX,
            highest: 0,
        }
    }
}

impl RangeSet {
    /// Whether nothing is logged.
    #[inline]
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.list.is_empty()
    }

    /// The ranges in log order.
    #[inline]
    #[must_use]
    pub fn list(&self) -> &[Range] {
        &self.list
    }

    /// Bytes in all ranges.
    #[inline]
    #[must_use]
    pub fn bytes(&self) -> u64 {
        self.bytes
    }

    /// Bytes in ranges that are fresh allocations.
    #[inline]
    #[must_use]
    pub fn fresh_bytes(&self) -> u64 {
        self.fresh_bytes
    }

    /// Adds a range that overlaps none.
    #[inline]
    pub fn push(&mut self, range: Range) {
        debug_assert!(range.start < range.end);
        debug_assert!(!self.overlaps(range.start, range.end));
        if self.list.len() + 1 >= INDEX_FROM {
            self.prepare(range.start);
        }
        self.bytes += range.end - range.start;
        self.fresh_bytes += if range.old.is_null() { range.end - range.start } else { 0 };
        self.lowest = self.lowest.min(range.start);
        self.highest = self.highest.max(range.end);
        self.list.push(range);
    }

    /// Keeps the invariant of `ascending_from` for a range that is about to be added.
    #[inline(never)]
    fn prepare(&mut self, start: u64) {
        let ascending = match self.list.len() + 1 {
            INDEX_FROM => {
                self.list.is_sorted_by_key(|r| r.start)
                    && self.list.last().is_none_or(|r| r.start < start)
            }
            _ => {
                self.ascending_from == self.list.len()
                    || self.list.last().is_none_or(|r| r.start < start)
            }
        };
        if !ascending {
            self.index.extend(self.list[self.ascending_from..].iter().map(|r| (r.start, r.end)));
            self.ascending_from = self.list.len();
        }
    }

    /// Whether a quick look says that no range has a byte of `start..end`.
    #[inline]
    fn is_outside(&self, start: u64, end: u64) -> bool {
        end <= self.lowest || self.highest <= start
    }

    /// The last range that begins at `at` or before, if the list is long.
    fn last_until(&self, at: u64) -> Option<(u64, u64)> {
        let ascending = &self.list[self.ascending_from..];
        let in_order = ascending[..ascending.partition_point(|r| r.start <= at)]
            .last()
            .map(|r| (r.start, r.end));
        let indexed = self.index.range(..=at).next_back().map(|(&start, &end)| (start, end));
        in_order.max(indexed)
    }

    /// Where the first range after `at` begins, if the list is long.
    fn first_after(&self, at: u64) -> Option<u64> {
        let ascending = &self.list[self.ascending_from..];
        let in_order = ascending.get(ascending.partition_point(|r| r.start <= at)).map(|r| r.start);
        let indexed = self.index.range(at + 1..).next().map(|(&start, _)| start);
        match (in_order, indexed) {
            (Some(a), Some(b)) => Some(a.min(b)),
            (one, other) => one.or(other),
        }
    }

    fn is_short(&self) -> bool {
        self.list.len() < INDEX_FROM
    }

    /// Whether one range holds all of `start..end`. (Two that touch may hold it together;
    /// [`RangeSet::gap`] sees that.)
    #[inline]
    #[must_use]
    pub fn covers(&self, start: u64, end: u64) -> bool {
        !self.is_outside(start, end) && self.covers_inside(start, end)
    }

    fn covers_inside(&self, start: u64, end: u64) -> bool {
        if self.is_short() {
            return self.list.iter().rev().any(|r| r.start <= start && end <= r.end);
        }
        self.last_until(start).is_some_and(|(_, covered)| end <= covered)
    }

    /// Whether any range has a byte of `start..end`, which is not empty.
    #[inline]
    #[must_use]
    pub fn overlaps(&self, start: u64, end: u64) -> bool {
        !self.is_outside(start, end) && self.overlaps_inside(start, end)
    }

    fn overlaps_inside(&self, start: u64, end: u64) -> bool {
        if self.is_short() {
            return self.list.iter().any(|r| r.start < end && start < r.end);
        }
        self.last_until(end - 1).is_some_and(|(_, covered)| start < covered)
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
            let holding = if self.is_short() {
                self.list.iter().find(|r| r.start <= from && from < r.end).map(|r| r.end)
            } else {
                self.last_until(from).map(|(_, covered)| covered).filter(|&covered| from < covered)
            };
            match holding {
                Some(covered) => from = covered,
                None => break,
            }
        }
        let next = if self.is_short() {
            self.list.iter().map(|r| r.start).filter(|&s| s > from).min()
        } else {
            self.first_after(from)
        };
        Some((from, next.map_or(end, |s| s.min(end))))
    }

    /// Forgets all ranges; keeps the memory.
    #[inline]
    pub fn clear(&mut self) {
        if self.list.len() >= INDEX_FROM {
            self.index.clear();
            self.ascending_from = 0;
        }
        self.list.clear();
        self.bytes = 0;
        self.fresh_bytes = 0;
        self.lowest = u64::MAX;
        self.highest = 0;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn range(start: u64, end: u64) -> Range {
        Range { start, end, old: core::ptr::null() }
    }

    /// Against a set of bytes, for few ranges and for many, in any order and (every third round)
    /// mostly in that of addresses.
    #[test]
    fn gaps_are_exactly_what_is_not_covered() {
        let mut seed = 7u64;
        let mut random = |n: u64| {
            seed = seed.wrapping_mul(6364136223846793005).wrapping_add(1442695040888963407);
            (seed >> 33) % n
        };
        let mut set = RangeSet::default();
        for round in 0..600 {
            set.clear();
            let mut model = [false; 256];
            for step in 0..1 + round % 60 {
                let start = if round % 3 == 0 && random(10) > 0 { step * 4 } else { random(250) };
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
