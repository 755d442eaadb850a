//! Free ranges by size, in memory of this process: a FIFO list for each class of sizes.
//!
//! An entry may be out of date: its lines were taken, or merged with others. The bitmap of the
//! puddle decides when an entry is looked at. So nothing is searched for in a list when ranges
//! merge (section 3.1).

use std::collections::VecDeque;

/// A range that was free when it was listed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct FreeRange {
    /// Number among the puddles of the heap.
    pub(crate) puddle: usize,
    /// Its first line.
    pub(crate) line: u32,
    /// Its lines.
    pub(crate) lines: u32,
}

/// Four classes for each power of two.
const CLASSES: usize = 4 * 32;
/// Entries of a class that are looked at before a larger class is, as long as there is another
/// place to look at.
pub(crate) const LOOKS: usize = 16;
/// Entries that are not worth a look at all of them.
const FEW: usize = 1024;

/// The lists.
#[derive(Debug)]
pub(crate) struct FreeLists {
    classes: Vec<VecDeque<FreeRange>>,
    entries: usize,
    /// All entries are looked at when there are so many.
    purge_at: usize,
}

/// The class of ranges of so many lines: they have at least the lines of the class.
fn class_of(lines: u32) -> usize {
    let log = lines.max(1).ilog2();
    let quarter = if log < 2 { lines << (2 - log) } else { lines >> (log - 2) } & 3;
    (log * 4 + quarter) as usize
}

impl Default for FreeLists {
    fn default() -> Self {
        let classes = (0..CLASSES).map(|_| VecDeque::new()).collect();
        Self { classes, entries: 0, purge_at: FEW }
    }
}

impl FreeLists {
    /// Adds a range as the newest of its class.
    pub(crate) fn add(&mut self, range: FreeRange) {
        if let Some(list) = self.classes.get_mut(class_of(range.lines)).filter(|_| range.lines > 0)
        {
            list.push_back(range);
            self.entries += 1;
        }
    }

    /// Takes out the oldest range of the smallest class, from the one of `lines` on, for which
    /// `fits` says yes; it is asked about so many of a class. Those for which it says `None` are
    /// out of date, and go.
    pub(crate) fn take(
        &mut self,
        lines: u32,
        looks: usize,
        mut fits: impl FnMut(&FreeRange) -> Option<bool>,
    ) -> Option<FreeRange> {
        for list in self.classes.iter_mut().skip(class_of(lines)) {
            let mut looks = looks.min(list.len());
            while looks > 0 {
                let Some(range) = list.pop_front() else { break };
                match fits(&range) {
                    Some(true) => {
                        self.entries -= 1;
                        return Some(range);
                    }
                    Some(false) => {
                        list.push_back(range);
                        looks -= 1;
                    }
                    None => {
                        self.entries -= 1;
                        looks = looks.min(list.len());
                    }
                }
            }
        }
        None
    }

    /// Drops entries that are out of date, if there may be many.
    pub(crate) fn purge(&mut self, mut is_current: impl FnMut(&FreeRange) -> bool) {
        if self.entries < self.purge_at {
            return;
        }
        for list in &mut self.classes {
            list.retain(&mut is_current);
        }
        self.entries = self.classes.iter().map(VecDeque::len).sum();
        self.purge_at = (2 * self.entries).max(FEW);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_range_of_a_higher_class_has_all_lines_of_a_lower_one() {
        for lines in 1..5000u32 {
            assert!(class_of(lines) <= class_of(lines + 1));
            let first = (1..=lines).find(|&l| class_of(l) == class_of(lines)).unwrap_or(lines);
            assert!(lines < first + first / 4 + 1, "{lines} and {first} share a class");
        }
        assert!(class_of(u32::MAX) < CLASSES);
    }

    #[test]
    fn the_oldest_range_that_fits_is_taken() {
        let mut lists = FreeLists::default();
        let range = |line, lines| FreeRange { puddle: 0, line, lines };
        for added in [range(1, 9), range(2, 8), range(3, 40), range(4, 9)] {
            lists.add(added);
        }
        assert_eq!(lists.take(8, LOOKS, |_| Some(true)).map(|r| r.line), Some(1));
        assert_eq!(lists.take(9, LOOKS, |r| Some(r.lines >= 9)).map(|r| r.line), Some(4));
        assert_eq!(
            lists.take(9, LOOKS, |r| (r.line != 2).then_some(true)).map(|r| r.line),
            Some(3)
        );
        assert_eq!((lists.take(1, LOOKS, |_| Some(true)), lists.entries), (None, 0));
    }
}
