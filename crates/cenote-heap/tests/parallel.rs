//! Tracing by one thread or several, with pointers of every kind: always exactly what can be
//! reached.

use crate::common::{Random, TypeMap, backing, field, pointers, read, record, write, zero};
use cenote_heap::report::{Fault, TraceCounts};
use cenote_heap::trace::{Filter, Scanned, TraceProgress, Visitor};
use cenote_heap::{
    Backing, BackingError, Extent, Heap as _, Inspect as _, MemoryBacking, RecoverError, Trace,
    TraceOptions, TracedHeap, Types,
};
use cenote_layout::id::{PoolId, TypeId};
use cenote_layout::pointer::{PointerKind, RegionAddress, encode_relative};
use cenote_layout::types::{Condition, PointerField, TypeRecord};
use proptest::prelude::*;
use std::collections::BTreeSet;
use std::num::NonZero;
use std::ops::ControlFlow;
use std::sync::Arc;
use std::sync::atomic::AtomicPtr;
use std::time::Duration;

/// Two natives, one without a known target, an off-holder, a region pointer, a heap pointer.
const NODE: TypeId = TypeId(1);
/// Tag 1: a native; tag 2: an off-holder to an array, and a native.
const CHOICE: TypeId = TypeId(2);
/// Values of a tagged native and a number.
const ARRAY: TypeId = TypeId(3);
/// 600 natives.
const WIDE: TypeId = TypeId(4);
/// Two words of which a pointer is the sum.
const SUM: TypeId = TypeId(5);
/// A number and a word that may be a pointer.
const PERHAPS: TypeId = TypeId(6);
/// No type map has it.
const STRANGE: TypeId = TypeId(7);

const KINDS: [(TypeId, u64); 8] = [
    (NODE, 56),
    (CHOICE, 24),
    (ARRAY, 160),
    (WIDE, 4800),
    (SUM, 16),
    (PERHAPS, 16),
    (STRANGE, 64),
    (TypeId::UNTYPED, 128),
];

struct Known(TypeMap);

impl Types for Known {
    fn record(&self, id: TypeId) -> Option<Arc<TypeRecord>> {
        self.0.record(id)
    }

    fn filter(&self, id: TypeId) -> Option<Filter> {
        (id == SUM).then_some(sum)
    }
}

fn sum(block: &Scanned<'_>, visitor: &mut Visitor<'_>) {
    let parts = block.word(0).zip(block.word(8)).expect("two words");
    visitor.pointer(parts.0.wrapping_add(parts.1));
}

fn types() -> Known {
    let native = |offset, count| field(offset, count, TypeId::UNTYPED);
    let when = |value, field: PointerField| PointerField {
        conditions: vec![Condition { offset: 0, size: 1, value }],
        ..field
    };
    let of = |id, size, repeats, pointers| (id, record(id, size, repeats, pointers));
    Known(TypeMap::from([
        of(
            NODE,
            56,
            false,
            vec![
                native(0, 2),
                field(16, 1, TypeId::UNTYPED),
                pointers(24, 1, TypeId::UNTYPED, PointerKind::RELATIVE),
                pointers(32, 1, TypeId::UNTYPED, PointerKind::REGION),
                pointers(40, 1, TypeId::UNTYPED, PointerKind::HEAP),
            ],
        ),
        of(
            CHOICE,
            24,
            false,
            vec![
                when(1, native(8, 1)),
                when(2, pointers(8, 1, ARRAY, PointerKind::RELATIVE)),
                when(2, native(16, 1)),
            ],
        ),
        of(ARRAY, 16, true, vec![PointerField { tag_mask: 7, ..native(0, 1) }]),
        of(WIDE, 4800, false, vec![native(0, 600)]),
        of(PERHAPS, 16, false, vec![pointers(8, 1, TypeId::UNTYPED, PointerKind::PERHAPS)]),
    ]))
}

/// Plain memory that region pointers lead into: its puddles are those of pool 1, and pool 2 is the
/// foreign one.
#[derive(Clone)]
struct Regions(MemoryBacking);

// SAFETY: all but `region`, which promises nothing, is passed on.
unsafe impl Backing for Regions {
    fn extents(&self) -> Vec<Extent> {
        self.0.extents()
    }
    fn map(&self, extent: &Extent) -> Result<(), BackingError> {
        self.0.map(extent)
    }
    fn take(&self, size: u64) -> Result<Extent, BackingError> {
        self.0.take(size)
    }
    fn slot(&self, addr: u64) -> Option<&AtomicPtr<()>> {
        self.0.slot(addr)
    }
    fn is_foreign(&self, addr: u64) -> bool {
        self.0.is_foreign(addr)
    }
    fn region(&self, region: &RegionAddress) -> Option<u64> {
        let base = match region.pool {
            PoolId(1) => self.extents().iter().find(|extent| extent.index == region.puddle)?.addr,
            PoolId(2) => self.0.foreign_puddle(),
            _ => return None,
        };
        Some(base + region.offset)
    }
    fn is_writable(&self) -> bool {
        self.0.is_writable()
    }
    fn puddle_size(&self) -> u64 {
        self.0.puddle_size()
    }
    fn size_max(&self) -> u64 {
        self.0.size_max()
    }
    unsafe fn flush(&self, start: *const u8, len: usize) {
        // SAFETY: the caller's.
        unsafe { self.0.flush(start, len) }
    }
    fn fence(&self) {
        self.0.fence();
    }
}

impl Regions {
    fn region_of(&self, addr: u64) -> u64 {
        self.0.place(addr).unwrap().encode().unwrap()
    }
}

type Heap = TracedHeap<Regions>;

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

/// Threads as given, from the first block on.
fn by<'a>(workers: usize) -> TraceOptions<'a> {
    let mut options = TraceOptions::default();
    (options.workers, options.alone_blocks) = (NonZero::new(workers), 0);
    options
}

/// A pointer from block `at`, at `offset`, to `to`, of any kind that a conservative scan knows; of
/// two words, if `room` says that the second is there.
fn any_kind(random: &mut Random, backing: &Regions, (at, room): (u64, bool), offset: u64, to: u64) {
    let word = match random.below(4) {
        3 if room => {
            let pair = backing.0.place(to).unwrap().to_pair().unwrap();
            write(at, offset + 8, pair[1]);
            pair[0]
        }
        0 => to + random.below(16),
        1 => encode_relative(at + offset, to + random.below(16)).unwrap(),
        _ => backing.region_of(to),
    };
    write(at, offset, word);
}

/// Writes a pointer from block `at` of type `KINDS[kind]` to `to`, in a place that is not taken;
/// `false` if all are.
fn connect(
    random: &mut Random,
    backing: &Regions,
    (at, kind): (u64, usize),
    (to, to_kind): (u64, usize),
) -> bool {
    let free = |offset: u64| read(at, offset) == 0;
    match KINDS[kind].0 {
        NODE => match random.below(5) {
            slot @ 0..=2 if free(slot * 8) => write(at, slot * 8, to + random.below(16)),
            3 if free(24) => write(at, 24, encode_relative(at + 24, to).unwrap()),
            4 if free(40) => {
                let pair = backing.0.place(to).unwrap().to_pair().unwrap();
                write(at, 40, pair[0]);
                write(at, 48, pair[1]);
            }
            _ if free(32) => write(at, 32, backing.region_of(to)),
            _ => return false,
        },
        CHOICE => match read(at, 0) & 0xff {
            0 if KINDS[to_kind].0 == ARRAY => {
                write(at, 0, 0xaa02);
                write(at, 8, encode_relative(at + 8, to).unwrap());
            }
            0 => {
                write(at, 0, 0xbb01);
                write(at, 8, to);
            }
            2 if free(16) => write(at, 16, to),
            _ => return false,
        },
        ARRAY => match (0..10).find(|i| free(i * 16)) {
            Some(i) => write(at, i * 16, to | random.below(8)),
            None => return false,
        },
        WIDE => match (0..600).map(|_| random.below(600)).find(|i| free(i * 8)) {
            Some(i) => write(at, i * 8, to),
            None => return false,
        },
        SUM if free(0) => {
            let part = random.next() | 1;
            write(at, 0, part);
            write(at, 8, to.wrapping_sub(part));
        }
        PERHAPS if free(8) => any_kind(random, backing, (at, false), 8, to),
        STRANGE | TypeId::UNTYPED => match (0..8).find(|i| free(i * 8)) {
            Some(i) => any_kind(random, backing, (at, i < 7), i * 8, to),
            None => return false,
        },
        _ => return false,
    }
    true
}

/// A number that leads to `to` if it is taken for a pointer, where type `KINDS[kind]` has none.
fn mislead((at, kind): (u64, usize), to: u64) {
    match KINDS[kind].0 {
        CHOICE if read(at, 0) & 0xff == 1 => write(at, 16, to),
        ARRAY => write(at, 8, to),
        PERHAPS => write(at, 0, to),
        _ => {}
    }
}

fn reachable(edges: &[Vec<usize>], roots: &[usize]) -> Vec<bool> {
    let mut reached = vec![false; edges.len()];
    let mut pending = roots.to_vec();
    while let Some(i) = pending.pop() {
        if !std::mem::replace(&mut reached[i], true) {
            pending.extend(&edges[i]);
        }
    }
    reached
}

/// A block and its kind. Wide ones are rare, and some arrays are large blocks.
fn new_of_any_kind(heap: &Heap, random: &mut Random) -> (u64, usize) {
    let kind = match random.below(40) {
        0 => 3,
        k => [0, 0, 1, 2, 4, 5, 6, 7][k as usize % 8],
    };
    let large = kind == 2 && random.below(50) == 0;
    let size = if large { 150_000 } else { KINDS[kind].1 };
    (new(heap, size, KINDS[kind].0), kind)
}

/// The counts that do not depend on which thread traced what.
fn comparable(mut counts: TraceCounts) -> TraceCounts {
    counts.findings.clear();
    counts
}

proptest! {
    #![proptest_config(ProptestConfig {
        cases: 24, failure_persistence: None, ..ProptestConfig::default()
    })]
    #[test]
    fn random_graphs_of_every_kind_are_recovered_exactly_by_any_number_of_threads(
        seed in any::<u64>(), count in 1usize..6000, degree in 0u64..6, roots in 1u16..40,
    ) {
        let types = types();
        let backing = Regions(backing(512 << 10, 256 << 20));
        let mut random = Random(seed);
        let (blocks, expected) = {
            let heap = TracedHeap::open(backing.clone()).unwrap();
            let blocks: Vec<_> = (0..count).map(|_| new_of_any_kind(&heap, &mut random)).collect();
            let mut edges = vec![Vec::new(); count];
            for from in 0..count {
                let wanted = if blocks[from].1 == 3 { 400 } else { random.below(degree + 1) };
                for _ in 0..wanted {
                    // Mostly to neighbours, so that there are long paths.
                    let to = match random.below(3) {
                        0 => random.below(count as u64) as usize,
                        _ => (from + 1 + random.below(8) as usize) % count,
                    };
                    if connect(&mut random, &backing, blocks[from], blocks[to]) {
                        edges[from].push(to);
                    }
                }
                mislead(blocks[from], blocks[random.below(count as u64) as usize].0);
            }
            let chosen: Vec<usize> =
                (0..roots).map(|_| random.below(count as u64) as usize).collect();
            for (index, &root) in chosen.iter().enumerate() {
                heap.set_root(index as u16 * 25, blocks[root].0, KINDS[blocks[root].1].0).unwrap();
            }
            let reached = reachable(&edges, &chosen);
            let expected: BTreeSet<u64> =
                (0..count).filter(|i| reached[*i]).map(|i| blocks[i].0).collect();
            (blocks, expected)
        };
        prop_assert!(count < 2000 || backing.extents().len() > 1);
        let mut first: Option<TraceCounts> = None;
        for workers in 1..=4 {
            let heap = TracedHeap::open(backing.clone()).unwrap();
            // Some marks of the reachable are lost.
            for (addr, _) in blocks.iter().filter(|_| random.below(8) == 0) {
                let _ = heap.free(*addr);
            }
            let check = heap.check_from(Some(&types), &[], by(workers)).unwrap();
            let checked = comparable(check.trace.unwrap());
            prop_assert_eq!(checked.blocks as usize, expected.len());
            let leaked = allocated(&heap).difference(&expected).count();
            prop_assert_eq!(check.leaked_blocks as usize, leaked);
            let report = heap.recover_with(&types, &[], by(workers)).unwrap();
            prop_assert_eq!(&allocated(&heap), &expected, "by {} threads", workers);
            prop_assert_eq!(report.trace.faults, 0, "{:?}", report.trace.findings.first());
            let counts = comparable(report.trace);
            prop_assert_eq!(&counts, &checked);
            match &first {
                None => first = Some(counts),
                Some(first) => prop_assert_eq!(first, &counts, "by {} threads", workers),
            }
            prop_assert!(heap.check(Some(&types)).unwrap().is_sound());
            // What is allocated next overlaps nothing that is reachable; it is not attached, so the
            // next round frees it.
            for (_, kind) in blocks.iter().take(200) {
                let other = new(&heap, KINDS[*kind].1, KINDS[*kind].0);
                prop_assert!(!expected.contains(&other));
            }
        }
    }
}

/// A list of lists, as long as the threads have something to share.
fn lists(heap: &Heap, count: u64, len: u64) -> u64 {
    let mut head = 0;
    for _ in 0..count {
        let mut next = 0;
        for _ in 0..len {
            let node = new(heap, 40, NODE);
            write(node, 0, next);
            next = node;
        }
        let list = new(heap, 40, NODE);
        write(list, 0, next);
        write(list, 8, head);
        head = list;
    }
    heap.set_root(0, head, NODE).unwrap();
    count * (len + 1)
}

#[test]
fn a_recovery_that_is_cancelled_at_any_report_changes_nothing_and_can_be_repeated() {
    let heap = TracedHeap::open(Regions(backing(1 << 20, 64 << 20))).unwrap();
    let count = lists(&heap, 30, 100);
    let lost: Vec<u64> = (0..100).map(|_| new(&heap, 40, NODE)).collect();
    let before = allocated(&heap);
    let mut cancelled = 0;
    for workers in [1, 3] {
        for at in 0.. {
            let mut calls = 0;
            let mut last = 0;
            let mut progress = |progress: &TraceProgress| {
                assert!(
                    progress.blocks >= last && progress.blocks <= count && progress.superblocks > 0
                );
                last = progress.blocks;
                calls += 1;
                if calls > at { ControlFlow::Break(()) } else { ControlFlow::Continue(()) }
            };
            let mut options = by(workers);
            options.interval = Duration::ZERO;
            options.progress = Some(&mut progress);
            match heap.recover_with(&types(), &[], options) {
                Err(RecoverError::Cancelled) => cancelled += 1,
                Err(error) => panic!("{error}"),
                Ok(report) => {
                    assert_eq!((report.trace.blocks, report.freed_blocks), (count, 100));
                    assert!(calls <= at);
                    break;
                }
            }
            assert_eq!(allocated(&heap), before, "cancelled at report {at}");
            assert!(heap.find(lost[0]).is_ok());
        }
        // For the next round.
        for _ in 0..100 {
            new(&heap, 40, NODE);
        }
        assert_eq!(allocated(&heap).len(), before.len());
    }
    assert!(cancelled >= 10, "{cancelled}");
}

#[test]
fn a_filter_that_panics_ends_the_recovery_of_all_threads_and_changes_nothing() {
    struct Broken(Known);
    impl Types for Broken {
        fn record(&self, id: TypeId) -> Option<Arc<TypeRecord>> {
            self.0.record(id)
        }
        fn filter(&self, id: TypeId) -> Option<Filter> {
            fn broken(block: &Scanned<'_>, _: &mut Visitor<'_>) {
                assert!(block.word(0) != Some(7), "found it");
            }
            (id == SUM).then_some(broken)
        }
    }
    let heap = TracedHeap::open(Regions(backing(1 << 20, 64 << 20))).unwrap();
    lists(&heap, 40, 100);
    let bad = new(&heap, 16, SUM);
    write(bad, 0, 7);
    heap.set_root(1, bad, SUM).unwrap();
    let lost = new(&heap, 16, SUM);
    let before = allocated(&heap);
    for workers in [1, 4] {
        let recover = || heap.recover_with(&Broken(types()), &[], by(workers));
        let panic = std::panic::catch_unwind(std::panic::AssertUnwindSafe(recover)).unwrap_err();
        assert!(panic.downcast_ref::<&str>().is_some_and(|text| text.contains("found it")));
        assert_eq!(allocated(&heap), before);
    }
    write(bad, 0, 0);
    heap.recover_with(&Broken(types()), &[], by(4)).unwrap();
    assert_eq!(allocated(&heap).len(), before.len() - 1);
    assert!(heap.find(lost).is_err());
}

#[test]
fn pointers_of_every_kind_that_are_none_are_named() {
    let types = Known(TypeMap::from([(
        NODE,
        record(
            NODE,
            96,
            false,
            vec![
                pointers(0, 4, NODE, PointerKind::RELATIVE),
                pointers(32, 4, NODE, PointerKind::REGION),
                pointers(64, 1, NODE, PointerKind::HEAP),
                pointers(80, 1, NODE, PointerKind::HEAP),
            ],
        ),
    )]));
    let backing = Regions(backing(1 << 20, 1 << 20));
    let heap = TracedHeap::open(backing.clone()).unwrap();
    let (root, node, other) = (new(&heap, 96, NODE), new(&heap, 96, NODE), new(&heap, 64, STRANGE));
    let region = |pool, puddle, offset| {
        RegionAddress { pool: PoolId(pool), puddle, offset }.encode().unwrap()
    };
    write(root, 0, encode_relative(root, node).unwrap());
    write(root, 8, encode_relative(root + 8, other).unwrap());
    write(root, 16, node); // an address is no off-holder
    write(root, 24, encode_relative(root + 24, (root & !0xffff) + 0x50000).unwrap());
    write(root, 32, region(3, 0, 64)); // no such pool
    write(root, 40, region(1, 5, 64)); // no such puddle
    write(root, 48, encode_relative(root + 48, node).unwrap());
    write(root, 56, region(2, 0, 4096)); // another pool's
    write(root, 64, 1); // the number of a pool is no id of a heap
    let nowhere = RegionAddress { pool: PoolId(1), puddle: 5, offset: 64 }.to_pair().unwrap();
    write(root, 80, nowhere[0]);
    write(root, 88, nowhere[1]);
    heap.set_root(0, root, NODE).unwrap();
    let report = heap.recover(&types, &[]).unwrap();
    let faults: Vec<_> = report.trace.findings.iter().map(|f| (f.at - root, f.fault)).collect();
    assert_eq!(
        faults,
        [
            (8, Fault::OtherType),
            (16, Fault::Malformed),
            (24, Fault::Dangling),
            (32, Fault::Outside),
            (40, Fault::Outside),
            (48, Fault::Malformed),
            (64, Fault::Malformed),
            (80, Fault::Outside)
        ]
    );
    assert!(report.trace.findings[1].to_string().contains("kind"));
    assert_eq!(report.trace.foreign_pointers, 1);
    let foreign = heap.foreign_pointers(&types, &[]).unwrap();
    assert_eq!(foreign, BTreeSet::from([backing.0.foreign_puddle() + 4096]));
    assert_eq!(allocated(&heap), BTreeSet::from([root, node, other]));
}

#[test]
fn a_filter_replaces_the_map_only_where_it_is_registered() {
    // A record that says nothing of the pointer, and one that says where it may be.
    let backing = Regions(backing(1 << 20, 1 << 20));
    let heap = TracedHeap::open(backing).unwrap();
    let (root, node) = (new(&heap, 16, SUM), new(&heap, 40, NODE));
    write(root, 0, node - 12_345);
    write(root, 8, 12_345);
    heap.set_root(0, root, SUM).unwrap();
    let mut plain = types().0;
    plain.insert(SUM, record(SUM, 16, false, vec![]));
    let leaked = |types: &dyn Types| heap.check(Some(types)).unwrap().leaked_blocks;
    assert_eq!(leaked(&plain), 1);
    assert_eq!(leaked(&Known(plain.clone())), 0);
    assert_eq!(heap.recover(&Known(plain), &[]).unwrap().freed_blocks, 0);
}

#[test]
fn blocks_too_small_for_their_type_are_looked_at_word_by_word() {
    let types = TypeMap::from([
        (NODE, record(NODE, 64, false, vec![field(0, 1, SUM)])),
        (SUM, record(SUM, 16, false, vec![])),
    ]);
    let heap = TracedHeap::open(Regions(backing(1 << 20, 1 << 20))).unwrap();
    let (whole, small) = (new(&heap, 64, NODE), new(&heap, 32, NODE));
    let leaves: Vec<u64> = (0..4).map(|_| new(&heap, 16, SUM)).collect();
    for (block, leaves) in [(whole, &leaves[..2]), (small, &leaves[2..])] {
        write(block, 0, leaves[0]);
        write(block, 8, leaves[1]);
    }
    heap.set_root(0, whole, NODE).unwrap();
    heap.set_root(1, small, NODE).unwrap();
    let report = heap.recover(&types, &[]).unwrap();
    assert_eq!(allocated(&heap), BTreeSet::from([whole, small, leaves[0], leaves[2], leaves[3]]));
    assert_eq!((report.trace.conservative_blocks, report.trace.faults), (1, 0));
    assert!(report.trace.unknown_types.is_empty());
    assert_eq!(report.trace.bytes, 64 + 32 + 3 * 16);
}

#[test]
fn a_block_with_many_pointers_is_shared_among_threads() {
    // One array of a million pointers to leaves: what one thread put off, another goes on with.
    let array = TypeMap::from([
        (ARRAY, record(ARRAY, 8, true, vec![field(0, 1, NODE)])),
        (NODE, record(NODE, 16, false, vec![field(0, 1, NODE)])),
    ]);
    let heap = TracedHeap::open(Regions(backing(16 << 20, 128 << 20))).unwrap();
    let count = 200_000;
    let block = new(&heap, count * 8, ARRAY);
    for i in 0..count {
        write(block, i * 8, new(&heap, 16, NODE));
    }
    heap.set_root(0, block, ARRAY).unwrap();
    for workers in [1, 4] {
        let report = heap.recover_with(&array, &[], by(workers)).unwrap();
        assert_eq!(
            (report.trace.blocks, report.freed_blocks, report.trace.faults),
            (count + 1, 0, 0)
        );
    }
}
