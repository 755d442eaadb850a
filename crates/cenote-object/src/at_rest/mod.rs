//! Objects that are protected at rest (PMO-7, PMO-8, PMO-9; the crate `cenote-atrest` says what each mode is good for).
//!
//! The primary holds *sealed* pages, and behind them the regions of the protection: header, side data, tree. An attached object's memory
//! ([`View`]) is filled from them page by page as it is touched, so that attaching costs the same for any size.
//!
//! # A psync of a protected object
//!
//! The states are those of the crate's front page. What differs is what a record holds: pages are sealed in the copy that is taken of them,
//! and the record has the sealed pages' lines, their side data, the nodes of the tree above them, and the header with the new root, all as
//! lines of one file. So **the sync of the journal that commits a psync commits all of it**, in the same single flush of the device, and recovery
//! needs no key: it copies lines.
//!
//! 1. Pages that were stored into are copied and sealed. With XTS, or without encryption, lines are compared with the primary: what is
//!    equal is sealed to what is there. In authenticated mode a page has a new nonce each time, and is written whole.
//! 2. [`Protection::prepare`] works out nodes and header. It changes nothing, so that a psync that fails leaves nothing behind.
//! 3. The record is appended, and made durable.
//! 4. [`Protection::commit`]: from now on pages are checked against the new root. Before that they are checked against the old one, by
//!    nodes that are still those of the primary.
//! 5. The record is applied, later. What is read from the primary until then is read with the record laid over it.
//!
//! **Detach** has nothing left to encrypt or to hash: what was psynced is sealed already, and what was not is gone. So the
//! paper's states DP, ES, EP and CE, in which its kernel decrypts and encrypts whole objects, are never entered, and no attach waits for a detach.
//!
//! **Rekey** wraps the object's data key anew, and puts the header's lines into the journal as a record of its own. Written in place it would be
//! undone by recovery, which may apply an older record with the old header. Its cost does not depend on the object's size.
//!
//! Plaintext is in this process's memory and nowhere else: sealed is what the copy becomes before it is compared, journalled or written.

mod view;

pub(crate) use view::View;

use crate::connected;
use crate::error::ObjectError;
use crate::objects::{Patches, Shared};
use cenote_atrest::tree::{Node, NodeSource};
use cenote_atrest::{
    AtRestError, Change, Expect, HEADER_LEN, Keyring, PAGE_LEN, PageError, Protection, SealedPage,
};
use cenote_journal::{Changes, Draft, Journal, JournalError, Pages, Primary, Target};
use cenote_layout::at_rest::{NodeId, PageSide, Regions, SIDE_LEN};
use cenote_layout::id::Uuid;
use cenote_layout::{LINE_SIZE, PAGE_SIZE};
use cenote_medium::planted::{Bug, planted};
use cenote_medium::{FileHandle, MediumError};
use cenote_store::ObjectInfo;
use std::io;
use std::sync::Arc;
use zerocopy::IntoBytes;

/// Pages that are sealed at once.
const BATCH: usize = 16;
/// Nodes of the tree that are remembered between psyncs: 32 MiB.
const REMEMBERED_MAX: usize = 1 << 16;

/// Where sealed pages and what belongs to them are read from: the primary, with what recovery could not write laid over it.
#[derive(Debug)]
pub(crate) struct Source {
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
    /// Of an object with protection.
    pub(crate) fn new(shared: &Shared, info: &ObjectInfo, file: Arc<FileHandle>) -> Option<Self> {
        let span = info.record.span();
        let regions = Regions::new(info.record.at_rest.mode(), span / PAGE_SIZE)?;
        let patches = shared.patches(info.id()).cloned().unwrap_or_default();
        let journal = shared.journal_if_any().map(Arc::clone);
        let data_at = info.data_offset();
        Some(Self { file, data_at, span, regions, journal, object: info.id(), patches })
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

    pub(crate) fn read_pages(&self, first: u64, sealed: &mut [u8]) -> Result<(), MediumError> {
        self.read(first * PAGE_SIZE, sealed)
    }

    pub(crate) fn read_sides(&self, first: u64, sides: &mut [u8]) -> Result<(), MediumError> {
        self.read(self.span + self.regions.side_of(first), sides)
    }

    fn read_header(&self) -> Result<[u8; HEADER_LEN], MediumError> {
        let mut header = [0; HEADER_LEN];
        self.read(self.span, &mut header)?;
        Ok(header)
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

/// What is wrong when a committed record cannot be applied.
pub(crate) fn not_copied(name: &str, error: JournalError) -> ObjectError {
    match error {
        JournalError::NotCopied { source, .. } => ObjectError::NotCopied { name: name.into(), source },
        error => error.into(),
    }
}

/// What is wrong with an object's protection or key.
pub(crate) fn at_rest(name: &str, source: AtRestError) -> ObjectError {
    match source {
        AtRestError::Page(fault) => page_damaged(name, fault),
        source => ObjectError::AtRest { name: name.into(), source: Box::new(source) },
    }
}

pub(crate) fn page_damaged(name: &str, fault: PageError) -> ObjectError {
    ObjectError::PageDamaged { name: name.into(), page: fault.page, fault: Box::new(fault.fault) }
}

/// Opens an object's protection: the key is checked, and no page is read.
///
/// # Errors
/// No key, a wrong one, or one that is not needed; a header that is not this object's.
pub(crate) fn open(
    info: &ObjectInfo,
    source: &Source,
    key: Option<&Keyring>,
) -> Result<Protection, ObjectError> {
    let header = source.read_header()?;
    let expect = Expect {
        pages: Some(info.record.span() / PAGE_SIZE),
        mode: Some(info.record.at_rest.mode()),
        ..Expect::of(info.id())
    };
    Protection::open(&header, &expect, key).map_err(|error| at_rest(&info.record.name, error))
}

/// Seals pages of a view, and adds what a record has to hold to `changes`, as of primary number `object`. `None`: nothing differs.
///
/// # Errors
/// The primary or the tree cannot be read, or the tree is damaged; no random bytes. What was added is incomplete.
pub(crate) fn seal(
    info: &ObjectInfo,
    view: &View,
    object: u32,
    pages: &[Pages],
    primary: &Primary<'_>,
    changes: &mut Changes,
) -> Result<Option<Change>, ObjectError> {
    let (protection, source, name) = (view.protection(), view.source(), &info.record.name);
    let mut sealed: Vec<SealedPage> = Vec::new();
    let mut copy = vec![0u8; BATCH * PAGE_LEN];
    for range in pages {
        let mut at = range.start;
        while at < range.end {
            let count = (range.end - at).min(BATCH as u64);
            let copy = &mut copy[..count as usize * PAGE_LEN];
            view.copy_out(at * PAGE_SIZE, copy);
            let mut batch = Vec::with_capacity(BATCH);
            for (page, bytes) in (at..).zip(copy.as_chunks_mut::<PAGE_LEN>().0) {
                let made = if planted(Bug::PlainJournalled) {
                    let plain = *bytes;
                    protection.seal(page, &plain, &mut [0; PAGE_LEN])
                } else {
                    protection.seal_in_place(page, bytes)
                };
                batch.push(made.map_err(|fault| page_damaged(name, fault))?);
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
    if sealed.is_empty() {
        return Ok(None);
    }
    for page in &sealed {
        if let Some(side) = &page.side {
            changes.add_lines(object, source.line(source.regions.side_of(page.page)), side.as_bytes());
        }
    }
    let change = protection.prepare(&sealed, source).map_err(|error| at_rest(name, error))?;
    for node in &change.nodes {
        changes.add_lines(object, source.line(source.regions.tree + node.offset), &node.bytes[..]);
    }
    if let Some(header) = &change.header {
        if planted(Bug::AtRestHeaderApart) {
            source.file.write_at(source.data_at + source.span, header)?;
        } else {
            changes.add_lines(object, source.line(0), header);
        }
    }
    Ok(Some(change))
}

/// After a change was committed and applied: forgets what can be read again.
pub(crate) fn settle(view: &View) {
    if let Some(tree) = view.protection().tree()
        && tree.remembered() > REMEMBERED_MAX
    {
        tree.trim();
    }
}

/// Puts an object that nobody has attached under another key.
///
/// # Errors
/// As [`open`]; the journal, as of a psync.
pub(crate) fn rekey(
    shared: &Shared,
    info: &ObjectInfo,
    old: &Keyring,
    new: &Keyring,
) -> Result<(), ObjectError> {
    let name = &info.record.name;
    let primary = Arc::new(FileHandle::open(shared.store.medium(), &info.file())?);
    let Some(source) = Source::new(shared, info, Arc::clone(&primary)) else {
        return Err(ObjectError::NotProtected { name: name.clone() });
    };
    let protection = open(info, &source, Some(old))?;
    let header = protection.rekey(new).map_err(|error| at_rest(name, error))?;
    let at = info.data_offset() + info.regions_offset();
    if planted(Bug::RekeyNotJournalled) {
        primary.write_at(at, &header)?;
        return Ok(primary.sync()?);
    }
    let mut changes = Changes::default();
    changes.add_lines(0, source.line(0), &header);
    if let Some(keeper) = shared.store.keeper() {
        return connected::psync_lines(keeper, info, &changes);
    }
    let (ids, journal) = ([info.id()], shared.journal()?);
    let Some(draft) = Draft::new(&ids, &changes) else {
        return Err(ObjectError::PsyncTooLarge {
            needed: HEADER_LEN as u64,
            limit: shared.options.half_len_max,
        });
    };
    let ticket = journal.append(&draft)?;
    journal.make_durable(&ticket)?;
    let target = Target { id: info.id(), file: primary, data_offset: info.data_offset() };
    // Whoever attaches it next reads its file.
    let applied = journal.apply_later(ticket, changes, vec![target]).and_then(|()| journal.settle(info.id()));
    applied.map_err(|error| not_copied(name, error))
}

/// What [`crate::Attached::verify`] found.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Verified {
    /// Whether the object's mode tells a damaged page from a whole one.
    pub covered: bool,
    /// Pages that were looked at.
    pub pages: u64,
    /// Pages that fail their check or cannot be read, by number, with what is wrong.
    pub damaged: Vec<(u64, String)>,
}

/// Checks every page of a view's primary, in order. `progress` is told pages done and pages altogether, and may end it.
pub(crate) fn verify(view: &View, progress: &mut dyn FnMut(u64, u64) -> bool) -> Verified {
    let (protection, source) = (view.protection(), view.source());
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
                Err(_) => check_one(view, page).err(),
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

fn check_one(view: &View, page: u64) -> Result<(), String> {
    let (protection, source) = (view.protection(), view.source());
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
