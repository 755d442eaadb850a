//! Which bytes of memory a set holds, by lines: a hash table of lines, each with a mask of bytes.
//!
//! *Invariant*: a slot with a mask other than 0 holds the number of a line, and lies at the line's
//! hash or after it with no empty slot between; at most half of the slots are full.
//!
//! A table that is cleared keeps as many slots as what it held needs, for the next transaction may
//! be like the last one. So clearing costs in proportion to what it held.

/// Bytes of a line: as many as a mask has bits.
pub(crate) const LINE: u64 = u64::BITS as u64;

/// Slots of the smallest table.
const SLOTS_MIN: usize = 64;

/// A line and its bytes; an empty slot has no bytes.
#[derive(Clone, Copy, Debug, Default)]
struct Slot {
    line: u64,
    mask: u64,
}

/// See the module.
#[derive(Debug, Default)]
pub(crate) struct LineTable {
    slots: Vec<Slot>,
    full: usize,
}

/// Bits `from..to` of a mask; `from < to <= 64`.
#[inline]
fn bits(from: u64, to: u64) -> u64 {
    (u64::MAX >> (LINE - (to - from))) << from
}

/// The parts of `start..end`, which is not empty, in each line: the line, and its bytes.
#[inline]
pub(crate) fn parts(start: u64, end: u64) -> impl Iterator<Item = (u64, u64)> {
    (start / LINE..=(end - 1) / LINE).map(move |line| {
        let base = line * LINE;
        let to = end.saturating_sub(base).min(LINE);
        (line, bits(start.saturating_sub(base), to))
    })
}

impl LineTable {
    #[inline]
    fn home(&self, line: u64) -> usize {
        let shift = self.slots.len().leading_zeros() + 1;
        (line.wrapping_mul(0x9e37_79b9_7f4a_7c15) >> shift) as usize
    }

    /// Where a line is, or the empty slot where it would be.
    #[inline]
    fn slot(&self, line: u64) -> usize {
        let last = self.slots.len() - 1;
        let mut at = self.home(line);
        while self.slots[at].mask != 0 && self.slots[at].line != line {
            at = (at + 1) & last;
        }
        at
    }

    /// The bytes of a line that the set holds.
    #[inline]
    pub(crate) fn mask(&self, line: u64) -> u64 {
        if self.full == 0 { 0 } else { self.slots[self.slot(line)].mask }
    }

    /// Adds bytes of a line.
    #[inline]
    pub(crate) fn insert(&mut self, line: u64, mask: u64) {
        if self.full * 2 >= self.slots.len() {
            self.grow();
        }
        let at = self.slot(line);
        let slot = &mut self.slots[at];
        self.full += usize::from(slot.mask == 0);
        *slot = Slot { line, mask: slot.mask | mask };
    }

    #[cold]
    #[inline(never)]
    fn grow(&mut self) {
        let old: Vec<Slot> = self.slots.iter().copied().filter(|slot| slot.mask != 0).collect();
        let len = (self.slots.len() * 2).max(SLOTS_MIN);
        self.slots.clear();
        self.slots.resize(len, Slot::default());
        for slot in old {
            let at = self.slot(slot.line);
            self.slots[at] = slot;
        }
    }

    /// Forgets all.
    pub(crate) fn clear(&mut self) {
        let wanted = (self.full * 4).next_power_of_two().max(SLOTS_MIN);
        self.slots.truncate(wanted);
        self.slots.fill(Slot::default());
        self.full = 0;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn parts_of_a_range_are_its_bytes_line_by_line() {
        let all = |start, end| parts(start, end).collect::<Vec<_>>();
        assert_eq!(all(0, 64), [(0, u64::MAX)]);
        assert_eq!(all(3, 5), [(0, 0b11000)]);
        assert_eq!(all(63, 65), [(0, 1 << 63), (1, 1)]);
        assert_eq!(all(64, 192), [(1, u64::MAX), (2, u64::MAX)]);
        assert_eq!(all(u64::MAX - 1, u64::MAX), [(u64::MAX / 64, 1 << 62)]);
    }

    #[test]
    fn a_table_that_grows_and_is_cleared_loses_nothing() {
        let mut table = LineTable::default();
        for round in 0..3 {
            for line in 0..5000u64 {
                assert_eq!(table.mask(line << 40 | line), 0, "{round}");
                table.insert(line << 40 | line, 1 << (line % 64));
                table.insert(line << 40 | line, 1);
            }
            for line in 0..5000u64 {
                assert_eq!(table.mask(line << 40 | line), 1 << (line % 64) | 1);
            }
            assert!(table.full * 2 <= table.slots.len());
            table.clear();
            assert_eq!(table.full, 0);
        }
    }

    #[test]
    fn a_table_that_is_cleared_has_the_size_of_what_it_held() {
        let mut table = LineTable::default();
        let slots_after = |lines| {
            (0..lines).for_each(|line| table.insert(line, 1));
            table.clear();
            table.slots.len()
        };
        assert_eq!([5000, 5000, 13, 0].map(slots_after), [16384, 16384, 64, 64]);
    }
}
