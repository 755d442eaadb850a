//! Roots of a logged heap are read-only at their addresses, and stored through a second mapping: by
//! the heap and by transactions, in each mode.

use crate::protected::{
    Heap, PAGE, access, alloc, assert_stopped, backing, heap, make_as, make_store, medium, open,
    options,
};
use crate::protected_shadowed::{differing, psync};
use cenote_heap::logged::Protection;
use cenote_heap::{Backing, Heap as _, RootError};
use cenote_layout::catalog::{HeapKind, PoolMode};
use cenote_layout::heap::RootSlot;
use cenote_layout::id::TypeId;
use cenote_layout::logged::LoggedHeader;
use cenote_layout::puddle::header_space;
use cenote_medium::planted::{Bug, LoggedBug, plant};
use cenote_protect::{RangeKind, explain};
use cenote_store::{AtRest, OpenOptions, PoolOptions, Store};
use cenote_testkit::child::{ended, task, with_task};
use cenote_testkit::directories::directory;
use cenote_testkit::lost::everywhere;
use std::os::unix::process::ExitStatusExt;
use std::path::Path;

const KIND: TypeId = TypeId(7);
/// Each mode, and with protection at rest.
const MODES: [(PoolMode, AtRest); 3] = [
    (PoolMode::Direct, AtRest::None),
    (PoolMode::Shadowed, AtRest::None),
    (PoolMode::Shadowed, AtRest::Integrity),
];

fn make(path: &Path, (mode, at_rest): (PoolMode, AtRest)) {
    make_as(path, PoolOptions { mode, at_rest, ..PoolOptions::default() });
}

/// Where root `index` is read.
fn root_at(store: &Store, index: usize) -> usize {
    let root = backing(store).extents()[0];
    let roots = root.addr + header_space(root.size) + LoggedHeader::roots_at(1);
    roots as usize + index * size_of::<RootSlot>()
}

fn led_to(heap: &Heap, index: u16) -> Result<u64, RootError> {
    heap.root(index).map(|root| root.addr)
}

#[test]
fn roots_are_stored_at_a_distance_and_the_next_session_reads_them() {
    for mode in MODES {
        let dir = directory();
        let path = dir.path().join("store");
        make(&path, mode);
        let mut last = Vec::new();
        for protection in [Protection::Hidden, Protection::Keys, Protection::Mprotect] {
            let store = open(&path);
            let heap = heap(&store, protection);
            let is_hidden = protection != Protection::Mprotect;
            assert_eq!(heap.protection(), protection.within(true));
            let way = heap.root_way();
            assert_eq!(way.distance != 0, is_hidden);
            assert_eq!(way.notes.is_some(), is_hidden && mode.0 == PoolMode::Shadowed);
            for (index, addr) in &last {
                assert_eq!(led_to(&heap, *index).expect("a root"), *addr, "{mode:?}");
            }
            last.clear();
            for index in [0, 300, 1023] {
                let at = root_at(&store, index.into());
                let found = explain(at).map(|found| found.kind);
                assert_eq!(found == Some(RangeKind::Metadata), is_hidden, "{mode:?}");
                let page = at / PAGE * PAGE;
                let others: Vec<usize> =
                    everywhere(page).into_iter().filter(|other| *other != page).collect();
                assert!(!is_hidden || others.contains(&page.wrapping_add(way.distance)));
                let addr = alloc(&heap, 300);
                heap.set_root(index, addr, KIND).expect("set");
                assert_eq!(led_to(&heap, index).expect("a root"), addr);
                last.push((index, addr));
            }
            drop(heap);
            let found = explain(root_at(&store, 0)).map(|found| found.kind);
            assert_ne!(found, Some(RangeKind::Metadata), "{mode:?}");
            store.close().expect("closed");
        }
    }
}

/// Not a test of its own: a child that stores into a root.
#[test]
fn child() {
    let Some((task, path)) = task() else { return };
    if task == "open" {
        plant(Bug::Logged(LoggedBug::RootsOpen));
    }
    let store = open(&path);
    let heap = heap(&store, Protection::Hidden);
    heap.set_root(8, alloc(&heap, 300), KIND).expect("set");
    access(root_at(&store, 9), true);
    drop(heap);
    store.close().expect("closed");
}

#[test]
fn a_stray_store_into_a_root_kills_its_process_and_the_root_is_as_it_was() {
    for mode in MODES {
        let dir = directory();
        let path = dir.path().join("store");
        make(&path, mode);
        let addr = {
            let store = open(&path);
            let heap = heap(&store, Protection::Hidden);
            let addr = alloc(&heap, 300);
            heap.set_root(9, addr, KIND).expect("set");
            drop(heap);
            store.close().expect("closed");
            addr
        };
        let run = |what| ended(&mut with_task("guarded_roots::child", what, &path));
        assert_stopped(run("guarded"), "write", "metadata of pool `x`");
        let found = |what| {
            let store = open(&path);
            led_to(&heap(&store, Protection::Hidden), 9).map_err(|error| format!("{what}: {error}"))
        };
        assert_eq!(found("guarded"), Ok(addr), "{mode:?}");
        // Planted: the store goes through, and the process lives.
        let (status, said) = run("open");
        assert_eq!(status.signal(), None, "{said}");
        assert!(found("open").is_err(), "{mode:?}: the root is damaged");
    }
}

/// A root that is set after a psync is in the next one: that of the close.
fn is_root_psynced(mode: (PoolMode, AtRest)) -> bool {
    let dir = directory();
    let path = dir.path().join("store");
    make(&path, mode);
    let store = open(&path);
    let first = heap(&store, Protection::Hidden);
    let addr = alloc(&first, 300);
    drop(first);
    store.close().expect("closed");
    // Nothing else changes: the roots' page has no other store than this one.
    let store = open(&path);
    let second = heap(&store, Protection::Hidden);
    psync(&store);
    second.set_root(700, addr, KIND).expect("set");
    assert_eq!(led_to(&second, 700).expect("a root"), addr);
    drop(second);
    store.close().expect("closed");
    let is_same = mode.1 != AtRest::None || differing(&path).is_empty();
    let store = open(&path);
    let heap = heap(&store, Protection::Hidden);
    let is_there = led_to(&heap, 700).expect("a root") == addr;
    is_there && is_same
}

#[test]
fn a_root_that_is_stored_elsewhere_is_in_the_next_psync() {
    for mode in &MODES[1..] {
        assert!(is_root_psynced(*mode), "{mode:?}");
        plant(Bug::Logged(LoggedBug::RootNotNoted));
        let is_found = is_root_psynced(*mode);
        plant(Bug::None);
        assert!(!is_found, "{mode:?}: {:?} was not found", LoggedBug::RootNotNoted);
    }
}

/// Not a test of its own: a process that has no room for more mappings than its program needs.
#[test]
fn crowded() {
    let Some((_, path)) = task() else { return };
    let store = open(&path);
    drop(heap(&store, Protection::Hidden));
    cenote_sys::mappings::set_limit(16);
    let heap = heap(&store, Protection::Hidden);
    assert_eq!((heap.protection(), heap.root_way().distance), (Protection::None, 0));
    let addr = alloc(&heap, 300);
    heap.set_root(5, addr, KIND).expect("set");
    assert_eq!(led_to(&heap, 5).expect("a root"), addr);
    cenote_sys::mappings::set_limit(65_530);
}

#[test]
fn roots_are_stored_where_they_are_without_guards() {
    for mode in MODES {
        let dir = directory();
        let path = dir.path().join("store");
        make(&path, mode);
        let (status, said) = ended(&mut with_task("guarded_roots::crowded", "-", &path));
        assert!(status.success(), "{said}");
    }
    let dir = directory();
    let path = dir.path().join("store");
    make_store(&path, &PoolOptions { heap: HeapKind::Logged, ..PoolOptions::default() });
    let unguarded = OpenOptions { guards: false, ..OpenOptions::default() };
    let store = Store::open(medium(&path), unguarded).expect("a store").0;
    let heap = Heap::open_pool(backing(&store), &options(Protection::Hidden)).expect("a heap");
    assert_eq!((heap.protection(), heap.root_way().distance), (Protection::None, 0));
    heap.set_root(5, alloc(&heap, 300), KIND).expect("set");
}
