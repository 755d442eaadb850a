//! The image of a puddle of a logged heap. It has blocks and nothing else, or metadata. Which
//! blocks it has is said in other puddles, and comes with the job.
//!
//! In metadata nothing is to be rewritten: cells name units and numbers of puddles. The root puddle
//! has the roots, between them.

use super::contents::{Contents, Extent, Marks};
use cenote_layout::catalog::PuddleRecord;
use cenote_layout::heap::{HeapGeometry, ROOT_COUNT, RootSlot};
use cenote_layout::logged::LoggedHeader;
use cenote_layout::puddle::header_space;
use cenote_layout::{PAGE_SIZE, header};
use cenote_medium::planted::{Bug, LoggedBug, planted};
use cenote_store::relocate::PoolBlocks;

/// Where the numbered roots lie in a root puddle of so many bytes, by the heap's header, which is
/// at the start of `header` if there is one; `None`: it has no room for them.
pub(crate) fn roots_at(size: u64, header: &[u8]) -> Option<u64> {
    if planted(Bug::Logged(LoggedBug::RootsOfTracedHeap)) {
        return HeapGeometry::new(size, true).map(|geometry| geometry.roots);
    }
    let header = header::read::<LoggedHeader>(header, true);
    let guards = header.map_or(1, |header: LoggedHeader| header.guards);
    let roots = header_space(size) + LoggedHeader::roots_at(guards);
    (roots + ROOT_COUNT * size_of::<RootSlot>() as u64 <= size).then_some(roots)
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
    let mut extents = Vec::new();
    for run in blocks.of(puddle.index) {
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
