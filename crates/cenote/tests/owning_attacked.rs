//! Programs in safe code that try to give a block two owners, an owner no block, or a step no end.

use crate::owning::{
    Forest, List, Node, blocks, forest, grow, kinds, list_of, push, values, whole,
};
use cenote::ptr::FieldOffset;
use cenote::{
    Error, ExportOptions, ImportOptions, Owned, Pool, Reader, ReclaimOptions, Result, Store, field,
};
use cenote_testkit::directories::directory;
use cenote_testkit::random;
use core::ops::ControlFlow;
use core::time::Duration;

const FIRST: FieldOffset<List, Owned<Node>> = field!(List, first);
const NEXT: FieldOffset<Node, Owned<Node>> = field!(Node, next);

fn refusal<T>() -> Result<T> {
    Err(Error::NotInTransaction { pool: String::new() })
}

/// A list of so many nodes is put under its last one. Then something is done with an edge of the
/// circle, while so many heads are in use.
fn circle(pool: &Pool, len: u64, heads: u64, what: u32) -> Result<()> {
    let list = list_of(pool, len)?;
    pool.write(|tx| -> Result<()> {
        let top = tx.get(list)?.first.get().expect("not empty");
        let mut last = top;
        while let Some(node) = tx.get(last)?.next.get() {
            last = node;
        }
        tx.take_owned(list, FIRST)?.put(last, NEXT)?;
        let two = |tx: &mut cenote::Tx<'_>| push(tx, list, 1).and_then(|_| push(tx, list, 2));
        for _ in 0..heads {
            two(tx)?;
            tx.free_owned(list, FIRST)?;
        }
        match what {
            0 => assert!(tx.free_owned(top, NEXT)?),
            1 => drop(tx.put_owned(top, NEXT, Node { value: 7, next: Owned::EMPTY })?),
            2 => drop(tx.take_owned(top, NEXT)?),
            _ => {
                two(tx)?;
                tx.take_owned(list, FIRST)?.put(top, NEXT)?;
            }
        }
        Ok(())
    })?;
    whole(pool)?;
    pool.finish_frees()?;
    // The list, the directory of roots, its entry, and what keeps the heads.
    assert_eq!((whole(pool)?, blocks(pool)?), (0, 4), "{len} nodes, {heads} heads, {what}");
    Ok(())
}

#[test]
fn a_circle_that_is_opened_is_freed_whole_also_if_all_heads_are_in_use() -> Result<()> {
    for len in [1, 2, 3] {
        for heads in [0, 3, 520] {
            for what in 0..4 {
                let dir = directory();
                let pool = Store::open(dir.path())?.create_pool("p", &kinds()[0])?;
                circle(&pool, len, heads, what)?;
            }
        }
    }
    Ok(())
}

#[test]
fn an_attempt_that_fails_frees_nothing_that_an_owner_or_a_name_leads_to() -> Result<()> {
    let dir = directory();
    let pool = Store::open(dir.path())?.create_pool("p", &kinds()[0])?;
    let list = list_of(&pool, 0)?;
    for named in [false, true] {
        let done = pool.write(|tx| {
            let failed = tx.attempt(|tx| {
                let value = tx.alloc(7u64)?;
                if named {
                    tx.set_named_root("seven", Some(value))?;
                } else {
                    tx.put_owned(list, FIRST, Node { value: 1, next: Owned::EMPTY })?;
                }
                refusal::<()>()
            });
            assert!(failed.is_err());
            // And ignores it.
            Ok::<_, Error>(())
        });
        assert!(matches!(done, Err(Error::HalfDone { .. })), "{done:?}");
        assert_eq!((pool.named_roots()?, values(&pool.read()?, list)?), (vec![], vec![]));
        assert_eq!(whole(&pool)?, 0);
    }
    // One that has only allocated is given back.
    pool.write(|tx| {
        assert!(tx.attempt(|tx| tx.alloc(7u64).and_then(|_| refusal::<()>())).is_err());
        push(tx, list, 1).map(drop)
    })?;
    assert_eq!((values(&pool.read()?, list)?, whole(&pool)?), (vec![1], 0));
    Ok(())
}

/// Moves and frees trees of a forest between the slices of a reclaim.
fn reclaimed_beside(store: &Store) -> Result<u64> {
    let pool = store.pool("p")?;
    let root = pool.read()?.root_at::<Forest>(1)?.expect("a forest");
    let (mut slices, mut state) = (0, 77);
    let mut progress = |_: &cenote::ReclaimProgress| {
        slices += 1;
        let done = pool.write(|tx| -> Result<()> {
            let mut at = || random::next(&mut state) as usize % 40;
            let place = |at| field!(Forest, trees).element(at).expect("one of 40");
            let (a, b) = (place(at()), place(at()));
            match at() % 3 {
                0 => tx.free_owned(root, a).map(drop),
                1 => tx.take_owned(root, a)?.put(root, b),
                _ => grow(tx, root, 15, &mut state).map(drop),
            }
        });
        match done {
            Ok(()) => ControlFlow::Continue(()),
            Err(error) => panic!("{error}"),
        }
    };
    let mut options = ReclaimOptions::default();
    options.hold = Duration::ZERO;
    options.progress = Some(&mut progress);
    assert_eq!(pool.reclaim_with(options)?.blocks, 0);
    whole(&pool)?;
    pool.write(|tx| tx.set_root_at::<Forest>(1, None).and_then(|()| tx.free(root)))?;
    pool.finish_frees()?;
    assert_eq!((whole(&pool)?, blocks(&pool)?), (0, 4));
    Ok(slices)
}

#[test]
fn a_reclaim_takes_nothing_that_moves_while_it_marks() -> Result<()> {
    for options in [&kinds()[0], &kinds()[3]] {
        let dir = directory();
        {
            let pool = Store::open(dir.path())?.create_pool("p", options)?;
            let list = list_of(&pool, 300)?;
            let root = pool.write(|tx| tx.alloc(forest()))?;
            pool.write(|tx| tx.set_root_at(1, Some(root)))?;
            pool.write(|tx| grow(tx, root, 600, &mut 5).map(drop))?;
            pool.write(|tx| tx.free_owned(list, FIRST).map(drop))?;
        }
        assert!(reclaimed_beside(&Store::open(dir.path())?)? > 100);
    }
    Ok(())
}

#[test]
fn clones_and_archives_keep_what_waits() -> Result<()> {
    let (dir, elsewhere) = (directory(), directory());
    let store = Store::open(dir.path())?;
    let pool = store.create_pool("p", &kinds()[0])?;
    let list = list_of(&pool, 300)?;
    let root = pool.write(|tx| tx.alloc(forest()))?;
    pool.write(|tx| grow(tx, root, 300, &mut 5).map(drop))?;
    pool.write(|tx| tx.free(root))?;
    pool.write(|tx| tx.free_owned(list, FIRST).map(drop))?;
    let waiting = whole(&pool)?;
    assert!(waiting > 400);
    drop(pool);
    let clone = |pool: Pool| -> Result<()> {
        assert_eq!((whole(&pool)?, pool.finish_frees()?), (waiting, waiting));
        assert_eq!((whole(&pool)?, blocks(&pool)?), (0, 4));
        Ok(())
    };
    assert!(store.clone_pool("p", "moved")?.moved);
    clone(store.pool("moved")?)?;
    let (archive, _) = store.export(&["p"], Vec::new(), ExportOptions::default())?;
    let other = Store::open(elsewhere.path())?;
    other.import(&archive[..], ImportOptions::default())?;
    clone(other.pool("p")?)
}
