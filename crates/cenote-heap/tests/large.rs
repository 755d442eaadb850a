//! Large blocks, alignment, and growth to the limit.

use crate::common::{A, B, Random, backing, heap, room_for};
use cenote_heap::{AllocError, BackingError, Heap as _, Inspect as _, Trace, TracedHeap};
use cenote_medium::planted::{Bug, plant};

const S: u64 = 65_536;

fn addr(block: cenote_heap::Block) -> u64 {
    block.addr.as_ptr() as u64
}

#[test]
fn neighbours_coalesce_in_each_order_of_being_freed() {
    let heap = heap(room_for(31), room_for(31));
    for order in 0..6u64 {
        let mut blocks: Vec<u64> =
            (0..10).map(|_| addr(heap.alloc(3 * S, 16, A).unwrap())).collect();
        assert!(heap.alloc(2 * S, 16, A).is_err());
        let mut random = Random(order);
        while !blocks.is_empty() {
            let at = random.below(blocks.len() as u64) as usize;
            heap.free(blocks.swap_remove(at)).unwrap();
        }
        let whole = heap.alloc(31 * S, 16, B).unwrap();
        assert_eq!(whole.size, 31 * S);
        heap.free(addr(whole)).unwrap();
    }
}

#[test]
fn idle_runs_serve_their_own_size_and_are_free_space_for_all_others() {
    // 31 superblocks.
    let heap = heap(room_for(31), room_for(31));
    let blocks: Vec<u64> = (0..10).map(|_| addr(heap.alloc(3 * S, 16, A).unwrap())).collect();
    for &block in &blocks {
        heap.free(block).unwrap();
        assert!(
            heap.free(block).is_err() && !heap.is_live(block, A) && heap.owner(block + S).is_none()
        );
    }
    assert_eq!(heap.stats().unwrap().free_superblocks, 31);
    // The last one freed is the first one used again.
    for &block in blocks.iter().rev() {
        assert_eq!(addr(heap.alloc(3 * S, 16, A).unwrap()), block);
        assert!(heap.is_live(block, A) && heap.owner(block + 2 * S + 5).is_some());
    }
    blocks.iter().for_each(|&block| heap.free(block).unwrap());
    // Another type, another size, small blocks and an alignment get what they need, in the lowest
    // gap.
    let other = heap.alloc(3 * S, 16, B).unwrap();
    assert_eq!(addr(other), blocks[0]);
    let aligned = heap.alloc(3 * S, 1 << 20, A).unwrap();
    assert_eq!(addr(aligned) % (1 << 20), 0);
    let small = heap.alloc(100, 16, A).unwrap();
    assert_eq!(addr(small), blocks[0] + 3 * S);
    let rest: u64 = (0..26).filter(|_| heap.alloc(S, 16, B).is_ok()).count() as u64;
    assert_eq!((rest, heap.stats().unwrap().free_superblocks), (24, 0));
    let report = heap.check(None).unwrap();
    assert!(report.damage.is_empty() && report.miscounted.is_empty());
}

#[test]
fn an_idle_run_that_is_not_taken_after_all_is_idle_again() {
    let heap = heap(2 << 20, 2 << 20);
    let block = addr(heap.alloc(5 * S, 16, A).unwrap());
    heap.free(block).unwrap();
    let cancelled = heap.alloc_with(5 * S, 16, A, &mut |found| {
        assert_eq!(addr(*found), block);
        Err(cenote_heap::Cancelled)
    });
    assert!(matches!(cancelled, Err(AllocError::Cancelled)));
    let panicked = std::panic::catch_unwind(std::panic::AssertUnwindSafe(|| {
        let _ = heap.alloc_with(5 * S, 16, A, &mut |_| panic!("the caller's"));
    }));
    assert!(panicked.is_err() && !heap.is_live(block, A));
    let again = heap.alloc(5 * S, 16, A).unwrap();
    assert_eq!(addr(again), block);
    // Halves of a free, as a transaction does them: held in between.
    heap.clear_mark(&again);
    assert_ne!(addr(heap.alloc(5 * S, 16, A).unwrap()), block);
    heap.release(&again);
    assert_eq!(addr(heap.alloc(5 * S, 16, A).unwrap()), block);
    assert_eq!(heap.stats().unwrap().large_blocks, 2);
}

#[test]
fn idle_runs_are_free_after_a_crash_and_after_recovery() {
    let backing = backing(room_for(31), room_for(31));
    let kept = {
        let heap = TracedHeap::open(backing.clone()).unwrap();
        let blocks: Vec<u64> = (0..10).map(|_| addr(heap.alloc(3 * S, 16, A).unwrap())).collect();
        blocks.iter().for_each(|&block| heap.free(block).unwrap());
        // One is used again. No thread is told of the others.
        addr(heap.alloc(3 * S, 16, A).unwrap())
    };
    let heap = TracedHeap::open(backing).unwrap();
    assert!(heap.is_live(kept, A));
    assert_eq!(
        (heap.stats().unwrap().large_blocks, heap.stats().unwrap().free_superblocks),
        (1, 28)
    );
    // What was idle can be had in other sizes; and idle runs of this session are computed anew by
    // recovery.
    for size in [9 * S, S, 2 * S] {
        heap.free(addr(heap.alloc(size, 16, B).unwrap())).unwrap();
    }
    heap.set_root(0, kept, A).unwrap();
    let types =
        crate::common::TypeMap::from([(A, crate::common::record(A, 3 * S, false, Vec::new()))]);
    heap.recover(&types, &[]).unwrap();
    assert!(heap.is_live(kept, A));
    // It was the last one of ten: what is before it is one run again.
    assert_eq!(addr(heap.alloc(27 * S, 16, B).unwrap()), kept - 27 * S);
    assert!(heap.check(None).unwrap().damage.is_empty());
}

#[test]
fn superblocks_of_small_blocks_join_large_ones_again() {
    let heap = heap(room_for(15), room_for(15));
    let mut blocks = Vec::new();
    while let Ok(block) = heap.alloc(1000, 16, A) {
        blocks.push(addr(block));
    }
    assert!(heap.alloc(S, 16, A).is_err());
    blocks.into_iter().for_each(|b| heap.free(b).unwrap());
    assert_eq!(heap.alloc(15 * S, 16, A).unwrap().size, 15 * S);
}

/// A heap is filled with blocks of one kind after the other, by a thread that remembers superblocks
/// of the kind before. Whether every block was of its kind and was freed.
fn kinds_follow_each_other(bug: Bug) -> bool {
    let heap = heap(1 << 20, 1 << 20);
    let mut right = true;
    plant(bug);
    for (type_id, size) in
        [(A, 64), (B, 64), (A, 128), (A, 64), (B, 48), (B, 3 * S), (A, 48), (A, 64)]
    {
        let mut blocks = Vec::new();
        while let Ok(block) = heap.alloc(size, 16, type_id) {
            blocks.push(addr(block));
        }
        right &= blocks.len() as u64 >= (12 * S) / size.next_multiple_of(16).max(49);
        right &= blocks.iter().all(|&block| heap.is_live(block, type_id));
        right &= blocks.iter().all(|&block| heap.free(block).is_ok());
        right &= heap.stats().is_ok_and(|stats| stats.blocks == 0);
    }
    plant(Bug::None);
    right
        && heap
            .check(None)
            .is_ok_and(|report| report.damage.is_empty() && report.miscounted.is_empty())
}

#[test]
fn what_a_thread_remembers_of_a_superblock_is_compared_with_what_it_is_now() {
    assert!(kinds_follow_each_other(Bug::None));
    assert!(!kinds_follow_each_other(Bug::RememberedUnchecked));
}

#[test]
fn first_fit_takes_the_lowest_gap() {
    let heap = heap(2 << 20, 2 << 20);
    let blocks: Vec<u64> = (0..6).map(|_| addr(heap.alloc(2 * S, 16, A).unwrap())).collect();
    heap.free(blocks[1]).unwrap();
    heap.free(blocks[3]).unwrap();
    heap.free(blocks[4]).unwrap();
    assert_eq!(addr(heap.alloc(3 * S, 16, A).unwrap()), blocks[3]);
    assert_eq!(addr(heap.alloc(S, 16, A).unwrap()), blocks[1]);
}

#[test]
fn all_alignments_up_to_2_mib_are_kept() {
    let heap = heap(256 << 10, 512 << 20);
    for shift in 0..=21 {
        for size in [1, 100, 5000, 14_000, 40_000, 200_000, 3_000_000] {
            let block = heap.alloc(size, 1 << shift, A).unwrap();
            assert_eq!(addr(block) % (1 << shift), 0, "size {size} align {}", 1u64 << shift);
            assert!(block.size >= size);
        }
    }
    let report = heap.check(None).unwrap();
    assert_eq!(report.stats.blocks, 22 * 7);
    assert!(report.damage.is_empty());
}

#[test]
fn puddles_double_up_to_the_limit_and_not_beyond() {
    use cenote_heap::Backing as _;
    let backing = backing(256 << 10, 10 << 20);
    let heap = TracedHeap::open(backing.clone()).unwrap();
    let error = loop {
        match heap.alloc(1000, 16, A) {
            Ok(_) => {}
            Err(error) => break error,
        }
    };
    let AllocError::Full { source: BackingError::Limit { bytes, size_max, .. }, .. } = error else {
        panic!("{error}")
    };
    assert_eq!(size_max, 10 << 20);
    let sizes: Vec<u64> = backing.extents().iter().map(|p| p.size >> 10).collect();
    assert_eq!(sizes, [256, 512, 1024, 2048, 4096, 10_240 - 7936]);
    assert_eq!(bytes, 10 << 20);
    // Full, and still in order: something freed can be had again.
    let mut some = 0;
    heap.walk(&mut |block| some = block.addr).unwrap();
    heap.free(some).unwrap();
    assert_eq!(addr(heap.alloc(1000, 16, A).unwrap()), some);
    assert!(heap.check(None).unwrap().miscounted.is_empty());
}

#[test]
fn a_large_pool_grows_by_a_thirty_second_of_what_it_has() {
    use cenote_heap::Backing as _;
    let backing = backing(2 << 20, 256 << 20);
    let heap = TracedHeap::open(backing.clone()).unwrap();
    while heap.alloc(1 << 19, 16, A).is_ok() {}
    let extents = backing.extents();
    let mut bytes = 0;
    for extent in &extents {
        if bytes >= 32 << 20 {
            assert!(extent.size <= bytes / 32 + (2 << 20), "{} after {bytes}", extent.size);
        }
        bytes += extent.size;
    }
    assert_eq!(bytes, 256 << 20);
    assert!((40..80).contains(&extents.len()), "{}", extents.len());
}

#[test]
fn one_large_block_gets_a_puddle_that_fits() {
    use cenote_heap::Backing as _;
    let backing = backing(256 << 10, 300 << 20);
    let heap = TracedHeap::open(backing.clone()).unwrap();
    let block = heap.alloc(100 << 20, 2 << 20, A).unwrap();
    assert_eq!(addr(block) % (2 << 20), 0);
    assert_eq!(backing.extents().len(), 2);
    heap.free(addr(block)).unwrap();
    // Its space serves the next ones.
    for _ in 0..100 {
        heap.alloc(1 << 20, 16, B).unwrap();
    }
    assert_eq!(backing.extents().len(), 2);
}

#[test]
fn a_full_disk_is_an_error_and_no_harm() {
    let backing = backing(256 << 10, 64 << 20);
    let heap = TracedHeap::open(backing.clone()).unwrap();
    backing.refuse_growth(true);
    let mut blocks = Vec::new();
    let error = loop {
        match heap.alloc(5000, 16, A) {
            Ok(block) => blocks.push(addr(block)),
            Err(error) => break error,
        }
    };
    assert!(matches!(error, AllocError::Full { source: BackingError::Store { .. }, .. }));
    assert!(error.to_string().contains("no space left"));
    assert!(heap.alloc(1 << 20, 16, A).is_err());
    backing.refuse_growth(false);
    heap.alloc(1 << 20, 16, A).unwrap();
    blocks.into_iter().for_each(|b| heap.free(b).unwrap());
    assert_eq!(heap.stats().unwrap().blocks, 1);
}
