//! `cenote format`: makes a store.

use crate::cli::Format;
use crate::failure::{Failure, Verdict};
use crate::output::{Out, a_user_is_there, asked};
use crate::units::bytes;
use cenote::{FormatOptions, Medium as _, MediumOptions, RealMedium, Store};
use serde_json::json;
use std::path::Path;

pub(crate) fn run(arguments: &Format, out: &mut Out) -> Result<Verdict, Failure> {
    let dir = &arguments.dir;
    let shown = dir.display();
    refuse_if_taken(dir)?;
    // A directory that is missing will lie where its parent lies.
    let parent =
        dir.parent().filter(|parent| !parent.as_os_str().is_empty()).unwrap_or(Path::new("."));
    let examined = if dir.is_dir() { dir } else { parent };
    let options = FormatOptions {
        window_base: arguments.window_base,
        window_len: arguments.window_size,
        ..FormatOptions::default()
    };
    refuse_window(arguments)?;
    cenote_store::check_options(&options).map_err(cenote::Error::from)?;
    if !dir.exists() && !parent.is_dir() {
        let parent = parent.display();
        return Err(Failure::Failed(format!(
            "there is no directory {parent} for {shown}: make it first (mkdir -p {parent})"
        )));
    }
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
    if !arguments.care.yes && a_user_is_there() {
        let question =
            format!("make a store in {shown}, on {}, durability {}?", info.fs, info.durability);
        if !asked(&question)? {
            return Err(Failure::Usage(format!("{shown} is unchanged: the answer was not yes")));
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

/// Refuses as `format` would, before the user is asked.
fn refuse_if_taken(dir: &Path) -> Result<(), Failure> {
    let shown = dir.display();
    if dir.join("superblock").exists() {
        return Err(Failure::Failed(format!(
            "{shown} holds a store already: choose another directory, or remove it with `cenote rm \
             --store {shown}`"
        )));
    }
    let whole = std::path::absolute(dir).unwrap_or_else(|_| dir.to_path_buf());
    if let Some(outer) = whole.ancestors().skip(1).find(|above| above.join("superblock").exists()) {
        return Err(Failure::Failed(format!(
            "{shown} is inside the store {}: choose a directory outside it",
            outer.display()
        )));
    }
    Ok(())
}

/// Refuses a window that no store can have, in the words of the options.
fn refuse_window(arguments: &Format) -> Result<(), Failure> {
    const STEP: u64 = 2 << 20;
    const SIZE_MAX: u64 = 64 << 40;
    const END: u64 = 1 << 47;
    let size = arguments.window_size;
    let bad_base =
        |base: u64| base == 0 || !base.is_multiple_of(STEP) || base.saturating_add(size) > END;
    let why = if size == 0 || !size.is_multiple_of(STEP) || size > SIZE_MAX {
        "--window-size is a multiple of 2 MiB, 64 TiB at most"
    } else if arguments.window_base.is_some_and(bad_base) {
        "--window-base is a multiple of 2 MiB, and the window ends below 0x800000000000"
    } else {
        return Ok(());
    };
    Err(Failure::Usage(why.into()))
}
