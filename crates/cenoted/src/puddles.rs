//! Requests about puddles of pools and of logs: granted, made, given space, synced.

use std::os::fd::OwnedFd;

use cenote_layout::catalog::PuddleRecord;
use cenote_layout::id::PoolId;
use cenote_layout::puddle::Role;
use cenote_proto::{DESCRIPTORS_MAX, Refusal, Reply, Request};

use crate::answers::{Answer, done, malformed, refusal};
use crate::session::Session;
use crate::settling::settle;
use crate::shared::Shared;
use crate::spending::spend;

/// Answers a request about puddles.
pub(crate) fn answer(
    shared: &Shared,
    session: &Session,
    request: Request,
) -> Result<Answer, Refusal> {
    let (store, client) = (&shared.store, session.client);
    match request {
        Request::Primaries { pool, first } => {
            let (mut records, _) =
                store.client_puddles(client, pool, first, DESCRIPTORS_MAX + 1).map_err(refusal)?;
            let more = records.len() > DESCRIPTORS_MAX;
            records.truncate(DESCRIPTORS_MAX);
            let descriptor =
                |record: &PuddleRecord| store.client_primary(client, record).map(OwnedFd::from);
            let files =
                records.iter().map(descriptor).collect::<Result<Vec<_>, _>>().map_err(refusal)?;
            Ok((Reply::Puddles { records, more }, files))
        }
        Request::PsyncPools { transfer, puddles, runs } => {
            let transfer = session.transfers.take(transfer).ok_or(Refusal::NoTransfer)?;
            let done = store.client_psync(client, &puddles, (&transfer, runs)).map_err(refusal)?;
            let (seq, pages, data_bytes, journal_bytes) =
                (done.seq, done.pages, done.data_bytes, done.journal_bytes);
            Ok((Reply::Psynced { seq, pages, data_bytes, journal_bytes }, Vec::new()))
        }
        Request::Puddles { pool, first } => {
            let (mut records, writable) =
                store.client_puddles(client, pool, first, DESCRIPTORS_MAX + 1).map_err(refusal)?;
            let more = records.len() > DESCRIPTORS_MAX;
            records.truncate(DESCRIPTORS_MAX);
            give(shared, records, writable, more)
        }
        Request::TakePuddle { pool, index, size, metadata } => {
            let role = if metadata { Role::Metadata } else { Role::Heap };
            take(shared, session, (pool, index), (size, role))
        }
        Request::LogSpace => {
            let record = store.client_log(client, Role::LogSpace, 0).map_err(refusal)?;
            give(shared, vec![record], true, false)
        }
        Request::LogPuddle { size } => {
            let spent = spend(shared, session, session.uid, size)?;
            let record = store.client_log(client, Role::Log, size).map_err(refusal)?;
            spent.keep();
            give(shared, vec![record], true, false)
        }
        Request::EnsureSpace { pool, addr, len } => {
            settle(shared, client, pool);
            store.client_ensure(client, pool, addr, len).map_err(refusal)?;
            done()
        }
        _ => Err(malformed("it names no puddle")),
    }
}

/// Lets a pool grow by its puddle `index`; a client whose answer was lost gets the one it made.
fn take(
    shared: &Shared,
    session: &Session,
    (pool, index): (PoolId, u32),
    (size, role): (u64, Role),
) -> Result<Answer, Refusal> {
    let (store, client) = (&shared.store, session.client);
    settle(shared, client, pool);
    let (there, _) = store.client_puddles(client, pool, index, 1).map_err(refusal)?;
    let (record, ready) = match there.first() {
        // Its answer was lost.
        Some(record) if (record.index, record.size, record.role) == (index, size, role) => {
            (*record, None)
        }
        Some(_) => return Err(malformed("the pool has another puddle of that number")),
        None => {
            // Of the pool, any client that lets it grow.
            let owner = store.owner_of(pool).unwrap_or(session.uid);
            let spent = spend(shared, session, owner, size)?;
            let taken = store.client_take(client, pool, size, role).map_err(refusal)?;
            spent.keep();
            taken
        }
    };
    if let Some(file) = ready {
        shared.metrics.granted(&[record]);
        return Ok((Reply::Puddles { records: vec![record], more: false }, vec![file.into()]));
    }
    // A lease for reading is refused by `client_take`, and must not get a writable descriptor here.
    let (_, writable) = store.client_puddles(client, pool, index, 1).map_err(refusal)?;
    give(shared, vec![record], writable, false)
}

/// Puddles with a descriptor each.
fn give(
    shared: &Shared,
    records: Vec<PuddleRecord>,
    writable: bool,
    more: bool,
) -> Result<Answer, Refusal> {
    let descriptor = |record: &PuddleRecord| {
        // SAFETY: the client's lease was looked up: it has the pool, for writing if `writable` says
        // so.
        unsafe { shared.store.grant_file(record, writable) }.map(OwnedFd::from)
    };
    let descriptors =
        records.iter().map(descriptor).collect::<Result<Vec<_>, _>>().map_err(refusal)?;
    shared.metrics.granted(&records);
    Ok((Reply::Puddles { records, more }, descriptors))
}
