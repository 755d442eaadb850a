//! A bit for each line of a puddle, in memory of this process.

/// Bits by number of line.
#[derive(Clone, Debug, Default)]
pub(crate) struct LineBits(Vec<u64>);

const WORD: u32 = u64::BITS;

impl LineBits {
    /// So many clear bits.
    pub(crate) fn new(lines: u32) -> Self {
        Self(vec![0; lines.div_ceil(WORD) as usize])
    }

    fn word(&self, line: u32) -> u64 {
        self.0.get((line / WORD) as usize).copied().unwrap_or(0)
    }

    pub(crate) fn get(&self, line: u32) -> bool {
        self.word(line) >> (line % WORD) & 1 != 0
    }

    pub(crate) fn put(&mut self, line: u32, value: bool) {
        if let Some(word) = self.0.get_mut((line / WORD) as usize) {
            let bit = 1 << (line % WORD);
            *word = if value { *word | bit } else { *word & !bit };
        }
    }

    /// Changes the bits of `from..to`.
    pub(crate) fn fill(&mut self, from: u32, to: u32, value: bool) {
        let mut at = from;
        while at < to {
            let end = (at / WORD + 1).saturating_mul(WORD).min(to);
            let mask = mask_of(at, end);
            if let Some(word) = self.0.get_mut((at / WORD) as usize) {
                *word = if value { *word | mask } else { *word & !mask };
            }
            at = end;
        }
    }

    /// The first line of `from..to` whose bit is `value`.
    pub(crate) fn next(&self, from: u32, to: u32, value: bool) -> Option<u32> {
        let mut at = from;
        while at < to {
            let end = (at / WORD + 1).saturating_mul(WORD).min(to);
            let word = if value { self.word(at) } else { !self.word(at) };
            let found = word & mask_of(at, end);
            if found != 0 {
                return Some(at / WORD * WORD + found.trailing_zeros());
            }
            at = end;
        }
        None
    }

    /// The last line of `from..to` whose bit is `value`.
    pub(crate) fn last(&self, from: u32, to: u32, value: bool) -> Option<u32> {
        let mut end = to;
        while end > from {
            let start = ((end - 1) / WORD * WORD).max(from);
            let word = if value { self.word(start) } else { !self.word(start) };
            let found = word & mask_of(start, end);
            if found != 0 {
                return Some(start / WORD * WORD + WORD - 1 - found.leading_zeros());
            }
            end = start;
        }
        None
    }
}

/// The bits `from..to` of their word.
const fn mask_of(from: u32, to: u32) -> u64 {
    let len = to - from;
    let ones = if len >= WORD { u64::MAX } else { (1 << len) - 1 };
    ones << (from % WORD)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn all_ranges_and_searches_are_those_of_a_list_of_bools() {
        let mut seed = 7u64;
        let mut next = |below: u32| {
            seed = seed.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1);
            ((seed >> 33) as u32) % below
        };
        let (mut bits, mut model) = (LineBits::new(300), [false; 300]);
        for _ in 0..3000 {
            let (a, b) = (next(301), next(301));
            let (from, to, value) = (a.min(b), a.max(b), next(2) == 0);
            if next(3) == 0 {
                bits.fill(from, to, value);
                model[from as usize..to as usize].fill(value);
            }
            let range = from as usize..to as usize;
            let first = model[range.clone()].iter().position(|&bit| bit == value);
            let last = model[range].iter().rposition(|&bit| bit == value);
            assert_eq!(bits.next(from, to, value), first.map(|at| from + at as u32));
            assert_eq!(bits.last(from, to, value), last.map(|at| from + at as u32));
        }
    }
}
