//! Pools that come in from clients, that are copied and moved for them ([`cenote_store::relocate`],
//! hosting/copies.rs). What is in a request is an allegation here, too.
//!
//! An import belongs to a session and ends with its connection. A client that connects again begins
//! again, and the store removes the files of the first import. An import counts against the
//! session's limits from its beginning, with all that it will take; one that fails counts no more.
//! Beside that it costs the daemon its manifest, so the number of imports is bounded, for each user
//! and in all.

use crate::answers::{Answer, done, malformed, refusal};
use crate::metrics::LimitHit;
use crate::pending::Pending;
use crate::per_user::{Counted, Full};
use crate::session::Session;
use crate::settling::granted;
use crate::shared::Shared;
use crate::spending::{Spent, spend_many, spend_types};
use cenote_layout::catalog::{AtRest, DataProtection, RELOCATION_MOVES_MAX};
use cenote_layout::id::{PoolId, Uuid};
use cenote_layout::puddle::Role;
use cenote_proto::{
    IMPORT_LEN_MAX, IMPORT_POOLS_MAX, ImportPoolSpec, ImportSpec, PuddlePlace, Refusal, Reply,
    Request,
};
use cenote_relocate::archiving::check_values;
use cenote_store::Credentials;
use cenote_store::StoreError;
use cenote_store::relocate::{Import, ImportManifest, ImportPool, ImportPuddle, Imported};
use std::fs::File;
use std::os::unix::fs::FileExt;

/// Imports that are under way, in all.
const MOST: usize = 64;
/// Of one user; the superuser has no such limit.
const MOST_OF_USER: usize = 8;
/// Most bytes that one request writes.
const FILL_LEN_MAX: u64 = 16 << 20;
/// Most stretches.
const PIECES_MAX: usize = 2048;
/// Bytes that are copied at once: what one request takes of the daemon's memory.
const STEP: usize = 256 << 10;
/// Places of a page.
const PLACES: usize = 2048;

/// Answers a request about pools that come in, are copied or move.
pub(crate) fn answer(
    shared: &Shared,
    session: &Session,
    credentials: &Credentials,
    request: Request,
) -> Result<Answer, Refusal> {
    match request {
        Request::Places { after } => Ok((places(shared, after), Vec::new())),
        Request::ClonePool { name, copy, token } => {
            clone(shared, session, credentials, (&name, &copy, token))
        }
        Request::RandomizePool { name } => {
            let rewritten = granted(shared, (session.client, credentials), &name, || {
                shared.store.client_randomize(credentials, &name)
            })?;
            shared.metrics.rewritten(&rewritten);
            done()
        }
        Request::BeginImport { transfer, len, check_only } => {
            begin(shared, session, credentials, (transfer, len, check_only))
        }
        Request::FillImport { import, slot, transfer, pieces } => {
            let transfer = session.transfers.take(transfer).ok_or(Refusal::NoTransfer)?;
            let mut pending = session.imports.take(import).ok_or(Refusal::NoImport)?;
            match fill(&mut pending.import, slot as usize, &transfer, &pieces) {
                Ok(()) => {
                    session.imports.put_back(import, pending);
                    done()
                }
                Err(refused) => {
                    session.give_up(pending);
                    Err(refused)
                }
            }
        }
        Request::CommitImport { import, token, pools } => {
            commit(shared, session, import, (token, pools))
        }
        Request::AbandonImport { import } => {
            if let Some(pending) = session.imports.take(import) {
                session.give_up(pending);
            }
            done()
        }
        _ => Err(malformed("it names no pool that moves")),
    }
}

/// Copies a pool, or tells what a request with this token has made.
fn clone(
    shared: &Shared,
    session: &Session,
    credentials: &Credentials,
    (name, copy, token): (&str, &str, Uuid),
) -> Result<Answer, Refusal> {
    let (store, client) = (&shared.store, session.client);
    if let Some(made) = store.client_made(client, token, 1) {
        return Ok(imported(&made));
    }
    let source =
        granted(shared, (client, credentials), name, || store.client_source(credentials, name))?;
    let (spent, _promise) = spend_many(shared, session, source.puddles(), source.bytes())?;
    let made = store.client_clone(source, (client, token), credentials, copy).map_err(refusal)?;
    spent.keep();
    Ok(imported(&made))
}

/// Begins an import, or only checks whether it would be accepted.
fn begin(
    shared: &Shared,
    session: &Session,
    credentials: &Credentials,
    (transfer, len, check_only): (u64, u32, bool),
) -> Result<Answer, Refusal> {
    // Before it is read: what it takes is bounded by their number.
    let place = count(shared, session.uid)?;
    let transfer = session.transfers.take(transfer).ok_or(Refusal::NoTransfer)?;
    let manifest = manifest(&transfer, len)?;
    if check_only {
        shared.store.client_check_import(&manifest).map_err(refusal)?;
        return done();
    }
    let sizes = || manifest.pools.iter().flat_map(|pool| &pool.puddles).map(|puddle| puddle.size);
    let (puddles, bytes) = (sizes().count() as u64, sizes().fold(0, u64::saturating_add));
    let (spent, promise) = spend_many(shared, session, puddles, bytes)?;
    spend_types(shared, session, &manifest.types)?;
    let import = shared.store.client_begin_import(credentials, manifest).map_err(refusal)?;
    spent.keep();
    let number =
        session.imports.add(Pending { import, puddles, bytes, _promise: promise, _place: place });
    Ok((Reply::Import { number }, Vec::new()))
}

/// Commits an import, or tells what a request with this token has made.
fn commit(
    shared: &Shared,
    session: &Session,
    import: u64,
    (token, pools): (Uuid, u32),
) -> Result<Answer, Refusal> {
    let most = u64::from(pools).min(IMPORT_POOLS_MAX as u64);
    if let Some(made) = shared.store.client_made(session.client, token, most) {
        return Ok(imported(&made));
    }
    let mut pending = session.imports.take(import).ok_or(Refusal::NoImport)?;
    let spent = Spent::of(session, pending.puddles, pending.bytes);
    if pending.import.manifest().pools.len() as u64 != u64::from(pools) {
        return Err(malformed("the import has another number of pools"));
    }
    pending.import.create_rest().map_err(refusal)?;
    check_values(&pending.import).map_err(|error| {
        let error = StoreError::Import { detail: error.to_string() };
        refusal(error)
    })?;
    // SAFETY: all values were checked just now, and only this session fills the import.
    let made = unsafe { pending.import.commit_for(session.client, token) }.map_err(refusal)?;
    spent.keep();
    Ok(imported(&made))
}

/// A place among the imports that are under way.
fn count(shared: &Shared, uid: u32) -> Result<Counted, Refusal> {
    shared.imports.add(uid, MOST, MOST_OF_USER).map_err(|full| {
        shared.metrics.limit(LimitHit::Imports);
        let Full { all, his, .. } = full;
        let detail = format!(
            "{all} imports are running, {his} of this user; the limits are {MOST} and \
             {MOST_OF_USER}: try again later"
        );
        Refusal::Limit { detail }
    })
}

fn unreadable(error: std::io::Error) -> Refusal {
    malformed(&format!("the transfer is shorter than the request says, or cannot be read: {error}"))
}

/// What is to be imported. `begin_import` checks what it says.
fn manifest(transfer: &File, len: u32) -> Result<ImportManifest, Refusal> {
    if len as usize > IMPORT_LEN_MAX {
        return Err(Refusal::Limit {
            detail: format!("a list of an import has {IMPORT_LEN_MAX} bytes at most"),
        });
    }
    let mut bytes = vec![0; len as usize];
    transfer.read_exact_at(&mut bytes, 0).map_err(unreadable)?;
    let spec = ImportSpec::decode(&bytes).map_err(|error| malformed(&error.to_string()))?;
    // Before it is copied into what is many times larger than the two numbers that a puddle has
    // here.
    let puddles =
        spec.pools.iter().fold(0, |sum: usize, pool| sum.saturating_add(pool.puddles.len()));
    if puddles > RELOCATION_MOVES_MAX {
        return Err(Refusal::Limit {
            detail: format!(
                "the import has {puddles} puddles, and at most {RELOCATION_MOVES_MAX} are imported \
                 together: import fewer pools at once"
            ),
        });
    }
    let puddle =
        |(old_addr, size)| ImportPuddle { old_addr, size, identity: Uuid::NIL, role: Role::Heap };
    let pool = |pool: ImportPoolSpec| ImportPool {
        name: pool.name,
        old_id: pool.old_id,
        mode: pool.mode,
        heap: pool.heap,
        puddle_size: pool.puddle_size,
        size_max: pool.size_max,
        permissions: pool.permissions,
        // The protocol has no word for another.
        at_rest: AtRest::None,
        protect: DataProtection::None,
        torn: pool.torn,
        puddles: pool.puddles.into_iter().map(puddle).collect(),
    };
    Ok(ImportManifest { pools: spec.pools.into_iter().map(pool).collect(), types: spec.types })
}

/// Copies stretches from a transfer. The client may change the transfer meanwhile: the import gets
/// the bytes that the copy read.
fn fill(
    import: &mut Import,
    slot: usize,
    transfer: &File,
    pieces: &[(u64, u32)],
) -> Result<(), Refusal> {
    let sum = pieces.iter().fold(0_u64, |sum, (_, len)| sum.saturating_add(u64::from(*len)));
    if pieces.len() > PIECES_MAX || sum > FILL_LEN_MAX {
        let detail = format!(
            "one request writes {FILL_LEN_MAX} bytes in {PIECES_MAX} stretches at most, and not \
             {sum} in {}",
            pieces.len()
        );
        return Err(Refusal::Limit { detail });
    }
    let mut buffer = vec![0; STEP.min(sum as usize)];
    let mut at = 0;
    for (offset, len) in pieces {
        let mut done = 0;
        while done < u64::from(*len) {
            let step = (u64::from(*len) - done).min(STEP as u64);
            let bytes = buffer.get_mut(..step as usize).unwrap_or_default();
            transfer.read_exact_at(bytes, at).map_err(unreadable)?;
            let to = offset.checked_add(done).ok_or_else(|| malformed("a stretch ends nowhere"))?;
            import.write(slot, to, bytes).map_err(refusal)?;
            (at, done) = (at + step, done + step);
        }
    }
    Ok(())
}

fn imported(made: &Imported) -> Answer {
    let pools = made.pools.iter().map(|pool| (pool.id, pool.moved, pool.pending)).collect();
    (Reply::Imported { pools }, Vec::new())
}

/// Where the puddles of pools lie.
fn places(shared: &Shared, after: Option<(PoolId, u32)>) -> Reply {
    let mut items: Vec<PuddlePlace> = shared
        .store
        .puddle_records()
        .into_iter()
        .filter(|puddle| {
            puddle.pool != PoolId(0)
                && after.is_none_or(|after| (puddle.pool, puddle.index) > after)
        })
        .map(|puddle| PuddlePlace {
            pool: puddle.pool,
            index: puddle.index,
            addr: puddle.addr,
            size: puddle.size,
        })
        .collect();
    items.sort_unstable_by_key(|place| (place.pool, place.index));
    let more = items.len() > PLACES;
    items.truncate(PLACES);
    Reply::Places { items, more }
}
