//! Makes an object again, of a snapshot: the steps are on the front page of `snapshot.rs`.

use crate::at_rest;
use crate::error::ObjectError;
use crate::shared::Shared;
use crate::snapshot::{Restored, SnapshotOf, file_error, open, sum_pieces};
use cenote_atrest::{Expect, HEADER_LEN, Keyring, Protection, binding};
use cenote_journal::Journal;
use cenote_layout::at_rest::{AtRestHeader, Mode};
use cenote_layout::catalog::{AtRest, ObjectRecord};
use cenote_layout::header::read;
use cenote_layout::id::Uuid;
use cenote_layout::object::ObjectState;
use cenote_layout::snapshot::SnapshotTrailer;
use cenote_layout::{PAGE_SIZE, object::object_data_offset};
use cenote_medium::planted::{Bug, Step, planted, reach};
use cenote_store::ObjectInfo;
use cenote_sys::process;
use std::fs::File;
use std::io;
use std::os::unix::fs::FileExt as _;
use std::path::Path;

/// Makes an object again.
pub(crate) fn restore(
    shared: &Shared,
    path: &Path,
    (name, key): (Option<&str>, Option<&Keyring>),
) -> Result<Restored, ObjectError> {
    let (file, trailer) = open(path)?;
    let mode = trailer.mode().ok_or_else(|| wrong(path, "its protection is unknown"))?;
    if mode != Mode::None && name.is_none() && trailer.store != shared.store.uuid() {
        let of = trailer.store;
        let detail = format!(
            "it is of store {of} and protected: give the object a name, and its key if it has one"
        );
        return Err(wrong(path, &detail));
    }
    let mut record = ObjectRecord {
        puddle: trailer.object,
        name: name.or(trailer.name()).unwrap_or_default().into(),
        data_len: trailer.data_len,
        at_rest: AtRest::of(mode),
        uid: process::uid(),
        gid: process::gid(),
        permissions: trailer.permissions,
        created_at_s: shared.store.medium().now_s(),
    };
    // Before the object, so that an object is never without a journal.
    let journal = shared.journal()?;
    if mode == Mode::None {
        record.puddle = Uuid::NIL;
    } else {
        shared.refuse_there(trailer.object, path)?;
        check_header(&file, &trailer, mode).map_err(|source| match source {
            Ok(source) => file_error("read", path)(source),
            Err(detail) => wrong(path, &detail),
        })?;
    }
    let header = rebound(&file, &trailer, mode, (shared.store.uuid(), &record.name, key))?;
    let source = Source { path, file, trailer, header };
    let made = match mode {
        Mode::None => source.make(shared, record),
        _ => source.make_protected(shared, journal, record),
    };
    Ok(source.restored(made?))
}

fn wrong(path: &Path, detail: &str) -> ObjectError {
    ObjectError::Snapshot { file: path.display().to_string(), detail: detail.into() }
}

/// A snapshot that an object is made of.
struct Source<'a> {
    path: &'a Path,
    file: File,
    trailer: SnapshotTrailer,
    /// Of a protected object, if it is not the one that the snapshot holds.
    header: Option<[u8; HEADER_LEN]>,
}

impl Source<'_> {
    /// Makes an object that keeps its identity, and that the journal may list. No other call makes
    /// it meanwhile.
    fn make_protected(
        &self,
        shared: &Shared,
        journal: &Journal,
        record: ObjectRecord,
    ) -> Result<ObjectInfo, ObjectError> {
        let (id, trailer) = (record.puddle, &self.trailer);
        let pretended =
            ObjectInfo { record: record.clone(), addr: trailer.addr, size: trailer.size };
        reach(Step::ObjectLookedUp);
        // Looked at again: another restore may have made it meanwhile, and what follows would
        // change the journal's entry of it.
        let there = || match planted(Bug::ObjectNotLookedUpAgain) {
            true => Ok(()),
            false => shared.refuse_there(id, self.path),
        };
        shared.enter_alone(&pretended, there)?;
        shared.set_state(id, ObjectState::Read);
        let made = self.expect(journal, &record).and_then(|()| self.make(shared, record));
        shared.leave_writer(id);
        if made.is_err() {
            journal.forget(id);
        }
        made
    }

    /// Brings the journal to list what is about to be there. Before the object is there: an object
    /// that is not there is not compared.
    fn expect(&self, journal: &Journal, record: &ObjectRecord) -> Result<(), ObjectError> {
        if !planted(Bug::RestoreNotTrimmed) {
            journal.trim_all()?;
        }
        if !record.at_rest.mode().has_tree() {
            return Ok(());
        }
        let span = record.data_len.next_multiple_of(PAGE_SIZE);
        let mut bytes = [0; HEADER_LEN];
        self.file
            .read_exact_at(&mut bytes, object_data_offset(self.trailer.size) + span)
            .map_err(file_error("read", self.path))?;
        let root = binding::root(&self.header.unwrap_or(bytes));
        Ok(journal.expect_root(record.puddle, root)?)
    }

    fn make(&self, shared: &Shared, record: ObjectRecord) -> Result<ObjectInfo, ObjectError> {
        let failed = file_error("read", self.path);
        shared.store.restore_object(record, self.trailer.addr, |target, info| {
            let data_offset = info.data_offset();
            let sum = sum_pieces(self.trailer.size, |at, bytes| {
                self.file.read_exact_at(bytes, at).map_err(&failed)?;
                // Headers are this store's.
                let skip = data_offset.saturating_sub(at).min(bytes.len() as u64) as usize;
                if bytes[skip..].iter().any(|byte| *byte != 0) {
                    target.write_in_pieces(at + skip as u64, &bytes[skip..])?;
                }
                Ok(())
            })?;
            if sum != self.trailer.sum && !planted(Bug::SnapshotSumIgnored) {
                return Err(wrong(self.path, "its contents are damaged"));
            }
            let at = data_offset + info.regions_offset();
            Ok(self.header.map_or(Ok(()), |header| target.write_at(at, &header))?)
        })
    }

    /// What was made of it.
    fn restored(&self, object: ObjectInfo) -> Restored {
        let trailer = &self.trailer;
        let moved_from = (object.addr != trailer.addr).then(|| trailer.addr + object.data_offset());
        let (store, taken_at_s) = (trailer.store, trailer.taken_at_s);
        let name = trailer.name().unwrap_or_default().into();
        let of = SnapshotOf { store, object: trailer.object, name, taken_at_s };
        Restored { object, moved_from, of }
    }
}

/// The header of a protected object that gets another name or store than it had when the snapshot
/// was taken: bound to that, if it was bound to what the trailer says. With a key, only a program
/// that has it can make one.
fn rebound(
    file: &File,
    trailer: &SnapshotTrailer,
    mode: Mode,
    (store, name, key): (Uuid, &str, Option<&Keyring>),
) -> Result<Option<[u8; HEADER_LEN]>, ObjectError> {
    let span = trailer.data_len.next_multiple_of(PAGE_SIZE);
    let is_same = trailer.name() == Some(name) && trailer.store == store;
    if mode == Mode::None || (is_same && key.is_none()) {
        return if key.is_some() {
            Err(ObjectError::NotProtected { name: name.into() })
        } else {
            Ok(None)
        };
    }
    let mut bytes = [0; HEADER_LEN];
    file.read_exact_at(&mut bytes, object_data_offset(trailer.size) + span)
        .map_err(|source| ObjectError::File { what: "read", file: name.into(), source })?;
    let was =
        binding::of_object(trailer.store, trailer.name().unwrap_or_default(), trailer.data_len);
    let expected = Expect {
        mode: Some(mode),
        pages: Some(span / PAGE_SIZE),
        binding: Some(was).filter(|_| !planted(Bug::ReboundUnchecked)),
        ..Expect::of(trailer.object)
    };
    let opened = Protection::open(&bytes, &expected, key);
    let protection = opened.map_err(|error| at_rest::at_rest(name, error))?;
    protection.bind(binding::of_object(store, name, trailer.data_len));
    Ok(Some(protection.header()))
}

/// Whether the protection that a snapshot holds is that of its object. A program with the key is
/// told more when it attaches the object.
fn check_header(
    file: &File,
    trailer: &SnapshotTrailer,
    mode: Mode,
) -> Result<(), Result<io::Error, String>> {
    let span = trailer.data_len.next_multiple_of(PAGE_SIZE);
    let mut bytes = [0; size_of::<AtRestHeader>()];
    file.read_exact_at(&mut bytes, object_data_offset(trailer.size) + span).map_err(Ok)?;
    let header = read::<AtRestHeader>(&bytes, false).map_err(|error| Err(error.to_string()))?;
    if (header.object, header.pages, header.mode) == (trailer.object, span / PAGE_SIZE, mode as u32)
    {
        return Ok(());
    }
    Err(Err("it holds the protection of another object".into()))
}
