//! `kill -9` loses nothing: a child changes collections, one transaction a step, and acknowledges
//! each committed step through a pipe; this process kills it at random moments, hundreds of times,
//! and compares what is there with what the acknowledged steps make of std's collections.
//!
//! What must hold after every kill: the store has exactly the steps that were acknowledged, or one
//! more (committed, but killed before it could say so); every collection is equal to its model at
//! that step; the second pool is at the same step; no block leaks.
//!
//! The children are this test binary again. `CENOTE_KILLS` sets the number of kills (300),
//! `CENOTE_SEED` the seed.

use cenote::{Error, Persist, Pool, Reader, Result, Store, Tx, field};
use cenote_collections as persistent;
use cenote_testkit::child::{Acknowledging, acknowledge, again};
use cenote_testkit::environment::{number, rounds};
use cenote_testkit::random::mix;
use std::collections::{BTreeMap, HashMap, VecDeque};
use std::io::Write;
use std::path::Path;
use std::time::Duration;

#[derive(Persist)]
struct Root {
    step: u64,
    list: persistent::List<u64>,
    forward: persistent::ForwardList<u64>,
    ordered: persistent::BTreeMap<u64, u64>,
    hashed: persistent::HashMap<u64, u64>,
    vector: persistent::Vec<u64>,
    text: persistent::String,
}

#[derive(Persist)]
struct Mirror {
    step: u64,
}

/// What the collections should hold.
#[derive(Default)]
struct Model {
    step: u64,
    list: VecDeque<u64>,
    forward: VecDeque<u64>,
    ordered: BTreeMap<u64, u64>,
    hashed: HashMap<u64, u64>,
    vector: Vec<u64>,
    text: String,
}

/// Keys and values of a step come from a small range, so that keys are hit again and again.
fn key(random: u64) -> u64 {
    (random >> 16) % 300
}

/// Step `step`, on the model.
fn apply(model: &mut Model) {
    let random = mix(model.step);
    match random % 12 {
        0 | 1 => model.list.push_back(random),
        2 if model.list.len() > 50 => drop(model.list.pop_front()),
        2 => model.list.push_front(random),
        3 if model.forward.len() > 50 => drop(model.forward.pop_front()),
        3 => model.forward.push_front(random),
        4..=5 => drop(model.ordered.insert(key(random), random)),
        6 => drop(model.ordered.remove(&key(random))),
        7..=8 => drop(model.hashed.insert(key(random), random)),
        9 => drop(model.hashed.remove(&key(random))),
        10 if model.vector.len() > 500 => model.vector.truncate(20),
        10 => model.vector.extend([random, random + 1, random + 2]),
        _ if model.text.len() > 2000 => model.text.clear(),
        _ => model.text.push_str(&format!("step {}; ", model.step)),
    }
    model.step += 1;
}

/// The same step, on the store. Every fifth step is tried once and aborted before it is done.
fn apply_persistent(store: &Store, pools: &[&Pool; 2], step: u64) -> Result<()> {
    let body = |tx: &mut Tx<'_>| -> Result<()> {
        let root = tx.root_in::<Root>(pools[0], 0)?.expect("made at the start");
        let Root { list, forward, ordered, hashed, vector, text, .. } = *tx.get(root)?;
        let random = mix(step);
        match random % 12 {
            0 | 1 => list.push_back(tx, random)?,
            2 if list.len(tx)? > 50 => drop(list.pop_front(tx)?),
            2 => list.push_front(tx, random)?,
            3 if forward.len(tx)? > 50 => drop(forward.pop_front(tx)?),
            3 => forward.push_front(tx, random)?,
            4..=5 => drop(ordered.insert(tx, key(random), random)?),
            6 => drop(ordered.remove(tx, &key(random))?),
            7..=8 => drop(hashed.insert(tx, key(random), random)?),
            9 => drop(hashed.remove(tx, &key(random))?),
            10 if vector.len(tx)? > 500 => vector.truncate(tx, 20)?,
            10 => vector.extend(tx, [random, random + 1, random + 2])?,
            _ if text.len(tx)? > 2000 => text.clear(tx)?,
            _ => text.push_str(tx, &format!("step {step}; "))?,
        }
        let mirror = tx.root_in::<Mirror>(pools[1], 0)?.expect("made at the start");
        tx.set(mirror, field!(Mirror, step), step + 1)?;
        tx.set(root, field!(Root, step), step + 1)
    };
    if step.is_multiple_of(5) {
        let aborted: Result<()> = store.write(pools, |tx| {
            body(tx)?;
            Err(Error::Aborted("on purpose".into()))
        });
        assert!(matches!(aborted, Err(Error::Aborted(_))), "{aborted:?}");
    }
    store.write(pools, body)
}

fn prepare(dir: &Path) -> Result<()> {
    let store = Store::open(dir)?;
    let (a, b) = (store.pool("collections")?, store.pool("mirror")?);
    store.write(&[&a, &b], |tx| -> Result<()> {
        let root = Root {
            step: 0,
            list: persistent::List::new(tx)?,
            forward: persistent::ForwardList::new(tx)?,
            ordered: persistent::BTreeMap::new(tx)?,
            hashed: persistent::HashMap::new(tx)?,
            vector: persistent::Vec::new(tx)?,
            text: persistent::String::new(tx)?,
        };
        let root = tx.alloc_in(&a, root)?;
        tx.set_root_in(&a, 0, Some(root))?;
        let mirror = tx.alloc_in(&b, Mirror { step: 0 })?;
        tx.set_root_in(&b, 0, Some(mirror))
    })?;
    drop((a, b));
    store.close()
}

/// The directory of a store that a whole machine is stopped on: see `scripts/machine.sh`, which
/// runs `machine` in a virtual one.
const MACHINE_DIR: &str = "CENOTE_MACHINE_DIR";

/// Not a test of its own: what a virtual machine runs until it is stopped. It prints
/// the step that it finds, after comparing all with the model at that step, and each step that is
/// committed. The program that stops the machine compares the two.
#[test]
fn machine() {
    let Some(dir) = std::env::var_os(MACHINE_DIR) else { return };
    let dir = Path::new(&dir);
    let limit = std::env::var("CENOTE_MACHINE_STEPS").ok().and_then(|steps| steps.parse().ok());
    if !dir.join("superblock").exists() {
        prepare(dir).unwrap();
    }
    let mut model = Model::default();
    compare(dir, &mut model, None, true).unwrap();
    let found = model.step;
    let mut out = std::io::stdout();
    writeln!(out, "found {found}").unwrap();
    let store = Store::open(dir).unwrap();
    let (a, b) = (store.pool("collections").unwrap(), store.pool("mirror").unwrap());
    for step in found..limit.map_or(u64::MAX, |limit: u64| found + limit) {
        apply_persistent(&store, &[&a, &b], step).unwrap();
        writeln!(out, "done {}", step + 1).unwrap();
    }
}

const CHILD_DIR: &str = "CENOTE_SIGKILL_CHILD_DIR";

/// Not a test of its own: what a child process runs.
#[test]
fn child() {
    let Some(dir) = std::env::var_os(CHILD_DIR) else { return };
    let store = Store::open(dir).unwrap();
    let (a, b) = (store.pool("collections").unwrap(), store.pool("mirror").unwrap());
    let mut step = {
        let view = a.read().unwrap();
        view.get(view.root::<Root>().unwrap().unwrap()).unwrap().step
    };
    loop {
        apply_persistent(&store, &[&a, &b], step).unwrap();
        step += 1;
        if !acknowledge(step) {
            return;
        }
    }
}

/// Opens the store, which recovers it, and compares everything with the model at the step that is
/// there, which must be the acknowledged one or the next.
fn compare(dir: &Path, model: &mut Model, acknowledged: Option<u64>, thorough: bool) -> Result<()> {
    let store = Store::open(dir)?;
    let (a, b) = (store.pool("collections")?, store.pool("mirror")?);
    {
        let (view, mirror) = (a.read()?, b.read()?);
        let root = view.get(view.root::<Root>()?.unwrap())?;
        if let Some(acknowledged) = acknowledged {
            assert!(
                root.step == acknowledged || root.step == acknowledged + 1,
                "step {} is there, {acknowledged} was acknowledged",
                root.step
            );
        }
        assert_eq!(mirror.get(mirror.root::<Mirror>()?.unwrap())?.step, root.step);
        while model.step < root.step {
            apply(model);
        }
        assert!(root.list.iter(&view)?.eq(&model.list), "list, step {}", root.step);
        assert!(
            root.list.iter(&view)?.rev().eq(model.list.iter().rev()),
            "list backwards, step {}",
            root.step
        );
        assert!(root.forward.iter(&view)?.eq(&model.forward), "forward list, step {}", root.step);
        assert!(root.ordered.iter(&view)?.eq(&model.ordered), "ordered map, step {}", root.step);
        assert_eq!(root.hashed.len(&view)?, model.hashed.len(), "hash map, step {}", root.step);
        for (key, value) in &model.hashed {
            assert_eq!(root.hashed.get(&view, key)?, Some(value), "hash map, step {}", root.step);
        }
        assert_eq!(root.vector.as_slice(&view)?, model.vector, "vector, step {}", root.step);
        assert_eq!(root.text.as_str(&view)?, model.text, "string, step {}", root.step);
    }
    if thorough {
        for pool in [&a, &b] {
            let report = pool.check()?;
            assert!(report.is_sound(), "step {}: {report:?}", model.step);
        }
    }
    drop((a, b));
    // Half of the time as a crash would leave it again: the next opener recovers from what recovery
    // left.
    if model.step.is_multiple_of(2) {
        store.abandon();
        return Ok(());
    }
    store.close()
}

#[test]
fn kill_9_loses_nothing_that_was_acknowledged() {
    let (kills, seed) = (number("CENOTE_KILLS", rounds(300)), number("CENOTE_SEED", 1));
    let dir = tempfile::tempdir().unwrap();
    prepare(dir.path()).unwrap();
    let (mut model, mut acknowledged) = (Model::default(), 0);
    let mut early = 0;
    for round in 0..kills {
        let random = mix(seed.wrapping_mul(1_000_003).wrapping_add(round));
        let child = Acknowledging::start(again("child").env(CHILD_DIR, dir.path()));
        // Two of three times at work; else while it starts and opens, that is recovers, the store.
        let at_work = !random.is_multiple_of(3);
        let after = Duration::from_micros((random >> 8) % if at_work { 8_000 } else { 12_000 });
        let before = acknowledged;
        let steps = child.kill(at_work, after, |step| step < 1 << 40);
        acknowledged = steps.last().copied().unwrap_or(acknowledged);
        early += u64::from(before == acknowledged);
        if let Err(error) = compare(dir.path(), &mut model, Some(acknowledged), round % 10 == 9) {
            panic!("seed {seed}, round {round}: {error}");
        }
        acknowledged = model.step;
    }
    println!(
        "{kills} kills, {early} of them before the first commit; {} steps, all there",
        model.step
    );
    assert!(
        model.step > kills && early < kills,
        "children hardly got to work: {} steps",
        model.step
    );
}
