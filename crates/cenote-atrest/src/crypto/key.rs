//! The caller's keys: 32 bytes, a key file's contents, or a passphrase.
//!
//! A session has a [`Keyring`]: one key or passphrase, under which it creates and opens objects.
//! Argon2 takes tens of milliseconds on purpose, which no attach could bear: a keyring runs it once
//! for each pair of parameters and salt that it meets, remembers the outcome in locked memory, and
//! creates objects under the pair that it knows.
//!
//! Nothing here is ever written to media, except Argon2's parameters and salt (by
//! [`crate::Protection::header`]).

use crate::crypto::data_key::argon2id;
use crate::crypto::error::KeyError;
use cenote_layout::at_rest::{
    ARGON2_LANES_MAX, ARGON2_MEMORY_KIB_MAX, ARGON2_MEMORY_KIB_MIN, ARGON2_PASSES_MAX,
};
use cenote_sys::secret::{Locking, Secret, scrub_stack, wipe_bytes};
use std::sync::{Mutex, PoisonError};

/// Most bytes of a passphrase.
pub const PASSPHRASE_MAX: usize = 1024;

/// A key of 256 bits.
#[derive(Debug)]
pub struct MasterKey {
    pub(crate) bytes: Secret<[u8; 32]>,
}

impl MasterKey {
    /// Takes a key over: `bytes` is overwritten with zeros. The bytes must be random.
    ///
    /// # Errors
    /// [`KeyError::Weak`] for 32 equal bytes; [`KeyError::System`] if no memory can be locked.
    pub fn from_bytes(bytes: &mut [u8; 32]) -> Result<Self, KeyError> {
        Self::with_locking(bytes, Locking::Required)
    }

    /// As [`MasterKey::from_bytes`], and says whether the key may lie in memory that is not locked.
    ///
    /// # Errors
    /// As [`MasterKey::from_bytes`].
    pub fn with_locking(bytes: &mut [u8; 32], locking: Locking) -> Result<Self, KeyError> {
        built()?;
        if bytes.iter().all(|b| *b == bytes[0]) {
            return Err(KeyError::Weak);
        }
        let mut key = zeros(locking)?;
        key.copy_from_slice(bytes);
        wipe_bytes(bytes);
        Ok(Self { bytes: key })
    }

    /// Takes over the contents of a key file: 32 bytes, or 64 hexadecimal digits and perhaps a
    /// line's end. Overwrites `contents` with zeros. The caller makes sure that no other user may
    /// read the file.
    ///
    /// # Errors
    /// [`KeyError::File`] for anything else, and as [`MasterKey::from_bytes`].
    pub fn from_key_file(contents: &mut [u8], locking: Locking) -> Result<Self, KeyError> {
        let mut key = [0u8; 32];
        let fits = if contents.len() == 32 {
            key.copy_from_slice(contents);
            true
        } else {
            parse_hex(contents.trim_ascii_end(), &mut key)
        };
        let len = contents.len();
        wipe_bytes(contents);
        let made =
            if fits { Self::with_locking(&mut key, locking) } else { Err(KeyError::File { len }) };
        wipe_bytes(&mut key);
        made
    }
}

/// No key exists in a program that was built without the ciphers.
fn built() -> Result<(), KeyError> {
    if cfg!(feature = "ciphers") { Ok(()) } else { Err(KeyError::NotBuilt) }
}

fn parse_hex(digits: &[u8], key: &mut [u8; 32]) -> bool {
    let (pairs, rest) = digits.as_chunks::<2>();
    if pairs.len() != key.len() || !rest.is_empty() {
        return false;
    }
    let value = |digit: u8| char::from(digit).to_digit(16).and_then(|v| u8::try_from(v).ok());
    for (byte, [high, low]) in key.iter_mut().zip(pairs) {
        match (value(*high), value(*low)) {
            (Some(high), Some(low)) => *byte = high << 4 | low,
            _ => return false,
        }
    }
    true
}

fn zeros<const N: usize>(locking: Locking) -> Result<Secret<[u8; N]>, KeyError> {
    Secret::new(locking, [0; N])
        .map_err(|source| KeyError::System { what: "no locked memory for a key", source })
}

/// How much work Argon2id is (RFC 9106). More work for us is also more work for an attacker who
/// tries passphrases.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Hash)]
pub struct Argon2Params {
    /// Memory, in KiB: 8 for each lane to 1,048,576.
    pub memory_kib: u32,
    /// Passes over the memory: 1 to 64.
    pub passes: u32,
    /// Lanes: 1 to 16.
    pub lanes: u32,
}

impl Default for Argon2Params {
    /// RFC 9106's second recommendation: 64 MiB, 3 passes, 4 lanes.
    fn default() -> Self {
        Self { memory_kib: 64 << 10, passes: 3, lanes: 4 }
    }
}

impl Argon2Params {
    fn check(self) -> Result<(), KeyError> {
        let Self { memory_kib, passes, lanes } = self;
        let bad = |reason: String| KeyError::Argon2 { memory_kib, passes, lanes, reason };
        if !(1..=ARGON2_LANES_MAX).contains(&lanes) {
            return Err(bad(format!("1 to {ARGON2_LANES_MAX} lanes are allowed")));
        }
        let least = ARGON2_MEMORY_KIB_MIN * lanes;
        if !(least..=ARGON2_MEMORY_KIB_MAX).contains(&memory_kib) {
            return Err(bad(format!("{least} to {ARGON2_MEMORY_KIB_MAX} KiB are allowed")));
        }
        if !(1..=ARGON2_PASSES_MAX).contains(&passes) {
            return Err(bad(format!("1 to {ARGON2_PASSES_MAX} passes are allowed")));
        }
        Ok(())
    }
}

/// What a passphrase is turned into a key with; stored in the header.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct Kdf {
    pub(crate) params: Argon2Params,
    pub(crate) salt: [u8; 32],
}

struct Passphrase {
    bytes: Secret<[u8; PASSPHRASE_MAX]>,
    len: usize,
    params: Argon2Params,
    known: Mutex<Vec<(Kdf, Secret<[u8; 32]>)>>,
}

enum Credential {
    Key(MasterKey),
    Passphrase(Box<Passphrase>),
}

/// One key or passphrase, and what was derived from it.
pub struct Keyring {
    credential: Credential,
    locking: Locking,
}

impl core::fmt::Debug for Keyring {
    fn fmt(&self, f: &mut core::fmt::Formatter<'_>) -> core::fmt::Result {
        f.write_str(match self.credential {
            Credential::Key(_) => "Keyring(key)",
            Credential::Passphrase(_) => "Keyring(passphrase)",
        })
    }
}

impl Keyring {
    /// A keyring of one key; its objects' keys must lie in locked memory.
    #[must_use]
    pub fn new(key: MasterKey) -> Self {
        Self { credential: Credential::Key(key), locking: Locking::Required }
    }

    /// A keyring of one passphrase, which is overwritten with zeros. `params` are for objects that
    /// it creates; objects that it opens say theirs. Argon2 runs at the first of them.
    ///
    /// # Errors
    /// [`KeyError::PassphraseLen`], [`KeyError::Argon2`] for parameters out of bounds,
    /// [`KeyError::System`] if no memory can be locked.
    pub fn from_passphrase(
        passphrase: &mut [u8],
        params: Argon2Params,
        locking: Locking,
    ) -> Result<Self, KeyError> {
        built().inspect_err(|_| wipe_bytes(passphrase))?;
        let len = passphrase.len();
        if len == 0 || len > PASSPHRASE_MAX {
            wipe_bytes(passphrase);
            return Err(KeyError::PassphraseLen { len, max: PASSPHRASE_MAX });
        }
        params.check()?;
        let mut bytes = zeros::<PASSPHRASE_MAX>(locking)?;
        bytes[..len].copy_from_slice(passphrase);
        wipe_bytes(passphrase);
        let passphrase = Passphrase { bytes, len, params, known: Mutex::default() };
        Ok(Self { credential: Credential::Passphrase(Box::new(passphrase)), locking })
    }

    /// Whether keys of objects must lie in locked memory: required unless this says otherwise.
    #[must_use]
    pub fn locking(mut self, locking: Locking) -> Self {
        self.locking = locking;
        self
    }

    pub(crate) fn wanted_locking(&self) -> Locking {
        self.locking
    }

    pub(crate) fn is_passphrase(&self) -> bool {
        matches!(self.credential, Credential::Passphrase(_))
    }

    /// What new objects are created with: `None` for a key.
    pub(crate) fn kdf_for_new(&self) -> Result<Option<Kdf>, KeyError> {
        let Credential::Passphrase(passphrase) = &self.credential else { return Ok(None) };
        let known = passphrase.known.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some((kdf, _)) = known.iter().find(|(kdf, _)| kdf.params == passphrase.params) {
            return Ok(Some(*kdf));
        }
        let mut salt = [0; 32];
        cenote_sys::process::fill_random(&mut salt)
            .map_err(|source| KeyError::System { what: "no random bytes for a salt", source })?;
        Ok(Some(Kdf { params: passphrase.params, salt }))
    }

    /// Calls `f` with the key, after Argon2 where that is needed and not yet known. Two threads
    /// that need the same new key wait for each other.
    pub(crate) fn with_key<R>(
        &self,
        kdf: Option<Kdf>,
        f: impl FnOnce(&[u8; 32]) -> R,
    ) -> Result<R, KeyError> {
        let result = match (&self.credential, kdf) {
            (Credential::Key(key), _) => f(&key.bytes),
            (Credential::Passphrase(passphrase), None) => {
                let Argon2Params { memory_kib, passes, lanes } = passphrase.params;
                let reason = "there is no salt".to_owned();
                return Err(KeyError::Argon2 { memory_kib, passes, lanes, reason });
            }
            (Credential::Passphrase(passphrase), Some(kdf)) => {
                let mut known = passphrase.known.lock().unwrap_or_else(PoisonError::into_inner);
                let at = match known.iter().position(|(k, _)| *k == kdf) {
                    Some(at) => at,
                    None => {
                        known.push((kdf, passphrase.derive(kdf)?));
                        known.len() - 1
                    }
                };
                f(&known[at].1)
            }
        };
        scrub_stack();
        Ok(result)
    }
}

impl Passphrase {
    fn derive(&self, kdf: Kdf) -> Result<Secret<[u8; 32]>, KeyError> {
        let mut key = zeros::<32>(if self.bytes.is_locked() {
            Locking::Required
        } else {
            Locking::IfPossible
        })?;
        kdf.params.check()?;
        let Argon2Params { memory_kib, passes, lanes } = kdf.params;
        let work = (memory_kib, passes, lanes);
        argon2id(&self.bytes[..self.len], &kdf.salt, work, &mut key)
            .map_err(|reason| KeyError::Argon2 { memory_kib, passes, lanes, reason })?;
        Ok(key)
    }
}

#[cfg(all(test, feature = "ciphers"))]
mod tests {
    use super::*;
    use crate::crypto::testing::{hex, sha256_hex};
    use argon2::{Algorithm, Argon2, Version};

    const CHEAP: Argon2Params = Argon2Params { memory_kib: 64, passes: 1, lanes: 1 };

    #[test]
    fn key_files_hold_bytes_or_digits_and_nothing_else() {
        let bytes: Vec<u8> = (0..32).collect();
        let digits: String = bytes.iter().map(|b| format!("{b:02X}")).collect();
        for contents in
            [bytes.clone(), digits.clone().into_bytes(), format!("{digits}\n").into_bytes()]
        {
            let mut given = contents.clone();
            let key = MasterKey::from_key_file(&mut given, Locking::Required).unwrap();
            assert_eq!(key.bytes[..], bytes[..]);
            assert!(given.iter().all(|&b| b == 0), "the key was left in the caller's buffer");
        }
        for len in [0, 31, 33, 63, 65] {
            let mut given = vec![b'a'; len];
            let error = MasterKey::from_key_file(&mut given, Locking::Required).unwrap_err();
            assert!(matches!(error, KeyError::File { len: l } if l == len), "{error}");
        }
        assert!(matches!(
            MasterKey::from_key_file(&mut [b'g'; 64], Locking::Required),
            Err(KeyError::File { .. })
        ));
        assert!(matches!(MasterKey::from_bytes(&mut [9; 32]), Err(KeyError::Weak)));
    }

    #[test]
    fn taking_a_key_over_empties_the_callers_bytes() {
        let mut bytes: [u8; 32] = core::array::from_fn(|i| i as u8);
        let key = MasterKey::from_bytes(&mut bytes).unwrap();
        assert_eq!(bytes, [0; 32]);
        assert_eq!(key.bytes[31], 31);
        let mut text = *b"correct horse";
        let ring = Keyring::from_passphrase(&mut text, CHEAP, Locking::Required).unwrap();
        assert_eq!(text, [0; 13]);
        assert_eq!(
            format!("{ring:?} {key:?}"),
            "Keyring(passphrase) MasterKey { bytes: Secret(locked) }"
        );
    }

    /// RFC 9106, 5.3, through the crate that we rely on: with the secret and the data that we do
    /// not use.
    #[test]
    fn argon2id_is_the_rfcs() {
        let params = argon2::ParamsBuilder::new()
            .m_cost(32)
            .t_cost(3)
            .p_cost(4)
            .data(argon2::AssociatedData::new(&[4; 12]).unwrap())
            .build()
            .unwrap();
        let mut out = [0; 32];
        Argon2::new_with_secret(&[3; 8], Algorithm::Argon2id, Version::V0x13, params)
            .unwrap()
            .hash_password_into(&[1; 32], &[2; 16], &mut out)
            .unwrap();
        assert_eq!(
            out.to_vec(),
            hex("0d640df58d78766c08c037a34a8b53c9d01ef0452d75b65eb52520e96b01e659")
        );
    }

    /// FIPS 180-4's examples, through the crate that we rely on.
    #[test]
    fn sha256_is_fips_180s() {
        assert_eq!(
            sha256_hex(b"abc"),
            "ba7816bf8f01cfea414140de5dae2223b00361a396177a9cb410ff61f20015ad"
        );
        assert_eq!(
            sha256_hex(b""),
            "e3b0c44298fc1c149afbf4c8996fb92427ae41e4649b934ca495991b7852b855"
        );
        assert_eq!(
            sha256_hex(b"abcdbcdecdefdefgefghfghighijhijkijkljklmklmnlmnomnopnopq"),
            "248d6a61d20638b8e5c026930c3e6039a33ce45964ff2167f6ecedd419db06c1"
        );
    }

    #[test]
    fn a_passphrase_is_derived_once_for_each_salt() {
        let ring =
            Keyring::from_passphrase(&mut b"pass".to_vec(), CHEAP, Locking::Required).unwrap();
        let first = ring.kdf_for_new().unwrap().unwrap();
        let key = ring.with_key(Some(first), |k| *k).unwrap();
        assert_eq!(ring.kdf_for_new().unwrap(), Some(first), "new objects are under what is known");
        assert_eq!(ring.with_key(Some(first), |k| *k).unwrap(), key);
        let other = Kdf { salt: [1; 32], ..first };
        assert_ne!(ring.with_key(Some(other), |k| *k).unwrap(), key);
        let Credential::Passphrase(p) = &ring.credential else { panic!() };
        assert_eq!(p.known.lock().unwrap().len(), 2);
        let wrong =
            Keyring::from_passphrase(&mut b"Pass".to_vec(), CHEAP, Locking::Required).unwrap();
        assert_ne!(wrong.with_key(Some(first), |k| *k).unwrap(), key);
    }

    #[test]
    fn passphrases_and_parameters_out_of_bounds_are_refused() {
        for len in [0, PASSPHRASE_MAX + 1] {
            let error = Keyring::from_passphrase(&mut vec![b'x'; len], CHEAP, Locking::Required)
                .unwrap_err();
            assert!(matches!(error, KeyError::PassphraseLen { .. }), "{error}");
        }
        for params in [
            Argon2Params { memory_kib: 7, ..CHEAP },
            Argon2Params { memory_kib: u32::MAX, ..CHEAP },
            Argon2Params { passes: 0, ..CHEAP },
            Argon2Params { passes: 65, ..CHEAP },
            Argon2Params { lanes: 0, ..CHEAP },
            Argon2Params { lanes: u32::MAX, ..CHEAP },
        ] {
            let error = Keyring::from_passphrase(&mut b"x".to_vec(), params, Locking::Required)
                .unwrap_err();
            assert!(matches!(error, KeyError::Argon2 { .. }), "{error}");
        }
    }
}
