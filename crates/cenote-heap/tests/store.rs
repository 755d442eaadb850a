//! The heap on a store: a pool's puddles, growth by the store, and every crash of a short history
//! on simulated persistent memory.

use crate::common::{A, B, TypeMap, field, read, record, write, zero};
use cenote_heap::{
    AllocError, BackingError, FreeError, Heap as _, Inspect as _, OpenError, PoolBacking, PoolHeap,
    Reclaim, Shared, Trace, TracedHeap, Trim, WrongKind,
};
use cenote_layout::id::{TypeId, Uuid};
use cenote_medium::planted::{Bug, plant};
use cenote_medium::sim::{Image, Limits, SimMedium, SimOptions, Visited};
use cenote_medium::{Durability, Medium, MediumOptions, RealMedium, counters};
use cenote_store::{
    Access, FormatOptions, HeapKind, OpenOptions, PoolHandle, PoolOptions, Store, format,
};
use std::sync::Arc;

fn options(number: u8) -> FormatOptions {
    FormatOptions {
        window_base: Some(0x3100_0000_0000 + u64::from(number) * (1 << 32)),
        window_len: 256 << 20,
        uuid: Some(Uuid::from_random_bytes([number + 1; 16])),
    }
}

fn pool_options() -> PoolOptions {
    PoolOptions { puddle_size: 256 << 10, size_max: 8 << 20, ..PoolOptions::default() }
}

fn open(medium: Arc<dyn Medium>) -> Store {
    Store::open(medium, OpenOptions { log_puddle_size: 64 << 10, ..OpenOptions::default() })
        .unwrap()
        .0
}

/// The backing of a pool that this test alone uses.
fn backing(pool: PoolHandle) -> PoolBacking {
    // SAFETY: a second heap of the pool is refused, and no reference is given out.
    unsafe { PoolBacking::of(pool) }
}

fn new(heap: &TracedHeap, size: u64, type_id: TypeId) -> u64 {
    let block = heap.alloc(size, 16, type_id).unwrap();
    block.addr.as_ptr() as u64
}

#[test]
fn a_pool_holds_its_blocks_over_a_close_and_grows_to_its_limit() {
    let dir = tempfile::tempdir().unwrap();
    let medium = || -> Arc<dyn Medium> {
        let options = MediumOptions { create: true, ..MediumOptions::default() };
        Arc::new(RealMedium::open(dir.path().join("store"), &options).unwrap())
    };
    format(medium(), &options(0)).unwrap();
    let mut blocks = Vec::new();
    {
        let store = open(medium());
        for name in ["one", "two"] {
            store.create_pool(name, &pool_options()).unwrap();
        }
        let pool = store.open_pool("one", Access::ReadWrite).unwrap();
        let heap = TracedHeap::open(backing(pool.clone())).unwrap();
        assert!(matches!(TracedHeap::open(backing(pool)), Err(OpenError::AlreadyOpen)));
        let other =
            TracedHeap::open(backing(store.open_pool("two", Access::ReadWrite).unwrap())).unwrap();
        let foreign = new(&other, 100, A);
        assert_eq!(heap.free(foreign), Err(FreeError::OtherPool { addr: foreign }));
        let error = loop {
            match heap.alloc(3000, 16, A) {
                Ok(block) => blocks.push(block.addr.as_ptr() as u64),
                Err(error) => break error,
            }
        };
        assert!(
            matches!(error, AllocError::Full { source: BackingError::Limit { .. }, .. }),
            "{error}"
        );
        for (i, &block) in blocks.iter().enumerate() {
            write(block, 0, i as u64);
        }
        heap.set_root(0, blocks[0], A).unwrap();
    }
    let store = open(medium());
    let pool = store.open_pool("one", Access::ReadWrite).unwrap();
    assert!(pool.puddles().iter().map(|p| p.size()).sum::<u64>() <= 8 << 20);
    let heap = TracedHeap::open(backing(pool)).unwrap();
    assert_eq!(heap.root(0).unwrap().addr, blocks[0]);
    let before = counters::snapshot();
    for (i, &block) in blocks.iter().enumerate().rev() {
        assert!(heap.is_live(block, A));
        assert_eq!(read(block, 0), i as u64);
        heap.free(block).unwrap();
    }
    let spent = counters::snapshot() - before;
    assert_eq!((spent.flushes, spent.fences), (0, 0));
    assert_eq!(heap.stats().unwrap().blocks, 0);
}

const SIZES: [u64; 6] = [64, 300, 130_000, 64, 9_000, 300];

/// Appends nodes of several types and sizes to a list, each attached durably before it is
/// acknowledged; between them, blocks that are never attached come and go, so that superblocks
/// change hands.
fn history(store: &Store, heap: &TracedHeap, sim: &SimMedium) {
    let persistence = store.persistence();
    for (i, &size) in SIZES.iter().enumerate() {
        let type_id = TypeId(1 + i as u64 % 3);
        if size > 100_000 {
            // The node is the second block in a run of superblocks that stays together: nothing is
            // flushed for it.
            let first = new(heap, size, type_id);
            heap.free(first).unwrap();
            let before = counters::snapshot();
            let second = new(heap, size, type_id);
            let spent = counters::snapshot() - before;
            assert_eq!((second, spent.flushes, spent.fences), (first, 0, 0));
            heap.free(second).unwrap();
        }
        let node = new(heap, size, type_id);
        write(node, 0, heap.root(0).unwrap().addr);
        write(node, 8, i as u64);
        // SAFETY: a block that this test allocated.
        unsafe { persistence.persist(std::ptr::with_exposed_provenance(node as usize), 16) };
        heap.set_root(0, node, type_id).unwrap();
        sim.note(i as u64 + 1);
        let passing = new(heap, if i % 2 == 0 { 65_536 } else { 20 }, TypeId(9 + i as u64));
        heap.free(passing).unwrap();
    }
}

/// Nodes of all types begin with the next one's address.
fn types() -> TypeMap {
    let node = |id| record(id, 16, false, vec![field(0, 1, TypeId::UNTYPED)]);
    (1..=3).map(TypeId).map(|id| (id, node(id))).collect()
}

/// What the next opener finds: everything acknowledged, nothing torn, no overlap.
fn verify(image: &Image, power_failed: bool, acknowledged: u64) {
    let sim = SimMedium::from_image_unrecorded(image);
    let store = open(sim.clone());
    let pool = store.open_pool("p", Access::ReadWrite).unwrap();
    assert!(!power_failed || pool.trace_due());
    let heap = TracedHeap::open(backing(pool.clone())).unwrap();
    if pool.trace_due() {
        let report = heap.recover(&types(), &[]).unwrap();
        assert!(report.damage.is_empty(), "{report:?}");
        assert_eq!(report.trace.faults, 0, "{report:?}");
        // SAFETY: traced just now.
        unsafe { pool.trace_done() }.unwrap();
    }
    let root = heap.root(0).unwrap();
    let (mut node, mut nodes) = (root.addr, Vec::new());
    while node != 0 {
        let block = heap.find(node).unwrap();
        nodes.push((node, block.size, read(node, 8)));
        assert!(nodes.len() <= SIZES.len());
        node = read(node, 0);
    }
    // While a root is being replaced it is none for a moment: then everything is unreachable, and
    // nothing is torn.
    if root.addr != 0 {
        let count = nodes.len() as u64;
        assert!(
            count >= acknowledged && count <= acknowledged + 1,
            "{count} nodes, {acknowledged} acknowledged"
        );
        for (i, &(_, size, number)) in nodes.iter().rev().enumerate() {
            assert!(number == i as u64 && size >= SIZES[i]);
        }
    }
    let report = heap.check(Some(&types())).unwrap();
    assert!(report.damage.iter().all(|d| !d.lost) && report.miscounted.is_empty(), "{report:?}");
    assert_eq!(report.unallocated_blocks, 0, "{report:?}");
    for i in 0..30 {
        let block = new(&heap, 16 << (i % 13), TypeId(1 + i % 4));
        let size = heap.usable_size(block).unwrap();
        assert!(
            nodes.iter().all(|&(at, len, _)| block + size <= at || at + len <= block),
            "overlap at {block:#x}"
        );
    }
    drop((heap, pool));
    store.abandon();
}

/// Makes the history at a level, and looks at its crashes.
fn explore(durability: Durability, number: u8) -> Visited {
    let sim = SimMedium::new(SimOptions::new(durability));
    let medium = || -> Arc<dyn Medium> { sim.clone() };
    format(medium(), &options(number)).unwrap();
    let store = open(medium());
    store.create_pool("p", &pool_options()).unwrap();
    let pool = store.open_pool("p", Access::ReadWrite).unwrap();
    let heap = TracedHeap::open(backing(pool.clone())).unwrap();
    sim.forget_trace();
    history(&store, &heap, &sim);
    drop((heap, pool));
    store.abandon();
    let power = durability == Durability::Power;
    let limits = Limits { exhaustive_units: 7, samples: 24, power, ..Limits::default() };
    sim.explore(.., limits, |_, image| {
        verify(&image, matches!(image.kind(), cenote_medium::sim::CrashKind::Power), image.note());
    })
}

#[test]
fn every_crash_of_a_short_history_leaves_what_was_acknowledged() {
    for (durability, least) in [(Durability::Power, 500), (Durability::Process, 40)] {
        let visited = explore(durability, 1);
        assert!(visited.images > least, "{visited:?}");
    }
}

#[test]
fn a_descriptor_that_is_not_flushed_is_noticed() {
    plant(Bug::DescriptorNotFlushed);
    let noticed = std::panic::catch_unwind(|| explore(Durability::Power, 3)).is_err();
    plant(Bug::None);
    assert!(noticed, "the crash tests do not see a missing flush");
}

#[test]
fn recovery_can_be_cut_anywhere_and_repeated() {
    let sim = SimMedium::new(SimOptions::new(Durability::Power));
    let medium: Arc<dyn Medium> = sim.clone();
    format(medium.clone(), &options(2)).unwrap();
    let store = open(medium);
    store.create_pool("p", &pool_options()).unwrap();
    let pool = store.open_pool("p", Access::ReadWrite).unwrap();
    let heap = TracedHeap::open(backing(pool.clone())).unwrap();
    history(&store, &heap, &sim);
    let lost = new(&heap, 64, B);
    zero(lost, 64);
    drop((heap, pool));
    store.abandon();
    // Power fails; recovery runs and is itself cut at every event.
    let next = SimMedium::from_image(&sim.state_now().image_oldest());
    let store = open(next.clone());
    let pool = store.open_pool("p", Access::ReadWrite).unwrap();
    assert!(pool.trace_due());
    next.forget_trace();
    let heap = TracedHeap::open(backing(pool.clone())).unwrap();
    heap.recover(&types(), &[]).unwrap();
    next.crash_point("recovered");
    drop((heap, pool));
    store.abandon();
    let limits = Limits { exhaustive_units: 6, samples: 40, ..Limits::default() };
    let visited = next.explore(.., limits, |_, image| verify(&image, true, SIZES.len() as u64));
    assert!(visited.images > 10, "{visited:?}");
}

/// Whether the heap of a pool has these capabilities: to trace, to reclaim, to trim, to be shared.
fn capabilities(heap: &PoolHeap) -> [Result<(), WrongKind>; 4] {
    [
        heap.capability::<dyn Trace>().map(drop),
        heap.capability::<dyn Reclaim>().map(drop),
        heap.capability::<dyn Trim>().map(drop),
        heap.capability::<dyn Shared>().map(drop),
    ]
}

#[test]
fn a_heap_says_by_type_what_its_kind_can_do() {
    let medium = SimMedium::new(SimOptions::new(Durability::Process));
    format(medium.clone(), &options(30)).unwrap();
    let store = open(medium);
    for (name, heap) in [
        ("traced", HeapKind::Traced),
        ("logged", HeapKind::Logged),
        ("wear", HeapKind::Wear { wait_ms: 0 }),
    ] {
        let options = PoolOptions { heap, size_max: 64 << 20, ..PoolOptions::default() };
        store.create_pool(name, &options).unwrap();
        let pool = store.open_pool(name, Access::ReadWrite).unwrap();
        let heap = PoolHeap::open(backing(pool)).unwrap();
        assert_eq!(heap.stats().unwrap().blocks, 0, "every kind can be inspected");
        for had in capabilities(&heap) {
            let Err(refused) = had else {
                assert_eq!(name, "traced");
                continue;
            };
            assert_ne!(name, "traced", "{refused}");
            assert_eq!((refused.heap, &*refused.pool), (name, name));
            assert!(!refused.instead.is_empty());
        }
    }
}
