//! A program that asks for protection gets nothing that has none: every way to name a pool, in
//! every mode that a pool without a key can be in.

use crate::at_rest::{count, key, options, push};
use cenote::{Access, AtRest, Error, OpenOptions, Pool, PoolMode, PoolOptions, Result, Store};
use cenote_medium::planted::{Bug, plant};
use cenote_store::StoreError;
use std::path::Path;

fn opened(dir: &Path, access: Access, accept_unprotected: bool) -> Store {
    let options =
        OpenOptions { access, key: Some(key(1)), accept_unprotected, ..OpenOptions::default() };
    Store::open_with(dir, &options).unwrap()
}

/// A store with a pool of each kind that has no key, in the place of one that had: all have the
/// names that a program knows.
fn replaced(dir: &Path) -> Vec<&'static str> {
    let store = Store::open(dir).unwrap();
    let kinds = [
        ("direct", PoolOptions::default()),
        ("shadowed", PoolOptions { mode: PoolMode::Shadowed, ..PoolOptions::default() }),
        ("integrity", options(AtRest::Integrity, None)),
    ];
    for (name, options) in &kinds {
        push(&store.create_pool(name, options).unwrap(), 0, 3);
    }
    store.close().unwrap();
    kinds.iter().map(|(name, _)| *name).collect()
}

/// What a program may do with a name, in a store that it opened with a key.
type Way = (&'static str, Access, fn(&Store, &str) -> Result<Pool>);

const WAYS: [Way; 5] = [
    ("pool", Access::ReadWrite, |store, name| store.pool(name)),
    ("pool_with", Access::ReadWrite, |store, name| store.pool_with(name, Access::ReadWrite)),
    ("to read", Access::ReadOnly, |store, name| store.pool_with(name, Access::ReadOnly)),
    ("pool_with_key", Access::ReadWrite, |store, name| {
        store.pool_with_key(name, Access::ReadWrite, &key(1))
    }),
    ("create_pool", Access::ReadWrite, |store, name| {
        store.create_pool(&format!("{name} too"), &PoolOptions::default())
    }),
];

/// The first way that is not refused.
fn got(dir: &Path, names: &[&str]) -> Option<String> {
    for (way, access, get) in WAYS {
        let store = opened(dir, access, false);
        for name in names {
            match get(&store, name) {
                Err(Error::Store(StoreError::NotProtected { .. })) => {}
                other => return Some(format!("{way} of \"{name}\": {other:?}")),
            }
        }
        assert_eq!(store.pools().len(), names.len(), "{way} made one");
        drop(store);
    }
    None
}

#[test]
fn a_program_that_gave_a_key_gets_no_pool_without_one() {
    let dir = tempfile::tempdir().unwrap();
    let names = replaced(dir.path());
    assert_eq!(got(dir.path(), &names), None);
    plant(Bug::UnprotectedAccepted);
    let found = got(dir.path(), &names);
    plant(Bug::None);
    println!("{}", found.expect("the bug was not found"));
}

#[test]
fn a_program_that_accepts_pools_without_a_key_says_so() {
    let dir = tempfile::tempdir().unwrap();
    for name in replaced(dir.path()) {
        let store = opened(dir.path(), Access::ReadWrite, true);
        assert_eq!(count(&store.pool(name).unwrap()), 3);
        // A key of its own is for this pool.
        let with_key = store.pool_with_key(name, Access::ReadWrite, &key(1));
        assert!(
            matches!(with_key, Err(Error::Store(StoreError::NotProtected { .. }))),
            "{with_key:?}"
        );
        store.close().unwrap();
    }
}

#[test]
fn a_pool_of_which_only_the_name_is_said_is_made_under_the_stores_key() {
    let dir = tempfile::tempdir().unwrap();
    drop(Store::open(dir.path()).unwrap());
    let store = opened(dir.path(), Access::ReadWrite, false);
    let pool = store.pool("p").unwrap();
    assert_eq!(pool.at_rest(), AtRest::Authenticated);
    push(&pool, 0, 5);
    drop(pool);
    store.close().unwrap();
    let store = opened(dir.path(), Access::ReadOnly, false);
    assert_eq!(count(&store.pool_with("p", Access::ReadOnly).unwrap()), 5);
    drop(store);
    let store = Store::open(dir.path()).unwrap();
    assert!(matches!(store.pool("p"), Err(Error::Store(StoreError::AtRest { .. }))));
}
