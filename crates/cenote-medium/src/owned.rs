//! A medium whose files the caller may change.
//!
//! A store maps files and hands out references into them, so a changed file is changed memory. The
//! methods of [`Medium`] that change files are therefore unsafe. A layer that owns the files of a
//! directory says so once, with [`OwnedMedium::new`]; what it does with them from then on is its
//! own argument, made where it is done.

use crate::{Medium, MediumError};
use core::fmt;
use core::ops::Deref;
use std::fs::File;
use std::sync::Arc;

type Result<T> = core::result::Result<T, MediumError>;

/// A medium together with the promise that its holder owns the files. It is to be kept inside the
/// layer: a public function that gives it away lets any program change what is mapped.
#[derive(Clone)]
pub struct OwnedMedium<M = Arc<dyn Medium>>(M);

impl<M: Deref<Target = dyn Medium>> OwnedMedium<M> {
    /// The medium, of which the caller owns the files.
    ///
    /// # Safety
    /// The caller and all that it gives the value to change a file only as [`Medium`] asks: no byte
    /// that is mapped and that a reference leads to, and none that another part of this process
    /// takes for unchanged.
    #[must_use]
    pub unsafe fn new(medium: M) -> Self {
        Self(medium)
    }

    /// The medium without the promise.
    #[must_use]
    pub fn medium(&self) -> &M {
        &self.0
    }

    /// As [`Medium::write_at`].
    ///
    /// # Errors
    /// As there.
    pub fn write_at(&self, name: &str, offset: u64, data: &[u8]) -> Result<()> {
        // SAFETY: the holder owns the file, by the contract of `new`.
        unsafe { self.0.write_at(name, offset, data) }
    }

    /// As [`Medium::truncate`].
    ///
    /// # Errors
    /// As there.
    pub fn truncate(&self, name: &str, len_bytes: u64) -> Result<()> {
        // SAFETY: the holder owns the file, by the contract of `new`.
        unsafe { self.0.truncate(name, len_bytes) }
    }

    /// As [`Medium::clear`].
    ///
    /// # Errors
    /// As there.
    pub fn clear(&self, name: &str) -> Result<()> {
        // SAFETY: the holder owns the file, by the contract of `new`.
        unsafe { self.0.clear(name) }
    }

    /// As [`Medium::rename`].
    ///
    /// # Errors
    /// As there.
    pub fn rename(&self, from: &str, to: &str) -> Result<()> {
        // SAFETY: the holder owns both names, by the contract of `new`.
        unsafe { self.0.rename(from, to) }
    }

    /// As [`Medium::remove`].
    ///
    /// # Errors
    /// As there.
    pub fn remove(&self, name: &str) -> Result<()> {
        // SAFETY: the holder owns the file, by the contract of `new`.
        unsafe { self.0.remove(name) }
    }

    /// As [`Medium::descriptor`].
    ///
    /// # Errors
    /// As there.
    pub fn descriptor(&self, name: &str) -> Result<Option<File>> {
        // SAFETY: the holder owns the file, and writes through the descriptor as it would by name,
        // by the contract of `new`.
        unsafe { self.0.descriptor(name) }
    }

    /// As [`Medium::grant`].
    ///
    /// # Errors
    /// As there.
    pub fn grant(&self, name: &str, writable: bool) -> Result<Option<File>> {
        // SAFETY: the holder owns the file, and answers for what a receiver does with the
        // descriptor, by the contract of `new`.
        unsafe { self.0.grant(name, writable) }
    }
}

impl<M: Deref<Target = dyn Medium>> Deref for OwnedMedium<M> {
    type Target = dyn Medium;

    fn deref(&self) -> &(dyn Medium + 'static) {
        &*self.0
    }
}

impl<M: fmt::Debug> fmt::Debug for OwnedMedium<M> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.fmt(f)
    }
}
