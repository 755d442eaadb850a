//! The ranges that a transaction has logged: each byte once.
//!
//! *Invariants*: ranges are disjoint, and `list` has them in the order of their log entries, which
//! is the order in which a seal hashes them. `lines` and `long` together hold the bytes of
//! `list[..indexed]`: ranges of up to `SHORT_LINES` lines in `lines`, longer ones in `long`.
//!
//! | ranges | how they are searched |
//! | --- | --- |
//! | none of them near: outside of `lowest..highest` | not at all |
//! | up to a dozen | one by one |
//! | more | by lines |
//! | more, for a range with more lines than there are ranges | one by one; gaps by lines |
//!
//! A range enters the index when a search first needs it. So a transaction that logs in the order
//! of addresses, such as a walk over an array, pays for no index.

use crate::lines::{LINE, LineTable, parts};
use std::collections::BTreeMap;

/// From how many ranges on they are not searched one by one.
const INDEX_FROM: usize = 12;
/// Most lines of a range that lies in the index by lines: those of 1 KiB anywhere.
const SHORT_LINES: u64 = 17;

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
    indexed: usize,
    lines: LineTable,
    /// start -> end.
    long: BTreeMap<u64, u64>,
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
            indexed: 0,
            lines: LineTable::default(),
            long: BTreeMap::new(),
            bytes: 0,
            fresh_bytes: 0,
            lowest: u64::MAX,
            highest: 0,
        }
    }
}

/// Lines that a range, which is not empty, has a byte of.
fn lines_of(start: u64, end: u64) -> u64 {
    (end - 1) / LINE - start / LINE + 1
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
        self.bytes += range.end - range.start;
        self.fresh_bytes += if range.old.is_null() { range.end - range.start } else { 0 };
        self.lowest = self.lowest.min(range.start);
        self.highest = self.highest.max(range.end);
        self.list.push(range);
    }

    /// Brings what was added since the last search into the index.
    #[inline]
    fn index(&mut self) {
        for range in &self.list[self.indexed..] {
            if lines_of(range.start, range.end) > SHORT_LINES {
                self.long.insert(range.start, range.end);
            } else {
                parts(range.start, range.end)
                    .for_each(|(line, mask)| self.lines.insert(line, mask));
            }
        }
        self.indexed = self.list.len();
    }

    /// Whether a quick look says that no range has a byte of `start..end`.
    #[inline]
    fn is_outside(&self, start: u64, end: u64) -> bool {
        end <= self.lowest || self.highest <= start
    }

    fn is_short(&self) -> bool {
        self.list.len() < INDEX_FROM
    }

    /// Whether ranges are compared one by one with one of `start..end`, once.
    #[inline]
    fn is_each_compared(&self, start: u64, end: u64) -> bool {
        self.is_short() || lines_of(start, end) > SHORT_LINES.max(self.list.len() as u64)
    }

    /// The end of the long range that holds a byte.
    fn long_end(&self, at: u64) -> Option<u64> {
        let (_, &end) = self.long.range(..=at).next_back()?;
        Some(end).filter(|&end| at < end)
    }

    /// Whether one range holds all of `start..end`, or several that are indexed by lines. (Others
    /// that touch may hold it together; [`RangeSet::gap`] sees that.)
    #[inline]
    #[must_use]
    pub fn covers(&mut self, start: u64, end: u64) -> bool {
        !self.is_outside(start, end) && self.covers_inside(start, end)
    }

    fn covers_inside(&mut self, start: u64, end: u64) -> bool {
        if start >= end || self.is_each_compared(start, end) {
            return self.list.iter().rev().any(|r| r.start <= start && end <= r.end);
        }
        self.index();
        parts(start, end).all(|(line, mask)| self.lines.mask(line) & mask == mask)
            || (!self.long.is_empty() && self.long_end(start).is_some_and(|covered| end <= covered))
    }

    /// Whether any range has a byte of `start..end`, which is not empty.
    #[inline]
    #[must_use]
    pub fn overlaps(&mut self, start: u64, end: u64) -> bool {
        !self.is_outside(start, end) && self.overlaps_inside(start, end)
    }

    fn overlaps_inside(&mut self, start: u64, end: u64) -> bool {
        if self.is_each_compared(start, end) {
            return self.list.iter().any(|r| r.start < end && start < r.end);
        }
        self.index();
        parts(start, end).any(|(line, mask)| self.lines.mask(line) & mask != 0)
            || (!self.long.is_empty()
                && self.long.range(..end).next_back().is_some_and(|(_, &covered)| start < covered))
    }

    /// The first part of `start..end` that no range holds, as long as it goes. Of many ranges it
    /// looks at each line once, so a caller that goes on behind the part looks at none twice.
    #[must_use]
    pub fn gap(&mut self, start: u64, end: u64) -> Option<(u64, u64)> {
        if start >= end {
            return None;
        }
        if self.is_short() {
            return self.gap_by_each(start, end);
        }
        self.index();
        self.gap_by_lines(start, end)
    }

    fn gap_by_each(&self, start: u64, end: u64) -> Option<(u64, u64)> {
        let holding = |from| self.list.iter().find(|r| r.start <= from && from < r.end);
        let mut from = start;
        while let Some(range) = holding(from) {
            from = range.end;
            if from >= end {
                return None;
            }
        }
        let next = self.list.iter().map(|r| r.start).filter(|&s| s > from).min();
        Some((from, next.map_or(end, |s| s.min(end))))
    }

    fn gap_by_lines(&self, start: u64, end: u64) -> Option<(u64, u64)> {
        let held = |at: u64| self.lines.mask(at / LINE) >> (at % LINE);
        let mut from = start;
        loop {
            if from >= end {
                return None;
            }
            match (self.long_end(from), held(from).trailing_ones()) {
                (Some(covered), _) => from = covered,
                (None, 0) => break,
                (None, bytes) => from += u64::from(bytes),
            }
        }
        let end = self.long.range(from..end).next().map_or(end, |(&start, _)| start);
        // No range begins behind `highest`, so what lies there is not looked at.
        let last = end.min(self.highest);
        let mut to = from.max(self.lowest);
        while to < last {
            match held(to) {
                0 => to = (to / LINE + 1).saturating_mul(LINE),
                mask => return Some((from, end.min(to + u64::from(mask.trailing_zeros())))),
            }
        }
        Some((from, end))
    }

    /// Forgets all ranges; keeps the memory.
    #[inline]
    pub fn clear(&mut self) {
        if self.indexed > 0 {
            self.lines.clear();
            self.long.clear();
            self.indexed = 0;
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

    /// Against a set of bytes: few ranges and many, of a few bytes and of many lines, in any order
    /// and (every third round) mostly in that of addresses.
    #[test]
    fn gaps_are_exactly_what_is_not_covered() {
        const BYTES: u64 = 8192;
        let mut seed = 7u64;
        let mut random = |n: u64| {
            seed = seed.wrapping_mul(6364136223846793005).wrapping_add(1442695040888963407);
            (seed >> 33) % n
        };
        let mut set = RangeSet::default();
        let mut long = 0;
        for round in 0..600 {
            set.clear();
            let within = [256, BYTES][round as usize % 2];
            let mut model = [false; BYTES as usize];
            for step in 0..1 + round % 60 {
                let in_order = round % 3 == 0 && random(10) > 0;
                let start = if in_order { step * 4 } else { random(within - 6) };
                let longest = if random(8) == 0 { within / 3 } else { 12 };
                let end = (start + 1 + random(longest)).min(within);
                let held = &model[start as usize..end as usize];
                let (all, any) = (held.iter().all(|&b| b), held.iter().any(|&b| b));
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
                    assert!(set.covers(a, b) && set.covers(b - 1, b));
                }
                assert_eq!(set.bytes(), model.iter().filter(|&&b| b).count() as u64);
            }
            long += set.long.len();
        }
        assert!(long > 100, "{long} long ranges");
    }

    #[test]
    fn a_walk_in_the_order_of_addresses_has_no_index() {
        let mut set = RangeSet::default();
        for at in 0..1000 {
            assert!(!set.overlaps(at * 24, at * 24 + 16));
            set.push(range(at * 24, at * 24 + 16));
        }
        assert_eq!(set.indexed, 0);
        assert!(set.covers(24, 40) && !set.overlaps(40, 48) && set.gap(0, 24) == Some((16, 24)));
        assert_eq!(set.indexed, 1000);
    }

    #[test]
    fn a_range_at_the_end_of_memory_is_searched_like_any_other() {
        let mut set = RangeSet::default();
        (1..20).for_each(|at| set.push(range(u64::MAX - 100 * at, u64::MAX - 100 * at + 9)));
        set.push(range(u64::MAX - 3, u64::MAX - 1));
        assert_eq!(set.gap(u64::MAX - 3, u64::MAX), Some((u64::MAX - 1, u64::MAX)));
        assert!(set.overlaps(u64::MAX - 2, u64::MAX) && !set.overlaps(u64::MAX - 1, u64::MAX));
        // Memory without ranges is not walked through.
        set.clear();
        (1..20).for_each(|at| set.push(range(at << 20, (at << 20) + 9)));
        assert_eq!(set.gap(19 << 20, u64::MAX), Some(((19 << 20) + 9, u64::MAX)));
        assert_eq!(set.gap(0, u64::MAX), Some((0, 1 << 20)));
    }
}
