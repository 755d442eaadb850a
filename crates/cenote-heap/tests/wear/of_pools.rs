//! What pools need of a wear heap: it is made where nothing is, its blocks are listed from puddles
//! that no heap uses, and threads scan it beside programs.

use super::{Bench, Heap, alloc, byte, damage, held};
use cenote_heap::wear::{ScannedHeap, WearDamage, WearError, WearHeap, WearStats, blocks_in};
use cenote_heap::{Backing, Extent, FreeError, Heap as _, Inspect};
use cenote_layout::catalog::PuddleRecord;
use cenote_layout::id::{PoolId, TypeId, Uuid};
use cenote_layout::puddle::{Role, header_space};
use cenote_store::relocate::PoolBlocks;
use cenote_testkit::random::next;
use core::convert::Infallible;
use std::collections::BTreeMap;
use std::time::{Duration, Instant};

/// The puddles of a heap as bytes.
fn puddles(bench: &Bench) -> Vec<(PuddleRecord, Vec<u8>)> {
    let puddle = |extent: Extent| {
        let (uuid, pool, role) = (Uuid([2; 16]), PoolId(1), Role::Heap);
        let Extent { index, addr, size } = extent;
        // SAFETY: a puddle of the backing's memory; no thread uses it meanwhile.
        let bytes = unsafe { core::slice::from_raw_parts(byte(addr), size as usize) }.to_vec();
        (PuddleRecord { uuid, pool, role, index, addr, size }, bytes)
    };
    bench.memory.extents().into_iter().map(puddle).collect()
}

fn listed(puddles: &[(PuddleRecord, Vec<u8>)]) -> Result<PoolBlocks, WearError> {
    let records: Vec<PuddleRecord> = puddles.iter().map(|(record, _)| *record).collect();
    let found = blocks_in(&records, &mut |puddle, from, bytes| {
        let (_, image) = &puddles[puddle.index as usize];
        bytes.copy_from_slice(&image[from as usize..from as usize + bytes.len()]);
        Ok::<(), Infallible>(())
    });
    let Ok(found) = found;
    found
}

/// Addresses, sizes and types of listed blocks.
fn by_address(
    blocks: &PoolBlocks,
    puddles: &[(PuddleRecord, Vec<u8>)],
) -> BTreeMap<u64, (u64, TypeId)> {
    let mut found = BTreeMap::new();
    for (record, _) in puddles {
        for run in blocks.of(record.index) {
            for number in (0..64).filter(|number| run.used >> number & 1 == 1) {
                let offset = run.offset + number * run.size;
                assert!(offset + run.size <= record.size, "{run:?}");
                found.insert(record.addr + offset, (run.size, run.type_id));
            }
        }
    }
    found
}

fn of_heap(heap: &Heap) -> BTreeMap<u64, (u64, TypeId)> {
    let blocks = heap.check().blocks;
    blocks.into_iter().map(|block| (block.addr, (block.size, block.type_id))).collect()
}

/// Blocks of many sizes and types, some of them freed, over several puddles.
fn filled(bench: &Bench) -> Heap {
    let (heap, mut seed, mut kept) = (bench.create(), 5, Vec::new());
    for _ in 0..3000 {
        let random = next(&mut seed);
        if random.is_multiple_of(3) && !kept.is_empty() {
            let block: u64 = kept.swap_remove(random as usize / 3 % kept.len());
            heap.free(block).expect("allocated");
        } else {
            let size = [8, 64, 100, 640, 5000][random as usize / 8 % 5];
            let align = if random.is_multiple_of(29) { 512 } else { 8 };
            kept.push(heap.alloc(size, align, TypeId(1 + random % 4)).expect("room").addr);
        }
        bench.pass(next(&mut seed) % 20);
    }
    heap
}

#[test]
fn blocks_of_puddles_that_no_heap_uses_are_those_of_the_heap() {
    let bench = Bench::new(64 << 20);
    let heap = filled(&bench);
    let (puddles, wanted) = (puddles(&bench), of_heap(&heap));
    assert!(puddles.len() > 4 && wanted.len() > 500, "{} blocks", wanted.len());
    let blocks = listed(&puddles).expect("a heap");
    assert_eq!(by_address(&blocks, &puddles), wanted);
    // Where a header is damaged its block is in no list, and no other block is missing.
    let mut seed = 9;
    for round in 0..60 {
        let mut damaged = puddles.clone();
        let (addr, _) = wanted.iter().nth(next(&mut seed) as usize % wanted.len()).expect("one");
        let at = puddles.iter().position(|(p, _)| (p.addr..p.addr + p.size).contains(addr));
        let (record, image) = &mut damaged[at.expect("in a puddle")];
        let header = (addr - record.addr) as usize - 64;
        image[header + next(&mut seed) as usize % 64] ^= 1 << (next(&mut seed) % 8);
        let mut rest = wanted.clone();
        rest.remove(addr);
        let blocks = listed(&damaged).expect("a heap");
        assert_eq!(by_address(&blocks, &damaged), rest, "round {round}");
    }
}

#[test]
fn any_bytes_are_an_error_or_blocks_that_lie_in_their_puddles() {
    let bench = Bench::new(64 << 20);
    drop(filled(&bench));
    let (whole, mut seed, mut refused) = (puddles(&bench), 11, 0);
    for round in 0..120 {
        let mut damaged = whole.clone();
        for _ in 0..=next(&mut seed) % 40 {
            let puddle = next(&mut seed) as usize % damaged.len();
            let image = &mut damaged[puddle].1;
            let at = 4096 + next(&mut seed) as usize % (image.len() - 4200);
            let len = [1, 8, 64, 100][next(&mut seed) as usize % 4];
            image[at..at + len].iter_mut().for_each(|byte| *byte = next(&mut seed) as u8);
        }
        if round % 10 == 0 {
            damaged[0].1[4096 + 48] ^= 1;
        }
        match listed(&damaged) {
            Ok(blocks) => drop(by_address(&blocks, &damaged)),
            Err(error) => {
                assert!(matches!(error, WearError::Header(_)), "{error}");
                refused += 1;
            }
        }
    }
    assert!(refused >= 12, "{refused}");
}

#[test]
fn a_read_that_fails_is_the_answer() {
    let bench = Bench::new(64 << 20);
    drop(filled(&bench));
    let (puddles, mut reads) = (puddles(&bench), 0);
    let records: Vec<PuddleRecord> = puddles.iter().map(|(record, _)| *record).collect();
    for last in 0..6 {
        reads = 0;
        let found = blocks_in(&records, &mut |puddle, from, bytes| {
            reads += 1;
            if reads > last {
                return Err(last);
            }
            let (_, image) = &puddles[puddle.index as usize];
            bytes.copy_from_slice(&image[from as usize..from as usize + bytes.len()]);
            Ok(())
        });
        assert_eq!(found.err(), Some(last));
    }
    assert_eq!(reads, 6, "nothing is read after that");
}

#[test]
fn a_heap_is_made_where_nothing_is_and_nowhere_else() {
    let bench = Bench::new(64 << 20);
    let open = |memory| WearHeap::open_pool(memory, &bench.options());
    // Nothing is made for a reader, and there is nothing.
    let reader = open(bench.memory.read_only()).expect("an empty heap");
    assert_eq!((reader.stats(), reader.root(3).expect("none").addr), (WearStats::default(), 0));
    assert!(reader.find(bench.memory.extents()[0].addr + 40_000).is_err());
    drop(reader);
    assert!(matches!(bench.open_error(), WearError::Header(_)), "nothing was made");
    let heap = open(bench.memory.clone()).expect("made");
    let root = bench.memory.extents()[0];
    // A crash may leave a part of the header.
    drop(heap);
    damage(root.addr + header_space(root.size) + 56, 3);
    let heap = open(bench.memory.clone()).expect("made anew");
    let addr = alloc(&heap, 100);
    drop(heap);
    assert!(open(bench.memory.clone()).expect("it is there").is_live(addr, TypeId(7)));
    // Where blocks are, or a root, a header that is gone is damage.
    damage(root.addr + header_space(root.size) + 56, 3);
    for memory in [bench.memory.clone(), bench.memory.read_only()] {
        let refused = open(memory).expect_err("damaged");
        assert!(matches!(refused, WearError::Header(_)) && refused.is_damage(), "{refused}");
    }
}

#[test]
fn a_wear_heap_answers_about_all_of_its_blocks() {
    let bench = Bench::new(64 << 20);
    let heap = filled(&bench);
    let types: std::collections::HashMap<TypeId, std::sync::Arc<_>> = Default::default();
    let wanted = of_heap(&heap);
    let mut walked = BTreeMap::new();
    heap.walk(&mut |block| {
        walked.insert(block.addr, (block.size, block.type_id));
    })
    .expect("walked");
    assert_eq!(walked, wanted);
    let stats = Inspect::stats(&heap).expect("counted");
    assert_eq!(stats.blocks, wanted.len() as u64);
    assert_eq!(stats.bins.iter().map(|bin| bin.blocks).sum::<u64>(), stats.blocks);
    // A root leads to one block, all others are leaks.
    let (&addr, &(_, type_id)) = wanted.iter().next().expect("a block");
    heap.set_root(9, addr, type_id).expect("set");
    let report = Inspect::check(&heap, Some(&types)).expect("checked");
    assert_eq!((report.leaked_blocks, report.headers.len()), (wanted.len() as u64 - 1, 0));
    // A damaged header is reported with its place, and what leads there leads to what is lost.
    damage(addr - 64 + 20, 0x40);
    let report = Inspect::check(&heap, Some(&types)).expect("checked");
    let [WearDamage { addr: at, bytes, .. }] = report.headers[..] else { panic!("{report:?}") };
    assert!(at == addr - 64 && bytes > 64 && !report.is_sound());
    assert_eq!(heap.find(addr), Err(FreeError::DamagedHeader { addr }));
    let report = Inspect::check(&heap, Some(&types)).expect("checked");
    assert_eq!(report.trace.expect("traced").faults, 1);
}

#[test]
fn threads_scan_a_heap_of_a_pool_while_it_is_used_and_end_with_it() {
    let bench = Bench::new(256 << 20);
    let heap = filled(&bench);
    let wanted = held(&heap);
    drop(heap);
    let scanned = ScannedHeap::with(bench.open(), 0);
    let first = alloc(&scanned, 64);
    assert!(!wanted.contains_key(&first));
    let until = Instant::now() + Duration::from_secs(20);
    while scanned.progress().scanned < scanned.progress().segments {
        assert!(Instant::now() < until, "no thread scans: {:?}", scanned.progress());
        std::thread::yield_now();
    }
    assert_eq!(held(&scanned).len(), wanted.len() + 1);
    drop(scanned);
    // Dropped at once, and opened again: the threads of the first have let go of the puddles.
    for _ in 0..20 {
        drop(ScannedHeap::with(bench.open(), 0));
    }
    let lazy = ScannedHeap::new(bench.open());
    std::thread::sleep(Duration::from_millis(5));
    assert_eq!(lazy.progress().scanned, 0, "a small heap is scanned when it is used");
}
