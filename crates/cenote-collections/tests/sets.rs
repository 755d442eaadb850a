//! Sets, the queues and maps of sorted entries, against their counterparts.

use crate::common::{directory, pool, power_pool};
use cenote::{Error, Reader, Result, Tx};
use cenote_collections::{BTreeMap, BTreeSet, BinaryHeap, HashSet, InlineStr, List, VecDeque};
use cenote_medium::counters;
use std::cmp::Reverse;
use std::collections as std_collections;

struct Random(u64);

impl Random {
    fn below(&mut self, n: u64) -> u64 {
        self.0 = self.0.wrapping_mul(6364136223846793005).wrapping_add(1442695040888963407);
        (self.0 >> 33) % n
    }
}

#[test]
fn sets_are_as_their_counterparts() -> Result<()> {
    let directory = directory();
    let pool = pool(directory.path());
    let mut random = Random(3);
    pool.write(|tx| -> Result<()> {
        let (hashed, ordered) = (HashSet::<u64>::new(tx)?, BTreeSet::<u64>::new(tx)?);
        let mut model = std_collections::BTreeSet::new();
        for step in 0..3000 {
            let value = random.below(200);
            match random.below(9) {
                0..=3 => {
                    let is_new = model.insert(value);
                    assert_eq!(hashed.insert(tx, value)?, is_new);
                    assert_eq!(ordered.insert(tx, value)?, is_new);
                }
                4 | 5 => {
                    let was_there = model.remove(&value);
                    assert_eq!(hashed.remove(tx, &value)?, was_there);
                    assert_eq!(ordered.remove(tx, &value)?, was_there);
                }
                6 => {
                    let taken = model.take(&value);
                    assert_eq!(hashed.take(tx, &value)?, taken);
                    assert_eq!(ordered.take(tx, &value)?, taken);
                }
                7 => {
                    let last = if step % 2 == 0 {
                        let first = model.pop_first();
                        assert_eq!(ordered.pop_first(tx)?, first);
                        first
                    } else {
                        let last = model.pop_last();
                        assert_eq!(ordered.pop_last(tx)?, last);
                        last
                    };
                    if let Some(last) = last {
                        assert!(hashed.remove(tx, &last)?);
                    }
                }
                _ if step % 7 == 0 => {
                    let keep = |value: &u64| value % 3 != step % 3;
                    model.retain(keep);
                    hashed.retain(tx, keep)?;
                    ordered.retain(tx, keep)?;
                }
                _ => {}
            }
            assert_eq!(hashed.len(tx)?, model.len());
            assert_eq!(hashed.contains(tx, &value)?, model.contains(&value));
            assert_eq!(ordered.get(tx, &value)?, model.get(&value));
            assert_eq!((ordered.first(tx)?, ordered.last(tx)?), (model.first(), model.last()));
            if step % 16 == 0 {
                assert!(ordered.iter(tx)?.eq(&model));
                let range = value / 2..value + 40;
                assert!(ordered.range(tx, range.clone())?.eq(model.range(range.clone())));
                assert!(ordered.range(tx, range.clone())?.rev().eq(model.range(range).rev()));
                let all: std_collections::BTreeSet<u64> = hashed.iter(tx)?.copied().collect();
                assert_eq!(all, model);
            }
        }
        assert!(model.len() > 20);
        Ok(())
    })
}

#[test]
fn sets_and_queues_are_there_after_a_crash_of_the_program_and_end_with_destroy() -> Result<()> {
    let directory = directory();
    let pool = pool(directory.path());
    let blocks = pool.stats()?.blocks;
    let (names, due) = pool.write(|tx| -> Result<_> {
        let names = HashSet::<InlineStr<15>>::from_iter(tx, [InlineStr::truncated("ada")])?;
        let due = BinaryHeap::from_iter(tx, [Reverse((3_u64, 1_u8)), Reverse((1, 2))])?;
        assert!(!names.is_empty(tx)? && names.contains(tx, "ada")?);
        Ok((names, due))
    })?;
    let failed = pool.write(|tx| -> Result<()> {
        names.clear(tx)?;
        due.pop(tx)?;
        Err(Error::OutOfBounds { index: 0, len: 0 })
    });
    assert!(failed.is_err());
    let view = pool.read()?;
    assert!(names.get(&view, "ada")?.is_some());
    assert_eq!(due.peek(&view)?, Some(&Reverse((1, 2))));
    drop(view);
    // Two handles name one set, and one that is destroyed is stale.
    let same = names;
    assert_eq!((same, Some(same)), (names, Some(names)));
    pool.write(|tx| -> Result<()> {
        names.destroy(tx)?;
        due.destroy(tx)
    })?;
    assert!(matches!(names.len(&pool.read()?), Err(Error::Dangling { .. })));
    assert_eq!(pool.stats()?.blocks, blocks);
    Ok(())
}

#[test]
fn a_queue_gives_the_greatest_value_first() -> Result<()> {
    let directory = directory();
    let pool = pool(directory.path());
    let mut random = Random(5);
    pool.write(|tx| -> Result<()> {
        let queue = BinaryHeap::<(u64, u64)>::new(tx)?;
        let mut model = std_collections::BinaryHeap::new();
        for step in 0..4000 {
            // It grows, and then it shrinks.
            if random.below(8) < if step < 2000 { 5 } else { 3 } {
                let value = (random.below(50), random.below(1000));
                queue.push(tx, value)?;
                model.push(value);
            } else {
                assert_eq!(queue.pop(tx)?, model.pop());
            }
            assert_eq!((queue.peek(tx)?, queue.len(tx)?), (model.peek(), model.len()));
        }
        let mut all: Vec<_> = queue.iter(tx)?.copied().collect();
        all.sort_unstable();
        assert_eq!(all, model.clone().into_sorted_vec());
        while let Some(greatest) = model.pop() {
            assert_eq!(queue.pop(tx)?, Some(greatest));
        }
        assert!(queue.is_empty(tx)? && queue.pop(tx)?.is_none());
        Ok(())
    })
}

#[test]
fn a_deque_is_as_its_counterpart() -> Result<()> {
    let directory = directory();
    let pool = pool(directory.path());
    let mut random = Random(13);
    let (deque, units) =
        pool.write(|tx| -> Result<_> { Ok((VecDeque::new(tx)?, VecDeque::<()>::new(tx)?)) })?;
    let mut model = std_collections::VecDeque::<u64>::new();
    for round in 0..60 {
        pool.write(|tx| -> Result<()> {
            for step in 0..100_u64 {
                // It grows and shrinks, and its values go round its array.
                match random.below(if round % 6 < 3 { 9 } else { 14 }) {
                    0..=3 => {
                        deque.push_back(tx, step)?;
                        units.push_back(tx, ())?;
                        model.push_back(step);
                    }
                    4..=6 => {
                        deque.push_front(tx, step)?;
                        units.push_front(tx, ())?;
                        model.push_front(step);
                    }
                    7 | 9..=11 => {
                        let front = model.pop_front();
                        assert_eq!(deque.pop_front(tx)?, front);
                        assert_eq!(units.pop_front(tx)?.is_some(), front.is_some());
                    }
                    _ => {
                        let back = model.pop_back();
                        assert_eq!(deque.pop_back(tx)?, back);
                        assert_eq!(units.pop_back(tx)?.is_some(), back.is_some());
                    }
                }
                assert_eq!((deque.front(tx)?, deque.back(tx)?), (model.front(), model.back()));
                let at = random.below(model.len() as u64 + 1) as usize;
                assert_eq!(deque.get(tx, at)?, model.get(at));
                if let Some(value) = deque.get_mut(tx, at)? {
                    *value += 1;
                    model[at] += 1;
                }
            }
            if round % 20 == 19 {
                deque.clear(tx)?;
                model.clear();
                units.clear(tx)?;
            }
            Ok(())
        })?;
        let view = pool.read()?;
        assert_eq!((deque.len(&view)?, units.len(&view)?), (model.len(), model.len()));
        assert!(deque.iter(&view)?.eq(&model) && deque.iter(&view)?.rev().eq(model.iter().rev()));
        assert_eq!(deque.iter(&view)?.len(), model.len());
        assert_eq!(units.iter(&view)?.count(), model.len());
        let (first, second) = deque.as_slices(&view)?;
        assert!(first.iter().chain(second).eq(&model));
        drop(view);
        assert_eq!(pool.check()?.values.map(|values| values.findings.len()), Some(0));
    }
    pool.write(|tx| -> Result<()> {
        deque.destroy(tx)?;
        units.destroy(tx)?;
        assert!(matches!(deque.push_back(tx, 1), Err(Error::Dangling { .. })));
        Ok(())
    })
}

/// Words that compare as they like: the queue may give them in any order, but gives each once.
#[test]
fn an_order_that_contradicts_itself_loses_no_value() -> Result<()> {
    #[derive(cenote::Persist, Clone, Copy, PartialEq, Eq, Debug)]
    #[persist(name = "sets::Odd")]
    struct Odd(u64);
    impl PartialOrd for Odd {
        fn partial_cmp(&self, other: &Self) -> Option<std::cmp::Ordering> {
            Some(self.cmp(other))
        }
    }
    impl Ord for Odd {
        fn cmp(&self, other: &Self) -> std::cmp::Ordering {
            (self.0 * 7 + other.0 * 3).cmp(&(self.0 ^ (other.0 * 5)))
        }
    }
    let directory = directory();
    let pool = pool(directory.path());
    pool.write(|tx| -> Result<()> {
        let queue = BinaryHeap::from_iter(tx, (0..300).map(Odd))?;
        let mut all = Vec::new();
        while let Some(Odd(value)) = queue.pop(tx)? {
            all.push(value);
        }
        all.sort_unstable();
        assert!(all.into_iter().eq(0..300));
        let map = BTreeMap::from_sorted(tx, (0..300).map(|n| (Odd(n), n)))?;
        assert!(map.iter(tx)?.count() == map.len(tx)? && map.len(tx)? <= 300);
        Ok(())
    })
}

/// Entries of the map and of the model are the same, and stay so while both change.
fn changes(tx: &mut Tx<'_>, map: BTreeMap<u64, u64>, count: u64) -> Result<()> {
    let mut model: std_collections::BTreeMap<u64, u64> = (0..count).map(|n| (2 * n, n)).collect();
    assert!(map.iter(tx)?.eq(&model), "{count}");
    assert!(map.iter(tx)?.rev().eq(model.iter().rev()), "{count}");
    let mut random = Random(count);
    for step in 0..40.min(2 * count) {
        let key = random.below(2 * count + 2);
        assert_eq!(map.get(tx, &key)?, model.get(&key), "{count}");
        match random.below(3) {
            0 => assert_eq!(map.insert(tx, key, step)?, model.insert(key, step)),
            1 => assert_eq!(map.remove(tx, &key)?, model.remove(&key)),
            _ => assert_eq!(map.pop_last(tx)?, model.pop_last()),
        }
    }
    assert!(map.iter(tx)?.eq(&model), "{count}");
    // Nodes merge until none is left.
    while let Some(first) = model.pop_first() {
        assert_eq!(map.pop_first(tx)?, Some(first));
    }
    assert!(map.is_empty(tx)?);
    Ok(())
}

#[test]
fn a_map_of_sorted_entries_is_as_one_of_inserted_ones() -> Result<()> {
    let directory = directory();
    let pool = pool(directory.path());
    let counts = (0..64).chain([224, 225, 226, 239, 240, 241, 255, 256, 3600, 3601, 5000]);
    for count in counts {
        let map = pool.write(|tx| -> Result<_> {
            let map = BTreeMap::from_sorted(tx, (0..count).map(|n| (2 * n, n)))?;
            let root = tx.alloc(map)?;
            tx.set_root(root)?;
            Ok(map)
        })?;
        let report = pool.check()?;
        assert!(report.values.as_ref().is_some_and(|values| values.findings.is_empty()), "{count}");
        pool.write(|tx| changes(tx, map, count))?;
        pool.write(|tx| -> Result<()> {
            map.destroy(tx)?;
            if let Some(root) = tx.root::<BTreeMap<u64, u64>>()? {
                tx.free(root)?;
            }
            tx.set_root_at::<u64>(0, None)
        })?;
        assert_eq!(pool.check()?.values.map(|values| values.findings.len()), Some(0));
    }
    Ok(())
}

#[test]
fn what_is_not_sorted_is_inserted() -> Result<()> {
    let directory = directory();
    let pool = pool(directory.path());
    pool.write(|tx| -> Result<()> {
        let keys = [1, 4, 4, 9, 2, 30, 4].into_iter().chain(31..100);
        let entries: Vec<(u64, usize)> = keys.enumerate().map(|(at, key)| (key, at)).collect();
        let model: std_collections::BTreeMap<u64, usize> = entries.iter().copied().collect();
        let map = BTreeMap::from_sorted(tx, entries)?;
        assert!(map.iter(tx)?.eq(&model), "of entries with one key the last counts");
        let set = BTreeSet::from_sorted(tx, [3_u64, 1, 2])?;
        assert!(set.iter(tx)?.eq(&[1, 2, 3]));
        Ok(())
    })
}

/// Bytes of the log at level `power`.
fn logged(pool: &cenote::Pool, body: impl FnOnce(&mut Tx<'_>) -> Result<()>) -> u64 {
    let before = counters::snapshot();
    pool.write(body).expect("a commit");
    (counters::snapshot() - before).streamed_bytes
}

#[test]
fn sorted_entries_cost_the_log_an_allocation_for_each_node() -> Result<()> {
    let directory = directory();
    let pool = power_pool(directory.path());
    // So that the heap has superblocks, and the log a thread.
    let warm = |tx: &mut Tx<'_>| -> Result<()> {
        BTreeMap::from_sorted(tx, (0..2000_u64).map(|n| (n, n)))?.destroy(tx)
    };
    pool.write(warm)?;
    let entries = || (0..900_u64).map(|n| (n, n));
    let blocks = pool.stats()?.blocks;
    let sorted = logged(&pool, |tx| BTreeMap::from_sorted(tx, entries()).map(drop));
    let blocks = pool.stats()?.blocks - blocks;
    let inserted = logged(&pool, |tx| BTreeMap::from_iter(tx, entries()).map(drop));
    // Header, 60 leaves, 4 nodes above them, and the root. An allocation takes 64 bytes, as does
    // the seal.
    assert_eq!(blocks, 1 + 60 + 4 + 1);
    assert!(sorted <= (blocks + 1) * 64, "no entry is logged: {sorted}");
    // Nodes of this transaction are not logged: rising keys cost the log the same one by one.
    assert_eq!(inserted, sorted);
    let shuffled = (0..900_u64).map(|n| (n * 7919 % 900, n));
    let shuffled = logged(&pool, |tx| BTreeMap::from_iter(tx, shuffled).map(drop));
    assert!(shuffled > sorted * 5 / 4, "{shuffled}");
    // One by one, as a program does that commits each.
    let map = pool.write(BTreeMap::<u64, u64>::new)?;
    let mut each = 0;
    for (key, value) in entries() {
        each += logged(&pool, |tx| map.insert(tx, key, value).map(drop));
    }
    assert!(each > 40 * sorted, "{each}");
    println!("{sorted} bytes sorted, {shuffled} shuffled, {each} in a transaction each");
    Ok(())
}

#[test]
fn an_iterator_that_panics_leaves_no_map() -> Result<()> {
    let directory = directory();
    let pool = pool(directory.path());
    let blocks = pool.stats()?.blocks;
    let panicked = std::panic::catch_unwind(std::panic::AssertUnwindSafe(|| {
        pool.write(|tx| {
            let entries =
                (0..100_u64).map(|n| if n == 77 { panic!("by the test") } else { (n, n) });
            BTreeMap::from_sorted(tx, entries).map(drop)
        })
    }));
    assert!(panicked.is_err());
    assert_eq!(pool.stats()?.blocks, blocks);
    // A list of sets: handles are values.
    let list = pool.write(|tx| -> Result<_> {
        let list = List::<BTreeSet<u64>>::new(tx)?;
        let set = BTreeSet::from_sorted(tx, 0..10)?;
        list.push_back(tx, set)?;
        Ok(list)
    })?;
    let view = pool.read()?;
    assert_eq!(list.front(&view)?.map(|set| set.len(&view)).transpose()?, Some(10));
    Ok(())
}
