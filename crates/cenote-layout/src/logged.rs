//! Metadata of a sub-heap of the logged heap (Poseidon, sections 4 and 5; POS-2, POS-4 to POS-7).
//!
//! A heap ([`LoggedHeader`]) consists of sub-heaps. A sub-heap has *data*, which are blocks and
//! nothing else, and *metadata*. They do not touch. Both consist of *parts* ([`PartEntry`]), ranges
//! of puddles. The first part of the metadata:
//!
//! ```text
//! 0        4,096       12,288      20,480          24,576  28,672              table
//! | header | undo half | undo half | lists, levels | parts | lanes   | tickets | level 0 ...
//! ```
//!
//! Later parts have further levels of the table, and nothing else.
//!
//! Metadata consist of *cells* of 32 bytes, two in a line, so no cell lies in two lines. Cells are
//! numbered from the start of the region. A [`BlockRecord`], a [`ListHead`] and a [`LevelEntry`]
//! are one cell each. The last 4 bytes of a cell are a check over the others, the kind and the
//! number of the cell: it shows a flipped bit and a cell in a wrong place. A cell changes by a
//! *change* that the undo log covers, or, of a slab, by a *step* ([`SlabRecord`]). The words of
//! lanes ([`LaneWord`]) change by one store.
//!
//! Table: level `i` has [`LEVEL_SLOTS`] * 2^i slots. A record lies in one of the [`PROBE_WINDOW`]
//! slots from its home slot on, in one of the levels that are present ([`LevelEntry`]). A slot that
//! is zero is empty. Pages of a level that is absent may be holes.

use crate::PAGE_SIZE;
use crate::checksum::{checksum, seed};
use crate::header::{Header, HeaderError, HeaderPrefix};
use crate::id::TypeId;
use core::mem::offset_of;
use zerocopy::{FromBytes, Immutable, IntoBytes, KnownLayout};

mod heap;
mod micro;
mod part;
mod slab;
mod ticket;
mod undo;

pub use heap::{LoggedHeader, SUB_HEAPS_MAX, SubHeapWord};
pub use micro::{LaneLink, LaneState, LaneWord, MICRO_SEQUENCE_BITS, MicroEntry, MicroKind};
pub use part::{PartEntry, PartKind};
pub use slab::{SLAB_SIZES, SlabRecord, slab_class};
pub use ticket::{TICKET_SIZE, TICKETS_MAX, TicketWord};
pub use undo::{
    LastStep, UndoEntry, UndoHeader, is_seal, seal_in_order, seal_of_contents, undo_check,
};

/// Bytes of a cell.
pub const CELL_SIZE: u64 = 32;
/// A cell as it lies on media.
pub type RawCell = [u64; 4];
/// What an empty slot holds.
pub const EMPTY: RawCell = [0; 4];

/// Class of the smallest blocks: a block of class `c` has 2^`c` bytes.
pub const CLASS_MIN: u8 = 6;
/// Class of the largest blocks.
pub const CLASS_MAX: u8 = 47;
/// Bytes of a unit, in which offsets of blocks count: those of the smallest block.
pub const UNIT_SIZE: u64 = 1 << CLASS_MIN;
/// Least bytes of the first part of the data.
pub const DATA_LEN_MIN: u64 = PAGE_SIZE;
/// Most parts of a sub-heap, of data and of metadata together.
pub const PARTS_MAX: u32 = (PAGE_SIZE / CELL_SIZE) as u32;

/// Slots in which a record may lie, from its home slot on, in each level.
pub const PROBE_WINDOW: u64 = 8;
/// Slots of level 0: a page of them.
pub const LEVEL_SLOTS: u64 = PAGE_SIZE / CELL_SIZE;
/// Most levels of a table, so that 32 bits number all slots.
pub const LEVELS_MAX: u32 = 24;

/// Bytes of one half of the undo log.
pub const UNDO_HALF_SIZE: u64 = 8 << 10;
/// Bytes of an undo record before its entries.
pub const UNDO_HEADER_SIZE: u64 = 64;
/// Bytes of an undo entry: the number of a cell, and what it held.
pub const UNDO_ENTRY_SIZE: u64 = 8 + CELL_SIZE;
/// Most cells that one change may have.
pub const UNDO_CELLS_MAX: usize = ((UNDO_HALF_SIZE - UNDO_HEADER_SIZE) / UNDO_ENTRY_SIZE) as usize;

/// Where the word of the last step lies ([`LastStep`]): the last word of the first half of the undo
/// log, which no record reaches.
pub const LAST_STEP_OFFSET: u64 = UNDO_OFFSET + UNDO_HALF_SIZE - 8;
const _: () =
    assert!(UNDO_HEADER_SIZE + UNDO_CELLS_MAX as u64 * UNDO_ENTRY_SIZE + 8 <= UNDO_HALF_SIZE);

/// Bytes of a lane of the micro log.
pub const LANE_SIZE: u64 = PAGE_SIZE;
/// Bytes of a lane before its entries.
pub const LANE_HEADER_SIZE: u64 = 64;
/// Entries of a lane.
pub const LANE_ENTRIES: usize =
    ((LANE_SIZE - LANE_HEADER_SIZE) / size_of::<MicroEntry>() as u64) as usize;
/// Most lanes of a sub-heap.
pub const LANES_MAX: u32 = 256;

/// Where the first half of the undo log begins.
pub const UNDO_OFFSET: u64 = PAGE_SIZE;
/// Where the list heads begin; that of class `c` is number `c`.
pub const LISTS_OFFSET: u64 = UNDO_OFFSET + 2 * UNDO_HALF_SIZE;
/// Where the level entries begin.
pub const LEVELS_OFFSET: u64 = LISTS_OFFSET + (CLASS_MAX as u64 + 1) * CELL_SIZE;
/// Where the entries of parts begin.
pub const PARTS_OFFSET: u64 = LISTS_OFFSET + PAGE_SIZE;
/// Where the lanes begin.
pub const LANES_OFFSET: u64 = PARTS_OFFSET + PAGE_SIZE;

const _: () = assert!(LEVELS_OFFSET + LEVELS_MAX as u64 * CELL_SIZE <= PARTS_OFFSET);
const _: () = assert!(UNDO_CELLS_MAX == 203 && LANE_ENTRIES == 252);
// An allocation splits one block into all classes below it: a record and a list head for each, the
// block's own two, the next record of its list, the levels, and an entry of the micro log.
const _: () =
    assert!(2 * (CLASS_MAX - CLASS_MIN) as usize + 4 + LEVELS_MAX as usize <= UNDO_CELLS_MAX);

/// The first page of a sub-heap's metadata; it never changes.
#[derive(Clone, Copy, Debug, PartialEq, Eq, FromBytes, IntoBytes, Immutable, KnownLayout)]
#[repr(C)]
pub struct SubHeapHeader {
    /// Magic `CENSUBHP`, version, features, checksum.
    pub prefix: HeaderPrefix,
    /// Bytes of the first part of the metadata.
    pub metadata_len: u64,
    /// Number of the sub-heap in its heap.
    pub number: u32,
    /// Lanes of the micro log.
    pub lanes: u32,
    /// Levels of the table that lie in the first part.
    pub levels: u32,
    /// [`CLASS_MIN`].
    pub class_min: u32,
    /// Tickets, a multiple of 64.
    pub tickets: u32,
    /// Zero.
    pub reserved: [u8; 4020],
}

const _: () = assert!(size_of::<SubHeapHeader>() as u64 == PAGE_SIZE);
const _: () = assert!(offset_of!(SubHeapHeader, metadata_len) == 48);
const _: () = assert!(offset_of!(SubHeapHeader, number) == 56);
const _: () = assert!(offset_of!(SubHeapHeader, lanes) == 60);
const _: () = assert!(offset_of!(SubHeapHeader, levels) == 64);
const _: () = assert!(offset_of!(SubHeapHeader, class_min) == 68);
const _: () = assert!(offset_of!(SubHeapHeader, tickets) == 72);

impl SubHeapHeader {
    /// The header of a sub-heap that is laid out so.
    #[must_use]
    pub fn new(number: u32, geometry: &SubHeapGeometry) -> Self {
        let mut header = Self {
            prefix: HeaderPrefix::new(Self::MAGIC, PAGE_SIZE as u32),
            metadata_len: geometry.metadata_len,
            number,
            lanes: geometry.lanes,
            levels: geometry.levels,
            class_min: u32::from(CLASS_MIN),
            tickets: geometry.tickets,
            reserved: [0; 4020],
        };
        crate::header::seal(&mut header);
        header
    }

    /// How the sub-heap is laid out; `None`: no release lays one out so.
    #[must_use]
    pub fn geometry(&self) -> Option<SubHeapGeometry> {
        SubHeapGeometry::new(self.lanes, self.tickets, self.levels)
            .filter(|geometry| geometry.metadata_len == self.metadata_len)
    }
}

impl Header for SubHeapHeader {
    const NAME: &'static str = "sub-heap header";
    const MAGIC: [u8; 8] = *b"CENSUBHP";
    const SEED: u64 = seed::SUB_HEAP;

    fn check_fields(&self) -> Result<(), HeaderError> {
        let bad = |field, value| Err(HeaderError::Field { what: Self::NAME, field, value });
        if self.class_min != u32::from(CLASS_MIN) {
            return bad("class_min", u64::from(self.class_min));
        }
        if self.geometry().is_none() {
            return bad("metadata_len", self.metadata_len);
        }
        if self.reserved.iter().any(|&byte| byte != 0) {
            return Err(HeaderError::Reserved { what: Self::NAME });
        }
        Ok(())
    }
}

/// Where what lies in the first part of a sub-heap's metadata. Offsets beyond it are those that
/// further levels would have behind it: they number cells.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct SubHeapGeometry {
    /// Lanes of the micro log.
    pub lanes: u32,
    /// Tickets.
    pub tickets: u32,
    /// Levels of the table in the first part.
    pub levels: u32,
    /// Where level 0 of the table begins.
    pub table: u64,
    /// Bytes of the first part.
    pub metadata_len: u64,
}

impl SubHeapGeometry {
    /// The geometry with so many lanes, tickets and levels; `None` if there can be none. Tickets
    /// are a multiple of 64, which fill pages.
    #[must_use]
    pub const fn new(lanes: u32, tickets: u32, levels: u32) -> Option<Self> {
        if lanes == 0
            || lanes > LANES_MAX
            || tickets > TICKETS_MAX
            || !(tickets as u64 * TICKET_SIZE).is_multiple_of(PAGE_SIZE)
            || levels == 0
            || levels > LEVELS_MAX
        {
            return None;
        }
        let table = LANES_OFFSET + lanes as u64 * LANE_SIZE + tickets as u64 * TICKET_SIZE;
        let metadata_len = table + slots_of(levels) * CELL_SIZE;
        Some(Self { lanes, tickets, levels, table, metadata_len })
    }

    /// Levels that have five slots for four of the smallest blocks in `data_len` bytes, as far as
    /// 32 bits number them.
    #[must_use]
    pub const fn levels_for(data_len: u64) -> u32 {
        let blocks = data_len / UNIT_SIZE;
        let mut levels = 1;
        while levels < LEVELS_MAX && slots_of(levels) < blocks + blocks / 4 {
            levels += 1;
        }
        levels
    }

    /// Where a ticket begins.
    #[must_use]
    pub const fn ticket_at(&self, ticket: u32) -> u64 {
        LANES_OFFSET + self.lanes as u64 * LANE_SIZE + ticket as u64 * TICKET_SIZE
    }

    /// Number of the cell of a slot of the table.
    #[inline]
    #[must_use]
    pub const fn slot_cell(&self, slot: u32) -> u64 {
        self.table / CELL_SIZE + slot as u64
    }

    /// Offset and length, in bytes, of a level.
    #[must_use]
    pub const fn level_range(&self, level: u32) -> (u64, u64) {
        (self.table + slots_of(level) * CELL_SIZE, (LEVEL_SLOTS << level) * CELL_SIZE)
    }

    /// Whether changes may change the cell: list heads, level entries, parts, micro entries, slots.
    #[inline]
    #[must_use]
    pub const fn is_changeable(&self, cell: u64) -> bool {
        let table = self.table / CELL_SIZE;
        cell >= LISTS_OFFSET / CELL_SIZE && cell < table + slots_of(LEVELS_MAX)
    }
}

/// The level of a slot.
#[inline]
#[must_use]
pub const fn level_of(slot: u32) -> u32 {
    (slot as u64 / LEVEL_SLOTS + 1).ilog2()
}

/// Slots of the first `levels` levels; also the number of the first slot of level `levels`.
#[inline]
#[must_use]
pub const fn slots_of(levels: u32) -> u64 {
    LEVEL_SLOTS * ((1 << levels) - 1)
}

/// Home slot of the record of the block at `unit`, in a level.
#[inline]
#[must_use]
pub const fn home_of(unit: u64, level: u32) -> u64 {
    // Each level spreads the same units in another way.
    let x = unit.wrapping_add((level as u64 + 1).wrapping_mul(0x9e37_79b9_7f4a_7c15));
    mixed(x) & ((LEVEL_SLOTS << level) - 1)
}

/// The finaliser of SplitMix64: another word for each word, 0 for 0 alone.
#[inline]
const fn mixed(mut x: u64) -> u64 {
    x = (x ^ (x >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    x = (x ^ (x >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
    x ^ (x >> 31)
}

/// A structure of one cell, with a check in its last 4 bytes.
pub trait Cell: FromBytes + IntoBytes + Immutable + KnownLayout + Copy {
    /// Seed of its check.
    const SEED: u64;

    /// Whether all fields hold what they can.
    fn is_possible(&self) -> bool;

    /// The cell as it lies on media at `number`.
    #[inline]
    #[must_use]
    fn to_raw(&self, number: u64) -> RawCell {
        let mut raw = EMPTY;
        raw.as_mut_bytes().copy_from_slice(self.as_bytes());
        raw[3] &= u64::from(u32::MAX);
        raw[3] |= cell_check(Self::SEED, number, raw) << 32;
        raw
    }

    /// The structure at `number`; `None`: the cell is damaged, or empty.
    #[inline]
    #[must_use]
    fn from_raw(raw: RawCell, number: u64) -> Option<Self> {
        let plain = plain_of(Self::SEED, raw, number)?;
        Self::read_from_bytes(plain.as_bytes()).ok().filter(Self::is_possible)
    }
}

/// A cell without its check, which fits.
#[inline]
fn plain_of(seed: u64, raw: RawCell, number: u64) -> Option<RawCell> {
    let plain = [raw[0], raw[1], raw[2], raw[3] & u64::from(u32::MAX)];
    (cell_check(seed, number, plain) == raw[3] >> 32 && raw != EMPTY).then_some(plain)
}

/// The upper half of the checksum over a cell without its check, and its number.
#[inline]
fn cell_check(seed: u64, number: u64, plain: RawCell) -> u64 {
    let [a, b, c, d] = plain;
    checksum(seed, [a, b, c, d, number].as_bytes()) >> 32
}

/// State of a block.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u8)]
pub enum BlockState {
    /// In the list of its class.
    Free = 0x5a,
    /// Given out.
    Allocated = 0xa5,
    /// Split into slots: its record is a [`SlabRecord`].
    Slab = 0xc3,
}

/// What is known of one block, allocated or free.
#[derive(Clone, Copy, Debug, PartialEq, Eq, FromBytes, IntoBytes, Immutable, KnownLayout)]
#[repr(C)]
pub struct BlockRecord {
    /// Bits 0 to 47: offset in the data region, in units; 48 to 55: class; 56 to 63: state.
    pub place: u64,
    /// Type of what an allocated block holds.
    pub type_id: TypeId,
    /// Slot, plus 1, of the next record in the list of the class; 0: none.
    pub next: u32,
    /// The same of the one before.
    pub prev: u32,
    /// Zero.
    pub reserved: u32,
    /// See [`Cell`].
    pub check: u32,
}

const _: () = assert!(size_of::<BlockRecord>() as u64 == CELL_SIZE);
const _: () = assert!(offset_of!(BlockRecord, type_id) == 8);
const _: () = assert!(offset_of!(BlockRecord, next) == 16);
const _: () = assert!(offset_of!(BlockRecord, prev) == 20);
const _: () = assert!(offset_of!(BlockRecord, check) == 28);

const UNIT_BITS: u32 = 48;

impl BlockRecord {
    /// The record of a block that is in no list.
    #[inline]
    #[must_use]
    pub const fn new(unit: u64, class: u8, state: BlockState, type_id: TypeId) -> Self {
        let place = unit | (class as u64) << UNIT_BITS | (state as u64) << 56;
        Self { place, type_id, next: 0, prev: 0, reserved: 0, check: 0 }
    }

    /// Whether a cell is the record of the block at `unit`, if it is one at all.
    #[inline]
    #[must_use]
    pub const fn is_about(raw: RawCell, unit: u64) -> bool {
        raw[0] & ((1 << UNIT_BITS) - 1) == unit && raw[0] >> UNIT_BITS != 0
    }

    /// Offset in the data region, in units.
    #[inline]
    #[must_use]
    pub const fn unit(&self) -> u64 {
        self.place & ((1 << UNIT_BITS) - 1)
    }

    /// Class.
    #[inline]
    #[must_use]
    pub const fn class(&self) -> u8 {
        (self.place >> UNIT_BITS) as u8
    }

    /// Whether the block is free.
    #[inline]
    #[must_use]
    pub const fn is_free(&self) -> bool {
        (self.place >> 56) as u8 == BlockState::Free as u8
    }

    /// Whether the block is a slab.
    #[inline]
    #[must_use]
    pub const fn is_slab(&self) -> bool {
        (self.place >> 56) as u8 == BlockState::Slab as u8
    }

    /// Bytes of the block.
    #[inline]
    #[must_use]
    pub const fn size(&self) -> u64 {
        1 << self.class()
    }

    /// Units of the block.
    #[inline]
    #[must_use]
    pub const fn units(&self) -> u64 {
        units_of(self.class())
    }
}

/// Units of a block of a class.
#[inline]
#[must_use]
pub const fn units_of(class: u8) -> u64 {
    1 << (class - CLASS_MIN)
}

impl Cell for BlockRecord {
    const SEED: u64 = seed::BLOCK_RECORD;

    /// Of a slab, what it is as a block.
    fn from_raw(raw: RawCell, number: u64) -> Option<Self> {
        if (raw[0] >> 56) as u8 == BlockState::Slab as u8 {
            return SlabRecord::from_raw(raw, number).map(|slab| slab.as_block());
        }
        plain_of(Self::SEED, raw, number)
            .and_then(|plain| Self::read_from_bytes(plain.as_bytes()).ok())
            .filter(Self::is_possible)
    }

    #[inline]
    fn is_possible(&self) -> bool {
        let state = (self.place >> 56) as u8;
        (state == BlockState::Free as u8 || state == BlockState::Allocated as u8)
            && (CLASS_MIN..=CLASS_MAX).contains(&self.class())
            && self.unit().is_multiple_of(self.units())
            && (self.is_free() || (self.next, self.prev) == (0, 0))
            && self.reserved == 0
    }
}

/// The free blocks of one class, oldest first.
#[derive(
    Clone, Copy, Debug, Default, PartialEq, Eq, FromBytes, IntoBytes, Immutable, KnownLayout,
)]
#[repr(C)]
pub struct ListHead {
    /// Slot, plus 1, of the first record; 0: the list is empty.
    pub head: u32,
    /// The same of the last one.
    pub tail: u32,
    /// Records in the list.
    pub blocks: u64,
    /// Zero.
    pub reserved: [u32; 3],
    /// See [`Cell`].
    pub check: u32,
}

const _: () = assert!(size_of::<ListHead>() as u64 == CELL_SIZE);
const _: () = assert!(offset_of!(ListHead, tail) == 4);
const _: () = assert!(offset_of!(ListHead, blocks) == 8);
const _: () = assert!(offset_of!(ListHead, check) == 28);

impl ListHead {
    /// Number of the cell of a class's list.
    #[must_use]
    pub const fn cell(class: u8) -> u64 {
        LISTS_OFFSET / CELL_SIZE + class as u64
    }
}

impl Cell for ListHead {
    const SEED: u64 = seed::LIST_HEAD;

    #[inline]
    fn is_possible(&self) -> bool {
        let empty = self.blocks == 0;
        empty == (self.head == 0) && empty == (self.tail == 0) && self.reserved == [0; 3]
    }
}

/// One level of the table.
#[derive(
    Clone, Copy, Debug, Default, PartialEq, Eq, FromBytes, IntoBytes, Immutable, KnownLayout,
)]
#[repr(C)]
pub struct LevelEntry {
    /// Slots that hold records.
    pub used: u64,
    /// [`LevelEntry::PRESENT`] or [`LevelEntry::ABSENT`].
    pub state: u32,
    /// Zero.
    pub reserved: [u32; 4],
    /// See [`Cell`].
    pub check: u32,
}

const _: () = assert!(size_of::<LevelEntry>() as u64 == CELL_SIZE);
const _: () = assert!(offset_of!(LevelEntry, state) == 8);
const _: () = assert!(offset_of!(LevelEntry, check) == 28);

impl LevelEntry {
    /// Records may lie in the level, and the file has space for it.
    pub const PRESENT: u32 = 0x5052_4553;
    /// No record lies in the level, and the file may have no space for it.
    pub const ABSENT: u32 = 0x4142_5345;

    /// Number of the cell of a level's entry.
    #[must_use]
    pub const fn cell(level: u32) -> u64 {
        LEVELS_OFFSET / CELL_SIZE + level as u64
    }
}

impl Cell for LevelEntry {
    const SEED: u64 = seed::LEVEL_ENTRY;

    #[inline]
    fn is_possible(&self) -> bool {
        (self.state == Self::PRESENT || self.state == Self::ABSENT && self.used == 0)
            && self.reserved == [0; 4]
    }
}

#[cfg(test)]
mod tests;
