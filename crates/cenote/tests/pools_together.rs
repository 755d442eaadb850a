//! Values that are reached from another pool only: tracing one pool does not forget them.

use cenote::{
    Access, DamagePolicy, Durability, Error, FormatOptions, OpenOptions, Persist, PoolOptions, Ptr,
    Reader, Result, Store,
};
use cenote_medium::Medium;
use cenote_medium::planted::{Bug, plant};
use cenote_medium::sim::{CrashKind, SimMedium, SimOptions};
use cenote_store::StoreError;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

#[derive(Persist)]
#[persist(name = "pools_together::Node")]
struct Node {
    value: u64,
    next: Option<Ptr<Node>>,
}

const NAMES: [&str; 3] = ["a", "b", "c"];
const LEN: u64 = 30;

/// A list whose nodes are in three pools in turn, with its root in the first, and one node that
/// nothing leads to.
fn build(store: &Store) -> Result<()> {
    let pools = NAMES.map(|name| {
        store
            .create_pool(name, &PoolOptions { puddle_size: 256 << 10, ..PoolOptions::default() })
            .unwrap()
    });
    let [a, b, c] = &pools;
    store.write(&[a, b, c], |tx| -> Result<()> {
        let mut next = None;
        for value in (0..LEN).rev() {
            next = Some(tx.alloc_in(&pools[value as usize % 3], Node { value, next })?);
        }
        tx.alloc_in(b, Node { value: 99, next: None })?;
        tx.set_root_in(a, 0, next)
    })
}

fn values(store: &Store) -> Result<Vec<u64>> {
    let pools = NAMES.map(|name| store.pool(name).unwrap());
    let [a, b, c] = &pools;
    store.write(&[a, b, c], |tx| {
        let mut out = Vec::new();
        let mut at = tx.root_in::<Node>(a, 0)?;
        while let Some(node) = at {
            let node = tx.get(node)?;
            out.push(node.value);
            at = node.next;
        }
        Ok(out)
    })
}

#[test]
fn what_only_another_pool_leads_to_survives_a_loss_of_power() -> Result<()> {
    for first in NAMES {
        let sim = SimMedium::new(SimOptions::new(Durability::Power));
        let medium: Arc<dyn Medium> = sim.clone();
        let format =
            FormatOptions { window_base: Some(0x1a00_0000_0000), window_len: 1 << 30, uuid: None };
        cenote_store::format(medium.clone(), &format)?;
        let store = Store::open_on(medium, &OpenOptions::default())?;
        build(&store)?;
        store.clone().abandon();
        drop(store);
        let medium: Arc<dyn Medium> = SimMedium::from_image(&sim.image_now(CrashKind::Power));
        // To a reader nothing can be shown before it is traced.
        let reader = Store::open_on(medium.clone(), &OpenOptions::read_only())?;
        assert!(matches!(reader.pool_with(first, Access::ReadOnly), Err(Error::TraceDue { .. })));
        drop(reader);
        let store = Store::open_on(medium, &OpenOptions::default())?;
        // In whatever order the pools are opened.
        let pool = store.pool(first)?;
        assert!(store.pools_due().is_empty());
        assert_eq!(values(&store)?, (0..LEN).collect::<Vec<_>>());
        drop(pool);
        let blocks: u64 =
            NAMES.iter().map(|name| store.pool(name).unwrap().stats().unwrap().blocks).sum();
        assert_eq!(blocks, LEN, "what nothing leads to is given back");
    }
    Ok(())
}

#[test]
fn collecting_one_pool_keeps_what_another_leads_to() -> Result<()> {
    let dir = crate::support::directory();
    let store = Store::open(dir.path())?;
    build(&store)?;
    let b = store.pool("b")?;
    assert_eq!(b.stats()?.blocks, LEN / 3 + 1);
    assert_eq!(b.collect()?.freed_blocks, 1);
    assert_eq!(values(&store)?, (0..LEN).collect::<Vec<_>>());
    assert_eq!(store.pool("a")?.collect()?.freed_blocks, 0);
    // Another pool in use by this very thread would be waited for.
    let a = store.pool("a")?;
    let view = a.read()?;
    assert!(matches!(b.collect(), Err(Error::WouldDeadlock { .. })));
    drop(view);
    assert!(a.write(|_| b.collect().map(drop)).is_err());
    Ok(())
}

#[test]
fn collecting_goes_on_while_another_thread_removes_pools() -> Result<()> {
    let dir = crate::support::directory();
    let store = Store::open(dir.path())?;
    build(&store)?;
    let b = store.pool("b")?;
    let over = AtomicBool::new(false);
    std::thread::scope(|scope| {
        let (store, over) = (&store, &over);
        let remover = scope.spawn(move || -> Result<u64> {
            let mut removed = 0;
            while !over.load(Ordering::Relaxed) {
                store.pool("passing").map(drop)?;
                // A collection may have it open just now.
                removed += u64::from(store.remove_pool("passing").is_ok());
            }
            Ok(removed)
        });
        let collected = (0..200).try_for_each(|_| b.collect().map(drop));
        over.store(true, Ordering::Relaxed);
        assert!(remover.join().expect("it ends")? > 0);
        collected
    })?;
    assert_eq!(values(&store)?, (0..LEN).collect::<Vec<_>>());
    Ok(())
}

/// What is done to the file of a pool's root puddle, until it is brought back.
#[derive(Clone, Copy, Debug)]
enum Harm {
    Away,
    Header,
    Cut,
}

/// A store with the three pools that lost power while they were in use, and the root puddle of
/// `bad` damaged; the file's name, and what it held.
fn damaged(base: u64, bad: &str, how: Harm) -> Result<(Arc<dyn Medium>, String, Vec<u8>)> {
    let sim = SimMedium::new(SimOptions::new(Durability::Power));
    let medium: Arc<dyn Medium> = sim.clone();
    let format = FormatOptions { window_base: Some(base), window_len: 1 << 30, uuid: None };
    cenote_store::format(medium.clone(), &format)?;
    let store = Store::open_on(medium, &OpenOptions::default())?;
    build(&store)?;
    let id =
        store.pools().into_iter().find(|pool| pool.record.name == bad).expect("created").record.id;
    let puddle =
        store.puddle_records().into_iter().find(|puddle| puddle.pool == id).expect("it has one");
    store.clone().abandon();
    drop(store);
    let hex: String = puddle.uuid.to_hex().iter().map(|byte| char::from(*byte)).collect();
    let name = format!("puddles/{hex}");
    let mut image = sim.image_now(CrashKind::Power);
    let whole = image.file(&name).expect("it is there");
    match how {
        Harm::Away => assert!(image.remove(&name)),
        Harm::Header => assert!(image.flip_bit(&name, 70, 3)),
        Harm::Cut => assert!(image.truncate(&name, 5000)),
    }
    Ok((SimMedium::from_image(&image), name, whole))
}

/// Blocks that each pool has, and the list's values, after one of them was damaged while the others
/// were traced and used, and then brought back.
fn traced_beside_lost(base: u64, bad: &str, how: Harm, bug: Bug) -> Result<(Vec<u64>, Vec<u64>)> {
    let (medium, name, whole) = damaged(base, bad, how)?;
    let open =
        |damage| Store::open_on(medium.clone(), &OpenOptions { damage, ..OpenOptions::default() });
    for damage in [DamagePolicy::Refuse, DamagePolicy::ReadOnly] {
        let store = open(damage)?;
        plant(bug);
        for good in NAMES.iter().filter(|name| **name != bad) {
            let pool = store.pool(good)?;
            // It is used as ever: what it allocates is not what the damaged one leads to.
            let node = pool.write(|tx| tx.alloc(Node { value: 7, next: None }))?;
            pool.write(|tx| tx.free(node))?;
        }
        plant(Bug::None);
        assert_eq!(store.pools_due().len(), 1, "the others were traced");
        let error = store.pool(bad).and_then(|pool| pool.read().map(drop)).unwrap_err();
        let typed =
            matches!(error, Error::NotWhole { .. } | Error::Store(StoreError::PoolDamaged { .. }));
        assert!(typed && error.to_string().contains("puddle 0"), "{error}");
        store.close()?;
    }
    // SAFETY: the store is closed.
    unsafe {
        let _ = medium.remove(&name);
        medium.create(&name, whole.len() as u64)?;
        medium.write_at(&name, 0, &whole)?;
    }
    let store = open(DamagePolicy::Refuse)?;
    let values = values(&store)?;
    assert!(store.pools_due().is_empty());
    let blocks =
        NAMES.iter().map(|name| store.pool(name).unwrap().stats().unwrap().blocks).collect();
    Ok((blocks, values))
}

#[test]
fn tracing_goes_on_without_a_damaged_pool_and_keeps_what_that_may_lead_to() -> Result<()> {
    for (number, how) in [Harm::Away, Harm::Header, Harm::Cut].into_iter().enumerate() {
        for (place, bad) in NAMES.into_iter().enumerate() {
            println!("{bad} {how:?}");
            let base = 0x1a40_0000_0000 + ((number * 3 + place) as u64) * (1 << 31);
            let (blocks, values) = traced_beside_lost(base, bad, how, Bug::None)?;
            assert_eq!(values, (0..LEN).collect::<Vec<_>>());
            // What nothing leads to in "b" is given back when that is traced with all others.
            let kept = u64::from(bad != "b");
            assert_eq!(blocks, [LEN / 3, LEN / 3 + kept, LEN / 3]);
        }
    }
    Ok(())
}

#[test]
fn planted_pools_that_are_traced_as_if_a_damaged_one_led_nowhere_lose_values() {
    let whole = |bad| {
        let found = traced_beside_lost(0x1a60_0000_0000, bad, Harm::Away, Bug::TracedWithoutLost);
        found.is_ok_and(|(_, values)| values.len() as u64 == LEN)
    };
    assert!(!NAMES.into_iter().all(whole));
}

/// What a lost puddle has led to is given back where the caller leaves it out.
#[test]
fn a_caller_that_leaves_a_damaged_pool_out_traces_without_it() -> Result<()> {
    let (medium, ..) = damaged(0x1a70_0000_0000, "b", Harm::Away)?;
    let options = OpenOptions { damage: DamagePolicy::SkipDamaged, ..OpenOptions::default() };
    let store = Store::open_on(medium, &options)?;
    let a = store.pool("a")?;
    let view = a.read()?;
    let first = view.root::<Node>()?.expect("committed");
    assert_eq!(view.get(first)?.value, 0);
    assert!(matches!(view.get(view.get(first)?.next.expect("set")), Err(Error::Dangling { .. })));
    assert!(store.pool("b").is_err(), "its root puddle is gone");
    Ok(())
}

/// The end of its last transaction was left to the next one's fence, and there was none: it must
/// not be undone in what is another pool's memory now.
#[test]
fn a_transaction_of_a_removed_pool_is_not_undone_in_the_pool_that_comes_after() -> Result<()> {
    for spare_bytes_max in [0, OpenOptions::default().spare_bytes_max] {
        let sim = SimMedium::new(SimOptions::new(Durability::Power));
        let medium: Arc<dyn Medium> = sim.clone();
        let format =
            FormatOptions { window_base: Some(0x1a80_0000_0000), window_len: 1 << 30, uuid: None };
        cenote_store::format(medium.clone(), &format)?;
        let store =
            Store::open_on(medium, &OpenOptions { spare_bytes_max, ..OpenOptions::default() })?;
        let options = PoolOptions { puddle_size: 256 << 10, ..PoolOptions::default() };
        let place = |name| {
            store.puddle_records().into_iter().find(|p| p.pool == store.pool(name).unwrap().id())
        };
        let old = store.create_pool("old", &options)?;
        let root = old.write(|tx| -> Result<_> {
            let root = tx.alloc(Node { value: 1, next: None })?;
            tx.set_root(root)?;
            Ok(root)
        })?;
        old.write(|tx| -> Result<()> {
            tx.get_mut(root)?.value = 2;
            Ok(())
        })?;
        let was = place("old").expect("it has one");
        drop(old);
        store.remove_pool("old")?;
        let new = store.create_pool("new", &options)?;
        assert_eq!(
            place("new").expect("it has one").addr,
            was.addr,
            "the addresses are used again"
        );
        let image = sim.state_now().image_oldest();
        drop(new);
        store.clone().abandon();
        drop(store);
        let store = Store::open_on(SimMedium::from_image(&image), &OpenOptions::default())?;
        let logs: Vec<String> =
            store.report().logs.iter().map(|log| log.outcome.to_string()).collect();
        assert!(
            !logs.is_empty() && logs.iter().all(|outcome| outcome.contains("idle")),
            "{logs:?}"
        );
    }
    Ok(())
}
