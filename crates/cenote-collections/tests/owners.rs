//! What values of collections own goes with them: after each operation the blocks of a pool
//! are those of a model. A twin with values that own nothing says how many the collection has. No
//! map takes keys that own.

use cenote::ptr::FieldOffset;
use cenote::{Error, Owned, Persist, Pool, PoolOptions, Ptr, Reader, Result, Store, Tx};
use cenote::{TypeSetError, field};
use cenote_collections::{
    BTreeMap, ForwardList, HashMap, List, Vec as PersistentVec, VecDeque, btree, hash,
};
use cenote_medium::planted::{Bug, OwnedBug, plant};
use cenote_testkit::directories::directory;
use std::collections::BTreeMap as StdBTreeMap;

#[derive(Persist)]
#[persist(name = "owners::Holder")]
struct Holder {
    number: u64,
    trees: [Owned<Tree>; 2],
}

#[derive(Persist)]
#[persist(name = "owners::Tree", owned)]
struct Tree {
    below: [Owned<Tree>; 2],
}

const STEPS: u64 = 400;
const KEYS: u64 = 60;

fn holder(number: u64) -> Holder {
    Holder { number, trees: [Owned::EMPTY, Owned::EMPTY] }
}

fn tree() -> Tree {
    Tree { below: [Owned::EMPTY, Owned::EMPTY] }
}

fn edge(which: usize) -> FieldOffset<Holder, Owned<Tree>> {
    field!(Holder, trees).element(which).expect("one of two")
}

struct Random(u64);

impl Random {
    fn below(&mut self, n: u64) -> u64 {
        self.0 = self.0.wrapping_mul(6364136223846793005).wrapping_add(1442695040888963407);
        (self.0 >> 33) % n
    }
}

/// A tree of one block or of three.
fn grow(tx: &mut Tx<'_>, top: Ptr<Tree>, size: u64) -> Result<()> {
    for at in 0..(size as usize - 1) {
        let below = field!(Tree, below).element(at).expect("one of two");
        tx.put_owned(top, below, tree())?;
    }
    Ok(())
}

/// Pools of one store: of the collection with owners, and of its twin.
struct Twins {
    _dir: tempfile::TempDir,
    owners: Pool,
    twin: Pool,
    /// Blocks that the first has beside the collection and what that owns.
    own: u64,
}

fn twins() -> Result<Twins> {
    let dir = directory();
    let store = Store::open(dir.path())?;
    let [owners, twin] = [
        store.create_pool("owners", &PoolOptions::default())?,
        store.create_pool("twin", &PoolOptions::default())?,
    ];
    // The list of blocks that wait is made by the first owner.
    owners.write(|tx| -> Result<()> {
        let first = tx.alloc(holder(0))?;
        tx.put_owned(first, edge(0), tree())?;
        tx.free(first)
    })?;
    owners.finish_frees()?;
    let own = owners.stats()?.blocks;
    Ok(Twins { _dir: dir, owners, twin, own })
}

/// A collection that a root leads to.
fn rooted<C: Persist + Copy>(
    tx: &mut Tx<'_>,
    make: impl FnOnce(&mut Tx<'_>) -> Result<C>,
) -> Result<C> {
    let collection = make(tx)?;
    let root = tx.alloc(collection)?;
    tx.set_root(root)?;
    Ok(collection)
}

impl Twins {
    /// How many blocks the values own, of which so many should be reached.
    #[track_caller]
    fn is_whole(&self, reached: u64, step: u64) -> Result<()> {
        self.owners.finish_frees()?;
        let blocks = self.owners.stats()?.blocks;
        let wanted = self.own + self.twin.stats()?.blocks + reached;
        assert_eq!(blocks, wanted, "step {step}: {reached} blocks are owned");
        Ok(())
    }
}

fn reached<'v>(view: &impl Reader, holders: impl Iterator<Item = &'v Holder>) -> Result<u64> {
    let mut next: Vec<Ptr<Tree>> =
        holders.flat_map(|holder| holder.trees.iter().filter_map(Owned::get)).collect();
    let mut count = 0;
    while let Some(tree) = next.pop() {
        count += 1;
        next.extend(view.get(tree)?.below.iter().filter_map(Owned::get));
    }
    Ok(count)
}

fn sum<'m>(model: impl Iterator<Item = &'m [u64; 2]>) -> u64 {
    model.map(|sizes| sizes.iter().sum::<u64>()).sum()
}

fn is_empty(holder: Option<Holder>) -> bool {
    holder.is_none_or(|holder| holder.trees.iter().all(Owned::is_empty))
}

macro_rules! map_test {
    ($test:ident, $map:ident, $module:ident, $new:expr) => {
        fn $test(steps: u64) -> Result<()> {
            let twins = twins()?;
            let new = $new;
            let map: $map<u64, Holder> = twins.owners.write(|tx| rooted(tx, new))?;
            let new = $new;
            let plain: $map<u64, [u64; 3]> = twins.twin.write(|tx| rooted(tx, new))?;
            let (mut model, mut random) = (StdBTreeMap::<u64, [u64; 2]>::new(), Random(7));
            for step in 0..steps {
                let (key, op, which) = (random.below(KEYS), random.below(14), random.below(2));
                let (which, size) = (which as usize, 1 + 2 * random.below(2));
                let there = model.contains_key(&key);
                twins.owners.write(|tx| -> Result<()> {
                    match op {
                        0..=3 => {
                            let old = map.insert(tx, key, holder(step))?;
                            assert!(old.is_some() == there && is_empty(old));
                        }
                        4..=7 => {
                            let top = map.put_owned(tx, &key, edge(which), tree())?;
                            assert_eq!(top.is_some(), there);
                            top.map_or(Ok(()), |top| grow(tx, top, size))?;
                        }
                        8 => {
                            let freed = map.free_owned(tx, &key, edge(which))?;
                            assert_eq!(freed, model.get(&key).is_some_and(|s| s[which] != 0));
                        }
                        9 | 10 => {
                            let old = map.remove(tx, &key)?;
                            assert!(old.is_some() == there && is_empty(old));
                        }
                        11 => match map.entry(tx, key)? {
                            $module::Entry::Occupied(mut entry) => {
                                assert!(is_empty(Some(entry.insert(holder(step))?)));
                            }
                            $module::Entry::Vacant(_) => {}
                        },
                        12 => map.retain(tx, |key, _| key % 5 != step % 5)?,
                        _ if step % 4 == 0 => map.clear(tx)?,
                        _ => {}
                    }
                    Ok(())
                })?;
                twins.twin.write(|tx| match op {
                    0..=3 => plain.insert(tx, key, [step; 3]).map(drop),
                    9 | 10 => plain.remove(tx, &key).map(drop),
                    12 => plain.retain(tx, |key, _| key % 5 != step % 5),
                    13 if step % 4 == 0 => plain.clear(tx),
                    _ => Ok(()),
                })?;
                match op {
                    0..=3 => drop(model.insert(key, [0, 0])),
                    4..=7 if there => model.get_mut(&key).expect("there")[which] = size,
                    8 if there => model.get_mut(&key).expect("there")[which] = 0,
                    9 | 10 => drop(model.remove(&key)),
                    11 if there => drop(model.insert(key, [0, 0])),
                    12 => model.retain(|key, _| key % 5 != step % 5),
                    13 if step % 4 == 0 => model.clear(),
                    _ => {}
                }
                let view = twins.owners.read()?;
                assert_eq!(reached(&view, map.values(&view)?)?, sum(model.values()), "{step}");
                drop(view);
                twins.is_whole(sum(model.values()), step)?;
            }
            assert!(twins.owners.check()?.is_sound() && !model.is_empty());
            twins.owners.write(|tx| map.destroy(tx))?;
            twins.twin.write(|tx| plain.destroy(tx))?;
            twins.is_whole(0, steps)
        }
    };
}

map_test!(ordered_map, BTreeMap, btree, |tx: &mut Tx<'_>| BTreeMap::new(tx));
map_test!(hash_map, HashMap, hash, |tx: &mut Tx<'_>| HashMap::with_hash_key(tx, [1, 2]));

#[test]
fn what_values_of_maps_own_goes_with_them() -> Result<()> {
    ordered_map(STEPS)?;
    hash_map(STEPS)
}

/// How many blocks each field of each value of a vector owns.
fn sizes_of(pool: &Pool, vec: PersistentVec<Holder>) -> Result<Vec<[u64; 2]>> {
    let view = pool.read()?;
    let size = |tree: &Owned<Tree>| tree.get().map_or(Ok(0), |top| reached_below(&view, top));
    vec.iter(&view)?.map(|holder| Ok([size(&holder.trees[0])?, size(&holder.trees[1])?])).collect()
}

/// An operation on the twin.
fn twin_op(
    tx: &mut Tx<'_>,
    plain: PersistentVec<[u64; 3]>,
    (op, at, to): (u64, usize, usize),
    step: u64,
) -> Result<()> {
    let len = plain.len(tx)?;
    let is_in = at < len && to < len;
    match op {
        0..=3 => plain.push(tx, [step, 0, 0]),
        4 => plain.insert(tx, at, [step, 0, 0]),
        5 => plain.pop(tx).map(drop),
        6 if is_in => plain.remove(tx, at).map(drop),
        7 if is_in => plain.swap_remove(tx, at).map(drop),
        8 if is_in => plain.replace(tx, at, [step, 0, 0]).map(drop),
        9 => plain.truncate(tx, len.max(2) - 2),
        10 if is_in => plain.swap(tx, at, to),
        15 if step.is_multiple_of(3) => plain.retain(tx, |[number, ..]| number % 4 != step % 4),
        15 if step % 7 == 1 => plain.clear(tx),
        _ => Ok(()),
    }
}

fn vector(steps: u64) -> Result<()> {
    let twins = twins()?;
    let vec = twins.owners.write(|tx| rooted(tx, PersistentVec::<Holder>::new))?;
    let plain = twins.twin.write(|tx| rooted(tx, PersistentVec::<[u64; 3]>::new))?;
    let (mut model, mut random) = (Vec::<[u64; 2]>::new(), Random(9));
    for step in 0..steps {
        let (op, which, size) = (random.below(16), random.below(2), 1 + 2 * random.below(2));
        let (which, len) = (which as usize, model.len());
        let (at, to) = (random.below(len as u64 + 1) as usize, random.below(len as u64 + 1));
        let to = to as usize;
        let is_in = at < len && to < len;
        twins.owners.write(|tx| -> Result<()> {
            match op {
                0..=3 => vec.push(tx, holder(step))?,
                4 => vec.insert(tx, at, holder(step))?,
                5 => assert!(is_empty(vec.pop(tx)?)),
                6 if is_in => assert!(is_empty(Some(vec.remove(tx, at)?))),
                7 if is_in => assert!(is_empty(Some(vec.swap_remove(tx, at)?))),
                8 if is_in => assert!(is_empty(Some(vec.replace(tx, at, holder(step))?))),
                9 => vec.truncate(tx, len.max(2) - 2)?,
                10 if is_in => vec.swap(tx, at, to)?,
                11..=13 if is_in => {
                    let top = vec.put_owned(tx, at, edge(which), tree())?;
                    grow(tx, top, size)?;
                }
                14 if is_in => {
                    assert_eq!(vec.free_owned(tx, at, edge(which))?, model[at][which] != 0);
                }
                15 if step % 3 == 0 => vec.retain(tx, |holder| holder.number % 4 != step % 4)?,
                15 if step % 7 == 1 => vec.clear(tx)?,
                _ => {}
            }
            Ok(())
        })?;
        twins.twin.write(|tx| twin_op(tx, plain, (op, at, to), step))?;
        match op {
            0..=3 => model.push([0, 0]),
            4 => model.insert(at, [0, 0]),
            5 => drop(model.pop()),
            6 if is_in => drop(model.remove(at)),
            7 if is_in => drop(model.swap_remove(at)),
            8 if is_in => model[at] = [0, 0],
            9 => model.truncate(len.max(2) - 2),
            10 if is_in => model.swap(at, to),
            11..=13 if is_in => model[at][which] = size,
            14 if is_in => model[at][which] = 0,
            // What the closure has kept, by the numbers of the vector.
            15 => model = sizes_of(&twins.owners, vec)?,
            _ => {}
        }
        let view = twins.owners.read()?;
        assert_eq!(reached(&view, vec.iter(&view)?)?, sum(model.iter()), "step {step}");
        assert_eq!(vec.len(&view)?, model.len());
        drop(view);
        twins.is_whole(sum(model.iter()), step)?;
    }
    assert!(twins.owners.check()?.is_sound() && !model.is_empty());
    twins.owners.write(|tx| vec.destroy(tx))?;
    twins.twin.write(|tx| plain.destroy(tx))?;
    twins.is_whole(0, steps)
}

fn reached_below(view: &impl Reader, top: Ptr<Tree>) -> Result<u64> {
    let mut count = 1;
    for below in view.get(top)?.below.iter().filter_map(Owned::get) {
        count += reached_below(view, below)?;
    }
    Ok(count)
}

#[test]
fn what_values_of_a_vector_own_goes_with_them() -> Result<()> {
    vector(STEPS)
}

#[test]
fn an_abort_brings_back_what_an_entry_owned() -> Result<()> {
    let twins = twins()?;
    let map = twins.owners.write(|tx| -> Result<_> {
        let map = BTreeMap::<u64, Owned<Tree>>::new(tx)?;
        map.insert(tx, 1, Owned::EMPTY)?;
        let top = map.put_owned(tx, &1, FieldOffset::whole(), tree())?.expect("inserted");
        grow(tx, top, 3)?;
        Ok(map)
    })?;
    let blocks = twins.owners.stats()?.blocks;
    for op in 0..4 {
        let aborted = twins.owners.write(|tx| -> Result<()> {
            match op {
                0 => assert!(map.remove(tx, &1)?.is_some()),
                1 => assert!(map.insert(tx, 1, Owned::EMPTY)?.is_some()),
                2 => map.clear(tx)?,
                _ => map.destroy(tx)?,
            }
            Err(Error::OutOfBounds { index: 0, len: 0 })
        });
        assert!(aborted.is_err());
        twins.owners.finish_frees()?;
        let view = twins.owners.read()?;
        let top = map.get(&view, &1)?.and_then(Owned::get).expect("as before");
        assert_eq!((reached_below(&view, top)?, twins.owners.stats()?.blocks), (3, blocks));
    }
    Ok(())
}

/// Without the step that frees what entries own, the models differ.
#[test]
fn a_planted_leak_is_found() {
    plant(Bug::Owned(OwnedBug::EntryKept));
    for test in [ordered_map, hash_map, vector, deque, lists, forward_lists] {
        let found = std::panic::catch_unwind(|| test(STEPS)).is_err();
        assert!(found, "it was not found");
    }
    plant(Bug::None);
}

/// A list and a singly linked one, each with a twin, changed at both ends and at a cursor.
fn lists(steps: u64) -> Result<()> {
    let twins = twins()?;
    let list = twins.owners.write(|tx| rooted(tx, List::<Holder>::new))?;
    let plain = twins.twin.write(|tx| rooted(tx, List::<[u64; 3]>::new))?;
    let (mut model, mut random) = (Vec::<[u64; 2]>::new(), Random(11));
    for step in 0..steps {
        let (op, which, size) = (random.below(10), random.below(2), 1 + 2 * random.below(2));
        let (which, len) = (which as usize, model.len());
        let at = random.below(len as u64 + 1) as usize;
        twins.owners.write(|tx| -> Result<()> {
            match op {
                0 | 1 => list.push_back(tx, holder(step))?,
                2 => list.push_front(tx, holder(step))?,
                3 => assert!(is_empty(list.pop_front(tx)?)),
                4 => assert!(is_empty(list.pop_back(tx)?)),
                5..=8 if at < len => {
                    let mut cursor = list.cursor_front_mut(tx)?;
                    (0..at).for_each(|_| cursor.move_next());
                    match op {
                        5 => assert!(is_empty(cursor.remove_current()?)),
                        6 => assert_eq!(cursor.free_owned(edge(which))?, model[at][which] != 0),
                        _ => {
                            let top = cursor.put_owned(edge(which), tree())?.expect("an element");
                            grow(tx, top, size)?;
                        }
                    }
                }
                9 if step % 5 == 0 => list.clear(tx)?,
                _ => {}
            }
            Ok(())
        })?;
        twins.twin.write(|tx| match op {
            0 | 1 => plain.push_back(tx, [step; 3]),
            2 => plain.push_front(tx, [step; 3]),
            3 => plain.pop_front(tx).map(drop),
            4 => plain.pop_back(tx).map(drop),
            5 if at < len => plain.pop_back(tx).map(drop),
            9 if step % 5 == 0 => plain.clear(tx),
            _ => Ok(()),
        })?;
        match op {
            0 | 1 => model.push([0, 0]),
            2 => model.insert(0, [0, 0]),
            3 if len > 0 => drop(model.remove(0)),
            4 => drop(model.pop()),
            5 if at < len => drop(model.remove(at)),
            6 if at < len => model[at][which] = 0,
            7 | 8 if at < len => model[at][which] = size,
            9 if step % 5 == 0 => model.clear(),
            _ => {}
        }
        let view = twins.owners.read()?;
        assert_eq!(reached(&view, list.iter(&view)?)?, sum(model.iter()), "step {step}");
        drop(view);
        twins.is_whole(sum(model.iter()), step)?;
    }
    assert!(twins.owners.check()?.is_sound());
    twins.owners.write(|tx| list.destroy(tx))?;
    twins.twin.write(|tx| plain.destroy(tx))?;
    twins.is_whole(0, steps)
}

fn forward_lists(steps: u64) -> Result<()> {
    let twins = twins()?;
    let list = twins.owners.write(|tx| rooted(tx, ForwardList::<Holder>::new))?;
    let plain = twins.twin.write(|tx| rooted(tx, ForwardList::<[u64; 3]>::new))?;
    for step in 0..steps {
        // Two elements that own, and then they go, in each way.
        twins.owners.write(|tx| -> Result<()> {
            list.push_back(tx, holder(step))?;
            list.push_front(tx, holder(step))?;
            let mut cursor = list.cursor_mut(tx)?;
            while cursor.move_next() {
                cursor.put_owned(edge(0), tree())?.expect("an element");
                cursor.put_owned(edge(1), tree())?.expect("an element");
                assert!(cursor.free_owned(edge(1))?);
            }
            Ok(())
        })?;
        twins.twin.write(|tx| -> Result<()> {
            plain.push_back(tx, [0; 3])?;
            plain.push_front(tx, [0; 3])
        })?;
        twins.is_whole(2, step)?;
        twins.owners.write(|tx| -> Result<()> {
            match step % 3 {
                0 => list.clear(tx),
                1 => list.retain(tx, |_| false),
                _ => {
                    assert!(is_empty(list.pop_front(tx)?));
                    assert!(is_empty(list.cursor_mut(tx)?.remove_next()?));
                    Ok(())
                }
            }
        })?;
        twins.twin.write(|tx| plain.clear(tx))?;
        twins.is_whole(0, step)?;
    }
    Ok(())
}

fn deque(steps: u64) -> Result<()> {
    let twins = twins()?;
    let deque = twins.owners.write(|tx| rooted(tx, VecDeque::<Holder>::new))?;
    let plain = twins.twin.write(|tx| rooted(tx, VecDeque::<[u64; 3]>::new))?;
    let (mut model, mut random) = (std::collections::VecDeque::<[u64; 2]>::new(), Random(17));
    for step in 0..steps {
        let (op, which, size) = (random.below(10), random.below(2), 1 + 2 * random.below(2));
        let (which, len) = (which as usize, model.len());
        let at = random.below(len as u64 + 1) as usize;
        twins.owners.write(|tx| -> Result<()> {
            match op {
                0 | 1 => deque.push_back(tx, holder(step))?,
                2 => deque.push_front(tx, holder(step))?,
                3 => assert!(is_empty(deque.pop_front(tx)?)),
                4 => assert!(is_empty(deque.pop_back(tx)?)),
                5..=7 if at < len => {
                    let top = deque.put_owned(tx, at, edge(which), tree())?;
                    grow(tx, top, size)?;
                }
                8 if at < len => {
                    assert_eq!(deque.free_owned(tx, at, edge(which))?, model[at][which] != 0);
                }
                9 if step % 5 == 0 => deque.clear(tx)?,
                _ => {}
            }
            Ok(())
        })?;
        twins.twin.write(|tx| match op {
            0 | 1 => plain.push_back(tx, [step; 3]),
            2 => plain.push_front(tx, [step; 3]),
            3 => plain.pop_front(tx).map(drop),
            4 => plain.pop_back(tx).map(drop),
            9 if step % 5 == 0 => plain.clear(tx),
            _ => Ok(()),
        })?;
        match op {
            0 | 1 => model.push_back([0, 0]),
            2 => model.push_front([0, 0]),
            3 => drop(model.pop_front()),
            4 => drop(model.pop_back()),
            5..=7 if at < len => model[at][which] = size,
            8 if at < len => model[at][which] = 0,
            9 if step % 5 == 0 => model.clear(),
            _ => {}
        }
        let view = twins.owners.read()?;
        assert_eq!(reached(&view, deque.iter(&view)?)?, sum(model.iter()), "step {step}");
        drop(view);
        twins.is_whole(sum(model.iter()), step)?;
    }
    assert!(twins.owners.check()?.is_sound());
    twins.owners.write(|tx| deque.destroy(tx))?;
    twins.twin.write(|tx| plain.destroy(tx))?;
    twins.is_whole(0, steps)
}

#[test]
fn what_values_of_a_deque_own_goes_with_them() -> Result<()> {
    deque(STEPS)
}

#[test]
fn what_values_of_lists_own_goes_with_them() -> Result<()> {
    lists(STEPS)?;
    forward_lists(9)
}

#[test]
fn no_map_takes_keys_that_own() -> Result<()> {
    #[derive(Persist)]
    #[persist(name = "owners::Key")]
    struct Key(Owned<Tree>);
    impl PartialEq for Key {
        fn eq(&self, _: &Self) -> bool {
            true
        }
    }
    impl Eq for Key {}
    impl PartialOrd for Key {
        fn partial_cmp(&self, other: &Self) -> Option<std::cmp::Ordering> {
            Some(self.cmp(other))
        }
    }
    impl Ord for Key {
        fn cmp(&self, _: &Self) -> std::cmp::Ordering {
            std::cmp::Ordering::Equal
        }
    }
    impl std::hash::Hash for Key {
        fn hash<H: std::hash::Hasher>(&self, _: &mut H) {}
    }
    const { assert!(Key::OWNS && Holder::OWNS) };

    let dir = directory();
    let pool = Store::open(dir.path())?.create_pool("p", &PoolOptions::default())?;
    let key = || Key(Owned::EMPTY);
    let refused = [
        pool.write(|tx| HashMap::new(tx)?.insert(tx, key(), 1_u64).map(drop)),
        pool.write(|tx| BTreeMap::new(tx)?.insert(tx, key(), 1_u64).map(drop)),
        pool.write(|tx| HashMap::new(tx)?.insert(tx, key(), holder(1)).map(drop)),
        pool.write(|tx| BTreeMap::new(tx)?.insert(tx, key(), holder(1)).map(drop)),
    ];
    for (at, refused) in refused.into_iter().enumerate() {
        match refused {
            Err(Error::Types(TypeSetError::Refused(why))) => {
                assert!(why.reason.contains("owns blocks"), "{at}: {why}");
            }
            other => panic!("{at}: {other:?}"),
        }
    }
    Ok(())
}
