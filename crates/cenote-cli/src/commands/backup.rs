//! `cenote backup`: a consistent copy of a store.
//!
//! The first Ctrl-C ends it at the next step, with nothing left. A second one ends it at once. The
//! files that it leaves then have another name than the target, and the next backup to that target
//! removes them.

use crate::cli::Backup;
use crate::failure::{Failure, Verdict, closed};
use crate::opening;
use crate::output::Out;
use crate::progress;
use crate::stop::Stop;
use crate::units::{bytes, plural};
use cenote::{BackedUp, Error};
use cenote_medium::MediumError;
use cenote_store::StoreError;
use serde_json::json;

/// What an open for writing says of a store that cannot be written.
const READ_ONLY: &str = "is mounted read-only";

pub(crate) fn run(arguments: &Backup, out: &mut Out) -> Result<Verdict, Failure> {
    let stop = Stop::install();
    let store = match opening::asked_to_change(&arguments.store)? {
        Some(store) => store,
        None => match opening::to_change(&arguments.store) {
            // One that was closed needs no recovery, and is copied as it lies.
            Err(Failure::Failed(text)) if text.contains(READ_ONLY) => {
                opening::to_look(&arguments.store)?
            }
            opened => opened.map_err(|failure| who_can(failure, arguments))?,
        },
    };
    let bar = progress::bar(0, "copying", out.is_json());
    let mut tell = |done: u64, all: u64| {
        bar.set_length(all >> 20);
        bar.set_position(done >> 20);
        bar.set_message("MiB");
        !stop.is_set()
    };
    let made = store.backup_with(&arguments.target, &mut tell).map_err(|error| match error {
        _ if stop.is_set() => Failure::Interrupted("stopped; nothing was kept".into()),
        // Of the two stores, only the copy is written.
        Error::Store(StoreError::Medium(full @ MediumError::NoSpace { .. })) => {
            Failure::from(full).in_store(Some(&arguments.target))
        }
        error => error.into(),
    })?;
    bar.finish_and_clear();
    let target = arguments.target.display().to_string();
    let made = match made {
        BackedUp::Durable(report) => report,
        BackedUp::Unsynced(_, why) => {
            return Err(Failure::Failed(format!(
                "done, but {why}: {target} is complete; run `sync`, or remove the copy and repeat \
                 the backup"
            )));
        }
    };
    let unchecked = !store.is_connected() && store.handle().is_unchecked_copy();
    closed(store.close())?;
    out.line(format_args!(
        "{} {} and {} ({}) copied to {target}",
        out.good("done:"),
        plural(made.pools, "pool"),
        plural(made.objects, "object"),
        bytes(made.bytes)
    ))?;
    for damage in &made.damage {
        out.line(format_args!("{} {damage}: the copy has the same damage", out.bad("damaged:")))?;
    }
    if unchecked {
        out.line(format_args!(
            "{} {} is a copy of a store that was not closed, and so is {target}: `cenote adopt \
             {target}` checks it",
            out.warn("unchecked:"),
            arguments.store.dir.display()
        ))?;
    }
    let damaged: Vec<String> = made.damage.iter().map(ToString::to_string).collect();
    out.object(&json!({
        "damaged": damaged, "path": target, "pools": made.pools, "objects": made.objects,
        "bytes": made.bytes,
        "again_bytes": made.again_bytes, "held_s": made.held.as_secs_f64(),
        "unchecked_copy": unchecked,
    }))?;
    Ok(Verdict::found(unchecked || !damaged.is_empty()))
}

/// Says who can copy a store that another process has open.
fn who_can(failure: Failure, arguments: &Backup) -> Failure {
    match failure {
        Failure::InUse(text) => Failure::InUse(format!(
            "{text}; a program that has {} open can copy it itself (Store::backup); if a daemon \
             has it open, give the daemon's socket instead of the directory",
            arguments.store.dir.display()
        )),
        failure => failure,
    }
}
