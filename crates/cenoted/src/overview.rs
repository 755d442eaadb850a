//! The daemon's report on itself and its clients: figures, and the connected clients. Any client
//! may ask, as any user may list processes and the names of pools.

use crate::answers::PAGE_LEN;
use crate::session::Session;
use crate::shared::Shared;
use cenote_layout::id::{PoolId, Uuid};
use cenote_proto::{ClientItem, HeldPool, Reply, Stat};
use std::collections::{BTreeMap, HashMap};
use std::sync::atomic::Ordering;

/// Clients of a page.
const CLIENTS_OF_A_PAGE: usize = 100;
/// Pools of one that are named.
const POOLS_OF_A_CLIENT: usize = 8;
/// Characters of a pool's name.
const NAME_LEN: usize = 64;

pub(crate) fn stat(shared: &Shared, session: &Session) -> Stat {
    let metrics = &shared.metrics;
    Stat {
        sessions: shared.sessions.len(),
        messages: shared.messages.load(Ordering::Relaxed),
        messages_here: session.messages.load(Ordering::Relaxed),
        recoveries: metrics.recoveries.get(),
        logs_replayed: metrics.logs_replayed.get(),
        logs_set_aside: metrics.logs_set_aside.get(),
        entries_replayed: metrics.entries_replayed.get(),
        psyncs: shared.store.psync_figures().map_or(0, |(_, records, _)| records),
        refused: metrics.refused(),
        ends_failed: metrics.ends_failed.get(),
        spare_bytes: shared.store.info().spare_bytes,
        uptime_s: shared.began.elapsed().as_secs(),
    }
}

pub(crate) fn clients(shared: &Shared, after: Option<Uuid>) -> Reply {
    let mut page = shared.sessions.page(after, CLIENTS_OF_A_PAGE + 1);
    let mut more = page.len() > CLIENTS_OF_A_PAGE;
    page.truncate(CLIENTS_OF_A_PAGE);
    let mut leases: HashMap<Uuid, Vec<(PoolId, bool)>> = HashMap::new();
    for lease in shared.store.lease_records() {
        leases.entry(lease.client).or_default().push((lease.pool, lease.writable));
    }
    let names: BTreeMap<PoolId, String> =
        shared.store.pools().into_iter().map(|pool| (pool.record.id, pool.record.name)).collect();
    let (mut items, mut len) = (Vec::new(), 0);
    for (session, state) in page {
        let held = leases.remove(&session.client).unwrap_or_default();
        let named = |(pool, writable): &(PoolId, bool)| HeldPool {
            name: names
                .get(pool)
                .map_or_else(String::new, |name| name.chars().take(NAME_LEN).collect()),
            writable: *writable,
        };
        let item = ClientItem {
            client: session.client,
            pid: session.pid,
            uid: session.uid,
            program: cenote_sys::process::program(session.pid).unwrap_or_default(),
            state,
            known_s: session.known.elapsed().as_secs(),
            messages: session.messages.load(Ordering::Relaxed),
            puddles: session.puddles.load(Ordering::Relaxed),
            bytes: session.bytes.load(Ordering::Relaxed),
            pools: held.iter().take(POOLS_OF_A_CLIENT).map(named).collect(),
            pools_held: held.len() as u64,
        };
        len += cenote_proto::encode(0, &item).map_or(PAGE_LEN, |packet| packet.len());
        if len > PAGE_LEN {
            more = true;
            break;
        }
        items.push(item);
    }
    Reply::Clients { items, more }
}
