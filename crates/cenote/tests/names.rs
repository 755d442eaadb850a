//! Roots by name: any number, beside the 1,024 that have numbers; set and removed by transactions,
//! traced like others.

use crate::support::directory;
use cenote::{
    Access, CrashKind, Durability, Error, FormatOptions, NamedRoot, OpenOptions, Persist,
    PoolOptions, Ptr, Reader, Result, Store,
};
use cenote_medium::Medium;
use cenote_medium::sim::{self, SimMedium, SimOptions};
use std::sync::Arc;

#[derive(Persist)]
#[persist(name = "names::Node")]
struct Node {
    value: u64,
    next: Option<Ptr<Node>>,
}

fn node(value: u64) -> Node {
    Node { value, next: None }
}

#[test]
fn a_name_finds_its_value_after_a_close_and_an_open() -> Result<()> {
    let dir = directory();
    let store = Store::open(dir.path())?;
    let pool = store.pool("p")?;
    assert!(pool.named_roots()?.is_empty() && pool.named_root::<Node>("x")?.is_none());
    pool.write(|tx| -> Result<()> {
        assert!(!tx.remove_named_root("x")?, "there is none");
        tx.set_named_root::<Node>("x", None)?;
        let (a, b) = (tx.alloc(node(1))?, tx.alloc(2u64)?);
        tx.set_named_root("nodes", Some(a))?;
        tx.set_named_root("a number, in words: größe", Some(b))?;
        assert_eq!(tx.named_root::<Node>("nodes")?, Some(a));
        assert_eq!(tx.named_root_in::<u64>(&pool, "a number, in words: größe")?, Some(b));
        Ok(())
    })?;
    drop(pool);
    store.close()?;
    let store = Store::open_with(dir.path(), &OpenOptions::read_only())?;
    let pool = store.pool_with("p", Access::ReadOnly)?;
    let view = pool.read()?;
    let named = view.named_root::<Node>("nodes")?.expect("set");
    assert_eq!(view.get(named)?.value, 1);
    let names: Vec<String> = view.named_roots()?.into_iter().map(|root| root.name).collect();
    assert_eq!(names, ["a number, in words: größe", "nodes"]);
    assert!(view.named_root::<Node>("Nodes")?.is_none());
    let wrong = view.named_root::<u64>("nodes").unwrap_err();
    assert!(
        matches!(&wrong, Error::NamedRootType { name, expected, .. }
        if name == "nodes" && *expected == u64::TYPE_ID),
        "{wrong}"
    );
    let types = format!("has type {}, not u64: read it as", Node::type_name());
    assert!(wrong.to_string().contains(&types), "{wrong}");
    Ok(())
}

#[test]
fn names_are_set_moved_and_removed_by_the_transaction_or_not_at_all() -> Result<()> {
    let dir = directory();
    let pool = Store::open(dir.path())?.pool("p")?;
    let (a, b) = pool.write(|tx| -> Result<_> {
        let (a, b) = (tx.alloc(node(1))?, tx.alloc(node(2))?);
        tx.set_named_root("one", Some(a))?;
        Ok((a, b))
    })?;
    let aborted: Result<()> = pool.write(|tx| {
        tx.set_named_root("one", Some(b))?;
        tx.set_named_root("two", Some(b))?;
        assert_eq!(tx.named_roots()?.len(), 2);
        Err(Error::Aborted("on purpose".into()))
    });
    assert!(aborted.is_err());
    assert_eq!((pool.named_root::<Node>("one")?, pool.named_root::<Node>("two")?), (Some(a), None));
    pool.write(|tx| -> Result<()> {
        tx.set_named_root("one", Some(b))?;
        tx.set_named_root("two", Some(a))?;
        assert!(tx.remove_named_root("one")?);
        assert!(!tx.remove_named_root("one")?);
        Ok(())
    })?;
    assert_eq!((pool.named_root::<Node>("one")?, pool.named_root::<Node>("two")?), (None, Some(a)));
    let two = NamedRoot { name: "two".into(), addr: a.addr(), type_id: Node::TYPE_ID };
    assert_eq!(pool.named_roots()?, [two]);
    // What a name leads to may be freed; then it leads nowhere, and says so where it is followed.
    pool.write(|tx| tx.free(a))?;
    let view = pool.read()?;
    let stale = view.named_root::<Node>("two")?.expect("the name is still there");
    assert!(matches!(view.get(stale), Err(Error::Dangling { .. })));
    drop(view);
    assert!(matches!(
        pool.write(|tx| tx.set_named_root("three", Some(a))),
        Err(Error::Dangling { .. })
    ));
    Ok(())
}

#[test]
fn names_that_cannot_be_are_refused_and_nothing_changes() -> Result<()> {
    let dir = directory();
    let pool = Store::open(dir.path())?.pool("p")?;
    let a = pool.write(|tx| tx.alloc(node(1)))?;
    let long = "x".repeat(232);
    for name in ["", "a\nb", "\0", long.as_str()] {
        let error = pool.write(|tx| tx.set_named_root(name, Some(a))).unwrap_err();
        assert!(matches!(error, Error::RootName { .. }), "{error}");
        assert!(pool.named_root::<Node>(name)?.is_none());
    }
    assert_eq!(pool.stats()?.blocks, 1);
    pool.write(|tx| tx.set_named_root(&long[1..], Some(a)))?;
    assert_eq!(pool.named_root::<Node>(&long[1..])?, Some(a));
    Ok(())
}

#[test]
fn all_1024_numbered_roots_stay_usable_beside_names() -> Result<()> {
    let dir = directory();
    let pool = Store::open(dir.path())?.pool("p")?;
    // The last one is set before a first name is given, and moves over.
    let all = pool.write(|tx| -> Result<Vec<Ptr<u64>>> {
        let all = (0..1024).map(|value| tx.alloc(value)).collect::<Result<Vec<_>>>()?;
        for (index, ptr) in (0..).zip(&all) {
            tx.set_root_at(index, Some(*ptr))?;
        }
        tx.set_named_root("name", Some(all[5]))?;
        Ok(all)
    })?;
    let matches = |expected: &[Ptr<u64>]| -> Result<()> {
        let view = pool.read()?;
        for (index, ptr) in (0..).zip(expected) {
            assert_eq!(view.root_at::<u64>(index)?, Some(*ptr), "{index}");
        }
        assert_eq!(view.named_root::<u64>("name")?, Some(all[5]));
        assert!(matches!(view.root_at::<Node>(1023), Err(Error::RootType { index: 1023, .. })));
        Ok(())
    };
    matches(&all)?;
    // And is set, and taken away, while there are names.
    let mut changed = all.clone();
    changed[1023] = all[7];
    pool.write(|tx| tx.set_root_at(1023, Some(all[7])))?;
    matches(&changed)?;
    pool.write(|tx| tx.set_root_at::<u64>(1023, None))?;
    assert_eq!(pool.read()?.root_at::<u64>(1023)?, None);
    assert_eq!(pool.named_root::<u64>("name")?, Some(all[5]));
    // Tracing follows what stands in the directory.
    pool.write(|tx| tx.set_root_at(1023, Some(all[1023])))?;
    assert_eq!(pool.collect()?.freed_blocks, 0);
    matches(&all)
}

#[test]
fn thousands_of_names_are_found_listed_and_removed() -> Result<()> {
    let dir = directory();
    let pool = Store::open(dir.path())?.pool("p")?;
    const COUNT: u64 = 3000;
    for part in 0..10 {
        pool.write(|tx| -> Result<()> {
            for value in part * COUNT / 10..(part + 1) * COUNT / 10 {
                let ptr = tx.alloc(node(value))?;
                tx.set_named_root(&format!("root {value}"), Some(ptr))?;
            }
            Ok(())
        })?;
    }
    let view = pool.read()?;
    for value in 0..COUNT {
        let ptr = view.named_root::<Node>(&format!("root {value}"))?.expect("set");
        assert_eq!(view.get(ptr)?.value, value);
    }
    let listed = view.named_roots()?;
    assert!(listed.len() as u64 == COUNT && listed.is_sorted_by(|a, b| a.name < b.name));
    drop(view);
    assert_eq!(pool.collect()?.freed_blocks, 0, "names lead to their values");
    pool.write(|tx| -> Result<()> {
        for value in (0..COUNT).filter(|value| value % 3 != 0) {
            assert!(tx.remove_named_root(&format!("root {value}"))?);
        }
        Ok(())
    })?;
    assert_eq!(pool.named_roots()?.len() as u64, COUNT / 3);
    assert!(
        pool.named_root::<Node>("root 1")?.is_none()
            && pool.named_root::<Node>("root 3")?.is_some()
    );
    assert_eq!(pool.collect()?.freed_blocks, COUNT / 3 * 2, "without a name nothing leads to them");
    assert!(pool.check()?.is_sound());
    Ok(())
}

#[test]
fn names_survive_a_loss_of_power_with_what_they_lead_to() -> Result<()> {
    let sim = SimMedium::new(SimOptions::new(Durability::Power));
    let medium: Arc<dyn Medium> = sim.clone();
    let format =
        FormatOptions { window_base: Some(0x1d00_0000_0000), window_len: 1 << 30, uuid: None };
    cenote_store::format(medium.clone(), &format)?;
    let store = Store::open_on(medium, &OpenOptions::default())?;
    let pool = store
        .create_pool("p", &PoolOptions { puddle_size: 256 << 10, ..PoolOptions::default() })?;
    for value in 0..40 {
        pool.write(|tx| -> Result<()> {
            let tail = tx.alloc(node(100 + value))?;
            let ptr = tx.alloc(Node { value, next: Some(tail) })?;
            tx.set_named_root(&format!("{value}"), Some(ptr))
        })?;
    }
    store.clone().abandon();
    drop((pool, store));
    let medium: Arc<dyn Medium> = SimMedium::from_image(&sim.image_now(sim::CrashKind::Power));
    let store = Store::open_on(medium, &OpenOptions::default())?;
    assert_eq!(store.report().crash, Some(CrashKind::Power));
    let pool = store.pool("p")?;
    let view = pool.read()?;
    for value in 0..40 {
        let found = view.named_root::<Node>(&format!("{value}"))?.expect("committed");
        let found = view.get(found)?;
        assert_eq!((found.value, view.get(found.next.expect("set"))?.value), (value, 100 + value));
    }
    Ok(())
}
