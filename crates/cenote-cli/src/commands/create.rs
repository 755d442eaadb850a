//! `cenote create`: makes a pool.

use super::keys;
use super::ls::mode;
use crate::cli::Create;
use crate::failure::{Failure, Verdict, closed};
use crate::opening;
use crate::output::Out;
use crate::units::bytes;
use cenote::{AtRest, PoolMode, PoolOptions, Store};
use cenote_object::Mode;
use serde_json::json;
use std::sync::Arc;

pub(crate) fn run(arguments: &Create, out: &mut Out) -> Result<Verdict, Failure> {
    let (dir, name) = (arguments.store.dir.display(), &arguments.pool);
    let key = keys::given(&arguments.store.key)?.map(Arc::new);
    let default = if key.is_some() { Mode::Authenticated } else { Mode::None };
    let protection = arguments.at_rest.unwrap_or(default);
    let options_for = |store: &Store| {
        let mut usual = PoolOptions::for_medium(&store.info().medium);
        if protection != Mode::None {
            usual.mode = PoolMode::Shadowed;
        }
        PoolOptions {
            at_rest: AtRest::of(protection),
            key: key.clone(),
            puddle_size: arguments.size,
            size_max: arguments.size_max.unwrap_or(u64::MAX),
            mode: arguments.mode.unwrap_or(usual.mode),
            ..usual
        }
    };
    let kind = |options: &PoolOptions| mode(options.mode, options.at_rest);
    if arguments.dry_run {
        let store = opening::to_look(&arguments.store)?;
        let options = options_for(&store);
        store.refuse_new_pool(name, &options)?;
        out.line(format_args!(
            "would create pool \"{name}\" of {}, {}, in {dir}",
            bytes(options.puddle_size),
            kind(&options)
        ))?;
        out.object(&json!({
            "pool": name, "bytes": options.puddle_size, "mode": mode(options.mode, AtRest::None),
            "at_rest": keys::name_of(protection), "dry_run": true,
        }))?;
        return Ok(Verdict::Clean);
    }
    // Looked at first: what cannot be changes no byte, not even of the superblock. What keeps from looking is said by the open for writing.
    if let Ok(looked) = opening::to_look(&arguments.store) {
        looked.refuse_new_pool(name, &options_for(&looked))?;
    }
    let store = opening::to_change(&arguments.store)?;
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
        "pool": name, "id": id.0, "bytes": options.puddle_size, "mode": mode(options.mode, AtRest::None),
        "at_rest": keys::name_of(protection),
    }))?;
    Ok(Verdict::Clean)
}
