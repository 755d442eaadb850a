//! Free superblocks, and runs of them for large blocks.
//!
//! One bit per superblock, set while it is free: neighbours coalesce by themselves, because a run of free superblocks is a run of
//! set bits however it came about. Runs are found first fit, in order of puddles and addresses, which keeps the low part of a heap dense.

use crate::ground::Plot;
use crate::superblock::PuddleHeap;
use std::collections::VecDeque;
use std::sync::Arc;

/// The free superblocks of one puddle.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct FreeMap {
    bits: Vec<u64>,
    len: u32,
    free: u32,
    /// No superblock below is free.
    lowest: u32,
}

impl FreeMap {
    /// `len` superblocks, none of them free.
    pub(crate) fn new(len: u32) -> Self {
        Self { bits: vec![0; len.div_ceil(64) as usize], len, free: 0, lowest: len }
    }

    /// Number of free superblocks.
    pub(crate) fn free(&self) -> u32 {
        self.free
    }

    pub(crate) fn is_free(&self, at: u32) -> bool {
        self.bits[at as usize / 64] >> (at % 64) & 1 != 0
    }

    /// Takes the first run of `count` free superblocks that begins at a multiple of `align`.
    pub(crate) fn take(&mut self, count: u32, align: u32) -> Option<u32> {
        if count == 0 || count > self.free {
            return None;
        }
        let mut from = self.lowest;
        loop {
            let start = self.next(from, true)?;
            let end = self.next(start, false).unwrap_or(self.len);
            let aligned = start.next_multiple_of(align);
            if aligned < end && end - aligned >= count {
                for at in aligned..aligned + count {
                    self.bits[at as usize / 64] &= !(1 << (at % 64));
                }
                self.free -= count;
                if aligned == self.lowest {
                    self.lowest = aligned + count;
                }
                return Some(aligned);
            }
            from = end;
        }
    }

    /// Gives back what was taken. What is free already stays so.
    pub(crate) fn put(&mut self, start: u32, count: u32) {
        for at in start..start + count {
            if !self.is_free(at) {
                self.bits[at as usize / 64] |= 1 << (at % 64);
                self.free += 1;
            }
        }
        self.lowest = self.lowest.min(start);
    }

    /// First superblock from `from` on that is free, or is not.
    fn next(&self, from: u32, free: bool) -> Option<u32> {
        let mut at = from;
        while at < self.len {
            let word = self.bits[at as usize / 64];
            let word = (if free { word } else { !word }) >> (at % 64);
            if word != 0 {
                let found = at + word.trailing_zeros();
                return (found < self.len).then_some(found);
            }
            at = (at / 64 + 1) * 64;
        }
        None
    }
}

/// A puddle that the heap has looked at.
#[derive(Debug)]
pub(crate) struct Attached {
    pub(crate) puddle: Arc<PuddleHeap>,
    pub(crate) free: FreeMap,
}

/// All free space, under one lock.
#[derive(Debug, Default)]
pub(crate) struct Space {
    /// By `PuddleHeap::ordinal`.
    pub(crate) puddles: Vec<Attached>,
    /// Puddles that were not looked at yet, in order.
    pub(crate) pending: VecDeque<Plot>,
    /// Bytes of all puddles.
    pub(crate) bytes: u64,
    /// Bytes of the largest.
    pub(crate) largest: u64,
    /// Puddles before this one have no free superblock.
    pub(crate) first: usize,
}

impl Space {
    /// Takes a run of superblocks: the puddle, and the number of the first.
    pub(crate) fn take(&mut self, count: u32, align: u32) -> Option<(Arc<PuddleHeap>, u32)> {
        while self.puddles.get(self.first).is_some_and(|p| p.free.free() == 0) {
            self.first += 1;
        }
        for attached in self.puddles.iter_mut().skip(self.first) {
            if let Some(start) = attached.free.take(count, align) {
                return Some((Arc::clone(&attached.puddle), start));
            }
        }
        None
    }

    /// Gives a run back.
    pub(crate) fn put(&mut self, ordinal: usize, start: u32, count: u32) {
        if let Some(attached) = self.puddles.get_mut(ordinal) {
            attached.free.put(start, count);
            self.first = self.first.min(ordinal);
        }
    }

    /// Replaces the free map of a puddle: recovery has computed it again.
    pub(crate) fn replace(&mut self, ordinal: usize, free: FreeMap) {
        if let Some(attached) = self.puddles.get_mut(ordinal) {
            attached.free = free;
            self.first = 0;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn neighbours_coalesce_and_the_first_fit_is_taken() {
        let mut map = FreeMap::new(100);
        map.put(10, 90);
        let runs: Vec<u32> = (0..9).map(|_| map.take(10, 1).unwrap()).collect();
        assert_eq!(runs, (1..10).map(|i| i * 10).collect::<Vec<_>>());
        assert_eq!(map.take(1, 1), None);
        map.put(30, 10);
        map.put(50, 10);
        assert_eq!(map.take(11, 1), None);
        map.put(40, 10);
        assert_eq!(map.take(30, 1), Some(30));
    }

    #[test]
    fn runs_are_aligned_as_asked() {
        let mut map = FreeMap::new(128);
        map.put(1, 127);
        assert_eq!(map.take(3, 32), Some(32));
        assert_eq!(map.take(33, 32), Some(64));
        assert_eq!(map.take(31, 1), Some(1));
        assert_eq!(map.take(32, 32), None);
        assert_eq!(map.take(29, 1), Some(35));
    }

    proptest! {
        #[test]
        fn behaves_as_a_plain_list_of_flags(ops in prop::collection::vec((1u32..40, 0u32..4), 1..200)) {
            let len = 300;
            let mut map = FreeMap::new(len);
            let mut flags = vec![true; len as usize];
            map.put(0, len);
            let mut taken = Vec::new();
            for (count, shift) in ops {
                let align = 1 << shift;
                let expected = (0..len).step_by(align).map(|a| a as usize).find(|&a| {
                    a + count as usize <= len as usize && flags[a..a + count as usize].iter().all(|&f| f)
                });
                let found = map.take(count, align as u32);
                prop_assert_eq!(found.map(|f| f as usize), expected);
                match expected {
                    Some(at) => {
                        flags[at..at + count as usize].fill(false);
                        taken.push((at, count));
                    }
                    None => {
                        if let Some((at, count)) = taken.pop() {
                            map.put(at as u32, count);
                            flags[at..at + count as usize].fill(true);
                        }
                    }
                }
                prop_assert_eq!(map.free() as usize, flags.iter().filter(|&&f| f).count());
            }
        }
    }
}
