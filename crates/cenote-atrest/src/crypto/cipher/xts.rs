//! AES-256-XTS (IEEE 1619-2018) over data units of whole blocks, by AWS-LC.
//!
//! Invariant: the caller's 64 bytes are the only lasting copy of the keys. Each call expands them
//! into a context of its own and wipes that context before it returns: AWS-LC cleanses what it
//! frees. That costs about 50 ns a page, and keeps round keys out of memory that outlives the call.
//!
//! # Safety argument
//!
//! [`Context`] is initialised before any other call sees it, and cleaned up once, when it is
//! dropped. The library reads 64 bytes of key and 16 of tweak, which are arrays of that size, and
//! reads and writes `len` bytes at pointers that come from slices of that length; the slices do not
//! overlap, or are one, which the library allows.

use super::CipherFailed;
use aws_lc_sys::{
    EVP_CIPHER_CTX, EVP_CIPHER_CTX_cleanup, EVP_CIPHER_CTX_init, EVP_CipherInit_ex,
    EVP_CipherUpdate, EVP_aes_256_xts,
};
use core::ffi::c_int;
use core::mem::MaybeUninit;
use core::ptr;

/// Bytes of both keys: the data's first, then the tweak's.
pub(crate) const KEY_LEN: usize = 64;

/// Encrypts `from`, or `data` itself, into `data`. Both have the same multiple of 16 bytes.
///
/// # Errors
/// [`CipherFailed`], when the library has no memory; `data` is then as it was.
pub(crate) fn encrypt(
    key: &[u8; KEY_LEN],
    tweak: &[u8; 16],
    from: Option<&[u8]>,
    data: &mut [u8],
) -> Result<(), CipherFailed> {
    run(1, key, tweak, from, data)
}

/// Decrypts `from`, or `data` itself, into `data`. Both have the same multiple of 16 bytes.
///
/// # Errors
/// As [`encrypt`].
pub(crate) fn decrypt(
    key: &[u8; KEY_LEN],
    tweak: &[u8; 16],
    from: Option<&[u8]>,
    data: &mut [u8],
) -> Result<(), CipherFailed> {
    run(0, key, tweak, from, data)
}

/// A context that is wiped when it goes.
struct Context(EVP_CIPHER_CTX);

impl Context {
    fn new() -> Self {
        let mut context = MaybeUninit::zeroed();
        // SAFETY: the memory has the size of a context; the call makes a context of it, and zeros
        // are valid for each of its fields.
        unsafe {
            EVP_CIPHER_CTX_init(context.as_mut_ptr());
            Self(context.assume_init())
        }
    }
}

impl Drop for Context {
    fn drop(&mut self) {
        // SAFETY: the context was initialised, and nothing uses it after this.
        unsafe { EVP_CIPHER_CTX_cleanup(&raw mut self.0) };
    }
}

fn run(
    encrypts: c_int,
    key: &[u8; KEY_LEN],
    tweak: &[u8; 16],
    from: Option<&[u8]>,
    data: &mut [u8],
) -> Result<(), CipherFailed> {
    let fits = data.len().is_multiple_of(16) && from.is_none_or(|from| from.len() == data.len());
    let done = match c_int::try_from(data.len()) {
        Ok(len) if fits => {
            let mut context = Context::new();
            let mut written = 0;
            let to = data.as_mut_ptr();
            let from = from.map_or(to.cast_const(), <[u8]>::as_ptr);
            // SAFETY: the context is initialised; key and tweak have the cipher's lengths; `len`
            // bytes can be read at `from` and written at `to`, by the check above.
            unsafe {
                let cipher = EVP_aes_256_xts();
                let (key, tweak) = (key.as_ptr(), tweak.as_ptr());
                EVP_CipherInit_ex(&raw mut context.0, cipher, ptr::null_mut(), key, tweak, encrypts)
                    == 1
                    && (len == 0
                        || EVP_CipherUpdate(&raw mut context.0, to, &raw mut written, from, len)
                            == 1)
                    && written == len
            }
        }
        _ => false,
    };
    if done { Ok(()) } else { Err(CipherFailed) }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::crypto::testing::{hex, pattern, sha256_hex};
    use aes::cipher::{BlockCipherEncrypt, KeyInit};
    use aes::{Aes256, Block};

    #[test]
    fn published_vectors_hold() {
        let counting: String = (0..512u32).map(|i| format!("{:02x}", i as u8)).collect();
        let vectors = [
            // IEEE 1619, vector 10.
            (
                "2718281828459045235360287471352662497757247093699959574966967627\
                 3141592653589793238462643383279502884197\
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
                "1ea661c58d943a0e4801e42f4b0947149e7f9f8e3e68d0c7505210bd311a0e7c\
                 d6e13ffdf2418d8d1911c004cda58da3d619b7e2\
                 b9141e58318eea392cf41b08",
                "adf8d92627464ad2f0428e84a9f87564",
                "2eedea52cd8215e1acc647e810bbc3642e87287f8d2e57e36c0a24fbc12a202e",
                "cbaad0e2f6cea3f50b37f934d46a9b130b9d54f07e34f36af793e86f73c6d7db",
            ),
        ];
        for (key, tweak, plain, cipher) in vectors {
            let (key, tweak) = (hex(key).try_into().unwrap(), hex(tweak).try_into().unwrap());
            let mut data = hex(plain);
            encrypt(&key, &tweak, None, &mut data).unwrap();
            assert_eq!(data, hex(cipher));
            decrypt(&key, &tweak, None, &mut data).unwrap();
            assert_eq!(data, hex(plain));
        }
    }

    /// Stores that earlier releases made still open: the answer for a whole page.
    #[test]
    fn a_page_is_encrypted_as_it_always_was() {
        let key = core::array::from_fn(|i| i as u8);
        let mut tweak = [0; 16];
        tweak[..8].copy_from_slice(&0x0123_4567_89ab_cdefu64.to_le_bytes());
        tweak[8..].copy_from_slice(&0xfedc_ba98_7654_3210u64.to_le_bytes());
        let mut data = pattern(4096);
        encrypt(&key, &tweak, None, &mut data).unwrap();
        assert_eq!(
            sha256_hex(&data),
            "ce9b2043f29819044ac69fc64f870d3488238deac5e7c93fb0b112aaf4c538bd"
        );
    }

    /// What the mode is, block by block, over the bare cipher of another library.
    fn by_the_standard(key: &[u8; KEY_LEN], tweak: &[u8; 16], data: &mut [u8]) {
        let half = |at: usize| <&[u8; 32]>::try_from(&key[at..at + 32]).unwrap();
        let (cipher, tweaks) = (Aes256::new(half(0).into()), Aes256::new(half(32).into()));
        let mut first = Block::from(*tweak);
        tweaks.encrypt_block(&mut first);
        let mut mask = u128::from_le_bytes(first.into());
        for bytes in data.as_chunks_mut::<16>().0 {
            let mut block = Block::from((u128::from_le_bytes(*bytes) ^ mask).to_le_bytes());
            cipher.encrypt_block(&mut block);
            *bytes = (u128::from_le_bytes(block.into()) ^ mask).to_le_bytes();
            mask = (mask << 1) ^ ((mask >> 127) * 0x87);
        }
    }

    #[test]
    fn every_number_of_blocks_is_encrypted_as_the_standard_says() {
        let key = core::array::from_fn(|i| 100 + i as u8);
        for blocks in (0..70).chain([255, 256, 257]) {
            let tweak: [u8; 16] = core::array::from_fn(|i| (blocks + 17 * i) as u8);
            let plain = pattern(16 * blocks);
            let mut expected = plain.clone();
            by_the_standard(&key, &tweak, &mut expected);
            let mut data = plain.clone();
            encrypt(&key, &tweak, None, &mut data).unwrap();
            assert_eq!(data, expected, "{blocks} blocks");
            decrypt(&key, &tweak, None, &mut data).unwrap();
            assert_eq!(data, plain, "{blocks} blocks");
            let mut away = vec![1; 16 * blocks];
            encrypt(&key, &tweak, Some(&plain), &mut away).unwrap();
            assert_eq!(away, expected, "{blocks} blocks");
            decrypt(&key, &tweak, Some(&expected), &mut away).unwrap();
            assert_eq!(away, plain, "{blocks} blocks");
        }
    }

    #[test]
    fn what_cannot_be_encrypted_stays_as_it_was() {
        // Equal halves are refused by the standard; a part of a block has no place in a page.
        let equal = [1; KEY_LEN];
        let key = core::array::from_fn(|i| i as u8);
        for (key, len) in [(equal, 64), (key, 63)] {
            let mut data = pattern(len);
            assert!(encrypt(&key, &[1; 16], None, &mut data).is_err());
            assert_eq!(data, pattern(len));
        }
    }
}
