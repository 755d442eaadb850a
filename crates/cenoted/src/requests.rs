//! What a client asks, done and answered. Everything in a request is an allegation: names, ids, sizes and ranges are checked against the catalog, under its lock, by
//! [`cenote_store`]'s operations for guests; the session and its credentials come from the kernel.

use crate::log::say;
use crate::metrics::LimitHit;
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
use std::sync::atomic::Ordering;
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
        Request::Stat => Ok((Reply::Stat(overview::stat(shared, session)), Vec::new())),
        Request::Clients { after } => Ok((overview::clients(shared, after), Vec::new())),
        Request::Metrics => Ok((Reply::Metrics { text: metrics::page(shared) }, Vec::new())),
        Request::Pools { after } => Ok((pools(shared, after), Vec::new())),
        Request::CreatePool { name, spec, token } => {
            let spent = spend(shared, session, spec.puddle_size)?;
            let made = store.guest_create((client, token), credentials, &name, &options_of(&spec));
            let id = made.map_err(refusal)?;
            spent.keep();
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
            settle(shared, pool);
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
            settle(shared, pool);
            let (there, _) = store.guest_puddles(client, pool, index, 1).map_err(refusal)?;
            let record = match there.first() {
                // Its answer was lost.
                Some(record) if record.index == index && record.size == size => *record,
                Some(_) => return Err(malformed("the pool has another puddle of that number")),
                None => {
                    let spent = spend(shared, session, size)?;
                    let taken = store.guest_take(client, pool, size).map_err(refusal)?;
                    spent.keep();
                    taken
                }
            };
            // A lease for reading is refused by `guest_take`, and must not get a writable descriptor here.
            let (_, writable) = store.guest_puddles(client, pool, index, 1).map_err(refusal)?;
            give(shared, vec![record], writable, false)
        }
        Request::LogSpace => {
            let record = store.guest_log(client, Role::LogSpace, 0).map_err(refusal)?;
            give(shared, vec![record], true, false)
        }
        Request::LogPuddle { size } => {
            let spent = spend(shared, session, size)?;
            let record = store.guest_log(client, Role::Log, size).map_err(refusal)?;
            spent.keep();
            give(shared, vec![record], true, false)
        }
        Request::Types { after } => Ok((types(shared, after), Vec::new())),
        Request::RegisterTypes { records } => {
            let records: Vec<&TypeRecord> = records.iter().collect();
            store.register_types(&records).map_err(refusal)?;
            done()
        }
        Request::TraceDone { pool } => {
            store.guest_traced(client, pool).map_err(refusal)?;
            done()
        }
        Request::EnsureSpace { pool, addr, len } => {
            settle(shared, pool);
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
        Request::Hello { .. } | Request::Goodbye => Err(malformed("the session has begun already")),
    }
}

fn failed_parcel(error: std::io::Error) -> StoreError {
    StoreError::Refused { detail: format!("a file in memory cannot be made: {error}") }
}

pub(crate) fn malformed(detail: &str) -> Refusal {
    Refusal::Malformed { detail: detail.into() }
}

/// A puddle that a session may make. What is not made is not counted.
#[must_use]
pub(crate) struct Spent<'s> {
    session: &'s Session,
    bytes: u64,
}

impl Spent<'_> {
    /// It has been made.
    pub(crate) fn keep(self) {
        core::mem::forget(self);
    }
}

impl Drop for Spent<'_> {
    fn drop(&mut self) {
        self.session.puddles.fetch_sub(1, Ordering::Relaxed);
        self.session.bytes.fetch_sub(self.bytes, Ordering::Relaxed);
    }
}

/// Counts what a session makes, before it is made.
pub(crate) fn spend<'s>(shared: &Shared, session: &'s Session, bytes: u64) -> Result<Spent<'s>, Refusal> {
    let limits = &shared.limits;
    let add = |counter: &std::sync::atomic::AtomicU64, more: u64, most: u64| {
        let fits = |now: u64| now.checked_add(more).filter(|sum| *sum <= most);
        counter.fetch_update(Ordering::Relaxed, Ordering::Relaxed, fits).is_ok()
    };
    let (hit, what, most) = if !add(&session.puddles, 1, limits.puddles) {
        (LimitHit::Puddles, "puddles", limits.puddles)
    } else if !add(&session.bytes, bytes, limits.bytes) {
        session.puddles.fetch_sub(1, Ordering::Relaxed);
        (LimitHit::Bytes, "bytes of puddles", limits.bytes)
    } else {
        return Ok(Spent { session, bytes });
    };
    shared.metrics.limit(hit);
    say!(
        shared,
        Refusals,
        WARN,
        pid = session.pid,
        uid = session.uid,
        "a client has come to its limit of {most} {what}"
    );
    let detail = format!("this session may make {most} {what} in all, and has come to that");
    Err(Refusal::Limit { detail })
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
    let began = Instant::now();
    if let Ok(pool) = shared.store.pool_id(name) {
        settle(shared, pool);
    }
    let grant = loop {
        match shared.store.guest_open(client, credentials, name, access) {
            // Whoever has it may be dead, and its logs about to be replayed.
            Err(StoreError::PoolBusy { .. }) if shared.sessions.any_ending() && began.elapsed() < ENDING => {
                std::thread::sleep(Duration::from_micros(500));
            }
            other => break other.map_err(refusal)?,
        }
    };
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

/// Doubts that fit into a message.
fn short(doubts: Vec<String>) -> Vec<String> {
    doubts.into_iter().take(16).map(|text| text.chars().take(1000).collect()).collect()
}

/// Holds the caller until those are recovered that had the pool and whose processes have ended. Where that cannot be, the caller finds them in the pool still.
fn settle(shared: &Shared, pool: PoolId) {
    settle_those(shared, || shared.store.guest_holders(pool));
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
    let descriptor = |record: &PuddleRecord| shared.store.grant_file(record, writable).map(OwnedFd::from);
    let descriptors = records.iter().map(descriptor).collect::<Result<Vec<_>, _>>().map_err(refusal)?;
    shared.metrics.puddles_granted.add(records.len() as u64);
    shared.metrics.bytes_granted.add(records.iter().map(|record| record.size).sum());
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
        other => Refusal::Other { detail: other.to_string().chars().take(2000).collect() },
    }
}
