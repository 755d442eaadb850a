//! Types that clients learn from the daemon: a pointer that this program made elsewhere is not
//! followed into another layout.

use crate::common::{Actor, Daemon, listen, say};
use cenote::{Access, Error, Persist, Pool, Ptr, Reader, Store};
use cenote_medium::planted::{Bug, plant};
use std::path::Path;

/// How this program has it.
#[derive(Persist)]
#[persist(name = "types::Wide")]
struct Wide([char; 4]);

/// A child whose program has a smaller type of the same name: registers it, and says where it has
/// stored one.
pub(crate) fn have_another_layout(socket: &Path) {
    let store = Store::connect(socket).expect("connect");
    let access = if listen() == "shared" { Access::Shared } else { Access::ReadWrite };
    let mut record = Wide::record();
    (record.size, record.align, record.fields) = (8, 8, Vec::new());
    // SAFETY: the type is as the record says.
    unsafe { store.as_raw().register_type(&record) }.expect("register");
    let pool = store.pool_with("p", access).expect("pool");
    // SAFETY: the block holds what this child calls a value.
    let block = unsafe { pool.raw_heap() }.alloc(8, 8, Wide::TYPE_ID).expect("a block");
    // SAFETY: a fresh block of 8 bytes.
    unsafe { block.addr.cast::<u64>().write(u64::MAX) };
    say(&(block.addr.as_ptr() as u64).to_string());
    listen();
}

/// A daemon; a connection of a program that knows its own `Wide` from another store.
fn connected() -> (Daemon, Store) {
    let elsewhere = tempfile::tempdir().expect("directory");
    Store::format(elsewhere.path().join("s"), &cenote::FormatOptions::default()).expect("format");
    let pool = Store::open(elsewhere.path().join("s")).expect("open").pool("p").expect("pool");
    pool.write(|tx| tx.alloc(Wide(['a'; 4]))).expect("a value");
    let daemon = Daemon::start(&[]);
    drop(daemon.connect().pool("p").expect("pool"));
    let store = daemon.connect();
    (daemon, store)
}

/// With the bug it is followed: so the other assertions could fail.
fn follows_with_the_bug(pool: &Pool, addr: &str) {
    // SAFETY: the block is as large as a value of the other layout, and nothing is read.
    let ptr =
        unsafe { Ptr::<Wide>::from_addr(addr.parse().expect("an address")) }.expect("no null");
    plant(Bug::LearntTypeBelieved);
    let followed = pool.read().expect("read").get(ptr).is_ok();
    plant(Bug::None);
    assert!(followed, "the bug was not found");
}

/// The pointer is one of another store whose window was at the same place.
fn refuses(pool: &Pool, addr: &str) {
    // SAFETY: followed only with a check.
    let ptr =
        unsafe { Ptr::<Wide>::from_addr(addr.parse().expect("an address")) }.expect("no null");
    assert!(matches!(pool.read().expect("read").get(ptr), Err(Error::Dangling { .. })));
    assert!(pool.write(|tx| tx.get(ptr).map(drop)).is_err());
    assert!(pool.write(|tx| tx.get_mut(ptr).map(drop)).is_err());
    assert!(pool.write(|tx| tx.free(ptr)).is_err());
}

#[test]
fn a_layout_that_comes_with_a_granted_pool_is_compared() {
    let (daemon, store) = connected();
    let mut other = Actor::start("other-layout", &daemon);
    other.tell("alone");
    let addr = other.hear();
    assert!(other.ends());
    daemon.wait_until("the child has gone", |stat| stat.sessions == 2);
    let pool = store.pool("p").expect("pool");
    follows_with_the_bug(&pool, &addr);
    refuses(&pool, &addr);
}

#[test]
fn a_layout_that_another_client_registers_while_the_pool_is_shared_is_compared() {
    let (daemon, store) = connected();
    let pool = store.pool_with("p", Access::Shared).expect("pool");
    let mut other = Actor::start("other-layout", &daemon);
    other.tell("shared");
    let addr = other.hear();
    follows_with_the_bug(&pool, &addr);
    // Not heard of yet; then learnt; then its owner has gone, and perhaps the block.
    refuses(&pool, &addr);
    // SAFETY: nothing is changed.
    unsafe { store.as_raw() }.learn_types().expect("learn");
    refuses(&pool, &addr);
    assert!(other.ends());
    refuses(&pool, &addr);
}

#[test]
fn a_layout_that_is_learnt_before_the_pool_is_opened_is_compared() {
    let (daemon, store) = connected();
    let mut other = Actor::start("other-layout", &daemon);
    other.tell("alone");
    let addr = other.hear();
    assert!(other.ends());
    // SAFETY: nothing is changed.
    unsafe { store.as_raw() }.learn_types().expect("learn");
    refuses(&store.pool("p").expect("pool"), &addr);
}
