//! A backup of a store in use: it opens as one that was closed, is sound, and holds a prefix of
//! what was committed; it is complete or not there.

use crate::support::directory;
use cenote::{
    Access, Error, ErrorKind, OpenOptions, Persist, Pool, PoolMode, PoolOptions, Ptr, Reader,
    Result, Store, field,
};
use cenote_medium::planted::{Bug, plant};
use cenote_store::StoreError;
use std::fs;
use std::path::Path;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};

#[derive(Persist)]
#[persist(name = "backups::Node")]
struct Node {
    value: u64,
    /// The same, so that half a transaction shows.
    again: [u64; 40],
    next: Option<Ptr<Node>>,
}

#[derive(Persist)]
#[persist(name = "backups::List")]
struct List {
    len: u64,
    first: Option<Ptr<Node>>,
}

fn list(pool: &Pool) -> Result<Ptr<List>> {
    pool.write(|tx| match tx.root::<List>()? {
        Some(list) => Ok(list),
        None => {
            let list = tx.alloc(List { len: 0, first: None })?;
            tx.set_root(list)?;
            Ok::<_, Error>(list)
        }
    })
}

/// One operation: a node at the front. Its number.
fn push(pool: &Pool, list: Ptr<List>) -> Result<u64> {
    pool.write(|tx| {
        let (len, first) = {
            let list = tx.get(list)?;
            (list.len + 1, list.first)
        };
        let node = tx.alloc(Node { value: len, again: [len; 40], next: first })?;
        tx.set(list, field!(List, first), Some(node))?;
        tx.set(list, field!(List, len), len)?;
        Ok::<_, Error>(len)
    })
}

/// How many operations a pool holds: all of them up to the last, each whole.
fn operations(pool: &Pool) -> Result<u64> {
    let view = pool.read()?;
    let list = view.root::<List>()?.expect("the list");
    let (len, mut at) = (view.get(list)?.len, view.get(list)?.first);
    let mut expected = len;
    while let Some(node) = at {
        let node = view.get(node)?;
        assert_eq!(node.value, expected);
        assert!(node.again.iter().all(|again| *again == expected), "half of operation {expected}");
        expected -= 1;
        at = node.next;
    }
    assert_eq!(expected, 0, "operations are missing");
    Ok(len)
}

fn options(mode: PoolMode) -> PoolOptions {
    PoolOptions { mode, puddle_size: 1 << 20, ..PoolOptions::default() }
}

/// Opens a copy, and looks at all of it. The store that it is of is closed, because both have one
/// window.
fn sound(copy: &Path, pools: &[&str]) -> Result<Vec<u64>> {
    let store = Store::open_with(copy, &OpenOptions::default())?;
    let report = store.report();
    assert!(report.clean && !report.copied && report.crash.is_none(), "{report:?}");
    assert!(report.damage.is_empty() && report.logs.is_empty(), "{report:?}");
    let mut found = Vec::new();
    for name in pools {
        let pool = store.pool_with(name, Access::ReadWrite)?;
        let report = pool.check()?;
        assert!(report.is_sound(), "{name}: {report:?}");
        found.push(operations(&pool)?);
        // It is a store to go on with.
        let list = list(&pool)?;
        push(&pool, list)?;
    }
    store.close()?;
    Ok(found)
}

#[test]
fn a_backup_while_threads_commit_holds_a_prefix_of_what_was_committed() -> Result<()> {
    let keep = directory();
    let dir = keep.path().join("store");
    let store = Store::open(&dir)?;
    let names = ["direct", "other", "shadowed"];
    let pools: Vec<Pool> = names
        .iter()
        .map(|name| {
            let mode = if *name == "shadowed" { PoolMode::Shadowed } else { PoolMode::Direct };
            store.create_pool(name, &options(mode))
        })
        .collect::<Result<_>>()?;
    // Before the first backup, however late the threads come.
    pools.iter().try_for_each(|pool| list(pool).map(drop))?;
    pools[2].psync()?;
    let done: Vec<AtomicU64> = names.iter().map(|_| AtomicU64::new(0)).collect();
    let psynced = AtomicU64::new(0);
    let stop = AtomicBool::new(false);
    let mut bounds = Vec::new();
    std::thread::scope(|scope| -> Result<()> {
        for (pool, done) in pools.iter().zip(&done) {
            let (stop, psynced) = (&stop, &psynced);
            scope.spawn(move || {
                let list = list(pool).unwrap();
                while !stop.load(Ordering::Relaxed) {
                    let number = push(pool, list).unwrap();
                    done.store(number, Ordering::SeqCst);
                    if pool.name() == "shadowed" && number.is_multiple_of(50) {
                        pool.psync().unwrap();
                        psynced.store(number, Ordering::SeqCst);
                    }
                    // Slower than copying: a store that grows faster than its copy fills the disk.
                    if number.is_multiple_of(20) {
                        std::thread::sleep(std::time::Duration::from_millis(1));
                    }
                }
            });
        }
        for round in 0..6 {
            std::thread::sleep(std::time::Duration::from_millis(30));
            let read = || done.iter().map(|done| done.load(Ordering::SeqCst)).collect::<Vec<_>>();
            let (mut from, psynced_before) = (read(), psynced.load(Ordering::SeqCst));
            from[2] = psynced_before;
            let report = store.backup(keep.path().join(format!("copy{round}")));
            let to = read();
            let report = report.inspect_err(|_| stop.store(true, Ordering::Relaxed))?.durable()?;
            assert_eq!((report.pools, report.objects), (3, 0));
            bounds.push((from, to));
        }
        stop.store(true, Ordering::Relaxed);
        Ok(())
    })?;
    drop(pools);
    store.close()?;
    for (round, (from, to)) in bounds.iter().enumerate() {
        let found = sound(&keep.path().join(format!("copy{round}")), &names)?;
        for ((found, from), to) in found.iter().zip(from).zip(to) {
            assert!(
                from <= found && found <= &(to + 1),
                "round {round}: {from} <= {found} <= {to}"
            );
        }
    }
    Ok(())
}

/// Transactions that change two pools in one thread, backups in this one; lengths of both pools in
/// each copy, or what is wrong with it.
fn lengths_in_copies(bug: Bug, rounds: usize) -> Result<Vec<Result<(u64, u64)>>> {
    let keep = directory();
    let store = Store::open(keep.path().join("store"))?;
    let a = store.create_pool("a", &options(PoolMode::Direct))?;
    let b = store.create_pool("b", &options(PoolMode::Direct))?;
    let (in_a, in_b) = (list(&a)?, list(&b)?);
    let stop = AtomicBool::new(false);
    std::thread::scope(|scope| -> Result<()> {
        scope.spawn(|| {
            while !stop.load(Ordering::Relaxed) {
                let both = store.write(&[&a, &b], |tx| {
                    for list in [in_a, in_b] {
                        let len = tx.get(list)?.len + 1;
                        tx.set(list, field!(List, len), len)?;
                    }
                    Ok::<_, Error>(())
                });
                both.unwrap();
            }
        });
        plant(bug);
        let made = (0..rounds)
            .try_for_each(|round| store.backup(keep.path().join(format!("copy{round}"))).map(drop));
        plant(Bug::None);
        stop.store(true, Ordering::Relaxed);
        made
    })?;
    drop((a, b));
    store.close()?;
    let of_copy = |round: usize| -> Result<(u64, u64)> {
        let copy =
            Store::open_with(keep.path().join(format!("copy{round}")), &OpenOptions::default())?;
        let len = |name: &str| -> Result<u64> {
            let pool = copy.pool(name)?;
            let view = pool.read()?;
            Ok(view.get(view.root::<List>()?.expect("the list"))?.len)
        };
        Ok((len("a")?, len("b")?))
    };
    Ok((0..rounds).map(of_copy).collect())
}

#[test]
fn transactions_over_several_pools_are_in_a_backup_wholly_or_not_at_all() -> Result<()> {
    for (round, lengths) in lengths_in_copies(Bug::None, 5)?.into_iter().enumerate() {
        let (a, b) = lengths?;
        assert_eq!(a, b, "round {round}");
    }
    Ok(())
}

#[test]
fn planted_a_backup_that_holds_no_writer_is_found() -> Result<()> {
    // A race: some copies may be whole.
    for _ in 0..10 {
        if lengths_in_copies(Bug::BackupNotHeld, 10)?
            .iter()
            .any(|l| !matches!(l, Ok((a, b)) if a == b))
        {
            return Ok(());
        }
    }
    panic!("100 copies were whole")
}

#[test]
fn a_backup_that_cannot_be_made_leaves_nothing() -> Result<()> {
    let keep = directory();
    let store = Store::open(keep.path().join("store"))?;
    let pool = store.create_pool("p", &options(PoolMode::Direct))?;
    let in_pool = list(&pool)?;
    push(&pool, in_pool)?;
    let entries = || fs::read_dir(keep.path()).unwrap().count();
    let before = entries();
    let refused = |target: &Path| match store.backup(target) {
        Err(Error::Store(StoreError::Backup { kind, detail })) => (kind, detail),
        other => panic!("{other:?}"),
    };
    let full = keep.path().join("full");
    fs::create_dir(&full).unwrap();
    fs::write(full.join("x"), "x").unwrap();
    let is = |(kind, detail): (ErrorKind, String), wanted, why: &str| {
        assert!(kind == wanted && detail.contains(why), "{kind}: {detail}");
    };
    is(refused(&full), ErrorKind::Exists, "is not empty");
    is(refused(&keep.path().join("store/inside")), ErrorKind::Misuse, "inside the store");
    is(refused(&keep.path().join("none/there")), ErrorKind::NotFound, "cannot be made");
    let target = keep.path().join("copy");
    let mut steps = 0;
    let stopped = store.backup_with(&target, &mut |_, _| {
        steps += 1;
        steps < 2
    });
    assert!(stopped.as_ref().is_err_and(|e| e.kind() == ErrorKind::Aborted), "{stopped:?}");
    let in_tx = pool.write(|_| store.backup(&target).map(drop));
    assert!(matches!(in_tx, Err(Error::WouldDeadlock { .. })), "{in_tx:?}");
    fs::remove_dir_all(full).unwrap();
    assert_eq!(entries(), before, "something was left");
    // What a crash left is removed by the next one, and an empty directory is a target.
    let abandoned = keep.path().join(".copy.cenote-backup-0123456789abcdef");
    fs::create_dir_all(abandoned.join("puddles")).unwrap();
    fs::write(abandoned.join("backup-unfinished"), "").unwrap();
    fs::create_dir(keep.path().join(".copy.cenote-backup-0123456789abcdee")).unwrap();
    fs::create_dir(&target).unwrap();
    store.backup(&target)?.durable()?;
    assert_eq!(entries(), before + 1);
    assert!(!target.join("backup-unfinished").exists());
    // It is a store of its own, also beside the one that it is of.
    drop(Store::open_with(&target, &OpenOptions::default())?);
    drop(pool);
    store.close()?;
    assert_eq!(sound(&target, &["p"])?, [1]);
    Ok(())
}

#[test]
fn a_backup_removes_no_directory_that_is_not_one_in_the_making() -> Result<()> {
    let keep = directory();
    let store = Store::open(keep.path().join("store"))?;
    // A backup that is finished, of such a name; what a user made; and one with a mark.
    let finished = keep.path().join(".copy.cenote-backup-0123456789abcdef");
    store.backup(&finished)?.durable()?;
    let notes = keep.path().join(".copy.cenote-backup-0123456789abcdee");
    fs::create_dir(&notes).unwrap();
    fs::write(notes.join("notes"), "precious").unwrap();
    let marked = keep.path().join(".copy.cenote-backup-notes");
    fs::create_dir(&marked).unwrap();
    fs::write(marked.join("backup-unfinished"), "of that name only").unwrap();
    let target = keep.path().join("copy");
    store.backup(&target)?.durable()?;
    assert_eq!(fs::read_to_string(notes.join("notes")).unwrap(), "precious");
    assert!(marked.join("backup-unfinished").exists());
    // Of a store without a pool, too: these are two.
    store.close()?;
    for copy in [&finished, &target] {
        let copy = Store::open_with(copy, &OpenOptions::default())?;
        assert!(copy.report().clean && copy.pools().is_empty());
        copy.close()?;
    }
    Ok(())
}

#[test]
fn holes_stay_holes() -> Result<()> {
    use std::os::unix::fs::MetadataExt;
    let keep = directory();
    let dir = keep.path().join("store");
    let store = Store::open(&dir)?;
    let pool =
        store.create_pool("p", &PoolOptions { puddle_size: 16 << 20, ..PoolOptions::default() })?;
    let in_pool = list(&pool)?;
    push(&pool, in_pool)?;
    pool.trim()?;
    let target = keep.path().join("copy");
    store.backup(&target)?.durable()?;
    let blocks = |dir: &Path| -> u64 {
        let files = fs::read_dir(dir.join("puddles")).unwrap().flatten();
        files
            .map(|file| file.metadata().unwrap())
            .filter(|m| m.len() == 16 << 20)
            .map(|m| m.blocks() * 512)
            .sum()
    };
    let (of_store, of_copy) = (blocks(&dir), blocks(&target));
    if of_store == 16 << 20 {
        println!("skipped: this file system gives no space back");
        return Ok(());
    }
    assert!(of_copy <= of_store, "{of_copy} of {of_store}");
    drop(pool);
    store.close()?;
    assert_eq!(sound(&target, &["p"])?, [1]);
    Ok(())
}
