//! `cenote ls`: the pools of a store.

use crate::cli::Ls;
use crate::failure::{Failure, Verdict};
use crate::opening;
use crate::output::Out;
use crate::table::{Align, Table};
use crate::units::{bytes, date};
use cenote::{HeapKind, PoolInfo, PoolMode};
use serde_json::{Value, json};

pub(crate) fn run(arguments: &Ls, out: &mut Out) -> Result<Verdict, Failure> {
    let store = opening::to_look(&arguments.store)?;
    let mut pools = store.pools();
    pools.sort_by(|a, b| a.record.name.cmp(&b.record.name));
    if pools.is_empty() {
        let dir = arguments.store.dir.display();
        out.line(out.dim(&format!("no pools yet: make one with `cenote create {dir} NAME`")))?;
    } else {
        table(&pools).print(out, 0)?;
    }
    for pool in &pools {
        out.object(&as_json(pool))?;
    }
    Ok(Verdict::Clean)
}

/// Pools as people want them.
pub(crate) fn table(pools: &[PoolInfo]) -> Table {
    let mut table = Table::new(&[
        ("NAME", Align::Left),
        ("SIZE", Align::Right),
        ("PUDDLES", Align::Right),
        ("MODE", Align::Left),
        ("HEAP", Align::Left),
        ("CREATED", Align::Left),
    ]);
    for pool in pools {
        table.row(vec![
            pool.record.name.clone(),
            bytes(pool.bytes),
            pool.puddles.to_string(),
            mode(pool.record.mode).into(),
            heap(pool.record.heap).into(),
            date(pool.record.created_at_s),
        ]);
    }
    table
}

/// A pool as programs want it.
pub(crate) fn as_json(pool: &PoolInfo) -> Value {
    let record = &pool.record;
    json!({
        "pool": record.name, "id": record.id.0, "bytes": pool.bytes, "puddles": pool.puddles,
        "mode": mode(record.mode), "heap": heap(record.heap), "puddle_bytes": record.puddle_size,
        "bytes_max": if record.size_max == u64::MAX { Value::Null } else { json!(record.size_max) },
        "uid": record.uid, "gid": record.gid, "permissions": format!("{:o}", record.permissions),
        "created_at_s": record.created_at_s,
    })
}

pub(crate) fn mode(mode: PoolMode) -> &'static str {
    match mode {
        PoolMode::Direct => "direct",
    }
}

pub(crate) fn heap(heap: HeapKind) -> &'static str {
    match heap {
        HeapKind::Traced => "traced",
    }
}
