//! The images of a traced heap's puddles: descriptors and marks in each say which blocks it has.
//!
//! Their meaning together is decided as the heap decides it when it adopts a puddle
//! ([`super::adopt`]): a block is held if its superblock's descriptor is whole and its mark says
//! so ([`is_kept`]), and nothing else. A large block has all its superblocks, or is none
//! ([`super::claims`]); while it is not known which, its head is *open*.
//!
//! One pass goes from superblock to superblock. It reads an image that is in memory where it lies,
//! and others [`STEP`] bytes of marks at a time, so memory is bounded.

use super::descriptor::{SaidUse, says_used};
use crate::class::{blocks_per_superblock, class_size};
use crate::image::{
    HeldBlocks, ImageBytes, ImageCodec, ImageContents, ImageExtent, ImageMarks, ImageRefused,
    ReadAt, ReadImage, STEP, VisitHeld, is_kept,
};
use cenote_layout::catalog::PuddleRecord;
use cenote_layout::heap::{Descriptor, HeapGeometry, MARKS_SIZE, SUPERBLOCK_SIZE};
use cenote_store::relocate::PoolBlocks;
use zerocopy::FromBytes;

/// Bytes of a descriptor.
const LINE: u64 = size_of::<Descriptor>() as u64;

/// Reads the images of traced heaps.
pub(crate) struct TracedImages;

impl ImageCodec for TracedImages {
    fn blocks<E>(
        _: &[PuddleRecord],
        _: ReadImage<'_, E>,
    ) -> Result<Result<Option<PoolBlocks>, ImageRefused>, E> {
        Ok(Ok(None))
    }

    fn described(puddle: &PuddleRecord) -> u64 {
        geometry(puddle).map_or(puddle.size, |of| of.first_usable * SUPERBLOCK_SIZE)
    }

    fn roots<B: ImageBytes>(puddle: &PuddleRecord, _: &B) -> Result<Option<u64>, B::Error> {
        Ok(geometry(puddle).map(|geometry| geometry.roots))
    }

    fn contents(
        image: &[u8],
        puddle: &PuddleRecord,
        _: Option<&PoolBlocks>,
    ) -> Result<ImageContents, ImageRefused> {
        let geometry = geometry(puddle)
            .ok_or_else(|| format!("{} bytes are too few for a heap puddle", puddle.size))?;
        let mut extents = Vec::new();
        let Ok(mut contents) = each_extent(&image, &geometry, &mut |extent, _| {
            extents.push(extent);
            Ok(())
        });
        contents.roots = (puddle.index == 0).then_some(geometry.roots);
        contents.extents = extents;
        Ok(contents)
    }

    fn each_held<E>(
        puddle: &PuddleRecord,
        _: Option<&PoolBlocks>,
        read: ReadAt<'_, E>,
        visit: VisitHeld<'_, E>,
    ) -> Result<(), E> {
        let Some(geometry) = geometry(puddle) else { return Ok(()) };
        let (mut kept, mut room) = (Vec::new(), Vec::new());
        each_extent(&read, &geometry, &mut |extent, marks| {
            let ImageExtent { offset: base, size, count, type_id, .. } = extent;
            let marks = match (marks.get(..count as usize), extent.marks) {
                (Some(marks), _) => marks,
                (None, ImageMarks::Bytes(at)) => read.lend(at, count, &mut room)?,
                (None, ImageMarks::Bits(_)) => &[],
            };
            kept.clear();
            kept.extend(marks.iter().map(|mark| is_kept(*mark)));
            match kept.contains(&true) {
                true => visit(&HeldBlocks { base, size, type_id, kept: &kept }),
                false => Ok(()),
            }
        })?;
        Ok(())
    }
}

fn geometry(puddle: &PuddleRecord) -> Option<HeapGeometry> {
    HeapGeometry::new(puddle.size, puddle.index == 0)
}

/// Calls `visit` with all extents of a puddle, by rising offset, and the marks of each: those of a
/// large block, or all that are not tiny marks. What else there is, is the answer, without roots
/// and extents.
fn each_extent<B: ImageBytes>(
    bytes: &B,
    geometry: &HeapGeometry,
    visit: &mut impl FnMut(ImageExtent, &[u8]) -> Result<(), B::Error>,
) -> Result<ImageContents, B::Error> {
    let mut reader = ImageReader::new(geometry);
    let (mut lines, mut marks) = (Vec::new(), Vec::new());
    let HeapGeometry { first_usable, superblocks, .. } = *geometry;
    let many = STEP / MARKS_SIZE;
    for from in (first_usable..superblocks).step_by(many as usize) {
        let count = many.min(superblocks - from);
        let lines = bytes.lend(geometry.descriptors + from * LINE, count * LINE, &mut lines)?;
        let marks =
            bytes.lend(geometry.marks + from * MARKS_SIZE, count * MARKS_SIZE, &mut marks)?;
        let each = lines.chunks_exact(LINE as usize).zip(marks.chunks_exact(MARKS_SIZE as usize));
        for (number, (line, marks)) in (from..).zip(each) {
            reader.look(number, line, marks, visit)?;
        }
    }
    Ok(reader.contents)
}

/// Goes through the superblocks of a puddle.
struct ImageReader<'g> {
    geometry: &'g HeapGeometry,
    contents: ImageContents,
    open: Option<OpenHead>,
}

/// A large block of which not all superblocks were seen.
struct OpenHead {
    /// Superblock in which it begins, and the first behind it.
    number: u64,
    end: u64,
    extent: ImageExtent,
    mark: u8,
    /// Superblocks in it that are damaged if it is none.
    damaged: u64,
}

impl<'g> ImageReader<'g> {
    fn new(geometry: &'g HeapGeometry) -> Self {
        Self { geometry, contents: ImageContents::default(), open: None }
    }

    /// Looks at one superblock, by its descriptor and its marks.
    fn look<E>(
        &mut self,
        number: u64,
        line: &[u8],
        marks: &[u8],
        visit: &mut impl FnMut(ImageExtent, &[u8]) -> Result<(), E>,
    ) -> Result<(), E> {
        let Ok(descriptor) = Descriptor::read_from_bytes(line) else { return Ok(()) };
        let usable = self.geometry.first_usable..self.geometry.superblocks;
        let said = SaidUse::of(&descriptor, number, &usable);
        // As the heap decides when it adopts the puddle: such a descriptor, or such marks, are
        // damaged.
        let says_nothing = matches!(said, SaidUse::Free | SaidUse::Hole | SaidUse::Invalid(_));
        let is_damaged = says_nothing && marks.iter().any(|mark| says_used(*mark));
        if let Some(mut open) = self.open.take() {
            let is_inside = match said {
                SaidUse::Tail { distance } => distance == number - open.number,
                SaidUse::Invalid(_) => true,
                _ => is_damaged,
            };
            open.damaged += u64::from(is_damaged);
            if is_inside {
                return self.go_on(open, number, visit);
            }
            self.contents.damaged += open.damaged;
        } else if is_damaged {
            self.contents.damaged += 1;
        }
        let (offset, outer) = (number * SUPERBLOCK_SIZE, self.geometry.marks + number * MARKS_SIZE);
        match said {
            SaidUse::Hole if !is_damaged => self.add_hole(offset),
            SaidUse::Free | SaidUse::Hole | SaidUse::Tail { .. } | SaidUse::Invalid(_) => {}
            SaidUse::Small { class, type_id } => {
                let (size, count) = (class_size(class), u64::from(blocks_per_superblock(class)));
                let at = ImageMarks::Bytes(self.geometry.marks_at(number, size));
                visit(ImageExtent { offset, size, count, type_id, marks: at }, marks)?;
            }
            SaidUse::Head { span, bytes, type_id } => {
                let at = ImageMarks::Bytes(outer);
                let extent = ImageExtent { offset, size: bytes, count: 1, type_id, marks: at };
                let mark = marks.first().copied().unwrap_or_default();
                let open = OpenHead { number, end: number + span, extent, mark, damaged: 0 };
                self.go_on(open, number, visit)?;
            }
        }
        Ok(())
    }

    /// Superblock `number` is one of a large block.
    fn go_on<E>(
        &mut self,
        open: OpenHead,
        number: u64,
        visit: &mut impl FnMut(ImageExtent, &[u8]) -> Result<(), E>,
    ) -> Result<(), E> {
        if number + 1 == open.end {
            return visit(open.extent, &[open.mark]);
        }
        self.open = Some(open);
        Ok(())
    }

    fn add_hole(&mut self, offset: u64) {
        match self.contents.holes.last_mut() {
            Some((from, len)) if *from + *len == offset => *len += SUPERBLOCK_SIZE,
            _ => self.contents.holes.push((offset, SUPERBLOCK_SIZE)),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::backing::Backing as _;
    use crate::memory::{MemoryBacking, MemoryOptions};
    use crate::traced::adopt::{Holds, contents};
    use crate::traced::superblock::PuddleHeap;
    use cenote_layout::heap::{SuperblockState, mark};
    use cenote_layout::id::{PoolId, TypeId, Uuid};
    use cenote_layout::puddle::Role;
    use core::convert::Infallible;
    use core::ptr::with_exposed_provenance_mut;
    use zerocopy::IntoBytes;

    struct Random(u64);

    impl Random {
        fn below(&mut self, end: u64) -> u64 {
            self.0 ^= self.0 << 13;
            self.0 ^= self.0 >> 7;
            self.0 ^= self.0 << 17;
            self.0 % end
        }

        /// A descriptor: most of them fit to their neighbours, some to nothing.
        fn descriptor(&mut self, head: &mut Option<(u64, u64)>, number: u64) -> Descriptor {
            let type_id = TypeId(1 + self.below(3));
            let large = |state, span, bytes| Descriptor::new(state, 0, bytes, type_id, span);
            if let Some((from, end)) = *head
                && number < end
                && self.below(8) != 0
            {
                return large(SuperblockState::LargeTail, number - from, 1);
            }
            match self.below(10) {
                0 => Descriptor::FREE,
                1 => Descriptor::hole(),
                2 => large(SuperblockState::LargeTailCut, 1 + self.below(4), 1),
                3 => Descriptor { checksum: 5, ..Descriptor::hole() },
                4..=6 => {
                    let class = self.below(60) as u32;
                    let size = if self.below(8) == 0 { 48 } else { class_size(class) };
                    Descriptor::new(SuperblockState::Small, class, size, type_id, 0)
                }
                _ => {
                    let span = 1 + self.below(4);
                    *head = Some((number, number + span));
                    let bytes = (span - u64::from(self.below(8) == 0)) * SUPERBLOCK_SIZE;
                    large(SuperblockState::LargeHead, span, bytes)
                }
            }
        }

        fn mark(&mut self) -> u8 {
            let marks = [mark::FREE, mark::FREE, mark::ALLOCATED, mark::CACHED, mark::CONDEMNED];
            marks[self.below(5) as usize]
        }
    }

    /// Fills a puddle's metadata.
    fn fill(image: &mut [u8], puddle: &PuddleRecord, random: &mut Random) {
        let of = geometry(puddle).expect("it is large enough");
        image.fill(0);
        let mut head = None;
        for number in of.first_usable..of.superblocks {
            let at = (of.descriptors + number * LINE) as usize;
            let descriptor = random.descriptor(&mut head, number);
            image[at..at + LINE as usize].copy_from_slice(descriptor.as_bytes());
            let size = descriptor.block_size.clamp(16, SUPERBLOCK_SIZE);
            let (outer, tiny) = (of.marks + number * MARKS_SIZE, of.marks_at(number, size));
            if random.below(3) != 0 {
                image[outer as usize..][..8].fill_with(|| random.mark());
                image[tiny as usize..][..8].fill_with(|| random.mark());
            }
        }
    }

    /// What the codec says that is allocated: number and type of superblock, and blocks.
    fn told(images: &[(u64, u64, TypeId, Vec<bool>)]) -> Vec<(u64, TypeId, usize)> {
        let held = images.iter().map(|(base, _, type_id, kept)| {
            (base / SUPERBLOCK_SIZE, *type_id, kept.iter().filter(|kept| **kept).count())
        });
        held.collect()
    }

    #[test]
    fn an_image_has_the_blocks_that_its_heap_would_find() {
        let options = MemoryOptions { puddle_size: 4 << 20, size_max: 16 << 20, writable: true };
        let backing = MemoryBacking::new(options);
        let crate::Extent { index, addr, size } = backing.extents()[0];
        let (uuid, pool, role) = (Uuid([1; 16]), PoolId(1), Role::Heap);
        let puddle = PuddleRecord { uuid, pool, role, index, addr, size };
        let memory = with_exposed_provenance_mut::<u8>(addr as usize);
        let (mut random, mut larges, mut damaged) = (Random(77), 0, 0);
        for round in 0..300 {
            // SAFETY: the backing's memory, which no heap and no other reference uses.
            let image = unsafe { core::slice::from_raw_parts_mut(memory, size as usize) };
            fill(image, &puddle, &mut random);
            let image = image.to_vec();
            // SAFETY: it is mapped as long as the backing lives, and for reading only here.
            let heap = unsafe { PuddleHeap::new(addr, size, index, 0, 1, false) };
            let mut heap = heap.expect("it is large enough");
            // As an opener that makes condemned blocks allocated again.
            heap.restores = true;
            let mut expected = Vec::new();
            for (number, holds) in (0..).zip(contents(&heap)) {
                match holds {
                    Holds::Small { type_id, used, .. } => {
                        expected.push((number, type_id, used as usize));
                    }
                    Holds::Quarantined { type_id, survey, .. } if survey.used > 0 => {
                        expected.push((number, type_id, survey.used as usize));
                    }
                    Holds::Large { type_id, .. } => {
                        expected.push((number, type_id, 1));
                        larges += 1;
                    }
                    Holds::Damaged(_) => damaged += 1,
                    _ => {}
                }
            }
            let read: ReadAt<'_, Infallible> = &|at, bytes| {
                bytes.copy_from_slice(&image[at as usize..][..bytes.len()]);
                Ok(())
            };
            let mut held = Vec::new();
            let Ok(()) = TracedImages::each_held(&puddle, None, read, &mut |blocks| {
                let HeldBlocks { base, size, type_id, kept } = *blocks;
                held.push((base, size, type_id, kept.to_vec()));
                Ok(())
            });
            assert_eq!(told(&held), expected, "round {round}");
            // The same by an image in memory.
            let found = TracedImages::contents(&image, &puddle, None).expect("a heap puddle");
            let by_image = found.extents.iter().filter_map(|extent| {
                let kept = extent.kept(&image, false).expect("inside");
                let ImageExtent { offset, size, type_id, .. } = *extent;
                kept.contains(&true).then_some((offset, size, type_id, kept))
            });
            assert_eq!(by_image.collect::<Vec<_>>(), held, "round {round}");
        }
        assert!(larges > 200 && damaged > 200, "{larges} {damaged}");
    }
}
