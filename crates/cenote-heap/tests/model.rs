//! The heap against a model: no two live blocks overlap, contents stay, what is freed is used
//! again, and every count agrees.

use crate::common::{Random, heap, read, room_for, write};
use cenote_heap::{AllocError, Heap as _, Inspect as _};
use cenote_layout::id::TypeId;
use proptest::prelude::*;
use std::collections::BTreeMap;
use std::sync::atomic::{AtomicU64, Ordering};

#[derive(Clone, Copy, Debug)]
struct Live {
    size: u64,
    type_id: TypeId,
    stamp: u64,
}

/// Live blocks by address.
#[derive(Default)]
struct Model {
    live: BTreeMap<u64, Live>,
    stamp: u64,
}

impl Model {
    fn alloc(&mut self, heap: &crate::common::Heap, size: u64, align: u64, type_id: TypeId) {
        let block = match heap.alloc(size, align, type_id) {
            Ok(block) => block,
            Err(AllocError::Full { .. } | AllocError::Size { .. }) => return,
            Err(error) => panic!("{error}"),
        };
        let addr = block.addr.as_ptr() as u64;
        assert!(block.size >= size.max(1) && addr.is_multiple_of(align) && addr.is_multiple_of(16));
        assert_eq!(block.type_id, type_id);
        if let Some((&before, live)) = self.live.range(..=addr).next_back() {
            assert!(before + live.size <= addr, "{addr:#x} overlaps {before:#x}");
        }
        if let Some((&after, _)) = self.live.range(addr..).next() {
            assert!(addr + block.size <= after, "{addr:#x} overlaps {after:#x}");
        }
        self.stamp += 1;
        write(addr, 0, self.stamp);
        write(addr, block.size - 8, self.stamp);
        assert!(heap.is_live(addr, type_id));
        assert!(!heap.is_live(addr, TypeId(type_id.0 + 1)));
        assert!(!heap.is_live(addr + 8, type_id));
        self.live.insert(addr, Live { size: block.size, type_id, stamp: self.stamp });
    }

    fn free(&mut self, heap: &crate::common::Heap, which: u64, two_steps: bool) {
        let Some((&addr, &live)) = self.live.iter().nth(which as usize % self.live.len().max(1))
        else {
            return;
        };
        verify(addr, live);
        if two_steps {
            let block = heap.find(addr).unwrap();
            heap.clear_mark(&block);
            assert!(!heap.is_live(addr, live.type_id));
            heap.release(&block);
        } else {
            heap.free(addr).unwrap();
        }
        assert!(!heap.is_live(addr, live.type_id));
        assert!(heap.free(addr).is_err());
        self.live.remove(&addr);
    }

    fn agrees(&self, heap: &crate::common::Heap) {
        let mut seen = BTreeMap::new();
        heap.walk(&mut |b| assert!(seen.insert(b.addr, (b.size, b.type_id)).is_none())).unwrap();
        assert!(
            seen.iter().eq(self
                .live
                .iter()
                .map(|(a, l)| (*a, (l.size, l.type_id)))
                .collect::<BTreeMap<_, _>>()
                .iter())
        );
        for (&addr, &live) in &self.live {
            verify(addr, live);
            for inside in [addr, addr + 1, addr + live.size - 1] {
                let owner = heap.owner(inside).unwrap();
                assert_eq!(
                    (owner.addr, owner.size, owner.type_id),
                    (addr, live.size, live.type_id)
                );
            }
        }
        let report = heap.check(None).unwrap();
        assert!(report.damage.is_empty() && report.miscounted.is_empty(), "{report:?}");
        assert_eq!(report.stats.blocks, self.live.len() as u64);
        assert_eq!(report.stats.block_bytes, self.live.values().map(|l| l.size).sum::<u64>());
        let s = &report.stats;
        let parts =
            s.free_superblocks + s.small_superblocks + s.large_superblocks + s.metadata_superblocks;
        assert_eq!(parts + s.damaged_superblocks, s.superblocks);
    }
}

fn verify(addr: u64, live: Live) {
    assert_eq!(
        (read(addr, 0), read(addr, live.size - 8)),
        (live.stamp, live.stamp),
        "block {addr:#x}"
    );
}

fn size_of_kind(kind: u8, random: u64) -> u64 {
    match kind {
        0..=5 => random % 300,
        6..=7 => random % 15_000,
        8 => 65_536 * (1 + random % 9) - random % 100,
        _ => random % 600_000,
    }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(40))]
    #[test]
    fn random_work_never_overlaps_and_survives_reopening(
        ops in prop::collection::vec((0u8..10, any::<u64>(), 0u8..12, 1u64..5), 1..600)
    ) {
        let backing = crate::common::backing(256 << 10, 16 << 20);
        let mut heap = crate::common::Heap::open(backing.clone()).unwrap();
        let mut model = Model::default();
        for (kind, random, action, type_id) in ops {
            match action {
                0..=5 => {
                    let align = 1 << ((random >> 32) % if kind == 0 { 18 } else { 5 });
                    model.alloc(&heap, size_of_kind(kind, random), align, TypeId(type_id));
                }
                6..=10 => model.free(&heap, random, action == 6),
                _ => {
                    // As after a crash of the process: nothing is said, the next one opens.
                    drop(heap);
                    heap = crate::common::Heap::open(backing.clone()).unwrap();
                    model.agrees(&heap);
                }
            }
        }
        model.agrees(&heap);
        while !model.live.is_empty() {
            model.free(&heap, 0, false);
        }
        model.agrees(&heap);
    }
}

#[test]
fn memory_of_one_type_and_size_is_used_for_others_after_it_is_freed() {
    let heap = heap(room_for(31), room_for(31));
    for round in 0..5 {
        for (type_id, size) in [(1, 16), (2, 64), (1, 14_000), (3, 196_600)] {
            let mut blocks = Vec::new();
            while let Ok(block) = heap.alloc(size, 16, TypeId(type_id)) {
                blocks.push(block.addr.as_ptr() as u64);
            }
            let got = blocks.len() as u64 * size;
            assert!(got > 31 * 65_536 * 4 / 5, "round {round}: {got} bytes in blocks of {size}");
            for block in blocks {
                heap.free(block).unwrap();
            }
        }
    }
    assert_eq!(heap.stats().unwrap().blocks, 0);
}

#[test]
fn a_constant_live_size_does_not_grow_the_heap() {
    let heap = heap(1 << 20, 64 << 20);
    let mut random = Random(7);
    let mut live = Vec::new();
    let mut puddles = 0;
    for i in 0..400_000 {
        if live.len() >= 2000 {
            let at = random.below(live.len() as u64) as usize;
            heap.free(live.swap_remove(at)).unwrap();
        }
        let size = 16 + random.below(400);
        live.push(heap.alloc(size, 8, TypeId(1 + random.below(3))).unwrap().addr.as_ptr() as u64);
        if i == 100_000 {
            puddles = heap.stats().unwrap().puddles;
        }
    }
    assert_eq!(heap.stats().unwrap().puddles, puddles);
    assert_eq!(heap.stats().unwrap().blocks, live.len() as u64);
}

#[test]
fn threads_never_get_one_block_twice() {
    let heap = heap(1 << 20, 256 << 20);
    let stamps = AtomicU64::new(1);
    let exchange: Vec<AtomicU64> = (0..256).map(|_| AtomicU64::new(0)).collect();
    std::thread::scope(|scope| {
        for seed in 0..4 {
            let (heap, stamps, exchange) = (&heap, &stamps, &exchange);
            scope.spawn(move || {
                let mut random = Random(seed);
                for _ in 0..150_000 {
                    let size =
                        if random.below(1000) == 0 { 70_000 } else { 16 + random.below(1000) };
                    let block = heap.alloc(size, 16, TypeId(random.below(3))).unwrap();
                    let addr = block.addr.as_ptr() as u64;
                    let stamp = stamps.fetch_add(1, Ordering::Relaxed);
                    write(addr, 0, stamp);
                    write(addr, 8, !stamp);
                    // Another thread frees it.
                    let other = exchange[random.below(256) as usize].swap(addr, Ordering::AcqRel);
                    if other != 0 {
                        let stamp = read(other, 0);
                        assert_eq!(read(other, 8), !stamp);
                        write(other, 8, 0);
                        if random.below(4) == 0 {
                            let block = heap.find(other).unwrap();
                            heap.clear_mark(&block);
                            heap.release(&block);
                        } else {
                            heap.free(other).unwrap();
                        }
                    }
                }
            });
        }
    });
    let left = exchange.iter().filter(|e| e.load(Ordering::Relaxed) != 0).count() as u64;
    let report = heap.check(None).unwrap();
    assert!(report.miscounted.is_empty() && report.damage.is_empty());
    assert_eq!(report.stats.blocks, left);
}

#[test]
fn a_held_block_is_not_given_out_before_it_is_released() {
    let heap = heap(1 << 20, 1 << 20);
    for size in [64, 14_336, 100_000] {
        let mut blocks = Vec::new();
        while let Ok(block) = heap.alloc(size, 16, TypeId(1)) {
            blocks.push(block);
        }
        let held = blocks.swap_remove(blocks.len() / 2);
        heap.clear_mark(&held);
        heap.clear_mark(&held);
        let addr = held.addr.as_ptr() as u64;
        assert!(heap.find(addr).is_err() && heap.free(addr).is_err());
        assert!(
            heap.alloc(size, 16, TypeId(1)).is_err(),
            "a held block of {size} bytes was given out"
        );
        assert!(heap.check(None).unwrap().miscounted.is_empty());
        // What is not held is not released.
        heap.release(&blocks[0]);
        assert!(heap.find(blocks[0].addr.as_ptr() as u64).is_ok());
        heap.release(&held);
        heap.release(&held);
        let again = heap.alloc(size, 16, TypeId(1)).unwrap();
        assert_eq!(again.addr, held.addr);
        assert!(heap.alloc(size, 16, TypeId(1)).is_err());
        heap.release(&held);
        assert!(heap.alloc(size, 16, TypeId(1)).is_err());
        blocks.push(again);
        for block in blocks {
            heap.clear_mark(&block);
            heap.release(&block);
        }
    }
    assert_eq!(heap.stats().unwrap().blocks, 0);
    assert!(heap.check(None).unwrap().miscounted.is_empty());
}
