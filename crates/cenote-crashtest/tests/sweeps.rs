//! A leaked structure is condemned, committed and freed, and crashes at every moment of that: the
//! next opener finds all of the structure or nothing, and goes on.
//!
//! The structure lies in three superblocks: marks beside the blocks, marks inside, and a large
//! block. The program has its addresses from an earlier session. In one scenario it puts one of
//! them into its data while reclaim looks for leaks, so that a loss of power finds a pointer to
//! what is condemned.

use cenote::{Error, FormatOptions, Persist, Pool, Ptr, Reader, ReclaimOptions, Result, Store};
use cenote_crashtest::rig::{WINDOW_LEN, open_options, pool_options, window_base};
use cenote_crashtest::units::{Grain, Images, Reach};
use cenote_medium::Durability;
use cenote_medium::planted::{Bug, plant, watch};
use cenote_medium::sim::{CrashKind, Image, SimMedium, SimOptions};
use std::collections::HashSet;
use std::ops::ControlFlow;
use std::sync::Arc;

const PARTS: usize = 5;

#[derive(Persist)]
#[persist(name = "sweeps::Head")]
struct Head {
    parts: [Option<Ptr<Part>>; PARTS],
    large: Option<Ptr<Large>>,
    next: Option<Ptr<Head>>,
}

#[derive(Persist)]
#[persist(name = "sweeps::Part")]
struct Part {
    number: u64,
    twin: u64,
}

#[derive(Persist)]
#[persist(name = "sweeps::Large")]
struct Large {
    words: [u64; 9000],
}

#[derive(Persist)]
#[persist(name = "sweeps::Keeper")]
struct Keeper {
    kept: Option<Ptr<Head>>,
}

/// Takes places that are free, of a type that nothing else has.
#[derive(Persist)]
#[persist(name = "sweeps::Fresh")]
struct Fresh {
    words: [u64; 12],
}

/// The addresses that a program has kept.
#[derive(Clone, Copy)]
struct Kept {
    heads: [Ptr<Head>; 2],
    parts: [Ptr<Part>; PARTS],
    large: Ptr<Large>,
}

/// Blocks of the structure.
const ALL: usize = 2 + PARTS + 1;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum By {
    /// Reclaim, while the program puts a pointer to the structure into its data.
    Reclaim,
    Collect,
}

fn leak(pool: &Pool) -> Result<Kept> {
    pool.write(|tx| {
        let keeper = tx.alloc(Keeper { kept: None })?;
        tx.set_root(keeper)?;
        let mut parts = Vec::new();
        for number in 0..PARTS as u64 {
            parts.push(tx.alloc(Part { number, twin: !number })?);
        }
        let parts: [Ptr<Part>; PARTS] = parts.try_into().expect("as many");
        let large = tx.alloc(Large { words: [7; 9000] })?;
        let (some, large_too) = (parts.map(Some), Some(large));
        let last = tx.alloc(Head { parts: some, large: large_too, next: None })?;
        let first = tx.alloc(Head { parts: some, large: large_too, next: Some(last) })?;
        Ok(Kept { heads: [first, last], parts, large })
    })
}

/// How many blocks of the structure a program sees; fails if one is not what was written.
fn seen(pool: &Pool, kept: &Kept) -> std::result::Result<usize, String> {
    let view = pool.read().map_err(|e| e.to_string())?;
    let mut live = 0;
    let mut note = |what: Result<bool>| match what {
        Ok(true) => {
            live += 1;
            Ok(())
        }
        Ok(false) => Err("a block is not what was written".to_owned()),
        Err(Error::Dangling { .. }) => Ok(()),
        Err(error) => Err(error.to_string()),
    };
    let parts = kept.parts.map(Some);
    for head in kept.heads {
        note(view.get(head).map(|head| head.parts == parts && head.large == Some(kept.large)))?;
    }
    for (part, number) in kept.parts.iter().zip(0u64..) {
        note(view.get(*part).map(|part| part.number == number && part.twin == !number))?;
    }
    note(view.get(kept.large).map(|large| large.words == [7; 9000]))?;
    Ok(live)
}

fn open(sim: Arc<SimMedium>) -> std::result::Result<(Store, Pool), String> {
    let store = Store::open_on(sim, &open_options()).map_err(|e| format!("open: {e}"))?;
    let pool = store.pool("p").map_err(|e| format!("open a pool: {e}"))?;
    // Every puddle is adopted.
    pool.stats().map_err(|e| e.to_string())?;
    Ok((store, pool))
}

/// What the next opener finds, and that it can go on.
fn verify(image: &Image, kept: &Kept) -> std::result::Result<usize, String> {
    let (store, pool) = open(SimMedium::from_image_unrecorded(image))?;
    let live = seen(&pool, kept)?;
    if live != 0 && live != ALL {
        return Err(format!("{live} of {ALL} blocks are live"));
    }
    let check = pool.check().map_err(|e| e.to_string())?;
    let faults = check.leak_trace.as_ref().map_or(0, |trace| trace.faults);
    // A pointer that the program put into its data may dangle.
    if live == ALL && check.unallocated_blocks != 0
        || (check.dangling_blocks, faults, check.miscounted.len()) != (0, 0, 0)
        || check.damage.iter().any(|damage| damage.lost)
    {
        return Err(format!("check finds {check:?}"));
    }
    // Another sweep, and other values where there is room.
    pool.collect().map_err(|e| format!("collect afterwards: {e}"))?;
    let new = pool.write(|tx| -> Result<()> {
        (0..600).try_for_each(|_| tx.alloc(Fresh { words: [u64::MAX; 12] }).map(drop))
    });
    new.map_err(|e| format!("afterwards: {e}"))?;
    let after = seen(&pool, kept)?;
    if after != 0 && after != ALL || after > live {
        return Err(format!("{after} blocks are live after a second sweep, {live} before"));
    }
    drop(pool);
    store.abandon();
    Ok(live)
}

/// When a bug is planted.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum When {
    Running,
    Recovering,
}

fn play(sim: &Arc<SimMedium>, kept: &Kept, by: By) -> std::result::Result<(), String> {
    let (store, pool) = open(sim.clone())?;
    sim.forget_trace();
    let watched = Arc::clone(sim);
    watch(Some(Box::new(move |step| watched.crash_point(&format!("{step:?}")))));
    let done = match by {
        By::Collect => pool.collect().map(drop),
        By::Reclaim => {
            let mut put = false;
            let mut progress = |_: &cenote::ReclaimProgress| {
                if !put {
                    put = true;
                    let put = pool.write(|tx| -> Result<()> {
                        let keeper = tx.root::<Keeper>()?.expect("it is set");
                        tx.set(keeper, cenote::field!(Keeper, kept), Some(kept.heads[0]))
                    });
                    put.expect("put into data");
                }
                ControlFlow::Continue(())
            };
            let mut options = ReclaimOptions::default();
            options.progress = Some(&mut progress);
            pool.reclaim_with(options).map(drop)
        }
    };
    watch(None);
    sim.crash_point("done");
    drop(pool);
    store.abandon();
    done.map_err(|e| e.to_string())
}

/// Crashes the recovery of an image at each of its moments.
fn crash_recovery(image: &Image, kept: &Kept, power: bool) -> std::result::Result<u64, String> {
    let sim = SimMedium::from_image(image);
    let watched = Arc::clone(&sim);
    watch(Some(Box::new(move |step| watched.crash_point(&format!("{step:?}")))));
    let opened = open(sim.clone());
    watch(None);
    let (store, pool) = opened?;
    drop(pool);
    store.abandon();
    let mut images = 0;
    let mut known = HashSet::new();
    for state in sim.walk().skip(1) {
        let mut all = vec![state.image_process()];
        if power {
            all.extend([state.image_oldest(), state.image_latest()]);
        }
        for again in all {
            if known.insert(again.hash()) {
                images += 1;
                let label = state.label().unwrap_or_default();
                verify(&again, kept).map_err(|e| format!("recovery crashed at {label}: {e}"))?;
            }
        }
    }
    Ok(images)
}

#[derive(Debug, Default)]
struct Tally {
    images: u64,
    whole: u64,
    gone: u64,
    recoveries: u64,
    again: u64,
}

fn enumerate(
    level: Durability,
    by: By,
    place: usize,
    (bug, when): (Bug, When),
) -> std::result::Result<Tally, String> {
    let sim = SimMedium::new(SimOptions::new(level));
    let window = Some(window_base(7200 + place));
    let format = FormatOptions { window_base: window, window_len: WINDOW_LEN, uuid: None };
    cenote_store::format(sim.clone(), &format).map_err(|e| e.to_string())?;
    let kept = {
        let store = Store::open_on(sim.clone(), &open_options()).map_err(|e| e.to_string())?;
        let pool = store.create_pool("p", &pool_options(7)).map_err(|e| e.to_string())?;
        let kept = leak(&pool).map_err(|e| e.to_string())?;
        drop(pool);
        store.close().map_err(|e| e.to_string())?;
        kept
    };
    plant(if when == When::Running { bug } else { Bug::None });
    let played = play(&sim, &kept, by);
    plant(if when == When::Recovering { bug } else { Bug::None });
    let mut tally = Tally::default();
    let mut known = HashSet::new();
    let power = level == Durability::Power;
    let reach = Reach { grain: Grain::Words, exhaustive: 5, samples: 12 };
    let walked = played.and_then(|()| {
        sim.walk().skip(1).try_for_each(|state| {
            let mut result = Ok(());
            let mut check = |image: Image| {
                if !known.insert(image.hash()) {
                    return true;
                }
                tally.images += 1;
                result = verify(&image, &kept).and_then(|live| {
                    *if live == 0 { &mut tally.gone } else { &mut tally.whole } += 1;
                    let chosen = image.kind() == CrashKind::Process || tally.images % 16 == 0;
                    if bug == Bug::None && chosen && tally.recoveries < 16 {
                        tally.recoveries += 1;
                        tally.again += crash_recovery(&image, &kept, power)?;
                    }
                    Ok(())
                });
                result = std::mem::replace(&mut result, Ok(())).map_err(|what| {
                    format!("{:?} at {}: {what}", image.kind(), state.label().unwrap_or("no step"))
                });
                result.is_ok()
            };
            if check(state.image_process()) {
                Images::of(&state, reach, power).visit(&state, &mut check);
            }
            result
        })
    });
    plant(Bug::None);
    walked.map(|()| tally)
}

#[track_caller]
fn holds(level: Durability, by: By, place: usize) {
    let tally = enumerate(level, by, place, (Bug::None, When::Running)).expect("whole or gone");
    println!("{by:?} at {level}: {tally:?}");
    assert!(tally.whole > 3 && tally.gone > 5 && tally.recoveries > 3, "{tally:?}");
}

#[test]
fn reclaim_leaves_a_structure_whole_or_gone_after_a_crash_of_its_process() {
    holds(Durability::Process, By::Reclaim, 0);
}

#[test]
fn reclaim_leaves_a_structure_whole_or_gone_after_a_loss_of_power() {
    holds(Durability::Power, By::Reclaim, 1);
}

#[test]
fn collect_leaves_a_structure_whole_or_gone_after_a_crash_of_its_process() {
    holds(Durability::Process, By::Collect, 2);
}

#[test]
fn collect_leaves_a_structure_whole_or_gone_after_a_loss_of_power() {
    holds(Durability::Power, By::Collect, 3);
}

#[track_caller]
fn caught(bug: Bug, when: When, level: Durability, by: By, place: usize) {
    match enumerate(level, by, place, (bug, when)) {
        Err(what) => println!("{bug:?}: found: {what}"),
        Ok(tally) => panic!("{bug:?} was not found: {tally:?}"),
    }
}

#[test]
fn leaks_that_are_given_back_one_by_one_are_found() {
    caught(Bug::GivenBackOneByOne, When::Running, Durability::Process, By::Reclaim, 4);
    caught(Bug::GivenBackOneByOne, When::Running, Durability::Process, By::Collect, 5);
}

#[test]
fn a_sweep_without_its_state_is_found() {
    caught(Bug::SweepNotOpened, When::Running, Durability::Process, By::Reclaim, 6);
    caught(Bug::SweepNotOpened, When::Running, Durability::Process, By::Collect, 7);
}

#[test]
fn a_sweep_that_is_committed_early_is_found() {
    caught(Bug::SweepCommittedEarly, When::Running, Durability::Process, By::Collect, 8);
}

#[test]
fn condemned_marks_that_are_not_durable_are_found() {
    caught(Bug::CondemnedNotFlushed, When::Running, Durability::Power, By::Reclaim, 9);
}

#[test]
fn an_opener_that_does_not_discard_an_open_sweep_is_found() {
    caught(Bug::OpenSweepIgnored, When::Recovering, Durability::Process, By::Collect, 10);
}
