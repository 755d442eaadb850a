//! Pools with the logged heap: what is theirs alone. [`crate::heap_kinds`] has what all kinds have.

use crate::heap_kinds::{Node, Page, assert_sound, push, values};
use cenote::{Error, HeapKind, PoolOptions, Reader, Result, Store};
use cenote_testkit::directories::directory;

fn options() -> PoolOptions {
    PoolOptions { heap: HeapKind::Logged, ..PoolOptions::default() }
}

#[test]
fn a_transaction_of_more_blocks_than_tickets_is_refused_and_undone() -> Result<()> {
    let dir = directory();
    let store = Store::open(dir.path())?;
    let pool = store.create_pool("list", &PoolOptions { size_max: 64 << 20, ..options() })?;
    let refused = pool
        .write(|tx| {
            for value in 0..1_000_000 {
                let next = tx.root::<Node>()?;
                let node = tx.alloc(Node { value, next })?;
                tx.set_root(node)?;
            }
            Ok::<_, Error>(())
        })
        .unwrap_err();
    assert!(refused.to_string().contains("commit, and begin another"), "{refused}");
    assert_eq!(values(&pool)?, [0; 0]);
    assert_sound(&pool, 0);
    push(&pool, 1)
}

/// The first further part of such a pool's table is smaller than the smallest puddle.
#[test]
fn the_table_of_a_small_pool_grows() -> Result<()> {
    let dir = directory();
    let store = Store::open(dir.path())?;
    let small = PoolOptions { puddle_size: 256 << 10, ..options() };
    let pool = store.create_pool("small", &small)?;
    for _ in 0..20 {
        pool.write(|tx| (0..100).try_for_each(|_| tx.alloc(Page { words: [7; 512] }).map(drop)))?;
    }
    let report = pool.check()?;
    assert_eq!((report.stats.blocks, report.metadata.len()), (2000, 0), "{report:#?}");
    Ok(())
}

/// A program may ask for any bytes of a pool: those beside metadata are an error, and no fault.
#[test]
fn bytes_of_guard_pages_are_refused_and_all_others_can_be_read() -> Result<()> {
    let dir = directory();
    let store = Store::open(dir.path())?;
    let pool = store.create_pool("list", &options())?;
    push(&pool, 1)?;
    let (mut refused, mut read) = (0, 0);
    // SAFETY: it is asked for records alone.
    let records = unsafe { store.as_raw() }.puddle_records();
    for record in records.into_iter().filter(|record| record.pool == pool.id()) {
        // Behind its header, which is of no pool.
        for at in (record.addr + 4096..record.addr + record.size).step_by(4096) {
            match pool.read_at(at, &mut [0; 4096]) {
                Ok(()) => read += 1,
                Err(Error::Store(_)) => refused += 1,
                Err(error) => panic!("{at:#x}: {error}"),
            }
        }
    }
    // On both sides of the roots, and behind the sub-heap.
    assert!(refused == 3 && read > 500, "{refused} {read}");
    assert_sound(&pool, 1);
    Ok(())
}
