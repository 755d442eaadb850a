//! Where the kernel allows the process too few mappings, what a heap cannot look at is an error
//! that says so, and no value that was freed.
//!
//! A child does it: the limit is the process's own.

use cenote::{Access, Error, Persist, PoolOptions, Ptr, Reader, Result, Store};
use cenote_testkit::child::{run_task, task};

#[derive(Persist)]
#[persist(name = "crowded::Page")]
struct Page {
    number: u64,
    next: Option<Ptr<Page>>,
    _rest: [u64; 500],
}

/// Pages in several puddles; the first is in the root puddle, and the root leads to the last one.
fn fill(store: &Store) -> Result<()> {
    let options = PoolOptions { puddle_size: 256 << 10, ..PoolOptions::default() };
    store.create_pool("p", &options)?.write(|tx| {
        (0..200).try_for_each(|number| {
            let next = tx.root::<Page>()?;
            let page = tx.alloc(Page { number, next, _rest: [0; 500] })?;
            tx.set_root(page)
        })
    })
}

fn numbers(reader: &impl Reader) -> Result<u64> {
    let (mut count, mut at) = (0, reader.root::<Page>()?);
    while let Some(page) = at {
        at = reader.get(page)?.next;
        count += 1;
    }
    Ok(count)
}

/// Not a test of its own.
#[test]
fn child() {
    let Some((_, path)) = task() else { return };
    let store = Store::open(&path).expect("a store");
    fill(&store).expect("filled");
    store.close().expect("closed");
    let store = Store::open(&path).expect("a store");
    let pool = store.pool_with("p", Access::ReadWrite).expect("a pool");
    cenote_sys::mappings::set_limit(16);
    let said = |done: Result<u64>| match done {
        Err(Error::HeapOpen(error)) => error.to_string(),
        other => panic!("{other:?}"),
    };
    let of_view = said(pool.read().and_then(|view| numbers(&view)));
    let of_transaction = said(pool.write(|tx| numbers(tx)));
    assert!(of_view.contains("max_map_count"), "{of_view}");
    assert!(of_transaction.contains("max_map_count"), "{of_transaction}");
    cenote_sys::mappings::set_limit(65_530);
    assert_eq!(pool.read().and_then(|view| numbers(&view)).expect("all are there"), 200);
}

#[test]
fn values_of_a_puddle_that_cannot_be_mapped_are_not_called_freed() {
    let outer = tempfile::tempdir().expect("a directory");
    let (done, said) = run_task("crowded::child", "-", outer.path());
    assert!(done, "{said}");
}
