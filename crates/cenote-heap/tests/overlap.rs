//! The overlap checker under threads: every block is stamped by its owner, the stamps are verified
//! when it is freed, and blocks are freed by other threads than those that allocated them. A block
//! that is given out twice is stamped twice, and its first owner notices.

mod common;

use cenote_heap::{AllocError, Heap as _, Inspect as _, Trace, TracedHeap};
use cenote_layout::id::TypeId;
use cenote_testkit::environment::rounds;
use common::{Heap, Random, read, write};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex};

/// What is done at most, over all threads.
#[derive(Clone, Copy)]
struct Plan {
    threads: u64,
    /// Operations of each thread.
    operations: u64,
    /// Blocks that a thread keeps.
    live: usize,
    types: u64,
}

/// A block on its way to the thread that frees it.
struct Sent {
    addr: u64,
    size: u64,
    stamp: u64,
}

/// Stamps the first and the last words of a block.
fn stamp(addr: u64, size: u64, stamp: u64) {
    write(addr, 0, stamp);
    write(addr, size - 8, !stamp);
    if size > 64 {
        write(addr, size / 2 / 8 * 8, stamp ^ addr);
    }
}

fn verify(sent: &Sent) {
    let Sent { addr, size, stamp } = *sent;
    let middle = size <= 64 || read(addr, size / 2 / 8 * 8) == stamp ^ addr;
    assert!(
        read(addr, 0) == stamp && read(addr, size - 8) == !stamp && middle,
        "block {addr:#x} of {size} bytes has another owner's stamp"
    );
}

fn size(random: &mut Random) -> u64 {
    match random.below(1000) {
        0 => 65_536 * (1 + random.below(4)),
        1..=20 => 2_000 + random.below(12_000),
        21..=200 => 400 + random.below(1_600),
        _ => 1 + random.below(400),
    }
}

/// Allocates, frees, sends to other threads, gives back in two steps; ends with everything freed.
fn work(heap: &Heap, plan: Plan, me: u64, queues: &[Mutex<Vec<Sent>>], stamps: &AtomicU64) {
    let mut random = Random(me);
    let mut mine: Vec<Sent> = Vec::new();
    let free = |sent: Sent, random: &mut Random| {
        verify(&sent);
        write(sent.addr, 0, 0);
        if random.below(8) == 0 {
            let block = heap.find(sent.addr).unwrap();
            heap.clear_mark(&block);
            heap.release(&block);
        } else {
            heap.free(sent.addr).unwrap();
        }
    };
    let mut next = stamps.fetch_add(1 << 40, Ordering::Relaxed) + 1;
    for operation in 0..plan.operations / 2 {
        let wanted = size(&mut random);
        match heap.alloc(wanted, 16, TypeId(1 + random.below(plan.types))) {
            Ok(block) => {
                let (addr, size) = (block.addr.as_ptr() as u64, block.size);
                assert!(size >= wanted && addr.is_multiple_of(16));
                stamp(addr, size, next);
                mine.push(Sent { addr, size, stamp: next });
                next += 1;
            }
            Err(AllocError::Full { .. }) => {}
            Err(error) => panic!("{error}"),
        }
        if mine.len() > plan.live {
            let at = random.below(mine.len() as u64) as usize;
            let sent = mine.swap_remove(at);
            if random.below(4) == 0 {
                let to = random.below(plan.threads) as usize;
                queues[to].lock().unwrap().push(sent);
            } else {
                free(sent, &mut random);
            }
        }
        if operation % 64 == 0 {
            let sent = std::mem::take(&mut *queues[me as usize].lock().unwrap());
            sent.into_iter().for_each(|sent| free(sent, &mut random));
        }
    }
    mine.into_iter().for_each(|sent| free(sent, &mut random));
}

/// Runs a plan and looks at what is left: nothing, and no superblock whose free blocks are lost.
fn run(heap: &Heap, plan: Plan) {
    let queues: Vec<Mutex<Vec<Sent>>> = (0..plan.threads).map(|_| Mutex::new(Vec::new())).collect();
    let stamps = AtomicU64::new(1);
    std::thread::scope(|scope| {
        let (queues, stamps) = (&queues, &stamps);
        let spawn = |me| scope.spawn(move || work(heap, plan, me, queues, stamps));
        let threads: Vec<_> = (0..plan.threads).map(spawn).collect();
        // A scope by itself does not wait until the caches of its threads are given up.
        threads.into_iter().for_each(|thread| thread.join().unwrap());
    });
    for queue in queues {
        for sent in queue.into_inner().unwrap() {
            verify(&sent);
            heap.free(sent.addr).unwrap();
        }
    }
    let report = heap.check(None).unwrap();
    assert!(report.miscounted.is_empty() && report.damage.is_empty(), "{:x?}", report.miscounted);
    assert_eq!(report.stats.blocks, 0);
}

#[test]
fn no_block_is_given_to_two_owners() {
    let heap = common::heap(1 << 20, 256 << 20);
    run(&heap, Plan { threads: 4, operations: rounds(2_500_000), live: 1500, types: 5 });
}

#[test]
fn a_heap_that_is_full_most_of_the_time_gives_no_block_twice_and_loses_none() {
    let heap = common::heap(1 << 20, 3 << 20);
    run(&heap, Plan { threads: 4, operations: rounds(100_000), live: 900, types: 3 });
    // All of it can be had as one block each puddle.
    let mut bytes = 0;
    while let Ok(block) = heap.alloc(65_536, 16, TypeId(9)) {
        bytes += block.size;
    }
    let stats = heap.stats().unwrap();
    assert_eq!(bytes, (stats.superblocks - stats.metadata_superblocks) * 65_536);
}

#[test]
fn a_hundred_million_operations() {
    let heap = common::heap(4 << 20, 1 << 30);
    run(&heap, Plan { threads: 4, operations: rounds(25_000_000), live: 4000, types: 7 });
}

#[test]
fn memory_of_ended_threads_comes_back_at_once() {
    let heap = common::heap(common::room_for(15), common::room_for(15));
    // Each thread leaves its cache full of blocks of a type of its own; the heap has room for 15
    // superblocks.
    for round in 0..100 {
        std::thread::scope(|scope| {
            let thread = scope.spawn(|| {
                let block = heap.alloc(64, 16, TypeId(100 + round)).unwrap();
                heap.free(block.addr.as_ptr() as u64).unwrap();
            });
            thread.join().unwrap();
        });
    }
    let mut superblocks = 0;
    while heap.alloc(65_536, 16, TypeId(1)).is_ok() {
        superblocks += 1;
    }
    assert_eq!(superblocks, 15);
}

#[test]
fn a_thread_local_that_frees_when_its_thread_ends_finds_a_cache() {
    struct Last(Arc<Heap>, u64);
    impl Drop for Last {
        fn drop(&mut self) {
            self.0.free(self.1).unwrap();
            let block = self.0.alloc(64, 16, TypeId(1)).unwrap();
            self.0.free(block.addr.as_ptr() as u64).unwrap();
        }
    }
    std::thread_local! {
        static LAST: std::cell::RefCell<Option<Last>> = const { std::cell::RefCell::new(None) };
    }
    let heap = Arc::new(common::heap(1 << 20, 1 << 20));
    for cache_first in [true, false] {
        let other = Arc::clone(&heap);
        std::thread::spawn(move || {
            if !cache_first {
                LAST.with(|last| *last.borrow_mut() = None);
            }
            let block = other.alloc(64, 16, TypeId(1)).unwrap();
            LAST.with(|last| *last.borrow_mut() = Some(Last(other, block.addr.as_ptr() as u64)));
        })
        .join()
        .unwrap();
    }
    assert_eq!(heap.stats().unwrap().blocks, 0);
    assert!(heap.check(None).unwrap().miscounted.is_empty());
}

#[test]
fn what_was_in_caches_when_a_process_was_killed_is_free_again() {
    let backing = common::backing(common::room_for(15), common::room_for(15));
    {
        let heap = TracedHeap::open(backing.clone()).unwrap();
        heap.alloc(64, 16, TypeId(1)).unwrap();
        let held = heap.alloc(64, 16, TypeId(1)).unwrap();
        heap.clear_mark(&held);
        // No thread gives anything back: neither this one nor those that end.
        for me in 0..3 {
            std::thread::scope(|scope| {
                let thread = scope.spawn(|| {
                    for size in [16, 48, 64, 1000] {
                        let block = heap.alloc(size, 16, TypeId(2 + me)).unwrap();
                        heap.free(block.addr.as_ptr() as u64).unwrap();
                    }
                });
                thread.join().unwrap();
            });
        }
        let stats = heap.stats().unwrap();
        assert!(
            stats.blocks == 1 && stats.cached_blocks > 4096 + 1365 + 1024 + 63 - 3,
            "{stats:?}"
        );
    }
    for _ in 0..2 {
        let heap = TracedHeap::open(backing.clone()).unwrap();
        let stats = heap.stats().unwrap();
        assert_eq!((stats.blocks, stats.cached_blocks, stats.free_superblocks), (1, 0, 14));
        let mut superblocks = 0;
        while heap.alloc(65_536, 16, TypeId(9)).is_ok() {
            superblocks += 1;
        }
        assert_eq!(superblocks, 14);
        heap.recover(&common::TypeMap::new(), &[]).unwrap();
        heap.alloc(64, 16, TypeId(1)).unwrap();
    }
}
