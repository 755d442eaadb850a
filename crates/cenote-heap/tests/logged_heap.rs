//! A logged heap of sub-heaps in plain memory: CPUs that come and go, growth, other CPUs' blocks,
//! transactions over several sub-heaps, wrong frees, and a model.

use cenote_heap::logged::{
    AllocRefused, FreeRefused, LoggedError, LoggedHeap, LoggedOptions, Recovered, Region, SubHeap,
    SubHeapPlace,
};
use cenote_heap::{Backing, FreeError, MemoryBacking, MemoryOptions};
use cenote_layout::id::TypeId;
use cenote_layout::logged::{LoggedHeader, SUB_HEAPS_MAX, SubHeapGeometry};
use cenote_layout::puddle::header_space;
use cenote_medium::planted::{Bug, LoggedBug, plant};
use cenote_testkit::random::next;
use std::cell::Cell;
use std::collections::{BTreeMap, BTreeSet};
use std::panic::{AssertUnwindSafe, catch_unwind};

type Heap = LoggedHeap<MemoryBacking>;

thread_local! {
    static CPU: Cell<u32> = const { Cell::new(0) };
}

/// From now on this thread runs on that CPU, as the heap sees it.
fn run_on(cpu: u32) {
    CPU.set(cpu);
}

fn options(sub_heaps: u32) -> LoggedOptions {
    let cpu = || CPU.get();
    LoggedOptions { sub_heaps, lanes: 4, tickets: 0, levels: 2, cpu, ..LoggedOptions::default() }
}

fn memory(size_max: u64) -> MemoryBacking {
    let options = MemoryOptions { puddle_size: 256 << 10, size_max, writable: true };
    MemoryBacking::new(options)
}

fn create(backing: &MemoryBacking, sub_heaps: u32) -> Heap {
    LoggedHeap::create(backing.clone(), &options(sub_heaps)).expect("a heap")
}

fn open(backing: &MemoryBacking, sub_heaps: u32) -> Heap {
    LoggedHeap::open(backing.clone(), &options(sub_heaps)).expect("a heap").0
}

fn numbers(heap: &Heap) -> Vec<u32> {
    heap.sub_heaps().map(|(number, _)| number).collect()
}

#[track_caller]
fn alloc(heap: &Heap, size: u64) -> u64 {
    heap.alloc(size, 1, TypeId(7)).expect("room").addr
}

/// The sub-heap that has a block.
#[track_caller]
fn home_of(heap: &Heap, addr: u64) -> u32 {
    let owner = heap.sub_heaps().find(|(_, sub)| sub.find(addr).is_ok());
    owner.expect("a block of one sub-heap").0
}

/// What is allocated, by address: size and type. Fails if a check finds damage.
#[track_caller]
fn held(heap: &Heap) -> BTreeMap<u64, (u64, u64)> {
    let mut all = BTreeMap::new();
    for (number, sub) in heap.sub_heaps() {
        let report = sub.check();
        assert_eq!(report.damage, [], "sub-heap {number}");
        all.extend(report.blocks.iter().map(|b| (b.addr, (b.size, b.type_id.0))));
    }
    all
}

#[test]
fn a_sub_heap_is_made_at_the_first_allocation_on_a_cpu() {
    let backing = memory(64 << 20);
    let heap = create(&backing, 4);
    assert_eq!(numbers(&heap), []);
    for cpu in [2, 0, 6, 4] {
        run_on(cpu);
        let block = alloc(&heap, 300);
        assert_eq!(home_of(&heap, block), cpu % 4, "the sub-heap is the CPU modulo their number");
    }
    assert_eq!(numbers(&heap), [0, 2]);
    drop(heap);
    let heap = open(&backing, 4);
    assert_eq!((numbers(&heap), held(&heap).len()), (vec![0, 2], 4));
}

#[test]
fn a_block_is_freed_in_its_own_sub_heap_by_any_cpu() {
    let backing = memory(64 << 20);
    let heap = create(&backing, 3);
    let blocks = [0, 1, 2].map(|cpu| {
        run_on(cpu);
        alloc(&heap, 1000)
    });
    run_on(1);
    blocks.iter().for_each(|&addr| heap.free(addr).expect("allocated"));
    assert_eq!(held(&heap).len(), 0);
    let again = blocks.map(|addr| heap.free(addr));
    assert!(again.iter().all(|freed| {
        matches!(freed, Err(FreeRefused::NoBlock(FreeError::NotAllocated { .. })))
    }));
    plant(Bug::Logged(LoggedBug::FreedInOwnSubHeap));
    run_on(0);
    let block = alloc(&heap, 1000);
    run_on(1);
    let freed = heap.free(block);
    plant(Bug::None);
    assert!(freed.is_err(), "{:?} was not found", LoggedBug::FreedInOwnSubHeap);
}

#[test]
fn a_pool_moves_to_machines_with_fewer_and_more_cpus() {
    let backing = memory(16 << 20);
    let heap = create(&backing, 8);
    let mut blocks: Vec<u64> = (0..8)
        .map(|cpu| {
            run_on(cpu);
            alloc(&heap, 5000)
        })
        .collect();
    drop(heap);
    // Two CPUs: blocks of the other six are freed as before, and their room serves.
    let heap = open(&backing, 2);
    assert_eq!((numbers(&heap).len(), held(&heap).len()), (8, 8));
    run_on(5);
    blocks.drain(..4).for_each(|addr| heap.free(addr).expect("allocated"));
    while let Ok(block) = heap.alloc(60_000, 1, TypeId(7)) {
        blocks.push(block.addr);
    }
    let homes: BTreeSet<u32> = blocks.iter().map(|&addr| home_of(&heap, addr)).collect();
    assert_eq!(homes.len(), 8, "a full pool uses all sub-heaps");
    drop(heap);
    // Sixteen CPUs, and no room for more sub-heaps: their threads share those that are there.
    let heap = open(&backing, 16);
    blocks.drain(..).for_each(|addr| heap.free(addr).expect("allocated"));
    for cpu in 0..16 {
        run_on(cpu);
        alloc(&heap, 100);
    }
    assert_eq!((numbers(&heap).len(), held(&heap).len()), (8, 16));
}

#[test]
fn a_full_sub_heap_grows_and_asks_others_only_at_the_limit() {
    let backing = memory(4 << 20);
    let heap = create(&backing, 2);
    run_on(1);
    alloc(&heap, 64);
    run_on(0);
    let mut homes = Vec::new();
    while let Ok(block) = heap.alloc(30_000, 1, TypeId(1)) {
        homes.push(home_of(&heap, block.addr));
    }
    let own = homes.iter().take_while(|&&home| home == 0).count();
    assert!(own > 60, "{own} of {}", homes.len());
    assert!(homes[own..].iter().all(|&home| home == 1) && homes.len() > own);
    let refused = heap.alloc(30_000, 1, TypeId(1));
    assert!(matches!(refused, Err(AllocRefused::Backing(_))), "{refused:?}");
    assert_eq!(held(&heap).len(), homes.len() + 1);
    // One large block has a puddle of its own size.
    let backing = memory(64 << 20);
    let heap = create(&backing, 1);
    for size in [300 << 10, 3 << 20, 16 << 20] {
        let block = heap.alloc(size, 2 << 20, TypeId(1)).expect("a larger puddle");
        assert!(block.size >= size && block.addr.is_multiple_of(2 << 20));
    }
    assert!(matches!(heap.alloc(1, 4 << 20, TypeId(1)), Err(AllocRefused::Align { .. })));
    assert!(matches!(heap.alloc(u64::MAX, 1, TypeId(1)), Err(AllocRefused::Full { .. })));
    drop(heap);
    assert_eq!(held(&open(&backing, 1)).len(), 3);
}

/// Slots of the tables of all sub-heaps that were looked at.
fn probes(heap: &Heap) -> u64 {
    heap.stats().expect("sound").iter().map(|(_, stats)| stats.probes).sum()
}

/// Small blocks fill all sub-heaps to the pool's limit. A slot that is freed then serves its type
/// on every CPU, and no other type.
#[test]
fn at_the_limit_slots_of_all_sub_heaps_are_used() {
    let backing = memory(3 << 20);
    let heap = Heap::create(backing, &LoggedOptions { levels: 5, ..options(3) }).expect("a heap");
    let small = |kind| heap.alloc(40, 1, TypeId(kind)).map(|block| block.addr);
    let mut all = BTreeSet::new();
    for cpu in (0..3).cycle() {
        run_on(cpu);
        match small(1) {
            Ok(addr) => assert!(all.insert(addr), "{addr:#x} twice"),
            Err(refused) => {
                assert!(matches!(refused, AllocRefused::Backing(_)), "{refused}");
                break;
            }
        }
    }
    assert_eq!(held(&heap).len(), all.len());
    // The rest are three tables, headers, and what is left of puddles.
    assert!(all.len() as u64 * 48 > 2 << 20, "{}", all.len());
    // What is full is not looked through again.
    let before = probes(&heap);
    for kind in [1, 2, 1, 2] {
        small(kind).expect_err("no room");
    }
    assert!(probes(&heap) - before < 8 * 3 * 200, "{}", probes(&heap) - before);
    for number in 0..3 {
        let of = |addr: &&u64| home_of(&heap, **addr) == number;
        let freed = *all.iter().find(of).expect("a block of each sub-heap");
        heap.free(freed).expect("freed");
        run_on((number + 1) % 3);
        small(2).expect_err("a slot of another type");
        assert_eq!(small(1).expect("the slot"), freed);
    }
    all.iter().for_each(|addr| heap.free(*addr).expect("freed"));
    heap.alloc(512 << 10, 1, TypeId(3)).expect("one block of what was slabs");
}

/// More data have free blocks, whose records may find no slot: then the table grows first.
#[test]
fn a_full_table_stops_no_growth_of_data() {
    let sizes = [24, 40, 100, 200, 300, 1000, 5000];
    for mut seed in 0..400 {
        let heap = LoggedHeap::create(memory(32 << 20), &LoggedOptions { levels: 1, ..options(1) });
        let heap = heap.expect("a heap");
        for number in 0..300 {
            let done = heap.alloc(sizes[next(&mut seed) as usize % sizes.len()], 1, TypeId(7));
            assert!(done.is_ok(), "{seed}, {number}: {done:?}");
        }
    }
}

#[test]
fn the_table_grows_by_puddles_of_metadata() {
    let backing = memory(64 << 20);
    let heap = create(&backing, 1);
    run_on(0);
    let all: Vec<u64> = (0..20_000).map(|_| alloc(&heap, 256)).collect();
    let before = heap.stats().expect("counts")[0].1;
    assert!(before.levels > 6 && before.blocks == 20_000, "{before:?}");
    let blocks = held(&heap);
    drop(heap);
    let heap = open(&backing, 1);
    assert_eq!(held(&heap), blocks);
    all.iter().for_each(|&addr| heap.free(addr).expect("allocated"));
    for (_, sub) in heap.sub_heaps() {
        sub.compact().expect("whole");
    }
    let after = heap.stats().expect("counts")[0].1;
    // Records do not move, so the level of one that stays does.
    assert_eq!((after.levels < before.levels, after.free_bytes), (true, after.data_bytes));
    // The levels come back where they were.
    let puddles = backing.counts().puddles;
    (0..20_000).for_each(|_| assert!(alloc(&heap, 256) != 0));
    assert_eq!(backing.counts().puddles, puddles);
}

/// Whether free blocks of two parts without gaps before them are merged.
fn merges_across(bug: Bug) -> bool {
    let levels = SubHeapGeometry::levels_for(2 << 20);
    let geometry = SubHeapGeometry::new(1, 0, levels).expect("a geometry");
    let backing =
        MemoryBacking::new(MemoryOptions { puddle_size: 2 << 20, ..MemoryOptions::default() });
    let region = |size, len| {
        let extent = backing.take(size).expect("memory");
        Region { puddle: extent.index, base: extent.addr, from: 0, len }
    };
    let metadata = region(4 << 20, geometry.metadata_len);
    let [one, other] = [2 << 20, 2 << 20].map(|size| region(size, size));
    let place = SubHeapPlace { data: one, metadata };
    // SAFETY: three puddles of memory that nothing else uses; the sub-heap keeps them.
    let sub = unsafe {
        let sub = SubHeap::format(backing.clone(), &place, 0, 1).expect("a sub-heap");
        sub.add_data(&other).expect("room for a part");
        sub
    };
    plant(bug);
    let blocks = [0; 4].map(|_| sub.alloc(1 << 20, 1, TypeId(1)).expect("room").addr);
    blocks.iter().for_each(|&addr| sub.free(addr).expect("allocated"));
    let _ = sub.compact();
    plant(Bug::None);
    !sub.check().damage.is_empty()
}

#[test]
fn blocks_of_two_parts_are_never_merged() {
    assert!(!merges_across(Bug::None));
    assert!(
        merges_across(Bug::Logged(LoggedBug::BuddyOfOtherPart)),
        "{:?} was not found",
        LoggedBug::BuddyOfOtherPart
    );
}

#[test]
fn every_wrong_free_of_a_heap_is_named() {
    let backing = memory(64 << 20);
    let heap = create(&backing, 2);
    run_on(0);
    let block = alloc(&heap, 1000);
    let root = backing.extents()[0];
    let refused = |addr: u64| match heap.free(addr) {
        Err(FreeRefused::NoBlock(error)) => error,
        other => panic!("{addr:#x}: {other:?}"),
    };
    let foreign = backing.foreign_puddle();
    assert_eq!(refused(foreign), FreeError::OtherPool { addr: foreign });
    assert_eq!(refused(block + 8), FreeError::InsideBlock { addr: block + 8, block });
    for addr in [root.addr, root.addr + root.size - 8, block / (2 << 20) * (2 << 20)] {
        let error = refused(addr);
        let is_named = matches!(error, FreeError::NotABlock { .. } | FreeError::NotInHeap { .. });
        assert!(is_named, "{addr:#x}: {error:?}");
    }
    assert_eq!(refused(8), FreeError::NotInHeap { addr: 8 });
    assert_eq!(held(&heap).len(), 1);
    heap.free(0).expect("0 is nothing");
}

#[test]
fn a_heap_is_made_once_and_open_once() {
    let backing = memory(64 << 20);
    let none = LoggedHeap::open(backing.clone(), &options(1));
    assert!(matches!(none, Err(LoggedError::Header(_))), "{none:?}");
    let heap = create(&backing, 1);
    let second = LoggedHeap::open(backing.clone(), &options(1));
    assert!(matches!(second, Err(LoggedError::Open)), "{second:?}");
    drop(heap);
    let again = LoggedHeap::create(backing.clone(), &options(1));
    assert!(matches!(again, Err(LoggedError::Exists)), "{again:?}");
    let reader = LoggedHeap::open(backing.read_only(), &options(1));
    assert!(matches!(reader, Err(LoggedError::ReadOnly)), "{reader:?}");
    assert_eq!(numbers(&open(&backing, 1)), []);
}

#[test]
fn a_flipped_bit_of_the_root_puddle_is_refused() {
    let backing = memory(64 << 20);
    let heap = create(&backing, 2);
    for cpu in 0..2 {
        run_on(cpu);
        alloc(&heap, 64);
    }
    drop(heap);
    let root = backing.extents()[0];
    let start = root.addr + header_space(root.size);
    let words = LoggedHeader::WORDS..LoggedHeader::WORDS + 8 * u64::from(SUB_HEAPS_MAX);
    for byte in (0..64).chain(words) {
        let at = core::ptr::with_exposed_provenance_mut::<u8>((start + byte) as usize);
        for bit in [1u8, 64] {
            // SAFETY: a byte of the test's memory, which no thread uses meanwhile.
            unsafe { *at ^= bit };
            assert!(LoggedHeap::open(backing.clone(), &options(2)).is_err(), "byte {byte}");
            // SAFETY: as above.
            unsafe { *at ^= bit };
        }
    }
    assert_eq!(held(&open(&backing, 2)).len(), 2);
}

#[test]
fn a_transaction_reaches_over_sub_heaps() {
    let backing = memory(64 << 20);
    let heap = create(&backing, 3);
    let old = [0, 1, 2].map(|cpu| {
        run_on(cpu);
        alloc(&heap, 500)
    });
    let work = |log: &mut cenote_heap::logged::HeapLog<'_, MemoryBacking>| {
        let new = [1, 0, 2].map(|cpu| {
            run_on(cpu);
            log.alloc(200, 1, TypeId(3), false).expect("room").addr
        });
        log.free(old[0]).expect("allocated");
        log.free(old[2]).expect("allocated");
        assert!(log.free(old[0]).is_err() && heap.free(old[2]).is_err());
        assert!(heap.free(new[1]).is_err() && log.free(8).is_err());
        new
    };
    let mut log = heap.log();
    work(&mut log);
    log.abort().expect("whole");
    assert_eq!(held(&heap).into_keys().collect::<BTreeSet<_>>(), BTreeSet::from(old));
    work(&mut log);
    drop(log);
    assert_eq!(held(&heap).len(), 3);
    let mut log = heap.log();
    let new = work(&mut log);
    run_on(0);
    let last = log.alloc(100, 1, TypeId(3), true).expect("room").addr;
    let left = BTreeSet::from([old[1], new[0], new[1], new[2], last]);
    assert_eq!(held(&heap).into_keys().collect::<BTreeSet<_>>(), left);
}

#[test]
fn a_transaction_that_its_process_did_not_end_is_ended_by_the_next() {
    let backing = memory(64 << 20);
    let heap = create(&backing, 3);
    run_on(0);
    let last = alloc(&heap, 100);
    let left = BTreeSet::from([last]);
    // The heap's lanes are as a process leaves them that dies in a transaction.
    let heap = std::mem::ManuallyDrop::new(heap);
    let mut log = std::mem::ManuallyDrop::new(heap.log());
    run_on(1);
    log.alloc(200, 1, TypeId(3), false).expect("room");
    run_on(2);
    log.alloc(200, 1, TypeId(3), false).expect("room");
    log.free(last).expect("allocated");
    for extent in backing.extents() {
        let slot = backing.slot(extent.addr).expect("a puddle");
        slot.store(core::ptr::null_mut(), core::sync::atomic::Ordering::Release);
    }
    let (heap, recovered) = LoggedHeap::open(backing.clone(), &options(3)).expect("a heap");
    assert_eq!(recovered, Recovered { undone: false, freed: 2 });
    assert_eq!(held(&heap).into_keys().collect::<BTreeSet<_>>(), left);
    // All lanes of a sub-heap are taken: others serve.
    run_on(0);
    let mut logs: Vec<_> = (0..12).map(|_| heap.log()).collect();
    for log in &mut logs {
        log.alloc(64, 1, TypeId(1), false).expect("a lane of some sub-heap");
    }
    let mut one_more = heap.log();
    assert!(one_more.alloc(64, 1, TypeId(1), false).is_err());
}

/// Steps of a generator, from a seed.
struct Random(u64);

impl Random {
    fn below(&mut self, bound: u64) -> u64 {
        self.0 ^= self.0 << 13;
        self.0 ^= self.0 >> 7;
        self.0 ^= self.0 << 17;
        self.0 % bound
    }
}

/// One thread of the model test: allocates on changing CPUs, frees blocks of all threads.
fn thread_work(heap: &Heap, seed: u64, shared: &std::sync::Mutex<BTreeMap<u64, (u64, u64)>>) {
    let mut random = Random(seed);
    for _ in 0..500 {
        run_on(random.below(7) as u32);
        let kind = 1 + random.below(5);
        match random.below(10) {
            0..5 => {
                let most = 1 << (4 + random.below(13));
                let Ok(block) = heap.alloc(1 + random.below(most), 1, TypeId(kind)) else {
                    continue;
                };
                let mut model = shared.lock().expect("no panic");
                let before = model.range(..block.addr + block.size).next_back();
                assert!(before.is_none_or(|(at, (len, _))| at + len <= block.addr));
                model.insert(block.addr, (block.size, kind));
            }
            5..9 => {
                let taken = {
                    let mut model = shared.lock().expect("no panic");
                    let count = model.len().max(1) as u64;
                    let addr = model.keys().nth(random.below(count) as usize).copied();
                    addr.inspect(|addr| assert!(model.remove(addr).is_some()))
                };
                if let Some(addr) = taken {
                    heap.free(addr).expect("freed once");
                }
            }
            _ => {
                let mut log = heap.log();
                let mut new = Vec::new();
                for _ in 0..random.below(5) {
                    run_on(random.below(7) as u32);
                    let block = log.alloc(1 + random.below(900), 1, TypeId(kind), false);
                    new.extend(block.ok());
                }
                if random.below(2) == 0 {
                    log.commit().expect("whole");
                    let mut model = shared.lock().expect("no panic");
                    model.extend(new.iter().map(|b| (b.addr, (b.size, kind))));
                }
            }
        }
    }
}

#[test]
fn threads_on_changing_cpus_match_an_interval_map() {
    for seed in 1..=3u64 {
        let backing = memory(12 << 20);
        drop(create(&backing, 1));
        let shared = std::sync::Mutex::default();
        for round in 0..3 {
            // As on machines with different numbers of CPUs.
            let heap = open(&backing, [5, 2, 7][round]);
            std::thread::scope(|scope| {
                for thread in 1..=3u64 {
                    let (heap, shared) = (&heap, &shared);
                    let seed = seed * 977 + thread * 0x9e37_79b9 + round as u64 * 31;
                    scope.spawn(move || thread_work(heap, seed, shared));
                }
            });
            assert_eq!(held(&heap), *shared.lock().expect("no panic"), "seed {seed}");
        }
    }
}

#[test]
fn a_full_disk_is_an_error_and_nothing_is_lost() {
    let backing = memory(64 << 20);
    let heap = create(&backing, 2);
    run_on(0);
    let first = alloc(&heap, 64);
    backing.refuse_growth(true);
    // No sub-heap can be made for this CPU: it uses the other.
    run_on(1);
    let second = alloc(&heap, 64);
    assert_eq!((home_of(&heap, first), home_of(&heap, second)), (0, 0));
    let refused = (0..100_000).find_map(|_| heap.alloc(64, 1, TypeId(1)).err());
    assert!(matches!(refused, Some(AllocRefused::Backing(_))), "{refused:?}");
    let blocks = held(&heap);
    drop(heap);
    backing.refuse_growth(false);
    let heap = open(&backing, 2);
    assert_eq!(held(&heap), blocks);
    alloc(&heap, 64);
    assert_eq!(numbers(&heap), [0, 1]);
    let panicked = catch_unwind(AssertUnwindSafe(|| {
        let mut log = heap.log();
        log.alloc(64, 1, TypeId(1), false).expect("room");
        panic!("in a transaction");
    }));
    assert!(panicked.is_err());
    assert_eq!(held(&heap).len(), blocks.len() + 1);
}

/// Threads of as many CPUs allocate for the first time at one moment, again and again; whether the
/// heap could always be opened again, with all blocks.
fn first_allocations_at_once() -> bool {
    const CPUS: u32 = 6;
    for _ in 0..40 {
        let backing = memory(64 << 20);
        let heap = create(&backing, CPUS);
        let together = std::sync::Barrier::new(CPUS as usize);
        std::thread::scope(|scope| {
            for cpu in 0..CPUS {
                let (heap, together) = (&heap, &together);
                scope.spawn(move || {
                    run_on(cpu);
                    together.wait();
                    let _ = heap.alloc(100, 1, TypeId(7));
                });
            }
        });
        let before = held(&heap);
        drop(heap);
        match LoggedHeap::open(backing.clone(), &options(CPUS)) {
            Ok((heap, _)) if before.len() == CPUS as usize && held(&heap) == before => {}
            _ => return false,
        }
    }
    true
}

#[test]
fn sub_heaps_that_are_made_at_once_have_puddles_of_their_own() {
    assert!(first_allocations_at_once());
}
