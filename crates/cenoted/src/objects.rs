//! What a client asks about objects. As in `requests.rs`, everything in a request is an allegation;
//! `cenote_object` checks it against the catalog.

use crate::answers::{Answer, PAGE_LEN, done, malformed, refusal, refused_as};
use crate::session::Session;
use crate::settling::settle_those;
use crate::shared::Shared;
use crate::spending::spend;
use cenote_object::{Host, HostedClient, ObjectError, Objects, ObjectsOptions, Permission};
use cenote_proto::{ObjectItem, Refusal, Reply, Request};
use cenote_store::{Credentials, Handle, ListedObject, NewObject, PermissionChange, StoreError};
use std::sync::PoisonError;

/// Objects of a page: none takes more than 512 bytes.
const OBJECTS_OF_A_PAGE: usize = PAGE_LEN / 512;

/// The store's objects. The first request recovers their journal; no client has an object attached
/// before.
fn objects_of(shared: &Shared) -> Result<&Host, ObjectError> {
    let _opening = shared.opening.lock().unwrap_or_else(PoisonError::into_inner);
    if let Some(objects) = shared.objects.get() {
        return Ok(objects);
    }
    // SAFETY: this daemon has objects only as their host (below) and opens no heap. Clients reach
    // the store only by requests, which the daemon checks.
    let store = unsafe { Handle::of(&shared.store) };
    let opened = Objects::open(&store, &ObjectsOptions::default())?;
    // SAFETY: the daemon attaches no object.
    let opened = unsafe { Host::of(opened) };
    Ok(shared.objects.get_or_init(|| opened))
}

/// Answers a request about objects.
pub(crate) fn answer(
    shared: &Shared,
    session: &Session,
    credentials: &Credentials,
    request: Request,
) -> Result<Answer, Refusal> {
    let objects = objects_of(shared).map_err(refused)?;
    let hosted_client = HostedClient {
        client: session.client,
        pid: session.pid,
        start_ticks: session.start_ticks,
        credentials,
    };
    match request {
        Request::Objects { after } => {
            let listed =
                objects.listed(None, after.as_deref(), OBJECTS_OF_A_PAGE + 1).map_err(refused)?;
            let more = listed.len() > OBJECTS_OF_A_PAGE;
            let items = listed.into_iter().take(OBJECTS_OF_A_PAGE).map(item).collect();
            Ok((Reply::Objects { items, more }, Vec::new()))
        }
        Request::Object { name } => one(objects.listed(Some(&name), None, 1).map_err(refused)?),
        Request::CreateObject { id, name, data_len, permissions, at_rest, header } => {
            let spent = spend(shared, session, session.uid, data_len)?;
            let new = NewObject { id, name, data_len, permissions, at_rest, header };
            objects.create_for(&hosted_client, &new).map_err(refused)?;
            spent.keep();
            one(objects.listed(Some(&new.name), None, 1).map_err(refused)?)
        }
        Request::DestroyObject { name } => {
            settle_those(shared, || shared.store.object_holders(&name));
            objects.destroy_for(&hosted_client, &name).map_err(refused)?;
            done()
        }
        Request::AttachObject { name, writable } => {
            settle_those(shared, || shared.store.object_holders(&name));
            let permission = if writable { Permission::ReadWrite } else { Permission::Read };
            let (listed, file) =
                objects.attach_for(&hosted_client, &name, permission).map_err(refused)?;
            let (reply, _) = one(vec![listed])?;
            Ok((reply, vec![file.into()]))
        }
        Request::DetachObject { object } => {
            objects.detach_for(&hosted_client, object).map_err(refused)?;
            done()
        }
        Request::PsyncObjects { transfer, objects: ids, runs, settled } => {
            let transfer = session.transfers.take(transfer).ok_or(Refusal::NoTransfer)?;
            let psynced = objects
                .psync_for(&hosted_client, &ids, (&transfer, runs), settled)
                .map_err(refused)?;
            let (seq, pages) = (psynced.seq, psynced.pages);
            let (data_bytes, journal_bytes) = (psynced.data_bytes, psynced.journal_bytes);
            Ok((Reply::Psynced { seq, pages, data_bytes, journal_bytes }, Vec::new()))
        }
        Request::SetObjectOwner { name, uid, gid, permissions } => {
            let change = PermissionChange { uid, gid, permissions };
            shared.store.set_object_owner(credentials, &name, change).map_err(refusal)?;
            done()
        }
        _ => Err(malformed("it is no request about objects")),
    }
}

fn one(listed: Vec<ListedObject>) -> Result<Answer, Refusal> {
    Ok((Reply::Objects { items: listed.into_iter().map(item).collect(), more: false }, Vec::new()))
}

fn item(listed: ListedObject) -> ObjectItem {
    let ListedObject { object, state, found, unchecked } = listed;
    ObjectItem {
        record: object.record,
        addr: object.addr,
        size: object.size,
        state,
        found,
        unchecked,
    }
}

fn refused(error: ObjectError) -> Refusal {
    match error {
        ObjectError::Store(error) => refusal(error),
        ObjectError::Medium(error) => refusal(StoreError::Medium(error)),
        ObjectError::PsyncTooLarge { limit, .. } => Refusal::PsyncTooLarge { limit },
        other => {
            let kind = other.kind();
            refused_as(kind, other)
        }
    }
}
