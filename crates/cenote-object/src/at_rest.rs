//! Objects that are protected at rest (PMO-7, PMO-8, PMO-9; the crate `cenote-atrest` says what
//! each mode is good for).
//!
//! The primary holds *sealed* pages, and behind them the regions of the protection: header, side
//! data, tree. An attached object's memory ([`View`]) is filled from them page by page as it is
//! touched, so attaching costs the same for any size. That of a small object is filled at once,
//! which costs less than its faults would (decision 82). [`cenote_atrest::view`] has both, and the
//! record of a psync of sealed pages; this crate's front page has the states.
//!
//! **Detach** encrypts and hashes nothing: psynced pages are sealed already, and other stores are
//! gone. So the paper's states DP, ES, EP and CE, in which its kernel decrypts and encrypts whole
//! objects, are never entered, and no attach waits for a detach.

pub(crate) use cenote_atrest::view::{Source, View, verify};

use crate::connected;
use crate::error::ObjectError;
use crate::shared::{Shared, rooted};
use cenote_atrest::view::SealedError;
use cenote_atrest::{AtRestError, HEADER_LEN, Keyring, Protection, binding};
use cenote_journal::{ApplyTarget, Draft, JournalError, Rooted};
use cenote_layout::PAGE_SIZE;
use cenote_medium::FileHandle;
use cenote_medium::planted::{Bug, planted};
use cenote_store::{ObjectInfo, Rekeyed, StoreError};
use std::sync::Arc;

/// An object as messages name it.
pub(crate) fn named(name: &str) -> String {
    format!("object \"{name}\"")
}

/// What the sealed pages of an object with protection are read from.
pub(crate) fn source_of(
    shared: &Shared,
    info: &ObjectInfo,
    file: Arc<FileHandle>,
) -> Option<Source> {
    let patches = shared.patches(info.id()).cloned().unwrap_or_default();
    let journal = shared.journal_if_any().map(Arc::clone);
    let place = (info.id(), file, info.data_offset());
    Source::new(info.record.at_rest.mode(), info.record.span() / PAGE_SIZE, place, journal, patches)
}

/// What is wrong when a committed record cannot be applied.
pub(crate) fn not_copied(name: &str, error: JournalError) -> ObjectError {
    match error {
        JournalError::NotCopied { source, .. } => {
            ObjectError::NotCopied { name: name.into(), source }
        }
        error => error.into(),
    }
}

/// What is wrong with an object's protection or key.
pub(crate) fn at_rest(name: &str, source: AtRestError) -> ObjectError {
    sealed(name, SealedError::at_rest("", source))
}

/// What is wrong with an object's sealed memory.
pub(crate) fn sealed(name: &str, error: SealedError) -> ObjectError {
    let name = name.to_owned();
    match error {
        SealedError::Medium(error) => error.into(),
        SealedError::AtRest { source, .. } => ObjectError::AtRest { name, source },
        SealedError::PageDamaged { page, fault, .. } => {
            ObjectError::PageDamaged { name, page, fault }
        }
        SealedError::Memory { source, .. } => ObjectError::Memory { name, source },
        other => ObjectError::Memory { name, source: std::io::Error::other(other.to_string()) },
    }
}

/// Opens an object's protection: the key is checked, and no page is read.
///
/// # Errors
/// No key, a wrong one, or one that is not needed; a header that is not this object's.
pub(crate) fn open(
    shared: &Shared,
    info: &ObjectInfo,
    source: &Source,
    key: Option<&Keyring>,
) -> Result<Protection, ObjectError> {
    let name = &info.record.name;
    let (what, mode) = (named(name), info.record.at_rest.mode());
    let binding = binding::of_object(shared.store.uuid(), name, info.record.data_len);
    let protection = cenote_atrest::view::open(&what, mode, source, (binding, key))
        .map_err(|error| sealed(name, error))?;
    if let Some(listed) = shared.listed(info.id())? {
        cenote_atrest::view::check_listed(&what, &protection, listed)
            .map_err(|error| sealed(name, error))?;
    }
    Ok(protection)
}

/// Refuses the file of an object that is not the one that the journal lists, without its key.
///
/// # Errors
/// It is another; the file cannot be read.
pub(crate) fn check_file(
    shared: &Shared,
    info: &ObjectInfo,
    file: &FileHandle,
) -> Result<(), ObjectError> {
    let (Some(Rooted { at, root }), Some(listed)) = (rooted(info), shared.listed(info.id())?)
    else {
        return Ok(());
    };
    let mut header = [0; HEADER_LEN];
    file.read_exact_at(info.data_offset() + at, &mut header)?;
    if root(&header) == listed || planted(Bug::RootsIgnored) {
        return Ok(());
    }
    Err(at_rest(&info.record.name, AtRestError::NotListed { object: info.id() }))
}

/// Puts an object that is not attached under another key. An error: the old key is its key.
/// **The sync of the record commits.**
///
/// # Errors
/// As [`open`]; the journal, as of a psync.
pub(crate) fn rekey(
    shared: &Shared,
    info: &ObjectInfo,
    old: &Keyring,
    new: &Keyring,
) -> Result<Rekeyed<ObjectError>, ObjectError> {
    let name = &info.record.name;
    let primary = Arc::new(FileHandle::open(shared.files(), &info.file())?);
    let Some(source) = source_of(shared, info, Arc::clone(&primary)) else {
        return Err(ObjectError::NotProtected { name: name.clone() });
    };
    let protection = open(shared, info, &source, Some(old))?;
    let (changes, header) = cenote_atrest::view::rekey(&named(name), &protection, &source, new)
        .map_err(|error| sealed(name, error))?;
    if planted(Bug::RekeyNotJournalled) {
        primary.write_at(info.data_offset() + info.regions_offset(), &header)?;
        return Ok(Rekeyed::of(Ok(primary.sync()?)));
    }
    if let Some(daemon) = shared.daemon() {
        return through_daemon(connected::psync_lines(daemon, info, &changes), &source, &header);
    }
    let (ids, journal) = ([info.id()], shared.journal()?);
    let Some(draft) = Draft::new(&ids, &changes) else {
        return Err(ObjectError::PsyncTooLarge {
            needed: HEADER_LEN as u64,
            limit: shared.options.half_len_max,
        });
    };
    let ticket = journal.append(&draft)?;
    // From here on an error changes nothing about which key it is.
    let undurable = match planted(Bug::RekeyUndecided) {
        true => journal.make_durable(&ticket).map(|()| None)?,
        false => journal.decide(&ticket)?,
    };
    let (data_offset, rooted) = (info.data_offset(), rooted(info));
    let target = ApplyTarget { id: info.id(), file: primary, data_offset, rooted };
    // The next attach reads the file.
    let done = undurable.map_or(Ok(()), Err).and_then(|()| {
        journal.apply_later(ticket, changes, vec![target]).and_then(|()| journal.settle(info.id()))
    });
    let done = done.map_err(|error| not_copied(name, error));
    if planted(Bug::RekeyUndecided) {
        done?;
        return Ok(Rekeyed::Done);
    }
    Ok(Rekeyed::of(done))
}

/// Reads a daemon's answer to a change of a key. The daemon takes a record back that it cannot make
/// durable. So an error is from before the commit, unless it says otherwise or the file has the new
/// header.
fn through_daemon(
    answer: Result<(), ObjectError>,
    source: &Source,
    header: &[u8; HEADER_LEN],
) -> Result<Rekeyed<ObjectError>, ObjectError> {
    let Err(error) = answer else { return Ok(Rekeyed::Done) };
    let committed = matches!(
        error,
        ObjectError::NotCopied { .. } | ObjectError::Store(StoreError::NotCopied { .. })
    ) || source.header_is(header);
    if committed { Ok(Rekeyed::Unfinished(error)) } else { Err(error) }
}
