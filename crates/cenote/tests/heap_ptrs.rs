//! Heap pointers in safe code (POS-9): they stay right when their pool moves, in pools of every
//! kind; tracing follows them; and what they must not lead to is refused.

use crate::archives::{names, store_with_window, window};
use crate::support::directory;
use crate::windows::Taken;
use cenote::{
    Access, CopyOptions, Error, ExportOptions, FormatOptions, HeapKind, HeapPtr, MediumOptions,
    OpenOptions, Persist, Pool, PoolMode, PoolOptions, Ptr, Reader, RealMedium, Result, Store,
    field,
};
use cenote_layout::pointer::{PointerKind, RegionAddress};
use cenote_medium::planted::{Bug, PointerBug, plant};
use std::sync::Arc;

#[derive(Persist)]
#[persist(name = "heap_ptrs::Node")]
struct Node {
    value: u64,
    next: HeapPtr<Node>,
    side: [HeapPtr<Node>; 2],
    pad: [u64; 100],
}

fn node(value: u64, next: HeapPtr<Node>) -> Node {
    Node { value, next, side: [HeapPtr::NULL, next], pad: [value; 100] }
}

#[derive(Persist)]
#[persist(name = "heap_ptrs::Link")]
#[repr(u8)]
enum Link {
    Missing,
    To { weight: u32, to: HeapPtr<Node> },
}

const LEN: u64 = 1500;

fn kinds() -> [(&'static str, PoolOptions); 6] {
    let small = PoolOptions { puddle_size: 256 << 10, ..PoolOptions::default() };
    let logged = PoolOptions { heap: HeapKind::Logged, ..PoolOptions::default() };
    let wear = PoolOptions { heap: HeapKind::WEAR, ..PoolOptions::default() };
    let shadowed =
        |options: &PoolOptions| PoolOptions { mode: PoolMode::Shadowed, ..options.clone() };
    [
        ("traced", small.clone()),
        ("traced, shadowed", shadowed(&small)),
        ("logged", logged.clone()),
        ("logged, shadowed", shadowed(&logged)),
        ("wear", wear.clone()),
        ("wear, shadowed", shadowed(&wear)),
    ]
}

/// A list of so many nodes, to each of which only a heap pointer leads.
fn list(store: &Store, name: &str, options: &PoolOptions, len: u64) -> Result<Pool> {
    let pool = store.create_pool(name, options)?;
    let mut next = HeapPtr::NULL;
    for from in (0..len).step_by(100) {
        next = pool.write(|tx| -> Result<_> {
            let mut next = next;
            for value in from..len.min(from + 100) {
                let this = tx.alloc(node(value, next))?;
                next = tx.heap_ptr(this)?;
            }
            tx.set_heap_root(next)?;
            Ok(next)
        })?;
    }
    Ok(pool)
}

/// The list's values, from the last to the first.
fn values(pool: &Pool) -> Result<Vec<u64>> {
    let view = pool.read()?;
    let (mut out, mut at) = (Vec::new(), view.heap_root::<Node>()?);
    while let Some(this) = view.ptr_of(at)? {
        assert_eq!(view.heap_ptr(this)?, at, "there and back");
        assert_eq!(view.heap_ptr_at::<Node>(this.as_ptr().addr() as u64)?, at);
        let node = view.get(this)?;
        assert_eq!(node.side, [HeapPtr::NULL, node.next]);
        out.push(node.value);
        at = node.next;
    }
    out.reverse();
    Ok(out)
}

fn whole(pool: &Pool) -> Result<()> {
    assert_eq!(values(pool)?, (0..LEN).collect::<Vec<_>>(), "{}", pool.name());
    let report = pool.check()?;
    assert_eq!(report.leaked_blocks, 0, "{}: {report:?}", pool.name());
    assert!(report.trace.as_ref().is_some_and(|trace| trace.faults == 0), "{report:?}");
    Ok(())
}

#[test]
fn heap_pointers_are_right_after_close_and_open_in_pools_of_every_kind() -> Result<()> {
    let dir = directory();
    let store = Store::open(dir.path())?;
    for (name, options) in kinds() {
        let pool = list(&store, name, &options, LEN)?;
        whole(&pool)?;
        if options.heap == HeapKind::Traced {
            assert_eq!(pool.collect()?.freed_blocks, 0, "heap pointers alone lead to nodes");
        }
    }
    store.close()?;
    let store = Store::open(dir.path())?;
    for (name, _) in kinds() {
        whole(&store.pool_with(name, Access::ReadOnly)?)?;
    }
    Ok(())
}

#[test]
fn a_copy_has_heap_pointers_to_itself_and_those_to_other_pools() -> Result<()> {
    let dir = directory();
    let store = Store::open(dir.path())?;
    let other = list(&store, "other", &kinds()[0].1, 3)?;
    let outside = other.read()?.heap_root::<Node>()?;
    for (from, options) in kinds() {
        let pool = list(&store, from, &options, 300)?;
        pool.write(|tx| {
            let link = tx.alloc(Link::To { weight: 1, to: outside })?;
            tx.set_root_at(7, Some(link))
        })?;
        for (kind, options) in kinds() {
            let to = format!("{kind}, a copy of {from}");
            let mut options = CopyOptions::new(options);
            // A pointer's two words do not fit into every batch.
            options.batch = 3;
            store.copy_pool(from, &to, options)?;
            let pool = store.pool(&to)?;
            assert_eq!(values(&pool)?, (0..300).collect::<Vec<_>>(), "{to}");
            let view = pool.read()?;
            let link = view.root_at::<Link>(7)?.expect("the link");
            assert!(matches!(view.get(link)?, Link::To { weight: 1, to } if *to == outside));
            let first = view.ptr_of(view.heap_root::<Node>()?)?.expect("a node");
            assert!(store.pool(from)?.read()?.get(first).is_err(), "a node of its own");
            assert!(pool.check()?.is_sound());
        }
    }
    Ok(())
}

#[test]
fn heap_pointers_are_right_when_the_window_moves() -> Result<()> {
    let dir = directory();
    let base = window();
    let store = store_with_window(dir.path(), base);
    let mut kept = Vec::new();
    for (name, options) in &kinds() {
        let pool = list(&store, name, options, LEN)?;
        let view = pool.read()?;
        kept.push((*name, view.heap_root::<Node>()?, view.root::<Node>()?));
    }
    store.close()?;
    let _taken = Taken::new(base);
    let store = Store::open(dir.path())?;
    assert_eq!(store.report().window_moved_from, Some(base));
    for (name, heap_ptr, before) in kept {
        let pool = store.pool(name)?;
        whole(&pool)?;
        // One that the program kept, too, and its node has another address.
        let view = pool.read()?;
        let now = view.ptr_of(heap_ptr)?;
        assert_eq!((now, now != before), (view.root::<Node>()?, true));
        drop(view);
        drop(pool);
        store.randomize_pool(name)?;
        whole(&store.pool(name)?)?;
    }
    Ok(())
}

/// A pool that comes to another store and beside its original; whether all of it is right.
fn imported(mode: PoolMode) -> Result<()> {
    let (here, there) = (directory(), directory());
    let store = store_with_window(here.path(), window());
    let other = store_with_window(there.path(), window());
    drop(list(&store, "list", &PoolOptions { mode, ..kinds()[0].1.clone() }, LEN)?);
    let (archive, _) = store.export(&["list"], Vec::new(), ExportOptions::default())?;
    // So that the pool gets another number there.
    drop(other.pool("first")?);
    other.import(archive.as_slice(), names(&["copy"]))?;
    store.import(archive.as_slice(), names(&["copy"]))?;
    let original = store.pool("list")?;
    for store in [&store, &other] {
        let copy = store.pool("copy")?;
        whole(&copy)?;
        let first = copy.read()?.heap_root::<Node>()?.place().expect("not null");
        assert_eq!(first.pool, copy.id(), "the number of its own pool");
        assert_ne!(copy.id(), original.id());
    }
    whole(&original)
}

#[test]
fn heap_pointers_are_right_after_an_import() -> Result<()> {
    imported(PoolMode::Direct)?;
    imported(PoolMode::Shadowed)
}

#[test]
fn planted_a_heap_pointer_that_keeps_the_number_of_its_pool_is_found() {
    plant(Bug::Pointer(PointerBug::HeapIdKept));
    let failed = std::panic::catch_unwind(|| imported(PoolMode::Direct));
    plant(Bug::None);
    assert!(!matches!(failed, Ok(Ok(()))), "nothing noticed");
}

#[test]
fn planted_a_trace_that_follows_no_heap_pointers_is_found() -> Result<()> {
    let dir = directory();
    let store = Store::open(dir.path())?;
    let pool = list(&store, "list", &kinds()[0].1, 10)?;
    plant(Bug::Pointer(PointerBug::HeapPtrNotFollowed));
    let leaked = pool.check()?.leaked_blocks;
    plant(Bug::None);
    assert_eq!(leaked, 9);
    Ok(())
}

/// What is refused of a heap pointer, in pools of this kind.
fn refused(options: &PoolOptions) -> Result<()> {
    let dir = directory();
    let store = Store::open(dir.path())?;
    let (pool, elsewhere) = (list(&store, "p", options, 3)?, list(&store, "q", options, 3)?);
    let gone = pool.write(|tx| {
        let this = tx.alloc(node(9, HeapPtr::NULL))?;
        tx.heap_ptr(this)
    })?;
    pool.write(|tx| {
        let this = tx.ptr_of(gone)?.expect("not null");
        tx.free(this)
    })?;
    let foreign = elsewhere.read()?.heap_root::<Node>()?;
    let view = pool.read()?;
    let dangling = |ptr: HeapPtr<Node>| {
        let found = view.ptr_of(ptr);
        assert!(matches!(found, Err(Error::Dangling { .. })), "{ptr:?}: {found:?}");
    };
    dangling(gone);
    dangling(foreign);
    let first = view.root::<Node>()?.expect("a node");
    for by in [8, 16, 64, 512] {
        let found = view.heap_ptr_at::<Node>(first.addr() + by);
        assert!(matches!(found, Err(Error::Dangling { .. })), "inside: {found:?}");
    }
    for addr in [1, 8, foreign_addr(&elsewhere)?, 1 << 47, u64::MAX] {
        let found = view.heap_ptr_at::<Node>(addr);
        assert!(matches!(found, Err(Error::Dangling { .. })), "{addr:#x}: {found:?}");
    }
    // Another type, by either way.
    let found = view.heap_ptr_at::<u64>(first.addr());
    assert!(matches!(found, Err(Error::Dangling { .. })), "{found:?}");
    assert_eq!(view.ptr_of(HeapPtr::<Node>::NULL)?, None);
    assert_eq!(view.heap_ptr_at::<Node>(0)?, HeapPtr::NULL);
    drop(view);
    // Into a root, a pointer that is refused is not put.
    let set = pool.write(|tx| tx.set_heap_root_at(5, gone));
    assert!(matches!(set, Err(Error::Dangling { .. })), "{set:?}");
    assert!(matches!(pool.write(|tx| tx.set_heap_root(foreign)), Err(Error::Dangling { .. })));
    assert_eq!(pool.read()?.heap_root_at::<Node>(5)?, HeapPtr::NULL);
    pool.write(|tx| {
        let root = tx.heap_root::<Node>()?;
        tx.set_heap_root_at(5, root)?;
        tx.set_heap_root::<Node>(HeapPtr::NULL)
    })?;
    let view = pool.read()?;
    assert_eq!(view.heap_root::<Node>()?, HeapPtr::NULL);
    assert_eq!(view.get(view.ptr_of(view.heap_root_at::<Node>(5)?)?.expect("set"))?.value, 2);
    drop(view);
    // In both pools at once both are right; and a removed pool is no place.
    store.write(&[&pool, &elsewhere], |tx| -> Result<()> {
        let there = tx.ptr_of(foreign)?.expect("not null");
        tx.set(there, field!(Node, value), 77)
    })?;
    assert_eq!(values(&elsewhere)?, [0, 1, 77]);
    drop(elsewhere);
    store.remove_pool("q")?;
    let view = pool.read()?;
    assert!(matches!(view.ptr_of(foreign), Err(Error::NoPlace { .. })));
    Ok(())
}

fn foreign_addr(pool: &Pool) -> Result<u64> {
    Ok(pool.read()?.root::<Node>()?.map_or(0, Ptr::addr))
}

#[test]
fn wrong_heap_pointers_are_refused_in_pools_of_every_kind() -> Result<()> {
    kinds().iter().try_for_each(|(_, options)| refused(options))
}

#[test]
fn planted_a_conversion_without_a_check_is_found() {
    plant(Bug::Pointer(PointerBug::HeapPtrUnchecked));
    let failed = std::panic::catch_unwind(|| refused(&kinds()[0].1));
    plant(Bug::None);
    assert!(!matches!(failed, Ok(Ok(()))), "nothing noticed");
}

/// Bytes that no conversion makes: what is read from media may be anything.
#[test]
fn a_heap_pointer_of_any_bytes_is_refused_or_leads_to_a_live_value_of_its_type() -> Result<()> {
    for (_, options) in kinds() {
        let dir = directory();
        let store = Store::open(dir.path())?;
        let pool = list(&store, "p", &options, 3)?;
        let view = pool.read()?;
        let root = view.heap_root::<Node>()?;
        let place = root.place().expect("not null");
        let made = |words: [u64; 2]| -> HeapPtr<Node> {
            // SAFETY: two words, of which any are a heap pointer.
            unsafe { core::mem::transmute(words) }
        };
        let [heap, word] = place.to_pair().expect("it fits");
        assert_eq!(made([heap, word]), root);
        let mut live = 0;
        for bit in 0..128 {
            let flipped = [heap ^ (1 << bit.min(63)), word];
            let other = [heap, word ^ (1u64 << (bit % 64))];
            for ptr in [made(flipped), made(other)] {
                match view.ptr_of(ptr) {
                    Ok(found) => live += u64::from(view.get(found.expect("not null")).is_ok()),
                    Err(Error::NoPlace { .. } | Error::Dangling { .. }) => {}
                    Err(error) => panic!("{ptr:?}: {error}"),
                }
            }
        }
        assert!(live < 8, "{live} flipped pointers lead to nodes");
        let outside = RegionAddress { offset: (1 << 48) - 8, ..place };
        let outside = made(outside.to_pair().expect("it fits"));
        assert!(matches!(view.ptr_of(outside), Err(Error::NoPlace { .. })));
        let metadata = RegionAddress { offset: 4096, puddle: 0, ..place };
        let metadata = made(metadata.to_pair().expect("it fits"));
        assert!(matches!(view.ptr_of(metadata), Err(Error::Dangling { .. })));
    }
    Ok(())
}

#[test]
fn records_say_where_heap_pointers_are() {
    let heap = |record: &cenote::persist::TypeRecord| -> Vec<(u64, u64, u64)> {
        record.check().expect("a proper record");
        assert!(record.pointers.iter().all(|field| field.kind == PointerKind::HEAP));
        record.pointers.iter().map(|field| (field.offset, field.count, field.stride)).collect()
    };
    let at = |field: usize| field as u64;
    let (next, side) = (std::mem::offset_of!(Node, next), std::mem::offset_of!(Node, side));
    let mut expected = vec![(at(next), 1, 16), (at(side), 2, 16)];
    expected.sort_unstable();
    let mut found = heap(&Node::record());
    found.sort_unstable();
    assert_eq!(found, expected);
    assert_eq!(heap(&Link::record()), [(8, 1, 16)]);
    assert!(Link::record().to_string().contains("heap pointer at 8"));
    let both = [Link::Missing, Link::To { weight: 1, to: HeapPtr::NULL }];
    assert!(both.iter().all(|link| match link {
        Link::Missing => true,
        Link::To { weight, to } => *weight == 1 && to.is_null(),
    }));
}

#[test]
fn conversions_flush_nothing_and_fence_nothing() -> Result<()> {
    let dir = directory();
    let options = MediumOptions { create: true, force_power: true, ..MediumOptions::default() };
    let medium = RealMedium::open(dir.path(), &options)?;
    cenote_store::format(Arc::new(medium), &FormatOptions::default())?;
    let medium = RealMedium::open(dir.path(), &options)?;
    let store = Store::open_on(Arc::new(medium), &OpenOptions::default())?;
    for (name, options) in kinds() {
        let pool = list(&store, name, &options, 100)?;
        let view = pool.read()?;
        let before = cenote_medium::counters::snapshot();
        let started = std::time::Instant::now();
        let mut steps = 0;
        for _ in 0..100 {
            let mut at = view.heap_root::<Node>()?;
            while let Some(this) = view.ptr_of(at)? {
                (at, steps) = (view.get(this)?.next, steps + 1);
            }
        }
        println!("{name}: {} ns a step", started.elapsed().as_nanos() / steps);
        let after = cenote_medium::counters::snapshot();
        assert_eq!((after.flushes, after.fences), (before.flushes, before.fences), "{name}");
        assert_eq!(steps, 10_000);
    }
    Ok(())
}
