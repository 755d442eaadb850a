//! Values of collections are looked at where they are in use, and only there: unused places of
//! arrays, nodes and pages are zero, which is no value of these types.

use crate::common::{directory, random};
use cenote::{Persist, PoolOptions, Result, Store};
use cenote_collections::{BTreeMap, ForwardList, HashMap, List, Vec};
use std::num::NonZeroU32;

/// No value of it is zero.
#[derive(Persist, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
#[persist(name = "values::Item")]
#[repr(C)]
struct Item {
    mark: [u8; 12],
    number: NonZeroU32,
}

impl Item {
    fn new(number: u64) -> Self {
        let number = NonZeroU32::new(number as u32 % 60 + 1).expect("not 0");
        Self { mark: *b"item-of-test", number }
    }
}

#[derive(Persist, Clone, Copy)]
#[persist(name = "values::All")]
struct All {
    list: List<Item>,
    forward: ForwardList<Item>,
    tree: BTreeMap<Item, Item>,
    hash: HashMap<Item, Item>,
    vec: Vec<Item>,
}

#[test]
fn places_that_are_not_in_use_are_no_invalid_values_and_places_in_use_are_looked_at() -> Result<()> {
    let dir = directory();
    let options = PoolOptions { puddle_size: 1 << 20, ..PoolOptions::default() };
    let pool = Store::open(dir.path())?.create_pool("p", &options)?;
    let all = pool.write(|tx| -> Result<All> {
        let (list, forward) = (List::new(tx)?, ForwardList::new(tx)?);
        let (tree, hash) = (BTreeMap::new(tx)?, HashMap::new(tx)?);
        let all = All { list, forward, tree, hash, vec: Vec::new(tx)? };
        let root = tx.alloc(all)?;
        tx.set_root(root)?;
        Ok(all)
    })?;
    let mut seed = 7;
    for round in 0..60 {
        pool.write(|tx| -> Result<()> {
            for _ in 0..12 {
                let item = Item::new(random(&mut seed));
                all.list.push_back(tx, item)?;
                all.forward.push_front(tx, item)?;
                all.tree.insert(tx, item, item)?;
                all.hash.insert(tx, item, item)?;
                all.vec.push(tx, item)?;
            }
            for _ in 0..round % 24 {
                let item = Item::new(random(&mut seed));
                all.list.pop_front(tx)?;
                all.forward.pop_front(tx)?;
                all.tree.remove(tx, &item)?;
                all.hash.remove(tx, &item)?;
                all.vec.pop(tx)?;
            }
            Ok(())
        })?;
        let values = pool.check()?.values.expect("values are looked at");
        assert!(values.invalid == 0 && values.blocks > 10, "{values:?}");
    }
    drop(pool);

    // In the file every item is broken, one after the other.
    let (mut broken, mut kinds) = (0, std::collections::BTreeSet::new());
    let mut files = std::vec::Vec::new();
    for entry in std::fs::read_dir(dir.path().join("puddles")).expect("puddles") {
        let path = entry.expect("a file").path();
        let bytes = std::fs::read(&path).expect("readable");
        files.push((path, bytes));
    }
    for (path, bytes) in &mut files {
        for at in 0..bytes.len() - 16 {
            if bytes[at..].starts_with(b"item-of-test") {
                bytes[at + 12..at + 16].fill(0);
                broken += 1;
            }
        }
        std::fs::write(path, bytes).expect("writable");
    }
    let values = Store::open(dir.path())?.pool("p")?.check()?.values.expect("values are looked at");
    for found in &values.findings {
        kinds.insert(found.type_name.split('<').next().unwrap_or_default().to_string());
    }
    let names = ["[values::Item]", "cenote/BTreeLeaf", "cenote/ForwardListNode", "cenote/HashPage"];
    assert!(names.iter().all(|name| kinds.contains(*name)), "{kinds:?}");
    // What lies in free blocks is no value.
    assert!(values.invalid > 100 && values.invalid <= broken, "{} of {broken}", values.invalid);
    Ok(())
}
