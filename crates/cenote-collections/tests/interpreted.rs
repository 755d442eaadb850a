//! All layers on the simulated medium, few operations each, so that Miri can run them
//! (`scripts/miri.sh`): every collection, an abort, a process that dies in a transaction, a leak
//! that is collected, threads, a value with padding.

use cenote::{
    Durability, Error, OpenOptions, Persist, Pool, PoolOptions, Ptr, Reader, ReclaimRefused,
    Result, Store,
};
use cenote_collections::{BTreeMap, ForwardList, HashMap, List, String, Vec};
use cenote_medium::Medium;
use cenote_medium::sim::{CrashKind, SimMedium, SimOptions};
use cenote_store::FormatOptions;
use std::sync::Arc;

const WINDOW_LEN: u64 = 1 << 28;

/// A store that keeps no history: nothing is compared at each flush.
fn formatted() -> Result<Arc<SimMedium>> {
    formatted_for(Durability::Process)
}

fn formatted_for(durability: Durability) -> Result<Arc<SimMedium>> {
    let base = cenote_sys::memory::find_free(WINDOW_LEN as usize, 1 << 30).expect("addresses");
    let options = SimOptions { record: false, ..SimOptions::new(durability) };
    let sim = SimMedium::new(options);
    let format =
        FormatOptions { window_base: Some(base as u64), window_len: WINDOW_LEN, uuid: None };
    cenote_store::format(sim.clone(), &format)?;
    Ok(sim)
}

fn open(sim: Arc<dyn Medium>) -> Result<(Store, Pool)> {
    let options = OpenOptions { log_puddle_size: 8 << 10, ..OpenOptions::default() };
    let store = Store::open_on(sim, &options)?;
    let small = PoolOptions { puddle_size: 3 << 16, ..PoolOptions::default() };
    let pool = store.pool("p").or_else(|_| store.create_pool("p", &small))?;
    Ok((store, pool))
}

fn assert_sound(pool: &Pool) -> Result<()> {
    let report = pool.check()?;
    assert!(report.is_sound(), "{report:?}");
    Ok(())
}

#[derive(Persist)]
#[persist(name = "interpreted::Sequences")]
struct Sequences {
    list: List<u64>,
    forward: ForwardList<u64>,
    vec: Vec<u64>,
    text: String,
}

#[test]
fn sequences_hold_what_was_put_into_them_after_a_reopen() -> Result<()> {
    let sim = formatted()?;
    let (store, pool) = open(sim.clone())?;
    pool.write(|tx| -> Result<()> {
        let root = Sequences {
            list: List::from_iter(tx, 0..3)?,
            forward: ForwardList::from_iter(tx, 0..3)?,
            vec: Vec::from_iter(tx, 0..3)?,
            text: String::from_str(tx, "ab")?,
        };
        let Sequences { list, forward, vec, text } = root;
        let root = tx.alloc(root)?;
        tx.set_root(root)?;
        list.push_front(tx, 9)?;
        assert_eq!(list.pop_back(tx)?, Some(2));
        if let Some(first) = list.front_mut(tx)? {
            *first += 1;
        }
        forward.push_back(tx, 7)?;
        assert_eq!(forward.pop_front(tx)?, Some(0));
        vec.insert(tx, 1, 5)?;
        vec.extend_from_slice(tx, &[6, 7])?;
        vec.as_mut_slice(tx)?[0] = 8;
        assert_eq!(vec.remove(tx, 2)?, 1);
        text.push_str(tx, "cdefghijklmnopqrstuvwxyz")
    })?;
    drop((pool, store));
    let (_store, pool) = open(sim)?;
    {
        let view = pool.read()?;
        let root = view.root::<Sequences>()?.expect("a root");
        let Sequences { list, forward, vec, text } = *view.get(root)?;
        assert_eq!(list.iter(&view)?.copied().collect::<std::vec::Vec<_>>(), [10, 0, 1]);
        assert_eq!(forward.iter(&view)?.copied().collect::<std::vec::Vec<_>>(), [1, 2, 7]);
        assert_eq!(vec.as_slice(&view)?, [8, 5, 2, 6, 7]);
        assert_eq!(text.as_str(&view)?, "abcdefghijklmnopqrstuvwxyz");
    }
    assert_sound(&pool)
}

#[derive(Persist)]
#[persist(name = "interpreted::Maps")]
struct Maps {
    tree: BTreeMap<u64, u64>,
    hash: HashMap<u64, u64>,
}

#[test]
fn maps_hold_what_was_put_into_them_after_an_abort_and_a_crash() -> Result<()> {
    let sim = formatted()?;
    let (store, pool) = open(sim.clone())?;
    let (tree, hash) = pool.write(|tx| -> Result<_> {
        let (tree, hash) = (BTreeMap::new(tx)?, HashMap::with_hash_key(tx, [1, 2])?);
        let root = tx.alloc(Maps { tree, hash })?;
        tx.set_root(root)?;
        for key in 0..5 {
            tree.insert(tx, key * 2 % 5, key)?;
            hash.insert(tx, key, key)?;
        }
        Ok((tree, hash))
    })?;
    let aborted = pool.write(|tx| -> Result<()> {
        tree.remove(tx, &3)?;
        hash.insert(tx, 77, 77)?;
        Err(Error::AsIs)
    });
    assert!(matches!(aborted, Err(Error::AsIs)));
    let image = pool.write(|tx| -> Result<_> {
        tree.insert(tx, 100, 100)?;
        hash.remove(tx, &4)?;
        Ok(sim.image_now(CrashKind::Process))
    })?;
    assert!(pool.read().is_ok_and(|view| tree.get(&view, &100).is_ok_and(|v| v == Some(&100))));
    drop((pool, store));
    // The process died before that commit.
    let (_store, pool) = open(SimMedium::from_image_unrecorded(&image))?;
    {
        let view = pool.read()?;
        let root = view.root::<Maps>()?.expect("a root");
        let Maps { tree, hash } = *view.get(root)?;
        assert!((0..5).all(|key| tree.get(&view, &(key * 2 % 5)).unwrap() == Some(&key)));
        assert!((0..5).all(|key| hash.get(&view, &key).unwrap() == Some(&key)));
        assert_eq!((tree.len(&view)?, hash.len(&view)?), (5, 5));
    }
    assert_sound(&pool)
}

#[derive(Persist)]
#[persist(name = "interpreted::Node")]
struct Node {
    value: u64,
    next: Option<Ptr<Node>>,
}

#[test]
fn what_is_collected_is_dangling_and_never_a_value() -> Result<()> {
    let sim = formatted()?;
    let (_store, pool) = open(sim)?;
    let (kept, leaked) = pool.write(|tx| -> Result<_> {
        let last = tx.alloc(Node { value: 3, next: None })?;
        let leaked = tx.alloc(Node { value: 2, next: Some(last) })?;
        let kept = tx.alloc(Node { value: 1, next: None })?;
        tx.set_root(kept)?;
        Ok((kept, leaked))
    })?;
    pool.collect()?;
    let view = pool.read()?;
    assert_eq!(view.get(kept)?.value, 1);
    assert!(matches!(view.get(leaked), Err(Error::Dangling { .. })));
    Ok(())
}

#[test]
fn threads_write_and_read_one_pool() -> Result<()> {
    let sim = formatted()?;
    let (_store, pool) = open(sim)?;
    let root = pool.write(|tx| -> Result<_> {
        let root = tx.alloc(Node { value: 0, next: None })?;
        tx.set_root(root)?;
        Ok(root)
    })?;
    let rounds = if cfg!(miri) { 1 } else { 3 };
    std::thread::scope(|scope| {
        for _ in 0..2 {
            scope.spawn(|| {
                for _ in 0..rounds {
                    pool.write(|tx| -> Result<()> {
                        let value = tx.get(root)?.value;
                        let next = tx.alloc(Node { value, next: None })?;
                        let node = tx.get_mut(root)?;
                        node.value = value + 1;
                        match node.next.replace(next) {
                            Some(old) => tx.free(old),
                            None => Ok(()),
                        }
                    })
                    .expect("a transaction");
                }
            });
        }
        scope.spawn(|| {
            let view = pool.read().expect("a view");
            let node = view.get(root).expect("the root");
            let next = node.next.map(|next| view.get(next).expect("a node").value + 1);
            assert_eq!(next.unwrap_or(0), node.value);
        });
    });
    assert_eq!(pool.read()?.get(root)?.value, 2 * rounds);
    assert_sound(&pool)
}

/// Miri sees whether a word of a root is stored plainly where another thread loads it.
#[test]
fn a_reclaim_that_begins_while_a_root_is_set_or_put_back_loads_whole_words() -> Result<()> {
    let sim = formatted()?;
    let (_store, pool) = open(sim)?;
    let nodes = pool.write(|tx| -> Result<_> {
        let mut node = |value| tx.alloc(Node { value, next: None });
        let nodes = [node(0)?, node(1)?];
        tx.set_root(nodes[0])?;
        Ok(nodes)
    })?;
    // Two rounds commit, two abort; in Miri one each.
    let (rounds, reclaims) = if cfg!(miri) { (1..3, 1) } else { (0..4, 3) };
    std::thread::scope(|scope| {
        scope.spawn(|| {
            for round in rounds {
                let done = pool.write(|tx| -> Result<()> {
                    tx.set_root(nodes[round % 2])?;
                    if round < 2 { Ok(()) } else { Err(Error::AsIs) }
                });
                assert_eq!(done.is_ok(), round < 2);
            }
        });
        scope.spawn(|| {
            for _ in 0..reclaims {
                let late = pool.reclaim().expect_err("a transaction has run");
                assert!(matches!(late, Error::Reclaim(ReclaimRefused::Late)), "{late}");
            }
        });
    });
    let view = pool.read()?;
    assert_eq!(view.root::<Node>()?, Some(nodes[1]));
    Ok(())
}

#[derive(Clone, Copy, Debug, Persist, PartialEq)]
#[persist(name = "interpreted::Padded")]
#[repr(C)]
struct Padded {
    small: u8,
    word: u64,
}

/// Miri sees whether the log or a hash reads padding as bytes.
#[test]
fn a_value_with_padding_is_logged_hashed_and_put_back() -> Result<()> {
    for durability in [Durability::Process, Durability::Power] {
        let sim = formatted_for(durability)?;
        let (_store, pool) = open(sim.clone())?;
        let value = pool.write(|tx| -> Result<_> {
            let value = tx.alloc(Padded { small: 1, word: 2 })?;
            #[cfg(miri)]
            // SAFETY: the block holds such values as long as the program runs.
            unsafe {
                let at = core::ptr::from_ref(tx.get(value)?).cast::<u8>();
                cenote_sys::bytes::interpreted::name_padding(at.add(1), 7);
            }
            tx.set_root(value)?;
            Ok(value)
        })?;
        let aborted = pool.write(|tx| -> Result<()> {
            *tx.get_mut(value)? = Padded { small: 3, word: 4 };
            Err(Error::AsIs)
        });
        assert!(matches!(aborted, Err(Error::AsIs)));
        assert_eq!(*pool.read()?.get(value)?, Padded { small: 1, word: 2 });
        pool.write(|tx| -> Result<()> {
            *tx.get_mut(value)? = Padded { small: 5, word: 6 };
            Ok(())
        })?;
        assert_eq!(*pool.read()?.get(value)?, Padded { small: 5, word: 6 });
        // The simulation compares memory with its files when it ends, padding too.
        sim.stop_looking();
    }
    Ok(())
}
