//! The facts that a protection is bound to beside its object's identity, and the list of puddles in
//! a pool's root puddle.
//!
//! Names, lengths and addresses are in the catalog, which has checksums and no key. So the
//! protection's header, which is under an HMAC in modes with a key, holds a digest of them. An
//! attacker who swaps two names, or shortens a length, cannot make a header for that.
//!
//! A pool has many puddles, each with a header of its own. The root puddle's header holds a digest
//! of the others' headers ([`members`]), which every psync writes anew: after one puddle's file
//! was put back, the list does not fit.

use crate::crypto::tree::{Digest, ZERO};
use cenote_layout::at_rest::{AtRestHeader, NOTHING_REPLACED};
use cenote_layout::id::Uuid;
use sha2::{Digest as _, Sha256};
use zerocopy::{FromBytes, IntoBytes};

/// Bytes of a header.
pub const HEADER_LEN: usize = size_of::<AtRestHeader>();

/// The facts that an object is bound to: its store, its name, and the length of its data.
#[must_use]
pub fn of_object(store: Uuid, name: &str, data_len: u64) -> Digest {
    let mut hash = Sha256::new();
    hash.update(b"CnObject");
    hash.update(store.0);
    hash.update(data_len.to_le_bytes());
    hash.update(name.as_bytes());
    hash.finalize().into()
}

/// Where a puddle of a pool belongs.
#[derive(Clone, Copy, Debug)]
pub struct BoundPuddle<'a> {
    /// The store.
    pub store: Uuid,
    /// The pool's number there.
    pub pool: u64,
    /// The pool's name.
    pub name: &'a str,
    /// The puddle's number in the pool.
    pub index: u32,
    /// Its address.
    pub addr: u64,
    /// Its bytes.
    pub size: u64,
}

/// What a puddle is bound to.
#[must_use]
pub fn of_puddle(place: &BoundPuddle<'_>) -> Digest {
    let mut hash = Sha256::new();
    hash.update(b"CnPuddle");
    hash.update(place.store.0);
    hash.update(place.pool.to_le_bytes());
    hash.update(place.index.to_le_bytes());
    hash.update([0; 4]);
    hash.update(place.addr.to_le_bytes());
    hash.update(place.size.to_le_bytes());
    hash.update(place.name.as_bytes());
    hash.finalize().into()
}

/// What stands for a puddle in its pool's list; `None`: nothing was ever written to it.
pub(crate) fn entry(header: &AtRestHeader) -> Option<Digest> {
    match header.replaced {
        NOTHING_REPLACED => None,
        ZERO if header.generation == 0 => None,
        ZERO => {
            let mut hash = Sha256::new();
            hash.update(b"CnEntry\0");
            hash.update(header.as_bytes());
            Some(hash.finalize().into())
        }
        replaced => Some(replaced),
    }
}

/// The digest of a header in the store's list of protected things. `None`: nothing was ever written
/// to the thing.
#[must_use]
pub fn root(header: &[u8; HEADER_LEN]) -> Option<Digest> {
    entry(&AtRestHeader::read_from_bytes(header).ok()?)
}

/// Whether a header is the one that the store's list has. One that was sealed anew and not psynced
/// since is in no list under its own identity.
pub(crate) fn is_listed(header: &AtRestHeader, listed: Option<Digest>) -> bool {
    match (entry(header), listed) {
        (Some(entry), Some(listed)) => entry == listed,
        (Some(_), None) => header.replaced != ZERO,
        (None, listed) => listed.is_none(),
    }
}

/// The list of a pool's puddles but the root, in the order of their numbers, as one digest.
#[must_use]
pub fn members(entries: impl IntoIterator<Item = (u32, Option<Digest>)>) -> Digest {
    let mut hash = Sha256::new();
    hash.update(b"CnMember");
    let mut any = false;
    for (index, entry) in entries {
        let Some(entry) = entry else { continue };
        any = true;
        hash.update(index.to_le_bytes());
        hash.update([0; 4]);
        hash.update(entry);
    }
    if any { hash.finalize().into() } else { ZERO }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn whatever_differs_has_another_digest() {
        let place =
            BoundPuddle { store: Uuid([1; 16]), pool: 2, name: "p", index: 3, addr: 4, size: 5 };
        let all = [
            of_object(place.store, "p", 5),
            of_object(place.store, "p", 6),
            of_object(place.store, "q", 5),
            of_object(Uuid([2; 16]), "p", 5),
            of_puddle(&place),
            of_puddle(&BoundPuddle { store: Uuid([2; 16]), ..place }),
            of_puddle(&BoundPuddle { pool: 3, ..place }),
            of_puddle(&BoundPuddle { name: "q", ..place }),
            of_puddle(&BoundPuddle { index: 4, ..place }),
            of_puddle(&BoundPuddle { addr: 5, ..place }),
            of_puddle(&BoundPuddle { size: 6, ..place }),
            members([(1, Some([1; 32]))]),
            members([(2, Some([1; 32]))]),
            members([(1, Some([2; 32]))]),
            members([(1, Some([1; 32])), (2, Some([1; 32]))]),
            members([]),
        ];
        for (i, one) in all.iter().enumerate() {
            assert!(all[i + 1..].iter().all(|other| other != one), "{i}");
        }
        assert_eq!(members([(1, None), (2, None)]), members([]));
        assert_eq!(members([(1, None), (2, Some([1; 32]))]), members([(2, Some([1; 32]))]));
    }
}
