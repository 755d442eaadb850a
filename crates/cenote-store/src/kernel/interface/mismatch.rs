//! The errors for types that a store knows with another layout, or with another version.

use cenote_layout::error_kind::ErrorKind;
use cenote_layout::types::TypeRecord;
use core::cmp::Ordering;
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
            "type {} is known to the store with another layout: give the new type another version \
             (#[persist(version = {})]) or another name, or open the store with the program that \
             wrote it",
            offered.id,
            offered.version.of_type.saturating_add(1)
        )?;
        write!(f, "{}", Layouts(known, offered))
    }
}

/// A type is known with another version: the physical ids differ, and the logical one is the same.
#[derive(Debug)]
pub struct VersionMismatch {
    /// As the store knows it.
    pub known: TypeRecord,
    /// As it was offered.
    pub offered: TypeRecord,
}

impl VersionMismatch {
    /// What a program can do about it: an older one cannot use newer values.
    #[must_use]
    pub fn kind(&self) -> ErrorKind {
        match self.known.version.of_type > self.offered.version.of_type {
            true => ErrorKind::Unsupported,
            false => ErrorKind::Unfinished,
        }
    }
}

impl std::error::Error for VersionMismatch {}

impl fmt::Display for VersionMismatch {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let (name, known, offered) =
            (&self.known.name, self.known.version.of_type, self.offered.version.of_type);
        match known.cmp(&offered) {
            Ordering::Greater => write!(
                f,
                "type {name} has version {known} in this store, and version {offered} in this \
                 program: use a program that has version {known}"
            ),
            Ordering::Less => write!(
                f,
                "type {name} has version {known} in this store, and version {offered} in this \
                 program: read its values by the type of version {known}, copy them into another \
                 store, or remove their pools"
            ),
            Ordering::Equal => write!(
                f,
                "type {name} has arguments of other versions in this store than in this program: \
                 read its values by a program whose arguments have these versions, copy them into \
                 another store, or remove their pools"
            ),
        }
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
