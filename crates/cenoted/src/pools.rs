//! Requests about pools as a whole: made, granted, removed, changed.

use cenote_layout::id::Uuid;
use cenote_log::CrashKind;
use cenote_proto::{PoolSpec, Refusal, Reply, Request};
use cenote_store::{Access, Credentials, PermissionChange, PoolOptions, PoolStart};

use crate::answers::{Answer, done, malformed, refusal, short};
use crate::log::say;
use crate::session::Session;
use crate::settling::{granted, settle};
use crate::shared::Shared;
use crate::spending::{Spent, spend};

/// Answers a request about a pool.
pub(crate) fn answer(
    shared: &Shared,
    session: &Session,
    credentials: &Credentials,
    request: Request,
) -> Result<Answer, Refusal> {
    let (store, client) = (&shared.store, session.client);
    match request {
        Request::CreatePool { name, spec, token } => {
            // Asked again because the answer was lost: it was counted with the first one.
            let again = store.client_has_made(client, token);
            let spent = if again {
                None
            } else {
                Some(spend(shared, session, session.uid, spec.puddle_size)?)
            };
            let made = store.client_create((client, token), credentials, &name, &options_of(&spec));
            let id = made.map_err(refusal)?;
            spent.into_iter().for_each(Spent::keep);
            Ok((Reply::Created(id), Vec::new()))
        }
        Request::RemovePool { name } => {
            // A holder that has died is recovered first.
            granted(shared, (client, credentials), &name, || {
                store.client_remove(client, credentials, &name)
            })?;
            done()
        }
        Request::OpenPool { name, writable } => {
            let access = if writable { Access::ReadWrite } else { Access::ReadOnly };
            open(shared, client, credentials, &name, access)
        }
        Request::SharePool { name } => open(shared, client, credentials, &name, Access::Shared),
        Request::Members { pool } => {
            settle(shared, client, pool);
            let members = store.client_members(client, pool).map_err(refusal)?;
            let (living, doubts) = (members.living, short(members.doubts));
            Ok((Reply::Members { living, doubts }, Vec::new()))
        }
        Request::TraceDone { pool } => {
            store.client_traced(client, pool).map_err(refusal)?;
            done()
        }
        Request::SetPermissions { name, uid, gid, permissions } => {
            let change = PermissionChange { uid, gid, permissions };
            store.set_permissions(credentials, &name, change).map_err(refusal)?;
            done()
        }
        Request::DeclareWhole { name } => {
            // SAFETY: the owner of the pool has asked for it, whose library asks for `unsafe`
            // before.
            unsafe { store.declare_whole(credentials, &name) }.map_err(refusal)?;
            tracing::warn!(
                uid = credentials.uid,
                pool = name,
                "a pool that may be torn is declared whole"
            );
            done()
        }
        _ => Err(malformed("it names no pool")),
    }
}

fn options_of(spec: &PoolSpec) -> PoolOptions {
    PoolOptions {
        heap: spec.heap,
        mode: spec.mode,
        puddle_size: spec.puddle_size,
        size_max: spec.size_max,
        permissions: spec.permissions,
        ..PoolOptions::default()
    }
}

fn open(
    shared: &Shared,
    client: Uuid,
    credentials: &Credentials,
    name: &str,
    access: Access,
) -> Result<Answer, Refusal> {
    let want = || shared.store.client_open(client, credentials, name, access);
    let grant = granted(shared, (client, credentials), name, want)?;
    let start = match grant.start {
        PoolStart::Fresh => 0,
        PoolStart::Clean => 1,
        PoolStart::Dirty(CrashKind::Process) => 2,
        PoolStart::Dirty(CrashKind::Power) => 3,
    };
    shared.metrics.grants.add(1);
    let uid = credentials.uid;
    say!(shared, Grants, DEBUG, %client, uid, "granted pool {name:?}: {access:?}");
    let (record, trace_due, types) = (grant.record, grant.trace_due, grant.types);
    let doubts = short(grant.doubts);
    let reply = match grant.member {
        Some(member) => Reply::Shared { record, start, trace_due, doubts, types, member },
        None => Reply::Pool { record, start, trace_due, doubts, types },
    };
    Ok((reply, Vec::new()))
}
