//! Committed psyncs of a primary that could not be written when they were recovered.
//!
//! ```text
//! 0            128
//! | KeptHeader | offset (8) | length (8) | bytes | offset | length | bytes | ...
//! ```
//!
//! Runs lie in the order in which they are to be written: a later one may overwrite an earlier one.

use crate::checksum::{checksum, seed};
use crate::header::{Header, HeaderError, HeaderPrefix};
use crate::id::Uuid;
use zerocopy::{FromBytes, Immutable, IntoBytes, KnownLayout};

extern crate alloc;
use alloc::vec::Vec;

/// First bytes of such a file.
#[derive(Clone, Copy, Debug, PartialEq, Eq, FromBytes, IntoBytes, Immutable, KnownLayout)]
#[repr(C)]
pub struct KeptHeader {
    /// Magic `CENOKEPT`, version, features, checksum.
    pub prefix: HeaderPrefix,
    /// The store.
    pub store: Uuid,
    /// The puddle whose primary it is.
    pub puddle: Uuid,
    /// Bytes of all runs, which follow.
    pub len: u64,
    /// Their checksum.
    pub sum: u64,
    /// Zero.
    pub reserved: [u8; 32],
}

const _: () = assert!(size_of::<KeptHeader>() == 128);
const _: () = assert!(core::mem::offset_of!(KeptHeader, len) == 80);

impl KeptHeader {
    /// The header of these runs, to be sealed.
    #[must_use]
    pub fn new(store: Uuid, puddle: Uuid, runs: &[u8]) -> Self {
        Self {
            prefix: HeaderPrefix::new(Self::MAGIC, size_of::<Self>() as u32),
            store,
            puddle,
            len: runs.len() as u64,
            sum: checksum(Self::SEED, runs),
            reserved: [0; 32],
        }
    }

    /// Whether these are its runs.
    #[must_use]
    pub fn fits(&self, runs: &[u8]) -> bool {
        self.len == runs.len() as u64 && self.sum == checksum(Self::SEED, runs)
    }
}

impl Header for KeptHeader {
    const NAME: &'static str = "header of kept psyncs";
    const MAGIC: [u8; 8] = *b"CENOKEPT";
    const SEED: u64 = seed::KEPT;

    fn check_fields(&self) -> Result<(), HeaderError> {
        let bad = |field, value| Err(HeaderError::Field { what: Self::NAME, field, value });
        if self.puddle.is_nil() {
            return bad("puddle", 0);
        }
        if self.reserved.iter().any(|byte| *byte != 0) {
            return Err(HeaderError::Reserved { what: Self::NAME });
        }
        Ok(())
    }
}

/// Adds a run.
pub fn add_run(runs: &mut Vec<u8>, offset: u64, bytes: &[u8]) {
    runs.extend_from_slice(&offset.to_le_bytes());
    runs.extend_from_slice(&(bytes.len() as u64).to_le_bytes());
    runs.extend_from_slice(bytes);
}

/// The runs one by one; `None` where they are no runs.
pub fn runs(mut rest: &[u8]) -> impl Iterator<Item = Option<(u64, &[u8])>> {
    core::iter::from_fn(move || {
        if rest.is_empty() {
            return None;
        }
        let split = || {
            let (head, behind) = rest.split_at_checked(16)?;
            let word = |at: usize| head.get(at..at + 8)?.try_into().ok().map(u64::from_le_bytes);
            let (offset, len) = (word(0)?, usize::try_from(word(8)?).ok()?);
            let (bytes, behind) = behind.split_at_checked(len)?;
            Some((offset, bytes, behind))
        };
        let found = split();
        rest = found.map_or(&[], |(.., behind)| behind);
        Some(found.map(|(offset, bytes, _)| (offset, bytes)))
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use alloc::vec;

    #[test]
    fn runs_are_what_was_added_and_a_part_of_them_is_none() {
        let mut all = Vec::new();
        add_run(&mut all, 4096, &[1, 2, 3]);
        add_run(&mut all, 64, &[]);
        add_run(&mut all, 1 << 40, &[9; 64]);
        let found: Vec<_> = runs(&all).collect();
        let expected: Vec<Option<(u64, &[u8])>> =
            vec![Some((4096, &[1, 2, 3])), Some((64, &[])), Some((1 << 40, &[9; 64]))];
        assert_eq!(found, expected);
        for len in 0..all.len() {
            let part: Option<Vec<_>> = runs(&all[..len]).collect();
            assert_eq!(part.is_some(), [0, 19, 35].contains(&len), "{len}");
            let header = KeptHeader::new(Uuid([1; 16]), Uuid([2; 16]), &all);
            assert!(!header.fits(&all[..len]) && header.fits(&all));
        }
    }
}
