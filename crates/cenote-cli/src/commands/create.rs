//! `cenote create`: makes a pool.

use crate::cli::Create;
use crate::failure::{Failure, Verdict};
use crate::opening;
use crate::output::Out;
use crate::units::bytes;
use cenote::PoolOptions;
use serde_json::json;

pub(crate) fn run(arguments: &Create, out: &mut Out) -> Result<Verdict, Failure> {
    let (dir, name) = (arguments.store.dir.display(), &arguments.pool);
    let options = PoolOptions {
        puddle_size: arguments.size,
        size_max: arguments.size_max.unwrap_or(u64::MAX),
        ..PoolOptions::default()
    };
    if arguments.dry_run {
        let store = opening::to_look(&arguments.store)?;
        store.refuse_new_pool(name, &options)?;
        out.line(format_args!("would create pool \"{name}\" of {} in {dir}", bytes(options.puddle_size)))?;
        out.object(&json!({ "pool": name, "bytes": options.puddle_size, "dry_run": true }))?;
        return Ok(Verdict::Clean);
    }
    // Looked at first: what cannot be changes no byte, not even of the superblock. What keeps from looking is said by the open for writing.
    if let Ok(looked) = opening::to_look(&arguments.store) {
        looked.refuse_new_pool(name, &options)?;
    }
    let store = opening::to_change(&arguments.store)?;
    let id = store.add_pool(name, &options)?;
    store.close()?;
    out.line(format_args!(
        "{} created pool \"{name}\" of {} in {dir}",
        out.good("done:"),
        bytes(options.puddle_size)
    ))?;
    out.object(&json!({ "pool": name, "id": id.0, "bytes": options.puddle_size }))?;
    Ok(Verdict::Clean)
}
