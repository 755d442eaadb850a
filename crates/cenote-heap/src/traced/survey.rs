//! Surveys the marks of a superblock: one pass says what they mean together, for openers and for
//! tracing.
//!
//! Eight marks are read as one word ([`crate::sync`]). A word whose bytes are all FREE or ALLOCATED
//! equals its lowest bits times 255: that is one multiplication and one comparison, and the lowest
//! bits are the count.

use cenote_layout::mark::{self, Meaning, is_illegal, meaning};
use cenote_medium::planted::{Bug, planted};
use core::sync::atomic::{AtomicU8, AtomicU64, Ordering};

const STEP: usize = 8;
const ONES: u64 = 0x0101_0101_0101_0101;

/// What the marks of a superblock say.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Survey {
    /// Allocated blocks.
    pub(crate) used: u32,
    /// Condemned blocks.
    pub(crate) condemned: u32,
    /// Marks that are neither FREE nor ALLOCATED.
    pub(crate) unsettled: u32,
    /// Marks that are illegal.
    pub(crate) illegal: u32,
    /// The first illegal mark: number of its block, value.
    pub(crate) first: (u32, u8),
}

/// Eight marks from `at` on, those that do not exist as FREE.
fn word(marks: &[AtomicU8], at: usize) -> u64 {
    let place = &raw const marks[at];
    debug_assert!(place.addr().is_multiple_of(STEP));
    // SAFETY: marks begin at a multiple of 1,024 and have room up to one, so the word is aligned
    // and mapped. About mixed sizes see `sync`.
    let word = unsafe { (*place.cast::<AtomicU64>()).load(Ordering::Acquire) };
    match marks.len() - at {
        left @ 0..STEP => word & ((1 << (8 * left)) - 1),
        _ => word,
    }
}

/// Looks at all marks of a superblock.
pub(crate) fn survey(marks: &[AtomicU8]) -> Survey {
    let mut survey = Survey::default();
    for at in (0..marks.len()).step_by(STEP) {
        let word = word(marks, at);
        let lowest = word & ONES;
        if lowest.wrapping_mul(0xff) == word {
            survey.used += lowest.count_ones();
            continue;
        }
        for (k, mark) in word.to_le_bytes().into_iter().enumerate() {
            match meaning(mark) {
                Some(Meaning::Free) => {}
                Some(Meaning::Allocated) => survey.used += 1,
                Some(Meaning::Condemned) => {
                    survey.unsettled += 1;
                    survey.condemned += 1;
                }
                Some(Meaning::Taken | Meaning::Cached(_) | Meaning::Held(_)) => {
                    survey.unsettled += 1
                }
                Some(Meaning::Tiny) | None => {
                    survey.unsettled += 1;
                    if planted(Bug::IllegalMarkIsFree) {
                        continue;
                    }
                    if survey.illegal == 0 {
                        survey.first = ((at + k) as u32, mark);
                    }
                    survey.illegal += 1;
                }
            }
        }
    }
    survey
}

/// Bit `i` for each of the 64 marks from `64 * word` on that says "allocated", or is illegal and
/// said so before bits flipped; and how many are illegal.
pub(crate) fn allocated(marks: &[AtomicU8], word: usize) -> (u64, u32) {
    let (mut bits, mut illegal) = (0, 0);
    for (k, byte) in marks.iter().skip(word * 64).take(64).enumerate() {
        let value = byte.load(Ordering::Relaxed);
        let is_wrong = value != mark::ALLOCATED && value != mark::FREE && is_illegal(value);
        illegal += u32::from(is_wrong);
        let is_set = value == mark::ALLOCATED || is_wrong && mark::was_allocated(value);
        bits |= u64::from(is_set) << k;
    }
    (bits, illegal)
}

#[cfg(test)]
mod tests {
    use super::*;
    use cenote_layout::heap::MEMBER_COUNT;

    #[repr(align(8))]
    struct Marks([AtomicU8; 1024]);

    #[test]
    fn a_survey_counts_what_each_mark_says() {
        let mut seed = 9u64;
        for len in [1, 7, 8, 9, 64, 1000, 1024] {
            let marks = Marks([const { AtomicU8::new(0) }; 1024]);
            let mut expected = Survey::default();
            let (mut bits, mut illegal) = (vec![0u64; 16], vec![0; 16]);
            for (i, byte) in marks.0.iter().enumerate() {
                seed = seed.wrapping_mul(0x5851_f42d_4c95_7f2d).wrapping_add(1);
                let legal = [
                    0,
                    0,
                    255,
                    255,
                    255,
                    mark::TAKEN,
                    mark::cached(MEMBER_COUNT as u8),
                    mark::HELD,
                ];
                let flip =
                    if (seed >> 40).is_multiple_of(16) { 1 << ((seed >> 50) % 8) } else { 0 };
                let value = legal[(seed >> 33) as usize % 8] ^ flip;
                byte.store(value, Ordering::Relaxed);
                if i >= len {
                    continue;
                }
                expected.used += u32::from(value == 255);
                expected.unsettled += u32::from(value != 255 && value != 0);
                if flip != 0 {
                    if expected.illegal == 0 {
                        expected.first = (i as u32, value);
                    }
                    expected.illegal += 1;
                    illegal[i / 64] += 1;
                }
                bits[i / 64] |=
                    u64::from(value.count_ones() > if flip == 0 { 7 } else { 4 }) << (i % 64);
            }
            assert_eq!(survey(&marks.0[..len]), expected, "{len}");
            for word in 0..len.div_ceil(64) {
                assert_eq!(
                    allocated(&marks.0[..len], word),
                    (bits[word], illegal[word]),
                    "{len} {word}"
                );
            }
        }
    }
}
