//! `cenote finish-frees`: frees the blocks whose owners are gone. Ctrl-C ends it between two pools.

use super::each::each;
use super::stats::chosen;
use crate::cli::FinishFrees;
use crate::failure::{Failure, Verdict};
use crate::opening;
use crate::output::Out;
use crate::stop::Stop;
use crate::units::plural;
use cenote::Access;
use serde_json::json;

pub(crate) fn run(arguments: &FinishFrees, out: &mut Out) -> Result<Verdict, Failure> {
    // Looked at first: a pool that is not there changes no byte.
    let looked = opening::to_look(&arguments.store)?;
    let names = chosen(&looked, &arguments.pools)?;
    if arguments.dry_run {
        return each(&names, &arguments.pools, out, |name, out| {
            let report = looked.pool_with(name, Access::ReadOnly)?.check()?;
            let waiting = report.values.map_or(0, |values| values.waiting);
            let blocks = plural(waiting, "block");
            out.line(format_args!("would free {blocks} of pool \"{name}\""))?;
            out.object(&json!({ "pool": name, "freed_blocks": waiting, "dry_run": true }))?;
            Ok(Verdict::Clean)
        });
    }
    drop(looked);
    let stop = Stop::install();
    let store = opening::to_change(&arguments.store)?;
    let verdict = each(&names, &arguments.pools, out, |name, out| {
        if stop.is_set() {
            let text =
                format!("stopped before pool \"{name}\"; run the command again for the rest");
            return Err(Failure::Interrupted(text));
        }
        let freed = store.pool(name)?.finish_frees()?;
        let (done, blocks) = (out.good("done:"), plural(freed, "block"));
        out.line(format_args!("{done} freed {blocks} of pool \"{name}\""))?;
        out.object(&json!({ "pool": name, "freed_blocks": freed }))?;
        Ok(Verdict::Clean)
    });
    store.close()?;
    verdict
}
