//! The image of a puddle of a logged heap, or of a wear heap. Which blocks it has comes with the
//! job: of a logged heap other puddles say it, of a wear heap headers, whose key is in the root
//! puddle.
//!
//! In metadata nothing is to be rewritten: cells and headers name units, lines and numbers of
//! puddles. The root puddle has the roots, between them.

use super::contents::{Contents, Extent, Marks};
use cenote_heap::logged::{self, ReadImage};
use cenote_heap::wear;
use cenote_layout::catalog::{HeapKind, PuddleRecord};
use cenote_layout::header::Header;
use cenote_layout::heap::{HeapGeometry, ROOT_COUNT, RootSlot};
use cenote_layout::logged::LoggedHeader;
use cenote_layout::puddle::header_space;
use cenote_layout::wear::WearHeader;
use cenote_layout::{PAGE_SIZE, header};
use cenote_medium::planted::{Bug, LoggedBug, planted};
use cenote_store::relocate::PoolBlocks;
use core::convert::Infallible;

/// Where the numbered roots lie in a root puddle of so many bytes, by the heap's header, which is
/// at the start of `header` if there is one; `None`: it has no room for them.
pub(crate) fn roots_at(size: u64, header: &[u8]) -> Option<u64> {
    if planted(Bug::Logged(LoggedBug::RootsOfTracedHeap)) {
        return HeapGeometry::new(size, true).map(|geometry| geometry.roots);
    }
    let at = if header.starts_with(&WearHeader::MAGIC) {
        WearHeader::ROOTS
    } else {
        let header = header::read::<LoggedHeader>(header, true);
        LoggedHeader::roots_at(header.map_or(1, |header: LoggedHeader| header.guards))
    };
    let roots = header_space(size) + at;
    (roots + ROOT_COUNT * size_of::<RootSlot>() as u64 <= size).then_some(roots)
}

/// The list of the blocks of a pool whose puddles do not describe their own; `None`: they do.
/// `read` reads what the puddle of a number holds.
///
/// # Errors
/// What `read` says. In the answer: why the heap cannot be opened.
pub(crate) fn blocks_apart<E>(
    heap: HeapKind,
    puddles: &[PuddleRecord],
    read: ReadImage<'_, E>,
) -> Result<core::result::Result<Option<PoolBlocks>, String>, E> {
    let text = |refused: &dyn core::fmt::Display| refused.to_string();
    Ok(match heap {
        HeapKind::Traced => Ok(None),
        HeapKind::Logged => logged::blocks_in(puddles, read)?.map(Some).map_err(|e| text(&e)),
        HeapKind::Wear { .. } => wear::blocks_in(puddles, read)?.map(Some).map_err(|e| text(&e)),
    })
}

/// The blocks of a root puddle with a wear heap, which has the key of its headers: so a protected
/// one is sealed anew before the list of the pool's blocks can be read. `None`: it is another one.
fn own_blocks(image: &[u8], puddle: &PuddleRecord) -> Result<Option<PoolBlocks>, String> {
    let header = image.get(header_space(puddle.size) as usize..).unwrap_or_default();
    if puddle.index != 0 || !header.starts_with(&WearHeader::MAGIC) {
        return Ok(None);
    }
    let read: ReadImage<'_, Infallible> = &mut |_, offset, bytes| {
        let held = image.get(offset as usize..).unwrap_or_default();
        bytes.iter_mut().zip(held).for_each(|(byte, held)| *byte = *held);
        Ok(())
    };
    let Ok(found) = wear::blocks_in(core::slice::from_ref(puddle), read);
    found.map(Some).map_err(|refused| refused.to_string())
}

/// What the list of the pool's blocks says of an image.
pub(super) fn contents(
    image: &[u8],
    puddle: &PuddleRecord,
    blocks: &PoolBlocks,
) -> Result<Contents, String> {
    let size = puddle.size;
    if image.len() as u64 != size {
        return Err(format!("{} bytes are no heap puddle of {size}", image.len()));
    }
    let roots = match puddle.index {
        0 => {
            let header = image.get(header_space(size) as usize..).unwrap_or_default();
            let header = &header[..header.len().min(PAGE_SIZE as usize)];
            let none = "it is too small for the roots of a pool";
            Some(roots_at(size, header).ok_or(none)? as usize)
        }
        _ => None,
    };
    let own = own_blocks(image, puddle)?;
    let mut extents = Vec::new();
    for run in own.as_ref().unwrap_or(blocks).of(puddle.index) {
        let bytes = run.size.saturating_mul(u64::from(run.count()));
        let end = run.offset.saturating_add(bytes);
        if run.size == 0 || run.offset < header_space(size) || end > size {
            return Err(format!("a block of it lies at {:#x}, where none can be", run.offset));
        }
        let first = planted(Bug::Logged(LoggedBug::FirstOfRunRewritten));
        extents.push(Extent {
            start: run.offset as usize,
            block: run.size as usize,
            marks: Marks::Bits(if first { 1 } else { run.used }),
            count: run.count() as usize,
            type_id: run.type_id,
        });
    }
    Ok(Contents { extents, roots, ..Contents::default() })
}
