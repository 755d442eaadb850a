//! Free space is given back to the file and taken again, and nothing else changes.

use crate::common::{A, B, TypeMap, backing, read, record, write};
use cenote_heap::{
    AllocError, Backing as _, Heap as _, Inspect as _, MemoryBacking, RecoverError, Trace,
    TracedHeap, Trim as _, TrimProgress, Use,
};
use cenote_layout::heap::SUPERBLOCK_SIZE;
use std::ops::ControlFlow;

fn new(heap: &crate::common::Heap, size: u64) -> u64 {
    heap.alloc(size, 16, A).unwrap().addr.as_ptr() as u64
}

/// Blocks of 8 KiB, `count` of them, each with its number.
fn fill(heap: &crate::common::Heap, count: u64) -> Vec<u64> {
    let blocks: Vec<u64> = (0..count).map(|_| new(heap, 8192)).collect();
    blocks.iter().enumerate().for_each(|(i, &block)| write(block, 0, i as u64));
    blocks
}

fn no_block_in_a_hole(backing: &MemoryBacking, heap: &crate::common::Heap) {
    heap.walk(&mut |block| assert!(!backing.is_hole(block.addr, block.size), "{block:?}")).unwrap();
}

#[test]
fn a_trim_gives_back_what_is_free_and_keeps_what_is_not() {
    let backing = backing(4 << 20, 64 << 20);
    let heap = TracedHeap::open(backing.clone()).unwrap();
    let blocks = fill(&heap, 600);
    for (i, &block) in blocks.iter().enumerate().filter(|(i, _)| i / 8 % 5 != 0) {
        assert_eq!(read(block, 0), i as u64);
        heap.free(block).unwrap();
    }
    let stats = heap.stats().unwrap();
    let report = heap.trim().unwrap();
    assert!(!report.unsupported);
    assert_eq!(report.released_bytes, stats.free_superblocks * SUPERBLOCK_SIZE);
    assert_eq!(backing.hole_bytes(), report.released_bytes);
    let after = heap.stats().unwrap();
    assert_eq!(
        (after.free_superblocks, after.hole_superblocks),
        (stats.free_superblocks, stats.free_superblocks)
    );
    assert_eq!((after.blocks, after.bytes), (stats.blocks, stats.bytes));
    no_block_in_a_hole(&backing, &heap);
    for (i, &block) in blocks.iter().enumerate().filter(|(i, _)| i / 8 % 5 == 0) {
        assert_eq!(read(block, 0), i as u64);
        assert!(heap.is_live(block, A));
    }
    // There is nothing more to give.
    let again = heap.trim().unwrap();
    assert_eq!((again.released_bytes, again.hole_bytes), (0, report.released_bytes));
    // What was given back is taken before the heap grows, and zero.
    let puddles = heap.stats().unwrap().puddles;
    let large = new(&heap, 200_000);
    assert_eq!((read(large, 0), read(large, 199_992)), (0, 0));
    fill(&heap, 64);
    no_block_in_a_hole(&backing, &heap);
    assert_eq!(heap.stats().unwrap().puddles, puddles);
    assert!(heap.check(None).unwrap().damage.is_empty());
    let mut holes = 0;
    heap.superblocks(&mut |at| holes += u64::from(at.used == Use::Hole)).unwrap();
    assert_eq!(holes * SUPERBLOCK_SIZE, backing.hole_bytes());
}

#[test]
fn holes_are_known_to_the_next_opener_and_after_a_recovery() {
    let types = TypeMap::from([(A, record(A, 64, false, vec![]))]);
    let backing = backing(2 << 20, 2 << 20);
    let kept = {
        let heap = TracedHeap::open(backing.clone()).unwrap();
        let kept = new(&heap, 64);
        let blocks = fill(&heap, 80);
        blocks.into_iter().for_each(|block| heap.free(block).unwrap());
        heap.set_root(0, kept, A).unwrap();
        assert!(heap.trim().unwrap().released_bytes >= 10 * SUPERBLOCK_SIZE);
        kept
    };
    let holes = backing.hole_bytes();
    for recover in [false, true] {
        let heap = TracedHeap::open(backing.clone()).unwrap();
        if recover {
            // A pointer into what was there before brings nothing back.
            let report = heap
                .recover(&types, &[kept / SUPERBLOCK_SIZE * SUPERBLOCK_SIZE + SUPERBLOCK_SIZE])
                .unwrap();
            assert_eq!((report.trace.blocks, report.interrupted), (1, 0));
        }
        assert_eq!(heap.stats().unwrap().hole_superblocks * SUPERBLOCK_SIZE, holes);
        assert_eq!(heap.stats().unwrap().blocks, 1);
    }
    let heap = TracedHeap::open(backing.clone()).unwrap();
    while heap.alloc(30_000, 16, B).is_ok() {}
    no_block_in_a_hole(&backing, &heap);
    assert_eq!((backing.hole_bytes(), heap.stats().unwrap().hole_superblocks), (0, 0));
}

#[test]
fn on_a_full_disk_an_allocation_fails_and_what_has_space_is_found() {
    let backing = backing(1 << 20, 1 << 30);
    let heap = TracedHeap::open(backing.clone()).unwrap();
    let (large, small) = (new(&heap, 65_536), new(&heap, 8192));
    heap.trim().unwrap();
    backing.refuse_growth(true);
    for size in [100_000, 64] {
        let error = heap.alloc(size, 16, B).unwrap_err();
        assert!(matches!(error, AllocError::Full { .. }), "{error}");
        assert!(error.to_string().contains("no space"), "{error}");
    }
    let before = heap.stats().unwrap();
    assert_eq!(before.hole_superblocks, before.free_superblocks);
    // The superblock of a type that has none left has its space; and so has this one.
    heap.free(small).unwrap();
    heap.free(large).unwrap();
    let other = heap.alloc(64, 16, B).unwrap().addr.as_ptr() as u64;
    let another = heap.alloc(60_000, 16, B).unwrap().addr.as_ptr() as u64;
    assert!([large, small].map(|a| a / SUPERBLOCK_SIZE).contains(&(other / SUPERBLOCK_SIZE)));
    assert!([large, small].map(|a| a / SUPERBLOCK_SIZE).contains(&(another / SUPERBLOCK_SIZE)));
    assert!(heap.alloc(100_000, 16, B).is_err());
    no_block_in_a_hole(&backing, &heap);
    backing.refuse_growth(false);
    let block = heap.alloc(100_000, 16, B).unwrap().addr.as_ptr() as u64;
    assert!(!backing.is_hole(block, 100_000));
    assert!(heap.check(None).unwrap().miscounted.is_empty());
}

#[test]
fn threads_allocate_and_free_while_others_trim() {
    let backing = backing(1 << 20, 256 << 20);
    let heap = TracedHeap::open(backing.clone()).unwrap();
    let released = std::thread::scope(|scope| {
        let workers: Vec<_> = (0..3u64)
            .map(|thread| {
                let heap = &heap;
                scope.spawn(move || {
                    let mut random = crate::common::Random(thread);
                    let mut mine: Vec<(u64, u64)> = Vec::new();
                    for i in 0..20_000u64 {
                        if mine.len() > 60 || (i % 2 == 1 && !mine.is_empty()) {
                            let (block, stamp) =
                                mine.swap_remove(random.below(mine.len() as u64) as usize);
                            assert_eq!(
                                read(block, 0),
                                stamp,
                                "a block was overwritten, or lost its space"
                            );
                            assert_eq!(read(block, 8), !stamp);
                            heap.free(block).unwrap();
                        } else {
                            let size = [64, 8192, 65_536, 200_000][random.below(4) as usize];
                            let block = new(heap, size);
                            let stamp = thread << 32 | i;
                            write(block, 0, stamp);
                            write(block, 8, !stamp);
                            mine.push((block, stamp));
                        }
                    }
                    mine
                })
            })
            .collect();
        let mut released = 0;
        while !workers.iter().all(|worker| worker.is_finished()) {
            released += heap.trim().unwrap().released_bytes;
        }
        for worker in workers {
            for (block, stamp) in worker.join().unwrap() {
                assert_eq!(read(block, 0), stamp);
            }
        }
        released
    });
    assert!(released > 0, "nothing was ever given back");
    no_block_in_a_hole(&backing, &heap);
    assert!(heap.check(None).unwrap().miscounted.is_empty());
}

#[test]
fn a_trim_tells_how_far_it_is_and_can_be_ended() {
    let backing = backing(8 << 20, 8 << 20);
    let heap = TracedHeap::open(backing.clone()).unwrap();
    let mut seen: Vec<TrimProgress> = Vec::new();
    let half = heap
        .trim_with(&mut |at| {
            seen.push(*at);
            if at.released_bytes >= 4 << 20 {
                ControlFlow::Break(())
            } else {
                ControlFlow::Continue(())
            }
        })
        .unwrap();
    assert_eq!(half.released_bytes, 4 << 20);
    assert!(seen.windows(2).all(|w| w[0].looked_at_bytes < w[1].looked_at_bytes));
    let mut last = None;
    heap.trim_with(&mut |at| {
        last = Some(*at);
        ControlFlow::Continue(())
    })
    .unwrap();
    let last = last.unwrap();
    assert_eq!(last.bytes, 8 << 20);
    assert!(last.looked_at_bytes > last.bytes - (1 << 20) && last.looked_at_bytes <= last.bytes);
    assert!(matches!(
        TracedHeap::open(MemoryBacking::read_only(&backing.clone())),
        Err(cenote_heap::OpenError::AlreadyOpen)
    ));
    drop(heap);
    let heap = TracedHeap::open(backing.read_only()).unwrap();
    assert!(matches!(heap.trim(), Err(RecoverError::ReadOnly)));
}

#[test]
fn a_hole_costs_a_line_and_taking_it_again_what_any_superblock_costs() {
    let backing = backing(4 << 20, 4 << 20);
    let heap = TracedHeap::open(backing.clone()).unwrap();
    let before = backing.counts();
    let released = heap.trim().unwrap().released_bytes / SUPERBLOCK_SIZE;
    let spent = backing.counts();
    assert_eq!(spent.flushed_lines - before.flushed_lines, released);
    // One call and one fence for each mebibyte.
    assert_eq!(spent.fences - before.fences, released.div_ceil(16));
    new(&heap, 64);
    let again = backing.counts();
    assert_eq!((again.flushed_lines - spent.flushed_lines, again.fences - spent.fences), (1, 1));
}

#[test]
fn a_descriptor_of_a_hole_that_is_damaged_costs_nothing() {
    // Every bit of the descriptor's checksummed part: the superblock is free, and space is taken
    // for it before it is used.
    for bit in 0..320 {
        let backing = backing(256 << 10, 256 << 10);
        TracedHeap::open(backing.clone()).unwrap().trim().unwrap();
        let extent = backing.extents()[0];
        let geometry = cenote_layout::heap::HeapGeometry::new(extent.size, true).unwrap();
        let descriptor = extent.addr + geometry.descriptors + geometry.first_usable * 64;
        write(descriptor, bit / 64 * 8, read(descriptor, bit / 64 * 8) ^ (1 << (bit % 64)));
        let heap = TracedHeap::open(backing.clone()).unwrap();
        assert!(heap.check(None).unwrap().damage.iter().all(|damage| !damage.lost));
        let block = new(&heap, 64);
        assert_eq!(
            block / SUPERBLOCK_SIZE,
            extent.addr / SUPERBLOCK_SIZE + geometry.first_usable,
            "bit {bit}"
        );
        assert!(!backing.is_hole(block, 64), "bit {bit}");
    }
}

#[test]
fn what_is_behind_blocks_is_given_back_at_process_and_taken_again() {
    for process in [false, true] {
        let power = backing(8 << 20, 8 << 20);
        let backing = if process { power.at_process() } else { power };
        let heap = TracedHeap::open(backing.clone()).unwrap();
        let mut missing = 0;
        let mut blocks = Vec::new();
        for size in (20_000..600_000).step_by(40_000) {
            let block = heap.alloc(size, 16, A).unwrap();
            assert!(
                block.size >= size && (block.size - size) * 8 < block.size,
                "{size} in {}",
                block.size
            );
            if block.size > 32 << 10 {
                missing += block.size.next_multiple_of(SUPERBLOCK_SIZE) - block.size;
            }
            blocks.push(block.addr.as_ptr() as u64);
        }
        // Two blocks of 24 KiB, and their superblock's last quarter.
        let small = new(&heap, 24_000);
        missing += 16 << 10;
        assert_eq!(backing.hole_bytes(), if process { missing } else { 0 });
        no_block_in_a_hole(&backing, &heap);
        // The next of the same size finds the space as it is.
        let last = blocks.pop().unwrap();
        let size = heap.owner(last).unwrap().size;
        heap.free(last).unwrap();
        let counts = backing.counts();
        assert_eq!(new(&heap, size), last);
        assert_eq!(backing.counts(), counts);
        blocks.push(last);
        // Others take it.
        blocks.iter().chain([&small]).for_each(|&block| heap.free(block).unwrap());
        assert!(heap.check(None).unwrap().damage.is_empty());
        while heap.alloc(SUPERBLOCK_SIZE, 16, B).is_ok() {}
        while heap.alloc(8192, 16, B).is_ok() {}
        no_block_in_a_hole(&backing, &heap);
        assert_eq!((backing.hole_bytes(), heap.stats().unwrap().free_superblocks), (0, 0));
    }
}

#[test]
fn ends_without_space_are_known_to_the_next_opener_and_on_a_full_disk() {
    let backing = backing(1 << 20, 1 << 20).at_process();
    let (kept, freed) = {
        let heap = TracedHeap::open(backing.clone()).unwrap();
        (new(&heap, 70_000), new(&heap, 70_000))
    };
    let heap = TracedHeap::open(backing.clone()).unwrap();
    assert_eq!(heap.owner(kept + 69_999).unwrap().size, 72 << 10);
    assert!(heap.owner(kept + (72 << 10)).is_none_or(|block| block.addr == kept));
    heap.free(freed).unwrap();
    drop(heap);
    // The third learns only from the descriptors that there are ends without space.
    let heap = TracedHeap::open(backing.clone()).unwrap();
    backing.refuse_growth(true);
    while heap.alloc(SUPERBLOCK_SIZE, 16, B).is_ok() {}
    no_block_in_a_hole(&backing, &heap);
    assert!(!heap.is_live(freed, A) && heap.is_live(kept, A));
    // One superblock of the two is free, and has no space.
    assert_eq!(heap.stats().unwrap().free_superblocks, 1);
    backing.refuse_growth(false);
    assert!(heap.alloc(SUPERBLOCK_SIZE, 16, B).is_ok());
    assert_eq!(backing.hole_bytes(), 56 << 10);
}

#[test]
fn a_heap_is_recovered_while_it_is_trimmed() {
    let types = TypeMap::from([(A, record(A, 64, false, vec![]))]);
    let backing = backing(4 << 20, 4 << 20);
    let heap = TracedHeap::open(backing.clone()).unwrap();
    let going = std::sync::Mutex::new(());
    std::thread::scope(|scope| {
        // Let go when the test ends, or fails.
        let held = going.lock().unwrap();
        scope.spawn(|| {
            while let Err(std::sync::TryLockError::WouldBlock) = going.try_lock() {
                heap.trim().unwrap();
            }
        });
        for round in 0..150u64 {
            let blocks: Vec<u64> = (0..60).map(|_| new(&heap, 30_000)).collect();
            blocks.iter().for_each(|&block| write(block, 8, round ^ block));
            blocks[30..].iter().for_each(|&block| heap.free(block).unwrap());
            // What the trimming thread has in its hands stays there.
            let report = heap.recover(&types, &blocks[..30]).unwrap();
            assert_eq!(report.trace.blocks, 30);
            let more: Vec<u64> = (0..20).map(|_| new(&heap, 60_000)).collect();
            more.iter().for_each(|&block| write(block, 59_992, round ^ block));
            std::thread::yield_now();
            assert!(
                blocks[..30].iter().all(|&block| read(block, 8) == round ^ block),
                "round {round}"
            );
            assert!(
                more.iter().all(|&block| read(block, 59_992) == round ^ block),
                "round {round}"
            );
            no_block_in_a_hole(&backing, &heap);
            blocks[..30].iter().chain(&more).for_each(|&block| heap.free(block).unwrap());
        }
        drop(held);
    });
    assert!(heap.check(None).unwrap().damage.is_empty());
}
