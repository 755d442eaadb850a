//! Snapshots: what they show is one commit, and stays.

#[path = "../common/mod.rs"]
mod common;
mod edges;
mod world;

use cenote::{HeapKind, Pool, PoolMode, PoolOptions, Result, Snapshot, Store};
use cenote_medium::planted::{Bug, WindowBug, plant};
use cenote_testkit::environment::rounds;
use common::{directory, pool, power_pool, protected_pool};
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Mutex, PoisonError};
use world::{Model, Random, look, make, turn};

/// One thread that writes, and looks at snapshots of some of its commits again and again.
fn one_thread(pool: &Pool, seed: u64, turns: u64) -> Result<()> {
    let mut random = Random(seed);
    let (world, mut model) = make(pool)?;
    let mut held: Vec<(Snapshot, Model)> = Vec::new();
    for _ in 0..turns {
        if held.len() < 4 && random.below(3) == 0 {
            held.push((pool.snapshot()?, model.clone()));
        }
        model = turn(pool, world, &model, &mut random)?;
        assert!(look(&pool.read()?)? == model, "seed {seed}");
        for (snapshot, model) in &held {
            assert!(look(snapshot)? == *model, "seed {seed}");
        }
        if !held.is_empty() && random.below(6) == 0 {
            held.swap_remove(random.below(held.len() as u64) as usize);
        }
    }
    drop(held);
    assert_eq!(pool.snapshot_bytes(), 0, "all was given back");
    Ok(())
}

fn pool_of(store: &Store, heap: HeapKind, mode: PoolMode) -> Pool {
    store
        .create_pool("test", &PoolOptions { heap, mode, ..PoolOptions::default() })
        .expect("a pool")
}

#[test]
fn each_snapshot_shows_one_commit_in_pools_of_both_modes() -> Result<()> {
    for mode in [PoolMode::Direct, PoolMode::Shadowed] {
        for heap in [HeapKind::Traced, HeapKind::Logged] {
            let directory = directory();
            let store = Store::open(directory.path())?;
            one_thread(&pool_of(&store, heap, mode), 7, rounds(300))?;
        }
    }
    Ok(())
}

#[test]
fn each_snapshot_shows_one_commit_where_data_are_protected() -> Result<()> {
    let directory = directory();
    one_thread(&protected_pool(directory.path()), 13, rounds(100))
}

#[test]
fn each_snapshot_shows_one_commit_at_level_power() -> Result<()> {
    let directory = directory();
    one_thread(&power_pool(directory.path()), 11, rounds(200))
}

/// Readers in threads take snapshots while a thread writes. Each shows a commit that was the last
/// one at a moment between the begin and the end of its making.
#[test]
fn snapshots_are_moments_between_their_begin_and_their_end() -> Result<()> {
    let directory = directory();
    let pool = pool(directory.path());
    let (world, first) = make(&pool)?;
    let commits = Mutex::new(vec![Arc::new(first)]);
    let locked = || commits.lock().unwrap_or_else(PoisonError::into_inner);
    let done = AtomicBool::new(false);
    std::thread::scope(|scope| {
        for number in 0..3 {
            let (pool, done) = (pool.clone(), &done);
            scope.spawn(move || {
                let mut random = Random(number);
                let mut held: Vec<(Snapshot, Arc<Model>)> = Vec::new();
                while !done.load(Ordering::Relaxed) {
                    let begin = locked().len() as u64 - 1;
                    let snapshot = match pool.snapshot() {
                        Ok(snapshot) => snapshot,
                        Err(error) => {
                            assert!(error.to_string().contains("4 different commits"), "{error}");
                            held.pop();
                            continue;
                        }
                    };
                    let found = look(&snapshot).expect("a look");
                    // The writer lists a commit when it has returned.
                    let end = locked().len() as u64;
                    assert!(
                        (begin..=end).contains(&found.commit),
                        "{begin} {end} {}",
                        found.commit
                    );
                    let expected = loop {
                        if let Some(model) = locked().get(found.commit as usize) {
                            break Arc::clone(model);
                        }
                        std::thread::yield_now();
                    };
                    assert!(found == *expected, "commit {}", found.commit);
                    held.push((snapshot, expected));
                    for (snapshot, expected) in &held {
                        assert!(look(snapshot).expect("a look") == **expected);
                    }
                    if held.len() > random.below(3) as usize {
                        held.remove(0);
                    }
                }
            });
        }
        let mut random = Random(99);
        let mut model = locked()[0].as_ref().clone();
        for _ in 0..rounds(400) {
            model = turn(&pool, world, &model, &mut random).expect("a turn");
            let mut all = locked();
            if all.len() as u64 == model.commit {
                all.push(Arc::new(model.clone()));
            }
        }
        done.store(true, Ordering::Relaxed);
    });
    Ok(())
}

/// Each fault that lets a byte change under a snapshot is found by the test with one thread.
#[test]
fn what_is_not_kept_is_noticed() {
    let faults = [
        WindowBug::NotKept,
        WindowBug::NeighbourMissed,
        WindowBug::RangeKeptLate,
        WindowBug::FreedMarkNotKept,
        WindowBug::FreedBlockNotKept,
        WindowBug::StaleShared,
        WindowBug::LiveRoots,
        WindowBug::LiveMarks,
    ];
    let mut missed = Vec::new();
    for fault in faults {
        let found = (0..6).any(|seed| {
            let directory = directory();
            let pool = pool(directory.path());
            plant(Bug::Window(fault));
            let result = catch_unwind(AssertUnwindSafe(|| one_thread(&pool, seed, 200)));
            plant(Bug::None);
            !matches!(result, Ok(Ok(())))
        });
        if !found {
            missed.push(fault);
        }
    }
    assert!(missed.is_empty(), "{missed:?}");
}
