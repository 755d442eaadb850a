//! One line: what it says, and how it changes.

use super::{WEAR_SIZE_MAX, check};
use crate::id::TypeId;

/// The words of a line, slot 0 first.
pub type LineWords = [u64; 8];
/// The words of a slot.
type SlotWords = [u64; 4];

/// The bits of a slot's last word that say whether the slot counts.
pub const COMMIT_BITS: u64 = 0xaaaa_aaaa_aaaa_aaaa;
/// The word of a slot that has them.
const LAST: usize = 3;
/// Versions count modulo 16.
const VERSIONS: u32 = 16;

/// What slot 0 of a new line says.
const NOTHING: WearRecord = WearRecord::Free { lines: 0, link: 0, time_ms: 0 };

/// What a slot says.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum WearRecord {
    /// Free lines.
    Free {
        /// How many, the header among them.
        lines: u32,
        /// The line of the block that was freed before, in the same puddle; 0: none.
        link: u32,
        /// When it was freed, in milliseconds since 1970, modulo 2^32.
        time_ms: u32,
    },
    /// An allocated block.
    Allocated {
        /// Its lines, the header among them.
        lines: u32,
        /// The type of what it holds.
        type_id: TypeId,
    },
    /// Free lines that a log of a transaction gave back: the block was allocated and is not, since
    /// when is not said. No program writes this record; the commit bits say so.
    Returned {
        /// How many, the header among them.
        lines: u32,
    },
    /// Lines whose header was damaged. They are out of use.
    Damaged {
        /// How many.
        lines: u32,
    },
    /// A segment begins with the chunk that the line is for.
    Segment {
        /// Its chunks.
        chunks: u32,
    },
}

impl WearRecord {
    /// Lines, or chunks.
    #[must_use]
    pub const fn size(&self) -> u32 {
        match *self {
            Self::Free { lines, .. }
            | Self::Allocated { lines, .. }
            | Self::Returned { lines }
            | Self::Damaged { lines } => lines,
            Self::Segment { chunks } => chunks,
        }
    }

    /// Whether it is an allocated block.
    #[must_use]
    pub const fn is_allocated(&self) -> bool {
        matches!(self, Self::Allocated { .. })
    }

    /// Whether it is a free block.
    #[must_use]
    pub const fn is_free(&self) -> bool {
        matches!(self, Self::Free { .. } | Self::Returned { .. })
    }

    const fn kind(&self) -> u32 {
        match self {
            Self::Free { .. } => 0,
            Self::Allocated { .. } | Self::Returned { .. } => 1,
            Self::Damaged { .. } => 2,
            Self::Segment { .. } => 3,
        }
    }

    fn payloads(&self, version: u32) -> [u32; 3] {
        let (a, b) = match *self {
            Self::Free { link, time_ms, .. } => (link, time_ms),
            Self::Allocated { type_id, .. } => (type_id.0 as u32, (type_id.0 >> 32) as u32),
            _ => (0, 0),
        };
        [self.size() & WEAR_SIZE_MAX | self.kind() << 26 | version << 28, a, b]
    }

    fn of([first, a, b]: [u32; 3]) -> Option<Self> {
        let size = first & WEAR_SIZE_MAX;
        match (first >> 26) & 3 {
            0 => Some(Self::Free { lines: size, link: a, time_ms: b }),
            1 => {
                let type_id = TypeId(u64::from(a) | u64::from(b) << 32);
                Some(Self::Allocated { lines: size, type_id })
            }
            2 => Some(Self::Damaged { lines: size }),
            _ => Some(Self::Segment { chunks: size }),
        }
    }

    /// The commit bits of a slot that says this and counts.
    const fn commit_bits(&self) -> u64 {
        if self.is_allocated() { COMMIT_BITS } else { 0 }
    }

    /// The words of a slot.
    fn encode(&self, key: u64, place: u64, version: u32) -> SlotWords {
        let payloads = self.payloads(version);
        let word = |number: usize| {
            let payload = payloads.get(number).copied().unwrap_or(0);
            word_of(key, place, number, version, payload)
        };
        [word(0), word(1), word(2), last_of(key, place, version) | self.commit_bits()]
    }
}

fn word_of(key: u64, place: u64, number: usize, version: u32, payload: u32) -> u64 {
    let number = number as u64 | u64::from(version) << 8;
    u64::from(payload) << 32 | u64::from(check(key, place, number, payload))
}

/// A slot's last word without its commit bits.
fn last_of(key: u64, place: u64, version: u32) -> u64 {
    spread(check(key, place, LAST as u64 | u64::from(version) << 8, 0))
}

/// The bits of a number in the even bits of another.
const fn spread(bits: u32) -> u64 {
    let mut x = bits as u64;
    x = (x | x << 16) & 0x0000_ffff_0000_ffff;
    x = (x | x << 8) & 0x00ff_00ff_00ff_00ff;
    x = (x | x << 4) & 0x0f0f_0f0f_0f0f_0f0f;
    x = (x | x << 2) & 0x3333_3333_3333_3333;
    (x | x << 1) & 0x5555_5555_5555_5555
}

/// Whether a word of a slot is whole, as one of that version.
fn is_word(key: u64, place: u64, number: usize, version: u32, word: u64) -> bool {
    if number == LAST {
        let commit = word & COMMIT_BITS;
        let uniform = commit == 0 || commit == COMMIT_BITS;
        return uniform && word & !COMMIT_BITS == last_of(key, place, version);
    }
    word == word_of(key, place, number, version, (word >> 32) as u32)
}

/// The versions of slot `slot`.
fn versions(slot: usize) -> impl Iterator<Item = u32> {
    (slot as u32..VERSIONS).step_by(2)
}

/// A slot of which all words are there.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct WholeSlot {
    version: u32,
    record: WearRecord,
}

fn whole(key: u64, place: u64, slot: usize, words: &SlotWords) -> Option<WholeSlot> {
    let version = (words[0] >> 60) as u32;
    if version as usize % 2 != slot {
        return None;
    }
    let all = (0..4).all(|number| is_word(key, place, number, version, words[number]));
    let payloads = [words[0], words[1], words[2]].map(|word| (word >> 32) as u32);
    let record = WearRecord::of(payloads).filter(|_| all)?;
    let record = match (record, words[LAST] & COMMIT_BITS) {
        (WearRecord::Allocated { lines, .. }, 0) => WearRecord::Returned { lines },
        (record, bits) if bits == record.commit_bits() => record,
        _ => return None,
    };
    Some(WholeSlot { version, record })
}

/// Whether every word of a slot is whole, of any version.
fn is_broken_off(key: u64, place: u64, slot: usize, words: &SlotWords) -> bool {
    let fits =
        |number: usize| versions(slot).any(|v| is_word(key, place, number, v, words[number]));
    (0..4).all(fits)
}

/// What a line is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum WearLine {
    /// What it says. What a crash broke off before that changed nothing.
    Says {
        /// What.
        record: WearRecord,
        /// The slot that says so.
        slot: usize,
        /// Its version.
        version: u32,
    },
    /// All zeros, or zeros and part of the first record: no program has used it.
    Unused,
    /// Damaged: a program or the medium has changed it.
    Damaged {
        /// The lines of the allocated block that the header was of, if that is left of it.
        lines: Option<u32>,
    },
}

impl WearLine {
    /// What the line at a place is, in a heap of that key.
    #[must_use]
    pub fn read(key: u64, place: u64, words: &LineWords) -> Self {
        let (slots, _) = words.as_chunks::<4>();
        let [first, second] = slots else { return Self::Unused };
        let read = [whole(key, place, 0, first), whole(key, place, 1, second)];
        let says = |slot: usize, whole: WholeSlot| {
            let WholeSlot { version, record } = whole;
            Self::Says { record, slot, version }
        };
        let chosen = match read {
            _ if Self::is_unused(key, place, words) => Some(Self::Unused),
            [Some(even), Some(odd)] => {
                let odd_is_newer = odd.version.wrapping_sub(even.version) % VERSIONS < 8;
                let newer = usize::from(odd_is_newer);
                read[newer].map(|whole| says(newer, whole))
            }
            [Some(one), None] => {
                let other = is_broken_off(key, place, 1, second);
                other.then(|| says(0, one))
            }
            [None, Some(one)] => {
                let other = is_broken_off(key, place, 0, first);
                other.then(|| says(1, one))
            }
            [None, None] => None,
        };
        let chosen = chosen.map(|line| match line {
            Self::Says { record: NOTHING, .. } => Self::Unused,
            line => line,
        });
        chosen.unwrap_or_else(|| Self::Damaged { lines: Self::lines_left(key, place, words) })
    }

    /// Zeros, or zeros and words of what [`WearLine::first`] writes.
    fn is_unused(key: u64, place: u64, words: &LineWords) -> bool {
        if !words.contains(&0) {
            return false;
        }
        let is_first = |i: usize| is_word(key, place, i % 4, (i / 4) as u32, words[i]);
        let missing = (0..8).filter(|&i| !is_first(i));
        let (count, zeros) =
            missing.fold((0, 0), |(count, zeros), i| (count + 1, zeros + u32::from(words[i] == 0)));
        count > 0 && count == zeros
    }

    /// The size of the allocated block that a damaged header was of.
    ///
    /// The slot of a block that a log gave back stays when the next block is allocated there, and
    /// that one may be longer. So a size counts only if its own slot says that it is of a block
    /// that was not given back, or if the other slot has its size too.
    fn lines_left(key: u64, place: u64, words: &LineWords) -> Option<u32> {
        let version = |slot: usize| (words[slot * 4] >> 60) as u32;
        let has_size = |slot: usize| {
            let of_slot = version(slot) as usize % 2 == slot;
            of_slot && is_word(key, place, 0, version(slot), words[slot * 4])
        };
        let is_kept = |slot: usize| {
            let last = words[slot * 4 + LAST];
            last & COMMIT_BITS == COMMIT_BITS && is_word(key, place, LAST, version(slot), last)
        };
        let size = |slot: usize| {
            let word = words[slot * 4];
            let is_block = has_size(slot) && (word >> 58) & 3 == 1;
            let counts = is_block && (is_kept(slot) || has_size(1 - slot));
            counts.then_some((word >> 32) as u32 & WEAR_SIZE_MAX)
        };
        match (size(0), size(1)) {
            (Some(one), Some(other)) if one != other => None,
            (one, other) => one.or(other),
        }
    }

    /// The number of the word whose commit bits decide about a slot.
    #[must_use]
    pub const fn commit_word(slot: usize) -> usize {
        slot * 4 + LAST
    }

    /// The words of a line that is all zeros, or that nothing reads yet. Slot 0 says that there is
    /// nothing.
    #[must_use]
    pub fn first(key: u64, place: u64, record: &WearRecord) -> LineWords {
        let [a, b, c, d] = NOTHING.encode(key, place, 0);
        let [e, f, g, h] = record.encode(key, place, 1);
        [a, b, c, d, e, f, g, h]
    }

    /// The slots of a damaged line, in the order in which they are to say `record`, each durable
    /// before the next: what was whole goes first, so that no part of it counts again.
    #[must_use]
    pub fn mended(
        key: u64,
        place: u64,
        words: &LineWords,
        record: &WearRecord,
    ) -> [(usize, [u64; 4]); 2] {
        let (slots, _) = words.as_chunks::<4>();
        let is_left = |v: u32| {
            let mut all = (0..8).map(|i| (i % 4, words[i]));
            all.any(|(number, word)| is_word(key, place, number, v, word))
        };
        let wholes: [Option<WholeSlot>; 2] =
            core::array::from_fn(|slot| whole(key, place, slot, slots.get(slot)?));
        let newest = wholes[1].or(wholes[0]).map_or(0, |whole| whole.version);
        let first = usize::from(wholes[0].is_none() && wholes[1].is_some());
        let later = (1..8).map(|more| (newest + more) % VERSIONS);
        let version = later
            .filter(|&v| v as usize % 2 == first)
            .find(|&v| !is_left(v) && !is_left((v + 1) % VERSIONS))
            .unwrap_or((newest + 2 + u32::from(newest as usize % 2 != first)) % VERSIONS);
        let second = (version + 1) % VERSIONS;
        [
            (first, record.encode(key, place, version)),
            (1 - first, record.encode(key, place, second)),
        ]
    }

    /// The slot that is to say `record` next, and its words; `None`: the line says nothing now.
    #[must_use]
    pub fn next(
        key: u64,
        place: u64,
        words: &LineWords,
        record: &WearRecord,
    ) -> Option<(usize, [u64; 4])> {
        let Self::Says { slot, version, .. } = Self::read(key, place, words) else { return None };
        let target = 1 - slot;
        let (slots, _) = words.as_chunks::<4>();
        let left: &SlotWords = slots.get(target)?;
        // Not a version of which a crash has left words there.
        let is_left = |v: u32| (0..4).any(|number| is_word(key, place, number, v, left[number]));
        let later = [1, 3, 5, 7].map(|more| (version + more) % VERSIONS);
        let version = later.into_iter().find(|&v| !is_left(v)).unwrap_or(later[0]);
        Some((target, record.encode(key, place, version)))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const KEY: u64 = 0x1234_5678_9abc_def0;
    const PLACE: u64 = 5 << 32 | 77;
    const BLOCK: WearRecord = WearRecord::Allocated { lines: 9, type_id: TypeId(0xfeed_f00d_0001) };
    const FREE: WearRecord = WearRecord::Free { lines: 9, link: 3, time_ms: 99 };

    fn put(words: &mut LineWords, record: &WearRecord) {
        let (slot, new) = WearLine::next(KEY, PLACE, words, record).expect("a line");
        words[slot * 4..slot * 4 + 4].copy_from_slice(&new);
    }

    fn said(words: &LineWords) -> Option<WearRecord> {
        match WearLine::read(KEY, PLACE, words) {
            WearLine::Says { record, .. } => Some(record),
            _ => None,
        }
    }

    #[test]
    fn every_part_of_a_change_is_the_state_before_or_after() {
        let mut words = WearLine::first(KEY, PLACE, &FREE);
        for round in 0..40 {
            let (before, after) = if round % 2 == 0 { (FREE, BLOCK) } else { (BLOCK, FREE) };
            let mut new = words;
            put(&mut new, &after);
            for part in 0..256u32 {
                let torn: LineWords =
                    core::array::from_fn(|i| if part & 1 << i != 0 { new[i] } else { words[i] });
                let expected = if torn == new { after } else { before };
                assert_eq!(said(&torn), Some(expected), "round {round}, part {part:#x}");
                // What is written over the part of another change.
                let (mut again, other) = (torn, WearRecord::Damaged { lines: 4 });
                let (slot, next) = WearLine::next(KEY, PLACE, &again, &other).expect("a line");
                for word in 0..3 {
                    again[slot * 4 + word] = next[word];
                    assert_eq!(said(&again), Some(expected), "round {round}, part {part:#x}");
                }
                again[slot * 4 + 3] = next[3];
                assert_eq!(said(&again), Some(other), "round {round}, part {part:#x}");
            }
            words = new;
        }
    }

    #[test]
    fn a_part_of_the_first_record_is_an_unused_line() {
        let words = WearLine::first(KEY, PLACE, &BLOCK);
        for part in 0..255u32 {
            let torn: LineWords =
                core::array::from_fn(|i| if part & 1 << i != 0 { words[i] } else { 0 });
            let line = WearLine::read(KEY, PLACE, &torn);
            assert_eq!(line, WearLine::Unused, "{part:#x}");
        }
        assert_eq!(said(&words), Some(BLOCK));
    }

    #[test]
    fn every_changed_byte_is_found() {
        let mut words = WearLine::first(KEY, PLACE, &FREE);
        put(&mut words, &BLOCK);
        for bit in 0..512 {
            let mut flipped = words;
            flipped[bit / 64] ^= 1 << (bit % 64);
            assert_eq!(said(&flipped), None, "bit {bit}");
        }
        for byte in 0..64 {
            for value in [0, 1, 0x55, 0xaa, 0xff] {
                let mut changed = words;
                let shift = byte % 8 * 8;
                changed[byte / 8] = changed[byte / 8] & !(0xff << shift) | value << shift;
                assert!(changed == words || said(&changed).is_none(), "byte {byte}: {value:#x}");
            }
        }
        for word in 0..8 {
            for value in [0, 1, u64::MAX, COMMIT_BITS, !COMMIT_BITS] {
                let mut changed = words;
                changed[word] = value;
                assert_eq!(said(&changed), None, "word {word}: {value:#x}");
            }
        }
        let elsewhere = WearLine::read(KEY, PLACE + 1, &words);
        assert_eq!(elsewhere, WearLine::Damaged { lines: None }, "a copied header");
    }

    #[test]
    fn a_log_gives_a_block_back_by_its_commit_bits_and_takes_that_back() {
        let returned = Some(WearRecord::Returned { lines: 9 });
        let mut words = WearLine::first(KEY, PLACE, &FREE);
        put(&mut words, &BLOCK);
        words[3] &= !COMMIT_BITS;
        assert_eq!(said(&words), returned);
        words[3] |= COMMIT_BITS;
        assert_eq!(said(&words), Some(BLOCK));
        words[3] &= !COMMIT_BITS;
        // The next block, in any part: the log clears the bits of the slot that it gets.
        let mut new = words;
        put(&mut new, &BLOCK);
        for part in 0..256u32 {
            let torn = core::array::from_fn(|i| if part & 1 << i != 0 { new[i] } else { words[i] });
            let expected = if torn == new { Some(BLOCK) } else { returned };
            assert_eq!(said(&torn), expected, "{part:#x}");
            let mut cleared = torn;
            cleared[7] &= !COMMIT_BITS;
            assert_eq!(said(&cleared), returned, "{part:#x}");
        }
        // A line that nothing used.
        let first = WearLine::first(KEY, PLACE, &BLOCK);
        for part in 0..255u32 {
            let mut torn: LineWords =
                core::array::from_fn(|i| if part & 1 << i != 0 { first[i] } else { 0 });
            torn[7] &= !COMMIT_BITS;
            assert_eq!(WearLine::read(KEY, PLACE, &torn), WearLine::Unused, "{part:#x}");
        }
    }

    #[test]
    fn no_part_of_a_mended_line_says_what_was_there_before() {
        let mended = WearRecord::Damaged { lines: 9 };
        let mut line = WearLine::first(KEY, PLACE, &FREE);
        for round in 0..20 {
            put(&mut line, if round % 2 == 0 { &BLOCK } else { &FREE });
            for broken in 0..8 {
                let mut words = line;
                words[broken] ^= 0x0110;
                let writes = WearLine::mended(KEY, PLACE, &words, &mended);
                for (slot, new) in writes {
                    for part in 0..16u32 {
                        let mut torn = words;
                        (0..4).filter(|word| part & 1 << word != 0).for_each(|word| {
                            torn[slot * 4 + word] = new[word];
                        });
                        let said = said(&torn);
                        let context = format!("round {round}, word {broken}, part {part:#x}");
                        assert!(said.is_none() || said == Some(mended), "{context}: {said:?}");
                    }
                    words[slot * 4..slot * 4 + 4].copy_from_slice(&new);
                }
                assert_eq!(said(&words), Some(mended));
            }
        }
    }

    #[test]
    fn a_damaged_header_says_the_size_that_is_left() {
        let mut words = WearLine::first(KEY, PLACE, &FREE);
        put(&mut words, &BLOCK);
        words[1] ^= 2;
        let line = WearLine::read(KEY, PLACE, &words);
        assert_eq!(line, WearLine::Damaged { lines: Some(9) });
        words[0] ^= 2;
        assert_eq!(WearLine::read(KEY, PLACE, &words), WearLine::Damaged { lines: None });
    }
}
