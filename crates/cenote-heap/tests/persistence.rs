//! What is flushed and fenced, exactly; and what a crash between any two steps leaves.

use crate::common::{A, B, backing};
use cenote_heap::{DurabilityCounts, Heap as _, Inspect as _, TracedHeap};
use cenote_layout::id::TypeId;

fn since(backing: &cenote_heap::MemoryBacking, before: DurabilityCounts) -> (u64, u64, u64) {
    let now = backing.counts();
    (
        now.flushes - before.flushes,
        now.flushed_lines - before.flushed_lines,
        now.fences - before.fences,
    )
}

#[test]
fn the_fast_path_flushes_and_fences_nothing() {
    let backing = backing(8 << 20, 8 << 20);
    let heap = TracedHeap::open(backing.clone()).unwrap();
    // The last three are large blocks, of up to 16 superblocks.
    let sizes = [16, 64, 1000, 14_336, 16_384, 20_000, 32_768, 65_536, 100_000, 500_000];
    // One of each that stays, and as many as the loop has at a time; all before the first is freed,
    // because taking space makes idle runs of large blocks free.
    let blocks: Vec<_> =
        sizes.iter().flat_map(|&size| [size; 4]).map(|s| heap.alloc(s, 16, A).unwrap()).collect();
    for (_, block) in blocks.iter().enumerate().filter(|(i, _)| i % 4 != 0) {
        heap.free(block.addr.as_ptr() as u64).unwrap();
    }
    let before = backing.counts();
    for _ in 0..3 {
        for size in sizes {
            let blocks: Vec<_> = (0..3).map(|_| heap.alloc(size, 16, A).unwrap()).collect();
            for block in blocks {
                heap.free(block.addr.as_ptr() as u64).unwrap();
            }
            let block = heap.alloc(size, 16, A).unwrap();
            heap.clear_mark(&block);
            heap.release(&block);
        }
    }
    assert_eq!(since(&backing, before), (0, 0, 0));
}

#[test]
fn a_superblock_taken_costs_one_line_and_one_fence_and_giving_it_back_nothing() {
    let backing = backing(4 << 20, 4 << 20);
    let heap = TracedHeap::open(backing.clone()).unwrap();
    let mut blocks = Vec::new();
    let before = backing.counts();
    // 64 blocks of 1 KiB fit a superblock: 10 superblocks.
    for _ in 0..640 {
        blocks.push(heap.alloc(1024, 16, A).unwrap());
    }
    assert_eq!(since(&backing, before), (10, 10, 10));
    // Another type takes superblocks of its own.
    heap.alloc(1024, 16, B).unwrap();
    assert_eq!(since(&backing, before), (11, 11, 11));
    for block in blocks {
        heap.free(block.addr.as_ptr() as u64).unwrap();
    }
    assert_eq!(since(&backing, before), (11, 11, 11));
}

#[test]
fn a_large_block_costs_a_line_a_superblock_and_one_fence() {
    let backing = backing(4 << 20, 4 << 20);
    let heap = TracedHeap::open(backing.clone()).unwrap();
    let before = backing.counts();
    let block = heap.alloc(1_000_000, 16, A).unwrap();
    assert_eq!(since(&backing, before), (1, 16, 1));
    heap.free(block.addr.as_ptr() as u64).unwrap();
    assert_eq!(since(&backing, before), (1, 16, 1));
    // The same again costs nothing; another size or another type has to say so first.
    let again = heap.alloc(1_000_000, 16, A).unwrap();
    assert_eq!((again.addr, since(&backing, before)), (block.addr, (1, 16, 1)));
    heap.free(again.addr.as_ptr() as u64).unwrap();
    let other = heap.alloc(900_000, 16, A).unwrap();
    assert_eq!((other.addr, since(&backing, before)), (block.addr, (2, 16 + 14, 2)));
    heap.free(other.addr.as_ptr() as u64).unwrap();
    let other = heap.alloc(900_000, 16, B).unwrap();
    assert_eq!((other.addr, since(&backing, before)), (block.addr, (3, 16 + 14 + 14, 3)));
}

#[test]
fn a_root_is_set_in_three_durable_steps() {
    let backing = backing(1 << 20, 1 << 20);
    let heap = TracedHeap::open(backing.clone()).unwrap();
    let before = backing.counts();
    heap.set_root(0, 64, A).unwrap();
    assert_eq!(since(&backing, before), (3, 3, 3));
}

#[test]
fn opening_again_flushes_nothing_and_finds_everything() {
    let backing = backing(256 << 10, 64 << 20);
    let mut expected = Vec::new();
    {
        let heap = TracedHeap::open(backing.clone()).unwrap();
        for i in 0..20_000u64 {
            let block = heap.alloc(i % 500, 16, TypeId(i % 5)).unwrap();
            if i % 3 == 0 {
                heap.free(block.addr.as_ptr() as u64).unwrap();
            } else {
                expected.push((block.addr.as_ptr() as u64, block.type_id));
            }
        }
        let large = heap.alloc(300_000, 1 << 20, B).unwrap();
        expected.push((large.addr.as_ptr() as u64, B));
    }
    let before = backing.counts();
    let heap = TracedHeap::open(backing.clone()).unwrap();
    // The last blocks first: their puddles have not been looked at.
    for &(addr, type_id) in expected.iter().rev() {
        assert!(heap.is_live(addr, type_id));
    }
    assert_eq!(since(&backing, before), (0, 0, 0));
    assert_eq!(heap.stats().unwrap().blocks, expected.len() as u64);
    for (addr, _) in expected {
        heap.free(addr).unwrap();
    }
    assert_eq!(heap.stats().unwrap().blocks, 0);
}
