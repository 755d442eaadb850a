//! How clients and daemons end: killed, mostly.

use crate::common::{Actor, Counter, Daemon, add, count, listen, make_counter, say};
use cenote::{Access, Reader, Store};
use cenote_proto::{Refusal, Reply, Request};
use cenote_store::LogDecision;
use cenote_store::{OpenError, StoreError};
use cenote_testkit::environment;
use std::path::Path;
use std::time::{Duration, Instant};

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

/// How many values a burdened child has.
const BURDEN: u64 = 400_000;

/// A child: stops inside a transaction that has changed very many values.
pub(crate) fn hold_much(socket: &Path) {
    let store = Store::connect(socket).expect("connect");
    let pool = store.pool("numbers").expect("pool");
    for _ in 0..BURDEN / 1000 {
        pool.write(|tx| -> cenote::Result<()> {
            let at = tx.root::<Counter>()?.expect("a counter");
            for _ in 0..1000 {
                let (number, next) = (tx.get(at)?.count + 1, tx.get(at)?.list);
                let item = tx.alloc(crate::common::Item { number, next })?;
                let counter = tx.get_mut(at)?;
                (counter.count, counter.twice, counter.list) = (number, 2 * number, Some(item));
            }
            Ok(())
        })
        .expect("values");
    }
    let _ = pool.write(|tx| -> cenote::Result<()> {
        let at = tx.root::<Counter>()?.expect("a counter");
        let mut next = tx.get(at)?.list;
        while let Some(item) = next {
            tx.get_mut(item)?.number += 1;
            next = tx.get(item)?.next;
        }
        say("inside");
        listen();
        Ok(())
    });
}

#[test]
fn while_a_large_log_is_replayed_others_go_on() {
    let daemon = Daemon::start(&[]);
    {
        make_counter(&daemon.connect().pool("numbers").expect("pool"));
    }
    let mut child = Actor::start("burdened", &daemon);
    assert_eq!(child.hear(), "inside");
    let store = daemon.connect();
    // Another client has a pool, and lives.
    let mut other = crate::hostile::Raw::connect(&daemon);
    let (name, spec) = ("taken".to_owned(), crate::limits::spec(2 << 20));
    let made = other.ask(&Request::CreatePool { name: name.clone(), spec, token: other.client }).0;
    assert!(matches!(made, Reply::Created(_)), "{made:?}");
    assert!(matches!(other.ask(&Request::OpenPool { name, writable: true }).0, Reply::Pool { .. }));
    child.kill();
    let killed = Instant::now();
    // A round is three requests: two change the catalog, and one asks for what the other client
    // has: that is refused, and not waited for.
    let requests: [&dyn Fn(); 3] = [
        &|| {
            drop(store.create_pool("short-lived", &cenote::PoolOptions::default()).expect("create"))
        },
        &|| store.remove_pool("short-lived").expect("remove"),
        &|| assert!(store.pool("taken").is_err(), "it is another's"),
    ];
    let (mut during, mut longest) = (0, Duration::ZERO);
    for request in requests.iter().cycle() {
        assert!(killed.elapsed() < Duration::from_secs(120), "it is never replayed");
        let began = Instant::now();
        request();
        let waited = began.elapsed();
        if daemon.stat().recoveries > 0 {
            break;
        }
        if began > killed + Duration::from_millis(20) {
            (during, longest) = (during + 1, longest.max(waited));
        }
    }
    let took = killed.elapsed();
    println!(
        "{BURDEN} entries replayed in {took:?}; meanwhile {during} requests, longest {longest:?}"
    );
    if took < Duration::from_millis(80) {
        println!("skipped: the log was replayed before a client could wait for that");
        return;
    }
    assert!(during >= 2, "only {during} requests in {took:?}: they waited for the replay");
    assert_eq!(count(&store.pool("numbers").expect("pool")), BURDEN, "and it was undone");
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
        // No client has asked for the pool: the daemon replays because the process has ended.
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
    // A client that asks for the pool meanwhile waits for the replay.
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
fn a_killed_writer_is_recovered_although_its_program_and_its_rights_are_gone() {
    let daemon = Daemon::start(&[]);
    let store = daemon.connect();
    {
        let pool = store.pool("numbers").expect("pool");
        make_counter(&pool);
        add(&pool);
    }
    drop(store);
    let program = daemon.path("writer");
    std::fs::copy(std::env::current_exe().expect("this program"), &program).expect("a copy");
    let mut child = Actor::start_program(&program, "holder", &daemon);
    assert_eq!(child.hear(), "inside");
    std::fs::remove_file(&program).expect("removed");
    let store = daemon.connect();
    // From now on only another user, its new owner, may open the pool. Only root can give it away;
    // a test that is not root changes the mode alone.
    let uid = crate::permissions::is_root().then_some(crate::permissions::ALICE);
    let change = cenote::PermissionChange {
        uid,
        permissions: Some(0o000),
        ..cenote::PermissionChange::default()
    };
    store.set_permissions("numbers", change).expect("withdrawn");
    child.kill();
    daemon.wait_until("its logs are replayed", |stat| stat.recoveries == 1);
    let stat = daemon.stat();
    assert_eq!((stat.logs_replayed, stat.logs_set_aside), (1, 0));
    if let Some(alice) = uid {
        let pool = store.pool("numbers").expect("root may");
        assert_eq!((count(&pool), add(&pool)), (1, 2), "the transaction is undone");
        drop(pool);
        let open = Request::OpenPool { name: "numbers".into(), writable: false };
        let third = || crate::hostile::Raw::connect(&daemon).ask(&open).0;
        let refused = crate::permissions::as_user(alice + 1, alice + 1, third);
        assert!(matches!(refused, Reply::Refused(Refusal::Permission { .. })), "{refused:?}");
    }
}

#[test]
fn a_client_that_is_stopped_in_a_transaction_stops_no_other_and_goes_on() {
    let daemon = Daemon::start(&[]);
    {
        let pool = daemon.connect().pool("numbers").expect("pool");
        make_counter(&pool);
        add(&pool);
    }
    let mut child = Actor::start("holder", &daemon);
    assert_eq!(child.hear(), "inside");
    child.signal(rustix::process::Signal::STOP);
    let store = daemon.connect();
    let other = store.pool("others").expect("another pool");
    make_counter(&other);
    assert_eq!((add(&other), count(&other)), (1, 1));
    let refused = store.pool("numbers");
    assert!(
        matches!(refused, Err(cenote::Error::Store(StoreError::PoolBusy { .. }))),
        "{refused:?}"
    );
    // It has not ended, so nothing of it is undone.
    assert_eq!(daemon.stat().recoveries, 0);
    child.signal(rustix::process::Signal::CONT);
    assert!(child.ends(), "its transaction is committed");
    let pool = store.pool_with("numbers", Access::ReadOnly).expect("pool");
    let view = pool.read().expect("read");
    let at = view.root::<Counter>().expect("root").expect("a counter");
    assert_eq!(view.get(at).expect("counter").count, 77);
}

#[test]
fn daemons_are_killed_under_load_and_clients_go_on() {
    let kills = environment::number("CENOTED_KILLS", environment::rounds(100));
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
        // Without a daemon, transactions go on, and no other process takes the store.
        (0..20).for_each(|_| hear(&mut child, &mut acknowledged));
        if kill % 5 == 0 {
            let refused = Store::open(daemon.store());
            assert!(
                matches!(
                    &refused,
                    Err(cenote::Error::Open(OpenError::Clients { pids, .. }))
                        if *pids == [child.pid()]
                ),
                "{refused:?}"
            );
        }
        daemon.restart();
        let stat = daemon.stat();
        assert_eq!(
            (stat.sessions, stat.recoveries, stat.logs_replayed),
            (2, 0, 0),
            "its session was kept"
        );
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
fn both_are_killed_and_the_next_one_recovers() {
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

/// Changes a byte of the only log that is there, or changes it back.
fn damage_the_log(daemon: &Daemon) {
    let mut changed = 0;
    for file in std::fs::read_dir(daemon.store().join("puddles")).expect("list") {
        let path = file.expect("entry").path();
        let mut bytes = std::fs::read(&path).expect("read");
        // A header page, then the log's header; behind it the epoch, which is written twice.
        if bytes.get(4096..4104) == Some(b"CENOTLOG") {
            bytes[4096 + 128] ^= 1;
            changed += 1;
            let file = std::fs::File::options().write(true).open(&path).expect("open");
            std::os::unix::fs::FileExt::write_all_at(&file, &bytes[4096..8192], 4096)
                .expect("write");
        }
    }
    assert_eq!(changed, 1, "logs");
}

/// Whether a pool is refused because its logs were discarded.
fn torn<T>(result: cenote::Result<T>) {
    let error = result.err().expect("half of a transaction may be there");
    let is_it = matches!(
        error,
        cenote::Error::Store(StoreError::PoolTorn { .. })
            | cenote::Error::Archive(cenote::ArchivingError::Store(StoreError::PoolTorn { .. }))
    );
    assert!(is_it && error.to_string().contains("declare-whole"), "{error}");
}

#[test]
fn logs_that_are_set_aside_are_applied_by_an_operator() {
    let mut daemon = Daemon::start(&[]);
    {
        let pool = daemon.connect().pool("numbers").expect("pool");
        make_counter(&pool);
        add(&pool);
    }
    dies_with_a_damaged_log(&mut daemon);
    {
        let store = daemon.connect();
        assert!(store.pool("numbers").is_err(), "half of a transaction may be there");
        let found = store.undecided_logs().expect("list");
        assert_eq!(found.len(), 1, "{found:?}");
        let (client, pools) = (found[0].client, &found[0].pools);
        assert_eq!(pools.iter().map(|(_, name)| &**name).collect::<Vec<_>>(), ["numbers"]);
        let still = store.apply_logs(client).expect_err("damaged").to_string();
        assert!(still.contains("fail their checks still"), "{still}");
        assert_eq!(store.undecided_logs().expect("list"), found, "nothing has changed");
        damage_the_log(&daemon);
        // No program looks at the log meanwhile.
        let mut other = Actor::start("reader", &daemon);
        assert_eq!(other.hear(), "open");
        let busy = store.apply_logs(client);
        assert!(
            matches!(&busy, Err(cenote::Error::Store(StoreError::PoolHeld { name, by }))
                if name == "numbers" && *by == format!("process {}", other.pid())),
            "{busy:?}"
        );
        assert!(other.ends());
        store.apply_logs(client).expect("as it was");
        assert_eq!(store.undecided_logs().expect("list"), []);
        assert!(store.discard_logs(client).is_err(), "that is decided");
        let pool = store.pool("numbers").expect("to be written again");
        assert_eq!((count(&pool), add(&pool)), (1, 2));
        assert_eq!(pool.check().expect("check").leaked_blocks, 0);
    }
}

/// Client and daemon die inside a transaction, and its log is damaged; a daemon runs again.
fn dies_with_a_damaged_log(daemon: &mut Daemon) {
    let mut child = Actor::start("holder", daemon);
    assert_eq!(child.hear(), "inside");
    daemon.kill();
    child.kill();
    damage_the_log(daemon);
    daemon.restart();
}

/// Without a daemon, and the other way.
#[test]
fn logs_that_are_discarded_leave_a_torn_pool_that_its_owner_declares_whole() {
    let mut daemon = Daemon::start(&[]);
    {
        let pool = daemon.connect().pool("numbers").expect("pool");
        make_counter(&pool);
        assert_eq!((add(&pool), add(&pool)), (1, 2));
    }
    dies_with_a_damaged_log(&mut daemon);
    daemon.stop();
    let store = Store::open(daemon.store()).expect("open");
    let client = store.undecided_logs().expect("list")[0].client;
    let others = cenote_store::Credentials { uid: 4242, gid: 4242, groups: Vec::new() };
    // SAFETY: nothing is done to the store: this user may not.
    let raw = unsafe { store.as_raw() };
    let refused = raw.decide_logs(&others, client, LogDecision::Discard);
    assert!(matches!(refused, Err(StoreError::Permission { .. })), "{refused:?}");
    store.discard_logs(client).expect("discard");
    torn(store.pool("numbers"));
    store.close().expect("close");
    // A daemon's clients learn of it, and one that owns the pool decides.
    daemon.restart();
    {
        let store = daemon.connect();
        torn(store.pool("numbers"));
        torn(store.pool_with("numbers", cenote::Access::ReadOnly));
        torn(store.export(&["numbers"], Vec::new(), cenote::ExportOptions::default()));
        store.clone_pool("numbers", "copy").expect("a copy");
        torn(store.pool("copy"));
        store.remove_pool("copy").expect("removed");
        // SAFETY: of what the transaction stores, any part is a counter.
        unsafe { store.declare_whole("numbers") }.expect("declared");
        drop(store.pool("numbers").expect("whole"));
    }
    daemon.stop();
    let store = Store::open(daemon.store()).expect("open");
    // SAFETY: nothing is done to the store: this user may not.
    let refused = unsafe { store.as_raw().declare_whole(&others, "numbers") };
    assert!(matches!(refused, Err(StoreError::Permission { .. })), "{refused:?}");
    let pool = store.pool("numbers").expect("to be written again");
    pool.write(|tx| -> cenote::Result<()> {
        let at = tx.root::<Counter>()?.expect("a counter");
        assert_eq!(tx.get(at)?.count, 77, "what the transaction had done stays");
        tx.get_mut(at)?.count = 2;
        Ok(())
    })
    .expect("repair");
    assert_eq!((count(&pool), pool.check().expect("check").leaked_blocks), (2, 0));
    drop(pool);
    store.close().expect("close");
    let store = Store::open(daemon.store()).expect("open");
    assert!(
        store.report().clean && store.undecided_logs().expect("list").is_empty(),
        "{:?}",
        store.report()
    );
    assert_eq!(add(&store.pool("numbers").expect("pool")), 3);
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
