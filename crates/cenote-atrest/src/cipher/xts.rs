//! AES-256-XTS, IEEE 1619-2018, over data units of whole blocks. There is no ciphertext stealing: a page has 256 blocks.
//!
//! ```text
//! T(0) = AES(key 2, tweak)        T(j) = T(j - 1) x a    in GF(2^128), a the field's generator
//! C(j) = AES(key 1, P(j) ^ T(j)) ^ T(j)
//! ```
//!
//! # Safety argument
//!
//! The only `unsafe` is calling the wide engine's functions, with the features checked when the keys were set, and with
//! slices of a checked length.

use super::Engine;
use aes::cipher::{BlockCipherDecrypt, BlockCipherEncrypt, KeyInit};
use aes::{Aes256, Block};

/// Bytes of both keys.
pub(crate) const KEY_LEN: usize = 64;

/// Expanded keys, to be kept in memory for secrets.
#[derive(Default)]
pub(crate) struct Keys(Expanded);

#[derive(Default)]
#[allow(clippy::large_enum_variant)] // lies in a page of its own
enum Expanded {
    #[default]
    None,
    #[cfg(target_arch = "x86_64")]
    Wide(super::xts_wide::Rounds),
    Blocks {
        data: Aes256,
        tweak: Aes256,
    },
}

impl Keys {
    /// Expands a key: the data's key first, then the tweak's.
    pub(crate) fn set(&mut self, engine: Engine, key: &[u8; KEY_LEN]) {
        let (data, tweak) = key.split_at(32);
        #[cfg(target_arch = "x86_64")]
        if engine == Engine::Wide && engine.is_available() {
            // In place, so that no copy of the keys is left behind.
            self.0 = Expanded::Wide(super::xts_wide::Rounds::default());
            if let Expanded::Wide(rounds) = &mut self.0 {
                // SAFETY: the processor has the features.
                unsafe { rounds.expand(as_key(data), as_key(tweak)) };
            }
            return;
        }
        let _ = engine;
        self.0 = Expanded::Blocks {
            data: Aes256::new(as_key(data).into()),
            tweak: Aes256::new(as_key(tweak).into()),
        };
    }

    /// Encrypts `from`, or `data` itself, into `data`. Both have the same multiple of 16 bytes.
    pub(crate) fn encrypt(&self, tweak: &[u8; 16], from: Option<&[u8]>, data: &mut [u8]) {
        self.run::<true>(tweak, from, data);
    }

    /// Decrypts `from`, or `data` itself, into `data`. Both have the same multiple of 16 bytes.
    pub(crate) fn decrypt(&self, tweak: &[u8; 16], from: Option<&[u8]>, data: &mut [u8]) {
        self.run::<false>(tweak, from, data);
    }

    fn run<const ENCRYPT: bool>(&self, tweak: &[u8; 16], from: Option<&[u8]>, data: &mut [u8]) {
        debug_assert!(data.len().is_multiple_of(16) && from.is_none_or(|from| from.len() == data.len()));
        match &self.0 {
            // Without keys nothing may come out that looks encrypted.
            Expanded::None => data.fill(0),
            #[cfg(target_arch = "x86_64")]
            // SAFETY: there are rounds for it only where the processor has the features.
            Expanded::Wide(rounds) => unsafe { rounds.run::<ENCRYPT>(tweak, from, data) },
            Expanded::Blocks { data: cipher, tweak: tweak_cipher } => {
                if let Some(from) = from {
                    data.copy_from_slice(from);
                }
                let mut first = Block::from(*tweak);
                tweak_cipher.encrypt_block(&mut first);
                blocks::<ENCRYPT>(cipher, u128::from_le_bytes(first.into()), data);
            }
        }
    }
}

fn as_key(half: &[u8]) -> &[u8; 32] {
    // Both callers split 64 bytes in the middle.
    half.first_chunk().unwrap_or(&[0; 32])
}

/// One step of the tweak: times the field's generator.
pub(super) const fn double(t: u128) -> u128 {
    (t << 1) ^ ((t >> 127) * 0x87)
}

/// Blocks in a row that crate `aes` is given at once.
const BATCH: usize = 32;

fn blocks<const ENCRYPT: bool>(cipher: &Aes256, mut tweak: u128, data: &mut [u8]) {
    let mut tweaks = [0u128; BATCH];
    let mut work = [Block::default(); BATCH];
    let (all, _) = data.as_chunks_mut::<16>();
    for batch in all.chunks_mut(BATCH) {
        let work = &mut work[..batch.len()];
        for ((t, block), bytes) in tweaks.iter_mut().zip(work.iter_mut()).zip(batch.iter()) {
            *t = tweak;
            tweak = double(tweak);
            *block = Block::from((u128::from_le_bytes(*bytes) ^ *t).to_le_bytes());
        }
        if ENCRYPT {
            cipher.encrypt_blocks(work);
        } else {
            cipher.decrypt_blocks(work);
        }
        for ((t, block), bytes) in tweaks.iter().zip(work.iter()).zip(batch.iter_mut()) {
            *bytes = (u128::from_le_bytes((*block).into()) ^ t).to_le_bytes();
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::testing::{hex, pattern, sha256_hex};

    fn keys(engine: Engine, key: &[u8]) -> Keys {
        let mut keys = Keys::default();
        keys.set(engine, key.try_into().unwrap());
        keys
    }

    #[test]
    fn published_vectors_hold_in_every_engine() {
        let counting: String = (0..512u32).map(|i| format!("{:02x}", i as u8)).collect();
        let vectors = [
            // IEEE 1619, vector 10.
            (
                "27182818284590452353602874713526624977572470936999595749669676273141592653589793238462643383279502884197\
                 169399375105820974944592",
                "ff000000000000000000000000000000",
                counting.as_str(),
                "1c3b3a102f770386e4836c99e370cf9bea00803f5e482357a4ae12d414a3e63b\
                 5d31e276f8fe4a8d66b317f9ac683f44680a86ac35adfc3345befecb4bb188fd\
                 5776926c49a3095eb108fd1098baec70aaa66999a72a82f27d848b21d4a741b0\
                 c5cd4d5fff9dac89aeba122961d03a757123e9870f8acf1000020887891429ca\
                 2a3e7a7d7df7b10355165c8b9a6d0a7de8b062c4500dc4cd120c0f7418dae3d0\
                 b5781c34803fa75421c790dfe1de1834f280d7667b327f6c8cd7557e12ac3a0f\
                 93ec05c52e0493ef31a12d3d9260f79a289d6a379bc70c50841473d1a8cc81ec\
                 583e9645e07b8d9670655ba5bbcfecc6dc3966380ad8fecb17b6ba02469a020a\
                 84e18e8f84252070c13e9f1f289be54fbc481457778f616015e1327a02b140f1\
                 505eb309326d68378f8374595c849d84f4c333ec4423885143cb47bd71c5edae\
                 9be69a2ffeceb1bec9de244fbe15992b11b77c040f12bd8f6a975a44a0f90c29\
                 a9abc3d4d893927284c58754cce294529f8614dcd2aba991925fedc4ae74ffac\
                 6e333b93eb4aff0479da9a410e4450e0dd7ae4c6e2910900575da401fc07059f\
                 645e8b7e9bfdef33943054ff84011493c27b3429eaedb4ed5376441a77ed4385\
                 1ad77f16f541dfd269d50d6a5f14fb0aab1cbb4c1550be97f7ab4066193c4caa\
                 773dad38014bd2092fa755c824bb5e54c4f36ffda9fcea70b9c6e693e148c151",
            ),
            // NIST XTSVS, XTSGenAES256.
            (
                "1ea661c58d943a0e4801e42f4b0947149e7f9f8e3e68d0c7505210bd311a0e7cd6e13ffdf2418d8d1911c004cda58da3d619b7e2\
                 b9141e58318eea392cf41b08",
                "adf8d92627464ad2f0428e84a9f87564",
                "2eedea52cd8215e1acc647e810bbc3642e87287f8d2e57e36c0a24fbc12a202e",
                "cbaad0e2f6cea3f50b37f934d46a9b130b9d54f07e34f36af793e86f73c6d7db",
            ),
        ];
        for engine in Engine::available() {
            for (key, tweak, plain, cipher) in vectors {
                let keys = keys(engine, &hex(key));
                let tweak = hex(tweak).try_into().unwrap();
                let mut data = hex(plain);
                keys.encrypt(&tweak, None, &mut data);
                assert_eq!(data, hex(cipher), "{engine}");
                keys.decrypt(&tweak, None, &mut data);
                assert_eq!(data, hex(plain), "{engine}");
            }
        }
    }

    /// Known answer of another implementation (AWS-LC) for a whole page.
    #[test]
    fn a_page_is_encrypted_as_another_implementation_encrypts_it() {
        let key: Vec<u8> = (0..64).collect();
        let mut tweak = [0; 16];
        tweak[..8].copy_from_slice(&0x0123_4567_89ab_cdefu64.to_le_bytes());
        tweak[8..].copy_from_slice(&0xfedc_ba98_7654_3210u64.to_le_bytes());
        for engine in Engine::available() {
            let mut data = pattern(4096);
            keys(engine, &key).encrypt(&tweak, None, &mut data);
            assert_eq!(
                sha256_hex(&data),
                "ce9b2043f29819044ac69fc64f870d3488238deac5e7c93fb0b112aaf4c538bd",
                "{engine}"
            );
        }
    }

    #[test]
    fn engines_agree_on_every_number_of_blocks() {
        let key: Vec<u8> = (100..164).collect();
        for blocks in (0..70).chain([255, 256, 257]) {
            let tweak: [u8; 16] = core::array::from_fn(|i| (blocks + 17 * i) as u8);
            let mut expected = pattern(16 * blocks);
            keys(Engine::Portable, &key).encrypt(&tweak, None, &mut expected);
            for engine in Engine::available() {
                let keys = keys(engine, &key);
                let mut data = pattern(16 * blocks);
                keys.encrypt(&tweak, None, &mut data);
                assert_eq!(data, expected, "{engine}, {blocks} blocks");
                keys.decrypt(&tweak, None, &mut data);
                assert_eq!(data, pattern(16 * blocks), "{engine}, {blocks} blocks");
                // From elsewhere.
                let mut away = vec![1; 16 * blocks];
                keys.encrypt(&tweak, Some(&data), &mut away);
                assert_eq!(away, expected, "{engine}, {blocks} blocks");
                keys.decrypt(&tweak, Some(&expected), &mut away);
                assert_eq!(away, data, "{engine}, {blocks} blocks");
            }
        }
    }

    #[test]
    fn without_keys_nothing_leaves() {
        let mut data = pattern(64);
        Keys::default().encrypt(&[1; 16], None, &mut data);
        assert_eq!(data, vec![0; 64]);
    }
}
