//! Attaches objects of a daemon's store for its clients, and detaches them (PMO-2, PUD-13).
//!
//! Invariant: before a client has an object's file, a record says that the client has the object
//! attached, and whether for writing; one client writes an object, or any number read it. The
//! record outlives the daemon, so that the next daemon knows which clients may still read the
//! object. It ends when the client ends or detaches the object.
//!
//! The crates above this one decide what is in an object and how a psync changes it, and that a
//! client gets the file for reading only.
//!
//! # Updates in several steps
//!
//! **Attach.** One batch has the lease (and the client's record, if it is its first): **it
//! commits**. Only then the file is handed out. **Detach.** One batch ends it: **it commits**.
//! Everything else is one batch, as of an embedded store ([`crate::object`]).

use crate::credentials::Credentials;
use crate::kernel::interface::error::StoreError;
use crate::kernel::store::{Control, Store};
use crate::object::{find, no_bits_but_permissions};
use crate::object_info::{NewObject, ObjectInfo};
use cenote_layout::at_rest::AtRestHeader;
use cenote_layout::catalog::{AtRest, ObjectRecord, Record};
use cenote_layout::error_kind::ErrorKind;
use cenote_layout::id::Uuid;
use std::fs::File;

impl Credentials {
    /// Whether an object's permission bits allow this. As for embedded stores, they bind the
    /// superuser too.
    #[must_use]
    pub fn allow_object(&self, object: &ObjectRecord, writable: bool) -> bool {
        let class = if object.uid == self.uid {
            6
        } else if object.gid == self.gid || self.groups.contains(&object.gid) {
            3
        } else {
            0
        };
        let wanted = if writable { 6 } else { 4 };
        object.permissions >> class & wanted == wanted
    }

    fn denied(&self, object: &ObjectRecord, what: &'static str) -> StoreError {
        let (name, mode) = (object.name.clone(), object.permissions);
        StoreError::ObjectDenied { name, what, uid: self.uid, mode, owner: object.uid }
    }
}

fn bad(detail: &str) -> StoreError {
    StoreError::Refused { kind: ErrorKind::Misuse, detail: detail.into() }
}

impl Control {
    /// The user of an object that excludes this client's use of it.
    fn object_holder(
        &self,
        object: Uuid,
        client: Option<Uuid>,
        writable: bool,
    ) -> Option<(u32, bool)> {
        let leases = self.catalog.state.object_leases.iter();
        let mut others =
            leases.filter(|((holder, of), _)| *of == object && Some(*holder) != client);
        let found = others.find(|(_, writes)| writable || **writes);
        found.map(|((holder, _), writes)| {
            (self.hosted().get(holder).map_or(0, |hosted| hosted.pid()), *writes)
        })
    }

    fn refuse_object_in_use(
        &self,
        object: &ObjectInfo,
        client: Option<Uuid>,
        writable: bool,
    ) -> Result<(), StoreError> {
        match self.object_holder(object.id(), client, writable) {
            None => Ok(()),
            Some((pid, writing)) => {
                Err(StoreError::ObjectBusy { name: object.record.name.clone(), writing, pid })
            }
        }
    }
}

impl Store {
    /// Creates an object that belongs to a client's user and group. It is durable on return. Asked
    /// again, it is there already.
    ///
    /// # Errors
    /// As [`Store::create_object`]; no identity, permission bits that are none, a header that does
    /// not fit its protection.
    pub fn client_create_object(
        &self,
        credentials: &Credentials,
        new: &NewObject,
    ) -> Result<ObjectInfo, StoreError> {
        self.inner().refuse_unless_hosting()?;
        if new.id.is_nil() {
            return Err(bad("the object's identity is zero: choose a random one"));
        }
        let header_len = if new.at_rest == AtRest::None { 0 } else { size_of::<AtRestHeader>() };
        if new.header.len() != header_len {
            return Err(bad("the header of the object's protection does not fit its mode"));
        }
        let record = ObjectRecord {
            puddle: new.id,
            name: new.name.clone(),
            data_len: new.data_len,
            at_rest: new.at_rest,
            uid: credentials.uid,
            gid: credentials.gid,
            permissions: new.permissions,
            created_at_s: self.inner().medium.now_s(),
        };
        match self.create_object_as(record, |_, _| Ok(new.header.clone())) {
            Err(StoreError::ObjectExists { name }) => match self.object(&name) {
                Ok(known) if known.id() == new.id && known.record.uid == credentials.uid => {
                    Ok(known)
                }
                _ => Err(StoreError::ObjectExists { name }),
            },
            other => other,
        }
    }

    /// Attaches an object for a client, until it detaches it or ends. A lease is recorded; its file
    /// can be handed out.
    ///
    /// # Errors
    /// [`StoreError::ObjectUnknown`], [`StoreError::ObjectDenied`], [`StoreError::ObjectBusy`] with
    /// the holder's process; no such client.
    pub fn client_attach_object(
        &self,
        client: Uuid,
        credentials: &Credentials,
        name: &str,
        writable: bool,
    ) -> Result<ObjectInfo, StoreError> {
        let inner = self.inner();
        let mut control = inner.begin_write("attach an object for a client")?;
        let info = find(&control, name)?;
        if !credentials.allow_object(&info.record, writable) {
            return Err(credentials.denied(
                &info.record,
                if writable { "attached for writing" } else { "attached for reading" },
            ));
        }
        control.refuse_object_in_use(&info, Some(client), writable)?;
        let object = info.id();
        let has = control.catalog.state.object_leases.get(&(client, object)).copied();
        if has == Some(true) && !writable {
            // That process writes the object, and keeps its lease.
            let pid = control.hosted().get(&client).map_or(0, |hosted| hosted.pid());
            return Err(StoreError::ObjectBusy { name: name.into(), writing: true, pid });
        }
        if has != Some(writable) {
            let mut records = control.introduce(client)?;
            records.push(Record::ObjectLease { client, object, writable });
            inner.commit(&mut control, &records)?;
            control.introduced(client);
        }
        Ok(info)
    }

    /// What a client has attached: the object, and whether for writing.
    ///
    /// # Errors
    /// It does not have it.
    pub fn client_object(
        &self,
        client: Uuid,
        object: Uuid,
    ) -> Result<(ObjectInfo, bool), StoreError> {
        let control = self.inner().control();
        if !control.hosted().contains_key(&client) {
            return Err(StoreError::NoClient { client });
        }
        let state = &control.catalog.state;
        let (Some(writable), Some(record)) =
            (state.object_leases.get(&(client, object)), state.objects.get(&object))
        else {
            return Err(bad("the object was not attached: attach it first"));
        };
        Ok((find(&control, &record.name)?, *writable))
    }

    /// Ends a client's use of an object, durably. Nothing to do if it has not attached it.
    ///
    /// # Errors
    /// The medium.
    pub fn client_detach_object(&self, client: Uuid, object: Uuid) -> Result<(), StoreError> {
        let inner = self.inner();
        let mut control = inner.begin_write("detach an object for a client")?;
        if !control.catalog.state.object_leases.contains_key(&(client, object)) {
            return Ok(());
        }
        inner.commit(&mut control, &[Record::ObjectLeaseEnded { client, object }])
    }

    /// Whether an object is attached, and for writing.
    #[must_use]
    pub fn object_use(&self, object: Uuid) -> Option<bool> {
        let control = self.inner().control();
        let leases = control.catalog.state.object_leases.iter();
        leases.filter(|((_, of), _)| *of == object).map(|(_, writes)| *writes).max()
    }

    /// Clients that have an object attached. A caller that wants the object may have to wait for
    /// the end of those whose processes have ended.
    #[must_use]
    pub fn object_holders(&self, name: &str) -> Vec<Uuid> {
        let control = self.inner().control();
        let state = &control.catalog.state;
        let Some(object) = state.object_names.get(name) else { return Vec::new() };
        state
            .object_leases
            .keys()
            .filter(|(_, of)| of == object)
            .map(|(client, _)| *client)
            .collect()
    }

    /// Removes an object for a client whose user may write it. No client has it attached, not even
    /// this one.
    ///
    /// # Errors
    /// As [`Store::client_attach_object`].
    ///
    /// # Safety
    /// This process does not have the object attached. (That no client has it is checked.)
    pub unsafe fn client_remove_object(
        &self,
        credentials: &Credentials,
        name: &str,
    ) -> Result<Uuid, StoreError> {
        let inner = self.inner();
        let mut control = inner.begin_write("remove an object")?;
        let info = find(&control, name)?;
        if !credentials.allow_object(&info.record, true) {
            return Err(credentials.denied(&info.record, "removed"));
        }
        control.refuse_object_in_use(&info, None, true)?;
        self.remove_object_in(&mut control, name)?;
        Ok(info.id())
    }

    /// Changes an object's owner, group or mode, durably. Clients that have it attached keep it.
    ///
    /// # Errors
    /// [`StoreError::ObjectUnknown`]; [`StoreError::ObjectDenied`]: the caller is neither its owner
    /// nor the superuser, or gives it away without being the latter; bits beyond 0o777.
    pub fn set_object_owner(
        &self,
        credentials: &Credentials,
        name: &str,
        change: crate::credentials::PermissionChange,
    ) -> Result<(), StoreError> {
        let inner = self.inner();
        if let Some(connection) = inner.connection() {
            inner.check_usable()?;
            return connection.daemon.set_object_owner(name, change);
        }
        let mut control = inner.begin_write("change an object")?;
        let mut record = find(&control, name)?.record;
        let own = credentials.uid == 0 || credentials.uid == record.uid;
        if !own || !credentials.may_give(&change, (record.uid, record.gid)) {
            return Err(credentials.denied(&record, "given other permissions"));
        }
        change.permissions.map_or(Ok(()), no_bits_but_permissions)?;
        record.uid = change.uid.unwrap_or(record.uid);
        record.gid = change.gid.unwrap_or(record.gid);
        record.permissions = change.permissions.unwrap_or(record.permissions);
        inner.commit(&mut control, &[Record::Object(record)])
    }

    /// A descriptor of an object's file, to be read, to be given away.
    ///
    /// # Errors
    /// The medium has no descriptors, or reports an error.
    pub fn grant_object_file(&self, object: &ObjectInfo) -> Result<File, StoreError> {
        self.grant_named(&object.file(), false)
    }
}
