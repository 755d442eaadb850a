//! `cenote ls`: the pools of a store, how they were left, and the roots that have names.

use crate::at_rest_modes::name_of;
use crate::cli::Ls;
use crate::failure::{Failure, Verdict};
use crate::opening;
use crate::output::Out;
use crate::table::{Align, Table};
use crate::units::{bytes, date, plural};
use cenote::{
    Access, AtRest, AtRestError, CopyRefused, DataProtection, Error, HeapKind, NamedRoot, PoolInfo,
    PoolMode, PoolStart, Store, StoreInfo,
};
use cenote_store::StoreError;
use serde_json::{Value, json};

pub(crate) fn run(arguments: &Ls, out: &mut Out) -> Result<Verdict, Failure> {
    let store = opening::asked_or_look(&arguments.store)?;
    let pools = listed(&store);
    if pools.is_empty() {
        let dir = arguments.store.dir.display();
        out.line(out.dim(&format!("no pools yet: make one with `cenote create {dir} NAME`")))?;
    } else {
        table(&pools).print(out, 0)?;
    }
    if let Some(spare) = spare(&store.info()) {
        out.line(out.dim(&spare))?;
    }
    for waiting in pending(&pools) {
        out.line(out.dim(&waiting))?;
    }
    for pool in &pools {
        out.object(&as_json(pool))?;
    }
    let mut read = Vec::new();
    for pool in &pools {
        match &pool.roots {
            Err(Unread::Failed(failure)) => {
                out.wrong("damaged", failure.message().unwrap_or_default())?;
            }
            _ => read.push(pool.info.record.name.clone()),
        }
    }
    // What may have left a pool out, and files that its roots are not in.
    let lost = super::damage::tell_lost(&store, &read, out)?;
    Ok(Verdict::found(read.len() < pools.len() || lost == Verdict::Found))
}

/// What is said of the pools that have moved and are not rewritten yet.
pub(crate) fn pending(pools: &[PoolRow]) -> impl Iterator<Item = String> + '_ {
    let waiting = pools.iter().filter(|pool| pool.info.pending > 0);
    waiting.map(|pool| super::relocate::still_pending(&pool.info.record.name, pool.info.pending))
}

/// Puddles that wait for a pool, if there are any.
pub(crate) fn spare(info: &StoreInfo) -> Option<String> {
    let puddles = plural(info.spare_puddles, "spare puddle");
    (info.spare_puddles != 0).then(|| {
        format!("{puddles} ({}) for pools that are created or grow", bytes(info.spare_bytes))
    })
}

/// A pool, and its named roots, or why they cannot be read.
pub(crate) struct PoolRow {
    pub(crate) info: PoolInfo,
    pub(crate) roots: Result<Vec<NamedRoot>, Unread>,
}

/// Why the roots of a pool cannot be read.
pub(crate) enum Unread {
    /// Power failed while it was in use, and the next to open it for writing recovers it: nothing
    /// is wrong.
    TraceDue,
    /// It is protected, and its key is not here: nothing is wrong.
    Locked,
    /// A daemon keeps it, and to read them a command would have to open the pool.
    Kept,
    /// It is an unfinished copy, which `cenote copy` goes on with: nothing is wrong.
    Unfinished,
    /// Something is.
    Failed(Failure),
}

/// All pools by name.
pub(crate) fn listed(store: &Store) -> Vec<PoolRow> {
    let mut pools = store.pools();
    pools.sort_by(|a, b| a.record.name.cmp(&b.record.name));
    let roots = |name: &str| {
        if store.is_connected() {
            return Err(Unread::Kept);
        }
        let read = store.pool_with(name, Access::ReadOnly).and_then(|pool| pool.named_roots());
        read.map_err(|error| match error {
            Error::TraceDue { .. } => Unread::TraceDue,
            Error::Copy(CopyRefused::Unfinished { .. }) => Unread::Unfinished,
            Error::Store(StoreError::AtRest { source, .. })
                if matches!(
                    *source,
                    AtRestError::NoKey { .. }
                        | AtRestError::WrongKey { .. }
                        | AtRestError::WrongKeyKind { .. }
                ) =>
            {
                Unread::Locked
            }
            error => Unread::Failed(error.into()),
        })
    };
    pools.into_iter().map(|info| PoolRow { roots: roots(&info.record.name), info }).collect()
}

/// How a pool was left, in one word.
pub(crate) fn start(start: PoolStart) -> &'static str {
    match start {
        PoolStart::Fresh => "fresh",
        PoolStart::Clean => "clean",
        PoolStart::Dirty(_) => "dirty",
    }
}

/// Characters of the names of roots that a table shows.
const NAMES_SHOWN: usize = 40;

fn names(roots: &Result<Vec<NamedRoot>, Unread>) -> String {
    let roots = match roots {
        Ok(roots) => roots,
        Err(Unread::TraceDue) => return "after recovery".into(),
        Err(Unread::Locked) => return "under its key".into(),
        Err(Unread::Kept | Unread::Unfinished) => return "-".into(),
        Err(Unread::Failed(_)) => return "cannot be read".into(),
    };
    let all = roots.iter().map(|root| root.name.as_str()).collect::<Vec<_>>().join(", ");
    if all.chars().count() <= NAMES_SHOWN {
        return all;
    }
    all.chars().take(NAMES_SHOWN - 3).chain("...".chars()).collect()
}

/// Pools as people want them.
pub(crate) fn table(pools: &[PoolRow]) -> Table {
    let mut table = Table::new(&[
        ("NAME", Align::Left),
        ("SIZE", Align::Right),
        ("PUDDLES", Align::Right),
        ("MODE", Align::Left),
        ("HEAP", Align::Left),
        ("STATE", Align::Left),
        ("CREATED", Align::Left),
        ("NAMED ROOTS", Align::Left),
    ]);
    for PoolRow { info: pool, roots } in pools {
        table.row(vec![
            pool.record.name.clone(),
            bytes(pool.bytes),
            pool.puddles.to_string(),
            guarded(mode(pool.record.mode, pool.at_rest), pool.protect),
            heap(pool.record.heap).into(),
            match roots {
                Err(Unread::Kept) => "-".into(),
                Err(Unread::Unfinished) => "unfinished copy".into(),
                _ => start(pool.start).into(),
            },
            date(pool.record.created_at_s),
            names(roots),
        ]);
    }
    table
}

/// A pool as programs want it.
pub(crate) fn as_json(listed: &PoolRow) -> Value {
    let PoolRow { info: pool, roots } = listed;
    let record = &pool.record;
    let roots = roots.as_ref().ok().map(|roots| {
        let root = |root: &NamedRoot| {
            json!({ "name": root.name, "addr": root.addr, "type_id": root.type_id.to_string() })
        };
        roots.iter().map(root).collect::<Vec<_>>()
    });
    json!({
        "pool": record.name, "id": record.id.0, "bytes": pool.bytes, "puddles": pool.puddles,
        "due_puddles": pool.pending,
        "mode": mode(record.mode, AtRest::None), "at_rest": name_of(pool.at_rest.mode()),
        "protect": pool.protect.to_string(),
        "heap": heap(record.heap), "wear_wait_ms": wear_wait_ms(record.heap),
        "puddle_bytes": record.puddle_size,
        "bytes_max": if record.size_max == u64::MAX { Value::Null } else { json!(record.size_max) },
        "uid": record.uid, "gid": record.gid, "permissions": format!("{:o}", record.permissions),
        "created_at_s": record.created_at_s, "named_roots": roots,
        "state": match listed.roots {
            Err(Unread::Kept) => "kept",
            Err(Unread::Unfinished) => "unfinished copy",
            _ => start(pool.start),
        },
        "recovery_due": matches!(listed.roots, Err(Unread::TraceDue)),
    })
}

/// Where stores go, and how what lies there is protected.
pub(crate) fn mode(mode: PoolMode, at_rest: AtRest) -> String {
    match (mode, at_rest) {
        (PoolMode::Direct, _) => "direct".into(),
        (PoolMode::Shadowed, AtRest::None) => "shadowed".into(),
        (PoolMode::Shadowed, at_rest) => {
            format!("shadowed, {}", name_of(at_rest.mode()))
        }
    }
}

/// What [`mode`] says, and whether the data are write-protected.
pub(crate) fn guarded(mode: String, protect: DataProtection) -> String {
    match protect {
        DataProtection::None => mode,
        DataProtection::Deferred { .. } => format!("{mode}, data protected"),
        DataProtection::Synchronous => format!("{mode}, data protected at once"),
    }
}

pub(crate) fn heap(heap: HeapKind) -> &'static str {
    heap.name()
}

/// Milliseconds that a freed block waits, in a wear heap.
fn wear_wait_ms(heap: HeapKind) -> Option<u32> {
    match heap {
        HeapKind::Wear { wait_ms } => Some(wait_ms),
        HeapKind::Traced | HeapKind::Logged => None,
    }
}
