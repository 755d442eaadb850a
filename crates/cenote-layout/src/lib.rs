//! Describes what lies on media, and nothing else.
//!
//! Every byte that Cenote writes to a store is described here: headers, catalog records, log
//! entries, heap metadata and pointer maps. The crate does no I/O and knows no reader or writer; a
//! program that uses it can take a store apart. `docs/format.md` draws the same structures.
//!
//! Invariants that hold for every structure:
//!
//! * little endian (a big-endian target does not compile);
//! * the size of a structure and the offset of every field are asserted at compile time, without
//!   padding;
//! * a *header* begins with the 48 bytes of [`header::HeaderPrefix`]: magic, version, three feature
//!   masks, checksum;
//! * reserved bytes are zero, and readers check that, so that a later version can give them a
//!   meaning;
//! * checksums are XXH3-64 with a seed for each kind ([`checksum`]): bytes of one kind never pass
//!   for another.

#[cfg(not(target_endian = "little"))]
compile_error!("the on-media format is little endian and is mapped as it is");

pub mod archive;
pub mod at_rest;
pub mod catalog;
pub mod checksum;
pub mod error_kind;
pub mod frees;
pub mod header;
pub mod heap;
pub mod id;
pub mod kept;
pub mod log;
pub mod log_space;
pub mod logged;
pub mod mark;
pub mod moves;
pub mod object;
pub mod outline;
pub mod pointer;
pub mod puddle;
pub mod root;
pub mod snapshot;
pub mod superblock;
pub mod types;
pub mod values;
pub mod wear;

/// Bytes of a page: the unit of mapping and of puddle sizes.
pub const PAGE_SIZE: u64 = 4096;
/// Bytes of a slot: puddles are aligned to slots in the address space, so that one table entry per
/// slot finds the puddle of an address in constant time.
pub const SLOT_SIZE: u64 = 2 << 20;
/// Bytes of a cache line: the unit in which a processor writes memory back.
pub const LINE_SIZE: u64 = 64;

/// `value` rounded up to a multiple of `multiple`, a power of two. `None` on overflow.
#[must_use]
pub const fn round_up(value: u64, multiple: u64) -> Option<u64> {
    debug_assert!(multiple.is_power_of_two());
    match value.checked_add(multiple - 1) {
        Some(sum) => Some(sum & !(multiple - 1)),
        None => None,
    }
}
