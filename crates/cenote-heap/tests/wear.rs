//! The wear heap in plain memory: waiting, merges, alignment, wrong frees, the scan, damage, and a
//! model.

use cenote_heap::wear::{WearClock, WearDamage, WearError, WearHeap, WearOptions, WearProgress};
use cenote_heap::{AllocError, Backing, FreeError, MemoryBacking, MemoryOptions};
use cenote_layout::id::TypeId;
use cenote_layout::puddle::header_space;
use cenote_medium::planted::{Bug, WearBug, plant};
use cenote_testkit::random::next;
use std::collections::BTreeMap;
use std::ops::ControlFlow;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex};

#[path = "wear/as_heap.rs"]
mod as_heap;
#[path = "wear/attacked.rs"]
mod attacked;
#[path = "wear/corrupted.rs"]
mod corrupted;
#[path = "wear/killed.rs"]
mod killed;
#[path = "wear/of_pools.rs"]
mod of_pools;

type Heap = WearHeap<MemoryBacking>;

const WAIT_MS: u32 = 100;
const LINE: u64 = 64;

/// A heap with a clock that tests set, and the damage that it tells of.
#[derive(Clone)]
struct Bench {
    memory: MemoryBacking,
    now_ms: Arc<AtomicU64>,
    told: Arc<Mutex<Vec<WearDamage>>>,
    wait_ms: u32,
}

impl Bench {
    fn new(size_max: u64) -> Self {
        Self::with_puddles(256 << 10, size_max)
    }

    fn with_puddles(puddle_size: u64, size_max: u64) -> Self {
        let options = MemoryOptions { puddle_size, size_max, writable: true };
        Self {
            memory: MemoryBacking::new(options),
            now_ms: Arc::new(AtomicU64::new(1_700_000_000_000)),
            told: Arc::default(),
            wait_ms: WAIT_MS,
        }
    }

    fn options(&self) -> WearOptions {
        let (now, told) = (Arc::clone(&self.now_ms), Arc::clone(&self.told));
        WearOptions {
            wait_ms: self.wait_ms,
            key: 7,
            clock: WearClock::new(move || now.load(Ordering::Relaxed)),
            on_damage: Some(Arc::new(move |damage| told.lock().unwrap().push(*damage))),
            ..WearOptions::default()
        }
    }

    fn create(&self) -> Heap {
        WearHeap::create(self.memory.clone(), &self.options()).expect("a heap")
    }

    fn open(&self) -> Heap {
        WearHeap::open(self.memory.clone(), &self.options()).expect("a heap")
    }

    fn open_error(&self) -> WearError {
        WearHeap::open(self.memory.clone(), &self.options()).expect_err("no heap")
    }

    fn pass(&self, ms: u64) {
        self.now_ms.fetch_add(ms, Ordering::Relaxed);
    }

    fn now(&self) -> u64 {
        self.now_ms.load(Ordering::Relaxed)
    }

    fn set_now(&self, now_ms: u64) {
        self.now_ms.store(now_ms, Ordering::Relaxed);
    }

    fn told(&self) -> Vec<WearDamage> {
        self.told.lock().unwrap().clone()
    }
}

#[track_caller]
fn alloc(heap: &Heap, size: u64) -> u64 {
    heap.alloc(size, 8, TypeId(7)).expect("room").addr
}

fn byte(addr: u64) -> *mut u8 {
    std::ptr::with_exposed_provenance_mut(addr as usize)
}

/// Changes a byte, as a program with a bug does.
fn damage(addr: u64, flip: u8) {
    // SAFETY: a byte of the backing's memory, which is mapped; no thread uses it meanwhile.
    unsafe { byte(addr).write_volatile(byte(addr).read_volatile() ^ flip) }
}

/// What is allocated. Fails if there is damage.
#[track_caller]
fn held(heap: &Heap) -> BTreeMap<u64, u64> {
    let report = heap.check();
    assert_eq!(report.damage, []);
    report.blocks.iter().map(|block| (block.addr, block.size)).collect()
}

#[test]
fn a_freed_block_is_not_given_out_before_its_time() {
    let bench = Bench::new(256 << 10);
    let heap = bench.create();
    let blocks: Vec<u64> =
        std::iter::from_fn(|| Some(heap.alloc(1000, 8, TypeId(7)).ok()?.addr)).collect();
    assert!(blocks.len() > 150, "{} blocks", blocks.len());
    heap.free(blocks[3]).expect("allocated");
    bench.pass(u64::from(WAIT_MS));
    let refused = heap.alloc(1000, 8, TypeId(7)).expect_err("the block waits");
    let AllocError::Waits { waiting, wait_ms: WAIT_MS, .. } = refused else { panic!("{refused}") };
    assert!(waiting >= 1088);
    bench.pass(1);
    assert_eq!(alloc(&heap, 1000), blocks[3]);
    assert!(matches!(heap.alloc(1000, 8, TypeId(7)), Err(AllocError::Full { .. })));
}

#[test]
fn a_heap_without_a_wait_gives_blocks_out_at_once() {
    let bench = Bench { wait_ms: 0, ..Bench::new(256 << 10) };
    let heap = bench.create();
    let block = alloc(&heap, 1000);
    heap.free(block).expect("allocated");
    assert_eq!((alloc(&heap, 1000), heap.wait_ms()), (block, 0));
}

#[test]
fn the_wait_goes_on_in_the_next_session() {
    let bench = Bench::new(256 << 10);
    let heap = bench.create();
    let (block, kept) = (alloc(&heap, 100), alloc(&heap, 300));
    heap.free(block).expect("allocated");
    drop(heap);
    bench.pass(50);
    let heap = bench.open();
    assert_eq!((heap.stats().waiting_blocks, heap.stats().free_bytes), (1, 0));
    bench.pass(51);
    assert_eq!(alloc(&heap, 100), block);
    assert_eq!(held(&heap), BTreeMap::from([(block, 128), (kept, 320)]));
    // A clock that was set back: the block waits from now on, and not for years.
    heap.free(block).expect("allocated");
    drop(heap);
    bench.now_ms.fetch_sub(1_000_000, Ordering::Relaxed);
    let heap = bench.open();
    assert_eq!(heap.stats().waiting_blocks, 1);
    bench.pass(u64::from(WAIT_MS) + 1);
    assert_eq!(alloc(&heap, 100), block);
}

#[test]
fn neighbours_merge_without_a_write() {
    let bench = Bench::new(256 << 10);
    let heap = bench.create();
    let blocks: Vec<u64> = (0..6).map(|_| alloc(&heap, 576)).collect();
    let last = alloc(&heap, 64);
    for &block in &blocks {
        heap.free(block).expect("allocated");
    }
    bench.pass(1000);
    let lines = bench.memory.counts().flushed_lines;
    heap.free(last).expect("allocated");
    assert_eq!(bench.memory.counts().flushed_lines, lines + 1, "merges write nothing");
    let large = heap.alloc(6 * 640 - 64, 8, TypeId(7)).expect("a merged range");
    assert_eq!((large.addr, large.size), (blocks[0], 6 * 640 - 64));
    assert_eq!(bench.memory.counts().flushed_lines, lines + 2, "one header for six blocks");
    assert_eq!(held(&heap), BTreeMap::from([(large.addr, large.size)]));
    drop(heap);
    assert_eq!(held(&bench.open()), BTreeMap::from([(large.addr, large.size)]));
}

#[test]
fn alignments_up_to_two_megabytes_are_kept() {
    let bench = Bench::new(64 << 20);
    let heap = bench.create();
    let mut expected = BTreeMap::new();
    for round in 0..3 {
        for log in 0..=21 {
            let block = heap.alloc(100 + round * 64, 1 << log, TypeId(log)).expect("room");
            assert!(block.addr.is_multiple_of(1 << log), "{log}: {:#x}", block.addr);
            expected.insert(block.addr, block.size);
        }
        bench.pass(200);
    }
    assert_eq!(held(&heap), expected);
    drop(heap);
    let heap = bench.open();
    assert_eq!(held(&heap), expected);
    let refused = [heap.alloc(1, 3, TypeId(1)), heap.alloc(1, 4 << 20, TypeId(1))];
    assert!(refused.iter().all(|block| matches!(block, Err(AllocError::Align { .. }))));
    assert!(matches!(heap.alloc(u64::MAX, 8, TypeId(1)), Err(AllocError::Size { .. })));
}

#[test]
fn wrong_frees_are_refused_by_what_they_are() {
    let bench = Bench::new(1 << 20);
    let heap = bench.create();
    let (block, other) = (alloc(&heap, 200), alloc(&heap, 200));
    let foreign = bench.memory.foreign_puddle() + 4096;
    let free = |addr| heap.free(addr).expect_err("refused");
    assert_eq!(free(block + 64), FreeError::InsideBlock { addr: block + 64, block });
    assert_eq!(free(block + 1), FreeError::InsideBlock { addr: block + 1, block });
    assert_eq!(free(block - 64), FreeError::NotABlock { addr: block - 64 });
    assert_eq!(free(foreign), FreeError::OtherPool { addr: foreign });
    assert_eq!(free(64), FreeError::NotInHeap { addr: 64 });
    let unused = other + 100_000;
    assert_eq!(free(unused), FreeError::NotABlock { addr: unused });
    heap.free(block).expect("allocated");
    assert_eq!(free(block), FreeError::NotAllocated { addr: block }, "a double free");
    assert_eq!(heap.free(0), Ok(()));
    assert_eq!(heap.owner(other + 199).map(|owner| owner.addr), Some(other));
    assert_eq!(heap.owner(other - 1), None);
    let read_only = Bench { memory: bench.memory.read_only(), ..bench.clone() };
    drop(heap);
    let heap = read_only.open();
    assert_eq!(heap.free(other), Err(FreeError::ReadOnly));
    assert!(matches!(heap.alloc(1, 1, TypeId(1)), Err(AllocError::ReadOnly)));
    assert!(heap.is_live(other, TypeId(7)) && !heap.is_live(other, TypeId(8)));
}

#[test]
fn a_heap_is_open_once_and_made_once() {
    let bench = Bench::new(1 << 20);
    let heap = bench.create();
    let open = |bench: &Bench| WearHeap::open(bench.memory.clone(), &bench.options());
    assert!(open(&bench).is_err(), "open already");
    drop(heap);
    assert!(WearHeap::create(bench.memory.clone(), &bench.options()).is_err(), "made already");
    assert!(open(&bench).is_ok());
    let bench = Bench::new(1 << 20);
    assert!(open(&bench).is_err(), "no heap there");
    for (wait_ms, chunk_log) in [(1 << 31, 12), (100, 9), (100, 25)] {
        let options = WearOptions { wait_ms, chunk_log, ..bench.options() };
        let made = WearHeap::create(bench.memory.clone(), &options);
        assert!(matches!(made, Err(WearError::Options { .. })), "{made:?}");
    }
}

#[test]
fn a_heap_with_a_damaged_header_is_not_made_anew() {
    let bench = Bench::new(1 << 20);
    let heap = bench.create();
    let header = bench.memory.extents()[0].addr + header_space(bench.memory.extents()[0].size);
    let make = || WearHeap::create(bench.memory.clone(), &bench.options());
    // A crash may leave a part of a header, and no block: the next one makes the heap.
    drop(heap);
    damage(header + 20, 1);
    let heap = make().expect("a heap without a block");
    let addr = alloc(&heap, 100);
    drop(heap);
    damage(header + 20, 1);
    let (opened, made) = (WearHeap::open(bench.memory.clone(), &bench.options()), make());
    assert!(matches!(opened, Err(WearError::Header(_))), "{opened:?}");
    assert!(matches!(made, Err(WearError::Header(_))), "{made:?}");
    damage(header + 20, 1);
    assert!(bench.open().is_live(addr, TypeId(7)), "what the header said is there");
}

#[test]
fn allocation_begins_before_the_scan_has_ended() {
    let bench = Bench::new(64 << 20);
    let heap = bench.create();
    let blocks: Vec<u64> = (0..20_000).map(|i| alloc(&heap, 64 + i % 1000)).collect();
    drop(heap);
    let heap = bench.open();
    let WearProgress { scanned, segments } = heap.progress();
    assert!(scanned == 0 && segments > 100, "{scanned} of {segments}");
    // An address is known as soon as its segment is scanned.
    assert!(heap.is_live(blocks[10_000], TypeId(7)));
    assert_eq!(heap.progress().scanned, 1);
    let new = alloc(&heap, 64);
    assert!(!blocks.contains(&new) && heap.progress().scanned < segments);
    let mut calls = 0;
    let broken_off = heap.scan(1, &mut |_| {
        calls += 1;
        if calls == 3 { ControlFlow::Break(()) } else { ControlFlow::Continue(()) }
    });
    assert!(!broken_off && calls == 3);
    // Threads scan, and others allocate and free.
    std::thread::scope(|scope| {
        let scan = scope.spawn(|| heap.scan(3, &mut |_| ControlFlow::Continue(())));
        for &block in blocks.iter().step_by(3) {
            heap.free(block).expect("allocated");
            alloc(&heap, 128);
        }
        assert!(scan.join().expect("a scan"));
    });
    assert_eq!(heap.progress().scanned, heap.progress().segments);
    assert_eq!(held(&heap).len(), blocks.len() + 1);
}

/// A byte behind a block, and a byte before it, are found when it or its neighbour is freed.
fn stray_byte(
    at: impl Fn(u64, u64) -> u64,
    freed: usize,
) -> (Bench, Result<(), FreeError>, [u64; 4]) {
    let bench = Bench::new(1 << 20);
    let heap = bench.create();
    let blocks = [0; 4].map(|_| alloc(&heap, 192));
    damage(at(blocks[1], 192), 0x20);
    let result = heap.free(blocks[freed]);
    let others = [0, 3].map(|i| heap.find(blocks[i]).map(|block| block.addr));
    assert_eq!(others, [Ok(blocks[0]), Ok(blocks[3])]);
    drop(heap);
    (bench, result, blocks)
}

#[test]
fn an_overflow_by_a_byte_is_found_when_the_block_is_freed() {
    let (bench, freed, blocks) = stray_byte(|block, size| block + size, 1);
    assert_eq!(freed, Ok(()), "the block's own header is whole");
    let told = bench.told();
    assert_eq!(told.len(), 1);
    assert_eq!((told[0].addr, told[0].bytes), (blocks[2] - LINE, 256));
    // The next session finds the same, and neighbours stay usable.
    let heap = bench.open();
    let report = heap.check();
    assert_eq!(report.damage.iter().map(|d| d.addr).collect::<Vec<_>>(), [blocks[2] - LINE]);
    assert_eq!(heap.free(blocks[2]), Err(FreeError::DamagedHeader { addr: blocks[2] }));
    heap.free(blocks[3]).expect("allocated");
    plant(Bug::Wear(WearBug::NextNotLookedAt));
    let (bench, _, _) = stray_byte(|block, size| block + size, 1);
    plant(Bug::None);
    assert_eq!(bench.told(), [], "{:?} was not found", WearBug::NextNotLookedAt);
}

#[test]
fn an_overflow_by_a_byte_is_found_when_the_neighbour_is_freed() {
    let (bench, freed, blocks) = stray_byte(|block, size| block + size, 2);
    assert_eq!(freed, Err(FreeError::DamagedHeader { addr: blocks[2] }));
    assert_eq!(bench.told().len(), 1);
}

#[test]
fn an_underflow_by_a_byte_is_found_when_the_block_is_freed() {
    let (bench, freed, blocks) = stray_byte(|block, _| block - 1, 1);
    assert_eq!(freed, Err(FreeError::DamagedHeader { addr: blocks[1] }));
    assert_eq!(bench.told().len(), 1);
}

#[test]
fn damage_of_a_free_header_is_found_when_the_block_is_allocated() {
    let bench = Bench::new(256 << 10);
    let heap = bench.create();
    let blocks: Vec<u64> = (0..3).map(|_| alloc(&heap, 960)).collect();
    heap.free(blocks[1]).expect("allocated");
    bench.pass(200);
    damage(blocks[1] - 3, 1);
    let elsewhere = alloc(&heap, 960);
    assert_ne!(elsewhere, blocks[1]);
    assert_eq!(bench.told().iter().map(|d| d.addr).collect::<Vec<_>>(), [blocks[1] - LINE]);
    assert_eq!(heap.stats().damaged_bytes, 1024);
}

#[derive(Clone, Copy)]
struct Mine {
    addr: u64,
    size: u64,
    stamp: u64,
}

impl Mine {
    fn stamps(self) -> [*mut u64; 2] {
        [self.addr, self.addr + self.size - 8].map(|at| byte(at).cast())
    }

    fn write(self) {
        // SAFETY: two words of a block of this thread.
        self.stamps().into_iter().for_each(|at| unsafe { at.write_volatile(self.stamp) });
    }

    fn check(self) {
        // SAFETY: as for `write`.
        let found = self.stamps().map(|at| unsafe { at.read_volatile() });
        assert_eq!(found, [self.stamp; 2], "block at {:#x}", self.addr);
    }
}

/// Allocates and frees at random, and looks at what its blocks hold.
fn work(heap: &Heap, seed: u64, steps: u32) -> Vec<Mine> {
    let (mut seed, mut mine) = (seed, Vec::<Mine>::new());
    for step in 0..steps {
        let random = next(&mut seed);
        if !mine.is_empty() && (random % 5 < 2 || mine.len() > 200) {
            let block = mine.swap_remove(random as usize / 8 % mine.len());
            block.check();
            heap.free(block.addr).expect("allocated");
            continue;
        }
        let size = if random % 50 == 7 { random / 64 % 60_000 } else { random / 64 % 900 };
        let align = 8 << (random / 8 % 7);
        match heap.alloc(size, align, TypeId(random % 9 + 1)) {
            Ok(block) => {
                assert!(block.size >= size && block.addr.is_multiple_of(align));
                let stamp = seed ^ u64::from(step);
                let block = Mine { addr: block.addr, size: block.size, stamp };
                block.write();
                mine.push(block);
            }
            Err(AllocError::Waits { .. } | AllocError::Full { .. }) => {}
            Err(error) => panic!("{error}"),
        }
    }
    mine
}

fn model(seed: u64, steps: u32) {
    let bench = Bench::new(8 << 20);
    let heap = bench.create();
    let mut all: Vec<Mine> = std::thread::scope(|scope| {
        let workers: Vec<_> = (0..4)
            .map(|n| {
                scope.spawn({
                    let heap = &heap;
                    move || work(heap, seed + n, steps)
                })
            })
            .collect();
        let passing = scope.spawn(|| {
            (0..200).for_each(|_| {
                bench.pass(3);
                std::thread::yield_now();
            })
        });
        let all = workers.into_iter().flat_map(|worker| worker.join().expect("a worker")).collect();
        passing.join().expect("a clock");
        all
    });
    let expected = |all: &[Mine]| all.iter().map(|b| (b.addr, b.size)).collect::<BTreeMap<_, _>>();
    assert_eq!(held(&heap), expected(&all), "seed {seed}");
    drop(heap);
    let heap = bench.open();
    assert_eq!(held(&heap), expected(&all), "seed {seed}");
    bench.pass(1000);
    all.drain(..).for_each(|block| {
        block.check();
        heap.free(block.addr).expect("allocated");
    });
    // All that was freed is found again after its time.
    bench.pass(1000);
    let (before, puddles) = (heap.stats(), bench.memory.extents().len());
    assert_eq!((before.blocks, before.block_bytes), (0, 0));
    bench.memory.refuse_growth(true);
    let mut bytes = 0;
    while let Ok(block) = heap.alloc(64, 8, TypeId(1)) {
        bytes += block.size + LINE;
        bench.pass(1000);
    }
    bench.memory.refuse_growth(false);
    let all = before.free_bytes + before.waiting_bytes + before.unused_bytes;
    assert_eq!((bytes, bench.memory.extents().len()), (all, puddles), "seed {seed}");
}

#[test]
fn four_threads_share_no_block_and_lose_none() {
    let mut seed = 0x5eed;
    for _ in 0..3 {
        model(next(&mut seed), 4000);
    }
}

fn words(addr: u64) -> [u64; 8] {
    // SAFETY: a header in the backing's memory, which no thread uses meanwhile.
    std::array::from_fn(|i| unsafe { byte(addr).cast::<u64>().add(i).read_volatile() })
}

fn set_words(addr: u64, words: &[u64; 8]) {
    for (i, &word) in words.iter().enumerate() {
        // SAFETY: as for `words`.
        unsafe { byte(addr).cast::<u64>().add(i).write_volatile(word) };
    }
}

fn mixed(old: &[u64; 8], new: &[u64; 8], part: u32) -> [u64; 8] {
    std::array::from_fn(|i| if part & 1 << i != 0 { new[i] } else { old[i] })
}

/// A crash leaves a part of the first header of a segment; the next process begins another one
/// there, and a crash leaves a part of that.
fn torn_twice() -> Result<(), String> {
    let bench = Bench::new(256 << 10);
    let heap = bench.create();
    let first = alloc(&heap, 64);
    drop(heap);
    let header = first - LINE;
    let whole = words(header);
    for part in (0..255u32).step_by(7) {
        set_words(header, &mixed(&[0; 8], &whole, part));
        let heap = bench.open();
        assert_eq!(held(&heap).len(), 0, "part {part:#x}");
        let before = words(header);
        bench.pass(1000);
        let second = heap.alloc(1000, 8, TypeId(8)).expect("room");
        assert_eq!(second.addr, first);
        drop(heap);
        let after = words(header);
        for part in 0..255u32 {
            set_words(header, &mixed(&before, &after, part));
            let report = bench.open().check();
            let held = report.blocks.iter().all(|block| block == &second);
            if !held || !report.damage.is_empty() {
                return Err(format!("part {part:#x}: {report:?}"));
            }
        }
    }
    Ok(())
}

#[test]
fn parts_of_two_headers_are_no_header() {
    torn_twice().unwrap_or_else(|what| panic!("{what}"));
    plant(Bug::Wear(WearBug::TornLineKept));
    let found = torn_twice();
    plant(Bug::None);
    println!("{:?}: {}", WearBug::TornLineKept, found.expect_err("the bug"));
}

#[test]
fn ranges_that_are_taken_as_they_were_listed_are_found() {
    plant(Bug::Wear(WearBug::StaleRangeBelieved));
    let bench = Bench::new(256 << 10);
    let heap = bench.create();
    let blocks: Vec<u64> = (0..8).map(|_| alloc(&heap, 192)).collect();
    for &block in &blocks {
        heap.free(block).expect("allocated");
        bench.pass(200);
    }
    let (mut taken, mut overlap) = (Vec::<(u64, u64)>::new(), false);
    for size in [1000, 192, 192, 192, 192] {
        if let Ok(block) = heap.alloc(size, 8, TypeId(1)) {
            let (from, end) = (block.addr - LINE, block.addr + block.size);
            overlap |= taken.iter().any(|&(a, b)| a < end && from < b);
            taken.push((from, end));
        }
    }
    plant(Bug::None);
    let damaged = !heap.check().damage.is_empty();
    assert!(overlap || damaged, "{:?} was not found", WearBug::StaleRangeBelieved);
}
