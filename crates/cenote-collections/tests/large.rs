//! 10^5 elements: orders of keys that a tree meets, splits and merges on several levels, a hash map
//! that grows through three levels of directories, and lists that are freed in one transaction.

use crate::common::{assert_sound, directory, pool, random};
use cenote::Reader;
use cenote_collections::{BTreeMap, ForwardList, HashMap, List, Vec};
use std::collections::BTreeMap as StdBTreeMap;

const N: u64 = 100_000;

/// The keys 0 to N - 1 in an order that depends on the seed.
fn shuffled(mut seed: u64) -> std::vec::Vec<u64> {
    let mut keys: std::vec::Vec<u64> = (0..N).collect();
    for i in (1..keys.len()).rev() {
        keys.swap(i, (random(&mut seed) % (i as u64 + 1)) as usize);
    }
    keys
}

fn tree_with(order: impl Iterator<Item = u64>, remove_in: std::vec::Vec<u64>) -> u64 {
    let directory = directory();
    let pool = pool(directory.path());
    let tree = pool
        .write(|tx| -> cenote::Result<_> {
            let tree = BTreeMap::<u64, u64>::new(tx)?;
            let root = tx.alloc(tree)?;
            tx.set_root(root)?;
            tree.extend(tx, order.map(|k| (k, k * 3)))?;
            Ok(tree)
        })
        .unwrap();
    let view = pool.read().unwrap();
    assert!(tree.iter(&view).unwrap().map(|(&k, &v)| (k, v)).eq((0..N).map(|k| (k, k * 3))));
    assert!(tree.keys(&view).unwrap().rev().copied().eq((0..N).rev()));
    for k in (0..N).step_by(37) {
        assert_eq!(tree.get(&view, &k).unwrap(), Some(&(k * 3)));
        assert!(tree.range(&view, k..k + 20).unwrap().map(|(k, _)| *k).eq(k..(k + 20).min(N)));
    }
    drop(view);
    assert_sound(&pool);
    let blocks = pool.stats().unwrap().blocks;
    let mut left: StdBTreeMap<u64, u64> = (0..N).map(|k| (k, k * 3)).collect();
    for (i, keys) in remove_in.chunks(N as usize / 5).enumerate() {
        pool.write(|tx| -> cenote::Result<()> {
            for k in keys {
                assert_eq!(tree.remove(tx, k)?, left.remove(k));
            }
            Ok(())
        })
        .unwrap();
        let view = pool.read().unwrap();
        assert!(tree.iter(&view).unwrap().eq(left.iter()), "after part {i}");
        assert!(tree.iter(&view).unwrap().rev().eq(left.iter().rev()));
        drop(view);
        assert_sound(&pool);
    }
    assert_eq!(pool.stats().unwrap().blocks, 2, "an empty tree has a header and no node");
    blocks
}

#[test]
fn a_tree_filled_by_rising_keys_has_full_leaves() {
    let blocks = tree_with(0..N, (0..N).collect());
    assert!(blocks < N / 15 * 11 / 10, "{blocks} blocks");
}

#[test]
fn a_tree_filled_by_falling_keys_and_emptied_from_the_end() {
    tree_with((0..N).rev(), (0..N).rev().collect());
}

#[test]
fn a_tree_filled_and_emptied_in_random_orders() {
    let blocks = tree_with(shuffled(1).into_iter(), shuffled(2));
    assert!(blocks < N / 8, "nodes are about two thirds full: {blocks} blocks");
}

#[test]
fn a_hash_map_grows_shrinks_and_is_freed() {
    let directory = directory();
    let pool = pool(directory.path());
    let map = pool
        .write(|tx| -> cenote::Result<_> {
            let map = HashMap::<u64, u64>::new(tx)?;
            let root = tx.alloc(map)?;
            tx.set_root(root)?;
            Ok(map)
        })
        .unwrap();
    for keys in shuffled(3).chunks(1000) {
        pool.write(|tx| map.extend(tx, keys.iter().map(|&k| (k, !k)))).unwrap();
    }
    assert_sound(&pool);
    let view = pool.read().unwrap();
    assert_eq!(map.len(&view).unwrap() as u64, N);
    for k in 0..N + 100 {
        assert_eq!(map.get(&view, &k).unwrap().copied(), (k < N).then_some(!k));
    }
    let mut keys: std::vec::Vec<u64> = map.keys(&view).unwrap().copied().collect();
    keys.sort_unstable();
    assert!(keys.into_iter().eq(0..N), "each key once");
    drop(view);
    pool.write(|tx| -> cenote::Result<()> {
        for k in (0..N).filter(|k| k % 3 != 0) {
            assert_eq!(map.remove(tx, &k)?, Some(!k));
        }
        map.retain(tx, |k, _| k % 2 == 0)
    })
    .unwrap();
    assert_sound(&pool);
    let view = pool.read().unwrap();
    let count =
        map.iter(&view).unwrap().inspect(|(k, v)| assert!(**k % 6 == 0 && **v == !**k)).count();
    assert_eq!(count as u64, N.div_ceil(6));
    assert_eq!(map.len(&view).unwrap(), count);
    drop(view);
    pool.write(|tx| {
        let root = tx.root::<HashMap<u64, u64>>()?.unwrap();
        map.destroy(tx)?;
        tx.set_root_at::<u64>(0, None)?;
        tx.free(root)
    })
    .unwrap();
    assert_eq!(pool.stats().unwrap().blocks, 0);
}

#[test]
fn lists_and_vectors_of_many_elements_are_built_and_freed() {
    let directory = directory();
    let pool = pool(directory.path());
    let (list, forward, vec) = pool
        .write(|tx| -> cenote::Result<_> {
            let (list, forward, vec) =
                (List::<u64>::new(tx)?, ForwardList::<u64>::new(tx)?, Vec::<u64>::new(tx)?);
            for i in 0..N {
                list.push_back(tx, i)?;
                forward.push_front(tx, i)?;
                vec.push(tx, i)?;
            }
            Ok((list, forward, vec))
        })
        .unwrap();
    let view = pool.read().unwrap();
    assert!(list.iter(&view).unwrap().copied().eq(0..N));
    assert!(list.iter(&view).unwrap().rev().copied().eq((0..N).rev()));
    assert!(forward.iter(&view).unwrap().copied().eq((0..N).rev()));
    assert!(vec.iter(&view).unwrap().copied().eq(0..N));
    drop(view);
    pool.write(|tx| -> cenote::Result<()> {
        list.retain(tx, |i| i % 2 == 0)?;
        assert_eq!(list.len(tx)? as u64, N / 2);
        list.destroy(tx)?;
        forward.destroy(tx)?;
        vec.destroy(tx)
    })
    .unwrap();
    assert_eq!(pool.stats().unwrap().blocks, 0);
}
