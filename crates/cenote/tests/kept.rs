//! A pool with a damaged file, after a crash: the others go on. What was committed of it, and the
//! log that is about it, wait until the file is brought back, however often the store crashes until
//! then.

use crate::shadowed::{lose_power, make, step_of, steps};
use crate::support::underneath;
use cenote::{Access, OpenOptions, Pool, PoolOptions, Ptr, Reader, Result, Store};
use cenote_layout::log::EntryKind;
use cenote_log::{Body, LogWriter, SegmentSource};
use cenote_medium::planted::{Bug, plant};
use cenote_store::{Damage, StoreError};
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::path::{Path, PathBuf};

fn open(dir: &Path) -> Result<Store> {
    if !dir.join("superblock").exists() {
        Store::open(dir)?.close()?;
    }
    // No half is full before the first loss of power.
    Store::open_with(dir, &OpenOptions { journal_half_len: 4 << 20, ..OpenOptions::default() })
}

/// The primaries of all puddles.
fn primaries(dir: &Path) -> Vec<PathBuf> {
    let all = std::fs::read_dir(dir.join("primary")).into_iter().flatten().flatten();
    let mut all: Vec<_> =
        all.map(|entry| entry.path()).filter(|path| path.extension().is_none()).collect();
    all.sort();
    all
}

/// What is done to a file, and undone when it is brought back.
#[derive(Clone, Copy, Debug)]
enum Harm {
    Away,
    Cut,
    Header,
}

fn harm(path: &Path, harm: Harm) {
    let mut bytes = std::fs::read(path).unwrap();
    match harm {
        Harm::Away => return std::fs::remove_file(path).unwrap(),
        Harm::Cut => bytes.truncate(5000),
        Harm::Header => bytes[80] ^= 1,
    }
    std::fs::write(path, bytes).unwrap();
}

/// The error names pool, puddle and file.
fn refused(pool: Result<Pool>, path: &Path) {
    let error = pool.expect_err("its file is damaged");
    let cenote::Error::Store(StoreError::PoolDamaged { name, damage }) = &error else {
        panic!("{error}")
    };
    assert!(name == "bad" && matches!(damage[..], [Damage::Puddle { index: 0, .. }]), "{error}");
    let file = path.file_name().unwrap().to_string_lossy().into_owned();
    assert!(error.to_string().contains(&file), "{error}");
}

/// The pool that came back at step 5 goes on, and nothing old is written again.
fn goes_on(path: &Path, store: Store) {
    let bad = store.pool("bad").unwrap();
    steps(&bad, 6, 9);
    bad.psync().unwrap();
    drop(bad);
    store.abandon();
    lose_power(path, 7);
    let store = open(path).unwrap();
    assert_eq!(step_of(&store.pool("bad").unwrap()), 9, "nothing old is written again");
    drop(store);
    let mut files = std::fs::read_dir(path.join("primary")).unwrap().flatten();
    assert!(files.all(|entry| !entry.file_name().to_string_lossy().contains(".kept")));
}

/// Two pools that are psynced together up to step 5; then power fails, one of them is damaged, and
/// comes back after `opens` sessions, each of which ends by a loss of power. The step of each, or
/// `None` where it is no state of the pool.
fn lost_and_found(how: Harm, opens: u64, bug: Bug) -> (u64, Option<u64>) {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().to_owned();
    let store = open(&path).unwrap();
    let bad = make(&store, "bad");
    bad.psync().unwrap();
    let file = primaries(&path).pop().unwrap();
    let synced = std::fs::read(&file).unwrap();
    let good = make(&store, "good");
    for step in 1..=5 {
        steps(&bad, step, step);
        steps(&good, step, step);
        store.psync(&[&bad, &good]).unwrap();
    }
    steps(&bad, 6, 6);
    drop((bad, good));
    store.abandon();
    lose_power(&path, opens);
    // Of what psyncs wrote into it nothing had arrived.
    std::fs::write(&file, &synced).unwrap();
    harm(&file, how);
    let mut step = 5;
    for round in 0..opens {
        plant(bug);
        let store = open(&path).unwrap();
        plant(Bug::None);
        refused(store.pool("bad"), &file);
        let good = store.pool("good").unwrap();
        assert_eq!(step_of(&good), step);
        for _ in 0..12 {
            step += 1;
            steps(&good, step, step);
            good.psync().unwrap();
        }
        drop(good);
        if round % 2 == 0 {
            store.abandon();
            lose_power(&path, round);
        } else {
            store.close().unwrap();
        }
    }
    std::fs::write(&file, synced).unwrap();
    let reader = OpenOptions { access: Access::ReadOnly, ..OpenOptions::default() };
    let looked = Store::open_with(&path, &reader).unwrap();
    let read = catch_unwind(AssertUnwindSafe(|| {
        step_of(&looked.pool_with("bad", Access::ReadOnly).unwrap())
    }));
    drop(looked);
    let store = open(&path).unwrap();
    let found = catch_unwind(AssertUnwindSafe(|| step_of(&store.pool("bad").unwrap())));
    let good = step_of(&store.pool("good").unwrap());
    if found.is_ok() && bug == Bug::None {
        assert_eq!(read.ok(), found.as_ref().ok().copied(), "a reader sees the same");
        goes_on(&path, store);
    }
    assert_eq!(good, step);
    (step, found.ok())
}

#[test]
fn psyncs_of_a_damaged_pool_are_kept_until_it_is_whole() {
    for how in [Harm::Away, Harm::Cut, Harm::Header] {
        for opens in [1, 3] {
            let (_, bad) = lost_and_found(how, opens, Bug::None);
            assert_eq!(bad, Some(5), "{how:?}, {opens}");
        }
    }
}

#[test]
fn psyncs_that_are_kept_nowhere_are_missed() {
    let (_, bad) = lost_and_found(Harm::Away, 2, Bug::KeptNowhere);
    assert_ne!(bad, Some(5));
}

#[test]
fn a_damaged_file_of_kept_psyncs_refuses_its_pool() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().to_owned();
    let store = open(&path).unwrap();
    let bad = make(&store, "bad");
    steps(&bad, 1, 3);
    bad.psync().unwrap();
    drop(bad);
    store.abandon();
    lose_power(&path, 1);
    let file = primaries(&path).pop().unwrap();
    let whole = std::fs::read(&file).unwrap();
    harm(&file, Harm::Away);
    open(&path).unwrap().close().unwrap();
    let kept = file.with_extension("kept");
    let mut bytes = std::fs::read(&kept).unwrap();
    let at = bytes.len() / 2;
    bytes[at] ^= 1;
    std::fs::write(&kept, &bytes).unwrap();
    std::fs::write(&file, whole).unwrap();
    for access in [Access::ReadOnly, Access::ReadWrite] {
        let store =
            Store::open_with(&path, &OpenOptions { access, ..OpenOptions::default() }).unwrap();
        refused(store.pool_with("bad", access), &kept);
    }
    // Removing the pool discards them.
    let store = open(&path).unwrap();
    store.remove_pool("bad").unwrap();
    assert!(!kept.exists());
    store.close().unwrap();
}

/// One more step of "bad" up to `upto`, psynced; then power fails, its file is away for a session
/// and comes back. What was kept of it meanwhile, and its file.
fn kept_once(path: &Path, upto: u64) -> (PathBuf, Vec<u8>) {
    let store = open(path).unwrap();
    let bad = store.pool("bad").unwrap();
    steps(&bad, upto, upto);
    bad.psync().unwrap();
    drop(bad);
    store.abandon();
    lose_power(path, upto);
    let file = primaries(path).pop().unwrap();
    let whole = std::fs::read(&file).unwrap();
    harm(&file, Harm::Away);
    open(path).unwrap().close().unwrap();
    std::fs::write(&file, whole).unwrap();
    let kept = file.with_extension("kept");
    let bytes = std::fs::read(&kept).unwrap();
    (kept, bytes)
}

/// What a store with this file of kept psyncs, or none, serves of "bad".
fn served_with(path: &Path, (kept, bytes): (&Path, Option<&[u8]>), access: Access) -> Result<u64> {
    match bytes {
        Some(bytes) => std::fs::write(kept, bytes).unwrap(),
        None => std::fs::remove_file(kept).unwrap_or_default(),
    }
    let store = Store::open_with(path, &OpenOptions { access, ..OpenOptions::default() })?;
    let bad = store.pool_with("bad", access)?;
    Ok(catch_unwind(AssertUnwindSafe(|| step_of(&bad))).unwrap_or_default())
}

/// Psyncs of "bad" are kept at step 2, brought back, and kept at step 3. What is served with the
/// first file in the place of the second one, and with none; and with the first file after all.
fn kept_file_put_back(bug: Bug) -> ([Option<u64>; 4], u64) {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path();
    let store = open(path).unwrap();
    let bad = make(&store, "bad");
    steps(&bad, 1, 1);
    bad.psync().unwrap();
    drop(bad);
    store.close().unwrap();
    let (kept, first) = kept_once(path, 2);
    assert_eq!(served_with(path, (&kept, Some(&first)), Access::ReadWrite).ok(), Some(2));
    let (_, second) = kept_once(path, 3);
    assert_ne!(first, second);
    plant(bug);
    let wrong = [Some(&first[..]), None].map(|bytes| {
        let reader = served_with(path, (&kept, bytes), Access::ReadOnly).ok();
        [reader, served_with(path, (&kept, bytes), Access::ReadWrite).ok()]
    });
    plant(Bug::None);
    if bug == Bug::None {
        assert_eq!(served_with(path, (&kept, Some(&second)), Access::ReadWrite).unwrap(), 3);
        assert_eq!(served_with(path, (&kept, Some(&first)), Access::ReadOnly).unwrap(), 3);
    }
    let last = served_with(path, (&kept, Some(&first)), Access::ReadWrite).unwrap_or_default();
    assert!(bug != Bug::None || !kept.exists(), "it is of an earlier time");
    ([wrong[0][0], wrong[0][1], wrong[1][0], wrong[1][1]], last)
}

#[test]
fn a_file_of_kept_psyncs_that_was_put_back_or_is_gone_refuses_its_pool() {
    let (served, last) = kept_file_put_back(Bug::None);
    assert_eq!(served, [None; 4]);
    assert_eq!(last, 3);
}

#[test]
fn a_file_of_kept_psyncs_that_is_gone_keeps_no_backup_from_the_other_pools() {
    let dir = tempfile::tempdir().unwrap();
    let (path, target) = (dir.path().join("store"), dir.path().join("copy"));
    let store = open(&path).unwrap();
    steps(&make(&store, "bad"), 1, 1);
    store.close().unwrap();
    let (kept, _) = kept_once(&path, 2);
    std::fs::remove_file(&kept).unwrap();
    let store = open(&path).unwrap();
    let good = store.create_pool("good", &PoolOptions::default()).unwrap();
    good.write(|tx| tx.alloc(7_u64).and_then(|value| tx.set_root(value))).unwrap();
    drop(good);
    plant(Bug::KeptGoneNotTold);
    let untold = store.backup(dir.path().join("untold")).unwrap().durable().unwrap();
    plant(Bug::None);
    assert!(untold.damage.is_empty(), "{:?}", untold.damage);
    let made = store.backup(&target).unwrap().durable().unwrap();
    assert!(matches!(made.damage[..], [Damage::Puddle { index: 0, .. }]), "{:?}", made.damage);
    store.close().unwrap();
    let copy = open(&target).unwrap();
    let good = copy.pool("good").unwrap();
    assert_eq!(*good.read().unwrap().get(number(&good).unwrap()).unwrap(), 7);
    drop(good);
    refused(copy.pool("bad"), &kept);
    copy.close().unwrap();
}

#[test]
fn a_file_of_kept_psyncs_that_is_not_compared_is_found() {
    let (served, _) = kept_file_put_back(Bug::KeptNotCompared);
    assert_ne!(served, [None; 4]);
}

/// A crash of the process, with steps 4 to 6 in the shadow alone; the primary is away for one
/// session, which `bug` may be planted in. Then a psync and a loss of power.
fn away_for_a_session(bug: Bug) -> Option<u64> {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().to_owned();
    let store = open(&path).unwrap();
    let bad = make(&store, "bad");
    steps(&bad, 1, 3);
    bad.psync().unwrap();
    steps(&bad, 4, 60);
    drop(bad);
    store.abandon();
    let file = primaries(&path).pop().unwrap();
    let away = file.with_extension("away");
    std::fs::rename(&file, &away).unwrap();
    plant(bug);
    let store = open(&path).unwrap();
    refused(store.pool("bad"), &file);
    let closed = store.close();
    plant(Bug::None);
    closed.ok()?;
    std::fs::rename(&away, &file).unwrap();
    let store = open(&path).unwrap();
    let bad = store.pool("bad").unwrap();
    assert_eq!(step_of(&bad), 60, "a crash of a process loses nothing");
    steps(&bad, 61, 61);
    bad.psync().unwrap();
    drop(bad);
    store.abandon();
    lose_power(&path, 3);
    let store = open(&path).unwrap();
    catch_unwind(AssertUnwindSafe(|| step_of(&store.pool("bad").unwrap()))).ok()
}

#[test]
fn a_pool_that_was_damaged_for_a_session_is_psynced_as_a_whole_afterwards() {
    assert_eq!(away_for_a_session(Bug::None), Some(61));
    assert_ne!(away_for_a_session(Bug::DamagedInherited), Some(61));
}

struct NoSegments;

impl SegmentSource for NoSegments {
    fn segment(
        &mut self,
        _: u32,
    ) -> std::result::Result<(u64, Body), Box<dyn std::error::Error + Send + Sync>> {
        Err("one segment is enough here".into())
    }
}

fn number(pool: &Pool) -> Result<Ptr<u64>> {
    Ok(pool.read()?.root::<u64>()?.expect("set"))
}

/// Sets the root of a pool of numbers.
fn put(pool: &Pool, value: u64) -> Result<()> {
    let root = number(pool)?;
    pool.write(|tx| -> Result<()> {
        *tx.get_mut(root)? = value;
        Ok(())
    })
}

/// Leaves a transaction over "bad" and "p" half done, in a process that ends; it had "free" open,
/// too. Returns the file of "bad".
fn leave_half_done(path: &Path) -> Result<PathBuf> {
    let store = Store::open(path)?;
    let options = PoolOptions { puddle_size: 256 << 10, ..PoolOptions::default() };
    let mut pools = Vec::new();
    for name in ["bad", "p", "free"] {
        let pool = store.create_pool(name, &options)?;
        pool.write(|tx| -> Result<()> {
            let root = tx.alloc(1u64)?;
            tx.set_root(root)
        })?;
        pools.push(pool);
    }
    let raw = underneath(&store);
    let lease = raw.acquire_log()?;
    // SAFETY: the log is leased and mapped until the store is dropped.
    let mut writer =
        unsafe { LogWriter::attach(lease.body(), raw.persistence(), Box::new(NoSegments)) }
            .unwrap();
    let mut file = PathBuf::new();
    for pool in &pools[..2] {
        let root = number(pool)?;
        // SAFETY: a live value, in a pool that is open for writing, which no reference leads to.
        unsafe {
            writer.append(EntryKind::Undo, root.addr(), 8, root.as_ptr().cast()).unwrap();
            writer.fence();
            root.as_ptr().write(2);
        }
        if pool.name() == "bad" {
            let puddle = raw.puddle_of(root.addr()).expect("its puddle").uuid();
            let name: String = puddle.to_hex().iter().map(|byte| char::from(*byte)).collect();
            file = path.join("puddles").join(name);
        }
    }
    store.clone().abandon();
    drop((writer, pools, store));
    Ok(file)
}

/// A transaction over "bad" and "p" that is half done. While "bad" is damaged, for so many
/// sessions, nothing of "p" is shown or written. Returns whether that is so.
fn half_of_two_pools(how: Harm, opens: u64, bug: Bug) -> Result<bool> {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path();
    let file = leave_half_done(path)?;
    let whole = std::fs::read(&file).unwrap();
    harm(&file, how);
    let mut waits = true;
    for round in 0..opens {
        plant(bug);
        let store = Store::open(path)?;
        plant(Bug::None);
        refused(store.pool("bad"), &file);
        waits &= store.pool("p").is_err();
        let p = store.pool_with("p", Access::ReadOnly)?;
        waits &= matches!(p.read(), Err(cenote::Error::NotWhole { .. }));
        drop(p);
        let free = store.pool("free")?;
        put(&free, 10 + round)?;
        drop(free);
        let aside = underneath(&store).undecided_logs()?;
        if bug == Bug::None {
            let names: Vec<&str> = aside[0].pools.iter().map(|(_, name)| name.as_str()).collect();
            assert_eq!(names, ["bad", "p"]);
        }
        if round % 2 == 0 { store.abandon() } else { store.close()? }
    }
    std::fs::write(&file, whole).unwrap();
    let store = Store::open(path)?;
    for name in ["bad", "p"] {
        match store.pool(name) {
            Ok(pool) => waits &= *pool.read()?.get(number(&pool)?)? == 1,
            Err(_) => waits = false,
        }
    }
    let free = store.pool("free")?;
    assert_eq!(*free.read()?.get(number(&free)?)?, 9 + opens, "its transactions were committed");
    Ok(waits)
}

#[test]
fn a_log_of_a_damaged_pool_and_a_healthy_one_waits_for_both_and_the_others_go_on() -> Result<()> {
    for how in [Harm::Away, Harm::Cut, Harm::Header] {
        for opens in [1, 2, 3] {
            assert!(half_of_two_pools(how, opens, Bug::None)?, "{how:?}, {opens}");
        }
    }
    assert!(!half_of_two_pools(Harm::Away, 1, Bug::WaitingLogIgnored)?);
    Ok(())
}
