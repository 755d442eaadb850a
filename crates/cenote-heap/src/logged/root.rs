//! The root puddle of a logged heap: the header, and a word for each sub-heap (section 4.1).
//!
//! **Making a heap** stores zeros where words and roots are to be, flushes and fences; then **the
//! header commits**. A root puddle whose header does not fit its checksum has no heap, and one can
//! be made there.
//!
//! **Guards.** Header and words, and the roots, have a second mapping each ([`HeapRoot::guard`]).
//! Roots are stored by this heap and by transactions, which ask how ([`RootWay`]) and are inside no
//! guards: so theirs is [`Protection::Hidden`] where metadata have `Keys`, and with `Mprotect` they
//! have none.
//!
//! **Naming a sub-heap** is the store of its word, which commits: what it names was made and is
//! durable.

use super::cells::{Words, guards_of};
use super::data::Region;
use super::error::{Damage, LoggedError};
use super::make::words_of;
use crate::backing::{Backing, Extent};
use crate::roots::RootWay;
use cenote_layout::PAGE_SIZE;
use cenote_layout::header::{self, HeaderError};
use cenote_layout::heap::{ROOT_COUNT, RootSlot};
use cenote_layout::logged::{LoggedHeader, SUB_HEAPS_MAX, SubHeapGeometry, SubHeapWord};
use cenote_layout::puddle::header_space;
use cenote_medium::planted::{Bug, GuardBug, LoggedBug, planted};
use cenote_protect::{Guards, Protection, StoreNotes};
use core::ptr::NonNull;
use zerocopy::IntoBytes;

/// The root puddle of a heap.
#[derive(Debug)]
pub(crate) struct HeapRoot {
    words: Words,
    extent: Extent,
    guarded: Option<GuardedRoot>,
    /// How sub-heaps are laid out.
    pub(crate) geometry: SubHeapGeometry,
    /// Pages on each side of metadata that are never used.
    pub(crate) guards: u32,
}

/// The guards of header, words and roots.
#[derive(Debug)]
struct GuardedRoot {
    guards: Guards,
    /// How far stores into header and words go.
    distance: usize,
    /// What is told of them.
    notes: Option<StoreNotes>,
    /// How roots are stored.
    way: RootWay,
    _roots: Guards,
}

/// Where the header lies.
const fn start(extent: &Extent) -> u64 {
    extent.addr + header_space(extent.size)
}

/// # Safety
/// The puddle is mapped as long as the result is used, and large enough; its words are accessed by
/// atomics alone.
unsafe fn words(extent: &Extent) -> Result<Words, LoggedError> {
    if extent.size < header_space(extent.size) + LoggedHeader::SUB_HEAPS {
        return Err(LoggedError::RootSize { size: extent.size });
    }
    // SAFETY: the range lies in the puddle, which has been checked.
    unsafe { Words::new(start(extent), LoggedHeader::SUB_HEAPS) }.ok_or(LoggedError::NoPuddle)
}

fn read(words: &Words) -> Result<LoggedHeader, HeaderError> {
    header::read(&words.bytes()[..PAGE_SIZE as usize], true)
}

impl HeapRoot {
    /// Makes a heap without sub-heaps.
    ///
    /// # Safety
    /// The puddle is mapped for writing as long as this lives, and only this heap uses it.
    pub(crate) unsafe fn make<G: Backing>(
        backing: &G,
        extent: Extent,
        (geometry, guards): (SubHeapGeometry, u32),
    ) -> Result<Self, LoggedError> {
        // SAFETY: the caller's promise is the same.
        let words = unsafe { words(&extent) }?;
        if read(&words).is_ok() {
            return Err(LoggedError::Exists);
        }
        // SAFETY: the puddle has no heap, and only this one uses it.
        unsafe { zero(start(&extent), LoggedHeader::SUB_HEAPS, backing) };
        let header = LoggedHeader::new(&geometry, guards);
        for (i, word) in (0u64..).zip(words_of(header.as_bytes())) {
            if word != 0 {
                words.store_flushed(i * 8, word, backing);
            }
        }
        backing.fence();
        Ok(Self { words, extent, guarded: None, geometry, guards })
    }

    /// A heap that is to be read, and that no program has made yet.
    ///
    /// # Safety
    /// As for [`HeapRoot::open`].
    pub(crate) unsafe fn unmade(
        extent: Extent,
        geometry: SubHeapGeometry,
    ) -> Result<Self, LoggedError> {
        // SAFETY: the caller's promise is the same.
        let words = unsafe { words(&extent) }?;
        Ok(Self { words, extent, guarded: None, geometry, guards: 1 })
    }

    /// Whether no program has made a heap in a root puddle, or one died before that was done: the
    /// header does not fit, and behind it are zeros.
    ///
    /// # Safety
    /// As for [`HeapRoot::open`].
    pub(crate) unsafe fn is_unmade(extent: Extent) -> Result<bool, LoggedError> {
        // SAFETY: the caller's promise is the same.
        let words = unsafe { words(&extent) }?;
        let behind = || (PAGE_SIZE..LoggedHeader::SUB_HEAPS).step_by(8);
        Ok(read(&words).is_err() && behind().all(|offset| words.load(offset) == 0))
    }

    /// Whether a puddle of the heap has nothing in its body, from an offset there on.
    ///
    /// # Safety
    /// As for [`HeapRoot::open`].
    pub(crate) unsafe fn is_zero(extent: Extent, from: u64) -> bool {
        let len = extent.size - header_space(extent.size);
        // SAFETY: the range lies in the puddle, which is mapped; its words are accessed by atomics
        // alone (caller).
        let all = unsafe { Words::new(start(&extent), len) };
        all.is_some_and(|all| (from..len).step_by(8).all(|offset| all.load(offset) == 0))
    }

    /// Reads the header, and makes durable what is believed from now on.
    ///
    /// # Safety
    /// As for [`HeapRoot::make`].
    pub(crate) unsafe fn open<G: Backing>(
        backing: &G,
        extent: Extent,
    ) -> Result<Self, LoggedError> {
        // SAFETY: the caller's promise is the same.
        let words = unsafe { words(&extent) }?;
        let header = read(&words)?;
        let geometry = header.geometry().ok_or(LoggedError::RootSize { size: extent.size })?;
        let guards = header.guards;
        let roots = LoggedHeader::roots_at(guards)
            ..LoggedHeader::roots_at(guards) + LoggedHeader::ROOTS_LEN;
        words.settle(&[0..LoggedHeader::WORDS_END, roots], backing);
        Ok(Self { words, extent, guarded: None, geometry, guards })
    }

    /// Where sub-heap `number` has its word.
    const fn word_at(number: u32) -> u64 {
        LoggedHeader::WORDS + number as u64 * 8
    }

    /// The sub-heap with a number, if there is one.
    pub(crate) fn sub_heap(&self, number: u32) -> Result<Option<SubHeapWord>, Damage> {
        let bits = self.words.load(Self::word_at(number));
        let what = "the word of a sub-heap does not fit its check";
        match SubHeapWord::decode(bits, number) {
            None if bits != 0 => Err(Damage { offset: Self::word_at(number), what }),
            word => Ok(word),
        }
    }

    /// Where root `index` lies.
    pub(crate) fn slot(&self, index: u16) -> Option<NonNull<RootSlot>> {
        let roots = LoggedHeader::roots_at(self.guards);
        let at = roots + u64::from(index) * size_of::<RootSlot>() as u64;
        let inside = u64::from(index) < ROOT_COUNT;
        inside.then(|| self.words.pointer(at)).flatten().map(NonNull::cast)
    }

    /// Names a sub-heap, durably.
    pub(crate) fn name<G: Backing>(&self, number: u32, bits: u64, backing: &G) {
        let (guarded, at) = (self.guarded.as_ref(), Self::word_at(number));
        let _inside = guarded.map(|guarded| guarded.guards.enter());
        let distance = guarded.map_or(0, |guarded| guarded.distance);
        // A page that is noted is there when it has been touched.
        core::hint::black_box(self.words.load(at));
        // SAFETY: the guards say where stores go.
        unsafe { self.words.store_far(at, bits, distance, backing) };
        if let Some(notes) = guarded.and_then(|guarded| guarded.notes.as_ref())
            && !planted(Bug::Guard(GuardBug::ShadowedStoreNotNoted))
        {
            notes.note_stored((start(&self.extent) + at) as usize);
        }
        backing.fence();
    }

    /// How roots are stored.
    pub(crate) fn way(&self) -> RootWay {
        self.guarded.as_ref().map_or_else(RootWay::default, |guarded| guarded.way.clone())
    }

    /// Guards header, words and roots from now on, where that can be had, and closes the pages on
    /// both sides of the roots off: none of their neighbours can be reached from there.
    ///
    /// # Safety
    /// As [`Guards::add`], of the root puddle.
    pub(crate) unsafe fn guard<G: Backing>(
        &mut self,
        backing: &G,
        protection: Protection,
        what: &str,
    ) {
        let guards = guards_of(backing, protection, what);
        let start = start(&self.extent) as usize;
        let Ok(notes) = backing.store_notes(start as u64) else { return };
        // SAFETY: the caller's promise; behind the header and the words lies a guard page, or the
        // roots.
        let added = unsafe { guards.add(start..start + LoggedHeader::WORDS_END as usize) };
        let Ok(distance) = added else { return };
        let hidden = match protection {
            Protection::Hidden | Protection::Keys => Protection::Hidden,
            _ => Protection::None,
        };
        let of_roots = match planted(Bug::Logged(LoggedBug::RootsOpen)) {
            true => Guards::new(Protection::None, what),
            false => Guards::new(hidden, what),
        };
        let first = start + LoggedHeader::roots_at(self.guards) as usize;
        // SAFETY: the caller's promise; roots are stored by this heap and by transactions, which
        // ask for the way.
        let added = unsafe { of_roots.add(first..first + LoggedHeader::ROOTS_LEN as usize) };
        let Ok(to_roots) = added else { return };
        let way = RootWay { distance: to_roots, notes: notes.clone().filter(|_| to_roots != 0) };
        let ends = [LoggedHeader::roots_at(1), LoggedHeader::sub_heaps_at(1)];
        for end in ends.into_iter().filter(|_| self.guards > 0) {
            let end = start + end as usize;
            // SAFETY: a page that nothing uses, by the header.
            if unsafe { guards.close_off(end - PAGE_SIZE as usize..end) }.is_err() {
                return;
            }
        }
        self.guarded = Some(GuardedRoot { guards, distance, notes, way, _roots: of_roots });
    }

    /// Ends the guards: the puddle is used no more.
    pub(crate) fn unguard(&mut self) {
        self.guarded = None;
    }

    /// How header, words and roots are protected.
    pub(crate) fn protection(&self) -> Protection {
        self.guarded.as_ref().map_or(Protection::None, |guarded| guarded.guards.protection())
    }

    /// Where the metadata of sub-heap `number` begin, if there is room in the root puddle.
    pub(crate) fn room(&self, number: u32) -> Option<Region> {
        let (len, page) = (self.metadata_len(), u64::from(self.guards) * PAGE_SIZE);
        let first = header_space(self.extent.size) + LoggedHeader::sub_heaps_at(self.guards);
        let from = first + u64::from(number) * (len + page);
        let (puddle, base) = (self.extent.index, self.extent.addr);
        let has_room = number < SUB_HEAPS_MAX && from + len + page <= self.extent.size;
        has_room.then_some(Region { puddle, base, from, len })
    }

    /// Whether metadata of sub-heap `number` may lie there: as this heap places them.
    pub(crate) fn is_place(&self, number: u32, region: &Region, extent: &Extent) -> bool {
        match extent.index == self.extent.index {
            _ if self.guards == 0 => region.from + region.len <= extent.size,
            true => self.room(number) == Some(*region),
            false => region.is_between_guards(extent),
        }
    }

    /// Bytes of the first part of a sub-heap's metadata: whole pages.
    pub(crate) const fn metadata_len(&self) -> u64 {
        self.geometry.metadata_len.next_multiple_of(PAGE_SIZE)
    }
}

/// Makes a range of zeros, durably, where it is not: what a crash left of metadata that nothing
/// names.
///
/// # Safety
/// The range is mapped for writing, of whole words, and nothing uses it.
pub(crate) unsafe fn zero<G: Backing>(addr: u64, len: u64, backing: &G) {
    // SAFETY: the caller's promise is the same.
    let Some(words) = (unsafe { Words::new(addr, len) }) else { return };
    for offset in (0..len).step_by(size_of::<u64>()) {
        if words.load(offset) != 0 {
            words.store_flushed(offset, 0, backing);
        }
    }
    backing.fence();
}
