//! `cenote object`: persistent memory objects.
//!
//! `ls`, `info` and `export` open read-only: what an interrupted psync left is shown, and completed
//! in memory only.

use super::given_up::objects_to_change;
use crate::at_rest_modes::name_of;
use crate::cli::{
    ChangedStore, Ls, Object, ObjectCommand, ObjectCreate, ObjectExport, ObjectImport,
    ObjectInfo as InfoOf, ObjectRm, StoreDir,
};
use crate::failure::{Failure, Verdict, closed};
use crate::keys;
use crate::opening;
use crate::output::{Out, a_user_is_there, asked};
use crate::stop::{Awaited, Stop};
use crate::table::{Align, Table};
use crate::units::{bytes, date, plural};
use cenote::Store;
use cenote_object::{
    Attached, Info, Mode, ObjectError, ObjectOptions, Objects, ObjectsOptions, Permission,
};
use cenote_store::{Damage, StoreError};
use serde_json::{Value, json};
use std::fs::{File, OpenOptions};
use std::io::{IsTerminal as _, Read, Write};
use std::path::Path;

pub(crate) fn run(arguments: &Object, out: &mut Out) -> Result<Verdict, Failure> {
    match &arguments.command {
        ObjectCommand::Create(arguments) => create(arguments, out),
        ObjectCommand::Ls(arguments) => ls(arguments, out),
        ObjectCommand::Info(arguments) => info(arguments, out),
        ObjectCommand::Rm(arguments) => rm(arguments, out),
        ObjectCommand::Import(arguments) => import(arguments, out),
        ObjectCommand::Export(arguments) => export(arguments, out),
    }
}

pub(crate) fn objects_of(store: &Store) -> Result<Objects, Failure> {
    Ok(Objects::open(&store.handle(), &ObjectsOptions::default())?)
}

pub(crate) fn to_look(dir: &StoreDir) -> Result<(Store, Objects), Failure> {
    let store = opening::to_look(dir)?;
    let objects = objects_of(&store)?;
    Ok((store, objects))
}

pub(crate) fn to_change(dir: &ChangedStore, out: &mut Out) -> Result<(Store, Objects), Failure> {
    let store = opening::to_change(dir)?;
    let objects = objects_to_change(&store, dir, &[], out)?;
    Ok((store, objects))
}

fn create(arguments: &ObjectCreate, out: &mut Out) -> Result<Verdict, Failure> {
    let key = keys::given(&arguments.store.key)?;
    let at_rest =
        arguments.at_rest.unwrap_or(if key.is_some() { Mode::Authenticated } else { Mode::None });
    let (store, objects) = to_change(&arguments.store, out)?;
    let options = ObjectOptions { at_rest, permissions: arguments.mode };
    let made = objects.pcreate_with(&arguments.object, arguments.size, key.as_ref(), &options)?;
    let info = objects.info(&arguments.object)?;
    drop(objects);
    closed(store.close())?;
    let (name, size) = (&arguments.object, bytes(made.record.data_len));
    out.line(format_args!(
        "{} created object \"{name}\" of {size} at {:#x}",
        out.good("done:"),
        made.data_addr()
    ))?;
    out.object(&as_json(&info))?;
    Ok(Verdict::Clean)
}

fn as_json(info: &Info) -> Value {
    let record = &info.object.record;
    json!({
        "object": record.name, "bytes": record.data_len,
        "address": format!("{:#x}", info.object.data_addr()),
        "puddle": record.puddle.to_string(), "state": info.state.letters(),
        "left": info.found.to_string(),
        "uid": record.uid, "gid": record.gid, "permissions": format!("{:o}", record.permissions),
        "created_at_s": record.created_at_s, "at_rest": name_of(record.at_rest.mode()),
    })
}

fn ls(arguments: &Ls, out: &mut Out) -> Result<Verdict, Failure> {
    let (store, objects) = to_look(&arguments.store)?;
    // One by one: an object's file may be missing.
    let there = store.handle().objects().into_iter();
    let damage = store.damaged_files()?;
    let look = |name: &str| {
        let info = objects.info(name)?;
        let of_it = damage.iter().find_map(|damage| match damage {
            Damage::Object { name: damaged, detail } if damaged == name => Some(detail.clone()),
            _ => None,
        });
        let refused = |detail| StoreError::ObjectDamaged { name: name.into(), detail };
        of_it.map_or(Ok(info), |detail| Err(ObjectError::from(refused(detail))))
    };
    let found: Vec<_> = there.map(|object| (look(&object.record.name), object)).collect();
    let list: Vec<&Info> = found.iter().filter_map(|(info, _)| info.as_ref().ok()).collect();
    if found.is_empty() {
        let dir = arguments.store.dir.display();
        let advice =
            format!("no objects yet: make one with `cenote object create {dir} NAME --size SIZE`");
        out.line(out.dim(&advice))?;
    } else {
        let mut table = Table::new(&[
            ("NAME", Align::Left),
            ("SIZE", Align::Right),
            ("STATE", Align::Left),
            ("MODE", Align::Right),
            ("ADDRESS", Align::Right),
            ("CREATED", Align::Left),
        ]);
        for info in &list {
            let record = &info.object.record;
            table.row(vec![
                record.name.clone(),
                bytes(record.data_len),
                info.state.to_string(),
                format!("{:o}", record.permissions),
                format!("{:#x}", info.object.data_addr()),
                date(record.created_at_s),
            ]);
        }
        table.print(out, 0)?;
    }
    list.iter().try_for_each(|info| out.object(&as_json(info)))?;
    for (info, object) in found.iter().filter(|(info, _)| info.is_err()) {
        let name = &object.record.name;
        let why = info.as_ref().err().map(ToString::to_string).unwrap_or_default();
        out.wrong("damaged", format!("object \"{name}\": {why}; `cenote check` says more"))?;
        out.object(&json!({ "object": name, "error": why }))?;
    }
    Ok(Verdict::found(list.len() < found.len()))
}

/// What the paper's states mean to a user who finds an object in one.
fn meaning(info: &Info) -> String {
    use cenote_object::ObjectState as S;
    let text = match info.state {
        S::Detached => "detached",
        S::Write => "left attached; stores since the last psync are lost",
        S::Psync => {
            "a psync was interrupted before its commit; the object is as the psync before left it"
        }
        S::Copy => "a psync is committed and not copied yet; the next writer completes it",
        _ => "in use",
    };
    format!("{} ({text})", info.state)
}

fn info(arguments: &InfoOf, out: &mut Out) -> Result<Verdict, Failure> {
    let (_store, objects) = to_look(&arguments.store)?;
    let info = objects.info(&arguments.object)?;
    let record = &info.object.record;
    out.line(out.bold(&format!("object \"{}\"", record.name)))?;
    out.field("size", format_args!("{} ({} bytes)", bytes(record.data_len), record.data_len))?;
    out.field("address", format_args!("{:#x}", info.object.data_addr()))?;
    out.field("state", meaning(&info))?;
    out.field("last writer", info.found)?;
    out.field(
        "mode",
        format_args!("{:o}, user {}, group {}", record.permissions, record.uid, record.gid),
    )?;
    out.field("at rest", name_of(record.at_rest.mode()))?;
    out.field("created", date(record.created_at_s))?;
    out.field("puddle", record.puddle)?;
    out.object(&as_json(&info))?;
    Ok(Verdict::Clean)
}

fn rm(arguments: &ObjectRm, out: &mut Out) -> Result<Verdict, Failure> {
    // Looked at first, so that a wrong name removes nothing and a dry run writes nothing.
    let found = {
        let store = opening::to_look(&arguments.store)?;
        let mut names = arguments.objects.clone();
        names.sort();
        names.dedup();
        let size = |name: String| Ok((store.handle().object(&name)?.record.data_len, name));
        names.into_iter().map(size).collect::<Result<Vec<_>, Failure>>()?
    };
    let what: Vec<String> =
        found.iter().map(|(size, name)| format!("object \"{name}\" ({})", bytes(*size))).collect();
    let what = what.join(" and ");
    if arguments.care.dry_run {
        out.line(format_args!("would remove {what}"))?;
    } else {
        confirm(arguments, &what)?;
        let store = opening::to_change(&arguments.store)?;
        let objects = objects_to_change(&store, &arguments.store, &found, out)?;
        for (_, name) in &found {
            match objects.pdestroy(name, None) {
                // Removed because it was damaged.
                Err(error) if error.errno() == 2 => {}
                removed => removed?,
            }
        }
        drop(objects);
        closed(store.close())?;
        out.line(format_args!("{} removed {what}", out.good("done:")))?;
    }
    for (size, name) in &found {
        out.object(&json!({ "object": name, "bytes": size, "dry_run": arguments.care.dry_run }))?;
    }
    Ok(Verdict::Clean)
}

fn confirm(arguments: &ObjectRm, what: &str) -> Result<(), Failure> {
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

fn cannot(what: &str, path: Option<&Path>, error: &std::io::Error) -> Failure {
    let name = path.map_or_else(|| "the standard stream".into(), |path| path.display().to_string());
    Failure::Failed(match error.kind() {
        std::io::ErrorKind::AlreadyExists => {
            format!("{name} exists already: remove it first, or choose another name")
        }
        std::io::ErrorKind::NotFound => {
            format!("cannot {what} {name}: it, or its directory, is not there: check the path")
        }
        std::io::ErrorKind::PermissionDenied => format!(
            "cannot {what} {name}: {error}: check the mode of the file and of its directory"
        ),
        std::io::ErrorKind::StorageFull => format!(
            "cannot {what} {name}: {error}: free some space, or name a file on another file system"
        ),
        _ => format!("cannot {what} {name}: {error}: choose another file"),
    })
}

/// Refuses an input that does not fit into an object of `len` bytes before anything is overwritten.
/// Of a pipe that is found when it is read.
fn refuse_longer(arguments: &ObjectImport, len: u64) -> Result<(), Failure> {
    let (name, at) = (&arguments.object, arguments.at);
    let room = len.checked_sub(at).ok_or_else(|| {
        Failure::Usage(format!(
            "--at {at} is beyond the end of object \"{name}\", which has {len} bytes"
        ))
    })?;
    let file = arguments.input.as_ref().and_then(|file| std::fs::metadata(file).ok());
    match file.filter(|file| file.is_file() && file.len() > room) {
        Some(file) => Err(Failure::Failed(format!(
            "the input is longer than object \"{name}\": it has {} bytes, and the object {room} \
             from {at} on; nothing was changed: make a larger object",
            file.len()
        ))),
        None => Ok(()),
    }
}

fn import(arguments: &ObjectImport, out: &mut Out) -> Result<Verdict, Failure> {
    let path = arguments.input.as_deref();
    let stop = Stop::install();
    let mut input: Box<dyn Read> = match path {
        Some(file) => {
            let stream = File::open(file).map_err(|error| cannot("read", path, &error))?;
            Box::new(Awaited { stream, stop: stop.clone() })
        }
        None => Box::new(Awaited { stream: std::io::stdin(), stop: stop.clone() }),
    };
    let key = keys::given(&arguments.store.key)?;
    let (store, objects) = to_change(&arguments.store, out)?;
    let mut object = objects.attach(&arguments.object, Permission::ReadWrite, key.as_ref())?;
    refuse_longer(arguments, object.len())?;
    let (mut done, mut psyncs, mut pages) = (0u64, 0u64, 0u64);
    // Not straight into the object: the system cannot write there if its pages are protected.
    let mut buffer = vec![0; 1 << 20];
    let mut unsynced = 0;
    loop {
        let got = read_some(&mut *input, &mut buffer).map_err(|error| match stop.is_set() {
            true => stopped(&arguments.object, done - unsynced),
            false => cannot("read", path, &error),
        })?;
        let at = arguments.at.saturating_add(done).min(object.len()) as usize;
        let fits = got.min((object.len() as usize).saturating_sub(at));
        // Where a page is damaged: an error, and no bus error.
        object.load(at as u64, fits as u64)?;
        object.as_mut_slice()?[at..at + fits].copy_from_slice(&buffer[..fits]);
        done += fits as u64;
        unsynced += fits as u64;
        let ends = got < buffer.len() || fits < got;
        if ends || unsynced >= arguments.every {
            let psync = object.psync()?;
            psyncs += u64::from(psync.seq > 0);
            pages += psync.pages;
            unsynced = 0;
        }
        if fits < got {
            return Err(Failure::Failed(format!(
                "the input is longer than object \"{}\", which has {} bytes: {done} bytes of the \
                 input are there, from {} on: make a larger object",
                arguments.object,
                object.len(),
                arguments.at
            )));
        }
        if ends {
            break;
        }
    }
    drop(object);
    drop(objects);
    closed(store.close())?;
    let name = &arguments.object;
    out.line(format_args!(
        "{} {} into object \"{name}\", {} changed, {}",
        out.good("done:"),
        bytes(done),
        plural(pages, "page"),
        plural(psyncs, "psync")
    ))?;
    out.object(&json!({ "object": name, "bytes": done, "pages": pages, "psyncs": psyncs }))?;
    Ok(Verdict::Clean)
}

/// The user has asked to stop: only what was psynced counts.
fn stopped(name: &str, psynced: u64) -> Failure {
    Failure::Interrupted(match psynced {
        0 => format!("stopped; nothing of the input is in object \"{name}\""),
        _ => format!("stopped; the first {psynced} bytes of the input are in object \"{name}\""),
    })
}

/// Reads until the buffer is full or the input ends.
fn read_some(input: &mut dyn Read, buffer: &mut [u8]) -> std::io::Result<usize> {
    let mut done = 0;
    while let Some(rest) = buffer.get_mut(done..).filter(|rest| !rest.is_empty()) {
        match input.read(rest) {
            Ok(0) => break,
            Ok(n) => done += n,
            Err(error) if error.kind() == std::io::ErrorKind::Interrupted => {}
            Err(error) => return Err(error),
        }
    }
    Ok(done)
}

fn export(arguments: &ObjectExport, out: &mut Out) -> Result<Verdict, Failure> {
    let key = keys::given(&arguments.store.key)?;
    let (_store, objects) = to_look(&arguments.store)?;
    let object = objects.attach(&arguments.object, Permission::Read, key.as_ref())?;
    let from = arguments.at.min(object.len());
    let to = arguments.len.map_or(object.len(), |len| from.saturating_add(len).min(object.len()));
    let path = arguments.output.as_deref();
    let name = &arguments.object;
    if path.is_none() && out.is_json() {
        return Err(Failure::Usage(
            "raw bytes cannot be printed as JSON: give a file with --output".into(),
        ));
    }
    if path.is_none() && std::io::stdout().is_terminal() {
        return Err(Failure::Usage(
            "the bytes are binary, and standard output is a terminal: give a file with --output, \
             or a pipe"
                .into(),
        ));
    }
    let failed = |error: std::io::Error| cannot("write", path, &error);
    let mut file = match path {
        Some(path) => {
            Some(OpenOptions::new().write(true).create_new(true).open(path).map_err(failed)?)
        }
        None => None,
    };
    let skip = arguments.skip_damaged;
    let stop = Stop::install();
    let copied = copy_range(&object, (from, to), skip, &mut |bytes| match &mut file {
        _ if stop.is_set() => Err(Failure::Interrupted("stopped; nothing was kept".into())),
        Some(file) => file.write_all(bytes).map_err(failed),
        None => out.bytes(bytes),
    });
    let copied = copied.and_then(|damaged| {
        file.as_ref().map_or(Ok(()), File::sync_all).map_err(failed).map(|()| damaged)
    });
    if let (Err(_), Some(path)) = (&copied, path) {
        // A part of an object is no copy of it.
        let _ = std::fs::remove_file(path);
    }
    let damaged = copied?;
    if let Some(path) = path {
        let size = bytes(to - from);
        out.line(format_args!(
            "{} {size} of object \"{name}\" to {}",
            out.good("done:"),
            path.display()
        ))?;
        out.object(&json!({
            "object": name, "bytes": to - from, "file": path.display().to_string(),
            "damaged_pages": damaged,
        }))?;
    }
    for page in &damaged {
        // Standard output may be the data.
        let _ = writeln!(
            std::io::stderr(),
            "cenote: page {page} of object \"{name}\" is damaged: zeros took its place"
        );
    }
    Ok(Verdict::found(!damaged.is_empty()))
}

/// Hands bytes of an object on, in steps. The answer are pages that are damaged, if `skip` lets
/// zeros take their place.
fn copy_range(
    object: &Attached,
    (from, to): (u64, u64),
    skip: bool,
    write: &mut dyn FnMut(&[u8]) -> Result<(), Failure>,
) -> Result<Vec<u64>, Failure> {
    let mut buffer = vec![0; 1 << 20];
    let (mut at, mut damaged) = (from, Vec::new());
    while at < to {
        let step = ((to - at) as usize).min(buffer.len());
        let bytes = &mut buffer[..step];
        copy(object, at, bytes, skip, &mut damaged)?;
        write(bytes)?;
        at += step as u64;
    }
    Ok(damaged)
}

/// Copies bytes of an object; with `skip`, zeros for pages that are damaged, which are added to
/// `damaged`.
fn copy(
    object: &Attached,
    at: u64,
    bytes: &mut [u8],
    skip: bool,
    damaged: &mut Vec<u64>,
) -> Result<(), Failure> {
    const PAGE: u64 = 4096;
    match object.read_at(at, bytes) {
        Err(ObjectError::PageDamaged { .. }) if skip => {}
        read => return Ok(read?),
    }
    let mut done = 0;
    while done < bytes.len() {
        let from = at + done as u64;
        let step = ((PAGE - from % PAGE) as usize).min(bytes.len() - done);
        let part = &mut bytes[done..done + step];
        match object.read_at(from, part) {
            Err(ObjectError::PageDamaged { page, .. }) => {
                part.fill(0);
                damaged.push(page);
            }
            read => read?,
        }
        done += step;
    }
    Ok(())
}
