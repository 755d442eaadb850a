//! Random sequences of leaks, reopening, reclaim (to its end or broken off), collect, trim and
//! other allocations, in children that are killed at random moments. Handles of all collections
//! that leaked are kept in a second store. After each kill, and all the time in the children, each
//! handle leads to nothing or to a collection that was made, whole.
//!
//! `CENOTE_LEAK_KILLS` sets the number of kills (30), `CENOTE_SEED` the seed.

use crate::kept::{self, Kept, alone, directory, leak, open, reuse, survey_any};
use cenote::{Persist, Pool, Reader, ReclaimOptions, Result};
use cenote_collections as persistent;
use cenote_medium::planted::{Bug, plant};
use cenote_testkit::child::again;
use cenote_testkit::ended::wait_within;
use cenote_testkit::environment::{number, rounds};
use std::io::{BufRead, BufReader, Write};
use std::ops::ControlFlow;
use std::path::Path;
use std::process::{Child, Stdio};
use std::time::Duration;

/// What the second store keeps.
#[derive(Persist)]
struct Keeper {
    kept: persistent::Vec<Kept>,
    /// Seeds that were used.
    seeds: u64,
}

const CHILD: &str = "CENOTE_LEAKED_GENERATED";
const NAME: &str = "generated::child_of_the_generator";

fn random(seed: &mut u64) -> u64 {
    *seed = seed.wrapping_add(0x9e37_79b9_7f4a_7c15);
    let z = (*seed ^ (*seed >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb) >> 11
}

/// Takes a seed that no other run has.
fn next_seed(keeper: &Pool) -> Result<u64> {
    keeper.write(|tx| {
        let root = tx.root::<Keeper>()?.expect("made at the start");
        let seeds = tx.get(root)?.seeds;
        tx.set(root, cenote::field!(Keeper, seeds), seeds + 1)?;
        Ok(seeds)
    })
}

fn keep(keeper: &Pool, kept: Kept) -> Result<()> {
    keeper.write(|tx| {
        let root = tx.root::<Keeper>()?.expect("made at the start");
        tx.get(root)?.kept.push(tx, kept)
    })
}

/// Follows every handle that was ever kept.
fn survey_all(pool: &Pool, keeper: &Pool) -> std::result::Result<usize, String> {
    let view = keeper.read().expect("a view");
    let root = view.get(view.root::<Keeper>().unwrap().unwrap()).unwrap();
    let all = root.kept.as_slice(&view).unwrap();
    all.iter().try_for_each(|kept| survey_any(pool, kept, root.seeds)).map(|()| all.len())
}

/// One session of a child: reclaim comes first, or never.
fn session(dir: &Path, keeper: &Pool, seed: &mut u64) -> std::result::Result<(), String> {
    let (_store, pool) = open(dir);
    if random(seed).is_multiple_of(2) {
        let stop = random(seed) % 200;
        let (mut slices, mut torn) = (0, Ok(0));
        let mut progress = |_: &cenote::ReclaimProgress| {
            slices += 1;
            torn = survey_all(&pool, keeper);
            if slices > stop || torn.is_err() {
                ControlFlow::Break(())
            } else {
                ControlFlow::Continue(())
            }
        };
        let mut options = ReclaimOptions::default();
        options.progress = Some(&mut progress);
        let _ = pool.reclaim_with(options);
        torn?;
    }
    for _ in 0..1 + random(seed) % 4 {
        match random(seed) % 4 {
            0 | 1 => {
                let made = next_seed(keeper).map_err(|e| e.to_string())?;
                let kept = leak(&pool, made, random(seed).is_multiple_of(4));
                keep(keeper, kept).map_err(|e| e.to_string())?;
            }
            2 => reuse(&pool),
            _ => drop(pool.collect().map_err(|e| e.to_string())?),
        }
        survey_all(&pool, keeper)?;
    }
    Ok(())
}

/// Not a test of its own: what a child does until it is killed.
#[test]
fn child_of_the_generator() {
    let Ok(task) = std::env::var(CHILD) else { return };
    let parts: Vec<&str> = task.split(':').collect();
    let mut seed: u64 = parts[2].parse().expect("a seed");
    let (_store, keeper) = open(Path::new(parts[1]));
    if parts.len() > 3 {
        plant(Bug::GivenBackOneByOne);
    }
    println!("go");
    std::io::stdout().flush().expect("a pipe");
    loop {
        if let Err(what) = session(Path::new(parts[0]), &keeper, &mut seed) {
            println!("torn: {what}");
            std::process::exit(3);
        }
    }
}

fn prepare(dir: &Path, other: &Path) {
    drop(open(dir));
    let (_store, keeper) = open(other);
    let made = keeper.write(|tx| -> Result<()> {
        let kept = persistent::Vec::new(tx)?;
        let root = tx.alloc(Keeper { kept, seeds: 0 })?;
        tx.set_root(root)
    });
    made.unwrap();
}

fn spawn(task: String) -> Child {
    let mut child = again(NAME);
    child.env(CHILD, task).stdout(Stdio::piped()).stderr(Stdio::null()).spawn().unwrap()
}

/// A child that gives leaks back one by one sees a torn collection, or dies of one.
#[test]
fn the_generator_finds_leaks_that_are_given_back_one_by_one() {
    let _alone = alone();
    let (dir, other) = (directory(), directory());
    prepare(dir.path(), other.path());
    let mut child = spawn(format!("{}:{}:1:bug", dir.path().display(), other.path().display()));
    let ended = wait_within(&mut child, Duration::from_secs(120)).unwrap();
    assert!(ended.is_some_and(|ended| !ended.success()), "nothing noticed it: {ended:?}");
}

#[test]
fn kept_handles_find_whole_collections_or_none_after_kills() {
    let _alone = alone();
    let (kills, first) = (number("CENOTE_LEAK_KILLS", rounds(30)), number("CENOTE_SEED", 1));
    let (dir, other) = (directory(), directory());
    prepare(dir.path(), other.path());
    let (mut seed, mut kept) = (first, 0);
    for kill in 0..kills {
        let task =
            format!("{}:{}:{}", dir.path().display(), other.path().display(), random(&mut seed));
        let mut child = spawn(task);
        let mut lines =
            BufReader::new(child.stdout.take().unwrap()).lines().map_while(|line| line.ok());
        assert!(lines.any(|line| line.ends_with("go")), "a child did not begin");
        std::thread::sleep(Duration::from_micros(random(&mut seed) % 300_000));
        child.kill().unwrap();
        let ended = child.wait().unwrap();
        let said: Vec<String> = lines.collect();
        let at = format!("CENOTE_SEED={first}, kill {kill}");
        assert!(ended.code().is_none() && said.is_empty(), "{at}: {ended} {said:?}");
        let ((_a, pool), (_b, keeper)) = (open(dir.path()), open(other.path()));
        kept = survey_all(&pool, &keeper).unwrap_or_else(|what| panic!("{at}: {what}"));
        let check = pool.check().unwrap();
        let torn = (check.dangling_blocks, check.unallocated_blocks, check.miscounted.len());
        assert_eq!((torn, check.damage.len()), ((0, 0, 0), 0), "{at}");
    }
    assert!(kept as u64 > kills / 4, "{kept} collections leaked, of {} elements", kept::LEN);
}
