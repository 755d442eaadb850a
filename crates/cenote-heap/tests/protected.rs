//! Metadata of a logged heap are protected against stray writes: in pools of a store, whose files
//! can be mapped twice.

use cenote_heap::logged::{LoggedHeap, LoggedOptions, Protection};
use cenote_heap::{Backing, MemoryBacking, MemoryOptions, PoolBacking};
use cenote_layout::PAGE_SIZE;
use cenote_layout::catalog::{HeapKind, PoolMode};
use cenote_layout::id::{TypeId, Uuid};
use cenote_layout::logged::{LoggedHeader, SubHeapGeometry};
use cenote_layout::puddle::{Role, header_space};
use cenote_medium::planted::{Bug, GuardBug, plant};
use cenote_medium::{Medium, MediumOptions, RealMedium};
use cenote_protect::{RangeKind, explain};
use cenote_store::{Access, FormatOptions, OpenOptions, PoolOptions, Store, format};
use cenote_testkit::child::{ended, task, with_task};
use cenote_testkit::directories::directory;
use std::collections::BTreeMap;
use std::os::unix::process::ExitStatusExt;
use std::path::Path;
use std::process::ExitStatus;
use std::sync::Arc;

pub(crate) type Heap = LoggedHeap<PoolBacking>;

pub(crate) const SIGSEGV: i32 = 11;
pub(crate) const PAGE: usize = PAGE_SIZE as usize;
const BLOCKS: u64 = 3000;

pub(crate) fn options(protection: Protection) -> LoggedOptions {
    let (sub_heaps, lanes, tickets, levels) = (1, 2, 64, 2);
    let options = LoggedOptions { cpu: || 0, protection, ..LoggedOptions::default() };
    LoggedOptions { sub_heaps, lanes, tickets, levels, ..options }
}

pub(crate) fn medium(path: &Path) -> Arc<dyn Medium> {
    let options = MediumOptions { create: true, ..MediumOptions::default() };
    Arc::new(RealMedium::open(path, &options).expect("a directory"))
}

/// A store with a pool, in which no heap is yet.
pub(crate) fn make(path: &Path, mode: PoolMode) {
    make_as(path, PoolOptions { mode, ..PoolOptions::default() });
}

/// The same with a pool that has more than a mode.
pub(crate) fn make_as(path: &Path, pool: PoolOptions) {
    let (puddle_size, size_max, heap) = (1 << 20, 64 << 20, HeapKind::Logged);
    make_store(path, &PoolOptions { puddle_size, size_max, heap, ..pool });
}

/// A store with that pool.
pub(crate) fn make_store(path: &Path, pool: &PoolOptions) {
    let uuid = Some(Uuid::from_random_bytes([7; 16]));
    let window = FormatOptions { window_base: None, window_len: 1 << 30, uuid };
    format(medium(path), &window).expect("formatted");
    open(path).create_pool("x", pool).expect("a pool");
}

/// Stores into a word where a program must not, or loads it. The access faults, or the heap is
/// damaged, which the parent finds.
pub(crate) fn access(at: usize, stores: bool) {
    let word = core::ptr::with_exposed_provenance_mut::<u64>(at);
    // SAFETY: a word of mapped metadata or of a guard page; no reference leads there.
    unsafe {
        if stores {
            word.write_volatile(1)
        } else {
            let _ = word.read_volatile();
        }
    }
}

/// A program that a guard has stopped says which access, and what lies there.
#[track_caller]
pub(crate) fn assert_stopped((status, said): (ExitStatus, String), access: &str, named: &str) {
    assert_eq!(status.signal(), Some(SIGSEGV), "{said}");
    assert!(said.contains(&format!("cenote: stray {access} at 0x")), "{said}");
    assert!(said.contains(named), "{said}");
}

pub(crate) fn open(path: &Path) -> Store {
    Store::open(medium(path), OpenOptions::default()).expect("a store").0
}

/// The heap of the pool; made, if there is none.
pub(crate) fn heap(store: &Store, protection: Protection) -> Heap {
    Heap::open_pool(backing(store), &options(protection)).expect("a heap")
}

pub(crate) fn backing(store: &Store) -> PoolBacking {
    let pool = store.open_pool("x", Access::ReadWrite).expect("a pool");
    // SAFETY: a second heap of the pool is refused, and no reference is given out.
    unsafe { PoolBacking::of(pool) }
}

pub(crate) fn alloc(heap: &Heap, size: u64) -> u64 {
    heap.alloc(size, 1, TypeId(7)).expect("room").addr
}

/// Allocates so many blocks that there are later parts of data and of the table.
pub(crate) fn fill(heap: &Heap) -> Vec<u64> {
    (0..BLOCKS).map(|i| alloc(heap, if i % 3 == 0 { 40 } else { 300 })).collect()
}

pub(crate) fn held(heap: &Heap) -> Vec<(u64, u64)> {
    let mut all = Vec::new();
    for (_, sub) in heap.sub_heaps() {
        let report = sub.check();
        assert_eq!(report.damage, []);
        all.extend(report.blocks.iter().map(|block| (block.addr, block.size)));
    }
    all
}

/// An address in each guarded range: the words of sub-heaps, the first part of one sub-heap's
/// metadata, and a later part of the table.
pub(crate) fn metadata(store: &Store) -> [usize; 3] {
    let backing = backing(store);
    let root = backing.extents()[0];
    let start = (root.addr + header_space(root.size)) as usize;
    let is_far = |at: &usize| explain(*at).is_some_and(|found| found.kind == RangeKind::Metadata);
    let bodies = backing.extents().into_iter().skip(1);
    let far = bodies.map(|e| (e.addr + header_space(e.size) + PAGE_SIZE) as usize).find(is_far);
    let words = start + LoggedHeader::WORDS as usize;
    let first = start + LoggedHeader::SUB_HEAPS as usize + 4096;
    [words + 8, first + 64, far.expect("a later part of the table") + 32]
}

/// An address in each guard page: on both sides of the roots, behind the first part of a sub-heap's
/// metadata, and on both sides of a later part of the table.
pub(crate) fn guard_pages(store: &Store) -> Vec<usize> {
    let geometry = options(Protection::None);
    let geometry = SubHeapGeometry::new(geometry.lanes, geometry.tickets, geometry.levels);
    let root = backing(store).extents()[0];
    let start = (root.addr + header_space(root.size)) as usize;
    let [_, first, far] = metadata(store).map(|at| at / PAGE * PAGE);
    let len = explain(far).expect("a later part of the table").range.len();
    let behind = first - PAGE + geometry.expect("a geometry").metadata_len as usize;
    let ends = [LoggedHeader::WORDS_END as usize, LoggedHeader::SUB_HEAPS as usize - PAGE];
    let mut pages: Vec<usize> = ends.map(|end| start + end).to_vec();
    pages.extend([behind, far - PAGE, far + len]);
    pages.into_iter().flat_map(|page| [page, page + PAGE - 8]).collect()
}

#[test]
fn metadata_have_guard_pages_on_both_sides_and_puddles_of_a_role_of_their_own() {
    let dir = directory();
    let path = dir.path().join("store");
    make(&path, PoolMode::Direct);
    let mut pages = Vec::new();
    for _ in 0..2 {
        let store = open(&path);
        let heap = heap(&store, Protection::Hidden);
        let blocks = fill(&heap);
        pages = guard_pages(&store);
        for page in &pages {
            let found = explain(*page).expect("explained");
            assert_eq!((found.kind, found.what()), (RangeKind::Guard, "pool `x`"), "{page:#x}");
            assert_eq!(found.range.len(), PAGE);
            let read = cenote_sys::bytes::copy_by_kernel(*page, &mut [0; 8]);
            assert!(read.is_err(), "no load goes through");
        }
        // What is in puddles of metadata is no block, and what is in others is.
        let roles = roles(&store);
        assert!(roles.values().any(|role| *role == Role::Metadata), "{roles:?}");
        for block in &blocks {
            let (_, role) = roles.range(..=block).next_back().expect("a puddle");
            assert_eq!(*role, Role::Heap, "{block:#x}");
        }
        let metadata = metadata(&store).map(|at| at as u64);
        let (_, role) = roles.range(..=metadata[2]).next_back().expect("a puddle");
        assert_eq!(*role, Role::Metadata);
        blocks.into_iter().for_each(|block| heap.free(block).expect("freed"));
        assert_eq!(held(&heap).len(), 0);
    }
    assert!(pages.iter().all(|page| explain(*page).is_none()), "the heap has ended");
}

/// The roles of the pool's puddles, by address.
fn roles(store: &Store) -> BTreeMap<u64, Role> {
    store.puddle_records().iter().filter(|p| p.pool.0 != 0).map(|p| (p.addr, p.role)).collect()
}

#[test]
fn planted_guard_pages_that_keep_their_access_are_found() {
    let dir = directory();
    let path = dir.path().join("store");
    make(&path, PoolMode::Direct);
    let store = open(&path);
    plant(Bug::Guard(GuardBug::GuardPagesOpen));
    let heap = heap(&store, Protection::Hidden);
    fill(&heap);
    plant(Bug::None);
    let can_read = |page: &usize| cenote_sys::bytes::copy_by_kernel(*page, &mut [0; 8]).is_ok();
    assert!(guard_pages(&store).iter().any(can_read));
}

/// A heap as earlier builds made it opens, works and grows as it was laid out.
#[test]
fn a_heap_without_guard_pages_works_as_it_was_laid_out() {
    let dir = directory();
    let path = dir.path().join("store");
    make(&path, PoolMode::Direct);
    let mut blocks = Vec::new();
    for round in 0..3 {
        let store = open(&path);
        // That it has none is decided when it is made.
        let guards = u32::from(round > 0);
        let options = LoggedOptions { guards, ..options(Protection::Hidden) };
        let heap = Heap::open_pool(backing(&store), &options).expect("a heap");
        assert_eq!(held(&heap).len(), blocks.len());
        blocks.extend(fill(&heap));
        assert_eq!(heap.protection(), Protection::Hidden);
        assert!(roles(&store).values().all(|role| *role == Role::Heap));
        let root = backing(&store).extents()[0];
        let words = root.addr + header_space(root.size);
        let roots = words + LoggedHeader::roots_at(0);
        let kind = |at: u64| explain(at as usize).map(|found| found.kind);
        assert_eq!([kind(words), kind(roots)], [Some(RangeKind::Metadata); 2]);
        assert_eq!(kind(words + LoggedHeader::sub_heaps_at(0)), Some(RangeKind::Metadata));
    }
}

#[test]
fn a_heap_works_with_each_protection_and_opens_with_every_other() {
    let dir = directory();
    let path = dir.path().join("store");
    make(&path, PoolMode::Direct);
    let mut blocks = Vec::new();
    let all = [Protection::Keys, Protection::Hidden, Protection::Mprotect, Protection::None];
    // Keys, where the processor has them.
    for protection in all.map(|protection| protection.within(true)) {
        let store = open(&path);
        let heap = heap(&store, protection);
        assert_eq!(held(&heap).len(), blocks.len(), "{protection:?}");
        for block in blocks.drain(..) {
            heap.free(block).expect("freed");
        }
        for (_, sub) in heap.sub_heaps() {
            sub.compact().expect("compact");
        }
        blocks = fill(&heap);
        assert_eq!(heap.protection(), protection);
        let is_guarded = metadata_or_none(&store);
        assert_eq!(is_guarded, protection != Protection::None);
        let mut log = heap.log();
        let block = log.alloc(64, 1, TypeId(7), false).expect("room");
        log.free(blocks[0]).expect("freed later");
        log.abort().expect("ended");
        assert!(heap.find(block.addr).is_err() && heap.find(blocks[0]).is_ok());
    }
}

/// Whether the table's later parts and all else is guarded.
fn metadata_or_none(store: &Store) -> bool {
    let root = backing(store).extents()[0];
    let words = (root.addr + header_space(root.size) + LoggedHeader::WORDS) as usize;
    let is_guarded = explain(words).is_some();
    if is_guarded {
        let kinds = metadata(store).map(|at| explain(at).map(|found| found.kind));
        assert_eq!(kinds, [Some(RangeKind::Metadata); 3]);
        assert_eq!(explain(words).expect("explained").what(), "pool `x`");
    }
    is_guarded
}

#[test]
fn the_end_of_a_heap_gives_all_rights_back() {
    let dir = directory();
    let path = dir.path().join("store");
    make(&path, PoolMode::Direct);
    let store = open(&path);
    for protection in [Protection::Hidden, Protection::Mprotect, Protection::Hidden] {
        let heap = heap(&store, protection);
        let blocks = fill(&heap);
        let places = metadata(&store);
        blocks.into_iter().for_each(|block| heap.free(block).expect("freed"));
        drop(heap);
        for at in places {
            assert_eq!(explain(at), None);
            let word = core::ptr::with_exposed_provenance_mut::<u64>(at);
            // SAFETY: a word of a mapped puddle that no heap uses now; it stays what it was.
            unsafe { word.write_volatile(word.read_volatile()) };
        }
    }
}

#[test]
fn what_cannot_be_mapped_twice_is_not_guarded_by_a_hidden_mapping() {
    let memory = MemoryBacking::new(MemoryOptions::default());
    let heap = LoggedHeap::create(memory, &options(Protection::Hidden)).expect("a heap");
    heap.alloc(100, 1, TypeId(7)).expect("room");
    assert_eq!(heap.protection(), Protection::None);
}

#[test]
fn rights_of_pages_guard_a_pool_in_shadowed_mode_as_well() {
    let dir = directory();
    let path = dir.path().join("store");
    make(&path, PoolMode::Shadowed);
    let store = open(&path);
    let hidden = self::heap(&store, Protection::Hidden);
    fill(&hidden);
    assert_eq!(hidden.protection(), Protection::Hidden);
    drop(hidden);
    let heap = self::heap(&store, Protection::Mprotect);
    alloc(&heap, 100);
    assert_eq!((heap.protection(), held(&heap).len()), (Protection::Mprotect, 3001));
}

#[test]
fn memory_is_guarded_by_rights_of_pages_while_levels_come_and_go() {
    let options = LoggedOptions { sub_heaps: 1, levels: 6, ..options(Protection::Mprotect) };
    let memory = MemoryBacking::new(MemoryOptions::default());
    let heap = LoggedHeap::create(memory, &options).expect("a heap");
    let blocks: Vec<u64> =
        (0..BLOCKS).map(|_| heap.alloc(300, 1, TypeId(7)).expect("room").addr).collect();
    blocks.into_iter().for_each(|block| heap.free(block).expect("freed"));
    for (_, sub) in heap.sub_heaps() {
        assert!(sub.compact().expect("compact") > 0);
        assert_eq!((sub.check().damage, sub.check().blocks), (vec![], vec![]));
    }
    assert_eq!(heap.protection(), Protection::Mprotect);
}

/// Not a test of its own: what a child process runs, which stores into metadata.
#[test]
fn child() {
    let Some((task, path)) = task() else { return };
    let (protection, place) = task.split_once(' ').expect("two words");
    let protection = match protection {
        "Keys" => Protection::Keys,
        "Hidden" => Protection::Hidden,
        _ => Protection::Mprotect,
    };
    let store = open(&path);
    let heap = heap(&store, protection);
    alloc(&heap, 300);
    let place = place.parse::<usize>().expect("a number");
    let at = match place.checked_sub(3) {
        None => metadata(&store)[place],
        Some(page) => guard_pages(&store)[page % 10],
    };
    access(at, place < 13);
}

/// Not a test of its own: a process that has no room for more mappings than its program needs.
#[test]
fn crowded() {
    let Some((_, path)) = task() else { return };
    let store = open(&path);
    // All puddles are mapped.
    let blocks = fill(&heap(&store, Protection::Hidden));
    cenote_sys::mappings::set_limit(16);
    let heap = heap(&store, Protection::Hidden);
    assert_eq!(heap.protection(), Protection::None);
    blocks.into_iter().for_each(|block| heap.free(block).expect("freed"));
    assert_eq!(held(&heap).len(), 0);
    cenote_sys::mappings::set_limit(65_530);
}

#[test]
fn a_heap_works_without_guards_where_the_program_needs_its_mappings() {
    let dir = directory();
    let path = dir.path().join("store");
    make(&path, PoolMode::Direct);
    let (status, said) = ended(&mut with_task("protected::crowded", "-", &path));
    assert!(status.success(), "{said}");
}

/// Not a test of its own: a process whose room for mappings ends between any two that a heap makes.
#[test]
fn bounded() {
    let Some((_, path)) = task() else { return };
    let store = open(&path);
    let mut blocks = fill(&heap(&store, Protection::Hidden));
    let (mut held_apart, mut seen) = (Vec::new(), Vec::new());
    for number in 0..8 {
        // One mapping more, which no neighbour is joined with.
        let region = cenote_sys::memory::anonymous(3 * PAGE).expect("memory");
        let middle = region.as_ptr().expose_provenance() + PAGE;
        // SAFETY: a page of our own region, which nothing uses.
        unsafe {
            assert_eq!(libc::mprotect(middle as *mut libc::c_void, PAGE, libc::PROT_NONE), 0)
        };
        held_apart.push(region);
        let now = cenote_sys::mappings::count().expect("counted");
        for step in 0..6 {
            cenote_sys::mappings::set_limit((now / 7 + step) * 8);
            let heap = heap(&store, Protection::Hidden);
            seen.push(heap.protection());
            for size in [24, 300, 5000] {
                heap.free(alloc(&heap, size)).expect("freed");
            }
            heap.free(blocks.pop().expect("a block")).expect("freed");
            assert_eq!(held(&heap).len(), blocks.len(), "{number} {step}");
        }
    }
    assert!(seen.contains(&Protection::None) && seen.contains(&Protection::Hidden), "{seen:?}");
    cenote_sys::mappings::set_limit(65_530);
}

#[test]
fn a_heap_works_wherever_room_for_mappings_ends_while_it_is_guarded() {
    for mode in [PoolMode::Direct, PoolMode::Shadowed] {
        let dir = directory();
        let path = dir.path().join("store");
        make(&path, mode);
        let (status, said) = ended(&mut with_task("protected::bounded", "-", &path));
        assert!(status.success(), "{mode:?}: {said}");
    }
}

#[test]
fn a_stray_store_kills_its_process_and_the_heap_is_as_it_was() {
    for protection in [Protection::Keys, Protection::Hidden, Protection::Mprotect] {
        for place in 0..3 {
            dies(protection, place, "write", "metadata of pool `x`");
        }
    }
}

#[test]
fn an_access_to_a_guard_page_kills_its_process_and_the_heap_is_as_it_was() {
    let named = "a guard page beside metadata of pool `x`";
    for (protection, first) in [(Protection::Hidden, 3), (Protection::Mprotect, 7)] {
        (first..13).for_each(|place| dies(protection, place, "write", named));
    }
    for place in [13, 16, 22] {
        dies(Protection::Hidden, place, "read", named);
    }
}

/// A child that accesses that place dies, says so, and leaves the heap as it was.
fn dies(protection: Protection, place: usize, access: &str, named: &str) {
    let dir = directory();
    let path = dir.path().join("store");
    make(&path, PoolMode::Direct);
    let before = {
        let store = open(&path);
        let heap = heap(&store, protection);
        fill(&heap);
        held(&heap).len()
    };
    let task = format!("{protection:?} {place}");
    assert_stopped(ended(&mut with_task("protected::child", &task, &path)), access, named);
    let store = open(&path);
    // One more: the child's own block.
    assert_eq!(held(&heap(&store, Protection::None)).len(), before + 1);
}

/// Nanoseconds of an allocation and a free of 64 and of 300 bytes, optimised, by protection and by
/// mode, alternating. `PROTECTED_PAIRS` says how many.
#[test]
fn pairs_are_timed_by_protection() {
    let pairs = std::env::var("PROTECTED_PAIRS").ok().and_then(|text| text.parse().ok());
    let pairs: u64 = pairs.unwrap_or(500);
    for round in 0..3 {
        for mode in [PoolMode::Direct, PoolMode::Shadowed] {
            let dir = directory();
            let path = dir.path().join("store");
            make(&path, mode);
            for protection in
                [Protection::None, Protection::Hidden, Protection::Keys, Protection::Mprotect]
            {
                let store = open(&path);
                let heap = heap(&store, protection);
                let timed = [64, 300].map(|size| {
                    alloc(&heap, size);
                    let began = std::time::Instant::now();
                    for _ in 0..pairs {
                        let addr = alloc(&heap, size);
                        heap.free(addr).expect("freed");
                    }
                    began.elapsed().as_nanos() as f64 / pairs as f64
                });
                let by = heap.protection();
                println!("{round}: {mode:?}, {by:?}, pairs: {:.0} {:.0} ns", timed[0], timed[1]);
            }
        }
    }
}
