//! SIGKILL of a program with a store of its own.
//!
//! A child goes through the steps of [`crate::table`], with psyncs and trims between them, and says
//! each one that is committed. It is killed at a random moment, at work or while it opens the
//! store. What must hold then:
//!
//! * pools in direct and in shadowed mode are at the last step that was said, or at the next one
//!   (committed, but not said yet);
//! * pools that are protected at rest are at the step of a psync: the last one that was said, or a
//!   later one;
//! * both pools are at the same step, equal to the model byte by byte; nothing is damaged; no block
//!   leaks.
//!
//! In half of the rounds a thread of the child makes one backup after another. The one that is
//! there after the kill is whole: both pools are at one step, equal to the model.

use crate::child::{self, Child};
use crate::round::{Outcome, Round, found, require};
use crate::sample::key;
use crate::table::{self, TableModel};
use cenote::{AtRest, HeapKind, OpenOptions, Pool, PoolMode, PoolOptions, Store};
use std::path::Path;

/// Kills of one round.
const KILLS: u64 = 8;
/// In what a child says: the pools were psynced at this step.
pub(crate) const PSYNCED: u64 = 1 << 63;

/// How the pools of a round are kept, and their heap.
const KINDS: [(PoolMode, AtRest, HeapKind); 8] = [
    (PoolMode::Direct, AtRest::None, HeapKind::Traced),
    (PoolMode::Shadowed, AtRest::None, HeapKind::Traced),
    (PoolMode::Shadowed, AtRest::Authenticated, HeapKind::Traced),
    (PoolMode::Shadowed, AtRest::EncryptionIntegrity, HeapKind::Traced),
    (PoolMode::Shadowed, AtRest::Integrity, HeapKind::Traced),
    (PoolMode::Direct, AtRest::None, HeapKind::WEAR),
    (PoolMode::Shadowed, AtRest::None, HeapKind::WEAR),
    (PoolMode::Shadowed, AtRest::Authenticated, HeapKind::WEAR),
];

/// Opens the store and both pools.
fn open(dir: &Path) -> Outcome<(Store, Pool, Pool)> {
    // One pool has a key, the others have none.
    let options =
        OpenOptions { key: Some(key(0)?), accept_unprotected: true, ..OpenOptions::default() };
    let store = Store::open_with(dir, &options)?;
    let (a, b) = (store.pool("table")?, store.pool("index")?);
    Ok((store, a, b))
}

/// Makes the store of a round.
pub(crate) fn prepare(dir: &Path, (mode, at_rest, heap): (PoolMode, AtRest, HeapKind)) -> Outcome {
    child::format(dir)?;
    let store = Store::open(dir)?;
    let key = if at_rest.mode().has_key() { Some(key(0)?) } else { None };
    let options =
        PoolOptions { mode, at_rest, heap, key, puddle_size: 512 << 10, ..PoolOptions::default() };
    let (a, b) = (store.create_pool("table", &options)?, store.create_pool("index", &options)?);
    table::prepare(&store, [&a, &b])?;
    if mode == PoolMode::Shadowed {
        store.psync(&[&a, &b])?;
    }
    drop((a, b));
    Ok(store.close()?)
}

/// A child: `DIR SEED`, and `BACKUP`, a directory, for backups beside its work.
pub(crate) fn child(args: &[String]) -> Outcome {
    // The panics on purpose.
    std::panic::set_hook(Box::new(|_| {}));
    let (store, a, b) = open(Path::new(&args[0]))?;
    let seed = child::number(args, 1)?;
    let Some(target) = args.get(2) else { return work(&store, &a, &b, seed) };
    std::thread::scope(|scope| {
        scope.spawn(|| {
            crate::plant::plant();
            if let Err(trouble) = back_up(&store, Path::new(target)) {
                eprintln!("backup: {trouble:?}");
                std::process::exit(3);
            }
        });
        work(&store, &a, &b, seed)
    })
}

/// One backup after another. What is at `target` is whole at every moment, or nothing is there.
fn back_up(store: &Store, target: &Path) -> Outcome {
    let (next, last) = (target.with_extension("next"), target.with_extension("last"));
    loop {
        store.backup(&next)?.durable()?;
        if target.exists() {
            std::fs::rename(target, &last)?;
        }
        std::fs::rename(&next, target)?;
        if last.exists() {
            std::fs::remove_dir_all(&last)?;
        }
    }
}

fn work(store: &Store, a: &Pool, b: &Pool, seed: u64) -> Outcome {
    let is_traced = store.pools().iter().any(|pool| pool.record.heap == HeapKind::Traced);
    let is_shadowed = store.pools().iter().any(|pool| pool.record.mode == PoolMode::Shadowed);
    for step in table::step_of(a)?.. {
        table::apply(store, [a, b], seed, step)?;
        child::say(step + 1)?;
        if is_shadowed && step % 5 == 4 {
            store.psync(&[a, b])?;
            child::say(PSYNCED | (step + 1))?;
        }
        if step % 29 == 28 && is_traced {
            a.trim()?;
        }
    }
    Ok(())
}

/// See the module.
pub(crate) fn round(round: &mut Round<'_>) -> Outcome {
    let kind = KINDS[round.below(KINDS.len() as u64) as usize];
    let (mode, at_rest, heap) = kind;
    let dir = round.dir.join("store");
    prepare(&dir, kind)?;
    let seed = round.seed;
    let mut model = TableModel::default();
    let target = round.dir.join("backup");
    let backs_up = round.below(2) == 0;
    for kill in 0..KILLS {
        let text = seed.to_string();
        let args: [&dyn AsRef<std::ffi::OsStr>; 3] = [&dir, &text, &target];
        let mut child = Child::start(round.dir, "kill", &args[..2 + usize::from(backs_up)])?;
        // Two of three at work; the others while they start, which is while they recover.
        if round.below(3) > 0 {
            child.hear()?;
        }
        std::thread::sleep(round.moment(40_000));
        let said = child.kill()?;
        let step = |psyncs: bool| {
            said.iter()
                .filter(|word| !psyncs || **word & PSYNCED != 0)
                .map(|word| word & !PSYNCED)
                .max()
        };
        let said_last = step(false).unwrap_or(model.step);
        let (least, most) = match at_rest {
            AtRest::None => (said_last, said_last + 1),
            _ => (step(true).unwrap_or(model.step), said_last + 1),
        };
        round.counts.add("kills", 1);
        round.counts.add("operations acknowledged", said_last - model.step);
        judge(&dir, seed, &mut model, least..=most, kill % 2 == 0).map_err(|trouble| {
            trouble.at(format_args!("{mode:?}, {at_rest:?}, {heap:?}, kill {kill}"))
        })?;
        if backs_up {
            judge_backup(round, &target, model.step)
                .map_err(|trouble| trouble.at(format_args!("backup before kill {kill}")))?;
        }
    }
    Ok(())
}

/// The backup that a killed child left, if there is one. What it had not finished is removed.
fn judge_backup(round: &mut Round<'_>, target: &Path, step: u64) -> Outcome {
    for extension in ["next", "last"] {
        let left = target.with_extension(extension);
        if left.exists() {
            std::fs::remove_dir_all(left)?;
        }
    }
    if target.exists() {
        judge(target, round.seed, &mut TableModel::default(), 0..=step, true)?;
        std::fs::remove_dir_all(target)?;
        round.counts.add("backups", 1);
    }
    Ok(())
}

/// Opens the store, which recovers it, and compares.
pub(crate) fn judge(
    dir: &Path,
    seed: u64,
    model: &mut TableModel,
    steps: std::ops::RangeInclusive<u64>,
    closes: bool,
) -> Outcome {
    let (store, a, b) = open(dir)?;
    let report = store.report();
    require(report.damage.is_empty(), || format!("damage after a kill: {:?}", report.damage))?;
    let step = table::step_of(&a)?;
    if !steps.contains(&step) {
        return found(format!("step {step} is there, and {steps:?} may be"));
    }
    model.advance(seed, step);
    table::compare([&a, &b], seed, model)?;
    for pool in [&a, &b] {
        let report = pool.check()?;
        require(report.is_sound(), || format!("pool {}: {report:?}", pool.name()))?;
    }
    drop((a, b));
    if closes {
        return Ok(store.close()?);
    }
    // As a crash would leave it again: the next opener recovers from what recovery left.
    store.abandon();
    Ok(())
}
