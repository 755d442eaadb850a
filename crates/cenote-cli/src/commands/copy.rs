//! `cenote copy`: a pool that holds what another one holds, with a heap of another kind.
//!
//! The copy is like its source but for the heap. A copy that a crash or Ctrl-C has stopped goes on
//! by the same command.

use super::ls::heap;
use super::stats::chosen;
use crate::cli::{ChangedStore, CopyPool, heap_with};
use crate::failure::{Failure, STORE, Verdict, closed, word};
use crate::keys;
use crate::opening;
use crate::output::Out;
use crate::progress;
use crate::stop::Stop;
use crate::units::{bytes, plural};
use cenote::{
    Access, CopyOptions, CopyPhase, CopyProgress, CopyRefused, Error, HeapKind, PoolInfo,
    PoolOptions, Store,
};
use serde_json::json;
use std::sync::Arc;

pub(crate) fn run(arguments: &CopyPool, out: &mut Out) -> Result<Verdict, Failure> {
    let stop = Stop::install();
    let (from, name) = (&arguments.pool, &arguments.name);
    let store = opened(&arguments.store, from, name)?;
    let mut options = CopyOptions::new(pool_options(&store, arguments)?);
    let bar = progress::bar(0, "copying", out.is_json());
    let mut show = |at: &CopyProgress| {
        bar.set_prefix(match at.phase {
            CopyPhase::Comparing => "comparing",
            CopyPhase::Clearing => "clearing",
            _ => "copying",
        });
        bar.set_length(at.found);
        bar.set_position(at.blocks);
        bar.set_message("blocks");
        stop.flow()
    };
    options.progress = Some(&mut show);
    let copied = store.copy_pool(from, name, options);
    bar.finish_and_clear();
    let copy = match copied {
        Ok(copy) => copy,
        Err(error) => {
            let failure = because(&store, from, name, error);
            store.close()?;
            return Err(failure);
        }
    };
    closed(store.close())?;
    out.line(format_args!(
        "{} pool \"{name}\" is a copy of \"{from}\": {} ({}), {} heap",
        out.good("done:"),
        plural(copy.blocks, "block"),
        bytes(copy.bytes),
        heap(copy.heap),
    ))?;
    out.object(&json!({
        "pool": name, "id": copy.id.0, "from": from, "heap": heap(copy.heap),
        "blocks": copy.blocks, "bytes": copy.bytes, "resumed": copy.resumed,
    }))?;
    Ok(Verdict::Clean)
}

/// The store, opened to change it. A source that cannot be opened changes no byte; one of a copy
/// that is there already may be gone, because the end of a copy does not need it.
fn opened(store: &ChangedStore, from: &str, name: &str) -> Result<Store, Failure> {
    if let Some(kept) = opening::asked_to_change(store)? {
        return Ok(kept);
    }
    if !store.give_up_journal {
        let looked = opening::to_look(store)?;
        if find(&looked, name).is_none() {
            chosen(&looked, &[from.to_owned()])?;
        }
    }
    opening::to_change(store)
}

fn find(store: &Store, name: &str) -> Option<PoolInfo> {
    store.pools().into_iter().find(|pool| pool.record.name == name)
}

/// A pool like the source, or like what is there of the copy.
fn pool_options(store: &Store, arguments: &CopyPool) -> Result<PoolOptions, Failure> {
    let there = find(store, &arguments.name);
    let kind = there.as_ref().map(|there| there.record.heap);
    let like = match there.or_else(|| find(store, &arguments.pool)) {
        Some(like) => like,
        None => {
            chosen(store, std::slice::from_ref(&arguments.pool))?;
            return Ok(PoolOptions::default());
        }
    };
    let record = like.record;
    let key = if like.at_rest.mode().has_key() { keys::given(&arguments.store.key)? } else { None };
    let like_there = match (arguments.heap, kind.unwrap_or(record.heap)) {
        (Some(HeapKind::Wear { .. }), like @ HeapKind::Wear { .. }) => like,
        (asked, like) => asked.unwrap_or(like),
    };
    let heap = heap_with(like_there, arguments.wear_wait).map_err(Failure::Usage)?;
    Ok(PoolOptions {
        heap,
        mode: record.mode,
        puddle_size: record.puddle_size,
        size_max: record.size_max,
        permissions: record.permissions,
        at_rest: like.at_rest,
        key: key.map(Arc::new),
        protect: like.protect,
    })
}

/// Why there is no copy, or only a part of one: then also how to go on.
fn because(store: &Store, from: &str, name: &str, error: Error) -> Failure {
    if let Error::Copy(CopyRefused::Stopped { .. }) = error {
        return Failure::Interrupted(format!(
            "stopped: pool \"{name}\" is an unfinished copy of pool \"{from}\"; `cenote copy` goes \
             on, and `cenote rm` removes it"
        ));
    }
    let says_how = matches!(error, Error::Copy(_));
    let is_unfinished = || {
        let opened = store.pool_with(name, Access::ReadOnly);
        matches!(opened, Err(Error::Copy(CopyRefused::Unfinished { .. })))
    };
    match Failure::from(error) {
        Failure::Failed(why) if !says_how && is_unfinished() => Failure::Failed(format!(
            "{why}; pool \"{name}\" is an unfinished copy: the same command goes on, and `cenote \
             rm {STORE} {}` removes it",
            word(name)
        )),
        failure => failure,
    }
}
