//! The header of a logged heap, in its pool's root puddle: the layout of sub-heaps, and their
//! places.
//!
//! ```text
//! | header, 4,096 | words, 4,096 | guard | roots, 16,384 | guard | of sub-heap 0 | guard | ...
//! ```
//!
//! A *guard* is a page that is never used ([`LoggedHeader::guards`]): a program that has the heap
//! open has no access to it. Behind the roots lie metadata of the first sub-heaps.
//!
//! Invariant: a sub-heap exists when its word names it. Everything in the root puddle is metadata.

use super::SubHeapGeometry;
use crate::PAGE_SIZE;
use crate::checksum::{checksum, seed};
use crate::header::{Header, HeaderError, HeaderPrefix};
use crate::heap::ROOT_COUNT;
use crate::root::RootEntry;
use core::mem::offset_of;
use zerocopy::{FromBytes, Immutable, IntoBytes, KnownLayout};

/// Most sub-heaps of a heap.
pub const SUB_HEAPS_MAX: u32 = 256;

/// The first page of a logged heap; it never changes.
#[derive(Clone, Copy, Debug, PartialEq, Eq, FromBytes, IntoBytes, Immutable, KnownLayout)]
#[repr(C)]
pub struct LoggedHeader {
    /// Magic `CENLOGHP`, version, features, checksum.
    pub prefix: HeaderPrefix,
    /// Lanes of the micro log of each sub-heap.
    pub lanes: u32,
    /// Levels of the table in the first part of each sub-heap's metadata.
    pub levels: u32,
    /// Tickets of each sub-heap.
    pub tickets: u32,
    /// Pages on both sides of metadata that are never used: 1, or 0 in a heap of an earlier build.
    /// With 1, all other metadata are alone in puddles of [`crate::puddle::Role::Metadata`].
    pub guards: u32,
    /// Zero.
    pub reserved: [u8; 4032],
}

const _: () = assert!(size_of::<LoggedHeader>() as u64 == PAGE_SIZE);
const _: () = assert!(offset_of!(LoggedHeader, lanes) == 48);
const _: () = assert!(offset_of!(LoggedHeader, levels) == 52);
const _: () = assert!(offset_of!(LoggedHeader, tickets) == 56);
const _: () = assert!(offset_of!(LoggedHeader, guards) == 60);

impl LoggedHeader {
    /// From the header to the words of sub-heaps.
    pub const WORDS: u64 = PAGE_SIZE;
    /// From the header to the end of the words.
    pub const WORDS_END: u64 = 2 * PAGE_SIZE;
    /// From the header to the roots, in a heap that is made now.
    pub const ROOTS: u64 = Self::roots_at(1);
    /// Bytes of the roots.
    pub const ROOTS_LEN: u64 = ROOT_COUNT * size_of::<RootEntry>() as u64;
    /// From the header to the metadata of sub-heaps, in a heap that is made now.
    pub const SUB_HEAPS: u64 = Self::sub_heaps_at(1);

    /// From the header to the roots, with so many pages on each side of metadata.
    #[must_use]
    pub const fn roots_at(guards: u32) -> u64 {
        Self::WORDS_END + guards as u64 * PAGE_SIZE
    }

    /// From the header to the metadata of sub-heaps.
    #[must_use]
    pub const fn sub_heaps_at(guards: u32) -> u64 {
        Self::roots_at(guards) + Self::ROOTS_LEN + guards as u64 * PAGE_SIZE
    }

    /// The header of a heap whose sub-heaps are laid out so, with guard pages or without.
    #[must_use]
    pub fn new(geometry: &SubHeapGeometry, guards: u32) -> Self {
        let mut header = Self {
            prefix: HeaderPrefix::new(Self::MAGIC, PAGE_SIZE as u32),
            lanes: geometry.lanes,
            levels: geometry.levels,
            tickets: geometry.tickets,
            guards,
            reserved: [0; 4032],
        };
        crate::header::seal(&mut header);
        header
    }

    /// How sub-heaps are laid out.
    #[must_use]
    pub const fn geometry(&self) -> Option<SubHeapGeometry> {
        SubHeapGeometry::new(self.lanes, self.tickets, self.levels)
    }
}

const _: () = assert!(SUB_HEAPS_MAX as u64 * 8 <= PAGE_SIZE);
const _: () = assert!(LoggedHeader::SUB_HEAPS == 32_768 && LoggedHeader::sub_heaps_at(0) == 24_576);

impl Header for LoggedHeader {
    const NAME: &'static str = "logged heap header";
    const MAGIC: [u8; 8] = *b"CENLOGHP";
    const SEED: u64 = seed::LOGGED;

    fn check_fields(&self) -> Result<(), HeaderError> {
        if self.geometry().is_none() {
            let (field, value) = ("levels", u64::from(self.levels));
            return Err(HeaderError::Field { what: Self::NAME, field, value });
        }
        if self.guards > 1 {
            let (field, value) = ("guards", u64::from(self.guards));
            return Err(HeaderError::Field { what: Self::NAME, field, value });
        }
        match self.reserved.iter().any(|&byte| byte != 0) {
            true => Err(HeaderError::Reserved { what: Self::NAME }),
            false => Ok(()),
        }
    }
}

/// Where the first part of a sub-heap's metadata lies. One word: a store makes the sub-heap.
///
/// Bits 0 to 27: number of the puddle; 28 to 43: pages from its start, not 0; 44 to 63: check.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct SubHeapWord {
    /// Number of the puddle in the pool.
    pub puddle: u32,
    /// Pages from its start.
    pub page: u32,
}

const PUDDLE_BITS: u32 = 28;
const PAGE_BITS: u32 = 16;
const PLAIN: u64 = (1 << (PUDDLE_BITS + PAGE_BITS)) - 1;

impl SubHeapWord {
    /// The word of sub-heap `number`; `None`: no word can say that.
    #[must_use]
    pub fn encode(self, number: u32) -> Option<u64> {
        let fits = self.puddle < 1 << PUDDLE_BITS && (1..1 << PAGE_BITS).contains(&self.page);
        let plain = u64::from(self.puddle) | u64::from(self.page) << PUDDLE_BITS;
        let sum = checksum(seed::SUB_HEAP_WORD, [u64::from(number), plain].as_bytes());
        fits.then_some(plain | sum & !PLAIN)
    }

    /// What the word of sub-heap `number` says; `None`: it is damaged. 0 is no sub-heap.
    #[must_use]
    pub fn decode(bits: u64, number: u32) -> Option<Self> {
        let puddle = (bits & ((1 << PUDDLE_BITS) - 1)) as u32;
        let page = ((bits & PLAIN) >> PUDDLE_BITS) as u32;
        let word = Self { puddle, page };
        (word.encode(number) == Some(bits)).then_some(word)
    }
}
