//! `cenote export` and `cenote import`: pools in archives.
//!
//! | signal | export | import |
//! | --- | --- | --- |
//! | the first Ctrl-C | ends at the next step, with nothing left | the same |
//! | the first, while `--eager` rewrites | | ends between two puddles; the pools stay |
//! | a second | ends at once, and leaves a file `*.part` | ends at once, and leaves files |
//!
//! The next open for writing removes the files that an import left, and rewriting goes on with
//! the next program that opens the pools.

use crate::cli::{Export, Import};
use crate::failure::{Failure, Verdict};
use crate::opening;
use crate::output::Out;
use crate::progress;
use crate::stop::{Awaited, Stop};
use crate::units::{bytes, date, plural};
use cenote::{
    ArchivingError, ArchivingProgress, AtRest, Codec, Error, Exclusive, ExportOptions, Exported,
    ImportOptions, Store,
};
use cenote_archive::ArchiveError;
use cenote_store::StoreError;
use indicatif::ProgressBar;
use serde_json::{Value, json};
use std::fs::File;
use std::io::{IsTerminal as _, Read, Write as _};
use std::ops::ControlFlow;
use std::path::Path;

/// Whether a path means a standard stream.
fn is_stream(path: &Path) -> bool {
    path.as_os_str() == "-"
}

fn show(bar: &ProgressBar, at: ArchivingProgress, stop: &Stop) -> ControlFlow<()> {
    if at.of > 0 {
        bar.set_length(at.of >> 20);
        bar.set_position(at.done >> 20);
        bar.set_message("MiB");
    }
    stop.flow()
}

/// Why an archive was not written or read, with its name. If the user asked to stop, that is the
/// reason, and the error is not.
fn because(error: Error, stop: &Stop, path: &Path) -> Failure {
    match error {
        _ if stop.is_set() => Error::Archive(ArchivingError::Stopped).into(),
        Error::Archive(ArchivingError::Archive(ArchiveError::Header(error)))
            if !error.is_newer() =>
        {
            let shown = match is_stream(path) {
                true => "standard input".to_owned(),
                false => path.display().to_string(),
            };
            Failure::Failed(format!(
                "{shown} is no archive of `cenote export` ({error}): give another file (for a \
                 snapshot of an object use `cenote restore`)"
            ))
        }
        Error::Archive(ArchivingError::Archive(ArchiveError::Io { at, source, .. }))
            if is_stream(path) && source.kind() == std::io::ErrorKind::BrokenPipe =>
        {
            Failure::Failed(format!(
                "the reader of standard output ended after {}: its archive is incomplete; the \
                 store is unchanged",
                bytes(at)
            ))
        }
        Error::Archive(ArchivingError::Archive(error)) if is_stream(path) => {
            Failure::Failed(format!("standard stream: {error}"))
        }
        Error::Archive(ArchivingError::Archive(error)) => {
            Failure::Failed(format!("{}: {error}", path.display()))
        }
        error => error.into(),
    }
}

pub(crate) fn export(arguments: &Export, out: &mut Out) -> Result<Verdict, Failure> {
    let stream = is_stream(&arguments.file);
    if stream && out.is_json() {
        return Err(Failure::Usage(
            "an archive cannot be printed as JSON: give a file instead of -".into(),
        ));
    }
    if stream && std::io::stdout().is_terminal() {
        return Err(Failure::Usage(
            "an archive is binary, and standard output is a terminal: give a file, or a pipe"
                .into(),
        ));
    }
    let stop = Stop::install();
    // A daemon's store has nothing to be recovered, and it rewrites what is pending by itself.
    let looked = opening::asked_or_look(&arguments.store)?;
    let settled = looked.report().clean
        && looked.pools_due().is_empty()
        && looked.pools().iter().all(|pool| pool.pending == 0);
    let exported = match settled.then(|| write(arguments, &looked, &stop, out.is_json())) {
        // Something is to be recovered or rewritten first.
        None | Some(Err(Error::Archive(ArchivingError::Store(StoreError::ReadOnly { .. })))) => {
            drop(looked);
            let store = opening::to_change(&arguments.store)?;
            let exported = write(arguments, &store, &stop, out.is_json())
                .map_err(|error| because(error, &stop, &arguments.file))?;
            store.close()?;
            exported
        }
        Some(exported) => exported.map_err(|error| because(error, &stop, &arguments.file))?,
    };
    if stream {
        for left in &exported.left {
            let _ = writeln!(std::io::stderr(), "cenote: {}", dangling(left));
        }
        for pool in &exported.unseen {
            let _ = writeln!(std::io::stderr(), "cenote: {}", unseen(pool));
        }
        return Ok(Verdict::Clean);
    }
    let file = arguments.file.display().to_string();
    out.line(format_args!(
        "{} exported {} ({} in {}) to {file}, {}",
        out.good("done:"),
        named(&exported.pools),
        bytes(exported.puddle_bytes),
        plural(exported.puddles, "puddle"),
        bytes(exported.archive_bytes)
    ))?;
    for left in &exported.left {
        out.line(format_args!("{} {}", out.warn("left:"), dangling(left)))?;
    }
    for pool in &exported.unseen {
        out.line(format_args!("{} {}", out.warn("sealed:"), unseen(pool)))?;
    }
    let left = |left: &cenote::LeftEntry| json!({ "pool": left.name, "pointers": left.pointers });
    out.object(&json!({
        "file": file, "archive": exported.archive.to_string(), "pools": exported.pools,
        "puddles": exported.puddles,
        "puddle_bytes": exported.puddle_bytes, "data_bytes": exported.totals.bytes,
        "archive_bytes": exported.archive_bytes, "zstd": arguments.zstd,
        "left": exported.left.iter().map(left).collect::<Vec<Value>>(), "unseen": exported.unseen,
    }))?;
    Ok(Verdict::Clean)
}

fn write(arguments: &Export, store: &Store, stop: &Stop, json: bool) -> cenote::Result<Exported> {
    let bar = progress::bar(0, "exporting", json);
    let mut tell = |at| show(&bar, at, stop);
    let options = ExportOptions {
        codec: if arguments.zstd { Codec::Zstd } else { Codec::None },
        with_targets: arguments.with_targets,
        progress: Some(&mut tell),
    };
    let pools: Vec<&str> = arguments.pools.iter().map(String::as_str).collect();
    let exported = if is_stream(&arguments.file) {
        let stdout = Awaited { stream: std::io::stdout(), stop: stop.clone() };
        store.export(&pools, stdout, options).map(|(_, exported)| exported)
    } else {
        store.export_to(&pools, &arguments.file, Exclusive::New, options)
    };
    bar.finish_and_clear();
    exported
}

fn dangling(left: &cenote::LeftEntry) -> String {
    format!(
        "{} to pool \"{}\", which is not in the archive: they are invalid in another store \
         (--with-targets exports that pool too)",
        plural(left.pointers, "pointer"),
        left.name
    )
}

fn unseen(pool: &str) -> String {
    format!(
        "the key of pool \"{pool}\" was not given, so its pointers and types cannot be read: the \
         archive has all types of the store"
    )
}

fn named(pools: &[String]) -> String {
    let names: Vec<String> = pools.iter().map(|name| format!("\"{name}\"")).collect();
    format!("{} {}", if pools.len() == 1 { "pool" } else { "pools" }, names.join(", "))
}

/// An archive to be read: a file, or standard input.
fn open_archive(path: &Path, stop: &Stop) -> Result<Box<dyn Read>, Failure> {
    if !is_stream(path) {
        let opened = File::open(path).map_err(|error| crate::keys::unreadable(path, &error))?;
        return Ok(Box::new(Awaited { stream: opened, stop: stop.clone() }));
    }
    if std::io::stdin().is_terminal() {
        return Err(Failure::Usage(
            "standard input is a terminal: give an archive file, or a pipe".into(),
        ));
    }
    Ok(Box::new(Awaited { stream: std::io::stdin(), stop: stop.clone() }))
}

pub(crate) fn import(arguments: &Import, out: &mut Out) -> Result<Verdict, Failure> {
    let stop = Stop::install();
    let input = open_archive(&arguments.file, &stop)?;
    if arguments.dry_run {
        return inspect(arguments, input, &stop, out);
    }
    let store = opening::asked_or_change(&arguments.store)?;
    let bar = progress::bar(0, "importing", out.is_json());
    let mut tell = |at| show(&bar, at, &stop);
    let options = ImportOptions { names: arguments.names.clone(), progress: Some(&mut tell) };
    let made = store.import(input, options);
    bar.finish_and_clear();
    let made = made.map_err(|error| because(error, &stop, &arguments.file))?;
    for (pool, from) in made.imported.pools.iter().zip(&made.manifest.pools) {
        let own = made.manifest.puddles_of(from.id).map(|(_, puddle)| puddle.size);
        let (puddles, size) = own.fold((0, 0), |(count, sum), size| (count + 1, sum + size));
        let how = match (pool.moved, pool.pending) {
            _ if from.at_rest != AtRest::None => {
                "protected, with the key that it had; it is sealed under new data keys when it is \
                 first touched"
            }
            (false, 0) => "at its own addresses: nothing to rewrite",
            (false, _) if store.is_connected() => {
                "at its own addresses; pointers to what moved are rewritten when it is first opened"
            }
            (true, _) if store.is_connected() => {
                "at new addresses; its pointers are rewritten when it is first opened"
            }
            (false, _) => {
                "at its own addresses; pointers to what moved are rewritten when they are first \
                 touched"
            }
            (true, _) => "at new addresses; its pointers are rewritten when they are first touched",
        };
        out.line(format_args!(
            "{} imported pool \"{}\", {} in {}, {how}",
            out.good("done:"),
            pool.name,
            bytes(size),
            plural(puddles, "puddle")
        ))?;
        out.object(&json!({
            "pool": pool.name, "id": pool.id.0, "was": from.name, "bytes": size, "puddles": puddles,
            "moved": pool.moved, "due": pool.pending,
        }))?;
    }
    if let Some(first) = made.stale.first.first() {
        let count = plural(made.stale.count, "pointer");
        let text = format!(
            "{count} to blocks of other types; a program that follows one gets an error; \
                     the first: {first}"
        );
        out.line(format_args!("  {} {text}", out.bad("found:")))?;
    }
    let pending = made.imported.pools.iter().filter(|pool| arguments.eager && pool.pending > 0);
    let whole = pending
        .map(|pool| {
            let done = super::relocate::finish(&store, &pool.name, out, &stop);
            done.map(|done| done.is_whole()).map_err(|failure| {
                failure.after(
                    "the import is complete, but pointers are not \
                                                  rewritten yet",
                )
            })
        })
        .try_fold(true, |all, whole| whole.map(|whole| all && whole));
    // Also when it was stopped: what is registered is there, and the next open goes on.
    store.close()?;
    Ok(Verdict::found(!whole?))
}

/// Says what is in an archive that is whole, and what would keep it out of the store.
fn inspect(
    arguments: &Import,
    input: Box<dyn Read>,
    stop: &Stop,
    out: &mut Out,
) -> Result<Verdict, Failure> {
    let dir = &arguments.store.dir;
    let looked = opening::asked_or_look(&arguments.store)?;
    let bar = progress::bar(0, "checking", out.is_json());
    let mut tell = |at| show(&bar, at, stop);
    let options = ImportOptions { names: arguments.names.clone(), progress: Some(&mut tell) };
    let found = looked.inspect_archive(input, options);
    bar.finish_and_clear();
    let found = found.map_err(|error| because(error, stop, &arguments.file))?;
    let (manifest, archive_bytes) = (&found.manifest, found.archive_bytes);
    out.line(format_args!(
        "a whole archive of {}, made {}",
        bytes(archive_bytes),
        date(manifest.made_at_s)
    ))?;
    let mut names = arguments.names.iter();
    for pool in &manifest.pools {
        let name = names.next().unwrap_or(&pool.name);
        let own = manifest.puddles_of(pool.id).map(|(_, puddle)| puddle.size);
        let (puddles, size) = own.fold((0, 0), |(count, sum), size| (count + 1, sum + size));
        let taken = looked.pools().iter().any(|info| info.record.name == *name);
        out.line(format_args!(
            "would import pool \"{name}\", {} in {}, into {}{}",
            bytes(size),
            plural(puddles, "puddle"),
            dir.display(),
            if taken { ", where this name is taken: give another with --as" } else { "" }
        ))?;
        out.object(&json!({
            "pool": name, "was": pool.name, "bytes": size, "puddles": puddles, "taken": taken,
            "dry_run": true,
            "refused": found.refused.as_ref().map(ToString::to_string),
        }))?;
    }
    // As `import` without `-n` would end.
    match found.refused {
        Some(refused) => Err(because(Error::Archive(refused), stop, &arguments.file)),
        None => Ok(Verdict::Clean),
    }
}
