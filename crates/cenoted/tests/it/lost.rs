//! Pages that a client loses: of its log, and of the locks between the processes that share a pool.

use crate::common::{Actor, Counter, Daemon, add, count, listen, make_counter, say};
use cenote::{Access, Error, Pool, Reader, Store};
use cenote_layout::heap::HeapGeometry;
use cenote_medium::planted::{Bug, plant};
use cenote_store::StoreError;
use std::path::Path;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

const PAGE: usize = 4096;

fn share(store: &Store) -> Pool {
    store.pool_with("numbers", Access::Shared).expect("a shared pool")
}

/// Ranges that are mapped from files of puddles of this length; `None`: of any other.
fn mapped(len: Option<u64>, pool: u64) -> Vec<(usize, usize)> {
    let maps = std::fs::read_to_string("/proc/self/maps").expect("maps");
    let mut all: Vec<(&str, usize, usize)> = Vec::new();
    for line in maps.lines() {
        let Some(file) = line.find('/').map(|at| &line[at..]) else { continue };
        let range = line.split(' ').next().and_then(|range| range.split_once('-'));
        let (from, to) = range.expect("a range");
        let number = |text: &str| usize::from_str_radix(text, 16).expect("an address");
        let (from, to) = (number(from), number(to));
        // Second mappings lie above all windows. Pages of one puddle have several rights.
        match all.last_mut().filter(|last| (last.0, last.2) == (file, from)) {
            Some(last) => last.2 = to,
            None if file.contains("/puddles/") && from < 0x5800_0000_0000 => {
                all.push((file, from, to));
            }
            None => {}
        }
    }
    let sizes = all.into_iter().map(|(_, from, to)| (from, to - from));
    sizes.filter(|(_, size)| len.map_or(*size as u64 != pool, |len| *size as u64 == len)).collect()
}

/// Loses a page, wherever it is mapped.
fn lose(addr: usize) {
    // SAFETY: a page of the store's window, which nothing but the library uses.
    unsafe { cenote_testkit::lost::lose(addr) };
}

const PUDDLE: u64 = 1 << 20;

fn is_lost(error: &Error) -> bool {
    error.to_string().contains("was lost while the store was open")
}

/// A child: loses pages as it is told, and goes on.
pub(crate) fn obey(socket: &Path) {
    let store = Store::connect(socket).expect("connect");
    let pool = share(&store);
    add(&pool);
    say("open");
    match listen().as_str() {
        "log" => lose_log(&pool, Bug::None),
        "log, and gives the lock back" => lose_log(&pool, Bug::LostTurnGivenBack),
        "locks" => lose_locks(&pool, Bug::None),
        "locks, and waits" => {
            let waits = pool.clone();
            let waiter = std::thread::spawn(move || lose_locks(&waits, Bug::LostLockAwaited));
            std::thread::sleep(Duration::from_secs(2));
            assert!(waiter.is_finished(), "it waits for a lock that is lost");
        }
        other => panic!("{other}"),
    }
    listen();
}

fn lose_log(pool: &Pool, bug: Bug) {
    plant(bug);
    let done: cenote::Result<()> = pool.write(|tx| {
        let at = tx.root::<Counter>()?.expect("a counter");
        tx.get_mut(at)?.count += 1;
        for (addr, len) in mapped(None, PUDDLE) {
            (addr..addr + len).step_by(PAGE).for_each(lose);
        }
        let next = tx.get(at)?.list.expect("an item");
        tx.get_mut(next)?.number += 1;
        Ok(())
    });
    plant(Bug::None);
    assert!(done.is_err(), "a change went on without its log");
    let later = pool.write(|tx| tx.root::<Counter>().map(drop)).expect_err("poisoned");
    assert!(matches!(later, Error::Store(StoreError::LogLost(_))), "{later}");
    let read = pool.read().map(drop).expect_err("half a transaction");
    assert!(is_lost(&read), "{read}");
    say("lost");
}

fn lose_locks(pool: &Pool, bug: Bug) {
    let geometry = HeapGeometry::new(PUDDLE, true).expect("a heap");
    let (base, _) = mapped(Some(PUDDLE), 0)[0];
    let table = geometry.members as usize / PAGE * PAGE;
    lose(base + table);
    plant(bug);
    let written = pool.write(|tx| tx.root::<Counter>().map(drop));
    let read = pool.read().map(drop);
    plant(Bug::None);
    let error = written.expect_err("the lock is lost");
    assert!(is_lost(&error), "{error}");
    let error = read.expect_err("the lock is lost");
    assert!(is_lost(&error), "{error}");
    assert!(pool.write(|tx| tx.alloc([1u64; 900]).map(drop)).is_err());
    assert!(pool.trim().is_err() && pool.reclaim().is_err());
    say("lost");
}

fn daemon_with_counter() -> Daemon {
    let daemon = Daemon::start(&[]);
    let store = daemon.connect();
    let options = cenote::PoolOptions { puddle_size: PUDDLE, ..cenote::PoolOptions::default() };
    make_counter(&store.create_pool("numbers", &options).expect("a pool"));
    daemon
}

/// Whether another process gets the pool before what a client left in its log is taken back.
fn add_beside_a_lost_log(told: &str) -> bool {
    let daemon = daemon_with_counter();
    let store = daemon.connect();
    let pool = share(&store);
    let mut other = Actor::start("loser", &daemon);
    assert_eq!(other.hear(), "open");
    other.tell(told);
    assert_eq!(other.hear(), "lost");
    let done = AtomicBool::new(false);
    let early = std::thread::scope(|scope| {
        scope.spawn(|| {
            let found: cenote::Result<()> = pool.write(|tx| {
                tx.root::<Counter>()?;
                Ok(())
            });
            done.store(true, Ordering::SeqCst);
            found.expect("it goes on");
        });
        std::thread::sleep(Duration::from_millis(300));
        let early = done.load(Ordering::SeqCst);
        other.kill();
        early
    });
    daemon.wait_until("it is recovered", |stat| stat.recoveries == 1);
    assert_eq!((count(&pool), add(&pool)), (1, 2));
    early
}

#[test]
fn a_client_that_loses_its_log_keeps_others_from_its_pool_until_it_is_recovered() {
    assert!(!add_beside_a_lost_log("log"), "half of a transaction was to be seen");
}

#[test]
fn a_lock_that_is_given_back_over_a_transaction_that_stays_in_its_log_is_noticed() {
    assert!(add_beside_a_lost_log("log, and gives the lock back"));
}

/// Whether a client that loses the page with the locks of a pool says so, and ends by no signal.
fn lose_the_locks(told: &str) -> bool {
    let daemon = daemon_with_counter();
    let store = daemon.connect();
    let pool = share(&store);
    let mut other = Actor::start("loser", &daemon);
    assert_eq!(other.hear(), "open");
    other.tell(told);
    let ended = other.ends();
    daemon.wait_until("it has ended", |stat| stat.sessions <= 2);
    assert_eq!((count(&pool), add(&pool)), (1, 2));
    ended
}

#[test]
fn locks_between_processes_that_are_lost_are_an_error_of_each_operation() {
    assert!(lose_the_locks("locks"));
}

#[test]
fn a_thread_that_waits_for_a_lock_that_is_lost_is_noticed() {
    assert!(!lose_the_locks("locks, and waits"));
}
