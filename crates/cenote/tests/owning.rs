//! Owning edges: what frees a value frees all that it owns, in short transactions that need no
//! space, and no block ever has two owners.

use cenote::{
    Error, HeapKind, HeapReport, Owned, Persist, Pool, PoolMode, PoolOptions, Ptr, Reader, Result,
    Store, Taken, Tx, TxError, field,
};
use cenote_layout::values::Rule;
use cenote_medium::planted::{Bug, OwnedBug, plant};
use cenote_testkit::directories::directory;
use cenote_testkit::random::next;

#[derive(Persist)]
#[persist(name = "owned::List")]
pub(crate) struct List {
    pub(crate) first: Owned<Node>,
}

#[derive(Persist)]
#[persist(name = "owned::Node", owned)]
pub(crate) struct Node {
    pub(crate) value: u64,
    pub(crate) next: Owned<Node>,
}

#[derive(Persist)]
#[persist(name = "owned::Forest")]
pub(crate) struct Forest {
    pub(crate) trees: [Owned<Tree>; 40],
    pub(crate) list: List,
}

/// Owns blocks of three types, one of them of its own.
#[derive(Persist)]
#[persist(name = "owned::Tree", owned)]
#[repr(C)]
pub(crate) struct Tree {
    pub(crate) value: u64,
    pub(crate) below: [Owned<Tree>; 3],
    pub(crate) leaf: Owned<Leaf>,
    pub(crate) list: List,
}

#[derive(Persist)]
#[persist(name = "owned::Leaf", owned)]
pub(crate) struct Leaf {
    pub(crate) truth: bool,
}

impl Tree {
    pub(crate) fn new(value: u64) -> Self {
        Self { value, below: Default::default(), leaf: Owned::EMPTY, list: List::new() }
    }
}

impl List {
    pub(crate) fn new() -> Self {
        Self { first: Owned::EMPTY }
    }
}

pub(crate) fn forest() -> Forest {
    Forest { trees: [const { Owned::EMPTY }; 40], list: List::new() }
}

/// Pools of each kind of heap, small ones, and one in shadowed mode.
pub(crate) fn kinds() -> Vec<PoolOptions> {
    let options = PoolOptions { puddle_size: 1 << 20, ..PoolOptions::default() };
    let of = |heap| PoolOptions { heap, ..options.clone() };
    vec![
        of(HeapKind::Traced),
        of(HeapKind::Logged),
        of(HeapKind::Wear { wait_ms: 0 }),
        PoolOptions { mode: PoolMode::Shadowed, ..options.clone() },
    ]
}

pub(crate) fn each_kind(test: impl Fn(&Store, &Pool) -> Result<()>) -> Result<()> {
    for options in kinds() {
        println!("{:?}, {:?}", options.heap, options.mode);
        let dir = directory();
        let store = Store::open(dir.path())?;
        store.create_pool("other", &options)?;
        test(&store, &store.create_pool("p", &options)?)?;
    }
    Ok(())
}

/// A node before the others.
pub(crate) fn push(tx: &mut Tx<'_>, list: Ptr<List>, value: u64) -> Result<Ptr<Node>> {
    let mut rest = tx.take_owned(list, field!(List, first))?;
    let node = Node { value, next: Owned::EMPTY };
    let node = rest.tx().put_owned(list, field!(List, first), node)?;
    rest.put(node, field!(Node, next))?;
    Ok(node)
}

/// A list of so many nodes, which root 0 leads to.
pub(crate) fn list_of(pool: &Pool, count: u64) -> Result<Ptr<List>> {
    let list = pool.write(|tx| {
        let list = tx.alloc(List::new())?;
        tx.set_root(list)?;
        Ok::<_, Error>(list)
    })?;
    for from in (0..count).step_by(500) {
        pool.write(|tx| {
            (from..count.min(from + 500)).try_for_each(|i| push(tx, list, i).map(drop))
        })?;
    }
    Ok(list)
}

pub(crate) fn values(reader: &impl Reader, list: Ptr<List>) -> Result<Vec<u64>> {
    let (mut out, mut at) = (Vec::new(), reader.get(list)?.first.get());
    while let Some(node) = at {
        let node = reader.get(node)?;
        out.push(node.value);
        at = node.next.get();
    }
    Ok(out)
}

/// Nothing is wrong with a pool; how many of its blocks wait.
pub(crate) fn whole(pool: &Pool) -> Result<u64> {
    let report: HeapReport = pool.check()?;
    assert_eq!((report.leaked_blocks, report.trace.map(|trace| trace.faults)), (0, Some(0)));
    let values = report.values.expect("nothing has leaked");
    assert_eq!(values.findings, []);
    Ok(values.waiting)
}

pub(crate) fn blocks(pool: &Pool) -> Result<u64> {
    Ok(pool.stats()?.blocks)
}

/// A tree of so many blocks, at a random place of a forest.
pub(crate) fn grow(
    tx: &mut Tx<'_>,
    forest: Ptr<Forest>,
    count: u64,
    state: &mut u64,
) -> Result<u64> {
    let mut random = |below: u64| next(state) % below;
    let place = field!(Forest, trees).element(random(40) as usize).expect("one of 40");
    let mut trees = vec![tx.put_owned(forest, place, Tree::new(0))?];
    let mut made = 1;
    while made < count {
        let at = trees[random(trees.len() as u64) as usize];
        match random(5) {
            kind @ 0..3 => {
                let place = field!(Tree, below).element(kind as usize).expect("one of three");
                if tx.get(at)?.below[kind as usize].is_empty() {
                    trees.push(tx.put_owned(at, place, Tree::new(made))?);
                    made += 1;
                }
            }
            3 => {
                made += u64::from(tx.get(at)?.leaf.is_empty());
                tx.put_owned(at, field!(Tree, leaf), Leaf { truth: true })?;
            }
            _ => {
                let first = field!(Tree, list.first);
                let mut rest = tx.take_owned(at, first)?;
                let node = Node { value: made, next: Owned::EMPTY };
                let node = rest.tx().put_owned(at, first, node)?;
                rest.put(node, field!(Node, next))?;
                made += 1;
            }
        }
    }
    Ok(made)
}

#[test]
fn a_long_list_is_dropped_without_recursion_and_without_a_long_transaction() -> Result<()> {
    const COUNT: u64 = 100_000;
    let dir = directory();
    let pool = Store::open(dir.path())?.pool("p")?;
    let list = list_of(&pool, COUNT)?;
    assert_eq!(values(&pool.read()?, list)?, (0..COUNT).rev().collect::<Vec<_>>());
    let before = blocks(&pool)?;
    assert!(pool.write(|tx| tx.free_owned(list, field!(List, first)))?);
    let done = before - blocks(&pool)?;
    assert!((1..=64).contains(&done), "the transaction freed {done}");
    assert_eq!(values(&pool.read()?, list)?, []);
    assert_eq!(whole(&pool)?, COUNT - done);
    // A stack on which no recursion of that depth would fit.
    let freed = std::thread::scope(|scope| {
        let small = std::thread::Builder::new().stack_size(256 << 10);
        let finishing = small.spawn_scoped(scope, || pool.finish_frees()).expect("a thread");
        finishing.join().expect("it does not panic")
    })?;
    assert_eq!((done + freed, blocks(&pool)?), (COUNT, before - COUNT));
    assert_eq!((pool.finish_frees()?, whole(&pool)?), (0, 0));
    Ok(())
}

fn trees_are_freed(store: &Store, pool: &Pool, seed: u64) -> Result<()> {
    let forest = pool.write(|tx| {
        let forest = tx.alloc(forest())?;
        tx.set_root(forest)?;
        tx.put_owned(forest, field!(Forest, trees).element(0).unwrap(), Tree::new(1))?;
        tx.free_owned(forest, field!(Forest, trees).element(0).unwrap())?;
        Ok::<_, Error>(forest)
    })?;
    let (empty, mut state) = (blocks(pool)?, seed);
    for round in 0..6 {
        // Some in places of others, which are freed then.
        for _ in 0..20 {
            pool.write(|tx| grow(tx, forest, 1 + next(&mut state) % 60, &mut state).map(drop))?;
        }
        whole(pool)?;
        if round % 2 == 0 {
            for at in 0..40 {
                let place = field!(Forest, trees).element(at).expect("one of 40");
                pool.write(|tx| tx.free_owned(forest, place).map(drop))?;
            }
            pool.finish_frees()?;
            assert_eq!((blocks(pool)?, whole(pool)?), (empty, 0), "seed {seed}");
        }
    }
    pool.write(|tx| {
        tx.set_root_at::<Forest>(0, None)?;
        tx.free(forest)
    })?;
    pool.finish_frees()?;
    assert_eq!((blocks(pool)?, whole(pool)?), (empty - 1, 0));
    let _ = store;
    Ok(())
}

#[test]
fn trees_of_several_types_are_freed_whole_in_pools_of_every_kind() -> Result<()> {
    each_kind(|store, pool| trees_are_freed(store, pool, 7))
}

#[test]
fn planted_faults_of_freeing_are_found() -> Result<()> {
    use OwnedBug::{ChildrenKept, NotInProportion, ReplacedKept, RestForgotten, TakenStays};
    for bug in [RestForgotten, ReplacedKept, TakenStays, ChildrenKept, NotInProportion] {
        let dir = directory();
        let store = Store::open(dir.path())?;
        let pool = store.create_pool("p", &kinds()[0])?;
        plant(Bug::Owned(bug));
        let test = || match bug {
            NotInProportion => in_proportion(&pool),
            _ => trees_are_freed(&store, &pool, 7),
        };
        let failed = std::panic::catch_unwind(std::panic::AssertUnwindSafe(test));
        plant(Bug::None);
        assert!(!matches!(failed, Ok(Ok(()))), "{bug:?}: nothing noticed");
    }
    Ok(())
}

fn in_proportion(pool: &Pool) -> Result<()> {
    let list = list_of(pool, 1000)?;
    pool.write(|tx| tx.free_owned(list, field!(List, first)).map(drop))?;
    let waiting = whole(pool)?;
    assert!(waiting > 900);
    let other = pool.write(|tx| tx.alloc(List::new()))?;
    pool.write(|tx| tx.set_root(other))?;
    pool.write(|tx| tx.free(list))?;
    let left = whole(pool)?;
    assert_eq!(left, waiting - 4, "two for what was allocated, two for what was freed");
    // Not for a transaction that does neither.
    pool.write(|tx| tx.set_root(other))?;
    assert_eq!(whole(pool)?, left);
    for i in 0..left {
        pool.write(|tx| push(tx, other, i).map(drop))?;
    }
    assert_eq!(whole(pool)?, 0, "later transactions have freed all");
    Ok(())
}

#[test]
fn later_transactions_free_in_proportion_to_what_they_allocate_and_free() -> Result<()> {
    each_kind(|_, pool| in_proportion(pool))
}

#[test]
fn what_is_taken_out_is_put_elsewhere_or_freed_and_never_kept() -> Result<()> {
    each_kind(|store, pool| {
        let (a, b) = (list_of(pool, 10)?, pool.write(|tx| tx.alloc(List::new()))?);
        pool.write(|tx| tx.set_root_at(1, Some(b)))?;
        let first = field!(List, first);
        let count = blocks(pool)?;
        // Put elsewhere.
        pool.write(|tx| tx.take_owned(a, first)?.put(b, first))?;
        let view = pool.read()?;
        assert_eq!((values(&view, a)?, values(&view, b)?.len()), (vec![], 10));
        drop(view);
        assert_eq!((blocks(pool)?, whole(pool)?), (count, 0));
        // An abort puts it back.
        let aborted = pool.write(|tx| {
            tx.take_owned(b, first)?.put(a, first)?;
            Err::<(), _>(Error::NotInTransaction { pool: String::new() })
        });
        assert!(aborted.is_err());
        assert_eq!(values(&pool.read()?, b)?.len(), 10);
        // Put over another value, which is freed.
        pool.write(|tx| push(tx, a, 77).map(drop))?;
        pool.write(|tx| tx.take_owned(b, first)?.put(a, first))?;
        assert_eq!((blocks(pool)?, values(&pool.read()?, a)?.len()), (count, 10));
        // Nothing, put over something.
        pool.write(|tx| {
            let mut nothing: Taken<'_, '_, Node> = tx.take_owned(b, first)?;
            assert!(nothing.get().is_none() && !nothing.free()?);
            push(nothing.tx(), b, 5)?;
            nothing.put(b, first)
        })?;
        assert_eq!((blocks(pool)?, values(&pool.read()?, b)?), (count, vec![]));
        // In another pool: refused, and dropped.
        let other = store.pool("other")?;
        let there = other.write(|tx| tx.alloc(List::new()))?;
        store.write(&[pool, &other], |tx| -> Result<()> {
            let mut taken = tx.take_owned(a, first)?;
            assert!(matches!(taken.put(there, first), Err(Error::OtherPool { .. })));
            assert!(taken.get().is_some(), "it is still here");
            Ok(())
        })?;
        pool.finish_frees()?;
        assert_eq!((blocks(pool)?, whole(pool)?), (count - 10, 0));
        Ok(())
    })
}

#[test]
fn a_full_pool_is_emptied() -> Result<()> {
    for options in kinds() {
        let dir = directory();
        let store = Store::open(dir.path())?;
        // A logged heap takes a part of its pool for metadata.
        let size = if options.heap == HeapKind::Logged { 4 << 20 } else { 1 << 20 };
        let options = PoolOptions { size_max: size, ..options };
        let pool = store.create_pool("p", &options)?;
        let list = list_of(&pool, 10)?;
        let (mut count, mut filled) = (10, Ok(()));
        while filled.is_ok() {
            filled = pool.write(|tx| push(tx, list, count).map(drop));
            count += u64::from(filled.is_ok());
        }
        assert!(matches!(filled, Err(Error::NoRoom { .. })), "{filled:?}");
        assert!(pool.write(|tx| tx.alloc([0u64; 64])).is_err());
        let full = blocks(&pool)?;
        pool.write(|tx| tx.free_owned(list, field!(List, first)).map(drop))?;
        pool.finish_frees()?;
        assert_eq!((blocks(&pool)?, whole(&pool)?), (full - count, 0), "{:?}", options.heap);
        pool.write(|tx| (0..100).try_for_each(|value| push(tx, list, value).map(drop)))?;
    }
    Ok(())
}

#[test]
fn a_check_names_both_owners_of_a_block() -> Result<()> {
    each_kind(|_, pool| {
        let list = list_of(pool, 10)?;
        let first = pool.read()?.get(list)?.first.get().expect("ten");
        let second = pool.read()?.get(first)?.next.get().expect("nine");
        let place = pool.write(|tx| {
            let at = list.field(field!(List, first)).cast::<u64>();
            // SAFETY: a word of a live value, logged; the heap has the block still.
            unsafe {
                tx.raw().add(at.cast(), 8)?;
                at.write(second.addr());
            }
            Ok::<_, Error>(at as u64)
        })?;
        let findings = pool.check()?.values.map(|values| values.findings);
        let findings = match findings {
            Some(findings) => findings,
            None => pool.check()?.values.expect("looked at").findings,
        };
        let named: Vec<_> = findings.iter().map(|found| (found.rule, found.found)).collect();
        assert_eq!(named, [(Rule::Owner, second.addr().into()); 2]);
        assert!(findings.iter().any(|found| found.at == place), "{findings:?}");
        Ok(())
    })
}

#[test]
fn the_list_is_no_root_that_programs_see_or_take_away() -> Result<()> {
    let dir = directory();
    let pool = Store::open(dir.path())?.create_pool("p", &kinds()[0])?;
    list_of(&pool, 3)?;
    assert_eq!(pool.named_roots()?, []);
    let hidden = cenote_layout::frees::FREES_ROOT;
    assert!(!pool.write(|tx| tx.remove_named_root(hidden))?);
    assert!(pool.named_root::<List>(hidden)?.is_none());
    let refused = pool.write(|tx| {
        let list = tx.alloc(List::new())?;
        tx.set_named_root(hidden, Some(list))
    });
    assert!(matches!(refused, Err(Error::RootName { .. })), "{refused:?}");
    assert_eq!(whole(&pool)?, 0);
    Ok(())
}

#[test]
fn nothing_is_put_into_an_owner_that_the_transaction_has_freed() -> Result<()> {
    each_kind(|_, pool| {
        let list = list_of(pool, 3)?;
        let refused = pool.write(|tx| {
            tx.set_root_at::<List>(0, None)?;
            tx.free(list)?;
            let node = Node { value: 1, next: Owned::EMPTY };
            tx.put_owned(list, field!(List, first), node)
        });
        let freed = |error: &Error| matches!(error, Error::Tx(TxError::AlreadyFreed { .. }));
        assert!(refused.as_ref().is_err_and(freed), "{refused:?}");
        let twice = pool.write(|tx| {
            tx.free(list)?;
            assert!(tx.free(list).as_ref().is_err_and(freed));
            // And ignores it.
            Ok::<_, Error>(())
        });
        assert!(matches!(twice, Err(Error::HalfDone { .. })), "{twice:?}");
        assert_eq!((values(&pool.read()?, list)?.len(), whole(pool)?), (3, 0));
        Ok(())
    })
}

#[test]
fn a_transaction_that_forgets_what_it_took_out_can_only_abort() -> Result<()> {
    each_kind(|_, pool| {
        let list = list_of(pool, 3)?;
        let forgotten = pool.write(|tx| {
            core::mem::forget(tx.take_owned(list, field!(List, first))?);
            Ok::<_, Error>(())
        });
        assert!(matches!(forgotten, Err(Error::HalfDone { .. })), "{forgotten:?}");
        let panicked = pool.write(|tx| {
            let caught = std::panic::catch_unwind(std::panic::AssertUnwindSafe(|| {
                let _taken = tx.take_owned(list, field!(List, first));
                panic!("of this test");
            }));
            assert!(caught.is_err());
            Ok::<_, Error>(())
        });
        assert!(matches!(panicked, Err(Error::HalfDone { .. })), "{panicked:?}");
        assert_eq!((values(&pool.read()?, list)?.len(), whole(pool)?), (3, 0));
        // Dropped, it is freed.
        pool.write(|tx| tx.take_owned(list, field!(List, first)).map(drop))?;
        pool.finish_frees()?;
        assert_eq!((values(&pool.read()?, list)?.len(), whole(pool)?), (0, 0));
        Ok(())
    })
}

#[test]
fn a_store_says_that_a_type_of_it_owns() -> Result<()> {
    use cenote_layout::superblock::{INCOMPAT_OWNED, Superblock};
    use zerocopy::FromBytes as _;
    let dir = directory();
    let says = || {
        let bytes = std::fs::read(dir.path().join("superblock")).expect("readable");
        let mut blocks = bytes.chunks_exact(4096).flat_map(Superblock::read_from_bytes);
        blocks.any(|block| block.prefix.incompat & INCOMPAT_OWNED != 0)
    };
    let pool = Store::open(dir.path())?.create_pool("p", &kinds()[0])?;
    pool.write(|tx| tx.alloc(7u64).map(drop))?;
    assert!(!says(), "older releases open it");
    pool.write(|tx| tx.alloc(List::new()).map(drop))?;
    assert!(says());
    Ok(())
}
