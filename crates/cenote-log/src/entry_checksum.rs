//! The checksum of a log entry, as the scan computes it. The writer computes it over its own lines.

use cenote_layout::checksum::checksum;
use cenote_layout::log::{ENTRY_HEADER_SIZE, ENTRY_INLINE_DATA_MAX, EntryHeader};
use zerocopy::IntoBytes;

/// Data up to this many bytes lies in one line with its header.
pub(crate) const INLINE_DATA_LEN: usize = ENTRY_INLINE_DATA_MAX as usize;

/// Checksum of an entry, see [`EntryHeader::checksum`].
pub(crate) trait EntryChecksum {
    fn compute(&self, seed: u64, data: &[u8]) -> u64;
}

impl EntryChecksum for EntryHeader {
    #[inline]
    fn compute(&self, seed: u64, data: &[u8]) -> u64 {
        const COVERED: usize = ENTRY_HEADER_SIZE as usize - 8;
        let header = &self.as_bytes()[8..];
        if data.len() > INLINE_DATA_LEN {
            return checksum(checksum(seed, header), data);
        }
        let mut line = [0u8; COVERED + INLINE_DATA_LEN];
        line[..COVERED].copy_from_slice(header);
        line[COVERED..COVERED + data.len()].copy_from_slice(data);
        checksum(seed, &line[..COVERED + data.len()])
    }
}
