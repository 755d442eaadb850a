//! Sessions that end in a transaction, and what the next one replays.

use super::{
    PAGE, all, held, is_lost, is_pool, lose, make, mapped, next_session, open, options, pages, pair,
};
use cenote::{Error, Result, Store};
use cenote_medium::planted::{Bug, Step, plant, watch};
use cenote_testkit::child::{task, with_task};
use std::path::Path;

/// A log is replayed, and a page of it, or of the pool, is lost meanwhile.
pub(crate) fn replays(dir: &Path) {
    make(dir);
    let mut noticed = 0;
    for step in [Step::LogRead, Step::LogApplied] {
        for of_pool in [false, true] {
            for number in 0..if of_pool { 40 } else { 7 } {
                println!("{step:?}, of the pool: {of_pool}, page {number}");
                noticed += u64::from(replay(dir, step, (of_pool, number)));
            }
        }
    }
    println!("{noticed} were noticed");
    assert!(noticed > 4, "{noticed}");
}

/// A program that ends in a transaction, and its recovery, in which a page is lost.
fn replay(dir: &Path, step: Step, (of_pool, number): (bool, usize)) -> bool {
    let (store, pool) = open(dir);
    let before = held(&pool).expect("whole");
    drop(pool);
    store.close().expect("closed");
    let ended = with_task("lost_log::child", "ends", dir).status().expect("it runs");
    assert_eq!(ended.code(), Some(7));
    let place = dir.to_path_buf();
    watch(Some(Box::new(move |at| {
        let pages = if of_pool { pool_pages(&place) } else { pages(&place) };
        if at == step
            && let Some(page) = pages.get(number)
        {
            lose(*page);
        }
    })));
    let opened = Store::open_with(dir, &options());
    watch(None);
    let noticed = match opened.as_ref().map(|store| store.pool("p").and_then(|pool| held(&pool))) {
        Ok(Ok(found)) => {
            assert_eq!(found, before, "a page that was lost is believed");
            false
        }
        _ => true,
    };
    if let Ok(store) = opened {
        let _ = store.close();
    }
    next_session(dir, before, true, false);
    noticed
}

/// Pages of the pool that hold values, or may.
fn pool_pages(dir: &Path) -> Vec<usize> {
    let puddles = mapped(dir).into_iter().filter(|(file, ..)| is_pool(file));
    puddles.flat_map(|(_, addr, len)| (addr + (64 << 10)..addr + len).step_by(PAGE)).collect()
}

/// Ends in a transaction that has changed values on several pages, and not all that it changes.
pub(crate) fn end_within(dir: &Path) {
    let (_store, pool) = open(dir);
    let _: Result<()> = pool.write(|tx| {
        all(tx, &|_| ())?;
        // SAFETY: ends this process, as a crash does.
        pair(tx, &|_| unsafe { libc::_exit(7) })
    });
}

/// Loses its log between two changes of a transaction, and ends.
pub(crate) fn lose_and_end(dir: &Path, bug: Bug) {
    let (_store, pool) = open(dir);
    plant(bug);
    let _: Result<()> = pool.write(|tx| {
        let done = pair(tx, &|_| pages(dir).into_iter().for_each(lose));
        assert_eq!(done.is_err(), bug == Bug::None);
        // SAFETY: ends this process, as a crash does.
        unsafe { libc::_exit(7) }
    });
}

/// Whatever a program did before it ended, the next session finds what its log has.
pub(crate) fn after_the_end(dir: &Path, what: &str) {
    make(dir);
    assert_eq!(with_task("lost_log::child", what, dir).status().expect("it runs").code(), Some(7));
    next_session(dir, (1, 1), true, false);
}

/// Another thread waits for a pool while the transaction before it loses a page of its log.
pub(crate) fn wait_for_it(dir: &Path) {
    make(dir);
    let (_store, pool) = open(dir);
    pool.write(|tx| all(tx, &|_| ())).expect("changed");
    let (inside, waits) = (std::sync::Barrier::new(2), std::sync::Barrier::new(2));
    std::thread::scope(|scope| {
        let second = scope.spawn(|| {
            let asks = task().is_some_and(|(what, _)| what == "asked");
            plant(if asks { Bug::None } else { Bug::LostNotAskedAgain });
            pool.write(|_| Ok::<_, Error>(())).expect("it has a log");
            inside.wait();
            waits.wait();
            let mut ran = false;
            let done: Result<()> = pool.write(|_| {
                ran = true;
                Ok(())
            });
            assert!(is_lost(&done.expect_err("lost")));
            ran
        });
        inside.wait();
        let done: Result<()> = pool.write(|tx| {
            waits.wait();
            std::thread::sleep(std::time::Duration::from_millis(200));
            pages(dir).into_iter().for_each(lose);
            pair(tx, &|_| ())
        });
        assert!(done.is_err());
        assert!(!second.join().expect("it ends"), "a transaction began on what one had left");
    });
}
