//! Recovery by tracing: after it, allocated is exactly what can be reached.

use crate::common::{A, B, Random, TypeMap, backing, field, heap, read, record, write, zero};
use cenote_heap::report::Fault;
use cenote_heap::{Heap as _, Inspect as _, Trace, TracedHeap};
use cenote_layout::heap::{RootEntry, RootSlot};
use cenote_layout::id::TypeId;
use cenote_layout::pointer::PointerKind;
use cenote_layout::types::{Condition, PointerField};
use proptest::prelude::*;
use std::collections::BTreeSet;

const LEAF: TypeId = TypeId(0x1eaf);
const ARRAY: TypeId = TypeId(0xa44a);

fn addr(block: cenote_heap::Block) -> u64 {
    block.addr.as_ptr() as u64
}

fn new(heap: &crate::common::Heap, size: u64, type_id: TypeId) -> u64 {
    let block = heap.alloc(size, 16, type_id).unwrap();
    zero(addr(block), block.size);
    addr(block)
}

fn allocated(heap: &crate::common::Heap) -> BTreeSet<u64> {
    let mut set = BTreeSet::new();
    heap.walk(&mut |block| assert!(set.insert(block.addr))).unwrap();
    set
}

/// Makes nonsense of every word with marks, as a loss of power may leave them.
fn scramble_marks(heap: &crate::common::Heap, seed: u64) {
    let mut random = Random(seed);
    let words: BTreeSet<_> =
        allocated(heap).into_iter().map(|block| heap.find(block).unwrap().mark.word).collect();
    for word in words {
        // SAFETY: the word is a bitmap's, of the heap under test, which no other thread uses.
        unsafe { word.as_ref() }.store(random.next(), std::sync::atomic::Ordering::Relaxed);
    }
}

/// Nodes of 5 words: two pointers to nodes, one without a known target, a number that looks like a
/// pointer, and a leaf.
fn nodes_with_leaves() -> TypeMap {
    let node = vec![field(0, 2, A), field(16, 1, TypeId::UNTYPED), field(32, 1, LEAF)];
    let leaf = record(LEAF, 8, false, vec![]);
    TypeMap::from([(A, record(A, 40, false, node)), (LEAF, leaf)])
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(60))]
    #[test]
    fn random_graphs_are_recovered_exactly(
        seed in any::<u64>(), count in 1usize..1500, degree in 0u64..4,
    ) {
        let types = nodes_with_leaves();
        let backing = backing(256 << 10, 64 << 20);
        let mut random = Random(seed);
        let mut expected = BTreeSet::new();
        {
            let heap = TracedHeap::open(backing.clone()).unwrap();
            let nodes: Vec<u64> = (0..count).map(|_| new(&heap, 40, A)).collect();
            let leaves: Vec<u64> = (0..count).map(|_| new(&heap, 8, LEAF)).collect();
            let mut edges = vec![Vec::new(); count];
            for (i, &node) in nodes.iter().enumerate() {
                for slot in 0..3 {
                    if random.below(4) < degree {
                        let to = random.below(count as u64) as usize;
                        // The third has no known target: it may lead inside.
                        let inside = if slot == 2 { random.below(40) } else { 0 };
                        write(node, slot * 8, nodes[to] + inside);
                        edges[i].push(to);
                    }
                }
                write(node, 24, nodes[random.below(count as u64) as usize]);
                if random.below(2) == 0 {
                    write(node, 32, leaves[i]);
                    // A leaf has no pointers: what stands in it is not followed.
                    write(leaves[i], 0, nodes[random.below(count as u64) as usize]);
                }
            }
            let mut reached = vec![false; count];
            let mut pending = Vec::new();
            for root in 0..=random.below(5) {
                let node = random.below(count as u64) as usize;
                heap.set_root(root as u16 * 200, nodes[node], A).unwrap();
                pending.push(node);
            }
            while let Some(i) = pending.pop() {
                if !std::mem::replace(&mut reached[i], true) {
                    expected.insert(nodes[i]);
                    if read(nodes[i], 32) != 0 {
                        expected.insert(leaves[i]);
                    }
                    pending.extend(&edges[i]);
                }
            }
            // Check names what is unreachable, and changes nothing.
            let report = heap.check(Some(&types)).unwrap();
            prop_assert_eq!(report.leaked_blocks as usize, 2 * count - expected.len());
            prop_assert_eq!(report.unallocated_blocks, 0);
            prop_assert_eq!(report.trace.unwrap().blocks as usize, expected.len());
            prop_assert_eq!(allocated(&heap).len(), 2 * count);
            scramble_marks(&heap, seed);
        }
        let heap = TracedHeap::open(backing.clone()).unwrap();
        let report = heap.recover(&types, &[]).unwrap();
        prop_assert_eq!(allocated(&heap), expected.clone());
        prop_assert_eq!(report.trace.blocks as usize, expected.len());
        prop_assert_eq!(report.trace.faults, 0);
        prop_assert!(report.damage.is_empty() && report.trace.unknown_types.is_empty());
        let check = heap.check(Some(&types)).unwrap();
        prop_assert!(check.is_sound(), "{:?}", check);
        // Repeating it changes nothing.
        let again = heap.recover(&types, &[]).unwrap();
        prop_assert_eq!((again.freed_blocks, again.revived_blocks), (0, 0));
        // What is allocated next overlaps nothing that is reachable.
        for _ in 0..count {
            let (node, leaf) = (new(&heap, 40, A), new(&heap, 8, LEAF));
            prop_assert!(!expected.contains(&node) && !expected.contains(&leaf));
        }
    }
}

#[test]
fn a_list_of_a_million_needs_no_stack() {
    let types = TypeMap::from([(A, record(A, 16, false, vec![field(0, 1, A)]))]);
    let heap = heap(16 << 20, 256 << 20);
    let mut next = 0;
    for _ in 0..1_000_000 {
        let node = new(&heap, 16, A);
        write(node, 0, next);
        next = node;
    }
    heap.set_root(0, next, A).unwrap();
    let report = heap.recover(&types, &[]).unwrap();
    assert_eq!((report.trace.blocks, report.freed_blocks, report.trace.faults), (1_000_000, 0, 0));
}

#[test]
fn arrays_are_followed_in_every_value_tag_bits_apart() {
    // Values of 24 bytes, with a tagged pointer in the second word.
    let pointer = PointerField {
        offset: 8,
        stride: 8,
        count: 1,
        kind: PointerKind::NATIVE,
        tag_mask: 0xffff_0000_0000_0007,
        target: LEAF,
        conditions: vec![],
    };
    let types = TypeMap::from([
        (ARRAY, record(ARRAY, 24, true, vec![pointer])),
        (LEAF, record(LEAF, 8, false, vec![])),
    ]);
    let heap = heap(2 << 20, 64 << 20);
    let count = 50_000;
    let array = new(&heap, count * 24, ARRAY);
    for i in 0..count {
        let leaf = new(&heap, 8, LEAF);
        write(array, i * 24 + 8, leaf | 0xabcd_0000_0000_0005);
        // Words that are not in the map.
        write(array, i * 24, new(&heap, 8, B));
    }
    heap.set_root(1023, array, ARRAY).unwrap();
    let report = heap.recover(&types, &[]).unwrap();
    assert_eq!(report.trace.blocks, count + 1);
    assert_eq!(report.freed_blocks, count);
    assert_eq!(report.trace.faults, 0);
}

#[test]
fn conditions_decide_which_pointers_are_there() {
    // An enum: tag 1 has a pointer at 8, tag 2 two pointers from 8 on, others none.
    let with = |count, value| PointerField {
        conditions: vec![Condition { offset: 0, size: 1, value }],
        ..field(8, count, LEAF)
    };
    let types = TypeMap::from([
        (A, record(A, 24, true, vec![with(1, 1), with(2, 2)])),
        (LEAF, record(LEAF, 8, false, vec![])),
    ]);
    let heap = heap(1 << 20, 1 << 20);
    let array = new(&heap, 24 * 4, A);
    for value in 0..4 {
        write(array, value * 24, value | 0xff00);
        write(array, value * 24 + 8, new(&heap, 8, LEAF));
        write(array, value * 24 + 16, new(&heap, 8, LEAF));
    }
    heap.set_root(0, array, A).unwrap();
    assert_eq!(heap.recover(&types, &[]).unwrap().trace.blocks, 1 + 1 + 2);
    assert_eq!(allocated(&heap).len(), 4);
}

#[test]
fn untyped_and_unknown_blocks_are_scanned_word_by_word() {
    let heap = heap(1 << 20, 8 << 20);
    let unknown = new(&heap, 64, B);
    let large = new(&heap, 200_000, TypeId::UNTYPED);
    let small = new(&heap, 48, TypeId::UNTYPED);
    let lost = new(&heap, 48, TypeId::UNTYPED);
    write(unknown, 56, large + 150_001);
    write(large, 199_992, small + 47);
    write(small, 0, 0x1234_5678);
    heap.set_root(0, unknown, B).unwrap();
    let report = heap.recover(&TypeMap::new(), &[]).unwrap();
    assert_eq!(allocated(&heap), BTreeSet::from([unknown, large, small]));
    assert_eq!(report.trace.unknown_types, [B]);
    assert_eq!(
        (report.trace.conservative_blocks, report.freed_blocks, report.trace.faults),
        (3, 1, 0)
    );
    assert!(!heap.is_live(lost, TypeId::UNTYPED));
}

#[test]
fn roots_of_the_caller_keep_blocks_too() {
    let heap = heap(1 << 20, 1 << 20);
    let (a, b) = (new(&heap, 64, A), new(&heap, 64, A));
    let report = heap.recover(&TypeMap::new(), &[b + 5]).unwrap();
    assert_eq!(allocated(&heap), BTreeSet::from([b]));
    assert_eq!((report.trace.roots, report.freed_blocks), (1, 1));
    assert!(!heap.is_live(a, A));
}

#[test]
fn bad_pointers_are_counted_and_named_and_foreign_ones_ignored() {
    let types = TypeMap::from([
        (A, record(A, 64, false, vec![field(0, 8, A)])),
        (LEAF, record(LEAF, 8, false, vec![])),
    ]);
    let backing = backing(1 << 20, 1 << 20);
    let foreign = backing.foreign_puddle();
    let heap = TracedHeap::open(backing.clone()).unwrap();
    let (root, inside, other) = (new(&heap, 64, A), new(&heap, 64, A), new(&heap, 8, LEAF));
    let base = root & !0xffff;
    let unused = base + (10 << 16);
    write(root, 0, inside + 8);
    write(root, 8, other);
    write(root, 16, unused);
    write(root, 24, base - 0x10000 + 64); // metadata
    write(root, 32, 0xdead_0000);
    write(root, 40, foreign + 4096);
    write(root, 48, root);
    heap.set_root(0, root, A).unwrap();
    let report = heap.recover(&types, &[]).unwrap();
    let faults: Vec<_> = report.trace.findings.iter().map(|f| (f.at - root, f.fault)).collect();
    assert_eq!(
        faults,
        [
            (0, Fault::Inexact),
            (8, Fault::OtherType),
            (16, Fault::Dangling),
            (24, Fault::Dangling),
            (32, Fault::Outside)
        ]
    );
    assert_eq!((report.trace.faults, report.trace.foreign_pointers), (5, 1));
    // What a doubtful pointer leads to is kept.
    assert_eq!(allocated(&heap), BTreeSet::from([root, inside, other]));
    assert!(report.trace.findings[2].to_string().contains("no block"));
}

#[test]
fn a_root_slot_written_by_a_transaction_is_a_root() {
    let heap = heap(1 << 20, 1 << 20);
    let block = new(&heap, 64, A);
    let slot = heap.root_slot(9).unwrap();
    // SAFETY: the slot lies in the root puddle, and no other thread uses it.
    unsafe { slot.write(RootSlot::new(RootEntry { addr: block, type_id: A }).unwrap()) };
    assert_eq!(heap.root(9).unwrap().addr, block);
    heap.recover(&TypeMap::new(), &[]).unwrap();
    assert_eq!(allocated(&heap), BTreeSet::from([block]));
}

#[test]
fn reachable_blocks_that_are_not_marked_are_found_by_check_and_revived_by_recovery() {
    let types = TypeMap::from([(A, record(A, 16, false, vec![field(0, 1, A)]))]);
    let heap = heap(1 << 20, 4 << 20);
    let (first, second) = (new(&heap, 16, A), new(&heap, 16, A));
    let large = new(&heap, 100_000, A);
    write(first, 0, second);
    write(second, 0, large);
    heap.set_root(0, first, A).unwrap();
    heap.free(second).unwrap();
    heap.free(large).unwrap();
    let report = heap.check(Some(&types)).unwrap();
    assert_eq!(report.unallocated_blocks, 2);
    assert_eq!(
        report.unallocated.iter().map(|b| b.addr).collect::<BTreeSet<_>>(),
        BTreeSet::from([second, large])
    );
    assert!(!report.is_sound());
    let report = heap.recover(&types, &[]).unwrap();
    assert_eq!((report.revived_blocks, report.freed_blocks), (2, 0));
    assert_eq!(allocated(&heap), BTreeSet::from([first, second, large]));
}
