//! `cenote info`: what a store is, where it lies, what that gives, and how it was left.

use super::{damage, heap, ls, wear};
use crate::cli::Info;
use crate::failure::{Failure, Verdict};
use crate::opening;
use crate::output::Out;
use crate::units::{bytes, date, plural};
use cenote::{Access, AtRest, CrashKind, PoolMode, PoolStart, Store};
use cenote_store::Damage;
use serde_json::{Value, json};

pub(crate) fn run(arguments: &Info, out: &mut Out) -> Result<Verdict, Failure> {
    let store = opening::to_look(&arguments.store)?;
    if let Some(pool) = &arguments.heap {
        return heap::run(&store, pool, out);
    }
    if let Some(pool) = &arguments.wear {
        return wear::run(&store, pool, out);
    }
    let pools = ls::listed(&store);
    let known = damage::of(&store)?;
    let mut wrong = Wrong {
        damage: known
            .iter()
            .map(|damage| damage::text(&store, damage))
            .chain(damage::of_objects(&store))
            .collect(),
        unreadable: Vec::new(),
        quarantined: Vec::new(),
        torn: Vec::new(),
    };

    place(&store, out)?;
    for text in &wrong.damage {
        out.wrong("damaged", text)?;
    }
    wrong.unreadable = unreadable(&pools, &known, out)?;
    wrong.quarantined = quarantined(&store);
    for (pool, damage) in &wrong.quarantined {
        out.wrong("damaged", format!("pool \"{pool}\": {damage}"))?;
    }
    went_on(&store, &pools, out)?;
    wrong.torn = torn(&store, out)?;
    for waiting in ls::pending(&pools) {
        out.field("moved", waiting)?;
    }
    if !pools.is_empty() {
        out.line("")?;
        ls::table(&pools).print(out, 0)?;
    }
    out.object(&as_json(&store, &pools, &wrong))?;
    let damaged = [
        wrong.damage.is_empty(),
        wrong.unreadable.is_empty(),
        wrong.quarantined.is_empty(),
        store.report().not_covered.is_empty(),
        wrong.torn.is_empty(),
    ];
    Ok(Verdict::found(damaged.contains(&false)))
}

/// What is wrong with a store.
struct Wrong {
    damage: Vec<String>,
    /// Why pools cannot be read.
    unreadable: Vec<String>,
    /// Damaged superblocks, with their pools.
    quarantined: Vec<(String, String)>,
    /// Pools that may hold half a transaction.
    torn: Vec<String>,
}

/// Where the store lies, what that gives, and how much there is.
fn place(store: &Store, out: &mut Out) -> Result<(), Failure> {
    let info = store.info();
    let objects = store.handle().objects().len() as u64;
    out.field("store", out.bold(&info.medium.path))?;
    out.field("uuid", info.uuid)?;
    out.field("made", date(info.formatted_at_s))?;
    out.field("state", opening::state(store.report()))?;
    out.field("lies on", format_args!("{} ({})", info.medium.fs, info.medium.kind))?;
    out.field("durability", format_args!("{}: {}", info.durability, info.medium.note))?;
    out.field(
        "window",
        format_args!(
            "{} at {:#x}, {} free",
            bytes(info.window_len),
            info.window_base,
            bytes(info.window_free)
        ),
    )?;
    out.field(
        "holds",
        format_args!(
            "{} in {} ({} of logs, {} spare), {}, {}, {}",
            bytes(info.puddle_bytes),
            plural(info.puddles, "puddle"),
            info.log_puddles,
            info.spare_puddles,
            plural(info.pools, "pool"),
            plural(objects, "object"),
            plural(info.types, "type")
        ),
    )?;
    out.field("format", format_args!("version {}", info.format_version))
}

/// Pools that cannot be read now. Returns what no known damage explains.
fn unreadable(
    pools: &[ls::PoolRow],
    known: &[Damage],
    out: &mut Out,
) -> Result<Vec<String>, Failure> {
    let mut unreadable = Vec::new();
    for pool in pools {
        if let Err(ls::Unread::TraceDue) = &pool.roots {
            let name = &pool.info.record.name;
            out.field(
                "power loss",
                format_args!(
                    "pool \"{name}\" is recovered by tracing when it is next opened for writing"
                ),
            )?;
        }
        if let Err(ls::Unread::Failed(failure)) = &pool.roots
            && let Some(message) = failure.message()
            && !known.iter().any(|damage| damage.pools().contains(&pool.info.record.id))
        {
            out.wrong("damaged", &message)?;
            unreadable.push(message);
        }
    }
    Ok(unreadable)
}

/// Pools that a crash took back to their last psync, or left as they were.
fn went_on(store: &Store, pools: &[ls::PoolRow], out: &mut Out) -> Result<(), Failure> {
    let report = store.report();
    for pool in &report.restored {
        let what = if report.crash == Some(CrashKind::Process) { "crash" } else { "power loss" };
        out.field(
            what,
            format_args!(
                "pool \"{}\" is as its last psync left it; later changes are lost",
                pool.name
            ),
        )?;
    }
    for pool in pools.iter().map(|pool| &pool.info) {
        if pool.record.mode == PoolMode::Shadowed
            && pool.at_rest == AtRest::None
            && pool.start == PoolStart::Dirty(CrashKind::Process)
        {
            let name = &pool.record.name;
            out.field("crash", format_args!("pool \"{name}\" goes on from its last transaction"))?;
        }
    }
    Ok(())
}

/// Pools that may be torn. Returns those whose logs were discarded.
fn torn(store: &Store, out: &mut Out) -> Result<Vec<String>, Failure> {
    for (_, name) in &store.report().not_covered {
        let text = format!(
            "pool \"{name}\" was open for writing when power failed or the store was copied, and \
             its durability level does not cover that"
        );
        out.wrong("torn?", text)?;
    }
    let torn = store.torn_pools();
    for name in &torn {
        out.wrong("torn?", format!("pool \"{name}\": {}", damage::TORN))?;
    }
    Ok(torn)
}

fn as_json(store: &Store, pools: &[ls::PoolRow], wrong: &Wrong) -> Value {
    let (info, report) = (store.info(), store.report());
    let at_last_psync: Vec<&String> = report.restored.iter().map(|pool| &pool.name).collect();
    let not_covered: Vec<&String> = report.not_covered.iter().map(|(_, name)| name).collect();
    json!({
        "path": info.medium.path, "store": info.uuid.to_string(),
        "formatted_at_s": info.formatted_at_s, "format_version": info.format_version,
        "clean": report.clean, "crash": opening::crash_name(report),
        "medium": info.medium.kind.to_string(), "file_system": info.medium.fs,
        "durability": info.durability.to_string(), "note": info.medium.note,
        "window_base": info.window_base, "window_bytes": info.window_len,
        "window_free_bytes": info.window_free, "puddles": info.puddles,
        "puddle_bytes": info.puddle_bytes, "log_puddles": info.log_puddles,
        "spare_puddles": info.spare_puddles, "spare_bytes": info.spare_bytes,
        "objects": store.handle().objects().len() as u64, "types": info.types,
        "clients": info.clients,
        "superblock_generation": info.generation, "catalog_batch": info.catalog_batch,
        "catalog_bytes": info.catalog_bytes, "damage": wrong.damage,
        "unreadable": wrong.unreadable, "not_covered": not_covered, "torn": wrong.torn,
        "quarantined": wrong.quarantined.iter()
            .map(|(pool, damage)| json!({ "pool": pool, "damage": damage }))
            .collect::<Vec<Value>>(),
        "at_last_psync": at_last_psync,
        "pools": pools.iter().map(ls::as_json).collect::<Vec<Value>>(),
    })
}

/// Superblocks that are out of use because their descriptors or marks are damaged, and headers of
/// wear heaps, with the pool.
/// Of a pool that cannot be read that is said elsewhere.
fn quarantined(store: &Store) -> Vec<(String, String)> {
    let of = |name: String| {
        let damage = store.pool_with(&name, Access::ReadOnly).and_then(|pool| {
            // Attaches all puddles.
            pool.stats()?;
            let superblocks = pool.heap_damage().into_iter().map(|damage| damage.to_string());
            let headers = pool.header_damage().into_iter().map(|damage| damage.to_string());
            Ok(superblocks.chain(headers).collect::<Vec<_>>())
        });
        damage.unwrap_or_default().into_iter().map(move |damage| (name.clone(), damage))
    };
    store.pools().into_iter().flat_map(|pool| of(pool.record.name)).collect()
}
