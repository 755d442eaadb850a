//! Where puddles have gone, as a function from old addresses to new ones: what every pointer is
//! sent through when a puddle is rewritten.
//!
//! A puddle that was at `from..from + size` answers for the addresses `from + 1 ..= from + size`: a
//! pointer may stand one past the end of the last block of a puddle, and none stands at the very
//! start of one, because a header lies there. So where one puddle ended at the address at which
//! another began, the address between them belongs to the first. (At the start of a puddle that
//! none ended at, its own distance is used: a program may have stored it. But not if one that moves
//! ended at the address where that start goes, or ends at the start now, as it is when a pool moves
//! to right behind itself or right before: then what stood there could not be told from what came
//! there.)
//!
//! Looking up is a comparison with the range that was found last, and a binary search over the
//! ranges if that was another. Neighbours that moved by the same distance are one range.

use crate::catalog::{MoveRecord, RelocationRecord};
use crate::id::PoolId;
use crate::pointer::{
    PointerKind, RegionAddress, decode_heap, decode_relative, encode_heap, encode_relative,
};

extern crate alloc;
use alloc::collections::BTreeMap;
use alloc::vec::Vec;

/// Addresses that a program can have lie below this.
const ADDRESS_END: u64 = 1 << 47;

/// A range of addresses, and how far it moved.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Range {
    /// The first address that belongs to it: the start, or the one behind it.
    first: u64,
    /// The end, which belongs to it.
    last: u64,
    /// New address less the old one.
    delta: u64,
}

/// A relocation, ready to be asked.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Moves {
    ranges: Vec<Range>,
    pools: BTreeMap<PoolId, PoolId>,
}

/// The range that was found last; each user has one of its own.
#[derive(Clone, Copy, Debug, Default)]
pub struct Cursor(usize);

/// The sum of `moves` and a later move of the whole window `base..base + len` by `distance`. Sorted
/// by rising old address, as `moves` are.
///
/// A word that `moves` would change becomes what it would have become, further on by `distance`.
/// Any other word that leads into the window moves with it: what `moves` left where it was, and,
/// where a puddle was being rewritten in its file, what was rewritten already. The second is told
/// from the first by its address, because a puddle is rewritten in its file only if nothing came to
/// where something that moved had been ([`Moves::is_repeatable`]).
#[must_use]
pub fn and_window(moves: &[MoveRecord], (base, len): (u64, u64), distance: u64) -> Vec<MoveRecord> {
    let end = base.saturating_add(len);
    let mut out = Vec::with_capacity(2 * moves.len() + 1);
    let rest = |from: u64, to: u64| {
        let (from, to) = (from.max(base), to.min(end));
        (from < to).then(|| MoveRecord { from, to: from.wrapping_add(distance), size: to - from })
    };
    let mut at = base;
    for moved in moves {
        out.extend(rest(at, moved.from));
        let inside = moved.to >= base && moved.to < end;
        out.push(MoveRecord {
            to: moved.to.wrapping_add(if inside { distance } else { 0 }),
            ..*moved
        });
        at = at.max(moved.from.saturating_add(moved.size));
    }
    out.extend(rest(at, end));
    out
}

impl Moves {
    /// Reads a record.
    ///
    /// # Errors
    /// Impossible moves: ranges that are empty, beyond the addresses of a program, out of order or
    /// on top of another.
    pub fn new(record: &RelocationRecord) -> Result<Self, &'static str> {
        let mut ranges: Vec<Range> = Vec::with_capacity(record.moves.len());
        let mut free_from = 0;
        for moved in &record.moves {
            let end = |start: u64| {
                start
                    .checked_add(moved.size)
                    .filter(|end| start != 0 && moved.size != 0 && *end <= ADDRESS_END)
            };
            let (Some(last), Some(_)) = (end(moved.from), end(moved.to)) else {
                return Err("a range is empty or no range of addresses");
            };
            if moved.from < free_from {
                return Err("ranges are out of order, or one lies on top of another");
            }
            free_from = last;
            let delta = moved.to.wrapping_sub(moved.from);
            match ranges.last_mut() {
                Some(before) if before.last == moved.from && before.delta == delta => {
                    before.last = last
                }
                _ => ranges.push(Range { first: moved.from + 1, last, delta }),
            }
        }
        let mut ends: Vec<u64> = record.moves.iter().map(|moved| moved.to + moved.size).collect();
        ends.sort_unstable();
        let starts = |range: &Range| {
            let (start, goes_to) =
                (range.first - 1, range.first.wrapping_add(range.delta).wrapping_sub(1));
            let at = ranges.partition_point(|other| other.last < goes_to);
            let moves_from =
                ranges.get(at).is_some_and(|other| other.first <= goes_to && other.delta != 0);
            !moves_from
                && ranges.binary_search_by_key(&start, |other| other.last).is_err()
                && ends.binary_search(&start).is_err()
        };
        let first: Vec<u64> =
            ranges.iter().map(|range| range.first - u64::from(starts(range))).collect();
        ranges.iter_mut().zip(first).for_each(|(range, first)| range.first = first);
        Ok(Self { ranges, pools: record.pools.iter().copied().collect() })
    }

    /// How far what was at `addr` has moved: 0 for addresses that are in no puddle which moved.
    #[inline]
    #[must_use]
    pub fn delta(&self, addr: u64, cursor: &mut Cursor) -> u64 {
        if let Some(range) = self.ranges.get(cursor.0)
            && addr.wrapping_sub(range.first) <= range.last - range.first
        {
            return range.delta;
        }
        self.search(addr, cursor)
    }

    #[cold]
    fn search(&self, addr: u64, cursor: &mut Cursor) -> u64 {
        let at = self.ranges.partition_point(|range| range.last < addr);
        match self.ranges.get(at) {
            Some(range) if addr >= range.first => {
                cursor.0 = at;
                range.delta
            }
            _ => 0,
        }
    }

    /// What a native pointer is to become; bits of `tag_mask` stay.
    #[inline]
    #[must_use]
    pub fn native(&self, word: u64, tag_mask: u64, cursor: &mut Cursor) -> u64 {
        let addr = word & !tag_mask;
        let moved = addr.wrapping_add(self.delta(addr, cursor));
        // New addresses are below 2^47 and as aligned as old ones, so that a mask of low or high
        // bits keeps its bits.
        moved & !tag_mask | word & tag_mask
    }

    /// The new value of an off-holder that stood at `from` and stands at `to` now. `None`: it is no
    /// off-holder (null is not), or its target is out of reach.
    #[must_use]
    pub fn relative(&self, word: u64, from: u64, to: u64, cursor: &mut Cursor) -> Option<u64> {
        let target = decode_relative(from, word)?;
        encode_relative(to, target.wrapping_add(self.delta(target, cursor)))
    }

    /// What a region pointer is to become. `None`: it is none, or its pool's new number does not
    /// fit into one.
    #[must_use]
    pub fn region(&self, word: u64) -> Option<u64> {
        let region = RegionAddress::decode(word)?;
        match self.pools.get(&region.pool) {
            Some(pool) => RegionAddress { pool: *pool, ..region }.encode(),
            None => Some(word),
        }
    }

    /// The new first word of a heap pointer; the second says a place in its pool, which stays.
    /// `None`: it is none, or its pool's new number does not fit into one.
    #[must_use]
    pub fn heap(&self, word: u64) -> Option<u64> {
        let pool = decode_heap(word)?;
        encode_heap(*self.pools.get(&pool).unwrap_or(&pool))
    }

    /// The new word for the pool in a region pointer or a heap pointer.
    #[must_use]
    pub fn numbered(&self, word: u64, kind: PointerKind) -> Option<u64> {
        if kind == PointerKind::HEAP { self.heap(word) } else { self.region(word) }
    }

    /// Whether no native pointer that was sent through this once becomes another one by being sent
    /// through it again: what is at a new address is at none of the old ones.
    #[must_use]
    pub fn is_repeatable(&self) -> bool {
        let moving = || self.ranges.iter().filter(|range| range.delta != 0);
        // Ranges lie in order, so the first that does not end before an address is the only one
        // that can hold it.
        moving().all(|range| {
            let new = range.first.wrapping_add(range.delta)..=range.last.wrapping_add(range.delta);
            let at = self.ranges.partition_point(|other| other.last < *new.start());
            let mut near =
                self.ranges.iter().skip(at).take_while(|other| other.first <= *new.end());
            near.all(|other| other.delta == 0)
        })
    }

    /// Whether nothing moved and no pool has another number.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.ranges.is_empty() && self.pools.iter().all(|(old, new)| old == new)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::SLOT_SIZE;
    use crate::catalog::MoveRecord;
    use crate::id::Uuid;
    use proptest::prelude::*;

    fn moves(list: &[(u64, u64, u64)]) -> Result<Moves, &'static str> {
        let moves = list.iter().map(|&(from, to, size)| MoveRecord { from, to, size }).collect();
        Moves::new(&RelocationRecord {
            id: Uuid([1; 16]),
            moves,
            pools: alloc::vec![(PoolId(3), PoolId(7))],
        })
    }

    #[test]
    fn one_past_the_end_belongs_to_what_ended_there() {
        let m = moves(&[(0x1000, 0x10_0000, 0x1000), (0x2000, 0x50_0000, 0x1000)]).unwrap();
        let at = |addr| m.native(addr, 0, &mut Cursor::default());
        assert_eq!([at(0xfff), at(0x1000), at(0x1001)], [0xfff, 0x10_0000, 0x10_0001]);
        // Also of what stays where it is.
        let stays = moves(&[(0x1000, 0x1000, 0x1000), (0x2000, 0x50_0000, 0x1000)]).unwrap();
        let stays = |addr| stays.native(addr, 0, &mut Cursor::default());
        assert_eq!([stays(0x1fff), stays(0x2000), stays(0x2001)], [0x1fff, 0x2000, 0x50_0001]);
        assert_eq!(
            [at(0x2000), at(0x2001), at(0x3000), at(0x3001)],
            [0x10_1000, 0x50_0001, 0x50_1000, 0x3001]
        );
        assert_eq!(at(0), 0, "null stays null");
        let mut cursor = Cursor::default();
        assert_eq!(
            m.native(0x8000_0000_0000_2013, 0x8000_0000_0000_0003, &mut cursor),
            0x8000_0000_0050_0013
        );
    }

    #[test]
    fn off_holders_stay_where_both_ends_move_alike_and_follow_where_they_do_not() {
        let m = moves(&[(0x20_0000, 0x100_0000, 0x1000), (0x40_0000, 0x200_0000, 0x1000)]).unwrap();
        let holder = |at, to| encode_relative(at, to).unwrap();
        let moved = |word, from, to| m.relative(word, from, to, &mut Cursor::default());
        let near = holder(0x20_0010, 0x20_0800);
        assert_eq!(moved(near, 0x20_0010, 0x100_0010), Some(near));
        let far = holder(0x20_0010, 0x40_0800);
        assert_eq!(moved(far, 0x20_0010, 0x100_0010), Some(holder(0x100_0010, 0x200_0800)));
        let kept = holder(0x20_0010, 0x60_0000);
        assert_eq!(moved(kept, 0x20_0010, 0x100_0010), Some(holder(0x100_0010, 0x60_0000)));
        assert_eq!(moved(0, 0x20_0010, 0x100_0010), None, "null");
        let region =
            |pool| RegionAddress { pool: PoolId(pool), puddle: 1, offset: 32 }.encode().unwrap();
        assert_eq!(
            (m.region(region(3)), m.region(region(4)), m.region(5)),
            (Some(region(7)), Some(region(4)), None)
        );
        let heap = |pool| encode_heap(PoolId(pool)).unwrap();
        assert_eq!(
            (m.heap(heap(3)), m.heap(heap(4)), m.heap(3)),
            (Some(heap(7)), Some(heap(4)), None)
        );
    }

    #[test]
    fn records_that_cannot_be_are_refused() {
        for list in [
            &[(0, 0x1000, 0x1000)][..],
            &[(0x1000, 0, 0x1000)],
            &[(0x1000, 0x9000, 0)],
            &[(u64::MAX - 10, 0x9000, 0x1000)],
            &[(0x1000, ADDRESS_END - 1, 0x1000)],
            &[(0x1000, 0x9000, 0x1001), (0x2000, 0xf000, 0x1000)],
            &[(0x2000, 0x9000, 0x1000), (0x1000, 0xf000, 0x1000)],
        ] {
            assert!(moves(list).is_err(), "{list:?}");
        }
    }

    #[test]
    fn what_comes_to_where_something_was_cannot_be_done_twice() {
        for (list, expected) in [
            (&[(0x1000, 0x10_0000, 0x1000)][..], true),
            (&[(0x1000, 0x1000, 0x1000)], true),
            // On top of itself; right behind itself; right before itself; away from itself.
            (&[(0x1000, 0x1800, 0x1000)], false),
            (&[(0x1000, 0x2000, 0x1000)], true),
            (&[(0x2000, 0x1000, 0x1000)], true),
            (&[(0x1000, 0x3000, 0x1000)], true),
            // Where another was, which moved, or stays; right behind another, and right before.
            (&[(0x1000, 0x8000, 0x1000), (0x8000, 0x20_0000, 0x1000)], false),
            (&[(0x1000, 0x6000, 0x1000), (0x8000, 0x8000, 0x1000)], true),
            (&[(0x1000, 0x9000, 0x1000), (0x8000, 0x20_0000, 0x1000)], true),
            (&[(0x1000, 0x7000, 0x1000), (0x8000, 0x20_0000, 0x1000)], true),
            (&[(0x1000, 0x8000, 0x1000), (0x8000, 0x8000, 0x1000)], true),
            (
                &[(0x1000, 0x9000, 0x1000), (0x8000, 0x8000, 0x1000), (0x9000, 0x20_0000, 0x1000)],
                false,
            ),
        ] {
            assert_eq!(moves(list).unwrap().is_repeatable(), expected, "{list:x?}");
        }
        assert!(Moves::default().is_repeatable());
    }

    /// Puddles of some size after some gap, each with a slot to go to.
    fn laid_out(sizes: Vec<(u64, u64, u64)>) -> Vec<(u64, u64, u64)> {
        let mut at = SLOT_SIZE;
        let place = |(size, gap, to)| {
            let from = at + gap * SLOT_SIZE;
            at = from + size * SLOT_SIZE;
            (from, to * SLOT_SIZE, size * SLOT_SIZE)
        };
        sizes.into_iter().map(place).collect()
    }

    proptest! {
        /// A word that is old, and one that was rewritten before the window moved, come to the same
        /// place; from any window before, and after any number of moves.
        #[test]
        fn a_window_that_moves_takes_along_what_moved_in_it_and_what_stayed(
            sizes in proptest::collection::vec((1..9u64, 0..3u64, 1..1u64 << 20), 1..12),
            windows in proptest::collection::vec(0..4u64, 1..6),
            inside in any::<bool>(),
            questions in proptest::collection::vec(
                (any::<proptest::sample::Index>(), 1..0x1000u64), 1..32,
            ),
        ) {
            const LEN: u64 = 1 << 40;
            let (mut base, mut all) = (1u64 << 44, Vec::new());
            // What moved came into the window, from elsewhere in it or from outside.
            let mut list = laid_out(sizes);
            let by = if inside { base + LEN / 4 * 3 } else { 0 };
            list.iter_mut().for_each(|moved| moved.0 += by);
            let into = |&(from, to, size): &(u64, u64, u64)| {
                MoveRecord { from, to: base + to % (LEN / 2), size }
            };
            all.extend(list.iter().map(into));
            let record = |moves| RelocationRecord { id: Uuid([1; 16]), moves, pools: Vec::new() };
            let start = Moves::new(&record(all.clone())).unwrap();
            let mut distance = 0u64;
            for window in windows {
                let next = (1 << 44) + window * LEN;
                all = and_window(&all, (base, LEN), next.wrapping_sub(base));
                distance = distance.wrapping_add(next.wrapping_sub(base));
                base = next;
            }
            let m = Moves::new(&record(all)).unwrap();
            for (which, by) in questions {
                let (from, _, size) = list[which.index(list.len())];
                let old = from + 1 + by % size;
                let once = start.native(old, 0, &mut Cursor::default());
                let native = |addr| m.native(addr, 0, &mut Cursor::default());
                prop_assert_eq!(native(old), once.wrapping_add(distance));
                // What stayed, and what was rewritten already, where that can be told.
                if start.is_repeatable() {
                    prop_assert_eq!(native(once), once.wrapping_add(distance));
                }
                let stayed = (1 << 44) + LEN / 2 + by * 8 + 1;
                let expected = stayed.wrapping_add(distance);
                prop_assert_eq!(m.native(stayed, 0, &mut Cursor::default()), expected);
            }
        }

        #[test]
        fn what_is_repeatable_is_the_same_when_it_is_repeated(
            sizes in proptest::collection::vec((1..4u64, 0..4u64, 1..40u64), 1..6),
            questions in proptest::collection::vec(
                (0..60 * SLOT_SIZE, -2..3i64, any::<bool>()), 1..200,
            ),
        ) {
            let list = laid_out(sizes);
            let m = moves(&list).unwrap();
            let once = |addr| m.native(addr, 0, &mut Cursor::default());
            for (at, by, round) in questions {
                let at = if round { at / SLOT_SIZE * SLOT_SIZE } else { at };
                let at = at.wrapping_add(by as u64);
                prop_assert!(!m.is_repeatable() || once(once(at)) == once(at), "{at:#x}");
            }
        }

        #[test]
        fn looking_up_is_what_a_plain_search_says(
            sizes in proptest::collection::vec((1..9u64, 0..3u64, 1..1u64 << 20), 1..12),
            questions in proptest::collection::vec(
                (any::<proptest::sample::Index>(), -2..3i64), 1..64,
            ),
        ) {
            let list = laid_out(sizes);
            let m = moves(&list).unwrap();
            let mut cursor = Cursor::default();
            for (which, by) in questions {
                let (from, _, size) = list[which.index(list.len())];
                for edge in [from, from + size] {
                    let addr = edge.wrapping_add(by as u64);
                    let inside = |addr| {
                        list.iter().find(|(from, _, size)| addr > *from && addr <= from + size)
                    };
                    let start = || {
                        let taken = |to| inside(to).is_some_and(|(from, to, _)| from != to);
                        let ends = |at| list.iter().any(|(_, to, size)| to + size == at);
                        let starts =
                            |from, to| addr == from && !taken(to) && !ends(from);
                        list.iter().find(|(from, to, _)| starts(*from, *to))
                    };
                    let moved = inside(addr).or_else(start);
                    let expected = moved.map_or(addr, |(from, to, _)| addr - from + to);
                    prop_assert_eq!(m.native(addr, 0, &mut cursor), expected);
                    prop_assert_eq!(m.native(addr, 0, &mut Cursor::default()), expected);
                }
            }
        }
    }
}
