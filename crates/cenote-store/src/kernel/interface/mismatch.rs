//! The error for types that a store knows with another layout.

use cenote_layout::types::TypeRecord;
use core::fmt;

/// A type id is known with another layout. Both are told, so that the difference is seen.
#[derive(Debug)]
pub struct TypeMismatch {
    /// As the store knows it.
    pub known: TypeRecord,
    /// As it was offered.
    pub offered: TypeRecord,
}

impl std::error::Error for TypeMismatch {}

impl fmt::Display for TypeMismatch {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let (known, offered) = (&self.known, &self.offered);
        writeln!(
            f,
            "type {} is known to the store with another layout: give the new type another name, or \
             open the store with the program that wrote it",
            offered.id
        )?;
        write!(f, "{}", Layouts(known, offered))
    }
}

/// Two layouts, and where they differ.
#[derive(Clone, Copy, Debug)]
pub struct Layouts<'a>(pub &'a TypeRecord, pub &'a TypeRecord);

impl fmt::Display for Layouts<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self(known, offered) = self;
        for difference in known.differences(offered) {
            writeln!(f, "  {difference}")?;
        }
        write!(f, "known:   {known}\noffered: {offered}")
    }
}
