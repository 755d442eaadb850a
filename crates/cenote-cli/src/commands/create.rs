//! `cenote create`: makes a pool.

use super::ls::mode;
use crate::cli::Create;
use crate::failure::{Failure, Verdict};
use crate::opening;
use crate::output::Out;
use crate::units::bytes;
use cenote::{PoolOptions, Store};
use serde_json::json;

pub(crate) fn run(arguments: &Create, out: &mut Out) -> Result<Verdict, Failure> {
    let (dir, name) = (arguments.store.dir.display(), &arguments.pool);
    let options_for = |store: &Store| {
        let usual = PoolOptions::for_medium(&store.info().medium);
        PoolOptions {
            puddle_size: arguments.size,
            size_max: arguments.size_max.unwrap_or(u64::MAX),
            mode: arguments.mode.unwrap_or(usual.mode),
            ..usual
        }
    };
    if arguments.dry_run {
        let store = opening::to_look(&arguments.store)?;
        let options = options_for(&store);
        store.refuse_new_pool(name, &options)?;
        out.line(format_args!(
            "would create pool \"{name}\" of {}, {}, in {dir}",
            bytes(options.puddle_size),
            mode(options.mode)
        ))?;
        out.object(&json!({
            "pool": name, "bytes": options.puddle_size, "mode": mode(options.mode), "dry_run": true,
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
    store.close()?;
    out.line(format_args!(
        "{} created pool \"{name}\" of {}, {}, in {dir}",
        out.good("done:"),
        bytes(options.puddle_size),
        mode(options.mode)
    ))?;
    out.object(
        &json!({ "pool": name, "id": id.0, "bytes": options.puddle_size, "mode": mode(options.mode) }),
    )?;
    Ok(Verdict::Clean)
}
