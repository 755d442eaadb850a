//! Threads that touch a pool for the first time at once, by everything that safe code has.

use super::{
    ACCOUNTS, Bank, KINDS, Kind, WAYS, displace, look, open, opened, prepare, seeds, transfer,
    whole,
};
use crate::common::{assert_sound, directory, random};
use cenote::{Access, Backend, Error, Reader, Result, Store};
use cenote_medium::planted::{Bug, plant};
use std::ops::ControlFlow;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Barrier, mpsc};
use std::time::Duration;

const THREADS: u64 = 5;
const ACTS: u64 = 8;

/// What a round shares.
pub(super) struct Round {
    pub(super) store: Store,
    pub(super) name: &'static str,
    pub(super) access: Access,
    /// Transfers that were committed.
    pub(super) committed: AtomicU64,
}

/// One look at the pool, by one of several ways. `false`: this one changes it.
fn read(at: &Round, act: u64, seed: &mut u64) -> Result<bool> {
    let pool = opened(&at.store, at.name, at.access);
    match act {
        0 => drop(look(&pool.read()?)?),
        1 => {
            // Here and there: other threads are elsewhere.
            let view = pool.read()?;
            let bank = view.get(view.root::<Bank>()?.expect("a bank"))?;
            for _ in 0..20 {
                let number = random(seed) % ACCOUNTS;
                let account = view.get(*bank.hashed.get(&view, &number)?.expect("an account"))?;
                assert_eq!((account.number, account.not_amount), (number, !account.amount));
            }
        }
        2 => {
            let view = pool.read()?;
            let bank = view.get(view.root::<Bank>()?.expect("a bank"))?;
            // The iterator lives on while others touch what it comes to.
            for (number, account) in bank.ordered.iter(&view)?.rev() {
                assert_eq!(view.get(*account)?.number, *number);
            }
        }
        3 => drop(pool.stats()?),
        4 => assert!(pool.check()?.is_sound()),
        5 => {
            let mut left = random(seed) % 4;
            pool.finish_relocation(&mut |_| {
                left = left.wrapping_sub(1);
                if left == u64::MAX { ControlFlow::Break(()) } else { ControlFlow::Continue(()) }
            })?;
        }
        _ => return Ok(false),
    }
    Ok(true)
}

/// One change of the pool.
fn write(at: &Round, act: u64, seed: &mut u64) -> Result<()> {
    let pool = opened(&at.store, at.name, at.access);
    match act {
        6 | 7 => {
            pool.write(|tx| transfer(tx, seed))?;
            at.committed.fetch_add(1, Ordering::SeqCst);
        }
        8 => {
            let given_up: Result<()> = pool.write(|tx| {
                transfer(tx, seed)?;
                Err(Error::Aborted("on purpose".into()))
            });
            assert!(matches!(given_up, Err(Error::Aborted(_))), "{given_up:?}");
        }
        9 => {
            pool.write(|tx| -> Result<()> {
                let root = tx.root::<Bank>()?.expect("a bank");
                let ordered = tx.get(root)?.ordered;
                // Leads to other values, and back to the same.
                for (_, account) in ordered.iter_mut(tx)? {
                    *account = std::hint::black_box(*account);
                }
                Ok(())
            })?;
        }
        10 => drop(pool.trim()?),
        // Refused after a transaction of this session, and while another thread does it.
        11 => match pool.reclaim() {
            Ok(_) | Err(Error::Reclaim(_)) => {}
            Err(error) => return Err(error),
        },
        _ => drop(pool.collect()?),
    }
    Ok(())
}

/// One act.
pub(super) fn act(at: &Round, seed: &mut u64, what: u64) -> Result<()> {
    let what = what % if at.access.writes() { 13 } else { 6 };
    if read(at, what, seed)? { Ok(()) } else { write(at, what, seed) }
}

fn round(seed: u64) -> Result<()> {
    let mut choice = seed;
    let kind = KINDS[random(&mut choice) as usize % KINDS.len()];
    let way = WAYS[random(&mut choice) as usize % WAYS.len()];
    let backend = [Backend::Signal, Backend::Userfault][random(&mut choice) as usize % 2];
    let access =
        [Access::ReadWrite, Access::ReadWrite, Access::ReadOnly][random(&mut choice) as usize % 3];
    println!("seed {seed}: {kind:?}, {way:?}, {backend:?}, {access:?}");
    let dir = directory();
    prepare(dir.path(), kind, seed)?;
    let name = displace(dir.path(), way)?;
    let store = open(dir.path(), access, backend)?;
    let pending = store.pools().iter().map(|pool| pool.pending).max();
    assert!(pending.is_some_and(|pending| pending > 2), "{pending:?}");
    let at = Round { store, name, access, committed: AtomicU64::new(0) };
    let barrier = Barrier::new(THREADS as usize);
    std::thread::scope(|scope| {
        let threads: Vec<_> = (0..THREADS)
            .map(|thread| {
                let (at, barrier) = (&at, &barrier);
                scope.spawn(move || -> Result<()> {
                    let mut seed = seed.wrapping_mul(1000) + thread;
                    // Half of the rounds: the pool stays open.
                    let kept =
                        seed.is_multiple_of(2).then(|| opened(&at.store, at.name, at.access));
                    barrier.wait();
                    (0..ACTS).try_for_each(|_| {
                        let what = random(&mut seed);
                        act(at, &mut seed, what)
                    })?;
                    drop(kept);
                    Ok(())
                })
            })
            .collect();
        threads.into_iter().try_for_each(|thread| thread.join().expect("no panic"))
    })?;
    let Round { store, committed, .. } = at;
    let pool = opened(&store, name, access);
    assert_eq!(look(&pool.read()?)?, committed.load(Ordering::SeqCst));
    assert_sound(&pool);
    drop(pool);
    store.close()?;
    let there = whole(dir.path(), name, Access::ReadWrite, Backend::Signal)?;
    // What was not psynced is kept all the same: the process has not died of a loss of power.
    assert_eq!(there, committed.load(Ordering::SeqCst), "{kind:?}");
    Ok(())
}

/// A puddle that is mapped before it is rewritten shows pointers to where it was: the looks of
/// these tests find that.
#[test]
fn a_puddle_that_is_mapped_before_it_is_rewritten_is_found() {
    for way in WAYS {
        let dir = directory();
        prepare(dir.path(), Kind::Direct, 1).expect("a store");
        let name = displace(dir.path(), way).expect("displaced");
        let store = open(dir.path(), Access::ReadWrite, Backend::Signal).expect("a store");
        plant(Bug::PendingPuddleMapped);
        let seen = catch_unwind(AssertUnwindSafe(|| -> Result<u64> {
            let pool = store.pool_with(name, Access::ReadOnly)?;
            let view = pool.read()?;
            look(&view)
        }));
        plant(Bug::None);
        assert!(!matches!(seen, Ok(Ok(_))), "{way:?}: not found");
    }
}

/// Waits so long for a round: a hundred times what it takes.
pub(super) fn bounded(seed: u64, round: fn(u64) -> Result<()>) {
    let (done, ended) = mpsc::channel();
    let running = std::thread::spawn(move || {
        let result = round(seed);
        let _ = done.send(());
        result
    });
    if ended.recv_timeout(Duration::from_secs(60)) == Err(mpsc::RecvTimeoutError::Timeout) {
        panic!(
            "seed {seed}: still waiting; repeat it with CENOTE_TOUCH_SEED={seed} \
             CENOTE_TOUCH_ROUNDS=1"
        );
    }
    match running.join() {
        Ok(Ok(())) => {}
        Ok(Err(error)) => panic!("seed {seed}: {error}"),
        Err(panic) => {
            println!("failed with CENOTE_TOUCH_SEED={seed} CENOTE_TOUCH_ROUNDS=1");
            std::panic::resume_unwind(panic)
        }
    }
}

#[test]
fn threads_that_touch_a_moved_pool_at_once_see_all_of_it_rewritten() {
    seeds(4).for_each(|seed| bounded(seed, round));
}

/// The pool closes and opens, is trimmed and removed, while threads touch it for the first time.
#[test]
fn closing_and_opening_while_faults_relocate_leaves_all_of_it() {
    seeds(3).for_each(|seed| bounded(seed, closing));
}

fn closing(seed: u64) -> Result<()> {
    let dir = directory();
    let kind = KINDS[seed as usize % KINDS.len()];
    prepare(dir.path(), if kind == Kind::Protected { Kind::Direct } else { kind }, seed)?;
    let store = open(dir.path(), Access::ReadWrite, Backend::Signal)?;
    let store = &store;
    std::thread::scope(|scope| {
        let threads: Vec<_> = (0..4u64)
            .map(|thread| {
                scope.spawn(move || -> Result<()> {
                    let mut seed = seed * 100 + thread;
                    for turn in 0..4 {
                        let name = format!("copy {}", random(&mut seed) % 3);
                        // Another thread has made, removed or opened it: an error, and no more.
                        let _ = store.clone_pool("bank", &name);
                        if let Ok(pool) = store.pool_with(&name, Access::ReadWrite) {
                            look(&pool.read()?)?;
                            let _ = pool.trim()?;
                        }
                        if turn % 2 == 1 {
                            let _ = store.remove_pool(&name);
                        }
                    }
                    Ok(())
                })
            })
            .collect();
        threads.into_iter().try_for_each(|thread| thread.join().expect("no panic"))
    })?;
    for pool in store.pools() {
        let pool = opened(store, &pool.record.name, Access::ReadWrite);
        look(&pool.read()?)?;
        assert_sound(&pool);
    }
    store.clone().close().expect_err("a handle is left");
    Ok(())
}
