//! What a user sees: values survive closing, killing and aborting; mistakes are errors.

use cenote::{Access, Error, OpenOptions, Persist, Ptr, Reader, Result, Store, field};

#[derive(Persist, Debug, PartialEq)]
#[persist(name = "store::Node")]
struct Node {
    value: u64,
    next: Option<Ptr<Node>>,
}

fn push(pool: &cenote::Pool, value: u64) -> Result<()> {
    pool.write(|tx| {
        let next = tx.root::<Node>()?;
        let node = tx.alloc(Node { value, next })?;
        tx.set_root(node)
    })
}

fn values(pool: &cenote::Pool) -> Result<Vec<u64>> {
    let view = pool.read()?;
    let mut out = Vec::new();
    let mut at = view.root::<Node>()?;
    while let Some(ptr) = at {
        let node = view.get(ptr)?;
        out.push(node.value);
        at = node.next;
    }
    Ok(out)
}

#[test]
fn values_survive_close_and_open() -> Result<()> {
    let dir = tempfile::tempdir().unwrap();
    {
        let store = Store::open(dir.path())?;
        let pool = store.pool("list")?;
        for i in 0..1000 {
            push(&pool, i)?;
        }
        drop(pool);
        store.close()?;
    }
    let store = Store::open(dir.path())?;
    assert!(store.report().clean);
    let pool = store.pool("list")?;
    assert_eq!(values(&pool)?, (0..1000).rev().collect::<Vec<_>>());
    push(&pool, 1000)?;
    assert_eq!(values(&pool)?.len(), 1001);
    Ok(())
}

#[test]
fn an_error_or_a_panic_in_a_transaction_undoes_all_of_it() -> Result<()> {
    let dir = tempfile::tempdir().unwrap();
    let store = Store::open(dir.path())?;
    let pool = store.pool("list")?;
    push(&pool, 1)?;
    let before = pool.stats()?.blocks;
    let failed: Result<()> = pool.write(|tx| {
        let node = tx.root::<Node>()?.unwrap();
        tx.get_mut(node)?.value = 7;
        let other = tx.alloc(Node { value: 8, next: Some(node) })?;
        tx.set_root(other)?;
        Err(Error::Aborted("on purpose".into()))
    });
    assert!(matches!(failed, Err(Error::Aborted(_))));
    let panicked = std::panic::catch_unwind(std::panic::AssertUnwindSafe(|| {
        let _: Result<()> = pool.write(|tx| {
            let node = tx.root::<Node>()?.unwrap();
            tx.set(node, field!(Node, value), 9)?;
            tx.free(node)?;
            panic!("on purpose")
        });
    }));
    assert!(panicked.is_err());
    assert_eq!(values(&pool)?, [1]);
    assert_eq!(pool.stats()?.blocks, before);
    push(&pool, 2)?;
    assert_eq!(values(&pool)?, [2, 1]);
    Ok(())
}

#[test]
fn a_pointer_kept_too_long_is_an_error() -> Result<()> {
    let dir = tempfile::tempdir().unwrap();
    let store = Store::open(dir.path())?;
    let pool = store.pool("list")?;
    let mut kept = None;
    let aborted: Result<()> = pool.write(|tx| {
        kept = Some(tx.alloc(Node { value: 1, next: None })?);
        Err(Error::Aborted("on purpose".into()))
    });
    assert!(aborted.is_err());
    let view = pool.read()?;
    assert!(matches!(view.get(kept.unwrap()), Err(Error::Dangling { .. })));
    drop(view);
    let node = pool.write(|tx| tx.alloc(Node { value: 2, next: None }))?;
    pool.write(|tx| tx.free(node))?;
    assert!(matches!(pool.write(|tx| tx.free(node)), Err(Error::Dangling { .. })));
    assert!(matches!(pool.read()?.get(node), Err(Error::Dangling { .. })));
    Ok(())
}

#[test]
fn waiting_for_oneself_is_an_error() -> Result<()> {
    let dir = tempfile::tempdir().unwrap();
    let store = Store::open(dir.path())?;
    let (a, b) = (store.pool("a")?, store.pool("b")?);
    let view = a.read()?;
    assert!(matches!(a.write(|_| Ok::<_, Error>(())), Err(Error::WouldDeadlock { .. })));
    let second = a.read()?;
    drop(view);
    assert!(matches!(a.write(|_| Ok::<_, Error>(())), Err(Error::WouldDeadlock { .. })));
    drop(second);
    a.write(|_| {
        assert!(matches!(a.write(|_| Ok::<_, Error>(())), Err(Error::WouldDeadlock { .. })));
        assert!(matches!(b.write(|_| Ok::<_, Error>(())), Err(Error::WouldDeadlock { .. })));
        assert!(matches!(a.read(), Err(Error::WouldDeadlock { .. })));
        b.read().map(drop)
    })
}

#[test]
fn one_transaction_writes_two_pools() -> Result<()> {
    let dir = tempfile::tempdir().unwrap();
    let store = Store::open(dir.path())?;
    let (a, b) = (store.pool("a")?, store.pool("b")?);
    store.write(&[&a, &b], |tx| -> Result<()> {
        let in_b = tx.alloc_in(&b, Node { value: 2, next: None })?;
        let in_a = tx.alloc_in(&a, Node { value: 1, next: Some(in_b) })?;
        tx.set_root_in(&a, 0, Some(in_a))?;
        tx.set_root_in(&b, 0, Some(in_b))
    })?;
    // The pointer crosses pools: a view of one does not cover the other.
    let view = a.read()?;
    let first = view.get(view.root::<Node>()?.unwrap())?;
    assert!(matches!(view.get(first.next.unwrap()), Err(Error::Dangling { .. })));
    assert_eq!(values(&b)?, [2]);
    drop(view);
    let sum: u64 = store.write(&[&b, &a], |tx| -> Result<u64> {
        let first = tx.root_in::<Node>(&a, 0)?.unwrap();
        let second = tx.get(first)?.next.unwrap();
        Ok(tx.get(first)?.value + tx.get(second)?.value)
    })?;
    assert_eq!(sum, 3);
    let alone: Result<Ptr<Node>> = a.write(|tx| tx.alloc_in(&b, Node { value: 3, next: None }));
    assert!(matches!(alone, Err(Error::NotInTransaction { .. })));
    Ok(())
}

#[test]
fn roots_have_types() -> Result<()> {
    #[derive(Persist)]
    #[persist(name = "store::Other")]
    struct Other {
        _x: u64,
    }
    let dir = tempfile::tempdir().unwrap();
    let store = Store::open(dir.path())?;
    let pool = store.pool("p")?;
    push(&pool, 1)?;
    let wrong = pool.read()?.root::<Other>().unwrap_err();
    assert!(matches!(wrong, Error::RootType { .. }), "{wrong}");
    let types = format!("has type {}, not store::Other: read it as", Node::type_name());
    assert!(wrong.to_string().contains(&types), "{wrong}");
    assert!(matches!(pool.read()?.root_at::<Node>(1024), Err(Error::RootIndex(_))));
    assert_eq!(pool.read()?.root_at::<Node>(1023)?, None);
    Ok(())
}

#[test]
fn a_read_only_store_reads_and_refuses_to_write() -> Result<()> {
    let dir = tempfile::tempdir().unwrap();
    let store = Store::open(dir.path())?;
    push(&store.pool("p")?, 5)?;
    store.close()?;
    let store = Store::open_with(dir.path(), &OpenOptions::read_only())?;
    let pool = store.pool_with("p", Access::ReadOnly)?;
    assert_eq!(values(&pool)?, [5]);
    assert!(push(&pool, 6).is_err());
    assert!(store.pool("q").is_err());
    Ok(())
}

#[test]
fn threads_take_turns() -> Result<()> {
    let dir = tempfile::tempdir().unwrap();
    let store = Store::open(dir.path())?;
    let pool = store.pool("p")?;
    push(&pool, 0)?;
    std::thread::scope(|scope| {
        for _ in 0..4 {
            scope.spawn(|| {
                for _ in 0..500 {
                    pool.write(|tx| -> Result<()> {
                        let node = tx.root::<Node>()?.unwrap();
                        let value = tx.get(node)?.value;
                        tx.set(node, field!(Node, value), value + 1)
                    })
                    .unwrap();
                    let view = pool.read().unwrap();
                    assert!(view.get(view.root::<Node>().unwrap().unwrap()).unwrap().value > 0);
                }
            });
        }
    });
    assert_eq!(values(&pool)?, [2000]);
    drop(pool);
    store.close()
}
