//! The contents of an image: places and types of blocks, and which of them are allocated. Each kind
//! of heap says that in its own way.

use cenote_layout::id::TypeId;
use cenote_layout::mark;
use cenote_medium::planted::{Bug, planted};

/// Blocks of one size and one type that lie side by side.
pub(super) struct Extent {
    /// Offset of the first.
    pub(super) start: usize,
    /// Bytes of each.
    pub(super) block: usize,
    pub(super) marks: Marks,
    pub(super) count: usize,
    pub(super) type_id: TypeId,
}

/// Which blocks of an extent are allocated.
#[derive(Clone, Copy)]
pub(super) enum Marks {
    /// Their marks lie at this offset of the image, one byte each.
    Bytes(usize),
    /// One bit each.
    Bits(u64),
}

/// What an image holds.
#[derive(Default)]
pub(super) struct Contents {
    pub(super) extents: Vec<Extent>,
    pub(super) damaged: u64,
    pub(super) holes: Vec<(u64, u64)>,
    /// Offset of the numbered roots, in a root puddle.
    pub(super) roots: Option<usize>,
}

impl Extent {
    /// Whether the contents of a block are needed; `all`: of each block, marked or not.
    pub(super) fn is_kept(&self, image: &[u8], number: usize, all: bool) -> bool {
        match self.marks {
            Marks::Bytes(at) => all || image.get(at + number).is_some_and(|mark| is_kept(*mark)),
            Marks::Bits(bits) => number < 64 && bits >> number & 1 == 1,
        }
    }

    /// The same of all blocks; `None`: they do not lie in the image.
    pub(super) fn kept(&self, image: &[u8], all: bool) -> Option<Vec<bool>> {
        match self.marks {
            Marks::Bytes(at) => {
                let marks = image.get(at..at + self.count)?;
                Some(marks.iter().map(|mark| all || is_kept(*mark)).collect())
            }
            Marks::Bits(_) => Some((0..self.count).map(|i| self.is_kept(image, i, all)).collect()),
        }
    }
}

/// Whether a mark says that its block's contents are needed. Condemned blocks may come back:
/// whether they do, the heap decides later.
fn is_kept(mark: u8) -> bool {
    mark == mark::ALLOCATED || mark == mark::CONDEMNED && !planted(Bug::CondemnedNotRewritten)
}
