//! Which blocks of a heap are allocated, asked of puddles that no heap uses: in files, in an
//! archive, or sealed (PUD-8).
//!
//! Addresses are in no byte of metadata: cells name units, slots, lanes, and puddles by their
//! number in the pool. So metadata are right wherever their puddles lie, and a copy of them in
//! private memory is as good as they are. The next opener of the heap would undo a change that a
//! crash broke off, and end transactions; the same code does that to the copy. The blocks allocated
//! in the copy are those that the next opener will find. Nothing here changes a puddle.
//!
//! Bytes may come from a hostile archive. All puddles have memory in the copy, also those that the
//! metadata do not name. A block counts only if it lies in the body of its puddle.

use super::error::{Damage, LoggedError, SubHeapError};
use super::members::{LoggedHeap, LoggedOptions};
use crate::backing::{Backing, BackingError, Extent};
use crate::image::{ImageBytes, ImageCodec, ImageRefused, ReadImage, is_empty, roots_behind};
use cenote_layout::catalog::PuddleRecord;
use cenote_layout::logged::{
    CELL_SIZE, Cell, LoggedHeader, PARTS_MAX, PARTS_OFFSET, PartEntry, RawCell, SUB_HEAPS_MAX,
    SubHeapWord,
};
use cenote_layout::puddle::header_space;
use cenote_layout::{PAGE_SIZE, SLOT_SIZE, header};
use cenote_medium::planted::{Bug, LoggedBug, planted};
use cenote_protect::Protection;
use cenote_store::relocate::PoolBlocks;
use cenote_sys::memory::{self, OwnedRegion};
use core::ptr::null_mut;
use core::sync::atomic::AtomicPtr;
use std::collections::BTreeSet;

/// The allocated blocks of the pool that has these puddles, by number, as the next opener of its
/// heap finds them. All metadata are looked at.
///
/// # Errors
/// What `read` says. In the answer: why the heap cannot be opened, or which cell is damaged.
pub fn blocks_in<E>(
    puddles: &[PuddleRecord],
    read: ReadImage<'_, E>,
) -> Result<Result<PoolBlocks, LoggedError>, E> {
    let mut copy = match Copy::of(puddles) {
        Ok(copy) => copy,
        Err(refused) => return Ok(Err(refused)),
    };
    if !copy.fill(puddles, read)? && is_empty(puddles, read)? {
        return Ok(Ok(PoolBlocks::default()));
    }
    Ok(copy.blocks())
}

/// Reads the images of logged heaps. In metadata nothing is to be rewritten but roots: cells name
/// units and numbers of puddles.
pub(crate) struct LoggedImages;

impl ImageCodec for LoggedImages {
    fn blocks<E>(
        puddles: &[PuddleRecord],
        read: ReadImage<'_, E>,
    ) -> Result<Result<Option<PoolBlocks>, ImageRefused>, E> {
        Ok(blocks_in(puddles, read)?.map(Some).map_err(|refused| refused.to_string()))
    }

    fn metadata_puddles<E>(
        puddles: &[PuddleRecord],
        read: ReadImage<'_, E>,
    ) -> Result<Vec<u32>, E> {
        metadata_puddles_in(puddles, read)
    }

    fn described(puddle: &PuddleRecord) -> u64 {
        let header = if puddle.index == 0 { PAGE_SIZE } else { 0 };
        puddle.size.min(header_space(puddle.size) + header)
    }

    fn roots<B: ImageBytes>(puddle: &PuddleRecord, bytes: &B) -> Result<Option<u64>, B::Error> {
        let mut room = Vec::new();
        let page = bytes.lend(header_space(puddle.size), PAGE_SIZE, &mut room)?;
        let header = header::read::<LoggedHeader>(page, true);
        let guards = header.map_or(1, |header: LoggedHeader| header.guards);
        Ok(roots_behind(puddle, LoggedHeader::roots_at(guards)))
    }
}

/// The numbers of the puddles that hold metadata and no block, and are to have that role: none of a
/// heap without guard pages, whose puddles all have the role of blocks. Nothing is checked but what
/// names them; damage is said when the heap is opened.
fn metadata_puddles_in<E>(puddles: &[PuddleRecord], read: ReadImage<'_, E>) -> Result<Vec<u32>, E> {
    let Ok(mut copy) = Copy::of(puddles) else { return Ok(Vec::new()) };
    copy.fill(puddles, read)?;
    let Named { guards, metadata, data } = copy.named;
    let apart = metadata.difference(&data).copied();
    Ok(apart.filter(|&puddle| puddle != 0 && guards > 0).collect())
}

/// A puddle in private memory, of zeros where nothing was copied.
struct CopiedPuddle {
    extent: Extent,
    region: OwnedRegion,
    slot: AtomicPtr<()>,
}

/// Puddles of a pool, of which the metadata are copied.
struct Copy {
    places: Vec<CopiedPuddle>,
    named: Named,
}

/// Numbers of puddles that metadata name, for what they hold.
#[derive(Default)]
struct Named {
    /// Guard pages of the heap.
    guards: u32,
    metadata: BTreeSet<u32>,
    data: BTreeSet<u32>,
}

impl Copy {
    fn of(puddles: &[PuddleRecord]) -> Result<Self, LoggedError> {
        let place = |puddle: &PuddleRecord| {
            let len = puddle.size.saturating_add(SLOT_SIZE);
            // What is said of values of a protected pool does not come to light either.
            let region = memory::hidden(len as usize).map_err(|error| BackingError::Store {
                doing: "copying metadata",
                source: Box::new(error),
            })?;
            let addr = (region.as_ptr().expose_provenance() as u64).next_multiple_of(SLOT_SIZE);
            let extent = Extent { index: puddle.index, addr, size: puddle.size };
            Ok(CopiedPuddle { extent, region, slot: AtomicPtr::new(null_mut()) })
        };
        let places = puddles.iter().map(place).collect::<Result<_, LoggedError>>()?;
        Ok(Self { places, named: Named::default() })
    }

    /// A part of a puddle's memory; empty if it is not all in it.
    fn bytes(&mut self, puddle: u32, from: u64, len: u64) -> &mut [u8] {
        let place = self.places.iter().find(|place| place.extent.index == puddle);
        let inside = |place: &&CopiedPuddle| {
            from.checked_add(len).is_some_and(|end| end <= place.extent.size)
        };
        let Some(CopiedPuddle { extent, region, .. }) = place.filter(inside) else {
            return &mut [];
        };
        let start = extent.addr + from - region.as_ptr().expose_provenance() as u64;
        // SAFETY: the puddle lies in the region, which is this value's alone, and the range in the
        // puddle.
        unsafe {
            core::slice::from_raw_parts_mut(region.as_ptr().add(start as usize), len as usize)
        }
    }

    /// The word at an offset of a puddle; 0 outside.
    fn word(&mut self, puddle: u32, at: u64) -> u64 {
        let word = self.bytes(puddle, at, 8).first_chunk();
        word.map_or(0, |word| u64::from_le_bytes(*word))
    }

    /// Copies the root's words, and the metadata of all sub-heaps that they name. Says whether
    /// there is a heap.
    fn fill<E>(&mut self, puddles: &[PuddleRecord], read: ReadImage<'_, E>) -> Result<bool, E> {
        let mut copied = |copy: &mut Self, puddle: u32, from: u64, len: u64| {
            let bytes = copy.bytes(puddle, from, len);
            match puddles.iter().find(|record| record.index == puddle) {
                Some(record) if !bytes.is_empty() => read(record, from, bytes),
                _ => Ok(()),
            }
        };
        let Some(root) = puddles.first() else { return Ok(false) };
        let first = header_space(root.size);
        copied(self, root.index, first, LoggedHeader::SUB_HEAPS)?;
        let header = header::read::<LoggedHeader>(self.bytes(root.index, first, PAGE_SIZE), true);
        let found = header.ok().and_then(|header| Some((header.geometry()?, header.guards)));
        let Some((geometry, guards)) = found else { return Ok(false) };
        self.named.guards = guards;
        let len = geometry.metadata_len.next_multiple_of(PAGE_SIZE);
        for number in 0..SUB_HEAPS_MAX {
            let at = first + LoggedHeader::WORDS + u64::from(number) * 8;
            let named = SubHeapWord::decode(self.word(root.index, at), number);
            let Some(SubHeapWord { puddle, page }) = named else { continue };
            let from = u64::from(page) * PAGE_SIZE;
            copied(self, puddle, from, len)?;
            self.named.metadata.insert(puddle);
            // An entry that is being stored cannot be read: the change is undone.
            for index in 0..PARTS_MAX {
                let at = from + PARTS_OFFSET + u64::from(index) * CELL_SIZE;
                let raw: RawCell = core::array::from_fn(|i| self.word(puddle, at + i as u64 * 8));
                let part = PartEntry::from_raw(raw, PartEntry::cell(index));
                match part {
                    Some(part) if part.is_data() => drop(self.named.data.insert(part.puddle)),
                    Some(part) => {
                        self.named.metadata.insert(part.puddle);
                        copied(self, part.puddle, part.from(), part.len())?;
                    }
                    None => {}
                }
            }
        }
        Ok(true)
    }

    /// What is allocated when the next opener has done its work.
    fn blocks(self) -> Result<PoolBlocks, LoggedError> {
        let extents = self.extents();
        let root = extents.first().ok_or(LoggedError::NoPuddle)?;
        let protection = Protection::None;
        let options =
            LoggedOptions { sub_heaps: 1, protection, ..LoggedOptions::for_pool(root.size) };
        let heap = LoggedHeap::open_pool(self, &options)?;
        let mut blocks = PoolBlocks::default();
        for (number, sub_heap) in heap.sub_heaps() {
            let damaged =
                |damage| LoggedError::SubHeap { number, source: SubHeapError::Damaged(damage) };
            let report = sub_heap.check();
            if let Some(damage) = report.damage.first() {
                return Err(damaged(*damage));
            }
            let mut found = report.blocks;
            found.sort_unstable_by_key(|block| block.addr);
            for block in found {
                let here = |extent: &&Extent| block.addr.wrapping_sub(extent.addr) < extent.size;
                let extent = extents.iter().find(here).filter(|extent| extent.index != 0);
                let at = extent.map(|extent| (extent, block.addr - extent.addr));
                let inside = |(extent, at): &(&Extent, u64)| {
                    *at >= header_space(extent.size) && at.saturating_add(block.size) <= extent.size
                };
                let (extent, at) = at.filter(inside).ok_or_else(|| {
                    let offset = PartEntry::cell(0) * CELL_SIZE;
                    damaged(Damage { offset, what: "a block does not lie in the body of a puddle" })
                })?;
                blocks.add(extent.index, at, block.size, block.type_id);
            }
        }
        Ok(blocks)
    }
}

// SAFETY: the regions live as long as this, each puddle has one of its own, which is mapped for
// writing, and only the heap that is opened here uses them.
unsafe impl Backing for Copy {
    fn extents(&self) -> Vec<Extent> {
        self.places.iter().map(|place| place.extent).collect()
    }

    fn map(&self, _: &Extent) -> Result<(), BackingError> {
        Ok(())
    }

    fn take(&self, size: u64) -> Result<Extent, BackingError> {
        let bytes = self.size_max();
        Err(BackingError::Limit { requested: size, bytes, size_max: bytes })
    }

    fn slot(&self, addr: u64) -> Option<&AtomicPtr<()>> {
        let here = |place: &&CopiedPuddle| addr.wrapping_sub(place.extent.addr) < place.extent.size;
        self.places.iter().find(here).map(|place| &place.slot)
    }

    fn is_foreign(&self, _: u64) -> bool {
        false
    }

    fn is_writable(&self) -> bool {
        !planted(Bug::Logged(LoggedBug::BrokenOffRefused))
    }

    fn releases(&self) -> bool {
        false
    }

    fn puddle_size(&self) -> u64 {
        self.places.first().map_or(0, |place| place.extent.size)
    }

    fn size_max(&self) -> u64 {
        self.places.iter().map(|place| place.extent.size).sum()
    }

    fn is_power(&self) -> bool {
        false
    }

    unsafe fn flush(&self, _: *const u8, _: usize) {}

    fn fence(&self) {}
}
