//! Makes the data key of an object at random, wraps it under the caller's key, and derives every
//! other key of the object from it.
//!
//! ```text
//! caller's key --HKDF, wrap_salt--> key_check (32 B, in the header), wrapping key
//! wrapping key --AES-256-GCM-SIV--> data key (32 random bytes)
//! data key --HKDF, object's UUID--> key of subordinates ([`crate::Protection::subordinate`])
//! data key --HKDF, object's UUID--> inheriting key
//! inheriting key --AES-256-GCM-SIV--> key of the subordinates of the object that this one was
//!                                     copied from ([`crate::Protection::inherited`])
//! data key --HKDF, object's UUID--> XTS keys (64 B), AEGIS key (32 B), header's HMAC key (32 B)
//! ```
//!
//! Why AES-256-GCM-SIV (RFC 8452) for wrapping: it is a finished standard, and safe even if a nonce
//! came twice. That cannot happen here: each wrapping has a wrapping key of its own, from 32 fresh
//! random bytes of salt, and the nonce is zero. GCM-SIV does not bind a ciphertext to one key, so
//! alone it would let an attacker prepare a header that opens under several passphrases;
//! `key_check` prevents that.
//!
//! All keys of an object lie in one [`Secret`], which is one locked page.

use crate::crypto::cipher::{CipherFailed, aegis, xts};
use crate::crypto::error::UnwrapError;
use aes_gcm_siv::aead::{AeadInOut, KeyInit};
use aes_gcm_siv::{Aes256GcmSiv, Nonce};
use argon2::{Algorithm, Argon2, Params, Version};
use cenote_layout::at_rest::{AtRestHeader, Mode};
use cenote_layout::id::Uuid;
use cenote_sys::secret::{Locking, Secret, scrub_stack, wipe_bytes};
use hkdf::Hkdf;
use hmac::{Hmac, Mac};
use sha2::Sha256;
use std::io;
use subtle::ConstantTimeEq;
use zerocopy::IntoBytes;

/// All keys of an object.
pub(crate) struct Keys {
    data_key: [u8; 32],
    header_mac: [u8; 32],
    aegis: [u8; 32],
    xts: [u8; xts::KEY_LEN],
}

impl Keys {
    const EMPTY: fn() -> Self =
        || Self { data_key: [0; 32], header_mac: [0; 32], aegis: [0; 32], xts: [0; xts::KEY_LEN] };

    /// Keys of a new object.
    pub(crate) fn generate(object: Uuid, mode: Mode, locking: Locking) -> io::Result<Secret<Self>> {
        let mut keys = Secret::new(locking, Self::EMPTY())?;
        cenote_sys::process::fill_random(&mut keys.data_key)?;
        keys.derive(object, mode);
        Ok(keys)
    }

    /// Derives what the mode needs from the data key, in place.
    fn derive(&mut self, object: Uuid, mode: Mode) {
        let hkdf = Hkdf::<Sha256>::new(Some(&object.0), &self.data_key);
        expand(&hkdf, b"cenote at rest: header", &mut self.header_mac);
        match mode {
            Mode::Encryption | Mode::EncryptionIntegrity => {
                expand(&hkdf, b"cenote at rest: xts", &mut self.xts);
            }
            Mode::Authenticated => expand(&hkdf, b"cenote at rest: aegis", &mut self.aegis),
            Mode::None | Mode::Integrity => {}
        }
        drop(hkdf);
        scrub_stack();
    }

    /// [`xts::encrypt`], with these keys.
    pub(crate) fn encrypt(
        &self,
        tweak: &[u8; 16],
        from: Option<&[u8]>,
        data: &mut [u8],
    ) -> Result<(), CipherFailed> {
        xts::encrypt(&self.xts, tweak, from, data)
    }

    /// [`xts::decrypt`], with these keys.
    pub(crate) fn decrypt(
        &self,
        tweak: &[u8; 16],
        from: Option<&[u8]>,
        data: &mut [u8],
    ) -> Result<(), CipherFailed> {
        xts::decrypt(&self.xts, tweak, from, data)
    }

    /// [`aegis::seal`], with this key.
    pub(crate) fn seal(
        &self,
        nonce: &[u8; 32],
        ad: &[u8],
        from: Option<&[u8]>,
        data: &mut [u8],
    ) -> [u8; 32] {
        aegis::seal(&self.aegis, nonce, ad, from, data)
    }

    /// [`aegis::open`], with this key.
    #[must_use]
    pub(crate) fn open(
        &self,
        nonce: &[u8; 32],
        ad: &[u8],
        tag: &[u8; 32],
        from: Option<&[u8]>,
        data: &mut [u8],
    ) -> bool {
        aegis::open(&self.aegis, nonce, ad, tag, from, data)
    }

    /// The key that puts others under this data key.
    pub(crate) fn subordinate(&self, object: Uuid, out: &mut [u8; 32]) {
        let hkdf = Hkdf::<Sha256>::new(Some(&object.0), &self.data_key);
        expand(&hkdf, b"cenote at rest: subordinates", out);
        drop(hkdf);
        scrub_stack();
    }

    /// Puts the key of another's subordinates into the header of a new object. Once for each data
    /// key: the key that wraps it has no other message, so that the nonce may be zero.
    pub(crate) fn wrap_inherited(
        &self,
        inherited: &[u8; 32],
        header: &mut AtRestHeader,
    ) -> io::Result<()> {
        header.inherited_key = *inherited;
        let cipher = self.inheriting(header.object);
        let tag = cipher.encrypt_inout_detached(
            &Nonce::default(),
            &header.object.0,
            header.inherited_key.as_mut_slice().into(),
        );
        let tag = tag.inspect_err(|_| wipe_bytes(&mut header.inherited_key));
        let failed = |_| io::Error::other("a key of 32 bytes cannot be wrapped");
        header.inherited_tag.copy_from_slice(&tag.map_err(failed)?);
        drop(cipher);
        scrub_stack();
        Ok(())
    }

    /// The key that [`Keys::wrap_inherited`] put into a header; `false`: it is not there as it was
    /// put.
    pub(crate) fn unwrap_inherited(&self, header: &AtRestHeader, out: &mut [u8; 32]) -> bool {
        *out = header.inherited_key;
        let (cipher, tag) = (self.inheriting(header.object), header.inherited_tag.into());
        let opened = cipher.decrypt_inout_detached(
            &Nonce::default(),
            &header.object.0,
            out.as_mut_slice().into(),
            &tag,
        );
        drop(cipher);
        scrub_stack();
        opened.is_ok()
    }

    fn inheriting(&self, object: Uuid) -> Aes256GcmSiv {
        let hkdf = Hkdf::<Sha256>::new(Some(&object.0), &self.data_key);
        let mut key = [0; 32];
        expand(&hkdf, b"cenote at rest: inherited", &mut key);
        let cipher = Aes256GcmSiv::new(&key.into());
        wipe_bytes(&mut key);
        cipher
    }

    /// Writes the header's wrapping fields for a key of the caller's, with a fresh salt. The
    /// header's other fields, the epoch among them, are set before.
    pub(crate) fn wrap(&self, master: &[u8; 32], header: &mut AtRestHeader) -> io::Result<()> {
        cenote_sys::process::fill_random(&mut header.wrap_salt)?;
        header.wrapped_key = self.data_key;
        let (check, cipher) = wrapping(master, &header.wrap_salt);
        header.key_check = check;
        let ad = wrap_context(header);
        let tag = cipher.encrypt_inout_detached(
            &Nonce::default(),
            &ad,
            header.wrapped_key.as_mut_slice().into(),
        );
        let tag = tag.inspect_err(|_| wipe_bytes(&mut header.wrapped_key));
        header.wrap_tag.copy_from_slice(
            &tag.map_err(|_| io::Error::other("a key of 32 bytes cannot be wrapped"))?,
        );
        drop(cipher);
        scrub_stack();
        Ok(())
    }

    /// The keys of an existing object.
    pub(crate) fn unwrap(
        master: &[u8; 32],
        header: &AtRestHeader,
        mode: Mode,
        locking: Locking,
    ) -> Result<Secret<Self>, UnwrapError> {
        let (check, cipher) = wrapping(master, &header.wrap_salt);
        if !bool::from(check.ct_eq(&header.key_check)) {
            return Err(UnwrapError::WrongKey);
        }
        let mut keys = Secret::new(locking, Self::EMPTY()).map_err(UnwrapError::System)?;
        keys.data_key = header.wrapped_key;
        cipher
            .decrypt_inout_detached(
                &Nonce::default(),
                &wrap_context(header),
                keys.data_key.as_mut_slice().into(),
                &header.wrap_tag.into(),
            )
            .map_err(|_| UnwrapError::Tampered)?;
        drop(cipher);
        keys.derive(header.object, mode);
        Ok(keys)
    }

    /// HMAC of a header whose `mac` and checksum count as zero.
    pub(crate) fn header_mac(&self, header: &AtRestHeader) -> [u8; 32] {
        let mut copy = *header;
        copy.prefix.checksum = 0;
        copy.mac = [0; 32];
        // A key of 32 bytes is never refused.
        let Ok(mut mac) = <Hmac<Sha256> as KeyInit>::new_from_slice(&self.header_mac) else {
            return [0; 32];
        };
        mac.update(copy.as_bytes());
        mac.finalize().into_bytes().into()
    }
}

/// The check of a key, and the cipher that wraps under it.
fn wrapping(master: &[u8; 32], salt: &[u8; 32]) -> ([u8; 32], Aes256GcmSiv) {
    let hkdf = Hkdf::<Sha256>::new(Some(salt), master);
    let (mut check, mut key) = ([0; 32], [0; 32]);
    expand(&hkdf, b"cenote at rest: key check", &mut check);
    expand(&hkdf, b"cenote at rest: wrap", &mut key);
    let cipher = Aes256GcmSiv::new(&key.into());
    wipe_bytes(&mut key);
    (check, cipher)
}

/// Argon2id of a passphrase, by KiB of memory, passes and lanes. An error says what the library
/// refuses.
pub(crate) fn argon2id(
    passphrase: &[u8],
    salt: &[u8; 32],
    (memory_kib, passes, lanes): (u32, u32, u32),
    key: &mut [u8; 32],
) -> Result<(), String> {
    Params::new(memory_kib, passes, lanes, Some(32))
        .and_then(|params| {
            Argon2::new(Algorithm::Argon2id, Version::V0x13, params)
                .hash_password_into(passphrase, salt, key)
        })
        .map_err(|error| error.to_string())
}

/// The facts that a wrapped key is bound to: object, pages, mode, cipher and version, epoch.
fn wrap_context(header: &AtRestHeader) -> [u8; 48] {
    let mut context = [0; 48];
    context[..16].copy_from_slice(&header.object.0);
    context[16..24].copy_from_slice(&header.pages.to_le_bytes());
    for (at, field) in
        [header.mode, header.cipher, header.cipher_version, header.tree].into_iter().enumerate()
    {
        context[24 + 4 * at..28 + 4 * at].copy_from_slice(&field.to_le_bytes());
    }
    context[40..48].copy_from_slice(&header.key_epoch.to_le_bytes());
    context
}

fn expand(hkdf: &Hkdf<Sha256>, label: &[u8], out: &mut [u8]) {
    // HKDF refuses only more than 255 digests' length.
    if hkdf.expand(label, out).is_err() {
        out.fill(0);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::crypto::testing::hex;

    /// RFC 5869, A.1.
    #[test]
    fn hkdf_is_the_rfcs() {
        let hkdf = Hkdf::<Sha256>::new(Some(&hex("000102030405060708090a0b0c")), &[0x0b; 22]);
        let mut out = [0; 42];
        expand(&hkdf, &hex("f0f1f2f3f4f5f6f7f8f9"), &mut out);
        assert_eq!(
            out.to_vec(),
            hex("3cb25f25faacd57a90434f64d0362f2a2d2d0a90cf1a5a4c5db02d56ecc4c5bf\
                 34007208d5b887185865")
        );
    }

    /// RFC 4231, test case 2.
    #[test]
    fn hmac_is_the_rfcs() {
        let mut mac = <Hmac<Sha256> as KeyInit>::new_from_slice(b"Jefe").unwrap();
        mac.update(b"what do ya want for nothing?");
        assert_eq!(
            mac.finalize().into_bytes().to_vec(),
            hex("5bdcc146bf60754e6a042426089575c75a003f089d2739839dec58b964ec3843")
        );
    }

    /// RFC 8452, C.2: AES-256, empty plaintext and eight bytes.
    #[test]
    fn gcm_siv_is_the_rfcs() {
        let mut key = [0u8; 32];
        key[0] = 1;
        let cipher = Aes256GcmSiv::new(&key.into());
        let mut nonce = [0u8; 12];
        nonce[0] = 3;
        for (plain, expected) in [
            ("", "07f5f4169bbf55a8400cd47ea6fd400f"),
            ("0100000000000000", "c2ef328e5c71c83b843122130f7364b761e0b97427e3df28"),
        ] {
            let mut data = hex(plain);
            let tag = cipher
                .encrypt_inout_detached(&nonce.into(), &[], data.as_mut_slice().into())
                .unwrap();
            data.extend_from_slice(&tag);
            assert_eq!(data, hex(expected));
        }
    }

    #[test]
    fn all_keys_of_an_object_fit_into_one_page() {
        assert!(size_of::<Keys>() <= 4096, "{}", size_of::<Keys>());
    }

    #[test]
    fn modes_and_objects_do_not_share_keys() {
        let keys = |id: u8, mode| {
            let mut keys = Keys::EMPTY();
            keys.data_key = [7; 32];
            keys.derive(Uuid([id; 16]), mode);
            (keys.header_mac, keys.aegis)
        };
        let (a, b) = (keys(1, Mode::Authenticated), keys(2, Mode::Authenticated));
        assert!(a.0 != b.0 && a.1 != b.1 && a.0 != a.1);
        assert_eq!(keys(1, Mode::Encryption).1, [0; 32], "a key that the mode has no use for");
    }
}
