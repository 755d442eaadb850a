//! A daemon that is stopped: its clients are told, and nothing is lost.

use crate::common::{Counter, Daemon, make_counter};
use cenote::{ConnectOptions, Error, Pool, Reader, Store};
use cenote_store::{OpenError, StoreError};
use cenote_testkit::time::within;
use rustix::process::Signal;
use std::time::{Duration, Instant};

/// The clients' limit here.
const LIMIT: Duration = Duration::from_secs(1);
/// When such a client must have its error, on a machine under load.
const SOON: Duration = Duration::from_secs(20);

fn options() -> ConnectOptions {
    ConnectOptions::default().with_silence(LIMIT)
}

fn connected(daemon: &Daemon) -> Store {
    Store::connect_with(daemon.socket(), &options()).expect("connect")
}

/// A transaction that takes no memory, and so asks no daemon.
fn count_up(pool: &Pool) {
    let counted = pool.write(|tx| -> cenote::Result<()> {
        let at = tx.root::<Counter>()?.expect("a counter");
        tx.get_mut(at)?.count += 1;
        Ok(())
    });
    counted.expect("counted");
}

fn counted(pool: &Pool) -> u64 {
    let view = pool.read().expect("a view");
    let at = view.root::<Counter>().expect("a root").expect("a counter");
    view.get(at).expect("a counter").count
}

#[test]
fn who_connects_to_a_stopped_daemon_is_told_so() {
    within(120, || {
        let mut daemon = Daemon::start(&[]);
        drop(connected(&daemon));
        daemon.signal(Signal::STOP);
        let began = Instant::now();
        let error = Store::connect_with(daemon.socket(), &options()).expect_err("it is stopped");
        assert!(began.elapsed() < SOON);
        assert!(matches!(&error, Error::Open(OpenError::DaemonSilent { .. })), "{error:?}");
        let (said, pid) = (error.to_string(), daemon.pid().as_raw_nonzero());
        for part in [&*daemon.socket().to_string_lossy(), "1.0 s", &format!("kill -CONT {pid}")] {
            assert!(said.contains(part), "{part:?} is not in {said}");
        }
        daemon.signal(Signal::CONT);
        connected(&daemon).pool("numbers").expect("it goes on");
    });
}

#[test]
fn a_client_of_a_stopped_daemon_is_told_and_loses_nothing() {
    within(240, || {
        let mut daemon = Daemon::start(&[]);
        let store = connected(&daemon);
        let pool = store.pool("numbers").expect("pool");
        make_counter(&pool);
        count_up(&pool);
        daemon.signal(Signal::STOP);
        let began = Instant::now();
        let error = store.pool("asked").expect_err("it is stopped");
        let is_silent = |error: &Error| {
            matches!(error, Error::Store(StoreError::DaemonSilent { socket, .. })
                if *socket == daemon.socket().to_string_lossy())
        };
        assert!(is_silent(&error), "{error:?}");
        let error = store.create_pool("made", &cenote::PoolOptions::default()).expect_err("again");
        assert!(
            is_silent(&error) && error.to_string().contains("may still carry out"),
            "{error:?}"
        );
        assert!(began.elapsed() < SOON);
        // What the client has, it has.
        (0..100).for_each(|_| count_up(&pool));
        daemon.signal(Signal::CONT);
        // In its order, and once: the pool is there, or can be made.
        match store.create_pool("made", &cenote::PoolOptions::default()) {
            Ok(_) | Err(Error::Store(StoreError::PoolExists { .. })) => {}
            Err(error) => panic!("{error}"),
        }
        let names = store.pools().into_iter().filter(|pool| pool.record.name == "made");
        assert_eq!(names.count(), 1);
        let later = store.pool("later").expect("it goes on");
        make_counter(&later);
        count_up(&pool);
        drop(later);
        drop(pool);
        store.close().expect("closed");
        daemon.stop();
        let store = Store::open(daemon.store()).expect("open");
        assert_eq!(counted(&store.pool("numbers").expect("pool")), 102);
    });
}

/// The client ends while its daemon is stopped: it waits for the limit, and is recovered later.
#[test]
fn a_client_ends_beside_a_stopped_daemon_and_is_recovered() {
    within(240, || {
        let mut daemon = Daemon::start(&[]);
        let store = connected(&daemon);
        let pool = store.pool("numbers").expect("pool");
        make_counter(&pool);
        count_up(&pool);
        daemon.signal(Signal::STOP);
        (0..9).for_each(|_| count_up(&pool));
        let began = Instant::now();
        drop(pool);
        let error = store.close().expect_err("its end cannot be told");
        assert!(matches!(&error, Error::Store(StoreError::DaemonSilent { .. })), "{error:?}");
        assert!(began.elapsed() < SOON);
        daemon.signal(Signal::CONT);
        let other = connected(&daemon);
        assert_eq!(counted(&other.pool("numbers").expect("pool")), 10);
    });
}
