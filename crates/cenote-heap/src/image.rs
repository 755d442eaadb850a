//! Images: what puddles hold that no heap uses. They lie in files, in an archive, or sealed; a
//! pool is moved, copied or archived by them.
//!
//! Each kind of heap implements `ImageCodec` beside its heap; [`crate::PoolImages`] asks the one
//! that the catalog names. So code that moves pools knows where blocks and roots lie, and no
//! layout.
//!
//! Bytes may come from a hostile archive: nothing in them is believed. What is told lies in the
//! puddle.

use cenote_layout::PAGE_SIZE;
use cenote_layout::catalog::PuddleRecord;
use cenote_layout::heap::{HeapGeometry, ROOT_COUNT, RootSlot};
use cenote_layout::id::TypeId;
use cenote_layout::mark;
use cenote_layout::puddle::header_space;
use cenote_medium::planted::{Bug, LoggedBug, planted};
use cenote_store::relocate::{BlockRun, PoolBlocks};
use core::convert::Infallible;
use core::ops::Range;

/// Bytes that are read at a time.
pub(crate) const STEP: u64 = 1 << 20;

/// Reads what a puddle of a pool holds, from an offset on.
pub type ReadImage<'a, E> = &'a mut dyn FnMut(&PuddleRecord, u64, &mut [u8]) -> Result<(), E>;

/// Reads what one puddle holds, from an offset on.
pub type ReadAt<'a, E> = &'a dyn Fn(u64, &mut [u8]) -> Result<(), E>;

/// Told of blocks that lie side by side.
pub type VisitHeld<'a, E> = &'a mut dyn FnMut(&HeldBlocks<'_>) -> Result<(), E>;

/// Why an image is refused, or a heap cannot be opened, for a message.
pub type ImageRefused = String;

/// Blocks of one size and one type that lie side by side.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ImageExtent {
    /// Offset of the first, in the puddle.
    pub offset: u64,
    /// Bytes of each, at least one.
    pub size: u64,
    /// How many.
    pub count: u64,
    /// What they hold.
    pub type_id: TypeId,
    /// Which of them are allocated.
    pub marks: ImageMarks,
}

/// Which blocks of an extent are allocated.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ImageMarks {
    /// Their marks lie at this offset of the image, one byte each.
    Bytes(u64),
    /// One bit each, of at most 64 blocks.
    Bits(u64),
}

/// What an image holds.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct ImageContents {
    /// By rising offset; none overlaps another.
    pub extents: Vec<ImageExtent>,
    /// Superblocks that cannot be read.
    pub damaged: u64,
    /// Offset and bytes of what may be a hole in the file.
    pub holes: Vec<(u64, u64)>,
    /// Offset of the numbered roots, in a root puddle.
    pub roots: Option<u64>,
}

/// Blocks that lie side by side, at least one of them allocated.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct HeldBlocks<'a> {
    /// Offset of the first block's place in the puddle.
    pub base: u64,
    /// Bytes of a block; one by itself may have any size.
    pub size: u64,
    /// What they hold.
    pub type_id: TypeId,
    /// Which are allocated, by number.
    pub kept: &'a [bool],
}

/// What a kind of heap says of its images.
pub(crate) trait ImageCodec {
    /// The allocated blocks of the pool that has these puddles, by number, as the next opener of
    /// its heap finds them; `None`: each puddle describes its own.
    fn blocks<E>(
        puddles: &[PuddleRecord],
        read: ReadImage<'_, E>,
    ) -> Result<Result<Option<PoolBlocks>, ImageRefused>, E>;

    /// The numbers of the puddles that hold metadata and no block, and are to have that role.
    fn metadata_puddles<E>(_: &[PuddleRecord], _: ReadImage<'_, E>) -> Result<Vec<u32>, E> {
        Ok(Vec::new())
    }

    /// How many bytes from its start on are read to tell what an image holds.
    fn described(puddle: &PuddleRecord) -> u64;

    /// Where the numbered roots lie in a root puddle; `None`: it has no room for them.
    fn roots<B: ImageBytes>(puddle: &PuddleRecord, bytes: &B) -> Result<Option<u64>, B::Error>;

    /// What an image of the puddle's size holds. `blocks` are those of [`ImageCodec::blocks`].
    fn contents(
        image: &[u8],
        puddle: &PuddleRecord,
        blocks: Option<&PoolBlocks>,
    ) -> Result<ImageContents, ImageRefused> {
        listed::<Self>(image, puddle, blocks)
    }

    /// Calls `visit` with all that is allocated in a puddle, by rising offset. Memory is bounded.
    fn each_held<E>(
        puddle: &PuddleRecord,
        blocks: Option<&PoolBlocks>,
        _: ReadAt<'_, E>,
        visit: VisitHeld<'_, E>,
    ) -> Result<(), E> {
        let mut kept = Vec::new();
        let runs = blocks.map_or(&[][..], |blocks| blocks.of(puddle.index));
        runs.iter().try_for_each(|run| {
            let BlockRun { offset: base, size, used, type_id } = *run;
            kept.clear();
            kept.extend((0..run.count()).map(|block| used >> block & 1 == 1));
            visit(&HeldBlocks { base, size, type_id, kept: &kept })
        })
    }
}

/// What an image holds of which a list says the blocks.
pub(crate) fn listed<C: ImageCodec + ?Sized>(
    image: &[u8],
    puddle: &PuddleRecord,
    blocks: Option<&PoolBlocks>,
) -> Result<ImageContents, ImageRefused> {
    let blocks = blocks.ok_or("the list of its pool's blocks is not known")?;
    let mut roots = None;
    if puddle.index == 0 {
        let Ok(found) = C::roots(puddle, &image);
        roots = Some(found.ok_or("it is too small for the roots of a pool")?);
    }
    let mut extents = Vec::new();
    for run in blocks.of(puddle.index) {
        let BlockRun { offset, size, used, type_id } = *run;
        let count = u64::from(run.count());
        let end = offset.saturating_add(size.saturating_mul(count));
        if size == 0 || offset < header_space(puddle.size) || end > puddle.size {
            return Err(format!("a block of it lies at {offset:#x}, where none can be"));
        }
        let first = planted(Bug::Logged(LoggedBug::FirstOfRunRewritten));
        let marks = ImageMarks::Bits(if first { 1 } else { used });
        extents.push(ImageExtent { offset, size, count, type_id, marks });
    }
    Ok(ImageContents { extents, roots, ..ImageContents::default() })
}

/// Where the roots lie that begin `behind` bytes behind the header space; `None`: there is no room.
pub(crate) fn roots_behind(puddle: &PuddleRecord, behind: u64) -> Option<u64> {
    let size = puddle.size;
    if planted(Bug::Logged(LoggedBug::RootsOfTracedHeap)) {
        return HeapGeometry::new(size, true).map(|geometry| geometry.roots);
    }
    let roots = header_space(size) + behind;
    (roots + ROOT_COUNT * size_of::<RootSlot>() as u64 <= size).then_some(roots)
}

impl ImageExtent {
    /// The bytes of all blocks.
    #[must_use]
    pub const fn range(&self) -> Range<usize> {
        let from = self.offset as usize;
        from..from + (self.count * self.size) as usize
    }

    /// The bytes of one block.
    #[must_use]
    #[inline]
    pub const fn range_of(&self, number: u64) -> Range<usize> {
        let from = (self.offset + number * self.size) as usize;
        from..from + self.size as usize
    }

    /// Whether the contents of a block are needed; `all`: of each block, marked or not.
    #[must_use]
    #[inline]
    pub fn is_kept(&self, image: &[u8], number: u64, all: bool) -> bool {
        match self.marks {
            ImageMarks::Bytes(at) => {
                all || image.get((at + number) as usize).is_some_and(|mark| is_kept(*mark))
            }
            ImageMarks::Bits(bits) => number < 64 && bits >> number & 1 == 1,
        }
    }

    /// The same of all blocks; `None`: they do not lie in the image.
    #[must_use]
    pub fn kept(&self, image: &[u8], all: bool) -> Option<Vec<bool>> {
        match self.marks {
            ImageMarks::Bytes(at) => {
                let marks = image.get(at as usize..(at + self.count) as usize)?;
                Some(marks.iter().map(|mark| all || is_kept(*mark)).collect())
            }
            ImageMarks::Bits(_) => {
                Some((0..self.count).map(|i| self.is_kept(image, i, all)).collect())
            }
        }
    }
}

/// Whether a mark says that its block's contents are needed: it is ALLOCATED, or illegal and live
/// to a writer of the pool ([`mark::is_live`]); a large block with such a mark is out of use, and
/// is looked at all the same. Condemned blocks may come back: whether they do, the heap decides
/// later.
#[inline]
pub(crate) fn is_kept(mark: u8) -> bool {
    mark > mark::TAKEN || mark == mark::CONDEMNED && !planted(Bug::CondemnedNotRewritten)
}

/// Lends bytes of one puddle's image. All that is asked for lies in the puddle.
pub(crate) trait ImageBytes {
    /// Why they cannot be read.
    type Error;

    /// `len` bytes from `at` on; in `room`, if they have to be read.
    fn lend<'a>(
        &'a self,
        at: u64,
        len: u64,
        room: &'a mut Vec<u8>,
    ) -> Result<&'a [u8], Self::Error>;
}

impl ImageBytes for &[u8] {
    type Error = Infallible;

    #[inline]
    fn lend<'a>(&'a self, at: u64, len: u64, _: &'a mut Vec<u8>) -> Result<&'a [u8], Infallible> {
        Ok(self.get(at as usize..(at + len) as usize).unwrap_or_default())
    }
}

impl<E> ImageBytes for ReadAt<'_, E> {
    type Error = E;

    fn lend<'a>(&'a self, at: u64, len: u64, room: &'a mut Vec<u8>) -> Result<&'a [u8], E> {
        room.resize(len as usize, 0);
        self(at, room)?;
        Ok(room.as_slice())
    }
}

/// Whether the puddles have nothing in their bodies, but for the page of the heap's header: a pool
/// in shadowed mode that was never psynced has no heap yet.
pub(crate) fn is_empty<E>(puddles: &[PuddleRecord], read: ReadImage<'_, E>) -> Result<bool, E> {
    let mut bytes = vec![0; STEP as usize];
    for puddle in puddles {
        let header = if puddle.index == 0 { PAGE_SIZE } else { 0 };
        let mut at = header_space(puddle.size) + header;
        while at < puddle.size {
            let bytes = &mut bytes[..STEP.min(puddle.size - at) as usize];
            read(puddle, at, bytes)?;
            if bytes.iter().any(|&byte| byte != 0) {
                return Ok(false);
            }
            at += bytes.len() as u64;
        }
    }
    Ok(true)
}
