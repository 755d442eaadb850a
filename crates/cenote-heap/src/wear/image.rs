//! Which blocks of a wear heap are allocated, asked of puddles that no heap uses: in files, in an
//! archive, or sealed (PUD-8).
//!
//! Addresses are in no header: checks name a line by the number of its puddle, and by its own. So
//! headers are right wherever their puddles lie. The code that scans a puddle reads them, so the
//! next opener of the heap finds the same blocks. Nothing is changed; lines whose header is damaged
//! have no block.
//!
//! Bytes may come from a hostile archive: each block that is listed lies in a segment of its
//! puddle.

use super::error::WearError;
use super::headers::{SegmentFound, TableLine, read_segment, read_table_line};
use super::lines::LineSource;
use crate::image::{
    ImageBytes, ImageCodec, ImageContents, ImageRefused, ReadImage, is_empty, listed, roots_behind,
};
use cenote_layout::catalog::PuddleRecord;
use cenote_layout::puddle::header_space;
use cenote_layout::wear::{LineWords, WEAR_LINE, WearGeometry, WearHeader, WearRecord};
use cenote_layout::{PAGE_SIZE, header};
use cenote_store::relocate::PoolBlocks;
use core::cell::RefCell;
use core::convert::Infallible;

/// Bytes that are read at a time.
const STEP: u64 = 64 << 10;

/// The allocated blocks of the pool that has these puddles, by number, as the next opener of its
/// heap finds them.
///
/// # Errors
/// What `read` says. In the answer: why the heap cannot be opened.
pub fn blocks_in<E>(
    puddles: &[PuddleRecord],
    read: ReadImage<'_, E>,
) -> Result<Result<PoolBlocks, WearError>, E> {
    let mut blocks = PoolBlocks::default();
    let Some(root) = puddles.first() else { return Ok(Err(WearError::NoPuddle)) };
    if root.size <= header_space(root.size) + WearHeader::ROOTS_END {
        return Ok(Err(WearError::Size { puddle: root.index, size: root.size }));
    }
    let mut page = vec![0; PAGE_SIZE as usize];
    read(root, header_space(root.size), &mut page)?;
    let header: WearHeader = match header::read(&page, true) {
        Ok(header) => header,
        // A pool in shadowed mode that was never psynced has no heap yet.
        Err(_) if is_empty(puddles, read)? => return Ok(Ok(blocks)),
        Err(error) => return Ok(Err(error.into())),
    };
    for puddle in puddles {
        let roots = if puddle.index == 0 { WearHeader::ROOTS_END } else { 0 };
        let from = header_space(puddle.size) + roots;
        let Some(geometry) = WearGeometry::new(from, puddle.size, header.chunk_log) else {
            continue;
        };
        let buffer = RefCell::new(ImageBuffer { read, at: 0, bytes: Vec::new(), failed: None });
        let lines = ImageLines { puddle, key: header.key, buffer };
        list(&lines, &geometry, &mut blocks);
        if let Some(error) = lines.buffer.into_inner().failed {
            return Err(error);
        }
    }
    Ok(Ok(blocks))
}

/// Reads the images of wear heaps. Headers name lines and numbers of puddles: of metadata, roots
/// alone are to be rewritten.
pub(crate) struct WearImages;

impl ImageCodec for WearImages {
    fn blocks<E>(
        puddles: &[PuddleRecord],
        read: ReadImage<'_, E>,
    ) -> Result<Result<Option<PoolBlocks>, ImageRefused>, E> {
        Ok(blocks_in(puddles, read)?.map(Some).map_err(|refused| refused.to_string()))
    }

    /// The root puddle has the key of all headers, so its own tell its blocks; of others nothing
    /// is read.
    fn described(puddle: &PuddleRecord) -> u64 {
        if puddle.index == 0 { puddle.size } else { header_space(puddle.size) }
    }

    fn roots<B: ImageBytes>(puddle: &PuddleRecord, _: &B) -> Result<Option<u64>, B::Error> {
        Ok(roots_behind(puddle, WearHeader::ROOTS))
    }

    /// A root puddle that is protected is sealed anew before the list of the pool's blocks can be
    /// read: its own headers count.
    fn contents(
        image: &[u8],
        puddle: &PuddleRecord,
        blocks: Option<&PoolBlocks>,
    ) -> Result<ImageContents, ImageRefused> {
        if puddle.index != 0 {
            return listed::<Self>(image, puddle, blocks);
        }
        let read: ReadImage<'_, Infallible> = &mut |_, offset, bytes| {
            let held = image.get(offset as usize..).unwrap_or_default();
            bytes.iter_mut().zip(held).for_each(|(byte, held)| *byte = *held);
            Ok(())
        };
        let Ok(own) = blocks_in(core::slice::from_ref(puddle), read);
        let own = own.map_err(|refused| refused.to_string())?;
        listed::<Self>(image, puddle, Some(&own))
    }
}

/// Lists the allocated blocks of a puddle.
fn list<E>(lines: &ImageLines<'_, '_, E>, geometry: &WearGeometry, blocks: &mut PoolBlocks) {
    let at = |chunk: u32| geometry.first + chunk * geometry.chunk_lines;
    let mut begun = 0;
    while begun < geometry.chunks {
        let count = match read_table_line(lines, geometry, begun) {
            TableLine::Begins(count) | TableLine::Damaged(count) => count,
            TableLine::End(_) => return,
        };
        let (first, end) = (at(begun), at(begun + count));
        begun += count;
        let is_last = begun == geometry.chunks
            || matches!(read_table_line(lines, geometry, begun), TableLine::End(_));
        let SegmentFound { blocks: found, .. } = read_segment(lines, first, end, is_last);
        for (line, record) in found {
            let WearRecord::Allocated { lines: len, type_id } = record else { continue };
            let (offset, size) = (u64::from(line) + 1, u64::from(len) - 1);
            blocks.add(lines.puddle.index, offset * WEAR_LINE, size * WEAR_LINE, type_id);
        }
    }
}

/// Lines of a puddle that is read.
struct ImageLines<'r, 'p, E> {
    puddle: &'p PuddleRecord,
    key: u64,
    buffer: RefCell<ImageBuffer<'r, E>>,
}

struct ImageBuffer<'r, E> {
    read: ReadImage<'r, E>,
    /// Where the bytes lie in the puddle.
    at: u64,
    bytes: Vec<u8>,
    failed: Option<E>,
}

impl<E> LineSource for ImageLines<'_, '_, E> {
    fn key(&self) -> (u64, u32) {
        (self.key, self.puddle.index)
    }

    fn words(&self, line: u32) -> Option<LineWords> {
        let at = u64::from(line) * WEAR_LINE;
        let end = at + WEAR_LINE;
        let mut buffer = self.buffer.borrow_mut();
        let ImageBuffer { read, at: from, bytes, failed } = &mut *buffer;
        if failed.is_some() || end > self.puddle.size {
            return None;
        }
        if at < *from || end > *from + bytes.len() as u64 {
            *from = at / PAGE_SIZE * PAGE_SIZE;
            bytes.resize(STEP.min(self.puddle.size - *from) as usize, 0);
            if let Err(error) = read(self.puddle, *from, bytes) {
                *failed = Some(error);
                return None;
            }
        }
        let (words, _) = bytes.get((at - *from) as usize..)?.as_chunks::<8>();
        let words = words.first_chunk::<8>()?;
        Some(words.map(u64::from_le_bytes))
    }
}
