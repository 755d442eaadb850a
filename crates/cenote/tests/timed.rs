//! Transactions and views that wait for a limited time: what they say, and for how long they wait.

use crate::support::directory;
use cenote::{Error, ErrorKind, Pool, Reader, Result, Store};
use std::collections::BTreeSet;
use std::sync::Barrier;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread::scope;
use std::time::{Duration, Instant};

/// Long for a test, and short for a program that hangs.
const LONG: Duration = Duration::from_secs(60);
const SHORT: Duration = Duration::from_millis(30);

fn store() -> Result<(tempfile::TempDir, Store)> {
    let dir = directory();
    let store = Store::open(dir.path())?;
    Ok((dir, store))
}

/// That a call says "not free", neither earlier nor much later than it is to.
#[track_caller]
fn not_free<T>(timeout: Duration, call: impl FnOnce() -> Result<T>) {
    let begun = Instant::now();
    let error = call().err().expect("it is not free");
    let took = begun.elapsed();
    assert!(
        matches!(&error, Error::NotFree { pool, timeout: said } if pool == "p" && *said == timeout)
    );
    assert_eq!(error.kind(), ErrorKind::Busy);
    assert!(timeout <= took && took < timeout + Duration::from_secs(20), "{took:?}");
}

/// Calls `meanwhile` while another thread is in a transaction.
fn beside_a_transaction(pool: &Pool, meanwhile: impl FnOnce()) {
    let barrier = Barrier::new(2);
    scope(|threads| {
        threads.spawn(|| {
            let done = pool.write(|tx| {
                barrier.wait();
                barrier.wait();
                tx.alloc(1u64)
            });
            done.expect("a transaction");
        });
        barrier.wait();
        meanwhile();
        barrier.wait();
    });
}

/// Calls `waits` while another thread is in a transaction that ends soon.
fn behind_a_transaction(pool: &Pool, waits: impl FnOnce() -> Result<()>) -> Result<()> {
    let barrier = Barrier::new(2);
    scope(|threads| {
        threads.spawn(|| {
            let done = pool.write(|_| {
                barrier.wait();
                std::thread::sleep(SHORT);
                Ok::<_, Error>(())
            });
            done.expect("a transaction");
        });
        barrier.wait();
        waits()
    })
}

#[test]
fn what_is_not_to_wait_says_that_the_pool_is_not_free_and_works_afterwards() -> Result<()> {
    let (_dir, store) = store()?;
    let pool = store.pool("p")?;
    beside_a_transaction(&pool, || {
        not_free(Duration::ZERO, || pool.try_read().map(drop));
        not_free(Duration::ZERO, || pool.try_write(|_| Ok(())));
        not_free(SHORT, || pool.read_timeout(SHORT).map(drop));
        not_free(SHORT, || pool.write_timeout(SHORT, |_| Ok(())));
    });
    let number = pool.try_write(|tx| tx.alloc(7u64))?;
    assert_eq!(*pool.try_read()?.get(number)?, 7);
    let view = pool.read()?;
    scope(|threads| {
        threads.spawn(|| {
            // Views do not keep each other out.
            assert!(pool.try_read().is_ok());
            not_free(Duration::ZERO, || pool.try_write(|_| Ok(())));
        });
    });
    // What this thread has itself it would wait for without end.
    let own = pool.try_write(|_| Ok(())).expect_err("its own view");
    assert!(matches!(own, Error::WouldDeadlock { .. }), "{own}");
    drop(view);
    drop(pool);
    store.close()
}

#[test]
fn what_may_wait_begins_when_the_pool_is_free() -> Result<()> {
    let (_dir, store) = store()?;
    let pool = store.pool("p")?;
    behind_a_transaction(&pool, || pool.read_timeout(LONG).map(drop))?;
    behind_a_transaction(&pool, || pool.write_timeout(LONG, |_| Ok::<_, Error>(())))?;
    behind_a_transaction(&pool, || pool.write_timeout(Duration::MAX, |_| Ok::<_, Error>(())))?;
    drop(pool);
    store.close()
}

#[test]
fn the_limit_ends_where_the_callers_code_begins() -> Result<()> {
    let (_dir, store) = store()?;
    let (pool, other) = (store.pool("p")?, store.pool("other")?);
    // It waits for the other transaction, without a limit.
    behind_a_transaction(&other, || pool.try_write(|_| other.read().map(drop)))?;
    // Nor does one that failed leave a limit behind.
    beside_a_transaction(&pool, || not_free(Duration::ZERO, || pool.try_read().map(drop)));
    behind_a_transaction(&pool, || pool.read().map(drop))?;
    drop((pool, other));
    store.close()
}

/// Readers that overlap all the time keep no writer out, also if their calls have limits.
#[test]
fn readers_with_limits_let_a_writer_in() -> Result<()> {
    let (_dir, store) = store()?;
    let pool = store.pool("p")?;
    let (stop, barrier) = (AtomicBool::new(false), Barrier::new(4));
    scope(|threads| {
        for _ in 0..3 {
            threads.spawn(|| {
                barrier.wait();
                while !stop.load(Ordering::Relaxed) {
                    let view = pool.read_timeout(LONG).expect("in time");
                    std::thread::sleep(Duration::from_millis(3));
                    drop(view);
                }
            });
        }
        barrier.wait();
        let begun = Instant::now();
        let done = (0..20).try_for_each(|_| pool.write_timeout(LONG, |_| Ok::<_, Error>(())));
        let took = begun.elapsed();
        stop.store(true, Ordering::Relaxed);
        assert!(took < Duration::from_secs(30), "{took:?}");
        done
    })
}

/// A thread in a circle that has a limit is told that the pool is not free, and refuses no other.
#[test]
fn a_circle_with_a_limit_ends_by_it() -> Result<()> {
    let (_first, first) = store()?;
    let (_second, second) = store()?;
    let (p, other, barrier) = (first.pool("p")?, second.pool("p")?, Barrier::new(2));
    scope(|threads| {
        threads.spawn(|| {
            let done = other.write(|_| {
                barrier.wait();
                p.write(|_| Ok::<_, Error>(()))
            });
            done.expect("it is free in the end");
        });
        p.write(|_| {
            barrier.wait();
            not_free(SHORT, || other.write_timeout(SHORT, |_| Ok::<_, Error>(())));
            not_free(Duration::ZERO, || other.try_write(|_| Ok::<_, Error>(())));
            Ok::<_, Error>(())
        })
    })
}

/// A backup has the store while it copies what changed, and each thread of this test needs a log.
#[test]
fn a_first_transaction_waits_for_its_log_no_longer_than_it_is_to() -> Result<()> {
    let (dir, store) = store()?;
    let pool = store.pool("p")?;
    let (begun, goes_on) = (Barrier::new(2), AtomicBool::new(false));
    let target = dir.path().with_extension("copy");
    // Each is a thread's first one.
    let first = |timeout| {
        scope(|threads| {
            let write = || pool.write_timeout(timeout, |tx| tx.alloc(1u64)).map(drop);
            threads.spawn(write).join().expect("no panic")
        })
    };
    scope(|threads| -> Result<()> {
        let copies = threads.spawn(|| {
            // SAFETY: the store is asked for a backup, which changes nothing in it.
            let mut backup = unsafe { store.as_raw() }.begin_backup(&target)?;
            backup.copy_standing(&BTreeSet::new(), &mut |_, _| {
                if !goes_on.load(Ordering::SeqCst) {
                    begun.wait();
                    begun.wait();
                }
                true
            })
        });
        begun.wait();
        for timeout in [Duration::ZERO, SHORT] {
            let start = Instant::now();
            let refused = first(timeout).expect_err("the backup has the store");
            let (took, kind) = (start.elapsed(), refused.kind());
            assert!(matches!(refused, Error::StoreBusy { timeout: said } if said == timeout));
            assert_eq!(kind, ErrorKind::Busy);
            assert!(timeout <= took && took < timeout + Duration::from_secs(20), "{took:?}");
        }
        goes_on.store(true, Ordering::SeqCst);
        begun.wait();
        first(LONG)?;
        assert!(copies.join().expect("no panic")?);
        Ok(())
    })?;
    first(Duration::ZERO)
}
