//! `cenote check`: looks at everything and changes nothing.
//!
//! 1. *Control data*, when the store is opened: superblock, catalog, logs. A log that needs replay
//!    is replayed into private memory.
//! 2. *Files*, as a program's open for writing looks at them: puddles, primaries, both journals.
//! 3. *Every pool's heap*: descriptors, marks, blocks that overlap. Tracing from the roots finds
//!    blocks that are allocated and not reached, or reached and not allocated; pointers that do not
//!    fit their types; and bytes that are no value of their type.
//! 4. *Every page* of protected pools and objects.
//!
//! Invariant: if a program's open of the store, of a pool or of an object fails, there is a
//! finding, or the line of that pool or object says which key or permission is missing.

use super::damage;
use super::findings::Findings;
use super::protected::{self, Said};
use super::stats::{chosen, type_name};
use crate::advice::{answer_for, damage_text};
use crate::cli::Check;
use crate::failure::{Failure, Verdict, word};
use crate::keys;
use crate::opening;
use crate::output::Out;
use crate::progress;
use crate::stop::Stop;
use crate::units::{bytes, count, plural};
use cenote::{Access, AtRest, Error, HeapReport, PoolInfo, Store, TraceOptions};
use cenote_log::Outcome;
use cenote_store::{Damage, StoreError};
use serde_json::{Value, json};
use std::collections::BTreeMap;
use std::num::NonZeroUsize;
use std::path::Path;

pub(crate) fn run(arguments: &Check, out: &mut Out) -> Result<Verdict, Failure> {
    let stop = Stop::install();
    let store = opening::to_look(&arguments.store)?;
    let names = chosen(&store, &arguments.pools)?;
    // Before the pools are opened, which rewrites them in memory.
    let pending: Vec<PoolInfo> =
        store.pools().into_iter().filter(|pool| pool.pending > 0).collect();
    let mut findings = Findings::default();
    let known = damage::of(&store)?;
    control_data(&store, &known, &mut findings);

    let pools =
        each_pool((&store, &names[..], &known[..]), arguments.threads, &stop, &mut findings, out)?;
    let objects = match arguments.pools.is_empty() {
        true => {
            let key = keys::given(&arguments.store.key)?;
            protected::objects(&store, (key.as_ref(), &known), &mut findings, out)
        }
        false => Vec::new(),
    };

    let dir = arguments.store.dir.display().to_string();
    state(&store, &dir, out)?;
    for summary in &pools {
        out.line(format_args!("  pool \"{}\": {}", summary.name, summary.text))?;
        if let Some(pool) = pending.iter().find(|pool| pool.record.name == summary.name) {
            let waiting = super::relocate::still_pending(&summary.name, pool.pending);
            out.line(out.dim(&format!("    {waiting} (checked as the rewritten pool will be)")))?;
        }
    }
    for object in &objects {
        out.line(format_args!("  {}", object.text))?;
    }
    if let Some(spare) = super::ls::spare(&store.info()) {
        out.line(format_args!("  {spare}"))?;
    }
    findings.name_store(&dir);
    findings.print(arguments.all, out)?;
    let looked = pools.iter().map(|pool| pool.checked).chain(objects.iter().map(|one| one.checked));
    let nothing = pools.len() + objects.len() > 0 && !looked.into_iter().any(|checked| checked);
    if findings.is_empty() && nothing {
        out.line(format_args!("{} see above", out.warn("nothing was looked at:")))?;
    } else if findings.is_empty() {
        out.line(format_args!("{} {}", out.good("sound:"), looked_at(&pools, &objects)))?;
    } else {
        let found = plural(findings.count(), "finding");
        out.line(format_args!("{} {found}; nothing was changed", out.bad("not sound:")))?;
        advice(&arguments.store.dir, &known, &findings, out)?;
    }
    out.object(&as_json(&store, dir, (&pools[..], &objects[..]), &findings))?;
    let unlooked = pools.iter().find(|pool| !pool.checked && pool.is_locked);
    // Other pools may have another key; a key that opens nothing is a wrong one.
    let is_protected = |name: &str| {
        store.pools().iter().any(|pool| pool.record.name == name && pool.at_rest != AtRest::None)
    };
    let useless = arguments.store.key.is_given()
        && !objects.iter().any(|object| object.checked)
        && !pools.iter().any(|pool| pool.checked && is_protected(&pool.name));
    match unlooked {
        // The operator asked for it, or nothing else was to be looked at.
        Some(pool)
            if findings.is_empty() && (nothing || useless || !arguments.pools.is_empty()) =>
        {
            Err(Failure::Failed(format!("pool \"{}\": {}", pool.name, pool.text)))
        }
        _ => Ok(Verdict::found(!findings.is_empty())),
    }
}

/// Checks the named pools of a store whose damage is known so far.
fn each_pool(
    (store, names, known): (&Store, &[String], &[Damage]),
    threads: Option<NonZeroUsize>,
    stop: &Stop,
    findings: &mut Findings,
    out: &Out,
) -> Result<Vec<Summary>, Failure> {
    let bar = progress::bar(names.len() as u64, "checking pools", out.is_json());
    let mut pools = Vec::new();
    for name in names {
        bar.set_message(name.clone());
        let mut tell = |at: &cenote::TraceProgress| {
            bar.set_message(format!("{name}: {} reached", plural(at.blocks, "block")));
            stop.flow()
        };
        let mut options = TraceOptions::default();
        options.workers = threads;
        options.progress = Some(&mut tell);
        pools.push(pool(store, name, (options, known, stop), findings));
        if stop.is_set() {
            bar.finish_and_clear();
            let done = pools.len() - 1;
            return Err(Failure::Interrupted(format!(
                "stopped after {done} of {}; nothing was changed: `cenote check` begins anew, and \
                 --pool NAME limits it to one",
                plural(names.len() as u64, "pool")
            )));
        }
        bar.inc(1);
    }
    bar.finish_and_clear();
    Ok(pools)
}

/// How the store was left, and what replay has done in memory.
fn state(store: &Store, dir: &str, out: &mut Out) -> Result<(), Failure> {
    let report = store.report();
    out.line(format_args!("{} {}", out.bold(&format!("{dir}:")), opening::state(report)))?;
    for log in report.logs.iter().filter(|log| log.outcome != Outcome::Idle) {
        out.line(
            out.dim(&format!("  log {:016x}: {} (here in memory only)", log.log_id, log.outcome)),
        )?;
    }
    Ok(())
}

fn as_json(
    store: &Store,
    dir: String,
    (pools, objects): (&[Summary], &[Said]),
    findings: &Findings,
) -> Value {
    let (info, report) = (store.info(), store.report());
    let unlisted: BTreeMap<&str, u64> = findings.unlisted.iter().copied().collect();
    json!({
        "path": dir, "store": store.uuid().to_string(), "clean": report.clean,
        "crash": opening::crash_name(report), "sound": findings.is_empty(),
        "logs": report.logs.iter().map(|log| json!({
            "log": format!("{:016x}", log.log_id), "client": log.client.to_string(),
            "outcome": log.outcome.to_string(),
        })).collect::<Vec<Value>>(),
        "spare_puddles": info.spare_puddles, "spare_bytes": info.spare_bytes,
        "pools": pools.iter().map(|summary| summary.json.clone()).collect::<Vec<Value>>(),
        "objects": objects.iter().map(|object| object.json.clone()).collect::<Vec<Value>>(),
        "findings": findings.as_json(), "findings_not_listed": unlisted,
    })
}

/// How many pools and objects were looked at, and how many were not.
fn looked_at(pools: &[Summary], objects: &[Said]) -> String {
    let count = |checked: bool| {
        let pools = pools.iter().filter(|pool| pool.checked == checked).count() as u64;
        let objects = objects.iter().filter(|object| object.checked == checked).count() as u64;
        match (pools, objects) {
            (0, 0) if !checked => None,
            (_, 0) => Some(plural(pools, "pool")),
            (0, _) => Some(plural(objects, "object")),
            (_, _) => Some(format!("{} and {}", plural(pools, "pool"), plural(objects, "object"))),
        }
    };
    let checked = count(true).unwrap_or_default();
    match count(false) {
        Some(not) => format!("{checked} checked; {not} not looked at: see above"),
        None => format!("{checked} checked"),
    }
}

/// What opening the store has found, and its files.
fn control_data(store: &Store, known: &[Damage], findings: &mut Findings) {
    for damage in known {
        let kind = match damage {
            Damage::Log { .. } | Damage::LogSpace { .. } => "log",
            Damage::Orphan { .. } => "orphan",
            _ => "damage",
        };
        let (pool, text) = match damage {
            Damage::Puddle { .. } => (damage::pool_of(store, damage), damage_text(damage)),
            damage => (damage::pool_of(store, damage), damage::text(store, damage)),
        };
        findings.add(kind, pool.as_deref(), None, text);
    }
    for (_, name) in &store.report().not_covered {
        let next = match crate::copies::is_open() {
            true => "see below".into(),
            false => answer_for(name),
        };
        let text = format!(
            "it was open for writing when power failed or the store was copied, and its durability \
             level does not cover that: values may be torn: {next}"
        );
        findings.add("torn", Some(name), None, text);
    }
    for name in store.torn_pools() {
        let text = format!("{}; no check finds that: {}", damage::TORN, answer_for(&name));
        findings.add("torn", Some(&name), None, text);
    }
}

/// What to do about findings, where one command does it.
fn advice(dir: &Path, known: &[Damage], findings: &Findings, out: &mut Out) -> Result<(), Failure> {
    let path = dir.display().to_string();
    let dir = word(&path);
    if crate::copies::is_open() {
        out.line(crate::copies::ways_out(&path))?;
    }
    if findings.has("leak") {
        out.line(format_args!("`cenote reclaim {dir}` frees leaks"))?;
    }
    if damage::second_copy(known) {
        out.line(
            "the damaged part has a second copy, so nothing is lost: the next command or program \
             that changes the store writes it again",
        )?;
    }
    Ok(())
}

/// What is said about one pool.
struct Summary {
    name: String,
    text: String,
    /// Its blocks were looked at.
    checked: bool,
    /// Its key was not given.
    is_locked: bool,
    json: Value,
}

fn pool(
    store: &Store,
    name: &str,
    (options, known, stop): (TraceOptions<'_>, &[Damage], &Stop),
    findings: &mut Findings,
) -> Summary {
    let info = store.pools().into_iter().find(|pool| pool.record.name == name);
    let at_rest = info.as_ref().map_or(AtRest::None, |info| info.at_rest);
    let mut unreached = 0;
    let verified = match at_rest {
        AtRest::None => Ok(()),
        _ => protected::pages_of_pool(store, name, findings, stop),
    };
    let checked =
        verified.and_then(|()| store.pool_with(name, Access::ReadOnly)).and_then(|pool| {
            let found = pool.damage();
            // `verify` has said it of a protected pool.
            for damage in
                found.iter().filter(|damage| at_rest == AtRest::None && !known.contains(damage))
            {
                findings.add("damage", Some(name), None, damage_text(damage));
            }
            let mut report = pool.check_with(options)?;
            overlaps(&pool, name, findings)?;
            if !found.is_empty() {
                // What only a missing part led to passes for a leak.
                unreached = report.leaked_blocks;
                (report.leaked_blocks, report.dangling_blocks) = (0, 0);
                (report.leaks, report.dangling) = (Vec::new(), Vec::new());
            }
            Ok(report)
        });
    match checked {
        Ok(report) => {
            heap(store, name, &report, findings);
            sound(name, &report, unreached)
        }
        // Nothing is wrong: which of its blocks are allocated is found by its next writer.
        Err(Error::TraceDue { .. }) => Summary {
            name: name.to_owned(),
            checked: false,
            is_locked: false,
            text: "not checked: it is recovered by tracing when it is next opened for writing"
                .into(),
            json: json!({ "pool": name, "recovery_due": true }),
        },
        Err(error) => match protected::locked_pool(&error, at_rest.mode()) {
            Some(text) => Summary {
                name: name.to_owned(),
                checked: false,
                is_locked: true,
                text,
                json: json!({ "pool": name, "locked": true }),
            },
            None => unreadable(name, info.as_ref(), error, known, findings),
        },
    }
}

/// A pool whose blocks were looked at. No root led to `unreached` of them, of a damaged pool.
fn sound(name: &str, report: &HeapReport, unreached: u64) -> Summary {
    let stats = &report.stats;
    let reached = report.trace.as_ref().map_or(0, |trace| trace.blocks);
    let waiting = report.values.as_ref().map_or(0, |values| values.waiting);
    Summary {
        name: name.to_owned(),
        checked: true,
        is_locked: false,
        text: format!(
            "{} ({}) in {}, {} reachable{}{}",
            plural(stats.blocks, "block"),
            bytes(stats.block_bytes),
            plural(stats.puddles, "puddle"),
            count(reached),
            match unreached {
                0 => String::new(),
                lost => format!(
                    "; no root leads to {}, which may be because of the damage",
                    plural(lost, "block")
                ),
            },
            match waiting {
                0 => String::new(),
                waiting => format!(", {} wait to be freed", count(waiting)),
            }
        ),
        json: json!({
            "pool": name, "blocks": stats.blocks, "block_bytes": stats.block_bytes,
            "puddles": stats.puddles, "bytes": stats.bytes, "reached_blocks": reached,
            "leaked_blocks": report.leaked_blocks, "leaked_bytes": report.leaked_bytes,
            "unallocated_blocks": report.unallocated_blocks,
            "dangling_blocks": report.dangling_blocks,
            "faults": report.trace.as_ref().map_or(0, |trace| trace.faults),
            "waiting_blocks": waiting,
            "invalid_values": report.values.as_ref().map_or(0, |values| values.invalid),
        }),
    }
}

/// A pool that cannot be opened. What is known of it already is no further finding.
fn unreadable(
    name: &str,
    info: Option<&PoolInfo>,
    error: Error,
    known: &[Damage],
    findings: &mut Findings,
) -> Summary {
    let is_said =
        |damage: &Damage| info.iter().any(|info| damage.pools().contains(&info.record.id));
    let is_known = known.iter().any(is_said);
    let is_listed = matches!(&error, Error::Store(StoreError::PoolDamaged { .. }));
    if let (false, Error::Store(StoreError::PoolDamaged { damage, .. })) = (is_known, &error) {
        for damage in damage {
            findings.add("damage", Some(name), None, damage_text(damage));
        }
    }
    let error = Failure::from(error).message().unwrap_or_default();
    if !is_known && !is_listed {
        findings.add("unreadable", Some(name), None, error.clone());
    }
    Summary {
        name: name.to_owned(),
        checked: false,
        is_locked: false,
        text: "cannot be checked".into(),
        json: json!({ "pool": name, "error": error }),
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
    for damage in &report.headers {
        findings.add("heap", Some(name), Some(damage.addr), damage.to_string());
    }
    for damage in &report.metadata {
        findings.add("heap", Some(name), None, damage.to_string());
    }
    for index in &report.damaged_roots {
        findings.add(
            "root",
            Some(name),
            None,
            format!("root {index} is damaged: its target is unknown"),
        );
    }
    blocks(store, name, report, findings);
    if let Some(trace) = &report.leak_trace {
        for fault in &trace.findings {
            let text = format!(
                "{fault}, {}; the pointer is in a leaked block",
                type_name(store, fault.target)
            );
            findings.add("pointer", Some(name), Some(fault.at), text);
        }
        findings.more("pointer", trace.faults.saturating_sub(trace.findings.len() as u64));
    }
    for addr in &report.miscounted {
        let text =
            format!("the superblock at {addr:#x} has another number of blocks than its marks say");
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
                "type {id} has blocks, but the store has no record of it: each of their words was \
                 treated as a possible pointer"
            );
            findings.add("type", Some(name), None, text);
        }
    }
}

/// Blocks that are allocated or reached, and not both.
fn blocks(store: &Store, name: &str, report: &HeapReport, findings: &mut Findings) {
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
    findings.more(
        "unallocated",
        report.unallocated_blocks.saturating_sub(report.unallocated.len() as u64),
    );
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
}
