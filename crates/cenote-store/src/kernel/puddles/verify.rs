//! Checks that a puddle's file is the one that the catalog means: its length, its header, its
//! stamp.
//!
//! Nothing here maps or writes. Damage of a file is a text, and costs its pool; an error says
//! nothing about the file.

use crate::kernel::puddles::puddle::{file_name, make_header, text};
use crate::kernel::puddles::stamps::Expected;
use cenote_layout::PAGE_SIZE;
use cenote_layout::catalog::PuddleRecord;
use cenote_layout::header::read;
use cenote_layout::id::Uuid;
use cenote_layout::puddle::{PuddleHeader, Role, STAMP_AT};
use cenote_medium::{MediumError, OwnedMedium};

/// What to do about a file that is damaged. One file of a copy beside the others of the store would
/// mix moments.
pub(crate) const RESTORE: &str = "restore the whole store from one copy (`cenote backup` makes \
     one), or copy the other pools out with `cenote export`";

/// What is wrong with a puddle whose file is not there.
pub(crate) fn missing(name: &str) -> String {
    format!("its file {name} is missing; {RESTORE}")
}

/// Compares a puddle's file with its record: there, as long as it should be, with its own header.
/// `Ok(Some(why))` if it is damaged, or cannot be looked at: that costs its pool, and not the
/// store.
///
/// # Errors
/// [`MediumError::Linked`] if it is to be written and has several names, which costs its pool too
/// ([`of_file`]); and what says nothing of the file ([`MediumError::is_passing`]).
pub(crate) fn verify_file(
    medium: &OwnedMedium,
    record: &PuddleRecord,
    store: Uuid,
    writing: bool,
) -> Result<Option<String>, MediumError> {
    verify_all(
        medium,
        text(&file_name(record.uuid)),
        (record, record.size),
        store,
        writing,
        (None, None),
    )
}

/// The same for a file that is longer than its puddle.
pub(crate) fn verify_len(
    medium: &OwnedMedium,
    name: &str,
    record_and_len: (&PuddleRecord, u64),
    store: Uuid,
    writing: bool,
) -> Result<Option<String>, MediumError> {
    verify_all(medium, name, record_and_len, store, writing, (None, None))
}

/// The same for a file that has one of these stamps, if any are given.
pub(crate) fn verify_stamped(
    medium: &OwnedMedium,
    name: &str,
    record: &PuddleRecord,
    store: Uuid,
    writing: bool,
    stamps: Option<Expected>,
) -> Result<Option<String>, MediumError> {
    verify_all(medium, name, (record, record.size), store, writing, (None, stamps))
}

/// What an error that is about one file says of it. Others are errors still.
pub(crate) fn about_file(error: MediumError) -> Result<String, MediumError> {
    if error.is_passing() || error.is_failed_sync() { Err(error) } else { Ok(error.to_string()) }
}

/// Takes an error that is about one file for what is wrong with it.
pub(crate) fn of_file(
    found: Result<Option<String>, MediumError>,
) -> Result<Option<String>, MediumError> {
    found.or_else(|error| about_file(error).map(Some))
}

/// The same for any file, of so many bytes, and for one generation if that is given.
pub(crate) fn verify_all(
    medium: &OwnedMedium,
    name: &str,
    (record, expected_len): (&PuddleRecord, u64),
    store: Uuid,
    writing: bool,
    (generation, stamps): (Option<u64>, Option<Expected>),
) -> Result<Option<String>, MediumError> {
    if let Some(problem) = verify_length(medium, name, expected_len, writing)? {
        return Ok(Some(problem));
    }
    let mut bytes = [0; PAGE_SIZE as usize];
    let len = match medium.read_at(name, 0, &mut bytes) {
        Ok(len) => len,
        Err(error) if error.is_passing() => return Err(error),
        Err(error) => {
            return Ok(Some(format!("the header of its file {name} cannot be read: {error}")));
        }
    };
    let header = match read::<PuddleHeader>(&bytes[..len], writing) {
        Ok(header) => header,
        Err(error) if error.is_newer() => return Ok(Some(format!("its file {name}: {error}"))),
        Err(error) => return Ok(Some(format!("its file {name}: {error}; {RESTORE}"))),
    };
    if !is_of(&header, record, store) {
        return Ok(Some(format!(
            "the header of its file {name} is of another puddle: {} of store {}, {} bytes at \
             {:#x}; {RESTORE}",
            header.uuid, header.store, header.size, header.addr
        )));
    }
    let stamp =
        bytes[STAMP_AT as usize..].first_chunk().map_or(0, |word| u64::from_le_bytes(*word));
    let earlier = generation.filter(|wanted| *wanted != header.generation);
    Ok(earlier
        .map(|wanted| format!("its header is of generation {}, not {wanted}", header.generation))
        .or_else(|| stamps.and_then(|stamps| stamps.problem(name, stamp))))
}

/// Whether a file is there and has so many bytes, and one name alone if it is to be written.
fn verify_length(
    medium: &OwnedMedium,
    name: &str,
    expected: u64,
    writing: bool,
) -> Result<Option<String>, MediumError> {
    let len = match medium.stat(name) {
        Ok(stat) if writing => stat.refuse_links(name)?.len_bytes,
        Ok(stat) => stat.len_bytes,
        Err(error) if error.is_not_found() => return Ok(Some(missing(name))),
        Err(error) if error.is_passing() => return Err(error),
        Err(error) => {
            return Ok(Some(format!(
                "its file {name} cannot be looked at: {error}; make it readable, or {RESTORE}"
            )));
        }
    };
    if len == expected {
        return Ok(None);
    }
    let what = if len < expected { "truncated" } else { "made longer" };
    Ok(Some(format!("its file {name} was {what}: it has {len} bytes, not {expected}; {RESTORE}")))
}

/// Whether a header is that of this puddle, of any generation.
fn is_of(header: &PuddleHeader, record: &PuddleRecord, store: Uuid) -> bool {
    // The contents of an object are right at any address, so its header keeps the first one.
    let addr = if record.role == Role::Object { header.addr } else { record.addr };
    let expected = make_header(&PuddleRecord { addr, ..*record }, store);
    let what = |header: &PuddleHeader| {
        let place = (header.addr, header.size);
        (header.uuid, header.store, place, header.pool, header.role, header.index)
    };
    what(header) == what(&expected)
}
