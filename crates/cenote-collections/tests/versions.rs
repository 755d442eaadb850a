//! Collections of versioned values: their nodes follow the version, and their handles do not.

use crate::common::directory;
use cenote::{
    Error, ErrorKind, HeapKind, Persist, Pool, PoolOptions, Reader, Result, Store, StoreError,
};
use cenote_collections::{BTreeMap, HashMap, List, TextMap, Vec};

/// A value as the first release of a program had it.
#[derive(Persist, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
#[persist(name = "versions::Point")]
struct PointV1 {
    x: u64,
}

#[derive(Persist, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
#[persist(name = "versions::Point", version = 2)]
struct Point {
    x: u64,
    y: u64,
}

/// Handles of all collections, which lie in one value.
#[derive(Persist)]
#[persist(name = "versions::All")]
struct All {
    list: List<Point>,
    vector: Vec<Point>,
    hashed: HashMap<Point, Point>,
    ordered: BTreeMap<Point, Point>,
    texts: TextMap<Point>,
}

const COUNT: u64 = 200;

fn point(x: u64) -> Point {
    Point { x, y: x + 1 }
}

fn fill(pool: &Pool) -> Result<()> {
    pool.write(|tx| {
        let all = All {
            list: List::new(tx)?,
            vector: Vec::new(tx)?,
            hashed: HashMap::new(tx)?,
            ordered: BTreeMap::new(tx)?,
            texts: TextMap::new(tx)?,
        };
        for x in 0..COUNT {
            all.list.push_back(tx, point(x))?;
            all.vector.push(tx, point(x))?;
            all.hashed.insert(tx, point(x), point(x + 7))?;
            all.ordered.insert(tx, point(x), point(x + 7))?;
            all.texts.insert(tx, &x.to_string(), point(x))?;
        }
        let root = tx.alloc(all)?;
        tx.set_root(root)
    })
}

fn look(pool: &Pool) -> Result<()> {
    let view = pool.read()?;
    let all = view.get(view.root::<All>()?.expect("a root"))?;
    assert_eq!(all.list.iter(&view)?.copied().collect::<std::vec::Vec<_>>().len(), COUNT as usize);
    for x in 0..COUNT {
        assert_eq!(all.vector.get(&view, x as usize)?, Some(&point(x)));
        assert_eq!(all.hashed.get(&view, &point(x))?, Some(&point(x + 7)));
        assert_eq!(all.ordered.get(&view, &point(x))?, Some(&point(x + 7)));
        assert_eq!(all.texts.get(&view, &x.to_string())?, Some(&point(x)));
    }
    drop(view);
    let report = pool.check()?;
    let faults: u64 = [&report.trace, &report.leak_trace]
        .into_iter()
        .flatten()
        .map(|trace| trace.faults + trace.unknown_types.len() as u64)
        .sum();
    let invalid = report.values.map_or(0, |values| values.invalid);
    assert_eq!((faults, report.leaked_blocks, invalid), (0, 0, 0));
    Ok(())
}

#[test]
fn handles_have_one_id_and_nodes_another() {
    assert_eq!(<List<Point>>::PHYSICAL_ID, <List<PointV1>>::TYPE_ID);
    assert_eq!(<HashMap<u64, Point>>::PHYSICAL_ID, <HashMap<u64, PointV1>>::TYPE_ID);
    assert_eq!(All::PHYSICAL_ID, All::TYPE_ID);
}

#[test]
fn collections_of_versioned_values_are_sound_in_each_heap_and_elsewhere() -> Result<()> {
    for heap in [HeapKind::Traced, HeapKind::Logged, HeapKind::WEAR] {
        let dir = directory();
        let store = Store::open(dir.path())?;
        let pool = store.create_pool("p", &PoolOptions { heap, ..PoolOptions::default() })?;
        fill(&pool)?;
        look(&pool)?;
        drop(pool);
        store.close()?;
        let store = Store::open(dir.path())?;
        look(&store.pool("p")?)?;
        let mut archive = std::vec::Vec::new();
        store.export(&["p"], &mut archive, cenote::ExportOptions::default())?;
        let other = directory();
        let elsewhere = Store::open(other.path())?;
        elsewhere.import(archive.as_slice(), cenote::ImportOptions::default())?;
        look(&elsewhere.pool("p")?)?;
    }
    Ok(())
}

#[test]
fn a_collection_where_older_values_are_is_refused_by_the_name_of_the_value() -> Result<()> {
    let dir = directory();
    let store = Store::open(dir.path())?;
    let pool = store.pool("p")?;
    pool.write(|tx| tx.alloc(PointV1 { x: 1 }).map(drop))?;
    let newer = pool.write(|tx| List::<Point>::new(tx).map(drop)).expect_err("older values");
    assert!(matches!(newer, Error::Store(StoreError::TypeVersion(_))), "{newer}");
    assert_eq!(newer.kind(), ErrorKind::Unfinished);
    assert!(newer.to_string().contains("type versions::Point has version 1"), "{newer}");
    Ok(())
}
