//! Nanoseconds of the heap's fast paths, one thread, plain memory.
//! `cargo bench -p cenote-heap --bench pairs`.

use cenote_heap::{
    Backing as _, Heap as _, MemoryBacking, MemoryOptions, PuddleHeap, Trace, TracedHeap,
};
use cenote_layout::id::TypeId;
use std::hint::black_box;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Instant;

const T: TypeId = TypeId(0x7157);

/// Best and median of 15 runs, in nanoseconds an operation: the best is what the code costs, the
/// median what a busy machine makes of it.
fn measure(name: &str, operations: u64, mut run: impl FnMut()) {
    run();
    let mut times: Vec<f64> = (0..15)
        .map(|_| {
            let start = Instant::now();
            run();
            start.elapsed().as_nanos() as f64 / operations as f64
        })
        .collect();
    times.sort_by(f64::total_cmp);
    println!("{name:48} {:7.2} ns (median {:.2})", times[0], times[7]);
}

const N: u64 = 1_000_000;

type MemoryHeap = TracedHeap<MemoryBacking>;

#[inline(always)]
fn alloc(heap: &MemoryHeap, size: u64) -> u64 {
    match heap.alloc(black_box(size), 8, T) {
        Ok(block) => block.addr.as_ptr() as u64,
        Err(error) => panic!("{error}"),
    }
}

#[inline(always)]
fn free(heap: &MemoryHeap, addr: u64) {
    heap.free(black_box(addr)).unwrap_or_else(|error| panic!("{error}"));
}

fn one_after_the_other(heap: &MemoryHeap) {
    let word = AtomicU64::new(0);
    measure("for comparison: two locked instructions", N, || {
        for _ in 0..2 * N {
            let _ = black_box(&word).compare_exchange(0, 1, Ordering::Acquire, Ordering::Relaxed);
            word.store(0, Ordering::Release);
        }
    });
    for size in [16, 64, 1024, 4096] {
        measure(&format!("alloc + free of {size} B, a pair"), N, || {
            for _ in 0..N {
                free(heap, alloc(heap, size));
            }
        });
    }
    let mut blocks = vec![0; 100_000];
    for size in [64, 1024] {
        measure(&format!("100,000 x {size} B: alloc all, free all, a pair"), 10 * 100_000, || {
            for _ in 0..10 {
                blocks.iter_mut().for_each(|b| *b = alloc(heap, size));
                blocks.iter().for_each(|b| free(heap, *b));
            }
        });
    }
}

fn among_live_ones(heap: &MemoryHeap) {
    // 100 live blocks, one replaced at random: Poseidon's pattern.
    let mut live: Vec<u64> = (0..100).map(|_| alloc(heap, 64)).collect();
    let mut seed = 1u64;
    measure("100 live of 64 B, replace one, a pair", N, || {
        for _ in 0..N {
            seed = seed.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1);
            let at = (seed >> 57) as usize % 100;
            free(heap, live[at]);
            live[at] = alloc(heap, 64);
        }
    });
    let mut step = 0usize;
    measure("64-400 B, 1000 live, replace one, a pair", N, || {
        let mut many: Vec<u64> = (0..1000).map(|i| alloc(heap, 64 + i % 337)).collect();
        for _ in 0..N {
            step = (step + 617) % 1000;
            seed = seed.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1);
            free(heap, many[step]);
            many[step] = alloc(heap, 64 + (seed >> 40) % 337);
        }
        many.iter().for_each(|b| free(heap, *b));
    });
}

fn in_other_ways(heap: &MemoryHeap) {
    measure("free in two steps (transaction) and alloc", N, || {
        for _ in 0..N {
            match heap.alloc(64, 8, T) {
                Ok(block) => {
                    heap.clear_mark(&block);
                    heap.release(&block);
                }
                Err(error) => panic!("{error}"),
            }
        }
    });
    measure("large block of 256 KiB, a pair", 100_000, || {
        for _ in 0..100_000 {
            free(heap, alloc(heap, 256 << 10));
        }
    });
}

fn lookups(heap: &MemoryHeap, backing: &MemoryBacking) {
    let live: Vec<u64> = (0..64).map(|_| alloc(heap, 64)).collect();
    measure("is_live, puddle known", 10 * N, || {
        // SAFETY: the slot is this heap's, which is alive.
        let puddle = backing
            .slot(live[0])
            .and_then(|s| unsafe { PuddleHeap::from_slot(s.load(Ordering::Relaxed)) });
        let Some(puddle) = puddle else { return };
        let mut count = 0u64;
        for i in 0..10 * N {
            count += u64::from(puddle.is_live(live[i as usize % 64], T));
        }
        assert_eq!(black_box(count), 10 * N);
    });
    measure("is_live by the heap", 10 * N, || {
        let mut count = 0u64;
        for i in 0..10 * N {
            count += u64::from(heap.is_live(live[i as usize % 64], T));
        }
        assert_eq!(black_box(count), 10 * N);
    });
}

fn tracing(heap: &MemoryHeap) {
    // Tracing: a list of 64-byte nodes in order of allocation.
    let mut next = 0u64;
    let count = 2_000_000u64;
    for _ in 0..count {
        let node = alloc(heap, 64);
        // SAFETY: a fresh block of 64 bytes.
        unsafe {
            let words = std::ptr::with_exposed_provenance_mut::<u64>(node as usize);
            words.write_bytes(0, 8);
            words.write(next);
        }
        next = node;
    }
    if heap.set_root(0, next, T).is_ok() {
        let types = std::collections::HashMap::new();
        measure("tracing, conservative, a 64-byte node", count, || {
            match heap.recover(&types, &[]) {
                Ok(report) => assert_eq!(report.trace.blocks, count),
                Err(error) => panic!("{error}"),
            }
        });
    }
}

fn main() {
    let options = MemoryOptions { puddle_size: 64 << 20, size_max: 1 << 30, writable: true };
    let backing = MemoryBacking::new(options);
    let heap = match TracedHeap::open(backing.clone()) {
        Ok(heap) => heap,
        Err(error) => return eprintln!("{error}"),
    };
    one_after_the_other(&heap);
    among_live_ones(&heap);
    in_other_ways(&heap);
    lookups(&heap, &backing);
    tracing(&heap);
}
