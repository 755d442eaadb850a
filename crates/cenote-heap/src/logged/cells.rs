//! The metadata region: [`Metadata`] reads it, and [`Writer`] alone writes it.
//!
//! Invariants:
//!
//! * All stores into metadata are in this file, but for those that make a sub-heap's room zeros
//!   before it is one. A [`Writer`] is made for one operation, inside the [`Guards`], and stores at
//!   a distance from where it reads: through another mapping, if the guards have one. Where stores
//!   are noted for psyncs, it notes each page when it ends, after its last store there
//!   ([`StoreNotes`]).
//! * The first part of the metadata is one range of memory. Each further level of the table is one
//!   too, whose address is set once, before a record goes into it.
//! * A cell that is in no part reads as [`EMPTY`], which no structure is, and a store to one is
//!   dropped: numbers of cells come from media.

use super::data::Region;
use super::error::Damage;
use super::stored_pages::StoredPages;
use crate::backing::Backing;
use cenote_layout::logged::{
    CELL_SIZE, EMPTY, LEVEL_SLOTS, LEVELS_MAX, RawCell, SubHeapGeometry, UNDO_OFFSET, level_of,
    slots_of,
};
use cenote_layout::{LINE_SIZE, PAGE_SIZE};
use cenote_medium::planted::{Bug, GuardBug, LoggedBug, planted};
use cenote_protect::{Guards, Inside, Protection, StoreNotes};
use core::ops::Range;
use core::ptr::{NonNull, null_mut, with_exposed_provenance_mut};
use core::sync::atomic::{AtomicBool, AtomicPtr, AtomicU64, AtomicUsize, Ordering};
use std::io;
use std::sync::OnceLock;

/// Bytes of a word.
const WORD: u64 = 8;
/// Words of a cell.
const CELL_WORDS: usize = (CELL_SIZE / WORD) as usize;

/// A cell where it lies.
type CellWords = [AtomicU64; CELL_WORDS];

/// Words of a mapped region.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Words {
    base: NonNull<AtomicU64>,
    count: u64,
}

// SAFETY: all accesses are atomic, and the region stays mapped as long as the sub-heap lives
// (contract of `Metadata::new`).
unsafe impl Send for Words {}
// SAFETY: accesses through a shared reference are atomic loads and stores of words.
unsafe impl Sync for Words {}

impl Words {
    /// The `len` bytes at `addr`, as words; `None` if that is no address.
    ///
    /// # Safety
    /// They are mapped as long as this is used, for writing if this writes, and all accesses are
    /// atomic.
    pub(crate) unsafe fn new(addr: u64, len: u64) -> Option<Self> {
        let base = NonNull::new(with_exposed_provenance_mut::<AtomicU64>(addr as usize))?;
        Some(Self { base, count: len / WORD })
    }

    /// All bytes.
    pub(crate) fn bytes(&self) -> Vec<u8> {
        let word = |i| self.at(i * WORD).map_or(0, |word| word.load(Ordering::Relaxed));
        (0..self.count).flat_map(|i| word(i).to_le_bytes()).collect()
    }

    /// The word at an offset in bytes; 0 outside.
    pub(crate) fn load(&self, offset: u64) -> u64 {
        self.at(offset).map_or(0, |word| word.load(Ordering::Acquire))
    }

    /// Stores a word, and flushes its line.
    pub(crate) fn store_flushed<G: Backing>(&self, offset: u64, value: u64, backing: &G) {
        // SAFETY: the words themselves.
        unsafe { self.store_far(offset, value, 0, backing) }
    }

    /// The same, with the store at a distance.
    ///
    /// # Safety
    /// The words are mapped there too, for writing.
    pub(crate) unsafe fn store_far<G: Backing>(
        &self,
        offset: u64,
        value: u64,
        distance: usize,
        backing: &G,
    ) {
        if let Some(word) = self.at(offset) {
            // SAFETY: the caller's promise.
            unsafe { stored(word, distance) }.store(value, Ordering::Release);
            // SAFETY: the word lies in mapped memory.
            unsafe { backing.flush(core::ptr::from_ref(word).cast(), WORD as usize) };
        }
    }

    /// Flushes ranges of bytes, and fences.
    pub(crate) fn settle<G: Backing>(&self, ranges: &[Range<u64>], backing: &G) {
        for range in ranges.iter().filter(|range| range.end <= self.count * WORD) {
            let start = self.base.as_ptr().cast::<u8>().wrapping_add(range.start as usize);
            // SAFETY: the words are mapped.
            unsafe { backing.flush(start, (range.end - range.start) as usize) };
        }
        backing.fence();
    }

    /// Where the word at an offset in bytes lies.
    pub(crate) fn pointer(&self, offset: u64) -> Option<NonNull<AtomicU64>> {
        self.at(offset).map(NonNull::from)
    }

    /// The word at an offset in bytes.
    #[inline]
    fn at(&self, offset: u64) -> Option<&AtomicU64> {
        let index = offset / WORD;
        // SAFETY: the index is below the count, so the word lies in the region, which is mapped and
        // accessed by atomics alone (contract of `Metadata::new`).
        (index < self.count).then(|| unsafe { self.base.add(index as usize).as_ref() })
    }

    /// Words from an offset in bytes on; none if they are not all there.
    #[inline]
    fn range(&self, offset: u64, count: usize) -> &[AtomicU64] {
        let index = offset / WORD;
        let fits = index.checked_add(count as u64).is_some_and(|end| end <= self.count);
        if !fits {
            return &[];
        }
        // SAFETY: as for `at`, of all these words.
        unsafe { core::slice::from_raw_parts(self.base.as_ptr().add(index as usize), count) }
    }

    /// The words of the cell at an offset in bytes, a multiple of a cell.
    #[inline]
    fn cell_at(&self, offset: u64) -> Option<&CellWords> {
        let index = offset / WORD;
        let fits = index.checked_add(CELL_WORDS as u64).is_some_and(|end| end <= self.count);
        // SAFETY: as for `at`, of all words of the cell.
        fits.then(|| unsafe { self.base.add(index as usize).cast().as_ref() })
    }
}

/// The metadata of one sub-heap, for reading.
#[derive(Debug)]
pub(crate) struct Metadata {
    words: Words,
    /// Where levels begin that do not lie in the first part; null if that is nowhere.
    far: [AtomicPtr<AtomicU64>; LEVELS_MAX as usize],
    /// How far from there stores go, and what is told of them: set before a store is.
    far_distances: [AtomicUsize; LEVELS_MAX as usize],
    far_notes: [OnceLock<StoreNotes>; LEVELS_MAX as usize],
    guarded: OnceLock<Guarded>,
    /// Whether some part could not be guarded.
    has_gap: AtomicBool,
    pub(crate) geometry: SubHeapGeometry,
}

/// The guards of a sub-heap's metadata.
#[derive(Debug)]
struct Guarded {
    guards: Guards,
    /// How far from the first part stores into it go.
    distance: usize,
    /// What is told of them.
    notes: Option<StoreNotes>,
    /// Whether further parts lie between guard pages.
    has_pages: bool,
}

/// Guards of a heap over this memory, without ranges yet.
pub(crate) fn guards_of<G: Backing>(backing: &G, protection: Protection, what: &str) -> Guards {
    let guards = Guards::new(protection, what);
    if backing.can_close_off() { guards } else { guards.leaving_pages_open() }
}

/// Guard pages of the first part.
#[derive(Clone, Debug, Default)]
pub(crate) struct GuardPages {
    /// Those that are closed off.
    pub(crate) pages: Vec<Range<usize>>,
    /// Whether further parts have them too.
    pub(crate) further: bool,
}

/// Where a word is stored that is read at `at`.
///
/// # Safety
/// `at` is mapped, and so is the memory at that distance, for writing, as long as the result is
/// used; both are accessed by atomics alone.
#[inline]
unsafe fn stored<T>(at: &T, distance: usize) -> &T {
    // SAFETY: the caller's promise.
    unsafe { &*crate::stored::stored(at, distance) }
}

impl Metadata {
    /// The metadata whose first part is at `addr`; `None` if that is no address.
    ///
    /// # Safety
    /// The `geometry.metadata_len` bytes at `addr` are mapped for writing as long as this lives,
    /// and nothing but this and its writers uses them.
    pub(crate) unsafe fn new(addr: u64, geometry: SubHeapGeometry) -> Option<Self> {
        // SAFETY: the caller's promise is the same.
        let words = unsafe { Words::new(addr, geometry.metadata_len) }?;
        let far = [const { AtomicPtr::new(null_mut()) }; LEVELS_MAX as usize];
        let far_distances = [const { AtomicUsize::new(0) }; LEVELS_MAX as usize];
        let far_notes = [const { OnceLock::new() }; LEVELS_MAX as usize];
        let (guarded, has_gap) = (OnceLock::new(), AtomicBool::new(false));
        Some(Self { words, far, far_distances, far_notes, guarded, has_gap, geometry })
    }

    /// Says where a level lies that is not in the first part.
    ///
    /// # Safety
    /// As for [`Metadata::new`], of the bytes of the level.
    pub(crate) unsafe fn set_far(&self, level: u32, addr: u64) {
        if let Some(far) = self.far.get(level as usize) {
            far.store(with_exposed_provenance_mut(addr as usize), Ordering::Release);
        }
    }

    /// The address of a level; `None`: it lies nowhere yet.
    pub(crate) fn level_addr(&self, level: u32) -> Option<u64> {
        if level < self.geometry.levels {
            let first = self.words.base.as_ptr().expose_provenance() as u64;
            return Some(first + self.geometry.level_range(level).0);
        }
        let far = self.far.get(level as usize)?.load(Ordering::Acquire);
        (!far.is_null()).then(|| far.expose_provenance() as u64)
    }

    /// From now on metadata are guarded, first the first part. No thread uses them yet.
    ///
    /// # Safety
    /// As [`Guards::add`], of the first part; and all further stores are those of writers. Nothing
    /// uses the guard pages.
    pub(crate) unsafe fn guard<G: Backing>(
        &self,
        backing: &G,
        guards: Guards,
        beside: GuardPages,
    ) -> io::Result<()> {
        let first = self.words.base.as_ptr().expose_provenance();
        let notes = backing.store_notes(first as u64)?;
        let len = self.geometry.metadata_len / PAGE_SIZE * PAGE_SIZE;
        // SAFETY: the caller's promise.
        let distance = unsafe { guards.add(first..first + len as usize) }?;
        for pages in beside.pages {
            // SAFETY: pages that nothing uses, by the caller's promise.
            if unsafe { guards.close_off(pages) }.is_err() {
                self.note_gap();
            }
        }
        let has_pages = beside.further;
        let _ = self.guarded.set(Guarded { guards, distance, notes, has_pages });
        Ok(())
    }

    /// Guards levels that are not in the first part, if metadata are guarded. No record is in them
    /// yet, or no thread uses them. `has_pages`: they lie between guard pages.
    ///
    /// # Safety
    /// As [`Guards::add`]; nothing uses the guard pages.
    pub(crate) unsafe fn guard_far<G: Backing>(
        &self,
        backing: &G,
        levels: Range<u32>,
        region: &Region,
        has_pages: bool,
    ) -> io::Result<()> {
        let Some(guarded) = self.guarded.get() else { return Ok(()) };
        let Guarded { guards, .. } = guarded;
        let (addr, end) = (region.addr(), region.addr() + region.len / PAGE_SIZE * PAGE_SIZE);
        let notes = backing.store_notes(addr)?;
        // SAFETY: the caller's promise.
        let distance = unsafe { guards.add(addr as usize..end as usize) }?;
        // Before anything fails: from here on stores at the levels' own addresses fault.
        for level in levels.map(|level| level as usize) {
            if let (Some(place), Some(notes)) = (self.far_notes.get(level), &notes) {
                let _ = place.set(notes.clone());
            }
            if let Some(far) = self.far_distances.get(level) {
                far.store(distance, Ordering::Release);
            }
        }
        if guarded.has_pages {
            let missing = || io::Error::from(io::ErrorKind::InvalidData);
            let pages = has_pages.then_some([region.page_before(), region.page_behind()]);
            for page in pages.ok_or_else(missing)? {
                // SAFETY: a page that nothing uses, by the caller's promise.
                unsafe { guards.close_off(page) }?;
            }
        }
        Ok(())
    }

    /// Ends the guards: the metadata are used no more.
    pub(crate) fn unguard(&mut self) {
        self.guarded.take();
    }

    /// Lets this thread change metadata other than by a writer.
    pub(crate) fn enter(&self) -> Inside<'_> {
        self.guarded.get().map_or(Inside::Nothing, |guarded| guarded.guards.enter())
    }

    /// How all metadata are protected.
    pub(crate) fn protection(&self) -> Protection {
        let guarded = self.guarded.get().filter(|_| !self.has_gap.load(Ordering::Relaxed));
        guarded.map_or(Protection::None, |guarded| guarded.guards.protection())
    }

    /// A part of the metadata could not be guarded.
    pub(crate) fn note_gap(&self) {
        self.has_gap.store(true, Ordering::Relaxed);
    }

    /// A writer of these metadata, for one operation.
    #[inline]
    pub(crate) fn writer<'a, G: Backing>(&'a self, backing: &'a G) -> Writer<'a, G> {
        let guarded = self.guarded.get();
        let inside = guarded.map_or(Inside::Nothing, |guarded| guarded.guards.enter());
        let distance = guarded.map_or(0, |guarded| guarded.distance);
        let is_noted = guarded.is_some_and(|guarded| guarded.notes.is_some());
        let pages = StoredPages::default();
        Writer { meta: self, backing, distance, is_noted, pages, _inside: inside }
    }

    /// What is told of stores into a part: the first, or one that begins with a level.
    fn notes_of(&self, part: usize) -> Option<&StoreNotes> {
        match part {
            FIRST_PART => self.guarded.get()?.notes.as_ref(),
            level => self.far_notes.get(level)?.get(),
        }
    }

    /// Where the word at an offset in bytes lies.
    pub(crate) fn pointer(&self, offset: u64) -> Option<NonNull<AtomicU64>> {
        self.at(offset).map(NonNull::from)
    }

    /// The word at an offset in bytes, if it is in a part.
    #[inline]
    fn at(&self, offset: u64) -> Option<&AtomicU64> {
        self.words.at(offset).or_else(|| self.far_at(offset))
    }

    fn far_at(&self, offset: u64) -> Option<&AtomicU64> {
        self.far_way(offset).map(|(word, _)| word)
    }

    /// The word, and the way of stores there.
    fn far_way(&self, offset: u64) -> Option<(&AtomicU64, StoreWay)> {
        let (words, inside, way) = self.far_part(offset)?;
        // SAFETY: the level is mapped as long as this lives, and so is the word.
        let word = unsafe { words.at(inside).map(|word| &*core::ptr::from_ref(word)) };
        Some((word?, way))
    }

    /// The words of the level that an offset lies in, if that is not in the first part, the offset
    /// in them, and the way of stores there.
    #[inline]
    fn far_part(&self, offset: u64) -> Option<(Words, u64, StoreWay)> {
        let behind = offset.checked_sub(self.geometry.table)?;
        let level = level_of(u32::try_from(behind / CELL_SIZE).ok()?);
        let base = NonNull::new(self.far.get(level as usize)?.load(Ordering::Acquire))?;
        // Mapped and accessed by atomics alone (contract of `set_far`).
        let words = Words { base, count: (LEVEL_SLOTS << level) * CELL_SIZE / WORD };
        let distance = self.far_distances.get(level as usize)?.load(Ordering::Acquire);
        let way = StoreWay { distance, part: level as usize };
        Some((words, behind - slots_of(level) * CELL_SIZE, way))
    }

    /// The words of a cell, if it is in a part: none lies in two.
    #[inline]
    fn words_of(&self, cell: u64) -> Option<&CellWords> {
        self.cell_and_way(cell, 0).map(|(words, _)| words)
    }

    /// The words of a cell, and the way of stores there: `first` is the distance in the first part.
    #[inline]
    fn cell_and_way(&self, cell: u64, first: usize) -> Option<(&CellWords, StoreWay)> {
        let offset = cell.checked_mul(CELL_SIZE)?;
        if let Some(words) = self.words.cell_at(offset) {
            return Some((words, StoreWay { distance: first, part: FIRST_PART }));
        }
        let (words, inside, way) = self.far_part(offset)?;
        // SAFETY: the level is mapped as long as this lives, and so are the words of the result.
        let words = unsafe { words.cell_at(inside).map(|words| &*core::ptr::from_ref(words)) };
        Some((words?, way))
    }

    /// Whether an address is in a part.
    pub(crate) fn contains(&self, addr: u64) -> bool {
        let first = self.words.base.as_ptr().expose_provenance() as u64;
        let is_far = |level| {
            let len = self.geometry.level_range(level).1;
            self.level_addr(level).is_some_and(|at| (at..at + len).contains(&addr))
        };
        (first..first + self.geometry.metadata_len).contains(&addr)
            || (self.geometry.levels..LEVELS_MAX).any(is_far)
    }

    /// Whether a cell is in a part.
    pub(crate) fn has(&self, cell: u64) -> bool {
        cell.checked_mul(CELL_SIZE).is_some_and(|offset| self.at(offset).is_some())
    }

    /// The word at an offset in bytes; 0 outside of all parts.
    #[inline]
    pub(crate) fn word(&self, offset: u64) -> u64 {
        self.at(offset).map_or(0, |word| word.load(Ordering::Relaxed))
    }

    /// The cell with a number.
    #[inline]
    pub(crate) fn cell(&self, cell: u64) -> RawCell {
        match self.words_of(cell) {
            Some(words) => words.each_ref().map(|word| word.load(Ordering::Relaxed)),
            None => EMPTY,
        }
    }
}

/// How stores into a part are made.
#[derive(Clone, Copy, Debug)]
struct StoreWay {
    /// How far they go.
    distance: usize,
    /// [`FIRST_PART`], or a level that is not in it.
    part: usize,
}

/// The number of the first part where others have that of a level.
const FIRST_PART: usize = LEVELS_MAX as usize;

/// Writes metadata of one sub-heap.
#[derive(Debug)]
pub(crate) struct Writer<'a, G> {
    meta: &'a Metadata,
    backing: &'a G,
    /// From the first part to where stores go.
    distance: usize,
    /// Whether stores are noted; then which pages were stored into.
    is_noted: bool,
    pages: StoredPages,
    _inside: Inside<'a>,
}

impl<G> Writer<'_, G> {
    /// Before a store: what is noted of it, and that its page is there.
    #[inline]
    fn touch(&self, word: &AtomicU64, part: usize) {
        if self.is_noted {
            let page = core::ptr::from_ref(word).addr() / PAGE_SIZE as usize;
            if self.pages.add(page, part, |pages| self.note(pages)) {
                // A page of sealed memory is filled when it is touched where it is mapped.
                core::hint::black_box(word.load(Ordering::Relaxed));
            }
        }
    }

    fn note(&self, pages: &StoredPages) {
        for (page, part) in pages.take() {
            if let Some(notes) = self.meta.notes_of(part)
                && !planted(Bug::Guard(GuardBug::ShadowedStoreNotNoted))
            {
                notes.note_stored(page * PAGE_SIZE as usize);
            }
        }
    }
}

impl<G> Drop for Writer<'_, G> {
    /// Notes all stores, after the last one.
    #[inline]
    fn drop(&mut self) {
        if self.is_noted {
            self.note(&self.pages);
        }
    }
}

impl<G: Backing> Writer<'_, G> {
    /// Whether a loss of power counts at this level.
    #[inline]
    pub(crate) fn is_power(&self) -> bool {
        self.backing.is_power()
    }

    /// Fails if a page of metadata was lost: nothing more is to be stored.
    pub(crate) fn intact(&self) -> Result<(), Damage> {
        let is_skipped = planted(Bug::Logged(LoggedBug::LostPageChanged));
        let what = "a page of metadata was lost, or the store acknowledges nothing more";
        let refused = self.backing.usable().is_err() && !is_skipped;
        if refused { Err(Damage { offset: UNDO_OFFSET, what }) } else { Ok(()) }
    }

    /// Whether stores are possible: an opener for reading stores nothing.
    pub(crate) fn may_store(&self) -> bool {
        self.backing.is_writable()
    }

    /// Whether a cell lies in a level behind the first part.
    pub(crate) fn is_far(&self, cell: u64) -> bool {
        self.meta.words.cell_at(cell * CELL_SIZE).is_none()
    }

    fn first_way(&self) -> StoreWay {
        StoreWay { distance: self.distance, part: FIRST_PART }
    }

    /// Stores a word after everything that was stored before.
    #[inline]
    pub(crate) fn store(&self, offset: u64, value: u64) {
        let first = self.meta.words.at(offset).map(|word| (word, self.first_way()));
        if let Some((word, way)) = first.or_else(|| self.meta.far_way(offset)) {
            self.touch(word, way.part);
            // SAFETY: a word of metadata, and where the guards have it stored.
            unsafe { stored(word, way.distance) }.store(value, Ordering::Release);
        }
    }

    /// Stores words of the first part one after the other.
    #[inline]
    pub(crate) fn store_all(&self, offset: u64, values: &[u64]) {
        let words = self.meta.words.range(offset, values.len());
        for (word, &value) in words.iter().zip(values) {
            self.touch(word, FIRST_PART);
            // SAFETY: as in `store`.
            unsafe { stored(word, self.distance) }.store(value, Ordering::Release);
        }
    }

    /// Stores a cell.
    #[inline]
    pub(crate) fn store_cell(&self, cell: u64, raw: RawCell) {
        if let Some((words, way)) = self.meta.cell_and_way(cell, self.distance) {
            self.touch(&words[0], way.part);
            // SAFETY: as in `store`, of a cell.
            let words = unsafe { stored(words, way.distance) };
            words.iter().zip(raw).for_each(|(word, value)| word.store(value, Ordering::Release));
        }
    }

    /// Stores the last two words of a cell, one after the other and `between` in between.
    #[inline]
    pub(crate) fn store_tail(&self, cell: u64, tail: [u64; 2], between: impl FnOnce()) {
        if let Some((words, way)) = self.meta.cell_and_way(cell, self.distance) {
            self.touch(&words[0], way.part);
            // SAFETY: as in `store`, of a cell.
            let [.., first, second] = unsafe { stored(words, way.distance) };
            first.store(tail[0], Ordering::Release);
            between();
            second.store(tail[1], Ordering::Release);
        }
    }

    /// Begins to write the lines of a range back, if the level asks for that. The range is in the
    /// first part, or in one line.
    #[inline]
    pub(crate) fn flush(&self, offset: u64, len: u64) {
        let words = &self.meta.words;
        let fits = offset.checked_add(len).is_some_and(|end| end <= words.count * WORD);
        if len != 0 && (fits || len == LINE_SIZE && offset.is_multiple_of(LINE_SIZE)) {
            let Some(word) = self.meta.at(offset) else { return };
            let start = core::ptr::from_ref(word).cast::<u8>();
            // SAFETY: the range lies in the first part, or is a line of a level; both are mapped.
            unsafe { self.backing.flush(start, len as usize) }
        }
    }

    /// Flushes the line of a cell.
    #[inline]
    pub(crate) fn flush_cell(&self, cell: u64) {
        if let Some(words) = self.meta.words_of(cell) {
            // SAFETY: the cell is mapped, and so is the line around it.
            unsafe { self.backing.flush(words.as_ptr().cast(), CELL_SIZE as usize) }
        }
    }

    /// Makes flushed cells durable before later stores, if the level needs it.
    #[inline]
    pub(crate) fn fence(&self) {
        self.backing.fence();
    }
}
