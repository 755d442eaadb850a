//! Metadata and roots of a traced heap are guarded against stray writes: in pools of a store, whose
//! files can be mapped twice.

use crate::protected::{SIGSEGV, assert_stopped, make_store, medium};
use cenote_heap::{AllocError, Backing, Heap, Inspect as _, PoolBacking, TracedHeap, Trim as _};
use cenote_layout::PAGE_SIZE;
use cenote_layout::catalog::PoolMode;
use cenote_layout::heap::{HeapGeometry, SUPERBLOCK_SIZE};
use cenote_layout::id::TypeId;
use cenote_medium::planted::{Bug, GuardBug, plant};
use cenote_protect::{RangeKind, explain};
use cenote_store::{Access, AtRest, FormatOptions, OpenOptions, PoolOptions, Store};
use cenote_sys::second_mapping::PLACES;
use cenote_testkit::child::{ended, task, with_task};
use cenote_testkit::directories::directory;
use cenote_testkit::lost::everywhere;
use std::collections::BTreeSet;
use std::os::unix::process::ExitStatusExt;
use std::path::Path;
use std::process::ExitStatus;

const PUDDLE: u64 = 1 << 20;
const KIND: TypeId = TypeId(7);
const MODES: [PoolMode; 2] = [PoolMode::Direct, PoolMode::Shadowed];

/// A store with a pool, in which no heap is yet.
pub(crate) fn make(path: &Path, mode: PoolMode) {
    make_store(path, &PoolOptions { puddle_size: PUDDLE, mode, ..PoolOptions::default() });
}

pub(crate) fn open(path: &Path, guards: bool) -> Store {
    Store::open(medium(path), OpenOptions { guards, ..OpenOptions::default() }).expect("a store").0
}

fn backing(store: &Store, access: Access) -> PoolBacking {
    let pool = store.open_pool("x", access).expect("a pool");
    // SAFETY: a second heap of the pool is refused, and no reference is given out.
    unsafe { PoolBacking::of(pool) }
}

pub(crate) fn heap(store: &Store) -> TracedHeap {
    TracedHeap::open(backing(store, Access::ReadWrite)).expect("a heap")
}

/// Blocks of all kinds: tiny, small, large; in several puddles.
pub(crate) fn fill(heap: &TracedHeap) -> Vec<u64> {
    let size = |i: u64| match i % 8 {
        0 => 16,
        1 => 24,
        7 => 70_000,
        _ => 3000,
    };
    (0..400).map(|i| heap.alloc(size(i), 16, KIND).expect("room").addr.as_ptr() as u64).collect()
}

pub(crate) fn count(heap: &TracedHeap) -> usize {
    let report = heap.check(None).expect("a report");
    assert!(report.damage.is_empty(), "{report:?}");
    let mut blocks = 0;
    heap.walk(&mut |_| blocks += 1).expect("walked");
    blocks
}

/// The pages of all puddles' metadata.
fn pages(store: &Store) -> Vec<usize> {
    let mut pages = Vec::new();
    for extent in backing(store, Access::ReadWrite).extents() {
        let layout = HeapGeometry::new(extent.size, extent.index == 0).expect("a geometry");
        let end = layout.first_usable * SUPERBLOCK_SIZE;
        let offsets = (layout.descriptors..end).step_by(PAGE_SIZE as usize);
        pages.extend(offsets.map(|offset| (extent.addr + offset) as usize));
    }
    pages
}

/// The rights of a page, as the kernel says.
fn rights(page: usize) -> String {
    let maps = std::fs::read_to_string("/proc/self/maps").expect("maps");
    let number = |text: &str| usize::from_str_radix(text, 16).expect("an address");
    let holds = |line: &&str| {
        let range = line.split(' ').next().and_then(|range| range.split_once('-'));
        range.is_some_and(|(from, to)| (number(from)..number(to)).contains(&page))
    };
    maps.lines().find(holds).and_then(|line| line.split(' ').nth(1)).unwrap_or("none").to_owned()
}

#[test]
fn all_pools_of_a_store_are_guarded_however_long_its_window_is() {
    const POOLS: usize = 5;
    let dir = directory();
    let path = dir.path().join("store");
    // Of so long ones, no three have room where second mappings lie.
    let format = FormatOptions { window_len: 8 << 40, ..FormatOptions::default() };
    cenote_store::format(medium(&path), &format).expect("formatted");
    let store = open(&path, true);
    let heaps: Vec<TracedHeap> = (0..POOLS)
        .map(|number| {
            let options = PoolOptions {
                puddle_size: 256 << 10,
                mode: MODES[number % 2],
                ..PoolOptions::default()
            };
            let name = format!("{number}");
            store.create_pool(&name, &options).expect("a pool");
            let pool = store.open_pool(&name, Access::ReadWrite).expect("a pool");
            // SAFETY: a second heap of the pool is refused, and no reference is given out.
            let heap = TracedHeap::open(unsafe { PoolBacking::of(pool) }).expect("a heap");
            heap.alloc(64, 16, KIND).expect("room");
            heap
        })
        .collect();
    assert_eq!(heaps.iter().filter(|heap| heap.is_guarded()).count(), POOLS);
    let distances = heaps.iter().map(|heap| heap.root_way().distance);
    assert_eq!(distances.collect::<BTreeSet<_>>().len(), 1, "one reservation");
    heaps.iter().for_each(|heap| assert_eq!(count(heap), 1));
}

#[test]
fn all_pages_of_metadata_are_read_only_and_mapped_a_second_time_at_one_distance() {
    MODES.into_iter().for_each(pages_are_guarded_in);
}

fn pages_are_guarded_in(mode: PoolMode) {
    let dir = directory();
    let path = dir.path().join("store");
    make(&path, mode);
    let mut distances = Vec::new();
    for _ in 0..2 {
        let store = open(&path, true);
        let heap = heap(&store);
        let blocks = fill(&heap);
        // Looks at all puddles.
        assert_eq!((count(&heap), heap.is_guarded()), (blocks.len(), true));
        let pages = pages(&store);
        assert!(backing(&store, Access::ReadWrite).extents().len() > 1);
        for page in &pages {
            let found = explain(*page).expect("explained");
            assert_eq!((found.kind, found.what()), (RangeKind::Metadata, "pool `x`"), "{page:#x}");
            assert_eq!(rights(*page), "r--s", "{page:#x}");
            let others: Vec<usize> =
                everywhere(*page).into_iter().filter(|other| other != page).collect();
            assert_eq!(others, [page.wrapping_add(heap.root_way().distance)], "{page:#x}");
            assert!(PLACES.contains(&others[0]));
            // Of one in shadowed mode, pages that were stored into since the last psync.
            let open = rights(others[0]);
            assert!(open == "rw-s" || mode == PoolMode::Shadowed && open == "r--s", "{open}");
        }
        distances.push(heap.root_way().distance);
        heap.set_root(3, blocks[0], KIND).expect("a root");
        assert_eq!(heap.root(3).expect("a root").addr, blocks[0]);
        blocks.into_iter().for_each(|block| heap.free(block).expect("freed"));
        assert_eq!(count(&heap), 0);
        heap.trim().expect("trimmed");
        drop(heap);
        for page in &pages {
            let kind = explain(*page).map(|found| found.kind);
            assert_eq!(kind, (mode == PoolMode::Shadowed).then_some(RangeKind::Tracked));
            assert!(mode == PoolMode::Shadowed || rights(*page) == "rw-s", "{page:#x}");
            assert_eq!(everywhere(*page), [*page]);
        }
    }
    assert_ne!(distances[0], distances[1], "by chance");
}

#[test]
fn a_heap_without_guards_and_one_with_them_take_turns() {
    MODES.into_iter().for_each(guards_take_turns_in);
}

fn guards_take_turns_in(mode: PoolMode) {
    let dir = directory();
    let path = dir.path().join("store");
    make(&path, mode);
    let mut blocks = Vec::new();
    for guards in [true, false, true, false] {
        let store = open(&path, guards);
        let heap = heap(&store);
        assert_eq!(count(&heap), blocks.len());
        blocks.drain(..).for_each(|block| heap.free(block).expect("freed"));
        blocks = fill(&heap);
        assert_eq!((heap.is_guarded(), heap.root_way().distance != 0), (guards, guards));
        assert_eq!(count(&heap), blocks.len());
    }
}

#[test]
fn what_cannot_be_guarded_works_without_guards() {
    let dir = directory();
    let path = dir.path().join("store");
    let at_rest = AtRest::Integrity;
    let sealed = PoolOptions { mode: PoolMode::Shadowed, at_rest, ..PoolOptions::default() };
    make_store(&path, &PoolOptions { puddle_size: PUDDLE, ..sealed });
    {
        let store = open(&path, true);
        let heap = heap(&store);
        let blocks = fill(&heap).len();
        assert_eq!((heap.is_guarded(), count(&heap)), (false, blocks));
    }
    let direct = dir.path().join("direct");
    make(&direct, PoolMode::Direct);
    let blocks = fill(&heap(&open(&direct, true))).len();
    let store = open(&direct, true);
    let read_only = TracedHeap::open(backing(&store, Access::ReadOnly)).expect("a heap");
    assert_eq!((read_only.is_guarded(), count(&read_only)), (false, blocks));
}

/// Threads that allocate and free, each other's blocks too, and puddles that come meanwhile.
#[test]
fn threads_share_a_guarded_heap() {
    MODES.into_iter().for_each(threads_share_one_in);
}

fn threads_share_one_in(mode: PoolMode) {
    let dir = directory();
    let path = dir.path().join("store");
    make(&path, mode);
    let store = open(&path, true);
    let heap = heap(&store);
    let (send, receive) = std::sync::mpsc::channel::<Vec<u64>>();
    std::thread::scope(|scope| {
        for _ in 0..3 {
            let (send, heap) = (send.clone(), &heap);
            scope.spawn(move || (0..3).for_each(|_| send.send(fill(heap)).expect("heard")));
        }
        drop(send);
        receive.iter().flatten().for_each(|block| heap.free(block).expect("freed"));
    });
    assert_eq!((count(&heap), heap.is_guarded()), (0, true));
}

/// Where a child stores: a place of each kind, in the root puddle or another one.
fn place(store: &Store, number: usize) -> usize {
    let extents = backing(store, Access::ReadWrite).extents();
    let extent = extents[if number < 7 { 0 } else { extents.len() - 1 }];
    let layout = HeapGeometry::new(extent.size, extent.index == 0).expect("a geometry");
    let usable = layout.first_usable;
    let offset = match number {
        0 | 7 => layout.descriptors + usable * 64,
        1 => layout.descriptors,
        2 | 8 => layout.marks + usable * 1024,
        3 => layout.tiny + usable * 4096,
        4 | 9 => layout.hints,
        5 => layout.roots + 9 * 16,
        _ => layout.lists,
    };
    (extent.addr + offset) as usize
}

/// Not a test of its own: what a child process runs, which stores into metadata.
#[test]
fn child() {
    let Some((task, path)) = task() else { return };
    let (what, number) = task.split_once(' ').expect("two words");
    plant(match what {
        "open" => Bug::Guard(GuardBug::TracedOpen),
        "mark" => Bug::Guard(GuardBug::MarkStoredOpenly),
        _ => Bug::None,
    });
    let store = open(&path, true);
    let heap = heap(&store);
    heap.alloc(3000, 16, KIND).expect("room");
    // Looks at all puddles.
    count(&heap);
    let at = place(&store, number.parse().expect("a number"));
    let word = core::ptr::with_exposed_provenance_mut::<u64>(at);
    // SAFETY: a word of mapped metadata; the store faults, or the heap is damaged, which the parent
    // finds.
    unsafe { word.write_volatile(0x55) }
}

/// A child that stores there: how it ended, and what it said.
fn stray(path: &Path, what: &str, number: usize) -> (ExitStatus, String) {
    ended(&mut with_task("guarded::child", &format!("{what} {number}"), path))
}

#[test]
fn a_stray_store_kills_its_process_and_the_heap_is_as_it_was() {
    MODES.into_iter().for_each(stray_stores_are_stopped_in);
}

fn stray_stores_are_stopped_in(mode: PoolMode) {
    let dir = directory();
    let path = dir.path().join("store");
    make(&path, mode);
    let blocks = {
        let store = open(&path, true);
        let heap = heap(&store);
        let blocks = fill(&heap);
        heap.set_root(9, blocks[0], KIND).expect("a root");
        blocks
    };
    for number in 0..10 {
        assert_stopped(stray(&path, "none", number), "write", "metadata of pool `x`");
        let store = open(&path, number % 2 == 0);
        let heap = heap(&store);
        // Each child has one block of its own.
        assert_eq!(count(&heap), blocks.len() + number + 1);
        assert_eq!(heap.root(9).expect("a root").addr, blocks[0]);
        assert!(blocks.iter().all(|block| heap.find(*block).is_ok()));
    }
}

#[test]
fn planted_metadata_that_stay_writable_are_found() {
    let dir = directory();
    let path = dir.path().join("store");
    make(&path, PoolMode::Direct);
    drop(fill(&heap(&open(&path, true))));
    // A root: the store goes through, and the process lives.
    let (status, said) = stray(&path, "open", 5);
    assert_eq!(status.signal(), None, "{said}");
    assert!(heap(&open(&path, true)).root(9).is_err(), "the root is damaged");
}

#[test]
fn a_planted_mark_that_is_stored_at_the_pools_address_is_found() {
    let dir = directory();
    let path = dir.path().join("store");
    make(&path, PoolMode::Direct);
    let (status, said) = stray(&path, "mark", 5);
    assert_eq!(status.signal(), Some(SIGSEGV), "{said}");
}

/// Not a test of its own: a process that has no room for more mappings than its program needs.
#[test]
fn crowded() {
    let Some((_, path)) = task() else { return };
    let store = open(&path, true);
    // All puddles are mapped.
    let blocks = fill(&heap(&store));
    cenote_sys::mappings::set_limit(16);
    let heap = heap(&store);
    assert_eq!((heap.is_guarded(), heap.root_way().distance), (false, 0));
    blocks.into_iter().for_each(|block| heap.free(block).expect("freed"));
    assert_eq!(count(&heap), 0);
    cenote_sys::mappings::set_limit(65_530);
}

#[test]
fn a_heap_works_without_guards_where_the_program_needs_its_mappings() {
    let dir = directory();
    let path = dir.path().join("store");
    make(&path, PoolMode::Direct);
    let (status, said) = ended(&mut with_task("guarded::crowded", "-", &path));
    assert!(status.success(), "{said}");
}

/// Not a test of its own: a guarded heap in a process that has seven eighths of its mappings.
#[test]
fn full_of_mappings() {
    let Some((_, path)) = task() else { return };
    let store = open(&path, true);
    let heap = heap(&store);
    let blocks = fill(&heap);
    let now = cenote_sys::mappings::count().expect("counted");
    cenote_sys::mappings::set_limit(now);
    let puddles = backing(&store, Access::ReadWrite).extents().len();
    let mut more = Vec::new();
    let refused = loop {
        match heap.alloc(70_000, 16, KIND) {
            Ok(block) => more.push(block.addr.as_ptr() as u64),
            Err(error) => break error,
        }
    };
    let is_typed = matches!(refused, AllocError::Full { .. } | AllocError::Puddle(_));
    assert!(is_typed, "{refused:?}");
    assert_eq!(backing(&store, Access::ReadWrite).extents().len(), puddles, "none is taken");
    assert_eq!((count(&heap), heap.is_guarded()), (blocks.len() + more.len(), true));
    for block in blocks.iter().chain(&more) {
        heap.free(*block).expect("freed");
    }
    // Where there is room again, it grows, and what is new is guarded.
    cenote_sys::mappings::set_limit(65_530);
    (0..6).for_each(|_| drop(fill(&heap)));
    assert!(backing(&store, Access::ReadWrite).extents().len() > puddles);
    count(&heap);
    assert!(heap.is_guarded());
}

#[test]
fn a_guarded_heap_takes_no_puddle_where_mappings_run_short() {
    for mode in MODES {
        let dir = directory();
        let path = dir.path().join("store");
        make(&path, mode);
        let (status, said) = ended(&mut with_task("guarded::full_of_mappings", "-", &path));
        assert!(status.success(), "{mode:?}: {said}");
    }
}

/// Nanoseconds of an allocation and a free of 64 bytes, optimised, with and without guards,
/// alternating. `GUARDED_PAIRS` says how many.
#[test]
fn pairs_are_timed_with_and_without_guards() {
    let pairs = std::env::var("GUARDED_PAIRS").ok().and_then(|text| text.parse().ok());
    let pairs: u64 = pairs.unwrap_or(500);
    let dir = directory();
    let path = dir.path().join("store");
    make(&path, PoolMode::Direct);
    for round in 0..7 {
        for guards in [false, true] {
            let store = open(&path, guards);
            let heap = heap(&store);
            heap.alloc(64, 16, KIND).expect("room");
            let began = std::time::Instant::now();
            for _ in 0..pairs {
                let block = heap.alloc(64, 16, KIND).expect("room");
                heap.free(block.addr.as_ptr() as u64).expect("freed");
            }
            let ns = began.elapsed().as_nanos() as f64 / pairs as f64;
            println!("{round}: guards: {guards}, a pair: {ns:.2} ns");
        }
    }
}
