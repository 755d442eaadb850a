//! Pools with the wear heap: what is theirs alone. [`crate::heap_kinds`] has what all kinds have.

use crate::heap_kinds::{Node, push};
use cenote::{Error, HeapKind, PoolOptions, Reader, Result, Store};
use cenote_heap::RecoverError;
use cenote_layout::puddle::header_space;
use cenote_testkit::child;
use cenote_testkit::directories::directory;
use cenote_testkit::lost::lose;
use std::path::Path;

fn options() -> PoolOptions {
    PoolOptions { heap: HeapKind::Wear { wait_ms: 1 }, ..PoolOptions::default() }
}

const LOST: &str = "wear_pools::a_page_that_is_lost_costs_its_blocks_or_is_an_error";

/// Opens a pool, loses a page of it, and says what comes of it.
fn lose_page(dir: &Path, what: &str) -> Result<()> {
    let session = || -> Result<_> {
        let store = Store::open(dir)?;
        let pool = store.pool("list")?;
        let found = store.puddle_records().into_iter().find(|p| p.pool == pool.id());
        let found = found.expect("a root puddle");
        Ok((store, pool, found.addr + header_space(found.size)))
    };
    {
        let store = Store::open(dir)?;
        // Only in large puddles the segment table has a page of its own.
        let puddle_size = if what == "table" { 8 << 20 } else { 1 << 20 };
        let pool = store.create_pool("list", &PoolOptions { puddle_size, ..options() })?;
        for i in 0..300 {
            push(&pool, i)?;
        }
        drop(pool);
        store.close()?;
    }
    let first = {
        let (store, pool, _) = session()?;
        let first = pool.read()?.root::<Node>()?.expect("a root").addr();
        drop(pool);
        store.close()?;
        first
    };
    let (_store, pool, header) = session()?;
    let (roots, table) = (header + 4096, header + 4096 + 16_384);
    let lost = match what {
        "roots" => roots,
        "table" => table,
        _ => (first - 64 * 128) & !4095,
    };
    // SAFETY: a page of blocks that are not read before, of roots, or of the segment table.
    unsafe { lose(lost as usize) };
    if what != "blocks" {
        let tried = pool.write(|tx| tx.root::<Node>().map(drop));
        let error = tried.and_then(|()| (0..9000).try_for_each(|i| push(&pool, i))).unwrap_err();
        assert!(error.to_string().contains("lost"), "{error}");
        assert!(pool.write(|tx| tx.alloc(Node { value: 1, next: None }).map(drop)).is_err());
        return Ok(());
    }
    // 32 headers lie in the page, and the value of one block whose header is before it.
    assert_eq!(pool.stats()?.blocks, 268);
    let damage = pool.header_damage();
    assert!(damage.len() == 1 && damage[0].what.contains("cannot be read"), "{damage:?}");
    assert!((lost..lost + 4096).contains(&damage[0].addr), "{damage:?}");
    let unreadable = pool.check().unwrap_err();
    assert!(matches!(unreadable, Error::HeapRecover(RecoverError::Unreadable(_))), "{unreadable}");
    // Other blocks can be allocated and freed.
    let node = pool.write(|tx| tx.alloc(Node { value: 1, next: None }))?;
    pool.write(|tx| tx.free(node))
}

#[test]
fn a_page_that_is_lost_costs_its_blocks_or_is_an_error() -> Result<()> {
    if let Some((what, dir)) = child::task() {
        return lose_page(&dir, &what);
    }
    for what in ["blocks", "roots", "table"] {
        let dir = directory();
        let (done, said) = child::run_task(LOST, what, dir.path());
        assert!(done, "{what}: {said}");
    }
    Ok(())
}
