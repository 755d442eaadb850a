//! Versions of types, and the two ids that a type has.
//!
//! *The logical id* comes from the name and its arguments. It stays when a type changes: pointer
//! maps, roots and names of generic types say it. *The physical id* comes from the name, the
//! version and the physical ids of the arguments. Descriptors of blocks, and fields that hold a
//! value, say it. Both are one number as long as no version is raised, so a registry without
//! versions is as it was before there were any.

use super::TypeRecord;
use crate::id::TypeId;
use serde::de::{Error as _, SeqAccess, Visitor};
use serde::ser::SerializeTuple as _;
use serde::{Deserialize, Deserializer, Serialize, Serializer};

extern crate alloc;
use alloc::collections::{BTreeMap, BTreeSet};
use alloc::sync::Arc;
use alloc::vec::Vec;
use core::fmt;

/// The description of a type of which no version was raised.
const PLAIN: u32 = 1;
/// The description of one of which a version, or that of an argument, was.
const VERSIONED: u32 = 2;

/// What a record says of versions.
///
/// ```text
/// 1                          the logical id is the physical one
/// 2, version, logical id     it is another
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Versions {
    /// How the record is described: 1, or 2 with a version. A later release that says more than
    /// this one understands counts it up.
    pub description: u32,
    /// The type's version, from 1. It is 1 in a description without one.
    pub of_type: u32,
    /// The logical id; that of no type in a description without a version.
    pub logical: TypeId,
}

/// What records of types say whose versions were never raised.
pub const RECORD_VERSION: Versions =
    Versions { description: PLAIN, of_type: 1, logical: TypeId::UNTYPED };

impl Versions {
    /// Those of a type with these ids.
    #[must_use]
    pub const fn of(logical: TypeId, physical: TypeId, of_type: u32) -> Self {
        if logical.0 == physical.0 && of_type == 1 {
            return RECORD_VERSION;
        }
        Self { description: VERSIONED, of_type, logical }
    }

    /// What is wrong with them in the record of the type with this physical id.
    pub(super) fn fault(&self, physical: TypeId) -> Option<&'static str> {
        match self.description {
            PLAIN if *self == RECORD_VERSION => None,
            VERSIONED if self.of_type == 0 => Some("its version is 0"),
            VERSIONED if self.logical == TypeId::UNTYPED || self.logical == physical => {
                Some("its version has no id of its own")
            }
            VERSIONED => None,
            _ => Some("it was described by a later release"),
        }
    }
}

impl fmt::Display for Versions {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}", self.of_type)
    }
}

impl Serialize for Versions {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        let len = if self.description == VERSIONED { 3 } else { 1 };
        let mut tuple = serializer.serialize_tuple(len)?;
        tuple.serialize_element(&self.description)?;
        if len == 3 {
            tuple.serialize_element(&self.of_type)?;
            tuple.serialize_element(&self.logical)?;
        }
        tuple.end()
    }
}

impl<'de> Deserialize<'de> for Versions {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        deserializer.deserialize_tuple(3, Parts)
    }
}

/// Reads the parts that a description of its kind has.
struct Parts;

impl<'de> Visitor<'de> for Parts {
    type Value = Versions;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("the versions of a type record")
    }

    fn visit_seq<A: SeqAccess<'de>>(self, mut parts: A) -> Result<Versions, A::Error> {
        let missing = || A::Error::custom("the versions of a type record are cut short");
        let description = parts.next_element()?.ok_or_else(missing)?;
        if description != VERSIONED {
            return Ok(Versions { description, ..RECORD_VERSION });
        }
        let of_type = parts.next_element()?.ok_or_else(missing)?;
        let logical = parts.next_element()?.ok_or_else(missing)?;
        Ok(Versions { description, of_type, logical })
    }
}

impl TypeRecord {
    /// The id that pointer maps and roots say. [`TypeRecord::id`] is the one of descriptors.
    #[must_use]
    pub const fn logical(&self) -> TypeId {
        if self.version.description == VERSIONED { self.version.logical } else { self.id }
    }

    /// Whether a version of the type, or of an argument, was raised.
    #[must_use]
    pub const fn is_versioned(&self) -> bool {
        self.version.description == VERSIONED
    }
}

/// The versions that a registry has of each type.
#[derive(Clone, Debug, Default)]
pub struct TypeVersions(BTreeMap<TypeId, BTreeSet<TypeId>>);

impl TypeVersions {
    /// Those of `records`.
    #[must_use]
    pub fn of<'a>(records: impl IntoIterator<Item = &'a Arc<TypeRecord>>) -> Self {
        let mut this = Self::default();
        records.into_iter().for_each(|record| this.insert(record));
        this
    }

    /// A record comes.
    pub fn insert(&mut self, record: &TypeRecord) {
        self.0.entry(record.logical()).or_default().insert(record.id);
    }

    /// A record goes.
    pub fn remove(&mut self, record: &TypeRecord) {
        if let Some(ids) = self.0.get_mut(&record.logical()) {
            ids.remove(&record.id);
            if ids.is_empty() {
                self.0.remove(&record.logical());
            }
        }
    }

    /// The physical ids of a logical one.
    pub fn physical(&self, logical: TypeId) -> impl Iterator<Item = TypeId> + '_ {
        self.0.get(&logical).into_iter().flatten().copied()
    }

    /// The physical id that blocks have to which a pointer with this logical id leads: itself if no
    /// version was raised, [`TypeId::UNTYPED`] if there are several.
    #[must_use]
    pub fn target(&self, logical: TypeId) -> TypeId {
        let mut ids = self.physical(logical);
        match (ids.next(), ids.next()) {
            (None, _) => logical,
            (Some(only), None) => only,
            (Some(_), Some(_)) => TypeId::UNTYPED,
        }
    }

    /// The record with the ids that blocks have in its pointer map: what code needs that compares
    /// where a pointer leads with the descriptor there.
    #[must_use]
    pub fn linked(&self, record: &Arc<TypeRecord>) -> Arc<TypeRecord> {
        if record.pointers.iter().all(|pointer| self.target(pointer.target) == pointer.target) {
            return Arc::clone(record);
        }
        let mut linked = TypeRecord::clone(record);
        for pointer in &mut linked.pointers {
            pointer.target = self.target(pointer.target);
        }
        Arc::new(linked)
    }

    /// All of these records, linked.
    #[must_use]
    pub fn all_linked(records: Vec<Arc<TypeRecord>>) -> Vec<Arc<TypeRecord>> {
        if records.iter().all(|record| !record.is_versioned()) {
            return records;
        }
        let versions = Self::of(&records);
        records.iter().map(|record| versions.linked(record)).collect()
    }
}
