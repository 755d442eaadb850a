//! Kinds of errors, of errors that programs meet: each is what a program has to know to go on.

use crate::support::directory;
use cenote::{
    Access, Error, ErrorKind, HeapKind, OpenOptions, Persist, PoolMode, PoolOptions, Ptr, Reader,
    Result, Store,
};
use cenote_testkit::child::{ended, task, with_task};
use std::time::Duration;

#[derive(Debug, Persist)]
#[persist(name = "error_kinds::Node")]
struct Node {
    value: u64,
    next: Option<Ptr<Node>>,
}

#[derive(Debug, Persist)]
#[persist(name = "error_kinds::Other")]
struct Other {
    value: u32,
}

#[track_caller]
fn kind<T: std::fmt::Debug>(result: Result<T>) -> ErrorKind {
    result.expect_err("an error").kind()
}

#[test]
fn errors_of_names_and_handles_have_the_kinds_that_their_messages_tell() -> Result<()> {
    let dir = directory();
    assert_eq!(
        kind(Store::open_with(dir.path().join("none"), &read_only()).map(drop)),
        ErrorKind::NotFound
    );
    assert_eq!(kind(Store::connect(dir.path().join("socket")).map(drop)), ErrorKind::NotFound);
    let store = Store::open(dir.path().join("store"))?;
    let pool = store.create_pool("p", &PoolOptions::default())?;
    assert_eq!(kind(store.pool_with("q", Access::ReadWrite).map(drop)), ErrorKind::NotFound);
    assert_eq!(kind(store.create_pool("p", &PoolOptions::default()).map(drop)), ErrorKind::Exists);
    assert_eq!(kind(store.create_pool("", &PoolOptions::default()).map(drop)), ErrorKind::Misuse);
    assert_eq!(kind(store.remove_pool("p")), ErrorKind::Busy);
    assert_eq!(kind(pool.psync().map(drop)), ErrorKind::Unsupported);
    let again = OpenOptions { lock_timeout: Duration::ZERO, ..OpenOptions::default() };
    assert_eq!(kind(Store::open_with(dir.path().join("store"), &again).map(drop)), ErrorKind::Busy);
    drop(pool);
    store.close()?;
    let store = Store::open_with(dir.path().join("store"), &read_only())?;
    let pool = store.pool_with("p", Access::ReadOnly)?;
    assert_eq!(kind(pool.write(|tx| tx.alloc(Other { value: 1 }).map(drop))), ErrorKind::Misuse);
    drop(pool);
    store.close()
}

fn read_only() -> OpenOptions {
    OpenOptions { access: Access::ReadOnly, ..OpenOptions::default() }
}

#[test]
fn errors_of_transactions_have_the_kinds_that_their_messages_tell() -> Result<()> {
    let dir = directory();
    let store = Store::open(dir.path())?;
    let options =
        PoolOptions { puddle_size: 256 << 10, size_max: 256 << 10, ..PoolOptions::default() };
    let pool = store.create_pool("p", &options)?;
    let node = pool.write(|tx| tx.alloc(Node { value: 1, next: None }))?;
    pool.write(|tx| tx.set_root(node))?;
    assert_eq!(kind(pool.write(|tx| tx.root::<Other>().map(drop))), ErrorKind::Misuse);
    assert_eq!(kind(pool.write(|_| Err::<(), _>(Error::Aborted("so".into())))), ErrorKind::Aborted);
    assert_eq!(kind(pool.write(|tx| tx.alloc([1u8; 300 << 10]).map(drop))), ErrorKind::Full);
    let other = pool.write(|tx| tx.alloc(Node { value: 2, next: Some(node) }))?;
    pool.write(|tx| tx.free(other))?;
    let view = pool.read()?;
    assert_eq!(kind(view.get(other).map(|node| node.value)), ErrorKind::Misuse);
    assert_eq!(kind(pool.write(|_| Ok(()))), ErrorKind::Misuse, "it would wait for itself");
    drop(view);
    drop(pool);
    store.close()
}

#[test]
fn a_wear_heap_whose_blocks_wait_says_busy_and_what_no_heap_does_unsupported() -> Result<()> {
    let dir = directory();
    let store = Store::open(dir.path())?;
    let (heap, mode) = (HeapKind::Wear { wait_ms: 600_000 }, PoolMode::Direct);
    let size = 256 << 10;
    let options =
        PoolOptions { heap, mode, puddle_size: size, size_max: size, ..PoolOptions::default() };
    let pool = store.create_pool("w", &options)?;
    assert_eq!(kind(pool.trim().map(drop)), ErrorKind::Unsupported);
    let error = (0..1000).find_map(|_| {
        let done = pool.write(|tx| {
            let value = tx.alloc([1u8; 6 << 10])?;
            tx.free(value)
        });
        done.err()
    });
    let error = error.expect("blocks wait");
    assert_eq!(error.kind(), ErrorKind::Busy, "{error}");
    assert!(ErrorKind::Busy.may_pass() && !ErrorKind::Damaged.may_pass());
    drop(pool);
    store.close()
}

/// Not a test of its own: a program whose `main` returns an error.
#[test]
fn child() -> Result<()> {
    let Some((_, dir)) = task() else { return Ok(()) };
    let store = Store::open(dir)?;
    store.remove_pool("ledger")
}

#[test]
fn a_main_that_returns_an_error_shows_its_message() {
    let outer = directory();
    let store = outer.path().join("store");
    let (status, said) = ended(&mut with_task("error_kinds::child", "main", &store));
    assert!(!status.success());
    let message = "Error: there is no pool \"ledger\" in this store: create it first, or check the \
                   name\n";
    assert!(said.contains(message), "{said}");
}
