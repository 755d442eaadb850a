//! Keys of a protected object: wrapped under the caller's, changed, and handed down to others.
//!
//! Invariant: another key wraps the same data key anew, so no page is sealed again.

use super::{HEADER_LEN, Protection, seal_header, to_bytes};
use crate::crypto::data_key::Keys;
use crate::crypto::error::{AtRestError, UnwrapError};
use crate::crypto::key::{Argon2Params, Kdf, Keyring, MasterKey};
use cenote_layout::at_rest::{
    AtRestHeader, INCOMPAT_INHERITED, KDF_ARGON2ID, KDF_KEY, KDF_NONE, Mode,
};
use cenote_layout::header;
use cenote_sys::secret::{Secret, wipe_bytes};
use subtle::ConstantTimeEq;

impl Protection {
    /// The key of the subordinates of what this is a copy of, if it was made to keep it: of those
    /// that are not sealed anew yet.
    ///
    /// # Errors
    /// [`AtRestError::Forged`]; no memory that can be locked.
    pub fn inherited(&self, opened_by: Option<&Keyring>) -> Result<Option<Keyring>, AtRestError> {
        let (Some(keys), Some(opened_by)) = (self.sealer.keys(), opened_by) else {
            return Ok(None);
        };
        let header = *self.locked();
        if header.prefix.incompat & INCOMPAT_INHERITED == 0 {
            return Ok(None);
        }
        let mut bytes = [0; 32];
        if !keys.unwrap_inherited(&header, &mut bytes) {
            wipe_bytes(&mut bytes);
            return Err(AtRestError::Forged { object: self.object });
        }
        keyring_of(bytes, opened_by).map(Some)
    }

    /// Nothing is sealed under the inherited key any more: the next header that is written is
    /// without it. With it, a holder of this object's key could open the object that it was copied
    /// from.
    pub fn disinherit(&self) {
        let mut header = self.locked();
        header.prefix.incompat &= !INCOMPAT_INHERITED;
        (header.inherited_key, header.inherited_tag) = ([0; 32], [0; 16]);
    }

    /// A key for others that belong to this one, derived from its data key: a key that opens this
    /// opens them, and what [`Protection::rekey`] does to this it does to all. `None` in modes
    /// without a key.
    ///
    /// # Errors
    /// No memory that can be locked.
    pub fn subordinate(&self, opened_by: Option<&Keyring>) -> Result<Option<Keyring>, AtRestError> {
        let (Some(keys), Some(opened_by)) = (self.sealer.keys(), opened_by) else {
            return Ok(None);
        };
        let mut bytes = [0; 32];
        keys.subordinate(self.object, &mut bytes);
        keyring_of(bytes, opened_by).map(Some)
    }

    /// Puts the object under another key: the same data key, wrapped anew. Returns the header to
    /// write; in one sector, so the write is the commit. Changes nothing here: open the object
    /// again, or call [`Protection::rekeyed`] when the header is durable. Constant time. Under
    /// the same lock as changes of pages.
    ///
    /// # Errors
    /// [`AtRestError::NothingToRekey`] in modes without a key; the key's and the system's errors.
    pub fn rekey(&self, keyring: &Keyring) -> Result<[u8; HEADER_LEN], AtRestError> {
        let (object, mode) = (self.object, self.mode);
        let keys = self.sealer.keys().ok_or(AtRestError::NothingToRekey { object, mode })?;
        let mut header = *self.locked();
        header.key_epoch += 1;
        wrap(keys, keyring, &mut header)?;
        seal_header(&mut header, Some(keys));
        Ok(to_bytes(&header))
    }

    /// Takes over the header that [`Protection::rekey`] returned, after it was made durable.
    ///
    /// # Errors
    /// [`AtRestError::Stale`] if anything was committed in between, [`AtRestError::Forged`] if it
    /// is no header of this object's keys; nothing has happened then.
    pub fn rekeyed(&self, bytes: &[u8; HEADER_LEN]) -> Result<(), AtRestError> {
        let object = self.object;
        let new: AtRestHeader =
            header::read(bytes, true).map_err(|source| AtRestError::Header { object, source })?;
        let fits =
            self.sealer.keys().is_some_and(|keys| keys.header_mac(&new).ct_eq(&new.mac).into());
        if !fits || new.object != object {
            return Err(AtRestError::Forged { object });
        }
        let mut header = self.locked();
        if new.generation != header.generation
            || new.root != header.root
            || new.key_epoch != header.key_epoch + 1
        {
            return Err(AtRestError::Stale {
                object,
                prepared: new.generation,
                current: header.generation,
            });
        }
        *header = new;
        Ok(())
    }
}

/// A key that was derived, kept as the one that it was derived by.
fn keyring_of(mut bytes: [u8; 32], by: &Keyring) -> Result<Keyring, AtRestError> {
    let locking = by.wanted_locking();
    let key = MasterKey::with_locking(&mut bytes, locking)?;
    Ok(Keyring::new(key).locking(locking))
}

/// Writes the key's fields of a header: all but the HMAC.
pub(super) fn wrap(
    keys: &Keys,
    keyring: &Keyring,
    header: &mut AtRestHeader,
) -> Result<(), AtRestError> {
    let object = header.object;
    let kdf = keyring.kdf_for_new()?;
    match kdf {
        None => {
            header.kdf = KDF_KEY;
            (header.argon2_memory_kib, header.argon2_passes, header.argon2_lanes) = (0, 0, 0);
            header.kdf_salt = [0; 32];
        }
        Some(Kdf { params, salt }) => {
            header.kdf = KDF_ARGON2ID;
            header.argon2_memory_kib = params.memory_kib;
            header.argon2_passes = params.passes;
            header.argon2_lanes = params.lanes;
            header.kdf_salt = salt;
        }
    }
    keyring.with_key(kdf, |master| keys.wrap(master, header))?.map_err(|source| {
        AtRestError::System { object, what: "the data key cannot be wrapped", source }
    })
}

/// The keys of an object, by the caller's.
pub(super) fn unwrap(
    header: &AtRestHeader,
    mode: Mode,
    keyring: &Keyring,
) -> Result<Secret<Keys>, AtRestError> {
    let object = header.object;
    let kdf = (header.kdf == KDF_ARGON2ID).then_some(Kdf {
        params: Argon2Params {
            memory_kib: header.argon2_memory_kib,
            passes: header.argon2_passes,
            lanes: header.argon2_lanes,
        },
        salt: header.kdf_salt,
    });
    if header.kdf == KDF_NONE || kdf.is_some() != keyring.is_passphrase() {
        return Err(AtRestError::WrongKeyKind { object, passphrase: kdf.is_some() });
    }
    let locking = keyring.wanted_locking();
    keyring.with_key(kdf, |master| Keys::unwrap(master, header, mode, locking))?.map_err(|error| {
        match error {
            UnwrapError::WrongKey => AtRestError::WrongKey { object },
            UnwrapError::Tampered => AtRestError::WrappedKey { object },
            UnwrapError::System(source) => {
                AtRestError::System { object, what: "no memory for the object's keys", source }
            }
        }
    })
}
