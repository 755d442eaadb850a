//! Blocks under 256 bytes of a sub-heap: slots of slabs of one type.

use cenote_heap::logged::{FreeRefused, Region, SubHeap, SubHeapPlace};
use cenote_heap::{Backing, DurabilityCounts, FreeError, MemoryBacking, MemoryOptions};
use cenote_layout::id::TypeId;
use cenote_layout::logged::{
    LAST_STEP_OFFSET, SLAB_SIZES, SlabRecord, SubHeapGeometry, slab_class,
};
use cenote_medium::planted::{Bug, LoggedBug, plant};
use std::collections::{BTreeMap, BTreeSet};

type Heap = SubHeap<MemoryBacking>;

const DATA_LEN: u64 = 1 << 20;

fn memory() -> (MemoryBacking, SubHeapPlace) {
    let levels = SubHeapGeometry::levels_for(DATA_LEN);
    let len = SubHeapGeometry::new(2, 0, levels).expect("a geometry").metadata_len;
    let backing = MemoryBacking::new(MemoryOptions::default());
    let base = backing.take(len.next_multiple_of(64 << 10)).expect("memory").addr;
    let metadata = Region { puddle: 1, base, from: 0, len };
    let base = backing.extents()[0].addr;
    (backing, SubHeapPlace { data: Region { puddle: 0, base, from: 0, len: DATA_LEN }, metadata })
}

fn new() -> (MemoryBacking, SubHeapPlace, Heap) {
    let (backing, place) = memory();
    // SAFETY: two puddles of memory that nothing else uses; the backing keeps them.
    let heap = unsafe { SubHeap::format(backing.clone(), &place, 0, 2) }.expect("a sub-heap");
    (backing, place, heap)
}

fn open(backing: &MemoryBacking, place: &SubHeapPlace) -> Heap {
    // SAFETY: as in `new`; the sub-heap that was open there is dropped.
    unsafe { SubHeap::open(backing.clone(), &place.metadata) }.expect("a sub-heap").0
}

#[track_caller]
fn alloc(heap: &Heap, size: u64, kind: u64) -> u64 {
    heap.alloc(size, 1, TypeId(kind)).expect("room").addr
}

#[track_caller]
fn blocks(heap: &Heap) -> BTreeMap<u64, (u64, u64)> {
    let report = heap.check();
    assert_eq!(report.damage, []);
    report.blocks.iter().map(|b| (b.addr, (b.size, b.type_id.0))).collect()
}

#[test]
fn small_blocks_have_the_least_size_that_fits() {
    let (_backing, _place, heap) = new();
    for (size, align, slot) in [
        (0, 1, 16),
        (16, 16, 16),
        (17, 1, 32),
        (33, 16, 48),
        (33, 32, 64),
        (65, 1, 96),
        (97, 1, 128),
        (129, 1, 192),
        (129, 128, 256),
        (193, 1, 256),
        (1, 128, 128),
        (1, 256, 256),
    ] {
        let block = heap.alloc(size, align, TypeId(1)).expect("room");
        assert_eq!(block.size, slot, "{size} bytes at {align}");
        assert!(block.addr.is_multiple_of(align));
        assert_eq!(heap.find(block.addr).expect("allocated"), block);
        assert_eq!(heap.owner(block.addr + block.size - 1).expect("whole"), Some(block));
    }
}

/// Whether two types ever share a page.
fn types_share() -> bool {
    let (_backing, _place, heap) = new();
    let mut pages: BTreeMap<u64, BTreeSet<u64>> = BTreeMap::new();
    for i in 0..600 {
        let kind = 1 + i % 3;
        let addr = alloc(&heap, 64, kind);
        pages.entry(addr / 4096).or_default().insert(kind);
        if i % 4 == 0 {
            heap.free(addr).expect("allocated");
        }
    }
    pages.values().any(|kinds| kinds.len() > 1)
}

#[test]
fn a_slab_has_blocks_of_one_type() {
    assert!(!types_share());
    plant(Bug::Logged(LoggedBug::SlabOfAnyType));
    let found = types_share();
    plant(Bug::None);
    assert!(found, "{:?} was not found", LoggedBug::SlabOfAnyType);
}

#[test]
fn every_wrong_free_of_a_small_block_is_named() {
    let (_backing, _place, heap) = new();
    for size in SLAB_SIZES.map(u64::from) {
        let kind = 100 + size;
        let all: Vec<u64> = (0..5).map(|_| alloc(&heap, size, kind)).collect();
        let refused = |addr: u64| match heap.free(addr) {
            Err(FreeRefused::NoBlock(error)) => error,
            other => panic!("{addr:#x}: {other:?}"),
        };
        for inside in [all[1] + 1, all[1] + size / 2, all[1] + size - 1] {
            assert_eq!(refused(inside), FreeError::InsideBlock { addr: inside, block: all[1] });
        }
        heap.free(all[1]).expect("allocated");
        assert_eq!(refused(all[1]), FreeError::NotAllocated { addr: all[1] });
        assert_eq!(refused(all[1] + 8), FreeError::NotABlock { addr: all[1] + 8 });
        let (slab, len) = (all[0], 1 << slab_class(size as u32));
        if len % size != 0 {
            assert_eq!(refused(slab + len - 16), FreeError::NotABlock { addr: slab + len - 16 });
        }
        let last = slab + (len / size - 1) * size;
        assert_eq!(refused(last), FreeError::NotAllocated { addr: last });
        // The place is not given out again while the slab has others.
        assert!((0..20).all(|_| alloc(&heap, size, kind) != all[1]));
    }
    let before = blocks(&heap);
    let mut log = heap.micro_log().expect("a lane");
    let new = log.alloc(64, 1, TypeId(9), false).expect("room").addr;
    let old = *before.keys().next().expect("a block");
    log.free(old).expect("allocated");
    for addr in [new, old] {
        assert_eq!(heap.free(addr), Err(FreeRefused::InTransaction { addr }));
    }
    log.abort().expect("whole");
    assert_eq!(blocks(&heap), before);
    log.free(old).expect("allocated");
    log.commit().expect("whole");
    assert_eq!(blocks(&heap).len() + 1, before.len());
}

/// Whether damage is found after slabs lost and got slots.
fn slabs_come_and_go() -> bool {
    let (_backing, _place, heap) = new();
    let mut all: Vec<u64> = (0..1000).map(|_| alloc(&heap, 100, 1)).collect();
    let mut step = 7usize;
    while !all.is_empty() {
        step = step.wrapping_mul(6364136223846793005).wrapping_add(1442695040888963407);
        if heap.free(all.swap_remove((step >> 33) % all.len())).is_err() {
            return true;
        }
        let left: BTreeSet<u64> = heap.check().blocks.iter().map(|b| b.addr).collect();
        if all.len().is_multiple_of(100) && left != all.iter().copied().collect() {
            return true;
        }
    }
    assert_eq!(blocks(&heap).len(), 0);
    heap.compact().expect("whole");
    heap.stats().expect("counts").free_bytes != DATA_LEN
}

#[test]
fn an_empty_slab_is_free_again() {
    assert!(!slabs_come_and_go());
    plant(Bug::Logged(LoggedBug::SlabReleasedEarly));
    let found = slabs_come_and_go();
    plant(Bug::None);
    assert!(found, "{:?} was not found", LoggedBug::SlabReleasedEarly);
}

#[test]
fn slabs_with_room_are_found_again_after_an_open() {
    let (backing, place, heap) = new();
    let mut all = Vec::new();
    while let Ok(block) = heap.alloc(64, 1, TypeId(1)) {
        all.push(block.addr);
    }
    assert_eq!(all.len() as u64, DATA_LEN / 64);
    let (freed, kept): (Vec<_>, Vec<_>) = all.iter().enumerate().partition(|(i, _)| i % 5 == 0);
    freed.iter().for_each(|(_, addr)| heap.free(**addr).expect("allocated"));
    drop(heap);
    let heap = open(&backing, &place);
    assert_eq!(blocks(&heap).len(), kept.len());
    let again: BTreeSet<u64> =
        core::iter::from_fn(|| heap.alloc(64, 1, TypeId(1)).ok().map(|b| b.addr)).collect();
    assert_eq!(again, freed.into_iter().map(|(_, addr)| *addr).collect());
    // A full heap has no slab for another type, and no free block either.
    assert!(heap.alloc(64, 1, TypeId(2)).is_err());
}

#[test]
fn small_blocks_flush_and_fence_exactly_so_often() {
    let (backing, _place, heap) = new();
    let cost = |act: &mut dyn FnMut()| {
        let before = backing.counts();
        act();
        let DurabilityCounts { flushed_lines, fences, .. } = backing.counts();
        (flushed_lines - before.flushed_lines, fences - before.fences)
    };
    let mut all: Vec<u64> = (0..65).map(|_| alloc(&heap, 64, 1)).collect();
    // The last change made the slab: its log is closed first.
    let closed = cost(&mut || all.push(alloc(&heap, 64, 1)));
    let taken = cost(&mut || all.push(alloc(&heap, 64, 1)));
    let freed = cost(&mut || heap.free(all.pop().expect("a block")).expect("allocated"));
    let mut log = heap.micro_log().expect("a lane");
    let entry = cost(&mut || drop(log.alloc(64, 1, TypeId(1), false)));
    let commit = cost(&mut || log.commit().expect("whole"));
    let refused = cost(&mut || assert!(heap.free(all[0] + 8).is_err()));
    assert_eq!([closed, taken, freed], [(2, 2), (1, 1), (1, 1)]);
    assert_eq!([entry, commit, refused], [(6, 2), (1, 1), (0, 0)]);
}

/// Nanoseconds of a malloc and a free of 64 bytes, optimised. `SLAB_PAIRS` says how many.
#[test]
fn pairs_of_small_blocks_are_timed() {
    let pairs: u64 =
        std::env::var("SLAB_PAIRS").ok().and_then(|text| text.parse().ok()).unwrap_or(2000);
    let (backing, place, heap) = new();
    drop(heap);
    for at in [backing.at_process(), backing] {
        let heap = open(&at, &place);
        alloc(&heap, 64, 1);
        let began = std::time::Instant::now();
        for _ in 0..pairs {
            let addr = alloc(&heap, 64, 1);
            heap.free(addr).expect("allocated");
        }
        let ns = began.elapsed().as_nanos() as f64 / pairs as f64;
        println!("power: {}, a pair: {ns:.0} ns", at.is_power());
    }
}

#[test]
fn one_flipped_bit_of_a_slab_is_found_and_never_followed() {
    let (_backing, place, heap) = new();
    let all: Vec<u64> = (0..90).map(|i| alloc(&heap, 16 << (i % 3), i % 3)).collect();
    let before = blocks(&heap);
    let words = place.metadata.len / 8;
    let at = core::ptr::with_exposed_provenance_mut::<u64>(place.metadata.addr() as usize);
    let levels = SubHeapGeometry::levels_for(DATA_LEN);
    let table = SubHeapGeometry::new(2, 0, levels).expect("a geometry").table / 8;
    let (mut flipped, mut healed) = (0, 0);
    for at_word in table..words {
        // SAFETY: a word of the test's memory, which no other thread uses.
        let word = unsafe { &mut *at.add(at_word as usize) };
        let is_used = *word != 0;
        for bit in (0..64).step_by(5).filter(|_| is_used) {
            *word ^= 1 << bit;
            flipped += 1;
            // A bit of the used slots is told by the check, and reads as before.
            let told =
                at_word % 4 == SlabRecord::USED_WORD as u64 && heap.check().damage.is_empty();
            assert!(told || !heap.check().damage.is_empty(), "bit {bit}");
            assert!(!told || blocks(&heap) == before, "bit {bit}");
            healed += u32::from(told);
            let wrong = all.iter().filter(|addr| heap.find(**addr).is_ok());
            assert!(wrong.count() <= all.len());
            *word ^= 1 << bit;
        }
    }
    assert!(flipped > 100 && healed > 10, "{flipped}, {healed}");
    assert_eq!(blocks(&heap), before);
}

#[test]
fn a_full_sub_heap_serves_small_blocks_again_once_all_are_freed() {
    let (backing, _) = memory();
    let levels = SubHeapGeometry::levels_for(16 << 10);
    let geometry = SubHeapGeometry::new(2, 0, levels).expect("a geometry");
    let base = backing.extents()[0].addr;
    let data = Region { puddle: 0, base, from: 0, len: 16 << 10 };
    let base = backing.extents()[1].addr;
    let metadata = Region { puddle: 1, base, from: 0, len: geometry.metadata_len };
    // SAFETY: as in `new`.
    let heap = unsafe { SubHeap::format(backing, &SubHeapPlace { data, metadata }, 0, 2) };
    let heap = heap.expect("a sub-heap");
    alloc(&heap, 100, 5);
    for size in [64, 64, 16] {
        alloc(&heap, size, 5);
    }
    let mut kind = 100;
    while heap.alloc(16, 1, TypeId(kind)).is_ok() {
        kind += 1;
    }
    for addr in blocks(&heap).into_keys() {
        heap.free(addr).expect("freed");
    }
    heap.compact().expect("compacted");
    alloc(&heap, 16, 5);
    alloc(&heap, 8192, 5);
}

/// Flips bits of the metadata of a sub-heap that is closed: cells of its last change, which nothing
/// has changed since, and others. Says in how many cases its blocks were others after an open.
fn lost_by_a_flipped_bit(slabs: u64) -> (u32, u32) {
    let (backing, place, heap) = new();
    for kind in 0..slabs {
        alloc(&heap, 64, kind);
    }
    let before = blocks(&heap);
    drop(heap);
    let len = place.metadata.len as usize / 8;
    let at = core::ptr::with_exposed_provenance_mut::<u64>(place.metadata.addr() as usize);
    // SAFETY: the test's memory, which no heap uses between `open` and `drop`.
    let words = || unsafe { core::slice::from_raw_parts_mut(at, len) };
    // As after a loss of power: the word of the last step tells of no change.
    words()[LAST_STEP_OFFSET as usize / 8] = 0;
    let kept = words().to_vec();
    let levels = SubHeapGeometry::levels_for(DATA_LEN);
    let table = SubHeapGeometry::new(2, 0, levels).expect("a geometry").table as usize / 8;
    let (mut flipped, mut lost) = (0, 0);
    for word in (table..len).filter(|&word| kept[word] != 0) {
        for bit in (0..64).step_by(7) {
            words()[word] ^= 1 << bit;
            let heap = open(&backing, &place);
            let report = heap.check();
            let found = report.blocks.iter().map(|b| (b.addr, (b.size, b.type_id.0))).collect();
            flipped += 1;
            lost += u32::from(report.damage.is_empty() && before != found);
            drop(heap);
            words().copy_from_slice(&kept);
        }
    }
    (flipped, lost)
}

#[test]
fn a_flipped_bit_of_the_last_change_takes_nothing_back() {
    let (flipped, lost) = lost_by_a_flipped_bit(2);
    assert!(flipped > 50 && lost == 0, "{lost} of {flipped}");
    plant(Bug::Logged(LoggedBug::FlippedBitUndone));
    let (_, lost) = lost_by_a_flipped_bit(2);
    plant(Bug::None);
    assert!(lost > 0, "the last change is taken back");
}

#[test]
fn an_abort_that_meets_damage_frees_nothing() {
    let (_backing, place, heap) = new();
    let mut log = heap.micro_log().expect("a lane");
    let kinds = [0x7001, 0x7002];
    let both = kinds.map(|kind| log.alloc(64, 1, TypeId(kind), false).expect("room").addr);
    let at = core::ptr::with_exposed_provenance_mut::<u64>(place.metadata.addr() as usize);
    let levels = SubHeapGeometry::levels_for(DATA_LEN);
    let table = SubHeapGeometry::new(2, 0, levels).expect("a geometry").table as usize / 8;
    let len = place.metadata.len as usize / 8;
    // SAFETY: words of the test's memory, which no other thread uses.
    let words = || unsafe { core::slice::from_raw_parts_mut(at, len) };
    let kind = (table..len).find(|&word| words()[word] == kinds[0]).expect("its slab");
    words()[kind] ^= 0b11;
    // The last one would be the first to be freed.
    assert!(log.abort().is_err());
    words()[kind] ^= 0b11;
    assert!(both.iter().all(|addr| blocks(&heap).contains_key(addr)));
}

/// The slab that served the last request is known to be whole: only as long as it lies so.
#[test]
fn a_slab_that_is_damaged_after_its_last_use_is_not_used_again() {
    let (_backing, place, heap) = new();
    let kind = 0x7003;
    let all = [(); 3].map(|()| alloc(&heap, 64, kind));
    let at = core::ptr::with_exposed_provenance_mut::<u64>(place.metadata.addr() as usize);
    let levels = SubHeapGeometry::levels_for(DATA_LEN);
    let table = SubHeapGeometry::new(2, 0, levels).expect("a geometry").table as usize / 8;
    let len = place.metadata.len as usize / 8;
    // SAFETY: words of the test's memory, which no other thread uses.
    let words = || unsafe { core::slice::from_raw_parts_mut(at, len) };
    let word = (table..len).find(|&word| words()[word] == kind).expect("its slab");
    // Two slots that are not used: no step leaves that.
    words()[word + 1] ^= 0b11 << 20;
    assert!(matches!(heap.free(all[1]), Err(FreeRefused::Damaged(_))));
    let slab = |addr: u64| addr / 4096;
    assert_ne!(slab(alloc(&heap, 64, kind)), slab(all[0]), "another slab serves");
    words()[word + 1] ^= 0b11 << 20;
    heap.free(all[1]).expect("whole again");
}
