//! What a client asks, done and answered. Everything in a request is an allegation: names, ids, sizes and ranges are checked against the catalog, under its lock, by
//! [`cenote_store`]'s operations for guests; the session and its credentials come from the kernel.

use crate::backup;
use crate::log::say;
use crate::quotas::{Spent, spend, spend_types};
use crate::server::Shared;
use crate::sessions::Session;
use crate::{metrics, overview};
use cenote_layout::catalog::PuddleRecord;
use cenote_layout::id::{PoolId, TypeId, Uuid};
use cenote_layout::puddle::Role;
use cenote_layout::types::TypeRecord;
use cenote_log::CrashKind;
use cenote_medium::Durability;
use cenote_proto::{
    DESCRIPTORS_MAX, MESSAGE_LEN_MAX, MediumText, PoolItem, PoolSpec, Refusal, Reply, Request, SetAsideItem,
};
use cenote_store::{Access, Credentials, LogDecision, PermissionChange, PoolOptions, PoolStart, StoreError};
use std::os::fd::OwnedFd;
use std::time::{Duration, Instant};

/// Bytes of a page of a list: what is left of a message for the rest.
pub(crate) const PAGE_LEN: usize = MESSAGE_LEN_MAX - 4096;
/// Pools of a page: none takes more than 512 bytes.
const POOLS_OF_A_PAGE: usize = 100;
/// How long a grant waits for the recovery of those who had the pool.
const ENDING: Duration = Duration::from_secs(10);

pub(crate) type Answer = (Reply, Vec<OwnedFd>);

/// What a client learns at first.
pub(crate) fn welcome(shared: &Shared, client: Uuid) -> Reply {
    let store = &shared.store;
    let (window_base, window_len) = store.window();
    let info = store.medium().describe();
    Reply::Welcome {
        client,
        store: store.uuid(),
        window_base,
        window_len,
        medium: MediumText {
            path: info.path.chars().take(4096).collect(),
            kind: info.kind.to_string(),
            fs: info.fs,
            power: info.durability == Durability::Power,
            note: info.note,
        },
        power: store.durability() == Durability::Power,
    }
}

/// Does what a request asks.
pub(crate) fn answer(
    shared: &Shared,
    session: &Session,
    credentials: &Credentials,
    request: Request,
) -> Answer {
    shared.metrics.request(&request);
    let kind = Request::KINDS.get(request.kind()).copied().unwrap_or_default();
    match try_answer(shared, session, credentials, request) {
        Ok(answer) => answer,
        Err(refusal) => {
            shared.metrics.refusal(&refusal);
            say!(
                shared,
                Refusals,
                DEBUG,
                pid = session.pid,
                uid = session.uid,
                "refused {kind}: {refusal:?}"
            );
            if matches!(refusal, Refusal::Other { .. }) {
                // Because the store is of no use any more, perhaps.
                shared.look();
            }
            (Reply::Refused(refusal), Vec::new())
        }
    }
}

pub(crate) fn done() -> Result<Answer, Refusal> {
    Ok((Reply::Done, Vec::new()))
}

fn try_answer(
    shared: &Shared,
    session: &Session,
    credentials: &Credentials,
    request: Request,
) -> Result<Answer, Refusal> {
    let (store, client) = (&shared.store, session.client);
    match request {
        Request::Objects { .. }
        | Request::Object { .. }
        | Request::CreateObject { .. }
        | Request::DestroyObject { .. }
        | Request::AttachObject { .. }
        | Request::DetachObject { .. }
        | Request::PsyncObjects { .. }
        | Request::SetObjectOwner { .. } => crate::objects::answer(shared, session, credentials, request),
        Request::Places { .. }
        | Request::ClonePool { .. }
        | Request::RandomizePool { .. }
        | Request::BeginImport { .. }
        | Request::FillImport { .. }
        | Request::CommitImport { .. }
        | Request::AbandonImport { .. } => crate::imports::answer(shared, session, credentials, request),
        Request::Primaries { pool, first } => {
            let (mut records, _) =
                store.guest_puddles(client, pool, first, DESCRIPTORS_MAX + 1).map_err(refusal)?;
            let more = records.len() > DESCRIPTORS_MAX;
            records.truncate(DESCRIPTORS_MAX);
            let descriptor = |record: &PuddleRecord| store.guest_primary(client, record).map(OwnedFd::from);
            let files = records.iter().map(descriptor).collect::<Result<Vec<_>, _>>().map_err(refusal)?;
            Ok((Reply::Puddles { records, more }, files))
        }
        Request::Parcel => {
            let (number, file) = session.parcels.add().map_err(|error| refusal(failed_parcel(error)))?;
            Ok((Reply::Parcel { number }, vec![file]))
        }
        Request::PsyncPools { parcel, puddles, runs } => {
            let parcel = session.parcels.take(parcel).ok_or(Refusal::NoParcel)?;
            let done = store.guest_psync(client, &puddles, (&parcel, runs)).map_err(refusal)?;
            let (seq, pages, data_bytes, journal_bytes) =
                (done.seq, done.pages, done.data_bytes, done.journal_bytes);
            Ok((Reply::Psynced { seq, pages, data_bytes, journal_bytes }, Vec::new()))
        }
        Request::Ping => done(),
        Request::Attend | Request::Backup { .. } => backup::answer(shared, session, credentials, request),
        Request::Stat => Ok((Reply::Stat(overview::stat(shared, session)), Vec::new())),
        Request::Clients { after } => Ok((overview::clients(shared, after), Vec::new())),
        Request::Metrics => Ok((Reply::Metrics { text: metrics::page(shared) }, Vec::new())),
        Request::Pools { after } => Ok((pools(shared, after), Vec::new())),
        Request::CreatePool { name, spec, token } => {
            // Asked again because the answer was lost: it was counted with the first one.
            let again = store.guest_has_made(client, token);
            let spent =
                if again { None } else { Some(spend(shared, session, session.uid, spec.puddle_size)?) };
            let made = store.guest_create((client, token), credentials, &name, &options_of(&spec));
            let id = made.map_err(refusal)?;
            spent.into_iter().for_each(Spent::keep);
            Ok((Reply::Created(id), Vec::new()))
        }
        Request::RemovePool { name } => {
            remove(shared, client, credentials, &name)?;
            done()
        }
        Request::OpenPool { name, writable } => {
            let access = if writable { Access::ReadWrite } else { Access::ReadOnly };
            open(shared, client, credentials, &name, access)
        }
        Request::SharePool { name } => open(shared, client, credentials, &name, Access::Shared),
        Request::Members { pool } => {
            settle(shared, client, pool);
            let members = store.guest_members(client, pool).map_err(refusal)?;
            let (living, doubts) = (members.living, short(members.doubts));
            Ok((Reply::Members { living, doubts }, Vec::new()))
        }
        Request::Puddles { pool, first } => {
            let (mut records, writable) =
                store.guest_puddles(client, pool, first, DESCRIPTORS_MAX + 1).map_err(refusal)?;
            let more = records.len() > DESCRIPTORS_MAX;
            records.truncate(DESCRIPTORS_MAX);
            give(shared, records, writable, more)
        }
        Request::TakePuddle { pool, index, size } => {
            settle(shared, client, pool);
            let (there, _) = store.guest_puddles(client, pool, index, 1).map_err(refusal)?;
            let (record, ready) = match there.first() {
                // Its answer was lost.
                Some(record) if record.index == index && record.size == size => (*record, None),
                Some(_) => return Err(malformed("the pool has another puddle of that number")),
                None => {
                    // Of the pool, whoever lets it grow.
                    let owner = store.owner_of(pool).unwrap_or(session.uid);
                    let spent = spend(shared, session, owner, size)?;
                    let taken = store.guest_take(client, pool, size).map_err(refusal)?;
                    spent.keep();
                    taken
                }
            };
            if let Some(file) = ready {
                shared.metrics.granted(&[record]);
                return Ok((Reply::Puddles { records: vec![record], more: false }, vec![file.into()]));
            }
            // A lease for reading is refused by `guest_take`, and must not get a writable descriptor here.
            let (_, writable) = store.guest_puddles(client, pool, index, 1).map_err(refusal)?;
            give(shared, vec![record], writable, false)
        }
        Request::LogSpace => {
            let record = store.guest_log(client, Role::LogSpace, 0).map_err(refusal)?;
            give(shared, vec![record], true, false)
        }
        Request::LogPuddle { size } => {
            let spent = spend(shared, session, session.uid, size)?;
            let record = store.guest_log(client, Role::Log, size).map_err(refusal)?;
            spent.keep();
            give(shared, vec![record], true, false)
        }
        Request::Types { after } => Ok((types(shared, after), Vec::new())),
        Request::RegisterTypes { records } => {
            spend_types(shared, session, &records)?;
            let records: Vec<&TypeRecord> = records.iter().collect();
            store.register_types(&records).map_err(refusal)?;
            done()
        }
        Request::TraceDone { pool } => {
            store.guest_traced(client, pool).map_err(refusal)?;
            done()
        }
        Request::EnsureSpace { pool, addr, len } => {
            settle(shared, client, pool);
            store.guest_ensure(client, pool, addr, len).map_err(refusal)?;
            done()
        }
        Request::SetPermissions { name, uid, gid, permissions } => {
            let change = PermissionChange { uid, gid, permissions };
            store.set_permissions(credentials, &name, change).map_err(refusal)?;
            done()
        }
        Request::SetAside => Ok((set_aside(shared, credentials), Vec::new())),
        Request::DecideLogs { client, apply } => {
            let decision = if apply { LogDecision::Apply } else { LogDecision::Discard };
            store.decide_logs(credentials, client, decision).map_err(refusal)?;
            tracing::warn!(uid = credentials.uid, %client, "logs that were set aside are decided about: {decision:?}");
            done()
        }
        Request::DeclareWhole { name } => {
            // SAFETY: the owner of the pool has asked for it, whose library asks for `unsafe`
            // before.
            unsafe { store.declare_whole(credentials, &name) }.map_err(refusal)?;
            tracing::warn!(uid = credentials.uid, pool = name, "a pool that may be torn is declared whole");
            done()
        }
        Request::Hello { .. } | Request::Goodbye => Err(malformed("the session has begun already")),
    }
}

fn failed_parcel(error: std::io::Error) -> StoreError {
    StoreError::Refused { detail: format!("a file in memory cannot be made: {error}") }
}

pub(crate) fn malformed(detail: &str) -> Refusal {
    Refusal::Malformed { detail: detail.into() }
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
    let want = || shared.store.guest_open(client, credentials, name, access);
    let grant = granted(shared, (client, credentials), name, want)?;
    let start = match grant.start {
        PoolStart::Fresh => 0,
        PoolStart::Clean => 1,
        PoolStart::Dirty(CrashKind::Process) => 2,
        PoolStart::Dirty(CrashKind::Power) => 3,
    };
    shared.metrics.grants.add(1);
    say!(shared, Grants, DEBUG, %client, uid = credentials.uid, "granted pool {name:?}: {access:?}");
    let (record, trace_due, types) = (grant.record, grant.trace_due, grant.types);
    let doubts = short(grant.doubts);
    let reply = match grant.member {
        Some(member) => Reply::Shared { record, start, trace_due, doubts, types, member },
        None => Reply::Pool { record, start, trace_due, doubts, types },
    };
    Ok((reply, Vec::new()))
}

/// What is wanted of a pool, as soon as it can be had. Whoever has the pool may be dead, and its logs about to be replayed; the daemon itself may be copying it, or rewriting its pointers for another; and of one that has moved they
/// are rewritten here, for who may read it.
pub(crate) fn granted<R>(
    shared: &Shared,
    (client, credentials): (Uuid, &Credentials),
    name: &str,
    want: impl Fn() -> Result<R, StoreError>,
) -> Result<R, Refusal> {
    let began = Instant::now();
    if let Ok(pool) = shared.store.pool_id(name) {
        settle(shared, client, pool);
    }
    loop {
        let error = match want() {
            Ok(got) => return Ok(got),
            Err(error) => error,
        };
        let over = began.elapsed() > ENDING;
        match error {
            StoreError::PoolBusy { name, .. } | StoreError::PoolInUse { name }
                if !over && (ending(shared, &name) || shared.store.is_held(&name)) =>
            {
                std::thread::sleep(Duration::from_micros(500));
            }
            StoreError::RelocationDue { .. } if !over => match shared.store.guest_finish(credentials, name) {
                Ok(rewritten) => shared.metrics.rewritten(&rewritten),
                Err(StoreError::PoolBusy { .. }) => std::thread::sleep(Duration::from_micros(500)),
                Err(error) => return Err(refusal(error)),
            },
            error => return Err(refusal(error)),
        }
    }
}

/// Whether somebody who has the pool is about to have it no more.
fn ending(shared: &Shared, name: &str) -> bool {
    let holders = shared.store.pool_id(name).map(|pool| shared.store.guest_holders(pool));
    holders.is_ok_and(|holders| shared.sessions.any_ended_of(&holders))
}

/// Doubts that fit into a message.
fn short(doubts: Vec<String>) -> Vec<String> {
    doubts.into_iter().take(16).map(|text| text.chars().take(1000).collect()).collect()
}

/// Holds the caller until those are recovered that had the pool and whose processes have ended. Where that cannot be, the caller finds them in the pool still.
fn settle(shared: &Shared, client: Uuid, pool: PoolId) {
    settle_those(shared, || {
        let mut holders = shared.store.guest_holders(pool);
        // Who asks has not.
        holders.retain(|holder| *holder != client);
        holders
    });
}

/// The same of whoever holds something.
pub(crate) fn settle_those(shared: &Shared, holders: impl Fn() -> Vec<Uuid>) {
    let began = Instant::now();
    while shared.sessions.any_ended_of(&holders()) && began.elapsed() < ENDING {
        std::thread::sleep(Duration::from_micros(500));
    }
}

/// Logs that are set aside, for those who may decide about them.
fn set_aside(shared: &Shared, credentials: &Credentials) -> Reply {
    let (mut items, mut len) = (Vec::new(), 0);
    for found in shared.store.set_aside_for(credentials) {
        let pools = found.pools.into_iter().take(16).collect();
        let item = SetAsideItem { client: found.client, pools, why: short(found.why) };
        len += cenote_proto::encode(0, &item).map_or(PAGE_LEN, |packet| packet.len());
        if len > PAGE_LEN {
            break;
        }
        items.push(item);
    }
    Reply::SetAside { items }
}

fn remove(shared: &Shared, client: Uuid, credentials: &Credentials, name: &str) -> Result<(), Refusal> {
    shared.store.guest_remove(client, credentials, name).map_err(refusal)
}

/// Puddles with a descriptor each.
fn give(shared: &Shared, records: Vec<PuddleRecord>, writable: bool, more: bool) -> Result<Answer, Refusal> {
    let descriptor = |record: &PuddleRecord| {
        // SAFETY: the guest's lease was looked up: it has the pool, for writing if `writable` says
        // so.
        unsafe { shared.store.grant_file(record, writable) }.map(OwnedFd::from)
    };
    let descriptors = records.iter().map(descriptor).collect::<Result<Vec<_>, _>>().map_err(refusal)?;
    shared.metrics.granted(&records);
    Ok((Reply::Puddles { records, more }, descriptors))
}

fn pools(shared: &Shared, after: Option<PoolId>) -> Reply {
    let listed = shared.store.pools().into_iter();
    let mut items: Vec<PoolItem> = listed
        .filter(|pool| after.is_none_or(|after| pool.record.id > after))
        .take(POOLS_OF_A_PAGE + 1)
        .map(|pool| PoolItem { record: pool.record, bytes: pool.bytes, puddles: pool.puddles })
        .collect();
    let more = items.len() > POOLS_OF_A_PAGE;
    items.truncate(POOLS_OF_A_PAGE);
    Reply::Pools { items, more }
}

fn types(shared: &Shared, after: Option<TypeId>) -> Reply {
    let (mut records, mut len, mut more) = (Vec::new(), 0, false);
    for record in shared.store.types() {
        if after.is_some_and(|after| record.id <= after) {
            continue;
        }
        // What is too long for any message was registered by another way, and cannot be sent by this one.
        let bytes = cenote_proto::encode(0, &*record).map_or(usize::MAX, |packet| packet.len());
        if bytes > PAGE_LEN {
            continue;
        }
        if len + bytes > PAGE_LEN {
            more = true;
            break;
        }
        len += bytes;
        records.push((*record).clone());
    }
    Reply::Types { records, more }
}

/// A store's error as the client hears it; no part of it grows with what the client sent.
pub(crate) fn refusal(error: StoreError) -> Refusal {
    match error {
        StoreError::PoolUnknown { .. } => Refusal::PoolUnknown,
        StoreError::PoolExists { .. } => Refusal::PoolExists,
        StoreError::PoolInUse { .. } => Refusal::PoolInUse,
        StoreError::PoolTorn { .. } => Refusal::PoolTorn,
        StoreError::PoolBusy { by, .. } => Refusal::PoolBusy { by },
        StoreError::Permission { what, .. } => Refusal::Permission { what: what.into() },
        StoreError::PoolFull { wanted, used, size_max, .. } => Refusal::PoolFull { wanted, used, size_max },
        StoreError::TypeMismatch(mismatch) => Refusal::TypeMismatch { known: Box::new(mismatch.known) },
        StoreError::NoGuest { .. } => Refusal::NoSession,
        StoreError::ObjectUnknown { .. } => Refusal::ObjectUnknown,
        StoreError::ObjectExists { .. } => Refusal::ObjectExists,
        StoreError::ObjectBusy { writing, pid, .. } => Refusal::ObjectBusy { writing, pid },
        StoreError::ObjectDenied { what, uid, mode, owner, .. } => {
            Refusal::ObjectDenied { what: what.into(), uid, mode, owner }
        }
        StoreError::WindowFull { .. } => Refusal::NoSpace,
        StoreError::Medium(error) if error.is_no_space() => Refusal::NoSpace,
        StoreError::PsyncTooLarge { limit, .. } => Refusal::PsyncTooLarge { limit },
        StoreError::Import { detail } => Refusal::Import { detail: detail.chars().take(2000).collect() },
        other => Refusal::Other { detail: other.to_string().chars().take(2000).collect() },
    }
}
