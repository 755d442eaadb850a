//! What a map refuses, and what becomes of it then.

use super::{Map, all, found, make};
use crate::common::{assert_sound, directory, pool};
use cenote::{Access, DataProtection, Error, HeapKind, PoolMode, PoolOptions, Result, Store};

fn is_refused<T: core::fmt::Debug>(result: Result<T>, part: &str) {
    let error = result.expect_err("refused");
    assert!(error.to_string().contains(part), "{error}");
}

#[test]
fn a_map_is_open_once_in_a_program() {
    let dir = directory();
    let pool = pool(dir.path());
    let map = make(&pool);
    let open = map.open(&pool).unwrap();
    is_refused(map.open(&pool), "open already");
    let clone = open.clone();
    is_refused(open.destroy(), "clones");
    drop(clone);
    let open = map.open(&pool).unwrap();
    open.insert(&1, &[1; 4]).unwrap();
    open.destroy().unwrap();
    assert!(matches!(map.open(&pool), Err(Error::Dangling { .. })));
}

#[test]
fn a_map_takes_no_changes_in_a_transaction_and_no_split_under_a_view() {
    let dir = directory();
    let pool = pool(dir.path());
    let open = make(&pool).open(&pool).unwrap();
    pool.write(|tx| -> Result<()> {
        assert!(matches!(open.insert(&1, &[1; 4]), Err(Error::WouldDeadlock { .. })));
        assert!(open.get(tx, &1)?.is_none());
        Ok(())
    })
    .unwrap();
    (0..32).for_each(|key| {
        open.insert(&key, &[key; 4]).unwrap();
    });
    let view = pool.read().unwrap();
    let first = open.get(&view, &3).unwrap().unwrap();
    assert!(matches!(open.insert(&5, &[9; 4]), Err(Error::WouldDeadlock { .. })));
    open.remove(&3).unwrap();
    assert_eq!(*first, [3; 4], "a reference stays good as long as its view");
    drop(view);
    open.insert(&5, &[9; 4]).unwrap();
    assert_eq!(all(&open, &pool).len(), 31);
}

#[test]
fn pools_whose_memory_is_no_file_are_refused() {
    let dir = directory();
    let store = Store::open(dir.path()).unwrap();
    let options = PoolOptions { mode: PoolMode::Shadowed, ..PoolOptions::default() };
    let pool = store.create_pool("shadowed", &options).unwrap();
    let map = make(&pool);
    is_refused(map.open(&pool), "shadowed mode");
}

#[test]
fn pools_whose_data_are_write_protected_are_refused() {
    let dir = directory();
    let store = Store::open(dir.path()).unwrap();
    let (heap, protect) = (HeapKind::Logged, DataProtection::DEFERRED);
    let options = PoolOptions { heap, protect, ..PoolOptions::default() };
    let pool = store.create_pool("protected", &options).unwrap();
    let map = make(&pool);
    is_refused(map.open(&pool), "write-protected data");
}

#[test]
fn a_pool_that_was_opened_for_reading_shows_what_is_valid() {
    let dir = directory();
    {
        let pool = pool(dir.path());
        let open = make(&pool).open(&pool).unwrap();
        (0..100).for_each(|key| {
            open.insert(&key, &[key; 4]).unwrap();
        });
        (0..100).step_by(3).for_each(|key| {
            open.remove(&key).unwrap();
        });
    }
    let store = Store::open(dir.path()).unwrap();
    let pool = store.pool_with("test", Access::ReadOnly).unwrap();
    let open = found(&pool).open(&pool).unwrap();
    assert_eq!(all(&open, &pool).len(), 66);
    is_refused(open.insert(&1, &[0; 4]), "reading alone");
    assert!(open.flush().is_err() && open.remove(&1).is_err() && open.destroy().is_err());
}

/// A map that no root leads to is collected while it is open: it takes nothing more, and writes
/// nothing into memory that others have.
#[test]
fn a_map_that_was_collected_is_gone() {
    let dir = directory();
    let pool = pool(dir.path());
    let map = pool.write(Map::new).unwrap();
    let open = map.open(&pool).unwrap();
    (0..50).for_each(|key| {
        open.insert(&key, &[key; 4]).unwrap();
    });
    assert!(pool.collect().unwrap().freed_blocks > 0);
    assert!(matches!(open.insert(&1, &[0; 4]), Err(Error::Dangling { .. })));
    assert!(matches!(open.get(&pool.read().unwrap(), &1), Err(Error::Dangling { .. })));
    let others: Vec<Map> = (0..8).map(|_| pool.write(Map::new).unwrap()).collect();
    assert!(open.insert(&1, &[0; 4]).is_err() && open.flush().is_err());
    drop(open);
    for other in others {
        let open = other.open(&pool).unwrap();
        assert!(all(&open, &pool).is_empty());
        open.destroy().unwrap();
    }
    assert_sound(&pool);
}
