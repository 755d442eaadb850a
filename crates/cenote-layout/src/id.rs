//! Identities: 128-bit UUIDs of stores, puddles and clients, 64-bit numbers of pools and types.

use core::fmt;
use serde::{Deserialize, Serialize};
use zerocopy::{FromBytes, Immutable, IntoBytes, KnownLayout};

/// A 128-bit universally unique identifier (PUD-11), 16 bytes on media. All zero means "none".
#[derive(
    Clone,
    Copy,
    PartialEq,
    Eq,
    PartialOrd,
    Ord,
    Hash,
    Default,
    Serialize,
    Deserialize,
    FromBytes,
    IntoBytes,
    Immutable,
    KnownLayout,
)]
#[repr(transparent)]
pub struct Uuid(pub [u8; 16]);

impl Uuid {
    /// The identifier of nothing.
    pub const NIL: Self = Self([0; 16]);

    /// A random (version 4) identifier from 16 random bytes.
    #[must_use]
    pub const fn from_random_bytes(mut bytes: [u8; 16]) -> Self {
        bytes[6] = (bytes[6] & 0x0f) | 0x40;
        bytes[8] = (bytes[8] & 0x3f) | 0x80;
        Self(bytes)
    }

    /// Whether this is [`Uuid::NIL`].
    #[must_use]
    pub fn is_nil(&self) -> bool {
        self.0 == [0; 16]
    }

    /// The 32 lower-case hexadecimal digits, without hyphens: how puddle files are named.
    #[must_use]
    pub fn to_hex(&self) -> [u8; 32] {
        const DIGITS: &[u8; 16] = b"0123456789abcdef";
        let mut out = [0; 32];
        for (i, byte) in self.0.iter().enumerate() {
            out[2 * i] = DIGITS[usize::from(byte >> 4)];
            out[2 * i + 1] = DIGITS[usize::from(byte & 15)];
        }
        out
    }

    /// Reads what [`Uuid::to_hex`] or `Display` wrote; hyphens are skipped. `None` if it is
    /// anything else.
    #[must_use]
    pub fn parse(text: &str) -> Option<Self> {
        let mut bytes = [0u8; 16];
        let mut digits = 0;
        for c in text.chars() {
            if c == '-' {
                continue;
            }
            let value = u8::try_from(c.to_digit(16)?).ok()?;
            *bytes.get_mut(digits / 2)? |= if digits % 2 == 0 { value << 4 } else { value };
            digits += 1;
        }
        (digits == 32).then_some(Self(bytes))
    }
}

impl fmt::Display for Uuid {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let hex = self.to_hex();
        for (i, digit) in hex.iter().enumerate() {
            if matches!(i, 8 | 12 | 16 | 20) {
                f.write_str("-")?;
            }
            write!(f, "{}", char::from(*digit))?;
        }
        Ok(())
    }
}

impl fmt::Debug for Uuid {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(self, f)
    }
}

/// Number of a pool in its store; never given twice. 0 means "no pool" (logs and log spaces).
#[derive(
    Clone,
    Copy,
    PartialEq,
    Eq,
    PartialOrd,
    Ord,
    Hash,
    Debug,
    Default,
    Serialize,
    Deserialize,
    FromBytes,
    IntoBytes,
    Immutable,
    KnownLayout,
)]
#[repr(transparent)]
pub struct PoolId(pub u64);

impl fmt::Display for PoolId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}", self.0)
    }
}

/// 64-bit name of a persistent type (PUD-7): a hash of its declared name. 0 means "no type": such
/// blocks are scanned conservatively.
#[derive(
    Clone,
    Copy,
    PartialEq,
    Eq,
    PartialOrd,
    Ord,
    Hash,
    Default,
    Serialize,
    Deserialize,
    FromBytes,
    IntoBytes,
    Immutable,
    KnownLayout,
)]
#[repr(transparent)]
pub struct TypeId(pub u64);

impl TypeId {
    /// Blocks without a type.
    pub const UNTYPED: Self = Self(0);

    /// The id of a type without parameters, from its declared name.
    #[must_use]
    pub const fn of_name(name: &str) -> Self {
        let hash = xxhash_rust::const_xxh3::xxh3_64_with_seed(
            name.as_bytes(),
            crate::checksum::seed::TYPE_NAME,
        );
        Self(if hash == 0 { 1 } else { hash })
    }

    /// The id of a type constructor (`self`, say a generic's or `"[]"`'s) applied to one more
    /// argument.
    #[must_use]
    pub const fn apply(self, argument: u64) -> Self {
        let mut bytes = [0u8; 16];
        let (a, b) = (self.0.to_le_bytes(), argument.to_le_bytes());
        let mut i = 0;
        while i < 8 {
            bytes[i] = a[i];
            bytes[8 + i] = b[i];
            i += 1;
        }
        let hash =
            xxhash_rust::const_xxh3::xxh3_64_with_seed(&bytes, crate::checksum::seed::TYPE_NAME);
        Self(if hash == 0 { 1 } else { hash })
    }
}

impl fmt::Debug for TypeId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:016x}", self.0)
    }
}

impl fmt::Display for TypeId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:016x}", self.0)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn uuid_text_round_trips() {
        let id = Uuid::from_random_bytes(*b"0123456789abcdef");
        assert_eq!(Uuid::parse(&id.to_string()), Some(id));
        assert_eq!(Uuid::parse(core::str::from_utf8(&id.to_hex()).unwrap()), Some(id));
        assert_eq!(Uuid::parse("12"), None);
        assert_eq!(Uuid::parse("zz"), None);
        assert_eq!(Uuid::parse(&"1".repeat(33)), None);
    }

    #[test]
    fn type_ids_depend_on_name_and_arguments() {
        let list = TypeId::of_name("List");
        assert_ne!(list, TypeId::of_name("Lisp"));
        assert_ne!(list.apply(1), list.apply(2));
        assert_ne!(list.apply(1).apply(2), list.apply(2).apply(1));
        // Part of the format: an id must never change.
        assert_eq!(TypeId::of_name("u64"), TypeId::of_name("u64"));
    }
}
