//! [`String`], a growable text: a [`Vec`] of bytes that are UTF-8.
//!
//! Its bytes have a type of their own, which only this file can name. So the header of a string is
//! never the header of a `Vec<u8>`, also if a block is reused while a program still has a stale
//! handle. Otherwise safe code could write bytes into a text that are no UTF-8.

use crate::shared::build;
use crate::vec::Vec;
use cenote::persist::{LayoutBuilder, NoneForm, Persist, TypeId};
use cenote::{Error, Ptr, Reader, Result, Tx};

/// One byte of a text.
#[derive(Clone, Copy)]
#[repr(transparent)]
pub(crate) struct Utf8(u8);

// SAFETY: a byte; the name belongs to this crate, see `shared`.
unsafe impl Persist for Utf8 {
    const TYPE_ID: TypeId = TypeId::of_name("cenote/Utf8");

    fn type_name() -> std::string::String {
        "cenote/Utf8".into()
    }

    fn describe(layout: &mut LayoutBuilder) {
        layout.field::<u8>("0", 0);
    }
}

/// A growable text; see [`std::string::String`] for what the methods mean and the [crate] for
/// handles. For short keys of maps there is [`InlineStr`](crate::InlineStr).
#[derive(Clone, Copy, PartialEq, Eq)]
#[repr(transparent)]
pub struct String {
    bytes: Vec<Utf8>,
}

// SAFETY: transparent over one handle, described where it is; the name belongs to this crate, see
// `shared`.
unsafe impl Persist for String {
    const TYPE_ID: TypeId = TypeId::of_name("cenote/String");
    const NONE: NoneForm = NoneForm::Zero;

    fn type_name() -> std::string::String {
        "cenote/String".into()
    }

    fn describe(layout: &mut LayoutBuilder) {
        layout.field::<Vec<Utf8>>("bytes", core::mem::offset_of!(Self, bytes));
    }
}

fn bytes_of(text: &str) -> &[Utf8] {
    // SAFETY: `Utf8` is transparent over `u8`, and these are bytes of a text.
    unsafe { core::slice::from_raw_parts(text.as_ptr().cast(), text.len()) }
}

impl String {
    /// An empty text in the transaction's first pool.
    ///
    /// # Errors
    /// As [`Tx::alloc`].
    pub fn new(tx: &mut Tx<'_>) -> Result<Self> {
        Ok(Self { bytes: Vec::new(tx)? })
    }

    /// An empty text in the pool that `neighbour` lies in.
    ///
    /// # Errors
    /// As [`Tx::alloc_beside`].
    pub fn new_beside<N: Persist>(tx: &mut Tx<'_>, neighbour: Ptr<N>) -> Result<Self> {
        Ok(Self { bytes: Vec::new_beside(tx, neighbour)? })
    }

    /// A copy of `text` in the transaction's first pool.
    ///
    /// # Errors
    /// As [`Tx::alloc`]; then there is no text.
    #[allow(clippy::should_implement_trait, reason = "it takes the transaction")]
    pub fn from_str(tx: &mut Tx<'_>, text: &str) -> Result<Self> {
        let this = Self::new(tx)?;
        build(tx, |tx| this.push_str(tx, text), |tx| this.destroy(tx))?;
        Ok(this)
    }

    /// The text.
    ///
    /// # Errors
    /// [`Error::Dangling`] if the handle is stale; so it is with every method.
    pub fn as_str(self, reader: &impl Reader) -> Result<&str> {
        let bytes = self.bytes.as_slice(reader)?;
        // SAFETY: only this file writes vectors of `Utf8`, and every operation leaves a text.
        Ok(unsafe {
            core::str::from_utf8_unchecked(core::slice::from_raw_parts(
                bytes.as_ptr().cast(),
                bytes.len(),
            ))
        })
    }

    /// Bytes of the text.
    ///
    /// # Errors
    /// As [`String::as_str`].
    pub fn len(self, reader: &impl Reader) -> Result<usize> {
        self.bytes.len(reader)
    }

    /// Whether the text is empty.
    ///
    /// # Errors
    /// As [`String::as_str`].
    pub fn is_empty(self, reader: &impl Reader) -> Result<bool> {
        self.bytes.is_empty(reader)
    }

    /// Bytes that fit without a new array.
    ///
    /// # Errors
    /// As [`String::as_str`].
    pub fn capacity(self, reader: &impl Reader) -> Result<usize> {
        self.bytes.capacity(reader)
    }

    /// Makes room for `additional` more bytes, at least.
    ///
    /// # Errors
    /// As [`String::push_str`].
    pub fn reserve(self, tx: &mut Tx<'_>, additional: usize) -> Result<()> {
        self.bytes.reserve(tx, additional)
    }

    /// Adds a text at the end. 2 entries.
    ///
    /// # Errors
    /// As [`String::as_str`], and [`Error::Tx`] if the pool or the log is full.
    pub fn push_str(self, tx: &mut Tx<'_>, text: &str) -> Result<()> {
        self.bytes.extend_from_slice(tx, bytes_of(text))
    }

    /// Adds a character at the end. 2 entries.
    ///
    /// # Errors
    /// As [`String::push_str`].
    pub fn push(self, tx: &mut Tx<'_>, character: char) -> Result<()> {
        self.push_str(tx, character.encode_utf8(&mut [0; 4]))
    }

    /// Removes the last character. 2 entries.
    ///
    /// # Errors
    /// As [`String::push_str`].
    pub fn pop(self, tx: &mut Tx<'_>) -> Result<Option<char>> {
        let text = self.as_str(tx)?;
        let Some(last) = text.chars().next_back() else { return Ok(None) };
        let len = text.len() - last.len_utf8();
        self.bytes.truncate(tx, len)?;
        Ok(Some(last))
    }

    /// Removes all but the first `len_bytes` bytes; nothing if there are not more. 2 entries.
    ///
    /// # Errors
    /// As [`String::push_str`]; [`Error::CharBoundary`] if that is in the middle of a character.
    pub fn truncate(self, tx: &mut Tx<'_>, len_bytes: usize) -> Result<()> {
        let text = self.as_str(tx)?;
        if len_bytes < text.len() && !text.is_char_boundary(len_bytes) {
            return Err(Error::CharBoundary { index: len_bytes as u64 });
        }
        self.bytes.truncate(tx, len_bytes)
    }

    /// Removes the text and gives its array back. 1 entry, 1 free.
    ///
    /// # Errors
    /// As [`String::push_str`].
    pub fn clear(self, tx: &mut Tx<'_>) -> Result<()> {
        self.bytes.clear(tx)
    }

    /// Frees the text. Every handle to it is stale from now on.
    ///
    /// # Errors
    /// As [`String::push_str`].
    pub fn destroy(self, tx: &mut Tx<'_>) -> Result<()> {
        self.bytes.destroy(tx)
    }
}

impl core::fmt::Debug for String {
    fn fmt(&self, f: &mut core::fmt::Formatter<'_>) -> core::fmt::Result {
        write!(f, "String({:?})", self.bytes)
    }
}
