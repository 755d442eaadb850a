//! Keeps in memory which slabs have room, and where they are. Nothing of it is stored.

use cenote_layout::logged::SlabRecord;
use core::hash::{BuildHasherDefault, Hasher};
use std::collections::{HashMap, HashSet, VecDeque};

/// What slots of a slab are for: type and size.
pub(crate) type Kind = (u64, u32);

/// Slabs of which it is known that they have room, and where slabs are.
#[derive(Debug, Default)]
pub(crate) struct Slabs {
    /// Slots of the table, and the slot of the slab from which on to look, oldest first. Some may
    /// be gone or full since: those are not in `known`.
    pub(crate) room: HashMap<Kind, VecDeque<(u32, u32)>, BuildHasherDefault<Mixer>>,
    pub(crate) known: HashSet<u32, BuildHasherDefault<Mixer>>,
    /// Whether all slabs were looked at since the sub-heap was opened.
    pub(crate) gathered: bool,
    /// By the number of a unit, the slot of the table that may have the slab around it, plus 1.
    pub(crate) near: Vec<u32>,
}

const NEAR: usize = 4096;

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
    pub(crate) const fn near_at(unit: u64) -> usize {
        (unit >> 4) as usize % NEAR
    }

    pub(crate) fn note_near(&mut self, unit: u64, slot: u32) {
        if self.near.is_empty() {
            self.near = vec![0; NEAR];
        }
        self.near[Self::near_at(unit)] = slot + 1;
    }

    /// A slab has room.
    pub(crate) fn add(&mut self, slot: u32, slab: &SlabRecord, cursor: u32) {
        if self.known.insert(slot) {
            let kind = (slab.type_id.0, slab.size);
            self.room.entry(kind).or_default().push_back((slot, cursor));
        }
    }

    /// Whether another slab of its kind may have room.
    pub(crate) fn has_others(&self, slab: &SlabRecord) -> bool {
        self.room.get(&(slab.type_id.0, slab.size)).is_some_and(|room| room.len() > 1)
    }
}
