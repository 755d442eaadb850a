//! Ralloc's Figure 6: time of recovery against reachable blocks of 64 bytes, beside a plain
//! traversal of the same data in the same run.
//!
//! `cargo bench -p cenote-heap --bench recovery -- [largest number of nodes, 10000000 if not given]
//! [shape]`
//!
//! * `stack`: one linear list, as a Treiber stack is, in order of allocation, and with its nodes
//!   shuffled in memory;
//! * `tree`: a binary tree whose nodes lie in memory as random insertion leaves them;
//! * `lists`: a list of lists of about 3,000 nodes each, shuffled.
//!
//! Each line: nanoseconds a node of the plain traversal, of recovery whole (tracing, marks, free
//! space) with one thread, with all cores, and with all cores and no types (every word of a block
//! is looked at). The best of five runs.

use cenote_heap::{Heap as _, MemoryBacking, MemoryOptions, Trace as _, TraceOptions, TracedHeap};
use cenote_layout::id::TypeId;
use cenote_layout::pointer::PointerKind;
use cenote_layout::types::{PointerField, RECORD_VERSION, TypeRecord};
use std::collections::HashMap;
use std::hint::black_box;
use std::num::NonZero;
use std::ptr::with_exposed_provenance_mut;
use std::sync::Arc;
use std::time::{Duration, Instant};

const NODE: TypeId = TypeId(0x6e0d);
type Types = HashMap<TypeId, Arc<TypeRecord>>;
type Heap = TracedHeap<MemoryBacking>;

/// Two pointers, at 0 and 8, and a number at 16.
fn types() -> Types {
    let pointers = PointerField {
        offset: 0,
        stride: 8,
        count: 2,
        kind: PointerKind::NATIVE,
        tag_mask: 0,
        target: NODE,
        conditions: Vec::new(),
    };
    let record = TypeRecord {
        version: RECORD_VERSION,
        id: NODE,
        name: "example::Node".into(),
        size: 64,
        align: 8,
        repeats: false,
        fields: Vec::new(),
        variants: Vec::new(),
        pointers: vec![pointers],
    };
    HashMap::from([(NODE, Arc::new(record))])
}

fn word(node: u64, index: usize) -> *mut u64 {
    with_exposed_provenance_mut::<u64>(node as usize + 8 * index)
}

fn set(node: u64, index: usize, value: u64) {
    // SAFETY: a block of 64 bytes that this program allocated; one thread writes.
    unsafe { word(node, index).write(value) }
}

fn get(node: u64, index: usize) -> u64 {
    // SAFETY: as in `set`.
    unsafe { word(node, index).read() }
}

fn shuffle(nodes: &mut [u64]) {
    let mut seed = 1u64;
    for i in (1..nodes.len()).rev() {
        seed = seed.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        nodes.swap(i, (seed >> 20) as usize % (i + 1));
    }
}

/// Visits what can be reached from `root` as a program would; the sum of the numbers.
fn traverse(root: u64) -> u64 {
    let (mut sum, mut stack, mut at) = (0u64, Vec::new(), root);
    loop {
        while at != 0 {
            sum = sum.wrapping_add(get(at, 2));
            let other = get(at, 1);
            if other != 0 {
                stack.push(other);
            }
            at = get(at, 0);
        }
        match stack.pop() {
            Some(next) => at = next,
            None => return sum,
        }
    }
}

fn best(mut run: impl FnMut() -> Duration) -> Duration {
    (0..5).map(|_| run()).min().unwrap_or_default()
}

fn link(shape: &str, nodes: &mut [u64]) {
    let chain = |nodes: &[u64], index: usize| {
        nodes.windows(2).for_each(|pair| set(pair[0], index, pair[1]))
    };
    if shape != "stack in order" {
        shuffle(nodes);
    }
    match shape {
        "tree" => {
            for i in 0..nodes.len() {
                for (word, child) in [(0, 2 * i + 1), (1, 2 * i + 2)] {
                    set(nodes[i], word, nodes.get(child).copied().unwrap_or(0));
                }
            }
        }
        "lists" => {
            let heads: Vec<u64> = nodes.chunks(3000).map(|list| list[0]).collect();
            nodes.chunks(3000).for_each(|list| chain(list, 0));
            chain(&heads, 1);
        }
        _ => chain(nodes, 0),
    }
}

fn run(shape: &str, count: u64) -> Result<(), Box<dyn std::error::Error>> {
    let options = MemoryOptions { puddle_size: 64 << 20, size_max: 8 << 30, writable: true };
    let heap: Heap = TracedHeap::open(MemoryBacking::new(options))?;
    let mut nodes = Vec::new();
    for i in 0..count {
        let node = heap.alloc(64, 8, NODE)?.addr.as_ptr() as u64;
        (0..8).for_each(|index| set(node, index, 0));
        set(node, 2, i);
        nodes.push(node);
    }
    link(shape, &mut nodes);
    heap.set_root(0, nodes[0], NODE)?;
    drop(nodes);
    let plain = best(|| {
        let start = Instant::now();
        assert_eq!(
            black_box(traverse(heap.root(0).map_or(0, |root| root.addr))),
            count * (count - 1) / 2
        );
        start.elapsed()
    });
    let recover = |types: &Types, workers: Option<NonZero<usize>>| {
        best(|| {
            let mut options = TraceOptions::default();
            options.workers = workers;
            match heap.recover_with(types, &[], options) {
                Ok(report) => {
                    assert_eq!((report.trace.blocks, report.trace.faults), (count, 0));
                    report.took
                }
                Err(error) => panic!("{error}"),
            }
        })
    };
    let one = recover(&types(), NonZero::new(1));
    let all = recover(&types(), None);
    let words = recover(&Types::new(), None);
    let each = |time: Duration| time.as_secs_f64() * 1e9 / count as f64;
    println!(
        "{shape:15} {count:>9} {:9.1} {:9.1} {:9.1} {:9.1} {:10.1} ms {:8.2}",
        each(plain),
        each(one),
        each(all),
        each(words),
        all.as_secs_f64() * 1e3,
        one.as_secs_f64() / plain.as_secs_f64(),
    );
    Ok(())
}

fn main() -> Result<(), Box<dyn std::error::Error>> {
    // `cargo bench` adds a word of its own.
    let mut arguments = std::env::args().skip(1).filter(|argument| argument != "--bench");
    let largest: u64 = arguments.next().map_or(Ok(10_000_000), |text| text.parse())?;
    println!(
        "                              ns a node: traversal, recovery by one thread, all, all \
         untyped"
    );
    println!(
        "shape               nodes     plain       one       all   untyped    all, whole one/plain"
    );
    let only = arguments.next().unwrap_or_default();
    let shapes = ["stack in order", "stack shuffled", "tree", "lists"];
    for shape in shapes.into_iter().filter(|shape| shape.contains(&only)) {
        for count in [100_000, 1_000_000, 10_000_000].into_iter().filter(|&count| count <= largest)
        {
            run(shape, count)?;
        }
    }
    Ok(())
}
