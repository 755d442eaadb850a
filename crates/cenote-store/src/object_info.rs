//! Types for objects: as the catalog has them, as a daemon lists them, and as they are to be made.

use crate::kernel::puddles::puddle::file_name;
use cenote_layout::catalog::{AtRest, ObjectRecord, PuddleRecord};
use cenote_layout::id::{PoolId, Uuid};
use cenote_layout::object::object_data_offset;
use cenote_layout::puddle::{Role, header_space};

/// An object as the catalog has it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ObjectInfo {
    /// Name, length, permissions.
    pub record: ObjectRecord,
    /// First address of its puddle.
    pub addr: u64,
    /// Bytes of its puddle, headers included.
    pub size: u64,
}

impl ObjectInfo {
    /// Its identity: that of its puddle.
    #[must_use]
    pub fn id(&self) -> Uuid {
        self.record.puddle
    }

    /// Whether this is the same object at the same addresses.
    #[must_use]
    pub fn is_same_place(&self, other: &Self) -> bool {
        let place = |info: &Self| (info.id(), info.addr, info.size, info.record.data_len);
        place(self) == place(other)
    }

    /// Where its header lies in the file.
    #[must_use]
    pub fn header_offset(&self) -> u64 {
        header_space(self.size)
    }

    /// Where its data begins in the file.
    #[must_use]
    pub fn data_offset(&self) -> u64 {
        object_data_offset(self.size)
    }

    /// Where the regions of its protection at rest begin, counted from the start of its data;
    /// without protection they are empty.
    #[must_use]
    pub fn regions_offset(&self) -> u64 {
        self.record.span()
    }

    /// Bytes behind [`ObjectInfo::data_offset`] that belong to it: data, and regions of its
    /// protection.
    #[must_use]
    pub fn body_len(&self) -> u64 {
        self.size - self.data_offset()
    }

    /// The address of its data: the same in every process, for as long as it exists.
    #[must_use]
    pub fn data_addr(&self) -> u64 {
        self.addr + self.data_offset()
    }

    /// Name of its file in the store's directory.
    #[must_use]
    pub fn file(&self) -> String {
        file_name(self.record.puddle).iter().map(|b| char::from(*b)).collect()
    }

    pub(crate) fn puddle(&self) -> PuddleRecord {
        PuddleRecord {
            uuid: self.record.puddle,
            pool: PoolId(0),
            role: Role::Object,
            index: 0,
            addr: self.addr,
            size: self.size,
        }
    }
}

/// An object that is to be made.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct NewObject {
    /// Its identity: the caller chooses it, because the header of its protection is bound to it.
    pub id: Uuid,
    /// Its name.
    pub name: String,
    /// Its bytes.
    pub data_len: u64,
    /// Its permission bits.
    pub permissions: u32,
    /// What protects it at rest.
    pub at_rest: AtRest,
    /// The header of that, or nothing.
    pub header: Vec<u8>,
}

/// An object as a daemon lists it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ListedObject {
    /// What the catalog says.
    pub object: ObjectInfo,
    /// Its state, as the layers above number them (`cenote_layout::object::ObjectState`).
    pub state: u32,
    /// How its last writer left it: 0 detached, 1 its process died, 2 power failed, 3 not known;
    /// and that process.
    pub found: (u8, u32),
    /// It is of a copy of an open store, and was not found whole since.
    pub unchecked: bool,
}
