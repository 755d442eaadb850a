//! Safe code that tries to see a value that is none: each attempt ends in a typed error.

use crate::support::{directory, underneath};
use cenote::persist::TypeSetError;
use cenote::raw::TxError;
use cenote::{
    Access, Durability, Error, FormatOptions, OpenOptions, Persist, PowerLossPolicy, Ptr, Reader,
    Result, Store,
};
use cenote_medium::Medium;
use cenote_medium::planted::{Bug, Step, plant, watch};
use cenote_medium::sim::{CrashKind, SimMedium, SimOptions};
use cenote_store::StoreError;
use std::sync::{Arc, mpsc};
use std::time::Duration;

#[derive(Persist)]
#[persist(name = "soundness::Node")]
struct Node {
    value: u64,
    next: Option<Ptr<Node>>,
}

mod numbers {
    #[derive(cenote::Persist)]
    #[persist(name = "soundness::Sized")]
    pub(crate) struct Named {
        pub(crate) value: u64,
    }
}

mod letters {
    #[derive(cenote::Persist)]
    #[persist(name = "soundness::Sized")]
    pub(crate) struct Named {
        pub(crate) value: [char; 64],
    }
}

#[test]
fn two_types_of_one_name_are_never_taken_for_each_other() -> Result<()> {
    let dir = directory();
    let pool = Store::open(dir.path())?.pool("p")?;
    let number = pool.write(|tx| -> Result<_> {
        let number = tx.alloc(numbers::Named { value: u64::MAX })?;
        tx.set_root(number)?;
        Ok(number)
    })?;
    let same_name = |error: Error| matches!(error, Error::Types(TypeSetError::SameName { .. }));
    assert!(same_name(pool.read()?.root::<letters::Named>().unwrap_err()));
    let other = pool.write(|tx| tx.alloc(letters::Named { value: ['x'; 64] }).map(drop));
    assert!(same_name(other.unwrap_err()));
    let root = pool.write(|tx| {
        tx.root::<letters::Named>().map(|root| root.map(|r| tx.get(r).map(|v| v.value[63]).ok()))
    });
    assert!(same_name(root.unwrap_err()));
    assert_eq!(pool.read()?.get(number)?.value, u64::MAX);
    Ok(())
}

/// Many types in one transaction, some of which share a place in the table of known types: it must
/// stay a table of types, and fast.
#[test]
fn many_types_are_told_apart_and_learned_once() -> Result<()> {
    #[derive(Persist)]
    #[persist(name = "soundness::Sized")]
    struct Sized<const N: usize>([u8; N]);
    macro_rules! put {
        ($tx:expr, $($n:literal)*) => {$( $tx.alloc(Sized::<$n>([7; $n]))?; )*};
    }
    let dir = directory();
    let pool = Store::open(dir.path())?.pool("p")?;
    let round = || -> Result<()> {
        pool.write(|tx| -> Result<()> {
            put!(tx, 1 2 3 4 5 6 7 8 9 10 11 12 13 14 15 16 17 18 19 20);
            put!(tx, 21 22 23 24 25 26 27 28 29 30 31 32 33 34 35 36 37 38 39 40);
            Ok(())
        })
    };
    round()?;
    let began = std::time::Instant::now();
    (0..500).try_for_each(|_| round())?;
    let each = began.elapsed() / 20_000;
    assert!(each < std::time::Duration::from_micros(20), "{each:?} for each allocation");
    Ok(())
}

/// A pointer is only a number. It was made where a store agreed with the program about its type; a
/// store opened later may have its window at the same place and know the type with another layout.
#[test]
fn a_pointer_of_a_closed_store_is_not_followed_into_another_layout() -> Result<()> {
    #[derive(Persist)]
    #[persist(name = "soundness::Wide")]
    struct Wide([char; 4]);
    let format =
        FormatOptions { window_base: Some(0x1800_0000_0000), window_len: 1 << 30, uuid: None };
    let (first, second) = (directory(), directory());
    Store::format(first.path(), &format)?;
    Store::format(second.path(), &format)?;
    let ptr = {
        let pool = Store::open(first.path())?.pool("p")?;
        pool.write(|tx| tx.alloc(Wide(['a'; 4])))?
    };
    // The second store was written by a program whose type of this name is smaller.
    let store = Store::open(second.path())?;
    let mut record = Wide::record();
    (record.size, record.align, record.fields) = (8, 8, Vec::new());
    // SAFETY: that a record is not as this program has the type is what is tested; it is refused.
    unsafe { underneath(&store).register_type(&record) }?;
    let pool = store.pool("p")?;
    // SAFETY: the block holds what that program calls a value.
    let block = unsafe { pool.raw_heap() }.alloc(8, 8, Wide::TYPE_ID).map_err(TxError::from)?;
    // SAFETY: a fresh block of 8 bytes.
    unsafe { block.addr.cast::<u64>().write(u64::MAX) };
    drop(pool);
    store.close()?;

    let store = Store::open(second.path())?;
    let pool = store.pool("p")?;
    // The same address, if both pools began alike; else the very block.
    // SAFETY: followed only with a check.
    let there = unsafe { Ptr::<Wide>::from_addr(block.addr.as_ptr() as u64) }.unwrap();
    for ptr in [ptr, there] {
        assert!(matches!(pool.read()?.get(ptr), Err(Error::Dangling { .. })));
        assert!(pool.write(|tx| tx.get(ptr).map(drop)).is_err());
        assert!(pool.write(|tx| tx.get_mut(ptr).map(drop)).is_err());
        assert!(pool.write(|tx| tx.free(ptr)).is_err());
    }
    assert!(matches!(
        pool.write(|tx| tx.alloc(Wide(['b'; 4])).map(drop)),
        Err(Error::Store(StoreError::TypeMismatch(_)))
    ));
    // Other types are as good as ever there.
    let node = pool.write(|tx| tx.alloc(Node { value: 1, next: None }))?;
    assert_eq!(pool.read()?.get(node)?.value, 1);
    assert!(pool.read()?.get(node)?.next.is_none());
    Ok(())
}

/// Two threads learn a type at once, while a store is open that has it otherwise. The one that does
/// not compare follows a pointer into that store as soon as it has its answer. Whether it got a
/// value.
fn second_thread_follows(bug: Bug) -> Result<bool> {
    #[derive(Persist, Clone, Copy)]
    #[persist(name = "soundness::LearntTwice")]
    struct Twice([char; 4]);
    #[derive(Persist, Clone, Copy)]
    #[persist(name = "soundness::LearntTwiceBuggy")]
    struct TwiceBuggy([char; 4]);
    fn run<T: Persist + Copy>(value: T, bug: Bug) -> Result<bool> {
        let (first, second) = (directory(), directory());
        let other = Store::open(second.path())?;
        let mut record = T::record();
        (record.size, record.align, record.fields) = (8, 8, Vec::new());
        // SAFETY: that a record is not as this program has the type is what is tested; it is
        // refused.
        unsafe { underneath(&other).register_type(&record) }?;
        let there = other.pool("p")?;
        // SAFETY: the block holds what another program calls a value.
        let block = unsafe { there.raw_heap() }.alloc(8, 8, T::TYPE_ID).map_err(TxError::from)?;
        // SAFETY: a fresh block of 8 bytes.
        unsafe { block.addr.cast::<u64>().write(u64::MAX) };
        // SAFETY: followed only with a check.
        let at = unsafe { Ptr::<T>::from_addr(block.addr.as_ptr() as u64) }.unwrap();
        // The store compares what it knows with the program, and is done with that.
        let node = there.write(|tx| tx.alloc(Node { value: 1, next: None }))?;
        there.read()?.get(node)?;
        let store = Store::open(first.path())?;
        // Two, so that no thread waits for the other's transaction.
        let (pool, another) = (store.pool("p")?, store.pool("q")?);
        let (inserted, is_inserted) = mpsc::channel();
        let (go, may_go) = mpsc::channel();
        let (answer, answered) = mpsc::channel();
        std::thread::scope(|scope| {
            let (pool, another) = (&pool, &another);
            scope.spawn(move || {
                plant(bug);
                watch(Some(Box::new(move |step| {
                    if step == Step::TypeInserted {
                        inserted.send(()).unwrap();
                        may_go.recv().unwrap();
                    }
                })));
                pool.write(|tx| tx.alloc(value).map(drop)).unwrap();
                watch(None);
            });
            is_inserted.recv().unwrap();
            scope.spawn(move || {
                plant(bug);
                another.write(|tx| tx.alloc(value).map(drop)).unwrap();
                answer.send(there.read().unwrap().get(at).is_ok()).unwrap();
            });
            // It has no answer before the first thread goes on; a wrong one would come at once.
            let early = answered.recv_timeout(Duration::from_millis(500));
            go.send(()).unwrap();
            Ok(early.or_else(|_| answered.recv()).unwrap())
        })
    }
    // Each of its own id: a type is learnt once in a process.
    match bug {
        Bug::None => run(Twice(['a'; 4]), bug),
        _ => run(TwiceBuggy(['a'; 4]), bug),
    }
}

#[test]
fn a_type_that_two_threads_learn_is_known_when_every_store_was_compared() -> Result<()> {
    assert!(!second_thread_follows(Bug::None)?);
    Ok(())
}

#[test]
fn a_type_that_counts_as_known_before_stores_were_compared_is_found() -> Result<()> {
    assert!(second_thread_follows(Bug::TypeKnownEarly)?);
    Ok(())
}

#[test]
fn a_pool_that_power_loss_may_have_torn_shows_no_values_to_safe_code() -> Result<()> {
    let sim = SimMedium::new(SimOptions::new(Durability::Process));
    let medium: Arc<dyn Medium> = sim.clone();
    let format =
        FormatOptions { window_base: Some(0x1900_0000_0000), window_len: 1 << 30, uuid: None };
    cenote_store::format(medium.clone(), &format)?;
    let store = Store::open_on(medium, &OpenOptions::default())?;
    let pool = store.create_pool("p", &small())?;
    pool.write(|tx| -> Result<()> {
        let node = tx.alloc(Node { value: 1, next: None })?;
        tx.set_root(node)
    })?;
    store.clone().abandon();
    drop((pool, store));
    let after = || -> Arc<dyn Medium> { SimMedium::from_image(&sim.image_now(CrashKind::Power)) };

    let store = Store::open_on(after(), &OpenOptions::default())?;
    assert!(matches!(store.pool("p"), Err(Error::Store(StoreError::PoolNotCovered { .. }))));
    drop(store);
    assert!(matches!(
        Store::open_on(
            after(),
            &OpenOptions { power_loss: PowerLossPolicy::AsIs, ..OpenOptions::default() }
        ),
        Err(Error::AsIs)
    ));
    let read_only = OpenOptions { power_loss: PowerLossPolicy::ReadOnly, ..OpenOptions::default() };
    let store = Store::open_on(after(), &read_only)?;
    let pool = store.pool_with("p", Access::ReadOnly)?;
    assert!(matches!(pool.read(), Err(Error::Store(StoreError::PoolNotCovered { .. }))));
    assert!(pool.write(|_| Ok::<_, Error>(())).is_err());
    // As blocks it can be looked at.
    assert!(pool.check().is_ok() && pool.heap().root(0).is_ok());
    drop((pool, store));
    // SAFETY: nothing is read from it but that it can be.
    let store = unsafe { Store::open_torn(after(), &read_only) }?;
    assert!(store.pool_with("p", Access::ReadOnly)?.read().is_ok());
    Ok(())
}

fn small() -> cenote::PoolOptions {
    cenote::PoolOptions { puddle_size: 256 << 10, ..cenote::PoolOptions::default() }
}

/// A pool that a policy or a damage has made read-only is the same pool when it is asked for again.
#[test]
fn a_pool_that_a_policy_made_read_only_is_opened_twice_alike() -> Result<()> {
    let dir = directory();
    let store = Store::open(dir.path())?;
    let pool = store.create_pool("p", &small())?;
    pool.write(|tx| tx.alloc([0u8; 200 << 10]).map(drop))?;
    drop(pool);
    let raw = underneath(&store).open_pool("p", Access::ReadOnly)?;
    let puddles: Vec<String> = raw
        .puddles()
        .iter()
        .map(|p| p.uuid().to_hex().iter().map(|b| char::from(*b)).collect())
        .collect();
    assert!(puddles.len() > 1);
    drop(raw);
    store.close()?;
    std::fs::remove_file(dir.path().join("puddles").join(&puddles[1])).unwrap();

    let options =
        OpenOptions { damage: cenote::DamagePolicy::SkipDamaged, ..OpenOptions::default() };
    let store = Store::open_with(dir.path(), &options)?;
    let first = store.pool("p")?;
    let second = store.pool("p")?;
    assert!(!first.is_writable() && !second.is_writable());
    assert!(matches!(
        first.write(|_| Ok::<_, Error>(())),
        Err(Error::Store(StoreError::PoolReadOnly { .. }))
    ));
    Ok(())
}

#[test]
fn after_a_store_is_poisoned_no_transaction_is_acknowledged() -> Result<()> {
    let dir = directory();
    let store = Store::open(dir.path())?;
    let pool = store.pool("p")?;
    let node = pool.write(|tx| tx.alloc(Node { value: 1, next: None }))?;
    let result = pool.write(|tx| -> Result<()> {
        tx.get_mut(node)?.value = 2;
        // As when a puddle that the pool wants to grow by cannot be synced.
        underneath(&store).poison("on purpose");
        Ok(())
    });
    assert!(matches!(result, Err(Error::Store(StoreError::Poisoned { .. }))));
    assert_eq!(pool.read()?.get(node)?.value, 1);
    assert!(pool.write(|_| Ok::<_, Error>(())).is_err());
    Ok(())
}

#[test]
fn what_is_freed_is_freed_once_and_roots_to_it_lead_nowhere() -> Result<()> {
    let dir = directory();
    let pool = Store::open(dir.path())?.pool("p")?;
    let before = pool.stats()?.blocks;
    // Allocated and freed by one transaction, committed or aborted.
    let ptr = pool.write(|tx| -> Result<_> {
        let ptr = tx.alloc(Node { value: 1, next: None })?;
        tx.free(ptr)?;
        assert!(matches!(tx.free(ptr), Err(Error::Tx(TxError::AlreadyFreed { .. }))));
        assert_eq!(tx.get(ptr)?.value, 1);
        tx.get_mut(ptr)?.value = 2;
        Ok(ptr)
    })?;
    assert_eq!(pool.stats()?.blocks, before);
    assert!(matches!(pool.read()?.get(ptr), Err(Error::Dangling { .. })));
    let aborted: Result<()> = pool.write(|tx| {
        let ptr = tx.alloc(Node { value: 1, next: None })?;
        tx.free(ptr)?;
        Err(Error::Aborted("on purpose".into()))
    });
    assert!(aborted.is_err());
    assert_eq!(pool.stats()?.blocks, before);
    // The root is freed behind the root's back.
    pool.write(|tx| -> Result<()> {
        let ptr = tx.alloc(Node { value: 3, next: None })?;
        tx.set_root(ptr)
    })?;
    pool.write(|tx| -> Result<()> {
        let root = tx.root::<Node>()?.unwrap();
        tx.free(root)?;
        tx.set_root(root)
    })?;
    assert!(matches!(pool.read()?.root::<Node>(), Err(Error::Dangling { .. })));
    assert!(pool.write(|tx| tx.set_root(ptr)).is_err());
    pool.write(|tx| tx.set_root_at::<Node>(0, None))?;
    assert!(pool.read()?.root::<Node>()?.is_none());
    // The place is given out once.
    let (a, b) = pool.write(|tx| -> Result<_> { Ok((tx.alloc(1u64)?, tx.alloc(2u64)?)) })?;
    assert_ne!(a, b);
    assert!(pool.check()?.miscounted.is_empty());
    Ok(())
}

/// The rest of a store in a process that was forked: refused, also when it is dropped there.
#[test]
fn a_fork_of_the_process_can_neither_read_nor_write() -> Result<()> {
    use std::os::unix::process::CommandExt;
    let dir = directory();
    let store = Store::open(dir.path())?;
    let pool = store.pool("p")?;
    let node = pool.write(|tx| tx.alloc(Node { value: 1, next: None }))?;
    let before = crate::support::hashes(dir.path());
    let (in_child, node_in_child) = (pool.clone(), node);
    let store_in_child = store.clone();
    let mut command = std::process::Command::new("true");
    let forked = move || {
        let forked = |error: Error| matches!(error, Error::Store(StoreError::Forked));
        let all = in_child.write(|tx| tx.get_mut(node_in_child).map(drop)).is_err_and(forked)
            && in_child.read().map(drop).is_err_and(forked)
            && in_child.stats().map(drop).is_err_and(forked)
            && in_child.check().map(drop).is_err_and(forked)
            && in_child.collect().map(drop).is_err_and(forked)
            && store_in_child.pool("q").map(drop).is_err()
            && store_in_child.quiesce().is_err_and(forked);
        if all { Ok(()) } else { Err(std::io::Error::other("the child had access")) }
    };
    // SAFETY: the child touches what the parent's single user of these handles is not changing
    // meanwhile.
    unsafe { command.pre_exec(forked) };
    assert!(command.status().expect("the child was refused everything").success());
    drop(command);
    assert_eq!(crate::support::hashes(dir.path()), before);
    assert_eq!(pool.read()?.get(node)?.value, 1);
    drop(pool);
    store.close()
}
