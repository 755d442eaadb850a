//! What a client does: the same as a program with an embedded store.

use crate::common::{Actor, Daemon, add, count, listen, make_counter, say};
use cenote::Reader;
use cenote::{Access, Error, Store};
use cenote_store::StoreError;
use cenote_testkit::environment::rounds;
use std::path::Path;

/// A child: opens the pool for reading and keeps it while it is told to count.
pub(crate) fn read_on(socket: &Path) {
    let store = Store::connect(socket).expect("connect");
    match store.pool_with("numbers", Access::ReadOnly) {
        Ok(pool) => {
            say("open");
            while listen() == "count" {
                say(&count(&pool).to_string());
            }
        }
        Err(error) => say(&format!("refused: {error}")),
    }
}

#[test]
fn a_program_moves_from_an_embedded_store_to_a_daemon_and_back_by_one_line() {
    let mut daemon = Daemon::start(&[]);
    {
        let store = daemon.connect();
        let pool = store.pool("numbers").expect("pool");
        make_counter(&pool);
        for _ in 0..1000 {
            add(&pool);
        }
        assert_eq!(count(&pool), 1000);
        let listed = store.pools();
        assert_eq!((listed.len(), &*listed[0].record.name), (1, "numbers"));
        assert!(matches!(
            store.pool_with("others", Access::ReadOnly),
            Err(Error::Store(StoreError::PoolUnknown { .. }))
        ));
    }
    // Its goodbye was heard: nothing is left to recover, and the pool was closed well.
    daemon.wait_until("the sessions have ended", |stat| stat.sessions == 1);
    let stat = daemon.stat();
    assert_eq!((stat.recoveries, stat.logs_replayed), (0, 0));
    {
        let store = daemon.connect();
        let pool = store.pool("numbers").expect("pool");
        assert_eq!((pool.start(), count(&pool)), (cenote::PoolStart::Clean, 1000));
        add(&pool);
    }
    daemon.stop();
    assert!(!daemon.socket().exists());
    let store = Store::open(daemon.store()).expect("open");
    assert!(store.report().clean, "the daemon closed the store");
    let pool = store.pool("numbers").expect("pool");
    assert_eq!(count(&pool), 1001);
    assert_eq!(pool.check().expect("check").leaked_blocks, 0);
    drop((pool, store));
    daemon.restart();
    assert_eq!(count(&daemon.connect().pool("numbers").expect("pool")), 1001);
}

#[test]
fn a_million_transactions_send_no_message() {
    let daemon = Daemon::start(&[]);
    let store = daemon.connect();
    let pool = store.pool("numbers").expect("pool");
    make_counter(&pool);
    let before = daemon.stat().messages;
    for _ in 0..rounds(1_000_000) {
        pool.write(|tx| -> cenote::Result<()> {
            let at = tx.root::<crate::common::Counter>()?.expect("a counter");
            tx.get_mut(at)?.count += 1;
            Ok(())
        })
        .expect("count");
    }
    // Asking is hello, the question and the goodbye, of which the answer has counted two; the one
    // before added its goodbye.
    assert_eq!(daemon.stat().messages - before, 3, "transactions sent messages");
}

#[test]
fn a_pool_has_one_writer_or_many_readers() {
    let daemon = Daemon::start(&[]);
    let store = daemon.connect();
    let pool = store.pool("numbers").expect("pool");
    make_counter(&pool);
    add(&pool);
    let mut reader = Actor::start("reader", &daemon);
    let heard = reader.hear();
    assert!(heard.starts_with("refused") && heard.contains("in use by process"), "{heard}");
    assert!(reader.ends());
    drop((pool, store));

    let (mut one, mut other) = (Actor::start("reader", &daemon), Actor::start("reader", &daemon));
    for reader in [&mut one, &mut other] {
        assert_eq!(reader.hear(), "open");
        reader.tell("count");
        assert_eq!(reader.hear(), "1");
    }
    let store = daemon.connect();
    let refused = store.pool("numbers");
    assert!(matches!(refused, Err(Error::Store(StoreError::PoolBusy { .. }))), "{refused:?}");
    let third = store.pool_with("numbers", Access::ReadOnly).expect("a third reader");
    assert_eq!(count(&third), 1);
    drop(third);
    assert!(one.ends());
    // Killed readers leave nothing to wait for.
    other.kill();
    let pool = store.pool("numbers").expect("a writer, once they have gone");
    assert_eq!(add(&pool), 2);
}

#[test]
fn pools_grow_and_are_removed_through_the_daemon() {
    let daemon = Daemon::start(&[]);
    let store = daemon.connect();
    let pool = store.pool("numbers").expect("pool");
    // More than the first puddle holds.
    pool.write(|tx| -> cenote::Result<()> {
        for number in 0..200_000 {
            let next = tx.root::<crate::common::Item>()?;
            let item = tx.alloc(crate::common::Item { number, next })?;
            tx.set_root(item)?;
        }
        Ok(())
    })
    .expect("fill");
    assert!(store.pools()[0].puddles > 1, "{:?}", store.pools());
    let again = store.create_pool("numbers", &cenote::PoolOptions::default());
    assert!(matches!(again, Err(Error::Store(StoreError::PoolExists { .. }))), "{again:?}");
    assert!(matches!(
        store.remove_pool("numbers"),
        Err(Error::Store(StoreError::PoolInUse { .. }))
    ));
    drop(pool);
    store.remove_pool("numbers").expect("remove");
    assert_eq!(store.pools().len(), 0);
    let pool = store.pool("numbers").expect("made anew");
    assert!(pool.read().expect("read").root::<crate::common::Item>().expect("root").is_none());
}

/// One block of it is not a whole number of superblocks.
#[derive(cenote::Persist)]
struct Long {
    words: [u64; 12_500],
}

#[test]
fn blocks_that_come_and_go_ask_for_no_space_that_was_never_given_back() {
    let daemon = Daemon::start(&[]);
    let store = daemon.connect();
    let pool = store.pool("numbers").expect("pool");
    let round = || {
        let block = pool.write(|tx| -> cenote::Result<_> {
            let block = tx.alloc(Long { words: [7; 12_500] })?;
            tx.set_root(block)?;
            Ok(block)
        });
        let block = block.expect("a block");
        pool.write(|tx| -> cenote::Result<()> {
            tx.set_root_at::<Long>(0, None)?;
            tx.free(block)
        })
        .expect("freed");
    };
    round();
    let before = daemon.stat().messages;
    let silent = daemon.stat().messages - before;
    let before = daemon.stat().messages;
    (0..50).for_each(|_| round());
    assert_eq!(daemon.stat().messages - before, silent, "a client asked for space that was there");
}
