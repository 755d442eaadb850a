//! Nanoseconds an operation of the patterns that the fast path is made for, one thread and two,
//! plain memory. `cargo bench -p cenote-heap --bench fast_path`.

use cenote_heap::{MemoryBacking, MemoryOptions, Taking, TracedHeap};
use cenote_layout::id::TypeId;
use std::hint::black_box;
use std::time::Instant;

const T: TypeId = TypeId(0x7157_0000_1234_5678);

/// Best and median of many short runs: the best is what the code costs, the median what a busy
/// machine makes of it.
fn measure(name: &str, operations: u64, mut run: impl FnMut()) {
    (0..10).for_each(|_| run());
    let mut times: Vec<f64> = (0..300)
        .map(|_| {
            let start = Instant::now();
            run();
            start.elapsed().as_nanos() as f64 / operations as f64
        })
        .collect();
    times.sort_by(f64::total_cmp);
    println!("{name:56} {:7.2} ns (median {:.2})", times[0], times[150]);
}

/// A fixed random order of 100.
fn order() -> [usize; 100] {
    let mut order: [usize; 100] = std::array::from_fn(|i| i);
    let mut seed = 7u64;
    for i in (1..100).rev() {
        seed = seed.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1);
        order.swap(i, (seed >> 33) as usize % (i + 1));
    }
    order
}

type MemoryHeap = TracedHeap<MemoryBacking>;

#[inline(always)]
fn alloc(heap: &MemoryHeap, size: u64) -> u64 {
    match heap.alloc_inline(black_box(size), 8, T, |_| Ok(Taking::Allocated)) {
        Ok(block) => block.addr.as_ptr() as u64,
        Err(error) => panic!("{error}"),
    }
}

#[inline(always)]
fn free(heap: &MemoryHeap, addr: u64) {
    heap.free_inline(black_box(addr)).unwrap_or_else(|error| panic!("{error}"));
}

/// 100 blocks that are freed in a random order.
fn in_random_order(heap: &MemoryHeap) {
    let through: &dyn cenote_heap::Heap = black_box(heap);
    let order = order();
    let rounds = 500;
    for size in [64, 256, 1024] {
        let mut blocks = [0; 100];
        measure(
            &format!("100 allocs, 100 frees at random, {size} B, an operation"),
            200 * rounds,
            || {
                for _ in 0..rounds {
                    blocks.iter_mut().for_each(|b| *b = alloc(heap, size));
                    order.iter().for_each(|&i| free(heap, blocks[i]));
                }
            },
        );
        measure(&format!("the same through `dyn Heap`, {size} B"), 200 * rounds, || {
            for _ in 0..rounds {
                for block in &mut blocks {
                    *block = match through.alloc(black_box(size), 8, T) {
                        Ok(block) => block.addr.as_ptr() as u64,
                        Err(error) => panic!("{error}"),
                    };
                }
                for &i in &order {
                    through.free(black_box(blocks[i])).unwrap_or_else(|error| panic!("{error}"));
                }
            }
        });
    }
}

/// Many at once, some of many, two threads.
fn in_bulk(heap: &MemoryHeap) {
    let mut blocks = vec![0; 100_000];
    for size in [16, 64, 256] {
        measure(
            &format!("threadtest: 100,000 x {size} B, alloc all, free all, a pair"),
            100_000,
            || {
                blocks.iter_mut().for_each(|b| *b = alloc(heap, size));
                blocks.iter().for_each(|b| free(heap, *b));
            },
        );
    }
    let mut many: Vec<u64> = (0..1000).map(|i| alloc(heap, 64 + i % 337)).collect();
    let mut seed = 1u64;
    measure("64-400 B, 1000 live, replace one at random, a pair", 50_000, || {
        for _ in 0..50_000 {
            seed = seed.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1);
            let at = (seed >> 33) as usize % 1000;
            free(heap, many[at]);
            many[at] = alloc(heap, 64 + (seed >> 13) % 337);
        }
    });
    let addr = alloc(heap, 64);
    measure("is_live", 100_000, || {
        let live = (0..100_000u64).filter(|_| heap.is_live(black_box(addr), T)).count();
        assert_eq!(live, 100_000);
    });
    measure("two threads: 100,000 x 64 B, alloc all, free all, a pair", 2_000_000, || {
        std::thread::scope(|scope| {
            for _ in 0..2 {
                scope.spawn(|| {
                    let mut blocks = vec![0; 100_000];
                    for _ in 0..10 {
                        blocks.iter_mut().for_each(|b| *b = alloc(heap, 64));
                        blocks.iter().for_each(|b| free(heap, *b));
                    }
                });
            }
        });
    });
}

fn main() {
    let options = MemoryOptions { puddle_size: 64 << 20, size_max: 1 << 30, writable: true };
    let heap = match TracedHeap::open(MemoryBacking::new(options)) {
        Ok(heap) => heap,
        Err(error) => return eprintln!("{error}"),
    };
    in_random_order(&heap);
    in_bulk(&heap);
}
