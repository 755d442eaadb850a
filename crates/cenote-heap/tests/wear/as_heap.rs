//! The wear heap as a pool's allocator: blocks of transactions, roots, places, and how many lines
//! and fences each step takes.

use super::{Bench, Heap, WAIT_MS, alloc, held, next};
use cenote_heap::{AllocError, Block, Cancelled, FreeError, Heap as _, RootError, Taking};
use cenote_layout::heap::RootEntry;
use cenote_layout::id::TypeId;
use cenote_layout::wear::COMMIT_BITS;
use std::collections::BTreeSet;
use std::sync::Mutex;

fn addr_of(block: &Block) -> u64 {
    block.addr.as_ptr() as u64
}

#[track_caller]
fn taken(heap: &Heap, size: u64) -> Block {
    heap.alloc_with(size, 8, TypeId(3), &mut |_| Ok(Taking::Taken)).expect("room")
}

#[test]
fn a_block_of_a_transaction_is_its_own_until_it_ends() {
    let bench = Bench::new(1 << 20);
    let heap = bench.create();
    let block = taken(&heap, 100);
    let addr = addr_of(&block);
    assert!(block.has_ticket && block.mark.mask == COMMIT_BITS);
    assert_eq!(heap.free(addr), Err(FreeError::InTransaction { addr }));
    heap.settle(&block);
    // A transaction is to free it, and does not.
    let found = heap.find_to_free(addr).expect("allocated");
    assert_eq!((found.mark, heap.free(addr)), (block.mark, Err(FreeError::InTransaction { addr })));
    heap.settle(&found);
    // Another one does.
    let found = heap.find_to_free(addr).expect("allocated");
    heap.clear_mark(&found);
    assert!(!heap.is_live(addr, TypeId(3)));
    assert_eq!(heap.stats().waiting_blocks, 0, "it is held until its log is finished");
    heap.release(&found);
    heap.release(&found);
    assert_eq!(heap.stats().waiting_blocks, 1);
    assert_eq!(heap.find_to_free(addr).err(), Some(FreeError::NotAllocated { addr }));
    bench.pass(u64::from(WAIT_MS) + 1);
    assert_eq!(alloc(&heap, 100), addr);
}

#[test]
fn an_allocation_that_is_cancelled_stores_nothing() {
    let bench = Bench::new(1 << 20);
    let heap = bench.create();
    let blocks = [0; 3].map(|_| alloc(&heap, 500));
    heap.free(blocks[1]).expect("allocated");
    bench.pass(200);
    let (lines, before) = (bench.memory.counts().flushed_lines, held(&heap));
    let mut asked = Vec::new();
    for align in [8, 256] {
        let cancelled = heap.alloc_with(64, align, TypeId(1), &mut |block| {
            asked.push(addr_of(block));
            Err(Cancelled)
        });
        assert!(matches!(cancelled, Err(AllocError::Cancelled)));
    }
    assert_eq!((bench.memory.counts().flushed_lines, held(&heap)), (lines, before));
    assert_eq!((asked.len(), asked[0]), (2, blocks[1]));
    assert_eq!(alloc(&heap, 500), blocks[1], "it is listed as before");
}

#[test]
fn roots_and_places_are_those_of_every_heap() {
    let bench = Bench::new(1 << 20);
    let heap = bench.create();
    let block = alloc(&heap, 100);
    heap.set_root(1023, block, TypeId(7)).expect("a root");
    let place = heap.place(block).expect("a place");
    assert_eq!(heap.root(1024), Err(RootError::Index { index: 1024 }));
    drop(heap);
    let heap = bench.open();
    assert_eq!(heap.root(1023), Ok(RootEntry { addr: block, type_id: TypeId(7) }));
    assert_eq!(heap.address(&place), Ok(block));
    assert!(heap.place(block + 64).is_err());
}

/// Lines that are flushed and fences, by the step.
#[test]
fn each_step_takes_as_many_lines_and_fences_as_its_protocol_says() {
    let bench = Bench::new(1 << 20);
    let heap = bench.create();
    let counted = |step: &dyn Fn()| {
        let before = bench.memory.counts();
        step();
        let after = bench.memory.counts();
        (after.flushed_lines - before.flushed_lines, after.fences - before.fences)
    };
    let allocated = |size| {
        counted(&|| {
            alloc(&heap, size);
        })
    };
    let blocks = [0; 4].map(|_| alloc(&heap, 576));
    assert_eq!(allocated(64), (1, 1), "open end");
    assert_eq!(counted(&|| heap.free(blocks[1]).expect("allocated")), (1, 1), "free");
    bench.pass(200);
    assert_eq!(allocated(576), (1, 1), "a free block, all of it");
    heap.free(blocks[1]).expect("allocated");
    bench.pass(200);
    assert_eq!(allocated(320), (2, 2), "a free block, and what is left over");
    heap.free(blocks[3]).expect("allocated");
    bench.pass(200);
    let transaction = counted(&|| heap.settle(&taken(&heap, 576)));
    assert_eq!(transaction, (1, 2), "a free block, by a transaction");
    let given_back = counted(&|| {
        let block = heap.find_to_free(blocks[3]).expect("allocated");
        heap.clear_mark(&block);
        heap.release(&block);
    });
    assert_eq!(given_back, (1, 1), "a free by a transaction");
    assert_eq!(counted(&|| drop(heap.check())), (0, 0));
}

/// Transactions of threads: taken, given back, cancelled, or left as they are.
fn transact(heap: &Heap, seed: u64, all: &Mutex<BTreeSet<u64>>) {
    let (mut seed, mut mine) = (seed, Vec::new());
    for _ in 0..3000 {
        let random = next(&mut seed);
        if mine.len() > 40 || (random % 8 < 3 && !mine.is_empty()) {
            let addr = mine.swap_remove(random as usize / 16 % mine.len());
            let block = heap.find_to_free(addr).expect("allocated");
            if random & 8 != 0 {
                heap.settle(&block);
                mine.push(addr);
                continue;
            }
            assert!(all.lock().unwrap().remove(&addr));
            heap.clear_mark(&block);
            heap.release(&block);
            continue;
        }
        let cancel = random % 16 == 9;
        let block = heap.alloc_with(random / 32 % 700, 8, TypeId(2), &mut |_| match cancel {
            true => Err(Cancelled),
            false => Ok(Taking::Taken),
        });
        let Ok(block) = block else { continue };
        let addr = addr_of(&block);
        assert!(all.lock().unwrap().insert(addr), "{addr:#x} is given out twice");
        if random / 8 % 4 == 1 {
            assert!(all.lock().unwrap().remove(&addr));
            heap.clear_mark(&block);
            heap.release(&block);
        } else {
            heap.settle(&block);
            mine.push(addr);
        }
    }
}

#[test]
fn transactions_of_threads_share_no_block() {
    for seed in [1, 2] {
        let bench = Bench::new(2 << 20);
        let (heap, all) = (bench.create(), Mutex::default());
        std::thread::scope(|scope| {
            for thread in 0..4 {
                let (heap, all) = (&heap, &all);
                scope.spawn(move || transact(heap, seed * 100 + thread, all));
            }
            (0..300).for_each(|_| {
                bench.pass(5);
                std::thread::yield_now();
            });
        });
        let all = all.into_inner().unwrap();
        assert_eq!(held(&heap).into_keys().collect::<BTreeSet<_>>(), all, "seed {seed}");
        drop(heap);
        assert_eq!(held(&bench.open()).into_keys().collect::<BTreeSet<_>>(), all, "seed {seed}");
    }
}
