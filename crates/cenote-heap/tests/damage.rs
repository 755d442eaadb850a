//! Damaged and interrupted descriptors: what is lost is named, and the rest goes on.

use crate::common::{A, B, TypeMap, backing, field, read, record, room_for, write, zero};
use cenote_heap::{
    Backing as _, FreeError, Heap as _, Inspect as _, MemoryBacking, Trace, TracedHeap,
};
use cenote_layout::heap::{Descriptor, HeapGeometry, MARKS_SIZE, SUPERBLOCK_SIZE, mark};
use cenote_layout::id::TypeId;

/// Address of the descriptor of the superblock at `addr`.
fn descriptor_of(backing: &MemoryBacking, addr: u64) -> u64 {
    let extent =
        backing.extents().into_iter().find(|p| addr >= p.addr && addr < p.addr + p.size).unwrap();
    let geometry = HeapGeometry::new(extent.size, extent.index == 0).unwrap();
    extent.addr
        + geometry.descriptors
        + (addr - extent.addr) / SUPERBLOCK_SIZE * size_of::<Descriptor>() as u64
}

/// Address of the marks of the superblock at `addr`.
fn marks_of(backing: &MemoryBacking, addr: u64) -> u64 {
    let extent =
        backing.extents().into_iter().find(|p| addr >= p.addr && addr < p.addr + p.size).unwrap();
    let geometry = HeapGeometry::new(extent.size, extent.index == 0).unwrap();
    extent.addr + geometry.marks + (addr - extent.addr) / SUPERBLOCK_SIZE * MARKS_SIZE
}

fn new(heap: &crate::common::Heap, size: u64, type_id: TypeId) -> u64 {
    let block = heap.alloc(size, 16, type_id).unwrap();
    zero(block.addr.as_ptr() as u64, block.size);
    block.addr.as_ptr() as u64
}

#[test]
fn every_flipped_bit_of_a_descriptor_in_use_is_named_and_the_rest_goes_on() {
    for bit in 0..40 * 8 {
        let backing = backing(room_for(15), room_for(15));
        let (hit, other) = {
            let heap = TracedHeap::open(backing.clone()).unwrap();
            (new(&heap, 64, A), new(&heap, 64, B))
        };
        let descriptor = descriptor_of(&backing, hit);
        write(descriptor, bit / 64 * 8, read(descriptor, bit / 64 * 8) ^ (1 << (bit % 64)));
        let heap = TracedHeap::open(backing.clone()).unwrap();
        assert!(heap.is_live(other, B));
        assert!(
            !heap.is_live(hit, A) && !heap.is_live(hit, TypeId(A.0 ^ (1 << (bit % 64)))),
            "bit {bit}"
        );
        assert_eq!(heap.free(hit), Err(FreeError::Damaged { addr: hit }), "bit {bit}");
        let report = heap.check(None).unwrap();
        assert_eq!(report.damage.len(), 1, "bit {bit}");
        assert_eq!((report.damage[0].addr, report.damage[0].lost), (hit & !0xffff, true));
        assert!(report.damage[0].to_string().contains("damaged"));
        // Its 64 KiB are not given out.
        let mut superblocks = 0;
        while let Ok(block) = heap.alloc(SUPERBLOCK_SIZE, 16, A) {
            assert_ne!(block.addr.as_ptr() as u64, hit & !0xffff);
            superblocks += 1;
        }
        assert_eq!(superblocks, 13);
    }
}

#[test]
fn damage_in_every_field_of_a_descriptor_loses_what_it_held_and_nothing_else() {
    let types = TypeMap::from([(A, record(A, 64, false, vec![field(0, 8, TypeId::UNTYPED)]))]);
    // Checksum, state and class, block size, type, span; each wholly wrong, and wrong so that it
    // could be right.
    let damages = [
        (0, 1),
        (8, 4 << 32 | 3),
        (8, 5),
        (8, 77),
        (16, 4096),
        (16, 0),
        (24, A.0),
        (24, 0),
        (32, 9),
    ];
    for (at, value) in damages {
        for recover in [false, true] {
            let backing = backing(2 << 20, 2 << 20);
            let (root, lost, large, kept) = {
                let heap = TracedHeap::open(backing.clone()).unwrap();
                let root = new(&heap, 64, A);
                let lost: Vec<u64> = (0..4).map(|_| new(&heap, 128, B)).collect();
                let (large, kept) = (new(&heap, 200_000, B), new(&heap, 1000, B));
                for (i, &to) in lost.iter().chain([&large, &kept]).enumerate() {
                    write(root, i as u64 * 8, to);
                }
                write(kept, 0, 77);
                heap.set_root(0, root, A).unwrap();
                (root, lost, large, kept)
            };
            write(descriptor_of(&backing, lost[0]), at, value);
            let heap = TracedHeap::open(backing.clone()).unwrap();
            let damaged = lost[0] & !0xffff;
            if recover {
                let report = heap.recover(&types, &[]).unwrap();
                assert_eq!(
                    report.damage.iter().map(|d| (d.addr, d.pointers)).collect::<Vec<_>>(),
                    [(damaged, 4)]
                );
            }
            let report = heap.check(Some(&types)).unwrap();
            let named: Vec<_> =
                report.damage.iter().map(|d| (d.addr, d.lost, d.pointers)).collect();
            assert_eq!(named, [(damaged, true, 4)], "{at} {value:#x}");
            // The rest is as it was: found, readable, freed, and given out again.
            assert!(heap.is_live(root, A) && heap.is_live(large, B) && heap.is_live(kept, B));
            assert_eq!(read(kept, 0), 77);
            for &block in &lost {
                assert_eq!(heap.free(block), Err(FreeError::Damaged { addr: block }));
            }
            heap.free(large).unwrap();
            while let Ok(block) = heap.alloc(128, 16, B) {
                assert_ne!(block.addr.as_ptr() as u64 & !0xffff, damaged);
            }
        }
    }
}

#[test]
fn a_taking_that_a_dead_process_left_unfinished_is_free() {
    // The words of a descriptor are written last to first; the process may stop after any.
    let target: [u64; 8] =
        zerocopy_words(&Descriptor::new(cenote_layout::heap::SuperblockState::Small, 4, 64, A, 0));
    for written in 0..=8 {
        // Once on a superblock that was never used, once on one that another type had.
        for used_before in [false, true] {
            let backing = backing(128 << 10, 128 << 10);
            let superblock = backing.extents()[0].addr + SUPERBLOCK_SIZE;
            if used_before {
                let heap = TracedHeap::open(backing.clone()).unwrap();
                let block = new(&heap, 100, B);
                heap.free(block).unwrap();
            }
            let descriptor = descriptor_of(&backing, superblock);
            for word in (8 - written..8).rev() {
                write(descriptor, word * 8, target[word as usize]);
            }
            let heap = TracedHeap::open(backing.clone()).unwrap();
            let report = heap.check(None).unwrap();
            assert!(report.damage.iter().all(|d| !d.lost), "{written} words: {report:?}");
            assert_eq!(new(&heap, 5000, B) & !0xffff, superblock);
            assert!(heap.check(None).unwrap().damage.is_empty());
        }
    }
}

fn zerocopy_words(descriptor: &Descriptor) -> [u64; 8] {
    use zerocopy::IntoBytes;
    let bytes = descriptor.as_bytes();
    std::array::from_fn(|i| u64::from_le_bytes(bytes[i * 8..i * 8 + 8].try_into().unwrap()))
}

#[test]
fn recovery_frees_torn_takings_and_names_damage_that_something_points_into() {
    let types = TypeMap::from([(A, record(A, 64, false, vec![field(0, 8, TypeId::UNTYPED)]))]);
    let backing = backing(1 << 20, 1 << 20);
    let (root, lost, torn) = {
        let heap = TracedHeap::open(backing.clone()).unwrap();
        let (root, lost, torn) = (new(&heap, 64, A), new(&heap, 64, B), new(&heap, 64, TypeId(7)));
        write(root, 0, lost);
        write(root, 8, lost + 16);
        heap.set_root(0, root, A).unwrap();
        (root, lost, torn)
    };
    for addr in [lost, torn] {
        let descriptor = descriptor_of(&backing, addr);
        write(descriptor, 16, 12_345);
    }
    // After a loss of power marks say nothing: here they are gone.
    write(marks_of(&backing, lost), 0, 0);
    let heap = TracedHeap::open(backing.clone()).unwrap();
    let report = heap.recover(&types, &[]).unwrap();
    assert_eq!(report.interrupted, 1);
    assert_eq!(report.damage.len(), 1);
    assert_eq!((report.damage[0].addr, report.damage[0].pointers), (lost & !0xffff, 2));
    assert!(heap.is_live(root, A) && !heap.is_live(lost, B));
    drop(heap);
    // Later opens remember: the damaged one is not used, the torn one is free.
    let heap = TracedHeap::open(backing).unwrap();
    let check = heap.check(None).unwrap();
    assert_eq!(
        check.damage.iter().map(|d| (d.addr, d.lost)).collect::<Vec<_>>(),
        [(lost & !0xffff, true)]
    );
    assert_eq!(check.stats.damaged_superblocks, 1);
    assert_eq!(new(&heap, 64, B) & !0xffff, torn & !0xffff);
}

#[test]
fn a_damaged_head_takes_its_tails_along() {
    let backing = backing(1 << 20, 1 << 20);
    let (large, after) = {
        let heap = TracedHeap::open(backing.clone()).unwrap();
        (new(&heap, 3 * SUPERBLOCK_SIZE, A), new(&heap, 2 * SUPERBLOCK_SIZE, B))
    };
    write(descriptor_of(&backing, large), 32, 99);
    let heap = TracedHeap::open(backing).unwrap();
    assert_eq!(heap.stats().unwrap().damaged_superblocks, 3);
    assert!(heap.is_live(after, B));
    assert_eq!(
        heap.free(large + SUPERBLOCK_SIZE),
        Err(FreeError::Damaged { addr: large + SUPERBLOCK_SIZE })
    );
    let next = new(&heap, SUPERBLOCK_SIZE, A);
    assert!(next >= after + 2 * SUPERBLOCK_SIZE);
}

#[test]
fn a_damaged_tail_is_named_and_its_block_is_whole() {
    let types = TypeMap::new();
    let backing = backing(1 << 20, 1 << 20);
    let large = {
        let heap = TracedHeap::open(backing.clone()).unwrap();
        let large = new(&heap, 3 * SUPERBLOCK_SIZE, A);
        heap.set_root(0, large, A).unwrap();
        large
    };
    write(descriptor_of(&backing, large + SUPERBLOCK_SIZE), 0, 5);
    let heap = TracedHeap::open(backing).unwrap();
    assert!(heap.is_live(large, A));
    let damage = heap.check(None).unwrap().damage;
    assert_eq!(
        damage.iter().map(|d| (d.addr, d.lost)).collect::<Vec<_>>(),
        [(large + SUPERBLOCK_SIZE, false)]
    );
    let report = heap.recover(&types, &[]).unwrap();
    assert_eq!((report.damage.len(), report.trace.blocks), (1, 1));
    assert_eq!(heap.find(large).unwrap().size, 3 * SUPERBLOCK_SIZE);
}

#[test]
fn a_large_block_whose_superblocks_were_taken_again_never_comes_back() {
    let backing = backing(room_for(7), room_for(7));
    let heap = TracedHeap::open(backing.clone()).unwrap();
    let large = new(&heap, 7 * SUPERBLOCK_SIZE, A);
    heap.free(large).unwrap();
    // The head's descriptor stays; superblocks 2 and 3 of it are taken by others.
    let first = new(&heap, 10, B);
    let middle = new(&heap, 2 * SUPERBLOCK_SIZE, B);
    assert_eq!((first & !0xffff, middle), (large, large + SUPERBLOCK_SIZE));
    heap.free(first).unwrap();
    heap.set_root(0, middle, B).unwrap();
    // A conservative root that still leads into the old block, and marks that say nonsense.
    write(marks_of(&backing, large), 0, u64::from(mark::ALLOCATED));
    write(marks_of(&backing, large + 4 * SUPERBLOCK_SIZE), 0, u64::MAX);
    drop(heap);
    let heap = TracedHeap::open(backing).unwrap();
    let report = heap.recover(&TypeMap::new(), &[large + 5 * SUPERBLOCK_SIZE]).unwrap();
    assert_eq!(report.trace.blocks, 1);
    let mut blocks = Vec::new();
    heap.walk(&mut |b| blocks.push((b.addr, b.size))).unwrap();
    assert_eq!(blocks, [(middle, 2 * SUPERBLOCK_SIZE)]);
}

#[test]
fn nonsense_everywhere_in_the_metadata_never_panics() {
    let mut random = crate::common::Random(42);
    for round in 0..300 {
        let backing = backing(512 << 10, 512 << 10);
        {
            let heap = TracedHeap::open(backing.clone()).unwrap();
            let mut i = 0;
            while let Ok(block) = heap.alloc(1 << random.below(17), 16, TypeId(u64::from(i) % 2)) {
                heap.set_root(i, block.addr.as_ptr() as u64, block.type_id).unwrap();
                i += 1;
            }
        }
        let extent = backing.extents()[0];
        let geometry = HeapGeometry::new(extent.size, true).unwrap();
        let metadata = geometry.first_usable * SUPERBLOCK_SIZE - geometry.descriptors;
        for _ in 0..1 + random.below(60) {
            let offset = geometry.descriptors + random.below(metadata / 8) * 8;
            write(
                extent.addr,
                offset,
                if round % 2 == 0 { random.next() } else { 1 << random.below(64) },
            );
        }
        let heap = TracedHeap::open(backing.clone()).unwrap();
        heap.check(Some(&TypeMap::new())).unwrap();
        for i in 0..40 {
            let Ok(root) = heap.root(i) else { continue };
            let _ = heap.find(root.addr);
            if round % 3 == 0 {
                let _ = heap.free(root.addr);
            }
        }
        if round % 5 != 0 {
            heap.recover(&TypeMap::new(), &[]).unwrap();
        }
        let mut blocks = Vec::new();
        heap.walk(&mut |b| blocks.push((b.addr, b.size))).unwrap();
        while let Ok(block) = heap.alloc(3000, 16, B) {
            blocks.push((block.addr.as_ptr() as u64, block.size));
        }
        blocks.sort_unstable();
        assert!(
            blocks.windows(2).all(|w| w[0].0 + w[0].1 <= w[1].0),
            "blocks overlap in round {round}"
        );
    }
}
