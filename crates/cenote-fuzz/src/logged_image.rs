//! Puddles of a pool with a logged heap that no heap uses, as in an archive: metadata that are
//! damaged, or changed with checks that fit.
//!
//! What is asserted: nothing panics; blocks lie in bodies of their puddles. Where no check was made
//! to fit, the answer is an error, or the blocks are those of the heap; or, if cells were damaged,
//! those before its last operation, which may be a step that reads as torn. So no two overlap.
//! Damage of the undo log takes nothing back: the word of the last step tells what is made.

use crate::input::{Input, Random};
use cenote_heap::logged::{LoggedHeap, LoggedOptions, blocks_in};
use cenote_heap::{Backing, Extent, MemoryBacking, MemoryOptions};
use cenote_layout::catalog::PuddleRecord;
use cenote_layout::id::{PoolId, TypeId, Uuid};
use cenote_layout::logged::{
    BlockRecord, CELL_SIZE, Cell, LISTS_OFFSET, LaneLink, LevelEntry, ListHead, LoggedHeader,
    PARTS_MAX, PARTS_OFFSET, PartEntry, RawCell, SlabRecord, SubHeapGeometry, UNDO_OFFSET,
};
use cenote_layout::puddle::{Role, header_space};
use cenote_store::relocate::PoolBlocks;
use core::convert::Infallible;
use std::sync::LazyLock;
use zerocopy::{FromBytes, IntoBytes};

/// Puddles of a heap after an operation.
#[derive(Clone)]
struct Moment {
    puddles: Vec<(PuddleRecord, Vec<u8>)>,
    /// Puddles and ranges in them that hold metadata; the first is a sub-heap's first part.
    metadata: Vec<(usize, u64, u64)>,
    /// What is allocated, and what was before the last operation.
    blocks: [PoolBlocks; 2],
}

impl Moment {
    /// The undo log of the sub-heap.
    fn undo_log(&self) -> &[u8] {
        let (puddle, from, _) = self.metadata[0];
        &self.puddles[puddle].1[(from + UNDO_OFFSET) as usize..(from + LISTS_OFFSET) as usize]
    }
}

/// Operations between two moments.
const STEPS: u64 = 37;

static MOMENTS: LazyLock<Vec<Moment>> = LazyLock::new(moments);

fn options() -> LoggedOptions {
    let (sub_heaps, lanes, tickets, levels) = (1, 2, 64, 2);
    LoggedOptions { sub_heaps, lanes, tickets, levels, cpu: || 0, ..LoggedOptions::default() }
}

/// A heap that grows and shrinks, seen again and again.
fn moments() -> Vec<Moment> {
    let memory = MemoryOptions { puddle_size: 256 << 10, size_max: 8 << 20, writable: true };
    let backing = MemoryBacking::new(memory);
    let heap = LoggedHeap::create(backing.clone(), &options()).expect("a heap");
    let mut random = Random(17);
    let (mut held, mut moments) = (Vec::new(), Vec::new());
    let mut before = PoolBlocks::default();
    for step in 1..24 * STEPS {
        // It grows for two thirds of the time, then it shrinks.
        let frees = if step < 16 * STEPS { 4 } else { 7 };
        if random.next_word() % 10 < frees && !held.is_empty() {
            let at = random.next_word() as usize % held.len();
            heap.free(held.swap_remove(at)).expect("it is held");
        } else {
            let sizes = [8, 40, 200, 300, 4000, 9000, 40];
            let size = sizes[random.next_word() as usize % sizes.len()];
            let type_id = TypeId(1 + random.next_word() % 3);
            held.push(heap.alloc(size, 1, type_id).expect("room").addr);
        }
        let moment = || {
            let moment = seen(&backing);
            let blocks = look(&moment).expect("a whole heap");
            (moment, blocks)
        };
        match step % STEPS {
            0 => {
                let (mut last, now) = moment();
                last.blocks = [now, core::mem::take(&mut before)];
                moments.push(last);
            }
            step if step == STEPS - 1 => before = moment().1,
            _ => {}
        }
    }
    moments
}

fn seen(backing: &MemoryBacking) -> Moment {
    let puddle = |extent: &Extent| {
        let (uuid, pool, role) = (Uuid([2; 16]), PoolId(1), Role::Heap);
        let Extent { index, addr, size } = *extent;
        let from = core::ptr::with_exposed_provenance::<u8>(addr as usize);
        // SAFETY: a puddle of the backing, which this thread alone uses.
        let bytes = unsafe { core::slice::from_raw_parts(from, size as usize) }.to_vec();
        (PuddleRecord { uuid, pool, role, index, addr, size }, bytes)
    };
    let puddles: Vec<_> = backing.extents().iter().map(puddle).collect();
    let options = options();
    let geometry = SubHeapGeometry::new(options.lanes, options.tickets, options.levels);
    let len = geometry.expect("a geometry").metadata_len;
    let from = header_space(puddles[0].0.size) + LoggedHeader::SUB_HEAPS;
    let mut metadata = vec![(0, from, len)];
    for index in 0..PARTS_MAX {
        let at = (from + PARTS_OFFSET + u64::from(index) * CELL_SIZE) as usize;
        let part = PartEntry::from_raw(cell(&puddles[0].1, at), PartEntry::cell(index));
        if let Some(part) = part.filter(|part| !part.is_data()) {
            let puddle = puddles.iter().position(|(record, _)| record.index == part.puddle);
            metadata.push((puddle.expect("a puddle"), part.from(), part.len()));
        }
    }
    Moment { puddles, metadata, blocks: [PoolBlocks::default(), PoolBlocks::default()] }
}

fn look(moment: &Moment) -> Option<PoolBlocks> {
    let records: Vec<PuddleRecord> = moment.puddles.iter().map(|(record, _)| *record).collect();
    let read = &mut |puddle: &PuddleRecord, from: u64, bytes: &mut [u8]| {
        let found = moment.puddles.iter().find(|(record, _)| record.index == puddle.index);
        let (_, image) = found.expect("one of the puddles");
        bytes.copy_from_slice(&image[from as usize..from as usize + bytes.len()]);
        Ok::<(), Infallible>(())
    };
    let Ok(found) = blocks_in(&records, read);
    let found = found.ok()?;
    for record in &records {
        for run in found.of(record.index) {
            let end = run.offset + u64::from(run.count()) * run.size;
            assert!(run.offset >= header_space(record.size) && end <= record.size, "{run:?}");
        }
    }
    Some(found)
}

fn cell(image: &[u8], at: usize) -> RawCell {
    RawCell::read_from_bytes(&image[at..at + CELL_SIZE as usize]).expect("32 bytes")
}

/// The cell with other contents and a check that fits, if it is one of kind `C`.
fn forged<C: Cell>(raw: RawCell, number: u64, input: &mut Input<'_>) -> Option<RawCell> {
    let mut cell = C::from_raw(raw, number)?.to_raw(number);
    for _ in 0..=input.below(2) {
        let word = input.below(4);
        cell[word] = match input.below(3) {
            0 => cell[word] ^ 1 << input.below(64),
            _ => input.number(cell[word]),
        };
    }
    Some(C::read_from_bytes(cell.as_bytes()).ok()?.to_raw(number))
}

/// Forges a cell of a sub-heap's first part: the next one from a place that has something.
fn forge(image: &mut [u8], from: u64, len: u64, input: &mut Input<'_>) {
    let cells = len / CELL_SIZE;
    let first = Random(input.word()).next_word() % cells;
    for number in (first..cells).chain(0..first) {
        let at = (from + number * CELL_SIZE) as usize;
        let raw = cell(image, at);
        let made = forged::<BlockRecord>(raw, number, input)
            .or_else(|| forged::<SlabRecord>(raw, number, input))
            .or_else(|| forged::<ListHead>(raw, number, input))
            .or_else(|| forged::<LevelEntry>(raw, number, input))
            .or_else(|| forged::<LaneLink>(raw, number, input))
            .or_else(|| forged::<PartEntry>(raw, number, input));
        if let Some(made) = made {
            image[at..at + CELL_SIZE as usize].copy_from_slice(made.as_bytes());
            return;
        }
    }
}

pub(crate) fn run(input: &mut Input<'_>) {
    let mut moment = MOMENTS[input.below(MOMENTS.len())].clone();
    let is_forged = input.one_in(2);
    let undo_log = moment.undo_log().to_vec();
    for _ in 0..if is_forged { 1 + input.below(4) } else { 1 } {
        let (puddle, from, len) = moment.metadata[input.below(moment.metadata.len())];
        let image = &mut moment.puddles[puddle].1;
        if is_forged && puddle == 0 {
            forge(image, from, len, input);
            continue;
        }
        let page = Random(input.word()).next_word() % len.div_ceil(4096) * 4096;
        let end = (from + page + 4096).min(from + len) as usize;
        input.damage(&mut image[(from + page) as usize..end]);
    }
    let found = look(&moment);
    let [now, before] = &moment.blocks;
    if let Some(found) = found.filter(|_| !is_forged) {
        let is_log = moment.undo_log() != undo_log;
        assert!(found == *now || !is_log && found == *before, "other blocks, and no error");
    }
}
