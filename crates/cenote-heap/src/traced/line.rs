//! A superblock's descriptor where it lies, and the place of a puddle.
//!
//! [`DescriptorLine`] is a descriptor as atomic words: five persistent ones, and three that mean
//! something in this session only (anchor, link, geometry). [`PuddleLines`] answers about one
//! address with them; [`super::superblock`] says in which order they are written and read.
//!
//! Invariant: while the geometry is "none", no thread reads type, class or marks of the superblock.

use super::geometry::{Geometry, divide};
use cenote_layout::heap::{Descriptor, MARKS_SIZE, SUPERBLOCK_SIZE, TINY_MARKS_SIZE, mark};
use cenote_layout::id::TypeId;
use core::ptr::with_exposed_provenance;
use core::sync::atomic::{AtomicU8, AtomicU64, Ordering};

/// Block size in the upper half; in the lower, 2^32 divided by it, rounded up: exact for offsets
/// below 64 KiB and sizes up to that.
pub(crate) const fn pack(block_size: u64) -> u64 {
    block_size << 32 | (1u64 << 32).div_ceil(block_size)
}

/// Index of the block that `within` (an offset in the superblock) falls into, and offset of that
/// block.
#[inline]
pub(crate) const fn split(geometry: u64, within: u64) -> (usize, u64) {
    let index = (within * (geometry & 0xffff_ffff)) >> 32;
    (index as usize, index * (geometry >> 32))
}

/// A descriptor where it lies.
#[derive(Debug)]
#[repr(C, align(64))]
pub(crate) struct DescriptorLine {
    pub(super) checksum: AtomicU64,
    /// State in the lower half, class in the upper.
    pub(super) kind: AtomicU64,
    pub(super) block_size: AtomicU64,
    pub(super) type_id: AtomicU64,
    pub(super) span: AtomicU64,
    pub(crate) anchor: AtomicU64,
    pub(crate) next: AtomicU64,
    pub(super) geometry: AtomicU64,
}

const _: () = assert!(
    size_of::<DescriptorLine>() == size_of::<Descriptor>()
        && core::mem::offset_of!(DescriptorLine, anchor)
            == core::mem::offset_of!(Descriptor, anchor)
        && core::mem::offset_of!(DescriptorLine, geometry)
            == core::mem::offset_of!(Descriptor, geometry)
);

impl DescriptorLine {
    #[inline]
    pub(crate) fn geometry(&self) -> Geometry {
        Geometry(self.geometry.load(Ordering::Acquire))
    }

    /// Of the descriptor: another one for another class or type.
    #[inline]
    pub(crate) fn checksum(&self) -> u64 {
        self.checksum.load(Ordering::Relaxed)
    }

    #[inline]
    pub(crate) fn type_id(&self) -> TypeId {
        TypeId(self.type_id.load(Ordering::Acquire))
    }

    /// Bytes of a block; of a large one, all of it.
    #[inline]
    pub(crate) fn block_size(&self) -> u64 {
        self.block_size.load(Ordering::Acquire)
    }

    /// The size class; meaningful while small blocks are here.
    #[inline]
    pub(crate) fn class(&self) -> u32 {
        (self.kind.load(Ordering::Relaxed) >> 32) as u32
    }

    /// Makes blocks of `size` bytes known: the thread that owns the superblock, after everything
    /// else about it is in place.
    pub(crate) fn publish(&self, size: u64) {
        self.geometry.store(Geometry::new(size, self.geometry()).0, Ordering::Release);
    }

    /// Says that no blocks are here (any more): the thread that owns the superblock, before
    /// anything else.
    pub(crate) fn hide(&self) {
        let geometry = self.geometry();
        if geometry.size() != 0 {
            self.geometry.store(Geometry::none(geometry).0, Ordering::Release);
        }
    }

    /// At adoption, when no thread uses the puddle: writes what is not there yet.
    pub(crate) fn reset(&self, anchor: u64, size: Option<u64>) {
        let before = self.geometry();
        let geometry = match size {
            // The same as before, if it is: a store that is opened again should not be written
            // without need.
            Some(size) if Geometry::new(size, before).is_next_of(before) => before,
            Some(size) => Geometry::new(size, Geometry::none(before)),
            None if before.0 == 0 => before,
            None => Geometry::none(before),
        };
        let changed = |word: &AtomicU64, value: u64| {
            if word.load(Ordering::Relaxed) != value {
                word.store(value, Ordering::Relaxed);
            }
        };
        changed(&self.geometry, geometry.0);
        changed(&self.next, 0);
        changed(&self.anchor, anchor);
    }
}

impl DescriptorLine {
    pub(super) fn copy(&self) -> Self {
        let copy = |word: &AtomicU64| AtomicU64::new(word.load(Ordering::Relaxed));
        Self {
            checksum: copy(&self.checksum),
            kind: copy(&self.kind),
            block_size: copy(&self.block_size),
            type_id: copy(&self.type_id),
            span: copy(&self.span),
            anchor: AtomicU64::new(0),
            next: AtomicU64::new(0),
            geometry: AtomicU64::new(0),
        }
    }
}

/// The head of a list, and which blocks the list is for.
#[derive(Debug)]
#[repr(C)]
pub(crate) struct BlockList {
    /// A mix of type and class; 0 as long as no thread has the list.
    pub(crate) key: AtomicU64,
    pub(crate) head: AtomicU64,
}

/// Where a puddle lies: what answers about one address. A copy of it is in each thread's cache.
#[derive(Clone, Copy, Debug)]
#[repr(C)]
pub(crate) struct PuddleLines {
    pub(super) base: u64,
    /// Bytes of whole superblocks.
    pub(super) size: u64,
    /// The descriptors: in the mapping, or a copy of them.
    pub(super) lines: *const DescriptorLine,
    /// Where the marks of superblock 0 lie. The tiny marks of all superblocks end here.
    pub(super) marks: u64,
    /// The lowest mark of a live block: TAKEN. In a pool that is open for reading only ALLOCATED,
    /// because a mark that a writer left as TAKEN is free for the next opener.
    pub(super) live_from: u8,
}

impl PuddleLines {
    /// No place.
    pub(crate) const NOWHERE: Self =
        Self { base: 0, size: 0, lines: core::ptr::null(), marks: 0, live_from: mark::TAKEN };

    /// The descriptor of the superblock that holds `addr`, and the offset in the puddle.
    ///
    /// # Safety
    /// The puddle of this place lives during `'a`, or it is `NOWHERE`.
    #[inline]
    pub(crate) unsafe fn line_at<'a>(&self, addr: u64) -> Option<(&'a DescriptorLine, u64)> {
        let offset = addr.wrapping_sub(self.base);
        if offset >= self.size {
            return None;
        }
        // SAFETY: there is a line for every superblock.
        Some((unsafe { &*self.lines.add((offset / SUPERBLOCK_SIZE) as usize) }, offset))
    }

    /// The mark of the block that begins at `offset` in the puddle, in a superblock of this
    /// geometry. `None`: no block begins there (but a place behind the last block of a superblock
    /// is answered with a mark that is never set).
    ///
    /// # Safety
    /// As `line_at`, which has said yes to `offset`.
    #[inline]
    pub(crate) unsafe fn mark<'a>(&self, geometry: Geometry, offset: u64) -> Option<&'a AtomicU8> {
        let within = offset % SUPERBLOCK_SIZE;
        let index = divide(within, geometry.reciprocal())?;
        let number = offset / SUPERBLOCK_SIZE;
        let at = if geometry.is_tiny() {
            self.marks - (self.size / SUPERBLOCK_SIZE - number) * TINY_MARKS_SIZE + index
        } else {
            self.marks + number * MARKS_SIZE + index
        };
        // SAFETY: the mark lies in the puddle's marks, or tiny marks, of this superblock: a test of
        // `Geometry` goes through all classes and offsets. Both are mapped.
        Some(unsafe { &*with_exposed_provenance::<AtomicU8>(at as usize) })
    }

    /// Whether a block with this mark belongs to a program.
    #[inline]
    pub(crate) const fn is_live(&self, mark: u8) -> bool {
        mark >= self.live_from
    }

    /// [`crate::PuddleHeap::is_live`]; also the line and its geometry.
    ///
    /// # Safety
    /// As `line_at`.
    #[inline]
    pub(crate) unsafe fn live<'a>(
        &self,
        addr: u64,
        type_id: TypeId,
    ) -> Option<(&'a DescriptorLine, Geometry)> {
        // SAFETY: the caller's.
        let (line, offset) = unsafe { self.line_at(addr) }?;
        let geometry = line.geometry();
        if line.type_id() != type_id {
            return None;
        }
        // SAFETY: the caller's.
        let mark = unsafe { self.mark(geometry, offset) }?.load(Ordering::Acquire);
        (self.is_live(mark) && line.geometry() == geometry).then_some((line, geometry))
    }
}
