//! The frame of one record, on media ([`super`]).

use super::{BATCH_NUMBER_MAX, FLAG_LAST, FRAME_HEADER_LEN, PAYLOAD_LEN_MAX, RECORD_MAGIC};
use super::{Record, RecordHeader};
use crate::checksum::{checksum, seed};
use zerocopy::{FromBytes, IntoBytes};

extern crate alloc;
use alloc::vec::Vec;

/// Why bytes are no record.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum RecordError {
    /// The bytes end inside the record: a torn write, if nothing follows.
    #[error("catalog record is cut short")]
    Truncated,
    /// No frame begins here.
    #[error("no catalog record begins here")]
    Magic,
    /// The checksum does not fit.
    #[error("catalog record is damaged: checksum {found:#018x}, computed {computed:#018x}")]
    Checksum {
        /// Checksum on media.
        found: u64,
        /// Checksum of what is there.
        computed: u64,
    },
    /// The frame is whole, but its batch number, flags, reserved bytes or payload are none of this
    /// release.
    #[error("catalog record has a payload that this release does not understand")]
    Payload,
}

/// One frame, read.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Frame {
    /// Number of its batch.
    pub batch: u64,
    /// Number in its batch.
    pub index: u32,
    /// Whether it ends its batch.
    pub last: bool,
    /// [`RecordHeader::journals`].
    pub journals: [u64; 2],
    /// What it says.
    pub record: Record,
    /// Bytes of the frame, padding included.
    pub len: usize,
}

/// Appends the frame of `record` to `out`.
///
/// # Panics
/// If the record encodes to more than [`PAYLOAD_LEN_MAX`] bytes; names and maps are limited so that
/// none does.
pub fn encode_frame(
    (batch, journals): (u64, [u64; 2]),
    (index, last): (u32, bool),
    record: &Record,
    out: &mut Vec<u8>,
) {
    let payload = postcard::to_allocvec(record).unwrap_or_default();
    assert!(
        !payload.is_empty() && payload.len() <= PAYLOAD_LEN_MAX as usize,
        "catalog record out of bounds"
    );
    let mut header = RecordHeader {
        magic: RECORD_MAGIC,
        batch,
        index,
        flags: if last { FLAG_LAST } else { 0 },
        payload_len: payload.len() as u32,
        reserved0: 0,
        journals,
        checksum: 0,
    };
    let start = out.len();
    out.extend_from_slice(header.as_bytes());
    out.extend_from_slice(&payload);
    header.checksum = checksum(seed::CATALOG, &out[start..]);
    out[start..start + FRAME_HEADER_LEN].copy_from_slice(header.as_bytes());
    while !out.len().is_multiple_of(8) {
        out.push(0);
    }
}

/// Reads the frame at the start of `bytes`.
///
/// # Errors
/// Why there is none.
pub fn decode_frame(bytes: &[u8]) -> Result<Frame, RecordError> {
    let Ok((header, rest)) = RecordHeader::read_from_prefix(bytes) else {
        return Err(RecordError::Truncated);
    };
    if header.magic != RECORD_MAGIC {
        return Err(RecordError::Magic);
    }
    if header.payload_len > PAYLOAD_LEN_MAX || header.payload_len == 0 {
        return Err(RecordError::Magic);
    }
    let payload_len = header.payload_len as usize;
    let len = (FRAME_HEADER_LEN + payload_len).next_multiple_of(8);
    if bytes.len() < len {
        return Err(RecordError::Truncated);
    }
    let mut covered = Vec::with_capacity(FRAME_HEADER_LEN + payload_len);
    covered.extend_from_slice(RecordHeader { checksum: 0, ..header }.as_bytes());
    covered.extend_from_slice(&rest[..payload_len]);
    let computed = checksum(seed::CATALOG, &covered);
    if computed != header.checksum {
        return Err(RecordError::Checksum { found: header.checksum, computed });
    }
    if header.batch == 0 || header.batch > BATCH_NUMBER_MAX {
        return Err(RecordError::Payload);
    }
    // Not written yet: a later release may give them a meaning.
    if header.reserved0 != 0 || header.flags & !FLAG_LAST != 0 {
        return Err(RecordError::Payload);
    }
    // Numbers of records, which can always be counted on.
    if header.journals.iter().any(|number| *number >= BATCH_NUMBER_MAX) {
        return Err(RecordError::Payload);
    }
    let record = postcard::from_bytes(&rest[..payload_len]).map_err(|_| RecordError::Payload)?;
    let RecordHeader { batch, index, journals, .. } = header;
    Ok(Frame { batch, index, last: header.flags & FLAG_LAST != 0, journals, record, len })
}

#[cfg(test)]
mod tests {
    use super::super::*;
    use super::*;

    fn sample() -> Record {
        Record::Lease(LeaseRecord { client: Uuid([7; 16]), pool: PoolId(3), writable: true })
    }

    #[test]
    fn frames_round_trip() {
        let mut bytes = Vec::new();
        encode_frame((9, [3, 4]), (2, true), &sample(), &mut bytes);
        assert_eq!(bytes.len() % 8, 0);
        let frame = decode_frame(&bytes).unwrap();
        assert_eq!((frame.batch, frame.index, frame.last, frame.len), (9, 2, true, bytes.len()));
        assert_eq!((frame.journals, frame.record), ([3, 4], sample()));
    }

    #[test]
    fn the_longest_relocation_fits_into_a_frame() {
        let far = u64::MAX;
        let moves = alloc::vec![MoveRecord { from: far, to: far, size: far }; RELOCATION_MOVES_MAX];
        let pools = alloc::vec![(PoolId(far), PoolId(far)); RELOCATION_MOVES_MAX];
        let record = Record::Relocation(RelocationRecord { id: Uuid([7; 16]), moves, pools });
        let mut bytes = Vec::new();
        encode_frame((1, [0; 2]), (0, true), &record, &mut bytes);
        assert_eq!(decode_frame(&bytes).unwrap().record, record);
    }

    #[test]
    fn every_flipped_bit_is_noticed() {
        let mut bytes = Vec::new();
        encode_frame((1, [0; 2]), (0, true), &sample(), &mut bytes);
        let used = FRAME_HEADER_LEN
            + decode_frame(&bytes).map(|_| ()).map_or(0, |()| {
                let header = RecordHeader::read_from_prefix(&bytes).unwrap().0;
                header.payload_len as usize
            });
        for bit in 0..used * 8 {
            let mut damaged = bytes.clone();
            damaged[bit / 8] ^= 1 << (bit % 8);
            assert!(decode_frame(&damaged).is_err(), "bit {bit}");
        }
    }

    #[test]
    fn every_shorter_prefix_is_refused() {
        let mut bytes = Vec::new();
        encode_frame((1, [0; 2]), (0, true), &sample(), &mut bytes);
        for len in 0..bytes.len() {
            assert!(decode_frame(&bytes[..len]).is_err(), "{len} bytes");
        }
    }
}
