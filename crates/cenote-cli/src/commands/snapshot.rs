//! `cenote snapshot` and `cenote restore`: objects in files of their own.

use super::object::{objects_of, to_change, to_look};
use crate::at_rest_modes::name_of;
use crate::cli::{Restore, Snapshot};
use crate::failure::{Failure, Verdict, closed};
use crate::keys;
use crate::opening;
use crate::output::Out;
use crate::stop::Stop;
use crate::units::bytes;
use cenote_object::Blocks;
use serde_json::json;

pub(crate) fn run(arguments: &Snapshot, out: &mut Out) -> Result<Verdict, Failure> {
    let (_store, objects) = match opening::asked(&arguments.store)? {
        Some(store) => {
            let objects = objects_of(&store)?;
            (store, objects)
        }
        None => to_look(&arguments.store)?,
    };
    let blocks = if arguments.copy { Blocks::Copied } else { Blocks::SharedIfPossible };
    let stop = Stop::install();
    let goes_on = || !stop.is_set();
    let made = objects.snapshot_while(&arguments.object, &arguments.file, blocks, &goes_on);
    let made = made.map_err(|error| match stop.is_set() {
        true => Failure::Interrupted("stopped; nothing was kept".into()),
        false => error.into(),
    })?;
    let (name, file) = (&arguments.object, arguments.file.display().to_string());
    let how = match (made.shared, arguments.copy) {
        (true, _) => "it shares the object's blocks, nothing was copied",
        (false, true) => "copied",
        (false, false) => "copied, because blocks cannot be shared there",
    };
    out.line(format_args!(
        "{} snapshot of object \"{name}\" in {file}, {}: {how}",
        out.good("done:"),
        bytes(made.bytes)
    ))?;
    out.object(
        &json!({ "object": name, "file": file, "bytes": made.bytes, "reflink": made.shared }),
    )?;
    Ok(Verdict::Clean)
}

pub(crate) fn restore(arguments: &Restore, out: &mut Out) -> Result<Verdict, Failure> {
    let (store, objects) = to_change(&arguments.store, out)?;
    let key = keys::given(&arguments.store.key)?;
    let made = match (&arguments.name, &key) {
        (Some(name), Some(key)) => objects.restore_as(&arguments.file, name, key)?,
        (name, _) => objects.restore(&arguments.file, name.as_deref())?,
    };
    drop(objects);
    closed(store.close())?;
    let (record, address) = (&made.object.record, format!("{:#x}", made.object.data_addr()));
    out.line(format_args!(
        "{} object \"{}\" of {} at {address}",
        out.good("done:"),
        record.name,
        bytes(record.data_len)
    ))?;
    if made.of.name != record.name {
        out.line(format_args!(
            "{} it is a snapshot of object \"{}\"",
            out.warn("renamed:"),
            made.of.name
        ))?;
    }
    let moved_from = made.moved_from.map(|addr| format!("{addr:#x}"));
    if let Some(before) = &moved_from {
        out.line(format_args!(
            "{} it was at {before}: pointers into it do not hold",
            out.warn("moved:")
        ))?;
    }
    out.object(&json!({
        "object": record.name, "file": arguments.file.display().to_string(),
        "bytes": record.data_len, "address": address,
        "moved_from": moved_from, "of": made.of.name, "of_store": made.of.store.to_string(),
        "at_rest": name_of(record.at_rest.mode()),
    }))?;
    Ok(Verdict::Clean)
}
