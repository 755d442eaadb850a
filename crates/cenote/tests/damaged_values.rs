//! Values on pages that cannot be had: an access is an error that names the page, no signal, and
//! all other values can be read.

use crate::at_rest::{CHECKED, key_for, options};
use cenote::{Access, Error, Persist, Pool, PoolMode, PoolOptions, Ptr, Reader, Store, field};
use cenote_store::StoreError;
use std::path::{Path, PathBuf};

const PAGE: u64 = 4096;
/// Bytes of the only puddle, which lies at a multiple of them.
const SIZE: u64 = 2 << 20;
const VALUES: usize = 200;

/// Two pages of 4096 bytes hold seven of them, and some lie in both.
#[derive(Clone, Copy, Debug, PartialEq, Persist)]
#[persist(name = "damaged_values::Value")]
struct Value {
    number: u64,
    filling: [u64; 140],
}

#[derive(Persist)]
#[persist(name = "damaged_values::All")]
struct All {
    values: [Option<Ptr<Value>>; VALUES],
}

fn value(number: u64) -> Value {
    Value { number, filling: [number ^ 0x5a; 140] }
}

fn fill(pool: &Pool) {
    pool.write(|tx| -> cenote::Result<()> {
        // Before the values, so that it lies before them.
        let all = tx.alloc(All { values: [None; VALUES] })?;
        let mut values = [None; VALUES];
        for (number, place) in (0..).zip(&mut values) {
            *place = Some(tx.alloc(value(number))?);
        }
        tx.get_mut(all)?.values = values;
        tx.set_root(all)
    })
    .expect("written");
}

fn files(store: &Path) -> Vec<PathBuf> {
    let files = std::fs::read_dir(store.join("puddles")).expect("readable");
    files.map(|file| file.expect("an entry").path()).collect()
}

/// The file of the pool's only puddle while logs have one, and where a value begins in it.
fn find(store: &Path, value: &Value) -> (PathBuf, u64) {
    let sought: Vec<u8> = value.filling.iter().flat_map(|word| word.to_le_bytes()).collect();
    let mut found = files(store).into_iter().filter_map(|file| {
        let bytes = std::fs::read(&file).expect("readable");
        let heap = bytes.len() as u64 == SIZE;
        let at = bytes.windows(sought.len()).position(|window| heap && window == sought)?;
        Some((file, at as u64))
    });
    found.next().expect("it is there")
}

/// Reads every value in each way. Those of `lost` are errors, which name the pool; all others are
/// what was written.
fn read_all(pool: &Pool, lost: impl Fn(Ptr<Value>) -> bool) -> usize {
    let view = pool.read().expect("a view");
    let root: Ptr<All> = view.root().expect("readable").expect("a root");
    let values = view.get(root).expect("readable").values;
    let mut failed = 0;
    for (number, ptr) in (0..).zip(values.into_iter().flatten()) {
        match view.get(ptr) {
            Ok(read) => assert!(!lost(ptr) && *read == value(number), "value {number}"),
            Err(error) => {
                assert!(lost(ptr), "value {number}: {error}");
                assert!(matches!(
                    error,
                    Error::Store(StoreError::Sealed { .. } | StoreError::Unreadable { .. })
                ));
                assert!(error.to_string().contains("\"pool\""), "{error}");
                failed += 1;
            }
        }
    }
    drop(view);
    for (number, ptr) in (0..).zip(values.into_iter().flatten()) {
        // Nothing is committed: what could not be read cannot be logged.
        let done = pool.write(|tx| -> cenote::Result<()> {
            let read = tx.get(ptr).copied();
            assert_eq!(read.is_err(), lost(ptr), "value {number}");
            let changed = tx.get_mut(ptr).map(|value| value.filling[3] = 1);
            assert_eq!(changed.is_err(), lost(ptr), "value {number}");
            let last = tx.set(ptr, field!(Value, filling), [9; 140]);
            assert!(last.is_ok() || lost(ptr), "value {number}");
            Err(Error::NotInTransaction { pool: "none".into() })
        });
        assert!(done.is_err());
    }
    failed
}

#[test]
fn a_value_on_a_damaged_page_of_a_protected_pool_is_an_error() {
    for mode in CHECKED {
        let dir = tempfile::tempdir().expect("a directory");
        let path = dir.path().join("store");
        let store = Store::open(&path).expect("a store");
        let key = key_for(mode, 3);
        let options = PoolOptions { puddle_size: SIZE, ..options(mode, key.clone()) };
        let pool = store.create_pool("pool", &options).expect("a pool");
        fill(&pool);
        let at = {
            let view = pool.read().expect("a view");
            let root: Ptr<All> = view.root().expect("readable").expect("a root");
            view.get(root).expect("readable").values[VALUES / 2].expect("a value").addr()
        };
        drop(pool);
        store.close().expect("closed");
        let [file] = files(&path).try_into().expect("one puddle");
        let mut bytes = std::fs::read(&file).expect("readable");
        bytes[(at % SIZE) as usize + 100] ^= 4;
        std::fs::write(&file, &bytes).expect("written");
        let page = (at + 100) / PAGE;
        let lost = |ptr: Ptr<Value>| {
            let end = ptr.addr() + size_of::<Value>() as u64 - 1;
            ptr.addr() / PAGE == page || end / PAGE == page
        };
        let store = Store::open(&path).expect("opened");
        let pool = match &key {
            Some(key) => store.pool_with_key("pool", Access::ReadWrite, key),
            None => store.pool("pool"),
        };
        let pool = pool.expect("the metadata is whole");
        assert!(read_all(&pool, lost) >= 3, "{mode:?}");
    }
}

#[test]
fn a_value_behind_the_end_of_a_file_that_was_cut_short_is_an_error() {
    let dir = tempfile::tempdir().expect("a directory");
    let path = dir.path().join("store");
    let store = Store::open(&path).expect("a store");
    let options =
        PoolOptions { mode: PoolMode::Direct, puddle_size: SIZE, ..PoolOptions::default() };
    let pool = store.create_pool("pool", &options).expect("a pool");
    fill(&pool);
    let (file, at) = find(&path, &value(VALUES as u64 / 2));
    let cut = at / PAGE * PAGE;
    std::fs::OpenOptions::new().write(true).open(&file).expect("opened").set_len(cut).expect("cut");
    let lost = |ptr: Ptr<Value>| (ptr.addr() + size_of::<Value>() as u64 - 1) % SIZE >= cut;
    assert!(read_all(&pool, lost) >= VALUES / 3);
}
