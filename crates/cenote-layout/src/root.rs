//! The numbered roots of a pool (RAL-6): two words each, and a check that no flipped bit passes.
//!
//! ```text
//! bits  0 to 47   address of the root object; the whole word is 0 if there is none
//! bits 48 to 62   check over address and type
//! bit  63         set, so that the check of a root is never 0
//! word 1          type
//! ```
//!
//! The address and its check are one word, so **the store of that word commits a root**, as it does
//! without a check. The check is the upper bits of a sum of products, one for each word. A flipped
//! bit of the address or the type adds or takes away a multiple of its factor that changes these
//! bits for every rest of the word: a test goes through all bits. A bit that flips in a word that
//! is 0 leaves bit 63 clear, or no address: both are damage.

use crate::id::TypeId;
use zerocopy::{FromBytes, Immutable, IntoBytes, KnownLayout};

/// Bits of an address.
const ADDR_BITS: u32 = 48;
const CHECK_BITS: u32 = 15;
const PRESENT: u64 = 1 << 63;
const ADDR_FACTOR: u64 = 0x9e37_79b9_7f4a_7c15;
const TYPE_FACTOR: u64 = 0xbf58_476d_1ce4_e5b9;

/// One numbered root of a pool.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct RootEntry {
    /// Address of the root object, or 0.
    pub addr: u64,
    /// Its type.
    pub type_id: TypeId,
}

impl RootEntry {
    /// There is no root.
    pub const NONE: Self = Self { addr: 0, type_id: TypeId::UNTYPED };
}

/// One numbered root as it lies on media.
#[derive(Clone, Copy, Debug, PartialEq, Eq, FromBytes, IntoBytes, Immutable, KnownLayout)]
#[repr(C)]
pub struct RootSlot {
    /// Address and check; 0 if there is no root.
    pub word: u64,
    /// Type of the root object.
    pub type_id: TypeId,
}

const _: () = assert!(size_of::<RootSlot>() == 16);

impl RootSlot {
    /// The slot of a root; `None`: the address has more than 48 bits.
    #[must_use]
    pub const fn new(entry: RootEntry) -> Option<Self> {
        let RootEntry { addr, type_id } = entry;
        if addr >> ADDR_BITS != 0 {
            return None;
        }
        let word = if addr == 0 { 0 } else { addr | check(addr, type_id) << ADDR_BITS | PRESENT };
        Some(Self { word, type_id })
    }

    /// The root; `None`: the slot is damaged.
    #[must_use]
    pub const fn read(&self) -> Option<RootEntry> {
        let addr = self.word & ((1 << ADDR_BITS) - 1);
        let entry = RootEntry { addr, type_id: self.type_id };
        match Self::new(entry) {
            Some(slot) if slot.word == self.word => Some(entry),
            _ => None,
        }
    }
}

const fn check(addr: u64, type_id: TypeId) -> u64 {
    let sum = addr.wrapping_mul(ADDR_FACTOR).wrapping_add(type_id.0.wrapping_mul(TYPE_FACTOR));
    sum >> (64 - CHECK_BITS)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn no_flipped_bit_can_leave_the_check_as_it_was() {
        // A difference `d` of the sum leaves its upper bits as they were only if those of `d` are
        // all clear or all set.
        let all = (1 << CHECK_BITS) - 1;
        for factor in [ADDR_FACTOR, TYPE_FACTOR] {
            for bit in 0..64 {
                let upper = factor.wrapping_shl(bit) >> (64 - CHECK_BITS);
                assert!(upper != 0 && upper != all, "{factor:#x} {bit}");
            }
        }
    }

    #[test]
    fn one_flipped_bit_of_a_root_is_found_or_changes_no_root() {
        for (addr, type_id) in
            [(0, 0), (0, 7), (0x6000_0020_0040, 0xdead), (0x10, u64::MAX), (0xffff_ffff_fff0, 1)]
        {
            let slot =
                RootSlot::new(RootEntry { addr, type_id: TypeId(type_id) }).expect("48 bits");
            assert_eq!(slot.read(), Some(RootEntry { addr, type_id: TypeId(type_id) }));
            for bit in 0..64 {
                let flipped = RootSlot { word: slot.word ^ 1 << bit, ..slot };
                assert_eq!(flipped.read(), None, "{addr:#x} {bit}");
                let flipped = RootSlot { type_id: TypeId(type_id ^ 1 << bit), ..slot };
                assert!(
                    flipped.read().is_none_or(|root| addr == 0 && root.addr == 0),
                    "{addr:#x} type {bit}"
                );
            }
        }
        assert_eq!(RootSlot::new(RootEntry { addr: 1 << 48, type_id: TypeId(1) }), None);
    }
}
