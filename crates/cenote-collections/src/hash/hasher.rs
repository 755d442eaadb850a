//! The hash function of maps: SipHash-1-3, under a key that each map keeps.
//!
//! Hashes are on media. So the function never changes, even if `std` changes its own, and a test
//! pins its values. The key is random: no outsider can choose keys that collide.
//!
//! The `Hash` implementations of `std` decide which bytes are hashed: of numbers their bytes
//! (little endian on every machine that can use a store), of `str` its bytes and 0xff. A program
//! whose `Hash` of a key changes no longer finds what it inserted before. Nothing else happens.

use core::hash::{Hash, Hasher as _};
use siphasher::sip::SipHasher13;

/// The hash of a key in a map with this hash key.
#[inline]
pub(crate) fn hash<Q: Hash + ?Sized>([k0, k1]: [u64; 2], key: &Q) -> u64 {
    let mut state = SipHasher13::new_with_keys(k0, k1);
    key.hash(&mut state);
    state.finish()
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A message as it is, without its length.
    struct Bytes<'m>(&'m [u8]);

    impl Hash for Bytes<'_> {
        fn hash<H: core::hash::Hasher>(&self, state: &mut H) {
            state.write(self.0);
        }
    }

    /// Reference values: key bytes 0 to 15, message bytes 0, 1, 2 and so on. They never change.
    #[test]
    fn hashes_are_those_of_the_reference() {
        let key = [0x0706_0504_0302_0100, 0x0f0e_0d0c_0b0a_0908];
        let message: Vec<u8> = (0..2).collect();
        let hash = |len: usize| hash(key, &Bytes(&message[..len])).to_le_bytes();
        assert_eq!(hash(0), [0xdc, 0xc4, 0x0f, 0x05, 0x58, 0x01, 0xac, 0xab]);
        assert_eq!(hash(1), [0x93, 0xca, 0x57, 0x7d, 0xf3, 0x9b, 0xf4, 0xc9]);
        assert_eq!(hash(2), [0x4d, 0xd4, 0xc7, 0x4d, 0x02, 0x9b, 0xcb, 0x82]);
    }

    /// Maps that hold numbers and text find them in every release.
    #[test]
    fn keys_are_hashed_as_the_bytes_that_they_always_were() {
        let key = [1, 2];
        let bytes = [1, 2, 0, 0, 0, 3, 0, 0, 0, 0, 0, 0, 0, 4, 0];
        assert_eq!(hash(key, &(1u8, 2u32, 3u64, 4u16)), hash(key, &Bytes(&bytes)));
        assert_eq!(hash(key, "ab"), hash(key, &Bytes(b"ab\xff")));
        assert_eq!(hash(key, &5usize), hash(key, &5u64));
        assert_eq!(hash(key, &-1i32), hash(key, &u32::MAX));
    }
}
