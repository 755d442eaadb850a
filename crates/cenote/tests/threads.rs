//! Threads that come and go, in any order with the stores and pools that they use: nothing waits
//! for itself, nothing is lost, nothing leaks.

use crate::support::{directory, within};
use cenote::{Access, Error, Persist, Pool, Ptr, Reader, Result, Store, View};
use cenote_medium::planted::{Bug, plant};
use cenote_testkit::child::again;
use std::cell::RefCell;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Barrier};

#[derive(Persist)]
#[persist(name = "threads::Counter")]
struct Counter {
    value: u64,
    _self: Option<Ptr<Counter>>,
}

fn counter(pool: &Pool) -> Result<Ptr<Counter>> {
    pool.write(|tx| -> Result<_> {
        let counter = tx.alloc(Counter { value: 0, _self: None })?;
        tx.set_root(counter)?;
        Ok(counter)
    })
}

fn count(pool: &Pool) -> Result<()> {
    pool.write(|tx| -> Result<()> {
        let counter = tx.root::<Counter>()?.unwrap();
        tx.get_mut(counter)?.value += 1;
        Ok(())
    })
}

/// A transaction in the destructor of a thread-local, which runs after the destructors of the
/// store's own thread-locals.
struct AtEnd(Option<Box<dyn FnOnce()>>);

impl Drop for AtEnd {
    fn drop(&mut self) {
        if let Some(end) = self.0.take() {
            end();
        }
    }
}

thread_local! {
    static EARLY: RefCell<AtEnd> = const { RefCell::new(AtEnd(None)) };
    static EARLIER: RefCell<AtEnd> = const { RefCell::new(AtEnd(None)) };
    static VIEW: RefCell<Option<View<'static>>> = const { RefCell::new(None) };
}

#[test]
fn threads_that_end_give_their_logs_back_also_if_they_write_in_destructors() -> Result<()> {
    let dir = directory();
    let store = Store::open(dir.path())?;
    let pool = Arc::new(store.pool("p")?);
    let root = counter(&pool)?;
    for round in 0..600u64 {
        let pool = pool.clone();
        std::thread::spawn(move || {
            if round % 2 == 0 {
                // Registered first, so destroyed last.
                let late = pool.clone();
                EARLY
                    .with(|end| end.borrow_mut().0 = Some(Box::new(move || count(&late).unwrap())));
            }
            count(&pool).unwrap();
        })
        .join()
        .unwrap();
    }
    assert_eq!(pool.read()?.get(root)?.value, 900);
    let logs = store.info().log_puddles;
    assert!(logs <= 4, "{logs} logs for one thread at a time");
    drop(pool);
    store.close()
}

#[test]
fn transactions_in_several_destructors_of_one_thread_all_commit() -> Result<()> {
    let dir = directory();
    let store = Store::open(dir.path())?;
    let pool = Arc::new(store.pool("p")?);
    let root = counter(&pool)?;
    let in_thread = pool.clone();
    std::thread::spawn(move || {
        for key in [&EARLIER, &EARLY] {
            let late = in_thread.clone();
            key.with(|end| {
                end.borrow_mut().0 =
                    Some(Box::new(move || (0..3).for_each(|_| count(&late).unwrap())))
            });
        }
        count(&in_thread).unwrap();
    })
    .join()
    .unwrap();
    assert_eq!(pool.read()?.get(root)?.value, 7);
    drop(pool);
    store.close()
}

#[test]
fn a_view_that_outlives_the_threads_other_variables_ends_with_it() {
    let dir = directory();
    let store = Store::open(dir.path()).unwrap();
    let pool: &'static Pool = Box::leak(Box::new(store.pool("p").unwrap()));
    let root = counter(pool).unwrap();
    within(60, move || {
        VIEW.with(|view| assert!(view.borrow().is_none())); // registered before the crate's own
        VIEW.with(|view| *view.borrow_mut() = Some(pool.read().unwrap()));
    });
    within(60, move || count(pool)).unwrap();
    assert_eq!(pool.read().unwrap().get(root).unwrap().value, 1);
}

#[test]
fn a_store_that_goes_away_before_the_threads_that_used_it_leaves_them_alone() -> Result<()> {
    let dir = directory();
    let other_dir = directory();
    for _ in 0..20 {
        let store = Store::open(dir.path())?;
        let other = Store::open(other_dir.path())?;
        let pool = store.pool("p")?;
        let other_pool = other.pool("p")?;
        counter(&pool)?;
        counter(&other_pool)?;
        let (used, closed) = (Arc::new(Barrier::new(5)), Arc::new(Barrier::new(5)));
        let threads: Vec<_> = (0..4)
            .map(|_| {
                let (used, closed, pool, other_pool) =
                    (used.clone(), closed.clone(), pool.clone(), other_pool.clone());
                std::thread::spawn(move || {
                    count(&pool).unwrap();
                    count(&other_pool).unwrap();
                    drop(pool);
                    used.wait();
                    closed.wait();
                    // The thread's log on the first store is gone, and the store perhaps open
                    // again.
                    count(&other_pool).unwrap();
                })
            })
            .collect();
        used.wait();
        drop(pool);
        store.close()?;
        let again = Store::open(dir.path())?;
        assert!(again.report().clean);
        count(&again.pool("p")?)?;
        closed.wait();
        for thread in threads {
            thread.join().unwrap();
        }
        drop((again, other_pool));
        other.close()?;
    }
    Ok(())
}

/// A scope does not wait for the destructors of its threads' variables.
#[test]
fn a_close_does_not_fail_because_a_thread_is_just_ending() -> Result<()> {
    let dir = directory();
    for _ in 0..100 {
        let store = Store::open(dir.path())?;
        let pool = store.pool("p")?;
        if pool.read()?.root::<Counter>()?.is_none() {
            counter(&pool)?;
        }
        std::thread::scope(|scope| {
            for _ in 0..4 {
                scope.spawn(|| count(&pool).unwrap());
            }
        });
        drop(pool);
        store.close()?;
    }
    let store = Store::open(dir.path())?;
    assert!(store.report().clean);
    let pool = store.pool("p")?;
    let view = pool.read()?;
    assert_eq!(view.get(view.root::<Counter>()?.unwrap())?.value, 400);
    Ok(())
}

#[test]
fn pools_are_opened_and_dropped_by_many_threads_at_once() -> Result<()> {
    let dir = directory();
    let store = Store::open(dir.path())?;
    counter(&store.pool("p")?)?;
    within(120, {
        let store = store.clone();
        move || {
            std::thread::scope(|scope| {
                for _ in 0..2 {
                    scope.spawn(|| {
                        for _ in 0..5000 {
                            let pool = store.pool("p").unwrap();
                            count(&pool).unwrap();
                        }
                    });
                }
            });
        }
    });
    let pool = store.pool("p")?;
    let view = pool.read()?;
    assert_eq!(view.get(view.root::<Counter>()?.unwrap())?.value, 10_000);
    Ok(())
}

#[test]
fn transactions_on_two_stores_nest_and_end_in_any_way() {
    within(60, || -> Result<()> {
        let dirs = [directory(), directory()];
        let [first, second] = [0, 1].map(|i| Store::open(dirs[i].path()).unwrap());
        let (a, b) = (first.pool("a")?, second.pool("b")?);
        counter(&a)?;
        counter(&b)?;
        let would_wait = |pool: &Pool| matches!(pool.read(), Err(Error::WouldDeadlock { .. }));
        a.write(|_| -> Result<()> {
            b.write(|_| -> Result<()> {
                assert!(would_wait(&a) && would_wait(&b));
                assert!(matches!(count(&a), Err(Error::WouldDeadlock { .. })));
                Ok(())
            })?;
            // The inner one is over, this one is not.
            assert!(would_wait(&a) && !would_wait(&b));
            assert!(matches!(count(&a), Err(Error::WouldDeadlock { .. })));
            count(&b)?;
            let aborted = b.write(|_| Err::<(), _>(Error::Aborted("on purpose".into())));
            assert!(aborted.is_err() && would_wait(&a));
            let panicked = std::panic::catch_unwind(std::panic::AssertUnwindSafe(|| {
                b.write(|tx| -> Result<()> {
                    let counter = tx.root::<Counter>()?.unwrap();
                    tx.get_mut(counter)?.value = 77;
                    panic!("on purpose")
                })
            }));
            assert!(panicked.is_err() && would_wait(&a) && !would_wait(&b));
            Ok(())
        })?;
        let view = b.read()?;
        assert_eq!(view.get(view.root::<Counter>()?.unwrap())?.value, 1);
        assert!(!would_wait(&a));
        Ok(())
    })
    .unwrap();
}

/// A thread that has a view of one pool and wants one of another does not wait for a transaction on
/// both, which waits for the first view.
#[test]
fn a_transaction_on_two_pools_holds_none_while_it_waits_for_the_other() {
    within(60, || -> Result<()> {
        let dir = directory();
        let store = Store::open(dir.path())?;
        let (a, b) = (store.pool("a")?, store.pool("b")?);
        for pair in [(&a, &b), (&b, &a)] {
            let view = pair.0.read()?;
            std::thread::scope(|scope| -> Result<()> {
                let writer = scope.spawn(|| store.write(&[&a, &b], |tx| tx.alloc(1u64).map(drop)));
                std::thread::sleep(std::time::Duration::from_millis(100));
                drop(pair.1.read()?);
                assert!(!writer.is_finished());
                drop(view);
                writer.join().unwrap()
            })?;
        }
        Ok(())
    })
    .unwrap();
}

#[test]
fn a_panic_anywhere_in_a_transaction_leaves_pool_thread_and_log_usable() -> Result<()> {
    struct PanicsWhenDropped;
    impl Drop for PanicsWhenDropped {
        fn drop(&mut self) {
            if !std::thread::panicking() {
                panic!("on purpose, in a drop");
            }
        }
    }
    let dir = directory();
    let store = Store::open(dir.path())?;
    let pool = store.pool("p")?;
    let root = counter(&pool)?;
    let blocks = pool.stats()?.blocks;
    for how in 0..3 {
        let panicked = std::panic::catch_unwind(std::panic::AssertUnwindSafe(|| {
            pool.write(|tx| -> Result<()> {
                tx.get_mut(root)?.value = 99;
                tx.alloc(Counter { value: 1, _self: Some(root) })?;
                let _local = PanicsWhenDropped;
                match how {
                    0 => panic!("on purpose"),
                    1 => Ok(()),
                    _ => Err(Error::Aborted("on purpose".into())),
                }
            })
        }));
        assert!(panicked.is_err());
        assert_eq!(pool.read()?.get(root)?.value, how);
        assert_eq!(pool.stats()?.blocks, blocks);
        count(&pool)?;
    }
    // A captured value that panics when it is dropped, after the body has returned.
    let captured = PanicsWhenDropped;
    let panicked = std::panic::catch_unwind(std::panic::AssertUnwindSafe(|| {
        pool.write(move |tx| -> Result<()> {
            let _captured = &captured;
            tx.get_mut(root)?.value = 99;
            Ok(())
        })
    }));
    assert!(panicked.is_err());
    assert_eq!(pool.read()?.get(root)?.value, 3);
    drop(pool);
    store.close()
}

/// `exit` runs the destructors of this thread's variables in the middle of the transaction.
#[test]
fn a_process_that_exits_within_a_transaction_has_not_committed_it() {
    const PLACE: &str = "CENOTE_TEST_EXITS_HERE";
    if let Some(path) = std::env::var_os(PLACE) {
        let store = Store::open(path).unwrap();
        let pool = store.pool("p").unwrap();
        let root = counter(&pool).unwrap();
        let _ = pool.write(|tx| -> Result<()> {
            tx.get_mut(root)?.value = 99;
            tx.alloc(Counter { value: 5, _self: None })?;
            std::process::exit(17)
        });
        unreachable!();
    }
    let dir = directory();
    // By this process, which knows what its other tests have: the child might choose a window that
    // one of them has by then.
    Store::open(dir.path()).unwrap().close().unwrap();
    let status = again("threads::a_process_that_exits_within_a_transaction_has_not_committed_it")
        .env(PLACE, dir.path())
        .stdout(std::process::Stdio::null())
        .status()
        .unwrap();
    assert_eq!(status.code(), Some(17));
    let store = Store::open(dir.path()).unwrap();
    assert!(!store.report().clean && store.report().damage.is_empty());
    let pool = store.pool("p").unwrap();
    assert_eq!(pool.stats().unwrap().blocks, 1);
    let view = pool.read().unwrap();
    assert_eq!(view.get(view.root::<Counter>().unwrap().unwrap()).unwrap().value, 0);
}

/// How the last handle of a pool goes away after `exit` was called within a transaction.
const LEFT: [&str; 4] = ["alone", "store kept", "several pools", "by another thread"];
const LEFT_AT: &str = "CENOTE_TEST_LEFT_AT";
const LEFT_HOW: &str = "CENOTE_TEST_LEFT_HOW";
const LEFT_BUG: &str = "CENOTE_TEST_LEFT_BUG";

/// The process that calls `exit`. Its thread-locals hold the last handles; another one, destroyed
/// after them, uses the library once more. What that finds wrong ends the process by a signal.
fn leaves_a_transaction(place: &std::path::Path, how: &str) {
    thread_local! {
        static POOLS: RefCell<Vec<Arc<Pool>>> = const { RefCell::new(Vec::new()) };
    }
    let bug =
        if std::env::var_os(LEFT_BUG).is_some() { Bug::LeftTransactionClosed } else { Bug::None };
    plant(bug);
    let store = Store::open(place.join("store")).unwrap();
    let other = Store::open(place.join("other")).unwrap().pool("r").unwrap();
    let pools = ["p", "q"].map(|name| Arc::new(store.pool(name).unwrap()));
    let roots = [counter(&pools[0]).unwrap(), counter(&pools[1]).unwrap()];
    let kept = (how == "store kept").then(|| store.clone());
    let (ask, asked) = std::sync::mpsc::channel();
    let (answer, answered) = std::sync::mpsc::channel();
    let elsewhere = (how == "by another thread").then(|| pools.clone());
    let exits = move || {
        plant(bug);
        // Registered first, so destroyed last.
        EARLY.with_borrow_mut(|early| {
            early.0 = Some(Box::new(move || {
                ask.send(()).unwrap();
                answered.recv().unwrap();
                if bug == Bug::None {
                    counter(&other).unwrap();
                }
                if let Some(store) = kept {
                    // Not again in this process, where half a transaction is in memory.
                    assert!(
                        store.pool("p").is_err() && store.pool_with("p", Access::ReadOnly).is_err()
                    );
                    assert!(store.pool("q").is_ok());
                }
            }));
        });
        POOLS.set(pools.to_vec());
        drop(pools);
        POOLS.with_borrow(|pools| {
            let leave = |tx: &mut cenote::Tx<'_>| -> Result<()> {
                tx.get_mut(roots[0])?.value = 99;
                if how == "several pools" {
                    tx.get_mut(roots[1])?.value = 99;
                } else {
                    tx.alloc(Counter { value: 5, _self: None })?;
                }
                std::process::exit(17)
            };
            if how == "several pools" {
                return store.write(&[&*pools[0], &*pools[1]], leave);
            }
            drop(store);
            pools[0].write(leave)
        })
    };
    std::thread::scope(|scope| {
        scope.spawn(exits);
        asked.recv().unwrap();
        // The last one of all, in some rounds.
        drop(elsewhere);
        answer.send(()).unwrap();
        loop {
            std::thread::park();
        }
    })
}

/// Runs the process above, and opens what it leaves: whether that counts as closed, and the values.
fn after_leaving(how: &str, bug: bool) -> (bool, [u64; 2], [u64; 2]) {
    let dir = directory();
    for name in ["store", "other"] {
        // By this process, which knows which windows its other tests have.
        Store::open(dir.path().join(name)).unwrap().close().unwrap();
    }
    let test = "threads::exit_within_a_transaction_closes_nothing_wherever_the_last_handle_is";
    let mut command = again(test);
    command.env(LEFT_AT, dir.path()).env(LEFT_HOW, how);
    if bug {
        command.env(LEFT_BUG, "1");
    }
    let output = command.output().unwrap();
    assert_eq!(output.status.code(), Some(17), "{how}: {output:?}");
    let store = Store::open(dir.path().join("store")).unwrap();
    assert!(store.report().damage.is_empty());
    let found = ["p", "q"].map(|name| {
        let pool = store.pool(name).unwrap();
        let view = pool.read().unwrap();
        let root = view.root::<Counter>().unwrap().unwrap();
        (view.get(root).unwrap().value, pool.stats().unwrap().blocks)
    });
    (store.report().clean, found.map(|found| found.0), found.map(|found| found.1))
}

/// The last handle of the pool is in a thread-local, whose destructor runs within the transaction.
#[test]
fn exit_within_a_transaction_closes_nothing_wherever_the_last_handle_is() {
    if let (Some(place), Ok(how)) = (std::env::var_os(LEFT_AT), std::env::var(LEFT_HOW)) {
        leaves_a_transaction(place.as_ref(), &how);
    }
    for how in LEFT {
        assert_eq!(after_leaving(how, false), (false, [0, 0], [1, 1]), "{how}");
    }
}

#[test]
fn a_store_that_is_closed_over_a_transaction_that_exit_left_is_found() {
    // `Bug::LeftTransactionClosed` is planted in the process that exits.
    assert_eq!(after_leaving("alone", true), (true, [99, 0], [2, 1]));
}

#[test]
fn handles_may_be_dropped_in_any_order() -> Result<()> {
    let dir = directory();
    for order in 0..6 {
        let store = Store::open(dir.path())?;
        let first = store.pool("p")?;
        let second = store.pool("p")?;
        let third = store.pool_with("p", Access::ReadOnly)?;
        assert!(third.is_writable(), "one pool, whatever was asked for");
        if first.read()?.root::<Counter>()?.is_none() {
            counter(&first)?;
        }
        let mut handles: Vec<Box<dyn std::any::Any>> =
            vec![Box::new(store), Box::new(first), Box::new(second)];
        handles.rotate_left(order % 3);
        if order >= 3 {
            handles.swap(0, 1);
        }
        for handle in handles {
            drop(handle);
            count(&third)?;
        }
    }
    let store = Store::open(dir.path())?;
    assert!(store.report().clean);
    let pool = store.pool("p")?;
    assert!(matches!(
        store.remove_pool("p"),
        Err(Error::Store(cenote_store::StoreError::PoolInUse { .. }))
    ));
    let view = pool.read()?;
    assert_eq!(view.get(view.root::<Counter>()?.unwrap())?.value, 18);
    drop(view);
    // Closing with a pool alive is refused; the pool stays good.
    assert!(matches!(
        store.clone().close(),
        Err(Error::Store(cenote_store::StoreError::InUse { .. }))
    ));
    count(&pool)?;
    drop(pool);
    store.remove_pool("p")?;
    store.close()
}

/// A forgotten view keeps writers out for good, as a forgotten lock does, and does no other harm.
#[test]
fn a_forgotten_view_is_a_lock_that_is_never_given_back() -> Result<()> {
    let dir = directory();
    let store = Store::open(dir.path())?;
    let pool = store.pool("p")?;
    counter(&pool)?;
    std::mem::forget(pool.read()?);
    assert!(matches!(count(&pool), Err(Error::WouldDeadlock { .. })));
    assert!(pool.read().is_ok());
    drop(pool);
    store.close()
}

#[test]
fn readers_see_whole_transactions_while_pools_come_and_go() -> Result<()> {
    #[derive(Persist)]
    #[persist(name = "threads::Pair")]
    struct Pair(u64, u64);
    let dir = directory();
    let store = Store::open(dir.path())?;
    let pool = store.pool("p")?;
    let pair = pool.write(|tx| tx.alloc(Pair(0, 0)))?;
    let rounds = AtomicU64::new(0);
    std::thread::scope(|scope| {
        for thread in 0..3 {
            let (store, pool, rounds) = (&store, &pool, &rounds);
            scope.spawn(move || {
                for i in 0..300u64 {
                    match (i + thread) % 3 {
                        0 => pool
                            .write(|tx| -> Result<()> {
                                let pair = tx.get_mut(pair)?;
                                pair.0 += 1;
                                std::thread::yield_now();
                                pair.1 += 1;
                                if i % 2 == 0 {
                                    Ok(())
                                } else {
                                    Err(Error::Aborted("on purpose".into()))
                                }
                            })
                            .unwrap_or(()),
                        1 => {
                            let view = pool.read().unwrap();
                            let pair = view.get(pair).unwrap();
                            assert_eq!(pair.0, pair.1);
                        }
                        _ => {
                            let name = format!("of thread {thread}");
                            let other = store.pool(&name).unwrap();
                            other.write(|tx| tx.alloc([i; 1000]).map(drop)).unwrap();
                            drop(other);
                            if i % 30 < 3 {
                                store.remove_pool(&name).unwrap();
                            }
                        }
                    }
                    rounds.fetch_add(1, Ordering::Relaxed);
                }
            });
        }
    });
    assert_eq!(rounds.into_inner(), 900);
    Ok(())
}
