//! Copies that are made file by file while a store is opened, written and closed: no pool shows
//! values of two moments. And what is done to the files of a store that was killed, and is no copy.

use crate::support::directory;
use cenote::{
    Access, CopyPolicy, CrashKind, DamagePolicy, Error, OpenOptions, Persist, Pool, PoolMode,
    PoolOptions, PowerLossPolicy, Reader, Result, Store,
};
use cenote_layout::puddle::Role;
use cenote_medium::planted::{Bug, plant};
use cenote_store::{OpenError, StoreError};
use cenote_testkit::directories;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

#[derive(Persist)]
#[persist(name = "hot_copies::Counter")]
struct Counter {
    value: u64,
}

/// Pools that are written, and one that is not.
const POOLS: [(&str, PoolMode); 3] =
    [("direct", PoolMode::Direct), ("shadowed", PoolMode::Shadowed), ("idle", PoolMode::Direct)];

pub(crate) fn opened(dir: &Path, copy: CopyPolicy) -> Result<Store> {
    let (power_loss, spare_bytes_max) = (PowerLossPolicy::ReadOnly, 0);
    Store::open_with(
        dir,
        &OpenOptions { copy, power_loss, spare_bytes_max, ..OpenOptions::default() },
    )
}

/// A closed store with all pools at 1.
pub(crate) fn made(keep: &Path) -> PathBuf {
    let dir = keep.join("store");
    let store = Store::open(&dir).unwrap();
    for (name, mode) in POOLS {
        let options = PoolOptions { mode, puddle_size: 256 << 10, ..PoolOptions::default() };
        let pool = store.create_pool(name, &options).unwrap();
        pool.write(|tx| -> Result<()> {
            let counter = tx.alloc(Counter { value: 1 })?;
            tx.set_root(counter)
        })
        .unwrap();
    }
    store.close().unwrap();
    dir
}

pub(crate) fn add(pool: &Pool) {
    let added = pool.write(|tx| -> Result<()> {
        let counter = tx.root::<Counter>()?.expect("the counter");
        tx.get_mut(counter)?.value += 1;
        Ok(())
    });
    added.unwrap();
}

pub(crate) fn written(store: &Store) -> Vec<Pool> {
    let pools: Vec<Pool> = ["direct", "shadowed"].map(|name| store.pool(name).unwrap()).into();
    pools.iter().for_each(add);
    pools
}

fn copy(from: &Path, to: &Path, names: &[&str]) {
    fs::create_dir_all(to).unwrap();
    for name in names.iter().filter(|name| from.join(name).exists()) {
        directories::copy(&from.join(name), to);
    }
}

const CONTROL: [&str; 6] =
    ["lock", "superblock", "catalog.0", "catalog.1", "journal.pools", "clients"];
const CATALOGS: [&str; 2] = ["catalog.0", "catalog.1"];
const DATA: [&str; 2] = ["puddles", "primary"];

/// What a pool shows.
pub(crate) fn shows(store: &Store, name: &str) -> Result<u64> {
    let pool = store.pool(name)?;
    let view = pool.read()?;
    let root = view.root::<Counter>()?.expect("the counter");
    Ok(view.get(root)?.value)
}

pub(crate) fn damaged(shown: &Result<u64>) -> bool {
    matches!(shown, Err(Error::Store(StoreError::PoolDamaged { damage, .. }))
        if damage.iter().any(|damage| damage.to_string().contains("of another moment")))
}

fn not_covered(shown: &Result<u64>) -> bool {
    matches!(shown, Err(Error::Store(StoreError::PoolNotCovered { .. })))
}

/// Puddles are copied while the store is open, the rest when it is closed.
fn closed_meanwhile(bug: Bug) -> [Result<u64>; 3] {
    let keep = directory();
    let dir = made(keep.path());
    let to = keep.path().join("copy");
    plant(bug);
    let store = Store::open(&dir).unwrap();
    let pools = written(&store);
    copy(&dir, &to, &DATA);
    pools.iter().for_each(add);
    drop(pools);
    store.close().unwrap();
    copy(&dir, &to, &CONTROL);
    let copied = opened(&to, CopyPolicy::Refuse).expect("a closed store");
    let shown = POOLS.map(|(name, _)| shows(&copied, name));
    plant(Bug::None);
    shown
}

#[test]
fn a_copy_that_is_made_while_the_store_is_closed_costs_the_pools_that_were_written() {
    let [direct, shadowed, idle] = closed_meanwhile(Bug::None);
    assert!(damaged(&direct) && damaged(&shadowed), "{direct:?} {shadowed:?}");
    assert_eq!(idle.unwrap(), 1);
    for bug in [Bug::NotMarked, Bug::StampNotCompared] {
        let [direct, ..] = closed_meanwhile(bug);
        assert!(!damaged(&direct), "{bug:?}: {direct:?}");
    }
}

#[test]
fn one_older_puddle_file_in_a_closed_store_costs_its_pool() {
    let keep = directory();
    let dir = made(keep.path());
    let older = keep.path().join("older");
    copy(&dir, &older, &DATA);
    let store = Store::open(&dir).unwrap();
    drop(written(&store));
    store.close().unwrap();
    for directory in DATA {
        for entry in fs::read_dir(older.join(directory)).unwrap() {
            let (file, name) = (entry.as_ref().unwrap().path(), entry.unwrap().file_name());
            let into = dir.join(directory).join(name);
            let newer = fs::read(&into).unwrap();
            // Logs are not of a pool: their role says so.
            if newer == fs::read(&file).unwrap() || newer[104] != Role::Heap as u8 {
                continue;
            }
            fs::copy(&file, &into).unwrap();
            let store = opened(&dir, CopyPolicy::Refuse).expect("a closed store");
            let shown = POOLS.map(|(name, _)| shows(&store, name));
            assert_eq!(
                shown.iter().filter(|shown| damaged(shown)).count(),
                1,
                "{file:?}: {shown:?}"
            );
            assert_eq!(
                shown.iter().filter(|shown| shown.is_ok()).count(),
                2,
                "{file:?}: {shown:?}"
            );
            store.close().unwrap();
            fs::write(&into, newer).unwrap();
        }
    }
    let store = opened(&dir, CopyPolicy::Refuse).unwrap();
    assert_eq!(POOLS.map(|(name, _)| shows(&store, name).unwrap()), [2, 2, 1]);
}

/// What operators and containers do to a store that no process has open, and that changes nothing
/// of it: `$1` is its directory.
const HARMLESS: [(&str, &str); 9] = [
    ("its own owner", r#"chown -R "$(id -u):$(id -g)" "$1""#),
    ("its own mode", r#"chmod -R u+rwX "$1""#),
    ("another mode", r#"chmod -R go-rwx "$1""#),
    ("new times", r#"find "$1" -exec touch {} +"#),
    ("a touch of the lock", r#"touch "$1/lock""#),
    ("links, which are removed", r#"cp -al "$1" "$1.links" && rm -r "$1.links""#),
    ("the lock away and back", r#"mv "$1/lock" "$1.lock" && mv "$1.lock" "$1/lock""#),
    ("the lock removed", r#"rm "$1/lock""#),
    ("the directory away and back", r#"mv "$1" "$1.away" && mv "$1.away" "$1""#),
];

#[test]
fn a_store_that_was_killed_opens_whatever_is_done_to_its_files_that_changes_no_byte() {
    for (what, script) in HARMLESS {
        let keep = directory();
        let dir = made(keep.path());
        for value in [2, 3] {
            let store = Store::open(&dir).unwrap();
            drop(written(&store));
            store.abandon();
            let done = Command::new("sh").args(["-c", script, "sh"]).arg(&dir).status().unwrap();
            assert!(done.success(), "{what}");
            let store = Store::open(&dir).unwrap_or_else(|error| panic!("{what}: {error}"));
            let report = store.report();
            assert!(!report.copied && report.damage.is_empty(), "{what}: {report:?}");
            assert_eq!(report.crash, Some(CrashKind::Process), "{what}");
            let shown = POOLS.map(|(name, _)| shows(&store, name));
            assert_eq!(shown.map(|shown| shown.expect(what)), [value, value, 1], "{what}");
            store.close().unwrap();
        }
    }
}

/// Superblock and catalog are copied while no pool is in use, the rest when two are.
fn opened_after_the_catalog(bug: Bug) -> [Result<u64>; 3] {
    let keep = directory();
    let dir = made(keep.path());
    let to = keep.path().join("copy");
    let store = Store::open(&dir).unwrap();
    copy(&dir, &to, &CONTROL);
    let pools = written(&store);
    copy(&dir, &to, &DATA);
    drop(pools);
    store.close().unwrap();
    assert!(matches!(opened(&to, CopyPolicy::Refuse), Err(Error::Open(OpenError::Copied { .. }))));
    plant(bug);
    let copied = opened(&to, CopyPolicy::CheckAndOpen).expect("accepted");
    let shown = POOLS.map(|(name, _)| shows(&copied, name));
    plant(Bug::None);
    drop(copied);
    // What was decided at the first open stays.
    if bug == Bug::None {
        let copied = opened(&to, CopyPolicy::CheckAndOpen).expect("accepted");
        let again = POOLS.map(|(name, _)| shows(&copied, name));
        assert!(not_covered(&again[0]) && not_covered(&again[1]) && again[2].is_ok(), "{again:?}");
    }
    shown
}

#[test]
fn of_an_accepted_copy_only_pools_whose_files_were_closed_are_shown() {
    let [direct, shadowed, idle] = opened_after_the_catalog(Bug::None);
    assert!(not_covered(&direct) && not_covered(&shadowed), "{direct:?} {shadowed:?}");
    assert_eq!(idle.unwrap(), 1);
    let [direct, ..] = opened_after_the_catalog(Bug::CopyNotProven);
    assert!(direct.is_ok(), "{direct:?}");
}

/// What is damaged of pools whose last seals were in a batch that both files of the catalog lost,
/// in two sessions.
fn seals_lost(bug: Bug) -> Vec<[String; 3]> {
    let keep = directory();
    let dir = made(keep.path());
    let newer = keep.path().join("newer");
    let store = Store::open(&dir).unwrap();
    drop(written(&store));
    store.close().unwrap();
    let ends = CATALOGS.map(|name| {
        let bytes = fs::read(dir.join(name)).unwrap();
        bytes.iter().rposition(|byte| *byte != 0).expect("batches")
    });
    let store = Store::open(&dir).unwrap();
    add(&store.pool("idle").unwrap());
    // One that was closed counts as open, because its superblock does not fit.
    store.abandon();
    copy(&dir, &newer, &["superblock", "catalog.0", "catalog.1"]);
    for (name, end) in CATALOGS.into_iter().zip(ends) {
        let mut bytes = fs::read(dir.join(name)).unwrap();
        bytes[end] ^= 0x40;
        fs::write(dir.join(name), bytes).unwrap();
    }
    let damage = DamagePolicy::SkipDamaged;
    let salvaging = OpenOptions { damage, spare_bytes_max: 0, ..OpenOptions::default() };
    let mut shown = Vec::new();
    for _ in 0..2 {
        let refused = opened(&dir, CopyPolicy::Refuse);
        assert!(matches!(refused, Err(Error::Open(_))), "{refused:?}");
        plant(bug);
        let store = Store::open_with(&dir, &salvaging).expect("what is left");
        shown.push(POOLS.map(|(name, _)| match store.pool_with(name, Access::ReadOnly) {
            Ok(pool) => format!("{:?}", pool.damage()),
            Err(error) => error.to_string(),
        }));
        store.close().unwrap();
        plant(Bug::None);
    }
    // Put right: nothing was written meanwhile.
    copy(&newer, &dir, &["superblock", "catalog.0", "catalog.1"]);
    let store = Store::open(&dir).expect("the store as it was");
    assert_eq!(POOLS.map(|(name, _)| shows(&store, name).unwrap()), [2, 2, 2], "{bug:?}");
    shown
}

#[test]
fn seals_that_were_lost_with_records_of_the_catalog_condemn_no_file() {
    let other = "of another moment";
    for why in seals_lost(Bug::None).into_iter().flatten() {
        assert_eq!(why, "[]");
    }
    let shown = seals_lost(Bug::SealsLostRefused);
    assert!(shown[0][0].contains(other), "{shown:?}");
}
