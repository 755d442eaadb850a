//! Every crash while values that own are freed: of the transaction that disowns them, and of the
//! steps that follow it.
//!
//! The oracle: whatever a crash leaves, the store opens, no block has two owners, none has leaked,
//! and the root owns the trees that one of the transactions left. What was acknowledged is there.
//! The steps go on to the end from there, without the types of the application, and free all that
//! is owned no more.

use cenote::{
    FormatOptions, HeapKind, Owned, Persist, Pool, PoolOptions, Ptr, Reader, Store, field,
};
use cenote_crashtest::rig::{
    WINDOW_LEN, open_options, pool_options, stay_on_one_processor, window_base,
};
use cenote_medium::planted::{Bug, OwnedBug, plant};
use cenote_medium::sim::{CrashKind, Image, Limits, SimMedium, SimOptions};
use cenote_medium::{Durability, Medium};
use std::collections::HashSet;
use std::sync::Arc;

#[derive(Persist)]
#[persist(name = "owned::Root")]
struct Root {
    trees: [Owned<Tree>; 2],
}

#[derive(Persist)]
#[persist(name = "owned::Tree", owned)]
struct Tree {
    value: u64,
    below: [Owned<Tree>; 2],
}

/// Blocks beside the trees: the root, the directory of names, the entry of the list, and the list.
const OWN: u64 = 4;
/// Blocks of the trees of an image, by what was acknowledged.
const TREES: [u64; 5] = [7, 3, 3, 4, 3];

#[derive(Clone, Copy, Debug)]
struct Case {
    heap: HeapKind,
    level: Durability,
    place: usize,
}

#[derive(Clone, Copy, Debug, Default)]
struct Tally {
    images: u64,
    waiting: u64,
    again: u64,
    /// Images with the trees that each transaction left.
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

/// A store in which the root owns one tree of four blocks and one of three.
fn base_image(case: Case) -> Result<Image, String> {
    let sim = SimMedium::new(SimOptions::new(case.level));
    let window = Some(window_base(9300 + case.place));
    let format = FormatOptions { window_base: window, window_len: WINDOW_LEN, uuid: None };
    cenote_store::format(sim.clone(), &format).map_err(text)?;
    let store = opened(&sim)?;
    let options = PoolOptions { heap: case.heap, ..pool_options(4) };
    let pool = store.create_pool("p", &options).map_err(text)?;
    let filled = pool.write(|tx| -> cenote::Result<()> {
        let root = tx.alloc(Root { trees: [Owned::EMPTY, Owned::EMPTY] })?;
        tx.set_root(root)?;
        let [left, right] = [0, 1].map(|at| field!(Tree, below).element(at).expect("one of two"));
        let [first, second] = places();
        let top = tx.put_owned(root, first, tree(0))?;
        let spine = tx.put_owned(top, left, tree(1))?;
        let child = tx.put_owned(top, right, tree(2))?;
        tx.put_owned(child, left, tree(3))?;
        let other = tx.put_owned(root, second, tree(10))?;
        tx.put_owned(other, left, tree(11))?;
        tx.put_owned(other, right, tree(12))?;
        let _ = spine;
        Ok(())
    });
    filled.map_err(text)?;
    drop(pool);
    store.close().map_err(text)?;
    Ok(sim.image_now(CrashKind::Process))
}

fn places() -> [cenote::ptr::FieldOffset<Root, Owned<Tree>>; 2] {
    [0, 1].map(|at| field!(Root, trees).element(at).expect("one of two"))
}

/// The transactions, each with how many were acknowledged before.
fn change(pool: &Pool, sim: &SimMedium) -> cenote::Result<()> {
    let root: Ptr<Root> = pool.read()?.root()?.expect("it is set");
    let [first, second] = places();
    pool.write(|tx| tx.free_owned(root, first).map(drop))?;
    sim.note(1);
    pool.write(|tx| tx.take_owned(root, second)?.put(root, first))?;
    sim.note(2);
    // Two steps for what it allocates.
    pool.write(|tx| tx.put_owned(root, second, tree(20)).map(drop))?;
    sim.note(3);
    // The one that it replaces owns nothing.
    pool.write(|tx| tx.take_owned(root, first)?.put(root, second))?;
    sim.note(4);
    pool.finish_frees()?;
    sim.note(5);
    Ok(())
}

/// How many blocks the root's trees have.
fn trees(pool: &Pool) -> Result<u64, String> {
    let view = pool.read().map_err(text)?;
    let root = view.root::<Root>().map_err(text)?.ok_or("no root")?;
    let mut next: Vec<Ptr<Tree>> =
        view.get(root).map_err(text)?.trees.iter().filter_map(Owned::get).collect();
    let mut count = 0;
    while let Some(tree) = next.pop() {
        count += 1;
        next.extend(view.get(tree).map_err(text)?.below.iter().filter_map(Owned::get));
    }
    Ok(count)
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

fn goes_on(store: &Store, done: u64, tally: &mut Tally) -> Result<(), String> {
    let pool = store.pool("p").map_err(text)?;
    // Without a type of the application.
    let waiting = whole(&pool)?;
    tally.waiting += u64::from(waiting > 0);
    let blocks = pool.stats().map_err(text)?.blocks;
    let freed = pool.finish_frees().map_err(text)?;
    if (freed, whole(&pool)?) != (waiting, 0) {
        return Err(format!("{waiting} waited, {freed} were freed"));
    }
    let left = trees(&pool)?;
    // The last transaction that was begun may be there.
    let may = [done, done + 1].map(|done| TREES.get(done as usize).copied().unwrap_or(3));
    if !may.contains(&left) || blocks - freed != OWN + left {
        return Err(format!("{done} were acknowledged: {left} blocks of {blocks}, {freed} freed"));
    }
    tally.left[left as usize] += 1;
    Ok(())
}

fn verify(image: &Image, done: u64, tally: &mut Tally) -> Result<(), String> {
    let store = opened(&SimMedium::from_image_unrecorded(image))?;
    let result = goes_on(&store, done, tally);
    store.abandon();
    result
}

/// Crashes of the steps of the next opener.
fn crash_again(image: &Image, case: Case, done: u64, tally: &mut Tally) -> Result<(), String> {
    let sim = SimMedium::from_image(image);
    let store = opened(&sim)?;
    let pool = store.pool("p").map_err(text)?;
    pool.finish_frees().map_err(text)?;
    drop(pool);
    store.abandon();
    let (mut result, mut count) = (Ok(()), 0_u64);
    let limits = Limits { exhaustive_units: 1, samples: 1, ..limits(case) };
    sim.explore(.., limits, |crash, inner| {
        count += 1;
        if result.is_err() || !count.is_multiple_of(7) {
            return;
        }
        tally.again += 1;
        result = verify(&inner, done, &mut Tally::default()).map_err(|what| {
            let (event, kind) = (crash.event(), inner.kind());
            format!("in what goes on, event {event} ({kind:?}): {what}")
        });
    });
    result
}

fn limits(case: Case) -> Limits {
    // Of a pool at the other level a loss of power is not covered.
    let power = case.level == Durability::Power;
    Limits { exhaustive_units: 3, samples: 4, power, ..Limits::default() }
}

/// Looks at each `every`th image.
fn explore(case: Case, bug: Bug, every: u64) -> (Tally, Option<String>) {
    let mut tally = Tally::default();
    let base = match base_image(case) {
        Ok(base) => base,
        Err(error) => return (tally, Some(error)),
    };
    let sim = SimMedium::from_image(&base);
    plant(bug);
    let changed = opened(&sim).and_then(|store| {
        let pool = store.pool("p").map_err(text)?;
        let changed = change(&pool, &sim).map_err(text);
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
        let mut result = verify(&image, done, &mut tally);
        if result.is_ok() && tally.images.is_multiple_of(7) {
            result = crash_again(&image, case, done, &mut tally);
        }
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
    let Tally { images, waiting, again, left } = tally;
    assert!(images > 40 && waiting > 20 && again > 5, "{tally:?}");
    assert!(left[3] > 0 && left[4] > 0 && left[7] > 0, "{tally:?}");
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
    survives(case(Durability::Process, 2), 1);
    survives(case(Durability::Power, 3), 2);
}

#[test]
fn in_a_wear_heap() {
    let case = |level, place| Case { heap: HeapKind::Wear { wait_ms: 0 }, level, place };
    survives(case(Durability::Process, 4), 1);
    survives(case(Durability::Power, 5), 1);
}

/// Each of these is found, and nothing without it.
#[test]
fn planted_bugs_are_found() {
    stay_on_one_processor().expect("one processor");
    let case = Case { heap: HeapKind::Traced, level: Durability::Process, place: 6 };
    for bug in [OwnedBug::StepNotLogged, OwnedBug::RestForgotten, OwnedBug::TakenStays] {
        let (tally, violation) = explore(case, Bug::Owned(bug), 1);
        let Some(violation) = violation else { panic!("{bug:?} was not found: {tally:?}") };
        println!("{bug:?}: found after {} images: {violation}", tally.images);
    }
}
