//! `cenote clone`, `cenote randomize` and `cenote relocate`: a copy of a pool beside it, new
//! addresses for one, and rewriting what is still to be rewritten.

use super::stats::chosen;
use crate::cli::{ChangedStore, ClonePool, Randomize, Relocate};
use crate::failure::{Failure, Verdict};
use crate::opening;
use crate::output::Out;
use crate::progress;
use crate::stop::Stop;
use crate::units::plural;
use cenote::{Access, PoolInfo, Rewritten, Store};
use serde_json::json;

/// Looks at a pool before anything is changed: one that is not there changes no byte. One that is
/// protected is opened only if a key was given; none is needed. Where the journal is to be given
/// up, what opens depends on that, and only the name is looked at.
fn look_first(store: &ChangedStore, pool: &str) -> Result<(), Failure> {
    let looked = opening::to_look(store)?;
    if store.give_up_journal {
        return chosen(&looked, &[pool.to_owned()]).map(drop);
    }
    let asks_for_key = |info: &PoolInfo| info.record.name == pool && info.at_rest.mode().has_key();
    if store.key.is_given() || !looked.pools().iter().any(asks_for_key) {
        looked.pool_with(pool, Access::ReadOnly)?;
    }
    Ok(())
}

pub(crate) fn clone(arguments: &ClonePool, out: &mut Out) -> Result<Verdict, Failure> {
    let stop = Stop::install();
    let (store, when) = to_move(&arguments.store, &arguments.pool)?;
    let copy = match arguments.reflink {
        true => store.clone_pool_sharing(&arguments.pool, &arguments.name)?,
        false => store.clone_pool(&arguments.pool, &arguments.name)?,
    };
    let how = match (copy.shared > 0, arguments.reflink) {
        (true, _) => "; it shares the original's blocks, nothing was copied",
        (false, true) => "; copied, because blocks cannot be shared there",
        (false, false) => "",
    };
    out.line(format_args!(
        "{} pool \"{}\" is a copy of \"{}\": {} to be rewritten when {when}{how}",
        out.good("done:"),
        copy.name,
        arguments.pool,
        plural(copy.pending, "puddle"),
    ))?;
    let done = arguments.eager.then(|| finish(&store, &copy.name, out, &stop)).transpose();
    let done = settle(store, done)?;
    out.object(&json!({
        "pool": copy.name, "id": copy.id.0, "from": arguments.pool,
        "due_puddles": if done.is_some() { 0 } else { copy.pending },
        "reflink": copy.shared > 0, "rewritten": done.as_ref().map(as_json),
    }))?;
    Ok(verdict(done.as_ref()))
}

pub(crate) fn randomize(arguments: &Randomize, out: &mut Out) -> Result<Verdict, Failure> {
    let stop = Stop::install();
    let (store, when) = to_move(&arguments.store, &arguments.pool)?;
    store.randomize_pool(&arguments.pool)?;
    // All of them are pending then, and a daemon does not say so pool by pool.
    let pending: u64 = store
        .pools()
        .iter()
        .map(|pool| if store.is_connected() { pool.puddles } else { pool.pending })
        .sum();
    out.line(format_args!(
        "{} pool \"{}\" has new addresses: {} of the store's pools to be rewritten when {when}",
        out.good("done:"),
        arguments.pool,
        plural(pending, "puddle"),
    ))?;
    let through = store.is_connected();
    let names = match through {
        // A daemon rewrites the others when a client opens them; not all of them may be this user's
        // to open.
        true => vec![arguments.pool.clone()],
        false => pending_pools(&store),
    };
    let done = arguments.eager.then(|| {
        names.iter().map(|name| finish(&store, name, out, &stop)).try_fold(
            Rewritten::default(),
            |mut sum, done| {
                sum.add(&done?);
                Ok(sum)
            },
        )
    });
    let done = settle(store, done.transpose())?;
    out.object(&json!({
        "pool": arguments.pool, "due_puddles": if done.is_some() && !through { 0 } else { pending },
        "rewritten": done.as_ref().map(as_json),
    }))?;
    Ok(verdict(done.as_ref()))
}

/// The store in which a pool is to be copied or moved, and when what has moved is rewritten there.
fn to_move(store: &ChangedStore, pool: &str) -> Result<(Store, &'static str), Failure> {
    if let Some(kept) = opening::asked_to_change(store)? {
        return Ok((kept, "their pools are opened"));
    }
    look_first(store, pool)?;
    Ok((opening::to_change(store)?, "touched"))
}

/// Pools of which something is still to be rewritten.
fn pending_pools(store: &Store) -> Vec<String> {
    store.pools().into_iter().filter(|pool| pool.pending > 0).map(|pool| pool.record.name).collect()
}

/// Closes the store, also after what was stopped: what is rewritten is, and the rest waits. Then
/// says what came of it.
fn settle<T>(store: Store, done: Result<T, Failure>) -> Result<T, Failure> {
    store.close()?;
    done
}

pub(crate) fn run(arguments: &Relocate, out: &mut Out) -> Result<Verdict, Failure> {
    let looked_at = opening::to_look(&arguments.store)?;
    let mut names = chosen(&looked_at, &arguments.pools)?;
    if arguments.pools.is_empty() {
        // Of the others nothing is to be done, and opening one may need a key.
        let pending = pending_pools(&looked_at);
        names.retain(|name| pending.contains(name));
    }
    drop(looked_at);
    let store = opening::to_change(&arguments.store)?;
    let (stop, mut whole) = (Stop::install(), true);
    if names.is_empty() {
        out.line(format_args!("{} nothing to rewrite", out.good("done:")))?;
    }
    let done = names.iter().try_for_each(|name| {
        let done = finish(&store, name, out, &stop)?;
        whole &= done.is_whole();
        out.object(&json!({ "pool": name, "rewritten": as_json(&done) }))
    });
    settle(store, done)?;
    Ok(Verdict::found(!whole))
}

/// Rewrites all of a pool now, with a progress bar. Stops between two puddles if the user asks for
/// that.
pub(crate) fn finish(
    store: &Store,
    name: &str,
    out: &mut Out,
    stop: &Stop,
) -> Result<Rewritten, Failure> {
    let stopped = || {
        let pending = store.pools().into_iter().find(|pool| pool.record.name == name);
        let pending = pending.map_or(0, |pool| pool.pending);
        Failure::Interrupted(format!(
            "stopped: {}; `cenote relocate` goes on",
            still_pending(name, pending)
        ))
    };
    if stop.is_set() {
        return Err(stopped());
    }
    // Opening the pool touches its root puddle.
    let before = store.rewritten();
    let pool = store.pool_with(name, Access::ReadOnly)?;
    if store.is_connected() {
        out.line(format_args!("pool \"{name}\": the daemon has rewritten its pending puddles"))?;
        return Ok(Rewritten::default());
    }
    let bar = progress::bar(0, "rewriting", out.is_json());
    let done = pool.finish_relocation(&mut |at| {
        bar.set_length(at.bytes_total >> 20);
        bar.set_position(at.bytes >> 20);
        bar.set_message(format!("MiB of {name}"));
        stop.flow()
    });
    bar.finish_and_clear();
    done?;
    if pool.pending_rewrites() > 0 {
        return Err(stopped());
    }
    let done = store.rewritten().since(&before);
    let pointers = done.native + done.relative + done.region;
    out.line(format_args!("pool \"{name}\": {} rewritten", plural(pointers, "pointer")))?;
    if done.kept > 0 || done.out_of_reach > 0 {
        out.line(format_args!(
            "{} {} may hold addresses from before the move; only the program can tell (the first \
             at {:#x})",
            out.warn("kept:"),
            plural(done.kept + done.out_of_reach, "word"),
            done.first_kept,
        ))?;
    }
    if done.damaged > 0 {
        out.line(format_args!(
            "{} {} left unchanged",
            out.warn("damaged:"),
            plural(done.damaged, "superblock")
        ))?;
    }
    Ok(done)
}

/// Says how many puddles of a pool wait.
pub(crate) fn still_pending(name: &str, pending: u64) -> String {
    let (puddles, are) = (plural(pending, "puddle"), if pending == 1 { "is" } else { "are" });
    format!(
        "{puddles} of pool \"{name}\" {are} still to be rewritten, each when it is first touched"
    )
}

fn as_json(done: &Rewritten) -> serde_json::Value {
    json!({
        "blocks": done.blocks, "native": done.native, "relative": done.relative,
        "region": done.region, "kept": done.kept,
        "out_of_reach": done.out_of_reach, "damaged_superblocks": done.damaged,
    })
}

fn verdict(done: Option<&Rewritten>) -> Verdict {
    Verdict::found(done.is_some_and(|done| !done.is_whole()))
}
