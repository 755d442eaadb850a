//! `cenote format`: makes a store.

use crate::cli::Format;
use crate::failure::{Failure, Verdict};
use crate::output::{Out, asked, somebody_is_there};
use crate::units::bytes;
use cenote::{FormatOptions, Medium as _, MediumOptions, RealMedium, Store};
use serde_json::json;
use std::path::Path;

pub(crate) fn run(arguments: &Format, out: &mut Out) -> Result<Verdict, Failure> {
    let dir = &arguments.dir;
    let shown = dir.display();
    refuse_if_taken(dir)?;
    // A directory that is missing will lie where its parent lies.
    let parent = dir.parent().filter(|parent| !parent.as_os_str().is_empty()).unwrap_or(Path::new("."));
    let examined = if dir.is_dir() { dir } else { parent };
    let options = FormatOptions {
        window_base: arguments.window_base,
        window_len: arguments.window_size,
        ..FormatOptions::default()
    };
    cenote_store::check_options(&options).map_err(cenote::Error::from)?;
    let medium = RealMedium::open(examined, &MediumOptions::default())?;
    if dir.is_dir() {
        cenote_store::check_directory(&medium).map_err(cenote::Error::from)?;
    }
    let info = medium.describe();
    if arguments.care.dry_run {
        out.line(format_args!(
            "would make a store in {shown}, on {}, durability {}, with a window of {}",
            info.fs,
            info.durability,
            bytes(arguments.window_size)
        ))?;
        out.object(&json!({
            "path": shown.to_string(), "dry_run": true, "file_system": info.fs,
            "durability": info.durability.to_string(), "window_bytes": arguments.window_size,
        }))?;
        return Ok(Verdict::Clean);
    }
    if !arguments.care.yes && somebody_is_there() {
        let question = format!("make a store in {shown}, on {}, durability {}?", info.fs, info.durability);
        if !asked(&question)? {
            return Err(Failure::Usage(format!("{shown} was left as it is: nobody said yes")));
        }
    }
    let uuid = Store::format(dir, &options)?;
    out.line(format_args!(
        "{} made a store in {shown}, on {}, durability {}",
        out.good("done:"),
        info.fs,
        info.durability
    ))?;
    out.line(out.dim(&format!("next: cenote create {shown} NAME")))?;
    out.object(&json!({
        "path": shown.to_string(), "store": uuid.to_string(), "file_system": info.fs,
        "durability": info.durability.to_string(), "window_bytes": arguments.window_size,
    }))?;
    Ok(Verdict::Clean)
}

/// Says early, before anybody is asked, what `format` would say.
fn refuse_if_taken(dir: &Path) -> Result<(), Failure> {
    let shown = dir.display();
    if dir.join("superblock").exists() {
        return Err(Failure::Failed(format!(
            "{shown} holds a store already: choose another directory, or remove it with `cenote rm --store {shown}`"
        )));
    }
    Ok(())
}
