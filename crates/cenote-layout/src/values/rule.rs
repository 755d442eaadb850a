//! What must hold of the bytes of a value, and what is said where it does not.

use crate::id::TypeId;

extern crate alloc;
use alloc::string::String;
use core::fmt;

/// What must hold of some bytes.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum Rule {
    /// 0 or 1.
    Bool,
    /// A character of Unicode, without surrogates.
    Char,
    /// A `bool` that may be missing: 0, 1, or 2.
    OptionBool,
    /// A `char` that may be missing: as [`Rule::Char`], or 0x110000.
    OptionChar,
    /// Less than 1,000,000,000 nanoseconds.
    Nanos,
    /// The same, or 1,000,000,000: the time is missing.
    OptionNanos,
    /// Not 0.
    NotZero,
    /// Not null: a pointer that is not an `Option`.
    NotNull,
    /// The discriminant of a variant.
    Tag,
    /// UTF-8.
    Text,
    /// A pointer whose target is a block of its type, or is not known. No rule of bytes alone: a
    /// caller that knows blocks asks for it.
    Reference,
    /// A collection differs from its header; the text says in what. As [`Rule::Reference`].
    Structure(&'static str),
    /// The only owner of its block. As [`Rule::Reference`].
    Owner,
}

/// A value whose bytes break a rule of its type.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct InvalidValue {
    /// Address of its block.
    pub block: u64,
    /// Type of the block.
    pub type_id: TypeId,
    /// Its name.
    pub type_name: String,
    /// Which field of the value, from the outermost: `[3].kind.Circle.filled`. Empty: the value.
    pub field: String,
    /// Address of the bytes.
    pub at: u64,
    /// The rule.
    pub rule: Rule,
    /// What stands there, as a number.
    pub found: u128,
}

impl fmt::Display for InvalidValue {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { block, type_name, field, at, found, .. } = self;
        write!(f, "block at {block:#x} ({type_name}): ")?;
        if !field.is_empty() {
            write!(f, "field `{field}`, ")?;
        }
        write!(f, "at {at:#x}: ")?;
        match self.rule {
            Rule::Bool => write!(f, "{found} is no bool"),
            Rule::OptionBool => write!(f, "{found} is no bool, nor `None`"),
            Rule::Char => write!(f, "{found:#x} is no character"),
            Rule::OptionChar => write!(f, "{found:#x} is no character, nor `None`"),
            Rule::Nanos => write!(f, "{found} nanoseconds are a second or more"),
            Rule::OptionNanos => write!(f, "{found} nanoseconds are more than a second"),
            Rule::NotZero => f.write_str("0 in a number that is never 0"),
            Rule::NotNull => f.write_str("null in a pointer that is never null"),
            Rule::Tag => write!(f, "no variant has the discriminant {found}"),
            Rule::Text => write!(f, "no UTF-8 begins with or goes on with byte {found:#04x}"),
            Rule::Structure(why) => write!(f, "the collection is broken: {why} ({found:#x})"),
            Rule::Owner => write!(f, "the block at {found:#x} has another owner too"),
            Rule::Reference => write!(f, "no block of the pointer's type begins at {found:#x}"),
        }
    }
}

impl Rule {
    /// The rule of a built-in type without arguments, and the bytes of a value.
    pub(super) fn of(id: TypeId) -> Option<(Self, u64)> {
        const NON_ZERO: [(&str, u64); 12] = [
            ("NonZeroU8", 1),
            ("NonZeroU16", 2),
            ("NonZeroU32", 4),
            ("NonZeroU64", 8),
            ("NonZeroU128", 16),
            ("NonZeroUsize", 8),
            ("NonZeroI8", 1),
            ("NonZeroI16", 2),
            ("NonZeroI32", 4),
            ("NonZeroI64", 8),
            ("NonZeroI128", 16),
            ("NonZeroIsize", 8),
        ];
        if id == const { TypeId::of_name("bool") } {
            return Some((Self::Bool, 1));
        }
        if id == const { TypeId::of_name("char") } {
            return Some((Self::Char, 4));
        }
        let found = NON_ZERO.iter().find(|(name, _)| TypeId::of_name(name) == id)?;
        Some((Self::NotZero, found.1))
    }

    /// The rule of a type of the standard library that is told by its name, and the bytes of a
    /// value. Of a time it is about the 4 bytes from byte 8 on.
    pub(super) fn of_std(name: &str) -> Option<(Self, u64)> {
        Some(match name {
            "Option<bool>" => (Self::OptionBool, 1),
            "Option<char>" => (Self::OptionChar, 4),
            "Duration" | "SystemTime" => (Self::Nanos, 16),
            "Option<Duration>" | "Option<SystemTime>" => (Self::OptionNanos, 16),
            _ => return None,
        })
    }

    /// Whether bytes with this number keep the rule, as far as one number tells.
    pub(super) fn holds(self, found: u128) -> bool {
        let is_char = || u32::try_from(found).is_ok_and(|code| char::from_u32(code).is_some());
        match self {
            Self::Bool => found <= 1,
            Self::OptionBool => found <= 2,
            Self::Char => is_char(),
            Self::OptionChar => is_char() || found == 0x11_0000,
            Self::Nanos => found < 1_000_000_000,
            Self::OptionNanos => found <= 1_000_000_000,
            Self::NotZero | Self::NotNull => found != 0,
            Self::Tag | Self::Text | Self::Reference | Self::Owner | Self::Structure(_) => true,
        }
    }
}
