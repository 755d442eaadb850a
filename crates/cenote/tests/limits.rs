//! Values and transactions of every size and alignment, and what happens where there is no room for
//! them.

use crate::support::{directory, underneath};
use cenote::raw::{self, TxError};
use cenote::{Error, OpenOptions, Persist, PoolOptions, Ptr, Reader, Result, Store, field};
use cenote_heap::AllocError;
use std::time::{Duration, Instant};

#[test]
fn values_without_bytes_are_allocated_read_written_and_freed() -> Result<()> {
    #[derive(Persist, Debug, PartialEq)]
    #[persist(name = "limits::Nothing")]
    struct Nothing;
    #[derive(Persist)]
    #[persist(name = "limits::HasNothing")]
    struct HasNothing {
        nothing: Nothing,
        also: [u64; 0],
        value: u8,
    }
    let dir = directory();
    let store = Store::open(dir.path())?;
    let pool = store.pool("p")?;
    let (a, b, unit, holder) = pool.write(|tx| -> Result<_> {
        let holder = tx.alloc(HasNothing { nothing: Nothing, also: [], value: 1 })?;
        Ok((tx.alloc(Nothing)?, tx.alloc(Nothing)?, tx.alloc(())?, holder))
    })?;
    assert_ne!(a, b);
    pool.write(|tx| -> Result<()> {
        *tx.get_mut(a)? = Nothing;
        tx.set(holder, field!(HasNothing, nothing), Nothing)?;
        tx.set(holder, field!(HasNothing, also), [])?;
        tx.set(holder, field!(HasNothing, value), 2)?;
        tx.set_root(a)?;
        tx.free(b)?;
        tx.free(unit)
    })?;
    let view = pool.read()?;
    assert_eq!(view.get(view.root::<Nothing>()?.unwrap())?, &Nothing);
    assert_eq!(view.get(holder)?.value, 2);
    assert!(view.get(b).is_err());
    Ok(())
}

#[test]
fn alignments_up_to_2_mib_are_kept_and_larger_ones_refused() -> Result<()> {
    macro_rules! aligned {
        ($pool:expr, $align:literal, $name:literal) => {{
            #[derive(Persist)]
            #[persist(name = $name)]
            #[repr(align($align))]
            struct Aligned(u64);
            let pool = $pool;
            // Not on the stack, which cannot be aligned so.
            let result = pool.write(|tx| -> Result<Vec<Ptr<Aligned>>> {
                let mut all = Vec::new();
                for i in 0..5u64 {
                    // SAFETY: the block is as large and aligned as the type, and written before it
                    // is read.
                    unsafe {
                        let (size, align) =
                            (size_of::<Aligned>() as u64, align_of::<Aligned>() as u64);
                        let place =
                            tx.raw().alloc(pool.raw_heap(), size, align, Aligned::TYPE_ID)?;
                        place.cast::<u64>().write(i);
                        all.push(Ptr::from_non_null(place.cast()));
                    }
                }
                Ok(all)
            });
            result.map(|all| {
                let view = pool.read().unwrap();
                for (i, ptr) in all.iter().enumerate() {
                    assert_eq!(ptr.addr() % $align, 0);
                    assert_eq!(view.get(*ptr).unwrap().0, i as u64);
                }
            })
        }};
    }
    let dir = directory();
    let store = Store::open(dir.path())?;
    let pool = store.pool("p")?;
    aligned!(&pool, 16, "test::Aligned16")?;
    aligned!(&pool, 64, "test::Aligned64")?;
    aligned!(&pool, 4096, "test::Aligned4K")?;
    aligned!(&pool, 65536, "test::Aligned64K")?;
    aligned!(&pool, 2097152, "test::Aligned2M")?;
    let blocks = pool.stats()?.blocks;
    let refused = aligned!(&pool, 4194304, "test::Aligned4M");
    assert!(matches!(
        refused,
        Err(Error::Tx(TxError::Alloc(AllocError::Align { align: 4194304 })))
    ));
    assert_eq!(pool.stats()?.blocks, blocks);
    // By value.
    #[derive(Persist)]
    #[persist(name = "limits::Page")]
    #[repr(align(4096))]
    struct Page([u8; 4096]);
    let page = pool.write(|tx| tx.alloc(Page([5; 4096])))?;
    assert_eq!(page.addr() % 4096, 0);
    assert_eq!(pool.read()?.get(page)?.0[4095], 5);
    assert!(pool.check()?.damage.is_empty());
    Ok(())
}

#[test]
fn large_values_are_logged_whole_or_by_field_and_undone() -> Result<()> {
    #[derive(Persist)]
    #[persist(name = "limits::Large")]
    struct Large {
        words: [u64; 16 << 10],
        tail: u64,
    }
    const LAST: usize = (16 << 10) - 1;
    let dir = directory();
    let store = Store::open(dir.path())?;
    let pool = store.pool("p")?;
    let (a, b) = pool.write(|tx| -> Result<_> {
        let a = tx.alloc(Large { words: [1; 16 << 10], tail: 1 })?;
        Ok((a, tx.alloc([9u8; 14 << 10])?))
    })?;
    let undone: Result<()> = pool.write(|tx| {
        let large = tx.get_mut(a)?;
        large.words.fill(2);
        large.tail = 2;
        tx.get_mut(b)?.fill(3);
        tx.set(a, field!(Large, tail), 4)?;
        Err(Error::Aborted("on purpose".into()))
    });
    assert!(undone.is_err());
    {
        let view = pool.read()?;
        assert!(view.get(a)?.words.iter().all(|w| *w == 1) && view.get(a)?.tail == 1);
        assert!(view.get(b)?.iter().all(|byte| *byte == 9));
    }
    let element = field!(Large, words).element(LAST).unwrap();
    assert!(field!(Large, words).element(LAST + 1).is_none());
    pool.write(|tx| tx.set(a, element, 7))?;
    assert_eq!(pool.read()?.get(a)?.words[LAST], 7);
    pool.write(|tx| tx.free(a))?;
    assert!(pool.read()?.get(a).is_err());
    Ok(())
}

/// 64 MiB in one range, twice, undone and kept: the log grows by segments that double.
#[test]
fn a_range_of_64_mib_is_logged_and_undone() -> Result<()> {
    const LEN: usize = 64 << 20;
    let dir = directory();
    let store = Store::open(dir.path())?;
    let pool = store.pool("p")?;
    // SAFETY: bytes without a type, of this thread alone; both transactions are ended here.
    unsafe {
        let mut tx = raw::begin(&store)?;
        let block = tx.alloc(pool.raw_heap(), LEN as u64, 8, cenote::TypeId::UNTYPED)?.as_ptr();
        block.write_bytes(1, LEN);
        tx.commit()?;
        for keep in [false, true] {
            let mut tx = raw::begin(&store)?;
            tx.add(block, LEN / 2)?;
            tx.add(block, LEN)?;
            assert!(tx.is_covered(block as u64, LEN as u64));
            block.write_bytes(2, LEN);
            if keep {
                tx.commit()?
            } else {
                tx.abort()
            }
            let bytes = std::slice::from_raw_parts(block, LEN);
            let expected = if keep { 2 } else { 1 };
            assert!(bytes.iter().all(|byte| *byte == expected));
        }
    }
    Ok(())
}

#[test]
fn a_full_pool_fails_the_allocation_and_the_transaction_goes_on() -> Result<()> {
    #[derive(Persist)]
    #[persist(name = "limits::Kilo")]
    struct Kilo {
        number: u64,
        next: Option<Ptr<Kilo>>,
        _rest: [u8; 1008],
    }
    let dir = directory();
    let store = Store::open(dir.path())?;
    let options =
        PoolOptions { puddle_size: 256 << 10, size_max: 512 << 10, ..PoolOptions::default() };
    let pool = store.create_pool("p", &options)?;
    let full = |error: &Error, of: &str| match error {
        Error::NoRoom { pool, type_name, source } => {
            pool == "p" && type_name == of && matches!(source, AllocError::Full { .. })
        }
        _ => false,
    };
    let mut fits = 0;
    for commit in [false, true, true] {
        let result = pool.write(|tx| -> Result<u64> {
            let mut number = 0;
            let error = loop {
                let next = tx.root::<Kilo>()?;
                match tx.alloc(Kilo { number, next, _rest: [0; 1008] }) {
                    Ok(kilo) => tx.set_root(kilo)?,
                    Err(error) => break error,
                }
                number += 1;
            };
            assert!(full(&error, "limits::Kilo"), "{error}");
            // Neither a large one, nor more than the pool can ever hold; and still the transaction
            // goes on.
            let error = tx.alloc([0u8; 100 << 10]).unwrap_err();
            assert!(full(&error, "[u8; 102400]"), "{error}");
            let too_large = tx.alloc([0u8; 600 << 10]).unwrap_err();
            assert!(
                matches!(too_large, Error::Tx(TxError::Alloc(AllocError::Size { .. }))),
                "{too_large}"
            );
            let root = tx.root::<Kilo>()?.unwrap();
            tx.get_mut(root)?.number += 1000;
            if commit { Ok(number) } else { Err(Error::Aborted("on purpose".into())) }
        });
        match result {
            Ok(number) if fits == 0 => fits = number,
            Ok(number) => assert_eq!(number, 0, "full is full"),
            Err(error) => assert!(!commit && matches!(error, Error::Aborted(_)), "{error}"),
        }
    }
    assert!(fits > 300);
    let blocks = pool.stats()?.blocks;
    assert_eq!(blocks, fits);
    // Everything is freed in one transaction, and there is room again.
    pool.write(|tx| -> Result<()> {
        let mut at = tx.root::<Kilo>()?;
        while let Some(kilo) = at {
            at = tx.get(kilo)?.next;
            tx.free(kilo)?;
        }
        tx.set_root_at::<Kilo>(0, None)
    })?;
    assert_eq!(pool.stats()?.blocks, 0);
    pool.write(|tx| tx.alloc([0u8; 100 << 10]).map(drop))?;
    assert!(pool.check()?.miscounted.is_empty());
    Ok(())
}

/// Deferred writes of the first word of each pair, and writes in place of the second between them.
fn deferred_and_in_place(store: &Store, scattered: &[Ptr<u64>]) -> Result<()> {
    // SAFETY: words of this thread alone; ended here.
    unsafe {
        let mut tx = raw::begin(store)?;
        for pair in scattered.chunks_exact(2) {
            let value = pair[0].addr();
            tx.set(pair[0].as_ptr().cast(), (&raw const value).cast(), 8)?;
            tx.add(pair[1].as_ptr().cast(), 8)?;
            pair[1].as_ptr().write(1);
        }
        for pair in scattered.chunks_exact(2) {
            let both = tx.add(pair[0].as_ptr().cast(), 8);
            assert!(matches!(both, Err(TxError::PendingRedo { .. })));
        }
        tx.commit()
    }
}

/// Time for a step must not depend on how many came before. The limits are far above what it takes
/// (about a second each), and far below what a search one by one takes (minutes).
#[test]
fn many_steps_in_one_transaction_take_time_in_proportion() -> Result<()> {
    const COUNT: usize = 400_000;
    let dir = directory();
    let store = Store::open(dir.path())?;
    let pool = store.pool("p")?;
    let timed = |what: &str, limit: u64, step: &mut dyn FnMut() -> Result<()>| -> Result<()> {
        let began = Instant::now();
        step()?;
        let took = began.elapsed();
        println!("{what}: {took:?}");
        assert!(took < Duration::from_secs(limit), "{what} took {took:?}");
        Ok(())
    };
    let mut all: Vec<Ptr<u64>> = Vec::with_capacity(COUNT);
    timed("allocate", 60, &mut || {
        pool.write(|tx| -> Result<()> {
            for i in 0..COUNT as u64 {
                all.push(tx.alloc(i)?);
            }
            Ok(())
        })
    })?;
    assert_eq!(pool.stats()?.blocks, COUNT as u64);
    // In an order that has nothing to do with addresses.
    let scattered: Vec<Ptr<u64>> = (0..COUNT).map(|i| all[i * 611_953 % COUNT]).collect();
    timed("change, scattered, and undo", 60, &mut || {
        let undone: Result<()> = pool.write(|tx| {
            for ptr in &scattered {
                *tx.get_mut(*ptr)? += 1;
            }
            Err(Error::Aborted("on purpose".into()))
        });
        assert!(undone.is_err());
        Ok(())
    })?;
    timed("deferred writes, with writes in place between them", 60, &mut || {
        deferred_and_in_place(&store, &scattered)
    })?;
    let view = pool.read()?;
    assert!(scattered.chunks_exact(2).all(|pair| {
        *view.get(pair[0]).unwrap() == pair[0].addr() && *view.get(pair[1]).unwrap() == 1
    }));
    drop(view);
    timed("free", 60, &mut || {
        pool.write(|tx| -> Result<()> {
            for ptr in &scattered {
                tx.free(*ptr)?;
            }
            for ptr in scattered.iter().step_by(1000) {
                assert!(matches!(tx.free(*ptr), Err(Error::Tx(TxError::AlreadyFreed { .. }))));
            }
            Ok(())
        })
    })?;
    assert_eq!(pool.stats()?.blocks, 0);
    Ok(())
}

/// More segments than one session may list: the transaction fails with an error, is undone, and its
/// thread's log is as good as before.
#[test]
fn a_log_that_cannot_grow_any_more_fails_its_transaction_only() -> Result<()> {
    let dir = directory();
    let store = Store::open(dir.path())?;
    store.close()?;
    let store = Store::open_with(
        dir.path(),
        &OpenOptions { log_puddle_size: 8 << 10, ..OpenOptions::default() },
    )?;
    let pool = store.pool("p")?;
    let root = pool.write(|tx| tx.alloc([1u64; 100]))?;
    // Others' logs take what the log space has room for.
    let mut leases = Vec::new();
    let refused = loop {
        match underneath(&store).acquire_log() {
            Ok(lease) => leases.push(lease),
            Err(error) => break error,
        }
        if leases.len() == 1000 {
            break underneath(&store)
                .grow_log(leases[0].log_id(), 1)
                .and_then(|_| loop_until_full(&store, &leases))
                .unwrap_err();
        }
    };
    assert!(matches!(refused, cenote_store::StoreError::TooManyLogs { .. }), "{refused}");
    for _ in 0..3 {
        let result = pool.write(|tx| -> Result<()> {
            for i in 0..100 {
                tx.set(root, cenote_field(i), 2)?;
            }
            Ok(())
        });
        match result {
            Err(Error::Tx(TxError::Log(error))) => println!("{error}"),
            other => panic!("{other:?}"),
        }
        assert!(pool.read()?.get(root)?.iter().all(|word| *word == 1));
        pool.write(|tx| tx.set(root, cenote_field(0), 1))?;
    }
    // A thread without a log is told so.
    let other = std::thread::scope(|scope| {
        scope.spawn(|| pool.write(|_| Ok::<_, Error>(()))).join().unwrap()
    });
    assert!(
        matches!(other, Err(Error::Store(cenote_store::StoreError::TooManyLogs { .. }))),
        "{other:?}"
    );
    for lease in leases {
        underneath(&store).release_log(lease);
    }
    drop(pool);
    store.close()
}

fn loop_until_full(
    store: &Store,
    leases: &[cenote_store::LogLease],
) -> std::result::Result<(), cenote_store::StoreError> {
    leases.iter().try_for_each(|lease| underneath(store).grow_log(lease.log_id(), 1).map(drop))
}

fn cenote_field(index: usize) -> cenote::ptr::FieldOffset<[u64; 100], u64> {
    // SAFETY: an array is its own field at offset 0.
    let whole = unsafe { cenote::ptr::FieldOffset::<[u64; 100], [u64; 100]>::new(0) };
    whole.element(index).expect("in bounds")
}
