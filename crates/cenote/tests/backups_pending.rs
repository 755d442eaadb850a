//! Backups of stores that are not as a session left them: moved to another window, with pools whose
//! pointers are still pending, with protected pools whose key the session does not have; and on a
//! disk that is too small.

use crate::archives::{list, names, small, store_with_window, values, window};
use crate::at_rest::{self, PROTECTED, count, key_for};
use crate::support::{Mounted, directory};
use cenote::{
    Access, AtRest, ExportOptions, OpenOptions, Pool, PoolMode, PoolOptions, Reader, Result, Store,
};
use std::path::Path;

/// Nodes of a list: several puddles of them.
const LEN: u64 = 9000;

/// A pool has all of its list. The lists are too long to be printed.
fn assert_whole(pool: &Pool) -> Result<()> {
    let found = values(pool)?;
    let first = found.iter().zip(0..LEN).position(|(found, wanted)| *found != wanted);
    assert_eq!((found.len() as u64, first), (LEN, None), "{}", pool.name());
    Ok(())
}

/// How far a pool was touched before the backup.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Touched {
    /// It was not opened.
    No,
    /// Its first node was read: its root puddle, and the one that the node is in.
    Begun,
    All,
}

impl Touched {
    const EACH: [Self; 3] = [Self::No, Self::Begun, Self::All];

    fn touch(self, store: &Store, name: &str) -> Result<()> {
        if self == Self::No {
            return Ok(());
        }
        let pool = store.pool(name)?;
        if self == Self::All {
            assert_whole(&pool)?;
            return Ok(());
        }
        let view = pool.read()?;
        let first = view.root::<crate::archives::Node>()?.expect("a node");
        assert!(view.get(first)?.next.is_some());
        Ok(())
    }
}

fn pending(store: &Store) -> u64 {
    store.pools().iter().map(|info| info.pending).sum()
}

/// All lists of a copy are as they were made, before and after it was closed once more.
fn whole(copy: &Path, pools: &[String]) -> Result<()> {
    for _ in 0..2 {
        let store = Store::open(copy)?;
        let report = store.report();
        assert!(report.clean && !report.copied && report.damage.is_empty(), "{report:?}");
        for name in pools {
            let pool = store.pool_with(name, Access::ReadWrite)?;
            assert_whole(&pool)?;
            let report = pool.check()?;
            assert_eq!((report.leaked_blocks, report.damage.len()), (0, 0), "{name}: {report:?}");
        }
        store.close()?;
    }
    Ok(())
}

fn modes() -> [(String, PoolOptions); 2] {
    [PoolMode::Direct, PoolMode::Shadowed]
        .map(|mode| (format!("{mode:?}"), PoolOptions { mode, ..small() }))
}

/// Address space that something else of this process has.
struct Taken(u64);

impl Drop for Taken {
    fn drop(&mut self) {
        // SAFETY: reserved by the test; nothing was mapped there.
        unsafe { cenote_sys::memory::release(self.0 as usize, 1 << 21) }.expect("reserved");
    }
}

#[test]
fn a_store_that_was_moved_to_another_window_is_backed_up_there() -> Result<()> {
    for touched in Touched::EACH {
        let keep = directory();
        let (dir, copy) = (keep.path().join("store"), keep.path().join("copy"));
        let base = window();
        let store = store_with_window(&dir, base);
        for (name, options) in modes() {
            drop(list(&store, &name, &options, LEN)?);
        }
        store.close()?;
        let names = modes().map(|(name, _)| name);
        cenote_sys::memory::reserve(base as usize, 1 << 21).expect("free");
        let taken = Taken(base);
        let store = Store::open(&dir)?;
        assert_eq!(store.report().window_moved_from, Some(base));
        for name in &names {
            touched.touch(&store, name)?;
        }
        assert!(pending(&store) > 0 || touched == Touched::All, "{touched:?}");
        let here = store.window();
        store.backup(&copy)?.durable()?;
        // Beside its original, and with the first window free or not.
        whole(&copy, &names)?;
        for name in &names {
            Touched::All.touch(&store, name)?;
        }
        store.close()?;
        drop(taken);
        let again = keep.path().join("again");
        let store = Store::open(&dir)?;
        assert_eq!(store.window(), here);
        store.backup(&again)?.durable()?;
        store.close()?;
        whole(&again, &names)?;
        whole(&dir, &names)?;
    }
    Ok(())
}

#[test]
fn pools_whose_pointers_are_due_are_backed_up_as_they_are() -> Result<()> {
    for touched in Touched::EACH {
        let keep = directory();
        let (dir, copy) = (keep.path().join("store"), keep.path().join("copy"));
        let store = store_with_window(&dir, window());
        for (name, options) in modes() {
            drop(list(&store, &name, &options, LEN)?);
        }
        // What was not psynced is not in a backup; closing psyncs.
        store.close()?;
        let store = Store::open(&dir)?;
        let mut pools = Vec::new();
        for (name, _) in modes() {
            let (archive, _) = store.export(&[&name], Vec::new(), ExportOptions::default())?;
            let (imported, cloned) = (format!("{name} imported"), format!("{name} cloned"));
            store.import(archive.as_slice(), names(&[&imported]))?;
            store.clone_pool(&name, &cloned)?;
            pools.extend([imported, cloned]);
        }
        assert!(pending(&store) > 0);
        for name in &pools {
            touched.touch(&store, name)?;
        }
        assert!(pending(&store) > 0 || touched == Touched::All, "{touched:?}");
        let still = pending(&store);
        store.backup(&copy)?.durable()?;
        assert_eq!(pending(&store), still, "a backup touches nothing");
        pools.extend(modes().map(|(name, _)| name));
        whole(&copy, &pools)?;
        store.close()?;
        whole(&dir, &pools)?;
    }
    Ok(())
}

/// The session has no key: the pools are copied sealed, those that are pending among them.
#[test]
fn protected_pools_are_backed_up_without_their_key() -> Result<()> {
    for at_rest in PROTECTED {
        let keep = directory();
        let (dir, copy) = (keep.path().join("store"), keep.path().join("copy"));
        let store = store_with_window(&dir, window());
        let pool = store.create_pool("sealed", &at_rest::options(at_rest, key_for(at_rest, 1)))?;
        at_rest::push(&pool, 0, 1500);
        drop(pool);
        store.close()?;
        let store = Store::open(&dir)?;
        store.clone_pool("sealed", "due")?;
        drop(list(&store, "plain", &small(), LEN)?);
        store.backup(&copy)?.durable()?;
        if at_rest.mode().has_key() && at_rest != AtRest::Integrity {
            assert!(at_rest::with_word(&copy).is_empty(), "{at_rest:?}");
        }
        store.close()?;
        for dir in [&copy, &dir] {
            let options = OpenOptions {
                key: key_for(at_rest, 1),
                accept_unprotected: true,
                ..OpenOptions::default()
            };
            let store = Store::open_with(dir, &options)?;
            assert!(
                store.report().clean && store.report().damage.is_empty(),
                "{:?}",
                store.report()
            );
            assert_whole(&store.pool_with("plain", Access::ReadOnly)?)?;
            for name in ["sealed", "due"] {
                let pool = store.pool(name)?;
                assert_eq!(count(&pool), 1500, "{at_rest:?}, {name}");
                at_rest::push(&pool, 1500, 1510);
                pool.psync()?;
            }
            store.close()?;
        }
    }
    Ok(())
}

#[test]
fn a_disk_that_fills_while_threads_commit_leaves_the_store_and_no_copy() -> Result<()> {
    use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
    let keep = directory();
    let dir = keep.path().join("store");
    let store = store_with_window(&dir, window());
    let pool = list(&store, "p", &small(), LEN)?;
    let counter = store.create_pool("counter", &small())?;
    let at = counter.write(|tx| -> Result<_> {
        let at = tx.alloc(0_u64)?;
        tx.set_root(at)?;
        Ok(at)
    })?;
    let (stop, done) = (AtomicBool::new(false), AtomicU64::new(0));
    // From too small for the first file to too small for the last ones.
    let mut refused = 0;
    std::thread::scope(|scope| -> Result<()> {
        let (counter, stop, done) = (&counter, &stop, &done);
        scope.spawn(move || {
            while !stop.load(Ordering::Relaxed) {
                counter
                    .write(|tx| -> Result<()> {
                        *tx.get_mut(at)? += 1;
                        Ok(())
                    })
                    .expect("the original goes on");
                done.fetch_add(1, Ordering::Relaxed);
            }
        });
        let result = (1..24).try_for_each(|pages: u64| -> Result<()> {
            let Ok(small_disk) = Mounted::memory(&format!("{}k", pages * 64)) else {
                return Ok(());
            };
            let target = small_disk.path().join("copy");
            match store.backup(&target) {
                Ok(made) => _ = made.durable()?,
                Err(error) => {
                    refused += 1;
                    assert!(error.to_string().contains("space"), "{pages}: {error}");
                    let left = std::fs::read_dir(small_disk.path()).expect("read").count();
                    assert_eq!(left, 0, "{pages}: something is left");
                }
            }
            Ok(())
        });
        stop.store(true, Ordering::Relaxed);
        result
    })?;
    drop((pool, counter));
    store.close()?;
    if refused == 0 {
        println!("skipped: this user may mount no file system");
        return Ok(());
    }
    assert!(refused > 4, "{refused}");
    let store = Store::open(&dir)?;
    assert_whole(&store.pool("p")?)?;
    let counter = store.pool("counter")?;
    assert_eq!(*counter.read()?.get(at)?, done.load(Ordering::Relaxed));
    Ok(())
}

/// A primary whose pointers are pending is as it was before the last close: the backup names its
/// pool as damaged, and so does the store.
#[test]
fn an_older_primary_whose_pointers_are_due_is_in_no_backup() -> Result<()> {
    let keep = directory();
    let dir = keep.path().join("store");
    let options = PoolOptions { mode: PoolMode::Shadowed, ..small() };
    let base = window();
    let store = store_with_window(&dir, base);
    drop(list(&store, "list", &options, LEN)?);
    store.close()?;
    let primaries = || std::fs::read_dir(dir.join("primary")).expect("a directory");
    let read = |path: &Path| std::fs::read(path).expect("a primary");
    let older: Vec<_> = primaries()
        .map(|entry| entry.expect("an entry").path())
        .map(|path| (read(&path), path))
        .collect();
    let store = Store::open(&dir)?;
    let pool = store.pool("list")?;
    pool.write(|tx| -> Result<()> {
        let first = tx.root::<crate::archives::Node>()?.expect("a node");
        tx.set_root(first)
    })?;
    drop(pool);
    store.close()?;
    cenote_sys::memory::reserve(base as usize, 1 << 21).expect("free");
    let taken = Taken(base);
    for (number, (bytes, path)) in older.iter().enumerate() {
        let newer = read(path);
        std::fs::write(path, bytes).expect("written");
        let copy = keep.path().join(number.to_string());
        let store = Store::open(&dir)?;
        assert!(pending(&store) > 0);
        let report = store.backup(&copy)?;
        let changed = newer != *bytes;
        let damage = &report.report().damage;
        assert_eq!(damage.is_empty(), !changed, "{path:?}: {damage:?}");
        store.abandon();
        std::fs::write(path, newer).expect("written");
    }
    drop(taken);
    Ok(())
}
