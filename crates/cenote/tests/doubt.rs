//! Pools whose values may not be what transactions made them: safe code sees blocks, not values.
//! And: what a dangling pointer leads to is not taken for a value.

use crate::support::{directory, hashes, underneath};
use cenote::{
    Access, CrashKind, DamagePolicy, Durability, Error, FormatOptions, MediumOptions, OpenOptions,
    Persist, Pool, PoolOptions, PoolStart, Ptr, Reader, RealMedium, Result, Store,
};
use cenote_layout::log::EntryKind;
use cenote_log::{Body, LogWriter, SegmentSource};
use cenote_medium::Medium;
use cenote_medium::sim::{self, SimMedium, SimOptions};
use std::path::Path;
use std::sync::Arc;

#[derive(Persist)]
#[persist(name = "doubt::Node")]
pub(crate) struct Node {
    pub(crate) value: u64,
    next: Option<Ptr<Node>>,
}

fn small() -> PoolOptions {
    PoolOptions { puddle_size: 256 << 10, ..PoolOptions::default() }
}

struct NoSegments;

impl SegmentSource for NoSegments {
    fn segment(
        &mut self,
        _: u32,
    ) -> std::result::Result<(u64, Body), Box<dyn std::error::Error + Send + Sync>> {
        Err("one segment is enough here".into())
    }
}

pub(crate) fn with_root(pool: &Pool) -> Result<Ptr<Node>> {
    pool.write(|tx| {
        let node = tx.alloc(Node { value: 7, next: None })?;
        tx.set_root(node)?;
        tx.set_named_root("first", Some(node))?;
        Ok(node)
    })
}

/// A store whose last writer died with a log that names what it could not write, so that the log is
/// set aside; it held pool "p", not pool "other".
pub(crate) fn with_log_set_aside() -> Result<tempfile::TempDir> {
    let dir = directory();
    let store = Store::open(dir.path())?;
    for name in ["p", "other"] {
        with_root(&store.create_pool(name, &small())?)?;
    }
    store.close()?;
    let store = Store::open(dir.path())?;
    let pool = store.pool("p")?;
    let foreign = {
        let other = store.pool_with("other", Access::ReadOnly)?;
        other.read()?.root::<Node>()?.expect("set").addr()
    };
    let raw = underneath(&store);
    let lease = raw.acquire_log()?;
    let word = 0_u64;
    // SAFETY: the log is leased and mapped until the store is dropped; the word is readable.
    unsafe {
        let mut writer =
            LogWriter::attach(lease.body(), raw.persistence(), Box::new(NoSegments)).unwrap();
        writer.append(EntryKind::Undo, foreign, 8, (&raw const word).cast()).unwrap();
    }
    store.clone().abandon();
    drop((pool, store));
    Ok(dir)
}

/// That safe code gets to see blocks of the pool, and none of its values.
fn only_blocks(pool: &Pool, why: &str) -> Result<()> {
    let refused = |error: Error| {
        assert!(
            matches!(&error, Error::NotWhole { pool, why } if pool == "p" && !why.is_empty()),
            "{error:?}"
        );
        let text = error.to_string();
        assert!(
            text.contains(why) && text.contains("open_torn") && text.contains("cenote check"),
            "{text}"
        );
    };
    refused(pool.read().map(drop).unwrap_err());
    refused(pool.named_root::<Node>("first").map(drop).unwrap_err());
    let written = pool.write(|_| Ok::<_, Error>(())).unwrap_err();
    match written {
        Error::Store(
            cenote_store::StoreError::PoolReadOnly { .. }
            | cenote_store::StoreError::ReadOnly { .. },
        ) => assert!(!pool.is_writable()),
        error => refused(error),
    }
    assert!(pool.check()?.stats.blocks > 0 && pool.heap().root(0).is_ok());
    let mut blocks = 0;
    pool.heap().walk(&mut |_| blocks += 1)?;
    assert_eq!(blocks, pool.stats()?.blocks);
    assert_eq!(
        pool.named_roots()?.iter().map(|root| root.name.as_str()).collect::<Vec<_>>(),
        ["first"]
    );
    Ok(())
}

fn torn(path: &Path, options: &OpenOptions) -> Result<Store> {
    let options = OpenOptions { access: Access::ReadOnly, ..options.clone() };
    let medium =
        RealMedium::open(path, &MediumOptions { read_only: true, ..MediumOptions::default() })?;
    // SAFETY: what is read is one node, which no transaction was writing.
    unsafe { Store::open_torn(Arc::new(medium), &options) }
}

#[test]
fn a_pool_that_a_log_names_which_is_set_aside_shows_no_values() -> Result<()> {
    let dir = with_log_set_aside()?;
    for options in [OpenOptions::read_only(), OpenOptions::default(), OpenOptions::read_only()] {
        let store = Store::open_with(dir.path(), &options)?;
        let pool = store.pool_with("p", Access::ReadOnly)?;
        only_blocks(&pool, "log")?;
        assert_eq!(pool.start(), PoolStart::Dirty(CrashKind::Process));
        // The other pool is none of its business.
        let other = store.pool_with("other", Access::ReadOnly)?;
        assert!(other.read()?.root::<Node>()?.is_some());
        assert_eq!(other.start(), PoolStart::Clean);
        drop(other);
        if options.access == Access::ReadWrite {
            // What the pool in doubt leads to is not given back.
            assert!(matches!(
                store.pool("other")?.collect(),
                Err(Error::Store(_) | Error::NotWhole { .. })
            ));
        }
        drop(pool);
        store.close()?;
    }
    let store = torn(dir.path(), &OpenOptions::default())?;
    let pool = store.pool_with("p", Access::ReadOnly)?;
    let view = pool.read()?;
    assert_eq!(view.get(view.root::<Node>()?.expect("set"))?.value, 7);
    Ok(())
}

#[test]
fn a_catalog_that_has_lost_records_puts_every_pool_in_doubt() -> Result<()> {
    let dir = directory();
    let store = Store::open(dir.path())?;
    with_root(&store.create_pool("p", &small())?)?;
    store.close()?;
    let older =
        ["catalog.0", "catalog.1"].map(|name| std::fs::read(dir.path().join(name)).unwrap());
    let store = Store::open(dir.path())?;
    store.create_pool("lost", &small())?;
    store.close()?;
    for (name, contents) in ["catalog.0", "catalog.1"].into_iter().zip(older) {
        std::fs::write(dir.path().join(name), contents).unwrap();
    }
    assert!(matches!(
        Store::open(dir.path()),
        Err(Error::Open(cenote_store::OpenError::CatalogRolledBack { .. }))
    ));
    for damage in [DamagePolicy::ReadOnly, DamagePolicy::SkipDamaged] {
        let options = OpenOptions { damage, ..OpenOptions::default() };
        let before = hashes(dir.path());
        let store = Store::open_with(dir.path(), &options)?;
        let access = if store.info().writable { Access::ReadWrite } else { Access::ReadOnly };
        only_blocks(&store.pool_with("p", access)?, "rolled back")?;
        drop(store);
        if damage == DamagePolicy::ReadOnly {
            assert_eq!(hashes(dir.path()), before);
        }
    }
    let store = torn(
        dir.path(),
        &OpenOptions { damage: DamagePolicy::SkipDamaged, ..OpenOptions::default() },
    )?;
    let pool = store.pool_with("p", Access::ReadOnly)?;
    assert!(pool.read()?.root::<Node>()?.is_some());
    Ok(())
}

#[test]
fn collecting_does_not_revive_what_a_dangling_pointer_leads_to() -> Result<()> {
    let dir = directory();
    let pool = Store::open(dir.path())?.pool("p")?;
    // The root leads to a node that is freed, which leads to another one that is freed.
    let (root, first, second) = pool.write(|tx| -> Result<_> {
        let second = tx.alloc(Node { value: 3, next: None })?;
        let first = tx.alloc(Node { value: 2, next: Some(second) })?;
        let root = tx.alloc(Node { value: 1, next: Some(first) })?;
        tx.alloc(Node { value: 4, next: None })?;
        tx.set_root(root)?;
        Ok((root, first, second))
    })?;
    pool.write(|tx| tx.free(first).and_then(|()| tx.free(second)))?;
    for round in 0..3 {
        let report = pool.collect()?;
        assert_eq!(
            (report.revived_blocks, report.freed_blocks),
            (0, u64::from(round == 0)),
            "{report:?}"
        );
        let view = pool.read()?;
        assert_eq!(view.get(root)?.next, Some(first), "the pointer is data, and stays");
        for freed in [first, second] {
            assert!(
                matches!(view.get(freed), Err(Error::Dangling { .. })),
                "revived in round {round}"
            );
        }
        assert_eq!(pool.stats()?.blocks, 1);
    }
    // Their places are good for others.
    let places = pool.write(|tx| -> Result<_> {
        (0..4).map(|value| tx.alloc(Node { value, next: None })).collect::<Result<Vec<_>>>()
    })?;
    assert!(places.contains(&first) && places.contains(&second) && !places.contains(&root));
    Ok(())
}

#[test]
fn what_only_another_pool_leads_to_is_no_leak() -> Result<()> {
    let dir = directory();
    let store = Store::open(dir.path())?;
    let [a, b, c] = ["a", "b", "c"].map(|name| store.create_pool(name, &small()).unwrap());
    const LEN: u64 = 2000;
    // A list whose nodes are in three pools in turn, with its root in the first; and one node in b
    // that nothing leads to.
    let lost = store.write(&[&a, &b, &c], |tx| -> Result<_> {
        let mut next = None;
        for value in (0..LEN).rev() {
            let pool = [&a, &b, &c][value as usize % 3];
            next = Some(tx.alloc_in(pool, Node { value, next })?);
        }
        let lost = tx.alloc_in(&b, Node { value: 99, next: None })?;
        tx.set_root_in(&a, 0, next)?;
        Ok(lost)
    })?;
    let check = |pool: &Pool| pool.check().unwrap();
    let found = check(&b);
    assert_eq!((found.leaked_blocks, found.leaks.len()), (1, 1), "{:?}", found.leaks);
    assert_eq!(found.leaks[0].addr, lost.addr());
    assert!(check(&c).is_sound() && check(&a).is_sound(), "{:?}", check(&c));
    assert_eq!(check(&c).trace.map(|trace| trace.blocks), Some(LEN / 3));
    // Where the others are not open, they are looked at and left alone.
    drop((a, b, c));
    store.close()?;
    let before = hashes(dir.path());
    let store = Store::open_with(dir.path(), &OpenOptions::read_only())?;
    for (name, leaks) in [("a", 0), ("b", 1), ("c", 0)] {
        assert_eq!(
            store.pool_with(name, Access::ReadOnly)?.check()?.leaked_blocks,
            leaks,
            "{name}"
        );
    }
    drop(store);
    assert_eq!(hashes(dir.path()), before);
    // A pointer from elsewhere to a freed value is found here.
    let store = Store::open(dir.path())?;
    let [a, b] = ["a", "b"].map(|name| store.pool(name).unwrap());
    let second = a.write(|tx| {
        tx.root_in::<Node>(&a, 0).map(|root| tx.get(root.unwrap()).unwrap().next.unwrap())
    })?;
    b.write(|tx| tx.free(second))?;
    let found = b.check()?;
    assert_eq!((found.unallocated_blocks, found.unallocated[0].addr), (1, second.addr()));
    assert_eq!(
        found.leaked_blocks, 1,
        "tracing goes on through it, as recovery does: what comes after it is kept"
    );
    // Not while this thread would wait for itself.
    assert!(b.write(|_| b.check().map(drop)).is_err());
    Ok(())
}

#[test]
fn threads_check_open_write_and_close_pools_that_lead_to_each_other() -> Result<()> {
    let dir = directory();
    crate::support::within(120, move || -> Result<()> {
        let store = Store::open(dir.path())?;
        const NAMES: [&str; 4] = ["a", "b", "c", "d"];
        for name in NAMES {
            // Something that nothing leads to, so that checks look at the other pools.
            store
                .create_pool(name, &small())?
                .write(|tx| tx.alloc(Node { value: 0, next: None }).map(drop))?;
        }
        std::thread::scope(|scope| {
            let workers: Vec<_> = (0..4)
                .map(|worker| {
                    let store = store.clone();
                    scope.spawn(move || -> Result<()> {
                        for round in 0..60 {
                            let pools = [worker, worker + round, worker + 2 * round + 1]
                                .map(|i| NAMES[i % 4]);
                            let one = store.pool(pools[0])?;
                            let other = store.pool(pools[1])?;
                            match round % 3 {
                                0 => store.write(&[&one, &other], |tx| {
                                    tx.alloc_in(&other, Node { value: 1, next: None }).map(drop)
                                })?,
                                1 => drop((one.read()?, other.check()?)),
                                _ => assert!(one.check()?.leaked_blocks > 0),
                            }
                            drop(one);
                            store.pool(pools[2])?.check()?;
                        }
                        Ok(())
                    })
                })
                .collect();
            workers.into_iter().try_for_each(|worker| worker.join().expect("no panic"))
        })?;
        store.close()
    })
}

#[test]
fn a_pool_that_was_traced_says_what_tracing_found() -> Result<()> {
    let sim = SimMedium::new(SimOptions::new(Durability::Power));
    let medium: Arc<dyn Medium> = sim.clone();
    let format =
        FormatOptions { window_base: Some(0x1c00_0000_0000), window_len: 1 << 30, uuid: None };
    cenote_store::format(medium.clone(), &format)?;
    let store = Store::open_on(medium, &OpenOptions::default())?;
    let pool = store.create_pool("p", &small())?;
    assert_eq!(pool.start(), PoolStart::Fresh);
    assert!(pool.traced().is_none());
    pool.write(|tx| -> Result<()> {
        tx.alloc(Node { value: 9, next: None })?;
        let node = tx.alloc(Node { value: 1, next: None })?;
        tx.set_root(node)
    })?;
    store.clone().abandon();
    drop((pool, store));
    let medium: Arc<dyn Medium> = SimMedium::from_image(&sim.image_now(sim::CrashKind::Power));
    let store = Store::open_on(medium, &OpenOptions::default())?;
    let pool = store.pool("p")?;
    assert_eq!(pool.start(), PoolStart::Dirty(CrashKind::Power));
    let report = pool.traced().expect("power failed");
    assert_eq!((report.trace.blocks, pool.stats()?.blocks), (1, 1), "{report:?}");
    drop(pool);
    store.close()
}
