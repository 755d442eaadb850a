//! Reclaim, at the heap: while it runs in slices, data are changed between them in every way; what
//! is given back is exactly what nothing led to when it began.

use crate::common::{
    A, Heap, Random, TypeMap, backing, field, pointers, read, record, write, zero,
};
use cenote_heap::reclaim::{before_change, is_recording};
use cenote_heap::trace::{Filter, Scanned, Visitor};
use cenote_heap::{
    Heap as _, Inspect as _, MemoryBacking, Reclaim as _, ReclaimError, Trace, TracedHeap, Types,
};
use cenote_layout::id::TypeId;
use cenote_layout::pointer::{PointerKind, encode_relative};
use cenote_layout::types::{Condition, PointerField, TypeRecord};
use cenote_medium::planted::{Bug, plant};
use cenote_testkit::environment::rounds;
use std::collections::BTreeSet;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

/// An array of 24-byte values with a pointer each.
const ARRAY: TypeId = TypeId(0xa44a);
/// One value whose pointer is there if its first word is 1.
const CHOICE: TypeId = TypeId(0xc401);
/// A pointer that only a filter can read.
const PACKED: TypeId = TypeId(0x9acd);
/// Self-relative pointers.
const RELATIVE: TypeId = TypeId(0x4e1);
/// An array of 24-byte values with a heap pointer each.
const HEAP: TypeId = TypeId(0x4ea9);
/// No pointers.
const LEAF: TypeId = TypeId(0x1eaf);

const KEY: u64 = 0x5a5a_5a5a_0000_0000;

fn unpack(scanned: &Scanned<'_>, visitor: &mut Visitor<'_>) {
    match scanned.word(8) {
        Some(0) | None => {}
        Some(word) => visitor.pointer(word ^ KEY),
    }
}

#[derive(Clone)]
struct Known(Arc<TypeMap>);

impl Types for Known {
    fn record(&self, id: TypeId) -> Option<Arc<TypeRecord>> {
        self.0.record(id)
    }

    fn filter(&self, id: TypeId) -> Option<Filter> {
        (id == PACKED).then_some(unpack as Filter)
    }
}

fn types() -> Known {
    let choice = PointerField {
        conditions: vec![Condition { offset: 0, size: 8, value: 1 }],
        ..field(8, 1, TypeId::UNTYPED)
    };
    Known(Arc::new(TypeMap::from([
        (A, record(A, 32, false, vec![field(0, 2, TypeId::UNTYPED)])),
        (ARRAY, record(ARRAY, 24, true, vec![field(8, 1, TypeId::UNTYPED)])),
        (CHOICE, record(CHOICE, 32, false, vec![choice])),
        (
            RELATIVE,
            record(
                RELATIVE,
                32,
                false,
                vec![pointers(0, 2, TypeId::UNTYPED, PointerKind::RELATIVE)],
            ),
        ),
        (HEAP, record(HEAP, 24, true, vec![pointers(8, 1, TypeId::UNTYPED, PointerKind::HEAP)])),
        (LEAF, record(LEAF, 16, false, vec![])),
    ])))
}

/// Only one test records at a time: recording is a state of the process.
fn alone() -> MutexGuard<'static, ()> {
    static ALONE: Mutex<()> = Mutex::new(());
    ALONE.lock().unwrap_or_else(PoisonError::into_inner)
}

fn new(heap: &Heap, size: u64, type_id: TypeId) -> u64 {
    let block = heap.alloc(size, 16, type_id).unwrap();
    let addr = block.addr.as_ptr() as u64;
    zero(addr, block.size);
    addr
}

fn allocated(heap: &Heap) -> BTreeSet<u64> {
    let mut set = BTreeSet::new();
    heap.walk(&mut |block| assert!(set.insert(block.addr))).unwrap();
    set
}

fn begin(heap: &Heap) {
    heap.begin_reclaim(Arc::new(types()));
    while heap.prepare_reclaim().unwrap() {}
}

fn slice(heap: &Heap) -> bool {
    heap.mark_slice(&[], Duration::ZERO).unwrap().pending
}

/// Marks to the end and gives back; the blocks that were.
fn finish(heap: &Heap) -> Vec<u64> {
    while slice(heap) {}
    assert!(heap.condemn().unwrap());
    let mut given = Vec::new();
    while heap.give_back_slice(3, false, &mut |block| given.push(block.addr)).unwrap() {}
    heap.end_reclaim();
    assert!(!is_recording());
    given
}

/// What a transaction does: says it before it writes.
fn set(addr: u64, offset: u64, value: u64) {
    // SAFETY: a word of a block, which this thread alone uses.
    unsafe { before_change(addr + offset, 8) };
    write(addr, offset, value);
}

/// Where a block of a model has cells, by kind, and how they hold an address.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Kind {
    Fixed,
    Array(u64),
    Choice,
    Packed,
    Relative,
    Heap(u64),
    Words(u64),
}

#[derive(Clone)]
struct Block {
    addr: u64,
    kind: Kind,
    to: Vec<Option<usize>>,
}

impl Block {
    fn make(heap: &Heap, random: &mut Random) -> Self {
        let (kind, size, type_id) = match random.below(18) {
            0..=4 => (Kind::Fixed, 32, A),
            5..=6 => (Kind::Array(5), 120, ARRAY),
            7..=8 => (Kind::Choice, 32, CHOICE),
            9..=10 => (Kind::Packed, 32, PACKED),
            11..=12 => (Kind::Relative, 32, RELATIVE),
            13 => (Kind::Words(4), 32, TypeId::UNTYPED),
            14 if random.below(8) == 0 => (Kind::Array(8000), 24 * 8000, ARRAY),
            15 if random.below(8) == 0 => (Kind::Words(20_000), 8 * 20_000, TypeId::UNTYPED),
            16 => (Kind::Heap(5), 120, HEAP),
            17 if random.below(8) == 0 => (Kind::Heap(8000), 24 * 8000, HEAP),
            _ => (Kind::Fixed, 32, A),
        };
        let cells = match kind {
            Kind::Fixed | Kind::Relative => 2,
            Kind::Choice | Kind::Packed => 1,
            // Of large ones a few, all over the block.
            Kind::Array(count) | Kind::Heap(count) | Kind::Words(count) => count.min(12),
        };
        Self { addr: new(heap, size, type_id), kind, to: vec![None; cells as usize] }
    }

    fn offset(&self, cell: usize) -> u64 {
        let cell = cell as u64;
        match self.kind {
            Kind::Fixed | Kind::Relative => cell * 8,
            Kind::Choice | Kind::Packed => 8,
            Kind::Array(count) | Kind::Heap(count) => (cell * (count / count.min(12))) * 24 + 8,
            Kind::Words(count) => cell * (count / count.min(12)) * 8,
        }
    }

    /// Makes a cell lead to an address, 0 for none. `said`: others may be told of it.
    fn point(&self, heap: &Heap, cell: usize, to: u64, said: bool) {
        let (addr, offset) = (self.addr, self.offset(cell));
        let put = |offset, value| {
            if said { set(addr, offset, value) } else { write(addr, offset, value) }
        };
        match self.kind {
            Kind::Heap(_) => {
                let place = (to != 0).then(|| heap.place(to).unwrap().to_pair().unwrap());
                let pair = place.unwrap_or_default();
                put(offset, pair[0]);
                put(offset + 8, pair[1]);
            }
            _ if to == 0 => put(offset, 0),
            Kind::Packed => put(offset, to ^ KEY),
            Kind::Relative => put(offset, encode_relative(addr + offset, to).unwrap()),
            Kind::Choice => {
                put(offset, to);
                put(0, 1);
            }
            _ => put(offset, to),
        }
        if to == 0 && self.kind == Kind::Choice {
            put(0, 0);
        }
    }
}

/// Blocks that the roots' block leads to, in the model.
fn reachable(blocks: &[Option<Block>]) -> BTreeSet<usize> {
    let mut seen = BTreeSet::from([0]);
    let mut pending = vec![0];
    while let Some(at) = pending.pop() {
        for &to in blocks[at].iter().flat_map(|block| block.to.iter().flatten()) {
            if seen.insert(to) {
                pending.push(to);
            }
        }
    }
    seen
}

/// 600 blocks: the first one leads to some, others to some before or behind them, none to the rest.
fn linked(backing: &MemoryBacking, random: &mut Random) -> Vec<Option<Block>> {
    let mut blocks: Vec<Option<Block>> = Vec::new();
    let heap = TracedHeap::open(backing.clone()).unwrap();
    for _ in 0..600 {
        blocks.push(Some(Block::make(&heap, random)));
    }
    for at in 0..blocks.len() {
        let mut block = blocks[at].take().unwrap();
        for cell in 0..block.to.len() {
            if random.below(3) > 0 {
                let to = random.below(600) as usize;
                let addr = blocks[to].as_ref().map_or(block.addr, |block| block.addr);
                block.point(&heap, cell, addr, false);
                block.to[cell] = Some(to);
            }
        }
        blocks[at] = Some(block);
    }
    heap.set_root(0, blocks[0].as_ref().unwrap().addr, TypeId::UNTYPED).unwrap();
    blocks
}

/// What a program does beside a reclaim: it points, makes or frees.
fn change(heap: &TracedHeap<MemoryBacking>, blocks: &mut Vec<Option<Block>>, random: &mut Random) {
    // Everything that is `Some` is known to the program: reachable, or held in its memory.
    let known: Vec<usize> = (0..blocks.len()).filter(|&at| blocks[at].is_some()).collect();
    let at = known[random.below(known.len() as u64) as usize];
    match random.below(8) {
        0..=4 => {
            let to = known[random.below(known.len() as u64) as usize];
            let to_addr = blocks[to].as_ref().unwrap().addr;
            let block = blocks[at].as_mut().unwrap();
            let cell = random.below(block.to.len() as u64) as usize;
            let clear = random.below(2) == 0;
            block.point(heap, cell, if clear { 0 } else { to_addr }, true);
            block.to[cell] = (!clear).then_some(to);
        }
        5..=6 => blocks.push(Some(Block::make(heap, random))),
        // Freed, and all that led there is cleared first.
        _ if at != 0 => {
            for block in blocks.iter_mut().flatten() {
                for cell in 0..block.to.len() {
                    if block.to[cell] == Some(at) {
                        block.point(heap, cell, 0, true);
                        block.to[cell] = None;
                    }
                }
            }
            heap.free(blocks[at].take().unwrap().addr).unwrap();
        }
        _ => {}
    }
}

/// One history; `Err` if something that is in use was given back, or a leak was not.
fn history(seed: u64) -> Result<(), String> {
    let mut random = Random(seed);
    let backing: MemoryBacking = backing(512 << 10, 256 << 20);
    let mut blocks = linked(&backing, &mut random);
    let live = reachable(&blocks);
    let leaks: BTreeSet<u64> = (0..600)
        .filter(|at| !live.contains(at))
        .map(|at| blocks[at].as_ref().unwrap().addr)
        .collect();
    // The model forgets leaks.
    (0..600).filter(|at| !live.contains(at)).for_each(|at| blocks[at] = None);

    let heap = TracedHeap::open(backing).unwrap();
    heap.begin_reclaim(Arc::new(types()));
    // Also before the first slice, while puddles are not adopted yet.
    (0..random.below(60)).for_each(|_| change(&heap, &mut blocks, &mut random));
    while heap.prepare_reclaim().unwrap() {
        (0..random.below(30)).for_each(|_| change(&heap, &mut blocks, &mut random));
    }
    let mut slices = 0;
    while slice(&heap) {
        (0..random.below(12)).for_each(|_| change(&heap, &mut blocks, &mut random));
        slices += 1;
        if slices > 100_000 {
            return Err("it does not end".into());
        }
    }
    // What was changed since the last slice is looked at before anything is condemned.
    while !heap.condemn().unwrap() {
        while slice(&heap) {}
    }
    if leaks.iter().any(|&leak| heap.find(leak).is_ok()) {
        return Err(format!("seed {seed:#x}: a leak is live although all are condemned"));
    }
    let mut given = BTreeSet::new();
    while heap.give_back_slice(5, false, &mut |block| assert!(given.insert(block.addr))).unwrap() {
        (0..random.below(12)).for_each(|_| change(&heap, &mut blocks, &mut random));
    }
    heap.end_reclaim();
    let expected: BTreeSet<u64> = blocks.iter().flatten().map(|block| block.addr).collect();
    if given != leaks {
        return Err(format!("seed {seed:#x}: {} given back, {} leaked", given.len(), leaks.len()));
    }
    if allocated(&heap) != expected {
        return Err(format!("seed {seed:#x}: what is allocated is not what the program has"));
    }
    Ok(())
}

#[test]
fn exactly_the_leaks_are_given_back_while_the_heap_changes() {
    let _alone = alone();
    for seed in 0..rounds(120) {
        history(0x4ec1_a100 + seed).unwrap();
    }
}

#[test]
fn histories_notice_a_free_that_is_not_recorded() {
    let _alone = alone();
    plant(Bug::ReclaimMissesFree);
    let failed = (0..120).any(|seed| {
        std::panic::catch_unwind(|| history(0x4ec1_a100 + seed))
            .map_or(true, |result| result.is_err())
    });
    plant(Bug::None);
    assert!(failed, "no history noticed that what freed blocks held was not looked at");
}

/// A header is found through an address that was kept, and its node is taken over by a new one that
/// a root leads to: after the last slice, and before leaks are condemned. Whether the node is live
/// then.
fn taken_over_late(bug: Bug) -> (bool, bool) {
    let backing = backing(512 << 10, 64 << 20);
    let (header, node) = {
        let heap = TracedHeap::open(backing.clone()).unwrap();
        let (header, node) = (new(&heap, 32, A), new(&heap, 32, A));
        write(header, 0, node);
        (header, node)
    };
    let heap = TracedHeap::open(backing).unwrap();
    begin(&heap);
    while slice(&heap) {}
    let other = new(&heap, 32, A);
    set(header, 0, 0);
    set(other, 0, node);
    heap.set_root(0, other, A).unwrap();
    plant(bug);
    while !heap.condemn().unwrap() {
        while slice(&heap) {}
    }
    plant(Bug::None);
    while heap.give_back_slice(3, false, &mut |_| {}).unwrap() {}
    heap.end_reclaim();
    (heap.find(node).is_ok(), heap.find(header).is_ok())
}

#[test]
fn what_is_taken_over_before_leaks_are_condemned_is_kept() {
    let _alone = alone();
    assert_eq!(taken_over_late(Bug::None), (true, false));
    let noticed = taken_over_late(Bug::CondemnedUnheard) != (true, false);
    assert!(noticed, "nothing noticed that a copy was not looked at");
}

#[test]
fn a_run_that_ends_early_leaves_dead_blocks_that_the_next_one_frees() {
    let _alone = alone();
    // It cannot grow.
    let heap = crate::common::heap(512 << 10, 512 << 10);
    let leaks: BTreeSet<u64> = (0..3000).map(|_| new(&heap, 32, A)).collect();
    begin(&heap);
    while slice(&heap) {}
    assert!(heap.condemn().unwrap());
    assert!(leaks.iter().all(|&leak| heap.find(leak).is_err() && heap.free(leak).is_err()));
    heap.give_back_slice(10, false, &mut |_| {}).unwrap();
    heap.end_reclaim();
    assert!(allocated(&heap).is_empty());
    let more = new(&heap, 48, A);
    begin(&heap);
    while slice(&heap) {}
    assert!(heap.condemn().unwrap());
    let mut given = Vec::new();
    while heap.give_back_slice(10, false, &mut |block| given.push(block.addr)).unwrap() {}
    heap.end_reclaim();
    assert_eq!(given, [more]);
    // All places are given out again, each once.
    let mut again = BTreeSet::new();
    while let Ok(block) = heap.alloc(32, 16, A) {
        assert!(again.insert(block.addr.as_ptr() as u64));
    }
    assert!(leaks.is_subset(&again));
}

#[test]
fn check_verifies_the_links_of_leaks() {
    let types = TypeMap::from([(A, record(A, 32, false, vec![field(0, 2, A)]))]);
    let heap = crate::common::heap(512 << 10, 64 << 20);
    let (header, node, other) = (new(&heap, 32, A), new(&heap, 32, A), new(&heap, 16, LEAF));
    write(header, 0, node);
    let report = heap.check(Some(&types)).unwrap();
    assert_eq!((report.leaked_blocks, report.dangling_blocks), (3, 0));
    heap.free(node).unwrap();
    write(header, 8, other);
    let report = heap.check(Some(&types)).unwrap();
    assert_eq!((report.dangling_blocks, report.unallocated_blocks), (1, 0));
    assert_eq!(report.dangling[0].addr, node);
    let trace = report.leak_trace.expect("there are leaks");
    assert!(trace.findings.iter().any(|found| found.at == header + 8), "{trace:?}");
}

/// A root that is set outside transactions hides a value: it is taken out of one root before roots
/// are looked at, and put into another after that.
fn hidden_by_roots() -> Vec<u64> {
    let backing = backing(512 << 10, 64 << 20);
    let (value, leak) = {
        let heap = TracedHeap::open(backing.clone()).unwrap();
        let value = new(&heap, 32, A);
        heap.set_root(5, value, A).unwrap();
        (value, new(&heap, 32, A))
    };
    let heap = TracedHeap::open(backing).unwrap();
    begin(&heap);
    let held = heap.root(5).unwrap().addr;
    heap.set_root(5, 0, TypeId::UNTYPED).unwrap();
    slice(&heap);
    heap.set_root(900, held, A).unwrap();
    let given = finish(&heap);
    assert!(given.contains(&leak) && held == value);
    given.into_iter().filter(|&addr| addr != leak).collect()
}

#[test]
fn a_value_that_moves_from_root_to_root_is_kept() {
    let _alone = alone();
    assert!(hidden_by_roots().is_empty());
    plant(Bug::ReclaimMissesRoot);
    let lost = hidden_by_roots();
    plant(Bug::None);
    assert_eq!(lost.len(), 1, "nothing noticed that roots are not recorded");
}

#[test]
fn a_block_of_this_session_is_never_given_back() {
    let _alone = alone();
    let run = || {
        let backing = backing(512 << 10, 64 << 20);
        let old = {
            let heap = TracedHeap::open(backing.clone()).unwrap();
            new(&heap, 32, A)
        };
        let heap = TracedHeap::open(backing).unwrap();
        begin(&heap);
        // The place of a leak that the program freed, and that was given out again, is a new block
        // too.
        heap.free(old).unwrap();
        let mine: Vec<u64> = (0..100).map(|_| new(&heap, 32, A)).collect();
        assert!(mine.contains(&old), "the place was not given out again: the test tests nothing");
        let given = finish(&heap);
        (given.len(), mine.iter().all(|&addr| heap.find(addr).is_ok()))
    };
    assert_eq!(run(), (0, true));
    plant(Bug::ReclaimTakesNew);
    let (given, _) = run();
    plant(Bug::None);
    assert_eq!(given, 100, "nothing noticed that new blocks are taken");
}

#[test]
fn a_dry_run_names_leaks_and_changes_nothing() {
    let _alone = alone();
    let heap = crate::common::heap(512 << 10, 64 << 20);
    let leaks: BTreeSet<u64> =
        (0..5000).map(|_| new(&heap, 32, A)).chain([new(&heap, 200_000, A)]).collect();
    begin(&heap);
    while slice(&heap) {}
    let mut named = BTreeSet::new();
    while heap.give_back_slice(10, true, &mut |block| assert!(named.insert(block.addr))).unwrap() {}
    assert_eq!((named, allocated(&heap)), (leaks.clone(), leaks.clone()));
    let mut given = BTreeSet::new();
    // After a dry run the real one needs a beginning of its own.
    heap.end_reclaim();
    begin(&heap);
    while slice(&heap) {}
    let not_condemned = heap.give_back_slice(10, false, &mut |_| {});
    assert!(matches!(not_condemned, Err(ReclaimError::NotUnderWay)));
    assert!(heap.condemn().unwrap());
    while heap.give_back_slice(10, false, &mut |block| assert!(given.insert(block.addr))).unwrap() {
    }
    heap.end_reclaim();
    assert_eq!((given, allocated(&heap)), (leaks, BTreeSet::new()));
    // Free, and free once: they are given out again, each once.
    let again: BTreeSet<u64> = (0..5000).map(|_| new(&heap, 32, A)).collect();
    assert_eq!(again.len(), 5000);
}

#[test]
fn slices_are_short_also_in_large_blocks() {
    let _alone = alone();
    let heap = crate::common::heap(16 << 20, 64 << 20);
    // 8 MiB of words, none of which leads anywhere: one block, many slices.
    let large = new(&heap, 8 << 20, TypeId::UNTYPED);
    heap.set_root(0, large, TypeId::UNTYPED).unwrap();
    begin(&heap);
    let mut slices = 1;
    while slice(&heap) {
        slices += 1;
    }
    heap.end_reclaim();
    assert!(slices >= 64, "{slices} slices for a million words");
}

#[test]
fn a_recovery_ends_a_reclaim_and_damage_refuses_one() {
    let _alone = alone();
    let heap = crate::common::heap(512 << 10, 64 << 20);
    let value = new(&heap, 32, A);
    begin(&heap);
    heap.recover(&types(), &[]).unwrap();
    assert!(!heap.is_reclaiming() && !is_recording());
    assert!(matches!(heap.mark_slice(&[], Duration::ZERO), Err(ReclaimError::NotUnderWay)));
    assert!(matches!(heap.give_back_slice(1, false, &mut |_| {}), Err(ReclaimError::NotUnderWay)));
    assert!(heap.find(value).is_err());

    // What a superblock held that cannot be read any more may have led anywhere.
    let backing = backing(512 << 10, 64 << 20);
    let value = {
        let heap = TracedHeap::open(backing.clone()).unwrap();
        new(&heap, 32, A)
    };
    crate::common::damage_descriptor(&backing, value);
    let heap = TracedHeap::open(backing).unwrap();
    heap.begin_reclaim(Arc::new(types()));
    let refused = loop {
        match heap.prepare_reclaim() {
            Ok(true) => {}
            other => break other,
        }
    };
    assert!(matches!(refused, Err(ReclaimError::Damaged { .. })), "{refused:?}");
    heap.end_reclaim();
    assert_eq!(read(value, 0), 0);
}

#[test]
fn a_heap_of_several_processes_is_refused() {
    let _alone = alone();
    let heap =
        TracedHeap::open(crate::common::shared::Files::new(1 << 20, 16 << 20).played(1)).unwrap();
    heap.begin_reclaim(Arc::new(types()));
    assert!(matches!(heap.prepare_reclaim(), Err(ReclaimError::Shared)));
    heap.end_reclaim();
}
