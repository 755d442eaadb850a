//! `cenote export` and `cenote import`: pools in archives.
//!
//! Ctrl-C ends both at the next step, with nothing left; a second one at once: what an import leaves then is removed by the next who opens the store for writing, and an export leaves
//! a file whose name ends in `.part`.

use crate::cli::{Export, Import, StoreDir};
use crate::failure::{Failure, Verdict};
use crate::opening;
use crate::output::Out;
use crate::progress;
use crate::units::{bytes, date, plural};
use cenote::{
    Codec, Error, Exclusive, ExportOptions, Exported, ImportOptions, ShipError, ShipProgress, Store,
};
use cenote_store::StoreError;
use indicatif::ProgressBar;
use serde_json::{Value, json};
use std::fs::File;
use std::io::{IsTerminal as _, Read, Write as _};
use std::ops::ControlFlow;
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

/// Whether a path means a standard stream.
fn is_stream(path: &Path) -> bool {
    path.as_os_str() == "-"
}

/// A flag that Ctrl-C raises; the second one ends the program.
fn stop_flag() -> Arc<AtomicBool> {
    use signal_hook::consts::{SIGHUP, SIGINT, SIGTERM};
    let stop = Arc::new(AtomicBool::new(false));
    for signal in [SIGINT, SIGTERM, SIGHUP] {
        // Where a signal cannot be handled it ends the program at once, as the second one does.
        let status = i32::from(crate::failure::INTERRUPTED);
        if signal_hook::flag::register_conditional_shutdown(signal, status, Arc::clone(&stop)).is_ok() {
            let _ = signal_hook::flag::register(signal, Arc::clone(&stop));
        }
    }
    stop
}

/// Standard input that Ctrl-C ends while nothing comes.
struct Awaited {
    stop: Arc<AtomicBool>,
}

impl Read for Awaited {
    fn read(&mut self, buffer: &mut [u8]) -> std::io::Result<usize> {
        use rustix::event::{PollFd, PollFlags, Timespec, poll};
        let stdin = std::io::stdin();
        loop {
            if self.stop.load(Ordering::Relaxed) {
                // What is read so far is no archive; the caller says why.
                return Err(std::io::Error::other("stopped"));
            }
            let mut waits = [PollFd::new(&stdin, PollFlags::IN)];
            let while_nothing_comes = Timespec { tv_sec: 0, tv_nsec: 100_000_000 };
            match poll(&mut waits, Some(&while_nothing_comes)) {
                Ok(0) | Err(rustix::io::Errno::INTR) => {}
                // Past the buffer of the standard library, which `poll` knows nothing of.
                _ => return Ok(rustix::io::read(&stdin, &mut *buffer)?),
            }
        }
    }
}

fn show(bar: &ProgressBar, at: ShipProgress, stop: &AtomicBool) -> ControlFlow<()> {
    if at.of > 0 {
        bar.set_length(at.of >> 20);
        bar.set_position(at.done >> 20);
        bar.set_message("MiB");
    }
    match stop.load(Ordering::Relaxed) {
        true => ControlFlow::Break(()),
        false => ControlFlow::Continue(()),
    }
}

pub(crate) fn export(arguments: &Export, out: &mut Out) -> Result<Verdict, Failure> {
    let stream = is_stream(&arguments.file);
    if stream && out.is_json() {
        return Err(Failure::Usage("an archive is no JSON: name a file".into()));
    }
    if stream && std::io::stdout().is_terminal() {
        return Err(Failure::Usage("an archive is nothing for a terminal: name a file, or a pipe".into()));
    }
    let stop = stop_flag();
    let looked = opening::to_look(&arguments.store)?;
    let settled = looked.report().clean
        && looked.pools_due().is_empty()
        && looked.pools().iter().all(|pool| pool.due == 0);
    let exported = match settled.then(|| write(arguments, &looked, &stop, out.is_json())) {
        // Something is to be recovered or rewritten first.
        None | Some(Err(Error::Ship(ShipError::Store(StoreError::ReadOnly { .. })))) => {
            drop(looked);
            let store = opening::to_change(&arguments.store)?;
            let exported = write(arguments, &store, &stop, out.is_json())?;
            store.close()?;
            exported
        }
        Some(exported) => exported?,
    };
    if stream {
        for left in &exported.left {
            let _ = writeln!(std::io::stderr(), "cenote: {}", dangling(left));
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
    let left = |left: &cenote::LeftEntry| json!({ "pool": left.name, "pointers": left.pointers });
    out.object(&json!({
        "file": file, "archive": exported.archive.to_string(), "pools": exported.pools, "puddles": exported.puddles,
        "puddle_bytes": exported.puddle_bytes, "data_bytes": exported.totals.bytes,
        "archive_bytes": exported.archive_bytes, "zstd": arguments.zstd,
        "left": exported.left.iter().map(left).collect::<Vec<Value>>(),
    }))?;
    Ok(Verdict::Clean)
}

fn write(arguments: &Export, store: &Store, stop: &AtomicBool, json: bool) -> cenote::Result<Exported> {
    let bar = progress::bar(0, "exporting", json);
    let mut tell = |at| show(&bar, at, stop);
    let options = ExportOptions {
        codec: if arguments.zstd { Codec::Zstd } else { Codec::None },
        with_targets: arguments.with_targets,
        progress: Some(&mut tell),
    };
    let pools: Vec<&str> = arguments.pools.iter().map(String::as_str).collect();
    let exported = if is_stream(&arguments.file) {
        store.export(&pools, std::io::stdout().lock(), options).map(|(_, exported)| exported)
    } else {
        store.export_to(&pools, &arguments.file, Exclusive::New, options)
    };
    bar.finish_and_clear();
    exported
}

fn dangling(left: &cenote::LeftEntry) -> String {
    format!(
        "{} to pool \"{}\", which is not in the archive: elsewhere they lead nowhere (--with-targets takes it along)",
        plural(left.pointers, "pointer"),
        left.name
    )
}

fn named(pools: &[String]) -> String {
    let names: Vec<String> = pools.iter().map(|name| format!("\"{name}\"")).collect();
    format!("{} {}", if pools.len() == 1 { "pool" } else { "pools" }, names.join(", "))
}

pub(crate) fn import(arguments: &Import, out: &mut Out) -> Result<Verdict, Failure> {
    let stop = stop_flag();
    let path = arguments.file.display().to_string();
    let input: Box<dyn Read> = if is_stream(&arguments.file) {
        if std::io::stdin().is_terminal() {
            return Err(Failure::Usage(
                "an archive does not come from a terminal: name a file, or a pipe".into(),
            ));
        }
        Box::new(Awaited { stop: Arc::clone(&stop) })
    } else {
        let opened = File::open(&arguments.file);
        Box::new(opened.map_err(|error| Failure::Failed(format!("cannot read {path}: {error}")))?)
    };
    if arguments.dry_run {
        return inspect(arguments, input, &stop, out);
    }
    let store = opening::to_change(&arguments.store)?;
    let bar = progress::bar(0, "importing", out.is_json());
    let mut tell = |at| show(&bar, at, &stop);
    let options = ImportOptions { names: arguments.names.clone(), progress: Some(&mut tell) };
    let shipped = store.import(input, options);
    bar.finish_and_clear();
    let shipped = shipped.map_err(|error| match stop.load(Ordering::Relaxed) {
        true => Error::Ship(ShipError::Stopped),
        false => error,
    })?;
    for (pool, from) in shipped.imported.pools.iter().zip(&shipped.manifest.pools) {
        let own = shipped.manifest.puddles_of(from.id).map(|(_, puddle)| puddle.size);
        let (puddles, size) = own.fold((0, 0), |(count, sum), size| (count + 1, sum + size));
        let how = match (pool.moved, pool.due) {
            (false, 0) => "at its own addresses: nothing is to be rewritten",
            (false, _) => {
                "at its own addresses; pointers to what moved are rewritten when they are first touched"
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
            "moved": pool.moved, "due": pool.due,
        }))?;
    }
    let mut whole = true;
    if arguments.eager {
        for pool in shipped.imported.pools.iter().filter(|pool| pool.due > 0) {
            whole &= super::relocate::finish(&store, &pool.name, out)?.is_whole();
        }
    }
    store.close()?;
    Ok(Verdict::found(!whole))
}

/// Says what is in an archive that is whole, and what would keep it out of the store.
fn inspect(
    arguments: &Import,
    input: Box<dyn Read>,
    stop: &AtomicBool,
    out: &mut Out,
) -> Result<Verdict, Failure> {
    let StoreDir { dir, .. } = &arguments.store;
    let looked = opening::to_look(&arguments.store)?;
    let bar = progress::bar(0, "checking", out.is_json());
    let mut tell = |at| show(&bar, at, stop);
    let found = cenote::inspect_archive(input, Some(&mut tell));
    bar.finish_and_clear();
    let (manifest, archive_bytes) = found.map_err(|error| match stop.load(Ordering::Relaxed) {
        true => Error::Ship(ShipError::Stopped),
        false => Error::from(error),
    })?;
    out.line(format_args!("a whole archive of {}, made {}", bytes(archive_bytes), date(manifest.made_at_s)))?;
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
            "pool": name, "was": pool.name, "bytes": size, "puddles": puddles, "taken": taken, "dry_run": true,
        }))?;
    }
    Ok(Verdict::Clean)
}
