//! One checksum for everything: XXH3-64, seeded by the kind of what it covers.
//!
//! XXH3 is specified and stable, detects every short burst with probability 1 - 2^-64, and costs a
//! few nanoseconds for a log entry. The seed keeps kinds apart: a superblock that a misdirected
//! write put where a puddle header belongs fails its check even though its bytes are whole.

use xxhash_rust::xxh3::xxh3_64_with_seed;

/// Seeds, one per kind of checksummed bytes. Part of the format: never change one.
pub mod seed {
    /// [`crate::superblock::Superblock`].
    pub const SUPERBLOCK: u64 = 0x4345_4e4f_5445_0001;
    /// [`crate::puddle::PuddleHeader`].
    pub const PUDDLE: u64 = 0x4345_4e4f_5445_0002;
    /// [`crate::catalog::RecordHeader`] and its payload.
    pub const CATALOG: u64 = 0x4345_4e4f_5445_0003;
    /// [`crate::log::LogHeader`].
    pub const LOG: u64 = 0x4345_4e4f_5445_0004;
    /// [`crate::log_space::LogSpaceHeader`] and its entries.
    pub const LOG_SPACE: u64 = 0x4345_4e4f_5445_0005;
    /// [`crate::heap::Descriptor`].
    pub const DESCRIPTOR: u64 = 0x4345_4e4f_5445_0006;
    /// Type names, to type ids.
    pub const TYPE_NAME: u64 = 0x4345_4e4f_5445_0007;
    /// Contents of the ranges that a seal covers, [`crate::log::EntryKind::Seal`].
    pub const SEAL: u64 = 0x4345_4e4f_5445_0008;
    /// [`crate::object::ObjectHeader`].
    pub const OBJECT: u64 = 0x4345_4e4f_5445_0009;
    /// [`crate::object::JournalHeader`].
    pub const JOURNAL_HEADER: u64 = 0x4345_4e4f_5445_000b;
    /// [`crate::object::RecordHeader`], its tables, and its data.
    pub const PSYNC: u64 = 0x4345_4e4f_5445_000c;
    /// [`crate::at_rest::AtRestHeader`].
    pub const AT_REST: u64 = 0x4345_4e4f_5445_000a;
    /// [`crate::snapshot::SnapshotTrailer`], and what comes before it.
    pub const SNAPSHOT: u64 = 0x4345_4e4f_5445_000d;
    /// A list of [`crate::object::RootEntry`].
    pub const JOURNAL_ROOTS: u64 = 0x4345_4e4f_5445_000e;
    /// [`crate::kept::KeptHeader`], and the runs behind it.
    pub const KEPT: u64 = 0x4345_4e4f_5445_000f;
    /// [`crate::archive::ArchiveHeader`] and sections.
    pub const ARCHIVE: u64 = 0x4345_4e4f_5445_0010;
    /// [`crate::logged::SubHeapHeader`].
    pub const SUB_HEAP: u64 = 0x4345_4e4f_5445_0011;
    /// [`crate::logged::BlockRecord`].
    pub const BLOCK_RECORD: u64 = 0x4345_4e4f_5445_0012;
    /// [`crate::logged::ListHead`].
    pub const LIST_HEAD: u64 = 0x4345_4e4f_5445_0013;
    /// [`crate::logged::LevelEntry`].
    pub const LEVEL_ENTRY: u64 = 0x4345_4e4f_5445_0014;
    /// An undo record: [`crate::logged::UndoHeader`] and entries.
    pub const UNDO: u64 = 0x4345_4e4f_5445_0015;
    /// New contents of the cells of a change, [`crate::logged::seal_of_contents`].
    pub const UNDO_SEAL: u64 = 0x4345_4e4f_5445_0016;
    /// [`crate::logged::MicroEntry`].
    pub const MICRO: u64 = 0x4345_4e4f_5445_0017;
    /// [`crate::logged::LaneWord`].
    pub const LANE: u64 = 0x4345_4e4f_5445_0018;
    /// [`crate::logged::PartEntry`].
    pub const PART: u64 = 0x4345_4e4f_5445_0019;
    /// [`crate::logged::LaneLink`].
    pub const LANE_LINK: u64 = 0x4345_4e4f_5445_001a;
    /// [`crate::logged::LoggedHeader`].
    pub const LOGGED: u64 = 0x4345_4e4f_5445_001b;
    /// [`crate::logged::SubHeapWord`].
    pub const SUB_HEAP_WORD: u64 = 0x4345_4e4f_5445_001c;
    /// [`crate::logged::SlabRecord`].
    pub const SLAB_RECORD: u64 = 0x4345_4e4f_5445_001d;
    /// [`crate::logged::TicketWord`].
    pub const TICKET: u64 = 0x4345_4e4f_5445_001e;
    /// [`crate::wear::WearHeader`].
    pub const WEAR: u64 = 0x4345_4e4f_5445_001f;
    /// [`crate::wear::WearLine`].
    pub const WEAR_LINE: u64 = 0x4345_4e4f_5445_0020;
}

/// XXH3-64 of `bytes` with a seed of [`seed`].
#[inline]
#[must_use]
pub fn checksum(seed: u64, bytes: &[u8]) -> u64 {
    if bytes.len() >= WIDE_LEN_MIN { wide(seed, bytes) } else { xxh3_64_with_seed(bytes, seed) }
}

/// From this length on it pays to ask the processor for its widest vectors: 96 instead of 168 ns
/// for 4 KiB.
const WIDE_LEN_MIN: usize = 512;

/// The same function by a library that chooses vector instructions at run time.
#[inline(never)]
fn wide(seed: u64, bytes: &[u8]) -> u64 {
    twox_hash::xxhash3_64::Hasher::oneshot_with_seed(seed, bytes)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn both_libraries_compute_the_same_function() {
        let bytes: Vec<u8> =
            (0..5000u32).map(|i| (i.wrapping_mul(2_654_435_761) >> 13) as u8).collect();
        for len in (0..600).chain([1024, 4095, 4096, 4097, 5000]) {
            for seed in [0, seed::LOG, seed::SEAL, u64::MAX] {
                assert_eq!(
                    wide(seed, &bytes[..len]),
                    xxh3_64_with_seed(&bytes[..len], seed),
                    "{len} bytes"
                );
            }
        }
    }
}
