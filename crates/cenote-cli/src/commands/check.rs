//! `cenote check`: looks at everything and changes nothing.
//!
//! Control data are judged when the store is opened (superblock, catalog, puddle headers, logs; a log that needs replay is
//! replayed into private memory); then every pool's heap is checked: descriptors, marks, blocks that overlap, and by tracing from
//! the roots, what is allocated and cannot be reached, what is reached and not allocated, pointers
//! that are not as their types say, and bytes that are no value of their type.

use super::findings::Findings;
use super::stats::{chosen, type_name};
use crate::cli::Check;
use crate::failure::{Failure, Verdict};
use crate::opening;
use crate::output::Out;
use crate::progress;
use crate::units::{bytes, count, plural};
use cenote::{Access, Error, HeapReport, PoolInfo, Store, TraceOptions};
use cenote_log::Outcome;
use serde_json::{Value, json};
use std::collections::BTreeMap;
use std::ops::ControlFlow;

pub(crate) fn run(arguments: &Check, out: &mut Out) -> Result<Verdict, Failure> {
    let store = opening::to_look(&arguments.store)?;
    let names = chosen(&store, &arguments.pools)?;
    // Before the pools are opened, which rewrites them in memory.
    let due: Vec<PoolInfo> = store.pools().into_iter().filter(|pool| pool.due > 0).collect();
    let mut findings = Findings::default();
    control_data(&store, &mut findings);
    primaries(&store, &mut findings)?;

    let bar = progress::bar(names.len() as u64, "checking pools", out.is_json());
    let mut pools = Vec::new();
    for name in &names {
        bar.set_message(name.clone());
        let mut tell = |at: &cenote::Progress| {
            bar.set_message(format!("{name}: {} reached", plural(at.blocks, "block")));
            ControlFlow::Continue(())
        };
        let mut options = TraceOptions::default();
        options.workers = arguments.threads;
        options.progress = Some(&mut tell);
        pools.push(pool(&store, name, options, &mut findings));
        bar.inc(1);
    }
    bar.finish_and_clear();

    let report = store.report();
    out.line(format_args!(
        "{} {}",
        out.bold(&arguments.store.dir.display().to_string()),
        opening::state(report)
    ))?;
    for log in &report.logs {
        if log.outcome != Outcome::Idle {
            out.line(out.dim(&format!("  log {:016x}: {} (here in memory only)", log.log_id, log.outcome)))?;
        }
    }
    for summary in &pools {
        out.line(format_args!("  pool \"{}\": {}", summary.name, summary.text))?;
        if let Some(pool) = due.iter().find(|pool| pool.record.name == summary.name) {
            let waiting = super::relocate::still_due(&summary.name, pool.due);
            out.line(out.dim(&format!("    {waiting} (checked as they will be then)")))?;
        }
    }
    let info = store.info();
    if let Some(spare) = super::ls::spare(&info) {
        out.line(format_args!("  {spare}"))?;
    }
    findings.print(arguments.all, out)?;
    if findings.is_empty() {
        let checked = pools.iter().filter(|summary| summary.checked).count() as u64;
        out.line(format_args!("{} {} checked", out.good("sound:"), plural(checked, "pool")))?;
    } else {
        let found = plural(findings.count(), "finding");
        out.line(format_args!("{} {found}; nothing was changed", out.bad("not sound:")))?;
    }
    let unlisted: BTreeMap<&str, u64> = findings.unlisted.iter().copied().collect();
    out.object(&json!({
        "path": arguments.store.dir.display().to_string(), "store": store.uuid().to_string(), "clean": report.clean,
        "crash": opening::crash_name(report), "sound": findings.is_empty(),
        "logs": report.logs.iter().map(|log| json!({
            "log": format!("{:016x}", log.log_id), "client": log.client.to_string(),
            "outcome": log.outcome.to_string(),
        })).collect::<Vec<Value>>(),
        "spare_puddles": info.spare_puddles, "spare_bytes": info.spare_bytes,
        "pools": pools.into_iter().map(|summary| summary.json).collect::<Vec<Value>>(),
        "findings": findings.as_json(), "findings_not_listed": unlisted,
    }))?;
    Ok(Verdict::found(!findings.is_empty()))
}

/// What opening the store has found.
fn control_data(store: &Store, findings: &mut Findings) {
    let report = store.report();
    let name_of = |id: cenote::PoolId| {
        store.pools().into_iter().find(|pool| pool.record.id == id).map(|pool| pool.record.name)
    };
    for damage in &report.damage {
        let kind = match damage {
            cenote_store::Damage::Log { .. } | cenote_store::Damage::LogSpace { .. } => "log",
            cenote_store::Damage::Orphan { .. } => "orphan",
            _ => "damage",
        };
        let pools: Vec<String> = damage.pools().into_iter().filter_map(name_of).collect();
        let pool = pools.first().map(String::as_str);
        findings.add(kind, pool, None, damage.to_string());
    }
    for (_, name) in &report.not_covered {
        let text = "it was in use when power failed, at a durability level that does not cover that: values may be torn";
        findings.add("torn", Some(name), None, text.into());
    }
    for name in store.torn_pools() {
        let text = "logs were discarded: it may hold half a transaction, which no check finds; restore \
                    it, remove it, or see `cenote logs declare-whole`";
        findings.add("torn", Some(&name), None, text.into());
    }
}

/// What opening the store does not look at, and a psync writes into.
fn primaries(store: &Store, findings: &mut Findings) -> Result<(), Failure> {
    let known = &store.report().damage;
    let pools = store.pools();
    for damage in store.damaged_primaries()?.into_iter().filter(|damage| !known.contains(damage)) {
        let of = damage.pools();
        let pool = pools.iter().find(|pool| of.contains(&pool.record.id));
        findings.add("damage", pool.map(|pool| &*pool.record.name), None, damage.to_string());
    }
    Ok(())
}

/// What is said about one pool.
struct Summary {
    name: String,
    text: String,
    /// Its blocks were looked at.
    checked: bool,
    json: Value,
}

fn pool(store: &Store, name: &str, options: TraceOptions<'_>, findings: &mut Findings) -> Summary {
    let checked = store.pool_with(name, Access::ReadOnly).and_then(|pool| {
        let report = pool.check_with(options)?;
        overlaps(&pool, name, findings)?;
        Ok(report)
    });
    match checked {
        Ok(report) => {
            heap(store, name, &report, findings);
            let stats = &report.stats;
            let reached = report.trace.as_ref().map_or(0, |trace| trace.blocks);
            Summary {
                name: name.to_owned(),
                checked: true,
                text: format!(
                    "{} ({}) in {}, {} reachable",
                    plural(stats.blocks, "block"),
                    bytes(stats.block_bytes),
                    plural(stats.puddles, "puddle"),
                    count(reached)
                ),
                json: json!({
                    "pool": name, "blocks": stats.blocks, "block_bytes": stats.block_bytes,
                    "puddles": stats.puddles, "bytes": stats.bytes, "reached_blocks": reached,
                    "leaked_blocks": report.leaked_blocks, "leaked_bytes": report.leaked_bytes,
                    "unallocated_blocks": report.unallocated_blocks,
                    "dangling_blocks": report.dangling_blocks,
                    "faults": report.trace.as_ref().map_or(0, |trace| trace.faults),
                    "invalid_values": report.values.as_ref().map_or(0, |values| values.invalid),
                }),
            }
        }
        // Nothing is wrong: which of its blocks are allocated is found by who opens it for writing.
        Err(Error::TraceDue { .. }) => Summary {
            name: name.to_owned(),
            checked: false,
            text: "not checked: it is recovered by tracing when it is next opened for writing".into(),
            json: json!({ "pool": name, "recovery_due": true }),
        },
        Err(error) => {
            let error = Failure::from(error).message().unwrap_or_default();
            findings.add("unreadable", Some(name), None, error.clone());
            Summary {
                name: name.to_owned(),
                checked: false,
                text: "cannot be checked".into(),
                json: json!({ "pool": name, "error": error }),
            }
        }
    }
}

/// Blocks that share bytes. `walk` visits those of a puddle in order of addresses.
fn overlaps(pool: &cenote::Pool, name: &str, findings: &mut Findings) -> cenote::Result<()> {
    let mut last_end = 0;
    let mut last = 0;
    pool.heap().walk(&mut |block| {
        if block.addr >= last && block.addr < last_end {
            let text = format!("the block at {:#x} begins inside the one at {last:#x}", block.addr);
            findings.add("overlap", Some(name), Some(block.addr), text);
        }
        (last, last_end) = (block.addr, block.addr.saturating_add(block.size));
    })?;
    Ok(())
}

fn heap(store: &Store, name: &str, report: &HeapReport, findings: &mut Findings) {
    for damage in &report.damage {
        findings.add("heap", Some(name), Some(damage.addr), damage.to_string());
    }
    for index in &report.damaged_roots {
        findings.add(
            "root",
            Some(name),
            None,
            format!("root {index} is damaged: what it led to is not known"),
        );
    }
    for leak in &report.leaks {
        let text = format!(
            "{} bytes at {:#x} ({}) are allocated, and no root leads to them",
            leak.size,
            leak.addr,
            type_name(store, leak.type_id)
        );
        findings.add("leak", Some(name), Some(leak.addr), text);
    }
    findings.more("leak", report.leaked_blocks.saturating_sub(report.leaks.len() as u64));
    for block in &report.unallocated {
        let text = format!(
            "{} bytes at {:#x} ({}) are reached, and not allocated",
            block.size,
            block.addr,
            type_name(store, block.type_id)
        );
        findings.add("unallocated", Some(name), Some(block.addr), text);
    }
    findings.more("unallocated", report.unallocated_blocks.saturating_sub(report.unallocated.len() as u64));
    for block in &report.dangling {
        let text = format!(
            "{} bytes at {:#x} ({}) are not allocated, and a leak leads to them",
            block.size,
            block.addr,
            type_name(store, block.type_id)
        );
        findings.add("dangling", Some(name), Some(block.addr), text);
    }
    findings.more("dangling", report.dangling_blocks.saturating_sub(report.dangling.len() as u64));
    if let Some(trace) = &report.leak_trace {
        for fault in &trace.findings {
            let text = format!("{fault}, {}; it stands in a leak", type_name(store, fault.target));
            findings.add("pointer", Some(name), Some(fault.at), text);
        }
        findings.more("pointer", trace.faults.saturating_sub(trace.findings.len() as u64));
    }
    for addr in &report.miscounted {
        let text = format!("the superblock at {addr:#x} has another number of blocks than its marks say");
        findings.add("miscounted", Some(name), Some(*addr), text);
    }
    if let Some(values) = &report.values {
        for invalid in &values.findings {
            findings.add("value", Some(name), Some(invalid.at), invalid.to_string());
        }
        findings.more("value", values.invalid.saturating_sub(values.findings.len() as u64));
    }
    if let Some(trace) = &report.trace {
        for fault in &trace.findings {
            let text = format!("{fault}, {}", type_name(store, fault.target));
            findings.add("pointer", Some(name), Some(fault.at), text);
        }
        findings.more("pointer", trace.faults.saturating_sub(trace.findings.len() as u64));
        for id in &trace.unknown_types {
            let text = format!(
                "type {id} has blocks, and the store does not know it: they were searched word by word"
            );
            findings.add("type", Some(name), None, text);
        }
    }
}
