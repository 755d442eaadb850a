//! The child: makes a store with pools of each kind, or opens it and reads and writes all of them.

use cenote::{
    Access, AtRest, Keyring, Locking, MasterKey, OpenOptions, Persist, Pool, PoolMode, PoolOptions,
    Ptr, Reader, Result, Store,
};
use cenote_collections::{BTreeMap, ForwardList, HashMap, List, String, Vec};
use cenote_layout::header::read as read_header;
use cenote_layout::puddle::PuddleHeader;
use std::collections::BTreeSet;
use std::path::Path;
use std::sync::Arc;

/// Set in the child: the store's directory, and what to do with it.
pub(crate) const STORE: &str = "CENOTE_TEST_DAMAGED_STORE";
pub(crate) const WHAT: &str = "CENOTE_TEST_DAMAGED_WHAT";

/// Two direct pools, two shadowed ones, and protected ones.
pub(crate) const POOLS: [&str; 6] =
    ["direct", "other", "shadowed", "second", "integrity", "authenticated"];

/// Elements of each collection.
const COUNT: u64 = 200;

pub(crate) fn key_bytes() -> [u8; 32] {
    core::array::from_fn(|i| (i as u8).wrapping_mul(73) ^ 0x5a)
}

#[derive(Persist, Clone, Copy)]
#[persist(name = "damaged_pools::All")]
struct All {
    list: List<u64>,
    forward: ForwardList<u64>,
    tree: BTreeMap<u64, u64>,
    hash: HashMap<u64, u64>,
    vec: Vec<u64>,
    text: String,
    chain: Option<Ptr<Link>>,
}

#[derive(Persist, Clone, Copy)]
#[persist(name = "damaged_pools::Link")]
struct Link {
    number: u64,
    next: Option<Ptr<Link>>,
}

fn open(dir: &Path) -> Result<Store> {
    let mut bytes = key_bytes();
    let key = MasterKey::with_locking(&mut bytes, Locking::IfPossible).expect("a key");
    let key = Arc::new(Keyring::new(key).locking(Locking::IfPossible));
    // Every puddle is a pool's.
    let options = OpenOptions {
        key: Some(key),
        accept_unprotected: true,
        spare_bytes_max: 0,
        ..OpenOptions::default()
    };
    Store::open_with(dir, &options)
}

fn options(name: &str) -> PoolOptions {
    let mode =
        if ["direct", "other"].contains(&name) { PoolMode::Direct } else { PoolMode::Shadowed };
    // One of the pools has several puddles.
    let puddle_size = if name == "direct" { 256 << 10 } else { 1 << 20 };
    let mut options = PoolOptions { mode, puddle_size, ..PoolOptions::default() };
    match name {
        "integrity" => options.at_rest = AtRest::Integrity,
        "authenticated" => options.at_rest = AtRest::Authenticated,
        _ => {}
    }
    if name == "authenticated" {
        let mut bytes = key_bytes();
        let key = MasterKey::with_locking(&mut bytes, Locking::IfPossible).expect("a key");
        options.key = Some(Arc::new(Keyring::new(key).locking(Locking::IfPossible)));
    }
    options
}

fn fill(pool: &Pool) -> Result<()> {
    pool.write(|tx| {
        let (list, forward) = (List::new(tx)?, ForwardList::new(tx)?);
        let (tree, hash) = (BTreeMap::new(tx)?, HashMap::new(tx)?);
        let (vec, text) = (Vec::new(tx)?, String::new(tx)?);
        let root = tx.alloc(All { list, forward, tree, hash, vec, text, chain: None })?;
        tx.set_root(root)
    })?;
    for number in 0..COUNT {
        pool.write(|tx| add(tx, number))?;
    }
    Ok(())
}

fn add(tx: &mut cenote::Tx<'_>, number: u64) -> Result<()> {
    let root = tx.root::<All>()?.expect("a root");
    let all = *tx.get(root)?;
    all.list.push_back(tx, number)?;
    all.forward.push_front(tx, number)?;
    all.tree.insert(tx, number, number)?;
    all.hash.insert(tx, number, number)?;
    all.vec.push(tx, number)?;
    all.text.push_str(tx, "äb")?;
    let link = tx.alloc(Link { number, next: all.chain })?;
    tx.set(root, cenote::field!(All, chain), Some(link))
}

/// Reads all, by every way to read.
fn read(reader: &impl Reader) -> Result<()> {
    let all = *reader.get(reader.root::<All>()?.expect("a root"))?;
    let expected: BTreeSet<u64> = (0..COUNT).collect();
    let is_all =
        |numbers: &mut dyn Iterator<Item = u64>| numbers.collect::<BTreeSet<u64>>() == expected;
    assert!(is_all(&mut all.list.iter(reader)?.copied()), "the list");
    assert!(is_all(&mut all.list.iter(reader)?.rev().copied()), "the list, from its end");
    assert!(is_all(&mut all.forward.iter(reader)?.copied()), "the forward list");
    assert!(is_all(&mut all.tree.iter(reader)?.map(|(_, value)| *value)), "the tree");
    assert!(is_all(&mut all.hash.iter(reader)?.map(|(_, value)| *value)), "the hash map");
    assert!(is_all(&mut all.vec.iter(reader)?.copied()), "the vector");
    for number in 0..COUNT {
        assert_eq!(all.tree.get(reader, &number)?, Some(&number));
        assert_eq!(all.hash.get(reader, &number)?, Some(&number));
        assert_eq!(all.vec.get(reader, number as usize)?, Some(&number));
    }
    assert_eq!(all.text.as_str(reader)?, "äb".repeat(COUNT as usize));
    let (mut next, mut links) = (all.chain, 0);
    while let Some(link) = next {
        let link = reader.get(link)?;
        (next, links) = (link.next, links + 1);
        assert_eq!(link.number, COUNT - links);
    }
    assert_eq!(links, COUNT);
    Ok(())
}

/// Reads a pool, and writes to it.
fn uses(store: &Store, name: &str) -> Result<()> {
    let pool = store.pool(name)?;
    read(&pool.read()?)?;
    pool.write(|tx| -> Result<()> {
        read(tx)?;
        let all = *tx.get(tx.root::<All>()?.expect("a root"))?;
        all.list.push_back(tx, COUNT)?;
        all.list.pop_back(tx)?;
        Ok(())
    })?;
    if name != "direct" && name != "other" {
        pool.psync()?;
    }
    Ok(())
}

pub(crate) fn child(dir: &Path, what: &str) {
    println!();
    let store = open(dir).unwrap_or_else(|error| panic!("the store does not open: {error}"));
    match what {
        "make" => {
            for name in POOLS {
                let pool = store.create_pool(name, &options(name)).expect("a pool");
                fill(&pool).expect("filled");
            }
            for file in names(dir) {
                let bytes = std::fs::read(dir.join(&file)).expect("readable");
                let header = read_header::<PuddleHeader>(&bytes, false).expect("a puddle");
                if let Some(pool) = store.pools().iter().find(|pool| pool.record.id == header.pool)
                {
                    println!("FILE {} {file}", pool.record.name);
                }
            }
        }
        "crash" => crash(&store),
        "open" => {
            for name in POOLS {
                match store.pool_with(name, Access::ReadWrite).map(drop) {
                    Ok(()) => println!("POOL {name}: whole"),
                    Err(error) => println!("POOL {name}: {}", error.to_string().replace('\n', " ")),
                }
            }
        }
        _ => {
            for name in POOLS {
                match uses(&store, name) {
                    Ok(()) => println!("POOL {name}: whole"),
                    Err(error) => println!("POOL {name}: {}", error.to_string().replace('\n', " ")),
                }
            }
        }
    }
    store.close().unwrap_or_else(|error| panic!("the store does not close: {error}"));
}

/// Ends the process where a transaction over two pools is half done, pools that were psynced
/// together are in the journal alone, perhaps, and others were changed after their psync.
fn crash(store: &Store) -> ! {
    let pools: std::vec::Vec<Pool> =
        POOLS.iter().map(|name| store.pool(name).expect("a pool")).collect();
    let [direct, other, shadowed, second, integrity, authenticated] = &pools[..] else { panic!() };
    for pool in &pools {
        pool.write(|tx| {
            let root = tx.root::<All>()?.expect("a root");
            let all = *tx.get(root)?;
            all.list.pop_back(tx)?;
            all.list.push_back(tx, COUNT - 1)
        })
        .expect("written");
    }
    store.psync(&[shadowed, second, integrity, authenticated]).expect("psynced");
    let done: Result<()> = store.write(&[direct, other], |tx| {
        for pool in [direct, other] {
            let all = *tx.get(tx.root_in::<All>(pool, 0)?.expect("a root"))?;
            all.list.push_back(tx, 1_000_000)?;
        }
        std::process::abort()
    });
    panic!("{done:?}")
}

/// Names of all files of pools.
fn names(dir: &Path) -> BTreeSet<std::string::String> {
    let mut all = BTreeSet::new();
    for part in ["puddles", "primary"] {
        for entry in std::fs::read_dir(dir.join(part)).into_iter().flatten().flatten() {
            all.insert(format!("{part}/{}", entry.file_name().to_string_lossy()));
        }
    }
    all
}
