//! The running simulation: files in memory, mappings at their real addresses, and the history being
//! recorded.
//!
//! Invariants:
//!
//! * The content kept for a file is that of the last event. Mapped memory is compared with it, page
//!   by page, at every event; words that differ become a [`Event::Stores`] of their own *before*
//!   the event, so that a crash between the stores and the event is a crash point too.
//! * A file is mapped writable at most once, so mapped memory and content cannot disagree about
//!   whose bytes count.
//! * An address outside every mapping of this simulation is never read: it may be other code's.

use super::content::{Content, PAGE, WORD};
use super::crash::{CrashKind, CrashState, Image, ImageEntry};
use super::fault::{FaultEffect, FaultPoint, Faults};
use super::model::{Binding, Event, File, Holes, Inode, MediumModel, Names, WordStore, pages};
use super::options::Origin;
use super::random::{Random, mix};
use super::window::{MappedRange, SimWindow};
use crate::{Durability, LockKind, MapMode};
use cenote_layout::LINE_SIZE;
use std::cell::Cell;
use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};

unsafe extern "C" {
    /// The C library's comparison; used because no Rust reference may be made to memory that the
    /// program under test has references to.
    fn memcmp(a: *const u8, b: *const u8, len: usize) -> i32;
}

/// The number of no thread: the cache itself.
const CACHE: u32 = 0;

/// A number for this thread.
fn thread_number() -> u32 {
    static NEXT: AtomicU32 = AtomicU32::new(1);
    thread_local! { static MINE: Cell<u32> = const { Cell::new(0) } }
    MINE.with(|mine| {
        if mine.get() == 0 {
            mine.set(NEXT.fetch_add(1, Ordering::Relaxed));
        }
        mine.get()
    })
}

/// A file as it is now.
#[derive(Default)]
pub(crate) struct LiveFile {
    pub(crate) content: Arc<Content>,
    pub(crate) len: u64,
    /// Pages without space.
    pub(crate) holes: Holes,
}

impl LiveFile {
    /// The file as if all of it were durable.
    fn durable(&self) -> File {
        File::durable_with(Arc::clone(&self.content), self.len, Arc::clone(&self.holes))
    }

    /// Takes space for the pages of a range.
    pub(crate) fn fill(&mut self, offset: u64, len: u64) {
        if !self.holes.is_empty() {
            let holes = Arc::make_mut(&mut self.holes);
            pages(offset, len).for_each(|page| {
                holes.remove(&page);
            });
        }
    }

    /// Whether a word of it lies in a page without space.
    fn is_hole(&self, word: u64) -> bool {
        !self.holes.is_empty() && self.holes.contains(&(word / (PAGE / WORD) as u64))
    }
}

/// A file in memory.
pub(crate) struct Mapping {
    pub(crate) inode: Inode,
    pub(crate) addr: u64,
    pub(crate) len: u64,
    pub(crate) mode: MapMode,
    /// Whether its memory can be mapped a second time.
    pub(crate) is_shared: bool,
}

impl Mapping {
    pub(crate) fn overlaps(&self, addr: u64, len: u64) -> bool {
        self.addr < addr.saturating_add(len) && addr < self.addr + self.len
    }

    /// The memory.
    pub(crate) fn range(&self) -> MappedRange {
        MappedRange { addr: self.addr, len: self.len, is_shared: self.is_shared }
    }

    fn pointer(&self, offset: u64) -> *mut u8 {
        std::ptr::with_exposed_provenance_mut((self.addr + offset) as usize)
    }

    /// Copies mapped bytes out.
    pub(crate) fn read(&self, offset: u64, buffer: &mut [u8]) {
        debug_assert!(offset + buffer.len() as u64 <= self.len);
        // SAFETY: the range lies in this mapping, which stays as long as the value does. Histories
        // are single-threaded while an event is recorded, by the contract of the
        // simulation.
        unsafe {
            std::ptr::copy_nonoverlapping(
                self.pointer(offset).cast_const(),
                buffer.as_mut_ptr(),
                buffer.len(),
            )
        }
    }

    /// Copies bytes into the mapping.
    pub(crate) fn write(&self, offset: u64, bytes: &[u8]) {
        debug_assert!(offset + bytes.len() as u64 <= self.len);
        // SAFETY: as for `read`; the caller made sure that the mapping is writable.
        unsafe { std::ptr::copy_nonoverlapping(bytes.as_ptr(), self.pointer(offset), bytes.len()) }
    }

    /// Makes the mapping what `content` is, from zeros, or from anything if `used`.
    pub(crate) fn fill(&self, content: &Content, used: bool) {
        let pages = self.len as usize / PAGE;
        let pages = if used { pages } else { pages.min(content.page_slots()) };
        for index in 0..pages {
            let at = (index * PAGE) as u64;
            let bytes = content.page_or_zero(index);
            let differs = if used {
                // SAFETY: the page lies in this mapping; both sides are readable for a page.
                unsafe { memcmp(self.pointer(at), bytes.as_ptr(), PAGE) != 0 }
            } else {
                content.page(index).is_some()
            };
            if differs {
                self.write(at, bytes);
            }
        }
    }

    /// Finds words that differ from `content`, brings `content` up to date and calls `f` with each
    /// word.
    fn collect(&self, content: &mut Arc<Content>, mut f: impl FnMut(u64, u64)) {
        for index in 0..self.len as usize / PAGE {
            let memory = self.pointer((index * PAGE) as u64);
            // SAFETY: the page lies in this mapping; both sides are readable for a page.
            if unsafe { memcmp(memory, content.page_or_zero(index).as_ptr(), PAGE) } == 0 {
                continue;
            }
            let page = Arc::make_mut(content).page_mut(index);
            for (number, known) in page.chunks_exact_mut(WORD).enumerate() {
                // SAFETY: the word lies in the page; pages are aligned. Volatile, because the
                // program under test stores there without this module's knowledge.
                let value = unsafe { memory.cast::<u64>().add(number).read_volatile() };
                if value.to_le_bytes() != *known {
                    known.copy_from_slice(&value.to_le_bytes());
                    f((index * (PAGE / WORD) + number) as u64, value);
                }
            }
        }
    }
}

/// Everything that changes.
pub(crate) struct Live {
    pub(crate) origin: Origin,
    pub(crate) files: BTreeMap<Inode, LiveFile>,
    pub(crate) names: Names,
    next_inode: Inode,
    pub(crate) maps: Vec<Mapping>,
    pub(crate) windows: Vec<SimWindow>,
    /// Whether events are noted.
    pub(crate) recording: bool,
    /// Whether stores from now on are not looked for.
    pub(crate) blind: bool,
    /// Whether memory is left in the window for the next simulation.
    pub(crate) keeps_memory: bool,
    /// What the history began with.
    base: MediumModel,
    events: Vec<Event>,
    pub(crate) faults: Faults,
    pub(crate) locks: Vec<(u64, Arc<str>, LockKind)>,
    pub(crate) random: Random,
    pub(crate) clock_s: u64,
    /// Words that were stored through a mapping into pages without space.
    pub(crate) hole_stores: u64,
    /// Writes by line, if they are counted.
    pub(crate) line_writes: Option<LineWrites>,
}

/// Lines that were written back since the last look, as often as they were.
#[derive(Default)]
pub(crate) struct LineWrites {
    /// Changed since their last write-back.
    changed: BTreeSet<(Inode, u64)>,
    /// Inode and number of line.
    pub(crate) written: Vec<(Inode, u64)>,
}

impl LineWrites {
    /// A word was found changed.
    fn changed(&mut self, inode: Inode, word: u64) {
        self.changed.insert((inode, word * WORD as u64 / LINE_SIZE));
    }

    /// All lines that have changed count as written back.
    pub(crate) fn all_written(&mut self) {
        self.written.extend(core::mem::take(&mut self.changed));
    }

    /// Lines of a file were written back.
    fn written(&mut self, inode: Inode, first: u64, past: u64) {
        let lines = self.changed.extract_if((inode, first)..(inode, past), |_| true);
        self.written.extend(lines);
    }
}

impl Live {
    pub(crate) fn new(entries: &BTreeMap<Arc<str>, ImageEntry>, origin: Origin) -> Self {
        let mut names = Names::new();
        let mut files = BTreeMap::new();
        let mut base = MediumModel::default();
        let mut next_inode = 1;
        for (name, entry) in entries {
            let binding = match entry {
                ImageEntry::Directory => Binding::Directory,
                ImageEntry::File { content, len, holes } => {
                    let file = LiveFile {
                        content: Arc::clone(content),
                        len: *len,
                        holes: Arc::clone(holes),
                    };
                    if origin.options.record {
                        base.files.insert(next_inode, file.durable());
                    }
                    files.insert(next_inode, file);
                    next_inode += 1;
                    Binding::File(next_inode - 1)
                }
            };
            names.insert(Arc::clone(name), binding);
        }
        if origin.options.record {
            base.names = names.clone();
            base.latest_names = names.clone();
        }
        let random = Random::new(mix(origin.options.seed ^ 0x6964));
        let clock_s = 1_700_000_000 + origin.options.seed % 100_000_000;
        Self {
            origin,
            files,
            names,
            next_inode,
            maps: Vec::new(),
            windows: Vec::new(),
            recording: origin.options.record,
            blind: false,
            keeps_memory: !origin.options.record,
            base,
            events: Vec::new(),
            faults: Faults::default(),
            locks: Vec::new(),
            random,
            clock_s,
            hole_stores: 0,
            line_writes: None,
        }
    }

    pub(crate) fn next_inode(&mut self) -> Inode {
        self.next_inode += 1;
        self.next_inode - 1
    }

    /// Looks at mapped memory, and notes what was stored since the last event.
    pub(crate) fn observe(&mut self) {
        if self.blind {
            return;
        }
        let Self { maps, files, events, recording, hole_stores, line_writes, .. } = self;
        let mut stores = Vec::new();
        for map in maps.iter().filter(|map| map.mode.is_shared_writable()) {
            if let Some(file) = files.get_mut(&map.inode) {
                let mut content = std::mem::take(&mut file.content);
                map.collect(&mut content, |word, value| {
                    *hole_stores += u64::from(file.is_hole(word));
                    if let Some(writes) = line_writes {
                        writes.changed(map.inode, word);
                    }
                    stores.push(WordStore { inode: map.inode, word, value })
                });
                file.content = content;
            }
        }
        if *recording && !stores.is_empty() {
            events.push(Event::Stores(stores));
        }
    }

    /// The same for what is about to be unmapped. Without a history the rest can wait.
    pub(crate) fn observe_before_unmapping(&mut self, addr: u64, len: u64) {
        if self.recording || self.blind {
            return self.observe();
        }
        let Self { maps, files, .. } = self;
        for map in
            maps.iter().filter(|map| map.mode.is_shared_writable() && map.overlaps(addr, len))
        {
            if let Some(file) = files.get_mut(&map.inode) {
                map.collect(&mut file.content, |_, _| {});
            }
        }
    }

    /// Begins the history, see `SimMedium::resume`.
    pub(crate) fn resume(&mut self, from: Option<&MediumModel>) -> bool {
        self.observe();
        self.events.clear();
        match from {
            Some(from) => {
                let same = |(inode, file): (&Inode, &LiveFile)| {
                    from.files.get(inode).is_some_and(|known| {
                        known.latest_len() == file.len && known.latest.hash() == file.content.hash()
                    })
                };
                if from.latest_names != self.names || !self.files.iter().all(same) {
                    return false;
                }
                self.base = from.clone();
            }
            None => {
                let files = self.files.iter();
                let files = files.map(|(&inode, f)| (inode, f.durable()));
                self.base = MediumModel {
                    files: files.collect(),
                    names: self.names.clone(),
                    latest_names: self.names.clone(),
                    ..MediumModel::default()
                };
            }
        }
        self.recording = self.origin.options.record;
        true
    }

    /// Gives a window back, its memory too where it is kept for the next simulation.
    pub(crate) fn let_go(&mut self, mut window: SimWindow) {
        let inside = |map: &Mapping| window.holds(map.addr, map.len);
        let maps: Vec<Mapping> = self.maps.extract_if(.., |map| inside(map)).collect();
        if self.keeps_memory {
            maps.iter().for_each(|map| window.leave_idle(map.range()));
            window.keep();
        }
    }

    /// Notes an event, and the stores before it.
    pub(crate) fn record(&mut self, event: Event) {
        if self.recording {
            self.observe();
            self.events.push(event);
        }
    }

    /// The lines of a range were flushed (`whole_lines`), or its words streamed.
    pub(crate) fn flushed(&mut self, addr: u64, len: u64, whole_lines: bool) {
        self.count_lines(addr, len);
        if self.origin.options.durability == Durability::Process {
            return self.record(Event::Moment);
        }
        self.observe();
        let (mut start, mut end) = (addr, addr.saturating_add(len));
        if whole_lines {
            start -= start % LINE_SIZE;
            end = end.checked_next_multiple_of(LINE_SIZE).unwrap_or(end);
        }
        self.note_flush(thread_number(), start, end);
    }

    /// A line left the cache by itself: what only a thread's own fence would make durable stays
    /// undecided.
    pub(crate) fn written_back(&mut self, addr: u64) {
        let start = addr - addr % LINE_SIZE;
        self.count_lines(start, LINE_SIZE);
        if self.origin.options.durability == Durability::Power {
            self.observe();
            self.note_flush(CACHE, start, start.saturating_add(LINE_SIZE));
            self.record(Event::Fence { thread: CACHE });
        }
    }

    fn note_flush(&mut self, thread: u32, start: u64, end: u64) {
        let writable = self
            .maps
            .iter()
            .filter(|map| map.mode.is_shared_writable() && map.overlaps(start, end - start));
        let flushes = writable.map(|map| {
            let first = (start.max(map.addr) - map.addr) / WORD as u64;
            let past = (end.min(map.addr + map.len) - map.addr).div_ceil(WORD as u64);
            Event::Flush { thread, inode: map.inode, first, words: past - first }
        });
        self.events.extend(flushes);
    }

    /// Counts the lines of a range that a flush or a stream writes back.
    fn count_lines(&mut self, addr: u64, len: u64) {
        if self.line_writes.is_none() {
            return;
        }
        self.observe();
        let Self { maps, line_writes: Some(writes), .. } = self else { return };
        let shared = maps.iter().filter(|map| map.mode.is_shared_writable());
        for map in shared.filter(|map| map.overlaps(addr, len)) {
            let first = (addr.max(map.addr) - map.addr) / LINE_SIZE;
            let past = ((addr + len).min(map.addr + map.len) - map.addr).div_ceil(LINE_SIZE);
            writes.written(map.inode, first, past);
        }
    }

    /// A fence of this thread.
    pub(crate) fn fenced(&mut self) {
        match self.origin.options.durability {
            Durability::Process => self.record(Event::Moment),
            Durability::Power => self.record(Event::Fence { thread: thread_number() }),
        }
    }

    /// The name of a file; empty if it has none any more.
    pub(crate) fn name_of(&self, inode: Inode) -> String {
        let named = |binding: &Binding| matches!(binding, Binding::File(i) if *i == inode);
        let found = self.names.iter().find(|(_, binding)| named(binding));
        found.map_or_else(String::new, |(name, _)| name.to_string())
    }

    /// The lines that were written back since they are counted, and how often; `None`: they are not
    /// counted.
    pub(crate) fn lines_written(&mut self) -> Option<Vec<(String, u64, u64)>> {
        self.observe();
        let is_power = self.origin.options.durability == Durability::Power;
        let writes = self.line_writes.as_mut()?;
        if !is_power {
            writes.all_written();
        }
        let mut counts: BTreeMap<(Inode, u64), u64> = BTreeMap::new();
        writes.written.iter().for_each(|line| *counts.entry(*line).or_default() += 1);
        let named = counts.into_iter().map(|((inode, line), count)| (inode, line, count));
        Some(named.map(|(inode, line, count)| (self.name_of(inode), line, count)).collect())
    }

    /// The writable mapping of a file.
    pub(crate) fn mapping_of(&self, inode: Inode) -> Option<&Mapping> {
        self.maps.iter().find(|map| map.inode == inode && map.mode.is_shared_writable())
    }

    /// What happens to a call, if anything other than what was asked for.
    pub(crate) fn fault(&mut self, point: FaultPoint, name: &str) -> Option<FaultEffect> {
        self.faults.hit(point, name)
    }

    pub(crate) fn trace_len(&mut self) -> usize {
        self.observe();
        self.events.len()
    }

    /// Forgets the history so far but not what it left undecided.
    pub(crate) fn forget(&mut self) {
        self.observe();
        for event in self.events.drain(..) {
            self.base.apply(&event);
        }
    }

    /// Base and events of the history, to be walked without holding the simulation.
    pub(crate) fn history(&mut self) -> History {
        self.observe();
        History {
            model: self.base.clone(),
            events: self.events.clone(),
            done: 0,
            origin: self.origin,
        }
    }

    /// Files as they are now.
    pub(crate) fn image(&mut self, kind: CrashKind) -> Image {
        self.observe();
        let entries = self.names.iter().filter_map(|(name, binding)| {
            let entry = match binding {
                Binding::Directory => ImageEntry::Directory,
                Binding::File(inode) => {
                    let file = self.files.get(inode)?;
                    let (content, holes) = (Arc::clone(&file.content), Arc::clone(&file.holes));
                    ImageEntry::File { content, len: file.len, holes }
                }
            };
            Some((Arc::clone(name), entry))
        });
        Image::plain(entries.collect(), kind, self.events.len(), self.origin)
    }
}

impl Drop for Live {
    fn drop(&mut self) {
        for window in std::mem::take(&mut self.windows) {
            self.let_go(window);
        }
    }
}

/// A history that is walked from its beginning.
pub(crate) struct History {
    model: MediumModel,
    events: Vec<Event>,
    done: usize,
    origin: Origin,
}

impl History {
    /// Goes on until `events` events have happened, or all.
    pub(crate) fn advance_to(&mut self, events: usize) {
        while self.done < events.min(self.events.len()) {
            self.model.apply(&self.events[self.done]);
            self.done += 1;
        }
    }

    /// Goes one event on, if there is one.
    pub(crate) fn step(&mut self) -> bool {
        let more = self.done < self.events.len();
        self.advance_to(self.done + 1);
        more
    }

    pub(crate) fn into_model(self) -> MediumModel {
        self.model
    }

    pub(crate) fn len(&self) -> usize {
        self.events.len()
    }

    /// Whether the next event leaves every image possible that is possible now.
    pub(crate) fn next_only_adds(&self) -> bool {
        self.events.get(self.done).is_some_and(Event::only_adds_images)
    }

    pub(crate) fn state(&self) -> CrashState {
        CrashState::new(&self.model, self.done, self.origin)
    }

    pub(crate) fn state_of_processes(&self) -> CrashState {
        CrashState::of_processes(&self.model, self.done, self.origin)
    }
}
