//! A client's request, done and answered. Everything in a request is an allegation: names, ids,
//! sizes and ranges are checked against the catalog, under its lock, by [`cenote_store`]'s
//! operations for clients. The session and its credentials come from the kernel.

use crate::answers::{Answer, PAGE_LEN, done, malformed, refusal, refused_as, short};
use crate::log::say;
use crate::session::Session;
use crate::shared::Shared;
use crate::spending::spend_types;
use crate::{backup, imports, metrics_page, objects, overview, pools, puddles};
use cenote_layout::error_kind::ErrorKind;
use cenote_layout::id::{PoolId, TypeId, Uuid};
use cenote_layout::types::TypeRecord;
use cenote_medium::Durability;
use cenote_proto::{
    MediumText, PoolItem, Refusal, Reply, Request, Rights, Topic, UndecidedLogsItem,
};
use cenote_store::{Credentials, LogDecision, StoreError};

/// Pools of a page: none takes more than 512 bytes.
const POOLS_OF_A_PAGE: usize = 100;

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
    let kind = request.name();
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

fn try_answer(
    shared: &Shared,
    session: &Session,
    credentials: &Credentials,
    request: Request,
) -> Result<Answer, Refusal> {
    if request.rights() == Rights::Operator && !is_operator(credentials) {
        let kind = request.name();
        let detail = format!("only the superuser and the daemon's user may send a {kind} request");
        return Err(refused_as(ErrorKind::Denied, detail));
    }
    match request.topic() {
        Topic::Session => about_session(session, &request),
        Topic::Overview => look(shared, session, credentials, request),
        Topic::Pools => pools::answer(shared, session, credentials, request),
        Topic::Puddles => puddles::answer(shared, session, request),
        Topic::Objects => objects::answer(shared, session, credentials, request),
        Topic::Moves => imports::answer(shared, session, credentials, request),
        Topic::Store => about_store(shared, session, credentials, request),
    }
}

/// Whether a user is the superuser or the daemon's.
fn is_operator(credentials: &Credentials) -> bool {
    credentials.uid == 0 || credentials.uid == cenote_sys::process::uid()
}

/// Answers requests about the session itself.
fn about_session(session: &Session, request: &Request) -> Result<Answer, Refusal> {
    match request {
        Request::Transfer => {
            let (number, file) =
                session.transfers.add().map_err(|error| refusal(failed_transfer(error)))?;
            Ok((Reply::Transfer { number }, vec![file]))
        }
        Request::Attend => backup::attend(session),
        _ => Err(malformed("the session has begun already")),
    }
}

/// Answers requests that only look.
fn look(
    shared: &Shared,
    session: &Session,
    credentials: &Credentials,
    request: Request,
) -> Result<Answer, Refusal> {
    let reply = match request {
        Request::Ping => return done(),
        Request::Stat => Reply::Stat(overview::stat(shared, session)),
        Request::Clients { after } => overview::clients(shared, after),
        Request::Metrics => Reply::Metrics { text: metrics_page::page(shared) },
        Request::Pools { after } => pools_page(shared, after),
        Request::Types { after } => types_page(shared, after),
        Request::UndecidedLogs => undecided_logs(shared, credentials),
        _ => return Err(malformed("it is no look at the store")),
    };
    Ok((reply, Vec::new()))
}

/// Answers requests about the store as a whole.
fn about_store(
    shared: &Shared,
    session: &Session,
    credentials: &Credentials,
    request: Request,
) -> Result<Answer, Refusal> {
    let store = &shared.store;
    match request {
        Request::Backup { target, within_ms } => {
            backup::make(shared, session, (&target, within_ms))
        }
        Request::RegisterTypes { records } => {
            spend_types(shared, session, &records)?;
            let records: Vec<&TypeRecord> = records.iter().collect();
            // SAFETY: what a client says of its types is that program's promise, made to all
            // programs that may write the store; a program of another layout is refused by it.
            unsafe { store.register_types(&records) }.map_err(refusal)?;
            done()
        }
        Request::DecideLogs { client, apply } => decide_logs(shared, credentials, client, apply),
        _ => Err(malformed("it is no request about the store")),
    }
}

fn decide_logs(
    shared: &Shared,
    credentials: &Credentials,
    client: Uuid,
    apply: bool,
) -> Result<Answer, Refusal> {
    let decision = if apply { LogDecision::Apply } else { LogDecision::Discard };
    shared.store.decide_logs(credentials, client, decision).map_err(refusal)?;
    let uid = credentials.uid;
    tracing::warn!(uid, %client, "an operator decided about logs set aside: {decision:?}");
    done()
}

fn failed_transfer(error: std::io::Error) -> StoreError {
    StoreError::Refused {
        kind: ErrorKind::of_system(&error),
        detail: format!("a file in memory cannot be made: {error}"),
    }
}

/// Logs that are set aside, for callers that may decide about them.
fn undecided_logs(shared: &Shared, credentials: &Credentials) -> Reply {
    let (mut items, mut len) = (Vec::new(), 0);
    for found in shared.store.undecided_logs_for(credentials) {
        let pools = found.pools.into_iter().take(16).collect();
        let item = UndecidedLogsItem { client: found.client, pools, why: short(found.why) };
        len += cenote_proto::encode(0, &item).map_or(PAGE_LEN, |packet| packet.len());
        if len > PAGE_LEN {
            break;
        }
        items.push(item);
    }
    Reply::UndecidedLogs { items }
}

fn pools_page(shared: &Shared, after: Option<PoolId>) -> Reply {
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

fn types_page(shared: &Shared, after: Option<TypeId>) -> Reply {
    let (mut records, mut len, mut more) = (Vec::new(), 0, false);
    for record in shared.store.types() {
        if after.is_some_and(|after| record.id <= after) {
            continue;
        }
        // A type that is too long for any message was registered by another way, and cannot be sent
        // by this one.
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
