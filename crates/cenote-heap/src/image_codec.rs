//! The images of a pool's puddles, by the kind of heap that the catalog names.

use crate::image::{ImageCodec, ImageContents, ImageRefused, ReadAt, ReadImage, VisitHeld};
use crate::logged::LoggedImages;
use crate::traced::TracedImages;
use crate::wear::WearImages;
use cenote_layout::catalog::{HeapKind, PuddleRecord};
use cenote_store::relocate::PoolBlocks;

/// Asks the codec of a kind.
macro_rules! codec {
    ($heap:expr, $codec:ident => $what:expr) => {
        match $heap {
            HeapKind::Traced => {
                type $codec = TracedImages;
                $what
            }
            HeapKind::Logged => {
                type $codec = LoggedImages;
                $what
            }
            HeapKind::Wear { .. } => {
                type $codec = WearImages;
                $what
            }
        }
    };
}

/// The images of a pool's puddles: where blocks and roots lie in them.
#[derive(Clone, Copy, Debug)]
pub struct PoolImages<'a> {
    heap: HeapKind,
    blocks: Option<&'a PoolBlocks>,
}

impl<'a> PoolImages<'a> {
    /// Those of a pool with a heap of this kind. `blocks` is what [`PoolImages::blocks`] said.
    #[must_use]
    pub const fn new(heap: HeapKind, blocks: Option<&'a PoolBlocks>) -> Self {
        Self { heap, blocks }
    }

    /// The allocated blocks of a pool that has these puddles, by number, as the next opener of its
    /// heap finds them; `None`: each puddle describes its own.
    ///
    /// # Errors
    /// What `read` says. In the answer: why the heap cannot be opened.
    pub fn blocks<E>(
        heap: HeapKind,
        puddles: &[PuddleRecord],
        read: ReadImage<'_, E>,
    ) -> Result<Result<Option<PoolBlocks>, ImageRefused>, E> {
        codec!(heap, Codec => Codec::blocks(puddles, read))
    }

    /// The numbers of the puddles of such a pool that hold metadata and no block, and are to have
    /// that role. Nothing is checked but what names them; damage is said when the heap is opened.
    ///
    /// # Errors
    /// What `read` says.
    pub fn metadata_puddles<E>(
        heap: HeapKind,
        puddles: &[PuddleRecord],
        read: ReadImage<'_, E>,
    ) -> Result<Vec<u32>, E> {
        codec!(heap, Codec => Codec::metadata_puddles(puddles, read))
    }

    /// How many bytes from its start on [`PoolImages::contents`] reads of an image.
    #[must_use]
    pub fn described(heap: HeapKind, puddle: &PuddleRecord) -> u64 {
        codec!(heap, Codec => Codec::described(puddle)).min(puddle.size)
    }

    /// Where the numbered roots lie, [`cenote_layout::heap::ROOT_COUNT`] slots; `None` in a puddle
    /// that is not the root puddle, or has no room for them.
    ///
    /// # Errors
    /// What `read` says.
    pub fn roots<E>(&self, puddle: &PuddleRecord, read: ReadAt<'_, E>) -> Result<Option<u64>, E> {
        match puddle.index {
            0 => codec!(self.heap, Codec => Codec::roots(puddle, &read)),
            _ => Ok(None),
        }
    }

    /// What the image of a puddle holds.
    ///
    /// # Errors
    /// The bytes are no heap puddle of that size, or blocks lie where none can be.
    pub fn contents(
        &self,
        image: &[u8],
        puddle: &PuddleRecord,
    ) -> Result<ImageContents, ImageRefused> {
        if image.len() as u64 != puddle.size {
            return Err(format!("{} bytes are no heap puddle of {}", image.len(), puddle.size));
        }
        codec!(self.heap, Codec => Codec::contents(image, puddle, self.blocks))
    }

    /// Calls `visit` with all that is allocated in a puddle, by rising offset, and each time with
    /// blocks that lie side by side in it. Memory is bounded.
    ///
    /// # Errors
    /// What `read` or `visit` says.
    pub fn each_held<E>(
        &self,
        puddle: &PuddleRecord,
        read: ReadAt<'_, E>,
        visit: VisitHeld<'_, E>,
    ) -> Result<(), E> {
        codec!(self.heap, Codec => Codec::each_held(puddle, self.blocks, read, visit))
    }
}
