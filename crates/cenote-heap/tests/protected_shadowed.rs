//! Metadata of logged heaps are protected in pools in shadowed mode, too, plain and protected at
//! rest: stores through the second mapping are in the next psync, whatever runs beside it, and
//! guard pages are in nothing's way.

use crate::protected::{
    PAGE, access, alloc, assert_stopped, backing, fill, guard_pages, heap, held, make_as, metadata,
    open, options,
};
use cenote_heap::logged::{LoggedOptions, Protection};
use cenote_heap::{Backing, Block, Heap, Taking};
use cenote_layout::catalog::PoolMode;
use cenote_layout::id::TypeId;
use cenote_layout::puddle::header_space;
use cenote_medium::planted::{Bug, GuardBug, plant};
use cenote_protect::{RangeKind, explain};
use cenote_store::{AtRest, Begun, PoolOptions, Store};
use cenote_sys::bytes::copy_by_kernel;
use cenote_testkit::child::{ended, task, with_task};
use cenote_testkit::directories::directory;
use std::cell::Cell;
use std::os::unix::process::ExitStatusExt;
use std::path::Path;
use std::sync::atomic::{AtomicBool, Ordering};

/// Without protection at rest, and with: neither needs a key.
const KINDS: [AtRest; 2] = [AtRest::None, AtRest::Integrity];

fn make(path: &Path, at_rest: AtRest) {
    let mode = PoolMode::Shadowed;
    make_as(path, PoolOptions { mode, at_rest, ..PoolOptions::default() });
}

/// Psyncs the pool, whatever runs on it.
pub(crate) fn psync(store: &Store) {
    let pool = backing(store);
    match store.begin_psync(&[&pool], &|_| None).expect("begun") {
        Begun::Mine(mut psync) => {
            // SAFETY: without a quiet moment no store is lost; the callers look at no state that
            // another psync than a quiet one made.
            unsafe { psync.copy() }.expect("copied");
            psync.commit().expect("committed");
        }
        other => panic!("{other:?}"),
    }
}

/// Pages of shadows that are not what primaries hold, behind the headers of puddles; the store is
/// closed.
pub(crate) fn differing(path: &Path) -> Vec<(String, usize)> {
    let mut pages = Vec::new();
    for entry in std::fs::read_dir(path.join("primary")).expect("primaries") {
        let name = entry.expect("an entry").file_name();
        let primary = std::fs::read(path.join("primary").join(&name)).expect("a primary");
        let shadow = std::fs::read(path.join("puddles").join(&name)).expect("a shadow");
        let first = header_space(primary.len() as u64) as usize / PAGE;
        let both = primary.chunks(PAGE).zip(shadow.chunks(PAGE)).enumerate().skip(first);
        let differ = both.filter(|(_, (primary, shadow))| primary != shadow);
        pages.extend(differ.map(|(page, _)| (name.to_string_lossy().into_owned(), page)));
    }
    pages
}

#[test]
fn metadata_are_guarded_between_guard_pages_and_the_next_session_finds_them() {
    for at_rest in KINDS {
        let dir = directory();
        let path = dir.path().join("store");
        make(&path, at_rest);
        let mut blocks = Vec::new();
        for protection in [Protection::Hidden, Protection::Keys, Protection::Mprotect] {
            let store = open(&path);
            let heap = heap(&store, protection);
            assert_eq!(held(&heap).len(), blocks.len(), "{at_rest:?} {protection:?}");
            blocks.into_iter().for_each(|block| heap.free(block).expect("freed"));
            blocks = fill(&heap);
            assert_eq!(heap.protection(), protection.within(true), "{at_rest:?}");
            for place in metadata(&store) {
                let found = explain(place).map(|found| found.kind);
                assert_eq!(found, Some(RangeKind::Metadata), "{at_rest:?}");
            }
            for page in guard_pages(&store) {
                assert!(copy_by_kernel(page, &mut [0; 8]).is_err(), "{at_rest:?}: {page:#x}");
            }
            psync(&store);
            blocks.extend(fill(&heap));
            drop(heap);
            store.close().expect("closed");
        }
        assert!(at_rest != AtRest::None || differing(&path).is_empty());
    }
}

/// Allocates and frees, beside psyncs.
fn work(heap: &crate::protected::Heap, seed: u64, until: impl Fn() -> bool) -> Vec<u64> {
    let mut blocks = Vec::new();
    for round in seed.. {
        if until() {
            break;
        }
        let size = [24, 64, 300, 700, 5000][round as usize % 5];
        blocks.push(heap.alloc(size, 1, TypeId(7)).expect("room").addr);
        if blocks.len() > 3 && (!round.is_multiple_of(3) || blocks.len() > 2000) {
            let at = (round as usize * 7) % blocks.len();
            heap.free(blocks.swap_remove(at)).expect("freed");
        }
    }
    blocks
}

thread_local! {
    static CPU: Cell<u32> = const { Cell::new(0) };
}

#[test]
fn no_store_is_lost_by_psyncs_beside_threads_that_allocate() {
    const THREADS: u32 = 4;
    for at_rest in KINDS {
        let dir = directory();
        let path = dir.path().join("store");
        make(&path, at_rest);
        let store = open(&path);
        let options =
            LoggedOptions { sub_heaps: 3, cpu: || CPU.get(), ..options(Protection::Hidden) };
        let heap = crate::protected::Heap::open_pool(backing(&store), &options).expect("a heap");
        let is_over = AtomicBool::new(false);
        let kept: usize = std::thread::scope(|scope| {
            let threads: Vec<_> = (0..THREADS)
                .map(|number| {
                    let (heap, is_over) = (&heap, &is_over);
                    scope.spawn(move || {
                        CPU.set(number);
                        work(heap, number.into(), || is_over.load(Ordering::Relaxed)).len()
                    })
                })
                .collect();
            for _ in 0..60 {
                psync(&store);
            }
            is_over.store(true, Ordering::Relaxed);
            threads.into_iter().map(|thread| thread.join().expect("it ends")).sum()
        });
        assert_eq!(heap.protection(), Protection::Hidden);
        assert_eq!(held(&heap).len(), kept, "{at_rest:?}");
        drop(heap);
        store.close().expect("closed");
        assert!(at_rest != AtRest::None || differing(&path).is_empty());
        let store = open(&path);
        let heap = self::heap(&store, Protection::None);
        assert_eq!(held(&heap).len(), kept, "{at_rest:?}: what the close has psynced");
    }
}

#[test]
fn planted_stores_that_are_not_noted_are_found() {
    let dir = directory();
    let path = dir.path().join("store");
    make(&path, AtRest::None);
    let store = open(&path);
    let heap = heap(&store, Protection::Hidden);
    fill(&heap);
    psync(&store);
    plant(Bug::Guard(GuardBug::ShadowedStoreNotNoted));
    alloc(&heap, 300);
    plant(Bug::None);
    drop(heap);
    store.close().expect("closed");
    assert!(!differing(&path).is_empty());
}

/// Tickets are first used in order, and a fault fills 16 pages: so each 1024th one is a store into
/// a page of metadata that nothing has loaded from. Nothing may be filled over it later.
#[test]
fn pages_of_sealed_memory_are_filled_before_they_are_stored_into() {
    let dir = directory();
    let path = dir.path().join("store");
    make(&path, AtRest::Integrity);
    // The session that makes a sub-heap looks at all its words.
    for tickets in [0, 3000, 3000] {
        let store = open(&path);
        let options = LoggedOptions { tickets: 4096, ..options(Protection::Hidden) };
        let heap = crate::protected::Heap::open_pool(backing(&store), &options).expect("a heap");
        heap.free(alloc(&heap, 300)).expect("freed");
        let take = |_| Heap::alloc_with(&heap, 300, 1, TypeId(7), &mut |_| Ok(Taking::Taken));
        let blocks: Vec<Block> = (0..tickets).map(take).map(|block| block.expect("room")).collect();
        psync(&store);
        assert_eq!(held(&heap).len(), blocks.len());
        for block in &blocks {
            heap.clear_mark(block);
            heap.release(block);
        }
        assert_eq!(held(&heap).len(), 0, "each ticket says what was stored");
        drop(heap);
        store.close().expect("closed");
    }
}

/// Not a test of its own: what a child process runs, which accesses metadata or a guard page.
#[test]
fn child() {
    let Some((task, path)) = task() else { return };
    let place: usize = task.parse().expect("a number");
    let store = open(&path);
    let heap = heap(&store, Protection::Hidden);
    alloc(&heap, 300);
    psync(&store);
    let at = match place {
        0..3 => metadata(&store)[place],
        page => guard_pages(&store)[page % 10],
    };
    access(at, place < 13);
}

#[test]
fn a_stray_access_kills_its_process_names_the_pool_and_leaves_the_store_as_it_was() {
    for at_rest in KINDS {
        for place in [0, 1, 2, 3, 6, 8, 12, 13, 17, 22] {
            let dir = directory();
            let path = dir.path().join("store");
            make(&path, at_rest);
            let before = {
                let store = open(&path);
                let heap = heap(&store, Protection::Hidden);
                fill(&heap);
                held(&heap).len()
            };
            let mut command = with_task("protected_shadowed::child", &place.to_string(), &path);
            let (access, named) = match place {
                0..3 => ("write", "metadata of pool `x`"),
                3..13 => ("write", "a guard page beside metadata of pool `x`"),
                _ => ("read", "a guard page beside metadata of pool `x`"),
            };
            assert_stopped(ended(&mut command), access, named);
            let store = open(&path);
            // One more: the child's own block, which it psynced.
            let heap = heap(&store, Protection::None);
            assert_eq!(held(&heap).len(), before + 1, "{at_rest:?} {place}");
        }
    }
}

/// Not a test of its own: a process whose mappings run short once its heap is guarded.
#[test]
fn crowded() {
    let Some((task, path)) = task() else { return };
    let is_plain = task == "None";
    let store = open(&path);
    let heap = heap(&store, Protection::Hidden);
    fill(&heap);
    psync(&store);
    // As coarse as can be: the first store into a puddle opens it as a whole.
    cenote_sys::mappings::set_limit(16);
    let root = backing(&store).extents()[0];
    // Behind the metadata of the last sub-heap, where others would lie.
    let unused = (guard_pages(&store)[4] + PAGE) as *mut u64;
    // SAFETY: a word of the root puddle that nothing uses; it stays what it was.
    unsafe { unused.write_volatile(unused.read_volatile()) };
    if is_plain {
        assert_eq!(store.unsynced_bytes(backing(&store).id()), root.size, "all of the puddle");
    }
    for page in guard_pages(&store) {
        assert!(copy_by_kernel(page, &mut [0; 8]).is_err(), "{page:#x}");
    }
    for place in metadata(&store) {
        let word = [0xee; 8];
        // SAFETY: it is refused.
        let stored = unsafe { cenote_sys::bytes::store_by_kernel(place, &word) };
        assert!(stored.is_err(), "{place:#x}");
    }
    assert_eq!(heap.protection(), Protection::Hidden);
    let block = alloc(&heap, 300);
    psync(&store);
    heap.free(block).expect("freed");
    cenote_sys::mappings::set_limit(65_530);
    drop(heap);
    store.close().expect("closed");
}

#[test]
fn a_psync_is_whole_where_mappings_run_short() {
    for at_rest in KINDS {
        let dir = directory();
        let path = dir.path().join("store");
        make(&path, at_rest);
        let task = format!("{at_rest:?}");
        let (status, said) = ended(&mut with_task("protected_shadowed::crowded", &task, &path));
        assert!(status.success(), "{said}");
        assert!(at_rest != AtRest::None || differing(&path).is_empty());
        let store = open(&path);
        assert_eq!(held(&heap(&store, Protection::Hidden)).len(), 3000, "{at_rest:?}");
    }
}

/// Not a test of its own: a process in which every system call but a few is its end.
#[test]
fn quiet() {
    let Some((task, path)) = task() else { return };
    let protection = if task == "Mprotect" { Protection::Mprotect } else { Protection::Hidden };
    let store = open(&path);
    let heap = heap(&store, protection);
    let blocks = fill(&heap);
    let pair = || {
        for size in [24, 300] {
            heap.free(alloc(&heap, size)).expect("freed");
        }
    };
    // Whatever memory they need, they have.
    (0..200).for_each(|_| pair());
    refuse_system_calls();
    (0..200).for_each(|_| pair());
    let _ = blocks;
    // SAFETY: ends the process, which the filter allows.
    unsafe { libc::_exit(0) }
}

/// From now on a system call ends the process, but for that which does so.
fn refuse_system_calls() {
    let by = |code: u32, jt, jf, k| libc::sock_filter { code: code as u16, jt, jf, k };
    let is_exit =
        by(libc::BPF_JMP | libc::BPF_JEQ | libc::BPF_K, 0, 1, libc::SYS_exit_group as u32);
    let mut filter = [
        // The number of the call.
        by(libc::BPF_LD | libc::BPF_W | libc::BPF_ABS, 0, 0, 0),
        is_exit,
        by(libc::BPF_RET | libc::BPF_K, 0, 0, libc::SECCOMP_RET_ALLOW),
        by(libc::BPF_RET | libc::BPF_K, 0, 0, libc::SECCOMP_RET_KILL_PROCESS),
    ];
    let program = libc::sock_fprog { len: 4, filter: filter.as_mut_ptr() };
    // SAFETY: the program lies in memory as long as the kernel reads it.
    let set = unsafe {
        libc::prctl(libc::PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0);
        libc::prctl(libc::PR_SET_SECCOMP, libc::SECCOMP_MODE_FILTER, &raw const program, 0, 0)
    };
    assert_eq!(set, 0);
}

/// The golden count: an operation on guarded metadata of a pool in shadowed mode makes no system
/// call and takes no fault.
#[test]
fn operations_make_no_system_call() {
    const SIGSYS: i32 = 31;
    for at_rest in KINDS {
        for (task, ends) in [("Hidden", None), ("Mprotect", Some(SIGSYS))] {
            let dir = directory();
            let path = dir.path().join("store");
            make(&path, at_rest);
            let (status, said) = ended(&mut with_task("protected_shadowed::quiet", task, &path));
            assert_eq!(status.signal(), ends, "{at_rest:?}, {task}: {said}");
            assert!(ends.is_some() || status.success(), "{said}");
        }
    }
}
