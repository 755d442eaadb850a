//! How clients and daemons end: killed, mostly.

use crate::common::{Actor, Counter, Daemon, add, count, listen, make_counter, say};
use cenote::{Access, Reader, Store};
use cenote_store::OpenError;
use std::path::Path;

/// A child: stops inside a transaction.
pub(crate) fn hold(socket: &Path) {
    let store = Store::connect(socket).expect("connect");
    let pool = store.pool("numbers").expect("pool");
    let _ = pool.write(|tx| -> cenote::Result<()> {
        let at = tx.root::<Counter>()?.expect("a counter");
        tx.get_mut(at)?.count = 77;
        tx.alloc(crate::common::Item { number: 1, next: None })?;
        say("inside");
        listen();
        Ok(())
    });
}

/// A child: counts as fast as it can, and says so after each commit.
pub(crate) fn count_on(socket: &Path) {
    let store = Store::connect(socket).expect("connect");
    let pool = store.pool("numbers").expect("pool");
    loop {
        say(&add(&pool).to_string());
    }
}

#[test]
fn a_client_that_is_killed_is_recovered_at_once_by_the_daemon() {
    let daemon = Daemon::start(&[]);
    {
        let pool = daemon.connect().pool("numbers").expect("pool");
        make_counter(&pool);
        add(&pool);
    }
    for round in 1..=5 {
        let mut child = Actor::start("holder", &daemon);
        assert_eq!(child.hear(), "inside");
        child.kill();
        // Nobody has asked for the pool: the daemon does it because the process has ended.
        // The session of the round before may still be on its way out.
        daemon.wait_until("the client's logs are replayed", |stat| {
            stat.recoveries == round && stat.sessions == 1
        });
        let stat = daemon.stat();
        assert_eq!((stat.logs_replayed, stat.logs_set_aside), (round, 0));
        let store = daemon.connect();
        let pool = store.pool("numbers").expect("pool");
        assert_eq!(count(&pool), round, "the transaction is undone, and nothing else");
        assert_eq!(pool.check().expect("check").leaked_blocks, 0);
        assert_eq!(add(&pool), round + 1);
    }
    // Whoever asks while that is going on waits for it.
    for round in 6..=10 {
        let mut child = Actor::start("holder", &daemon);
        assert_eq!(child.hear(), "inside");
        child.kill();
        let pool = daemon.connect().pool("numbers").expect("the pool, recovered");
        assert_eq!(count(&pool), round);
        add(&pool);
    }
}

#[test]
fn daemons_are_killed_under_load_and_clients_go_on() {
    let kills: u64 = std::env::var("CENOTED_KILLS").ok().and_then(|kills| kills.parse().ok()).unwrap_or(20);
    let mut daemon = Daemon::start(&[]);
    {
        let pool = daemon.connect().pool("numbers").expect("pool");
        make_counter(&pool);
    }
    let mut child = Actor::start("counter", &daemon);
    let mut acknowledged = 0;
    let hear = |child: &mut Actor, acknowledged: &mut u64| {
        let said: u64 = child.hear().parse().expect("a number");
        assert_eq!(said, *acknowledged + 1);
        *acknowledged = said;
    };
    for kill in 0..kills {
        (0..50 + kill % 7).for_each(|_| hear(&mut child, &mut acknowledged));
        daemon.kill();
        // Without a daemon, transactions go on; and nobody else takes the store meanwhile.
        (0..20).for_each(|_| hear(&mut child, &mut acknowledged));
        if kill % 5 == 0 {
            let refused = Store::open(daemon.store());
            assert!(
                matches!(&refused, Err(cenote::Error::Open(OpenError::Guests { pids, .. })) if *pids == [child.pid()]),
                "{refused:?}"
            );
        }
        daemon.restart();
        let stat = daemon.stat();
        assert_eq!((stat.sessions, stat.recoveries, stat.logs_replayed), (2, 0, 0), "its session was kept");
        // Nor does a client of the new daemon get the pool.
        let store = daemon.connect();
        assert!(store.pool("numbers").is_err());
    }
    child.kill();
    daemon.wait_until("the client is recovered", |stat| stat.recoveries == 1);
    let store = daemon.connect();
    let pool = store.pool("numbers").expect("pool");
    let found = count(&pool);
    assert!(found >= acknowledged, "{found} of {acknowledged} acknowledged transactions are there");
    assert_eq!(pool.check().expect("check").leaked_blocks, 0);
}

#[test]
fn both_are_killed_and_whoever_comes_next_recovers() {
    let mut daemon = Daemon::start(&[]);
    {
        let pool = daemon.connect().pool("numbers").expect("pool");
        make_counter(&pool);
        add(&pool);
    }
    let mut child = Actor::start("holder", &daemon);
    assert_eq!(child.hear(), "inside");
    daemon.kill();
    child.kill();
    {
        let store = Store::open(daemon.store()).expect("an embedded store");
        assert_eq!(store.report().logs.len(), 1, "{:?}", store.report());
        assert_eq!(count(&store.pool("numbers").expect("pool")), 1);
    }
    daemon.restart();
    let mut child = Actor::start("holder", &daemon);
    assert_eq!(child.hear(), "inside");
    daemon.kill();
    child.kill();
    daemon.restart();
    let pool = daemon.connect().pool_with("numbers", Access::ReadOnly).expect("pool");
    assert_eq!(count(&pool), 1);
}

#[test]
fn a_session_is_gone_on_with_by_its_process_after_a_restart() {
    let mut daemon = Daemon::start(&[]);
    let store = daemon.connect();
    let pool = store.pool("numbers").expect("pool");
    make_counter(&pool);
    add(&pool);
    daemon.kill();
    add(&pool);
    daemon.restart();
    add(&pool);
    // Needs the daemon, which knows this process and its leases.
    store.create_pool("others", &cenote::PoolOptions::default()).expect("another pool");
    assert_eq!(store.pools().len(), 2);
    daemon.kill();
    daemon.restart();
    // A pool that it holds grows.
    pool.write(|tx| -> cenote::Result<()> {
        for number in 0..200_000 {
            tx.alloc(crate::common::Item { number, next: None })?;
        }
        Ok(())
    })
    .expect("grow");
    assert_eq!(count(&pool), 3);
    drop((pool, store));
    daemon.wait_until("its goodbye was heard", |stat| stat.sessions == 1);
    let stat = daemon.stat();
    assert_eq!(stat.recoveries, 0);
    daemon.stop();
}

#[test]
fn a_client_that_has_nothing_yet_goes_on_too() {
    let mut daemon = Daemon::start(&[]);
    let store = daemon.connect();
    daemon.kill();
    daemon.restart();
    let pool = store.pool("numbers").expect("pool");
    make_counter(&pool);
    assert_eq!(add(&pool), 1);
    // Connecting and going away leaves nothing behind.
    for _ in 0..100 {
        drop(crate::hostile::Raw::connect(&daemon));
    }
    daemon.wait_until("they are forgotten", |stat| stat.sessions == 2);
}
