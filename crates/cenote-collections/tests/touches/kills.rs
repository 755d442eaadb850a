//! `kill -9` while faults relocate, and again while the next opener goes on; readers of what is
//! left half relocated.

use super::threads::{Round, act, bounded};
use super::{KINDS, Kind, WAYS, displace, number, open, opened, prepare, seeds, transfer, whole};
use crate::common::{directory, random};
use cenote::{Access, AtRest, Backend, Result};
use cenote_medium::planted::{Bug, plant};
use cenote_testkit::child::{Acknowledging, acknowledge, again};
use std::path::Path;
use std::sync::atomic::AtomicU64;
use std::time::Duration;

const DIR: &str = "CENOTE_TOUCH_DIR";
/// A child with this variable maps puddles before they are rewritten.
const PLANTED: &str = "CENOTE_TOUCH_PLANTED";
const THREADS: u64 = 3;

/// Not a test by itself: touches a pool from several threads until it is killed, and says each
/// transfer that is committed.
#[test]
fn child() {
    let Some(dir) = std::env::var_os(DIR) else { return };
    let seed = number("CENOTE_TOUCH_CHILD", 1);
    let name = if number("CENOTE_TOUCH_COPY", 0) == 1 { "copy" } else { "bank" };
    let backend = [Backend::Signal, Backend::Userfault][seed as usize % 2];
    let bug =
        if std::env::var_os(PLANTED).is_some() { Bug::PendingPuddleMapped } else { Bug::None };
    let store = open(Path::new(&dir), Access::ReadWrite, backend).expect("a store");
    let at = Round { store, name, access: Access::ReadWrite, committed: AtomicU64::new(0) };
    std::thread::scope(|scope| {
        for thread in 0..THREADS {
            let at = &at;
            scope.spawn(move || {
                plant(bug);
                let mut seed = seed * 100 + thread;
                let _kept = opened(&at.store, name, at.access);
                loop {
                    // Transfers come by this alone.
                    let pool = opened(&at.store, name, at.access);
                    let done = pool.write(|tx| transfer(tx, &mut seed)).expect("a transfer");
                    // Every crash takes a protected pool back to its last psync.
                    if pool.at_rest() != AtRest::None {
                        pool.psync().expect("psynced");
                    }
                    assert!(acknowledge(done), "heard");
                    let mut reading = random(&mut seed);
                    while matches!(reading % 13, 6 | 7) {
                        reading += 1;
                    }
                    act(at, &mut seed, reading).expect("an act");
                }
            });
        }
    });
}

/// Lets a child touch the pool and kills it; the transfers that it said at most. With `at_work`,
/// `after` counts from the first of them, else from its start.
fn kill(dir: &Path, name: &str, seed: u64, at_work: bool, after: Duration) -> u64 {
    kill_with(dir, name, (seed, false), at_work, after)
}

fn kill_with(
    dir: &Path,
    name: &str,
    (seed, planted): (u64, bool),
    at_work: bool,
    after: Duration,
) -> u64 {
    let mut command = again("touches::kills::child");
    if planted {
        command.env(PLANTED, "1");
    }
    command
        .env(DIR, dir)
        .env("CENOTE_TOUCH_CHILD", seed.to_string())
        .env("CENOTE_TOUCH_COPY", u64::from(name == "copy").to_string());
    let child = Acknowledging::start(&mut command);
    let transfers = child.kill(at_work, after, |transfers| transfers < 1 << 32);
    transfers.into_iter().max().unwrap_or(0)
}

fn round(seed: u64) -> Result<()> {
    let mut choice = seed;
    let kind = KINDS[random(&mut choice) as usize % KINDS.len()];
    let way = WAYS[random(&mut choice) as usize % WAYS.len()];
    let dir = directory();
    prepare(dir.path(), kind, seed)?;
    let name = displace(dir.path(), way)?;
    let mut acknowledged = 0;
    let mut before = 0;
    for turn in 0..3 {
        // Two of three when it has begun, else while it opens the store and touches its first
        // puddles.
        let at_work = !random(&mut choice).is_multiple_of(3);
        let after = Duration::from_micros(random(&mut choice) % 80_000);
        let said = kill(dir.path(), name, seed * 10 + turn, at_work, after);
        acknowledged = said.max(acknowledged);
        // A reader of what is left writes nothing and sees all of it.
        let reader =
            [Backend::Signal, Backend::Userfault, Backend::Eager][random(&mut choice) as usize % 3];
        let seen = whole(dir.path(), name, Access::ReadOnly, reader)?;
        println!(
            "seed {seed}: {kind:?}, {way:?}, killed after {after:?}: {said} said, {seen} there"
        );
        assert!(
            (acknowledged..=acknowledged.max(before) + THREADS).contains(&seen),
            "{acknowledged}, {seen}"
        );
        (acknowledged, before) = (seen, seen);
    }
    let there = whole(dir.path(), name, Access::ReadWrite, Backend::Signal)?;
    assert_eq!(there, acknowledged, "the writer sees what the reader saw");
    if name == "copy" {
        assert_eq!(
            whole(dir.path(), "bank", Access::ReadWrite, Backend::Signal)?,
            0,
            "the original"
        );
    }
    Ok(())
}

#[test]
fn kill_9_while_faults_relocate_leaves_whole_transactions_for_readers_and_writers() {
    seeds(5).for_each(|seed| bounded(seed, round));
}

/// Children that read what is not rewritten end by themselves, or leave what no reader takes.
#[test]
fn killed_children_that_map_puddles_before_they_are_rewritten_are_found() {
    let found = WAYS.iter().zip(1..).any(|(way, seed)| {
        let seen = std::panic::catch_unwind(|| -> Result<u64> {
            let dir = directory();
            prepare(dir.path(), Kind::Direct, seed)?;
            let name = displace(dir.path(), *way)?;
            kill_with(dir.path(), name, (seed, true), true, Duration::ZERO);
            whole(dir.path(), name, Access::ReadOnly, Backend::Eager)
        });
        !matches!(seen, Ok(Ok(_)))
    });
    assert!(found, "not found");
}
