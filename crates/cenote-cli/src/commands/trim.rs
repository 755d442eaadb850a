//! `cenote trim`: gives the space of free superblocks back to the file system. Ctrl-C ends it
//! between two superblocks.

use super::each::each;
use super::stats::chosen;
use crate::cli::Trim;
use crate::failure::{Failure, Verdict};
use crate::opening;
use crate::output::Out;
use crate::progress;
use crate::stop::Stop;
use crate::units::bytes;
use cenote::Access;
use cenote_layout::heap::SUPERBLOCK_SIZE;
use serde_json::json;

pub(crate) fn run(arguments: &Trim, out: &mut Out) -> Result<Verdict, Failure> {
    // Looked at first: a pool that is not there changes no byte.
    let looked = opening::to_look(&arguments.store)?;
    let names = chosen(&looked, &arguments.pools)?;
    if arguments.dry_run {
        return each(&names, &arguments.pools, out, |name, out| {
            let stats = looked.pool_with(name, Access::ReadOnly)?.stats()?;
            let free = (stats.free_superblocks - stats.hole_superblocks) * SUPERBLOCK_SIZE;
            out.line(format_args!("would give back {} of pool \"{name}\"", bytes(free)))?;
            out.object(&json!({ "pool": name, "released_bytes": free, "dry_run": true }))?;
            Ok(Verdict::Clean)
        });
    }
    drop(looked);
    let stop = Stop::install();
    let store = opening::to_change(&arguments.store)?;
    let verdict = each(&names, &arguments.pools, out, |name, out| {
        if stop.is_set() {
            return Err(stopped(name));
        }
        let pool = store.pool(name)?;
        let bar = progress::bar(0, "giving back space", out.is_json());
        let report = pool.trim_with(&mut |at| {
            bar.set_length(at.bytes >> 20);
            bar.set_position(at.looked_at_bytes >> 20);
            bar.set_message(format!("MiB of {name}"));
            stop.flow()
        });
        bar.finish_and_clear();
        let report = report?;
        let given = bytes(report.released_bytes);
        match report.unsupported {
            true => out.line(format_args!(
                "{} pool \"{name}\" keeps its space: this file system cannot free a part of a file",
                out.warn("kept:")
            ))?,
            false => out
                .line(format_args!("{} gave back {given} of pool \"{name}\"", out.good("done:")))?,
        }
        out.object(&json!({
            "pool": name, "released_bytes": report.released_bytes, "hole_bytes": report.hole_bytes,
            "supported": !report.unsupported,
        }))?;
        match stop.is_set() {
            true => Err(stopped(name)),
            false => Ok(Verdict::Clean),
        }
    });
    store.close()?;
    verdict
}

/// The user has asked to stop before the end of this pool.
fn stopped(name: &str) -> Failure {
    Failure::Interrupted(format!(
        "stopped in pool \"{name}\"; the space that was given back stays free: `cenote trim` gives \
         back the rest"
    ))
}
