//! A client's description of an import: too long for a message, so it comes in a transfer.
//!
//! The bytes are postcard's, of at most [`IMPORT_LEN_MAX`], and all of them. A number is a byte
//! where it is small, and eight in memory, so reading them may take some ten times as much. Whether
//! what they say can be is for the receiver to judge, before it makes more of it.

use crate::message::{DecodeError, IMPORT_LEN_MAX, IMPORT_POOLS_MAX};
use cenote_layout::catalog::{HeapKind, PoolMode};
use cenote_layout::id::PoolId;
use cenote_layout::types::TypeRecord;
use serde::{Deserialize, Serialize};

/// What is to be imported together.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct ImportSpec {
    /// Pools.
    pub pools: Vec<ImportPoolSpec>,
    /// Types of what is in them.
    pub types: Vec<TypeRecord>,
}

/// A pool to be imported.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct ImportPoolSpec {
    /// What it is to be called.
    pub name: String,
    /// Its number where it comes from.
    pub old_id: PoolId,
    /// Its mode.
    pub mode: PoolMode,
    /// Its heap.
    pub heap: HeapKind,
    /// Bytes of its first puddle when it was made.
    pub puddle_size: u64,
    /// Most bytes that it may take.
    pub size_max: u64,
    /// Permission bits.
    pub permissions: u32,
    /// Whether it may hold half a transaction.
    pub torn: bool,
    /// Puddles in index order: the address for which their pointers are right, and bytes.
    pub puddles: Vec<(u64, u64)>,
}

impl ImportSpec {
    /// Its bytes.
    ///
    /// # Errors
    /// [`DecodeError::SpecTooLong`].
    pub fn encode(&self) -> Result<Vec<u8>, DecodeError> {
        let bytes = postcard::to_allocvec(self).map_err(|_| DecodeError::Body)?;
        if bytes.len() > IMPORT_LEN_MAX || self.pools.len() > IMPORT_POOLS_MAX {
            return Err(DecodeError::SpecTooLong { len: bytes.len(), pools: self.pools.len() });
        }
        Ok(bytes)
    }

    /// What bytes say.
    ///
    /// # Errors
    /// They are too many, or not those of a spec.
    pub fn decode(bytes: &[u8]) -> Result<Self, DecodeError> {
        if bytes.len() > IMPORT_LEN_MAX {
            return Err(DecodeError::SpecTooLong { len: bytes.len(), pools: 0 });
        }
        let Ok((spec, [])) = postcard::take_from_bytes::<Self>(bytes) else {
            return Err(DecodeError::Body);
        };
        if spec.pools.len() > IMPORT_POOLS_MAX {
            return Err(DecodeError::SpecTooLong { len: bytes.len(), pools: spec.pools.len() });
        }
        Ok(spec)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn spec(pools: usize) -> ImportSpec {
        let pool = |number: usize| ImportPoolSpec {
            name: format!("pool {number}"),
            old_id: PoolId(number as u64),
            mode: PoolMode::Direct,
            heap: HeapKind::Traced,
            puddle_size: 2 << 20,
            size_max: u64::MAX,
            permissions: 0o640,
            torn: number % 2 == 1,
            puddles: vec![(1 << 41, 2 << 20); 3],
        };
        ImportSpec { pools: (0..pools).map(pool).collect(), types: Vec::new() }
    }

    #[test]
    fn a_spec_comes_back_and_whatever_is_cut_off_or_added_is_refused() {
        let spec = spec(3);
        let bytes = spec.encode().expect("encode");
        assert_eq!(ImportSpec::decode(&bytes), Ok(spec));
        for len in 0..bytes.len() {
            assert_eq!(ImportSpec::decode(&bytes[..len]), Err(DecodeError::Body), "{len} bytes");
        }
        assert_eq!(ImportSpec::decode(&[&bytes[..], &[0]].concat()), Err(DecodeError::Body));
        // A list that says it has 2^60 elements takes no memory.
        let long = [0x80, 0x80, 0x80, 0x80, 0x80, 0x80, 0x80, 0x80, 0x10];
        assert_eq!(ImportSpec::decode(&long), Err(DecodeError::Body));
    }

    #[test]
    fn a_spec_that_is_too_long_is_neither_sent_nor_read() {
        let many = spec(IMPORT_POOLS_MAX + 1);
        let same = |error: DecodeError| match error {
            DecodeError::SpecTooLong { pools, .. } => pools == many.pools.len(),
            _ => false,
        };
        assert!(many.encode().is_err_and(same));
        assert!(ImportSpec::decode(&postcard::to_allocvec(&many).expect("bytes")).is_err_and(same));
        let long = vec![0; IMPORT_LEN_MAX + 1];
        assert!(matches!(ImportSpec::decode(&long), Err(DecodeError::SpecTooLong { .. })));
    }
}
