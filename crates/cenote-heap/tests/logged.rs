//! Sub-heaps of the logged heap in plain memory: against a model, with wrong frees, flipped bits,
//! worst fragmentation, and what operations cost.

use cenote_heap::logged::{AllocRefused, FreeRefused, LogFull, Region, SubHeap, SubHeapPlace};
use cenote_heap::{Backing, DurabilityCounts, FreeError, MemoryBacking, MemoryOptions};
use cenote_layout::id::TypeId;
use cenote_layout::logged::{
    CLASS_MAX, CLASS_MIN, LANE_ENTRIES, LANES_OFFSET, LAST_STEP_OFFSET, LEVELS_OFFSET,
    LISTS_OFFSET, SubHeapGeometry, UNDO_HALF_SIZE, UNDO_OFFSET, UNIT_SIZE,
};
use cenote_medium::planted::{Bug, LoggedBug, plant};
use std::collections::BTreeMap;
use std::panic::{AssertUnwindSafe, catch_unwind};

type Heap = SubHeap<MemoryBacking>;

/// Memory for a sub-heap, and where its regions lie in it.
fn memory(data_len: u64, lanes: u32) -> (MemoryBacking, SubHeapPlace) {
    let geometry = geometry(data_len, lanes);
    let puddle_size = data_len.next_multiple_of(64 << 10);
    let size_max = (puddle_size + geometry.metadata_len).next_multiple_of(1 << 20) + (2 << 20);
    let backing = MemoryBacking::new(MemoryOptions { puddle_size, size_max, writable: true });
    let meta = backing.take(geometry.metadata_len.next_multiple_of(64 << 10)).expect("memory");
    let base = backing.extents()[0].addr;
    let data = Region { puddle: 0, base, from: 0, len: data_len };
    let metadata = Region { puddle: 1, base: meta.addr, from: 0, len: geometry.metadata_len };
    (backing, SubHeapPlace { data, metadata })
}

/// A sub-heap whose table has levels for all blocks of so much data.
fn geometry(data_len: u64, lanes: u32) -> SubHeapGeometry {
    SubHeapGeometry::new(lanes, 0, SubHeapGeometry::levels_for(data_len)).expect("a geometry")
}

fn format(backing: &MemoryBacking, place: &SubHeapPlace, lanes: u32) -> Heap {
    // SAFETY: two puddles of memory that nothing else uses; a clone of the backing keeps them.
    unsafe { SubHeap::format(backing.clone(), place, 0, lanes) }.expect("a sub-heap")
}

fn open(backing: &MemoryBacking, place: &SubHeapPlace) -> Heap {
    // SAFETY: as in `format`; the sub-heap that was open there is dropped, or is only read.
    unsafe { SubHeap::open(backing.clone(), &place.metadata) }.expect("a sub-heap").0
}

fn new(data_len: u64) -> (MemoryBacking, SubHeapPlace, Heap) {
    let (backing, place) = memory(data_len, 4);
    let heap = format(&backing, &place, 4);
    (backing, place, heap)
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

/// What is allocated, by address: size and type.
type Model = BTreeMap<u64, (u64, u64)>;

#[track_caller]
fn same(heap: &Heap, model: &Model) {
    let report = heap.check();
    assert_eq!(report.damage, [], "{:?}", report.damage);
    let blocks: Model = report.blocks.iter().map(|b| (b.addr, (b.size, b.type_id.0))).collect();
    assert_eq!(&blocks, model);
}

/// Takes a block that the model must have room for.
fn take(model: &mut Model, addr: u64, size: u64, kind: u64) {
    let before = model.range(..addr + size).next_back();
    assert!(before.is_none_or(|(at, (len, _))| at + len <= addr), "{addr:#x} lies on {before:x?}");
    model.insert(addr, (size, kind));
}

/// A random size: each class as likely as every other.
fn size(random: &mut Random, class_max: u64) -> u64 {
    let most = 1 << (5 + random.below(class_max - 4));
    1 + random.below(most)
}

fn any(random: &mut Random, model: &Model) -> Option<u64> {
    let number = random.below(model.len().max(1) as u64) as usize;
    model.keys().nth(number).copied()
}

/// Random work on a sub-heap and a model: singles, transactions, wrong frees, reopening.
fn random_work(seed: u64, steps: u64) {
    let mut random = Random(seed);
    let data_len = [256 << 10, (1 << 20) + 4096 + 64, 3 << 20][random.below(3) as usize];
    let (backing, place, mut heap) = new(data_len);
    let mut model = Model::new();
    for step in 0..steps {
        let kind = 1 + random.below(9);
        match random.below(100) {
            0..45 => {
                let (len, align) = (size(&mut random, 15), 1 << random.below(13));
                match heap.alloc(len, align, TypeId(kind)) {
                    Ok(block) => {
                        assert!(block.size >= len && block.addr.is_multiple_of(align));
                        take(&mut model, block.addr, block.size, kind);
                    }
                    Err(AllocRefused::Full { .. }) => {}
                    Err(error) => panic!("seed {seed}, step {step}: {error}"),
                }
            }
            45..85 => {
                if let Some(addr) = any(&mut random, &model) {
                    heap.free(addr).expect("an allocated block");
                    assert!(heap.free(addr).is_err());
                    model.remove(&addr);
                }
            }
            85..95 => transaction(&heap, &mut random, &mut model),
            95..98 => {
                let addr = place.data.addr() + random.below(data_len);
                let owner = model.range(..=addr).next_back();
                let owner = owner.filter(|(at, (len, _))| addr < *at + len).map(|(at, _)| *at);
                assert_eq!(heap.owner(addr).expect("whole").map(|b| b.addr), owner);
                if owner != Some(addr) {
                    assert!(heap.free(addr).is_err());
                }
            }
            98 => drop(heap.compact().expect("whole")),
            _ => {
                drop(heap);
                heap = open(&backing, &place);
            }
        }
        if step % 64 == 0 {
            same(&heap, &model);
        }
    }
    same(&heap, &model);
    for addr in model.keys() {
        heap.free(*addr).expect("an allocated block");
    }
    heap.compact().expect("whole");
    assert_eq!(heap.stats().expect("counts").free_bytes, data_len);
    assert_eq!(heap.stats().expect("counts").levels, 1);
}

/// A transaction of a few steps, which commits, aborts, or is dropped.
fn transaction(heap: &Heap, random: &mut Random, model: &mut Model) {
    let mut log = heap.micro_log().expect("a lane");
    let mut after = model.clone();
    for _ in 0..random.below(8) {
        let kind = 20 + random.below(3);
        if random.below(3) > 0 {
            if let Ok(block) = log.alloc(size(random, 12), 1, TypeId(kind), false) {
                take(&mut after, block.addr, block.size, kind);
                assert!(matches!(heap.free(block.addr), Err(FreeRefused::InTransaction { .. })));
            }
        } else if let Some(addr) = any(random, &after)
            && log.free(addr).is_ok()
        {
            assert!(matches!(heap.free(addr), Err(FreeRefused::InTransaction { .. })));
            assert!(log.free(addr).is_err());
        }
    }
    match random.below(3) {
        0 => log.abort().expect("whole"),
        1 => drop(log),
        _ => {
            log.commit().expect("whole");
            *model = heap.check().blocks.iter().map(|b| (b.addr, (b.size, b.type_id.0))).collect();
            let is_known = |(addr, block): (&u64, &(u64, u64))| after.get(addr) == Some(block);
            assert!(model.iter().all(is_known));
        }
    }
}

#[test]
fn random_work_matches_an_interval_map() {
    let rounds: u64 =
        std::env::var("LOGGED_ROUNDS").ok().and_then(|text| text.parse().ok()).unwrap_or(6);
    for seed in 1..=rounds {
        let done = catch_unwind(|| random_work(seed.wrapping_mul(0x9e37_79b9_7f4a_7c15), 700));
        assert!(done.is_ok(), "seed {seed}");
    }
}

#[test]
fn threads_share_a_sub_heap_and_blocks_of_each_other() {
    let (_backing, _place, heap) = new(4 << 20);
    let freed = std::sync::Mutex::new(Vec::<u64>::new());
    std::thread::scope(|scope| {
        for seed in 1..=3u64 {
            let (heap, freed) = (&heap, &freed);
            scope.spawn(move || {
                let mut random = Random(seed * 0x9e37_79b9);
                for _ in 0..400 {
                    let block = heap.alloc(size(&mut random, 11), 1, TypeId(seed)).expect("room");
                    let other = {
                        let mut freed = freed.lock().expect("no panic");
                        freed.push(block.addr);
                        let number = random.below(freed.len() as u64) as usize;
                        (random.below(3) > 0).then(|| freed.swap_remove(number))
                    };
                    if let Some(addr) = other {
                        heap.free(addr).expect("freed once");
                    }
                }
            });
        }
    });
    let mut left = freed.into_inner().expect("no panic");
    left.sort_unstable();
    let report = heap.check();
    assert_eq!(report.damage, []);
    assert_eq!(report.blocks.iter().map(|b| b.addr).collect::<Vec<_>>(), left);
}

/// Bytes of the metadata, but for the undo log.
fn metadata(place: &SubHeapPlace) -> Vec<u8> {
    let at =
        core::ptr::with_exposed_provenance::<u8>((place.metadata.addr() + LISTS_OFFSET) as usize);
    let len = (place.metadata.len - LISTS_OFFSET) as usize;
    // SAFETY: the region of a test's memory, which no thread writes meanwhile.
    unsafe { core::slice::from_raw_parts(at, len) }.to_vec()
}

#[test]
fn every_wrong_free_is_named_and_changes_nothing() {
    let (backing, place, heap) = new(1 << 20);
    let block = heap.alloc(1000, 1, TypeId(1)).expect("room").addr;
    let gone = heap.alloc_apart(64, 1, TypeId(1)).expect("room").addr;
    heap.free(gone).expect("allocated");
    let foreign = backing.foreign_puddle();
    let before = metadata(&place);
    let refused = |addr: u64| match heap.free(addr) {
        Err(FreeRefused::NoBlock(error)) => error,
        other => panic!("{addr:#x}: {other:?}"),
    };
    assert_eq!(refused(gone), FreeError::NotAllocated { addr: gone });
    for inside in [block + 1, block + 64, block + 512, block + 1023] {
        assert_eq!(refused(inside), FreeError::InsideBlock { addr: inside, block });
    }
    let end = place.data.addr() + place.data.len;
    for nothing in [gone + 8, end - 64, place.metadata.addr(), place.metadata.addr() + LANES_OFFSET]
    {
        assert_eq!(refused(nothing), FreeError::NotABlock { addr: nothing });
    }
    for outside in [end, 8, u64::MAX, place.data.addr() - 1] {
        assert_eq!(refused(outside), FreeError::NotInHeap { addr: outside });
    }
    assert_eq!(refused(foreign), FreeError::OtherPool { addr: foreign });
    heap.free(0).expect("0 is nothing");
    assert!(metadata(&place) == before, "a refused free changed metadata");
    assert!(matches!(heap.alloc(1, 3, TypeId(1)), Err(AllocRefused::Align { align: 3 })));
    assert!(matches!(heap.alloc(u64::MAX, 1, TypeId(1)), Err(AllocRefused::Full { .. })));
    assert!(matches!(heap.alloc(2 << 20, 1, TypeId(1)), Err(AllocRefused::Full { .. })));
    assert_eq!(heap.check().damage, []);
}

#[test]
fn a_double_free_that_is_accepted_is_found() {
    let (_backing, _place, heap) = new(64 << 10);
    let block = heap.alloc_apart(64, 1, TypeId(1)).expect("room").addr;
    heap.free(block).expect("allocated");
    plant(Bug::DoubleFreeAccepted);
    let again = heap.free(block);
    plant(Bug::None);
    assert!(again.is_ok() && !heap.check().damage.is_empty());
}

/// Whether a place is given out again before all older free places of its class.
fn reuses_at_once() -> bool {
    let (_backing, _place, heap) = new(256 << 10);
    let all: Vec<u64> =
        (0..32).map(|_| heap.alloc_apart(64, 1, TypeId(1)).expect("room").addr).collect();
    all.iter().for_each(|&addr| heap.free(addr).expect("allocated"));
    heap.free(heap.alloc_apart(64, 1, TypeId(1)).expect("room").addr).expect("allocated");
    let again = (0..31).map(|_| heap.alloc_apart(64, 1, TypeId(2)).expect("room").addr);
    again.collect::<Vec<_>>() != all[1..]
}

#[test]
fn a_freed_place_is_used_after_all_older_ones_of_its_class() {
    assert!(!reuses_at_once());
    plant(Bug::FreedToHead);
    let found = reuses_at_once();
    plant(Bug::None);
    assert!(found, "{:?} was not found", Bug::FreedToHead);
}

#[test]
fn after_the_worst_fragmentation_the_largest_request_succeeds() {
    let (_backing, place, heap) = new(1 << 20);
    let fill = || -> Vec<u64> {
        core::iter::from_fn(|| heap.alloc_apart(64, 1, TypeId(1)).ok().map(|block| block.addr))
            .collect()
    };
    let mut all = fill();
    assert_eq!(all.len() as u64, place.data.len / UNIT_SIZE);
    assert!(heap.stats().expect("counts").levels > 4);
    let mut random = Random(7);
    while !all.is_empty() {
        heap.free(all.swap_remove(random.below(all.len() as u64) as usize)).expect("allocated");
    }
    let largest = heap.alloc(1 << 20, 1, TypeId(2)).expect("all of it is free");
    assert_eq!(largest.size, 1 << 20);
    assert_eq!(heap.stats().expect("counts").levels, 1, "empty levels are given back");
    same(&heap, &Model::from([(largest.addr, (1 << 20, 2))]));
}

#[test]
fn levels_are_holes_while_they_are_absent() {
    let (backing, place, heap) = new(1 << 20);
    let holes = backing.hole_bytes();
    let geometry = geometry(1 << 20, 4);
    assert_eq!(holes, place.metadata.len - geometry.level_range(1).0);
    let all: Vec<u64> =
        (0..5000).map(|_| heap.alloc_apart(64, 1, TypeId(1)).expect("room").addr).collect();
    assert!(backing.hole_bytes() < holes);
    all.iter().for_each(|&addr| heap.free(addr).expect("allocated"));
    assert!(heap.compact().expect("whole") > 0);
    assert_eq!(backing.hole_bytes(), holes);
    // A full disk: the table cannot grow, and says so.
    backing.refuse_growth(true);
    let refused = (0..5000).find_map(|_| heap.alloc_apart(64, 1, TypeId(1)).err());
    assert!(matches!(refused, Some(AllocRefused::Backing(_))), "{refused:?}");
    assert_eq!(heap.check().damage, []);
}

#[test]
fn lanes_and_their_entries_are_bounded() {
    let (_backing, _place, heap) = new(1 << 20);
    let mut logs: Vec<_> = (0..4).map(|_| heap.micro_log().expect("a lane")).collect();
    assert!(matches!(heap.micro_log(), Err(LogFull::Lanes { lanes: 4 })));
    let log = &mut logs[0];
    for _ in 0..LANE_ENTRIES {
        log.alloc(64, 1, TypeId(1), false).expect("room");
    }
    let full = log.alloc(64, 1, TypeId(1), false);
    assert!(matches!(full, Err(AllocRefused::LogFull(LogFull::Lane { entries: LANE_ENTRIES }))));
    log.commit().expect("whole");
    log.alloc(64, 1, TypeId(1), true).expect("the next transaction");
    drop(logs);
    assert_eq!(heap.check().blocks.len(), LANE_ENTRIES + 1);
    heap.micro_log().expect("a lane is free again");
}

/// Cells that say something: list heads, level entries, and records.
fn cells_in_use(heap: &Heap, place: &SubHeapPlace) -> Vec<u64> {
    let all = metadata(place);
    let lists = LISTS_OFFSET + u64::from(CLASS_MIN) * 32..LEVELS_OFFSET;
    assert_eq!((lists.end - lists.start) / 32, u64::from(CLASS_MAX - CLASS_MIN) + 1);
    let table = geometry(place.data.len, 4).table;
    let records = (table..place.metadata.len).step_by(32).filter(|at| {
        let from = (at - LISTS_OFFSET) as usize;
        all[from..from + 32].iter().any(|&byte| byte != 0)
    });
    let levels = LEVELS_OFFSET..LEVELS_OFFSET + 32 * u64::from(heap.stats().unwrap().levels);
    lists.step_by(32).chain(levels.step_by(32)).chain(records).collect()
}

#[test]
fn one_flipped_bit_of_any_cell_is_found_and_never_followed() {
    let (backing, place, heap) = new(64 << 10);
    let blocks: Vec<u64> = (0..40)
        .map(|i| heap.alloc_apart(64 << (i % 4), 1, TypeId(i)).expect("room").addr)
        .collect();
    blocks.iter().step_by(2).for_each(|&addr| heap.free(addr).expect("allocated"));
    let cells = cells_in_use(&heap, &place);
    assert!(cells.len() > 80, "{}", cells.len());
    drop(heap);
    let before = metadata(&place);
    let mut random = Random(11);
    for cell in cells {
        let (byte, bit) = (cell + random.below(32), 1u8 << random.below(8));
        let at =
            core::ptr::with_exposed_provenance_mut::<u8>((place.metadata.addr() + byte) as usize);
        // SAFETY: a byte of the test's memory, which no thread uses meanwhile.
        unsafe { *at ^= bit };
        // SAFETY: as in `open`.
        match unsafe { SubHeap::open(backing.clone(), &place.metadata) } {
            // A level entry is read at open.
            Err(error) => assert!(error.to_string().contains("damaged"), "{error}"),
            Ok((heap, _)) => {
                assert!(!heap.check().damage.is_empty(), "cell at {cell:#x}, byte {byte:#x}");
                let work = catch_unwind(AssertUnwindSafe(|| {
                    for (i, &addr) in blocks.iter().enumerate() {
                        let _ = (heap.free(addr), heap.alloc_apart(64 << (i % 5), 1, TypeId(1)));
                    }
                    let _ = heap.compact();
                }));
                assert!(work.is_ok(), "cell at {cell:#x}");
                let (report, mut end) = (heap.check(), 0);
                assert!(report.blocks.iter().all(|block| {
                    let is_behind = block.addr >= end;
                    end = block.addr + block.size;
                    is_behind
                }));
            }
        }
        // Back as it was, and the log empty.
        restore(&place, &before);
    }
}

/// Which bits of the seal of the last change are flipped without an error of the next open.
fn silent_bits_of_a_seal(power: bool) -> Vec<u32> {
    let (backing, place) = memory(64 << 10, 4);
    let backing = if power { backing } else { backing.at_process() };
    let heap = format(&backing, &place, 4);
    let _ = heap.alloc(64, 1, TypeId(1)).expect("room");
    let kept = heap.alloc(2000, 1, TypeId(2)).expect("room").addr;
    let blocks = heap.check().blocks;
    drop(heap);
    let at = place.metadata.addr() as usize;
    let word = |offset: usize| core::ptr::with_exposed_provenance_mut::<u64>(at + offset);
    let undo = UNDO_OFFSET as usize;
    let halves = [undo, undo + UNDO_HALF_SIZE as usize];
    // SAFETY: words of the test's memory, which no thread uses meanwhile.
    let last = halves.into_iter().max_by_key(|half| unsafe { *word(half + 8) }).expect("two");
    let whole = place.metadata.len as usize / 8;
    // As after a loss of power: the word of the last step tells of no change.
    // SAFETY: as above.
    unsafe { *word(LAST_STEP_OFFSET as usize) = 0 };
    // SAFETY: as above.
    let before = unsafe { core::slice::from_raw_parts(word(0), whole) }.to_vec();
    let mut silent = Vec::new();
    for bit in 0..64 {
        // SAFETY: as above.
        unsafe { *word(last + 24) ^= 1 << bit };
        // SAFETY: as in `open`.
        match unsafe { SubHeap::open(backing.clone(), &place.metadata) } {
            Err(error) => assert!(error.to_string().contains("seal"), "{error}"),
            Ok((heap, undone)) => {
                assert!(undone.undone && heap.find(kept).is_err(), "bit {bit}: it is taken back");
                silent.push(bit);
            }
        }
        // SAFETY: as above.
        unsafe { word(0).copy_from_nonoverlapping(before.as_ptr(), whole) };
    }
    assert_eq!(open(&backing, &place).check().blocks, blocks);
    silent
}

#[test]
fn a_damaged_seal_of_the_last_change_is_found_and_takes_nothing_back() {
    for power in [false, true] {
        assert_eq!(silent_bits_of_a_seal(power), []);
        plant(Bug::Logged(LoggedBug::SealDamageUndone));
        let silent = silent_bits_of_a_seal(power);
        plant(Bug::None);
        assert_eq!(silent.len(), 64, "{:?} was not found", LoggedBug::SealDamageUndone);
    }
}

/// Puts metadata back, and makes the undo log empty.
fn restore(place: &SubHeapPlace, before: &[u8]) {
    let at = core::ptr::with_exposed_provenance_mut::<u8>(place.metadata.addr() as usize);
    // SAFETY: the test's memory, which no thread uses meanwhile: lists and what is behind them, and
    // the undo log before them.
    unsafe {
        let lists = at.add(LISTS_OFFSET as usize);
        lists.copy_from_nonoverlapping(before.as_ptr(), before.len());
        at.add(4096).write_bytes(0, LISTS_OFFSET as usize - 4096);
    }
}

/// Flushed lines and fences of what `act` does.
fn cost<T>(backing: &MemoryBacking, act: impl FnOnce() -> T) -> (u64, u64) {
    let before = backing.counts();
    let _ = act();
    let DurabilityCounts { flushed_lines, fences, .. } = backing.counts();
    (flushed_lines - before.flushed_lines, fences - before.fences)
}

#[test]
fn operations_flush_and_fence_exactly_so_often() {
    let (backing, _place, heap) = new(1 << 20);
    let alloc = |size: u64| heap.alloc_apart(size, 1, TypeId(1)).expect("room").addr;
    let mut blocks = Vec::new();
    // One block of 1 MiB is split into all classes.
    let first = cost(&backing, || blocks.push(alloc(64)));
    // Its list has this one block. The next request splits one block once.
    let alone = cost(&backing, || blocks.push(alloc(64)));
    let split = cost(&backing, || blocks.push(alloc(64)));
    blocks.extend((0..30).map(|_| alloc(64)));
    blocks.drain(..20).for_each(|addr| heap.free(addr).expect("allocated"));
    // Its list has others, so the record behind it changes, or the one before.
    let exact = cost(&backing, || blocks.push(alloc(64)));
    let addr = blocks.pop().expect("a block");
    let free = cost(&backing, || heap.free(addr).expect("allocated"));
    // In transactions small blocks are slots of slabs; the first makes one.
    let mut log = heap.micro_log().expect("a lane");
    let entry = cost(&backing, || log.alloc(64, 1, TypeId(1), false));
    let commit = cost(&backing, || log.commit());
    let is_end = cost(&backing, || log.alloc(64, 1, TypeId(1), true));
    // Refusals store nothing.
    let refused = cost(&backing, || assert!(heap.free(addr).is_err()));
    assert_eq!(
        [first, alone, split, exact, free, entry, commit, is_end, refused],
        [(44, 2), (6, 2), (10, 2), (7, 2), (7, 2), (7, 2), (1, 1), (7, 3), (0, 0)]
    );
}

/// Mean probes of the frees and allocations of a heap with so many blocks, and nanoseconds.
fn probes_with(blocks: u64) -> (f64, f64) {
    let (backing, place) = memory((blocks * 2 * UNIT_SIZE).next_power_of_two(), 1);
    drop(format(&backing.at_process(), &place, 1));
    let heap = open(&backing.at_process(), &place);
    let mut all: Vec<u64> =
        (0..blocks).map(|_| heap.alloc_apart(64, 1, TypeId(1)).expect("room").addr).collect();
    let before = heap.stats().expect("counts").probes;
    let mut random = Random(5);
    let pairs = 5000;
    let began = std::time::Instant::now();
    for _ in 0..pairs {
        let number = random.below(blocks) as usize;
        heap.free(all[number]).expect("allocated");
        all[number] = heap.alloc_apart(64, 1, TypeId(1)).expect("room").addr;
    }
    let took = began.elapsed();
    let probes = heap.stats().expect("counts").probes - before;
    (probes as f64 / pairs as f64, took.as_nanos() as f64 / pairs as f64)
}

#[test]
fn probes_do_not_rise_with_the_number_of_blocks() {
    // 10^6 blocks take half a minute without optimisation.
    let large =
        std::env::var("LOGGED_BLOCKS").ok().and_then(|text| text.parse().ok()).unwrap_or(30_000);
    let few = probes_with(1000);
    for blocks in [10_000, large] {
        let (probes, ns) = probes_with(blocks);
        println!("{blocks} blocks: {probes:.1} probes and {ns:.0} ns for a pair");
        assert!(probes < 2.0 * few.0.max(8.0), "{probes} probes, and {} with 1,000", few.0);
    }
}
