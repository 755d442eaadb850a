//! What psyncs, transactions and views of pools in shadowed mode wait for, and what they do not.

use crate::shadowed::{Root, make, shadowed, step_of, steps};
use crate::support::within;
use cenote::{Error, Pool, PoolMode, PoolOptions, PsyncPolicy, Reader, Result, Store};
use cenote_medium::planted::{Bug, Step, plant, watch};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc::channel;
use std::sync::{Arc, Barrier};
use std::time::Duration;

/// On a file system behind the page cache, where there is one.
fn directory() -> tempfile::TempDir {
    tempfile::tempdir().unwrap()
}

#[test]
fn views_go_on_during_a_psync_and_psyncs_during_a_view() {
    let dir = directory();
    let store = Store::open(dir.path()).unwrap();
    let pool = make(&store, "p");
    let view = pool.read().unwrap();
    let held = Barrier::new(2);
    std::thread::scope(|scope| {
        // Waits for the view; later readers would wait behind it.
        scope.spawn(|| {
            held.wait();
            steps(&pool, 1, 1);
        });
        held.wait();
        std::thread::sleep(Duration::from_millis(20));
        pool.psync().unwrap();
        scope.spawn(|| pool.psync().unwrap()).join().unwrap();
        drop(view);
    });
    assert_eq!(step_of(&pool), 1);
}

/// One thread is in a transaction on `p` and psyncs `q`; another one psyncs both, which waits for
/// the transaction and keeps psyncs of `q` waiting.
#[test]
fn a_psync_of_another_pool_in_a_transaction_is_refused_without_waiting() {
    let dir = directory();
    let store = Store::open(dir.path()).unwrap();
    within(60, move || {
        let (p, q) = (make(&store, "p"), make(&store, "q"));
        let direct =
            store.create_pool("d", &PoolOptions { mode: PoolMode::Direct, ..shadowed() }).unwrap();
        std::thread::scope(|scope| {
            p.write(|_| -> Result<()> {
                let both = scope.spawn(|| store.psync(&[&p, &q]).map(drop));
                // It has entered both when a psync of `q` alone does not end.
                std::thread::sleep(Duration::from_millis(100));
                assert!(!both.is_finished());
                for psync in [q.psync(), store.psync(&[&q]), p.psync()] {
                    assert!(
                        matches!(
                            &psync,
                            Err(Error::WouldDeadlock { pool, by: "a transaction" }) if pool == "p"
                        ),
                        "{psync:?}"
                    );
                }
                Ok(())
            })
            .unwrap();
        });
        // Nor waits one for a transaction on `q` whose thread waits for a view of a pool in direct
        // mode.
        let refused = direct.write(|_| q.psync().map(drop));
        assert!(
            matches!(&refused, Err(Error::WouldDeadlock { pool, .. }) if pool == "d"),
            "{refused:?}"
        );
        q.psync().unwrap();
        drop((p, q, direct));
        store.close().unwrap();
    });
}

/// A transaction on `q` takes a view of `p`, for which a writer of `p` waits; `psync` began before
/// that writer came.
fn a_view_in_a_transaction_beside(psync: impl FnOnce(&Store, &Pool, &Pool) + Send + 'static) {
    let dir = directory();
    let store = Store::open(dir.path()).unwrap();
    within(60, move || {
        let (p, q) = (make(&store, "p"), make(&store, "q"));
        std::thread::scope(|scope| {
            q.write(|_| -> Result<()> {
                scope.spawn(|| psync(&store, &p, &q));
                std::thread::sleep(Duration::from_millis(100));
                scope.spawn(|| steps(&p, 1, 1));
                std::thread::sleep(Duration::from_millis(100));
                let view = p.read()?;
                assert!(view.root::<Root>()?.is_some());
                Ok(())
            })
            .unwrap();
        });
        assert_eq!(step_of(&p), 1);
    });
}

/// A psync of both waits for the transaction on `q`, and must not hold `p` meanwhile.
#[test]
fn a_psync_of_several_pools_waits_with_none_in_its_hands() {
    a_view_in_a_transaction_beside(|store, p, q| {
        store.psync(&[p, q]).unwrap();
    });
}

/// A thread with a view of `p` psyncs `q`, and waits for the transaction on `q`.
#[test]
fn a_psync_with_a_view_in_hand_and_a_transaction_that_takes_one_go_past_a_writer() {
    a_view_in_a_transaction_beside(|_, p, q| {
        let view = p.read().unwrap();
        q.psync().unwrap();
        drop(view);
    });
}

/// A transaction of another thread begins and ends between the copying of a psync and its sync.
#[test]
fn transactions_run_while_a_psync_waits_for_the_device() {
    let runs_with = |bug: Bug, patience: Duration| {
        let dir = directory();
        let store = Store::open(dir.path()).unwrap();
        let pool = make(&store, "p");
        let has_run = Arc::new(AtomicBool::new(false));
        std::thread::scope(|scope| {
            let (ask, asked) = channel();
            let (answer, answered) = channel();
            let pool = &pool;
            scope.spawn(move || {
                asked.recv().expect("asked");
                steps(pool, 1, 1);
                // No thread may wait for it any more.
                let _ = answer.send(());
            });
            let told = Arc::clone(&has_run);
            watch(Some(Box::new(move |step| {
                if step == Step::PsyncWaits {
                    ask.send(()).expect("the other thread waits");
                    told.store(answered.recv_timeout(patience).is_ok(), Ordering::Relaxed);
                }
            })));
            plant(bug);
            let psynced = pool.psync();
            plant(Bug::None);
            watch(None);
            assert!(psynced.unwrap().pages > 0);
        });
        assert_eq!(step_of(&pool), 1);
        assert!(pool.psync().unwrap().pages > 0, "what the other thread has stored");
        has_run.load(Ordering::Relaxed)
    };
    assert!(runs_with(Bug::None, Duration::from_secs(60)));
    assert!(!runs_with(Bug::HeldThroughSync, Duration::from_millis(300)), "the bug was not found");
}

#[test]
fn a_policy_that_ends_in_a_transaction_does_not_wait_for_it() {
    let dir = directory();
    let store = Store::open(dir.path()).unwrap();
    within(60, move || {
        let pool = make(&store, "p");
        let policy = PsyncPolicy { every: Some(Duration::from_millis(1)), ..Default::default() };
        let autos = [pool.psync_by(policy).unwrap(), pool.psync_by(policy).unwrap()];
        steps(&pool, 1, 1);
        pool.write(|_| -> Result<()> {
            // Its threads have something to psync, and wait for this transaction.
            std::thread::sleep(Duration::from_millis(50));
            let [stopped, dropped] = autos;
            let stopped = stopped.stop();
            assert!(matches!(stopped, Err(Error::WouldDeadlock { .. })), "{stopped:?}");
            drop(dropped);
            Ok(())
        })
        .unwrap();
        steps(&pool, 2, 2);
        assert_eq!(pool.psync_by(policy).unwrap().stop().ok(), Some(()));
    });
}
