//! Attacks on the wear heap that found something.

use super::{Bench, Heap, LINE, WAIT_MS, alloc, damage};
use cenote_heap::wear::{WEAR_BLOCK_MAX, WearClock, WearHeap};
use cenote_heap::{Heap as _, MemoryBacking};
use cenote_layout::id::TypeId;
use cenote_testkit::random::next;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

/// Frees a block as a transaction does.
fn give_back(heap: &Heap, addr: u64) {
    let block = heap.find_to_free(addr).expect("allocated");
    heap.clear_mark(&block);
    heap.release(&block);
}

/// A block that a transaction freed grew when it was allocated again. So the slot of its header
/// that is not in use says that it was shorter; behind that stands a free header of then.
#[test]
fn the_size_that_a_freed_block_had_is_not_believed() {
    for bit in 0..512u64 {
        let bench = Bench::new(256 << 10);
        let heap = bench.create();
        let [first, second, _] = [576, 576, 64].map(|size| alloc(&heap, size));
        give_back(&heap, first);
        heap.free(second).expect("allocated");
        bench.pass(u64::from(WAIT_MS) + 1);
        let grown = heap.alloc(896, 8, TypeId(7)).expect("both");
        assert_eq!((grown.addr, grown.size), (first, 896));
        drop(heap);
        damage(first - LINE + bit / 8, 1 << (bit % 8));
        bench.pass(1000);
        let heap = bench.open();
        assert!(heap.find(first).is_err(), "bit {bit}");
        for _ in 0..20 {
            let new = heap.alloc(64, 8, TypeId(7)).expect("room");
            let apart = new.addr >= first + 896 || new.addr + new.size <= first - LINE;
            assert!(apart, "bit {bit}: {:#x} lies in {first:#x}", new.addr);
        }
    }
}

/// The largest block takes all lines that a header can say.
#[test]
fn the_largest_block_has_a_header_that_says_its_size() {
    let most = WEAR_BLOCK_MAX;
    for less in [0, 64, 65536] {
        let bench = Bench::with_puddles(4608 << 20, 4608 << 20);
        let heap = bench.create();
        let block = heap.alloc(most - less, 8, TypeId(7)).expect("room");
        assert!(block.size >= most - less);
        let small = alloc(&heap, 64);
        drop(heap);
        let heap = bench.open();
        let report = heap.check();
        assert_eq!(report.damage, [], "{less}");
        assert_eq!(heap.find(block.addr), Ok(block), "{less}");
        assert!(heap.is_live(small, TypeId(7)));
        heap.free(block.addr).expect("allocated");
        bench.pass(1000);
        // Again, with what is left over.
        let again = heap.alloc(most - less, 8, TypeId(7)).expect("room");
        drop(heap);
        let heap = bench.open();
        assert_eq!(heap.check().damage, [], "{less}");
        assert_eq!(heap.find(again.addr), Ok(again), "{less}");
    }
}

/// A thread that waits for the lock of the heap has an old time.
#[test]
fn a_block_that_was_freed_while_an_allocation_waited_is_not_given_out() {
    let bench = Bench::new(256 << 10);
    let is_late = Arc::new(AtomicBool::new(false));
    let was_freed = Arc::new(AtomicBool::new(false));
    let (now, late, freed) =
        (Arc::clone(&bench.now_ms), Arc::clone(&is_late), Arc::clone(&was_freed));
    let mut options = bench.options();
    options.clock = WearClock::new(move || {
        let time = now.load(Ordering::Relaxed);
        if late.swap(false, Ordering::AcqRel) {
            // The other thread frees meanwhile, if it can.
            let until = Instant::now() + Duration::from_millis(300);
            while !freed.load(Ordering::Acquire) && Instant::now() < until {
                std::thread::yield_now();
            }
        }
        time
    });
    let heap: WearHeap<MemoryBacking> =
        WearHeap::create(bench.memory.clone(), &options).expect("a heap");
    let block = alloc(&heap, 1000);
    let _behind = alloc(&heap, 64);
    is_late.store(true, Ordering::Release);
    std::thread::scope(|scope| {
        let allocation = scope.spawn(|| alloc(&heap, 1000));
        while is_late.load(Ordering::Acquire) {
            std::thread::yield_now();
        }
        bench.pass(5);
        heap.free(block).expect("allocated");
        was_freed.store(true, Ordering::Release);
        assert_ne!(allocation.join().expect("no panic"), block, "it waits");
    });
}

/// Ranges that do not fit stand before one that does.
#[test]
fn a_range_that_fits_is_found_behind_many_that_do_not() {
    let bench = Bench::new(256 << 10);
    let heap = bench.create();
    // 8 and 9 lines share a class.
    let mut freed = Vec::new();
    for _ in 0..60 {
        freed.push(alloc(&heap, 448));
        alloc(&heap, 64);
    }
    freed.push(alloc(&heap, 512));
    alloc(&heap, 64);
    while heap.alloc(64, 8, TypeId(7)).is_ok() {}
    for block in freed {
        heap.free(block).expect("allocated");
    }
    bench.pass(1000);
    assert_eq!(heap.alloc(512, 8, TypeId(7)).map(|block| block.size).ok(), Some(512));
}

/// A scan of so many blocks took time by their square: 1.2 s for 100,000 that wait, 2 s for 50,000
/// with damaged headers.
const MANY: u64 = 60_000;

/// Blocks that were freed in any order.
#[test]
fn many_blocks_that_wait_are_scanned_in_the_order_of_their_times() {
    let bench = Bench { wait_ms: 1 << 20, ..Bench::with_puddles(32 << 20, 32 << 20) };
    let heap = bench.create();
    let mut blocks: Vec<u64> = (0..MANY).map(|_| alloc(&heap, 64)).collect();
    while heap.alloc(64, 8, TypeId(7)).is_ok() {}
    let mut seed = 3;
    for at in (1..blocks.len()).rev() {
        blocks.swap(at, next(&mut seed) as usize % (at + 1));
    }
    for &block in &blocks {
        heap.free(block).expect("allocated");
        bench.pass(1);
    }
    drop(heap);
    let heap = bench.open();
    let began = Instant::now();
    assert_eq!(heap.stats().waiting_blocks, MANY);
    println!("scanned in {:?}", began.elapsed());
    // The first of them has waited, then the next ones.
    bench.pass((1 << 20) - MANY);
    for &block in &blocks[..50] {
        assert!(heap.alloc(64, 8, TypeId(7)).is_err(), "it waits");
        bench.pass(1);
        assert_eq!(alloc(&heap, 64), block);
    }
}

#[test]
fn many_damaged_headers_are_scanned_and_each_is_told_once() {
    let bench = Bench::with_puddles(32 << 20, 32 << 20);
    let heap = bench.create();
    let blocks: Vec<u64> = (0..MANY).map(|_| alloc(&heap, 64)).collect();
    drop(heap);
    for block in blocks.iter().step_by(2) {
        damage(block - LINE + 20, 1);
    }
    for _ in 0..2 {
        let heap = bench.open();
        let began = Instant::now();
        let stats = heap.stats();
        println!("scanned in {:?}", began.elapsed());
        assert_eq!((stats.blocks, heap.damage().len() as u64), (MANY / 2, MANY / 2));
        assert_eq!(stats.damaged_bytes, MANY / 2 * 2 * LINE);
    }
}
