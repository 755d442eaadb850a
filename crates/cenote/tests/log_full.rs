//! An allocation that the log has no room for leaves nothing in the log: the block that it would
//! have taken belongs to the next owner, also after a crash.

use cenote::raw::{self, TxError};
use cenote::{
    Durability, Error, FormatOptions, HeapKind, OpenOptions, Persist, Pool, PoolOptions, Ptr,
    Reader, Result, Store,
};
use cenote_medium::planted::{Bug, LoggedBug, plant};
use cenote_medium::sim::{CrashKind, Fault, FaultEffect, FaultPoint, SimMedium, SimOptions};
use cenote_medium::{Medium, Operation};
use std::sync::Arc;

const WORDS: usize = 4096;
const LOG_LEN: u64 = 8 << 10;

type Root = Ptr<[u64; WORDS]>;

fn options() -> OpenOptions {
    OpenOptions { log_puddle_size: LOG_LEN, ..OpenOptions::default() }
}

/// A store whose logs cannot grow, with a root of many words.
fn prepared(level: Durability, heap: HeapKind) -> Result<(Arc<SimMedium>, Store, Pool, Root)> {
    let sim = SimMedium::new(SimOptions::new(level));
    let medium: Arc<dyn Medium> = sim.clone();
    let format =
        FormatOptions { window_base: Some(0x1e00_0000_0000), window_len: 1 << 30, uuid: None };
    cenote_store::format(medium.clone(), &format)?;
    let store = Store::open_on(medium, &options())?;
    let pool = store.create_pool(
        "p",
        &PoolOptions { heap, puddle_size: 256 << 10, ..PoolOptions::default() },
    )?;
    // A transaction that overflows would have a further segment from then on: this one does not.
    let root = pool.write(|tx| -> Result<_> {
        let root = tx.alloc([0u64; WORDS])?;
        tx.set_root(root)?;
        Ok(root)
    })?;
    // The type's superblock is taken, so that later allocations need no growth.
    pool.write(|tx| tx.alloc(0u128).map(drop))?;
    let full = FaultPoint::Operation(Operation::Create);
    sim.inject(Fault::once(full, 0, FaultEffect::NoSpace).repeating());
    Ok((sim, store, pool, root))
}

/// Every level, with every kind of heap.
fn kinds() -> Vec<(Durability, HeapKind)> {
    let of = |level| [HeapKind::Traced, HeapKind::Logged, HeapKind::WEAR].map(|heap| (level, heap));
    [Durability::Process, Durability::Power].into_iter().flat_map(of).collect()
}

/// Logs words, each with an entry of one line, until `count` are logged or the log is full; how
/// many.
///
/// # Safety
/// The root is live, and no other thread holds its pool for writing.
unsafe fn fill(tx: &mut raw::RawTx<'_>, root: Root, count: usize) -> usize {
    for index in 0..count {
        // SAFETY: a word of the root, by contract.
        match unsafe { tx.add(root.as_ptr().cast::<u64>().add(index).cast(), 8) } {
            Ok(()) => {}
            Err(TxError::Log(_)) => return index,
            Err(other) => panic!("{other}"),
        }
    }
    count
}

#[test]
fn an_allocation_that_does_not_fit_the_log_leaves_nothing_in_it() -> Result<()> {
    for (level, heap) in kinds() {
        let room = {
            let (_sim, store, _pool, root) = prepared(level, heap)?;
            // SAFETY: this thread is alone; the transaction ends here.
            unsafe { fill(&mut raw::begin(&store)?, root, WORDS) }
        };
        assert!(room > 8 && room < WORDS, "{room} entries fit");
        let mut refused = 0;
        for left in 0..4 {
            for committed in [false, true] {
                let (sim, store, pool, root) = prepared(level, heap)?;
                let before = pool.stats()?.blocks;
                // SAFETY: this thread is alone, and ends the transaction below; the heap is the
                // pool's own.
                let (mut tx, heap) = unsafe { (raw::begin(&store)?, pool.raw_heap()) };
                // SAFETY: as above.
                assert_eq!(unsafe { fill(&mut tx, root, room - left) }, room - left);
                // SAFETY: as above.
                let outcome = unsafe { tx.alloc(heap, 16, 16, u128::TYPE_ID) };
                match outcome {
                    Err(TxError::Log(_)) => refused += 1,
                    Err(other) => panic!("{other}"),
                    Ok(_) => {
                        tx.abort();
                        continue;
                    }
                }
                assert_eq!(pool.stats()?.blocks, before);
                // The place is given out again, outside of any transaction.
                let theirs =
                    heap.alloc(16, 16, u128::TYPE_ID).map_err(TxError::from)?.addr.as_ptr() as u64;
                let crashed = sim.image_now(CrashKind::Process);
                // The transaction goes on as if nothing had been, and what it commits does not
                // depend on what they write. SAFETY: words of the root that are
                // logged; a block that is not in use.
                unsafe {
                    root.as_ptr().cast::<u64>().write(5);
                    std::ptr::with_exposed_provenance_mut::<u128>(theirs as usize).write(u128::MAX);
                }
                match committed {
                    true => drop(tx.commit()), // the seal may have no room either
                    false => tx.abort(),
                }
                assert_eq!(
                    heap.owner(theirs).map(|block| block.addr),
                    Some(theirs),
                    "{level}, {left} left"
                );
                assert_eq!(pool.stats()?.blocks, before + 1);
                store.clone().abandon();
                drop((pool, store));
                let medium: Arc<dyn Medium> = SimMedium::from_image(&crashed);
                let store = Store::open_on(medium, &options())?;
                let pool = store.pool("p")?;
                assert_eq!(pool.read()?.get(root)?[0], 0, "rolled back");
                assert_eq!(
                    pool.heap().owner(theirs).map(|block| block.addr),
                    Some(theirs),
                    "{level}, {left} lines left: recovery took the block of the next owner away"
                );
                assert_eq!(pool.stats()?.blocks, before + 1);
            }
        }
        assert!(refused > 0, "nothing was refused at level {level}, {heap:?}");
    }
    Ok(())
}

#[test]
fn after_a_refused_allocation_the_transaction_goes_on() -> Result<()> {
    let (_sim, _store, pool, root) = prepared(Durability::Power, HeapKind::Traced)?;
    let result: Result<u64> = pool.write(|tx| {
        let mut logged = 0;
        loop {
            // SAFETY: a word of a live value, which nothing else borrows.
            match unsafe { tx.raw().add(root.as_ptr().cast::<u64>().add(logged).cast(), 8) } {
                Ok(()) => logged += 1,
                Err(TxError::Log(_)) => break,
                Err(other) => return Err(other.into()),
            }
        }
        let refused = tx.alloc(1u128);
        assert!(matches!(refused, Err(Error::Tx(TxError::Log(_)))), "{refused:?}");
        // Reading, and aborting, still works.
        assert_eq!(tx.get(root)?[0], 0);
        Err(Error::Aborted("on purpose".into()))
    });
    assert!(matches!(result, Err(Error::Aborted(_))));
    assert!(pool.write(|tx| tx.alloc(1u128)).is_ok());
    Ok(())
}

/// Blocks that are left when a transaction could not free its own block, because the log was full,
/// and aborted; and when two others have allocated and freed. `before` was allocated before.
fn left_by_a_refused_free(level: Durability, kind: HeapKind) -> Result<[u64; 3]> {
    let (sim, store, pool, root) = prepared(level, kind)?;
    let before = pool.stats()?.blocks;
    // SAFETY: this thread is alone, and ends the transaction below; the heap is the pool's own.
    let (mut tx, heap) = unsafe { (raw::begin(&store)?, pool.raw_heap()) };
    // SAFETY: as above.
    unsafe {
        let own = tx.alloc(heap, 16, 16, u128::TYPE_ID)?.as_ptr() as u64;
        assert!(fill(&mut tx, root, WORDS) < WORDS);
        let refused = tx.free(heap, own);
        assert!(matches!(refused, Err(TxError::Log(_))), "{refused:?}");
    }
    tx.abort();
    let aborted = pool.stats()?.blocks;
    for _ in 0..2 {
        let other = pool.write(|tx| tx.alloc(1u128))?;
        pool.write(|tx| tx.free(other))?;
    }
    let crashed = sim.image_now(CrashKind::Process);
    store.clone().abandon();
    drop((pool, store));
    let store = Store::open_on(SimMedium::from_image(&crashed), &options())?;
    Ok([before, aborted, store.pool("p")?.stats()?.blocks])
}

#[test]
fn a_free_that_does_not_fit_the_log_leaves_the_block_to_its_transaction() -> Result<()> {
    for (level, kind) in kinds() {
        let [before, aborted, opened] = left_by_a_refused_free(level, kind)?;
        assert_eq!((aborted, opened), (before, before), "{level}, {kind:?}");
    }
    plant(Bug::Logged(LoggedBug::OwnTicketSettled));
    let found = left_by_a_refused_free(Durability::Process, HeapKind::Logged);
    plant(Bug::None);
    let [before, aborted, _] = found?;
    assert!(aborted > before, "the bug was not found");
    Ok(())
}
