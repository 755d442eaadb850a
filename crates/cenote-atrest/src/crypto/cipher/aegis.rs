//! AEGIS-256X4 with tags of 256 bits (draft-irtf-cfrg-aegis-aead), by libaegis.
//!
//! Nonces of 256 bits may be chosen at random; a nonce must never come twice with one key.

use aegis::aegis256x4::Aegis256X4;

/// Encrypts `from`, or `data` itself, into `data`, authenticates it with `ad`, and returns the tag.
/// `from` is as long as `data`.
pub(crate) fn seal(
    key: &[u8; 32],
    nonce: &[u8; 32],
    ad: &[u8],
    from: Option<&[u8]>,
    data: &mut [u8],
) -> [u8; 32] {
    if let Some(from) = from {
        data.copy_from_slice(from);
    }
    Aegis256X4::<32>::new(key, nonce).encrypt_in_place(data, ad)
}

/// Decrypts `from`, or `data` itself, into `data`. False: the tag does not fit, and `data` is all
/// zero. `from` is as long as `data`.
#[must_use]
pub(crate) fn open(
    key: &[u8; 32],
    nonce: &[u8; 32],
    ad: &[u8],
    tag: &[u8; 32],
    from: Option<&[u8]>,
    data: &mut [u8],
) -> bool {
    if let Some(from) = from {
        data.copy_from_slice(from);
    }
    let fits = Aegis256X4::<32>::new(key, nonce).decrypt_in_place(data, tag, ad).is_ok();
    if !fits {
        data.fill(0);
    }
    fits
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::crypto::testing::{hex, pattern, sha256_hex};

    const KEY: &str = "000102030405060708090a0b0c0d0e0f101112131415161718191a1b1c1d1e1f";
    const NONCE: &str = "101112131415161718191a1b1c1d1e1f202122232425262728292a2b2c2d2e2f";

    fn array<const N: usize>(text: &str) -> [u8; N] {
        hex(text).try_into().unwrap()
    }

    #[test]
    fn the_drafts_vectors_hold() {
        let message = "0405060704050607".repeat(15);
        let cipher = "bfc2085b7e8017da99b0b6d646ae4d01f4ba8f2e7dfca1d759ae48a135139b9a\
                      aac6b4f5db810d426be1fdaff4e1454153a34b11da78ed7e418ee2ee9853042e\
                      95536aecbb694cea1b16a478eb0d4d1bf6509b1ce652a45af58e0e46ffccfa2d\
                      0426e702391d2ff5813808b81748a490dd656465fed61f09";
        let vectors = [
            ("", "", "", "6093a1a8aab20ec635dc1ca71745b01b5bec4fc444c9ffbebd710d4a34d20eaf"),
            (
                "0102030401020304",
                &message,
                cipher,
                "7847eace74409ee56c8f4cf63a9c2841ce7c8bd567d7c0ca514c879a190b978c",
            ),
        ];
        for (ad, message, cipher, tag) in vectors {
            let mut data = hex(message);
            let made = seal(&array(KEY), &array(NONCE), &hex(ad), None, &mut data);
            assert_eq!((&data, &made[..]), (&hex(cipher), &hex(tag)[..]));
            assert!(open(&array(KEY), &array(NONCE), &hex(ad), &made, None, &mut data));
            assert_eq!(data, hex(message));
        }
    }

    /// Stores that earlier releases made still open: the answers for a whole page.
    #[test]
    fn a_page_is_sealed_as_it_always_was() {
        let key: [u8; 32] = core::array::from_fn(|i| i as u8);
        let nonce: [u8; 32] = core::array::from_fn(|i| 0x80 + i as u8);
        let ad: [u8; 32] = core::array::from_fn(|i| 0x40 + i as u8);
        let mut data = pattern(4096);
        let tag = seal(&key, &nonce, &ad, None, &mut data);
        assert_eq!(
            sha256_hex(&data),
            "67dedb638892bd6365f2b93ceae67dfaadab542da746c441e64ddbcd55ee93e6"
        );
        assert_eq!(
            tag.to_vec(),
            hex("d880a97eed2d7a4fbcdf4b12c2a2bfc804132bc04a3f2cd696705b9b99131aeb")
        );
    }

    #[test]
    fn every_length_comes_back_and_a_change_of_any_input_is_refused() {
        for len in [0, 1, 15, 16, 63, 64, 65, 127, 128, 200, 4096] {
            let (key, nonce) = ([7; 32], [9; 32]);
            let (plain, ad) = (pattern(len), pattern(len / 3));
            let mut sealed = plain.clone();
            let tag = seal(&key, &nonce, &ad, None, &mut sealed);
            // From elsewhere, which stays as it is.
            let mut away = vec![1; len];
            assert_eq!(seal(&key, &nonce, &ad, Some(&plain), &mut away), tag);
            assert_eq!(away, sealed);
            let mut back = vec![1; len];
            assert!(open(&key, &nonce, &ad, &tag, Some(&away), &mut back));
            assert_eq!((&back, &away), (&plain, &sealed));
            let attempts = [
                ([8; 32], nonce, ad.clone(), tag),
                (key, [8; 32], ad.clone(), tag),
                (key, nonce, [&ad[..], &[0]].concat(), tag),
                (key, nonce, ad.clone(), [0; 32]),
            ];
            for (key, nonce, ad, tag) in attempts {
                let mut copy = sealed.clone();
                assert!(!open(&key, &nonce, &ad, &tag, None, &mut copy));
                assert!(copy.iter().all(|&b| b == 0), "what was not authentic came out");
            }
            assert!(open(&key, &nonce, &ad, &tag, None, &mut sealed));
            assert_eq!(sealed, plain);
        }
    }
}
