//! Random bytes are stored at random addresses of a logged pool, between allocations, frees and
//! checks (POS-10). Metadata that are guarded never change. Of metadata that are not, each change
//! is found or means nothing, and no two blocks ever overlap.
//!
//! The kernel stores: it returns an error where a store of the program would fault, by the same
//! rights. `crates/cenote-heap/tests/protected.rs` has stores that end their process.
//! `STRAY_WRITES` says how many writes each test makes.

use cenote_heap::logged::{LoggedHeap, LoggedOptions, Protection};
use cenote_heap::{Backing, Extent, MemoryBacking, MemoryOptions, PoolBacking};
use cenote_layout::PAGE_SIZE;
use cenote_layout::catalog::HeapKind;
use cenote_layout::id::{TypeId, Uuid};
use cenote_layout::logged::{LoggedHeader, SubHeapGeometry};
use cenote_layout::puddle::header_space;
use cenote_medium::{Medium, MediumOptions, RealMedium};
use cenote_protect::{RangeKind, explain};
use cenote_store::{Access, FormatOptions, OpenOptions, PoolOptions, Store, format};
use cenote_sys::bytes::{copy_by_kernel, store_by_kernel};
use cenote_testkit::directories::directory;
use cenote_testkit::random::next;
use std::collections::BTreeMap;
use std::ops::Range;
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::Ordering;

const SUB_HEAPS: u32 = 1;
const LANES: u32 = 2;
const TICKETS: u32 = 64;
const LEVELS: u32 = 1;
/// Most bytes of one write.
const LONGEST: u64 = 16;
/// Most blocks at a time.
const BLOCKS: usize = 400;
const SIZES: [u64; 7] = [24, 40, 100, 200, 300, 1000, 5000];

fn options(protection: Protection) -> LoggedOptions {
    let (sub_heaps, lanes, tickets, levels) = (SUB_HEAPS, LANES, TICKETS, LEVELS);
    let options = LoggedOptions { cpu: || 0, protection, ..LoggedOptions::default() };
    LoggedOptions { sub_heaps, lanes, tickets, levels, ..options }
}

fn writes() -> u64 {
    std::env::var("STRAY_WRITES").ok().and_then(|text| text.parse().ok()).unwrap_or(5000)
}

/// What is allocated, by address.
#[derive(Default)]
struct Model(BTreeMap<u64, u64>);

impl Model {
    /// Allocates a block, or frees one. Whether the heap did it.
    fn step<G: Backing>(&mut self, heap: &LoggedHeap<G>, seed: &mut u64) -> bool {
        let free = next(seed) % BLOCKS as u64;
        if free >= self.0.len() as u64 {
            let size = SIZES[next(seed) as usize % SIZES.len()];
            let Ok(block) = heap.alloc(size, 1, TypeId(7)) else { return false };
            let (start, end) = (block.addr, block.addr + block.size);
            let before = self.0.range(..end).next_back().map_or(0, |(addr, size)| addr + size);
            assert!(before <= start, "{start:#x}..{end:#x} overlaps a block");
            self.0.insert(start, block.size);
            return true;
        }
        let nth = self.0.keys().nth(free as usize).copied();
        let Some(addr) = nth else { return false };
        let is_freed = heap.free(addr).is_ok();
        if is_freed {
            self.0.remove(&addr);
        }
        is_freed
    }

    /// Looks at the whole heap. `false`: it has damage, and says so.
    fn is_whole<G: Backing>(&self, heap: &LoggedHeap<G>) -> bool {
        let mut all = BTreeMap::new();
        for (_, sub) in heap.sub_heaps() {
            let report = sub.check();
            if !report.damage.is_empty() {
                return false;
            }
            all.extend(report.blocks.iter().map(|block| (block.addr, block.size)));
        }
        assert_eq!(all, self.0, "damage that no check found");
        true
    }
}

/// Random bytes, and where in some ranges they are stored: in each range as often.
fn write(ranges: &[Range<u64>], seed: &mut u64) -> (usize, Vec<u8>) {
    let range = &ranges[next(seed) as usize % ranges.len()];
    let len = 1 + next(seed) % LONGEST;
    let at = range.start + next(seed) % (range.end - range.start - len);
    (at as usize, (0..len).map(|_| next(seed) as u8).collect())
}

fn read(at: usize, len: usize) -> Vec<u8> {
    let mut bytes = vec![0; len];
    copy_by_kernel(at, &mut bytes).expect("readable");
    bytes
}

/// Bytes one by one; of guard pages zeros.
fn read_between(at: usize, len: usize) -> Vec<u8> {
    let is_guard = |at| explain(at).is_some_and(|found| found.kind == RangeKind::Guard);
    (at..at + len).map(|at| if is_guard(at) { 0 } else { read(at, 1)[0] }).collect()
}

fn medium(path: &Path) -> Arc<dyn Medium> {
    let options = MediumOptions { create: true, ..MediumOptions::default() };
    Arc::new(RealMedium::open(path, &options).expect("a directory"))
}

fn open(path: &Path) -> Store {
    Store::open(medium(path), OpenOptions::default()).expect("a store").0
}

fn backing(store: &Store) -> PoolBacking {
    let pool = store.open_pool("x", Access::ReadWrite).expect("a pool");
    // SAFETY: a second heap of the pool is refused, and no reference is given out.
    unsafe { PoolBacking::of(pool) }
}

#[test]
fn guarded_metadata_never_change() {
    let dir = directory();
    let path = dir.path().join("store");
    let uuid = Some(Uuid::from_random_bytes([7; 16]));
    let window = FormatOptions { window_base: None, window_len: 1 << 30, uuid };
    format(medium(&path), &window).expect("formatted");
    let (puddle_size, size_max, heap) = (1 << 20, 64 << 20, HeapKind::Logged);
    let pool = PoolOptions { puddle_size, size_max, heap, ..PoolOptions::default() };
    open(&path).create_pool("x", &pool).expect("a pool");
    let (mut model, mut seed) = (Model::default(), 1);
    let (mut refused, mut made) = (0, 0);
    {
        let store = open(&path);
        let heap = LoggedHeap::open_pool(backing(&store), &options(Protection::Hidden));
        let heap = heap.expect("a heap");
        for _ in 0..8 * BLOCKS {
            assert!(model.step(&heap, &mut seed));
        }
        assert_eq!(heap.protection(), Protection::Hidden);
        let (pool, all) =
            (backing(&store), |e: &Extent| e.addr + header_space(e.size)..e.addr + e.size);
        let mut bodies: Vec<_> = pool.extents().iter().map(all).collect();
        let metadata = metadata_of(&pool);
        assert!(metadata.len() > 2, "a later part of the table");
        // As many writes into metadata as anywhere.
        bodies =
            metadata.iter().cycle().take(bodies.len()).cloned().chain(bodies.clone()).collect();
        for number in 0..writes() {
            let (at, bytes) = write(&bodies, &mut seed);
            let kinds = [RangeKind::Metadata, RangeKind::Guard];
            let guarded = |at| explain(at).is_some_and(|found| kinds.contains(&found.kind));
            let all = (at..at + bytes.len()).filter(|at| guarded(*at)).count();
            let before = read_between(at, bytes.len());
            // SAFETY: metadata, which is refused, or data, into which no reference leads.
            let stored = unsafe { store_by_kernel(at, &bytes) };
            let after = read_between(at, bytes.len());
            for (i, byte) in after.iter().enumerate().filter(|(i, _)| guarded(at + i)) {
                assert_eq!(*byte, before[i], "{:#x}", at + i);
            }
            assert!(stored.is_err() || all == 0, "{at:#x}");
            (refused, made) = (refused + u64::from(all != 0), made + u64::from(all == 0));
            if number % 8 == 0 {
                assert!(model.step(&heap, &mut seed));
            }
            if number % 1000 == 0 {
                assert!(model.is_whole(&heap));
            }
        }
        assert!(model.is_whole(&heap));
    }
    let store = open(&path);
    let heap = LoggedHeap::open_pool(backing(&store), &options(Protection::None));
    assert!(model.is_whole(&heap.expect("a heap")));
    println!("into guarded metadata, refused: {refused}; into data and roots: {made}");
    assert!(refused > writes() / 10 && made > writes() / 10);
}

/// Where metadata lie: header and words, first parts of sub-heaps, and later parts of tables.
fn metadata_of<G: Backing>(backing: &G) -> Vec<Range<u64>> {
    let geometry = SubHeapGeometry::new(LANES, TICKETS, LEVELS).expect("a geometry");
    let first = LoggedHeader::SUB_HEAPS..LoggedHeader::SUB_HEAPS + geometry.metadata_len;
    let mut metadata = Vec::new();
    for extent in backing.extents() {
        let (body, end) = (extent.addr + header_space(extent.size), extent.addr + extent.size);
        let mark = backing.slot(extent.addr).map(|slot| slot.load(Ordering::Relaxed).addr());
        match mark {
            // What hangs on puddles of metadata.
            Some(1) if extent.index == 0 => {
                assert!(body + first.end <= end);
                metadata.push(body..body + LoggedHeader::WORDS_END);
                metadata.push(body + first.start..body + first.end);
            }
            // Between guard pages.
            Some(1) => metadata.push(body + PAGE_SIZE..end - PAGE_SIZE),
            _ => {}
        }
    }
    metadata
}

/// A heap in memory without guards, what it holds, and where its metadata lie.
struct Bare {
    memory: MemoryBacking,
    heap: Option<LoggedHeap<MemoryBacking>>,
    model: Model,
    metadata: Vec<Range<u64>>,
}

impl Bare {
    fn new(seed: &mut u64) -> Self {
        let (puddle_size, size_max) = (256 << 10, 32 << 20);
        let memory = MemoryBacking::new(MemoryOptions { puddle_size, size_max, writable: true });
        let memory = if next(seed).is_multiple_of(2) { memory.at_process() } else { memory };
        let heap = LoggedHeap::create(memory.clone(), &options(Protection::None)).expect("a heap");
        let mut model = Model::default();
        for _ in 0..2 * BLOCKS {
            assert!(model.step(&heap, seed));
        }
        let metadata = metadata_of(&memory);
        Self { memory, heap: Some(heap), model, metadata }
    }

    fn heap(&self) -> &LoggedHeap<MemoryBacking> {
        self.heap.as_ref().expect("open")
    }

    /// Works on. Whether nothing was found.
    fn work(&mut self, seed: &mut u64) -> bool {
        let heap = self.heap.take().expect("open");
        let all = (0..40).filter(|_| self.model.step(&heap, seed)).count();
        let is_whole = self.model.is_whole(&heap);
        self.heap = Some(heap);
        is_whole && all == 40
    }

    /// Closes the heap and opens it again. Whether nothing was found.
    fn reopen(&mut self, seed: &mut u64) -> bool {
        drop(self.heap.take());
        match LoggedHeap::open(self.memory.clone(), &options(Protection::None)) {
            Ok((heap, recovered)) => {
                // At level `power` a damaged cell of the last change looks as if power had been
                // lost before it was durable. docs/attacks.md has it, "Known, and not closed".
                if recovered.undone {
                    assert!(self.memory.is_power(), "a made change was taken back");
                    return false;
                }
                let is_whole = self.model.is_whole(&heap);
                self.heap = Some(heap);
                is_whole && self.work(seed)
            }
            Err(_) => false,
        }
    }
}

#[test]
fn damage_of_unguarded_metadata_is_found_and_never_an_overlap() {
    let mut seed = 2;
    let mut bare = Bare::new(&mut seed);
    let (mut found, mut harmless) = (0, 0);
    for number in 0..writes() {
        let (at, bytes) = write(&bare.metadata, &mut seed);
        let before = read(at, bytes.len());
        // SAFETY: words of the test's memory, which no thread uses meanwhile.
        unsafe { store_by_kernel(at, &bytes) }.expect("writable");
        let is_harmless = match number % 16 {
            0 => bare.work(&mut seed),
            1 => bare.reopen(&mut seed),
            _ => bare.model.is_whole(bare.heap()),
        };
        (found, harmless) = (found + u64::from(!is_harmless), harmless + u64::from(is_harmless));
        match number % 16 {
            0 | 1 => bare = Bare::new(&mut seed),
            // SAFETY: as above.
            _ => unsafe { store_by_kernel(at, &before) }.expect("writable"),
        }
    }
    println!("into metadata without guards, found: {found}; harmless: {harmless}");
    assert!(found > writes() / 20);
}
