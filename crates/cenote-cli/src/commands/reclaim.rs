//! `cenote reclaim`: gives back what was allocated in pools and never attached to anything that a
//! root leads to.
//!
//! With `-n` the store is opened to be looked at, and nothing is written.

use super::each::each;
use super::stats::{chosen, type_name};
use crate::cli::Reclaim;
use crate::failure::{Failure, Verdict};
use crate::opening;
use crate::output::Out;
use crate::progress;
use crate::stop::Stop;
use crate::units::{bytes, plural};
use cenote::{
    Access, Error, ReclaimOptions, ReclaimProgress, ReclaimRefused, ReclaimReport, Store,
};
use cenote_store::StoreError;
use serde_json::{Value, json};

pub(crate) fn run(arguments: &Reclaim, out: &mut Out) -> Result<Verdict, Failure> {
    let dry_run = arguments.dry_run;
    let stop = Stop::install();
    let (store, access) = if dry_run {
        (opening::to_look(&arguments.store)?, Access::ReadOnly)
    } else {
        (opening::to_change(&arguments.store)?, Access::ReadWrite)
    };
    let names = chosen(&store, &arguments.pools)?;
    let verdict = each(&names, &arguments.pools, out, |name, out| {
        if stop.is_set() {
            return Err(stopped(name));
        }
        let pool = store.pool_with(name, access)?;
        // As many as can be reached; some are leaks, and the bar ends before it is full.
        let allocated = pool.stats()?.blocks;
        let bar = progress::bar(allocated, "tracing blocks", out.is_json());
        let mut show = |so_far: &ReclaimProgress| {
            bar.set_position(so_far.reached_blocks.min(allocated));
            stop.flow()
        };
        let mut options = ReclaimOptions::default();
        options.dry_run = dry_run;
        options.progress = Some(&mut show);
        let report = pool.reclaim_with(options);
        bar.finish_and_clear();
        let report = report.map_err(|error| because(&store, name, error, &stop))?;
        told(&store, name, dry_run, &report, out)?;
        Ok(Verdict::Clean)
    });
    if !dry_run {
        store.close()?;
    }
    verdict
}

/// What was given back of a pool, or would be.
fn told(
    store: &Store,
    name: &str,
    dry_run: bool,
    report: &ReclaimReport,
    out: &mut Out,
) -> Result<(), Failure> {
    let leaks = format!("{} ({})", plural(report.blocks, "block"), bytes(report.bytes));
    match (report.blocks, dry_run) {
        (0, _) => out.line(format_args!("{} pool \"{name}\" has no leaks", out.good("sound:")))?,
        (_, true) => out.line(format_args!("would free {leaks} of pool \"{name}\""))?,
        (_, false) => {
            out.line(format_args!("{} freed {leaks} of pool \"{name}\"", out.good("done:")))?;
        }
    }
    for of_type in &report.types {
        out.line(format_args!(
            "  {}: {} ({})",
            type_name(store, of_type.type_id),
            plural(of_type.blocks, "block"),
            bytes(of_type.bytes)
        ))?;
    }
    if dry_run {
        for block in &report.listed {
            let text = format!("  {:#x}, {}", block.addr, bytes(block.size));
            out.line(format_args!("{} ({})", out.dim(&text), type_name(store, block.type_id)))?;
        }
        let unlisted = report.blocks - report.listed.len() as u64;
        if unlisted > 0 {
            out.line(format_args!("  and {} more", plural(unlisted, "block")))?;
        }
    }
    out.object(&json!({
        "pool": name, "dry_run": dry_run, "blocks": report.blocks, "bytes": report.bytes,
        "types": report.types.iter().map(|of_type| json!({
            "type": type_name(store, of_type.type_id), "blocks": of_type.blocks,
            "bytes": of_type.bytes,
        })).collect::<Vec<Value>>(),
        "listed": report.listed.iter().map(|block| json!({
            "addr": format!("{:#x}", block.addr), "bytes": block.size,
            "type": type_name(store, block.type_id),
        })).collect::<Vec<Value>>(),
        "reached_blocks": report.reached_blocks, "slices": report.slices,
        "longest_hold_us": report.longest_hold.as_micros() as u64,
    }))
}

fn stopped(name: &str) -> Failure {
    Failure::Interrupted(format!(
        "stopped at pool \"{name}\"; what was freed stays free; `cenote reclaim` goes on"
    ))
}

/// Why leaks of a pool were not given back. Another pool that keeps from it says why itself.
fn because(store: &Store, name: &str, error: Error, stop: &Stop) -> Failure {
    if stop.is_set() {
        return stopped(name);
    }
    let role = |other: &str| {
        format!("pool \"{other}\" may lead to values of pool \"{name}\", and has to be read too")
    };
    let about = match &error {
        Error::Store(
            StoreError::AtRest { name, .. }
            | StoreError::PoolDamaged { name, .. }
            | StoreError::PoolLogDamaged { name, .. }
            | StoreError::PoolNotCovered { name }
            | StoreError::PoolTorn { name },
        ) => Some(name.clone()),
        Error::Reclaim(ReclaimRefused::OtherPool { other, .. }) => Some(other.clone()),
        _ => None,
    };
    match (about.filter(|other| other != name), error) {
        (Some(other), Error::Reclaim(error)) => {
            let refused = store.pool_with(&other, Access::ReadOnly).err();
            let why = refused.map_or_else(|| Failure::failed(error), Failure::from);
            why.after(&role(&other))
        }
        (Some(other), error) => Failure::from(error).after(&role(&other)),
        (None, error) => error.into(),
    }
}
