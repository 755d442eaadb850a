//! [`OwnedStr`] and [`OwnedBytes`]: texts and bytes of any length that the value around them owns.
//!
//! ```text
//! block:  length in bytes (8) | bytes | zeros
//! ```
//!
//! A block is filled once, before its edge leads to it, and never changed: another text is another
//! block. While a block waits to be freed, an edge of it may lead to another block of texts or
//! bytes. Each says its own length; that it is a text is checked when it is read.

use crate::error::{Error, Result};
use crate::owned::Owned;
use crate::owning_field::{OwningEdge, OwningField, sealed};
use crate::persist::{ArrayOf, LayoutBuilder, Persist, TypeId, owned_type_id};
use crate::ptr::Ptr;
use crate::reader::Reader;
use crate::tx::Tx;
use core::fmt;
use core::mem::offset_of;
use core::ptr::copy_nonoverlapping;

/// Bytes of the length, before the others.
const LEN_BYTES: usize = 8;

/// One byte of a block.
#[derive(Debug)]
#[repr(transparent)]
struct OwnedByte(u8);

// SAFETY: a byte. No declared name has a `/`.
unsafe impl Persist for OwnedByte {
    const TYPE_ID: TypeId = owned_type_id(TypeId::of_name("cenote/OwnedByte"));
    const IS_OWNED: bool = true;

    fn type_name() -> String {
        "cenote/OwnedByte".to_string()
    }

    fn describe(layout: &mut LayoutBuilder) {
        layout.field::<u8>("0", offset_of!(Self, 0));
    }
}

/// Bytes of any length that the value around them owns: 8 bytes, and a block unless there are none.
/// In a program's memory it is empty. [`Tx::put_owned`] puts others in its place.
/// [`Tx::free_owned`] frees them, and so does an operation that frees the value.
///
/// ```
/// use cenote::{OwnedBytes, Persist, Reader, Store, field};
///
/// #[derive(Persist)]
/// struct Picture { pixels: OwnedBytes }
///
/// # fn main() -> cenote::Result<()> {
/// # let directory = tempfile::tempdir().unwrap();
/// let pool = Store::open(directory.path())?.pool("pictures")?;
/// pool.write(|tx| -> cenote::Result<()> {
///     let picture = tx.alloc(Picture { pixels: OwnedBytes::EMPTY })?;
///     tx.put_owned(picture, field!(Picture, pixels), &[1, 2, 3])?;
///     assert_eq!(tx.get(picture)?.pixels.as_slice(tx)?, [1, 2, 3]);
///     tx.free(picture) // With its pixels.
/// })
/// # }
/// ```
#[derive(Default)]
#[repr(transparent)]
pub struct OwnedBytes {
    block: Owned<ArrayOf<OwnedByte>>,
}

/// A text of any length that the value around it owns: as [`OwnedBytes`].
///
/// ```
/// use cenote::{OwnedStr, Persist, Reader, Store, field};
///
/// #[derive(Persist)]
/// struct Contact { name: OwnedStr, url: OwnedStr }
///
/// # fn main() -> cenote::Result<()> {
/// # let directory = tempfile::tempdir().unwrap();
/// let pool = Store::open(directory.path())?.pool("contacts")?;
/// pool.write(|tx| -> cenote::Result<()> {
///     let ada = tx.alloc(Contact { name: OwnedStr::EMPTY, url: OwnedStr::EMPTY })?;
///     tx.put_owned(ada, field!(Contact, name), "Ada Lovelace")?;
///     assert_eq!(tx.get(ada)?.name.as_str(tx)?, "Ada Lovelace");
///     assert_eq!(tx.get(ada)?.url.as_str(tx)?, "");
///     tx.free(ada) // With her name.
/// })
/// # }
/// ```
#[derive(Default)]
#[repr(transparent)]
pub struct OwnedStr {
    bytes: OwnedBytes,
}

const _: () = assert!(size_of::<OwnedStr>() == 8);

macro_rules! owned_words {
    ($($name:literal, $type:ident { $field:ident: $inner:ty };)*) => {$(
        // SAFETY: transparent over an owner, described where it is. No declared name has a `/`.
        unsafe impl Persist for $type {
            const TYPE_ID: TypeId = TypeId::of_name($name);
            const OWNS: bool = true;

            fn type_name() -> String {
                $name.to_string()
            }

            fn describe(layout: &mut LayoutBuilder) {
                layout.field::<$inner>(stringify!($field), offset_of!(Self, $field));
            }
        }
    )*};
}

owned_words! {
    "cenote/OwnedBytes", OwnedBytes { block: Owned<ArrayOf<OwnedByte>> };
    "cenote/OwnedStr", OwnedStr { bytes: OwnedBytes };
}

impl OwnedBytes {
    /// No bytes: the only ones that a value can be made with.
    pub const EMPTY: Self = Self { block: Owned::EMPTY };

    /// The bytes.
    ///
    /// # Errors
    /// [`Error::Dangling`] if their block is gone, and [`Error::OutOfBounds`] if it is shorter than
    /// it says: both after damage alone; [`Error::Store`] if a page of them cannot be read.
    pub fn as_slice<'r>(&'r self, reader: &'r impl Reader) -> Result<&'r [u8]> {
        let Some(block) = self.block.get() else { return Ok(&[]) };
        // SAFETY: the whole block was written when it was made, and any bytes are bytes.
        let len = unsafe { reader.get_array(block, LEN_BYTES)? };
        let len = len.iter().rev().fold(0_u64, |len, byte| len << 8 | u64::from(byte.0));
        let whole = usize::try_from(len).ok().and_then(|len| len.checked_add(LEN_BYTES));
        let whole = whole.ok_or(Error::OutOfBounds { index: len, len: 0 })?;
        // SAFETY: as above.
        let whole = unsafe { reader.get_array(block, whole)? };
        let bytes = &whole[LEN_BYTES..];
        // SAFETY: `OwnedByte` is transparent over `u8`.
        Ok(unsafe { core::slice::from_raw_parts(bytes.as_ptr().cast(), bytes.len()) })
    }

    /// Whether there are none.
    #[must_use]
    pub const fn is_empty(&self) -> bool {
        self.block.is_empty()
    }
}

impl OwnedStr {
    /// No text: the only one that a value can be made with.
    pub const EMPTY: Self = Self { bytes: OwnedBytes::EMPTY };

    /// The text. That it is one is checked each time.
    ///
    /// # Errors
    /// As [`OwnedBytes::as_slice`]; [`Error::CharBoundary`] if it is no UTF-8, after damage.
    pub fn as_str<'r>(&'r self, reader: &'r impl Reader) -> Result<&'r str> {
        let bytes = self.bytes.as_slice(reader)?;
        core::str::from_utf8(bytes)
            .map_err(|error| Error::CharBoundary { index: error.valid_up_to() as u64 })
    }

    /// Whether it has no characters.
    #[must_use]
    pub const fn is_empty(&self) -> bool {
        self.bytes.is_empty()
    }
}

impl fmt::Debug for OwnedBytes {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("OwnedBytes").field(&self.block).finish()
    }
}

impl fmt::Debug for OwnedStr {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("OwnedStr").field(&self.bytes.block).finish()
    }
}

impl sealed::Sealed for OwnedBytes {}
impl sealed::Sealed for OwnedStr {}

impl OwningField for OwnedBytes {
    type Value<'v> = &'v [u8];
    type Put = ();

    fn put_into<'p>(tx: &mut Tx<'p>, edge: &OwningEdge<'p>, bytes: &[u8]) -> Result<()> {
        if bytes.is_empty() {
            return tx.empty(edge).map(drop);
        }
        tx.put_into(edge, |tx| tx.alloc_bytes(edge, bytes)).map(drop)
    }
}

impl OwningField for OwnedStr {
    type Value<'v> = &'v str;
    type Put = ();

    fn put_into<'p>(tx: &mut Tx<'p>, edge: &OwningEdge<'p>, text: &str) -> Result<()> {
        OwnedBytes::put_into(tx, edge, text.as_bytes())
    }
}

impl<'p> Tx<'p> {
    /// A block with bytes, in the pool of an edge.
    fn alloc_bytes(
        &mut self,
        edge: &OwningEdge<'p>,
        bytes: &[u8],
    ) -> Result<Ptr<ArrayOf<OwnedByte>>> {
        let pool = edge.pool;
        pool.know::<ArrayOf<OwnedByte>>()?;
        let len = bytes.len().saturating_add(LEN_BYTES);
        let id = ArrayOf::<OwnedByte>::TYPE_ID;
        let (place, _) = self.alloc_zeroed(pool, (1, LEN_BYTES as u64), len, id)?;
        // SAFETY: a fresh block of so many bytes, of this transaction alone, zero behind them. The
        // bytes are not borrowed from the transaction.
        unsafe {
            place.cast::<[u8; LEN_BYTES]>().write((bytes.len() as u64).to_le_bytes());
            copy_nonoverlapping(bytes.as_ptr(), place.as_ptr().add(LEN_BYTES), bytes.len());
            Ok(Ptr::from_non_null(place.cast()))
        }
    }
}
