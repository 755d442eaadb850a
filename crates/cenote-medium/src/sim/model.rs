//! The fault model: the states that a crash may leave, as a pure state machine over a recorded
//! history.
//!
//! For every file the model keeps its *floor*, what is certainly durable, and for every *undecided*
//! unit all values that it had since, oldest first. Invariants:
//!
//! * A word (8 bytes) that was stored through a mapping may hold its floor or any later value,
//!   independently of every other word. A flush marks the values of that moment; the next fence *of
//!   the same thread* makes them the floor and drops what is older. Values stored after the flush
//!   stay undecided.
//! * A sector (512 bytes) that was written by a file operation may be as it was at any moment since
//!   the last completed sync, independently of every other sector. A sector that is also stored to
//!   through a mapping, or flushed, is tracked word by word from then on.
//! * The length of a file, and each creation, renaming and removal of a name, is undecided until
//!   the file, or the directory, is synced. A renaming is one step; steps are independent of each
//!   other.
//! * A hole that was made, or filled, since the last completed sync may be there after a loss of
//!   power or not; the bytes of one that was made are written as zeros would be.
//! * A sync makes everything of its file durable. After a sync that *failed* nothing that was
//!   undecided is written again by a later one: the system believes that it is clean. Only a new
//!   store or write makes it dirty again.
//!
//! Not seen: a value that a word had only between two events. `SimMedium::crash_point` adds an
//! event where that matters.

use super::content::{Content, PAGE, SECTOR, SECTOR_WORDS, WORD};
use std::collections::{BTreeMap, BTreeSet};
use std::ops::Range;
use std::sync::Arc;

/// Number of a file; never given twice in one history.
pub(crate) type Inode = u32;

/// What a name stands for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Binding {
    File(Inode),
    Directory,
}

/// Names and what they stand for.
pub(crate) type Names = BTreeMap<Arc<str>, Binding>;

/// A word that changed since the last event.
#[derive(Clone, Copy, Debug)]
pub(crate) struct WordStore {
    pub(crate) inode: Inode,
    pub(crate) word: u64,
    pub(crate) value: u64,
}

/// One step of a history.
#[derive(Clone, Debug)]
pub(crate) enum Event {
    /// Words that were found changed in mapped memory.
    Stores(Vec<WordStore>),
    /// `words` words from `first` on were flushed, or streamed, by a thread.
    Flush {
        thread: u32,
        inode: Inode,
        first: u64,
        words: u64,
    },
    /// A fence of a thread.
    Fence {
        thread: u32,
    },
    /// A file was made, `len` zero bytes long.
    Create {
        name: Arc<str>,
        inode: Inode,
        len: u64,
    },
    MakeDirectory {
        name: Arc<str>,
    },
    Write {
        inode: Inode,
        offset: u64,
        bytes: Vec<u8>,
    },
    SetLen {
        inode: Inode,
        len: u64,
    },
    /// Whole pages were made a hole.
    Release {
        inode: Inode,
        offset: u64,
        len: u64,
    },
    /// Space was taken for whole pages.
    Ensure {
        inode: Inode,
        offset: u64,
        len: u64,
    },
    Sync {
        inode: Inode,
    },
    SyncFailed {
        inode: Inode,
    },
    SyncDirectory {
        name: Arc<str>,
    },
    Rename {
        from: Arc<str>,
        to: Arc<str>,
    },
    Remove {
        name: Arc<str>,
    },
    /// The medium changed a bit by itself.
    FlipBit {
        inode: Inode,
        offset: u64,
        bit: u8,
    },
    /// Nothing, but a moment at which a crash may happen.
    Moment,
    /// The same with a name.
    Point(Arc<str>),
    /// The oracle's number of this moment.
    Note(u64),
}

impl Event {
    /// Whether every image that is possible before this event is also possible after it, to the
    /// same requirements. That is so for all events that make nothing durable.
    pub(crate) const fn only_adds_images(&self) -> bool {
        !matches!(
            self,
            Self::Fence { .. }
                | Self::Sync { .. }
                | Self::SyncDirectory { .. }
                | Self::FlipBit { .. }
                | Self::Release { .. }
                | Self::Ensure { .. }
                | Self::Point(_)
                | Self::Note(_)
        )
    }
}

/// A word whose durable value is not known.
#[derive(Clone, Debug, Default)]
pub(crate) struct Word {
    /// Values since the floor, oldest first.
    pub(crate) versions: Vec<u64>,
    /// How many of them a thread's next fence makes durable.
    pending: Vec<(u32, usize)>,
    /// A sync failed after the last change.
    believed_clean: bool,
}

/// A sector whose durable contents are not known.
#[derive(Clone, Debug, Default)]
pub(crate) struct Sector {
    /// Contents since the floor, oldest first.
    pub(crate) versions: Vec<Arc<[u8; SECTOR]>>,
    believed_clean: bool,
}

/// Pages of a file that have no space, by number.
pub(crate) type Holes = Arc<BTreeSet<u64>>;

/// One file.
#[derive(Clone, Default)]
pub(crate) struct File {
    /// What is durable.
    pub(crate) floor: Arc<Content>,
    /// What a process sees.
    pub(crate) latest: Arc<Content>,
    /// Lengths since the floor, oldest first; never empty, the first is the floor.
    pub(crate) lengths: Vec<u64>,
    length_believed_clean: bool,
    /// It was made shorter since the last sync: what lay beyond may come back.
    stale_tail: bool,
    pub(crate) words: BTreeMap<u64, Word>,
    pub(crate) sectors: BTreeMap<u64, Sector>,
    /// Pages without space.
    pub(crate) holes: Holes,
    /// Pages whose space was taken since the last sync: a loss of power may undo that.
    filling: BTreeSet<u64>,
}

impl File {
    /// A file that is durable as it is.
    pub(crate) fn durable(content: Arc<Content>, len: u64) -> Self {
        Self { floor: Arc::clone(&content), latest: content, lengths: vec![len], ..Self::default() }
    }

    /// The same with holes.
    pub(crate) fn durable_with(content: Arc<Content>, len: u64, holes: Holes) -> Self {
        Self { holes, ..Self::durable(content, len) }
    }

    pub(crate) fn latest_len(&self) -> u64 {
        self.lengths.last().copied().unwrap_or(0)
    }

    pub(crate) fn store(&mut self, word: u64, value: u64) {
        self.split(word / SECTOR_WORDS);
        if self.latest.word(word) == value {
            return;
        }
        Arc::make_mut(&mut self.latest).set_word(word, value);
        let entry = self.words.entry(word).or_default();
        entry.versions.push(value);
        entry.believed_clean = false;
    }

    /// Pages that a loss of power may leave without space.
    pub(crate) fn holes_at_worst(&self) -> Holes {
        match self.filling.is_empty() {
            true => Arc::clone(&self.holes),
            false => Arc::new(self.holes.union(&self.filling).copied().collect()),
        }
    }

    fn release(&mut self, offset: u64, len: u64) {
        self.write(offset, &vec![0; len as usize]);
        Arc::make_mut(&mut self.holes).extend(pages(offset, len));
    }

    fn ensure(&mut self, offset: u64, len: u64) {
        if self.holes.range(pages(offset, len)).next().is_some() {
            let holes = Arc::make_mut(&mut self.holes);
            self.filling.extend(pages(offset, len).filter(|page| holes.remove(page)));
        }
    }

    fn write(&mut self, offset: u64, bytes: &[u8]) {
        self.ensure(offset, bytes.len() as u64);
        let end = offset + bytes.len() as u64;
        if end > self.latest_len() {
            self.set_len(end);
        }
        let before = Arc::clone(&self.latest);
        Arc::make_mut(&mut self.latest).write(offset, bytes);
        let size = SECTOR as u64;
        for sector in offset / size..end.div_ceil(size) {
            let words = sector * SECTOR_WORDS..(sector + 1) * SECTOR_WORDS;
            if self.words.range(words.clone()).next().is_none() {
                self.record_sector(sector, &before);
                continue;
            }
            for word in words {
                let value = self.latest.word(word);
                if value != before.word(word) {
                    let entry = self.words.entry(word).or_default();
                    entry.versions.push(value);
                    entry.believed_clean = false;
                } else if let Some(entry) = self.words.get_mut(&word) {
                    // The same bytes make it dirty, too.
                    entry.believed_clean = false;
                }
            }
        }
    }

    /// Notes that a sector is no longer as it was in `before`.
    fn record_sector(&mut self, sector: u64, before: &Content) {
        let bytes = self.latest.sector(sector);
        if bytes != before.sector(sector) {
            let entry = self.sectors.entry(sector).or_default();
            entry.versions.push(Arc::new(bytes));
            entry.believed_clean = false;
        } else if let Some(entry) = self.sectors.get_mut(&sector) {
            // The same bytes make it dirty, too.
            entry.believed_clean = false;
        }
    }

    fn set_len(&mut self, len: u64) {
        let old = self.latest_len();
        if len == old {
            return;
        }
        self.lengths.push(len);
        self.length_believed_clean = false;
        if len < old {
            // A caller that makes the file long again without taking space bears the risk.
            self.ensure(len, old - len);
            self.stale_tail = true;
            Arc::make_mut(&mut self.latest).cut(len);
        } else if self.stale_tail {
            // A part that was cut off reads as zero now, and is zero on the medium once it is
            // synced.
            for sector in old / SECTOR as u64..len.div_ceil(SECTOR as u64) {
                self.split(sector);
                for word in sector * SECTOR_WORDS..(sector + 1) * SECTOR_WORDS {
                    let value = self.latest.word(word);
                    let last = self.words.get(&word).and_then(|w| w.versions.last().copied());
                    if last.unwrap_or_else(|| self.floor.word(word)) != value {
                        self.words.entry(word).or_default().versions.push(value);
                    }
                }
            }
        }
    }

    /// Tracks an undecided sector word by word from now on.
    fn split(&mut self, sector: u64) {
        let Some(whole) = self.sectors.remove(&sector) else { return };
        for i in 0..SECTOR_WORDS {
            let number = sector * SECTOR_WORDS + i;
            let mut last = self.floor.word(number);
            let mut word = Word { believed_clean: whole.believed_clean, ..Word::default() };
            for version in &whole.versions {
                let value = word_of(version.as_slice(), i as usize);
                if value != last {
                    word.versions.push(value);
                    last = value;
                }
            }
            if !word.versions.is_empty() {
                self.words.insert(number, word);
            }
        }
    }

    /// Marks the words of a range as flushed; tells which ones were undecided.
    fn flush(&mut self, thread: u32, first: u64, words: u64, mut flushed: impl FnMut(u64)) {
        let end = first.saturating_add(words);
        if !self.sectors.is_empty() {
            let touched = first / SECTOR_WORDS..end.div_ceil(SECTOR_WORDS);
            let touched: Vec<u64> =
                self.sectors.range(touched).map(|(&sector, _)| sector).collect();
            for sector in touched {
                self.split(sector);
            }
        }
        for (&number, word) in self.words.range_mut(first..end) {
            let count = word.versions.len();
            match word.pending.iter_mut().find(|(of, _)| *of == thread) {
                Some(pending) => pending.1 = count,
                None => word.pending.push((thread, count)),
            }
            flushed(number);
        }
    }

    /// Makes what a thread had flushed of a word durable.
    fn fence(&mut self, thread: u32, number: u64) {
        let Some(word) = self.words.get_mut(&number) else { return };
        let Some(at) = word.pending.iter().position(|(of, _)| *of == thread) else { return };
        let (_, count) = word.pending.swap_remove(at);
        let Some(&value) = count.checked_sub(1).and_then(|last| word.versions.get(last)) else {
            return;
        };
        Arc::make_mut(&mut self.floor).set_word(number, value);
        word.versions.drain(..count);
        word.pending.retain_mut(|(_, other)| {
            *other = other.saturating_sub(count);
            *other > 0
        });
        if word.versions.is_empty() {
            self.words.remove(&number);
        }
    }

    fn sync(&mut self) {
        self.filling.clear();
        let stuck = self.words.values().any(|w| w.believed_clean)
            || self.sectors.values().any(|s| s.believed_clean)
            || self.length_believed_clean;
        if !stuck {
            self.floor = Arc::clone(&self.latest);
            self.words.clear();
            self.sectors.clear();
            self.lengths = vec![self.latest_len()];
            self.stale_tail = false;
            return;
        }
        let floor = Arc::make_mut(&mut self.floor);
        self.words.retain(|&number, word| {
            if !word.believed_clean {
                floor.set_word(number, word.versions.last().copied().unwrap_or(0));
            }
            word.believed_clean
        });
        self.sectors.retain(|&number, sector| {
            if let (false, Some(bytes)) = (sector.believed_clean, sector.versions.last()) {
                floor.write(number * SECTOR as u64, bytes.as_slice());
            }
            sector.believed_clean
        });
        if !self.length_believed_clean {
            self.lengths = vec![self.latest_len()];
        }
    }

    fn sync_failed(&mut self) {
        self.words.values_mut().for_each(|word| word.believed_clean = true);
        self.sectors.values_mut().for_each(|sector| sector.believed_clean = true);
        self.length_believed_clean = self.lengths.len() > 1;
    }

    fn flip(&mut self, offset: u64, bit: u8) {
        Arc::make_mut(&mut self.floor).flip(offset, bit);
        Arc::make_mut(&mut self.latest).flip(offset, bit);
        let mask = 1u64 << (8 * (offset % WORD as u64) + u64::from(bit & 7));
        if let Some(word) = self.words.get_mut(&(offset / WORD as u64)) {
            word.versions.iter_mut().for_each(|value| *value ^= mask);
        }
        if let Some(sector) = self.sectors.get_mut(&(offset / SECTOR as u64)) {
            for bytes in &mut sector.versions {
                Arc::make_mut(bytes)[offset as usize % SECTOR] ^= 1 << (bit & 7);
            }
        }
    }
}

/// Numbers of the pages that a range touches.
pub(crate) fn pages(offset: u64, len: u64) -> Range<u64> {
    offset / PAGE as u64..(offset + len).div_ceil(PAGE as u64)
}

/// The word with this number in the bytes of a sector.
pub(crate) fn word_of(bytes: &[u8], word: usize) -> u64 {
    let mut value = [0; WORD];
    value.copy_from_slice(&bytes[word * WORD..(word + 1) * WORD]);
    u64::from_le_bytes(value)
}

/// A change of names that is not durable yet.
#[derive(Clone, Debug)]
pub(crate) struct NameChange {
    pub(crate) what: NameStep,
    /// Directories whose sync makes it durable: all of them are needed.
    awaits: Vec<Arc<str>>,
}

/// What happens to names.
#[derive(Clone, Debug)]
pub(crate) enum NameStep {
    Bind(Arc<str>, Binding),
    Rename(Arc<str>, Arc<str>, Binding),
    Unbind(Arc<str>),
}

impl NameStep {
    /// Does the step. A renaming that became durable without the creation before it brings the file
    /// all the same.
    pub(crate) fn apply(&self, names: &mut Names) {
        match self {
            Self::Bind(name, binding) => {
                names.insert(Arc::clone(name), *binding);
            }
            Self::Rename(from, to, binding) => {
                if names.get(from) == Some(binding) {
                    names.remove(from);
                }
                names.insert(Arc::clone(to), *binding);
            }
            Self::Unbind(name) => {
                names.remove(name);
            }
        }
    }
}

/// The directory that a name is in; the store directory is the empty name.
pub(crate) fn directory_of(name: &str) -> &str {
    name.rsplit_once('/').map_or("", |(directory, _)| directory)
}

/// All files and names of a medium, durable and undecided.
#[derive(Clone, Default)]
pub(crate) struct MediumModel {
    pub(crate) files: BTreeMap<Inode, File>,
    /// Names that are certainly durable.
    pub(crate) names: Names,
    /// Names as a process sees them.
    pub(crate) latest_names: Names,
    pub(crate) name_changes: Vec<NameChange>,
    /// Words that a thread flushed and has not fenced.
    pub(crate) flushed: BTreeMap<u32, Vec<(Inode, u64)>>,
    /// The last [`Event::Note`].
    pub(crate) note: u64,
    /// The last [`Event::Point`].
    pub(crate) label: Option<Arc<str>>,
}

impl MediumModel {
    /// Goes one step on.
    pub(crate) fn apply(&mut self, event: &Event) {
        match event {
            Event::Stores(stores) => {
                for store in stores {
                    self.file(store.inode, |file| file.store(store.word, store.value));
                }
            }
            Event::Flush { thread, inode, first, words } => {
                let flushed = self.flushed.entry(*thread).or_default();
                if let Some(file) = self.files.get_mut(inode) {
                    file.flush(*thread, *first, *words, |word| flushed.push((*inode, word)));
                }
            }
            Event::Fence { thread } => {
                for (inode, word) in self.flushed.remove(thread).unwrap_or_default() {
                    self.file(inode, |file| file.fence(*thread, word));
                }
            }
            Event::Create { name, inode, len } => {
                let mut file = File::durable(Arc::default(), 0);
                file.set_len(*len);
                self.files.insert(*inode, file);
                self.change_names(NameStep::Bind(Arc::clone(name), Binding::File(*inode)), &[name]);
            }
            Event::MakeDirectory { name } => {
                self.change_names(NameStep::Bind(Arc::clone(name), Binding::Directory), &[name]);
            }
            Event::Write { inode, offset, bytes } => {
                self.file(*inode, |file| file.write(*offset, bytes))
            }
            Event::SetLen { inode, len } => self.file(*inode, |file| file.set_len(*len)),
            Event::Release { inode, offset, len } => {
                self.file(*inode, |file| file.release(*offset, *len))
            }
            Event::Ensure { inode, offset, len } => {
                self.file(*inode, |file| file.ensure(*offset, *len))
            }
            Event::Sync { inode } => self.file(*inode, File::sync),
            Event::SyncFailed { inode } => self.file(*inode, File::sync_failed),
            Event::SyncDirectory { name } => self.sync_directory(name),
            Event::Rename { from, to } => {
                if let Some(&binding) = self.latest_names.get(from) {
                    let step = NameStep::Rename(Arc::clone(from), Arc::clone(to), binding);
                    self.change_names(step, &[from, to]);
                }
            }
            Event::Remove { name } => {
                self.change_names(NameStep::Unbind(Arc::clone(name)), &[name])
            }
            Event::FlipBit { inode, offset, bit } => {
                self.file(*inode, |file| file.flip(*offset, *bit))
            }
            Event::Moment => {}
            Event::Point(label) => self.label = Some(Arc::clone(label)),
            Event::Note(note) => self.note = *note,
        }
    }

    /// Does something to a file, unless no name can reach it any more.
    fn file(&mut self, inode: Inode, f: impl FnOnce(&mut File)) {
        if let Some(file) = self.files.get_mut(&inode) {
            f(file);
        }
    }

    fn change_names(&mut self, what: NameStep, changed: &[&Arc<str>]) {
        what.apply(&mut self.latest_names);
        let mut awaits: Vec<Arc<str>> =
            changed.iter().map(|name| directory_of(name).into()).collect();
        awaits.dedup();
        self.name_changes.push(NameChange { what, awaits });
    }

    fn sync_directory(&mut self, directory: &Arc<str>) {
        let Self { name_changes, names, .. } = self;
        name_changes.retain_mut(|change| {
            change.awaits.retain(|name| name != directory);
            if change.awaits.is_empty() {
                change.what.apply(names);
            }
            !change.awaits.is_empty()
        });
        // Files that no name can reach any more, durable or not, are gone.
        let mut kept: Vec<Inode> = Vec::new();
        let bindings = self.names.values().chain(self.latest_names.values());
        let changes = self.name_changes.iter().filter_map(|change| match &change.what {
            NameStep::Bind(_, binding) | NameStep::Rename(_, _, binding) => Some(binding),
            NameStep::Unbind(_) => None,
        });
        for binding in bindings.chain(changes) {
            if let Binding::File(inode) = binding {
                kept.push(*inode);
            }
        }
        kept.sort_unstable();
        self.files.retain(|inode, _| kept.binary_search(inode).is_ok());
    }
}
