//! Puddles of a pool with a wear heap that no heap uses, as in an archive: headers that are
//! damaged, or changed with checks that fit.
//!
//! What is asserted: nothing panics; blocks lie in bodies of their puddles, and no two overlap.
//! Where no check was made to fit, each block that is listed is one of the heap, and only blocks
//! are missing whose header was touched; or the header of the heap was, and that is said.

use crate::input::{Input, Random};
use cenote_heap::wear::{WearError, WearHeap, WearOptions, blocks_in};
use cenote_heap::{Backing, Extent, MemoryBacking, MemoryOptions};
use cenote_layout::catalog::PuddleRecord;
use cenote_layout::id::{PoolId, TypeId, Uuid};
use cenote_layout::puddle::{Role, header_space};
use cenote_layout::wear::{LineWords, WEAR_LINE, WearLine, WearRecord, place_of};
use core::convert::Infallible;
use std::collections::BTreeMap;
use std::sync::LazyLock;
use zerocopy::{FromBytes, IntoBytes};

const KEY: u64 = 77;
const LINE: usize = WEAR_LINE as usize;

/// Allocated blocks by puddle and offset: bytes and type.
type Allocated = BTreeMap<(u32, u64), (u64, TypeId)>;

/// Puddles of a heap, the lines of them that have something, and its blocks.
struct WearMoment {
    puddles: Vec<(PuddleRecord, Vec<u8>)>,
    lines: Vec<(usize, usize)>,
    blocks: Allocated,
}

static MOMENT: LazyLock<WearMoment> = LazyLock::new(moment);

fn moment() -> WearMoment {
    let memory = MemoryOptions { puddle_size: 256 << 10, size_max: 8 << 20, writable: true };
    let backing = MemoryBacking::new(memory);
    let options = WearOptions { key: KEY, wait_ms: 0, ..WearOptions::default() };
    let heap = WearHeap::create(backing.clone(), &options).expect("a heap");
    let (mut random, mut held) = (Random(23), Vec::new());
    for _ in 0..900 {
        if random.next_word() % 10 < 4 && !held.is_empty() {
            let at = random.next_word() as usize % held.len();
            heap.free(held.swap_remove(at)).expect("it is held");
        } else {
            let size = [8, 64, 200, 4000, 9000][random.next_word() as usize % 5];
            let type_id = TypeId(1 + random.next_word() % 3);
            held.push(heap.alloc(size, 1, type_id).expect("room").addr);
        }
    }
    let puddle = |extent: &Extent| {
        let (uuid, pool, role) = (Uuid([2; 16]), PoolId(1), Role::Heap);
        let Extent { index, addr, size } = *extent;
        let from = core::ptr::with_exposed_provenance::<u8>(addr as usize);
        // SAFETY: a puddle of the backing, which this thread alone uses.
        let bytes = unsafe { core::slice::from_raw_parts(from, size as usize) }.to_vec();
        (PuddleRecord { uuid, pool, role, index, addr, size }, bytes)
    };
    let puddles: Vec<_> = backing.extents().iter().map(puddle).collect();
    let used = |(number, (_, bytes)): (usize, &(PuddleRecord, Vec<u8>))| {
        let lines = bytes.chunks(LINE).enumerate();
        let used = lines.filter(|(_, line)| line.iter().any(|byte| *byte != 0));
        used.map(|(line, _)| (number, line)).collect::<Vec<_>>()
    };
    let lines = puddles.iter().enumerate().flat_map(used).collect();
    let blocks = listed(&puddles).expect("a whole heap");
    assert_eq!(blocks.len(), held.len());
    WearMoment { puddles, lines, blocks }
}

/// The blocks that are listed, which lie in their puddles and apart.
fn listed(puddles: &[(PuddleRecord, Vec<u8>)]) -> Result<Allocated, WearError> {
    let records: Vec<PuddleRecord> = puddles.iter().map(|(record, _)| *record).collect();
    let read = &mut |puddle: &PuddleRecord, from: u64, bytes: &mut [u8]| {
        let (_, image) = &puddles[puddle.index as usize];
        bytes.copy_from_slice(&image[from as usize..from as usize + bytes.len()]);
        Ok::<(), Infallible>(())
    };
    let Ok(found) = blocks_in(&records, read);
    let (found, mut all) = (found?, Allocated::new());
    for record in &records {
        let mut end = header_space(record.size);
        for run in found.of(record.index) {
            for number in (0..64).filter(|number| run.used >> number & 1 == 1) {
                let offset = run.offset + number * run.size;
                assert!(offset >= end + WEAR_LINE, "{offset:#x} after {end:#x}");
                end = offset + run.size;
                all.insert((record.index, offset), (run.size, run.type_id));
            }
        }
        assert!(end <= record.size, "{end:#x} of {:#x}", record.size);
    }
    Ok(all)
}

/// Another record for a line, with checks that fit.
fn forged(input: &mut Input<'_>) -> WearRecord {
    let lines = match input.below(3) {
        0 => input.below(9) as u32,
        1 => input.below(5000) as u32,
        _ => input.word() as u32,
    };
    match input.below(5) {
        0 => WearRecord::Free { lines, link: input.word() as u32, time_ms: input.word() as u32 },
        1 | 2 => WearRecord::Allocated { lines, type_id: TypeId(input.word() % 5) },
        3 => WearRecord::Damaged { lines },
        _ => WearRecord::Segment { chunks: lines },
    }
}

fn forge(image: &mut [u8], place: u64, input: &mut Input<'_>) {
    let Ok(words) = LineWords::read_from_bytes(&image[..LINE]) else { return };
    let record = forged(input);
    let mut new = words;
    match WearLine::next(KEY, place, &words, &record) {
        Some((slot, said)) => new[slot * 4..slot * 4 + 4].copy_from_slice(&said),
        None => new = WearLine::first(KEY, place, &record),
    }
    image[..LINE].copy_from_slice(new.as_bytes());
}

pub(crate) fn run(input: &mut Input<'_>) {
    let WearMoment { puddles, lines, blocks } = &*MOMENT;
    let (mut puddles, is_forged, mut touched) = (puddles.clone(), input.one_in(2), Vec::new());
    for _ in 0..1 + input.below(6) {
        let (puddle, line) = match input.below(4) {
            0 => {
                let puddle = input.below(puddles.len());
                (puddle, 64 + Random(input.word()).next_word() as usize % 4000)
            }
            _ => lines[Random(input.word()).next_word() as usize % lines.len()],
        };
        let (record, image) = &mut puddles[puddle];
        if line * LINE < header_space(record.size) as usize || (line + 1) * LINE > image.len() {
            continue;
        }
        let image = &mut image[line * LINE..(line + 1) * LINE];
        touched.push((record.index, line as u64));
        match is_forged {
            true => forge(image, place_of(record.index, line as u32), input),
            false => input.damage(image),
        }
    }
    let header = header_space(puddles[0].0.size) / WEAR_LINE;
    let is_header =
        |&(puddle, line): &(u32, u64)| puddle == 0 && (header..header + 64).contains(&line);
    let found = match listed(&puddles) {
        Ok(found) => found,
        Err(error) => {
            assert!(touched.iter().any(is_header), "{error}, and its header is whole");
            return;
        }
    };
    if is_forged {
        return;
    }
    for (at, block) in &found {
        assert_eq!(blocks.get(at), Some(block), "a block that is none at {at:x?}");
    }
    let missing = blocks.keys().filter(|at| !found.contains_key(at));
    for &(puddle, offset) in missing {
        let header = (puddle, offset / WEAR_LINE - 1);
        assert!(touched.contains(&header), "the block at {offset:#x} of puddle {puddle} is lost");
    }
}
