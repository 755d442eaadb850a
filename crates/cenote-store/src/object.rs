//! Creates, restores and removes objects (PMO-1, PMO-6). Invariant: an object is a name, a puddle
//! and an address that no other puddle has.
//!
//! The crates above this one decide what is in an object and how it changes, and know which process
//! has it attached.
//!
//! # Updates in several steps
//!
//! **Create.** (1) the puddle's file is made, with its space taken and its headers, that of its
//! protection too, and synced: an orphan; (2) one batch names object and puddle: **the catalog's
//! batch commits**.
//!
//! **Restore.** (1) the puddle's file is made, an orphan; (2) its data and header are written and
//! synced, while other changes of the store go on; (3) one batch names object and puddle: **the
//! catalog's batch commits**. Until then no record names the object, and what a crash leaves is an
//! orphan. If an object keeps its identity, no record that a recovery would still apply may
//! name it: the caller makes sure of that before (1).
//!
//! **Remove.** (1) one batch takes both out: **the catalog's batch commits**; (2) the file is
//! removed, the directory synced. A file that a crash leaves is an orphan, and goes at the next
//! writable open.

use crate::kernel::interface::error::StoreError;
use crate::kernel::pools::pool_rules::why_no_name;
use crate::kernel::puddles::puddle::{DIR, file_name};
use crate::kernel::puddles::verify::verify_stamped;
use crate::kernel::store::{Control, Inner, Store};
use crate::object_info::ObjectInfo;
use cenote_layout::PAGE_SIZE;
use cenote_layout::catalog::{AtRest, ObjectRecord, PuddleRecord, Record};
use cenote_layout::error_kind::ErrorKind;
use cenote_layout::header::seal;
use cenote_layout::id::{PoolId, Uuid};
use cenote_layout::object::ObjectHeader;
use cenote_layout::puddle::Role;
use cenote_medium::planted::{Bug, planted};
use cenote_medium::{FileHandle, MediumError};
use zerocopy::IntoBytes;

pub(crate) fn find(control: &Control, name: &str) -> Result<ObjectInfo, StoreError> {
    let state = &control.catalog.state;
    let unknown = || StoreError::ObjectUnknown { name: name.chars().take(300).collect() };
    let record =
        state.object_names.get(name).and_then(|id| state.objects.get(id)).ok_or_else(unknown)?;
    let Some(puddle) = state.puddles.get(&record.puddle) else {
        return Err(StoreError::ObjectDamaged {
            name: record.name.clone(),
            detail: "the catalog has no valid record of its puddle".into(),
        });
    };
    if record.puddle_size() != Some(puddle.size) {
        return Err(StoreError::ObjectDamaged {
            name: record.name.clone(),
            detail: format!(
                "the catalog gives it {} bytes and its puddle {}, which do not fit",
                record.data_len, puddle.size
            ),
        });
    }
    Ok(ObjectInfo { record: record.clone(), addr: puddle.addr, size: puddle.size })
}

impl Inner {
    /// Writes the headers of an object that no record names yet, and syncs them.
    fn write_new_object(&self, info: &ObjectInfo, protection: &[u8]) -> Result<(), StoreError> {
        let mut header = ObjectHeader::detached(info.id());
        seal(&mut header);
        let (file, regions) = (info.file(), info.data_offset() + info.regions_offset());
        let written = self.medium.write_at(&file, info.header_offset(), header.as_bytes());
        written
            .and_then(|()| match protection.is_empty() {
                true => Ok(()),
                false => self.medium.write_at(&file, regions, protection),
            })
            .and_then(|()| self.medium.sync(&file))
            .map_err(|error| self.failed(error))
    }
}

/// Refuses permissions with bits that no object has.
pub(crate) fn no_bits_but_permissions(bits: u32) -> Result<(), StoreError> {
    match bits & !0o777 {
        0 => Ok(()),
        _ => Err(StoreError::Refused {
            kind: ErrorKind::Misuse,
            detail: format!("{bits:#o} are no permissions of an object: take 0 to 0o777"),
        }),
    }
}

impl Store {
    /// Objects as the daemon lists them, or those of this store.
    fn known_objects(&self, name: Option<&str>) -> Option<Result<Vec<ObjectInfo>, StoreError>> {
        let listed = self.own_daemon()?.objects(name);
        Some(listed.map(|objects| objects.into_iter().map(|listed| listed.object).collect()))
    }

    /// All objects, by name. One whose puddle record is damaged is left out; [`Store::object`] says
    /// why.
    #[must_use]
    pub fn objects(&self) -> Vec<ObjectInfo> {
        if let Some(listed) = self.known_objects(None) {
            return listed.unwrap_or_default();
        }
        let control = self.inner().control();
        let names = control.catalog.state.object_names.keys();
        names.filter_map(|name| find(&control, name).ok()).collect()
    }

    /// The object of this name.
    ///
    /// # Errors
    /// There is none; its records do not fit together.
    pub fn object(&self, name: &str) -> Result<ObjectInfo, StoreError> {
        if let Some(listed) = self.known_objects(Some(name)) {
            let unknown = || StoreError::ObjectUnknown { name: name.chars().take(300).collect() };
            return listed?.pop().ok_or_else(unknown);
        }
        find(&self.inner().control(), name)
    }

    /// Creates an object of `data_len` bytes of zeros, detached. It is durable on return.
    ///
    /// # Errors
    /// A bad or taken name, a length that no object can have, a full window or disk. Nothing has
    /// changed then.
    pub fn create_object(
        &self,
        name: &str,
        data_len: u64,
        permissions: u32,
    ) -> Result<ObjectInfo, StoreError> {
        self.create_object_at_rest(name, data_len, permissions, AtRest::None, |_, _| Ok(Vec::new()))
    }

    /// As [`Store::create_object`], with protection at rest: `header` makes the protection's header
    /// for the new identity and its number of pages. It is called with no lock held, and what it
    /// made is written where the regions begin before the object is there.
    ///
    /// # Errors
    /// As [`Store::create_object`], and what `header` says. Nothing has changed then.
    pub fn create_object_at_rest<E: From<StoreError>>(
        &self,
        name: &str,
        data_len: u64,
        permissions: u32,
        at_rest: AtRest,
        header: impl FnOnce(Uuid, u64) -> Result<Vec<u8>, E>,
    ) -> Result<ObjectInfo, E> {
        let record = ObjectRecord {
            puddle: Uuid::NIL,
            name: name.into(),
            data_len,
            at_rest,
            uid: cenote_sys::process::uid(),
            gid: cenote_sys::process::gid(),
            permissions,
            created_at_s: self.inner().medium.now_s(),
        };
        self.create_object_as(record, header)
    }

    /// The same with the identity that the record says, unless that is nil, and its owner.
    pub(crate) fn create_object_as<E: From<StoreError>>(
        &self,
        mut record: ObjectRecord,
        header: impl FnOnce(Uuid, u64) -> Result<Vec<u8>, E>,
    ) -> Result<ObjectInfo, E> {
        let name = record.name.clone();
        let reason_to =
            |reason| StoreError::ObjectName { name: name.chars().take(80).collect(), reason };
        why_no_name(&name).map_err(reason_to)?;
        no_bits_but_permissions(record.permissions)?;
        let inner = self.inner();
        let size = record.puddle_size().ok_or(StoreError::ObjectLen { len: record.data_len })?;
        if record.puddle.is_nil() {
            record.puddle = inner.random_uuid()?;
        }
        let id = record.puddle;
        let protection = header(id, record.span() / PAGE_SIZE)?;
        let mut control = inner.begin_write("create an object")?;
        let state = &control.catalog.state;
        if state.object_names.contains_key(&name) || state.puddles.contains_key(&id) {
            return Err(StoreError::ObjectExists { name }.into());
        }
        let wanted = PuddleRecord {
            uuid: Uuid::NIL,
            pool: PoolId(0),
            role: Role::Object,
            index: 0,
            addr: 0,
            size,
        };
        let apart = record.at_rest != AtRest::None;
        let puddle = inner.new_puddle_as(&mut control, Some(id), wanted, apart)?;
        let info = ObjectInfo { record: record.clone(), addr: puddle.addr, size };
        if let Err(error) = inner.write_new_object(&info, &protection) {
            let _ = inner.medium.remove(&info.file());
            control.space.give_back(puddle.addr, puddle.size);
            return Err(error.into());
        }
        inner.commit_new_puddle(&mut control, &puddle, &[Record::Object(record)])?;
        Ok(info)
    }

    /// Makes an object again that was somewhere before: named `record.name`, of the identity
    /// `record.puddle` unless that is nil, at `addr` if that is free in the window. `fill`
    /// writes its data, behind [`ObjectInfo::data_offset`] of the file that it is given. Durable on
    /// return.
    ///
    /// # Errors
    /// As [`Store::create_object`]; an object of this identity is there; what `fill` says. Nothing
    /// has changed then.
    pub fn restore_object<E: From<StoreError>>(
        &self,
        mut record: ObjectRecord,
        addr: u64,
        fill: impl FnOnce(&FileHandle, &ObjectInfo) -> Result<(), E>,
    ) -> Result<ObjectInfo, E> {
        const WHAT: &str = "restore an object";
        let inner = self.inner();
        let name = record.name.clone();
        let reason_to =
            |reason| StoreError::ObjectName { name: name.chars().take(80).collect(), reason };
        why_no_name(&name).map_err(reason_to)?;
        no_bits_but_permissions(record.permissions)?;
        let size = record.puddle_size().ok_or(StoreError::ObjectLen { len: record.data_len })?;
        let taken = |control: &Control| control.catalog.state.object_names.contains_key(&name);
        let puddle = {
            let mut control = inner.begin_write(WHAT)?;
            let id = Some(record.puddle).filter(|id| !id.is_nil());
            if taken(&control)
                || id.is_some_and(|id| control.catalog.state.puddles.contains_key(&id))
            {
                return Err(StoreError::ObjectExists { name }.into());
            }
            let role = Role::Object;
            let wanted =
                PuddleRecord { uuid: Uuid::NIL, pool: PoolId(0), role, index: 0, addr, size };
            let apart = record.at_rest != AtRest::None;
            inner.new_puddle_as(&mut control, id, wanted, apart)?
        };
        record.puddle = puddle.uuid;
        let info = ObjectInfo { record, addr: puddle.addr, size };
        // Without the lock: it may take long.
        let written = self.fill_object(&info, fill).and_then(|()| {
            let control = inner.begin_write(WHAT)?;
            let exists = || StoreError::ObjectExists { name: name.clone() };
            if taken(&control) { Err(exists().into()) } else { Ok(control) }
        });
        match written {
            Ok(mut control) => {
                inner.commit_new_puddle(
                    &mut control,
                    &puddle,
                    &[Record::Object(info.record.clone())],
                )?;
                Ok(info)
            }
            Err(error) => {
                let _ = inner.medium.remove(&info.file());
                inner.control().space.give_back(puddle.addr, puddle.size);
                Err(error)
            }
        }
    }

    /// Writes the data and the header of an object that no record names yet, and syncs them.
    fn fill_object<E: From<StoreError>>(
        &self,
        info: &ObjectInfo,
        fill: impl FnOnce(&FileHandle, &ObjectInfo) -> Result<(), E>,
    ) -> Result<(), E> {
        let inner = self.inner();
        let failed = |error| inner.failed(error);
        let mut header = ObjectHeader::detached(info.id());
        seal(&mut header);
        let file = FileHandle::open(&inner.medium, &info.file()).map_err(failed)?;
        fill(&file, info)?;
        file.write_at(info.header_offset(), header.as_bytes()).map_err(failed)?;
        if !planted(Bug::RestoreNotSynced) {
            file.sync().map_err(failed)?;
        }
        Ok(())
    }

    /// Gives an object other permission bits, durably.
    ///
    /// # Errors
    /// There is no such object; the store is read-only or poisoned; the medium.
    pub fn set_object_permissions(&self, name: &str, permissions: u32) -> Result<(), StoreError> {
        no_bits_but_permissions(permissions)?;
        let inner = self.inner();
        let mut control = inner.begin_write("change an object")?;
        let record = ObjectRecord { permissions, ..find(&control, name)?.record };
        inner.commit(&mut control, &[Record::Object(record)])
    }

    /// Removes an object and its data, durably.
    ///
    /// # Errors
    /// There is no such object; the store is read-only or poisoned; the medium.
    ///
    /// # Safety
    /// No process has the object attached. Its addresses may go to the next object, whose detach
    /// would unmap them under a reference.
    pub unsafe fn remove_object(&self, name: &str) -> Result<(), StoreError> {
        let mut control = self.inner().begin_write("remove an object")?;
        self.remove_object_in(&mut control, name)
    }

    pub(crate) fn remove_object_in(
        &self,
        control: &mut Control,
        name: &str,
    ) -> Result<(), StoreError> {
        let inner = self.inner();
        let state = &control.catalog.state;
        let id = state.object_names.get(name).copied();
        let id =
            id.ok_or_else(|| StoreError::ObjectUnknown { name: name.chars().take(300).collect() })?;
        let puddle = state.puddles.get(&id).copied();
        inner.commit(control, &[Record::PuddleRemoved(id), Record::ObjectRemoved(id)])?;
        let file = file_name(id);
        // A left over file is an orphan; the next writable open removes it.
        let _ = inner.medium.remove(core::str::from_utf8(&file).unwrap_or_default());
        if let Some(puddle) = puddle {
            control.space.give_back(puddle.addr, puddle.size);
        }
        inner.medium.sync_dir(DIR).map_err(|error| inner.failed(error))
    }

    /// Says in an object's file that this session may write it, unless its protection shows what
    /// is of another moment. Before the first write; later calls write nothing.
    ///
    /// # Errors
    /// The medium.
    pub fn mark_object(&self, object: &ObjectInfo, file: &FileHandle) -> Result<(), MediumError> {
        match object.record.at_rest {
            AtRest::None => self.inner().mark_object(object.id(), file),
            _ => Ok(()),
        }
    }

    /// Compares an object's file with what the catalog says: there, as long as it should be, with
    /// its own header, and without protection with a stamp of this moment.
    ///
    /// # Errors
    /// It is damaged, another one's or missing; the medium.
    pub fn verify_object(&self, object: &ObjectInfo) -> Result<(), StoreError> {
        let inner = self.inner();
        if inner.is_client() {
            return Ok(()); // the daemon does, before it hands the file out
        }
        let (record, name) = (object.puddle(), object.file());
        let stamps = inner.expected(&inner.control().catalog.state, &record);
        match verify_stamped(&inner.medium, &name, &record, inner.uuid, inner.writable, stamps)? {
            None => Ok(()),
            Some(detail) => {
                Err(StoreError::ObjectDamaged { name: object.record.name.clone(), detail })
            }
        }
    }
}
