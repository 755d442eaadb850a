//! `cenote create`: makes a pool.

use super::ls::{guarded, heap, mode};
use crate::at_rest_modes::name_of;
use crate::cli::{Create, heap_with};
use crate::failure::{Failure, Verdict, closed};
use crate::keys;
use crate::opening;
use crate::output::Out;
use crate::units::bytes;
use cenote::{AtRest, HeapKind, PoolMode, PoolOptions, Store};
use cenote_object::Mode;
use cenote_store::StoreError;
use serde_json::json;
use std::sync::Arc;

pub(crate) fn run(arguments: &Create, out: &mut Out) -> Result<Verdict, Failure> {
    refuse_contradictions(arguments)?;
    let (dir, name) = (arguments.store.dir.display(), &arguments.pool);
    let key = keys::given(&arguments.store.key)?.map(Arc::new);
    let default = if key.is_some() { Mode::Authenticated } else { Mode::None };
    let protection = arguments.at_rest.unwrap_or(default);
    let kind_of_heap = heap_with(arguments.heap, arguments.wear_wait).map_err(Failure::Usage)?;
    let options_for = |store: &Store| {
        let mut usual = PoolOptions::for_medium(&store.info().medium);
        if protection != Mode::None {
            usual.mode = PoolMode::Shadowed;
        }
        PoolOptions {
            heap: kind_of_heap,
            at_rest: AtRest::of(protection),
            key: key.clone(),
            protect: arguments.protect,
            puddle_size: arguments.size,
            size_max: arguments.size_max.unwrap_or(u64::MAX),
            mode: arguments.mode.unwrap_or(usual.mode),
            ..usual
        }
    };
    let kept = opening::asked_to_change(&arguments.store)?;
    if arguments.dry_run {
        let store = kept.map_or_else(|| opening::to_look(&arguments.store), Ok)?;
        let options = options_for(&store);
        if store.is_connected() && store.pools().iter().any(|pool| pool.record.name == *name) {
            return Err(StoreError::PoolExists { name: name.clone() }.into());
        }
        if !store.is_connected() {
            store.refuse_new_pool(name, &options)?;
        }
        out.line(format_args!(
            "would create pool \"{name}\" of {}, {}, in {dir}",
            bytes(options.puddle_size),
            kind(&options)
        ))?;
        out.object(&json!({
            "pool": name, "bytes": options.puddle_size, "mode": mode(options.mode, AtRest::None),
            "at_rest": name_of(protection), "heap": heap(options.heap),
            "protect": options.protect.to_string(), "dry_run": true,
        }))?;
        return Ok(Verdict::Clean);
    }
    // Looked at first: what cannot be changes no byte, not even of the superblock. What keeps from
    // looking is said by the open for writing.
    if kept.is_none()
        && let Ok(looked) = opening::to_look(&arguments.store)
    {
        looked.refuse_new_pool(name, &options_for(&looked))?;
    }
    let store = kept.map_or_else(|| opening::to_change(&arguments.store), Ok)?;
    let options = options_for(&store);
    let id = store.add_pool(name, &options)?;
    closed(store.close())?;
    out.line(format_args!(
        "{} created pool \"{name}\" of {}, {}, in {dir}",
        out.good("done:"),
        bytes(options.puddle_size),
        kind(&options)
    ))?;
    out.object(&json!({
        "pool": name, "id": id.0, "bytes": options.puddle_size,
        "mode": mode(options.mode, AtRest::None),
        "at_rest": name_of(protection), "heap": heap(options.heap),
        "protect": options.protect.to_string(),
    }))?;
    Ok(Verdict::Clean)
}

/// What a pool is, for people.
fn kind(options: &PoolOptions) -> String {
    let mode = guarded(mode(options.mode, options.at_rest), options.protect);
    match options.heap {
        HeapKind::Traced => mode,
        HeapKind::Logged => format!("{mode}, logged heap"),
        HeapKind::Wear { wait_ms } => {
            format!("{mode}, wear heap (freed blocks wait for {wait_ms} ms)")
        }
    }
}

/// Options that no pool can have together.
fn refuse_contradictions(arguments: &Create) -> Result<(), Failure> {
    let key = arguments.store.key.is_given();
    let no_key = matches!(arguments.at_rest, Some(Mode::None | Mode::Integrity));
    let why = match (arguments.at_rest, arguments.mode) {
        _ if key && no_key => {
            "such a pool has no key: leave out --key-file and --passphrase-file, or choose another \
             --at-rest"
        }
        (None | Some(Mode::None), Some(PoolMode::Direct)) if !key => return Ok(()),
        (Some(mode), _) if mode.has_key() && !key => {
            "such a pool needs a key: name one with --key-file or --passphrase-file"
        }
        (_, Some(PoolMode::Direct)) => {
            "a pool in direct mode cannot be protected at rest: leave out the key and --at-rest, \
             or choose --mode shadowed"
        }
        _ => return Ok(()),
    };
    Err(Failure::Usage(why.into()))
}
