//! Says which images recovery cannot tell apart: the canonical form of an image.
//!
//! Two images with the same canonical form need one recovery. Invariant: the form of an image
//! follows from its bytes alone, and bytes that are not understood are kept as they are. The form
//! leaves out, with the reason:
//!
//! 1. *What an allocation mark says beside "allocated" or not, after a loss of power*: only the one
//!    value is believed, all others that programs write mean free, and the opener makes them so.
//!    (No crash leaves a mark that no program writes.) And, after any crash, hints, lists and the
//!    words of descriptors that mean something only to the processes that have the pool open: its
//!    first opener writes them again. (Marks that durable entries name are drawn, because replay
//!    writes them in either direction; they are not left out of the form, which hid a replay that
//!    does not.)
//! 2. *`tail` and `last` of a log, after a loss of power*: hints, which the scan reads after a
//!    crash of processes only. `last` it never reads.
//! 3. *The number of the transaction, the epoch, and the half of the log.* The scan compares
//!    sequence numbers with the range's only, and checksums with what they cover. So an entry is
//!    what it says (kind, address, size, data, how many before it were unfenced), and a range is
//!    its stage. Where numbers are about to run out, how far they still reach is kept.
//! 4. *What stands in a log and is no whole entry of the range's transaction*: torn entries,
//!    entries of older transactions, the other half, further segments to which no whole jump leads.
//!    The scan stops at the first place without a whole entry, and looks behind it for whole
//!    entries of the same transaction only (these are kept). That no entry is newer than the range
//!    allows is checked here; otherwise the log is taken as it stands.
//! 5. *Address and data of volatile entries*: that memory is gone; replay skips them.
//! 6. *Memory under the whole undo and fresh entries of a running transaction without a whole
//!    seal.* Without a seal, replay reads no memory that an entry covers; it copies the undo data
//!    there, whatever is there. After that nothing leads to a fresh block. Where there is a
//!    whole seal, the memory that it covers is kept; but of the combinations of what may be missing
//!    of it, only everything, a part that is drawn, and nothing are visited: of that memory replay
//!    takes one hash.
//! 7. *Memory in blocks that the transaction in progress has taken, while no seal and no range can
//!    commit it*: the block was free, so nothing that is durable leads there, and the word that
//!    will lead there lies under an undo entry or is not written. That is known from the history,
//!    not from the image: see [`Context`].
//! 8. *A heap puddle that came in the operation in progress and to which no entry leads* is not
//!    left out, but apart: it holds no block, so tracing the others never comes there, and what is
//!    done to it depends on its own descriptors only.
//!
//! All of this is about logs that a log space names: of others only the bytes count, and whatever
//! is in a log that is not named covers nothing.
//!
//! Each of these is a claim about recovery. So what is left out is not fixed in the images that are
//! recovered but drawn by hash (see [`crate::units`]); some of the images that equal another one in
//! this form are recovered all the same, and what is found is compared (see [`crate::explore`]);
//! and histories of up to two operations are looked at word by word as well.
//!
//! Values and addresses need no renaming: histories take values from few ([`crate::data`]), and the
//! same calls get the same addresses.

use cenote_layout::checksum::checksum;
use cenote_layout::header::Header;
use cenote_layout::heap::{
    BLOCK_SIZE_MIN, Descriptor, HeapGeometry, SUPERBLOCK_SIZE, SWEEP_SIZE, TINY_MARKS_SIZE,
    is_tiny, mark,
};
use cenote_layout::log::{
    CONTROL_OFFSET, ContentHash, ENTRIES_OFFSET, ENTRY_HEADER_SIZE, ENTRY_INLINE_DATA_MAX,
    EntryHeader, EntryKind, LAST_BASE, LogControl, LogHeader, LogRange, RANGE_OFFSET, Seal,
    SequenceRange, Stage, TailWord, entry_seed, entry_size, epoch_from_word,
};
use cenote_layout::log_space::{LOG_SPACE_ENTRIES_OFFSET, Listing, LogSpaceEntry};
use cenote_layout::logged::LoggedHeader;
use cenote_layout::puddle::{PuddleHeader, Role, header_space};
use cenote_layout::wear::WearHeader;
use cenote_medium::sim::{CrashKind, Image};
use std::hash::{DefaultHasher, Hash, Hasher};
use std::ops::Range;
use std::sync::Arc;
use zerocopy::{FromBytes, IntoBytes};

/// Hashes of the canonical form of an image, and of parts of it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Canonical {
    /// Everything.
    pub whole: u64,
    /// Logs and heaps: what replay and tracing look at.
    pub data: u64,
    /// Heap puddles that are new and hold no block yet: what tracing looks at apart from
    /// everything else. Not in `data`.
    pub new: u64,
    /// Superblock, catalog, log spaces, names, lengths and headers: what the open itself looks at.
    pub store: u64,
    /// What replay is to do, without addresses and contents: kind of the crash, and of each log
    /// the stage, which kinds of entries it holds and which is last, and whether
    /// its seal fits.
    pub shape: u64,
}

/// What is known of an image beyond its bytes.
#[derive(Clone, Debug, Default)]
pub struct Context {
    /// Start and end of blocks that the transaction in progress has taken, and cannot have
    /// committed: 7.
    pub taken: Vec<(u64, u64)>,
    /// Heap puddles that came in the operation in progress: 8.
    pub new: Vec<Arc<str>>,
}

/// A puddle of an image.
pub(crate) struct PuddleAt {
    pub(crate) name: Arc<str>,
    pub(crate) addr: u64,
    pub(crate) size: u64,
    pub(crate) role: Option<Role>,
    pub(crate) body: u64,
    /// Of a heap puddle.
    pub(crate) parts: HeapParts,
}

/// Where in a heap puddle lies what recovery does not look at, or not always: offsets in the
/// puddle.
fn heap_parts(image: &Image, name: &str, size: u64, root: bool) -> Option<HeapParts> {
    let g = HeapGeometry::new(size, root)?;
    let line = size_of::<Descriptor>() as u64;
    let mut parts = HeapParts { descriptors: g.descriptors..g.tiny, ..HeapParts::default() };
    parts.marks.push(g.marks..g.hints);
    parts.session.push(g.hints..g.roots);
    if root {
        parts.session.push(g.lists..g.sweep);
        parts.session.push(g.sweep + SWEEP_SIZE..g.first_usable * SUPERBLOCK_SIZE);
    }
    for number in 0..g.superblocks {
        let at = g.descriptors + number * line;
        parts.session.push(at + std::mem::offset_of!(Descriptor, anchor) as u64..at + line);
        let mut bytes = [0; size_of::<Descriptor>()];
        let Ok(descriptor) = Descriptor::read_from_bytes(if image.read(name, at, &mut bytes) {
            &bytes[..]
        } else {
            &[]
        }) else {
            continue;
        };
        let size = descriptor.block_size;
        // Of tiny marks only those that a descriptor names: no program writes the others.
        if size >= BLOCK_SIZE_MIN && is_tiny(size) && descriptor.is_valid() {
            let start = g.marks_at(number, size);
            parts.marks.push(start..start + TINY_MARKS_SIZE);
        }
    }
    Some(parts)
}

/// Parts of a heap puddle; see [`heap_parts`].
#[derive(Default)]
pub(crate) struct HeapParts {
    pub(crate) descriptors: Range<u64>,
    /// Allocation marks.
    pub(crate) marks: Vec<Range<u64>>,
    /// What means something only to the processes that have the pool open.
    pub(crate) session: Vec<Range<u64>>,
}

/// The puddles of an image whose headers say what they are.
pub(crate) fn puddles(image: &Image) -> Vec<PuddleAt> {
    const PREFIX: usize = std::mem::offset_of!(PuddleHeader, reserved);
    let mut out = Vec::new();
    let mut is_untraced = false;
    image.for_each_file(|name, len| {
        let mut bytes = [0; size_of::<PuddleHeader>()];
        if !name.starts_with("puddles/") || !image.read(name, 0, &mut bytes[..PREFIX]) {
            return;
        }
        let Ok(header) = PuddleHeader::read_from_bytes(&bytes[..]) else { return };
        let plausible = header.size == len && header.addr != 0;
        let role = Role::from_u32(header.role).filter(|_| plausible);
        let parts = match role {
            Some(Role::Heap) => {
                is_untraced |= header.index == 0 && has_untraced_heap(image, name, len);
                heap_parts(image, name, len, header.index == 0).unwrap_or_default()
            }
            _ => HeapParts::default(),
        };
        out.push(PuddleAt {
            name: Arc::clone(name),
            addr: header.addr,
            size: len,
            role,
            body: header_space(len),
            parts,
        });
    });
    if is_untraced {
        // Every byte counts. All pools of an image have the same kind.
        out.iter_mut().for_each(|puddle| puddle.parts = HeapParts::default());
    }
    out
}

/// Whether a root puddle has a logged heap, or a wear heap.
fn has_untraced_heap(image: &Image, name: &str, len: u64) -> bool {
    let mut magic = [0; 8];
    image.read(name, header_space(len), &mut magic)
        && [LoggedHeader::MAGIC, WearHeader::MAGIC].contains(&magic)
}

/// A whole entry of the transaction that a log's range is about.
pub(crate) struct EntryAt {
    pub(crate) kind: EntryKind,
    pub(crate) addr: u64,
    pub(crate) size: u32,
    pub(crate) data: Vec<u8>,
}

impl EntryAt {
    /// The word and the bits of a mark that replay writes, in whatever direction it goes.
    pub(crate) fn mark(&self) -> Option<(u64, u64)> {
        let word =
            |at: usize| Some(u64::from_le_bytes(self.data.get(at..at + 8)?.try_into().ok()?));
        match self.kind {
            EntryKind::Allocation => Some((word(0)?, word(8)?)),
            EntryKind::ClearBitsOnCommit => Some((self.addr, word(0)?)),
            _ => None,
        }
    }
}

/// What a scan would find in a log.
#[derive(Default)]
pub(crate) struct LogView {
    pub(crate) running: bool,
    pub(crate) sealed: bool,
    /// Whether memory holds what the seal covers.
    fits: bool,
    pub(crate) entries: Vec<EntryAt>,
    hash: u64,
    shape: u64,
}

/// An entry area: offsets in the file of a puddle, whose bytes are given.
struct Area {
    bytes: Vec<u8>,
    at: usize,
    end: usize,
}

fn bytes_of(image: &Image, puddle: &PuddleAt) -> Vec<u8> {
    let mut bytes = vec![0; puddle.size as usize];
    let _ = image.read(&puddle.name, 0, &mut bytes);
    bytes
}

/// The entry at `at`, if it is whole: header, data.
fn whole(
    bytes: &[u8],
    at: usize,
    end: usize,
    seed: u64,
) -> Option<(EntryHeader, EntryKind, &[u8])> {
    let (header, _) = EntryHeader::read_from_prefix(bytes.get(at..end)?).ok()?;
    let kind = EntryKind::from_u8(header.kind)?;
    let len = kind.data_len(header.size) as usize;
    let start = at + ENTRY_HEADER_SIZE as usize;
    let data = bytes.get(start..end)?.get(..len)?;
    let covered = &header.as_bytes()[8..];
    let sum = if len as u64 > ENTRY_INLINE_DATA_MAX {
        checksum(checksum(seed, covered), data)
    } else {
        let mut line = [0; 56];
        line[..covered.len()].copy_from_slice(covered);
        line[covered.len()..covered.len() + len].copy_from_slice(data);
        checksum(seed, &line[..covered.len() + len])
    };
    (sum == header.checksum).then_some((header, kind, data))
}

/// Addresses of the log puddles that log spaces name.
fn named(image: &Image, puddles: &[PuddleAt]) -> Vec<u64> {
    let mut out = Vec::new();
    for space in puddles.iter().filter(|p| p.role == Some(Role::LogSpace)) {
        let mut at = space.body + LOG_SPACE_ENTRIES_OFFSET;
        loop {
            let mut bytes = [0; size_of::<LogSpaceEntry>()];
            let read = at + 64 <= space.size && image.read(&space.name, at, &mut bytes);
            let Ok(entry) = LogSpaceEntry::read_from_bytes(&bytes[..]) else { break };
            if !read || entry.is_free() {
                break;
            }
            if let Listing::Names(entry) = entry.read(false) {
                out.push(entry.addr);
            }
            at += bytes.len() as u64;
        }
    }
    out
}

/// Reads the log whose head is `head`; `None` if that is no head, is named by no log space, or
/// holds anything that no writer leaves.
pub(crate) fn view(image: &Image, puddles: &[PuddleAt], head: &PuddleAt) -> Option<LogView> {
    let power = image.kind() == CrashKind::Power;
    let named = named(image, puddles);
    if !named.contains(&head.addr) {
        return None;
    }
    let bytes = bytes_of(image, head);
    let body = head.body as usize;
    let line = |offset: u64| bytes.get(body + offset as usize..).unwrap_or_default();
    let (header, _) = LogHeader::read_from_prefix(line(0)).ok()?;
    let (control, _) = LogControl::read_from_prefix(line(CONTROL_OFFSET)).ok()?;
    let (words, _) = LogRange::read_from_prefix(line(RANGE_OFFSET)).ok()?;
    let range = SequenceRange::from_word(words.range)?;
    let (epoch, base) = (epoch_from_word(control.epoch)?, range.base());
    let fits = body as u64 + ENTRIES_OFFSET + header.capacity <= head.size;
    if header.segment != 0 || control.state != 0 || !fits || header.log_id == 0 {
        return None;
    }
    let seed = entry_seed(header.log_id, epoch);
    let mut hash = DefaultHasher::new();
    let mut shape = DefaultHasher::new();
    header.as_bytes().hash(&mut hash);
    (control.reserved, words.reserved).hash(&mut hash);
    let about = |word: u64| {
        let word = TailWord::from_word(word);
        (word.base == base).then_some(word.entries)
    };
    // What a running transaction has not counted is as good as counted to none; so are segments in
    // any stage.
    let counted = |word: u64| {
        if range.stage() == Stage::Running { about(word).or(Some(0)) } else { about(word) }
    };
    let segments = about(words.overflow).unwrap_or(0);
    let left = Some(LAST_BASE.saturating_sub(base)).filter(|left| *left < 64);
    let committed = range.stage() == Stage::Committed;
    let state = (power, committed, left, segments, (!power).then(|| counted(words.tail)));
    state.hash(&mut hash);
    state.hash(&mut shape);

    let first = body + ENTRIES_OFFSET as usize;
    let half = (header.capacity / 2) as usize;
    let newest = base + if power { 4 } else { 0 };
    let begins_newer = |start| {
        whole(&bytes, start, start + half, seed).is_some_and(|(entry, ..)| entry.seq & !3 > newest)
    };
    if begins_newer(first) || begins_newer(first + half) {
        return None;
    }
    let at = first + ((base as usize / 4) & 1) * half;
    let mut scan = Scan {
        about: (image, puddles, named),
        base,
        seed,
        area: Area { bytes, at, end: at + half },
        view: LogView { running: !committed, ..LogView::default() },
        hash,
        shape,
        kinds: 0,
        sums: 0,
    };
    while !scan.view.sealed && scan.entry()? {}
    if !scan.view.sealed {
        scan.behind();
    }
    Some(scan.finish())
}

/// A scan of the entries of one transaction, as replay does it.
struct Scan<'a> {
    /// The image, its puddles, and the log puddles that log spaces name.
    about: (&'a Image, &'a [PuddleAt], Vec<u64>),
    base: u32,
    seed: u64,
    area: Area,
    view: LogView,
    hash: DefaultHasher,
    shape: DefaultHasher,
    kinds: u16,
    sums: u64,
}

impl Scan<'_> {
    fn is_ours(&self, seq: u32) -> bool {
        matches!(seq.wrapping_sub(self.base), 1 | 3)
    }

    /// Takes the next entry. `Some(false)`: there is none. `None`: no writer leaves this one.
    fn entry(&mut self) -> Option<bool> {
        let found = whole(&self.area.bytes, self.area.at, self.area.end, self.seed);
        let Some((entry, kind, data)) = found.filter(|(entry, ..)| self.is_ours(entry.seq)) else {
            return Some(false);
        };
        let data = data.to_vec();
        let index = self.view.entries.len() as u32;
        if entry.index != index
            || entry.seq != self.base + kind.class()
            || entry.order != kind.order() as u8
        {
            return None;
        }
        self.kinds |= 1 << entry.kind;
        (entry.kind, entry.size, entry.unfenced).hash(&mut self.hash);
        match kind {
            EntryKind::Volatile => {}
            EntryKind::Seal => self.seal(u64::from(index), &data)?,
            _ => (entry.addr, &data[..]).hash(&mut self.hash),
        }
        self.area.at += entry_size(data.len() as u64) as usize;
        self.sums ^= entry.checksum;
        self.view.entries.push(EntryAt { kind, addr: entry.addr, size: entry.size, data });
        self.view.sealed = kind == EntryKind::Seal;
        if kind == EntryKind::Jump {
            self.jump(entry.addr)?;
        }
        Some(true)
    }

    fn seal(&mut self, index: u64, data: &[u8]) -> Option<()> {
        let (image, puddles, _) = &self.about;
        let seal = Seal::read_from_bytes(data).ok()?;
        if seal.entries != index || seal.entries_checksum != self.sums {
            return None;
        }
        self.view.fits = contents(image, puddles, &self.view.entries)? == seal.contents;
        self.view.fits.hash(&mut self.hash);
        self.view.fits.hash(&mut self.shape);
        Some(())
    }

    /// Goes on in a further segment.
    fn jump(&mut self, addr: u64) -> Option<()> {
        let (image, puddles, named) = &self.about;
        let next = puddles.iter().find(|p| p.addr == addr && p.role == Some(Role::Log))?;
        named.contains(&next.addr).then_some(())?;
        let bytes = bytes_of(image, next);
        let (segment, _) = LogHeader::read_from_prefix(bytes.get(next.body as usize..)?).ok()?;
        segment.as_bytes().hash(&mut self.hash);
        let at = (next.body + ENTRIES_OFFSET) as usize;
        let end = at + segment.capacity as usize;
        (end <= bytes.len()).then_some(())?;
        self.area = Area { bytes, at, end };
        Some(())
    }

    /// Looks for whole entries of the transaction behind the first place without one.
    fn behind(&mut self) {
        for at in (self.area.at..self.area.end).step_by(64) {
            match whole(&self.area.bytes, at, self.area.end, self.seed) {
                Some((entry, ..)) if self.is_ours(entry.seq) => {
                    (entry.index, entry.unfenced, entry.kind).hash(&mut self.hash);
                    self.kinds |= 1;
                }
                _ => {}
            }
        }
    }

    fn finish(mut self) -> LogView {
        let entries = &self.view.entries;
        let last = entries.last().map(|e| e.kind);
        (self.kinds, entries.len().min(2), last).hash(&mut self.shape);
        LogView { hash: self.hash.finish(), shape: self.shape.finish(), ..self.view }
    }
}

/// Hash of what a seal behind these entries covers; `None` if that is not all in heaps.
fn contents(image: &Image, puddles: &[PuddleAt], entries: &[EntryAt]) -> Option<u64> {
    let mut hash = ContentHash::EMPTY;
    let mut bytes = Vec::new();
    for entry in entries.iter().filter(|e| e.kind.is_sealed()) {
        let puddle = heap_of(puddles, entry.addr)?;
        bytes.resize(entry.size as usize, 0);
        image.read(&puddle.name, entry.addr - puddle.addr, &mut bytes).then_some(())?;
        hash = hash.with(&bytes);
    }
    Some(hash.0)
}

/// The heap puddle that an address lies in.
fn heap_of(puddles: &[PuddleAt], addr: u64) -> Option<&PuddleAt> {
    let is_of_pool = |p: &&PuddleAt| p.role.is_some_and(Role::is_of_pool);
    puddles.iter().filter(is_of_pool).find(|p| (p.addr..p.addr + p.size).contains(&addr))
}

/// The canonical form of an image.
#[must_use]
pub fn canonical(image: &Image, context: &Context) -> Canonical {
    let power = image.kind() == CrashKind::Power;
    let puddles = puddles(image);
    let mut form = image.clone();
    let mut data = DefaultHasher::new();
    let mut shape = DefaultHasher::new();
    power.hash(&mut shape);
    let logs: Vec<&PuddleAt> = puddles.iter().filter(|p| p.role == Some(Role::Log)).collect();
    let segment = |log: &PuddleAt| {
        let mut bytes = [0; size_of::<LogHeader>()];
        let _ = image.read(&log.name, log.body, &mut bytes);
        LogHeader::read_from_bytes(&bytes[..]).map_or(0, |header| header.segment)
    };
    let views: Vec<Option<LogView>> = logs.iter().map(|log| view(image, &puddles, log)).collect();
    let known = named(image, &puddles);
    let unnamed = |log: &PuddleAt| !known.contains(&log.addr);
    let understood = logs
        .iter()
        .zip(&views)
        .all(|(log, view)| view.is_some() || unnamed(log) || segment(log) != 0);
    if understood {
        for (log, view) in logs.iter().zip(&views).filter(|(log, _)| !unnamed(log)) {
            form.clear(&log.name, log.body + CONTROL_OFFSET, log.size);
            let Some(view) = view else { continue };
            (view.hash, &log.name).hash(&mut data);
            view.shape.hash(&mut shape);
            if view.running && !view.sealed {
                roll_back(&mut form, &puddles, &view.entries);
            }
        }
    } else {
        logs.iter().for_each(|log| image.file_hash(&log.name).hash(&mut shape));
    }
    let mut store = DefaultHasher::new();
    let mut new = DefaultHasher::new();
    let entries = || views.iter().flatten().flat_map(|view| &view.entries);
    let is_new = |puddle: &PuddleAt| {
        let within =
            |entry: &EntryAt| (puddle.addr..puddle.addr + puddle.size).contains(&entry.addr);
        understood && context.new.contains(&puddle.name) && !entries().any(within)
    };
    for &(start, end) in &context.taken {
        if let Some(puddle) = heap_of(&puddles, start).filter(|_| power) {
            form.clear(&puddle.name, start - puddle.addr, end - start);
        }
    }
    for puddle in &puddles {
        for part in puddle.parts.marks.iter().filter(|_| power) {
            keep_allocated(&mut form, &puddle.name, part);
        }
        for part in &puddle.parts.session {
            form.clear(&puddle.name, part.start, part.end - part.start);
        }
    }
    form.for_each_file(|name, len| {
        (name, len).hash(&mut store);
        let puddle = puddles.iter().find(|p| p.name == *name);
        let hash = form.file_hash(name);
        match puddle.and_then(|p| p.role) {
            Some(role) if role.is_of_pool() && puddle.is_some_and(is_new) => hash.hash(&mut new),
            Some(Role::Heap | Role::Metadata | Role::Log) => hash.hash(&mut data),
            _ => hash.hash(&mut store),
        }
    });
    puddles.iter().for_each(|p| (p.addr, p.role.is_some()).hash(&mut store));
    let (data, new, store, shape) = (data.finish(), new.finish(), store.finish(), shape.finish());
    let mut all = DefaultHasher::new();
    (power, data, new, store).hash(&mut all);
    Canonical { whole: all.finish(), data, new, store, shape }
}

/// Whether a mark may say that a block is allocated, to an opener.
fn counts(byte: u8) -> bool {
    matches!(byte, mark::ALLOCATED | mark::CONDEMNED)
}

/// The bytes of a word of marks that say "allocated", or may say so.
pub(crate) fn allocated(word: u64) -> u64 {
    let bytes = word.to_le_bytes().map(|byte| if counts(byte) { byte } else { 0 });
    u64::from_le_bytes(bytes)
}

/// Leaves of marks what tracing looks at.
fn keep_allocated(form: &mut Image, name: &str, part: &Range<u64>) {
    let mut bytes = vec![0; (part.end - part.start) as usize];
    // Many at a time: most are one of the two.
    let settled = |some: &[u8]| {
        some.iter().fold(true, |all, &byte| all & (byte == 0 || byte == mark::ALLOCATED))
    };
    if !form.read(name, part.start, &mut bytes) || bytes.chunks(256).all(settled) {
        return;
    }
    form.clear(name, part.start, part.end - part.start);
    assert!(bytes.len().is_multiple_of(64), "marks fill lines");
    for (number, line) in bytes.as_chunks::<64>().0.iter().enumerate() {
        if *line == [0; 64] {
            continue;
        }
        let kept = line.map(|byte| if counts(byte) { byte } else { 0 });
        if kept != [0; 64] {
            form.overwrite(name, part.start + 64 * number as u64, &kept);
        }
    }
}

/// Puts what replay will put there wherever it will put something.
fn roll_back(form: &mut Image, puddles: &[PuddleAt], entries: &[EntryAt]) {
    for entry in entries.iter().rev() {
        let Some(puddle) = heap_of(puddles, entry.addr) else { continue };
        let offset = entry.addr - puddle.addr;
        match entry.kind {
            EntryKind::Undo => {
                form.overwrite(&puddle.name, offset, &entry.data);
            }
            EntryKind::Fresh | EntryKind::Allocation => {
                form.clear(&puddle.name, offset, u64::from(entry.size))
            }
            _ => {}
        }
    }
}

#[cfg(test)]
mod tests;
