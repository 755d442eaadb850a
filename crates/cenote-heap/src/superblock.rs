//! Superblocks: what lies on media about them, and the volatile table that answers without locks.
//!
//! ## On media
//!
//! A superblock is *taken* by writing its descriptor, then one flush and one fence, then use. The eight words of a descriptor may reach
//! memory in any order; the checksum decides: before all of them are there the descriptor is invalid (or still the old one), after that it is the new
//! one. A superblock is *given back* without a write: a valid descriptor with no mark set describes free space.
//!
//! So an invalid descriptor is either a taking that a crash interrupted, and then nothing is in the superblock, or it is damage:
//!
//! * after a crash of processes, marks tell: none is set before the descriptor is complete. An invalid descriptor with an empty
//!   bitmap has lost nothing and is free; one with marks is damaged, and its superblock is not used;
//! * after a loss of power, tracing tells: an interrupted taking is of a superblock that nothing points into. One that a pointer leads to
//!   is damaged; any other is free.
//!
//! A large block's superblocks all have descriptors: the head says how many there are, each tail its distance. They are written together, one fence. The head
//! counts only if no later taking has replaced a tail ([`classify`]), so that two valid descriptors never claim one superblock.
//!
//! ## In memory
//!
//! [`PuddleHeap`] hangs on the puddle and has one [`Entry`], a cache line, per superblock. `is_live`, the check behind every safe pointer access,
//! reads the entry and one word of the bitmap. An entry of a superblock without blocks points to a bitmap of zeroes, so no state is checked apart.

use crate::bin::Bin;
use crate::class::{blocks_per_superblock, class_size};
use cenote_layout::heap::{
    BITMAP_SIZE, Descriptor, HeapGeometry, ROOT_COUNT, RootEntry, SUPERBLOCK_SIZE, SuperblockState,
};
use cenote_layout::id::TypeId;
use core::ptr::{NonNull, null_mut, with_exposed_provenance_mut};
use core::sync::atomic::{AtomicPtr, AtomicU8, AtomicU16, AtomicU32, AtomicU64, Ordering};
use zerocopy::FromZeros;

/// Words of one superblock's bitmap.
pub(crate) const WORDS: usize = (BITMAP_SIZE / 8) as usize;

/// The bitmap of superblocks that have no blocks.
static NOTHING: [AtomicU64; WORDS] = [const { AtomicU64::new(0) }; WORDS];

/// What a superblock is used for in this process.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u8)]
pub(crate) enum Use {
    Free = 0,
    Small = 1,
    LargeHead = 2,
    LargeTail = 3,
    Metadata = 4,
    Damaged = 5,
    /// A large block whose mark is cleared and whose place is not given out yet.
    LargeHeld = 6,
}

/// Where a small superblock is in its bin.
pub(crate) const PLACE_NONE: u8 = 0;
/// In the list of those with free blocks.
pub(crate) const PLACE_LISTED: u8 = 1;
/// The one that blocks are taken from.
pub(crate) const PLACE_CURRENT: u8 = 2;

/// Volatile data of one superblock. `used`, `held`, `place` and the links are changed under the bin's lock only.
#[derive(Debug)]
#[repr(C, align(64))]
pub(crate) struct Entry {
    /// The bitmap, or `NOTHING`: published last, withdrawn first.
    words: AtomicPtr<AtomicU64>,
    /// [`pack`]ed block size and reciprocal.
    geometry: AtomicU64,
    type_id: AtomicU64,
    /// The bin of a small superblock; null otherwise.
    bin: AtomicPtr<Bin>,
    /// Address of the superblock.
    pub(crate) base: u64,
    /// As the bitmap: blocks whose mark is cleared and whose place is not given out yet. Looked at only if `held` is not 0.
    held_words: AtomicPtr<AtomicU64>,
    /// Superblocks of a large block (head), distance to the head (tail).
    pub(crate) span: AtomicU32,
    /// Blocks that cannot be given out: allocated or held.
    pub(crate) used: AtomicU16,
    /// Held blocks.
    pub(crate) held: AtomicU16,
    pub(crate) place: AtomicU8,
    use_: AtomicU8,
    // The second line: for lists only.
    pub(crate) next: AtomicPtr<Entry>,
    pub(crate) prev: AtomicPtr<Entry>,
}

const _: () = assert!(size_of::<Entry>() == 128 && core::mem::offset_of!(Entry, next) == 64);

/// Block size in the upper half; in the lower, 2^32 divided by it, rounded up: exact for offsets below 64 KiB and sizes up to that.
pub(crate) const fn pack(block_size: u64) -> u64 {
    block_size << 32 | (1u64 << 32).div_ceil(block_size)
}

/// Index of the block that `within` (an offset in the superblock) falls into, and offset of that block.
#[inline]
pub(crate) const fn split(geometry: u64, within: u64) -> (usize, u64) {
    let index = (within * (geometry & 0xffff_ffff)) >> 32;
    (index as usize, index * (geometry >> 32))
}

impl Entry {
    fn new(base: u64, held_words: NonNull<AtomicU64>) -> Self {
        Self {
            words: AtomicPtr::new(nothing()),
            geometry: AtomicU64::new(0),
            type_id: AtomicU64::new(0),
            bin: AtomicPtr::new(null_mut()),
            base,
            held_words: AtomicPtr::new(held_words.as_ptr()),
            span: AtomicU32::new(0),
            used: AtomicU16::new(0),
            held: AtomicU16::new(0),
            next: AtomicPtr::new(null_mut()),
            prev: AtomicPtr::new(null_mut()),
            place: AtomicU8::new(PLACE_NONE),
            use_: AtomicU8::new(Use::Free as u8),
        }
    }

    #[inline]
    pub(crate) fn use_(&self) -> Use {
        match self.use_.load(Ordering::Acquire) {
            1 => Use::Small,
            2 => Use::LargeHead,
            3 => Use::LargeTail,
            4 => Use::Metadata,
            5 => Use::Damaged,
            6 => Use::LargeHeld,
            _ => Use::Free,
        }
    }

    #[inline]
    pub(crate) fn bin(&self) -> *mut Bin {
        self.bin.load(Ordering::Acquire)
    }

    #[inline]
    pub(crate) fn geometry(&self) -> u64 {
        self.geometry.load(Ordering::Relaxed)
    }

    #[inline]
    pub(crate) fn type_id(&self) -> TypeId {
        TypeId(self.type_id.load(Ordering::Relaxed))
    }

    /// Word `index` of the bitmap, or of zeroes.
    #[inline]
    pub(crate) fn word(&self, index: usize) -> &AtomicU64 {
        let words = self.words.load(Ordering::Acquire);
        debug_assert!(index < WORDS);
        // SAFETY: `words` points to WORDS words, in the mapping (which outlives the entry, `Ground`) or of `NOTHING`; the index is
        // below that: it comes from `split` (blocks are 16 bytes at least) or is a bin's cursor, which is bounded by the blocks.
        unsafe { &*words.add(index % WORDS) }
    }

    /// Word `index` of the held blocks.
    #[inline]
    pub(crate) fn held_word(&self, index: usize) -> &AtomicU64 {
        // SAFETY: WORDS words that the puddle's data own, which own this entry too.
        unsafe { &*self.held_words.load(Ordering::Relaxed).add(index % WORDS) }
    }

    /// Changes the use if it is what the caller thinks.
    pub(crate) fn change_use(&self, from: Use, to: Use) -> bool {
        self.use_.compare_exchange(from as u8, to as u8, Ordering::AcqRel, Ordering::Relaxed).is_ok()
    }

    /// Whether an allocated block of this type begins at this offset of the superblock.
    #[inline]
    fn is_live(&self, within: u64, type_id: TypeId) -> bool {
        let words = self.words.load(Ordering::Acquire);
        let (index, start) = split(self.geometry.load(Ordering::Relaxed), within);
        // SAFETY: as in `word`: `index` is below 4096 whatever `geometry` is, because its lower half is at most 2^28.
        let word = unsafe { &*words.add(index / 64 % WORDS) };
        (self.type_id.load(Ordering::Relaxed) == type_id.0)
            & (start == within)
            & (word.load(Ordering::Relaxed) >> (index % 64) & 1 != 0)
    }

    /// Makes the blocks of a superblock known. The caller owns it: it is free, and nobody else has it.
    pub(crate) fn publish(
        &self,
        use_: Use,
        block_size: u64,
        type_id: TypeId,
        bin: *mut Bin,
        span: u32,
        words: NonNull<AtomicU64>,
    ) {
        self.geometry.store(pack(block_size.min(SUPERBLOCK_SIZE)), Ordering::Relaxed);
        self.type_id.store(type_id.0, Ordering::Relaxed);
        self.span.store(span, Ordering::Relaxed);
        self.use_.store(use_ as u8, Ordering::Release);
        self.words.store(words.as_ptr(), Ordering::Release);
        self.bin.store(bin, Ordering::Release);
    }

    /// Says that no blocks are here (any more).
    pub(crate) fn hide(&self, use_: Use, span: u32) {
        self.bin.store(null_mut(), Ordering::Release);
        self.words.store(nothing(), Ordering::Release);
        self.use_.store(use_ as u8, Ordering::Release);
        self.span.store(span, Ordering::Relaxed);
        self.used.store(0, Ordering::Relaxed);
        if self.held.swap(0, Ordering::Relaxed) != 0 {
            (0..WORDS).for_each(|w| self.held_word(w).store(0, Ordering::Relaxed));
        }
        self.place.store(PLACE_NONE, Ordering::Relaxed);
        self.next.store(null_mut(), Ordering::Relaxed);
        self.prev.store(null_mut(), Ordering::Relaxed);
    }
}

fn nothing() -> *mut AtomicU64 {
    // Read only, ever: a superblock without blocks has no block whose mark could be changed.
    NOTHING.as_ptr().cast_mut()
}

/// What the heap knows of one of its puddles. It hangs on the puddle (`Ground::slot`) and lives as long as the heap.
#[derive(Debug)]
pub struct PuddleHeap {
    pub(crate) base: u64,
    pub(crate) size: u64,
    pub(crate) index: u32,
    /// Number among the heap's attached puddles.
    pub(crate) ordinal: usize,
    /// Number of the heap that it belongs to, unique in the process.
    pub(crate) heap: u64,
    pub(crate) layout: HeapGeometry,
    pub(crate) entries: Box<[Entry]>,
    /// Blocks that are held, see `Entry::held_words`. Zeroes that nobody touches as long as no transaction frees.
    _held: Box<[AtomicU64]>,
}

/// Words of zeroes that cost nothing until they are touched.
pub(crate) fn zeroed_words(count: usize) -> Box<[AtomicU64]> {
    // If memory is out, the second way says so as an allocation anywhere else does.
    <[AtomicU64]>::new_box_zeroed_with_elems(count)
        .unwrap_or_else(|_| (0..count).map(|_| AtomicU64::new(0)).collect())
}

impl PuddleHeap {
    /// # Safety
    /// `[base, base + size)` is mapped, and stays so as long as this lives.
    pub(crate) unsafe fn new(base: u64, size: u64, index: u32, ordinal: usize, heap: u64) -> Option<Self> {
        let layout = HeapGeometry::new(size, index == 0)?;
        let held = zeroed_words(layout.superblocks as usize * WORDS);
        let entry = |i: u64| {
            let words = NonNull::from(&held[i as usize * WORDS..][..WORDS]);
            Entry::new(base + i * SUPERBLOCK_SIZE, words.cast())
        };
        let entries = (0..layout.superblocks).map(entry).collect();
        Some(Self { base, size, index, ordinal, heap, layout, entries, _held: held })
    }

    /// The heap's data that a puddle's slot holds; `None` if the heap has not looked at that puddle yet (any call of the heap with an address in it changes that).
    ///
    /// # Safety
    /// `slot` is what was loaded from the slot of a puddle of a pool with a traced heap, and that heap is alive during `'a`.
    #[inline]
    #[must_use]
    pub unsafe fn from_slot<'a>(slot: *mut ()) -> Option<&'a Self> {
        // SAFETY: the caller's; the heap stores nothing but null and pointers to its own `PuddleHeap`s there.
        unsafe { slot.cast::<Self>().as_ref() }
    }

    /// Whether an allocated block of `type_id` begins at `addr`: what a checked pointer asks before every access. No locks; a dozen instructions.
    ///
    /// The answer is exact unless the block in question is being freed or allocated at this very moment.
    #[inline]
    #[must_use]
    pub fn is_live(&self, addr: u64, type_id: TypeId) -> bool {
        let offset = addr.wrapping_sub(self.base);
        match self.entries.get((offset / SUPERBLOCK_SIZE) as usize) {
            Some(entry) => entry.is_live(offset % SUPERBLOCK_SIZE, type_id),
            None => false,
        }
    }

    /// [`PuddleHeap::is_live`], and the usable bytes of the block.
    #[inline]
    #[must_use]
    pub fn live_size(&self, addr: u64, type_id: TypeId) -> Option<u64> {
        if !self.is_live(addr, type_id) {
            return None;
        }
        let entry = self.entries.get((addr.wrapping_sub(self.base) / SUPERBLOCK_SIZE) as usize)?;
        Some(match entry.use_() {
            Use::LargeHead => u64::from(entry.span.load(Ordering::Relaxed)) * SUPERBLOCK_SIZE,
            _ => entry.geometry() >> 32,
        })
    }

    /// Entry of the superblock at `addr`, and the offset in it.
    #[inline]
    pub(crate) fn entry_at(&self, addr: u64) -> Option<(&Entry, u64)> {
        let offset = addr.wrapping_sub(self.base);
        Some((self.entries.get((offset / SUPERBLOCK_SIZE) as usize)?, offset % SUPERBLOCK_SIZE))
    }

    pub(crate) fn number_of(&self, entry: &Entry) -> u32 {
        ((entry.base - self.base) / SUPERBLOCK_SIZE) as u32
    }

    fn pointer<T>(&self, offset: u64) -> NonNull<T> {
        let pointer = with_exposed_provenance_mut::<T>((self.base + offset) as usize);
        debug_assert!(offset < self.size && !pointer.is_null());
        NonNull::new(pointer).unwrap_or(NonNull::dangling())
    }

    /// The bitmap of a superblock: `WORDS` words in the mapping.
    pub(crate) fn bitmap(&self, superblock: u32) -> NonNull<AtomicU64> {
        debug_assert!(u64::from(superblock) < self.layout.superblocks);
        self.pointer(self.layout.bitmaps + u64::from(superblock) * BITMAP_SIZE)
    }

    /// Word `word` of the bitmap of `superblock`.
    pub(crate) fn bitmap_word(&self, superblock: u32, word: usize) -> &AtomicU64 {
        assert!(u64::from(superblock) < self.layout.superblocks && word < WORDS);
        // SAFETY: in the mapping, by the geometry and the assertion; aligned, because bitmaps begin at a multiple of 64.
        unsafe { &*self.bitmap(superblock).as_ptr().add(word) }
    }

    /// Whether no mark of a superblock is set.
    pub(crate) fn bitmap_is_empty(&self, superblock: u32) -> bool {
        (0..WORDS).all(|w| self.bitmap_word(superblock, w).load(Ordering::Relaxed) == 0)
    }

    /// Clears the whole bitmap of a superblock that is free; writes only what is not zero.
    pub(crate) fn clear_bitmap(&self, superblock: u32) {
        for w in 0..WORDS {
            let word = self.bitmap_word(superblock, w);
            if word.load(Ordering::Relaxed) != 0 {
                word.store(0, Ordering::Relaxed);
            }
        }
    }

    pub(crate) fn descriptor_words(&self, superblock: u32) -> &[AtomicU64; 8] {
        assert!(u64::from(superblock) < self.layout.superblocks);
        // SAFETY: in the mapping, by the geometry and the assertion; descriptors begin at a multiple of 64 and have 8 words. Every access to
        // them is atomic.
        unsafe {
            self.pointer::<[AtomicU64; 8]>(self.layout.descriptors + u64::from(superblock) * 64).as_ref()
        }
    }

    /// The descriptor as it is.
    pub(crate) fn descriptor(&self, superblock: u32) -> Descriptor {
        let words = self.descriptor_words(superblock);
        let copy: [u64; 8] = core::array::from_fn(|i| words[i].load(Ordering::Relaxed));
        zerocopy::transmute!(copy)
    }

    /// Writes a descriptor, checksum last; neither flushed nor fenced.
    pub(crate) fn write_descriptor(&self, superblock: u32, descriptor: &Descriptor) {
        let new: [u64; 8] = zerocopy::transmute!(*descriptor);
        let words = self.descriptor_words(superblock);
        for i in (0..8).rev() {
            words[i].store(new[i], Ordering::Release);
        }
    }

    /// Slot of a numbered root; only the root puddle has them.
    pub(crate) fn root(&self, index: u16) -> Option<NonNull<RootEntry>> {
        (self.index == 0 && u64::from(index) < ROOT_COUNT)
            .then(|| self.pointer(self.layout.roots + u64::from(index) * size_of::<RootEntry>() as u64))
    }

    pub(crate) fn superblocks(&self) -> u32 {
        self.layout.superblocks as u32
    }

    pub(crate) fn first_usable(&self) -> u32 {
        self.layout.first_usable as u32
    }
}

/// What descriptors alone say of a superblock.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Claim {
    /// Never used, or a tail whose block is gone.
    Free,
    Metadata,
    Small {
        class: u32,
        type_id: TypeId,
    },
    /// A large block of `span` superblocks, this one included, all of which say so or are invalid.
    Large {
        span: u32,
        type_id: TypeId,
    },
    /// Covered by the large block that begins `distance` before. `valid`: its own descriptor says so.
    Tail {
        distance: u32,
        valid: bool,
    },
    /// A head whose superblocks were taken by others since: free.
    Stale,
    Invalid(&'static str),
}

/// Reads all descriptors of a puddle, and decides which large blocks are whole.
pub(crate) fn classify(puddle: &PuddleHeap) -> Vec<Claim> {
    let count = puddle.superblocks();
    let read = |i: u32| -> Claim {
        if i < puddle.first_usable() {
            return Claim::Metadata;
        }
        let d = puddle.descriptor(i);
        if !d.is_valid() {
            return Claim::Invalid("checksum does not fit");
        }
        let whole = u64::from(count - i);
        match SuperblockState::from_u32(d.state) {
            Some(SuperblockState::Free) => Claim::Free,
            Some(SuperblockState::Small) => {
                if blocks_per_superblock(d.class) == 0 || class_size(d.class) != d.block_size {
                    return Claim::Invalid("size class and block size do not fit");
                }
                Claim::Small { class: d.class, type_id: d.type_id }
            }
            Some(SuperblockState::LargeHead) if d.span >= 1 && d.span <= whole => {
                Claim::Large { span: d.span as u32, type_id: d.type_id }
            }
            Some(SuperblockState::LargeTail)
                if d.span >= 1 && d.span <= u64::from(i - puddle.first_usable()) =>
            {
                Claim::Tail { distance: d.span as u32, valid: true }
            }
            _ => Claim::Invalid("state or span cannot be"),
        }
    };
    let mut claims: Vec<Claim> = (0..count).map(read).collect();
    let mut i = 0;
    let mut covered = vec![false; count as usize];
    while i < claims.len() {
        if let Claim::Large { span, .. } = claims[i] {
            let end = i + span as usize;
            let whole = (i + 1..end).all(|k| match claims[k] {
                Claim::Tail { distance, .. } => distance as usize == k - i,
                Claim::Invalid(_) => true,
                _ => false,
            });
            if whole {
                for k in i + 1..end {
                    covered[k] = true;
                    let valid = matches!(claims[k], Claim::Tail { .. });
                    claims[k] = Claim::Tail { distance: (k - i) as u32, valid };
                }
                i = end;
                continue;
            }
            claims[i] = Claim::Stale;
        }
        i += 1;
    }
    for i in 0..claims.len() {
        if let Claim::Tail { distance, .. } = claims[i]
            && !covered[i]
            && !matches!(claims[i - distance as usize], Claim::Invalid(_))
        {
            claims[i] = Claim::Free;
        }
    }
    claims
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::class::CLASS_COUNT;

    #[test]
    fn reciprocals_divide_exactly() {
        for size in (1..CLASS_COUNT as u32).map(class_size).chain([SUPERBLOCK_SIZE]) {
            for within in 0..SUPERBLOCK_SIZE {
                let (index, start) = split(pack(size), within);
                assert_eq!((index as u64, start), (within / size, within / size * size));
            }
        }
    }

    #[test]
    fn an_entry_without_blocks_is_never_live() {
        let entry = Entry::new(0, NonNull::dangling());
        for within in [0, 1, 16, 65535] {
            assert!(!entry.is_live(within, TypeId(0)));
        }
    }
}
