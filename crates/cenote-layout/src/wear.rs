//! The wear heap (NVMalloc, section 3; NVM-1 to NVM-3): a header before each block, and the header
//! of the heap.
//!
//! Memory of a puddle is *lines* of 64 bytes. A block is one line of header and lines for the
//! program. Chunks of equal size hold the blocks; runs of them are *segments*. Each segment has a
//! line in a table, and blocks fill a segment without gaps: where one ends, the next begins.
//!
//! ```text
//! root puddle   | header, 4,096 | roots, 16,384 | segment table | chunks ...
//! other puddles | segment table | chunks ...
//! ```
//!
//! A line of a block or segment ([`WearLine`]) has two *slots* of 32 bytes, for even and odd
//! versions. A change writes the slot that is not in use, with the next version; it counts as soon
//! as all four words of it are there. So one line changes in one write, and a crash may lose any
//! part of it.
//!
//! ```text
//! word 0 | payload: size 26, kind 2, version 4 | check 32 |
//! word 1 | payload: 32 of the type, or the link | check 32 |
//! word 2 | payload: 32 of the type, or the time | check 32 |
//! word 3 | check in the even bits, commit bits in the odd ones |
//! ```
//!
//! Each check covers place, number of the word, version and payload, under the key of the heap. So
//! a word says by itself that it is whole and of which version, and a reader tells a slot that a
//! crash broke off (all words whole, of several versions) from damage (a word that is not whole).
//!
//! The odd bits of word 3 are all ones in a slot that says "allocated", and all zeros in any other.
//! Where they are zeros in a slot of an allocated block, the block is given back: so a log of a
//! transaction, which sets or clears bits of one word, frees a block and takes that back. Zeros in
//! place of the whole word are damage.

use crate::PAGE_SIZE;
use crate::checksum::{checksum, seed};
use crate::header::{Header, HeaderError, HeaderPrefix};
use crate::heap::ROOT_COUNT;
use crate::root::RootEntry;
use zerocopy::{FromBytes, Immutable, IntoBytes, KnownLayout};

mod line;

pub use line::{COMMIT_BITS, LineWords, WearLine, WearRecord};

/// Bytes of a line: a header, and the unit of sizes.
pub const WEAR_LINE: u64 = 64;
/// Most lines of a block with its header, of a free range, or chunks of a segment.
pub const WEAR_SIZE_MAX: u32 = (1 << 26) - 1;
/// Least and most binary logarithm of a chunk's bytes.
pub const CHUNK_LOG: core::ops::RangeInclusive<u32> = 10..=24;

/// Most milliseconds that a freed block waits: 12 days. Times count modulo 2^32.
pub const WAIT_MS_MAX: u32 = 1 << 30;

/// The first page of a wear heap; it never changes.
#[derive(Clone, Copy, Debug, PartialEq, Eq, FromBytes, IntoBytes, Immutable, KnownLayout)]
#[repr(C)]
pub struct WearHeader {
    /// Magic `CENWEARH`, version, features, checksum.
    pub prefix: HeaderPrefix,
    /// Key of all checks of lines: a random number.
    pub key: u64,
    /// Milliseconds that a freed block waits.
    pub wait_ms: u32,
    /// Binary logarithm of the bytes of a chunk.
    pub chunk_log: u32,
    /// Zero.
    pub reserved: [u8; 4032],
}

const _: () = assert!(size_of::<WearHeader>() as u64 == PAGE_SIZE);
const _: () = assert!(core::mem::offset_of!(WearHeader, key) == 48);
const _: () = assert!(core::mem::offset_of!(WearHeader, wait_ms) == 56);
const _: () = assert!(core::mem::offset_of!(WearHeader, chunk_log) == 60);

impl WearHeader {
    /// From the header to the roots.
    pub const ROOTS: u64 = PAGE_SIZE;
    /// From the header to the end of the roots.
    pub const ROOTS_END: u64 = Self::ROOTS + ROOT_COUNT * size_of::<RootEntry>() as u64;

    /// A header, sealed.
    #[must_use]
    pub fn new(key: u64, wait_ms: u32, chunk_log: u32) -> Self {
        let prefix = HeaderPrefix::new(Self::MAGIC, PAGE_SIZE as u32);
        let mut header = Self { prefix, key, wait_ms, chunk_log, reserved: [0; 4032] };
        crate::header::seal(&mut header);
        header
    }
}

impl Header for WearHeader {
    const NAME: &'static str = "wear heap header";
    const MAGIC: [u8; 8] = *b"CENWEARH";
    const SEED: u64 = seed::WEAR;

    fn check_fields(&self) -> Result<(), HeaderError> {
        let field = |field, value| HeaderError::Field { what: Self::NAME, field, value };
        if !CHUNK_LOG.contains(&self.chunk_log) {
            return Err(field("chunk_log", u64::from(self.chunk_log)));
        }
        if self.wait_ms > WAIT_MS_MAX {
            return Err(field("wait_ms", u64::from(self.wait_ms)));
        }
        match self.reserved.iter().any(|&byte| byte != 0) {
            true => Err(HeaderError::Reserved { what: Self::NAME }),
            false => Ok(()),
        }
    }
}

/// Where table and chunks of a puddle lie, in lines from its start.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct WearGeometry {
    /// First line of the segment table, which has a line for each chunk.
    pub table: u32,
    /// First line of the first chunk.
    pub first: u32,
    /// Number of chunks.
    pub chunks: u32,
    /// Lines of a chunk.
    pub chunk_lines: u32,
}

impl WearGeometry {
    /// The geometry of a puddle of `size` bytes whose body begins at `from`; `None`: it has no room
    /// for a chunk, or more lines than can be counted.
    #[must_use]
    pub fn new(from: u64, size: u64, chunk_log: u32) -> Option<Self> {
        let lines = u32::try_from(size / WEAR_LINE).ok()?;
        let table = u32::try_from(from.div_ceil(WEAR_LINE)).ok()?;
        let chunk_lines = 1u32 << (chunk_log - WEAR_LINE.trailing_zeros());
        // Each chunk takes its lines and one of the table.
        let chunks = lines.checked_sub(table)? / (chunk_lines + 1);
        let geometry = Self { table, first: table + chunks, chunks, chunk_lines };
        (chunks > 0).then_some(geometry)
    }

    /// Lines behind the last chunk begin here.
    #[must_use]
    pub const fn end(&self) -> u32 {
        self.first + self.chunks * self.chunk_lines
    }
}

/// 32 bits of a check over the words of a place.
fn check(key: u64, place: u64, number: u64, payload: u32) -> u32 {
    let words = [key, place, number, u64::from(payload)];
    (checksum(seed::WEAR_LINE, words.as_bytes()) >> 32) as u32
}

/// Names a line for the checks: number of its puddle, and number in that.
#[must_use]
pub const fn place_of(puddle: u32, line: u32) -> u64 {
    (puddle as u64) << 32 | line as u64
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn table_and_chunks_fit_and_touch_nothing_else() {
        for size in (1..200).map(|n| n * 4096) {
            for log in CHUNK_LOG {
                let Some(geometry) = WearGeometry::new(4096, size, log) else { continue };
                assert!(geometry.chunks > 0 && geometry.table == 64);
                assert_eq!(geometry.first, geometry.table + geometry.chunks);
                assert!(u64::from(geometry.end()) * WEAR_LINE <= size);
            }
        }
        assert_eq!(WearGeometry::new(4096, 4096, 10), None);
    }
}
