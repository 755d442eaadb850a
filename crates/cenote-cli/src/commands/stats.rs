//! `cenote stats`: how many blocks and bytes, by pool and type.

use super::damage;
use super::each::each;
use super::protected::lacks_key;
use crate::advice::at_rest;
use crate::cli::Stats;
use crate::failure::{Failure, Verdict};
use crate::opening;
use crate::output::Out;
use crate::table::{Align, Table};
use crate::units::{bytes, count, plural};
use cenote::{Access, Error, HeapStats, Store, TypeId};
use cenote_store::StoreError;
use serde_json::{Value, json};

pub(crate) fn run(arguments: &Stats, out: &mut Out) -> Result<Verdict, Failure> {
    let store = opening::to_look(&arguments.store)?;
    let names = chosen(&store, &arguments.pools)?;
    if names.is_empty() {
        out.line(out.dim("no pools yet"))?;
    }
    let lost = damage::tell_lost(&store, &names, out)?;
    let mut first = lost == Verdict::Clean;
    let verdict = each(&names, &arguments.pools, out, |name, out| {
        let pool = match store.pool_with(name, Access::ReadOnly) {
            Err(Error::Store(StoreError::AtRest { source, .. }))
                if arguments.pools.is_empty() && lacks_key(&source) =>
            {
                let why = at_rest(&source);
                let label = out.warn("not counted:");
                out.line(format_args!("{label} pool \"{name}\": {why}"))?;
                out.object(&json!({ "pool": name, "locked": true }))?;
                return Ok(Verdict::Clean);
            }
            opened => opened?,
        };
        let stats = pool.stats()?;
        if !core::mem::replace(&mut first, false) {
            out.line("")?;
        }
        out.line(out.bold(&format!("pool \"{name}\"")))?;
        let free = stats.free_superblocks * cenote_layout::heap::SUPERBLOCK_SIZE;
        out.field(
            "size",
            format_args!("{} in {}", bytes(stats.bytes), plural(stats.puddles, "puddle")),
        )?;
        out.field(
            "used",
            format_args!("{} in {}", bytes(stats.block_bytes), plural(stats.blocks, "block")),
        )?;
        out.field("unused", format_args!("{} in superblocks that any type may take", bytes(free)))?;
        if !stats.bins.is_empty() {
            by_type(&store, &stats).print(out, 13)?;
        }
        out.object(&as_json(&store, name, &stats))?;
        Ok(Verdict::Clean)
    })?;
    Ok(Verdict::found(Verdict::Found == lost || Verdict::Found == verdict))
}

/// The pools that were named, all if none; an unknown one is an error before anything is printed.
pub(crate) fn chosen(store: &Store, names: &[String]) -> Result<Vec<String>, Failure> {
    let mut known: Vec<String> = store.pools().into_iter().map(|pool| pool.record.name).collect();
    known.sort();
    if names.is_empty() {
        return Ok(known);
    }
    for name in names {
        if !known.contains(name) {
            let there = match known.len() {
                0 => "it has none".to_owned(),
                _ => format!(
                    "it has {}",
                    known.iter().take(8).cloned().collect::<Vec<_>>().join(", ")
                ),
            };
            return Err(Failure::Failed(format!(
                "there is no pool \"{name}\" in this store: {there}"
            )));
        }
    }
    Ok(names.to_vec())
}

/// Name of a type for people.
pub(crate) fn type_name(store: &Store, id: TypeId) -> String {
    if id == TypeId::UNTYPED {
        return "(no type)".into();
    }
    store
        .type_record(id)
        .map_or_else(|| format!("(unknown type {id})"), |record| record.name.clone())
}

/// Blocks by type and size.
pub(crate) fn by_type(store: &Store, stats: &HeapStats) -> Table {
    let mut table = Table::new(&[
        ("TYPE", Align::Left),
        ("BLOCK", Align::Right),
        ("BLOCKS", Align::Right),
        ("ROOM FOR", Align::Right),
    ]);
    for bin in &stats.bins {
        let size = if bin.block_size == 0 { "large".into() } else { bytes(bin.block_size) };
        table.row(vec![
            type_name(store, bin.type_id),
            size,
            count(bin.blocks),
            count(bin.capacity),
        ]);
    }
    table
}

/// Counts of a pool for programs.
pub(crate) fn as_json(store: &Store, name: &str, stats: &HeapStats) -> Value {
    let bins: Vec<Value> = stats
        .bins
        .iter()
        .map(|bin| {
            json!({
                "type": type_name(store, bin.type_id), "type_id": bin.type_id.to_string(),
                "block_bytes": bin.block_size, "superblocks": bin.superblocks, "blocks": bin.blocks,
                "capacity": bin.capacity,
            })
        })
        .collect();
    json!({
        "pool": name, "bytes": stats.bytes, "puddles": stats.puddles, "blocks": stats.blocks,
        "block_bytes": stats.block_bytes, "large_blocks": stats.large_blocks,
        "superblocks": stats.superblocks,
        "free_superblocks": stats.free_superblocks, "hole_superblocks": stats.hole_superblocks,
        "small_superblocks": stats.small_superblocks,
        "large_superblocks": stats.large_superblocks,
        "metadata_superblocks": stats.metadata_superblocks,
        "damaged_superblocks": stats.damaged_superblocks, "types": bins,
    })
}
