//! Blocks that wait to be freed: later openers and copies have them, and a program may change them
//! through pointers that it kept.

use crate::owning::{
    Forest, Leaf, List, Tree, blocks, each_kind, forest, grow, kinds, list_of, push, whole,
};
use cenote::{
    Access, CopyOptions, Error, OpenOptions, Owned, Pool, Ptr, Reader, Result, Store, field,
};
use cenote_medium::planted::{Bug, OwnedBug, plant};
use cenote_testkit::directories::directory;

#[test]
fn more_lists_than_the_pool_has_heads_for_are_freed_in_one_transaction() -> Result<()> {
    let dir = directory();
    let pool = Store::open(dir.path())?.create_pool("p", &kinds()[0])?;
    let lists: Vec<Ptr<List>> = pool.write(|tx| {
        (0..600u64)
            .map(|i| {
                let list = tx.alloc(List::new())?;
                (0..1 + i % 7).try_for_each(|value| push(tx, list, value).map(drop))?;
                Ok(list)
            })
            .collect::<Result<_>>()
    })?;
    let before = blocks(&pool)?;
    pool.write(|tx| lists.iter().try_for_each(|list| tx.free(*list)))?;
    pool.finish_frees()?;
    let made: u64 = (0..600).map(|i| 2 + i % 7).sum();
    assert_eq!((blocks(&pool)?, whole(&pool)?), (before - made, 0));
    Ok(())
}

/// A program keeps pointers to what waits, and changes it.
fn changed_while_waiting(pool: &Pool) -> Result<()> {
    let list = list_of(pool, 300)?;
    let forest = pool.write(|tx| tx.alloc(forest()))?;
    pool.write(|tx| tx.set_root_at(1, Some(forest)))?;
    let place = field!(Forest, trees).element(3).expect("one of 40");
    let (mut state, mut kept) = (3, Vec::new());
    pool.write(|tx| grow(tx, forest, 400, &mut state).map(drop))?;
    let view = pool.read()?;
    let trees: Vec<_> = view.get(forest)?.trees.iter().filter_map(Owned::get).collect();
    kept.extend(trees.iter().copied());
    for tree in trees {
        kept.extend(view.get(tree)?.below.iter().filter_map(Owned::get));
    }
    drop(view);
    pool.write(|tx| {
        tx.free_owned(list, field!(List, first))?;
        (0..40).try_for_each(|at| {
            tx.free_owned(forest, field!(Forest, trees).element(at).expect("one of 40")).map(drop)
        })
    })?;
    let mut changed = 0;
    for round in 0..200 {
        let tree = kept[round % kept.len()];
        let below = field!(Tree, below).element(round % 3).expect("one of three");
        let done = pool.write(|tx| -> Result<()> {
            match round % 4 {
                0 => tx.put_owned(tree, below, Tree::new(9)).map(drop),
                1 => tx.free_owned(tree, below).map(drop),
                2 => tx.take_owned(tree, below)?.put(forest, place),
                _ => tx.put_owned(tree, field!(Tree, leaf), Leaf { truth: false }).map(drop),
            }
        });
        match done {
            Ok(()) => changed += 1,
            Err(Error::Dangling { .. }) => {}
            Err(error) => return Err(error),
        }
        whole(pool)?;
    }
    assert!(changed > 10, "{changed} changes of what waited");
    pool.write(|tx| tx.free_owned(forest, place).map(drop))?;
    pool.finish_frees()?;
    pool.write(|tx| {
        tx.set_root_at::<Forest>(1, None)?;
        tx.set_root_at::<List>(0, None)?;
        tx.free(forest)?;
        tx.free(list)
    })?;
    // The directory of roots, the entry of the list, and the list.
    assert_eq!((whole(pool)?, blocks(pool)?), (0, 3));
    Ok(())
}

#[test]
fn what_waits_may_be_changed_through_pointers_that_were_kept() -> Result<()> {
    each_kind(|_, pool| changed_while_waiting(pool))
}

/// The block of the head gets another block where the steps have been.
fn filled_before_the_cursor(pool: &Pool) -> Result<()> {
    let below = |at| field!(Tree, below).element(at).expect("one of three");
    let place = field!(Forest, trees).element(0).expect("one of 40");
    let (forest, tree) = pool.write(|tx| -> Result<_> {
        let forest = tx.alloc(forest())?;
        tx.set_root(forest)?;
        let tree = tx.put_owned(forest, place, Tree::new(0))?;
        for at in 0..3 {
            tx.put_owned(tree, below(at), Tree::new(1))?;
        }
        Ok((forest, tree))
    })?;
    // Two steps free what is behind the first edge.
    pool.write(|tx| tx.free_owned(forest, place).map(drop))?;
    assert_eq!(whole(pool)?, 2);
    let left = pool.read()?.get(tree)?.below.iter().filter(|edge| !edge.is_empty()).count();
    assert_eq!(left, 1);
    pool.write(|tx| tx.put_owned(tree, below(1), Tree::new(2)).map(drop))?;
    pool.finish_frees()?;
    assert_eq!(whole(pool)?, 0);
    Ok(())
}

#[test]
fn what_is_put_where_the_steps_have_been_is_freed_too() -> Result<()> {
    each_kind(|_, pool| filled_before_the_cursor(pool))
}

#[test]
fn planted_a_step_that_believes_its_cursor_is_found() -> Result<()> {
    let dir = directory();
    let pool = Store::open(dir.path())?.create_pool("p", &kinds()[0])?;
    plant(Bug::Owned(OwnedBug::CursorBelieved));
    let test = std::panic::AssertUnwindSafe(|| filled_before_the_cursor(&pool));
    let failed = std::panic::catch_unwind(test);
    plant(Bug::None);
    assert!(!matches!(failed, Ok(Ok(()))), "nothing noticed");
    Ok(())
}

#[test]
fn a_later_opener_goes_on_and_one_that_only_reads_changes_nothing() -> Result<()> {
    let dir = directory();
    {
        let pool = Store::open(dir.path())?.create_pool("p", &kinds()[0])?;
        let list = list_of(&pool, 1000)?;
        pool.write(|tx| tx.free_owned(list, field!(List, first)).map(drop))?;
    }
    let read_only = OpenOptions { access: Access::ReadOnly, ..OpenOptions::default() };
    {
        let store = Store::open_with(dir.path(), &read_only)?;
        let pool = store.pool_with("p", Access::ReadOnly)?;
        assert!(whole(&pool)? > 900);
        assert!(pool.finish_frees().is_err());
    }
    let pool = Store::open(dir.path())?.pool("p")?;
    assert!(whole(&pool)? > 900);
    assert!(pool.finish_frees()? > 900);
    assert_eq!((whole(&pool)?, blocks(&pool)?), (0, 4));
    Ok(())
}

#[test]
fn copies_keep_what_waits() -> Result<()> {
    let dir = directory();
    let store = Store::open(dir.path())?;
    let pool = store.create_pool("p", &kinds()[0])?;
    let list = list_of(&pool, 500)?;
    let forest = pool.write(|tx| tx.alloc(forest()))?;
    pool.write(|tx| tx.set_root_at(1, Some(forest)))?;
    pool.write(|tx| grow(tx, forest, 300, &mut 5).map(drop))?;
    pool.write(|tx| tx.free(forest).and_then(|()| tx.set_root_at::<Forest>(1, None)))?;
    pool.write(|tx| tx.free_owned(list, field!(List, first)).map(drop))?;
    let waiting = whole(&pool)?;
    assert!(waiting > 600);
    for (to, options) in ["traced", "logged", "wear", "shadowed"].iter().zip(kinds()) {
        store.copy_pool("p", to, CopyOptions::new(options))?;
        let copy = store.pool(to)?;
        assert_eq!(whole(&copy)?, waiting, "{to}");
        assert_eq!(copy.finish_frees()? > 600, whole(&copy)? == 0);
        assert_eq!(blocks(&copy)?, 4, "{to}");
    }
    assert_eq!(whole(&pool)?, waiting);
    Ok(())
}

#[test]
fn steps_take_no_room_in_the_log_that_the_transaction_needs() -> Result<()> {
    let dir = directory();
    let options = OpenOptions { log_puddle_size: 8 << 10, ..OpenOptions::default() };
    Store::open(dir.path())?.close()?;
    let store = Store::open_with(dir.path(), &options)?;
    let pool = store.create_pool("p", &kinds()[0])?;
    let list = list_of(&pool, 500)?;
    pool.write(|tx| tx.free_owned(list, field!(List, first)).map(drop))?;
    let mut waiting = whole(&pool)?;
    assert!(waiting > 400);
    for count in 1..60u64 {
        let others =
            pool.write(|tx| (0..count).map(|_| tx.alloc(0u64)).collect::<Result<Vec<Ptr<u64>>>>())?;
        pool.write(|tx| others.iter().try_for_each(|other| tx.free(*other)))?;
        let left = pool.check()?.values.map_or(waiting, |values| values.waiting);
        assert!(left <= waiting);
        waiting = left;
    }
    assert_eq!(pool.finish_frees()?, waiting);
    Ok(())
}
