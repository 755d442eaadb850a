//! Every crash while a vector and a map remove, overwrite and clear values that own blocks.
//!
//! The oracle: whatever a crash leaves, the store opens, no block has two owners, none has leaked,
//! and the collections are as one of the transactions left them, with all that their values own.
//! What was acknowledged is there. What the oracle wants of each transaction, a run without a crash
//! tells.

use cenote::ptr::FieldOffset;
use cenote::{
    FormatOptions, HeapKind, Owned, Persist, Pool, PoolOptions, Ptr, Reader, Store, field,
};
use cenote_collections::{BTreeMap, Vec as PersistentVec};
use cenote_crashtest::rig::{
    WINDOW_LEN, open_options, pool_options, stay_on_one_processor, window_base,
};
use cenote_medium::planted::{Bug, OwnedBug, plant};
use cenote_medium::sim::{CrashKind, Image, Limits, SimMedium, SimOptions};
use cenote_medium::{Durability, Medium};
use std::collections::HashSet;
use std::sync::Arc;

#[derive(Persist, Clone, Copy)]
#[persist(name = "owned_entries::Root")]
struct Root {
    vec: PersistentVec<Owned<Tree>>,
    map: BTreeMap<u64, (u64, Owned<Tree>)>,
}

#[derive(Persist)]
#[persist(name = "owned_entries::Tree", owned)]
struct Tree {
    value: u64,
    below: [Owned<Tree>; 2],
}

#[derive(Clone, Copy, Debug)]
struct Case {
    heap: HeapKind,
    level: Durability,
    place: usize,
}

/// What the collections hold: values of trees, by vector and map, and blocks of the pool.
type Contents = (Vec<Vec<u64>>, Vec<(u64, Vec<u64>)>, u64);

#[derive(Debug, Default)]
struct Tally {
    images: u64,
    waiting: u64,
    /// Images that hold what each transaction left.
    left: [u64; 8],
}

fn text(error: impl std::fmt::Display) -> String {
    error.to_string()
}

fn opened(sim: &Arc<SimMedium>) -> Result<Store, String> {
    let medium: Arc<dyn Medium> = sim.clone();
    Store::open_on(medium, &open_options()).map_err(text)
}

fn tree(value: u64) -> Tree {
    Tree { value, below: [Owned::EMPTY, Owned::EMPTY] }
}

/// A vector of trees of three, one and no blocks, and a map of 18 keys, in two leaves: every second
/// one owns a tree, of two blocks or of one.
fn base_image(case: Case) -> Result<Image, String> {
    let sim = SimMedium::new(SimOptions::new(case.level));
    let window = Some(window_base(9400 + case.place));
    let format = FormatOptions { window_base: window, window_len: WINDOW_LEN, uuid: None };
    cenote_store::format(sim.clone(), &format).map_err(text)?;
    let store = opened(&sim)?;
    let options = PoolOptions { heap: case.heap, ..pool_options(4) };
    let pool = store.create_pool("p", &options).map_err(text)?;
    let filled = pool.write(|tx| -> cenote::Result<()> {
        let root = Root { vec: PersistentVec::new(tx)?, map: BTreeMap::new(tx)? };
        let [left, right] = [0, 1].map(|at| field!(Tree, below).element(at).expect("one of two"));
        for value in [10, 20, 30] {
            root.vec.push(tx, Owned::EMPTY)?;
            if value == 30 {
                continue;
            }
            let at = root.vec.len(tx)? - 1;
            let top = root.vec.put_owned(tx, at, FieldOffset::whole(), tree(value))?;
            if value == 10 {
                tx.put_owned(top, left, tree(11))?;
                tx.put_owned(top, right, tree(12))?;
            }
        }
        for key in 0..18_u64 {
            root.map.insert(tx, key, (key, Owned::EMPTY))?;
            if key % 2 == 0 {
                let edge = field!((u64, Owned<Tree>), 1);
                let top = root.map.put_owned(tx, &key, edge, tree(100 + key))?.expect("inserted");
                if key % 4 == 0 {
                    tx.put_owned(top, right, tree(200 + key))?;
                }
            }
        }
        let root = tx.alloc(root)?;
        tx.set_root(root)
    });
    filled.map_err(text)?;
    drop(pool);
    store.close().map_err(text)?;
    Ok(sim.image_now(CrashKind::Process))
}

/// The transactions; `done` is told of each that was acknowledged.
fn change(pool: &Pool, done: &mut dyn FnMut(u64)) -> cenote::Result<()> {
    let root = {
        let view = pool.read()?;
        *view.get(view.root::<Root>()?.expect("it is set"))?
    };
    let Root { vec, map } = root;
    // The leaves become one: a neighbour's values move.
    pool.write(|tx| -> cenote::Result<()> {
        for key in 4..16 {
            map.remove(tx, &key)?;
        }
        Ok(())
    })?;
    done(1);
    pool.write(|tx| vec.remove(tx, 0).map(drop))?;
    done(2);
    pool.write(|tx| map.insert(tx, 0, (77, Owned::EMPTY)).map(drop))?;
    done(3);
    pool.write(|tx| -> cenote::Result<()> {
        vec.replace(tx, 0, Owned::EMPTY)?;
        map.put_owned(tx, &0, field!((u64, Owned<Tree>), 1), tree(300)).map(drop)
    })?;
    done(4);
    pool.write(|tx| map.clear(tx))?;
    done(5);
    pool.write(|tx| vec.put_owned(tx, 1, FieldOffset::whole(), tree(400)).map(drop))?;
    done(6);
    pool.write(|tx| vec.clear(tx))?;
    done(7);
    Ok(())
}

fn values(view: &impl Reader, top: &Owned<Tree>) -> cenote::Result<Vec<u64>> {
    let (mut next, mut values) = (Vec::from_iter(top.get()), Vec::new());
    while let Some(tree) = next.pop() {
        let tree: &Tree = view.get::<Tree>(tree)?;
        values.push(tree.value);
        next.extend(tree.below.iter().filter_map(Owned::get).collect::<Vec<Ptr<Tree>>>());
    }
    values.sort_unstable();
    Ok(values)
}

/// What is there when nothing waits.
fn contents(pool: &Pool) -> cenote::Result<Contents> {
    pool.finish_frees()?;
    let blocks = pool.stats()?.blocks;
    let view = pool.read()?;
    let root = *view.get(view.root::<Root>()?.expect("it is set"))?;
    let vec = root.vec.iter(&view)?.map(|top| values(&view, top)).collect::<Result<_, _>>()?;
    let entries = root.map.iter(&view)?.map(|(key, (_, top))| Ok((*key, values(&view, top)?)));
    let map = entries.collect::<cenote::Result<_>>()?;
    view.finish()?;
    Ok((vec, map, blocks))
}

/// What each transaction leaves, without a crash.
fn wanted(base: &Image) -> Result<Vec<Contents>, String> {
    let sim = SimMedium::from_image_unrecorded(base);
    let store = opened(&sim)?;
    let pool = store.pool("p").map_err(text)?;
    let mut all = vec![contents(&pool)];
    change(&pool, &mut |_| all.push(contents(&pool))).map_err(text)?;
    drop(pool);
    store.abandon();
    all.into_iter().collect::<Result<_, _>>().map_err(text)
}

/// Whether nothing is wrong; how many blocks wait.
fn whole(pool: &Pool) -> Result<u64, String> {
    let report = pool.check().map_err(text)?;
    let values = report.values.as_ref().filter(|values| values.findings.is_empty());
    match values {
        Some(values) if report.is_sound() => Ok(values.waiting),
        _ => Err(format!("{report:?}")),
    }
}

fn goes_on(
    store: &Store,
    wanted: &[Contents],
    done: usize,
    tally: &mut Tally,
) -> Result<(), String> {
    let pool = store.pool("p").map_err(text)?;
    tally.waiting += u64::from(whole(&pool)? > 0);
    let there = contents(&pool).map_err(text)?;
    whole(&pool)?;
    // The last transaction that was begun may be there.
    let may = [done, done + 1].into_iter().find(|at| wanted.get(*at) == Some(&there));
    let Some(at) = may else {
        return Err(format!("{done} were acknowledged: {there:?}, and not {:?}", wanted[done]));
    };
    tally.left[at] += 1;
    Ok(())
}

fn limits(case: Case) -> Limits {
    // Of a pool at the other level a loss of power is not covered.
    let power = case.level == Durability::Power;
    Limits { exhaustive_units: 3, samples: 3, power, ..Limits::default() }
}

/// Looks at each `every`th image.
fn explore(case: Case, bug: Bug, every: u64) -> (Tally, Option<String>) {
    let mut tally = Tally::default();
    let based = base_image(case).and_then(|base| wanted(&base).map(|wanted| (base, wanted)));
    let (base, wanted) = match based {
        Ok(based) => based,
        Err(error) => return (tally, Some(error)),
    };
    let sim = SimMedium::from_image(&base);
    plant(bug);
    let changed = opened(&sim).and_then(|store| {
        let pool = store.pool("p").map_err(text)?;
        let changed = change(&pool, &mut |done| sim.note(done)).map_err(text);
        drop(pool);
        store.abandon();
        changed
    });
    plant(Bug::None);
    if let Err(error) = changed {
        return (tally, Some(error));
    }
    let (mut violation, mut seen, mut count) = (None, HashSet::new(), 0_u64);
    sim.explore(.., limits(case), |crash, image| {
        let done = image.note();
        if violation.is_some() || !seen.insert((image.hash(), done)) {
            return;
        }
        count += 1;
        if !count.is_multiple_of(every) {
            return;
        }
        tally.images += 1;
        let result = opened(&SimMedium::from_image_unrecorded(&image)).and_then(|store| {
            let result = goes_on(&store, &wanted, done as usize, &mut tally);
            store.abandon();
            result
        });
        let kind = image.kind();
        violation = result.err().map(|what| format!("event {} ({kind:?}): {what}", crash.event()));
    });
    (tally, violation)
}

#[track_caller]
fn survives(case: Case, every: u64) {
    stay_on_one_processor().expect("one processor");
    let (tally, violation) = explore(case, Bug::None, every);
    println!("{case:?}: {tally:?}");
    assert!(violation.is_none(), "{case:?}: {}", violation.unwrap_or_default());
    assert!(tally.images > 40 && tally.waiting > 5, "{tally:?}");
    assert!(tally.left.iter().all(|images| *images > 0), "{tally:?}");
}

#[test]
fn in_a_traced_heap() {
    let case = |level, place| Case { heap: HeapKind::Traced, level, place };
    survives(case(Durability::Process, 0), 1);
    survives(case(Durability::Power, 1), 1);
}

#[test]
fn in_a_logged_heap() {
    let case = |level, place| Case { heap: HeapKind::Logged, level, place };
    survives(case(Durability::Process, 2), 2);
}

/// Each of these is found, and nothing without it.
#[test]
fn planted_bugs_are_found() {
    stay_on_one_processor().expect("one processor");
    let case = Case { heap: HeapKind::Traced, level: Durability::Process, place: 3 };
    for bug in [OwnedBug::EntryKept, OwnedBug::EntryNotLogged] {
        let (tally, violation) = explore(case, Bug::Owned(bug), 1);
        let Some(violation) = violation else { panic!("{bug:?} was not found: {tally:?}") };
        println!("{bug:?}: found after {} images: {violation}", tally.images);
    }
}
