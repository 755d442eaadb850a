//! Keeps in memory which slabs have room, and where they are. Nothing of it is stored.

use cenote_layout::logged::{RawCell, SlabRecord};
use core::hash::{BuildHasherDefault, Hasher};
use std::collections::{HashMap, HashSet, VecDeque};

/// What slots of a slab are for: type and size.
pub(crate) type Kind = (u64, u32);

/// Slabs of which it is known that they have room, and where slabs are.
#[derive(Debug, Default)]
pub(crate) struct Slabs {
    /// Slots of the table, and the slot of the slab from which on to look, oldest first. Some may
    /// be gone or full since: those are not in `known`.
    pub(crate) room: NumberMap<Kind, VecDeque<(u32, u32)>>,
    pub(crate) known: NumberSet<u32>,
    /// The slabs that served the last requests, by a hash of their kinds: each is known and has
    /// room, or is full or gone since.
    fronts: [Option<FrontSlab>; FRONTS],
    /// Records of slabs as they lie, by their slots of the table, which has 1 added: their checks
    /// fit, or were made here.
    whole: [(u32, RawCell); WHOLE],
    /// Whether all slabs were looked at since the sub-heap was opened.
    pub(crate) gathered: bool,
    /// By the number of a unit, the slot of the table that may have the slab around it, plus 1. A
    /// power of two of them, or none yet.
    near: Vec<u32>,
}

/// A slab that serves a kind of requests until it is full. It is the oldest that is known.
#[derive(Clone, Copy, Debug)]
struct FrontSlab {
    kind: Kind,
    slot: u32,
    /// The slot of the slab from which on to look.
    cursor: u32,
}

const FRONTS: usize = 16;
const WHOLE: usize = 32;
/// Units for 1 KiB each: data of 4 and of 256 MiB.
const NEAR_MIN: usize = 1 << 12;
const NEAR_MAX: usize = 1 << 18;

/// A map from numbers of this process.
pub(crate) type NumberMap<K, V> = HashMap<K, V, BuildHasherDefault<Mixer>>;
/// A set of them.
pub(crate) type NumberSet<K> = HashSet<K, BuildHasherDefault<Mixer>>;

/// Hashes numbers of this process, and types, by a multiplication each. A program that chose them
/// so that they collide would make its own heap slow, and no other.
#[derive(Debug, Default)]
pub(crate) struct Mixer(u64);

impl Hasher for Mixer {
    fn write(&mut self, bytes: &[u8]) {
        bytes.iter().for_each(|&byte| self.write_u64(byte.into()));
    }

    #[inline]
    fn write_u32(&mut self, number: u32) {
        self.write_u64(number.into());
    }

    #[inline]
    fn write_u64(&mut self, number: u64) {
        let wide = u128::from(self.0 ^ number ^ 0x9e37_79b9_7f4a_7c15) * 0xbf58_476d_1ce4_e5b9;
        self.0 = wide as u64 ^ (wide >> 64) as u64;
    }

    #[inline]
    fn finish(&self) -> u64 {
        self.0
    }
}

impl Slabs {
    /// The place in `near` for the slab around a unit.
    #[inline]
    const fn near_at(&self, unit: u64) -> usize {
        (unit >> 4) as usize & self.near.len().wrapping_sub(1)
    }

    /// Whether a record of a slab is known to fit its check.
    #[inline]
    pub(crate) fn is_whole(&self, slot: u32, raw: &RawCell) -> bool {
        let (of, known) = &self.whole[slot as usize % WHOLE];
        *of == slot + 1 && known == raw
    }

    /// The check of a slab's record fits.
    #[inline]
    pub(crate) fn note_whole(&mut self, slot: u32, raw: RawCell) {
        self.whole[slot as usize % WHOLE] = (slot + 1, raw);
    }

    /// The slot of the table that may have the slab around a unit.
    #[inline]
    pub(crate) fn near(&self, unit: u64) -> Option<u32> {
        self.near.get(self.near_at(unit))?.checked_sub(1)
    }

    /// The slab around a unit is in a slot of the table.
    #[inline]
    pub(crate) fn note_near(&mut self, unit: u64, slot: u32) {
        if unit >> 4 >= self.near.len() as u64 && self.near.len() < NEAR_MAX {
            self.grow_near(unit);
        }
        let at = self.near_at(unit);
        self.near[at] = slot + 1;
    }

    /// Room for the slabs up to a unit. What was noted for others stays, and may be wrong.
    #[cold]
    fn grow_near(&mut self, unit: u64) {
        let len = usize::try_from(unit >> 4).map_or(NEAR_MAX, |at| at.saturating_add(1));
        let len = len.min(NEAR_MAX).next_power_of_two().max(NEAR_MIN);
        self.near.resize(len, 0);
    }

    /// The place in `fronts` for a kind.
    const fn front_at(kind: Kind) -> usize {
        (kind.0 ^ (kind.1 as u64 >> 4)) as usize % FRONTS
    }

    /// The slab that served the last request of a kind, and from which of its slots on to look.
    #[inline]
    pub(crate) fn front(&self, kind: Kind) -> Option<(u32, u32)> {
        let front = self.fronts[Self::front_at(kind)].filter(|front| front.kind == kind)?;
        Some((front.slot, front.cursor))
    }

    /// A slab has room.
    #[inline]
    pub(crate) fn add(&mut self, slot: u32, slab: &SlabRecord, cursor: u32) {
        let kind = kind_of(slab);
        if self.front(kind).is_none_or(|(front, _)| front != slot) && self.known.insert(slot) {
            self.room.entry(kind).or_default().push_back((slot, cursor));
        }
    }

    /// A slab has no room any more, or is none.
    pub(crate) fn forget(&mut self, slot: u32, slab: &SlabRecord) {
        self.known.remove(&slot);
        let kind = kind_of(slab);
        if self.front(kind).is_some_and(|(front, _)| front == slot) {
            self.fronts[Self::front_at(kind)] = None;
        }
    }

    /// A slot of a slab was allocated: whether it is full, and where to look next.
    #[inline]
    pub(crate) fn slot_taken(&mut self, slot: u32, slab: &SlabRecord, index: u32) {
        let kind = kind_of(slab);
        if slab.is_full() {
            self.forget(slot, slab);
            // It was the front, or is new.
            if let Some(room) = self.room.get_mut(&kind)
                && room.front().is_some_and(|(front, _)| *front == slot)
            {
                room.pop_front();
            }
            return;
        }
        let front = &mut self.fronts[Self::front_at(kind)];
        if let Some(front) = front.as_mut().filter(|front| (front.kind, front.slot) == (kind, slot))
        {
            front.cursor = index + 1;
            return;
        }
        self.make_front(kind, slot, slab, index + 1);
    }

    /// A slab serves a kind of requests from now on.
    #[cold]
    fn make_front(&mut self, kind: Kind, slot: u32, slab: &SlabRecord, cursor: u32) {
        self.add(slot, slab, 0);
        let front = &mut self.fronts[Self::front_at(kind)];
        let before = front.replace(FrontSlab { kind, slot, cursor });
        // The one before goes on where it was, if its turn comes again.
        if let Some(before) = before
            && let Some(room) = self.room.get_mut(&before.kind)
            && let Some((_, cursor)) = room.front_mut().filter(|(slot, _)| *slot == before.slot)
        {
            *cursor = before.cursor;
        }
    }

    /// Whether another slab of its kind may have room.
    pub(crate) fn has_others(&self, slab: &SlabRecord) -> bool {
        self.room.get(&kind_of(slab)).is_some_and(|room| room.len() > 1)
    }
}

/// What slots of a slab are for.
#[inline]
pub(crate) const fn kind_of(slab: &SlabRecord) -> Kind {
    (slab.type_id.0, slab.size)
}
