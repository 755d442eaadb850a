//! The words that lead from one value to another: native pointers, off-holders and region pointers
//! (RAL-5, Ralloc 4.6), and heap pointers, which are two words (POS-9, Poseidon 4.6).
//!
//! ```text
//! native     63                                             0
//!            | address, below 2^47                          |
//!
//! relative   63        48 47                                0
//!            | 0xe1c1    | target - place of the word       |   48 bits, two's complement
//!
//! region     63   56 55     40 39 38 37                     0
//!            | 0xf5 | pool    | split | puddle | offset / 16 |  `split` divides the last 38 bits
//!
//! heap       63   56 55                                   0  63        48 47                     0
//!            | 0xf6 | pool                               |  | puddle     | offset              |
//! ```
//!
//! A word of zeroes is null in all of them, so that zeroed memory holds no pointers. A *relative*
//! word (an off-holder) is right at one place only, and stays right when it and its target move by
//! the same distance. A *region* word says the pool, the puddle's number in it and the offset
//! there, so it is right wherever it lies and wherever that puddle is. A *heap* pointer says the
//! same in two words, the id of the heap and the place in it, and has room for every pool.
//!
//! The high bits are no address of a program, no valid UTF-8 (bytes 0xc1, 0xf5 and 0xf6 never
//! occur in it), no small or small negative number, and as floating-point numbers beyond 10^160 in
//! size: a conservative scan, which takes every word for what it may be, is seldom wrong.

use crate::id::PoolId;
use core::fmt;
use serde::{Deserialize, Serialize};

/// How a word of a type's pointer map says where it leads.
#[derive(
    Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize,
)]
#[serde(transparent)]
pub struct PointerKind(pub u8);

impl PointerKind {
    /// The address, but for the bits of a tag mask.
    pub const NATIVE: Self = Self(0);
    /// An off-holder, see [`encode_relative`].
    pub const RELATIVE: Self = Self(1);
    /// Pool, puddle and offset, see [`RegionAddress`].
    pub const REGION: Self = Self(2);
    /// Perhaps a pointer of one of the kinds above, perhaps none: the tracer looks at where it
    /// would lead.
    pub const PERHAPS: Self = Self(3);
    /// Two words, the id of a heap and a place in it: [`RegionAddress::to_pair`].
    pub const HEAP: Self = Self(4);
    /// The address of a block that this word owns: no other word does. The block has the type that
    /// the map says, unless it waits to be freed.
    pub const OWNED: Self = Self(5);

    /// Whether this release knows the kind.
    #[must_use]
    pub const fn is_known(self) -> bool {
        self.0 <= Self::OWNED.0
    }

    /// The kind that is followed and rewritten in the same way: owning changes neither.
    #[must_use]
    pub const fn followed(self) -> Self {
        if self.0 == Self::OWNED.0 { Self::NATIVE } else { self }
    }

    /// Bytes of one pointer.
    #[must_use]
    pub const fn size(self) -> u64 {
        if self.0 == Self::HEAP.0 { 16 } else { 8 }
    }
}

impl fmt::Display for PointerKind {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match *self {
            Self::NATIVE => f.write_str("pointer"),
            Self::RELATIVE => f.write_str("off-holder"),
            Self::REGION => f.write_str("region pointer"),
            Self::PERHAPS => f.write_str("possible pointer"),
            Self::HEAP => f.write_str("heap pointer"),
            Self::OWNED => f.write_str("owning pointer"),
            Self(kind) => write!(f, "pointer of unknown kind {kind}"),
        }
    }
}

/// High 16 bits of every off-holder.
pub const RELATIVE_PATTERN: u64 = 0xe1c1;
/// High 8 bits of every region pointer.
pub const REGION_PATTERN: u64 = 0xf5;
/// High 8 bits of the first word of every heap pointer.
pub const HEAP_PATTERN: u64 = 0xf6;

/// Bits of a pool's number in the id of a heap.
const HEAP_BITS: u32 = 56;
/// Bits of the offset in the second word of a heap pointer.
const OFFSET_BITS: u32 = 48;

/// The first word of heap pointers into a pool; `None` if its number is 0 or has more than 56 bits.
#[inline]
#[must_use]
pub const fn encode_heap(pool: PoolId) -> Option<u64> {
    if pool.0 == 0 || pool.0 >> HEAP_BITS != 0 {
        return None;
    }
    Some(HEAP_PATTERN << HEAP_BITS | pool.0)
}

/// The pool that the first word of a heap pointer says; `None` if it is not one (null is not).
#[inline]
#[must_use]
pub const fn decode_heap(word: u64) -> Option<PoolId> {
    let pool = word & ((1 << HEAP_BITS) - 1);
    if word >> HEAP_BITS != HEAP_PATTERN || pool == 0 {
        return None;
    }
    Some(PoolId(pool))
}

const DISTANCE_BITS: u32 = 48;
const DISTANCE_MASK: u64 = (1 << DISTANCE_BITS) - 1;

/// The off-holder that stands at `at` and leads to `to`; `None` if they are 2^47 bytes or more
/// apart. Both are addresses; null is 0 and not made here.
#[inline]
#[must_use]
pub const fn encode_relative(at: u64, to: u64) -> Option<u64> {
    let distance = to.wrapping_sub(at) as i64;
    if distance < -(1 << (DISTANCE_BITS - 1)) || distance >= 1 << (DISTANCE_BITS - 1) {
        return None;
    }
    Some(RELATIVE_PATTERN << DISTANCE_BITS | distance as u64 & DISTANCE_MASK)
}

/// Where an off-holder `word` that stands at `at` leads; `None` if it is not one (null is not).
#[inline]
#[must_use]
pub const fn decode_relative(at: u64, word: u64) -> Option<u64> {
    if word >> DISTANCE_BITS != RELATIVE_PATTERN {
        return None;
    }
    let distance = ((word << (64 - DISTANCE_BITS)) as i64) >> (64 - DISTANCE_BITS);
    Some(at.wrapping_add(distance as u64))
}

/// A place in a store, independent of the addresses of puddles: region pointers and heap pointers
/// say one.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct RegionAddress {
    /// The pool.
    pub pool: PoolId,
    /// Number of the puddle in the pool.
    pub puddle: u32,
    /// Bytes from the start of the puddle; a multiple of 16, if it is to fit into one word.
    pub offset: u64,
}

/// Bits of the puddle's number, by the value of `split`. The offset has the rest of 38, in units of
/// 16 bytes: 65,536 puddles of 64 MiB, 4,096 of 1 GiB, 256 of 16 GiB, 16 of 256 GiB.
const PUDDLE_BITS: [u32; 4] = [16, 12, 8, 4];
const PLACE_BITS: u32 = 38;
const UNIT: u64 = 16;

impl RegionAddress {
    /// The word; `None` if the pool's number, the puddle's and the offset do not fit into it, or
    /// the offset is no multiple of 16.
    #[must_use]
    pub const fn encode(self) -> Option<u64> {
        if self.pool.0 == 0 || self.pool.0 >= 1 << 16 || !self.offset.is_multiple_of(UNIT) {
            return None;
        }
        let (puddle, units) = (self.puddle as u64, self.offset / UNIT);
        let mut split = 0;
        while split < PUDDLE_BITS.len() {
            let bits = PUDDLE_BITS[split];
            if puddle >> bits == 0 && units >> (PLACE_BITS - bits) == 0 {
                let place = puddle << (PLACE_BITS - bits) | units;
                return Some(
                    REGION_PATTERN << 56 | self.pool.0 << 40 | (split as u64) << PLACE_BITS | place,
                );
            }
            split += 1;
        }
        None
    }

    /// What a word says; `None` if it is no region pointer (null is not).
    #[inline]
    #[must_use]
    pub const fn decode(word: u64) -> Option<Self> {
        let pool = word >> 40 & 0xffff;
        if word >> 56 != REGION_PATTERN || pool == 0 {
            return None;
        }
        let offset_bits = PLACE_BITS - PUDDLE_BITS[(word >> PLACE_BITS & 3) as usize];
        let place = word & ((1 << PLACE_BITS) - 1);
        let offset = (place & ((1 << offset_bits) - 1)) * UNIT;
        Some(Self { pool: PoolId(pool), puddle: (place >> offset_bits) as u32, offset })
    }

    /// The words of a heap pointer; `None` if a number has too many bits: 56 for the pool, 16 for
    /// the puddle, 48 for the offset. The second word is 0 for no place that a block has, because
    /// each puddle begins with a header.
    #[inline]
    #[must_use]
    pub const fn to_pair(self) -> Option<[u64; 2]> {
        let Some(heap) = encode_heap(self.pool) else { return None };
        if self.puddle >> 16 != 0 || self.offset >> OFFSET_BITS != 0 {
            return None;
        }
        Some([heap, (self.puddle as u64) << OFFSET_BITS | self.offset])
    }

    /// What the words of a heap pointer say; `None` if they are not one (null is not).
    #[inline]
    #[must_use]
    pub const fn from_pair([heap, place]: [u64; 2]) -> Option<Self> {
        let Some(pool) = decode_heap(heap) else { return None };
        if place == 0 {
            return None;
        }
        let offset = place & ((1 << OFFSET_BITS) - 1);
        Some(Self { pool, puddle: (place >> OFFSET_BITS) as u32, offset })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    proptest! {
        #[test]
        fn off_holders_lead_where_they_were_made_for(
            at in 0..1u64 << 47, to in 0..1u64 << 47, moved in 0..1u64 << 20,
        ) {
            let word = encode_relative(at, to).unwrap();
            prop_assert_eq!(decode_relative(at, word), Some(to));
            // Moved together they lead to the same thing.
            prop_assert_eq!(decode_relative(at + moved, word), Some(to + moved));
            prop_assert!(word != 0, "not null");
            prop_assert!(word >> 47 != 0 && word >> 47 != 0x1ffff, "no address, nor a kernel's");
            prop_assert_eq!(RegionAddress::decode(word), None);
        }

        #[test]
        fn region_pointers_say_what_they_were_made_from(
            pool in 1..1u64 << 16, puddle_bits in 0..17u32, puddle in any::<u32>(),
            units in any::<u64>(),
        ) {
            let puddle = if puddle_bits == 0 { 0 } else { puddle >> (32 - puddle_bits) };
            let offset = (units >> (64 - 22)) * UNIT;
            let region = RegionAddress { pool: PoolId(pool), puddle, offset };
            let word = region.encode().unwrap();
            prop_assert_eq!(RegionAddress::decode(word), Some(region));
            prop_assert_eq!(decode_relative(64, word), None);
            let offset = (units >> (64 - 34)) * UNIT;
            let large = RegionAddress { puddle: puddle & 15, offset, ..region };
            prop_assert_eq!(RegionAddress::decode(large.encode().unwrap()), Some(large));
        }
    }

    proptest! {
        #[test]
        fn heap_pointers_say_what_they_were_made_from(
            pool in 1..1u64 << 56, puddle in 0..1u32 << 16, offset in 1..1u64 << 48,
        ) {
            let place = RegionAddress { pool: PoolId(pool), puddle, offset };
            let pair = place.to_pair().unwrap();
            prop_assert_eq!(RegionAddress::from_pair(pair), Some(place));
            prop_assert_eq!((decode_heap(pair[0]), encode_heap(place.pool)),
                (Some(place.pool), Some(pair[0])));
            prop_assert_eq!(decode_relative(64, pair[0]), None);
            prop_assert_eq!(RegionAddress::decode(pair[0]), None);
        }
    }

    #[test]
    fn what_does_not_fit_into_a_heap_pointer_is_refused() {
        let place = RegionAddress { pool: PoolId(1), puddle: 0, offset: 8 };
        let refused = |place: RegionAddress| assert_eq!(place.to_pair(), None, "{place:?}");
        refused(RegionAddress { pool: PoolId(0), ..place });
        refused(RegionAddress { pool: PoolId(1 << 56), ..place });
        refused(RegionAddress { puddle: 1 << 16, ..place });
        refused(RegionAddress { offset: 1 << 48, ..place });
        let [heap, word] = place.to_pair().unwrap();
        let pairs = [[0, 0], [0, word], [heap, 0], [1, word], [heap ^ 1 << 63, word]];
        for pair in pairs.into_iter().chain([[HEAP_PATTERN << HEAP_BITS, word]]) {
            assert_eq!(RegionAddress::from_pair(pair), None, "{pair:x?}");
        }
    }

    #[test]
    fn what_does_not_fit_is_refused() {
        assert_eq!(encode_relative(0, 1 << 47), None);
        assert_eq!(encode_relative(1 << 47, 0).and_then(|w| decode_relative(1 << 47, w)), Some(0));
        let region = RegionAddress { pool: PoolId(1), puddle: 0, offset: 16 };
        let refused = |region: RegionAddress| assert_eq!(region.encode(), None, "{region:?}");
        refused(RegionAddress { pool: PoolId(0), ..region });
        refused(RegionAddress { pool: PoolId(1 << 16), ..region });
        refused(RegionAddress { offset: 8, ..region });
        refused(RegionAddress { puddle: 1 << 16, ..region });
        refused(RegionAddress { puddle: 16, offset: 256 << 30, ..region });
        refused(RegionAddress { puddle: 15, offset: 256 << 30, ..region });
        assert!(
            RegionAddress { puddle: 4095, offset: (1 << 30) - 16, ..region }.encode().is_some()
        );
    }

    #[test]
    fn null_and_common_words_are_neither() {
        let text = u64::from_le_bytes(*b"cenote!!");
        for word in [
            0,
            1,
            u64::MAX,
            1 << 46,
            text,
            1.5f64.to_bits(),
            (-1e9f64).to_bits(),
            f64::NAN.to_bits(),
        ] {
            assert_eq!(
                (decode_relative(4096, word), RegionAddress::decode(word), decode_heap(word)),
                (None, None, None),
                "{word:#x}"
            );
        }
    }
}
