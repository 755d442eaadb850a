//! Collections move their values and free their nodes, and know nothing of what a value owns: a
//! store refuses those of values that own.

use cenote::{Error, Owned, Persist, PoolOptions, Result, Store, TypeSetError};
use cenote_collections::{BTreeMap, HashMap, List, Vec as PersistentVec};
use cenote_testkit::directories::directory;

#[derive(Persist)]
#[persist(name = "owners::Holder")]
struct Holder {
    leaf: Owned<Leaf>,
}

#[derive(Persist)]
#[persist(name = "owners::Leaf", owned)]
struct Leaf {
    value: u64,
}

#[test]
fn no_collection_takes_values_that_own() -> Result<()> {
    let dir = directory();
    let pool = Store::open(dir.path())?.create_pool("p", &PoolOptions::default())?;
    let holder = || Holder { leaf: Owned::EMPTY };
    let refused = [
        pool.write(|tx| PersistentVec::new(tx)?.push(tx, holder())),
        pool.write(|tx| List::new(tx)?.push_back(tx, holder())),
        pool.write(|tx| HashMap::new(tx)?.insert(tx, 1u64, holder()).map(drop)),
        pool.write(|tx| BTreeMap::new(tx)?.insert(tx, 1u64, holder()).map(drop)),
    ];
    for (at, refused) in refused.into_iter().enumerate() {
        match refused {
            Err(Error::Types(TypeSetError::Refused(why))) => {
                assert!(why.reason.contains("owns blocks"), "{at}: {why}");
            }
            other => panic!("{at}: {other:?}"),
        }
    }
    // An owned type is a value like others, where it is not in a block of its own.
    let leaves = pool.write(|tx| {
        let leaves = PersistentVec::new(tx)?;
        leaves.push(tx, Leaf { value: 7 })?;
        Ok::<_, Error>(leaves)
    })?;
    assert_eq!(leaves.get(&pool.read()?, 0)?.map(|leaf| leaf.value), Some(7));
    Ok(())
}
