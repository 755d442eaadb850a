//! [`InlineStr`]: a short text by value, for keys.
//!
//! Invariant: the first `len` bytes are UTF-8, the others zero.

use cenote::persist::{LayoutBuilder, Persist, TypeId};
use core::borrow::Borrow;
use core::cmp::Ordering;
use core::fmt;
use core::hash::{Hash, Hasher};
use core::mem::offset_of;
use core::ops::Deref;

/// A text of at most `N` bytes (`N` at most 255) that lies where the value lies: `N + 1` bytes, no
/// pointer. It compares and hashes as the `str` that it is, so a map with such keys is asked with a
/// `&str`. `InlineStr<23>` takes 24 bytes, `InlineStr<55>` 56.
#[derive(Clone, Copy)]
#[repr(C)]
pub struct InlineStr<const N: usize> {
    len: u8,
    bytes: [u8; N],
}

/// A text does not fit an [`InlineStr`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct TooLong {
    /// Bytes of the text.
    pub len_bytes: usize,
    /// Bytes that fit.
    pub capacity_bytes: usize,
}

impl fmt::Display for TooLong {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { len_bytes, capacity_bytes } = self;
        write!(
            f,
            "a text of {len_bytes} bytes does not fit an InlineStr of {capacity_bytes}: cut it, \
             or use a longer one"
        )
    }
}

impl core::error::Error for TooLong {}

// SAFETY: plain bytes, described where they are; the name cannot be given to another type, see
// `shared`. The rule "UTF-8" is kept by all constructors.
unsafe impl<const N: usize> Persist for InlineStr<N> {
    const TYPE_ID: TypeId = TypeId::of_name("cenote/InlineStr").apply(N as u64);

    fn type_name() -> String {
        format!("cenote/InlineStr<{N}>")
    }

    fn describe(layout: &mut LayoutBuilder) {
        layout.field::<u8>("len", offset_of!(Self, len));
        layout.field::<[u8; N]>("bytes", offset_of!(Self, bytes));
    }
}

impl<const N: usize> InlineStr<N> {
    /// The empty text.
    #[must_use]
    pub const fn new() -> Self {
        const { assert!(N <= 255, "an InlineStr has at most 255 bytes") };
        Self { len: 0, bytes: [0; N] }
    }

    /// As much of `text` as fits, cut between two characters.
    #[must_use]
    pub fn truncated(text: &str) -> Self {
        let mut this = Self::new();
        let mut len = text.len().min(N);
        while !text.is_char_boundary(len) {
            len -= 1;
        }
        this.bytes[..len].copy_from_slice(&text.as_bytes()[..len]);
        this.len = len as u8;
        this
    }

    /// The text.
    #[inline]
    #[must_use]
    pub fn as_str(&self) -> &str {
        let len = usize::from(self.len).min(N);
        // SAFETY: UTF-8 by the type's invariant.
        unsafe { core::str::from_utf8_unchecked(self.bytes.get_unchecked(..len)) }
    }
}

impl<const N: usize> TryFrom<&str> for InlineStr<N> {
    type Error = TooLong;

    fn try_from(text: &str) -> Result<Self, TooLong> {
        if text.len() > N {
            return Err(TooLong { len_bytes: text.len(), capacity_bytes: N });
        }
        Ok(Self::truncated(text))
    }
}

impl<const N: usize> Default for InlineStr<N> {
    fn default() -> Self {
        Self::new()
    }
}

impl<const N: usize> Deref for InlineStr<N> {
    type Target = str;

    fn deref(&self) -> &str {
        self.as_str()
    }
}

impl<const N: usize> AsRef<str> for InlineStr<N> {
    fn as_ref(&self) -> &str {
        self.as_str()
    }
}

impl<const N: usize> Borrow<str> for InlineStr<N> {
    fn borrow(&self) -> &str {
        self.as_str()
    }
}

impl<const N: usize> PartialEq for InlineStr<N> {
    #[inline]
    fn eq(&self, other: &Self) -> bool {
        self.len == other.len && self.bytes == other.bytes
    }
}

impl<const N: usize> Eq for InlineStr<N> {}

impl<const N: usize> PartialEq<str> for InlineStr<N> {
    fn eq(&self, other: &str) -> bool {
        self.as_str() == other
    }
}

impl<const N: usize> PartialOrd for InlineStr<N> {
    fn partial_cmp(&self, other: &Self) -> Option<Ordering> {
        Some(self.cmp(other))
    }
}

impl<const N: usize> Ord for InlineStr<N> {
    #[inline]
    fn cmp(&self, other: &Self) -> Ordering {
        self.as_str().cmp(other.as_str())
    }
}

impl<const N: usize> Hash for InlineStr<N> {
    fn hash<H: Hasher>(&self, state: &mut H) {
        self.as_str().hash(state);
    }
}

impl<const N: usize> fmt::Debug for InlineStr<N> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Debug::fmt(self.as_str(), f)
    }
}

impl<const N: usize> fmt::Display for InlineStr<N> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(self.as_str(), f)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::collections::hash_map::DefaultHasher;

    #[test]
    fn it_is_the_str_that_was_put_in() {
        for text in ["", "a", "pöl", "1234567"] {
            let inline = InlineStr::<7>::try_from(text).unwrap();
            assert_eq!(inline.as_str(), text);
            let hash = |value: &dyn Fn(&mut DefaultHasher)| {
                let mut state = DefaultHasher::new();
                value(&mut state);
                state.finish()
            };
            assert_eq!(
                hash(&|s| inline.hash(s)),
                hash(&|s| text.hash(s)),
                "a map is asked with a str"
            );
        }
        let error = InlineStr::<7>::try_from("12345678").unwrap_err();
        assert_eq!((error.len_bytes, error.capacity_bytes), (8, 7));
        assert_eq!(InlineStr::<2>::truncated("aöb").as_str(), "a", "no character is cut");
        assert_eq!(size_of::<InlineStr<23>>(), 24);
        InlineStr::<23>::record().check().unwrap();
    }

    #[test]
    fn it_is_ordered_as_str_is() {
        let words = ["", "a", "aa", "ab", "b", "ö", "ööö"];
        for a in words {
            for b in words {
                let (x, y) =
                    (InlineStr::<8>::try_from(a).unwrap(), InlineStr::<8>::try_from(b).unwrap());
                assert_eq!(x.cmp(&y), a.cmp(b));
                assert_eq!(x == y, a == b);
            }
        }
    }
}
