//! Snapshots at their edges: values that are younger, limits, copies that fail, handles that are
//! gone, processes that die, and what is refused.

use super::common::{directory, pool};
use super::world::{Random, look, make, turn};
use cenote::{
    Access, Error, ErrorKind, HeapKind, OpenOptions, Owned, Persist, Pool, PoolOptions, Ptr,
    Reader, Result, SnapshotError, Store,
};
use cenote_medium::planted::{Bug, WindowBug, plant};
use cenote_testkit::child;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::mpsc::channel;

#[derive(Persist)]
#[persist(name = "snapshots::Cell")]
struct Cell {
    value: u64,
    next: Option<Ptr<Cell>>,
}

/// One of 31 types.
#[derive(Persist)]
#[persist(name = "snapshots::Other")]
struct Other {
    values: [u64; 77],
    owned: Owned<Leaf>,
}

#[derive(Persist)]
#[persist(name = "snapshots::Leaf", owned)]
struct Leaf {
    value: u64,
}

fn cell(tx: &mut cenote::Tx<'_>, value: u64) -> Result<Ptr<Cell>> {
    tx.alloc(Cell { value, next: None })
}

/// Whether a test fails with a fault.
fn finds(fault: WindowBug, test: impl FnOnce() -> Result<()>) -> bool {
    plant(Bug::Window(fault));
    let result = catch_unwind(AssertUnwindSafe(test));
    plant(Bug::None);
    !matches!(result, Ok(Ok(())))
}

fn dangles<T: Persist>(reader: &impl Reader, ptr: Ptr<T>) -> bool {
    matches!(reader.get(ptr), Err(Error::Dangling { .. }))
}

/// In blocks of a class that has some, of a class that has none, and in puddles that are younger.
fn younger_values_dangle() -> Result<()> {
    let directory = directory();
    let pool = pool(directory.path());
    let old = pool.write(|tx| cell(tx, 1))?;
    let snapshot = pool.snapshot()?;
    let (young, other) = pool.write(|tx| -> Result<_> {
        let other = tx.alloc(Other { values: [3; 77], owned: Owned::EMPTY })?;
        Ok((cell(tx, 2)?, other))
    })?;
    assert_eq!(snapshot.get(old)?.value, 1);
    assert!(dangles(&snapshot, young) && dangles(&snapshot, other));
    let many =
        pool.write(|tx| (0..20_000).map(|value| cell(tx, value)).collect::<Result<Vec<_>>>())?;
    assert!(many.iter().all(|young| dangles(&snapshot, *young)));
    let next = pool.snapshot()?;
    assert_eq!(next.get(young)?.value, 2);
    assert_eq!(next.get(*many.last().expect("many"))?.value, 19_999);
    Ok(())
}

#[test]
fn values_that_are_younger_than_a_snapshot_dangle_in_it() -> Result<()> {
    younger_values_dangle()?;
    for fault in [WindowBug::AllocationNotKept, WindowBug::StaleShared, WindowBug::LiveMarks] {
        assert!(finds(fault, younger_values_dangle), "{fault:?}");
    }
    Ok(())
}

/// A transaction that would keep more than the limit fails, with the name of the snapshot. Nothing
/// changes, and all goes on when the snapshot is gone.
fn limit_is_kept() -> Result<()> {
    let directory = directory();
    let pool = pool(directory.path());
    let all =
        pool.write(|tx| (0..50_000).map(|value| cell(tx, value)).collect::<Result<Vec<_>>>())?;
    pool.limit_snapshots(200 << 10);
    let other = pool.clone();
    let named = std::thread::Builder::new().name("the reporter".into());
    let snapshot =
        named.spawn(move || other.snapshot()).expect("a thread").join().expect("ends")?;
    let change = || {
        pool.write(|tx| -> Result<()> {
            all.iter().try_for_each(|cell| tx.get_mut(*cell).map(|cell| cell.value += 1))
        })
    };
    let error = change().expect_err("the limit");
    assert_eq!(error.kind(), ErrorKind::Full);
    let text = error.to_string();
    assert!(text.contains("`the reporter`") && text.contains("204800 bytes"), "{text}");
    assert!(pool.snapshot_bytes() <= 200 << 10 && pool.snapshot_bytes() > 0);
    let info = snapshot.info();
    assert_eq!((&*info.thread, info.bytes), ("`the reporter`", pool.snapshot_bytes()));
    let values =
        |reader: &dyn Fn(Ptr<Cell>) -> u64| all.iter().map(|cell| reader(*cell)).eq(0..50_000);
    assert!(values(&|cell| snapshot.get(cell).expect("a cell").value));
    {
        let view = pool.read()?;
        assert!(values(&|cell| view.get(cell).expect("a cell").value), "the transaction aborted");
    }
    drop(snapshot);
    assert_eq!(pool.snapshot_bytes(), 0);
    change()?;
    // A higher limit lets the writer go on too.
    let snapshot = pool.snapshot()?;
    pool.limit_snapshots(64 << 20);
    change()?;
    assert_eq!(snapshot.get(all[7])?.value, 8);
    Ok(())
}

#[test]
fn memory_for_old_pages_is_limited_and_the_error_names_the_snapshot() -> Result<()> {
    limit_is_kept()?;
    assert!(finds(WindowBug::LimitIgnored, limit_is_kept));
    Ok(())
}

/// Where the kernel has no memory for a copy, the transaction fails before its store.
fn copy_failed(fault: WindowBug) -> Result<()> {
    let directory = directory();
    let pool = pool(directory.path());
    let (first, gone) = pool.write(|tx| Ok::<_, Error>((cell(tx, 1)?, cell(tx, 2)?)))?;
    let snapshot = pool.snapshot()?;
    plant(Bug::Window(fault));
    let changed = pool.write(|tx| tx.get_mut(first).map(|cell| cell.value = 5));
    let freed = pool.write(|tx| tx.free(gone));
    let taken = pool.write(|tx| cell(tx, 7));
    plant(Bug::None);
    for error in [changed.err(), freed.err(), taken.err()] {
        let error = error.expect("no memory");
        assert!(error.to_string().contains("could not be copied"), "{error}");
        assert_eq!(error.kind(), ErrorKind::Full);
    }
    assert_eq!((snapshot.get(first)?.value, snapshot.get(gone)?.value), (1, 2));
    let view = pool.read()?;
    assert_eq!((view.get(first)?.value, view.get(gone)?.value), (1, 2));
    view.finish()?;
    pool.write(|tx| tx.get_mut(first).map(|cell| cell.value = 6))?;
    pool.write(|tx| tx.free(gone))?;
    assert_eq!((snapshot.get(first)?.value, snapshot.get(gone)?.value), (1, 2));
    Ok(())
}

#[test]
fn a_copy_that_fails_is_an_error_of_the_writer() -> Result<()> {
    copy_failed(WindowBug::CopyFails)?;
    let ignored = catch_unwind(|| copy_failed(WindowBug::CopyFailureIgnored));
    plant(Bug::None);
    assert!(!matches!(ignored, Ok(Ok(()))));
    Ok(())
}

/// A snapshot that is asked for while a transaction runs shows none of it, or all.
fn begins_between_transactions(fault: Bug) -> Result<()> {
    let directory = directory();
    let pool = pool(directory.path());
    let (a, b) = pool.write(|tx| Ok::<_, Error>((cell(tx, 0)?, cell(tx, 0)?)))?;
    let ((begun, has_begun), (asked, is_asked)) = (channel(), channel());
    std::thread::scope(|scope| {
        let other = pool.clone();
        let reader = scope.spawn(move || -> Result<_> {
            has_begun.recv().expect("begun");
            plant(Bug::Window(WindowBug::BegunWithin));
            if fault == Bug::None {
                plant(Bug::None);
            }
            asked.send(()).expect("asked");
            let snapshot = other.snapshot()?;
            Ok((snapshot.get(a)?.value, snapshot.get(b)?.value))
        });
        pool.write(|tx| -> Result<()> {
            tx.get_mut(a)?.value = 1;
            begun.send(()).expect("begun");
            is_asked.recv().expect("asked");
            std::thread::sleep(std::time::Duration::from_millis(50));
            tx.get_mut(b)?.value = 1;
            Ok(())
        })?;
        let (a, b) = reader.join().expect("ends")?;
        assert_eq!(a, b);
        Ok(())
    })
}

#[test]
fn a_snapshot_begins_between_two_transactions() -> Result<()> {
    begins_between_transactions(Bug::None)?;
    let within = Bug::Window(WindowBug::BegunWithin);
    let found = catch_unwind(|| begins_between_transactions(within));
    assert!(!matches!(found, Ok(Ok(()))));
    let directory = directory();
    let pool = pool(directory.path());
    let own = pool.write(|_| -> Result<()> { pool.snapshot().map(drop) });
    assert!(matches!(own, Err(Error::WouldDeadlock { .. })), "{own:?}");
    Ok(())
}

#[test]
fn snapshots_of_one_commit_share_and_four_commits_are_seen_at_most() -> Result<()> {
    let directory = directory();
    let pool = pool(directory.path());
    let first = pool.write(|tx| cell(tx, 0))?;
    let mut held = Vec::new();
    for value in 1..=4 {
        held.extend([pool.snapshot()?, pool.snapshot()?]);
        held.push(held[held.len() - 1].clone());
        pool.write(|tx| tx.get_mut(first).map(|cell| cell.value = value))?;
    }
    match pool.snapshot() {
        Err(error @ Error::Snapshot(SnapshotError::TooMany { windows: 4, .. })) => {
            assert_eq!(error.kind(), ErrorKind::Busy);
        }
        other => panic!("{other:?}"),
    }
    let values: Vec<u64> = held.iter().map(|s| s.get(first).expect("a cell").value).collect();
    assert_eq!(values, [0, 0, 0, 1, 1, 1, 2, 2, 2, 3, 3, 3]);
    drop(held.drain(..3));
    assert_eq!(pool.snapshot()?.get(first)?.value, 4);
    // Sent to another thread, and read there while this one writes.
    let snapshot = held.pop().expect("one");
    let reader = std::thread::spawn(move || snapshot.get(first).map(|cell| cell.value));
    pool.write(|tx| tx.get_mut(first).map(|cell| cell.value = 9))?;
    assert_eq!(reader.join().expect("ends")?, 3);
    Ok(())
}

#[test]
fn a_snapshot_keeps_its_pool_and_its_store() -> Result<()> {
    let directory = directory();
    let (snapshot, world, model) = {
        let pool = pool(directory.path());
        let (world, mut model) = make(&pool)?;
        let mut random = Random(3);
        for _ in 0..40 {
            model = turn(&pool, world, &model, &mut random)?;
        }
        (pool.snapshot()?, world, model)
    };
    assert!(look(&snapshot)? == model);
    let pool = snapshot.pool().clone();
    let next = turn(&pool, world, &model, &mut Random(5))?;
    assert!(look(&snapshot)? == model);
    drop(pool);
    assert!(look(&snapshot)? == model);
    snapshot.finish()?;
    let store = Store::open(directory.path())?;
    assert!(store.report().clean);
    assert!(look(&store.pool("test")?.read()?)? == next);
    Ok(())
}

/// Values that were freed since stay, also where the heap gives superblocks to other types, or
/// gives their space back.
fn freed_values_stay() -> Result<()> {
    let directory = directory();
    let store = Store::open(directory.path())?;
    let pool = store.pool("test")?;
    let many =
        pool.write(|tx| (0..40_000).map(|value| cell(tx, value)).collect::<Result<Vec<_>>>())?;
    let snapshot = pool.snapshot()?;
    let collected = pool.collect();
    assert!(
        matches!(collected, Err(Error::Snapshot(SnapshotError::InUse { .. }))),
        "{collected:?}"
    );
    for part in many.chunks(1000) {
        pool.write(|tx| part.iter().try_for_each(|cell| tx.free(*cell)))?;
    }
    pool.trim()?;
    pool.write(|tx| (0..9_000).try_for_each(|n| cell(tx, n + 1_000_000).map(drop)))?;
    let other = || Other { values: [3; 77], owned: Owned::EMPTY };
    pool.write(|tx| (0..2_000).try_for_each(|_| tx.alloc(other()).map(drop)))?;
    for (value, cell) in many.iter().enumerate() {
        assert_eq!(snapshot.get(*cell)?.value, value as u64);
    }
    assert!(store.remove_pool("test").is_err(), "it is open");
    drop(snapshot);
    pool.collect()?;
    Ok(())
}

#[test]
fn what_would_take_values_away_is_refused_or_harmless() -> Result<()> {
    freed_values_stay()?;
    for fault in [WindowBug::DescriptorsNotKept, WindowBug::FreedBlockNotKept] {
        assert!(finds(fault, freed_values_stay), "{fault:?}");
    }
    Ok(())
}

#[test]
fn pools_without_snapshots_say_why() -> Result<()> {
    let directory = directory();
    let store = Store::open(directory.path())?;
    let options = |heap| PoolOptions { heap, ..PoolOptions::default() };
    let wear = store.create_pool("wear", &options(HeapKind::Wear { wait_ms: 0 }))?;
    let refused = |pool: &Pool| match pool.snapshot() {
        Err(error @ Error::Snapshot(_)) => {
            assert_eq!(error.kind(), ErrorKind::Unsupported, "{error}");
            error.to_string()
        }
        other => panic!("{other:?}"),
    };
    assert!(refused(&wear).contains("view"));
    drop(wear);
    store.pool("test")?.write(|tx| cell(tx, 1))?;
    store.close()?;
    let options = OpenOptions { access: Access::ReadOnly, ..OpenOptions::default() };
    let store = Store::open_with(directory.path(), &options)?;
    assert!(refused(&store.pool_with("test", Access::ReadOnly)?).contains("for reading only"));
    Ok(())
}

/// The leaks of an earlier session, which only a program's own pointers lead to.
fn reclaimed_under_a_snapshot(fault: Option<WindowBug>) -> Result<()> {
    let directory = directory();
    let leaks = pool(directory.path())
        .write(|tx| (0..500).map(|value| cell(tx, value)).collect::<Result<Vec<_>>>())?;
    let pool = pool(directory.path());
    let snapshot = pool.snapshot()?;
    let reclaiming = pool.clone();
    let reclaim = std::thread::spawn(move || {
        if let Some(fault) = fault {
            plant(Bug::Window(fault));
        }
        reclaiming.reclaim().map(|report| report.blocks)
    });
    std::thread::sleep(std::time::Duration::from_millis(200));
    assert!(!reclaim.is_finished(), "it waits for the snapshot");
    for (value, leak) in leaks.iter().enumerate() {
        assert_eq!(snapshot.get(*leak)?.value, value as u64);
    }
    drop(snapshot);
    assert_eq!(reclaim.join().expect("ends")?, 500);
    Ok(())
}

#[test]
fn a_reclaim_frees_nothing_that_a_snapshot_looks_at() -> Result<()> {
    reclaimed_under_a_snapshot(None)?;
    let unrefused = Some(WindowBug::ReclaimNotRefused);
    let found = catch_unwind(|| reclaimed_under_a_snapshot(unrefused));
    assert!(!matches!(found, Ok(Ok(()))));
    Ok(())
}

const IN_CHILDREN: &str = "edges::what_children_do";

/// Not a test of its own.
#[test]
fn what_children_do() -> Result<()> {
    let Some((task, directory)) = child::task() else { return Ok(()) };
    let pool = pool(&directory);
    let (world, mut model) = make(&pool)?;
    let mut random = Random(17);
    for _ in 0..30 {
        model = turn(&pool, world, &model, &mut random)?;
    }
    let snapshot = pool.snapshot()?;
    let mut next = model.clone();
    for _ in 0..30 {
        next = turn(&pool, world, &next, &mut random)?;
    }
    if task == "dies" {
        child::say(next.commit);
        child::wait_to_go_on();
        return Ok(());
    }
    // SAFETY: the harness has one thread that waits for this one; the child ends by `_exit`.
    match unsafe { libc::fork() } {
        0 => {
            let forked = pool.snapshot().is_err();
            drop(snapshot.clone());
            drop(snapshot);
            // SAFETY: a system call.
            unsafe { libc::_exit(i32::from(!forked)) };
        }
        forked => {
            let mut status = 0;
            // SAFETY: a system call with a pointer to a local.
            unsafe { libc::waitpid(forked, &raw mut status, 0) };
            assert_eq!(status, 0, "the child refused a snapshot, and dropped its parent's");
        }
    }
    turn(&pool, world, &next, &mut random)?;
    assert!(look(&snapshot)? == model);
    Ok(())
}

#[test]
fn a_process_that_is_killed_with_a_snapshot_loses_nothing() -> Result<()> {
    let directory = directory();
    let mut dying =
        child::Talking::start(&mut child::with_task(IN_CHILDREN, "dies", directory.path()));
    let commit: u64 = dying.hear().expect("a commit").parse().expect("a number");
    dying.kill();
    let pool = pool(directory.path());
    assert_eq!(look(&pool.read()?)?.commit, commit);
    assert!(pool.check()?.is_sound());
    Ok(())
}

#[test]
fn a_forked_child_takes_no_snapshot_and_drops_none() {
    let directory = directory();
    let (passed, said) = child::run_task(IN_CHILDREN, "forks", directory.path());
    assert!(passed, "{said}");
}
