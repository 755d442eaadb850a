//! Golden counts: what a transaction with one operation costs at `power`, exactly. They do not
//! depend on the machine. The crate's documentation has the same numbers as a table.
//!
//! Streamed bytes are the log: an entry is 32 bytes and its data, in whole lines of 64. An
//! allocation takes two entries, a free one, the commit seal one.

use crate::common::{directory, pool, power_pool};
use cenote::{Pool, Tx};
use cenote_collections::{BTreeMap, ForwardList, HashMap, List, Vec};
use cenote_medium::counters;

const SEAL: u64 = 64;
const ALLOC: u64 = 64;
const FREE: u64 = 64;
const HASH_KEY: [u64; 2] = [1, 2];

/// An undo entry of `len` bytes.
const fn undo(len: u64) -> u64 {
    (32 + len).next_multiple_of(64)
}

/// Fences and streamed bytes of one transaction.
fn cost(pool: &Pool, body: impl FnOnce(&mut Tx<'_>) -> cenote::Result<()>) -> (u64, u64) {
    let before = counters::snapshot();
    pool.write(body).expect("a commit");
    let spent = counters::snapshot() - before;
    (spent.fences, spent.streamed_bytes)
}

fn write<R>(pool: &Pool, body: impl FnOnce(&mut Tx<'_>) -> cenote::Result<R>) -> R {
    pool.write(body).expect("a commit")
}

#[test]
fn list_operations_cost_two_fences_and_the_words_that_change() {
    let directory = directory();
    let pool = power_pool(directory.path());
    let list = write(&pool, |tx| {
        // So that the heap has superblocks, and the log a thread.
        let list = List::<u64>::new(tx)?;
        list.push_back(tx, 1)?;
        list.clear(tx)?;
        Ok(list)
    });
    assert_eq!(
        cost(&pool, |tx| list.push_back(tx, 1)),
        (2, ALLOC + undo(24) + SEAL),
        "into an empty list"
    );
    let before = counters::snapshot();
    assert_eq!(cost(&pool, |tx| list.push_back(tx, 2)), (2, ALLOC + undo(8) + undo(16) + SEAL));
    let spent = counters::snapshot() - before;
    assert!(
        spent.flushes <= 6,
        "new node, its mark, old last node, header, range of the log, and a node on two lines: \
         {spent:?}"
    );
    assert_eq!(cost(&pool, |tx| list.push_front(tx, 0)), (2, ALLOC + undo(8) + undo(16) + SEAL));
    assert_eq!(
        cost(&pool, |tx| {
            let mut cursor = list.cursor_front_mut(tx)?;
            cursor.insert_after(7)?;
            Ok(())
        }),
        (2, ALLOC + 3 * undo(8) + SEAL)
    );
    assert_eq!(
        cost(&pool, |tx| {
            let mut cursor = list.cursor_front_mut(tx)?;
            cursor.move_next();
            cursor.remove_current()?;
            Ok(())
        }),
        (2, FREE + 3 * undo(8) + SEAL)
    );
    assert_eq!(
        cost(&pool, |tx| list.pop_front(tx).map(drop)),
        (2, FREE + undo(8) + undo(16) + SEAL)
    );
    assert_eq!(
        cost(&pool, |tx| list.pop_back(tx).map(drop)),
        (2, FREE + undo(8) + undo(16) + SEAL)
    );
    assert_eq!(
        cost(&pool, |tx| list.pop_back(tx).map(drop)),
        (2, FREE + undo(24) + SEAL),
        "the last one"
    );
    assert_eq!(cost(&pool, |tx| list.pop_back(tx).map(drop)), (0, 0), "none");
    // Ten in one transaction: the header is logged once, nodes of this transaction not at all. So
    // nothing has fenced the entries of the nine after the first when commit makes the nodes'
    // marks durable: it does, once.
    write(&pool, |tx| list.push_back(tx, 0));
    let ten = cost(&pool, |tx| list.extend(tx, 0..10));
    assert_eq!(ten, (3, 10 * ALLOC + undo(8) + undo(16) + SEAL));
}

#[test]
fn forward_list_operations_cost_two_fences_and_the_words_that_change() {
    let directory = directory();
    let pool = power_pool(directory.path());
    let list = write(&pool, |tx| {
        let list = ForwardList::<u64>::new(tx)?;
        list.extend(tx, 0..2)?;
        Ok(list)
    });
    assert_eq!(cost(&pool, |tx| list.push_back(tx, 2)), (2, ALLOC + undo(8) + undo(16) + SEAL));
    assert_eq!(cost(&pool, |tx| list.push_front(tx, 2)), (2, ALLOC + undo(16) + SEAL));
    assert_eq!(cost(&pool, |tx| list.pop_front(tx).map(drop)), (2, FREE + undo(16) + SEAL));
}

#[test]
fn tree_operations_cost_two_fences_and_the_slot_that_changes() {
    let directory = directory();
    let pool = power_pool(directory.path());
    let tree = write(&pool, |tx| {
        let tree = BTreeMap::<u64, u64>::new(tx)?;
        // So that the heap has superblocks for leaves and inner nodes: taking one costs a fence.
        tree.extend(tx, (0..100).map(|k| (k, 0)))?;
        tree.clear(tx)?;
        tree.extend(tx, (0..14).map(|k| (k * 10, 0)))?;
        Ok(tree)
    });
    let slot = undo(16) + 2 * undo(8);
    assert_eq!(cost(&pool, |tx| tree.insert(tx, 5, 5).map(drop)), (2, slot + SEAL));
    assert_eq!(
        cost(&pool, |tx| tree.insert(tx, 5, 6).map(drop)),
        (2, undo(8) + SEAL),
        "over an old value"
    );
    assert_eq!(
        cost(&pool, |tx| {
            *tree.get_mut(tx, &5)?.expect("inserted") = 7;
            Ok(())
        }),
        (2, undo(8) + SEAL)
    );
    // The first split: the leaf's next (8), its entries (248), the header (48); a fresh leaf and a
    // fresh root.
    assert_eq!(
        cost(&pool, |tx| tree.insert(tx, 55, 0).map(drop)),
        (2, 2 * ALLOC + undo(8) + undo(248) + undo(48) + SEAL)
    );
    assert_eq!(cost(&pool, |tx| tree.remove(tx, &5).map(drop)), (2, slot + SEAL));
    assert_eq!(cost(&pool, |tx| tree.remove(tx, &5).map(drop)), (0, 0), "none");
    // A leaf splits below a root that has room: next (8), entries (248), header, and the branch
    // (16) and permutation (8) of the root.
    write(&pool, |tx| tree.extend(tx, (61..68).map(|k| (k, 0))));
    let behind = cost(&pool, |tx| tree.insert(tx, 68, 0).map(drop));
    assert_eq!(behind, (2, ALLOC + undo(8) + undo(248) + undo(48) + undo(16) + undo(8) + SEAL));
    // Behind all others nothing moves: next (8), header (48), branch (16) and permutation (8).
    write(&pool, |tx| tree.extend(tx, (200..207).map(|k| (k, 0))));
    let append = |key: u64| cost(&pool, |tx| tree.insert(tx, key, 0).map(drop));
    let costs: std::vec::Vec<_> = (300..316).map(append).collect();
    assert_eq!(costs.iter().filter(|&&cost| cost == (2, slot + SEAL)).count(), 14, "{costs:?}");
    assert!(
        costs.contains(&(2, ALLOC + undo(8) + undo(48) + undo(16) + undo(8) + SEAL)),
        "{costs:?}"
    );
}

#[test]
fn hash_operations_cost_two_fences_and_the_slot_that_changes() {
    let directory = directory();
    let pool = power_pool(directory.path());
    let map = write(&pool, |tx| {
        let map = HashMap::<u64, u64>::with_hash_key(tx, HASH_KEY)?;
        // The fourth entry splits the first bucket, so the second is there too.
        map.extend(tx, (0..5).map(|k| (k, 0)))?;
        Ok(map)
    });
    let slot = undo(16) + 2 * undo(8);
    assert_eq!(cost(&pool, |tx| map.insert(tx, 5, 5).map(drop)), (2, slot + SEAL));
    assert_eq!(
        cost(&pool, |tx| map.insert(tx, 5, 6).map(drop)),
        (2, undo(8) + SEAL),
        "over an old value"
    );
    assert_eq!(cost(&pool, |tx| map.remove(tx, &5).map(drop)), (2, slot + SEAL));
    // Four entries of 3.5 a bucket: the seventh is the last one that goes without a split.
    write(&pool, |tx| map.extend(tx, (5..7).map(|k| (k, 0))));
    let (fences, bytes) = cost(&pool, |tx| map.insert(tx, 7, 0).map(drop));
    assert_eq!(fences, 2, "a split");
    // The old bucket's page (128), the link of the new one (8), length and number of buckets (16);
    // a fresh page. The new entry goes to a third bucket.
    assert_eq!(bytes, ALLOC + undo(128) + undo(8) + undo(16) + undo(16) + undo(8) + SEAL);
    // However large the map, an insertion never costs more than that and a few pages; where the
    // heap takes a superblock, its fences too.
    let mut worst = (0, 0);
    for k in 8..5000 {
        worst = cost(&pool, |tx| map.insert(tx, k, 0).map(drop)).max(worst);
    }
    assert!(worst.0 <= 4 && worst.1 < 1000, "{worst:?}");
}

#[test]
fn vector_operations_cost_two_fences_and_the_places_that_change() {
    let directory = directory();
    let pool = power_pool(directory.path());
    let vec = write(&pool, |tx| {
        // So that the heap has superblocks for arrays of both sizes: taking one costs a fence.
        Vec::<u64>::with_capacity(tx, 16)?.destroy(tx)?;
        let vec = Vec::<u64>::with_capacity(tx, 8)?;
        vec.extend(tx, 0..7)?;
        Ok(vec)
    });
    let view = pool.read().expect("a view");
    assert_eq!(vec.capacity(&view).expect("alive"), 8);
    drop(view);
    assert_eq!(cost(&pool, |tx| vec.push(tx, 7)), (2, 2 * undo(8) + SEAL));
    assert_eq!(
        cost(&pool, |tx| vec.push(tx, 8)),
        (2, ALLOC + FREE + undo(24) + SEAL),
        "a new array"
    );
    assert_eq!(cost(&pool, |tx| vec.pop(tx).map(drop)), (2, 2 * undo(8) + SEAL));
    assert_eq!(cost(&pool, |tx| vec.remove(tx, 2).map(drop)), (2, undo(6 * 8) + undo(8) + SEAL));
    assert_eq!(
        cost(&pool, |tx| vec.extend_from_slice(tx, &[1; 5])),
        (2, undo(40) + undo(8) + SEAL)
    );
}

#[test]
fn at_process_nothing_is_flushed_fenced_or_streamed() {
    let directory = directory();
    let pool = pool(directory.path());
    let before = counters::snapshot();
    pool.write(|tx| -> cenote::Result<()> {
        let (list, tree) = (List::<u64>::new(tx)?, BTreeMap::<u64, u64>::new(tx)?);
        let (hash, vec) = (HashMap::<u64, u64>::new(tx)?, Vec::<u64>::new(tx)?);
        for i in 0..200 {
            list.push_back(tx, i)?;
            tree.insert(tx, i, i)?;
            hash.insert(tx, i, i)?;
            vec.push(tx, i)?;
        }
        list.destroy(tx)?;
        tree.destroy(tx)?;
        hash.destroy(tx)?;
        vec.destroy(tx)
    })
    .expect("a commit");
    let spent = counters::snapshot() - before;
    assert_eq!((spent.fences, spent.flushes, spent.streamed_bytes), (0, 0, 0));
}
