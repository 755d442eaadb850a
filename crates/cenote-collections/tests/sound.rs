//! Handles that are stale, keys that lie or panic, errors that the caller ignores, pools that are
//! mixed up: errors and odd results, and a sound heap in every case.

use crate::common::{assert_sound, directory, pool, random};
use cenote::{Error, Persist, Pool, Reader, Store};
use cenote_collections::{BTreeMap, ForwardList, HashMap, InlineStr, List, String, Vec};
use std::cell::Cell;
use std::cmp::Ordering;
use std::hash::{Hash, Hasher};
use std::panic::{AssertUnwindSafe, catch_unwind};

fn is_dangling<T>(result: cenote::Result<T>) -> bool {
    matches!(result, Err(Error::Dangling { .. }))
}

type OneOfEach =
    (List<u64>, ForwardList<u64>, BTreeMap<u64, u64>, HashMap<u64, u64>, Vec<u64>, String);

/// Everything that takes a handle refuses a stale one.
fn assert_stale(pool: &Pool, (list, forward, tree, hash, vec, text): OneOfEach) {
    pool.write(|tx| -> cenote::Result<()> {
        assert!(
            is_dangling(list.push_back(tx, 1))
                && is_dangling(list.pop_front(tx))
                && is_dangling(list.clear(tx))
        );
        assert!(
            is_dangling(list.iter(tx))
                && is_dangling(list.destroy(tx))
                && is_dangling(list.cursor_front_mut(tx))
        );
        assert!(is_dangling(list.split_off(tx, 0)) && is_dangling(list.append(tx, list)));
        assert!(
            is_dangling(forward.push_front(tx, 1))
                && is_dangling(forward.destroy(tx))
                && is_dangling(forward.iter(tx))
        );
        assert!(
            is_dangling(tree.insert(tx, 1, 1))
                && is_dangling(tree.remove(tx, &1))
                && is_dangling(tree.get(tx, &1))
        );
        assert!(
            is_dangling(tree.range(tx, 1..))
                && is_dangling(tree.destroy(tx))
                && is_dangling(tree.pop_first(tx))
        );
        assert!(
            is_dangling(hash.insert(tx, 1, 1))
                && is_dangling(hash.remove(tx, &1))
                && is_dangling(hash.get(tx, &1))
        );
        assert!(
            is_dangling(hash.iter(tx))
                && is_dangling(hash.destroy(tx))
                && is_dangling(hash.get_mut(tx, &1))
        );
        assert!(
            is_dangling(vec.push(tx, 1))
                && is_dangling(vec.as_slice(tx))
                && is_dangling(vec.destroy(tx))
        );
        assert!(
            is_dangling(text.push_str(tx, "x"))
                && is_dangling(text.as_str(tx))
                && is_dangling(text.destroy(tx))
        );
        Ok(())
    })
    .unwrap();
}

fn some_of_each(tx: &mut cenote::Tx<'_>) -> cenote::Result<OneOfEach> {
    let all = (
        List::new(tx)?,
        ForwardList::new(tx)?,
        BTreeMap::new(tx)?,
        HashMap::new(tx)?,
        Vec::new(tx)?,
        String::from_str(tx, "some")?,
    );
    for i in 0..40 {
        all.0.push_back(tx, i)?;
        all.1.push_back(tx, i)?;
        all.2.insert(tx, i, i)?;
        all.3.insert(tx, i, i)?;
        all.4.push(tx, i)?;
    }
    Ok(all)
}

#[test]
fn a_handle_from_an_aborted_transaction_is_refused() {
    let directory = directory();
    let pool = pool(directory.path());
    let mut kept = None;
    let result: cenote::Result<()> = pool.write(|tx| {
        kept = Some(some_of_each(tx)?);
        Err(Error::Aborted("to see what is left".into()))
    });
    assert!(matches!(result, Err(Error::Aborted(_))));
    assert_stale(&pool, kept.unwrap());
    assert_eq!(pool.stats().unwrap().blocks, 0);
}

#[test]
fn a_destroyed_collection_is_refused_in_the_same_transaction_and_after() {
    let directory = directory();
    let pool = pool(directory.path());
    let kept = pool.write(some_of_each).unwrap();
    let (list, forward, tree, hash, vec, text) = kept;
    let destroy = |abort: bool| {
        pool.write(|tx| -> cenote::Result<()> {
            list.destroy(tx)?;
            forward.destroy(tx)?;
            tree.destroy(tx)?;
            hash.destroy(tx)?;
            vec.destroy(tx)?;
            text.destroy(tx)?;
            assert!(is_dangling(list.push_back(tx, 1)) && is_dangling(list.destroy(tx)));
            assert!(is_dangling(forward.push_back(tx, 1)) && is_dangling(tree.insert(tx, 1, 1)));
            assert!(
                is_dangling(hash.insert(tx, 1, 1))
                    && is_dangling(vec.push(tx, 1))
                    && is_dangling(text.as_str(tx))
            );
            if abort { Err(Error::Aborted("not yet".into())) } else { Ok(()) }
        })
    };
    assert!(matches!(destroy(true), Err(Error::Aborted(_))));
    let view = pool.read().unwrap();
    assert!(list.iter(&view).unwrap().copied().eq(0..40), "an abort brings it back");
    assert!(tree.keys(&view).unwrap().copied().eq(0..40));
    assert_eq!((hash.len(&view).unwrap(), text.as_str(&view).unwrap()), (40, "some"));
    drop(view);
    destroy(false).unwrap();
    assert_stale(&pool, kept);
    assert_eq!(pool.stats().unwrap().blocks, 0);
}

#[test]
fn a_stale_handle_whose_place_is_used_again_names_the_other_collection_or_none() {
    let directory = directory();
    let pool = pool(directory.path());
    let old = pool.write(Vec::<u8>::new).unwrap();
    pool.write(|tx| old.destroy(tx)).unwrap();
    // Strings have headers of a type of their own, so no `Vec<u8>` can ever reach the bytes of a
    // text.
    let texts: std::vec::Vec<String> = pool
        .write(|tx| (0..100).map(|_| String::from_str(tx, "text")).collect::<cenote::Result<_>>())
        .unwrap();
    assert!(is_dangling(pool.write(|tx| old.push(tx, 0xff))));
    let vecs: std::vec::Vec<Vec<u8>> =
        pool.write(|tx| (0..100).map(|_| Vec::new(tx)).collect::<cenote::Result<_>>()).unwrap();
    if pool.write(|tx| old.push(tx, 7)).is_ok() {
        let view = pool.read().unwrap();
        assert_eq!(vecs.iter().map(|vec| vec.len(&view).unwrap()).sum::<usize>(), 1);
    }
    let view = pool.read().unwrap();
    assert!(texts.iter().all(|text| text.as_str(&view).unwrap() == "text"));
}

thread_local! {
    /// Comparisons and hashes until one panics.
    static FUSE: Cell<u64> = const { Cell::new(u64::MAX) };
    /// Whether comparisons and hashes give random answers.
    static LIES: Cell<u64> = const { Cell::new(0) };
}

fn burn() {
    FUSE.with(|fuse| match fuse.get() {
        0 => std::panic::resume_unwind(Box::new("fuse")),
        n => fuse.set(n - 1),
    });
}

/// A random number if keys lie.
fn lie() -> Option<u64> {
    LIES.with(|lies| {
        let mut seed = lies.get();
        let lie = (seed != 0).then(|| random(&mut seed));
        lies.set(seed);
        lie
    })
}

#[derive(Persist, Clone, Copy, Debug)]
struct Awkward(u64);

impl PartialEq for Awkward {
    fn eq(&self, other: &Self) -> bool {
        burn();
        lie().map_or(self.0 == other.0, |lie| lie % 4 == 0)
    }
}

impl Eq for Awkward {}

impl PartialOrd for Awkward {
    fn partial_cmp(&self, other: &Self) -> Option<Ordering> {
        Some(self.cmp(other))
    }
}

impl Ord for Awkward {
    fn cmp(&self, other: &Self) -> Ordering {
        burn();
        lie().map_or(self.0.cmp(&other.0), |lie| (lie % 7).cmp(&3))
    }
}

impl Hash for Awkward {
    fn hash<H: Hasher>(&self, state: &mut H) {
        burn();
        lie().unwrap_or(self.0).hash(state);
    }
}

/// Both maps, in one root so that nothing of them is a leak.
#[derive(Persist, Clone, Copy)]
struct Maps {
    tree: BTreeMap<Awkward, u64>,
    hash: HashMap<Awkward, u64>,
}

fn maps(pool: &Pool) -> Maps {
    pool.write(|tx| -> cenote::Result<_> {
        let maps = Maps { tree: BTreeMap::new(tx)?, hash: HashMap::new(tx)? };
        let root = tx.alloc(maps)?;
        tx.set_root(root)?;
        Ok(maps)
    })
    .unwrap()
}

/// A key that panics in the middle of an operation; the panic is caught inside the transaction,
/// which then commits: the operation has not happened.
#[test]
fn a_panicking_key_leaves_the_maps_as_they_were() {
    let directory = directory();
    let pool = pool(directory.path());
    let Maps { tree, hash } = maps(&pool);
    let mut seed = 5;
    let mut model = std::collections::BTreeMap::new();
    for round in 0..1500 {
        let key = random(&mut seed) % 300;
        let fuse = random(&mut seed) % 24;
        let insert = !random(&mut seed).is_multiple_of(3);
        pool.write(|tx| -> cenote::Result<()> {
            FUSE.set(fuse);
            let in_tree = catch_unwind(AssertUnwindSafe(|| match insert {
                true => tree.insert(tx, Awkward(key), round),
                false => tree.remove(tx, &Awkward(key)),
            }));
            FUSE.set(fuse);
            let in_hash = catch_unwind(AssertUnwindSafe(|| match insert {
                true => hash.insert(tx, Awkward(key), round),
                false => hash.remove(tx, &Awkward(key)),
            }));
            FUSE.set(u64::MAX);
            // Where one panicked and the other did not, the other is done by hand.
            let old = model.get(&key).copied();
            match (in_tree, in_hash) {
                (Err(_), Err(_)) => return Ok(()),
                (Ok(in_tree), Ok(in_hash)) => assert_eq!((in_tree?, in_hash?), (old, old)),
                (Ok(in_tree), Err(_)) => {
                    assert_eq!(in_tree?, old);
                    let again = if insert {
                        hash.insert(tx, Awkward(key), round)?
                    } else {
                        hash.remove(tx, &Awkward(key))?
                    };
                    assert_eq!(again, old);
                }
                (Err(_), Ok(in_hash)) => {
                    assert_eq!(in_hash?, old);
                    let again = if insert {
                        tree.insert(tx, Awkward(key), round)?
                    } else {
                        tree.remove(tx, &Awkward(key))?
                    };
                    assert_eq!(again, old);
                }
            }
            if insert {
                model.insert(key, round);
            } else {
                model.remove(&key);
            }
            Ok(())
        })
        .unwrap();
    }
    let view = pool.read().unwrap();
    assert!(
        tree.iter(&view).unwrap().map(|(k, v)| (k.0, *v)).eq(model.iter().map(|(k, v)| (*k, *v)))
    );
    let in_hash: std::collections::BTreeMap<_, _> =
        hash.iter(&view).unwrap().map(|(k, v)| (k.0, *v)).collect();
    assert_eq!(in_hash, model);
    drop(view);
    assert_sound(&pool);
}

/// Keys that answer at random: entries are lost and found, and blocks are exactly those that the
/// maps reach.
#[test]
fn lying_keys_break_no_structure() {
    let directory = directory();
    let pool = pool(directory.path());
    let Maps { tree, hash } = maps(&pool);
    for start in 1..12 {
        LIES.set(start);
        let mut seed = start;
        pool.write(|tx| -> cenote::Result<()> {
            for i in 0..1500 {
                let key = Awkward(random(&mut seed) % 500);
                if random(&mut seed) % 5 < if i < 900 { 4 } else { 1 } {
                    tree.insert(tx, key, i)?;
                    hash.insert(tx, key, i)?;
                } else {
                    tree.remove(tx, &key)?;
                    hash.remove(tx, &key)?;
                }
                let (a, b) = (Awkward(random(&mut seed) % 500), Awkward(random(&mut seed) % 500));
                let mut range = tree.range(tx, a..b)?;
                assert!(range.by_ref().take(5).count() <= 5);
                range.rev().take(2000).for_each(drop);
            }
            assert_eq!(tree.iter(tx)?.count(), tree.len(tx)?);
            assert_eq!(tree.iter(tx)?.rev().count(), tree.len(tx)?);
            assert_eq!(hash.iter(tx)?.count(), hash.len(tx)?);
            Ok(())
        })
        .unwrap();
        LIES.set(0);
        assert_sound(&pool);
    }
    pool.write(|tx| -> cenote::Result<()> {
        tree.clear(tx)?;
        hash.clear(tx)
    })
    .unwrap();
    assert_eq!(pool.stats().unwrap().blocks, 3, "the root and two headers");
}

#[test]
fn panicking_closures_leave_collections_whole() {
    let directory = directory();
    let pool = pool(directory.path());
    let (list, forward, tree, hash, vec, _) = pool.write(some_of_each).unwrap();
    let at = |limit: u64| {
        let mut n = 0;
        move || {
            n += 1;
            assert!(n <= limit, "asked for");
            n % 2 == 0
        }
    };
    pool.write(|tx| -> cenote::Result<()> {
        for limit in [0, 7, 20] {
            let mut keep = at(limit);
            assert!(catch_unwind(AssertUnwindSafe(|| list.retain(tx, |_| keep()))).is_err());
            let mut keep = at(limit);
            assert!(catch_unwind(AssertUnwindSafe(|| forward.retain(tx, |_| keep()))).is_err());
            let mut keep = at(limit);
            assert!(catch_unwind(AssertUnwindSafe(|| tree.retain(tx, |_, _| keep()))).is_err());
            let mut keep = at(limit);
            assert!(catch_unwind(AssertUnwindSafe(|| hash.retain(tx, |_, _| keep()))).is_err());
            let mut keep = at(limit);
            assert!(catch_unwind(AssertUnwindSafe(|| vec.retain(tx, |_| keep()))).is_err());
        }
        assert_eq!(
            (tree.len(tx)?, vec.len(tx)?),
            (40, 40),
            "all is looked at before anything changes"
        );
        assert_eq!(list.iter(tx)?.count(), list.len(tx)?);
        assert_eq!(list.iter(tx)?.rev().count(), list.len(tx)?);
        assert_eq!(forward.iter(tx)?.count(), forward.len(tx)?);
        assert_eq!(hash.iter(tx)?.count(), hash.len(tx)?);
        Ok(())
    })
    .unwrap();
}

#[test]
fn a_collection_lies_in_one_pool_and_other_pools_refuse_it() {
    let directory = directory();
    let store = Store::open(directory.path()).unwrap();
    let (a, b) = (store.pool("a").unwrap(), store.pool("b").unwrap());
    let in_a = a.write(List::<u64>::new).unwrap();
    let in_b = b.write(List::<u64>::new).unwrap();
    assert!(is_dangling(in_b.len(&a.read().unwrap())));
    assert!(is_dangling(a.write(|tx| in_b.push_back(tx, 1))));
    a.write(|tx| in_a.extend(tx, 0..10)).unwrap();
    store
        .write(&[&a, &b], |tx| -> cenote::Result<()> {
            // Nodes go to the pool of their list, not to the transaction's first pool.
            in_b.extend(tx, 10..20)?;
            in_b.append(tx, in_a)
        })
        .unwrap();
    let view = b.read().unwrap();
    assert!(in_b.iter(&view).unwrap().copied().eq((10..20).chain(0..10)));
    assert!(
        in_b.iter(&view)
            .unwrap()
            .all(|value| b.heap().owner(std::ptr::from_ref(value).addr() as u64).is_some())
    );
    drop(view);
    assert!(in_a.is_empty(&a.read().unwrap()).unwrap());
    assert_eq!((a.stats().unwrap().blocks, b.stats().unwrap().blocks), (1, 21));
}

#[derive(Persist, Clone, Copy, Debug, PartialEq)]
#[repr(C, align(64))]
struct Aligned(u64);

#[derive(Persist)]
struct Nested {
    children: List<Nested>,
    names: HashMap<InlineStr<15>, String>,
}

/// Elements of more bytes than a node has room for.
fn are_large(tx: &mut cenote::Tx<'_>) -> cenote::Result<()> {
    let large = BTreeMap::<u64, [u64; 300]>::new(tx)?;
    let hash = HashMap::<u64, [u64; 300]>::new(tx)?;
    for i in 0..60 {
        large.insert(tx, i, [i; 300])?;
        hash.insert(tx, i, [i; 300])?;
    }
    (0..60).try_for_each(|i| {
        assert_eq!(large.remove(tx, &i)?, Some([i; 300]));
        assert_eq!(hash.remove(tx, &i)?, Some([i; 300]));
        Ok(())
    })
}

#[test]
fn elements_may_be_empty_aligned_large_or_collections() {
    let directory = directory();
    let pool = pool(directory.path());
    pool.write(|tx| -> cenote::Result<()> {
        let empty = (
            List::<()>::new(tx)?,
            Vec::<()>::new(tx)?,
            BTreeMap::<u64, ()>::new(tx)?,
            HashMap::<u64, ()>::new(tx)?,
        );
        for i in 0..100 {
            empty.0.push_back(tx, ())?;
            empty.1.push(tx, ())?;
            assert_eq!(empty.2.insert(tx, i, ())?, None);
            assert_eq!(empty.3.insert(tx, i, ())?, None);
        }
        assert_eq!((empty.0.iter(tx)?.count(), empty.1.len(tx)?), (100, 100));
        assert_eq!(empty.1.pop(tx)?, Some(()));
        assert_eq!((empty.2.remove(tx, &7)?, empty.3.remove(tx, &7)?), (Some(()), Some(())));

        let aligned = (
            Vec::<Aligned>::new(tx)?,
            BTreeMap::<u64, Aligned>::new(tx)?,
            HashMap::<u64, Aligned>::new(tx)?,
        );
        for i in 0..100 {
            aligned.0.push(tx, Aligned(i))?;
            aligned.1.insert(tx, i, Aligned(i))?;
            aligned.2.insert(tx, i, Aligned(i))?;
        }
        for i in 0..100 {
            for found in
                [aligned.0.get(tx, i as usize)?, aligned.1.get(tx, &i)?, aligned.2.get(tx, &i)?]
            {
                let found = found.expect("inserted");
                assert_eq!(*found, Aligned(i));
                assert_eq!(std::ptr::from_ref(found).addr() % 64, 0);
            }
        }

        are_large(tx)?;
        let top = List::<Nested>::new(tx)?;
        let inner = Nested { children: List::new(tx)?, names: HashMap::new(tx)? };
        let name = String::from_str(tx, "a text on the heap")?;
        inner.names.insert(tx, InlineStr::try_from("name").expect("short"), name)?;
        top.push_back(tx, inner)?;
        let root = tx.alloc(top)?;
        tx.set_root(root)
    })
    .unwrap();
    // What hangs at the root is alive, through three levels of collections; the rest goes.
    pool.collect().unwrap();
    assert_sound(&pool);
    let view = pool.read().unwrap();
    let top = view.get(view.root::<List<Nested>>().unwrap().unwrap()).unwrap();
    let inner = top.front(&view).unwrap().unwrap();
    let name = inner.names.get(&view, "name").unwrap().unwrap();
    assert_eq!(name.as_str(&view).unwrap(), "a text on the heap");
    assert!(inner.children.is_empty(&view).unwrap());
}

#[test]
fn positions_and_texts_that_are_not_there_are_errors() {
    let directory = directory();
    let pool = pool(directory.path());
    pool.write(|tx| -> cenote::Result<()> {
        let vec = Vec::<u64>::with_capacity(tx, 3)?;
        assert!(vec.capacity(tx)? >= 3 && vec.is_empty(tx)?);
        assert!(matches!(vec.insert(tx, 1, 1), Err(Error::OutOfBounds { index: 1, len: 0 })));
        assert!(matches!(vec.remove(tx, 0), Err(Error::OutOfBounds { .. })));
        assert!(matches!(vec.swap(tx, 0, 0), Err(Error::OutOfBounds { .. })));
        assert!(matches!(vec.replace(tx, 0, 1), Err(Error::OutOfBounds { .. })));
        assert!(matches!(vec.reserve(tx, usize::MAX), Err(Error::OutOfBounds { .. })));
        assert!(vec.get_mut(tx, 0)?.is_none() && vec.pop(tx)?.is_none());
        let list = List::<u64>::new(tx)?;
        assert!(matches!(list.split_off(tx, 1), Err(Error::OutOfBounds { index: 1, len: 0 })));
        let text = String::from_str(tx, "aö")?;
        assert!(matches!(text.truncate(tx, 2), Err(Error::CharBoundary { index: 2 })));
        text.truncate(tx, 1)?;
        assert_eq!(text.as_str(tx)?, "a");
        Ok(())
    })
    .unwrap();
}

/// A place that is not in use is zero, so a tracer that goes over whole nodes finds no pointer to
/// what was removed and freed.
#[test]
fn what_was_removed_leaves_no_pointer_behind() {
    let directory = directory();
    let pool = pool(directory.path());
    #[derive(Persist, Clone, Copy)]
    struct Roots {
        tree: BTreeMap<u64, List<u64>>,
        hash: HashMap<u64, List<u64>>,
        vec: Vec<List<u64>>,
    }
    let roots = pool
        .write(|tx| -> cenote::Result<_> {
            let roots =
                Roots { tree: BTreeMap::new(tx)?, hash: HashMap::new(tx)?, vec: Vec::new(tx)? };
            let root = tx.alloc(roots)?;
            tx.set_root(root)?;
            Ok(roots)
        })
        .unwrap();
    let mut seed = 9;
    for round in 0..40 {
        pool.write(|tx| -> cenote::Result<()> {
            for _ in 0..60 {
                let key = random(&mut seed) % 200;
                let insert = random(&mut seed) % 100 < if round % 10 < 6 { 75 } else { 20 };
                let (in_tree, in_hash) = if insert {
                    let (a, b, c) = (List::new(tx)?, List::new(tx)?, List::new(tx)?);
                    let at = random(&mut seed) as usize % (roots.vec.len(tx)? + 1);
                    roots.vec.insert(tx, at, c)?;
                    (roots.tree.insert(tx, key, a)?, roots.hash.insert(tx, key, b)?)
                } else {
                    let len = roots.vec.len(tx)?;
                    if len > 0 {
                        let at = random(&mut seed) as usize % len;
                        let list = if key.is_multiple_of(2) {
                            roots.vec.remove(tx, at)?
                        } else {
                            roots.vec.swap_remove(tx, at)?
                        };
                        list.destroy(tx)?;
                    }
                    (roots.tree.remove(tx, &key)?, roots.hash.remove(tx, &key)?)
                };
                for list in [in_tree, in_hash].into_iter().flatten() {
                    list.destroy(tx)?;
                }
            }
            let keep = roots.vec.len(tx)? / 2;
            if round % 10 == 9 {
                let rest = roots.vec.as_slice(tx)?[keep..].to_vec();
                for list in rest {
                    list.destroy(tx)?;
                }
                roots.vec.truncate(tx, keep)?;
                for list in [
                    roots.tree.values(tx)?.copied().collect::<std::vec::Vec<_>>(),
                    roots.hash.values(tx)?.copied().collect(),
                ]
                .concat()
                {
                    list.destroy(tx)?;
                }
                roots.tree.retain(tx, |_, _| false)?;
                roots.hash.retain(tx, |_, _| false)?;
            }
            Ok(())
        })
        .unwrap();
        assert_sound(&pool);
    }
}
