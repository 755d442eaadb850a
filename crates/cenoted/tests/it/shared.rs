//! Several processes that write one pool at a time (RAL-8), and locks that die with their owners.

use crate::common::{Actor, Counter, Daemon, Item, add, count, listen, make_counter, say};
use crate::hostile::Raw;
use cenote::locks::{LockTaken, RobustMutex};
use cenote::{Access, Error, Pool, Reader, Store};
use cenote_layout::log_space::{ENTRY_HEAD, LOG_SPACE_ENTRIES_OFFSET, LogSpaceEntry};
use cenote_layout::puddle::header_space;
use cenote_medium::planted::{Bug, plant};
use cenote_proto::{Reply, Request};
use cenote_store::StoreError;
use cenote_testkit::{environment, random};
use rustix::process::Signal;
use std::fs::File;
use std::os::unix::fs::FileExt;
use std::path::Path;
use std::ptr::NonNull;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

fn share(store: &Store, name: &str) -> Pool {
    store.pool_with(name, Access::Shared).expect("a shared pool")
}

/// Connects, also while daemons come and go.
fn connect(socket: &Path) -> Store {
    let end = Instant::now() + Duration::from_secs(60);
    loop {
        match Store::connect(socket) {
            Ok(store) => return store,
            Err(error) => assert!(Instant::now() < end, "{error}"),
        }
        std::thread::sleep(Duration::from_millis(5));
    }
}

/// A child: does what it is told.
pub(crate) fn obey(socket: &Path) {
    let store = Store::connect(socket).expect("connect");
    let pool = share(&store, "numbers");
    assert!(pool.is_shared() && pool.is_writable());
    say("open");
    loop {
        let told = listen();
        match told.split_once(' ') {
            Some(("add", times)) => {
                let last = (0..times.parse().expect("a number")).fold(0, |_, _| add(&pool));
                say(&last.to_string());
            }
            Some(("view", _)) => {
                let _view = pool.read().expect("read");
                say("viewing");
                listen();
            }
            Some(("hold", _)) => {
                let _ = pool.write(|tx| -> cenote::Result<()> {
                    let at = tx.root::<Counter>()?.expect("a counter");
                    tx.get_mut(at)?.count = 77;
                    tx.alloc(Item { number: 1, next: None })?;
                    say("inside");
                    listen();
                    Ok(())
                });
            }
            _ if told == "count" => say(&count(&pool).to_string()),
            _ => return,
        }
    }
}

/// A child: counts as fast as it can.
pub(crate) fn count_on(socket: &Path) {
    let store = connect(socket);
    let pool = share(&store, "numbers");
    for step in 0u64.. {
        let number = add(&pool);
        if step % 16 == 0 {
            say(&number.to_string());
        }
        // Views come and go too.
        if step % 1024 == 0 {
            count(&pool);
        }
    }
}

/// A pool with a counter, made by a client that is gone.
fn daemon_with_counter() -> Daemon {
    let daemon = Daemon::start(&[]);
    make_counter(&daemon.connect().pool("numbers").expect("pool"));
    daemon
}

#[test]
fn several_processes_write_one_pool_and_see_what_the_others_wrote() {
    let daemon = Daemon::start(&[]);
    let store = daemon.connect();
    // One that has to grow early, and often.
    let small = cenote::PoolOptions { puddle_size: 192 << 10, ..cenote::PoolOptions::default() };
    make_counter(&store.create_pool("numbers", &small).expect("pool"));
    let pool = share(&store, "numbers");
    let mut others: Vec<Actor> = (0..3).map(|_| Actor::start("sharer", &daemon)).collect();
    others.iter_mut().for_each(|other| assert_eq!(other.hear(), "open"));
    // All at once: each finds what the last writer left.
    for round in 1..=3 {
        others.iter_mut().for_each(|other| other.tell("add 3000"));
        (0..3000).for_each(|_| assert!(add(&pool) > 0));
        let ends: Vec<u64> =
            others.iter_mut().map(|other| other.hear().parse().expect("a number")).collect();
        assert!(ends.iter().all(|end| *end <= round * 12_000), "{ends:?}");
        assert_eq!(count(&pool), round * 12_000);
        others[0].tell("count");
        assert_eq!(others[0].hear(), (round * 12_000).to_string());
    }
    // Each process took puddles as it needed them, and all have them.
    assert!(store.pools()[0].puddles > 1, "{:?}", store.pools());
    // Any process takes what is free, no matter which process freed it.
    pool.write(|tx| -> cenote::Result<()> {
        let at = tx.root::<Counter>()?.expect("a counter");
        let mut next = tx.get(at)?.list;
        while let Some(item) = next {
            next = tx.get(item)?.next;
            tx.free(item)?;
        }
        let counter = tx.get_mut(at)?;
        (counter.count, counter.twice, counter.list) = (0, 0, None);
        Ok(())
    })
    .expect("free all");
    let puddles = store.pools()[0].puddles;
    others.iter_mut().for_each(|other| other.tell("add 3000"));
    others.iter_mut().for_each(|other| assert_ne!(other.hear(), "0"));
    assert_eq!((count(&pool), store.pools()[0].puddles), (9000, puddles));
    assert_eq!(pool.check().expect("check").leaked_blocks, 0);
    assert!(others.into_iter().all(Actor::ends));
    assert_eq!(add(&pool), 9001);
    drop((pool, store));
    daemon.wait_until("all have said goodbye", |stat| stat.sessions == 1);
    assert_eq!(daemon.stat().recoveries, 0);
    // Alone again.
    let pool = daemon.connect().pool("numbers").expect("pool");
    assert!(!pool.is_shared());
    assert_eq!((count(&pool), add(&pool)), (9001, 9002));
}

#[test]
fn sharing_is_asked_for_by_all_or_by_none() {
    let mut daemon = daemon_with_counter();
    let store = daemon.connect();
    let pool = store.pool("numbers").expect("alone");
    let busy = |result: Result<Reply, ()>| {
        matches!(result, Ok(Reply::Refused(cenote_proto::Refusal::PoolBusy { .. })))
    };
    let ask = |request| Ok(Raw::connect(&daemon).ask(&request).0);
    assert!(busy(ask(Request::SharePool { name: "numbers".into() })), "one writer is the default");
    // The client that has it asks again: the same pool, as long as it is open.
    assert!(!store.pool_with("numbers", Access::Shared).expect("the same").is_shared());
    drop(pool);
    let pool = share(&store, "numbers");
    assert!(pool.is_shared());
    let mut other = Actor::start("sharer", &daemon);
    assert_eq!(other.hear(), "open");
    for writable in [true, false] {
        assert!(busy(ask(Request::OpenPool { name: "numbers".into(), writable })), "it is shared");
    }
    // Looking only is a part of sharing.
    let looked = store.pool_with("numbers", Access::ReadOnly).expect("look");
    assert!(looked.is_shared());
    drop((looked, pool));
    let looked = store.pool_with("numbers", Access::ReadOnly).expect("look");
    assert!(looked.is_shared() && !looked.is_writable());
    let refused = looked.write(|_| -> cenote::Result<()> { Ok(()) });
    assert!(matches!(refused, Err(Error::Store(StoreError::PoolReadOnly { .. }))), "{refused:?}");
    assert_eq!(count(&looked), 0);
    // The next daemon knows who shares.
    daemon.kill();
    daemon.restart();
    let mut third = Actor::start("sharer", &daemon);
    assert_eq!(third.hear(), "open");
    third.tell("add 1");
    assert_eq!(third.hear(), "1");
    other.tell("add 1");
    assert_eq!(other.hear(), "2");
    assert_eq!(count(&looked), 2);
    assert!(other.ends() && third.ends());
    drop((looked, store));
    // An embedded store has no other process to share with.
    daemon.stop();
    let store = Store::open(daemon.store()).expect("open");
    let pool = share(&store, "numbers");
    assert!(!pool.is_shared());
    assert_eq!(add(&pool), 3);
}

#[test]
fn a_read_with_a_limit_does_not_go_before_a_process_that_waits_to_write() {
    let daemon = daemon_with_counter();
    let pool = share(&daemon.connect(), "numbers");
    let mut other = Actor::start("sharer", &daemon);
    assert_eq!(other.hear(), "open");
    let view = pool.read().expect("a view");
    other.tell("add 1");
    std::thread::scope(|scope| {
        let waits = scope.spawn(|| {
            let end = Instant::now() + Duration::from_secs(30);
            // It may not wait yet.
            let is_late =
                |timeout| matches!(pool.read_timeout(timeout), Err(Error::NotFree { .. }));
            while !is_late(Duration::from_millis(20)) {
                assert!(Instant::now() < end, "a reader went before it each time");
            }
            assert!(matches!(pool.try_read(), Err(Error::NotFree { .. })));
        });
        waits.join().expect("not free");
    });
    drop(view);
    assert_eq!(other.hear(), "1");
    assert!(other.ends());
}

#[test]
fn views_of_a_process_keep_out_writers_of_others_and_not_their_views() {
    let daemon = daemon_with_counter();
    let store = daemon.connect();
    let pool = share(&store, "numbers");
    let mut other = Actor::start("sharer", &daemon);
    assert_eq!(other.hear(), "open");
    let view = pool.read().expect("read");
    other.tell("view 1");
    assert_eq!(other.hear(), "viewing");
    other.tell("");
    other.tell("add 1");
    std::thread::sleep(Duration::from_millis(100));
    let at = view.root::<Counter>().expect("root").expect("a counter");
    assert_eq!(view.get(at).expect("counter").count, 0, "it is written under a view");
    // This thread may have a second view, although a writer waits.
    assert_eq!(count(&pool), 0);
    drop(view);
    assert_eq!(other.hear(), "1");
    other.tell("view 1");
    assert_eq!(other.hear(), "viewing");
    let done = AtomicBool::new(false);
    std::thread::scope(|scope| {
        scope.spawn(|| {
            assert_eq!(add(&pool), 2);
            done.store(true, Ordering::SeqCst);
        });
        std::thread::sleep(Duration::from_millis(100));
        assert!(!done.load(Ordering::SeqCst), "it was written under another process's view");
        // A process that looks and is killed keeps no other waiting.
        other.kill();
    });
    assert_eq!(count(&pool), 2);
}

/// Whether a transaction of this process ends while the daemon, which would recover the dead, is
/// stopped; and how the pool is found.
fn add_beside_a_dead_writer(bug: Bug) -> bool {
    let mut daemon = daemon_with_counter();
    let store = daemon.connect();
    let pool = share(&store, "numbers");
    add(&pool);
    let mut other = Actor::start("sharer", &daemon);
    assert_eq!(other.hear(), "open");
    other.tell("hold 1");
    assert_eq!(other.hear(), "inside");
    let done = AtomicBool::new(false);
    let early = std::thread::scope(|scope| {
        scope.spawn(|| {
            plant(bug);
            let found = pool.write(|tx| -> cenote::Result<u64> {
                let at = tx.root::<Counter>()?.expect("a counter");
                Ok(tx.get(at)?.count)
            });
            plant(Bug::None);
            done.store(true, Ordering::SeqCst);
            if bug == Bug::None {
                assert_eq!(found.expect("read"), 1, "what the dead one had begun is there");
            }
        });
        std::thread::sleep(Duration::from_millis(60));
        assert!(!done.load(Ordering::SeqCst), "two transactions at a time");
        daemon.signal(Signal::STOP);
        other.kill();
        // A busy machine may keep a thread that goes on too early from doing so.
        let long = Duration::from_millis(if bug == Bug::None { 200 } else { 20_000 });
        let end = Instant::now() + long;
        while !done.load(Ordering::SeqCst) && Instant::now() < end {
            std::thread::sleep(Duration::from_millis(5));
        }
        let early = done.load(Ordering::SeqCst);
        daemon.signal(Signal::CONT);
        early
    });
    daemon.wait_until("it is recovered", |stat| stat.recoveries == 1);
    assert_eq!((count(&pool), add(&pool)), (1, 2));
    early
}

#[test]
fn the_lock_of_a_dead_writer_is_not_taken_over_before_it_is_recovered() {
    assert!(!add_beside_a_dead_writer(Bug::None), "its transaction had not been taken back");
}

#[test]
fn a_lock_that_is_taken_over_too_early_is_noticed() {
    assert!(add_beside_a_dead_writer(Bug::DeadNotRecovered));
}

#[test]
fn sharers_are_killed_at_any_moment_and_nothing_acknowledged_is_lost() {
    let kills = environment::number("CENOTED_KILLS", environment::rounds(24));
    let mut daemon = daemon_with_counter();
    let store = daemon.connect();
    let pool = share(&store, "numbers");
    let mut others: Vec<_> =
        (0..3).map(|_| Actor::start("share-counter", &daemon).in_background()).collect();
    let mut seed = 0x2545_f491_4f6c_dd1du64;
    for kill in 0..kills {
        let chance = random::next(&mut seed);
        let victim = (chance % 3) as usize;
        let end = Instant::now() + Duration::from_secs(120);
        while others[victim].last() == 0 {
            assert!(Instant::now() < end, "a sharer does not get on, kill {kill}");
            std::thread::sleep(Duration::from_micros(200));
        }
        std::thread::sleep(Duration::from_micros(chance >> 24 & 0x7ff));
        // Now and then the daemon too.
        if kill % 8 == 3 {
            daemon.kill();
        }
        let said = others.swap_remove(victim).kill();
        if kill % 8 == 3 {
            daemon.restart();
        }
        let found = add(&pool);
        assert!(found > said, "{found} after {said} were acknowledged, kill {kill}");
        others.push(Actor::start("share-counter", &daemon).in_background());
    }
    let said = others.into_iter().map(|other| other.kill()).max().unwrap_or(0);
    let found = count(&pool);
    assert!(found >= said, "{found} of {said}");
    assert_eq!(pool.check().expect("check").leaked_blocks, 0);
    drop((pool, store));
    daemon.wait_until("all are recovered", |stat| stat.sessions == 1);
    let pool = daemon.connect().pool("numbers").expect("pool");
    assert_eq!((count(&pool), pool.check().expect("check").leaked_blocks), (found, 0));
}

#[test]
fn a_sharer_whose_log_is_set_aside_stops_the_others_and_they_are_told() {
    let daemon = daemon_with_counter();
    let store = daemon.connect();
    let pool = share(&store, "numbers");
    add(&pool);
    // One that has the lock, by hand, and leaves a log that is none.
    let mut raw = Raw::connect(&daemon);
    let Reply::Shared { .. } = raw.ask(&Request::SharePool { name: "numbers".into() }).0 else {
        panic!("not granted")
    };
    let one = |(reply, mut files): (Reply, Vec<std::os::fd::OwnedFd>)| match reply {
        Reply::Puddles { records, .. } => (records[0], File::from(files.remove(0))),
        other => panic!("{other:?}"),
    };
    let (space, space_file) = one(raw.ask(&Request::LogSpace));
    let (log, log_file) = one(raw.ask(&Request::LogPuddle { size: 64 << 10 }));
    log_file.write_all_at(&[0x5a; 4096], header_space(log.size)).expect("write");
    let entry = LogSpaceEntry::new(ENTRY_HEAD, log.uuid, log.addr, 7, 0);
    let at = header_space(space.size) + LOG_SPACE_ENTRIES_OFFSET;
    space_file.write_all_at(zerocopy::IntoBytes::as_bytes(&entry), at).expect("write");
    let (root, root_file) = one(raw.ask(&Request::Puddles { pool: pool.id(), first: 0 }));
    // A writer that no longer lives, in the table of members: its 6th word.
    let layout = cenote_layout::heap::HeapGeometry::new(root.size, true).expect("a heap");
    let mut dead = std::process::Command::new("true").spawn().expect("a process");
    let ticks = cenote_sys::process::start_ticks(dead.id()).unwrap_or(1);
    let name = cenote_sys::process::name_of(dead.id(), ticks, 0).expect("name");
    dead.wait().expect("wait");
    root_file.write_all_at(&name.to_le_bytes(), layout.members + 32).expect("write");
    assert_eq!(raw.ask(&Request::Goodbye).0, Reply::Done);
    for _ in 0..2 {
        let refused = pool.write(|_| -> cenote::Result<()> { Ok(()) });
        assert!(matches!(refused, Err(Error::NotWhole { .. })), "{refused:?}");
        assert!(matches!(pool.read(), Err(Error::NotWhole { .. })));
    }
    let refused = Raw::connect(&daemon).ask(&Request::SharePool { name: "numbers".into() }).0;
    assert!(matches!(refused, Reply::Refused(_)), "{refused:?}");
}

/// A child: takes the mutex that root 1 leads to, and stays.
pub(crate) fn lock_and_stay(socket: &Path) {
    let store = Store::connect(socket).expect("connect");
    let pool = share(&store, "numbers");
    let owners = pool.owner_liveness().expect("owners");
    let (_held, taken) = mutex_of(&pool).lock(&owners).expect("lock");
    say(&format!("{taken:?}"));
    listen();
}

/// The mutex that root 1 of the pool leads to.
fn mutex_of(pool: &Pool) -> &RobustMutex {
    let at = pool.read().expect("read").root_at::<[u64; 1]>(1).expect("root").expect("a mutex");
    let place = NonNull::new(at.addr() as *mut u64).expect("an address");
    // SAFETY: a word of a pool that is mapped for writing and stays so; zero when it was allocated,
    // and a mutex since.
    unsafe { RobustMutex::at(place) }
}

#[test]
fn a_mutex_in_a_pool_dies_with_its_owner_and_the_next_one_is_told() {
    let daemon = daemon_with_counter();
    let store = daemon.connect();
    let pool = share(&store, "numbers");
    pool.write(|tx| -> cenote::Result<()> {
        let mutex = tx.alloc([0u64; 1])?;
        tx.set_root_at(1, Some(mutex))
    })
    .expect("make a mutex");
    let (mutex, owners) = (mutex_of(&pool), pool.owner_liveness().expect("owners"));
    for round in 0..5 {
        let mut one = Actor::start("locker", &daemon);
        assert_eq!(one.hear(), "Clean");
        assert!(mutex.try_lock(&owners).expect("try").is_none(), "the other has it");
        match round {
            0 => {
                assert!(one.ends());
                let (_held, taken) = mutex.lock(&owners).expect("lock");
                assert_eq!(taken, LockTaken::Clean, "it was given back");
            }
            _ => {
                one.kill();
                let (held, taken) = mutex.lock(&owners).expect("lock");
                assert_eq!(taken, LockTaken::Recovered);
                drop(held);
                assert_eq!(
                    mutex.lock(&owners).expect("lock").1,
                    LockTaken::Clean,
                    "once is enough"
                );
            }
        }
    }
}

/// A child: moves ones between two pools, in one transaction each; which pool it names first
/// changes.
pub(crate) fn move_between(socket: &Path) {
    let store = connect(socket);
    let (a, b) = (share(&store, "a"), share(&store, "b"));
    for step in 1u64.. {
        let (from, to) = if step % 3 == 0 { (&a, &b) } else { (&b, &a) };
        let order = if step % 2 == 0 { [&a, &b] } else { [&b, &a] };
        store
            .write(&order, |tx| -> cenote::Result<()> {
                let (from, to) = (tx.root_in::<Counter>(from, 0)?, tx.root_in::<Counter>(to, 0)?);
                let (from, to) = (from.expect("a counter"), to.expect("a counter"));
                let left = tx.get(from)?.count;
                tx.set(from, cenote::field!(Counter, count), left.wrapping_sub(1))?;
                let there = tx.get(to)?.count;
                tx.set(to, cenote::field!(Counter, count), there.wrapping_add(1))
            })
            .expect("move");
        say(&step.to_string());
    }
}

#[test]
fn transactions_over_two_shared_pools_are_whole_when_either_process_is_killed() {
    let mut daemon = Daemon::start(&[]);
    let store = daemon.connect();
    let pools = ["a", "b"].map(|name| {
        make_counter(&store.pool(name).expect("pool"));
        share(&store, name)
    });
    let sum = || {
        let sum = store.write(&[&pools[0], &pools[1]], |tx| -> cenote::Result<u64> {
            let of = |pool| tx.root_in::<Counter>(pool, 0);
            let (one, other) =
                (of(&pools[0])?.expect("a counter"), of(&pools[1])?.expect("a counter"));
            Ok(tx.get(one)?.count.wrapping_add(tx.get(other)?.count))
        });
        sum.expect("sum")
    };
    for round in 0..12 {
        let two = [(); 2].map(|()| Actor::start("mover", &daemon).in_background());
        while two.iter().any(|one| one.last() < 50) {
            assert_eq!(sum(), 0, "half of a transaction");
        }
        if round % 4 == 1 {
            daemon.kill();
        }
        two.into_iter().for_each(|one| assert!(one.kill() >= 50));
        if round % 4 == 1 {
            daemon.restart();
        }
        assert_eq!(sum(), 0, "half of a transaction after a kill, round {round}");
    }
}
