//! Traced heaps of pools in shadowed mode are guarded, and no store is lost: the second mapping
//! tells of the first store into a page since a psync.

use crate::guarded::{count, fill, heap, make, open};
use crate::protected_shadowed::{differing, psync};
use cenote_heap::{Heap, TracedHeap, Trim as _};
use cenote_layout::catalog::PoolMode;
use cenote_layout::id::TypeId;
use cenote_medium::planted::{Bug, GuardBug, plant};
use cenote_testkit::child::{ended, task, with_task};
use cenote_testkit::directories::directory;
use std::sync::atomic::{AtomicBool, Ordering};

const KIND: TypeId = TypeId(7);

fn alloc(heap: &TracedHeap, size: u64) -> u64 {
    heap.alloc(size, 16, KIND).expect("room").addr.addr().get() as u64
}

/// Allocates and frees until that says so: the blocks that it keeps.
fn work(heap: &TracedHeap, seed: usize, is_over: &AtomicBool) -> Vec<u64> {
    let mut blocks = Vec::new();
    for round in seed.. {
        if is_over.load(Ordering::Relaxed) {
            break;
        }
        let size = [16, 64, 300, 700, 5000][round % 5];
        blocks.push(alloc(heap, size));
        if blocks.len() > 3 && (!round.is_multiple_of(3) || blocks.len() > 2000) {
            let at = (round * 7) % blocks.len();
            heap.free(blocks.swap_remove(at)).expect("freed");
        }
    }
    blocks
}

#[test]
fn no_store_is_lost_by_psyncs_beside_threads_that_allocate() {
    let dir = directory();
    let path = dir.path().join("store");
    make(&path, PoolMode::Shadowed);
    let store = open(&path, true);
    let heap = self::heap(&store);
    let is_over = AtomicBool::new(false);
    let kept: usize = std::thread::scope(|scope| {
        let threads: Vec<_> = (0..3)
            .map(|seed| {
                let (heap, is_over) = (&heap, &is_over);
                scope.spawn(move || work(heap, seed, is_over).len())
            })
            .collect();
        (0..40).for_each(|_| psync(&store));
        is_over.store(true, Ordering::Relaxed);
        threads.into_iter().map(|thread| thread.join().expect("it ends")).sum()
    });
    assert_eq!((heap.is_guarded(), count(&heap)), (true, kept));
    drop(heap);
    store.close().expect("closed");
    assert_eq!(differing(&path), [], "what the close has psynced");
    let store = open(&path, false);
    assert_eq!(count(&self::heap(&store)), kept);
}

/// Pages that no psync has, if this bug is in one of them.
fn lost_by(bug: Bug) -> usize {
    let dir = directory();
    let path = dir.path().join("store");
    make(&path, PoolMode::Shadowed);
    let store = open(&path, true);
    let heap = heap(&store);
    let blocks = fill(&heap);
    plant(bug);
    psync(&store);
    plant(Bug::None);
    heap.set_root(4, blocks[0], KIND).expect("a root");
    for block in blocks {
        heap.free(block).expect("freed");
    }
    heap.trim().expect("trimmed");
    drop(heap);
    store.close().expect("closed");
    differing(&path).len()
}

#[test]
fn stores_through_the_second_mapping_are_in_the_next_psync() {
    assert_eq!(lost_by(Bug::None), 0);
    assert!(
        lost_by(Bug::Guard(GuardBug::TwinNotProtected)) > 0,
        "{:?} was not found",
        Bug::Guard(GuardBug::TwinNotProtected)
    );
}

/// Not a test of its own: a process whose mappings run short once its heap is guarded.
#[test]
fn crowded() {
    let Some((_, path)) = task() else { return };
    let store = open(&path, true);
    let heap = heap(&store);
    let mut blocks = fill(&heap);
    for limit in [16, 65_530, 16] {
        psync(&store);
        // As coarse as can be: the first store opens the whole range.
        cenote_sys::mappings::set_limit(limit);
        blocks.drain(..).for_each(|block| heap.free(block).expect("freed"));
        blocks = (0..300).map(|_| alloc(&heap, 300)).collect();
    }
    psync(&store);
    assert_eq!((heap.is_guarded(), count(&heap)), (true, 300));
    cenote_sys::mappings::set_limit(65_530);
    drop(heap);
    store.close().expect("closed");
}

#[test]
fn a_psync_is_whole_where_mappings_run_short() {
    let dir = directory();
    let path = dir.path().join("store");
    make(&path, PoolMode::Shadowed);
    let (status, said) = ended(&mut with_task("guarded_shadowed::crowded", "-", &path));
    assert!(status.success(), "{said}");
    assert_eq!(differing(&path), []);
    assert_eq!(count(&heap(&open(&path, true))), 300);
}
