//! Pools with the logged heap, or the wear heap, through a daemon: one process writes such a pool,
//! and the next one finds what it acknowledged.

use crate::common::{Actor, Daemon, add, count, listen, make_counter, say};
use cenote::{Access, DataProtection, HeapKind, PoolOptions, Store};
use std::path::Path;

const HEAPS: [HeapKind; 2] = [HeapKind::Logged, HeapKind::Wear { wait_ms: 20 }];

fn options(heap: HeapKind) -> PoolOptions {
    PoolOptions { heap, ..PoolOptions::default() }
}

/// The actor `logged`: adds to the pool until it is killed.
pub(crate) fn count_on(socket: &Path) {
    let store = Store::connect(socket).expect("connected");
    let pool = store.pool("numbers").expect("a pool");
    loop {
        say(&add(&pool).to_string());
        listen();
    }
}

#[test]
fn a_client_that_is_killed_leaves_what_it_acknowledged() {
    HEAPS.into_iter().for_each(a_client_is_killed);
}

fn a_client_is_killed(heap: HeapKind) {
    let daemon = Daemon::start(&[]);
    let store = daemon.connect();
    let pool = store.create_pool("numbers", &options(heap)).expect("created");
    make_counter(&pool);
    add(&pool);
    drop(pool);
    store.close().expect("closed");
    let mut actor = Actor::start("logged", &daemon);
    let mut said = 0;
    for _ in 0..20 {
        said = actor.hear().parse().expect("a number");
        actor.tell("on");
    }
    actor.kill();
    let store = daemon.connect();
    let pool = store.pool("numbers").expect("the same");
    assert!((said..=said + 1).contains(&count(&pool)), "{said} acknowledged, {}", count(&pool));
    let report = pool.check().expect("checked");
    assert!(report.is_sound(), "{report:?}");
    add(&pool);
}

#[test]
fn several_processes_do_not_write_one_logged_or_wear_heap() {
    HEAPS.into_iter().for_each(several_do_not_write);
}

fn several_do_not_write(heap: HeapKind) {
    let daemon = Daemon::start(&[]);
    let store = daemon.connect();
    drop(store.create_pool("numbers", &options(heap)).expect("created"));
    let refused = store.pool_with("numbers", Access::Shared).expect_err("refused");
    assert!(refused.to_string().contains("does not allow"), "{refused}");
    assert_eq!(store.pools()[0].record.heap, heap);
}

/// A daemon's clients do not know of protection, so none gets a pool without it.
#[test]
fn a_pool_with_write_protected_data_is_refused() {
    let refused = |error: cenote::Error| {
        let told = error.to_string();
        assert!(told.contains("write-protected data"), "{told}");
    };
    let protect = DataProtection::DEFERRED;
    let options = PoolOptions { protect, ..options(HeapKind::Logged) };
    let mut daemon = Daemon::prepare(&[]);
    {
        let store = Store::open(daemon.store()).expect("without a daemon");
        make_counter(&store.create_pool("numbers", &options).expect("created"));
        store.close().expect("closed");
    }
    daemon.restart();
    let client = daemon.connect();
    refused(client.create_pool("others", &options).expect_err("made"));
    refused(client.protect_pool("numbers", protect).expect_err("protected"));
    for access in [Access::ReadOnly, Access::ReadWrite, Access::Shared] {
        refused(client.pool_with("numbers", access).expect_err("granted"));
    }
    refused(client.clone_pool("numbers", "copy").expect_err("copied"));
    let exported = client.export(&["numbers"], Vec::new(), cenote::ExportOptions::default());
    let told = exported.map(drop).expect_err("exported").to_string();
    assert!(told.contains("write-protected data"), "{told}");
}
