//! Objects through a daemon, on the daemon's side: it has the files and the journal, and its
//! clients have memory (PMO-2 across processes, PUD-13).
//!
//! *Attach*:
//!
//! 1. The lease is recorded (`cenote_store::client_objects`).
//! 2. Committed records are brought into the file.
//! 3. The header gets the process that writes.
//! 4. The client gets a descriptor for reading, which it maps privately.
//!
//! *Psync*:
//!
//! 1. The client sends the pages that were stored into, or the sealed lines of a protected object,
//!    in a transfer ([`cenote_journal::Transfer`]).
//! 2. They are compared with what was committed last, and journalled: the states P and C of the
//!    crate's front page, in this process.
//!
//! *Detach*: committed records are brought into the file, the header gets "detached", and the lease
//! ends.
//!
//! *What a client can damage* is its own object, and only the lines that its psyncs name: it has no
//! writable descriptor of any file, and every line is checked to lie in an object that it has
//! attached for writing. Keys and plaintext of protected objects stay in the client; the transfer
//! has sealed pages, and their tree.
//!
//! *A client that dies* loses its shadow, which was its private memory. Its answered psyncs are
//! committed; the last one may be committed without an answer. Its lease ends with its session, so
//! the next attach waits until that is settled; the header tells how the client ended
//! ([`FoundState`]).
//!
//! *A daemon that dies* is followed by one that reads the leases from the catalog, and recovers the
//! journal before it answers. A client sends a psync again that was not answered: pages are
//! compared, so one that was committed changes nothing.

use crate::at_rest;
use crate::copied;
use crate::error::ObjectError;
use crate::header::{self, Writer};
use crate::objects::Objects;
use crate::options::Permission;
use crate::shared::{files, rooted};
use cenote_journal::{ApplyTarget, Delivered, Limits, TransferError, distinct};
use cenote_layout::catalog::AtRest;
use cenote_layout::error_kind::ErrorKind;
use cenote_layout::id::Uuid;
use cenote_layout::object::ObjectState;
use cenote_medium::FileHandle;
use cenote_medium::planted::{Bug, Step, planted, reach};
use cenote_store::{Credentials, ListedObject, NewObject, ObjectInfo, Store, StoreError};
use core::ops::Deref;
use std::collections::BTreeSet;
use std::fs::File;
use std::sync::{Arc, MutexGuard, PoisonError};

/// Most bytes that one psync of a client may come to: they are in the daemon's memory.
const TRANSFER_LEN_MAX: u64 = 1 << 30;
/// Identities of objects that are gone which are kept in mind, until the journal is trimmed of all.
const REMOVED_MAX: usize = 1024;
/// Most objects of one psync.
const OBJECTS_MAX: usize = 1024;

/// A client, and its process.
#[derive(Clone, Copy, Debug)]
pub struct HostedClient<'a> {
    /// Its session.
    pub client: Uuid,
    /// Its process.
    pub pid: u32,
    /// When that started.
    pub start_ticks: u64,
    /// What it may do.
    pub credentials: &'a Credentials,
}

/// The objects of a store that has clients: what a daemon does for them.
///
/// The store's leases list the objects that clients have attached. A table of this process lists
/// its own. Neither is asked for the other.
#[derive(Clone, Debug)]
pub struct Host(Objects);

impl Deref for Host {
    type Target = Objects;

    fn deref(&self) -> &Objects {
        &self.0
    }
}

impl Host {
    /// The objects of a store, for its clients.
    ///
    /// # Safety
    /// No object is attached in this process while a client has it, or removes it. A client's psync
    /// changes the object's file, which may be mapped under a reference.
    #[must_use]
    pub unsafe fn of(objects: Objects) -> Self {
        Self(objects)
    }

    fn raw(&self) -> &Store {
        &self.shared().store
    }

    /// Creates an object for a client.
    ///
    /// # Errors
    /// As [`cenote_store::Store::client_create_object`].
    pub fn create_for(
        &self,
        hosted_client: &HostedClient<'_>,
        new: &NewObject,
    ) -> Result<ObjectInfo, ObjectError> {
        // Before the object, so that an object is never without a journal.
        self.shared().journal()?;
        // Held until it is there: one of this identity may be about to be removed.
        let removed = self.removed();
        if removed.contains(&new.id) {
            // Records of the one that had this identity would be applied to this one.
            return Err(StoreError::ObjectExists { name: new.name.clone() }.into());
        }
        reach(Step::IdentityLookedUp);
        Ok(self.raw().client_create_object(hosted_client.credentials, new)?)
    }

    /// Removes an object for a client.
    ///
    /// # Errors
    /// As [`cenote_store::Store::client_remove_object`].
    pub fn destroy_for(
        &self,
        hosted_client: &HostedClient<'_>,
        name: &str,
    ) -> Result<(), ObjectError> {
        if let Ok(info) = self.raw().object(name) {
            let journal = self.shared().journal()?;
            let mut removed = self.removed();
            if removed.len() >= REMOVED_MAX {
                journal.trim_all()?;
                removed.clear();
            }
            removed.insert(info.id());
        }
        // SAFETY: this process does not have attached what a client removes: `Host::of`.
        let object = unsafe { self.raw().client_remove_object(hosted_client.credentials, name) }?;
        if let Some(journal) = self.shared().journal_if_any() {
            journal.forget(object);
        }
        Ok(())
    }

    /// Attaches an object for a client: what is known of it, and its file, for reading.
    ///
    /// # Errors
    /// As [`cenote_store::Store::client_attach_object`]; a damaged file; the medium. The client
    /// does not have it then.
    pub fn attach_for(
        &self,
        hosted_client: &HostedClient<'_>,
        name: &str,
        permission: Permission,
    ) -> Result<(ListedObject, File), ObjectError> {
        let store = self.raw();
        let writable = permission == Permission::ReadWrite;
        let held = store.object_holders(name).contains(&hosted_client.client);
        let info = store.client_attach_object(
            hosted_client.client,
            hosted_client.credentials,
            name,
            writable,
        )?;
        let granted = self.hand_out(hosted_client, &info, writable, held);
        granted.inspect_err(|_| {
            if !held {
                // It never had it. Should this fail too, the lease ends with the client.
                let _ = store.client_detach_object(hosted_client.client, info.id());
            }
        })
    }

    fn hand_out(
        &self,
        hosted_client: &HostedClient<'_>,
        info: &ObjectInfo,
        writable: bool,
        held: bool,
    ) -> Result<(ListedObject, File), ObjectError> {
        let (shared, store) = (self.shared(), self.raw());
        store.verify_object(info)?;
        copied::refuse_unshown(shared, info)?;
        self.settle(info.id())?;
        let primary = FileHandle::open(files(store), &info.file())?;
        if !held {
            // No other client psyncs it: the file is as the journal lists it.
            at_rest::check_file(shared, info, &primary)?;
        }
        let medium = &**store.medium();
        let writer = Writer { pid: hosted_client.pid, start_ticks: hosted_client.start_ticks };
        let asks = writable.then_some(writer);
        let found = header::found(&primary, info.header_offset(), info.id(), medium, asks)?;
        if writable {
            shared.journal()?;
            store.mark_object(info, &primary)?;
            header::write(&primary, info.header_offset(), info.id(), Some(writer), medium)?;
        }
        let state = if writable { ObjectState::Write } else { ObjectState::Read };
        let unchecked = store.is_unchecked_object(info.id());
        let (state, found) = (state as u32, found.to_code());
        let listed = ListedObject { object: info.clone(), state, found, unchecked };
        Ok((listed, store.grant_object_file(info)?))
    }

    fn removed(&self) -> MutexGuard<'_, BTreeSet<Uuid>> {
        self.shared().removed.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Brings what is committed of an object into its file.
    fn settle(&self, object: Uuid) -> Result<(), ObjectError> {
        match self.shared().journal_if_any() {
            Some(journal) if !planted(Bug::DetachNotSettled) => Ok(journal.settle(object)?),
            _ => Ok(()),
        }
    }

    /// Ends a client's use of an object.
    ///
    /// # Errors
    /// What was psynced could not be brought to the file; the medium.
    pub fn detach_for(
        &self,
        hosted_client: &HostedClient<'_>,
        object: Uuid,
    ) -> Result<(), ObjectError> {
        let store = self.raw();
        let Ok((info, writable)) = store.client_object(hosted_client.client, object) else {
            return Ok(());
        };
        self.settle(object)?;
        if writable {
            let primary = FileHandle::open(files(store), &info.file())?;
            header::write(&primary, info.header_offset(), object, None, &**store.medium())?;
        }
        Ok(store.client_detach_object(hosted_client.client, object)?)
    }

    /// Psyncs objects that a client has attached for writing; `settled`: on return their files hold
    /// it.
    ///
    /// # Errors
    /// It does not have one of them so; the transfer makes no sense; as of any psync.
    pub fn psync_for(
        &self,
        hosted_client: &HostedClient<'_>,
        objects: &[Uuid],
        (transfer, runs): (&File, u32),
        settled: bool,
    ) -> Result<Delivered, ObjectError> {
        let (shared, store) = (self.shared(), self.raw());
        store.check_usable()?;
        if objects.is_empty() || objects.len() > OBJECTS_MAX {
            return Err(StoreError::Refused {
                kind: ErrorKind::Misuse,
                detail: "one psync takes 1 to 1024 objects".into(),
            }
            .into());
        }
        distinct(objects, OBJECTS_MAX).map_err(of_transfer)?;
        let mut targets = Vec::with_capacity(objects.len());
        for object in objects {
            let (info, writable) = store.client_object(hosted_client.client, *object)?;
            if !writable {
                return Err(ObjectError::ReadOnly { name: info.record.name });
            }
            let file = Arc::new(FileHandle::open(files(store), &info.file())?);
            let lines = info.record.at_rest != AtRest::None;
            // Sealed lines may be any of its body, others are pages of its data.
            let len = if lines { info.body_len() } else { info.record.span() };
            let target = ApplyTarget {
                id: info.id(),
                file,
                data_offset: info.data_offset(),
                rooted: rooted(&info),
            };
            targets.push((target, Limits { from: 0, len, lines }));
        }
        let journal = shared.journal()?;
        let done = journal
            .psync_transfer(targets, transfer, runs, TRANSFER_LEN_MAX)
            .map_err(of_transfer)?;
        if settled {
            objects.iter().try_for_each(|object| self.settle(*object))?;
        }
        Ok(done)
    }

    /// The facts about objects, for a client: of all with a name behind `after`, at most `most`, or
    /// of the one called `name`.
    ///
    /// # Errors
    /// There is none of that name; a header cannot be read.
    pub fn listed(
        &self,
        name: Option<&str>,
        after: Option<&str>,
        most: usize,
    ) -> Result<Vec<ListedObject>, ObjectError> {
        let objects = match name {
            Some(name) => vec![self.raw().object(name)?],
            None => self.raw().objects(),
        };
        let page =
            objects.into_iter().filter(|info| after.is_none_or(|after| *info.record.name > *after));
        page.take(most).map(|info| self.list_one(info)).collect()
    }

    fn list_one(&self, info: ObjectInfo) -> Result<ListedObject, ObjectError> {
        let used = self.raw().object_use(info.id());
        let info = self.info_of(info)?;
        let state = match used {
            Some(true) => ObjectState::Write,
            Some(false) => ObjectState::Read,
            None => info.state,
        };
        let unchecked = self.raw().is_unchecked_object(info.object.id());
        let (state, found) = (state as u32, info.found.to_code());
        Ok(ListedObject { object: info.object, state, found, unchecked })
    }
}

fn of_transfer(error: TransferError) -> ObjectError {
    match error {
        TransferError::TooLarge { limit } => {
            ObjectError::PsyncTooLarge { needed: limit + 1, limit }
        }
        TransferError::Medium(error) => error.into(),
        TransferError::Journal(error) => error.into(),
        other => StoreError::Refused { kind: ErrorKind::Misuse, detail: other.to_string() }.into(),
    }
}
