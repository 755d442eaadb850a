//! Every crash of a copy of a pool into one of another kind of heap, and crashes of the copy that
//! goes on.
//!
//! The oracle: whatever a crash leaves, the store opens, and its new pool is absent, empty, an
//! unfinished copy that no program can open, or finished. The same call goes on, and makes a pool
//! that holds what the source holds, block by block, sound, and nothing besides. A copy that was
//! acknowledged is finished. The source is as it was.

use cenote::HeapKind::{Logged, Traced};
use cenote::{
    Access, CopyOptions, CopyProgress, CopyRefused, Error, FormatOptions, HeapKind, Persist, Pool,
    PoolMode, PoolOptions, Ptr, Reader, RelPtr, Store, field,
};
use cenote_crashtest::rig::{
    WINDOW_LEN, open_options, pool_options, stay_on_one_processor, window_base,
};
use cenote_medium::planted::{Bug, CopyBug, plant};
use cenote_medium::sim::{CrashKind, Image, Limits, SimMedium, SimOptions};
use cenote_medium::{Durability, Medium};
use cenote_store::StoreError;
use core::ops::ControlFlow;
use std::collections::HashSet;
use std::sync::Arc;

#[derive(Persist)]
#[persist(name = "copied::Node")]
struct Node {
    value: u64,
    next: Option<Ptr<Node>>,
    before: RelPtr<Node>,
}

/// Nodes of the ring.
const NODES: u64 = 5;

/// What is copied, and where.
#[derive(Clone, Copy, Debug)]
struct Case {
    from: HeapKind,
    to: HeapKind,
    mode: PoolMode,
    level: Durability,
    place: usize,
}

#[derive(Clone, Copy, Debug, Default)]
struct Tally {
    images: u64,
    power: u64,
    absent: u64,
    unfinished: u64,
    finished: u64,
    again: u64,
}

fn text(error: impl std::fmt::Display) -> String {
    error.to_string()
}

fn new_pool(heap: HeapKind, mode: PoolMode) -> PoolOptions {
    PoolOptions { heap, mode, ..pool_options(4) }
}

fn opened(sim: &Arc<SimMedium>) -> Result<Store, String> {
    let medium: Arc<dyn Medium> = sim.clone();
    Store::open_on(medium, &open_options()).map_err(text)
}

/// A closed store with a ring, a root with a name and one with a number, and a leak.
fn base_image(case: Case) -> Result<Image, String> {
    let sim = SimMedium::new(SimOptions::new(case.level));
    let window = Some(window_base(8200 + case.place));
    let format = FormatOptions { window_base: window, window_len: WINDOW_LEN, uuid: None };
    cenote_store::format(sim.clone(), &format).map_err(text)?;
    let store = opened(&sim)?;
    let pool = store.create_pool("from", &new_pool(case.from, case.mode)).map_err(text)?;
    let filled = pool.write(|tx| -> cenote::Result<()> {
        let mut nodes = Vec::new();
        for value in 0..NODES {
            nodes.push(tx.alloc(Node { value, next: None, before: RelPtr::NULL })?);
        }
        for (at, node) in nodes.iter().enumerate() {
            let (next, before) = (nodes[(at + 1) % nodes.len()], nodes[(at + 4) % nodes.len()]);
            tx.set(*node, field!(Node, next), Some(next))?;
            tx.set_rel(*node, field!(Node, before), Some(before))?;
        }
        tx.alloc(99u64)?;
        tx.set_named_root("ring", Some(nodes[0]))?;
        tx.set_root_at(1023, Some(nodes[3]))
    });
    filled.map_err(text)?;
    drop(pool);
    store.close().map_err(text)?;
    Ok(sim.image_now(CrashKind::Process))
}

fn options<'a>(case: Case) -> CopyOptions<'a> {
    let mut options = CopyOptions::new(new_pool(case.to, case.mode));
    options.batch = 2;
    options
}

/// What a pool holds, and whether its blocks are those and no others.
fn holds(pool: &Pool, blocks: u64, leaks: u64) -> Result<(), String> {
    let report = pool.check().map_err(text)?;
    let is_sound = report.is_sound() || leaks > 0 && report.leaked_blocks == leaks;
    if !is_sound || report.stats.blocks != blocks + leaks {
        return Err(format!("{blocks} blocks: {report:?}"));
    }
    let view = pool.read().map_err(text)?;
    let first = view.named_root::<Node>("ring").map_err(text)?.ok_or("no ring")?;
    let (mut at, mut before) = (first, None);
    for value in 0..=NODES {
        let node = view.get(at).map_err(text)?;
        if node.value != value % NODES || before.is_some_and(|b| node.before.get() != Some(b)) {
            return Err(format!("node {value} is {}, or not where it was", node.value));
        }
        (before, at) = (Some(at), node.next.ok_or("the ring ends")?);
    }
    let last = view.root_at::<Node>(1023).map_err(text)?.ok_or("no last root")?;
    match view.get(last).map_err(text)?.value {
        3 => Ok(()),
        other => Err(format!("the last root leads to node {other}")),
    }
}

/// Blocks of the copy: the ring, the directory of names and an entry.
const BLOCKS: u64 = NODES + 2;

/// What is there of the copy.
fn found(store: &Store) -> Result<&'static str, String> {
    if !store.pools().iter().any(|pool| pool.record.name == "to") {
        return Ok("absent");
    }
    // A logged heap is recovered by a writer.
    let pool = match store.pool_with("to", Access::ReadWrite) {
        Err(Error::Copy(CopyRefused::Unfinished { from, .. })) if from == "from" => {
            return Ok("unfinished");
        }
        pool => pool.map_err(text)?,
    };
    if pool.stats().map_err(text)?.blocks == 0 {
        return Ok("empty");
    }
    holds(&pool, BLOCKS, 0)?;
    Ok("finished")
}

/// Opens what a crash left, goes on, and looks at both pools.
fn goes_on(store: &Store, case: Case, tally: &mut Tally, acknowledged: bool) -> Result<(), String> {
    let before = found(store)?;
    match before {
        "absent" | "empty" => tally.absent += 1,
        "unfinished" => tally.unfinished += 1,
        _ => tally.finished += 1,
    }
    if acknowledged && before != "finished" {
        return Err(format!("the copy was acknowledged, and is {before}"));
    }
    match store.copy_pool("from", "to", options(case)) {
        Err(Error::Store(StoreError::PoolExists { .. })) if before == "finished" => {}
        done => {
            let done = done.map_err(text)?;
            if before == "finished" || done.blocks != BLOCKS {
                return Err(format!("{before}, and then {done:?}"));
            }
        }
    }
    if found(store)? != "finished" {
        return Err("it went on to the end, and is not finished".into());
    }
    holds(&store.pool_with("from", Access::ReadWrite).map_err(text)?, BLOCKS, 1)
}

fn verify(image: &Image, case: Case, tally: &mut Tally, done: bool) -> Result<(), String> {
    let store = opened(&SimMedium::from_image_unrecorded(image))?;
    let result = goes_on(&store, case, tally, done);
    store.abandon();
    result
}

/// Crashes of the call that goes on.
fn crash_again(image: &Image, case: Case, tally: &mut Tally) -> Result<(), String> {
    let sim = SimMedium::from_image(image);
    let store = opened(&sim)?;
    match store.copy_pool("from", "to", options(case)) {
        Ok(_) | Err(Error::Store(StoreError::PoolExists { .. })) => {}
        Err(error) => return Err(text(error)),
    }
    store.abandon();
    let (mut result, mut count) = (Ok(()), 0_u64);
    let limits = Limits { exhaustive_units: 1, samples: 1, ..limits(case) };
    sim.explore(.., limits, |crash, inner| {
        count += 1;
        if result.is_err() || !count.is_multiple_of(13) {
            return;
        }
        tally.again += 1;
        result = verify(&inner, case, &mut Tally::default(), false).map_err(|what| {
            let (event, kind) = (crash.event(), inner.kind());
            format!("in the call that goes on, event {event} ({kind:?}): {what}")
        });
    });
    result
}

fn limits(case: Case) -> Limits {
    // A pool in direct mode on such a medium is not covered after a loss of power.
    let power = case.level == Durability::Power || case.mode == PoolMode::Shadowed;
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
    let copied = opened(&sim).and_then(|store| {
        // Two calls: the end of the first is a psync in shadowed mode.
        let (mut left, mut with) = (4, options(case));
        let mut stop = |_: &CopyProgress| {
            left -= 1;
            if left == 0 { ControlFlow::Break(()) } else { ControlFlow::Continue(()) }
        };
        with.progress = Some(&mut stop);
        match store.copy_pool("from", "to", with) {
            Err(Error::Copy(CopyRefused::Stopped { .. })) => {}
            other => return Err(format!("not stopped: {other:?}")),
        }
        let copied = store.copy_pool("from", "to", options(case)).map_err(text);
        sim.note(1);
        store.abandon();
        copied
    });
    plant(Bug::None);
    if let Err(error) = copied {
        return (tally, Some(error));
    }
    let (mut violation, mut seen, mut count) = (None, HashSet::new(), 0_u64);
    sim.explore(.., limits(case), |crash, image| {
        let done = image.note() == 1;
        if violation.is_some() || !seen.insert((image.hash(), done)) {
            return;
        }
        count += 1;
        if !done && !count.is_multiple_of(every) {
            return;
        }
        tally.images += 1;
        tally.power += u64::from(image.kind() != CrashKind::Process);
        plant(bug);
        let mut result = verify(&image, case, &mut tally, done);
        if result.is_ok() && tally.images.is_multiple_of(41) {
            result = crash_again(&image, case, &mut tally);
        }
        plant(Bug::None);
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
    assert!(
        tally.images > 100
            && tally.absent > 3
            && tally.unfinished > 30
            && tally.finished > 0
            && tally.again > 20,
        "{tally:?}"
    );
}

#[test]
fn from_a_traced_heap_to_a_logged_one() {
    let case =
        |level, place| Case { from: Traced, to: Logged, mode: PoolMode::Direct, level, place };
    survives(case(Durability::Process, 0), 1);
    survives(case(Durability::Power, 1), 9);
}

#[test]
fn from_a_logged_heap_to_a_traced_one() {
    let case =
        |level, place| Case { from: Logged, to: Traced, mode: PoolMode::Direct, level, place };
    survives(case(Durability::Process, 2), 1);
    survives(case(Durability::Power, 3), 9);
}

#[test]
fn in_shadowed_mode() {
    let (mode, level) = (PoolMode::Shadowed, Durability::Process);
    survives(Case { from: Traced, to: Logged, mode, level, place: 4 }, 8);
    survives(Case { from: Logged, to: Traced, mode, level, place: 5 }, 8);
}

#[test]
fn into_a_wear_heap() {
    let (mode, level) = (PoolMode::Direct, Durability::Process);
    survives(Case { from: Traced, to: HeapKind::WEAR, mode, level, place: 10 }, 1);
}

/// Each of these is found, and nothing without it.
#[test]
fn planted_bugs_are_found() {
    stay_on_one_processor().expect("one processor");
    let direct = Case {
        from: Traced,
        to: Logged,
        mode: PoolMode::Direct,
        level: Durability::Process,
        place: 6,
    };
    let shadowed = Case { mode: PoolMode::Shadowed, place: 7, ..direct };
    for (bug, case) in [
        (CopyBug::ScannedEarly, direct),
        (CopyBug::OpensUnfinished, direct),
        (CopyBug::RelativeAsItStands, direct),
        (CopyBug::RootsLate, direct),
        (CopyBug::TableForgotten, direct),
        (CopyBug::EndNotPsynced, shadowed),
    ] {
        let every = if case.mode == PoolMode::Shadowed { 29 } else { 1 };
        let (tally, violation) = explore(case, Bug::Copy(bug), every);
        let Some(violation) = violation else { panic!("{bug:?} was not found: {tally:?}") };
        println!("{bug:?}: found after {} images: {violation}", tally.images);
    }
}

/// A pool in shadowed mode that was never psynced goes back to before its heap was made, and keeps
/// the puddles that it has taken.
#[test]
fn a_logged_heap_that_was_never_psynced_is_made_anew() {
    stay_on_one_processor().expect("one processor");
    let level = Durability::Process;
    let case = Case { from: Traced, to: Logged, mode: PoolMode::Shadowed, level, place: 8 };
    let base = base_image(case).expect("a base");
    let sim = SimMedium::from_image(&base);
    let store = opened(&sim).expect("opened");
    let pool = store.create_pool("to", &new_pool(case.to, case.mode)).expect("created");
    let written = pool.write(|tx| -> cenote::Result<()> {
        let value = tx.alloc(5u64)?;
        tx.set_root(value)
    });
    written.expect("written");
    drop(pool);
    store.abandon();
    let mut seen = 0;
    sim.explore(.., limits(case), |crash, image| {
        let store = opened(&SimMedium::from_image_unrecorded(&image)).expect("opened");
        let (event, kind) = (crash.event(), image.kind());
        if store.pools().iter().any(|pool| pool.record.name == "to") {
            store.clone_pool("to", "clone").expect("nothing to rewrite");
            let pool = store.pool_with("to", Access::ReadWrite);
            let pool = pool.unwrap_or_else(|error| panic!("event {event} ({kind:?}): {error}"));
            seen += u64::from(pool.stats().expect("counted").puddles > 1);
            let value = pool.write(|tx| tx.alloc(6u64)).expect("room");
            assert_eq!(*pool.read().expect("read").get(value).expect("there"), 6);
        }
        store.abandon();
    });
    assert!(seen > 100, "{seen} images with several puddles");
}
