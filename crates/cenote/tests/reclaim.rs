//! Reclaim beside transactions: pointers are hidden from the tracer in every way that safe code
//! has, threads move values about, pools lead to each other, and processes die in the middle. What
//! is given back is what a former session left unattached, and nothing else.

mod lists;

use cenote::{
    Access, Error, HeapReport, OpenOptions, Persist, Pool, PoolOptions, Ptr, Reader,
    ReclaimOptions, ReclaimPolicy, ReclaimRefused, ReclaimReport, Result, Store,
};
use cenote_medium::planted::{Bug, plant};
use cenote_testkit::child::{Talking, again, say};
use core::ops::ControlFlow;
use core::time::Duration;
use lists::{LEN, Node, alone, first_session, meddled, node, open, sound, tail};
use std::path::Path;
use std::sync::atomic::{AtomicBool, Ordering};

#[test]
fn leaks_are_given_back_and_named_and_a_dry_run_only_names_them() -> Result<()> {
    let _alone = alone();
    let dir = crate::support::directory();
    first_session(dir.path(), 500)?;
    {
        let (_store, pool) = open(dir.path())?;
        let mut options = ReclaimOptions::default();
        options.dry_run = true;
        let report = pool.reclaim_with(options)?;
        assert_eq!((report.blocks, report.dry_run, report.types.len()), (500, true, 1));
        assert_eq!(pool.check()?.leaked_blocks, 500);
    }
    {
        // Also where nothing may be written.
        let options = OpenOptions { access: Access::ReadOnly, ..OpenOptions::default() };
        let store = Store::open_with(dir.path(), &options)?;
        let pool = store.pool_with("p", Access::ReadOnly)?;
        let mut options = ReclaimOptions::default();
        options.dry_run = true;
        assert_eq!(pool.reclaim_with(options)?.blocks, 500);
        assert!(pool.reclaim().is_err());
    }
    let (_store, pool) = open(dir.path())?;
    let report = pool.reclaim()?;
    assert_eq!((report.blocks, report.bytes, report.listed.len()), (500, 500 * 16, 500));
    assert_eq!((report.types[0].type_id, report.types[0].blocks), (Node::TYPE_ID, 500));
    assert_eq!(report.reached_blocks, LEN + 3);
    assert!(report.slices > 0 && report.longest_hold <= report.took);
    assert!(sound(&pool.check()?));
    assert_eq!(pool.reclaim()?.blocks, 0);
    Ok(())
}

/// Takes the value out of the end of the list, which the tracer has not reached, and hangs it where
/// the tracer has been.
fn hide(bug: Bug) -> Result<(ReclaimReport, HeapReport)> {
    let dir = crate::support::directory();
    first_session(dir.path(), 3)?;
    let (_store, pool) = open(dir.path())?;
    plant(bug);
    let report = meddled(&pool, || {
        pool.write(|tx| {
            let last = tail(tx)?;
            let between = tx.get(last)?.next.expect("made");
            let seen = tx.root_at::<Node>(1)?.expect("made");
            tx.get_mut(last)?.next = None;
            tx.get_mut(seen)?.next = Some(between);
            Ok(())
        })
    });
    plant(Bug::None);
    Ok((report?, pool.check()?))
}

#[test]
fn a_pointer_that_is_moved_behind_the_tracer_is_found() -> Result<()> {
    let _alone = alone();
    let (report, check) = hide(Bug::None)?;
    assert_eq!(report.blocks, 3);
    assert!(sound(&check));
    let (report, check) = hide(Bug::ReclaimMissesAdd)?;
    assert!(
        report.blocks > 3 && check.unallocated_blocks > 0,
        "nothing noticed that add is not heard of"
    );
    Ok(())
}

/// Frees the block that leads to the value, keeps the value in the program's memory, and attaches
/// it where the tracer has been; the freed block's place is written over.
fn free_above(bug: Bug) -> Result<(ReclaimReport, HeapReport)> {
    let dir = crate::support::directory();
    first_session(dir.path(), 3)?;
    let (_store, pool) = open(dir.path())?;
    plant(bug);
    let report = meddled(&pool, || {
        let (hidden, place) = pool.write(|tx| -> Result<_> {
            let last = tail(tx)?;
            let between = tx.get(last)?.next.expect("made");
            let hidden = tx.get(between)?.next.expect("made");
            tx.set(last, cenote::field!(Node, next), None)?;
            tx.free(between)?;
            Ok((hidden, between))
        })?;
        pool.write(|tx| -> Result<()> {
            let over = node(tx, 5, None)?;
            assert_eq!(
                over.addr(),
                place.addr(),
                "the place was not given out again: the test tests nothing"
            );
            tx.set_root_at(2, Some(over))
        })?;
        pool.write(|tx| {
            let seen = tx.root_at::<Node>(1)?.expect("made");
            tx.set(seen, cenote::field!(Node, next), Some(hidden))
        })
    });
    plant(Bug::None);
    Ok((report?, pool.check()?))
}

#[test]
fn what_a_freed_block_led_to_is_found() -> Result<()> {
    let _alone = alone();
    let (report, check) = free_above(Bug::None)?;
    assert_eq!(report.blocks, 3);
    assert!(sound(&check));
    let (report, check) = free_above(Bug::ReclaimMissesFree)?;
    assert!(
        report.blocks > 3 && check.unallocated_blocks > 0,
        "nothing noticed that frees are not heard of"
    );
    Ok(())
}

#[test]
fn what_an_aborted_transaction_moved_stays_where_it_was() -> Result<()> {
    let _alone = alone();
    let dir = crate::support::directory();
    first_session(dir.path(), 3)?;
    let (_store, pool) = open(dir.path())?;
    let report = meddled(&pool, || {
        let aborted = pool.write(|tx| -> Result<()> {
            let last = tail(tx)?;
            let between = tx.get(last)?.next.expect("made");
            tx.get_mut(last)?.next = None;
            tx.free(between)?;
            node(tx, 6, None)?;
            Err(Error::Aborted("on purpose".into()))
        });
        assert!(aborted.is_err());
        Ok(())
    })?;
    assert_eq!(report.blocks, 3);
    assert!(sound(&pool.check()?));
    Ok(())
}

/// Allocates in one transaction and attaches in a later one, while leaks are looked for in between
/// and given back.
fn attach_late(bug: Bug) -> Result<(ReclaimReport, bool)> {
    let dir = crate::support::directory();
    first_session(dir.path(), 3)?;
    let (_store, pool) = open(dir.path())?;
    let mut mine = Vec::new();
    plant(bug);
    let report = meddled(&pool, || {
        mine =
            pool.write(|tx| (0..50).map(|value| node(tx, value, None)).collect::<Result<_>>())?;
        Ok(())
    });
    plant(Bug::None);
    let attached = pool.write(|tx| -> Result<()> {
        for ptr in &mine {
            let next = tx.root_at::<Node>(2)?;
            tx.set(*ptr, cenote::field!(Node, next), next)?;
            tx.set_root_at(2, Some(*ptr))?;
        }
        Ok(())
    });
    Ok((report?, attached.is_ok() && sound(&pool.check()?)))
}

#[test]
fn what_this_session_has_not_attached_yet_is_never_taken() -> Result<()> {
    let _alone = alone();
    assert!(matches!(attach_late(Bug::None)?, (report, true) if report.blocks == 3));
    let (report, attached) = attach_late(Bug::ReclaimTakesNew)?;
    assert!(report.blocks >= 50 && !attached, "nothing noticed that new blocks are taken");
    Ok(())
}

#[test]
fn after_a_transaction_it_is_too_late() -> Result<()> {
    let _alone = alone();
    let dir = crate::support::directory();
    first_session(dir.path(), 3)?;
    let (store, pool) = open(dir.path())?;
    // The program holds what it took out of the pool, and nothing else leads to it.
    let held = pool.write(|tx| -> Result<_> {
        let last = tail(tx)?;
        let held = tx.get(last)?.next;
        tx.get_mut(last)?.next = None;
        Ok(held)
    })?;
    assert!(matches!(pool.reclaim(), Err(Error::Reclaim(ReclaimRefused::Late))));
    let refused = store.reclaim_in_background(ReclaimPolicy::Always);
    assert!(matches!(refused, Err(Error::Reclaim(ReclaimRefused::Late))));
    pool.write(|tx| -> Result<()> {
        let last = tail(tx)?;
        tx.get_mut(last)?.next = held;
        Ok(())
    })?;
    assert_eq!(pool.check()?.leaked_blocks, 3);
    // One that began before goes on, and a thread that waits for itself is told.
    let view = pool.read()?;
    assert!(matches!(pool.reclaim(), Err(Error::WouldDeadlock { .. })));
    drop(view);
    assert_eq!(pool.collect()?.freed_blocks, 3);
    Ok(())
}

#[test]
fn pools_that_lead_to_each_other_are_traced_together() -> Result<()> {
    let _alone = alone();
    let dir = crate::support::directory();
    {
        let store = Store::open(dir.path())?;
        let options = PoolOptions { puddle_size: 512 << 10, ..PoolOptions::default() };
        let pools = ["p", "q"].map(|name| store.create_pool(name, &options).unwrap());
        let [p, q] = &pools;
        store.write(&[p, q], |tx| -> Result<()> {
            // A list that goes to and fro, with its root in one pool; a leak in each, and one that
            // leads to a value of the other.
            let mut next = None;
            for value in 0..LEN {
                // The last one, to which the root leads, in the root's own pool.
                next = Some(
                    tx.alloc_in(&pools[(LEN - 1 - value) as usize % 2], Node { value, next })?,
                );
            }
            tx.set_root_in(p, 0, next)?;
            let alone = tx.alloc_in(p, Node { value: 1, next: None })?;
            tx.alloc_in(q, Node { value: 2, next: Some(alone) })?;
            Ok(())
        })?;
    }
    let store = Store::open(dir.path())?;
    let q = store.pool("q")?;
    // The other one is opened for it, and moved about in: the end of the list goes to a root of the
    // other pool.
    let p = store.pool("p")?;
    let report = meddled(&q, || {
        store.write(&[&p, &q], |tx| -> Result<()> {
            let mut at = tx.root_in::<Node>(&p, 0)?.expect("made");
            while tx.get(at)?.value != 9 {
                at = tx.get(at)?.next.expect("longer");
            }
            let cut = tx.get(at)?.next;
            tx.get_mut(at)?.next = None;
            tx.set_root_in(&q, 7, cut)
        })
    })?;
    assert_eq!(report.blocks, 1);
    assert_eq!((p.check()?.leaked_blocks, p.check()?.unallocated_blocks), (1, 0));
    assert!(sound(&q.check()?));
    drop((p, q));
    store.close()?;

    let store = Store::open(dir.path())?;
    assert_eq!(store.pool("p")?.reclaim()?.blocks, 1, "all pools of the store are opened for it");
    Ok(())
}

#[test]
fn in_the_background_it_waits_for_all_pools_and_ends_when_one_is_closed() -> Result<()> {
    let _alone = alone();
    let dir = crate::support::directory();
    first_session(dir.path(), 20)?;
    {
        let store = Store::open(dir.path())?;
        store.pool("other")?;
    }
    let store = Store::open(dir.path())?;
    store.reclaim_in_background(ReclaimPolicy::Always)?;
    assert!(matches!(
        store.reclaim_in_background(ReclaimPolicy::Always),
        Err(Error::Reclaim(ReclaimRefused::UnderWay))
    ));
    let pool = store.pool("p")?;
    // It cannot have begun to give back: what is not open may lead here.
    std::thread::sleep(Duration::from_millis(50));
    assert_eq!(pool.check()?.leaked_blocks, 20);
    let other = store.pool("other")?;
    let report = pool.reclaim()?;
    assert_eq!(report.blocks, 20);
    assert_eq!(other.reclaim()?.blocks, 0);
    assert_eq!(pool.reclaim()?, report);
    drop((pool, other));
    store.close()?;

    first_session(dir.path(), 0)?;
    let store = Store::open(dir.path())?;
    store.reclaim_in_background(ReclaimPolicy::Always)?;
    let pool = store.pool("p")?;
    drop(store.pool("other")?);
    assert!(matches!(
        pool.reclaim(),
        Err(Error::Reclaim(ReclaimRefused::Closed { pool })) if pool == "other"
    ));
    // Closing waits for no run.
    drop(pool);
    store.close()?;
    let store = Store::open(dir.path())?;
    store.reclaim_in_background(ReclaimPolicy::AfterCrash)?;
    let pool = store.pool("p")?;
    drop(pool);
    store.close()
}

#[test]
fn a_pool_that_was_closed_properly_is_left_alone_after_a_crash_of_another() -> Result<()> {
    let _alone = alone();
    let dir = crate::support::directory();
    first_session(dir.path(), 20)?;
    {
        let store = Store::open(dir.path())?;
        store.pool("q")?.write(|tx| node(tx, 1, None).map(drop))?;
    }
    {
        let (store, pool) = open(dir.path())?;
        pool.write(|tx| node(tx, 2, None).map(drop))?;
        store.abandon();
    }
    let store = Store::open(dir.path())?;
    store.reclaim_in_background(ReclaimPolicy::AfterCrash)?;
    let (p, q) = (store.pool("p")?, store.pool("q")?);
    assert_eq!(p.reclaim()?.blocks, 21);
    assert_eq!((p.check()?.leaked_blocks, q.check()?.leaked_blocks), (0, 1));
    Ok(())
}

#[test]
fn threads_that_move_values_about_lose_none_of_them() -> Result<()> {
    let _alone = alone();
    const SLOTS: u64 = 200;
    const THREADS: u64 = 3;
    for round in 0..6u64 {
        let dir = crate::support::directory();
        {
            let (_store, pool) = open(dir.path())?;
            pool.write(|tx| -> Result<()> {
                for slot in 0..SLOTS {
                    let mut next = None;
                    for depth in 0..40 {
                        next = Some(node(tx, slot * 100 + depth, next)?);
                    }
                    tx.set_root_at(slot as u16, next)?;
                    node(tx, 1_000_000, next)?;
                }
                Ok(())
            })?;
        }
        let store = Store::open(dir.path())?;
        store.reclaim_in_background(ReclaimPolicy::Always)?;
        let pool = store.pool("p")?;
        let stop = AtomicBool::new(false);
        let (report, held) = std::thread::scope(|scope| {
            let threads: Vec<_> = (0..THREADS)
                .map(|number| {
                    let (pool, stop) = (&pool, &stop);
                    scope.spawn(move || work(pool, round * 10 + number, stop))
                })
                .collect();
            let report = pool.reclaim();
            stop.store(true, Ordering::Relaxed);
            (report, threads.into_iter().map(|thread| thread.join().unwrap()).collect::<Vec<_>>())
        });
        assert_eq!(report?.blocks, SLOTS, "round {round}");
        // What threads still hold is attached now: it must be there.
        pool.write(|tx| -> Result<()> {
            for chain in held.into_iter().flatten() {
                let mut last = chain;
                while let Some(next) = tx.get(last)?.next {
                    last = next;
                }
                let before = tx.root_at::<Node>(0)?;
                tx.set(last, cenote::field!(Node, next), before)?;
                tx.set_root_at(0, Some(chain))?;
            }
            Ok(())
        })?;
        let check = pool.check()?;
        assert!(sound(&check), "round {round}: {check:?}");
    }
    Ok(())
}

/// Takes chains out of roots, keeps them, puts them or parts of them elsewhere, frees heads and
/// makes new ones. Returns the chains that it still has.
fn work(pool: &Pool, seed: u64, stop: &AtomicBool) -> Vec<Ptr<Node>> {
    let mut random = seed;
    let mut below = move |limit: u64| {
        random =
            random.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        (random >> 33) % limit
    };
    let mut held: Vec<Ptr<Node>> = Vec::new();
    while !stop.load(Ordering::Relaxed) {
        let (slot, kind, depth) = (below(200) as u16, below(5), below(20));
        let result = pool.write(|tx| -> Result<()> {
            let first = tx.root_at::<Node>(slot)?;
            match kind {
                // Out of the pool, into this thread's hands; a part of a chain, too.
                0 | 1 if held.len() < 20 => {
                    let Some(mut at) = first else { return Ok(()) };
                    if kind == 0 {
                        held.push(at);
                        return tx.set_root_at(slot, None::<Ptr<Node>>);
                    }
                    for _ in 0..depth {
                        let Some(next) = tx.get(at)?.next else { return Ok(()) };
                        at = next;
                    }
                    if let Some(rest) = tx.get(at)?.next {
                        held.push(rest);
                        tx.set(at, cenote::field!(Node, next), None)?;
                    }
                }
                // And back, into an empty place.
                2 if first.is_none() => {
                    if let Some(chain) = held.pop() {
                        tx.set_root_at(slot, Some(chain))?;
                    }
                }
                3 => {
                    if let Some(head) = first {
                        let next = tx.get(head)?.next;
                        tx.free(head)?;
                        tx.set_root_at(slot, next)?;
                    }
                }
                _ => {
                    let new = node(tx, 5, first)?;
                    tx.set_root_at(slot, Some(new))?;
                }
            }
            Ok(())
        });
        result.unwrap();
    }
    held
}

#[test]
fn a_run_that_dies_anywhere_has_given_back_leaks_only() -> Result<()> {
    let _alone = alone();
    const LEAKS: u64 = 1000;
    let mut dead = 0;
    for stop in (0..).map(|k: u64| k * 3) {
        let dir = crate::support::directory();
        first_session(dir.path(), LEAKS)?;
        let (store, pool) = open(dir.path())?;
        let mut slices = 0;
        let mut options = ReclaimOptions::default();
        options.hold = Duration::ZERO;
        let mut progress = |_: &cenote::ReclaimProgress| {
            slices += 1;
            if slices > stop {
                // As a crash of the process: nothing more is written.
                store.clone().abandon();
                return ControlFlow::Break(());
            }
            ControlFlow::Continue(())
        };
        options.progress = Some(&mut progress);
        let ended = pool.reclaim_with(options);
        drop((pool, store));
        let (_store, pool) = open(dir.path())?;
        let check = pool.check()?;
        assert_eq!((check.unallocated_blocks, check.damage.len()), (0, 0), "after {stop} slices");
        assert!(check.leaked_blocks <= LEAKS);
        assert_eq!(pool.reclaim()?.blocks, check.leaked_blocks);
        assert!(sound(&pool.check()?));
        assert_eq!(pool.stats()?.blocks, LEN + 3);
        if ended.is_ok() {
            break;
        }
        dead += 1;
    }
    assert!(dead > 20, "it died {dead} times only");
    Ok(())
}

/// The child of the next test: reclaims in small slices while it runs transactions, until it is
/// killed or done.
fn child(dir: &Path) -> Result<()> {
    let (_store, pool) = open(dir)?;
    let mut options = ReclaimOptions::default();
    options.hold = Duration::ZERO;
    let mut step = 0u64;
    let mut progress = |_: &cenote::ReclaimProgress| {
        step += 1;
        say("slice");
        let changed = pool.write(|tx| -> Result<()> {
            let first = tx.root_at::<Node>(1)?;
            let new = node(tx, step, first)?;
            tx.set_root_at(1, Some(new))?;
            if step.is_multiple_of(3) {
                // What the new one stands before goes, and stays reachable through it.
                let old = first.expect("made");
                let next = tx.get(old)?.next;
                tx.set(new, cenote::field!(Node, next), next)?;
                tx.free(old)?;
            }
            Ok(())
        });
        changed.unwrap();
        ControlFlow::Continue(())
    };
    options.progress = Some(&mut progress);
    pool.reclaim_with(options)?;
    Ok(())
}

#[test]
fn a_process_that_is_killed_while_it_reclaims_loses_nothing() -> Result<()> {
    let _alone = alone();
    const CHILD: &str = "CENOTE_TEST_RECLAIM_CHILD";
    if let Some(dir) = std::env::var_os(CHILD) {
        return child(Path::new(&dir));
    }
    let mut interrupted = 0;
    for round in 0..40u64 {
        let dir = crate::support::directory();
        first_session(dir.path(), 5000)?;
        let test = "reclaim::a_process_that_is_killed_while_it_reclaims_loses_nothing";
        let mut child = Talking::start(again(test).env(CHILD, dir.path()));
        // It has about 230 slices.
        let mut slices = 0;
        while slices <= round * 6 && child.hear().is_some() {
            slices += 1;
        }
        child.kill();
        let store = Store::open(dir.path())?;
        store.reclaim_in_background(ReclaimPolicy::AfterCrash)?;
        let pool = store.pool("p")?;
        let check = pool.check()?;
        assert_eq!((check.unallocated_blocks, check.damage.len()), (0, 0), "round {round}");
        let outcome = pool.reclaim()?;
        assert!(outcome.blocks <= 5000);
        interrupted += u64::from(outcome.blocks > 0);
        let check = pool.check()?;
        assert!(sound(&check), "round {round}");
        assert!(check.stats.blocks >= LEN + 3);
    }
    assert!(interrupted > 20, "{interrupted} children were killed before they were done");
    Ok(())
}
