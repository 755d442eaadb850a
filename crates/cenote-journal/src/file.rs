//! The journal's file: its two headers, and how a new file takes the place of none or of a smaller
//! one.
//!
//! A new file is made under another name (that of the journal with `.new`), with its space taken,
//! and synced; **renaming it commits**. The next session that makes the file removes the part that
//! an earlier crash left.

use crate::roots::Roots;
use cenote_layout::PAGE_SIZE;
use cenote_layout::header::{HeaderPrefix, read, seal};
use cenote_layout::id::Uuid;
use cenote_layout::object::{INCOMPAT_TIED, JournalHeader, RecordHeader};
use cenote_layout::superblock::JournalMark;
use cenote_medium::{FileHandle, MediumError, MediumKind, OwnedMedium};
use zerocopy::IntoBytes;

/// A header of a journal, to be sealed by [`write_header`].
pub(crate) fn new_header(
    (store, session): (Uuid, u64),
    half_len: u64,
    epoch: u64,
) -> JournalHeader {
    let prefix = HeaderPrefix::new(*b"CENJOURN", size_of::<JournalHeader>() as u32);
    JournalHeader {
        prefix: HeaderPrefix { incompat: INCOMPAT_TIED, ..prefix },
        store,
        generation: 1,
        epoch,
        half_len,
        trimmed: 0,
        chain: 0,
        roots_at: 0,
        roots_len: 0,
        roots_sum: 0,
        session,
        begun: 1,
        other: 0,
        catalog: 0,
        reserved: [0; 352],
    }
}

/// What a superblock says about a journal with this header.
pub(crate) fn mark(header: &JournalHeader) -> JournalMark {
    let JournalHeader { epoch, generation, trimmed, chain, .. } = *header;
    JournalMark { epoch, generation, trimmed, chain }
}

/// The header of a journal's file, to be compared with what a superblock names.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct FoundJournal {
    /// The newest whole header.
    pub mark: JournalMark,
    /// The other place has no whole header, so that the newest may be lost.
    pub alone: bool,
    /// [`JournalHeader::session`].
    pub session: u64,
    /// The epoch has records, or trims of such: the superblock names it. A look at the header
    /// alone does not know of records.
    pub used: bool,
    /// Number of the last record that counts; of a look at the header alone, of the last trim.
    pub last: u64,
    /// The names in this one ([`crate::Tie::names`]): the other journal's last record and the
    /// catalog's last batch that were durable at the last write here.
    pub names: [u64; 2],
}

/// The header of a journal's file. `Err` in the answer: why there is none that can be believed.
///
/// # Errors
/// The file cannot be read.
pub fn look(file: &FileHandle, store: Uuid) -> Result<Result<FoundJournal, String>, MediumError> {
    let found = read_header(file, store, false)?;
    Ok(found.map(|Whole { header, alone, .. }| found_in(&header, alone, header.trimmed, None)))
}

/// Findings about a header, the last number that counts, and the newest record, if that is known.
pub(crate) fn found_in(
    header: &JournalHeader,
    alone: bool,
    last: u64,
    newest: Option<&RecordHeader>,
) -> FoundJournal {
    // Of the header's session, or of one whose header is damaged. What earlier ones named is in the
    // header, as far as it counts.
    let newest = newest.filter(|newest| newest.epoch >= header.epoch);
    let used = header.generation != header.begun || newest.is_some();
    let names = newest.map_or([0; 2], |newest| [newest.other, newest.catalog]);
    let names = [names[0].max(header.other), names[1].max(header.catalog)];
    FoundJournal { mark: mark(header), alone, session: header.session, used, last, names }
}

/// Writes a header into the place of its generation, with the list that it names, and syncs both.
/// Of the list that the header names until now nothing is overwritten.
pub(crate) fn write_header(
    file: &FileHandle,
    header: &mut JournalHeader,
    roots: &Roots,
) -> Result<(), MediumError> {
    roots.write(file, header)?;
    seal(header);
    file.write_at(header.generation % 2 * PAGE_SIZE, header.as_bytes())?;
    file.sync()
}

/// A header that was read.
#[derive(Debug)]
pub(crate) struct Whole {
    pub(crate) header: JournalHeader,
    /// It is the only one.
    pub(crate) alone: bool,
    pub(crate) roots: Roots,
}

/// Reads the headers: the newest that is whole, with its list, or what is wrong.
pub(crate) fn read_header(
    file: &FileHandle,
    store: Uuid,
    writing: bool,
) -> Result<Result<Whole, String>, MediumError> {
    let mut newest: Option<(JournalHeader, Roots)> = None;
    let mut problem = String::new();
    for slot in 0..2 {
        let mut bytes = [0; size_of::<JournalHeader>()];
        let got = file.read_at(slot * PAGE_SIZE, &mut bytes)?;
        match read::<JournalHeader>(&bytes[..got], writing) {
            Ok(header) => match Roots::read(file, &header)? {
                Some(_)
                    if newest.as_ref().is_some_and(|(n, _)| n.generation >= header.generation) => {}
                Some(roots) => newest = Some((header, roots)),
                None => problem = "its list of protected primaries is not whole".into(),
            },
            Err(error) => problem = error.to_string(),
        }
    }
    let Some((header, roots)) = newest else {
        return Ok(Err(format!("neither header is whole: {problem}")));
    };
    if header.store != store {
        return Ok(Err(format!("it is the journal of store {}", header.store)));
    }
    let (_, end) = header.half(1);
    let len = file.len_bytes()?;
    if len < end {
        return Ok(Err(format!("it was truncated: it has {len} of {end} bytes")));
    }
    Ok(Ok(Whole { header, alone: !problem.is_empty(), roots }))
}

/// Makes a journal with this header, in the place of any earlier file. It is open before it has its
/// name: a caller that could not open it afterwards would go on with the file before, which has no
/// name any more. So if this fails, the file before is still in place; or the directory cannot be
/// synced, which is a failed sync.
pub(crate) fn replace(
    medium: &OwnedMedium,
    name: &str,
    header: &mut JournalHeader,
    roots: &Roots,
) -> Result<FileHandle, MediumError> {
    // The list goes into the new file.
    (header.roots_at, header.roots_len, header.roots_sum) = (0, 0, 0);
    let new = &format!("{name}.new");
    if medium.exists(new)? {
        medium.remove(new)?;
    }
    let (_, end) = header.half(1);
    medium.create(new, end)?;
    let made = fill(medium, new, (header, roots), end)
        .and_then(|mut file| file.rename(name).map(|()| file));
    let file = made.inspect_err(|_| drop(medium.remove(new)))?;
    medium.sync_dir("")?;
    Ok(file)
}

fn fill(
    medium: &OwnedMedium,
    new: &str,
    (header, roots): (&mut JournalHeader, &Roots),
    end: u64,
) -> Result<FileHandle, MediumError> {
    let file = FileHandle::open(medium, new)?;
    if !matches!(medium.describe().kind, MediumKind::Simulated | MediumKind::Tmpfs) {
        // Space that was written once is written again without a change of the file system's own
        // data: a sync then is one flush of the device.
        let zeros = vec![0; 1 << 20];
        let mut at = 0;
        while at < end {
            let step = (end - at).min(zeros.len() as u64);
            file.write_in_pieces(at, &zeros[..step as usize])?;
            at += step;
        }
    }
    write_header(&file, header, roots)?;
    Ok(file)
}
