//! Where sealed pages come from, and what becomes of those that were stored into; the crate's front page has the order of a psync.
//!
//! **Rekey** wraps the data key anew, and puts the header's lines into the journal as a record of its own. Written in place it would be
//! undone by recovery, which may apply an older record with the old header. Its cost does not depend on the size.

use crate::{SealedError, View};
use cenote_atrest::binding;
use cenote_atrest::tree::{Digest, Node, NodeSource};
use cenote_atrest::{Change, Expect, HEADER_LEN, Keyring, Mode, PAGE_LEN, Protection, SealedPage};
use cenote_journal::{Changes, Journal, Pages, Primary, Rooted};
use cenote_layout::at_rest::{NodeId, PageSide, Regions, SIDE_LEN};
use cenote_layout::id::Uuid;
use cenote_layout::{LINE_SIZE, PAGE_SIZE};
use cenote_medium::planted::{Bug, planted};
use cenote_medium::{FileHandle, MediumError};
use cenote_sys::secret::wipe_bytes;
use std::io;
use std::sync::Arc;
use zerocopy::IntoBytes;

/// Pages that are sealed at once.
const BATCH: usize = 16;
/// Nodes of the tree that are remembered between psyncs: 32 MiB.
const REMEMBERED_MAX: usize = 1 << 16;

/// What recovery could not write, to be laid over a primary: offsets in its data, and bytes.
pub type Patches = Vec<(u64, Vec<u8>)>;

/// Where sealed pages and what belongs to them are read from: the primary, with what recovery could not write laid over it.
#[derive(Debug)]
pub struct Source {
    file: Arc<FileHandle>,
    data_at: u64,
    span: u64,
    regions: Regions,
    /// What a psync of this session has committed may not be in the file yet.
    journal: Option<Arc<Journal>>,
    object: Uuid,
    patches: Patches,
}

impl Source {
    /// Of `pages` sealed pages that begin at `data_at` of a file, known to its journal as `id`. What a psync of this session has committed may be in the
    /// journal alone. `None`: no file has so many.
    #[must_use]
    pub fn new(
        mode: Mode,
        pages: u64,
        (id, file, data_at): (Uuid, Arc<FileHandle>, u64),
        journal: Option<Arc<Journal>>,
        patches: Patches,
    ) -> Option<Self> {
        let regions = Regions::new(mode, pages)?;
        Some(Self {
            file,
            data_at,
            span: pages.checked_mul(PAGE_SIZE)?,
            regions,
            journal,
            object: id,
            patches,
        })
    }

    /// The file.
    #[must_use]
    pub fn file(&self) -> &Arc<FileHandle> {
        &self.file
    }

    /// Reads bytes, counted from the start of the data.
    fn read(&self, offset: u64, bytes: &mut [u8]) -> Result<(), MediumError> {
        match &self.journal {
            Some(journal) => journal.primary(self.object, &self.file, self.data_at).read(offset, bytes)?,
            None => self.file.read_exact_at(self.data_at + offset, bytes)?,
        }
        let end = offset + bytes.len() as u64;
        for (at, patch) in &self.patches {
            let (from, to) = ((*at).max(offset), (at + patch.len() as u64).min(end));
            if from < to {
                bytes[(from - offset) as usize..(to - offset) as usize]
                    .copy_from_slice(&patch[(from - at) as usize..(to - at) as usize]);
            }
        }
        Ok(())
    }

    /// Reads sealed pages.
    ///
    /// # Errors
    /// The medium.
    pub fn read_pages(&self, first: u64, sealed: &mut [u8]) -> Result<(), MediumError> {
        self.read(first * PAGE_SIZE, sealed)
    }

    /// Reads side data of pages, in modes that have it.
    ///
    /// # Errors
    /// The medium.
    pub fn read_sides(&self, first: u64, sides: &mut [u8]) -> Result<(), MediumError> {
        self.read(self.span + self.regions.side_of(first), sides)
    }

    fn read_header(&self) -> Result<[u8; HEADER_LEN], MediumError> {
        let mut header = [0; HEADER_LEN];
        self.read(self.span, &mut header)?;
        Ok(header)
    }

    /// Whether the file has this header.
    #[must_use]
    pub fn header_is(&self, header: &[u8; HEADER_LEN]) -> bool {
        self.read_header().is_ok_and(|found| found == *header)
    }

    /// The line of an offset in the regions.
    fn line(&self, offset: u64) -> u64 {
        (self.span + offset) / LINE_SIZE
    }
}

impl NodeSource for Source {
    fn read_node(&self, _: NodeId, offset: u64, bytes: &mut Node) -> io::Result<()> {
        self.read(self.span + self.regions.tree + offset, bytes)
            .map_err(|error| io::Error::other(error.to_string()))
    }
}

/// What a journal lists of a primary that is protected so, with `span` bytes of sealed pages.
/// Modes without a tree have headers that no psync changes: they are in no list.
#[must_use]
pub fn rooted(mode: Mode, span: u64) -> Option<Rooted> {
    mode.has_tree().then_some(Rooted { at: span, root: binding::root })
}

/// Compares a protection with what the journal lists.
///
/// # Errors
/// It is another.
pub fn check_listed(what: &str, protection: &Protection, listed: Option<Digest>) -> Result<(), SealedError> {
    if planted(Bug::RootsIgnored) {
        return Ok(());
    }
    protection.check_listed(listed).map_err(|error| SealedError::at_rest(what, error))
}

/// Opens the protection that a source has, bound to what the catalog says
/// ([`cenote_atrest::binding`]): the key is checked, and no page is read.
///
/// # Errors
/// No key, a wrong one, or one that is not needed; a header that is not this one's, or made for
/// another name or place.
pub fn open(
    what: &str,
    mode: Mode,
    source: &Source,
    (binding, key): (Digest, Option<&Keyring>),
) -> Result<Protection, SealedError> {
    let expect = Expect { binding: Some(binding), ..Expect::of(source.object) };
    open_by(what, mode, source, expect, key)
}

/// The same of a file that is a copy, and still sealed as what it was copied from: what that was
/// bound to is not known here.
///
/// # Errors
/// As [`open`].
pub fn open_as(
    what: &str,
    mode: Mode,
    source: &Source,
    (identity, key): (Uuid, Option<&Keyring>),
) -> Result<Protection, SealedError> {
    open_by(what, mode, source, Expect::of(identity), key)
}

fn open_by(
    what: &str,
    mode: Mode,
    source: &Source,
    mut expect: Expect<'_>,
    key: Option<&Keyring>,
) -> Result<Protection, SealedError> {
    let header = source.read_header()?;
    (expect.pages, expect.mode) = (Some(source.span / PAGE_SIZE), Some(mode));
    expect.binding = expect.binding.filter(|_| !planted(Bug::BindingIgnored));
    Protection::open(&header, &expect, key).map_err(|error| SealedError::at_rest(what, error))
}

/// Copies of pages before they are sealed: wiped, if that does not come about.
struct Scratch(Vec<u8>);

impl Drop for Scratch {
    fn drop(&mut self) {
        wipe_bytes(&mut self.0);
    }
}

/// Seals pages, whose plain contents `copy_out` gives from an offset on, and adds what a record has
/// to hold to `changes`, as of primary number `object`: all but the header ([`seal_header`]).
/// `None`: nothing differs.
///
/// # Errors
/// The primary or the tree cannot be read, or the tree is damaged; no random bytes. What was added is incomplete.
pub fn seal(
    view: &View,
    object: u32,
    pages: &[Pages],
    copy_out: &mut dyn FnMut(u64, &mut [u8]),
    primary: &Primary<'_>,
    changes: &mut Changes,
) -> Result<Option<Change>, SealedError> {
    let (protection, source, what) = (view.protection(), view.source(), view.what());
    let mut sealed: Vec<SealedPage> = Vec::new();
    let mut scratch = Scratch(vec![0u8; BATCH * PAGE_LEN]);
    for range in pages {
        let mut at = range.start;
        while at < range.end {
            let count = (range.end - at).min(BATCH as u64);
            let copy = &mut scratch.0[..count as usize * PAGE_LEN];
            copy_out(at * PAGE_SIZE, copy);
            let mut batch = Vec::with_capacity(BATCH);
            for (page, bytes) in (at..).zip(copy.as_chunks_mut::<PAGE_LEN>().0) {
                let made = if planted(Bug::PlainJournalled) {
                    let plain = *bytes;
                    protection.seal(page, &plain, &mut [0; PAGE_LEN])
                } else {
                    protection.seal_in_place(page, bytes)
                };
                batch.push(made.map_err(|fault| SealedError::page(what, fault))?);
            }
            if protection.mode().has_side() {
                (at..)
                    .zip(copy.chunks_exact(PAGE_LEN))
                    .for_each(|(page, bytes)| changes.add_whole_page(object, page, bytes));
                sealed.append(&mut batch);
            } else {
                changes.add_copy_noting(object, at, copy, primary, |page| {
                    sealed.push(batch[(page - at) as usize]);
                })?;
            }
            at += count;
        }
    }
    // What was copied is sealed by now.
    scratch.0.clear();
    if sealed.is_empty() {
        return Ok(None);
    }
    for page in &sealed {
        if let Some(side) = &page.side {
            changes.add_lines(object, source.line(source.regions.side_of(page.page)), side.as_bytes());
        }
    }
    let change = protection.prepare(&sealed, source).map_err(|error| SealedError::at_rest(what, error))?;
    for node in &change.nodes {
        changes.add_lines(object, source.line(source.regions.tree + node.offset), &node.bytes[..]);
    }
    Ok(Some(change))
}

/// Adds the header of a change to what a record has to hold, as of primary number `object`: the
/// last step, because a pool's root puddle has the others' headers in its own.
///
/// # Errors
/// None but a planted one.
pub fn seal_header(
    view: &View,
    object: u32,
    change: &Change,
    changes: &mut Changes,
) -> Result<(), SealedError> {
    let (source, Some(header)) = (view.source(), &change.header) else { return Ok(()) };
    if planted(Bug::AtRestHeaderApart) {
        source.file.write_at(source.data_at + source.span, header)?;
    } else {
        changes.add_lines(object, source.line(0), header);
    }
    Ok(())
}

/// After a change was committed and applied: forgets what can be read again.
pub fn settle(view: &View) {
    if let Some(tree) = view.protection().tree()
        && tree.remembered() > REMEMBERED_MAX
    {
        tree.trim();
    }
}

/// What a record has to hold that puts sealed pages under another key: the header with their data key, wrapped anew. As of primary number 0.
///
/// # Errors
/// There is no key to be changed; no random bytes.
pub fn rekey(
    what: &str,
    protection: &Protection,
    source: &Source,
    new: &Keyring,
) -> Result<(Changes, [u8; HEADER_LEN]), SealedError> {
    let header = protection.rekey(new).map_err(|error| SealedError::at_rest(what, error))?;
    let mut changes = Changes::default();
    changes.add_lines(0, source.line(0), &header);
    Ok((changes, header))
}

/// What a look at every page found.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Verified {
    /// Whether the mode tells a damaged page from a whole one.
    pub covered: bool,
    /// Pages that were looked at.
    pub pages: u64,
    /// Pages that fail their check or cannot be read, by number, with what is wrong.
    pub damaged: Vec<(u64, String)>,
}

/// Checks every page of a view's primary, in order. `progress` is told pages done and pages altogether, and may end it.
pub fn verify(view: &View, progress: &mut dyn FnMut(u64, u64) -> bool) -> Verified {
    verify_all(view.protection(), view.source(), progress)
}

/// The same of a file that has no view.
pub fn verify_all(
    protection: &Protection,
    source: &Source,
    progress: &mut dyn FnMut(u64, u64) -> bool,
) -> Verified {
    let (all, has_side) = (protection.pages(), protection.mode().has_side());
    let mut found = Verified { covered: protection.mode().has_tree(), ..Verified::default() };
    let mut sealed = vec![0u8; BATCH * PAGE_LEN];
    let mut sides = [0u8; BATCH * SIDE_LEN];
    let mut at = 0;
    while found.covered && at < all {
        let count = (all - at).min(BATCH as u64) as usize;
        let (sealed, sides) = (&mut sealed[..count * PAGE_LEN], &mut sides[..count * SIDE_LEN]);
        let mut read = source.read_pages(at, sealed);
        if has_side {
            read = read.and_then(|()| source.read_sides(at, sides));
        }
        let pages = sealed.as_chunks::<PAGE_LEN>().0.iter().zip(sides.as_chunks::<SIDE_LEN>().0);
        for (page, (sealed, side)) in (at..).zip(pages) {
            let side: Option<PageSide> = has_side.then_some(zerocopy::transmute!(*side));
            let wrong = match &read {
                // Which of them it is, is found one by one.
                Err(_) => check_page(protection, source, page).err(),
                Ok(()) => protection
                    .check_page(page, sealed, side.as_ref(), source)
                    .err()
                    .map(|e| e.fault.to_string()),
            };
            found.damaged.extend(wrong.map(|wrong| (page, wrong)));
        }
        at += count as u64;
        found.pages = at;
        if !progress(at, all) {
            break;
        }
    }
    found
}

/// What is wrong with one page as it was psynced last, if something is.
///
/// # Errors
/// That.
pub fn check_one(view: &View, page: u64) -> Result<(), String> {
    check_page(view.protection(), view.source(), page)
}

fn check_page(protection: &Protection, source: &Source, page: u64) -> Result<(), String> {
    let (mut sealed, mut side) = ([0; PAGE_LEN], [0; SIDE_LEN]);
    source.read_pages(page, &mut sealed).map_err(|error| error.to_string())?;
    if protection.mode().has_side() {
        source.read_sides(page, &mut side).map_err(|error| error.to_string())?;
    }
    let side: Option<PageSide> = protection.mode().has_side().then_some(zerocopy::transmute!(side));
    protection
        .check_page(page, &sealed, side.as_ref(), source)
        .map(drop)
        .map_err(|error| error.fault.to_string())
}
