//! The outline of a traced heap's puddle: all that code below the heaps has to know of it.

use crate::heap::{Descriptor, HeapGeometry, LOST_BYTE, MEMBERS_SIZE, SUPERBLOCK_SIZE};
use core::ops::Range;
use zerocopy::IntoBytes;

/// Whether a heap has room in a puddle of `size` bytes. `root` says whether it is a pool's root
/// puddle. A puddle of each kind of heap has at least what a traced heap needs.
#[must_use]
pub const fn has_room(size: u64, root: bool) -> bool {
    HeapGeometry::new(size, root).is_some()
}

/// The parts of a puddle. Offsets count from the puddle's start, in bytes.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct HeapOutline {
    descriptors: Range<u64>,
    members: Range<u64>,
    end: u64,
}

impl HeapOutline {
    /// Of a heap puddle of `size` bytes; `None` if that is too small.
    #[must_use]
    pub const fn new(size: u64, root: bool) -> Option<Self> {
        let Some(geometry) = HeapGeometry::new(size, root) else { return None };
        let HeapGeometry { descriptors, tiny, members, first_usable, .. } = geometry;
        Some(Self {
            descriptors: descriptors..tiny,
            members: members..members + MEMBERS_SIZE,
            end: first_usable * SUPERBLOCK_SIZE,
        })
    }

    /// From the puddle's start to the first block.
    #[must_use]
    pub const fn metadata_len(&self) -> u64 {
        self.end
    }

    /// The processes that have the pool open, in a root puddle. Zeros: there is none.
    #[must_use]
    pub const fn members(&self) -> Range<u64> {
        self.members.start..self.members.end
    }

    /// Fills memory that replaces a page of metadata, which lies at an offset of the puddle: no
    /// block and no free superblock is there, and marks are illegal.
    pub fn fill_lost(&self, offset: u64, page: &mut [u8]) {
        page.fill(LOST_BYTE);
        let line = Descriptor::LOST;
        for (at, place) in (offset..).step_by(size_of::<Descriptor>()).zip(lines(page)) {
            if self.descriptors.contains(&at) {
                place.copy_from_slice(line.as_bytes());
            }
        }
    }
}

/// The whole descriptors that a page has room for.
fn lines(page: &mut [u8]) -> impl Iterator<Item = &mut [u8]> {
    page.chunks_exact_mut(size_of::<Descriptor>())
}

#[cfg(test)]
mod tests {
    use super::*;
    use zerocopy::FromBytes;

    #[test]
    fn a_lost_page_has_descriptors_where_they_lie_and_illegal_marks_elsewhere() {
        let (size, of) = (2 << 20, HeapOutline::new(2 << 20, true).unwrap());
        assert!(has_room(size, true) && !has_room(64 << 10, false));
        assert!(HeapOutline::new(64 << 10, false).is_none());
        let mut page = [0; 4096];
        of.fill_lost(of.descriptors.start, &mut page);
        for line in page.chunks_exact(size_of::<Descriptor>()) {
            assert_eq!(Descriptor::read_from_bytes(line).unwrap(), Descriptor::LOST);
        }
        of.fill_lost(of.descriptors.end, &mut page);
        assert!(page.iter().all(|byte| *byte == LOST_BYTE));
        assert!(of.members().end <= of.metadata_len() && of.metadata_len() < size);
    }
}
