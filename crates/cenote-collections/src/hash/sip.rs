//! SipHash-1-3 (Aumasson, Bernstein, INDOCRYPT 2012) with a key that the map keeps, so that hashes are the same in every process that opens it, and nobody outside can
//! choose keys that collide.
//!
//! `std`'s own hasher is the same function today, but is free to change with every compiler; hashes here are part of what is on media. What the `Hash`
//! implementations of `std` feed to a hasher is as stable as `std` is: for numbers their bytes (little endian on every machine that
//! a store can be used on), for `str` its bytes and 0xff. A program whose `Hash` of a key changes no longer finds what it inserted before; nothing else happens.

use core::hash::Hasher;

/// A SipHash-1-3 in progress.
#[derive(Clone, Debug)]
pub(crate) struct Sip13 {
    v: [u64; 4],
    /// Bytes that do not fill a word yet.
    tail: u64,
    /// How many bytes have been written, modulo 256 in the end.
    len: u64,
}

impl Sip13 {
    #[inline]
    pub(crate) fn new([k0, k1]: [u64; 2]) -> Self {
        Self {
            v: [
                k0 ^ 0x736f_6d65_7073_6575,
                k1 ^ 0x646f_7261_6e64_6f6d,
                k0 ^ 0x6c79_6765_6e65_7261,
                k1 ^ 0x7465_6462_7974_6573,
            ],
            tail: 0,
            len: 0,
        }
    }

    #[inline]
    fn round(&mut self) {
        let [v0, v1, v2, v3] = &mut self.v;
        *v0 = v0.wrapping_add(*v1);
        *v2 = v2.wrapping_add(*v3);
        *v1 = v1.rotate_left(13) ^ *v0;
        *v3 = v3.rotate_left(16) ^ *v2;
        *v0 = v0.rotate_left(32);
        *v2 = v2.wrapping_add(*v1);
        *v0 = v0.wrapping_add(*v3);
        *v1 = v1.rotate_left(17) ^ *v2;
        *v3 = v3.rotate_left(21) ^ *v0;
        *v2 = v2.rotate_left(32);
    }

    #[inline]
    fn word(&mut self, word: u64) {
        self.v[3] ^= word;
        self.round();
        self.v[0] ^= word;
    }

    /// Takes the lowest `count` bytes (1 to 8) of `bytes`; the others are zero.
    #[inline]
    fn short(&mut self, bytes: u64, count: u32) {
        let filled = (self.len % 8) as u32;
        self.len = self.len.wrapping_add(u64::from(count));
        self.tail |= bytes << (8 * filled);
        if filled + count < 8 {
            return;
        }
        let word = self.tail;
        self.word(word);
        self.tail = if filled == 0 { 0 } else { bytes >> (8 * (8 - filled)) };
    }
}

impl Hasher for Sip13 {
    #[inline]
    fn write(&mut self, bytes: &[u8]) {
        let mut words = bytes.chunks_exact(8);
        for word in &mut words {
            let mut buffer = [0; 8];
            buffer.copy_from_slice(word);
            self.short(u64::from_le_bytes(buffer), 8);
        }
        let rest = words.remainder();
        if !rest.is_empty() {
            let mut buffer = [0; 8];
            buffer[..rest.len()].copy_from_slice(rest);
            self.short(u64::from_le_bytes(buffer), rest.len() as u32);
        }
    }

    #[inline]
    fn write_u8(&mut self, n: u8) {
        self.short(u64::from(n), 1);
    }

    #[inline]
    fn write_u16(&mut self, n: u16) {
        self.short(u64::from(n), 2);
    }

    #[inline]
    fn write_u32(&mut self, n: u32) {
        self.short(u64::from(n), 4);
    }

    #[inline]
    fn write_u64(&mut self, n: u64) {
        self.short(n, 8);
    }

    #[inline]
    fn write_usize(&mut self, n: usize) {
        self.short(n as u64, 8);
    }

    #[inline]
    fn finish(&self) -> u64 {
        let mut this = self.clone();
        this.word((self.len << 56) | self.tail);
        this.v[2] ^= 0xff;
        this.round();
        this.round();
        this.round();
        this.v.iter().fold(0, |a, b| a ^ b)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Hashes are part of what is on media: these never change. Reference values of SipHash-1-3 with key bytes 0 to 15 and message bytes 0, 1, 2, ...
    #[test]
    fn hashes_are_those_of_the_reference() {
        let key = [0x0706_0504_0302_0100, 0x0f0e_0d0c_0b0a_0908];
        let hash = |len: u8| {
            let mut state = Sip13::new(key);
            state.write(&(0..len).collect::<Vec<u8>>());
            state.finish().to_le_bytes()
        };
        assert_eq!(hash(0), [0xdc, 0xc4, 0x0f, 0x05, 0x58, 0x01, 0xac, 0xab]);
        assert_eq!(hash(1), [0x93, 0xca, 0x57, 0x7d, 0xf3, 0x9b, 0xf4, 0xc9]);
        assert_eq!(hash(2), [0x4d, 0xd4, 0xc7, 0x4d, 0x02, 0x9b, 0xcb, 0x82]);
    }

    /// `std`'s hasher is the same function with key 0 (today): every way of cutting a message into writes.
    #[test]
    fn cuts_do_not_matter() {
        let message: Vec<u8> = (0..64).collect();
        for len in 0..=message.len() {
            let mut whole = Sip13::new([0, 0]);
            whole.write(&message[..len]);
            let mut std = std::collections::hash_map::DefaultHasher::new();
            std.write(&message[..len]);
            assert_eq!(whole.finish(), std.finish(), "{len} bytes");
            for cut in 0..=len {
                let mut parts = Sip13::new([0, 0]);
                parts.write(&message[..cut]);
                parts.write(&message[cut..len]);
                assert_eq!(parts.finish(), whole.finish(), "{len} bytes cut at {cut}");
            }
        }
        let mut numbers = Sip13::new([1, 2]);
        numbers.write_u8(1);
        numbers.write_u32(2);
        numbers.write_u64(3);
        numbers.write_u16(4);
        let mut bytes = Sip13::new([1, 2]);
        bytes.write(&[1, 2, 0, 0, 0, 3, 0, 0, 0, 0, 0, 0, 0, 4, 0]);
        assert_eq!(numbers.finish(), bytes.finish());
    }
}
