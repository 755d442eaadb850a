//! Superblocks: what lies on media about them, and [`PuddleHeap`], which answers for a puddle
//! without locks.
//!
//! ## On media
//!
//! A superblock is *taken* by writing its descriptor, then one flush and one fence, then use. The
//! words of a descriptor may reach memory in any order; the checksum decides: before all of them
//! are there the descriptor is invalid (or still the old one), after that it is the new one. A
//! superblock is *given back* without a write: a valid descriptor with no mark that says
//! "allocated" describes free space.
//!
//! So an invalid descriptor is either a taking that a crash interrupted, and then nothing is in the
//! superblock, or it is damage. The same holds for a descriptor that says "free" or "hole" where
//! marks say otherwise ([`classify`]).
//!
//! * After a crash of processes, marks tell: none is set before the descriptor is complete. An
//!   invalid descriptor is free if every mark of its superblock is one that means "free" to an
//!   opener; else it is damaged, and its superblock is not used. Tiny marks are not looked at for
//!   that, because the file may have no space for them: the first mark of such a superblock in the
//!   other marks is TINY while it is in use. (Taken in this order: tiny marks cleared, descriptor
//!   durable, TINY written, use. Given back: no block is left, then TINY is cleared.)
//! * After a loss of power, tracing tells: an interrupted taking is of a superblock that nothing
//!   points into. One that a pointer leads to is damaged; any other is free.
//!
//! Space of a free superblock may be given back to the file system: its descriptor says "hole" then
//! ([`super::trim`]), before it is one, and the thread that takes it takes space first. One whose
//! descriptor is invalid may be a hole too. The space behind the blocks of a superblock may be
//! given back while it is in use. Its state then says "cut", and still says so when it is free.
//!
//! A large block's superblocks all have descriptors: the head says how many there are, each tail
//! its distance. They are written together, one fence. The head counts only if no later taking has
//! replaced a tail ([`classify`]), so that two valid descriptors never claim one superblock.
//!
//! ## In this session
//!
//! Three words of each descriptor are volatile: the anchor ([`super::anchor`]), a link
//! ([`super::list`]) and the geometry ([`super::geometry`]). Adoption ([`super::adopt`]) writes
//! them before any thread uses a puddle. A pool that is open for reading only has them in a private
//! copy of the descriptors.
//!
//! `is_live`, the check behind every safe pointer access, reads the descriptor's line and one mark,
//! and then the geometry again. If that is the same as before, the superblock has not changed hands
//! in between (a taking changes the generation), so type, geometry and mark belong together: when
//! hands change, the geometry is "none" before the type is written, and the new one is there before
//! a block is marked; a mark is stored with release and read with acquire, so a reader that sees a
//! mark of a later life also sees that life's geometry, or a later one, when it reads it again. The
//! 17 bits of generation come again after 131,072 takings; a reader would have to sleep through
//! exactly so many.
//!
//! Metadata may be guarded: read-only at the pool's address, and mapped a second time
//! ([`super::guarding`]). Lines and marks that a [`PuddleHeap`] gives out lie where they are
//! stored, and nothing keeps them. Kept addresses are those for reading: in [`PuddleLines`], in
//! caches, in a [`crate::Block`].

use super::anchor;
use super::descriptor::says_used;
use super::geometry::Geometry;
use super::line::{BlockList, DescriptorLine, PuddleLines};
use super::marks;
use super::runs;
use crate::class::blocks_per_superblock;
use crate::stored::{read, stored};
use cenote_layout::heap::{
    Descriptor, HeapGeometry, LIST_COUNT, MARKS_SIZE, ROOT_COUNT, RootSlot, SUPERBLOCK_SIZE,
    SWEEP_SIZE, SweepState, TINY_MARKS_SIZE, mark,
};
use cenote_layout::id::TypeId;
use cenote_medium::planted::{Step, reach};
use cenote_protect::HiddenRange;
use cenote_sys::peek;
use core::ptr::{NonNull, with_exposed_provenance_mut};
use core::sync::atomic::{AtomicBool, AtomicU8, AtomicU64, Ordering};
use zerocopy::FromZeros;

/// The heap's state of one of its puddles. It hangs on the puddle (`Backing::slot`) and lives as
/// long as the heap.
#[derive(Debug)]
pub struct PuddleHeap {
    place: PuddleLines,
    pub(crate) base: u64,
    count: u32,
    pub(crate) index: u32,
    /// Number among the heap's attached puddles.
    pub(crate) ordinal: usize,
    /// Number of the heap that it belongs to, unique in the process.
    pub(crate) heap: u64,
    pub(crate) size: u64,
    pub(crate) layout: HeapGeometry,
    /// Whether anchors are to be believed.
    pub(crate) adopted: AtomicBool,
    pub(crate) writable: bool,
    /// Whether condemned marks count as allocated: in a pool that is open for reading only and
    /// whose next writer will make them so, and where the state cannot be read
    /// ([`super::condemn`]).
    pub(crate) restores: bool,
    /// The distance to add to an address in the metadata, for a store ([`crate::stored`]).
    pub(crate) distance: usize,
    /// The second mapping, if there is one.
    pub(crate) guarded: Option<HiddenRange>,
    /// What `lines` points to in a pool that is open for reading only.
    _copy: Option<Box<[DescriptorLine]>>,
}

// SAFETY: the place's lines are atomics, in the mapping, which outlives this (see `new`), or in
// `_copy`.
unsafe impl Send for PuddleHeap {}
// SAFETY: as above.
unsafe impl Sync for PuddleHeap {}

/// Words of zeroes that cost nothing until they are touched.
pub(crate) fn zeroed_words(count: usize) -> Box<[AtomicU64]> {
    // If memory is out, the second way says so as an allocation anywhere else does.
    <[AtomicU64]>::new_box_zeroed_with_elems(count)
        .unwrap_or_else(|_| (0..count).map(|_| AtomicU64::new(0)).collect())
}

impl PuddleHeap {
    /// # Safety
    /// `[base, base + size)` is mapped, for writing if `writable`, and stays so as long as this
    /// lives.
    pub(crate) unsafe fn new(
        base: u64,
        size: u64,
        index: u32,
        ordinal: usize,
        heap: u64,
        writable: bool,
    ) -> Option<Self> {
        let layout = HeapGeometry::new(size, index == 0)?;
        let count = u32::try_from(layout.superblocks).ok()?;
        let mapped = NonNull::new(with_exposed_provenance_mut::<DescriptorLine>(
            (base + layout.descriptors) as usize,
        ))?;
        let copy = (!writable).then(|| {
            // SAFETY: the descriptors lie in the mapping, begin at a multiple of 64, and all
            // accesses to them are atomic.
            let lines = unsafe { core::slice::from_raw_parts(mapped.as_ptr(), count as usize) };
            lines.iter().map(DescriptorLine::copy).collect::<Box<[DescriptorLine]>>()
        });
        let lines = copy.as_ref().map_or(mapped.as_ptr().cast_const(), |copy| copy.as_ptr());
        let marks = base + layout.marks;
        let live_from = if writable { mark::TAKEN } else { mark::ALLOCATED };
        let superblocks = layout.superblocks * SUPERBLOCK_SIZE;
        let place = PuddleLines { base, size: superblocks, lines, marks, live_from };
        let adopted = AtomicBool::new(false);
        let mut puddle = Self {
            place,
            base,
            count,
            index,
            ordinal,
            heap,
            size,
            layout,
            adopted,
            writable,
            restores: false,
            distance: 0,
            guarded: None,
            _copy: copy,
        };
        puddle.restores = match puddle.sweep_state() {
            _ if index != 0 => false,
            Some(state) => !writable && state == SweepState::Open,
            None => true,
        };
        Some(puddle)
    }

    /// The heap's data that a puddle's slot holds; `None` if the heap has not looked at that puddle
    /// yet (any call of the heap with an address in it changes that).
    ///
    /// # Safety
    /// `slot` was loaded from the slot of a puddle of a pool with a traced heap, and that heap is
    /// alive during `'a`.
    #[inline]
    #[must_use]
    pub unsafe fn from_slot<'a>(slot: *mut ()) -> Option<&'a Self> {
        // SAFETY: the caller's; the heap stores nothing but null and pointers to its own
        // `PuddleHeap`s there.
        unsafe { slot.cast::<Self>().as_ref() }
    }

    pub(crate) fn place(&self) -> PuddleLines {
        self.place
    }

    /// Descriptor of the superblock at `addr`, its number, and the offset in it.
    #[inline]
    pub(crate) fn line_at(&self, addr: u64) -> Option<(&DescriptorLine, u32, u64)> {
        // SAFETY: the place of `self`, and where its lines are stored.
        let (line, offset) = unsafe {
            let (line, offset) = self.place.line_at(addr)?;
            (&*stored(line, self.distance), offset)
        };
        Some((line, (offset / SUPERBLOCK_SIZE) as u32, offset % SUPERBLOCK_SIZE))
    }

    /// Descriptor of a superblock.
    pub(crate) fn line(&self, number: u32) -> &DescriptorLine {
        assert!(number < self.count);
        // SAFETY: there are `count` lines, and they live as long as `self`, as their second mapping
        // does.
        unsafe { &*stored(self.place.lines.add(number as usize), self.distance) }
    }

    /// Address of a superblock.
    #[inline]
    pub(crate) fn address(&self, number: u32) -> u64 {
        self.base + u64::from(number) * SUPERBLOCK_SIZE
    }

    /// What lists call a superblock.
    pub(crate) fn reference(&self, number: u32) -> u32 {
        (self.address(number) / SUPERBLOCK_SIZE) as u32
    }

    /// The mark of the block that begins at `addr`, in a superblock of this geometry, where it is
    /// read; see [`PuddleLines::mark`].
    #[inline]
    pub(crate) fn mark(&self, geometry: Geometry, addr: u64) -> Option<&AtomicU8> {
        let offset = addr.wrapping_sub(self.base);
        // SAFETY: the place of `self`; an offset beyond it is refused.
        if offset < self.place.size { unsafe { self.place.mark(geometry, offset) } } else { None }
    }

    /// Whether an allocated block of `type_id` begins at `addr`: what a checked pointer asks before
    /// every access. No locks; some twenty instructions.
    ///
    /// The answer is exact unless the block in question is being freed or allocated at this very
    /// moment.
    #[inline]
    #[must_use]
    pub fn is_live(&self, addr: u64, type_id: TypeId) -> bool {
        // SAFETY: the place of `self`.
        unsafe { self.place.live(addr, type_id) }.is_some()
    }

    /// [`PuddleHeap::is_live`], and the usable bytes of the block.
    #[inline]
    #[must_use]
    pub fn live_size(&self, addr: u64, type_id: TypeId) -> Option<u64> {
        // SAFETY: the place of `self`.
        let (line, geometry) = unsafe { self.place.live(addr, type_id) }?;
        if geometry.is_small() {
            return Some(geometry.size());
        }
        Some(line.block_size())
    }

    /// Where metadata are stored.
    fn place_of<T>(&self, offset: u64) -> *const T {
        stored(self.pointer(offset).as_ptr(), self.distance)
    }

    /// Where a mark is read that is stored there: what memory may keep.
    #[inline]
    pub(crate) fn read_at(&self, mark: &AtomicU8) -> *const AtomicU8 {
        read(mark, self.distance)
    }

    fn pointer<T>(&self, offset: u64) -> NonNull<T> {
        let pointer = with_exposed_provenance_mut::<T>((self.base + offset) as usize);
        debug_assert!(offset <= self.size && !pointer.is_null());
        NonNull::new(pointer).unwrap_or(NonNull::dangling())
    }

    /// `len` marks from `offset` on.
    fn marks_from(&self, offset: u64, len: u64) -> &[AtomicU8] {
        // SAFETY: in the mapping by the geometry (the callers'), and every access to marks is
        // atomic.
        unsafe { core::slice::from_raw_parts(self.place_of(offset), len as usize) }
    }

    /// The marks of a superblock in the puddle's metadata.
    pub(crate) fn outer_marks(&self, number: u32) -> &[AtomicU8] {
        assert!(number < self.count);
        self.marks_from(self.layout.marks + u64::from(number) * MARKS_SIZE, MARKS_SIZE)
    }

    /// The tiny marks of a superblock. The file has space for them if the superblock was ever set
    /// up for tiny blocks.
    pub(crate) fn tiny_marks(&self, number: u32) -> &[AtomicU8] {
        assert!(number < self.count);
        self.marks_from(self.layout.tiny + u64::from(number) * TINY_MARKS_SIZE, TINY_MARKS_SIZE)
    }

    /// All marks that a superblock with blocks of this class may use, those of no block included.
    pub(crate) fn room_of_marks(&self, number: u32, class: u32) -> &[AtomicU8] {
        if is_tiny_class(class) { self.tiny_marks(number) } else { self.outer_marks(number) }
    }

    /// The marks of a superblock with blocks of this class; the one mark of a large block's head,
    /// if the class is 0.
    pub(crate) fn class_marks(&self, number: u32, class: u32) -> &[AtomicU8] {
        let blocks = blocks_per_superblock(class).max(1);
        &self.room_of_marks(number, class)[..blocks as usize]
    }

    /// Makes all marks in the metadata of a superblock zero, but for tiny marks; writes only what
    /// is not.
    pub(crate) fn clear_outer_marks(&self, number: u32) {
        clear(self.outer_marks(number));
    }

    /// Whether marks say that something is allocated in a superblock of any class, or one of
    /// them is illegal.
    pub(crate) fn has_marks(&self, number: u32) -> bool {
        let says = |byte: &AtomicU8| says_used(byte.load(Ordering::Acquire));
        let marks = self.outer_marks(number);
        !marks::all(marks, mark::FREE) && marks.iter().any(says)
    }

    /// Whether space must be taken before tiny marks are used, see [`Descriptor::may_lack_tiny`].
    pub(crate) fn may_lack_tiny(&self) -> bool {
        self.descriptor(0).may_lack_tiny()
    }

    /// A bit for each of the 64 marks from `64 * word` on, which are of this puddle: whether it
    /// says that a block is allocated.
    pub(crate) fn allocated_bits(&self, marks: &[AtomicU8], word: usize) -> u64 {
        let condemned = if self.restores { marks::bits(marks, word, mark::CONDEMNED) } else { 0 };
        marks::bits(marks, word, mark::ALLOCATED) | condemned
    }

    /// The persisted part of a descriptor, as it is; the rest is zero.
    pub(crate) fn descriptor(&self, number: u32) -> Descriptor {
        let line = self.line(number);
        let kind = line.kind.load(Ordering::Relaxed);
        Descriptor {
            checksum: line.checksum.load(Ordering::Relaxed),
            state: kind as u32,
            class: (kind >> 32) as u32,
            block_size: line.block_size.load(Ordering::Relaxed),
            type_id: line.type_id(),
            span: line.span.load(Ordering::Relaxed),
            ..Descriptor::FREE
        }
    }

    /// Whether a superblock is free at this moment.
    pub(crate) fn is_free(&self, number: u32) -> bool {
        anchor::state(self.line(number).anchor.load(Ordering::Relaxed)) == anchor::FREE
    }

    /// Whether the file may have no space for a superblock that the caller owns, or that is free.
    pub(crate) fn may_be_hole(&self, number: u32) -> bool {
        self.descriptor(number).may_be_hole()
    }

    /// The same, for a part of it.
    pub(crate) fn may_lack_space(&self, number: u32) -> bool {
        self.descriptor(number).may_lack_space()
    }

    /// Writes the persisted part of a descriptor, checksum last; neither flushed nor fenced.
    pub(crate) fn write_descriptor(&self, number: u32, new: &Descriptor) {
        let line = self.line(number);
        reach(Step::DescriptorBegun);
        line.span.store(new.span, Ordering::Release);
        reach(Step::DescriptorSpan);
        line.type_id.store(new.type_id.0, Ordering::Release);
        reach(Step::DescriptorType);
        line.block_size.store(new.block_size, Ordering::Release);
        reach(Step::DescriptorBlockSize);
        line.kind.store(u64::from(new.class) << 32 | u64::from(new.state), Ordering::Release);
        reach(Step::DescriptorKind);
        line.checksum.store(new.checksum, Ordering::Release);
    }

    /// Slot of a numbered root, where it is read; only the root puddle has them.
    pub(crate) fn root(&self, index: u16) -> Option<NonNull<RootSlot>> {
        (self.index == 0 && u64::from(index) < ROOT_COUNT).then(|| {
            self.pointer(self.layout.roots + u64::from(index) * size_of::<RootSlot>() as u64)
        })
    }

    /// The pool's lists; only the root puddle has them.
    pub(crate) fn lists(&self) -> &[BlockList] {
        if self.index != 0 {
            return &[];
        }
        // SAFETY: in the mapping by the geometry, aligned to 64, as long as `self` lives; all
        // accesses are atomic.
        unsafe {
            core::slice::from_raw_parts(self.place_of(self.layout.lists), LIST_COUNT as usize)
        }
    }

    /// The first address of a puddle's metadata, tiny marks aside, whose page cannot be read.
    ///
    /// # Safety
    /// The puddle is mapped at `addr`.
    pub(crate) unsafe fn lost_metadata(addr: u64, size: u64, index: u32) -> Option<u64> {
        let layout = HeapGeometry::new(size, index == 0)?;
        let end = if index == 0 { layout.sweep + SWEEP_SIZE } else { layout.roots };
        let lost = |from, to| {
            // SAFETY: in the mapping by the geometry, and the caller's promise.
            unsafe { peek::lost((addr + from) as usize..(addr + to) as usize) }
        };
        lost(layout.descriptors, layout.tiny)
            .or_else(|| lost(layout.marks, end))
            .map(|at| at as u64)
    }

    /// The line of the last sweep: its state, and what is reserved. Only the root puddle has it.
    pub(crate) fn sweep_line(&self) -> Option<&[AtomicU64]> {
        // SAFETY: in the mapping by the geometry, aligned to 64, as long as `self` lives; all
        // accesses are atomic.
        (self.index == 0).then(|| unsafe {
            core::slice::from_raw_parts(self.place_of(self.layout.sweep), SWEEP_SIZE as usize / 8)
        })
    }

    /// How far the last sweep has come; `None` in other puddles, and if it cannot be read.
    pub(crate) fn sweep_state(&self) -> Option<SweepState> {
        let (word, reserved) = self.sweep_line()?.split_first()?;
        let is_zero = reserved.iter().all(|word| word.load(Ordering::Relaxed) == 0);
        SweepState::from_u64(word.load(Ordering::Acquire)).filter(|_| is_zero)
    }

    /// The session of members in which the puddle was adopted last: in a word of the metadata's own
    /// descriptor that has no other use.
    pub(crate) fn session(&self) -> u64 {
        self.line(0).next.load(Ordering::Acquire)
    }

    /// It is adopted in this session: from now on others believe its volatile words.
    pub(crate) fn set_session(&self, session: u64) {
        self.line(0).next.store(session, Ordering::Release);
    }

    pub(crate) fn superblocks(&self) -> u32 {
        self.count
    }

    pub(crate) fn first_usable(&self) -> u32 {
        self.layout.first_usable as u32
    }
}

impl runs::RunWords for PuddleHeap {
    fn anchor(&self, number: u32) -> &AtomicU64 {
        &self.line(number).anchor
    }

    fn hints(&self, word: u32) -> &AtomicU64 {
        assert!(word < self.count.div_ceil(64));
        // SAFETY: in the mapping by the geometry; all accesses are atomic.
        unsafe { &*self.place_of(self.layout.hints + u64::from(word) * 8) }
    }

    fn len(&self) -> u32 {
        self.count
    }
}

/// Makes marks zero; writes only what is not.
pub(crate) fn clear(marks: &[AtomicU8]) {
    if !marks::all(marks, mark::FREE) {
        marks.iter().for_each(|byte| marks::write(byte, mark::FREE));
    }
}

/// Whether blocks of this class use tiny marks.
pub(crate) fn is_tiny_class(class: u32) -> bool {
    u64::from(blocks_per_superblock(class)) > MARKS_SIZE
}
