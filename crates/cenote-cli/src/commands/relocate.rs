//! `cenote clone`, `cenote randomize` and `cenote relocate`: a copy of a pool beside it, new addresses for one, and rewriting what is still to be rewritten.

use super::stats::chosen;
use crate::cli::{ClonePool, Randomize, Relocate};
use crate::failure::{Failure, Verdict};
use crate::opening;
use crate::output::Out;
use crate::progress;
use crate::units::plural;
use cenote::{Access, Rewritten, Store};
use serde_json::json;

pub(crate) fn clone(arguments: &ClonePool, out: &mut Out) -> Result<Verdict, Failure> {
    // Looked at first: a pool that is not there changes no byte.
    opening::to_look(&arguments.store)?.pool_with(&arguments.pool, Access::ReadOnly)?;
    let store = opening::to_change(&arguments.store)?;
    let copy = store.clone_pool(&arguments.pool, &arguments.name)?;
    out.line(format_args!(
        "{} pool \"{}\" is a copy of \"{}\": {} to be rewritten when touched",
        out.good("done:"),
        copy.name,
        arguments.pool,
        plural(copy.due, "puddle"),
    ))?;
    let done = if arguments.eager { Some(finish(&store, &copy.name, out)?) } else { None };
    out.object(&json!({
        "pool": copy.name, "id": copy.id.0, "from": arguments.pool, "due_puddles": if done.is_some() { 0 } else { copy.due },
        "rewritten": done.as_ref().map(as_json),
    }))?;
    store.close()?;
    Ok(verdict(done.as_ref()))
}

pub(crate) fn randomize(arguments: &Randomize, out: &mut Out) -> Result<Verdict, Failure> {
    opening::to_look(&arguments.store)?.pool_with(&arguments.pool, Access::ReadOnly)?;
    let store = opening::to_change(&arguments.store)?;
    store.randomize_pool(&arguments.pool)?;
    let due: u64 = store.pools().iter().map(|pool| pool.due).sum();
    out.line(format_args!(
        "{} pool \"{}\" has new addresses: {} of the store's pools to be rewritten when touched",
        out.good("done:"),
        arguments.pool,
        plural(due, "puddle"),
    ))?;
    let mut done = None;
    if arguments.eager {
        let mut sum = Rewritten::default();
        for pool in store.pools() {
            sum.add(&finish(&store, &pool.record.name, out)?);
        }
        done = Some(sum);
    }
    out.object(&json!({
        "pool": arguments.pool, "due_puddles": if done.is_some() { 0 } else { due }, "rewritten": done.as_ref().map(as_json),
    }))?;
    store.close()?;
    Ok(verdict(done.as_ref()))
}

pub(crate) fn run(arguments: &Relocate, out: &mut Out) -> Result<Verdict, Failure> {
    let names = chosen(&opening::to_look(&arguments.store)?, &arguments.pools)?;
    let store = opening::to_change(&arguments.store)?;
    let mut whole = true;
    for name in &names {
        let done = finish(&store, name, out)?;
        whole &= done.is_whole();
        out.object(&json!({ "pool": name, "rewritten": as_json(&done) }))?;
    }
    store.close()?;
    Ok(Verdict::found(!whole))
}

/// Rewrites all of a pool now, with a progress bar.
pub(crate) fn finish(store: &Store, name: &str, out: &mut Out) -> Result<Rewritten, Failure> {
    // Opening the pool touches its root puddle.
    let before = store.rewritten();
    let pool = store.pool_with(name, Access::ReadOnly)?;
    let bar = progress::bar(0, "rewriting", out.is_json());
    let done = pool.finish_relocation(&mut |at| {
        bar.set_length(at.bytes_total >> 20);
        bar.set_position(at.bytes >> 20);
        bar.set_message(format!("MiB of {name}"));
    });
    bar.finish_and_clear();
    done?;
    let done = store.rewritten().since(&before);
    let pointers = done.native + done.relative + done.region;
    out.line(format_args!("pool \"{name}\": {} rewritten", plural(pointers, "pointer")))?;
    if done.kept > 0 || done.out_of_reach > 0 {
        out.line(format_args!(
            "{} {} may lead to where something was, and only the program knows (the first at {:#x})",
            out.warn("kept:"),
            plural(done.kept + done.out_of_reach, "word"),
            done.first_kept,
        ))?;
    }
    if done.damaged > 0 {
        out.line(format_args!(
            "{} {} kept as they are",
            out.warn("damaged:"),
            plural(done.damaged, "superblock")
        ))?;
    }
    Ok(done)
}

fn as_json(done: &Rewritten) -> serde_json::Value {
    json!({
        "blocks": done.blocks, "native": done.native, "relative": done.relative, "region": done.region, "kept": done.kept,
        "out_of_reach": done.out_of_reach, "damaged_superblocks": done.damaged,
    })
}

fn verdict(done: Option<&Rewritten>) -> Verdict {
    Verdict::found(done.is_some_and(|done| !done.is_whole()))
}
