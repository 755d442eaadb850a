//! Values that are reached from another pool only: tracing one pool does not forget them.

use cenote::{
    Access, DamagePolicy, Durability, Error, FormatOptions, OpenOptions, Persist, PoolOptions, Ptr, Reader,
    Result, Store,
};
use cenote_medium::Medium;
use cenote_medium::sim::{CrashKind, SimMedium, SimOptions};
use std::sync::Arc;

#[derive(Persist)]
#[persist(name = "pools_together::Node")]
struct Node {
    value: u64,
    next: Option<Ptr<Node>>,
}

const NAMES: [&str; 3] = ["a", "b", "c"];
const LEN: u64 = 30;

/// A list whose nodes are in three pools in turn, with its root in the first, and one node that nothing leads to.
fn build(store: &Store) -> Result<()> {
    let pools = NAMES.map(|name| {
        store.create_pool(name, &PoolOptions { puddle_size: 256 << 10, ..PoolOptions::default() }).unwrap()
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
        let format = FormatOptions { window_base: Some(0x1a00_0000_0000), window_len: 1 << 30, uuid: None };
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
        let blocks: u64 = NAMES.iter().map(|name| store.pool(name).unwrap().stats().unwrap().blocks).sum();
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

/// What a lost puddle has led to would be given back: only who has chosen to leave it out traces without it.
#[test]
fn tracing_waits_for_a_damaged_pool_unless_the_caller_leaves_it_out() -> Result<()> {
    let sim = SimMedium::new(SimOptions::new(Durability::Power));
    let medium: Arc<dyn Medium> = sim.clone();
    let format = FormatOptions { window_base: Some(0x1a40_0000_0000), window_len: 1 << 30, uuid: None };
    cenote_store::format(medium.clone(), &format)?;
    let store = Store::open_on(medium, &OpenOptions::default())?;
    build(&store)?;
    let b = store.pools().into_iter().find(|pool| pool.record.name == "b").expect("created").record.id;
    let puddle = store.puddle_records().into_iter().find(|puddle| puddle.pool == b).expect("it has one");
    store.clone().abandon();
    drop(store);
    let hex: String = puddle.uuid.to_hex().iter().map(|byte| char::from(*byte)).collect();
    let medium: Arc<dyn Medium> = SimMedium::from_image(&sim.image_now(CrashKind::Power));
    // SAFETY: the store is closed.
    unsafe { medium.remove(&format!("puddles/{hex}")) }?;
    let open = |damage| Store::open_on(medium.clone(), &OpenOptions { damage, ..OpenOptions::default() });
    for damage in [DamagePolicy::Refuse, DamagePolicy::ReadOnly] {
        let store = open(damage)?;
        let refused = store.pool("a").map(drop).unwrap_err();
        assert!(
            refused.to_string().contains("\"b\"") && refused.to_string().contains("missing"),
            "{refused}"
        );
        assert!(store.pools_due().len() == 3, "nothing was traced");
        store.close()?;
    }
    let store = open(DamagePolicy::SkipDamaged)?;
    let a = store.pool("a")?;
    let view = a.read()?;
    let first = view.root::<Node>()?.expect("committed");
    assert_eq!(view.get(first)?.value, 0);
    assert!(matches!(view.get(view.get(first)?.next.expect("set")), Err(Error::Dangling { .. })));
    assert!(store.pool("b").is_err(), "its root puddle is gone");
    Ok(())
}

/// The end of its last transaction was left to the next one's fence, and there was none: it must not be undone in what is another pool's memory now.
#[test]
fn a_transaction_of_a_removed_pool_is_not_undone_in_the_pool_that_comes_after() -> Result<()> {
    for spare_bytes_max in [0, OpenOptions::default().spare_bytes_max] {
        let sim = SimMedium::new(SimOptions::new(Durability::Power));
        let medium: Arc<dyn Medium> = sim.clone();
        let format = FormatOptions { window_base: Some(0x1a80_0000_0000), window_len: 1 << 30, uuid: None };
        cenote_store::format(medium.clone(), &format)?;
        let store = Store::open_on(medium, &OpenOptions { spare_bytes_max, ..OpenOptions::default() })?;
        let options = PoolOptions { puddle_size: 256 << 10, ..PoolOptions::default() };
        let place =
            |name| store.puddle_records().into_iter().find(|p| p.pool == store.pool(name).unwrap().id());
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
        assert_eq!(place("new").expect("it has one").addr, was.addr, "the addresses are used again");
        let image = sim.state_now().image_oldest();
        drop(new);
        store.clone().abandon();
        drop(store);
        let store = Store::open_on(SimMedium::from_image(&image), &OpenOptions::default())?;
        let logs: Vec<String> = store.report().logs.iter().map(|log| log.outcome.to_string()).collect();
        assert!(!logs.is_empty() && logs.iter().all(|outcome| outcome.contains("idle")), "{logs:?}");
    }
    Ok(())
}
