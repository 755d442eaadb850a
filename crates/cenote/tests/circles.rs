//! Threads that hold a pool and want another one: no circle of them waits for ever. The one that
//! would close it gets an error.

use crate::support::{directory, within};
use cenote::{Error, Pool, PoolMode, PoolOptions, ReclaimPolicy, Result, Store};
use cenote_medium::planted::{Bug, plant};
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Barrier, mpsc};
use std::time::Duration;

/// How a thread has a pool.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum How {
    Reading,
    Writing,
}

use How::{Reading, Writing};

/// Has a pool while it does something.
fn having(pool: &Pool, how: How, then: impl FnOnce() -> Result<()>) -> Result<()> {
    match how {
        Reading => {
            let view = pool.read()?;
            let done = then();
            view.finish()?;
            done
        }
        Writing => pool.write(|_| then()),
    }
}

/// Each thread has one pool and wants the next; the last one wants the first. How many were
/// refused.
fn circle(pools: &[Pool], (has, wants): (How, How), bug: Bug) -> usize {
    let (met, refused) = (Barrier::new(pools.len()), AtomicUsize::new(0));
    std::thread::scope(|scope| {
        for (at, own) in pools.iter().enumerate() {
            let (next, met, refused) = (&pools[(at + 1) % pools.len()], &met, &refused);
            scope.spawn(move || {
                plant(bug);
                let done = having(own, has, || {
                    met.wait();
                    having(next, wants, || Ok(()))
                });
                match done {
                    Ok(()) => {}
                    Err(Error::WouldDeadlock { .. }) => {
                        refused.fetch_add(1, Ordering::SeqCst);
                    }
                    Err(error) => panic!("{error}"),
                }
            });
        }
    });
    refused.into_inner()
}

/// Pools of one store, or each of its own.
fn pools(directories: &[tempfile::TempDir], count: usize) -> Vec<Pool> {
    let stores: Vec<Store> =
        directories.iter().map(|at| Store::open(at.path()).expect("a store")).collect();
    (0..count)
        .map(|at| stores[at % stores.len()].pool(&format!("p{at}")).expect("a pool"))
        .collect()
}

#[test]
fn a_circle_of_threads_that_wait_for_each_others_pools_is_refused_to_one_of_them() {
    within(60, || {
        for count in [2, 3, 5] {
            let one = [directory()];
            let pools = pools(&one, count);
            for how in [(Reading, Writing), (Writing, Reading)] {
                for _ in 0..20 {
                    let refused = circle(&pools, how, Bug::None);
                    assert!((1..count).contains(&refused), "{count} {how:?}: {refused}");
                }
            }
            assert_eq!(circle(&pools, (Reading, Reading), Bug::None), 0);
        }
    });
}

#[test]
fn transactions_of_several_stores_that_nest_in_a_circle_are_refused_to_one_of_them() {
    within(60, || {
        let directories: Vec<_> = (0..3).map(|_| directory()).collect();
        let pools = pools(&directories, 3);
        for how in [(Writing, Writing), (Reading, Writing), (Writing, Reading)] {
            for _ in 0..20 {
                assert!((1..3).contains(&circle(&pools, how, Bug::None)), "{how:?}");
            }
        }
    });
}

/// A writer that waits for a view keeps others from a first view, and none from a second.
#[test]
fn views_in_two_orders_beside_writers_that_wait_do_not_wait_for_each_other() {
    within(60, || {
        let one = [directory()];
        let pools = pools(&one, 2);
        let (met, ready) = (Barrier::new(2), Barrier::new(2));
        std::thread::scope(|scope| {
            for at in 0..2 {
                let (pools, met, ready) = (&pools, &met, &ready);
                scope.spawn(move || {
                    let view = pools[at].read().expect("a view");
                    met.wait();
                    let writer = pools[at].clone();
                    let writer = scope.spawn(move || writer.write(|tx| tx.alloc(1u64).map(drop)));
                    // Time for both to wait.
                    std::thread::sleep(Duration::from_millis(100));
                    ready.wait();
                    assert!(!writer.is_finished());
                    drop(pools[1 - at].read().expect("a second view"));
                    drop(view);
                    writer.join().expect("a writer").expect("committed");
                });
            }
        });
    });
}

/// A run in the background waits for views of every pool that it is for.
#[test]
fn waiting_for_a_reclaim_with_a_view_of_another_pool_is_refused() {
    within(60, || {
        let one = directory();
        for pool in pools(std::slice::from_ref(&one), 2) {
            pool.write(|tx| tx.alloc(1u64).map(drop)).expect("a leak");
        }
        let store = Store::open(one.path()).expect("a store");
        store.reclaim_in_background(ReclaimPolicy::Always).expect("a thread");
        let pools = [store.pool("p0").expect("a pool"), store.pool("p1").expect("a pool")];
        let view = pools[0].read().expect("a view");
        let refused = pools[1].reclaim();
        assert!(matches!(refused, Err(Error::WouldDeadlock { .. })), "{refused:?}");
        drop(view);
        assert_eq!(pools[1].reclaim().expect("a report").blocks, 1);
    });
}

/// Whether this waits for ever with the bug planted, and ends without.
fn is_found(bug: Bug, work: fn(Bug)) {
    for (bug, waits) in [(Bug::None, false), (bug, true)] {
        let (done, ended) = mpsc::channel();
        std::thread::spawn(move || {
            plant(bug);
            work(bug);
            let _ = done.send(());
        });
        let patience = Duration::from_secs(if waits { 2 } else { 60 });
        assert_eq!(ended.recv_timeout(patience).is_err(), waits, "{bug:?}");
    }
}

/// Where the kernel tells of the calling thread.
fn this_thread() -> PathBuf {
    Path::new("/proc").join(std::fs::read_link("/proc/thread-self").expect("this thread"))
}

/// Returns when a thread sleeps, and goes on sleeping.
fn until_it_sleeps(thread: &Path) {
    let mut seen = 0;
    while seen < 3 {
        let stat = std::fs::read_to_string(thread.join("stat")).expect("a thread");
        let (_, state) = stat.rsplit_once(") ").expect("a state");
        seen = if state.starts_with('S') { seen + 1 } else { 0 };
        std::thread::sleep(Duration::from_millis(10));
    }
}

/// A thread with a view of a pool of another store wants to psync what one that psyncs keeps, which
/// waits for a transaction, which wants that view's pool. How many of the three are refused.
fn circle_of_psyncs(together: bool, bug: Bug) -> usize {
    let directories = [directory(), directory()];
    let [one, two] = directories.each_ref().map(|at| Store::open(at.path()).expect("a store"));
    let options = PoolOptions { mode: PoolMode::Shadowed, ..PoolOptions::default() };
    let [a, b] = ["a", "b"].map(|name| one.create_pool(name, &options).expect("a pool"));
    let other = two.pool("x").expect("a pool");
    let (written, (tell, told)) = (Barrier::new(2), mpsc::channel());
    let refused = |done: Result<()>| match done {
        Ok(()) => 0,
        Err(Error::WouldDeadlock { .. }) => 1,
        Err(error) => panic!("{error}"),
    };
    let view = other.read().expect("a view");
    std::thread::scope(|scope| {
        let transaction = scope.spawn(|| {
            plant(bug);
            refused(a.write(|tx| {
                tx.alloc(1u64)?;
                written.wait();
                tell.send(this_thread()).expect("a listener");
                other.write(|tx| tx.alloc(1u64).map(drop))
            }))
        });
        let psync = scope.spawn(|| {
            plant(bug);
            written.wait();
            tell.send(this_thread()).expect("a listener");
            let pools = [&a, &b];
            one.psync(&pools[..if together { 2 } else { 1 }]).map(drop)
        });
        for _ in 0..2 {
            until_it_sleeps(&told.recv().expect("a thread"));
        }
        plant(bug);
        let own = refused(if together { b.psync() } else { a.psync() }.map(drop));
        drop(view);
        own + refused(psync.join().expect("no panic")) + transaction.join().expect("no panic")
    })
}

#[test]
fn a_psync_in_a_view_that_closes_a_circle_over_two_stores_is_refused_to_one_of_them() {
    within(60, || {
        for together in [false, true] {
            for _ in 0..5 {
                assert_eq!(circle_of_psyncs(together, Bug::None), 1, "{together}");
            }
        }
    });
}

#[test]
fn a_psync_that_waits_unnoted_is_found() {
    is_found(Bug::GateNotNoted, |bug| {
        let _ = circle_of_psyncs(true, bug);
    });
}

#[test]
fn a_circle_that_is_not_seen_is_found() {
    is_found(Bug::CircleNotSeen, |bug| {
        let one = [directory()];
        let _ = circle(&pools(&one, 2), (Reading, Writing), bug);
    });
}

#[test]
fn a_reclaim_that_is_awaited_with_a_view_is_found() {
    is_found(Bug::ReclaimAwaitedWithView, |_| {
        let one = [directory()];
        drop(pools(&one, 2));
        let store = Store::open(one[0].path()).expect("a store");
        store.reclaim_in_background(ReclaimPolicy::Always).expect("a thread");
        let pools = [store.pool("p0").expect("a pool"), store.pool("p1").expect("a pool")];
        let view = pools[0].read().expect("a view");
        drop(pools[1].reclaim());
        drop(view);
    });
}
