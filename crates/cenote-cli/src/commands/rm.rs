//! `cenote rm`: removes pools, or a whole store.
//!
//! A store is removed under its lock. The superblock goes first: **its removal commits**. What a
//! crash leaves then is not a store any more; `cenote rm --store` again, or the next `cenote
//! format`, clears it away.

use super::stats::chosen;
use crate::cli::Rm;
use crate::failure::{Failure, Verdict, closed};
use crate::opening;
use crate::output::{Out, a_user_is_there, asked};
use crate::units::{bytes, plural};
use cenote::{MediumOptions, RealMedium};
use cenote_layout::header::read;
use cenote_layout::superblock::{COPY_SIZE, Superblock};
use cenote_medium::{LockGuard, LockKind, Medium, OwnedMedium};
use serde_json::json;
use std::path::Path;
use std::time::{Duration, Instant};

pub(crate) fn run(arguments: &Rm, out: &mut Out) -> Result<Verdict, Failure> {
    if arguments.whole { whole_store(arguments, out) } else { pools(arguments, out) }
}

/// Asks, unless that was answered on the command line.
fn confirm(arguments: &Rm, what: &str) -> Result<(), Failure> {
    if arguments.care.yes {
        return Ok(());
    }
    if !a_user_is_there() {
        return Err(Failure::Usage(format!(
            "{what} was not removed: there is no terminal to ask on: give --yes"
        )));
    }
    if asked(&format!("remove {what}, for good?"))? {
        Ok(())
    } else {
        Err(Failure::Usage(format!("{what} was not removed: the answer was not yes")))
    }
}

fn pools(arguments: &Rm, out: &mut Out) -> Result<Verdict, Failure> {
    let kept = opening::asked_to_change(&arguments.store)?;
    // Looked at first, so that a wrong name removes nothing and a dry run writes nothing.
    let found = {
        let looked;
        let store = match &kept {
            Some(kept) => kept,
            None => {
                looked = opening::to_look(&arguments.store)?;
                &looked
            }
        };
        let mut names = chosen(store, &arguments.pools)?;
        names.sort();
        names.dedup();
        let pools = store.pools();
        names
            .into_iter()
            .filter_map(|name| {
                let size = pools.iter().find(|pool| pool.record.name == name)?.bytes;
                Some((name, size))
            })
            .collect::<Vec<_>>()
    };
    if !arguments.care.dry_run {
        let names: Vec<String> = found
            .iter()
            .map(|(name, size)| format!("pool \"{name}\" ({})", bytes(*size)))
            .collect();
        confirm(arguments, &names.join(" and "))?;
    }
    let store = match (arguments.care.dry_run, kept) {
        (true, _) => None,
        (false, Some(kept)) => Some(kept),
        (false, None) => Some(opening::to_change(&arguments.store)?),
    };
    for (name, size) in &found {
        if let Some(store) = &store {
            store.remove_pool(name)?;
            out.line(format_args!(
                "{} removed pool \"{name}\" ({})",
                out.good("done:"),
                bytes(*size)
            ))?;
        } else {
            out.line(format_args!("would remove pool \"{name}\" ({})", bytes(*size)))?;
        }
        out.object(&json!({ "pool": name, "bytes": size, "dry_run": store.is_none() }))?;
    }
    if let Some(store) = store {
        closed(store.close())?;
    }
    Ok(Verdict::Clean)
}

/// Names that a store has in its directory, the superblock first.
const FILES: [&str; 10] = [
    "superblock",
    "superblock.new",
    "catalog.0",
    "catalog.1",
    "catalog.0.new",
    "catalog.1.new",
    "journal",
    "journal.new",
    "journal.pools",
    "journal.pools.new",
];

/// Directories of puddles, and of the primaries of those in shadowed mode.
const DIRECTORIES: [&str; 2] = ["puddles", "primary"];

fn whole_store(arguments: &Rm, out: &mut Out) -> Result<Verdict, Failure> {
    let dir = &arguments.store.dir;
    let shown = dir.display();
    opening::refuse_socket(&arguments.store).map_err(|_| of_daemon(dir))?;
    let medium = RealMedium::open(dir, &MediumOptions::default())?;
    if !FILES.iter().any(|name| medium.exists(name).unwrap_or(false)) {
        return Err(Failure::Failed(format!(
            "{shown} is not a store: it has no file \"superblock\": check the path"
        )));
    }
    // Only what a store puts there.
    let is_puddle =
        |name: &&String| name.len() == 32 && name.bytes().all(|b| b.is_ascii_hexdigit());
    let (mut files, mut size, mut count) = (Vec::new(), 0, 0);
    for directory in DIRECTORIES {
        let names = match medium.list(directory) {
            Err(error) if error.is_not_found() => continue,
            names => names?,
        };
        for name in names.iter().filter(is_puddle) {
            let name = format!("{directory}/{name}");
            size += medium.len(&name)?;
            count += u64::from(directory == DIRECTORIES[0]);
            files.push(name);
        }
    }
    let what = format!("the store {shown} ({} in {})", bytes(size), plural(count, "puddle"));
    if arguments.care.dry_run {
        out.line(format_args!("would remove {what}"))?;
    } else {
        confirm(arguments, &what)?;
        let window = window_of(&medium);
        {
            let _lock = locked(&medium, dir, arguments.store.wait)?;
            // SAFETY: with the lock nothing has the store open, so nothing maps or expects its
            // files.
            let medium = unsafe { OwnedMedium::new(&medium as &dyn Medium) };
            for name in FILES {
                if medium.exists(name)? {
                    medium.remove(name)?;
                    medium.sync_dir("")?;
                }
            }
            for name in &files {
                medium.remove(name)?;
            }
        }
        if let Some((base, len)) = window {
            cenote_store::forget_window(base, len);
        }
        // Files of other kinds stay, and their directory with them.
        for directory in DIRECTORIES {
            let _ = std::fs::remove_dir(dir.join(directory));
        }
        let _ = std::fs::remove_file(dir.join("lock"));
        let gone = remove_directory(dir);
        out.line(format_args!("{} removed {what}", out.good("done:")))?;
        if !gone {
            out.line(out.warn(&format!("the directory {shown} holds other files and stays")))?;
        }
    }
    out.object(
        &json!({ "store": shown.to_string(), "bytes": size, "dry_run": arguments.care.dry_run }),
    )?;
    Ok(Verdict::Clean)
}

/// A daemon removes pools, and not the store that it keeps.
fn of_daemon(socket: &Path) -> Failure {
    Failure::Usage(format!(
        "{} is the socket of a daemon, which keeps the store: stop the daemon, and give the \
         store's directory",
        socket.display()
    ))
}

/// The store's window, if its superblock can be read.
fn window_of(medium: &RealMedium) -> Option<(u64, u64)> {
    let bytes = medium.read(FILES[0]).ok()?;
    let copies = bytes.chunks_exact(COPY_SIZE as usize);
    let block = copies.filter_map(|copy| read::<Superblock>(copy, true).ok()).next()?;
    Some((block.window_base, block.window_len))
}

/// The store's lock, for as long as it is held.
fn locked(medium: &RealMedium, dir: &Path, wait: Duration) -> Result<LockGuard, Failure> {
    let begun = Instant::now();
    loop {
        match medium.lock("lock", LockKind::Exclusive)? {
            Ok(guard) => return Ok(guard),
            Err(holder) if begun.elapsed() >= wait => {
                let shown = dir.display();
                return Err(Failure::InUse(format!(
                    "{shown} is in use by {holder}: end that process, or wait with --wait SECONDS"
                )));
            }
            Err(_) => std::thread::sleep(Duration::from_millis(5)),
        }
    }
}

fn remove_directory(dir: &Path) -> bool {
    match std::fs::remove_dir(dir) {
        Ok(()) => true,
        // A mount point or the like: it is empty, that is enough.
        Err(_) => std::fs::read_dir(dir).is_ok_and(|mut entries| entries.next().is_none()),
    }
}
