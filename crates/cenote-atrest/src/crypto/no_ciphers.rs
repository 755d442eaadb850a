//! Takes the place of the data key in programs that are built without the feature `ciphers`.
//!
//! Such a program can make no key ([`crate::KeyError::NotBuilt`]). So no [`Keys`] exist, and no
//! code here ever runs: the compiler sees that.

use crate::crypto::error::UnwrapError;
use cenote_layout::at_rest::{AtRestHeader, Mode};
use cenote_layout::id::Uuid;
use cenote_sys::secret::{Locking, Secret};
use core::convert::Infallible;
use std::io;

/// The ciphers of a program that has none cannot fail.
#[derive(Debug)]
pub(crate) enum CipherFailed {}

/// Keys of an object: there are none.
pub(crate) struct Keys(Infallible);

impl Keys {
    pub(crate) fn generate(_: Uuid, _: Mode, _: Locking) -> io::Result<Secret<Self>> {
        Err(io::ErrorKind::Unsupported.into())
    }

    pub(crate) fn unwrap(
        _: &[u8; 32],
        _: &AtRestHeader,
        _: Mode,
        _: Locking,
    ) -> Result<Secret<Self>, UnwrapError> {
        Err(UnwrapError::System(io::ErrorKind::Unsupported.into()))
    }

    pub(crate) fn encrypt(
        &self,
        _: &[u8; 16],
        _: Option<&[u8]>,
        _: &mut [u8],
    ) -> Result<(), CipherFailed> {
        match self.0 {}
    }

    pub(crate) fn decrypt(
        &self,
        _: &[u8; 16],
        _: Option<&[u8]>,
        _: &mut [u8],
    ) -> Result<(), CipherFailed> {
        match self.0 {}
    }

    pub(crate) fn seal(&self, _: &[u8; 32], _: &[u8], _: Option<&[u8]>, _: &mut [u8]) -> [u8; 32] {
        match self.0 {}
    }

    pub(crate) fn open(
        &self,
        _: &[u8; 32],
        _: &[u8],
        _: &[u8; 32],
        _: Option<&[u8]>,
        _: &mut [u8],
    ) -> bool {
        match self.0 {}
    }

    pub(crate) fn subordinate(&self, _: Uuid, _: &mut [u8; 32]) {
        match self.0 {}
    }

    pub(crate) fn wrap_inherited(&self, _: &[u8; 32], _: &mut AtRestHeader) -> io::Result<()> {
        match self.0 {}
    }

    pub(crate) fn unwrap_inherited(&self, _: &AtRestHeader, _: &mut [u8; 32]) -> bool {
        match self.0 {}
    }

    pub(crate) fn wrap(&self, _: &[u8; 32], _: &mut AtRestHeader) -> io::Result<()> {
        match self.0 {}
    }

    pub(crate) fn header_mac(&self, _: &AtRestHeader) -> [u8; 32] {
        match self.0 {}
    }
}

pub(crate) fn argon2id(
    _: &[u8],
    _: &[u8; 32],
    _: (u32, u32, u32),
    _: &mut [u8; 32],
) -> Result<(), String> {
    Err(crate::KeyError::NotBuilt.to_string())
}
